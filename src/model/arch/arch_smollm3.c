/* SmolLM3 (Hugging Face, 2025): llama's block and permuted q and k; every fourth layer has no position embedding. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = tern_configure_common(d, f, "smollm3", err);
    for (int i = 3; i < d->n_layers; i += 4)
        d->layers[i].at.rope = -1;
    return rc;
}

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_number smollm3_numbers[] = {
    {"attention.head_count_kv", 4}, {"attention.layer_norm_rms_epsilon", 1e-6}, {"rope.freq_base", 2e6}, {0}};

static const struct tern_hf_family families[] = {
    {.model_type = "smollm3", .act = "silu", .silent = smollm3_numbers, .more = tern_hf_smollm3},
    {0},
};

const struct tern_arch tern_arch_smollm3 = {.name = "smollm3",
                                            .configure = configure,
                                            .globals = tern_llama_globals,
                                            .layers = tern_llama_layers,
                                            .hf = families,
                                            .gguf = {.pairs = true, .divisors = true}};

/* Mistral 3 and Ministral 3 (Mistral AI, 2025), text: llama's block and permuted q and k; YaRN, and queries that grow
 * with their position beyond the context that YaRN stretches. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    int64_t span;
    double temper;
    TERN_TRY(tern_configure_common(d, f, "mistral3", err));
    TERN_TRY(tern_refuse_experts(f, "mistral3", err));
    TERN_TRY(tern_file_get_float(f, "mistral3.attention.temperature_scale", 0, &temper, err));
    TERN_TRY(
        tern_file_get_int(f, "mistral3.attention.temperature_length", d->ropes[0].original, 0, 1 << 24, &span, err));
    if (temper != 0 && !span)
        TERN_FAIL(err, TERN_EFORMAT,
                  "%s: mistral3.attention.temperature_scale wants mistral3.rope.scaling.original_context_length",
                  tern_file_path(f));
    for (int i = 0; i < d->n_layers; i++) {
        d->layers[i].attention.q_temper = (float)temper;
        d->layers[i].attention.q_temper_span = (int)span;
    }
out:
    return rc;
}

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_number ministral3_numbers[] = {
    {"attention.head_count_kv", 8},  {"attention.key_length", 128},
    {"attention.value_length", 128}, {"attention.layer_norm_rms_epsilon", 1e-5},
    {"rope.freq_base", 1e6},         {0}};

static const struct tern_hf_family families[] = {
    {.model_type = "ministral3", .act = "silu", .silent = ministral3_numbers, .mscale = true},
    {0},
};

const struct tern_arch tern_arch_mistral3 = {.name = "mistral3",
                                             .configure = configure,
                                             .globals = tern_llama_globals,
                                             .layers = tern_llama_layers,
                                             .hf = families,
                                             .gguf = {.pairs = true, .divisors = true}};

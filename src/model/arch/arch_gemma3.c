/* Gemma 3 text models (Gemma Team 2025): Gemma 2 with five sliding-window layers to one global layer, two RoPE bases
 * and RMS norms on q and k per head, without soft caps.
 *
 * The local base (10000) is a constant of the family unless the file says otherwise. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_gemma(d, f, "gemma3", 6, 62, err));
    d->n_ropes = 2;
    TERN_TRY(tern_rope_read_local(&d->ropes[1], f, "gemma3", d->ropes[0].n_rot, err));
    for (int i = 0; i < d->n_layers; i++)
        d->layers[i].at.rope = d->layers[i].at.mask == TERN_MASK_WINDOW;
out:
    return rc;
}

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_number gemma_numbers[] = {
    {"context_length", 131072},      {"attention.head_count", 8},
    {"attention.head_count_kv", 4},  {"attention.key_length", 256},
    {"attention.value_length", 256}, {"attention.layer_norm_rms_epsilon", 1e-6},
    {"rope.freq_base", 1e6},         {0}};

static const struct tern_hf_family families[] = {
    {.model_type = "gemma3_text",
     .act = "gelu_pytorch_tanh",
     .modules = tern_hf_gemma_modules,
     .silent = gemma_numbers,
     .norms_from_1 = true,
     .windows = true},
    {0},
};

const struct tern_arch tern_arch_gemma3 = {.name = "gemma3",
                                           .configure = configure,
                                           .globals = tern_gemma_globals,
                                           .layers = tern_gemma_layers,
                                           .more_layers = tern_head_norms,
                                           .hf = families};

/* Qwen2 and Qwen2.5 (Yang et al., 2024): llama's tensors with biases on q, k and v, and half-split RoPE as trained. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    return tern_configure_common(d, f, "qwen2", err);
}

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_family families[] = {
    {.model_type = "qwen2", .act = "silu", .silent = tern_hf_eps6},
    {0},
};

const struct tern_arch tern_arch_qwen2 = {.name = "qwen2",
                                          .configure = configure,
                                          .globals = tern_llama_globals,
                                          .layers = tern_llama_layers,
                                          .hf = families};

/* Qwen3, dense (Yang et al., 2025): llama's tensors and half-split RoPE, with RMS norms on q and k per head. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    return tern_configure_common(d, f, "qwen3", err);
}

const struct tern_tensor_rule tern_head_norms[] = {
    TERN_VECTOR("blk.%d.attn_q_norm.weight", TERN_SLOT_Q_NORM, tern_dim_head_k),
    TERN_VECTOR("blk.%d.attn_k_norm.weight", TERN_SLOT_K_NORM, tern_dim_head_k),
    {0},
};

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_number qwen3_numbers[] = {
    {"attention.key_length", 128}, {"attention.value_length", 128}, {"attention.layer_norm_rms_epsilon", 1e-6}, {0}};

static const struct tern_hf_family families[] = {
    {.model_type = "qwen3", .act = "silu", .silent = qwen3_numbers},
    {0},
};

const struct tern_arch tern_arch_qwen3 = {.name = "qwen3",
                                          .configure = configure,
                                          .globals = tern_llama_globals,
                                          .layers = tern_llama_layers,
                                          .more_layers = tern_head_norms,
                                          .hf = families};

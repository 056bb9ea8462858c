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

const struct tern_arch tern_arch_qwen3 = {"qwen3", configure, tern_llama_globals, tern_llama_layers, tern_head_norms};

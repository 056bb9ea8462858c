/* Qwen3's mixtures of experts (Yang et al., 2025): no biases, norms of q and k per head, experts in every layer, whose
 * weights sum to 1. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_common(d, f, "qwen3moe", err));
    TERN_TRY(tern_configure_experts(d, f, "qwen3moe", true, err));
out:
    return rc;
}

static const struct tern_tensor_rule layers[] = {
    {"blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.attn_q.weight", TERN_SLOT_Q, TERN_DIM_Q, TERN_DIM_EMBD, false},
    {"blk.%d.attn_k.weight", TERN_SLOT_K, TERN_DIM_K, TERN_DIM_EMBD, false},
    {"blk.%d.attn_v.weight", TERN_SLOT_V, TERN_DIM_V, TERN_DIM_EMBD, false},
    {"blk.%d.attn_output.weight", TERN_SLOT_O, TERN_DIM_EMBD, TERN_DIM_O, false},
    {"blk.%d.attn_q_norm.weight", TERN_SLOT_Q_NORM, TERN_DIM_HEAD_K, TERN_DIM_NONE, false},
    {"blk.%d.attn_k_norm.weight", TERN_SLOT_K_NORM, TERN_DIM_HEAD_K, TERN_DIM_NONE, false},
    {"blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.ffn_gate.weight", TERN_SLOT_GATE, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_up.weight", TERN_SLOT_UP, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_down.weight", TERN_SLOT_DOWN, TERN_DIM_EMBD, TERN_DIM_FF, false},
    {0},
};

const struct tern_arch tern_arch_qwen3moe = {"qwen3moe", configure, tern_llama_globals, layers, NULL};

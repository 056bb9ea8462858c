/* Phi-3, Phi-3.5 and Phi-4 (Abdin et al., 2024): llama's block with q, k and v in one matrix, and gate and up in
 * another; half-split RoPE, for long contexts with factors of its own (longrope); Phi-3-mini has a sliding window. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    return tern_configure_common(d, f, "phi3", err);
}

static const struct tern_tensor_rule layers[] = {
    {"blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.attn_qkv.weight", TERN_SLOT_Q, TERN_DIM_Q, TERN_DIM_EMBD, false},
    {"blk.%d.attn_qkv.weight", TERN_SLOT_K, TERN_DIM_K, TERN_DIM_EMBD, false},
    {"blk.%d.attn_qkv.weight", TERN_SLOT_V, TERN_DIM_V, TERN_DIM_EMBD, false},
    {"blk.%d.attn_output.weight", TERN_SLOT_O, TERN_DIM_EMBD, TERN_DIM_O, false},
    {"blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.ffn_up.weight", TERN_SLOT_GATE, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_up.weight", TERN_SLOT_UP, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_down.weight", TERN_SLOT_DOWN, TERN_DIM_EMBD, TERN_DIM_FF, false},
    {0},
};

const struct tern_arch tern_arch_phi3 = {"phi3", configure, tern_llama_globals, layers, NULL};

/* GLM-4-0414, dense (GLM team, 2025): biases on q, k and v, gate and up in one matrix, norms before and after both
 * halves of a block, RoPE on neighbouring dims of the first half of each head. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = tern_configure_common(d, f, "glm4", err);
    d->ropes[0].interleaved = true;
    return rc;
}

static const struct tern_tensor_rule layers[] = {
    {"blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.attn_q.weight", TERN_SLOT_Q, TERN_DIM_Q, TERN_DIM_EMBD, false},
    {"blk.%d.attn_k.weight", TERN_SLOT_K, TERN_DIM_K, TERN_DIM_EMBD, false},
    {"blk.%d.attn_v.weight", TERN_SLOT_V, TERN_DIM_V, TERN_DIM_EMBD, false},
    {"blk.%d.attn_q.bias", TERN_SLOT_Q_BIAS, TERN_DIM_Q, TERN_DIM_NONE, true},
    {"blk.%d.attn_k.bias", TERN_SLOT_K_BIAS, TERN_DIM_K, TERN_DIM_NONE, true},
    {"blk.%d.attn_v.bias", TERN_SLOT_V_BIAS, TERN_DIM_V, TERN_DIM_NONE, true},
    {"blk.%d.attn_output.weight", TERN_SLOT_O, TERN_DIM_EMBD, TERN_DIM_O, false},
    {"blk.%d.post_attention_norm.weight", TERN_SLOT_ATTN_POST_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.ffn_up.weight", TERN_SLOT_GATE, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_up.weight", TERN_SLOT_UP, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_down.weight", TERN_SLOT_DOWN, TERN_DIM_EMBD, TERN_DIM_FF, false},
    {"blk.%d.post_ffw_norm.weight", TERN_SLOT_FFN_POST_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {0},
};

const struct tern_arch tern_arch_glm4 = {"glm4", configure, tern_llama_globals, layers, NULL};

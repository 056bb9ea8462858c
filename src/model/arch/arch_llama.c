/* Llama 1-3, SmolLM2, Mixtral, and what GGUF converts to "llama".  Touvron et al. 2023 (RMSNorm, RoPE, SwiGLU).
 *
 * Converters permute the rows of q and k so that rotated pairs are neighbours: GGUF wants interleaved RoPE where
 * the original wants half-split.  Llama 3.x frequency scaling comes as the tensor rope_freqs.weight, one divisor per
 * pair. */
#include "model/arch/arch.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_common(d, f, "llama", err));
    TERN_TRY(tern_configure_experts(d, f, "llama", true, err));
    d->ropes[0].interleaved = tern_file_kind(f) == TERN_FILE_GGUF;
out:
    return rc;
}

const struct tern_tensor_rule tern_llama_globals[] = {
    {"token_embd.weight", TERN_EMBED, TERN_DIM_VOCAB, TERN_DIM_EMBD, false},
    {"output_norm.weight", TERN_OUT_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"output.weight", TERN_HEAD, TERN_DIM_VOCAB, TERN_DIM_EMBD, true},
    {"rope_freqs.weight", TERN_ROPE_FACTORS, TERN_DIM_ROPE, TERN_DIM_NONE, true},
    {"rope_factors_short.weight", TERN_ROPE_FACTORS_SHORT, TERN_DIM_ROPE, TERN_DIM_NONE, true},
    {"rope_factors_long.weight", TERN_ROPE_FACTORS_LONG, TERN_DIM_ROPE, TERN_DIM_NONE, true},
    {0},
};

const struct tern_tensor_rule tern_llama_layers[] = {
    {"blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.attn_q.weight", TERN_SLOT_Q, TERN_DIM_Q, TERN_DIM_EMBD, false},
    {"blk.%d.attn_k.weight", TERN_SLOT_K, TERN_DIM_K, TERN_DIM_EMBD, false},
    {"blk.%d.attn_v.weight", TERN_SLOT_V, TERN_DIM_V, TERN_DIM_EMBD, false},
    {"blk.%d.attn_output.weight", TERN_SLOT_O, TERN_DIM_EMBD, TERN_DIM_O, false},
    {"blk.%d.attn_q.bias", TERN_SLOT_Q_BIAS, TERN_DIM_Q, TERN_DIM_NONE, true},
    {"blk.%d.attn_k.bias", TERN_SLOT_K_BIAS, TERN_DIM_K, TERN_DIM_NONE, true},
    {"blk.%d.attn_v.bias", TERN_SLOT_V_BIAS, TERN_DIM_V, TERN_DIM_NONE, true},
    {"blk.%d.attn_output.bias", TERN_SLOT_O_BIAS, TERN_DIM_EMBD, TERN_DIM_NONE, true},
    {"blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.ffn_gate.weight", TERN_SLOT_GATE, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_up.weight", TERN_SLOT_UP, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_down.weight", TERN_SLOT_DOWN, TERN_DIM_EMBD, TERN_DIM_FF, false},
    {0},
};

/* Experts in one tensor, or, as early files of Mixtral and Hugging Face have them, each in its own. */
const struct tern_tensor_rule tern_expert_layers[] = {
    {"blk.%d.ffn_gate_shexp.weight", TERN_SLOT_SHARED_GATE, TERN_DIM_FF_SHARED, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_up_shexp.weight", TERN_SLOT_SHARED_UP, TERN_DIM_FF_SHARED, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_down_shexp.weight", TERN_SLOT_SHARED_DOWN, TERN_DIM_EMBD, TERN_DIM_FF_SHARED, false},
    {"blk.%d.ffn_gate_inp.weight", TERN_SLOT_ROUTER, TERN_DIM_EXPERTS, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_gate.%d.weight", TERN_SLOT_EXPERT_GATE, TERN_DIM_FF_EXPERT, TERN_DIM_EMBD, true},
    {"blk.%d.ffn_up.%d.weight", TERN_SLOT_EXPERT_UP, TERN_DIM_FF_EXPERT, TERN_DIM_EMBD, true},
    {"blk.%d.ffn_down.%d.weight", TERN_SLOT_EXPERT_DOWN, TERN_DIM_EMBD, TERN_DIM_FF_EXPERT, true},
    {"blk.%d.ffn_gate_up_exps.weight", TERN_SLOT_EXPERT_GATE, TERN_DIM_FF_EXPERT, TERN_DIM_EMBD, true},
    {"blk.%d.ffn_gate_up_exps.weight", TERN_SLOT_EXPERT_UP, TERN_DIM_FF_EXPERT, TERN_DIM_EMBD, true},
    {"blk.%d.ffn_gate_exps.weight", TERN_SLOT_EXPERT_GATE, TERN_DIM_FF_EXPERT, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_up_exps.weight", TERN_SLOT_EXPERT_UP, TERN_DIM_FF_EXPERT, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_down_exps.weight", TERN_SLOT_EXPERT_DOWN, TERN_DIM_EMBD, TERN_DIM_FF_EXPERT, false},
    {0},
};

const struct tern_arch tern_arch_llama = {"llama", configure, tern_llama_globals, tern_llama_layers, NULL};

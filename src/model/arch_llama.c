/* Llama 1-3, SmolLM2, and what GGUF converts to "llama".  Touvron et al. 2023 (RMSNorm, RoPE, SwiGLU).
 *
 * Converters to GGUF permute the rows of q and k so that rotated pairs are neighbours: the file wants interleaved RoPE
 * where the original wants half-split.  Llama 3.x frequency scaling comes there as the tensor rope_freqs.weight, one
 * divisor per pair, and in the original as three numbers. */
#include "model/model.h"

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_common(d, f, "llama", err));
    TERN_TRY(tern_arch_expect(f, "llama", "hidden_act", "silu", err));
    d->ropes[0].interleaved = tern_file_kind(f) == TERN_FILE_GGUF;
    d->ropes[0].use_factors = tern_file_tensor(f, "rope_freqs.weight") != NULL;
    const struct tern_meta *experts = tern_file_meta(f, "llama.expert_count");
    if (experts && experts->i > 0)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: llama.expert_count = %lld: mixture of experts is not supported",
                  tern_file_path(f), (long long)experts->i);
    TERN_TRY(tern_arch_expect_off(f, "llama", "attention.sliding_window", err));
out:
    return rc;
}

const struct tern_tensor_rule tern_llama_globals[] = {
    {"token_embd.weight", "embed_tokens.weight", TERN_EMBED, TERN_DIM_VOCAB, TERN_DIM_EMBD, false},
    {"output_norm.weight", "norm.weight", TERN_OUT_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"output.weight", "lm_head.weight", TERN_HEAD, TERN_DIM_VOCAB, TERN_DIM_EMBD, true},
    {"rope_freqs.weight", NULL, TERN_ROPE_FACTORS, TERN_DIM_ROPE, TERN_DIM_NONE, true},
    {0},
};

const struct tern_tensor_rule tern_llama_layers[] = {
    {"blk.%d.attn_norm.weight", "input_layernorm.weight", TERN_SLOT_ATTN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.attn_q.weight", "self_attn.q_proj.weight", TERN_SLOT_Q, TERN_DIM_Q, TERN_DIM_EMBD, false},
    {"blk.%d.attn_k.weight", "self_attn.k_proj.weight", TERN_SLOT_K, TERN_DIM_K, TERN_DIM_EMBD, false},
    {"blk.%d.attn_v.weight", "self_attn.v_proj.weight", TERN_SLOT_V, TERN_DIM_V, TERN_DIM_EMBD, false},
    {"blk.%d.attn_output.weight", "self_attn.o_proj.weight", TERN_SLOT_O, TERN_DIM_EMBD, TERN_DIM_O, false},
    {"blk.%d.attn_q.bias", "self_attn.q_proj.bias", TERN_SLOT_Q_BIAS, TERN_DIM_Q, TERN_DIM_NONE, true},
    {"blk.%d.attn_k.bias", "self_attn.k_proj.bias", TERN_SLOT_K_BIAS, TERN_DIM_K, TERN_DIM_NONE, true},
    {"blk.%d.attn_v.bias", "self_attn.v_proj.bias", TERN_SLOT_V_BIAS, TERN_DIM_V, TERN_DIM_NONE, true},
    {"blk.%d.attn_output.bias", "self_attn.o_proj.bias", TERN_SLOT_O_BIAS, TERN_DIM_EMBD, TERN_DIM_NONE, true},
    {"blk.%d.ffn_norm.weight", "post_attention_layernorm.weight", TERN_SLOT_FFN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE,
     false},
    {"blk.%d.ffn_gate.weight", "mlp.gate_proj.weight", TERN_SLOT_GATE, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_up.weight", "mlp.up_proj.weight", TERN_SLOT_UP, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_down.weight", "mlp.down_proj.weight", TERN_SLOT_DOWN, TERN_DIM_EMBD, TERN_DIM_FF, false},
    {0},
};

const struct tern_arch tern_arch_llama = {"llama", configure, tern_llama_globals, tern_llama_layers, "llama mistral"};

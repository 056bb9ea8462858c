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
    TERN_VECTOR("blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_q.weight", TERN_SLOT_Q, tern_dim_q, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_k.weight", TERN_SLOT_K, tern_dim_k, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_v.weight", TERN_SLOT_V, tern_dim_v, tern_dim_embd),
    TERN_VECTOR("blk.%d.attn_q.bias", TERN_SLOT_Q_BIAS, tern_dim_q, .optional = true),
    TERN_VECTOR("blk.%d.attn_k.bias", TERN_SLOT_K_BIAS, tern_dim_k, .optional = true),
    TERN_VECTOR("blk.%d.attn_v.bias", TERN_SLOT_V_BIAS, tern_dim_v, .optional = true),
    TERN_MATRIX("blk.%d.attn_output.weight", TERN_SLOT_O, tern_dim_embd, tern_dim_o),
    TERN_VECTOR("blk.%d.post_attention_norm.weight", TERN_SLOT_ATTN_POST_NORM, tern_dim_embd),
    TERN_VECTOR("blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.ffn_up.weight", TERN_SLOT_GATE, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_up.weight", TERN_SLOT_UP, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_down.weight", TERN_SLOT_DOWN, tern_dim_embd, tern_dim_ff, .when = tern_when_network),
    TERN_VECTOR("blk.%d.post_ffw_norm.weight", TERN_SLOT_FFN_POST_NORM, tern_dim_embd),
    {0},
};

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_word glm4_modules[] = {
    {"post_self_attn_layernorm", "post_attention_norm"}, {"post_mlp_layernorm", "post_ffw_norm"}, {0}};

static const struct tern_hf_number glm4_numbers[] = {
    {"attention.head_count_kv", 2},  {"attention.key_length", 128},
    {"attention.value_length", 128}, {"attention.layer_norm_rms_epsilon", 1.5625e-7},
    {"partial_rotary_factor", 0.5},  {0}};

static const struct tern_hf_family families[] = {
    {.model_type = "glm4", .act = "silu", .modules = glm4_modules, .silent = glm4_numbers},
    {0},
};

const struct tern_arch tern_arch_glm4 = {
    .name = "glm4", .configure = configure, .globals = tern_llama_globals, .layers = layers, .hf = families};

/* DeepSeek-V2 and V3 (DeepSeek-AI, 2024) and GLM-4.7-Flash: latent attention, then experts after some dense layers.
 *
 * The file holds each head's key matrix transposed and apart from its value matrix (attn_k_b, attn_v_b), as the form
 * needs that multiplies queries instead of keys; files from before that have one attn_kv_b and are refused.
 * attention.key_length and value_length are those of what is cached, key_length_mla and value_length_mla a head's. */
#include "model/arch/arch.h"

#include <math.h>

#define MAX_RANK (1 << 15)

struct sizes {
    int64_t rank, q_rank, key, value, rot;
};

static int read_sizes(struct sizes *v, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_file_need_int(f, "deepseek2.attention.kv_lora_rank", 16, TERN_KVQ_MAX_DIM, &v->rank, err));
    TERN_TRY(tern_file_get_int(f, "deepseek2.attention.q_lora_rank", 0, 0, MAX_RANK, &v->q_rank, err));
    TERN_TRY(tern_file_need_int(f, "deepseek2.rope.dimension_count", 16, TERN_KVQ_MAX_DIM, &v->rot, err));
    TERN_TRY(
        tern_file_need_int(f, "deepseek2.attention.key_length_mla", v->rot + 16, 2 * TERN_KVQ_MAX_DIM, &v->key, err));
    TERN_TRY(tern_file_need_int(f, "deepseek2.attention.value_length_mla", 16, TERN_KVQ_MAX_DIM, &v->value, err));
    if (v->rank % 16 || v->rot % 16 || v->key % 16 || v->value % 16)
        TERN_FAIL(err, TERN_EUNSUPPORTED,
                  "%s: latent attention of %lld dims, heads of %lld (%lld of them rotated) and %lld: not all are "
                  "multiples of 16",
                  tern_file_path(f), (long long)v->rank, (long long)v->key, (long long)v->rot, (long long)v->value);
out:
    return rc;
}

/* Files of GLM-4.7-Flash do not say that its router is a sigmoid; they are known by depth and vocabulary. */
static bool is_glm_flash(const struct tern_desc *d, const struct tern_file *f)
{
    const struct tern_tensor *t = tern_file_tensor(f, "token_embd.weight");
    return (d->n_layers == 47 || d->n_layers == 48) && t && t->dims[1] == 154880;
}

/* YaRN's growth, in this family, is of the scores instead of cos and sin: yarn_log_multiplier is a tenth of how much of
 * it.  *scores: what their scale is multiplied by. */
static int configure_yarn(struct tern_rope *r, const struct tern_file *f, double *scores, tern_error *err)
{
    int rc = 0;
    double log_mul, stretch = r->factor > 1 ? 0.1 * log((double)r->factor) : 0;
    *scores = 1;
    TERN_TRY(tern_file_get_float(f, "deepseek2.rope.scaling.yarn_log_multiplier", 0, &log_mul, err));
    if (r->scaling != TERN_ROPE_YARN || log_mul == 0)
        return 0;
    if (!(log_mul > 0) || log_mul > 10)
        TERN_FAIL(err, TERN_EFORMAT, "%s: deepseek2.rope.scaling.yarn_log_multiplier = %g is not from 0 to 10",
                  tern_file_path(f), log_mul);
    double growth = 1 + 10 * log_mul * stretch;
    r->magnitude = (float)((double)r->magnitude * (log_mul * stretch + 1) / (stretch + 1));
    *scores = growth * growth;
out:
    return rc;
}

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    struct sizes v;
    double scores;
    TERN_TRY(read_sizes(&v, f, err));
    TERN_TRY(tern_configure_common(d, f, "deepseek2", err));
    TERN_TRY(tern_configure_experts(d, f, "deepseek2", false, err));
    TERN_TRY(configure_yarn(&d->ropes[0], f, &scores, err));
    TERN_TRY(tern_file_get_bool(f, "deepseek2.rope.interleaved", true, &d->ropes[0].interleaved, err));
    bool sigmoid = !tern_file_meta(f, "deepseek2.expert_gating_func") && is_glm_flash(d, f);
    for (int i = 0; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        l->mixer = TERN_MIX_LATENT;
        l->at.n_kv_heads = 1;
        l->at.dim_k = (int)v.rot;
        l->at.dim_v = (int)v.rank;
        l->latent = (struct tern_latent_desc){
            .dim_nope = (int)(v.key - v.rot), .dim_head_v = (int)v.value, .q_rank = (int)v.q_rank};
        l->at.scale = (float)(scores / sqrt((double)v.key));
        if (sigmoid && l->ffn == TERN_FFN_EXPERTS)
            l->experts.router = TERN_ROUTE_SIGMOID;
    }
out:
    return rc;
}

static bool when_ranked(const struct tern_layer_desc *l)
{
    return l->latent.q_rank > 0;
}

static bool when_straight(const struct tern_layer_desc *l)
{
    return !l->latent.q_rank;
}

static const struct tern_tensor_rule layers[] = {
    TERN_VECTOR("blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_q.weight", TERN_SLOT_Q, tern_dim_q_heads, tern_dim_embd, .when = when_straight),
    TERN_MATRIX("blk.%d.attn_q_a.weight", TERN_SLOT_Q_A, tern_dim_q_rank, tern_dim_embd, .when = when_ranked,
                .whole = true),
    TERN_VECTOR("blk.%d.attn_q_a_norm.weight", TERN_SLOT_Q_A_NORM, tern_dim_q_rank, .when = when_ranked),
    TERN_MATRIX("blk.%d.attn_q_b.weight", TERN_SLOT_Q, tern_dim_q_heads, tern_dim_q_rank, .when = when_ranked),
    TERN_MATRIX("blk.%d.attn_kv_a_mqa.weight", TERN_SLOT_KV_A, tern_dim_latent_k, tern_dim_embd, .whole = true),
    TERN_VECTOR("blk.%d.attn_kv_a_norm.weight", TERN_SLOT_KV_A_NORM, tern_dim_latent),
    TERN_MATRIX("blk.%d.attn_k_b.weight", TERN_SLOT_K_B, tern_dim_latent, tern_dim_nope, .stacked = TERN_PER_HEAD),
    TERN_MATRIX("blk.%d.attn_v_b.weight", TERN_SLOT_V_B, tern_dim_head_v, tern_dim_latent, .stacked = TERN_PER_HEAD),
    TERN_MATRIX("blk.%d.attn_output.weight", TERN_SLOT_O, tern_dim_embd, tern_dim_heads_v),
    TERN_VECTOR("blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.ffn_gate.weight", TERN_SLOT_GATE, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_up.weight", TERN_SLOT_UP, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_down.weight", TERN_SLOT_DOWN, tern_dim_embd, tern_dim_ff, .when = tern_when_network),
    TERN_VECTOR("blk.%d.exp_probs_b.bias", TERN_SLOT_ROUTER_BIAS, tern_dim_experts, .when = tern_when_experts,
                .optional = true),
    {0},
};

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_number deepseek2_numbers[] = {{"context_length", 2048},
                                                          {"attention.layer_norm_rms_epsilon", 1e-6},
                                                          {"attention.kv_lora_rank", 512},
                                                          {"attention.value_length_mla", 128},
                                                          {"qk_nope_head_dim", 128},
                                                          {"rope.dimension_count", 64},
                                                          {"expert_count", 64},
                                                          {"expert_shared_count", 2},
                                                          {0}};

static const struct tern_hf_number deepseek3_numbers[] = {{"context_length", 4096},
                                                          {"attention.layer_norm_rms_epsilon", 1e-6},
                                                          {"attention.kv_lora_rank", 512},
                                                          {"attention.value_length_mla", 128},
                                                          {"qk_nope_head_dim", 128},
                                                          {"rope.dimension_count", 64},
                                                          {"expert_count", 256},
                                                          {"expert_shared_count", 1},
                                                          {"expert_used_count", 8},
                                                          {"expert_weights_scale", 2.5},
                                                          {"expert_group_count", 8},
                                                          {"expert_group_used_count", 4},
                                                          {"leading_dense_block_count", 3},
                                                          {0}};

static const struct tern_hf_number glm4_lite_numbers[] = {{"context_length", 202752},
                                                          {"attention.layer_norm_rms_epsilon", 1e-5},
                                                          {"attention.kv_lora_rank", 512},
                                                          {"attention.value_length_mla", 256},
                                                          {"qk_nope_head_dim", 192},
                                                          {"rope.dimension_count", 64},
                                                          {"expert_count", 64},
                                                          {"expert_shared_count", 1},
                                                          {"expert_used_count", 4},
                                                          {"expert_weights_scale", 1.8},
                                                          {"expert_feed_forward_length", 1536},
                                                          {"leading_dense_block_count", 1},
                                                          {0}};

static const char *const latent_elsewhere[] = {"attention.head_count_kv",          "attention.key_length",
                                               "attention.value_length",           "expert_weights_norm",
                                               "rope.scaling.yarn_log_multiplier", NULL};

static const struct tern_hf_word latent_modules[] = {
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"self_attn.embed_q", "attn_k_b"},
    {"self_attn.unembed_out", "attn_v_b"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
    {0},
};

static const struct tern_hf_family families[] = {
    {.model_type = "deepseek_v2",
     .act = "silu",
     .modules = latent_modules,
     .silent = deepseek2_numbers,
     .elsewhere = latent_elsewhere,
     .more = tern_hf_latent,
     .experts = true},
    {.model_type = "deepseek_v3",
     .act = "silu",
     .modules = latent_modules,
     .silent = deepseek3_numbers,
     .elsewhere = latent_elsewhere,
     .more = tern_hf_latent,
     .experts = true},
    {.model_type = "glm4_moe_lite",
     .act = "silu",
     .modules = latent_modules,
     .silent = glm4_lite_numbers,
     .elsewhere = latent_elsewhere,
     .more = tern_hf_latent,
     .experts = true},
    {0},
};

const struct tern_arch tern_arch_deepseek2 = {.name = "deepseek2",
                                              .configure = configure,
                                              .globals = tern_llama_globals,
                                              .layers = layers,
                                              .hf = families,
                                              .gguf = {.latent = true}};

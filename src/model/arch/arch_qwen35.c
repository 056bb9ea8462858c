/* Qwen3.5, dense (Qwen Team, 2026): three layers with the gated delta rule (Yang et al., 2024) to one with attention,
 * whose queries come with a gate on its output and whose heads turn in their first dims only.
 *
 * GGUF has value head h go with key head h mod n, A as -exp(A), norms as what they multiply by, except the one behind
 * the rule, which always was.  Sections of the rotation for images say nothing about text. */
#include "model/arch/arch.h"

#define MAX_HEADS 1024
#define MAX_HEAD  1024

struct sizes {
    int64_t k_heads, v_heads, dim_k, inner, width, every;
    const int64_t *recurrent; /* [layers] which they are; NULL: all but every `every`th */
};

static int read_sizes(struct sizes *v, const struct tern_file *f, const char *arch, int n_blocks, tern_error *err)
{
    int rc = 0;
    char key[160];
#define KEY(name) tern_arch_key(key, sizeof key, arch, name)
    TERN_TRY(tern_file_need_int(f, KEY("ssm.group_count"), 1, MAX_HEADS, &v->k_heads, err));
    TERN_TRY(tern_file_need_int(f, KEY("ssm.time_step_rank"), 1, MAX_HEADS, &v->v_heads, err));
    if (v->v_heads % v->k_heads)
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s = %lld is not a multiple of the %lld key heads", tern_file_path(f), key,
                  (long long)v->v_heads, (long long)v->k_heads);
    TERN_TRY(tern_file_need_int(f, KEY("ssm.state_size"), 16, MAX_HEAD, &v->dim_k, err));
    TERN_TRY(tern_file_need_int(f, KEY("ssm.conv_kernel"), 2, TERN_DELTA_WIDTH, &v->width, err));
    TERN_TRY(tern_file_need_int(f, KEY("ssm.inner_size"), 16, MAX_HEADS * MAX_HEAD, &v->inner, err));
    if (v->inner % v->v_heads || v->inner / v->v_heads > MAX_HEAD)
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s = %lld is not that of %lld heads", tern_file_path(f), key,
                  (long long)v->inner, (long long)v->v_heads);
    TERN_TRY(tern_file_get_int(f, KEY("full_attention_interval"), 4, 1, 1024, &v->every, err));
    const struct tern_meta *list = tern_file_meta(f, KEY("attention.recurrent_layers"));
    if (list &&
        (list->type != TERN_META_ARRAY || list->elem != TERN_META_BOOL || list->n != (size_t)n_blocks || list->odd))
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s at byte %llu is not an array of %d booleans", tern_file_path(f), key,
                  (unsigned long long)list->file_offset, n_blocks);
    v->recurrent = list ? list->arr : NULL;
#undef KEY
out:
    return rc;
}

int tern_configure_qwen35(struct tern_desc *d, const struct tern_file *f, const char *arch, tern_error *err)
{
    int rc = 0;
    struct sizes v;
    char key[160];
    int64_t n_mtp;
    TERN_TRY(tern_configure_common(d, f, arch, err));
    TERN_TRY(read_sizes(&v, f, arch, d->n_layers, err));
    TERN_TRY(tern_file_get_int(f, tern_arch_key(key, sizeof key, arch, "nextn_predict_layers"), 0, 0, d->n_layers - 1,
                               &n_mtp, err));
    for (int i = 0; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        if (i >= d->n_layers - n_mtp || (v.recurrent ? !v.recurrent[i] : (i + 1) % v.every == 0)) {
            l->attention.out_gate = true;
            continue;
        }
        l->mixer = TERN_MIX_DELTA;
        l->at = (struct tern_attend_desc){.rope = -1, .kv_of = -1};
        l->delta = (struct tern_delta_desc){
            .k_heads = (int)v.k_heads,
            .v_heads = (int)v.v_heads,
            .dim_k = (int)v.dim_k,
            .dim_v = (int)(v.inner / v.v_heads),
            .conv_width = (int)v.width,
            .grouped = tern_file_kind(f) == TERN_FILE_HF,
        };
    }
out:
    return rc;
}

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_qwen35(d, f, "qwen35", err));
    TERN_TRY(tern_configure_mtp(d, f, "qwen35", "nextn.hnorm", err));
    TERN_TRY(tern_refuse_experts(f, "qwen35", err));
out:
    return rc;
}

static bool when_attention(const struct tern_layer_desc *l)
{
    return l->mixer == TERN_MIX_ATTENTION;
}

static bool when_delta(const struct tern_layer_desc *l)
{
    return l->mixer == TERN_MIX_DELTA;
}

const struct tern_tensor_rule tern_qwen35_layers[] = {
    TERN_VECTOR("blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_q.weight", TERN_SLOT_Q, tern_dim_q_gate, tern_dim_embd, .when = when_attention),
    TERN_MATRIX("blk.%d.attn_k.weight", TERN_SLOT_K, tern_dim_k, tern_dim_embd, .when = when_attention),
    TERN_MATRIX("blk.%d.attn_v.weight", TERN_SLOT_V, tern_dim_v, tern_dim_embd, .when = when_attention),
    TERN_MATRIX("blk.%d.attn_output.weight", TERN_SLOT_O, tern_dim_embd, tern_dim_o, .when = when_attention),
    TERN_VECTOR("blk.%d.attn_q_norm.weight", TERN_SLOT_Q_NORM, tern_dim_head_k, .when = when_attention),
    TERN_VECTOR("blk.%d.attn_k_norm.weight", TERN_SLOT_K_NORM, tern_dim_head_k, .when = when_attention),
    TERN_MATRIX("blk.%d.attn_qkv.weight", TERN_SLOT_DELTA_IN, tern_dim_conv, tern_dim_embd, .when = when_delta),
    TERN_MATRIX("blk.%d.attn_gate.weight", TERN_SLOT_DELTA_Z, tern_dim_delta_v, tern_dim_embd, .when = when_delta),
    TERN_MATRIX("blk.%d.ssm_beta.weight", TERN_SLOT_DELTA_BETA, tern_dim_delta_heads, tern_dim_embd,
                .when = when_delta),
    TERN_MATRIX("blk.%d.ssm_alpha.weight", TERN_SLOT_DELTA_ALPHA, tern_dim_delta_heads, tern_dim_embd,
                .when = when_delta),
    TERN_MATRIX("blk.%d.ssm_conv1d.weight", TERN_SLOT_DELTA_CONV, tern_dim_conv, tern_dim_conv_width,
                .when = when_delta, .table = true),
    TERN_VECTOR("blk.%d.ssm_a", TERN_SLOT_DELTA_A, tern_dim_delta_heads, .when = when_delta),
    TERN_VECTOR("blk.%d.ssm_dt.bias", TERN_SLOT_DELTA_DT, tern_dim_delta_heads, .when = when_delta),
    TERN_VECTOR("blk.%d.ssm_norm.weight", TERN_SLOT_DELTA_NORM, tern_dim_delta_head_v, .when = when_delta),
    TERN_MATRIX("blk.%d.ssm_out.weight", TERN_SLOT_O, tern_dim_embd, tern_dim_delta_v, .when = when_delta),
    TERN_VECTOR("blk.%d.post_attention_norm.weight", TERN_SLOT_FFN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.ffn_gate.weight", TERN_SLOT_GATE, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_up.weight", TERN_SLOT_UP, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_down.weight", TERN_SLOT_DOWN, tern_dim_embd, tern_dim_ff, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_gate_inp_shexp.weight", TERN_SLOT_SHARED_ROUTER, tern_dim_one, tern_dim_embd, .whole = true,
                .when = tern_when_shared),
    {0},
};

/* ---- directories of Hugging Face ---- */

const char *const tern_hf_qwen35_elsewhere[] = {"attention.sliding_window", "expert_count", NULL};

const struct tern_hf_word tern_hf_qwen35_modules[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
    {0},
};

static const struct tern_hf_word mtp_names[] = {
    {"mtp.fc.weight", "nextn.eh_proj.weight"},
    {"mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight"},
    {"mtp.pre_fc_norm_hidden.weight", "nextn.hnorm.weight"},
    {"mtp.norm.weight", "nextn.shared_head_norm.weight"},
    {"mtp.embed_tokens.weight", "nextn.embed_tokens.weight"},
    {0},
};

const struct tern_hf_mtp tern_hf_qwen35_mtp = {"mtp_num_hidden_layers", "mtp.layers.0.",
                                               "mtp.pre_fc_norm_hidden.weight", mtp_names};

/* Those of experts come first: the model without them has the rest, and a file that counts experts would be taken for
 * one that has some. */
#define EXPERT_NUMBERS 4

const struct tern_hf_number tern_hf_qwen35_numbers[] = {{"expert_count", 256},
                                                        {"expert_used_count", 8},
                                                        {"expert_feed_forward_length", 512},
                                                        {"expert_shared_feed_forward_length", 512},
                                                        {"context_length", 32768},
                                                        {"attention.key_length", 256},
                                                        {"attention.value_length", 256},
                                                        {"attention.layer_norm_rms_epsilon", 1e-6},
                                                        {"partial_rotary_factor", 0.25},
                                                        {"ssm.conv_kernel", 4},
                                                        {"ssm.group_count", 16},
                                                        {"ssm.time_step_rank", 32},
                                                        {"ssm.state_size", 128},
                                                        {"linear_value_head_dim", 128},
                                                        {0}};

static const struct tern_hf_family families[] = {
    {.model_type = "qwen3_5_text",
     .act = "silu",
     .modules = tern_hf_qwen35_modules,
     .silent = tern_hf_qwen35_numbers + EXPERT_NUMBERS,
     .elsewhere = tern_hf_qwen35_elsewhere,
     .more = tern_hf_qwen35,
     .mtp = &tern_hf_qwen35_mtp,
     .norms_from_1 = true},
    {0},
};

const struct tern_arch tern_arch_qwen35 = {.name = "qwen35",
                                           .configure = configure,
                                           .globals = tern_llama_globals,
                                           .layers = tern_qwen35_layers,
                                           .hf = families,
                                           .gguf = {.grouped = true}};

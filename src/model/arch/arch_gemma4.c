/* Gemma 4 text models (Google, 2026): Gemma 3's block with heads of other sizes and numbers in layers
 * without window, values normalised without weights, a scale of 1 and a factor at the end of each block; in some models
 * layers without a matrix for values, which are the raw keys then; in small ones per-layer embeddings, and last layers
 * that attend to the keys and values of earlier ones; in one model experts beside the dense network of every layer, the
 * answers of both normed apart.
 *
 * GGUF: attention.key_length and rope.* are of layers without window, the keys that end in _swa of the others; a
 * rope_freqs.weight of 1e30 leaves pairs unrotated.  Norms are stored as they are. */
#include "model/arch/arch.h"

#include <math.h>
#include <stdio.h>

#define KEY(name) "gemma4." name

struct local {
    int64_t dim_k, dim_v, n_rot, window;
};

static int read_local(struct local *v, const struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    const struct tern_layer_desc *l = &d->layers[0];
    TERN_TRY(tern_file_need_int(f, KEY("attention.sliding_window"), 1, 1 << 24, &v->window, err));
    TERN_TRY(tern_file_get_int(f, KEY("attention.key_length_swa"), l->at.dim_k, 16, TERN_KVQ_MAX_DIM, &v->dim_k, err));
    TERN_TRY(
        tern_file_get_int(f, KEY("attention.value_length_swa"), l->at.dim_v, 16, TERN_KVQ_MAX_DIM, &v->dim_v, err));
    TERN_TRY(tern_file_get_int(f, KEY("rope.dimension_count_swa"), v->dim_k, 2, v->dim_k, &v->n_rot, err));
    if (v->dim_k % 16 || v->dim_v % 16 || v->n_rot % 2)
        TERN_FAIL(
            err, TERN_EUNSUPPORTED,
            "%s: gemma4: head size %lld/%lld of window layers is not a multiple of 16, or %lld rotated dims are odd",
            tern_file_path(f), (long long)v->dim_k, (long long)v->dim_v, (long long)v->n_rot);
out:
    return rc;
}

/* Experts, where there are any, work beside the dense network. */
static int configure_experts(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_configure_experts(d, f, "gemma4", true, err));
    for (int i = 0; i < d->n_layers; i++) {
        char name[48];
        if (d->layers[i].ffn == TERN_FFN_EXPERTS)
            d->layers[i].ffn = TERN_FFN_BESIDE;
        (void)snprintf(name, sizeof name, "blk.%d.ffn_down_exps.weight", i);
        const struct tern_tensor *down = tern_file_tensor(f, name);
        if (d->layers[i].experts.n_ff_shared)
            TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: gemma4: shared experts beside a dense network are not supported",
                      tern_file_path(f));
        if (down && down->type == TERN_NVFP4 && !down->quant) /* its factors would have the name of the router's */
            TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: tensor \"%s\": NVFP4 is not supported for experts of gemma4",
                      tern_file_path(f), down->source);
    }
out:
    return rc;
}

/* The last `shared` layers attend to the keys and values of the last layer of their kind before them. */
static int share_kv(struct tern_desc *d, int shared, const struct tern_file *f, tern_error *err)
{
    int first = d->n_layers - shared;
    for (int i = first; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        int of = first - 1;
        while (of >= 0 && d->layers[of].at.mask != l->at.mask)
            of--;
        if (of < 0 || d->layers[of].at.n_kv_heads != l->at.n_kv_heads)
            return tern_err_set(err, TERN_EFORMAT,
                                "%s: %s = %d leaves layer %d without a layer of its kind to share keys with",
                                tern_file_path(f), KEY("attention.shared_kv_layers"), shared, i);
        l->at.kv_of = of;
        l->attention.v_is_k = false;
    }
    return 0;
}

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    int64_t shared, ple;
    double cap;
    struct local v;
    TERN_TRY(tern_configure_common(d, f, "gemma4", err));
    TERN_TRY(configure_experts(d, f, err));
    TERN_TRY(read_local(&v, d, f, err));
    TERN_TRY(tern_configure_pattern(d, f, "gemma4", 6, err));
    TERN_TRY(tern_file_get_int(f, KEY("attention.shared_kv_layers"), 0, 0, d->n_layers - 1, &shared, err));
    TERN_TRY(tern_file_get_int(f, KEY("embedding_length_per_layer_input"), 0, 0, 4096, &ple, err));
    TERN_TRY(tern_file_get_float(f, KEY("final_logit_softcapping"), 0, &cap, err));
    TERN_TRY(tern_rope_read_local(&d->ropes[1], f, "gemma4", (int)v.n_rot, err));
    if (ple % 32 || cap < 0)
        TERN_FAIL(err, TERN_EUNSUPPORTED,
                  "%s: gemma4: per-layer embeddings of %lld (not a multiple of 32) or a soft cap of %g",
                  tern_file_path(f), (long long)ple, cap);
    d->n_ropes = 2;
    d->embed_scale = sqrtf((float)d->n_embd);
    d->logit_cap = (float)cap;
    for (int i = 0; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        char value[48];
        (void)snprintf(value, sizeof value, "blk.%d.attn_v.weight", i);
        l->at.rope = l->at.mask == TERN_MASK_WINDOW;
        if (l->at.mask == TERN_MASK_WINDOW) {
            l->at.dim_k = (int)v.dim_k;
            l->at.dim_v = (int)v.dim_v;
        }
        l->attention.v_is_k = l->at.dim_k == l->at.dim_v && !tern_file_tensor(f, value);
        l->attention.v_norm_plain = true;
        l->at.scale = 1;
        l->act = TERN_ACT_GELU_TANH;
        l->n_ple = (int)ple;
    }
    TERN_TRY(share_kv(d, (int)shared, f, err));
out:
    return rc;
}

static const struct tern_tensor_rule globals[] = {
    TERN_MATRIX("token_embd.weight", TERN_EMBED, tern_dim_vocab, tern_dim_embd),
    TERN_VECTOR("output_norm.weight", TERN_OUT_NORM, tern_dim_embd),
    TERN_MATRIX("output.weight", TERN_HEAD, tern_dim_vocab, tern_dim_embd, .optional = true),
    TERN_VECTOR("rope_freqs.weight", TERN_ROPE_FACTORS, tern_dim_rope, .optional = true),
    TERN_MATRIX("per_layer_token_embd.weight", TERN_PLE_EMBED, tern_dim_vocab, tern_dim_ples, .when = tern_when_ple),
    TERN_MATRIX("per_layer_model_proj.weight", TERN_PLE_IN, tern_dim_ples, tern_dim_embd, .when = tern_when_ple),
    TERN_VECTOR("per_layer_proj_norm.weight", TERN_PLE_NORM, tern_dim_ple, .when = tern_when_ple),
    {0},
};

static const struct tern_tensor_rule more_layers[] = {
    TERN_VECTOR("blk.%d.attn_q_norm.weight", TERN_SLOT_Q_NORM, tern_dim_head_k),
    TERN_VECTOR("blk.%d.attn_k_norm.weight", TERN_SLOT_K_NORM, tern_dim_head_k, .own_kv = true),
    TERN_MATRIX("blk.%d.inp_gate.weight", TERN_SLOT_PLE_GATE, tern_dim_ple, tern_dim_embd, .when = tern_when_ple),
    TERN_MATRIX("blk.%d.proj.weight", TERN_SLOT_PLE_OUT, tern_dim_embd, tern_dim_ple, .when = tern_when_ple),
    TERN_VECTOR("blk.%d.post_norm.weight", TERN_SLOT_PLE_POST_NORM, tern_dim_embd, .when = tern_when_ple),
    TERN_VECTOR("blk.%d.post_ffw_norm_1.weight", TERN_SLOT_DENSE_POST_NORM, tern_dim_embd, .when = tern_when_beside),
    TERN_VECTOR("blk.%d.pre_ffw_norm_2.weight", TERN_SLOT_EXPERT_NORM, tern_dim_embd, .when = tern_when_beside),
    TERN_VECTOR("blk.%d.post_ffw_norm_2.weight", TERN_SLOT_EXPERT_POST_NORM, tern_dim_embd, .when = tern_when_beside),
    TERN_VECTOR("blk.%d.ffn_gate_inp.scale", TERN_SLOT_ROUTER_NORM, tern_dim_embd, .when = tern_when_beside),
    TERN_VECTOR("blk.%d.ffn_down_exps.scale", TERN_SLOT_ROUTER_FACTORS, tern_dim_experts, .when = tern_when_experts),
    TERN_VECTOR("blk.%d.layer_output_scale.weight", TERN_SLOT_OUT_SCALE, tern_dim_one, .optional = true),
    {0},
};

/* ---- directories of Hugging Face ---- */

static const char *const gemma4_elsewhere[] = {
    "attention.sliding_window", "attention.head_count_kv",    "attention.key_length",
    "attention.value_length",   "feed_forward_length",        "expert_count",
    "expert_used_count",        "expert_feed_forward_length", NULL};

static const struct tern_hf_word gemma4_modules[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
    {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
    {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
    {"router.proj", "ffn_gate_inp"},
    {"experts.switch_glu.gate_proj", "ffn_gate_exps"},
    {"experts.switch_glu.up_proj", "ffn_up_exps"},
    {"experts.switch_glu.down_proj", "ffn_down_exps"},
    {"per_layer_input_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    {"post_per_layer_input_norm", "post_norm"},
    {"embed_tokens_per_layer", "per_layer_token_embd"},
    {"per_layer_model_projection", "per_layer_model_proj"},
    {"per_layer_projection_norm", "per_layer_proj_norm"},
    {0},
};

static const struct tern_hf_number gemma4_numbers[] = {{"context_length", 131072},
                                                       {"attention.head_count", 8},
                                                       {"attention.layer_norm_rms_epsilon", 1e-6},
                                                       {"rope.freq_base", 1e6},
                                                       {0}};

static const struct tern_hf_family families[] = {
    {.model_type = "gemma4_text",
     .act = "gelu_pytorch_tanh",
     .modules = gemma4_modules,
     .silent = gemma4_numbers,
     .elsewhere = gemma4_elsewhere,
     .more = tern_hf_gemma4,
     .experts = true,
     .logit_cap = true},
    {0},
};

const struct tern_arch tern_arch_gemma4 = {.name = "gemma4",
                                           .configure = configure,
                                           .globals = globals,
                                           .layers = tern_gemma_layers,
                                           .more_layers = more_layers,
                                           .hf = families};

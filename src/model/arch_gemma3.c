/* Gemma 3 text models (Gemma Team 2025): five sliding-window layers to one global layer, two RoPE bases, RMS norms on q
 * and k per head, norms before and after both halves of a block, embeddings scaled by sqrt(n_embd), GeGLU.
 *
 * GGUF stores norms as 1+w already and keeps half-split RoPE.  The local base (10000) is a constant of the family
 * unless the file says otherwise. */
#include "model/model.h"

#include <math.h>

#define KEY(name) tern_arch_key(key, sizeof key, f, "gemma3", name)

/* The 1B and larger models scale the global RoPE only; the local one is never scaled. */
static int add_local_rope(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    char key[160];
    double theta;
    TERN_TRY(tern_file_get_float(f, KEY("rope.freq_base_swa"), 10000.0, &theta, err));
    if (!(theta > 1) || !isfinite(theta))
        TERN_FAIL(err, TERN_EFORMAT, "%s: %s = %g is impossible", tern_file_path(f), key, theta);
    TERN_TRY(tern_arch_expect(f, "gemma3", "rope_parameters.sliding_attention.rope_type", "default", err));
    d->ropes[1] = d->ropes[0];
    d->ropes[1].theta = (float)theta;
    d->ropes[1].factor = 1;
    d->n_ropes = 2;
out:
    return rc;
}

/* The scale of the scores: GGUF holds it, configurations the number whose root divides. */
static int read_scale(const struct tern_file *f, double *scale, tern_error *err)
{
    int rc = 0;
    char key[160];
    double scalar;
    TERN_TRY(tern_file_get_float(f, KEY("attention.scale"), 0, scale, err));
    TERN_TRY(tern_file_get_float(f, KEY("query_pre_attn_scalar"), 0, &scalar, err));
    if (scalar > 0)
        *scale = 1.0 / sqrt(scalar);
out:
    return rc;
}

/* What configurations of this family may say and this file does not compute. */
static int refuse(const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_arch_expect(f, "gemma3", "hidden_activation", "gelu_pytorch_tanh", err));
    TERN_TRY(tern_arch_expect_off(f, "gemma3", "use_bidirectional_attention", err));
    TERN_TRY(tern_arch_expect_off(f, "gemma3", "attn_logit_softcapping", err));
    TERN_TRY(tern_arch_expect_off(f, "gemma3", "final_logit_softcapping", err));
out:
    return rc;
}

/* Configurations of the models that see images leave out what is as in the class. */
static const struct tern_config_default defaults[] = {
    {"context_length", 131072},      {"attention.head_count", 8},
    {"attention.head_count_kv", 4},  {"attention.key_length", 256},
    {"attention.value_length", 256}, {"attention.layer_norm_rms_epsilon", 1e-6},
    {"rope.freq_base", 1e6},         {0},
};

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    char key[160];
    int64_t window, every;
    double scale;
    const struct tern_str *types;
    bool hf = tern_file_kind(f) == TERN_FILE_HF;
    TERN_TRY(tern_configure_defaults(d, f, "gemma3", hf ? defaults : NULL, err));
    TERN_TRY(refuse(f, err));
    TERN_TRY(add_local_rope(d, f, err));
    TERN_TRY(tern_file_need_int(f, KEY("attention.sliding_window"), 1, 1 << 20, &window, err));
    TERN_TRY(tern_arch_layer_types(d, f, "gemma3", &types, err));
    const struct tern_meta *pattern = tern_file_meta(f, KEY("attention.sliding_window_pattern"));
    if (pattern && pattern->type != TERN_META_INT)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: %s is not a number", tern_file_path(f), key);
    TERN_TRY(tern_file_get_int(f, KEY("attention.sliding_window_pattern"), 6, 1, 1024, &every, err));
    TERN_TRY(read_scale(f, &scale, err));
    d->embed_scale = sqrtf((float)d->n_embd);
    for (int i = 0; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        bool global = types ? !tern_layer_slides(types, i) : (i + 1) % every == 0;
        l->rope = global ? 0 : 1;
        l->mask = global ? TERN_MASK_CAUSAL : TERN_MASK_WINDOW;
        l->span = global ? 0 : (int)window;
        l->act = TERN_ACT_GELU_TANH;
        if (scale > 0)
            l->scale = (float)scale;
    }
out:
    return rc;
}

static const struct tern_tensor_rule globals[] = {
    {"token_embd.weight", "embed_tokens.weight", TERN_EMBED, TERN_DIM_VOCAB, TERN_DIM_EMBD, false},
    {"output_norm.weight", "1+norm.weight", TERN_OUT_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"output.weight", "lm_head.weight", TERN_HEAD, TERN_DIM_VOCAB, TERN_DIM_EMBD, true},
    {0},
};

static const struct tern_tensor_rule layers[] = {
    {"blk.%d.attn_norm.weight", "1+input_layernorm.weight", TERN_SLOT_ATTN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.attn_q.weight", "self_attn.q_proj.weight", TERN_SLOT_Q, TERN_DIM_Q, TERN_DIM_EMBD, false},
    {"blk.%d.attn_k.weight", "self_attn.k_proj.weight", TERN_SLOT_K, TERN_DIM_K, TERN_DIM_EMBD, false},
    {"blk.%d.attn_v.weight", "self_attn.v_proj.weight", TERN_SLOT_V, TERN_DIM_V, TERN_DIM_EMBD, false},
    {"blk.%d.attn_output.weight", "self_attn.o_proj.weight", TERN_SLOT_O, TERN_DIM_EMBD, TERN_DIM_O, false},
    {"blk.%d.attn_q_norm.weight", "1+self_attn.q_norm.weight", TERN_SLOT_Q_NORM, TERN_DIM_HEAD_K, TERN_DIM_NONE, false},
    {"blk.%d.attn_k_norm.weight", "1+self_attn.k_norm.weight", TERN_SLOT_K_NORM, TERN_DIM_HEAD_K, TERN_DIM_NONE, false},
    {"blk.%d.post_attention_norm.weight", "1+post_attention_layernorm.weight", TERN_SLOT_ATTN_POST_NORM, TERN_DIM_EMBD,
     TERN_DIM_NONE, false},
    {"blk.%d.ffn_norm.weight", "1+pre_feedforward_layernorm.weight", TERN_SLOT_FFN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE,
     false},
    {"blk.%d.ffn_gate.weight", "mlp.gate_proj.weight", TERN_SLOT_GATE, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_up.weight", "mlp.up_proj.weight", TERN_SLOT_UP, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_down.weight", "mlp.down_proj.weight", TERN_SLOT_DOWN, TERN_DIM_EMBD, TERN_DIM_FF, false},
    {"blk.%d.post_ffw_norm.weight", "1+post_feedforward_layernorm.weight", TERN_SLOT_FFN_POST_NORM, TERN_DIM_EMBD,
     TERN_DIM_NONE, false},
    {0},
};

const struct tern_arch tern_arch_gemma3 = {"gemma3", configure, globals, layers, "gemma3_text"};

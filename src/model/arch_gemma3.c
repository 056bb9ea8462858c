/* Gemma 3 text models (Gemma Team 2025): five sliding-window layers to one global layer, two RoPE bases, RMS norms on q
 * and k per head, norms before and after both halves of a block, embeddings scaled by sqrt(n_embd), GeGLU.
 *
 * GGUF stores norms as 1+w already and keeps half-split RoPE.  The local base (10000) is a constant of the family
 * unless the file says otherwise. */
#include "model/model.h"

#include <math.h>

/* The 1B and larger models scale the global RoPE only; the local one is never scaled. */
static int add_local_rope(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    double theta;
    int rc = tern_file_get_float(f, "gemma3.rope.freq_base_swa", 10000.0, &theta, err);
    if (rc < 0)
        return rc;
    if (!(theta > 1) || !isfinite(theta))
        return tern_err_set(err, TERN_EFORMAT, "%s: gemma3.rope.freq_base_swa = %g is impossible", tern_file_path(f),
                            theta);
    d->ropes[1] = d->ropes[0];
    d->ropes[1].theta = (float)theta;
    d->ropes[1].scaling = TERN_ROPE_PLAIN;
    d->ropes[1].factor = d->ropes[1].magnitude = 1;
    d->n_ropes = 2;
    return 0;
}

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    int64_t window, every;
    double scale;
    TERN_TRY(tern_configure_common(d, f, "gemma3", err));
    TERN_TRY(add_local_rope(d, f, err));
    TERN_TRY(tern_file_need_int(f, "gemma3.attention.sliding_window", 1, 1 << 20, &window, err));
    const struct tern_meta *pattern = tern_file_meta(f, "gemma3.attention.sliding_window_pattern");
    if (pattern && pattern->type != TERN_META_INT)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: gemma3.attention.sliding_window_pattern at byte %llu is not a number",
                  tern_file_path(f), (unsigned long long)pattern->file_offset);
    TERN_TRY(tern_file_get_int(f, "gemma3.attention.sliding_window_pattern", 6, 1, 1024, &every, err));
    TERN_TRY(tern_file_get_float(f, "gemma3.attention.scale", 0, &scale, err));
    d->embed_scale = sqrtf((float)d->n_embd);
    for (int i = 0; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        bool global = (i + 1) % every == 0;
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
    {"token_embd.weight", TERN_EMBED, TERN_DIM_VOCAB, TERN_DIM_EMBD, false},
    {"output_norm.weight", TERN_OUT_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"output.weight", TERN_HEAD, TERN_DIM_VOCAB, TERN_DIM_EMBD, true},
    {0},
};

static const struct tern_tensor_rule layers[] = {
    {"blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.attn_q.weight", TERN_SLOT_Q, TERN_DIM_Q, TERN_DIM_EMBD, false},
    {"blk.%d.attn_k.weight", TERN_SLOT_K, TERN_DIM_K, TERN_DIM_EMBD, false},
    {"blk.%d.attn_v.weight", TERN_SLOT_V, TERN_DIM_V, TERN_DIM_EMBD, false},
    {"blk.%d.attn_output.weight", TERN_SLOT_O, TERN_DIM_EMBD, TERN_DIM_O, false},
    {"blk.%d.post_attention_norm.weight", TERN_SLOT_ATTN_POST_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {"blk.%d.ffn_gate.weight", TERN_SLOT_GATE, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_up.weight", TERN_SLOT_UP, TERN_DIM_FF, TERN_DIM_EMBD, false},
    {"blk.%d.ffn_down.weight", TERN_SLOT_DOWN, TERN_DIM_EMBD, TERN_DIM_FF, false},
    {"blk.%d.post_ffw_norm.weight", TERN_SLOT_FFN_POST_NORM, TERN_DIM_EMBD, TERN_DIM_NONE, false},
    {0},
};

const struct tern_arch tern_arch_gemma3 = {"gemma3", configure, globals, layers, tern_head_norms};

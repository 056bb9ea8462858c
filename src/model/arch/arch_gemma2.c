/* Gemma 2 (Gemma Team 2024): layers with a sliding window and without in turn, norms before and after both halves of a
 * block, soft caps on scores and logits, embeddings scaled by sqrt(n_embd), GeGLU.
 *
 * GGUF stores norms as 1+w already and keeps half-split RoPE. */
#include "model/arch/arch.h"

#include <math.h>

int tern_configure_gemma(struct tern_desc *d, const struct tern_file *f, const char *arch, int every, int wide,
                         tern_error *err)
{
    int rc = 0;
    char key[160];
    int64_t window;
    double scale;
    TERN_TRY(tern_configure_common(d, f, arch, err));
    TERN_TRY(tern_file_need_int(f, tern_arch_key(key, sizeof key, arch, "attention.sliding_window"), 1, 1 << 24,
                                &window, err));
    TERN_TRY(tern_configure_pattern(d, f, arch, every, err));
    TERN_TRY(tern_file_get_float(f, tern_arch_key(key, sizeof key, arch, "attention.scale"), 0, &scale, err));
    d->embed_scale = sqrtf((float)d->n_embd);
    for (int i = 0; i < d->n_layers; i++) {
        struct tern_layer_desc *l = &d->layers[i];
        l->act = TERN_ACT_GELU_TANH;
        if (d->n_layers == wide)
            l->at.scale = (float)sqrt((double)l->at.n_heads / d->n_embd);
        if (scale > 0)
            l->at.scale = (float)scale;
    }
out:
    return rc;
}

static int configure(struct tern_desc *d, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    double scores, logits;
    TERN_TRY(tern_configure_gemma(d, f, "gemma2", 2, 46, err));
    TERN_TRY(tern_file_get_float(f, "gemma2.attn_logit_softcapping", 50, &scores, err));
    TERN_TRY(tern_file_get_float(f, "gemma2.final_logit_softcapping", 30, &logits, err));
    if (scores < 0 || logits < 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: gemma2 has an impossible soft cap (%g of scores, %g of logits)",
                  tern_file_path(f), scores, logits);
    d->logit_cap = (float)logits;
    for (int i = 0; i < d->n_layers; i++)
        d->layers[i].at.score_cap = (float)scores;
out:
    return rc;
}

const struct tern_tensor_rule tern_gemma_globals[] = {
    TERN_MATRIX("token_embd.weight", TERN_EMBED, tern_dim_vocab, tern_dim_embd),
    TERN_VECTOR("output_norm.weight", TERN_OUT_NORM, tern_dim_embd),
    TERN_MATRIX("output.weight", TERN_HEAD, tern_dim_vocab, tern_dim_embd, .optional = true),
    {0},
};

static bool when_values(const struct tern_layer_desc *l)
{
    return !l->attention.v_is_k;
}

const struct tern_tensor_rule tern_gemma_layers[] = {
    TERN_VECTOR("blk.%d.attn_norm.weight", TERN_SLOT_ATTN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_q.weight", TERN_SLOT_Q, tern_dim_q, tern_dim_embd),
    TERN_MATRIX("blk.%d.attn_k.weight", TERN_SLOT_K, tern_dim_k, tern_dim_embd, .own_kv = true),
    TERN_MATRIX("blk.%d.attn_v.weight", TERN_SLOT_V, tern_dim_v, tern_dim_embd, .when = when_values, .own_kv = true),
    TERN_MATRIX("blk.%d.attn_output.weight", TERN_SLOT_O, tern_dim_embd, tern_dim_o),
    TERN_VECTOR("blk.%d.post_attention_norm.weight", TERN_SLOT_ATTN_POST_NORM, tern_dim_embd),
    TERN_VECTOR("blk.%d.ffn_norm.weight", TERN_SLOT_FFN_NORM, tern_dim_embd),
    TERN_MATRIX("blk.%d.ffn_gate.weight", TERN_SLOT_GATE, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_up.weight", TERN_SLOT_UP, tern_dim_ff, tern_dim_embd, .when = tern_when_network),
    TERN_MATRIX("blk.%d.ffn_down.weight", TERN_SLOT_DOWN, tern_dim_embd, tern_dim_ff, .when = tern_when_network),
    TERN_VECTOR("blk.%d.post_ffw_norm.weight", TERN_SLOT_FFN_POST_NORM, tern_dim_embd),
    {0},
};

/* ---- directories of Hugging Face ---- */

static const struct tern_hf_number gemma2_numbers[] = {{"context_length", 8192},
                                                       {"attention.head_count", 8},
                                                       {"attention.head_count_kv", 4},
                                                       {"attention.key_length", 256},
                                                       {"attention.value_length", 256},
                                                       {"attention.layer_norm_rms_epsilon", 1e-6},
                                                       {0}};

const struct tern_hf_word tern_hf_gemma_modules[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    {0},
};

static const struct tern_hf_family families[] = {
    {.model_type = "gemma2",
     .act = "gelu_pytorch_tanh",
     .modules = tern_hf_gemma_modules,
     .silent = gemma2_numbers,
     .score_cap = true,
     .logit_cap = true,
     .norms_from_1 = true,
     .windows = true},
    {0},
};

const struct tern_arch tern_arch_gemma2 = {.name = "gemma2",
                                           .configure = configure,
                                           .globals = tern_gemma_globals,
                                           .layers = tern_gemma_layers,
                                           .hf = families};

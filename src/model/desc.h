/* model/desc.h - what is known of a model before its weights: numbers, layer by layer, and the names of its tensors'
 * slots.  An architecture fills it in, blocks read it, tern_desc_check refuses what they cannot do.
 *
 * Part of model.h, which others include. */
#ifndef TERN_MODEL_DESC_H
#define TERN_MODEL_DESC_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "dev/dev.h"
#include "file/file.h"
#include "kv/kv.h"

#define TERN_MAX_ROPES 4

/* How frequencies are stretched beyond the context of the first training; those from YARN on know its length. */
enum tern_rope_scaling { TERN_ROPE_PLAIN, TERN_ROPE_LINEAR, TERN_ROPE_YARN, TERN_ROPE_LLAMA3, TERN_ROPE_LONG };

/* A rotary position embedding: angle of pair i at position p is p * freq[i] (f32 product, as the reference does). */
struct tern_rope {
    int n_rot;        /* rotated dims, even; the rest pass through */
    bool interleaved; /* pairs (2i, 2i+1) instead of (i, i + n_rot/2) */
    float theta;
    enum tern_rope_scaling scaling;
    float factor;     /* frequencies are divided by it; 1 = none */
    int original;     /* context before scaling */
    float fast, slow; /* ends of the ramp of YaRN and llama3: turns in the original context */
    bool use_factors; /* divide freq[i] by the file's rope_freqs.weight[i] */
    float magnitude;  /* cos and sin are multiplied by it; 1 unless the scaling asks for more */
    float *freq;      /* [n_rot/2], filled at load, owned by the model */
    float *freq_long; /* longrope: of contexts longer than the original; else NULL */
};

enum tern_mixer {
#define TERN_MIXER(NAME, name, slots) TERN_MIX_##NAME,
#include "model/block/mixers.def"
#undef TERN_MIXER
};
enum tern_ffn {
#define TERN_FFN(NAME, name, slots) TERN_FFN_##NAME,
#include "model/block/ffns.def"
#undef TERN_FFN
};
enum tern_residual_kind {
#define TERN_RESIDUAL(NAME, name, slots, globals) TERN_RESIDUAL_##NAME,
#include "model/block/residuals.def"
#undef TERN_RESIDUAL
};
enum tern_mask { TERN_MASK_CAUSAL, TERN_MASK_WINDOW, TERN_MASK_CHUNK };
enum tern_act { TERN_ACT_SILU, TERN_ACT_GELU_TANH };
/* The softmax of the chosen logits alone is TERN_ROUTE_SOFTMAX with `norm`. */
enum tern_router { TERN_ROUTE_SOFTMAX, TERN_ROUTE_SIGMOID, TERN_ROUTE_SQRT_SOFTPLUS };

/* What mixers that look at cached tokens have in common. */
struct tern_attend_desc {
    int n_heads, n_kv_heads, dim_k, dim_v; /* 0 in layers that cache no tokens */
    int rope;                              /* index into tern_desc.ropes; -1 = no position embedding */
    enum tern_mask mask;
    int span;        /* window or chunk length; 0 for causal */
    float scale;     /* of the scores */
    float score_cap; /* softcap of the scores; 0 = none */
    int kv_of;       /* attends to the KV of this earlier layer; -1 = its own */
};

struct tern_attention_desc {
    bool qk_norm_after_rope;
    bool qk_norm_plain; /* normalise q and k without weights */
    bool v_norm_plain;  /* normalise v without weights */
    bool v_is_k;        /* no v projection: values are the raw keys */
    bool out_gate;      /* q projection also yields a sigmoid gate on the attention output */
    /* Queries at position p are multiplied by 1 + q_temper * ln(1 + (p + q_temper_from) / q_temper_span), the quotient
     * rounded down; 0 = no. */
    float q_temper;
    int q_temper_span, q_temper_from;
};

/* Latent attention: at.dim_v is the size of the latent, which is cached once, as value and as the first part of the
 * key; at.dim_k that of the rotated part of the key, after it.  A query head has dim_nope + dim_k dims, of which the
 * first become at.dim_v by its own matrix (K_B); so do a head's at.dim_v sums become dim_head_v (V_B). */
struct tern_latent_desc {
    int dim_nope, dim_head_v;
    int q_rank; /* queries come out of this many dims; 0: straight out of the embedding */
};

/* Attention to a window of tokens and to compressed rows: one vector of at.dim_v is a token's key and value, whose last
 * dims are rotated, and so is a compressed row (struct tern_compress in dev.h).  What heads sum up is turned back, and
 * goes out through two products, of which the first has a matrix for every group of heads. */
struct tern_sparse_desc {
    int q_rank;         /* queries come out of this many dims */
    int groups, o_rank; /* of heads; what each becomes */
    int rate;           /* tokens of a compressed row; 0: none */
    bool overlap;       /* rows are made of two windows; then few of them are chosen, by keys of their own: */
    int index_heads, index_dim, index_top;
    bool grid; /* rows and keys are rounded to few bits, as in training */
};

/* A convolution and the gated delta rule (struct tern_delta in dev.h; conv and the gates' vectors are tensors). */
struct tern_delta_desc {
    int k_heads, v_heads, dim_k, dim_v, conv_width;
    bool grouped;
};

struct tern_experts_desc {
    enum tern_router router;
    int n, n_active, n_ff;       /* experts, those that a row goes to, the width of each */
    int n_ff_shared;             /* width of what every row goes through besides; 0 = none */
    int n_groups, n_groups_used; /* experts compete within the best groups; 1 = no groups */
    bool norm;                   /* a row's weights are divided by their sum */
    bool weigh_input;            /* weights multiply what experts read instead of what they answer */
    float scale;                 /* of the weights */
    bool listed;                 /* a table says the experts of each token */
    float clamp, clamp_shared;   /* of what activations read, in experts and in what every row goes through; 0: no */
};

/* One layer.  Biases, norms and gates are applied where their tensor is present. */
struct tern_layer_desc {
    enum tern_mixer mixer;
    struct tern_attend_desc at;
    union { /* by mixer */
        struct tern_attention_desc attention;
        struct tern_latent_desc latent;
        struct tern_delta_desc delta;
        struct tern_sparse_desc sparse;
    };
    enum tern_ffn ffn;
    enum tern_act act;
    int n_ff;                         /* of the network; of no meaning where experts take its place */
    struct tern_experts_desc experts; /* of TERN_FFN_EXPERTS and TERN_FFN_BESIDE */
    int n_ple;                        /* width of per-layer embeddings, alike in all layers; 0 = none */
};

struct tern_desc {
    const char *arch;
    int n_layers, n_embd, n_vocab, ctx;
    int n_mtp_layers; /* that the file counts behind them, for multi-token prediction */
    int n_mtp;        /* of these, those that are loaded: 0 or 1; layers[n_layers] describes it */
    enum tern_residual_kind residual;
    struct {
        int n, iterations; /* streams; divisions that make their matrix doubly stochastic */
        float eps;
    } hyper; /* of TERN_RESIDUAL_HYPER */
    float eps;
    float embed_scale;
    float logit_cap; /* 0 = none */
    struct tern_rope ropes[TERN_MAX_ROPES];
    int n_ropes;
    struct tern_layer_desc *layers; /* [n_layers + n_mtp], owned by the model */
};

/* Tensors of a layer: those that several blocks know, then those of one kind of mixer, network or residual.  X(slot) */
/* clang-format off */
#define TERN_SLOT_LIST(X) \
    X(ATTN_NORM) X(Q) X(K) X(V) X(O) X(Q_BIAS) X(K_BIAS) X(V_BIAS) X(O_BIAS) X(Q_NORM) X(K_NORM) X(ATTN_POST_NORM) \
    X(FFN_NORM) X(GATE) X(UP) X(DOWN) X(FFN_POST_NORM) X(PLE_GATE) X(PLE_OUT) X(PLE_POST_NORM) X(OUT_SCALE) \
    X(ROUTER) X(ROUTER_BIAS) X(ROUTER_FACTORS) X(ROUTER_TABLE) X(EXPERT_GATE) X(EXPERT_UP) X(EXPERT_DOWN) \
    X(MTP_IN) X(MTP_TOKEN_NORM) X(MTP_HIDDEN_NORM) X(MTP_NORM) X(MTP_EMBED) X(MTP_HEAD) X(MTP_TOKEN_IN) X(MTP_HIDDEN_IN)
/* clang-format on */

enum tern_slot {
#define TERN_SLOT(name)                           TERN_SLOT_##name,
#define TERN_MIXER(NAME, name, slots)             slots
#define TERN_FFN(NAME, name, slots)               slots
#define TERN_RESIDUAL(NAME, name, slots, globals) slots
    TERN_SLOT_LIST(TERN_SLOT)
#include "model/block/mixers.def"
#include "model/block/ffns.def"
#include "model/block/residuals.def"
#undef TERN_RESIDUAL
        TERN_N_SLOTS
};
#undef TERN_SLOT
#undef TERN_MIXER
#undef TERN_FFN

/* Tensors of the model as a whole. */
enum tern_global {
    TERN_EMBED,
    TERN_OUT_NORM,
    TERN_HEAD,
    TERN_ROPE_FACTORS,
    TERN_ROPE_FACTORS_SHORT,
    TERN_ROPE_FACTORS_LONG,
    TERN_PLE_EMBED,
    TERN_PLE_IN,
    TERN_PLE_NORM,
#define TERN_RESIDUAL(NAME, name, slots, globals) globals
#define TERN_GLOBAL(name)                         TERN_##name,
#include "model/block/residuals.def"
    TERN_N_GLOBALS
};
#undef TERN_GLOBAL
#undef TERN_RESIDUAL

/* 0, or TERN_EUNSUPPORTED naming the first thing in the descriptor that no block does. */
int tern_desc_check(const struct tern_desc *d, tern_error *err);

/* 0, or TERN_EUNSUPPORTED naming the first thing in it that a device does not compute. */
int tern_desc_check_device(const struct tern_desc *d, const struct tern_dev_ops *ops, tern_error *err);

/* What the layers ask of the KV cache of an engine with this context.  decl: [n_layers], with mtp [n_layers + n_mtp].
 */
void tern_desc_kv(const struct tern_desc *d, int ctx, bool mtp, struct tern_kv_decl *decl);

/* What a query of the layer sees. */
struct tern_kv_reach tern_attend_reach(const struct tern_attend_desc *at);

/* Metadata key "<arch>.<name>"; the returned text lives in buf. */
const char *tern_arch_key(char *buf, size_t n, const char *arch, const char *name);

/* The embedding that the usual keys describe: base, scaling and what belongs to it. */
int tern_rope_read(struct tern_rope *r, const struct tern_file *f, const char *arch, int n_rot, tern_error *err);
/* Fills the frequencies; divisors of the pairs or NULL. */
int tern_rope_make(struct tern_rope *r, const float *factors, const float *factors_long, tern_error *err);

/* The frequencies that count in an engine with this context, and whether they are those of long contexts. */
const float *tern_rope_freq(const struct tern_rope *r, int ctx);
bool tern_rope_is_long(const struct tern_rope *r, int ctx);

#endif

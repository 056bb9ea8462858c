/* model/model.h - a model is data: a descriptor that an architecture file fills, and tensors bound to slots.
 *
 *   arch/arch_x.c   reads the file's configuration into struct tern_desc and lists its tensors (name, slot, shape)
 *   load.c          looks the tensors up, checks shapes, packs them
 *   packfile.c      keeps what was packed in a file, for the next start to map
 *   forward.c       one step through all layers; it knows numbers and slots, never a model's name
 *   block/          what layers are made of: attention, networks, recurrent states (block.h)
 *
 * The descriptor can say more than blocks run today; tern_desc_check refuses the rest with a sentence.  Immutable after
 * load; any thread may read. */
#ifndef TERN_MODEL_H
#define TERN_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/map.h"
#include "base/pool.h"
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
#define TERN_MIXER(NAME, name) TERN_MIX_##NAME,
#include "model/block/mixers.def"
#undef TERN_MIXER
};
enum tern_mask { TERN_MASK_CAUSAL, TERN_MASK_WINDOW, TERN_MASK_CHUNK };
enum tern_act { TERN_ACT_SILU, TERN_ACT_GELU_TANH };
/* The softmax of the chosen logits alone is TERN_ROUTE_SOFTMAX with route_norm. */
enum tern_router { TERN_ROUTE_NONE, TERN_ROUTE_SOFTMAX, TERN_ROUTE_SIGMOID };

/* One layer.  Biases, norms and gates are applied where their tensor is present. */
struct tern_layer_desc {
    enum tern_mixer mixer;
    int n_heads, n_kv_heads, dim_k, dim_v;
    /* Latent attention: dim_v is the size of the latent, which is cached once, as value and as the first part of the
     * key; dim_k that of the rotated part of the key, after it.  A query head has dim_nope + dim_k dims, of which the
     * first become dim_v by its own matrix (K_B); so do a head's dim_v sums become dim_head_v (V_B). */
    int dim_nope, dim_head_v;
    /* Delta layers have none of the above: a convolution and the gated delta rule (struct tern_delta in dev.h; conv and
     * the gates' vectors are tensors). */
    int delta_k_heads, delta_v_heads, delta_dim_k, delta_dim_v, conv_width;
    bool delta_grouped;
    int q_rank; /* queries come out of this many dims; 0: straight out of the embedding */
    int rope;   /* index into tern_desc.ropes; -1 = no position embedding */
    enum tern_mask mask;
    int span;        /* window or chunk length; 0 for causal */
    float scale;     /* of the scores */
    float score_cap; /* softcap of the scores; 0 = none */
    bool qk_norm_after_rope;
    bool qk_norm_plain; /* normalise q and k without weights */
    bool v_norm_plain;  /* normalise v without weights */
    bool out_gate;      /* q projection also yields a sigmoid gate on the attention output */
    /* Queries at position p are multiplied by 1 + q_temper * ln(1 + (p + q_temper_from) / q_temper_span), the quotient
     * rounded down; 0 = no. */
    float q_temper;
    int q_temper_span, q_temper_from;
    int kv_of;   /* attends to the KV of this earlier layer; -1 = its own */
    bool v_is_k; /* no v projection: values are the raw keys */
    int n_ff;    /* 0 where experts take its place */
    enum tern_act act;
    enum tern_router router;
    int n_experts, n_active, n_ff_expert; /* experts, those that a row goes to, the width of each */
    int n_ff_shared;                      /* width of what every row goes through besides; 0 = none */
    int n_groups, n_groups_used;          /* experts compete within the best groups; 1 = no groups */
    bool experts_beside;                  /* they do not take the place of the dense network but work beside it */
    bool route_norm;                      /* a row's weights are divided by their sum */
    bool route_input;                     /* weights multiply what experts read instead of what they answer */
    float route_scale;                    /* of the weights */
    int n_ple;                            /* width of per-layer embeddings, alike in all layers; 0 = none */
};

struct tern_desc {
    const char *arch;
    int n_layers, n_embd, n_vocab, ctx;
    int n_more_layers; /* that the file holds behind them, for guessing further tokens: of no use here */
    float eps;
    float embed_scale;
    float logit_cap; /* 0 = none */
    struct tern_rope ropes[TERN_MAX_ROPES];
    int n_ropes;
    struct tern_layer_desc *layers; /* [n_layers], owned by the model */
};

/* Tensors of a layer, the last five of them stacks: one matrix for each head, for each expert.  X(slot) */
/* clang-format off */
#define TERN_SLOT_LIST(X) \
    X(ATTN_NORM) X(Q) X(K) X(V) X(O) X(Q_BIAS) X(K_BIAS) X(V_BIAS) X(O_BIAS) X(Q_NORM) X(K_NORM) X(ATTN_POST_NORM) \
    X(FFN_NORM) X(GATE) X(UP) X(DOWN) X(FFN_POST_NORM) X(PLE_GATE) X(PLE_OUT) X(PLE_POST_NORM) X(OUT_SCALE) \
    X(Q_A) X(Q_A_NORM) X(KV_A) X(KV_A_NORM) \
    X(DELTA_IN) X(DELTA_Z) X(DELTA_BETA) X(DELTA_ALPHA) X(DELTA_CONV) X(DELTA_A) X(DELTA_DT) X(DELTA_NORM) \
    X(DENSE_POST_NORM) X(EXPERT_NORM) X(EXPERT_POST_NORM) X(ROUTER_NORM) X(ROUTER_FACTORS) \
    X(ROUTER) X(ROUTER_BIAS) X(SHARED_ROUTER) X(SHARED_GATE) X(SHARED_UP) X(SHARED_DOWN) \
    X(K_B) X(V_B) X(EXPERT_GATE) X(EXPERT_UP) X(EXPERT_DOWN)
/* clang-format on */

enum tern_slot {
#define TERN_SLOT_ENUM(name) TERN_SLOT_##name,
    TERN_SLOT_LIST(TERN_SLOT_ENUM)
#undef TERN_SLOT_ENUM
        TERN_N_SLOTS
};

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
    TERN_N_GLOBALS
};

/* A vector is f32, and so is a table; a matrix has the form of the device. */
struct tern_weights {
    struct tern_dev_vec vec;
    struct tern_dev_weight mat;
};

struct tern_net {
    struct tern_desc desc;
    struct tern_weights globals[TERN_N_GLOBALS];
    struct tern_weights (*layers)[TERN_N_SLOTS]; /* [n_layers] */
    float *out_scales;                           /* [n_layers] what TERN_SLOT_OUT_SCALE holds; 1 */
    struct tern_dev *dev;                        /* of the device that the weights are on; for memory alone */
    struct tern_dev_mem *memory;                 /* all vectors and matrices */
    struct tern_map packed;                      /* the file that memory stands for, if it does */
    size_t memory_bytes;
    char notice[512]; /* a sentence about that file for people, or "" */
    uint64_t digest;  /* of the tensor table and sampled weight bytes */
    int64_t n_params;
};

/* A file that keeps packed weights between runs (docs/packed-format.md). */
struct tern_packed_file {
    const char *path;  /* NULL: none */
    bool write;        /* make it, or make it anew when it does not fit */
    size_t write_from; /* bytes of weights from which on a missing file is made */
};

/* Reads configuration and tensors of an opened file onto a device.  Packing runs on the pool.  kept may be NULL;
 * nothing that is wrong with that file is an error. */
int tern_net_load(struct tern_net **out, const struct tern_file *f, const struct tern_dev_ops *device,
                  struct tern_pool *pool, const struct tern_packed_file *kept, tern_error *err);
void tern_net_free(struct tern_net *n);

/* The first n numbers of a vector, to be freed with tern_free. */
int tern_net_vector(float **out, const struct tern_net *net, struct tern_dev_vec v, size_t n, tern_error *err);

/* Bytes that a tensor of an opened model takes in memory, but for keys and values of layers that attend to another's;
 * 0: it is unused. */
size_t tern_net_tensor_bytes(const struct tern_net *n, const struct tern_tensor *t);

/* Bytes of the matrices that a step of so many rows reads: all but an embedding of its own, of which it reads rows, and
 * but experts that none of the rows goes to (where they choose, the most that they can). */
size_t tern_net_step_bytes(const struct tern_net *n, int rows);

/* 0, or TERN_EUNSUPPORTED naming the first thing in the descriptor that the interpreter does not run. */
int tern_desc_check(const struct tern_desc *d, tern_error *err);

/* What the layers ask of the KV cache of an engine with this context.  decl: [n_layers]. */
void tern_desc_kv(const struct tern_desc *d, int ctx, struct tern_kv_decl *decl);

/* What a query of the layer sees. */
struct tern_kv_reach tern_layer_reach(const struct tern_layer_desc *l);

/* Metadata key "<arch>.<name>"; the returned text lives in buf. */
const char *tern_arch_key(char *buf, size_t n, const char *arch, const char *name);

/* The embedding that the usual keys describe: base, scaling and what belongs to it. */
int tern_rope_read(struct tern_rope *r, const struct tern_file *f, const char *arch, int n_rot, tern_error *err);
/* Fills the frequencies; divisors of the pairs or NULL. */
int tern_rope_make(struct tern_rope *r, const float *factors, const float *factors_long, tern_error *err);

/* The frequencies that count in an engine with this context, and whether they are those of long contexts. */
const float *tern_rope_freq(const struct tern_rope *r, int ctx);
bool tern_rope_is_long(const struct tern_rope *r, int ctx);

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* In a batch wide rows come before narrow rows; rows of one sequence are consecutive. */
struct tern_forward_job {
    struct tern_kv_seq *seq;
    int plan; /* the cache that seq belongs to */
    int row0, n_rows, pos0;
    bool wide;
    const struct tern_kv_kept_state *mark; /* of tern_kv_mark: the layers' states at its position go there; or NULL */
};

/* Sees all rows' query and key heads of a layer as attention will, before anything is appended: [rows][heads * dim].
 * May copy out, wait for it, and use the pool. */
typedef void tern_forward_tap(void *user, struct tern_dev *dev, int layer, struct tern_dev_rows q,
                              struct tern_dev_rows k);

struct tern_forward_batch {
    const struct tern_row *rows;
    int n_rows, n_wide; /* rows [0, n_wide) are wide */
    const struct tern_forward_job *jobs;
    int n_jobs;
    const int *logit_rows; /* rows that want logits, ascending */
    int n_logit_rows;
    tern_forward_tap *tap;
    void *tap_user;
};

/* What steps of one engine need besides its device, dev, which it prepares.  caches: [n_plans], borrowed; they differ
 * in layout alone.  exact: wide rows in f32 on every machine. */
struct tern_forward;
int tern_forward_new(struct tern_forward **out, const struct tern_net *net, const struct tern_kv_cache *caches,
                     int n_plans, struct tern_dev *dev, int max_rows, int max_narrow, int max_jobs, bool exact,
                     tern_error *err);
void tern_forward_free(struct tern_forward *f);
size_t tern_forward_scratch_bytes(const struct tern_forward *f);

/* Appends to one sequence the keys and values that another holds raw at the same positions: what a step would have
 * appended that computed them.  `to` is between tern_kv_begin and tern_kv_commit; the plan of `from` is raw. */
void tern_forward_copy(struct tern_forward *f, const struct tern_forward_job *to, const struct tern_forward_job *from);

/* Room for the logits of so many rows.  Before anything of a step has begun. */
int tern_forward_want(struct tern_forward *f, int n_rows, tern_error *err);
/* Runs all layers.  The jobs' sequences are between tern_kv_begin and tern_kv_commit; what is given here stays as it is
 * until the device has been waited for.  Cannot fail. */
void tern_forward_run(struct tern_forward *f, const struct tern_forward_batch *b);
/* host[n][n_vocab] = logits of logit_rows[row0 ..] of the last run, once the device has been waited for. */
void tern_forward_logits(struct tern_forward *f, float *host, int row0, int n);

#endif

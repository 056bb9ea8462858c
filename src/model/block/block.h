/* model/block/block.h - what layers are made of, and the state of a step that all of it shares.  Private to src/model.
 *
 * A block is one half of a layer: it reads normed rows h and answers with rows t, which the residual adds to the
 * stream.  Mixers (mixers.def) look at other tokens; the network and the per-layer embedding work row by row.  A block
 * is a table of functions; adding a mixer is one file and one line in mixers.def. */
#ifndef TERN_MODEL_BLOCK_BLOCK_H
#define TERN_MODEL_BLOCK_BLOCK_H

#include "model/model.h"

/* Rows that blocks share, [max_rows][stride]; no block finds there what another left, but for x, ple, and hidden_now
 * between guesses.  X(name) */
/* clang-format off */
#define TERN_ROWS_LIST(X) \
    X(x)        /* the residual stream, or all of its streams */ \
    X(mixed)    /* where it has several: those of the rows that want logits */ \
    X(read)     /* what a block reads of them, before its norm */ \
    X(weights)  /* by which they are read and written */ \
    X(h)        /* what a block reads: normed rows */ \
    X(t)        /* what it answers */ \
    X(q)        /* queries, [heads][dim] */ \
    X(k) X(v)   /* new keys and values */ \
    X(a)        /* what attention or a recurrence makes of them */ \
    X(gate)     /* gates of a, as wide as a */ \
    X(mix)      /* queries with their gates, or a recurrence's channels */ \
    X(decay)    /* of delta layers, [heads] */ \
    X(beta)     /* as wide as decay */ \
    X(rows) X(rows_gate)   /* what tokens bring into compressed rows */ \
    X(index) X(index_gate) /* into the keys by which those are chosen */ \
    X(index_q) X(index_w)  /* queries to these, and weights of their heads */ \
    X(ff_gate)  /* of networks */ \
    X(ff_up)    /* as wide as ff_gate */ \
    X(logits)   /* of routers */ \
    X(shared)   /* answers of shared experts, or of experts beside a network */ \
    X(in)       /* what experts beside a network read */ \
    X(hidden_now)    /* what the output matrix reads, or an MTP layer's answer */ \
    X(hidden_before) /* the same of the token before; as wide */ \
    X(joined)        /* with the embedding, what an MTP layer reads */ \
    X(ple)      /* per-layer embeddings of all layers */ \
    X(ple_gate) /* of one of them, gated; as wide as ple */
/* clang-format on */

/* What blocks need; each makes larger what is too small for it.  Widths in floats, 0: not needed. */
struct tern_needs {
#define TERN_ROWS_WIDTH(name) int name;
    TERN_ROWS_LIST(TERN_ROWS_WIDTH)
#undef TERN_ROWS_WIDTH
    int active; /* experts that a row goes to */
    int chosen; /* compressed rows that a row chooses */
    struct tern_dev_limits dev;
};
#define TERN_WIDEN(var, value) ((var) = (value) > (var) ? (value) : (var))

/* What the device is told of a step, made of the engine's batch (cached.c). */
struct tern_cached {
    struct tern_dev_cache *caches;  /* [n_plans] */
    struct tern_dev_blocks *pages;  /* [n_plans][TERN_KV_MAX_GROUPS] */
    struct tern_attn_shape *shapes; /* [n_layers + n_mtp] */
    struct tern_dev_job *jobs;      /* [max_jobs] */
    struct tern_dev_table *tables;  /* [max_jobs][TERN_KV_MAX_GROUPS] */
    struct tern_dev_job from;       /* of tern_forward_copy */
    struct tern_dev_table from_tables[TERN_KV_MAX_GROUPS];
};

struct tern_forward {
    const struct tern_net *net;
    const struct tern_kv_cache *caches; /* [n_plans] */
    int n_plans;
    struct tern_dev *dev;
    const struct tern_residual *residual;
    bool mtp; /* the caches hold what the MTP layer keeps: steps feed it */
    int max_rows, max_jobs;
#define TERN_ROWS_FIELD(name) struct tern_dev_rows name;
    TERN_ROWS_LIST(TERN_ROWS_FIELD)
#undef TERN_ROWS_FIELD
    bool laid_over;                   /* q, k, v and a lie in ff_up */
    struct tern_dev_rows out, hidden; /* logits and hidden states, room for max_out and max_hidden rows */
    struct tern_dev_vec best;         /* values, then ids, of max_best rows */
    int max_out, max_hidden, max_best;
    struct tern_dev_vec expert_ids, expert_weights; /* [max_rows][most active experts] */
    int32_t *wanted;                                /* expert_ids on the host, where experts are read from a file */
    tern_error fault;                               /* of the step in hand; its layers come to an end */
    struct tern_dev_vec chosen, n_chosen;           /* int32 [max_rows][most chosen rows], [max_rows] */
    struct tern_dev_vec freq[TERN_MAX_ROPES], cos[TERN_MAX_ROPES], sin[TERN_MAX_ROPES];
    struct tern_cached cached;
    size_t bytes;
};

/* tern_alloc, counted in f->bytes. */
int tern_forward_take(struct tern_forward *f, void *out, size_t n, size_t size, tern_error *err);
/* n numbers in device memory. */
int tern_forward_vec(struct tern_forward *f, struct tern_dev_vec *out, size_t n, tern_error *err);

struct tern_block {
    const char *name;
    /* What the layer needs of rows and of the device. */
    void (*need)(struct tern_needs *n, const struct tern_desc *d, const struct tern_layer_desc *l);
    /* What it keeps in the cache of an engine with this context; NULL: nothing. */
    void (*caches)(struct tern_kv_decl *decl, const struct tern_desc *d, const struct tern_layer_desc *l, int ctx);
    /* What the descriptor asks for that the block does not do, to be put into "layer 3 uses ..."; NULL: it does all. */
    const char *(*cannot)(const struct tern_desc *d, const struct tern_layer_desc *l);
    /* Has the device the operations that the block needs besides those of all?  NULL: it needs none. */
    bool (*runs_on)(const struct tern_dev_ops *ops, const struct tern_layer_desc *l);
    /* f->t = block(f->h); x: what f->h was before its norm. */
    void (*run)(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_dev_rows *x);
    /* What run puts into the cache, and nothing else; NULL: no MTP layer has the block. */
    void (*feed)(struct tern_forward *f, const struct tern_forward_batch *b, int layer);
};

#define TERN_MIXER(NAME, name, slots) extern const struct tern_block tern_block_##name;
#define TERN_FFN(NAME, name, slots)   extern const struct tern_block tern_block_##name;
#include "model/block/ffns.def"
#include "model/block/mixers.def"
#undef TERN_MIXER
#undef TERN_FFN
extern const struct tern_block *const tern_mixers[], *const tern_ffns[]; /* by enum tern_mixer, enum tern_ffn */
extern const struct tern_block tern_block_ple;

/* The halves of a layer, in their order; the last one where there are per-layer embeddings. */
enum tern_half { TERN_HALF_MIXER, TERN_HALF_FFN, TERN_HALF_PLE };

/* How a block reads the residual stream and how what it answers comes back into it.  `plain` is x += t. */
struct tern_residual {
    const char *name;
    bool (*runs_on)(const struct tern_dev_ops *ops); /* as a block's */
    void (*need)(struct tern_needs *n, const struct tern_desc *d);
    /* Token embeddings become the stream. */
    void (*embed)(struct tern_forward *f, const struct tern_forward_batch *b);
    /* The rows that a block reads, before their norm. */
    struct tern_dev_rows (*read)(struct tern_forward *f, const struct tern_forward_batch *b, int layer,
                                 enum tern_half half);
    /* f->t into the stream; comes after read of the same half. */
    void (*add)(struct tern_forward *f, const struct tern_forward_batch *b, int layer, enum tern_half half);
    void (*scale)(struct tern_forward *f, const struct tern_forward_batch *b, float factor);
    /* What the output norm reads, of the rows that want logits: the stream where all of them do, or in f->t. */
    struct tern_dev_rows (*collapse)(struct tern_forward *f, const struct tern_forward_batch *b);
    /* An MTP layer's hidden vectors: how wide they are; those of all rows in `to`, out of the stream of the text. */
    int (*hidden_width)(const struct tern_desc *d);
    void (*hidden)(struct tern_forward *f, const struct tern_forward_batch *b, const struct tern_dev_rows *to);
    /* The stream = what the layer reads: f->joined's first half, the normed embedding, with f->hidden_before. */
    void (*join)(struct tern_forward *f, const struct tern_forward_batch *b);
    /* hidden_now = the hidden vectors that the layer answers; f->h = what its output matrix reads. */
    void (*answer)(struct tern_forward *f, const struct tern_forward_batch *b);
};
#define TERN_RESIDUAL(NAME, name, slots, globals) extern const struct tern_residual tern_residual_##name;
#include "model/block/residuals.def"
#undef TERN_RESIDUAL
extern const struct tern_residual *const tern_residuals[]; /* by enum tern_residual_kind */

/* y = rmsnorm(x) * w of all rows of the batch, as wide as the embedding. */
void tern_norm_rows(struct tern_forward *f, const struct tern_dev_rows *y, const struct tern_dev_rows *x,
                    struct tern_dev_vec w, int n_rows);

/* ---- the cache (cached.c) ---------------------------------------------------------------------------------------- */

/* Opens; tells the device what layers attend to, with the other limits. */
int tern_cached_open(struct tern_forward *f, struct tern_dev_limits *lim, tern_error *err);
void tern_cached_close(struct tern_cached *c);
/* Before the first layer of a step. */
void tern_cached_begin(struct tern_forward *f, const struct tern_forward_batch *b);
/* The span of a layer that has this role, as the device knows it; -1: none. */
int tern_cached_span(const struct tern_forward *f, int layer, enum tern_kv_role role);
/* New keys k and values f->v into the cache, then f->a = attention(f->q). */
void tern_cached_attend(struct tern_forward *f, int layer, struct tern_dev_rows k);

/* What attention over cached tokens keeps in the cache, and what of it no block does. */
void tern_attend_caches(struct tern_kv_decl *decl, const struct tern_desc *d, const struct tern_attend_desc *at,
                        int ctx);
const char *tern_attend_cannot(const struct tern_desc *d, const struct tern_attend_desc *at);

/* ---- the MTP layer (mtp.c) --------------------------------------------------------------------------------------- */

void tern_mtp_caches(struct tern_kv_decl *decl, const struct tern_desc *d);
void tern_mtp_need(struct tern_needs *n, const struct tern_desc *d);
/* At the end of a step: the stream is not needed any more. */
void tern_mtp_feed(struct tern_forward *f, const struct tern_forward_batch *b);
/* The stream becomes the layer's input: with the hidden vectors of the sequences' last tokens, or of rows from[] of the
 * last guesses.  Then, once the layer has run, hidden_now and f->out. */
void tern_mtp_before(struct tern_forward *f, const struct tern_forward_batch *b, const int *from);
void tern_mtp_head(struct tern_forward *f, const struct tern_forward_batch *b);

/* The activation of the layer's network. */
enum tern_gate tern_layer_gate(const struct tern_layer_desc *l);
/* Per-layer embeddings of all layers, at the beginning of a step. */
void tern_ple_begin(struct tern_forward *f, const struct tern_forward_batch *b);
/* y = (act(h Wg) * (h Wu)) Wd */
struct tern_network {
    const struct tern_weights *gate, *up, *down;
    float clamp; /* of what the activation reads, and of what it multiplies; 0: no */
};
void tern_network_run(struct tern_forward *f, const struct tern_forward_batch *b, const struct tern_layer_desc *l,
                      const struct tern_network *n, const struct tern_dev_rows *y, const struct tern_dev_rows *h);

#endif

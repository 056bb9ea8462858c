/* dev/parallel/parallel.h - one model on several devices of one kind (tensor parallel): what the files of this folder
 * share.
 *
 *   memory.c     memory of which each device has all, or a part
 *   weights.c    weights: each device has some of the outputs, or of a stack's matrices
 *   caches.c     caches: each device has some of the KV heads
 *   shares.c     activations of which each device has some columns, and their gathering
 *   ops.c        operations on whole rows, and on columns
 *   heads.c      attention, and what else works head by head
 *   experts.c    experts
 *   parallel.c   opening; the table
 *   each.h       words of the files of operations
 *
 * Every device computes every operation, but of products the outputs, and of attention the heads, that are its own.
 * What it then has of the result are columns; they are gathered when an operation needs whole rows.  Each number is
 * computed by one device in the order in which it alone would, so results do not depend on how many there are. */
#ifndef TERN_DEV_PARALLEL_H
#define TERN_DEV_PARALLEL_H

#include <stdatomic.h>
#include "dev/dev.h"

enum { TERN_PARALLEL_MOST = TERN_DEV_CARDS };

/* Bytes one after the other that one device has, or all have (device -1). */
struct tern_parallel_run {
    size_t at, bytes;
    int device;
    size_t own[TERN_PARALLEL_MOST]; /* where they begin in its memory */
};

/* Runs without gaps from byte 0 of a block, or of all memory, on; behind the last one everything is on all devices. */
struct tern_parallel_runs {
    struct tern_parallel_run *p;
    size_t n, cap;
    size_t end, own_end[TERN_PARALLEL_MOST]; /* of the runs; of what the devices have of them */
};

/* Three kinds: alike on all devices; blocks, each divided alike; weights, which are divided as they are placed.  Lazy
 * and adopted memory is none of them before divide. */
struct tern_dev_mem {
    struct tern_dev_mem *m[TERN_PARALLEL_MOST];
    size_t bytes;
    enum { TERN_PARALLEL_ALIKE, TERN_PARALLEL_BLOCKS, TERN_PARALLEL_WEIGHTS, TERN_PARALLEL_WAITS } kind;
    const void *host;                       /* adopted: from here, of which [0, brought) has been copied */
    _Atomic size_t brought;                 /* under bring_lock, once it has come */
    size_t block, part[TERN_PARALLEL_MOST]; /* bytes of a block, and of each device's part of it */
    struct tern_parallel_runs runs;
};

struct tern_dev_form {
    const struct tern_dev_ops *ops; /* of one device */
    int n;
    enum {
        TERN_PARALLEL_COPIED,  /* every device has all of it, and multiplies by all of it */
        TERN_PARALLEL_SHARED,  /* every device has all of it, and multiplies by its own outputs */
        TERN_PARALLEL_OUTPUTS, /* a device has its own outputs, of every matrix of a stack */
        TERN_PARALLEL_MATRICES /* a device has its own matrices of a stack */
    } by;
    size_t runs;                       /* of those planned */
    int bound[TERN_PARALLEL_MOST + 1]; /* outputs, or matrices, [bound[i], bound[i + 1]) are device i's */
    struct tern_dev_weight
        all[TERN_PARALLEL_MOST]; /* the whole; of one that is divided all[0] alone, which is nowhere */
    struct tern_dev_weight own[TERN_PARALLEL_MOST]; /* form NULL: it has none, or all is its own */
};

/* Rows of which device i has the columns [bound[i], bound[i + 1]), and nothing that counts elsewhere. */
struct tern_parallel_share {
    struct tern_dev_rows x;
    int n_rows;
    unsigned step; /* whose operation wrote them */
    int bound[TERN_PARALLEL_MOST + 1];
};

struct tern_parallel_ops {
    struct tern_dev_ops ops; /* first */
    int n;
    const struct tern_dev_ops *of[TERN_PARALLEL_MOST];
};

#define TERN_PARALLEL_SHARES 16 /* at a time */

struct tern_parallel {
    struct tern_dev dev;
    int n;
    struct tern_dev *d[TERN_PARALLEL_MOST];
    bool joined;    /* they reach each other's memory; else gathers go through the host */
    int layer;      /* whose weights are planned; -1: of none */
    size_t planned; /* runs of weights, at most */
    enum tern_dev_use use;
    /* The layer's stacks of experts; of the first one the outputs, and whose they are. */
    enum { TERN_PARALLEL_UNDECIDED, TERN_PARALLEL_APART, TERN_PARALLEL_TOGETHER } experts;
    int expert_bound[TERN_PARALLEL_MOST + 1];
    struct tern_dev_rows between; /* experts.c: [pairs of a step][widest expert], without experts none */
    /* What each device is told of caches. */
    int n_caches, n_groups;
    struct tern_dev_cache *caches[TERN_PARALLEL_MOST];  /* [n_caches] */
    struct tern_dev_blocks *blocks[TERN_PARALLEL_MOST]; /* [n_caches][n_groups] */
    struct tern_attn_shape *shapes[TERN_PARALLEL_MOST]; /* [n_layers] */
    const struct tern_kv_layer *layers;                 /* of the whole: heads are alike in all caches */
    int n_rows;                                         /* of the step in hand */
    unsigned step;                                      /* which it is */
    struct tern_parallel_share share[TERN_PARALLEL_SHARES];
    int n_shares;
    float *crossing; /* columns on their way from one device to the others; NULL where they are joined */
    size_t crossing_floats;
};

static inline struct tern_parallel *tern_parallel_of(struct tern_dev *d)
{
    return (struct tern_parallel *)d;
}

/* Device i's part of n equal things begins here. */
static inline int tern_parallel_from(int n, int i, int devices)
{
    return (int)((int64_t)n * i / devices);
}

/* Everything that is queued on any device has been started: before one of them is waited for. */
void tern_parallel_start(const struct tern_parallel *s);

/* ---- memory.c ---- */

struct tern_dev_rows tern_parallel_rows(struct tern_dev_rows r, int device);
struct tern_dev_vec tern_parallel_vec(struct tern_parallel *s, struct tern_dev_vec v, int device);
/* The next `bytes` bytes are the device's, or everybody's (-1). */
int tern_parallel_run(struct tern_parallel_runs *r, int n, size_t bytes, int device, tern_error *err);
/* Whose byte `at` is (-1: everybody's), where each device has it, or what it has next; and how many bytes from there on
 * are that device's, `bytes` at most. */
size_t tern_parallel_find(const struct tern_dev_mem *m, int n, size_t at, size_t bytes, int *device,
                          size_t own[TERN_PARALLEL_MOST]);
/* Adopted memory as far as `end` is on the devices from here on. */
void tern_parallel_bring(struct tern_parallel *s, struct tern_dev_mem *m, size_t end);

int tern_parallel_reserve(struct tern_dev *d, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err);
void tern_parallel_release(struct tern_dev *d, struct tern_dev_mem *m);
int tern_parallel_adopt(struct tern_dev *d, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err);
int tern_parallel_divide(struct tern_dev *d, struct tern_dev_mem *m, struct tern_dev_division *by, tern_error *err);
int tern_parallel_claim(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes, tern_error *err);
void tern_parallel_copy_in(struct tern_dev *d, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes);
void tern_parallel_copy_out(struct tern_dev *d, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes);
void tern_parallel_copy(struct tern_dev *d, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                        size_t from_at, size_t bytes);
void tern_parallel_zero(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);
double tern_parallel_read(struct tern_dev *d, const struct tern_dev_mem *m);
void tern_parallel_discard(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);

/* ---- weights.c ---- */

int tern_parallel_weight_plan(struct tern_dev *d, struct tern_dev_weight *w, const struct tern_weight_source *from,
                              int64_t n, int64_t k, int stack, tern_error *err);
size_t tern_parallel_weight_bytes(const struct tern_dev_weight *w);
void tern_parallel_weight_about(const struct tern_dev_weight *w, struct tern_dev_about *out);
void tern_parallel_weight_place(struct tern_dev *d, struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at);
int tern_parallel_weight_load(struct tern_dev *d, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                              tern_error *err);
void tern_parallel_weight_drop(struct tern_dev *d, struct tern_dev_weight *w);
void tern_parallel_weight_out(struct tern_dev *d, float *host, const struct tern_dev_weight *w, int matrix, int row,
                              int n);
void tern_parallel_layer(struct tern_dev *d, int layer, struct tern_dev_rows x, int n_rows);
void tern_parallel_use(struct tern_dev *d, enum tern_dev_use use);
static inline bool tern_parallel_divided(const struct tern_dev_form *f)
{
    return f->by == TERN_PARALLEL_OUTPUTS || f->by == TERN_PARALLEL_MATRICES;
}
/* The weight as a device has it, which every device has whole.  form NULL: so is the device's. */
const struct tern_dev_weight *tern_parallel_whole(const struct tern_dev_weight *w, int device);

/* ---- caches.c ---- */

/* Device i's part [from, to) of n heads; all of them where there are fewer than devices. */
void tern_parallel_heads_of(int n, int i, int devices, int *from, int *to);
/* The KV heads of a layer that device i has: all where queries share one. */
void tern_parallel_heads(const struct tern_kv_layer *l, int i, int devices, int *from, int *to);
/* And the heads of queries, of n_heads, which belong to these. */
void tern_parallel_queries(const struct tern_kv_layer *l, int n_heads, int i, int devices, int *from, int *to);
/* The runs of a block of caches. */
int tern_parallel_block_runs(struct tern_parallel_runs *r, int n, const struct tern_dev_division *by, tern_error *err);
int tern_parallel_prepare(struct tern_dev *d, const struct tern_dev_limits *limits, tern_error *err);
void tern_parallel_close_caches(struct tern_parallel *s);
void tern_parallel_begin(struct tern_dev *d, const struct tern_dev_step *step);
void tern_parallel_end(struct tern_dev *d);

/* ---- shares.c ---- */

/* Every device has these rows whole from here on. */
void tern_parallel_gather(struct tern_parallel *s, struct tern_dev_rows x, int n_rows);
/* For a product of prompt rows in 16 bits, which comes next on every device: it alone may have them whole. */
void tern_parallel_gather_for_product(struct tern_parallel *s, struct tern_dev_rows x, int n_rows);
/* All shares that lie in these floats of a memory. */
void tern_parallel_gather_floats(struct tern_parallel *s, const struct tern_dev_mem *m, size_t at, size_t floats);
/* Rows [0, n_rows) are written now: whole, or device i's columns of them. */
void tern_parallel_wrote(struct tern_parallel *s, struct tern_dev_rows x, int n_rows);
void tern_parallel_wrote_share(struct tern_parallel *s, struct tern_dev_rows x, int n_rows, const int *bound);
/* The share that these rows are, or begin, of rows with room for more columns the first ones.  NULL: they are none. */
const struct tern_parallel_share *tern_parallel_share_at(const struct tern_parallel *s, struct tern_dev_rows x,
                                                         int n_rows);
/* Are they a share by these bounds?  Else every device has them whole afterwards. */
bool tern_parallel_want_share(struct tern_parallel *s, struct tern_dev_rows x, int n_rows, const int *bound);
/* Columns [from, to) of rows, on a device. */
static inline struct tern_dev_rows tern_parallel_columns(struct tern_dev_rows x, int from, int to, int device)
{
    return tern_parallel_rows(tern_dev_columns(x, from, to - from), device);
}

/* ---- the operations of a step: ops.c, heads.c, experts.c ---- */

void tern_parallel_operations(struct tern_dev_ops *ops, const struct tern_dev_ops *of);
void tern_parallel_head_operations(struct tern_dev_ops *ops, const struct tern_dev_ops *of);
void tern_parallel_expert_operations(struct tern_dev_ops *ops, const struct tern_dev_ops *of);
/* Room between the halves of experts. */
int tern_parallel_experts_open(struct tern_parallel *s, const struct tern_dev_limits *l, tern_error *err);
void tern_parallel_experts_close(struct tern_parallel *s);

#endif

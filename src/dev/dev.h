/* dev/dev.h - coarse operations on ragged batches; the CPU device.
 *
 * A batch is a list of rows (tokens) of any mix of sequences.  Rows of one sequence in one step form a job.  Every
 * operation is called by the one thread that owns the device, spreads its work over the pool and returns when it is
 * done.  Work is cut at fixed places (panels, page ranges, rows), so the number of threads decides only who does what:
 * results are equal bit for bit for any thread count.
 *
 * No operation allocates: scratch is sized by tern_dev_open for the largest step. */
#ifndef TERN_DEV_H
#define TERN_DEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/block.h"
#include "base/err.h"
#include "base/pool.h"
#include "codec/codec.h"

/* One token of a batch. */
struct tern_row {
    int32_t token;
    int32_t pos;
};

/* One sequence's rows in this step, as attention on one layer sees them.  Rows are consecutive in the batch and in
 * position and share one role.  Page index = position / 64, absolute. */
struct tern_attn_job {
    int row0;   /* first row in the batch */
    int n_rows; /* rows; decode rows come one per job or several (drafts) */
    int pos0;   /* position of the first row */
    bool wide;  /* role: prompt rows */
    /* Closed pages of this layer's group: page index i (first_page <= i < first_page + n_pages) is block
     * pages[i - first_page] of page_mem.  A row at position p attends to closed pages with index < p/64 only. */
    const uint32_t *pages;
    struct tern_blocks page_mem;
    int first_page, n_pages;
    const uint8_t *sink; /* the sequence's sink block, or NULL while no page is closed */
    /* Raw tiles: tile t holds page index tile_first + t for all layers' heads at tile_base + t*tile_stride +
     * layer->tile_layer_off (tile_layer_off is 0 in staging tiles).  A row's own page is always a raw tile that already
     * contains the row's keys and values; columns after it may hold anything finite. */
    const uint8_t *tile_base;
    size_t tile_stride;
    int tile_first;
    size_t tile_layer_off;
    /* Earlier pages that are still seen raw: this layer's tiles of the sequence, page p in tile p % layer->ring. */
    const uint8_t *ring;
};

struct tern_attn_shape {
    const struct tern_kv_layer *kv;
    int n_heads;   /* query heads, a multiple of kv->n_heads */
    float scale;   /* softmax scale; log2(e) is added inside */
    float softcap; /* 0: none; else cap*tanh(score/cap) before the softmax */
};

struct tern_dev_mem; /* memory of a device, which operations alone look into */
struct tern_dev_ops;

/* An open device.  Each device's own struct begins with it. */
struct tern_dev {
    const struct tern_dev_ops *ops;
};

/* ---- the device seam ------------------------------------------------------------------------------------------- */

/* One product y[row][n] = x[row] . w, all products of one call share x. */
struct tern_matmul {
    const struct tern_packed *w;
    const float *bias; /* [w->n] or NULL */
    float *y;
    size_t y_stride; /* floats */
    bool f32;        /* prompt rows in f32 on every machine */
};

/* Query or key heads of all rows: optional RMS norm per head, then rotation, then a factor by position. */
struct tern_heads {
    float *x; /* [n_rows][n_heads * dim] */
    size_t stride;
    int n_heads, dim;
    bool norm, norm_after; /* normalise each head before or after the rotation */
    const float *norm_w;   /* [dim] or NULL: without weight */
    float eps;
    const float *cos, *sin; /* [n_rows][n_rot/2]; NULL: no rotation */
    int n_rot;
    bool interleaved;
    /* Times 1 + temper * ln(1 + (position + temper_from) / temper_span), the quotient rounded down; 0: no. */
    float temper;
    int temper_span, temper_from;
    const struct tern_row *rows; /* for positions */
};

/* Where the new keys and values of one job go in one layer; the attention job tells positions and pages. */
struct tern_append_job {
    const struct tern_attn_job *at;
    uint8_t *tile_base; /* as at->tile_base, writable */
    uint8_t *seq_tile;  /* the sequence's own tile block; differs from tile_base when the job is staged */
    uint8_t *sink;      /* written when page 0 closes; may be NULL otherwise */
    bool staged;        /* the rows span pages: tiles live in staging, the first and last exchange with seq_tile */
};

/* Every head has a matrix of its own, of a stack (codec.h): y[row][h * y_head + n] = x[row][h * x_head ..] . matrix h.
 * Head strides in floats, multiples of 16. */
struct tern_stack {
    const struct tern_packed *w;
    int n_heads;
    float *y;
    size_t y_stride, y_head;
    const float *x;
    size_t x_stride, x_head;
};

/* Which experts a row goes to, and what each of them counts. */
struct tern_route {
    int n_experts, n_active; /* a row goes to n_active of them */
    bool sigmoid;            /* an expert's score is the sigmoid of its logit; else the softmax over all logits */
    const float *bias;       /* [n_experts] added to a score for the choice alone, or NULL */
    /* Experts come in n_groups groups of one size, of which the best n_groups_used compete, ranked by the sum of their
     * group_best best experts.  n_groups 1: no groups. */
    int n_groups, n_groups_used, group_best;
    bool normalise;       /* a row's weights are divided by their sum */
    float scale;          /* and multiplied by this */
    const float *factors; /* [n_experts] and each by its expert's; NULL: 1 */
};

#define TERN_MAX_EXPERTS 1024

/* The experts of one layer: stacks (codec.h) of n_experts matrices. */
struct tern_experts {
    int n_experts, n_active;
    const struct tern_packed *gate, *up, *down; /* gate, up: [n_ff, n_embd]; down: [n_embd, n_ff] */
    bool gelu;                                  /* tanh form of GELU, else SiLU */
    bool weigh_input; /* a row's weight for an expert multiplies what the expert reads, not what it answers */
};

/* A layer with a recurrent state: a causal convolution over the last `width` rows, then the gated delta rule of
 * kernel/delta.h for each of n_v heads, which share n_k heads of queries and keys. */
struct tern_delta {
    int n_k, n_v, dk, dv; /* heads and their dims, multiples of 16 */
    int width;            /* 2..TERN_DELTA_WIDTH */
    bool grouped;         /* value head h goes with key head h / (n_v / n_k); else with h % n_k */
    const float *conv;    /* [width][channels]; channels: queries [n_k][dk], keys [n_k][dk], values [n_v][dv] */
    const float *a, *dt;  /* [n_v] decay is exp(a * softplus(input + dt)) */
};

/* f32 that a sequence keeps for the layer: the convolution's last width - 1 inputs, then states (kernel/delta.h) head
 * by head.  All 0 in the beginning. */
size_t tern_delta_state_floats(const struct tern_delta *l);

struct tern_delta_job {
    int row0, n_rows;
    float *state; /* of the sequence, read and written */
    /* What the state is after mark_at rows (0 < mark_at <= n_rows) is written here besides; NULL: no. */
    float *mark;
    int mark_at;
};

struct tern_delta_io {
    float *x; /* in: [n_rows][channels]; overwritten */
    size_t x_stride;
    float *decay, *beta; /* in: [n_rows][n_v] before softplus and sigmoid; overwritten */
    size_t gate_stride;
    float *out; /* [n_rows][n_v * dv] */
    size_t out_stride;
};

/* Activations of gates; gelu: tanh form. */
enum tern_gate { TERN_GATE_SILU, TERN_GATE_GELU, TERN_GATE_SIGMOID };

/* The largest step that a device shall have scratch for. */
struct tern_dev_limits {
    int max_rows, max_narrow, max_k;      /* rows of a step, decode rows among them; longest input of any product */
    bool exact;                           /* prompt rows in f32 on every machine */
    const struct tern_attn_shape *shapes; /* [n_shapes] of all attention, read by prepare alone */
    int n_shapes;
    int max_pages; /* of a sequence */
    /* Largest of all layers' experts; 0 without experts. */
    int max_experts, max_active, max_expert_embd, max_expert_ff;
    int max_stack, max_stack_k; /* most heads of a stack, longest input of one; 0 without stacks */
};

/* Coarse operations.  Rows [0, n_wide) are prompt rows, [n_wide, n_rows) decode rows; how each role computes products
 * is settled when the device opens (kernel/gemm.h has the classes).  All pointers 64-byte aligned, all row strides
 * multiples of 16 floats. */
struct tern_dev_ops {
    const char *name;

    /* A device for one owner.  pool: borrowed until close; NULL: memory alone, no operation below it. */
    int (*open)(struct tern_dev **out, struct tern_pool *pool, tern_error *err);
    void (*close)(struct tern_dev *d);
    /* Scratch for steps within these limits: once, before the first of them. */
    int (*prepare)(struct tern_dev *d, const struct tern_dev_limits *limits, tern_error *err);
    size_t (*scratch_bytes)(const struct tern_dev *d);
    /* Operations may be queued: what they write, and what copy_out brings, counts after sync. */
    void (*sync)(struct tern_dev *d);

    /* Memory, all 0, 64-byte aligned; every tern_dev of one device may use it.  lazy: what is never written costs
     * address space alone.  release: NULL is legal; queued operations may still use it, they are waited for. */
    int (*reserve)(struct tern_dev *d, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err);
    void (*release)(struct tern_dev *d, struct tern_dev_mem *m);
    /* Memory with the contents of `host`, which the host only reads until release, and so may the device. */
    int (*adopt)(struct tern_dev *d, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err);
    /* Bytes in memory.  copy_in has read the host's bytes when it returns. */
    void (*copy_in)(struct tern_dev *d, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes);
    void (*copy_out)(struct tern_dev *d, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes);
    void (*copy)(struct tern_dev *d, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                 size_t from_at, size_t bytes);
    void (*zero)(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);
    /* The range is not needed until it is written again: lazy memory goes back to the system. */
    void (*discard)(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);

    /* x[row][n] = table row of the row's token, times scale. */
    void (*embed)(struct tern_dev *d, float *x, size_t stride, const struct tern_packed *table,
                  const struct tern_row *rows, int n_rows, float scale);
    /* y[row] = rmsnorm(x[row]) * w. */
    void (*norm)(struct tern_dev *d, float *y, size_t y_stride, const float *x, size_t x_stride, const float *w, int n,
                 float eps, int n_rows);
    /* y[row] = a[row] + b[row]. */
    void (*add)(struct tern_dev *d, float *y, const float *a, const float *b, size_t stride, int n, int n_rows);
    /* x[row] *= factor. */
    void (*scale)(struct tern_dev *d, float *x, size_t stride, int n, int n_rows, float factor);
    void (*matmul)(struct tern_dev *d, const struct tern_matmul *m, int n_m, const float *x, size_t x_stride,
                   int n_rows, int n_wide);
    /* cos/sin[row][n_rot/2] of pos * freq, times magnitude. */
    void (*rope_table)(struct tern_dev *d, float *cos, float *sin, const float *freq, int n_rot, float magnitude,
                       const struct tern_row *rows, int n_rows);
    void (*heads)(struct tern_dev *d, const struct tern_heads *h, int n_rows);
    /* Writes k, v rows into tiles, encodes the pages that close. */
    void (*append)(struct tern_dev *d, const struct tern_kv_layer *l, const struct tern_append_job *jobs, int n_jobs,
                   const float *k, size_t k_stride, const float *v, size_t v_stride);
    /* After attention: the newest tiles of staged jobs become the sequences' own.  Not before, for they replace tiles
     * that the first rows of the step still read. */
    void (*keep)(struct tern_dev *d, const struct tern_kv_layer *l, const struct tern_append_job *jobs, int n_jobs);
    /* The inverse of append for a layer that is raw on both sides: k, v rows of the job's positions, closed pages and
     * the open tile alike.  Rows of pages that a window has dropped are 0. */
    void (*raw_rows)(struct tern_dev *d, const struct tern_kv_layer *l, const struct tern_attn_job *job, float *k,
                     size_t k_stride, float *v, size_t v_stride);
    void (*attention)(struct tern_dev *d, const struct tern_attn_shape *shape, const struct tern_attn_job *jobs,
                      int n_jobs, const float *q, size_t q_stride, float *out, size_t out_stride);
    /* gate[row] = act(gate[row]) * up[row]. */
    void (*glu)(struct tern_dev *d, float *gate, const float *up, size_t stride, int n, int n_rows, enum tern_gate act);
    void (*softcap)(struct tern_dev *d, float *x, size_t stride, int n, int n_rows, float cap);
    /* x[row] *= sigmoid(g[row][0]). */
    void (*gate)(struct tern_dev *d, float *x, size_t stride, int n, const float *g, size_t g_stride, int n_rows);
    /* Prompt rows in f32 on every machine. */
    void (*stack)(struct tern_dev *d, const struct tern_stack *s, int n_rows, int n_wide);
    /* Chooses experts by logits[row][n_experts]: ids[row][n_active] ascending, with their weights.  Of equal scores the
     * lower id wins. */
    void (*route)(struct tern_dev *d, const struct tern_route *r, const float *logits, size_t stride, int32_t *ids,
                  float *weights, int n_rows);
    /* y[row] = sum over the row's experts, ids ascending, of weight * down((act(gate x) * up x)).  An expert's weights
     * are read once, for all rows that chose it, each in the class of its role; weights of others are not touched. */
    void (*experts)(struct tern_dev *d, const struct tern_experts *e, float *y, size_t y_stride, const float *x,
                    size_t x_stride, const int32_t *ids, const float *weights, int n_rows, int n_wide);
    /* One layer's recurrence over the rows of all jobs, in f32 for both roles. */
    void (*delta)(struct tern_dev *d, const struct tern_delta *l, const struct tern_delta_job *jobs, int n_jobs,
                  const struct tern_delta_io *io, int n_rows);
};

/* ---- devices ----------------------------------------------------------------------------------------------------- */

/* The device called `name`; NULL or "auto": the first of devs.def.  TERN_EINVAL, listing them, for another name. */
int tern_dev_find(const struct tern_dev_ops **out, const char *name, tern_error *err);
const struct tern_dev_ops *tern_dev_at(int i); /* NULL behind the last */
/* Opens it; closes it, NULL is legal. */
int tern_dev_open(struct tern_dev **out, const char *name, struct tern_pool *pool, tern_error *err);
void tern_dev_close(struct tern_dev *d);
/* For tests: one more device, which "auto" means from now on.  Before anything is opened. */
void tern_dev_add_first(const struct tern_dev_ops *ops);

#endif

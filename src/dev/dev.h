/* dev/dev.h - the device seam: coarse operations on ragged batches, in memory that they alone look into.
 *
 * A device is a table of functions and a folder src/dev/<name>, listed in devs.def.  An open one belongs to one thread,
 * which calls operations in order; they spread their work as the device likes, and may be queued.  What the host reads
 * comes with copy_out and counts after sync; arguments have been read when an operation returns, but for what
 * struct tern_dev_step lends.
 *
 * Work is cut at fixed places (panels, page ranges, rows), so that the number of threads decides only who does what:
 * results are equal bit for bit.  No operation of a step allocates: prepare makes room for the largest step. */
#ifndef TERN_DEV_H
#define TERN_DEV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "base/pool.h"
#include "codec/codec.h"
#include "dev/args.h"
#include "dev/find.h"
#include "dev/handle.h"
#include "dev/made.h"
#include "dev/step.h"
#include "dev/weight.h"

struct tern_dev_ops;

#define TERN_DEV_CARDS 8 /* most devices of one kind: their numbers, and those that compute one model together */

/* An open device.  Each device's own struct begins with it. */
struct tern_dev {
    const struct tern_dev_ops *ops;
};

/* The largest step that a device shall have scratch for. */
struct tern_dev_limits {
    int max_rows, max_narrow, max_k; /* rows of a step, decode rows among them; longest input of any product */
    bool exact;                      /* prompt rows in f32 on every machine */
    bool decode16;                   /* activations of decode rows in 16 bits, not 8 */
    bool prompt8;                    /* activations of prompt rows in int8 */
    /* The caches, of which the layers are read here and the memory is not, and attention on their layers. */
    const struct tern_dev_cache *caches;
    int n_caches;
    const struct tern_attn_shape *shapes; /* [n_layers of each cache] */
    int max_jobs, max_pages;              /* of a step; of a sequence */
    /* Largest of all layers' experts; 0 without experts. */
    int max_experts, max_active, max_expert_embd, max_expert_ff;
    int max_stack, max_stack_k; /* most heads of a stack, longest input of one; 0 without stacks */
    int max_best;               /* widest rows of tern_best; 0 without */
    /* Of compressed rows: the widest, the largest of all layers' attention to them and choice among them; 0 without. */
    int max_compressed, max_sparse_heads, max_chosen, max_choose_heads;
};

/* Rows are f32.  [0, n_wide) of n_rows are prompt rows, the others decode rows; how each role computes products is
 * settled by prepare (kernel/gemm.h has the classes). */
struct tern_dev_ops {
    const char *name, *kv;  /* kv: the KV plan that suits it, where nobody says */
    bool decodes;           /* recode reads codes, too */
    bool firsts;            /* attention knows tern_kv_reach.first */
    bool decode16, prompt8; /* of tern_dev_limits */
    int cut;                /* layers before this one lie elsewhere, in the host's memory; 0: all is at one place */
    int together;           /* devices of one kind that it is made of, which compute every layer together; 0: one */
    bool in_place;          /* what adopt is given is read where it lies, and not before an operation needs it */
    bool apart;             /* rows take long to come to the host: the best of them are worth asking for */

    /* Is it there?  One line about it, or why not: TERN_ENOENT where the machine has none, another code where it has
     * one that cannot be used.  NULL: it always is. */
    int (*probe)(char about[TERN_DEV_NAME], tern_error *err);
    /* The device of another number, "name:number", itself being number 0; NULL behind the last.  NULL: there is one. */
    const struct tern_dev_ops *(*card)(int number);

    int chunk; /* rows of a prompt in one step that suit it, where nobody says; 0: 512 */

    /* A device for one owner.  self: the table that open is of.  pool: borrowed until close; NULL: for memory and
     * copies alone. */
    int (*open)(struct tern_dev **out, const struct tern_dev_ops *self, struct tern_pool *pool, tern_error *err);
    void (*close)(struct tern_dev *d); /* waits for what is queued */
    int (*prepare)(struct tern_dev *d, const struct tern_dev_limits *limits, tern_error *err); /* once */
    size_t (*scratch_bytes)(const struct tern_dev *d);
    void (*sync)(struct tern_dev *d);
    /* After sync: what went wrong with what was queued since the last call, whose results then count for nothing: the
     * device ran out of memory, or is lost.  keep: the next call says it again.  NULL: nothing can. */
    int (*fault)(struct tern_dev *d, bool keep, tern_error *err);

    /* Of a device with memory of its own; NULL elsewhere.  limit: from here on its tern_dev take so many bytes at most,
     * and are refused more as if the card had no more; what is taken stays.  0: what was free when the device was
     * found, less a margin, which is the limit until somebody sets one.  TERN_EINVAL where the device has less. */
    int (*limit)(struct tern_dev *d, size_t bytes, tern_error *err);
    void (*held)(const struct tern_dev *d, struct tern_dev_held *out);

    /* Memory, all 0, which every tern_dev of one device may use.  lazy: what is never written costs address space
     * alone.  release waits for what is queued; NULL is legal. */
    int (*reserve)(struct tern_dev *d, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err);
    void (*release)(struct tern_dev *d, struct tern_dev_mem *m);
    /* Memory with the contents of `host`, which stays there unchanged until release; nobody writes to it. */
    int (*adopt)(struct tern_dev *d, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err);
    /* These bytes of lazy memory will be written: there is memory for them from here on, or TERN_ENOMEM.  NULL: it is
     * found when they are. */
    int (*claim)(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes, tern_error *err);
    /* Of devices made of others, once, of memory that is lazy or adopted, before it is used: what lies in it.  NULL
     * elsewhere. */
    int (*divide)(struct tern_dev *d, struct tern_dev_mem *m, struct tern_dev_division *by, tern_error *err);
    void (*copy_in)(struct tern_dev *d, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes);
    void (*copy_out)(struct tern_dev *d, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes);
    /* One piece of host memory that every step copies rows out to: they come there without a detour, until it is told
     * of another one, or of NULL, which must be before the memory goes.  NULL: it makes no difference. */
    void (*lands)(struct tern_dev *d, void *host, size_t bytes);
    void (*copy)(struct tern_dev *d, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                 size_t from_at, size_t bytes);
    void (*zero)(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);
    /* Bytes per second of reading all of m and nothing else; 0: it failed.  NULL: nobody knows. */
    double (*read)(struct tern_dev *d, const struct tern_dev_mem *m);
    /* Not needed until it is written again: lazy memory goes back to the system. */
    void (*discard)(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);

    /* Weights.  plan decides a form (TERN_EUNSUPPORTED where there is none) and looks at no pointer of s; bytes is what
     * the whole stack takes, a multiple of 64; place says where it lies; load fills it, on all threads, and fails with
     * what is wrong with the source.  drop frees the form; the bytes stay. */
    int (*weight_plan)(struct tern_dev *d, struct tern_dev_weight *w, const struct tern_weight_source *s, int64_t n,
                       int64_t k, int stack, tern_error *err);
    size_t (*weight_bytes)(const struct tern_dev_weight *w);
    void (*weight_about)(const struct tern_dev_weight *w, struct tern_dev_about *out);
    void (*weight_place)(struct tern_dev *d, struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at);
    int (*weight_load)(struct tern_dev *d, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                       tern_error *err);
    void (*weight_drop)(struct tern_dev *d, struct tern_dev_weight *w);
    /* host[n][k] = rows [row, row + n) of a matrix of the stack as they are multiplied by, after sync. */
    void (*weight_out)(struct tern_dev *d, float *host, const struct tern_dev_weight *w, int matrix, int row, int n);

    /* Of devices made of others; NULL elsewhere.  What follows, weights that are planned or operations of a step, is of
     * this layer; -1: of none, as at first and after begin.  With a cut only rows [0, n_rows) of x go where it is. */
    void (*layer)(struct tern_dev *d, int layer, struct tern_dev_rows x, int n_rows);
    /* Likewise: how operations use weights that are planned from here on; OUTPUTS at first. */
    void (*use)(struct tern_dev *d, enum tern_dev_use use);

    /* Devices of one kind that compute one model together (parallel/).  NULL: they cannot reach each other.
     * start: what is queued on d[0..n) begins, whatever one of them waits for.
     * join: d[0..n), prepared, will gather; TERN_EUNSUPPORTED with a reason where these cannot.
     * gather, in a step: x[i] is d[i]'s memory for the same rows, of which it has the columns [bound[i], bound[i + 1]),
     * multiples of 16 but for the last; true: each has all of rows [0, n_rows) after it.  It is queued on all of them.
     * product: what comes next on each is matmul of these prompt rows in 16 bits; it may bring them for that alone. */
    void (*start)(struct tern_dev *const *d, int n);
    int (*join)(struct tern_dev *const *d, int n, tern_error *err);
    bool (*gather)(struct tern_dev *const *d, int n, const struct tern_dev_rows *x, const int *bound, int n_rows,
                   bool product);

    /* A step: all operations below come between begin and end.  Rows that the next one writes are gone, all of them. */
    void (*begin)(struct tern_dev *d, const struct tern_dev_step *s);
    void (*end)(struct tern_dev *d);

    /* x[row] = table row of the row's token, times scale. */
    void (*embed)(struct tern_dev *d, struct tern_dev_rows x, const struct tern_dev_weight *table, int n_rows,
                  float scale);
    /* y[row] = rmsnorm(x[row]) * w. */
    void (*norm)(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows x, struct tern_dev_vec w, float eps,
                 int n_rows);
    /* y[row] = a[row] + b[row]. */
    void (*add)(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows a, struct tern_dev_rows b, int n_rows);
    void (*scale)(struct tern_dev *d, struct tern_dev_rows x, int n_rows, float factor); /* x[row] *= factor */
    void (*matmul)(struct tern_dev *d, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                   int n_wide);
    /* cos/sin[row][n_rot/2] of position * freq, times magnitude. */
    void (*rope_table)(struct tern_dev *d, struct tern_dev_vec cos, struct tern_dev_vec sin, struct tern_dev_vec freq,
                       int n_rot, float magnitude, int n_rows);
    void (*heads)(struct tern_dev *d, const struct tern_heads *h, int n_rows);
    /* to[row][h * to_head + i] = from[row][h * from_head + i], 0 <= i < n.  Columns are allowed. */
    void (*copy_heads)(struct tern_dev *d, struct tern_dev_rows to, size_t to_head, struct tern_dev_rows from,
                       size_t from_head, int n_heads, int n, int n_rows);
    /* k, v rows of all jobs go into the layer's tiles; pages that are full are encoded. */
    void (*append)(struct tern_dev *d, int layer, struct tern_dev_rows k, struct tern_dev_rows v);
    /* out[row][n_heads * v.dim] = attention of q[row][n_heads * k.dim] ([v.dim + k.dim] of a latent layer; after the
     * rotation, unscaled) for the rows of all jobs, whose keys and values have been appended. */
    void (*attention)(struct tern_dev *d, const struct tern_attn_shape *shape, struct tern_dev_rows q,
                      struct tern_dev_rows out);
    /* The step's only job appends what `from`, lent as the step is, holds at the same positions, as attention after the
     * last token of `from` reads it: raw tiles and first tokens as they are, the values of codes (tern_kv_values) of
     * other pages.  Rows of pages that a window has dropped are 0, but for first tokens (`firsts`).  k, v: room for the
     * rows.  Without `decodes` the layer of `from` must be raw on both sides and have one raw tile.  layer: also a span
     * of rows, of those that the job completes. */
    void (*recode)(struct tern_dev *d, int layer, const struct tern_dev_job *from, struct tern_dev_rows k,
                   struct tern_dev_rows v);
    /* gate[row] = act(gate[row]) * up[row], for the operation that follows: if it is a product of these rows, nobody
     * reads them after it.  network: matmul to of_gate and of_up, this, and matmul to y; NULL: those three do. */
    void (*glu)(struct tern_dev *d, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, enum tern_gate act);
    void (*network)(struct tern_dev *d, const struct tern_dev_network *n, struct tern_dev_rows y,
                    struct tern_dev_rows x, int n_rows, int n_wide);
    void (*softcap)(struct tern_dev *d, struct tern_dev_rows x, int n_rows, float cap);
    /* x[row] *= sigmoid(g[row][0]). */
    void (*gate)(struct tern_dev *d, struct tern_dev_rows x, struct tern_dev_rows g, int n_rows);
    void (*stack)(struct tern_dev *d, const struct tern_stack *s, int n_rows, int n_wide); /* prompt rows: in f32 */
    /* Chooses experts by logits[row][n_experts]: ids[row][n_active] (int32) ascending, with their weights.  Of equal
     * scores the lower id wins. */
    void (*route)(struct tern_dev *d, const struct tern_route *r, struct tern_dev_rows logits, struct tern_dev_vec ids,
                  struct tern_dev_vec weights, int n_rows);
    /* y[row] = sum over the row's experts, ids ascending, of weight * down((act(gate x) * up x)).  An expert's weights
     * are read once, for all rows that chose it, each in the class of its role; weights of others are not touched. */
    void (*experts)(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows y, struct tern_dev_rows x,
                    struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows, int n_wide);
    /* Its halves, NULL where a device is made of others.  up: between[pair] = act(gate x) * up x, a pair being a row
     * and one of its experts, in an order that follows from ids alone, prompt rows' first; down: y from between. */
    void (*experts_up)(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows between,
                       struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec w, int n_rows, int n_wide);
    void (*experts_down)(struct tern_dev *d, const struct tern_experts *e, struct tern_dev_rows y,
                         struct tern_dev_rows from, struct tern_dev_vec ids, struct tern_dev_vec w, int n, int n_wide);
    /* One layer's recurrence over the rows of all jobs, in f32 for both roles, on the states of their sequences. */
    void (*delta)(struct tern_dev *d, int layer, const struct tern_delta *l, const struct tern_delta_io *io,
                  int n_rows);
    /* Operations of few models, NULL where a device lacks them: models that need them are refused there.
     *
     * gate = min(gate, limit), up = up in [-limit, limit].  A device with this operation also knows tern_experts.clamp,
     * tern_route.sqrt_softplus and tern_route.table. */
    void (*clamp)(struct tern_dev *d, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, float limit);
    /* Rounds n_heads vectors of x.width / n_heads of each row. */
    void (*grid)(struct tern_dev *d, struct tern_dev_rows x, enum tern_grid grid, int n_heads, int n_rows);
    /* x, gate: [n_rows][channels] of the rows of all jobs.  Rows of windows that become complete go into the span's
     * tiles, full pages are encoded. */
    void (*compress)(struct tern_dev *d, const struct tern_compress *c, struct tern_dev_rows x,
                     struct tern_dev_rows gate);
    /* q: [n_rows][n_heads * dim], w: [n_rows][n_heads]. */
    void (*choose)(struct tern_dev *d, const struct tern_choose *c, struct tern_dev_rows q, struct tern_dev_rows w,
                   int n_rows);
    /* out, q: [n_rows][n_heads * dim].  After append of the layer and compress of its spans, each once. */
    void (*sparse)(struct tern_dev *d, const struct tern_sparse *s, struct tern_dev_rows q, struct tern_dev_rows out,
                   int n_rows);
    /* m becomes the weights of the streams, x[row] = the streams' weighed sum; then, with the weights of the same m,
     * streams[row][k] = post[k] * t[row] + sum over j of matrix[j][k] * streams[row][j]. */
    void (*hyper_read)(struct tern_dev *d, const struct tern_hyper *h, struct tern_dev_rows m,
                       struct tern_dev_rows streams, struct tern_dev_rows x, int n_rows);
    void (*hyper_write)(struct tern_dev *d, const struct tern_hyper *h, struct tern_dev_rows streams,
                        struct tern_dev_rows m, struct tern_dev_rows t, int n_rows);
    /* y[i] = x[rows[i]], 0 <= i < n.  rows: lent as the step is. */
    void (*pick)(struct tern_dev *d, struct tern_dev_rows y, struct tern_dev_rows x, const int *rows, int n);
    void (*best)(struct tern_dev *d, const struct tern_best *b, int n_rows); /* NULL: the host looks at whole rows */
};

/* Opens the device of a name (dev/find.h); closes it, NULL is legal. */
int tern_dev_open(struct tern_dev **out, const char *name, struct tern_pool *pool, tern_error *err);
void tern_dev_close(struct tern_dev *d);
/* What went wrong with what was queued (`fault`), which must have been waited for; 0 where nothing did. */
int tern_dev_fault(struct tern_dev *d, bool keep, tern_error *err);

/* Sets of staging tiles that the layers of a step need, one for what is not read after its layer, and which of them
 * each layer has: set [n_layers of a cache], 0 before.  bytes: of the largest tile of any span, all KV heads. */
int tern_dev_stages(const struct tern_dev_limits *l, int *set, size_t *bytes);
/* New rows with a stride that operations like. */
int tern_dev_rows_new(struct tern_dev *d, struct tern_dev_rows *out, int n_rows, int width, tern_error *err);
/* host[row][width] of rows [row0, row0 + n) of x, densely, after sync. */
void tern_dev_rows_out(struct tern_dev *d, float *host, struct tern_dev_rows x, int row0, int n);

#endif

/* dev/split/split.h - a device made of two: what the files of this folder share.
 *
 *   memory.c   memory that has a part on each
 *   step.c     weights, caches and steps: what each of them is told
 *   ops.c      operations, on the one where the layer in hand is
 *   split.c    opening; the table
 *
 * Side 0 computes layers 0 .. cut-1, side 1 all others and what stands before and behind the layers.  The host's
 * handles are this device's; each side gets its own. */
#ifndef TERN_DEV_SPLIT_H
#define TERN_DEV_SPLIT_H

#include "dev/dev.h"

enum { TERN_SPLIT_SIDES = 2 };

/* Three kinds: mirrored (block 0), the same on both sides, of which the side in hand has what counts; divided, blocks
 * of which the bytes [from, to) are side 0's and the others side 1's, without holes; and not yet divided (waits). */
struct tern_dev_mem {
    struct tern_dev_mem *m[TERN_SPLIT_SIDES]; /* NULL: it has no part */
    size_t bytes, block, from, to;
    const void *host; /* adopted */
    bool waits;
};

struct tern_dev_form {
    const struct tern_dev_ops *ops; /* of its side */
    int side;
    struct tern_dev_weight w;
};

struct tern_split_ops {
    struct tern_dev_ops ops; /* first */
    const struct tern_dev_ops *side[TERN_SPLIT_SIDES];
};

struct tern_split {
    struct tern_dev dev;
    struct tern_dev *d[TERN_SPLIT_SIDES];
    int cut, now; /* the side in hand */
    /* Of the largest step: what each side is told of caches and jobs. */
    int n_caches, n_groups, max_jobs;
    struct tern_dev_cache *caches[TERN_SPLIT_SIDES];  /* [n_caches] */
    struct tern_dev_blocks *blocks[TERN_SPLIT_SIDES]; /* [n_caches][n_groups] */
    struct tern_dev_job *jobs[TERN_SPLIT_SIDES];      /* [max_jobs] */
    struct tern_dev_job from;                         /* of recode */
    float *crossing;                                  /* rows on their way from one side to the other */
    size_t crossing_floats;
};

static inline struct tern_split *tern_split_of(struct tern_dev *d)
{
    return (struct tern_split *)d;
}

/* ---- memory.c ---- */

/* Bytes of a block that are the side's; where byte x of the memory lies in the side's own, or would. */
size_t tern_split_part(const struct tern_dev_mem *m, int side);
size_t tern_split_at(const struct tern_dev_mem *m, int side, size_t x);
struct tern_dev_rows tern_split_rows(const struct tern_split *s, struct tern_dev_rows r);
struct tern_dev_vec tern_split_vec(const struct tern_split *s, struct tern_dev_vec v);
int tern_split_reserve(struct tern_dev *d, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err);
void tern_split_release(struct tern_dev *d, struct tern_dev_mem *m);
int tern_split_adopt(struct tern_dev *d, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err);
int tern_split_divide(struct tern_dev *d, struct tern_dev_mem *m, struct tern_dev_division *by, tern_error *err);
int tern_split_claim(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes, tern_error *err);
void tern_split_copy_in(struct tern_dev *d, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes);
void tern_split_copy_out(struct tern_dev *d, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes);
void tern_split_copy(struct tern_dev *d, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                     size_t from_at, size_t bytes);
void tern_split_zero(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);
void tern_split_discard(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);

/* ---- step.c ---- */

const struct tern_dev_weight *tern_split_weight(const struct tern_split *s, const struct tern_dev_weight *w);
int tern_split_weight_plan(struct tern_dev *d, struct tern_dev_weight *w, const struct tern_weight_source *from,
                           int64_t n, int64_t k, int stack, tern_error *err);
size_t tern_split_weight_bytes(const struct tern_dev_weight *w);
void tern_split_weight_about(const struct tern_dev_weight *w, struct tern_dev_about *out);
void tern_split_weight_place(struct tern_dev *d, struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at);
int tern_split_weight_load(struct tern_dev *d, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                           tern_error *err);
void tern_split_weight_drop(struct tern_dev *d, struct tern_dev_weight *w);
void tern_split_weight_out(struct tern_dev *d, float *host, const struct tern_dev_weight *w, int matrix, int row,
                           int n);
int tern_split_prepare(struct tern_dev *d, const struct tern_dev_limits *limits, tern_error *err);
void tern_split_close_step(struct tern_split *s);
void tern_split_layer(struct tern_dev *d, int layer, struct tern_dev_rows x, int n_rows);
void tern_split_begin(struct tern_dev *d, const struct tern_dev_step *step);
void tern_split_end(struct tern_dev *d);
void tern_split_recode(struct tern_dev *d, int layer, const struct tern_dev_job *from, struct tern_dev_rows k,
                       struct tern_dev_rows v);

/* ---- ops.c: the others of a step ---- */

/* What not both sides have is NULL. */
void tern_split_operations(struct tern_dev_ops *ops, const struct tern_dev_ops *first,
                           const struct tern_dev_ops *second);

#endif

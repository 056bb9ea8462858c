/* dev/cuda/rows.h - arguments of the kernels that work on one row at a time.  Strides in floats.  Read by C and by
 * CUDA. */
#ifndef TERN_DEV_CUDA_ROWS_H
#define TERN_DEV_CUDA_ROWS_H

#include "dev/cuda/products/products.h"
#include "dev/cuda/tables.h"
#include "dev/cuda/together/together.h"

struct tern_cuda_embed_args {
    struct tern_cuda_matrix w;
    uint64_t x, stride, rows;
    float scale;
    int32_t unused;
};

/* y = rmsnorm(x) * w.  plus: x = x + plus first, kept in sum; gather: of which cards have some columns each, through
 * their stages (n_cards 0: not).  q8: y as int8 too, row_bytes apart.  half: y as struct tern_cuda_half has it, too. */
struct tern_cuda_norm_args {
    uint64_t y, y_stride, x, x_stride, w;
    uint64_t plus, plus_stride, sum, sum_stride;
    uint64_t plus_w; /* where `plus` is normed itself first, in its place */
    uint64_t q8, row_bytes;
    uint64_t half, pitch, scale;
    int32_t n;
    float eps;
    int32_t lanes;       /* of q8 */
    int32_t plus_normed; /* 1: it is; with eps, too */
    struct tern_cuda_together gather;
};

enum tern_cuda_elementwise_op {
    TERN_CUDA_ADD,     /* y = a + b */
    TERN_CUDA_SCALE,   /* y = a * factor */
    TERN_CUDA_SOFTCAP, /* y = factor * tanh(a / factor) */
    TERN_CUDA_GATE     /* y = a * sigmoid(b[row][0]); and those of enum tern_cuda_gate */
};

struct tern_cuda_elementwise {
    uint64_t y, y_stride, a, a_stride, b, b_stride;
    uint64_t q8, row_bytes; /* y as int8 too; n is a multiple of 32 then */
    int32_t n, op;
    float factor;
    int32_t lanes; /* of q8 */
};

/* act(gate) * up, of prompt rows, as struct tern_cuda_half has it and nowhere else. */
struct tern_cuda_glu_half {
    uint64_t half, pitch, scale, gate, gate_stride, up, up_stride;
    int32_t n, op;
};

struct tern_cuda_rope {
    uint64_t cos, sin, freq, rows;
    int32_t half;
    float magnitude;
    int32_t n_rows, unused;
};

#define TERN_CUDA_HEADS 3

/* struct tern_heads of some heads of each row. */
struct tern_cuda_heads_set {
    uint64_t x, stride, norm_w, cos, sin;
    int32_t n_heads, dim, norm, norm_after, n_rot, interleaved, inverse, temper_span, temper_from;
    float eps, temper;
    int32_t unused;
};

/* Several sets of heads of the same rows; block (row, 8 heads). */
struct tern_cuda_heads_args {
    struct tern_cuda_heads_set set[TERN_CUDA_HEADS];
    uint64_t rows;
    int32_t n_sets, n_rows;
};

/* to[row][h * to_head + i] = from[rows ? rows[row] : row][h * from_head + i] */
struct tern_cuda_copy_args {
    uint64_t to, to_stride, to_head, from, from_stride, from_head, rows;
    int32_t n_heads, n;
};

#define TERN_CUDA_BEST      64   /* TERN_BEST */
#define TERN_CUDA_BEST_PART 8192 /* columns that a block looks at */

/* struct tern_best.  parts: [row][n_parts][n] keys, the best of each part of a row. */
struct tern_cuda_best_args {
    uint64_t x, stride, parts, values, ids;
    int32_t width, n_parts, n, unused;
};

/* 16 bytes each: [0, n) from `from` on are read, so many times.  behind: four bytes that nobody uses, which may be
 * written. */
struct tern_cuda_read_args {
    uint64_t from, n, behind, times;
};

#endif

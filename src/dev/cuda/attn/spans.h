/* dev/cuda/attn/spans.h - arguments of the kernels of spans.cu and sparse.cu.  Strides in floats.  Read by C and by
 * CUDA. */
#ifndef TERN_DEV_CUDA_ATTN_SPANS_H
#define TERN_DEV_CUDA_ATTN_SPANS_H

#include "dev/cuda/attn/args.h"

#define TERN_CUDA_SPARSE_ROWS  32  /* rows that a query meets at once */
#define TERN_CUDA_SPARSE_DIM   512 /* most dims of a row */
#define TERN_CUDA_CHOOSE_HEADS 8

/* struct tern_compress.  jobs: of the step; t.jobs counts rows of the span. */
struct tern_cuda_compress_args {
    struct tern_cuda_tables t;
    uint64_t jobs;
    uint64_t state_off; /* of the layer in a block of states, one for each cache: uint64_t [n_caches] */
    uint64_t state_at;  /* floats on from there */
    uint64_t x, x_stride, gate, gate_stride, ape, norm, freq;
    uint64_t out; /* [rows][dim] */
    int32_t rate, overlap, dim, channels, n_rot, grid;
    float eps;
    int32_t unused;
};

/* struct tern_choose, rows [row0, ..) of the step.  jobs: of the step; t.jobs counts rows of the span.  scores:
 * [row - row0][most]. */
struct tern_cuda_choose_args {
    struct tern_cuda_tables t;
    uint64_t jobs;
    struct tern_cuda_layer l;
    struct tern_cuda_stage stage;
    uint64_t q, q_stride, w, w_stride, scores, ids, counts;
    int32_t n_heads, dim, top, rate, row0, most, cache, unused;
};

/* struct tern_sparse, rows [row0, ..) of the step.  own: the window's layer; span: the compressed rows'; t.jobs counts
 * rows of the span.  rows: [row - row0][most][dim], what each query sees. */
struct tern_cuda_sparse_args {
    struct tern_cuda_tables t;
    uint64_t jobs; /* of the step */
    struct tern_cuda_layer own, span;
    struct tern_cuda_stage own_stage, span_stage;
    uint64_t q, q_stride, out, out_stride, sinks, rows;
    uint64_t ids, counts; /* 0: all */
    int32_t n_heads, dim, top, rate /* 0: the window alone */, row0, most, cache;
    float scale; /* in log2 units */
};

#endif

/* dev/cuda/attn/args.h - the cache as kernels see it: layers, units of work, and what kernels of attention take.
 *
 * Read by C and by CUDA; addresses are numbers of the card's memory. */
#ifndef TERN_DEV_CUDA_ATTN_ARGS_H
#define TERN_DEV_CUDA_ATTN_ARGS_H

#include <stdbool.h>
#include <stdint.h>
#include "dev/cuda/attn/room.h"
#include "dev/cuda/rows.h"
#include "dev/cuda/tables.h"

#define TERN_CUDA_PAGE   64
#define TERN_CUDA_RANGES 40                     /* most ranges of one decode row (tern_cuda_range_pages) */
#define TERN_CUDA_PARTS  (TERN_CUDA_RANGES + 1) /* its partial results: of ranges, then of what is raw */
#define TERN_CUDA_Q      8                      /* q rows (heads of rows) of one block of decode rows */
#define TERN_CUDA_PAIRS  8
/* Of a side that has codes: do they need no search? */
#define TERN_CUDA_SCALAR(side) ((side).form == TERN_CUDA_CODES && !(side).trellis)

/* How one side of a page holds its numbers. */
enum {
    TERN_CUDA_F16,    /* as the tile */
    TERN_CUDA_BF16,   /* as the tile, rounded to 8 bits when the page closes */
    TERN_CUDA_F32,    /* as the tile */
    TERN_CUDA_CODES,  /* kernel/kvq.h: 8, 4, 3, 2 bits */
    TERN_CUDA_AFFINE, /* codec/kv_group.c: scale and bias per 64 dims */
    TERN_CUDA_LEVELS, /* codec/kv_group.c: levels, scale per 16 dims */
    TERN_CUDA_FLOATS  /* codec/kv_group.c: E4M3 per 64 dims, or E2M1 per 32, a power of two as scale */
};

/* Key conditioning of one KV head (codec/codec.h). */
struct tern_cuda_cond {
    uint64_t mean, scale, unscale; /* f32 [dim] */
    uint64_t turns;                /* f32 [2 * n_pairs][64] */
    int32_t n_pairs, unused;
    struct {
        int32_t a, b, freq; /* freq: a row of the angles */
        float re, im;
    } pairs[TERN_CUDA_PAIRS];
};

/* One side of a layer.  A head of dim = parts * run dims, run a power of two, is rotated as kernel/kvq.h says. */
struct tern_cuda_side {
    int32_t form, bits, dim, trellis, n_prescale, key, raw32, rotated;
    int32_t run, parts;
    float norm, unit;
    uint64_t sign;   /* f32 [dim] */
    uint64_t across; /* f32 [parts][parts], or 0 */
    uint64_t cond;   /* struct tern_cuda_cond [n_heads], or 0 */
    uint64_t steps;  /* cos and sin of each frequency of pairs: f64 [n_freq][2] */
    uint64_t angles; /* cos and sin of frequency * position at pages: f64 [n_freq][max_pages][2] */
    int32_t max_pages, unused;
    float mid[16], level[16];
    int8_t entry[16], b[16], c[16];
};

struct tern_cuda_layer {
    struct tern_cuda_side k, v;
    int32_t n_heads, latent, window, chunked, first, recent, ring, group;
    uint64_t k_head_off, v_head_off, k_off, v_off, head_bytes, layer_off;
    uint64_t tile_v_off, tile_bytes, tile_layer_off;
    uint64_t sink_v_off, sink_bytes, sink_layer_off;
};

/* The rows of one job that lie in one page.  It has what kernels would have to look up in the job: a step's first loads
 * wait for nothing but themselves. */
struct tern_cuda_unit {
    int32_t job, page;
    int32_t row0, pos0, n_rows; /* of these rows: in the batch, in the sequence */
    int32_t stage;              /* staging tile of the page; -1: the step works in the sequence's own */
    uint32_t tile, sink;        /* the sequence's tiles, its first tokens */
    int32_t cache, tables;      /* as in the job */
    int32_t closed;             /* pages of it that were closed before the step */
    int32_t unused;
};

/* Where the tiles of a step lie.  Jobs that span pages work in staging tiles: job j from tile stage_of[j] on, -1 for
 * one that works in its own. */
struct tern_cuda_stage {
    uint64_t p, tile_bytes; /* of a page's tile: all heads */
    uint64_t stage_of;      /* int32 [n_jobs] */
};

/* append: the rows k, v of the pages of `units` into their tiles; raw pages that are full close. */
struct tern_cuda_append_args {
    struct tern_cuda_tables t;
    struct tern_cuda_layer l;
    struct tern_cuda_stage stage;
    struct tern_cuda_blocks tiles; /* of the cache */
    uint64_t units;                /* struct tern_cuda_unit */
    uint64_t k, v;
    uint64_t k_stride, v_stride; /* floats */
    uint64_t from;               /* recode: struct tern_cuda_recode, else 0 */
};

/* append, and what is done before to these rows' heads: blocks of KV heads, then of 8 others.  Set k of the heads is
 * the keys, set v the values, or -1: nothing is done to them. */
struct tern_cuda_append_heads_args {
    struct tern_cuda_append_args append;
    struct tern_cuda_heads_args heads;
    int32_t k, v;
    /* Set q as attention on codes multiplies it, too (attn/columns.cuh): [row][head], times q_scale; 0: not so. */
    uint64_t columns;
    int32_t q;
    float q_scale;
};

/* Rows out of a raw cache (recode). */
struct tern_cuda_recode {
    struct tern_cuda_job job;
    struct tern_cuda_table table;
    int32_t unused;
    struct tern_cuda_blocks pages, tiles;
    uint64_t numbers;
};

/* attention.  q rows are heads of rows; a KV head's `group` query heads are cut into n_split units of `heads`. */
struct tern_cuda_attn_args {
    struct tern_cuda_tables t;
    struct tern_cuda_layer l;
    struct tern_cuda_stage stage;
    uint64_t units;
    uint64_t q, out;
    uint64_t q_stride, out_stride; /* floats */
    uint64_t columns;              /* of q, where the kernel before has made them: attn/columns.cuh [row][head]; or 0 */
    uint64_t part;                 /* f32 [decode row][head][TERN_CUDA_PARTS][v.dim + 2] */
    int32_t n_heads, group, heads, n_split;
    int32_t rows;     /* of a block: q_rows / heads, or what the fast kernels take */
    int32_t q_rows;   /* most q rows of a block of attn/plain.cu: TERN_CUDA_Q, or half as many where there is no room */
    int32_t n_blocks; /* blocks of a unit */
    int32_t row0;     /* the first decode row */
    int32_t n_units;
    int32_t stages;        /* of a warp (attn/halves.cu), or pages or places of a block (attn/plain.cu, any.cu) */
    uint32_t one;          /* 1.0 in two halves, which no compiler may know */
    float q_scale, cap;    /* both in log2 units; cap 0: none */
    uint64_t q8, q8_bytes; /* decode rows of out as int8 too, q8_bytes apart; 0: not so */
    int32_t q8_lanes;
    /* Prompt rows of one pass: units of jobs from job0 on, kv_n KV heads from kv0 on, and where their closed pages lie
     * as halves (prompts/expand.cu): [page of a job, of the next][KV head]; 0: they do so in the cache. */
    int32_t job0, kv0, kv_n;
    int32_t pages, per_block; /* of all jobs of the pass, and how many a block of threads expands */
    int32_t staged;           /* do these go through shared memory? */
    int32_t eighths;          /* of decode rows on codes: ranges of a block of threads, in eighths of one */
    uint32_t inverse;         /* of heads, times 2^16: divisions are long */
    uint64_t expanded;
};

/* Attention of decode rows whose heads are not finished (attn/codes): what is done to them, and where the rows
 * of keys and values lie.  Sets q, k, v of heads; v -1: nothing is done to values. */
struct tern_cuda_codes_own_args {
    struct tern_cuda_attn_args attn;
    struct tern_cuda_heads_args heads;
    struct tern_cuda_blocks tiles; /* of the cache */
    uint64_t v, v_stride;          /* floats */
    uint64_t columns; /* where the shifts of conditioned keys are left (attn/columns.cuh), for who merges */
    int32_t set_q, set_k, set_v, unused;
};

/* Closed pages that the rows [pos0, pos0 + n_rows) of a sequence see, one or the other: how many, from *first on. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int
    tern_cuda_closed_pages(const struct tern_cuda_layer *l, int pos0, int n_rows, int *first)
{
    const int oldest = l->chunked ? pos0 / l->window * l->window : pos0 - l->window + 1;
    const int end = (pos0 + n_rows - 1) / TERN_CUDA_PAGE - l->recent + 1;
    *first = l->window && oldest > 0 ? oldest / TERN_CUDA_PAGE : 0;
    return end > *first ? end - *first : 0;
}

/* Blocks of threads (attn/codes) that go through the ranges of a row, eighths of a range each; and has what is
 * raw one more?  It decides who computes and never what. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int
    tern_cuda_codes_blocks(int ranges, int eighths)
{
    const int blocks = ranges * 8 / eighths;
    return blocks < 1 ? 1 : blocks;
}

#ifdef __CUDACC__
__host__ __device__
#endif
    static inline bool
    tern_cuda_codes_apart(int eighths)
{
    return eighths == 8;
}

/* Pages that one range of a decode row has: by the pages that it sees, so that there are enough ranges for a card and
 * never more than TERN_CUDA_RANGES, whatever else is in the batch.  Latents have one KV head, and so smaller ranges. */
#ifdef __CUDACC__
__host__ __device__
#endif
    static inline int
    tern_cuda_range_pages(const struct tern_cuda_layer *l, int pos)
{
    int pages = (l->window && l->window < pos ? l->window : pos) / TERN_CUDA_PAGE + 1, range = l->latent ? 2 : 8;
    while (range * (TERN_CUDA_RANGES - 2) < pages)
        range *= 2;
    return range;
}

#endif

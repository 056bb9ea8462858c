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
#include "base/err.h"
#include "base/pool.h"
#include "codec/codec.h"

/* One sequence's rows in this step, as attention on one layer sees them.  Rows are consecutive in the batch and in
 * position and share one role.  Page index = position / 64, absolute. */
struct tern_attn_job {
    int row0;   /* first row in the batch */
    int n_rows; /* rows; decode rows come one per job or several (drafts) */
    int pos0;   /* position of the first row */
    bool wide;  /* role: prompt rows */
    /* Closed pages of this layer's group: page index i (first_page <= i < first_page + n_pages) starts at
     * pages[i - first_page].  A row at position p attends to closed pages with index < p/64 only. */
    uint8_t *const *pages;
    int first_page, n_pages;
    const uint8_t *sink; /* the sequence's sink block, or NULL while no page is closed */
    /* Raw tiles: tile t holds page index tile_first + t for all layers' heads at tile_base + t*tile_stride +
     * layer->tile_layer_off (tile_layer_off is 0 in staging tiles).  A row's own page is always a raw tile that already
     * contains the row's keys and values; columns after it may hold anything finite. */
    const uint8_t *tile_base;
    size_t tile_stride;
    int tile_first;
    size_t tile_layer_off;
};

struct tern_attn_shape {
    const struct tern_kv_layer *kv;
    int n_heads;   /* query heads, a multiple of kv->n_heads */
    float scale;   /* softmax scale; log2(e) is added inside */
    float softcap; /* 0: none; else cap*tanh(score/cap) before the softmax */
};

struct tern_attn_scratch {
    uint8_t *p;   /* 64-byte aligned */
    size_t bytes; /* >= tern_cpu_attention_scratch(...) */
};

/* Scratch bytes for any step with at most max_rows rows, max_narrow of them decode rows, max_pages pages per sequence.
 */
size_t tern_cpu_attention_scratch(const struct tern_attn_shape *shape, int n_threads, int max_rows, int max_narrow,
                                  int max_pages);

/* out[row][n_heads * v.dim] = attention of q[row][n_heads * k.dim] (after RoPE, unscaled) for all rows of all jobs.
 * Row strides in floats.  Wide rows: pages decoded to f32 once per block of query rows of one own page.  Narrow rows:
 * on the codes, page ranges of TERN_ATTN_RANGE pages (aligned to absolute page index) spread over threads and merged in
 * ascending order.  Per row the order is: coded pages ascending, then sinks, then the own tile. */
#define TERN_ATTN_RANGE 16
void tern_cpu_attention(struct tern_pool *pool, const struct tern_attn_shape *shape, const struct tern_attn_job *jobs,
                        int n_jobs, const float *q, size_t q_stride, float *out, size_t out_stride,
                        struct tern_attn_scratch scratch);

#endif

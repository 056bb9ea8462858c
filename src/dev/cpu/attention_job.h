/* dev/cpu/attention_job.h - attention of the CPU by itself: for the device, and for tests. */
#ifndef TERN_DEV_CPU_ATTENTION_JOB_H
#define TERN_DEV_CPU_ATTENTION_JOB_H

#include "base/block.h"
#include "base/pool.h"
#include "codec/codec.h"

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

/* An attention shape as this machine computes it. */
struct tern_cpu_shape {
    const struct tern_kv_layer *kv;
    int n_heads;   /* query heads, a multiple of kv->n_heads */
    float scale;   /* softmax scale; log2(e) is added inside */
    float softcap; /* 0: none; else cap*tanh(score/cap) before the softmax */
    bool bf16;     /* wide rows multiply in the bf16 class */
    bool int16;    /* else, where keys and values are codes of kernel/kvq.h, in 16-bit integers */
};

struct tern_attn_scratch {
    uint8_t *p;   /* 64-byte aligned */
    size_t bytes; /* >= tern_cpu_attention_scratch(...) */
};

/* Scratch bytes for any step with at most max_rows rows, max_narrow of them decode rows, max_pages pages per sequence.
 */
size_t tern_cpu_attention_scratch(const struct tern_cpu_shape *shape, int n_threads, int max_rows, int max_narrow,
                                  int max_pages);

/* out[row][n_heads * v.dim] = attention of q[row][n_heads * k.dim] ([v.dim + k.dim] with kv->latent; after RoPE,
 * unscaled) for all rows of all jobs. Row strides in floats.  Wide rows: pages decoded once per block of query rows of
 * one own page, to f32, to 16-bit entries, or to bf16 tiles (softmax in f32 in between).  Latent layers decode pages to
 * f32 for both kinds of rows.  Narrow rows: on the codes, page ranges of TERN_ATTN_RANGE pages (aligned to absolute
 * page index) spread over threads and merged in ascending order.  Per row the order is: coded pages ascending, then
 * sinks, then raw tiles ascending. */
#define TERN_ATTN_RANGE 16
void tern_cpu_attend(struct tern_pool *pool, const struct tern_cpu_shape *shape, const struct tern_attn_job *jobs,
                     int n_jobs, const float *q, size_t q_stride, float *out, size_t out_stride,
                     struct tern_attn_scratch scratch);

#endif

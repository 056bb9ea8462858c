/* dev/cpu/attention_job.h - attention of the CPU by itself: for the device, and for tests. */
#ifndef TERN_DEV_CPU_ATTENTION_JOB_H
#define TERN_DEV_CPU_ATTENTION_JOB_H

#include "dev/dev.h"

/* An attention shape as this machine computes it. */
struct tern_cpu_shape {
    const struct tern_kv_layer *kv;
    int n_heads;
    float scale, softcap;
    bool bf16; /* wide rows multiply in the bf16 class */
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
 * one own page, to f32 or to bf16 tiles (softmax in f32 in between).  Latent layers decode pages to f32 for both kinds
 * of rows.  Narrow rows: on the codes, page ranges of TERN_ATTN_RANGE pages (aligned to absolute page index) spread
 * over threads and merged in ascending order.  Per row the order is: coded pages ascending, then sinks, then raw tiles
 * ascending. */
#define TERN_ATTN_RANGE 16
void tern_cpu_attention(struct tern_pool *pool, const struct tern_cpu_shape *shape, const struct tern_attn_job *jobs,
                        int n_jobs, const float *q, size_t q_stride, float *out, size_t out_stride,
                        struct tern_attn_scratch scratch);

#endif

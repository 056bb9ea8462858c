/* dev/cpu/cpu.h - what the files of the CPU device share. */
#ifndef TERN_DEV_CPU_H
#define TERN_DEV_CPU_H

#include "dev/cpu/attention_job.h"
#include "dev/dev.h"

/* Quantised decode rows. */
struct tern_q8_buffer {
    uint8_t *bytes;
    struct tern_q8_row *rows; /* in them */
};

/* A row counts once per expert that it goes to: a pair.  Prompt rows' pairs come first, then decode rows', each sorted
 * by expert and then by row. */
struct tern_expert_scratch {
    float *x, *gate, *up;     /* [pairs][...] what experts read, and later what they answer; what is in between */
    struct tern_q8_buffer q8; /* decode rows' pairs */
    uint16_t *packed;         /* prompt rows' pairs, every expert's in bands of their own */
    int32_t *row_of, *at;     /* [pairs] which element of ids a pair is; the pair of an element of ids */
    int32_t *count;           /* [2][experts] pairs of prompt rows, of decode rows */
    struct tern_expert_group *groups; /* [experts] that have pairs */
};

struct tern_dev_mem {
    uint8_t *p;
    size_t bytes;
    enum { CPU_ALLOCATED, CPU_RESERVED, CPU_ADOPTED } from;
};

struct tern_cpu {
    struct tern_dev dev;
    struct tern_pool *pool; /* borrowed */
    bool packs;             /* products of prompt rows in the class of the machine (kernel/prompt.h) */
    bool bf16;              /* attention of prompt rows in bf16 */
    struct tern_q8_buffer q8;
    float *gemm_scratch;     /* [threads][TERN_GEMM_SCRATCH] */
    uint16_t *packed_x;      /* prompt rows; this and the next only with packs */
    uint8_t *prompt_scratch; /* [threads][TERN_PROMPT_SCRATCH] */
    uint8_t *encode_scratch; /* [threads][TERN_KV_SCRATCH] */
    struct tern_attn_scratch attention;
    struct tern_expert_scratch experts;
    struct tern_q8_buffer stack;   /* decode rows of stacks, head by head */
    struct tern_dev_limits limits; /* but for the shapes */
    size_t bytes;                  /* of all of the above */
};

extern const struct tern_dev_ops tern_dev_cpu;

static inline struct tern_cpu *tern_cpu_of(struct tern_dev *d)
{
    return (struct tern_cpu *)d;
}

/* memory.c: what tern_dev_ops says of them. */
int tern_cpu_reserve(struct tern_dev *dev, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err);
int tern_cpu_adopt(struct tern_dev *dev, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err);
void tern_cpu_release(struct tern_dev *dev, struct tern_dev_mem *m);
void tern_cpu_copy_in(struct tern_dev *dev, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes);
void tern_cpu_copy_out(struct tern_dev *dev, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes);
void tern_cpu_copy(struct tern_dev *dev, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                   size_t from_at, size_t bytes);
void tern_cpu_zero(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes);
void tern_cpu_discard(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes);

/* tern_dev_ops.append. */
void tern_cpu_append(struct tern_dev *dev, const struct tern_kv_layer *l, const struct tern_append_job *jobs,
                     int n_jobs, const float *k, size_t k_stride, const float *v, size_t v_stride);

/* tern_dev_ops.keep. */
void tern_cpu_keep(struct tern_dev *dev, const struct tern_kv_layer *l, const struct tern_append_job *jobs, int n_jobs);

/* tern_dev_ops.raw_rows. */
void tern_cpu_raw_rows(struct tern_dev *dev, const struct tern_kv_layer *l, const struct tern_attn_job *job, float *k,
                       size_t k_stride, float *v, size_t v_stride);

/* tern_dev_ops.stack. */
void tern_cpu_stack(struct tern_dev *dev, const struct tern_stack *s, int n_rows, int n_wide);

/* tern_dev_ops.route. */
void tern_cpu_route(struct tern_dev *dev, const struct tern_route *r, const float *logits, size_t stride, int32_t *ids,
                    float *weights, int n_rows);

/* tern_dev_ops.experts. */
void tern_cpu_experts(struct tern_dev *dev, const struct tern_experts *e, float *y, size_t y_stride, const float *x,
                      size_t x_stride, const int32_t *ids, const float *weights, int n_rows, int n_wide);

/* tern_dev_ops.delta. */
void tern_cpu_delta(struct tern_dev *dev, const struct tern_delta *l, const struct tern_delta_job *jobs, int n_jobs,
                    const struct tern_delta_io *io, int n_rows);

/* d->experts, by d->limits. */
int tern_cpu_experts_open(struct tern_cpu *d, tern_error *err);
void tern_cpu_experts_close(struct tern_cpu *d);

/* Calls row(args, r) for every row: here when n_rows * n elements are little work, else on the pool. */
void tern_cpu_each_row(struct tern_cpu *d, void (*row)(const void *args, int row), const void *args, int n_rows, int n);

/* ---- products ---- */

/* Rows of k inputs, k a multiple of 64; counted in d->bytes. */
int tern_cpu_q8_new(struct tern_cpu *d, struct tern_q8_buffer *b, size_t rows, size_t k, tern_error *err);
void tern_cpu_q8_free(struct tern_q8_buffer *b);
/* x into row r. */
void tern_cpu_quantize(const struct tern_q8_buffer *b, int r, const float *x, int k);

/* What a product reads: prompt rows [0, n_wide), then decode rows. */
struct tern_cpu_rows {
    const float *x;
    size_t stride;
    const uint16_t *packed;       /* the prompt rows, or NULL: they are computed in f32 */
    const struct tern_q8_row *q8; /* the decode rows, first of them first */
    int n, n_wide;
};

/* y[row][16*panel0 .. 16*panel1) = x[row] . w, every row in its class.  worker: whose scratch. */
void tern_cpu_product(struct tern_cpu *d, float *y, size_t y_stride, const struct tern_cpu_rows *r,
                      const struct tern_packed *w, int panel0, int panel1, int worker);

/* Panels of w in one task.  n_wide: prompt rows; all_panels: of all that runs at once. */
int tern_cpu_panels_per_task(const struct tern_cpu *d, const struct tern_packed *w, int n_wide, int all_panels);

#endif

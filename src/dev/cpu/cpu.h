/* dev/cpu/cpu.h - what the files of the CPU device share. */
#ifndef TERN_DEV_CPU_H
#define TERN_DEV_CPU_H

#include "dev/dev.h"

/* tern_dev_ops.append. */
void tern_cpu_append(struct tern_dev *d, const struct tern_kv_layer *l, const struct tern_append_job *jobs, int n_jobs,
                     const float *k, size_t k_stride, const float *v, size_t v_stride);

/* tern_dev_ops.keep. */
void tern_cpu_keep(struct tern_dev *d, const struct tern_kv_layer *l, const struct tern_append_job *jobs, int n_jobs);

/* tern_dev_ops.raw_rows. */
void tern_cpu_raw_rows(struct tern_dev *d, const struct tern_kv_layer *l, const struct tern_attn_job *job, float *k,
                       size_t k_stride, float *v, size_t v_stride);

/* tern_dev_ops.stack. */
void tern_cpu_stack(struct tern_dev *d, const struct tern_stack *s, int n_rows, int n_wide);

/* tern_dev_ops.route. */
void tern_cpu_route(struct tern_dev *d, const struct tern_route *r, const float *logits, size_t stride, int32_t *ids,
                    float *weights, int n_rows);

/* tern_dev_ops.experts. */
void tern_cpu_experts(struct tern_dev *d, const struct tern_experts *e, float *y, size_t y_stride, const float *x,
                      size_t x_stride, const int32_t *ids, const float *weights, int n_rows, int n_wide);

/* tern_dev_ops.delta. */
void tern_cpu_delta(struct tern_dev *d, const struct tern_delta *l, const struct tern_delta_job *jobs, int n_jobs,
                    const struct tern_delta_io *io, int n_rows);

/* d->experts, by d->limits. */
int tern_cpu_experts_open(struct tern_dev *d, tern_error *err);
void tern_cpu_experts_close(struct tern_dev *d);

/* Calls row(args, r) for every row: here when n_rows * n elements are little work, else on the pool. */
void tern_cpu_each_row(struct tern_dev *d, void (*row)(const void *args, int row), const void *args, int n_rows, int n);

/* ---- products ---- */

/* Rows of k inputs, k a multiple of 64; counted in d->bytes. */
int tern_cpu_q8_new(struct tern_dev *d, struct tern_q8_buffer *b, size_t rows, size_t k, tern_error *err);
void tern_cpu_q8_free(struct tern_q8_buffer *b);
/* x into row r. */
void tern_cpu_quantize(const struct tern_q8_buffer *b, int r, const float *x, int k);

/* What a product reads: prompt rows [0, n_wide), then decode rows. */
struct tern_cpu_rows {
    const float *x;
    size_t stride;
    const uint16_t *bf16;         /* the prompt rows packed, or NULL: they are computed in f32 */
    const struct tern_q8_row *q8; /* the decode rows, first of them first */
    int n, n_wide;
};

/* y[row][16*panel0 .. 16*panel1) = x[row] . w, every row in its class.  worker: whose scratch. */
void tern_cpu_product(struct tern_dev *d, float *y, size_t y_stride, const struct tern_cpu_rows *r,
                      const struct tern_packed *w, int panel0, int panel1, int worker);

/* Panels of w in one task.  n_wide: prompt rows; all_panels: of all that runs at once. */
int tern_cpu_panels_per_task(const struct tern_dev *d, const struct tern_packed *w, int n_wide, int all_panels);

#endif

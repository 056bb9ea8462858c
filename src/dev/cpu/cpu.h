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

#endif

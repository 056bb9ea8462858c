/* dev/cpu/spans.h - spans of compressed rows on the CPU, as the files that work on them share it.  Private to them. */
#ifndef TERN_DEV_CPU_SPANS_H
#define TERN_DEV_CPU_SPANS_H

#include "dev/cpu/cpu.h"

/* Compressed rows that n tokens have completed. */
static inline int tern_span_rows(int n_tokens, int rate)
{
    return n_tokens / rate;
}

/* The raw tile of one page, which is open for some row of the job or was when the step began. */
static inline const uint8_t *tern_span_tile(const struct tern_kv_layer *kv, const struct tern_attn_job *job, int page)
{
    if (page >= job->tile_first)
        return job->tile_base + (size_t)(page - job->tile_first) * job->tile_stride + job->tile_layer_off;
    return job->ring + (size_t)(page % kv->ring) * (size_t)kv->n_heads * kv->tile_bytes;
}

/* A closed page's only head. */
static inline const uint8_t *tern_span_page(const struct tern_kv_layer *kv, const struct tern_attn_job *job, int page)
{
    TERN_ASSERT(page >= job->first_page && page < job->first_page + job->n_pages);
    return tern_block_at(job->page_mem, job->pages[page - job->first_page]) + kv->layer_off;
}

/* What the jobs of the step in hand are on a span of rows: positions count rows, row0 and n_rows are those of the rows
 * that become complete, numbered through all jobs. */
const struct tern_cpu_span *tern_cpu_span_fill(struct tern_cpu_step *t, int span);
/* The same of a layer's own keys and values. */
void tern_cpu_step_fill(struct tern_cpu_step *t, int layer);
/* Which job (of those that fill made) has a row of the batch. */
static inline int tern_cpu_job_of(const struct tern_cpu_step *t, int row)
{
    return t->row_job[row];
}

static inline const struct tern_dev_job *tern_cpu_dev_job(const struct tern_cpu_step *t, int job)
{
    return &t->s.jobs[t->job_of[job]];
}

static inline const struct tern_kv_layer *tern_cpu_kv(const struct tern_cpu_step *t, int job, int span)
{
    return &t->s.caches[tern_cpu_dev_job(t, job)->cache].layers[span];
}

/* Scratch of a thread; numbers for the candidates of at least one row, of so many rows. */
size_t tern_cpu_choose_scratch(int heads, int dim);
size_t tern_cpu_choose_candidates(int top, int max_rows);

#endif

/* dev/cuda/attn/state.h - what the host keeps for append and attention.  Private to dev/cuda/attn. */
#ifndef TERN_DEV_CUDA_ATTN_STATE_H
#define TERN_DEV_CUDA_ATTN_STATE_H

#include "dev/cuda/attn/args.h"
#include "dev/cuda/cuda.h"

/* Units of a step on the card, and most rows of one. */
struct tern_cuda_list_of {
    tern_cu_address p;
    int n, rows;
};

struct tern_cuda_lists {
    struct tern_cuda_list_of all, closing, staged, wide, narrow;
};

/* What caches hold at one rate: rows of that many tokens each, the tokens themselves first of all.  Jobs here count
 * rows: positions, and row0 and n_rows are those that the step completes, numbered through all jobs. */
struct tern_cuda_rate {
    int rate, n_rows;                   /* rows of all jobs */
    const struct tern_cuda_job *jobs;   /* [n_jobs] */
    int32_t *stage_of;                  /* [n_jobs] */
    struct tern_cuda_job *counted;      /* room for these; NULL: tokens, whose jobs are the step's */
    tern_cu_address table, stage_table; /* of jobs and stage_of on the card */
    struct tern_cuda_lists *lists;      /* [n_caches] */
};

#define TERN_CUDA_RATES 4

struct tern_cuda_attn {
    int n_caches, n_layers, n_spans;
    struct tern_cuda_layer *layers; /* [n_caches][n_spans] */
    tern_cu_address constants;      /* what they point to */
    tern_cu_address stage, part;
    tern_cu_address columns; /* queries of decode rows (attn/columns.cuh); 0: no layer needs them */
    int part_rows;           /* decode rows that part has room for */
    size_t expanded_bytes;   /* of prompt rows' closed pages as halves (prompts/expand.cu); 0: no layer needs them */
    size_t stage_tile_bytes, stage_tiles; /* of one set */
    int *stage_set;                       /* [n_spans] */
    int *rate_of;                         /* [n_spans] index of rates */
    bool *waits;                          /* [n_spans] appended, and staging tiles are not the sequences' own yet */
    struct tern_cuda_unit *units;         /* room for a list */
    size_t max_units;
    int n_rates;
    struct tern_cuda_rate rates[TERN_CUDA_RATES]; /* of the step in hand */
    struct {
        tern_cu_address made, rows, scores; /* rows that are complete, rows of a query, scores to choose by */
        size_t rows_bytes, scores_bytes;
    } spans;
};

/* ---- what ops.c has for spans.c ---- */

const struct tern_cuda_layer *tern_cuda_layer_at(const struct tern_cuda *d, int cache, int span);
struct tern_cuda_rate *tern_cuda_rate_of(const struct tern_cuda *d, int span);
struct tern_cuda_stage tern_cuda_stage_at(const struct tern_cuda *d, int span);
/* New rows of all jobs into the tiles of a span; pages that are full are encoded.  A row of several tokens is its
 * values and then what a cache keeps apart, or all of it is a key: k is v. */
void tern_cuda_append_at(struct tern_cuda *d, int span, tern_cu_address k, size_t k_stride, tern_cu_address v,
                         size_t v_stride);
/* Staging tiles become the sequences' own. */
void tern_cuda_keep(struct tern_cuda *d, int span);

/* spans.c: scratch, by the layers; given back by close. */
int tern_cuda_spans_open(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err);

/* jobs.c: staging tiles and lists of units. */
int tern_cuda_jobs_open(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err);
void tern_cuda_jobs_close(struct tern_cuda *d);
/* Pages that a job's rows lie in. */
static inline int tern_cuda_pages_of(const struct tern_cuda_job *j)
{
    return j->n_rows ? (j->pos0 + j->n_rows - 1) / TERN_PAGE - j->pos0 / TERN_PAGE + 1 : 0;
}

/* Rows of a job in one of these pages. */
static inline int tern_cuda_rows_in(const struct tern_cuda_job *j, int page)
{
    const int end = j->pos0 + j->n_rows, from = page * TERN_PAGE > j->pos0 ? page * TERN_PAGE : j->pos0;
    return (page + 1) * TERN_PAGE < end ? (page + 1) * TERN_PAGE - from : end - from;
}

/* t->layers and t->constants (layers.c). */
int tern_cuda_attn_layers(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err);

#endif

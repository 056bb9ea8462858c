/* dev/cpu/cpu.h - what the files of the CPU device share.
 *
 *   device.c       opening, scratch for the largest step, the table of operations
 *   memory.c       memory: the host's own
 *   weights.c      weights: panels of kernel/gemm.h
 *   step.c         jobs of the step in hand as each layer sees them: pages, staging tiles, states
 *   append.c       keys and values into tiles and codes
 *   attention*.c   attention on codes and tiles
 *   compress.c     rows of several tokens, and states of tokens that wait for theirs
 *   choose.c       which of those a row sees
 *   sparse.c       attention to them and to a window
 *   elementwise.c products.c network.c stack.c experts.c delta.c hyper.c grid.c   the other operations */
#ifndef TERN_DEV_CPU_H
#define TERN_DEV_CPU_H

#include "dev/cpu/attention_job.h"
#include "dev/cpu/ops.h"
#include "dev/dev.h"

struct tern_dev_mem {
    uint8_t *p;
    size_t bytes;
    enum { CPU_ALLOCATED, CPU_RESERVED, CPU_ADOPTED } from;
};

struct tern_dev_form {
    struct tern_packed m; /* the first matrix of the stack */
};

/* Quantised decode rows.  With 16 bits a row is two (tern_gemm_kernels.narrow16). */
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

/* Where the new keys and values of one job go in one layer; the attention job tells positions and pages. */
struct tern_append_job {
    const struct tern_attn_job *at;
    uint8_t *tile_base; /* as at->tile_base, writable */
    uint8_t *seq_tile;  /* the sequence's own tile block; differs from tile_base when the job is staged */
    uint8_t *sink;      /* written when page 0 closes; may be NULL otherwise */
    bool staged;        /* the rows span pages: tiles live in staging, the first and last exchange with seq_tile */
};

struct tern_delta_job {
    int row0, n_rows;
    float *state; /* of the sequence, read and written */
    struct {
        float *to; /* what the state is after `at` rows is written here besides */
        int at;
    } marks[TERN_DEV_MARKS];
    int n_marks;
};

/* A span of rows on the jobs of the step in hand: rows that are values, or keys alone. */
struct tern_cpu_span {
    int span; /* whose rows these are; -1: nobody's */
    struct tern_attn_job *at;
    struct tern_append_job *app;
    uint8_t *stage;
    bool waits; /* its newest tiles are in staging */
};

/* The step in hand (step.c). */
struct tern_cpu_step {
    struct tern_cpu_span spans[2]; /* of values, of keys alone */
    int *row_job;                  /* [max_rows] */
    struct tern_dev_step s;
    int *job_of;                 /* [max_jobs] which job of the step each of the next is: those of one cache together */
    int *cache_end;              /* [n_caches] where the jobs of a cache end */
    int *stage_of;               /* [max_jobs] first staging tile, or -1 */
    int layer;                   /* that the next are of; -1: none */
    struct tern_attn_job *at;    /* [max_jobs] */
    struct tern_append_job *app; /* [max_jobs] */
    struct tern_delta_job *delta; /* [max_jobs] */
    uint8_t *stage;               /* raw tiles of jobs that span pages */
    size_t stage_tiles, stage_tile_bytes;
    int *stage_set; /* [n_layers] set of staging tiles: layers that others attend to have their own, the rest share 0 */
    bool *waits;    /* [n_layers] the layer's newest tiles are in staging until the step ends */
    int n_layers;
};

struct tern_cpu {
    struct tern_dev dev;
    struct tern_pool *pool;                   /* borrowed */
    const struct tern_prompt_kernels *prompt; /* products of prompt rows in a class of their own; NULL: in f32 */
    bool bf16;                                /* attention of prompt rows in bf16 */
    bool int16;                               /* or on pages of codes in 16-bit integers */
    int columns;                              /* rows of a tern_q8_buffer that a decode row is: 1, with 16 bits 2 */
    struct tern_q8_buffer q8;
    float *gemm_scratch;     /* [threads][TERN_GEMM_SCRATCH] */
    uint16_t *packed_x;      /* prompt rows; this and the next two only with `prompt` */
    uint16_t *gated;         /* what networks make of them on the way to their last product; as large */
    uint8_t *prompt_scratch; /* [threads][TERN_PROMPT_SCRATCH] */
    uint8_t *encode_scratch; /* [threads][TERN_KV_SCRATCH] */
    struct tern_attn_scratch attention;
    struct tern_expert_scratch experts;
    struct tern_q8_buffer stack; /* decode rows of stacks, head by head */
    float *compressed;           /* rows that become complete in a step */
    uint8_t *sparse;             /* [threads] */
    size_t sparse_bytes;
    uint64_t *chosen; /* candidates: [rows][pieces][most chosen] */
    size_t n_chosen;
    struct tern_cpu_step step;
    struct tern_dev_limits limits; /* but for what it points to */
    size_t bytes;                  /* of all of the above */
};

extern const struct tern_dev_ops tern_dev_cpu;

static inline struct tern_cpu *tern_cpu_of(struct tern_dev *d)
{
    return (struct tern_cpu *)d;
}

/* ---- handles ---- */

static inline float *tern_cpu_f32(struct tern_dev_rows r)
{
    return (float *)(void *)r.mem->p + r.at;
}

static inline float *tern_cpu_vec(struct tern_dev_vec v)
{
    return v.mem ? (float *)(void *)v.mem->p + v.at : NULL;
}

static inline struct tern_blocks tern_cpu_blocks(struct tern_dev_blocks b)
{
    return (struct tern_blocks){b.mem ? b.mem->p : NULL, b.bytes};
}

/* ---- between the files ---- */

/* d->step, by the limits; its memory. */
int tern_cpu_step_open(struct tern_cpu *d, const struct tern_dev_limits *l, tern_error *err);
void tern_cpu_step_close(struct tern_cpu *d);

struct tern_cpu_shape tern_cpu_shape_of(const struct tern_cpu *d, const struct tern_dev_cache *cache,
                                        const struct tern_attn_shape *s);

/* New keys and values into the tiles of one cache's jobs, full pages into codes. */
void tern_cpu_append_jobs(struct tern_cpu *d, const struct tern_kv_layer *l, const struct tern_append_job *jobs,
                          int n_jobs, const float *k, size_t k_stride, const float *v, size_t v_stride);
/* After attention: the newest tiles of staged jobs become the sequences' own.  Not before, for they replace tiles that
 * the first rows of the step still read. */
void tern_cpu_keep(const struct tern_kv_layer *l, const struct tern_append_job *jobs, int n_jobs);
/* The inverse of append: k, v rows of the job's positions as attention after the sequence's last token reads them. Raw
 * tiles and first tokens are what they are, codes what tern_kv_values makes of them; rows of pages that a window has
 * dropped are 0. */
void tern_cpu_value_rows(struct tern_cpu *d, const struct tern_kv_layer *l, const struct tern_attn_job *job, float *k,
                         size_t k_stride, float *v, size_t v_stride);

/* tern_dev_ops.delta on these jobs. */
void tern_cpu_delta_jobs(struct tern_cpu *d, const struct tern_delta *l, const struct tern_delta_job *jobs, int n_jobs,
                         const struct tern_delta_io *io, int n_rows);

/* One row of n, of the operation that is called so. */
void tern_cpu_clamp_row(float *gate, float *up, int n, float limit);
void tern_cpu_to_grid(float *x, int n, enum tern_grid grid);

/* d->compressed, sparse and chosen, by d->limits. */
int tern_cpu_spans_open(struct tern_cpu *d, int max_pages, tern_error *err);
/* After attention to a layer and its spans. */
void tern_cpu_spans_keep(struct tern_cpu *d, int layer);

/* d->experts, by d->limits. */
int tern_cpu_experts_open(struct tern_cpu *d, tern_error *err);
void tern_cpu_experts_close(struct tern_cpu *d);

/* Calls row(args, r) for every row: here when n_rows * n elements are little work, else on the pool. */
void tern_cpu_each_row(struct tern_cpu *d, void (*row)(const void *args, int row), const void *args, int n_rows, int n);

/* Rows of k inputs, k a multiple of 64; counted in d->bytes. */
int tern_cpu_q8_new(struct tern_cpu *d, struct tern_q8_buffer *b, size_t rows, size_t k, tern_error *err);
void tern_cpu_q8_free(struct tern_q8_buffer *b);
/* x into row r; where that is. */
void tern_cpu_quantize(const struct tern_cpu *d, const struct tern_q8_buffer *b, int r, const float *x, int k);
static inline const struct tern_q8_row *tern_cpu_q8_row(const struct tern_cpu *d, const struct tern_q8_buffer *b,
                                                        size_t r)
{
    return b->rows + r * (size_t)d->columns;
}

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

/* Rows as products read them: n prompt rows x packed into d->packed_x, n decode rows x quantised into d->q8. */
void tern_cpu_pack_rows(struct tern_cpu *d, const float *x, size_t stride, int n, int k);
void tern_cpu_quantize_rows(struct tern_cpu *d, const float *x, size_t stride, int n, int k);

/* All products of m, whose rows are ready. */
void tern_cpu_multiply(struct tern_cpu *d, const struct tern_matmul *m, int n_m, const struct tern_cpu_rows *rows);

/* Panels of w in one task.  n_wide: prompt rows; all_panels: of all that runs at once. */
int tern_cpu_panels_per_task(const struct tern_cpu *d, const struct tern_packed *w, int n_wide, int all_panels);

/* Panels cut into tasks of whole units, as even as they go, and as many tasks for every thread where there is more than
 * one for each.  about: panels of a task.  Task i has panels [at(i), at(i + 1)). */
struct tern_cpu_cut {
    int panels, unit, tasks;
};
struct tern_cpu_cut tern_cpu_cut_into(const struct tern_cpu *d, int panels, int unit, int about);
int tern_cpu_cut_at(const struct tern_cpu_cut *c, int task);

#endif

/* Products of rows with packed weights. */
#include "base/mem.h"
#include "dev/cpu/cpu.h"
#include "kernel/pack.h"

int tern_cpu_q8_new(struct tern_cpu *d, struct tern_q8_buffer *b, size_t rows, size_t k, tern_error *err)
{
    int rc = 0;
    rows *= (size_t)d->columns;
    TERN_TRY(tern_alloc(&b->bytes, rows, tern_q8_bytes(k), err));
    TERN_TRY(tern_alloc(&b->rows, rows, sizeof *b->rows, err));
    for (size_t r = 0; r < rows; r++)
        b->rows[r] = tern_q8_at(b->bytes + r * tern_q8_bytes(k), k);
    d->bytes += rows * (tern_q8_bytes(k) + sizeof *b->rows);
out:
    return rc;
}

void tern_cpu_q8_free(struct tern_q8_buffer *b)
{
    tern_free(b->bytes);
    tern_free(b->rows);
}

void tern_cpu_quantize(const struct tern_cpu *d, const struct tern_q8_buffer *b, int r, const float *x, int k)
{
    const struct tern_q8_row *row = tern_cpu_q8_row(d, b, (size_t)r);
    const uint8_t *base = b->bytes;
    int8_t *q = (int8_t *)(b->bytes + ((const uint8_t *)row->q - base));
    float *scale = (float *)(void *)(b->bytes + ((const uint8_t *)(const void *)row->scale - base));
    int32_t *sum16 = (int32_t *)(void *)(b->bytes + ((const uint8_t *)(const void *)row->sum16 - base));
    if (d->columns == 1)
        tern_k.gemm.quantize(q, scale, sum16, x, k);
    else
        tern_k.gemm.quantize16(q, q + (row[1].q - row[0].q), scale, sum16, x, k);
}

struct quantize_args {
    struct tern_cpu *d;
    const float *x;
    size_t stride;
    int k;
};

static void quantize_row(const void *args, int r)
{
    const struct quantize_args *a = args;
    tern_cpu_quantize(a->d, &a->d->q8, r, a->x + (size_t)r * a->stride, a->k);
}

/* One band of prompt rows. */
struct pack_args {
    struct tern_cpu *d;
    const float *x;
    size_t stride;
    int n_rows, k;
};

static void pack_task(void *ctx, int task, int worker)
{
    const struct pack_args *a = ctx;
    (void)worker;
    int r0 = task * TERN_BAND, n = a->n_rows - r0 < TERN_BAND ? a->n_rows - r0 : TERN_BAND;
    a->d->prompt->pack(a->d->packed_x + (size_t)task * a->d->prompt->band(a->k), a->x + (size_t)r0 * a->stride,
                       a->stride, n, a->k);
}

void tern_cpu_pack_rows(struct tern_cpu *d, const float *x, size_t stride, int n, int k)
{
    struct pack_args a = {d, x, stride, n, k};
    tern_pool_run(d->pool, pack_task, &a, (n + TERN_BAND - 1) / TERN_BAND);
}

void tern_cpu_quantize_rows(struct tern_cpu *d, const float *x, size_t stride, int n, int k)
{
    struct quantize_args a = {d, x, stride, k};
    tern_cpu_each_row(d, quantize_row, &a, n, k);
}

struct matmul_work {
    struct tern_cpu *d;
    const struct tern_matmul *m;
    struct tern_cpu_rows rows;
    struct tern_cpu_cut cut; /* of the panels of all products, one after the other */
};

void tern_cpu_product(struct tern_cpu *d, float *y, size_t y_stride, const struct tern_cpu_rows *r,
                      const struct tern_packed *w, int panel0, int panel1, int worker)
{
    /* Rows [0, n_packed) in the class of the machine, [n_packed, n_wide) in f32, the rest quantised. */
    const bool integer = tern_codes_integer(w->codes);
    int n_packed = r->packed && (integer || d->prompt->floats) ? r->n_wide : 0, n_wide = integer ? r->n_wide : r->n;
    if (n_packed)
        d->prompt->product(y, y_stride, r->packed, n_packed, w, panel0, panel1,
                           d->prompt_scratch + (size_t)worker * TERN_PROMPT_SCRATCH);
    if (n_packed < n_wide)
        tern_k.gemm.wide(y + (size_t)n_packed * y_stride, y_stride, r->x + (size_t)n_packed * r->stride, r->stride,
                         n_wide - n_packed, w, panel0, panel1, d->gemm_scratch + (size_t)worker * TERN_GEMM_SCRATCH);
    if (n_wide < r->n && d->columns == 2)
        tern_k.gemm.narrow16(y + (size_t)n_wide * y_stride, y_stride, r->q8, r->n - n_wide, w, panel0, panel1);
    else if (n_wide < r->n)
        tern_k.gemm.narrow(y + (size_t)n_wide * y_stride, y_stride, r->q8, r->n - n_wide, w, panel0, panel1);
}

static void add_bias(const struct tern_matmul *m, int n_rows, int col0, int col1)
{
    const float *bias = tern_cpu_vec(m->bias);
    for (int r = 0; r < n_rows; r++) {
        float *y = tern_cpu_f32(m->y) + (size_t)r * m->y.stride;
        tern_k.vec.add(y + col0, y + col0, bias + col0, col1 - col0);
    }
}

/* Panels [p0, p1) of product i. */
static void matmul_part(const struct matmul_work *w, int i, int p0, int p1, int worker)
{
    const struct tern_matmul *m = &w->m[i];
    struct tern_cpu_rows rows = w->rows;
    if (m->f32)
        rows.packed = NULL;
    tern_cpu_product(w->d, tern_cpu_f32(m->y), m->y.stride, &rows, &m->w->form->m, p0, p1, worker);
    if (m->bias.mem)
        add_bias(m, w->rows.n, p0 * TERN_PANEL, p1 * TERN_PANEL < m->w->n ? p1 * TERN_PANEL : m->w->n);
}

/* A task may end in another product than it begins in: equal shares, whatever the shapes. */
static void matmul_task(void *ctx, int task, int worker)
{
    const struct matmul_work *w = ctx;
    const int begin = tern_cpu_cut_at(&w->cut, task), end = tern_cpu_cut_at(&w->cut, task + 1);
    int first = 0;
    for (int i = 0; first < end; i++) {
        int panels = tern_panels(&w->m[i].w->form->m);
        int p0 = begin > first ? begin - first : 0, p1 = end - first < panels ? end - first : panels;
        if (p0 < p1)
            matmul_part(w, i, p0, p1, worker);
        first += panels;
    }
}

/* For few rows about TASK_BYTES of weights, so that streams stay long, but the same number of tasks for every thread:
 * nobody waits for a last one.  Of floats FLOAT_PANELS, where there are as many for every thread: a panel is one chain
 * of sums there, and a single one would wait for each of them.  64 outputs for many rows.  Packed activations are read
 * once per PROMPT_PANELS panels, so there it should be as many as leave PROMPT_TASKS tasks to every thread. */
#define FEW_ROWS      16
#define TASK_BYTES    (1 << 20)
#define FLOAT_PANELS  4
#define PROMPT_PANELS 16
#define PROMPT_TASKS  3

int tern_cpu_panels_per_task(const struct tern_cpu *d, const struct tern_packed *w, int n_wide, int all_panels)
{
    const size_t threads = (size_t)tern_pool_threads(d->pool);
    if (n_wide <= FEW_ROWS) {
        size_t panels = (size_t)all_panels, round = TASK_BYTES * threads;
        size_t tasks = (panels * w->panel_bytes + round - 1) / round * threads;
        if (!tern_codes_integer(w->codes) && panels / FLOAT_PANELS >= threads && tasks > panels / FLOAT_PANELS)
            tasks = panels / FLOAT_PANELS / threads * threads;
        return (int)((panels + tasks - 1) / tasks);
    }
    if (!d->prompt)
        return 4;
    const int step = d->prompt->panels, most = PROMPT_PANELS / step * step;
    const int group = all_panels / (PROMPT_TASKS * (int)threads) / step * step;
    return group < step ? step : group < most ? group : most;
}

struct tern_cpu_cut tern_cpu_cut_into(const struct tern_cpu *d, int panels, int unit, int about)
{
    const int threads = tern_pool_threads(d->pool), units = (panels + unit - 1) / unit;
    int tasks = (panels + about - 1) / about;
    if (tasks > threads)
        tasks = (tasks + threads - 1) / threads * threads;
    return (struct tern_cpu_cut){panels, unit, tasks < units ? tasks : units};
}

int tern_cpu_cut_at(const struct tern_cpu_cut *c, int task)
{
    /* The longer ones first: who has taken one takes fewer. */
    const int units = (c->panels + c->unit - 1) / c->unit, longer = units % c->tasks;
    const int at = (units / c->tasks * task + (task < longer ? task : longer)) * c->unit;
    return at < c->panels ? at : c->panels;
}

void tern_cpu_multiply(struct tern_cpu *d, const struct tern_matmul *m, int n_m, const struct tern_cpu_rows *rows)
{
    struct matmul_work w = {.d = d, .m = m, .rows = *rows};
    int panels = 0;
    for (int i = 0; i < n_m; i++)
        panels += tern_panels(&m[i].w->form->m);
    const int about = tern_cpu_panels_per_task(d, &m[0].w->form->m, rows->n_wide, panels);
    w.cut = tern_cpu_cut_into(d, panels, rows->n_wide > FEW_ROWS && d->prompt ? d->prompt->panels : 1, about);
    tern_pool_run(d->pool, matmul_task, &w, w.cut.tasks);
}

void tern_cpu_matmul(struct tern_dev *dev, const struct tern_matmul *m, int n_m, struct tern_dev_rows in, int n_rows,
                     int n_wide)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    const float *x = tern_cpu_f32(in);
    struct tern_cpu_rows rows = {x, in.stride, NULL, d->q8.rows, n_rows, n_wide};
    const int n_narrow = n_rows - n_wide, k = m[0].w->k;
    bool quantized = false, packs = false;
    TERN_ASSERT(n_m >= 1 && n_m <= 8);
    for (int i = 0; i < n_m; i++) {
        quantized |= tern_codes_integer(m[i].w->form->m.codes);
        packs |= !m[i].f32 && d->prompt && (d->prompt->floats || tern_codes_integer(m[i].w->form->m.codes));
    }
    if (n_narrow && quantized)
        tern_cpu_quantize_rows(d, x + (size_t)n_wide * in.stride, in.stride, n_narrow, k);
    if (n_wide && packs) {
        rows.packed = d->packed_x;
        tern_cpu_pack_rows(d, x, in.stride, n_wide, k);
    }
    tern_cpu_multiply(d, m, n_m, &rows);
}

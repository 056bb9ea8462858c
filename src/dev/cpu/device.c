/* The CPU device: elementwise operations and products.  Attention and append have their own files. */
#include "dev/cpu/cpu.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "kernel/pack.h"

static struct tern_cpu_shape shape_of(const struct tern_cpu *d, const struct tern_attn_shape *s)
{
    return (struct tern_cpu_shape){s->kv, s->n_heads, s->scale, s->softcap, d->bf16};
}

int tern_cpu_q8_new(struct tern_cpu *d, struct tern_q8_buffer *b, size_t rows, size_t k, tern_error *err)
{
    int rc = 0;
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

void tern_cpu_quantize(const struct tern_q8_buffer *b, int r, const float *x, int k)
{
    const struct tern_q8_row *row = &b->rows[r];
    const uint8_t *base = b->bytes;
    uint8_t *q = b->bytes + ((const uint8_t *)row->q - base), *scale = b->bytes + ((const uint8_t *)row->scale - base);
    uint8_t *sum16 = b->bytes + ((const uint8_t *)row->sum16 - base);
    tern_k.gemm.quantize((int8_t *)q, (float *)(void *)scale, (int32_t *)(void *)sum16, x, k);
}

static int op_open(struct tern_dev **out, struct tern_pool *pool, tern_error *err)
{
    struct tern_cpu *d;
    int rc = tern_alloc(&d, 1, sizeof *d, err);
    *out = NULL;
    if (rc < 0)
        return rc;
    d->dev.ops = &tern_dev_cpu;
    d->pool = pool;
    *out = &d->dev;
    return 0;
}

static int open_attention(struct tern_cpu *d, const struct tern_dev_limits *l, tern_error *err)
{
    for (int i = 0; i < l->n_shapes; i++) {
        const struct tern_cpu_shape s = shape_of(d, &l->shapes[i]);
        size_t n = tern_cpu_attention_scratch(&s, tern_pool_threads(d->pool), l->max_rows, l->max_narrow, l->max_pages);
        d->attention.bytes = n > d->attention.bytes ? n : d->attention.bytes;
    }
    d->bytes += d->attention.bytes;
    return tern_alloc(&d->attention.p, d->attention.bytes, 1, err);
}

static int op_prepare(struct tern_dev *dev, const struct tern_dev_limits *limits, tern_error *err)
{
    int rc = 0;
    struct tern_cpu *d = tern_cpu_of(dev);
    size_t threads = (size_t)tern_pool_threads(d->pool), rows = (size_t)limits->max_rows;
    size_t k = tern_round_up((size_t)limits->max_k, 64);
    d->limits = *limits;
    d->limits.shapes = NULL;
    d->packs = tern_k.prompt.product && !limits->exact;
    d->bf16 = tern_k.bf16.multiply && !limits->exact;
    TERN_TRY(tern_cpu_q8_new(d, &d->q8, rows, k, err));
    TERN_TRY(tern_alloc(&d->gemm_scratch, threads, TERN_GEMM_SCRATCH * sizeof(float), err));
    if (d->packs) {
        size_t bands = (rows + TERN_BAND - 1) / TERN_BAND,
               band_bytes = tern_k.prompt.band((int)k) * sizeof *d->packed_x;
        TERN_TRY(tern_alloc(&d->packed_x, bands, band_bytes, err));
        TERN_TRY(tern_alloc(&d->prompt_scratch, threads, TERN_PROMPT_SCRATCH, err));
        d->bytes += bands * band_bytes + threads * TERN_PROMPT_SCRATCH;
    }
    TERN_TRY(tern_alloc(&d->encode_scratch, threads, TERN_KV_SCRATCH, err));
    TERN_TRY(open_attention(d, limits, err));
    if (limits->max_stack)
        TERN_TRY(tern_cpu_q8_new(d, &d->stack, (size_t)limits->max_narrow * (size_t)limits->max_stack,
                                 tern_round_up((size_t)limits->max_stack_k, 64), err));
    if (limits->max_experts)
        TERN_TRY(tern_cpu_experts_open(d, err));
    d->bytes += threads * (TERN_GEMM_SCRATCH * 4 + TERN_KV_SCRATCH);
out:
    return rc;
}

static void op_close(struct tern_dev *dev)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    tern_cpu_q8_free(&d->q8);
    tern_cpu_q8_free(&d->stack);
    tern_cpu_experts_close(d);
    tern_free(d->gemm_scratch);
    tern_free(d->packed_x);
    tern_free(d->prompt_scratch);
    tern_free(d->encode_scratch);
    tern_free(d->attention.p);
    tern_free(d);
}

static size_t op_scratch_bytes(const struct tern_dev *dev)
{
    return ((const struct tern_cpu *)dev)->bytes;
}

/* Operations are done when they return. */
static void op_sync(struct tern_dev *dev)
{
    (void)dev;
}

/* ---- elementwise ---------------------------------------------------------------------------------------------- */

/* Waking the workers costs about as much as this many element operations. */
#define INLINE_WORK   32768
#define ROWS_PER_TASK 8

struct row_work {
    void (*row)(const void *args, int row);
    const void *args;
    int n_rows;
};

static void row_task(void *ctx, int task, int worker)
{
    const struct row_work *w = ctx;
    (void)worker;
    int end = (task + 1) * ROWS_PER_TASK < w->n_rows ? (task + 1) * ROWS_PER_TASK : w->n_rows;
    for (int r = task * ROWS_PER_TASK; r < end; r++)
        w->row(w->args, r);
}

void tern_cpu_each_row(struct tern_cpu *d, void (*row)(const void *, int), const void *args, int n_rows, int n)
{
    if ((int64_t)n_rows * n <= INLINE_WORK) {
        for (int r = 0; r < n_rows; r++)
            row(args, r);
        return;
    }
    struct row_work w = {row, args, n_rows};
    tern_pool_run(d->pool, row_task, &w, (n_rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK);
}

struct embed_args {
    float *x;
    size_t stride;
    const struct tern_packed *table;
    const struct tern_row *rows;
    float scale;
};

static void embed_row(const void *args, int r)
{
    const struct embed_args *a = args;
    float *x = a->x + (size_t)r * a->stride;
    tern_k.gemm.row(x, a->table, a->rows[r].token);
    if (a->scale != 1.0f)
        tern_k.vec.scale(x, x, a->scale, a->table->k);
}

static void op_embed(struct tern_dev *dev, float *x, size_t stride, const struct tern_packed *table,
                     const struct tern_row *rows, int n_rows, float scale)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct embed_args a = {x, stride, table, rows, scale};
    tern_cpu_each_row(d, embed_row, &a, n_rows, table->k);
}

struct norm_args {
    float *y;
    size_t y_stride;
    const float *x;
    size_t x_stride;
    const float *w;
    int n;
    float eps;
};

static void norm_row(const void *args, int r)
{
    const struct norm_args *a = args;
    tern_k.vec.rmsnorm(a->y + (size_t)r * a->y_stride, a->x + (size_t)r * a->x_stride, a->w, a->n, a->eps);
}

static void op_norm(struct tern_dev *dev, float *y, size_t y_stride, const float *x, size_t x_stride, const float *w,
                    int n, float eps, int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct norm_args a = {y, y_stride, x, x_stride, w, n, eps};
    tern_cpu_each_row(d, norm_row, &a, n_rows, n);
}

struct add_args {
    float *y;
    const float *a, *b;
    size_t stride;
    int n;
};

static void add_row(const void *args, int r)
{
    const struct add_args *a = args;
    size_t at = (size_t)r * a->stride;
    tern_k.vec.add(a->y + at, a->a + at, a->b + at, a->n);
}

static void op_add(struct tern_dev *dev, float *y, const float *a, const float *b, size_t stride, int n, int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct add_args args = {y, a, b, stride, n};
    tern_cpu_each_row(d, add_row, &args, n_rows, n);
}

struct scale_args {
    float *x;
    size_t stride;
    int n;
    float factor;
};

static void scale_row(const void *args, int r)
{
    const struct scale_args *a = args;
    float *x = a->x + (size_t)r * a->stride;
    tern_k.vec.scale(x, x, a->factor, a->n);
}

static void op_scale(struct tern_dev *dev, float *x, size_t stride, int n, int n_rows, float factor)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct scale_args a = {x, stride, n, factor};
    tern_cpu_each_row(d, scale_row, &a, n_rows, n);
}

struct glu_args {
    float *gate;
    const float *up;
    size_t stride;
    int n;
    enum tern_gate act;
};

static void glu_row(const void *args, int r)
{
    const struct glu_args *a = args;
    float *gate = a->gate + (size_t)r * a->stride;
    const float *up = a->up + (size_t)r * a->stride;
    switch (a->act) {
    case TERN_GATE_SILU:
        tern_k.vec.silu_mul(gate, gate, up, a->n);
        break;
    case TERN_GATE_GELU:
        tern_k.vec.gelu_mul(gate, gate, up, a->n);
        break;
    case TERN_GATE_SIGMOID:
        tern_k.vec.sigmoid_mul(gate, gate, up, a->n);
        break;
    }
}

static void op_glu(struct tern_dev *dev, float *gate, const float *up, size_t stride, int n, int n_rows,
                   enum tern_gate act)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct glu_args a = {gate, up, stride, n, act};
    tern_cpu_each_row(d, glu_row, &a, n_rows, n * 4);
}

struct softcap_args {
    float *x;
    size_t stride;
    int n;
    float cap;
};

static void softcap_row(const void *args, int r)
{
    const struct softcap_args *a = args;
    float *x = a->x + (size_t)r * a->stride;
    tern_k.vec.softcap(x, x, a->cap, a->n);
}

static void op_softcap(struct tern_dev *dev, float *x, size_t stride, int n, int n_rows, float cap)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct softcap_args a = {x, stride, n, cap};
    tern_cpu_each_row(d, softcap_row, &a, n_rows, n * 4);
}

struct gate_args {
    float *x;
    size_t stride;
    int n;
    const float *g;
    size_t g_stride;
};

static void gate_row(const void *args, int r)
{
    const struct gate_args *a = args;
    float *x = a->x + (size_t)r * a->stride;
    tern_k.vec.scale(x, x, (float)(1 / (1 + exp(-(double)a->g[(size_t)r * a->g_stride]))), a->n);
}

static void op_gate(struct tern_dev *dev, float *x, size_t stride, int n, const float *g, size_t g_stride, int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct gate_args a = {x, stride, n, g, g_stride};
    tern_cpu_each_row(d, gate_row, &a, n_rows, n);
}

/* ---- positions ------------------------------------------------------------------------------------------------ */

struct rope_args {
    float *cos, *sin;
    const float *freq;
    int half;
    float magnitude;
    const struct tern_row *rows;
};

static void rope_row(const void *args, int r)
{
    const struct rope_args *a = args;
    float pos = (float)a->rows[r].pos;
    for (int i = 0; i < a->half; i++) {
        float angle = pos * a->freq[i]; /* rounded to f32 first, as the reference implementations do */
        double c, s;
        sincos((double)angle, &s, &c);
        a->cos[(size_t)r * (size_t)a->half + (size_t)i] = (float)c * a->magnitude;
        a->sin[(size_t)r * (size_t)a->half + (size_t)i] = (float)s * a->magnitude;
    }
}

static void op_rope_table(struct tern_dev *dev, float *cos, float *sin, const float *freq, int n_rot, float magnitude,
                          const struct tern_row *rows, int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct rope_args a = {cos, sin, freq, n_rot / 2, magnitude, rows};
    tern_cpu_each_row(d, rope_row, &a, n_rows, n_rot * 16);
}

static float temper_of(const struct tern_heads *h, int r)
{
    int times = (h->rows[r].pos + h->temper_from) / h->temper_span;
    return (float)(1 + (double)h->temper * log1p(times));
}

static void heads_row(const void *args, int r)
{
    const struct tern_heads *h = args;
    size_t half = (size_t)h->n_rot / 2;
    const float temper = h->temper != 0.0f ? temper_of(h, r) : 1.0f;
    for (int i = 0; i < h->n_heads; i++) {
        float *x = h->x + (size_t)r * h->stride + (size_t)i * (size_t)h->dim;
        if (h->norm && !h->norm_after)
            tern_k.vec.rmsnorm(x, x, h->norm_w, h->dim, h->eps);
        if (h->cos)
            tern_k.vec.rope(x, h->cos + (size_t)r * half, h->sin + (size_t)r * half, h->n_rot, h->interleaved);
        if (h->norm && h->norm_after)
            tern_k.vec.rmsnorm(x, x, h->norm_w, h->dim, h->eps);
        if (temper != 1.0f)
            tern_k.vec.scale(x, x, temper, h->dim);
    }
}

static void op_heads(struct tern_dev *dev, const struct tern_heads *h, int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    tern_cpu_each_row(d, heads_row, h, n_rows, h->n_heads * h->dim);
}

/* ---- products --------------------------------------------------------------------------------------------------- */

struct quantize_args {
    struct tern_cpu *d;
    const float *x;
    size_t stride;
    int k;
};

static void quantize_row(const void *args, int r)
{
    const struct quantize_args *a = args;
    tern_cpu_quantize(&a->d->q8, r, a->x + (size_t)r * a->stride, a->k);
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
    tern_k.prompt.pack(a->d->packed_x + (size_t)task * tern_k.prompt.band(a->k), a->x + (size_t)r0 * a->stride,
                       a->stride, n, a->k);
}

struct matmul_work {
    struct tern_cpu *d;
    const struct tern_matmul *m;
    int n_m;
    struct tern_cpu_rows rows;
    int panels, group; /* panels of all products, one after the other, and how many of them make a task */
};

void tern_cpu_product(struct tern_cpu *d, float *y, size_t y_stride, const struct tern_cpu_rows *r,
                      const struct tern_packed *w, int panel0, int panel1, int worker)
{
    /* Rows [0, n_packed) in the class of the machine, [n_packed, n_wide) in f32, the rest quantised. */
    const bool integer = tern_codes_integer(w->codes);
    int n_packed = r->packed && (integer || tern_k.prompt.floats) ? r->n_wide : 0, n_wide = integer ? r->n_wide : r->n;
    if (n_packed)
        tern_k.prompt.product(y, y_stride, r->packed, n_packed, w, panel0, panel1,
                              d->prompt_scratch + (size_t)worker * TERN_PROMPT_SCRATCH);
    if (n_packed < n_wide)
        tern_k.gemm.wide(y + (size_t)n_packed * y_stride, y_stride, r->x + (size_t)n_packed * r->stride, r->stride,
                         n_wide - n_packed, w, panel0, panel1, d->gemm_scratch + (size_t)worker * TERN_GEMM_SCRATCH);
    if (n_wide < r->n)
        tern_k.gemm.narrow(y + (size_t)n_wide * y_stride, y_stride, r->q8, r->n - n_wide, w, panel0, panel1);
}

static void add_bias(const struct tern_matmul *m, int n_rows, int col0, int col1)
{
    for (int r = 0; r < n_rows; r++) {
        float *y = m->y + (size_t)r * m->y_stride;
        tern_k.vec.add(y + col0, y + col0, m->bias + col0, col1 - col0);
    }
}

/* Panels [p0, p1) of product i. */
static void matmul_part(const struct matmul_work *w, int i, int p0, int p1, int worker)
{
    const struct tern_matmul *m = &w->m[i];
    struct tern_cpu_rows rows = w->rows;
    if (m->f32)
        rows.packed = NULL;
    tern_cpu_product(w->d, m->y, m->y_stride, &rows, m->w, p0, p1, worker);
    if (m->bias)
        add_bias(m, w->rows.n, p0 * TERN_PANEL, p1 * TERN_PANEL < m->w->n ? p1 * TERN_PANEL : m->w->n);
}

/* A task may end in another product than it begins in: equal shares, whatever the shapes. */
static void matmul_task(void *ctx, int task, int worker)
{
    const struct matmul_work *w = ctx;
    int begin = task * w->group, end = begin + w->group < w->panels ? begin + w->group : w->panels, first = 0;
    for (int i = 0; first < end; i++) {
        int panels = tern_panels(w->m[i].w);
        int p0 = begin > first ? begin - first : 0, p1 = end - first < panels ? end - first : panels;
        if (p0 < p1)
            matmul_part(w, i, p0, p1, worker);
        first += panels;
    }
}

/* For few rows about TASK_BYTES of weights, so that streams stay long, but the same number of tasks for every thread:
 * nobody waits for a last one.  64 outputs for many rows.  Tiles read the activations once per PROMPT_PANELS panels, so
 * there it should be as many as leave PROMPT_TASKS tasks to every thread; and even, because they go in pairs. */
#define TASK_BYTES    65536
#define PROMPT_PANELS 16
#define PROMPT_TASKS  3

int tern_cpu_panels_per_task(const struct tern_cpu *d, const struct tern_packed *w, int n_wide, int all_panels)
{
    const size_t threads = (size_t)tern_pool_threads(d->pool);
    if (n_wide <= 16) {
        size_t panels = (size_t)all_panels, round = TASK_BYTES * threads;
        size_t tasks = (panels * w->panel_bytes + round - 1) / round * threads;
        return (int)((panels + tasks - 1) / tasks);
    }
    if (!d->packs)
        return 4;
    const int step = tern_k.prompt.panels, most = PROMPT_PANELS / step * step;
    const int group = all_panels / (PROMPT_TASKS * (int)threads) / step * step;
    return group < step ? step : group < most ? group : most;
}

static void op_matmul(struct tern_dev *dev, const struct tern_matmul *m, int n_m, const float *x, size_t x_stride,
                      int n_rows, int n_wide)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct matmul_work w = {d, m, n_m, {x, x_stride, NULL, d->q8.rows, n_rows, n_wide}, 0, 0};
    int n_narrow = n_rows - n_wide;
    bool quantized = false, packs = false;
    TERN_ASSERT(n_m >= 1 && n_m <= 8);
    for (int i = 0; i < n_m; i++) {
        w.panels += tern_panels(m[i].w);
        quantized |= tern_codes_integer(m[i].w->codes);
        packs |= !m[i].f32;
    }
    if (n_narrow && quantized) {
        struct quantize_args a = {d, x + (size_t)n_wide * x_stride, x_stride, m[0].w->k};
        tern_cpu_each_row(d, quantize_row, &a, n_narrow, m[0].w->k);
    }
    if (n_wide && d->packs && packs) {
        w.rows.packed = d->packed_x;
        struct pack_args a = {d, x, x_stride, n_wide, m[0].w->k};
        tern_pool_run(d->pool, pack_task, &a, (n_wide + TERN_BAND - 1) / TERN_BAND);
    }
    w.group = tern_cpu_panels_per_task(d, m[0].w, n_wide, w.panels);
    tern_pool_run(d->pool, matmul_task, &w, (w.panels + w.group - 1) / w.group);
}

static void op_attention(struct tern_dev *dev, const struct tern_attn_shape *shape, const struct tern_attn_job *jobs,
                         int n_jobs, const float *q, size_t q_stride, float *out, size_t out_stride)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    const struct tern_cpu_shape s = shape_of(d, shape);
    tern_cpu_attention(d->pool, &s, jobs, n_jobs, q, q_stride, out, out_stride, d->attention);
}

const struct tern_dev_ops tern_dev_cpu = {
    .name = "cpu",
    .open = op_open,
    .close = op_close,
    .prepare = op_prepare,
    .scratch_bytes = op_scratch_bytes,
    .sync = op_sync,
    .reserve = tern_cpu_reserve,
    .release = tern_cpu_release,
    .adopt = tern_cpu_adopt,
    .copy_in = tern_cpu_copy_in,
    .copy_out = tern_cpu_copy_out,
    .copy = tern_cpu_copy,
    .zero = tern_cpu_zero,
    .discard = tern_cpu_discard,
    .embed = op_embed,
    .norm = op_norm,
    .add = op_add,
    .scale = op_scale,
    .matmul = op_matmul,
    .rope_table = op_rope_table,
    .heads = op_heads,
    .append = tern_cpu_append,
    .keep = tern_cpu_keep,
    .raw_rows = tern_cpu_raw_rows,
    .attention = op_attention,
    .glu = op_glu,
    .softcap = op_softcap,
    .gate = op_gate,
    .stack = tern_cpu_stack,
    .route = tern_cpu_route,
    .experts = tern_cpu_experts,
    .delta = tern_cpu_delta,
};

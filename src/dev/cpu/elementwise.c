/* Operations on one row at a time, and the positions of rows. */
#include <math.h>
#include <string.h>
#include "dev/cpu/cpu.h"

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

void tern_cpu_embed(struct tern_dev *dev, struct tern_dev_rows x, const struct tern_dev_weight *table, int n_rows,
                    float scale)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct embed_args a = {tern_cpu_f32(x), x.stride, &table->form->m, d->step.s.rows, scale};
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

void tern_cpu_norm(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows x, struct tern_dev_vec w,
                   float eps, int n_rows)
{
    struct norm_args a = {tern_cpu_f32(y), y.stride, tern_cpu_f32(x), x.stride, tern_cpu_vec(w), y.width, eps};
    tern_cpu_each_row(tern_cpu_of(dev), norm_row, &a, n_rows, y.width);
}

struct add_args {
    float *y;
    size_t y_stride;
    const float *a;
    size_t a_stride;
    const float *b;
    size_t b_stride;
    int n;
};

static void add_row(const void *args, int r)
{
    const struct add_args *a = args;
    tern_k.vec.add(a->y + (size_t)r * a->y_stride, a->a + (size_t)r * a->a_stride, a->b + (size_t)r * a->b_stride,
                   a->n);
}

void tern_cpu_add(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows a, struct tern_dev_rows b,
                  int n_rows)
{
    struct add_args args = {tern_cpu_f32(y), y.stride, tern_cpu_f32(a), a.stride, tern_cpu_f32(b), b.stride, y.width};
    tern_cpu_each_row(tern_cpu_of(dev), add_row, &args, n_rows, y.width);
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

void tern_cpu_scale(struct tern_dev *dev, struct tern_dev_rows x, int n_rows, float factor)
{
    struct scale_args a = {tern_cpu_f32(x), x.stride, x.width, factor};
    tern_cpu_each_row(tern_cpu_of(dev), scale_row, &a, n_rows, x.width);
}

struct glu_args {
    float *gate;
    const float *up;
    size_t stride, up_stride;
    int n;
    enum tern_gate act;
};

static void glu_row(const void *args, int r)
{
    const struct glu_args *a = args;
    float *gate = a->gate + (size_t)r * a->stride;
    const float *up = a->up + (size_t)r * a->up_stride;
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

void tern_cpu_glu(struct tern_dev *dev, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows,
                  enum tern_gate act)
{
    struct glu_args a = {tern_cpu_f32(gate), tern_cpu_f32(up), gate.stride, up.stride, gate.width, act};
    tern_cpu_each_row(tern_cpu_of(dev), glu_row, &a, n_rows, gate.width * 4);
}

struct clamp_args {
    float *gate, *up;
    size_t stride, up_stride;
    int n;
    float limit;
};

static void clamp_row(const void *args, int r)
{
    const struct clamp_args *a = args;
    tern_cpu_clamp_row(a->gate + (size_t)r * a->stride, a->up + (size_t)r * a->up_stride, a->n, a->limit);
}

/* NaN stays. */
void tern_cpu_clamp_row(float *gate, float *up, int n, float limit)
{
    for (int i = 0; i < n; i++) {
        gate[i] = gate[i] > limit ? limit : gate[i];
        up[i] = up[i] > limit ? limit : up[i] < -limit ? -limit : up[i];
    }
}

void tern_cpu_clamp(struct tern_dev *dev, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, float limit)
{
    struct clamp_args a = {tern_cpu_f32(gate), tern_cpu_f32(up), gate.stride, up.stride, gate.width, limit};
    tern_cpu_each_row(tern_cpu_of(dev), clamp_row, &a, n_rows, gate.width * 2);
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

void tern_cpu_softcap(struct tern_dev *dev, struct tern_dev_rows x, int n_rows, float cap)
{
    struct softcap_args a = {tern_cpu_f32(x), x.stride, x.width, cap};
    tern_cpu_each_row(tern_cpu_of(dev), softcap_row, &a, n_rows, x.width * 4);
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

void tern_cpu_gate(struct tern_dev *dev, struct tern_dev_rows x, struct tern_dev_rows g, int n_rows)
{
    struct gate_args a = {tern_cpu_f32(x), x.stride, x.width, tern_cpu_f32(g), g.stride};
    tern_cpu_each_row(tern_cpu_of(dev), gate_row, &a, n_rows, x.width);
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

void tern_cpu_rope_table(struct tern_dev *dev, struct tern_dev_vec cos, struct tern_dev_vec sin,
                         struct tern_dev_vec freq, int n_rot, float magnitude, int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct rope_args a = {tern_cpu_vec(cos), tern_cpu_vec(sin), tern_cpu_vec(freq),
                          n_rot / 2,         magnitude,         d->step.s.rows};
    tern_cpu_each_row(d, rope_row, &a, n_rows, n_rot * 16);
}

struct heads_args {
    const struct tern_heads *h;
    float *x;
    const float *norm_w, *cos, *sin;
    const struct tern_row *rows;
};

static float temper_of(const struct tern_heads *h, int pos)
{
    int times = (pos + h->temper_from) / h->temper_span;
    return (float)(1 + (double)h->temper * log1p(times));
}

static void heads_row(const void *args, int r)
{
    const struct heads_args *a = args;
    const struct tern_heads *h = a->h;
    size_t half = (size_t)h->n_rot / 2;
    const float temper = h->temper != 0.0f ? temper_of(h, a->rows[r].pos) : 1.0f;
    const float *sin_of = a->sin ? a->sin + (size_t)r * half : NULL;
    float back[TERN_KVQ_MAX_DIM / 2];
    if (h->inverse) {
        TERN_ASSERT(half <= TERN_KVQ_MAX_DIM / 2);
        tern_k.vec.scale(back, sin_of, -1.0f, (int)half);
        sin_of = back;
    }
    for (int i = 0; i < h->n_heads; i++) {
        float *x = a->x + (size_t)r * h->x.stride + (size_t)i * (size_t)h->dim;
        if (h->norm && !h->norm_after)
            tern_k.vec.rmsnorm(x, x, a->norm_w, h->dim, h->eps);
        if (a->cos)
            tern_k.vec.rope(x, a->cos + (size_t)r * half, sin_of, h->n_rot, h->interleaved);
        if (h->norm && h->norm_after)
            tern_k.vec.rmsnorm(x, x, a->norm_w, h->dim, h->eps);
        if (temper != 1.0f)
            tern_k.vec.scale(x, x, temper, h->dim);
    }
}

void tern_cpu_heads(struct tern_dev *dev, const struct tern_heads *h, int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct heads_args a = {
        h, tern_cpu_f32(h->x), tern_cpu_vec(h->norm_w), tern_cpu_vec(h->cos), tern_cpu_vec(h->sin), d->step.s.rows};
    tern_cpu_each_row(d, heads_row, &a, n_rows, h->n_heads * h->dim);
}

/* ---- rows elsewhere ------------------------------------------------------------------------------------------- */

struct copy_args {
    float *to;
    const float *from;
    size_t to_stride, to_head, from_stride, from_head;
    int n_heads, n;
};

static void copy_row(const void *args, int r)
{
    const struct copy_args *a = args;
    float *to = a->to + (size_t)r * a->to_stride;
    const float *from = a->from + (size_t)r * a->from_stride;
    for (size_t h = 0; h < (size_t)a->n_heads; h++)
        memcpy(to + h * a->to_head, from + h * a->from_head, (size_t)a->n * sizeof *to);
}

void tern_cpu_copy_heads(struct tern_dev *dev, struct tern_dev_rows to, size_t to_head, struct tern_dev_rows from,
                         size_t from_head, int n_heads, int n, int n_rows)
{
    struct copy_args a = {tern_cpu_f32(to), tern_cpu_f32(from), to.stride, to_head, from.stride, from_head, n_heads, n};
    tern_cpu_each_row(tern_cpu_of(dev), copy_row, &a, n_rows, n_heads * n);
}

struct pick_args {
    float *y;
    const float *x;
    size_t y_stride, x_stride;
    const int *rows;
    int n;
};

static void pick_row(const void *args, int i)
{
    const struct pick_args *a = args;
    memcpy(a->y + (size_t)i * a->y_stride, a->x + (size_t)a->rows[i] * a->x_stride, (size_t)a->n * sizeof *a->y);
}

void tern_cpu_pick(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows x, const int *rows, int n)
{
    struct pick_args a = {tern_cpu_f32(y), tern_cpu_f32(x), y.stride, x.stride, rows, x.width};
    tern_cpu_each_row(tern_cpu_of(dev), pick_row, &a, n, x.width);
}

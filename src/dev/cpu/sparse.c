/* Attention of many heads to one set of rows: compressed ones, then those of a window.
 *
 * Every row gathers what it sees, 64 at a time in ascending order, as f32 of the model's own domain, and all its heads
 * meet them there.  What a row sees hangs on its position and its choice alone, and so does the order of its sums.  A
 * row that is open for this position is read from its tile, any other from its page, whatever the step has closed
 * since. */
#include "dev/cpu/spans.h"

#include <string.h>
#include "base/err.h"
#include "base/mem.h"

struct work {
    struct tern_cpu *d;
    const struct tern_sparse *s;
    const struct tern_cpu_span *span; /* NULL: the window alone */
    const float *q, *sinks;
    float *out;
    size_t q_stride, out_stride;
    const int32_t *ids, *counts; /* NULL: all */
    int parts, heads;            /* of a row's heads; heads of a part */
};

struct scratch {
    float *q, *o, *m, *l, *shrink; /* [heads][dim], [heads] */
    float *s, *v, *turned, *page;  /* [heads][64], [64][dim], [dim][64], [64][dim] */
};

static float *take(uint8_t *p, size_t *at, size_t n)
{
    float *x = p ? (float *)(void *)(p + *at) : NULL;
    *at += tern_round_up(n * sizeof(float), TERN_ALIGN);
    return x;
}

static size_t lay_out(struct scratch *c, uint8_t *p, int heads, int dim)
{
    const size_t n = (size_t)heads, d = (size_t)dim, rows = TERN_PAGE;
    size_t at = 0;
    c->q = take(p, &at, n * d);
    c->o = take(p, &at, n * d);
    c->m = take(p, &at, n);
    c->l = take(p, &at, n);
    c->shrink = take(p, &at, n);
    c->s = take(p, &at, n * rows);
    c->v = take(p, &at, rows * d);
    c->turned = take(p, &at, rows * d);
    c->page = take(p, &at, rows * d);
    return at;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Where rows of one kind come from, for a query. */
struct source {
    const struct tern_kv_layer *kv;
    const struct tern_attn_job *job;
    int raw_from; /* pages from here on are seen raw */
    int decoded;  /* the page that is in scratch->page; -1: none */
};

static struct source source_of(const struct tern_kv_layer *kv, const struct tern_attn_job *job, int open_page)
{
    return (struct source){kv, job, open_page - kv->recent + 1, -1};
}

static void copy_raw(float *out, const uint8_t *p, const struct tern_kv_side *side, int row)
{
    const size_t dim = (size_t)side->dim, at = (size_t)row * dim;
    if (side->raw32)
        memcpy(out, (const float *)(const void *)p + at, dim * sizeof *out);
    else
        tern_k.attn.f16_to_f32(out, (const uint16_t *)(const void *)p + at, dim);
}

/* The dims that a row keeps apart, of a tile or a page's keys: [dims][64], 16 bits. */
static void fetch_position(const struct tern_kv_side *k, float *out, const uint8_t *keys, int at)
{
    uint16_t x[TERN_KVQ_MAX_DIM] __attribute__((aligned(64)));
    for (int i = 0; i < k->dim; i++)
        x[i] = ((const uint16_t *)(const void *)keys)[i * TERN_PAGE + at];
    tern_k.attn.f16_to_f32(out, x, (size_t)k->dim);
}

/* Row `at` of a closed page. */
static void fetch_closed(struct source *s, struct scratch *c, float *out, const uint8_t *p, int page, int at)
{
    const struct tern_kv_layer *kv = s->kv;
    const uint16_t *head = (const uint16_t *)(const void *)(p + kv->v_head_off);
    if (kv->v.codec->raw) {
        copy_raw(out, p + kv->v_off, &kv->v, at);
        return;
    }
    if (kv->v.codec->decode_row) {
        kv->v.codec->decode_row(&kv->v, out, p + kv->v_off, head, at);
    } else {
        if (s->decoded != page)
            kv->v.codec->decode(&kv->v, c->page, p + kv->v_off, head);
        s->decoded = page;
        memcpy(out, c->page + (size_t)at * (size_t)kv->v.dim, (size_t)kv->v.dim * sizeof *out);
    }
    kv->v.codec->finish(&kv->v, out, 1);
}

static void fetch(struct source *s, struct scratch *c, float *out, int row)
{
    const struct tern_kv_layer *kv = s->kv;
    const int page = row / TERN_PAGE, at = row % TERN_PAGE;
    if (page >= s->raw_from) {
        const uint8_t *tile = tern_span_tile(kv, s->job, page);
        copy_raw(out, tile + kv->tile_v_off, &kv->v, at);
        if (kv->rate > 1 && kv->k.dim)
            fetch_position(&kv->k, out + kv->v.dim, tile, at);
        return;
    }
    if (row < kv->first) {
        copy_raw(out, s->job->sink + kv->sink_layer_off + kv->sink_v_off, &kv->v, at);
        return;
    }
    const uint8_t *p = tern_span_page(kv, s->job, page);
    fetch_closed(s, c, out, p, page, at);
    if (kv->rate > 1 && kv->k.dim)
        fetch_position(&kv->k, out + kv->v.dim, p + kv->k_off, at);
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

#define TURN 16

static void turn_over(float *to, const float *v, size_t dim, int n)
{
    for (size_t d = 0; d < dim; d += TURN)
        for (size_t t = 0; t < TERN_PAGE; t++)
            for (size_t j = 0; j < TURN; j++)
                to[(d + j) * TERN_PAGE + t] = t < (size_t)n ? v[t * dim + d + j] : 0;
}

/* The n rows in c->v. */
static void attend(const struct work *w, struct scratch *c, int heads, int n)
{
    const int dim = w->s->dim;
    turn_over(c->turned, c->v, (size_t)dim, n);
    tern_k.attn.score_f32(c->s, c->q, c->turned, dim, heads);
    for (int h = 0; h < heads; h++)
        c->shrink[h] = tern_k.attn.softmax(c->s + (size_t)h * TERN_PAGE, 0, 1, 0, n, &c->m[h], &c->l[h]);
    tern_k.attn.accum_f32(c->o, c->s, c->v, c->shrink, dim, n, heads);
}

/* Rows ids[0..n), or, ids NULL, first .. first + n. */
static void attend_rows(const struct work *w, struct scratch *c, struct source *s, const int32_t *ids, int first, int n,
                        int heads)
{
    const size_t dim = (size_t)w->s->dim;
    for (int at = 0; at < n; at += TERN_PAGE) {
        const int rows = n - at < TERN_PAGE ? n - at : TERN_PAGE;
        for (int i = 0; i < rows; i++)
            fetch(s, c, c->v + (size_t)i * dim, ids ? ids[at + i] : first + at + i);
        attend(w, c, heads, rows);
    }
}

static const double log2e = 1.4426950408889634;

static void begin(const struct work *w, struct scratch *c, int row, int head0, int heads)
{
    const size_t dim = (size_t)w->s->dim, n = (size_t)heads * dim;
    const float *q = w->q + (size_t)row * w->q_stride + (size_t)head0 * dim;
    const float scale = (float)((double)w->s->scale * log2e);
    for (size_t i = 0; i < n; i++)
        c->q[i] = q[i] * scale;
    memset(c->o, 0, n * sizeof *c->o);
    for (int h = 0; h < heads; h++) {
        c->m[h] = (float)((double)w->sinks[head0 + h] * log2e);
        c->l[h] = 1;
    }
}

static void finish(const struct work *w, const struct scratch *c, int row, int head0, int heads)
{
    const size_t dim = (size_t)w->s->dim;
    float *out = w->out + (size_t)row * w->out_stride + (size_t)head0 * dim;
    const float *o = c->o;
    for (int h = 0; h < heads; h++) {
        const float inverse = 1.0f / c->l[h];
        for (size_t i = 0; i < dim; i++)
            *out++ = *o++ * inverse + 0.0f;
    }
}

static void unit_task(void *ctx, int task, int worker)
{
    const struct work *w = ctx;
    struct tern_cpu_step *t = &w->d->step;
    struct scratch c;
    const int row = task / w->parts, head0 = task % w->parts * w->heads, job = tern_cpu_job_of(t, row);
    const int heads = w->s->n_heads - head0 < w->heads ? w->s->n_heads - head0 : w->heads;
    const int pos = t->s.rows[row].pos;
    const struct tern_kv_layer *own = tern_cpu_kv(t, job, w->s->layer);
    (void)lay_out(&c, w->d->sparse + (size_t)worker * w->d->sparse_bytes, w->heads, w->s->dim);
    begin(w, &c, row, head0, heads);
    if (w->span) {
        const int all = tern_span_rows(pos + 1, w->s->rate);
        struct source s = source_of(tern_cpu_kv(t, job, w->s->span), &w->span->at[job], all / TERN_PAGE);
        const int32_t *ids = w->ids ? w->ids + (size_t)row * (size_t)w->s->chosen->top : NULL;
        attend_rows(w, &c, &s, ids, 0, ids ? w->counts[row] : all, heads);
    }
    struct source s = source_of(own, &t->at[job], pos / TERN_PAGE);
    const int oldest = tern_kv_oldest(own->reach, pos);
    attend_rows(w, &c, &s, NULL, oldest, pos + 1 - oldest, heads);
    finish(w, &c, row, head0, heads);
}

/* ---- the operation ----------------------------------------------------------------------------------------------- */

int tern_cpu_spans_open(struct tern_cpu *d, int max_pages, tern_error *err)
{
    int rc = 0;
    const struct tern_dev_limits *l = &d->limits;
    const size_t rows = (size_t)l->max_rows / 2 + (size_t)l->max_jobs, threads = (size_t)tern_pool_threads(d->pool);
    struct scratch c;
    const size_t attend = lay_out(&c, NULL, l->max_sparse_heads, l->max_compressed);
    const size_t choose = l->max_chosen ? tern_cpu_choose_scratch(l->max_choose_heads, l->max_compressed) : 0;
    d->sparse_bytes = tern_round_up(attend > choose ? attend : choose, TERN_ALIGN);
    d->n_chosen = l->max_chosen ? tern_cpu_choose_candidates(l->max_chosen, max_pages * TERN_PAGE / 2) : 0;
    TERN_TRY(tern_alloc(&d->compressed, rows, (size_t)l->max_compressed * sizeof *d->compressed, err));
    TERN_TRY(tern_alloc(&d->sparse, threads, d->sparse_bytes, err));
    TERN_TRY(tern_alloc(&d->chosen, d->n_chosen + 1, sizeof *d->chosen, err));
    d->bytes += rows * (size_t)l->max_compressed * sizeof *d->compressed + threads * d->sparse_bytes +
                (d->n_chosen + 1) * sizeof *d->chosen;
out:
    return rc;
}

void tern_cpu_sparse(struct tern_dev *dev, const struct tern_sparse *s, struct tern_dev_rows q,
                     struct tern_dev_rows out, int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    const int threads = tern_pool_threads(d->pool);
    struct work w = {.d = d,
                     .s = s,
                     .q = tern_cpu_f32(q),
                     .sinks = tern_cpu_vec(s->sinks),
                     .out = tern_cpu_f32(out),
                     .q_stride = q.stride,
                     .out_stride = out.stride,
                     .parts = 1,
                     .heads = s->n_heads};
    tern_cpu_step_fill(&d->step, s->layer);
    if (s->span >= 0)
        w.span = tern_cpu_span_fill(&d->step, s->span);
    if (s->chosen) {
        w.ids = (const int32_t *)(const void *)tern_cpu_vec(s->chosen->ids);
        w.counts = (const int32_t *)(const void *)tern_cpu_vec(s->chosen->counts);
    }
    if (n_rows < 2 * threads) { /* a head is a head, whoever gathers its rows */
        w.parts = (2 * threads + n_rows - 1) / n_rows;
        w.heads = (s->n_heads + w.parts - 1) / w.parts;
        w.parts = (s->n_heads + w.heads - 1) / w.heads;
    }
    tern_pool_run(d->pool, unit_task, &w, n_rows * w.parts);
    tern_cpu_spans_keep(d, s->layer);
}

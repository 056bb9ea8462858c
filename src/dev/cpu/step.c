/* The step in hand: what each layer's operations need to know of its jobs, as addresses on this machine.
 *
 * Jobs whose rows span pages work in staging tiles, one for each page, because a sequence keeps fewer; the newest of
 * them become the sequence's own once all that attend to the layer have run. */
#include <string.h>
#include "base/mem.h"
#include "dev/cpu/spans.h"

static int take(struct tern_cpu *d, void *out, size_t n, size_t size, tern_error *err)
{
    d->bytes += n * size;
    return tern_alloc(out, n, size, err);
}

int tern_cpu_step_open(struct tern_cpu *d, const struct tern_dev_limits *l, tern_error *err)
{
    int rc = 0;
    struct tern_cpu_step *t = &d->step;
    const size_t jobs = (size_t)l->max_jobs, rows = (size_t)l->max_rows;
    t->n_layers = l->caches[0].n_layers;
    TERN_TRY(take(d, &t->job_of, jobs, sizeof *t->job_of, err));
    TERN_TRY(take(d, &t->cache_end, (size_t)l->n_caches, sizeof *t->cache_end, err));
    TERN_TRY(take(d, &t->stage_of, jobs, sizeof *t->stage_of, err));
    TERN_TRY(take(d, &t->at, jobs, sizeof *t->at, err));
    TERN_TRY(take(d, &t->app, jobs, sizeof *t->app, err));
    TERN_TRY(take(d, &t->delta, jobs, sizeof *t->delta, err));
    TERN_TRY(take(d, &t->stage_set, (size_t)t->n_layers, sizeof *t->stage_set, err));
    TERN_TRY(take(d, &t->waits, (size_t)t->n_layers, sizeof *t->waits, err));
    TERN_TRY(take(d, &t->row_job, rows, sizeof *t->row_job, err));
    const int sets = tern_dev_stages(l, t->stage_set, &t->stage_tile_bytes);
    /* A job of n rows touches at most n/64 + 1 pages beyond its first. */
    t->stage_tiles = rows / TERN_PAGE + 2 * (jobs < rows ? jobs : rows);
    TERN_TRY(take(d, &t->stage, t->stage_tiles * (size_t)sets, t->stage_tile_bytes, err));
    for (int i = 0; i < 2 && l->caches[0].n_spans > t->n_layers; i++) {
        t->spans[i].span = -1;
        TERN_TRY(take(d, &t->spans[i].at, jobs, sizeof *t->spans[i].at, err));
        TERN_TRY(take(d, &t->spans[i].app, jobs, sizeof *t->spans[i].app, err));
        TERN_TRY(take(d, &t->spans[i].stage, t->stage_tiles, t->stage_tile_bytes, err));
    }
out:
    return rc;
}

void tern_cpu_step_close(struct tern_cpu *d)
{
    struct tern_cpu_step *t = &d->step;
    void *all[] = {t->job_of,        t->cache_end,    t->stage_of,       t->at,          t->app,
                   t->delta,         t->stage_set,    t->waits,          t->stage,       t->row_job,
                   t->spans[0].at,   t->spans[0].app, t->spans[0].stage, t->spans[1].at, t->spans[1].app,
                   t->spans[1].stage};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
}

/* Caches differ in how pages look, so each one's jobs append and attend by themselves. */
static void sort_jobs(struct tern_cpu_step *t)
{
    int n = 0;
    for (int c = 0; c < t->s.n_caches; c++) {
        for (int i = 0; i < t->s.n_jobs; i++)
            if (t->s.jobs[i].cache == c)
                t->job_of[n++] = i;
        t->cache_end[c] = n;
    }
    TERN_ASSERT(n == t->s.n_jobs);
}

static int pages_of(const struct tern_dev_job *j)
{
    return (j->pos0 + j->n_rows - 1) / TERN_PAGE - j->pos0 / TERN_PAGE + 1;
}

static void plan_stage(struct tern_cpu_step *t)
{
    size_t used = 0;
    for (int i = 0; i < t->s.n_jobs; i++) {
        int pages = pages_of(&t->s.jobs[t->job_of[i]]);
        t->stage_of[i] = pages > 1 ? (int)used : -1;
        used += pages > 1 ? (size_t)pages : 0;
    }
    TERN_ASSERT(used <= t->stage_tiles);
}

void tern_cpu_begin(struct tern_dev *dev, const struct tern_dev_step *s)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct tern_cpu_step *t = &d->step;
    TERN_ASSERT(s->n_rows <= d->limits.max_rows && s->n_jobs <= d->limits.max_jobs);
    TERN_ASSERT(s->n_caches == d->limits.n_caches);
    t->s = *s;
    t->layer = t->spans[0].span = t->spans[1].span = -1;
    sort_jobs(t);
    for (int i = 0; i < s->n_jobs; i++)
        for (int r = 0; r < s->jobs[t->job_of[i]].n_rows; r++)
            t->row_job[s->jobs[t->job_of[i]].row0 + r] = i;
    plan_stage(t);
}

/* Rows of a job: tokens, or of a span what they complete. */
struct job_rows {
    int row0, n, pos0;
};

static struct job_rows rows_of(const struct tern_dev_job *j, int rate, int before)
{
    if (rate == 1)
        return (struct job_rows){j->row0, j->n_rows, j->pos0};
    const int pos0 = j->pos0 / rate;
    return (struct job_rows){before, (j->pos0 + j->n_rows) / rate - pos0, pos0};
}

/* A job's rows on one layer; stage: its first tile there, or NULL. */
static void job_at(struct tern_cpu_step *t, struct tern_attn_job *at, struct tern_append_job *app,
                   const struct tern_dev_job *j, int layer, struct job_rows rows, uint8_t *stage)
{
    const struct tern_dev_cache *c = &t->s.caches[j->cache];
    const struct tern_kv_layer *l = &c->layers[layer];
    const int group = c->group_of[layer];
    const struct tern_dev_table *table = &j->tables[group];
    uint8_t *tiles = tern_block_at(tern_cpu_blocks(c->tiles), j->tile), *sink = NULL;
    const size_t slot = (size_t)(rows.pos0 / TERN_PAGE % l->ring) * (size_t)l->n_heads * l->tile_bytes;
    if (j->sink != TERN_NO_BLOCK)
        sink = tern_block_at(tern_cpu_blocks(c->sinks), j->sink);
    *at = (struct tern_attn_job){
        .row0 = rows.row0,
        .n_rows = rows.n,
        .pos0 = rows.pos0,
        .wide = j->wide,
        .pages = table->blocks,
        .page_mem = tern_cpu_blocks(c->pages[group]),
        .first_page = table->first,
        .n_pages = table->n,
        .sink = sink,
        .tile_base = stage ? stage : tiles,
        .tile_stride = t->stage_tile_bytes,
        .tile_first = rows.pos0 / TERN_PAGE,
        .tile_layer_off = stage ? 0 : l->tile_layer_off + slot,
        .ring = tiles + l->tile_layer_off,
    };
    *app = (struct tern_append_job){
        .at = at, .tile_base = stage ? stage : tiles, .seq_tile = tiles, .sink = sink, .staged = stage != NULL};
}

/* All jobs on a layer with keys and values of its own. */
void tern_cpu_step_fill(struct tern_cpu_step *t, int layer)
{
    if (t->layer == layer)
        return;
    t->layer = layer;
    uint8_t *set = t->stage + (size_t)t->stage_set[layer] * t->stage_tiles * t->stage_tile_bytes;
    for (int i = 0; i < t->s.n_jobs; i++) {
        uint8_t *stage = t->stage_of[i] < 0 ? NULL : set + (size_t)t->stage_of[i] * t->stage_tile_bytes;
        const struct tern_dev_job *j = &t->s.jobs[t->job_of[i]];
        job_at(t, &t->at[i], &t->app[i], j, layer, rows_of(j, 1, 0), stage);
    }
}

const struct tern_cpu_span *tern_cpu_span_fill(struct tern_cpu_step *t, int span)
{
    const struct tern_kv_layer *l = &t->s.caches[0].layers[span];
    struct tern_cpu_span *to = &t->spans[l->v.dim == 0];
    int before = 0;
    size_t used = 0;
    if (to->span == span)
        return to;
    TERN_ASSERT(!to->waits);
    to->span = span;
    for (int i = 0; i < t->s.n_jobs; i++) {
        const struct tern_dev_job *j = &t->s.jobs[t->job_of[i]];
        const struct job_rows rows = rows_of(j, l->rate, before);
        const size_t pages = (size_t)((rows.pos0 + rows.n - 1) / TERN_PAGE - rows.pos0 / TERN_PAGE + 1);
        const bool staged = rows.n > 0 && pages > 1;
        job_at(t, &to->at[i], &to->app[i], j, span, rows, staged ? to->stage + used * t->stage_tile_bytes : NULL);
        used += staged ? pages : 0;
        before += rows.n;
    }
    TERN_ASSERT(used <= t->stage_tiles);
    return to;
}

static void keep(struct tern_cpu_step *t, int layer)
{
    tern_cpu_step_fill(t, layer);
    for (int c = 0, i = 0; c < t->s.n_caches; i = t->cache_end[c++])
        tern_cpu_keep(&t->s.caches[c].layers[layer], t->app + i, t->cache_end[c] - i);
    t->waits[layer] = false;
}

void tern_cpu_append(struct tern_dev *dev, int layer, struct tern_dev_rows k, struct tern_dev_rows v)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct tern_cpu_step *t = &d->step;
    tern_cpu_step_fill(t, layer);
    t->waits[layer] = true;
    for (int c = 0, i = 0; c < t->s.n_caches; i = t->cache_end[c++])
        if (i < t->cache_end[c])
            tern_cpu_append_jobs(d, &t->s.caches[c].layers[layer], t->app + i, t->cache_end[c] - i, tern_cpu_f32(k),
                                 k.stride, tern_cpu_f32(v), v.stride);
}

void tern_cpu_attention(struct tern_dev *dev, const struct tern_attn_shape *shape, struct tern_dev_rows q,
                        struct tern_dev_rows out)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct tern_cpu_step *t = &d->step;
    tern_cpu_step_fill(t, shape->layer);
    for (int c = 0, i = 0; c < t->s.n_caches; i = t->cache_end[c++]) {
        const struct tern_cpu_shape s = tern_cpu_shape_of(d, &t->s.caches[c], shape);
        if (i < t->cache_end[c])
            tern_cpu_attend(d->pool, &s, t->at + i, t->cache_end[c] - i, tern_cpu_f32(q), q.stride, tern_cpu_f32(out),
                            out.stride, d->attention);
    }
    if (t->waits[shape->layer] && !t->stage_set[shape->layer])
        keep(t, shape->layer);
}

void tern_cpu_recode(struct tern_dev *dev, int layer, const struct tern_dev_job *from, struct tern_dev_rows k,
                     struct tern_dev_rows v)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct tern_cpu_step *t = &d->step;
    const struct tern_dev_job *to = &t->s.jobs[0];
    const struct tern_kv_layer *l = &t->s.caches[to->cache].layers[layer];
    const struct job_rows rows = rows_of(from, l->rate, 0);
    struct tern_attn_job at;
    struct tern_append_job unused;
    TERN_ASSERT(t->s.n_jobs == 1 && to->pos0 == from->pos0 && to->n_rows == from->n_rows);
    if (rows.n == 0)
        return;
    job_at(t, &at, &unused, from, layer, rows, NULL);
    if (l->rate > 1) { /* a row is whole in v, however a cache divides it */
        const struct tern_kv_layer *was = &t->s.caches[from->cache].layers[layer];
        const struct tern_cpu_span *s = tern_cpu_span_fill(t, layer);
        float *x = tern_cpu_f32(v);
        tern_cpu_value_rows(d, was, &at, x + was->v.dim, v.stride, x, v.stride);
        tern_cpu_append_jobs(d, l, s->app, 1, x + l->v.dim, v.stride, x, v.stride);
        tern_cpu_keep(l, s->app, 1);
        return;
    }
    tern_cpu_value_rows(d, &t->s.caches[from->cache].layers[layer], &at, tern_cpu_f32(k), k.stride, tern_cpu_f32(v),
                        v.stride);
    tern_cpu_append(dev, layer, k, v);
    keep(t, layer);
}

static void keep_spans(struct tern_cpu_step *t)
{
    for (int i = 0; i < 2; i++) {
        struct tern_cpu_span *s = &t->spans[i];
        for (int job = 0; s->waits && job < t->s.n_jobs; job++)
            if (s->at[job].n_rows)
                tern_cpu_keep(tern_cpu_kv(t, job, s->span), &s->app[job], 1);
        s->waits = false;
        s->span = -1;
    }
}

void tern_cpu_spans_keep(struct tern_cpu *d, int layer)
{
    keep(&d->step, layer);
    keep_spans(&d->step);
}

void tern_cpu_end(struct tern_dev *dev)
{
    struct tern_cpu_step *t = &tern_cpu_of(dev)->step;
    for (int i = 0; i < t->n_layers; i++)
        if (t->waits[i])
            keep(t, i);
    keep_spans(t);
}

void tern_cpu_delta(struct tern_dev *dev, int layer, const struct tern_delta *l, const struct tern_delta_io *io,
                    int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct tern_cpu_step *t = &d->step;
    for (int i = 0; i < t->s.n_jobs; i++) {
        const struct tern_dev_job *j = &t->s.jobs[i];
        const struct tern_dev_cache *c = &t->s.caches[j->cache];
        const struct tern_blocks states = tern_cpu_blocks(c->states);
        const size_t off = c->state_off[layer];
        struct tern_delta_job *to = &t->delta[i];
        *to = (struct tern_delta_job){
            .row0 = j->row0, .n_rows = j->n_rows, .state = (float *)(void *)(tern_block_at(states, j->state) + off)};
        TERN_ASSERT(j->n_marks <= TERN_DEV_MARKS);
        to->n_marks = j->n_marks;
        for (int m = 0; m < j->n_marks; m++) {
            to->marks[m].to = (float *)(void *)(tern_block_at(states, j->marks[m].block) + off);
            to->marks[m].at = j->marks[m].at;
        }
    }
    tern_cpu_delta_jobs(d, l, t->delta, t->s.n_jobs, io, n_rows);
}

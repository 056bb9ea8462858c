/* How the rows of a step get at the cache: jobs with pages and tiles, staging for those that span pages. */
#include "base/mem.h"
#include "model/block/block.h"

/* The layer whose keys and values this one attends to. */
static int kv_layer(const struct tern_forward *f, int layer)
{
    int of = f->net->desc.layers[layer].kv_of;
    return of < 0 ? layer : of;
}

static struct tern_attn_shape shape_of(const struct tern_forward *f, int plan, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    return (struct tern_attn_shape){.kv = &f->caches[plan].layout->layers[kv_layer(f, layer)],
                                    .n_heads = l->n_heads,
                                    .scale = l->scale,
                                    .softcap = l->score_cap};
}

int tern_cached_prepare(struct tern_forward *f, struct tern_dev_limits *lim, tern_error *err)
{
    const struct tern_desc *d = &f->net->desc;
    struct tern_attn_shape *shapes;
    int rc = tern_alloc(&shapes, (size_t)f->n_plans * (size_t)d->n_layers, sizeof *shapes, err);
    if (rc < 0)
        return rc;
    lim->shapes = shapes;
    lim->max_pages = f->caches[0].max_tokens / TERN_PAGE + 2;
    for (int p = 0; p < f->n_plans; p++)
        for (int i = 0; i < d->n_layers; i++)
            if (d->layers[i].n_heads)
                shapes[lim->n_shapes++] = shape_of(f, p, i);
    rc = f->dev->ops->prepare(f->dev, lim, err);
    f->bytes += f->dev->ops->scratch_bytes(f->dev);
    tern_free(shapes);
    return rc;
}

int tern_cached_open(struct tern_forward *f, tern_error *err)
{
    struct tern_cached *c = &f->cached;
    int rc = 0, sets = 1;
    size_t jobs = (size_t)f->max_jobs, rows = (size_t)f->max_rows;
    TERN_TRY(tern_forward_take(f, &c->at, jobs, sizeof *c->at, err));
    TERN_TRY(tern_forward_take(f, &c->app, jobs, sizeof *c->app, err));
    TERN_TRY(tern_forward_take(f, &c->job_of, jobs, sizeof *c->job_of, err));
    TERN_TRY(tern_forward_take(f, &c->plan_end, (size_t)f->n_plans, sizeof *c->plan_end, err));
    TERN_TRY(tern_forward_take(f, &c->stage_of, jobs, sizeof *c->stage_of, err));
    for (int p = 0; p < f->n_plans; p++)
        if (c->stage_tile_bytes < f->caches[p].layout->stage_tile_bytes)
            c->stage_tile_bytes = f->caches[p].layout->stage_tile_bytes;
    /* A job of n rows touches at most n/64 + 1 pages beyond its first. */
    c->stage_tiles = rows / TERN_PAGE + 2 * (jobs < rows ? jobs : rows);
    TERN_TRY(tern_forward_take(f, &c->stage_set, (size_t)f->net->desc.n_layers, sizeof *c->stage_set, err));
    for (int i = 0; i < f->net->desc.n_layers; i++)
        if (kv_layer(f, i) != i && !c->stage_set[kv_layer(f, i)])
            c->stage_set[kv_layer(f, i)] = sets++;
    TERN_TRY(tern_forward_take(f, &c->stage, c->stage_tiles * (size_t)sets, c->stage_tile_bytes, err));
out:
    return rc;
}

void tern_cached_close(struct tern_cached *c)
{
    void *all[] = {c->stage, c->stage_set, c->at, c->app, c->job_of, c->plan_end, c->stage_of};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
}

/* Plans differ in how pages look, so each plan's jobs append and attend by themselves. */
static void sort_jobs(struct tern_forward *f, const struct tern_forward_batch *b)
{
    struct tern_cached *c = &f->cached;
    int n = 0;
    for (int p = 0; p < f->n_plans; p++) {
        for (int i = 0; i < b->n_jobs; i++)
            if (b->jobs[i].plan == p)
                c->job_of[n++] = i;
        c->plan_end[p] = n;
    }
    TERN_ASSERT(n == b->n_jobs);
}

/* Jobs whose rows span pages get staging tiles; the others work in the sequence's own tile. */
static void plan_stage(struct tern_forward *f, const struct tern_forward_batch *b)
{
    struct tern_cached *c = &f->cached;
    int used = 0;
    for (int i = 0; i < b->n_jobs; i++) {
        const struct tern_forward_job *j = &b->jobs[c->job_of[i]];
        int pages = (j->pos0 + j->n_rows - 1) / TERN_PAGE - j->pos0 / TERN_PAGE + 1;
        c->stage_of[i] = pages > 1 ? used : -1;
        used += pages > 1 ? pages : 0;
    }
    TERN_ASSERT((size_t)used <= c->stage_tiles);
}

static void layer_jobs(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    struct tern_cached *c = &f->cached;
    layer = kv_layer(f, layer);
    uint8_t *stage = c->stage + (size_t)c->stage_set[layer] * c->stage_tiles * c->stage_tile_bytes;
    for (int i = 0; i < b->n_jobs; i++) {
        const struct tern_forward_job *j = &b->jobs[c->job_of[i]];
        const struct tern_kv_cache *cache = &f->caches[j->plan];
        const struct tern_kv_layout *lay = cache->layout;
        const struct tern_kv_table *t = &j->seq->table[lay->group_of[layer]];
        bool staged = c->stage_of[i] >= 0;
        const struct tern_kv_layer *l = &lay->layers[layer];
        size_t slot = (size_t)(j->pos0 / TERN_PAGE % l->ring) * (size_t)l->n_heads * l->tile_bytes;
        uint8_t *tiles = tern_kv_block(&cache->tiles, j->seq->tile);
        uint8_t *sink = tern_kv_block(&cache->sinks, j->seq->sink);
        uint8_t *base = staged ? stage + (size_t)c->stage_of[i] * c->stage_tile_bytes : tiles;
        c->at[i] = (struct tern_attn_job){
            .row0 = j->row0,
            .n_rows = j->n_rows,
            .pos0 = j->pos0,
            .wide = j->wide,
            .pages = t->pages,
            .page_mem = cache->pool[lay->group_of[layer]].mem,
            .first_page = t->first,
            .n_pages = t->n,
            .sink = sink,
            .tile_base = base,
            .tile_stride = c->stage_tile_bytes,
            .tile_first = j->pos0 / TERN_PAGE,
            .tile_layer_off = staged ? 0 : l->tile_layer_off + slot,
            .ring = tiles + l->tile_layer_off,
        };
        c->app[i] = (struct tern_append_job){
            .at = &c->at[i], .tile_base = base, .seq_tile = tiles, .sink = sink, .staged = staged};
    }
}

/* Layers that others attend to keep their staging tiles until the last layer has been. */
static void keep(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    struct tern_cached *c = &f->cached;
    layer_jobs(f, b, layer);
    for (int p = 0, i = 0; p < f->n_plans; i = c->plan_end[p++]) {
        struct tern_attn_shape shape = shape_of(f, p, layer);
        f->dev->ops->keep(f->dev, shape.kv, c->app + i, c->plan_end[p] - i);
    }
}

void tern_cached_attend(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const float *k)
{
    struct tern_cached *c = &f->cached;
    const struct tern_dev_ops *ops = f->dev->ops;
    layer_jobs(f, b, layer);
    for (int p = 0, i = 0; p < f->n_plans; i = c->plan_end[p++]) {
        struct tern_attn_shape shape = shape_of(f, p, layer);
        int n = c->plan_end[p] - i;
        if (!n)
            continue;
        if (kv_layer(f, layer) == layer)
            ops->append(f->dev, shape.kv, c->app + i, n, k, f->k.stride, f->v.p, f->v.stride);
        ops->attention(f->dev, &shape, c->at + i, n, f->q.p, f->q.stride, f->a.p, f->a.stride);
        if (kv_layer(f, layer) == layer && !c->stage_set[layer])
            ops->keep(f->dev, shape.kv, c->app + i, n);
    }
}

void tern_cached_begin(struct tern_forward *f, const struct tern_forward_batch *b)
{
    sort_jobs(f, b);
    plan_stage(f, b);
}

void tern_cached_end(struct tern_forward *f, const struct tern_forward_batch *b)
{
    for (int i = 0; i < f->net->desc.n_layers; i++)
        if (f->cached.stage_set[i])
            keep(f, b, i);
}

void tern_forward_copy(struct tern_forward *f, const struct tern_forward_job *to, const struct tern_forward_job *from)
{
    struct tern_cached *c = &f->cached;
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_forward_batch write = {.jobs = to, .n_jobs = 1}, read = {.jobs = from, .n_jobs = 1};
    TERN_ASSERT(to->n_rows <= f->max_rows && to->pos0 == from->pos0 && to->n_rows == from->n_rows);
    tern_cached_begin(f, &write);
    for (int i = 0; i < f->net->desc.n_layers; i++) {
        const struct tern_kv_layout *raw = f->caches[from->plan].layout, *coded = f->caches[to->plan].layout;
        if (raw->group_of[i] < 0)
            continue;
        layer_jobs(f, &read, i);
        ops->raw_rows(f->dev, &raw->layers[i], c->at, f->k.p, f->k.stride, f->v.p, f->v.stride);
        layer_jobs(f, &write, i);
        ops->append(f->dev, &coded->layers[i], c->app, 1, f->k.p, f->k.stride, f->v.p, f->v.stride);
        ops->keep(f->dev, &coded->layers[i], c->app, 1);
    }
}

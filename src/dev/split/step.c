/* What each side is told of weights, of the caches' layout, and of a step. */
#include <string.h>
#include "base/mem.h"
#include "dev/split/split.h"

/* ---- weights ----------------------------------------------------------------------------------------------------- */

const struct tern_dev_weight *tern_split_weight(const struct tern_split *s, const struct tern_dev_weight *w)
{
    if (!w || !w->form)
        return w;
    TERN_ASSERT(w->form->side == s->now);
    return &w->form->w;
}

int tern_split_weight_plan(struct tern_dev *dev, struct tern_dev_weight *w, const struct tern_weight_source *from,
                           int64_t n, int64_t k, int stack, tern_error *err)
{
    struct tern_split *s = tern_split_of(dev);
    struct tern_dev *d = s->d[s->now];
    struct tern_dev_weight own;
    *w = (struct tern_dev_weight){0};
    int rc = d->ops->weight_plan(d, &own, from, n, k, stack, err);
    if (rc < 0)
        return rc;
    if ((rc = tern_alloc(&w->form, 1, sizeof *w->form, err)) < 0) {
        d->ops->weight_drop(d, &own);
        return rc;
    }
    *w->form = (struct tern_dev_form){d->ops, s->now, own};
    w->n = own.n;
    w->k = own.k;
    w->stack = own.stack;
    return 0;
}

size_t tern_split_weight_bytes(const struct tern_dev_weight *w)
{
    return w->form->ops->weight_bytes(&w->form->w);
}

void tern_split_weight_about(const struct tern_dev_weight *w, struct tern_dev_about *out)
{
    w->form->ops->weight_about(&w->form->w, out);
}

void tern_split_weight_place(struct tern_dev *dev, struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at)
{
    struct tern_split *s = tern_split_of(dev);
    const int side = w->form->side;
    TERN_ASSERT(m->block == m->bytes && (at >= m->from && at < m->to) == (side == 0));
    w->form->ops->weight_place(s->d[side], &w->form->w, m->m[side], tern_split_at(m, side, at));
}

int tern_split_weight_load(struct tern_dev *dev, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                           tern_error *err)
{
    return w->form->ops->weight_load(tern_split_of(dev)->d[w->form->side], &w->form->w, from, err);
}

void tern_split_weight_drop(struct tern_dev *dev, struct tern_dev_weight *w)
{
    if (w->form)
        w->form->ops->weight_drop(tern_split_of(dev)->d[w->form->side], &w->form->w);
    tern_free(w->form);
    *w = (struct tern_dev_weight){0};
}

void tern_split_weight_out(struct tern_dev *dev, float *host, const struct tern_dev_weight *w, int matrix, int row,
                           int n)
{
    w->form->ops->weight_out(tern_split_of(dev)->d[w->form->side], host, &w->form->w, matrix, row, n);
}

/* ---- caches ------------------------------------------------------------------------------------------------------ */

size_t tern_dev_cut(const struct tern_dev_cache *c, int cut, int part, size_t whole)
{
    size_t first = SIZE_MAX;
    if (part == TERN_DEV_STATES)
        return cut < c->n_layers ? c->state_off[cut] : whole;
    for (int i = 0; i < c->n_spans; i++) {
        if (c->span_layer[i] < cut || (part < 0 ? c->group_of[i] < 0 : c->group_of[i] != part))
            continue;
        const size_t at = part == TERN_DEV_TILES   ? c->layers[i].tile_layer_off
                          : part == TERN_DEV_SINKS ? c->layers[i].sink_layer_off
                                                   : c->layers[i].layer_off;
        first = at < first ? at : first;
    }
    return first < SIZE_MAX ? first : whole;
}

/* Side 1's layers begin where the other's end.  Where side 0's lie nobody asks side 1. */
static void move_layers(const struct tern_dev_cache *c, int cut, struct tern_kv_layer *layers, size_t *states)
{
    const size_t tiles = tern_dev_cut(c, cut, TERN_DEV_TILES, 0), sinks = tern_dev_cut(c, cut, TERN_DEV_SINKS, 0);
    const size_t first = tern_dev_cut(c, cut, TERN_DEV_STATES, 0);
    memcpy(layers, c->layers, (size_t)c->n_spans * sizeof *layers);
    for (int i = 0; i < c->n_spans; i++) {
        const bool own = c->span_layer[i] >= cut && c->group_of[i] >= 0;
        layers[i].layer_off = own ? layers[i].layer_off - tern_dev_cut(c, cut, c->group_of[i], 0) : 0;
        layers[i].tile_layer_off = own ? layers[i].tile_layer_off - tiles : 0;
        layers[i].sink_layer_off = own ? layers[i].sink_layer_off - sinks : 0;
    }
    for (int i = 0; i < c->n_layers; i++)
        states[i] = i >= cut && c->state_off ? c->state_off[i] - first : 0;
}

static int take_caches(struct tern_split *s, const struct tern_dev_limits *l, tern_error *err)
{
    int rc = 0;
    s->n_caches = l->n_caches;
    s->max_jobs = l->max_jobs;
    for (int c = 0; c < l->n_caches; c++)
        for (int i = 0; i < l->caches[c].n_spans; i++)
            if (l->caches[c].group_of[i] >= s->n_groups)
                s->n_groups = l->caches[c].group_of[i] + 1;
    for (int i = 0; i < TERN_SPLIT_SIDES; i++) {
        TERN_TRY(tern_alloc(&s->caches[i], (size_t)s->n_caches, sizeof *s->caches[i], err));
        TERN_TRY(tern_alloc(&s->blocks[i], (size_t)s->n_caches * (size_t)s->n_groups + 1, sizeof *s->blocks[i], err));
        TERN_TRY(tern_alloc(&s->jobs[i], (size_t)s->max_jobs, sizeof *s->jobs[i], err));
        for (int c = 0; c < s->n_caches; c++)
            s->caches[i][c] = l->caches[c];
    }
    for (int c = 0; c < s->n_caches; c++) { /* its own */
        s->caches[1][c].layers = NULL;
        s->caches[1][c].state_off = NULL;
    }
    for (int c = 0; c < s->n_caches; c++) {
        const struct tern_dev_cache *from = &l->caches[c];
        struct tern_kv_layer *layers;
        size_t *states;
        TERN_TRY(tern_alloc(&layers, (size_t)from->n_spans, sizeof *layers, err));
        s->caches[1][c].layers = layers;
        TERN_TRY(tern_alloc(&states, (size_t)from->n_layers, sizeof *states, err));
        s->caches[1][c].state_off = states;
        move_layers(from, s->cut, layers, states);
    }
out:
    return rc;
}

void tern_split_close_step(struct tern_split *s)
{
    for (int c = 0; s->caches[1] && c < s->n_caches; c++) {
        tern_free((void *)(uintptr_t)s->caches[1][c].layers);
        tern_free((void *)(uintptr_t)s->caches[1][c].state_off);
    }
    for (int i = 0; i < TERN_SPLIT_SIDES; i++) {
        tern_free(s->caches[i]);
        tern_free(s->blocks[i]);
        tern_free(s->jobs[i]);
    }
    tern_free(s->crossing);
}

int tern_split_prepare(struct tern_dev *dev, const struct tern_dev_limits *limits, tern_error *err)
{
    int rc = 0;
    struct tern_split *s = tern_split_of(dev);
    s->crossing_floats = (size_t)limits->max_rows * tern_round_up((size_t)limits->max_k, 64);
    TERN_TRY(tern_alloc(&s->crossing, s->crossing_floats, sizeof *s->crossing, err));
    if (limits->n_caches)
        TERN_TRY(take_caches(s, limits, err));
    for (int i = 0; i < TERN_SPLIT_SIDES; i++) {
        struct tern_dev_limits own = *limits;
        own.caches = s->caches[i];
        TERN_TRY(s->d[i]->ops->prepare(s->d[i], &own, err));
    }
out:
    return rc;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static struct tern_dev_blocks part_of(struct tern_dev_blocks b, int side)
{
    if (!b.mem)
        return b;
    TERN_ASSERT(b.mem->block == b.bytes);
    return (struct tern_dev_blocks){b.mem->m[side], tern_split_part(b.mem, side)};
}

static void tell_caches(struct tern_split *s, const struct tern_dev_step *step, int side)
{
    for (int c = 0; c < step->n_caches; c++) {
        const struct tern_dev_cache *from = &step->caches[c];
        struct tern_dev_cache *to = &s->caches[side][c];
        struct tern_dev_blocks *pages = s->blocks[side] + (size_t)c * (size_t)s->n_groups;
        for (int g = 0; g < s->n_groups; g++)
            pages[g] = (struct tern_dev_blocks){0};
        for (int i = 0; i < from->n_spans; i++)
            if (from->group_of[i] >= 0)
                pages[from->group_of[i]] = part_of(from->pages[from->group_of[i]], side);
        to->pages = pages;
        to->tiles = part_of(from->tiles, side);
        to->sinks = part_of(from->sinks, side);
        to->states = part_of(from->states, side);
    }
}

static struct tern_dev_job job_of(const struct tern_split *s, const struct tern_dev_job *from, int side)
{
    struct tern_dev_job j = *from;
    const struct tern_dev_cache *c = &s->caches[side][j.cache];
    j.tile = c->tiles.mem ? j.tile : TERN_NO_BLOCK;
    j.sink = c->sinks.mem ? j.sink : TERN_NO_BLOCK;
    j.state = c->states.mem ? j.state : TERN_NO_BLOCK;
    j.n_marks = c->states.mem ? j.n_marks : 0;
    return j;
}

void tern_split_begin(struct tern_dev *dev, const struct tern_dev_step *step)
{
    struct tern_split *s = tern_split_of(dev);
    s->now = 1;
    TERN_ASSERT(step->n_jobs <= s->max_jobs || !s->n_caches);
    for (int i = 0; i < TERN_SPLIT_SIDES; i++) {
        struct tern_dev_step own = *step;
        tell_caches(s, step, i);
        for (int j = 0; j < step->n_jobs; j++)
            s->jobs[i][j] = job_of(s, &step->jobs[j], i);
        own.caches = s->caches[i];
        own.jobs = s->jobs[i];
        s->d[i]->ops->begin(s->d[i], &own);
    }
}

void tern_split_end(struct tern_dev *dev)
{
    struct tern_split *s = tern_split_of(dev);
    for (int i = 0; i < TERN_SPLIT_SIDES; i++)
        s->d[i]->ops->end(s->d[i]);
    s->now = 1;
}

void tern_split_layer(struct tern_dev *dev, int layer, struct tern_dev_rows x, int n_rows)
{
    struct tern_split *s = tern_split_of(dev);
    const int before = s->now, now = layer >= 0 && layer < s->cut ? 0 : 1;
    s->now = now;
    if (before == now || !n_rows)
        return;
    const size_t floats = (size_t)n_rows * x.stride, at = x.at * sizeof(float);
    struct tern_dev *from = s->d[before], *to = s->d[now];
    TERN_ASSERT(floats <= s->crossing_floats);
    from->ops->copy_out(from, s->crossing, x.mem->m[before], at, floats * sizeof(float));
    from->ops->sync(from);
    to->ops->copy_in(to, x.mem->m[now], at, s->crossing, floats * sizeof(float));
}

void tern_split_recode(struct tern_dev *dev, int layer, const struct tern_dev_job *from, struct tern_dev_rows k,
                       struct tern_dev_rows v)
{
    struct tern_split *s = tern_split_of(dev);
    struct tern_dev *d = s->d[s->now];
    s->from = job_of(s, from, s->now);
    d->ops->recode(d, layer, &s->from, tern_split_rows(s, k), tern_split_rows(s, v));
}

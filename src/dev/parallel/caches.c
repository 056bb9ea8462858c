/* Caches: of every layer each device has some of the KV heads, in pages, open tiles and first tokens; states of
 * recurrent layers are alike on all. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "dev/parallel/parallel.h"

void tern_parallel_heads_of(int n, int i, int devices, int *from, int *to)
{
    *from = n < devices ? 0 : tern_parallel_from(n, i, devices);
    *to = n < devices ? n : tern_parallel_from(n, i + 1, devices);
}

void tern_parallel_heads(const struct tern_kv_layer *l, int i, int devices, int *from, int *to)
{
    tern_parallel_heads_of(l->n_heads, l->latent ? 0 : i, l->latent ? 1 : devices, from, to);
}

void tern_parallel_queries(const struct tern_kv_layer *l, int n_heads, int i, int devices, int *from, int *to)
{
    if (l->latent) {
        tern_parallel_heads_of(n_heads, i, devices, from, to);
        return;
    }
    tern_parallel_heads(l, i, devices, from, to);
    *from *= n_heads / l->n_heads;
    *to *= n_heads / l->n_heads;
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* What a layer has in a block: `copies` times all its heads. */
struct place {
    const struct tern_kv_layer *l;
    size_t at, head_bytes;
    int copies;
};

static struct place place_of(const struct tern_kv_layer *l, int part)
{
    return part == TERN_DEV_TILES   ? (struct place){l, l->tile_layer_off, l->tile_bytes, l->ring}
           : part == TERN_DEV_SINKS ? (struct place){l, l->sink_layer_off, l->sink_bytes, 1}
                                    : (struct place){l, l->layer_off, l->head_bytes, 1};
}

static int by_place(const void *a, const void *b)
{
    const size_t x = ((const struct place *)a)->at, y = ((const struct place *)b)->at;
    return (x > y) - (x < y);
}

static int add_layer(struct tern_parallel_runs *r, int n, const struct place *p, tern_error *err)
{
    int rc = 0, from, to;
    TERN_ASSERT(p->at >= r->end);
    TERN_TRY(tern_parallel_run(r, n, p->at - r->end, -1, err));
    tern_parallel_heads(p->l, 0, n, &from, &to);
    const bool divided = to < p->l->n_heads;
    for (int copy = 0; copy < p->copies; copy++)
        for (int i = 0; i < (divided ? n : 1); i++) {
            tern_parallel_heads(p->l, i, n, &from, &to);
            TERN_TRY(tern_parallel_run(r, n, (size_t)(to - from) * p->head_bytes, divided ? i : -1, err));
        }
out:
    return rc;
}

int tern_parallel_block_runs(struct tern_parallel_runs *r, int n, const struct tern_dev_division *by, tern_error *err)
{
    int rc = 0;
    const struct tern_dev_cache *c = by->cache;
    struct place *places = NULL;
    size_t used = 0;
    if (by->part == TERN_DEV_STATES)
        return 0;
    TERN_TRY(tern_alloc(&places, (size_t)c->n_spans + 1, sizeof *places, err));
    for (int i = 0; i < c->n_spans; i++)
        if (c->layers[i].n_heads && c->group_of[i] >= 0 && (by->part < 0 || c->group_of[i] == by->part))
            places[used++] = place_of(&c->layers[i], by->part);
    qsort(places, used, sizeof *places, by_place);
    for (size_t i = 0; i < used; i++)
        TERN_TRY(add_layer(r, n, &places[i], err));
    TERN_ASSERT(r->end <= by->block);
out:
    tern_free(places);
    return rc;
}

/* ---- what each device is told ------------------------------------------------------------------------------------ */

/* Where a device's first head of a layer lies in its part of a block. */
static size_t own_place(const struct tern_parallel_runs *r, const struct place *p, int device, int first)
{
    const size_t at = p->at + (size_t)first * p->head_bytes;
    for (size_t i = 0; i < r->n; i++)
        if (at >= r->p[i].at && at < r->p[i].at + r->p[i].bytes)
            return r->p[i].own[device] + (at - r->p[i].at);
    return r->own_end[device];
}

static int move_layers(const struct tern_parallel *s, const struct tern_dev_cache *c, int part, int device,
                       struct tern_kv_layer *out, tern_error *err)
{
    int rc = 0;
    struct tern_parallel_runs r = {0};
    const struct tern_dev_division by = {.block = SIZE_MAX, .cache = c, .part = part};
    TERN_TRY(tern_parallel_block_runs(&r, s->n, &by, err));
    for (int i = 0; i < c->n_spans; i++) {
        int from, to;
        if (!c->layers[i].n_heads || c->group_of[i] < 0 || (part >= 0 && c->group_of[i] != part))
            continue;
        const struct place p = place_of(&c->layers[i], part);
        tern_parallel_heads(&c->layers[i], device, s->n, &from, &to);
        *(part == TERN_DEV_TILES   ? &out[i].tile_layer_off
          : part == TERN_DEV_SINKS ? &out[i].sink_layer_off
                                   : &out[i].layer_off) = own_place(&r, &p, device, from);
    }
out:
    tern_free(r.p);
    return rc;
}

static int own_layers(const struct tern_parallel *s, const struct tern_dev_cache *c, int device,
                      struct tern_kv_layer *out, tern_error *err)
{
    int rc = 0;
    memcpy(out, c->layers, (size_t)c->n_spans * sizeof *out);
    for (int part = TERN_DEV_SINKS; part < s->n_groups; part++)
        TERN_TRY(move_layers(s, c, part, device, out, err));
    for (int i = 0; i < c->n_spans; i++) {
        int from, to;
        if (!out[i].n_heads)
            continue;
        tern_parallel_heads(&c->layers[i], device, s->n, &from, &to);
        out[i].n_heads = to - from;
        out[i].k = tern_kv_side_of(&out[i].k, from);
        out[i].v = tern_kv_side_of(&out[i].v, from);
    }
out:
    return rc;
}

static void own_shapes(const struct tern_parallel *s, const struct tern_dev_limits *l, int device)
{
    for (int i = 0; i < l->caches[0].n_layers; i++) {
        int from, to;
        struct tern_attn_shape *shape = &s->shapes[device][i];
        *shape = l->shapes[i];
        if (!shape->n_heads)
            continue;
        const struct tern_kv_layer *kv = &l->caches[0].layers[shape->layer];
        tern_parallel_queries(kv, shape->n_heads, device, s->n, &from, &to);
        shape->n_heads = to - from;
    }
}

static int take_caches(struct tern_parallel *s, const struct tern_dev_limits *l, tern_error *err)
{
    int rc = 0;
    s->n_caches = l->n_caches;
    s->layers = l->caches[0].layers;
    for (int c = 0; c < l->n_caches; c++)
        for (int i = 0; i < l->caches[c].n_spans; i++)
            if (l->caches[c].group_of[i] >= s->n_groups)
                s->n_groups = l->caches[c].group_of[i] + 1;
    for (int i = 0; i < s->n; i++) {
        TERN_TRY(tern_alloc(&s->caches[i], (size_t)s->n_caches, sizeof *s->caches[i], err));
        TERN_TRY(tern_alloc(&s->blocks[i], (size_t)s->n_caches * (size_t)s->n_groups + 1, sizeof *s->blocks[i], err));
        TERN_TRY(tern_alloc(&s->shapes[i], (size_t)l->caches[0].n_layers + 1, sizeof *s->shapes[i], err));
        own_shapes(s, l, i);
        for (int c = 0; c < s->n_caches; c++) {
            struct tern_kv_layer *layers;
            s->caches[i][c] = l->caches[c];
            s->caches[i][c].layers = NULL; /* until they are its own */
            TERN_TRY(tern_alloc(&layers, (size_t)l->caches[c].n_spans + 1, sizeof *layers, err));
            s->caches[i][c].layers = layers;
            TERN_TRY(own_layers(s, &l->caches[c], i, layers, err));
        }
    }
out:
    return rc;
}

void tern_parallel_close_caches(struct tern_parallel *s)
{
    for (int i = 0; i < s->n; i++) {
        for (int c = 0; s->caches[i] && c < s->n_caches; c++)
            tern_free((void *)(uintptr_t)s->caches[i][c].layers);
        tern_free(s->caches[i]);
        tern_free(s->blocks[i]);
        tern_free(s->shapes[i]);
    }
    tern_free(s->crossing);
}

int tern_parallel_prepare(struct tern_dev *dev, const struct tern_dev_limits *limits, tern_error *err)
{
    int rc = 0;
    tern_error why = {0};
    struct tern_parallel *s = tern_parallel_of(dev);
    if (limits->n_caches)
        TERN_TRY(take_caches(s, limits, err));
    for (int i = 0; i < s->n; i++) {
        struct tern_dev_limits own = *limits;
        own.caches = s->caches[i];
        own.shapes = s->shapes[i];
        TERN_TRY(s->d[i]->ops->prepare(s->d[i], &own, err));
    }
    TERN_TRY(tern_parallel_experts_open(s, limits, err));
    s->joined = s->d[0]->ops->join && s->d[0]->ops->join(s->d, s->n, &why) == 0;
    if (why.code && why.code != TERN_EUNSUPPORTED)
        TERN_FAIL(err, why.code, "%s", why.msg);
    if (!s->joined) {
        s->crossing_floats = (size_t)1 << 20;
        TERN_TRY(tern_alloc(&s->crossing, s->crossing_floats, sizeof *s->crossing, err));
    }
out:
    return rc;
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static struct tern_dev_blocks part_of(struct tern_dev_blocks b, int device)
{
    if (!b.mem)
        return b;
    TERN_ASSERT(b.mem->kind == TERN_PARALLEL_BLOCKS && b.mem->block == b.bytes);
    return (struct tern_dev_blocks){b.mem->m[device], b.mem->part[device]};
}

static void tell_caches(struct tern_parallel *s, const struct tern_dev_step *step, int device)
{
    for (int c = 0; c < step->n_caches; c++) {
        const struct tern_dev_cache *from = &step->caches[c];
        struct tern_dev_cache *to = &s->caches[device][c];
        struct tern_dev_blocks *pages = s->blocks[device] + (size_t)c * (size_t)s->n_groups;
        for (int i = 0; i < from->n_spans; i++)
            if (from->group_of[i] >= 0)
                pages[from->group_of[i]] = part_of(from->pages[from->group_of[i]], device);
        to->pages = pages;
        to->tiles = part_of(from->tiles, device);
        to->sinks = part_of(from->sinks, device);
        to->states = part_of(from->states, device);
    }
}

void tern_parallel_begin(struct tern_dev *dev, const struct tern_dev_step *step)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    s->layer = -1;
    s->n_rows = step->n_rows;
    s->step++;
    tern_parallel_start(s);
    for (int i = 0; i < s->n; i++) {
        struct tern_dev_step own = *step;
        tell_caches(s, step, i);
        own.caches = s->caches[i];
        s->d[i]->ops->begin(s->d[i], &own);
    }
}

void tern_parallel_end(struct tern_dev *dev)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_start(s);
    for (int i = 0; i < s->n; i++)
        s->d[i]->ops->end(s->d[i]);
    s->layer = -1;
}

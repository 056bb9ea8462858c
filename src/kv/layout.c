#include "kv/kv.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"

/* The scheme that the text asks for in one layer, before the layer's own limits; *forced when a rule names it. */
static void wanted(const struct tern_kv_spec *s, int layer, int n_layers, const struct tern_kv_codec **k,
                   const struct tern_kv_codec **v, bool *forced)
{
    *k = s->k;
    *v = s->v;
    *forced = false;
    if (layer < s->edge || layer >= n_layers - s->edge) {
        *k = s->edge_k;
        *v = s->edge_v;
    }
    for (int i = 0; i < s->n_rules; i++)
        if (layer >= s->rules[i].from && layer <= s->rules[i].to) {
            *k = s->rules[i].k;
            *v = s->rules[i].v;
            *forced = true;
        }
}

/* Offsets inside one head of a page: headers of both sides, then keys, then values; 64 readable bytes behind the last
 * data are the next head's or the pool's slack. */
static void place_head(struct tern_kv_layer *l)
{
    size_t at = 0;
    l->k_head_off = at;
    at += l->k.codec->head_bytes(l->k.dim);
    l->v_head_off = at;
    at += l->v.codec->head_bytes(l->v.dim);
    l->k_off = at;
    at += l->k.codec->data_bytes(l->k.dim);
    l->v_off = at;
    at += l->v.codec->data_bytes(l->v.dim);
    l->head_bytes = at;
    size_t k_elem = l->k.raw32 ? 4 : 2, v_elem = l->v.raw32 ? 4 : 2;
    l->tile_v_off = tern_round_up((size_t)l->k.dim * TERN_PAGE * k_elem, TERN_ALIGN);
    l->tile_bytes = l->tile_v_off + tern_round_up((size_t)l->v.dim * TERN_PAGE * v_elem, TERN_ALIGN);
    l->sink_v_off = tern_round_up((size_t)l->k.dim * (size_t)l->first * k_elem, TERN_ALIGN);
    l->sink_bytes = l->sink_v_off + tern_round_up((size_t)l->v.dim * (size_t)l->first * v_elem, TERN_ALIGN);
    if (!l->first)
        l->sink_bytes = 0;
}

static int choose(struct tern_kv_layer *l, const struct tern_kv_decl *d, const struct tern_kv_spec *s, int layer,
                  int n_layers, bool spare_windows, bool strict, tern_error *err)
{
    const struct tern_kv_codec *f16 = tern_kv_codec_find("f16", 3), *k, *v;
    bool forced;
    const char *why = NULL;
    wanted(s, layer, n_layers, &k, &v, &forced);
    /* A window layer is bounded, so beside others its codes save little: then only a layers= rule has it coded. */
    if (d->reach.window && spare_windows && !forced && (!k->raw || !v->raw)) {
        l->why_raw = d->reach.chunked ? "attention in chunks" : "sliding window";
        k = k->raw ? k : f16;
        v = v->raw ? v : f16;
    }
    if (d->hard_keys && !forced && s->cond != TERN_COND_OFF && k->bits < 8 && !k->raw && !k->unconditioned) {
        l->why_raw = d->hard_keys;
        k = tern_kv_codec_find("q8", 2);
    }
    /* What follows the values is rotated, small, and shared by all heads. */
    if (d->latent && !k->raw) {
        l->why_raw = "keys are the position part of latent attention";
        k = f16;
    }
    if (!k->accepts(d->dim_k, &why)) {
        l->why_raw = why;
        k = f16;
    }
    if (!v->accepts(d->dim_v, &why)) {
        l->why_raw = why;
        v = f16;
    }
    if (strict && l->why_raw)
        return tern_err_set(err, TERN_EUNSUPPORTED, "--kv-policy strict: layer %d would have k=%s,v=%s: %s", layer,
                            k->name, v->name, l->why_raw);
    l->n_heads = d->n_heads;
    l->reach = d->reach;
    l->latent = d->latent;
    l->k = (struct tern_kv_side){.codec = k, .dim = d->dim_k, .key = true, .raw32 = k->raw && k->bits == 32};
    l->v = (struct tern_kv_side){.codec = v, .dim = d->dim_v, .key = false, .raw32 = v->raw && v->bits == 32};
    l->first = k->raw && v->raw ? 0 : s->first;
    l->recent = k->raw && v->raw ? 1 : s->recent / TERN_PAGE;
    l->ring = l->recent > 1 ? l->recent + 1 : 1; /* one more, so that a step back over a page's edge finds them all */
    place_head(l);
    return 0;
}

/* The group of layers with this reach; the first of them makes it. */
static int find_group(struct tern_kv_layout *l, struct tern_kv_reach r, int *group, tern_error *err)
{
    int g = 0;
    while (g < l->n_groups && (l->groups[g].reach.window != r.window || l->groups[g].reach.chunked != r.chunked))
        g++;
    if (g == TERN_KV_MAX_GROUPS)
        return tern_err_set(err, TERN_EUNSUPPORTED, "more than %d different attention windows", TERN_KV_MAX_GROUPS);
    if (g == l->n_groups)
        l->groups[l->n_groups++] = (struct tern_kv_group){.reach = r};
    *group = g;
    return 0;
}

static int make_signs(struct tern_kv_layout *l, tern_error *err)
{
    size_t n = 0;
    for (int i = 0; i < l->n_layers; i++)
        if (l->group_of[i] >= 0)
            n += (size_t)l->layers[i].k.dim + (size_t)l->layers[i].v.dim;
    int rc = tern_alloc(&l->signs, n, sizeof(float), err);
    if (rc < 0)
        return rc;
    float *p = l->signs;
    for (int i = 0; i < l->n_layers; i++) {
        if (l->group_of[i] < 0)
            continue;
        struct tern_kv_side *sides[2] = {&l->layers[i].k, &l->layers[i].v};
        for (int j = 0; j < 2; j++) {
            if (sides[j]->codec->rotated) {
                tern_kv_signs(p, sides[j]->dim, i, sides[j]->key);
                sides[j]->sign = p;
            }
            p += sides[j]->dim;
        }
    }
    return 0;
}

static uint64_t digest(const struct tern_kv_layout *l)
{
    XXH64_hash_t h = 0x7465726E;
    for (int i = 0; i < l->n_layers; i++) {
        if (l->group_of[i] < 0)
            continue;
        const struct tern_kv_layer *y = &l->layers[i];
        int64_t v[8] = {i,
                        y->n_heads,
                        y->k.dim,
                        y->v.dim,
                        y->reach.chunked ? -y->reach.window : y->reach.window,
                        y->first,
                        (int64_t)y->head_bytes,
                        y->recent};
        h += y->latent;
        h = XXH3_64bits_withSeed(v, sizeof v, h);
        h = XXH3_64bits_withSeed(y->k.codec->name, strlen(y->k.codec->name), h);
        h = XXH3_64bits_withSeed(y->v.codec->name, strlen(y->v.codec->name), h);
    }
    if (l->state_bytes)
        h = XXH3_64bits_withSeed(l->state_off, (size_t)l->n_layers * sizeof *l->state_off, h + l->state_bytes);
    return h;
}

int tern_kv_layout_new(struct tern_kv_layout **out, const struct tern_kv_decl *decl, int n_layers, const char *spec,
                       bool strict, tern_error *err)
{
    int rc = 0;
    struct tern_kv_layout *l = NULL;
    struct tern_kv_spec s;
    bool spare_windows = false; /* is there a layer that grows without bound? */
    *out = NULL;
    TERN_TRY(tern_kv_spec_parse(&s, spec, err));
    if (s.edge * 2 > n_layers)
        TERN_FAIL(err, TERN_EINVAL, "--kv %s: edge=%d covers more than the model's %d layers", spec, s.edge, n_layers);
    for (int i = 0; i < s.n_rules; i++)
        if (s.rules[i].to >= n_layers)
            TERN_FAIL(err, TERN_EINVAL, "--kv %s: layer %d does not exist (the model has %d)", spec, s.rules[i].to,
                      n_layers);
    TERN_TRY(tern_alloc(&l, 1, sizeof *l, err));
    TERN_TRY(tern_alloc(&l->layers, (size_t)n_layers, sizeof *l->layers, err));
    TERN_TRY(tern_alloc(&l->group_of, (size_t)n_layers, sizeof *l->group_of, err));
    TERN_TRY(tern_alloc(&l->state_off, (size_t)n_layers, sizeof *l->state_off, err));
    l->n_layers = n_layers;
    l->recent = 1;
    l->spec = s;
    if (snprintf(l->text, sizeof l->text, "%s", spec) >= (int)sizeof l->text)
        TERN_FAIL(err, TERN_ELIMIT, "--kv: longer than %zu characters", sizeof l->text - 1);
    for (int i = 0; i < n_layers; i++)
        spare_windows |= decl[i].n_heads && !decl[i].reach.window;
    for (int i = 0; i < n_layers; i++) {
        struct tern_kv_layer *y = &l->layers[i];
        l->group_of[i] = -1;
        l->state_off[i] = l->state_bytes;
        l->state_bytes += tern_round_up(decl[i].state_bytes, TERN_ALIGN);
        if (!decl[i].n_heads)
            continue;
        TERN_TRY(choose(y, &decl[i], &s, i, n_layers, spare_windows, strict, err));
        TERN_TRY(find_group(l, decl[i].reach, &l->group_of[i], err));
        struct tern_kv_group *g = &l->groups[l->group_of[i]];
        y->layer_off = g->page_bytes;
        g->page_bytes += y->head_bytes * (size_t)y->n_heads;
        g->ring = !g->ring || y->ring < g->ring ? y->ring : g->ring;
        g->recent = y->recent > g->recent ? y->recent : g->recent;
        g->seen_ring = y->recent > 1 ? y->ring : g->seen_ring;
        y->tile_layer_off = l->tile_bytes;
        l->tile_bytes += y->tile_bytes * (size_t)y->n_heads * (size_t)y->ring;
        l->recent = y->recent > l->recent ? y->recent : l->recent;
        y->sink_layer_off = l->sink_bytes;
        l->sink_bytes += y->sink_bytes * (size_t)y->n_heads;
        if (l->stage_tile_bytes < y->tile_bytes * (size_t)y->n_heads)
            l->stage_tile_bytes = y->tile_bytes * (size_t)y->n_heads;
    }
    TERN_TRY(make_signs(l, err));
    l->digest = digest(l);
    *out = l;
    l = NULL;
out:
    tern_kv_layout_free(l);
    return rc;
}

void tern_kv_layout_condition(struct tern_kv_layout *l, const struct tern_kv_cond_set *s)
{
    for (int i = 0; i < l->n_layers; i++) {
        struct tern_kv_layer *y = &l->layers[i];
        if (l->group_of[i] < 0 || y->k.codec->raw || y->k.codec->unconditioned)
            continue;
        y->k.cond = s->layers[i];
        for (int h = 0; h < y->n_heads; h++) {
            const struct tern_kv_cond *c = &y->k.cond[h];
            l->digest = XXH3_64bits_withSeed(c->mean, 2 * (size_t)y->k.dim * sizeof(float), l->digest);
            for (int p = 0; p < c->n_pairs; p++)
                l->digest = XXH3_64bits_withSeed(&c->pairs[p], sizeof c->pairs[p], l->digest);
        }
    }
}

void tern_kv_layout_free(struct tern_kv_layout *l)
{
    if (!l)
        return;
    tern_free(l->layers);
    tern_free(l->group_of);
    tern_free(l->state_off);
    tern_free(l->signs);
    tern_free(l);
}

double tern_kv_layer_bytes(const struct tern_kv_layer *l)
{
    return (double)l->head_bytes * l->n_heads / TERN_PAGE;
}

double tern_kv_layer_f16_bytes(const struct tern_kv_layer *l)
{
    return 2.0 * (l->k.dim + l->v.dim) * l->n_heads;
}

size_t tern_kv_layer_state(const struct tern_kv_layout *l, int layer)
{
    return (layer + 1 < l->n_layers ? l->state_off[layer + 1] : l->state_bytes) - l->state_off[layer];
}

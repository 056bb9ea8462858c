#include "kv/kv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"

/* What the layers of a model make of a --kv text, before their own limits. */
struct wish {
    const struct tern_kv_spec *s;
    const struct tern_kv_decl *decl;
    int n_text;         /* layers, without those that guess */
    bool spare_windows; /* there is a layer that grows without bound */
    int n_edge;         /* layers that edge= counts */
    int *rank;          /* [n_layers] among them, -1: not one */
};

static bool named(const struct tern_kv_spec *s, int layer)
{
    for (int i = 0; i < s->n_rules; i++)
        if (layer >= s->rules[i].from && layer <= s->rules[i].to)
            return true;
    return false;
}

static bool takes(const struct tern_kv_codec *c, int dim)
{
    const char *why;
    return c && !c->raw && c->accepts(dim, &why);
}

/* Would this layer be coded, or could the edges' schemes code it?  Only such layers count as first and last ones. */
static bool counts_for_edge(const struct wish *w, int layer)
{
    const struct tern_kv_decl *d = &w->decl[layer];
    const struct tern_kv_spec *s = w->s;
    if (!d->n_heads || d->guesses || (d->reach.window && w->spare_windows) || named(s, layer))
        return false;
    bool k = !d->latent && (takes(s->k, d->dim_k) || takes(s->edge_k, d->dim_k));
    return k || takes(s->v, d->dim_v) || takes(s->edge_v, d->dim_v);
}

/* The scheme that the text asks for in one layer.  without: a rule that is left out, n_rules for edge=, -1 for none. */
static bool wanted(const struct wish *w, int layer, int without, const struct tern_kv_codec **k,
                   const struct tern_kv_codec **v)
{
    const struct tern_kv_spec *s = w->s;
    const int rank = w->rank[layer];
    bool forced = false;
    *k = s->k;
    *v = s->v;
    if (without != s->n_rules && rank >= 0 && (rank < s->edge || rank >= w->n_edge - s->edge)) {
        *k = s->edge_k;
        *v = s->edge_v;
    }
    for (int i = 0; i < s->n_rules; i++)
        if (i != without && layer >= s->rules[i].from && layer <= s->rules[i].to) {
            *k = s->rules[i].k;
            *v = s->rules[i].v;
            forced = true;
        }
    return forced;
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

/* max=N: what would see everything sees the newest tokens and the first ones. */
static struct tern_kv_reach reach_of(const struct tern_kv_spec *s, const struct tern_kv_decl *d)
{
    return s->max && !d->reach.window ? (struct tern_kv_reach){.window = s->max - s->first, .first = s->first}
                                      : d->reach;
}

/* The scheme that one layer gets, with the reason where that is not what the text asks for. */
static const char *decide(const struct wish *w, int layer, int without, const struct tern_kv_codec **out_k,
                          const struct tern_kv_codec **out_v)
{
    const struct tern_kv_decl *d = &w->decl[layer];
    const struct tern_kv_codec *f16 = tern_kv_codec_find("f16", 3), *k, *v;
    const char *reason = NULL, *why = NULL;
    const bool forced = wanted(w, layer, without, &k, &v);
    /* A window layer is bounded, so beside others its codes save little: then only a layers= rule has it coded. */
    if (d->reach.window && w->spare_windows && !forced && (!k->raw || !v->raw)) {
        reason = d->reach.chunked ? "attention in chunks" : "sliding window";
        k = k->raw ? k : f16;
        v = v->raw ? v : f16;
    }
    if (d->hard_keys && !forced && w->s->cond != TERN_COND_OFF && k->bits < 8 && !k->raw && !k->unconditioned) {
        reason = d->hard_keys;
        k = tern_kv_codec_find("q8", 2);
    }
    /* What follows the values is rotated, small, and shared by all heads. */
    if (d->latent && !k->raw) {
        reason = "keys are the position part of latent attention";
        k = f16;
    }
    if (!d->dim_k) {
        k = v->raw ? v : f16; /* nobody's */
    } else if (!k->accepts(d->dim_k, &why)) {
        reason = why;
        k = f16;
    }
    if (!v->accepts(d->dim_v, &why)) {
        reason = why;
        v = f16;
    }
    *out_k = k;
    *out_v = v;
    return reason;
}

static struct tern_kv_side side_of(const struct tern_kv_codec *c, int dim, bool key)
{
    return (struct tern_kv_side){.codec = c, .dim = dim, .key = key, .raw32 = c->raw && c->bits == 32};
}

static int choose(struct tern_kv_layer *l, const struct wish *w, int layer, bool strict, tern_error *err)
{
    const struct tern_kv_decl *d = &w->decl[layer];
    const struct tern_kv_codec *k, *v;
    l->why_raw = decide(w, layer, -1, &k, &v);
    if (strict && l->why_raw && !d->guesses)
        return tern_err_set(err, TERN_EUNSUPPORTED, "--kv-policy strict: layer %d would have k=%s,v=%s: %s", layer,
                            k->name, v->name, l->why_raw);
    l->n_heads = d->n_heads;
    l->reach = reach_of(w->s, d);
    l->latent = d->latent;
    l->k = side_of(k, d->dim_k, true);
    l->v = side_of(v, d->dim_v, false);
    l->rate = 1;
    l->first = k->raw && v->raw ? l->reach.first : w->s->first;
    l->recent = k->raw && v->raw ? 1 : w->s->recent / TERN_PAGE;
    l->ring = l->recent > 1 ? l->recent + 1 : 1; /* one more, so that a step back over a page's edge finds them all */
    place_head(l);
    return 0;
}

/* Dims of a row that stay in 16 bits beside its codes: what is rotated, where that is wanted, or not on the grid of the
 * others. */
static int apart(const struct wish *w, int layer, const struct tern_kv_more *m, const struct tern_kv_codec *v)
{
    const int rotated = w->decl[layer].n_rot;
    const bool floats = v == tern_kv_codec_find("fp8", 3);
    return !v->raw && (floats || w->s->position) && rotated > 0 && rotated < m->dim && rotated % 8 == 0 ? rotated : 0;
}

/* A span of rows: what a layer has of keys alone, or values that are keys, too. */
static int choose_rows(struct tern_kv_layer *l, const struct wish *w, int layer, const struct tern_kv_more *m,
                       bool strict, tern_error *err)
{
    const struct tern_kv_codec *f16 = tern_kv_codec_find("f16", 3), *k, *v;
    const char *why = NULL;
    const bool index = m->role == TERN_KV_INDEX;
    const struct tern_kv_codec *keys;
    TERN_ASSERT(m->rate >= 2 && m->rate <= 128 && m->n_heads > 0);
    (void)wanted(w, layer, -1, &k, &v);
    keys = k->raw && k->bits == 32 ? k : f16;
    int position = index ? 0 : apart(w, layer, m, v);
    if (!index && !v->accepts(m->dim - position, &why)) {
        v = f16;
        position = 0;
        l->why_raw = why;
    }
    if (index && m->grid && !v->raw && tern_kv_codec_fp4()->accepts(m->dim, &why))
        keys = tern_kv_codec_fp4();
    if (strict && l->why_raw)
        return tern_err_set(err, TERN_EUNSUPPORTED, "--kv-policy strict: layer %d would have rows in %s: %s", layer,
                            v->name, l->why_raw);
    l->n_heads = m->n_heads;
    l->latent = !index;
    l->rate = m->rate;
    l->recent = 1;
    /* A page is many tokens: going back over its edge must not mean computing all of them again. */
    l->ring = 2 + TERN_KV_STATE_REACH / (TERN_PAGE * m->rate);
    l->k = side_of(position ? f16 : keys, index ? m->dim : position, true);
    l->v = side_of(index ? keys : v, index ? 0 : m->dim - position, false);
    place_head(l);
    return 0;
}

/* ---- items that change nothing ----------------------------------------------------------------------------------- */

static void add_note(struct tern_kv_layout *l, const char *fmt, ...) TERN_PRINTF(2, 3);
static void add_note(struct tern_kv_layout *l, const char *fmt, ...)
{
    va_list ap;
    if (l->n_notes == TERN_KV_MAX_NOTES)
        return;
    va_start(ap, fmt);
    (void)vsnprintf(l->note[l->n_notes++], sizeof l->note[0], fmt, ap);
    va_end(ap);
}

/* Do all layers get the same schemes without this item? */
static bool is_idle(const struct wish *w, int without)
{
    for (int i = 0; i < w->n_text; i++) {
        const struct tern_kv_codec *k, *v, *k_less, *v_less;
        if (!w->decl[i].n_heads)
            continue;
        (void)decide(w, i, -1, &k, &v);
        (void)decide(w, i, without, &k_less, &v_less);
        if (k != k_less || v != v_less)
            return false;
    }
    return true;
}

static void note_rules(struct tern_kv_layout *l, const struct wish *w)
{
    const struct tern_kv_spec *s = w->s;
    for (int i = 0; i < s->n_rules; i++) {
        bool keeps = false; /* does one of its layers keep keys and values? */
        for (int j = s->rules[i].from; j <= s->rules[i].to; j++)
            keeps |= w->decl[j].n_heads > 0;
        char to[16] = "";
        if (s->rules[i].to > s->rules[i].from)
            (void)snprintf(to, sizeof to, "-%d", s->rules[i].to);
        if (is_idle(w, i))
            add_note(l, "layers=%d%s changes nothing: %s", s->rules[i].from, to,
                     keeps ? "those schemes hold anyway" : "no keys and values are kept there");
    }
}

bool tern_kv_layout_codes_keys(const struct tern_kv_layout *l)
{
    for (int i = 0; i < l->n_text; i++)
        if (l->group_of[i] >= 0 && !l->layers[i].k.codec->raw && !l->layers[i].k.codec->unconditioned)
            return true;
    return false;
}

static bool codes(const struct tern_kv_layout *l)
{
    for (int i = 0; i < l->n_spans; i++)
        if (l->group_of[i] >= 0 && !(l->layers[i].k.codec->raw && l->layers[i].v.codec->raw))
            return true;
    return false;
}

static bool codes_rows(const struct tern_kv_layout *l)
{
    for (int i = l->n_layers; i < l->n_spans; i++)
        if (l->roles[i] == TERN_KV_ROWS && !l->layers[i].v.codec->raw)
            return true;
    return false;
}

/* Does max=N give some layer its window? */
static bool shortens(const struct tern_kv_layout *l, const struct wish *w)
{
    for (int i = 0; i < l->n_layers; i++)
        if (l->group_of[i] >= 0 && l->layers[i].reach.window && !w->decl[i].reach.window)
            return true;
    return false;
}

static int note_idle_items(struct tern_kv_layout *l, const struct wish *w, bool strict, tern_error *err)
{
    const struct tern_kv_spec *s = w->s;
    for (int i = 0; i < s->n_items && i < TERN_KV_MAX_ITEMS; i++)
        if (i != s->k_item && i != s->v_item)
            add_note(l, "%s changes nothing: a later item names other schemes (k=SCHEME,v=SCHEME has one each)",
                     s->item[i]);
    if (!s->from_file) /* a plan file may say the same of many layers */
        note_rules(l, w);
    if (s->edge && is_idle(w, s->n_rules))
        add_note(l, "edge=%d changes nothing: those layers have that scheme anyway", s->edge);
    if (s->position && !codes_rows(l))
        add_note(l, "position=f16 changes nothing: no layer keeps compressed rows in codes");
    if (s->max && !shortens(l, w))
        add_note(l, "max=%d changes nothing: every layer that keeps tokens has a window of its own", s->max);
    if (s->first != TERN_KV_FIRST && !codes(l) && !shortens(l, w))
        add_note(l, "first=%d changes nothing: no layer is coded", s->first);
    if (s->recent != TERN_PAGE && !codes(l))
        add_note(l, "recent=%d changes nothing: no layer is coded", s->recent);
    if (s->cond != TERN_COND_AUTO && !tern_kv_layout_codes_keys(l))
        add_note(l, "cond= changes nothing: no keys have a scheme that it could serve");
    if (strict && l->n_notes)
        return tern_err_set(err, TERN_EUNSUPPORTED, "--kv-policy strict: --kv %s: %s", l->text, l->note[0]);
    return 0;
}

/* The group of spans with this reach and rate; the first of them makes it. */
static int find_group(struct tern_kv_layout *l, struct tern_kv_reach r, int rate, int *group, tern_error *err)
{
    int g = 0;
    while (g < l->n_groups && (!tern_kv_same_reach(l->groups[g].reach, r) || l->groups[g].rate != rate))
        g++;
    if (g == TERN_KV_MAX_GROUPS)
        return tern_err_set(err, TERN_EUNSUPPORTED, "more than %d different attention windows and rates",
                            TERN_KV_MAX_GROUPS);
    if (g == l->n_groups)
        l->groups[l->n_groups++] = (struct tern_kv_group){.reach = r, .rate = rate};
    *group = g;
    return 0;
}

/* Gives a span its place in pages and first tokens. */
static int place(struct tern_kv_layout *l, int span, tern_error *err)
{
    struct tern_kv_layer *y = &l->layers[span];
    const size_t heads = (size_t)y->n_heads;
    int rc = find_group(l, y->reach, y->rate, &l->group_of[span], err);
    if (rc < 0)
        return rc;
    struct tern_kv_group *g = &l->groups[l->group_of[span]];
    l->windows |= g->reach.window > 0;
    y->layer_off = g->page_bytes;
    g->page_bytes += y->head_bytes * heads;
    g->ring = !g->ring || y->ring < g->ring ? y->ring : g->ring;
    g->recent = y->recent > g->recent ? y->recent : g->recent;
    g->seen_ring = y->recent > 1 ? y->ring : g->seen_ring;
    l->recent = y->recent > l->recent ? y->recent : l->recent;
    y->sink_layer_off = l->sink_bytes;
    l->sink_bytes += y->sink_bytes * heads;
    if (l->stage_tile_bytes < y->tile_bytes * heads)
        l->stage_tile_bytes = y->tile_bytes * heads;
    return 0;
}

/* The spans of rows, behind those of the layers. */
static int add_rows(struct tern_kv_layout *l, const struct wish *w, bool strict, tern_error *err)
{
    int rc = 0, span = l->n_layers;
    for (int i = 0; i < l->n_layers; i++)
        for (int j = 0; j < w->decl[i].n_more; j++, span++) {
            l->span_layer[span] = i;
            l->roles[span] = w->decl[i].more[j].role;
            l->group_of[span] = -1;
            TERN_TRY(choose_rows(&l->layers[span], w, i, &w->decl[i].more[j], strict, err));
            TERN_TRY(place(l, span, err));
        }
out:
    return rc;
}

static void place_tile(struct tern_kv_layout *l, int span)
{
    struct tern_kv_layer *y = &l->layers[span];
    if (l->group_of[span] < 0)
        return;
    y->tile_layer_off = l->tile_bytes;
    l->tile_bytes += y->tile_bytes * (size_t)y->n_heads * (size_t)y->ring;
}

/* Layer by layer, each with all its spans. */
static void place_tiles(struct tern_kv_layout *l)
{
    l->tile_bytes = 0;
    for (int i = 0, span = l->n_layers; i < l->n_layers; i++) {
        place_tile(l, i);
        for (; span < l->n_spans && l->span_layer[span] == i; span++)
            place_tile(l, span);
    }
}

/* A span has the signs that it would have without layers that guess: it must hold the same numbers. */
static int signs_of(const struct tern_kv_layout *l, int span)
{
    return span < l->n_text ? span : span < l->n_layers ? l->n_spans + span : span - (l->n_layers - l->n_text);
}

static int make_signs(struct tern_kv_layout *l, tern_error *err)
{
    size_t n = 0;
    for (int i = 0; i < l->n_spans; i++)
        if (l->group_of[i] >= 0)
            n += (size_t)l->layers[i].k.dim + (size_t)l->layers[i].v.dim;
    int rc = tern_alloc(&l->signs, n, sizeof(float), err);
    if (rc < 0)
        return rc;
    float *p = l->signs;
    for (int i = 0; i < l->n_spans; i++) {
        if (l->group_of[i] < 0)
            continue;
        struct tern_kv_side *sides[2] = {&l->layers[i].k, &l->layers[i].v};
        for (int j = 0; j < 2; j++) {
            if (sides[j]->codec->rotated) {
                tern_kv_signs(p, sides[j]->dim, signs_of(l, i), sides[j]->key);
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
    for (int i = 0; i < l->n_spans; i++) {
        if (l->group_of[i] < 0)
            continue;
        const struct tern_kv_layer *y = &l->layers[i];
        int64_t v[8] = {l->span_layer[i],
                        y->n_heads,
                        y->k.dim,
                        y->v.dim,
                        y->reach.chunked ? -y->reach.window : y->reach.window,
                        y->first,
                        (int64_t)y->head_bytes,
                        y->recent};
        h += (uint64_t)y->reach.first << 32;
        h += (uint64_t)y->latent + (i < l->n_layers ? 0 : (uint64_t)y->rate << 8 | (uint64_t)l->roles[i] << 16);
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
    struct wish w = {.s = &s, .decl = decl, .n_text = n_layers};
    *out = NULL;
    TERN_TRY(tern_kv_spec_parse(&s, spec, err));
    while (w.n_text && decl[w.n_text - 1].guesses)
        w.n_text--;
    if (s.edge * 2 > w.n_text)
        TERN_FAIL(err, TERN_EINVAL, "--kv %s: edge=%d covers more than the model's %d layers", spec, s.edge, w.n_text);
    for (int i = 0; i < s.n_rules; i++)
        if (s.rules[i].to >= w.n_text)
            TERN_FAIL(err, TERN_EINVAL, "--kv %s: layer %d does not exist (the model has %d)", spec, s.rules[i].to,
                      w.n_text);
    TERN_TRY(tern_alloc(&l, 1, sizeof *l, err));
    l->n_layers = l->n_spans = n_layers;
    l->n_text = w.n_text;
    for (int i = 0; i < n_layers; i++)
        l->n_spans += decl[i].n_more;
    if (s.max && l->n_spans > n_layers)
        TERN_FAIL(err, TERN_EUNSUPPORTED,
                  "--kv %s: max=%d cannot be had: this model keeps rows of several tokens, and attends to all of them",
                  spec, s.max);
    TERN_TRY(tern_alloc(&l->layers, (size_t)l->n_spans, sizeof *l->layers, err));
    TERN_TRY(tern_alloc(&l->group_of, (size_t)l->n_spans, sizeof *l->group_of, err));
    TERN_TRY(tern_alloc(&l->span_layer, (size_t)l->n_spans, sizeof *l->span_layer, err));
    TERN_TRY(tern_alloc(&l->roles, (size_t)l->n_spans, sizeof *l->roles, err));
    TERN_TRY(tern_alloc(&l->state_off, (size_t)n_layers, sizeof *l->state_off, err));
    l->recent = 1;
    l->spec = s;
    if (snprintf(l->text, sizeof l->text, "%s", spec) >= (int)sizeof l->text)
        TERN_FAIL(err, TERN_ELIMIT, "--kv: longer than %zu characters", sizeof l->text - 1);
    for (int i = 0; i < w.n_text; i++)
        w.spare_windows |= decl[i].n_more || (decl[i].n_heads && !decl[i].reach.window);
    TERN_TRY(tern_alloc(&w.rank, (size_t)n_layers, sizeof *w.rank, err));
    for (int i = 0; i < n_layers; i++)
        w.rank[i] = counts_for_edge(&w, i) ? w.n_edge++ : -1;
    for (int i = 0; i < n_layers; i++) {
        struct tern_kv_layer *y = &l->layers[i];
        l->span_layer[i] = i;
        l->roles[i] = TERN_KV_TOKENS;
        l->group_of[i] = -1;
        l->state_off[i] = l->state_bytes;
        l->state_bytes += tern_round_up(decl[i].state_bytes, TERN_ALIGN);
        if (!decl[i].n_heads)
            continue;
        TERN_TRY(choose(y, &w, i, strict, err));
        TERN_TRY(place(l, i, err));
    }
    TERN_TRY(add_rows(l, &w, strict, err));
    place_tiles(l);
    TERN_TRY(note_idle_items(l, &w, strict, err));
    TERN_TRY(make_signs(l, err));
    l->digest = digest(l);
    if (tern_kv_layout_codes_keys(l))
        (void)snprintf(l->keys, sizeof l->keys, "as they are");
    *out = l;
    l = NULL;
out:
    tern_free(w.rank);
    tern_kv_layout_free(l);
    return rc;
}

void tern_kv_layout_spare(struct tern_kv_layout *l, int drafts)
{
    TERN_ASSERT(drafts >= 0 && drafts <= TERN_KV_MAX_DRAFTS);
    l->drafts = drafts;
    if (!drafts)
        return;
    for (int i = 0; i < l->n_spans; i++)
        if (l->group_of[i] >= 0 && l->layers[i].ring < 2)
            l->layers[i].ring = 2;
    place_tiles(l);
    for (int g = 0; g < l->n_groups; g++)
        l->groups[g].ring = l->groups[g].ring < 2 ? 2 : l->groups[g].ring;
}

void tern_kv_layout_condition(struct tern_kv_layout *l, const struct tern_kv_cond_set *s, const char *source)
{
    for (int i = 0; i < l->n_text; i++) {
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
    (void)snprintf(l->keys, sizeof l->keys, "%s, %08x", source, (unsigned)l->digest);
}

void tern_kv_layout_describe(const struct tern_kv_layout *l, char *out, size_t n)
{
    const int room = (int)n - (int)sizeof l->keys - 16; /* the conditioning is told even if the text is long */
    if (l->keys[0])
        (void)snprintf(out, n, "%.*s (keys %s)", room, l->text, l->keys);
    else
        (void)snprintf(out, n, "%s", l->text);
}

void tern_kv_layout_free(struct tern_kv_layout *l)
{
    if (!l)
        return;
    tern_free(l->layers);
    tern_free(l->group_of);
    tern_free(l->span_layer);
    tern_free(l->roles);
    tern_free(l->state_off);
    tern_free(l->signs);
    tern_free(l);
}

double tern_kv_layer_bytes(const struct tern_kv_layer *l)
{
    return (double)l->head_bytes * l->n_heads / TERN_PAGE / l->rate;
}

double tern_kv_layer_f16_bytes(const struct tern_kv_layer *l)
{
    return 2.0 * (l->k.dim + l->v.dim) * l->n_heads / l->rate;
}

int tern_kv_span_of(const struct tern_kv_layout *l, int layer, enum tern_kv_role role)
{
    for (int i = 0; i < l->n_spans; i++)
        if (l->span_layer[i] == layer && l->roles[i] == role && l->group_of[i] >= 0)
            return i;
    return -1;
}

double tern_kv_spans_bytes(const struct tern_kv_layout *l, int layer)
{
    double n = 0;
    for (int i = 0; i < l->n_spans; i++)
        if (l->span_layer[i] == layer && l->group_of[i] >= 0)
            n += tern_kv_layer_bytes(&l->layers[i]);
    return n;
}

double tern_kv_spans_f16_bytes(const struct tern_kv_layout *l, int layer)
{
    double n = 0;
    for (int i = 0; i < l->n_spans; i++)
        if (l->span_layer[i] == layer && l->group_of[i] >= 0)
            n += tern_kv_layer_f16_bytes(&l->layers[i]);
    return n;
}

size_t tern_kv_layer_state(const struct tern_kv_layout *l, int layer)
{
    return (layer + 1 < l->n_layers ? l->state_off[layer + 1] : l->state_bytes) - l->state_off[layer];
}

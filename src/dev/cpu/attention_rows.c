/* Closed pages: wide rows decode them, narrow rows read the codes. */
#include "dev/cpu/attention.h"

#include <math.h>
#include <string.h>

static void start_rows(const struct attn_unit *u, struct attn_scratch *c)
{
    memset(c->o, 0, (size_t)u->n_q * (size_t)u->step->kv->v.dim * sizeof(float));
    for (int i = 0; i < u->n_q; i++) {
        c->m[i] = -INFINITY;
        c->l[i] = 0;
    }
}

/* ---- wide --------------------------------------------------------------------------------------------------- */

const float *tern_attn_page_f32(const struct tern_kv_side *side, float *buf, const uint8_t *data, const uint8_t *head)
{
    if (!side->codec->raw)
        side->codec->decode(side, buf, data, (const uint16_t *)(const void *)head);
    else if (side->raw32)
        return (const float *)(const void *)data;
    else
        tern_k.attn.f16_to_f32(buf, (const uint16_t *)(const void *)data, (size_t)side->dim * TERN_PAGE);
    return buf;
}

void tern_attn_wide_queries(const struct attn_unit *u, struct attn_scratch *c)
{
    struct tern_kv_query query = {.x = c->x};
    tern_attn_load_q(u, c->x, 0, u->n_q);
    if (!u->key.codec->raw)
        u->key.codec->prep(&u->key, &query, c->x, u->n_q, false);
}

/* A closed page in f32. */
static void load_page(const struct attn_unit *u, struct attn_scratch *c, int page, const float **k, const float **v)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const uint8_t *p = tern_attn_page(u, page);
    *k = tern_attn_page_f32(&kv->k, c->k, p + kv->k_off, p + kv->k_head_off);
    *v = tern_attn_page_f32(&kv->v, c->v, p + kv->v_off, p + kv->v_head_off);
}

static void wide_page(const struct attn_unit *u, struct attn_scratch *c, int page)
{
    const size_t dk = (size_t)u->step->kv->k.dim, dv = (size_t)u->step->kv->v.dim;
    const float *k, *v;
    load_page(u, c, page, &k, &v);
    for (int i = 0; i < u->n_q; i += ATTN_SUB) {
        int n = u->n_q - i < ATTN_SUB ? u->n_q - i : ATTN_SUB;
        tern_k.attn.score_f32(c->s, c->x + (size_t)i * dk, k, (int)dk, n);
        if (tern_attn_completes(u)) {
            tern_attn_load_q(u, c->raw, i, n);
            tern_attn_complete(u, c->s, c->raw, n, page);
        }
        tern_attn_softmax(u, c, i, n, page, 1, attn_first_token(u, page), TERN_PAGE, NULL);
        tern_k.attn.accum_f32(c->o + (size_t)i * dv, c->s, v, c->shrink, (int)dv, TERN_PAGE, n);
    }
}

/* Tiles take pages in aligned groups: one softmax, and one long product with the values.  A row's groups depend on its
 * position alone; those of the block that begin before its window change nothing for it.  The n_units see the same
 * pages, which become tiles in the memory that their scratch has in common. */
static void tile_group(const struct attn_unit *u, struct attn_scratch *c, int n_units, int page, int n_pages)
{
    const float *k, *v;
    for (int j = 0; j < n_pages; j++) {
        load_page(u, c, page + j, &k, &v);
        if (page + j == 0 && attn_firsts_in_page(u))
            tern_attn_put_firsts(u, c, c->k, c->v);
        tern_attn_tile_page(u, c, j, n_pages, k, v);
    }
    for (; n_units > 0; n_units--, u++, c++)
        for (int i = 0; i < u->n_q; i += TERN_BAND) {
            int n = u->n_q - i < TERN_BAND ? u->n_q - i : TERN_BAND;
            const float *x = page == u->block->page0 ? c->x + (size_t)i * (size_t)u->step->kv->k.dim : NULL;
            tern_attn_tile_band(u, c, page, n_pages, x, i, n, true);
        }
}

int tern_attn_group_end(int page, int end)
{
    int next = (page / TERN_SOFTMAX_PAGES + 1) * TERN_SOFTMAX_PAGES;
    return next < end ? next : end;
}

static void wide_pages(const struct attn_unit *u, struct attn_scratch *c, int begin, int end)
{
    if (begin < end)
        tern_attn_wide_queries(u, c);
    for (int page = begin; page < end; page++)
        wide_page(u, c, page);
}

static void tile_groups(const struct attn_unit *u, struct attn_scratch *c, int n_units, int begin, int end)
{
    for (int page = begin, next; page < end; page = next) {
        next = tern_attn_group_end(page, end);
        tile_group(u, c, n_units, page, next - page);
    }
}

static void tile_pages(const struct attn_unit *u, struct attn_scratch *c, int begin, int end)
{
    if (begin < end)
        tern_attn_wide_queries(u, c);
    tile_groups(u, c, 1, begin, end);
}

/* Two units, the second behind the first: groups that both see as a whole are theirs together.  Where there are none,
 * each has its own as it would alone. */
static void tile_pages_of_two(const struct attn_unit *u, struct attn_scratch *c)
{
    const struct attn_block *a = u[0].block, *b = u[1].block;
    const int end = a->raw0 / TERN_SOFTMAX_PAGES * TERN_SOFTMAX_PAGES;
    const int begin = a->page0 == b->page0 ? a->page0 : (b->page0 / TERN_SOFTMAX_PAGES + 1) * TERN_SOFTMAX_PAGES;
    const bool none = begin >= end;
    for (int i = 0; i < 2; i++)
        if (u[i].block->page0 < u[i].block->raw0) {
            tern_attn_wide_queries(&u[i], &c[i]);
            tile_groups(&u[i], &c[i], 1, u[i].block->page0, none ? u[i].block->raw0 : begin);
        }
    if (none)
        return;
    tile_groups(u, c, 2, begin, end);
    for (int i = 0; i < 2; i++)
        tile_groups(&u[i], &c[i], 1, end, u[i].block->raw0);
}

static void begin_tiles(void)
{
    tern_k.bf16.begin();
}

static void end_tiles(void)
{
    tern_k.bf16.end();
}

const struct attn_kind tern_attn_wide = {.pages = wide_pages, .sinks = tern_attn_sinks, .raw = tern_attn_raw};
const struct attn_kind tern_attn_tiles = {
    .begin = begin_tiles, .end = end_tiles, .pages = tile_pages, .sinks = tern_attn_sinks, .raw = tern_attn_raw_tiles};

void tern_attn_wide_units(const struct attn_unit *u, struct attn_scratch *c, int n)
{
    for (int i = 0; i < n; i++)
        start_rows(&u[i], &c[i]);
    if (u->kind->begin)
        u->kind->begin();
    if (n == 2)
        tile_pages_of_two(u, c);
    else
        u->kind->pages(u, c, u->block->page0, u->block->raw0);
    for (int i = 0; i < n; i++)
        tern_attn_finish(&u[i], &c[i]);
    if (u->kind->end)
        u->kind->end();
}

/* ---- narrow ------------------------------------------------------------------------------------------------- */

_Static_assert(TERN_ATTN_RANGE % TERN_SOFTMAX_PAGES == 0, "groups of pages do not cross ranges");

#define MOST_AHEAD 4 /* sides of pages, a side being the keys or the values */

/* Sides of a page between the one in use and the one asked for: about ATTN_ASK bytes.  Kernels on floats ask for what
 * comes next themselves, and want to know the side that follows. */
static int sides_ahead(const struct tern_kv_side *side)
{
    const size_t bytes = side->codec->raw ? ATTN_ASK : side->codec->data_bytes(side->dim);
    const size_t n = (ATTN_ASK + bytes - 1) / bytes;
    return n < MOST_AHEAD ? (int)n : MOST_AHEAD;
}

/* n pages from `page` on as one unit meets them, of one aligned group: all keys, one softmax, all values. */
struct group {
    const struct attn_unit *u;
    int page, n;
};

/* Side i of a group in the order of use. */
static const uint8_t *side_of(const struct group *g, int i)
{
    const struct tern_kv_layer *kv = g->u->step->kv;
    return i < g->n ? tern_attn_page(g->u, g->page + i) + kv->k_off
                    : tern_attn_page(g->u, g->page + i - g->n) + kv->v_off;
}

/* A row meets its pages in groups that its position alone decides, and pages that it does not see change nothing, so
 * the group is no property of the batch.  then: what the thread reads next; n is 0 behind the last. */
static void narrow_group(const struct group *g, struct attn_scratch *c, const struct group *then)
{
    const struct attn_unit *u = g->u;
    const struct tern_kv_layer *kv = u->step->kv;
    const size_t stride = (size_t)u->n_q * TERN_PAGE;
    const int k_ahead = sides_ahead(&kv->k), v_ahead = sides_ahead(&kv->v), n = g->n;
    const uint8_t *sides[2 * TERN_SOFTMAX_PAGES + MOST_AHEAD];
    for (int j = 0; j < 2 * n; j++)
        sides[j] = side_of(g, j);
    for (int j = 0; j < MOST_AHEAD; j++)
        sides[2 * n + j] = j < 2 * then->n ? side_of(then, j) : NULL;
    if (tern_attn_completes(u))
        tern_attn_load_q(u, c->raw, 0, u->n_q);
    for (int j = 0; j < n; j++) {
        if (j < then->n) /* headers are needed before the codes that the kernels ask for */
            tern_attn_fetch(tern_attn_page(then->u, then->page + j), kv->k_off);
        const void *head = sides[j] - kv->k_off + kv->k_head_off;
        kv->k.codec->score(&u->key, c->s + (size_t)j * stride, &c->query, sides[j], head, u->n_q, sides[j + k_ahead]);
        if (tern_attn_completes(u))
            tern_attn_complete(u, c->s + (size_t)j * stride, c->raw, u->n_q, g->page + j);
    }
    /* The softmax would leave the memory idle.  The first values are on their way: on to what follows them. */
    tern_attn_softmax(u, c, 0, u->n_q, g->page, n, attn_first_token(u, g->page), n * TERN_PAGE,
                      k_ahead < n ? sides[n + k_ahead] : NULL);
    for (int j = 0; j < n; j++) {
        const void *head = sides[j] - kv->k_off + kv->v_head_off;
        const float *weights = c->s + (size_t)j * stride, *shrink = j ? NULL : c->shrink;
        kv->v.codec->accum(&kv->v, c->o, weights, sides[n + j], head, shrink, u->n_q, sides[n + j + v_ahead]);
    }
}

/* Partial results of q row i of a unit: [range][v.dim] of o, then m[range], l[range]. */
static float *part_of(const struct attn_unit *u, int i)
{
    const struct attn_step *step = u->step;
    size_t per_row = (size_t)u->block->n_ranges * attn_part_floats(step->kv);
    size_t slot = (size_t)u->head0 * (size_t)u->block->n_rows + (size_t)i;
    return step->part + u->block->part + slot * per_row;
}

static void save_part(const struct attn_unit *u, int range, const struct attn_scratch *c)
{
    size_t dv = (size_t)u->step->kv->v.dim, n_ranges = (size_t)u->block->n_ranges;
    for (int i = 0; i < u->n_q; i++) {
        float *part = part_of(u, i);
        memcpy(part + (size_t)range * dv, c->o + (size_t)i * dv, dv * sizeof(float));
        part[n_ranges * dv + (size_t)range] = c->m[i];
        part[n_ranges * (dv + 1) + (size_t)range] = c->l[i];
    }
}

static void narrow_queries(const struct attn_unit *u, struct attn_scratch *c)
{
    tern_attn_load_q(u, c->raw, 0, u->n_q);
    u->key.codec->prep(&u->key, &c->query, c->raw, u->n_q, true);
}

/* Closed pages [begin, end) of n units; the thread goes on to read those up to `last`.  Heads lie behind each other in
 * a page and pages far apart, and processors read on behind what they are asked for: that is the next head, so it comes
 * next (decision 075). */
static void narrow_pages(const struct attn_unit *u, struct attn_scratch *c, int n, int begin, int end, int last)
{
    for (int page = begin, next; page < end; page = next) {
        next = tern_attn_group_end(page, end);
        for (int i = 0; i < n; i++) {
            const struct group g = {&u[i], page, next - page};
            const struct group behind = {u, next, tern_attn_group_end(next, last) - next};
            const struct group beside = {&u[i + 1], page, next - page};
            narrow_group(&g, &c[i], i + 1 < n ? &beside : &behind);
        }
    }
}

const struct attn_kind tern_attn_narrow = {.sinks = tern_attn_sinks, .raw = tern_attn_raw};

/* What the kernels would have asked for before the first page of a task: headers of its group, and keys as far as they
 * ask ahead. */
static void begin_pages(const struct attn_unit *u, int page, int end)
{
    const struct tern_kv_layer *kv = u->step->kv;
    const size_t bytes = kv->k.codec->data_bytes(kv->k.dim);
    const int n = tern_attn_group_end(page, end) - page, ahead = sides_ahead(&kv->k);
    for (int j = 0; j < n; j++) {
        const uint8_t *p = tern_attn_page(u, page + j);
        tern_attn_fetch(p, kv->k_off);
        if (j < ahead)
            tern_attn_fetch(p + kv->k_off, bytes < ATTN_ASK ? bytes : ATTN_ASK);
    }
}

/* Several ranges in turn begin once: what memory brings for the next one is asked for during the one before. */
void tern_attn_narrow_ranges(const struct attn_unit *u, struct attn_scratch *c, int n, int first, int last, bool ready)
{
    const struct attn_block *b = u->block;
    const int range0 = b->page0 / TERN_ATTN_RANGE, behind = (range0 + last) * TERN_ATTN_RANGE;
    const int begin = first ? (range0 + first) * TERN_ATTN_RANGE : b->page0, end = behind < b->raw0 ? behind : b->raw0;
    TERN_ASSERT(n == 1 || !u->kind->pages);
    if (begin < end) {
        begin_pages(u, begin, end);
        for (int i = 0; i < n && !ready && !u->kind->pages; i++)
            narrow_queries(&u[i], &c[i]);
    }
    for (int range = first, page = begin, next; range < last; range++, page = next) {
        next = (range0 + range + 1) * TERN_ATTN_RANGE;
        next = next < end ? next : end;
        for (int i = 0; i < n; i++)
            start_rows(&u[i], &c[i]);
        if (u->kind->pages)
            u->kind->pages(u, c, page, next);
        else
            narrow_pages(u, c, n, page, next, end);
        for (int i = 0; i < n && b->n_ranges > 1; i++)
            save_part(&u[i], range, &c[i]);
    }
    for (int i = 0; i < n && b->n_ranges <= 1; i++)
        tern_attn_finish(&u[i], &c[i]);
}

/* The ranges of one q row are one more softmax: weights exp2(m_r - m), sums of o_r and l_r in ascending order.  Chunks
 * of 64 ranges are cut at absolute indices, so they do not move with a window. */
static void merge_row(const struct attn_unit *u, const float *part, float *o, float *m, float *l, float *s)
{
    const int n_ranges = u->block->n_ranges, dv = u->step->kv->v.dim;
    const int range0 = u->block->page0 / TERN_ATTN_RANGE;
    const float *part_m = part + (size_t)n_ranges * (size_t)dv, *part_l = part_m + n_ranges;
    for (int r = 0, n; r < n_ranges; r += n) {
        n = TERN_PAGE - (range0 + r) % TERN_PAGE;
        n = n_ranges - r < n ? n_ranges - r : n;
        float unused = 0;
        memcpy(s, part_m + r, (size_t)n * sizeof(float));
        float shrink = tern_k.attn.softmax(s, 0, 1, 0, n, m, &unused);
        tern_k.attn.accum_f32(o, s, part + (size_t)r * (size_t)dv, &shrink, dv, n, 1);
        *l *= shrink;
        for (int i = 0; i < n; i++)
            *l += s[i] * part_l[r + i];
    }
}

void tern_attn_narrow_merge(const struct attn_unit *u, struct attn_scratch *c)
{
    start_rows(u, c);
    for (int i = 0; i < u->n_q; i++)
        merge_row(u, part_of(u, i), c->o + (size_t)i * (size_t)u->step->kv->v.dim, &c->m[i], &c->l[i], c->s);
    tern_attn_finish(u, c);
}

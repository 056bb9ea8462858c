#include "kv/kv.h"

#include <string.h>
#include "base/mem.h"
#include "kv/state.h"

/* ---- cache ---------------------------------------------------------------------------------------------------- */

/* Pages a sequence may hold in a group at once: all of them, or the window plus one step plus the pages of slack that
 * let a few tokens be taken back. */
static int max_pages(const struct tern_kv_group *g, int max_tokens, int max_step, bool states)
{
    int all = tern_kv_closed(g, max_tokens);
    int64_t ring = ((int64_t)g->reach.window + max_step + (states ? TERN_KV_STATE_REACH : 0)) / TERN_PAGE + 4;
    return g->reach.window && ring < all ? (int)ring : all;
}

/* Without a budget: checkpoints per sequence that others may hold. */
#define SPARE 16

/* Blocks that a pool may need: for sequences, or as many as the budget pays for, because others refer to blocks too. */
static size_t most_blocks(const struct tern_kv_budget *b, size_t block_bytes, size_t for_seqs)
{
    size_t paid = b->limit == SIZE_MAX ? 0 : b->limit / tern_round_up(block_bytes, TERN_ALIGN);
    size_t n = paid > for_seqs ? paid : for_seqs;
    return n < TERN_NO_BLOCK ? n : TERN_NO_BLOCK - 1;
}

/* A pool of blocks of so many bytes, whose `part` is as tern_dev_cut has it. */
static int open_pool(struct tern_kv_cache *c, struct tern_kv_pool *p, int part, size_t bytes, size_t n_blocks,
                     tern_error *err)
{
    struct tern_dev_blocks pages[TERN_KV_MAX_GROUPS];
    struct tern_dev_cache layers;
    struct tern_dev_division in = {.part = part, .cache = &layers};
    tern_kv_dev_cache(&layers, pages, c);
    if (c->dev->ops->cut)
        in.to = tern_dev_cut(&layers, c->dev->ops->cut, part, tern_round_up(bytes, TERN_ALIGN));
    return tern_kv_pool_init(p, c->dev, bytes, &in, most_blocks(c->budget, bytes, n_blocks), c->budget, err);
}

int tern_kv_cache_init(struct tern_kv_cache *c, const struct tern_kv_layout *l, const struct tern_kv_room *room,
                       tern_error *err)
{
    int rc = 0;
    const size_t seqs = (size_t)room->max_seqs, sink_bytes = l->sink_bytes ? l->sink_bytes : TERN_ALIGN;
    memset(c, 0, sizeof *c);
    c->layout = l;
    c->max_tokens = room->max_tokens;
    c->max_step = room->max_step;
    c->own_budget.limit = SIZE_MAX;
    c->budget = room->budget ? room->budget : &c->own_budget;
    c->dev = room->dev;
    if (!c->dev) {
        TERN_TRY(tern_dev_open(&c->own_dev, NULL, NULL, err));
        c->dev = c->own_dev;
    }
    TERN_TRY(tern_alloc(&c->seqs, seqs, sizeof *c->seqs, err));
    c->max_seqs = room->max_seqs;
    for (int g = 0; g < l->n_groups; g++) {
        const size_t n = (size_t)max_pages(&l->groups[g], c->max_tokens, c->max_step, l->state_bytes),
                     bytes = l->groups[g].page_bytes;
        TERN_TRY(open_pool(c, &c->pool[g], g, bytes, n * seqs, err));
        for (size_t i = 0; i < seqs; i++) {
            TERN_TRY(tern_alloc(&c->seqs[i].table[g].pages, n + 1, sizeof(uint32_t), err));
            c->seqs[i].table[g].cap = (int)n;
        }
    }
    TERN_TRY(open_pool(c, &c->tiles, TERN_DEV_TILES, l->tile_bytes, seqs * (1 + SPARE), err));
    TERN_TRY(open_pool(c, &c->sinks, TERN_DEV_SINKS, sink_bytes, seqs * (1 + SPARE), err));
    if (l->state_bytes)
        TERN_TRY(
            open_pool(c, &c->states, TERN_DEV_STATES, l->state_bytes, seqs * (TERN_KV_KEPT_STATES + 1 + SPARE), err));
    return 0;
out:
    tern_kv_cache_clear(c);
    return rc;
}

size_t tern_kv_least_bytes(const struct tern_kv_cache *c)
{
    size_t n = c->tiles.takes + (c->layout->sink_bytes ? c->sinks.takes : 0) + c->states.takes;
    for (int g = 0; g < c->layout->n_groups; g++)
        n += c->pool[g].takes;
    return n;
}

void tern_kv_cache_clear(struct tern_kv_cache *c)
{
    for (int i = 0; i < c->max_seqs; i++) /* what lives outside the pools */
        if (c->seqs[i].live)
            tern_kv_states_free(c, &c->seqs[i]);
    for (int i = 0; i < c->max_seqs; i++)
        for (int g = 0; g < TERN_KV_MAX_GROUPS; g++)
            tern_free(c->seqs[i].table[g].pages);
    tern_free(c->seqs);
    for (int g = 0; g < TERN_KV_MAX_GROUPS; g++)
        tern_kv_pool_clear(&c->pool[g]);
    tern_kv_pool_clear(&c->tiles);
    tern_kv_pool_clear(&c->sinks);
    tern_kv_pool_clear(&c->states);
    tern_dev_close(c->own_dev);
    memset(c, 0, sizeof *c);
}

void tern_kv_cache_move(struct tern_kv_cache *to, struct tern_kv_cache *from)
{
    TERN_ASSERT(from->budget != &from->own_budget);
    for (int i = 0; i < from->max_seqs; i++)
        TERN_ASSERT(!from->seqs[i].live);
    *to = *from;
    for (int g = 0; g < TERN_KV_MAX_GROUPS; g++)
        tern_kv_pool_move(&to->pool[g], &from->pool[g]);
    tern_kv_pool_move(&to->tiles, &from->tiles);
    tern_kv_pool_move(&to->sinks, &from->sinks);
    tern_kv_pool_move(&to->states, &from->states);
    memset(from, 0, sizeof *from);
}

void tern_kv_cache_hand(struct tern_kv_cache *c, struct tern_dev *dev)
{
    c->dev = c->tiles.dev = c->sinks.dev = c->states.dev = dev;
    for (int g = 0; g < TERN_KV_MAX_GROUPS; g++)
        c->pool[g].dev = dev;
}

/* ---- sequences -------------------------------------------------------------------------------------------------- */

int tern_kv_no_memory(const struct tern_kv_cache *c, const char *what, size_t bytes, tern_error *err)
{
    const struct tern_kv_budget *b = c->budget;
    struct tern_dev_held h = {0};
    if (c->dev->ops->held)
        c->dev->ops->held(c->dev, &h);
    if (h.limit && h.limit - (h.used < h.limit ? h.used : h.limit) < bytes + h.piece)
        return tern_err_set(err, TERN_ECAPACITY,
                            "the card's memory is full: %zu of %zu bytes (--gpu-memory) are in use, and %s takes %zu "
                            "more",
                            h.used, h.limit, what, bytes);
    if (b->limit == SIZE_MAX)
        return tern_err_set(err, TERN_ECAPACITY, "the KV pool is full: no room for %s of %zu bytes", what, bytes);
    return tern_err_set(err, TERN_ECAPACITY,
                        "the KV memory is full: %zu of %zu bytes are in use, and %s takes %zu more",
                        atomic_load_explicit(&b->used, memory_order_relaxed), b->limit, what, bytes);
}

static void settle(struct tern_kv_cache *c)
{
    for (int g = 0; g < c->layout->n_groups; g++)
        tern_kv_pool_settle(&c->pool[g]);
    tern_kv_pool_settle(&c->sinks);
    tern_kv_pool_settle(&c->tiles);
    tern_kv_pool_settle(&c->states);
}

int tern_kv_seq_new(struct tern_kv_cache *c, struct tern_kv_seq **out, tern_error *err)
{
    const struct tern_kv_layout *l = c->layout;
    *out = NULL;
    for (int i = 0; i < c->max_seqs; i++) {
        struct tern_kv_seq *s = &c->seqs[i];
        if (s->live)
            continue;
        s->tile = tern_kv_pool_get(&c->tiles);
        if (s->tile == TERN_NO_BLOCK)
            return tern_kv_no_memory(c, "a sequence", l->tile_bytes + l->state_bytes, err);
        if (!tern_kv_states_new(c, s)) {
            tern_kv_pool_unref(&c->tiles, s->tile);
            return tern_kv_no_memory(c, "a sequence", l->state_bytes, err);
        }
        /* Columns behind the newest token are multiplied by weights of exactly 0 and must therefore be finite. */
        tern_kv_block_zero(&c->tiles, s->tile, l->tile_bytes);
        s->live = true;
        s->n_tokens = 0;
        s->sink = TERN_NO_BLOCK;
        for (int g = 0; g < TERN_KV_MAX_GROUPS; g++)
            s->table[g].first = s->table[g].n = s->raw_from[g] = s->seen_from[g] = 0;
        *out = s;
        return 0;
    }
    return tern_err_set(err, TERN_ECAPACITY, "all %d sequences are in use", c->max_seqs);
}

static void drop_pages(struct tern_kv_cache *c, struct tern_kv_seq *s, int g, int keep_to)
{
    struct tern_kv_table *t = &s->table[g];
    while (t->n > 0 && t->first + t->n > keep_to)
        tern_kv_pool_unref(&c->pool[g], t->pages[--t->n]);
    if (t->n == 0 && t->first > keep_to)
        t->first = keep_to;
}

static void drop_sink(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    tern_kv_pool_unref(&c->sinks, s->sink);
    s->sink = TERN_NO_BLOCK;
}

void tern_kv_seq_free(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    if (!s)
        return;
    for (int g = 0; g < c->layout->n_groups; g++)
        drop_pages(c, s, g, 0);
    drop_sink(c, s);
    tern_kv_states_free(c, s);
    tern_kv_pool_unref(&c->tiles, s->tile);
    s->tile = TERN_NO_BLOCK;
    s->live = false;
    settle(c);
}

int tern_kv_seq_fork(struct tern_kv_cache *c, struct tern_kv_seq **out, const struct tern_kv_seq *s, tern_error *err)
{
    int rc = tern_kv_seq_new(c, out, err);
    if (rc < 0)
        return rc;
    struct tern_kv_seq *d = *out;
    for (int g = 0; g < c->layout->n_groups; g++) {
        const struct tern_kv_table *t = &s->table[g];
        for (int i = 0; i < t->n; i++) {
            tern_kv_pool_ref(&c->pool[g], t->pages[i]);
            d->table[g].pages[i] = t->pages[i];
        }
        d->table[g].first = t->first;
        d->table[g].n = t->n;
        d->raw_from[g] = s->raw_from[g];
        d->seen_from[g] = s->seen_from[g];
    }
    if (s->sink != TERN_NO_BLOCK)
        tern_kv_pool_ref(&c->sinks, s->sink);
    d->sink = s->sink;
    tern_kv_block_copy(&c->tiles, d->tile, &c->tiles, s->tile, c->layout->tile_bytes);
    tern_kv_states_fork(c, d, s);
    d->n_tokens = s->n_tokens;
    return 0;
}

int tern_kv_begin(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, tern_error *err)
{
    int rc = 0;
    if (n > c->max_step)
        TERN_FAIL(err, TERN_EINVAL, "step of %d tokens exceeds the engine's %d", n, c->max_step);
    if (n > c->max_tokens - s->n_tokens)
        TERN_FAIL(err, TERN_ECAPACITY, "context is full: %d tokens present, %d more asked for, room for %d",
                  s->n_tokens, n, c->max_tokens);
    tern_kv_states_begin(c, s);
    for (int g = 0; g < c->layout->n_groups; g++) {
        struct tern_kv_table *t = &s->table[g];
        while (t->first + t->n < tern_kv_closed(&c->layout->groups[g], s->n_tokens + n)) {
            uint32_t page = t->n < t->cap ? tern_kv_pool_get(&c->pool[g]) : TERN_NO_BLOCK;
            if (page == TERN_NO_BLOCK) {
                rc = tern_kv_no_memory(c, "a page", c->pool[g].takes, err);
                goto out;
            }
            t->pages[t->n++] = page;
        }
    }
    if (s->n_tokens + n >= TERN_PAGE && s->sink == TERN_NO_BLOCK && c->layout->sink_bytes) {
        s->sink = tern_kv_pool_get(&c->sinks);
        if (s->sink == TERN_NO_BLOCK) {
            rc = tern_kv_no_memory(c, "the first tokens", c->layout->sink_bytes, err);
            goto out;
        }
    }
    return 0;
out:
    tern_kv_abort(c, s);
    return rc;
}

void tern_kv_abort(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    for (int g = 0; g < c->layout->n_groups; g++)
        drop_pages(c, s, g, tern_kv_closed(&c->layout->groups[g], s->n_tokens));
    if (s->n_tokens < TERN_PAGE)
        drop_sink(c, s);
    tern_kv_states_abort(c, s);
}

/* n tokens fill these pages of a group: the newest are raw. */
static void keep_raw(struct tern_kv_seq *s, int g, const struct tern_kv_group *grp, int n)
{
    const int end = tern_kv_closed(grp, n) + (tern_kv_open_rows(grp, n) > 0);
    if (s->raw_from[g] < end - grp->ring)
        s->raw_from[g] = end - grp->ring;
    if (grp->recent > 1 && s->seen_from[g] < end - grp->seen_ring)
        s->seen_from[g] = end - grp->seen_ring;
}

void tern_kv_tried(struct tern_kv_cache *c, struct tern_kv_seq *s, int n)
{
    tern_kv_abort(c, s);
    for (int g = 0; g < c->layout->n_groups; g++)
        keep_raw(s, g, &c->layout->groups[g], s->n_tokens + n);
}

void tern_kv_commit(struct tern_kv_cache *c, struct tern_kv_seq *s, int n)
{
    s->n_tokens += n;
    s->n_marks = 0;
    s->marked = false;
    for (int g = 0; g < c->layout->n_groups; g++) {
        struct tern_kv_table *t = &s->table[g];
        const struct tern_kv_group *grp = &c->layout->groups[g];
        keep_raw(s, g, grp, s->n_tokens);
        /* What a query two pages ago needed stays: any of the newest 64 tokens can be taken back again, even where that
         * means going back to the beginning of the page before the open one, or into the chunk before. */
        int back = s->n_tokens > 2 * TERN_PAGE ? s->n_tokens - 2 * TERN_PAGE : 0;
        for (int i = 0; i < s->n_kept; i++) /* with states, going back leads to one that was kept */
            if (s->kept[i]->at >= s->n_tokens - TERN_KV_STATE_REACH && s->kept[i]->at < back)
                back = s->kept[i]->at;
        int need = tern_kv_first_needed(c->layout->groups[g].reach, back);
        int drop = need - t->first < t->n ? need - t->first : t->n;
        if (drop <= 0)
            continue;
        for (int i = 0; i < drop; i++)
            tern_kv_pool_unref(&c->pool[g], t->pages[i]);
        memmove(t->pages, t->pages + drop, (size_t)(t->n - drop) * sizeof *t->pages);
        t->first += drop;
        t->n -= drop;
        tern_kv_pool_settle(&c->pool[g]);
    }
}

/* Can group g be cut to n tokens?  What a row at n sees raw has to be there, and the rows of its own page, if there are
 * any before it, too.  Windows are another question: where there are no states it is theirs to refuse. */
static bool can_cut(const struct tern_kv_cache *c, const struct tern_kv_seq *s, int g, int n)
{
    const struct tern_kv_group *grp = &c->layout->groups[g];
    const int page = tern_kv_closed(grp, n), seen = page - grp->recent + 1;
    if (grp->recent > 1 && s->seen_from[g] > (seen > 0 ? seen : 0))
        return false;
    if (c->layout->state_bytes && s->table[g].first > tern_kv_first_needed(grp->reach, n))
        return false;
    return tern_kv_open_rows(grp, n) == 0 || page >= s->raw_from[g];
}

static bool can_cut_all(const struct tern_kv_cache *c, const struct tern_kv_seq *s, int n)
{
    bool can = true;
    for (int g = 0; g < c->layout->n_groups; g++)
        can &= can_cut(c, s, g, n);
    return can;
}

/* The most tokens, n or fewer, that s can be cut to; the beginning always is a place. */
static int cut_at(const struct tern_kv_cache *c, const struct tern_kv_seq *s, int n)
{
    if (n == s->n_tokens)
        return n;
    if (!c->layout->state_bytes)
        return can_cut_all(c, s, n) ? n : can_cut_all(c, s, n / TERN_PAGE * TERN_PAGE) ? n / TERN_PAGE * TERN_PAGE : 0;
    n = tern_kv_state_before(s, n);
    while (n && !can_cut_all(c, s, n))
        n = tern_kv_state_before(s, n - 1);
    return n;
}

/* What tokens keep .. n take of one pool when they are computed again: n_new blocks, after s has given back those of
 * `blocks` that nobody else holds.  False when the pool is too small for that; *more: of the budget. */
static bool has_blocks(const struct tern_kv_pool *p, const uint32_t *blocks, int n_blocks, int n_new, int64_t *more)
{
    int n_back = 0;
    for (int i = 0; i < n_blocks; i++)
        n_back += atomic_load_explicit(&p->refs[blocks[i]], memory_order_relaxed) == 1;
    *more += ((int64_t)n_new - n_back) * (int64_t)p->takes;
    return (int64_t)atomic_load_explicit(&p->n_used, memory_order_relaxed) - n_back + n_new <= (int64_t)p->n_blocks;
}

/* States that steps from keep to n may keep, less those that s gives back and nobody else holds. */
static int new_states(const struct tern_kv_seq *s, int keep, int n)
{
    int room = TERN_KV_KEPT_STATES, marks = n / TERN_PAGE - keep / TERN_PAGE, n_back = 0;
    for (int i = 0; i < s->n_kept; i++) {
        room -= s->kept[i]->at <= keep;
        n_back += s->kept[i]->at > keep && atomic_load_explicit(&s->kept[i]->refs, memory_order_relaxed) == 1;
    }
    return (marks < room ? marks : room) - n_back;
}

/* Whoever else holds pages of s keeps them: without memory for new ones nothing may be given up. */
static int check_again(const struct tern_kv_cache *c, const struct tern_kv_seq *s, int keep, int n, tern_error *err)
{
    int64_t more = 0;
    bool fits = true;
    for (int g = 0; g < c->layout->n_groups; g++) {
        const struct tern_kv_table *t = &s->table[g];
        const int page = tern_kv_closed(&c->layout->groups[g], keep);
        int from = page > t->first ? page - t->first : 0;
        const int n_new = tern_kv_closed(&c->layout->groups[g], n) - page;
        from = from < t->n ? from : t->n;
        fits &= has_blocks(&c->pool[g], t->pages + from, t->n - from, n_new < t->cap ? n_new : t->cap, &more);
    }
    if (keep < TERN_PAGE && n >= TERN_PAGE && s->sink != TERN_NO_BLOCK)
        fits &= has_blocks(&c->sinks, &s->sink, 1, 1, &more);
    if (c->layout->state_bytes)
        more += new_states(s, keep, n) * (int64_t)c->states.takes;
    const size_t used = atomic_load_explicit(&c->budget->used, memory_order_relaxed);
    if (fits && (more <= 0 || (used <= c->budget->limit && (size_t)more <= c->budget->limit - used)))
        return 0;
    return tern_kv_no_memory(c, "what must be computed again", more > 0 ? (size_t)more : 0, err);
}

int tern_kv_trim(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, int *kept, tern_error *err)
{
    TERN_ASSERT(n >= 0 && n <= s->n_tokens);
    const int keep = cut_at(c, s, n);
    for (int g = 0; g < c->layout->n_groups; g++)
        if (keep && s->table[g].first > tern_kv_first_needed(c->layout->groups[g].reach, keep))
            return tern_err_set(err, TERN_EUNSUPPORTED,
                                "cannot go back to token %d: a layer with a window of %d tokens no longer holds them",
                                n, c->layout->groups[g].reach.window);
    int rc = check_again(c, s, keep, n, err);
    if (rc < 0)
        return rc;
    for (int g = 0; g < c->layout->n_groups; g++) {
        const int page = tern_kv_closed(&c->layout->groups[g], keep);
        drop_pages(c, s, g, page);
        s->raw_from[g] = page < s->raw_from[g] ? page : s->raw_from[g];
        s->seen_from[g] = page < s->seen_from[g] ? page : s->seen_from[g];
    }
    if (keep < TERN_PAGE)
        drop_sink(c, s);
    if (keep < s->n_tokens)
        tern_kv_states_back(c, s, keep);
    s->n_tokens = keep;
    *kept = keep;
    settle(c);
    return 0;
}

size_t tern_kv_used_bytes(const struct tern_kv_cache *c)
{
    size_t n = tern_kv_pool_bytes(&c->tiles) + tern_kv_pool_bytes(&c->sinks) +
               atomic_load_explicit(&c->logit_bytes, memory_order_relaxed);
    for (int g = 0; g < c->layout->n_groups; g++)
        n += tern_kv_pool_bytes(&c->pool[g]);
    return n;
}

size_t tern_kv_f16_bytes(const struct tern_kv_cache *c)
{
    double n = 0;
    int n_live = 0; /* each with an open page */
    for (int s = 0; s < c->max_seqs; s++)
        n_live += c->seqs[s].live;
    for (int i = 0; i < c->layout->n_spans; i++) {
        int g = c->layout->group_of[i];
        if (g >= 0)
            n += tern_kv_layer_f16_bytes(&c->layout->layers[i]) * tern_kv_page_tokens(&c->layout->groups[g]) *
                 ((double)c->pool[g].n_used + n_live);
    }
    return (size_t)n;
}

void tern_kv_full_bytes(const struct tern_kv_layout *l, int tokens, size_t *bytes, size_t *f16_bytes)
{
    int n_pages[TERN_KV_MAX_GROUPS];
    double f16 = 0;
    *bytes = l->tile_bytes + (tokens >= TERN_PAGE ? l->sink_bytes : 0);
    for (int g = 0; g < l->n_groups; g++) {
        n_pages[g] = tern_kv_closed(&l->groups[g], tokens) - tern_kv_first_needed(l->groups[g].reach, tokens);
        *bytes += (size_t)n_pages[g] * l->groups[g].page_bytes;
    }
    for (int i = 0; i < l->n_spans; i++) {
        int g = l->group_of[i];
        if (g >= 0)
            f16 += tern_kv_layer_f16_bytes(&l->layers[i]) * tern_kv_page_tokens(&l->groups[g]) * (n_pages[g] + 1);
    }
    *f16_bytes = (size_t)f16;
}

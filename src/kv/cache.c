#include "kv/kv.h"

#include <string.h>
#include "base/mem.h"
#include "kv/state.h"

/* ---- pool ----------------------------------------------------------------------------------------------------- */

/* Kernels may read 64 bytes past a head's data; the last block needs that much behind it. */
#define POOL_SLACK 4096

int tern_kv_pool_init(struct tern_kv_pool *p, size_t block_bytes, size_t n_blocks, tern_error *err)
{
    int rc = 0;
    size_t bytes;
    *p = (struct tern_kv_pool){.mem.bytes = tern_round_up(block_bytes, TERN_ALIGN)};
    if (n_blocks > UINT32_MAX || !tern_mul(p->mem.bytes, n_blocks, &bytes) || !tern_add(bytes, POOL_SLACK, &bytes))
        TERN_FAIL(err, TERN_ENOMEM, "KV pool of %zu blocks of %zu bytes is too large", n_blocks, block_bytes);
    TERN_TRY(tern_alloc(&p->refs, n_blocks, sizeof *p->refs, err));
    TERN_TRY(tern_alloc(&p->free_list, n_blocks, sizeof *p->free_list, err));
    TERN_TRY(tern_reserve(&p->mem.base, bytes, err));
    p->n_blocks = (uint32_t)n_blocks;
    return 0;
out:
    tern_kv_pool_clear(p);
    return rc;
}

void tern_kv_pool_clear(struct tern_kv_pool *p)
{
    tern_release(p->mem.base, p->mem.bytes * p->n_blocks + POOL_SLACK);
    tern_free(p->refs);
    tern_free(p->free_list);
    *p = (struct tern_kv_pool){0};
}

uint32_t tern_kv_pool_get(struct tern_kv_pool *p)
{
    uint32_t i;
    if (p->n_free)
        i = p->free_list[--p->n_free];
    else if (p->n_fresh < p->n_blocks)
        i = p->n_fresh++;
    else
        return TERN_NO_BLOCK;
    TERN_ASSERT(p->refs[i] == 0);
    p->refs[i] = 1;
    p->n_used++;
    return i;
}

void tern_kv_pool_ref(struct tern_kv_pool *p, uint32_t block)
{
    TERN_ASSERT(block < p->n_blocks && p->refs[block] > 0);
    p->refs[block]++;
}

void tern_kv_pool_unref(struct tern_kv_pool *p, uint32_t block)
{
    if (block == TERN_NO_BLOCK)
        return;
    TERN_ASSERT(block < p->n_blocks && p->refs[block] > 0);
    if (--p->refs[block] == 0) {
        p->free_list[p->n_free++] = block;
        p->n_used--;
    }
}

/* ---- cache ---------------------------------------------------------------------------------------------------- */

/* Pages a sequence may hold in a group at once: all of them, or the window plus one step plus the pages of slack that
 * let a few tokens be taken back. */
static int max_pages(const struct tern_kv_group *g, int max_tokens, int max_step)
{
    int all = max_tokens / TERN_PAGE;
    int64_t ring = ((int64_t)g->reach.window + max_step) / TERN_PAGE + 4;
    return g->reach.window && ring < all ? (int)ring : all;
}

int tern_kv_cache_init(struct tern_kv_cache *c, const struct tern_kv_layout *l, int max_seqs, int max_tokens,
                       int max_step, tern_error *err)
{
    int rc = 0;
    *c = (struct tern_kv_cache){.layout = l, .max_tokens = max_tokens, .max_step = max_step};
    TERN_TRY(tern_alloc(&c->seqs, (size_t)max_seqs, sizeof *c->seqs, err));
    c->max_seqs = max_seqs;
    for (int g = 0; g < l->n_groups; g++) {
        int n = max_pages(&l->groups[g], max_tokens, max_step);
        TERN_TRY(tern_kv_pool_init(&c->pool[g], l->groups[g].page_bytes, (size_t)n * (size_t)max_seqs, err));
        for (int i = 0; i < max_seqs; i++) {
            TERN_TRY(tern_alloc(&c->seqs[i].table[g].pages, (size_t)n + 1, sizeof(uint32_t), err));
            c->seqs[i].table[g].cap = n;
        }
    }
    TERN_TRY(tern_kv_pool_init(&c->tiles, l->tile_bytes, (size_t)max_seqs, err));
    TERN_TRY(tern_kv_pool_init(&c->sinks, l->sink_bytes ? l->sink_bytes : TERN_ALIGN, (size_t)max_seqs, err));
    if (l->state_bytes)
        TERN_TRY(tern_kv_pool_init(&c->states, l->state_bytes, (size_t)max_seqs * (TERN_KV_KEPT_STATES + 1), err));
    return 0;
out:
    tern_kv_cache_clear(c);
    return rc;
}

void tern_kv_cache_clear(struct tern_kv_cache *c)
{
    for (int i = 0; i < c->max_seqs; i++)
        for (int g = 0; g < TERN_KV_MAX_GROUPS; g++)
            tern_free(c->seqs[i].table[g].pages);
    tern_free(c->seqs);
    for (int g = 0; g < TERN_KV_MAX_GROUPS; g++)
        tern_kv_pool_clear(&c->pool[g]);
    tern_kv_pool_clear(&c->tiles);
    tern_kv_pool_clear(&c->sinks);
    tern_kv_pool_clear(&c->states);
    *c = (struct tern_kv_cache){0};
}

/* ---- sequences -------------------------------------------------------------------------------------------------- */

int tern_kv_seq_new(struct tern_kv_cache *c, struct tern_kv_seq **out, tern_error *err)
{
    *out = NULL;
    for (int i = 0; i < c->max_seqs; i++) {
        struct tern_kv_seq *s = &c->seqs[i];
        if (s->live)
            continue;
        s->tile = tern_kv_pool_get(&c->tiles);
        TERN_ASSERT(s->tile != TERN_NO_BLOCK); /* as many tiles as sequences */
        /* Columns behind the newest token are multiplied by weights of exactly 0 and must therefore be finite. */
        memset(tern_kv_block(&c->tiles, s->tile), 0, c->layout->tile_bytes);
        s->live = true;
        s->n_tokens = 0;
        s->newest = 0;
        s->sink = TERN_NO_BLOCK;
        tern_kv_states_new(c, s);
        for (int g = 0; g < TERN_KV_MAX_GROUPS; g++)
            s->table[g].first = s->table[g].n = 0;
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
    }
    if (s->sink != TERN_NO_BLOCK)
        tern_kv_pool_ref(&c->sinks, s->sink);
    d->sink = s->sink;
    memcpy(tern_kv_block(&c->tiles, d->tile), tern_kv_block(&c->tiles, s->tile), c->layout->tile_bytes);
    tern_kv_states_fork(c, d, s);
    d->n_tokens = s->n_tokens;
    d->newest = s->newest;
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
    int closed = (s->n_tokens + n) / TERN_PAGE;
    for (int g = 0; g < c->layout->n_groups; g++) {
        struct tern_kv_table *t = &s->table[g];
        while (t->first + t->n < closed) {
            uint32_t page = t->n < t->cap ? tern_kv_pool_get(&c->pool[g]) : TERN_NO_BLOCK;
            if (page == TERN_NO_BLOCK)
                TERN_FAIL(err, TERN_ECAPACITY, "the KV pool is full (%u pages of %zu bytes)", c->pool[g].n_blocks,
                          c->pool[g].mem.bytes);
            t->pages[t->n++] = page;
        }
    }
    if (closed > 0 && s->sink == TERN_NO_BLOCK && c->layout->sink_bytes) {
        s->sink = tern_kv_pool_get(&c->sinks);
        TERN_ASSERT(s->sink != TERN_NO_BLOCK); /* at most one per sequence */
    }
    return 0;
out:
    tern_kv_abort(c, s);
    return rc;
}

void tern_kv_abort(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    int closed = s->n_tokens / TERN_PAGE;
    for (int g = 0; g < c->layout->n_groups; g++)
        drop_pages(c, s, g, closed);
    if (closed == 0)
        drop_sink(c, s);
    tern_kv_states_abort(c, s);
}

void tern_kv_commit(struct tern_kv_cache *c, struct tern_kv_seq *s, int n)
{
    s->n_tokens += n;
    s->marked = false;
    s->newest = s->n_tokens / TERN_PAGE > s->newest ? s->n_tokens / TERN_PAGE : s->newest;
    for (int g = 0; g < c->layout->n_groups; g++) {
        struct tern_kv_table *t = &s->table[g];
        /* What a query two pages ago needed stays: any of the newest 64 tokens can be taken back again, even where that
         * means going back to the beginning of the page before the open one, or into the chunk before. */
        int back = s->n_tokens > 2 * TERN_PAGE ? s->n_tokens - 2 * TERN_PAGE : 0;
        int need = tern_kv_first_needed(c->layout->groups[g].reach, back);
        int drop = need - t->first < t->n ? need - t->first : t->n;
        if (drop <= 0)
            continue;
        for (int i = 0; i < drop; i++)
            tern_kv_pool_unref(&c->pool[g], t->pages[i]);
        memmove(t->pages, t->pages + drop, (size_t)(t->n - drop) * sizeof *t->pages);
        t->first += drop;
        t->n -= drop;
    }
}

/* Where keys and values can be cut, at n or below. */
static int cut_at(const struct tern_kv_cache *c, const struct tern_kv_seq *s, int n)
{
    int closed = s->n_tokens / TERN_PAGE, page = n / TERN_PAGE;
    if (c->layout->recent > 1 && page < s->newest - 1 && s->newest > c->layout->recent)
        return 0; /* the ring of raw tiles has moved on */
    return page == closed ? n : page * TERN_PAGE;
}

int tern_kv_trim(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, int *kept, tern_error *err)
{
    TERN_ASSERT(n >= 0 && n <= s->n_tokens);
    int closed = s->n_tokens / TERN_PAGE, keep = cut_at(c, s, n);
    if (c->layout->state_bytes && keep < s->n_tokens)
        keep = cut_at(c, s, tern_kv_state_before(s, keep));
    for (int g = 0; g < c->layout->n_groups; g++)
        if (s->table[g].first > tern_kv_first_needed(c->layout->groups[g].reach, keep))
            return tern_err_set(err, TERN_EUNSUPPORTED,
                                "cannot go back to token %d: a layer with a window of %d tokens no longer holds them",
                                n, c->layout->groups[g].reach.window);
    for (int g = 0; g < c->layout->n_groups; g++)
        drop_pages(c, s, g, keep / TERN_PAGE);
    if (keep < TERN_PAGE && closed > 0)
        drop_sink(c, s);
    if (keep < s->n_tokens)
        tern_kv_states_back(c, s, keep);
    s->n_tokens = keep;
    s->newest = keep ? s->newest : 0;
    *kept = keep;
    return 0;
}

size_t tern_kv_used_bytes(const struct tern_kv_cache *c)
{
    size_t n = (size_t)c->tiles.n_used * c->tiles.mem.bytes + (size_t)c->sinks.n_used * c->sinks.mem.bytes;
    for (int g = 0; g < c->layout->n_groups; g++)
        n += (size_t)c->pool[g].n_used * c->pool[g].mem.bytes;
    return n;
}

size_t tern_kv_f16_bytes(const struct tern_kv_cache *c)
{
    double n = 0;
    for (int i = 0; i < c->layout->n_layers; i++) {
        int g = c->layout->group_of[i];
        if (g < 0)
            continue;
        double per_token = tern_kv_layer_f16_bytes(&c->layout->layers[i]);
        n += per_token * TERN_PAGE * c->pool[g].n_used;
        for (int s = 0; s < c->max_seqs; s++)
            if (c->seqs[s].live)
                n += per_token * (c->seqs[s].n_tokens % TERN_PAGE);
    }
    return (size_t)n;
}

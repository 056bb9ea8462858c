#include "kv/share.h"

#include <string.h>
#include "kv/kv.h"

/* The pool that a part's blocks are of. */
static const struct tern_kv_pool *pool_of(const struct tern_kv_cache *c, int part)
{
    return part == TERN_KV_FIRST_TOKENS ? &c->sinks : &c->pool[part];
}

/* Page of group g that slice i closes; -1: none. */
static int page_of(const struct tern_kv_layout *l, int g, int i)
{
    const int rate = l->groups[g].rate;
    return (i + 1) % rate ? -1 : (i + 1) / rate - 1;
}

void tern_kv_slices_take(struct tern_kv_cache *c, const struct tern_kv_seq *s, int from, int to,
                         struct tern_kv_slice *out)
{
    TERN_ASSERT(from >= 0 && to <= s->n_tokens / TERN_PAGE);
    for (int i = from; i < to; i++) {
        struct tern_kv_slice *p = &out[i - from];
        for (int part = 0; part < TERN_KV_PARTS; part++)
            p->part[part] = TERN_NO_BLOCK;
        for (int g = 0; g < c->layout->n_groups; g++) {
            const struct tern_kv_table *t = &s->table[g];
            const int page = page_of(c->layout, g, i);
            if (page >= t->first)
                p->part[g] = t->pages[page - t->first];
        }
        if (i == 0)
            p->part[TERN_KV_FIRST_TOKENS] = s->sink;
        tern_kv_slice_pin(c, p);
    }
}

void tern_kv_slice_pin(struct tern_kv_cache *c, const struct tern_kv_slice *p)
{
    for (int part = 0; part < TERN_KV_PARTS; part++)
        if (p->part[part] != TERN_NO_BLOCK)
            tern_kv_pool_ref((struct tern_kv_pool *)pool_of(c, part), p->part[part]);
}

void tern_kv_slice_drop(struct tern_kv_cache *c, struct tern_kv_slice *p)
{
    for (int part = 0; part < TERN_KV_PARTS; part++) {
        tern_kv_pool_unref((struct tern_kv_pool *)pool_of(c, part), p->part[part]);
        p->part[part] = TERN_NO_BLOCK;
    }
}

size_t tern_kv_part_bytes(const struct tern_kv_cache *c, int part)
{
    if (part == TERN_KV_FIRST_TOKENS)
        return c->layout->sink_bytes;
    return part < c->layout->n_groups ? c->layout->groups[part].page_bytes : 0;
}

void tern_kv_part_read(const struct tern_kv_cache *c, const struct tern_kv_slice *p, int part, void *to)
{
    tern_kv_block_read(pool_of(c, part), p->part[part], 0, to, tern_kv_part_bytes(c, part));
}

int tern_kv_slice_new(struct tern_kv_cache *c, unsigned parts, struct tern_kv_slice *out, tern_error *err)
{
    for (int part = 0; part < TERN_KV_PARTS; part++)
        out->part[part] = TERN_NO_BLOCK;
    for (int part = 0; part < TERN_KV_PARTS; part++) {
        if (!(parts >> part & 1))
            continue;
        TERN_ASSERT(tern_kv_part_bytes(c, part));
        out->part[part] = tern_kv_pool_get((struct tern_kv_pool *)pool_of(c, part));
        if (out->part[part] == TERN_NO_BLOCK) {
            tern_kv_slice_drop(c, out);
            return tern_kv_no_memory(c, "a page", tern_kv_part_bytes(c, part), err);
        }
    }
    return 0;
}

void tern_kv_part_write(struct tern_kv_cache *c, const struct tern_kv_slice *p, int part, const void *from)
{
    tern_kv_block_write(pool_of(c, part), p->part[part], 0, from, tern_kv_part_bytes(c, part));
}

/* ---- starting ---------------------------------------------------------------------------------------------------- */

/* Oldest page of group g that goes over, for n tokens: what the next query needs must be there, and of what it takes to
 * go back a little (tern_kv_commit) as much as is there.  -1: something is missing. */
static int first_page(const struct tern_kv_cache *c, const struct tern_kv_slice *slices, int g, int n)
{
    const struct tern_kv_group *grp = &c->layout->groups[g];
    const int closed = tern_kv_closed(grp, n), back = n > 2 * TERN_PAGE ? n - 2 * TERN_PAGE : 0;
    int first = closed;
    while (first > tern_kv_first_needed(grp->reach, back) && slices[first * grp->rate - 1].part[g] != TERN_NO_BLOCK)
        first--;
    return first > tern_kv_first_needed(grp->reach, n) ? -1 : first;
}

static int can_start_raw(const struct tern_kv_cache *c, const struct tern_kv_checkpoint *at, int n, tern_error *err)
{
    const struct tern_kv_layout *l = c->layout;
    if (l->state_bytes && n && (!at || at->state == TERN_NO_BLOCK))
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "a sequence cannot start at token %d: that takes a checkpoint with the layers' states", n);
    for (int g = 0; g < l->n_groups; g++) {
        const struct tern_kv_group *grp = &l->groups[g];
        const int open = tern_kv_closed(grp, n), seen = open - grp->recent + 1;
        if (tern_kv_open_rows(grp, n) && (!at || at->tile == TERN_NO_BLOCK))
            return tern_err_set(err, TERN_EUNSUPPORTED,
                                "a sequence cannot start at token %d, inside a page, without its raw tile", n);
        if (grp->recent > 1 && n && (!at || at->tile == TERN_NO_BLOCK || at->seen_from[g] > (seen > 0 ? seen : 0)))
            return tern_err_set(err, TERN_EUNSUPPORTED,
                                "a sequence cannot start at token %d without the raw tiles that recent=%d sees", n,
                                grp->recent * TERN_PAGE);
    }
    return 0;
}

int tern_kv_can_start(const struct tern_kv_cache *c, const struct tern_kv_slice *slices, int n_slices,
                      const struct tern_kv_checkpoint *at, tern_error *err)
{
    const int n = at ? at->at : n_slices * TERN_PAGE;
    if (n / TERN_PAGE > n_slices)
        return tern_err_set(err, TERN_EUNSUPPORTED, "a sequence cannot start at token %d from %d slices of %d tokens",
                            n, n_slices, TERN_PAGE);
    if (n > c->max_tokens)
        return tern_err_set(err, TERN_ECAPACITY, "a sequence cannot start at token %d, the context is %d", n,
                            c->max_tokens);
    for (int g = 0; g < c->layout->n_groups; g++)
        if (first_page(c, slices, g, n) < 0)
            return tern_err_set(
                err, TERN_EUNSUPPORTED,
                "a sequence cannot start at token %d: pages that a window of %d tokens needs are missing", n,
                c->layout->groups[g].reach.window);
    if (n >= TERN_PAGE && c->layout->sink_bytes && slices[0].part[TERN_KV_FIRST_TOKENS] == TERN_NO_BLOCK)
        return tern_err_set(err, TERN_EUNSUPPORTED, "a sequence cannot start at token %d without its first tokens", n);
    return can_start_raw(c, at, n, err);
}

int tern_kv_start(struct tern_kv_cache *c, struct tern_kv_seq *s, const struct tern_kv_slice *slices, int n_slices,
                  const struct tern_kv_checkpoint *at, tern_error *err)
{
    const struct tern_kv_layout *l = c->layout;
    const int n = at ? at->at : n_slices * TERN_PAGE;
    TERN_ASSERT(s->n_tokens == 0);
    int rc = tern_kv_can_start(c, slices, n_slices, at, err);
    if (rc < 0)
        return rc;
    for (int g = 0; g < l->n_groups; g++) {
        struct tern_kv_table *t = &s->table[g];
        const int rate = l->groups[g].rate, open = tern_kv_closed(&l->groups[g], n);
        t->first = first_page(c, slices, g, n);
        for (t->n = 0; t->first + t->n < open; t->n++) {
            TERN_ASSERT(t->n < t->cap);
            t->pages[t->n] = slices[(t->first + t->n + 1) * rate - 1].part[g];
            tern_kv_pool_ref(&c->pool[g], t->pages[t->n]);
        }
        s->raw_from[g] = at && at->tile != TERN_NO_BLOCK ? at->raw_from[g] : open;
        s->seen_from[g] = at && at->tile != TERN_NO_BLOCK ? at->seen_from[g] : open;
    }
    if (n >= TERN_PAGE && l->sink_bytes) {
        s->sink = slices[0].part[TERN_KV_FIRST_TOKENS];
        tern_kv_pool_ref(&c->sinks, s->sink);
    }
    if (at && at->tile != TERN_NO_BLOCK)
        tern_kv_block_copy(&c->tiles, s->tile, &c->tiles, at->tile, l->tile_bytes);
    if (at && at->state != TERN_NO_BLOCK)
        tern_kv_block_copy(&c->states, s->state, &c->states, at->state, l->state_bytes);
    s->n_tokens = n;
    return 0;
}

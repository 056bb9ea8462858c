/* Entries of the cache, and which of them goes first. */
#include <stddef.h>
#include <string.h>
#include "base/mem.h"
#include "run/prefix/tree.h"

/* ---- heaps ------------------------------------------------------------------------------------------------------- */

static struct tern_prefix_heap *heap_of(const struct tern_prefix_cache *x, const struct tern_prefix_entry *p, bool end)
{
    return &x->heaps[end ? 1 + p->plan : 0];
}

static bool less(const struct tern_prefix_entry *a, const struct tern_prefix_entry *b)
{
    return a->worth < b->worth || (a->worth == b->worth && a->born < b->born);
}

static void put_at(struct tern_prefix_heap *h, size_t i, struct tern_prefix_entry *p)
{
    h->v[i] = p;
    p->at = i;
}

static void settle(struct tern_prefix_heap *h, struct tern_prefix_entry *p)
{
    size_t i = p->at, k;
    for (; i && less(p, h->v[(i - 1) / 2]); i = (i - 1) / 2)
        put_at(h, i, h->v[(i - 1) / 2]);
    for (; (k = 2 * i + 1) < h->n; i = k) {
        k += k + 1 < h->n && less(h->v[k + 1], h->v[k]);
        if (!less(h->v[k], p))
            break;
        put_at(h, i, h->v[k]);
    }
    put_at(h, i, p);
}

static void leave(struct tern_prefix_cache *x, struct tern_prefix_entry *p)
{
    struct tern_prefix_heap *h = heap_of(x, p, p->point != NULL);
    if (p->at == TERN_NOT_IN_HEAP)
        return;
    struct tern_prefix_entry *last = h->v[--h->n];
    if (last != p) {
        put_at(h, p->at, last);
        settle(h, last);
    }
    p->at = TERN_NOT_IN_HEAP;
}

/* An entry is in its heap while it may go.  Room was made when it was new. */
static void enter(struct tern_prefix_cache *x, struct tern_prefix_entry *p)
{
    if (!p->parent || p->n_below || p->pins || p->at != TERN_NOT_IN_HEAP)
        return;
    struct tern_prefix_heap *h = heap_of(x, p, p->point != NULL);
    put_at(h, h->n++, p);
    settle(h, p);
}

/* The least below i that the call in hand can do without: of those that it needs there are few. */
static struct tern_prefix_entry *least(const struct tern_prefix_heap *h, size_t i, uint64_t stamp)
{
    if (i >= h->n || h->v[i]->stamp != stamp)
        return i < h->n ? h->v[i] : NULL;
    struct tern_prefix_entry *a = least(h, 2 * i + 1, stamp), *b = least(h, 2 * i + 2, stamp);
    return !a ? b : !b ? a : less(b, a) ? b : a;
}

/* ---- entries ----------------------------------------------------------------------------------------------------- */

struct tern_prefix_entry **tern_prefix_bucket(const struct tern_prefix_cache *x, const struct tern_key *key)
{
    uint64_t h;
    memcpy(&h, key, sizeof h);
    return &x->buckets[h & (x->n_buckets - 1)];
}

void tern_prefix_use(struct tern_prefix_cache *x, struct tern_prefix_entry *p)
{
    p->worth = x->floor + (double)p->cost / (double)p->bytes;
    if (p->at == TERN_NOT_IN_HEAP)
        enter(x, p);
    else
        settle(heap_of(x, p, p->point != NULL), p);
}

void tern_prefix_pin(struct tern_prefix_cache *x, struct tern_prefix_entry *p)
{
    p->pins++;
    leave(x, p);
}

void tern_prefix_unpin(struct tern_prefix_cache *x, struct tern_prefix_entry *p)
{
    TERN_ASSERT(p->pins > 0);
    p->pins--;
    enter(x, p);
}

static void unlink_from(struct tern_prefix_entry **list, const struct tern_prefix_entry *p, size_t next)
{
    while (*list != p)
        list = (struct tern_prefix_entry **)((char *)*list + next);
    *list = *(struct tern_prefix_entry **)((char *)p + next);
}

void tern_prefix_entry_remove(struct tern_prefix_cache *x, struct tern_prefix_entry *p)
{
    TERN_ASSERT(p->n_below == 0 && p->pins == 0);
    leave(x, p);
    heap_of(x, p, p->point != NULL)->n_all--;
    tern_prefix_forget_unwritten(x, p);
    if (p->point)
        unlink_from(&p->parent->ends, p, offsetof(struct tern_prefix_entry, next_end));
    else
        unlink_from(tern_prefix_bucket(x, &p->key), p, offsetof(struct tern_prefix_entry, in_bucket));
    *(p->before ? &p->before->after : &x->all) = p->after;
    if (p->after)
        p->after->before = p->before;
    p->parent->n_below--;
    enter(x, p->parent);
    x->n_points[p->plan] -= p->point != NULL;
    x->stats.entries--;
    x->stats.bytes -= p->bytes;
    tern_kv_slice_drop(&x->e->caches[p->plan], &p->slice);
    tern_kv_checkpoint_drop(p->point);
    tern_free(p);
}

struct tern_prefix_entry *tern_prefix_entry_new(struct tern_prefix_cache *x, struct tern_prefix_entry *parent,
                                                const int32_t *tokens, int n, bool end, size_t bytes)
{
    struct tern_prefix_entry *p;
    struct tern_prefix_heap *h = heap_of(x, parent, end);
    if (h->n_all == h->cap && tern_grow(&h->v, &h->cap, h->n_all + 1, sizeof(void *), NULL) < 0)
        return NULL;
    if (tern_alloc(&p, 1, sizeof *p, NULL) < 0)
        return NULL;
    h->n_all++;
    for (int i = 0; i < TERN_KV_PARTS; i++)
        p->slice.part[i] = TERN_NO_BLOCK;
    p->parent = parent;
    p->plan = parent->plan;
    p->index = parent->parent ? parent->index + 1 : 0;
    p->n = n;
    memcpy(p->tokens, tokens, (size_t)n * sizeof *tokens);
    p->bytes = bytes;
    p->stamp = x->stamp;
    p->born = ++x->n_born;
    p->at = TERN_NOT_IN_HEAP;
    p->after = x->all;
    if (p->after)
        p->after->before = p;
    x->all = p;
    leave(x, parent);
    parent->n_below++;
    x->stats.entries++;
    x->stats.bytes += bytes;
    return p;
}

/* ---- room -------------------------------------------------------------------------------------------------------- */

bool tern_prefix_evict(struct tern_prefix_cache *x, int ends_of_plan)
{
    struct tern_prefix_entry *best = NULL;
    for (int i = 0; i < 1 + x->e->n_plans; i++) {
        struct tern_prefix_entry *p =
            ends_of_plan < 0 || i == 1 + ends_of_plan ? least(&x->heaps[i], 0, x->stamp) : NULL;
        if (p && (!best || less(p, best)))
            best = p;
    }
    if (!best)
        return false;
    x->floor = best->worth;
    x->stats.evictions++;
    tern_prefix_entry_remove(x, best);
    return true;
}

bool tern_prefix_make_room(struct tern_prefix_cache *x, size_t bytes)
{
    if (bytes > x->limit)
        return false;
    while (x->stats.bytes > x->limit - bytes)
        if (!tern_prefix_evict(x, -1))
            return false;
    return true;
}

/* Pools of tiles and states have so many blocks; sequences need some of them. */
bool tern_prefix_room_for_point(struct tern_prefix_cache *x, int plan)
{
    const struct tern_kv_cache *c = &x->e->caches[plan];
    const size_t seqs = (size_t)c->max_seqs;
    size_t most = c->tiles.n_blocks - seqs;
    if (c->layout->state_bytes && c->states.n_blocks - seqs * (TERN_KV_KEPT_STATES + 1) < most)
        most = c->states.n_blocks - seqs * (TERN_KV_KEPT_STATES + 1);
    return (size_t)x->n_points[plan] < most || tern_prefix_evict(x, plan);
}

bool tern_prefix_shrink(void *self)
{
    struct tern_prefix_cache *x = self;
    const size_t used = atomic_load(&x->e->kv_budget.used);
    x->stamp++;
    while (tern_prefix_evict(x, -1))
        if (atomic_load(&x->e->kv_budget.used) < used)
            return true;
    return false;
}

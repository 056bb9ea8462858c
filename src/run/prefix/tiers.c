/* The cache and other tiers: what is new goes there, what only they have comes back. */
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/mem.h"
#include "run/prefix/tree.h"

#define TICK_BYTES TERN_PREFIX_TICK_BYTES
#define CLOSE_S    10.0 /* for what is not written when a program ends */

/* ---- to other tiers ---------------------------------------------------------------------------------------------- */

void tern_prefix_unwritten(struct tern_prefix_cache *x, struct tern_prefix_entry *p)
{
    if (!x->tiers || p->unwritten)
        return;
    p->unwritten = true;
    p->unwritten_after = NULL;
    p->unwritten_before = x->last_unwritten;
    *(x->last_unwritten ? &x->last_unwritten->unwritten_after : &x->unwritten) = p;
    x->last_unwritten = p;
    x->stats.unwritten++;
}

void tern_prefix_forget_unwritten(struct tern_prefix_cache *x, struct tern_prefix_entry *p)
{
    if (!p->unwritten)
        return;
    p->unwritten = false;
    *(p->unwritten_before ? &p->unwritten_before->unwritten_after : &x->unwritten) = p->unwritten_after;
    *(p->unwritten_after ? &p->unwritten_after->unwritten_before : &x->last_unwritten) = p->unwritten_before;
    x->stats.unwritten--;
}

/* A record without hashes: those are the writer's work. */
static int pack(const struct tern_prefix_cache *x, const struct tern_prefix_entry *p, struct tern_record *h)
{
    *h = (struct tern_record){.index = (uint32_t)p->index,
                              .n_tokens = (uint32_t)p->n,
                              .cost = (uint32_t)p->cost,
                              .key = p->key,
                              .parent = p->parent->key,
                              .origin = x->origins[p->plan]};
    if (!p->point)
        return tern_record_put_page(h, &x->e->caches[p->plan], &p->slice, NULL);
    const int rc = tern_record_put_point(h, p->point, NULL);
    tern_end_key(&h->parent, p->tokens, p->n, (enum tern_record_kind)h->kind, &h->key);
    return rc;
}

void tern_prefix_tick(void *self)
{
    struct tern_prefix_cache *x = self;
    size_t bytes = 0;
    if (!x->tiers || !x->unwritten || !tern_tiers_writes(x->tiers))
        return;
    while (x->unwritten && bytes < TICK_BYTES) {
        void *slot = tern_tiers_room(x->tiers);
        if (!slot)
            return;
        struct tern_prefix_entry *p = x->unwritten;
        tern_prefix_forget_unwritten(x, p);
        const int rc = pack(x, p, slot);
        bytes += tern_record_bytes(slot);
        if (rc == 0)
            tern_tiers_put(x->tiers, slot);
        else
            tern_tiers_give(x->tiers, slot);
    }
}

/* ---- back -------------------------------------------------------------------------------------------------------- */

struct fetching {
    struct tern_fetch *f;
    struct tern_prefix_filling fill;
};

void *tern_prefix_fetch(void *self, int plan, const int32_t *tokens, int n)
{
    struct tern_prefix_cache *x = self;
    struct fetching *g;
    int pages;
    struct tern_prefix_entry *end;
    const struct tern_kv_layout *l = x->e->caches[plan].layout;
    if (!x->tiers)
        return NULL;
    const int depth = tern_prefix_walk(x, plan, tokens, n);
    const int found = tern_prefix_longest(x, plan, tokens, n, depth, n, &pages, &end);
    if (found == n || tern_alloc(&g, 1, sizeof *g, NULL) < 0)
        return NULL;
    for (int i = 0; i <= depth; i++)
        x->keys[i] = x->path[i]->key;
    const struct tern_fetch_want want = {.origin = plan,
                                         .path = x->keys,
                                         .depth = depth,
                                         .tokens = tokens,
                                         .n = n,
                                         .found = found,
                                         .states = l->state_bytes || l->recent > 1,
                                         .deep = l->windows};
    *g = (struct fetching){tern_fetch_begin(x->tiers, &want), {plan, n, depth, true, tokens, x->path[depth]}};
    if (!g->f) {
        x->stats.late++;
        tern_free(g);
        return NULL;
    }
    tern_prefix_pin(x, g->fill.last);
    return g;
}

void tern_prefix_drop_fetch(void *self, void *fetch)
{
    struct fetching *g = fetch;
    tern_fetch_end(g->f);
    tern_prefix_unpin(self, g->fill.last);
    tern_free(g);
}

/* A page's blocks; memory for them may have to be made. */
static bool read_slice(struct tern_prefix_cache *x, int plan, const struct tern_record *h, struct tern_kv_slice *out)
{
    int rc;
    do
        rc = tern_record_get_page(&x->e->caches[plan], h, out, NULL);
    while (rc == TERN_ECAPACITY && tern_prefix_evict(x, -1));
    return rc == 0;
}

bool tern_prefix_fill_page(struct tern_prefix_cache *x, struct tern_prefix_filling *g, const struct tern_record *h)
{
    struct tern_kv_slice slice;
    const int32_t *tokens = g->tokens + (size_t)g->n_pages * TERN_PAGE;
    if (h->index != (uint32_t)g->n_pages || (g->n_pages + 1) * TERN_PAGE > g->n ||
        !tern_key_is(&h->parent, &g->last->key) || !read_slice(x, g->plan, h, &slice))
        return false;
    const size_t entries = x->stats.entries, evictions = x->stats.evictions;
    struct tern_prefix_entry *p = tern_prefix_keep_page(x, g->last, tokens, &slice);
    tern_kv_slice_drop(&x->e->caches[g->plan], &slice);
    if (!p)
        return false;
    /* Else memory had more of it, perhaps. */
    if (g->written && x->stats.entries + x->stats.evictions - evictions > entries)
        tern_prefix_forget_unwritten(x, p);
    tern_prefix_pin(x, p);
    tern_prefix_unpin(x, g->last);
    g->last = p;
    g->n_pages++;
    return true;
}

bool tern_prefix_fill_end(struct tern_prefix_cache *x, const struct tern_prefix_filling *g, const struct tern_record *h)
{
    struct tern_kv_checkpoint *point;
    int rc;
    const size_t n_vocab = (size_t)x->e->model->net->desc.n_vocab;
    const int depth = tern_prefix_walk(x, g->plan, g->tokens, (int)h->index * TERN_PAGE);
    if (depth != (int)h->index || h->index * TERN_PAGE + h->n_tokens > (uint32_t)g->n ||
        !tern_prefix_room_for_point(x, g->plan))
        return false;
    do
        rc = tern_record_get_point(&x->e->caches[g->plan], h, n_vocab, &point, NULL);
    while (rc == TERN_ECAPACITY && tern_prefix_evict(x, -1));
    if (rc == 0 && tern_kv_can_start(&x->e->caches[g->plan], x->slices, depth, point, NULL) < 0) {
        tern_kv_checkpoint_drop(point);
        rc = TERN_EUNSUPPORTED;
    }
    if (rc < 0)
        return false;
    struct tern_prefix_entry *p = tern_prefix_keep_point(x, g->plan, g->tokens, depth, point);
    if (p && g->written)
        tern_prefix_forget_unwritten(x, p);
    return p != NULL;
}

bool tern_prefix_fetched(void *self, void *fetch)
{
    struct tern_prefix_cache *x = self;
    struct fetching *g = fetch;
    const struct tern_record *h;
    bool over = false;
    size_t bytes = 0;
    x->stamp++;
    while (bytes < TICK_BYTES && (h = tern_fetch_next(g->f, &over)) != NULL) {
        bytes += tern_record_bytes(h);
        const bool installed =
            h->kind == TERN_RECORD_PAGE ? tern_prefix_fill_page(x, &g->fill, h) : tern_prefix_fill_end(x, &g->fill, h);
        tern_fetch_give_back(g->f);
        x->stats.fetched += installed;
        if (!installed) {
            over = true;
            break;
        }
    }
    if (!over)
        return false;
    tern_prefix_drop_fetch(x, g);
    return true;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

int tern_prefix_open_tiers(struct tern_prefix_cache *x, const struct tern_prefix_params *p, tern_error *err)
{
    const struct tern_tiers_params t = {.dir = p->dir,
                                        .limit = p->dir_bytes,
                                        .min_free = p->dir_free,
                                        .shared = p->shared,
                                        .record_bytes = tern_record_most(x->e),
                                        .origins = x->origins,
                                        .n_origins = x->e->n_plans,
                                        .say = p->say,
                                        .say_user = p->say_user,
                                        .wake = p->wake,
                                        .wake_user = p->wake_user};
    return tern_tiers_open(&x->tiers, &t, err);
}

void tern_prefix_close_tiers(struct tern_prefix_cache *x)
{
    const double end = tern_now() + CLOSE_S;
    if (!x->tiers)
        return;
    while (x->unwritten && tern_tiers_writes(x->tiers) && tern_now() < end) {
        tern_prefix_tick(x);
        if (x->unwritten)
            (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    tern_tiers_close(x->tiers, end - tern_now());
    x->tiers = NULL;
}

static void copy_tier(tern_cache_tier *to, const struct tern_tier_stats *from)
{
    *to = (tern_cache_tier){.open = from->open,
                            .off = from->off,
                            .read_only = from->read_only,
                            .entries = from->entries,
                            .bytes = from->bytes,
                            .limit = from->limit,
                            .read = from->read,
                            .read_bytes = from->read_bytes,
                            .written = from->written,
                            .written_bytes = from->written_bytes,
                            .dropped = from->dropped,
                            .damaged = from->damaged,
                            .errors = from->errors,
                            .evictions = from->evictions};
}

void tern_prefix_get_stats(const struct tern_prefix_cache *x, tern_cache_stats *out)
{
    struct tern_tier_stats disk, shared;
    *out = x->stats;
    if (!x->tiers)
        return;
    tern_tiers_get_stats(x->tiers, &disk, &shared);
    copy_tier(&out->disk, &disk);
    copy_tier(&out->shared, &shared);
}

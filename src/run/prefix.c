#include "run/prefix.h"

#include <string.h>
#include <xxhash.h>
#include "base/mem.h"

#define LEAST_BUCKETS ((size_t)1 << 8)
#define MOST_BUCKETS  ((size_t)1 << 18)

/* A page, or the end of a prompt behind one: what an open page and the layers' states hold. */
struct entry {
    struct entry *parent, *ends, *next_end; /* ends: behind this page, of up to 63 tokens */
    struct entry *in_bucket;                /* pages alone */
    struct entry *before, *after;           /* all entries */
    XXH128_hash_t hash;                     /* of these tokens and all before them */
    struct tern_kv_slice slice;             /* of a page */
    struct tern_kv_checkpoint *point;       /* of an end; NULL: a page */
    int plan, n, n_below; /* n: tokens, 64 in a page.  n_below: pages and ends that hang on this one */
    size_t bytes;
    int cost;       /* tokens to compute again without it */
    double worth;   /* the least goes first */
    uint64_t stamp; /* of the call that needs it to stay */
    int32_t tokens[TERN_PAGE];
};

struct tern_prefix_cache {
    tern_engine *e;
    size_t limit, n_buckets;
    struct entry **buckets;
    struct entry *roots; /* [n_plans] before any token; never given back */
    struct entry *all;
    int *n_points;                   /* [n_plans] checkpoints held */
    struct entry **path;             /* [ctx / 64 + 1] what a call walks along, from the root */
    struct tern_kv_slice *slices;    /* [ctx / 64] theirs, borrowed */
    struct tern_kv_checkpoint *held; /* whose logits the last lookup has handed out */
    double floor;                    /* worth of what went last */
    uint64_t stamp;
    tern_cache_stats stats;
};

/* ---- entries ------------------------------------------------------------------------------------------------------
 */

/* The first one stands for all that changes what a page holds. */
static XXH128_hash_t root_hash(const tern_engine *e, int plan)
{
    const struct tern_net *net = e->model->net;
    const uint64_t seed[4] = {net->digest, e->caches[plan].layout->digest, (uint64_t)plan,
                              (uint64_t)tern_rope_is_long(&net->desc.ropes[0], e->ctx) << 1 | e->exact};
    return XXH3_128bits(seed, sizeof seed);
}

static XXH128_hash_t page_hash(XXH128_hash_t before, const int32_t *tokens)
{
    struct {
        uint64_t low, high;
        int32_t tokens[TERN_PAGE];
    } in = {.low = before.low64, .high = before.high64};
    memcpy(in.tokens, tokens, sizeof in.tokens);
    return XXH3_128bits(&in, sizeof in);
}

static struct entry **bucket(const struct tern_prefix_cache *x, XXH128_hash_t hash)
{
    return &x->buckets[hash.low64 & (x->n_buckets - 1)];
}

/* The page of these 64 tokens behind `parent`.  Hashes may collide, tokens do not. */
static struct entry *find_page(const struct tern_prefix_cache *x, const struct entry *parent, const int32_t *tokens)
{
    const XXH128_hash_t hash = page_hash(parent->hash, tokens);
    struct entry *p = *bucket(x, hash);
    while (p &&
           !(XXH128_isEqual(p->hash, hash) && p->parent == parent && memcmp(p->tokens, tokens, sizeof p->tokens) == 0))
        p = p->in_bucket;
    return p;
}

static void use(const struct tern_prefix_cache *x, struct entry *p)
{
    p->worth = x->floor + (double)p->cost / (double)p->bytes;
}

static size_t slice_bytes(const struct tern_kv_cache *c, const struct tern_kv_slice *s)
{
    size_t n = 0;
    for (int i = 0; i < TERN_KV_PARTS; i++)
        if (s->part[i] != TERN_NO_BLOCK)
            n += i == TERN_KV_FIRST_TOKENS ? c->sinks.mem.bytes : c->pool[i].mem.bytes;
    return n;
}

static void unlink_from(struct entry **list, const struct entry *p, size_t next)
{
    while (*list != p)
        list = (struct entry **)((char *)*list + next);
    *list = *(struct entry **)((char *)p + next);
}

static void remove_entry(struct tern_prefix_cache *x, struct entry *p)
{
    TERN_ASSERT(p->n_below == 0);
    if (p->point)
        unlink_from(&p->parent->ends, p, offsetof(struct entry, next_end));
    else
        unlink_from(bucket(x, p->hash), p, offsetof(struct entry, in_bucket));
    *(p->before ? &p->before->after : &x->all) = p->after;
    if (p->after)
        p->after->before = p->before;
    p->parent->n_below--;
    x->n_points[p->plan] -= p->point != NULL;
    x->stats.entries--;
    x->stats.bytes -= p->bytes;
    tern_kv_slice_drop(&x->e->caches[p->plan], &p->slice);
    tern_kv_checkpoint_drop(p->point);
    tern_free(p);
}

/* An entry that holds nothing yet, in no bucket and no list of ends. */
static struct entry *new_entry(struct tern_prefix_cache *x, struct entry *parent, const int32_t *tokens, int n,
                               size_t bytes)
{
    struct entry *p;
    if (tern_alloc(&p, 1, sizeof *p, NULL) < 0)
        return NULL;
    for (int i = 0; i < TERN_KV_PARTS; i++)
        p->slice.part[i] = TERN_NO_BLOCK;
    p->parent = parent;
    p->plan = parent->plan;
    p->n = n;
    memcpy(p->tokens, tokens, (size_t)n * sizeof *tokens);
    p->bytes = bytes;
    p->stamp = x->stamp;
    p->after = x->all;
    if (p->after)
        p->after->before = p;
    x->all = p;
    parent->n_below++;
    x->stats.entries++;
    x->stats.bytes += bytes;
    return p;
}

/* ---- room ---------------------------------------------------------------------------------------------------------
 */

/* Gives up the entry that is worth least; of ends of one plan alone where plan >= 0.  false: there is none that may go.
 */
static bool evict(struct tern_prefix_cache *x, int ends_of_plan)
{
    struct entry *least = NULL;
    for (struct entry *p = x->all; p; p = p->after) {
        if (p->n_below || p->stamp == x->stamp || (ends_of_plan >= 0 && (!p->point || p->plan != ends_of_plan)))
            continue;
        if (!least || p->worth <= least->worth) /* the older of equals */
            least = p;
    }
    if (!least)
        return false;
    x->floor = least->worth;
    x->stats.evictions++;
    remove_entry(x, least);
    return true;
}

static bool make_room(struct tern_prefix_cache *x, size_t bytes)
{
    if (bytes > x->limit)
        return false;
    while (x->stats.bytes > x->limit - bytes)
        if (!evict(x, -1))
            return false;
    return true;
}

/* Pools of tiles and states have so many blocks; sequences need some of them. */
static bool make_room_for_point(struct tern_prefix_cache *x, int plan)
{
    const struct tern_kv_cache *c = &x->e->caches[plan];
    const size_t seqs = (size_t)c->max_seqs;
    size_t most = c->tiles.n_blocks - seqs;
    if (c->layout->state_bytes && c->states.n_blocks - seqs * (TERN_KV_KEPT_STATES + 1) < most)
        most = c->states.n_blocks - seqs * (TERN_KV_KEPT_STATES + 1);
    return (size_t)x->n_points[plan] < most || evict(x, plan);
}

static bool shrink(void *self)
{
    struct tern_prefix_cache *x = self;
    const size_t used = atomic_load(&x->e->kv_budget.used);
    x->stamp++;
    while (evict(x, -1))
        if (atomic_load(&x->e->kv_budget.used) < used)
            return true;
    return false;
}

/* ---- finding ------------------------------------------------------------------------------------------------------
 */

/* Pages of tokens[0..n) that are known, into path and slices. */
static int walk(struct tern_prefix_cache *x, int plan, const int32_t *tokens, int n)
{
    int depth = 0;
    x->path[0] = &x->roots[plan];
    while ((depth + 1) * TERN_PAGE <= n) {
        struct entry *p = find_page(x, x->path[depth], tokens + (size_t)depth * TERN_PAGE);
        if (!p)
            break;
        x->slices[depth++] = p->slice;
        x->path[depth] = p;
    }
    return depth;
}

/* The longest end behind a page that begins like tokens[0..left), of at most `most` tokens; of all of them only with
 * logits. */
static struct entry *longest_end(const struct entry *page, const int32_t *tokens, int left, int most)
{
    struct entry *best = NULL;
    for (struct entry *p = page->ends; p; p = p->next_end)
        if (p->n <= most && (p->n < left || (p->n == left && p->point->logits)) && (!best || p->n > best->n) &&
            memcmp(p->tokens, tokens, (size_t)p->n * sizeof *tokens) == 0)
            best = p;
    return best;
}

/* The most of tokens[0..n), up to `most`, that a sequence can start from, along a path of depth pages.  *pages of them;
 * *end: the checkpoint, NULL for none. */
static int longest(const struct tern_prefix_cache *x, int plan, const int32_t *tokens, int n, int depth, int most,
                   int *pages, struct entry **end)
{
    const struct tern_kv_cache *c = &x->e->caches[plan];
    for (int k = depth; k >= 0; k--) {
        const int at = k * TERN_PAGE;
        *pages = k;
        struct entry *p = longest_end(x->path[k], tokens + at, n - at, most - at);
        for (; p; p = longest_end(x->path[k], tokens + at, n - at, p->n - 1)) {
            *end = p;
            if (tern_kv_can_start(c, x->slices, k, p->point, NULL) == 0)
                return at + p->n;
        }
        *end = NULL;
        if (at <= most && at < n && tern_kv_can_start(c, x->slices, k, NULL, NULL) == 0)
            return at;
    }
    *pages = 0;
    return 0;
}

static int lookup(void *self, tern_seq *s, const int32_t *tokens, int n, const float **logits)
{
    struct tern_prefix_cache *x = self;
    int pages;
    struct entry *end;
    tern_kv_checkpoint_drop(x->held);
    x->held = NULL;
    const int depth = walk(x, s->plan, tokens, n), found = longest(x, s->plan, tokens, n, depth, n, &pages, &end);
    const struct tern_kv_checkpoint *at = end ? end->point : NULL;
    if (!found || tern_kv_start(&x->e->caches[s->plan], s->kv, x->slices, pages, at, NULL) < 0) {
        x->stats.misses++;
        return 0;
    }
    TERN_ASSERT(s->kv->n_tokens == found);
    memcpy(s->tokens, tokens, (size_t)found * sizeof *tokens);
    memset(s->roles, 0, (size_t)found);
    for (int i = 1; i <= pages; i++)
        use(x, x->path[i]);
    if (end) {
        use(x, end);
        x->held = tern_kv_checkpoint_pin(end->point);
    }
    if (found == n) {
        TERN_ASSERT(x->held); /* all of a prompt is found at a checkpoint alone */
        *logits = x->held->logits;
    }
    x->stats.hits++;
    x->stats.hit_tokens += (uint64_t)found;
    return found;
}

/* ---- keeping ------------------------------------------------------------------------------------------------------
 */

/* A known page gets what it lacks: of windows that had moved on when it was met first. */
static void complete_page(struct tern_prefix_cache *x, struct entry *p, struct tern_kv_slice *from)
{
    const struct tern_kv_cache *c = &x->e->caches[p->plan];
    struct tern_kv_slice more;
    for (int i = 0; i < TERN_KV_PARTS; i++)
        more.part[i] = p->slice.part[i] == TERN_NO_BLOCK ? from->part[i] : TERN_NO_BLOCK;
    const size_t bytes = slice_bytes(c, &more);
    if (!bytes || !make_room(x, bytes))
        return;
    for (int i = 0; i < TERN_KV_PARTS; i++)
        if (more.part[i] != TERN_NO_BLOCK) {
            p->slice.part[i] = more.part[i];
            from->part[i] = TERN_NO_BLOCK;
        }
    p->bytes += bytes;
    x->stats.bytes += bytes;
}

static struct entry *add_page(struct tern_prefix_cache *x, struct entry *parent, const int32_t *tokens,
                              struct tern_kv_slice *slice)
{
    const size_t bytes = sizeof(struct entry) + slice_bytes(&x->e->caches[parent->plan], slice);
    struct entry *p = make_room(x, bytes) ? new_entry(x, parent, tokens, TERN_PAGE, bytes) : NULL;
    if (!p)
        return NULL;
    p->hash = page_hash(parent->hash, tokens);
    p->in_bucket = *bucket(x, p->hash);
    *bucket(x, p->hash) = p;
    p->cost = TERN_PAGE;
    tern_kv_slice_pin(&x->e->caches[parent->plan], slice);
    p->slice = *slice;
    return p;
}

/* The pages of tokens[0..n) of s, as many as there is room for, into path and slices.  Returns how many. */
static int keep_pages(struct tern_prefix_cache *x, const tern_seq *s, int n)
{
    struct tern_kv_cache *c = &x->e->caches[s->plan];
    int depth = 0;
    x->path[0] = &x->roots[s->plan];
    while ((depth + 1) * TERN_PAGE <= n) {
        const int32_t *tokens = s->tokens + (size_t)depth * TERN_PAGE;
        struct entry *p = find_page(x, x->path[depth], tokens);
        struct tern_kv_slice slice;
        if (p)
            p->stamp = x->stamp;
        tern_kv_slices_take(c, s->kv, depth, depth + 1, &slice);
        if (p)
            complete_page(x, p, &slice);
        else
            p = add_page(x, x->path[depth], tokens, &slice);
        tern_kv_slice_drop(c, &slice);
        if (!p)
            break;
        use(x, p);
        x->slices[depth++] = p->slice;
        x->path[depth] = p;
    }
    return depth;
}

static struct entry *find_end(const struct entry *page, const int32_t *tokens, int n)
{
    struct entry *p = page->ends;
    while (p && !(p->n == n && memcmp(p->tokens, tokens, (size_t)n * sizeof *tokens) == 0))
        p = p->next_end;
    return p;
}

/* The checkpoint becomes an end behind path[depth]; its reference is taken over. */
static void add_end(struct tern_prefix_cache *x, const tern_seq *s, int depth, struct tern_kv_checkpoint *point)
{
    int pages;
    struct entry *before, *parent = x->path[depth];
    const size_t bytes = sizeof(struct entry) + tern_kv_checkpoint_bytes(point);
    const int n = point->at - depth * TERN_PAGE;
    const int start = longest(x, s->plan, s->tokens, point->at, depth, point->at - 1, &pages, &before);
    struct entry *p =
        make_room(x, bytes) ? new_entry(x, parent, s->tokens + (size_t)depth * TERN_PAGE, n, bytes) : NULL;
    if (!p) {
        tern_kv_checkpoint_drop(point);
        return;
    }
    p->point = point;
    p->next_end = parent->ends;
    parent->ends = p;
    p->cost = point->at - start;
    x->n_points[p->plan]++;
    use(x, p);
}

/* What a sequence keeps of its states by itself. */
static void keep_states(struct tern_prefix_cache *x, const tern_seq *s, int depth)
{
    int n = depth * TERN_PAGE;
    struct tern_kv_checkpoint *point;
    while (n > 0 && (point = tern_kv_checkpoint_kept(s->kv, n)) != NULL) {
        const int at = point->at;
        n = at - 1;
        if (at > 0 && !find_end(x->path[at / TERN_PAGE], s->tokens, 0) && make_room_for_point(x, s->plan))
            add_end(x, s, at / TERN_PAGE, point);
        else
            tern_kv_checkpoint_drop(point);
    }
}

static void keep_end(struct tern_prefix_cache *x, const tern_seq *s, int depth, const float *logits)
{
    struct tern_kv_cache *c = &x->e->caches[s->plan];
    const size_t n_logits = logits ? (size_t)x->e->model->net->desc.n_vocab : 0;
    const int n = s->kv->n_tokens, rest = n - depth * TERN_PAGE;
    struct tern_kv_checkpoint *point;
    struct entry *known = find_end(x->path[depth], s->tokens + (size_t)depth * TERN_PAGE, rest);
    if (known && (known->point->logits || !logits)) {
        use(x, known);
        return;
    }
    if (!logits && rest == 0 && tern_kv_can_start(c, x->slices, depth, NULL, NULL) == 0)
        return; /* the pages are all that it takes */
    if (known)
        remove_entry(x, known);
    if (make_room_for_point(x, s->plan) &&
        make_room(x, c->layout->tile_bytes + c->layout->state_bytes + n_logits * sizeof *logits) &&
        tern_kv_checkpoint_take(c, s->kv, logits, n_logits, &point, NULL) == 0)
        add_end(x, s, depth, point);
}

/* Rows of replies have another arithmetic than those of prompts, and nobody asks for them. */
static void offer(void *self, tern_seq *s, const float *logits, bool over)
{
    struct tern_prefix_cache *x = self;
    const int n = s->kv->n_tokens;
    const uint8_t *reply = memchr(s->roles, 1, (size_t)n);
    if (n == 0 || (reply && !x->e->exact))
        return;
    x->stamp++;
    const int depth = keep_pages(x, s, n);
    keep_states(x, s, depth);
    if (depth == n / TERN_PAGE && (!reply || over))
        keep_end(x, s, depth, logits);
}

/* ---- opening and closing ------------------------------------------------------------------------------------------
 */

int tern_prefix_new(struct tern_prefix_cache **out, tern_engine *e, size_t bytes, tern_error *err)
{
    int rc = 0;
    const size_t plans = (size_t)e->n_plans, pages = (size_t)e->ctx / TERN_PAGE + 1;
    struct tern_prefix_cache *x = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&x, 1, sizeof *x, err));
    x->e = e;
    x->limit = x->stats.limit = bytes;
    for (x->n_buckets = LEAST_BUCKETS; x->n_buckets < MOST_BUCKETS && x->n_buckets << 14 < bytes;)
        x->n_buckets *= 2;
    TERN_TRY(tern_alloc(&x->buckets, x->n_buckets, sizeof(void *), err));
    TERN_TRY(tern_alloc(&x->roots, plans, sizeof *x->roots, err));
    TERN_TRY(tern_alloc(&x->n_points, plans, sizeof *x->n_points, err));
    TERN_TRY(tern_alloc(&x->path, pages, sizeof(void *), err));
    TERN_TRY(tern_alloc(&x->slices, pages, sizeof *x->slices, err));
    for (int i = 0; i < e->n_plans; i++)
        x->roots[i] = (struct entry){.plan = i, .hash = root_hash(e, i)};
    *out = x;
    x = NULL;
out:
    tern_prefix_free(x);
    return rc;
}

void tern_prefix_free(struct tern_prefix_cache *x)
{
    if (!x)
        return;
    tern_kv_checkpoint_drop(x->held);
    for (struct entry *p = x->all, *next; p; p = next) {
        next = p->after;
        tern_kv_slice_drop(&x->e->caches[p->plan], &p->slice);
        tern_kv_checkpoint_drop(p->point);
        tern_free(p);
    }
    tern_free((void *)x->buckets);
    tern_free(x->roots);
    tern_free(x->n_points);
    tern_free((void *)x->path);
    tern_free(x->slices);
    tern_free(x);
}

struct tern_prefix tern_prefix_hooks(struct tern_prefix_cache *x)
{
    return (struct tern_prefix){.self = x, .lookup = lookup, .offer = offer, .shrink = shrink};
}

void tern_prefix_get_stats(const struct tern_prefix_cache *x, tern_cache_stats *out)
{
    *out = x->stats;
}

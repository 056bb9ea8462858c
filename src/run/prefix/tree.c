/* Finding what is known of a prompt, and keeping what was computed. */
#include <string.h>
#include "base/mem.h"
#include "run/prefix/tree.h"

#define LEAST_BUCKETS ((size_t)1 << 8)
#define MOST_BUCKETS  ((size_t)1 << 18)
#define POINT_EVERY   1024 /* tokens, in the middle of prompts that cannot be cut anywhere */
#define BORDER_APART  256  /* at least, of borders */

/* ---- finding ----------------------------------------------------------------------------------------------------- */

/* The page of these 64 tokens behind `parent`. */
static struct tern_prefix_entry *find_page(const struct tern_prefix_cache *x, const struct tern_prefix_entry *parent,
                                           const int32_t *tokens)
{
    struct tern_key key;
    tern_page_key(&parent->key, tokens, &key);
    struct tern_prefix_entry *p = *tern_prefix_bucket(x, &key);
    while (p &&
           !(tern_key_is(&p->key, &key) && p->parent == parent && memcmp(p->tokens, tokens, sizeof p->tokens) == 0))
        p = p->in_bucket;
    return p;
}

int tern_prefix_walk(struct tern_prefix_cache *x, int plan, const int32_t *tokens, int n)
{
    int depth = 0;
    x->path[0] = &x->roots[plan];
    while ((depth + 1) * TERN_PAGE <= n) {
        struct tern_prefix_entry *p = find_page(x, x->path[depth], tokens + (size_t)depth * TERN_PAGE);
        if (!p)
            break;
        x->slices[depth++] = p->slice;
        x->path[depth] = p;
    }
    return depth;
}

/* The longest end behind a page that begins like tokens[0..left), of at most `most` tokens; of all of them only with
 * logits. */
static struct tern_prefix_entry *longest_end(const struct tern_prefix_entry *page, const int32_t *tokens, int left,
                                             int most)
{
    struct tern_prefix_entry *best = NULL;
    for (struct tern_prefix_entry *p = page->ends; p; p = p->next_end)
        if (p->n <= most && (p->n < left || (p->n == left && p->point->logits)) && (!best || p->n > best->n) &&
            memcmp(p->tokens, tokens, (size_t)p->n * sizeof *tokens) == 0)
            best = p;
    return best;
}

int tern_prefix_longest(const struct tern_prefix_cache *x, int plan, const int32_t *tokens, int n, int depth, int most,
                        int *pages, struct tern_prefix_entry **end)
{
    const struct tern_kv_cache *c = &x->e->caches[plan];
    for (int k = depth; k >= 0; k--) {
        const int at = k * TERN_PAGE;
        *pages = k;
        struct tern_prefix_entry *p = longest_end(x->path[k], tokens + at, n - at, most - at);
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
    struct tern_prefix_entry *end;
    const int depth = tern_prefix_walk(x, s->plan, tokens, n);
    const int found = tern_prefix_longest(x, s->plan, tokens, n, depth, n, &pages, &end);
    const struct tern_kv_checkpoint *at = end ? end->point : NULL;
    if (!found || tern_kv_start(&x->e->caches[s->plan], s->kv, x->slices, pages, at, NULL) < 0) {
        x->stats.misses++;
        x->stats.misses_no_start += depth > 0;
        return 0;
    }
    TERN_ASSERT(s->kv->n_tokens == found);
    memcpy(s->tokens, tokens, (size_t)found * sizeof *tokens);
    memset(s->roles, 0, (size_t)found);
    for (int i = 1; i <= pages; i++)
        tern_prefix_use(x, x->path[i]);
    if (end)
        tern_prefix_use(x, end);
    if (found == n) { /* a copy: what is kept may go before it is read, and would have to be paid for until then */
        TERN_ASSERT(at && at->n_logits == (size_t)x->e->model->net->desc.n_vocab); /* at a checkpoint alone */
        memcpy(x->logits, at->logits, at->n_logits * sizeof *at->logits);
        *logits = x->logits;
    }
    x->stats.hits++;
    x->stats.hit_tokens += (uint64_t)found;
    return found;
}

/* ---- keeping ----------------------------------------------------------------------------------------------------- */

static size_t slice_bytes(const struct tern_kv_cache *c, const struct tern_kv_slice *s)
{
    size_t n = 0;
    for (int i = 0; i < TERN_KV_PARTS; i++)
        if (s->part[i] != TERN_NO_BLOCK)
            n += i == TERN_KV_FIRST_TOKENS ? c->sinks.takes : c->pool[i].takes;
    return n;
}

/* A known page gets what it lacks: of windows that had moved on when it was met first. */
static void complete_page(struct tern_prefix_cache *x, struct tern_prefix_entry *p, struct tern_kv_slice *from)
{
    const struct tern_kv_cache *c = &x->e->caches[p->plan];
    struct tern_kv_slice more;
    for (int i = 0; i < TERN_KV_PARTS; i++)
        more.part[i] = p->slice.part[i] == TERN_NO_BLOCK ? from->part[i] : TERN_NO_BLOCK;
    const size_t bytes = slice_bytes(c, &more);
    if (!bytes || !tern_prefix_make_room(x, bytes))
        return;
    for (int i = 0; i < TERN_KV_PARTS; i++)
        if (more.part[i] != TERN_NO_BLOCK) {
            p->slice.part[i] = more.part[i];
            from->part[i] = TERN_NO_BLOCK;
        }
    p->bytes += bytes;
    x->stats.bytes += bytes;
    tern_prefix_unwritten(x, p);
}

static struct tern_prefix_entry *add_page(struct tern_prefix_cache *x, struct tern_prefix_entry *parent,
                                          const int32_t *tokens, struct tern_kv_slice *slice)
{
    const size_t bytes = sizeof(struct tern_prefix_entry) + slice_bytes(&x->e->caches[parent->plan], slice);
    struct tern_prefix_entry *p =
        tern_prefix_make_room(x, bytes) ? tern_prefix_entry_new(x, parent, tokens, TERN_PAGE, false, bytes) : NULL;
    if (!p)
        return NULL;
    tern_page_key(&parent->key, tokens, &p->key);
    struct tern_prefix_entry **bucket = tern_prefix_bucket(x, &p->key);
    p->in_bucket = *bucket;
    *bucket = p;
    p->cost = TERN_PAGE;
    tern_kv_slice_pin(&x->e->caches[parent->plan], slice);
    p->slice = *slice;
    tern_prefix_unwritten(x, p);
    return p;
}

struct tern_prefix_entry *tern_prefix_keep_page(struct tern_prefix_cache *x, struct tern_prefix_entry *parent,
                                                const int32_t *tokens, struct tern_kv_slice *slice)
{
    struct tern_prefix_entry *p = find_page(x, parent, tokens);
    parent->stamp = x->stamp; /* room for the page is not made of what it hangs on */
    if (p) {
        p->stamp = x->stamp;
        complete_page(x, p, slice);
    } else {
        p = add_page(x, parent, tokens, slice);
    }
    if (p)
        tern_prefix_use(x, p);
    return p;
}

/* The pages of tokens[0..n) of s, as many as there is room for, into path and slices.  Returns how many. */
static int keep_pages(struct tern_prefix_cache *x, const tern_seq *s, int n)
{
    struct tern_kv_cache *c = &x->e->caches[s->plan];
    int depth = 0;
    x->path[0] = &x->roots[s->plan];
    while ((depth + 1) * TERN_PAGE <= n) {
        struct tern_kv_slice slice;
        tern_kv_slices_take(c, s->kv, depth, depth + 1, &slice);
        struct tern_prefix_entry *p =
            tern_prefix_keep_page(x, x->path[depth], s->tokens + (size_t)depth * TERN_PAGE, &slice);
        tern_kv_slice_drop(c, &slice);
        if (!p)
            break;
        x->slices[depth++] = p->slice;
        x->path[depth] = p;
    }
    return depth;
}

struct tern_prefix_entry *tern_prefix_find_end(const struct tern_prefix_entry *page, const int32_t *tokens, int n)
{
    struct tern_prefix_entry *p = page->ends;
    while (p && !(p->n == n && (n == 0 || memcmp(p->tokens, tokens, (size_t)n * sizeof *tokens) == 0)))
        p = p->next_end;
    return p;
}

struct tern_prefix_entry *tern_prefix_keep_point(struct tern_prefix_cache *x, int plan, const int32_t *tokens,
                                                 int depth, struct tern_kv_checkpoint *point)
{
    int pages;
    struct tern_prefix_entry *before, *parent = x->path[depth];
    const size_t bytes = sizeof(struct tern_prefix_entry) + tern_kv_checkpoint_bytes(point);
    const int32_t *own = tokens + (size_t)depth * TERN_PAGE;
    const int n = point->at - depth * TERN_PAGE;
    struct tern_prefix_entry *known = tern_prefix_find_end(parent, own, n);
    if (known && (known->point->logits || !point->logits)) {
        tern_prefix_use(x, known);
        tern_kv_checkpoint_drop(point);
        return NULL;
    }
    const int start = tern_prefix_longest(x, plan, tokens, point->at, depth, point->at - 1, &pages, &before);
    parent->stamp = x->stamp;
    struct tern_prefix_entry *p =
        tern_prefix_make_room(x, bytes) ? tern_prefix_entry_new(x, parent, own, n, true, bytes) : NULL;
    if (!p) {
        tern_kv_checkpoint_drop(point);
        return NULL;
    }
    p->point = point;
    p->next_end = parent->ends;
    parent->ends = p;
    p->cost = point->at - start;
    x->n_points[p->plan]++;
    tern_prefix_use(x, p);
    tern_prefix_unwritten(x, p);
    return p;
}

/* What a sequence keeps of its states by itself. */
static void keep_states(struct tern_prefix_cache *x, const tern_seq *s, int depth)
{
    int n = depth * TERN_PAGE;
    struct tern_kv_checkpoint *point;
    while (n > 0 && (point = tern_kv_checkpoint_kept(s->kv, n)) != NULL) {
        const int at = point->at;
        n = at - 1;
        /* States alone are no place to start from where rows of several tokens are open. */
        if (at > 0 && !tern_prefix_find_end(x->path[at / TERN_PAGE], s->tokens, 0) &&
            tern_kv_can_start(&x->e->caches[s->plan], x->slices, at / TERN_PAGE, point, NULL) == 0 &&
            tern_prefix_room_for_point(x, s->plan))
            (void)tern_prefix_keep_point(x, s->plan, s->tokens, at / TERN_PAGE, point);
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
    struct tern_prefix_entry *known = tern_prefix_find_end(x->path[depth], s->tokens + (size_t)depth * TERN_PAGE, rest);
    if (known && (known->point->logits || !logits)) {
        tern_prefix_use(x, known);
        return;
    }
    if (!logits && rest == 0 && tern_kv_can_start(c, x->slices, depth, NULL, NULL) == 0)
        return; /* the pages are all that it takes */
    if (known && known->pins)
        return;
    if (known)
        tern_prefix_entry_remove(x, known);
    if (tern_prefix_room_for_point(x, s->plan) &&
        tern_prefix_make_room(x, c->layout->tile_bytes + c->layout->state_bytes + n_logits * sizeof *logits) &&
        tern_kv_checkpoint_take(c, s->kv, logits, n_logits, &point, NULL) == 0)
        (void)tern_prefix_keep_point(x, s->plan, s->tokens, depth, point);
}

/* Rows of replies have another arithmetic than those of prompts, and nobody asks for them. */
static bool is_prompt(const struct tern_prefix_cache *x, const tern_seq *s)
{
    return x->e->exact || !memchr(s->roles, 1, (size_t)s->kv->n_tokens);
}

static void offer(void *self, tern_seq *s, const float *logits, bool over)
{
    struct tern_prefix_cache *x = self;
    const int n = s->kv->n_tokens;
    if (n == 0 || !is_prompt(x, s))
        return;
    x->stamp++;
    const int depth = keep_pages(x, s, n);
    keep_states(x, s, depth);
    if (depth == n / TERN_PAGE && (over || !memchr(s->roles, 1, (size_t)n)))
        keep_end(x, s, depth, logits);
    tern_prefix_tick(x);
}

static int widest_window(const struct tern_kv_layout *l)
{
    int most = 0;
    for (int g = 0; g < l->n_groups; g++)
        most = l->groups[g].reach.window > most ? l->groups[g].reach.window : most;
    return most;
}

/* Pages of windows are kept raw around each border, and steps of few rows cost more than their share. */
static int apart(void *self, int plan)
{
    const struct tern_prefix_cache *x = self;
    const struct tern_kv_layout *l = x->e->caches[plan].layout;
    const int two = 2 * widest_window(l);
    if (!l->state_bytes && !l->windows && l->recent == 1)
        return 0;
    return two > BORDER_APART ? two : BORDER_APART;
}

/* Where a sequence cannot start at every page, what it takes is kept at borders and every so often: states, and the
 * pages of windows before they move on. */
static void passed(void *self, tern_seq *s, int before, bool border)
{
    struct tern_prefix_cache *x = self;
    const struct tern_kv_layout *l = x->e->caches[s->plan].layout;
    const int n = s->kv->n_tokens;
    const int four = 4 * widest_window(l), every = four > POINT_EVERY ? four : POINT_EVERY;
    struct tern_prefix_entry *end;
    int pages;
    if (!apart(x, s->plan) || (!border && n / every == before / every) || !is_prompt(x, s))
        return;
    x->stamp++;
    const int depth = keep_pages(x, s, n);
    keep_states(x, s, depth);
    /* In the middle of a page it takes the open rows as well; and there are layouts without another place. */
    if (depth == n / TERN_PAGE &&
        (border || tern_prefix_longest(x, s->plan, s->tokens, n, depth, n, &pages, &end) <= before))
        keep_end(x, s, depth, NULL);
    tern_prefix_tick(x);
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

int tern_prefix_new(struct tern_prefix_cache **out, tern_engine *e, const struct tern_prefix_params *p, tern_error *err)
{
    int rc = 0;
    const size_t plans = (size_t)e->n_plans, pages = (size_t)e->ctx / TERN_PAGE + 1;
    struct tern_prefix_cache *x = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&x, 1, sizeof *x, err));
    x->e = e;
    x->limit = x->stats.limit = p->bytes;
    for (x->n_buckets = LEAST_BUCKETS; x->n_buckets < MOST_BUCKETS && x->n_buckets << 14 < p->bytes;)
        x->n_buckets *= 2;
    TERN_TRY(tern_alloc(&x->buckets, x->n_buckets, sizeof(void *), err));
    TERN_TRY(tern_alloc(&x->roots, plans, sizeof *x->roots, err));
    TERN_TRY(tern_alloc(&x->heaps, 1 + plans, sizeof *x->heaps, err));
    TERN_TRY(tern_alloc(&x->n_points, plans, sizeof *x->n_points, err));
    TERN_TRY(tern_alloc(&x->path, pages, sizeof(void *), err));
    TERN_TRY(tern_alloc(&x->logits, (size_t)e->model->net->desc.n_vocab, sizeof *x->logits, err));
    TERN_TRY(tern_alloc(&x->slices, pages, sizeof *x->slices, err));
    TERN_TRY(tern_alloc(&x->keys, pages, sizeof *x->keys, err));
    TERN_TRY(tern_alloc(&x->origins, plans, sizeof *x->origins, err));
    for (int i = 0; i < e->n_plans; i++) {
        x->roots[i] = (struct tern_prefix_entry){.plan = i, .at = TERN_NOT_IN_HEAP};
        tern_engine_origin(e, i, &x->origins[i]);
        tern_origin_key(&x->origins[i], &x->roots[i].key);
    }
    if (p->dir || p->shared)
        TERN_TRY(tern_prefix_open_tiers(x, p, err));
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
    tern_prefix_close_tiers(x);
    tern_free(x->logits);
    for (struct tern_prefix_entry *p = x->all, *next; p; p = next) {
        next = p->after;
        tern_kv_slice_drop(&x->e->caches[p->plan], &p->slice);
        tern_kv_checkpoint_drop(p->point);
        tern_free(p);
    }
    for (int i = 0; x->heaps && i < 1 + x->e->n_plans; i++)
        tern_free((void *)x->heaps[i].v);
    tern_free(x->heaps);
    tern_free((void *)x->buckets);
    tern_free(x->roots);
    tern_free(x->n_points);
    tern_free((void *)x->path);
    tern_free(x->slices);
    tern_free(x->keys);
    tern_free(x->origins);
    tern_free(x);
}

struct tern_prefix tern_prefix_hooks(struct tern_prefix_cache *x)
{
    return (struct tern_prefix){.self = x,
                                .lookup = lookup,
                                .offer = offer,
                                .shrink = tern_prefix_shrink,
                                .passed = passed,
                                .apart = apart,
                                .fetch = tern_prefix_fetch,
                                .fetched = tern_prefix_fetched,
                                .drop = tern_prefix_drop_fetch,
                                .tick = tern_prefix_tick};
}

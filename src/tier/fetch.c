/* The thread that reads: what of a prompt the tiers have, in the order in which memory can take it. */
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "tier/tier_impl.h"

#define LATE_S   2.0 /* without a record: then it is a miss */
#define BATCH    32  /* pages that a store is asked for at once */
#define MOST_END (TERN_TIER_TOKENS - 1)

struct tern_fetch {
    struct tern_tiers *t;
    struct tern_fetch *next; /* in the reader's queue */
    int refs;                /* the engine's and the reader's */
    int origin, depth, n, found;
    bool states, deep;
    struct tern_key *keys; /* [n / 64 + 1] from the origin on; the first depth + 1 were given */
    int32_t *tokens;       /* [n] */
    bool *on_disk;         /* [n / 64] */
    uint8_t *ready[TERN_MAX_SLOTS], *given;
    size_t first, n_ready;
    bool over, ended; /* nothing more comes; nobody waits any more */
    double moved;     /* when something came last */
};

/* The end that is to be read, and how many pages before it. */
struct goal {
    int pages;
    bool has_end, end_on_disk;
    struct tern_record_name end;
};

static void free_fetch(struct tern_fetch *f)
{
    tern_free(f->keys);
    tern_free(f->tokens);
    tern_free(f->on_disk);
    tern_free(f);
}

/* Under the lock. */
static void unref(struct tern_fetch *f)
{
    if (--f->refs == 0)
        free_fetch(f);
}

/* ---- looking ----------------------------------------------------------------------------------------------------- */

static struct tern_record_name page_name(const struct tern_fetch *f, int i)
{
    return (struct tern_record_name){f->keys[i + 1], (uint32_t)i, TERN_RECORD_PAGE, TERN_TIER_TOKENS};
}

/* Of pages [from, to) those that the store has without a gap. */
static int ask_for_pages(const struct tern_fetch *f, int from, int to)
{
    struct tern_record_name names[BATCH] = {0};
    bool has[BATCH];
    int n = 0;
    while (from + n < to && n < BATCH) {
        names[n] = page_name(f, from + n);
        n++;
    }
    tern_shared_has(f->t->shared, TERN_SHARED_READER, names, n, has);
    for (int i = 0; i < n; i++)
        if (!has[i])
            return from + i;
    return from + n;
}

/* Pages that are there, from the beginning. */
static int find_pages(struct tern_fetch *f)
{
    const int n_pages = f->n / TERN_TIER_TOKENS;
    int shared_to = f->depth, at = f->depth;
    for (; at < n_pages; at++) {
        tern_page_key(&f->keys[at], f->tokens + (size_t)at * TERN_TIER_TOKENS, &f->keys[at + 1]);
        const struct tern_record_name name = page_name(f, at);
        f->on_disk[at] = f->t->disk && tern_disk_has(f->t->disk, &name);
        if (f->on_disk[at] || at < shared_to)
            continue;
        if (!f->t->shared)
            break;
        for (int i = at + 1; i < n_pages && i < at + BATCH; i++)
            tern_page_key(&f->keys[i], f->tokens + (size_t)i * TERN_TIER_TOKENS, &f->keys[i + 1]);
        shared_to = ask_for_pages(f, at, n_pages);
        if (shared_to == at)
            break;
    }
    return at;
}

/* Ends behind page j that the prompt goes through, the longest first.  Returns how many. */
static int end_names(const struct tern_fetch *f, int j, int least, struct tern_record_name *out)
{
    const int at = j * TERN_TIER_TOKENS, left = f->n - at, most = left < MOST_END ? left : MOST_END;
    struct tern_record_name all[2 * TERN_TIER_TOKENS];
    struct tern_sha256 s;
    int n = 0;
    tern_sha256_init(&s);
    tern_sha256_add(&s, &f->keys[j], sizeof f->keys[j]);
    for (int k = 0; k <= most; k++) {
        for (int i = TERN_RECORD_STATE; i <= TERN_RECORD_END; i++) {
            const uint8_t kind = (uint8_t)i;
            struct tern_sha256 t = s;
            if (at + k <= least || (at + k == f->n && kind != TERN_RECORD_END))
                continue;
            tern_sha256_add(&t, &kind, 1);
            all[n] = (struct tern_record_name){{{0}}, (uint32_t)j, kind, (uint8_t)k};
            tern_sha256_get(&t, all[n++].key.b);
        }
        if (k < most)
            tern_sha256_add(&s, &f->tokens[at + k], sizeof *f->tokens);
    }
    for (int i = 0; i < n; i++)
        out[i] = all[n - 1 - i];
    return n;
}

static bool find_end_behind(struct tern_fetch *f, int j, bool last, struct goal *g)
{
    struct tern_record_name names[2 * TERN_TIER_TOKENS];
    bool has[2 * TERN_TIER_TOKENS];
    int n = end_names(f, j, f->found, names);
    for (int i = 0; i < n && f->t->disk; i++)
        if (tern_disk_has(f->t->disk, &names[i])) {
            *g = (struct goal){j, true, true, names[i]};
            return true;
        }
    if (!f->t->shared || !n)
        return false;
    const int from = last || n < 2 ? 0 : n - 2; /* before the last page, at borders alone */
    tern_shared_has(f->t->shared, TERN_SHARED_READER, names + from, n - from, has);
    for (int i = 0; i < n - from; i++)
        if (has[i]) {
            *g = (struct goal){j, true, false, names[from + i]};
            return true;
        }
    return false;
}

/* What is worth reading.  false: nothing is. */
static bool find_goal(struct tern_fetch *f, struct goal *g)
{
    const int pages = find_pages(f), least = f->states || f->deep ? 0 : pages;
    *g = (struct goal){.pages = pages};
    for (int j = pages; j >= least && j * TERN_TIER_TOKENS + MOST_END > f->found && !g->has_end; j--)
        if (find_end_behind(f, j, j == pages, g) && !f->states)
            g->pages = pages;
    return g->has_end || (!f->states && pages * TERN_TIER_TOKENS > f->found);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* NULL: nobody waits any more. */
static uint8_t *wait_for_slot(struct tern_fetch *f)
{
    struct tern_tiers *t = f->t;
    uint8_t *slot = NULL;
    (void)pthread_mutex_lock(&t->lock);
    while (!t->to_read.n_free && !t->stop && !f->ended)
        (void)pthread_cond_wait(&t->room, &t->lock);
    if (!t->stop && !f->ended)
        slot = t->to_read.free[--t->to_read.n_free];
    (void)pthread_mutex_unlock(&t->lock);
    return slot;
}

/* false: the end of it. */
static bool bring(struct tern_fetch *f, const struct tern_record_name *name, bool on_disk)
{
    struct tern_tiers *t = f->t;
    const struct tern_origin *origin = &t->origins[f->origin];
    uint8_t *slot = wait_for_slot(f);
    if (!slot)
        return false;
    atomic_store(&t->busy_since, tern_now());
    bool read = on_disk && tern_disk_read(t->disk, name, origin, slot, t->to_read.bytes);
    if (!read && t->shared)
        read = tern_shared_read(t->shared, name, origin, slot, t->to_read.bytes);
    atomic_store(&t->busy_since, 0);
    (void)pthread_mutex_lock(&t->lock);
    read = read && !f->ended;
    if (read) {
        f->ready[(f->first + f->n_ready++) % TERN_MAX_SLOTS] = slot;
        f->moved = tern_now();
    } else {
        t->to_read.free[t->to_read.n_free++] = slot;
    }
    (void)pthread_mutex_unlock(&t->lock);
    if (read && t->p.wake)
        t->p.wake(t->p.wake_user);
    return read;
}

static void serve(struct tern_fetch *f)
{
    struct goal g;
    atomic_store(&f->t->busy_since, tern_now());
    const bool worth = find_goal(f, &g);
    atomic_store(&f->t->busy_since, 0);
    bool goes_on = worth;
    for (int i = f->depth; goes_on && i < g.pages; i++) {
        const struct tern_record_name name = page_name(f, i);
        goes_on = bring(f, &name, f->on_disk[i]);
    }
    if (goes_on && g.has_end)
        (void)bring(f, &g.end, g.end_on_disk);
}

void *tern_reader_run(void *arg)
{
    struct tern_tiers *t = arg;
    (void)pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->fetches && !t->stop)
            (void)pthread_cond_wait(&t->more, &t->lock);
        if (t->stop)
            break;
        struct tern_fetch *f = t->fetches;
        const bool ended = f->ended;
        (void)pthread_mutex_unlock(&t->lock);
        if (!ended)
            serve(f);
        (void)pthread_mutex_lock(&t->lock);
        f->over = true;
        t->fetches = f->next;
        unref(f);
        (void)pthread_mutex_unlock(&t->lock);
        if (t->p.wake)
            t->p.wake(t->p.wake_user);
        (void)pthread_mutex_lock(&t->lock);
    }
    (void)pthread_mutex_unlock(&t->lock);
    return NULL;
}

void tern_reader_drop_all(struct tern_tiers *t)
{
    for (struct tern_fetch *f = t->fetches, *next; f; f = next) {
        next = f->next;
        unref(f);
    }
    t->fetches = NULL;
}

/* ---- what the engine's thread asks ------------------------------------------------------------------------------- */

static struct tern_fetch *new_fetch(struct tern_tiers *t, const struct tern_fetch_want *w)
{
    struct tern_fetch *f;
    const size_t pages = (size_t)w->n / TERN_TIER_TOKENS;
    if (tern_alloc(&f, 1, sizeof *f, NULL) < 0)
        return NULL;
    *f = (struct tern_fetch){.t = t,
                             .refs = 2,
                             .origin = w->origin,
                             .depth = w->depth,
                             .n = w->n,
                             .found = w->found,
                             .states = w->states,
                             .deep = w->deep,
                             .moved = tern_now()};
    if (tern_alloc(&f->keys, pages + 1, sizeof *f->keys, NULL) < 0 ||
        tern_alloc(&f->tokens, (size_t)w->n, sizeof *f->tokens, NULL) < 0 ||
        tern_alloc(&f->on_disk, pages + 1, sizeof *f->on_disk, NULL) < 0) {
        free_fetch(f);
        return NULL;
    }
    memcpy(f->keys, w->path, ((size_t)w->depth + 1) * sizeof *f->keys);
    memcpy(f->tokens, w->tokens, (size_t)w->n * sizeof *f->tokens);
    return f;
}

struct tern_fetch *tern_fetch_begin(struct tern_tiers *t, const struct tern_fetch_want *w)
{
    const double busy = atomic_load(&t->busy_since);
    if (busy > 0 && tern_now() - busy > LATE_S)
        return NULL;
    struct tern_fetch *f = new_fetch(t, w);
    if (!f)
        return NULL;
    (void)pthread_mutex_lock(&t->lock);
    struct tern_fetch **at = &t->fetches;
    while (*at)
        at = &(*at)->next;
    *at = f;
    (void)pthread_cond_broadcast(&t->more);
    (void)pthread_mutex_unlock(&t->lock);
    return f;
}

const struct tern_record *tern_fetch_next(struct tern_fetch *f, bool *over)
{
    (void)pthread_mutex_lock(&f->t->lock);
    TERN_ASSERT(!f->given);
    if (f->n_ready) {
        f->given = f->ready[f->first];
        f->first = (f->first + 1) % TERN_MAX_SLOTS;
        f->n_ready--;
    }
    *over = !f->given && (f->over || tern_now() - f->moved > LATE_S);
    const uint8_t *given = f->given;
    (void)pthread_mutex_unlock(&f->t->lock);
    return (const struct tern_record *)(const void *)given;
}

/* Under the lock. */
static void give_back(struct tern_fetch *f, uint8_t *slot)
{
    f->t->to_read.free[f->t->to_read.n_free++] = slot;
    (void)pthread_cond_broadcast(&f->t->room);
}

void tern_fetch_give_back(struct tern_fetch *f)
{
    (void)pthread_mutex_lock(&f->t->lock);
    give_back(f, f->given);
    f->given = NULL;
    f->moved = tern_now();
    (void)pthread_mutex_unlock(&f->t->lock);
}

void tern_fetch_end(struct tern_fetch *f)
{
    struct tern_tiers *t = f->t;
    (void)pthread_mutex_lock(&t->lock);
    f->ended = true;
    if (f->given)
        give_back(f, f->given);
    for (; f->n_ready; f->n_ready--, f->first = (f->first + 1) % TERN_MAX_SLOTS)
        give_back(f, f->ready[f->first]);
    f->given = NULL;
    (void)pthread_cond_broadcast(&t->room); /* the reader may wait for a slot on its behalf */
    unref(f);
    (void)pthread_mutex_unlock(&t->lock);
}

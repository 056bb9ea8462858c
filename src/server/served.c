/* Which models there are, who holds them, who waits for them.  loader.c opens and closes them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/server_impl.h"

static void lock(struct tern_server *s)
{
    (void)pthread_mutex_lock(&s->models.lock);
}

static void unlock(struct tern_server *s)
{
    (void)pthread_mutex_unlock(&s->models.lock);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

int tern_models_open(struct tern_server *s, tern_error *err)
{
    pthread_condattr_t a;
    s->models.all = calloc((size_t)s->p.n_models, sizeof *s->models.all);
    if (!s->models.all)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate %d models", s->p.n_models);
    for (int i = 0; i < s->p.n_models; i++)
        s->models.all[i] = (struct tern_served){.server = s,
                                                .index = i,
                                                .name = s->p.names[i].name,
                                                .path = s->p.names[i].path,
                                                .keep_s = NAN,
                                                .close_at = INFINITY};
    (void)pthread_condattr_init(&a);
    (void)pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&s->models.lock, NULL);
    (void)pthread_cond_init(&s->models.more, &a);
    (void)pthread_condattr_destroy(&a);
    s->models.ready = true;
    return tern_loader_start(s, err);
}

void tern_models_clear(struct tern_server *s)
{
    if (s->models.ready) {
        (void)pthread_mutex_destroy(&s->models.lock);
        (void)pthread_cond_destroy(&s->models.more);
    }
    free(s->models.all);
    s->models.all = NULL;
    s->models.ready = false;
}

/* ---- names ------------------------------------------------------------------------------------------------------- */

static struct tern_served *by_name(struct tern_server *s, const char *name, size_t n)
{
    for (int i = 0; i < s->p.n_models; i++) {
        const char *x = s->models.all[i].name;
        if (strlen(x) == n && memcmp(x, name, n) == 0)
            return &s->models.all[i];
    }
    /* with an empty name some clients name none */
    bool first = n == 0 || (n == 7 && memcmp(name, "default", 7) == 0);
    for (int i = 0; i < s->p.n_aliases; i++)
        first |= strlen(s->p.aliases[i]) == n && memcmp(s->p.aliases[i], name, n) == 0;
    return first ? &s->models.all[0] : NULL;
}

/* "there is "a"", "there are "a", "b", "c" and others" */
static void list_names(const struct tern_server *s, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "there %s", s->p.n_models == 1 ? "is" : "are");
    for (int i = 0; i < s->p.n_models && n < size; i++) {
        if (n + strlen(s->models.all[i].name) + 16 > size) {
            (void)snprintf(out + n, size - n, " and others");
            return;
        }
        n += (size_t)snprintf(out + n, size - n, "%s \"%s\"", i ? "," : "", s->models.all[i].name);
    }
}

struct tern_served *tern_models_find(struct tern_server *s, const char *name, struct tern_fault *f)
{
    size_t n = strlen(name);
    struct tern_served *m = by_name(s, name, n);
    if (!m && n > 7 && strcmp(name + n - 7, ":latest") == 0) /* Ollama's clients say NAME:latest */
        m = by_name(s, name, n - 7);
    for (int i = 0; i < s->p.n_aliases && !m; i++)
        m = strcmp(s->p.aliases[i], "*") == 0 ? &s->models.all[0] : NULL;
    if (!m) {
        char names[240];
        list_names(s, names, sizeof names);
        (void)tern_fault_set(f, 404, "model_not_found", "model", "the model \"%.160s\" is not here; %s", name, names);
    }
    return m;
}

/* ---- holds ------------------------------------------------------------------------------------------------------- */

bool tern_served_hold(struct tern_served *m)
{
    lock(m->server);
    bool open = m->state == TERN_SERVED_OPEN && !m->retiring;
    m->holds += open;
    unlock(m->server);
    return open;
}

bool tern_served_look(struct tern_served *m)
{
    lock(m->server);
    bool open = m->state == TERN_SERVED_OPEN;
    m->holds += open;
    unlock(m->server);
    return open;
}

void tern_served_leave(struct tern_served *m)
{
    lock(m->server);
    if (--m->holds == 0)
        tern_loader_poke(m->server);
    unlock(m->server);
}

void tern_served_drop(struct tern_served *m, double keep_s)
{
    lock(m->server);
    m->used = tern_now();
    if (!isnan(keep_s))
        m->keep_s = keep_s;
    m->close_at = m->keep_s >= 0 ? m->used + m->keep_s : INFINITY;
    if (--m->holds == 0)
        tern_loader_poke(m->server);
    unlock(m->server);
}

/* ---- waiting ----------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static void append(struct tern_served *m, struct tern_job *j)
{
    j->next = NULL;
    *(m->last ? &m->last->next : &m->first) = j;
    m->last = j;
    m->n_waiting++;
    m->server->models.n_waiting++;
    j->waits = true;
}

/* Under the lock. */
static void take_out(struct tern_served *m, struct tern_job *j)
{
    struct tern_job **p = &m->first, *before = NULL;
    while (*p != j) {
        before = *p;
        p = &(*p)->next;
    }
    *p = j->next;
    if (m->last == j)
        m->last = before;
    j->next = NULL;
    j->waits = false;
    m->n_waiting--;
    m->server->models.n_waiting--;
    j->waited_s += tern_now() - j->wait_began;
}

struct tern_job *tern_served_take(struct tern_served *m)
{
    struct tern_job *j = m->first;
    take_out(m, j);
    return j;
}

void tern_served_release(struct tern_served *m)
{
    while (m->first) {
        struct tern_job *j = tern_served_take(m);
        m->holds++;
        j->held = true;
        tern_workers_put_again(m->server, j);
    }
}

int tern_served_wait(struct tern_job *j, struct tern_fault *f)
{
    struct tern_served *m = j->served;
    struct tern_server *s = j->server;
    int rc = 0;
    lock(s);
    j->wants = false;
    if (s->models.stop) {
        rc = tern_fault_set(f, 503, "shutting_down", NULL, "the server is shutting down");
        f->retry_after = 5;
    } else if (s->models.n_waiting >= s->p.loop.max_waiting) {
        rc = tern_fault_set(f, 429, "overloaded", NULL, "too many requests are waiting for a model; try again later");
        f->retry_after = 5;
    } else {
        j->said = j->wait_began = tern_now();
        append(m, j);
        if (m->state == TERN_SERVED_OPEN && !m->retiring)
            tern_served_release(m); /* it was opened meanwhile */
        if (m->state == TERN_SERVED_CLOSED) {
            m->state = TERN_SERVED_WANTED;
            m->turn = ++s->models.turns;
        }
        tern_loader_poke(s);
    }
    unlock(s);
    return rc;
}

bool tern_served_waits(const struct tern_job *j)
{
    lock(j->server);
    bool waits = j->waits;
    unlock(j->server);
    return waits;
}

bool tern_served_forget(struct tern_job *j)
{
    lock(j->server);
    bool waits = j->waits; /* if not, a worker may have the job, and its model is not to be looked at */
    if (waits) {
        take_out(j->served, j);
        tern_loader_poke(j->server);
    }
    unlock(j->server);
    return waits;
}

void tern_served_progress(const struct tern_job *j, char *out, size_t n)
{
    const struct tern_served *m = j->served;
    lock(j->server);
    if (m->state == TERN_SERVED_OPENING && m->total > 0)
        (void)snprintf(out, n, "%d %%", (int)(100.0 * m->done / m->total));
    else
        (void)snprintf(out, n, m->state == TERN_SERVED_OPENING ? "0 %%" : "waiting");
    unlock(j->server);
}

/* ---- figures ----------------------------------------------------------------------------------------------------- */

const char *tern_served_word(struct tern_served *m)
{
    lock(m->server);
    enum tern_served_state state = m->state;
    unlock(m->server);
    return state == TERN_SERVED_OPEN                                     ? "loaded"
           : state == TERN_SERVED_WANTED || state == TERN_SERVED_OPENING ? "loading"
                                                                         : "unloaded";
}

static void add_times(tern_times *to, const tern_times *from)
{
    to->count += from->count;
    to->sum += from->sum;
    for (int i = 0; i < TERN_TIMES_BUCKETS; i++)
        to->bucket[i] += from->bucket[i];
}

static void add_tier(tern_cache_tier *to, const tern_cache_tier *from)
{
    to->open |= from->open;
    to->read += from->read;
    to->read_bytes += from->read_bytes;
    to->written += from->written;
    to->written_bytes += from->written_bytes;
    to->dropped += from->dropped;
    to->damaged += from->damaged;
    to->errors += from->errors;
    to->evictions += from->evictions;
}

/* Counters alone. */
static void add_counters(tern_loop_stats *to, const tern_loop_stats *from)
{
    to->submitted += from->submitted;
    to->refused += from->refused;
    to->finished += from->finished;
    to->cancelled += from->cancelled;
    to->timed_out += from->timed_out;
    to->failed += from->failed;
    to->prompt_tokens += from->prompt_tokens;
    to->cached_tokens += from->cached_tokens;
    to->generated_tokens += from->generated_tokens;
    to->drafted_tokens += from->drafted_tokens;
    to->accepted_tokens += from->accepted_tokens;
    to->steps += from->steps;
    to->preempted += from->preempted;
    to->cache.hits += from->cache.hits;
    to->cache.misses += from->cache.misses;
    to->cache.misses_no_start += from->cache.misses_no_start;
    to->cache.hit_tokens += from->cache.hit_tokens;
    to->cache.evictions += from->cache.evictions;
    to->cache.late += from->cache.late;
    to->cache.fetched += from->cache.fetched;
    to->experts.rows += from->experts.rows;
    to->experts.used += from->experts.used;
    to->experts.found += from->experts.found;
    to->experts.read += from->experts.read;
    to->experts.read_ahead += from->experts.read_ahead;
    to->experts.read_bytes += from->experts.read_bytes;
    to->experts.wait_s += from->experts.wait_s;
    add_tier(&to->cache.disk, &from->cache.disk);
    add_tier(&to->cache.shared, &from->cache.shared);
    add_times(&to->step, &from->step);
    add_times(&to->first, &from->first);
    add_times(&to->gap, &from->gap);
    add_times(&to->queue, &from->queue);
}

void tern_served_keep_counters(struct tern_served *m)
{
    tern_loop_stats t;
    tern_loop_get_stats(m->loop, &t);
    add_counters(&m->past, &t);
}

void tern_served_stats(struct tern_served *m, tern_loop_stats *out)
{
    lock(m->server);
    *out = (tern_loop_stats){0};
    if (m->state == TERN_SERVED_OPEN) /* from CLOSING on they are in the past */
        tern_loop_get_stats(m->loop, out);
    add_counters(out, &m->past);
    unlock(m->server);
}

void tern_served_count(struct tern_served *m, struct tern_served_counts *out)
{
    lock(m->server);
    *out = (struct tern_served_counts){.open = m->state == TERN_SERVED_OPEN,
                                       .waiting = m->n_waiting,
                                       .bytes = m->bytes,
                                       .opened = m->n_opened,
                                       .closed = m->n_closed,
                                       .failed = m->n_failed,
                                       .close_in_s = m->close_at - tern_now(),
                                       .about = m->about};
    unlock(m->server);
}

size_t tern_models_bytes(struct tern_server *s)
{
    lock(s);
    size_t held = s->models.held;
    unlock(s);
    return held;
}

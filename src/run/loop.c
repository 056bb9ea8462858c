/* The thread that owns an engine, and what other threads ask of it. */
#include "run/loop.h"

#include <signal.h>
#include <string.h>
#include <time.h>
#include "base/clock.h"
#include "base/mem.h"
#include "run/prefix/prefix.h"

#define DEFAULT_WAITING   256
#define MOST_WAITING      65536
#define DEFAULT_LOGPROBS  20
#define MOST_LOGPROBS     1024
#define DEFAULT_GAP       1.9 /* under twice */
#define DEFAULT_REPLY     256
#define DEFAULT_UNREAD    ((size_t)64 << 20)
#define BEAT_S            0.5  /* an idle thread comes by this often */
#define STALLED_BEAT_S    0.01 /* one that waits for receivers */
#define STALL_S           60
#define DEFAULT_DIR_BYTES ((size_t)10 << 30)

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static const char *timeout_text = "the request took longer than its timeout",
                  *unread_text = "the receiver of its events has left too many of them unread for too long";

/* Why a request that waits or runs has to end now; 0: it goes on. */
static int must_end(const tern_loop *l, const struct tern_request_run *q, double now, const char **why)
{
    if (q->cancelled || l->closing || tern_events_closed(q->events)) {
        *why = q->cancelled ? "cancelled" : l->closing ? "cancelled: the engine stops" : "cancelled: nobody listens";
        return TERN_ECANCELLED;
    }
    *why = unread_text;
    if (q->stalled && now - q->stalled_at > STALL_S)
        return TERN_ELIMIT;
    *why = timeout_text;
    return q->r.timeout_s > 0 && now - q->submitted > q->r.timeout_s ? TERN_ELIMIT : 0;
}

/* Who does not read what there is gets no more until he does. */
static void look_at_receiver(const tern_loop *l, struct tern_request_run *q, double now)
{
    bool full = tern_events_bytes(q->events) > l->p.unread_bytes;
    if (full && !q->stalled)
        q->stalled_at = now;
    q->stalled = full;
}

/* Under the lock: takes those that end out of queue and batch into l->ending. */
static int collect_ending(tern_loop *l)
{
    int n = 0;
    double now = tern_now();
    const char *why;
    for (int i = 0; i < l->n_waiting;) {
        struct tern_request_run *q = l->waiting[i];
        int rc = must_end(l, q, now, &why);
        if (rc == 0) {
            i++;
            continue;
        }
        tern_request_fail(q, rc, why);
        tern_loop_dequeue(l, i);
        l->ending[n++] = q;
    }
    for (int i = 0; i < l->n_running;) {
        struct tern_request_run *q = l->running[i];
        look_at_receiver(l, q, now);
        bool over = tern_request_over(q);
        int rc = q->rc || over ? 0 : must_end(l, q, now, &why);
        if (rc < 0)
            tern_request_fail(q, rc, why);
        if (q->rc == 0 && !over) {
            i++;
            continue;
        }
        tern_loop_release(l, q);
        l->ending[n++] = q;
    }
    return n;
}

/* Under the lock: counts a request that has ended. */
static void count_end(tern_loop *l, int rc, double queue_s, double now)
{
    uint64_t *n = rc == 0                 ? &l->stats.finished
                  : rc == TERN_ECANCELLED ? &l->stats.cancelled
                  : rc == TERN_ELIMIT     ? &l->stats.timed_out
                                          : &l->stats.failed;
    ++*n;
    if (l->last_end > 0)
        l->end_pace = l->end_pace > 0 ? .9 * l->end_pace + .1 * (now - l->last_end) : now - l->last_end;
    l->last_end = now;
    tern_times_add(&l->stats.queue, queue_s);
}

static void drop_fetch(tern_loop *l, struct tern_request_run *q)
{
    if (q->fetch)
        l->prefix.drop(l->prefix.self, q->fetch);
    q->fetch = NULL;
}

static void end_request(tern_loop *l, struct tern_request_run *q)
{
    double now = tern_now();
    drop_fetch(l, q);
    for (int i = 0; l->prefix.offer && i < q->r.n_choices; i++)
        if (q->choices[i].seq && tern_seq_length(q->choices[i].seq) && !q->choices[i].seq->torn) /* it may be of use */
            l->prefix.offer(l->prefix.self, q->choices[i].seq, NULL, true);
    tern_request_end(q, now);
    int rc = q->rc;
    double queue_s = (q->started > 0 ? q->started : now) - q->submitted;
    tern_request_free(q, false);
    (void)pthread_mutex_lock(&l->lock);
    count_end(l, rc, queue_s, now);
    if (l->cache)
        tern_prefix_get_stats(l->cache, &l->stats.cache);
    l->n_alive--;
    (void)pthread_cond_broadcast(&l->quiet);
    (void)pthread_mutex_unlock(&l->lock);
}

/* Under the lock. */
static void wait_beat(tern_loop *l, double seconds)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += (long)(seconds * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&l->wake, &l->lock, &t);
}

static void *run(void *arg)
{
    tern_loop *l = arg;
    bool done = false, stalled = false;
    while (!done) {
        int n_begun = 0;
        (void)pthread_mutex_lock(&l->lock);
        l->beat = tern_now();
        if (!l->closing && !l->poked && (stalled || (!l->n_waiting && !l->n_running)))
            wait_beat(l, stalled ? STALLED_BEAT_S : BEAT_S);
        l->poked = false;
        if (l->cache)
            tern_prefix_get_stats(l->cache, &l->stats.cache);
        int n_ending = collect_ending(l), n_given_up = tern_room_grow(l), first = l->n_running;
        while (tern_loop_next(l))
            n_begun++;
        l->stats.decoding = l->n_running ? l->stats.decoding : 0;
        done = l->closing && !l->n_running && !l->n_waiting;
        (void)pthread_mutex_unlock(&l->lock);
        for (int i = 0; i < n_ending; i++)
            end_request(l, l->ending[i]);
        for (int i = 0; i < n_given_up; i++) {
            drop_fetch(l, l->given_up[i]);
            tern_again_give_up(l->given_up[i]);
        }
        for (int i = 0; i < n_begun; i++)
            tern_loop_admit(l, l->running[first + i]);
        if (l->prefix.tick)
            l->prefix.tick(l->prefix.self);
        tern_loop_visits(l, done);
        tern_loop_begin(l);
        stalled = l->n_running && !tern_loop_step(l);
    }
    return NULL;
}

/* ---- opening and closing ----------------------------------------------------------------------------------------- */

static int check_params(const tern_engine *e, const tern_loop_params *p, tern_error *err)
{
    if (p->max_waiting < 0 || p->max_waiting > MOST_WAITING)
        return tern_err_set(err, TERN_EINVAL, "waiting requests = %d is outside 1..%d", p->max_waiting, MOST_WAITING);
    if (p->max_waiting_per_key < 0)
        return tern_err_set(err, TERN_EINVAL, "waiting requests of one key = %d is negative", p->max_waiting_per_key);
    if (p->max_choices < 0 || p->max_choices > e->max_seqs)
        return tern_err_set(err, TERN_EINVAL, "choices = %d is outside 1..%d, the sequences of the engine",
                            p->max_choices, e->max_seqs);
    if (p->max_logprobs < 0 || p->max_logprobs > MOST_LOGPROBS)
        return tern_err_set(err, TERN_EINVAL, "logprobs = %d is outside 1..%d", p->max_logprobs, MOST_LOGPROBS);
    if (p->reply_tokens < 0)
        return tern_err_set(err, TERN_EINVAL, "reply tokens = %d is negative", p->reply_tokens);
    if (!(p->gap == 0 || (p->gap > 1 && p->gap <= 1000)))
        return tern_err_set(err, TERN_EINVAL, "gap = %g is outside 1..1000", p->gap);
    if (e->n_caches > e->n_plans)
        return tern_err_set(err, TERN_EUNSUPPORTED, "a loop codes prompts as they come, and the engine at their end");
    return 0;
}

/* The engine is this loop's until `looped` is false again. */
static int claim(tern_engine *e, bool *claimed, tern_error *err)
{
    *claimed = !atomic_exchange(&e->looped, true);
    if (!*claimed)
        return tern_err_set(err, TERN_EINVAL, "the engine runs another loop");
    for (int i = 0; i < e->max_seqs; i++)
        if (e->seqs[i].kv)
            return tern_err_set(err, TERN_EINVAL, "the engine has sequences of its own");
    return 0;
}

static void init_lock(tern_loop *l)
{
    pthread_condattr_t a;
    (void)pthread_condattr_init(&a);
    (void)pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_cond_init(&l->wake, &a);
    (void)pthread_cond_init(&l->quiet, &a);
    (void)pthread_condattr_destroy(&a);
}

static void free_loop(tern_loop *l)
{
    if (!l)
        return;
    tern_prefix_free(l->cache);
    (void)pthread_mutex_destroy(&l->lock);
    (void)pthread_cond_destroy(&l->wake);
    (void)pthread_cond_destroy(&l->quiet);
    tern_free(l->waiting);
    tern_free(l->running);
    tern_free(l->ending);
    tern_free(l->given_up);
    tern_free(l->items);
    tern_free(l->best);
    tern_free(l->seen);
    tern_free(l->of);
    tern_free(l->picks);
    tern_free(l->drafts);
    tern_free(l);
}

/* Under the lock: the thread has something to look at. */
static void poke(tern_loop *l)
{
    l->poked = true;
    (void)pthread_cond_signal(&l->wake);
}

static void wake(void *loop)
{
    tern_loop *l = loop;
    (void)pthread_mutex_lock(&l->lock);
    poke(l);
    (void)pthread_mutex_unlock(&l->lock);
}

static int open_cache(tern_loop *l, tern_error *err)
{
    const struct tern_prefix_params p = {.bytes = l->p.cache_bytes,
                                         .dir = l->p.cache_dir,
                                         .dir_bytes = l->p.cache_dir_bytes ? l->p.cache_dir_bytes : DEFAULT_DIR_BYTES,
                                         .dir_free = l->p.cache_dir_free,
                                         .shared = l->p.cache_shared,
                                         .say = l->p.on_notice,
                                         .say_user = l->p.notice_user,
                                         .wake = wake,
                                         .wake_user = l};
    if (!p.bytes && (p.dir || p.shared))
        return tern_err_set(err, TERN_EINVAL, "a cache in a directory or a store needs one in memory");
    if (!p.bytes)
        return 0;
    int rc = tern_prefix_new(&l->cache, l->e, &p, err);
    if (rc < 0)
        return rc;
    l->prefix = tern_prefix_hooks(l->cache);
    tern_prefix_get_stats(l->cache, &l->stats.cache);
    return 0;
}

/* Signals are for the threads of the program. */
static int start_thread(tern_loop *l, tern_error *err)
{
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int no = pthread_create(&l->thread, NULL, run, l);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return no ? tern_err_set(err, TERN_EIO, "cannot start the loop's thread: %s", strerror(no)) : 0;
}

int tern_loop_open(tern_loop **out, tern_engine *e, const tern_loop_params *p, tern_error *err)
{
    int rc = 0;
    bool claimed = false;
    tern_loop *l = NULL;
    static const tern_loop_params none;
    size_t seqs = (size_t)e->max_seqs;
    *out = NULL;
    p = p ? p : &none;
    TERN_TRY(check_params(e, p, err));
    TERN_TRY(claim(e, &claimed, err));
    TERN_TRY(tern_alloc(&l, 1, sizeof *l, err));
    init_lock(l);
    l->e = e;
    l->p = *p;
    l->p.max_waiting = p->max_waiting ? p->max_waiting : DEFAULT_WAITING;
    l->p.max_waiting_per_key = p->max_waiting_per_key ? p->max_waiting_per_key : l->p.max_waiting;
    l->p.max_choices = p->max_choices ? p->max_choices : e->max_seqs;
    l->p.reply_tokens = p->reply_tokens ? p->reply_tokens : DEFAULT_REPLY;
    l->p.unread_bytes = p->unread_bytes ? p->unread_bytes : DEFAULT_UNREAD;
    l->p.max_logprobs = p->max_logprobs ? p->max_logprobs : DEFAULT_LOGPROBS;
    l->pace.gap = p->gap > 0 ? p->gap : DEFAULT_GAP;
    if (e->kv_budget.limit != SIZE_MAX && (!p->kv_bytes || p->kv_bytes > e->kv_budget.limit))
        l->p.kv_bytes = e->kv_budget.limit;
    l->beat = tern_now();
    TERN_TRY(tern_alloc(&l->waiting, (size_t)l->p.max_waiting + seqs, sizeof(void *), err));
    TERN_TRY(tern_alloc(&l->running, seqs, sizeof(void *), err));
    TERN_TRY(tern_alloc(&l->ending, (size_t)l->p.max_waiting + 2 * seqs, sizeof(void *), err));
    TERN_TRY(tern_alloc(&l->given_up, seqs, sizeof(void *), err));
    TERN_TRY(tern_alloc(&l->items, seqs, sizeof *l->items, err));
    TERN_TRY(tern_alloc(&l->best, seqs, sizeof *l->best, err));
    TERN_TRY(tern_alloc(&l->seen, seqs, sizeof *l->seen, err));
    TERN_TRY(tern_alloc(&l->of, seqs, sizeof(void *), err));
    TERN_TRY(tern_alloc(&l->picks, seqs, sizeof(void *), err));
    TERN_TRY(tern_alloc(&l->drafts, seqs, sizeof(void *), err));
    TERN_TRY(open_cache(l, err));
    tern_engine_memory(e, &l->memory);
    l->stats.memory = l->memory;
    TERN_TRY(start_thread(l, err));
    *out = l;
    l = NULL;
out:
    free_loop(l);
    if (rc < 0 && claimed)
        atomic_store(&e->looped, false);
    return rc;
}

void tern_loop_close(tern_loop **pl)
{
    if (!pl || !*pl)
        return;
    tern_loop *l = *pl;
    tern_engine *e = l->e;
    (void)pthread_mutex_lock(&l->lock);
    l->closing = true;
    (void)pthread_cond_signal(&l->wake);
    (void)pthread_mutex_unlock(&l->lock);
    (void)pthread_join(l->thread, NULL);
    free_loop(l);
    atomic_store(&e->looped, false);
    *pl = NULL;
}

bool tern_loop_drain(tern_loop *l, double timeout_s)
{
    double end = tern_now() + timeout_s;
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    if (timeout_s >= 0) {
        double whole = (double)(int64_t)timeout_s;
        t.tv_sec += (time_t)whole;
        t.tv_nsec += (long)((timeout_s - whole) * 1e9);
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
    }
    (void)pthread_mutex_lock(&l->lock);
    l->draining = true;
    while (l->n_alive && (timeout_s < 0 || tern_now() < end)) {
        if (timeout_s < 0)
            (void)pthread_cond_wait(&l->quiet, &l->lock);
        else
            (void)pthread_cond_timedwait(&l->quiet, &l->lock, &t);
    }
    bool empty = l->n_alive == 0;
    (void)pthread_mutex_unlock(&l->lock);
    return empty;
}

void tern_loop_set_prefix(tern_loop *l, const struct tern_prefix *p)
{
    (void)pthread_mutex_lock(&l->lock);
    l->prefix = *p;
    (void)pthread_mutex_unlock(&l->lock);
}

/* ---- what other threads ask -------------------------------------------------------------------------------------- */

int tern_loop_submit(tern_loop *l, const tern_request *r, tern_events *events, void *user, uint64_t *id,
                     tern_error *err)
{
    struct tern_request_run *q;
    int rc = tern_request_new(&q, l, r, events, user, err);
    if (rc == 0)
        tern_room_of_new(l, q);
    (void)pthread_mutex_lock(&l->lock);
    if (rc == 0)
        rc = tern_loop_enqueue(l, q, err);
    if (rc == 0) {
        *id = q->id;
        l->n_alive++;
        l->stats.submitted++;
        poke(l);
    } else {
        l->stats.refused++;
    }
    (void)pthread_mutex_unlock(&l->lock);
    if (rc < 0)
        tern_request_free(q, true);
    return rc;
}

static struct tern_request_run *find(struct tern_request_run **list, int n, uint64_t id)
{
    for (int i = 0; i < n; i++)
        if (list[i]->id == id)
            return list[i];
    return NULL;
}

void tern_loop_cancel(tern_loop *l, uint64_t id)
{
    (void)pthread_mutex_lock(&l->lock);
    struct tern_request_run *q = find(l->waiting, l->n_waiting, id);
    q = q ? q : find(l->running, l->n_running, id);
    if (q)
        q->cancelled = true;
    poke(l);
    (void)pthread_mutex_unlock(&l->lock);
}

int tern_loop_position(tern_loop *l, uint64_t id)
{
    (void)pthread_mutex_lock(&l->lock);
    const struct tern_request_run *q = find(l->waiting, l->n_waiting, id);
    int place = q ? tern_loop_place(l, q) : -1;
    (void)pthread_mutex_unlock(&l->lock);
    return place;
}

double tern_loop_retry_after(tern_loop *l)
{
    (void)pthread_mutex_lock(&l->lock);
    double s = l->end_pace;
    (void)pthread_mutex_unlock(&l->lock);
    return s < 1 ? 1 : s > 600 ? 600 : s;
}

void tern_loop_get_stats(tern_loop *l, tern_loop_stats *out)
{
    (void)pthread_mutex_lock(&l->lock);
    *out = l->stats;
    out->waiting = l->n_waiting;
    out->running = l->n_alive - l->n_waiting;
    out->idle_s = tern_now() - l->beat;
    out->kv_reserved = l->reserved;
    out->kv_most = l->p.kv_bytes;
    tern_model_experts(l->e->model, &out->experts);
    (void)pthread_mutex_unlock(&l->lock);
}

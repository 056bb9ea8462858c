/* The thread that opens and closes models, and the budget of memory that they share. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#include "server/server_impl.h"

#define TURN_S 5.0  /* a model that waits for memory waits so long for others to come to rest by themselves */
#define BEAT_S 0.25 /* how often times are looked at */

void tern_loader_poke(struct tern_server *s)
{
    (void)pthread_cond_broadcast(&s->models.more);
}

/* Under the lock: until somebody pokes, or, where times are looked at, for a beat. */
static void wait_beat(struct tern_server *s, bool times)
{
    struct timespec t;
    if (!times) {
        (void)pthread_cond_wait(&s->models.more, &s->models.lock);
        return;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += (long)(BEAT_S * 1e9);
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&s->models.more, &s->models.lock, &t);
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

/* Under the lock, which is let go meanwhile: closes a model that nobody holds. */
static void close_served(struct tern_served *m, const char *why)
{
    struct tern_server *s = m->server;
    tern_served_keep_counters(m);
    m->state = TERN_SERVED_CLOSING;
    (void)pthread_mutex_unlock(&s->models.lock);
    tern_loop_close(&m->loop);
    s->p.close(s->p.user, m->index, &m->opened);
    if (why)
        tern_server_say(s, "model %s unloaded: %s", m->name, why);
    (void)pthread_mutex_lock(&s->models.lock);
    m->model = NULL;
    m->engine = NULL;
    s->models.held -= m->bytes;
    m->bytes = 0;
    m->retiring = false;
    m->keep_s = NAN;
    m->close_at = INFINITY;
    m->n_closed++;
    m->state = m->n_waiting ? TERN_SERVED_WANTED : TERN_SERVED_CLOSED;
    if (m->n_waiting)
        m->turn = ++s->models.turns;
}

/* ---- the budget -------------------------------------------------------------------------------------------------- */

/* Those that a client wants to be kept come last. */
static bool before(const struct tern_served *a, const struct tern_served *b)
{
    const bool x = a->keep_s < 0, y = b->keep_s < 0;
    return x != y ? y : a->used < b->used;
}

/* Under the lock: who was not used for longest, of those that nobody holds. */
static struct tern_served *idle_one(struct tern_server *s)
{
    struct tern_served *found = NULL;
    for (struct tern_served *m = s->models.all, *end = m + s->p.n_models; m < end; m++)
        if (m->state == TERN_SERVED_OPEN && m->holds == 0 && (!found || before(m, found)))
            found = m;
    return found;
}

/* Under the lock: the model that was opened first takes no more jobs, so that it comes to rest.  One at a time. */
static void retire_one(struct tern_server *s)
{
    struct tern_served *found = NULL;
    for (struct tern_served *m = s->models.all, *end = m + s->p.n_models; m < end; m++) {
        if (m->retiring)
            return;
        if (m->state == TERN_SERVED_OPEN && (!found || m->since < found->since))
            found = m;
    }
    if (found)
        found->retiring = true;
}

/* Under the lock: nobody wants the memory any more for which others were to come to rest. */
static void retire_nobody(struct tern_server *s)
{
    for (struct tern_served *m = s->models.all, *end = m + s->p.n_models; m < end; m++)
        if (m->retiring) {
            m->retiring = false;
            if (m->state == TERN_SERVED_OPEN)
                tern_served_release(m);
        }
}

/* Is the opening still of use to somebody?  The first one, at the start, is. */
static bool is_wanted(const struct tern_served *m)
{
    const struct tern_server *s = m->server;
    return !s->models.stop && (!s->models.started || m->n_waiting);
}

static int hold(void *self, size_t bytes, tern_error *err)
{
    struct tern_served *m = self;
    struct tern_server *s = m->server;
    const size_t most = s->p.memory ? s->p.memory : SIZE_MAX;
    const double begun = tern_now();
    int rc = 0;
    (void)pthread_mutex_lock(&s->models.lock);
    while (bytes > most || s->models.held > most - bytes) {
        if (bytes > most || m->bytes > most - bytes) {
            rc = tern_err_set(err, TERN_ELIMIT, "it needs %zu bytes for weights and KV cache, and --memory is %zu",
                              m->bytes + bytes, most);
            break;
        }
        if (!is_wanted(m)) {
            rc = tern_err_set(err, TERN_ECANCELLED, "nobody waits for it any more");
            break;
        }
        struct tern_served *victim = idle_one(s);
        if (victim) {
            close_served(victim, "another one needs its memory");
            continue;
        }
        if (tern_now() - begun > TURN_S)
            retire_one(s);
        wait_beat(s, true);
    }
    retire_nobody(s);
    if (rc == 0) {
        s->models.held += bytes;
        m->bytes += bytes;
    }
    (void)pthread_mutex_unlock(&s->models.lock);
    return rc;
}

static void let_go(void *self, size_t bytes)
{
    struct tern_served *m = self;
    struct tern_server *s = m->server;
    (void)pthread_mutex_lock(&s->models.lock);
    s->models.held -= bytes;
    m->bytes -= bytes;
    (void)pthread_mutex_unlock(&s->models.lock);
}

static int on_progress(void *self, int done, int total)
{
    struct tern_served *m = self;
    (void)pthread_mutex_lock(&m->server->models.lock);
    m->done = done;
    m->total = total;
    bool go_on = !m->server->models.stop;
    (void)pthread_mutex_unlock(&m->server->models.lock);
    return !go_on;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static int open_model(struct tern_served *m, tern_error *err)
{
    int rc = 0;
    struct tern_server *s = m->server;
    const struct tern_server_watch w = {hold, let_go, on_progress, m};
    TERN_TRY(s->p.open(s->p.user, m->index, &w, &m->opened, err));
    m->model = m->opened.model;
    m->engine = m->opened.engine;
    tern_loop_params p = s->p.loop;
    p.kv_bytes = m->opened.kv_bytes;
    p.cache_bytes = m->opened.cache_bytes;
    rc = tern_loop_open(&m->loop, m->engine, &p, err);
    if (rc < 0)
        s->p.close(s->p.user, m->index, &m->opened);
out:
    return rc;
}

/* Under the lock. */
static void remember(struct tern_served *m)
{
    const tern_model_info *i = tern_model_get_info(m->model);
    m->about = (struct tern_served_about){.known = true,
                                          .ctx = tern_engine_ctx(m->engine),
                                          .n_params = i->n_params,
                                          .file_bytes = i->file_bytes,
                                          .gguf = strcmp(i->container, "GGUF") == 0};
    (void)snprintf(m->about.arch, sizeof m->about.arch, "%s", i->arch);
}

/* What is wrong with a file is not the client's fault, and where it lies nobody's business out there. */
static void tell_client(const struct tern_served *m, const tern_error *err, struct tern_fault *f)
{
    const char *text = err->msg;
    const size_t n = strlen(m->path);
    if (strncmp(text, m->path, n) == 0 && strncmp(text + n, ": ", 2) == 0)
        text += n + 2;
    if (strstr(text, m->path))
        text = "the server's messages say why";
    const bool later = err->code == TERN_ENOMEM || err->code == TERN_ECAPACITY || err->code == TERN_ECANCELLED;
    (void)tern_fault_set(f, later ? 503 : 500, "model_load_failed", "model",
                         "the model \"%.127s\" could not be loaded: %.300s", m->name, text);
    f->retry_after = later ? 5 : 0;
}

/* Under the lock: those who wait for m get a fault. */
static void refuse_all(struct tern_served *m, const struct tern_fault *f)
{
    while (m->first) {
        struct tern_job *j = tern_served_take(m);
        j->fault = *f;
        tern_workers_give_back(m->server, j);
    }
}

/* Under the lock, which is let go meanwhile. */
static int open_served(struct tern_served *m, tern_error *err)
{
    struct tern_server *s = m->server;
    const double begun = tern_now();
    m->state = TERN_SERVED_OPENING;
    m->done = m->total = 0;
    (void)pthread_mutex_unlock(&s->models.lock);
    int rc = open_model(m, err);
    (void)pthread_mutex_lock(&s->models.lock);
    if (rc < 0) {
        m->state = TERN_SERVED_CLOSED;
        s->models.held -= m->bytes;
        m->bytes = 0;
        return rc;
    }
    remember(m);
    m->state = TERN_SERVED_OPEN;
    m->n_opened++;
    m->since = m->used = tern_now();
    m->opened_s = m->since - begun;
    tern_served_release(m);
    return 0;
}

/* Under the lock. */
static void load(struct tern_served *m)
{
    struct tern_server *s = m->server;
    struct tern_fault f = {0};
    tern_error err = {0};
    if (!m->n_waiting) {
        m->state = TERN_SERVED_CLOSED;
        return;
    }
    int rc = open_served(m, &err);
    if (rc == 0) {
        double seconds = m->opened_s;
        (void)pthread_mutex_unlock(&s->models.lock);
        tern_server_say(s, "model %s loaded in %.2f s", m->name, seconds);
        (void)pthread_mutex_lock(&s->models.lock);
        return;
    }
    if (rc == TERN_ECANCELLED && !s->models.stop) { /* who comes after that has to ask anew */
        m->state = m->n_waiting ? TERN_SERVED_WANTED : TERN_SERVED_CLOSED;
        m->turn = ++s->models.turns;
        return;
    }
    m->n_failed++;
    tell_client(m, &err, &f);
    refuse_all(m, &f);
    if (rc == TERN_ECANCELLED)
        return;
    (void)pthread_mutex_unlock(&s->models.lock);
    tern_server_say(s, "model %s could not be loaded: %s", m->name, err.msg);
    (void)pthread_mutex_lock(&s->models.lock);
}

/* Under the lock: who is wanted for longest. */
static struct tern_served *next_wanted(struct tern_server *s)
{
    struct tern_served *found = NULL;
    for (struct tern_served *m = s->models.all, *end = m + s->p.n_models; m < end; m++)
        if (m->state == TERN_SERVED_WANTED && (!found || m->turn < found->turn))
            found = m;
    return found;
}

/* Under the lock: one whose time is over.  *times: some have one. */
static struct tern_served *next_late(struct tern_server *s, bool *times)
{
    *times = false;
    for (struct tern_served *m = s->models.all, *end = m + s->p.n_models; m < end; m++) {
        if (m->state != TERN_SERVED_OPEN || m->holds > 0 || isinf(m->close_at))
            continue;
        *times = true;
        if (m->close_at <= tern_now())
            return m;
    }
    return NULL;
}

static void *run(void *arg)
{
    struct tern_server *s = arg;
    bool times;
    (void)pthread_mutex_lock(&s->models.lock);
    while (!s->models.stop) {
        struct tern_served *m = next_wanted(s), *late = next_late(s, &times);
        if (late)
            close_served(late, "a client asked for that");
        else if (m)
            load(m);
        else
            wait_beat(s, times);
    }
    (void)pthread_mutex_unlock(&s->models.lock);
    return NULL;
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* Signals are for the event loop's thread. */
static int start_thread(struct tern_server *s, tern_error *err)
{
    sigset_t all, old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int no = pthread_create(&s->models.loader, NULL, run, s);
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return no ? tern_err_set(err, TERN_EIO, "cannot start a thread: %s", strerror(no)) : 0;
}

int tern_loader_start(struct tern_server *s, tern_error *err)
{
    (void)pthread_mutex_lock(&s->models.lock);
    int rc = open_served(&s->models.all[0], err);
    s->models.started = rc == 0;
    (void)pthread_mutex_unlock(&s->models.lock);
    if (rc == 0)
        rc = start_thread(s, err);
    s->models.running = rc == 0;
    return rc;
}

void tern_models_drain(struct tern_server *s)
{
    struct tern_fault f;
    (void)tern_fault_set(&f, 503, "shutting_down", NULL, "the server is shutting down");
    f.retry_after = 5;
    (void)pthread_mutex_lock(&s->models.lock);
    s->models.stop = true;
    for (int i = 0; i < s->p.n_models; i++)
        refuse_all(&s->models.all[i], &f);
    tern_loader_poke(s);
    (void)pthread_mutex_unlock(&s->models.lock);
}

bool tern_models_stop(struct tern_server *s, double seconds)
{
    struct timespec t;
    if (!s->models.running)
        return true;
    tern_models_drain(s);
    (void)clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += (time_t)(seconds < 0 ? 0 : seconds > 1e9 ? 1e9 : seconds) + 1;
    if (pthread_timedjoin_np(s->models.loader, NULL, &t) != 0)
        return false;
    s->models.running = false;
    return true;
}

void tern_models_end_loops(struct tern_server *s)
{
    for (int i = 0; s->models.ready && i < s->p.n_models; i++)
        if (s->models.all[i].state == TERN_SERVED_OPEN)
            tern_loop_close(&s->models.all[i].loop);
}

void tern_models_close(struct tern_server *s)
{
    for (int i = 0; s->models.ready && i < s->p.n_models; i++) {
        struct tern_served *m = &s->models.all[i];
        if (m->state == TERN_SERVED_OPEN)
            s->p.close(s->p.user, i, &m->opened);
    }
}

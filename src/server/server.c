/* The event loop and the life of the server. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "server/server_impl.h"

#define TICK_US 250000

void tern_server_say(const struct tern_server *s, const char *fmt, ...)
{
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    if (s->p.say)
        s->p.say(s->p.user, line);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void on_events(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct tern_server *s = arg;
    tern_event e;
    /* A bounded number, so that sockets get their turn. */
    for (int i = 0; i < 4096 && tern_events_next(s->events, &e, 0); i++)
        tern_job_event(&e);
}

static void on_workers(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    tern_workers_collect(arg);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct tern_server *s = arg;
    tern_job_tick(s);
    if (!s->draining)
        return;
    if (s->n_jobs == 0 && tern_http_connections(s->http) == 0)
        (void)event_base_loopbreak(s->base);
    else if (tern_now() > s->drain_until) {
        tern_server_say(s, "%d requests took too long to end and are cut off", s->n_jobs);
        (void)event_base_loopbreak(s->base);
    }
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    (void)what;
    struct tern_server *s = arg;
    if (s->draining)
        _exit(128 + (int)sig);
    s->draining = true;
    s->drain_until = tern_now() + s->p.drain_s;
    tern_models_drain(s);
    tern_server_say(s, "shutting down: %d requests are running; a second signal ends them", s->n_jobs);
    tern_http_drain(s->http);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

/* A descriptor per connection. */
static void raise_limits(struct tern_server *s)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return;
    r.rlim_cur = r.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &r);
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur != RLIM_INFINITY && r.rlim_cur > 128 &&
        (rlim_t)s->p.max_connections > r.rlim_cur - 64)
        s->p.max_connections = (int)(r.rlim_cur - 64);
}

static int open_http(struct tern_server *s, tern_error *err)
{
    const struct tern_http_params p = {
        .host = s->p.host,
        .port = s->p.port,
        .unix_path = s->p.unix_path,
        .tls_cert = s->p.tls_cert,
        .tls_key = s->p.tls_key,
        .max_body = s->p.max_body,
        .max_unsent = (size_t)1 << 20,
        .max_connections = s->p.max_connections,
        .head_s = 10,
        .body_s = 60,
        .idle_s = 75,
        .stall_s = 60,
        .handle = tern_route,
        .malformed = tern_route_malformed,
        .user = s,
    };
    int rc = tern_http_open(&s->http, s->base, &p, err);
    if (rc == 0 && !tern_http_is_local(s->http) && s->p.n_keys == 0 && !s->p.insecure)
        rc = tern_err_set(err, TERN_EINVAL,
                          "--host %.200s lets other machines in; give an --api-key, or --insecure if all of them may "
                          "use the model",
                          s->p.host);
    return rc;
}

static struct event *watch(struct tern_server *s, int fd, short what, event_callback_fn fn, tern_error *err)
{
    struct event *e = event_new(s->base, fd, (short)(what | EV_PERSIST), fn, s);
    const struct timeval tick = {.tv_usec = TICK_US};
    if (!e || event_add(e, fd < 0 ? &tick : NULL) < 0)
        (void)tern_err_set(err, TERN_ENOMEM, "cannot watch a descriptor");
    return e;
}

/* A terminal that closes ends the server like SIGTERM, unless nohup has said that it shall stay. */
static int watch_hangup(struct tern_server *s, tern_error *err)
{
    struct sigaction now;
    if (sigaction(SIGHUP, NULL, &now) == 0 && now.sa_handler == SIG_IGN)
        return 0;
    s->on_hangup = watch(s, SIGHUP, EV_SIGNAL, on_signal, err);
    return s->on_hangup ? 0 : TERN_ENOMEM;
}

static int open_all(struct tern_server *s, tern_error *err)
{
    int rc = 0;
    tern_json_limit_memory();
    tern_http_watch_memory();
    raise_limits(s);
    TERN_TRY(tern_auth_init(s, err));
    s->base = event_base_new();
    if (!s->base)
        TERN_FAIL(err, TERN_ENOMEM, "cannot make an event loop");
    TERN_TRY(tern_models_open(s, err));
    TERN_TRY(open_http(s, err));
    TERN_TRY(tern_events_new(&s->events, err));
    TERN_TRY(tern_workers_start(s, err));
    s->on_events = watch(s, tern_events_fd(s->events), EV_READ, on_events, err);
    s->on_workers = watch(s, s->workers.wake_fd, EV_READ, on_workers, err);
    s->on_tick = watch(s, -1, 0, on_tick, err);
    s->on_signal[0] = watch(s, SIGTERM, EV_SIGNAL, on_signal, err);
    s->on_signal[1] = watch(s, SIGINT, EV_SIGNAL, on_signal, err);
    TERN_TRY(watch_hangup(s, err));
    if (!s->on_events || !s->on_workers || !s->on_tick || !s->on_signal[0] || !s->on_signal[1])
        TERN_FAIL(err, TERN_ENOMEM, "cannot watch a descriptor");
out:
    return rc;
}

/* A model that is in the middle of its opening when the time is over is left to the system. */
static void stop_models(struct tern_server *s)
{
    if (tern_models_stop(s, s->draining ? s->drain_until - tern_now() : s->p.drain_s))
        return;
    tern_server_say(s, "a model that is still being loaded is left");
    tern_models_end_loops(s); /* what other models know goes to their files */
    _exit(0);
}

static void close_all(struct tern_server *s)
{
    struct event *all[] = {s->on_signal[0], s->on_signal[1], s->on_hangup, s->on_events, s->on_workers, s->on_tick};
    tern_event e;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) /* a signal that comes now ends the process at once */
        if (all[i])
            event_free(all[i]);
    if (s->http)
        tern_http_close(&s->http); /* every job loses its client, and is cancelled */
    if (s->models.ready)
        stop_models(s);
    tern_workers_stop(s);
    tern_models_end_loops(s);
    while (s->events && tern_events_next(s->events, &e, 0))
        tern_job_event(&e);
    tern_events_free(s->events);
    tern_models_close(s);
    tern_models_clear(s);
    if (s->base)
        event_base_free(s->base);
    free(s->key_digests);
}

int tern_server_run(const struct tern_server_params *p,
                    void (*ready)(void *user, const char *address, const struct tern_server_model *first),
                    tern_error *err)
{
    char address[320];
    struct tern_server s = {.p = *p, .started = (int64_t)time(NULL)};
    s.workers.wake_fd = -1;
    int rc = open_all(&s, err);
    if (rc == 0) {
        tern_http_address(s.http, address, sizeof address);
        if (ready)
            ready(p->user, address, &s.models.all[0].opened);
        (void)event_base_dispatch(s.base);
    }
    close_all(&s);
    return rc;
}

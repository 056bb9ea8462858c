/* Events on their way from a loop's thread to a receiver.  Each is one block of memory with all that it points to. */
#include "run/loop.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"

struct tern_event_node {
    struct tern_event_node *next;
    size_t bytes;
    tern_event event;
};

struct tern_events {
    pthread_mutex_t lock;
    struct tern_event_node *first, **end; /* waiting */
    struct tern_event_node *shown;        /* what the last next returned */
    size_t bytes;                         /* of those that wait */
    int fd;                               /* readable while first is not NULL */
    int refs;                             /* the receiver and each request that is not over */
    bool closed;                          /* the receiver is gone */
};

int tern_events_new(tern_events **out, tern_error *err)
{
    int rc = 0;
    tern_events *q;
    *out = NULL;
    TERN_TRY(tern_alloc(&q, 1, sizeof *q, err));
    q->end = &q->first;
    q->refs = 1;
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->fd < 0) {
        rc = tern_err_set(err, TERN_EIO, "cannot make a queue of events: eventfd: %s", strerror(errno));
        tern_free(q);
        return rc;
    }
    (void)pthread_mutex_init(&q->lock, NULL);
    *out = q;
out:
    return rc;
}

static void free_nodes(struct tern_event_node *n)
{
    while (n) {
        struct tern_event_node *next = n->next;
        tern_free(n);
        n = next;
    }
}

void tern_events_ref(tern_events *q)
{
    (void)pthread_mutex_lock(&q->lock);
    q->refs++;
    (void)pthread_mutex_unlock(&q->lock);
}

void tern_events_unref(tern_events *q)
{
    (void)pthread_mutex_lock(&q->lock);
    bool last = --q->refs == 0;
    (void)pthread_mutex_unlock(&q->lock);
    if (!last)
        return;
    free_nodes(q->first);
    free_nodes(q->shown);
    (void)close(q->fd);
    (void)pthread_mutex_destroy(&q->lock);
    tern_free(q);
}

void tern_events_free(tern_events *q)
{
    if (!q)
        return;
    (void)pthread_mutex_lock(&q->lock);
    q->closed = true;
    (void)pthread_mutex_unlock(&q->lock);
    tern_events_unref(q);
}

bool tern_events_closed(tern_events *q)
{
    (void)pthread_mutex_lock(&q->lock);
    bool closed = q->closed;
    (void)pthread_mutex_unlock(&q->lock);
    return closed;
}

size_t tern_events_bytes(tern_events *q)
{
    (void)pthread_mutex_lock(&q->lock);
    size_t bytes = q->bytes;
    (void)pthread_mutex_unlock(&q->lock);
    return bytes;
}

int tern_events_fd(const tern_events *q)
{
    return q->fd;
}

/* ---- making and sending ------------------------------------------------------------------------------------------ */

/* Copies n bytes to *at and moves it on; the copy ends with a 0 of `end` bytes. */
static void *put(char **at, const void *data, size_t n, size_t end)
{
    if (!data)
        return NULL;
    char *to = *at;
    memcpy(to, data, n);
    memset(to + n, 0, end);
    *at = to + tern_round_up(n + end, 16);
    return to;
}

static size_t text_bytes(const char *s, size_t n)
{
    return s ? tern_round_up(n + 1, 16) : 0;
}

static size_t payload(const tern_event *e)
{
    size_t n = text_bytes(e->text, e->n) + text_bytes(e->name, e->name ? strlen(e->name) : 0) +
               text_bytes(e->call_id, e->call_id ? strlen(e->call_id) : 0) +
               text_bytes(e->message, e->message ? strlen(e->message) : 0);
    n += tern_round_up((size_t)e->n_tokens * sizeof *e->tokens, 16);
    for (int i = 0; i < e->n_tokens; i++)
        n += tern_round_up((size_t)e->tokens[i].n_top * sizeof *e->tokens[i].top, 16);
    return n + tern_round_up((size_t)e->n_vector * sizeof *e->vector, 16);
}

int tern_event_new(struct tern_event_node **out, const tern_event *e, tern_error *err)
{
    size_t head = tern_round_up(sizeof **out, 16);
    int rc = tern_alloc(out, 1, head + payload(e), err);
    if (rc < 0)
        return rc;
    struct tern_event_node *n = *out;
    char *at = (char *)n + head;
    n->bytes = head + payload(e);
    n->event = *e;
    n->event.text = put(&at, e->text, e->n, 1);
    n->event.name = put(&at, e->name, e->name ? strlen(e->name) : 0, 1);
    n->event.call_id = put(&at, e->call_id, e->call_id ? strlen(e->call_id) : 0, 1);
    n->event.message = put(&at, e->message, e->message ? strlen(e->message) : 0, 1);
    tern_token_score *tokens = put(&at, e->n_tokens ? e->tokens : NULL, (size_t)e->n_tokens * sizeof *tokens, 0);
    n->event.tokens = tokens;
    for (int i = 0; i < e->n_tokens; i++)
        tokens[i].top =
            put(&at, tokens[i].n_top ? e->tokens[i].top : NULL, (size_t)tokens[i].n_top * sizeof *tokens[i].top, 0);
    n->event.vector = put(&at, e->n_vector ? e->vector : NULL, (size_t)e->n_vector * sizeof *e->vector, 0);
    return 0;
}

int tern_event_new_end(struct tern_event_node **out, tern_error *err)
{
    size_t head = tern_round_up(sizeof **out, 16);
    int rc = tern_alloc(out, 1, head + sizeof err->msg, err);
    if (rc < 0)
        return rc;
    (*out)->event = (tern_event){.kind = TERN_EVENT_END, .message = (char *)*out + head};
    (*out)->bytes = head + sizeof err->msg;
    return 0;
}

tern_event *tern_event_of(struct tern_event_node *n)
{
    return &n->event;
}

/* So that fd is readable while something waits.  Neither can fail: the counter is 0 or 1, and nothing blocks. */
static void set_readable(const tern_events *q, bool readable)
{
    eventfd_t count;
    (void)(readable ? eventfd_write(q->fd, 1) : eventfd_read(q->fd, &count));
}

void tern_events_push(tern_events *q, struct tern_event_node *n)
{
    (void)pthread_mutex_lock(&q->lock);
    if (q->closed) {
        (void)pthread_mutex_unlock(&q->lock);
        tern_free(n);
        return;
    }
    bool was_empty = !q->first;
    *q->end = n;
    q->end = &n->next;
    q->bytes += n->bytes;
    if (was_empty)
        set_readable(q, true);
    (void)pthread_mutex_unlock(&q->lock);
}

/* ---- receiving --------------------------------------------------------------------------------------------------- */

static bool take(tern_events *q, tern_event *out)
{
    (void)pthread_mutex_lock(&q->lock);
    tern_free(q->shown);
    q->shown = q->first;
    if (q->shown) {
        q->first = q->shown->next;
        q->bytes -= q->shown->bytes;
        q->shown->next = NULL;
        if (!q->first) {
            q->end = &q->first;
            set_readable(q, false);
        }
        *out = q->shown->event;
    }
    bool found = q->shown != NULL;
    (void)pthread_mutex_unlock(&q->lock);
    return found;
}

bool tern_events_next(tern_events *q, tern_event *out, int timeout_ms)
{
    double end = tern_now() + timeout_ms * 1e-3;
    while (!take(q, out)) {
        struct pollfd p = {.fd = q->fd, .events = POLLIN};
        int left = timeout_ms < 0 ? -1 : (int)((end - tern_now()) * 1e3 + .999);
        if (timeout_ms == 0 || (timeout_ms > 0 && left <= 0))
            return false;
        (void)poll(&p, 1, left); /* a signal ends it early, too */
    }
    return true;
}

/* One connection: a request is read whole, answered, and the next one is read. */
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "server/http/impl.h"

enum state {
    HEAD,   /* a request may begin */
    BODY,   /* its body is coming */
    ANSWER, /* the handler has it */
    FLUSH,  /* the last answer goes out */
    LINGER, /* ours is said; what still comes is read and dropped, or a reset would destroy the answer on its way */
    DOOMED  /* ends as soon as nobody is in it */
};

/* What a client may send ahead while it waits for an answer. */
#define MAX_AHEAD ((size_t)64 << 10)
#define LINGER_S  2.0
#define LOOK_S    0.1 /* how often a client that sends no more is looked after */
#define ID_SIZE   40

struct tern_http_call {
    struct tern_http_conn *conn;
    struct tern_http_head head;
    struct tern_buf body, headers;
    struct tern_http_chunks chunks;
    char id[ID_SIZE];
    void (*gone)(void *user);
    void *user;
    bool begun;  /* a stream */
    bool close;  /* the connection does not outlive this answer */
    bool broken; /* there was no memory for a part of the answer */
};

struct tern_http_conn {
    struct tern_http *http;
    struct tern_http_conn *next, *prev;
    struct bufferevent *bev;
    struct event *timer, *soon; /* the state's deadline; work that must not happen within a callback */
    enum state state;
    bool is_unix, head_begun;
    bool mute;      /* the client has closed its side: it sends no more, and may still read */
    size_t scanned; /* bytes of a head that hold no end */
    struct tern_http_call call;
};

static void read_on(struct tern_http_conn *c);
static void look_after(struct tern_http_conn *c);

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static _Thread_local bool lacked; /* there was none for something of libevent's */

static void *get(size_t n)
{
    void *p = malloc(n);
    lacked |= !p;
    return p;
}

static void *get_more(void *old, size_t n)
{
    void *p = realloc(old, n);
    lacked |= !p;
    return p;
}

void tern_http_watch_memory(void)
{
    event_set_mem_functions(get, get_more, free);
}

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void set_deadline(struct tern_http_conn *c, double seconds)
{
    struct timeval t = {.tv_sec = (time_t)seconds, .tv_usec = (suseconds_t)((seconds - (double)(time_t)seconds) * 1e6)};
    if (seconds > 0)
        (void)event_add(c->timer, &t);
    else
        (void)event_del(c->timer);
}

static void call_clear(struct tern_http_call *call)
{
    struct tern_http_conn *c = call->conn;
    c->http->body_bytes -= call->body.len;
    tern_http_head_clear(&call->head);
    tern_buf_clear(&call->body);
    tern_buf_clear(&call->headers);
    *call = (struct tern_http_call){.conn = c, .head = {.length = -1}};
}

void tern_http_conn_free(struct tern_http_conn *c)
{
    struct tern_http *h = c->http;
    void (*gone)(void *) = c->call.gone;
    void *user = c->call.user;
    c->call.gone = NULL;
    if (gone)
        gone(user);
    if (c->next)
        c->next->prev = c->prev;
    *(c->prev ? &c->prev->next : &h->first) = c->next;
    h->n_conns--;
    call_clear(&c->call);
    if (c->timer)
        event_free(c->timer);
    if (c->soon)
        event_free(c->soon);
    if (c->bev)
        bufferevent_free(c->bev);
    free(c);
}

/* The connection ends, but not within the function that found out. */
static void doom(struct tern_http_conn *c)
{
    c->state = DOOMED;
    (void)bufferevent_disable(c->bev, EV_READ | EV_WRITE);
    event_active(c->soon, EV_TIMEOUT, 0);
}

bool tern_http_conn_evict(struct tern_http *h)
{
    struct tern_http_conn *oldest = NULL;
    for (struct tern_http_conn *c = h->first; c; c = c->next)
        if (c->state == HEAD && !c->head_begun)
            oldest = c;
    if (oldest)
        tern_http_conn_free(oldest);
    return oldest != NULL;
}

void tern_http_conns_drain(struct tern_http *h)
{
    for (struct tern_http_conn *c = h->first, *next; c; c = next) {
        next = c->next;
        if (c->state == HEAD && !c->head_begun)
            tern_http_conn_free(c);
        else
            c->call.close = true;
    }
}

static void begin_head(struct tern_http_conn *c, double deadline_s)
{
    c->state = HEAD;
    c->head_begun = false;
    c->scanned = 0;
    set_deadline(c, deadline_s);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static void malformed(struct tern_http_conn *c, int status, const char *sentence)
{
    struct tern_http *h = c->http;
    c->call.close = true;
    c->state = ANSWER;
    set_deadline(c, 0);
    h->p.malformed(h->p.user, &c->call, status, sentence);
}

static void hand_over(struct tern_http_conn *c)
{
    c->state = ANSWER;
    set_deadline(c, 0);
    c->http->p.handle(c->http->p.user, &c->call);
    if (c->mute && c->state == ANSWER) /* it was sent ahead */
        look_after(c);
}

static void make_id(struct tern_http_call *call)
{
    struct tern_http *h = call->conn->http;
    struct timespec t = {0};
    (void)clock_gettime(CLOCK_REALTIME, &t);
    (void)snprintf(call->id, sizeof call->id, "%08llx%08llx%06llx", (unsigned long long)t.tv_sec & 0xFFFFFFFF,
                   (unsigned long long)(t.tv_nsec ^ ((long)(uintptr_t)h << 8)) & 0xFFFFFFFF,
                   (unsigned long long)++h->next_id & 0xFFFFFF);
}

/* What the head says about the body; true: it is to be read. */
static bool expect_body(struct tern_http_conn *c)
{
    struct tern_http_call *call = &c->call;
    const size_t max = c->http->p.max_body;
    call->close = !call->head.keep_alive || c->http->draining;
    call->body.max = max;
    if (call->head.length > (int64_t)max) {
        char text[120];
        (void)snprintf(text, sizeof text, "the body of %lld bytes is larger than the %zu that are allowed",
                       (long long)call->head.length, max);
        malformed(c, 413, text);
        return false;
    }
    if (!call->head.chunked && call->head.length <= 0) {
        hand_over(c);
        return false;
    }
    if (call->head.expect_continue && bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25) < 0) {
        doom(c);
        return false;
    }
    c->state = BODY;
    set_deadline(c, c->http->p.body_s);
    return true;
}

/* True: go on reading. */
static bool read_head(struct tern_http_conn *c, struct evbuffer *in)
{
    size_t n = evbuffer_get_length(in);
    char blank[2];
    while (!c->head_begun && n >= 2 && evbuffer_copyout(in, blank, 2) == 2 && memcmp(blank, "\r\n", 2) == 0) {
        (void)evbuffer_drain(in, 2); /* some clients end a body with an empty line that is no part of it */
        n -= 2;
    }
    if (n == 0)
        return false;
    if (!c->head_begun) {
        c->head_begun = true;
        make_id(&c->call);
        set_deadline(c, c->http->p.head_s);
    }
    struct evbuffer_ptr from;
    (void)evbuffer_ptr_set(in, &from, c->scanned, EVBUFFER_PTR_SET);
    struct evbuffer_ptr end = evbuffer_search(in, "\r\n\r\n", 4, &from);
    if (end.pos < 0) {
        c->scanned = n > 3 ? n - 3 : 0;
        if (n > TERN_HTTP_MAX_HEAD)
            malformed(c, 431, "the head of the request is too long");
        return false;
    }
    size_t length = (size_t)end.pos + 4;
    int status = 431, rc = TERN_ELIMIT;
    tern_error err = {.msg = "the head of the request is too long"};
    const char *text = length <= TERN_HTTP_MAX_HEAD ? (const char *)evbuffer_pullup(in, (ev_ssize_t)length) : NULL;
    if (text)
        rc = tern_http_head_parse(&c->call.head, text, length, &status, &err);
    else if (length <= TERN_HTTP_MAX_HEAD) {
        status = 503;
        rc = tern_err_set(&err, TERN_ENOMEM, "out of memory");
    }
    (void)evbuffer_drain(in, length);
    if (rc < 0) {
        malformed(c, status, err.msg);
        return false;
    }
    return expect_body(c);
}

static bool read_body(struct tern_http_conn *c, struct evbuffer *in)
{
    struct tern_http *h = c->http;
    struct tern_http_call *call = &c->call;
    while (evbuffer_get_length(in) > 0) {
        int status = 503;
        tern_error err = {.msg = "too many large requests at once"};
        size_t n = evbuffer_get_contiguous_space(in), before = call->body.len;
        const char *p = (const char *)evbuffer_pullup(in, (ev_ssize_t)n);
        int64_t taken = TERN_ELIMIT;
        if (h->body_bytes + n <= 16 * h->p.max_body && call->head.chunked) {
            taken = tern_http_chunks_take(&call->chunks, p, n, &call->body, &status, &err);
        } else if (h->body_bytes + n <= 16 * h->p.max_body) {
            size_t want = (size_t)call->head.length - call->body.len;
            taken = tern_buf_add(&call->body, p, n < want ? n : want, &err);
            taken = taken < 0 ? taken : (int64_t)(n < want ? n : want);
        }
        h->body_bytes += call->body.len - before;
        if (taken < 0) {
            malformed(c, status, status == 413 ? "the body is larger than allowed" : err.msg);
            return false;
        }
        (void)evbuffer_drain(in, (size_t)taken);
        bool done = call->head.chunked ? call->chunks.done : call->body.len == (size_t)call->head.length;
        if (done) {
            hand_over(c);
            return false;
        }
    }
    return false;
}

/* The client has closed its side: what is no whole request yet never will be one. */
static void end_reading(struct tern_http_conn *c)
{
    if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0) {
        doom(c);
        return;
    }
    c->state = FLUSH;
    set_deadline(c, 0);
}

static void read_on(struct tern_http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    bool more = true;
    size_t before, left;
    while (more) {
        switch (c->state) {
        case HEAD:
        case BODY:
            before = evbuffer_get_length(in);
            more = c->state == HEAD ? read_head(c, in) : read_body(c, in);
            left = evbuffer_get_length(in);
            if (more || !c->mute || (c->state != HEAD && c->state != BODY))
                break;
            more = left > 0 && left < before;
            if (!more)
                end_reading(c);
            break;
        case ANSWER: /* what was sent ahead waits; too much of it is no client that we know */
            if (evbuffer_get_length(in) > MAX_AHEAD)
                doom(c);
            return;
        case FLUSH:
        case LINGER:
            (void)evbuffer_drain(in, evbuffer_get_length(in));
            return;
        case DOOMED:
            return;
        }
    }
}

/* ---- callbacks --------------------------------------------------------------------------------------------------- */

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    read_on(arg);
}

/* All is sent. */
static void on_written(struct bufferevent *bev, void *arg)
{
    struct tern_http_conn *c = arg;
    if (c->state != FLUSH || evbuffer_get_length(bufferevent_get_output(bev)) > 0)
        return;
    if (c->http->tls || c->mute) {
        doom(c);
        return;
    }
    c->state = LINGER;
    (void)shutdown(bufferevent_getfd(bev), SHUT_WR);
    set_deadline(c, LINGER_S);
}

/* Both sides are closed, as far as the kernel knows. */
static bool is_gone(const struct tern_http_conn *c)
{
    struct pollfd p = {.fd = bufferevent_getfd(c->bev)};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLERR | POLLHUP));
}

/* A client that sends no more while its answer is made has gone, or waits for it: by TCP both look alike until
 * something is written, for a kernel whose socket is closed answers that with a reset.  An interim response, which
 * every client of HTTP/1.1 skips, is something; a stream writes anyway.  Unix sockets tell without. */
static void look_after(struct tern_http_conn *c)
{
    struct tern_http_call *call = &c->call;
    const bool asks = !c->is_unix && !call->begun;
    if (evbuffer_get_length(bufferevent_get_input(c->bev)) == 0)
        call->close = true;
    if (asks && (call->head.minor == 0 || bufferevent_write(c->bev, "HTTP/1.1 100 Continue\r\n\r\n", 25) < 0))
        doom(c); /* HTTP/1.0 has no interim responses */
    else
        set_deadline(c, LOOK_S);
}

/* The client has closed its side, or all. */
static void on_end(struct tern_http_conn *c)
{
    const bool unsent = evbuffer_get_length(bufferevent_get_output(c->bev)) > 0;
    c->mute = true;
    if (c->http->tls || is_gone(c) || c->state == LINGER || (c->state == FLUSH && !unsent))
        tern_http_conn_free(c);
    else if (c->state == ANSWER)
        look_after(c);
    else if (c->state == HEAD || c->state == BODY)
        read_on(c);
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    struct tern_http_conn *c = arg;
    if ((what & BEV_EVENT_ERROR) || (what & BEV_EVENT_TIMEOUT) ||
        ((what & BEV_EVENT_EOF) && (what & BEV_EVENT_WRITING)))
        tern_http_conn_free(c);
    else if (what & BEV_EVENT_EOF)
        on_end(c);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct tern_http_conn *c = arg;
    if ((c->state == HEAD && c->head_begun) || c->state == BODY)
        malformed(c, 408, "the request took too long to arrive");
    else if (c->state == ANSWER && !is_gone(c))
        set_deadline(c, LOOK_S);
    else
        tern_http_conn_free(c);
}

static void on_soon(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct tern_http_conn *c = arg;
    if (c->state == DOOMED)
        tern_http_conn_free(c);
    else
        read_on(c);
}

static struct bufferevent *make_tls(struct tern_http *h, int fd)
{
    SSL *ssl = SSL_new(h->tls);
    struct bufferevent *bev =
        ssl ? bufferevent_openssl_socket_new(h->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING, BEV_OPT_CLOSE_ON_FREE) : NULL;
    if (!bev)
        SSL_free(ssl);
    else
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}

/* Takes the descriptor.  A connection that libevent had no memory for a part of is none: one without the callback that
 * begins its writing would never write, and nothing says so. */
static struct bufferevent *make_bufferevent(struct tern_http *h, int fd)
{
    lacked = false;
    struct bufferevent *bev = h->tls ? make_tls(h, fd) : bufferevent_socket_new(h->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!bev)
        (void)close(fd);
    if (!bev || !lacked)
        return bev;
    bufferevent_free(bev);
    return NULL;
}

void tern_http_conn_new(struct tern_http *h, int fd, bool is_unix)
{
    struct tern_http_conn *c = calloc(1, sizeof *c);
    if (!c) {
        (void)close(fd);
        return;
    }
    struct bufferevent *bev = make_bufferevent(h, fd);
    if (!bev) {
        free(c);
        return;
    }
    *c = (struct tern_http_conn){.http = h, .bev = bev, .next = h->first, .is_unix = is_unix};
    c->call = (struct tern_http_call){.conn = c, .head = {.length = -1}};
    if (h->first)
        h->first->prev = c;
    h->first = c;
    h->n_conns++;
    c->timer = evtimer_new(h->base, on_deadline, c);
    c->soon = event_new(h->base, -1, 0, on_soon, c);
    if (!c->timer || !c->soon) {
        tern_http_conn_free(c);
        return;
    }
    struct timeval stall = {.tv_sec = (time_t)h->p.stall_s + 1};
    bufferevent_setcb(bev, on_read, on_written, on_event, c);
    (void)bufferevent_set_timeouts(bev, NULL, &stall);
    if (bufferevent_enable(bev, EV_READ | EV_WRITE) < 0) {
        tern_http_conn_free(c);
        return;
    }
    begin_head(c, h->p.head_s);
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

const struct tern_http_head *tern_http_call_head(const struct tern_http_call *c)
{
    return &c->head;
}

const struct tern_buf *tern_http_call_body(const struct tern_http_call *c)
{
    return &c->body;
}

void tern_http_take_body(struct tern_http_call *c, struct tern_buf *out)
{
    c->conn->http->body_bytes -= c->body.len;
    *out = c->body;
    c->body = (struct tern_buf){0};
}

const char *tern_http_call_id(const struct tern_http_call *c)
{
    return c->id;
}

bool tern_http_call_is_unix(const struct tern_http_call *c)
{
    return c->conn->is_unix;
}

void tern_http_watch(struct tern_http_call *c, void (*gone)(void *user), void *user)
{
    c->gone = gone;
    c->user = user;
}

void tern_http_header(struct tern_http_call *c, const char *name, const char *value)
{
    c->broken |= tern_buf_addf(&c->headers, NULL, "%s: %s\r\n", name, value) < 0;
}

static const char *reason(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 204:
        return "No Content";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 403:
        return "Forbidden";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 408:
        return "Request Timeout";
    case 413:
        return "Content Too Large";
    case 415:
        return "Unsupported Media Type";
    case 417:
        return "Expectation Failed";
    case 429:
        return "Too Many Requests";
    case 431:
        return "Request Header Fields Too Large";
    case 500:
        return "Internal Server Error";
    case 501:
        return "Not Implemented";
    case 503:
        return "Service Unavailable";
    case 504:
        return "Gateway Timeout";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return status < 400 ? "OK" : "Error";
    }
}

static void write_head(struct tern_http_call *call, int status, const char *type, int64_t length)
{
    struct evbuffer *out = bufferevent_get_output(call->conn->bev);
    char date[64] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm))
        (void)strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    call->broken |= evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, reason(status), date) < 0;
    if (type)
        call->broken |= evbuffer_add_printf(out, "Content-Type: %s\r\n", type) < 0;
    if (length >= 0)
        call->broken |= evbuffer_add_printf(out, "Content-Length: %lld\r\n", (long long)length) < 0;
    else if (call->head.minor == 1)
        call->broken |= evbuffer_add_printf(out, "Transfer-Encoding: chunked\r\nCache-Control: no-store\r\n") < 0;
    call->broken |=
        evbuffer_add_printf(out, "x-request-id: %s\r\nrequest-id: %s\r\nX-Content-Type-Options: nosniff\r\n", call->id,
                            call->id) < 0;
    if (call->headers.len)
        call->broken |= evbuffer_add(out, call->headers.p, call->headers.len) < 0;
    call->broken |= evbuffer_add_printf(out, "Connection: %s\r\n\r\n", call->close ? "close" : "keep-alive") < 0;
}

/* The answer is complete: the call is over, the connection perhaps not. */
static void finish(struct tern_http_call *call)
{
    struct tern_http_conn *c = call->conn;
    const bool no_more = c->mute && evbuffer_get_length(bufferevent_get_input(c->bev)) == 0;
    bool last = call->close || c->http->draining || no_more;
    if (call->broken && c->state != DOOMED)
        doom(c);
    if (c->state == DOOMED) {
        c->call.gone = NULL;
        return;
    }
    call_clear(call);
    if (last) {
        c->state = FLUSH;
        set_deadline(c, 0);
        if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
            on_written(c->bev, c);
        return;
    }
    begin_head(c, c->http->p.idle_s);
    event_active(c->soon, EV_TIMEOUT, 0); /* for a request that was sent ahead */
}

void tern_http_reply(struct tern_http_call *c, int status, const char *type, const void *data, size_t n)
{
    struct evbuffer *out = bufferevent_get_output(c->conn->bev);
    bool head_only = c->head.method && strcmp(c->head.method, "HEAD") == 0;
    write_head(c, status, type, (int64_t)n);
    if (n && !head_only)
        c->broken |= evbuffer_add(out, data, n) < 0;
    finish(c);
}

bool tern_http_begun(const struct tern_http_call *c)
{
    return c->begun;
}

void tern_http_begin(struct tern_http_call *c, int status, const char *type)
{
    c->begun = true;
    if (c->head.minor == 0)
        c->close = true; /* where there are no chunks, the end of the connection is the end of the answer */
    write_head(c, status, type, -1);
    if (c->broken)
        doom(c->conn);
}

void tern_http_send(struct tern_http_call *c, const void *data, size_t n)
{
    struct evbuffer *out = bufferevent_get_output(c->conn->bev);
    if (c->conn->state == DOOMED || n == 0)
        return;
    if (evbuffer_get_length(out) + n > c->conn->http->p.max_unsent) {
        doom(c->conn);
        return;
    }
    if (c->head.minor == 0)
        c->broken = evbuffer_add(out, data, n) < 0;
    else
        c->broken = evbuffer_add_printf(out, "%zx\r\n", n) < 0 || evbuffer_add(out, data, n) < 0 ||
                    evbuffer_add(out, "\r\n", 2) < 0;
    if (c->broken)
        doom(c->conn);
}

void tern_http_end(struct tern_http_call *c)
{
    if (c->conn->state != DOOMED && c->head.minor == 1)
        c->broken = evbuffer_add(bufferevent_get_output(c->conn->bev), "0\r\n\r\n", 5) < 0;
    finish(c);
}

void tern_http_break(struct tern_http_call *c)
{
    c->broken = true;
    finish(c);
}

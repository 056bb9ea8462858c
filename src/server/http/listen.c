/* Listening: sockets, TLS, and what happens when connections or descriptors run out. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "server/http/impl.h"

#define BACKLOG 1024

static void listen_again(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct tern_http *h = arg;
    if (h->tcp)
        (void)evconnlistener_enable(h->tcp);
    if (h->local)
        (void)evconnlistener_enable(h->local);
}

/* Out of descriptors or memory: the connection stays in the backlog, and is asked for again a little later. */
static void on_accept_error(struct evconnlistener *l, void *arg)
{
    struct tern_http *h = arg;
    (void)evconnlistener_disable(l);
    (void)tern_http_conn_evict(h);
    (void)event_add(h->resume, &(struct timeval){.tv_usec = 100000});
}

static void accepted(struct tern_http *h, int fd, bool is_unix)
{
    if (h->n_conns >= h->p.max_connections && !tern_http_conn_evict(h)) {
        static const char busy[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nRetry-After: 1\r\n"
                                   "Connection: close\r\n\r\n";
        if (!h->tls)
            (void)!send(fd, busy, sizeof busy - 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)close(fd);
        return;
    }
    tern_http_conn_new(h, fd, is_unix);
}

static void on_accept(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *from, int n, void *arg)
{
    (void)l;
    (void)from;
    (void)n;
    accepted(arg, fd, false);
}

static void on_accept_unix(struct evconnlistener *l, evutil_socket_t fd, struct sockaddr *from, int n, void *arg)
{
    (void)l;
    (void)from;
    (void)n;
    accepted(arg, fd, true);
}

static bool is_loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

/* Inherited by accepted sockets: small pieces go out at once, and a peer that vanished is noticed. */
static void set_options(int fd)
{
    const int on = 1, idle = 30, every = 10, probes = 3;
    const unsigned unanswered_ms = 60000;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every, sizeof every);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &unanswered_ms, sizeof unanswered_ms);
}

#define LISTEN_FLAGS (LEV_OPT_CLOSE_ON_FREE | LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_EXEC)

static int listen_tcp(struct tern_http *h, tern_error *err)
{
    int rc = 0;
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    (void)snprintf(port, sizeof port, "%d", h->p.port);
    int e = getaddrinfo(h->p.host, port, &hints, &found);
    if (e)
        TERN_FAIL(err, TERN_EINVAL, "--host %.200s: %s", h->p.host, gai_strerror(e));
    h->tcp =
        evconnlistener_new_bind(h->base, on_accept, h, LISTEN_FLAGS, BACKLOG, found->ai_addr, (int)found->ai_addrlen);
    if (!h->tcp)
        TERN_FAIL(err, TERN_EIO, "cannot listen on %.200s port %d: %s", h->p.host, h->p.port, strerror(errno));
    evconnlistener_set_error_cb(h->tcp, on_accept_error);
    set_options(evconnlistener_get_fd(h->tcp));
    h->loopback = is_loopback(found->ai_addr);
    /* Both families have their port at the same place. */
    struct sockaddr_in6 bound = {.sin6_family = AF_INET};
    _Static_assert(offsetof(struct sockaddr_in6, sin6_port) == offsetof(struct sockaddr_in, sin_port), "of ports");
    socklen_t n = sizeof bound;
    if (getsockname(evconnlistener_get_fd(h->tcp), (struct sockaddr *)(void *)&bound, &n) == 0)
        h->port = ntohs(bound.sin6_port);
    (void)snprintf(h->host, sizeof h->host, bound.sin6_family == AF_INET6 && strchr(h->p.host, ':') ? "[%s]" : "%s",
                   h->p.host);
out:
    if (found)
        freeaddrinfo(found);
    return rc;
}

/* A socket that nobody listens on any more is left over from a server that was killed. */
static int remove_stale(const struct sockaddr_un *a, tern_error *err)
{
    struct stat st;
    if (lstat(a->sun_path, &st) != 0)
        return 0;
    if (!S_ISSOCK(st.st_mode))
        return tern_err_set(err, TERN_EINVAL, "--unix %s: there is a file of that name that is no socket", a->sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool alive = fd >= 0 && connect(fd, (const struct sockaddr *)a, sizeof *a) == 0;
    if (fd >= 0)
        (void)close(fd);
    if (alive)
        return tern_err_set(err, TERN_EINVAL, "--unix %s: another server listens there", a->sun_path);
    return unlink(a->sun_path) == 0 ? 0 : tern_err_set(err, TERN_EIO, "--unix %s: %s", a->sun_path, strerror(errno));
}

static int listen_unix(struct tern_http *h, tern_error *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(h->p.unix_path) >= sizeof a.sun_path)
        return tern_err_set(err, TERN_EINVAL, "--unix: the path is longer than %zu bytes", sizeof a.sun_path - 1);
    (void)snprintf(a.sun_path, sizeof a.sun_path, "%s", h->p.unix_path);
    int rc = remove_stale(&a, err);
    if (rc < 0)
        return rc;
    mode_t before = umask(0177); /* for its owner alone */
    h->local = evconnlistener_new_bind(h->base, on_accept_unix, h, LISTEN_FLAGS, BACKLOG, (struct sockaddr *)&a,
                                       (int)sizeof a);
    int e = errno;
    (void)umask(before);
    if (!h->local)
        return tern_err_set(err, TERN_EIO, "cannot listen on --unix %s: %s", a.sun_path, strerror(e));
    evconnlistener_set_error_cb(h->local, on_accept_error);
    (void)snprintf(h->unix_path, sizeof h->unix_path, "%s", a.sun_path);
    return 0;
}

static int open_tls(struct tern_http *h, tern_error *err)
{
    const char *cert = h->p.tls_cert, *key = h->p.tls_key;
    if (!cert && !key)
        return 0;
    if (!cert || !key)
        return tern_err_set(err, TERN_EINVAL, "--tls-cert and --tls-key belong together");
    h->tls = SSL_CTX_new(TLS_server_method());
    if (!h->tls)
        return tern_err_set(err, TERN_ENOMEM, "cannot set up TLS");
    (void)SSL_CTX_set_min_proto_version(h->tls, TLS1_2_VERSION);
    (void)SSL_CTX_set_options(h->tls, SSL_OP_NO_RENEGOTIATION);
    const char *bad = SSL_CTX_use_certificate_chain_file(h->tls, cert) != 1             ? cert
                      : SSL_CTX_use_PrivateKey_file(h->tls, key, SSL_FILETYPE_PEM) != 1 ? key
                                                                                        : NULL;
    char why[160];
    ERR_error_string_n(ERR_peek_last_error(), why, sizeof why);
    if (bad)
        return tern_err_set(err, TERN_EFORMAT, "%.150s: no PEM file that TLS can use: %s", bad, why);
    if (SSL_CTX_check_private_key(h->tls) != 1)
        return tern_err_set(err, TERN_EMISMATCH, "%.150s is not the key of %.150s", key, cert);
    return 0;
}

#define MOST_RESERVED 16384 /* connections */

static void never(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    (void)arg;
}

/* libevent keeps the room that its timers once had.  So it gets it now, for two of each connection: without memory none
 * shall lose the one that ends it, or the one that its writing begins with. */
static int reserve_timers(struct tern_http *h, tern_error *err)
{
    const int conns = h->p.max_connections < MOST_RESERVED ? h->p.max_connections : MOST_RESERVED;
    const size_t n = 2 * (size_t)conns + 16, size = event_get_struct_event_size();
    char *all = calloc(n, size);
    bool ok = all != NULL;
    for (size_t i = 0; i < n && ok; i++) {
        struct event *e = (struct event *)(void *)(all + i * size);
        ok = evtimer_assign(e, h->base, never, NULL) == 0 && event_add(e, &(struct timeval){.tv_sec = 3600}) == 0;
    }
    for (size_t i = 0; i < n && all; i++) {
        struct event *e = (struct event *)(void *)(all + i * size);
        if (event_initialized(e))
            (void)event_del(e);
    }
    free(all);
    return ok ? 0 : tern_err_set(err, TERN_ENOMEM, "cannot allocate the timers of %d connections", conns);
}

int tern_http_open(struct tern_http **out, struct event_base *base, const struct tern_http_params *p, tern_error *err)
{
    int rc = 0;
    struct tern_http *h = calloc(1, sizeof *h);
    *out = NULL;
    if (!h)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate a server");
    h->p = *p;
    h->base = base;
    h->loopback = true;
    h->resume = evtimer_new(base, listen_again, h);
    if (!h->resume)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate a timer");
    TERN_TRY(reserve_timers(h, err));
    TERN_TRY(open_tls(h, err));
    if (p->host)
        TERN_TRY(listen_tcp(h, err));
    if (p->unix_path)
        TERN_TRY(listen_unix(h, err));
    *out = h;
    h = NULL;
out:
    tern_http_close(&h);
    return rc;
}

void tern_http_drain(struct tern_http *h)
{
    h->draining = true;
    if (h->tcp)
        evconnlistener_free(h->tcp);
    if (h->local)
        evconnlistener_free(h->local);
    if (h->unix_path[0])
        (void)unlink(h->unix_path);
    h->tcp = h->local = NULL;
    h->unix_path[0] = 0;
    tern_http_conns_drain(h);
}

void tern_http_close(struct tern_http **hp)
{
    struct tern_http *h = *hp;
    if (!h)
        return;
    tern_http_drain(h);
    while (h->first)
        tern_http_conn_free(h->first);
    if (h->resume)
        event_free(h->resume);
    SSL_CTX_free(h->tls);
    free(h);
    *hp = NULL;
}

int tern_http_port(const struct tern_http *h)
{
    return h->port;
}

const char *tern_http_host(const struct tern_http *h)
{
    return h->host;
}

bool tern_http_is_local(const struct tern_http *h)
{
    return h->loopback;
}

int tern_http_connections(const struct tern_http *h)
{
    return h->n_conns;
}

void tern_http_address(const struct tern_http *h, char *out, size_t n)
{
    if (h->tcp)
        (void)snprintf(out, n, "%s://%s:%d", h->tls ? "https" : "http", h->host, h->port);
    else
        (void)snprintf(out, n, "unix:%s", h->unix_path);
}

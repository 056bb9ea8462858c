/* server/http/impl.h - what listeners and connections share. */
#ifndef TERN_SERVER_HTTP_IMPL_H
#define TERN_SERVER_HTTP_IMPL_H

#include <event2/event.h>
#include <event2/listener.h>
#include <openssl/ssl.h>
#include "server/http/http.h"

struct tern_http_conn;

struct tern_http {
    struct tern_http_params p;
    struct event_base *base;
    struct evconnlistener *tcp, *local;
    struct event *resume; /* listens again after descriptors ran out */
    SSL_CTX *tls;
    struct tern_http_conn *first; /* all connections, the newest first */
    int n_conns, port;
    bool loopback, draining;
    size_t body_bytes; /* of all connections */
    char host[256], unix_path[108];
    uint64_t next_id;
};

/* Takes the descriptor, of a new connection. */
void tern_http_conn_new(struct tern_http *h, int fd, bool is_unix);
void tern_http_conn_free(struct tern_http_conn *c);
/* Ends one connection that waits for a request; false: there is none. */
bool tern_http_conn_evict(struct tern_http *h);
void tern_http_conns_drain(struct tern_http *h);

#endif

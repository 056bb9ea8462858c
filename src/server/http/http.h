/* server/http/http.h - connections: requests come in whole, answers go out at once or piece by piece.
 *
 * Sockets, TLS, deadlines, limits and keep-alive stay behind this header, and with them libevent's connections; what
 * answers requests sees calls.  Everything here belongs to the thread that runs the event base.
 *
 * A call lives from the handler until its answer is complete (tern_http_reply, tern_http_end) or its client is gone,
 * whichever comes first.  `gone` tells of the latter; after either nobody may touch the call again.  A client that has
 * closed its own side alone is not gone (over TLS and in HTTP/1.0 it is). */
#ifndef TERN_SERVER_HTTP_H
#define TERN_SERVER_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "base/err.h"
#include "server/http/parse.h"

struct event_base;
struct tern_http;
struct tern_http_call;

struct tern_http_params {
    const char *host;                           /* address or name; NULL: no TCP socket */
    int port;                                   /* 0: one that is free */
    const char *unix_path, *tls_cert, *tls_key; /* NULL: none */
    size_t max_body;                            /* bytes of one body; all bodies together have 16 times as much */
    size_t max_unsent;                          /* bytes of a stream that its reader lets pile up */
    int max_connections;
    double head_s, body_s;  /* from its first byte a head, from its head a body has so long, in all */
    double idle_s, stall_s; /* between requests; for a reader that takes nothing */
    /* A request has come.  malformed: `status` and `sentence` say why it is none; the call's head may be empty.  The
     * answer is given by the handler or later. */
    void (*handle)(void *user, struct tern_http_call *c);
    void (*malformed)(void *user, struct tern_http_call *c, int status, const char *sentence);
    void *user;
};

/* Once per process, before the event base is made. */
void tern_http_watch_memory(void);
int tern_http_open(struct tern_http **out, struct event_base *base, const struct tern_http_params *p, tern_error *err);
void tern_http_close(struct tern_http **h);
/* No new connections, and none is kept after its answer. */
void tern_http_drain(struct tern_http *h);
int tern_http_port(const struct tern_http *h);         /* of the TCP socket */
bool tern_http_is_local(const struct tern_http *h);    /* can only this machine connect? */
const char *tern_http_host(const struct tern_http *h); /* as in its address; "": it has no TCP socket */
int tern_http_connections(const struct tern_http *h);
/* Where the server can be reached, "http://127.0.0.1:8080", into out. */
void tern_http_address(const struct tern_http *h, char *out, size_t n);

const struct tern_http_head *tern_http_call_head(const struct tern_http_call *c);
const struct tern_buf *tern_http_call_body(const struct tern_http_call *c);
void tern_http_take_body(struct tern_http_call *c, struct tern_buf *out); /* out is the caller's to clear */
const char *tern_http_call_id(const struct tern_http_call *c);            /* unique text, also sent as x-request-id */
bool tern_http_call_is_unix(const struct tern_http_call *c);
/* From now on `gone` is called, once, when the client is gone before the answer is complete. */
void tern_http_watch(struct tern_http_call *c, void (*gone)(void *user), void *user);

/* A further header of the answer; name and value must be free of line ends. */
void tern_http_header(struct tern_http_call *c, const char *name, const char *value);
void tern_http_reply(struct tern_http_call *c, int status, const char *type, const void *data, size_t n);
/* An answer in pieces.  Pieces for a client that does not read are dropped and the connection ends: `gone` tells, later
 * and never from within these calls. */
void tern_http_begin(struct tern_http_call *c, int status, const char *type);
void tern_http_send(struct tern_http_call *c, const void *data, size_t n);
void tern_http_end(struct tern_http_call *c);
void tern_http_break(struct tern_http_call *c); /* the connection ends, and the client sees that something is missing */
bool tern_http_begun(const struct tern_http_call *c);

#endif

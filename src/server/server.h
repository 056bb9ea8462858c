/* server/server.h - a model behind HTTP: the APIs that other programs speak, on top of tern/loop.h.
 *
 * tern_server_run owns the calling thread until it is told to end.  Requests are read and answered there; texts are
 * parsed, rendered and tokenized by workers; the engine has the loop's own thread.  Nothing here prints: what a person
 * who runs the server should know goes through `say`. */
#ifndef TERN_SERVER_SERVER_H
#define TERN_SERVER_SERVER_H

#include "tern/loop.h"

struct tern_server_params {
    const char *host; /* NULL: no TCP socket */
    int port;         /* 0: any that is free */
    const char *unix_path, *tls_cert, *tls_key;
    const char *const *keys; /* any of n_keys opens the API; none: it is open to all who can connect */
    int n_keys;
    bool insecure;              /* a socket that other machines reach may be open without a key */
    const char *const *aliases; /* n_aliases further names of the model; "*": any name */
    int n_aliases;
    int max_choices; /* n and best_of of one request */
    int max_connections;
    size_t max_body;     /* bytes of one request */
    double timeout_s;    /* of one request; 0: none */
    double ping_s;       /* silence in a stream after which a comment is sent; 0: never */
    double drain_s;      /* what is running may take so long after the first SIGTERM */
    const char *kv_spec; /* the plan that was asked for, as text */
    tern_loop_params loop;
    void (*say)(void *user, const char *line);
    void (*log)(void *user, const char *json); /* an object for each request that is over; NULL: none */
    bool log_prompts;                          /* with the bodies of requests */
    void *user;
};

/* Serves until SIGTERM or SIGINT, then lets running requests end; a second signal ends the process at once (status 130,
 * or 143).  `ready` is called once, with the address, when connections are taken.  The engine must have no sequences.
 */
int tern_server_run(const struct tern_server_params *p, tern_model *m, tern_engine *e,
                    void (*ready)(void *user, const char *address), tern_error *err);

#endif

/* server/server.h - models behind HTTP: the APIs that other programs speak, on top of tern/loop.h.
 *
 * tern_server_run owns the calling thread until it is told to end.  Requests are read and answered there; texts are
 * parsed, rendered and tokenized by workers; engines have their loops' own threads, and one thread opens and closes
 * models as requests want them.  Nothing here prints: what a person who runs the server should know goes through `say`.
 */
#ifndef TERN_SERVER_SERVER_H
#define TERN_SERVER_SERVER_H

#include "tern/loop.h"

struct tern_server_name {
    const char *name; /* in requests */
    const char *path; /* of its file, for messages to those who run the server */
};

/* A model that is open. */
struct tern_server_model {
    tern_model *model;
    tern_engine *engine;          /* without sequences */
    size_t kv_bytes, cache_bytes; /* of its loop */
};

/* Whom the opening of a model asks. */
struct tern_server_watch {
    /* Before memory is taken: so many bytes more.  Waits until models that nobody uses have made room.  TERN_ELIMIT:
     * there never is so much; TERN_ECANCELLED: nobody wants the model any more. */
    int (*hold)(void *self, size_t bytes, tern_error *err);
    void (*let_go)(void *self, size_t bytes);            /* of what was held, so much is not taken after all */
    int (*on_progress)(void *self, int done, int total); /* other than 0: end the opening */
    void *self;
};

struct tern_server_params {
    const char *host; /* NULL: no TCP socket */
    int port;         /* 0: any that is free */
    const char *unix_path, *tls_cert, *tls_key;
    const char *const *keys; /* any of n_keys opens the API; none: it is open to all who can connect */
    int n_keys;
    bool insecure;                        /* a socket that other machines reach may be open without a key */
    const struct tern_server_name *names; /* [n_models], no two alike; the first is meant where a request names none */
    int n_models;
    size_t memory;              /* bytes that open models may hold together; 0: no limit */
    const char *const *aliases; /* n_aliases further names of the first model; "*": any name */
    int n_aliases;
    int max_choices; /* n and best_of of one request */
    int max_connections;
    size_t max_body;         /* bytes of one request */
    const char *cache_files; /* a directory whose cache files requests may name; NULL: there are no such requests */
    double timeout_s;        /* of one request; 0: none */
    double ping_s;           /* silence in a stream after which a comment is sent; 0: never */
    double drain_s;          /* what is running may take so long after the first SIGTERM */
    double stall_s;          /* an engine whose thread did not come by for so long hangs */
    tern_loop_params loop;
    /* Opens model i; what it holds then is freed by `close`.  Both are called from one thread at a time, which for the
     * first opening is the caller's. */
    int (*open)(void *user, int i, const struct tern_server_watch *w, struct tern_server_model *out, tern_error *err);
    void (*close)(void *user, int i, struct tern_server_model *m);
    void (*say)(void *user, const char *line); /* any thread */
    void (*log)(void *user, const char *json); /* an object for each request that is over; NULL: none */
    bool log_prompts;                          /* with the bodies of requests */
    void *user;
};

/* Opens the first model and serves until SIGTERM or SIGINT, then lets running requests end; a second signal ends the
 * process at once (status 130, or 143).  `ready` is called once, with the address and the first model, when connections
 * are taken. */
int tern_server_run(const struct tern_server_params *p,
                    void (*ready)(void *user, const char *address, const struct tern_server_model *first),
                    tern_error *err);

#endif

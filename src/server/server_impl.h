/* server/server_impl.h - what the parts of the server share: faults, jobs, APIs.
 *
 * A job is one request's work.  Its life: made by the event loop's thread (E) from a call; read by a worker (W), which
 * finds its model; it waits for that, where it is not open; prepared by a worker, which makes prompts or the whole
 * answer; submitted by E; then E turns events of the engine's loop into the answer.  Only one thread has a job at any
 * time, but `call` is always E's. */
#ifndef TERN_SERVER_SERVER_IMPL_H
#define TERN_SERVER_SERVER_IMPL_H

#include <event2/event.h>
#include <jansson.h>
#include <pthread.h>
#include "base/buf.h"
#include "base/clock.h"
#include "server/http/http.h"
#include "server/json.h"
#include "server/models.h"

/* ---- faults ------------------------------------------------------------------------------------------------------ */

enum tern_shape { TERN_SHAPE_OPENAI, TERN_SHAPE_ANTHROPIC, TERN_SHAPE_OLLAMA };

/* Why a request is refused or failed; status 0: nothing is wrong. */
struct tern_fault {
    int status;
    const char *code; /* "invalid_value", static; NULL: none */
    char param[96];   /* "messages[2].content"; "": none */
    char text[480];
    int n_prompt, n_ctx; /* of a prompt that is too long */
    double retry_after;  /* seconds; 0: it does not help */
};
/* Fills f, as one line without control characters, and returns -1.  param NULL: none. */
int tern_fault_set(struct tern_fault *f, int status, const char *code, const char *param, const char *fmt, ...)
    TERN_PRINTF(5, 6);
int tern_fault_from(struct tern_fault *f, const tern_error *err, const char *param); /* by the status of its code */
/* The fault in a shape, as JSON. */
json_t *tern_fault_json(const struct tern_fault *f, enum tern_shape shape);
void tern_fault_reply(struct tern_http_call *c, const struct tern_fault *f, enum tern_shape shape);

/* ---- fields ------------------------------------------------------------------------------------------------------ */

enum tern_field_kind {
    TERN_FIELD_BOOL,   /* bool */
    TERN_FIELD_INT,    /* int64_t, in [min, max] */
    TERN_FIELD_NUM,    /* double, in [min, max] */
    TERN_FIELD_STR,    /* const char *, without NUL bytes; max: bytes, 0 = any */
    TERN_FIELD_OBJ,    /* json_t *, borrowed: an object */
    TERN_FIELD_ARR,    /* a list */
    TERN_FIELD_ANY,    /* whatever it is */
    TERN_FIELD_OFF,    /* a number in [min, max] or a boolean (0, 1), which asks for nothing; `why` as below */
    TERN_FIELD_REFUSED /* nothing but null, false, "" or empty; `why` says what is not there */
};
struct tern_field {
    const char *name;
    enum tern_field_kind kind;
    size_t offset; /* in the struct that is filled; (size_t)-1: only checked */
    double min, max;
    const char *why;
};
#define TERN_FIELD_CHECKED ((size_t)-1)
/* Reads the fields of an object that a table (ended by a row without name) knows; null counts as absent, members that
 * no row knows are left alone.  prefix: "" or "messages[3].". */
int tern_fields_read(const struct tern_field *table, json_t *object, const char *prefix, void *out,
                     struct tern_fault *f);

/* ---- jobs -------------------------------------------------------------------------------------------------------- */

struct tern_lane { /* one prompt */
    struct tern_job *job;
    tern_tokens ids, borders; /* of a conversation: where messages end (tern_request.borders) */
    uint64_t id;              /* in the loop */
    bool running;
    int index, n_cached, done;
    json_t *scores; /* of the prompt, entries as those of choices */
    float *vector;  /* [n_vector] embedding */
    int n_vector;
    tern_constraint constraint; /* until the loop has it */
};

struct tern_choice {
    int index;
    struct tern_lane *lane;
    struct tern_buf text, reasoning, arguments; /* of the whole answer; of the call in hand */
    json_t *calls;                              /* complete ones: {"id", "name", "arguments"} */
    json_t *scores; /* [{"id", "logprob", "top": [[id, logprob] ..]} ..] of tokens that were not yet told */
    bool begun, done;
    tern_stream *spelled; /* of APIs that tell where in the text tokens lie: what those so far come to */
    int part, n_parts;    /* kind of the open part; how many are closed, or, in chat and completions, tokens so far */
    tern_event end;       /* of TERN_EVENT_CHOICE; its pointers are not valid */
};

/* An API that generates.  Streams are told piece by piece; else all is kept in the choices until `end`. */
struct tern_api {
    enum tern_shape shape;
    const char *stream_type; /* of the answer's body, while it streams */
    const char *magic; /* a body that begins with these 8 bytes is a file, of the model that the query names, and stays
                        * in job->body; others, and all where it is NULL, are JSON */
    /* W: checks the request, makes the lanes, or gives the whole answer in job->answer. */
    int (*prepare)(struct tern_job *j, struct tern_fault *f);
    bool keeps_order; /* `piece` and `choice_end` are called for whole answers, too */
    void (*open)(struct tern_job *j);
    void (*piece)(struct tern_job *j, struct tern_choice *c, const tern_event *e); /* streams alone */
    void (*choice_end)(struct tern_job *j, struct tern_choice *c);                 /* streams alone */
    void (*end)(struct tern_job *j);  /* streams: the last pieces; else: the answer, by tern_job_answer */
    void (*ping)(struct tern_job *j); /* nothing was said for a while; NULL: silence is legal */
    void (*failed)(struct tern_job *j, const struct tern_fault *f); /* in the middle of a stream */
    const struct tern_api *then; /* a worker answers with it when all lanes have ended; NULL: `end` does */
};

struct tern_job {
    struct tern_server *server;
    struct tern_served *served;  /* the model that it names, once it is read */
    bool held, wants, waits;     /* it holds that; is to wait for it; waits (under the lock of models) */
    double keep_s;               /* "keep_alive"; NAN: it said nothing */
    bool tells;                  /* while it waits it says so */
    double waited_s, wait_began; /* for its model */
    struct tern_http_call *call; /* E; NULL once the client is gone or has its answer */
    const struct tern_api *api;
    struct tern_job *next; /* in a queue */
    struct tern_buf body;
    size_t body_bytes;   /* as it came */
    json_t *root;        /* of the body */
    uint64_t key;        /* which of the API keys was given, 0: none */
    json_t *answer;      /* whole, instead of generation */
    struct tern_buf raw; /* the same as bytes */
    json_t *items;       /* parts of an answer in their order, where an API has such */
    struct tern_fault fault;
    struct tern_ask *ask; /* ask.h; NULL: nothing is generated */
    char id[48];          /* "chatcmpl-..." */
    char path[64];        /* of the request */
    int status;           /* of the answer; 499: the client was gone before */
    int64_t created;
    bool stream, submitted, opened, over, had_calls;
    int n_running, n_prompt, n_cached, n_generated, n_reasoning, n_drafted, n_accepted, n_pings;
    double began, said, prompt_s, decode_s, queue_s; /* said: when the stream had its last piece */
    struct tern_lane *lanes;
    int n_lanes;
    struct tern_choice *choices; /* [n_lanes][per_lane] */
    int n_choices, per_lane;
    uint64_t sequence; /* of events, where an API numbers them */
    struct tern_job *all_next, *all_prev;
};

/* A job without a call, and its end. */
struct tern_job *tern_job_new(struct tern_server *s, const struct tern_api *api);
void tern_job_free(struct tern_job *j);
/* E: takes a call over; a worker prepares the answer. */
void tern_job_start(struct tern_server *s, const struct tern_api *api, struct tern_http_call *c);
void tern_job_prepared(struct tern_job *j); /* E: what a worker gives back */
void tern_job_event(const tern_event *e);   /* E: of the loop */
void tern_job_tick(struct tern_server *s);  /* E: a few times a second */
void tern_job_cancel_all(struct tern_server *s);
/* E: the whole answer, taken; ends the call. */
void tern_job_answer(struct tern_job *j, json_t *body);
/* E: pieces of a stream.  `event` may be NULL; json is taken. */
void tern_job_sse(struct tern_job *j, const char *event, json_t *json);
void tern_job_line(struct tern_job *j, json_t *json); /* one line of JSON */
void tern_job_send(struct tern_job *j, const char *text);
/* W: n lanes without ids yet. */
int tern_job_lanes(struct tern_job *j, int n, struct tern_fault *f);
/* W: the body as an object, and the model that it names. */
int tern_job_read(struct tern_job *j, struct tern_fault *f);

/* prefixid.c: a text that prompts have in common whose first tokens are the same, for who spreads requests over
 * servers. Of whole pages among the first 256 tokens; of all tokens where they fill no page; empty without memory. */
#define TERN_PREFIX_ID 17
void tern_prefix_id(const tern_tokens *ids, char out[TERN_PREFIX_ID]);

/* ---- workers ----------------------------------------------------------------------------------------------------- */

int tern_workers_start(struct tern_server *s, tern_error *err);
void tern_workers_stop(struct tern_server *s);
bool tern_workers_put(struct tern_server *s, struct tern_job *j); /* false: too many wait */
/* Any thread: the same for one that was let in before; and back to E, with its fault. */
void tern_workers_put_again(struct tern_server *s, struct tern_job *j);
void tern_workers_give_back(struct tern_server *s, struct tern_job *j);
void tern_workers_collect(struct tern_server *s); /* E: hands back what is prepared */

/* ---- the server -------------------------------------------------------------------------------------------------- */

#define TERN_N_WORKERS 2

struct tern_server {
    struct tern_server_params p;
    struct {
        struct tern_served *all; /* [p.n_models]; the first is meant where a request names none */
        pthread_mutex_t lock;    /* never taken by who has the workers' */
        pthread_cond_t more;     /* the loader has something to look at */
        pthread_t loader;
        bool ready, started, running, stop; /* there are lock and more; the first model is open; there is a loader */
        uint64_t turns;
        size_t held; /* bytes of the budget */
        int n_waiting;
    } models;
    tern_events *events;
    struct event_base *base;
    struct tern_http *http;
    struct event *on_events, *on_workers, *on_tick, *on_signal[2];
    struct event *on_hangup; /* nullable */
    int64_t started;
    unsigned char (*key_digests)[32];
    struct tern_job *jobs; /* all */
    int n_jobs;
    bool draining;
    double drain_until;
    uint64_t n_requests, n_status[6]; /* [s]: answers of status s00 */
    uint64_t disconnects;
    struct {
        pthread_t threads[TERN_N_WORKERS];
        int n_threads, n_waiting, wake_fd;
        pthread_mutex_t lock;
        pthread_cond_t more;
        struct tern_job *first, *last, *done, *done_last;
        bool stop;
    } workers;
};

/* Any thread. */
void tern_server_say(const struct tern_server *s, const char *fmt, ...) TERN_PRINTF(2, 3);

/* auth.c: may this call be answered?  Else *f says why not. */
int tern_auth_init(struct tern_server *s, tern_error *err);
bool tern_auth_check(const struct tern_server *s, const struct tern_http_call *c, bool key_needed,
                     struct tern_fault *f);
/* Which of the keys the call has, from 1; 0: none. */
uint64_t tern_auth_key(const struct tern_server *s, const struct tern_http_call *c);

/* router.c */
void tern_route(void *server, struct tern_http_call *c);
void tern_route_malformed(void *server, struct tern_http_call *c, int status, const char *sentence);
void tern_reply_json(struct tern_http_call *c, int status, json_t *j); /* takes j; 503 where it is not whole */

extern const struct tern_api tern_api_chat, tern_api_completions, tern_api_tokenize, tern_api_detokenize,
    tern_api_template, tern_api_messages, tern_api_count, tern_api_responses, tern_api_embeddings, tern_api_ollama_chat,
    tern_api_ollama_generate, tern_api_ollama_embed, tern_api_ollama_embeddings, tern_api_ollama_show,
    tern_api_cache_export, tern_api_cache_import;
json_t *tern_ollama_models(struct tern_server *s, bool running); /* ollama.c */
/* "keep_alive": seconds, or a time such as "5m"; below 0: for ever. */
int tern_ollama_keep_alive(const json_t *v, double *out, struct tern_fault *f);

void tern_page_answer(struct tern_server *s, struct tern_http_call *c); /* page.c */

void tern_log_job(const struct tern_job *j); /* log.c: one line of JSON about a job that is over */

/* metrics.c */
int tern_metrics_text(struct tern_server *s, struct tern_buf *out);
json_t *tern_kv_json(struct tern_served *m);
json_t *tern_cache_json(struct tern_served *m);

#endif

/* tern/loop.h - many requests on one engine: continuous batching for servers and programs like them.
 *
 * A loop owns an engine's thread.  Any thread hands it requests; tokens, text, calls of tools and figures come back as
 * events through a queue that the receiver made.  Requests join and leave the batch at any step, decode rows first, and
 * prompts are cut so that the streams that run keep their pace.  What a request gets depends on the request alone: the
 * same tokens as if it ran by itself, whatever else is in the batch.
 *
 *     tern_events_new(&q)            one per receiving thread: its descriptor goes into poll, epoll or libevent
 *     tern_loop_open(&loop, engine)  starts the owner thread; the engine is the loop's until tern_loop_close
 *     tern_loop_submit(loop, &request, q, user, &id)
 *     tern_events_next(q, &event)    until TERN_EVENT_END of each request
 *
 * Threads: every function here may be called from any thread at any time, but for _free and _close, which are the last
 * calls on their object, and tern_events_next, which one thread at a time calls on one queue.  None of them waits for a
 * step, except tern_loop_drain, tern_loop_close and tern_loop_cache_export and _import.  tern_engine_cancel means
 * nothing to a loop. */
#ifndef TERN_LOOP_H
#define TERN_LOOP_H

#include "tern/tern.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_loop tern_loop;
typedef struct tern_events tern_events;

/* ---- events ------------------------------------------------------------------------------------------------------ */

typedef enum tern_event_kind {
    TERN_EVENT_START,          /* left the queue; n_cached of n_prompt tokens were found in the prefix cache */
    TERN_EVENT_PROMPT,         /* done of n_prompt tokens are processed; once per step of the prompt */
    TERN_EVENT_SCORES,         /* tokens[0..n_tokens): prompt tokens from position `done` on, with their logprobs */
    TERN_EVENT_EMBEDDING,      /* vector[0..n_vector) */
    TERN_EVENT_TOKEN,          /* tokens[0]: generated, with its logprob; comes before the text that it leads to */
    TERN_EVENT_TEXT,           /* choice; text, n: part of the answer, whole characters */
    TERN_EVENT_REASONING,      /* choice; text, n */
    TERN_EVENT_CALL_BEGIN,     /* choice; call, name, call_id */
    TERN_EVENT_CALL_ARGUMENTS, /* choice; call; text, n: a piece of a JSON object */
    TERN_EVENT_CALL_END,       /* choice; call */
    TERN_EVENT_NOTICE,         /* choice; text, n: a sentence about a malformed call (TERN_REPLY_NOTICE) */
    TERN_EVENT_CHOICE,         /* this choice is complete: finish, stop, last, n_generated, n_reasoning, logprob */
    TERN_EVENT_END             /* the last event of every accepted request, exactly once: rc, message, usage, times */
} tern_event_kind;

typedef struct tern_logprob {
    int32_t id;
    double logprob; /* log softmax of the model's own logits: before bias, penalties, constraint and temperature */
} tern_logprob;

typedef struct tern_token_score {
    int32_t id;
    double logprob;          /* NAN for the first token of a prompt */
    const tern_logprob *top; /* [n_top] most likely tokens, descending, equal ones by ascending id; the same double as
                                above where id is among them */
    int n_top;
} tern_token_score;

typedef struct tern_event { /* everything it points to: views until the next tern_events_next on this queue */
    tern_event_kind kind;
    uint64_t id; /* of the request */
    void *user;  /* as given to tern_loop_submit */
    int choice;
    const char *text; /* NUL-terminated as well */
    size_t n;
    int call;            /* index of the call in this reply, from 0 */
    const char *name;    /* of the function */
    const char *call_id; /* tern_reply_event.id */
    const tern_token_score *tokens;
    int n_tokens;
    const float *vector;
    int n_vector;
    int done;
    /* TERN_EVENT_CHOICE */
    tern_finish finish;
    int stop;        /* index of the stop string that ended it (TERN_FINISH_STOP); -1: none */
    int32_t last;    /* the token that ended it: end of reply, stop id; -1: none */
    int n_generated; /* tokens of this choice; in TERN_EVENT_END of all choices.  A token that ends a reply counts */
    int n_reasoning; /* those of them that were thought */
    int n_drafted, n_accepted; /* guesses that were verified, and those that were right (tern_engine_params.draft) */
    double logprob;            /* sum over its tokens, where logprobs were asked for; else NAN */
    /* TERN_EVENT_END */
    int rc;              /* 0, or TERN_ECANCELLED, TERN_ELIMIT (timeout), or what went wrong in this request */
    const char *message; /* the sentence when rc < 0, else NULL */
    int n_prompt, n_cached;
    double queue_s, prompt_s, first_s, decode_s; /* in the queue; prompt; submission to first token; then to the end */
} tern_event;

/* A queue of events.  Events of one request are in order. */
TERN_API int tern_events_new(tern_events **out, tern_error *err);
/* Requests whose events nobody can receive any more are cancelled.  NULL is legal. */
TERN_API void tern_events_free(tern_events *q);
/* A descriptor that is readable while events wait; for poll only, level-triggered.  Never read from it. */
TERN_API int tern_events_fd(const tern_events *q);
/* The next event; false: none is waiting.  timeout_ms: 0 does not wait, -1 waits without limit. */
TERN_API bool tern_events_next(tern_events *q, tern_event *out, int timeout_ms);

/* ---- requests ---------------------------------------------------------------------------------------------------- */

typedef enum tern_embed { TERN_EMBED_NONE, TERN_EMBED_LAST, TERN_EMBED_MEAN } tern_embed;

typedef struct tern_request { /* zero-initialise, then tern_request_defaults; all of it is copied */
    const int32_t *prompt;
    int n_prompt;           /* 1 .. context; tern_model_tokenize and tern_model_chat_json make them */
    const int32_t *borders; /* n_borders counts of tokens, ascending, 1 .. n_prompt, where others may part from this
                               prompt (tern_model_chat_borders).  A model that cannot start at any page can start at
                               some of these, the last among them.  They change nothing but the time */
    int n_borders;
    int plan;        /* KV plan of the engine */
    int max_tokens;  /* per choice; -1: until the context is full; 0: the prompt alone (scores, cache) */
    int min_tokens;  /* before that neither an end token nor a stop string ends the reply: end tokens and stop ids are
                        not picked, stop strings are text */
    bool ignore_eos; /* end tokens are text like others */
    bool continues;  /* as in tern_generate_params */
    tern_sampler_params sampler; /* choice i draws with seed + i: choice 0 is what n_choices 1 gives */
    int n_choices;               /* from one prompt; 0 = 1 */
    const char *const *stop;     /* n_stop strings, as in tern_generate_params; none of them empty */
    int n_stop;
    const int32_t *stop_ids; /* end the reply as end tokens do */
    int n_stop_ids;
    bool keep_stop;    /* the stop string or stop id that ends the reply is part of its text */
    bool show_control; /* control tokens are text like others; the one that ends the reply with keep_stop alone */
    bool one_call; /* of a `reply`, without which it is TERN_EINVAL: the first call that is complete with min_tokens or
                      more ends it (TERN_FINISH_CALLBACK) */
    int logprobs;  /* TERN_EVENT_TOKEN with so many most likely tokens; 0: of the picked one alone; -1: no event */
    int prompt_logprobs; /* TERN_EVENT_SCORES, likewise.  Computes the whole prompt: the prefix cache is not asked */
    const tern_reply_params *reply; /* takes replies apart, with on_event NULL; NULL: all is TERN_EVENT_TEXT */
    tern_constraint constraint;     /* allow NULL: none.  Owned by the loop once submitted, freed by it */
    tern_embed embed;  /* hidden states after the last norm: the last token's, or the mean; max_tokens must be 0 */
    int priority;      /* higher goes first, whoever asks */
    uint64_t fair_key; /* who asks: those who ask take turns */
    double timeout_s;  /* from submission to end; 0 = none */
} tern_request;
TERN_API void tern_request_defaults(tern_request *r); /* greedy, one choice, no logprobs, -1 tokens */

/* ---- the loop ---------------------------------------------------------------------------------------------------- */

typedef struct tern_loop_params {
    int max_waiting;         /* requests in the queue, beside those that can begin at once; 0 = 256 */
    int max_waiting_per_key; /* of one fair_key; 0 = max_waiting */
    int max_choices;         /* largest n_choices; 0 = what the engine's sequences allow */
    int max_logprobs;        /* 0 = 20 */
    size_t cache_bytes;      /* of a cache of prompts' beginnings that the next request starts from; 0 = none.  It comes
                                on top of what requests take, and gives way where the engine's limit leaves no room */
    /* Other tiers of that cache: what is in memory goes there, by threads of their own, and what only they have comes
     * back before a request begins.  They change nothing but the time; what fails is a miss. */
    const char *cache_dir;                           /* a directory, made where there is none; NULL: none */
    size_t cache_dir_bytes;                          /* of all files there; 0 = 10 GiB */
    size_t cache_dir_free;                           /* bytes of its disk that stay free */
    const char *cache_shared;                        /* "redis://[USER:PASSWORD@]HOST[:PORT][/DB]"; NULL: none */
    void (*on_notice)(void *user, const char *line); /* about them, from any thread, for people; NULL: silence */
    void *notice_user;
    size_t kv_bytes;     /* what pages of requests may take; 0 = the engine's limit */
    int reply_tokens;    /* a request is let in when there is room for its prompt and so many tokens of each reply;
                            0 = 256.  Further pages are taken as replies grow.  When they run out, the youngest
                            request of the lowest priority gives up its own, and goes on, later, as if it had not */
    size_t unread_bytes; /* of events that a receiver may leave in its queue: beyond, its requests pause, and end after
                            a minute (TERN_ELIMIT); 0 = 64 MiB */
    double gap; /* prompts may stretch the time between tokens of running streams by this factor on average, and by
                   more where more wait for their first token than stream; 0 = 1.9 */
} tern_loop_params;

/* Starts the owner thread; p NULL: all defaults.  The engine must have no sequences and no other loop (TERN_EINVAL);
 * nobody else steps it or touches its sequences until tern_loop_close (tern_engine_ctx, _plan and such are legal). */
TERN_API int tern_loop_open(tern_loop **out, tern_engine *e, const tern_loop_params *p, tern_error *err);
/* Cancels what is left, sends its last events, joins the thread. */
TERN_API void tern_loop_close(tern_loop **l);
/* From now on submissions are refused (TERN_ECAPACITY); waits until all accepted requests have ended.  False: that took
 * longer than timeout_s, and the rest goes on.  Negative timeout: no limit. */
TERN_API bool tern_loop_drain(tern_loop *l, double timeout_s);

/* Accepts a request or refuses it at once: TERN_EINVAL names the field, TERN_ELIMIT says by which numbers it can never
 * fit, TERN_ECAPACITY that the queue is full or the loop drains (try again after tern_loop_retry_after).  *id is unique
 * in the loop's life; TERN_EVENT_END of it will come. */
TERN_API int tern_loop_submit(tern_loop *l, const tern_request *r, tern_events *q, void *user, uint64_t *id,
                              tern_error *err);
/* Ends a request within one step, with TERN_EVENT_CHOICE (TERN_FINISH_CANCELLED) of what had begun and TERN_EVENT_END.
 * Legal at any time with any id. */
TERN_API void tern_loop_cancel(tern_loop *l, uint64_t id);
/* Place in the queue, 0 = next; -1: it is not waiting. */
TERN_API int tern_loop_position(tern_loop *l, uint64_t id);
/* Seconds until a place in the queue is likely to be free, >= 1; from the pace of the last minutes. */
TERN_API double tern_loop_retry_after(tern_loop *l);

/* Times in seconds: bucket i counts those <= tern_times_bounds[i] and above the bound before; the last all others. */
#define TERN_TIMES_BUCKETS 16
typedef struct tern_times {
    uint64_t count;
    double sum;
    uint64_t bucket[TERN_TIMES_BUCKETS];
} tern_times;
TERN_API extern const double tern_times_bounds[TERN_TIMES_BUCKETS - 1];

typedef struct tern_cache_tier {                       /* where pages outlive memory */
    bool open;                                         /* there is this tier */
    bool off;                                          /* it is left alone for a while, because it failed */
    bool read_only;                                    /* nothing can be written there */
    size_t entries, bytes, limit;                      /* of a directory: files of all its servers */
    uint64_t read, read_bytes, written, written_bytes; /* pages and ends of prompts, by this loop */
    uint64_t dropped;                                  /* were not written: no room, no time, errors */
    uint64_t damaged;                                  /* were not what they should be, and not used */
    uint64_t errors, evictions;
} tern_cache_tier;

typedef struct tern_cache_stats {
    size_t entries, bytes, limit; /* pages and checkpoints; theirs, counted whole where sequences share them */
    uint64_t hits, misses, hit_tokens, evictions; /* prompts that were looked up; tokens found; entries given up */
    uint64_t misses_no_start; /* misses of which pages were known, but no place that a sequence can start from */
    uint64_t late;            /* prompts for which another tier was not asked, because it had not answered in time */
    uint64_t fetched;         /* entries that came back from other tiers */
    size_t unwritten;         /* entries that other tiers do not know yet */
    tern_cache_tier disk, shared;
} tern_cache_stats;

typedef struct tern_loop_stats {
    int waiting, running, decoding; /* requests in the queue, admitted; choices that generate */
    uint64_t submitted, refused, finished, cancelled, timed_out, failed; /* requests so far */
    uint64_t prompt_tokens, cached_tokens, generated_tokens;             /* processed or found so far */
    uint64_t drafted_tokens, accepted_tokens; /* guesses that were verified, and those that were right */
    uint64_t steps;
    double idle_s;               /* since the owner thread last came by; it does at least once a second, so a larger
                                    figure than the longest step means that the engine hangs */
    uint64_t preempted;          /* times that a request gave up its pages */
    size_t kv_reserved, kv_most; /* bytes that admitted requests have room for; the limit, 0 = none */
    tern_memory memory;          /* of the engine after the last step */
    tern_cache_stats cache;      /* all 0 without one */
    tern_expert_stats experts;   /* of the model: of all its engines */
    tern_times step, first, gap,
        queue; /* a step; submission to first token; between tokens of a choice; in the queue */
} tern_loop_stats;
TERN_API void tern_loop_get_stats(tern_loop *l, tern_loop_stats *out);

/* ---- cache files (tern/cache.h), as bytes: out of the loop's cache and into it; done in pieces between steps.
 * TERN_EUNSUPPORTED: there is no cache, or its plan 0 is none for a file. */

/* The longest beginning of tokens[0..n) that the cache knows and that a file can end with: all of n / 64 * 64 after a
 * request for these with max_tokens 0.  The bytes are those of tern_cache_build, of malloc, the caller's.  TERN_ENOENT:
 * nothing is known; TERN_ELIMIT: the file would have more than `most` bytes. */
TERN_API int tern_loop_cache_export(tern_loop *l, const int32_t *tokens, int n, size_t most, void **bytes,
                                    size_t *n_bytes, int *n_tokens, tern_error *err);
/* Checks all of bytes[0..n), aligned as malloc aligns, and only then keeps what is in them; *n_tokens: how many.
 * TERN_EFORMAT, TERN_EMISMATCH and TERN_EUNSUPPORTED say what is damaged or differs; TERN_ELIMIT: it can never be kept;
 * TERN_ECAPACITY: there is no room for all of it now, and the beginning of *n_tokens stays. */
TERN_API int tern_loop_cache_import(tern_loop *l, const void *bytes, size_t n, int *n_tokens, tern_error *err);

#ifdef __cplusplus
}
#endif
#endif

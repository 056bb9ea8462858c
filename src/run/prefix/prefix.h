/* run/prefix/prefix.h - beginnings of prompts that an engine has computed, kept for the next request.
 *
 *      (plan) ── page ── page ── page         64 tokens each: closed pages, shared with sequences by reference
 *                  │       └─ end             an open page's raw tile, states, last logits: where a prompt ended
 *                  └─ page ── end
 *
 * An entry is found by a hash of its tokens and all before them, and its tokens are compared.  What is found is what
 * the engine would compute: rows of prompts alone, or any rows where an engine has one arithmetic for both (exact).
 *
 * Bound by bytes.  Of entries that nothing follows, the one goes first whose tokens cost least to compute again for the
 * bytes that it takes, counted from its last use (Cao and Irani's GreedyDual-Size).
 *
 * What is in memory goes to other tiers as well, where there are such (tier/tier.h): a directory, a store that servers
 * share.  What only they have comes back before a request begins.
 *
 * Thread: the one that owns the engine. */
#ifndef TERN_RUN_PREFIX_H
#define TERN_RUN_PREFIX_H

#include "run/run.h"
#include "tern/loop.h"

/* What a cache of prefixes does for a loop.  Calls come from the loop's thread, between steps. */
struct tern_prefix {
    void *self;
    /* s is new and empty: gives it the longest beginning of tokens[0..n) that is known and returns its length.  All n
     * only with *logits, those of the last token, a view until the next call; else at most n - 1. */
    int (*lookup)(void *self, tern_seq *s, const int32_t *tokens, int n, const float **logits);
    /* s has grown; logits: of its newest token, or NULL.  over: nothing comes after it. */
    void (*offer)(void *self, tern_seq *s, const float *logits, bool over);
    /* Memory ran out: gives pages back.  False: there are none left to give. */
    bool (*shrink)(void *self);
    /* The rest may be NULL.  s is in the middle of its prompt, and had `before` tokens before the last step.  border:
     * other prompts may part from it here. */
    void (*passed)(void *self, tern_seq *s, int before, bool border);
    /* Sequences of the plan can start at borders where a step ends there: how many tokens such should be apart.  0:
     * they can start at any page.  Any thread. */
    int (*apart)(void *self, int plan);
    /* Begins to bring what of tokens[0..n) memory does not know; tokens stay where they are until `fetched` says true
     * or drop.  NULL: there is nothing to wait for. */
    void *(*fetch)(void *self, int plan, const int32_t *tokens, int n);
    bool (*fetched)(void *self, void *fetch); /* true: what will come has come, and fetch is gone */
    void (*drop)(void *self, void *fetch);
    void (*tick)(void *self); /* between steps, and when the thread was woken */
};

struct tern_prefix_cache;

struct tern_prefix_params {
    size_t bytes;                              /* pages, checkpoints, and what knows of them */
    const char *dir;                           /* NULL: no directory */
    size_t dir_bytes, dir_free;                /* of its files; of the disk that stay free */
    const char *shared;                        /* "redis://HOST:PORT"; NULL: no store */
    void (*say)(void *user, const char *line); /* from any thread */
    void *say_user;
    void (*wake)(void *user); /* from any thread: tick and fetched have something to do */
    void *wake_user;
};

/* The engine must outlive it. */
int tern_prefix_new(struct tern_prefix_cache **out, tern_engine *e, const struct tern_prefix_params *p,
                    tern_error *err);
/* Writes to the other tiers what is not written yet, within seconds, and gives all references back.  NULL is legal. */
void tern_prefix_free(struct tern_prefix_cache *x);
/* What a loop calls. */
struct tern_prefix tern_prefix_hooks(struct tern_prefix_cache *x);
void tern_prefix_get_stats(const struct tern_prefix_cache *x, tern_cache_stats *out);

/* exchange.c: cache files (tern/cache.h), in pieces between steps.  `begin` of a file that goes out, and `more`, are
 * the engine's thread's; the rest may be called from any. */
struct tern_prefix_out; /* goes out */
struct tern_prefix_in;  /* comes in */
/* Of the longest beginning of tokens[0..n) that is known and can be started from at a page's end, in at most so many
 * bytes. */
int tern_prefix_out_begin(struct tern_prefix_out **out, struct tern_prefix_cache *x, const int32_t *tokens, int n,
                          size_t most, tern_error *err);
/* over: it is complete. */
int tern_prefix_out_more(struct tern_prefix_out *o, bool *over, tern_error *err);
/* *bytes, of malloc, is the caller's. */
void tern_prefix_out_take(struct tern_prefix_out *o, void **bytes, size_t *n, int *n_tokens);
void tern_prefix_out_end(struct tern_prefix_out *o); /* NULL is legal */
/* Checks every byte, which have to stay until the end. */
int tern_prefix_in_begin(struct tern_prefix_in **out, struct tern_prefix_cache *x, const void *bytes, size_t n,
                         tern_error *err);
int tern_prefix_in_more(struct tern_prefix_in *g, bool *over, int *n_tokens, tern_error *err);
/* The engine's thread's as well, after the last `more`. */
void tern_prefix_in_end(struct tern_prefix_in *g);

#endif

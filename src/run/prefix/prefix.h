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
    /* The rest may be NULL.  s is in the middle of its prompt, and had `before` tokens before the last step. */
    void (*passed)(void *self, tern_seq *s, int before);
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

#endif

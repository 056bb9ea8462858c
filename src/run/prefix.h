/* run/prefix.h - beginnings of prompts that an engine has computed, kept in memory for the next request.
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
};

struct tern_prefix_cache;

/* Of at most so many bytes: pages, checkpoints, and what knows of them.  The engine must outlive it. */
int tern_prefix_new(struct tern_prefix_cache **out, tern_engine *e, size_t bytes, tern_error *err);
/* Gives all references back.  NULL is legal. */
void tern_prefix_free(struct tern_prefix_cache *x);
/* What a loop calls. */
struct tern_prefix tern_prefix_hooks(struct tern_prefix_cache *x);
void tern_prefix_get_stats(const struct tern_prefix_cache *x, tern_cache_stats *out);

#endif

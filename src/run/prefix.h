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

#include "run/loop.h"

struct tern_prefix_cache;

/* Of at most so many bytes: pages, checkpoints, and what knows of them.  The engine must outlive it. */
int tern_prefix_new(struct tern_prefix_cache **out, tern_engine *e, size_t bytes, tern_error *err);
/* Gives all references back.  NULL is legal. */
void tern_prefix_free(struct tern_prefix_cache *x);
/* What a loop calls (run/loop.h). */
struct tern_prefix tern_prefix_hooks(struct tern_prefix_cache *x);
void tern_prefix_get_stats(const struct tern_prefix_cache *x, tern_cache_stats *out);

#endif

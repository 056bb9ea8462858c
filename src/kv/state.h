/* kv/state.h - what cache.c, recode.c and snapshot.c call of state.c.  All do nothing where the layout has no states.
 */
#ifndef TERN_KV_STATE_H
#define TERN_KV_STATE_H

#include "kv/kv.h"

/* A new sequence's, all 0; false when no memory is left for it. */
bool tern_kv_states_new(struct tern_kv_cache *c, struct tern_kv_seq *s);
void tern_kv_states_free(struct tern_kv_cache *c, struct tern_kv_seq *s);
/* The new sequence `d` gets a copy of the state and shares those that are kept. */
void tern_kv_states_fork(struct tern_kv_cache *c, struct tern_kv_seq *d, const struct tern_kv_seq *s);
/* A step begins: states of the last one's rows are not needed any more. */
void tern_kv_states_begin(struct tern_kv_cache *c, struct tern_kv_seq *s);
/* Forgets what tern_kv_mark did. */
void tern_kv_states_abort(struct tern_kv_cache *c, struct tern_kv_seq *s);
/* Tokens of the newest state, kept or of a row of the last step, of at most n; 0: the beginning. */
int tern_kv_state_before(const struct tern_kv_seq *s, int n);
/* The state is that of n tokens again, n being one of those. */
void tern_kv_states_back(struct tern_kv_cache *c, struct tern_kv_seq *s, int n);
/* One more kept state, after `at` tokens, to be filled; false when no memory is left for it. */
bool tern_kv_states_room(struct tern_kv_cache *c, struct tern_kv_seq *s, int at);

#endif

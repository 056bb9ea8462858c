/* The states of a sequence: the one that steps change, and a few that were kept on the way. */
#include "kv/state.h"

#include <string.h>
#include "base/err.h"

bool tern_kv_states_new(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    s->state = TERN_NO_BLOCK;
    s->n_kept = 0;
    s->marked = false;
    if (!c->layout->state_bytes)
        return true;
    s->state = tern_kv_pool_get(&c->states);
    if (s->state == TERN_NO_BLOCK)
        return false;
    tern_kv_block_zero(&c->states, s->state, c->layout->state_bytes);
    return true;
}

static void drop(struct tern_kv_cache *c, struct tern_kv_seq *s, int i)
{
    tern_kv_pool_unref(&c->states, s->kept[i].block);
    memmove(s->kept + i, s->kept + i + 1, (size_t)(s->n_kept - i - 1) * sizeof *s->kept);
    s->n_kept--;
}

void tern_kv_states_free(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    while (s->n_kept)
        drop(c, s, s->n_kept - 1);
    tern_kv_pool_unref(&c->states, s->state);
    s->state = TERN_NO_BLOCK;
}

void tern_kv_states_fork(struct tern_kv_cache *c, struct tern_kv_seq *d, const struct tern_kv_seq *s)
{
    if (!c->layout->state_bytes)
        return;
    tern_kv_block_copy(&c->states, d->state, &c->states, s->state, c->layout->state_bytes);
    memcpy(d->kept, s->kept, sizeof d->kept);
    d->n_kept = s->n_kept;
    for (int i = 0; i < d->n_kept; i++)
        tern_kv_pool_ref(&c->states, d->kept[i].block);
}

/* Makes room for another one: the newest stays, and of the others goes the one whose neighbours are closest to each
 * other, so that the way back from any token grows slowly with its age. */
static void thin(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    int least = 0, gap = 0;
    if (s->n_kept < TERN_KV_KEPT_STATES)
        return;
    for (int i = 0; i + 1 < s->n_kept; i++) {
        int between = s->kept[i + 1].at - (i ? s->kept[i - 1].at : 0);
        if (i == 0 || between < gap) {
            least = i;
            gap = between;
        }
    }
    drop(c, s, least);
}

bool tern_kv_states_room(struct tern_kv_cache *c, struct tern_kv_seq *s, int at)
{
    TERN_ASSERT(s->n_kept < TERN_KV_KEPT_STATES);
    uint32_t block = tern_kv_pool_get(&c->states);
    if (block == TERN_NO_BLOCK)
        return false;
    s->kept[s->n_kept++] = (struct tern_kv_kept_state){at, block};
    return true;
}

const struct tern_kv_kept_state *tern_kv_mark(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, bool prompt)
{
    /* With several raw pages, a cut farther back than the last closed one leads to the beginning (cut_at in cache.c).
     */
    const bool often = prompt || c->layout->recent > 1;
    const int stride = often ? TERN_PAGE : TERN_KV_STATE_STRIDE, at = (s->n_tokens + n) / stride * stride;
    if (!c->layout->state_bytes || at <= s->n_tokens)
        return NULL;
    thin(c, s);
    if (!tern_kv_states_room(c, s, at))
        return NULL;
    s->marked = true;
    return &s->kept[s->n_kept - 1];
}

void tern_kv_states_abort(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    if (s->marked)
        drop(c, s, s->n_kept - 1);
    s->marked = false;
}

int tern_kv_state_before(const struct tern_kv_seq *s, int n)
{
    for (int i = s->n_kept - 1; i >= 0; i--)
        if (s->kept[i].at <= n)
            return s->kept[i].at;
    return 0;
}

void tern_kv_states_back(struct tern_kv_cache *c, struct tern_kv_seq *s, int n)
{
    const size_t bytes = c->layout->state_bytes;
    if (!bytes)
        return;
    while (s->n_kept && s->kept[s->n_kept - 1].at > n)
        drop(c, s, s->n_kept - 1);
    TERN_ASSERT(n == tern_kv_state_before(s, n));
    if (n)
        tern_kv_block_copy(&c->states, s->state, &c->states, s->kept[s->n_kept - 1].block, bytes);
    else
        tern_kv_block_zero(&c->states, s->state, bytes);
}

void tern_kv_move_states(struct tern_kv_cache *c, struct tern_kv_seq *to, const struct tern_kv_cache *from_c,
                         const struct tern_kv_seq *from)
{
    const size_t bytes = c->layout->state_bytes;
    if (!bytes)
        return;
    while (to->n_kept)
        drop(c, to, to->n_kept - 1);
    tern_kv_block_copy(&c->states, to->state, &from_c->states, from->state, bytes);
    for (int i = 0; i < from->n_kept; i++) {
        if (tern_kv_states_room(c, to, from->kept[i].at))
            tern_kv_block_copy(&c->states, to->kept[to->n_kept - 1].block, &from_c->states, from->kept[i].block, bytes);
    }
}

size_t tern_kv_state_bytes(const struct tern_kv_cache *c)
{
    return tern_kv_pool_bytes(&c->states);
}

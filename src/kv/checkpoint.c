/* Checkpoints, and the states of a sequence: the one that steps change, and those that it keeps on the way. */
#include <string.h>
#include "base/mem.h"
#include "kv/kv.h"
#include "kv/state.h"

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

static int new_checkpoint(struct tern_kv_cache *c, int at, struct tern_kv_checkpoint **out, tern_error *err)
{
    int rc = tern_alloc(out, 1, sizeof **out, err);
    if (rc < 0)
        return rc;
    struct tern_kv_checkpoint *p = *out;
    atomic_store_explicit(&p->refs, 1, memory_order_relaxed);
    p->cache = c;
    p->at = at;
    p->tile = p->state = TERN_NO_BLOCK;
    return 0;
}

/* A copy of a block in the same pool; bytes 0: none.  false: no memory. */
static bool copy_block(struct tern_kv_pool *p, uint32_t *to, uint32_t from, size_t bytes)
{
    if (!bytes)
        return true;
    *to = tern_kv_pool_get(p);
    if (*to == TERN_NO_BLOCK)
        return false;
    tern_kv_block_copy(p, *to, p, from, bytes);
    return true;
}

/* Logits are heap, and count against the budget like blocks. */
static int take_logits(struct tern_kv_checkpoint *p, const void *logits, size_t n, tern_error *err)
{
    struct tern_kv_cache *c = p->cache;
    if (!n)
        return 0;
    if (!tern_kv_budget_take(c->budget, n * sizeof(float)))
        return tern_kv_no_memory(c, "a row of logits", n * sizeof(float), err);
    int rc = tern_alloc(&p->logits, n, sizeof(float), err);
    if (rc < 0) {
        tern_kv_budget_give(c->budget, n * sizeof(float));
        return rc;
    }
    memcpy(p->logits, logits, n * sizeof(float));
    p->n_logits = n;
    atomic_fetch_add_explicit(&c->logit_bytes, n * sizeof(float), memory_order_relaxed);
    return 0;
}

/* Does a sequence of n tokens have raw tiles that later steps read? */
static bool has_raw(const struct tern_kv_layout *l, int n)
{
    bool raw = false;
    for (int g = 0; g < l->n_groups; g++)
        raw |= tern_kv_open_rows(&l->groups[g], n) || (n && l->groups[g].recent > 1);
    return raw;
}

int tern_kv_checkpoint_take(struct tern_kv_cache *c, const struct tern_kv_seq *s, const float *logits, size_t n_logits,
                            struct tern_kv_checkpoint **out, tern_error *err)
{
    int rc = 0;
    const struct tern_kv_layout *l = c->layout;
    struct tern_kv_checkpoint *p;
    *out = NULL;
    TERN_TRY(new_checkpoint(c, s->n_tokens, &p, err));
    memcpy(p->raw_from, s->raw_from, sizeof p->raw_from);
    memcpy(p->seen_from, s->seen_from, sizeof p->seen_from);
    if (!copy_block(&c->tiles, &p->tile, s->tile, has_raw(l, s->n_tokens) ? l->tile_bytes : 0) ||
        !copy_block(&c->states, &p->state, s->state, l->state_bytes))
        rc = tern_kv_no_memory(c, "a checkpoint", l->tile_bytes + l->state_bytes, err);
    if (rc == 0)
        rc = take_logits(p, logits, logits ? n_logits : 0, err);
    if (rc < 0)
        tern_kv_checkpoint_drop(p);
    else
        *out = p;
out:
    return rc;
}

struct tern_kv_checkpoint *tern_kv_checkpoint_kept(const struct tern_kv_seq *s, int n)
{
    for (int i = s->n_kept - 1; i >= 0; i--)
        if (s->kept[i]->at <= n)
            return tern_kv_checkpoint_pin(s->kept[i]);
    return NULL;
}

struct tern_kv_checkpoint *tern_kv_checkpoint_pin(struct tern_kv_checkpoint *p)
{
    uint32_t before = atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    TERN_ASSERT(before > 0);
    return p;
}

void tern_kv_checkpoint_drop(struct tern_kv_checkpoint *p)
{
    if (!p)
        return;
    uint32_t before = atomic_fetch_sub_explicit(&p->refs, 1, memory_order_acq_rel);
    TERN_ASSERT(before > 0);
    if (before > 1)
        return;
    struct tern_kv_cache *c = p->cache;
    tern_kv_pool_unref(&c->tiles, p->tile);
    tern_kv_pool_unref(&c->states, p->state);
    if (p->logits) {
        tern_kv_budget_give(c->budget, p->n_logits * sizeof(float));
        atomic_fetch_sub_explicit(&c->logit_bytes, p->n_logits * sizeof(float), memory_order_relaxed);
    }
    tern_free(p->logits);
    tern_free(p);
}

size_t tern_kv_checkpoint_bytes(const struct tern_kv_checkpoint *p)
{
    const struct tern_kv_cache *c = p->cache;
    return (p->tile != TERN_NO_BLOCK ? c->tiles.takes : 0) + (p->state != TERN_NO_BLOCK ? c->states.takes : 0) +
           p->n_logits * sizeof(float);
}

/* What comes before the tile, the states and the logits in a file. */
struct packed {
    uint32_t at, has_tile, has_state, n_logits;
    uint32_t raw_from[TERN_KV_MAX_GROUPS], seen_from[TERN_KV_MAX_GROUPS];
};

static size_t packed_bytes(const struct tern_kv_layout *l, bool tile, bool state, size_t n_logits)
{
    return sizeof(struct packed) + (tile ? l->tile_bytes : 0) + (state ? l->state_bytes : 0) + n_logits * sizeof(float);
}

size_t tern_kv_checkpoint_packed_bytes(const struct tern_kv_checkpoint *p)
{
    return packed_bytes(p->cache->layout, p->tile != TERN_NO_BLOCK, p->state != TERN_NO_BLOCK, p->n_logits);
}

size_t tern_kv_checkpoint_most_bytes(const struct tern_kv_cache *c, size_t n_logits)
{
    return packed_bytes(c->layout, true, c->layout->state_bytes > 0, n_logits);
}

void tern_kv_checkpoint_pack(const struct tern_kv_checkpoint *p, void *to)
{
    const struct tern_kv_cache *c = p->cache;
    const struct tern_kv_layout *l = c->layout;
    struct packed h = {
        (uint32_t)p->at, p->tile != TERN_NO_BLOCK, p->state != TERN_NO_BLOCK, (uint32_t)p->n_logits, {0}, {0}};
    uint8_t *b = to;
    for (int g = 0; g < l->n_groups && h.has_tile; g++) { /* else they mean nothing */
        h.raw_from[g] = (uint32_t)p->raw_from[g];
        h.seen_from[g] = (uint32_t)p->seen_from[g];
    }
    memcpy(b, &h, sizeof h);
    b += sizeof h;
    if (h.has_tile)
        tern_kv_block_read(&c->tiles, p->tile, 0, b, l->tile_bytes);
    b += h.has_tile ? l->tile_bytes : 0;
    if (h.has_state)
        tern_kv_block_read(&c->states, p->state, 0, b, l->state_bytes);
    b += h.has_state ? l->state_bytes : 0;
    if (h.n_logits)
        memcpy(b, p->logits, p->n_logits * sizeof(float));
}

static int check_packed(const struct tern_kv_cache *c, const struct packed *h, size_t bytes, tern_error *err)
{
    const struct tern_kv_layout *l = c->layout;
    if (h->has_tile > 1 || h->has_state > 1 || (h->has_state && !l->state_bytes) ||
        packed_bytes(l, h->has_tile, h->has_state, h->n_logits) != bytes)
        return tern_err_set(err, TERN_EFORMAT, "a checkpoint of %zu bytes does not have the parts that it says", bytes);
    if (h->at > (uint32_t)c->max_tokens)
        return tern_err_set(err, TERN_ECAPACITY, "a checkpoint after %u tokens, the context is %d", h->at,
                            c->max_tokens);
    for (int g = 0; g < l->n_groups; g++) {
        const uint32_t open = (uint32_t)tern_kv_closed(&l->groups[g], (int)h->at);
        if (h->raw_from[g] > open || h->seen_from[g] > open)
            return tern_err_set(err, TERN_EFORMAT, "a checkpoint after %u tokens says that page %u is raw", h->at,
                                h->raw_from[g] > open ? h->raw_from[g] : h->seen_from[g]);
    }
    return 0;
}

int tern_kv_checkpoint_unpack(struct tern_kv_cache *c, const void *from, size_t bytes, struct tern_kv_checkpoint **out,
                              tern_error *err)
{
    int rc = 0;
    const struct tern_kv_layout *l = c->layout;
    const uint8_t *b = from;
    struct tern_kv_checkpoint *p = NULL;
    struct packed h;
    *out = NULL;
    if (bytes < sizeof h)
        TERN_FAIL(err, TERN_EFORMAT, "a checkpoint ends after %zu bytes, inside its head", bytes);
    memcpy(&h, b, sizeof h);
    b += sizeof h;
    TERN_TRY(check_packed(c, &h, bytes, err));
    TERN_TRY(new_checkpoint(c, (int)h.at, &p, err));
    for (int g = 0; g < l->n_groups; g++) {
        p->raw_from[g] = (int)h.raw_from[g];
        p->seen_from[g] = (int)h.seen_from[g];
    }
    if ((h.has_tile && (p->tile = tern_kv_pool_get(&c->tiles)) == TERN_NO_BLOCK) ||
        (h.has_state && (p->state = tern_kv_pool_get(&c->states)) == TERN_NO_BLOCK))
        TERN_TRY(tern_kv_no_memory(c, "a checkpoint", l->tile_bytes + l->state_bytes, err));
    if (h.has_tile)
        tern_kv_block_write(&c->tiles, p->tile, 0, b, l->tile_bytes);
    b += h.has_tile ? l->tile_bytes : 0;
    if (h.has_state)
        tern_kv_block_write(&c->states, p->state, 0, b, l->state_bytes);
    b += h.has_state ? l->state_bytes : 0;
    TERN_TRY(take_logits(p, b, h.n_logits, err));
    *out = p;
    p = NULL;
out:
    tern_kv_checkpoint_drop(p);
    return rc;
}

/* ---- a sequence's own -------------------------------------------------------------------------------------------- */

bool tern_kv_states_new(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    s->state = TERN_NO_BLOCK;
    s->n_kept = s->n_marks = s->n_draft = 0;
    s->marked = false;
    if (!c->layout->state_bytes)
        return true;
    s->state = tern_kv_pool_get(&c->states);
    if (s->state == TERN_NO_BLOCK)
        return false;
    tern_kv_block_zero(&c->states, s->state, c->layout->state_bytes);
    return true;
}

static void drop(struct tern_kv_seq *s, int i)
{
    tern_kv_checkpoint_drop(s->kept[i]);
    memmove(s->kept + i, s->kept + i + 1, (size_t)(s->n_kept - i - 1) * sizeof *s->kept);
    s->n_kept--;
}

void tern_kv_states_begin(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    while (s->n_draft)
        tern_kv_pool_unref(&c->states, s->draft[--s->n_draft].block);
    s->n_marks = 0;
}

void tern_kv_states_free(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    tern_kv_states_begin(c, s);
    while (s->n_kept)
        drop(s, s->n_kept - 1);
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
        (void)tern_kv_checkpoint_pin(d->kept[i]);
}

/* Makes room for another one: the newest stays, and of the others goes the one whose neighbours are closest to each
 * other, so that the way back from any token grows slowly with its age. */
static void thin(struct tern_kv_seq *s)
{
    int least = 0, gap = 0;
    if (s->n_kept < TERN_KV_KEPT_STATES)
        return;
    for (int i = 0; i + 1 < s->n_kept; i++) {
        int between = s->kept[i + 1]->at - (i ? s->kept[i - 1]->at : 0);
        if (i == 0 || between < gap) {
            least = i;
            gap = between;
        }
    }
    drop(s, least);
}

bool tern_kv_states_room(struct tern_kv_cache *c, struct tern_kv_seq *s, int at)
{
    struct tern_kv_checkpoint *p;
    TERN_ASSERT(s->n_kept < TERN_KV_KEPT_STATES);
    if (new_checkpoint(c, at, &p, NULL) < 0)
        return false;
    p->state = tern_kv_pool_get(&c->states);
    if (p->state == TERN_NO_BLOCK) {
        tern_kv_checkpoint_drop(p);
        return false;
    }
    for (int g = 0; g < c->layout->n_groups; g++)
        p->raw_from[g] = p->seen_from[g] = tern_kv_closed(&c->layout->groups[g], at);
    s->kept[s->n_kept++] = p;
    return true;
}

static const struct tern_kv_checkpoint *mark_boundary(struct tern_kv_cache *c, struct tern_kv_seq *s, int n,
                                                      bool prompt)
{
    /* With several raw pages, a cut farther back than the last closed one leads to the beginning (cut_at in cache.c).
     */
    const bool often = prompt || c->layout->recent > 1;
    const int decode = c->layout->windows ? TERN_KV_WINDOW_STRIDE : TERN_KV_STATE_STRIDE;
    const int stride = often ? TERN_PAGE : decode, at = (s->n_tokens + n) / stride * stride;
    if (at <= s->n_tokens)
        return NULL;
    thin(s);
    if (!tern_kv_states_room(c, s, at))
        return NULL;
    s->marked = true;
    return s->kept[s->n_kept - 1];
}

/* The newest come first, for they are taken back most. */
static void mark_drafts(struct tern_kv_cache *c, struct tern_kv_seq *s, int n)
{
    int from = n;
    while (from > 1 && n - from < c->layout->drafts) {
        const uint32_t block = tern_kv_pool_get(&c->states);
        if (block == TERN_NO_BLOCK)
            break;
        s->draft[n - from] = (struct tern_dev_mark){block, s->n_tokens + from - 1};
        from--;
    }
    s->n_draft = n - from;
    for (int i = 0, j = s->n_draft - 1; i < j; i++, j--) {
        const struct tern_dev_mark t = s->draft[i];
        s->draft[i] = s->draft[j];
        s->draft[j] = t;
    }
}

const struct tern_kv_checkpoint *tern_kv_mark(struct tern_kv_cache *c, struct tern_kv_seq *s, int n, bool prompt)
{
    if (!c->layout->state_bytes)
        return NULL;
    const struct tern_kv_checkpoint *kept = mark_boundary(c, s, n, prompt);
    if (!prompt)
        mark_drafts(c, s, n);
    bool due = kept != NULL;
    for (int i = 0; i < s->n_draft; i++) {
        if (due && kept->at <= s->draft[i].at) {
            s->marks[s->n_marks++] = (struct tern_dev_mark){kept->state, kept->at - s->n_tokens};
            due = false;
        }
        s->marks[s->n_marks++] = (struct tern_dev_mark){s->draft[i].block, s->draft[i].at - s->n_tokens};
    }
    if (due)
        s->marks[s->n_marks++] = (struct tern_dev_mark){kept->state, kept->at - s->n_tokens};
    return kept;
}

void tern_kv_states_abort(struct tern_kv_cache *c, struct tern_kv_seq *s)
{
    tern_kv_states_begin(c, s);
    if (s->marked)
        drop(s, s->n_kept - 1);
    s->marked = false;
}

int tern_kv_state_before(const struct tern_kv_seq *s, int n)
{
    int best = 0;
    for (int i = 0; i < s->n_draft; i++)
        best = s->draft[i].at <= n && s->draft[i].at > best ? s->draft[i].at : best;
    for (int i = 0; i < s->n_kept; i++)
        best = s->kept[i]->at <= n && s->kept[i]->at > best ? s->kept[i]->at : best;
    return best;
}

void tern_kv_states_back(struct tern_kv_cache *c, struct tern_kv_seq *s, int n)
{
    const size_t bytes = c->layout->state_bytes;
    if (!bytes)
        return;
    TERN_ASSERT(n == tern_kv_state_before(s, n));
    while (s->n_kept && s->kept[s->n_kept - 1]->at > n)
        drop(s, s->n_kept - 1);
    while (s->n_draft && s->draft[s->n_draft - 1].at > n)
        tern_kv_pool_unref(&c->states, s->draft[--s->n_draft].block);
    if (s->n_draft && s->draft[s->n_draft - 1].at == n) { /* it becomes the state itself */
        tern_kv_pool_unref(&c->states, s->state);
        s->state = s->draft[--s->n_draft].block;
    } else if (n) {
        tern_kv_block_copy(&c->states, s->state, &c->states, s->kept[s->n_kept - 1]->state, bytes);
    } else {
        tern_kv_block_zero(&c->states, s->state, bytes);
    }
}

void tern_kv_move_states(struct tern_kv_cache *c, struct tern_kv_seq *to, struct tern_kv_cache *from_c,
                         struct tern_kv_seq *from)
{
    const size_t bytes = c->layout->state_bytes;
    if (!bytes)
        return;
    while (to->n_kept)
        drop(to, to->n_kept - 1);
    tern_kv_block_copy(&c->states, to->state, &from_c->states, from->state, bytes);
    tern_kv_pool_unref(&from_c->states, from->state);
    from->state = TERN_NO_BLOCK;
    for (; from->n_kept; drop(from, 0))
        if (tern_kv_states_room(c, to, from->kept[0]->at))
            tern_kv_block_copy(&c->states, to->kept[to->n_kept - 1]->state, &from_c->states, from->kept[0]->state,
                               bytes);
}

size_t tern_kv_state_bytes(const struct tern_kv_cache *c)
{
    return tern_kv_pool_bytes(&c->states);
}

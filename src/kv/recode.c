/* A sequence moves to another cache of the same model, page by page: what a page takes there is asked for when its turn
 * comes, and what it took here is given back as soon as it is there. */
#include "kv/kv.h"

#include <string.h>
#include "kv/state.h"

/* ---- what it takes ----------------------------------------------------------------------------------------------- */

static bool is_held_once(const struct tern_kv_pool *p, uint32_t block)
{
    return atomic_load_explicit(&p->refs[block], memory_order_relaxed) == 1;
}

static bool has_room(const struct tern_kv_pool *p, size_t n)
{
    return n <= p->n_blocks - atomic_load_explicit(&p->n_used, memory_order_relaxed);
}

/* Bytes beyond what is in use now, at most, on the way; blocks of each of the new cache's groups. */
static size_t most_bytes(const struct tern_kv_move *m, size_t n_blocks[TERN_KV_MAX_GROUPS])
{
    const struct tern_kv_cache *to = m->to_cache, *from = m->from_cache;
    int64_t now = (int64_t)to->tiles.takes;
    int64_t most = now + (int64_t)(to->layout->state_bytes ? to->states.takes : 0);
    memset(n_blocks, 0, TERN_KV_MAX_GROUPS * sizeof *n_blocks);
    for (int page = 0; page < m->from->n_tokens / TERN_PAGE; page++) {
        if (page == 0 && to->layout->sink_bytes)
            now += (int64_t)to->sinks.takes;
        for (int g = 0; g < to->layout->n_groups; g++)
            if (page >= m->from->table[g].first) {
                now += (int64_t)to->pool[g].takes;
                n_blocks[g]++;
            }
        most = now > most ? now : most;
        for (int g = 0; g < to->layout->n_groups; g++) {
            const struct tern_kv_table *t = &m->from->table[g];
            if (page >= t->first && is_held_once(&from->pool[g], t->pages[page - t->first]))
                now -= (int64_t)from->pool[g].takes;
        }
    }
    return (size_t)most;
}

int tern_kv_can_move(const struct tern_kv_layout *from, const struct tern_kv_layout *to, tern_error *err)
{
    if (to->n_spans != to->n_layers || from->n_spans != from->n_layers)
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "the KV plan of this model cannot change: it keeps rows of several tokens");
    for (int i = 0; i < to->n_layers; i++)
        if (!tern_kv_same_reach(to->layers[i].reach, from->layers[i].reach))
            return tern_err_set(err, TERN_EUNSUPPORTED,
                                "a sequence cannot go from --kv %s to --kv %s: max= and first= decide which tokens it "
                                "still has, and differ",
                                from->text, to->text);
    return 0;
}

static int check(const struct tern_kv_move *m, tern_error *err)
{
    int rc = 0;
    const struct tern_kv_cache *c = m->to_cache;
    const struct tern_kv_layout *l = c->layout, *old = m->from_cache->layout;
    size_t n_blocks[TERN_KV_MAX_GROUPS];
    TERN_TRY(tern_kv_can_move(old, l, err));
    TERN_ASSERT(l->n_groups == old->n_groups && c->max_tokens == m->from_cache->max_tokens);
    const size_t most = most_bytes(m, n_blocks), used = atomic_load_explicit(&c->budget->used, memory_order_relaxed);
    bool fits = used <= c->budget->limit && most <= c->budget->limit - used && has_room(&c->tiles, 1) &&
                has_room(&c->sinks, 1) && (!l->state_bytes || has_room(&c->states, 1));
    for (int g = 0; g < l->n_groups; g++)
        fits &= has_room(&c->pool[g], n_blocks[g]);
    if (!fits)
        rc = tern_kv_no_memory(c, "a sequence on its way to another plan", most, err);
out:
    return rc;
}

/* ---- the way ----------------------------------------------------------------------------------------------------- */

static void note_most(struct tern_kv_move *m)
{
    const size_t used = atomic_load_explicit(&m->to_cache->budget->used, memory_order_relaxed);
    m->most = used > m->most ? used : m->most;
}

int tern_kv_move_open(struct tern_kv_move *m, tern_error *err)
{
    m->to = NULL;
    int rc = check(m, err);
    if (rc == 0)
        rc = tern_kv_seq_new(m->to_cache, &m->to, err);
    if (rc < 0)
        return rc;
    note_most(m);
    /* States first: a window keeps the pages that those which are kept need. */
    tern_kv_move_states(m->to_cache, m->to, m->from_cache, m->from);
    tern_kv_states_free(m->from_cache, m->from);
    return 0;
}

int tern_kv_move_begin(struct tern_kv_move *m, int *n, tern_error *err)
{
    struct tern_kv_seq *to = m->to;
    const int left = m->from->n_tokens - to->n_tokens, page = to->n_tokens / TERN_PAGE;
    const int in_page = TERN_PAGE - to->n_tokens % TERN_PAGE, most = m->to_cache->max_step;
    *n = left < in_page ? left : in_page;
    *n = *n < most ? *n : most;
    for (int g = 0; g < m->to_cache->layout->n_groups; g++)
        if (m->from->table[g].first > page && to->table[g].first <= page) /* a window has passed it */
            to->table[g].first = page + 1;
    int rc = *n ? tern_kv_begin(m->to_cache, to, *n, err) : 0;
    note_most(m);
    return rc;
}

void tern_kv_move_commit(struct tern_kv_move *m, int n)
{
    struct tern_kv_seq *from = m->from;
    tern_kv_commit(m->to_cache, m->to, n);
    for (int g = 0; g < m->from_cache->layout->n_groups; g++) {
        struct tern_kv_table *t = &from->table[g];
        const int n_done = m->to->n_tokens / TERN_PAGE - t->first;
        if (n_done <= 0)
            continue;
        for (int i = 0; i < n_done; i++)
            tern_kv_pool_unref(&m->from_cache->pool[g], t->pages[i]);
        memmove(t->pages, t->pages + n_done, (size_t)(t->n - n_done) * sizeof *t->pages);
        t->first += n_done;
        t->n -= n_done;
        tern_kv_pool_settle(&m->from_cache->pool[g]);
    }
}

void tern_kv_move_close(struct tern_kv_move *m)
{
    tern_kv_seq_free(m->from_cache, m->from);
    m->from = NULL;
}

size_t tern_kv_seq_bytes(const struct tern_kv_cache *c, const struct tern_kv_seq *s)
{
    size_t n = c->tiles.takes + (s->sink == TERN_NO_BLOCK ? 0 : c->sinks.takes);
    for (int g = 0; g < c->layout->n_groups; g++)
        n += (size_t)s->table[g].n * c->pool[g].takes;
    return n;
}

bool tern_kv_seq_coded(const struct tern_kv_cache *c, const struct tern_kv_seq *s)
{
    const struct tern_kv_layout *l = c->layout;
    for (int i = 0; i < l->n_spans; i++) {
        const struct tern_kv_layer *y = &l->layers[i];
        const int g = l->group_of[i];
        if (g < 0 || (y->k.codec->raw && y->v.codec->raw))
            continue;
        if (s->table[g].n && s->table[g].first <= tern_kv_closed(&l->groups[g], s->n_tokens) - y->recent)
            return true;
    }
    return false;
}

/* Where a text stands: a state, and what may come next. */
#include <string.h>
#include "base/mem.h"
#include "grammar/follow.h"

struct tern_gr_matcher {
    tern_grammar *g;
    const struct tern_gr_vocab *v;
    struct tern_gr_follow *f;
    uint32_t state;
    bool begins; /* nothing of the text is there */
    bool complete;
};

/* The follow that new matchers use; a fresh one where that is full or another vocabulary's. */
static int current(tern_grammar *g, const struct tern_gr_vocab *v, struct tern_gr_follow **out, tern_error *err)
{
    int rc = 0;
    struct tern_gr_follow *fresh = NULL;
    (void)pthread_mutex_lock(&g->lock);
    if (!g->met || g->met->vocab != v || atomic_load(&g->met->full)) {
        TERN_TRY(tern_gr_follow_new(&fresh, g, v, tern_gr_vocab_longest(v), err));
        tern_gr_follow_free(g->met);
        g->met = fresh;
    }
    *out = g->met;
    atomic_fetch_add(&g->met->refs, 1);
out:
    (void)pthread_mutex_unlock(&g->lock);
    return rc;
}

int tern_gr_matcher_new(struct tern_gr_matcher **out, const tern_grammar *g, const struct tern_gr_vocab *v,
                        tern_error *err)
{
    int rc = 0;
    struct tern_gr_matcher *m = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&m, 1, sizeof *m, err));
    m->g = tern_gr_ref(g);
    m->v = v;
    m->begins = true;
    TERN_TRY(current(m->g, v, &m->f, err));
    m->state = m->f->start;
    (void)pthread_mutex_lock(&m->f->lock);
    m->complete = m->f->states[m->state].complete;
    (void)pthread_mutex_unlock(&m->f->lock);
    *out = m;
    m = NULL;
out:
    tern_gr_matcher_free(m);
    return rc;
}

int tern_gr_matcher_copy(struct tern_gr_matcher **out, const struct tern_gr_matcher *m, tern_error *err)
{
    int rc = tern_alloc(out, 1, sizeof **out, err);
    if (rc < 0)
        return rc;
    **out = *m;
    (void)tern_gr_ref(m->g);
    atomic_fetch_add(&m->f->refs, 1);
    return 0;
}

void tern_gr_matcher_free(struct tern_gr_matcher *m)
{
    if (!m)
        return;
    tern_gr_follow_free(m->f);
    tern_grammar_free(m->g);
    tern_free(m);
}

/* Moves to a follow with room. */
static int make_room(struct tern_gr_matcher *m, tern_error *err)
{
    int rc = 0;
    struct tern_gr_follow *to;
    if (!atomic_load(&m->f->full))
        return 0;
    TERN_TRY(current(m->g, m->v, &to, err));
    (void)pthread_mutex_lock(&m->f->lock); /* the older one first */
    (void)pthread_mutex_lock(&to->lock);
    rc = tern_gr_move(to, m->f, m->state, &m->state, err);
    (void)pthread_mutex_unlock(&to->lock);
    (void)pthread_mutex_unlock(&m->f->lock);
    tern_gr_follow_free(m->f);
    m->f = to;
out:
    return rc;
}

/* The lock is held. */
static int follow(struct tern_gr_matcher *m, const char *p, size_t n, int mark, tern_error *err)
{
    int rc = 0;
    uint32_t s = m->state;
    m->f->work = 0;
    if (mark >= 0)
        TERN_TRY(tern_gr_next(m->f, s, (uint32_t)(m->g->n_classes + mark), &s, err));
    for (size_t i = 0; i < n && s > TERN_GR_LOST; i++)
        TERN_TRY(tern_gr_next(m->f, s, m->g->class_of[(unsigned char)p[i]], &s, err));
    m->state = s;
    m->complete = m->f->states[s].complete;
    m->begins = m->begins && n == 0;
    if (s == TERN_GR_LOST)
        TERN_FAIL(err, TERN_ELIMIT, "the grammar can be read in too many ways here");
out:
    return rc;
}

int tern_gr_push(struct tern_gr_matcher *m, const char *p, size_t n, bool *alive, tern_error *err)
{
    int rc = 0;
    for (size_t at = 0; at < n && rc == 0; at += 256) { /* so that it can move in the middle of a long text */
        rc = make_room(m, err);
        if (rc < 0)
            return rc;
        (void)pthread_mutex_lock(&m->f->lock);
        rc = follow(m, p + at, n - at < 256 ? n - at : 256, -1, err);
        (void)pthread_mutex_unlock(&m->f->lock);
    }
    *alive = m->state != TERN_GR_DEAD;
    return rc;
}

bool tern_gr_complete(const struct tern_gr_matcher *m)
{
    return m->complete;
}

static int find_mask(struct tern_gr_matcher *m, uint32_t *mask, tern_error *err)
{
    int rc = 0;
    uint32_t s, *fresh = NULL;
    size_t words = tern_gr_vocab_words(m->v);
    m->f->work = 0;
    TERN_TRY(tern_gr_rounded(m->f, m->state, &s, err));
    if (!m->f->states[s].mask[m->begins]) {
        TERN_TRY(tern_alloc(&fresh, words, sizeof *fresh, err));
        TERN_TRY(tern_gr_vocab_mask(m->v, m->f, s, m->begins, fresh, err));
        m->f->states[s].mask[m->begins] = fresh;
        m->f->bytes += words * sizeof *fresh;
        fresh = NULL;
    }
    memcpy(mask, m->f->states[s].mask[m->begins], words * sizeof *mask);
out:
    tern_free(fresh);
    return rc;
}

int tern_gr_mask(struct tern_gr_matcher *m, uint32_t *mask, tern_error *err)
{
    int rc = make_room(m, err);
    if (rc < 0)
        return rc;
    (void)pthread_mutex_lock(&m->f->lock);
    rc = find_mask(m, mask, err);
    (void)pthread_mutex_unlock(&m->f->lock);
    return rc;
}

int tern_gr_take(struct tern_gr_matcher *m, int32_t id, tern_error *err)
{
    const char *p;
    size_t n;
    int mark, rc = make_room(m, err);
    bool ends;
    tern_gr_vocab_token(m->v, m->g, id, m->begins, &p, &n, &mark, &ends);
    if (rc < 0 || (ends && m->complete))
        return rc;
    (void)pthread_mutex_lock(&m->f->lock);
    rc = n || mark >= 0 ? follow(m, p, n, mark, err) : 0;
    (void)pthread_mutex_unlock(&m->f->lock);
    if (rc == 0 && (m->state == TERN_GR_DEAD || (!n && mark < 0)))
        return tern_err_set(err, TERN_EINVAL, "the grammar does not allow token %d here", id);
    return rc;
}

int tern_grammar_check(const tern_grammar *g, const char *text, size_t n, tern_grammar_fit *fit, tern_error *err)
{
    int rc = 0;
    bool alive;
    struct tern_gr_matcher *m = NULL;
    TERN_TRY(tern_gr_matcher_new(&m, g, NULL, err));
    TERN_TRY(tern_gr_push(m, text, n, &alive, err));
    *fit = !alive ? TERN_GRAMMAR_NOT : m->complete ? TERN_GRAMMAR_WHOLE : TERN_GRAMMAR_BEGIN;
out:
    tern_gr_matcher_free(m);
    return rc;
}

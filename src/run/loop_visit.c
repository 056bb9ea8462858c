/* What other threads have the loop's do between two steps, and wait for: cache files of its cache. */
#include "base/mem.h"
#include "run/loop.h"

struct tern_visit {
    struct tern_visit *next;
    int (*run)(void *arg, bool *over, tern_error *err); /* until it is over */
    void *arg;
    bool over, done;
    int rc;
    tern_error *err;
};

/* Waits until the loop's thread has run it. */
static int visit(tern_loop *l, int (*run)(void *arg, bool *over, tern_error *err), void *arg, tern_error *err)
{
    struct tern_visit v = {.run = run, .arg = arg, .err = err};
    (void)pthread_mutex_lock(&l->lock);
    if (l->closing) {
        (void)pthread_mutex_unlock(&l->lock);
        return tern_err_set(err, TERN_ECANCELLED, "cancelled: the engine stops");
    }
    struct tern_visit **at = &l->visits;
    while (*at)
        at = &(*at)->next;
    *at = &v;
    l->poked = true;
    (void)pthread_cond_signal(&l->wake);
    while (!v.done)
        (void)pthread_cond_wait(&l->quiet, &l->lock);
    (void)pthread_mutex_unlock(&l->lock);
    return v.rc;
}

/* A piece of each; after the last step of a loop that closes, all of them. */
void tern_loop_visits(tern_loop *l, bool last)
{
    (void)pthread_mutex_lock(&l->lock);
    struct tern_visit *all = l->visits;
    (void)pthread_mutex_unlock(&l->lock);
    if (!all) /* those that come meanwhile are for the next time */
        return;
    for (struct tern_visit *v = all; v;) {
        do
            v->rc = v->run(v->arg, &v->over, v->err);
        while (!v->over && last);
        (void)pthread_mutex_lock(&l->lock);
        v = v->next;
        (void)pthread_mutex_unlock(&l->lock);
    }
    (void)pthread_mutex_lock(&l->lock);
    for (struct tern_visit **at = &l->visits; *at;) {
        struct tern_visit *v = *at;
        if (v->over) {
            *at = v->next;
            v->done = true; /* and v is gone when the lock is free */
        } else {
            l->poked = true;
            at = &v->next;
        }
    }
    (void)pthread_cond_broadcast(&l->quiet);
    (void)pthread_mutex_unlock(&l->lock);
}

/* ---- cache files ------------------------------------------------------------------------------------------------- */

struct leaving {
    struct tern_prefix_cache *cache;
    const int32_t *tokens;
    int n;
    size_t most;
    struct tern_prefix_out *out;
};

static int leave(void *arg, bool *over, tern_error *err)
{
    struct leaving *g = arg;
    int rc = g->out ? 0 : tern_prefix_out_begin(&g->out, g->cache, g->tokens, g->n, g->most, err);
    if (rc == 0)
        rc = tern_prefix_out_more(g->out, over, err);
    *over = *over || rc < 0;
    return rc;
}

static int need_cache(const tern_loop *l, tern_error *err)
{
    return l->cache ? 0 : tern_err_set(err, TERN_EUNSUPPORTED, "there is no prefix cache");
}

int tern_loop_cache_export(tern_loop *l, const int32_t *tokens, int n, size_t most, void **bytes, size_t *n_bytes,
                           int *n_tokens, tern_error *err)
{
    int rc = 0;
    struct leaving g = {.cache = l->cache, .tokens = tokens, .n = n, .most = most};
    *bytes = NULL;
    *n_bytes = 0;
    *n_tokens = 0;
    TERN_TRY(need_cache(l, err));
    if (n > l->e->ctx)
        TERN_FAIL(err, TERN_ELIMIT, "the prompt has %d tokens and the context holds %d", n, l->e->ctx);
    TERN_TRY(visit(l, leave, &g, err));
    tern_prefix_out_take(g.out, bytes, n_bytes, n_tokens);
out:
    tern_prefix_out_end(g.out);
    return rc;
}

struct arriving {
    struct tern_prefix_in *in;
    int n_tokens;
};

static int arrive(void *arg, bool *over, tern_error *err)
{
    struct arriving *g = arg;
    int rc = tern_prefix_in_more(g->in, over, &g->n_tokens, err);
    if (*over) {
        tern_prefix_in_end(g->in);
        g->in = NULL;
    }
    return rc;
}

int tern_loop_cache_import(tern_loop *l, const void *bytes, size_t n, int *n_tokens, tern_error *err)
{
    struct arriving g = {0};
    *n_tokens = 0;
    int rc = need_cache(l, err);
    if (rc == 0)
        rc = tern_prefix_in_begin(&g.in, l->cache, bytes, n, err);
    if (rc < 0)
        return rc;
    rc = visit(l, arrive, &g, err);
    tern_prefix_in_end(g.in); /* the loop has not begun with it */
    *n_tokens = g.n_tokens;
    return rc;
}

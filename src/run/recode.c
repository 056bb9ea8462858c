/* Plans that change while an engine is open: another one for the engine, another one for a sequence. */
#include "run/run.h"

#include "base/clock.h"

/* ---- an engine's plans ------------------------------------------------------------------------------------------- */

/* The plan of an open engine with the same pages; -1: none. */
static int same_plan(const tern_engine *e, const tern_kv_plan *p)
{
    for (int i = 0; i < e->n_plans; i++)
        if (e->plans[i]->layout->digest == p->layout->digest)
            return i;
    return -1;
}

/* A device and room for steps that know all caches; the old ones go when the new ones stand. */
static int reopen_forward(tern_engine *e, tern_error *err)
{
    int rc = 0;
    struct tern_dev *dev = NULL;
    struct tern_forward *forward = NULL;
    TERN_TRY(e->dev->ops->open(&dev, e->dev->ops, e->pool, err));
    TERN_TRY(tern_forward_new(&forward, e->model->net, e->caches, e->n_caches, dev, e->chunk, e->chunk, e->max_seqs,
                              e->exact, e->decode16, e->prompt8, err));
    tern_forward_free(e->forward);
    for (int i = 0; i < e->n_caches; i++)
        tern_kv_cache_hand(&e->caches[i], dev);
    tern_dev_close(e->dev);
    e->forward = forward;
    e->dev = dev;
    return 0;
out:
    tern_dev_close(dev);
    return rc;
}

/* The raw cache for the prompt in hand stands behind the plans; it is empty between calls. */
static void shift_raw(tern_engine *e, int from, int to)
{
    if (e->n_caches == e->n_plans)
        return;
    tern_kv_cache_move(&e->caches[to], &e->caches[from]);
    e->plans[to] = e->plans[from];
    e->plans[from] = NULL;
}

static int open_cache(tern_engine *e, tern_kv_plan *p, const char *kv, tern_error *err)
{
    int rc = 0;
    const int at = e->n_plans;
    const struct tern_kv_room room = {e->max_seqs, e->ctx, e->chunk, &e->kv_budget, e->dev};
    shift_raw(e, at, at + 1);
    e->plans[at] = p;
    TERN_TRY(tern_kv_cache_init(&e->caches[at], p->layout, &room, err));
    e->n_caches++;
    rc = tern_engine_check_kv(e, at, kv, err);
    rc = rc < 0 ? rc : reopen_forward(e, err);
    if (rc == 0) {
        e->n_plans++;
        return 0;
    }
    e->n_caches--;
    tern_kv_cache_clear(&e->caches[at]);
out:
    e->plans[at] = NULL;
    shift_raw(e, at + 1, at);
    return rc;
}

int tern_engine_add_plan(tern_engine *e, const char *kv, bool strict, int *plan, tern_error *err)
{
    int rc = 0;
    tern_kv_plan *p = NULL;
    TERN_TRY(tern_plan_of_ctx(&p, e->model, e->ctx, kv, strict, e->mtp, err));
    *plan = same_plan(e, p);
    if (*plan >= 0)
        goto out;
    if (e->n_plans == e->max_plans)
        TERN_FAIL(err, TERN_ECAPACITY, "the engine has %d KV plans and room for no more", e->n_plans);
    tern_kv_layout_spare(p->layout, e->drafts);
    if (e->n_caches > e->n_plans)
        TERN_TRY(tern_prompt_check_plan(p->layout, err));
    TERN_TRY(open_cache(e, p, kv, err));
    *plan = e->n_plans - 1;
    p = NULL;
out:
    tern_kv_plan_free(p);
    return rc;
}

/* ---- a sequence's plan ------------------------------------------------------------------------------------------- */

int tern_seq_plan(const tern_seq *s)
{
    return s->plan;
}

static int check(const tern_seq *s, int plan, tern_error *err)
{
    if (s->ahead || s->torn)
        return tern_seq_check_whole(s, err);
    const tern_engine *e = s->engine;
    if (plan < 0 || plan >= e->n_plans)
        return tern_err_set(err, TERN_EINVAL, "KV plan %d is outside 0..%d", plan, e->n_plans - 1);
    return plan == s->plan ? 0 : tern_kv_can_move(e->plans[s->plan]->layout, e->plans[plan]->layout, err);
}

/* A device may only know how to read what is raw. */
static int check_device(const tern_engine *e, const struct tern_kv_layout *from, tern_error *err)
{
    for (int i = 0; !e->dev->ops->decodes && i < from->n_layers; i++) {
        const struct tern_kv_layer *l = &from->layers[i];
        if (from->group_of[i] >= 0 && (!l->k.codec->raw || !l->v.codec->raw || l->ring > 1))
            return tern_err_set(err, TERN_EUNSUPPORTED,
                                "the device %s cannot take a sequence out of --kv %s: it reads no codes back",
                                e->dev->ops->name, from->text);
    }
    return 0;
}

/* All rows, a page at a time, for which there is memory: tern_kv_move_open has made sure. */
static void copy_pages(tern_engine *e, struct tern_kv_move *m, int plan_from, int plan_to)
{
    for (int n;;) {
        int rc = tern_kv_move_begin(m, &n, NULL);
        TERN_ASSERT(rc == 0);
        if (!n)
            return;
        struct tern_forward_job to = {.seq = m->to, .plan = plan_to, .n_rows = n, .pos0 = m->to->n_tokens}, from = to;
        from.seq = m->from;
        from.plan = plan_from;
        tern_forward_copy(e->forward, &to, &from);
        tern_kv_move_commit(m, n);
    }
}

int tern_seq_recode(tern_seq *s, int plan, tern_recoded *out, tern_error *err)
{
    int rc = 0;
    tern_engine *e = s->engine;
    tern_recoded r = {.n_tokens = s->kv->n_tokens, .plan_before = s->plan};
    TERN_TRY(check(s, plan, err));
    struct tern_kv_move m = {.to_cache = &e->caches[plan], .from_cache = &e->caches[s->plan], .from = s->kv};
    const double start = tern_now();
    r.bytes_before = r.bytes_after = tern_kv_seq_bytes(m.from_cache, s->kv);
    const size_t before = atomic_load_explicit(&e->kv_budget.used, memory_order_relaxed);
    m.most = before;
    if (plan != s->plan) {
        TERN_TRY(check_device(e, m.from_cache->layout, err));
        r.decoded = tern_kv_seq_coded(m.from_cache, s->kv);
        TERN_TRY(tern_kv_move_open(&m, err));
        copy_pages(e, &m, s->plan, plan);
        tern_kv_move_close(&m);
        s->kv = m.to;
        s->plan = plan;
        r.bytes_after = tern_kv_seq_bytes(m.to_cache, s->kv);
    }
    s->recode_at = 0;
    r.bytes_more = m.most - before;
    r.seconds = tern_now() - start;
    if (out)
        *out = r;
out:
    return rc;
}

int tern_seq_recode_at(tern_seq *s, int n, int plan, tern_error *err)
{
    int rc = check(s, plan, err);
    if (rc < 0)
        return rc;
    if (n < 0 || n > s->engine->ctx)
        return tern_err_set(err, TERN_EINVAL, "a sequence cannot change its plan at %d tokens: the context is %d", n,
                            s->engine->ctx);
    if (s->engine->n_caches > s->engine->n_plans)
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "the engine codes prompts at their ends: a sequence has no other place to change its plan");
    s->recode_at = n > 0 ? n : 1;
    s->recode_plan = plan;
    return tern_seq_recode_due(s, err);
}

int tern_seq_recode_due(tern_seq *s, tern_error *err)
{
    if (!s->recode_at || s->kv->n_tokens < s->recode_at)
        return 0;
    return tern_seq_recode(s, s->recode_plan, NULL, err);
}

int tern_seq_recode_room(const tern_seq *s, int n)
{
    const int room = s->recode_at - s->kv->n_tokens;
    return s->recode_at && room < n ? room : n;
}

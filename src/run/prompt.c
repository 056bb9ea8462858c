/* Prompts that are coded when they are complete: they live in a raw cache until then, and what that holds is appended
 * to the coded one as if a step had computed it.  So tiles, first tokens and windows need nothing of their own. */
#include "run/run.h"

static struct tern_kv_cache *raw_cache(const tern_engine *e)
{
    return e->n_caches > e->n_plans ? &e->caches[e->n_plans] : NULL;
}

/* Of a plan's sides, those that keep f32. */
static int count_f32(const struct tern_kv_layout *l, int *n_sides)
{
    int n = 0;
    *n_sides = 0;
    for (int i = 0; i < l->n_layers; i++)
        if (l->group_of[i] >= 0) {
            n += l->layers[i].k.raw32 + l->layers[i].v.raw32;
            *n_sides += 2;
        }
    return n;
}

/* The raw cache keeps f16, so f32 must be all of a plan, which then is coded as it comes: nothing in it changes. */
int tern_prompt_check_plan(const struct tern_kv_layout *l, tern_error *err)
{
    int n_sides, n = count_f32(l, &n_sides);
    if (l->spec.max)
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "--kv %s: max=%d forgets tokens while a prompt is read, and a prompt that is coded at its "
                            "end is kept as a whole until then",
                            l->text, l->spec.max);
    if (n == 0 || n == n_sides)
        return 0;
    return tern_err_set(
        err, TERN_EUNSUPPORTED,
        "--kv %s: f32 stands beside other schemes, and a prompt that is coded at its end is kept in 16 bits", l->text);
}

int tern_prompt_open(tern_engine *e, tern_error *err)
{
    int rc = 0, at = e->n_plans;
    const struct tern_kv_room room = {1, e->ctx, e->chunk, &e->kv_budget, e->dev};
    for (int i = 0; i < e->n_plans; i++)
        TERN_TRY(tern_prompt_check_plan(e->plans[i]->layout, err));
    TERN_TRY(tern_plan_of_ctx(&e->plans[at], e->model, e->ctx, "f16", false, e->mtp, err));
    e->n_caches = at + 1;
    TERN_TRY(tern_kv_cache_init(&e->caches[at], e->plans[at]->layout, &room, err));
out:
    return rc;
}

int tern_prompt_fits(const tern_engine *e, int plan, int n_tokens, size_t have, tern_error *err)
{
    const double gib = 1 << 30;
    const struct tern_kv_cache *both[2] = {raw_cache(e), &e->caches[plan]};
    double need[2] = {0};
    for (int c = 0; c < 2; c++)
        for (int g = 0; g < both[c]->layout->n_groups; g++) {
            int pages = n_tokens / TERN_PAGE, most = both[c]->seqs[0].table[g].cap;
            need[c] += (double)both[c]->layout->groups[g].page_bytes * (pages < most ? pages : most);
        }
    if (need[0] + need[1] <= (double)have)
        return 0;
    return tern_err_set(
        err, TERN_ELIMIT,
        "a prompt of %d tokens that is coded at its end takes %.2f GiB in 16 bits and %.2f GiB in codes, "
        "and the machine has %.2f GiB",
        n_tokens, need[0] / gib, need[1] / gib, (double)have / gib);
}

int tern_prompt_begin(tern_seq *s, int n_tokens, struct tern_kv_seq **coded, tern_error *err)
{
    int rc = 0, n_sides;
    tern_engine *e = s->engine;
    struct tern_kv_seq *raw;
    tern_machine m;
    *coded = NULL;
    if (!raw_cache(e) || s->kv->n_tokens || count_f32(e->plans[s->plan]->layout, &n_sides))
        return 0;
    tern_machine_describe(&m);
    if (m.memory_bytes)
        TERN_TRY(tern_prompt_fits(e, s->plan, n_tokens, m.memory_bytes, err));
    TERN_TRY(tern_kv_seq_new(raw_cache(e), &raw, err));
    *coded = s->kv;
    s->kv = raw;
    s->plan = e->n_plans;
out:
    return rc;
}

int tern_prompt_end(tern_seq *s, struct tern_kv_seq *coded, int plan, tern_error *err)
{
    int rc = 0;
    tern_engine *e = s->engine;
    struct tern_kv_seq *raw = s->kv;
    int none;
    s->kv = coded;
    s->plan = plan;
    while (coded->n_tokens < raw->n_tokens) {
        int left = raw->n_tokens - coded->n_tokens, n = left < e->chunk ? left : e->chunk;
        struct tern_forward_job to = {.seq = coded, .plan = plan, .n_rows = n, .pos0 = coded->n_tokens}, from = to;
        from.seq = raw;
        from.plan = e->n_plans;
        TERN_TRY(tern_kv_begin(&e->caches[plan], coded, n, err));
        tern_forward_copy(e->forward, &to, &from);
        tern_kv_commit(&e->caches[plan], coded, n);
    }
    tern_kv_move_states(&e->caches[plan], coded, raw_cache(e), raw);
out:
    if (rc < 0 && e->caches[plan].layout->state_bytes) /* tokens without their state would be another text's */
        (void)tern_kv_trim(&e->caches[plan], coded, 0, &none, NULL);
    tern_kv_seq_free(raw_cache(e), raw);
    return rc;
}

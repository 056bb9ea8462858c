/* Guesses of the model's own layer for multi-token prediction, behind sequences that stay as they are. */
#include "run/run.h"

int tern_guess_begin(tern_seq *s, int n, tern_error *err)
{
    tern_engine *e = s->engine;
    TERN_ASSERT(e->mtp && !s->ahead);
    s->guessed = 0;
    return tern_kv_begin(&e->caches[s->plan], s->kv, n, err);
}

void tern_guess_end(tern_seq *s)
{
    tern_kv_tried(&s->engine->caches[s->plan], s->kv, s->guessed);
}

int tern_guess_step(tern_engine *e, const struct tern_guess *g, int n, bool first, int best, struct tern_seen *seen,
                    tern_error *err)
{
    int rc = 0;
    const int n_vocab = e->model->net->desc.n_vocab, n_best = best ? n : 0;
    *seen = (struct tern_seen){0};
    TERN_ASSERT(e->mtp && n > 0 && n <= e->max_seqs && n <= e->chunk && (e->asks_best || !best) && best <= TERN_BEST);
    TERN_TRY(tern_logits_widen(e, best ? 0 : (size_t)n * (size_t)n_vocab, err));
    TERN_TRY(tern_floats_widen(&e->best, &e->best_cap, (size_t)n_best * 2 * TERN_BEST, err));
    TERN_TRY(tern_forward_want(e->forward, n, 0, n_best, err));
    for (int i = 0; i < n; i++) {
        const int pos = g[i].seq->kv->n_tokens + g[i].depth;
        g[i].seq->guessed = g[i].depth + 1;
        e->rows[i] = (struct tern_row){g[i].token, pos};
        e->logit_rows[i] = g[i].from;
        e->jobs[i] = (struct tern_forward_job){
            .seq = g[i].seq->kv, .plan = g[i].seq->plan, .row0 = i, .n_rows = 1, .pos0 = pos, .wide = e->exact};
    }
    struct tern_forward_batch b = {
        .rows = e->rows, .n_rows = n, .n_wide = e->exact ? n : 0, .jobs = e->jobs, .n_jobs = n};
    b.n_best = n_best;
    b.best = best;
    tern_forward_guess(e->forward, &b, first ? NULL : e->logit_rows);
    if (best)
        tern_forward_best(e->forward, &b, e->best);
    else
        tern_forward_logits(e->forward, e->logits, 0, n);
    e->dev->ops->sync(e->dev);
    TERN_TRY(tern_forward_fault(e->forward, err));
    *seen = best ? tern_seen_best(e, &b, 0) : (struct tern_seen){.x = e->logits, .n = n_vocab};
out:
    return rc;
}

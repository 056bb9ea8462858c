/* Guesses of the model's own layer for multi-token prediction, behind sequences that stay as they are. */
#include "base/mem.h"
#include "run/run.h"

int tern_guess_begin(tern_seq *s, int n, tern_error *err)
{
    tern_engine *e = s->engine;
    TERN_ASSERT(e->mtp && !s->ahead);
    return tern_kv_begin(&e->caches[s->plan], s->kv, n, err);
}

void tern_guess_end(tern_seq *s, int n)
{
    tern_kv_tried(&s->engine->caches[s->plan], s->kv, n);
}

int tern_guess_step(tern_engine *e, const struct tern_guess *g, int n, bool first, const float **logits,
                    tern_error *err)
{
    int rc = 0;
    const size_t want = (size_t)n * (size_t)e->model->net->desc.n_vocab;
    *logits = NULL;
    TERN_ASSERT(e->mtp && n > 0 && n <= e->max_seqs && n <= e->chunk);
    if (want > e->logits_cap) {
        tern_free(e->logits);
        e->logits_cap = 0;
        TERN_TRY(tern_alloc(&e->logits, want, sizeof(float), err));
        e->logits_cap = want;
    }
    TERN_TRY(tern_forward_want(e->forward, n, 0, 0, err));
    for (int i = 0; i < n; i++) {
        const int pos = g[i].seq->kv->n_tokens + g[i].depth;
        e->rows[i] = (struct tern_row){g[i].token, pos};
        e->logit_rows[i] = g[i].from;
        e->jobs[i] = (struct tern_forward_job){
            .seq = g[i].seq->kv, .plan = g[i].seq->plan, .row0 = i, .n_rows = 1, .pos0 = pos, .wide = e->exact};
    }
    const struct tern_forward_batch b = {
        .rows = e->rows, .n_rows = n, .n_wide = e->exact ? n : 0, .jobs = e->jobs, .n_jobs = n};
    tern_forward_guess(e->forward, &b, first ? NULL : e->logit_rows);
    tern_forward_logits(e->forward, e->logits, 0, n);
    e->dev->ops->sync(e->dev);
    TERN_TRY(tern_forward_fault(e->forward, err));
    *logits = e->logits;
out:
    return rc;
}

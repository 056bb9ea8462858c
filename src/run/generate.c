/* One reply of one sequence: prefill, then the state machine of gen.h with a decode row per step, or several where
 * tokens are guessed. */
#include "base/clock.h"
#include "base/mem.h"
#include "run/draft/draft.h"

static int check_room(const tern_engine *e, const tern_seq *s, int n_prompt, tern_error *err)
{
    if (n_prompt <= e->ctx - tern_seq_length(s))
        return 0;
    return tern_err_set(err, TERN_ECAPACITY,
                        "a prompt of %d tokens does not fit: the context is %d tokens, %d are in use", n_prompt, e->ctx,
                        tern_seq_length(s));
}

/* A step with the token that was picked last, and guesses behind it.  Without memory for these, with that token alone.
 * limited: a constraint looks at all of a row's logits. */
static int step(tern_engine *e, struct tern_draft *d, bool limited, struct tern_seen *seen, tern_error *err)
{
    const int best = e->asks_best && !limited ? tern_gen_enough(d->gen) : 0;
    const bool last = d->gen->phase == TERN_GEN_LAST;
    tern_drafts_plan(e->drafter, &d, 1, tern_seq_recode_room(d->seq, e->chunk));
    for (;;) {
        const double start = tern_now();
        tern_step_item it = {.seq = d->seq,
                             .tokens = d->rows,
                             .n_tokens = d->n,
                             .decode = true,
                             .logits = last ? TERN_LOGITS_NONE : TERN_LOGITS_ALL};
        const int rc = tern_step_seen(e, &it, 1, &best, seen, err);
        if (rc == 0) {
            tern_drafter_learn(e->drafter, d->n, tern_now() - start);
            tern_draft_stepped(d);
        }
        if (rc != TERN_ECAPACITY || d->n == 1)
            return rc;
        tern_draft_forget(d);
    }
}

/* seen: of the last prompt token. */
static int decode(tern_engine *e, struct tern_draft *d, struct tern_seen seen, const tern_constraint *c,
                  tern_error *err)
{
    int rc = 0;
    uint32_t *mask = NULL;
    struct tern_gen *g = d->gen;
    const size_t n_vocab = (size_t)e->model->net->desc.n_vocab;
    if (c)
        TERN_TRY(tern_alloc(&mask, (n_vocab + 31) / 32, sizeof *mask, err));
    while (g->phase != TERN_GEN_OVER) {
        if (atomic_exchange_explicit(&e->cancel, 0, memory_order_relaxed))
            TERN_FAIL(err, TERN_ECANCELLED, "cancelled after %d tokens", g->n_generated);
        do {
            TERN_TRY(tern_gen_pick_within(g, seen, c, mask, err));
            if (c && tern_gen_counts(g, e->ctx - tern_seq_length(d->seq)))
                TERN_TRY(c->accept(c->state, g->picked, err));
            TERN_TRY(tern_gen_take(g, e->ctx - tern_seq_length(d->seq), err));
            seen = tern_seen_next(seen);
        } while (tern_draft_next(d));
        TERN_TRY(tern_draft_settle(d, err));
        TERN_TRY(tern_seq_recode_due(d->seq, err));
        if (g->phase != TERN_GEN_OVER)
            TERN_TRY(step(e, d, c != NULL, &seen, err));
    }
out:
    tern_free(mask);
    if (rc < 0)
        (void)tern_draft_settle(d, NULL);
    return rc;
}

int tern_generate(tern_engine *e, tern_seq *s, const int32_t *prompt, int n_prompt, const tern_generate_params *p,
                  tern_generate_result *result, tern_error *err)
{
    int rc = 0;
    struct tern_gen g = {0};
    struct tern_draft draft = {0};
    struct tern_gen_params gp = {.sampler = p->sampler,
                                 .max_tokens = p->max_tokens,
                                 .ignore_eog = p->ignore_eog,
                                 .continues = p->continues,
                                 .stop = p->stop,
                                 .n_stop = p->n_stop,
                                 .stop_ids = p->stop_ids,
                                 .n_stop_ids = p->n_stop_ids,
                                 .on_text = p->on_text,
                                 .reply = p->reply,
                                 .user = p->user};
    const float *logits;
    const int before = tern_seq_length(s);
    double start = tern_now(), mid = start;
    tern_cancel_clear(e);
    TERN_TRY(tern_gen_open(&g, e->model, &gp, prompt, n_prompt, err));
    TERN_TRY(check_room(e, s, n_prompt, err));
    TERN_TRY(tern_prefill_steps(e, s, prompt, n_prompt, &logits, p->on_prefill, p->user, err));
    tern_gen_prompted(&g, n_prompt);
    mid = tern_now();
    tern_draft_open(&draft, e->drafter, &g);
    draft.seq = s;
    const struct tern_seen seen = {.x = logits, .n = e->model->net->desc.n_vocab};
    TERN_TRY(decode(e, &draft, seen, p->constraint, err));
    TERN_TRY(tern_gen_finish(&g, err));
out:
    if (result) {
        *result = (tern_generate_result){
            .finish = g.finish, .n_prompt = n_prompt, .n_generated = g.n_generated, .last = g.sampler ? g.last : -1};
        result->n_drafted = draft.n_drafted;
        result->n_accepted = draft.n_accepted;
        if (rc < 0 && mid == start) { /* what was computed of it */
            const int done = tern_seq_length(s) - before;
            result->n_prompt = done < 0 ? 0 : done < n_prompt ? done : n_prompt;
        }
        result->prompt_s = (rc < 0 && mid == start ? tern_now() : mid) - start;
        result->decode_s = rc < 0 && mid == start ? 0 : tern_now() - mid;
    }
    tern_draft_close(&draft);
    tern_gen_close(&g);
    return rc;
}

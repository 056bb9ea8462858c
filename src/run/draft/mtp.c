/* Guesses from the model's own layer for multi-token prediction.  It goes on from what the model made of the last
 * token, so a guess costs one layer and the output matrix. */
#include "run/draft/draft.h"

#include <string.h>
#include "base/clock.h"
#include "base/mem.h"

struct tern_draft_mtp {
    struct tern_chain chain;
    tern_engine *e;
    struct tern_guess *guesses; /* [max_seqs] */
};

int tern_draft_mtp(const tern_engine_params *p, const tern_model *m, bool *on, tern_error *err)
{
    const struct tern_desc *d = &m->net->desc;
    const bool asked = p->draft && strcmp(p->draft, "mtp") == 0;
    *on = d->n_mtp > 0 && (asked || (p->draft && strcmp(p->draft, "auto") == 0));
    if (!asked || *on)
        return 0;
    if (d->n_mtp_layers > 1)
        return tern_err_set(
            err, TERN_EUNSUPPORTED,
            "draft = \"mtp\": %s has %d layers for multi-token prediction, and only a single one is run", m->path,
            d->n_mtp_layers);
    return tern_err_set(err, TERN_EUNSUPPORTED,
                        "draft = \"mtp\": %s has no layer for multi-token prediction; auto and ngram look guesses up, "
                        "and a smaller model can make them",
                        m->path);
}

/* One more guess of the replies x->of[0..on), of which the last step of the layer was for the same ones, or more. */
static int step(struct tern_draft_mtp *x, int on, bool first)
{
    struct tern_seen seen;
    for (int i = 0; i < on; i++) {
        struct tern_draft *d = x->chain.of[i];
        x->guesses[i] =
            (struct tern_guess){.seq = d->seq, .token = d->rows[d->n_guesses], .depth = d->n_guesses, .from = d->at};
        d->at = i; /* its row of this step */
    }
    if (!on || tern_guess_step(x->e, x->guesses, on, first, tern_chain_best(&x->chain, x->e), &seen, NULL) < 0)
        return 0;
    for (int i = 0; i < on; i++, seen = tern_seen_next(seen))
        tern_chain_add(&x->chain, x->chain.of[i], seen);
    return on;
}

/* Replies for whose pages there is memory. */
static int first(struct tern_chain *chain, struct tern_draft *const *d, int n)
{
    struct tern_draft_mtp *x = (struct tern_draft_mtp *)chain;
    const double start = tern_now();
    int on = 0;
    for (int i = 0; i < n && on < x->e->chunk; i++) {
        d[i]->tried = d[i]->most > 0 && !d[i]->n_guesses && tern_guess_begin(d[i]->seq, d[i]->most, NULL) == 0;
        if (d[i]->tried)
            chain->of[on++] = d[i];
    }
    on = step(x, on, true);
    if (on && chain->step_s <= 0)
        chain->step_s = tern_now() - start;
    return on;
}

static int next(struct tern_chain *chain, int on)
{
    return step((struct tern_draft_mtp *)chain, on, false);
}

static void end(struct tern_chain *chain, struct tern_draft *const *d, int n)
{
    (void)chain;
    for (int i = 0; i < n; i++) {
        if (d[i]->tried)
            tern_guess_end(d[i]->seq);
        d[i]->tried = false;
        d[i]->at = 0;
    }
}

int tern_draft_mtp_open(struct tern_chain **out, tern_engine *e, tern_error *err)
{
    int rc = 0;
    struct tern_draft_mtp *x = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&x, 1, sizeof *x, err));
    x->e = e;
    x->chain = (struct tern_chain){
        .n_vocab = e->model->net->desc.n_vocab, .rate = .6, .first = first, .next = next, .end = end};
    TERN_TRY(tern_alloc(&x->guesses, (size_t)e->max_seqs, sizeof *x->guesses, err));
    TERN_TRY(tern_alloc(&x->chain.of, (size_t)e->max_seqs, sizeof(void *), err));
    *out = &x->chain;
    x = NULL;
out:
    if (x)
        tern_draft_mtp_close(&x->chain);
    return rc;
}

void tern_draft_mtp_close(struct tern_chain *chain)
{
    struct tern_draft_mtp *x = (struct tern_draft_mtp *)chain;
    if (!x)
        return;
    tern_free(x->guesses);
    tern_free(x->chain.of);
    tern_free(x);
}

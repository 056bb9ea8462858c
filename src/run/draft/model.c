/* Guesses from a smaller model: it reads what counts, and says what is likeliest next, token by token.
 *
 * Its sequence follows the reply's: what was guessed wrong is trimmed, what it has not read is read, a step's worth at
 * a time.  A recurrent model cannot be trimmed for nothing; it guesses in a fork. */
#include "run/draft/draft.h"

#include <string.h>
#include "base/mem.h"

#define FEW 8 /* so many tokens are read as generated ones; a longer piece as a prompt */

struct tern_draft_model {
    struct tern_chain chain; /* its ids: those that both models have */
    tern_engine *e;
    bool recurrent;
    int32_t *feed;         /* [chunk] */
    tern_step_item *items; /* [max_seqs] */
    int *best;             /* [max_seqs] */
    struct tern_seen *seen;
};

static int first(struct tern_chain *chain, struct tern_draft *const *d, int n);
static int next(struct tern_chain *chain, int on);
static void end(struct tern_chain *chain, struct tern_draft *const *d, int n);

/* Token by token, what ends a text and what is a control token included. */
static int same_vocabulary(const tern_model *m, const tern_model *small, tern_error *err)
{
    int rc = 0;
    const int n = m->net->desc.n_vocab, k = small->net->desc.n_vocab, least = n < k ? n : k;
    if (!m->tok != !small->tok || (!m->tok && n != k))
        TERN_FAIL(err, TERN_EMISMATCH, "%s cannot guess for %s: %s", small->path, m->path,
                  !m->tok != !small->tok ? "one of them has no tokenizer" : "their vocabularies differ in size");
    for (int32_t id = 0; m->tok && id < least; id++) {
        const char *a = tern_model_token(m, id), *b = tern_model_token(small, id);
        if ((a && b ? strcmp(a, b) != 0 : a != b) || tern_model_is_eog(m, id) != tern_model_is_eog(small, id))
            TERN_FAIL(err, TERN_EMISMATCH,
                      "%s cannot guess for %s: their vocabularies differ, token %d is \"%.40s\" and \"%.40s\"",
                      small->path, m->path, id, b ? b : "", a ? a : "");
    }
out:
    return rc;
}

int tern_draft_model_open(struct tern_draft_model **out, tern_engine *e, tern_model *small, int most, tern_error *err)
{
    int rc = 0;
    struct tern_draft_model *x = NULL;
    const int n = e->model->net->desc.n_vocab, k = small->net->desc.n_vocab;
    *out = NULL;
    TERN_TRY(same_vocabulary(e->model, small, err));
    TERN_TRY(tern_alloc(&x, 1, sizeof *x, err));
    x->chain = (struct tern_chain){.n_vocab = n < k ? n : k, .rate = .7, .first = first, .next = next, .end = end};
    for (int i = 0; i < small->net->desc.n_layers; i++)
        x->recurrent |= small->net->desc.layers[i].mixer == TERN_MIX_DELTA;
    const tern_engine_params p = {.ctx = e->ctx < small->net->desc.ctx ? e->ctx : small->net->desc.ctx,
                                  .max_seqs = e->max_seqs * (x->recurrent ? 2 : 1),
                                  .chunk = e->chunk,
                                  .drafts = x->recurrent || most > TERN_KV_MAX_DRAFTS ? 0 : most};
    TERN_TRY(tern_engine_open_beside(&x->e, e, small, &p, err));
    TERN_TRY(tern_alloc(&x->feed, (size_t)x->e->chunk, sizeof *x->feed, err));
    TERN_TRY(tern_alloc(&x->items, (size_t)e->max_seqs, sizeof *x->items, err));
    TERN_TRY(tern_alloc(&x->best, (size_t)e->max_seqs, sizeof *x->best, err));
    TERN_TRY(tern_alloc(&x->seen, (size_t)e->max_seqs, sizeof *x->seen, err));
    TERN_TRY(tern_alloc(&x->chain.of, (size_t)e->max_seqs, sizeof(void *), err));
    *out = x;
    x = NULL;
out:
    tern_draft_model_close(x);
    return rc;
}

void tern_draft_model_close(struct tern_draft_model *x)
{
    if (!x)
        return;
    tern_engine_close(&x->e);
    tern_free(x->feed);
    tern_free(x->items);
    tern_free(x->best);
    tern_free(x->seen);
    tern_free(x->chain.of);
    tern_free(x);
}

struct tern_chain *tern_draft_model_chain(struct tern_draft_model *x)
{
    return &x->chain;
}

const tern_engine *tern_draft_model_engine(const struct tern_draft_model *x)
{
    return x->e;
}

/* ---- following --------------------------------------------------------------------------------------------------- */

/* Token i of what counts: the sequence, then the one that was picked last. */
static int32_t token_at(const struct tern_draft *d, int i)
{
    return i < tern_seq_length(d->seq) ? tern_seq_tokens(d->seq)[i] : d->rows[0];
}

/* Cuts d->own back to what counts; where that cannot be it begins anew.  False: there is no place for it. */
static bool follow(struct tern_draft_model *x, struct tern_draft *d)
{
    const int all = tern_seq_length(d->seq) + 1;
    if (all > x->e->ctx || (!d->own && tern_seq_new(&d->own, x->e, NULL) < 0))
        return false;
    const int n = tern_seq_length(d->own);
    int same = d->own_same < n ? d->own_same : n;
    while (same < n && same < all - 1 && tern_seq_tokens(d->own)[same] == token_at(d, same))
        same++;
    d->own_same = same;
    if (!d->own->torn && (same == n || tern_seq_trim(d->own, same, NULL) == 0))
        return true;
    tern_seq_free(d->own);
    d->own = NULL;
    d->own_same = 0;
    return tern_seq_new(&d->own, x->e, NULL) == 0;
}

/* Steps items [0, n): each that has logits gets its next guess.  Returns how many those are, first in x->of. */
static int step(struct tern_draft_model *x, int n)
{
    int on = 0;
    for (int i = 0; i < n; i++)
        x->best[i] = tern_chain_best(&x->chain, x->e);
    if (!n || tern_step_seen(x->e, x->items, n, x->best, x->seen, NULL) < 0)
        return 0;
    for (int i = 0; i < n; i++) {
        struct tern_draft *d = x->chain.of[i];
        if (!x->seen[i].x)
            continue;
        tern_chain_add(&x->chain, d, x->seen[i]);
        x->chain.of[on++] = d;
    }
    return on;
}

/* What d->own has not read, up to `room` tokens. */
static tern_step_item unread(struct tern_draft_model *x, struct tern_draft *d, int at, int room)
{
    const int from = tern_seq_length(d->own), all = tern_seq_length(d->seq) + 1;
    const int n = all - from < room ? all - from : room;
    for (int i = 0; i < n; i++)
        x->feed[at + i] = token_at(d, from + i);
    d->own_same = from + n;
    return (tern_step_item){.seq = d->own,
                            .tokens = x->feed + at,
                            .n_tokens = n,
                            .decode = n <= FEW,
                            .logits = from + n == all ? TERN_LOGITS_LAST : TERN_LOGITS_NONE};
}

/* All replies read; those that have read everything get their first guess.  Returns how many. */
static int read_on(struct tern_draft_model *x, struct tern_draft *const *d, int n)
{
    int n_items = 0, rows = 0;
    for (int i = 0; i < n && rows < x->e->chunk; i++) {
        if (d[i]->most < 1 || !follow(x, d[i]))
            continue;
        x->items[n_items] = unread(x, d[i], rows, x->e->chunk - rows);
        rows += x->items[n_items].n_tokens;
        x->chain.of[n_items++] = d[i];
    }
    return step(x, n_items);
}

/* A recurrent model guesses in a fork of what it has read. */
static int forks(struct tern_draft_model *x, int on)
{
    int more = 0;
    for (int i = 0; i < on; i++) {
        struct tern_draft *d = x->chain.of[i];
        if (!x->recurrent || d->fork || tern_seq_fork(&d->fork, d->own, NULL) == 0)
            x->chain.of[more++] = d;
    }
    return more;
}

static int first(struct tern_chain *chain, struct tern_draft *const *d, int n)
{
    struct tern_draft_model *x = (struct tern_draft_model *)chain;
    return read_on(x, d, n);
}

static int next(struct tern_chain *chain, int on)
{
    struct tern_draft_model *x = (struct tern_draft_model *)chain;
    on = forks(x, on);
    for (int i = 0; i < on; i++) {
        struct tern_draft *g = chain->of[i];
        x->items[i] = (tern_step_item){.seq = g->fork ? g->fork : g->own,
                                       .tokens = &g->rows[g->n_guesses],
                                       .n_tokens = 1,
                                       .decode = true,
                                       .logits = TERN_LOGITS_LAST};
    }
    return step(x, on);
}

static void end(struct tern_chain *chain, struct tern_draft *const *d, int n)
{
    (void)chain;
    for (int i = 0; i < n; i++) {
        tern_seq_free(d[i]->fork);
        d[i]->fork = NULL;
    }
}

/* Guesses from a smaller model: it reads what counts, and says what is likeliest next, token by token.
 *
 * Its sequence follows the reply's: what was guessed wrong is trimmed, what it has not read is read, a step's worth at
 * a time.  A recurrent model cannot be trimmed for nothing; it guesses in a fork. */
#include "run/draft/draft.h"

#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"

#define FEW   8    /* so many tokens are read as generated ones; a longer piece as a prompt */
#define AGAIN 64   /* of so many steps without guesses one tries again */
#define LESS  1.05 /* guesses have to promise so many times the tokens per second */

struct tern_draft_model {
    tern_engine *e;
    bool recurrent;
    int n_vocab;            /* ids that both models have */
    double step_s;          /* one token of each reply */
    double rate;            /* of guesses that were right, lately */
    int32_t *feed;          /* [chunk] */
    tern_step_item *items;  /* [max_seqs] */
    struct tern_draft **of; /* [max_seqs] whose they are */
    unsigned idle;          /* steps without guesses */
};

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
    x->n_vocab = n < k ? n : k;
    x->rate = .7;
    for (int i = 0; i < small->net->desc.n_layers; i++)
        x->recurrent |= small->net->desc.layers[i].mixer == TERN_MIX_DELTA;
    const tern_engine_params p = {.ctx = e->ctx < small->net->desc.ctx ? e->ctx : small->net->desc.ctx,
                                  .max_seqs = e->max_seqs * (x->recurrent ? 2 : 1),
                                  .drafts = x->recurrent || most > TERN_KV_MAX_DRAFTS ? 0 : most};
    TERN_TRY(tern_engine_open_beside(&x->e, e, small, &p, err));
    TERN_TRY(tern_alloc(&x->feed, (size_t)x->e->chunk, sizeof *x->feed, err));
    TERN_TRY(tern_alloc(&x->items, (size_t)e->max_seqs, sizeof *x->items, err));
    TERN_TRY(tern_alloc(&x->of, (size_t)e->max_seqs, sizeof(void *), err));
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
    tern_free(x->of);
    tern_free(x);
}

const tern_engine *tern_draft_model_engine(const struct tern_draft_model *x)
{
    return x->e;
}

/* ---- following ----------------------------------------------------------------------------------------------------
 */

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
    if (same == n || tern_seq_trim(d->own, same, NULL) == 0)
        return true;
    tern_seq_free(d->own);
    d->own = NULL;
    d->own_same = 0;
    return tern_seq_new(&d->own, x->e, NULL) == 0;
}

/* The likeliest token, and how far its logit is above the next one's. */
static int32_t likeliest(const struct tern_draft_model *x, const float *logits, float *margin)
{
    int32_t best = 0;
    float next = -INFINITY;
    for (int32_t i = 1; i < x->n_vocab; i++) {
        if (logits[i] > logits[best]) {
            next = logits[best];
            best = i;
        } else if (logits[i] > next) {
            next = logits[i];
        }
    }
    *margin = logits[best] - next;
    return best;
}

/* By margin: guesses that are as likely. */
static int class_of(float margin)
{
    static const float below[TERN_DRAFT_CLASSES - 1] = {.25f, .5f, 1, 1.5f, 2.5f, 4, 6};
    int c = 0;
    while (c < TERN_DRAFT_CLASSES - 1 && margin >= below[c])
        c++;
    return c;
}

/* Steps items [0, n): each that has logits gets its next guess.  Returns how many those are, first in x->of. */
static int step(struct tern_draft_model *x, int n)
{
    const float *logits;
    int on = 0;
    if (!n || tern_step(x->e, x->items, n, &logits, NULL) < 0)
        return 0;
    for (int i = 0; i < n; i++) {
        struct tern_draft *d = x->of[i];
        float margin;
        if (x->items[i].logits == TERN_LOGITS_NONE)
            continue;
        d->rows[++d->n_guesses] = likeliest(x, logits, &margin);
        d->kind[d->n_guesses] = (uint8_t)class_of(margin);
        d->chance = (d->n_guesses > 1 ? d->chance : 1) * tern_draft_chance(d, d->n_guesses);
        logits += x->e->model->net->desc.n_vocab;
        x->of[on++] = d;
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
        x->of[n_items++] = d[i];
    }
    return step(x, n_items);
}

/* Is it worth its time and rows when `on` replies guess once more, `gain` tokens of which may count?  depth guesses of
 * each are there, and `tokens` are expected of the step.  Costs in steps of one row. */
static bool pays(const struct tern_draft_model *x, const struct tern_price *p, int n, int on, int depth, double tokens,
                 double gain)
{
    if (!p)
        return true;
    const double own = p->row_s > 0 ? x->step_s / p->row_s : 0;
    const double now = tern_price_of(p, n + on * depth) + own * depth,
                 then = tern_price_of(p, n + on * (depth + 1)) + own * (depth + 1);
    return (tokens + gain) * now > LESS * tokens * then;
}

/* Chances that the next guesses count, and those that are there; replies that have enough leave x->of. */
static int chances(struct tern_draft_model *x, int on, double *tokens, double *gain)
{
    int more = 0;
    *gain = 0;
    for (int i = 0; i < on; i++) {
        struct tern_draft *d = x->of[i];
        *tokens += d->chance;
        if (d->n_guesses >= d->most)
            continue;
        *gain += d->chance * x->rate;
        x->of[more++] = d;
    }
    return more;
}

/* A recurrent model guesses in a fork of what it has read. */
static int forks(struct tern_draft_model *x, int on)
{
    int more = 0;
    for (int i = 0; i < on; i++) {
        struct tern_draft *d = x->of[i];
        d->fork = NULL;
        if (!x->recurrent || tern_seq_fork(&d->fork, d->own, NULL) == 0)
            x->of[more++] = d;
    }
    return more;
}

void tern_draft_model_guess(struct tern_draft_model *x, struct tern_draft *const *d, int n, const struct tern_price *p)
{
    double tokens = n, gain;
    if (!pays(x, p, n, n, 0, n, n * x->rate) && ++x->idle % AGAIN)
        return;
    int on = chances(x, read_on(x, d, n), &tokens, &gain);
    on = forks(x, on);
    for (int depth = 1; on && pays(x, p, n, on, depth, tokens, gain); depth++) {
        const double start = tern_now();
        for (int i = 0; i < on; i++) {
            struct tern_draft *g = x->of[i];
            x->items[i] = (tern_step_item){.seq = g->fork ? g->fork : g->own,
                                           .tokens = &g->rows[g->n_guesses],
                                           .n_tokens = 1,
                                           .decode = true,
                                           .logits = TERN_LOGITS_LAST};
        }
        on = step(x, on);
        const double took = tern_now() - start;
        x->step_s = x->step_s > 0 ? x->step_s + .1 * ((took < 3 * x->step_s ? took : 3 * x->step_s) - x->step_s) : took;
        on = chances(x, on, &tokens, &gain);
    }
    for (int i = 0; i < n; i++) {
        tern_seq_free(d[i]->fork);
        d[i]->fork = NULL;
    }
}

void tern_draft_model_learn(struct tern_draft_model *x, bool right)
{
    x->rate += .02 * (right - x->rate);
}

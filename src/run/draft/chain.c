/* Guesses that are computed token by token, each from those before: as many as promise more than they cost. */
#include "run/draft/draft.h"

#include <math.h>
#include "base/clock.h"

#define AGAIN 64   /* of so many steps without guesses one tries again */
#define LESS  1.05 /* guesses have to promise so many times the tokens per second */

/* The likeliest token, and how far its logit is above the next one's. */
static int32_t likeliest(struct tern_seen seen, int n, float *margin)
{
    int32_t best = 0;
    float next = -INFINITY;
    if (seen.ids) {
        *margin = seen.ids[1] < 0 ? INFINITY : seen.x[0] - seen.x[1];
        return seen.ids[0] < 0 ? 0 : seen.ids[0];
    }
    for (int32_t i = 1; i < n; i++) {
        if (seen.x[i] > seen.x[best]) {
            next = seen.x[best];
            best = i;
        } else if (seen.x[i] > next) {
            next = seen.x[i];
        }
    }
    *margin = seen.x[best] - next;
    return best;
}

int tern_chain_best(const struct tern_chain *x, const tern_engine *e)
{
    return e->asks_best && x->n_vocab == e->model->net->desc.n_vocab ? 2 : 0;
}

/* By margin: guesses that are as likely. */
static int class_of(float margin)
{
    static const float below[TERN_DRAFT_CLASSES - 1] = {.25f, .5f, 1, 1.5f, 2.5f, 4, 6};
    int c = 0;
    while (c < TERN_DRAFT_CLASSES - 1 && margin >= below[c])
        c++;
    return TERN_DRAFT_CLASSES + c;
}

void tern_chain_add(const struct tern_chain *x, struct tern_draft *d, struct tern_seen seen)
{
    float margin;
    d->rows[++d->n_guesses] = likeliest(seen, x->n_vocab, &margin);
    d->kind[d->n_guesses] = (uint8_t)class_of(margin);
    d->chance = (d->n_guesses > 1 ? d->chance : 1) * tern_draft_chance(d, d->n_guesses);
}

/* Is it worth its time and rows when `on` replies guess once more, `gain` tokens of which may count?  depth guesses of
 * each are there, and `tokens` are expected of the step.  Costs in steps of one row. */
static bool pays(const struct tern_chain *x, const struct tern_price *p, int n, int on, int depth, double tokens,
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
static int chances(struct tern_chain *x, int on, double *tokens, double *gain)
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

void tern_chain_guess(struct tern_chain *x, struct tern_draft *const *d, int n, const struct tern_price *p)
{
    double tokens = n, gain;
    if (!pays(x, p, n, n, 0, n, n * x->rate) && ++x->idle % AGAIN)
        return;
    int on = chances(x, x->first(x, d, n), &tokens, &gain);
    for (int depth = 1; on && pays(x, p, n, on, depth, tokens, gain); depth++) {
        const double start = tern_now();
        on = x->next(x, on);
        const double took = tern_now() - start;
        x->step_s = x->step_s > 0 ? x->step_s + .1 * ((took < 3 * x->step_s ? took : 3 * x->step_s) - x->step_s) : took;
        on = chances(x, on, &tokens, &gain);
    }
    x->end(x, d, n);
}

void tern_chain_learn(struct tern_chain *x, bool right)
{
    x->rate += .02 * (right - x->rate);
}

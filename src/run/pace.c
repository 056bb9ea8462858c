/* How many prompt rows go beside decode rows.  Prompts have a share of the engine's time: what stretches the time
 * between tokens of running streams by a factor on average, and more where more requests wait for their first token
 * than stream.  The share is spent in steps with enough rows that a pass over the weights for them is worth it; steps
 * without prompt rows save up for those. */
#include "run/loop.h"

#define LEAST_ROWS  8  /* fewer are not worth a pass over the weights */
#define PASS_S      .1 /* what a step may spend on prompt rows, for a factor of 2, even where its own share is less */
#define MOST_FACTOR 8  /* however many wait, streams get one part of the time in so many */
#define FORGET      64 /* steps after which the time of decode rows alone is measured again */
#define MEMORY      .9 /* what a measured cost still counts for after the next one */
#define ALONE_S     .2 /* longest step of prompt rows alone: cancels and newcomers wait for it */
#define ALONE_ROWS  64 /* but it has so many rows: fewer would cost prompts much of their speed */

static int size_class(int n)
{
    int c = 0;
    while (n > 1 && c < TERN_PACE_SIZES - 1) {
        n >>= 1;
        c++;
    }
    return c;
}

/* A machine that is busy with something else for a moment should not count for much. */
static double blend(double old, double new)
{
    if (old <= 0)
        return new;
    return old * .75 + (new < 2 * old ? new : 2 * old) * .25;
}

/* ---- what prompt rows cost: a line through the last measurements ------------------------------------------------- */

/* Seconds per further row, between 0 and what a row costs if the pass itself costs nothing. */
static double slope(const struct tern_pace_cost *c)
{
    double most = c->t / c->n, spread = c->nn * c->weight - c->n * c->n;
    double s = spread > 1e-3 * c->n * c->n ? (c->nt * c->weight - c->n * c->t) / spread : most;
    return s < 0 ? 0 : s < most ? s : most;
}

static double cost_of(const struct tern_pace_cost *c, double rows)
{
    return c->weight > 0 ? c->t / c->weight + slope(c) * (rows - c->n / c->weight) : 0;
}

/* How many rows cost so much; up to most. */
static double rows_for(const struct tern_pace_cost *c, double seconds, double most)
{
    if (c->weight <= 0)
        return LEAST_ROWS;
    double s = slope(c), more = seconds - c->t / c->weight, rows = c->n / c->weight;
    if (more >= s * (most - rows))
        return most;
    return s > 0 ? rows + more / s : 0;
}

static void learn_cost(struct tern_pace_cost *c, double rows, double seconds)
{
    double guess = cost_of(c, rows), t = seconds < 0 ? 0 : guess > 0 && seconds > 2 * guess ? 2 * guess : seconds;
    c->weight = c->weight * MEMORY + 1;
    c->n = c->n * MEMORY + rows;
    c->t = c->t * MEMORY + t;
    c->nn = c->nn * MEMORY + rows * rows;
    c->nt = c->nt * MEMORY + rows * t;
}

/* ---- the share --------------------------------------------------------------------------------------------------- */

/* What a step with prompt rows may spend on them, when the share of a step is so much. */
static double pass_seconds(double share, double factor)
{
    double s = PASS_S * (factor - 1) < ALONE_S ? PASS_S * (factor - 1) : ALONE_S;
    return share > s ? share : s;
}

int tern_pace_rows(struct tern_pace *p, int n_decode, int n_prompts, int wanted, int room)
{
    int most = wanted < room ? wanted : room, c = size_class(n_decode);
    p->step++;
    if (!n_decode) {
        double rows = p->row_s > 0 ? ALONE_S / p->row_s : most;
        rows = rows > ALONE_ROWS ? rows : ALONE_ROWS;
        return rows < most ? (int)rows : most;
    }
    if (p->idle[c] <= 0 || p->step - p->idle_at[c] > FORGET)
        return 0;
    double fair = 2. * n_prompts / n_decode;
    p->factor = fair < p->gap ? p->gap : fair < MOST_FACTOR || p->gap > MOST_FACTOR ? fair : MOST_FACTOR;
    double share = p->idle[c] * (p->factor - 1), rows = rows_for(&p->cost, pass_seconds(share, p->factor), most);
    rows = rows > LEAST_ROWS ? rows : LEAST_ROWS;
    rows = rows < most ? rows : most;
    return p->saved + share < cost_of(&p->cost, rows) ? 0 : (int)rows;
}

void tern_pace_learn(struct tern_pace *p, int n_decode, int n_prompt, double seconds)
{
    int c = size_class(n_decode);
    if (!n_decode) {
        if (n_prompt >= ALONE_ROWS)
            p->row_s = blend(p->row_s, seconds / n_prompt);
        return;
    }
    if (!n_prompt) {
        p->idle[c] = blend(p->idle[c], seconds);
        p->idle_at[c] = p->step;
    }
    double factor = p->factor > 0 ? p->factor : p->gap, share = p->idle[c] * (factor - 1), cost = 0;
    if (n_prompt) {
        cost = seconds - p->idle[c];
        learn_cost(&p->cost, n_prompt, cost);
    }
    double most = pass_seconds(share, factor);
    p->saved += share - cost;
    p->saved = p->saved > most    ? most
               : p->saved < -most ? -most
                                  : p->saved; /* one slow step is not paid for by a pause */
    p->factor = 0;
}

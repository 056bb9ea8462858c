/* How many prompt rows go beside decode rows: as many as stretch the time between tokens of running streams by no more
 * than a factor.  Two ways, by what was measured.  Where a step may hold LEAST_ROWS and more, each step holds as many
 * as it may.  Where a pass of prompt rows alone costs more than that, few rows go now and then: steps without them save
 * up the time, so that the factor holds on average. */
#include "run/loop.h"

#define LEAST_ROWS 8  /* fewer are not worth a pass over the weights */
#define FORGET     64 /* steps after which the time of decode rows alone is measured again */
#define ALONE_S    .2 /* longest step of prompt rows alone: cancels and newcomers wait for it */
#define ALONE_ROWS 64 /* but it has so many rows: fewer would cost prompts much of their speed */

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

int tern_pace_rows(struct tern_pace *p, int n_decode, int room)
{
    p->step++;
    if (!n_decode) {
        double rows = p->row_s > 0 ? ALONE_S / p->row_s : room;
        rows = rows > ALONE_ROWS ? rows : ALONE_ROWS;
        return rows < room ? (int)rows : room;
    }
    int c = size_class(n_decode);
    if (p->idle[c] <= 0 || p->step - p->idle_at[c] > FORGET)
        return 0;
    p->rows = p->rows > LEAST_ROWS ? p->rows : LEAST_ROWS;
    if (p->rows <= LEAST_ROWS) {
        p->saved += p->idle[c] * (p->gap - 1);
        if (p->saved < p->least_s)
            return 0;
    }
    return p->rows < room ? (int)p->rows : room;
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
        return;
    }
    double allowed = p->idle[c] * (p->gap - 1), more = seconds - p->idle[c], factor = more > 0 ? allowed / more : 2;
    if (p->rows <= LEAST_ROWS) {
        p->least_s = blend(p->least_s, more > 0 ? more : 0);
        p->saved -= more;
    }
    factor = factor < .5 ? .5 : factor > 1.5 ? 1.5 : factor;
    if (n_prompt >= (int)p->rows || factor < 1) /* a short rest says nothing about longer steps */
        p->rows = n_prompt * factor;
    if (p->rows > LEAST_ROWS)
        p->saved = 0;
    else if (p->saved < -p->least_s) /* one slow step is not paid for by a long pause */
        p->saved = -p->least_s;
}

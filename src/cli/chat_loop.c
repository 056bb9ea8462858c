/* Replies that repeat themselves.  Small models at low temperature fall into them and never come out. */
#include <string.h>

#include "cli/chat.h"

#define LEAST  160 /* tokens that have to repeat what stands a period before them */
#define ROUNDS 5   /* and so many periods: a table's line or a refrain comes back more seldom */
#define EXACT  0.95

void tern_chat_loop_begin(struct tern_chat_loop *l, int from)
{
    memset(l, 0, sizeof *l);
    l->from = l->seen = from;
}

/* Tokens that are compared for a period. */
static int span(int period)
{
    return period * ROUNDS > LEAST ? period * ROUNDS : LEAST;
}

/* Does token i repeat what stands a period before it? */
static bool repeats(const int32_t *ids, int from, int i, int period)
{
    return i - period >= from && ids[i] == ids[i - period];
}

bool tern_chat_loop_look(struct tern_chat_loop *l, const int32_t *ids, int n)
{
    for (; l->seen < n; l->seen++) {
        const int i = l->seen;
        for (int p = 1; p <= TERN_LOOP_PERIODS; p++) {
            l->same[p] += repeats(ids, l->from, i, p);
            l->same[p] -= i - span(p) >= l->from && repeats(ids, l->from, i - span(p), p);
            if (!l->period && repeats(ids, l->from, i, p) && l->same[p] >= EXACT * span(p)) {
                l->period = p;
                l->end = i + 1;
            }
        }
    }
    return l->period > 0;
}

int tern_chat_loop_once(const struct tern_chat_loop *l)
{
    const int n = l->end - span(l->period);
    return n > l->from ? n : l->from + l->period < l->end ? l->from + l->period : l->end;
}

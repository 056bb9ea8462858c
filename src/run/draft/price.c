/* What rows of a step cost beside the first.  A step of one row moves with the length of the sequences, and with
 * whatever else the machine does, so that is what is followed; the others are known relative to it. */
#include "run/draft/draft.h"

#define UNSEEN .15 /* of a step: each row, as long as nothing is known */
#define DOUBT  1.5 /* a step that took longer than that many times what was expected has to be confirmed */
#define WORST  3   /* a step that took longer than that many times what was expected says no more */

/* The class that rows fall into, and the most rows of a class. */
static int class_of(int rows)
{
    int c = 0;
    while (c < TERN_PRICE_CLASSES - 1 && 1 << c < rows)
        c++;
    return c;
}

/* The class's most rows, in steps of one: from what was seen of it, or of the nearest other one, by the row. */
static double of_class(const struct tern_price *p, int c)
{
    const double more = (1 << c) - 1;
    if (c == 0)
        return 1;
    if (p->rows[c] > 0)
        return p->rows[c];
    for (int d = 1; d < TERN_PRICE_CLASSES; d++)
        for (int s = -1; s <= 1; s += 2) {
            const int other = c + s * d;
            if (other > 0 && other < TERN_PRICE_CLASSES && p->rows[other] > 0)
                return 1 + (p->rows[other] - 1) * more / ((1 << other) - 1);
        }
    return 1 + UNSEEN * more;
}

double tern_price_of(const struct tern_price *p, int rows)
{
    const int c = class_of(rows), last = TERN_PRICE_CLASSES - 1;
    if (rows <= 1)
        return 1;
    if (rows > 1 << last)
        return of_class(p, last) * rows / (1 << last);
    const double below = of_class(p, c - 1), above = of_class(p, c);
    const int to = 1 << c, from = to / 2;
    return below + (above > below ? above - below : 0) * (rows - from) / (to - from);
}

/* A ratio of a class, or what it said before: one step in 64 encodes a page for every reply, and machines have other
 * work.  So a step that took much longer than expected counts when the next one of its class did, too. */
static double believed(struct tern_price *p, int c, double now, double expected)
{
    const double before = p->last[c] > 0 ? p->last[c] : expected;
    p->last[c] = now;
    return now > DOUBT * expected && before < now ? before : now;
}

void tern_price_learn(struct tern_price *p, int rows, double seconds)
{
    const int c = class_of(rows);
    const double expected = tern_price_of(p, rows);
    if (p->row_s <= 0) {
        p->row_s = seconds / expected;
        return;
    }
    double now = seconds / p->row_s;
    now = now < WORST * expected ? now : WORST * expected;
    if (c == 0) {
        p->row_s += .1 * (believed(p, c, now, 1) - 1) * p->row_s;
        return;
    }
    /* Of the class's most rows, where these are fewer: as far above one as rows go. */
    double full = 1 + (now - 1) * ((1 << c) - 1) / (rows - 1);
    full = believed(p, c, full > 1 ? full : 1, of_class(p, c));
    p->rows[c] = p->rows[c] > 0 ? p->rows[c] + .2 * (full - p->rows[c]) : full;
}

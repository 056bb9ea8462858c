/* tests/checkasm/trellis.h - trellis codes told once more, from docs/kv-page.md: chains, entries, the best path. */
#ifndef TERN_CHECKASM_TRELLIS_H
#define TERN_CHECKASM_TRELLIS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "checkasm.h"

/* The dim, inside its block of n dims, whose symbol stands before that of dim d, or -1 for the start of the chain. */
static inline int dim_before(int d, int n, int bits, bool key)
{
    if (!key)
        return d + 16 < n ? d + 16 : d % 16 - 1;
    int per_byte = bits == 2 ? 4 : 2, word = d / (4 * per_byte), byte = d / per_byte % 4;
    if (bits == 2 && d % 4 < 3)
        return d + 1;
    if (bits != 2 && d % 2)
        return d - 1;
    if (word + 1 < n / (4 * per_byte))
        word++;
    else if (byte)
        word = 0, byte--;
    else
        return -1;
    return (4 * word + byte) * per_byte + (bits == 2 ? 0 : 1);
}

/* The sum of tables that stands for dim d of a block: codes as they lie in a vector. */
static inline int chain_entry(const struct tern_kvq_table *tab, const uint8_t *codes, int start, int d, int n, bool key)
{
    int s[4] = {codes[d]}, known[3] = {0, 0, 0}, outside = 0;
    if (tab->bits == 4)
        known[0] = start;
    else
        known[0] = start & (tab->bits == 3 ? 7 : 3), known[1] = start >> (tab->bits == 3 ? 3 : 2);
    for (int i = 1; i < 4; i++) {
        d = d < 0 ? d : dim_before(d, n, tab->bits, key);
        s[i] = d < 0 ? outside < 3 ? known[outside++] : 0 : codes[d];
    }
    if (tab->bits == 2)
        return tab->entry[4 * s[1] + s[0]] + tab->b[4 * s[3] + s[2]];
    return tab->entry[s[0]] + tab->b[s[1]] + (tab->bits == 3 ? tab->c[s[2]] : 0);
}

/* Least sum of squares of x - entry over all paths, x in table units, by a plain search over all states of three
 * symbols. */
static inline double best_cost(const double *x, const struct tern_kvq_table *tab, int n)
{
    const int N = 1 << tab->bits, n_states = N * N * N;
    static double cost[4096], next[4096];
    for (int s = 0; s < n_states; s++) { /* s_{-1} on top, then s_{-2}, s_{-3}: only what the start bits can say */
        int s2 = s / N % N, s3 = s % N, width = tab->bits == 2 ? 4 : tab->bits == 3 ? 2 : 1;
        cost[s] = s2 < width && !s3 ? 0 : INFINITY;
    }
    for (int i = 0; i < n; i++) {
        for (int s = 0; s < n_states; s++)
            next[s] = INFINITY;
        for (int s = 0; s < n_states; s++) {
            if (cost[s] == INFINITY)
                continue;
            int s1 = s / N / N, s2 = s / N % N, s3 = s % N;
            for (int c = 0; c < N; c++) {
                int v = tab->bits == 2 ? tab->entry[4 * s1 + c] + tab->b[4 * s3 + s2]
                                       : tab->entry[c] + tab->b[s1] + (tab->bits == 3 ? tab->c[s2] : 0);
                /* symbols that no later value depends on merge */
                int to = tab->bits == 4 ? c * N * N : tab->bits == 3 ? (c * N + s1) * N : (c * N + s1) * N + s2;
                next[to] = fmin(next[to], cost[s] + (x[i] - v) * (x[i] - v));
            }
        }
        memcpy(cost, next, sizeof cost);
    }
    double best = INFINITY;
    for (int s = 0; s < n_states; s++)
        best = fmin(best, cost[s]);
    return best;
}

/* The path found costs no more than the best one, but for the rounding of its costs. */
static inline void check_path(const float *y, const int *e, double rms, const struct tern_kvq_table *tab, bool key,
                              int n)
{
    double x[128], cost = 0;
    int d[128];
    for (int i = n - 1, at = -1; i >= 0; i--) { /* the last of the chain is the one that stands before no other */
        for (int k = 0; k < n && i == n - 1; k++) {
            bool before_another = false;
            for (int j = 0; j < n; j++)
                before_another = before_another || dim_before(j, n, tab->bits, key) == k;
            at = before_another ? at : k;
        }
        d[i] = at;
        at = dim_before(at, n, tab->bits, key);
    }
    for (int i = 0; i < n; i++) {
        x[i] = fmax(-127, fmin(127, (double)y[d[i]] / rms / (double)tab->unit));
        cost += (x[i] - e[d[i]]) * (x[i] - e[d[i]]);
    }
    double best = best_cost(x, tab, n);
    if (cost > best + 5 * n)
        check_fail("the path costs %g, the best one %g", cost, best);
}

#endif

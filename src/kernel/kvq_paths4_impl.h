/* kernel/kvq_paths4_impl.h - the search of kvq_trellis_impl.h through the code of 4 bits: 16 states, each with an edge
 * from all.
 *
 * Two registers of vectors go side by side: a constant of an edge is loaded once for both, and either has work while
 * the other waits for its way back, whose steps are one chain.  Sums are less by u * w of the edge with e = 0, so that
 * this edge adds nothing; then they reach from -19,760 to 38,160 above the least metric, less LOW. */
#ifndef TERN_KERNEL_KVQ_PATHS4_IMPL_H
#define TERN_KERNEL_KVQ_PATHS4_IMPL_H
#ifdef TRELLIS_LANES

#include "kernel/kvq_paths_impl.h"

#define EACH_GROUP KVQ_UNROLL for (int g = 0; g < TRELLIS_GROUPS; g++)

/* Sums before the minimum, for every state before the step: before[state * TRELLIS_GROUPS + group], as metrics are. */
KVQ_INLINE void enter4(vec *before, const struct work *w, const vec *X, const vec *least)
{
    const struct constants *k = &w->k;
    vec top[TRELLIS_GROUPS], low[TRELLIS_GROUPS];
    EACH_GROUP
    {
        top[g] = vec_adds(least[g], vec_set(KVQ_CAP));
        low[g] = vec_add(least[g], vec_set(LOW));
    }
    for (int e = 0; e < 16; e++) {
        EACH_GROUP
        {
            vec old = vec_add(merit(X[g], k->old64[e], k->old256[e]), low[g]);
            before[e * TRELLIS_GROUPS + g] = vec_sub(vec_min(w->metric[e * TRELLIS_GROUPS + g], top[g]), old);
        }
    }
}

/* The metrics after the step, and the least. */
KVQ_INLINE void leave4(struct work *w, vec *least, const vec *before, const vec *X)
{
    const struct constants *k = &w->k;
    EACH_GROUP least[g] = vec_set(INT16_MAX);
    for (int s0 = 0; s0 < 16; s0 += TRELLIS_AT_ONCE) {
        vec best[TRELLIS_AT_ONCE][TRELLIS_GROUPS];
        KVQ_UNROLL for (int s = 0; s < TRELLIS_AT_ONCE; s++)
        {
            EACH_GROUP best[s][g] = before[g];
        }
        KVQ_UNROLL for (int e = 1; e < 16; e++)
        {
            vec in[TRELLIS_GROUPS];
            EACH_GROUP in[g] = before[e * TRELLIS_GROUPS + g];
            KVQ_UNROLL for (int s = 0; s < TRELLIS_AT_ONCE; s++)
            {
                vec edge = k->edge[(s0 + s) * 16 + e];
                vec_keep(edge);
                EACH_GROUP best[s][g] = vec_min(best[s][g], vec_add(in[g], edge));
            }
        }
        KVQ_UNROLL for (int s = 0; s < TRELLIS_AT_ONCE; s++)
        {
            EACH_GROUP
            {
                vec m = vec_sub(best[s][g], merit(X[g], k->new64[s0 + s], k->new256[s0 + s]));
                w->metric[(s0 + s) * TRELLIS_GROUPS + g] = m;
                least[g] = vec_min(least[g], m);
            }
        }
    }
}

/* One step back from `state`: its newest symbol is itself; the entry, and the state before. */
KVQ_INLINE vec back4(vec *entry, const struct constants *k, const vec *before, vec state)
{
    const vec u = vec_look_up(k->a, state);
    vec best = vec_add(before[0], vec_mul(u, k->old[0])), oldest = vec_set(0);
    KVQ_UNROLL for (int e = 1; e < 16; e++)
    {
        vec sum = vec_add(before[e * TRELLIS_GROUPS], vec_mul(u, k->old[e]));
        oldest = vec_choose(vec_less(sum, best), vec_set(e), oldest);
        best = vec_min(best, sum);
    }
    *entry = vec_add(u, vec_look_up(k->b, oldest));
    return oldest;
}

KVQ_INLINE vec last_state4(const vec *metric)
{
    vec best = metric[0], state = vec_set(0);
    for (int s = 1; s < 16; s++) {
        vec m = metric[s * TRELLIS_GROUPS];
        state = vec_choose(vec_less(m, best), vec_set(s), state);
        best = vec_min(best, m);
    }
    return state;
}

/* The best paths of all lanes: as best_paths64. */
KVQ_INLINE void best_paths4(struct work *w, struct lanes *l, const float *scale, int n)
{
    enum { STEP = 16 * TRELLIS_GROUPS };
    vec least[TRELLIS_GROUPS], state[TRELLIS_GROUPS];
    floats ye[TRELLIS_GROUPS][2] = {0}, ee[TRELLIS_GROUPS][2] = {0};
    EACH_GROUP least[g] = vec_set(0);
    for (int s = 0; s < STEP; s++)
        w->metric[s] = vec_set(0);
    for (int i = 0; i < n; i++) {
        const float *y = w->y[w->order[i]];
        vec X[TRELLIS_GROUPS];
        EACH_GROUP X[g] = vec_on_grid(y + g * TRELLIS_LANES, scale + g * TRELLIS_LANES);
        enter4(w->before + i * STEP, w, X, least);
        leave4(w, least, w->before + i * STEP, X);
    }
    EACH_GROUP state[g] = last_state4(w->metric + g);
    for (int i = n - 1; i >= 0; i--) {
        const int d = w->order[i];
        EACH_GROUP
        {
            vec entry, before = back4(&entry, &w->k, w->before + i * STEP + g, state[g]);
            add_entry(ye[g], ee[g], w->y[d] + g * TRELLIS_LANES, entry);
            store_bytes(w->symbol[d] + g * TRELLIS_LANES, state[g]);
            state[g] = before;
        }
    }
    EACH_GROUP keep_sums(l, g * TRELLIS_LANES, state[g], ye[g], ee[g]);
}

#endif
#endif

/* kernel/kvq_paths_impl.h - the search of kvq_trellis_impl.h: what it keeps, and the best path of every lane of one
 * register through the codes of 3 and 2 bits, which have 64 states.  kvq_paths4_impl.h includes it. */
#ifndef TERN_KERNEL_KVQ_PATHS_IMPL_H
#define TERN_KERNEL_KVQ_PATHS_IMPL_H
#ifdef TRELLIS_LANES

#include "kernel/kvq_encode_impl.h"

/* Sums are kept less this, for they reach farther up than down: from -13,360 to 36,194 above the least metric, as
 * tables may be (kernel/kvq.h), of which 16 bits hold no more than 32,767. */
#define LOW    8192
#define BARRED 20000 /* above every sum of a first step, and no constant of an edge wraps it */

#define TRELLIS_GROUPS (TRELLIS_WIDE / TRELLIS_LANES) /* registers side by side */

/* Constants of a code in every lane.  A state is newest symbol * n_low + low; an edge into it has the old symbol e. */
struct constants {
    vec old[16], old64[16], old256[16];                /* old parts w, 64 w and 256 w */
    vec new64[KVQ_MAX_STATES], new256[KVQ_MAX_STATES]; /* likewise new parts u */
    /* u * w: [low][newest][e].  3 bits: [newest][e], without table B.  4 bits: [newest][e] u * (w - w of e = 0), and
     * new64 makes up for it. */
    vec edge[256];
    vec cross[KVQ_MAX_STATES]; /* 3 bits: table B's share of u * w, [low][e] */
    vec a, b, c;               /* for vec_look_up */
};

struct work {
    struct constants k;
    vec metric[KVQ_MAX_STATES];
    vec before[TERN_KVQ_BLOCK * KVQ_MAX_STATES]; /* by step, state before it and, with 16 states, register */
    float y[TERN_KVQ_BLOCK][TRELLIS_WIDE];       /* by dim of the block */
    uint8_t symbol[TERN_KVQ_BLOCK][TRELLIS_WIDE], best[TERN_KVQ_BLOCK][TRELLIS_WIDE]; /* likewise */
    uint8_t order[TERN_KVQ_BLOCK];                                                    /* dims in chain order */
};
_Static_assert(sizeof(struct work) <= TERN_KVQ_SCRATCH, "TERN_KVQ_SCRATCH is too small");

/* All lanes of one block. */
struct lanes {
    float ss[TRELLIS_WIDE], inv[TRELLIS_WIDE], ye[TRELLIS_WIDE], ee[TRELLIS_WIDE];
    int16_t state[TRELLIS_WIDE];
} __attribute__((aligned(64)));

KVQ_INLINE int old_index(int low, int e, const int bits)
{
    return bits == 2 ? 4 * e + (low & 3) : e;
}

KVQ_INLINE int new_index(int newest, int low, const int bits)
{
    return bits == 4 ? newest : bits == 3 ? 8 * newest + low : (low & 12) + newest;
}

/* States that share their newest symbol. */
KVQ_INLINE int n_lows(const int bits)
{
    return kvq_states(bits) >> bits;
}

KVQ_INLINE void make_constants(struct constants *k, const struct tern_kvq_table *tab, const int bits)
{
    const int n_low = n_lows(bits), n_edges = 1 << bits;
    for (int s = 0; s < kvq_states(bits); s++) {
        int newest = s / n_low, low = s % n_low, u = kvq_new_part(tab, s, bits);
        int w0 = bits == 4 ? kvq_old_part(tab, s, 0, bits) : 0;
        k->new64[new_index(newest, low, bits)] = vec_set(64 * u + 128 * w0);
        k->new256[new_index(newest, low, bits)] = vec_set(256 * u);
        for (int e = 0; e < n_edges; e++) {
            int w = kvq_old_part(tab, s, e, bits), b = bits == 3 ? tab->b[low] : 0;
            k->old[old_index(low, e, bits)] = vec_set(w);
            k->old64[old_index(low, e, bits)] = vec_set(64 * w);
            k->old256[old_index(low, e, bits)] = vec_set(256 * w);
            k->edge[((bits == 2 ? low << bits : 0) + newest) * n_edges + e] = vec_set((u - b) * (w - w0));
            k->cross[bits == 3 ? low * n_edges + e : 0] = vec_set(b * w);
        }
    }
    k->a = vec_table(tab->entry);
    k->b = vec_table(tab->b);
    k->c = vec_table(tab->c);
}

/* Minus half_cost. */
KVQ_INLINE vec merit(vec X, vec w64, vec w256)
{
    return vec_mulhrs(vec_sub(X, w64), w256);
}

/* Sums before the minimum, for every state before the step. */
KVQ_INLINE void enter(vec *before, const struct work *w, vec X, vec least, bool first, const int bits)
{
    const struct constants *k = &w->k;
    const int n_edges = 1 << bits, n_old = bits == 3 ? 8 : 16;
    const vec top = vec_adds(least, vec_set(KVQ_CAP));
    vec old[16];
    least = vec_add(least, vec_set(LOW));
    for (int i = 0; i < n_old; i++)
        old[i] = vec_add(merit(X, k->old64[i], k->old256[i]), least);
    for (int low = 0; low < n_lows(bits); low++) {
        KVQ_UNROLL for (int e = 0; e < n_edges; e++)
        {
            vec m = vec_min(w->metric[low * n_edges + e], top);
            if (bits == 3)
                m = vec_add(m, k->cross[low * n_edges + e]);
            before[low * n_edges + e] = vec_sub(m, old[old_index(low, e, bits)]);
        }
    }
    for (int s = 0; first && s < kvq_states(bits); s++) {
        if (s % n_edges >= kvq_first_edges(bits))
            before[s] = vec_set(BARRED);
    }
}

/* The metrics after the step; returns the least. */
KVQ_INLINE vec leave(struct work *w, const vec *before, vec X, const int bits)
{
    const struct constants *k = &w->k;
    const int n_edges = 1 << bits, n_low = n_lows(bits), n_new = bits == 3 ? 64 : 16, at_once = bits == 2 ? 4 : 8;
    vec new[KVQ_MAX_STATES], least = vec_set(INT16_MAX);
    for (int i = 0; i < n_new; i++)
        new[i] = merit(X, k->new64[i], k->new256[i]);
    for (int low = 0; low < n_low; low++) {
        for (int s0 = 0; s0 < n_edges; s0 += at_once) {
            /* The compiler must not know where: it would see that 3 bits have the same edges for every low, and copy
             * all 64 before the loop. */
            const vec *edge = k->edge + ((bits == 2 ? low * n_edges : 0) + s0) * n_edges;
            __asm__("" : "+r"(edge));
            vec best[8];
            KVQ_UNROLL for (int e = 0; e < n_edges; e++)
            {
                vec in = before[low * n_edges + e];
                KVQ_UNROLL for (int s = 0; s < at_once; s++)
                {
                    vec sum = vec_add(in, edge[s * n_edges + e]);
                    best[s] = e ? vec_min(best[s], sum) : sum;
                }
            }
            KVQ_UNROLL for (int s = 0; s < at_once; s++)
            {
                best[s] = vec_sub(best[s], new[new_index(s0 + s, low, bits)]);
                w->metric[(s0 + s) * n_low + low] = best[s];
                least = vec_min(least, best[s]);
            }
        }
    }
    return least;
}

/* What the edges into each lane's state add up to before its own constant: before[low * n_edges + e]. */
KVQ_INLINE void pick(vec in[16], const vec *before, vec low, const int bits)
{
    const int n_edges = 1 << bits;
    KVQ_UNROLL for (int e = 0; e < n_edges; e++) in[e] = before[e];
    for (int l = 1; l < n_lows(bits); l++) {
        lane_set here = vec_equal(low, vec_set(l));
        KVQ_UNROLL for (int e = 0; e < n_edges; e++) in[e] = vec_choose(here, before[l * n_edges + e], in[e]);
    }
}

/* One step back from `state`: its newest symbol, the entry, and the state before. */
KVQ_INLINE vec back(vec *symbol, vec *entry, const struct constants *k, const vec *before, vec state, const int bits)
{
    const int n_edges = 1 << bits, top = bits * (kvq_memory(bits) - 1);
    const vec low = vec_and(state, vec_set(n_lows(bits) - 1));
    const vec newest = vec_shr(state, top), pair = vec_and(low, vec_set(3));
    const vec u = vec_look_up(k->a, bits == 2 ? vec_or(vec_sub(low, pair), newest) : newest);
    vec in[16], best = vec_set(0), oldest = best;
    pick(in, before, low, bits);
    KVQ_UNROLL for (int e = 0; e < n_edges; e++)
    {
        vec w = bits == 2 ? vec_look_up(k->b, vec_add(pair, vec_set(4 * e))) : k->old[e];
        vec sum = vec_add(in[e], vec_mul(u, w));
        if (e) {
            lane_set less = vec_less(sum, best);
            oldest = vec_choose(less, vec_set(e), oldest);
        }
        best = e ? vec_min(best, sum) : sum;
    }
    vec b = bits == 3 ? low : vec_add(vec_shl(oldest, 2), pair);
    *symbol = newest;
    *entry = vec_add(u, vec_look_up(k->b, b));
    if (bits == 3)
        *entry = vec_add(*entry, vec_look_up(k->c, oldest));
    return vec_or(vec_shl(low, bits), oldest);
}

KVQ_INLINE vec last_state(const struct work *w, const int bits)
{
    vec best = w->metric[0], state = vec_set(0);
    for (int s = 1; s < kvq_states(bits); s++) {
        lane_set less = vec_less(w->metric[s], best);
        state = vec_choose(less, vec_set(s), state);
        best = vec_min(best, w->metric[s]);
    }
    return state;
}

/* The sums that scales need, along the way back: those of one dim's entries to y * entry and entry^2. */
KVQ_INLINE void add_entry(floats ye[2], floats ee[2], const float *y, vec entry)
{
    KVQ_UNROLL for (int j = 0; j < 2; j++)
    {
        floats e = vec_floats(entry, j);
        ye[j] = floats_fma(((const floats *)y)[j], e, ye[j]);
        ee[j] = floats_fma(e, e, ee[j]); /* integers below 2^24: exact */
    }
}

KVQ_INLINE void keep_sums(struct lanes *l, int at, vec state, const floats ye[2], const floats ee[2])
{
    *(vec *)(l->state + at) = state;
    for (int j = 0; j < 2; j++) {
        *(floats *)(l->ye + at + j * TRELLIS_LANES / 2) = ye[j];
        *(floats *)(l->ee + at + j * TRELLIS_LANES / 2) = ee[j];
    }
}

/* The best paths of the lanes from `at` on, chains of n values times `scale`: w->symbol, the states before the chains,
 * and the sums that their scales need. */
KVQ_INLINE void best_paths64(struct work *w, struct lanes *l, int at, const float *scale, int n, const int bits)
{
    vec least = vec_set(0);
    for (int s = 0; s < KVQ_MAX_STATES; s++)
        w->metric[s] = least;
    for (int i = 0; i < n; i++) {
        vec X = vec_on_grid(w->y[w->order[i]] + at, scale + at), *before = w->before + i * KVQ_MAX_STATES;
        enter(before, w, X, least, i == 0, bits);
        least = leave(w, before, X, bits);
    }
    vec state = last_state(w, bits);
    floats ye[2] = {{0}, {0}}, ee[2] = {{0}, {0}};
    for (int i = n - 1; i >= 0; i--) {
        vec symbol, entry;
        state = back(&symbol, &entry, &w->k, w->before + i * KVQ_MAX_STATES, state, bits);
        add_entry(ye, ee, w->y[w->order[i]] + at, entry);
        store_bytes(w->symbol[w->order[i]] + at, symbol);
    }
    keep_sums(l, at, state, ye, ee);
}

#endif
#endif

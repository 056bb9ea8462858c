/* avx2/kvq_trellis.c - the best path through a trellis code for 16 vectors at once, one in each 16-bit lane.
 *
 * An edge costs half_cost(new part) + half_cost(old part) + new part * old part (kernel/kvq.h).  The first term is the
 * same for all edges into a state and the second for all edges that share an old part, so a step is one addition of a
 * constant and one minimum per edge.  Sums before the minimum are kept for every step; the way back repeats the minimum
 * for the states on the path instead of recording all of them. */
#include "kernel/avx2/kvq_simd.h"

#include <math.h>

#define LANES  16
#define BARRED 26300 /* above every sum that can win, and no constant of an edge wraps it */

/* Constants of a code in every lane.  A state is newest symbol * n_low + low; an edge into it has the old symbol e. */
struct constants {
    __m256i old64[16], old256[16];                         /* old parts w, 64 w and 256 w */
    __m256i new64[KVQ_MAX_STATES], new256[KVQ_MAX_STATES]; /* likewise new parts u */
    __m256i edge[256];             /* u * w: [low][newest][e]; 3 bits: [newest][e], without table B */
    __m256i cross[KVQ_MAX_STATES]; /* 3 bits: table B's share of u * w, [low][e] */
    __m256i a, b, c;               /* the tables as bytes */
};

struct work {
    struct constants k;
    __m256i metric[KVQ_MAX_STATES];
    __m256i before[TERN_KVQ_BLOCK][KVQ_MAX_STATES]; /* by step and state before it */
    float y[TERN_KVQ_BLOCK][LANES];                 /* in chain order */
    uint8_t order[TERN_KVQ_BLOCK];                  /* dims of the block in chain order */
    uint8_t symbol[TERN_KVQ_BLOCK][LANES], best[TERN_KVQ_BLOCK][LANES];
};
_Static_assert(sizeof(struct work) <= TERN_KVQ_SCRATCH, "TERN_KVQ_SCRATCH is too small");

/* Sixteen lanes of one block. */
struct lanes {
    float ss[LANES], inv[LANES], ye[LANES], ee[LANES];
    int16_t state[LANES];
} __attribute__((aligned(32)));

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
        k->new64[new_index(newest, low, bits)] = _mm256_set1_epi16((int16_t)(64 * u));
        k->new256[new_index(newest, low, bits)] = _mm256_set1_epi16((int16_t)(256 * u));
        for (int e = 0; e < n_edges; e++) {
            int w = kvq_old_part(tab, s, e, bits), b = bits == 3 ? tab->b[low] : 0;
            k->old64[old_index(low, e, bits)] = _mm256_set1_epi16((int16_t)(64 * w));
            k->old256[old_index(low, e, bits)] = _mm256_set1_epi16((int16_t)(256 * w));
            k->edge[((bits == 2 ? low << bits : 0) + newest) * n_edges + e] = _mm256_set1_epi16((int16_t)((u - b) * w));
            k->cross[bits == 3 ? low * n_edges + e : 0] = _mm256_set1_epi16((int16_t)(b * w));
        }
    }
    k->a = kvq_repeat(tab->entry, 16);
    k->b = kvq_repeat(tab->b, 16);
    k->c = kvq_repeat(tab->c, 16);
}

/* Minus half_cost. */
KVQ_INLINE __m256i merit(__m256i X, __m256i w64, __m256i w256)
{
    return _mm256_mulhrs_epi16(_mm256_sub_epi16(X, w64), w256);
}

/* Sums before the minimum, for every state before the step. */
KVQ_INLINE void enter(__m256i *before, const struct work *w, __m256i X, __m256i least, bool first, const int bits)
{
    const struct constants *k = &w->k;
    const int n_edges = 1 << bits, n_old = bits == 3 ? 8 : 16;
    const __m256i top = _mm256_adds_epi16(least, _mm256_set1_epi16(KVQ_CAP));
    __m256i old[16];
    for (int i = 0; i < n_old; i++)
        old[i] = _mm256_add_epi16(merit(X, k->old64[i], k->old256[i]), least);
    for (int low = 0; low < n_lows(bits); low++) {
        KVQ_UNROLL for (int e = 0; e < n_edges; e++)
        {
            __m256i m = _mm256_min_epi16(w->metric[low * n_edges + e], top);
            if (bits == 3)
                m = _mm256_add_epi16(m, k->cross[low * n_edges + e]);
            before[low * n_edges + e] = _mm256_sub_epi16(m, old[old_index(low, e, bits)]);
        }
    }
    for (int s = 0; first && s < kvq_states(bits); s++) {
        if (s % n_edges >= kvq_first_edges(bits))
            before[s] = _mm256_set1_epi16(BARRED);
    }
}

/* The metrics after the step; returns the least. */
KVQ_INLINE __m256i leave(struct work *w, const __m256i *before, __m256i X, const int bits)
{
    const struct constants *k = &w->k;
    const int n_edges = 1 << bits, n_low = n_lows(bits), n_new = bits == 3 ? 64 : 16, at_once = bits == 2 ? 4 : 8;
    __m256i new[KVQ_MAX_STATES], least = _mm256_set1_epi16(INT16_MAX);
    for (int i = 0; i < n_new; i++)
        new[i] = merit(X, k->new64[i], k->new256[i]);
    for (int low = 0; low < n_low; low++) {
        for (int s0 = 0; s0 < n_edges; s0 += at_once) {
            const __m256i *edge = k->edge + ((bits == 2 ? low * n_edges : 0) + s0) * n_edges;
            __m256i best[8];
            KVQ_UNROLL for (int e = 0; e < n_edges; e++)
            {
                __m256i in = before[low * n_edges + e];
                KVQ_UNROLL for (int s = 0; s < at_once; s++)
                {
                    __m256i sum = _mm256_add_epi16(in, edge[s * n_edges + e]);
                    best[s] = e ? _mm256_min_epi16(best[s], sum) : sum;
                }
            }
            KVQ_UNROLL for (int s = 0; s < at_once; s++)
            {
                best[s] = _mm256_sub_epi16(best[s], new[new_index(s0 + s, low, bits)]);
                w->metric[(s0 + s) * n_low + low] = best[s];
                least = _mm256_min_epi16(least, best[s]);
            }
        }
    }
    return least;
}

/* Lane-wise table[i] of small non-negative i, sign-extended. */
KVQ_INLINE __m256i look_up(__m256i table, __m256i i)
{
    __m256i high = _mm256_or_si256(_mm256_slli_epi16(i, 8), _mm256_set1_epi16(0x0080)); /* low bytes become 0 */
    return _mm256_srai_epi16(_mm256_shuffle_epi8(table, high), 8);
}

/* What the edges into each lane's state add up to before its own constant: before[low * n_edges + e]. */
KVQ_INLINE void pick(__m256i in[16], const __m256i *before, __m256i low, const int bits)
{
    const int n_edges = 1 << bits;
    KVQ_UNROLL for (int e = 0; e < n_edges; e++) in[e] = before[e];
    for (int l = 1; l < n_lows(bits); l++) {
        __m256i here = _mm256_cmpeq_epi16(low, _mm256_set1_epi16((int16_t)l));
        KVQ_UNROLL for (int e = 0; e < n_edges; e++) in[e] = _mm256_blendv_epi8(in[e], before[l * n_edges + e], here);
    }
}

/* One step back from `state`: its newest symbol, the entry, and the state before. */
KVQ_INLINE __m256i back(__m256i *symbol, __m256i *entry, const struct constants *k, const __m256i *before,
                        __m256i state, const int bits)
{
    const int n_edges = 1 << bits, top = bits * (kvq_memory(bits) - 1);
    const __m256i low = _mm256_and_si256(state, _mm256_set1_epi16((int16_t)(n_lows(bits) - 1)));
    const __m256i newest = _mm256_srli_epi16(state, top), pair = _mm256_and_si256(low, _mm256_set1_epi16(3));
    const __m256i u = look_up(k->a, bits == 2 ? _mm256_or_si256(_mm256_sub_epi16(low, pair), newest) : newest);
    __m256i in[16], best = _mm256_setzero_si256(), oldest = best;
    pick(in, before, low, bits);
    KVQ_UNROLL for (int e = 0; e < n_edges; e++)
    {
        __m256i w = bits == 2 ? look_up(k->b, _mm256_add_epi16(pair, _mm256_set1_epi16((int16_t)(4 * e))))
                              : _mm256_srai_epi16(k->old64[e], 6);
        __m256i sum = _mm256_add_epi16(in[e], _mm256_mullo_epi16(u, w));
        if (e) {
            __m256i less = _mm256_cmpgt_epi16(best, sum);
            oldest = _mm256_blendv_epi8(oldest, _mm256_set1_epi16((int16_t)e), less);
        }
        best = e ? _mm256_min_epi16(best, sum) : sum;
    }
    __m256i b = bits == 4 ? oldest : bits == 3 ? low : _mm256_add_epi16(_mm256_slli_epi16(oldest, 2), pair);
    *symbol = newest;
    *entry = _mm256_add_epi16(u, look_up(k->b, b));
    if (bits == 3)
        *entry = _mm256_add_epi16(*entry, look_up(k->c, oldest));
    return _mm256_or_si256(_mm256_slli_epi16(low, bits), oldest);
}

KVQ_INLINE __m256i last_state(const struct work *w, const int bits)
{
    __m256i best = w->metric[0], state = _mm256_setzero_si256();
    for (int s = 1; s < kvq_states(bits); s++) {
        __m256i less = _mm256_cmpgt_epi16(best, w->metric[s]);
        state = _mm256_blendv_epi8(state, _mm256_set1_epi16((int16_t)s), less);
        best = _mm256_min_epi16(best, w->metric[s]);
    }
    return state;
}

/* Eight values on the grid of 1/128. */
KVQ_INLINE __m256i on_grid(const float *y, const float *scale)
{
    const __m256 hi = _mm256_set1_ps(16256.0f), lo = _mm256_set1_ps(-16256.0f);
    __m256 x = _mm256_mul_ps(_mm256_load_ps(y), _mm256_load_ps(scale));
    return _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(x, hi), lo));
}

/* The best paths of 16 chains of n values times `scale`: w->symbol, the states before the chains, and the sums that
 * their scales need. */
KVQ_INLINE void best_paths(struct work *w, struct lanes *l, const float *scale, int n, const int bits)
{
    __m256i least = _mm256_setzero_si256();
    for (int s = 0; s < kvq_states(bits); s++)
        w->metric[s] = least;
    for (int i = 0; i < n; i++) {
        __m256i X = _mm256_packs_epi32(on_grid(w->y[i], scale), on_grid(w->y[i] + 8, scale + 8));
        X = _mm256_permute4x64_epi64(X, 0xD8);
        enter(w->before[i], w, X, least, i == 0, bits);
        least = leave(w, w->before[i], X, bits);
    }
    __m256i state = last_state(w, bits);
    __m256 ye[2], ee[2];
    ye[0] = ye[1] = ee[0] = ee[1] = _mm256_setzero_ps();
    for (int i = n - 1; i >= 0; i--) {
        __m256i symbol, entry;
        state = back(&symbol, &entry, &w->k, w->before[i], state, bits);
        __m128i half[2] = {_mm256_castsi256_si128(entry), _mm256_extracti128_si256(entry, 1)};
        KVQ_UNROLL for (int j = 0; j < 2; j++)
        {
            __m256 e = _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(half[j]));
            ye[j] = _mm256_fmadd_ps(_mm256_load_ps(w->y[i] + 8 * j), e, ye[j]);
            ee[j] = _mm256_fmadd_ps(e, e, ee[j]); /* integers below 2^24: exact */
        }
        _mm_store_si128((__m128i *)w->symbol[i],
                        _mm_packus_epi16(_mm256_castsi256_si128(symbol), _mm256_extracti128_si256(symbol, 1)));
    }
    _mm256_store_si256((__m256i *)l->state, state);
    for (int j = 0; j < 2; j++) {
        _mm256_store_ps(l->ye + 8 * j, ye[j]);
        _mm256_store_ps(l->ee + 8 * j, ee[j]);
    }
}

/* 16 vectors, of which the first n_x count: x, codes and head begin with the first of them and at the block. */
KVQ_INLINE void encode_lanes(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key,
                             int dim, int n, int n_x, struct work *w, const int bits)
{
    struct lanes l;
    float scale[LANES] __attribute__((aligned(32))), most[LANES], gain;
    uint8_t better[LANES] __attribute__((aligned(16)));
    for (int t = 0; t < LANES; t++) {
        const float *y = x + (size_t)(t < n_x ? t : n_x - 1) * dim;
        l.ss[t] = kvq_energy(y, n);
        l.inv[t] = 1.0f / sqrtf(l.ss[t] / (float)n);
        most[t] = -INFINITY;
        for (int i = 0; i < n; i++)
            w->y[i][t] = y[w->order[i]];
    }
    for (int c = 0; c < tab->n_prescale; c++) {
        for (int t = 0; t < LANES; t++)
            scale[t] = l.inv[t] * kvq_prescale[c] * (128.0f / tab->unit);
        best_paths(w, &l, scale, n, bits);
        for (int t = 0; t < LANES; t++) {
            uint16_t h = kvq_trellis_head(&gain, l.ss[t], l.ye[t], l.ee[t], tab, key);
            better[t] = gain > most[t] ? 255 : 0;
            if (better[t] && t < n_x)
                head[t] = (uint16_t)(h | kvq_start_bits(l.state[t], bits));
            most[t] = better[t] ? gain : most[t];
        }
        __m128i mask = _mm_load_si128((const __m128i *)better);
        for (int i = 0; i < n; i++) {
            __m128i *to = (__m128i *)w->best[i];
            *to = _mm_blendv_epi8(*to, _mm_load_si128((const __m128i *)w->symbol[i]), mask);
        }
    }
    for (int t = 0; t < n_x; t++) {
        for (int i = 0; i < n; i++)
            codes[(size_t)t * dim + w->order[i]] = w->best[i][t];
        if (!(l.ss[t] >= TERN_KVQ_TINY && l.ss[t] < INFINITY)) {
            memset(codes + (size_t)t * dim, 1 << (bits - 1), (size_t)n);
            head[t] = 0;
        }
    }
}

KVQ_INLINE void encode_bits(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key,
                            int dim, int n, struct work *w, const int bits)
{
    make_constants(&w->k, tab, bits);
    for (int d = 0; d < dim; d += TERN_KVQ_BLOCK) {
        int bn = kvq_block_dims(dim, d);
        kvq_chain(w->order, bn, bits, key);
        for (int t = 0; t < n; t += LANES) {
            size_t at = (size_t)t * dim + d;
            encode_lanes(codes + at, head + d / TERN_KVQ_BLOCK * 64 + t, x + at, tab, key, dim, bn,
                         n - t < LANES ? n - t : LANES, w, bits);
        }
    }
}

void tern_kvq_encode_trellis_avx2(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab,
                                  int key, int dim, int n, void *scratch)
{
    struct work *w = scratch;
    if (tab->bits == 4)
        encode_bits(codes, head, x, tab, key, dim, n, w, 4);
    else if (tab->bits == 3)
        encode_bits(codes, head, x, tab, key, dim, n, w, 3);
    else
        encode_bits(codes, head, x, tab, key, dim, n, w, 2);
}

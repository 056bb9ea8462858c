/* neon/kvq_trellis.c - the best path through a trellis code for 8 vectors at once, one in each 16-bit lane.
 *
 * An edge costs half_cost(new part) + half_cost(old part) + new part * old part (kernel/kvq.h).  The first term is the
 * same for all edges into a state and the second for all edges that share an old part, so a step is one addition of a
 * constant and one minimum per edge.  Sums before the minimum are kept for every step; the way back repeats the minimum
 * for the states on the path instead of recording all of them. */
#include "kernel/neon/kvq_simd.h"
#include "kernel/neon/simd.h"

#include <math.h>

#define LANES  8
#define BARRED 26300 /* above every sum that can win, and no constant of an edge wraps it */

/* Constants of a code in every lane.  A state is newest symbol * n_low + low; an edge into it has the old symbol e. */
struct constants {
    int16x8_t old64[16], old256[16];                         /* old parts w, 64 w and 256 w */
    int16x8_t new64[KVQ_MAX_STATES], new256[KVQ_MAX_STATES]; /* likewise new parts u */
    int16x8_t edge[256];             /* u * w: [low][newest][e]; 3 bits: [newest][e], without table B */
    int16x8_t cross[KVQ_MAX_STATES]; /* 3 bits: table B's share of u * w, [low][e] */
    int8x16_t a, b, c;               /* the tables as bytes */
};

struct work {
    struct constants k;
    int16x8_t metric[KVQ_MAX_STATES];
    int16x8_t before[TERN_KVQ_BLOCK][KVQ_MAX_STATES]; /* by step and state before it */
    float y[TERN_KVQ_BLOCK][LANES];                   /* in chain order */
    uint8_t order[TERN_KVQ_BLOCK];                    /* dims of the block in chain order */
    uint8_t symbol[TERN_KVQ_BLOCK][LANES], best[TERN_KVQ_BLOCK][LANES];
};
_Static_assert(sizeof(struct work) <= TERN_KVQ_SCRATCH, "TERN_KVQ_SCRATCH is too small");

/* The lanes of one block. */
struct lanes {
    float ss[LANES], inv[LANES], ye[LANES], ee[LANES];
    int16_t state[LANES];
};

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
        k->new64[new_index(newest, low, bits)] = vdupq_n_s16((int16_t)(64 * u));
        k->new256[new_index(newest, low, bits)] = vdupq_n_s16((int16_t)(256 * u));
        for (int e = 0; e < n_edges; e++) {
            int w = kvq_old_part(tab, s, e, bits), b = bits == 3 ? tab->b[low] : 0;
            k->old64[old_index(low, e, bits)] = vdupq_n_s16((int16_t)(64 * w));
            k->old256[old_index(low, e, bits)] = vdupq_n_s16((int16_t)(256 * w));
            k->edge[((bits == 2 ? low << bits : 0) + newest) * n_edges + e] = vdupq_n_s16((int16_t)((u - b) * w));
            k->cross[bits == 3 ? low * n_edges + e : 0] = vdupq_n_s16((int16_t)(b * w));
        }
    }
    k->a = vld1q_s8(tab->entry);
    k->b = vld1q_s8(tab->b);
    k->c = vld1q_s8(tab->c);
}

/* Minus half_cost: sqrdmulh rounds 2ab / 2^16 just as the contract does. */
KVQ_INLINE int16x8_t merit(int16x8_t X, int16x8_t w64, int16x8_t w256)
{
    return vqrdmulhq_s16(vsubq_s16(X, w64), w256);
}

/* Sums before the minimum, for every state before the step. */
KVQ_INLINE void enter(int16x8_t *before, const struct work *w, int16x8_t X, int16x8_t least, bool first, const int bits)
{
    const struct constants *k = &w->k;
    const int n_edges = 1 << bits, n_old = bits == 3 ? 8 : 16;
    const int16x8_t top = vqaddq_s16(least, vdupq_n_s16(KVQ_CAP));
    int16x8_t old[16];
    KVQ_UNROLL for (int i = 0; i < n_old; i++) old[i] = vaddq_s16(merit(X, k->old64[i], k->old256[i]), least);
    for (int low = 0; low < n_lows(bits); low++) {
        KVQ_UNROLL for (int e = 0; e < n_edges; e++)
        {
            int16x8_t m = vminq_s16(w->metric[low * n_edges + e], top);
            if (bits == 3)
                m = vaddq_s16(m, k->cross[low * n_edges + e]);
            before[low * n_edges + e] = vsubq_s16(m, old[old_index(low, e, bits)]);
        }
    }
    for (int s = 0; first && s < kvq_states(bits); s++) {
        if (s % n_edges >= kvq_first_edges(bits))
            before[s] = vdupq_n_s16(BARRED);
    }
}

/* The metrics after the step; returns the least. */
KVQ_INLINE int16x8_t leave(struct work *w, const int16x8_t *before, int16x8_t X, const int bits)
{
    const struct constants *k = &w->k;
    const int n_edges = 1 << bits, n_low = n_lows(bits);
    int16x8_t least = vdupq_n_s16(INT16_MAX);
    for (int low = 0; low < n_low; low++) {
        const int16x8_t *edge = k->edge + (bits == 2 ? low * n_edges * n_edges : 0);
        int16x8_t best[16];
        KVQ_UNROLL for (int e = 0; e < n_edges; e++)
        {
            int16x8_t in = before[low * n_edges + e];
            KVQ_UNROLL for (int s = 0; s < n_edges; s++)
            {
                int16x8_t sum = vaddq_s16(in, edge[s * n_edges + e]);
                best[s] = e ? vminq_s16(best[s], sum) : sum;
            }
        }
        KVQ_UNROLL for (int s = 0; s < n_edges; s++)
        {
            int i = new_index(s, low, bits);
            best[s] = vsubq_s16(best[s], merit(X, k->new64[i], k->new256[i]));
            w->metric[s * n_low + low] = best[s];
            least = vminq_s16(least, best[s]);
        }
    }
    return least;
}

/* Lane-wise table[i] of small non-negative i. */
KVQ_INLINE int16x8_t look_up(int8x16_t table, int16x8_t i)
{
    return vmovl_s8(vqtbl1_s8(table, vreinterpret_u8_s8(vmovn_s16(i))));
}

/* What the edges into each lane's state add up to before its own constant: before[low * n_edges + e]. */
KVQ_INLINE void pick(int16x8_t in[16], const int16x8_t *before, int16x8_t low, const int bits)
{
    const int n_edges = 1 << bits;
    KVQ_UNROLL for (int e = 0; e < n_edges; e++) in[e] = before[e];
    for (int l = 1; l < n_lows(bits); l++) {
        uint16x8_t here = vceqq_s16(low, vdupq_n_s16((int16_t)l));
        KVQ_UNROLL for (int e = 0; e < n_edges; e++) in[e] = vbslq_s16(here, before[l * n_edges + e], in[e]);
    }
}

/* One step back from `state`: its newest symbol, the entry, and the state before. */
KVQ_INLINE int16x8_t back(int16x8_t *symbol, int16x8_t *entry, const struct constants *k, const int16x8_t *before,
                          int16x8_t state, const int bits)
{
    const int n_edges = 1 << bits, top = bits * (kvq_memory(bits) - 1);
    const int16x8_t low = vandq_s16(state, vdupq_n_s16((int16_t)(n_lows(bits) - 1)));
    const int16x8_t newest = state >> top, pair = vandq_s16(low, vdupq_n_s16(3));
    const int16x8_t u = look_up(k->a, bits == 2 ? vorrq_s16(vsubq_s16(low, pair), newest) : newest);
    int16x8_t in[16], best = vdupq_n_s16(0), oldest = best;
    pick(in, before, low, bits);
    KVQ_UNROLL for (int e = 0; e < n_edges; e++)
    {
        int16x8_t w = bits == 2 ? look_up(k->b, vaddq_s16(pair, vdupq_n_s16((int16_t)(4 * e)))) : k->old64[e] >> 6;
        int16x8_t sum = vmlaq_s16(in[e], u, w);
        if (e)
            oldest = vbslq_s16(vcgtq_s16(best, sum), vdupq_n_s16((int16_t)e), oldest);
        best = e ? vminq_s16(best, sum) : sum;
    }
    int16x8_t b = bits == 4 ? oldest : bits == 3 ? low : vaddq_s16(vshlq_n_s16(oldest, 2), pair);
    *symbol = newest;
    *entry = vaddq_s16(u, look_up(k->b, b));
    if (bits == 3)
        *entry = vaddq_s16(*entry, look_up(k->c, oldest));
    return vorrq_s16(low << bits, oldest);
}

KVQ_INLINE int16x8_t last_state(const struct work *w, const int bits)
{
    int16x8_t best = w->metric[0], state = vdupq_n_s16(0);
    for (int s = 1; s < kvq_states(bits); s++) {
        state = vbslq_s16(vcgtq_s16(best, w->metric[s]), vdupq_n_s16((int16_t)s), state);
        best = vminq_s16(best, w->metric[s]);
    }
    return state;
}

/* Four values on the grid of 1/128. */
KVQ_INLINE int16x4_t on_grid(const float *y, const float *scale)
{
    float32x4_t x = vminnmq_f32(vmulq_f32(vld1q_f32(y), vld1q_f32(scale)), vdupq_n_f32(16256.0f));
    return vmovn_s32(vcvtnq_s32_f32(vmaxnmq_f32(x, vdupq_n_f32(-16256.0f))));
}

/* The best paths of the lanes' chains of n values times `scale`: w->symbol, the states before the chains, and the sums
 * that their scales need. */
KVQ_INLINE void best_paths(struct work *w, struct lanes *l, const float *scale, int n, const int bits)
{
    int16x8_t least = vdupq_n_s16(0);
    for (int s = 0; s < kvq_states(bits); s++)
        w->metric[s] = least;
    for (int i = 0; i < n; i++) {
        int16x8_t X = vcombine_s16(on_grid(w->y[i], scale), on_grid(w->y[i] + 4, scale + 4));
        enter(w->before[i], w, X, least, i == 0, bits);
        least = leave(w, w->before[i], X, bits);
    }
    int16x8_t state = last_state(w, bits);
    float32x4_t ye[2], ee[2];
    ye[0] = ye[1] = ee[0] = ee[1] = vdupq_n_f32(0);
    for (int i = n - 1; i >= 0; i--) {
        int16x8_t symbol, entry;
        state = back(&symbol, &entry, &w->k, w->before[i], state, bits);
        int16x4_t half[2] = {vget_low_s16(entry), vget_high_s16(entry)};
        KVQ_UNROLL for (int j = 0; j < 2; j++)
        {
            float32x4_t e = vcvtq_f32_s32(vmovl_s16(half[j]));
            ye[j] = vfmaq_f32(ye[j], vld1q_f32(w->y[i] + 4 * j), e);
            ee[j] = vfmaq_f32(ee[j], e, e); /* integers below 2^24: exact */
        }
        vst1_u8(w->symbol[i], vreinterpret_u8_s8(vmovn_s16(symbol)));
    }
    vst1q_s16(l->state, state);
    for (int j = 0; j < 2; j++) {
        vst1q_f32(l->ye + 4 * j, ye[j]);
        vst1q_f32(l->ee + 4 * j, ee[j]);
    }
}

/* LANES vectors, of which the first n_x count: x, codes and head begin with the first of them and at the block. */
KVQ_INLINE void encode_lanes(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key,
                             int dim, int n, int n_x, struct work *w, const int bits)
{
    struct lanes l;
    float scale[LANES], most[LANES], gain;
    uint8_t better[LANES];
    for (int t = 0; t < LANES; t++) {
        const float *y = x + (size_t)(t < n_x ? t : n_x - 1) * dim;
        l.ss[t] = square_sum16(y, n);
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
        for (int i = 0; i < n; i++)
            vst1_u8(w->best[i], vbsl_u8(vld1_u8(better), vld1_u8(w->symbol[i]), vld1_u8(w->best[i])));
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

void tern_kvq_encode_trellis_neon(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab,
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

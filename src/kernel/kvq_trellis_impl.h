/* kernel/kvq_trellis_impl.h - the best paths through a trellis code for as many vectors at once as two registers have
 * 16-bit lanes: what the vector levels share.
 *
 * An edge costs half_cost(new part) + half_cost(old part) + new part * old part (kernel/kvq.h).  The first term is the
 * same for all edges into a state and the second for all edges that share an old part, so a step is one addition of a
 * constant and one minimum per edge.  Sums before the minimum are kept for every step; the way back repeats the minimum
 * for the states on the path instead of recording all of them.
 *
 * A level's kvq_trellis.c defines what is done to whole registers, then includes this file (which is empty otherwise):
 *
 *     TRELLIS_LANES               lanes of a register: 8, or a multiple of 16
 *     TRELLIS_WIDE                vectors at once: lanes of two registers
 *     TRELLIS_AT_ONCE             states whose sums two registers each fit the machine's: 4 or 8
 *     vec, lane_set, floats       that many int16; a choice of them; half as many f32
 *     vec_set(i)                  i in every lane
 *     vec_add, vec_sub, vec_mul   modulo 2^16
 *     vec_adds, vec_min           with saturation; signed minimum
 *     vec_mulhrs                  (a * b + 2^14) >> 15
 *     vec_and, vec_or, vec_shl, vec_shr
 *     vec_equal, vec_less         lanes where a = b, a < b
 *     vec_choose(set, yes, no)    lane by lane
 *     vec_keep(v)                 v stays in a register: compilers would load it again for every use
 *     vec_table, vec_look_up      16 int8; those at small non-negative places
 *     vec_on_grid(y, scale)       y * scale to nearest even, kept in [-16256, 16256]; NaN becomes 16256
 *     vec_floats(v, j)            lanes of half j as f32
 *     floats_fma(a, b, c)         a * b + c
 *     store_bytes(to, v)          lanes that fit bytes
 *     choose_bytes(to, from, set) to[i] = from[i] where set[i] is 255, not where it is 0, i < TRELLIS_LANES
 *     turn_floats(to, row, i)     to[c * TRELLIS_WIDE + r] = row[r][i + c], r < TRELLIS_LANES / 2, c < 4
 *     turn_bytes(to, stride, from, n)    to[r * stride + c] = from[c * TRELLIS_WIDE + r], c < 16, r < n <= TURN_ROWS
 *     kvq_energy(y, n)            the sum of squares of the contract */
#ifndef TERN_KERNEL_KVQ_TRELLIS_IMPL_H
#define TERN_KERNEL_KVQ_TRELLIS_IMPL_H
#ifdef TRELLIS_LANES

#include <math.h>
#include "kernel/kvq_paths4_impl.h"

#if TRELLIS_LANES < 16 /* rows that turn_bytes writes at once */
#define TURN_ROWS TRELLIS_LANES
#else
#define TURN_ROWS 16
#endif

/* w->y, the energies and the inverse levels of n_x vectors; the lanes that are left repeat the last one. */
KVQ_INLINE void take(struct work *w, struct lanes *l, const float *x, int dim, int n, int n_x)
{
    const float *row[TRELLIS_WIDE];
    for (int t = 0; t < TRELLIS_WIDE; t++) {
        row[t] = x + (size_t)(t < n_x ? t : n_x - 1) * dim;
        l->ss[t] = kvq_energy(row[t], n);
        l->inv[t] = 1.0f / sqrtf(l->ss[t] / (float)n);
    }
    for (int i = 0; i < n; i += 4) {
        for (int t = 0; t < TRELLIS_WIDE; t += TRELLIS_LANES / 2)
            turn_floats(w->y[i] + t, row + t, i);
    }
}

/* w->best to the codes of n_x vectors. */
KVQ_INLINE void give(uint8_t *codes, const struct work *w, int dim, int n, int n_x)
{
    for (int t = 0; t < n_x; t += TURN_ROWS) {
        for (int i = 0; i < n; i += 16)
            turn_bytes(codes + (size_t)t * dim + i, (size_t)dim, w->best[i] + t,
                       n_x - t < TURN_ROWS ? n_x - t : TURN_ROWS);
    }
}

KVQ_INLINE void best_paths(struct work *w, struct lanes *l, const float *scale, int n, const int bits)
{
    if (bits == 4) {
        best_paths4(w, l, scale, n);
        return;
    }
    for (int at = 0; at < TRELLIS_WIDE; at += TRELLIS_LANES)
        best_paths64(w, l, at, scale, n, bits);
}

/* TRELLIS_WIDE vectors, of which the first n_x count: x, codes and head begin with the first of them and at the
 * block. */
KVQ_INLINE void encode_lanes(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key,
                             int dim, int n, int n_x, struct work *w, const int bits)
{
    struct lanes l;
    float scale[TRELLIS_WIDE] __attribute__((aligned(64))), factor[TRELLIS_WIDE], most[TRELLIS_WIDE], gain;
    uint8_t better[TRELLIS_WIDE] __attribute__((aligned(64)));
    take(w, &l, x, dim, n, n_x);
    for (int t = 0; t < TRELLIS_WIDE; t++) {
        factor[t] = 1.0f;
        most[t] = -INFINITY;
    }
    for (int c = 0; c < tab->n_prescale; c++) {
        for (int t = 0; t < TRELLIS_WIDE; t++)
            scale[t] = l.inv[t] * factor[t] * (128.0f / tab->unit);
        best_paths(w, &l, scale, n, bits);
        for (int t = 0; t < TRELLIS_WIDE; t++) {
            uint16_t h = kvq_trellis_head(&gain, l.ss[t], l.ye[t], l.ee[t], tab, key);
            better[t] = gain > most[t] ? 255 : 0;
            if (better[t] && t < n_x)
                head[t] = (uint16_t)(h | kvq_start_bits(l.state[t], bits));
            most[t] = better[t] ? gain : most[t];
            factor[t] = kvq_second_factor(l.ye[t], l.ee[t], l.inv[t], tab->unit);
        }
        for (int i = 0; i < n; i++) {
            KVQ_UNROLL for (int t = 0; t < TRELLIS_WIDE; t += TRELLIS_LANES)
            {
                choose_bytes(w->best[i] + t, w->symbol[i] + t, better + t);
            }
        }
    }
    give(codes, w, dim, n, n_x);
    for (int t = 0; t < n_x; t++) {
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
        for (int t = 0; t < n; t += TRELLIS_WIDE) {
            size_t at = (size_t)t * dim + d;
            encode_lanes(codes + at, head + d / TERN_KVQ_BLOCK * 64 + t, x + at, tab, key, dim, bn,
                         n - t < TRELLIS_WIDE ? n - t : TRELLIS_WIDE, w, bits);
        }
    }
}

KVQ_INLINE void encode_trellis(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab,
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

#endif
#endif

/* kernel/attn16_impl.h - attention in 16-bit integers (attn16.h) around its vectors: the part that is the same for all
 * instruction sets.
 *
 * Before it is included these are defined:
 *
 *     lanes                             sixteen floats
 *     lanes_set(x)                      x in all of them
 *     lanes_load(p), lanes_store(p, v)
 *     lanes_max(a, b)                   the second where the first is not greater
 *     lanes_add, lanes_sub, lanes_mul
 *     lanes_inside(v, t, t0, t1, x)     v where t + lane is in [t0, t1), else x
 *     lanes_exp2(v)                     2^v for v in [-126, 0], as ref/attn16.c has it
 *     lanes_max_of(v), lanes_sum_of(v)  in the order of vec.h
 *     shrink_of(x)                      exp2_nonpos of one float
 *     struct order, order_of(bits)      an item order
 *     lanes_put16(out, v, order)        rounded to 16 bits, in that order
 *     top_of(x, n)                      bits of the largest magnitude of n floats, infinity and NaN above all others
 *     TILE, WIDTH                       rows and panels of 16 of the largest register tile
 *
 * and after it the functions that are declared here without a body. */
#ifndef TERN_KERNEL_ATTN16_IMPL_H
#define TERN_KERNEL_ATTN16_IMPL_H

#include <string.h>
#include "kernel/attn16.h"
#include "kernel/attn16_softmax_impl.h"
#include "kernel/attn_impl.h"
#include "kernel/kvq_impl.h"

/* What a register tile multiplies: rows x with panels m, over `pairs` pairs of items, a multiple of 4. */
struct attn16_dots {
    const int16_t *x, *m;
    size_t x_stride, m_stride; /* values between rows, and between panels */
    int pairs;
};

#ifdef TILE

/* s[r*64 + 16*p ..] of `rows` rows and `panels` panels; first: the chain begins here. */
ATTN_INLINE void score_tile(float *s, const struct attn16_dots *d, const float *f, const float *scale, int scale_stride,
                            bool first, const int rows, const int panels);
/* o[r*dim + 16*p ..] */
ATTN_INLINE void accum_tile(float *o, int dim, const struct attn16_dots *d, const float *unit, int unit_stride,
                            const float *shrink, const int rows, const int panels);

/* Scales of 16 headers. */
KVQ_INLINE void put_scales(float *f, const uint16_t *head);
/* expand_k of attn16.h for codes of one kind. */
KVQ_INLINE void expand_k_bits(int16_t *out, float *f, const uint8_t *k, const uint16_t *head,
                              const struct tern_kvq_table *tab, int dim, const int bits, const bool trellis);
/* Pairs of 16 dims and 32 tokens, of the words at x. */
KVQ_INLINE void expand_group(int16_t *out, const uint8_t *const x[4], const struct kvq_tables *t, const int bits,
                             const bool trellis);

/* ---- pages ---- */

static void expand_k(int16_t *out, float *f, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab,
                     int dim)
{
    KVQ_BY_CODE(tab, expand_k_bits, out, f, k, head, tab, dim);
}

KVQ_INLINE void expand_v_bits(int16_t *out, float *f, const uint8_t *v, const uint16_t *head,
                              const struct tern_kvq_table *tab, int dim, int page, int n_pages, const int bits,
                              const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK, head += TERN_PAGE, f += n_pages * TERN_PAGE) {
        for (int half = 0; half < 2; half++) {
            const uint8_t *block = v + ((size_t)half * (size_t)dim + (size_t)d0) * 4 * bits, *x[4];
            const int n_groups = kvq_block_dims(dim, d0) / 16, first = page * TERN_PAGE + 32 * half;
            uint8_t wrap[KVQ_WRAP_BYTES] __attribute__((aligned(64)));
            for (int t = 0; t < 32; t += 16)
                put_scales(f + first + t, head + 32 * half + t);
            if (trellis)
                kvq_value_wrap(wrap, block, head + 32 * half, n_groups, bits);
            for (int g = 0; g < n_groups; g++) {
                kvq_value_groups(x, block, wrap, g, n_groups, kvq_reach(bits, trellis), bits);
                expand_group(out + ((size_t)(d0 / 16 + g) * (size_t)(n_pages * TERN_PAGE) + (size_t)first) * 16, x,
                             &tables, bits, trellis);
            }
        }
    }
}

static void expand_v(int16_t *out, float *f, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab,
                     int dim, int page, int n_pages)
{
    KVQ_BY_CODE(tab, expand_v_bits, out, f, v, head, tab, dim, page, n_pages);
}

/* ---- queries ---- */

ATTN_INLINE float pack_block(int16_t *q, const float *x, float unit, int n, const struct order *order)
{
    const uint32_t top = top_of(x, n);
    const float amax = tern_bits_f32(top);
    const float inv = top < 0x7F800000u && amax >= TERN_KVQ_TINY ? TERN_ATTN16_FULL / amax : 0;
    if (inv > 0)
        for (int d = 0; d < n; d += 16)
            lanes_put16(q + d, lanes_mul(lanes_load(x + d), lanes_set(inv)), order);
    else
        memset(q, 0, (size_t)n * sizeof *q);
    return amax / TERN_ATTN16_FULL * unit;
}

static void pack(int16_t *q, float *scale, const float *x, const struct tern_kvq_table *tab, int dim, int n_q)
{
    const struct order order = order_of(tab->bits);
    for (int i = 0; i < n_q; i++, q += dim, x += dim)
        for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK)
            *scale++ = pack_block(q + d0, x + d0, tab->unit, kvq_block_dims(dim, d0), &order);
}

/* ---- products ---- */

/* Rows of the next register tile when n are left: as even as possible. */
ATTN_INLINE int rows_of(int n)
{
    const int n_tiles = (n + TILE - 1) / TILE;
    return (n + n_tiles - 1) / n_tiles;
}

/* Panels of the next one: all that it takes, or one. */
ATTN_INLINE int panels_of(int n)
{
    return n >= WIDTH ? WIDTH : 1;
}

/* Calls tile(...) with constant sizes. */
#define TILE_ROWS(tile, rows, panels, ...)   \
    do {                                     \
        if ((rows) == 1)                     \
            tile(__VA_ARGS__, 1, panels);    \
        else if ((rows) == 2)                \
            tile(__VA_ARGS__, 2, panels);    \
        else if ((rows) == 3)                \
            tile(__VA_ARGS__, 3, panels);    \
        else if ((rows) == 4)                \
            tile(__VA_ARGS__, 4, panels);    \
        else if ((rows) == 5)                \
            tile(__VA_ARGS__, 5, panels);    \
        else                                 \
            tile(__VA_ARGS__, TILE, panels); \
    } while (0)
_Static_assert(TILE == 6, "as the macro says");

static void score(float *s, const int16_t *q, const float *scale, const int16_t *k, const float *f, int dim, int n_q)
{
    const int n_blocks = tern_kvq_blocks(dim);
    for (int b = 0; b < n_blocks; b++, f += TERN_PAGE)
        for (int t = 0; t < TERN_PAGE; t += 16 * WIDTH)
            for (int i = 0, rows; i < n_q; i += rows) {
                const int d0 = b * TERN_KVQ_BLOCK;
                const struct attn16_dots d = {
                    .x = q + (size_t)i * (size_t)dim + d0,
                    .m = k + (size_t)(t * dim + d0 * 16),
                    .x_stride = (size_t)dim,
                    .m_stride = (size_t)dim * 16,
                    .pairs = kvq_block_dims(dim, d0) / 2,
                };
                rows = rows_of(n_q - i);
                TILE_ROWS(score_tile, rows, WIDTH, s + (size_t)i * TERN_PAGE + t, &d, f + t, scale + i * n_blocks + b,
                          n_blocks, b == 0);
            }
}

/* Panels from p on, all of one block. */
ATTN_INLINE void accum_panels(float *o, const int16_t *w, const float *unit, const float *shrink, const int16_t *v,
                              int dim, int n_pages, int n_q, int p, const int panels)
{
    const int n_blocks = tern_kvq_blocks(dim), b = p * 16 / TERN_KVQ_BLOCK, n = n_pages * TERN_PAGE;
    for (int i = 0, rows; i < n_q; i += rows) {
        const struct attn16_dots d = {
            .x = w + (size_t)(i * n_blocks + b) * (size_t)n,
            .m = v + (size_t)p * (size_t)n * 16,
            .x_stride = (size_t)n_blocks * (size_t)n,
            .m_stride = (size_t)n * 16,
            .pairs = n / 2,
        };
        rows = rows_of(n_q - i);
        TILE_ROWS(accum_tile, rows, panels, o + (size_t)i * (size_t)dim + p * 16, dim, &d, unit + i * n_blocks + b,
                  n_blocks, shrink + i);
    }
}

static void accum(float *o, const int16_t *w, const float *unit, const float *shrink, const int16_t *v, int dim,
                  int n_pages, int n_q)
{
    for (int p = 0, panels; p < dim / 16; p += panels) {
        panels = panels_of(dim / 16 - p);
        if (panels == 1)
            accum_panels(o, w, unit, shrink, v, dim, n_pages, n_q, p, 1);
        else
            accum_panels(o, w, unit, shrink, v, dim, n_pages, n_q, p, WIDTH);
    }
}
_Static_assert(TERN_KVQ_BLOCK % (16 * WIDTH) == 0, "tiles do not cross blocks");

#endif
#endif

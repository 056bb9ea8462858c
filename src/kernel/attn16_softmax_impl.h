/* kernel/attn16_softmax_impl.h - scores to 16-bit weights: the part of kernel/attn16_impl.h, which says what is defined
 * before, that goes over the scores of one row. */
#ifndef TERN_KERNEL_ATTN16_SOFTMAX_IMPL_H
#define TERN_KERNEL_ATTN16_SOFTMAX_IMPL_H

#include <math.h>
#include <string.h>
#include "base/err.h"
#include "kernel/attn16.h"
#include "kernel/attn_impl.h"

#ifdef TILE

/* Scores of a page are met sixteen at a time; where all of it counts no lane is looked at twice. */
struct attn16_pages {
    float *s;
    size_t stride;
    int n, t0, t1;
};

ATTN_INLINE bool is_whole(const struct attn16_pages *p, int page)
{
    return p->t0 <= page * TERN_PAGE && p->t1 >= (page + 1) * TERN_PAGE;
}

ATTN_INLINE float top_score(const struct attn16_pages *p)
{
    const lanes none = lanes_set(-INFINITY);
    lanes top = none;
    for (int page = 0; page < p->n; page++) {
        const float *s = p->s + (size_t)page * p->stride;
        if (is_whole(p, page))
#pragma GCC unroll 4
            for (int t = 0; t < TERN_PAGE; t += 16)
                top = lanes_max(top, lanes_load(s + t));
        else
            for (int t = 0; t < TERN_PAGE; t += 16)
                top = lanes_max(top, lanes_inside(lanes_load(s + t), page * TERN_PAGE + t, p->t0, p->t1, none));
    }
    return lanes_max_of(top);
}

/* Sums that pass over the pages: of the weights, and the largest of weight and scale. */
struct attn16_sums {
    lanes sum, top;
};

/* Sixteen scores become weights, of one block times their scales. */
ATTN_INLINE void weigh16(struct attn16_sums *u, float *s, const float *f, lanes m, int t, const struct attn16_pages *p,
                         const bool whole, const bool single)
{
    lanes x = lanes_exp2(lanes_max(lanes_set(TERN_ATTN16_LEAST), lanes_sub(lanes_load(s), m)));
    if (!whole)
        x = lanes_inside(x, t, p->t0, p->t1, lanes_set(0));
    u->sum = lanes_add(u->sum, x);
    const lanes y = lanes_mul(x, lanes_load(f));
    u->top = lanes_max(u->top, y);
    lanes_store(s, single ? y : x);
}

/* With one block scores become the products of weights and scales, else the weights; top is that of block 0. */
ATTN_INLINE struct attn16_sums weigh_pages(const struct attn16_pages *p, const float *f, float m, const bool single)
{
    struct attn16_sums u = {lanes_set(0), lanes_set(0)};
    const lanes at = lanes_set(m);
    for (int page = 0; page < p->n; page++, f += TERN_PAGE) {
        float *s = p->s + (size_t)page * p->stride;
        if (is_whole(p, page))
#pragma GCC unroll 2
            for (int t = 0; t < TERN_PAGE; t += 16)
                weigh16(&u, s + t, f + t, at, 0, p, true, single);
        else
            for (int t = 0; t < TERN_PAGE; t += 16)
                weigh16(&u, s + t, f + t, at, page * TERN_PAGE + t, p, false, single);
    }
    return u;
}

ATTN_INLINE lanes product_at(const float *s, const float *f, const bool single)
{
    return single ? lanes_load(s) : lanes_mul(lanes_load(s), lanes_load(f));
}

ATTN_INLINE lanes top_product(const struct attn16_pages *p, const float *f)
{
    lanes top = lanes_set(0);
    for (int page = 0; page < p->n; page++, f += TERN_PAGE)
        for (int t = 0; t < TERN_PAGE; t += 16)
            top = lanes_max(top, product_at(p->s + (size_t)page * p->stride + t, f + t, false));
    return top;
}

/* The integers of one block; returns what weight 1 is worth. */
ATTN_INLINE float put_block(int16_t *w, const struct attn16_pages *p, const float *f, lanes tops,
                            const struct order *order, const bool single)
{
    const float top = lanes_max_of(tops);
    const lanes inv = lanes_set(top >= TERN_KVQ_TINY ? TERN_ATTN16_FULL / top : 0);
    for (int page = 0; page < p->n; page++, f += TERN_PAGE, w += TERN_PAGE)
#pragma GCC unroll 4
        for (int t = 0; t < TERN_PAGE; t += 16)
            lanes_put16(w + t, lanes_mul(product_at(p->s + (size_t)page * p->stride + t, f + t, single), inv), order);
    return top;
}

static float softmax(int16_t *w, float *unit, float *s, size_t stride, const float *f, const struct tern_kvq_table *tab,
                     int dim, int n_pages, int t0, int t1, float *m, float *l)
{
    TERN_DASSERT(n_pages <= TERN_SOFTMAX_PAGES && t0 >= 0 && t0 <= t1 && t1 <= n_pages * TERN_PAGE);
    const struct attn16_pages p = {s, stride, n_pages, t0, t1};
    const struct order order = order_of(tab->bits);
    const int n_blocks = tern_kvq_blocks(dim);
    const size_t n = (size_t)n_pages * TERN_PAGE;
    const float largest = top_score(&p), m_new = *m > largest ? *m : largest;
    if (t0 == t1 || m_new == -INFINITY) { /* nothing to see, now or before */
        memset(w, 0, (size_t)n_blocks * n * sizeof *w);
        memset(unit, 0, (size_t)n_blocks * sizeof *unit);
        return 1;
    }
    const float shrink = shrink_of(*m - m_new);
    struct attn16_sums u;
    if (n_blocks == 1) {
        u = weigh_pages(&p, f, m_new, true);
        unit[0] = put_block(w, &p, f, u.top, &order, true) * tab->unit / TERN_ATTN16_FULL;
    } else {
        u = weigh_pages(&p, f, m_new, false);
        for (int b = 0; b < n_blocks; b++, f += n, w += n)
            unit[b] = put_block(w, &p, f, b ? top_product(&p, f) : u.top, &order, false) * tab->unit / TERN_ATTN16_FULL;
    }
    *l = *l * shrink + lanes_sum_of(u.sum);
    *m = m_new;
    return shrink;
}

#endif
#endif

#include "kernel/attn.h"

#include <math.h>
#include <string.h>
#include "base/err.h"
#include "kernel/ref/attn_ref.h"

/* One definition of every order of operations; the vector levels repeat it lane by lane. */

static inline float load(const void *p, size_t i, int half)
{
    return half ? tern_f16_to_f32(((const uint16_t *)p)[i]) : ((const float *)p)[i];
}

static inline void score(float *s, const float *q, const void *k, int half, int dim, int n_q)
{
    TERN_DASSERT(dim % 8 == 0);
    for (int i = 0; i < n_q; i++)
        for (int t = 0; t < TERN_PAGE; t++) {
            float acc = 0;
            for (int d = 0; d < dim; d++)
                acc =
                    fmaf(q[(size_t)i * (size_t)dim + (size_t)d], load(k, (size_t)d * TERN_PAGE + (size_t)t, half), acc);
            s[i * TERN_PAGE + t] = acc;
        }
}

static void score_f32(float *s, const float *q, const float *k, int dim, int n_q)
{
    score(s, q, k, 0, dim, n_q);
}

static void score_f16(float *s, const float *q, const uint16_t *k, int dim, int n_q, const void *next)
{
    (void)next;
    score(s, q, k, 1, dim, n_q);
}

static inline void accum(float *o, const float *p, const void *v, int half, const float *shrink, int dim, int n_tok,
                         int n_q)
{
    TERN_DASSERT(dim % 8 == 0 && n_tok >= 0 && n_tok <= TERN_PAGE);
    for (int i = 0; i < n_q; i++)
        for (int d = 0; d < dim; d++) {
            float *out = o + (size_t)i * (size_t)dim + (size_t)d;
            float acc = shrink ? *out * shrink[i] : *out;
            for (int t = 0; t < n_tok; t++)
                acc = fmaf(p[i * TERN_PAGE + t], load(v, (size_t)t * (size_t)dim + (size_t)d, half), acc);
            *out = acc;
        }
}

static void accum_f32(float *o, const float *p, const float *v, const float *shrink, int dim, int n_tok, int n_q)
{
    accum(o, p, v, 0, shrink, dim, n_tok, n_q);
}

static void accum_f16(float *o, const float *p, const uint16_t *v, const float *shrink, int dim, int n_tok, int n_q,
                      const void *next)
{
    (void)next;
    accum(o, p, v, 1, shrink, dim, n_tok, n_q);
}

static float softmax(float *s, size_t stride, int n_pages, int t0, int t1, float *m, float *l)
{
    const int n = n_pages * TERN_PAGE;
    TERN_DASSERT(n_pages <= TERN_SOFTMAX_PAGES && t0 >= 0 && t0 <= t1 && t1 <= n);
    float *at[TERN_SOFTMAX_PAGES * TERN_PAGE], lane[16];
    for (int t = 0; t < n; t++)
        at[t] = s + (size_t)(t / TERN_PAGE) * stride + t % TERN_PAGE;
    for (int i = 0; i < 16; i++)
        lane[i] = -INFINITY;
    for (int t = 0; t < n; t++)
        lane[t % 16] = max_f32(lane[t % 16], t >= t0 && t < t1 ? *at[t] : -INFINITY);
    float m_new = max_f32(*m, max_lanes(lane));
    if (t0 == t1 || m_new == -INFINITY) { /* nothing to see, now or before */
        for (int t = 0; t < n; t++)
            *at[t] = 0;
        return 1;
    }
    float shrink = exp2_nonpos(*m - m_new);
    float page[TERN_SOFTMAX_PAGES][16] = {0};
    for (int t = 0; t < n; t++) {
        *at[t] = t >= t0 && t < t1 ? exp2_nonpos(*at[t] - m_new) : 0;
        page[t / TERN_PAGE][t % 16] += *at[t];
    }
    memcpy(lane, page[0], sizeof lane);
    for (int i = 16; i < n_pages * 16; i++)
        lane[i % 16] += page[i / 16][i % 16];
    *l = *l * shrink + sum_lanes(lane);
    *m = m_new;
    return shrink;
}

static void f16_to_f32(float *y, const uint16_t *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = tern_f16_to_f32(x[i]);
}

static void f32_to_f16(uint16_t *y, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = tern_f32_to_f16(x[i]);
}

void tern_attn_init_ref(struct tern_attn_kernels *k)
{
    k->score_f32 = score_f32;
    k->score_f16 = score_f16;
    k->softmax = softmax;
    k->accum_f32 = accum_f32;
    k->accum_f16 = accum_f16;
    k->f16_to_f32 = f16_to_f32;
    k->f32_to_f16 = f32_to_f16;
}

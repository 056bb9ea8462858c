/* ref/attn16.c - attention in 16-bit integers, in plain C: the meaning of kernel/attn16.h. */
#include "kernel/attn16.h"

#include <math.h>
#include <string.h>
#include "base/err.h"
#include "kernel/ref/attn_ref.h"
#include "kernel/ref/kvq_ref.h"

/* One block of one row. */
static float pack_block(int16_t *q, const float *x, float unit, int n, int bits)
{
    uint32_t top = 0; /* magnitudes compare as integers, infinity and NaN above all others */
    for (int d = 0; d < n; d++) {
        uint32_t u = tern_f32_bits(x[d]) & 0x7FFFFFFFu;
        top = u > top ? u : top;
    }
    const float amax = tern_bits_f32(top);
    const float inv = top < 0x7F800000u && amax >= TERN_KVQ_TINY ? TERN_ATTN16_FULL / amax : 0;
    for (int i = 0; i < n; i++)
        q[i] = (int16_t)(inv > 0 ? lrintf(x[tern_attn16_item(i, bits)] * inv) : 0);
    return amax / TERN_ATTN16_FULL * unit;
}

static void pack(int16_t *q, float *scale, const float *x, const struct tern_kvq_table *tab, int dim, int n_q)
{
    for (int i = 0; i < n_q; i++, q += dim, x += dim)
        for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK)
            *scale++ = pack_block(q + d0, x + d0, tab->unit, kvq_block_dims(dim, d0), tab->bits);
}

static void expand_k(int16_t *out, float *f, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab,
                     int dim)
{
    int8_t e[TERN_PAGE * TERN_KVQ_MAX_DIM];
    tern_kvq_entries_ref(e, k, head, tab, dim, true);
    for (int t = 0; t < tern_kvq_blocks(dim) * TERN_PAGE; t++)
        f[t] = tern_kvq_scale(head[t]);
    for (int t = 0; t < TERN_PAGE; t++)
        for (int i = 0; i < dim; i++)
            out[((size_t)(t / 16 * dim / 2 + i / 2) * 16 + (size_t)t % 16) * 2 + (size_t)i % 2] =
                e[(size_t)t * (size_t)dim + (size_t)tern_attn16_item(i, tab->bits)];
}

static void expand_v(int16_t *out, float *f, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab,
                     int dim, int page, int n_pages)
{
    int8_t e[TERN_PAGE * TERN_KVQ_MAX_DIM];
    tern_kvq_entries_ref(e, v, head, tab, dim, false);
    for (int b = 0; b < tern_kvq_blocks(dim); b++)
        for (int t = 0; t < TERN_PAGE; t++)
            f[(b * n_pages + page) * TERN_PAGE + t] = tern_kvq_scale(head[b * TERN_PAGE + t]);
    for (int i = 0; i < TERN_PAGE; i++)
        for (int d = 0; d < dim; d++)
            out[((size_t)((d / 16 * n_pages + page) * TERN_PAGE / 2 + i / 2) * 16 + (size_t)d % 16) * 2 +
                (size_t)i % 2] = e[(size_t)tern_attn16_item(i, tab->bits) * (size_t)dim + (size_t)d];
}

/* Over n items of x, and of column c of the panel m[n/2][16][2]. */
static int32_t dot(const int16_t *x, const int16_t *m, int c, int n)
{
    int32_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i] * m[(i / 2 * 16 + c) * 2 + i % 2];
    return sum;
}

static void score(float *s, const int16_t *q, const float *scale, const int16_t *k, const float *f, int dim, int n_q)
{
    const int n_blocks = tern_kvq_blocks(dim);
    for (int it = 0; it < n_q * TERN_PAGE; it++) {
        const int i = it / TERN_PAGE, t = it % TERN_PAGE;
        s[it] = 0;
        for (int b = 0; b < n_blocks; b++) {
            const int d0 = b * TERN_KVQ_BLOCK;
            const int32_t sum = dot(q + (size_t)i * (size_t)dim + d0, k + (size_t)(t / 16 * dim + d0) * 16, t % 16,
                                    kvq_block_dims(dim, d0));
            s[it] = fmaf((float)sum, f[b * TERN_PAGE + t] * scale[i * n_blocks + b], s[it]);
        }
    }
}

/* 2^x for x in [-126, 0]: as exp2_nonpos, but of degree 4; relative error 3.6e-6. */
static float exp2_weight(float x)
{
    const float shifted = x + 0x1.8p23f, f = x - (shifted - 0x1.8p23f);
    float p = fmaf(f, 0x1.409104p-7f, 0x1.ca9008p-5f);
    p = fmaf(f, p, 0x1.ebf1b4p-3f);
    p = fmaf(f, p, 0x1.62dfcap-1f);
    p = fmaf(f, p, 1.0f);
    return tern_bits_f32(tern_f32_bits(p) + (tern_f32_bits(shifted) << 23));
}

/* The weights of a block of p[n]. */
static float weigh(int16_t *w, const float *p, const float *f, const struct tern_kvq_table *tab, int n)
{
    float top = 0;
    for (int t = 0; t < n; t++)
        top = max_f32(top, p[t] * f[t]);
    const float inv = top >= TERN_KVQ_TINY ? TERN_ATTN16_FULL / top : 0;
    for (int i = 0; i < n; i++) {
        const int t = tern_attn16_item(i, tab->bits);
        w[i] = (int16_t)lrintf(p[t] * f[t] * inv);
    }
    return top * tab->unit / TERN_ATTN16_FULL;
}

static float softmax(int16_t *w, float *unit, float *s, size_t stride, const float *f, const struct tern_kvq_table *tab,
                     int dim, int n_pages, int t0, int t1, float *m, float *l)
{
    const int n = n_pages * TERN_PAGE, n_blocks = tern_kvq_blocks(dim);
    TERN_DASSERT(n_pages <= TERN_SOFTMAX_PAGES && t0 >= 0 && t0 <= t1 && t1 <= n);
    float p[TERN_SOFTMAX_PAGES * TERN_PAGE], lane[16];
    for (int i = 0; i < 16; i++)
        lane[i] = -INFINITY;
    for (int t = 0; t < n; t++) {
        p[t] = s[(size_t)(t / TERN_PAGE) * stride + (size_t)(t % TERN_PAGE)];
        lane[t % 16] = max_f32(lane[t % 16], t >= t0 && t < t1 ? p[t] : -INFINITY);
    }
    const float m_new = max_f32(*m, max_lanes(lane));
    if (t0 == t1 || m_new == -INFINITY) {
        memset(w, 0, (size_t)(n_blocks * n) * sizeof *w);
        memset(unit, 0, (size_t)n_blocks * sizeof *unit);
        return 1;
    }
    memset(lane, 0, sizeof lane);
    for (int t = 0; t < n; t++) {
        p[t] = t >= t0 && t < t1 ? exp2_weight(max_f32(TERN_ATTN16_LEAST, p[t] - m_new)) : 0;
        lane[t % 16] += p[t];
    }
    const float shrink = exp2_nonpos(*m - m_new);
    *l = *l * shrink + sum_lanes(lane);
    *m = m_new;
    for (int b = 0; b < n_blocks; b++)
        unit[b] = weigh(w + b * n, p, f + b * n, tab, n);
    return shrink;
}

static void accum(float *o, const int16_t *w, const float *unit, const float *shrink, const int16_t *v, int dim,
                  int n_pages, int n_q)
{
    const int n = n_pages * TERN_PAGE, n_blocks = tern_kvq_blocks(dim);
    for (int i = 0; i < n_q; i++)
        for (int d = 0; d < dim; d++) {
            const int b = i * n_blocks + d / TERN_KVQ_BLOCK;
            const int32_t sum = dot(w + (size_t)b * (size_t)n, v + (size_t)(d / 16 * n) * 16, d % 16, n);
            float *at = o + (size_t)i * (size_t)dim + d;
            *at = fmaf((float)sum, unit[b], *at * shrink[i]);
        }
}

void tern_attn16_init_ref(struct tern_attn16_kernels *k)
{
    *k = (struct tern_attn16_kernels){pack, expand_k, expand_v, score, softmax, accum};
}

/* avx512/kvq_accum.c - weighted sums of coded values: two registers are 32 dims, four tokens of each per 32-bit lane.
 *
 * The 15-bit weights go through vpdpbusd as two planes, high byte and low byte; the integer sums are exact, so the
 * planes join without loss. */
#include "kernel/avx512/kvq_simd.h"

/* Integer weights of one row and block, 64 tokens in step order. */
struct row_weights {
    uint8_t hi[64], lo[64];
    float value; /* of weight 1 times entry 1 */
} __attribute__((aligned(64)));

/* For each place in step order, the token that stands there. */
static __m512i step_order(int bits)
{
    uint8_t t[64];
    int per_byte = kvq_per_byte(bits), word = 4 * per_byte;
    for (int j = 0; j < 64; j++) {
        int r = j % word;
        t[j] = (uint8_t)(j - r + r / 4 + r % 4 * per_byte);
    }
    return _mm512_loadu_si512(t);
}

static void make_weights(struct row_weights *r, const float *p, const uint16_t *head, float unit, __m512i order)
{
    __m512 w[4], top = _mm512_setzero_ps();
    KVQ_UNROLL for (int i = 0; i < 4; i++)
    {
        w[i] = _mm512_mul_ps(_mm512_load_ps(p + 16 * i), kvq_scales(head + 16 * i));
        top = _mm512_max_ps(w[i], top); /* a NaN in the first operand yields the second */
    }
    float m = _mm512_reduce_max_ps(top);
    __m512 inv = _mm512_set1_ps(m >= TERN_KVQ_TINY ? 32767.0f / m : 0.0f), full = _mm512_set1_ps(32767.0f);
    KVQ_UNROLL for (int i = 0; i < 4; i++)
    {
        __m512 x = _mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(w[i], inv), full), _mm512_setzero_ps());
        __m512i c = _mm512_cvtps_epi32(x);
        _mm_store_si128((__m128i *)(r->lo + 16 * i), _mm512_cvtepi32_epi8(c)); /* truncates */
        _mm_store_si128((__m128i *)(r->hi + 16 * i), _mm512_cvtepi32_epi8(_mm512_srli_epi32(c, 8)));
    }
    _mm512_store_si512(r->lo, _mm512_permutexvar_epi8(order, kvq_load(r->lo)));
    _mm512_store_si512(r->hi, _mm512_permutexvar_epi8(order, kvq_load(r->hi)));
    r->value = m * unit / 32767.0f;
}

/* 32 dims from o on for `rows` rows, of which the last 16 are not stored where n_groups is 1.  x: in each half their
 * two groups and those before them in the chains. */
KVQ_INLINE void accum_dims(const int rows, float *o, const struct row_weights *r, const uint8_t *const x[2][5],
                           int n_groups, size_t half_bytes, const float *shrink, const struct kvq_tables *t, int dim,
                           bool fetch, const int bits, const bool trellis)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits), n_x = kvq_reach(bits, trellis) + 1;
    const size_t ahead = kvq_ahead(2 * half_bytes);
    const __mmask16 stored[2] = {0xFFFF, n_groups == 2 ? 0xFFFF : 0};
    __m512i hi[KVQ_ROWS][2], lo[KVQ_ROWS][2];
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        hi[i][0] = hi[i][1] = lo[i][0] = lo[i][1] = _mm512_setzero_si512();
    }
    for (int half = 0; half < 2; half++) {
        if (fetch)
            kvq_prefetch(x[half][0], ahead, 2 * bits);
        KVQ_UNROLL for (int w = 0; w < n_words; w++)
        {
            __m512i v[5];
            KVQ_UNROLL for (int j = 0; j < n_x; j++)
            {
                v[j] = kvq_word(x[half][j], w, bits);
            }
            KVQ_UNROLL for (int n = 0; n < per_byte; n++)
            {
                __m512i e0 = kvq_value_step(v, n, t, bits, trellis), e1 = kvq_value_step(v + 1, n, t, bits, trellis);
                int at = 32 * half + 4 * (w * per_byte + n);
                KVQ_UNROLL for (int i = 0; i < rows; i++)
                {
                    __m512i h = kvq_broadcast4(r[i].hi + at), l = kvq_broadcast4(r[i].lo + at);
                    hi[i][0] = _mm512_dpbusd_epi32(hi[i][0], h, e0);
                    hi[i][1] = _mm512_dpbusd_epi32(hi[i][1], h, e1);
                    lo[i][0] = _mm512_dpbusd_epi32(lo[i][0], l, e0);
                    lo[i][1] = _mm512_dpbusd_epi32(lo[i][1], l, e1);
                }
            }
        }
    }
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        __m512 c = _mm512_set1_ps(r[i].value), sh = _mm512_set1_ps(shrink ? shrink[i] : 1.0f);
        KVQ_UNROLL for (int j = 0; j < 2; j++)
        {
            float *oi = o + (size_t)i * dim + 16 * j;
            __m512i dot = _mm512_add_epi32(_mm512_slli_epi32(hi[i][j], 8), lo[i][j]);
            __m512 old = _mm512_mul_ps(_mm512_maskz_load_ps(stored[j], oi), sh);
            _mm512_mask_store_ps(oi, stored[j], _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), c, old));
        }
    }
}

KVQ_INLINE void accum_bits(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                           const struct tern_kvq_table *tab, int dim, int n_q, const int bits, const bool trellis)
{
    struct row_weights r[TERN_KVQ_MAX_Q];
    uint8_t wrap[2][KVQ_WRAP_BYTES] __attribute__((aligned(64)));
    const struct kvq_tables tables = kvq_tables(tab, 0);
    const __m512i order = step_order(bits);
    const size_t half_bytes = (size_t)dim * 4 * bits;
    for (int d = 0; d < dim; d += 32) {
        const int d0 = d / TERN_KVQ_BLOCK * TERN_KVQ_BLOCK, n_groups = kvq_block_dims(dim, d0) / 16;
        const uint16_t *hb = head + d0 / TERN_KVQ_BLOCK * 64;
        const uint8_t *x[2][5];
        for (int i = 0; i < n_q && d == d0; i++)
            make_weights(&r[i], p + i * 64, hb, tab->unit, order);
        for (int half = 0; half < 2; half++) {
            const uint8_t *block = v + half * half_bytes + (size_t)d0 * 4 * bits;
            if (trellis && d == d0)
                kvq_value_wrap(wrap[half], block, hb + 32 * half, n_groups, bits);
            kvq_value_groups(x[half], block, wrap[half], (d - d0) / 16, n_groups, kvq_reach(bits, trellis) + 1, bits);
            if (d + 16 == dim) /* a last group alone: what its neighbour adds up does not matter, but must be there */
                x[half][kvq_reach(bits, trellis)] = x[half][0];
        }
        for (int i = 0; i < n_q; i += KVQ_ROWS)
            KVQ_BY_ROWS(n_q - i, accum_dims, o + (size_t)i * dim + d, r + i, x, d + 16 == dim ? 1 : 2, half_bytes,
                        shrink ? shrink + i : NULL, &tables, dim, i == 0, bits, trellis);
    }
}

void tern_kvq_accum_avx512(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                           const struct tern_kvq_table *tab, int dim, int n_q)
{
    KVQ_BY_CODE(tab, accum_bits, o, p, v, head, shrink, tab, dim, n_q);
}

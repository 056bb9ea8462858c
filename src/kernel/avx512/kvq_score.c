/* avx512/kvq_score.c - queries against coded keys: two registers are 32 tokens, four dims of each per 32-bit lane. */
#include "kernel/avx512/kvq_simd.h"

#define OFFSET 128 /* vpdpbusd wants its first operand unsigned: entries are looked up as entry + OFFSET */

/* n words of a set of each group of 16 tokens, from word first0 or first1 on.  One or two rows would wait for their
 * own sums: they take two chains each. */
KVQ_INLINE void dot_sets(const int rows, __m512i acc[][2][2], const int8_t *q, size_t q_stride, const uint8_t *set0,
                         const uint8_t *set1, const int first0, const int first1, const int n_words,
                         const __m512i tail[2], bool last, const struct kvq_tables *t, const int bits,
                         const bool trellis)
{
    const int per_byte = kvq_per_byte(bits), chains = rows < 3 ? 2 : 1;
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        __m512i v0 = kvq_word(set0, first0 + w, bits), v1 = kvq_word(set1, first1 + w, bits);
        __m512i p0 = kvq_key_before(set0, first0, w, n_words, tail[0], last, bits);
        __m512i p1 = kvq_key_before(set1, first1, w, n_words, tail[1], last, bits);
        if (bits == 8) {
            v0 = _mm512_xor_si512(v0, _mm512_set1_epi8((char)OFFSET));
            v1 = _mm512_xor_si512(v1, _mm512_set1_epi8((char)OFFSET));
        }
        KVQ_UNROLL for (int j = 0; j < per_byte; j++)
        {
            __m512i e0 = kvq_key_step(v0, p0, j, t, bits, trellis);
            __m512i e1 = kvq_key_step(v1, p1, j, t, bits, trellis);
            const int c = chains == 2 ? (w * per_byte + j) & 1 : 0;
            KVQ_UNROLL for (int i = 0; i < rows; i++)
            {
                const int8_t *four = q + q_stride * (size_t)i + 4 * (w * per_byte + j);
                acc[i][c][0] = kvq_dot4(acc[i][c][0], e0, four);
                acc[i][c][1] = kvq_dot4(acc[i][c][1], e1, four);
            }
        }
    }
}

/* What one call works on. */
struct page {
    const struct tern_kvq_query *q;
    const uint8_t *k;
    const uint16_t *head;
    const struct kvq_tables *t;
    const void *next;
    int dim;
};

/* Rows i0 .. i0+rows of the 32 tokens from t0 on. */
KVQ_INLINE void score_half(const int rows, float *s, const struct page *p, int t0, int i0, const int bits,
                           const bool trellis)
{
    const int n_words = kvq_words(bits), dim = p->dim;
    const size_t stride = (size_t)dim, set_bytes = (size_t)128 * bits; /* of both groups */
    const uint8_t *k = p->k + (size_t)t0 / 32 * stride * 4 * bits;
    const uint16_t *head = p->head + t0;
    const struct tern_kvq_query *q = p->q;
    int n_blocks = tern_kvq_blocks(dim);
    __m512 out[KVQ_ROWS][2];
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        out[i][0] = out[i][1] = _mm512_setzero_ps();
    }
    for (int b = 0; b < n_blocks; b++) {
        __m512i acc[KVQ_ROWS][2][2];
        KVQ_UNROLL for (int i = 0; i < rows; i++)
        {
            acc[i][0][0] = acc[i][0][1] = _mm512_set1_epi32(-OFFSET * q->sum[(i0 + i) * n_blocks + b]);
            acc[i][1][0] = acc[i][1][1] = _mm512_setzero_si512();
        }
        const struct kvq_keys k0 = kvq_keys(k, 0, b * TERN_KVQ_BLOCK, dim, bits);
        const struct kvq_keys k1 = kvq_keys(k, 1, b * TERN_KVQ_BLOCK, dim, bits);
        const int8_t *qb = q->q + (size_t)i0 * stride + b * TERN_KVQ_BLOCK;
        const uint16_t *h = head + b * 64;
        __m512i tail[2] = {kvq_key_tail(&k0, h, bits), kvq_key_tail(&k1, h + 16, bits)};
        for (int d = 0; d < k0.dims; d += 32) {
            const size_t at = (size_t)d * 4 * bits;
            if (i0 == 0)
                kvq_prefetch(p->next, (size_t)(k0.sets + at - p->k) / set_bytes, 2 * bits);
            dot_sets(rows, acc, qb + d, stride, k0.sets + at, k1.sets + at, 0, 0, n_words, tail, d + 32 == k0.dims,
                     p->t, bits, trellis);
        }
        if (k0.left) {
            if (i0 == 0)
                kvq_prefetch(p->next, (size_t)(k0.shared - p->k) / set_bytes, 2 * bits);
            tail[0] = kvq_key_wrap(k0.first, h, bits);
            tail[1] = kvq_key_wrap(k1.first, h + 16, bits);
            dot_sets(rows, acc, qb + k0.dims, stride, k0.shared, k0.shared, 0, n_words / 2, n_words / 2, tail, true,
                     p->t, bits, trellis);
        }
        __m512 f0 = kvq_scales(h), f1 = kvq_scales(h + 16);
        KVQ_UNROLL for (int i = 0; i < rows; i++)
        {
            __m512 qs = _mm512_set1_ps(q->scale[(i0 + i) * n_blocks + b]);
            __m512i dot0 = _mm512_add_epi32(acc[i][0][0], acc[i][1][0]);
            __m512i dot1 = _mm512_add_epi32(acc[i][0][1], acc[i][1][1]);
            out[i][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot0), _mm512_mul_ps(f0, qs), out[i][0]);
            out[i][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot1), _mm512_mul_ps(f1, qs), out[i][1]);
        }
    }
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        float *si = s + (size_t)(i0 + i) * 64 + t0;
        _mm512_store_ps(si, out[i][0]);
        _mm512_store_ps(si + 16, out[i][1]);
    }
}

KVQ_INLINE void score_bits(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next, const int bits,
                           const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, OFFSET, bits, trellis);
    const struct page p = {q, k, head, &tables, next, dim};
    for (int t = 0; t < 64; t += 32) {
        for (int i = 0; i < n_q; i += KVQ_ROWS)
            KVQ_BY_ROWS(n_q - i, score_half, s, &p, t, i, bits, trellis);
    }
}

void tern_kvq_score_avx512(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next)
{
    KVQ_BY_CODE(tab, score_bits, s, q, k, head, tab, dim, n_q, next);
}

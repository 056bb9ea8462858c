/* avx512/kvq_score.c - queries against coded keys: two registers are 32 tokens, four dims of each per 32-bit lane. */
#include "kernel/avx512/kvq_simd.h"

#define OFFSET 128 /* vpdpbusd wants its first operand unsigned: entries are looked up as entry + OFFSET */

/* Rows i0 .. i0+rows of the 32 tokens of one half.  k: the half; head: its first token. */
KVQ_INLINE void score_half(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                           __m512i table, int dim, int i0, const int rows, const int bits)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits);
    const size_t ahead = kvq_ahead((size_t)dim * 8 * bits), group_bytes = (size_t)64 * bits;
    int n_blocks = tern_kvq_blocks(dim);
    __m512 out[KVQ_ROWS][2];
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        out[i][0] = out[i][1] = _mm512_setzero_ps();
    }
    for (int b = 0; b < n_blocks; b++) {
        __m512i acc[KVQ_ROWS][2];
        KVQ_UNROLL for (int i = 0; i < rows; i++)
        {
            acc[i][0] = acc[i][1] = _mm512_set1_epi32(-OFFSET * q->sum[(i0 + i) * n_blocks + b]);
        }
        int d1 = dim < (b + 1) * TERN_KVQ_BLOCK ? dim : (b + 1) * TERN_KVQ_BLOCK;
        for (int d = b * TERN_KVQ_BLOCK; d < d1; d += 32) {
            const uint8_t *set = k + (size_t)d * 4 * bits;
            const int8_t *qd = q->q + (size_t)i0 * dim + d;
            if (i0 == 0)
                kvq_prefetch(set, ahead, 2 * bits);
            KVQ_UNROLL for (int w = 0; w < n_words; w++)
            {
                __m512i v0 = kvq_word(set, w, bits), v1 = kvq_word(set + group_bytes, w, bits);
                if (bits == 8) {
                    v0 = _mm512_xor_si512(v0, _mm512_set1_epi8((char)OFFSET));
                    v1 = _mm512_xor_si512(v1, _mm512_set1_epi8((char)OFFSET));
                }
                KVQ_UNROLL for (int n = 0; n < per_byte; n++)
                {
                    __m512i e0 = kvq_step(v0, n, table, bits), e1 = kvq_step(v1, n, table, bits);
                    KVQ_UNROLL for (int i = 0; i < rows; i++)
                    {
                        __m512i four = kvq_broadcast4(qd + (size_t)i * dim + 4 * (w * per_byte + n));
                        acc[i][0] = _mm512_dpbusd_epi32(acc[i][0], e0, four);
                        acc[i][1] = _mm512_dpbusd_epi32(acc[i][1], e1, four);
                    }
                }
            }
        }
        __m512 f0 = kvq_scales(head + b * 64), f1 = kvq_scales(head + b * 64 + 16);
        KVQ_UNROLL for (int i = 0; i < rows; i++)
        {
            __m512 qs = _mm512_set1_ps(q->scale[(i0 + i) * n_blocks + b]);
            out[i][0] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[i][0]), _mm512_mul_ps(f0, qs), out[i][0]);
            out[i][1] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[i][1]), _mm512_mul_ps(f1, qs), out[i][1]);
        }
    }
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        _mm512_store_ps(s + 64 * i, out[i][0]);
        _mm512_store_ps(s + 64 * i + 16, out[i][1]);
    }
}

KVQ_INLINE void score_bits(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                           const struct tern_kvq_table *tab, int dim, int n_q, const int bits)
{
    __m512i table = kvq_table(tab, OFFSET);
    for (int t = 0; t < 64; t += 32) {
        const uint8_t *kt = k + (size_t)(t / 32) * dim * 4 * bits;
        for (int i = 0; i < n_q; i += KVQ_ROWS) {
            float *si = s + i * 64 + t;
            switch (n_q - i) {
            case 1:
                score_half(si, q, kt, head + t, table, dim, i, 1, bits);
                break;
            case 2:
                score_half(si, q, kt, head + t, table, dim, i, 2, bits);
                break;
            case 3:
                score_half(si, q, kt, head + t, table, dim, i, 3, bits);
                break;
            default:
                score_half(si, q, kt, head + t, table, dim, i, KVQ_ROWS, bits);
            }
        }
    }
}

void tern_kvq_score_avx512(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                           const struct tern_kvq_table *tab, int dim, int n_q)
{
    switch (tab->bits) {
    case 8:
        score_bits(s, q, k, head, tab, dim, n_q, 8);
        break;
    case 4:
        score_bits(s, q, k, head, tab, dim, n_q, 4);
        break;
    case 3:
        score_bits(s, q, k, head, tab, dim, n_q, 3);
        break;
    default:
        score_bits(s, q, k, head, tab, dim, n_q, 2);
    }
}

/* avx2/kvq_score.c - queries against coded keys with vectors of eight: 16 tokens in two registers, four
 * dims of each per 32-bit lane (dot.h). */
#include "kernel/avx2/dot.h"
#include "kernel/avx2/kvq_simd.h"

#ifdef __AVXVNNI__
#define CHAINS(rows) ((rows) < 3 ? 2 : 1) /* one or two rows would wait for their own sums */
#define OFFSET       128 /* vpdpbusd wants its first operand unsigned: entries are looked up as entry + OFFSET */

/* One step of four dims for 16 tokens and `rows` queries. */
KVQ_INLINE void dot_step(__m256i acc[][2], __m256i e0, __m256i e1, const int8_t *q, size_t q_stride, const int rows)
{
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        __m256i b = kvq_broadcast4(q + q_stride * i);
        acc[i][0] = dot_quads(acc[i][0], e0, b);
        acc[i][1] = dot_quads(acc[i][1], e1, b);
    }
}
#else
#define CHAINS(rows) 1
#define OFFSET       0

/* One step of four dims for 16 tokens and `rows` queries.  Entries and queries lie in [-128, 127] x [-127, 127]; moving
 * the sign to the query makes the first operand unsigned, and no pair sum can reach the saturation of maddubs. */
KVQ_INLINE void dot_step(__m256i acc[][2], __m256i e0, __m256i e1, const int8_t *q, size_t q_stride, const int rows)
{
    __m256i a0 = _mm256_abs_epi8(e0), a1 = _mm256_abs_epi8(e1), ones = _mm256_set1_epi16(1);
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        __m256i b = kvq_broadcast4(q + q_stride * i);
        __m256i p0 = _mm256_maddubs_epi16(a0, _mm256_sign_epi8(b, e0));
        __m256i p1 = _mm256_maddubs_epi16(a1, _mm256_sign_epi8(b, e1));
        kvq_add(&acc[i][0], _mm256_madd_epi16(p0, ones));
        kvq_add(&acc[i][1], _mm256_madd_epi16(p1, ones));
    }
}
#endif

/* n words from `first` on of a set of 16 tokens. */
KVQ_INLINE void dot_set(const int rows, __m256i acc[][2], const int8_t *q, size_t q_stride, const uint8_t *set,
                        int first, const int n_words, const __m256i tail[2], bool last, const struct kvq_tables *t,
                        const int bits, const bool trellis)
{
    const int per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        __m256i v0 = kvq_word(set, first + w, bits), v1 = kvq_word(set + 32, first + w, bits);
        __m256i p0 = kvq_key_before(set, first, w, n_words, tail[0], last, bits);
        __m256i p1 = kvq_key_before(set + 32, first, w, n_words, tail[1], last, bits);
        if (OFFSET && bits == 8) {
            v0 = _mm256_xor_si256(v0, _mm256_set1_epi8((char)OFFSET));
            v1 = _mm256_xor_si256(v1, _mm256_set1_epi8((char)OFFSET));
        }
        KVQ_UNROLL for (int j = 0; j < per_byte; j++)
            dot_step(acc + (w * per_byte + j) % CHAINS(rows) * 2, kvq_key_step(v0, p0, j, t, bits, trellis),
                     kvq_key_step(v1, p1, j, t, bits, trellis), q + 4 * (w * per_byte + j), q_stride, rows);
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

/* Rows i0 .. i0+rows of the 16 tokens from t0 on. */
KVQ_INLINE void score_tokens(const int rows, float *s, const struct page *p, int t0, int i0, const int bits,
                             const bool trellis)
{
    const int n_words = kvq_words(bits), dim = p->dim;
    const size_t stride = (size_t)dim;
    const uint8_t *half = p->k + (size_t)(t0 / 32) * stride * 4 * bits;
    const uint16_t *head = p->head + t0;
    const struct tern_kvq_query *q = p->q;
    int n_blocks = tern_kvq_blocks(dim);
    __m256 out[KVQ_ROWS][2];
    KVQ_UNROLL for (int i = 0; i < rows; i++) out[i][0] = out[i][1] = _mm256_setzero_ps();
    for (int b = 0; b < n_blocks; b++) {
        __m256i acc[KVQ_ROWS][2];
        KVQ_UNROLL for (int i = 0; i < rows; i++)
        {
            acc[i][0] = acc[i][1] = _mm256_set1_epi32(-OFFSET * q->sum[(i0 + i) * n_blocks + b]);
            if (CHAINS(rows) == 2)
                acc[i + 2][0] = acc[i + 2][1] = _mm256_setzero_si256();
        }
        const struct kvq_keys keys = kvq_keys(half, t0 / 16 % 2, b * TERN_KVQ_BLOCK, dim, bits);
        const int8_t *qb = q->q + (size_t)i0 * stride + b * TERN_KVQ_BLOCK;
        __m256i tail[2];
        kvq_key_tail(tail, &keys, head + b * 64, bits);
        for (int d = 0; d < keys.dims; d += 32) {
            const uint8_t *set = keys.sets + (size_t)d * 4 * bits;
            if (i0 == 0)
                kvq_prefetch(p->next, (size_t)(t0 / 16 * dim + b * TERN_KVQ_BLOCK + d) / 32, bits);
            dot_set(rows, acc, qb + d, stride, set, 0, n_words, tail, d + 32 == keys.dims, p->t, bits, trellis);
        }
        if (keys.left) {
            if (i0 == 0)
                kvq_prefetch(p->next, (size_t)(t0 / 16 * dim + b * TERN_KVQ_BLOCK + keys.dims) / 32, bits);
            kvq_key_wrap(tail, keys.first, head + b * 64, bits);
            dot_set(rows, acc, qb + keys.dims, stride, keys.shared, keys.word, n_words / 2, tail, true, p->t, bits,
                    trellis);
        }
        __m256 f0 = kvq_scales(head + b * 64), f1 = kvq_scales(head + b * 64 + 8);
        KVQ_UNROLL for (int i = 0; i < rows; i++)
        {
            __m256 qs = _mm256_set1_ps(q->scale[(i0 + i) * n_blocks + b]);
            if (CHAINS(rows) == 2) {
                acc[i][0] = _mm256_add_epi32(acc[i][0], acc[i + 2][0]);
                acc[i][1] = _mm256_add_epi32(acc[i][1], acc[i + 2][1]);
            }
            out[i][0] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[i][0]), _mm256_mul_ps(f0, qs), out[i][0]);
            out[i][1] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[i][1]), _mm256_mul_ps(f1, qs), out[i][1]);
        }
    }
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        float *si = s + (size_t)(i0 + i) * 64 + t0;
        _mm256_store_ps(si, out[i][0]);
        _mm256_store_ps(si + 8, out[i][1]);
    }
}

KVQ_INLINE void score_bits(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next, const int bits,
                           const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, OFFSET, bits, trellis);
    const struct page p = {q, k, head, &tables, next, dim};
    for (int t = 0; t < 64; t += 16) {
        for (int i = 0; i < n_q; i += KVQ_ROWS)
            KVQ_BY_ROWS(n_q - i, score_tokens, s, &p, t, i, bits, trellis);
    }
}

void TERN_AT_LEVEL(tern_kvq_score)(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                                   const struct tern_kvq_table *tab, int dim, int n_q, const void *next)
{
    KVQ_BY_CODE(tab, score_bits, s, q, k, head, tab, dim, n_q, next);
}

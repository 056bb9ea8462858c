/* avx512/kvq_simd.h - a page word vector becomes table entries; shared by the AVX-512 page kernels.
 *
 * One zmm is one word of 16 lanes.  vpermb looks up all 64 bytes by their low six bits; the table repeats, so the bits
 * above a code need no masking.  Steps come in the order of the prepared query (kernel/kvq.h). */
#ifndef TERN_AVX512_KVQ_SIMD_H
#define TERN_AVX512_KVQ_SIMD_H

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>
#include "kernel/kvq.h"

#define KVQ_INLINE static inline __attribute__((always_inline))
#define KVQ_UNROLL _Pragma("GCC unroll 16")
#define KVQ_ROWS   4 /* query rows that share one pass over the codes */

KVQ_INLINE __m512i kvq_load(const void *p)
{
    return _mm512_load_si512(p);
}

/* Four bytes from anywhere into every lane, as one load. */
KVQ_INLINE __m512i kvq_broadcast4(const void *p)
{
    float four;
    memcpy(&four, p, 4);
    return _mm512_castps_si512(_mm512_set1_ps(four));
}

/* The table as bytes entry + offset, repeated to 64. */
static inline __m512i kvq_table(const struct tern_kvq_table *tab, int offset)
{
    uint8_t t[16];
    for (int i = 0; i < 16; i++)
        t[i] = tab->bits == 8 ? 0 : (uint8_t)(tab->entry[i & ((1 << tab->bits) - 1)] + offset);
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)t));
}

/* Bits of a where mask is set, of b elsewhere. */
KVQ_INLINE __m512i kvq_select(__m512i a, __m512i b, int8_t mask)
{
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi8(mask), 0xE4);
}

/* Word w (0..3 for 3 bits, where the last is gathered from the spare bits of the three stored ones; bit 3 of its
 * nibbles is arbitrary). */
KVQ_INLINE __m512i kvq_word(const uint8_t *group, int w, const int bits)
{
    if (bits != 3 || w != 3)
        return kvq_load(group + 64 * w);
    __m512i a = _mm512_srli_epi16(kvq_load(group), 3), b = _mm512_srli_epi16(kvq_load(group + 64), 2);
    return kvq_select(kvq_select(a, b, 0x11), _mm512_srli_epi16(kvq_load(group + 128), 1), 0x33);
}

/* Words of a set (the gathered one of 3 bits included) and codes in each byte of a word. */
KVQ_INLINE int kvq_words(const int bits)
{
    return bits == 3 ? 4 : bits;
}

KVQ_INLINE int kvq_per_byte(const int bits)
{
    return bits == 8 ? 1 : bits == 2 ? 4 : 2;
}

/* How far ahead of the line in use memory is asked for: one page side, with a floor for small ones. */
KVQ_INLINE size_t kvq_ahead(size_t side_bytes)
{
    return side_bytes < 2048 ? 2048 : side_bytes;
}

KVQ_INLINE void kvq_prefetch(const uint8_t *p, size_t ahead, const int lines)
{
    KVQ_UNROLL for (int i = 0; i < lines; i++)
    {
        _mm_prefetch((const char *)p + ahead + 64 * i, _MM_HINT_T0);
    }
}

/* Entries of step n of a word; 8-bit codes stand for themselves. */
KVQ_INLINE __m512i kvq_step(__m512i word, int n, __m512i table, const int bits)
{
    if (bits == 8)
        return word;
    return _mm512_permutexvar_epi8(n ? _mm512_srli_epi16(word, (unsigned)((bits == 2 ? 2 : 4) * n)) : word, table);
}

/* Scales of sixteen headers. */
KVQ_INLINE __m512 kvq_scales(const uint16_t *head)
{
    __m256i h = _mm256_load_si256((const __m256i *)head);
    return _mm512_cvtph_ps(_mm256_slli_epi16(_mm256_srli_epi16(h, 4), 3));
}

void tern_kvq_score_avx512(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                           const struct tern_kvq_table *tab, int dim, int n_q);
void tern_kvq_accum_avx512(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                           const struct tern_kvq_table *tab, int dim, int n_q);

#endif

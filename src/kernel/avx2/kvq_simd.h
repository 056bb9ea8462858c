/* avx2/kvq_simd.h - a page word vector becomes table entries; shared by the AVX2 page kernels.
 *
 * Two ymm hold one word of 16 lanes.  Looking up every byte's low bits yields four codes of each lane ("a step"); the
 * next steps follow after shifts.  Steps come in the order of the prepared query (kernel/kvq.h), so step j of a set
 * meets bytes 4j..4j+3.  Everything here is inlined with constant `bits`, so each kernel is a handful of straight
 * loops. */
#ifndef TERN_AVX2_KVQ_SIMD_H
#define TERN_AVX2_KVQ_SIMD_H

#include <immintrin.h>
#include <stdbool.h>
#include <string.h>
#include "kernel/kvq.h"

#define KVQ_INLINE static inline __attribute__((always_inline))
#define KVQ_UNROLL _Pragma("GCC unroll 16")
#define KVQ_ROWS   4 /* query rows that share one pass over the codes: more would spill accumulators */

KVQ_INLINE __m256i kvq_load(const void *p)
{
    return _mm256_load_si256((const __m256i *)p);
}

/* Four bytes from anywhere into every lane, as one load: from an integer gcc would go through a general register. */
KVQ_INLINE __m256i kvq_broadcast4(const void *p)
{
    float four;
    memcpy(&four, p, 4);
    return _mm256_castps_si256(_mm256_set1_ps(four));
}

/* acc + x, and the compiler must leave it at that: gcc would collect the terms of an unrolled chain into a tree and
 * spill all of them. */
KVQ_INLINE void kvq_add(__m256i *acc, __m256i x)
{
    *acc = _mm256_add_epi32(*acc, x);
    __asm__("" : "+x"(*acc));
}

/* The table as bytes entry + offset, repeated to fill the 16 places that a byte shuffle sees.  The repetition makes the
 * bits above a code harmless, so a nibble mask serves every width. */
static inline __m256i kvq_table(const struct tern_kvq_table *tab, int offset)
{
    uint8_t t[16];
    for (int i = 0; i < 16; i++)
        t[i] = tab->bits == 8 ? 0 : (uint8_t)(tab->entry[i & ((1 << tab->bits) - 1)] + offset);
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)t));
}

KVQ_INLINE __m256i kvq_lookup(__m256i table, __m256i codes)
{
    return _mm256_shuffle_epi8(table, _mm256_and_si256(codes, _mm256_set1_epi8(15)));
}

/* Fourth word of a 3-bit set, gathered from the spare bits of the three stored ones. */
KVQ_INLINE __m256i kvq_spare(__m256i a, __m256i b, __m256i c)
{
    a = _mm256_and_si256(_mm256_srli_epi16(a, 3), _mm256_set1_epi8(0x11));
    b = _mm256_and_si256(_mm256_srli_epi16(b, 2), _mm256_set1_epi8(0x22));
    c = _mm256_and_si256(_mm256_srli_epi16(c, 1), _mm256_set1_epi8(0x44));
    return _mm256_or_si256(a, _mm256_or_si256(b, c));
}

/* Word w (0..3 for 3 bits) of 8 lanes: `group` points at the group, plus 32 bytes for lanes 8..15. */
KVQ_INLINE __m256i kvq_word(const uint8_t *group, int w, const int bits)
{
    if (bits == 3 && w == 3)
        return kvq_spare(kvq_load(group), kvq_load(group + 64), kvq_load(group + 128));
    return kvq_load(group + 64 * w);
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

/* How far ahead of the line in use memory is asked for.  In a page the values follow the keys, and the next page often
 * follows in memory; one side ahead, with a floor for small ones, is a few hundred nanoseconds.  A wrong guess costs
 * bandwidth, never a fault. */
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
KVQ_INLINE __m256i kvq_step(__m256i word, int n, __m256i table, const int bits)
{
    if (bits == 8)
        return word;
    return kvq_lookup(table, n ? _mm256_srli_epi16(word, (bits == 2 ? 2 : 4) * n) : word);
}

/* Scales of eight headers. */
KVQ_INLINE __m256 kvq_scales(const uint16_t *head)
{
    __m128i h = _mm_loadu_si128((const __m128i *)head);
    return _mm256_cvtph_ps(_mm_slli_epi16(_mm_srli_epi16(h, 4), 3));
}

/* The order of vec.h: 16 lanes fold onto each other; lo holds lanes 0..7. */
KVQ_INLINE float kvq_add_lanes(__m256 lo, __m256 hi)
{
    __m256 s8 = _mm256_add_ps(lo, hi);
    __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_movehdup_ps(s2)));
}

/* Largest magnitude as bits; infinity and NaN compare above everything. */
static inline uint32_t kvq_top(const float *x, int n)
{
    __m256i top = _mm256_setzero_si256(), mag = _mm256_set1_epi32(0x7FFFFFFF);
    for (int i = 0; i < n; i += 8)
        top = _mm256_max_epi32(top, _mm256_and_si256(kvq_load(x + i), mag));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(m);
}

/* 32 small integers in four registers to bytes, in order (saturating to int8). */
KVQ_INLINE __m256i kvq_bytes(__m256i a, __m256i b, __m256i c, __m256i d)
{
    __m256i w = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(w, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

void tern_kvq_prep_avx2(int8_t *q, float *scale, int32_t *sum, const float *x, const struct tern_kvq_table *tab,
                        int dim, int n_q);
void tern_kvq_score_avx2(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                         const struct tern_kvq_table *tab, int dim, int n_q);
void tern_kvq_accum_avx2(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                         const struct tern_kvq_table *tab, int dim, int n_q);
void tern_kvq_rotate_avx2(float *x, const float *sign, int dim, int inverse);
void tern_kvq_encode_avx2(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int matched,
                          int dim, int n);
void tern_kvq_pack_k_avx2(uint8_t *k, const uint8_t *codes, int bits, int dim);
void tern_kvq_pack_v_avx2(uint8_t *v, const uint8_t *codes, int bits, int dim);

#endif

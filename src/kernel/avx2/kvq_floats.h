/* avx2/kvq_floats.h - scales, sums in the order of the contract, and bytes: what page kernels do besides codes. */
#ifndef TERN_AVX2_KVQ_FLOATS_H
#define TERN_AVX2_KVQ_FLOATS_H

#include <immintrin.h>
#include "kernel/kvq_impl.h"

KVQ_INLINE __m256i kvq_load(const void *p)
{
    return _mm256_load_si256((const __m256i *)p);
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

/* Sum of squares in that order. */
KVQ_INLINE float kvq_energy(const float *y, int n)
{
    __m256 s0 = _mm256_setzero_ps(), s1 = s0;
    for (int i = 0; i < n; i += 16) {
        __m256 a = _mm256_load_ps(y + i), b = _mm256_load_ps(y + i + 8);
        s0 = _mm256_fmadd_ps(a, a, s0);
        s1 = _mm256_fmadd_ps(b, b, s1);
    }
    return kvq_add_lanes(s0, s1);
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

/* 16 small integers in two registers to bytes, in order (saturating to int8). */
KVQ_INLINE __m128i kvq_bytes(__m256i a, __m256i b)
{
    __m256i w = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xD8);
    return _mm_packs_epi16(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
}

void tern_kvq_prep_avx2(int8_t *q, float *scale, int32_t *sum, const float *x, const struct tern_kvq_table *tab,
                        int dim, int n_q);
void tern_kvq_score_avx2(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                         const struct tern_kvq_table *tab, int dim, int n_q, const void *next);
void tern_kvq_accum_avx2(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                         const struct tern_kvq_table *tab, int dim, int n_q, const void *next);
void tern_kvq_score_avxvnni(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                            const struct tern_kvq_table *tab, int dim, int n_q, const void *next);
void tern_kvq_accum_avxvnni(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                            const struct tern_kvq_table *tab, int dim, int n_q, const void *next);
void tern_kvq_rotate_avx2(float *x, const float *sign, int dim, int inverse);
void tern_kvq_encode_trellis_avx2(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab,
                                  int key, int dim, int n, void *scratch);
void tern_kvq_pack_k_avx2(uint8_t *k, const uint8_t *codes, int bits, int dim);
void tern_kvq_pack_v_avx2(uint8_t *v, const uint8_t *codes, int bits, int dim);

#endif

/* avx2/kvq_prep.c - queries made ready for coded keys. */
#include "kernel/avx2/kvq_simd.h"

static int32_t prep_block(int8_t *q, const float *x, float inv, __m128i order, int n)
{
    __m256 vi = _mm256_set1_ps(inv);
    __m256i sum = _mm256_setzero_si256();
    for (int d = 0; d < n; d += 16) {
        __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(x + d), vi));
        __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_load_ps(x + d + 8), vi));
        sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
        _mm_store_si128((__m128i *)(q + d), _mm_shuffle_epi8(kvq_bytes(a, b), order));
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

void tern_kvq_prep_avx2(int8_t *q, float *scale, int32_t *sum, const float *x, const struct tern_kvq_table *tab,
                        int dim, int n_q)
{
    int n_blocks = tern_kvq_blocks(dim);
    __m128i order = kvq_step_order(tab->bits);
    for (int ib = 0; ib < n_q * n_blocks; ib++) {
        int d0 = ib % n_blocks * TERN_KVQ_BLOCK;
        int n = kvq_block_dims(dim, d0);
        size_t at = (size_t)(ib / n_blocks) * dim + d0;
        uint32_t top = kvq_top(x + at, n);
        float amax = tern_bits_f32(top);
        bool usable = top < 0x7F800000u && amax >= TERN_KVQ_TINY;
        scale[ib] = amax / 127.0f * tab->unit;
        if (usable) {
            sum[ib] = prep_block(q + at, x + at, 127.0f / amax, order, n);
        } else {
            memset(q + at, 0, (size_t)n);
            sum[ib] = 0;
        }
    }
}

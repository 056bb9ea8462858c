/* avx2/kvq_trellis.c - the trellis encoder (kernel/kvq_trellis_impl.h), 32 vectors at once. */
#include "kernel/avx2/kvq_simd.h"

#define TRELLIS_LANES   16
#define TRELLIS_WIDE    (2 * TRELLIS_LANES)
#define TRELLIS_AT_ONCE 4
#define vec_keep(v)     __asm__("" : "+x"(v))
typedef __m256i vec, lane_set;
typedef __m256 floats;

KVQ_INLINE vec vec_set(int i)
{
    return _mm256_set1_epi16((int16_t)i);
}

KVQ_INLINE vec vec_add(vec a, vec b)
{
    return _mm256_add_epi16(a, b);
}

KVQ_INLINE vec vec_sub(vec a, vec b)
{
    return _mm256_sub_epi16(a, b);
}

KVQ_INLINE vec vec_mul(vec a, vec b)
{
    return _mm256_mullo_epi16(a, b);
}

KVQ_INLINE vec vec_adds(vec a, vec b)
{
    return _mm256_adds_epi16(a, b);
}

KVQ_INLINE vec vec_min(vec a, vec b)
{
    return _mm256_min_epi16(a, b);
}

KVQ_INLINE vec vec_mulhrs(vec a, vec b)
{
    return _mm256_mulhrs_epi16(a, b);
}

KVQ_INLINE vec vec_and(vec a, vec b)
{
    return _mm256_and_si256(a, b);
}

KVQ_INLINE vec vec_or(vec a, vec b)
{
    return _mm256_or_si256(a, b);
}

KVQ_INLINE vec vec_shl(vec a, const int n)
{
    return _mm256_slli_epi16(a, n);
}

KVQ_INLINE vec vec_shr(vec a, const int n)
{
    return _mm256_srli_epi16(a, n);
}

KVQ_INLINE lane_set vec_equal(vec a, vec b)
{
    return _mm256_cmpeq_epi16(a, b);
}

KVQ_INLINE lane_set vec_less(vec a, vec b)
{
    return _mm256_cmpgt_epi16(b, a);
}

KVQ_INLINE vec vec_choose(lane_set set, vec yes, vec no)
{
    return _mm256_blendv_epi8(no, yes, set);
}

KVQ_INLINE vec vec_table(const int8_t *t)
{
    return kvq_repeat(t, 16);
}

KVQ_INLINE vec vec_look_up(vec table, vec i)
{
    vec high = _mm256_or_si256(_mm256_slli_epi16(i, 8), _mm256_set1_epi16(0x0080)); /* low bytes become 0 */
    return _mm256_srai_epi16(_mm256_shuffle_epi8(table, high), 8);
}

KVQ_INLINE __m256i on_grid(const float *y, const float *scale)
{
    const __m256 hi = _mm256_set1_ps(16256.0f), lo = _mm256_set1_ps(-16256.0f);
    __m256 x = _mm256_mul_ps(_mm256_load_ps(y), _mm256_load_ps(scale));
    return _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(x, hi), lo));
}

KVQ_INLINE vec vec_on_grid(const float *y, const float *scale)
{
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(on_grid(y, scale), on_grid(y + 8, scale + 8)), 0xD8);
}

KVQ_INLINE floats vec_floats(vec v, const int j)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(j ? _mm256_extracti128_si256(v, 1) : _mm256_castsi256_si128(v)));
}

KVQ_INLINE floats floats_fma(floats a, floats b, floats c)
{
    return _mm256_fmadd_ps(a, b, c);
}

KVQ_INLINE void store_bytes(uint8_t *to, vec v)
{
    __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    _mm_store_si128((__m128i *)to, bytes);
}

KVQ_INLINE void choose_bytes(uint8_t *to, const uint8_t *from, const uint8_t *set)
{
    __m128i yes = _mm_load_si128((const __m128i *)from), no = _mm_load_si128((const __m128i *)to);
    _mm_store_si128((__m128i *)to, _mm_blendv_epi8(no, yes, _mm_load_si128((const __m128i *)set)));
}

KVQ_INLINE void turn_floats(float *to, const float *const *row, int i)
{
    __m256 r[4];
    KVQ_UNROLL for (int k = 0; k < 4; k++)
    {
        r[k] = _mm256_castps128_ps256(_mm_load_ps(row[k] + i));
        r[k] = _mm256_insertf128_ps(r[k], _mm_load_ps(row[k + 4] + i), 1);
    }
    __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(r[0], r[1])), b = _mm256_castps_pd(_mm256_unpacklo_ps(r[2], r[3]));
    __m256d c = _mm256_castps_pd(_mm256_unpackhi_ps(r[0], r[1])), d = _mm256_castps_pd(_mm256_unpackhi_ps(r[2], r[3]));
    _mm256_store_ps(to, _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)));
    _mm256_store_ps(to + TRELLIS_WIDE, _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
    _mm256_store_ps(to + 2 * TRELLIS_WIDE, _mm256_castpd_ps(_mm256_unpacklo_pd(c, d)));
    _mm256_store_ps(to + 3 * TRELLIS_WIDE, _mm256_castpd_ps(_mm256_unpackhi_pd(c, d)));
}

/* Four rounds, each of which puts the upper half of the bytes between those of the lower half. */
KVQ_INLINE void turn_bytes(uint8_t *to, size_t stride, const uint8_t *from, int n)
{
    __m128i v[16], u[16];
    KVQ_UNROLL for (int c = 0; c < 16; c++) v[c] = _mm_load_si128((const __m128i *)(from + c * TRELLIS_WIDE));
    KVQ_UNROLL for (int round = 0; round < 4; round++)
    {
        KVQ_UNROLL for (int c = 0; c < 16; c++) u[c] = v[c];
        KVQ_UNROLL for (int c = 0; c < 8; c++)
        {
            v[2 * c] = _mm_unpacklo_epi8(u[c], u[c + 8]);
            v[2 * c + 1] = _mm_unpackhi_epi8(u[c], u[c + 8]);
        }
    }
    KVQ_UNROLL for (int r = 0; r < 16; r++)
    {
        if (r < n)
            _mm_store_si128((__m128i *)(to + r * stride), v[r]);
    }
}

#include "kernel/kvq_trellis_impl.h"

void tern_kvq_encode_trellis_avx2(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab,
                                  int key, int dim, int n, void *scratch)
{
    encode_trellis(codes, head, x, tab, key, dim, n, scratch);
}

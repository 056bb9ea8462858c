/* avx512/kvq_trellis.c - the trellis encoder (kernel/kvq_trellis_impl.h), 64 vectors at once. */
#include "kernel/avx512/attn_simd.h"
#include "kernel/avx512/kvq_simd.h"

#define TRELLIS_LANES   32
#define TRELLIS_WIDE    (2 * TRELLIS_LANES)
#define TRELLIS_AT_ONCE 8
#define vec_keep(v)     __asm__("" : "+v"(v))
typedef __m512i vec;
typedef __mmask32 lane_set;
typedef __m512 floats;

KVQ_INLINE vec vec_set(int i)
{
    return _mm512_set1_epi16((int16_t)i);
}

KVQ_INLINE vec vec_add(vec a, vec b)
{
    return _mm512_add_epi16(a, b);
}

KVQ_INLINE vec vec_sub(vec a, vec b)
{
    return _mm512_sub_epi16(a, b);
}

KVQ_INLINE vec vec_mul(vec a, vec b)
{
    return _mm512_mullo_epi16(a, b);
}

KVQ_INLINE vec vec_adds(vec a, vec b)
{
    return _mm512_adds_epi16(a, b);
}

KVQ_INLINE vec vec_min(vec a, vec b)
{
    return _mm512_min_epi16(a, b);
}

KVQ_INLINE vec vec_mulhrs(vec a, vec b)
{
    return _mm512_mulhrs_epi16(a, b);
}

KVQ_INLINE vec vec_and(vec a, vec b)
{
    return _mm512_and_si512(a, b);
}

KVQ_INLINE vec vec_or(vec a, vec b)
{
    return _mm512_or_si512(a, b);
}

KVQ_INLINE vec vec_shl(vec a, const int n)
{
    return _mm512_slli_epi16(a, (unsigned)n);
}

KVQ_INLINE vec vec_shr(vec a, const int n)
{
    return _mm512_srli_epi16(a, (unsigned)n);
}

KVQ_INLINE lane_set vec_equal(vec a, vec b)
{
    return _mm512_cmpeq_epi16_mask(a, b);
}

KVQ_INLINE lane_set vec_less(vec a, vec b)
{
    return _mm512_cmplt_epi16_mask(a, b);
}

KVQ_INLINE vec vec_choose(lane_set set, vec yes, vec no)
{
    return _mm512_mask_mov_epi16(no, set, yes);
}

KVQ_INLINE vec vec_table(const int8_t *t)
{
    return _mm512_cvtepi8_epi16(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)t)));
}

KVQ_INLINE vec vec_look_up(vec table, vec i)
{
    return _mm512_permutexvar_epi16(i, table);
}

KVQ_INLINE __m512i on_grid(const float *y, const float *scale)
{
    const __m512 hi = _mm512_set1_ps(16256.0f), lo = _mm512_set1_ps(-16256.0f);
    __m512 x = _mm512_mul_ps(_mm512_load_ps(y), _mm512_load_ps(scale));
    return _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(x, hi), lo));
}

KVQ_INLINE vec vec_on_grid(const float *y, const float *scale)
{
    const __m512i in_order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    return _mm512_permutexvar_epi64(in_order, _mm512_packs_epi32(on_grid(y, scale), on_grid(y + 16, scale + 16)));
}

KVQ_INLINE floats vec_floats(vec v, const int j)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(j ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v)));
}

KVQ_INLINE floats floats_fma(floats a, floats b, floats c)
{
    return _mm512_fmadd_ps(a, b, c);
}

KVQ_INLINE void store_bytes(uint8_t *to, vec v)
{
    _mm256_store_si256((__m256i *)to, _mm512_cvtepi16_epi8(v));
}

KVQ_INLINE void choose_bytes(uint8_t *to, const uint8_t *from, const uint8_t *set)
{
    __mmask32 yes = _mm256_movepi8_mask(_mm256_load_si256((const __m256i *)set));
    _mm256_mask_storeu_epi8(to, yes, _mm256_load_si256((const __m256i *)from));
}

/* Sixteen bytes from each of four places. */
KVQ_INLINE __m512i four_parts(const void *p0, const void *p1, const void *p2, const void *p3)
{
    __m512i v = _mm512_castsi128_si512(_mm_load_si128(p0));
    v = _mm512_inserti32x4(v, _mm_load_si128(p1), 1);
    v = _mm512_inserti32x4(v, _mm_load_si128(p2), 2);
    return _mm512_inserti32x4(v, _mm_load_si128(p3), 3);
}

/* In each quarter of the registers: element j of register i becomes element i of register j. */
KVQ_INLINE void turn_quarters(__m512i v[4])
{
    __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
    __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(a, b);
    v[1] = _mm512_unpackhi_epi64(a, b);
    v[2] = _mm512_unpacklo_epi64(c, d);
    v[3] = _mm512_unpackhi_epi64(c, d);
}

KVQ_INLINE void turn_floats(float *to, const float *const *row, int i)
{
    __m512i v[4];
    KVQ_UNROLL for (int r = 0; r < 4; r++)
    {
        v[r] = four_parts(row[r] + i, row[r + 4] + i, row[r + 8] + i, row[r + 12] + i);
    }
    turn_quarters(v);
    KVQ_UNROLL for (int c = 0; c < 4; c++) _mm512_store_si512(to + c * TRELLIS_WIDE, v[c]);
}

/* Four bytes of a row come together first; quarter k of register j is then row 4k + j. */
KVQ_INLINE void turn_bytes(uint8_t *to, size_t stride, const uint8_t *from, int n)
{
    const __m512i first = _mm512_set_epi32(0x3F2F1F0F, 0x3E2E1E0E, 0x3D2D1D0D, 0x3C2C1C0C, 0x3B2B1B0B, 0x3A2A1A0A,
                                           0x39291909, 0x38281808, 0x37271707, 0x36261606, 0x35251505, 0x34241404,
                                           0x33231303, 0x32221202, 0x31211101, 0x30201000);
    __m512i v[4];
    __m128i out[16];
    KVQ_UNROLL for (int g = 0; g < 4; g++)
    {
        const uint8_t *p = from + 4 * g * TRELLIS_WIDE;
        v[g] = four_parts(p, p + TRELLIS_WIDE, p + 2 * TRELLIS_WIDE, p + 3 * TRELLIS_WIDE);
        v[g] = _mm512_permutexvar_epi8(first, v[g]);
    }
    turn_quarters(v);
    KVQ_UNROLL for (int j = 0; j < 4; j++)
    {
        out[j] = _mm512_castsi512_si128(v[j]);
        out[j + 4] = _mm512_extracti32x4_epi32(v[j], 1);
        out[j + 8] = _mm512_extracti32x4_epi32(v[j], 2);
        out[j + 12] = _mm512_extracti32x4_epi32(v[j], 3);
    }
    KVQ_UNROLL for (int r = 0; r < 16; r++)
    {
        if (r < n)
            _mm_store_si128((__m128i *)(to + r * stride), out[r]);
    }
}

KVQ_INLINE float kvq_energy(const float *y, int n)
{
    __m512 s = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) {
        __m512 v = _mm512_load_ps(y + i);
        s = _mm512_fmadd_ps(v, v, s);
    }
    return _mm_cvtss_f32(sum16(s));
}

#include "kernel/kvq_trellis_impl.h"

void tern_kvq_encode_trellis_avx512(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab,
                                    int key, int dim, int n, void *scratch)
{
    encode_trellis(codes, head, x, tab, key, dim, n, scratch);
}

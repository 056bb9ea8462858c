/* avx2/kvq_encode.c - vectors to codes (rotation, nearest entry, scale) and codes to pages. */
#include "kernel/avx2/kvq_simd.h"
#include "kernel/kvq_mix_impl.h"

#include <math.h>

/* ---- rotation: every element takes part in the same additions as in the plain loop, only in other registers ---- */

/* Butterflies of strides 1, 2 and 4 inside a register: the partner comes by a shuffle, the upper element of each pair
 * changes its own sign, so a+b and (-b)+a come from one addition. */
KVQ_INLINE __m256 within(__m256 v)
{
    const __m256 odd = _mm256_castsi256_ps(_mm256_setr_epi32(0, INT32_MIN, 0, INT32_MIN, 0, INT32_MIN, 0, INT32_MIN));
    const __m256 two = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, INT32_MIN, INT32_MIN, 0, 0, INT32_MIN, INT32_MIN));
    const __m256 top = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, 0, 0, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN));
    v = _mm256_add_ps(_mm256_permute_ps(v, 0xB1), _mm256_xor_ps(v, odd));
    v = _mm256_add_ps(_mm256_permute_ps(v, 0x4E), _mm256_xor_ps(v, two));
    return _mm256_add_ps(_mm256_permute2f128_ps(v, v, 0x01), _mm256_xor_ps(v, top));
}

/* Butterflies between n registers, n a power of two. */
KVQ_INLINE void between(__m256 *v, const int n)
{
    KVQ_UNROLL for (int s = 1; s < n; s *= 2)
    {
        KVQ_UNROLL for (int i = 0; i < n; i++)
        {
            if (i & s)
                continue;
            __m256 a = v[i], b = v[i + s];
            v[i] = _mm256_add_ps(a, b);
            v[i + s] = _mm256_sub_ps(a, b);
        }
    }
}

/* Strides below 8n of 8n consecutive elements, with the signs of the forward direction and, when these strides are all
 * there are, the closing factors. */
KVQ_INLINE void rotate_near(float *x, const float *sign, const int n, __m256 norm, bool inverse, bool last)
{
    __m256 v[8];
    KVQ_UNROLL for (int i = 0; i < n; i++)
    {
        v[i] = _mm256_load_ps(x + 8 * i);
        if (!inverse)
            v[i] = _mm256_mul_ps(v[i], _mm256_load_ps(sign + 8 * i));
        v[i] = within(v[i]);
    }
    between(v, n);
    KVQ_UNROLL for (int i = 0; i < n; i++)
    {
        if (last)
            v[i] = _mm256_mul_ps(v[i], norm);
        if (last && inverse)
            v[i] = _mm256_mul_ps(v[i], _mm256_load_ps(sign + 8 * i));
        _mm256_store_ps(x + 8 * i, v[i]);
    }
}

/* Strides 64 .. 32n of 64n elements, and the closing factors. */
KVQ_INLINE void rotate_far(float *x, const float *sign, const int n, __m256 norm, bool inverse)
{
    for (int j = 0; j < 64; j += 8) {
        __m256 v[8];
        KVQ_UNROLL for (int i = 0; i < n; i++) v[i] = _mm256_load_ps(x + j + 64 * i);
        between(v, n);
        KVQ_UNROLL for (int i = 0; i < n; i++)
        {
            v[i] = _mm256_mul_ps(v[i], norm);
            if (inverse)
                v[i] = _mm256_mul_ps(v[i], _mm256_load_ps(sign + j + 64 * i));
            _mm256_store_ps(x + j + 64 * i, v[i]);
        }
    }
}

static void rotate_run(float *x, const float *sign, int dim, int inverse)
{
    __m256 norm = _mm256_set1_ps(kvq_run_norm(dim));
    if (dim == 16) {
        rotate_near(x, sign, 2, norm, inverse, true);
        return;
    }
    if (dim == 32) {
        rotate_near(x, sign, 4, norm, inverse, true);
        return;
    }
    for (int i = 0; i < dim; i += 64)
        rotate_near(x + i, sign + i, 8, norm, inverse, dim == 64);
    if (dim == 128)
        rotate_far(x, sign, 2, norm, inverse);
    else if (dim == 256)
        rotate_far(x, sign, 4, norm, inverse);
    else if (dim == 512)
        rotate_far(x, sign, 8, norm, inverse);
}

void tern_kvq_rotate_avx2(float *x, const float *sign, int dim, int inverse)
{
    kvq_rotate(x, sign, dim, inverse, rotate_run);
}

/* ---- encoding ---- */

struct code_table {
    float mid[15];
    float entry[16] __attribute__((aligned(32))); /* repeats below 16 */
};

static void code_table(struct code_table *c, const struct tern_kvq_table *tab)
{
    int n = 1 << tab->bits;
    for (int i = 0; i < 16; i++)
        c->entry[i] = (float)tab->entry[i & (n - 1)];
    for (int i = 0; i + 1 < n; i++)
        c->mid[i] = 0.5f * (float)(tab->entry[i] + tab->entry[i + 1]) * tab->unit;
}

/* Symbols of 8 values, counting the midpoints below them, and the sums that the scale needs. */
KVQ_INLINE __m256i nearest(__m256 y, __m256 inv, const struct code_table *c, __m256 *ye, __m256 *ee, const int bits)
{
    const int n_mid = (1 << bits) - 1;
    __m256 z = _mm256_mul_ps(y, inv);
    __m256i n = _mm256_setzero_si256();
    KVQ_UNROLL for (int k = 0; k < n_mid; k++)
    {
        __m256 above = _mm256_cmp_ps(z, _mm256_broadcast_ss(&c->mid[k]), _CMP_GT_OQ);
        n = _mm256_sub_epi32(n, _mm256_castps_si256(above));
    }
    __m256 e = _mm256_permutevar8x32_ps(_mm256_load_ps(c->entry), n);
    if (bits == 4) {
        __m256 hi = _mm256_permutevar8x32_ps(_mm256_load_ps(c->entry + 8), n);
        e = _mm256_blendv_ps(e, hi, _mm256_castsi256_ps(_mm256_slli_epi32(n, 28)));
    }
    *ye = _mm256_fmadd_ps(y, e, *ye);
    *ee = _mm256_fmadd_ps(e, e, *ee); /* integers below 2^24: exact in any order */
    return n;
}

KVQ_INLINE uint16_t encode_block(uint8_t *codes, const float *y, const struct code_table *c, float unit, int key, int n,
                                 const int bits)
{
    __m256 ye0 = _mm256_setzero_ps(), ye1 = ye0, ee = ye0;
    float ss = kvq_energy(y, n);
    if (!(ss >= TERN_KVQ_TINY && ss < INFINITY)) {
        memset(codes, 1 << (bits - 1), (size_t)n);
        return 0;
    }
    __m256 inv = _mm256_set1_ps(1.0f / sqrtf(ss / (float)n));
    for (int i = 0; i < n; i += 16) {
        __m256i q0 = nearest(_mm256_load_ps(y + i), inv, c, &ye0, &ee, bits);
        __m256i q1 = nearest(_mm256_load_ps(y + i + 8), inv, c, &ye1, &ee, bits);
        _mm_store_si128((__m128i *)(codes + i), kvq_bytes(q0, q1));
    }
    float fee = kvq_add_lanes(ee, _mm256_setzero_ps());
    float f = key ? sqrtf(ss / fee) : kvq_add_lanes(ye0, ye1) / fee;
    return tern_kvq_head_near(f / unit);
}

static uint16_t encode_block8(uint8_t *codes, const float *y, int n)
{
    uint32_t top = kvq_top(y, n);
    if (!top || top >= 0x7F800000u) {
        memset(codes, 0, (size_t)n);
        return 0;
    }
    uint16_t head = tern_kvq_head_up(tern_bits_f32(top));
    __m256 inv = _mm256_set1_ps(127.0f / tern_kvq_scale(head));
    __m256 hi = _mm256_set1_ps(127.0f), lo = _mm256_set1_ps(-127.0f);
    for (int i = 0; i < n; i += 16) {
        __m256i c[2];
        KVQ_UNROLL for (int j = 0; j < 2; j++)
        {
            __m256 z = _mm256_mul_ps(_mm256_load_ps(y + i + 8 * j), inv);
            c[j] = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(z, hi), lo));
        }
        _mm_store_si128((__m128i *)(codes + i), kvq_bytes(c[0], c[1]));
    }
    return head;
}

void tern_kvq_encode_avx2(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key,
                          int dim, int n, void *scratch)
{
    struct code_table c;
    if (tab->trellis) {
        tern_kvq_encode_trellis_avx2(codes, head, x, tab, key, dim, n, scratch);
        return;
    }
    if (tab->bits != 8)
        code_table(&c, tab);
    for (int t = 0; t < n; t++) {
        for (int d = 0; d < dim; d += TERN_KVQ_BLOCK) {
            int bn = kvq_block_dims(dim, d);
            const float *y = x + (size_t)t * dim + d;
            uint8_t *to = codes + (size_t)t * dim + d;
            uint16_t *h = &head[d / TERN_KVQ_BLOCK * 64 + t];
            if (tab->bits == 8)
                *h = encode_block8(to, y, bn);
            else if (tab->bits == 4)
                *h = encode_block(to, y, &c, tab->unit, key, bn, 4);
            else if (tab->bits == 3)
                *h = encode_block(to, y, &c, tab->unit, key, bn, 3);
            else
                *h = encode_block(to, y, &c, tab->unit, key, bn, 2);
        }
    }
}

/* ---- packing ---- */

/* Eight codes of consecutive bytes to nibbles of a word. */
KVQ_INLINE uint32_t nibbles(const uint8_t *codes)
{
    uint64_t x;
    memcpy(&x, codes, 8);
    return (uint32_t)_pext_u64(x, 0x0F0F0F0F0F0F0F0Fu);
}

KVQ_INLINE uint32_t pairs(const uint8_t *codes)
{
    uint64_t x;
    memcpy(&x, codes, 8);
    return (uint32_t)_pext_u64(x, 0x0303030303030303u);
}

static void pack_k_lane(uint8_t *lane, const uint8_t *codes, int bits)
{
    uint32_t w[8];
    if (bits == 8) {
        memcpy(w, codes, 32);
    } else if (bits == 2) {
        w[0] = pairs(codes) | pairs(codes + 8) << 16;
        w[1] = pairs(codes + 16) | pairs(codes + 24) << 16;
    } else {
        for (int i = 0; i < 4; i++)
            w[i] = nibbles(codes + 8 * i);
        if (bits == 3) {
            for (int i = 0; i < 3; i++)
                w[i] |= (w[3] >> i & 0x11111111u) << 3;
        }
    }
    for (int i = 0; i < bits; i++)
        memcpy(lane + 64 * i, &w[i], 4);
}

void tern_kvq_pack_k_avx2(uint8_t *k, const uint8_t *codes, int bits, int dim)
{
    const size_t half_bytes = (size_t)dim * 4 * bits, group_bytes = (size_t)64 * bits;
    const int whole = dim / 32 * 32;
    for (int t = 0; t < 64; t++) {
        uint8_t *lane = k + (size_t)(t / 32) * half_bytes + (size_t)(t / 16 % 2) * group_bytes + (size_t)(t % 16) * 4;
        const uint8_t *row = codes + (size_t)t * dim;
        for (int d = 0; d < whole; d += 32)
            pack_k_lane(lane + (size_t)d * 4 * bits, row + d, bits);
        if (whole < dim && t % 32 < 16) { /* the last 16 dims share a set with those of the token 16 further on */
            uint8_t both[32];
            memcpy(both, row + whole, 16);
            memcpy(both + 16, row + (size_t)16 * dim + whole, 16);
            pack_k_lane(lane + (size_t)whole * 4 * bits, both, bits);
        }
    }
}

/* Rows (tokens) of 16 bytes become one word vector: row groups give byte 0, 1, 2, 3 of every lane. */
KVQ_INLINE void store_word(uint8_t *to, const __m128i byte[4])
{
    __m128i lo = _mm_unpacklo_epi8(byte[0], byte[1]), hi = _mm_unpackhi_epi8(byte[0], byte[1]);
    __m128i lo2 = _mm_unpacklo_epi8(byte[2], byte[3]), hi2 = _mm_unpackhi_epi8(byte[2], byte[3]);
    _mm_store_si128((__m128i *)to, _mm_unpacklo_epi16(lo, lo2));
    _mm_store_si128((__m128i *)(to + 16), _mm_unpackhi_epi16(lo, lo2));
    _mm_store_si128((__m128i *)(to + 32), _mm_unpacklo_epi16(hi, hi2));
    _mm_store_si128((__m128i *)(to + 48), _mm_unpackhi_epi16(hi, hi2));
}

/* Byte j of word w: its codes come from 8/width consecutive rows. */
KVQ_INLINE void gather_word(__m128i byte[4], const uint8_t *rows, size_t stride, int w, const int width)
{
    const int per_byte = 8 / width;
    KVQ_UNROLL for (int j = 0; j < 4; j++)
    {
        const uint8_t *row = rows + (size_t)((4 * w + j) * per_byte) * stride;
        byte[j] = _mm_loadu_si128((const __m128i *)row);
        KVQ_UNROLL for (int i = 1; i < per_byte; i++)
        {
            __m128i r = _mm_loadu_si128((const __m128i *)(row + i * stride));
            byte[j] = _mm_or_si128(byte[j], _mm_slli_epi16(r, width * i)); /* codes are small: nothing crosses bytes */
        }
    }
}

static void pack_v_group(uint8_t *group, const uint8_t *rows, size_t stride, int bits)
{
    __m128i byte[4][4];
    if (bits == 8 || bits == 2) {
        for (int w = 0; w < bits; w++) {
            if (bits == 8)
                gather_word(byte[0], rows, stride, w, 8);
            else
                gather_word(byte[0], rows, stride, w, 2);
            store_word(group + 64 * w, byte[0]);
        }
        return;
    }
    KVQ_UNROLL for (int w = 0; w < 4; w++) gather_word(byte[w], rows, stride, w, 4);
    if (bits == 3) {
        __m128i low = _mm_set1_epi8(0x11);
        KVQ_UNROLL for (int j = 0; j < 4; j++)
        {
            KVQ_UNROLL for (int w = 0; w < 3; w++)
            {
                __m128i spare = _mm_and_si128(_mm_srli_epi16(byte[3][j], w), low);
                byte[w][j] = _mm_or_si128(byte[w][j], _mm_slli_epi16(spare, 3));
            }
        }
    }
    for (int w = 0; w < bits; w++)
        store_word(group + 64 * w, byte[w]);
}

void tern_kvq_pack_v_avx2(uint8_t *v, const uint8_t *codes, int bits, int dim)
{
    for (int t = 0; t < 64; t += 32) {
        for (int d = 0; d < dim; d += 16) {
            size_t at = (size_t)(t / 32 * (dim / 16) + d / 16) * 64 * bits;
            pack_v_group(v + at, codes + (size_t)t * dim + d, (size_t)dim, bits);
        }
    }
}

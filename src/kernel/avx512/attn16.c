/* Attention in 16-bit integers on VNNI: `vpdpwssd` adds the products of two 16-bit pairs to each of 16 integers; around
 * it kernel/attn16_impl.h.
 *
 * A register tile is six rows by four panels, all tokens of a page: 24 sums, four vectors of codes and a broadcast
 * pair.  Heads that are no multiple of 64 end in single panels. */
#include "kernel/attn16.h"
#include "kernel/avx512/attn_simd.h"
#include "kernel/avx512/kvq_simd.h"

/* ---- sixteen lanes ---- */

typedef __m512 lanes;

ATTN_INLINE lanes lanes_max(lanes a, lanes b)
{
    return _mm512_max_ps(a, b);
}

ATTN_INLINE lanes lanes_add(lanes a, lanes b)
{
    return _mm512_add_ps(a, b);
}

ATTN_INLINE lanes lanes_sub(lanes a, lanes b)
{
    return _mm512_sub_ps(a, b);
}

ATTN_INLINE lanes lanes_mul(lanes a, lanes b)
{
    return _mm512_mul_ps(a, b);
}

ATTN_INLINE lanes lanes_set(float x)
{
    return _mm512_set1_ps(x);
}

ATTN_INLINE lanes lanes_load(const float *p)
{
    return _mm512_load_ps(p);
}

ATTN_INLINE void lanes_store(float *p, lanes v)
{
    _mm512_store_ps(p, v);
}

ATTN_INLINE lanes lanes_inside(lanes v, int t, int t0, int t1, lanes x)
{
    const __m512i at =
        _mm512_add_epi32(_mm512_set1_epi32(t), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    const __mmask16 from = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32(t0));
    return _mm512_mask_blend_ps(_mm512_mask_cmplt_epi32_mask(from, at, _mm512_set1_epi32(t1)), x, v);
}

/* The constants are derived in ref/attn16.c. */
ATTN_INLINE lanes lanes_exp2(lanes x)
{
    const __m512 magic = _mm512_set1_ps(0x1.8p23f), shifted = _mm512_add_ps(x, magic);
    const __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, magic));
    __m512 p = _mm512_fmadd_ps(f, _mm512_set1_ps(0x1.409104p-7f), _mm512_set1_ps(0x1.ca9008p-5f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(0x1.ebf1b4p-3f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(0x1.62dfcap-1f));
    p = _mm512_fmadd_ps(f, p, _mm512_set1_ps(1.0f));
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), n));
}

ATTN_INLINE float lanes_max_of(lanes v)
{
    return _mm_cvtss_f32(max16(v));
}

ATTN_INLINE float lanes_sum_of(lanes v)
{
    return _mm_cvtss_f32(sum16(v));
}

ATTN_INLINE float shrink_of(float x)
{
    return _mm512_cvtss_f32(exp2_nonpos(_mm512_set1_ps(x), 0xFFFF));
}

/* ---- item order ---- */

struct order {
    __m256i items;
};

ATTN_INLINE struct order order_of(int bits)
{
    int16_t at[16] __attribute__((aligned(32)));
    for (int i = 0; i < 16; i++)
        at[i] = (int16_t)tern_attn16_item(i, bits);
    return (struct order){_mm256_load_si256((const __m256i *)(const void *)at)};
}

/* Saturating, so that a NaN becomes what it becomes with AVX2. */
ATTN_INLINE void lanes_put16(int16_t *out, lanes v, const struct order *order)
{
    const __m256i codes = _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(v));
    _mm256_store_si256((__m256i *)(void *)out, _mm256_permutexvar_epi16(order->items, codes));
}

ATTN_INLINE uint32_t top_of(const float *x, int n)
{
    __m512i top = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 16)
        top = _mm512_max_epu32(top, _mm512_and_si512(_mm512_load_si512(x + i), _mm512_set1_epi32(0x7FFFFFFF)));
    return _mm512_reduce_max_epu32(top);
}

#define TILE  6
#define WIDTH 4
#include "kernel/attn16_impl.h"

/* ---- pages ---- */

/* The pairs of bytes 0 and 2, and of 1 and 3, of sixteen lanes. */
ATTN_INLINE void put_pairs(int16_t *even, int16_t *odd, __m512i e)
{
    _mm512_store_si512(even, _mm512_srai_epi16(_mm512_slli_epi16(e, 8), 8));
    _mm512_store_si512(odd, _mm512_srai_epi16(e, 8));
}

KVQ_INLINE void put_scales(float *f, const uint16_t *head)
{
    _mm512_store_ps(f, kvq_scales(head));
}

/* Values between pairs of items. */
#define PAIR 32

/* n words from `first` on of a set of 16 tokens. */
KVQ_INLINE void expand_set(int16_t *out, const uint8_t *set, int first, const int n_words, __m512i tail, bool last,
                           const struct kvq_tables *t, const int bits, const bool trellis)
{
    const int per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        const __m512i v = kvq_word(set, first + w, bits);
        const __m512i p = kvq_key_before(set, first, w, n_words, tail, last, bits);
        KVQ_UNROLL for (int n = 0; n < per_byte; n++)
        {
            int16_t *to = out + (2 * w * per_byte + n) * PAIR;
            put_pairs(to, to + per_byte * PAIR, kvq_key_step(v, p, n, t, bits, trellis));
        }
    }
}

KVQ_INLINE void expand_k_bits(int16_t *out, float *f, const uint8_t *k, const uint16_t *head,
                              const struct tern_kvq_table *tab, int dim, const int bits, const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    for (int t = 0; t < TERN_PAGE; t += 16) {
        const uint8_t *half = k + (size_t)(t / 32) * (size_t)dim * 4 * bits;
        for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK) {
            const int at = d0 / TERN_KVQ_BLOCK * TERN_PAGE + t;
            const struct kvq_keys keys = kvq_keys(half, t / 16 % 2, d0, dim, bits);
            const __m512i tail = kvq_key_tail(&keys, head + at, bits);
            int16_t *to = out + (size_t)(t * dim + d0 * 16);
            put_scales(f + at, head + at);
            for (int d = 0; d < keys.dims; d += 32)
                expand_set(to + d * 16, keys.sets + (size_t)d * 4 * bits, 0, kvq_words(bits), tail, d + 32 == keys.dims,
                           &tables, bits, trellis);
            if (keys.left)
                expand_set(to + keys.dims * 16, keys.shared, keys.word, kvq_words(bits) / 2,
                           kvq_key_wrap(keys.first, head + at, bits), true, &tables, bits, trellis);
        }
    }
}

KVQ_INLINE void expand_group(int16_t *out, const uint8_t *const x[4], const struct kvq_tables *t, const int bits,
                             const bool trellis)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        __m512i v[4];
        kvq_value_words(v, x, w, bits, trellis);
        KVQ_UNROLL for (int n = 0; n < per_byte; n++)
        {
            int16_t *to = out + (2 * w * per_byte + n) * PAIR;
            put_pairs(to, to + per_byte * PAIR, kvq_value_step(v, n, t, bits, trellis));
        }
    }
}

/* ---- products ---- */

ATTN_INLINE __m512i two_items(const int16_t *p)
{
    int32_t both;
    memcpy(&both, p, sizeof both);
    return _mm512_set1_epi32(both);
}

/* sum += w * x, pairs of 16 bits; an instruction for the reason that prompt.c has. */
ATTN_INLINE __m512i add_pairs(__m512i sum, __m512i w, __m512i x)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
}

/* Sums have names of their own, for an array of them would lie in memory. */
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define ROW_ZERO(r) d##r##0 = d##r##1 = d##r##2 = d##r##3 = _mm512_setzero_si512();
#define ROW_ADD(r)                               \
    if (r < rows) {                              \
        b = two_items(x + r * d->x_stride);      \
        d##r##0 = add_pairs(d##r##0, v0, b);     \
        if (panels > 1) {                        \
            d##r##1 = add_pairs(d##r##1, v1, b); \
            d##r##2 = add_pairs(d##r##2, v2, b); \
            d##r##3 = add_pairs(d##r##3, v3, b); \
        }                                        \
    }
#define ROW_OUT(r)                    \
    if (r < rows) {                   \
        out[WIDTH * r] = d##r##0;     \
        out[WIDTH * r + 1] = d##r##1; \
        out[WIDTH * r + 2] = d##r##2; \
        out[WIDTH * r + 3] = d##r##3; \
    }
_Static_assert(TILE == 6 && WIDTH == 4, "as the names say");

/* out[rows][WIDTH] */
ATTN_INLINE void dots(__m512i *out, const struct attn16_dots *d, const int rows, const int panels)
{
    const int16_t *x = d->x, *m = d->m;
    const size_t far = panels > 1 ? d->m_stride : 0;
    __m512i b, d00, d01, d02, d03, d10, d11, d12, d13, d20, d21, d22, d23, d30, d31, d32, d33, d40, d41, d42, d43, d50,
        d51, d52, d53;
    EACH_ROW(ROW_ZERO)
    for (int i = 0; i < d->pairs; i++, x += 2, m += PAIR) {
        const __m512i v0 = _mm512_load_si512(m), v1 = _mm512_load_si512(m + far);
        const __m512i v2 = _mm512_load_si512(m + 2 * far), v3 = _mm512_load_si512(m + 3 * far);
        EACH_ROW(ROW_ADD)
    }
    EACH_ROW(ROW_OUT)
}

ATTN_INLINE void score_tile(float *s, const struct attn16_dots *d, const float *f, const float *scale, int scale_stride,
                            bool first, const int rows, const int panels)
{
    __m512i sum[TILE * WIDTH];
    dots(sum, d, rows, panels);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const __m512 by = _mm512_set1_ps(scale[r * scale_stride]);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            float *to = s + r * TERN_PAGE + 16 * p;
            const __m512 s0 = first ? _mm512_setzero_ps() : _mm512_load_ps(to);
            const __m512 product = _mm512_mul_ps(_mm512_load_ps(f + 16 * p), by);
            _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[WIDTH * r + p]), product, s0));
        }
    }
}

ATTN_INLINE void accum_tile(float *o, int dim, const struct attn16_dots *d, const float *unit, int unit_stride,
                            const float *shrink, const int rows, const int panels)
{
    __m512i sum[TILE * WIDTH];
    dots(sum, d, rows, panels);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const __m512 by = _mm512_set1_ps(unit[r * unit_stride]), less = _mm512_set1_ps(shrink[r]);
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) {
            float *to = o + (size_t)r * (size_t)dim + 16 * p;
            const __m512 o0 = _mm512_mul_ps(_mm512_load_ps(to), less);
            _mm512_store_ps(to, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[WIDTH * r + p]), by, o0));
        }
    }
}

void tern_attn16_init_avx512(struct tern_attn16_kernels *k)
{
    *k = (struct tern_attn16_kernels){pack, expand_k, expand_v, score, softmax, accum};
}

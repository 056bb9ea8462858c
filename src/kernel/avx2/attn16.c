/* Attention in 16-bit integers with vectors of eight: `dot_pairs` multiplies pairs and
 * adds (dot.h); around it kernel/attn16_impl.h.
 *
 * A register tile is six rows by one panel, two vectors, as in prompt.c: twelve sums, two vectors of codes, a broadcast
 * pair and a product are all sixteen registers. */
#include "kernel/attn16.h"
#include "kernel/avx2/attn_simd.h"
#include "kernel/avx2/dot.h"
#include "kernel/avx2/kvq_simd.h"

/* ---- sixteen lanes ---- */

typedef struct {
    __m256 lo, hi;
} lanes;

#define LANES_BOTH(name, call)                              \
    ATTN_INLINE lanes name(lanes a, lanes b)                \
    {                                                       \
        return (lanes){call(a.lo, b.lo), call(a.hi, b.hi)}; \
    }
LANES_BOTH(lanes_max, _mm256_max_ps)
LANES_BOTH(lanes_add, _mm256_add_ps)
LANES_BOTH(lanes_sub, _mm256_sub_ps)
LANES_BOTH(lanes_mul, _mm256_mul_ps)

ATTN_INLINE lanes lanes_set(float x)
{
    return (lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

ATTN_INLINE lanes lanes_load(const float *p)
{
    return (lanes){_mm256_load_ps(p), _mm256_load_ps(p + 8)};
}

ATTN_INLINE void lanes_store(float *p, lanes v)
{
    _mm256_store_ps(p, v.lo);
    _mm256_store_ps(p + 8, v.hi);
}

ATTN_INLINE __m256 inside(int t, int t0, int t1)
{
    const __m256i at = _mm256_add_epi32(_mm256_set1_epi32(t), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32(t1), at);
    return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(t0), at), below));
}

ATTN_INLINE lanes lanes_inside(lanes v, int t, int t0, int t1, lanes x)
{
    return (lanes){_mm256_blendv_ps(x.lo, v.lo, inside(t, t0, t1)),
                   _mm256_blendv_ps(x.hi, v.hi, inside(t + 8, t0, t1))};
}

/* The constants are derived in ref/attn16.c. */
ATTN_INLINE __m256 exp2_weight(__m256 x)
{
    const __m256 magic = _mm256_set1_ps(0x1.8p23f), shifted = _mm256_add_ps(x, magic);
    const __m256 f = _mm256_sub_ps(x, _mm256_sub_ps(shifted, magic));
    __m256 p = _mm256_fmadd_ps(f, _mm256_set1_ps(0x1.409104p-7f), _mm256_set1_ps(0x1.ca9008p-5f));
    p = _mm256_fmadd_ps(f, p, _mm256_set1_ps(0x1.ebf1b4p-3f));
    p = _mm256_fmadd_ps(f, p, _mm256_set1_ps(0x1.62dfcap-1f));
    p = _mm256_fmadd_ps(f, p, _mm256_set1_ps(1.0f));
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}

ATTN_INLINE lanes lanes_exp2(lanes v)
{
    return (lanes){exp2_weight(v.lo), exp2_weight(v.hi)};
}

ATTN_INLINE float lanes_max_of(lanes v)
{
    return _mm_cvtss_f32(max16(v.lo, v.hi));
}

ATTN_INLINE float lanes_sum_of(lanes v)
{
    return _mm_cvtss_f32(sum16(v.lo, v.hi));
}

ATTN_INLINE float shrink_of(float x)
{
    return _mm256_cvtss_f32(exp2_nonpos(_mm256_set1_ps(x)));
}

/* ---- item order ---- */

struct order {
    __m256i turn, pairs;
};

/* A saturating pack leaves four of the first vector and four of the second side by side in each half, which is where
 * runs of 16 want them; shorter runs are put in order first. */
ATTN_INLINE struct order order_of(int bits)
{
    const __m128i fours = _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    const __m128i eights = _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    return (struct order){bits == 2 ? _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)
                                    : _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7),
                          _mm256_broadcastsi128_si256(bits == 8 ? fours : eights)};
}

ATTN_INLINE void lanes_put16(int16_t *out, lanes v, const struct order *order)
{
    const __m256i both = _mm256_packs_epi32(_mm256_cvtps_epi32(v.lo), _mm256_cvtps_epi32(v.hi));
    const __m256i turned = _mm256_permutevar8x32_epi32(both, order->turn);
    _mm256_store_si256((__m256i *)(void *)out, _mm256_shuffle_epi8(turned, order->pairs));
}

ATTN_INLINE uint32_t top_of(const float *x, int n)
{
    return kvq_top(x, n);
}

#define TILE  6
#define WIDTH 1
#include "kernel/attn16_impl.h"

/* ---- pages ---- */

/* The pairs of bytes 0 and 2, and of 1 and 3, of eight lanes. */
ATTN_INLINE void put_pairs(int16_t *even, int16_t *odd, __m256i e)
{
    _mm256_store_si256((__m256i *)(void *)even, _mm256_srai_epi16(_mm256_slli_epi16(e, 8), 8));
    _mm256_store_si256((__m256i *)(void *)odd, _mm256_srai_epi16(e, 8));
}

KVQ_INLINE void put_scales(float *f, const uint16_t *head)
{
    _mm256_store_ps(f, kvq_scales(head));
    _mm256_store_ps(f + 8, kvq_scales(head + 8));
}

/* Values between pairs of items. */
#define PAIR 32

/* n words from `first` on of a set of 16 tokens. */
KVQ_INLINE void expand_set(int16_t *out, const uint8_t *set, int first, const int n_words, const __m256i tail[2],
                           bool last, const struct kvq_tables *t, const int bits, const bool trellis)
{
    const int per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        KVQ_UNROLL for (int half = 0; half < 2; half++)
        {
            const __m256i v = kvq_word(set + 32 * half, first + w, bits);
            const __m256i p = kvq_key_before(set + 32 * half, first, w, n_words, tail[half], last, bits);
            KVQ_UNROLL for (int n = 0; n < per_byte; n++)
            {
                int16_t *to = out + (2 * w * per_byte + n) * PAIR + 16 * half;
                put_pairs(to, to + per_byte * PAIR, kvq_key_step(v, p, n, t, bits, trellis));
            }
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
            int16_t *to = out + (size_t)(t * dim + d0 * 16);
            __m256i tail[2];
            put_scales(f + at, head + at);
            kvq_key_tail(tail, &keys, head + at, bits);
            for (int d = 0; d < keys.dims; d += 32)
                expand_set(to + d * 16, keys.sets + (size_t)d * 4 * bits, 0, kvq_words(bits), tail, d + 32 == keys.dims,
                           &tables, bits, trellis);
            if (keys.left) {
                kvq_key_wrap(tail, keys.first, head + at, bits);
                expand_set(to + keys.dims * 16, keys.shared, keys.word, kvq_words(bits) / 2, tail, true, &tables, bits,
                           trellis);
            }
        }
    }
}

KVQ_INLINE void expand_group(int16_t *out, const uint8_t *const x[4], const struct kvq_tables *t, const int bits,
                             const bool trellis)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        KVQ_UNROLL for (int half = 0; half < 2; half++)
        {
            __m256i v[4];
            kvq_value_words(v, x, 32 * half, w, bits, trellis);
            KVQ_UNROLL for (int n = 0; n < per_byte; n++)
            {
                int16_t *to = out + (2 * w * per_byte + n) * PAIR + 16 * half;
                put_pairs(to, to + per_byte * PAIR, kvq_value_step(v, n, t, bits, trellis));
            }
        }
    }
}

/* ---- products ---- */

/* Loops are of short instructions (prompt_tile.h says why): pointers stand in the middle of what they reach, and the
 * compiler may not make them into others. */
#define OPAQUE(p) __asm__("" : "+r"(p))

ATTN_INLINE __m256i two_items(const char *p)
{
    int32_t both;
    memcpy(&both, p, sizeof both);
    return _mm256_set1_epi32(both);
}

/* Sums have names of their own, for an array of them would lie in memory. */
#define EACH_ROW(X, i) X(0, i) X(1, i) X(2, i) X(3, i) X(4, i) X(5, i)
#define ROW_ZERO(r, i) d##r##0 = d##r##1 = _mm256_setzero_si256();
#define ROW_ADD(r, i)                                                     \
    if (r < rows) {                                                       \
        b = two_items((r < 3 ? low : high) + (r % 3) * stride + 4 * (i)); \
        d##r##0 = dot_pairs(d##r##0, v0, b);                              \
        d##r##1 = dot_pairs(d##r##1, v1, b);                              \
    }
#define ROW_OUT(r, i)             \
    if (r < rows) {               \
        out[2 * r] = d##r##0;     \
        out[2 * r + 1] = d##r##1; \
    }
#define ADD_PAIR(i)                                                                \
    {                                                                              \
        v0 = _mm256_load_si256((const __m256i *)(const void *)(m + 64 * (i)-128)); \
        v1 = _mm256_load_si256((const __m256i *)(const void *)(m + 64 * (i)-96));  \
        EACH_ROW(ROW_ADD, i)                                                       \
    }

/* out[rows][2] */
ATTN_INLINE void dots(__m256i *out, const struct attn16_dots *d, const int rows)
{
    size_t stride = d->x_stride * sizeof *d->x;
    const char *m = (const char *)d->m + 128, *low = (const char *)d->x, *high = low + 3 * stride;
    __m256i b, v0, v1, d00, d01, d10, d11, d20, d21, d30, d31, d40, d41, d50, d51;
    EACH_ROW(ROW_ZERO, 0)
    OPAQUE(stride);
    for (int left = d->pairs; left; left -= 4) {
        OPAQUE(m);
        OPAQUE(low);
        OPAQUE(high);
        ADD_PAIR(0)
        ADD_PAIR(1)
        ADD_PAIR(2)
        ADD_PAIR(3)
        m += 256;
        low += 16;
        high += 16;
    }
    EACH_ROW(ROW_OUT, 0)
}

ATTN_INLINE void score_tile(float *s, const struct attn16_dots *d, const float *f, const float *scale, int scale_stride,
                            bool first, const int rows, const int panels)
{
    __m256i sum[2 * TILE];
    (void)panels; /* one */
    dots(sum, d, rows);
    const __m256 f0 = _mm256_load_ps(f), f1 = _mm256_load_ps(f + 8);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const __m256 by = _mm256_broadcast_ss(scale + r * scale_stride);
        float *to = s + r * TERN_PAGE;
        const __m256 s0 = first ? _mm256_setzero_ps() : _mm256_load_ps(to);
        const __m256 s1 = first ? _mm256_setzero_ps() : _mm256_load_ps(to + 8);
        _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[2 * r]), _mm256_mul_ps(f0, by), s0));
        _mm256_store_ps(to + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[2 * r + 1]), _mm256_mul_ps(f1, by), s1));
    }
}

ATTN_INLINE void accum_tile(float *o, int dim, const struct attn16_dots *d, const float *unit, int unit_stride,
                            const float *shrink, const int rows, const int panels)
{
    __m256i sum[2 * TILE];
    (void)panels;
    dots(sum, d, rows);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        const __m256 by = _mm256_broadcast_ss(unit + r * unit_stride), less = _mm256_broadcast_ss(shrink + r);
        float *to = o + (size_t)r * (size_t)dim;
        const __m256 o0 = _mm256_mul_ps(_mm256_load_ps(to), less), o1 = _mm256_mul_ps(_mm256_load_ps(to + 8), less);
        _mm256_store_ps(to, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[2 * r]), by, o0));
        _mm256_store_ps(to + 8, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[2 * r + 1]), by, o1));
    }
}

void TERN_AT_LEVEL(tern_attn16_init)(struct tern_attn16_kernels *k)
{
    *k = (struct tern_attn16_kernels){pack, expand_k, expand_v, score, softmax, accum};
}

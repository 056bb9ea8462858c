/* avx2/kvq_accum.c - weighted sums of coded values with vectors of eight: 16 dims in two registers, four
 * tokens of each per 32-bit lane (dot.h).
 *
 * AVX2: weights go through pmaddwd in pairs, two tokens at a time: four instructions for 32 products, against three for
 * 7-bit weights through pmaddubsw, which would cost 4-bit codes 6 % of their own error.  AVX-VNNI: weights are unsigned
 * bytes, the first operand of vpdpbusd; the 15-bit ones of 8-bit codes go in pairs as well. */
#include "kernel/avx2/dot.h"
#include "kernel/avx2/kvq_simd.h"

/* Weights of `bits`-bit codes are bytes, not pairs of 16 bits. */
#ifdef __AVXVNNI__
#define BYTES(bits) ((bits) < 8)
#else
#define BYTES(bits) (0 && (bits))
#endif

/* For pairs entries are looked up as entry + 128, so that splitting bytes needs no sign extension. */
#define OFFSET(bits) (BYTES(bits) ? 0 : 128)

/* Integer weights of one row and block in step order.  Pairs: in each step tokens 0 and 2, then 1 and 3 of the four (a
 * 32-bit lane's even bytes, then its odd bytes). */
struct row_weights {
    union {
        int16_t w[64];
        uint8_t b[64];
    } __attribute__((aligned(16)));
    float value;   /* of weight 1 times entry 1 */
    int32_t start; /* makes up for OFFSET */
};

/* 32 weights, tokens ascending in four registers of 8, into step order. */
KVQ_INLINE void order_weights(int16_t *w, __m128i a, __m128i b, __m128i c, __m128i d, const int bits)
{
    if (bits == 2) {
        __m128i in[2][2] = {{a, b}, {c, d}};
        for (int i = 0; i < 2; i++) {
            __m128i lo = _mm_unpacklo_epi16(in[i][0], in[i][1]), hi = _mm_unpackhi_epi16(in[i][0], in[i][1]);
            _mm_store_si128((__m128i *)(w + 16 * i), _mm_unpacklo_epi32(lo, hi));
            _mm_store_si128((__m128i *)(w + 16 * i + 8), _mm_unpackhi_epi32(lo, hi));
        }
        return;
    }
    __m128i order = bits == 8 ? _mm_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15)
                              : _mm_setr_epi8(0, 1, 8, 9, 4, 5, 12, 13, 2, 3, 10, 11, 6, 7, 14, 15);
    _mm_store_si128((__m128i *)w, _mm_shuffle_epi8(a, order));
    _mm_store_si128((__m128i *)(w + 8), _mm_shuffle_epi8(b, order));
    _mm_store_si128((__m128i *)(w + 16), _mm_shuffle_epi8(c, order));
    _mm_store_si128((__m128i *)(w + 24), _mm_shuffle_epi8(d, order));
}

KVQ_INLINE void make_weights(struct row_weights *r, const float *p, const uint16_t *head, float unit, const int bits)
{
    const float steps = tern_kvq_full(bits);
    __m256 w[8], top = _mm256_setzero_ps();
    KVQ_UNROLL for (int i = 0; i < 8; i++)
    {
        w[i] = _mm256_mul_ps(_mm256_load_ps(p + 8 * i), kvq_scales(head + 8 * i));
        top = _mm256_max_ps(w[i], top); /* a NaN in the first operand yields the second */
    }
    __m128 m4 = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    m4 = _mm_max_ps(m4, _mm_movehl_ps(m4, m4));
    float m = _mm_cvtss_f32(_mm_max_ss(m4, _mm_movehdup_ps(m4)));
    __m256 inv = _mm256_set1_ps(m >= TERN_KVQ_TINY ? steps / m : 0.0f), full = _mm256_set1_ps(steps);
    __m256i sum = _mm256_setzero_si256();
    __m128i h[8];
    KVQ_UNROLL for (int i = 0; i < 8; i++)
    {
        __m256 x = _mm256_max_ps(_mm256_min_ps(_mm256_mul_ps(w[i], inv), full), _mm256_setzero_ps());
        __m256i c = _mm256_cvtps_epi32(x);
        sum = _mm256_add_epi32(sum, c);
        h[i] = _mm_packs_epi32(_mm256_castsi256_si128(c), _mm256_extracti128_si256(c, 1));
    }
    if (BYTES(bits)) {
        const __m128i order = kvq_step_order(bits);
        KVQ_UNROLL for (int i = 0; i < 4; i++)
        {
            const __m128i b = _mm_packus_epi16(h[2 * i], h[2 * i + 1]);
            _mm_store_si128((__m128i *)(void *)(r->b + 16 * i), _mm_shuffle_epi8(b, order));
        }
    } else {
        order_weights(r->w, h[0], h[1], h[2], h[3], bits);
        order_weights(r->w + 32, h[4], h[5], h[6], h[7], bits);
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1));
    r->value = m * unit / steps;
    r->start = -OFFSET(bits) * _mm_cvtsi128_si32(s);
}

/* acc += e * w, two tokens to a lane.  On AVX2 dot_pairs was no faster here. */
KVQ_INLINE void add_pairs(__m256i *acc, __m256i e, __m256i w)
{
#ifdef __AVXVNNI__
    *acc = dot_pairs(*acc, e, w);
#else
    kvq_add(acc, _mm256_madd_epi16(e, w));
#endif
}

/* One step of four tokens for 16 dims and `rows` rows, whose weights stand at `at`. */
KVQ_INLINE void accum_step(__m256i acc[][2], __m256i e0, __m256i e1, const struct row_weights *r, int at,
                           const int rows, const int bits)
{
#ifdef __AVXVNNI__
    KVQ_UNROLL for (int i = 0; BYTES(bits) && i < rows; i++)
    {
        const __m256i four = kvq_broadcast4(r[i].b + at);
        acc[i][0] = dot_quads(acc[i][0], four, e0);
        acc[i][1] = dot_quads(acc[i][1], four, e1);
    }
#endif
    if (BYTES(bits))
        return;
    __m256i low = _mm256_set1_epi16(255);
    __m256i even0 = _mm256_and_si256(e0, low), odd0 = _mm256_srli_epi16(e0, 8);
    __m256i even1 = _mm256_and_si256(e1, low), odd1 = _mm256_srli_epi16(e1, 8);
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        __m256i even = kvq_broadcast4(r[i].w + at), odd = kvq_broadcast4(r[i].w + at + 2);
        add_pairs(&acc[i][0], even0, even);
        add_pairs(&acc[i][1], even1, even);
        add_pairs(&acc[i][0], odd0, odd);
        add_pairs(&acc[i][1], odd1, odd);
    }
}

/* What one call works on. */
struct page {
    const struct kvq_tables *t;
    const void *next;
    int dim;
};

/* 16 dims from d on for `rows` rows.  x: in each half their group and those before it in the chains. */
KVQ_INLINE void accum_dims(const int rows, float *o, const struct row_weights *r, const struct page *p, int d,
                           const uint8_t *const x[2][4], const float *shrink, bool fetch, const int bits,
                           const bool trellis)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits);
    __m256i acc[KVQ_ROWS][2];
    KVQ_UNROLL for (int i = 0; i < rows; i++) acc[i][0] = acc[i][1] = _mm256_set1_epi32(r[i].start);
    for (int half = 0; half < 2; half++) {
        if (fetch)
            kvq_prefetch(p->next, (size_t)(d / 8 + half), bits);
        KVQ_UNROLL for (int w = 0; w < n_words; w++)
        {
            __m256i v0[4], v1[4];
            kvq_value_words(v0, x[half], 0, w, bits, trellis);
            kvq_value_words(v1, x[half], 32, w, bits, trellis);
            if (bits == 8) {
                v0[0] = _mm256_xor_si256(v0[0], _mm256_set1_epi8((char)OFFSET(bits)));
                v1[0] = _mm256_xor_si256(v1[0], _mm256_set1_epi8((char)OFFSET(bits)));
            }
            KVQ_UNROLL for (int n = 0; n < per_byte; n++)
                accum_step(acc, kvq_value_step(v0, n, p->t, bits, trellis), kvq_value_step(v1, n, p->t, bits, trellis),
                           r, 32 * half + 4 * (w * per_byte + n), rows, bits);
        }
    }
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        __m256 c = _mm256_set1_ps(r[i].value), sh = _mm256_set1_ps(shrink ? shrink[i] : 1.0f);
        KVQ_UNROLL for (int j = 0; j < 2; j++)
        {
            float *oi = o + (size_t)i * p->dim + 8 * j;
            __m256 old = _mm256_mul_ps(_mm256_load_ps(oi), sh);
            _mm256_store_ps(oi, _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc[i][j]), c, old));
        }
    }
}

KVQ_INLINE void accum_bits(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next, const int bits,
                           const bool trellis)
{
    struct row_weights r[TERN_KVQ_MAX_Q] __attribute__((aligned(64)));
    uint8_t wrap[2][KVQ_WRAP_BYTES] __attribute__((aligned(64)));
    const struct kvq_tables tables = kvq_tables(tab, OFFSET(bits), bits, trellis);
    const struct page page = {&tables, next, dim};
    const size_t half_bytes = (size_t)dim * 4 * bits;
    for (int d = 0; d < dim; d += 16) {
        const int d0 = d / TERN_KVQ_BLOCK * TERN_KVQ_BLOCK, n_groups = kvq_block_dims(dim, d0) / 16;
        const uint16_t *hb = head + d0 / TERN_KVQ_BLOCK * 64;
        const uint8_t *x[2][4];
        for (int i = 0; i < n_q && d == d0; i++)
            make_weights(&r[i], p + i * 64, hb, tab->unit, bits);
        for (int half = 0; half < 2; half++) {
            const uint8_t *block = v + half * half_bytes + (size_t)d0 * 4 * bits;
            if (trellis && d == d0)
                kvq_value_wrap(wrap[half], block, hb + 32 * half, n_groups, bits);
            kvq_value_groups(x[half], block, wrap[half], (d - d0) / 16, n_groups, kvq_reach(bits, trellis), bits);
        }
        for (int i = 0; i < n_q; i += KVQ_ROWS)
            KVQ_BY_ROWS(n_q - i, accum_dims, o + (size_t)i * dim + d, r + i, &page, d, x, shrink ? shrink + i : NULL,
                        i == 0, bits, trellis);
    }
}

void TERN_AT_LEVEL(tern_kvq_accum)(float *o, const float *p, const uint8_t *v, const uint16_t *head,
                                   const float *shrink, const struct tern_kvq_table *tab, int dim, int n_q,
                                   const void *next)
{
    KVQ_BY_CODE(tab, accum_bits, o, p, v, head, shrink, tab, dim, n_q, next);
}

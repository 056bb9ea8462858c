/* avx2/kvq.c - expanding coded pages to floats for prompt rows, and the table of the AVX2 page kernels. */
#include "kernel/avx2/kvq_simd.h"

/* Byte j of every lane as a float. */
KVQ_INLINE __m256 float_byte(__m256i v, int j)
{
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(j == 3 ? v : _mm256_slli_epi32(v, 24 - 8 * j), 24));
}

/* n words from `first` on of a set of 16 tokens; row: out's row of the first dim. */
KVQ_INLINE void decode_set(float *row, const uint8_t *set, int first, const int n_words, const __m256i tail[2],
                           bool last, const __m256 fu[2], const struct kvq_tables *t, const int bits,
                           const bool trellis)
{
    const int per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        __m256i v0 = kvq_word(set, first + w, bits), v1 = kvq_word(set + 32, first + w, bits);
        __m256i p0 = kvq_key_before(set, first, w, n_words, tail[0], last, bits);
        __m256i p1 = kvq_key_before(set + 32, first, w, n_words, tail[1], last, bits);
        KVQ_UNROLL for (int n = 0; n < per_byte; n++)
        {
            __m256i e0 = kvq_key_step(v0, p0, n, t, bits, trellis), e1 = kvq_key_step(v1, p1, n, t, bits, trellis);
            KVQ_UNROLL for (int j = 0; j < 4; j++)
            {
                float *to = row + ((4 * w + j) * per_byte + n) * 64;
                _mm256_store_ps(to, _mm256_mul_ps(fu[0], float_byte(e0, j)));
                _mm256_store_ps(to + 8, _mm256_mul_ps(fu[1], float_byte(e1, j)));
            }
        }
    }
}

KVQ_INLINE void decode_k_bits(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab,
                              int dim, const int bits, const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    const __m256 unit = _mm256_set1_ps(tab->unit);
    for (int t = 0; t < 64; t += 16) {
        const uint8_t *half = k + (size_t)(t / 32) * dim * 4 * bits;
        for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK) {
            const uint16_t *h = head + d0 / TERN_KVQ_BLOCK * 64 + t;
            const struct kvq_keys keys = kvq_keys(half, t / 16 % 2, d0, dim, bits);
            const __m256 fu[2] = {_mm256_mul_ps(kvq_scales(h), unit), _mm256_mul_ps(kvq_scales(h + 8), unit)};
            float *row = out + (size_t)d0 * 64 + t;
            __m256i tail[2];
            kvq_key_tail(tail, &keys, h, bits);
            for (int d = 0; d < keys.dims; d += 32)
                decode_set(row + (size_t)d * 64, keys.sets + (size_t)d * 4 * bits, 0, kvq_words(bits), tail,
                           d + 32 == keys.dims, fu, &tables, bits, trellis);
            if (keys.left) {
                kvq_key_wrap(tail, keys.first, h, bits);
                decode_set(row + (size_t)keys.dims * 64, keys.shared, keys.word, kvq_words(bits) / 2, tail, true, fu,
                           &tables, bits, trellis);
            }
        }
    }
}

/* 16 dims of 32 tokens; row: out's first token, fu: its factors. */
KVQ_INLINE void decode_group(float *row, const uint8_t *const x[4], const float *fu, const struct kvq_tables *t,
                             int dim, const int bits, const bool trellis)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        __m256i v0[4], v1[4];
        kvq_value_words(v0, x, 0, w, bits, trellis);
        kvq_value_words(v1, x, 32, w, bits, trellis);
        KVQ_UNROLL for (int n = 0; n < per_byte; n++)
        {
            __m256i e0 = kvq_value_step(v0, n, t, bits, trellis), e1 = kvq_value_step(v1, n, t, bits, trellis);
            KVQ_UNROLL for (int j = 0; j < 4; j++)
            {
                int token = (4 * w + j) * per_byte + n;
                float *to = row + (size_t)token * dim;
                __m256 f = _mm256_set1_ps(fu[token]);
                _mm256_store_ps(to, _mm256_mul_ps(f, float_byte(e0, j)));
                _mm256_store_ps(to + 8, _mm256_mul_ps(f, float_byte(e1, j)));
            }
        }
    }
}

KVQ_INLINE void decode_v_bits(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab,
                              int dim, const int bits, const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    const __m256 unit = _mm256_set1_ps(tab->unit);
    for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK) {
        const uint16_t *hb = head + d0 / TERN_KVQ_BLOCK * 64;
        for (int half = 0; half < 2; half++) {
            const uint8_t *block = v + ((size_t)half * dim + d0) * 4 * bits, *x[4];
            const int n_groups = kvq_block_dims(dim, d0) / 16;
            float fu[32] __attribute__((aligned(32)));
            uint8_t wrap[KVQ_WRAP_BYTES] __attribute__((aligned(64)));
            for (int t = 0; t < 32; t += 8)
                _mm256_store_ps(fu + t, _mm256_mul_ps(kvq_scales(hb + 32 * half + t), unit));
            if (trellis)
                kvq_value_wrap(wrap, block, hb + 32 * half, n_groups, bits);
            for (int g = 0; g < n_groups; g++) {
                kvq_value_groups(x, block, wrap, g, n_groups, kvq_reach(bits, trellis), bits);
                decode_group(out + (size_t)half * 32 * dim + d0 + 16 * g, x, fu, &tables, dim, bits, trellis);
            }
        }
    }
}

static void decode_k(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab, int dim)
{
    KVQ_BY_CODE(tab, decode_k_bits, out, k, head, tab, dim);
}

static void decode_v(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab, int dim)
{
    KVQ_BY_CODE(tab, decode_v_bits, out, v, head, tab, dim);
}

void tern_kvq_init_avx2(struct tern_kvq_kernels *k)
{
    k->rotate = tern_kvq_rotate_avx2;
    k->prep = tern_kvq_prep_avx2;
    k->score = tern_kvq_score_avx2;
    k->accum = tern_kvq_accum_avx2;
    k->decode_k = decode_k;
    k->decode_v = decode_v;
    k->encode = tern_kvq_encode_avx2;
    k->pack_k = tern_kvq_pack_k_avx2;
    k->pack_v = tern_kvq_pack_v_avx2;
}

/* avx512/kvq.c - expanding coded pages to floats for prompt rows, and the table of the AVX-512 page kernels.
 *
 * Rotation, query preparation, scalar encoding and packing stay with the AVX2 kernels, which every AVX-512 machine has:
 * they run once per vector and not once per page and token. */
#include "kernel/avx512/kvq_simd.h"

/* A table of scalar codes as floats; vpermps looks at four index bits, so smaller tables repeat. */
KVQ_INLINE __m512 float_table(const struct tern_kvq_table *tab, const int bits)
{
    __m512i a = kvq_repeat(tab->entry, kvq_span_a(bits, false));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm512_castsi512_si128(a)));
}

/* Entry of byte j of step n in each lane: scalar codes straight from their word v, the others from the step's e. */
KVQ_INLINE __m512 entry_at(__m512i v, __m512i e, int j, int n, __m512 table, const int bits, const bool trellis)
{
    if (bits == 8 || trellis)
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(e, (unsigned)(24 - 8 * j)), 24));
    return _mm512_permutexvar_ps(_mm512_srli_epi32(v, (unsigned)(8 * j + (bits == 2 ? 2 : 4) * n)), table);
}

/* n words from `first` on of a set of 16 tokens; row: out's row of the first dim. */
KVQ_INLINE void decode_set(float *row, const uint8_t *set, int first, const int n_words, __m512i tail, bool last,
                           __m512 fu, const struct kvq_tables *t, __m512 table, const int bits, const bool trellis)
{
    const int per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        __m512i v = kvq_word(set, first + w, bits);
        __m512i p = kvq_key_before(set, first, w, n_words, tail, last, bits);
        KVQ_UNROLL for (int n = 0; n < per_byte; n++)
        {
            __m512i e = kvq_key_step(v, p, n, t, bits, trellis);
            KVQ_UNROLL for (int j = 0; j < 4; j++)
            {
                __m512 value = entry_at(v, e, j, n, table, bits, trellis);
                _mm512_store_ps(row + ((4 * w + j) * per_byte + n) * 64, _mm512_mul_ps(fu, value));
            }
        }
    }
}

KVQ_INLINE void decode_k_bits(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab,
                              int dim, const int bits, const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    const __m512 table = float_table(tab, bits), unit = _mm512_set1_ps(tab->unit);
    for (int t = 0; t < 64; t += 16) {
        const uint8_t *half = k + (size_t)(t / 32) * dim * 4 * bits;
        for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK) {
            const uint16_t *h = head + d0 / TERN_KVQ_BLOCK * 64 + t;
            const struct kvq_keys keys = kvq_keys(half, t / 16 % 2, d0, dim, bits);
            const __m512 fu = _mm512_mul_ps(kvq_scales(h), unit);
            float *row = out + (size_t)d0 * 64 + t;
            const __m512i tail = kvq_key_tail(&keys, h, bits);
            for (int d = 0; d < keys.dims; d += 32)
                decode_set(row + (size_t)d * 64, keys.sets + (size_t)d * 4 * bits, 0, kvq_words(bits), tail,
                           d + 32 == keys.dims, fu, &tables, table, bits, trellis);
            if (keys.left)
                decode_set(row + (size_t)keys.dims * 64, keys.shared, keys.word, kvq_words(bits) / 2,
                           kvq_key_wrap(keys.first, h, bits), true, fu, &tables, table, bits, trellis);
        }
    }
}

/* 16 dims of 32 tokens; row: out's first token, fu: its factors. */
KVQ_INLINE void decode_group(float *row, const uint8_t *const x[4], const float *fu, const struct kvq_tables *t,
                             __m512 table, int dim, const int bits, const bool trellis)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        __m512i v[4];
        kvq_value_words(v, x, w, bits, trellis);
        KVQ_UNROLL for (int n = 0; n < per_byte; n++)
        {
            __m512i e = kvq_value_step(v, n, t, bits, trellis);
            KVQ_UNROLL for (int j = 0; j < 4; j++)
            {
                int token = (4 * w + j) * per_byte + n;
                __m512 value = entry_at(v[0], e, j, n, table, bits, trellis);
                _mm512_store_ps(row + (size_t)token * dim, _mm512_mul_ps(_mm512_set1_ps(fu[token]), value));
            }
        }
    }
}

KVQ_INLINE void decode_v_bits(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab,
                              int dim, const int bits, const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    const __m512 table = float_table(tab, bits), unit = _mm512_set1_ps(tab->unit);
    for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK) {
        const uint16_t *hb = head + d0 / TERN_KVQ_BLOCK * 64;
        for (int half = 0; half < 2; half++) {
            const uint8_t *block = v + ((size_t)half * dim + d0) * 4 * bits, *x[4];
            const int n_groups = kvq_block_dims(dim, d0) / 16;
            float fu[32] __attribute__((aligned(64)));
            uint8_t wrap[KVQ_WRAP_BYTES] __attribute__((aligned(64)));
            for (int t = 0; t < 32; t += 16)
                _mm512_store_ps(fu + t, _mm512_mul_ps(kvq_scales(hb + 32 * half + t), unit));
            if (trellis)
                kvq_value_wrap(wrap, block, hb + 32 * half, n_groups, bits);
            for (int g = 0; g < n_groups; g++) {
                kvq_value_groups(x, block, wrap, g, n_groups, kvq_reach(bits, trellis), bits);
                decode_group(out + (size_t)half * 32 * dim + d0 + 16 * g, x, fu, &tables, table, dim, bits, trellis);
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

static void encode(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key, int dim,
                   int n, void *scratch)
{
    (tab->trellis ? tern_kvq_encode_trellis_avx512 : tern_kvq_encode_avx2)(codes, head, x, tab, key, dim, n, scratch);
}

void tern_kvq_init_avx512(struct tern_kvq_kernels *k)
{
    k->score = tern_kvq_score_avx512;
    k->accum = tern_kvq_accum_avx512;
    k->decode_k = decode_k;
    k->decode_v = decode_v;
    k->encode = encode;
}

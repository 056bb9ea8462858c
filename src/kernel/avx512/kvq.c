/* avx512/kvq.c - expanding coded pages to floats for prompt rows, and the table of the AVX-512 page kernels.
 *
 * Rotation, query preparation, encoding and packing stay with the AVX2 kernels, which every AVX-512 machine has: they
 * run once per vector and not once per page and token. */
#include "kernel/avx512/kvq_simd.h"

/* Entry of code j of each lane's word; vpermps looks at four index bits, so smaller tables repeat. */
KVQ_INLINE __m512 entry_at(__m512i word, int j, __m512 table, const int bits)
{
    if (bits == 8)
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(word, (unsigned)(24 - 8 * j)), 24));
    return _mm512_permutexvar_ps(_mm512_srli_epi32(word, (unsigned)((bits == 2 ? 2 : 4) * j)), table);
}

static __m512 float_table(const struct tern_kvq_table *tab)
{
    float f[16];
    for (int i = 0; i < 16; i++)
        f[i] = tab->bits == 8 ? 0.0f : (float)tab->entry[i & ((1 << tab->bits) - 1)];
    return _mm512_loadu_ps(f);
}

KVQ_INLINE void decode_k_bits(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab,
                              int dim, const int bits)
{
    const int n_words = kvq_words(bits), per_word = 4 * kvq_per_byte(bits);
    const __m512 table = float_table(tab), unit = _mm512_set1_ps(tab->unit);
    size_t half_bytes = (size_t)dim * 4 * bits, group_bytes = (size_t)64 * bits;
    for (int t = 0; t < 64; t += 16) {
        const uint8_t *kt = k + (size_t)(t / 32) * half_bytes + (size_t)(t / 16 % 2) * group_bytes;
        for (int d = 0; d < dim; d += 32) {
            __m512 fu = _mm512_mul_ps(kvq_scales(head + d / TERN_KVQ_BLOCK * 64 + t), unit);
            const uint8_t *group = kt + (size_t)d * 4 * bits;
            float *row = out + (size_t)d * 64 + t;
            KVQ_UNROLL for (int w = 0; w < n_words; w++)
            {
                __m512i v = kvq_word(group, w, bits);
                KVQ_UNROLL for (int j = 0; j < per_word; j++)
                {
                    _mm512_store_ps(row, _mm512_mul_ps(fu, entry_at(v, j, table, bits)));
                    row += 64;
                }
            }
        }
    }
}

KVQ_INLINE void decode_v_bits(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab,
                              int dim, const int bits)
{
    const int n_words = kvq_words(bits), per_word = 4 * kvq_per_byte(bits);
    const __m512 table = float_table(tab), unit = _mm512_set1_ps(tab->unit);
    float fu[64] __attribute__((aligned(64)));
    size_t half_bytes = (size_t)dim * 4 * bits;
    for (int d = 0; d < dim; d += 16) {
        if (d % TERN_KVQ_BLOCK == 0) {
            for (int t = 0; t < 64; t += 16)
                _mm512_store_ps(fu + t, _mm512_mul_ps(kvq_scales(head + d / TERN_KVQ_BLOCK * 64 + t), unit));
        }
        for (int half = 0; half < 2; half++) {
            const uint8_t *group = v + half * half_bytes + (size_t)d * 4 * bits;
            float *row = out + (size_t)half * 32 * dim + d;
            const float *f = fu + 32 * half;
            KVQ_UNROLL for (int w = 0; w < n_words; w++)
            {
                __m512i word = kvq_word(group, w, bits);
                KVQ_UNROLL for (int j = 0; j < per_word; j++)
                {
                    __m512 e = entry_at(word, j, table, bits);
                    _mm512_store_ps(row, _mm512_mul_ps(_mm512_set1_ps(*f++), e));
                    row += dim;
                }
            }
        }
    }
}

static void decode_k(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab, int dim)
{
    switch (tab->bits) {
    case 8:
        decode_k_bits(out, k, head, tab, dim, 8);
        break;
    case 4:
        decode_k_bits(out, k, head, tab, dim, 4);
        break;
    case 3:
        decode_k_bits(out, k, head, tab, dim, 3);
        break;
    default:
        decode_k_bits(out, k, head, tab, dim, 2);
    }
}

static void decode_v(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab, int dim)
{
    switch (tab->bits) {
    case 8:
        decode_v_bits(out, v, head, tab, dim, 8);
        break;
    case 4:
        decode_v_bits(out, v, head, tab, dim, 4);
        break;
    case 3:
        decode_v_bits(out, v, head, tab, dim, 3);
        break;
    default:
        decode_v_bits(out, v, head, tab, dim, 2);
    }
}

void tern_kvq_init_avx512(struct tern_kvq_kernels *k)
{
    k->score = tern_kvq_score_avx512;
    k->accum = tern_kvq_accum_avx512;
    k->decode_k = decode_k;
    k->decode_v = decode_v;
}

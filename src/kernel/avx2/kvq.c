/* avx2/kvq.c - expanding coded pages to floats for prompt rows, and the table of the AVX2 page kernels. */
#include "kernel/avx2/kvq_simd.h"

/* Entries as floats.  permutevar8x32 looks at three index bits, so tables of 4 repeat and tables of 16 take two. */
struct float_table {
    __m256 lo, hi;
};

static struct float_table float_table(const struct tern_kvq_table *tab)
{
    float f[16] __attribute__((aligned(32)));
    for (int i = 0; i < 16; i++)
        f[i] = tab->bits == 8 ? 0.0f : (float)tab->entry[i & ((1 << tab->bits) - 1)];
    return (struct float_table){_mm256_load_ps(f), _mm256_load_ps(f + 8)};
}

/* Entry of code j (0 .. 32/bits - 1; 0..7 for 3 bits) of each lane's word. */
KVQ_INLINE __m256 entry_at(__m256i word, int j, const struct float_table *t, const int bits)
{
    if (bits == 8)
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(word, 24 - 8 * j), 24));
    int shift = (bits == 2 ? 2 : 4) * j;
    __m256i code = shift ? _mm256_srli_epi32(word, shift) : word;
    __m256 lo = _mm256_permutevar8x32_ps(t->lo, code);
    if (bits < 4)
        return lo;
    __m256 hi = _mm256_permutevar8x32_ps(t->hi, code);
    return _mm256_blendv_ps(lo, hi, _mm256_castsi256_ps(_mm256_slli_epi32(word, 28 - shift)));
}

KVQ_INLINE void decode_k_bits(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab,
                              int dim, const int bits)
{
    const int n_words = kvq_words(bits), per_word = 4 * kvq_per_byte(bits);
    const struct float_table ft = float_table(tab);
    __m256 unit = _mm256_set1_ps(tab->unit);
    size_t half_bytes = (size_t)dim * 4 * bits, group_bytes = (size_t)64 * bits;
    for (int t = 0; t < 64; t += 16) {
        const uint8_t *kt = k + (size_t)(t / 32) * half_bytes + (size_t)(t / 16 % 2) * group_bytes;
        for (int d = 0; d < dim; d += 32) {
            const uint16_t *h = head + d / TERN_KVQ_BLOCK * 64 + t;
            __m256 fu0 = _mm256_mul_ps(kvq_scales(h), unit), fu1 = _mm256_mul_ps(kvq_scales(h + 8), unit);
            const uint8_t *group = kt + (size_t)d * 4 * bits;
            float *row = out + (size_t)d * 64 + t;
            KVQ_UNROLL for (int w = 0; w < n_words; w++)
            {
                __m256i v0 = kvq_word(group, w, bits), v1 = kvq_word(group + 32, w, bits);
                KVQ_UNROLL for (int j = 0; j < per_word; j++)
                {
                    _mm256_store_ps(row, _mm256_mul_ps(fu0, entry_at(v0, j, &ft, bits)));
                    _mm256_store_ps(row + 8, _mm256_mul_ps(fu1, entry_at(v1, j, &ft, bits)));
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
    const struct float_table ft = float_table(tab);
    float fu[64] __attribute__((aligned(32)));
    __m256 unit = _mm256_set1_ps(tab->unit);
    size_t half_bytes = (size_t)dim * 4 * bits;
    for (int d = 0; d < dim; d += 16) {
        if (d % TERN_KVQ_BLOCK == 0) {
            for (int t = 0; t < 64; t += 8)
                _mm256_store_ps(fu + t, _mm256_mul_ps(kvq_scales(head + d / TERN_KVQ_BLOCK * 64 + t), unit));
        }
        for (int half = 0; half < 2; half++) {
            const uint8_t *group = v + half * half_bytes + (size_t)d * 4 * bits;
            float *row = out + (size_t)half * 32 * dim + d;
            const float *f = fu + 32 * half;
            KVQ_UNROLL for (int w = 0; w < n_words; w++)
            {
                __m256i v0 = kvq_word(group, w, bits), v1 = kvq_word(group + 32, w, bits);
                KVQ_UNROLL for (int j = 0; j < per_word; j++)
                {
                    __m256 ft1 = _mm256_set1_ps(*f++);
                    _mm256_store_ps(row, _mm256_mul_ps(ft1, entry_at(v0, j, &ft, bits)));
                    _mm256_store_ps(row + 8, _mm256_mul_ps(ft1, entry_at(v1, j, &ft, bits)));
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

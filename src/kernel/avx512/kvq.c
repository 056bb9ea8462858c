/* avx512/kvq.c - rotation, expanding coded pages to floats for prompt rows, and the table of the AVX-512 page kernels.
 *
 * Query preparation, scalar encoding and packing stay with the AVX2 kernels, which every AVX-512 machine has: they run
 * once per vector and not once per page and token.  So does rotation, but prompt rows are rotated for every layer and
 * head, on the way in and out. */
#include "kernel/avx512/kvq_simd.h"
#include "kernel/kvq_mix_impl.h"

/* ---- rotation: as avx2/kvq_encode.c does it ---- */

/* Butterflies of strides 1, 2, 4 and 8 inside a register: a+b, and the upper element of each pair (-b)+a, which a
 * product with -1 makes exactly. */
KVQ_INLINE __m512 within(__m512 v)
{
    const __m512 one = _mm512_set1_ps(1.0f), minus = _mm512_set1_ps(-1.0f);
    v = _mm512_fmadd_ps(v, _mm512_mask_mov_ps(one, 0xAAAA, minus), _mm512_permute_ps(v, 0xB1));
    v = _mm512_fmadd_ps(v, _mm512_mask_mov_ps(one, 0xCCCC, minus), _mm512_permute_ps(v, 0x4E));
    v = _mm512_fmadd_ps(v, _mm512_mask_mov_ps(one, 0xF0F0, minus), _mm512_shuffle_f32x4(v, v, 0xB1));
    return _mm512_fmadd_ps(v, _mm512_mask_mov_ps(one, 0xFF00, minus), _mm512_shuffle_f32x4(v, v, 0x4E));
}

/* Butterflies between n registers, n a power of two. */
KVQ_INLINE void between(__m512 *v, const int n)
{
    KVQ_UNROLL for (int s = 1; s < n; s *= 2)
    {
        KVQ_UNROLL for (int i = 0; i < n; i++)
        {
            if (i & s)
                continue;
            __m512 a = v[i], b = v[i + s];
            v[i] = _mm512_add_ps(a, b);
            v[i + s] = _mm512_sub_ps(a, b);
        }
    }
}

/* Strides below 16n of 16n consecutive elements, with the signs of the forward direction and, when these strides are
 * all there are, the closing factors. */
KVQ_INLINE void rotate_near(float *x, const float *sign, const int n, __m512 norm, bool inverse, bool last)
{
    __m512 v[8];
    KVQ_UNROLL for (int i = 0; i < n; i++)
    {
        v[i] = _mm512_load_ps(x + 16 * i);
        if (!inverse)
            v[i] = _mm512_mul_ps(v[i], _mm512_load_ps(sign + 16 * i));
        v[i] = within(v[i]);
    }
    between(v, n);
    KVQ_UNROLL for (int i = 0; i < n; i++)
    {
        if (last)
            v[i] = _mm512_mul_ps(v[i], norm);
        if (last && inverse)
            v[i] = _mm512_mul_ps(v[i], _mm512_load_ps(sign + 16 * i));
        _mm512_store_ps(x + 16 * i, v[i]);
    }
}

/* Strides 128 .. 64n of 128n elements, and the closing factors. */
KVQ_INLINE void rotate_far(float *x, const float *sign, const int n, __m512 norm, bool inverse)
{
    for (int j = 0; j < 128; j += 16) {
        __m512 v[4];
        KVQ_UNROLL for (int i = 0; i < n; i++) v[i] = _mm512_load_ps(x + j + 128 * i);
        between(v, n);
        KVQ_UNROLL for (int i = 0; i < n; i++)
        {
            v[i] = _mm512_mul_ps(v[i], norm);
            if (inverse)
                v[i] = _mm512_mul_ps(v[i], _mm512_load_ps(sign + j + 128 * i));
            _mm512_store_ps(x + j + 128 * i, v[i]);
        }
    }
}

static void rotate_run(float *x, const float *sign, int dim, int inverse)
{
    const __m512 norm = _mm512_set1_ps(kvq_run_norm(dim));
    switch (dim) {
    case 16:
        rotate_near(x, sign, 1, norm, inverse, true);
        return;
    case 32:
        rotate_near(x, sign, 2, norm, inverse, true);
        return;
    case 64:
        rotate_near(x, sign, 4, norm, inverse, true);
        return;
    default:
        for (int i = 0; i < dim; i += 128)
            rotate_near(x + i, sign + i, 8, norm, inverse, dim == 128);
    }
    if (dim == 256)
        rotate_far(x, sign, 2, norm, inverse);
    else if (dim == 512)
        rotate_far(x, sign, 4, norm, inverse);
}

static void rotate(float *x, const float *sign, int dim, int inverse)
{
    kvq_rotate(x, sign, dim, inverse, rotate_run);
}

/* ---- pages to floats ---- */

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
    k->rotate = rotate;
    k->score = tern_kvq_score_avx512;
    k->accum = tern_kvq_accum_avx512;
    k->decode_k = decode_k;
    k->decode_v = decode_v;
    k->encode = encode;
}

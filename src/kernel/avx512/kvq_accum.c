/* avx512/kvq_accum.c - weighted sums of coded values: a register is 16 dims, four tokens of each per 32-bit lane.
 *
 * Weights are unsigned bytes, the first operand of vpdpbusd; the 15-bit ones of 8-bit codes go through it as two
 * planes, low byte and high byte.  The integer sums are exact, so planes join without loss. */
#include "kernel/avx512/kvq_simd.h"

/* Integer weights of one row and block, 64 tokens in step order. */
struct row_weights {
    uint8_t w[2][64]; /* low bytes, high bytes */
    float value;      /* of weight 1 times entry 1 */
} __attribute__((aligned(64)));

KVQ_INLINE int kvq_planes(const int bits)
{
    return bits == 8 ? 2 : 1;
}

/* For each place in step order, the byte in which packing 16 + 16 + 16 + 16 weights leaves the token that belongs
 * there: packs work inside 128-bit lanes, so token t comes to lie in byte 16 * (t/4 % 4) + 4 * (t/16) + t%4. */
#define PACKED(t)          ((t) / 4 % 4 * 16 + (t) / 16 * 4 + (t) % 4)
#define TOKEN(j, per_byte) ((j) - (j) % (4 * (per_byte)) + (j) % (4 * (per_byte)) / 4 + (j) % 4 * (per_byte))
#define PLACE4(j, n)       PACKED(TOKEN(j, n)), PACKED(TOKEN(j + 1, n)), PACKED(TOKEN(j + 2, n)), PACKED(TOKEN(j + 3, n))
#define PLACE16(j, n)      PLACE4(j, n), PLACE4(j + 4, n), PLACE4(j + 8, n), PLACE4(j + 12, n)
#define PLACE64(n)                                                    \
    {                                                                 \
        PLACE16(0, n), PLACE16(16, n), PLACE16(32, n), PLACE16(48, n) \
    }

KVQ_INLINE __m512i step_order(const int bits)
{
    static const uint8_t one[64] = PLACE64(1), two[64] = PLACE64(2), four[64] = PLACE64(4);
    return _mm512_loadu_si512(kvq_per_byte(bits) == 1 ? one : kvq_per_byte(bits) == 2 ? two : four);
}

KVQ_INLINE __m512i pack_bytes(const __m512i c[4])
{
    return _mm512_packus_epi16(_mm512_packs_epi32(c[0], c[1]), _mm512_packs_epi32(c[2], c[3]));
}

KVQ_INLINE void make_weights(struct row_weights *r, const float *p, const __m512 f[4], float unit, __m512i order,
                             const int bits)
{
    const __m512 full = _mm512_set1_ps(tern_kvq_full(bits));
    __m512 w[4], top = _mm512_setzero_ps();
    KVQ_UNROLL for (int i = 0; i < 4; i++)
    {
        w[i] = _mm512_mul_ps(_mm512_load_ps(p + 16 * i), f[i]);
        top = _mm512_max_ps(w[i], top); /* a NaN in the first operand yields the second */
    }
    float m = _mm512_reduce_max_ps(top);
    __m512 inv = _mm512_set1_ps(m >= TERN_KVQ_TINY ? tern_kvq_full(bits) / m : 0.0f);
    __m512i c[2][4];
    KVQ_UNROLL for (int i = 0; i < 4; i++)
    {
        __m512 x = _mm512_max_ps(_mm512_min_ps(_mm512_mul_ps(w[i], inv), full), _mm512_setzero_ps());
        c[0][i] = _mm512_cvtps_epi32(x);
        if (kvq_planes(bits) == 2) {
            c[1][i] = _mm512_srli_epi32(c[0][i], 8);
            c[0][i] = _mm512_and_si512(c[0][i], _mm512_set1_epi32(255));
        }
    }
    KVQ_UNROLL for (int i = 0; i < kvq_planes(bits); i++)
    {
        _mm512_store_si512(r->w[i], _mm512_permutexvar_epi8(order, pack_bytes(c[i])));
    }
    r->value = m * unit / tern_kvq_full(bits);
}

/* What one call works on. */
struct page {
    const struct kvq_tables *t;
    const void *next;
    int dim;
};

/* Groups of 16 dims that a pass takes: a weight's bytes are spread over a register once for all of them.  More sums
 * would not stay in registers. */
KVQ_INLINE int kvq_groups(const int bits)
{
    return kvq_planes(bits) == 2 ? 2 : 4;
}

#define MAX_X 7 /* groups of a pass, and those before them in the chains */

/* So many groups from dim d on for `rows` rows; n of them are the page's, and the sums beside them are not stored.  x:
 * in each half the groups and those before them in the chains. */
KVQ_INLINE void accum_dims(const int rows, float *o, const struct row_weights *r, const struct page *p, int d, int n,
                           const uint8_t *const x[2][MAX_X], const float *shrink, bool fetch, const int bits,
                           const bool trellis, const int groups)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits), n_x = kvq_reach(bits, trellis) + groups - 1;
    const int planes = kvq_planes(bits);
    __m512i acc[KVQ_ROWS][2][4]; /* second index: plane */
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        KVQ_UNROLL for (int g = 0; g < groups; g++) acc[i][0][g] = acc[i][1][g] = _mm512_setzero_si512();
    }
    for (int half = 0; half < 2; half++) {
        if (fetch)
            kvq_prefetch(p->next, (size_t)(2 * d / (16 * groups) + half), groups * bits);
        KVQ_UNROLL for (int w = 0; w < n_words; w++)
        {
            __m512i v[MAX_X];
            KVQ_UNROLL for (int j = 0; j < n_x; j++)
            {
                v[j] = kvq_word(x[half][j], w, bits);
            }
            KVQ_UNROLL for (int m = 0; m < per_byte; m++)
            {
                const int at = 4 * (w * per_byte + m);
                __m512i e[4];
                KVQ_UNROLL for (int g = 0; g < groups; g++) e[g] = kvq_value_step(v + g, m, p->t, bits, trellis);
                KVQ_UNROLL for (int i = 0; i < rows; i++)
                {
                    KVQ_UNROLL for (int j = 0; j < planes; j++)
                    {
                        const __m512i four = kvq_broadcast4(r[i].w[j] + 32 * half + at);
                        KVQ_UNROLL for (int g = 0; g < groups; g++) acc[i][j][g] = kvq_dot(acc[i][j][g], four, e[g]);
                    }
                }
            }
        }
    }
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        __m512 c = _mm512_set1_ps(r[i].value), sh = _mm512_set1_ps(shrink ? shrink[i] : 1.0f);
        KVQ_UNROLL for (int g = 0; g < groups; g++)
        {
            if (g >= n)
                break;
            float *oi = o + (size_t)i * p->dim + 16 * g;
            __m512i dot = acc[i][0][g];
            if (planes == 2)
                dot = _mm512_add_epi32(dot, _mm512_slli_epi32(acc[i][1][g], 8));
            __m512 old = _mm512_mul_ps(_mm512_load_ps(oi), sh);
            _mm512_store_ps(oi, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), c, old));
        }
    }
}

/* Dims of one block, weights made. */
KVQ_INLINE void accum_block(float *o, const struct row_weights *r, const struct page *p, int d0,
                            const uint8_t *const block[2], const uint8_t *const wrap[2], const float *shrink, int n_q,
                            const int bits, const bool trellis)
{
    const int n_groups = kvq_block_dims(p->dim, d0) / 16, groups = kvq_groups(bits);
    const int n_x = kvq_reach(bits, trellis) + groups - 1;
    for (int g = 0; g < n_groups; g += groups) {
        const int n = n_groups - g, d = d0 + 16 * g;
        const uint8_t *x[2][MAX_X];
        for (int half = 0; half < 2; half++) {
            kvq_value_groups(x[half], block[half], wrap[half], g, n_groups, n_x, bits);
            /* Behind the last group: what is added up there does not matter, but must be there to read. */
            for (int j = n + kvq_reach(bits, trellis) - 1; j < n_x; j++)
                x[half][j] = block[half];
        }
        for (int i = 0; i < n_q; i += KVQ_ROWS)
            KVQ_BY_ROWS(n_q - i, accum_dims, o + (size_t)i * p->dim + d, r + i, p, d, n, x, shrink ? shrink + i : NULL,
                        i == 0, bits, trellis, groups);
    }
}

KVQ_INLINE void accum_bits(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next, const int bits,
                           const bool trellis)
{
    struct row_weights r[TERN_KVQ_MAX_Q];
    uint8_t wrap[2][KVQ_WRAP_BYTES] __attribute__((aligned(64)));
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    const struct page page = {&tables, next, dim};
    const __m512i order = step_order(bits);
    for (int d = 0; d < dim; d += TERN_KVQ_BLOCK) {
        const uint16_t *h = head + d / TERN_KVQ_BLOCK * 64;
        const uint8_t *block[2] = {v + (size_t)d * 4 * bits, v + ((size_t)dim + (size_t)d) * 4 * bits};
        const __m512 f[] = {kvq_scales(h), kvq_scales(h + 16), kvq_scales(h + 32), kvq_scales(h + 48)};
        for (int i = 0; i < n_q; i++)
            make_weights(&r[i], p + i * 64, f, tab->unit, order, bits);
        for (int half = 0; half < 2 && trellis; half++)
            kvq_value_wrap(wrap[half], block[half], h + 32 * half, kvq_block_dims(dim, d) / 16, bits);
        accum_block(o, r, &page, d, block, (const uint8_t *const[]){wrap[0], wrap[1]}, shrink, n_q, bits, trellis);
    }
}

void tern_kvq_accum_avx512(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next)
{
    KVQ_BY_CODE(tab, accum_bits, o, p, v, head, shrink, tab, dim, n_q, next);
}

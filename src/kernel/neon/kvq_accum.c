/* neon/kvq_accum.c - weighted sums of coded values: 16 dims in four registers, four tokens of each per 32-bit lane.
 *
 * udot multiplies unsigned bytes, so entries are looked up as entry + OFFSET and the sum of the weights takes that
 * back. The 15-bit weights of 8-bit codes go over the codes twice, first with their upper byte and then with the lower
 * one; what is read twice is 1 KB. */
#include "kernel/neon/kvq_simd.h"

#define OFFSET 128

/* Integer weights of one row and block in step order: bytes, upper ones first where there are two. */
struct row_weights {
    uint8_t w[2][64];
    float value;   /* of weight 1 times entry 1 */
    int32_t start; /* makes up for OFFSET */
};

KVQ_INLINE int n_passes(const int bits)
{
    return bits == 8 ? 2 : 1;
}

KVQ_INLINE void make_weights(struct row_weights *r, const float *p, const uint16_t *head, float unit, const int bits)
{
    const float full = tern_kvq_full(bits);
    float32x4_t w[16], top = vdupq_n_f32(0);
    KVQ_UNROLL for (int i = 0; i < 16; i++)
    {
        w[i] = vmulq_f32(vld1q_f32(p + 4 * i), kvq_scales(head + 4 * i));
        top = vmaxnmq_f32(top, w[i]); /* NaN does not count */
    }
    const float m = vmaxnmvq_f32(top), inv = m >= TERN_KVQ_TINY ? full / m : 0.0f;
    uint32x4_t sum = vdupq_n_u32(0);
    KVQ_UNROLL for (int i = 0; i < 4; i++)
    {
        uint16x4_t c[4];
        KVQ_UNROLL for (int j = 0; j < 4; j++)
        {
            float32x4_t x = vminnmq_f32(vmulq_n_f32(w[4 * i + j], inv), vdupq_n_f32(full));
            uint32x4_t n = vcvtnq_u32_f32(vmaxnmq_f32(x, vdupq_n_f32(0)));
            sum = vaddq_u32(sum, n);
            c[j] = vmovn_u32(n);
        }
        uint16x8_t lo = vcombine_u16(c[0], c[1]), hi = vcombine_u16(c[2], c[3]);
        uint8x16_t low = vcombine_u8(vmovn_u16(lo), vmovn_u16(hi));
        uint8x16_t high = vcombine_u8(vshrn_n_u16(lo, 8), vshrn_n_u16(hi, 8));
        vst1q_u8(r->w[n_passes(bits) - 1] + 16 * i, kvq_order(low, bits));
        if (bits == 8)
            vst1q_u8(r->w[0] + 16 * i, kvq_order(high, bits));
    }
    r->value = m * unit / full;
    r->start = -OFFSET * (int32_t)vaddvq_u32(sum);
}

/* What one call works on. */
struct page {
    const struct kvq_tables *t;
    const void *next;
    int dim;
};

/* One half's 32 tokens times the weights w of each row. */
KVQ_INLINE void accum_half(uint32x4_t acc[][4], const uint8_t *w, const uint8_t *const x[4], const struct kvq_tables *t,
                           const int rows, const int bits, const bool trellis)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits);
    KVQ_UNROLL for (int word = 0; word < n_words; word++)
    {
        uint8x16_t v[4][4], e[4];
        kvq_value_words(v, x, word, bits, trellis);
        KVQ_UNROLL for (int n = 0; n < per_byte; n++)
        {
            kvq_value_steps(e, v, n, t, bits, trellis);
            if (bits == 8) {
                KVQ_UNROLL for (int h = 0; h < 4; h++) e[h] = veorq_u8(e[h], vdupq_n_u8(OFFSET));
            }
            KVQ_UNROLL for (int i = 0; i < rows; i++)
            {
                uint8x16_t wi = kvq_broadcast4(w + (size_t)i * sizeof(struct row_weights) + 4 * (word * per_byte + n));
                KVQ_UNROLL for (int h = 0; h < 4; h++) acc[i][h] = vdotq_u32(acc[i][h], e[h], wi);
            }
        }
    }
}

/* 16 dims from d on for `rows` rows.  x: in each half their group and those before it in the chains. */
KVQ_INLINE void accum_dims(const int rows, float *o, const struct row_weights *r, const struct page *p, int d,
                           const uint8_t *const x[2][4], const float *shrink, bool fetch, const int bits,
                           const bool trellis)
{
    uint32x4_t acc[KVQ_ROWS][4];
    KVQ_UNROLL for (int i = 0; i < rows * 4; i++) acc[i / 4][i % 4] = vdupq_n_u32(0);
    for (int pass = 0; pass < n_passes(bits); pass++) {
        if (pass) {
            KVQ_UNROLL for (int i = 0; i < rows * 4; i++) acc[i / 4][i % 4] = vshlq_n_u32(acc[i / 4][i % 4], 8);
        }
        for (int half = 0; half < 2; half++) {
            if (fetch && !pass)
                kvq_prefetch(p->next, (size_t)(d / 8 + half), bits);
            accum_half(acc, r->w[pass] + 32 * half, x[half], p->t, rows, bits, trellis);
        }
    }
    KVQ_UNROLL for (int i = 0; i < rows; i++)
    {
        KVQ_UNROLL for (int h = 0; h < 4; h++)
        {
            float *oi = o + (size_t)i * p->dim + 4 * h;
            float32x4_t old = vmulq_n_f32(vld1q_f32(oi), shrink ? shrink[i] : 1.0f);
            int32x4_t sum = vaddq_s32(vreinterpretq_s32_u32(acc[i][h]), vdupq_n_s32(r[i].start));
            vst1q_f32(oi, vfmaq_n_f32(old, vcvtq_f32_s32(sum), r[i].value));
        }
    }
}

KVQ_INLINE void accum_bits(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next, const int bits,
                           const bool trellis)
{
    struct row_weights r[TERN_KVQ_MAX_Q];
    uint8_t wrap[2][KVQ_WRAP_BYTES];
    const struct kvq_tables tables = kvq_tables(tab, OFFSET, bits, trellis);
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

void tern_kvq_accum_neon(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                         const struct tern_kvq_table *tab, int dim, int n_q, const void *next)
{
    KVQ_BY_CODE(tab, accum_bits, o, p, v, head, shrink, tab, dim, n_q, next);
}

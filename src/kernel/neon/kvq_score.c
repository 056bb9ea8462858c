/* neon/kvq_score.c - queries against coded keys: 16 tokens in four registers, four dims of each per 32-bit lane. */
#include "kernel/neon/kvq_simd.h"

static int32_t prep_block(int8_t *q, const float *x, float inv, int n, int bits)
{
    int32x4_t sum = vdupq_n_s32(0);
    for (int d = 0; d < n; d += 16) {
        int32x4_t c[4];
        KVQ_UNROLL for (int i = 0; i < 4; i++)
        {
            c[i] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + d + 4 * i), inv));
            sum = vaddq_s32(sum, c[i]);
        }
        uint8x16_t b = kvq_order(vreinterpretq_u8_s8(kvq_bytes(c)), bits);
        vst1q_s8(q + d, vreinterpretq_s8_u8(b));
    }
    return vaddvq_s32(sum);
}

void tern_kvq_prep_neon(int8_t *q, float *scale, int32_t *sum, const float *x, const struct tern_kvq_table *tab,
                        int dim, int n_q)
{
    int n_blocks = tern_kvq_blocks(dim);
    for (int ib = 0; ib < n_q * n_blocks; ib++) {
        int d0 = ib % n_blocks * TERN_KVQ_BLOCK;
        int n = kvq_block_dims(dim, d0);
        size_t at = (size_t)(ib / n_blocks) * dim + d0;
        uint32_t top = kvq_top(x + at, n);
        float amax = tern_bits_f32(top);
        bool usable = top < 0x7F800000u && amax >= TERN_KVQ_TINY;
        scale[ib] = amax / 127.0f * tab->unit;
        if (usable) {
            sum[ib] = prep_block(q + at, x + at, 127.0f / amax, n, tab->bits);
        } else {
            memset(q + at, 0, (size_t)n);
            sum[ib] = 0;
        }
    }
}

/* What one call works on. */
struct page {
    const struct tern_kvq_query *q;
    const uint8_t *k;
    const uint16_t *head;
    const struct kvq_tables *t;
    const void *next;
    int dim;
};

/* Rows i0 .. i0+rows of the 16 tokens from t0 on. */
KVQ_INLINE void score_tokens(const int rows, float *s, const struct page *p, int t0, int i0, const int bits,
                             const bool trellis)
{
    const int n_words = kvq_words(bits), per_byte = kvq_per_byte(bits), dim = p->dim;
    const size_t set_bytes = (size_t)128 * bits /* of both groups */, side_bytes = (size_t)dim * 8 * bits;
    const uint8_t *k = p->k + (size_t)(t0 / 32) * (side_bytes / 2) + (size_t)(t0 / 16 % 2) * (set_bytes / 2);
    const uint16_t *head = p->head + t0;
    const struct tern_kvq_query *q = p->q;
    int n_blocks = tern_kvq_blocks(dim);
    float32x4_t out[KVQ_ROWS][4];
    KVQ_UNROLL for (int i = 0; i < rows * 4; i++) out[i / 4][i % 4] = vdupq_n_f32(0);
    for (int b = 0; b < n_blocks; b++) {
        int32x4_t acc[KVQ_ROWS][4];
        KVQ_UNROLL for (int i = 0; i < rows * 4; i++) acc[i / 4][i % 4] = vdupq_n_s32(0);
        const uint8_t *block = k + (size_t)b * TERN_KVQ_BLOCK / 32 * set_bytes;
        uint8x16_t wrap[4], v[4], before[4], e[4];
        kvq_key_wrap(wrap, block, head + b * 64, bits);
        int n = kvq_block_dims(dim, b * TERN_KVQ_BLOCK);
        for (int d = 0; d < n; d += 32) {
            const uint8_t *group = block + (size_t)d / 32 * set_bytes;
            const int8_t *qd = q->q + (size_t)i0 * dim + b * TERN_KVQ_BLOCK + d;
            if (i0 == 0)
                kvq_prefetch(kvq_ahead(p->k, group, side_bytes, p->next), bits);
            KVQ_UNROLL for (int w = 0; w < n_words; w++)
            {
                kvq_key_words(v, before, group, w, wrap, d + 32 == n, bits, trellis);
                KVQ_UNROLL for (int j = 0; j < per_byte; j++)
                {
                    kvq_key_steps(e, v, before, j, p->t, bits, trellis);
                    KVQ_UNROLL for (int i = 0; i < rows; i++)
                    {
                        int8x16_t qi = vreinterpretq_s8_u8(kvq_broadcast4(qd + i * dim + 4 * (w * per_byte + j)));
                        KVQ_UNROLL for (int h = 0; h < 4; h++) acc[i][h] =
                            vdotq_s32(acc[i][h], vreinterpretq_s8_u8(e[h]), qi);
                    }
                }
            }
        }
        KVQ_UNROLL for (int h = 0; h < 4; h++)
        {
            float32x4_t f = kvq_scales(head + b * 64 + 4 * h);
            KVQ_UNROLL for (int i = 0; i < rows; i++)
            {
                float32x4_t scale = vmulq_n_f32(f, q->scale[(i0 + i) * n_blocks + b]);
                out[i][h] = vfmaq_f32(out[i][h], vcvtq_f32_s32(acc[i][h]), scale);
            }
        }
    }
    KVQ_UNROLL for (int i = 0; i < rows * 4; i++)
        vst1q_f32(s + (size_t)(i0 + i / 4) * 64 + t0 + 4 * (i % 4), out[i / 4][i % 4]);
}

KVQ_INLINE void score_bits(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next, const int bits,
                           const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    const struct page page = {q, k, head, &tables, next, dim};
    for (int t = 0; t < 64; t += 16) {
        for (int i = 0; i < n_q; i += KVQ_ROWS)
            KVQ_BY_ROWS(n_q - i, score_tokens, s, &page, t, i, bits, trellis);
    }
}

void tern_kvq_score_neon(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                         const struct tern_kvq_table *tab, int dim, int n_q, const void *next)
{
    KVQ_BY_CODE(tab, score_bits, s, q, k, head, tab, dim, n_q, next);
}

/* neon/kvq_score.c - queries against coded keys: 8 tokens in two registers, four dims of each per 32-bit lane.  All
 * four quarters of a group together would leave too few registers for four rows; the other two come from the first
 * cache. */
#include "kernel/neon/dot.h"
#include "kernel/neon/kvq_simd.h"

#define QUARTERS 2

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

/* Adds `rows` query rows, q on, times n words of QUARTERS * 4 keys. */
KVQ_INLINE void dot_run(int32x4_t acc[][QUARTERS], const int rows, const int8_t *q, const struct page *p,
                        const struct kvq_key_run *r, const int n_words, const int bits, const bool trellis)
{
    const int per_byte = kvq_per_byte(bits);
    uint8x16_t v[QUARTERS], before[QUARTERS];
    int8x16_t e[QUARTERS], qi[KVQ_ROWS];
    KVQ_UNROLL for (int w = 0; w < n_words; w++)
    {
        kvq_key_words(v, before, r, w, n_words, QUARTERS, bits, trellis);
        KVQ_UNROLL for (int j = 0; j < per_byte; j++)
        {
            const int step = w * per_byte + j;
            if (step % 4 == 0) {
                KVQ_UNROLL for (int i = 0; i < rows; i++) qi[i] = vld1q_s8(q + (size_t)i * p->dim + 4 * step);
            }
            KVQ_UNROLL for (int h = 0; h < QUARTERS; h++) e[h] =
                vreinterpretq_s8_u8(kvq_key_step(v[h], before[h], j, p->t, bits, trellis));
            KVQ_UNROLL for (int i = 0; i < rows * QUARTERS; i++) acc[i / QUARTERS][i % QUARTERS] =
                dot_lane(acc[i / QUARTERS][i % QUARTERS], e[i % QUARTERS], qi[i / QUARTERS], step % 4);
        }
    }
}

/* Integer dots of `rows` query rows, q on, with one block of QUARTERS * 4 keys.  fetch: what to ask for meanwhile, or
 * NULL. */
KVQ_INLINE void dot_block(int32x4_t acc[][QUARTERS], const int rows, const int8_t *q, const struct kvq_keys *keys,
                          const uint16_t *head, const struct page *p, const char *fetch, const int bits,
                          const bool trellis)
{
    uint8x16_t tail[QUARTERS];
    KVQ_UNROLL for (int i = 0; i < rows * QUARTERS; i++) acc[i / QUARTERS][i % QUARTERS] = vdupq_n_s32(0);
    kvq_key_tail(tail, keys, head, QUARTERS, bits);
    for (int d = 0; d < keys->dims; d += 32) {
        const struct kvq_key_run r = {keys->sets + (size_t)d * 4 * bits, 0, tail, d + 32 == keys->dims};
        kvq_prefetch(fetch, (size_t)d / 32, bits);
        dot_run(acc, rows, q + d, p, &r, kvq_words(bits), bits, trellis);
    }
    if (keys->left) {
        const struct kvq_key_run r = {keys->shared, keys->word, tail, true};
        kvq_prefetch(fetch, (size_t)keys->dims / 32, bits);
        kvq_key_wrap(tail, keys->first, head, QUARTERS, bits);
        dot_run(acc, rows, q + keys->dims, p, &r, kvq_words(bits) / 2, bits, trellis);
    }
}

/* Rows i0 .. i0+rows of the tokens from t0 on. */
KVQ_INLINE void score_tokens(const int rows, float *s, const struct page *p, int t0, int i0, const int bits,
                             const bool trellis)
{
    const uint8_t *half = p->k + (size_t)(t0 / 32) * ((size_t)p->dim * 4 * bits) + (size_t)(t0 % 16) * 4;
    const int n_blocks = tern_kvq_blocks(p->dim);
    float32x4_t out[KVQ_ROWS][QUARTERS];
    KVQ_UNROLL for (int i = 0; i < rows * QUARTERS; i++) out[i / QUARTERS][i % QUARTERS] = vdupq_n_f32(0);
    for (int b = 0; b < n_blocks; b++) {
        int32x4_t acc[KVQ_ROWS][QUARTERS];
        const int d = b * TERN_KVQ_BLOCK;
        const struct kvq_keys keys = kvq_keys(half, t0 / 16 % 2, d, p->dim, bits);
        const uint16_t *head = p->head + b * 64 + t0;
        const bool first = i0 == 0 && t0 % 16 == 0 && p->next; /* one of the passes over a group asks */
        const char *fetch = first ? (const char *)p->next + (size_t)(t0 / 16 * p->dim + d) * 2 * bits : NULL;
        dot_block(acc, rows, p->q->q + (size_t)i0 * p->dim + d, &keys, head, p, fetch, bits, trellis);
        KVQ_UNROLL for (int h = 0; h < QUARTERS; h++)
        {
            float32x4_t f = kvq_scales(head + 4 * h);
            KVQ_UNROLL for (int i = 0; i < rows; i++)
            {
                float32x4_t scale = vmulq_n_f32(f, p->q->scale[(i0 + i) * n_blocks + b]);
                out[i][h] = vfmaq_f32(out[i][h], vcvtq_f32_s32(acc[i][h]), scale);
            }
        }
    }
    KVQ_UNROLL for (int i = 0; i < rows * QUARTERS; i++)
        vst1q_f32(s + (size_t)(i0 + i / QUARTERS) * 64 + t0 + 4 * (i % QUARTERS), out[i / QUARTERS][i % QUARTERS]);
}

KVQ_INLINE void score_bits(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                           const struct tern_kvq_table *tab, int dim, int n_q, const void *next, const int bits,
                           const bool trellis)
{
    const struct kvq_tables tables = kvq_tables(tab, 0, bits, trellis);
    const struct page page = {q, k, head, &tables, next, dim};
    for (int t = 0; t < 64; t += 4 * QUARTERS) {
        for (int i = 0; i < n_q; i += KVQ_ROWS)
            KVQ_BY_ROWS(n_q - i, score_tokens, s, &page, t, i, bits, trellis);
    }
}

void tern_kvq_score_neon(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                         const struct tern_kvq_table *tab, int dim, int n_q, const void *next)
{
    KVQ_BY_CODE(tab, score_bits, s, q, k, head, tab, dim, n_q, next);
}

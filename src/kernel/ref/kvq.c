/* ref/kvq.c - the page kernels that attend and decode, in plain C: the meaning of kernel/kvq.h, one line per formula.
 */
#include "kernel/ref/kvq_ref.h"

#include <math.h>
#include <string.h>

/* The 32 table entries of one lane's set, in item order. */
static void unpack_lane(int8_t e[KVQ_SET], const uint8_t *group, int lane, const struct tern_kvq_table *tab)
{
    uint32_t w[8];
    for (int i = 0; i < tab->bits; i++)
        memcpy(&w[i], group + kvq_word_at(i, lane), 4);
    for (int i = 0; i < KVQ_SET; i++) {
        switch (tab->bits) {
        case 8:
            e[i] = (int8_t)(w[i / 4] >> (8 * (i % 4)));
            break;
        case 4:
            e[i] = tab->entry[w[i / 8] >> (4 * (i % 8)) & 15];
            break;
        case 3:
            if (i < 24) {
                e[i] = tab->entry[w[i / 8] >> (4 * (i % 8)) & 7];
            } else {
                int at = 4 * (i - 24) + 3;
                e[i] = tab->entry[(w[0] >> at & 1) | (w[1] >> at & 1) << 1 | (w[2] >> at & 1) << 2];
            }
            break;
        default:
            e[i] = tab->entry[w[i / 16] >> (2 * (i % 16)) & 3];
        }
    }
}

/* Item that stands at place j of a prepared set. */
static int item_at(int j, int bits)
{
    int per_byte = bits == 8 ? 1 : bits == 2 ? 4 : 2, word = 4 * per_byte;
    int r = j % word;
    return j - r + r / 4 + r % 4 * per_byte;
}

static void prep(int8_t *q, float *scale, int32_t *sum, const float *x, const struct tern_kvq_table *tab, int dim,
                 int n_q)
{
    int n_blocks = tern_kvq_blocks(dim);
    for (int ib = 0; ib < n_q * n_blocks; ib++) {
        int d0 = ib % n_blocks * TERN_KVQ_BLOCK;
        int n = dim - d0 < TERN_KVQ_BLOCK ? dim - d0 : TERN_KVQ_BLOCK;
        const float *xb = x + (size_t)(ib / n_blocks) * dim + d0;
        int8_t *qb = q + (size_t)(ib / n_blocks) * dim + d0;
        uint32_t top = 0; /* magnitudes compare as integers, infinity and NaN above all others */
        for (int d = 0; d < n; d++) {
            uint32_t u = tern_f32_bits(xb[d]) & 0x7FFFFFFFu;
            top = u > top ? u : top;
        }
        float amax = tern_bits_f32(top);
        float inv = top < 0x7F800000u && amax >= TERN_KVQ_TINY ? 127.0f / amax : 0.0f;
        scale[ib] = amax / 127.0f * tab->unit;
        sum[ib] = 0;
        for (int j = 0; j < n; j++) {
            int c = inv > 0.0f ? (int)lrintf(xb[item_at(j, tab->bits)] * inv) : 0;
            qb[j] = (int8_t)c;
            sum[ib] += c;
        }
    }
}

static void score(float *s, const struct tern_kvq_query *q, const uint8_t *k, const uint16_t *head,
                  const struct tern_kvq_table *tab, int dim, int n_q)
{
    int n_blocks = tern_kvq_blocks(dim);
    memset(s, 0, (size_t)n_q * 64 * sizeof *s);
    for (int t = 0; t < 64; t++) {
        int32_t dot[TERN_KVQ_MAX_Q] = {0};
        for (int d = 0; d < dim; d += KVQ_SET) {
            int8_t e[KVQ_SET];
            unpack_lane(e, k + kvq_key_group(t, d, tab->bits, dim), t % KVQ_LANES, tab);
            for (int i = 0; i < n_q; i++) {
                for (int j = 0; j < KVQ_SET; j++)
                    dot[i] += e[item_at(j, tab->bits)] * q->q[(size_t)i * dim + d + j];
            }
            if ((d + KVQ_SET) % TERN_KVQ_BLOCK && d + KVQ_SET < dim)
                continue;
            int b = d / TERN_KVQ_BLOCK;
            float f = tern_kvq_scale(head[b * 64 + t]);
            for (int i = 0; i < n_q; i++) {
                s[i * 64 + t] = fmaf((float)dot[i], f * q->scale[i * n_blocks + b], s[i * 64 + t]);
                dot[i] = 0;
            }
        }
    }
}

/* 15-bit weights of one row and block; returns the value of weight 1 times entry 1. */
static float weights(int32_t W[64], const float *p, const uint16_t *head, float unit)
{
    float w[64], m = 0.0f;
    for (int t = 0; t < 64; t++) {
        w[t] = p[t] * tern_kvq_scale(head[t]);
        m = w[t] > m ? w[t] : m;
    }
    float inv = m >= TERN_KVQ_TINY ? 32767.0f / m : 0.0f;
    for (int t = 0; t < 64; t++) {
        float x = w[t] * inv;
        x = x < 32767.0f ? x : 32767.0f;
        W[t] = (int32_t)lrintf(x > 0.0f ? x : 0.0f);
    }
    return m * unit / 32767.0f;
}

static void accum(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                  const struct tern_kvq_table *tab, int dim, int n_q)
{
    for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK) {
        int32_t W[TERN_KVQ_MAX_Q][64];
        float c[TERN_KVQ_MAX_Q];
        for (int i = 0; i < n_q; i++)
            c[i] = weights(W[i], p + i * 64, head + d0 / TERN_KVQ_BLOCK * 64, tab->unit);
        for (int d = d0; d < dim && d < d0 + TERN_KVQ_BLOCK; d++) {
            int8_t e[64];
            for (int t = 0; t < 64; t += KVQ_SET)
                unpack_lane(e + t, v + kvq_value_group(t, d, tab->bits, dim), d % KVQ_LANES, tab);
            for (int i = 0; i < n_q; i++) {
                int32_t dot = 0;
                for (int t = 0; t < 64; t++)
                    dot += W[i][t] * e[t];
                float *od = &o[(size_t)i * dim + d];
                *od = fmaf((float)dot, c[i], shrink ? *od * shrink[i] : *od);
            }
        }
    }
}

static void decode_k(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab, int dim)
{
    for (int t = 0; t < 64; t++) {
        for (int d = 0; d < dim; d += KVQ_SET) {
            int8_t e[KVQ_SET];
            unpack_lane(e, k + kvq_key_group(t, d, tab->bits, dim), t % KVQ_LANES, tab);
            float fu = tern_kvq_scale(head[d / TERN_KVQ_BLOCK * 64 + t]) * tab->unit;
            for (int i = 0; i < KVQ_SET; i++)
                out[(size_t)(d + i) * 64 + t] = fu * (float)e[i];
        }
    }
}

static void decode_v(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab, int dim)
{
    for (int d = 0; d < dim; d++) {
        const uint16_t *hb = head + d / TERN_KVQ_BLOCK * 64;
        for (int t = 0; t < 64; t += KVQ_SET) {
            int8_t e[KVQ_SET];
            unpack_lane(e, v + kvq_value_group(t, d, tab->bits, dim), d % KVQ_LANES, tab);
            for (int i = 0; i < KVQ_SET; i++)
                out[(size_t)(t + i) * dim + d] = tern_kvq_scale(hb[t + i]) * tab->unit * (float)e[i];
        }
    }
}

void tern_kvq_init_ref(struct tern_kvq_kernels *k)
{
    k->rotate = tern_kvq_rotate_ref;
    k->prep = prep;
    k->score = score;
    k->accum = accum;
    k->decode_k = decode_k;
    k->decode_v = decode_v;
    k->encode = tern_kvq_encode_ref;
    k->pack_k = tern_kvq_pack_k_ref;
    k->pack_v = tern_kvq_pack_v_ref;
}

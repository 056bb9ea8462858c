/* ref/kvq.c - the page kernels that attend and decode, in plain C: the meaning of kernel/kvq.h, one line per formula.
 */
#include "kernel/ref/kvq_ref.h"

#include <math.h>
#include <string.h>

/* The 32 codes of one lane's set: items `stride` bytes apart, item 16 `half` bytes after item 0. */
static void unpack_lane(uint8_t *codes, size_t stride, size_t half, const uint8_t *group, int lane, int bits)
{
    uint32_t w[8];
    for (int i = 0; i < bits; i++)
        memcpy(&w[i], group + kvq_word_at(i, lane), 4);
    for (int i = 0; i < KVQ_SET; i++) {
        uint32_t c;
        switch (bits) {
        case 8:
            c = w[i / 4] >> (8 * (i % 4)) & 255;
            break;
        case 4:
            c = w[i / 8] >> (4 * (i % 8)) & 15;
            break;
        case 3:
            if (i < 24) {
                c = w[i / 8] >> (4 * (i % 8)) & 7;
            } else {
                int at = 4 * (i - 24) + 3;
                c = (w[0] >> at & 1) | (w[1] >> at & 1) << 1 | (w[2] >> at & 1) << 2;
            }
            break;
        default:
            c = w[i / 16] >> (2 * (i % 16)) & 3;
        }
        codes[i / 16 * half + i % 16 * stride] = (uint8_t)c;
    }
}

/* Codes of one token's block become its entries, in place of int8. */
static void follow_chain(uint8_t *codes, int start, const struct tern_kvq_table *tab, int n, bool key)
{
    uint8_t order[TERN_KVQ_BLOCK];
    kvq_chain(order, n, tab->bits, key);
    int s1 = kvq_start_symbol(start, 0, tab->bits), s2 = kvq_start_symbol(start, 1, tab->bits), s3 = 0;
    for (int i = 0; i < n; i++) {
        uint8_t *at = &codes[order[i]];
        int s = *at, e;
        if (tab->bits == 4)
            e = tab->entry[s] + tab->b[s1];
        else if (tab->bits == 3)
            e = tab->entry[s] + tab->b[s1] + tab->c[s2];
        else
            e = tab->entry[4 * s1 + s] + tab->b[4 * s3 + s2];
        *at = (uint8_t)(int8_t)e;
        s3 = s2;
        s2 = s1;
        s1 = s;
    }
}

/* The codes of a whole page side, [64][dim]. */
static void side_codes(uint8_t *codes, const uint8_t *side, int bits, int dim, bool key)
{
    const size_t row = (size_t)dim;
    for (int t = 0; t < 64; t += key ? 1 : KVQ_SET) {
        for (int d = 0; d < dim; d += key ? KVQ_SET : 1) {
            uint8_t *to = codes + (size_t)t * row + d;
            bool shared = key && kvq_shared_set(d, dim);
            if (!key)
                unpack_lane(to, row, 16 * row, side + kvq_value_set(t, d, bits, dim), d % KVQ_LANES, bits);
            else if (!shared || t % 32 < 16)
                unpack_lane(to, 1, shared ? 16 * row : 16, side + kvq_key_set(t, d, bits, dim), t % KVQ_LANES, bits);
        }
    }
}

void tern_kvq_entries_ref(int8_t *e, const uint8_t *side, const uint16_t *head, const struct tern_kvq_table *tab,
                          int dim, bool key)
{
    uint8_t *codes = (uint8_t *)e;
    side_codes(codes, side, tab->bits, dim, key);
    for (int t = 0; t < 64 && tab->bits != 8; t++) {
        for (int d = 0; d < dim; d += TERN_KVQ_BLOCK) {
            uint8_t *block = codes + (size_t)t * dim + d;
            int n = kvq_block_dims(dim, d);
            if (tab->trellis) {
                follow_chain(block, head[d / TERN_KVQ_BLOCK * 64 + t] & 15, tab, n, key);
                continue;
            }
            for (int i = 0; i < n; i++)
                block[i] = (uint8_t)tab->entry[block[i]];
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
        int n = kvq_block_dims(dim, d0);
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
                  const struct tern_kvq_table *tab, int dim, int n_q, const void *next)
{
    (void)next;
    int8_t e[64 * TERN_KVQ_MAX_DIM];
    int n_blocks = tern_kvq_blocks(dim);
    tern_kvq_entries_ref(e, k, head, tab, dim, true);
    memset(s, 0, (size_t)n_q * 64 * sizeof *s);
    for (int it = 0; it < n_q * 64; it++) {
        int i = it / 64, t = it % 64;
        for (int b = 0; b < n_blocks; b++) {
            const int8_t *eb = e + (size_t)t * dim + b * TERN_KVQ_BLOCK;
            const int8_t *qb = q->q + (size_t)i * dim + b * TERN_KVQ_BLOCK;
            int32_t dot = 0;
            for (int j = 0; j < kvq_block_dims(dim, b * TERN_KVQ_BLOCK); j++)
                dot += eb[item_at(j, tab->bits)] * qb[j];
            float f = tern_kvq_scale(head[b * 64 + t]);
            s[it] = fmaf((float)dot, f * q->scale[i * n_blocks + b], s[it]);
        }
    }
}

/* Integer weights of one row and block; returns the value of weight 1 times entry 1. */
static float weights(int32_t W[64], const float *p, const uint16_t *head, float unit, float full)
{
    float w[64], m = 0.0f;
    for (int t = 0; t < 64; t++) {
        w[t] = p[t] * tern_kvq_scale(head[t]);
        m = w[t] > m ? w[t] : m;
    }
    float inv = m >= TERN_KVQ_TINY ? full / m : 0.0f;
    for (int t = 0; t < 64; t++) {
        float x = w[t] * inv;
        x = x < full ? x : full;
        W[t] = (int32_t)lrintf(x > 0.0f ? x : 0.0f);
    }
    return m * unit / full;
}

static void accum(float *o, const float *p, const uint8_t *v, const uint16_t *head, const float *shrink,
                  const struct tern_kvq_table *tab, int dim, int n_q, const void *next)
{
    (void)next;
    int8_t e[64 * TERN_KVQ_MAX_DIM];
    tern_kvq_entries_ref(e, v, head, tab, dim, false);
    for (int d0 = 0; d0 < dim; d0 += TERN_KVQ_BLOCK) {
        for (int i = 0; i < n_q; i++) {
            int32_t W[64];
            float c = weights(W, p + i * 64, head + d0 / TERN_KVQ_BLOCK * 64, tab->unit, tern_kvq_full(tab->bits));
            for (int d = d0; d < dim && d < d0 + TERN_KVQ_BLOCK; d++) {
                int32_t dot = 0;
                for (int t = 0; t < 64; t++)
                    dot += W[t] * e[(size_t)t * dim + d];
                float *od = &o[(size_t)i * dim + d];
                *od = fmaf((float)dot, c, shrink ? *od * shrink[i] : *od);
            }
        }
    }
}

static void decode(float *out, const uint8_t *side, const uint16_t *head, const struct tern_kvq_table *tab, int dim,
                   bool key)
{
    int8_t e[64 * TERN_KVQ_MAX_DIM];
    tern_kvq_entries_ref(e, side, head, tab, dim, key);
    for (int t = 0; t < 64; t++) {
        for (int d = 0; d < dim; d++) {
            float fu = tern_kvq_scale(head[d / TERN_KVQ_BLOCK * 64 + t]) * tab->unit;
            out[key ? (size_t)d * 64 + t : (size_t)t * dim + d] = fu * (float)e[(size_t)t * dim + d];
        }
    }
}

static void decode_k(float *out, const uint8_t *k, const uint16_t *head, const struct tern_kvq_table *tab, int dim)
{
    decode(out, k, head, tab, dim, true);
}

static void decode_v(float *out, const uint8_t *v, const uint16_t *head, const struct tern_kvq_table *tab, int dim)
{
    decode(out, v, head, tab, dim, false);
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

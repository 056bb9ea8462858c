/* ref/kvq_encode.c - vectors to codes and codes to pages, in plain C. */
#include "kernel/ref/kvq_ref.h"

#include <math.h>
#include <string.h>

void tern_kvq_rotate_ref(float *x, const float *sign, int dim, int inverse)
{
    float norm = (float)(1.0 / sqrt((double)dim));
    if (!inverse) {
        for (int i = 0; i < dim; i++)
            x[i] *= sign[i];
    }
    for (int stride = 1; stride < dim; stride *= 2) {
        for (int i = 0; i < dim; i += 2 * stride) {
            for (int j = i; j < i + stride; j++) {
                float a = x[j], b = x[j + stride];
                x[j] = a + b;
                x[j + stride] = a - b;
            }
        }
    }
    for (int i = 0; i < dim; i++)
        x[i] *= norm;
    if (inverse) {
        for (int i = 0; i < dim; i++)
            x[i] *= sign[i];
    }
}

/* The order of vec.h: 16 running sums, then halves onto each other. */
static float add_lanes(float lane[16])
{
    for (int width = 8; width; width /= 2) {
        for (int i = 0; i < width; i++)
            lane[i] += lane[i + width];
    }
    return lane[0];
}

static uint16_t encode_block(uint8_t *codes, const float *y, const struct tern_kvq_table *tab, int matched, int n)
{
    int n_codes = 1 << tab->bits;
    float lane[16] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 16] = fmaf(y[i], y[i], lane[i % 16]);
    float ss = add_lanes(lane);
    if (!(ss >= TERN_KVQ_TINY && ss < INFINITY)) {
        for (int i = 0; i < n; i++)
            codes[i] = (uint8_t)(n_codes / 2);
        return 0;
    }
    float inv = 1.0f / sqrtf(ss / (float)n), along[16] = {0};
    int32_t ee = 0;
    for (int i = 0; i < n; i++) {
        float z = y[i] * inv;
        int c = 0;
        for (int k = 0; k < n_codes - 1; k++)
            c += z > 0.5f * (float)(tab->entry[k] + tab->entry[k + 1]) * tab->unit;
        codes[i] = (uint8_t)c;
        ee += tab->entry[c] * tab->entry[c];
        along[i % 16] = fmaf(y[i], tab->entry[c], along[i % 16]);
    }
    float ye = add_lanes(along);
    return tern_kvq_head_near((matched ? sqrtf(ss / (float)ee) : ye / (float)ee) / tab->unit);
}

static uint16_t encode_block8(uint8_t *codes, const float *y, int n)
{
    uint32_t top = 0; /* as in prep: infinity and NaN come out on top */
    for (int i = 0; i < n; i++) {
        uint32_t u = tern_f32_bits(y[i]) & 0x7FFFFFFFu;
        top = u > top ? u : top;
    }
    if (!top || top >= 0x7F800000u) {
        for (int i = 0; i < n; i++)
            codes[i] = 0;
        return 0;
    }
    uint16_t head = tern_kvq_head_up(tern_bits_f32(top));
    float inv = 127.0f / tern_kvq_scale(head);
    for (int i = 0; i < n; i++) {
        float z = y[i] * inv;
        z = z < 127.0f ? z : 127.0f;
        z = z > -127.0f ? z : -127.0f;
        codes[i] = (uint8_t)(int8_t)lrintf(z);
    }
    return head;
}

void tern_kvq_encode_ref(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int matched,
                         int dim, int n)
{
    for (int t = 0; t < n; t++) {
        for (int d = 0; d < dim; d += TERN_KVQ_BLOCK) {
            int bn = dim - d < TERN_KVQ_BLOCK ? dim - d : TERN_KVQ_BLOCK;
            const float *y = x + (size_t)t * dim + d;
            uint8_t *c = codes + (size_t)t * dim + d;
            head[d / TERN_KVQ_BLOCK * 64 + t] =
                tab->bits == 8 ? encode_block8(c, y, bn) : encode_block(c, y, tab, matched, bn);
        }
    }
}

/* One lane's set of 32 codes, `stride` bytes apart, into its words. */
static void pack_lane(uint8_t *group, int lane, const uint8_t *codes, size_t stride, int bits)
{
    uint32_t w[8] = {0};
    for (int i = 0; i < KVQ_SET; i++) {
        uint32_t c = codes[i * stride];
        switch (bits) {
        case 8:
            w[i / 4] |= c << (8 * (i % 4));
            break;
        case 4:
            w[i / 8] |= c << (4 * (i % 8));
            break;
        case 3:
            if (i < 24) {
                w[i / 8] |= c << (4 * (i % 8));
            } else {
                for (int b = 0; b < 3; b++)
                    w[b] |= (c >> b & 1) << (4 * (i - 24) + 3);
            }
            break;
        default:
            w[i / 16] |= c << (2 * (i % 16));
        }
    }
    for (int i = 0; i < bits; i++)
        memcpy(group + kvq_word_at(i, lane), &w[i], 4);
}

void tern_kvq_pack_k_ref(uint8_t *k, const uint8_t *codes, int bits, int dim)
{
    for (int t = 0; t < 64; t++) {
        for (int d = 0; d < dim; d += KVQ_SET)
            pack_lane(k + kvq_key_group(t, d, bits, dim), t % KVQ_LANES, codes + (size_t)t * dim + d, 1, bits);
    }
}

void tern_kvq_pack_v_ref(uint8_t *v, const uint8_t *codes, int bits, int dim)
{
    for (int d = 0; d < dim; d++) {
        for (int t = 0; t < 64; t += KVQ_SET)
            pack_lane(v + kvq_value_group(t, d, bits, dim), d % KVQ_LANES, codes + (size_t)t * dim + d, (size_t)dim,
                      bits);
    }
}

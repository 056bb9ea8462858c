/* ref/kvq_encode.c - vectors to codes and codes to pages, in plain C. */
#include "kernel/kvq_encode_impl.h"
#include "kernel/kvq_mix_impl.h"
#include "kernel/ref/kvq_ref.h"

#include <math.h>
#include <string.h>

static void rotate_run(float *x, const float *sign, int dim, int inverse)
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

void tern_kvq_rotate_ref(float *x, const float *sign, int dim, int inverse)
{
    kvq_rotate(x, sign, dim, inverse, rotate_run);
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

static uint16_t encode_scalar(uint8_t *codes, const float *y, float ss, const struct tern_kvq_table *tab, int key,
                              int n)
{
    int n_codes = 1 << tab->bits;
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
    return tern_kvq_head_near((key ? sqrtf(ss / (float)ee) : ye / (float)ee) / tab->unit);
}

/* Half the cost of meeting x = X/128 with w, less x*x/2: w*w/2 - x*w. */
static int half_cost(int X, int w)
{
    return -(((X - 64 * w) * w + 64) >> 7);
}

/* The best path through the chain: symbols and entries in chain order; returns the start bits. */
static int best_path(uint8_t *symbols, int8_t *entries, const int *X, const struct tern_kvq_table *tab, int n)
{
    const int bits = tab->bits, n_states = kvq_states(bits), top = bits * (kvq_memory(bits) - 1);
    int metric[KVQ_MAX_STATES] = {0}, next[KVQ_MAX_STATES];
    uint8_t oldest[TERN_KVQ_BLOCK][KVQ_MAX_STATES] = {0};
    for (int i = 0; i < n; i++) {
        int n_edges = i ? 1 << bits : kvq_first_edges(bits), least = INT32_MAX;
        for (int s = 0; s < n_states; s++) {
            int u = kvq_new_part(tab, s, bits), best = INT32_MAX;
            for (int e = 0; e < n_edges; e++) {
                int w = kvq_old_part(tab, s, e, bits);
                int m = metric[kvq_edge_from(s, e, bits)] + half_cost(X[i], w) + u * w;
                if (m < best) {
                    best = m;
                    oldest[i][s] = (uint8_t)e;
                }
            }
            next[s] = best + half_cost(X[i], u);
            least = next[s] < least ? next[s] : least;
        }
        for (int s = 0; s < n_states; s++)
            metric[s] = next[s] - least < KVQ_CAP ? next[s] - least : KVQ_CAP;
    }
    int s = 0;
    for (int k = 1; k < n_states; k++)
        s = metric[k] < metric[s] ? k : s;
    for (int i = n - 1; i >= 0; i--) {
        int e = oldest[i][s];
        symbols[i] = (uint8_t)(s >> top);
        entries[i] = (int8_t)(kvq_new_part(tab, s, bits) + kvq_old_part(tab, s, e, bits));
        s = kvq_edge_from(s, e, bits);
    }
    return kvq_start_bits(s, bits);
}

static uint16_t encode_trellis(uint8_t *codes, const float *y, float ss, const struct tern_kvq_table *tab, int key,
                               int n)
{
    float inv = 1.0f / sqrtf(ss / (float)n), factor = 1.0f, most = -INFINITY;
    uint16_t head = 0;
    uint8_t order[TERN_KVQ_BLOCK];
    kvq_chain(order, n, tab->bits, key);
    for (int c = 0; c < tab->n_prescale; c++) {
        int X[TERN_KVQ_BLOCK];
        uint8_t symbols[TERN_KVQ_BLOCK];
        int8_t e[TERN_KVQ_BLOCK];
        float scale = inv * factor * (128.0f / tab->unit), ye = 0.0f, gain;
        for (int i = 0; i < n; i++) {
            float x = y[order[i]] * scale;
            X[i] = (int)lrintf(x < 16256.0f ? x > -16256.0f ? x : -16256.0f : 16256.0f);
        }
        int start = best_path(symbols, e, X, tab, n), ee = 0;
        for (int i = n - 1; i >= 0; i--) {
            ye = fmaf(y[order[i]], e[i], ye);
            ee += e[i] * e[i];
        }
        uint16_t h = kvq_trellis_head(&gain, ss, ye, (float)ee, tab, key);
        if (gain > most) {
            most = gain;
            head = (uint16_t)(h | start);
            for (int i = 0; i < n; i++)
                codes[order[i]] = symbols[i];
        }
        factor = kvq_second_factor(ye, (float)ee, inv, tab->unit);
    }
    return head;
}

static uint16_t encode_block(uint8_t *codes, const float *y, const struct tern_kvq_table *tab, int key, int n)
{
    float lane[16] = {0};
    for (int i = 0; i < n; i++)
        lane[i % 16] = fmaf(y[i], y[i], lane[i % 16]);
    float ss = add_lanes(lane);
    if (!(ss >= TERN_KVQ_TINY && ss < INFINITY)) {
        for (int i = 0; i < n; i++)
            codes[i] = (uint8_t)(1 << (tab->bits - 1));
        return 0;
    }
    return (tab->trellis ? encode_trellis : encode_scalar)(codes, y, ss, tab, key, n);
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

void tern_kvq_encode_ref(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key,
                         int dim, int n, void *scratch)
{
    (void)scratch;
    for (int t = 0; t < n; t++) {
        for (int d = 0; d < dim; d += TERN_KVQ_BLOCK) {
            int bn = kvq_block_dims(dim, d);
            const float *y = x + (size_t)t * dim + d;
            uint8_t *c = codes + (size_t)t * dim + d;
            head[d / TERN_KVQ_BLOCK * 64 + t] =
                tab->bits == 8 ? encode_block8(c, y, bn) : encode_block(c, y, tab, key, bn);
        }
    }
}

/* One lane's set of 32 codes into its words: items `stride` bytes apart, item 16 `half` bytes after item 0. */
static void pack_lane(uint8_t *group, int lane, const uint8_t *codes, size_t stride, size_t half, int bits)
{
    uint32_t w[8] = {0};
    for (int i = 0; i < KVQ_SET; i++) {
        uint32_t c = codes[i / 16 * half + i % 16 * stride];
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
        for (int d = 0; d < dim; d += KVQ_SET) {
            bool shared = kvq_shared_set(d, dim);
            if (!shared || t % 32 < 16)
                pack_lane(k + kvq_key_set(t, d, bits, dim), t % KVQ_LANES, codes + (size_t)t * dim + d, 1,
                          shared ? (size_t)dim * 16 : 16, bits);
        }
    }
}

void tern_kvq_pack_v_ref(uint8_t *v, const uint8_t *codes, int bits, int dim)
{
    for (int d = 0; d < dim; d++) {
        for (int t = 0; t < 64; t += KVQ_SET)
            pack_lane(v + kvq_value_set(t, d, bits, dim), d % KVQ_LANES, codes + (size_t)t * dim + d, (size_t)dim,
                      (size_t)dim * 16, bits);
    }
}

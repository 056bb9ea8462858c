/* neon/kvq_encode.c - vectors to codes (rotation, nearest entry, scale) and codes to pages. */
#include "kernel/kvq_mix_impl.h"
#include "kernel/neon/kvq_simd.h"
#include "kernel/neon/simd.h"

#include <math.h>

/* ---- rotation: every element takes part in the same additions as in the plain loop, only in other registers ---- */

/* Butterflies of strides 1 and 2 inside a register: the partner comes by a shuffle, the upper element of each pair
 * changes its own sign, so a+b and (-b)+a come from one addition. */
KVQ_INLINE float32x4_t within(float32x4_t v)
{
    const uint32x4_t odd = vreinterpretq_u32_u64(vdupq_n_u64(0x8000000000000000u));
    const uint32x4_t two = vcombine_u32(vdup_n_u32(0), vdup_n_u32(0x80000000u));
    v = vaddq_f32(vrev64q_f32(v), vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v), odd)));
    return vaddq_f32(vextq_f32(v, v, 2), vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v), two)));
}

/* Butterflies between n registers, n a power of two. */
KVQ_INLINE void between(float32x4_t *v, const int n)
{
    KVQ_UNROLL for (int s = 1; s < n; s *= 2)
    {
        KVQ_UNROLL for (int i = 0; i < n; i++)
        {
            if (i & s)
                continue;
            float32x4_t a = v[i], b = v[i + s];
            v[i] = vaddq_f32(a, b);
            v[i + s] = vsubq_f32(a, b);
        }
    }
}

/* Strides below 4n of 4n consecutive elements, with the signs of the forward direction and, when these strides are all
 * there are, the closing factors. */
KVQ_INLINE void rotate_near(float *x, const float *sign, const int n, float norm, bool inverse, bool last)
{
    float32x4_t v[16];
    KVQ_UNROLL for (int i = 0; i < n; i++)
    {
        v[i] = vld1q_f32(x + 4 * i);
        if (!inverse)
            v[i] = vmulq_f32(v[i], vld1q_f32(sign + 4 * i));
        v[i] = within(v[i]);
    }
    between(v, n);
    KVQ_UNROLL for (int i = 0; i < n; i++)
    {
        if (last)
            v[i] = vmulq_n_f32(v[i], norm);
        if (last && inverse)
            v[i] = vmulq_f32(v[i], vld1q_f32(sign + 4 * i));
        vst1q_f32(x + 4 * i, v[i]);
    }
}

/* Strides 64 .. 32n of 64n elements, and the closing factors. */
KVQ_INLINE void rotate_far(float *x, const float *sign, const int n, float norm, bool inverse)
{
    for (int j = 0; j < 64; j += 4) {
        float32x4_t v[8];
        KVQ_UNROLL for (int i = 0; i < n; i++) v[i] = vld1q_f32(x + j + 64 * i);
        between(v, n);
        KVQ_UNROLL for (int i = 0; i < n; i++)
        {
            v[i] = vmulq_n_f32(v[i], norm);
            if (inverse)
                v[i] = vmulq_f32(v[i], vld1q_f32(sign + j + 64 * i));
            vst1q_f32(x + j + 64 * i, v[i]);
        }
    }
}

static void rotate_run(float *x, const float *sign, int dim, int inverse)
{
    const float norm = kvq_run_norm(dim);
    if (dim == 16) {
        rotate_near(x, sign, 4, norm, inverse, true);
        return;
    }
    if (dim == 32) {
        rotate_near(x, sign, 8, norm, inverse, true);
        return;
    }
    for (int i = 0; i < dim; i += 64)
        rotate_near(x + i, sign + i, 16, norm, inverse, dim == 64);
    if (dim == 128)
        rotate_far(x, sign, 2, norm, inverse);
    else if (dim == 256)
        rotate_far(x, sign, 4, norm, inverse);
    else if (dim == 512)
        rotate_far(x, sign, 8, norm, inverse);
}

void tern_kvq_rotate_neon(float *x, const float *sign, int dim, int inverse)
{
    kvq_rotate(x, sign, dim, inverse, rotate_run);
}

/* ---- encoding ---- */

struct code_table {
    float mid[15];
    uint8x16_t entry;
};

static struct code_table code_table(const struct tern_kvq_table *tab)
{
    struct code_table c = {.entry = kvq_repeat(tab->entry, 1 << tab->bits)};
    for (int i = 0; i + 1 < 1 << tab->bits; i++)
        c.mid[i] = 0.5f * (float)(tab->entry[i] + tab->entry[i + 1]) * tab->unit;
    return c;
}

/* Minus the symbols of four values: the number of midpoints below them. */
KVQ_INLINE int32x4_t count_mids(float32x4_t z, const struct code_table *c, const int bits)
{
    uint32x4_t n = vdupq_n_u32(0);
    KVQ_UNROLL for (int k = 0; k < (1 << bits) - 1; k++) n = vaddq_u32(n, vcgtq_f32(z, vdupq_n_f32(c->mid[k])));
    return vreinterpretq_s32_u32(n);
}

KVQ_INLINE uint16_t encode_block(uint8_t *codes, const float *y, const struct code_table *c, float unit, int key, int n,
                                 const int bits)
{
    float32x4_t ye[4];
    int32x4_t ee = vdupq_n_s32(0);
    float ss = square_sum16(y, n);
    if (!(ss >= TERN_KVQ_TINY && ss < INFINITY)) {
        memset(codes, 1 << (bits - 1), (size_t)n);
        return 0;
    }
    const float inv = 1.0f / sqrtf(ss / (float)n);
    KVQ_UNROLL for (int j = 0; j < 4; j++) ye[j] = vdupq_n_f32(0);
    for (int i = 0; i < n; i += 16) {
        int32x4_t minus[4];
        float32x4_t e[4];
        KVQ_UNROLL for (int j = 0; j < 4; j++) minus[j] =
            count_mids(vmulq_n_f32(vld1q_f32(y + i + 4 * j), inv), c, bits);
        uint8x16_t symbol = vreinterpretq_u8_s8(vnegq_s8(kvq_bytes(minus)));
        int8x16_t entry = vreinterpretq_s8_u8(vqtbl1q_u8(c->entry, symbol));
        vst1q_u8(codes + i, symbol);
        kvq_floats(e, entry);
        KVQ_UNROLL for (int j = 0; j < 4; j++) ye[j] = vfmaq_f32(ye[j], vld1q_f32(y + i + 4 * j), e[j]);
        ee = vdotq_s32(ee, entry, entry);
    }
    const float fee = (float)vaddvq_s32(ee);
    return tern_kvq_head_near((key ? sqrtf(ss / fee) : add_lanes16(ye) / fee) / unit);
}

static uint16_t encode_block8(uint8_t *codes, const float *y, int n)
{
    uint32_t top = kvq_top(y, n);
    if (!top || top >= 0x7F800000u) {
        memset(codes, 0, (size_t)n);
        return 0;
    }
    const uint16_t head = tern_kvq_head_up(tern_bits_f32(top));
    const float inv = 127.0f / tern_kvq_scale(head);
    for (int i = 0; i < n; i += 16) {
        int32x4_t c[4];
        KVQ_UNROLL for (int j = 0; j < 4; j++)
        {
            float32x4_t z = vminq_f32(vmulq_n_f32(vld1q_f32(y + i + 4 * j), inv), vdupq_n_f32(127.0f));
            c[j] = vcvtnq_s32_f32(vmaxq_f32(z, vdupq_n_f32(-127.0f)));
        }
        vst1q_u8(codes + i, vreinterpretq_u8_s8(kvq_bytes(c)));
    }
    return head;
}

void tern_kvq_encode_neon(uint8_t *codes, uint16_t *head, const float *x, const struct tern_kvq_table *tab, int key,
                          int dim, int n, void *scratch)
{
    if (tab->trellis) {
        tern_kvq_encode_trellis_neon(codes, head, x, tab, key, dim, n, scratch);
        return;
    }
    const struct code_table c = tab->bits == 8 ? (struct code_table){0} : code_table(tab);
    for (int t = 0; t < n; t++) {
        for (int d = 0; d < dim; d += TERN_KVQ_BLOCK) {
            int bn = kvq_block_dims(dim, d);
            const float *y = x + (size_t)t * dim + d;
            uint8_t *to = codes + (size_t)t * dim + d;
            uint16_t *h = &head[d / TERN_KVQ_BLOCK * 64 + t];
            if (tab->bits == 8)
                *h = encode_block8(to, y, bn);
            else if (tab->bits == 4)
                *h = encode_block(to, y, &c, tab->unit, key, bn, 4);
            else if (tab->bits == 3)
                *h = encode_block(to, y, &c, tab->unit, key, bn, 3);
            else
                *h = encode_block(to, y, &c, tab->unit, key, bn, 2);
        }
    }
}

/* ---- packing ---- */

/* Eight codes of consecutive bytes to nibbles of a word. */
KVQ_INLINE uint32_t nibbles(const uint8_t *codes)
{
    uint64_t x;
    memcpy(&x, codes, 8);
    x = (x | x >> 4) & 0x00FF00FF00FF00FFu;
    x = (x | x >> 8) & 0x0000FFFF0000FFFFu;
    return (uint32_t)(x | x >> 16);
}

static void pack_k_lane(uint8_t *lane, const uint8_t *codes, int bits)
{
    uint32_t w[8];
    if (bits == 8) {
        memcpy(w, codes, 32);
    } else if (bits == 2) {
        for (int i = 0; i < 2; i++)
            w[i] = kvq_pairs(nibbles(codes + 16 * i), nibbles(codes + 16 * i + 8));
    } else {
        for (int i = 0; i < 4; i++)
            w[i] = nibbles(codes + 8 * i);
        for (int i = 0; i < 3 && bits == 3; i++)
            w[i] |= (w[3] >> i & 0x11111111u) << 3;
    }
    for (int i = 0; i < bits; i++)
        memcpy(lane + 64 * i, &w[i], 4);
}

void tern_kvq_pack_k_neon(uint8_t *k, const uint8_t *codes, int bits, int dim)
{
    const size_t half_bytes = (size_t)dim * 4 * bits, group_bytes = (size_t)64 * bits;
    const int whole = dim / 32 * 32;
    for (int t = 0; t < 64; t++) {
        uint8_t *lane = k + (size_t)(t / 32) * half_bytes + (size_t)(t / 16 % 2) * group_bytes + (size_t)(t % 16) * 4;
        const uint8_t *row = codes + (size_t)t * dim;
        for (int d = 0; d < whole; d += 32)
            pack_k_lane(lane + (size_t)d * 4 * bits, row + d, bits);
        if (whole < dim && t % 32 < 16) { /* the last 16 dims share a set with those of the token 16 further on */
            uint8_t both[32];
            memcpy(both, row + whole, 16);
            memcpy(both + 16, row + (size_t)16 * dim + whole, 16);
            pack_k_lane(lane + (size_t)whole * 4 * bits, both, bits);
        }
    }
}

/* Word w of 16 lanes, byte by byte: the codes of a byte come from 8/width consecutive rows (tokens). */
KVQ_INLINE uint8x16x4_t gather_word(const uint8_t *rows, size_t stride, int w, const int width)
{
    const int per_byte = 8 / width;
    uint8x16x4_t byte;
    KVQ_UNROLL for (int j = 0; j < 4; j++)
    {
        const uint8_t *row = rows + (size_t)((4 * w + j) * per_byte) * stride;
        byte.val[j] = vld1q_u8(row);
        KVQ_UNROLL for (int i = 1; i < per_byte; i++) byte.val[j] =
            vorrq_u8(byte.val[j], vld1q_u8(row + i * stride) << width * i);
    }
    return byte;
}

KVQ_INLINE void pack_v_group(uint8_t *group, const uint8_t *rows, size_t stride, const int bits)
{
    uint8x16x4_t spare;
    if (bits == 3)
        spare = gather_word(rows, stride, 3, 4);
    for (int w = 0; w < bits; w++) {
        uint8x16x4_t byte = gather_word(rows, stride, w, bits == 3 ? 4 : bits);
        KVQ_UNROLL for (int j = 0; j < 4 && bits == 3; j++)
        {
            uint8x16_t bit = vandq_u8(spare.val[j] >> w, vdupq_n_u8(0x11));
            byte.val[j] = vorrq_u8(byte.val[j], bit << 3);
        }
        vst4q_u8(group + 64 * w, byte);
    }
}

void tern_kvq_pack_v_neon(uint8_t *v, const uint8_t *codes, int bits, int dim)
{
    for (int t = 0; t < 64; t += 32) {
        for (int d = 0; d < dim; d += 16) {
            uint8_t *group = v + (size_t)(t / 32 * (dim / 16) + d / 16) * 64 * bits;
            const uint8_t *rows = codes + (size_t)t * dim + d;
            if (bits == 8)
                pack_v_group(group, rows, (size_t)dim, 8);
            else if (bits == 4)
                pack_v_group(group, rows, (size_t)dim, 4);
            else if (bits == 3)
                pack_v_group(group, rows, (size_t)dim, 3);
            else
                pack_v_group(group, rows, (size_t)dim, 2);
        }
    }
}

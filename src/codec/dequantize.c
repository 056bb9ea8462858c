/* Every weight type written down once more, element by element, straight from the description of its bytes: the
 * reference that packed forms must reproduce.  It shares no unpacking with them on purpose, only the lattices. */
#include "codec/codec.h"

#include <string.h>
#include "base/fp16.h"
#include "codec/weight_block.h" /* the lattices */

static float f16_at(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return tern_f16_to_f32(h);
}

static void float_f32(float *out, const uint8_t *p)
{
    memcpy(out, p, 4);
}

static void float_f16(float *out, const uint8_t *p)
{
    *out = f16_at(p);
}

static void float_bf16(float *out, const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    *out = tern_bf16_to_f32(h);
}

static void block_q8_0(float *out, const uint8_t *p)
{
    float d = f16_at(p);
    for (int e = 0; e < 32; e++)
        out[e] = d * (float)(int8_t)p[2 + e];
}

/* Code e of 32: nibble of q, and bit e of `high` above it. */
static int small_code(const uint8_t *q, const uint8_t *high, int e)
{
    int c = q[e % 16] >> (e / 16 * 4) & 15;
    return high ? c | (high[e / 8] >> (e % 8) & 1) << 4 : c;
}

static void block_q4_0(float *out, const uint8_t *p)
{
    float d = f16_at(p);
    for (int e = 0; e < 32; e++)
        out[e] = d * (float)(small_code(p + 2, NULL, e) - 8);
}

static void block_q4_1(float *out, const uint8_t *p)
{
    float d = f16_at(p), m = f16_at(p + 2);
    for (int e = 0; e < 32; e++)
        out[e] = d * (float)small_code(p + 4, NULL, e) + m;
}

static void block_q5_0(float *out, const uint8_t *p)
{
    float d = f16_at(p);
    for (int e = 0; e < 32; e++)
        out[e] = d * (float)(small_code(p + 6, p + 2, e) - 16);
}

static void block_q5_1(float *out, const uint8_t *p)
{
    float d = f16_at(p), m = f16_at(p + 2);
    for (int e = 0; e < 32; e++)
        out[e] = d * (float)small_code(p + 8, p + 4, e) + m;
}

static void block_k4_k5(float *out, const uint8_t *p, const uint8_t *high, const uint8_t *q)
{
    const uint8_t *s = p + 4;
    float d = f16_at(p), dmin = f16_at(p + 2);
    for (int e = 0; e < 256; e++) {
        int j = e / 32, l = e % 32;
        int a = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        int b = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
        int c = q[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
        if (high)
            c |= (high[l] >> j & 1) << 4;
        out[e] = d * (float)a * (float)c - dmin * (float)b;
    }
}

static void block_q4_k(float *out, const uint8_t *p)
{
    block_k4_k5(out, p, NULL, p + 16);
}

static void block_q5_k(float *out, const uint8_t *p)
{
    block_k4_k5(out, p, p + 16, p + 48);
}

static void block_q6_k(float *out, const uint8_t *p)
{
    float d = f16_at(p + 208);
    for (int e = 0; e < 256; e++) {
        int upper = e / 128, j = e % 128 / 32, l = e % 32;
        int lo = p[64 * upper + j % 2 * 32 + l] >> (j / 2 * 4) & 15;
        int hi = p[128 + 32 * upper + l] >> (2 * j) & 3;
        out[e] = d * (float)(int8_t)p[192 + e / 16] * (float)((lo | hi << 4) - 32);
    }
}

/* Code e of 256 two-bit codes. */
static int pair_code(const uint8_t *q, int e)
{
    return q[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2) & 3;
}

static void block_q2_k(float *out, const uint8_t *p)
{
    float d = f16_at(p + 80), dmin = f16_at(p + 82);
    for (int e = 0; e < 256; e++)
        out[e] = d * (float)(p[e / 16] & 15) * (float)pair_code(p + 16, e) - dmin * (float)(p[e / 16] >> 4);
}

static void block_q3_k(float *out, const uint8_t *p)
{
    const uint8_t *s = p + 96;
    float d = f16_at(p + 108);
    for (int e = 0; e < 256; e++) {
        int g = e / 16, scale = (s[g % 8] >> (g / 8 * 4) & 15) | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
        int below = p[e % 32] >> (e / 32) & 1 ? 0 : 4;
        out[e] = d * (float)(scale - 32) * (float)(pair_code(p + 32, e) - below);
    }
}

/* ---- values from a table ---- */

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const float e2m1_values[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};

static void block_iq4_nl(float *out, const uint8_t *p)
{
    float d = f16_at(p);
    for (int e = 0; e < 32; e++)
        out[e] = d * (float)iq4_values[small_code(p + 2, NULL, e)];
}

static void block_iq4_xs(float *out, const uint8_t *p)
{
    float d = f16_at(p);
    for (int e = 0; e < 256; e++) {
        int j = e / 32, high = p[2 + j / 4] >> (j % 4 * 2) & 3, scale = (p[4 + j / 2] >> (j % 2 * 4) & 15) | high << 4;
        out[e] = d * (float)(scale - 32) * (float)iq4_values[small_code(p + 8 + 16 * j, NULL, e % 32)];
    }
}

static void block_mxfp4(float *out, const uint8_t *p)
{
    float d = tern_e8m0_to_f32(p[0]);
    for (int e = 0; e < 32; e++)
        out[e] = d * e2m1_values[small_code(p + 1, NULL, e)];
}

static void block_nvfp4(float *out, const uint8_t *p)
{
    for (int e = 0; e < 64; e++) {
        int code = p[4 + e / 16 * 8 + e % 8] >> (e % 16 / 8 * 4) & 15;
        out[e] = tern_e4m3_to_f32(p[e / 16] & 0x7F) * e2m1_values[code];
    }
}

/* ---- lattices: a point stands for eight weights (IQ2) or four (IQ3), beside it their signs ---- */

static float iq2_value(const uint16_t *lattice, unsigned point, int i)
{
    static const float values[4] = {8, 25, 43};
    return values[lattice[point] >> (2 * i) & 3];
}

static float signed_by(float value, unsigned signs, int i)
{
    return signs >> i & 1 ? -value : value;
}

static void block_iq2_xxs(float *out, const uint8_t *p)
{
    float d = f16_at(p);
    for (int e = 0; e < 256; e++) {
        const uint8_t *q = p + 2 + e / 32 * 8;
        uint32_t s;
        memcpy(&s, q + 4, 4);
        float scale = d * (0.5f + (float)(s >> 28)) * 0.25f;
        unsigned signs = tern_lattice_signs(s >> (e % 32 / 8 * 7) & 127);
        out[e] = scale * signed_by(iq2_value(tern_lattice_iq2_xxs, q[e % 32 / 8], e % 8), signs, e % 8);
    }
}

static void block_iq2_xs(float *out, const uint8_t *p)
{
    float d = f16_at(p);
    for (int e = 0; e < 256; e++) {
        unsigned q = p[2 + e / 8 * 2] | (unsigned)p[3 + e / 8 * 2] << 8;
        float scale = d * (0.5f + (float)(p[66 + e / 32] >> (e % 32 / 16 * 4) & 15)) * 0.25f;
        out[e] = scale * signed_by(iq2_value(tern_lattice_iq2_xs, q & 511, e % 8), tern_lattice_signs(q >> 9), e % 8);
    }
}

static void block_iq2_s(float *out, const uint8_t *p)
{
    float d = f16_at(p);
    for (int e = 0; e < 256; e++) {
        unsigned point = p[2 + e / 8] | (p[66 + e / 32] >> (e % 32 / 8 * 2) & 3u) << 8;
        float scale = d * (0.5f + (float)(p[74 + e / 32] >> (e % 32 / 16 * 4) & 15)) * 0.25f;
        out[e] = scale * signed_by(iq2_value(tern_lattice_iq2_s, point, e % 8), p[34 + e / 8], e % 8);
    }
}

static void block_iq3_xxs(float *out, const uint8_t *p)
{
    static const float values[8] = {4, 12, 20, 28, 36, 44, 52, 62};
    float d = f16_at(p);
    for (int e = 0; e < 256; e++) {
        uint32_t s;
        memcpy(&s, p + 66 + e / 32 * 4, 4);
        float value = values[tern_lattice_iq3_xxs[p[2 + e / 4]] >> (e % 4 * 3) & 7];
        unsigned signs = tern_lattice_signs(s >> (e % 32 / 8 * 7) & 127);
        out[e] = d * (0.5f + (float)(s >> 28)) * 0.5f * signed_by(value, signs, e % 8);
    }
}

static void block_iq3_s(float *out, const uint8_t *p)
{
    float d = f16_at(p);
    for (int e = 0; e < 256; e++) {
        unsigned point = p[2 + e / 4] | (p[66 + e / 32] >> (e % 32 / 4) & 1u) << 8;
        float value = (float)(1 + 2 * (tern_lattice_iq3_s[point] >> (e % 4 * 3) & 7));
        int scale = 1 + 2 * (p[106 + e / 64] >> (e % 64 / 32 * 4) & 15);
        out[e] = d * (float)scale * signed_by(value, p[74 + e / 8], e % 8);
    }
}

static const struct {
    int type;
    void (*block)(float *out, const uint8_t *p);
} readers[] = {
    {TERN_F32, float_f32},       {TERN_F16, float_f16},       {TERN_BF16, float_bf16},
    {TERN_Q8_0, block_q8_0},     {TERN_Q4_0, block_q4_0},     {TERN_Q4_1, block_q4_1},
    {TERN_Q5_0, block_q5_0},     {TERN_Q5_1, block_q5_1},     {TERN_Q4_K, block_q4_k},
    {TERN_Q5_K, block_q5_k},     {TERN_Q6_K, block_q6_k},     {TERN_Q2_K, block_q2_k},
    {TERN_Q3_K, block_q3_k},     {TERN_IQ4_NL, block_iq4_nl}, {TERN_IQ4_XS, block_iq4_xs},
    {TERN_MXFP4, block_mxfp4},   {TERN_NVFP4, block_nvfp4},   {TERN_IQ2_XXS, block_iq2_xxs},
    {TERN_IQ2_XS, block_iq2_xs}, {TERN_IQ2_S, block_iq2_s},   {TERN_IQ3_XXS, block_iq3_xxs},
    {TERN_IQ3_S, block_iq3_s},
};

int tern_dequantize(float *out, int type, const void *src, size_t n, tern_error *err)
{
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        if (readers[i].type != type)
            continue;
        size_t elems = (size_t)tern_type_elems(type), bytes = (size_t)tern_type_bytes(type);
        if (n % elems)
            return tern_err_set(err, TERN_EINVAL, "%zu elements are not whole blocks of %s", n, tern_type_name(type));
        const uint8_t *p = src;
        for (size_t e = 0; e < n; e += elems, p += bytes)
            readers[i].block(out + e, p);
        return 0;
    }
    return tern_err_set(err, TERN_EUNSUPPORTED, "weights of %s cannot be read", tern_type_name(type));
}

/* Every weight type written down once more, element by element, straight from the description of its bytes: the
 * reference that packed forms must reproduce.  It shares no unpacking with them on purpose. */
#include "codec/codec.h"

#include <string.h>
#include "base/fp16.h"

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

static const struct {
    int type;
    void (*block)(float *out, const uint8_t *p);
} readers[] = {
    {TERN_F32, float_f32},   {TERN_F16, float_f16},   {TERN_BF16, float_bf16}, {TERN_Q8_0, block_q8_0},
    {TERN_Q4_0, block_q4_0}, {TERN_Q4_1, block_q4_1}, {TERN_Q5_0, block_q5_0}, {TERN_Q5_1, block_q5_1},
    {TERN_Q4_K, block_q4_k}, {TERN_Q5_K, block_q5_k}, {TERN_Q6_K, block_q6_k},
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

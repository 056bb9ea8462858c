/* The block types of GGUF, taken apart. */
#include "codec/weight_block.h"

#include <string.h>

#define NIBBLES 0x0F0F0F0Fu

static uint32_t word(const uint8_t *p)
{
    uint32_t w;
    memcpy(&w, p, 4);
    return w;
}

static uint16_t half(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}

/* Sixteen bytes: low nibbles are the first 16 codes, high nibbles the last 16. */
static void nibbles32(uint32_t quad[8], const uint8_t *q)
{
    for (int j = 0; j < 4; j++) {
        quad[j] = word(q + 4 * j) & NIBBLES;
        quad[j + 4] = word(q + 4 * j) >> 4 & NIBBLES;
    }
}

/* Adds bit i of `high` as bit 4 of code i. */
static void fifth_bits(uint32_t quad[8], uint32_t high)
{
    for (int j = 0; j < 8; j++) {
        uint32_t four = high >> (4 * j) & 15;
        /* The product puts copies of the four bits 7 apart, so that bit i of them lands on bit 8i. */
        quad[j] |= (four * 0x00204081u & 0x01010101u) << 4;
    }
}

static void unpack_q8_0(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    memcpy(out->quad, p + 2, 32);
}

static void unpack_q4_0(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    nibbles32(out->quad, p + 2);
}

static void unpack_q4_1(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    out->m = half(p + 2);
    nibbles32(out->quad, p + 4);
}

static void unpack_q5_0(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    nibbles32(out->quad, p + 6);
    fifth_bits(out->quad, word(p + 2));
}

static void unpack_q5_1(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    out->m = half(p + 2);
    nibbles32(out->quad, p + 8);
    fifth_bits(out->quad, word(p + 4));
}

void tern_weight_k_scales(uint8_t a[8], uint8_t b[8], const uint8_t s[12])
{
    for (int j = 0; j < 4; j++) {
        a[j] = s[j] & 63;
        b[j] = s[j + 4] & 63;
        a[j + 4] = (uint8_t)((s[j + 8] & 15) | (s[j] >> 6) << 4);
        b[j + 4] = (uint8_t)(s[j + 8] >> 4 | (s[j + 4] >> 6) << 4);
    }
}

/* Each 32 bytes of q hold 64 codes: low nibbles the first 32, high nibbles the next. */
static void nibbles_k(uint32_t quad[64], const uint8_t *q)
{
    for (int j = 0; j < 32; j++) {
        uint32_t w = word(q + 4 * j);
        int at = j / 8 * 16 + j % 8;
        quad[at] = w & NIBBLES;
        quad[at + 8] = w >> 4 & NIBBLES;
    }
}

static void unpack_q4_k(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    out->m = half(p + 2);
    tern_weight_k_scales(out->a, out->b, p + 4);
    nibbles_k(out->quad, p + 16);
}

static void unpack_q5_k(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    out->m = half(p + 2);
    tern_weight_k_scales(out->a, out->b, p + 4);
    nibbles_k(out->quad, p + 48);
    for (int j = 0; j < 64; j++) /* bit g of byte l belongs to code l of the g-th 32 */
        out->quad[j] |= (word(p + 16 + j % 8 * 4) >> (j / 8) & 0x01010101u) << 4;
}

static void unpack_q6_k(struct weight_block *out, const uint8_t *p)
{
    for (int j = 0; j < 64; j++) {
        int upper = j / 32, group = j % 32 / 8, l = j % 8 * 4;
        uint32_t lo = word(p + 64 * upper + 32 * (group % 2) + l) >> (4 * (group / 2)) & NIBBLES;
        uint32_t hi = word(p + 128 + 32 * upper + l) >> (2 * group) & 0x03030303u;
        out->quad[j] = lo | hi << 4;
    }
    memcpy(out->a, p + 192, 16);
    out->d[0] = half(p + 208);
}

/* Two bits a code: each 32 bytes of q hold 128 codes, the lowest bits the first 32. */
static void pairs_k(uint32_t quad[64], const uint8_t *q)
{
    for (int j = 0; j < 64; j++)
        quad[j] = word(q + 32 * (j / 32) + 4 * (j % 8)) >> (2 * (j / 8 % 4)) & 0x03030303u;
}

static void unpack_q2_k(struct weight_block *out, const uint8_t *p)
{
    memcpy(out->a, p, 16); /* scale in the low bits, minimum factor in the high ones, as in the panel */
    pairs_k(out->quad, p + 16);
    out->d[0] = half(p + 80);
    out->m = half(p + 82);
}

static void unpack_q3_k(struct weight_block *out, const uint8_t *p)
{
    const uint8_t *s = p + 96;
    pairs_k(out->quad, p + 32);
    for (int j = 0; j < 64; j++) /* bit g of byte l belongs to code l of the g-th 32 */
        out->quad[j] |= (word(p + 4 * (j % 8)) >> (j / 8) & 0x01010101u) << 2;
    for (int g = 0; g < 16; g++) {
        int low = s[g % 8] >> (4 * (g / 8)) & 15, high = s[8 + g % 4] >> (2 * (g / 4)) & 3;
        out->a[g] = (uint8_t)((low | high << 4) - 32);
    }
    out->d[0] = half(p + 108);
}

static void unpack_iq4_xs(struct weight_block *out, const uint8_t *p)
{
    unsigned high = half(p + 2);
    out->d[0] = half(p);
    for (int j = 0; j < 8; j++) {
        int low = p[4 + j / 2] >> (4 * (j % 2)) & 15;
        out->a[j] = (uint8_t)((low | (int)(high >> (2 * j) & 3) << 4) - 32);
        nibbles32(out->quad + 8 * j, p + 8 + 16 * j);
    }
}

static void unpack_mxfp4(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = p[0];
    nibbles32(out->quad, p + 1);
}

static void unpack_nvfp4(struct weight_block *out, const uint8_t *p)
{
    for (int g = 0; g < 4; g++) {
        const uint8_t *q = p + 4 + 8 * g;
        out->d[g] = p[g] & 0x7F; /* without a sign */
        for (int j = 0; j < 2; j++) {
            out->quad[4 * g + j] = word(q + 4 * j) & NIBBLES;
            out->quad[4 * g + 2 + j] = word(q + 4 * j) >> 4 & NIBBLES;
        }
    }
}

/* ---- lattices ---- */

/* The point of `n` values of `bits` bits, with its signs in the bit above: n/4 words of codes. */
static void lattice_point(uint32_t *quad, unsigned point, int n, int bits, unsigned signs)
{
    for (int i = 0; i < n; i++) {
        unsigned value = point >> (bits * i) & ((1u << bits) - 1), code = value | (signs >> i & 1) << bits;
        quad[i / 4] = (i % 4 ? quad[i / 4] : 0) | code << (8 * (i % 4));
    }
}

static void iq2_point(uint32_t *quad, unsigned point, unsigned signs)
{
    lattice_point(quad, point, 8, 2, signs);
}

/* Eight weights are two points. */
static void iq3_points(uint32_t *quad, unsigned first, unsigned second, unsigned signs)
{
    lattice_point(quad, first, 4, 3, signs);
    lattice_point(quad + 1, second, 4, 3, signs >> 4);
}

/* Scales of these types are (s + 1/2) times a power of two. */
static uint8_t odd(unsigned s)
{
    return (uint8_t)(2 * s + 1);
}

static void unpack_iq2_xxs(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = p + 2 + 8 * j;
        uint32_t signs = word(q + 4);
        out->a[j] = odd(signs >> 28);
        for (int l = 0; l < 4; l++)
            iq2_point(out->quad + 8 * j + 2 * l, tern_lattice_iq2_xxs[q[l]],
                      tern_lattice_signs(signs >> (7 * l) & 127));
    }
}

static void unpack_iq2_xs(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    for (int g = 0; g < 16; g++)
        out->a[g] = odd(p[66 + g / 2] >> (4 * (g % 2)) & 15);
    for (int l = 0; l < 32; l++) {
        unsigned q = half(p + 2 + 2 * l);
        iq2_point(out->quad + 2 * l, tern_lattice_iq2_xs[q & 511], tern_lattice_signs(q >> 9));
    }
}

static void unpack_iq2_s(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    for (int g = 0; g < 16; g++)
        out->a[g] = odd(p[74 + g / 2] >> (4 * (g % 2)) & 15);
    for (int l = 0; l < 32; l++) {
        unsigned high = p[66 + l / 4] >> (2 * (l % 4)) & 3u;
        iq2_point(out->quad + 2 * l, tern_lattice_iq2_s[p[2 + l] | high << 8], p[34 + l]);
    }
}

static void unpack_iq3_xxs(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    for (int j = 0; j < 8; j++) {
        const uint8_t *q = p + 2 + 8 * j;
        uint32_t signs = word(p + 66 + 4 * j);
        out->a[j] = odd(signs >> 28);
        for (int l = 0; l < 4; l++)
            iq3_points(out->quad + 8 * j + 2 * l, tern_lattice_iq3_xxs[q[2 * l]], tern_lattice_iq3_xxs[q[2 * l + 1]],
                       tern_lattice_signs(signs >> (7 * l) & 127));
    }
}

static void unpack_iq3_s(struct weight_block *out, const uint8_t *p)
{
    out->d[0] = half(p);
    for (int j = 0; j < 8; j++)
        out->a[j] = odd(p[106 + j / 2] >> (4 * (j % 2)) & 15);
    for (int l = 0; l < 32; l++) {
        unsigned high = p[66 + l / 4] >> (2 * (l % 4));
        iq3_points(out->quad + 2 * l, tern_lattice_iq3_s[p[2 + 2 * l] | (high & 1) << 8],
                   tern_lattice_iq3_s[p[3 + 2 * l] | (high >> 1 & 1) << 8], p[74 + l]);
    }
}

/* ---- the table ---- */

#define IQ4_VALUES                                                               \
    {                                                                            \
        -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 \
    }
#define IQ2_VALUES                    \
    {                                 \
        8, 25, 43, 0, -8, -25, -43, 0 \
    }
#define IQ3_XXS_VALUES                                                       \
    {                                                                        \
        4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62 \
    }
#define IQ3_S_VALUES                                                 \
    {                                                                \
        1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15 \
    }

/* clang-format off */
#define KIND(code, scale, ...) {.codes = TERN_CODES_##code, .scales = TERN_SCALES_##scale, .unit = 1, __VA_ARGS__}
#define TABLE(code, scale, factor, ...) \
    {.codes = TERN_CODES_##code, .scales = TERN_SCALES_##scale, .unit = (factor), .table = __VA_ARGS__}
#define GROUPS(size, number, factor, ...) \
    {.codes = TERN_CODES_T4, .scales = TERN_SCALES_G##size, .group = (size), .d_type = TERN_NUMBER_##number, \
     .unit = (factor), .table = __VA_ARGS__}

static const struct weight_type types[] = {
    {TERN_F32, 1, 4, NULL, KIND(F32, NONE, .zero = 0)},
    {TERN_F16, 1, 2, NULL, KIND(F16, NONE, .zero = 0)},
    {TERN_BF16, 1, 2, NULL, KIND(BF16, NONE, .zero = 0)},
    {TERN_Q8_0, 32, 34, unpack_q8_0, KIND(S8, F16, .zero = 0)},
    {TERN_Q4_0, 32, 18, unpack_q4_0, KIND(U4, F16, .zero = 8)},
    {TERN_Q4_1, 32, 20, unpack_q4_1, KIND(U4, F16M, .zero = 0)},
    {TERN_Q5_0, 32, 22, unpack_q5_0, KIND(U5, F16, .zero = 16)},
    {TERN_Q5_1, 32, 24, unpack_q5_1, KIND(U5, F16M, .zero = 0)},
    {TERN_Q2_K, 256, 84, unpack_q2_k, KIND(U2, K16M, .zero = 0)},
    {TERN_Q3_K, 256, 110, unpack_q3_k, KIND(U3, K16, .zero = 4)},
    {TERN_Q4_K, 256, 144, unpack_q4_k, KIND(U4, K32, .zero = 0)},
    {TERN_Q5_K, 256, 176, unpack_q5_k, KIND(U5, K32, .zero = 0)},
    {TERN_Q6_K, 256, 210, unpack_q6_k, KIND(U6, K16, .zero = 32)},
    {TERN_IQ4_NL, 32, 18, unpack_q4_0, GROUPS(32, F16, 1, IQ4_VALUES)},
    {TERN_IQ4_XS, 256, 136, unpack_iq4_xs, TABLE(T4, K32S, 1, IQ4_VALUES)},
    {TERN_IQ3_S, 256, 110, unpack_iq3_s, TABLE(T4, K32S, 1, IQ3_S_VALUES)},
    {TERN_IQ3_XXS, 256, 98, unpack_iq3_xxs, TABLE(T4, K32S, 0.25f, IQ3_XXS_VALUES)},
    {TERN_IQ2_S, 256, 82, unpack_iq2_s, TABLE(T3, K16, 0.125f, IQ2_VALUES)},
    {TERN_IQ2_XS, 256, 74, unpack_iq2_xs, TABLE(T3, K16, 0.125f, IQ2_VALUES)},
    {TERN_IQ2_XXS, 256, 66, unpack_iq2_xxs, TABLE(T3, K32S, 0.125f, IQ2_VALUES)},
    {TERN_MXFP4, 32, 17, unpack_mxfp4, GROUPS(32, E8M0, 0.5f, WEIGHT_E2M1)},
    {TERN_NVFP4, 64, 36, unpack_nvfp4, GROUPS(16, E4M3, 1, WEIGHT_E2M1)},
};
/* clang-format on */

const struct weight_type *tern_weight_type(int type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i].type == type)
            return &types[i];
    }
    return NULL;
}

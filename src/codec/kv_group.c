/* affine8, affine4, g16, g16_3 and g16_2: what other engines do, so that a divergence can be compared on the same model
 * and text; fp8 and fp4: small floats, on which some models' rows and keys lie by themselves.
 *
 * affine: MLX's affine quantisation (mx.quantize; `kv_bits` in mlx-lm, "affine8" and "affine4" in mlx-swift-lm): groups
 *   of 64 dims, unsigned codes, value = scale * code + bias, neither rotated nor conditioned.
 * g16: the group scheme of mlx-swift-lm's first TurboQuant draft (PR #232): rotated, groups of 16 dims whose largest
 *   magnitude becomes the largest Lloyd-Max level, value = scale * level[code] with the scale that keeps the norm.
 * fp8, fp4: E4M3 in groups of 64 dims, E2M1 in groups of 32, neither rotated nor conditioned; the scale is a power of
 *   two, a byte, so small that the group's largest magnitude does not exceed the largest code.  What was rounded to
 *   such a grid before (grid in dev/args.h) is kept exactly.
 *
 * Attention decodes a strip of a page into a buffer that fits L1 and goes on in f32, decode rows as prompt rows: the
 * integer kernels of kernel/kvq.h know no biases and no groups below 128 dims.  docs/kv-page.md has the bytes. */
#include <math.h>
#include <string.h>
#include "base/fp16.h"
#include "codec/kv_impl.h"

#define MAX_GROUPS (TERN_KVQ_MAX_DIM / 16)
#define KEY_DIMS   64 /* dims of a strip of keys: 16 KiB in f32 */
#define TOKENS     8  /* of a strip of values: at most 16 KiB */

static const struct tern_kv_scheme *scheme_of(const struct tern_kv_side *side)
{
    return (const struct tern_kv_scheme *)side->codec;
}

static int groups_of(const struct tern_kv_scheme *s, int dim)
{
    return (dim + s->group - 1) / s->group;
}

static size_t bytes8(int dim)
{
    return (size_t)dim * TERN_PAGE;
}

/* Scales and biases. */
static size_t affine_head_bytes(int dim)
{
    return (size_t)groups_of(&tern_kv_affine8, dim) * 2 * TERN_PAGE * sizeof(uint16_t);
}

static size_t g16_head_bytes(int dim)
{
    return (size_t)groups_of(&tern_kv_g16, dim) * TERN_PAGE * sizeof(uint16_t);
}

static size_t fp8_head_bytes(int dim)
{
    return (size_t)groups_of(&tern_kv_fp8, dim) * TERN_PAGE;
}

static size_t fp4_head_bytes(int dim)
{
    return (size_t)groups_of(&tern_kv_fp4, dim) * TERN_PAGE;
}

/* ---- encoding ----------------------------------------------------------------------------------------------- */

static uint16_t to_f16(float x)
{
    const float most = 65504.0f;
    return tern_f32_to_f16(x > most ? most : x < -most ? -most : x);
}

/* As mx.quantize: the end of the range that is farther from zero is the bias, and the scale, signed as the way to the
 * other end, divides it, so that zero has a code.  Codes are taken before scale and bias are rounded. */
static void affine_group(uint8_t *code, uint16_t *scale, uint16_t *bias, const float *y, int n, float n_bins)
{
    const float eps = 1e-7f;
    float lo = y[0], hi = y[0];
    for (int i = 1; i < n; i++) {
        lo = fminf(lo, y[i]);
        hi = fmaxf(hi, y[i]);
    }
    const bool up = fabsf(lo) > fabsf(hi);
    float edge = up ? lo : hi, step = fmaxf((hi - lo) / n_bins, eps);
    float zero = rintf(edge / (up ? step : -step)); /* its code is -zero */
    step = zero != 0 ? edge / zero : up ? step : -step;
    edge = zero != 0 ? edge : 0;
    *scale = to_f16(step);
    *bias = to_f16(edge);
    for (int i = 0; i < n; i++)
        code[i] = (uint8_t)fminf(fmaxf(rintf((y[i] - edge) / step), 0.0f), n_bins);
}

static void level_group(uint8_t *code, uint16_t *scale, const float *y, int n, float ss, const float *level,
                        int n_levels)
{
    float most = 0, ee = 0;
    for (int i = 0; i < n; i++)
        most = fmaxf(most, fabsf(y[i]));
    for (int i = 0; i < n; i++) {
        float z = y[i] / most * level[n_levels - 1];
        int above = 0;
        for (int k = 0; k + 1 < n_levels; k++)
            above += z > (level[k] + level[k + 1]) * 0.5f;
        code[i] = (uint8_t)above;
        ee += level[code[i]] * level[code[i]];
    }
    *scale = to_f16(sqrtf(ss / ee));
}

/* ---- small floats ---- */

#define POWER_BIAS 127 /* a header's byte is an exponent and this */

static float power_of(int byte)
{
    return byte ? tern_bits_f32((uint32_t)byte << 23) : 0x1p-127f;
}

/* The header's byte: of the smallest power of two s with most <= top * s. */
static int power_byte(float most, float top)
{
    const float quotient = most / top;
    int byte = (int)(tern_f32_bits(quotient) >> 23 & 255);
    if (byte < 254 && most > top * power_of(byte))
        byte++;
    return byte;
}

/* The nearest code, to even, of a magnitude not above the largest one. */
static int float_code(float x, int mantissa, int low)
{
    const uint32_t bits = tern_f32_bits(x);
    int exponent = (int)(bits >> 23) - 127;
    exponent = exponent < low ? low : exponent;
    int q = (int)rintf(x * tern_bits_f32((uint32_t)(mantissa - exponent + 127) << 23));
    if (q >> (mantissa + 1)) {
        q >>= 1;
        exponent++;
    }
    return q >> mantissa ? (exponent - low + 1) << mantissa | (q - (1 << mantissa)) : q;
}

static void float_group(const struct tern_kv_scheme *s, uint8_t *code, uint8_t *scale, const float *y, int n)
{
    const int sign = 1 << (s->codec.bits - 1);
    const float top = s->codec.bits == 8 ? 448.0f : 6.0f;
    float most = 0;
    for (int i = 0; i < n; i++)
        most = fmaxf(most, fabsf(y[i]));
    *scale = (uint8_t)power_byte(most, top);
    const double inverse = 1 / (double)power_of(*scale); /* of the smallest ones no float is */
    for (int i = 0; i < n; i++) {
        const float x = (float)((double)fabsf(y[i]) * inverse);
        code[i] = (uint8_t)(float_code(x < top ? x : top, s->mantissa, s->low) | (y[i] < 0 ? sign : 0));
    }
}

static void encode_floats(const struct tern_kv_scheme *s, uint8_t *codes, uint8_t *head, const float *y, int dim)
{
    for (int g = 0; g < groups_of(s, dim); g++) {
        const int d = g * s->group, n = dim - d < s->group ? dim - d : s->group;
        float sum = 0;
        for (int i = d; i < d + n; i++)
            sum += fabsf(y[i]);
        head[(size_t)g * TERN_PAGE] = 0;
        memset(codes + d, 0, (size_t)n);
        if (isfinite(sum) && sum > 0)
            float_group(s, codes + d, head + (size_t)g * TERN_PAGE, y + d, n);
    }
}

/* A vector of the page: codes[dim], and column t of the headers. */
static void encode_vector(const struct tern_kv_scheme *s, uint8_t *codes, uint16_t *head, const float *y, int dim)
{
    const int n_groups = groups_of(s, dim);
    for (int g = 0; g < n_groups; g++) {
        int d = g * s->group, n = dim - d < s->group ? dim - d : s->group;
        float ss = 0;
        for (int i = d; i < d + n; i++)
            ss += y[i] * y[i];
        uint16_t *scale = head + (size_t)g * TERN_PAGE, *bias = scale + (size_t)n_groups * TERN_PAGE;
        *scale = 0;
        if (!s->level)
            *bias = 0;
        memset(codes + d, 0, (size_t)n);
        if (!isfinite(ss) || ss < TERN_KVQ_TINY)
            continue;
        if (s->level)
            level_group(codes + d, scale, y + d, n, ss, s->level, 1 << s->codec.bits);
        else
            affine_group(codes + d, scale, bias, y + d, n, (float)((1 << s->codec.bits) - 1));
    }
}

/* A row of a page is a dim of keys or a token of values, and as many lanes as there are of the other.  Rows stand one
 * behind the other; of 4-bit codes two share a row of bytes, of 2-bit codes four, the first in the lowest bits.  3-bit
 * codes have two such planes, one behind the other: two bits, then the highest one of eight rows in a row of bytes. */
struct plane {
    uint8_t *bytes;
    size_t per; /* rows in a row of bytes */
    int bits, from;
};

static int planes_of(struct plane p[2], const struct tern_kv_side *side, const uint8_t *data)
{
    const int bits = side->codec->bits;
    p[0] = (struct plane){(uint8_t *)data, bits == 3 ? 4 : 8 / (size_t)bits, bits == 3 ? 2 : bits, 0};
    p[1] = (struct plane){(uint8_t *)data + tern_kv_bytes2(side->dim), 8, 1, 2};
    return bits == 3 ? 2 : 1;
}

static void encode(const struct tern_kv_side *side, uint8_t *data, uint16_t *head, const void *tile, int pos0,
                   void *scratch)
{
    const struct tern_kv_scheme *s = scheme_of(side);
    const size_t dim = (size_t)side->dim, lanes = side->key ? TERN_PAGE : dim;
    struct plane plane[2];
    const int n_planes = planes_of(plane, side, data);
    float *x = scratch;
    uint8_t *codes = tern_kv_coded_vectors(side, x, tile, pos0);
    for (size_t t = 0; t < TERN_PAGE; t++)
        if (s->mantissa)
            encode_floats(s, codes + t * dim, (uint8_t *)head + t, x + t * dim, side->dim);
        else
            encode_vector(s, codes + t * dim, head + t, x + t * dim, side->dim);
    memset(data, 0, s->codec.data_bytes(side->dim));
    for (size_t t = 0; t < TERN_PAGE; t++)
        for (size_t d = 0; d < dim; d++) {
            size_t row = side->key ? d : t, lane = side->key ? t : d;
            for (int i = 0; i < n_planes; i++) {
                const struct plane *p = &plane[i];
                const int code = codes[t * dim + d] >> p->from & ((1 << p->bits) - 1);
                p->bytes[row / p->per * lanes + lane] |= (uint8_t)(code << (row % p->per * (size_t)p->bits));
            }
        }
}

/* ---- decoding ----------------------------------------------------------------------------------------------- */

struct affine {
    float scale[MAX_GROUPS * TERN_PAGE], bias[MAX_GROUPS * TERN_PAGE]; /* [groups][64]; no biases are zeros */
} __attribute__((aligned(64)));

static void load_head(const struct tern_kv_side *side, struct affine *a, const uint16_t *head)
{
    const struct tern_kv_scheme *s = scheme_of(side);
    const size_t n = (size_t)groups_of(s, side->dim) * TERN_PAGE;
    TERN_ASSERT(n >= TERN_PAGE);
    if (s->mantissa)
        for (size_t i = 0; i < n; i++)
            a->scale[i] = power_of(((const uint8_t *)head)[i]);
    else
        tern_k.attn.f16_to_f32(a->scale, head, n);
    if (s->level)
        memset(a->bias, 0, n * sizeof *a->bias);
    else
        tern_k.attn.f16_to_f32(a->bias, head + n, n);
}

/* 16 lanes of a row at a time: what compilers make vectors of. */
static void load_codes(float *restrict x, const uint8_t *restrict code, int shift, int mask)
{
    for (int j = 0; j < 16; j++)
        x[j] = (float)(code[j] >> shift & mask);
}

static void load_levels(float *restrict x, const uint8_t *restrict code, int shift, int mask, const float *level)
{
    for (int j = 0; j < 16; j++)
        x[j] = level[code[j] >> shift & mask];
}

static void load_levels3(float *restrict x, const uint8_t *restrict low, int shift, const uint8_t *restrict high,
                         int high_shift, const float *level)
{
    for (int j = 0; j < 16; j++)
        x[j] = level[(low[j] >> shift & 3) | (high[j] >> high_shift & 1) << 2];
}

static void scale_lanes(float *restrict x, const float *restrict scale, const float *restrict bias)
{
    for (int j = 0; j < 16; j++)
        x[j] = x[j] * scale[j] + bias[j];
}

static void scale_all(float *restrict x, float scale, float bias)
{
    for (int j = 0; j < 16; j++)
        x[j] = x[j] * scale + bias;
}

/* Rows [row0, row0 + n) in f32, in the codec's domain. */
static void decode_rows(const struct tern_kv_side *side, float *out, const uint8_t *data, const struct affine *a,
                        int row0, int n)
{
    const struct tern_kv_scheme *s = scheme_of(side);
    const int lanes = side->key ? TERN_PAGE : side->dim;
    struct plane p[2];
    const bool two = planes_of(p, side, data) == 2;
    const int per = (int)p->per, mask = (1 << p->bits) - 1;
    for (int row = row0; row < row0 + n; row++) {
        const uint8_t *codes = p->bytes + (size_t)(row / per) * (size_t)lanes;
        const uint8_t *high = p[1].bytes + (size_t)(row / 8) * (size_t)lanes;
        const int shift = row % per * p->bits;
        for (int i = 0; i < lanes; i += 16, out += 16) {
            if (two)
                load_levels3(out, codes + i, shift, high + i, row % 8, s->level);
            else if (s->level)
                load_levels(out, codes + i, shift, mask, s->level);
            else
                load_codes(out, codes + i, shift, mask);
            int at = side->key ? row / s->group * TERN_PAGE + i : i / s->group * TERN_PAGE + row;
            if (side->key)
                scale_lanes(out, a->scale + at, a->bias + at);
            else
                scale_all(out, a->scale[at], a->bias[at]); /* 16 dims are of one group */
        }
    }
}

static void decode(const struct tern_kv_side *side, float *out, const uint8_t *data, const uint16_t *head)
{
    struct affine a;
    load_head(side, &a, head);
    decode_rows(side, out, data, &a, 0, side->key ? side->dim : TERN_PAGE);
}

static void decode_row(const struct tern_kv_side *side, float *out, const uint8_t *data, const uint16_t *head, int row)
{
    const struct tern_kv_scheme *s = scheme_of(side);
    const uint8_t *codes = data + (size_t)row * (size_t)side->dim, *scales = (const uint8_t *)head + row;
    for (int g = 0, d = 0; d < side->dim; g++) {
        const float scale = power_of(scales[(size_t)g * TERN_PAGE]);
        for (int end = d + s->group < side->dim ? d + s->group : side->dim; d < end; d++)
            out[d] = s->level[codes[d]] * scale;
    }
}

/* ---- attention ---------------------------------------------------------------------------------------------- */

static void prep(const struct tern_kv_side *side, struct tern_kv_query *out, const float *x, int n_q, bool narrow)
{
    (void)narrow;
    tern_kv_coded_prep(side, out, x, n_q, false);
}

/* accum_f32 with the roles of tokens and dims exchanged goes on with the chains of the strip before: the same sums as
 * score_f32 on the whole page. */
static void score(const struct tern_kv_side *side, float *s, const struct tern_kv_query *q, const uint8_t *data,
                  const uint16_t *head, int n_q, const void *next)
{
    const size_t dim = (size_t)side->dim;
    float k[KEY_DIMS * TERN_PAGE] __attribute__((aligned(64))), p[TERN_KVQ_MAX_Q * TERN_PAGE];
    struct affine a;
    (void)next; /* a page is decoded first: nothing here waits for memory */
    load_head(side, &a, head);
    memset(s, 0, (size_t)n_q * TERN_PAGE * sizeof *s);
    for (size_t d = 0; d < dim; d += KEY_DIMS) {
        size_t n = dim - d < KEY_DIMS ? dim - d : KEY_DIMS;
        decode_rows(side, k, data, &a, (int)d, (int)n);
        for (int i = 0; i < n_q; i += TERN_KVQ_MAX_Q) {
            int rows = n_q - i < TERN_KVQ_MAX_Q ? n_q - i : TERN_KVQ_MAX_Q;
            for (int r = 0; r < rows; r++)
                memcpy(p + r * TERN_PAGE, q->x + (size_t)(i + r) * dim + d, n * sizeof *p);
            tern_k.attn.accum_f32(s + (size_t)i * TERN_PAGE, p, k, NULL, TERN_PAGE, (int)n, rows);
        }
    }
}

static void accum(const struct tern_kv_side *side, float *o, const float *p, const uint8_t *data, const uint16_t *head,
                  const float *shrink, int n_q, const void *next)
{
    float v[TOKENS * TERN_KVQ_MAX_DIM] __attribute__((aligned(64)));
    struct affine a;
    (void)next;
    load_head(side, &a, head);
    for (int t = 0; t < TERN_PAGE; t += TOKENS) {
        decode_rows(side, v, data, &a, t, TOKENS);
        tern_k.attn.accum_f32(o, p + t, v, t ? NULL : shrink, side->dim, TOKENS, n_q);
    }
}

#define FUNCTIONS                                                                          \
    .unconditioned = true, .encode = encode, .prep = prep, .score = score, .accum = accum, \
    .finish = tern_kv_coded_finish, .enter = tern_kv_coded_enter, .decode = decode

const struct tern_kv_scheme tern_kv_affine8 = {
    .codec = {.name = "affine8",
              .about = "8-bit codes, scale and bias per 64 dims, as MLX",
              .bits = 8,
              .accepts = tern_kv_coded_accepts,
              .data_bytes = bytes8,
              .head_bytes = affine_head_bytes,
              FUNCTIONS},
    .group = 64,
};

const struct tern_kv_scheme tern_kv_affine4 = {
    .codec = {.name = "affine4",
              .about = "4-bit codes, scale and bias per 64 dims, as MLX",
              .bits = 4,
              .accepts = tern_kv_coded_accepts,
              .data_bytes = tern_kv_bytes4,
              .head_bytes = affine_head_bytes,
              FUNCTIONS},
    .group = 64,
};

#define G16(name_, bits_)                                                                                            \
    {                                                                                                                \
        .codec = {.name = name_,                                                                                     \
                  .about =                                                                                           \
                      #bits_ " bits, rotated, Lloyd-Max levels, scale per 16 dims, as mlx-swift's first TurboQuant", \
                  .bits = bits_,                                                                                     \
                  .rotated = true,                                                                                   \
                  .accepts = tern_kv_rotated_accepts,                                                                \
                  .data_bytes = tern_kv_bytes##bits_,                                                                \
                  .head_bytes = g16_head_bytes,                                                                      \
                  FUNCTIONS},                                                                                        \
        .group = 16, .level = TERN_KV_LEVELS(bits_),                                                                 \
    }

const struct tern_kv_scheme tern_kv_g16 = G16("g16", 4);
const struct tern_kv_scheme tern_kv_g16_3 = G16("g16_3", 3);
const struct tern_kv_scheme tern_kv_g16_2 = G16("g16_2", 2);

/* All codes of 8 bits: sign, 4 bits of exponent, 3 of mantissa; infinities there are none, and what would be NaN is
 * never written. */
#define E4M3(exponent, m) ((exponent) ? (8.0f + (m)) * (float)(1 << (exponent)) / 1024.0f : (m) / 512.0f)
#define EIGHT(e, sign)                                                                                    \
    sign E4M3(e, 0), sign E4M3(e, 1), sign E4M3(e, 2), sign E4M3(e, 3), sign E4M3(e, 4), sign E4M3(e, 5), \
        sign E4M3(e, 6), sign E4M3(e, 7)
#define HALF(sign)                                                                                                  \
    EIGHT(0, sign), EIGHT(1, sign), EIGHT(2, sign), EIGHT(3, sign), EIGHT(4, sign), EIGHT(5, sign), EIGHT(6, sign), \
        EIGHT(7, sign), EIGHT(8, sign), EIGHT(9, sign), EIGHT(10, sign), EIGHT(11, sign), EIGHT(12, sign),          \
        EIGHT(13, sign), EIGHT(14, sign), EIGHT(15, sign)

static const float e4m3[256] = {HALF(+), HALF(-)};
static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

const struct tern_kv_scheme tern_kv_fp8 = {
    .codec = {.name = "fp8",
              .about = "8-bit floats (E4M3), power of two per 64 dims: what DeepSeek-V4's rows are rounded to",
              .bits = 8,
              .accepts = tern_kv_coded_accepts,
              .data_bytes = bytes8,
              .head_bytes = fp8_head_bytes,
              .decode_row = decode_row,
              FUNCTIONS},
    .group = 64,
    .level = e4m3,
    .mantissa = 3,
    .low = -6,
};

const struct tern_kv_scheme tern_kv_fp4 = {
    .codec = {.name = "fp4",
              .about = "4-bit floats (E2M1), power of two per 32 dims",
              .bits = 4,
              .accepts = tern_kv_coded_accepts,
              .data_bytes = tern_kv_bytes4,
              .head_bytes = fp4_head_bytes,
              FUNCTIONS},
    .group = 32,
    .level = e2m1,
    .mantissa = 1,
    .low = 0,
};

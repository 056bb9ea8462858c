#include "codec/codec.h"
#include "codec/weight_block.h"

#include <limits.h>
#include <string.h>
#include "base/mem.h"

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
    out->d = half(p);
    memcpy(out->quad, p + 2, 32);
}

static void unpack_q4_0(struct weight_block *out, const uint8_t *p)
{
    out->d = half(p);
    nibbles32(out->quad, p + 2);
}

static void unpack_q4_1(struct weight_block *out, const uint8_t *p)
{
    out->d = half(p);
    out->m = half(p + 2);
    nibbles32(out->quad, p + 4);
}

static void unpack_q5_0(struct weight_block *out, const uint8_t *p)
{
    out->d = half(p);
    nibbles32(out->quad, p + 6);
    fifth_bits(out->quad, word(p + 2));
}

static void unpack_q5_1(struct weight_block *out, const uint8_t *p)
{
    out->d = half(p);
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
    out->d = half(p);
    out->m = half(p + 2);
    tern_weight_k_scales(out->a, out->b, p + 4);
    nibbles_k(out->quad, p + 16);
}

static void unpack_q5_k(struct weight_block *out, const uint8_t *p)
{
    out->d = half(p);
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
    out->d = half(p + 208);
}

static const struct weight_type types[] = {
    {TERN_F32, TERN_CODES_F32, TERN_SCALES_NONE, 0, 1, 4, NULL},
    {TERN_F16, TERN_CODES_F16, TERN_SCALES_NONE, 0, 1, 2, NULL},
    {TERN_BF16, TERN_CODES_BF16, TERN_SCALES_NONE, 0, 1, 2, NULL},
    {TERN_Q8_0, TERN_CODES_S8, TERN_SCALES_F16, 0, 32, 34, unpack_q8_0},
    {TERN_Q4_0, TERN_CODES_U4, TERN_SCALES_F16, 8, 32, 18, unpack_q4_0},
    {TERN_Q4_1, TERN_CODES_U4, TERN_SCALES_F16M, 0, 32, 20, unpack_q4_1},
    {TERN_Q5_0, TERN_CODES_U5, TERN_SCALES_F16, 16, 32, 22, unpack_q5_0},
    {TERN_Q5_1, TERN_CODES_U5, TERN_SCALES_F16M, 0, 32, 24, unpack_q5_1},
    {TERN_Q4_K, TERN_CODES_U4, TERN_SCALES_K32, 0, 256, 144, unpack_q4_k},
    {TERN_Q5_K, TERN_CODES_U5, TERN_SCALES_K32, 0, 256, 176, unpack_q5_k},
    {TERN_Q6_K, TERN_CODES_U6, TERN_SCALES_K16, 32, 256, 210, unpack_q6_k},
};

const struct weight_type *tern_weight_type(int type)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (types[i].type == type)
            return &types[i];
    }
    return NULL;
}

int tern_weight_plan(struct tern_packed *w, const struct tern_weight_source *s, int64_t n, int64_t k, tern_error *err)
{
    const int type = s->type;
    const struct weight_type *t = tern_weight_type(type);
    memset(w, 0, sizeof *w);
    if (s->form != TERN_FORM_PLAIN)
        return tern_err_set(err, TERN_EUNSUPPORTED, "weights of several tensors cannot be multiplied");
    if (!t)
        return tern_err_set(err, TERN_EUNSUPPORTED, "weights of %s cannot be multiplied", tern_type_name(type));
    if (n < 1 || k < 1 || n > INT_MAX - TERN_PANEL || k > INT_MAX - TERN_SUPER)
        return tern_err_set(err, TERN_EUNSUPPORTED, "a weight matrix of %lld rows of %lld is outside what tern handles",
                            (long long)n, (long long)k);
    if (k % t->elems)
        return tern_err_set(err, TERN_EUNSUPPORTED, "rows of %lld weights are not whole blocks of %d, as %s needs",
                            (long long)k, t->elems, tern_type_name(type));
    w->codes = t->codes;
    w->scales = t->scales;
    w->zero = t->zero;
    w->n = (int)n;
    w->k = (int)k;
    w->panel_bytes = tern_panel_layout(w->codes, w->scales, w->k).bytes;
    size_t total;
    if (!tern_mul((size_t)tern_panels(w), w->panel_bytes, &total) || !tern_add(total, TERN_VEC, &total))
        return tern_err_set(err, TERN_EUNSUPPORTED, "a weight matrix of %lld rows of %lld exceeds the address space",
                            (long long)n, (long long)k);
    return 0;
}

size_t tern_weight_bytes(const struct tern_packed *w)
{
    return (size_t)tern_panels(w) * w->panel_bytes + TERN_VEC;
}

struct tern_packed tern_weight_at(const struct tern_packed *w, int i)
{
    struct tern_packed one = *w;
    one.data += (size_t)i * tern_weight_bytes(w);
    return one;
}

int tern_weight_rows(struct tern_weight_source *out, const struct tern_weight_source *s, int64_t row0, int64_t k,
                     tern_error *err)
{
    const struct weight_type *t = tern_weight_type(s->type);
    if (s->form != TERN_FORM_PLAIN || !t || row0 * k % t->elems)
        return tern_err_set(err, TERN_EUNSUPPORTED, "tensor %s cannot be divided at row %lld", s->name,
                            (long long)row0);
    *out = *s;
    out->data = (const uint8_t *)s->data + row0 * k / t->elems * t->bytes;
    return 0;
}

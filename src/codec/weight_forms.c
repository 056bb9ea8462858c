/* Weights that consist of several tensors: what safetensors checkpoints hold. */
#include "codec/codec.h"
#include "codec/weight_block.h"

#include <string.h>

/* ---- plan ---- */

static int number_of(enum tern_number *out, int scale_type, tern_error *err)
{
    *out = TERN_NUMBER_E8M0;
    if (scale_type == TERN_F8_E8M0)
        return 0;
    if (scale_type != TERN_F32 && scale_type != TERN_F16 && scale_type != TERN_BF16)
        return tern_err_set(err, TERN_EUNSUPPORTED, "scales of %s are not supported", tern_type_name(scale_type));
    *out = scale_type == TERN_F32 ? TERN_NUMBER_F32 : scale_type == TERN_F16 ? TERN_NUMBER_F16 : TERN_NUMBER_BF16;
    return 0;
}

/* The size of group in panels for `group` inputs in the file. */
static int panel_group(int group)
{
    return group % 128 == 0 ? 128 : group % 64 == 0 ? 64 : 32;
}

static int plan_affine(struct tern_packed *w, const struct tern_weight_source *s, int64_t k, tern_error *err)
{
    static const enum tern_codes codes[9] = {[2] = TERN_CODES_U2, [3] = TERN_CODES_U3, [4] = TERN_CODES_U4,
                                             [5] = TERN_CODES_U5, [6] = TERN_CODES_U6, [8] = TERN_CODES_S8};
    if (s->bits < 2 || s->bits > 8 || s->bits == 7)
        return tern_err_set(err, TERN_EUNSUPPORTED, "weights of %d bits are not supported", s->bits);
    if ((s->group != 32 && s->group != 64 && s->group != 128) || k % s->group)
        return tern_err_set(err, TERN_EUNSUPPORTED, "rows of %lld weights in groups of %d are not supported",
                            (long long)k, s->group);
    w->codes = codes[s->bits];
    w->scales = TERN_SCALES_G32M;
    w->zero = s->bits == 8 ? -128 : 0;
    w->group = s->group;
    int rc = number_of(&w->d_type, s->scale_type, err);
    w->m_type = w->d_type;
    return rc;
}

static int plan_fp8(struct tern_packed *w, const struct tern_weight_source *s, int64_t n, tern_error *err)
{
    if (s->group < 0 || s->group % TERN_BLOCK || s->group_rows < 0 || (s->turned && s->n_stored != n))
        return tern_err_set(err, TERN_EUNSUPPORTED, "scales of blocks of %d x %d weights are not supported",
                            s->group_rows, s->group);
    w->codes = TERN_CODES_E4M3;
    w->scales = TERN_SCALES_G32;
    w->group = panel_group(s->group);
    return number_of(&w->d_type, s->scale_type, err);
}

/* GPTQ and AWQ. */
static int plan_words(struct tern_packed *w, const struct tern_weight_source *s, int64_t n, int64_t k, tern_error *err)
{
    const int64_t stored = s->n_stored ? s->n_stored : n;
    if (s->group < 0 || s->group % TERN_BLOCK || (s->group && k % s->group) || stored % 8 || s->row0 + n > stored)
        return tern_err_set(err, TERN_EUNSUPPORTED, "%lld rows of %lld weights in groups of %d are not supported",
                            (long long)n, (long long)k, s->group);
    if (s->scale_type == TERN_F32) /* their products with zero points would be rounded */
        return tern_err_set(err, TERN_EUNSUPPORTED, "scales of F32 are not supported beside integer zero points");
    w->codes = TERN_CODES_U4;
    w->scales = TERN_SCALES_G32M;
    w->group = panel_group(s->group);
    w->m_type = TERN_NUMBER_ZERO;
    return number_of(&w->d_type, s->scale_type, err);
}

int tern_weight_form_plan(struct tern_packed *w, const struct tern_weight_source *s, int64_t n, int64_t k,
                          tern_error *err)
{
    static const int8_t e2m1[TERN_TABLE] = WEIGHT_E2M1;
    if (k % TERN_BLOCK)
        return tern_err_set(err, TERN_EUNSUPPORTED, "rows of %lld weights are not whole blocks of %d", (long long)k,
                            TERN_BLOCK);
    w->unit = 1;
    switch (s->form) {
    case TERN_FORM_AFFINE:
        return plan_affine(w, s, k, err);
    case TERN_FORM_FP8:
        return plan_fp8(w, s, n, err);
    case TERN_FORM_GPTQ:
    case TERN_FORM_AWQ:
        return plan_words(w, s, n, k, err);
    case TERN_FORM_MXFP4:
    case TERN_FORM_MXFP8:
    case TERN_FORM_NVFP4:
    case TERN_FORM_PLAIN:
        break;
    }
    w->codes = s->form == TERN_FORM_MXFP8 ? TERN_CODES_E4M3 : TERN_CODES_T4;
    w->scales = s->form == TERN_FORM_NVFP4 ? TERN_SCALES_G16 : TERN_SCALES_G32;
    w->group = s->form == TERN_FORM_NVFP4 ? 16 : 32;
    w->d_type = s->form == TERN_FORM_NVFP4 ? TERN_NUMBER_E4M3 : TERN_NUMBER_E8M0;
    w->unit = w->codes == TERN_CODES_T4 ? 0.5f : 1.0f;
    if (w->codes == TERN_CODES_T4)
        memcpy(w->table, e2m1, sizeof w->table);
    return 0;
}

/* ---- division ---- */

bool tern_weight_form_divides(const struct tern_weight_source *s, int64_t row0)
{
    if (s->form == TERN_FORM_GPTQ || s->form == TERN_FORM_AWQ)
        return row0 == 0 || s->n_stored;
    if (s->turned)
        return row0 == 0;
    return s->form != TERN_FORM_FP8 || !s->group_rows || row0 % s->group_rows == 0;
}

void tern_weight_form_rows(struct tern_weight_source *s, int64_t row0, int64_t k)
{
    const int64_t number = s->scale_type == TERN_F32 ? 4 : s->scale_type == TERN_F8_E8M0 ? 1 : 2;
    int64_t bits = 4, scales = 0; /* of a row: bits of a code, bytes of scales */
    switch (s->form) {
    case TERN_FORM_AFFINE:
        bits = s->bits;
        scales = k / s->group * number;
        s->zeros = (const uint8_t *)s->zeros + row0 * scales;
        break;
    case TERN_FORM_MXFP4:
        scales = k / 32;
        break;
    case TERN_FORM_NVFP4:
        scales = k / 16;
        break;
    case TERN_FORM_MXFP8:
        bits = 8;
        scales = k / 32;
        break;
    case TERN_FORM_FP8:
        bits = 8;
        break;
    case TERN_FORM_GPTQ:
    case TERN_FORM_AWQ:
        s->row0 += row0;
        return;
    case TERN_FORM_PLAIN:
        return;
    }
    s->data = (const uint8_t *)s->data + row0 * (k * bits / 8);
    s->scales = (const uint8_t *)s->scales + row0 * scales;
    if (s->form == TERN_FORM_FP8 && s->group_rows)
        s->scales =
            (const uint8_t *)s->scales + row0 / s->group_rows * (s->group ? (k + s->group - 1) / s->group : 1) * number;
}

/* ---- blocks of 32 inputs ---- */

/* Bits of number `i` of a tensor, and its byte offset. */
static uint32_t number_bits(const void *tensor, enum tern_number type, size_t i, size_t *at)
{
    uint32_t bits = 0;
    *at = i * tern_number_bytes(type);
    memcpy(&bits, (const uint8_t *)tensor + *at, tern_number_bytes(type));
    return bits;
}

static uint32_t word_at(const void *tensor, size_t i)
{
    uint32_t word;
    memcpy(&word, (const uint8_t *)tensor + 4 * i, 4);
    return word;
}

/* 32 codes of `bits` bits, lowest first; flip is added to every byte without carry. */
static void stream32(uint32_t quad[8], const uint8_t *p, int bits, uint32_t flip)
{
    uint64_t window = 0;
    int have = 0;
    memset(quad, 0, 8 * sizeof *quad);
    for (int i = 0; i < TERN_BLOCK; i++) {
        for (; have < bits; have += 8)
            window |= (uint64_t)*p++ << have;
        quad[i / 4] |= (uint32_t)(window & ((1u << bits) - 1)) << (8 * (i % 4));
        window >>= bits;
        have -= bits;
    }
    for (int j = 0; j < 8; j++)
        quad[j] ^= flip;
}

static void read_affine(struct weight_block *out, const struct tern_packed *w, const struct tern_weight_source *s,
                        size_t row, size_t block)
{
    const size_t blocks = (size_t)w->k / TERN_BLOCK, group = (size_t)s->group;
    const size_t at = row * ((size_t)w->k / group) + block * TERN_BLOCK / group;
    const uint8_t *p = (const uint8_t *)s->data + (row * blocks + block) * 4 * (size_t)s->bits;
    stream32(out->quad, p, s->bits, s->bits == 8 ? 0x80808080u : 0);
    out->d[0] = number_bits(s->scales, w->d_type, at, &out->d_at);
    out->m = number_bits(s->zeros, w->m_type, at, &out->m_at);
}

/* MXFP4, NVFP4 and MXFP8. */
static void read_micro(struct weight_block *out, const struct tern_packed *w, const struct tern_weight_source *s,
                       size_t row, size_t block)
{
    const size_t at = row * ((size_t)w->k / TERN_BLOCK) + block;
    const int bits = s->form == TERN_FORM_MXFP8 ? 8 : 4;
    const size_t per_block = s->form == TERN_FORM_NVFP4 ? 2 : 1;
    stream32(out->quad, (const uint8_t *)s->data + at * 4 * (size_t)bits, bits, 0);
    for (size_t g = per_block; g-- > 0;)
        out->d[g] = number_bits(s->scales, w->d_type, at * per_block + g, &out->d_at);
}

static void read_fp8(struct weight_block *out, const struct tern_packed *w, const struct tern_weight_source *s,
                     size_t row, size_t block)
{
    const size_t k = (size_t)w->k, group = s->group ? (size_t)s->group : k, groups = (k + group - 1) / group;
    const size_t at = (s->group_rows ? row / (size_t)s->group_rows : 0) * groups + block * TERN_BLOCK / group;
    memcpy(out->quad, (const uint8_t *)s->data + row * k + block * TERN_BLOCK, TERN_BLOCK);
    out->d[0] = number_bits(s->scales, w->d_type, at, &out->d_at);
}

/* FP8 whose outputs are contiguous, in codes and scales alike. */
static void read_turned(struct weight_block *out, const struct tern_packed *w, const struct tern_weight_source *s,
                        size_t row, size_t block)
{
    const size_t n = (size_t)s->n_stored, rows = s->group_rows ? (size_t)s->group_rows : n;
    const size_t group = s->group ? (size_t)s->group : (size_t)w->k, first = block * TERN_BLOCK;
    memset(out->quad, 0, 8 * sizeof *out->quad);
    for (size_t i = 0; i < TERN_BLOCK; i++)
        out->quad[i / 4] |= (uint32_t)((const uint8_t *)s->data)[(first + i) * n + row] << (8 * (i % 4));
    out->d[0] = number_bits(s->scales, w->d_type, first / group * ((n + rows - 1) / rows) + row / rows, &out->d_at);
}

/* Nibble of output `row` in words of eight outputs. */
static uint32_t output_nibble(uint32_t word, size_t row, bool awq)
{
    static const uint8_t places[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    size_t place = awq ? places[row % 8] : row % 8;
    return word >> (4 * place) & 15;
}

static void read_words(struct weight_block *out, const struct tern_packed *w, const struct tern_weight_source *s,
                       size_t row, size_t block)
{
    const size_t n = s->n_stored ? (size_t)s->n_stored : (size_t)w->n,
                 group = s->group ? (size_t)s->group : (size_t)w->k;
    const bool awq = s->form == TERN_FORM_AWQ;
    row += (size_t)s->row0;
    const size_t g = block * TERN_BLOCK / group, first = block * TERN_BLOCK, zero = g * (n / 8) + row / 8;
    memset(out->quad, 0, 8 * sizeof *out->quad);
    for (size_t i = 0; i < TERN_BLOCK; i++) {
        uint32_t code = awq ? output_nibble(word_at(s->data, (first + i) * (n / 8) + row / 8), row, true)
                            : word_at(s->data, (first + i) / 8 * n + row) >> (4 * (i % 8)) & 15;
        out->quad[i / 4] |= code << (8 * (i % 4));
    }
    out->d[0] = number_bits(s->scales, w->d_type, g * n + row, &out->d_at);
    out->m = output_nibble(word_at(s->zeros, zero), row, awq) + (s->zero_plus_one ? 1 : 0);
    out->m_at = 4 * zero;
}

void tern_weight_form_read(struct weight_block *out, const struct tern_packed *w, const struct tern_weight_source *s,
                           size_t row, size_t block)
{
    if (s->form == TERN_FORM_AFFINE)
        read_affine(out, w, s, row, block);
    else if (s->form == TERN_FORM_FP8 && s->turned)
        read_turned(out, w, s, row, block);
    else if (s->form == TERN_FORM_FP8)
        read_fp8(out, w, s, row, block);
    else if (s->form == TERN_FORM_GPTQ || s->form == TERN_FORM_AWQ)
        read_words(out, w, s, row, block);
    else
        read_micro(out, w, s, row, block);
}

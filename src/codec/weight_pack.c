#include "codec/codec.h"
#include "codec/weight_block.h"

#include <math.h>
#include <string.h>

static int refuse(tern_error *err, const char *name, size_t row, size_t offset, const char *of, const char *what)
{
    return tern_err_set(
        err, TERN_EFORMAT,
        "tensor %s: the %s of row %zu at byte %zu of the %s is not finite, or makes weights that are not", name, what,
        row, offset, of);
}

/* ---- float weights ----
 *
 * Rows become columns.  Elements are `size` bytes, 2 or 4; one is not finite when all bits of `exponent` are set. */

#define STRIP 64 /* inputs at once: they stay in the first cache */

struct float_rows {
    const uint8_t *data;   /* of the panel's first row */
    size_t step, row_step; /* bytes from an input to the next, and from a row to the next */
    int rows, k;
    uint32_t exponent;
};

static inline uint32_t element(const uint8_t *p, size_t size)
{
    uint32_t bits = 0;
    memcpy(&bits, p, size);
    return bits;
}

/* Four rows of two-byte elements to four columns, in registers.  Little-endian, as everything that is packed. */
static inline void turn_4x4(uint64_t c[4], const uint64_t r[4])
{
    const uint64_t even = 0x0000FFFF0000FFFFu, low = 0x00000000FFFFFFFFu;
    const uint64_t a0 = (r[0] & even) | (r[1] & even) << 16, a1 = (r[0] >> 16 & even) | (r[1] & ~even);
    const uint64_t b0 = (r[2] & even) | (r[3] & even) << 16, b1 = (r[2] >> 16 & even) | (r[3] & ~even);
    c[0] = (a0 & low) | b0 << 32;
    c[1] = (a1 & low) | b1 << 32;
    c[2] = a0 >> 32 | (b0 & ~low);
    c[3] = a1 >> 32 | (b1 & ~low);
}

static void turn_strip_16(uint8_t *out, uint8_t strip[TERN_PANEL][STRIP * 4])
{
    for (int i = 0; i < STRIP; i += 4)
        for (int j = 0; j < TERN_PANEL; j += 4) {
            uint64_t r[4], c[4];
            for (int t = 0; t < 4; t++)
                memcpy(&r[t], strip[j + t] + 2 * i, 8);
            turn_4x4(c, r);
            for (int t = 0; t < 4; t++)
                memcpy(out + 2 * ((i + t) * TERN_PANEL + j), &c[t], 8);
        }
}

/* Is an element of n eight-byte words not finite?  e: the exponent in all of a word's elements; low: their lowest bits.
 * A field of y is 0 where all bits of the exponent are set, and a borrow out of it shows in its own highest bit. */
static uint64_t not_finite(const uint8_t *p, int n, uint64_t e, uint64_t low, uint64_t high)
{
    uint64_t bad = 0;
    for (int i = 0; i < n; i++) {
        uint64_t x;
        memcpy(&x, p + 8 * i, 8);
        const uint64_t y = ~x & e;
        bad |= (y - low) & ~y & high;
    }
    return bad;
}

/* Packs the inputs [i0, i0 + n); false when one of them is not finite.  Inlined where size is a constant. */
static inline __attribute__((always_inline)) bool pack_strip(uint8_t *panel, const struct float_rows *f, int i0, int n,
                                                             size_t size)
{
    uint8_t strip[TERN_PANEL][STRIP * 4];
    const uint64_t low = size == 2 ? 0x0001000100010001u : 0x0000000100000001u;
    const int words = (int)(((size_t)n * size + 7) / 8);
    uint64_t bad = 0;
    for (int j = 0; j < f->rows; j++) {
        const uint8_t *row = f->data + (size_t)j * f->row_step + (size_t)i0 * f->step;
        memset(strip[j] + 8 * (words - 1), 0, 8);
        if (f->step == size)
            memcpy(strip[j], row, (size_t)n * size);
        else
            for (int i = 0; i < n; i++)
                memcpy(strip[j] + (size_t)i * size, row + (size_t)i * f->step, size);
        bad |= not_finite(strip[j], words, low * f->exponent, low, low << (8 * size - 1));
    }
    uint8_t *out = panel + (size_t)i0 * TERN_PANEL * size;
    if (size == 2 && n == STRIP && f->rows == TERN_PANEL) {
        turn_strip_16(out, strip);
        return !bad;
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < f->rows; j++)
            memcpy(out + ((size_t)i * TERN_PANEL + (size_t)j) * size, strip[j] + (size_t)i * size, size);
    return !bad;
}

static bool pack_float_rows(uint8_t *panel, const struct float_rows *f, size_t size)
{
    bool good = true;
    for (int i = 0; i < f->k; i += STRIP) {
        int n = f->k - i < STRIP ? f->k - i : STRIP;
        good &= size == 2 ? pack_strip(panel, f, i, n, 2) : pack_strip(panel, f, i, n, 4);
    }
    return good;
}

static int pack_float_panel(const struct tern_packed *w, uint8_t *panel, const struct tern_weight_source *s, int row0,
                            int rows, tern_error *err)
{
    const bool turned = s->n_stored > 0;
    const size_t size = tern_codes_unit(w->codes) / TERN_PANEL;
    struct float_rows f = {.rows = rows, .k = w->k};
    f.step = turned ? size * (size_t)s->n_stored : size;
    f.row_step = turned ? size : size * (size_t)w->k;
    f.exponent = w->codes == TERN_CODES_F32 ? 0x7F800000u : w->codes == TERN_CODES_F16 ? 0x7C00u : 0x7F80u;
    f.data = (const uint8_t *)s->data + (size_t)(s->row0 + row0) * f.row_step;
    if (pack_float_rows(panel, &f, size))
        return 0;
    for (int j = 0; j < rows; j++) /* the first one in the order of the file */
        for (int i = 0; i < w->k; i++) {
            const uint8_t *p = f.data + (size_t)j * f.row_step + (size_t)i * f.step;
            if ((element(p, size) & f.exponent) == f.exponent)
                return refuse(err, s->name, (size_t)(row0 + j), (size_t)(p - (const uint8_t *)s->data), "tensor",
                              "weight");
        }
    TERN_ASSERT(false);
    return 0;
}

/* ---- quantised weights ---- */

static void put(uint8_t *vec, int j, uint32_t word)
{
    memcpy(vec + 4 * j, &word, 4);
}

/* Bits `shift`.. of all codes, `width` bits each, eight quads to one vector or four to each of two. */
static void put_planes(uint8_t *dst, int j, const uint32_t quad[8], int shift, int width)
{
    const uint32_t mask = width == 1 ? 0x01010101u : 0x03030303u;
    const int per_vector = 8 / width;
    for (int v = 0; v < width; v++) {
        uint32_t plane = 0;
        for (int t = 0; t < per_vector; t++)
            plane |= (quad[per_vector * v + t] >> shift & mask) << (width * t);
        put(dst + v * TERN_VEC, j, plane);
    }
}

/* Row j's 32 codes into a block of the panel; see kernel/pack.h. */
static void put_block(enum tern_codes codes, uint8_t *dst, int j, const uint32_t quad[8])
{
    switch (codes) {
    case TERN_CODES_U2:
    case TERN_CODES_U3:
    case TERN_CODES_T3:
        put_planes(dst, j, quad, 0, 2);
        if (codes != TERN_CODES_U2)
            put_planes(dst + 2 * TERN_VEC, j, quad, 2, 1);
        break;
    case TERN_CODES_U4:
    case TERN_CODES_U5:
    case TERN_CODES_U6:
    case TERN_CODES_T4:
        for (int g = 0; g < 4; g++)
            put(dst + g * TERN_VEC, j, (quad[g] & 0x0F0F0F0Fu) | (quad[g + 4] & 0x0F0F0F0Fu) << 4);
        if (codes == TERN_CODES_U5 || codes == TERN_CODES_U6)
            put_planes(dst + 4 * TERN_VEC, j, quad, 4, codes == TERN_CODES_U5 ? 1 : 2);
        break;
    default:
        for (int g = 0; g < 8; g++)
            put(dst + g * TERN_VEC, j, quad[g]);
    }
}

/* The scales of block `b`, `elems` inputs, of row j. */
static void put_scales(const struct tern_packed *w, const struct tern_panel_layout *l, uint8_t *panel, int j, size_t b,
                       size_t elems, const struct weight_block *blk)
{
    size_t group = w->group ? (size_t)w->group : elems, first = b * elems / group;
    size_t d_bytes = w->group ? tern_number_bytes(w->d_type) : 2, m_bytes = w->group ? tern_number_bytes(w->m_type) : 2;
    size_t m_at = w->scales == TERN_SCALES_G16 ? (size_t)j : first * TERN_PANEL + (size_t)j;
    for (size_t g = 0; g == 0 || g < elems / group; g++)
        memcpy(panel + l->d + ((first + g) * TERN_PANEL + (size_t)j) * d_bytes, &blk->d[g], d_bytes);
    if (l->m)
        memcpy(panel + l->m + m_at * m_bytes, &blk->m, m_bytes);
    size_t small = !tern_scales_super(w->scales) ? 0 : tern_scales_halves(w->scales) ? 16 : 8;
    for (size_t g = 0; g < small; g++) {
        size_t to = (b * small + g) * TERN_PANEL + (size_t)j;
        panel[l->a + to] = blk->a[g];
        if (l->b)
            panel[l->b + to] = blk->b[g];
    }
}

/* What the rows of s are multiplied by. */
static float row_factor(const struct tern_weight_source *s, size_t row)
{
    float f = 1;
    if (s->factors)
        memcpy(&f, (const uint8_t *)s->factors + (s->factor_rows ? row / (size_t)s->factor_rows : 0) * 4, 4);
    return f;
}

/* What is wrong with the block: a part of a sentence, or NULL. */
static const char *block_fault(const struct tern_packed *w, size_t elems, const struct weight_block *blk)
{
    const enum tern_number d_type = w->group ? w->d_type : TERN_NUMBER_F16;
    const enum tern_number m_type = w->group ? w->m_type : TERN_NUMBER_F16;
    float largest = 0;
    for (size_t g = 0; g == 0 || (w->group && g < elems / (size_t)w->group); g++) {
        float d = fabsf(tern_number_at(d_type, &blk->d[g], 0));
        largest = !(d <= largest) ? d : largest;
        if (d_type == TERN_NUMBER_E4M3 && (blk->d[g] & 0x7F) == 0x7F)
            return "scale of the block";
    }
    /* No code is larger than that of E4M3; those of the K kinds come with halves, which cannot overflow. */
    const float m = fabsf(tern_number_at(m_type, &blk->m, 0));
    largest *= w->group ? 512.0f : 1.0f;
    if (!isfinite(largest))
        return "scale of the block";
    if (!isfinite(w->scales == TERN_SCALES_G16 ? largest * m : largest + m))
        return w->scales == TERN_SCALES_G16 ? "factor" : "minimum of the block";
    for (size_t i = 0; i < TERN_BLOCK && w->codes == TERN_CODES_E4M3; i++)
        if ((blk->quad[i / 4] >> (8 * (i % 4)) & 0x7F) == 0x7F)
            return "weight";
    return NULL;
}

/* at: block of a type, byte of a form */
static int refuse_block(const struct tern_weight_source *s, const struct weight_type *t, const struct weight_block *blk,
                        size_t row, size_t at, const char *fault, tern_error *err)
{
    if (fault[0] == 'f')
        return refuse(err, s->name, row, s->factor_rows ? row / (size_t)s->factor_rows * 4 : 0, "factors", fault);
    if (t)
        return refuse(err, s->name, row, at * (size_t)t->bytes, "tensor", fault);
    if (fault[0] == 's')
        return refuse(err, s->name, row, blk->d_at, "scales", fault);
    if (fault[0] == 'm')
        return refuse(err, s->name, row, blk->m_at, "zeros", fault);
    return refuse(err, s->name, row, at, "tensor", fault);
}

/* t: of TERN_FORM_PLAIN, else NULL. */
static int pack_quant_panel(const struct tern_packed *w, const struct weight_type *t, uint8_t *panel,
                            const struct tern_weight_source *s, int row0, int rows, tern_error *err)
{
    struct tern_panel_layout l = tern_panel_layout(w);
    struct weight_block blk = {0};
    const size_t unit = tern_codes_unit(w->codes), elems = t ? (size_t)t->elems : TERN_BLOCK;
    const size_t blocks = (size_t)w->k / elems, inner = elems / TERN_BLOCK;
    for (int j = 0; j < rows; j++) {
        for (size_t b = 0; b < blocks; b++) {
            const size_t row = (size_t)(row0 + j), at = row * blocks + b;
            if (t)
                t->unpack(&blk, (const uint8_t *)s->data + at * (size_t)t->bytes);
            else
                tern_weight_form_read(&blk, w, s, row, b);
            if (w->scales == TERN_SCALES_G16)
                blk.m = tern_f32_bits(0.5f * row_factor(s, row)); /* the table holds doubled values */
            const char *fault = block_fault(w, elems, &blk);
            if (fault)
                return refuse_block(s, t, &blk, row,
                                    t           ? at
                                    : s->turned ? b * TERN_BLOCK * (size_t)s->n_stored + row
                                                : at * TERN_BLOCK,
                                    fault, err);
            for (size_t i = 0; i < inner; i++)
                put_block(w->codes, panel + (b * inner + i) * unit, j, blk.quad + 8 * i);
            put_scales(w, &l, panel, j, b, elems, &blk);
        }
    }
    return 0;
}

int tern_weight_pack(const struct tern_packed *w, void *dst, const struct tern_weight_source *s, int panel0, int panel1,
                     tern_error *err)
{
    const struct weight_type *t = s->form == TERN_FORM_PLAIN ? tern_weight_type(s->type) : NULL;
    TERN_ASSERT(s->form != TERN_FORM_PLAIN || (t && t->kind.codes == w->codes && t->kind.scales == w->scales));
    for (int p = panel0; p < panel1; p++) {
        uint8_t *panel = (uint8_t *)dst + (size_t)p * w->panel_bytes;
        int row0 = p * TERN_PANEL, rows = w->n - row0 < TERN_PANEL ? w->n - row0 : TERN_PANEL;
        if (rows < TERN_PANEL || !tern_codes_float(w->codes)) /* else every byte is written */
            memset(panel, 0, w->panel_bytes);
        int rc = tern_codes_float(w->codes) ? pack_float_panel(w, panel, s, row0, rows, err)
                                            : pack_quant_panel(w, t, panel, s, row0, rows, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

#include "codec/codec.h"
#include "codec/weight_block.h"

#include <string.h>

static bool finite_f16(uint16_t h)
{
    return (h & 0x7C00u) != 0x7C00u;
}

static int refuse(tern_error *err, const char *name, int row, size_t offset, const char *what)
{
    return tern_err_set(err, TERN_EFORMAT, "tensor %s: the %s of row %d at byte %zu of the tensor is not finite", name,
                        what, row, offset);
}

/* ---- float weights ---- */

/* Elements are turned from rows into columns; `size` is 2 or 4 bytes, and an element is not finite when all bits of
 * `exponent` are set. */
static int pack_float_row(uint8_t *panel, int j, const uint8_t *src, int k, size_t size, uint32_t exponent)
{
    for (int i = 0; i < k; i++) {
        uint32_t bits = 0;
        memcpy(&bits, src + (size_t)i * size, size);
        if ((bits & exponent) == exponent)
            return i;
        memcpy(panel + ((size_t)i * TERN_PANEL + (size_t)j) * size, &bits, size);
    }
    return -1;
}

static int pack_float_panel(const struct tern_packed *w, const struct weight_type *t, uint8_t *panel,
                            const uint8_t *src, const char *name, int row0, int rows, tern_error *err)
{
    size_t size = (size_t)t->bytes, row_bytes = size * (size_t)w->k;
    uint32_t exponent = t->codes == TERN_CODES_F32 ? 0x7F800000u : t->codes == TERN_CODES_F16 ? 0x7C00u : 0x7F80u;
    for (int j = 0; j < rows; j++) {
        size_t at = (size_t)(row0 + j) * row_bytes;
        int bad = pack_float_row(panel, j, src + at, w->k, size, exponent);
        if (bad >= 0)
            return refuse(err, name, row0 + j, at + (size_t)bad * size, "weight");
    }
    return 0;
}

/* ---- quantised weights ---- */

static void put(uint8_t *vec, int j, uint32_t word)
{
    memcpy(vec + 4 * j, &word, 4);
}

/* Row j's 32 codes into a block of the panel; see kernel/pack.h. */
static void put_block(enum tern_codes codes, uint8_t *dst, int j, const uint32_t quad[8])
{
    if (codes == TERN_CODES_S8) {
        for (int g = 0; g < 8; g++)
            put(dst + g * TERN_VEC, j, quad[g]);
        return;
    }
    for (int g = 0; g < 4; g++)
        put(dst + g * TERN_VEC, j, (quad[g] & 0x0F0F0F0Fu) | (quad[g + 4] & 0x0F0F0F0Fu) << 4);
    if (codes == TERN_CODES_U5) {
        uint32_t plane = 0;
        for (int g = 0; g < 8; g++)
            plane |= (quad[g] >> 4 & 0x01010101u) << g;
        put(dst + 4 * TERN_VEC, j, plane);
    } else if (codes == TERN_CODES_U6) {
        for (int v = 0; v < 2; v++) {
            uint32_t plane = 0;
            for (int t = 0; t < 4; t++)
                plane |= (quad[4 * v + t] >> 4 & 0x03030303u) << (2 * t);
            put(dst + (4 + v) * TERN_VEC, j, plane);
        }
    }
}

/* The scales of file block `b` of row j. */
static void put_scales(const struct tern_packed *w, const struct tern_panel_layout *l, uint8_t *panel, int j, int b,
                       const struct weight_block *blk)
{
    size_t at = (size_t)b * TERN_PANEL + (size_t)j;
    memcpy(panel + l->d + 2 * at, &blk->d, 2);
    if (l->m)
        memcpy(panel + l->m + 2 * at, &blk->m, 2);
    int groups = w->scales == TERN_SCALES_K32 ? 8 : w->scales == TERN_SCALES_K16 ? 16 : 0;
    for (int g = 0; g < groups; g++) {
        size_t to = ((size_t)b * (size_t)groups + (size_t)g) * TERN_PANEL + (size_t)j;
        panel[l->a + to] = blk->a[g];
        if (l->b)
            panel[l->b + to] = blk->b[g];
    }
}

static int pack_quant_panel(const struct tern_packed *w, const struct weight_type *t, uint8_t *panel,
                            const uint8_t *src, const char *name, int row0, int rows, tern_error *err)
{
    struct tern_panel_layout l = tern_panel_layout(w->codes, w->scales, w->k);
    struct weight_block blk = {0};
    size_t unit = tern_codes_unit(w->codes);
    int blocks = w->k / t->elems, inner = t->elems / TERN_BLOCK;
    for (int j = 0; j < rows; j++) {
        for (int b = 0; b < blocks; b++) {
            size_t at = ((size_t)(row0 + j) * (size_t)blocks + (size_t)b) * (size_t)t->bytes;
            t->unpack(&blk, src + at);
            if (!finite_f16(blk.d))
                return refuse(err, name, row0 + j, at, "scale of the block");
            if (!finite_f16(blk.m))
                return refuse(err, name, row0 + j, at, "minimum of the block");
            for (int i = 0; i < inner; i++)
                put_block(w->codes, panel + ((size_t)b * (size_t)inner + (size_t)i) * unit, j, blk.quad + 8 * i);
            put_scales(w, &l, panel, j, b, &blk);
        }
    }
    return 0;
}

int tern_weight_pack(const struct tern_packed *w, void *dst, const struct tern_weight_source *s, int panel0, int panel1,
                     tern_error *err)
{
    const struct weight_type *t = tern_weight_type(s->type);
    TERN_ASSERT(t && t->codes == w->codes && t->scales == w->scales);
    for (int p = panel0; p < panel1; p++) {
        uint8_t *panel = (uint8_t *)dst + (size_t)p * w->panel_bytes;
        int row0 = p * TERN_PANEL, rows = w->n - row0 < TERN_PANEL ? w->n - row0 : TERN_PANEL;
        memset(panel, 0, w->panel_bytes);
        int rc = tern_codes_float(w->codes) ? pack_float_panel(w, t, panel, s->data, s->name, row0, rows, err)
                                            : pack_quant_panel(w, t, panel, s->data, s->name, row0, rows, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

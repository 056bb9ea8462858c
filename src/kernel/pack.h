/* kernel/pack.h - where everything lies inside a panel of packed weights.
 *
 * A panel holds 16 consecutive output rows of the matrix, all k inputs:
 *
 *   [codes][scale region][scale region] ...       each padded to 64 bytes, in the order given below
 *
 * Codes come in blocks of 32 inputs.  The unit is a vector of 64 bytes = 16 rows x 4 consecutive inputs (a `quad`):
 * byte 4*row + i belongs to input 4*quad + i of the block.  That is what dot-product instructions want: each 32-bit
 * lane is one row, and the four activations of a quad are broadcast to all lanes.  A block has quads 0..7.
 *
 *   S8   512 bytes  vector q is quad q, signed bytes
 *   U4   256 bytes  vector j (0..3): low nibbles are quad j, high nibbles quad j+4
 *   U5   320 bytes  as U4, then a vector whose bit q of each byte is bit 4 of quad q's code
 *   U6   384 bytes  as U4, then two vectors v (0, 1) whose bits 2t, 2t+1 of each byte are bits 4, 5 of quad 4v+t
 *   float codes     no blocks: element (input, row) lies at index 16*input + row
 *
 * Scale regions (blocks = k/32, supers = k/256; every row of a region has 16 entries, one per output row):
 *   F16    f16 d[blocks]
 *   F16M   f16 d[blocks], f16 m[blocks]
 *   K32    f16 d[supers], f16 dmin[supers], u8 a[blocks], u8 b[blocks]
 *   K16    f16 d[supers], i8 s[2*blocks]
 *
 * Only static inline arithmetic here, so that every instruction-set folder may include it. */
#ifndef TERN_KERNEL_PACK_H
#define TERN_KERNEL_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/fp16.h"
#include "kernel/gemm.h"

#define TERN_PACK_LAYOUT 1 /* number of this layout, in files that keep panels: raised with every change of it */

#define TERN_BLOCK 32  /* inputs that share an activation scale */
#define TERN_SUPER 256 /* inputs that share d of K32 and K16 */
#define TERN_VEC   64  /* bytes of one vector of the layout */

/* Byte offsets inside a panel; those that the scale kind does not have are 0. */
struct tern_panel_layout {
    size_t d, m, a, b; /* m: minimum (F16M) or dmin (K32); a: scales of K32 and K16; b: minimum factors of K32 */
    size_t bytes;
};

static inline bool tern_codes_float(enum tern_codes codes)
{
    return codes <= TERN_CODES_BF16;
}

/* Bytes of a block of 32 inputs x 16 rows, or of one input x 16 rows of float codes. */
static inline size_t tern_codes_unit(enum tern_codes codes)
{
    switch (codes) {
    case TERN_CODES_F32:
        return TERN_PANEL * 4;
    case TERN_CODES_F16:
    case TERN_CODES_BF16:
        return TERN_PANEL * 2;
    case TERN_CODES_U4:
        return 4 * TERN_VEC;
    case TERN_CODES_U5:
        return 5 * TERN_VEC;
    case TERN_CODES_U6:
        return 6 * TERN_VEC;
    case TERN_CODES_S8:
        break;
    }
    return 8 * TERN_VEC;
}

/* Appends a region of `bytes` and returns its offset. */
static inline size_t tern_panel_region(size_t *end, size_t bytes)
{
    size_t at = *end;
    *end = (at + bytes + TERN_VEC - 1) / TERN_VEC * TERN_VEC;
    return at;
}

static inline struct tern_panel_layout tern_panel_layout(enum tern_codes codes, enum tern_scales scales, int k)
{
    size_t blocks = (size_t)k / TERN_BLOCK, supers = (size_t)k / TERN_SUPER, end = 0;
    struct tern_panel_layout l = {0};
    tern_panel_region(&end, tern_codes_unit(codes) * (tern_codes_float(codes) ? (size_t)k : blocks));
    switch (scales) {
    case TERN_SCALES_NONE:
        break;
    case TERN_SCALES_F16:
        l.d = tern_panel_region(&end, blocks * TERN_PANEL * 2);
        break;
    case TERN_SCALES_F16M:
        l.d = tern_panel_region(&end, blocks * TERN_PANEL * 2);
        l.m = tern_panel_region(&end, blocks * TERN_PANEL * 2);
        break;
    case TERN_SCALES_K32:
        l.d = tern_panel_region(&end, supers * TERN_PANEL * 2);
        l.m = tern_panel_region(&end, supers * TERN_PANEL * 2);
        l.a = tern_panel_region(&end, blocks * TERN_PANEL);
        l.b = tern_panel_region(&end, blocks * TERN_PANEL);
        break;
    case TERN_SCALES_K16:
        l.d = tern_panel_region(&end, supers * TERN_PANEL * 2);
        l.a = tern_panel_region(&end, 2 * blocks * TERN_PANEL);
        break;
    }
    l.bytes = end;
    return l;
}

static inline int tern_panels(const struct tern_packed *w)
{
    return (int)(((size_t)w->n + TERN_PANEL - 1) / TERN_PANEL);
}

/* One panel for reading. */
struct tern_panel_view {
    const uint8_t *codes;
    const uint16_t *d, *m;
    const uint8_t *a, *b;
};

static inline struct tern_panel_view tern_panel_view(const struct tern_packed *w, const struct tern_panel_layout *l,
                                                     int panel)
{
    const uint8_t *p = w->data + (size_t)panel * w->panel_bytes;
    struct tern_panel_view v = {p, (const uint16_t *)(const void *)(p + l->d),
                                (const uint16_t *)(const void *)(p + l->m), p + l->a, p + l->b};
    return v;
}

/* The integer code of input `i` (0..31) of row `row` (0..15) in the block at `block`. */
static inline int tern_block_code(enum tern_codes codes, const uint8_t *block, int i, int row)
{
    int quad = i / 4, lane = 4 * row + i % 4;
    if (codes == TERN_CODES_S8)
        return (int8_t)block[quad * TERN_VEC + lane];
    int c = block[quad % 4 * TERN_VEC + lane] >> (quad / 4 * 4) & 15;
    const uint8_t *high = block + 4 * TERN_VEC;
    if (codes == TERN_CODES_U5)
        c |= (high[lane] >> quad & 1) << 4;
    else if (codes == TERN_CODES_U6)
        c |= (high[quad / 4 * TERN_VEC + lane] >> quad % 4 * 2 & 3) << 4;
    return c;
}

/* The float weight of input `i` of row `row` in a panel of float codes. */
static inline float tern_float_code(enum tern_codes codes, const uint8_t *panel, size_t i, int row)
{
    size_t at = i * TERN_PANEL + (size_t)row;
    if (codes == TERN_CODES_F32)
        return ((const float *)(const void *)panel)[at];
    uint16_t h = ((const uint16_t *)(const void *)panel)[at];
    return codes == TERN_CODES_F16 ? tern_f16_to_f32(h) : tern_bf16_to_f32(h);
}

/* Scale and added minimum of half block `half` (16 inputs; only K16 tells the halves of a block apart). */
static inline void tern_group_scale(enum tern_scales scales, const struct tern_panel_view *v, int half, int row,
                                    float *scale, float *minimum)
{
    size_t block = (size_t)half / 2 * TERN_PANEL + (size_t)row;
    size_t super = (size_t)half / 16 * TERN_PANEL + (size_t)row;
    *scale = 1;
    *minimum = 0;
    switch (scales) {
    case TERN_SCALES_NONE:
        break;
    case TERN_SCALES_F16:
        *scale = tern_f16_to_f32(v->d[block]);
        break;
    case TERN_SCALES_F16M:
        *scale = tern_f16_to_f32(v->d[block]);
        *minimum = tern_f16_to_f32(v->m[block]);
        break;
    case TERN_SCALES_K32:
        *scale = tern_f16_to_f32(v->d[super]) * (float)v->a[block];
        *minimum = -(tern_f16_to_f32(v->m[super]) * (float)v->b[block]);
        break;
    case TERN_SCALES_K16:
        *scale = tern_f16_to_f32(v->d[super]) * (float)(int8_t)v->a[(size_t)half * TERN_PANEL + (size_t)row];
        break;
    }
}

#endif

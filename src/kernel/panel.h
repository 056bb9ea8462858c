/* kernel/panel.h - reading panels of packed weights (pack.h): codes, scales, and what to ask memory for ahead.
 *
 * Only static inline arithmetic here, so that every instruction-set folder may include it. */
#ifndef TERN_KERNEL_PANEL_H
#define TERN_KERNEL_PANEL_H

#include <stdbool.h>
#include "base/cpu.h"
#include "kernel/pack.h"

/* One panel for reading. */
struct tern_panel_view {
    const uint8_t *codes;
    const uint16_t *d, *m; /* of the G kinds: whatever the types say */
    const uint8_t *a, *b;
    enum tern_number d_type, m_type;
    int shift; /* G kinds: group = 16 << shift */
    float unit;
    const int8_t *table;
};

static inline struct tern_panel_view tern_panel_view(const struct tern_packed *w, const struct tern_panel_layout *l,
                                                     int panel)
{
    const uint8_t *p = w->data + (size_t)panel * w->panel_bytes;
    struct tern_panel_view v = {.codes = p,
                                .d = (const uint16_t *)(const void *)(p + l->d),
                                .m = (const uint16_t *)(const void *)(p + l->m),
                                .a = p + l->a,
                                .b = p + l->b,
                                .d_type = w->d_type,
                                .m_type = w->m_type,
                                .shift = w->group == 128 ? 3 : w->group / 32,
                                .unit = w->unit,
                                .table = w->table};
    return v;
}

/* Number `i` of a region of the G kinds; of ZERO the byte itself. */
static inline float tern_number_at(enum tern_number type, const void *region, size_t i)
{
    const uint8_t *bytes = region;
    const uint16_t *halves = region;
    const float *floats = region;
    switch (type) {
    case TERN_NUMBER_F32:
        return floats[i];
    case TERN_NUMBER_F16:
        return tern_f16_to_f32(halves[i]);
    case TERN_NUMBER_BF16:
        return tern_bf16_to_f32(halves[i]);
    case TERN_NUMBER_E8M0:
        return tern_e8m0_to_f32(bytes[i]);
    case TERN_NUMBER_E4M3:
        return tern_e4m3_to_f32(bytes[i]);
    case TERN_NUMBER_ZERO:
        break;
    }
    return (float)bytes[i];
}

/* The integer code of input `i` (0..31) of row `row` (0..15) in the block at `block`: of table codes the value. */
static inline int tern_block_code(enum tern_codes codes, const int8_t *table, const uint8_t *block, int i, int row)
{
    int quad = i / 4, lane = 4 * row + i % 4, c;
    if (codes == TERN_CODES_S8)
        return (int8_t)block[quad * TERN_VEC + lane];
    if (codes == TERN_CODES_U2 || codes == TERN_CODES_U3 || codes == TERN_CODES_T3) {
        c = block[quad / 4 * TERN_VEC + lane] >> (quad % 4 * 2) & 3;
        if (codes != TERN_CODES_U2)
            c |= (block[2 * TERN_VEC + lane] >> quad & 1) << 2;
        return codes == TERN_CODES_T3 ? table[c] : c;
    }
    c = block[quad % 4 * TERN_VEC + lane] >> (quad / 4 * 4) & 15;
    const uint8_t *high = block + 4 * TERN_VEC;
    if (codes == TERN_CODES_U5)
        c |= (high[lane] >> quad & 1) << 4;
    else if (codes == TERN_CODES_U6)
        c |= (high[quad / 4 * TERN_VEC + lane] >> quad % 4 * 2 & 3) << 4;
    return codes == TERN_CODES_T4 ? table[c] : c;
}

/* The code of input i of row `row` of a panel that is not one of float codes: integers, and E4M3. */
static inline float tern_panel_code(enum tern_codes codes, const struct tern_panel_view *v, size_t i, int row)
{
    const uint8_t *block = v->codes + i / TERN_BLOCK * tern_codes_unit(codes);
    int at = (int)(i % TERN_BLOCK);
    if (codes == TERN_CODES_E4M3)
        return tern_e4m3_to_f32(block[at / 4 * TERN_VEC + 4 * row + at % 4]);
    return (float)tern_block_code(codes, v->table, block, at, row);
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

/* Scale and added minimum of half block `half` (16 inputs; see tern_scales_halves). */
static inline void tern_group_scale(enum tern_scales scales, const struct tern_panel_view *v, int half, int row,
                                    float *scale, float *minimum)
{
    size_t block = (size_t)half / 2 * TERN_PANEL + (size_t)row, at = (size_t)half * TERN_PANEL + (size_t)row;
    size_t super = (size_t)half / 16 * TERN_PANEL + (size_t)row;
    size_t group = ((size_t)half >> v->shift) * TERN_PANEL + (size_t)row;
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
    case TERN_SCALES_K16M:
        *scale = tern_f16_to_f32(v->d[super]) * (float)(v->a[at] & 15);
        *minimum = -(tern_f16_to_f32(v->m[super]) * (float)(v->a[at] >> 4));
        break;
    case TERN_SCALES_K32S:
        *scale = tern_f16_to_f32(v->d[super]) * v->unit * (float)(int8_t)v->a[block];
        break;
    case TERN_SCALES_K16:
        *scale = tern_f16_to_f32(v->d[super]) * v->unit * (float)(int8_t)v->a[at];
        break;
    case TERN_SCALES_G16:
        *scale = tern_number_at(v->d_type, v->d, group) * tern_number_at(TERN_NUMBER_F32, v->m, (size_t)row);
        break;
    case TERN_SCALES_G32:
        *scale = tern_number_at(v->d_type, v->d, group) * v->unit;
        break;
    case TERN_SCALES_G32M:
        *scale = tern_number_at(v->d_type, v->d, group);
        *minimum = tern_number_at(v->m_type, v->m, group);
        if (v->m_type == TERN_NUMBER_ZERO)
            *minimum = -(*scale * *minimum);
        break;
    }
}

/* How far ahead of itself a product asks for codes, in panels (in bytes) and blocks, and into which cache. */
struct tern_ahead {
    size_t bytes, blocks;
    bool near; /* the first; false: the second */
};

/* Bytes of codes.  A request into the first cache holds one of the few places that loads wait in; where memory binds
 * that is worse than none (decision 042), but not on processors that say so (074). */
#define TERN_AHEAD      8192
#define TERN_AHEAD_NEAR 6144

static inline struct tern_ahead tern_ahead_of(const struct tern_packed *w)
{
    const bool near = tern_cpu_asks_near();
    const size_t n = (near ? TERN_AHEAD_NEAR : TERN_AHEAD) / tern_codes_unit(w->codes);
    const size_t blocks = (size_t)w->k / TERN_BLOCK;
    return (struct tern_ahead){n / blocks * w->panel_bytes, n % blocks, near};
}

#define TERN_AHEAD_INLINE static inline __attribute__((always_inline))

TERN_AHEAD_INLINE void tern_prefetch(const char *p, bool near)
{
    if (near)
        __builtin_prefetch(p, 0, 3);
    else
        __builtin_prefetch(p, 0, 2);
}

/* Block `next` of the panel `jump` bytes further on; all but v, next and jump is constant. */
TERN_AHEAD_INLINE void tern_prefetch_at(enum tern_codes codes, enum tern_scales scales, const struct tern_panel_view *v,
                                        size_t next, size_t jump, bool near)
{
    const size_t unit = tern_codes_unit(codes);
    const char *c = (const char *)v->codes + jump + next * unit;
#pragma GCC unroll 8
    for (size_t line = 0; line < unit; line += 64)
        tern_prefetch(c + line, near);
    const char *d = (const char *)v->d + jump, *m = (const char *)v->m + jump;
    const size_t small = next * TERN_PANEL * (tern_scales_halves(scales) ? 2 : 1);
    if (scales == TERN_SCALES_F16 || scales == TERN_SCALES_F16M)
        tern_prefetch(d + next * TERN_PANEL * 2, near);
    if (scales == TERN_SCALES_F16M)
        tern_prefetch(m + next * TERN_PANEL * 2, near);
    if (scales == TERN_SCALES_K32)
        tern_prefetch((const char *)v->b + jump + small, near);
    if (tern_scales_super(scales))
        tern_prefetch((const char *)v->a + jump + small, near);
    if (scales >= TERN_SCALES_G16)
        tern_prefetch(d + (2 * next >> v->shift) * TERN_PANEL * tern_number_bytes(v->d_type), near);
    if (scales == TERN_SCALES_G32M)
        tern_prefetch(m + (2 * next >> v->shift) * TERN_PANEL * tern_number_bytes(v->m_type), near);
}

/* Asks for what a product will read when it is `ahead` of block b of a panel.  Behind the last block comes the next
 * panel, panel_bytes further on; asking beyond the matrix does no harm.  codes and scales are constants of the caller.
 */
TERN_AHEAD_INLINE void tern_prefetch_block(enum tern_codes codes, enum tern_scales scales,
                                           const struct tern_panel_view *v, size_t b, const struct tern_ahead *ahead,
                                           size_t blocks, size_t panel_bytes)
{
    size_t next = b + ahead->blocks, jump = ahead->bytes;
    if (next >= blocks) {
        next -= blocks;
        jump += panel_bytes;
    }
    if (ahead->near)
        tern_prefetch_at(codes, scales, v, next, jump, true);
    else
        tern_prefetch_at(codes, scales, v, next, jump, false);
}

#endif

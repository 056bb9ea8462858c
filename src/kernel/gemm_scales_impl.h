/* kernel/gemm_scales_impl.h - the scales of a block of packed weights, for several rows of a panel at once: the part of
 * kernel/<isa>/gemm_block.h that is the same for all instruction sets.
 *
 * Before it is included these are defined:
 *
 *     GEMM_ROWS               type: a float for each of some rows that follow each other in a panel
 *     ROWS_ZERO               of that type, all 0
 *     rows_half(p)            f16 numbers, one for each row
 *     rows_u8(p), rows_i8(p)  bytes as numbers
 *     rows_low(p), rows_high(p)   the low and the high four bits of bytes
 *     rows_number(type, p, at)    numbers of a region of the G kinds from place `at` on
 *     rows_product(a, b), rows_times(a, f)    row by row; every row times the float f
 *
 * `first` is the first of the rows in its panel.  Everything is inlined with constant `scales`. */
#ifndef TERN_KERNEL_GEMM_SCALES_IMPL_H
#define TERN_KERNEL_GEMM_SCALES_IMPL_H

#include "kernel/gemm.h"
#include "kernel/panel.h"

#ifdef GEMM_ROWS

/* Scales of 256 inputs (K kinds): what group_scale needs beside the scales of smaller groups. */
struct super {
    GEMM_ROWS d, m;
};

static inline __attribute__((always_inline)) struct super
super_scale(enum tern_scales scales, const struct tern_panel_view *v, size_t super, size_t first)
{
    const size_t at = super * TERN_PANEL + first;
    struct super s;
    s.d = s.m = ROWS_ZERO;
    if (tern_scales_super(scales))
        s.d = rows_half(v->d + at);
    if (scales == TERN_SCALES_K32S || scales == TERN_SCALES_K16)
        s.d = rows_times(s.d, v->unit);
    if (tern_scales_minus(scales))
        s.m = rows_half(v->m + at);
    return s;
}

/* Scale and minimum for the 16 inputs number `half`; products as in kernel/gemm.h.  The minimum of kinds of
 * tern_scales_minus is to be subtracted, that of others added. */
static inline __attribute__((always_inline)) void group_scale(enum tern_scales scales, const struct tern_panel_view *v,
                                                              const struct super *super, size_t half, size_t first,
                                                              GEMM_ROWS *scale, GEMM_ROWS *minimum)
{
    const size_t block = half / 2 * TERN_PANEL + first, at = half * TERN_PANEL + first;
    const size_t group = (half >> v->shift) * TERN_PANEL + first;
    *minimum = ROWS_ZERO;
    switch (scales) {
    case TERN_SCALES_F16M:
        *scale = rows_half(v->d + block);
        *minimum = rows_half(v->m + block);
        break;
    case TERN_SCALES_K32:
        *scale = rows_product(super->d, rows_u8(v->a + block));
        *minimum = rows_product(super->m, rows_u8(v->b + block));
        break;
    case TERN_SCALES_K16M:
        *scale = rows_product(super->d, rows_low(v->a + at));
        *minimum = rows_product(super->m, rows_high(v->a + at));
        break;
    case TERN_SCALES_K32S:
        *scale = rows_product(super->d, rows_i8(v->a + block));
        break;
    case TERN_SCALES_K16:
        *scale = rows_product(super->d, rows_i8(v->a + at));
        break;
    case TERN_SCALES_G16:
        *scale = rows_product(rows_number(v->d_type, v->d, group), rows_number(TERN_NUMBER_F32, v->m, first));
        break;
    case TERN_SCALES_G32:
        *scale = rows_times(rows_number(v->d_type, v->d, group), v->unit);
        break;
    case TERN_SCALES_G32M:
        *scale = rows_number(v->d_type, v->d, group);
        *minimum = rows_number(v->m_type, v->m, group);
        if (v->m_type == TERN_NUMBER_ZERO)
            *minimum = rows_times(rows_product(*scale, *minimum), -1);
        break;
    default:
        *scale = rows_half(v->d + block);
    }
}

#endif
#endif

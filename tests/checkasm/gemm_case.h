/* tests/checkasm/gemm_case.h - made-up weights and the places of a product, for the families gemm and bf16. */
#ifndef CHECK_GEMM_CASE_H
#define CHECK_GEMM_CASE_H

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "checkasm.h"
#include "kernel/panel.h"

struct format {
    const char *name;
    int step;                /* k is a multiple of this */
    struct tern_packed kind; /* all but n, k and the data */
};

/* The ends of the range where constant bytes of codes lead to: 0xFF, 0x80, 0x7F. */
#define ANY_TABLE                                                              \
    {                                                                          \
        -128, 3, -77, 127, 12, -5, 64, 127, -128, 99, -31, 0, 55, -100, 1, 127 \
    }

/* Of the G kinds at least one of every pair of codes and scales, every type of number and every size of group. */
static const struct format formats[] = {
#define FORMAT(name, step, code, scale, ...)                                       \
    {                                                                              \
        name, step,                                                                \
        {                                                                          \
            .codes = TERN_CODES_##code, .scales = TERN_SCALES_##scale, __VA_ARGS__ \
        }                                                                          \
    }
#define NUMBERS(size, d, m) .group = (size), .d_type = TERN_NUMBER_##d, .m_type = TERN_NUMBER_##m
    FORMAT("F32", 1, F32, NONE, .zero = 0),
    FORMAT("F16", 1, F16, NONE, .zero = 0),
    FORMAT("BF16", 1, BF16, NONE, .zero = 0),
    FORMAT("U4.F16", 32, U4, F16, .zero = 8),
    FORMAT("U4.F16M", 32, U4, F16M, .zero = 0),
    FORMAT("U4.K32", 256, U4, K32, .zero = 0),
    FORMAT("U5.F16", 32, U5, F16, .zero = 16),
    FORMAT("U5.F16M", 32, U5, F16M, .zero = 0),
    FORMAT("U5.K32", 256, U5, K32, .zero = 0),
    FORMAT("U6.K16", 256, U6, K16, .zero = 32, .unit = 1),
    FORMAT("S8.F16", 32, S8, F16, .zero = 0),
    FORMAT("U2.K16M", 256, U2, K16M, .zero = 0),
    FORMAT("U3.K16", 256, U3, K16, .zero = 4, .unit = 1),
    FORMAT("T3.K32S", 256, T3, K32S, .unit = 0.125f, .table = ANY_TABLE),
    FORMAT("T3.K16", 256, T3, K16, .unit = 0.125f, .table = ANY_TABLE),
    FORMAT("T4.K32S", 256, T4, K32S, .unit = 1, .table = ANY_TABLE),
    FORMAT("T4.G16 E4M3", 32, T4, G16, .table = ANY_TABLE, NUMBERS(16, E4M3, F32)),
    FORMAT("T4.G32 E8M0", 32, T4, G32, .unit = 0.5f, .table = ANY_TABLE, NUMBERS(32, E8M0, F32)),
    FORMAT("T4.G32 F16", 32, T4, G32, .unit = 1, .table = ANY_TABLE, NUMBERS(32, F16, F32)),
    FORMAT("U2.G32M F16x64", 32, U2, G32M, NUMBERS(64, F16, F16)),
    FORMAT("U3.G32M BF16x128", 32, U3, G32M, NUMBERS(128, BF16, BF16)),
    FORMAT("U4.G32M BF16x64", 32, U4, G32M, NUMBERS(64, BF16, BF16)),
    FORMAT("U4.G32M F16Zx128", 32, U4, G32M, NUMBERS(128, F16, ZERO)),
    FORMAT("U5.G32M F32x32", 32, U5, G32M, NUMBERS(32, F32, F32)),
    FORMAT("U6.G32M F32x64", 32, U6, G32M, NUMBERS(64, F32, F32)),
    FORMAT("S8.G32M BF16x32", 32, S8, G32M, .zero = -128, NUMBERS(32, BF16, BF16)),
    FORMAT("E4M3.G32 F32x128", 32, E4M3, G32, .unit = 1, NUMBERS(128, F32, F32)),
    FORMAT("E4M3.G32 E8M0", 32, E4M3, G32, .unit = 1, NUMBERS(32, E8M0, F32)),
#undef NUMBERS
#undef FORMAT
};
#define N_FORMATS ((int)(sizeof formats / sizeof *formats))

/* ---- made-up weights ---- */

/* Fills a region of f16 values with finite numbers of the given kind. */
static void fill_halves(uint8_t *p, size_t bytes, enum check_fill kind)
{
    check_fill_f16((uint16_t *)(void *)p, bytes / 2, kind);
}

/* Numbers of a scale region, finite and such that sums of products stay finite. */
static void fill_numbers(uint8_t *p, size_t bytes, enum tern_number type, enum check_fill kind)
{
    for (size_t i = 0; i < bytes / tern_number_bytes(type); i++) {
        float f;
        check_fill_f32(&f, 1, kind);
        f = kind == CHECK_HUGE ? f * 1e-12f : f;
        if (type == TERN_NUMBER_F32)
            ((float *)(void *)p)[i] = f;
        else if (type == TERN_NUMBER_F16)
            fill_halves(p + 2 * i, 2, kind);
        else if (type == TERN_NUMBER_BF16)
            ((uint16_t *)(void *)p)[i] = tern_f32_to_bf16(f);
        else if (type == TERN_NUMBER_E4M3 && (p[i] & 0x7F) == 0x7F)
            p[i] = 0x7E;
        else if (type == TERN_NUMBER_E8M0)
            p[i] = p[i] % 8 ? 100 + p[i] / 8 : p[i] / 64;
    }
}

static void fill_panel(const struct tern_packed *w, const struct tern_panel_layout *l, uint8_t *p, enum check_fill kind)
{
    check_fill_bytes(p, l->bytes);
    size_t elems = (size_t)w->k * TERN_PANEL;
    if (w->codes == TERN_CODES_F32)
        check_fill_f32((float *)(void *)p, elems, kind);
    else if (w->codes == TERN_CODES_F16)
        fill_halves(p, elems * 2, kind);
    else if (w->codes == TERN_CODES_BF16) {
        for (size_t i = 0; i < elems; i++) {
            float f;
            check_fill_f32(&f, 1, kind);
            ((uint16_t *)(void *)p)[i] = tern_f32_to_bf16(f);
        }
    } else if (w->codes == TERN_CODES_E4M3)
        fill_numbers(p, elems, TERN_NUMBER_E4M3, kind);
    /* Regions end where the next begins. */
    enum tern_number d = w->group ? w->d_type : TERN_NUMBER_F16, m = w->group ? w->m_type : TERN_NUMBER_F16;
    size_t after_m = l->a ? l->a : l->bytes, after_d = l->m ? l->m : after_m;
    if (l->d)
        fill_numbers(p + l->d, after_d - l->d, d, kind);
    if (l->m)
        fill_numbers(p + l->m, after_m - l->m, m, kind);
}

static struct tern_packed make_weights(const struct format *f, int n, int k, enum check_fill kind)
{
    struct tern_packed w = f->kind;
    w.n = n;
    w.k = k;
    struct tern_panel_layout l = tern_panel_layout(&w);
    w.panel_bytes = l.bytes;
    size_t bytes = (size_t)tern_panels(&w) * l.bytes + TERN_VEC;
    uint8_t *data = check_buf(bytes, 64);
    for (int p = 0; p < tern_panels(&w); p++)
        fill_panel(&w, &l, data + (size_t)p * l.bytes, kind);
    check_fill_bytes(data + bytes - TERN_VEC, TERN_VEC);
    w.data = data;
    return w;
}

/* Scale, minimum and code of weight (row, i), in double; float codes have scale 1. */
static void weight_parts(const struct tern_packed *w, int row, int i, double *scale, double *minimum, double *code)
{
    struct tern_panel_layout l = tern_panel_layout(w);
    struct tern_panel_view v = tern_panel_view(w, &l, row / TERN_PANEL);
    int j = row % TERN_PANEL;
    if (tern_codes_float(w->codes)) {
        *scale = 1;
        *minimum = 0;
        *code = tern_float_code(w->codes, v.codes, (size_t)i, j);
        return;
    }
    float s, m;
    tern_group_scale(w->scales, &v, i / 16, j, &s, &m);
    *scale = s;
    *minimum = m;
    *code = tern_panel_code(w->codes, &v, (size_t)i, j);
    if (tern_scales_zero(w->scales))
        *code -= w->zero;
}

/* Rounded once: sums in double would round twice. */
static double weight_exact(const struct tern_packed *w, int row, int i)
{
    double s, m, c;
    weight_parts(w, row, i, &s, &m, &c);
    return fmaf((float)s, (float)c, (float)m);
}

/* ---- products ---- */

struct shape {
    int n_rows, n, k;
};

struct product {
    float *y, *y_ref;
    size_t y_stride, cells;
    int panel0, panel1;
};

static struct product make_product(int n_rows, const struct tern_packed *w)
{
    struct product p;
    p.y_stride = (size_t)w->n + (size_t)check_range(0, 9);
    p.cells = (size_t)(n_rows - 1) * p.y_stride + (size_t)w->n;
    p.y = check_buf(p.cells * 4, 4);
    p.y_ref = check_buf(p.cells * 4, 4);
    int panels = tern_panels(w);
    p.panel0 = check_range(0, 2) ? 0 : check_range(0, panels - 1);
    p.panel1 = check_range(0, 2) ? panels : check_range(p.panel0, panels);
    return p;
}

/* Columns outside [panel0, panel1) and the padding between rows stay as they were. */
static void check_margins(const struct product *p, int n_rows, int n)
{
    int c0 = p->panel0 * TERN_PANEL, c1 = p->panel1 * TERN_PANEL < n ? p->panel1 * TERN_PANEL : n;
    c0 = c0 < c1 ? c0 : c1;
    for (int r = 0; r < n_rows; r++) {
        const float *row = p->y + (size_t)r * p->y_stride;
        size_t end = r + 1 < n_rows ? p->y_stride : (size_t)n;
        check_unwritten("y left of the panels", row, (size_t)c0 * 4);
        check_unwritten("y right of the panels", row + c1, (end - (size_t)c1) * 4);
    }
}

/* ---- benches ---- */

static void *map_bytes(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        abort();
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

/* Numbers of ordinary size everywhere: as codes, as halves and as floats they are finite and normal (denormals would be
 * timed instead of the kernel). */
static void fill_ordinary(uint8_t *p, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)((i * 37 >> 3 & 0x3B) | 0x20);
}

#endif

/* tests/checkasm/gemm_case.h - made-up weights and the places of a product, for the families gemm and bf16. */
#ifndef CHECK_GEMM_CASE_H
#define CHECK_GEMM_CASE_H

#include <stdlib.h>
#include <sys/mman.h>
#include "checkasm.h"
#include "kernel/pack.h"

struct format {
    const char *name;
    enum tern_codes codes;
    enum tern_scales scales;
    int zero;
    int step; /* k is a multiple of this */
};

static const struct format formats[] = {
    {"F32", TERN_CODES_F32, TERN_SCALES_NONE, 0, 1},     {"F16", TERN_CODES_F16, TERN_SCALES_NONE, 0, 1},
    {"BF16", TERN_CODES_BF16, TERN_SCALES_NONE, 0, 1},   {"U4.F16", TERN_CODES_U4, TERN_SCALES_F16, 8, 32},
    {"U4.F16M", TERN_CODES_U4, TERN_SCALES_F16M, 0, 32}, {"U4.K32", TERN_CODES_U4, TERN_SCALES_K32, 0, 256},
    {"U5.F16", TERN_CODES_U5, TERN_SCALES_F16, 16, 32},  {"U5.F16M", TERN_CODES_U5, TERN_SCALES_F16M, 0, 32},
    {"U5.K32", TERN_CODES_U5, TERN_SCALES_K32, 0, 256},  {"U6.K16", TERN_CODES_U6, TERN_SCALES_K16, 32, 256},
    {"S8.F16", TERN_CODES_S8, TERN_SCALES_F16, 0, 32},
};
#define N_FORMATS ((int)(sizeof formats / sizeof *formats))

/* ---- made-up weights ---- */

/* Fills a region of f16 values with finite numbers of the given kind. */
static void fill_halves(uint8_t *p, size_t bytes, enum check_fill kind)
{
    check_fill_f16((uint16_t *)(void *)p, bytes / 2, kind);
}

static void fill_panel(const struct tern_packed *w, const struct tern_panel_layout *l, uint8_t *p, enum check_fill kind)
{
    size_t supers = (size_t)w->k / TERN_SUPER * TERN_PANEL * 2, blocks = (size_t)w->k / TERN_BLOCK * TERN_PANEL * 2;
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
    }
    size_t d = w->scales == TERN_SCALES_K32 || w->scales == TERN_SCALES_K16 ? supers : blocks;
    if (l->d)
        fill_halves(p + l->d, d, kind);
    if (l->m)
        fill_halves(p + l->m, d, kind);
}

static struct tern_packed make_weights(const struct format *f, int n, int k, enum check_fill kind)
{
    struct tern_packed w = {f->codes, f->scales, f->zero, n, k, 0, NULL};
    struct tern_panel_layout l = tern_panel_layout(f->codes, f->scales, k);
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
    struct tern_panel_layout l = tern_panel_layout(w->codes, w->scales, w->k);
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
    *code = tern_block_code(w->codes, v.codes + (size_t)(i / 32) * tern_codes_unit(w->codes), i % 32, j);
    if (w->scales == TERN_SCALES_F16 || w->scales == TERN_SCALES_K16)
        *code -= w->zero;
}

static double weight_exact(const struct tern_packed *w, int row, int i)
{
    double s, m, c;
    weight_parts(w, row, i, &s, &m, &c);
    return (double)(float)(s * c + m);
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

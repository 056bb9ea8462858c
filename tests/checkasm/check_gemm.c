#include "checkasm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gemm_case.h"

/* ---- quantize ---- */

static void quantize_case(int k, enum check_fill kind)
{
    check_case("k=%d %s", k, check_fill_name(kind));
    size_t blocks = (size_t)k / 32;
    float *x = check_buf((size_t)k * 4, 4);
    int8_t *q = check_buf((size_t)k, 64), *q_ref = check_buf((size_t)k, 64);
    float *s = check_buf(blocks * 4, 64), *s_ref = check_buf(blocks * 4, 64);
    int32_t *m = check_buf(blocks * 8, 64), *m_ref = check_buf(blocks * 8, 64);
    check_fill_f32(x, (size_t)k, kind);
    tern_k.gemm.quantize(q, s, m, x, k);
    check_ref.gemm.quantize(q_ref, s_ref, m_ref, x, k);
    if (kind == CHECK_NONFINITE) { /* codes are unspecified, but the scale has to carry the news */
        for (int i = 0; i < k; i++) {
            if (!isfinite(x[i]) && isfinite(s[i / 32]))
                check_fail("x[%d] is not finite but the scale of its block is", i);
        }
        return;
    }
    check_same_bytes("q", q, q_ref, (size_t)k);
    check_same_f32("scale", s, s_ref, blocks);
    check_same_bytes("sum16", m, m_ref, blocks * 8);
    for (int i = 0; i < k; i++) {
        double step = s[i / 32], err = fabs((double)q[i] * step - x[i]);
        if (q[i] < -127 || err > step * 0.50002 + 4e-37)
            check_fail("q[%d]=%d, scale %.9g for %.9g", i, q[i], step, x[i]);
    }
    for (int h = 0; h < k / 16; h++) {
        int sum = 0;
        for (int i = 0; i < 16; i++)
            sum += q[16 * h + i];
        if (sum != m[h])
            check_fail("sum16[%d]=%d, expected %d", h, m[h], sum);
    }
}

static void part_quantize(void)
{
    static const int sizes[] = {32, 64, 96, 32 * 11, 1024};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int kind = 0; kind <= CHECK_NONFINITE; kind++)
            quantize_case(sizes[i], kind);
    }
}

static void quantize16_case(int k, enum check_fill kind)
{
    check_case("16 bits k=%d %s", k, check_fill_name(kind));
    size_t blocks = (size_t)k / 32;
    float *x = check_buf((size_t)k * 4, 4);
    int8_t *q[2], *q_ref[2];
    for (int c = 0; c < 2; c++) {
        q[c] = check_buf((size_t)k, 64);
        q_ref[c] = check_buf((size_t)k, 64);
    }
    float *s = check_buf(blocks * 4, 64), *s_ref = check_buf(blocks * 4, 64);
    int32_t *m = check_buf(blocks * 8, 64), *m_ref = check_buf(blocks * 8, 64);
    check_fill_f32(x, (size_t)k, kind);
    tern_k.gemm.quantize16(q[0], q[1], s, m, x, k);
    for (int i = 0; kind == CHECK_NONFINITE && i < k; i++) {
        if (!isfinite(x[i]) && isfinite(s[i / 32]))
            check_fail("x[%d] is not finite but the scale of its block is", i);
    }
    if (kind == CHECK_NONFINITE)
        return;
    check_ref.gemm.quantize16(q_ref[0], q_ref[1], s_ref, m_ref, x, k);
    check_same_bytes("high", q[0], q_ref[0], (size_t)k);
    check_same_bytes("low", q[1], q_ref[1], (size_t)k);
    check_same_f32("scale", s, s_ref, blocks);
    check_same_bytes("sum16", m, m_ref, blocks * 8);
    for (int i = 0; i < k; i++) { /* a low code of -128 is -127 */
        double step = s[i / 32], code = 256.0 * q[0][i] + q[1][i], err = fabs(code * step - x[i]);
        if (q[0][i] < -127 || q[1][i] < -127 || err > step * (q[1][i] == -127 ? 1.51 : 0.51) + 1e-34)
            check_fail("codes of %d: %d %d, scale %.9g for %.9g", i, q[0][i], q[1][i], step, x[i]);
    }
    for (int h = 0; h < k / 16; h++) {
        int sum = 0;
        for (int i = 16 * h; i < 16 * h + 16; i++)
            sum += 256 * q[0][i] + q[1][i];
        if (sum != m[h])
            check_fail("sum16[%d]=%d, expected %d", h, m[h], sum);
    }
}

static void part_quantize16(void)
{
    static const int sizes[] = {32, 64, 96, 32 * 11, 1024};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int kind = 0; kind <= CHECK_NONFINITE; kind++)
            quantize16_case(sizes[i], kind);
    }
}

/* ---- row ---- */

static void part_row(void)
{
    for (int f = 0; f < N_FORMATS; f++) {
        for (int kind = f % CHECK_STEP; kind < CHECK_N_FINITE; kind += CHECK_STEP) {
            int k = formats[f].step == 1 ? 37 : formats[f].step * 3, n = 21;
            check_case("%s n=%d k=%d %s", formats[f].name, n, k, check_fill_name(kind));
            struct tern_packed w = make_weights(&formats[f], n, k, kind);
            float *out = check_buf((size_t)k * 4, 4), *ref = check_buf((size_t)k * 4, 4);
            for (int row = 0; row < n; row += 5) {
                tern_k.gemm.row(out, &w, row);
                check_ref.gemm.row(ref, &w, row);
                check_same_f32("row", out, ref, (size_t)k);
                for (int i = 0; i < k; i++) {
                    if (out[i] != weight_exact(&w, row, i))
                        check_fail("row %d[%d] = %.9g, exact %.17g", row, i, out[i], weight_exact(&w, row, i));
                }
            }
        }
    }
}

/* ---- wide and narrow: common ---- */

static void check_product(const struct product *p, int n_rows, int n, const double *oracle, const double *budget)
{
    int c0 = p->panel0 * TERN_PANEL, c1 = p->panel1 * TERN_PANEL < n ? p->panel1 * TERN_PANEL : n;
    for (int r = 0; r < n_rows && c0 < c1; r++) {
        const float *y = p->y + (size_t)r * p->y_stride, *y_ref = p->y_ref + (size_t)r * p->y_stride;
        if (!check_same_f32("y", y + c0, y_ref + c0, (size_t)(c1 - c0)))
            return;
        size_t at = (size_t)r * (size_t)n + (size_t)c0;
        if (!check_budget("y", y + c0, oracle + at, budget + at, (size_t)(c1 - c0), NULL, 0))
            return;
    }
    check_margins(p, n_rows, n);
}

/* ---- wide ---- */

static void wide_case(const struct format *f, struct shape s, enum check_fill kind)
{
    check_case("%s rows=%d n=%d k=%d %s", f->name, s.n_rows, s.n, s.k, check_fill_name(kind));
    struct tern_packed w = make_weights(f, s.n, s.k, kind == CHECK_NONFINITE ? CHECK_GAUSS : kind);
    struct product p = make_product(s.n_rows, &w);
    size_t x_stride = (size_t)s.k + (size_t)check_range(0, 5);
    float *x = check_buf(((size_t)(s.n_rows - 1) * x_stride + (size_t)s.k) * 4, 4);
    float *scratch = check_buf(TERN_GEMM_SCRATCH * 4, 64), *scratch_ref = check_buf(TERN_GEMM_SCRATCH * 4, 64);
    for (int r = 0; r < s.n_rows; r++)
        check_fill_f32(x + (size_t)r * x_stride, (size_t)s.k, kind);

    size_t outs = (size_t)s.n_rows * (size_t)s.n;
    double *oracle = calloc(outs, 8), *budget = calloc(outs, 8);
    for (int n = 0; n < s.n; n++) {
        for (int i = 0; i < s.k; i++) {
            double weight = weight_exact(&w, n, i);
            for (int r = 0; r < s.n_rows; r++) {
                double term = weight * x[(size_t)r * x_stride + (size_t)i];
                oracle[r * s.n + n] += term;
                budget[r * s.n + n] += fabs(term) * (s.k + 2) * 0x1p-24 + 0x1p-149;
            }
        }
    }
    tern_k.gemm.wide(p.y, p.y_stride, x, x_stride, s.n_rows, &w, p.panel0, p.panel1, scratch);
    check_ref.gemm.wide(p.y_ref, p.y_stride, x, x_stride, s.n_rows, &w, p.panel0, p.panel1, scratch_ref);
    check_product(&p, s.n_rows, s.n, oracle, budget);
    free(oracle);
    free(budget);
}

static void part_wide(void)
{
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 25, 64};
    for (int f = 0; f < N_FORMATS; f++) {
        int step = formats[f].step;
        for (size_t i = (size_t)(f % CHECK_STEP); i < sizeof rows / sizeof *rows; i += CHECK_STEP) {
            struct shape s = {rows[i], check_range(1, 90), step == 1 ? check_range(1, 600) : step * check_range(1, 9)};
            if (step == 256)
                s.k = 256 * check_range(1, 3);
            if (rows[i] > 24)
                s.n = check_range(1, 40);
            wide_case(&formats[f], s, rows[i] % 2 ? CHECK_GAUSS : (enum check_fill)check_range(0, CHECK_NONFINITE));
        }
        for (int kind = f % CHECK_STEP; kind <= CHECK_NONFINITE; kind += CHECK_STEP)
            wide_case(&formats[f], (struct shape){5, 19, step == 1 ? 45 : step == 32 ? 32 * 9 : 512}, kind);
        /* Few rows of floats: every number of rows, panels in fours, in pairs and alone, scales of every size. */
        for (int kind = 0; kind <= CHECK_NONFINITE && !tern_codes_integer(formats[f].kind.codes); kind += CHECK_STEP) {
            for (int r = 1; r <= 8; r++)
                wide_case(&formats[f], (struct shape){r, 16 * 6 + 7, step == 1 ? 97 : 32 * 5}, kind);
        }
    }
    /* Enough rows and panels for every level of blocking. */
    wide_case(&formats[0], (struct shape){97, 16 * 17 + 3, 257}, CHECK_GAUSS);
    wide_case(&formats[3], (struct shape){100, 16 * 33 + 5, 32 * 9}, CHECK_GAUSS);
    wide_case(&formats[9], (struct shape){197, 16 * 5 + 1, 512}, CHECK_SPREAD);
}

/* ---- narrow ---- */

struct quant_rows {
    struct tern_q8_row *rows;
};

/* columns: rows that each is, two of 16 bits. */
static struct tern_q8_row *make_rows(int n_rows, int k, enum check_fill kind, int columns)
{
    static struct tern_q8_row rows[2 * 16];
    float *x = check_buf((size_t)k * 4, 4);
    uint8_t *bytes = check_buf((size_t)(n_rows * columns) * tern_q8_bytes((size_t)k), 64);
    for (int r = 0; r < n_rows * columns; r++)
        rows[r] = tern_q8_at(bytes + (size_t)r * tern_q8_bytes((size_t)k), (size_t)k);
    for (int r = 0; r < n_rows; r++) {
        const struct tern_q8_row *to = rows + r * columns;
        check_fill_f32(x, (size_t)k, kind);
        if (kind == CHECK_EQUAL) { /* the largest sums that can occur */
            for (int i = 0; i < k; i++)
                x[i] = r % 2 ? -3.0f : 3.0f;
        }
        if (columns == 1)
            check_ref.gemm.quantize((int8_t *)to->q, (float *)to->scale, (int32_t *)to->sum16, x, k);
        else
            check_ref.gemm.quantize16((int8_t *)to->q, (int8_t *)to[1].q, (float *)to->scale, (int32_t *)to->sum16, x,
                                      k);
    }
    return rows;
}

static double code_of(const struct tern_q8_row *x, int i, int columns)
{
    return columns == 1 ? x->q[i] : 256.0 * x->q[i] + x[1].q[i];
}

/* Exact sum of the narrow formula, and the rounding that its chain may add. */
static void narrow_oracle(const struct tern_packed *w, const struct tern_q8_row *x, int columns, int n, double *out,
                          double *budget)
{
    double sum = 0, mags = 0, units = w->k;
    for (int i = 0; i < w->k; i++) {
        double s, m, c, sx = x->scale[i / 32], q = code_of(x, i, columns);
        weight_parts(w, n, i, &s, &m, &c);
        sum += (s * c + m) * sx * q;
        mags += (fabs(s) * (fabs(c) + abs(w->zero)) + fabs(m)) * sx * fabs(q);
        units += (fabs(c) + abs(w->zero)) * fabs(q);
    }
    *out = sum;
    *budget =
        mags * (w->k / 16 * (columns == 1 ? 3 : 4) + 4) * 0x1p-24 + 0x1p-149 * units; /* scales may be subnormal */
}

static void narrow_case(const struct format *f, struct shape s, enum check_fill kind, int extreme, int columns)
{
    check_case("%s columns=%d rows=%d n=%d k=%d %s%s", f->name, columns, s.n_rows, s.n, s.k, check_fill_name(kind),
               extreme ? " extreme codes" : "");
    struct tern_packed w = make_weights(f, s.n, s.k, kind == CHECK_NONFINITE ? CHECK_GAUSS : kind);
    if (extreme) {
        struct tern_panel_layout l = tern_panel_layout(&w);
        for (int p = 0; p < tern_panels(&w); p++)
            memset((uint8_t *)w.data + (size_t)p * w.panel_bytes, extreme, l.d);
    }
    struct product p = make_product(s.n_rows, &w);
    struct tern_q8_row *x = make_rows(s.n_rows, s.k, kind, columns);
    size_t outs = (size_t)s.n_rows * (size_t)s.n;
    double *oracle = calloc(outs, 8), *budget = calloc(outs, 8);
    for (int r = 0; r < s.n_rows; r++) {
        for (int n = 0; n < s.n; n++)
            narrow_oracle(&w, &x[r * columns], columns, n, &oracle[r * s.n + n], &budget[r * s.n + n]);
    }
    const struct tern_gemm_kernels *k = &tern_k.gemm, *ref = &check_ref.gemm;
    (columns == 1 ? k->narrow : k->narrow16)(p.y, p.y_stride, x, s.n_rows, &w, p.panel0, p.panel1);
    (columns == 1 ? ref->narrow : ref->narrow16)(p.y_ref, p.y_stride, x, s.n_rows, &w, p.panel0, p.panel1);
    if (kind == CHECK_NONFINITE) {
        for (int r = 0; r < s.n_rows; r++) {
            bool bad = false;
            for (int b = 0; b < s.k / 32; b++)
                bad |= !isfinite(x[r * columns].scale[b]);
            for (int n = p.panel0 * 16; n < p.panel1 * 16 && n < s.n; n++) {
                if (bad && isfinite(p.y[(size_t)r * p.y_stride + (size_t)n]))
                    check_fail("a row with values that are not finite gave a finite result");
            }
        }
        check_margins(&p, s.n_rows, s.n);
    } else {
        check_product(&p, s.n_rows, s.n, oracle, budget);
    }
    free(oracle);
    free(budget);
}

static void narrow_cases(int columns)
{
    static const int rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 13};
    for (int f = 0; f < N_FORMATS; f++) {
        int step = formats[f].step;
        if (!tern_codes_integer(formats[f].kind.codes))
            continue;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct shape s = {rows[i], check_range(1, 90), step * check_range(1, step == 32 ? 13 : 3)};
            narrow_case(&formats[f], s, CHECK_GAUSS, 0, columns);
        }
        for (int kind = f % CHECK_STEP; kind <= CHECK_NONFINITE; kind += CHECK_STEP)
            narrow_case(&formats[f], (struct shape){5, 19, step == 32 ? 32 * 9 : 512}, kind, 0, columns);
        narrow_case(&formats[f], (struct shape){5, 33, 512}, CHECK_EQUAL, 0xFF, columns);
        narrow_case(&formats[f], (struct shape){6, 16, 256}, CHECK_EQUAL, 0x80, columns);
        narrow_case(&formats[f], (struct shape){4, 17, 256}, CHECK_EQUAL, 0x7F, columns);
    }
}

static void part_narrow(void)
{
    narrow_cases(1);
}

static void part_narrow16(void)
{
    narrow_cases(2);
}

void check_gemm(void)
{
    CHECK_PART(gemm.quantize, part_quantize);
    CHECK_PART(gemm.quantize16, part_quantize16);
    CHECK_PART(gemm.row, part_row);
    CHECK_PART(gemm.wide, part_wide);
    CHECK_PART(gemm.narrow, part_narrow);
    CHECK_PART(gemm.narrow16, part_narrow16);
}

/* ---- benches ---- */

#define BENCH_BYTES ((size_t)256 << 20)
#define BENCH_ROWS  512

struct bench {
    struct tern_packed w;
    int n_rows, panels;
    float *x, *y, *scratch;
    struct tern_q8_row rows[8];
};

static double run_narrow(void *ctx)
{
    struct bench *b = ctx;
    int panels = tern_k.mask ? b->panels : 4; /* plain C needs no more to be measured */
    tern_k.gemm.narrow(b->y, (size_t)b->w.n, b->rows, b->n_rows, &b->w, 0, panels);
    return (double)panels * (double)b->w.panel_bytes;
}

/* Any two rows are one of 16 bits. */
static double run_narrow16(void *ctx)
{
    struct bench *b = ctx;
    int panels = tern_k.mask ? b->panels : 4;
    tern_k.gemm.narrow16(b->y, (size_t)b->w.n, b->rows, b->n_rows, &b->w, 0, panels);
    return (double)panels * (double)b->w.panel_bytes;
}

static double run_wide(void *ctx)
{
    struct bench *b = ctx;
    int panels = tern_k.mask ? b->panels : 1, n_rows = tern_k.mask || b->n_rows < 8 ? b->n_rows : 8;
    tern_k.gemm.wide(b->y, (size_t)b->w.n, b->x, (size_t)b->w.k, n_rows, &b->w, 0, panels, b->scratch);
    return 2.0 * n_rows * panels * TERN_PANEL * b->w.k;
}

static double run_wide_bytes(void *ctx)
{
    struct bench *b = ctx;
    run_wide(ctx);
    return (double)(tern_k.mask ? b->panels : 1) * (double)b->w.panel_bytes;
}

static double run_quantize(void *ctx)
{
    struct bench *b = ctx;
    tern_k.gemm.quantize((int8_t *)b->rows[0].q, (float *)b->rows[0].scale, (int32_t *)b->rows[0].sum16, b->x, b->w.k);
    return 4.0 * b->w.k;
}

static void bench_format(const struct format *f, uint8_t *data, struct bench *b, int k)
{
    char label[64];
    b->w = f->kind;
    b->w.k = k;
    b->w.panel_bytes = tern_panel_layout(&b->w).bytes;
    b->w.data = data;
    int panels = (int)((BENCH_BYTES - TERN_VEC) / b->w.panel_bytes);
    b->w.n = panels * TERN_PANEL;
    struct check_read read = {data, (size_t)panels * b->w.panel_bytes};
    struct check_timing t = {label, run_narrow, b, "B", check_roof_read, &read};
    static const int narrow_rows[] = {1, 4, 8};
    b->panels = panels;
    for (size_t i = 0; i < 3 && tern_codes_integer(f->kind.codes); i++) {
        b->n_rows = narrow_rows[i];
        snprintf(label, sizeof label, "gemm.narrow %s k=%d rows=%d", f->name, k, b->n_rows);
        check_bench(&t);
    }
    t.fn = run_narrow16;
    for (size_t i = 0; i < 2 && tern_codes_integer(f->kind.codes); i++) {
        b->n_rows = narrow_rows[i];
        snprintf(label, sizeof label, "gemm.narrow16 %s k=%d rows=%d", f->name, k, b->n_rows);
        check_bench(&t);
    }
    t.fn = run_wide_bytes;
    b->n_rows = 1;
    snprintf(label, sizeof label, "gemm.wide %s k=%d rows=1", f->name, k);
    check_bench(&t);
    t = (struct check_timing){label, run_wide, b, "FLOP", check_roof_fma, NULL};
    static const int wide_rows[] = {4, 8, 64, BENCH_ROWS};
    for (size_t i = 0; i < 4; i++) {
        b->n_rows = wide_rows[i];
        b->panels = wide_rows[i] == BENCH_ROWS ? 16 : 64;
        b->w.n = b->panels * TERN_PANEL;
        snprintf(label, sizeof label, "gemm.wide %s k=%d rows=%d", f->name, k, b->n_rows);
        check_bench(&t);
    }
}

void bench_gemm(void)
{
    static struct bench b;
    int k = 4096;
    uint8_t *data = map_bytes(BENCH_BYTES);
    fill_ordinary(data, BENCH_BYTES);
    b.x = map_bytes((size_t)BENCH_ROWS * (size_t)k * 4);
    b.y = map_bytes((size_t)8 * BENCH_BYTES / 64);
    b.scratch = map_bytes(TERN_GEMM_SCRATCH * 4);
    for (int i = 0; i < BENCH_ROWS * k; i++)
        b.x[i] = (float)(i % 101 - 50) * 0.01f;
    b.w.k = k;
    uint8_t *bytes = map_bytes(8 * tern_q8_bytes((size_t)k));
    for (int r = 0; r < 8; r++) {
        b.rows[r] = tern_q8_at(bytes + (size_t)r * tern_q8_bytes((size_t)k), (size_t)k);
        check_ref.gemm.quantize((int8_t *)b.rows[r].q, (float *)b.rows[r].scale, (int32_t *)b.rows[r].sum16,
                                b.x + (size_t)r * (size_t)k, k);
    }
    struct check_read read = {b.x, (size_t)k * 4};
    struct check_timing t = {"gemm.quantize k=4096", run_quantize, &b, "B", check_roof_read, &read};
    check_bench(&t);
    for (int f = 0; f < N_FORMATS; f++)
        bench_format(&formats[f], data, &b, k);
}

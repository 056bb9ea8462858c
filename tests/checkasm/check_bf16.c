/* The bf16 class: the kernels of the level, and on every machine the same code on emulated tiles. */
#include "gemm_case.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cpu.h"
#include "tiles_emulated.h"

static struct tern_bf16_kernels k16; /* under test */
static bool pairs;                   /* without tiles: a chain has an addition for every two inputs */

/* What the class makes of a number before it multiplies. */
static float rounded(float x)
{
    return tern_bf16_to_f32(tern_f32_to_bf16(fabsf(x) < FLT_MIN ? copysignf(0, x) : x));
}

/* ---- packing ---- */

static uint16_t *make_packed(const float *x, size_t x_stride, int n_rows, int k)
{
    size_t band = tern_bf16_band(k);
    int bands = (n_rows + TERN_BAND - 1) / TERN_BAND;
    uint16_t *out = check_buf((size_t)bands * band * 2, 64);
    for (int b = 0; b < bands; b++) {
        int r0 = b * TERN_BAND, n = n_rows - r0 < TERN_BAND ? n_rows - r0 : TERN_BAND;
        k16.pack(out + (size_t)b * band, x + (size_t)r0 * x_stride, x_stride, n, k);
    }
    return out;
}

static float *make_rows(int n_rows, size_t x_stride, int k, enum check_fill kind)
{
    float *x = check_buf(((size_t)(n_rows - 1) * x_stride + (size_t)k) * 4, 4);
    for (int r = 0; r < n_rows; r++)
        check_fill_f32(x + (size_t)r * x_stride, (size_t)k, kind);
    return x;
}

static void pack_case(int n_rows, int k, enum check_fill kind)
{
    check_case("rows=%d k=%d %s", n_rows, k, check_fill_name(kind));
    size_t x_stride = (size_t)k + (size_t)check_range(0, 5);
    float *x = make_rows(n_rows, x_stride, k, kind);
    uint16_t *out = make_packed(x, x_stride, n_rows, k);
    for (size_t at = 0; at < tern_bf16_band(k); at++) {
        int step = (int)(at / (2 * TERN_TILE)), r = (int)(at / TERN_TILE_DEPTH % TERN_BAND);
        int i = step * TERN_TILE_DEPTH + (int)(at % TERN_TILE_DEPTH);
        float got = tern_bf16_to_f32(out[at]), want = r < n_rows && i < k ? rounded(x[(size_t)r * x_stride + i]) : 0;
        if (r >= TERN_TILE_ROWS && n_rows <= TERN_TILE_ROWS)
            check_unwritten("second tile", &out[at], 2);
        else if (tern_f32_bits(got) != tern_f32_bits(want) && !(isnan(got) && isnan(want)))
            check_fail("row %d input %d = %.9g, expected %.9g", r, i, got, want);
    }
}

static void part_pack(void)
{
    static const int rows[] = {1, 2, 15, 16, 17, 31, 32};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int kind = 0; kind <= CHECK_NONFINITE; kind++)
            pack_case(rows[i], check_range(1, 200), kind);
    pack_case(32, 96, CHECK_GAUSS);
}

/* ---- products ---- */

/* Sums of exact products of the rounded numbers, and what the chain's additions may lose: on tiles at most 16 in each
 * half and two at the end of each tile, else two for every pair of inputs, and a subnormal number in any of them. */
static void class_oracle(const struct tern_packed *w, const float *x, size_t x_stride, int n_rows, double *out,
                         double *budget)
{
    const int steps = (w->k + TERN_TILE_DEPTH - 1) / TERN_TILE_DEPTH, chain = pairs ? w->k + 2 : steps + 18;
    for (int n = 0; n < w->n; n++) {
        for (int i = 0; i < w->k; i++) {
            double weight = rounded((float)weight_exact(w, n, i));
            for (int r = 0; r < n_rows; r++) {
                double term = weight * rounded(x[(size_t)r * x_stride + (size_t)i]);
                out[r * w->n + n] += term;
                budget[r * w->n + n] += fabs(term) * chain * 0x1p-24 + FLT_MIN * 2;
            }
        }
    }
}

static void product_case(const struct format *f, struct shape s, enum check_fill kind)
{
    check_case("%s rows=%d n=%d k=%d %s", f->name, s.n_rows, s.n, s.k, check_fill_name(kind));
    struct tern_packed w = make_weights(f, s.n, s.k, kind == CHECK_NONFINITE ? CHECK_GAUSS : kind);
    struct product p = make_product(s.n_rows, &w);
    size_t x_stride = (size_t)s.k + (size_t)check_range(0, 5), outs = (size_t)s.n_rows * (size_t)s.n;
    float *x = make_rows(s.n_rows, x_stride, s.k, kind);
    double *oracle = calloc(outs, 8), *budget = calloc(outs, 8);
    class_oracle(&w, x, x_stride, s.n_rows, oracle, budget);
    k16.product(p.y, p.y_stride, make_packed(x, x_stride, s.n_rows, s.k), s.n_rows, &w, p.panel0, p.panel1,
                check_buf(TERN_BF16_SCRATCH, 64));
    int c0 = p.panel0 * TERN_PANEL, c1 = p.panel1 * TERN_PANEL < s.n ? p.panel1 * TERN_PANEL : s.n;
    for (int r = 0; r < s.n_rows && c0 < c1; r++) {
        size_t at = (size_t)r * (size_t)s.n + (size_t)c0;
        if (!check_budget("y", p.y + (size_t)r * p.y_stride + c0, oracle + at, budget + at, (size_t)(c1 - c0), NULL, 0))
            break;
    }
    check_margins(&p, s.n_rows, s.n);
    free(oracle);
    free(budget);
}

static void part_product(void)
{
    static const int rows[] = {1, 2, 15, 16, 17, 32, 33, 48, 65};
    for (int f = 0; f < N_FORMATS; f++) {
        int step = formats[f].step;
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            struct shape s = {rows[i], check_range(1, 70), step == 1 ? check_range(1, 400) : step * check_range(1, 7)};
            if (step == 256)
                s.k = 256 * check_range(1, 3);
            product_case(&formats[f], s, i % 2 ? (enum check_fill)check_range(0, CHECK_NONFINITE) : CHECK_GAUSS);
        }
        for (int kind = 0; kind <= CHECK_NONFINITE; kind++)
            product_case(&formats[f], (struct shape){5, 19, step == 1 ? 45 : step == 32 ? 32 * 9 : 512}, kind);
    }
    /* Several stages of panels and of inputs, for few rows and for many. */
    product_case(&formats[2], (struct shape){70, 16 * 35 + 3, 600}, CHECK_GAUSS);
    product_case(&formats[3], (struct shape){100, 16 * 17 + 5, 32 * 35}, CHECK_GAUSS);
    product_case(&formats[3], (struct shape){20, 16 * 5 + 5, 32 * 35}, CHECK_GAUSS);
    product_case(&formats[9], (struct shape){97, 16 * 5 + 1, 768}, CHECK_SPREAD);
    product_case(&formats[4], (struct shape){530, 40, 32 * 33}, CHECK_GAUSS); /* and passes */
}

/* ---- weights ---- */

/* A row of x that is 1 at one input and 0 elsewhere brings that input's weights back. */
static void part_weights(void)
{
    for (int f = 0; f < N_FORMATS; f++)
        for (int kind = 0; kind < CHECK_N_FINITE; kind++) {
            int k = formats[f].step == 1 ? 75 : formats[f].step == 32 ? 96 : 512, n = 21;
            check_case("%s n=%d k=%d %s", formats[f].name, n, k, check_fill_name(kind));
            struct tern_packed w = make_weights(&formats[f], n, k, kind);
            float *x = check_buf((size_t)k * (size_t)k * 4, 4), *y = check_buf((size_t)k * (size_t)n * 4, 4);
            for (int i = 0; i < k * k; i++)
                x[i] = i / k == i % k;
            k16.product(y, (size_t)n, make_packed(x, (size_t)k, k, k), k, &w, 0, 2, check_buf(TERN_BF16_SCRATCH, 64));
            for (int i = 0; i < k * n; i++) {
                float want = rounded((float)weight_exact(&w, i % n, i / n));
                if (y[i] != want)
                    check_fail("weight [%d][%d] = %.9g, expected %.9g", i % n, i / n, y[i], want);
            }
        }
}

/* ---- what a result may not depend on ---- */

static void same_columns(const char *what, const float *got, const float *want, int rows, int n, int c0, int c1)
{
    for (int r = 0; r < rows && c0 < c1; r++)
        if (!check_same_f32(what, got + (size_t)r * (size_t)n + c0, want + (size_t)r * (size_t)n + c0,
                            (size_t)(c1 - c0)))
            return;
}

static void invariance_case(const struct format *f, struct shape s)
{
    check_case("%s rows=%d n=%d k=%d", f->name, s.n_rows, s.n, s.k);
    struct tern_packed w = make_weights(f, s.n, s.k, CHECK_GAUSS);
    size_t x_stride = (size_t)s.k, n = (size_t)s.n;
    float *x = make_rows(s.n_rows, x_stride, s.k, CHECK_SPREAD);
    float *y = check_buf((size_t)s.n_rows * n * 4, 4), *part = check_buf((size_t)s.n_rows * n * 4, 4);
    void *scratch = check_buf(TERN_BF16_SCRATCH, 64);
    int panels = tern_panels(&w);
    uint16_t *all = make_packed(x, x_stride, s.n_rows, s.k);
    k16.product(y, n, all, s.n_rows, &w, 0, panels, scratch);
    for (int p0 = 0, p1; p0 < panels; p0 = p1) { /* panel ranges */
        p1 = p0 + check_range(1, 5) < panels ? p0 + check_range(1, 5) : panels;
        p1 = p1 < panels ? p1 : panels;
        k16.product(part, n, all, s.n_rows, &w, p0, p1, scratch);
    }
    same_columns("y by panel ranges", part, y, s.n_rows, s.n, 0, s.n);
    for (int r0 = 0, rows; r0 < s.n_rows; r0 += rows) { /* n_rows and places */
        rows = check_range(1, 40);
        rows = rows < s.n_rows - r0 ? rows : s.n_rows - r0;
        uint16_t *some = make_packed(x + (size_t)r0 * x_stride, x_stride, rows, s.k);
        k16.product(part, n, some, rows, &w, 0, panels, scratch);
        same_columns("y by rows", part, y + (size_t)r0 * n, rows, s.n, 0, s.n);
    }
}

static void part_invariance(void)
{
    for (int f = 0; f < N_FORMATS; f++)
        invariance_case(&formats[f], (struct shape){check_range(60, 90), check_range(33, 90),
                                                    formats[f].step == 1    ? 77
                                                    : formats[f].step == 32 ? 160
                                                                            : 256});
    invariance_case(&formats[4], (struct shape){101, 16 * 19 + 9, 32 * 37});
}

/* ---- small products ---- */

/* Rows alone and in company, and against exact sums. */
static void small_case(int n_rows, int k, int n, bool adds)
{
    check_case("rows=%d k=%d n=%d%s", n_rows, k, n, adds ? " on top" : "");
    size_t y_stride = (size_t)n + (size_t)check_range(0, 9), cells = (size_t)(n_rows - 1) * y_stride + (size_t)n;
    float *x = make_rows(n_rows, (size_t)k, k, CHECK_GAUSS), *m = make_rows(k, (size_t)n, n, CHECK_SPREAD);
    float *y = check_buf(cells * 4, 4), *one = check_buf((size_t)n * 4, 4), *shrink = check_buf((size_t)n_rows * 4, 4);
    uint16_t *right = check_buf(tern_bf16_right(k, n) * 2, 64);
    double *want = calloc((size_t)n, 8), *budget = calloc((size_t)n, 8);
    int piece = k > TERN_TILE_DEPTH ? check_range(1, (k - 1) / TERN_TILE_DEPTH) * TERN_TILE_DEPTH : k;
    k16.pack_right(right, tern_bf16_band(k), m, piece, n);
    if (piece < k)
        k16.pack_right(right + tern_bf16_band(piece), tern_bf16_band(k), m + (size_t)piece * (size_t)n, k - piece, n);
    for (int r = 0; r < n_rows; r++) {
        shrink[r] = r % 3 ? (float)check_uniform() : 1.0f;
        for (int j = 0; j < n; j++)
            y[(size_t)r * y_stride + (size_t)j] = (float)check_gauss();
    }
    float *before = check_buf(cells * 4, 4);
    memcpy(before, y, cells * 4);
    k16.begin();
    k16.multiply(y, y_stride, adds ? shrink : NULL, make_packed(x, (size_t)k, n_rows, k), n_rows, right, k, n);
    for (int r = 0; r < n_rows; r++) {
        const float *old = before + (size_t)r * y_stride, *got = y + (size_t)r * y_stride;
        memcpy(one, old, (size_t)n * 4);
        if (r % 7 == 0) {
            uint16_t *alone = make_packed(x + (size_t)r * (size_t)k, (size_t)k, 1, k);
            k16.multiply(one, (size_t)n, adds ? shrink + r : NULL, alone, 1, right, k, n);
            check_same_f32("a row alone", one, got, (size_t)n);
        }
        for (int j = 0; j < n; j++) {
            want[j] = adds ? (double)(old[j] * shrink[r]) : 0;
            budget[j] = fabs(want[j]) * (k / 16 + 2) * 0x1p-24 + FLT_MIN;
            for (int i = 0; i < k; i++) {
                double term = (double)rounded(x[(size_t)r * (size_t)k + i]) * rounded(m[(size_t)i * (size_t)n + j]);
                want[j] += term;
                budget[j] += fabs(term) * (k / 32 + 20) * 0x1p-24 + 2 * FLT_MIN;
            }
        }
        check_budget("y", got, want, budget, (size_t)n, NULL, 0);
        if (r + 1 < n_rows && memcmp(got + n, old + n, (y_stride - (size_t)n) * 4) != 0)
            check_fail("row %d: what lies between the rows was written", r);
    }
    k16.end();
    free(want);
    free(budget);
}

static void part_small(void)
{
    static const int rows[] = {1, 15, 16, 17, 32, 47, 70};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int j = 0; j < 6; j++)
            small_case(rows[i], check_range(1, 140), check_range(1, 100), j % 2);
    small_case(32, 128, 64, false);
    small_case(32, 64, 128, true);
}

/* ---- softmax ---- */

#define MAX_TOKENS (TERN_SOFTMAX_PAGES * TERN_PAGE)

/* The state of a row and its weights, gathered from the band. */
struct softmax_row {
    float m, l, shrink;
    uint16_t p[MAX_TOKENS];
};

static void run_softmax(struct softmax_row *row, const float *s, size_t stride, int n_pages, int t0, int t1)
{
    const size_t cells = tern_bf16_band(n_pages * TERN_PAGE), place = (size_t)check_range(0, TERN_BAND - 1);
    uint16_t *band = check_buf(cells * 2, 64), *p = band + place * TERN_TILE_DEPTH;
    row->shrink = k16.softmax(p, s, stride, n_pages, t0, t1, &row->m, &row->l);
    for (size_t at = 0; at < cells; at++) {
        size_t step = at / (2 * TERN_TILE), i = at % TERN_TILE_DEPTH;
        if (at / TERN_TILE_DEPTH % TERN_BAND == place)
            row->p[step * TERN_TILE_DEPTH + i] = band[at];
        else
            check_unwritten("another row of the band", &band[at], 2);
    }
}

static void softmax_case(int n_pages, int t0, int t1)
{
    static const float nasty[] = {NAN, INFINITY, -INFINITY, FLT_MAX};
    const int n = n_pages * TERN_PAGE, kind = check_range(0, 3);
    const size_t stride = TERN_PAGE + 16 * (size_t)check_range(0, 3);
    const float scale[] = {1, 40, 0, 160};
    check_case("%d pages, tokens %d..%d, kind %d", n_pages, t0, t1, kind);
    float *s = check_buf(((size_t)(TERN_SOFTMAX_PAGES - 1) * stride + TERN_PAGE) * 4, 64);
    for (int t = 0; t < MAX_TOKENS; t++)
        s[(size_t)(t / TERN_PAGE) * stride + (size_t)(t % TERN_PAGE)] =
            t >= t0 && t < t1 ? 3 + scale[kind] * (float)check_gauss() : nasty[check_rand() % 4];
    struct softmax_row row = {.m = check_range(0, 1) ? 2 : -INFINITY, .l = 0.75f}, before = row, same = row;
    run_softmax(&row, s, stride, n_pages, t0, t1);
    float top = before.m;
    for (int t = t0; t < t1; t++)
        top = fmaxf(top, s[(size_t)(t / TERN_PAGE) * stride + (size_t)(t % TERN_PAGE)]);
    double sum = 0;
    for (int t = 0; t < n; t++) {
        float got = tern_bf16_to_f32(row.p[t]);
        double x = (double)(s[(size_t)(t / TERN_PAGE) * stride + (size_t)(t % TERN_PAGE)] - top), want = exp2(x);
        sum += got;
        if (t < t0 || t >= t1 ? got != 0 : !(fabs(got - want) <= want * (0x1p-8 + 1e-4) + 0x1p-126))
            check_fail("weight %d = %.9g, expected %.9g", t, got, t < t0 || t >= t1 ? 0 : want);
    }
    double shrink = t0 == t1 ? 1 : exp2((double)(before.m - top)), l = before.l * shrink + sum,
           budget[] = {3e-7 * shrink + 0x1p-126, 2e-6 * l};
    check_budget("shrink", &row.shrink, &shrink, &budget[0], 1, NULL, 0);
    check_budget("l", &row.l, &l, &budget[1], 1, NULL, 0);
    if (row.m != top)
        check_fail("m = %g, expected %g", row.m, top);
    /* Pages without tokens of the range change nothing. */
    run_softmax(&same, s, stride, TERN_SOFTMAX_PAGES, t0, t1);
    check_same_f32("with more pages", &same.m, &row.m, 3);
    if (memcmp(same.p, row.p, (size_t)n * 2) != 0)
        check_fail("weights differ with more pages");
}

static void part_softmax(void)
{
    for (int c = 0; c < 1500; c++) {
        int n_pages = 1 + c % TERN_SOFTMAX_PAGES, n = n_pages * TERN_PAGE, t0 = c % 3 ? check_range(0, n) : 0;
        softmax_case(n_pages, t0, c % 7 ? check_range(t0, n) : n);
    }
}

void check_bf16(void)
{
    if (!tern_k.mask) { /* once: at plain C */
        tern_bf16_init_emulated(&k16);
        pairs = false;
        check_part("bf16.pack emulated", part_pack);
        check_part("bf16.product emulated", part_product);
        check_part("bf16.weights emulated", part_weights);
        check_part("bf16.same emulated", part_invariance);
        check_part("bf16.multiply emulated", part_small);
        check_part("bf16.softmax emulated", part_softmax);
    }
    k16 = tern_k.bf16;
    pairs = strcmp(tern_cpu_name(tern_k.mask), "amx") != 0;
    CHECK_PART(bf16.pack, part_pack);
    CHECK_PART(bf16.product, part_product);
    CHECK_PART(bf16.product, part_weights);
    CHECK_PART(bf16.product, part_invariance);
    CHECK_PART(bf16.multiply, part_small);
    CHECK_PART(bf16.softmax, part_softmax);
}

/* ---- benches ---- */

struct bench {
    struct tern_packed w;
    int n_rows;
    float *x, *y;
    uint16_t *packed;
    void *scratch;
};

/* What prompt rows cost at this level: the bf16 class where there is one, packing included, else the wide class. */
static double run_prompt(void *ctx)
{
    struct bench *b = ctx;
    int panels = tern_k.mask ? tern_panels(&b->w) : 1, rows = tern_k.mask ? b->n_rows : 1;
    size_t k = (size_t)b->w.k, n = (size_t)b->w.n;
    for (int r = 0; r < rows && tern_k.bf16.pack; r += TERN_BAND)
        tern_k.bf16.pack(b->packed + (size_t)(r / TERN_BAND) * tern_bf16_band(b->w.k), b->x + (size_t)r * k, k,
                         rows - r < TERN_BAND ? rows - r : TERN_BAND, b->w.k);
    if (tern_k.bf16.product)
        tern_k.bf16.product(b->y, n, b->packed, rows, &b->w, 0, panels, b->scratch);
    else
        tern_k.gemm.wide(b->y, n, b->x, k, rows, &b->w, 0, panels, b->scratch);
    return 2.0 * rows * panels * TERN_PANEL * b->w.k;
}

static void bench_shape(const struct format *f, int n, int k)
{
    static const int rows[] = {1, 8, 32, 64, 128, 512};
    char label[64];
    struct bench b = {.w = f->kind};
    b.w.n = n;
    b.w.k = k;
    b.w.panel_bytes = tern_panel_layout(&b.w).bytes;
    size_t weights = (size_t)(n / TERN_PANEL) * b.w.panel_bytes, values = (size_t)512 * (size_t)k;
    uint8_t *data = map_bytes(weights);
    b.w.data = data;
    b.x = map_bytes(values * 4);
    b.y = map_bytes((size_t)512 * (size_t)n * 4);
    b.packed = map_bytes(values * 2);
    b.scratch = map_bytes(TERN_BF16_SCRATCH);
    fill_ordinary(data, weights);
    for (size_t i = 0; i < values; i++)
        b.x[i] = (float)((int)(i % 101) - 50) * 0.01f;
    struct check_timing t = {label, run_prompt, &b, "FLOP", check_roof_prompt, NULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        b.n_rows = rows[i];
        snprintf(label, sizeof label, "bf16.product %s %dx%d rows=%d", f->name, n, k, rows[i]);
        check_bench(&t);
    }
    munmap(data, weights);
    munmap(b.x, values * 4);
    munmap(b.y, (size_t)512 * (size_t)n * 4);
    munmap(b.packed, values * 2);
    munmap(b.scratch, TERN_BF16_SCRATCH);
}

/* Four pages of attention for 256 rows of 128 dims, the softmax included: keys and values from f32. */
struct page_bench {
    float *q, *k, *v, *s, *o;
    uint16_t *q16, *k16, *v16, *p16;
};

static double run_pages(void *ctx)
{
    struct page_bench *b = ctx;
    enum { D = 128, ROWS = 256, BAND = TERN_BAND, PAGES = TERN_SOFTMAX_PAGES, TOKENS = PAGES * TERN_PAGE };
    const struct tern_bf16_kernels *k = &tern_k.bf16;
    float m[BAND], l[BAND], shrink[BAND];
    if (k->multiply) {
        k->begin();
        for (int j = 0; j < PAGES; j++) {
            k->pack_right(b->k16 + (size_t)j * tern_bf16_right(D, TERN_PAGE), tern_bf16_band(D), b->k, D, TERN_PAGE);
            k->pack_right(b->v16 + tern_bf16_band(j * TERN_PAGE), tern_bf16_band(TOKENS), b->v, TERN_PAGE, D);
        }
    }
    for (int i = 0; i < ROWS; i += BAND) {
        float *q = b->q + i * D, *o = b->o + i * D;
        for (int r = 0; r < BAND; r++)
            m[r] = l[r] = 0;
        if (k->multiply)
            k->pack(b->q16, q, D, BAND, D);
        for (int j = 0; j < PAGES; j++) {
            float *s = b->s + j * BAND * TERN_PAGE;
            if (k->multiply) {
                k->multiply(s, TERN_PAGE, NULL, b->q16, BAND, b->k16 + (size_t)j * tern_bf16_right(D, TERN_PAGE), D,
                            TERN_PAGE);
                continue;
            }
            tern_k.attn.score_f32(b->s, q, b->k, D, BAND);
            for (int r = 0; r < BAND; r++)
                shrink[r] = tern_k.attn.softmax(b->s + r * TERN_PAGE, 0, 1, 0, TERN_PAGE, &m[r], &l[r]);
            tern_k.attn.accum_f32(o, b->s, b->v, shrink, D, TERN_PAGE, BAND);
        }
        if (!k->multiply)
            continue;
        for (int r = 0; r < BAND; r++)
            shrink[r] = k->softmax(b->p16 + r * TERN_TILE_DEPTH, b->s + r * TERN_PAGE, BAND * TERN_PAGE, PAGES, 0,
                                   TOKENS, &m[r], &l[r]);
        k->multiply(o, D, shrink, b->p16, BAND, b->v16, TOKENS, D);
    }
    if (k->multiply)
        k->end();
    return 2.0 * 2 * ROWS * TOKENS * D;
}

static void bench_pages(void)
{
    const size_t values = 256 * 128, bytes = values * 4;
    struct page_bench b;
    void **all[] = {(void **)&b.q,   (void **)&b.k,   (void **)&b.v,   (void **)&b.s,  (void **)&b.o,
                    (void **)&b.q16, (void **)&b.k16, (void **)&b.v16, (void **)&b.p16};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        *all[i] = map_bytes(bytes);
    for (size_t i = 0; i < values; i++)
        b.q[i] = b.k[i] = b.v[i] = (float)((int)(i % 101) - 50) * 0.01f;
    struct check_timing t = {"bf16 attention dim=128 rows=256", run_pages, &b, "FLOP", check_roof_prompt, NULL};
    check_bench(&t);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        munmap(*all[i], bytes);
}

void bench_bf16(void)
{
    bench_pages();
    for (int f = 0; f < N_FORMATS; f++)
        bench_shape(&formats[f], 2048, f == 3 ? 8192 : 2048);
    bench_shape(&formats[3], 576, 1536);
    bench_shape(&formats[3], 8192, 2048);
}

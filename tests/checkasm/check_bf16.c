/* The bf16 class: the kernels of the level, and on every machine the same code on emulated tiles. */
#include "gemm_case.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tiles_emulated.h"

static struct tern_bf16_kernels k16; /* under test */

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

/* Against `multiply` page by page, bit for bit, whose sums small_case knows. */
static void score_case(int n_rows, int k, int n_pages)
{
    check_case("rows=%d k=%d pages=%d", n_rows, k, n_pages);
    const size_t page = tern_bf16_right(k, TERN_PAGE), cells = (size_t)n_rows * TERN_PAGE;
    const size_t stride = cells + 16 * (size_t)check_range(0, 3);
    uint16_t *x = make_packed(make_rows(n_rows, (size_t)k, k, CHECK_GAUSS), (size_t)k, n_rows, k);
    uint16_t *keys = check_buf(page * (size_t)n_pages * 2, 64);
    float *s = check_buf(((size_t)(n_pages - 1) * stride + cells) * 4, 64), *want = check_buf(cells * 4, 64);
    for (int j = 0; j < n_pages; j++)
        k16.pack_right(keys + (size_t)j * page, tern_bf16_band(k), make_rows(k, TERN_PAGE, TERN_PAGE, CHECK_SPREAD), k,
                       TERN_PAGE);
    k16.begin();
    k16.score(s, stride, x, n_rows, keys, k, n_pages);
    for (int j = 0; j < n_pages; j++) {
        k16.multiply(want, TERN_PAGE, NULL, x, n_rows, keys + (size_t)j * page, k, TERN_PAGE);
        check_same_f32("scores", s + (size_t)j * stride, want, cells);
        if (j + 1 < n_pages)
            check_unwritten("between pages", s + (size_t)j * stride + cells, (stride - cells) * 4);
    }
    k16.end();
}

static void part_score(void)
{
    static const int rows[] = {1, 16, 17, 24, 31, 32}, dims[] = {32, 64, 80, 128};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t j = 0; j < sizeof dims / sizeof *dims; j++)
            score_case(rows[i], dims[j], check_range(1, TERN_SOFTMAX_PAGES));
    score_case(TERN_BAND, 64, TERN_SOFTMAX_PAGES);
}

/* ---- softmax ---- */

#define MAX_TOKENS (TERN_SOFTMAX_PAGES * TERN_PAGE)

/* The state of a row and its weights, gathered from the band. */
struct softmax_row {
    float m, l, shrink;
    uint16_t p[MAX_TOKENS];
};

/* The row among others of any kind, which neither see nor change it. */
static void run_softmax(struct softmax_row *row, const float *s, size_t stride, int n_pages, int t0, int t1)
{
    const size_t cells = tern_bf16_band(n_pages * TERN_PAGE), first = (size_t)check_range(0, TERN_BAND - 1);
    const int n = check_range(1, TERN_BAND - (int)first), own = check_range(0, n - 1);
    const size_t place = first + (size_t)own, wide = (size_t)n * TERN_PAGE + 16 * (size_t)check_range(0, 3);
    uint16_t *band = check_buf(cells * 2, 64);
    float *all = check_buf(((size_t)(n_pages - 1) * wide + (size_t)n * TERN_PAGE) * 4, 64);
    float m[TERN_BAND], l[TERN_BAND], shrink[TERN_BAND];
    int from[TERN_BAND], to[TERN_BAND];
    for (int r = 0; r < n; r++) {
        from[r] = r == own ? t0 : check_range(0, n_pages * TERN_PAGE);
        to[r] = r == own ? t1 : check_range(from[r], n_pages * TERN_PAGE);
        m[r] = r == own ? row->m : check_range(0, 1) ? 1 : -INFINITY;
        l[r] = r == own ? row->l : 1;
        for (int t = 0; t < n_pages * TERN_PAGE; t++)
            all[(size_t)(t / TERN_PAGE) * wide + (size_t)(r * TERN_PAGE + t % TERN_PAGE)] =
                r == own ? s[(size_t)(t / TERN_PAGE) * stride + (size_t)(t % TERN_PAGE)] : (float)check_gauss();
    }
    k16.softmax(band + first * TERN_TILE_DEPTH, all, wide, n_pages, n, from, to, m, l, shrink);
    row->m = m[own], row->l = l[own], row->shrink = shrink[own];
    for (size_t at = 0; at < cells; at++) {
        size_t step = at / (2 * TERN_TILE), i = at % TERN_TILE_DEPTH, r = at / TERN_TILE_DEPTH % TERN_BAND;
        if (r == place)
            row->p[step * TERN_TILE_DEPTH + i] = band[at];
        else if (r < first || r >= first + (size_t)n)
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
    for (int c = 0; c < CHECK_TIMES(1500); c++) {
        int n_pages = 1 + c % TERN_SOFTMAX_PAGES, n = n_pages * TERN_PAGE, t0 = c % 3 ? check_range(0, n) : 0;
        softmax_case(n_pages, t0, c % 7 ? check_range(t0, n) : n);
    }
}

void check_bf16(void)
{
    if (!tern_k.mask) { /* once: at plain C */
        tern_bf16_init_emulated(&k16);
        check_part("bf16.pack emulated", part_pack);
        check_part("bf16.multiply emulated", part_small);
        check_part("bf16.score emulated", part_score);
        check_part("bf16.softmax emulated", part_softmax);
    }
    k16 = tern_k.bf16;
    CHECK_PART(bf16.pack, part_pack);
    CHECK_PART(bf16.multiply, part_small);
    CHECK_PART(bf16.score, part_score);
    CHECK_PART(bf16.softmax, part_softmax);
}

/* ---- benches ---- */

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
    int t0[BAND], t1[BAND];
    if (k->multiply) {
        k->begin();
        for (int j = 0; j < PAGES; j++) {
            k->pack_right(b->k16 + (size_t)j * tern_bf16_right(D, TERN_PAGE), tern_bf16_band(D), b->k, D, TERN_PAGE);
            k->pack_right(b->v16 + tern_bf16_band(j * TERN_PAGE), tern_bf16_band(TOKENS), b->v, TERN_PAGE, D);
        }
    }
    for (int i = 0; i < ROWS; i += BAND) {
        float *q = b->q + i * D, *o = b->o + i * D;
        for (int r = 0; r < BAND; r++) {
            m[r] = l[r] = 0;
            t0[r] = 0;
            t1[r] = TOKENS;
        }
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
        k->softmax(b->p16, b->s, BAND * TERN_PAGE, PAGES, BAND, t0, t1, m, l, shrink);
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
}

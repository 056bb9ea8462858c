/* Products of prompt rows in the class of the machine: the kernels of the level, and on every machine the bf16 class on
 * emulated tiles. */
#include "gemm_case.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tern_prompt_init_emulated(struct tern_prompt_kernels *k); /* tiles_emulated.h, in check_bf16.c */

static struct tern_prompt_kernels kp; /* under test */
static bool int8;                     /* of that class */
static bool twin_itself;              /* it has no kernel of its own: `narrow` is checked elsewhere, so few cases do */

/* What the class makes of a number before it multiplies. */
static float rounded(float x)
{
    return tern_bf16_to_f32(tern_f32_to_bf16(fabsf(x) < FLT_MIN ? copysignf(0, x) : x));
}

static uint16_t *make_packed(const float *x, size_t x_stride, int n_rows, int k)
{
    size_t band = kp.band(k);
    int bands = (n_rows + TERN_BAND - 1) / TERN_BAND;
    uint16_t *out = check_buf((size_t)bands * band * 2, 64);
    for (int b = 0; b < bands; b++) {
        int r0 = b * TERN_BAND, n = n_rows - r0 < TERN_BAND ? n_rows - r0 : TERN_BAND;
        kp.pack(out + (size_t)b * band, x + (size_t)r0 * x_stride, x_stride, n, k);
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

/* ---- products ---- */

/* Sums of exact products of the rounded numbers, and what the chain's additions may lose: at most 16 in each half, two
 * at the end of each tile, and a subnormal number in any of them. */
static void bf16_oracle(const struct tern_packed *w, const float *x, size_t x_stride, int n_rows, double *out,
                        double *budget)
{
    const int steps = (w->k + TERN_TILE_DEPTH - 1) / TERN_TILE_DEPTH;
    for (int n = 0; n < w->n; n++) {
        for (int i = 0; i < w->k; i++) {
            double weight = rounded((float)weight_exact(w, n, i));
            for (int r = 0; r < n_rows; r++) {
                double term = weight * rounded(x[(size_t)r * x_stride + (size_t)i]);
                out[r * w->n + n] += term;
                budget[r * w->n + n] += fabs(term) * (steps + 18) * 0x1p-24 + FLT_MIN * 2;
            }
        }
    }
}

/* The same of the int16 class: half a step of the codes for each input, and what the chain's additions lose. */
static void int16_oracle(const struct tern_packed *w, const float *x, size_t x_stride, int n_rows, double *out,
                         double *budget)
{
    for (int r = 0; r < n_rows; r++) {
        double amax = 0, step;
        for (int i = 0; i < w->k; i++) {
            const double v = fabs((double)x[(size_t)r * x_stride + (size_t)i]);
            amax = v <= amax ? amax : v; /* a NaN stays */
        }
        step = isfinite(32767.0f / (float)amax) ? amax / 32767 : 2 * amax; /* rows that are too small count as 0 */
        for (int n = 0; n < w->n; n++)
            for (int i = 0; i < w->k; i++) {
                double scale, minimum, code, v = x[(size_t)r * x_stride + (size_t)i];
                weight_parts(w, n, i, &scale, &minimum, &code);
                const double size = fabs(scale * code) + fabs(minimum);
                out[r * w->n + n] += isfinite(amax) ? (scale * code + minimum) * v : NAN;
                budget[r * w->n + n] +=
                    size * 0.51 * step + size * (fabs(v) + step) * (w->k / 8 + 8) * 0x1p-24 + FLT_MIN;
            }
    }
}

/* The same of the int8 class, whose steps are those of 32 inputs.  Infinities and NaN spoil a row, as they do there. */
static void int8_oracle(const struct tern_packed *w, const float *x, size_t x_stride, int n_rows, double *out,
                        double *budget)
{
    for (int at = 0; at < n_rows * w->k; at += TERN_BLOCK) {
        const int r = at / w->k, first = at % w->k;
        double amax = 0, step;
        for (int i = 0; i < TERN_BLOCK; i++) {
            const double v = fabs((double)x[(size_t)r * x_stride + (size_t)(first + i)]);
            amax = v <= amax ? amax : v; /* a NaN stays */
        }
        step = isfinite(127.0f / (float)amax) ? amax / 127 : 2 * amax; /* blocks that are too small count as 0 */
        for (int n = 0; n < w->n; n++)
            for (int i = first; i < first + TERN_BLOCK; i++) {
                double scale, minimum, code, v = x[(size_t)r * x_stride + (size_t)i];
                weight_parts(w, n, i, &scale, &minimum, &code);
                const double size = fabs(scale * code) + fabs(minimum);
                out[r * w->n + n] += isfinite(amax) ? (scale * code + minimum) * v : NAN;
                budget[r * w->n + n] +=
                    size * 0.51 * step + size * (fabs(v) + step) * (w->k / 8 + 8) * 0x1p-24 + FLT_MIN;
            }
    }
}

static bool int16(void)
{
    return !kp.floats && !int8;
}

/* What it is compared with, bit for bit: int16 of plain C, or the narrow kernels, which checks of their own compare
 * with plain C.  false: nothing. */
static bool twin(struct tern_prompt_kernels *out)
{
    if (int8)
        tern_prompt8_init(out);
    else if (int16())
        tern_prompt_init_ref(out);
    return int8 || int16();
}

static bool taken(const struct format *f)
{
    return kp.floats || tern_codes_integer(f->kind.codes);
}

static void product_case(const struct format *f, struct shape s, enum check_fill kind)
{
    if (!taken(f))
        return;
    check_case("%s rows=%d n=%d k=%d %s", f->name, s.n_rows, s.n, s.k, check_fill_name(kind));
    struct tern_packed w = make_weights(f, s.n, s.k, kind == CHECK_NONFINITE ? CHECK_GAUSS : kind);
    struct product p = make_product(s.n_rows, &w);
    size_t x_stride = (size_t)s.k + (size_t)check_range(0, 5), outs = (size_t)s.n_rows * (size_t)s.n;
    float *x = make_rows(s.n_rows, x_stride, s.k, kind);
    double *oracle = calloc(outs, 8), *budget = calloc(outs, 8);
    (int8 ? int8_oracle : int16() ? int16_oracle : bf16_oracle)(&w, x, x_stride, s.n_rows, oracle, budget);
    kp.product(p.y, p.y_stride, make_packed(x, x_stride, s.n_rows, s.k), s.n_rows, &w, p.panel0, p.panel1,
               check_buf(TERN_PROMPT_SCRATCH, 64));
    int c0 = p.panel0 * TERN_PANEL, c1 = p.panel1 * TERN_PANEL < s.n ? p.panel1 * TERN_PANEL : s.n;
    struct tern_prompt_kernels ref;
    if (twin(&ref)) {
        const struct tern_prompt_kernels level = kp;
        kp = ref;
        uint16_t *packed = make_packed(x, x_stride, s.n_rows, s.k);
        kp = level;
        ref.product(p.y_ref, p.y_stride, packed, s.n_rows, &w, p.panel0, p.panel1, NULL);
        for (int r = 0; r < s.n_rows && c0 < c1; r++)
            if (!check_same_f32("y", p.y + (size_t)r * p.y_stride + c0, p.y_ref + (size_t)r * p.y_stride + c0,
                                (size_t)(c1 - c0)))
                break;
    }
    for (int r = 0; r < s.n_rows && c0 < c1; r++) {
        float *y = p.y + (size_t)r * p.y_stride + c0;
        size_t at = (size_t)r * (size_t)s.n + (size_t)c0;
        for (int i = 0; i < c1 - c0 && int8; i++) /* not finite is all that is promised */
            if (isnan(oracle[at + (size_t)i]) && isinf(y[i]))
                y[i] = NAN;
        if (!check_budget("y", y, oracle + at, budget + at, (size_t)(c1 - c0), NULL, 0))
            break;
    }
    check_margins(&p, s.n_rows, s.n);
    free(oracle);
    free(budget);
}

static void part_product(void)
{
    static const int rows[] = {1, 2, 7, 15, 16, 17, 27, 31, 32, 33, 48, 65};
    for (int f = 0; f < N_FORMATS; f++) {
        int step = formats[f].step;
        for (size_t i = (size_t)(f % CHECK_STEP); i < sizeof rows / sizeof *rows; i += twin_itself ? 4 : CHECK_STEP) {
            struct shape s = {rows[i], check_range(1, 70), step == 1 ? check_range(1, 400) : step * check_range(1, 7)};
            if (step == 256)
                s.k = 256 * check_range(1, 3);
            product_case(&formats[f], s, i % 2 ? (enum check_fill)check_range(0, CHECK_NONFINITE) : CHECK_GAUSS);
        }
        for (int kind = f % CHECK_STEP; kind <= CHECK_NONFINITE && !twin_itself; kind += CHECK_STEP)
            product_case(&formats[f], (struct shape){5, 19, step == 1 ? 45 : step == 32 ? 32 * 9 : 512}, kind);
    }
    if (twin_itself)
        return;
    /* Several stages of panels and of inputs, for few rows and for many. */
    product_case(&formats[2], (struct shape){70, 16 * 35 + 3, 600}, CHECK_GAUSS);
    product_case(&formats[3], (struct shape){100, 16 * 17 + 5, 32 * 35}, CHECK_GAUSS);
    product_case(&formats[3], (struct shape){20, 16 * 5 + 5, 32 * 35}, CHECK_GAUSS);
    product_case(&formats[9], (struct shape){97, 16 * 5 + 1, 768}, CHECK_SPREAD);
    product_case(&formats[4], (struct shape){530, 40, 32 * 33}, CHECK_GAUSS); /* and passes */
}

/* ---- gate and up ---- */

static float *product_of(const struct tern_packed *w, const uint16_t *x, int n_rows)
{
    float *y = check_buf((size_t)n_rows * (size_t)w->n * 4, 64);
    kp.product(y, (size_t)w->n, x, n_rows, w, 0, tern_panels(w), check_buf(TERN_PROMPT_SCRATCH, 64));
    return y;
}

/* act(gate) * up in double precision, of one number. */
static double gated_exactly(double gate, double up, bool gelu)
{
    const double u = 0.7978845608028654 * (gate + 0.044715 * gate * gate * gate);
    return gelu ? 0.5 * gate * (1 + tanh(u)) * up : gate / (1 + exp(-gate)) * up;
}

/* Against products, activation and packing by themselves, bit for bit, and those products in double precision. */
static void gated_case(const struct format *f, const struct format *g, struct shape s, bool gelu)
{
    check_case("%s %s rows=%d n=%d k=%d%s", f->name, g->name, s.n_rows, s.n, s.k, gelu ? " gelu" : "");
    const struct tern_packed gate = make_weights(f, s.n, s.k, CHECK_GAUSS), up = make_weights(g, s.n, s.k, CHECK_GAUSS);
    const size_t n = (size_t)s.n, band = kp.band(s.n), bands = ((size_t)s.n_rows + TERN_BAND - 1) / TERN_BAND;
    const uint16_t *x = make_packed(make_rows(s.n_rows, (size_t)s.k, s.k, CHECK_GAUSS), (size_t)s.k, s.n_rows, s.k);
    const float *to_gate = product_of(&gate, x, s.n_rows), *to_up = product_of(&up, x, s.n_rows);
    float *both = check_buf((size_t)s.n_rows * n * 4, 64);
    uint16_t *out = check_buf(bands * band * 2, 64), *want;
    for (int p0 = 0, p1; p0 < tern_panels(&gate); p0 = p1) { /* panel ranges */
        p1 = p0 + 2 * check_range(1, 6);
        p1 = p1 < tern_panels(&gate) ? p1 : tern_panels(&gate);
        kp.gated(out, x, s.n_rows, &gate, &up, gelu, p0, p1, check_buf(TERN_PROMPT_SCRATCH, 64));
    }
    for (int r = 0; r < s.n_rows; r++)
        (gelu ? tern_k.vec.gelu_mul : tern_k.vec.silu_mul)(both + (size_t)r * n, to_gate + (size_t)r * n,
                                                           to_up + (size_t)r * n, s.n);
    want = make_packed(both, n, s.n_rows, s.n);
    for (size_t at = 0; at < bands * band; at++) {
        const size_t r = at / band * TERN_BAND + at % band / TERN_TILE_DEPTH % TERN_BAND;
        const size_t i = at % band / (2 * TERN_TILE) * TERN_TILE_DEPTH + at % TERN_TILE_DEPTH;
        if (s.n_rows - (int)(r / TERN_BAND * TERN_BAND) <= TERN_TILE_ROWS && r % TERN_BAND >= TERN_TILE_ROWS) {
            check_unwritten("second tile", &out[at], 2);
            continue;
        }
        if (out[at] != want[at])
            check_fail("row %zu input %zu = %04x, expected %04x", r, i, out[at], want[at]);
        if (r >= (size_t)s.n_rows)
            continue;
        const double a = to_gate[r * n + i], b = to_up[r * n + i], exact = gated_exactly(a, b, gelu);
        const double budget = fabs(exact) * (0x1p-8 + 4e-7) + 3e-7 * fabs(a * b) * gelu + 2 * FLT_MIN;
        if (!(fabs(tern_bf16_to_f32(out[at]) - exact) <= budget))
            check_fail("row %zu input %zu = %g, expected %g", r, i, tern_bf16_to_f32(out[at]), exact);
    }
}

static void part_gated(void)
{
    static const int rows[] = {1, 16, 17, 32, 33, 65, 70};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int gelu = 0; gelu < 2; gelu++)
            gated_case(&formats[3 + i], &formats[3 + i], (struct shape){rows[i], 32 * check_range(1, 5), 256}, gelu);
    gated_case(&formats[3], &formats[2], (struct shape){70, 96, 256}, false); /* two kinds of weights */
    /* Several stages of panels and of inputs, for few rows and for many, and passes. */
    gated_case(&formats[3], &formats[3], (struct shape){100, 32 * 17, 32 * 35}, false);
    gated_case(&formats[3], &formats[3], (struct shape){20, 32 * 5, 32 * 35}, true);
    gated_case(&formats[4], &formats[4], (struct shape){530, 64, 32 * 33}, false);
}

/* ---- weights ---- */

/* A row of x that is 1 at one input and 0 elsewhere brings that input's weights back (in bf16; integers are compared
 * with a twin instead). */
static void part_weights(void)
{
    for (int f = 0; f < N_FORMATS && kp.floats; f++)
        for (int kind = f % CHECK_STEP; kind < CHECK_N_FINITE; kind += CHECK_STEP) {
            int k = formats[f].step == 1 ? 75 : formats[f].step == 32 ? 96 : 512, n = 21;
            check_case("%s n=%d k=%d %s", formats[f].name, n, k, check_fill_name(kind));
            struct tern_packed w = make_weights(&formats[f], n, k, kind);
            float *x = check_buf((size_t)k * (size_t)k * 4, 4), *y = check_buf((size_t)k * (size_t)n * 4, 4);
            for (int i = 0; i < k * k; i++)
                x[i] = i / k == i % k;
            kp.product(y, (size_t)n, make_packed(x, (size_t)k, k, k), k, &w, 0, 2, check_buf(TERN_PROMPT_SCRATCH, 64));
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
    if (!taken(f))
        return;
    check_case("%s rows=%d n=%d k=%d", f->name, s.n_rows, s.n, s.k);
    struct tern_packed w = make_weights(f, s.n, s.k, CHECK_GAUSS);
    size_t x_stride = (size_t)s.k, n = (size_t)s.n;
    float *x = make_rows(s.n_rows, x_stride, s.k, CHECK_SPREAD);
    float *y = check_buf((size_t)s.n_rows * n * 4, 4), *part = check_buf((size_t)s.n_rows * n * 4, 4);
    void *scratch = check_buf(TERN_PROMPT_SCRATCH, 64);
    int panels = tern_panels(&w);
    uint16_t *all = make_packed(x, x_stride, s.n_rows, s.k);
    kp.product(y, n, all, s.n_rows, &w, 0, panels, scratch);
    for (int p0 = 0, p1; p0 < panels; p0 = p1) { /* panel ranges */
        p1 = p0 + check_range(1, 5) < panels ? p0 + check_range(1, 5) : panels;
        p1 = p1 < panels ? p1 : panels;
        kp.product(part, n, all, s.n_rows, &w, p0, p1, scratch);
    }
    same_columns("y by panel ranges", part, y, s.n_rows, s.n, 0, s.n);
    for (int r0 = 0, rows; r0 < s.n_rows; r0 += rows) { /* n_rows and places */
        rows = check_range(1, 40);
        rows = rows < s.n_rows - r0 ? rows : s.n_rows - r0;
        uint16_t *some = make_packed(x + (size_t)r0 * x_stride, x_stride, rows, s.k);
        kp.product(part, n, some, rows, &w, 0, panels, scratch);
        same_columns("y by rows", part, y + (size_t)r0 * n, rows, s.n, 0, s.n);
    }
}

static void part_invariance(void)
{
    for (int f = 0; f < N_FORMATS; f += twin_itself ? 5 : 1)
        invariance_case(&formats[f], (struct shape){check_range(60, 90), check_range(33, 90),
                                                    formats[f].step == 1    ? 77
                                                    : formats[f].step == 32 ? 160
                                                                            : 256});
    invariance_case(&formats[4], (struct shape){101, 16 * 19 + 9, 32 * 37});
}

static void all_parts(const char *suffix)
{
    char name[48];
    snprintf(name, sizeof name, "prompt.product%s", suffix);
    check_part(name, part_product);
    if (kp.gated) {
        snprintf(name, sizeof name, "prompt.gated%s", suffix);
        check_part(name, part_gated);
    }
    snprintf(name, sizeof name, "prompt.weights%s", suffix);
    check_part(name, part_weights);
    snprintf(name, sizeof name, "prompt.same%s", suffix);
    check_part(name, part_invariance);
}

void check_prompt(void)
{
    if (!tern_k.mask) { /* once: at plain C */
        tern_prompt_init_emulated(&kp);
        all_parts(" emulated");
    }
    kp = tern_k.prompt;
    if (kp.product != check_below.prompt.product)
        all_parts("");
    if (tern_k.prompt8.product == check_below.prompt8.product)
        return;
    int8 = true;
    kp = tern_k.prompt8;
    struct tern_prompt_kernels other;
    twin_itself = twin(&other) && other.product == kp.product;
    all_parts(" int8");
    int8 = twin_itself = false;
}

/* ---- benches ---- */

struct bench {
    struct tern_packed w;
    int n_rows;
    bool int8;
    float *x, *y;
    uint16_t *packed;
    void *scratch;
};

/* What prompt rows cost at this level: the class of the machine where there is one, packing included, else the wide
 * class; or int8. */
static double run_prompt(void *ctx)
{
    struct bench *b = ctx;
    int panels = tern_k.mask ? tern_panels(&b->w) : 1, rows = tern_k.mask ? b->n_rows : 1;
    size_t k = (size_t)b->w.k, n = (size_t)b->w.n;
    const struct tern_prompt_kernels *p = b->int8 ? &tern_k.prompt8 : &tern_k.prompt;
    const bool own = p->product && (p->floats || tern_codes_integer(b->w.codes));
    for (int r = 0; r < rows && own; r += TERN_BAND)
        p->pack(b->packed + (size_t)(r / TERN_BAND) * p->band(b->w.k), b->x + (size_t)r * k, k,
                rows - r < TERN_BAND ? rows - r : TERN_BAND, b->w.k);
    if (own)
        p->product(b->y, n, b->packed, rows, &b->w, 0, panels, b->scratch);
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
    b.packed = map_bytes(values * 3);
    b.scratch = map_bytes(TERN_PROMPT_SCRATCH);
    fill_ordinary(data, weights);
    for (size_t i = 0; i < values; i++)
        b.x[i] = (float)((int)(i % 101) - 50) * 0.01f;
    struct check_timing t = {label, run_prompt, &b, "FLOP", check_roof_prompt, NULL};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        b.n_rows = rows[i];
        for (int c = 0; c < (tern_codes_integer(b.w.codes) ? 2 : 1); c++) {
            b.int8 = c;
            snprintf(label, sizeof label, "prompt.product%s %s %dx%d rows=%d", c ? " int8" : "", f->name, n, k,
                     rows[i]);
            check_bench(&t);
        }
    }
    munmap(data, weights);
    munmap(b.x, values * 4);
    munmap(b.y, (size_t)512 * (size_t)n * 4);
    munmap(b.packed, values * 3);
    munmap(b.scratch, TERN_PROMPT_SCRATCH);
}

void bench_prompt(void)
{
    for (int f = 0; f < N_FORMATS; f++)
        bench_shape(&formats[f], 2048, f == 3 ? 8192 : 2048);
    bench_shape(&formats[3], 576, 1536);
    bench_shape(&formats[3], 8192, 2048);
}

#include "checkasm.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const int lengths[] = {1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 127, 576, 1000, 2048};
#define N_LENGTHS (sizeof lengths / sizeof *lengths)
#define MAX_N     2048

static double oracle[MAX_N], budget[MAX_N];

static float *floats(int n)
{
    return check_buf((size_t)n * 4, 64);
}

/* Runs fn(n, kind) over all lengths and fills. */
static void sweep(void (*fn)(int n, enum check_fill kind), enum check_fill last)
{
    for (size_t i = 0; i < N_LENGTHS; i++) {
        for (int kind = 0; kind <= (int)last; kind++) {
            check_case("n=%d %s", lengths[i], check_fill_name(kind));
            fn(lengths[i], kind);
        }
    }
}

/* ---- rmsnorm ---- */

static void rmsnorm_case(int n, enum check_fill kind)
{
    const float eps = 1e-5f;
    for (int variant = 0; variant < 3; variant++) { /* without weight, with weight, in place */
        float *x = floats(n), *w = floats(n), *y = floats(n), *ref = floats(n);
        check_fill_f32(x, (size_t)n, kind);
        check_fill_f32(w, (size_t)n, CHECK_GAUSS);
        check_ref.vec.rmsnorm(ref, x, variant ? w : NULL, n, eps);
        double sum = 0;
        for (int i = 0; i < n; i++)
            sum += (double)x[i] * x[i];
        for (int i = 0; i < n; i++) {
            oracle[i] = x[i] / sqrt(sum / n + eps) * (variant ? w[i] : 1);
            budget[i] = fabs(oracle[i]) * (n / 16 + 12) * 0x1p-24 + 1e-30;
        }
        if (variant == 2) {
            memcpy(y, x, (size_t)n * 4);
            tern_k.vec.rmsnorm(y, y, w, n, eps);
        } else {
            tern_k.vec.rmsnorm(y, x, variant ? w : NULL, n, eps);
        }
        check_same_f32("y", y, ref, (size_t)n);
        if (sum < 1e38) /* beyond, the f32 sum of the contract is infinite */
            check_budget("y", y, oracle, budget, (size_t)n, NULL, 0);
    }
}

static void part_rmsnorm(void)
{
    sweep(rmsnorm_case, CHECK_HUGE);
}

/* ---- add, scale ---- */

static void add_case(int n, enum check_fill kind)
{
    float *a = floats(n), *b = floats(n), *y = floats(n), *ref = floats(n);
    check_fill_f32(a, (size_t)n, kind);
    check_fill_f32(b, (size_t)n, kind);
    for (int i = 0; i < n; i++)
        ref[i] = a[i] + b[i];
    tern_k.vec.add(y, a, b, n);
    check_same_f32("y", y, ref, (size_t)n);
    memcpy(y, b, (size_t)n * 4);
    tern_k.vec.add(y, a, y, n);
    check_same_f32("y = b", y, ref, (size_t)n);
    tern_k.vec.add(a, a, b, n);
    check_same_f32("y = a", a, ref, (size_t)n);
}

static void part_add(void)
{
    sweep(add_case, CHECK_NONFINITE);
}

static void scale_case(int n, enum check_fill kind)
{
    float *x = floats(n), *y = floats(n), *ref = floats(n), s = (float)check_gauss();
    check_fill_f32(x, (size_t)n, kind);
    for (int i = 0; i < n; i++)
        ref[i] = x[i] * s;
    tern_k.vec.scale(y, x, s, n);
    check_same_f32("y", y, ref, (size_t)n);
    tern_k.vec.scale(x, x, s, n);
    check_same_f32("y = x", x, ref, (size_t)n);
}

static void part_scale(void)
{
    sweep(scale_case, CHECK_NONFINITE);
}

/* ---- silu_mul, gelu_mul, sigmoid_mul ---- */

typedef void gated_fn(float *y, const float *gate, const float *up, int n);

static double exact_silu(double g)
{
    return g < -700 ? 0 : g / (1 + exp(-g));
}

static double exact_gelu(double g)
{
    double t = -2 * sqrt(2 / M_PI) * (g + 0.044715 * g * g * g);
    return t > 700 ? 0 : g / (1 + exp(t));
}

static double exact_sigmoid(double g)
{
    return g < -700 ? 0 : 1 / (1 + exp(-g));
}

/* `slack`: budget in terms of |gate * up|. */
static void gated_outputs(gated_fn *fn, double (*exact)(double), double slack, const float *gate, const float *up,
                          int n)
{
    float *y = floats(n), *one = floats(1);
    for (int i = 0; i < n; i++) {
        oracle[i] = isnan(gate[i]) || isnan(up[i]) ? NAN : exact(gate[i]) * up[i];
        budget[i] = 4e-7 * fabs(oracle[i]) + slack * fabs((double)gate[i] * up[i]) + 1e-30;
    }
    fn(y, gate, up, n);
    check_budget("y", y, oracle, budget, (size_t)n, NULL, 0);
    for (int i = 0; i < n; i += 1 + n / 16) { /* the same element alone, at another place */
        fn(one, gate + i / 16 * 16, up + i / 16 * 16, 1);
        check_same_f32("element alone", one, y + i / 16 * 16, 1);
    }
    float *alias = floats(n);
    memcpy(alias, gate, (size_t)n * 4);
    fn(alias, alias, up, n);
    check_same_f32("y = gate", alias, y, (size_t)n);
    memcpy(alias, up, (size_t)n * 4);
    fn(alias, gate, alias, n);
    check_same_f32("y = up", alias, y, (size_t)n);
}

static gated_fn *gated;
static double (*gated_exact)(double);
static double gated_slack;

static void gated_case(int n, enum check_fill kind)
{
    float *gate = floats(n), *up = floats(n);
    check_fill_f32(gate, (size_t)n, kind);
    check_fill_f32(up, (size_t)n, kind == CHECK_NONFINITE ? CHECK_GAUSS : kind);
    if (kind == CHECK_HUGE) { /* their product would only test infinities */
        for (int i = 0; i < n; i++)
            gate[i] = (float)((check_uniform() - 0.5) * 500);
    }
    for (int i = 0; i < n && kind == CHECK_NONFINITE; i++)
        gate[i] = isinf(gate[i]) ? -INFINITY : gate[i];
    gated_outputs(gated, gated_exact, gated_slack, gate, up, n);
}

/* Every sixteenth of a power of two from 2^-20 to 2^8, both signs. */
static void gated_grid(void)
{
    int n = 28 * 16 * 2;
    check_case("grid");
    float *gate = floats(n), *up = floats(n);
    for (int i = 0; i < n; i++) {
        gate[i] = (float)(exp2(-20 + (i / 2) / 16.0) * (i % 2 ? -1 : 1));
        up[i] = 1 + (float)check_uniform();
    }
    gated_outputs(gated, gated_exact, gated_slack, gate, up, n);
}

static void part_silu_mul(void)
{
    gated = tern_k.vec.silu_mul;
    gated_exact = exact_silu;
    gated_slack = 0;
    gated_grid();
    sweep(gated_case, CHECK_NONFINITE);
}

static void part_gelu_mul(void)
{
    gated = tern_k.vec.gelu_mul;
    gated_exact = exact_gelu;
    gated_slack = 3e-7;
    gated_grid();
    sweep(gated_case, CHECK_NONFINITE);
}

static void part_sigmoid_mul(void)
{
    gated = tern_k.vec.sigmoid_mul;
    gated_exact = exact_sigmoid;
    gated_slack = 0;
    gated_grid();
    sweep(gated_case, CHECK_NONFINITE);
}

/* ---- rope ---- */

static void rope_case(int n_rot, int dim, int interleaved)
{
    check_case("n_rot=%d dim=%d interleaved=%d", n_rot, dim, interleaved);
    int half = n_rot / 2;
    float *x = floats(dim), *ref = floats(dim), *cs = floats(half), *sn = floats(half);
    check_fill_f32(x, (size_t)dim, CHECK_SPREAD);
    for (int i = 0; i < half; i++) {
        double angle = check_gauss() * 10;
        cs[i] = (float)cos(angle);
        sn[i] = (float)sin(angle);
    }
    memcpy(ref, x, (size_t)dim * 4);
    for (int i = 0; i < dim; i++) {
        oracle[i] = x[i];
        budget[i] = 0;
    }
    for (int i = 0; i < half; i++) {
        int ia = interleaved ? 2 * i : i, ib = interleaved ? 2 * i + 1 : i + half;
        double a = x[ia], b = x[ib];
        oracle[ia] = a * cs[i] - b * sn[i];
        oracle[ib] = b * cs[i] + a * sn[i];
        budget[ia] = budget[ib] = (fabs(a) + fabs(b)) * 0x1p-23;
    }
    tern_k.vec.rope(x, cs, sn, n_rot, interleaved);
    check_ref.vec.rope(ref, cs, sn, n_rot, interleaved);
    check_same_f32("x", x, ref, (size_t)dim);
    check_budget("x", x, oracle, budget, (size_t)dim, NULL, 0);
}

static void part_rope(void)
{
    static const int rots[] = {2, 4, 6, 8, 10, 14, 16, 18, 32, 34, 64, 96, 100, 128, 256};
    for (size_t i = 0; i < sizeof rots / sizeof *rots; i++) {
        for (int interleaved = 0; interleaved < 2; interleaved++) {
            rope_case(rots[i], rots[i], interleaved);
            rope_case(rots[i], rots[i] + 13, interleaved);
        }
    }
}

/* ---- softcap ---- */

static void softcap_case(int n, enum check_fill kind)
{
    float *x = floats(n), *y = floats(n);
    float cap = (float)(1 + check_uniform() * 60);
    check_fill_f32(x, (size_t)n, kind);
    if (kind == CHECK_GAUSS) {
        for (int i = 0; i < n; i++)
            x[i] *= cap;
    }
    for (int i = 0; i < n; i++) {
        oracle[i] = cap * tanh((double)x[i] / cap);
        budget[i] = 1e-6 * cap;
    }
    tern_k.vec.softcap(y, x, cap, n);
    check_budget("y", y, oracle, budget, (size_t)n, NULL, 0);
    tern_k.vec.softcap(x, x, cap, n);
    check_same_f32("y = x", x, y, (size_t)n);
}

static void part_softcap(void)
{
    sweep(softcap_case, CHECK_NONFINITE);
}

void check_vec(void)
{
    CHECK_PART(vec.rmsnorm, part_rmsnorm);
    CHECK_PART(vec.add, part_add);
    CHECK_PART(vec.scale, part_scale);
    CHECK_PART(vec.silu_mul, part_silu_mul);
    CHECK_PART(vec.gelu_mul, part_gelu_mul);
    CHECK_PART(vec.sigmoid_mul, part_sigmoid_mul);
    CHECK_PART(vec.rope, part_rope);
    CHECK_PART(vec.softcap, part_softcap);
}

/* ---- benches: rows that stay in the first cache, against reading that cache ---- */

#define BENCH_N 4096
static float bench_x[BENCH_N] __attribute__((aligned(64))), bench_y[BENCH_N] __attribute__((aligned(64)));
static float bench_w[BENCH_N] __attribute__((aligned(64)));

static double run_rmsnorm(void *unused)
{
    (void)unused;
    tern_k.vec.rmsnorm(bench_y, bench_x, bench_w, BENCH_N, 1e-5f);
    return 3.0 * sizeof bench_x;
}

static double run_add(void *unused)
{
    (void)unused;
    tern_k.vec.add(bench_y, bench_x, bench_w, BENCH_N);
    return 2.0 * sizeof bench_x;
}

static double run_silu_mul(void *unused)
{
    (void)unused;
    tern_k.vec.silu_mul(bench_y, bench_x, bench_w, BENCH_N);
    return 2.0 * sizeof bench_x;
}

static double run_gelu_mul(void *unused)
{
    (void)unused;
    tern_k.vec.gelu_mul(bench_y, bench_x, bench_w, BENCH_N);
    return 2.0 * sizeof bench_x;
}

static double run_rope(void *interleaved)
{
    tern_k.vec.rope(bench_y, bench_w, bench_w + 64, 128, interleaved != NULL);
    return 4.0 * 256;
}

void bench_vec(void)
{
    static const struct {
        const char *label;
        double (*fn)(void *);
        void *ctx;
    } runs[] = {
        {"vec.rmsnorm n=4096", run_rmsnorm, NULL},   {"vec.add n=4096", run_add, NULL},
        {"vec.silu_mul n=4096", run_silu_mul, NULL}, {"vec.gelu_mul n=4096", run_gelu_mul, NULL},
        {"vec.rope 128 halves", run_rope, NULL},     {"vec.rope 128 pairs", run_rope, bench_x},
    };
    for (int i = 0; i < BENCH_N; i++) {
        bench_x[i] = (float)(i % 37 - 18) * 0.2f;
        bench_w[i] = (float)(i % 11) * 0.1f;
    }
    struct check_read read = {bench_x, sizeof bench_x};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        memset(bench_y, 0, sizeof bench_y);
        check_bench(&(struct check_timing){runs[i].label, runs[i].fn, runs[i].ctx, "B", check_roof_read, &read});
    }
}

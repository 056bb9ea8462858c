/* Attention inside one page: scores, the running softmax, accumulation, conversions. */
#include "checkasm.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/fp16.h"

#define MAX_DIM 264
#define MAX_Q   33

static const int dims[] = {8, 16, 24, 64, 72, 80, 128, 136, 256, MAX_DIM};
#define N_DIMS (int)(sizeof dims / sizeof *dims)

static void random_shape(int i, int *dim, int *n_q)
{
    *dim = dims[i % N_DIMS];
    *n_q = i < 4 * N_DIMS ? 1 + i % 19 : check_range(1, MAX_Q);
}

/* ---- scores ---- */

static void score_oracle(double *s, double *budget, const float *q, const float *k, int dim, int n_q)
{
    for (int i = 0; i < n_q; i++)
        for (int t = 0; t < TERN_PAGE; t++) {
            double sum = 0, mag = 0;
            for (int d = 0; d < dim; d++) {
                double v = (double)q[i * dim + d] * (double)k[d * TERN_PAGE + t];
                sum += v;
                mag += fabs(v);
            }
            s[i * TERN_PAGE + t] = sum;
            budget[i * TERN_PAGE + t] = dim * 0x1p-24 * mag + FLT_MIN;
        }
}

static void part_score(bool half)
{
    static double oracle[MAX_Q * TERN_PAGE], budget[MAX_Q * TERN_PAGE];
    static float want[MAX_Q * TERN_PAGE], alone[TERN_PAGE] __attribute__((aligned(64)));
    for (int c = 0; c < CHECK_TIMES(200); c++) {
        int dim, n_q;
        random_shape(c, &dim, &n_q);
        enum check_fill fill = (enum check_fill)(c % CHECK_N_FINITE);
        check_case("dim %d, n_q %d, %s", dim, n_q, check_fill_name(fill));
        size_t n_k = (size_t)dim * TERN_PAGE, n_s = (size_t)n_q * TERN_PAGE;
        float *q = check_buf((size_t)(n_q * dim) * 4, 4);
        float *k = check_buf(n_k * 4, 64);
        uint16_t *kh = check_buf(n_k * 2, 64);
        float *s = check_buf(n_s * 4, 64);
        check_fill_f32(q, (size_t)(n_q * dim), c % 3 ? CHECK_GAUSS : fill);
        check_fill_f16(kh, n_k, fill);
        check_ref.attn.f16_to_f32(k, kh, n_k);
        if (!half)
            check_fill_f32(k, n_k, fill);

        if (half)
            tern_k.attn.score_f16(s, q, kh, dim, n_q, kh);
        else
            tern_k.attn.score_f32(s, q, k, dim, n_q);
        if (fill != CHECK_HUGE || half) { /* huge f32 products overflow on purpose; bits are compared below */
            score_oracle(oracle, budget, q, k, dim, n_q);
            check_budget("s", s, oracle, budget, n_s, NULL, 0);
        }
        check_ref.attn.score_f32(want, q, k, dim, n_q);
        check_same_f32("s against plain C", s, want, n_s);
        int i = check_range(0, n_q - 1);
        if (half)
            tern_k.attn.score_f16(alone, q + i * dim, kh, dim, 1, NULL);
        else
            tern_k.attn.score_f32(alone, q + i * dim, k, dim, 1);
        check_same_f32("one row alone", alone, s + i * TERN_PAGE, TERN_PAGE);
    }
}

static void part_score_f32(void)
{
    part_score(false);
}

static void part_score_f16(void)
{
    part_score(true);
}

/* ---- accumulation ---- */

static void accum_oracle(double *o, double *budget, const float *o0, const float *p, const float *v,
                         const float *shrink, int dim, int n_tok, int n_q)
{
    for (int i = 0; i < n_q; i++)
        for (int d = 0; d < dim; d++) {
            double start = (double)o0[i * dim + d] * (shrink ? (double)shrink[i] : 1.0);
            double sum = start, mag = fabs(start);
            for (int t = 0; t < n_tok; t++) {
                double x = (double)p[i * TERN_PAGE + t] * (double)v[t * dim + d];
                sum += x;
                mag += fabs(x);
            }
            o[i * dim + d] = sum;
            budget[i * dim + d] = (n_tok + 1) * 0x1p-24 * mag + FLT_MIN;
        }
}

static void call_accum(bool half, float *o, const float *p, const float *v, const uint16_t *vh, const float *shrink,
                       int dim, int n_tok, int n_q)
{
    if (half)
        tern_k.attn.accum_f16(o, p, vh, shrink, dim, n_tok, n_q, n_tok % 2 ? vh : NULL);
    else
        tern_k.attn.accum_f32(o, p, v, shrink, dim, n_tok, n_q);
}

static void part_accum(bool half)
{
    static double oracle[MAX_Q * MAX_DIM], budget[MAX_Q * MAX_DIM];
    static float o0[MAX_Q * MAX_DIM], want[MAX_Q * MAX_DIM], alone[MAX_DIM];
    static const int toks[] = {64, 64, 0, 1, 4, 63, 15, 16, 17, 33};
    for (int c = 0; c < CHECK_TIMES(240); c++) {
        int dim, n_q;
        random_shape(c, &dim, &n_q);
        int n_tok = toks[check_range(0, 9)];
        enum check_fill fill = (enum check_fill)(c % CHECK_N_FINITE);
        bool no_p = c % 16 == 15, with_shrink = c % 5 != 0;
        check_case("dim %d, n_tok %d, n_q %d, %s%s%s", dim, n_tok, n_q, check_fill_name(fill),
                   with_shrink ? "" : ", no shrink", no_p ? ", p = 0" : "");
        size_t n_o = (size_t)(n_q * dim), n_v = (size_t)(n_tok * dim), n_p = (size_t)n_q * TERN_PAGE;
        float *o = check_buf(n_o * 4, 4), *p = check_buf(n_p * 4, 4), *v = check_buf(n_v * 4, 4);
        uint16_t *vh = check_buf(n_v * 2, 2);
        float *shrink = check_buf((size_t)n_q * 4, 4);
        check_fill_f32(o0, n_o, CHECK_GAUSS);
        check_fill_f16(vh, n_v, fill);
        for (size_t i = 0; i < n_v; i++)
            v[i] = tern_f16_to_f32(vh[i]);
        if (!half)
            check_fill_f32(v, n_v, fill);
        for (size_t i = 0; i < n_p; i++)
            p[i] = no_p || check_rand() % 4 == 0 ? 0 : (float)check_uniform();
        for (int i = 0; i < n_q; i++)
            shrink[i] = check_rand() % 3 == 0 ? (float)(check_rand() % 2) : (float)check_uniform();
        const float *sh = with_shrink ? shrink : NULL;

        memcpy(o, o0, n_o * 4);
        call_accum(half, o, p, v, vh, sh, dim, n_tok, n_q);
        accum_oracle(oracle, budget, o0, p, v, sh, dim, n_tok, n_q);
        check_budget("o", o, oracle, budget, n_o, NULL, 0);
        memcpy(want, o0, n_o * 4);
        check_ref.attn.accum_f32(want, p, v, sh, dim, n_tok, n_q);
        check_same_f32("o against plain C", o, want, n_o);
        if (no_p && !with_shrink)
            check_same_f32("o with p = 0", o, o0, n_o);
        int i = check_range(0, n_q - 1);
        memcpy(alone, o0 + i * dim, (size_t)dim * 4);
        call_accum(half, alone, p + i * TERN_PAGE, v, vh, sh ? sh + i : NULL, dim, n_tok, 1);
        check_same_f32("one row alone", alone, o + i * dim, (size_t)dim);
    }
}

static void part_accum_f32(void)
{
    part_accum(false);
}

static void part_accum_f16(void)
{
    part_accum(true);
}

/* ---- softmax ---- */

#define MAX_TOKENS (TERN_SOFTMAX_PAGES * TERN_PAGE)

/* Fills s with one of several shapes; outside [t0, t1) lie NaN and infinities that must not be seen. */
static void softmax_input(float *s, int n, int kind, int t0, int t1)
{
    static const float nasty[] = {NAN, INFINITY, -INFINITY, FLT_MAX};
    for (int t = 0; t < n; t++) {
        double g = check_gauss();
        switch (kind) {
        case 0:
            s[t] = (float)g;
            break;
        case 1:
            s[t] = (float)(40 * g);
            break;
        case 2:
            s[t] = 3.25f; /* all equal */
            break;
        case 3:
            s[t] = (float)(-160 * check_uniform());
            break;
        case 4:
            s[t] = check_rand() & 1 ? -1e30f : 1e30f;
            break;
        default:
            s[t] = (float)(1000 + g);
            break;
        }
        if (t < t0 || t >= t1)
            s[t] = nasty[check_rand() % 4];
    }
}

static void check_softmax_case(const float *in, const float *out, int n, int t0, int t1, float m0, float l0, float m,
                               float l, float shrink)
{
    double p[MAX_TOKENS], budget[MAX_TOKENS], sum = 0;
    float top = m0;
    for (int t = t0; t < t1; t++)
        top = in[t] > top ? in[t] : top;
    if (m != top)
        check_fail("m = %g, expected %g", m, top);
    for (int t = 0; t < n; t++) {
        bool in_range = t >= t0 && t < t1;
        /* The argument is an f32 difference; what lies below 2^-126 may become 0. */
        p[t] = in_range ? exp2((double)(float)(in[t] - top)) : 0;
        budget[t] = in_range ? 3e-7 * p[t] + (p[t] < 0x1p-126 ? 0x1p-126 : 0) : 0;
        sum += p[t];
        if (in_range && in[t] - top < -150 && out[t] != 0)
            check_fail("s[%d] = %g for an argument of %g", t, out[t], in[t] - top);
    }
    check_budget("s", out, p, budget, (size_t)n, NULL, 0);
    double want = m0 == -INFINITY ? 0 : exp2((double)(float)(m0 - top)), want_budget = 3e-7 * want + 0x1p-126;
    if (m == m0)
        want_budget = 0;
    check_budget("shrink", &shrink, &want, &want_budget, 1, NULL, 0);
    double l_want = (double)l0 * want + sum, l_budget = 2e-6 * l_want;
    check_budget("l", &l, &l_want, &l_budget, 1, NULL, 0);
}

/* Scores of the pages one behind the other, however they lie in s. */
static void gather(float *to, const float *s, size_t stride, int n_pages)
{
    for (int page = 0; page < n_pages; page++)
        memcpy(to + page * TERN_PAGE, s + (size_t)page * stride, TERN_PAGE * sizeof *to);
}

static void softmax_case(int c, int n_pages, int t0, int t1)
{
    const int n = n_pages * TERN_PAGE, kind = check_range(0, 5), old = check_range(0, 3);
    const size_t stride = TERN_PAGE + (c % 5 ? 16 * (size_t)check_range(0, 9) : 0);
    check_case("%d pages, tokens %d..%d, kind %d, old %d", n_pages, t0, t1, kind, old);
    const size_t all = (size_t)(n_pages - 1) * stride + TERN_PAGE;
    float *s = check_buf(all * 4, 64), *ref = check_buf(all * 4, 64), in[MAX_TOKENS], out[MAX_TOKENS], want[MAX_TOKENS];
    float m0 = -INFINITY, l0 = 0;
    softmax_input(in, n, kind, t0, t1);
    for (int page = 0; page < n_pages; page++) {
        memcpy(s + (size_t)page * stride, in + page * TERN_PAGE, TERN_PAGE * sizeof *s);
        memcpy(ref + (size_t)page * stride, in + page * TERN_PAGE, TERN_PAGE * sizeof *s);
    }
    if (old) {
        float first = t0 < t1 ? in[t0] : 0;
        m0 = old == 1 ? first - 5 : old == 2 ? first + 7 : first;
        l0 = (float)(1 + 10 * check_uniform());
    }
    float m = m0, l = l0, m_ref = m0, l_ref = l0;
    float shrink = tern_k.attn.softmax(s, stride, n_pages, t0, t1, &m, &l);
    float shrink_ref = check_ref.attn.softmax(ref, stride, n_pages, t0, t1, &m_ref, &l_ref);
    gather(out, s, stride, n_pages);
    gather(want, ref, stride, n_pages);
    check_same_f32("s against plain C", out, want, (size_t)n);
    check_same_f32("state against plain C", (float[]){m, l, shrink}, (float[]){m_ref, l_ref, shrink_ref}, 3);
    if (t0 < t1)
        check_softmax_case(in, out, n, t0, t1, m0, l0, m, l, shrink);
    else if (shrink != 1 || l != l0 || m != m0)
        check_fail("an empty range changed the state");
    for (int t = 0; t < n; t++)
        if ((t < t0 || t >= t1) && tern_f32_bits(out[t]) != 0)
            check_fail("s[%d] = %g outside the range", t, out[t]);
}

static void part_softmax(void)
{
    for (int c = 0; c < CHECK_TIMES(4000); c++) {
        int n_pages = c < 130 ? 1 : 1 + c % TERN_SOFTMAX_PAGES, n = n_pages * TERN_PAGE;
        int t0 = c % 3 ? check_range(0, n) : 0, t1 = c % 7 ? check_range(t0, n) : n;
        if (c < 65) { /* every first token, every last one */
            t0 = c;
            t1 = 64;
        } else if (c < 130) {
            t0 = 0;
            t1 = c - 65;
        }
        softmax_case(c, n_pages, t0, t1);
    }
}

/* The same argument gives the same value on every lane and in every range, and 2^0 is 1. */
static void part_softmax_lanes(void)
{
    for (int c = 0; c < CHECK_TIMES(2000); c++) {
        float x = c == 0 ? 0 : (float)(-130 * check_uniform()), first = NAN;
        check_case("argument %.9g", x);
        for (int t = 0; t < TERN_PAGE; t++) {
            float *s = check_buf(TERN_PAGE * 4, 64), m = 0, l = 0;
            for (int i = 0; i < TERN_PAGE; i++)
                s[i] = -1000;
            s[t] = x;
            float shrink = tern_k.attn.softmax(s, 0, 1, c & 1 ? t : 0, c & 2 ? t + 1 : TERN_PAGE, &m, &l);
            first = t ? first : s[t];
            if (shrink != 1 || s[t] != first || (x == 0 && s[t] != 1))
                check_fail("token %d gives %.9g, token 0 gave %.9g", t, s[t], first);
            if (t % 32 == 31)
                check_case("argument %.9g", x);
        }
    }
}

/* ---- conversions ---- */

static void part_f16_to_f32(void)
{
    check_case("all halves");
    uint16_t *x = check_buf(65536 * 2, 64);
    float *y = check_buf(65536 * 4, 64);
    for (int i = 0; i < 65536; i++)
        x[i] = (uint16_t)i;
    tern_k.attn.f16_to_f32(y, x, 65536);
    for (int i = 0; i < 65536; i++)
        if (tern_f32_bits(y[i]) != tern_f32_bits(tern_f16_to_f32((uint16_t)i)))
            check_fail("half %04x became %08x", i, tern_f32_bits(y[i]));
    for (size_t n = 0; n <= 64; n += 16) {
        check_case("n = %zu", n);
        x = check_buf(n * 2, 64);
        y = check_buf(n * 4, 64);
        check_fill_f16(x, n, CHECK_GAUSS);
        tern_k.attn.f16_to_f32(y, x, n);
        for (size_t i = 0; i < n; i++)
            if (y[i] != tern_f16_to_f32(x[i]))
                check_fail("element %zu", i);
    }
}

static void part_f32_to_f16(void)
{
    for (int c = 0; c < 64; c++) {
        size_t n = (size_t)(c % 8) * 16 + (c > 32 ? 4096 : 0);
        check_case("n = %zu, round %d", n, c);
        float *x = check_buf(n * 4, 64);
        uint16_t *y = check_buf(n * 2, 64);
        check_fill_f32(x, n, (enum check_fill)(c % (CHECK_NONFINITE + 1)));
        for (size_t i = 0; i < n && c % 4 == 3; i++) { /* exactly between two halves, and beside it */
            uint32_t bits = tern_f32_bits(tern_f16_to_f32((uint16_t)check_rand()));
            x[i] = tern_bits_f32(bits + 0x1000u + (uint32_t)check_range(-1, 1));
        }
        tern_k.attn.f32_to_f16(y, x, n);
        for (size_t i = 0; i < n; i++)
            if (y[i] != tern_f32_to_f16(x[i]))
                check_fail("%.9g (%08x) became %04x, expected %04x", x[i], tern_f32_bits(x[i]), y[i],
                           tern_f32_to_f16(x[i]));
    }
}

void check_attn(void)
{
    CHECK_PART(attn.score_f32, part_score_f32);
    CHECK_PART(attn.score_f16, part_score_f16);
    CHECK_PART(attn.accum_f32, part_accum_f32);
    CHECK_PART(attn.accum_f16, part_accum_f16);
    CHECK_PART(attn.softmax, part_softmax);
    CHECK_PART(attn.softmax, part_softmax_lanes);
    CHECK_PART(attn.f16_to_f32, part_f16_to_f32);
    CHECK_PART(attn.f32_to_f16, part_f32_to_f16);
}

/* ---- benches ---- */

struct bench {
    int dim, n_q, n_pages; /* n_pages: pages of keys and values walked in turn; enough of them come from DRAM */
    float *q, *s, *o, *k, *v, *m, *l;
    uint16_t *kv; /* [n_pages][2][dim * 64] */
};

static void *bench_buf(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(p, 0, bytes);
    return p;
}

static double product_flops(const struct bench *b)
{
    return 2.0 * b->dim * TERN_PAGE * b->n_q;
}

static double bench_score(void *ctx)
{
    struct bench *b = ctx;
    tern_k.attn.score_f32(b->s, b->q, b->k, b->dim, b->n_q);
    return product_flops(b);
}

static double bench_accum(void *ctx)
{
    struct bench *b = ctx;
    tern_k.attn.accum_f32(b->o, b->s, b->v, NULL, b->dim, TERN_PAGE, b->n_q);
    return product_flops(b);
}

static double bench_softmax(void *ctx)
{
    struct bench *b = ctx;
    for (int i = 0; i < b->n_q; i++) {
        b->m[i] = -INFINITY;
        tern_k.attn.softmax(b->s + i * TERN_PAGE, 0, 1, 0, TERN_PAGE, &b->m[i], &b->l[i]);
    }
    return b->n_q * TERN_PAGE * 4.0;
}

/* One decode step of one KV head over all pages. */
static double bench_decode(void *ctx)
{
    struct bench *b = ctx;
    float shrink[16];
    size_t side = (size_t)b->dim * TERN_PAGE;
    for (int i = 0; i < b->n_q; i++)
        b->m[i] = -INFINITY;
    for (int page = 0; page < b->n_pages; page++) {
        const uint16_t *k = b->kv + (size_t)page * 2 * side;
        tern_k.attn.score_f16(b->s, b->q, k, b->dim, b->n_q, k + side);
        for (int i = 0; i < b->n_q; i++)
            shrink[i] = tern_k.attn.softmax(b->s + i * TERN_PAGE, 0, 1, 0, TERN_PAGE, &b->m[i], &b->l[i]);
        tern_k.attn.accum_f16(b->o, b->s, k + side, shrink, b->dim, TERN_PAGE, b->n_q,
                              page + 1 < b->n_pages ? k + 2 * side : b->kv);
    }
    return (double)side * 4 * b->n_pages;
}

static void bench_shape(int dim, int n_q)
{
    struct bench b = {.dim = dim, .n_q = n_q};
    size_t side = (size_t)dim * TERN_PAGE;
    b.q = bench_buf((size_t)(n_q * dim) * 4);
    b.o = bench_buf((size_t)(n_q * dim) * 4);
    b.s = bench_buf((size_t)n_q * TERN_PAGE * 4);
    b.m = bench_buf((size_t)n_q * 4);
    b.l = bench_buf((size_t)n_q * 4);
    b.k = bench_buf(side * 4);
    b.v = bench_buf(side * 4);
    char label[64];
    snprintf(label, sizeof label, "attn.score_f32 dim %d rows %d", dim, n_q);
    check_bench(&(struct check_timing){label, bench_score, &b, "FLOP", check_roof_fma, NULL});
    snprintf(label, sizeof label, "attn.accum_f32 dim %d rows %d", dim, n_q);
    check_bench(&(struct check_timing){label, bench_accum, &b, "FLOP", check_roof_fma, NULL});
    if (dim == 64) {
        snprintf(label, sizeof label, "attn.softmax rows %d", n_q);
        check_bench(&(struct check_timing){label, bench_softmax, &b, "B", NULL, NULL});
    }
    free(b.q), free(b.o), free(b.s), free(b.m), free(b.l), free(b.k), free(b.v);
}

static void bench_decode_shape(int dim, int n_q)
{
    struct bench b = {.dim = dim, .n_q = n_q};
    size_t page = (size_t)dim * TERN_PAGE * 4;
    b.n_pages = (int)((256u << 20) / page);
    b.q = bench_buf((size_t)(n_q * dim) * 4);
    b.o = bench_buf((size_t)(n_q * dim) * 4);
    b.s = bench_buf((size_t)n_q * TERN_PAGE * 4);
    b.m = bench_buf((size_t)n_q * 4);
    b.l = bench_buf((size_t)n_q * 4);
    b.kv = bench_buf((size_t)b.n_pages * page);
    struct check_read all = {b.kv, (size_t)b.n_pages * page};
    char label[64];
    snprintf(label, sizeof label, "attn decode f16 DRAM dim %d heads %d", dim, n_q);
    check_bench(&(struct check_timing){label, bench_decode, &b, "B", check_roof_read, &all});
    free(b.q), free(b.o), free(b.s), free(b.m), free(b.l), free(b.kv);
}

void bench_attn(void)
{
    static const int shapes[][2] = {{64, 6}, {64, 48}, {64, 256}, {128, 48}, {128, 256}, {256, 48}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        bench_shape(shapes[i][0], shapes[i][1]);
    static const int decode[][2] = {{64, 1}, {64, 3}, {128, 1}, {128, 2}, {128, 4}, {128, 8}, {256, 4}};
    for (size_t i = 0; i < sizeof decode / sizeof *decode; i++)
        bench_decode_shape(decode[i][0], decode[i][1]);
}

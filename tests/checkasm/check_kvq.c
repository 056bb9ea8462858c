/* Attention on coded pages: rotation, encoding, packing, scores, accumulation, decoding. */
#include "checkasm.h"
#include "trellis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/fp16.h"

#define MAX_DIM TERN_KVQ_MAX_DIM
#define MAX_Q   TERN_KVQ_MAX_Q
#define MAX_B   (MAX_DIM / TERN_KVQ_BLOCK)

static const int dims[] = {16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 208, 256, 288, 384, 400, 512};
static const struct code {
    int bits;
    bool trellis;
    const char *name;
} kinds[] = {{8, false, "q8"}, {4, false, "l4"}, {3, false, "l3"}, {2, false, "l2"},
             {4, true, "t4"},  {3, true, "t3"},  {2, true, "t2"}};
#define N_DIMS  (int)(sizeof dims / sizeof *dims)
#define N_KINDS (int)(sizeof kinds / sizeof *kinds)
#define N_PAGES (N_DIMS * N_KINDS) /* random_page has seen every code at every dim */

/* n entries between -most and most, both ends included somewhere. */
static void random_entries(int8_t *e, int n, int most)
{
    for (int i = 0; i < n; i++)
        e[i] = (int8_t)check_range(-most, most);
    int at = check_range(0, n - 1);
    e[at] = (int8_t)most;
    e[(at + check_range(1, n - 1)) % n] = (int8_t)-most;
}

/* Scalar codes: ascending entries without 0; `kind` 0: the extremes are used as far as possible.  Trellis codes: sums
 * up to 127 and all magnitudes that the contract allows. */
static struct tern_kvq_table random_table(const struct code *code, int kind)
{
    const int bits = code->bits;
    struct tern_kvq_table t = {.bits = bits,
                               .trellis = code->trellis,
                               .unit = bits == 8 ? 1.0f / 127.0f : (float)(0.01 + 0.02 * check_uniform())};
    if (code->trellis) {
        int a = bits == 3 ? check_range(20, 60) : check_range(47, 80), b = bits == 3 ? 80 - a : 127 - a;
        random_entries(t.entry, bits == 3 ? 8 : 16, a);
        random_entries(t.b, bits == 3 ? 8 : 16, b);
        random_entries(t.c, 8, 47);
        t.n_prescale = kind == 0 ? 1 : check_range(1, 2);
        return t;
    }
    int n = bits == 8 ? 0 : 1 << bits;
    for (int i = 0; i < n; i++) {
        int side = i < n / 2 ? n / 2 - 1 - i : i - n / 2; /* 0 is the innermost entry */
        int mag = kind == 0 ? 127 - (n / 2 - 1 - side) : 2 + side * 125 / (n / 2) + check_range(0, 10);
        mag = mag > 127 ? 127 : mag;
        t.entry[i] = (int8_t)(i < n / 2 ? -mag : mag);
    }
    return t;
}

/* The code of token t, dim d: straight from the description of the page, bit by bit.  Of a key set of 16 dims, shared
 * by the tokens of a half, items 16 to 31 are the dims of the token 16 further on. */
static int page_code(const uint8_t *side, int t, int d, int bits, int dim, bool key)
{
    int item = key ? d % 32 : t % 32, lane = key ? t % 16 : d % 16;
    int group = t / 32 * (dim / 16) + (key ? d / 32 * 2 : d / 16);
    if (key && d / 32 == dim / 32)
        item += t / 16 % 2 * 16;
    else if (key)
        group += t / 16 % 2;
    const uint8_t *words = side + (size_t)group * (size_t)(64 * bits);
    int code = 0;
    for (int b = 0; b < bits; b++) {
        int word, bit;
        if (bits == 3 && item >= 24) {
            word = b;
            bit = 4 * (item - 24) + 3;
        } else {
            int width = bits == 3 ? 4 : bits;
            word = item * width / 32;
            bit = item * width % 32 + b;
        }
        code |= (words[64 * word + 4 * lane + bit / 8] >> (bit % 8) & 1) << b;
    }
    return code;
}

static double head_scale(uint16_t head)
{
    int e = head >> 11, m = head >> 4 & 127;
    if (e == 31)
        return m ? NAN : INFINITY;
    return e ? ldexp(128 + m, e - 15 - 7) : ldexp(m, -14 - 7);
}

static void fill_heads(uint16_t *head, size_t n, int kind)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t any = (uint16_t)(check_rand() & 0xFFF0u);
        head[i] = any < TERN_KVQ_HEAD_MAX ? any : TERN_KVQ_HEAD_MAX;
        if (kind == 1) /* alike, as in a real page */
            head[i] = (uint16_t)(0x7800 + check_range(0, 0x1FF) * 16);
        else if (kind == 2) /* trellis start bits are not part of the scale */
            head[i] = (uint16_t)(0x7800 + check_range(0, 0x1FFF));
        else if (kind == 3) /* damaged: infinities and NaN too */
            head[i] = (uint16_t)check_rand();
    }
}

struct page {
    struct tern_kvq_table tab;
    int dim, n_blocks;
    size_t side_bytes;
    uint8_t *side;
    uint16_t *head;
};

/* Opens case c with random codes and headers; every code meets every dim. */
static struct page random_page(int c, int head_kind, const char *more)
{
    const struct code *code = &kinds[c % N_KINDS];
    struct page g = {.tab = random_table(code, c / 3 % 2), .dim = dims[c / N_KINDS % N_DIMS]};
    g.n_blocks = tern_kvq_blocks(g.dim);
    g.side_bytes = (size_t)(8 * g.dim * g.tab.bits);
    check_case("%s, dim %d, headers %d%s", code->name, g.dim, head_kind, more);
    g.side = check_buf(g.side_bytes, 64);
    g.head = check_buf((size_t)g.n_blocks * 128, 64);
    check_fill_bytes(g.side, g.side_bytes);
    fill_heads(g.head, (size_t)g.n_blocks * 64, head_kind);
    return g;
}

/* A hint may be anything. */
static const void *hint(int c, const struct page *g)
{
    return c % 3 == 0 ? NULL : c % 3 == 1 ? (const void *)g->side : (const void *)(uintptr_t)64;
}

/* Entries [64][dim] of a page side. */
static const int8_t *page_entries(const struct page *g, bool key)
{
    static int8_t e[64 * MAX_DIM];
    const struct tern_kvq_table *tab = &g->tab;
    for (int t = 0; t < 64; t++) {
        uint8_t codes[MAX_DIM];
        for (int d = 0; d < g->dim; d++)
            codes[d] = (uint8_t)page_code(g->side, t, d, tab->bits, g->dim, key);
        for (int d = 0; d < g->dim; d++) {
            int d0 = d / 128 * 128, n = g->dim - d0 < 128 ? g->dim - d0 : 128;
            int start = g->head[d / 128 * 64 + t] & 15;
            e[t * g->dim + d] = (int8_t)(tab->trellis     ? chain_entry(tab, codes + d0, start, d - d0, n, key)
                                         : tab->bits == 8 ? (int8_t)codes[d]
                                                          : tab->entry[codes[d]]);
        }
    }
    return e;
}

/* ---- rotation ---- */

static void part_rotate(void)
{
    static const int sizes[] = {16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512};
    const int n_dims = sizeof sizes / sizeof *sizes;
    for (int c = 0; c < CHECK_TIMES(22) * n_dims; c++) {
        int dim = sizes[c % n_dims], inverse = c / n_dims % 2, p = dim & -dim, m = dim / p;
        enum check_fill fill = (enum check_fill)(c / n_dims / 2 % (CHECK_NONFINITE + 1));
        check_case("dim %d, inverse %d, %s", dim, inverse, check_fill_name(fill));
        float *x = check_buf((size_t)dim * 4, 64), *sign = check_buf((size_t)dim * 4, 64);
        static float x0[MAX_DIM], want[MAX_DIM];
        static double oracle[MAX_DIM], budget[MAX_DIM];
        for (int i = 0; i < dim; i++)
            sign[i] = check_rand() & 1 ? 1.0f : -1.0f;
        check_fill_f32(x0, (size_t)dim, fill);
        memcpy(x, x0, (size_t)dim * 4);
        memcpy(want, x0, (size_t)dim * 4);
        tern_k.kvq.rotate(x, sign, dim, inverse);
        check_ref.kvq.rotate(want, sign, dim, inverse);
        check_same_f32("x against plain C", x, want, (size_t)dim);
        if (fill == CHECK_NONFINITE)
            continue;
        double mag = 0;
        for (int i = 0; i < dim; i++)
            mag += fabs((double)x0[i]);
        for (int i = 0; i < dim; i++) { /* H[i][j] = (-1)^popcount(i & j), times the DCT of the runs i / p and j / p */
            double sum = 0;
            for (int j = 0; j < dim; j++) {
                int f = inverse ? j / p : i / p, r = inverse ? i / p : j / p;
                double dct = sqrt((f ? 2.0 : 1.0) / m) * cos(M_PI * (2 * r + 1) * f / (2 * m));
                double h = __builtin_parity((unsigned)(i % p & j % p)) ? -dct : dct;
                sum += h * x0[j] * (inverse ? 1.0 : sign[j]);
            }
            oracle[i] = sum / sqrt(p) * (inverse ? (double)sign[i] : 1.0);
            budget[i] = 16 * 0x1p-24 * mag / sqrt(p) + 0x1p-149;
        }
        check_budget("x", x, oracle, budget, (size_t)dim, NULL, 0);
    }
}

/* ---- queries ---- */

static int prepared_dim(int j, int bits)
{
    static const int by8[] = {0, 2, 4, 6, 1, 3, 5, 7}, by16[] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    return bits == 8 ? j : bits == 2 ? j / 16 * 16 + by16[j % 16] : j / 8 * 8 + by8[j % 8];
}

static void part_prep(void)
{
    for (int c = 0; c < CHECK_TIMES(6) * N_PAGES; c++) {
        struct tern_kvq_table tab = random_table(&kinds[c % N_KINDS], c & 1);
        int dim = dims[c / N_KINDS % N_DIMS], n_q = 1 + c % MAX_Q, n_b = tern_kvq_blocks(dim);
        enum check_fill fill = (enum check_fill)(c % (CHECK_NONFINITE + 1));
        check_case("%s, dim %d, n_q %d, %s", kinds[c % N_KINDS].name, dim, n_q, check_fill_name(fill));
        size_t n = (size_t)(n_q * dim), nb = (size_t)(n_q * n_b);
        float *x = check_buf(n * 4, 64), *scale = check_buf(nb * 4, 4);
        int8_t *q = check_buf(n, 64);
        int32_t *sum = check_buf(nb * 4, 4);
        static int8_t want_q[MAX_Q * MAX_DIM];
        static float want_scale[MAX_Q * MAX_B];
        static int32_t want_sum[MAX_Q * MAX_B];
        check_fill_f32(x, n, fill);
        tern_k.kvq.prep(q, scale, sum, x, &tab, dim, n_q);
        check_ref.kvq.prep(want_q, want_scale, want_sum, x, &tab, dim, n_q);
        check_same_bytes("q against plain C", q, want_q, n);
        check_same_f32("scale against plain C", scale, want_scale, nb);
        check_same_bytes("sum against plain C", sum, want_sum, nb * 4);
        for (size_t ib = 0; ib < nb; ib++) {
            int d0 = (int)(ib % (size_t)n_b) * 128, d1 = d0 + 128 < dim ? d0 + 128 : dim, total = 0;
            size_t row = ib / (size_t)n_b * (size_t)dim;
            double amax = 0;
            bool finite = true;
            for (int d = d0; d < d1; d++) {
                finite = finite && isfinite(x[row + (size_t)d]);
                amax = fmax(amax, fabs((double)x[row + (size_t)d]));
            }
            if (finite == (bool)!isfinite(scale[ib]))
                check_fail("block %zu: scale %g", ib, scale[ib]);
            for (int j = d0; j < d1; j++) {
                int v = q[row + (size_t)j];
                total += v;
                double want = (double)x[row + (size_t)prepared_dim(j, tab.bits)] / amax * 127;
                if (finite && amax > 1e-30 && fabs(v - want) > 0.5001)
                    check_fail("q[%d] = %d, exact %g", j, v, want);
            }
            if (total != sum[ib])
                check_fail("block %zu: sum %d, codes add up to %d", ib, sum[ib], total);
        }
    }
}

/* ---- scores ---- */

static void score_oracle(double *s, double *budget, const struct page *g, const struct tern_kvq_query *q, int n_q)
{
    const int8_t *e = page_entries(g, true);
    for (int i = 0; i < n_q; i++)
        for (int t = 0; t < 64; t++) {
            double sum = 0, mag = 0;
            for (int b = 0; b < g->n_blocks; b++) {
                int dot = 0;
                for (int j = 128 * b; j < 128 * (b + 1) && j < g->dim; j++)
                    dot += q->q[i * g->dim + j] * e[t * g->dim + prepared_dim(j, g->tab.bits)];
                double v = dot * head_scale(g->head[b * 64 + t]) * (double)q->scale[i * g->n_blocks + b];
                sum += v;
                mag += fabs(v);
            }
            s[i * 64 + t] = sum;
            budget[i * 64 + t] = (g->n_blocks + 1) * 0x1p-24 * mag + 0x1p-140;
        }
}

static void part_score(void)
{
    static double oracle[MAX_Q * 64], budget[MAX_Q * 64];
    static float want[MAX_Q * 64], alone[64] __attribute__((aligned(64)));
    for (int c = 0; c < CHECK_TIMES(8) * N_PAGES; c++) {
        int n_q = 1 + c / N_KINDS % MAX_Q, head_kind = c / 7 % 4;
        bool extreme = c % 5 == 0;
        char more[40];
        snprintf(more, sizeof more, ", n_q %d%s", n_q, extreme ? ", extremes" : "");
        struct page g = random_page(c, head_kind, more);
        size_t n = (size_t)(n_q * g.dim), nb = (size_t)(n_q * g.n_blocks);
        int8_t *qq = check_buf(n, 64);
        float *scale = check_buf(nb * 4, 4), *s = check_buf((size_t)n_q * 256, 64);
        int32_t *sum = check_buf(nb * 4, 4);
        for (size_t i = 0; i < n; i++)
            qq[i] = (int8_t)(extreme ? (check_rand() % 16 ? 127 : -127) : check_range(-127, 127));
        if (extreme) /* all entries at one end: the largest dots there are */
            memset(g.side, c % 2 ? 0 : 0xFF, g.side_bytes);
        if (extreme && g.tab.bits == 8)
            memset(g.side, c % 2 ? 0x80 : 0x7F, g.side_bytes);
        for (size_t ib = 0; ib < nb; ib++) {
            size_t row = ib / (size_t)g.n_blocks * (size_t)g.dim;
            sum[ib] = 0;
            for (int j = (int)(ib % (size_t)g.n_blocks) * 128, e = j + 128; j < e && j < g.dim; j++)
                sum[ib] += qq[row + (size_t)j];
            scale[ib] = (float)check_uniform() * 0.1f;
        }
        struct tern_kvq_query q = {qq, scale, sum};
        tern_k.kvq.score(s, &q, g.side, g.head, &g.tab, g.dim, n_q, hint(c, &g));
        if (head_kind != 3) {
            score_oracle(oracle, budget, &g, &q, n_q);
            check_budget("s", s, oracle, budget, (size_t)n_q * 64, NULL, 0);
        }
        check_ref.kvq.score(want, &q, g.side, g.head, &g.tab, g.dim, n_q, NULL);
        check_same_f32("s against plain C", s, want, (size_t)n_q * 64);
        int i = check_range(0, n_q - 1);
        struct tern_kvq_query one = {qq + i * g.dim, scale + i * g.n_blocks, sum + i * g.n_blocks};
        int8_t *copy = check_buf((size_t)g.dim, 64);
        memcpy(copy, one.q, (size_t)g.dim);
        one.q = copy;
        tern_k.kvq.score(alone, &one, g.side, g.head, &g.tab, g.dim, 1, NULL);
        check_same_f32("one row alone", alone, s + i * 64, 64);
    }
}

/* ---- accumulation ---- */

enum { P_SOFT, P_FLAT, P_PEAK, P_ZERO, P_TINY, P_HUGE, P_PART, P_KINDS };

static void fill_p(float *p, int n_q, int kind)
{
    for (int i = 0; i < n_q * 64; i++) {
        double u = check_uniform();
        p[i] = (float)(kind == P_FLAT                 ? 1.0
                       : kind == P_PEAK               ? (i % 64 == i / 64 % 64 ? 1.0 : u * 3e-5)
                       : kind == P_ZERO               ? 0.0
                       : kind == P_TINY               ? u * 1e-39
                       : kind == P_HUGE               ? u * 1e30
                       : kind == P_PART && i % 64 > 9 ? 0.0
                                                      : exp(4 * check_gauss() - 8));
    }
}

static void accum_oracle(double *o, double *budget, const struct page *g, const float *o0, const float *p,
                         const float *shrink, int n_q)
{
    const int8_t *entry = page_entries(g, false);
    for (int i = 0; i < n_q; i++)
        for (int d = 0; d < g->dim; d++) {
            double start = (double)o0[i * g->dim + d] * (shrink ? (double)shrink[i] : 1.0);
            double sum = start, mag = fabs(start), m = 0, weightless = 0;
            for (int t = 0; t < 64; t++) {
                double w = (double)p[i * 64 + t] * head_scale(g->head[d / 128 * 64 + t]);
                double e = entry[t * g->dim + d];
                sum += w * e * (double)g->tab.unit;
                mag += fabs(w * e * (double)g->tab.unit);
                weightless += fabs(e) * (double)g->tab.unit;
                m = fmax(m, w);
            }
            o[i * g->dim + d] = sum;
            budget[i * g->dim + d] =
                m * weightless * 0.504 / (double)tern_kvq_full(g->tab.bits) + 4 * 0x1p-24 * mag + 1e-25 * (m < 1e-29);
        }
}

static void part_accum(void)
{
    static double oracle[MAX_Q * MAX_DIM], budget[MAX_Q * MAX_DIM];
    static float o0[MAX_Q * MAX_DIM], want[MAX_Q * MAX_DIM], alone[MAX_DIM] __attribute__((aligned(64)));
    for (int c = 0; c < CHECK_TIMES(10) * N_PAGES; c++) {
        int n_q = 1 + c / N_KINDS % MAX_Q, head_kind = c / 7 % 4, kind = c % P_KINDS;
        char more[40];
        snprintf(more, sizeof more, ", n_q %d, p %d", n_q, kind);
        struct page g = random_page(c, head_kind, more);
        if (c % 11 == 0) /* the largest sums */
            memset(g.side, g.tab.bits == 8 ? 0x80 : c % 2 ? 0xFF : 0, g.side_bytes);
        size_t n = (size_t)(n_q * g.dim);
        float *o = check_buf(n * 4, 64), *p = check_buf((size_t)n_q * 256, 64), *sh = check_buf((size_t)n_q * 4, 4);
        check_fill_f32(o0, n, CHECK_GAUSS);
        fill_p(p, n_q, kind);
        for (int i = 0; i < n_q; i++)
            sh[i] = c % 3 ? (float)check_uniform() : (float)(c / 3 % 2);
        float *shrink = c % 4 ? sh : NULL;
        if (c % 13 == 0 && head_kind == 1) { /* no fault and no difference, whatever comes out */
            p[check_range(0, 63)] = NAN;
            p[check_range(0, 63)] = INFINITY;
            head_kind = 3;
        }
        memcpy(o, o0, n * 4);
        memcpy(want, o0, n * 4);
        tern_k.kvq.accum(o, p, g.side, g.head, shrink, &g.tab, g.dim, n_q, hint(c, &g));
        check_ref.kvq.accum(want, p, g.side, g.head, shrink, &g.tab, g.dim, n_q, NULL);
        check_same_f32("o against plain C", o, want, n);
        if (head_kind != 3) {
            accum_oracle(oracle, budget, &g, o0, p, shrink, n_q);
            check_budget("o", o, oracle, budget, n, NULL, 0);
        }
        if (kind == P_ZERO && !shrink && head_kind != 3)
            check_same_f32("o with p = 0", o, o0, n);
        int i = check_range(0, n_q - 1);
        memcpy(alone, o0 + i * g.dim, (size_t)g.dim * 4);
        tern_k.kvq.accum(alone, p + i * 64, g.side, g.head, shrink ? shrink + i : NULL, &g.tab, g.dim, 1, NULL);
        check_same_f32("one row alone", alone, o + i * g.dim, (size_t)g.dim);
    }
}

/* ---- decoding ---- */

static void part_decode(bool key)
{
    static float want[MAX_DIM * 64];
    for (int c = 0; c < CHECK_TIMES(4) * N_PAGES; c++) {
        int head_kind = c / N_PAGES;
        struct page g = random_page(c, head_kind, "");
        const int8_t *e = page_entries(&g, key);
        size_t n = (size_t)(64 * g.dim);
        float *out = check_buf(n * 4, 64);
        (key ? tern_k.kvq.decode_k : tern_k.kvq.decode_v)(out, g.side, g.head, &g.tab, g.dim);
        for (int t = 0; t < 64; t++)
            for (int d = 0; d < g.dim; d++) {
                float fu = (float)head_scale(g.head[d / 128 * 64 + t]) * g.tab.unit;
                want[key ? d * 64 + t : t * g.dim + d] = fu * (float)e[t * g.dim + d];
            }
        check_same_f32("values", out, want, n);
        (key ? check_ref.kvq.decode_k : check_ref.kvq.decode_v)(want, g.side, g.head, &g.tab, g.dim);
        check_same_f32("values against plain C", out, want, n);
    }
}

static void part_decode_k(void)
{
    part_decode(true);
}

static void part_decode_v(void)
{
    part_decode(false);
}

/* ---- encoding ---- */

/* Every code is as near as any or the path is as good as any, the scale is the best one to half a header step. */
static void check_block(const float *y, const uint8_t *codes, uint16_t head, const struct tern_kvq_table *tab, bool key,
                        int n)
{
    double ss = 0, ye = 0, ee = 0, worst = 0, amax = 0, f = head_scale(head), unit = (double)tab->unit;
    bool finite = true;
    int e[128];
    for (int i = 0; i < n; i++) {
        e[i] = tab->trellis     ? chain_entry(tab, codes, head & 15, i, n, key)
               : tab->bits == 8 ? (int8_t)codes[i]
                                : tab->entry[codes[i]];
        ss += (double)y[i] * (double)y[i];
        ye += (double)y[i] * e[i];
        ee += (double)e[i] * e[i];
        amax = fmax(amax, fabs((double)y[i]));
        worst = fmax(worst, fabs((double)y[i] - f * unit * e[i]));
        finite = finite && isfinite(y[i]);
    }
    if (!finite || ss > 1e38 || ss < 1e-33) {
        if (tab->bits != 8 && (!finite || amax < 1e-20 || ss > 1e39) && head)
            check_fail("a block that cannot be coded has header %04x", head);
        if (tab->bits != 8 || !finite)
            return;
    }
    if (tab->bits == 8) {
        double top = fmin(amax, 65280);
        if (f < top || f > top * (1 + 0x1p-7) + 0x1p-21)
            check_fail("scale %g for amax %g", f, amax);
        if (amax <= 65280 && worst > f / 254 * (1 + 0x1p-13))
            check_fail("error %g at scale %g", worst, f);
        return;
    }
    double best = (key || (tab->trellis && ye <= 0) ? sqrt(ss / ee) : ye / ee) / unit, rms = sqrt(ss / n);
    if (fabs(f - fmin(best, 65280)) > best * (0x1p-8 + 0x1p-11 + 1e-5) + 0x1p-21)
        check_fail("scale %g, exact %g", f, best);
    if (tab->trellis && tab->n_prescale == 1)
        check_path(y, e, rms, tab, key, n);
    for (int i = 0; i < n && !tab->trellis; i++) {
        double z = (double)y[i] / rms, got = fabs(z - e[i] * unit);
        for (int k = 0; k < 1 << tab->bits; k++)
            if (fabs(z - tab->entry[k] * unit) < got - 1e-5 * (1 + fabs(z)))
                check_fail("element %d = %g rms: code %d is not the nearest", i, z, codes[i]);
    }
}

static void part_encode(void)
{
    static uint8_t want[64 * MAX_DIM];
    static uint16_t want_head[64 * MAX_B];
    static const int counts[] = {64, 0, 1, 63};
    for (int c = 0; c < CHECK_TIMES(10) * N_PAGES; c++) {
        const struct code *code = &kinds[c % N_KINDS];
        struct tern_kvq_table tab = random_table(code, c / 3 % 2);
        int dim = dims[c / N_KINDS % N_DIMS], n = c % 3 ? check_range(0, 64) : counts[c / 3 % 4], key = c / 5 % 2;
        enum check_fill fill = (enum check_fill)(c / 2 % (CHECK_NONFINITE + 1));
        n = tab.trellis && n > 3 && c % 8 ? n % 19 : n; /* the oracle takes its time */
        check_case("%s, dim %d, n %d, key %d, %s", code->name, dim, n, key, check_fill_name(fill));
        size_t n_x = (size_t)(n * dim), n_head = (size_t)tern_kvq_blocks(dim) * 64;
        float *x = check_buf(n_x * 4, 64);
        uint8_t *codes = check_buf(n_x, 64);
        uint16_t *head = check_buf(n_head * 2, 64);
        void *scratch = check_buf(TERN_KVQ_SCRATCH, 64);
        for (int t = 0; t < n; t++) { /* each vector its own one-hot place, constant, size */
            check_fill_f32(x + (size_t)t * (size_t)dim, (size_t)dim, fill);
            float size = ldexpf(1.0f, fill <= CHECK_OUTLIER ? check_range(-24, 14) : 0);
            for (int d = 0; d < dim; d++)
                x[t * dim + d] *= size;
        }
        memcpy(want_head, head, n_head * 2);
        tern_k.kvq.encode(codes, head, x, &tab, key, dim, n, scratch);
        check_ref.kvq.encode(want, want_head, x, &tab, key, dim, n, scratch);
        check_same_bytes("codes against plain C", codes, want, n_x);
        check_same_bytes("headers against plain C", head, want_head, n_head * 2);
        for (int t = 0; t < n; t++)
            for (int d = 0; d < dim; d += 128)
                check_block(x + t * dim + d, codes + t * dim + d, head[d / 128 * 64 + t], &tab, key,
                            dim - d < 128 ? dim - d : 128);
    }
}

/* Nearly all entries at one end, so that a path that must go the other way costs as much as the contract of tables
 * allows: sums that are bounded by nothing but the cap on them.  The cap makes the path another one than the best, and
 * all levels must take that same one. */
static void part_encode_loud(void)
{
    static uint8_t want[64 * MAX_DIM];
    static uint16_t want_head[64 * MAX_B];
    static const enum check_fill fills[] = {CHECK_TIES, CHECK_SPREAD, CHECK_OUTLIER, CHECK_GAUSS, CHECK_ONEHOT};
    for (int c = 0; c < CHECK_TIMES(600); c++) {
        const struct code *code = &kinds[4 + c % 3];
        struct tern_kvq_table tab = random_table(code, 1);
        int8_t *const tables[] = {tab.entry, tab.b, tab.c};
        for (int i = 0; i < 3; i++) {
            const int n = code->bits == 3 || i == 2 ? 8 : 16, sign = check_rand() & 1 ? 1 : -1;
            int most = 0;
            for (int j = 0; j < n; j++)
                most = tables[i][j] > most ? tables[i][j] : most;
            for (int j = 0; j < n; j++)
                tables[i][j] = (int8_t)(check_range(0, 7) ? sign * most : -sign * most);
        }
        int dim = dims[c / 3 % N_DIMS], n = check_range(1, 64), key = c / 2 % 2;
        enum check_fill fill = fills[c / 7 % 5];
        check_case("%s, dim %d, n %d, key %d, %s, loud tables", code->name, dim, n, key, check_fill_name(fill));
        size_t n_x = (size_t)(n * dim), n_head = (size_t)tern_kvq_blocks(dim) * 64;
        float *x = check_buf(n_x * 4, 64);
        uint8_t *codes = check_buf(n_x, 64);
        uint16_t *head = check_buf(n_head * 2, 64);
        void *scratch = check_buf(TERN_KVQ_SCRATCH, 64);
        check_fill_f32(x, n_x, fill);
        memcpy(want_head, head, n_head * 2);
        tern_k.kvq.encode(codes, head, x, &tab, key, dim, n, scratch);
        check_ref.kvq.encode(want, want_head, x, &tab, key, dim, n, scratch);
        check_same_bytes("codes against plain C", codes, want, n_x);
        check_same_bytes("headers against plain C", head, want_head, n_head * 2);
    }
}

static void part_pack(bool key)
{
    static uint8_t want[64 * MAX_DIM];
    for (int c = 0; c < CHECK_TIMES(8) * N_DIMS; c++) {
        int bits = kinds[c % 4].bits, dim = dims[c / 4 % N_DIMS];
        check_case("%d bits, dim %d", bits, dim);
        size_t n = (size_t)(64 * dim), n_side = n * (size_t)bits / 8;
        uint8_t *codes = check_buf(n, 64), *side = check_buf(n_side, 64);
        for (size_t i = 0; i < n; i++)
            codes[i] = (uint8_t)((check_rand() >> 40) & ((1u << bits) - 1u));
        (key ? tern_k.kvq.pack_k : tern_k.kvq.pack_v)(side, codes, bits, dim);
        for (int t = 0; t < 64; t++)
            for (int d = 0; d < dim; d++)
                if (page_code(side, t, d, bits, dim, key) != codes[t * dim + d])
                    check_fail("token %d, dim %d: %d, expected %d", t, d, page_code(side, t, d, bits, dim, key),
                               codes[t * dim + d]);
        (key ? check_ref.kvq.pack_k : check_ref.kvq.pack_v)(want, codes, bits, dim);
        check_same_bytes("page side against plain C", side, want, n_side);
    }
}

static void part_pack_k(void)
{
    part_pack(true);
}

static void part_pack_v(void)
{
    part_pack(false);
}

void check_kvq(void)
{
    CHECK_PART(kvq.rotate, part_rotate);
    CHECK_PART(kvq.prep, part_prep);
    CHECK_PART(kvq.score, part_score);
    CHECK_PART(kvq.accum, part_accum);
    CHECK_PART(kvq.decode_k, part_decode_k);
    CHECK_PART(kvq.decode_v, part_decode_v);
    CHECK_PART(kvq.encode, part_encode);
    CHECK_PART(kvq.encode, part_encode_loud);
    CHECK_PART(kvq.pack_k, part_pack_k);
    CHECK_PART(kvq.pack_v, part_pack_v);
}

/* ---- benches ---- */

/* Pages of one scheme in one buffer, {key headers, value headers, keys, values} each; every call walks on from where
 * the last one stopped, so a large buffer comes from DRAM and a small one stays in the cache. */
struct walk {
    struct tern_kvq_table tab; /* bits 16: raw f16 */
    int dim, n_q;
    size_t page_bytes, n_pages, next;
    uint8_t *pages;
    float *s, *p, *o;
    struct tern_kvq_query q;
    float *x;
};

#define WALK_STEP 32 /* pages in one call */

static void *bench_buf(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p)
        abort();
    memset(p, 0, bytes);
    return p;
}

static void walk_open(struct walk *w, const struct code *code, int dim, int n_q, size_t bytes)
{
    const int bits = code ? code->bits : 16;
    size_t n = (size_t)(n_q * dim), heads = bits == 16 ? 0 : (size_t)tern_kvq_blocks(dim) * 128;
    *w = (struct walk){.tab = code ? random_table(code, 1) : (struct tern_kvq_table){.bits = 16}, .dim = dim};
    w->n_q = n_q;
    w->page_bytes = 2 * (heads + (size_t)(8 * dim * bits));
    w->n_pages = bytes / w->page_bytes < WALK_STEP ? WALK_STEP : bytes / w->page_bytes;
    w->pages = bench_buf(w->n_pages * w->page_bytes + 8192); /* the kernels prefetch behind the last page */
    if (bits != 16) {
        check_fill_bytes(w->pages, w->page_bytes);
        fill_heads((uint16_t *)w->pages, heads, 1);
        for (size_t i = 1; i < w->n_pages; i++)
            memcpy(w->pages + i * w->page_bytes, w->pages, w->page_bytes);
    }
    w->s = bench_buf((size_t)n_q * 256);
    w->p = bench_buf((size_t)n_q * 256);
    w->o = bench_buf(n * 4);
    w->x = bench_buf(n * 4);
    int8_t *q = bench_buf(n);
    float *scale = bench_buf((size_t)n_q * 16);
    int32_t *sum = bench_buf((size_t)n_q * 16);
    check_fill_f32(w->x, n, CHECK_GAUSS);
    fill_p(w->p, n_q, P_SOFT);
    if (bits != 16)
        check_ref.kvq.prep(q, scale, sum, w->x, &w->tab, dim, n_q);
    w->q = (struct tern_kvq_query){q, scale, sum};
}

static void walk_close(struct walk *w)
{
    free(w->pages), free(w->s), free(w->p), free(w->o), free(w->x);
    free((void *)w->q.q), free((void *)w->q.scale), free((void *)w->q.sum);
}

/* Keys and values of WALK_STEP pages. */
static void walk_on(struct walk *w)
{
    static const float shrink[MAX_Q] = {0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f,
                                        0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f, 0.5f};
    size_t side = (size_t)(8 * w->dim * w->tab.bits), heads = (size_t)tern_kvq_blocks(w->dim) * 64;
    for (int i = 0; i < WALK_STEP; i++) {
        const uint8_t *page = w->pages + w->next * w->page_bytes;
        w->next = w->next + 1 == w->n_pages ? 0 : w->next + 1;
        const uint8_t *after = w->pages + w->next * w->page_bytes;
        if (w->tab.bits == 16) {
            tern_k.attn.score_f16(w->s, w->x, (const uint16_t *)page, w->dim, w->n_q, page + side);
            tern_k.attn.accum_f16(w->o, w->p, (const uint16_t *)(page + side), shrink, w->dim, 64, w->n_q, after);
        } else {
            const uint16_t *head = (const uint16_t *)page;
            const uint8_t *k = page + 4 * heads;
            tern_k.kvq.score(w->s, &w->q, k, head, &w->tab, w->dim, w->n_q, k + side);
            tern_k.kvq.accum(w->o, w->p, k + side, head + heads, shrink, &w->tab, w->dim, w->n_q, after + 4 * heads);
        }
    }
}

static double walk_elements(void *ctx)
{
    struct walk *w = ctx;
    walk_on(w);
    return 128.0 * w->dim * WALK_STEP;
}

static double walk_bytes(void *ctx)
{
    struct walk *w = ctx;
    walk_on(w);
    return (double)(WALK_STEP * w->page_bytes);
}

/* The "roof" of the first line is f16 on the same shape, so its share is the speed as a multiple of f16; that of the
 * second line is a plain read of the same bytes.  Both run in the same rounds.  1000 elements take 1000/rate ns. */
static void bench_walk(const struct code *code, int dim, int n_q, bool dram)
{
    struct walk f16, w;
    walk_open(&f16, NULL, dim, n_q, dram ? 192u << 20 : 64u << 10);
    walk_open(&w, code, dim, n_q, dram ? 96u << 20 : 64u << 10);
    char label[96];
    const char *where = dram ? "DRAM" : "L2", *name = code ? code->name : "f16";
    snprintf(label, sizeof label, "kvq %s %s dim %d heads %d vs f16", name, where, dim, n_q);
    check_bench(&(struct check_timing){label, walk_elements, &w, "el", walk_elements, &f16});
    if (dram) {
        struct check_read read = {w.pages, w.n_pages * w.page_bytes};
        snprintf(label, sizeof label, "kvq %s %s dim %d heads %d vs read", name, where, dim, n_q);
        check_bench(&(struct check_timing){label, walk_bytes, &w, "B", check_roof_read, &read});
    }
    walk_close(&w);
    walk_close(&f16);
}

struct coding {
    struct tern_kvq_table tab;
    int dim;
    float *x, *sign, *page;
    uint8_t *codes, *side;
    uint16_t *head;
    void *scratch;
};

static double coding_encode(void *ctx)
{
    struct coding *b = ctx;
    for (int t = 0; t < 64 && b->tab.bits != 8; t++)
        tern_k.kvq.rotate(b->x + t * b->dim, b->sign, b->dim, 0);
    tern_k.kvq.encode(b->codes, b->head, b->x, &b->tab, 1, b->dim, 64, b->scratch);
    tern_k.kvq.pack_k(b->side, b->codes, b->tab.bits, b->dim);
    return 64;
}

static double coding_decode_k(void *ctx)
{
    struct coding *b = ctx;
    tern_k.kvq.decode_k(b->page, b->side, b->head, &b->tab, b->dim);
    return 64.0 * b->dim;
}

static double coding_decode_v(void *ctx)
{
    struct coding *b = ctx;
    tern_k.kvq.decode_v(b->page, b->side, b->head, &b->tab, b->dim);
    return 64.0 * b->dim;
}

static void bench_coding(const struct code *code, int dim)
{
    struct coding b = {.tab = random_table(code, 1), .dim = dim};
    b.tab.n_prescale = 1;
    size_t n = (size_t)(64 * dim);
    b.x = bench_buf(n * 4);
    b.sign = bench_buf((size_t)dim * 4);
    b.page = bench_buf(n * 4);
    b.codes = bench_buf(n);
    b.side = bench_buf(n);
    b.head = bench_buf((size_t)tern_kvq_blocks(dim) * 128);
    b.scratch = bench_buf(TERN_KVQ_SCRATCH);
    check_fill_f32(b.x, n, CHECK_GAUSS);
    for (int d = 0; d < dim; d++)
        b.sign[d] = 1;
    char label[64];
    snprintf(label, sizeof label, "kvq encode page %s dim %d", code->name, dim);
    check_bench(&(struct check_timing){label, coding_encode, &b, "vec", NULL, NULL});
    snprintf(label, sizeof label, "kvq.decode_k %s dim %d", code->name, dim);
    check_bench(&(struct check_timing){label, coding_decode_k, &b, "el", NULL, NULL});
    snprintf(label, sizeof label, "kvq.decode_v %s dim %d", code->name, dim);
    check_bench(&(struct check_timing){label, coding_decode_v, &b, "el", NULL, NULL});
    free(b.x), free(b.sign), free(b.page), free(b.codes), free(b.side), free(b.head), free(b.scratch);
}

void bench_kvq(void)
{
    static const int shapes[][2] = {{64, 1}, {64, 3}, {128, 1}, {128, 4}, {128, 8}, {256, 4}};
    for (int dram = 0; dram < 2; dram++)
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int j = -1; j < N_KINDS; j++)
                bench_walk(j < 0 ? NULL : &kinds[j], shapes[i][0], shapes[i][1], dram);
    for (int j = 0; j < N_KINDS; j++)
        for (int dim = 64; dim <= 128; dim *= 2)
            bench_coding(&kinds[j], dim);
}

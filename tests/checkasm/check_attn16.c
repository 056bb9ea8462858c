/* Attention of prompt rows in 16-bit integers: pages as pairs, queries, scores, weights, sums. */
#include "checkasm.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/fp16.h"
#include "codec/codec.h"

#define MAX_DIM    TERN_KVQ_MAX_DIM
#define MAX_B      (MAX_DIM / TERN_KVQ_BLOCK)
#define MAX_Q      26
#define MAX_PAGES  TERN_SOFTMAX_PAGES
#define MAX_TOKENS (MAX_PAGES * TERN_PAGE)

static const int dims[] = {16, 32, 48, 64, 80, 96, 112, 128, 144, 176, 192, 208, 256, 288, 320, 512};
static const char *const schemes[] = {"q8", "l4", "l3", "l2", "t4", "t3", "t2"};
#define N_DIMS    (int)(sizeof dims / sizeof *dims)
#define N_SCHEMES (int)(sizeof schemes / sizeof *schemes)
#define N_CASES   (N_DIMS * N_SCHEMES) /* every scheme has met every dim */

static struct tern_attn16_kernels ref;

/* One side of some pages of one head. */
struct side {
    const struct tern_kvq_table *tab;
    int dim, n_blocks, n_pages;
    uint8_t *codes[MAX_PAGES];
    uint16_t *head[MAX_PAGES];
    double *value; /* keys [page][dim][64], values [page][64][dim]: what decode makes of them */
};

static struct side random_side(int c, int n_pages, bool key)
{
    const char *name = schemes[c % N_SCHEMES];
    struct side s = {.tab = tern_kv_table(tern_kv_codec_find(name, 2)), .dim = dims[c / N_SCHEMES % N_DIMS]};
    s.n_blocks = tern_kvq_blocks(s.dim);
    s.n_pages = n_pages;
    check_case("%s, %s, dim %d, %d pages, case %d", name, key ? "keys" : "values", s.dim, n_pages, c);
    const size_t n = (size_t)s.dim * TERN_PAGE, heads = (size_t)s.n_blocks * TERN_PAGE;
    s.value = check_buf(n * (size_t)n_pages * sizeof *s.value, 64);
    float *decoded = check_buf(n * sizeof *decoded, 64);
    for (int p = 0; p < n_pages; p++) {
        const size_t bytes = n * (size_t)s.tab->bits / 8;
        s.codes[p] = check_buf(bytes, 64);
        s.head[p] = check_buf(heads * sizeof *s.head[p], 64);
        check_fill_bytes(s.codes[p], bytes);
        for (size_t i = 0; i < bytes && s.tab->bits == 8; i++)
            s.codes[p][i] = s.codes[p][i] == 0x80 ? 0x81 : s.codes[p][i];
        for (size_t i = 0; i < heads; i++) /* over twelve binades, or alike as in a real page; some are 0 */
            s.head[p][i] = (uint16_t)(c % 3 == 0     ? check_range(0x3000, 0x6000)
                                      : i % 37 == 36 ? check_range(0, 15)
                                                     : check_range(0x3800, 0x3A00));
        if (key)
            check_ref.kvq.decode_k(decoded, s.codes[p], s.head[p], s.tab, s.dim);
        else
            check_ref.kvq.decode_v(decoded, s.codes[p], s.head[p], s.tab, s.dim);
        for (size_t i = 0; i < n; i++)
            s.value[(size_t)p * n + i] = (double)decoded[i];
    }
    return s;
}

/* ---- pages ---- */

/* Entry times scale times unit at every place is what decode says of the item there. */
static void check_places(const struct side *s, const int16_t *out, const float *f, bool key)
{
    const int n = s->n_pages * TERN_PAGE;
    for (int t = 0; t < n; t++)
        for (int d = 0; d < s->dim; d++) {
            const int block = d / TERN_KVQ_BLOCK;
            /* Where token t of dim d lies: found by looking for the item among the places of its run. */
            const int item = key ? d : t;
            int place = item / 16 * 16;
            while (tern_attn16_item(place, s->tab->bits) != item)
                place++;
            const size_t at = key ? ((size_t)(t / 16 * s->dim / 2 + place / 2) * 16 + (size_t)t % 16) * 2
                                  : ((size_t)(d / 16 * n / 2 + place / 2) * 16 + (size_t)d % 16) * 2;
            const float scale = f[key ? block * TERN_PAGE + t : block * n + t];
            const double got = (double)out[at + (size_t)place % 2] * (double)(scale * s->tab->unit);
            const double want = key ? s->value[d * TERN_PAGE + t] : s->value[(size_t)t * (size_t)s->dim + (size_t)d];
            if ((float)got != (float)want) {
                check_fail("token %d, dim %d: %g, expected %g", t, d, got, want);
                return;
            }
        }
}

static void part_expand_k(void)
{
    for (int c = 0; c < N_CASES; c++) {
        const struct side s = random_side(c, 1, true);
        const size_t n = (size_t)s.dim * TERN_PAGE, heads = (size_t)s.n_blocks * TERN_PAGE;
        int16_t *out = check_buf(n * 2, 64), *want = check_buf(n * 2, 64);
        float *f = check_buf(heads * 4, 64), *f_want = check_buf(heads * 4, 64);
        tern_k.attn16.expand_k(out, f, s.codes[0], s.head[0], s.tab, s.dim);
        ref.expand_k(want, f_want, s.codes[0], s.head[0], s.tab, s.dim);
        check_same_bytes("keys", out, want, n * 2);
        check_same_f32("scales", f, f_want, heads);
        check_places(&s, out, f, true);
    }
}

struct group {
    int16_t *out;
    float *f;
};

static struct group expand_values(const struct tern_attn16_kernels *k, const struct side *s)
{
    const size_t n = (size_t)s->dim * TERN_PAGE * (size_t)s->n_pages;
    struct group g = {check_buf(n * 2, 64), check_buf((size_t)(s->n_blocks * s->n_pages) * TERN_PAGE * 4, 64)};
    for (int p = 0; p < s->n_pages; p++)
        k->expand_v(g.out, g.f, s->codes[p], s->head[p], s->tab, s->dim, p, s->n_pages);
    return g;
}

static void part_expand_v(void)
{
    for (int c = 0; c < N_CASES; c++) {
        const struct side s = random_side(c, 1 + c % MAX_PAGES, false);
        const struct group g = expand_values(&tern_k.attn16, &s), want = expand_values(&ref, &s);
        check_same_bytes("values", g.out, want.out, (size_t)s.dim * TERN_PAGE * (size_t)s.n_pages * 2);
        check_same_f32("scales", g.f, want.f, (size_t)(s.n_blocks * s.n_pages) * TERN_PAGE);
        check_places(&s, g.out, g.f, false);
    }
}

/* ---- queries and scores ---- */

static double largest(const float *x, int n)
{
    double top = 0;
    for (int i = 0; i < n; i++)
        top = fmax(top, fabs((double)x[i]));
    return top;
}

/* x . k with nothing rounded, and what 16 bits of a block's largest and the sums may cost. */
static void score_oracle(double *s, double *budget, const struct side *k, const float *x, int n_q)
{
    double step[MAX_B];
    for (int i = 0; i < n_q; i++, x += k->dim) {
        for (int d0 = 0; d0 < k->dim; d0 += TERN_KVQ_BLOCK)
            step[d0 / TERN_KVQ_BLOCK] =
                largest(x + d0, k->dim - d0 < TERN_KVQ_BLOCK ? k->dim - d0 : TERN_KVQ_BLOCK) * (0.5 / 32767);
        for (int t = 0; t < TERN_PAGE; t++) {
            double sum = 0, mag = 0, rounded = 0;
            for (int d = 0; d < k->dim; d++) {
                const double v = k->value[d * TERN_PAGE + t];
                sum += v * (double)x[d];
                mag += fabs(v * (double)x[d]);
                rounded += fabs(v) * step[d / TERN_KVQ_BLOCK];
            }
            s[i * TERN_PAGE + t] = sum;
            budget[i * TERN_PAGE + t] = rounded * (1 + 0x1p-8) + (double)(2 + k->n_blocks) * 0x1p-22 * mag + FLT_MIN;
        }
    }
}

static void part_score(void)
{
    static double oracle[MAX_Q * TERN_PAGE], budget[MAX_Q * TERN_PAGE];
    for (int c = 0; c < CHECK_TIMES(2) * N_CASES; c++) {
        const struct side k = random_side(c, 1, true);
        const int n_q = c < N_CASES ? 1 + c % MAX_Q : check_range(1, MAX_Q), n_b = k.n_blocks;
        const enum check_fill fill = (enum check_fill)(c % (CHECK_N_FINITE - 1)); /* but for huge ones */
        const size_t n_x = (size_t)(n_q * k.dim), n_s = (size_t)n_q * TERN_PAGE, n_k = (size_t)k.dim * TERN_PAGE;
        float *x = check_buf(n_x * 4, 64), *scale = check_buf((size_t)(n_q * n_b) * 4, 4);
        float *scale_ref = check_buf((size_t)(n_q * n_b) * 4, 4), *f = check_buf((size_t)n_b * TERN_PAGE * 4, 64);
        int16_t *q = check_buf(n_x * 2, 64), *q_ref = check_buf(n_x * 2, 64), *pairs = check_buf(n_k * 2, 64);
        float *s = check_buf(n_s * 4, 64), *want = check_buf(n_s * 4, 64), *alone = check_buf(TERN_PAGE * 4, 64);
        check_fill_f32(x, n_x, fill);
        ref.expand_k(pairs, f, k.codes[0], k.head[0], k.tab, k.dim);

        tern_k.attn16.pack(q, scale, x, k.tab, k.dim, n_q);
        ref.pack(q_ref, scale_ref, x, k.tab, k.dim, n_q);
        check_same_bytes("queries", q, q_ref, n_x * 2);
        check_same_f32("their scales", scale, scale_ref, (size_t)(n_q * n_b));
        tern_k.attn16.score(s, q, scale, pairs, f, k.dim, n_q);
        ref.score(want, q, scale, pairs, f, k.dim, n_q);
        check_same_f32("s against plain C", s, want, n_s);
        if (fill != CHECK_TINY) {
            score_oracle(oracle, budget, &k, x, n_q);
            check_budget("s", s, oracle, budget, n_s, NULL, 0);
        }
        const int i = check_range(0, n_q - 1);
        tern_k.attn16.score(alone, q + i * k.dim, scale + i * n_b, pairs, f, k.dim, 1);
        check_same_f32("one row alone", alone, s + i * TERN_PAGE, TERN_PAGE);
    }
}

/* An infinity or NaN in a query shows in every score. */
static void part_nonfinite(void)
{
    for (int c = 0; c < N_CASES; c++) {
        const struct side k = random_side(c, 1, true);
        float *x = check_buf((size_t)k.dim * 4, 64), *scale = check_buf(MAX_B * 4, 4);
        float *f = check_buf((size_t)k.n_blocks * TERN_PAGE * 4, 64), *s = check_buf(TERN_PAGE * 4, 64);
        int16_t *q = check_buf((size_t)k.dim * 2, 64), *pairs = check_buf((size_t)k.dim * TERN_PAGE * 2, 64);
        check_fill_f32(x, (size_t)k.dim, CHECK_GAUSS);
        x[check_range(0, k.dim - 1)] = c % 2 ? NAN : -INFINITY;
        tern_k.attn16.expand_k(pairs, f, k.codes[0], k.head[0], k.tab, k.dim);
        tern_k.attn16.pack(q, scale, x, k.tab, k.dim, 1);
        tern_k.attn16.score(s, q, scale, pairs, f, k.dim, 1);
        for (int t = 0; t < TERN_PAGE; t++)
            if (isfinite(s[t]))
                check_fail("s[%d] = %g", t, s[t]);
    }
}

/* ---- weights and sums ---- */

/* Fills s with one of several shapes; outside [t0, t1) lie NaN and infinities that must not be seen. */
static void random_scores(float *s, int n, int kind, int t0, int t1)
{
    static const float nasty[] = {NAN, INFINITY, -INFINITY, FLT_MAX};
    for (int t = 0; t < n; t++) {
        const double g = check_gauss();
        s[t] = (float)(kind == 0   ? g
                       : kind == 1 ? 40 * g
                       : kind == 2 ? 3.25
                       : kind == 3 ? -160 * check_uniform()
                       : kind == 4 ? (check_rand() & 1 ? -1e30 : 1e30)
                                   : 1000 + g);
        if (t < t0 || t >= t1)
            s[t] = nasty[check_rand() % 4];
    }
}

/* What one row has after one group. */
struct row {
    int16_t *w;
    float *unit, *o, m, l, shrink;
};

static struct row attend(const struct tern_attn16_kernels *k, const struct side *v, const struct group *g,
                         const float *scores, const float *o0, size_t stride, int t0, int t1, float m, float l)
{
    const size_t n_w = (size_t)(v->n_blocks * v->n_pages) * TERN_PAGE;
    float *s = check_buf(((size_t)(v->n_pages - 1) * stride + TERN_PAGE) * 4, 64);
    struct row r = {
        check_buf(n_w * 2, 64), check_buf((size_t)v->n_blocks * 4, 4), check_buf((size_t)v->dim * 4, 64), m, l, 1};
    for (int p = 0; p < v->n_pages; p++)
        memcpy(s + (size_t)p * stride, scores + p * TERN_PAGE, TERN_PAGE * sizeof *s);
    memcpy(r.o, o0, (size_t)v->dim * sizeof *o0);
    r.shrink = k->softmax(r.w, r.unit, s, stride, g->f, v->tab, v->dim, v->n_pages, t0, t1, &r.m, &r.l);
    k->accum(r.o, r.w, r.unit, &r.shrink, g->out, v->dim, v->n_pages, 1);
    return r;
}

/* Against weights and sums with nothing rounded. */
static void check_row(const struct side *v, const struct group *g, const float *scores, const float *o0, int t0, int t1,
                      float m0, float l0, const struct row *r)
{
    static double p[MAX_TOKENS], oracle[MAX_DIM], budget[MAX_DIM];
    const int n = v->n_pages * TERN_PAGE;
    float top = m0;
    for (int t = t0; t < t1; t++)
        top = scores[t] > top ? scores[t] : top;
    const double shrink = m0 == -INFINITY ? 0 : exp2((double)(float)(m0 - top));
    double l = (double)l0 * shrink;
    for (int t = 0; t < n; t++)
        l += p[t] = t >= t0 && t < t1 ? exp2((double)(float)(scores[t] - top)) : 0;
    const double l_budget = 8e-6 * l + 0x1p-90;
    check_budget("l", &r->l, &l, &l_budget, 1, NULL, 0);
    if (r->m != top)
        check_fail("m = %g, expected %g", r->m, top);
    for (int d = 0; d < v->dim; d++) {
        const float *f = g->f + d / TERN_KVQ_BLOCK * n;
        double weight = 0, sum = (double)o0[d] * shrink, mag = fabs(sum), entries = 0;
        for (int t = 0; t < n; t++) {
            const double x = v->value[(size_t)t * (size_t)v->dim + (size_t)d];
            weight = fmax(weight, p[t] * (double)f[t]);
            sum += p[t] * x;
            mag += fabs(p[t] * x);
            entries += t >= t0 && t < t1 && f[t] > 0 ? fabs(x / (double)f[t]) : 0;
        }
        oracle[d] = sum;
        budget[d] = weight * (0.5 / 32767) * 1.001 * entries + 8e-6 * mag + 0x1p-80;
    }
    check_budget("o", r->o, oracle, budget, (size_t)v->dim, NULL, 0);
}

static void weights_case(int c, int n_pages, int t0, int t1)
{
    const struct side v = random_side(c, n_pages, false);
    const int n = n_pages * TERN_PAGE, kind = check_range(0, 5), old = check_range(0, 3);
    const size_t stride = TERN_PAGE + (c % 5 ? 16 * (size_t)check_range(0, 9) : 0);
    const struct group g = expand_values(&ref, &v);
    float scores[MAX_TOKENS], *o0 = check_buf((size_t)v.dim * 4, 64), m0 = -INFINITY, l0 = 0;
    random_scores(scores, n, kind, t0, t1);
    check_fill_f32(o0, (size_t)v.dim, old ? CHECK_GAUSS : CHECK_ZERO);
    if (old) {
        const float first = t0 < t1 ? scores[t0] : 0;
        m0 = old == 1 ? first - 5 : old == 2 ? first + 7 : first;
        l0 = (float)(1 + 10 * check_uniform());
    }
    const struct row r = attend(&tern_k.attn16, &v, &g, scores, o0, stride, t0, t1, m0, l0);
    const struct row want = attend(&ref, &v, &g, scores, o0, stride, t0, t1, m0, l0);
    check_same_bytes("weights", r.w, want.w, (size_t)(v.n_blocks * n) * 2);
    check_same_f32("their unit", r.unit, want.unit, (size_t)v.n_blocks);
    check_same_f32("state", (float[]){r.m, r.l, r.shrink}, (float[]){want.m, want.l, want.shrink}, 3);
    check_same_f32("o against plain C", r.o, want.o, (size_t)v.dim);
    if (t0 < t1)
        check_row(&v, &g, scores, o0, t0, t1, m0, l0, &r);
    else if (r.shrink != 1 || r.l != l0 || r.m != m0)
        check_fail("an empty range changed the state");
    for (int i = 0; i < v.n_blocks * n; i++) {
        const int t = tern_attn16_item(i % n, v.tab->bits);
        if (r.w[i] < 0 || ((t < t0 || t >= t1) && r.w[i] != 0))
            check_fail("weight %d of token %d", r.w[i], t);
    }
}

static void part_weights(void)
{
    static const int ends[] = {0, 1, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 256};
    for (int c = 0; c < CHECK_TIMES(8) * N_CASES; c++) {
        const int n_pages = 1 + c % MAX_PAGES, n = n_pages * TERN_PAGE;
        int t0 = c % 3 ? check_range(0, n) : 0, t1 = c % 7 ? check_range(t0, n) : n;
        if (c % 5 == 0) {
            t1 = ends[c / 5 % 13] < n ? ends[c / 5 % 13] : n;
            t0 = c % 2 && t1 > 0 ? check_range(0, t1) : 0;
        }
        weights_case(c, n_pages, t0, t1);
    }
}

/* A group that begins later, without pages that a row does not see, changes no bit of its result; and rows do not look
 * at each other. */
static void part_rows(void)
{
    for (int c = 0; c < N_CASES; c++) {
        const struct side v = random_side(c, MAX_PAGES, false);
        const struct group g = expand_values(&tern_k.attn16, &v);
        const int skip = 1 + c % (MAX_PAGES - 1), t0 = skip * TERN_PAGE + check_range(0, TERN_PAGE - 1);
        struct side later = v;
        float scores[MAX_TOKENS], *o0 = check_buf((size_t)v.dim * 4, 64);
        random_scores(scores, MAX_TOKENS, c % 4, t0, MAX_TOKENS);
        check_fill_f32(o0, (size_t)v.dim, CHECK_GAUSS);
        later.n_pages = MAX_PAGES - skip;
        for (int p = 0; p < later.n_pages; p++) {
            later.codes[p] = v.codes[skip + p];
            later.head[p] = v.head[skip + p];
        }
        const struct group h = expand_values(&tern_k.attn16, &later);
        const struct row a = attend(&tern_k.attn16, &v, &g, scores, o0, TERN_PAGE, t0, MAX_TOKENS, 1, 2);
        const struct row b = attend(&tern_k.attn16, &later, &h, scores + skip * TERN_PAGE, o0, TERN_PAGE,
                                    t0 - skip * TERN_PAGE, later.n_pages * TERN_PAGE, 1, 2);
        check_same_f32("o of fewer pages", b.o, a.o, (size_t)v.dim);
        check_same_f32("state of fewer pages", (float[]){b.m, b.l}, (float[]){a.m, a.l}, 2);

        const int n_q = 1 + c % MAX_Q, at = check_range(0, n_q - 1);
        const size_t n_w = (size_t)(v.n_blocks * MAX_TOKENS), dim = (size_t)v.dim, n_b = (size_t)v.n_blocks;
        int16_t *w = check_buf((size_t)n_q * n_w * 2, 64);
        float *unit = check_buf((size_t)n_q * n_b * 4, 4), *shrink = check_buf((size_t)n_q * 4, 4);
        float *o = check_buf((size_t)n_q * dim * 4, 64);
        check_fill_bytes(w, (size_t)n_q * n_w * 2);
        check_fill_f32(unit, (size_t)n_q * n_b, CHECK_GAUSS);
        check_fill_f32(shrink, (size_t)n_q, CHECK_GAUSS);
        check_fill_f32(o, (size_t)n_q * dim, CHECK_GAUSS);
        memcpy(w + (size_t)at * n_w, a.w, n_w * 2);
        memcpy(unit + (size_t)at * n_b, a.unit, n_b * 4);
        memcpy(o + (size_t)at * dim, o0, dim * 4);
        shrink[at] = a.shrink;
        tern_k.attn16.accum(o, w, unit, shrink, g.out, v.dim, MAX_PAGES, n_q);
        check_same_f32("o among others", o + (size_t)at * dim, a.o, dim);
    }
}

void check_attn16(void)
{
    if (!tern_k.attn16.score)
        return;
    tern_attn16_init_ref(&ref);
    CHECK_PART(attn16.expand_k, part_expand_k);
    CHECK_PART(attn16.expand_v, part_expand_v);
    CHECK_PART(attn16.score, part_score);
    CHECK_PART(attn16.pack, part_nonfinite);
    CHECK_PART(attn16.softmax, part_weights);
    CHECK_PART(attn16.accum, part_rows);
}

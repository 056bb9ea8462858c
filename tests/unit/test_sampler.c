/* Sampling: each cut-off against its definition, penalties, bias, reproducibility, bad parameters. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/rng.h"
#include "run/sampler.h"
#include "tern/tern.h"

#define N 1000

static float logits[N];

static void fill(uint64_t seed)
{
    struct tern_rng r = {seed};
    for (int i = 0; i < N; i++)
        logits[i] = (float)(tern_rng_f64(&r) * 12 - 6);
}

static tern_sampler *make(const tern_sampler_params *p)
{
    tern_sampler *s;
    tern_error err = {0};
    if (tern_sampler_new(&s, N, p, &err) < 0)
        fail_msg("%s", err.msg);
    return s;
}

static int argmax(const float *x)
{
    int b = 0;
    for (int i = 1; i < N; i++)
        if (x[i] > x[b])
            b = i;
    return b;
}

static int rank_of(const float *x, int id)
{
    int r = 0;
    for (int i = 0; i < N; i++)
        r += x[i] > x[id] || (x[i] == x[id] && i < id);
    return r;
}

static double prob(const float *x, int id, double t)
{
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += exp(((double)x[i] - (double)x[id]) / t);
    return 1 / sum;
}

static void test_greedy(void **state)
{
    tern_sampler_params p;
    (void)state;
    tern_sampler_defaults(&p);
    tern_sampler *s = make(&p);
    for (uint64_t i = 0; i < 20; i++) {
        fill(i);
        assert_int_equal(tern_sampler_pick(s, logits), argmax(logits));
    }
    logits[3] = logits[7] = 100; /* ties go to the lower id */
    assert_int_equal(tern_sampler_pick(s, logits), 3);
    tern_sampler_free(s);
}

static void test_frequencies(void **state)
{
    tern_sampler_params p;
    enum { DRAWS = 20000 };
    static int count[N];
    (void)state;
    tern_sampler_defaults(&p);
    p.temperature = 0.7f;
    fill(1);
    memset(count, 0, sizeof count);
    tern_sampler *s = make(&p);
    for (int i = 0; i < DRAWS; i++)
        count[tern_sampler_pick(s, logits)]++;
    for (int i = 0; i < N; i++) {
        double want = prob(logits, i, (double)p.temperature) * DRAWS;
        assert_true(fabs(count[i] - want) < 6 * sqrt(want) + 6);
    }
    tern_sampler_free(s);
}

static void test_top_k(void **state)
{
    tern_sampler_params p;
    (void)state;
    tern_sampler_defaults(&p);
    p.temperature = 5;
    fill(2);
    for (p.top_k = 1; p.top_k <= 40; p.top_k += 13) {
        int seen = 0;
        tern_sampler *s = make(&p);
        for (int i = 0; i < 1000; i++) {
            int r = rank_of(logits, tern_sampler_pick(s, logits));
            assert_true(r < p.top_k);
            seen = r > seen ? r : seen;
        }
        assert_int_equal(seen, p.top_k - 1); /* and the last of them does occur */
        tern_sampler_free(s);
    }
    p.top_k = N + 5; /* more than there are: all of them */
    tern_sampler *s = make(&p);
    assert_in_range(tern_sampler_pick(s, logits), 0, N - 1);
    tern_sampler_free(s);
}

static void test_top_p(void **state)
{
    tern_sampler_params p;
    (void)state;
    tern_sampler_defaults(&p);
    p.temperature = 1;
    fill(3);
    for (int k = 0; k < 4; k++) {
        p.top_p = (float[]){0.01f, 0.3f, 0.9f, 0.0f}[k];
        tern_sampler *s = make(&p);
        for (int i = 0; i < 300; i++) {
            int id = tern_sampler_pick(s, logits);
            double before = 0; /* mass of everything ranked above it must be below top_p */
            for (int j = 0; j < N; j++)
                if (logits[j] > logits[id])
                    before += prob(logits, j, 1);
            assert_true(before < (double)p.top_p + 1e-6 || rank_of(logits, id) == 0);
        }
        tern_sampler_free(s);
    }
}

static void test_min_p(void **state)
{
    tern_sampler_params p;
    (void)state;
    tern_sampler_defaults(&p);
    p.temperature = 2;
    p.min_p = 0.25f;
    fill(4);
    double max = prob(logits, argmax(logits), 2);
    tern_sampler *s = make(&p);
    for (int i = 0; i < 300; i++)
        assert_true(prob(logits, tern_sampler_pick(s, logits), 2) >= 0.25 * max * (1 - 1e-6));
    tern_sampler_free(s);
}

/* By hand: probabilities .4 .3 .2 .05 .03 .02 and so few for the rest that they do not count. */
static void test_xtc(void **state)
{
    static const double first[] = {.4, .3, .2, .05, .03, .02};
    static const struct {
        float threshold, top_p, min_p;
        int top_k, least, most; /* the tokens that come */
    } cases[] = {
        {.1f, 1, 0, 0, 2, 5},     /* .4 and .3 go, .2 is the least of the three */
        {.25f, 1, 0, 0, 1, 5},    /* .4 goes */
        {.38f, 1, 0, 0, 0, 5},    /* one alone stays */
        {.5f, 1, 0, 0, 0, 5},     /* none has as much */
        {.45f, 1, 0, 2, 0, 1},    /* of two, .57 and .43: one alone stays */
        {.42f, 1, 0, 2, 1, 1},    /* now both have as much */
        {.04f, .85f, 0, 0, 2, 2}, /* top-p leaves three, all of them top choices */
        {.04f, 1, .2f, 0, 2, 2},  /* min-p, too */
        {.025f, 1, 0, 5, 4, 4},   /* top-k 5, all of them */
    };
    (void)state;
    for (int i = 0; i < N; i++)
        logits[i] = i < 6 ? (float)log(first[i]) : -60;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int t = 0; t < 2; t++) {
            tern_sampler_params p;
            int seen[N] = {0};
            tern_sampler_defaults(&p);
            p.temperature = 1;
            p.seed = c;
            p.xtc_probability = t ? 1 : 0;
            p.xtc_threshold = cases[c].threshold;
            p.top_p = cases[c].top_p;
            p.min_p = cases[c].min_p;
            p.top_k = cases[c].top_k;
            tern_sampler *s = make(&p);
            for (int i = 0; i < 4000; i++)
                seen[tern_sampler_pick(s, logits)]++;
            for (int i = 0; i < N; i++)
                assert_true((seen[i] > 0) == (i >= (t ? cases[c].least : 0) && i <= cases[c].most));
            tern_sampler_free(s);
        }
}

/* In half of the draws: .2 comes in .2 of the others and in .2 / .3 of these.  The same seed, the same tokens. */
static void test_xtc_frequencies(void **state)
{
    tern_sampler_params p;
    int n = 0, same = 0, rounds = 20000;
    (void)state;
    for (int i = 0; i < N; i++)
        logits[i] = i < 4 ? (float)log((double[]){.4, .3, .2, .1}[i]) : -60;
    tern_sampler_defaults(&p);
    p.temperature = 1;
    p.seed = 5;
    p.xtc_probability = .5f;
    p.xtc_threshold = .15f;
    tern_sampler *s = make(&p), *again = make(&p);
    for (int i = 0; i < rounds; i++) {
        int id = tern_sampler_pick(s, logits);
        n += id == 2;
        same += id == tern_sampler_pick(again, logits);
    }
    const double want = .5 * .2 + .5 * .2 / .3;
    assert_true(fabs((double)n / rounds - want) < 5 * sqrt(want * (1 - want) / rounds));
    assert_int_equal(same, rounds);
    tern_sampler_free(s);
    tern_sampler_free(again);
}

static void test_seed(void **state)
{
    tern_sampler_params p;
    int differs = 0;
    (void)state;
    tern_sampler_defaults(&p);
    p.temperature = 1;
    p.top_p = 0.95f;
    p.seed = 42;
    tern_sampler *a = make(&p), *b = make(&p);
    p.seed = 43;
    tern_sampler *c = make(&p);
    for (uint64_t i = 0; i < 200; i++) {
        fill(i);
        int x = tern_sampler_pick(a, logits);
        assert_int_equal(x, tern_sampler_pick(b, logits));
        differs += x != tern_sampler_pick(c, logits);
    }
    assert_true(differs > 100);
    tern_sampler_free(a);
    tern_sampler_free(b);
    tern_sampler_free(c);
}

static void test_penalties(void **state)
{
    tern_sampler_params p;
    (void)state;
    tern_sampler_defaults(&p);
    memset(logits, 0, sizeof logits);
    logits[5] = 4;
    logits[6] = 3;
    logits[7] = 2;
    p.presence_penalty = 1.5f;
    p.penalty_last = 3;
    tern_sampler *s = make(&p);
    assert_int_equal(tern_sampler_pick(s, logits), 5);
    tern_sampler_accept(s, 5);
    assert_int_equal(tern_sampler_pick(s, logits), 6); /* 4 - 1.5 < 3 */
    tern_sampler_accept(s, 6);
    assert_int_equal(tern_sampler_pick(s, logits), 5); /* 2.5 against 1.5 and 2 */
    tern_sampler_accept(s, 6);
    tern_sampler_accept(s, 6);
    tern_sampler_accept(s, 6); /* 5 has left the window of three */
    assert_int_equal(tern_sampler_pick(s, logits), 5);
    tern_sampler_free(s);

    p = (tern_sampler_params){.top_p = 1, .repetition_penalty = 1, .frequency_penalty = 0.4f, .penalty_last = -1};
    s = make(&p);
    for (int i = 0; i < 3; i++)
        tern_sampler_accept(s, 5); /* 4 - 1.2 */
    assert_int_equal(tern_sampler_pick(s, logits), 6);
    tern_sampler_free(s);

    p = (tern_sampler_params){.top_p = 1, .repetition_penalty = 2};
    s = make(&p);
    logits[8] = -1;
    tern_sampler_accept(s, 5);
    tern_sampler_accept(s, 5); /* once, however often it occurred: 4/2 */
    tern_sampler_accept(s, 8);
    assert_int_equal(tern_sampler_pick(s, logits), 6);
    tern_sampler_free(s);
}

/* OpenAI's meaning: the reply alone, and all of it, whatever the window is; the repetition penalty keeps its own. */
static void test_penalties_of_reply(void **state)
{
    tern_sampler_params p;
    (void)state;
    tern_sampler_defaults(&p);
    memset(logits, 0, sizeof logits);
    logits[5] = 4;
    logits[6] = 3;
    p.frequency_penalty = 0.75f;
    p.penalise_reply = true;
    p.penalty_last = 2;
    tern_sampler *s = make(&p);
    for (int i = 0; i < 9; i++)
        tern_sampler_prompt(s, 5);
    assert_int_equal(tern_sampler_pick(s, logits), 5);
    tern_sampler_accept(s, 5);
    assert_int_equal(tern_sampler_pick(s, logits), 5); /* 3.25 */
    tern_sampler_accept(s, 5);
    for (int i = 0; i < 100; i++)
        tern_sampler_accept(s, 10 + i);
    assert_int_equal(tern_sampler_pick(s, logits), 6); /* 2.5 still */
    tern_sampler_free(s);

    p.presence_penalty = 0.5f;
    p.repetition_penalty = 2;
    s = make(&p);
    tern_sampler_prompt(s, 5);
    assert_int_equal(tern_sampler_pick(s, logits), 6); /* 4/2 */
    tern_sampler_accept(s, 6);                         /* 3/2 - .5 - .75 */
    assert_int_equal(tern_sampler_pick(s, logits), 5);
    tern_sampler_accept(s, 7);
    tern_sampler_accept(s, 7);
    assert_int_equal(tern_sampler_pick(s, logits), 5); /* out of the window: 4 against 1.75 */
    tern_sampler_free(s);
}

static void test_bias(void **state)
{
    tern_sampler_params p;
    int32_t ids[2] = {5, 900};
    float values[2] = {-INFINITY, 7};
    (void)state;
    memset(logits, 0, sizeof logits);
    logits[5] = 6;
    tern_sampler_defaults(&p);
    p.bias_ids = ids;
    p.bias_values = values;
    p.n_bias = 1;
    tern_sampler *s = make(&p);
    assert_int_equal(tern_sampler_pick(s, logits), 0);
    tern_sampler_free(s);
    p.n_bias = 2;
    s = make(&p);
    assert_int_equal(tern_sampler_pick(s, logits), 900);
    tern_sampler_free(s);
}

static void test_bad_parameters(void **state)
{
    tern_sampler_params p;
    tern_sampler *s;
    tern_error err;
    int32_t id = N;
    float value = 0;
    (void)state;
#define BAD(field, v, name)                                               \
    do {                                                                  \
        tern_sampler_defaults(&p);                                        \
        p.field = (v);                                                    \
        assert_int_equal(tern_sampler_new(&s, N, &p, &err), TERN_EINVAL); \
        assert_null(s);                                                   \
        assert_non_null(strstr(err.msg, name));                           \
    } while (0)
    BAD(temperature, -1, "temperature");
    BAD(temperature, NAN, "temperature");
    BAD(top_k, -5, "top-k");
    BAD(top_p, 1.1f, "top-p");
    BAD(min_p, -0.1f, "min-p");
    BAD(xtc_probability, 1.5f, "xtc probability");
    BAD(xtc_threshold, NAN, "xtc threshold");
    BAD(repetition_penalty, 0, "repetition");
    BAD(presence_penalty, INFINITY, "presence");
    BAD(frequency_penalty, NAN, "frequency");
    BAD(penalty_last, -2, "window");
#undef BAD
    tern_sampler_defaults(&p);
    p.bias_ids = &id;
    p.bias_values = &value;
    p.n_bias = 1;
    assert_int_equal(tern_sampler_new(&s, N, &p, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "1000"));
}

static void test_strange_logits(void **state)
{
    tern_sampler_params p;
    (void)state;
    tern_sampler_defaults(&p);
    for (int k = 0; k < 2; k++) {
        p.temperature = (float)k;
        p.top_p = k ? 0.9f : 1.0f;
        tern_sampler *s = make(&p);
        for (int i = 0; i < N; i++)
            logits[i] = NAN;
        assert_in_range(tern_sampler_pick(s, logits), 0, N - 1);
        logits[17] = 1;
        assert_int_equal(tern_sampler_pick(s, logits), 17);
        for (int i = 0; i < N; i++)
            logits[i] = -INFINITY;
        assert_in_range(tern_sampler_pick(s, logits), 0, N - 1);
        logits[9] = 0;
        assert_int_equal(tern_sampler_pick(s, logits), 9);
        tern_sampler_free(s);
    }
}

/* ---- against the definition ---- */

#define WIDE 5003

static float wide[WIDE];

struct entry {
    float logit;
    int id;
};

static int by_logit(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id - y->id;
}

/* The least likely of those that weigh `from` or more, -1: there are fewer than two. */
static int least_top(const struct entry *e, int m, double max, double t, double from, double *margin)
{
    int last = -1, n = 0;
    for (int i = 0; i < m; i++) {
        double w = exp(((double)e[i].logit - max) / t);
        if (isfinite(e[i].logit))
            *margin = fmin(*margin, fabs(w - from));
        if (w < from)
            continue;
        n++;
        if (last < 0 || by_logit(&e[i], &e[last]) > 0)
            last = i;
    }
    return n > 1 ? last : -1;
}

static bool is_gone(const struct entry *e, int i, int last, double max, double t, double from)
{
    return i != last && exp(((double)e[i].logit - max) / t) >= from;
}

/* The draw u of all tokens' exponentials, in the order of ids, or where there are cut-offs of likelihood; exclude:
 * after XTC.  *margin: how far u is from the border of another token or cut, in parts of all. */
static int define(const tern_sampler_params *p, bool exclude, double u, double *margin)
{
    static struct entry e[WIDE];
    double t = (double)p->temperature, max = -INFINITY, total = 0, kept = 0, sum = 0;
    bool cut = p->top_k || p->top_p < 1 || p->min_p > 0;
    for (int i = 0; i < WIDE; i++) {
        e[i] = (struct entry){wide[i], i};
        max = fmax(max, (double)wide[i]);
    }
    if (cut)
        qsort(e, WIDE, sizeof *e, by_logit);
    int n = p->top_k && p->top_k < WIDE ? p->top_k : WIDE, m = 0;
    for (int i = 0; i < n; i++)
        total += exp(((double)e[i].logit - max) / t);
    *margin = 1;
    for (; m < n; m++) {
        double w = exp(((double)e[m].logit - max) / t);
        if (cut && m && p->top_p < 1)
            *margin = fmin(*margin, fabs(kept / total - (double)p->top_p));
        if (cut && m && (w < (double)p->min_p || (p->top_p < 1 && kept >= (double)p->top_p * total)))
            break;
        kept += w;
    }
    const int last = exclude ? least_top(e, m, max, t, (double)p->xtc_threshold * kept, margin) : -1;
    const double all = kept;
    for (int i = 0; last >= 0 && i < m; i++) /* the choices above it go */
        if (is_gone(e, i, last, max, t, (double)p->xtc_threshold * all))
            kept -= exp(((double)e[i].logit - max) / t);
    for (int i = 0; i < m; i++) {
        if (last >= 0 && is_gone(e, i, last, max, t, (double)p->xtc_threshold * all))
            continue;
        sum += exp(((double)e[i].logit - max) / t);
        *margin = fmin(*margin, fabs(sum / kept - u));
        if (u * kept < sum)
            return e[i].id;
    }
    return -1;
}

static void test_equals_definition(void **state)
{
    int near = 0, drawn = 0;
    (void)state;
    for (uint64_t round = 0; round < 400; round++) {
        struct tern_rng r = {round}, u;
        double spread = (double[]){0.01, 1, 6, 40}[round % 4], margin;
        for (int i = 0; i < WIDE; i++)
            wide[i] = (float)((tern_rng_f64(&r) + tern_rng_f64(&r) - 1) * spread);
        if (round % 3 == 0)
            for (int i = 0; i < 300; i++) /* ties, and what a bias forbade */
                wide[tern_rng_u64(&r) % WIDE] = i % 2 ? (float)spread : -INFINITY;
        tern_sampler_params p = {.temperature = (float[]){0.3f, 1, 2.5f}[round / 4 % 3],
                                 .top_k = (int[]){0, 1, 40, 3000, 9000}[round / 12 % 5],
                                 .top_p = (float[]){1, 0.95f, 0.2f}[round / 60 % 3],
                                 .min_p = round / 180 % 2 ? 0.05f : 0,
                                 .xtc_probability = (float[]){0, 1, 0.5f}[round % 3],
                                 .xtc_threshold = (float[]){0.1f, 0.01f, 0.0003f, 0.4f}[round / 7 % 4],
                                 .repetition_penalty = 1,
                                 .seed = round};
        tern_sampler *s;
        tern_error err = {0};
        assert_int_equal(tern_sampler_new(&s, WIDE, &p, &err), 0);
        u.state = round;
        for (int i = 0; i < 20; i++) {
            const bool exclude = p.xtc_probability > 0 && tern_rng_f64(&u) < (double)p.xtc_probability;
            int want = define(&p, exclude, tern_rng_f64(&u), &margin), got = tern_sampler_pick(s, wide);
            near += margin < 1e-9;
            drawn++;
            if (got != want && margin > 1e-9)
                fail_msg("round %d, draw %d: token %d, by the definition %d", (int)round, i, got, want);
        }
        tern_sampler_free(s);
    }
    assert_true(near < drawn / 50);
}

/* ---- against all tokens sorted ---- */

/* What tern_sampler_pick_within does, without a thought of speed: sort all that are numbers, take the first. */
static int pick_sorted(const tern_sampler_params *p, const float *x, struct tern_rng *rng)
{
    static struct entry e[WIDE];
    static double w[WIDE];
    double total = 0, kept = 0;
    int n = 0, m = 0, from = 0;
    for (int i = 0; i < WIDE; i++)
        if (!isnan(x[i]))
            e[n++] = (struct entry){x[i], i};
    qsort(e, (size_t)n, sizeof *e, by_logit);
    const bool exclude = p->xtc_probability > 0 && tern_rng_f64(rng) < (double)p->xtc_probability;
    n = p->top_k && p->top_k < n ? p->top_k : n;
    for (int i = 0; i < n; i++)
        total += w[i] = exp(((double)e[i].logit - (double)e[0].logit) / (double)p->temperature);
    while (m < n && (m == 0 || (w[m] >= (double)p->min_p && (p->top_p >= 1 || kept < (double)p->top_p * total))))
        kept += w[m++];
    while (exclude && from < m && w[from] >= (double)p->xtc_threshold * kept)
        from++;
    from -= from > 0; /* the least of them stays */
    for (int i = 0; i < from; i++)
        kept -= w[i];
    double u = tern_rng_f64(rng) * kept;
    for (int i = from; i < m - 1; i++)
        if ((u -= w[i]) < 0)
            return e[i].id;
    return e[m - 1].id;
}

/* A row of few different logits (levels > 0) or of many, some of them -inf and no numbers. */
static void fill_wide(struct tern_rng *r, int levels, double spread, bool strange)
{
    for (int i = 0; i < WIDE; i++) {
        double v = tern_rng_f64(r) + tern_rng_f64(r) - 1;
        wide[i] = (float)((levels ? floor(v * levels) / levels : v) * spread);
    }
    for (int i = 0; strange && i < WIDE; i++)
        if (tern_rng_u64(r) % 3 == 0)
            wide[i] = i % 2 ? NAN : -INFINITY;
    if (strange)
        wide[WIDE - 1] = (float)spread; /* a candidate of the last block, which is not whole */
}

/* The row with a penalty on each token of `text`, then the mask. */
static void limit(float *x, const tern_sampler_params *p, const int32_t *text, int n_text, const uint32_t *mask)
{
    memcpy(x, wide, sizeof wide);
    for (int i = 0; i < n_text; i++) /* all of them different */
        x[text[i]] = (x[text[i]] > 0 ? x[text[i]] / p->repetition_penalty : x[text[i]] * p->repetition_penalty) -
                     p->presence_penalty;
    for (int i = 0; mask && i < WIDE; i++)
        if (!(mask[i / 32] >> (i % 32) & 1))
            x[i] = -INFINITY;
}

/* WIDE has 79 blocks: k on both sides of that. */
static void test_equals_sorted(void **state)
{
    static const int ks[] = {1, 2, 40, 77, 78, 79, 80, 3000, WIDE - 1, WIDE, WIDE + 1};
    static float x[WIDE];
    static uint32_t mask[(WIDE + 31) / 32];
    (void)state;
    for (uint64_t round = 0; round < 352; round++) {
        struct tern_rng r = {round}, u = {round};
        const bool penalise = tern_rng_u64(&r) % 2, masked = tern_rng_u64(&r) % 3 == 0;
        const int levels = (int[]){0, 2, 9, 300}[tern_rng_u64(&r) % 4];
        const double spread = (double[]){0.01, 1, 6, 40}[tern_rng_u64(&r) % 4];
        fill_wide(&r, levels, spread, tern_rng_u64(&r) % 2);
        tern_sampler_params p = {.temperature = (float[]){0.3f, 1, 2.5f}[tern_rng_u64(&r) % 3],
                                 .top_k = ks[round % (sizeof ks / sizeof *ks)],
                                 .top_p = (float[]){1, 0.95f, 0.2f}[tern_rng_u64(&r) % 3],
                                 .min_p = tern_rng_u64(&r) % 2 ? 0.05f : 0,
                                 .xtc_probability = tern_rng_u64(&r) % 2 ? 0.5f : 0,
                                 .xtc_threshold = 0.011f,
                                 .repetition_penalty = penalise ? 1.3f : 1,
                                 .presence_penalty = penalise ? 0.5f : 0,
                                 .seed = round};
        tern_sampler *s;
        tern_error err = {0};
        assert_int_equal(tern_sampler_new(&s, WIDE, &p, &err), 0);
        int32_t text[50];
        for (int i = 0; i < 50; i++) {
            text[i] = i * 100 + (int32_t)(tern_rng_u64(&r) % 100);
            tern_sampler_accept(s, text[i]);
        }
        for (size_t i = 0; i < sizeof mask / sizeof *mask; i++)
            mask[i] = (uint32_t)tern_rng_u64(&r) & 0x5A9147C5;
        const struct tern_choice_limits limits = {.mask = masked ? mask : NULL};
        limit(x, &p, text, penalise ? 50 : 0, limits.mask);
        for (int i = 0; i < 2; i++) {
            int want = pick_sorted(&p, x, &u), got = tern_sampler_pick_within(s, wide, &limits);
            if (got != want)
                fail_msg("round %d, draw %d: token %d, of all sorted %d", (int)round, i, got, want);
        }
        tern_sampler_free(s);
    }
}

/* ---- out of the best alone ---- */

/* What a device finds of the row (struct tern_best): the first `most` of all that are numbers. */
static void find_best(int most, float *values, int32_t *ids)
{
    static struct entry e[WIDE];
    int n = 0;
    for (int i = 0; i < WIDE; i++)
        if (!isnan(wide[i]))
            e[n++] = (struct entry){wide[i], i};
    qsort(e, (size_t)n, sizeof *e, by_logit);
    for (int i = 0; i < most; i++) {
        values[i] = i < n ? e[i].logit : 0;
        ids[i] = i < n ? e[i].id : -1;
    }
}

/* Rows of all kinds: what models say; few numbers among others; none; one that is infinite; zeros of both signs. */
static void fill_strange(struct tern_rng *r, uint64_t round)
{
    fill_wide(r, (int[]){0, 2, 9, 300}[tern_rng_u64(r) % 4], (double[]){0.01, 1, 6, 40}[tern_rng_u64(r) % 4],
              round % 3 == 1);
    if (round % 5 == 4)
        for (int i = 0; i < WIDE; i++)
            wide[i] = round % 4 == 3 || i % 1000 ? NAN : (float)(i / 1000 - 3);
    if (round % 17 == 0)
        wide[tern_rng_u64(r) % WIDE] = INFINITY;
    for (int i = 0; i < WIDE && round % 7 == 0; i++)
        wide[i] = wide[i] > 0 ? 0.0f : wide[i] > -1 ? -0.0f : -INFINITY;
}

/* The same tokens with the same seed as out of the whole row, bit for bit; and the same numbers are drawn. */
static void test_out_of_the_best(void **state)
{
    float values[TERN_BEST];
    int32_t ids[TERN_BEST];
    (void)state;
    for (uint64_t round = 0; round < 1200; round++) {
        struct tern_rng r = {round};
        const int k = 1 + (int)(tern_rng_u64(&r) % TERN_BEST);
        tern_sampler_params p = {.temperature = (float[]){0, 1e-3f, 0.6f, 1, 30}[tern_rng_u64(&r) % 5],
                                 .top_k = k,
                                 .top_p = (float[]){1, 0.95f, 0.2f, 0}[tern_rng_u64(&r) % 4],
                                 .min_p = (float[]){0, 0.05f, 1}[tern_rng_u64(&r) % 3],
                                 .xtc_probability = tern_rng_u64(&r) % 2 ? 0.5f : 0,
                                 .xtc_threshold = 0.011f,
                                 .repetition_penalty = 1,
                                 .seed = round};
        tern_sampler *a, *b;
        tern_error err = {0};
        fill_strange(&r, round);
        assert_int_equal(tern_sampler_new(&a, WIDE, &p, &err), 0);
        assert_int_equal(tern_sampler_new(&b, WIDE, &p, &err), 0);
        const int enough = tern_sampler_enough(a);
        assert_int_equal(enough, p.temperature > 0 ? k : 1);
        find_best(TERN_BEST, values, ids);
        for (int i = 0; i < 6; i++) { /* as many as are enough, or more */
            const int n = i % 2 ? TERN_BEST : enough;
            const int want = tern_sampler_pick(a, wide), got = tern_sampler_pick_best(b, values, ids, n);
            if (got != want)
                fail_msg("round %d, draw %d: token %d, of all %d", (int)round, i, got, want);
        }
        tern_sampler_free(a);
        tern_sampler_free(b);
    }
}

/* Whatever looks at other tokens than the likeliest says so. */
static void test_enough(void **state)
{
    (void)state;
    const int32_t id = 3;
    const float by = 1;
    const tern_sampler_params common = {.temperature = 1, .top_k = 20, .top_p = 0.9f, .repetition_penalty = 1};
    struct {
        tern_sampler_params p;
        int want;
    } cases[12];
    int n = 0;
    for (int i = 0; i < 12; i++)
        cases[i].p = common;
    cases[n++].want = 20;
    cases[n].p.top_k = TERN_BEST;
    cases[n++].want = TERN_BEST;
    cases[n].p.top_k = TERN_BEST + 1;
    cases[n++].want = 0;
    cases[n].p.top_k = 0;
    cases[n++].want = 0;
    cases[n].p.top_k = 0;
    cases[n].p.temperature = 0;
    cases[n++].want = 1;
    cases[n].p.xtc_probability = 1;
    cases[n++].want = 20;
    cases[n].p.repetition_penalty = 1.1f;
    cases[n++].want = 0;
    cases[n].p.presence_penalty = 1;
    cases[n++].want = 0;
    cases[n].p.frequency_penalty = 1;
    cases[n].p.temperature = 0;
    cases[n++].want = 0;
    cases[n].p.n_bias = 1;
    cases[n].p.bias_ids = &id;
    cases[n].p.bias_values = &by;
    cases[n++].want = 0;
    for (int i = 0; i < n; i++) {
        tern_sampler *s;
        tern_error err = {0};
        assert_int_equal(tern_sampler_new(&s, WIDE, &cases[i].p, &err), 0);
        assert_int_equal(tern_sampler_enough(s), cases[i].want);
        tern_sampler_free(s);
    }
    tern_sampler *s;
    tern_error err = {0};
    assert_int_equal(tern_sampler_new(&s, 20, &common, &err), 0); /* all tokens: no cut, and draws in another order */
    assert_int_equal(tern_sampler_enough(s), 0);
    tern_sampler_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_frequencies),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_min_p),
        cmocka_unit_test(test_xtc),
        cmocka_unit_test(test_xtc_frequencies),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_penalties),
        cmocka_unit_test(test_penalties_of_reply),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_bad_parameters),
        cmocka_unit_test(test_strange_logits),
        cmocka_unit_test(test_equals_definition),
        cmocka_unit_test(test_equals_sorted),
        cmocka_unit_test(test_out_of_the_best),
        cmocka_unit_test(test_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

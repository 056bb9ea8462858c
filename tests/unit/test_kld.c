/* Divergence between KV plans: exact zeros, a second computation in long double, independence of threads and grouping;
 * and the statistics against brute force. */
#include "tiny.h"

#include "base/rng.h"
#include "eval/stats.h"
#include "kernel/kernel.h"
#include "tern/eval.h"

static const char *const models[][3] = {
    /* file, ids, logits */
    {"llama-tied", "llama-tied", "llama-tied"},
    {"llama-untied", "llama-untied", "llama-untied"},
    {"gemma3-w8", "gemma3-w8", "gemma3-w8"},
    {"gemma3-w70", "gemma3-w70", "gemma3-w70"},
    {"llama-b32-f16", "llama-b32", "llama-b32-f16"},
    {"llama-b32-bf16", "llama-b32", "llama-b32-bf16"},
    {"llama-b32-q8_0", "llama-b32", "llama-b32-q8_0"},
    {"llama-b32-q4_0", "llama-b32", "llama-b32-q4_0"},
    {"llama-b32-q4_1", "llama-b32", "llama-b32-q4_1"},
    {"llama-b32-q5_0", "llama-b32", "llama-b32-q5_0"},
    {"llama-b32-q5_1", "llama-b32", "llama-b32-q5_1"},
    {"llama-k256-q4_k", "llama-k256", "llama-k256-q4_k"},
    {"llama-k256-q5_k", "llama-k256", "llama-k256-q5_k"},
    {"llama-k256-q6_k", "llama-k256", "llama-k256-q6_k"},
    {"llama-untied-split-00001-of-00002", "llama-untied", "llama-untied"},
};

struct setting {
    int threads, max_seqs, chunk;
    bool exact, prefill;
};

static tern_engine *open_plans(struct tiny *t, const char *const *kv, int n_kv, struct setting s)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {.n_threads = s.threads, .max_seqs = s.max_seqs, .chunk = s.chunk, .exact = s.exact};
    p.kv = kv[0];
    p.more_kv = kv + 1;
    p.n_more_kv = n_kv - 1;
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

static tern_kld *measure(struct tiny *t, const char *const *kv, int n_kv, const tern_kld_params *p, struct setting s)
{
    tern_error err = {0};
    tern_kld_params q = *p;
    tern_engine *e = open_plans(t, kv, n_kv, s);
    tern_kld *k;
    q.prefill = s.prefill;
    tiny_ok(tern_eval_kld(&k, e, &q, &err), &err);
    tern_memory m;
    tern_engine_memory(e, &m);
    assert_int_equal(m.kv_bytes, 0); /* no sequence is left behind */
    tern_engine_close(&e);
    return k;
}

/* ---- divergence ------------------------------------------------------------------------------------------------- */

static void check_zero(const tern_kld *k, int plan)
{
    tern_error err = {0};
    tern_kld_stats s;
    tiny_ok(tern_kld_get_stats(k, plan, -1, &s, &err), &err);
    assert_true(s.n_tokens > 30);
    assert_true(s.mean == 0 && s.trimmed == 0 && s.median == 0 && s.p99 == 0 && s.max == 0);
    assert_true(s.top1 == 1 && s.ppl_ratio == 1);
}

static void test_f16_is_zero_everywhere(void **state)
{
    (void)state;
    static const char *const kv[] = {"f16", "f16", "l4", "bf16"};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct tiny t;
        tern_error err = {0};
        tern_kld_stats l4, bf16;
        tiny_open(&t, models[m][0], models[m][1], models[m][2]);
        tern_kld_text text = {"ids", t.ids, t.n_ids};
        tern_kld_params p = {.texts = &text, .n_texts = 1, .n_chunks = 1, .ctx = t.n_ids};
        for (int mode = 0; mode < 4; mode++) {
            struct setting s = {.threads = 2, .max_seqs = 4, .exact = mode & 1, .prefill = mode & 2};
            tern_kld *k = measure(&t, kv, 4, &p, s);
            check_zero(k, 0);
            check_zero(k, 1);
            tiny_ok(tern_kld_get_stats(k, 2, -1, &l4, &err), &err);
            tiny_ok(tern_kld_get_stats(k, 3, -1, &bf16, &err), &err);
            /* Prompt rows that attend in bf16 round keys and values to bf16 whatever the cache holds. */
            const bool same = mode == 2 && tern_k.bf16.multiply;
            /* ... but for what is subnormal in f16. */
            const bool right = same ? bf16.mean < 1e-12 : bf16.mean > 0;
            if (!(l4.mean > 0 && l4.max < 10 && right && bf16.mean < l4.mean))
                fail_msg("%s, mode %d: l4 %g (largest %g), bf16 %g", models[m][0], mode, l4.mean, l4.max, bf16.mean);
            tern_kld_free(k);
        }
        tiny_close(&t);
    }
}

/* KL(softmax(a) || softmax(b)) straight from the definition. */
static double definition(const float *a, const float *b, int n)
{
    long double sa = 0, sb = 0, kl = 0;
    for (int i = 0; i < n; i++) {
        sa += expl((long double)a[i]);
        sb += expl((long double)b[i]);
    }
    for (int i = 0; i < n; i++)
        kl += expl((long double)a[i]) / sa * ((long double)a[i] - logl(sa) - ((long double)b[i] - logl(sb)));
    return (double)kl;
}

static int likeliest(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        best = x[i] > x[best] ? i : best;
    return best;
}

/* All logits of one plan, in an engine of its own. */
static float *logits_alone(struct tiny *t, const char *kv, struct setting s)
{
    tern_error err = {0};
    tern_engine *e = tiny_engine(t, kv, s.exact, 1, 1, 512);
    tern_seq *q;
    float *out = tiny_buffer(t);
    int half = t->n_ids / 2;
    tiny_ok(tern_seq_new(&q, e, &err), &err);
    tiny_run(e, q, t->ids, 0, half, 512, false, out, 0, t->n_vocab);
    tiny_run(e, q, t->ids, half, t->n_ids, s.prefill ? 512 : 1, !s.prefill, out, 0, t->n_vocab);
    tern_engine_close(&e);
    return out;
}

static void check_against_definition(struct tiny *t, struct setting s)
{
    static const char *const kv[] = {"f16", "q8", "l4", "l2"};
    tern_error err = {0};
    tern_kld_text text = {"ids", t->ids, t->n_ids};
    tern_kld_params p = {.texts = &text, .n_texts = 1, .n_chunks = 1, .ctx = t->n_ids};
    tern_kld *k = measure(t, kv, 4, &p, s);
    const tern_kld_info *info = tern_kld_get_info(k);
    int half = t->n_ids / 2, n = t->n_vocab;
    assert_int_equal(info->n_scored, t->n_ids - 1 - half);
    float *base = logits_alone(t, "f16", s);
    for (int plan = 1; plan < 4; plan++) {
        float *own = logits_alone(t, kv[plan], s);
        const double *got = tern_kld_values(k, plan);
        tern_kld_stats st;
        double excess = 0, same = 0;
        for (int i = 0; i < info->n_scored; i++) {
            const float *a = base + (size_t)(half + i) * (size_t)n, *b = own + (size_t)(half + i) * (size_t)n;
            double want = definition(a, b, n);
            if (!(fabs(got[i] - want) <= 1e-11))
                fail_msg("%s: position %d diverges by %.17g, not %.17g", kv[plan], half + i, got[i], want);
            long double sa = 0, sb = 0;
            for (int j = 0; j < n; j++)
                sa += expl((long double)a[j]), sb += expl((long double)b[j]);
            int next = t->ids[half + i + 1];
            excess += (double)(logl(sb) - (long double)b[next] - (logl(sa) - (long double)a[next]));
            same += likeliest(a, n) == likeliest(b, n);
        }
        tiny_ok(tern_kld_get_stats(k, plan, -1, &st, &err), &err);
        assert_true(fabs(st.ppl_ratio - exp(excess / info->n_scored)) < 1e-11);
        assert_true(fabs(st.top1 - same / info->n_scored) < 1e-12);
        assert_int_equal(st.n_tokens, info->n_scored);
        free(own);
    }
    free(base);
    tern_kld_free(k);
}

static void test_definition(void **state)
{
    (void)state;
    static const int which[] = {0, 3, 11};
    for (size_t i = 0; i < 3; i++)
        for (int mode = 0; mode < 4; mode++) {
            struct tiny t;
            tiny_open(&t, models[which[i]][0], models[which[i]][1], models[which[i]][2]);
            check_against_definition(
                &t, (struct setting){.threads = 2, .max_seqs = 4, .exact = mode & 1, .prefill = mode & 2});
            tiny_close(&t);
        }
}

enum { TEXT_A = 700, TEXT_B = 260 };

static void random_text(int32_t *ids, int n, uint64_t seed, int vocab)
{
    struct tern_rng r = {seed};
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(tern_rng_u64(&r) % (uint64_t)vocab);
}

static void assert_same(const tern_kld *a, const tern_kld *b)
{
    tern_error err = {0};
    const tern_kld_info *i = tern_kld_get_info(a), *j = tern_kld_get_info(b);
    assert_int_equal(i->n_chunks, j->n_chunks);
    assert_memory_equal(&i->base_ppl, &j->base_ppl, sizeof i->base_ppl);
    size_t n = (size_t)i->n_chunks * (size_t)i->n_scored;
    for (int plan = 0; plan < i->n_plans; plan++) {
        assert_memory_equal(tern_kld_values(a, plan), tern_kld_values(b, plan), n * sizeof(double));
        for (int text = -1; text < i->n_texts; text++) {
            tern_kld_stats x, y;
            tiny_ok(tern_kld_get_stats(a, plan, text, &x, &err), &err);
            tiny_ok(tern_kld_get_stats(b, plan, text, &y, &err), &err);
            assert_memory_equal(&x, &y, sizeof x);
        }
    }
    tern_kld_ratio x[2], y[2];
    tiny_ok(tern_kld_compare(a, 1, 2, &x[0], &x[1], &err), &err);
    tiny_ok(tern_kld_compare(b, 1, 2, &y[0], &y[1], &err), &err);
    assert_memory_equal(x, y, sizeof x);
}

/* Threads, sequences at once (chunks and even plans in several rounds) and rows of a step change no bit. */
static void test_grouping_and_threads(void **state)
{
    (void)state;
    static const char *const kv[] = {"f16", "q8", "l4", "l2"};
    static const int cases[][4] = {/* threads, max_seqs, chunk, expected chunks at once */
                                   {5, 64, 512, 5}, {3, 8, 512, 2}, {1, 4, 512, 1},
                                   {2, 3, 512, 1},  {2, 2, 7, 1},   {2, 2, 2, 1}};
    int32_t a[TEXT_A], b[TEXT_B];
    for (int mode = 0; mode < 3; mode++) {
        struct tiny t;
        const char *name = mode == 1 ? "gemma3-w8" : "llama-tied";
        tiny_open(&t, name, name, name);
        random_text(a, TEXT_A, 1, t.n_vocab);
        random_text(b, TEXT_B, 2, t.n_vocab);
        tern_kld_text texts[] = {{"a", a, TEXT_A}, {"b", b, TEXT_B}};
        tern_kld_params p = {.texts = texts, .n_texts = 2, .n_chunks = 5, .ctx = 96};
        struct setting s = {.threads = 1, .max_seqs = 20, .exact = mode == 0, .prefill = mode == 2};
        tern_kld *want = measure(&t, kv, 4, &p, s);
        assert_int_equal(tern_kld_text_chunks(want, 0), 3);
        assert_int_equal(tern_kld_text_chunks(want, 1), 2);
#ifdef TERN_TEST_FEW /* modes share the cases: sanitizers see the same code at each */
        const size_t from = (size_t)mode % 2, by = 2;
#else
        const size_t from = 0, by = 1;
#endif
        for (size_t c = from; c < sizeof cases / sizeof *cases; c += by) {
            s.threads = cases[c][0];
            s.max_seqs = cases[c][1];
            s.chunk = cases[c][2];
            tern_kld *got = measure(&t, kv, 4, &p, s);
            assert_int_equal(tern_kld_get_info(got)->chunks_at_once, cases[c][3]);
            assert_same(want, got);
            tern_kld_free(got);
        }
        if (s.exact) { /* prompt rows and decode rows are one class */
            s.prefill = true;
            tern_kld *got = measure(&t, kv, 4, &p, s);
            assert_same(want, got);
            tern_kld_free(got);
        }
        tern_kld_free(want);
        tiny_close(&t);
    }
}

/* Chunk j of n begins at the j-th n-th of its text, and texts take turns: a text alone gives the same figures. */
static void test_chunks_of_texts(void **state)
{
    (void)state;
    static const char *const kv[] = {"f16", "l3"};
    struct tiny t;
    tern_error err = {0};
    int32_t a[TEXT_A], b[TEXT_B];
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    random_text(a, TEXT_A, 1, t.n_vocab);
    random_text(b, TEXT_B, 2, t.n_vocab);
    tern_kld_text texts[] = {{"a", a, TEXT_A}, {"b", b, TEXT_B}};
    tern_kld_params p = {.texts = texts, .n_texts = 2, .n_chunks = 5, .ctx = 96};
    struct setting s = {.threads = 2, .max_seqs = 8};
    tern_kld *both = measure(&t, kv, 2, &p, s);
    const tern_kld_info *info = tern_kld_get_info(both);
    static const int order[] = {0, 1, 0, 1, 0}; /* chunk -> text */
    for (int c = 0, seen[2] = {0}; c < 5; c++) {
        int text = order[c], n = text ? 2 : 3;
        tern_kld_text part = {"part", texts[text].ids + seen[text]++ * texts[text].n / n, 96};
        tern_kld_params q = {.texts = &part, .n_texts = 1, .n_chunks = 1, .ctx = 96};
        tern_kld *one = measure(&t, kv, 2, &q, s);
        size_t bytes = (size_t)info->n_scored * sizeof(double);
        assert_memory_equal(tern_kld_values(one, 1), tern_kld_values(both, 1) + c * info->n_scored, bytes);
        tern_kld_free(one);
    }
    for (int text = 0; text < 2; text++) {
        tern_kld_params q = {.texts = &texts[text], .n_texts = 1, .n_chunks = text ? 2 : 3, .ctx = 96};
        tern_kld *one = measure(&t, kv, 2, &q, s);
        tern_kld_stats x, y;
        tiny_ok(tern_kld_get_stats(both, 1, text, &x, &err), &err);
        tiny_ok(tern_kld_get_stats(one, 1, -1, &y, &err), &err);
        assert_memory_equal(&x, &y, sizeof x);
        tern_kld_free(one);
    }
    tern_kld_free(both);
    p.n_chunks = 0; /* four in all; with long chunks what the texts hold */
    both = measure(&t, kv, 2, &p, s);
    assert_int_equal(tern_kld_get_info(both)->n_chunks, 4);
    tern_kld_free(both);
    p.ctx = 200;
    both = measure(&t, kv, 2, &p, s);
    assert_int_equal(tern_kld_text_chunks(both, 0), 2);
    assert_int_equal(tern_kld_text_chunks(both, 1), 1);
    tern_kld_free(both);
    tiny_close(&t);
}

struct stopper {
    tern_engine *e; /* set: cancels instead of returning nonzero */
    int calls, at, last, total;
};

static int stop(void *user, int done, int total)
{
    struct stopper *s = user;
    assert_true(done >= s->last && done <= total && (s->total == 0 || total == s->total));
    s->last = done;
    s->total = total;
    if (++s->calls != s->at)
        return 0;
    if (s->e)
        tern_engine_cancel(s->e);
    return !s->e;
}

static void test_cancel(void **state)
{
    (void)state;
    static const char *const kv[] = {"f16", "l4", "l2"};
    struct tiny t;
    tern_error err = {0};
    int32_t ids[TEXT_A];
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    random_text(ids, TEXT_A, 1, t.n_vocab);
    tern_kld_text text = {"a", ids, TEXT_A};
    tern_engine *e = open_plans(&t, kv, 3, (struct setting){.threads = 2, .max_seqs = 6});
    static const int at[] = {1, 2, 10, 40};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        for (int by_engine = 0; by_engine < 2; by_engine++) {
            struct stopper s = {.e = by_engine ? e : NULL, .at = at[i]};
            tern_kld_params p = {.texts = &text, .n_texts = 1, .n_chunks = 3, .ctx = 96, .progress = stop, .user = &s};
            tern_kld *k;
            assert_int_equal(tern_eval_kld(&k, e, &p, &err), TERN_ECANCELLED);
            assert_null(k);
            tern_memory m;
            tern_engine_memory(e, &m);
            assert_int_equal(m.kv_bytes, 0);
        }
    struct stopper s = {0};
    tern_kld_params p = {.texts = &text, .n_texts = 1, .n_chunks = 3, .ctx = 96, .progress = stop, .user = &s};
    tern_kld *k, *cold = measure(&t, kv, 3, &p, (struct setting){.threads = 2, .max_seqs = 6});
    assert_int_equal(s.last, s.total); /* the bar ends at its end */
    s = (struct stopper){0};
    tiny_ok(tern_eval_kld(&k, e, &p, &err), &err);
    assert_same(k, cold);
    tern_kld_free(k);
    tern_kld_free(cold);
    tern_engine_close(&e);
    tiny_close(&t);
}

static void refused(tern_engine *e, const tern_kld_params *p, const char *word)
{
    tern_error err = {0};
    tern_kld *k;
    assert_int_equal(tern_eval_kld(&k, e, p, &err), TERN_EINVAL);
    assert_null(k);
    if (!strstr(err.msg, word))
        fail_msg("\"%s\" does not mention \"%s\"", err.msg, word);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const kv[] = {"f16", "l4"};
    struct tiny t;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_kld_text texts[] = {{"first", t.ids, 200}, {"second", t.ids, 100}};
    tern_engine *e = open_plans(&t, kv, 2, (struct setting){.threads = 1, .max_seqs = 4});
    refused(e, &(tern_kld_params){.texts = texts, .n_texts = 0, .ctx = 64}, "no text");
    refused(e, &(tern_kld_params){.texts = texts, .n_texts = 1, .ctx = 7}, "7");
    refused(e, &(tern_kld_params){.texts = texts, .n_texts = 1, .ctx = 1 << 20}, "context");
    refused(e, &(tern_kld_params){.texts = texts, .n_texts = 2, .ctx = 101}, "second");
    refused(e, &(tern_kld_params){.texts = texts, .n_texts = 1, .ctx = 64, .n_chunks = 4}, "3 chunks");
    refused(e, &(tern_kld_params){.texts = texts, .n_texts = 2, .ctx = 64, .n_chunks = 1}, "2 texts");
    refused(e, &(tern_kld_params){.texts = texts, .n_texts = 1, .ctx = 64, .n_chunks = -1}, "negative");
    tern_engine_close(&e);
    e = open_plans(&t, kv, 1, (struct setting){.threads = 1, .max_seqs = 4});
    refused(e, &(tern_kld_params){.texts = texts, .n_texts = 1, .ctx = 64}, "one KV plan");
    tern_engine_close(&e);
    e = open_plans(&t, kv, 2, (struct setting){.threads = 1, .max_seqs = 1});
    refused(e, &(tern_kld_params){.texts = texts, .n_texts = 1, .ctx = 64}, "two sequences");
    tern_engine_close(&e);
    tiny_close(&t);
}

/* ---- statistics -------------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static int cut_of(int n)
{
    return n > 1 ? n - n * 99 / 100 : 0;
}

/* Sorts x. */
static double brute_trimmed(double *x, int n)
{
    double sum = 0;
    qsort(x, (size_t)n, sizeof *x, ascending);
    for (int i = 0; i < n - cut_of(n); i++)
        sum += x[i];
    return sum / (n - cut_of(n));
}

static double brute_mean(const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

static void test_known_figures(void **state)
{
    (void)state;
    tern_error err = {0};
    double x[200];
    struct tern_series s;
    for (int i = 0; i < 200; i++)
        x[i] = (i * 77) % 200; /* 0 .. 199, shuffled */
    tiny_ok(tern_series_init(&s, x, 1, 200, &err), &err);
    assert_true(tern_series_mean(&s) == 99.5);
    assert_true(tern_series_trimmed(&s) == 98.5); /* without 198 and 199 */
    assert_true(tern_series_quantile(&s, 0) == 0 && tern_series_quantile(&s, 1) == 199);
    assert_true(tern_series_quantile(&s, .5) == 99.5);
    assert_true(fabs(tern_series_quantile(&s, .99) - 197.01) < 1e-12);
    assert_int_equal(s.n_blocks, 4);
    tern_series_clear(&s);
    tiny_ok(tern_series_init(&s, x + 1, 1, 1, &err), &err);
    assert_true(tern_series_trimmed(&s) == 77 && tern_series_mean(&s) == 77 && tern_series_quantile(&s, .99) == 77);
    tern_series_clear(&s);
    tiny_ok(tern_series_init(&s, x, 2, 65, &err), &err); /* 64 + 1 values, twice */
    assert_int_equal(s.n_blocks, 4);
    assert_int_equal(s.block_n[1], 1);
    assert_true(s.block_sum[1] == x[64] && s.block_sum[3] == x[129]);
    tern_series_clear(&s);
}

/* The bootstrap with the resample written out and sorted; the numbers are those of the generator that stats.c names. */
static void brute_compare(const double *x, const double *y, int runs, int length, double out[2][2])
{
    enum { R = 2000 };
    int per_run = (length + 63) / 64, blocks = runs * per_run;
    struct tern_rng rng = {.state = 0x6B6C64u};
    double *ratio[2] = {calloc(R, sizeof(double)), calloc(R, sizeof(double))};
    double *a = calloc((size_t)blocks * 64, sizeof *a), *b = calloc((size_t)blocks * 64, sizeof *b);
    for (int r = 0; r < R; r++) {
        int n = 0;
        for (int i = 0; i < blocks; i++) {
            int block = (int)(tern_rng_u64(&rng) % (uint64_t)blocks), from = block % per_run * 64;
            for (int k = from; k < from + 64 && k < length; k++, n++) {
                a[n] = x[block / per_run * length + k];
                b[n] = y[block / per_run * length + k];
            }
        }
        ratio[0][r] = brute_mean(a, n) / brute_mean(b, n);
        ratio[1][r] = brute_trimmed(a, n) / brute_trimmed(b, n);
    }
    for (int i = 0; i < 2; i++) {
        qsort(ratio[i], R, sizeof(double), ascending);
        out[i][0] = ratio[i][50];
        out[i][1] = ratio[i][R - 51];
        free(ratio[i]);
    }
    free(a);
    free(b);
}

static void test_bootstrap(void **state)
{
    (void)state;
    static const int shapes[][2] = {{2, 1023}, {1, 300}, {3, 64}, {2, 7}};
    tern_error err = {0};
    for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++) {
        int n = shapes[c][0] * shapes[c][1];
        double *x = calloc((size_t)n, sizeof *x), *y = calloc((size_t)n, sizeof *y), want[2][2];
        struct tern_rng rng = {.state = 9 + c};
        for (int i = 0; i < n; i++) {
            double common = -log(1 - tern_rng_f64(&rng));
            x[i] = common * common * (1 + tern_rng_f64(&rng));
            y[i] = common * common * 2;
        }
        struct tern_series a, b;
        tern_kld_ratio r[2];
        tiny_ok(tern_series_init(&a, x, (size_t)shapes[c][0], (size_t)shapes[c][1], &err), &err);
        tiny_ok(tern_series_init(&b, y, (size_t)shapes[c][0], (size_t)shapes[c][1], &err), &err);
        tiny_ok(tern_series_compare(&a, &b, &r[0], &r[1], &err), &err);
        brute_compare(x, y, shapes[c][0], shapes[c][1], want);
        for (int i = 0; i < 2; i++) {
            assert_true(fabs(r[i].low - want[i][0]) < 1e-9 && fabs(r[i].high - want[i][1]) < 1e-9);
            assert_true(r[i].low <= r[i].value && r[i].value <= r[i].high);
        }
        assert_true(fabs(r[0].value - brute_mean(x, n) / brute_mean(y, n)) < 1e-12);
        assert_true(fabs(r[1].value - brute_trimmed(x, n) / brute_trimmed(y, n)) < 1e-12);
        tern_series_clear(&a);
        tern_series_clear(&b);
        free(x);
        free(y);
    }
}

static void test_no_ratio(void **state)
{
    (void)state;
    tern_error err = {0};
    double one[128], none[128] = {0}, half[128] = {0};
    for (int i = 0; i < 128; i++)
        one[i] = 1;
    half[100] = 1; /* a resample may miss it */
    struct tern_series a, b, c;
    tern_kld_ratio mean, trimmed;
    tiny_ok(tern_series_init(&a, one, 1, 128, &err), &err);
    tiny_ok(tern_series_init(&b, none, 1, 128, &err), &err);
    tiny_ok(tern_series_init(&c, half, 1, 128, &err), &err);
    tiny_ok(tern_series_compare(&a, &b, &mean, &trimmed, &err), &err);
    assert_true(isnan(mean.value) && isnan(mean.low) && isnan(mean.high) && isnan(trimmed.value));
    tiny_ok(tern_series_compare(&a, &c, &mean, &trimmed, &err), &err);
    assert_true(mean.value == 128 && isnan(mean.low) && isnan(mean.high) && isnan(trimmed.value));
    tiny_ok(tern_series_compare(&b, &a, &mean, &trimmed, &err), &err);
    assert_true(mean.value == 0 && mean.low == 0 && mean.high == 0 && trimmed.value == 0);
    tern_series_clear(&a);
    tern_series_clear(&b);
    tern_series_clear(&c);
}

/* test_kld [PATTERN]: only the tests whose names match. */
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f16_is_zero_everywhere),
        cmocka_unit_test(test_definition),
        cmocka_unit_test(test_grouping_and_threads),
        cmocka_unit_test(test_chunks_of_texts),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_known_figures),
        cmocka_unit_test(test_bootstrap),
        cmocka_unit_test(test_no_ratio),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

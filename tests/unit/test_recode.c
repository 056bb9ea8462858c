/* A sequence changes its plan where it stands: what it holds then, what it goes on to compute, the memory on the way.
 */
#include "tiny.h"
#include <unistd.h>
#include "served.h"
#include "run/run.h"

/* A model of every kind that caches differently: everything, windows, chunks, latent, recurrent, biased keys. */
static const struct subject {
    const char *name, *ids;
} subjects[] = {{"llama-tied", "llama-tied"}, {"gemma3-w70", "gemma3-w70"}, {"llama4", "llama4"},
                {"deepseek2", "deepseek2"},   {"qwen35", "qwen35"},         {"qwen2", "qwen2"}};
enum { DENSE, WINDOW, CHUNKED, LATENT, RECURRENT, BIASED, N_SUBJECTS };

static void open_subject(struct tiny *t, int i)
{
    if (i == LATENT)
        tiny_open(t, "deepseek2-q4_0", "deepseek2", "deepseek2-q4_0");
    else
        tiny_open(t, subjects[i].name, subjects[i].ids, subjects[i].name);
}

static tern_engine *open_engine(struct tiny *t, const char *kv, const char *other, bool at_end, int threads, int chunk,
                                size_t bytes)
{
    tern_engine *e;
    tern_error err = {0};
    const char *const more[] = {other};
    tern_engine_params p = {.n_threads = threads,
                            .max_seqs = 3,
                            .chunk = chunk,
                            .kv = kv,
                            .more_kv = more,
                            .n_more_kv = other != NULL,
                            .code_at_end = at_end,
                            .kv_bytes = bytes};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

static tern_seq *prefill(struct tiny *t, tern_engine *e, int plan, int n)
{
    tern_error err = {0};
    tern_seq *s;
    tiny_ok(tern_seq_new_plan(&s, e, plan, &err), &err);
    tiny_ok(tern_prefill(e, s, t->ids, n, NULL, NULL, NULL, &err), &err);
    return s;
}

/* Logits of decoding ids[from, to), at their positions. */
static void decode(struct tiny *t, tern_engine *e, tern_seq *s, int from, int to, float *out)
{
    assert_int_equal(tern_seq_length(s), from);
    tiny_run(e, s, t->ids, from, to, 1, true, out, 0, t->n_vocab);
}

static void assert_rows(const struct tiny *t, const float *got, const float *want, int from, int to)
{
    const size_t row = (size_t)t->n_vocab;
    for (int i = from; i < to; i++)
        if (memcmp(got + (size_t)i * row, want + (size_t)i * row, row * sizeof *got) != 0)
            fail_msg("logits of token %d differ", i);
}

static tern_recoded recode(tern_seq *s, int plan)
{
    tern_error err = {0};
    tern_recoded r;
    tiny_ok(tern_seq_recode(s, plan, &r, &err), &err);
    assert_int_equal(tern_seq_plan(s), plan);
    assert_int_equal(r.n_tokens, tern_seq_length(s));
    return r;
}

/* Right after the prompt, from 16 bits: what an engine does that codes prompts at their end, of which
 * unit/test_model_prompt shows that its pages are codes of what the 16-bit cache holds. */
static void test_is_coding_at_the_end(void **state)
{
    static const char *const plans[] = {"t4", "k=l3,v=q8,first=0", "l4,recent=128", "g16", "k=f16,v=t2"};
    static const int lengths[] = {63, 64, 65, 128, 150};
    (void)state;
    for (int m = 0; m < N_SUBJECTS; m++) {
        struct tiny t;
        open_subject(&t, m);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        for (int i = 0; i < 5; i++) {
            const int n = lengths[(i + m) % 5] < t.n_ids - 20 ? lengths[(i + m) % 5] : t.n_ids - 20, to = n + 20;
            tern_engine *e = open_engine(&t, plans[i], NULL, true, 2, 512, 0);
            decode(&t, e, prefill(&t, e, 0, n), n, to, want);
            tern_engine_close(&e);
            e = open_engine(&t, "f16", plans[i], false, 1 + i % 2, i % 2 ? 50 : 512, 0);
            tern_seq *s = prefill(&t, e, 0, n);
            const tern_recoded r = recode(s, 1);
            assert_false(r.decoded);
            decode(&t, e, s, n, to, got);
            assert_rows(&t, got, want, n, to);
            tern_engine_close(&e);
        }
        free(want);
        free(got);
        tiny_close(&t);
    }
}

/* Values of codes attended to in 32 bits are the codes attended to, but for the order of sums. */
static void test_values_are_the_codes(void **state)
{
    static const char *const plans[] = {"q8", "t4", "t3", "t2,first=0", "l3", "g16_3", "affine4", "k=f16,v=l2"};
    (void)state;
    needs_decodes();
    for (int m = 0; m < N_SUBJECTS; m++) {
        struct tiny t;
        open_subject(&t, m);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        for (int i = 0; i < 8; i++) {
            tern_error err = {0};
            const char *const more[] = {"f32"};
            tern_engine *e;
            tern_engine_params p = {
                .n_threads = 2, .max_seqs = 2, .kv = plans[i], .more_kv = more, .n_more_kv = 1, .exact = true};
            tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
            const int n = 150 < t.n_ids - 20 ? 150 : t.n_ids - 20, to = n + 20;
            tern_seq *coded = prefill(&t, e, 0, n), *values;
            tiny_ok(tern_seq_fork(&values, coded, &err), &err);
            const tern_recoded r = recode(values, 1);
            assert_true(r.decoded);
            decode(&t, e, coded, n, n + 1, want);
            decode(&t, e, values, n, n + 1, got);
            double worst = 0, size = 0;
            for (int k = 0; k < t.n_vocab; k++) {
                const size_t at = (size_t)n * (size_t)t.n_vocab + (size_t)k;
                worst = fmax(worst, fabs((double)got[at] - (double)want[at]));
                size = fmax(size, fabs((double)want[at]));
            }
            if (!(worst <= 2e-3 * fmax(size, 1)))
                fail_msg("%s, %s: logits of up to %g differ by %g", subjects[m].name, plans[i], size, worst);
            (void)to;
            tern_engine_close(&e);
        }
        free(want);
        free(got);
        tiny_close(&t);
    }
}

/* Raw values come back as they were: all of them from f32, what no page holds yet from any plan. */
static void test_there_and_back(void **state)
{
    (void)state;
    needs_decodes();
    for (int m = 0; m < N_SUBJECTS; m++) {
        struct tiny t;
        open_subject(&t, m);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        const int n = t.n_ids - 10;
        tern_engine *e = open_engine(&t, "f16", "f32", false, 2, 100, 0);
        tern_seq *s = prefill(&t, e, 0, n), *u = prefill(&t, e, 0, n);
        decode(&t, e, s, n, t.n_ids, want);
        recode(u, 1);
        assert_false(recode(u, 0).decoded);
        decode(&t, e, u, n, t.n_ids, got);
        assert_rows(&t, got, want, n, t.n_ids);
        tern_engine_close(&e);
        e = open_engine(&t, "f16", "t3", false, 2, 100, 0);
        s = prefill(&t, e, 0, 60);
        u = prefill(&t, e, 0, 60);
        decode(&t, e, s, 60, t.n_ids, want);
        assert_false(recode(u, 1).decoded);
        assert_false(recode(u, 0).decoded);
        decode(&t, e, u, 60, t.n_ids, got);
        assert_rows(&t, got, want, 60, t.n_ids);
        tern_engine_close(&e);
        free(want);
        free(got);
        tiny_close(&t);
    }
}

/* A recoded sequence that was forked, saved and restored goes on like one that was not, from codes too; so does one
 * that is recoded after that. */
static void test_forks_and_files(void **state)
{
    char path[] = "/tmp/tern-recode-XXXXXX";
    (void)state;
    needs_decodes();
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)unlink(path);
    for (int m = 0; m < N_SUBJECTS; m++) {
        struct tiny t;
        tern_error err = {0};
        tern_seq *s, *u, *v;
        open_subject(&t, m);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        const int n = 140 < t.n_ids - 20 ? 140 : t.n_ids - 20;
        tern_engine *e = open_engine(&t, "l4,recent=128", "t3", false, 2, 70, 0);
        s = prefill(&t, e, 0, n);
        tiny_ok(tern_seq_save(s, path, &err), &err);
        tiny_ok(tern_seq_load(&u, e, path, &err), &err);
        recode(s, 1);
        recode(u, 1);
        tiny_ok(tern_seq_fork(&v, s, &err), &err);
        decode(&t, e, s, n, n + 20, want);
        decode(&t, e, u, n, n + 20, got);
        assert_rows(&t, got, want, n, n + 20);
        tern_seq_free(u);
        tiny_ok(tern_seq_save(v, path, &err), &err);
        decode(&t, e, v, n, n + 20, got);
        assert_rows(&t, got, want, n, n + 20);
        tern_seq_free(v);
        tern_seq_free(s);
        tiny_ok(tern_seq_load(&u, e, path, &err), &err);
        assert_int_equal(tern_seq_plan(u), 1);
        decode(&t, e, u, n, n + 20, got);
        assert_rows(&t, got, want, n, n + 20);
        tern_engine_close(&e);
        (void)unlink(path);
        free(want);
        free(got);
        tiny_close(&t);
    }
}

/* Going back after it is going back in a sequence that was coded at its prompt's end: by the raw tile, into the open
 * page, into closed ones, to the beginning. */
static void test_trims(void **state)
{
    static const int back[] = {127, 120, 100, 64, 10};
    (void)state;
    for (int m = 0; m < N_SUBJECTS; m++) {
        struct tiny t;
        tern_error err = {0};
        open_subject(&t, m);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        for (int i = 0; i < 5 && t.n_ids >= 138; i++) {
            tern_engine *e = open_engine(&t, "t4", NULL, true, 2, 64, 0);
            tern_seq *s = prefill(&t, e, 0, 128);
            const int rc = tern_seq_trim(s, back[i], &err);
            if (rc == 0)
                decode(&t, e, s, back[i], back[i] + 10, want);
            tern_engine_close(&e);
            e = open_engine(&t, "f16", "t4", false, 2, 64, 0);
            s = prefill(&t, e, 0, 128);
            recode(s, 1);
            assert_int_equal(tern_seq_trim(s, back[i], &err), rc);
            if (rc == 0) {
                decode(&t, e, s, back[i], back[i] + 10, got);
                assert_rows(&t, got, want, back[i], back[i] + 10);
            }
            tern_engine_close(&e);
        }
        free(want);
        free(got);
        tiny_close(&t);
    }
}

static size_t in_use(const tern_engine *e)
{
    tern_memory m;
    tern_engine_memory(e, &m);
    return m.kv_bytes + m.state_bytes;
}

/* One page and one open page more, at most; and where not even those are left, nothing has changed. */
static void test_memory(void **state)
{
    static const char *const plans[][2] = {{"f16", "t4"}, {"t4", "f16"}, {"t4", "q8,recent=128"}, {"f16", "f32"}};
    (void)state;
    needs_decodes();
    for (int m = 0; m < N_SUBJECTS; m++) {
        struct tiny t;
        open_subject(&t, m);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        for (int i = 0; i < 4; i++) {
            tern_error err = {0};
            const int n = 200 < t.n_ids - 20 ? 200 : t.n_ids - 20;
            tern_engine *e = open_engine(&t, plans[i][0], plans[i][1], false, 2, 70, 0);
            tern_seq *s = prefill(&t, e, 0, n);
            const struct tern_kv_cache *to = &e->caches[1], *from = &e->caches[0];
            const size_t before = in_use(e), states = to->layout->state_bytes ? to->states.takes : 0;
            size_t page = 0;
            for (int g = 0; g < to->layout->n_groups; g++)
                page += to->pool[g].takes;
            const tern_recoded r = recode(s, 1);
            assert_int_equal(r.bytes_before + from->states.n_used * from->states.takes,
                             r.bytes_before); /* nothing is left behind */
            assert_int_equal(r.bytes_after, in_use(e) - to->states.n_used * to->states.takes);
            assert_int_equal(from->tiles.n_used + from->sinks.n_used, 0);
            for (int g = 0; g < from->layout->n_groups; g++)
                assert_int_equal(from->pool[g].n_used, 0);
            const size_t larger = r.bytes_after > r.bytes_before ? r.bytes_after - r.bytes_before : 0;
            assert_true(r.bytes_more <= larger + page + from->tiles.takes + to->tiles.takes + to->sinks.takes +
                                            from->sinks.takes + 2 * states);
            decode(&t, e, s, n, n + 20, want);
            tern_engine_close(&e);
            /* The least limit that it does with, and one byte less. */
            for (int less = 0; less < 2; less++) {
                e = open_engine(&t, plans[i][0], plans[i][1], false, 2, 70, before + r.bytes_more - (size_t)less);
                s = prefill(&t, e, 0, n);
                if (in_use(e) != before) { /* a state more or less is kept when memory is short */
                    assert_true(states > 0);
                    tern_engine_close(&e);
                    continue;
                }
                int rc = tern_seq_recode(s, 1, NULL, &err);
                if (less && rc == 0 && states) { /* a kept state is done without */
                    tern_engine_close(&e);
                    continue;
                }
                assert_int_equal(rc, less ? TERN_ECAPACITY : 0);
                assert_int_equal(tern_seq_plan(s), !less);
                assert_int_equal(tern_seq_length(s), n);
                if (less) {
                    assert_int_equal(in_use(e), before);
                    tern_engine *plain = open_engine(&t, plans[i][0], NULL, false, 2, 70, 0);
                    decode(&t, plain, prefill(&t, plain, 0, n), n, n + 1, want);
                    tern_engine_close(&plain);
                }
                decode(&t, e, s, n, n + 1, got);
                assert_rows(&t, got, want, n, n + 1);
                tern_engine_close(&e);
            }
        }
        free(want);
        free(got);
        tiny_close(&t);
    }
}

/* Pages that a fork holds too are not given back: both need their own, and the fork goes on as before. */
static void test_shared_pages(void **state)
{
    struct tiny t;
    tern_error err = {0};
    tern_seq *s, *fork;
    (void)state;
    open_subject(&t, DENSE);
    float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
    const int n = t.n_ids - 20;
    tern_engine *e = open_engine(&t, "f16", "t4", false, 2, 128, 0);
    s = prefill(&t, e, 0, n);
    tiny_ok(tern_seq_fork(&fork, s, &err), &err);
    const size_t before = in_use(e);
    const tern_recoded r = recode(s, 1);
    assert_int_equal(in_use(e), before + r.bytes_after - e->caches[0].tiles.takes);
    decode(&t, e, fork, n, t.n_ids, got);
    tern_engine_close(&e);
    e = open_engine(&t, "f16", NULL, false, 2, 128, 0);
    decode(&t, e, prefill(&t, e, 0, n), n, t.n_ids, want);
    tern_engine_close(&e);
    assert_rows(&t, got, want, n, t.n_ids);
    free(want);
    free(got);
    tiny_close(&t);
}

/* An open engine takes further plans; what lives in the others does not notice. */
static void test_added_plans(void **state)
{
    (void)state;
    for (int at_end = 0; at_end < 2; at_end++) {
        struct tiny t;
        tern_error err = {0};
        char kv[32];
        int plan, again;
        open_subject(&t, DENSE);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        const int n = t.n_ids - 20;
        tern_engine *e = open_engine(&t, "t4", "l2", at_end, 2, 128, 0);
        decode(&t, e, prefill(&t, e, 1, n), n, t.n_ids, want);
        tern_engine_close(&e);
        e = open_engine(&t, "t4", NULL, at_end, 2, 128, 0);
        tern_seq *before = prefill(&t, e, 0, n), *s;
        tiny_ok(tern_engine_add_plan(e, "l2", false, &plan, &err), &err);
        assert_int_equal(plan, 1);
        assert_int_equal(tern_engine_n_plans(e), 2);
        tiny_ok(tern_engine_add_plan(e, "k=l2,v=l2", false, &again, &err), &err);
        assert_int_equal(again, 1);
        s = prefill(&t, e, 1, n);
        decode(&t, e, s, n, t.n_ids, got);
        assert_rows(&t, got, want, n, t.n_ids);
        tern_seq_free(s);
        assert_int_equal(tern_engine_add_plan(e, "t9", false, &plan, &err), TERN_EINVAL);
        for (int i = 0; i < 15; i++) {
            (void)snprintf(kv, sizeof kv, "t4,first=%d", i + 8);
            tiny_ok(tern_engine_add_plan(e, kv, false, &plan, &err), &err);
        }
        assert_int_equal(tern_engine_add_plan(e, "t3", false, &plan, &err), TERN_ECAPACITY);
        assert_int_equal(tern_engine_n_plans(e), 17);
        decode(&t, e, before, n, t.n_ids, got);
        s = prefill(&t, e, 0, n);
        decode(&t, e, s, n, t.n_ids, want);
        assert_rows(&t, got, want, n, t.n_ids);
        assert_int_equal(tern_seq_recode(s, 17, NULL, &err), TERN_EINVAL);
        assert_int_equal(tern_seq_recode_at(s, 1, 0, &err), at_end ? TERN_EUNSUPPORTED : 0);
        tern_engine_close(&e);
        free(want);
        free(got);
        tiny_close(&t);
    }
}

/* At a length that is told before: wherever steps end, in the prompt or in the reply. */
static void test_at_a_length(void **state)
{
    static const int chunks[] = {7, 64, 100, 512};
    (void)state;
    for (int m = 0; m < N_SUBJECTS; m++) {
        struct tiny t;
        tern_error err = {0};
        open_subject(&t, m);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        tern_engine *e = open_engine(&t, "t3", "f16", false, 2, 512, 0);
        tern_seq *s = prefill(&t, e, 1, 100);
        recode(s, 0);
        tiny_ok(tern_prefill(e, s, t.ids + 100, 25, NULL, NULL, NULL, &err), &err);
        decode(&t, e, s, 125, 135, want);
        tern_engine_close(&e);
        for (int i = 0; i < 4; i++) {
            e = open_engine(&t, "t3", "f16", false, 2, chunks[i], 0);
            tiny_ok(tern_seq_new_plan(&s, e, 1, &err), &err);
            tiny_ok(tern_seq_recode_at(s, 100, 0, &err), &err);
            tiny_ok(tern_prefill(e, s, t.ids, 99, NULL, NULL, NULL, &err), &err);
            assert_int_equal(tern_seq_plan(s), 1);
            tiny_ok(tern_prefill(e, s, t.ids + 99, 26, NULL, NULL, NULL, &err), &err);
            assert_int_equal(tern_seq_plan(s), 0);
            decode(&t, e, s, 125, 135, got);
            assert_rows(&t, got, want, 125, 135);
            tern_engine_close(&e);
        }
        e = open_engine(&t, "t3", "f16", false, 2, 64, 0);
        tern_generate_params g = {.max_tokens = 12, .ignore_eog = true};
        tern_generate_result r;
        tern_sampler_defaults(&g.sampler);
        tiny_ok(tern_seq_new_plan(&s, e, 1, &err), &err);
        tiny_ok(tern_seq_recode_at(s, 96, 0, &err), &err);
        tiny_ok(tern_generate(e, s, t.ids, 90, &g, &r, &err), &err);
        assert_int_equal(tern_seq_plan(s), 0);
        assert_int_equal(tern_seq_length(s), 102);
        tern_engine_close(&e);
        free(want);
        free(got);
        tiny_close(&t);
    }
}

/* Guesses that are verified several in one step end where the plan changes: they decide about time alone. */
static void test_with_drafts(void **state)
{
    struct tiny t;
    tern_error err = {0};
    int32_t text[2][80];
    int n_drafted = 0;
    (void)state;
    needs_decodes();
    open_subject(&t, DENSE);
    for (int i = 0; i < 80; i++) /* a text that guesses itself */
        t.ids[i] = t.ids[i % 8];
    for (int i = 0; i < 2; i++) {
        const char *const more[] = {"f16"};
        tern_engine *e;
        tern_seq *s;
        tern_engine_params p = {.n_threads = 2,
                                .max_seqs = 1,
                                .kv = "t2,first=0",
                                .more_kv = more,
                                .n_more_kv = 1,
                                .draft = i ? "ngram" : NULL};
        tern_generate_params g = {.max_tokens = 60, .ignore_eog = true};
        tern_generate_result r;
        tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
        tern_sampler_defaults(&g.sampler);
        tiny_ok(tern_seq_new_plan(&s, e, 1, &err), &err);
        tiny_ok(tern_seq_recode_at(s, 99, 0, &err), &err);
        tiny_ok(tern_generate(e, s, t.ids, 80, &g, &r, &err), &err);
        assert_int_equal(tern_seq_plan(s), 0);
        memcpy(text[i], tern_seq_tokens(s) + 80, sizeof *text[i] * 60);
        n_drafted += r.n_drafted;
        tern_engine_close(&e);
    }
    assert_memory_equal(text[0], text[1], sizeof *text[0] * 60);
    assert_true(n_drafted > 0);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_coding_at_the_end),
        cmocka_unit_test(test_values_are_the_codes),
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_forks_and_files),
        cmocka_unit_test(test_trims),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_shared_pages),
        cmocka_unit_test(test_added_plans),
        cmocka_unit_test(test_at_a_length),
        cmocka_unit_test(test_with_drafts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

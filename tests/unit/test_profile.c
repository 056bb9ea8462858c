/* Steps with every operation timed: the same logits, every operation counted, and bytes and products that agree with
 * what is computed from the model elsewhere.  Nothing here depends on how fast anything is. */
#include "tiny.h"

#include "tern/profile.h"

enum { PROMPT = 70, DECODED = 3 };

static const struct {
    const char *name, *kv;
} models[] = {
    {"llama-tied", "t4"}, {"gemma3-w70", "l4"}, {"deepseek2-lite", "t4"}, {"qwen35", "q8"}, {"qwen35moe", "t4"}};
#define N_MODELS (sizeof models / sizeof *models)

static const tern_profile_limits limits = {1e10, 1e11, 2e11};

static double sum_of(const tern_profile *p, const char *operation, int64_t *calls, double *products)
{
    double bytes = 0;
    tern_profile_line l;
    *calls = 0;
    *products = 0;
    for (int i = 0; tern_profile_at(p, i, &limits, &l); i++)
        if (!operation || strcmp(l.operation, operation) == 0) {
            bytes += l.bytes;
            *calls += l.calls;
            *products += l.products;
        }
    return bytes;
}

/* Times are added up between the same two moments, and limits follow from what was counted. */
static void check_lines(const tern_profile *p, int64_t steps)
{
    int64_t n_steps;
    double all, sum = 0, before = 1e30;
    tern_profile_line l;
    tern_profile_total(p, &n_steps, &all);
    assert_int_equal(n_steps, steps);
    for (int i = 0; tern_profile_at(p, i, &limits, &l); i++) {
        assert_true(l.calls > 0 && l.seconds >= 0 && l.seconds <= before);
        assert_true(l.limit_seconds >= l.bytes / limits.bytes_per_second * .999999);
        assert_true(!l.by_products || l.products > 0);
        sum += l.seconds;
        before = l.seconds;
    }
    assert_true(sum > 0 && sum <= all);
    assert_false(tern_profile_at(p, -1, &limits, &l));
}

static void test_model(void **state)
{
    const size_t i = (size_t)(uintptr_t)*state;
    struct tiny t;
    tern_error err = {0};
    tern_seq *s, *plain;
    tern_profile *p;
    int64_t calls;
    double products, bytes;
    tern_step_bytes want;
    tiny_open(&t, models[i].name, models[i].name, models[i].name);
    tern_engine *e = tiny_engine(&t, models[i].kv, false, 2, 2, 0);
    float *with = tiny_buffer(&t), *without = tiny_buffer(&t);
    tiny_ok(tern_seq_new(&plain, e, &err), &err);
    tiny_run(e, plain, t.ids, 0, PROMPT, PROMPT, false, without, 0, t.n_vocab);
    tiny_run(e, plain, t.ids, PROMPT, PROMPT + DECODED, 1, true, without, 0, t.n_vocab);

    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_ok(tern_profile_start(&p, e, &err), &err);
    tiny_run(e, s, t.ids, 0, PROMPT, PROMPT, false, with, 0, t.n_vocab);
    tern_profile_stop(p);
    check_lines(p, 1);
    (void)sum_of(p, "attention", &calls, &products);
    assert_true(calls > 0 && products > 0);
    tern_profile_free(p);

    tiny_ok(tern_profile_start(&p, e, &err), &err);
    tiny_run(e, s, t.ids, PROMPT, PROMPT + DECODED, 1, true, with, 0, t.n_vocab);
    tern_profile_stop(p);
    tern_profile_stop(p);
    check_lines(p, DECODED);
    assert_memory_equal(with, without, (size_t)(PROMPT + DECODED) * (size_t)t.n_vocab * sizeof *with);

    /* Weights: products, networks, stacks and experts together read what a decode step is said to read. */
    double weights = 0;
    bytes = 0;
    for (int d = 0; d < DECODED; d++) {
        tern_eval_step_bytes(e, 0, PROMPT + d + 1, 1, &want);
        weights += want.weights;
    }
    static const char *const readers[] = {"matmul", "network", "stack", "experts"};
    for (int k = 0; k < 4; k++)
        bytes += sum_of(p, readers[k], &calls, &products);
    if (bytes < .97 * weights || bytes > 1.03 * weights)
        fail_msg("%s: %.0f bytes of weights were counted, %.0f were to be read", models[i].name, bytes, weights);
    tern_profile_free(p);

    /* What is not timed is not counted. */
    tiny_run(e, s, t.ids, PROMPT + DECODED, PROMPT + DECODED + 1, 1, true, with, 0, t.n_vocab);
    free(with);
    free(without);
    tern_engine_close(&e);
    tiny_close(&t);
}

static void test_measured_limits(void **state)
{
    struct tiny t;
    tern_error err = {0};
    tern_reader *r;
    tern_profile_limits got;
    (void)state;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_engine *e = tiny_engine(&t, "f16", false, 1, 1, 0);
    tiny_ok(tern_reader_new(&r, 1 << 20, &err), &err);
    tiny_ok(tern_profile_measure(&got, r, e, &err), &err);
    assert_true(got.bytes_per_second > 0 && got.decode_products > 0 && got.prompt_products > 0);
    tern_reader_free(r);
    tern_engine_close(&e);
    tiny_close(&t);
}

int main(void)
{
    struct CMUnitTest tests[N_MODELS + 1];
    for (size_t i = 0; i < N_MODELS; i++)
        tests[i] = (struct CMUnitTest){models[i].name, test_model, NULL, NULL, (void *)(uintptr_t)i};
    tests[N_MODELS] = (struct CMUnitTest)cmocka_unit_test(test_measured_limits);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

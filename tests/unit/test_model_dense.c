/* The dense families on tiny models of Q8_0 (tools/make_dense_models.py): the reference's logits, and what every model
 * promises, with the KV plans that say most about what the family adds. */
#include "tiny_promises.h"

static const struct entry {
    const char *name;
    const char *kv[2]; /* coded plans */
} entries[] = {
    {"qwen3", {"t4", "k=q8,v=l3,first=0"}},
    {"llama-yarn", {"t3", "l4,recent=128"}},
    {"llama-keys", {"l4", "affine8"}},
    {"gemma2", {"t4,layers=0-2:t3", "l4"}},
    {"gemma3-linear", {"t4", "l4,layers=0-2:q8"}},
    {"phi3-window", {"t4,layers=0-1:l4", "l3,layers=0-0:q8,recent=128"}},
    {"phi3-long", {"k=t4,v=t3", "f16"}},
};
#define N_ENTRIES (sizeof entries / sizeof *entries)

static void test_exact_parity(void **state)
{
    static const int steps[] = {64, 7, 1};
    (void)state;
    for (size_t i = 0; i < N_ENTRIES; i++) {
        struct tiny t;
        tiny_open(&t, entries[i].name, entries[i].name, entries[i].name);
        float *whole = tiny_run_all(&t, NULL, true, 2, 512, false);
        double d = tiny_max_diff(&t, whole);
        print_message("%-16s exact max |difference| %.2e\n", entries[i].name, d);
        if (!(d <= 1e-4))
            fail_msg("%s: exact logits differ by %g from the reference", entries[i].name, d);
        for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
            float *part = tiny_run_all(&t, NULL, true, 2, steps[k], steps[k] == 1);
            tiny_equal_bits(&t, whole, part, entries[i].name);
            free(part);
        }
        free(whole);
        tiny_close(&t);
    }
}

/* The 16-bit cache, and what 4 bits lose: random keys are harder to code than those of trained models. */
static void test_fast_paths_close_to_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ENTRIES; i++) {
        struct tiny t;
        tiny_open(&t, entries[i].name, entries[i].name, entries[i].name);
        float *prompt = tiny_run_all(&t, "f16", false, 2, 512, false),
              *decode = tiny_run_all(&t, "f16", false, 2, 1, true),
              *coded = tiny_run_all(&t, "t4", true, 2, 512, false);
        size_t at = (size_t)(t.n_ids - t.n_ref) * (size_t)t.n_vocab;
        double kp = tiny_kld(t.ref, prompt + at, t.n_ref, t.n_vocab),
               kd = tiny_kld(t.ref, decode + at, t.n_ref, t.n_vocab),
               kc = tiny_kld(t.ref, coded + at, t.n_ref, t.n_vocab);
        print_message("%-16s KLD prompt rows %.2e, decode rows %.2e, t4 %.2e\n", entries[i].name, kp, kd, kc);
        assert_true(kp <= 1e-3 && kd <= 1e-3 && kc <= 2e-2);
        free(prompt);
        free(decode);
        free(coded);
        tiny_close(&t);
    }
}

static void test_splits_and_threads(void **state)
{
    static const int cases[][2] = {{2, 64}, {3, 7}, {2, 65}};
    (void)state;
    for (size_t i = 0; i < N_ENTRIES; i++)
        for (size_t k = 0; k < 2; k++) {
            struct tiny t;
            tiny_open(&t, entries[i].name, entries[i].name, entries[i].name);
            const char *kv = entries[i].kv[k];
            float *whole = tiny_run_all(&t, kv, false, 1, 512, false);
            for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
                char what[128];
                float *part = tiny_run_all(&t, kv, false, cases[c][0], cases[c][1], false);
                (void)snprintf(what, sizeof what, "%s, %s, %d threads, steps of %d", entries[i].name, kv, cases[c][0],
                               cases[c][1]);
                tiny_equal_bits(&t, whole, part, what);
                free(part);
            }
            float *one = tiny_run_all(&t, kv, false, 1, 1, true), *five = tiny_run_all(&t, kv, false, 3, 5, true);
            tiny_equal_bits(&t, one, five, kv);
            free(one);
            free(five);
            free(whole);
            tiny_close(&t);
        }
}

static void test_fork_trim_save(void **state)
{
    static const int cuts[] = {63, 71, 128};
    (void)state;
    for (size_t i = 0; i < N_ENTRIES; i++) {
        struct tiny t;
        tiny_open(&t, entries[i].name, entries[i].name, entries[i].name);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++)
            tiny_fork_trim_save(&t, entries[i].kv[c % 2], cuts[c]);
        tiny_close(&t);
    }
}

/* Contexts up to the original one have the short factors, and what they saved stays theirs. */
static void test_longrope(void **state)
{
    struct tiny t;
    tern_error err = {0};
    tern_seq *s, *other;
    char path[] = "/tmp/tern-test-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    (void)close(fd);
    tiny_open(&t, "phi3-long", "phi3-long", "phi3-long-short");
    tern_engine *all = tiny_engine(&t, "l4", false, 1, 1, 512);
    float *unused = tiny_buffer(&t);
    t.ctx = 100;
    t.n_ids = 97;
    float *whole = tiny_run_all(&t, NULL, true, 2, 512, false), *part = tiny_run_all(&t, NULL, true, 2, 7, false);
    assert_true(tiny_max_diff(&t, whole) <= 1e-4);
    tiny_equal_bits(&t, whole, part, "short factors in steps");
    tern_engine *few = tiny_engine(&t, "l4", false, 1, 1, 100);
    tiny_ok(tern_seq_new(&s, few, &err), &err);
    tiny_run(few, s, t.ids, 0, 70, 70, false, unused, 0, t.n_vocab);
    tiny_ok(tern_seq_save(s, path, &err), &err);
    assert_int_equal(tern_seq_load(&other, all, path, &err), TERN_EMISMATCH);
    assert_non_null(strstr(err.msg, "longrope"));
    tern_seq_free(s);
    tiny_ok(tern_seq_load(&other, few, path, &err), &err);
    tern_engine_close(&few);
    tern_engine_close(&all);
    (void)unlink(path);
    free(unused);
    free(whole);
    free(part);
    tiny_close(&t);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_parity),       cmocka_unit_test(test_fast_paths_close_to_reference),
        cmocka_unit_test(test_splits_and_threads), cmocka_unit_test(test_fork_trim_save),
        cmocka_unit_test(test_longrope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

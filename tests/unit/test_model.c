/* Every tiny model against the reference logits, and the promises of tern.h bit for bit: prompt splits, batches,
 * threads, fork, trim, save and restore. */
#include "base/rng.h"
#include "tiny_promises.h"

struct entry {
    const char *name, *ids, *logits;
    double exact, kld; /* bounds: max |difference| of --exact, mean KLD of the fast decode path */
};

/* The matrix of block types is compared with the reference run on the dequantised weights, so the bound of the exact
 * path is the same for all of them. */
static const struct entry entries[] = {
    {"llama-tied", "llama-tied", "llama-tied", 1e-4, 1e-3},
    {"llama-untied", "llama-untied", "llama-untied", 1e-4, 1e-3},
    {"llama-untied-split-00001-of-00002", "llama-untied", "llama-untied", 1e-4, 1e-3},
    {"llama-untied-split-00002-of-00002", "llama-untied", "llama-untied", 1e-4, 1e-3},
    {"gemma3-w8", "gemma3-w8", "gemma3-w8", 1e-4, 1e-3},
    {"gemma3-w70", "gemma3-w70", "gemma3-w70", 1e-4, 1e-3},
    {"qwen2", "qwen2", "qwen2", 1e-4, 1e-3},
    {"llama-b32-f16", "llama-b32", "llama-b32-f16", 1e-4, 1e-3},
    {"llama-b32-bf16", "llama-b32", "llama-b32-bf16", 1e-4, 1e-3},
    {"llama-b32-q8_0", "llama-b32", "llama-b32-q8_0", 1e-4, 1e-3},
    {"llama-b32-q4_0", "llama-b32", "llama-b32-q4_0", 1e-4, 1e-3},
    {"llama-b32-q4_1", "llama-b32", "llama-b32-q4_1", 1e-4, 1e-3},
    {"llama-b32-q5_0", "llama-b32", "llama-b32-q5_0", 1e-4, 1e-3},
    {"llama-b32-q5_1", "llama-b32", "llama-b32-q5_1", 1e-4, 1e-3},
    {"llama-k256-q4_k", "llama-k256", "llama-k256-q4_k", 1e-4, 1e-3},
    {"llama-k256-q5_k", "llama-k256", "llama-k256-q5_k", 1e-4, 1e-3},
    {"llama-k256-q6_k", "llama-k256", "llama-k256-q6_k", 1e-4, 1e-3},
    {"llama-h80-q8_0", "llama-h80", "llama-h80-q8_0", 1e-4, 1e-3},
    {"qwen3moe-q8_0", "qwen3moe", "qwen3moe-q8_0", 1e-4, 1e-3},
    {"mixtral-q5_0", "mixtral", "mixtral-q5_0", 1e-4, 1e-3},
    {"deepseek2-q4_0", "deepseek2", "deepseek2-q4_0", 1e-4, 1e-3},
};
#define N_ENTRIES (sizeof entries / sizeof *entries)

static void open_entry(struct tiny *t, const struct entry *e)
{
    tiny_open(t, e->name, e->ids, e->logits);
}

static void test_exact_parity(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ENTRIES; i++) {
        struct tiny t;
        open_entry(&t, &entries[i]);
        tiny_exact_parity(&t, entries[i].exact, entries[i].name);
        tiny_close(&t);
    }
}

static void test_fast_paths_close_to_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ENTRIES; i++) {
        struct tiny t;
        open_entry(&t, &entries[i]);
        double prompt = tiny_run_kld(&t, "f16", false, false), decode = tiny_run_kld(&t, "f16", false, true);
        print_message("%-36s KLD prompt rows %.2e, decode rows %.2e\n", entries[i].name, prompt, decode);
        assert_true(prompt <= entries[i].kld && decode <= entries[i].kld);
        tiny_close(&t);
    }
}

static const char *const schemes[] = {"f32",
                                      "f16",
                                      "q8",
                                      "l4",
                                      "l3",
                                      "l2",
                                      "t4",
                                      "t3",
                                      "t2",
                                      "affine8",
                                      "k=affine4,v=g16",
                                      "k=g16,v=affine4,recent=128",
                                      "k=f16,v=l4",
                                      "k=q8,v=l3,first=0",
                                      "k=t4,v=t2,first=0",
                                      "l4,layers=0-1:l3",
                                      "t4,recent=128"};
#define N_SCHEMES (sizeof schemes / sizeof *schemes)

static const char *const promise_models[] = {"llama-tied",   "llama-untied",    "gemma3-w8",      "gemma3-w70",
                                             "qwen2",        "llama-k256-q4_k", "llama-h80-q8_0", "qwen3moe-q8_0",
                                             "mixtral-q5_0", "deepseek2-q4_0"};

static void open_promise(struct tiny *t, size_t i)
{
    for (size_t k = 0; k < N_ENTRIES; k++)
        if (strcmp(entries[k].name, promise_models[i]) == 0)
            open_entry(t, &entries[k]);
}

static void test_splits_and_threads(void **state)
{
    static const int cases[][2] = {{2, 64}, {3, 7}, {2, 1}, {1, 65}, {5, 100}};
    (void)state;
    for (size_t m = 0; m < sizeof promise_models / sizeof *promise_models; m++)
        for (size_t k = 0; k < N_SCHEMES; k++) {
            struct tiny t;
            if (m >= 2 && (k + m) % 2) /* every scheme on two models, every other one on the rest */
                continue;
            open_promise(&t, m);
            if (t.n_ids >= 130 || !strstr(schemes[k], "layers")) /* one layer only */
                tiny_splits_and_threads(&t, schemes[k], cases, sizeof cases / sizeof *cases, promise_models[m]);
            tiny_close(&t);
        }
}

static void test_batch_equals_single(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof promise_models / sizeof *promise_models; m++) {
        struct tiny t;
        open_promise(&t, m);
        tiny_batch_equals_single(&t, "l4", promise_models[m]);
        tiny_close(&t);
    }
}

static void test_fork_trim_save(void **state)
{
    static const int cuts[] = {1, 63, 64, 65, 71, 127, 128, 130};
#ifdef TERN_TEST_FEW /* two models share the cuts: sanitizers see the same code at each */
    const bool few = true;
#else
    const bool few = false;
#endif
    (void)state;
    for (size_t m = 0; m < 4; m++) {
        struct tiny t;
        open_promise(&t, m);
        for (size_t c = few ? m % 2 : 0; c < sizeof cuts / sizeof *cuts; c += few ? 2 : 1) {
            tiny_fork_trim_save(&t, c % 3 == 1 ? "k=t4,v=t3" : c % 2 ? "l4" : "k=q8,v=l3", cuts[c]);
            tiny_fork_trim_save(&t, c % 2 ? "l3,recent=128" : "t4,recent=192", cuts[c]);
        }
        tiny_fork_trim_save(&t, "k=affine8,v=g16", 71);
        tiny_fork_trim_save(&t, "f16", 66);
        tiny_fork_trim_save(&t, "f32", 129);
        tiny_close(&t);
    }
    for (size_t m = 7; m < sizeof promise_models / sizeof *promise_models; m++) { /* experts; latents */
        struct tiny t;
        open_promise(&t, m);
        tiny_fork_trim_save(&t, "l4", 71);
        tiny_fork_trim_save(&t, "k=f16,v=t3,recent=128", 130);
        tiny_close(&t);
    }
}

/* Going back within the open page and into the page before it is always possible. */
static void test_short_trim_never_refused(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    open_promise(&t, 3); /* window 70 */
    static const char *const plans[] = {"l4,layers=0-6:l4", "l4,layers=0-6:l4,recent=128"};
    for (int p = 0; p < 2; p++) {
        float *want = tiny_buffer(&t);
        tern_engine *e = tiny_engine(&t, plans[p], false, 2, 1, 128);
        tern_seq *s = tiny_grow(&t, e, 70, t.n_ids, want);
        tiny_ok(tern_seq_trim(s, t.n_ids - 60, &err), &err);
        tiny_continues(&t, e, s, t.n_ids - 60, want, "short trim");
        tiny_ok(tern_seq_trim(s, t.n_ids, &err), &err); /* to its own length: nothing happens */
        assert_int_equal(tern_seq_trim(s, t.n_ids + 1, &err), TERN_EINVAL);
        assert_int_equal(tern_seq_trim(s, -1, &err), TERN_EINVAL);
        tern_engine_close(&e);
        free(want);
    }
    tiny_close(&t);
}

/* Back over a page's edge, and again without having grown in between: the second time the ring of raw tiles no longer
 * holds what the first one left. */
static void test_trims_in_a_row(void **state)
{
    static const int cuts[][2] = {{190, 120}, {129, 127}, {191, 190}, {128, 64}, {150, 63}, {200, 130}, {192, 191}};
    tern_error err = {0};
    struct tiny t;
    (void)state;
    open_promise(&t, 0);
    float *want = tiny_buffer(&t);
    tern_engine *e = tiny_engine(&t, "t4,recent=128", false, 2, 2, 128);
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        tern_seq *s = tiny_grow(&t, e, 40, t.n_ids, want), *fork;
        tiny_ok(tern_seq_trim(s, cuts[c][0], &err), &err);
        tiny_ok(tern_seq_fork(&fork, s, &err), &err);
        tiny_ok(tern_seq_trim(s, cuts[c][1], &err), &err);
        tiny_continues(&t, e, s, cuts[c][1], want, "trimmed twice");
        tern_seq_free(s);
        tiny_ok(tern_seq_trim(fork, cuts[c][1], &err), &err);
        tiny_continues(&t, e, fork, cuts[c][1], want, "trimmed, forked, trimmed");
        tern_seq_free(fork);
    }
    tern_engine_close(&e);
    free(want);
    tiny_close(&t);
}

/* Mean KLD from f16 in --exact over positions of several texts: a router at its threshold may make one text's ten times
 * another's. */
static double mean_kld(struct tiny *t, const char *kv, bool decode)
{
    enum { TEXTS = 8 };
    struct tern_rng rng = {7};
    double total = 0;
    for (int text = 0; text < TEXTS; text++) {
        float *want = tiny_run_all(t, "f16", true, 2, 512, false);
        float *got = tiny_run_all(t, kv, false, 2, decode ? 1 : 512, decode);
        total += tiny_kld(want, got, t->n_ids, t->n_vocab);
        free(want);
        free(got);
        for (int i = 1; i < t->n_ids; i++)
            t->ids[i] = (int32_t)(tern_rng_u64(&rng) % (uint64_t)t->n_vocab);
    }
    return total / TEXTS;
}

/* A latent is coded once for both of its uses; what follows it in the keys stays raw, which strict does not take for
 * the scheme that was asked for. */
static void test_latent_codes(void **state)
{
    static const struct {
        const char *kv;
        double kld[2]; /* prompt rows, decode rows: of 8-bit activations */
    } plans[] = {{"k=f16,v=q8", {3e-3, 8e-3}}, {"t4", {2e-2, 2e-2}}, {"k=f32,v=affine8", {3e-3, 8e-3}}};
    struct tiny t;
    tern_error err = {0};
    (void)state;
    tiny_open(&t, "deepseek2-q4_0", "deepseek2", "deepseek2-q4_0");
    for (size_t i = 0; i < sizeof plans / sizeof *plans; i++)
        for (int decode = 0; decode < 2; decode++) {
            double kld = mean_kld(&t, plans[i].kv, decode);
            print_message("%-16s %s rows: KLD %.2e\n", plans[i].kv, decode ? "decode" : "prompt", kld);
            assert_true(kld <= plans[i].kld[decode]);
            tiny_read_ids(&t, "deepseek2");
        }
    tern_engine *e;
    tern_engine_params p = {.kv = "t4", .kv_strict = true};
    assert_int_equal(tern_engine_open(&e, t.model, &p, &err), TERN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "latent"));
    p.kv = "k=f16,v=t4";
    tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
    tern_engine_close(&e);
    assert_int_equal(tern_model_calibrate(t.model, t.ids, t.n_ids, 1, NULL, NULL, NULL, &err), TERN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "latent"));
    tiny_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    open_promise(&t, 0);
    tern_engine *e = tiny_engine(&t, "l4", false, 1, 2, 16);
    tern_seq *a, *b, *c;
    tiny_ok(tern_seq_new(&a, e, &err), &err);
    tiny_ok(tern_seq_new(&b, e, &err), &err);
    assert_int_equal(tern_seq_new(&c, e, &err), TERN_ECAPACITY);
    const float *logits;
    int32_t bad[2] = {0, t.n_vocab};
    tern_step_item items[2] = {{a, bad, 2, false, TERN_LOGITS_LAST}, {a, t.ids, 1, false, TERN_LOGITS_NONE}};
    assert_int_equal(tern_step(e, items, 1, &logits, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "vocabulary"));
    items[0].tokens = t.ids;
    assert_int_equal(tern_step(e, items, 2, &logits, &err), TERN_EINVAL); /* twice the same sequence */
    items[1].seq = b;
    items[1].n_tokens = 15;
    assert_int_equal(tern_step(e, items, 2, &logits, &err), TERN_EINVAL); /* 17 rows in steps of 16 */
    assert_int_equal(tern_seq_length(a), 0);
    assert_int_equal(tern_seq_length(b), 0);
    tern_engine_close(&e);
    tern_engine_params p = {.kv = "l9"};
    assert_int_equal(tern_engine_open(&e, t.model, &p, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "l9"));
    tiny_close(&t);
}

/* test_model [PATTERN]: only the tests whose names match. */
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_parity),       cmocka_unit_test(test_fast_paths_close_to_reference),
        cmocka_unit_test(test_splits_and_threads), cmocka_unit_test(test_batch_equals_single),
        cmocka_unit_test(test_fork_trim_save),     cmocka_unit_test(test_short_trim_never_refused),
        cmocka_unit_test(test_trims_in_a_row),     cmocka_unit_test(test_latent_codes),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Prompt rows in the classes that machines have, on any machine: the engine with the int16 class of plain C, and with
 * emulated tiles. */
#include "tiny.h"

#include "kernel/kernel.h"
#include "tiles_emulated.h"

static const struct {
    const char *name, *ids, *logits;
} models[] = {
    {"llama-untied", "llama-untied", "llama-untied"},
    {"gemma3-w8", "gemma3-w8", "gemma3-w8"},
    {"llama-b32-q5_0", "llama-b32", "llama-b32-q5_0"},
    {"llama-k256-q4_k", "llama-k256", "llama-k256-q4_k"},
};
#define N_MODELS (sizeof models / sizeof *models)

static void open_model(struct tiny *t, size_t i)
{
    tiny_open(t, models[i].name, models[i].ids, models[i].logits);
}

enum prompt_class { PROMPT_F32, PROMPT_INT16, PROMPT_TILES };

static const char *const class_names[] = {"f32", "int16", "bf16"};

static void use_class(enum prompt_class c)
{
    tern_machine m;
    tern_machine_describe(&m); /* kernels are chosen before this, and not again */
    memset(&tern_k.prompt, 0, sizeof tern_k.prompt);
    memset(&tern_k.bf16, 0, sizeof tern_k.bf16);
    memset(&tern_k.attn16, 0, sizeof tern_k.attn16);
    if (c == PROMPT_INT16) {
        tern_prompt_init_ref(&tern_k.prompt);
        tern_attn16_init_ref(&tern_k.attn16);
    }
    if (c == PROMPT_TILES) {
        tern_prompt_init_emulated(&tern_k.prompt);
        tern_bf16_init_emulated(&tern_k.bf16);
    }
}

static float *run_prompt(struct tiny *t, const char *kv, bool exact, int threads, int step)
{
    tern_error err = {0};
    tern_engine *e = tiny_engine(t, kv, exact, threads, 1, 512);
    tern_seq *s;
    float *out = tiny_buffer(t);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, t->ids, 0, t->n_ids, step, false, out, 0, t->n_vocab);
    tern_engine_close(&e);
    return out;
}

static bool same(const struct tiny *t, const float *a, const float *b)
{
    return memcmp(a, b, (size_t)t->n_ids * (size_t)t->n_vocab * sizeof *a) == 0;
}

/* --exact computes in f32 whatever the machine has; without it prompt rows go through the tiles, and come close. */
static void test_exact_stays_f32(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        struct tiny t;
        open_model(&t, i);
        use_class(PROMPT_F32);
        float *f32 = run_prompt(&t, "f16", true, 2, 512), *plain = run_prompt(&t, "f16", false, 2, 512);
        for (enum prompt_class c = PROMPT_INT16; c <= PROMPT_TILES; c++) {
            use_class(c);
            float *exact = run_prompt(&t, "f16", true, 2, 512), *own = run_prompt(&t, "f16", false, 2, 512);
            assert_true(same(&t, f32, exact));
            size_t at = (size_t)(t.n_ids - t.n_ref) * (size_t)t.n_vocab;
            double kld = tiny_kld(t.ref, own + at, t.n_ref, t.n_vocab);
            print_message("%-36s KLD prompt rows in %-5s %.2e\n", models[i].name, class_names[c], kld);
            if (c == PROMPT_TILES)
                assert_false(same(&t, plain, own));
            assert_true(kld <= (c == PROMPT_INT16 ? 1e-5 : 1e-3));
            free(exact);
            free(own);
        }
        free(f32);
        free(plain);
        tiny_close(&t);
    }
}

/* Where pages are codes the int16 class attends in integers, too; --exact does not. */
static void test_codes(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_MODELS; i++) {
        struct tiny t;
        open_model(&t, i);
        use_class(PROMPT_INT16);
        float *exact = run_prompt(&t, "t4", true, 2, 512), *own = run_prompt(&t, "t4", false, 2, 512);
        memset(&tern_k.attn16, 0, sizeof tern_k.attn16);
        float *f32 = run_prompt(&t, "t4", true, 2, 512), *products = run_prompt(&t, "t4", false, 2, 512);
        assert_true(same(&t, exact, f32));
        assert_false(same(&t, own, products));
        const double kld = tiny_kld(exact, own, t.n_ids, t.n_vocab);
        print_message("%-36s KLD prompt rows from --exact, t4 %.2e, with attention in f32 %.2e\n", models[i].name, kld,
                      tiny_kld(exact, products, t.n_ids, t.n_vocab));
        assert_true(kld <= 1e-3); /* a rounding can send a value to another code */
        free(exact);
        free(own);
        free(f32);
        free(products);
        tiny_close(&t);
    }
}

static void splits_and_threads(enum prompt_class own, const char *kv)
{
    static const int cases[][2] = {{3, 64}, {2, 7}, {1, 1}, {5, 33}};
    use_class(own);
    for (size_t i = 0; i < N_MODELS; i++) {
        struct tiny t;
        open_model(&t, i);
        float *whole = run_prompt(&t, kv, false, 1, 512);
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            if (i && cases[c][1] == 1) /* slow: sixteen rows computed for each */
                continue;
            float *part = run_prompt(&t, kv, false, cases[c][0], cases[c][1]);
            if (!same(&t, whole, part))
                fail_msg("%s: %d threads, steps of %d", models[i].name, cases[c][0], cases[c][1]);
            free(part);
        }
        free(whole);
        tiny_close(&t);
    }
}

/* A step of one prompt and one decode row against each alone: the decode row belongs to its own class. */
static void batch_equals_single(enum prompt_class own, const char *kv)
{
    use_class(own);
    for (size_t i = 0; i < N_MODELS; i++) {
        struct tiny t;
        tern_error err = {0};
        tern_seq *a, *b;
        const float *logits;
        open_model(&t, i);
        const size_t row = (size_t)t.n_vocab;
        float *alone = tiny_buffer(&t);
        tern_engine *e = tiny_engine(&t, kv, false, 2, 2, 512);
        tiny_ok(tern_seq_new(&a, e, &err), &err);
        tiny_run(e, a, t.ids, 0, 40, 512, false, alone, 0, t.n_vocab);
        tiny_run(e, a, t.ids, 40, 41, 1, true, alone, 0, t.n_vocab);
        tern_seq_free(a);
        float *junk = tiny_buffer(&t);
        tiny_ok(tern_seq_new(&a, e, &err), &err);
        tiny_ok(tern_seq_new(&b, e, &err), &err);
        tiny_run(e, a, t.ids, 0, 40, 512, false, junk, 0, t.n_vocab);
        const tern_step_item items[2] = {{b, t.ids, 35, false, TERN_LOGITS_ALL},
                                         {a, t.ids + 40, 1, true, TERN_LOGITS_ALL}};
        tiny_ok(tern_step(e, items, 2, &logits, &err), &err);
        assert_memory_equal(logits, alone, 35 * row * sizeof(float));
        assert_memory_equal(logits + 35 * row, alone + 40 * row, row * sizeof(float));
        tern_engine_close(&e);
        free(junk);
        free(alone);
        tiny_close(&t);
    }
}

static void test_splits_and_threads(void **state)
{
    (void)state;
    splits_and_threads(PROMPT_INT16, "f16");
    splits_and_threads(PROMPT_INT16, "t4");
    splits_and_threads(PROMPT_TILES, "f16");
}

static void test_batch_equals_single(void **state)
{
    (void)state;
    batch_equals_single(PROMPT_INT16, "f16");
    batch_equals_single(PROMPT_INT16, "t4");
    batch_equals_single(PROMPT_TILES, "f16");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact_stays_f32),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_splits_and_threads),
        cmocka_unit_test(test_batch_equals_single),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

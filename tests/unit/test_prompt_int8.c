/* Prompt rows in int8: the products of decode rows, bound by the promises of prompts, and told apart from other classes
 * wherever pages are found again. */
#include "tiny_promises.h"

#include "kernel/kernel.h"
#include "run/prefix/record.h"

static const struct kind {
    const char *name, *ids;
} kinds[] = {{"llama-b32-q4_1", "llama-b32"},
             {"llama-k256-q4_k", "llama-k256"},
             {"qwen3moe-q8_0", "qwen3moe"},
             {"deepseek2-q4_0", "deepseek2"}};
#define N_KINDS (sizeof kinds / sizeof *kinds)

static void open_kind(struct tiny *t, size_t i, const char *prompt_class)
{
    tiny_open(t, kinds[i].name, kinds[i].ids, kinds[i].name);
    t->prompt_class = prompt_class;
}

/* 32-bit pages, so that nothing but products and attention rounds. */
static float *prompt(struct tiny *t, bool exact, int threads, int step)
{
    tern_error err = {0};
    tern_seq *s;
    float *out = tiny_buffer(t);
    tern_engine *e = tiny_engine(t, "f32", exact, threads, 1, 64);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, t->ids, 0, t->n_ids, step, false, out, 0, t->n_vocab);
    tern_seq_free(s);
    tern_engine_close(&e);
    return out;
}

/* As near to exact arithmetic as a class of 8 bits is, and not the class of the machine. */
static void test_distance(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        struct tiny t;
        open_kind(&t, i, "auto");
        float *want = prompt(&t, true, 2, 64), *own = prompt(&t, false, 2, 64);
        t.prompt_class = "int8";
        float *with8 = prompt(&t, false, 2, 64);
        const double near = tiny_kld(want, own, t.n_ids, t.n_vocab), far = tiny_kld(want, with8, t.n_ids, t.n_vocab);
        print_message("%s: %.1e nats in the machine's class, %.1e in int8\n", kinds[i].name, near, far);
        assert_memory_not_equal(own, with8, (size_t)t.n_ids * (size_t)t.n_vocab * sizeof *own);
        assert_true(near < 1e-2 && far < 1e-2);
        free(want);
        free(own);
        free(with8);
        tiny_close(&t);
    }
}

/* The kernels of the level against the same class out of narrow kernels. */
static void test_twin(void **state)
{
    (void)state;
    const struct tern_prompt_kernels own = tern_k.prompt8;
    for (size_t i = 0; i < N_KINDS; i++) {
        struct tiny t;
        open_kind(&t, i, "int8");
        float *fast = prompt(&t, false, 2, 64);
        tern_prompt8_init(&tern_k.prompt8);
        float *slow = prompt(&t, false, 2, 64);
        tern_k.prompt8 = own;
        assert_memory_equal(fast, slow, (size_t)t.n_ids * (size_t)t.n_vocab * sizeof *fast);
        free(fast);
        free(slow);
        tiny_close(&t);
    }
}

static void test_promises(void **state)
{
    static const int cases[][2] = {{2, 64}, {3, 7}, {2, 1}};
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        struct tiny t;
        open_kind(&t, i, "int8");
        tiny_batch_equals_single(&t, "t4", kinds[i].name);
        tiny_splits_and_threads(&t, "l4", cases, sizeof cases / sizeof *cases, kinds[i].name);
        tiny_fork_trim_save(&t, "t4", 65);
        float *whole = prompt(&t, false, 1, 64), *part = prompt(&t, false, 3, 7);
        assert_memory_equal(whole, part, (size_t)t.n_ids * (size_t)t.n_vocab * sizeof *whole);
        free(whole);
        free(part);
        tiny_close(&t);
    }
}

/* Prompt rows beside decode rows of 16 bits, whose buffer they do not share. */
static void test_with_decode_bits(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        struct tiny t;
        open_kind(&t, i, "int8");
        t.decode_bits = 16;
        tiny_batch_equals_single(&t, "t4", kinds[i].name);
        tiny_close(&t);
    }
}

static void origin_of(struct tiny *t, const char *prompt_class, struct tern_origin *out)
{
    t->prompt_class = prompt_class;
    tern_engine *e = tiny_engine(t, "t4", false, 2, 1, 64);
    tern_engine_origin(e, 0, out);
    tern_engine_close(&e);
}

/* Pages in memory, in files and in stores are found by their origin. */
static void test_origin(void **state)
{
    (void)state;
    struct tiny t;
    struct tern_origin own, same, int8;
    open_kind(&t, 0, "auto");
    origin_of(&t, NULL, &own);
    origin_of(&t, "auto", &same);
    origin_of(&t, "int8", &int8);
    assert_string_equal(own.arithmetic, same.arithmetic);
    assert_string_not_equal(own.arithmetic, int8.arithmetic);
    assert_non_null(strstr(int8.arithmetic, "int8"));
    struct tern_key key, other;
    tern_origin_key(&own, &key);
    tern_origin_key(&int8, &other);
    assert_memory_not_equal(&key, &other, sizeof key);
    /* Attention has a class of its own, which counts as well. */
    const struct tern_kernels k = tern_k;
    memset(&tern_k.bf16, 0, sizeof tern_k.bf16);
    memset(&tern_k.attn16, 0, sizeof tern_k.attn16);
    origin_of(&t, NULL, &same);
    tern_attn16_init_ref(&tern_k.attn16);
    origin_of(&t, NULL, &own);
    tern_k = k;
    assert_string_not_equal(own.arithmetic, same.arithmetic);
    tiny_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    struct tiny t;
    tern_engine *e;
    tern_error err = {0};
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    assert_int_equal(tern_engine_open(&e, t.model, &(tern_engine_params){.prompt_class = "int4"}, &err), TERN_EINVAL);
    assert_string_equal(err.msg, "prompt_class = \"int4\": there are \"auto\" and \"int8\"");
    assert_int_equal(tern_engine_open(&e, t.model, &(tern_engine_params){.prompt_class = "int8", .exact = true}, &err),
                     TERN_EINVAL);
    assert_string_equal(err.msg, "prompt_class = \"int8\": an exact engine computes in 32 bits");
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_distance), cmocka_unit_test(test_twin),
                                       cmocka_unit_test(test_promises), cmocka_unit_test(test_with_decode_bits),
                                       cmocka_unit_test(test_origin),   cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

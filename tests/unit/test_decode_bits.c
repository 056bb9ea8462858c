/* Decode rows whose activations have 16 bits: nearer to exact arithmetic, and bound by the same promises. */
#include "tiny_promises.h"

/* Products of every kind: of a row, of experts, of heads with a matrix each. */
static const struct kind {
    const char *name, *ids;
} kinds[] = {{"llama-b32-q4_1", "llama-b32"},
             {"llama-k256-q4_k", "llama-k256"},
             {"qwen3moe-q8_0", "qwen3moe"},
             {"deepseek2-q4_0", "deepseek2"}};
#define N_KINDS (sizeof kinds / sizeof *kinds)

static void open_kind(struct tiny *t, size_t i, int bits)
{
    tiny_open(t, kinds[i].name, kinds[i].ids, kinds[i].name);
    t->decode_bits = bits;
}

/* Every token fed as one that was generated; 32-bit pages, so that nothing but products rounds. */
static float *decoded(struct tiny *t, bool exact)
{
    tern_error err = {0};
    tern_seq *s;
    float *out = tiny_buffer(t);
    tern_engine *e = tiny_engine(t, "f32", exact, 2, 1, 64);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, t->ids, 0, t->n_ids, 1, true, out, 0, t->n_vocab);
    tern_seq_free(s);
    tern_engine_close(&e);
    return out;
}

static void test_nearer(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        struct tiny t;
        open_kind(&t, i, 8);
        float *want = decoded(&t, true), *with8 = decoded(&t, false);
        t.decode_bits = 16;
        float *with16 = decoded(&t, false);
        const double far = tiny_kld(want, with8, t.n_ids, t.n_vocab), near = tiny_kld(want, with16, t.n_ids, t.n_vocab);
        print_message("%s: %.1e nats with 8 bits, %.1e with 16\n", kinds[i].name, far, near);
        assert_true(far > 1e-9 && near < far / 500);
        free(want);
        free(with8);
        free(with16);
        tiny_close(&t);
    }
}

static void test_promises(void **state)
{
    static const int cases[][2] = {{2, 64}, {3, 7}, {2, 1}};
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        struct tiny t;
        open_kind(&t, i, 16);
        tiny_batch_equals_single(&t, "t4", kinds[i].name);
        tiny_splits_and_threads(&t, "l4", cases, sizeof cases / sizeof *cases, kinds[i].name);
        tiny_fork_trim_save(&t, "t4", 65);
        tiny_close(&t);
    }
}

/* Nine rows go over the weights four at a time. */
static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_KINDS; i++) {
        struct tiny t;
        tern_error err = {0};
        tern_seq *s[9];
        tern_step_item items[9];
        const float *logits;
        open_kind(&t, i, 16);
        float *alone = decoded(&t, false);
        tern_engine *e = tiny_engine(&t, "f32", false, 2, 9, 64);
        for (int k = 0; k < 9; k++)
            tiny_ok(tern_seq_new(&s[k], e, &err), &err);
        for (int pos = 0; pos < 3; pos++) {
            for (int k = 0; k < 9; k++)
                items[k] = (tern_step_item){s[k], t.ids + pos, 1, true, TERN_LOGITS_ALL};
            tiny_ok(tern_step(e, items, 9, &logits, &err), &err);
            for (int k = 0; k < 9; k++)
                assert_memory_equal(logits + (size_t)k * (size_t)t.n_vocab, alone + (size_t)pos * (size_t)t.n_vocab,
                                    (size_t)t.n_vocab * sizeof(float));
        }
        tern_engine_close(&e);
        free(alone);
        tiny_close(&t);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct tiny t;
    tern_engine *e;
    tern_error err = {0};
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    assert_int_equal(tern_engine_open(&e, t.model, &(tern_engine_params){.decode_bits = 4}, &err), TERN_EINVAL);
    assert_string_equal(err.msg, "decode_bits = 4: there are 8 and 16");
    assert_int_equal(tern_engine_open(&e, t.model, &(tern_engine_params){.decode_bits = 16, .exact = true}, &err),
                     TERN_EINVAL);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_nearer), cmocka_unit_test(test_promises),
                                       cmocka_unit_test(test_rows), cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

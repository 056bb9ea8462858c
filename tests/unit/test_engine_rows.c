/* Rows of a step: as many decode rows as it has rows, and what is asked for beside logits. */
#include "tiny.h"

/* Guessed tokens are decode rows of one sequence: a step takes as many of them as it takes prompt rows, and computes
 * what steps of one do. */
static void test_decode_rows_of_one_sequence(void **state)
{
    (void)state;
    static const int steps[] = {1, 63, 64, 65, 128};
    struct tiny t;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        tern_error err = {0};
        tern_engine *e = tiny_engine(&t, "t4", false, 2, 1, 128);
        tern_seq *s;
        assert_int_equal(tern_engine_max_decode(e), 128);
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_run(e, s, t.ids, 0, 10, 128, false, got, 0, t.n_vocab);
        tiny_run(e, s, t.ids, 10, t.n_ids, steps[i], true, got, 0, t.n_vocab);
        if (i == 0)
            memcpy(want, got, (size_t)t.n_ids * (size_t)t.n_vocab * sizeof *got);
        assert_memory_equal(got, want, (size_t)t.n_ids * (size_t)t.n_vocab * sizeof *got);
        tern_engine_close(&e);
    }
    free(want);
    free(got);
    tiny_close(&t);
}

/* Each item gets its own hidden states, the same whatever stands beside it. */
static void test_hidden_states(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    int n = tern_model_get_info(t.model)->n_embd;
    tern_engine *e = tiny_engine(&t, "f16", false, 2, 3, 256);
    tern_seq *s[3];
    float *alone = calloc((size_t)(65 + 7) * (size_t)n, sizeof *alone);
    for (int i = 0; i < 3; i++)
        tiny_ok(tern_seq_new(&s[i], e, &err), &err);
    tern_step_item it = {.seq = s[0], .tokens = t.ids, .n_tokens = 65, .logits = TERN_HIDDEN_ALL};
    tiny_ok(tern_step(e, &it, 1, NULL, &err), &err);
    memcpy(alone, tern_engine_hidden(e), (size_t)65 * (size_t)n * sizeof *alone);
    it = (tern_step_item){s[0], t.ids + 65, 7, true, TERN_HIDDEN_ALL};
    tiny_ok(tern_step(e, &it, 1, NULL, &err), &err);
    memcpy(alone + 65 * n, tern_engine_hidden(e), (size_t)7 * (size_t)n * sizeof *alone);
    it = (tern_step_item){s[2], t.ids, 65, false, TERN_LOGITS_NONE};
    tiny_ok(tern_step(e, &it, 1, NULL, &err), &err);
    assert_null(tern_engine_hidden(e));

    const float *logits;
    tern_step_item two[2] = {{s[2], t.ids + 65, 7, true, TERN_LOGITS_LAST | TERN_HIDDEN_ALL},
                             {s[1], t.ids, 65, false, TERN_LOGITS_ALL | TERN_HIDDEN_LAST}};
    tiny_ok(tern_step(e, two, 2, &logits, &err), &err);
    const float *got = tern_engine_hidden(e);
    assert_memory_equal(got, alone + 65 * n, (size_t)7 * (size_t)n * sizeof *got);
    assert_memory_equal(got + 7 * n, alone + 64 * n, (size_t)n * sizeof *got);
    free(alone);
    tern_engine_close(&e);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_rows_of_one_sequence),
        cmocka_unit_test(test_hidden_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

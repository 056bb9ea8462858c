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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_rows_of_one_sequence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

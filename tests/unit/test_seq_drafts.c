/* Rows of a step that are taken back right after it, as rejected drafts are: nothing is computed again, over edges of
 * pages too, and everything stays equal to the cold run. */
#include "tiny_promises.h"

#include "base/rng.h"
#include "run/run.h"

enum { LENGTH = 230, PROMPT = 50, DRAFTS = 5 };

static const struct {
    const char *name, *kv[3];
} models[] = {
    {"llama-tied", {"f16", "t4", "k=q8,v=l3,recent=128"}},
    {"gemma3-w70", {"t4", "t4,layers=0-6:l4,recent=128", NULL}},
    {"deepseek2-lite", {"l3", NULL, NULL}},
    {"qwen35", {"t4", "l3,recent=128", NULL}},
};

static tern_engine *open_engine(struct tiny *t, const char *kv, int drafts)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {.n_threads = 2, .max_seqs = 1, .chunk = 64, .kv = kv, .drafts = drafts};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

static void equal_rows(const struct tiny *t, const float *got, const float *want, int from, int to)
{
    for (int r = from; r < to; r++)
        if (memcmp(got + (size_t)r * (size_t)t->n_vocab, want + (size_t)r * (size_t)t->n_vocab,
                   (size_t)t->n_vocab * sizeof *got) != 0)
            fail_msg("position %d differs from the cold run", r);
}

/* One accepted token and k drafts, of which some are wrong ones: other tokens than the text's. */
static void speculate(struct tiny *t, const char *kv, uint64_t seed)
{
    tern_error err = {0};
    struct tern_rng rng = {seed};
    float *want = tiny_buffer(t), *got = tiny_buffer(t);
    tern_engine *e = open_engine(t, kv, DRAFTS), *plain = open_engine(t, kv, 0);
    tern_seq *s;
    tiny_ok(tern_seq_new(&s, plain, &err), &err);
    tiny_run(plain, s, t->ids, 0, PROMPT, 50, false, want, 0, t->n_vocab);
    tiny_run(plain, s, t->ids, PROMPT, LENGTH, 1, true, want, 0, t->n_vocab);
    tern_engine_close(&plain);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, t->ids, 0, PROMPT, 50, false, got, 0, t->n_vocab);
    int crossed = 0;
    for (int n = PROMPT; n < LENGTH;) {
        int32_t rows[1 + DRAFTS];
        const int left = LENGTH - n, k = (int)(tern_rng_u64(&rng) % (1 + DRAFTS)), all = k + 1 < left ? k + 1 : left;
        const int good = 1 + (int)(tern_rng_u64(&rng) % (uint64_t)all);
        const float *logits;
        for (int i = 0; i < all; i++)
            rows[i] = i < good ? t->ids[n + i] : (t->ids[n + i] + 1) % t->n_vocab;
        tern_step_item it = {s, rows, all, true, TERN_LOGITS_ALL};
        tiny_ok(tern_step(e, &it, 1, &logits, &err), &err);
        memcpy(got + (size_t)n * (size_t)t->n_vocab, logits, (size_t)good * (size_t)t->n_vocab * sizeof *logits);
        equal_rows(t, got, want, n, n + good);
        const uint64_t steps = e->n_steps;
        tiny_ok(tern_seq_trim(s, n + good, &err), &err);
        assert_true(e->n_steps == steps); /* nothing was computed again */
        crossed += (n + good) / 64 < (n + all) / 64;
        n += good;
    }
    assert_int_equal(tern_seq_length(s), LENGTH);
    assert_memory_equal(tern_seq_tokens(s), t->ids, LENGTH * sizeof *t->ids);
    print_message("%s, seed %d: %d times over an edge\n", kv, (int)seed, crossed);
    tern_seq_free(s);
    tern_memory mem;
    tern_engine_memory(e, &mem);
    assert_true(mem.kv_bytes == 0 && mem.state_bytes == 0);
    tern_engine_close(&e);
    free(want);
    free(got);
}

static void test_drafts(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct tiny t;
        struct tern_rng rng = {m};
        const char *name = models[m].name;
        tiny_open(&t, name, name, name);
        t.n_ids = LENGTH;
        for (int i = 0; i < t.n_ids; i++)
            t.ids[i] = (int32_t)(tern_rng_u64(&rng) % (uint64_t)t.n_vocab);
        for (int k = 0; k < 3 && models[m].kv[k]; k++)
            for (uint64_t seed = 1; seed <= 6; seed++)
                speculate(&t, models[m].kv[k], seed);
        tiny_close(&t);
    }
}

/* What is saved by an engine for drafts is read by one without, and the other way round; too many drafts are refused.
 */
static void test_sessions_and_limits(void **state)
{
    struct tiny t;
    tern_error err = {0};
    char path[] = "/tmp/tern-test-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0 && close(fd) == 0);
    tiny_open(&t, "qwen35", "qwen35", "qwen35");
    float *want = tiny_run_all(&t, "t4,recent=128", false, 1, 50, false);
    for (int round = 0; round < 2; round++) {
        float *got = tiny_buffer(&t);
        tern_engine *e = open_engine(&t, "t4,recent=128", round ? 16 : 0),
                    *to = open_engine(&t, "t4,recent=128", round ? 0 : 16);
        tern_seq *s;
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_run(e, s, t.ids, 0, 100, 50, false, got, 0, t.n_vocab);
        tiny_ok(tern_seq_save(s, path, &err), &err);
        tiny_ok(tern_seq_load(&s, to, path, &err), &err);
        tiny_run(to, s, t.ids, 100, t.n_ids, 50, false, got, 0, t.n_vocab);
        equal_rows(&t, got, want, 0, t.n_ids);
        tern_engine_close(&e);
        tern_engine_close(&to);
        free(got);
    }
    for (int drafts = -1; drafts <= 17; drafts += 18) {
        tern_engine *e;
        assert_int_equal(tern_engine_open(&e, t.model, &(tern_engine_params){.drafts = drafts}, &err), TERN_EINVAL);
        assert_non_null(strstr(err.msg, "outside 0..16"));
    }
    free(want);
    tiny_close(&t);
    (void)unlink(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_drafts), cmocka_unit_test(test_sessions_and_limits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

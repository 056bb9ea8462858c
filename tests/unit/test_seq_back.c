/* Sequences that go forward and back at random: every position's logits stay those of a cold run, whatever is still
 * raw, kept, or computed again. */
#include "tiny_promises.h"

#include "base/rng.h"

enum { MOST = 330, PROMPT = 150 };

#ifdef TERN_TEST_FEW
enum { WALKS = 1 }; /* of every plan: sanitizers see the same code in each */
#else
enum { WALKS = 4 };
#endif

static const struct {
    const char *name, *kv[4];
} models[] = {
    {"llama-tied", {"f16", "t4", "l3,recent=128", "k=q8,v=t3,recent=192,layers=0:f16"}},
    {"gemma3-w70", {"f16", "t4", "t4,layers=0-6:l4,recent=128", NULL}},
    {"deepseek2-lite", {"t4", "f16", NULL, NULL}},
    {"qwen35", {"t4", "l3,recent=128", "f16", NULL}},
};

/* Positions before PROMPT are prompt rows, the others decode rows. */
static void forward(struct tiny *t, tern_engine *e, tern_seq *s, int to, int step, const float *want, float *got)
{
    int from = tern_seq_length(s), border = to < PROMPT ? to : from > PROMPT ? from : PROMPT;
    tiny_run(e, s, t->ids, from, border, step, false, got, 0, t->n_vocab);
    tiny_run(e, s, t->ids, border, to, step, true, got, 0, t->n_vocab);
    for (int r = from; want && r < to; r++)
        if (memcmp(got + (size_t)r * (size_t)t->n_vocab, want + (size_t)r * (size_t)t->n_vocab,
                   (size_t)t->n_vocab * sizeof *got) != 0)
            fail_msg("position %d differs from the cold run", r);
}

static void back_and_forth(struct tiny *t, const char *kv, uint64_t seed)
{
    tern_error err = {0};
    struct tern_rng rng = {seed};
    float *want = tiny_buffer(t), *got = tiny_buffer(t);
    tern_engine *e = tiny_engine(t, kv, false, 2, 1, 64);
    tern_seq *s;
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    forward(t, e, s, t->n_ids, 16, NULL, want);
    tiny_ok(tern_seq_trim(s, 0, &err), &err);
    for (int i = 0; i < 60; i++) {
        int n = tern_seq_length(s), by = 1 + (int)(tern_rng_u64(&rng) % (i % 3 ? 6 : 90));
        if (i % 2 == 0 && n < t->n_ids) {
            /* Up to the edge of a page now and then, for there the newest page has just been closed. */
            int to = tern_rng_u64(&rng) % 3 ? n + by : (n / 64 + 1) * 64;
            forward(t, e, s, to < t->n_ids ? to : t->n_ids, 1 + (int)(tern_rng_u64(&rng) % 7), want, got);
            continue;
        }
        int rc = tern_seq_trim(s, n > by ? n - by : 0, &err);
        if (rc != TERN_EUNSUPPORTED) /* a window that has moved on may refuse, and nothing has changed then */
            tiny_ok(rc, &err);
    }
    tern_seq_free(s);
    tern_memory mem;
    tern_engine_memory(e, &mem);
    assert_true(mem.kv_bytes == 0 && mem.state_bytes == 0);
    tern_engine_close(&e);
    free(want);
    free(got);
}

static void test_back_and_forth(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct tiny t;
        struct tern_rng rng = {m};
        const char *name = models[m].name;
        tiny_open(&t, name, name, name);
        const int ctx = tern_model_get_info(t.model)->ctx;
        t.n_ids = ctx < MOST ? ctx : MOST;
        for (int i = 0; i < t.n_ids; i++)
            t.ids[i] = (int32_t)(tern_rng_u64(&rng) % (uint64_t)t.n_vocab);
        for (int k = 0; k < 4 && models[m].kv[k]; k++)
            for (uint64_t seed = 1; seed <= WALKS; seed++) {
                print_message("%s, %s, seed %d\n", name, models[m].kv[k], (int)seed);
                back_and_forth(&t, models[m].kv[k], seed);
            }
        tiny_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_back_and_forth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

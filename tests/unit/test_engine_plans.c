/* Sequences of different KV plans in one engine: each computes, bit for bit, what it computes in an engine of its own.
 */
#include "tiny.h"

#include <unistd.h>

static const char *const plans[] = {"f16", "q8", "l4", "l2", "f32", "k=f16,v=l3"};
enum { N_PLANS = sizeof plans / sizeof *plans, N_SEQS = 2 * N_PLANS, LENGTH = 75, PROMPT = 61 };

#ifdef TERN_TEST_FEW /* one thread and several: sanitizers see the same code at each number of them */
enum { THREAD_STEP = 2 };
#else
enum { THREAD_STEP = 1 };
#endif

static const char *const models[][2] = {{"llama-tied", "llama-tied"},
                                        {"gemma3-w70", "gemma3-w70"},
                                        {"llama-k256-q4_k", "llama-k256"},
                                        {"qwen35", "qwen35"}};

static tern_engine *open_all(struct tiny *t, bool exact, int threads, int seqs, int chunk)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {.n_threads = threads, .max_seqs = seqs, .chunk = chunk, .kv = plans[0], .exact = exact};
    p.more_kv = plans + 1;
    p.n_more_kv = N_PLANS - 1;
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

/* Sequence i: plan i mod N_PLANS, tokens from ids + offset_of(i); prompts of two lengths. */
static int offset_of(int i)
{
    return i % 4;
}

static int prompt_of(int i)
{
    return i < N_PLANS ? PROMPT : 5;
}

static float *run_alone(struct tiny *t, int i, bool exact)
{
    tern_error err = {0};
    tern_engine *e = tiny_engine(t, plans[i % N_PLANS], exact, 1, 1, 512);
    tern_seq *s;
    float *out = tiny_buffer(t);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, t->ids + offset_of(i), 0, prompt_of(i), 512, false, out, 0, t->n_vocab);
    tiny_run(e, s, t->ids + offset_of(i), prompt_of(i), LENGTH, 1, true, out, 0, t->n_vocab);
    tern_engine_close(&e);
    return out;
}

/* The items of one step: who takes part changes from step to step, and so does the order. */
static int fill_step(struct tiny *t, tern_seq *const *s, const int *at, int step, tern_step_item *items, int *who)
{
    int n = 0;
    for (int k = 0; k < N_SEQS; k++) {
        int i = (k * 5 + step) % N_SEQS; /* 5 and N_SEQS have no common factor */
        if (at[i] >= LENGTH || (step + i) % 5 == 4)
            continue;
        bool decode = at[i] >= prompt_of(i);
        int left = prompt_of(i) - at[i], most = 5 + i, c = decode ? 1 : left < most ? left : most;
        items[n] = (tern_step_item){s[i], t->ids + offset_of(i) + at[i], c, decode, TERN_LOGITS_ALL};
        who[n++] = i;
    }
    return n;
}

static void check_mixed(struct tiny *t, float *const *alone, bool exact, int threads)
{
    tern_error err = {0};
    tern_engine *e = open_all(t, exact, threads, N_SEQS, 192);
    tern_seq *s[N_SEQS];
    int at[N_SEQS] = {0}, left = N_SEQS;
    for (int i = 0; i < N_SEQS; i++)
        tiny_ok(tern_seq_new_plan(&s[i], e, i % N_PLANS, &err), &err);
    for (int step = 0; left; step++) {
        tern_step_item items[N_SEQS];
        int who[N_SEQS], n = fill_step(t, s, at, step, items, who);
        const float *logits;
        if (!n)
            continue;
        tiny_ok(tern_step(e, items, n, &logits, &err), &err);
        for (int j = 0; j < n; j++) {
            for (int r = 0; r < items[j].n_tokens; r++, logits += t->n_vocab)
                if (memcmp(logits, alone[who[j]] + (size_t)at[who[j]]++ * (size_t)t->n_vocab,
                           (size_t)t->n_vocab * sizeof(float)) != 0)
                    fail_msg("%s, %d threads: sequence %d differs at position %d", plans[who[j] % N_PLANS], threads,
                             who[j], at[who[j]] - 1);
            left -= at[who[j]] == LENGTH;
        }
    }
    tern_engine_close(&e);
}

static void test_mixed_batch_equals_alone(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++)
        for (int exact = 0; exact < 2; exact++) {
            struct tiny t;
            float *alone[N_SEQS];
#ifdef TERN_TEST_FEW /* each model with one arithmetic: sanitizers see the same code at the others */
            if (exact != (int)m % 2)
                continue;
#endif
            tiny_open(&t, models[m][0], models[m][1], models[m][0]);
            for (int i = 0; i < N_SEQS; i++)
                alone[i] = run_alone(&t, i, exact);
            for (int threads = 1; threads <= 3; threads += THREAD_STEP)
                check_mixed(&t, alone, exact, threads);
            for (int i = 0; i < N_SEQS; i++)
                free(alone[i]);
            tiny_close(&t);
        }
}

static void assert_rows(const struct tiny *t, const float *a, const float *b, int from, const char *what)
{
    for (int r = from; r < t->n_ids; r++)
        if (memcmp(a + (size_t)r * (size_t)t->n_vocab, b + (size_t)r * (size_t)t->n_vocab,
                   (size_t)t->n_vocab * sizeof *a) != 0)
            fail_msg("%s: position %d differs", what, r);
}

/* Fork, trim, save and load act on the plan of their sequence; a saved sequence finds its plan again. */
static void check_life(struct tiny *t, tern_engine *e, int plan, const char *path)
{
    enum { CUT = 70, FAR = 130 };
    tern_error err = {0};
    tern_seq *s, *fork, *loaded;
    float *want = tiny_buffer(t), *got = tiny_buffer(t);
    tern_engine *alone = tiny_engine(t, plans[plan], false, 1, 1, 192);
    tiny_ok(tern_seq_new(&s, alone, &err), &err);
    tiny_run(alone, s, t->ids, 0, CUT, 512, false, want, 0, t->n_vocab);
    tiny_run(alone, s, t->ids, CUT, t->n_ids, 1, true, want, 0, t->n_vocab);
    tern_engine_close(&alone);

    tiny_ok(tern_seq_new_plan(&s, e, plan, &err), &err);
    tiny_run(e, s, t->ids, 0, CUT, 512, false, got, 0, t->n_vocab);
    tiny_ok(tern_seq_save(s, path, &err), &err);
    tiny_ok(tern_seq_fork(&fork, s, &err), &err);
    tern_seq_free(s);
    tiny_run(e, fork, t->ids, CUT, FAR, 1, true, got, 0, t->n_vocab);
    tiny_ok(tern_seq_trim(fork, CUT, &err), &err); /* drops a closed page: its tokens are computed again */
    tiny_run(e, fork, t->ids, CUT, t->n_ids, 1, true, got, 0, t->n_vocab);
    assert_rows(t, got, want, CUT, plans[plan]);
    tiny_ok(tern_seq_load(&loaded, e, path, &err), &err);
    tiny_run(e, loaded, t->ids, CUT, t->n_ids, 1, true, got, 0, t->n_vocab);
    assert_rows(t, got, want, CUT, "restored");
    tern_seq_free(fork);
    tern_seq_free(loaded);
    tern_memory mem;
    tern_engine_memory(e, &mem);
    assert_int_equal(mem.kv_bytes, 0);
    free(want);
    free(got);
}

static void test_life_of_each_plan(void **state)
{
    (void)state;
    struct tiny t;
    char path[] = "/tmp/tern-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_engine *e = open_all(&t, false, 2, 2, 192);
    for (int plan = 0; plan < N_PLANS; plan++)
        check_life(&t, e, plan, path);
    tern_engine_close(&e);
    /* An engine without the plan refuses the file. */
    tern_error err = {0};
    tern_seq *s;
    const char *more[] = {"l4"};
    tern_engine_params p = {.kv = "f16", .more_kv = more, .n_more_kv = 1};
    tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
    assert_int_equal(tern_seq_load(&s, e, path, &err), TERN_EMISMATCH);
    assert_int_equal(err.code, TERN_EMISMATCH);
    assert_non_null(strstr(err.msg, plans[N_PLANS - 1]));
    assert_null(s);
    tern_engine_close(&e);
    (void)unlink(path);
    tiny_close(&t);
}

/* The report counts the sequences of all plans, and each at the price of its own. */
static void test_memory_sums_plans(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_memory alone[N_PLANS], sum = {0}, all;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    float *junk = tiny_buffer(&t);
    for (int i = 0; i < N_PLANS; i++) {
        tern_engine *e = tiny_engine(&t, plans[i], false, 1, 1, 192);
        tern_seq *s;
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_run(e, s, t.ids, 0, 150, 512, false, junk, 0, t.n_vocab);
        tern_engine_memory(e, &alone[i]);
        sum.kv_bytes += alone[i].kv_bytes;
        sum.kv_f16_bytes += alone[i].kv_f16_bytes;
        tern_engine_close(&e);
    }
    assert_true(alone[2].kv_bytes < alone[0].kv_bytes); /* l4 against f16 */
    tern_engine *e = open_all(&t, false, 1, N_PLANS, 192);
    for (int i = 0; i < N_PLANS; i++) {
        tern_seq *s;
        tiny_ok(tern_seq_new_plan(&s, e, i, &err), &err);
        tiny_run(e, s, t.ids, 0, 150, 512, false, junk, 0, t.n_vocab);
    }
    tern_engine_memory(e, &all);
    assert_int_equal(all.kv_bytes, sum.kv_bytes);
    assert_int_equal(all.kv_f16_bytes, sum.kv_f16_bytes);
    tern_engine_close(&e);
    free(junk);
    tiny_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_seq *s, *more;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_engine *e = open_all(&t, false, 1, 1, 16);
    assert_int_equal(tern_engine_n_plans(e), N_PLANS);
    assert_ptr_equal(tern_engine_plan_at(e, 0), tern_engine_plan(e));
    assert_null(tern_engine_plan_at(e, N_PLANS));
    assert_null(tern_engine_plan_at(e, -1));
    tern_kv_row row;
    tern_kv_plan_row(tern_engine_plan_at(e, 5), 0, &row);
    assert_string_equal(row.k, "f16");
    assert_string_equal(row.v, "l3");
    assert_int_equal(tern_seq_new_plan(&s, e, N_PLANS, &err), TERN_EINVAL);
    assert_int_equal(tern_seq_new_plan(&s, e, -1, &err), TERN_EINVAL);
    assert_null(s);
    tiny_ok(tern_seq_new_plan(&s, e, 3, &err), &err);
    assert_int_equal(tern_seq_new_plan(&more, e, 1, &err), TERN_ECAPACITY); /* max_seqs counts all plans */
    tern_engine_close(&e);
    const char *bad[] = {"l4", "l9"};
    tern_engine_params p = {.kv = "f16", .more_kv = bad, .n_more_kv = 2};
    assert_int_equal(tern_engine_open(&e, t.model, &p, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "l9"));
    p.n_more_kv = -1;
    assert_int_equal(tern_engine_open(&e, t.model, &p, &err), TERN_EINVAL);
    p.n_more_kv = 1000;
    assert_int_equal(tern_engine_open(&e, t.model, &p, &err), TERN_EINVAL);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixed_batch_equals_alone),
        cmocka_unit_test(test_life_of_each_plan),
        cmocka_unit_test(test_memory_sums_plans),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

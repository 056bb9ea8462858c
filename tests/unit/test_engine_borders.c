/* Prompts that part where messages end: models that cannot start at any page start again there. */
#include "loop_case.h"
#include "run/loop.h"
#include "served.h"

enum { CTX = 2000, TEXT = 1800, REPLY = 8 };

/* Windows; recurrent states; compressed rows beside a window; and one that starts at any page. */
static const char *const models[] = {"gemma3-w70", "qwen35", "deepseek4", "llama-tied"};
enum { N_MODELS = 4, ANYWHERE = 3 };

struct fixture {
    struct tiny t;
    tern_engine *e, *cold_e;
    tern_loop *loop, *cold; /* with a cache, without */
    tern_events *q;
    int32_t ids[TEXT], other[TEXT];
};

static tern_engine *open_engine(struct tiny *t, int seqs)
{
    tern_engine *e;
    tern_error err = {0};
    const tern_engine_params p = {.n_threads = 2, .max_seqs = seqs, .chunk = 200, .ctx = CTX, .kv = "t4"};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

static void set_up(struct fixture *f, const char *model, size_t cache_bytes)
{
    tern_error err = {0};
    print_message("%s\n", model);
    tiny_open(&f->t, model, model, model);
    f->t.model->net->desc.ctx = CTX; /* more than it says; no RoPE scaling depends on it */
    lc_random_ids(f->ids, TEXT, 11, f->t.n_vocab);
    for (int i = 0; i < TEXT; i++)
        f->other[i] = (f->ids[i] + 1) % f->t.n_vocab;
    f->e = open_engine(&f->t, 4);
    f->cold_e = open_engine(&f->t, 1);
    tiny_ok(tern_events_new(&f->q, &err), &err);
    tiny_ok(tern_loop_open(&f->loop, f->e, &(tern_loop_params){.cache_bytes = cache_bytes}, &err), &err);
    tiny_ok(tern_loop_open(&f->cold, f->cold_e, NULL, &err), &err);
}

static void tear_down(struct fixture *f)
{
    tern_loop_close(&f->loop);
    tern_loop_close(&f->cold);
    tern_events_free(f->q);
    lc_close_engine(&f->e);
    tern_engine_close(&f->cold_e);
    tiny_close(&f->t);
}

static tern_request request(const int32_t *ids, int n, const int32_t *borders, int n_borders)
{
    tern_request r = lc_greedy(ids, n, REPLY);
    r.borders = borders;
    r.n_borders = n_borders;
    return r;
}

/* Asks, and compares with cold to the last bit.  Returns the tokens that were found. */
static int check(struct fixture *f, const tern_request *r)
{
    struct lc_request *cold = lc_ask(f->cold, f->q, r), *got = lc_ask(f->loop, f->q, r);
    const struct lc_choice *a = &got->c[0], *b = &cold->c[0];
    const int found = got->end.n_cached;
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
    assert_memory_equal(a->logprob, b->logprob, (size_t)a->n * sizeof *a->logprob);
    free(cold);
    free(got);
    return found;
}

static tern_loop_stats stats_of(const struct fixture *f)
{
    tern_loop_stats s;
    tern_loop_get_stats(f->loop, &s);
    return s;
}

/* The first n tokens of one text, and then those of another. */
static const int32_t *part_at(struct fixture *f, int n)
{
    static int32_t ids[TEXT];
    memcpy(ids, f->ids, (size_t)n * sizeof *ids);
    memcpy(ids + n, f->other + n, (size_t)(TEXT - n) * sizeof *ids);
    return ids;
}

/* Instructions, a turn, another turn: who shares some of them starts where they part. */
static void test_last_common_border(void **state)
{
    static const int32_t borders[] = {300, 620, 930};
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        if (!served_or_said(models[m]))
            continue;
        struct fixture f;
        set_up(&f, models[m], (size_t)1 << 30);
        tern_request r = request(f.ids, 1000, borders, 3);
        assert_int_equal(check(&f, &r), 0);
        for (int i = 2; i >= 0; i--) {
            r = request(part_at(&f, borders[i]), 1000, borders, 3);
            assert_int_equal(check(&f, &r), m == ANYWHERE ? borders[i] / 64 * 64 : borders[i]);
            r.max_tokens = 1;
            assert_int_equal(check(&f, &r), 1000);
        }
        tear_down(&f);
    }
}

/* Of borders close to each other some are kept, the last one always. */
static void test_many_borders(void **state)
{
    int32_t borders[99];
    (void)state;
    for (int i = 0; i < 99; i++)
        borders[i] = 10 * (i + 1);
    for (int m = 0; m < ANYWHERE; m++) {
        if (!served_or_said(models[m]))
            continue;
        struct fixture f;
        set_up(&f, models[m], (size_t)1 << 30);
        tern_request r = request(f.ids, 1000, borders, 99);
        assert_int_equal(check(&f, &r), 0);
        r = request(part_at(&f, 990), 1100, borders, 99);
        assert_int_equal(check(&f, &r), 990);
        r = request(part_at(&f, 800), 1100, NULL, 0);
        assert_in_range(check(&f, &r), 800 - 270, 800);
        assert_true(stats_of(&f).steps < 40);
        tear_down(&f);
    }
}

/* An agent resends a prompt that grows; between its turns something short is asked, such as a title.  Every token of a
 * prompt is computed once, though the cache has little room beside the long prompt. */
static void test_replay(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        if (!served_or_said(models[m]))
            continue;
        struct fixture f;
        int32_t borders[8];
        size_t most = 0;
        for (int limited = 0; limited < 2; limited++) {
            set_up(&f, models[m], limited ? most * 3 / 4 : (size_t)1 << 30);
            uint64_t computed = 0;
            int title = 0;
            for (int turn = 0; turn < 6; turn++) {
                const int n = 400 + 210 * turn;
                for (int i = 0; i <= turn; i++)
                    borders[i] = 400 + 210 * i - 7;
                tern_request r = request(f.ids, n, borders, turn + 1);
                const int found = check(&f, &r);
                assert_int_equal(found, turn ? n - 210 : 0);
                computed += (uint64_t)(n - found);
                r = request(f.other + 40 * turn, 30, NULL, 0);
                title += 30 - check(&f, &r);
            }
            assert_int_equal(computed, 400 + 210 * 5);
            assert_int_equal(stats_of(&f).prompt_tokens, computed + (uint64_t)title);
            most = stats_of(&f).cache.bytes;
            print_message("   %zu bytes, %d entries, %d given up\n", most, (int)stats_of(&f).cache.entries,
                          (int)stats_of(&f).cache.evictions);
            assert_true((stats_of(&f).cache.evictions > 0) == limited);
            tear_down(&f);
        }
    }
}

static void test_bad_borders(void **state)
{
    static const int32_t bad[][3] = {{0, 10, 20}, {10, 10, 20}, {20, 10, 30}, {10, 20, 101}, {-1, 10, 20}};
    struct fixture f;
    (void)state;
    set_up(&f, "llama-tied", (size_t)1 << 30);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tern_error err = {0};
        uint64_t id;
        tern_request r = request(f.ids, 100, bad[i], 3);
        assert_int_equal(tern_loop_submit(f.loop, &r, f.q, NULL, &id, &err), TERN_EINVAL);
        assert_non_null(strstr(err.msg, "border"));
        r.n_borders = -1;
        assert_int_equal(tern_loop_submit(f.loop, &r, f.q, NULL, &id, &err), TERN_EINVAL);
    }
    static const int32_t whole[] = {50, 100};
    tern_request r = request(f.ids, 100, whole, 2);
    (void)check(&f, &r);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_last_common_border),
        cmocka_unit_test(test_many_borders),
        cmocka_unit_test(test_replay),
        cmocka_unit_test(test_bad_borders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Steps that fail midway, after rows were written: what is computed again has the bits that it would have had. */
#include "loop_case.h"
#include "base/err.h"
#include "run/run.h"

static int32_t ids[400];
static int n_asked, fails_at;

/* The first time that a step's end is asked for after `fails_at` others, the device has failed. */
static int fails_once(struct tern_dev *d, bool keep, tern_error *err)
{
    (void)d;
    if (keep || ++n_asked != fails_at)
        return 0;
    return tern_err_set(err, TERN_EIO, "a reader has failed");
}

static void ask(tern_engine *e, const tern_request *r, struct lc_request **rec, int n)
{
    tern_error err = {0};
    tern_events *q;
    tern_loop *l;
    uint64_t id;
    tiny_ok(tern_events_new(&q, &err), &err);
    tiny_ok(tern_loop_open(&l, e, &(tern_loop_params){.cache_bytes = (size_t)1 << 30}, &err), &err);
    n_asked = 0;
    for (int i = 0; i < n; i++) {
        rec[i] = lc_new();
        tiny_ok(tern_loop_submit(l, &r[i], q, rec[i], &id, &err), &err);
    }
    lc_wait(q, rec, n);
    tern_loop_close(&l);
    tern_events_free(q);
}

static void check_model(const char *name)
{
    enum { REQUESTS = 3 };
    struct tiny t;
    tern_error err = {0};
    tern_request r[REQUESTS];
    struct lc_request *want[REQUESTS], *got[REQUESTS];
    tern_engine *e;
    tiny_open(&t, name, name, name);
    lc_random_ids(ids, 400, 5, tern_model_get_info(t.model)->n_vocab);
    for (int i = 0; i < REQUESTS; i++) {
        r[i] = lc_greedy(ids + 40 * i, 150 - 20 * i, 70);
        r[i].n_choices = 1 + (i == 1);
    }
    const tern_engine_params p = {.n_threads = 2, .max_seqs = 4, .chunk = 70, .kv = "t4"};
    tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
    const struct tern_dev_ops *whole = e->dev->ops;
    struct tern_dev_ops broken = *whole;
    broken.fault = fails_once;
    e->dev->ops = &broken;
    fails_at = 0;
    ask(e, r, want, REQUESTS);
    const int steps = n_asked;
    assert_true(steps > 70);
    for (fails_at = 1; fails_at <= steps; fails_at += fails_at < 12 ? 1 : 11) {
        ask(e, r, got, REQUESTS);
        for (int i = 0; i < REQUESTS; i++) {
            if (got[i]->rc)
                fail_msg("%s, step %d: request %d: %s", name, fails_at, i, got[i]->message);
            for (int k = 0; k < r[i].n_choices; k++)
                if (got[i]->c[k].n != want[i]->c[k].n ||
                    memcmp(got[i]->c[k].logprob, want[i]->c[k].logprob, (size_t)want[i]->c[k].n * sizeof(double)) != 0)
                    fail_msg("%s, step %d: request %d has other bits", name, fails_at, i);
            free(got[i]);
        }
    }
    for (int i = 0; i < REQUESTS; i++)
        free(want[i]);
    e->dev->ops = whole;
    lc_close_engine(&e);
    tiny_close(&t);
}

static void test_loop(void **state)
{
    (void)state;
    check_model("llama-tied");
    check_model("gemma3-w8");
    check_model("qwen35");
    check_model("deepseek4-grid");
}

static int always(struct tern_dev *d, bool keep, tern_error *err)
{
    (void)d;
    return keep ? 0 : tern_err_set(err, TERN_EIO, "a reader has failed");
}

/* A fault that stays ends requests with its own words; a sequence that was torn is refused everywhere, and freed. */
static void test_for_good(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_engine *e;
    tern_seq *s, *fork;
    struct lc_request *got;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    lc_random_ids(ids, 400, 5, tern_model_get_info(t.model)->n_vocab);
    const tern_engine_params p = {.n_threads = 2, .max_seqs = 2, .chunk = 70, .kv = "t4"};
    tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
    const struct tern_dev_ops *whole = e->dev->ops;
    struct tern_dev_ops broken = *whole;
    broken.fault = always;
    e->dev->ops = &broken;
    const tern_request r = lc_greedy(ids, 100, 8);
    ask(e, &r, &got, 1);
    assert_int_equal(got->rc, TERN_EIO);
    assert_non_null(strstr(got->message, "a reader has failed"));
    free(got);
    e->dev->ops = whole;
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tern_step_item it = {.seq = s, .tokens = ids, .n_tokens = 70};
    tiny_ok(tern_step(e, &it, 1, NULL, &err), &err);
    e->dev->ops = &broken;
    it.n_tokens = 1;
    assert_int_equal(tern_step(e, &it, 1, NULL, &err), TERN_EIO);
    e->dev->ops = whole;
    tiny_ok(tern_step(e, &it, 1, NULL, &err), &err); /* one row lies behind the sequence */
    assert_int_equal(tern_seq_length(s), 71);
    e->dev->ops = &broken;
    it.n_tokens = 60;
    assert_int_equal(tern_step(e, &it, 1, NULL, &err), TERN_EIO);
    e->dev->ops = whole;
    assert_int_equal(tern_step(e, &it, 1, NULL, &err), TERN_EINVAL);
    assert_int_equal(tern_seq_trim(s, 64, &err), TERN_EINVAL);
    assert_int_equal(tern_seq_fork(&fork, s, &err), TERN_EINVAL);
    assert_int_equal(tern_seq_save(s, "/tmp/tern-never", &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "failed midway"));
    tern_seq_free(s);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    it.seq = s;
    tiny_ok(tern_step(e, &it, 1, NULL, &err), &err);
    tern_seq_free(s);
    lc_close_engine(&e);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loop), cmocka_unit_test(test_for_good)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

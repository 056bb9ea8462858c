/* Steps that fail midway, after rows were written: what is computed again has the bits that it would have had. */
#include "loop_case.h"
#include "base/err.h"
#include "run/run.h"

static int32_t ids[400];
static int n_asked, fails_at, fails_again;

/* The step's end is asked for the n-th time, and the device has failed. */
static int fails_once(struct tern_dev *d, bool keep, tern_error *err)
{
    (void)d;
    if (keep || (++n_asked != fails_at && n_asked != fails_again))
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

/* draft: replies are guessed, for prompts say everything twice. */
static void check_model(const char *name, const char *draft)
{
    enum { REQUESTS = 3 };
    struct tiny t;
    tern_error err = {0};
    tern_request r[REQUESTS];
    struct lc_request *want[REQUESTS], *got[REQUESTS];
    tern_engine *e;
    tiny_open(&t, name, name, name);
    lc_random_ids(ids, 400, 5, tern_model_get_info(t.model)->n_vocab);
    for (int i = 0; i < 400 && draft; i++)
        ids[i] = ids[i % 30];
    fails_again = 0;
    for (int i = 0; i < REQUESTS; i++) {
        r[i] = lc_greedy(ids + 40 * i, 150 - 20 * i, 70);
        r[i].n_choices = 1 + (i == 1);
    }
    const tern_engine_params p = {.n_threads = 2, .max_seqs = 4, .chunk = 70, .kv = "t4", .draft = draft};
    tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
    const struct tern_dev_ops *whole = e->dev->ops;
    struct tern_dev_ops broken = *whole;
    broken.fault = fails_once;
    e->dev->ops = &broken;
    fails_at = 0;
    ask(e, r, want, REQUESTS);
    const int steps = n_asked;
    assert_true(steps > 10);
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
    check_model("llama-tied", NULL);
    check_model("llama-tied", "ngram");
    check_model("gemma3-w8", NULL);
    check_model("qwen35", NULL);
    check_model("deepseek4-grid", NULL);
}

/* A prompt beside a reply, and two steps that fail: whoever ends has the device's words, and the other goes on. */
static void test_twice(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_engine *e;
    struct lc_request *want[2], *got[2];
    int failed = 0;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    lc_random_ids(ids, 400, 5, tern_model_get_info(t.model)->n_vocab);
    const tern_request r[2] = {lc_greedy(ids, 10, 60), lc_greedy(ids + 50, 150, 4)};
    const tern_engine_params p = {.n_threads = 2, .max_seqs = 4, .chunk = 70, .kv = "t4"};
    tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
    const struct tern_dev_ops *whole = e->dev->ops;
    struct tern_dev_ops broken = *whole;
    broken.fault = fails_once;
    e->dev->ops = &broken;
    fails_at = fails_again = 0;
    ask(e, r, want, 2);
    for (fails_at = 1; fails_at < 8; fails_at++)
        for (fails_again = fails_at + 1; fails_again < 14; fails_again++) {
            ask(e, r, got, 2);
            for (int i = 0; i < 2; i++) {
                failed += got[i]->rc != 0;
                if (got[i]->rc && (got[i]->rc != TERN_EIO || !strstr(got[i]->message, "a reader has failed")))
                    fail_msg("request %d: %d, %s", i, got[i]->rc, got[i]->message);
                assert_memory_equal(got[i]->c[0].ids, want[i]->c[0].ids, (size_t)got[i]->c[0].n * sizeof(int32_t));
                assert_true(got[i]->rc || got[i]->c[0].n == want[i]->c[0].n);
                free(got[i]);
            }
        }
    assert_true(failed > 0);
    fails_at = fails_again = 0;
    free(want[0]);
    free(want[1]);
    e->dev->ops = whole;
    lc_close_engine(&e);
    tiny_close(&t);
}

static tern_engine *watched;
static int fails_pos; /* steps with a row at this position fail, each time */

static int fails_there(struct tern_dev *d, bool keep, tern_error *err)
{
    bool there = false;
    (void)d;
    for (int i = 0; !keep && i < watched->chunk; i++) {
        there |= watched->rows[i].pos == fails_pos;
        watched->rows[i].pos = -1; /* of this step, not of the next */
    }
    return there ? tern_err_set(err, TERN_EIO, "a reader has failed") : 0;
}

/* One request's row fails whenever it is computed: that request ends, in its prompt or its reply, and no other. */
static void check_guilty(const char *name, const char *draft)
{
    enum { REQUESTS = 3, GUILTY = 1 };
    struct tiny t;
    tern_error err = {0};
    tern_request r[REQUESTS];
    struct lc_request *want[REQUESTS], *got[REQUESTS];
    tiny_open(&t, name, name, name);
    lc_random_ids(ids, 400, 5, tern_model_get_info(t.model)->n_vocab);
    for (int i = 0; i < 400 && draft; i++)
        ids[i] = ids[i % 30];
    for (int i = 0; i < REQUESTS; i++)
        r[i] = lc_greedy(ids + 40 * i, i == GUILTY ? 180 : 20 + 10 * i, i == GUILTY ? 100 : 90);
    r[2].n_choices = 2;
    const tern_engine_params p = {.n_threads = 2, .max_seqs = 4, .chunk = 70, .kv = "t4", .draft = draft};
    tiny_ok(tern_engine_open(&watched, t.model, &p, &err), &err);
    const struct tern_dev_ops *whole = watched->dev->ops;
    struct tern_dev_ops broken = *whole;
    broken.fault = fails_there;
    watched->dev->ops = &broken;
    fails_pos = -2;
    ask(watched, r, want, REQUESTS);
    for (fails_pos = 140; fails_pos < 260; fails_pos += 20) {
        ask(watched, r, got, REQUESTS);
        for (int i = 0; i < REQUESTS; i++) {
            if ((got[i]->rc != 0) != (i == GUILTY))
                fail_msg("%s, row %d: request %d: %d, %s", name, fails_pos, i, got[i]->rc, got[i]->message);
            for (int k = 0; k < r[i].n_choices && i != GUILTY; k++) {
                assert_int_equal(got[i]->c[k].n, want[i]->c[k].n);
                assert_memory_equal(got[i]->c[k].logprob, want[i]->c[k].logprob,
                                    (size_t)want[i]->c[k].n * sizeof(double));
            }
        }
        assert_int_equal(got[GUILTY]->rc, TERN_EIO);
        assert_non_null(strstr(got[GUILTY]->message, "a reader has failed"));
        for (int i = 0; i < REQUESTS; i++)
            free(got[i]);
    }
    for (int i = 0; i < REQUESTS; i++)
        free(want[i]);
    watched->dev->ops = whole;
    lc_close_engine(&watched);
    tiny_close(&t);
}

static void test_guilty(void **state)
{
    (void)state;
    check_guilty("llama-tied", NULL);
    check_guilty("llama-tied", "ngram");
    check_guilty("qwen35", NULL);
}

/* A row that failed behind a page which has just closed is forgotten when a trim goes back into that page. */
static void test_trim(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_engine *e;
    tern_seq *s;
    const float *logits;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    const size_t bytes = (size_t)t.n_vocab * sizeof(float);
    float *want = malloc(bytes);
    lc_random_ids(ids, 400, 5, t.n_vocab);
    const tern_engine_params p = {.n_threads = 2, .chunk = 70, .kv = "t4"};
    tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
    const struct tern_dev_ops *whole = e->dev->ops;
    struct tern_dev_ops broken = *whole;
    broken.fault = fails_once;
    e->dev->ops = &broken;
    for (int fails = 0; fails < 2; fails++) {
        tern_step_item it[] = {{.tokens = ids, .n_tokens = 64},
                               {.tokens = ids + 100, .n_tokens = 1, .decode = true},
                               {.tokens = ids + 40, .n_tokens = 1, .decode = true, .logits = TERN_LOGITS_LAST}};
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        it[0].seq = it[1].seq = it[2].seq = s;
        tiny_ok(tern_step(e, &it[0], 1, NULL, &err), &err);
        fails_at = fails ? n_asked + 1 : 0;
        assert_int_equal(fails ? tern_step(e, &it[1], 1, NULL, &err) : TERN_EIO, TERN_EIO);
        tiny_ok(tern_seq_trim(s, 40, &err), &err);
        tiny_ok(tern_step(e, &it[2], 1, &logits, &err), &err);
        if (fails)
            assert_memory_equal(logits, want, bytes);
        else
            memcpy(want, logits, bytes);
        tern_seq_free(s);
    }
    free(want);
    e->dev->ops = whole;
    tern_engine_close(&e);
    tiny_close(&t);
}

/* A trim that fails while it computes again leaves a sequence that nobody can take for a shorter one. */
static void test_trim_fails(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_engine *e;
    tern_seq *s;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    lc_random_ids(ids, 400, 5, t.n_vocab);
    const tern_engine_params p = {.n_threads = 2, .chunk = 1, .kv = "t4"};
    tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
    const struct tern_dev_ops *whole = e->dev->ops;
    struct tern_dev_ops broken = *whole;
    broken.fault = fails_once;
    e->dev->ops = &broken;
    fails_again = 0;
    for (int fails = 1; fails <= 4; fails++) { /* the first steps of those that compute 64..98 again */
        n_asked = 0;
        fails_at = 0;
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_ok(tern_prefill(e, s, ids, 200, NULL, NULL, NULL, &err), &err);
        fails_at = n_asked + fails;
        assert_int_equal(tern_seq_trim(s, 99, &err), TERN_EIO);
        fails_at = 0;
        const tern_step_item it = {.seq = s, .tokens = ids, .n_tokens = 1};
        assert_int_equal(tern_step(e, &it, 1, NULL, &err), TERN_EINVAL);
        assert_int_equal(tern_seq_trim(s, 10, &err), TERN_EINVAL);
        assert_non_null(strstr(err.msg, "it can only be freed"));
        tern_seq_free(s);
    }
    e->dev->ops = whole;
    lc_close_engine(&e);
    tiny_close(&t);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_loop),       cmocka_unit_test(test_twice),
                                       cmocka_unit_test(test_guilty),     cmocka_unit_test(test_trim),
                                       cmocka_unit_test(test_trim_fails), cmocka_unit_test(test_for_good)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

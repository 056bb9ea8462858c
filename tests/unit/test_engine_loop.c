/* Loops of requests: each gets what it would get alone, whatever comes and goes beside it. */
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>
#include "loop_case.h"
#include "base/err.h"
#include "run/loop.h"

static const char *const more[] = {"f16", "k=q8,v=l3"};

static tern_engine *open_engine(struct tiny *t, int threads, int seqs, int chunk, size_t kv_bytes)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {.n_threads = threads,
                            .max_seqs = seqs,
                            .chunk = chunk,
                            .kv = "t4",
                            .more_kv = more,
                            .n_more_kv = 2,
                            .kv_bytes = kv_bytes};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

struct fixture {
    struct tiny t;
    tern_engine *e, *alone;
    tern_loop *loop;
    tern_events *q;
};

static void set_up_within(struct fixture *f, const char *model, int seqs, int chunk, size_t kv_bytes,
                          const tern_loop_params *p)
{
    tern_error err = {0};
    tiny_open(&f->t, model, model, model);
    f->e = open_engine(&f->t, 2, seqs, chunk, kv_bytes);
    f->alone = open_engine(&f->t, 1, 1, 0, 0);
    tiny_ok(tern_events_new(&f->q, &err), &err);
    tiny_ok(tern_loop_open(&f->loop, f->e, p, &err), &err);
}

static void set_up(struct fixture *f, const char *model, int seqs, int chunk, const tern_loop_params *p)
{
    set_up_within(f, model, seqs, chunk, 0, p);
}

/* Everything is given back. */
static void tear_down(struct fixture *f)
{
    tern_event e;
    tern_loop_close(&f->loop);
    assert_false(tern_events_next(f->q, &e, 0));
    tern_events_free(f->q);
    lc_close_engine(&f->e);
    tern_engine_close(&f->alone);
    tiny_close(&f->t);
}

static tern_request plain(const struct fixture *f, int n_prompt, int max_tokens)
{
    tern_request r;
    tern_request_defaults(&r);
    r.prompt = f->t.ids;
    r.n_prompt = n_prompt;
    r.max_tokens = max_tokens;
    r.logprobs = 0;
    return r;
}

static void submit(struct fixture *f, const tern_request *r, struct lc_request *rec)
{
    tern_error err = {0};
    uint64_t id;
    tiny_ok(tern_loop_submit(f->loop, r, f->q, rec, &id, &err), &err);
    assert_true(id > 0);
}

static void finish(struct fixture *f, struct lc_request *rec)
{
    lc_wait(f->q, &rec, 1);
}

/* A choice that came to its end has all tokens of its single run, one that was cut off has the first of them. */
static void check_choice(struct fixture *f, const tern_request *r, const struct lc_request *rec, int k)
{
    int32_t want[LC_TOKENS];
    const struct lc_choice *c = &rec->c[k];
    int n = lc_alone(f->alone, r, k, want);
    if (c->n > n || memcmp(c->ids, want, (size_t)c->n * sizeof *want) != 0)
        fail_msg("request %d, choice %d: other tokens than alone", (int)rec->id, k);
    if (rec->rc == 0 && c->end.finish != TERN_FINISH_CONTEXT) /* what a limit of memory makes shorter */
        assert_int_equal(c->n, n);
    if (c->over)
        assert_int_equal(c->end.n_generated, c->n);
}

static void check_request(struct fixture *f, const tern_request *r, const struct lc_request *rec)
{
    int sum = 0;
    assert_int_equal(rec->ends, 1);
    assert_true(rec->rc == 0 || rec->rc == TERN_ECANCELLED);
    for (int k = 0; k < r->n_choices; k++) {
        assert_true(rec->c[k].over || rec->starts == 0);
        check_choice(f, r, rec, k);
        sum += rec->c[k].n;
    }
    assert_int_equal(rec->end.n_generated, sum);
    assert_int_equal(rec->end.n_prompt, r->n_prompt);
    if (rec->rc == 0)
        assert_int_equal(rec->done, r->n_prompt);
}

/* ---- joins, leaves, cancels -------------------------------------------------------------------------------------- */

#ifdef TERN_TEST_FEW
enum { N_REQUESTS = 24 }; /* more are the same code in another order */
#else
enum { N_REQUESTS = 60 };
#endif

static void draw_request(struct fixture *f, struct tern_rng *g, tern_request *r)
{
    static const int lengths[] = {1, 2, 63, 64, 65, 128};
    tern_request_defaults(r);
    int n = tern_rng_u64(g) % 3 ? lengths[tern_rng_u64(g) % 6] : 1 + (int)(tern_rng_u64(g) % (uint64_t)f->t.n_ids);
    n = n < f->t.n_ids ? n : f->t.n_ids;
    r->prompt = f->t.ids + tern_rng_u64(g) % (uint64_t)(f->t.n_ids - n + 1);
    r->n_prompt = n;
    r->max_tokens = tern_rng_u64(g) % 8 ? (int)(tern_rng_u64(g) % 70) : 0;
    r->plan = (int)(tern_rng_u64(g) % 3);
    r->n_choices = tern_rng_u64(g) % 3 ? 1 : 1 + (int)(tern_rng_u64(g) % 3);
    r->logprobs = 0;
    r->priority = (int)(tern_rng_u64(g) % 3);
    r->fair_key = tern_rng_u64(g) % 4;
    r->sampler.temperature = tern_rng_u64(g) % 2 ? 0.8f : 0;
    r->sampler.top_p = tern_rng_u64(g) % 2 ? 0.9f : 1;
    r->sampler.repetition_penalty = tern_rng_u64(g) % 3 ? 1 : 1.2f;
    r->sampler.seed = tern_rng_u64(g) % 1000;
}

/* Submits and cancels at random, receiving in between. */
static void run_random(const char *model, uint64_t seed, int seqs, int chunk, size_t kv_bytes, int reply_tokens)
{
    struct fixture f;
    struct tern_rng g = {seed};
    tern_request r[N_REQUESTS];
    struct lc_request *rec[N_REQUESTS];
    uint64_t ids[N_REQUESTS];
    tern_loop_stats stats;
    int n = 0;
    print_message("%s, seed %d, %d sequences, steps of %d rows\n", model, (int)seed, seqs, chunk);
    set_up_within(&f, model, seqs, chunk, kv_bytes, &(tern_loop_params){.reply_tokens = reply_tokens});
    while (n < N_REQUESTS) {
        tern_event e;
        tern_error err = {0};
        if (tern_rng_u64(&g) % 2) {
            rec[n] = lc_new();
            int rc;
            do {
                draw_request(&f, &g, &r[n]);
                rc = tern_loop_submit(f.loop, &r[n], f.q, rec[n], &ids[n], &err);
            } while (rc == TERN_ELIMIT); /* would never fit */
            tiny_ok(rc, &err);
            n++;
        }
        if (n && tern_rng_u64(&g) % 6 == 0)
            tern_loop_cancel(f.loop, ids[tern_rng_u64(&g) % (uint64_t)n]);
        for (int i = (int)(tern_rng_u64(&g) % 20); i > 0 && tern_events_next(f.q, &e, 20); i--)
            lc_note(&e);
        tern_loop_get_stats(f.loop, &stats);
        assert_int_equal(stats.kv_most, kv_bytes);
        assert_true(!kv_bytes || stats.kv_reserved <= kv_bytes);
        assert_true(stats.memory.kv_bytes + stats.memory.state_bytes <= stats.kv_most || !kv_bytes);
    }
    lc_wait(f.q, rec, n);
    assert_true(tern_loop_drain(f.loop, -1));
    tern_loop_get_stats(f.loop, &stats);
    assert_int_equal(stats.submitted, N_REQUESTS);
    assert_int_equal(stats.finished + stats.cancelled, N_REQUESTS);
    assert_int_equal(stats.kv_reserved, 0);
    for (int i = 0; i < n; i++) {
        check_request(&f, &r[i], rec[i]);
        free(rec[i]);
    }
    tear_down(&f);
}

static void test_random_joins(void **state)
{
    static const char *const models[] = {"llama-tied", "gemma3-w8", "deepseek2-lite", "qwen35"};
#ifdef TERN_TEST_FEW /* takes minutes, and each model needs only one of the two ways for all code to be seen */
    const bool both = false;
#else
    const bool both = true;
#endif
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        if (both || m % 3)
            run_random(models[m], 100 + m, 5, 0, 0, 0);
        if (both || m % 3 == 0)
            run_random(models[m], 200 + m, 8, 24, 800000, m % 2 ? 0 : 1);
    }
}

/* ---- many who ask ------------------------------------------------------------------------------------------------ */

enum { N_ASKERS = 3, N_EACH = 16 };

struct asker {
    struct fixture *f;
    uint64_t seed;
    tern_request r[N_EACH];
    struct lc_request *rec[N_EACH];
    bool failed;
};

static void *ask(void *arg)
{
    struct asker *a = arg;
    struct tern_rng g = {a->seed};
    tern_events *q;
    tern_error err = {0};
    if (tern_events_new(&q, &err) < 0)
        return NULL;
    a->failed = false;
    for (int i = 0; i < N_EACH; i++) {
        uint64_t id;
        tern_event e;
        tern_loop_stats stats;
        a->rec[i] = lc_new();
        draw_request(a->f, &g, &a->r[i]);
        a->failed |= tern_loop_submit(a->f->loop, &a->r[i], q, a->rec[i], &id, &err) < 0;
        if (tern_rng_u64(&g) % 4 == 0)
            tern_loop_cancel(a->f->loop, id);
        (void)tern_loop_position(a->f->loop, id);
        tern_loop_get_stats(a->f->loop, &stats);
        while (tern_rng_u64(&g) % 8 && tern_events_next(q, &e, 1))
            lc_note(&e);
    }
    lc_wait(q, a->rec, N_EACH);
    tern_events_free(q);
    return NULL;
}

/* Threads with queues of their own submit, cancel and look at once. */
static void test_many_who_ask(void **state)
{
    (void)state;
    struct fixture f;
    struct asker a[N_ASKERS];
    pthread_t thread[N_ASKERS];
    set_up(&f, "llama-tied", 4, 48, NULL);
    for (int i = 0; i < N_ASKERS; i++) {
        a[i] = (struct asker){.f = &f, .seed = 300 + (uint64_t)i, .failed = true};
        assert_int_equal(pthread_create(&thread[i], NULL, ask, &a[i]), 0);
    }
    for (int i = 0; i < N_ASKERS; i++)
        (void)pthread_join(thread[i], NULL);
    for (int i = 0; i < N_ASKERS; i++) {
        assert_false(a[i].failed);
        for (int k = 0; k < N_EACH; k++) {
            check_request(&f, &a[i].r[k], a[i].rec[k]);
            free(a[i].rec[k]);
        }
    }
    tear_down(&f);
}

/* ---- the queue --------------------------------------------------------------------------------------------------- */

/* A constraint that holds its request until it is let go: for so many tokens, or for good. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t open;
    int asked, most;
};

static int gate_allow(void *state, uint32_t *mask, tern_error *err)
{
    struct gate *g = state;
    (void)err;
    (void)pthread_mutex_lock(&g->lock);
    g->asked++;
    while (g->asked > g->most)
        (void)pthread_cond_wait(&g->open, &g->lock);
    (void)pthread_mutex_unlock(&g->lock);
    memset(mask, 0xFF, 40); /* 320 ids */
    return 0;
}

static int gate_accept(void *state, int32_t id, tern_error *err)
{
    (void)state, (void)id, (void)err;
    return 0;
}

static void *gate_fork(void *state)
{
    return state;
}

static void gate_free(void *state)
{
    (void)state;
}

static void gate_let(struct gate *g, int tokens)
{
    (void)pthread_mutex_lock(&g->lock);
    g->most = tokens;
    (void)pthread_cond_broadcast(&g->open);
    (void)pthread_mutex_unlock(&g->lock);
}

static void gate_open(struct gate *g)
{
    gate_let(g, INT_MAX);
}

static void gate_set(struct gate *g, tern_request *r)
{
    *g = (struct gate){.lock = PTHREAD_MUTEX_INITIALIZER, .open = PTHREAD_COND_INITIALIZER};
    r->constraint = (tern_constraint){g, gate_allow, gate_accept, gate_fork, gate_free};
}

/* Waits until the request is running, that is, held. */
static void wait_running(struct fixture *f)
{
    tern_loop_stats s;
    do {
        (void)usleep(1000);
        tern_loop_get_stats(f->loop, &s);
    } while (s.waiting || s.running != 1);
}

static void test_queue_is_bounded_and_fair(void **state)
{
    (void)state;
    struct fixture f;
    struct gate gate;
    tern_error err = {0};
    uint64_t id[8];
    struct lc_request *rec[8];
    /* key, priority; the order in which they are to run, after the first */
    static const int who[7][2] = {{1, 0}, {1, 0}, {1, 0}, {1, 0}, {2, 0}, {3, 5}, {2, 0}};
    static const int place[7] = {-1, 2, 4, 5, 1, 0, 3};
    set_up(&f, "llama-tied", 1, 64, &(tern_loop_params){.max_waiting = 6, .max_waiting_per_key = 4});
    for (int i = 0; i < 7; i++) {
        tern_request r = plain(&f, 4, 3);
        r.fair_key = (uint64_t)who[i][0];
        r.priority = who[i][1];
        if (i == 0)
            gate_set(&gate, &r);
        rec[i] = lc_new();
        tiny_ok(tern_loop_submit(f.loop, &r, f.q, rec[i], &id[i], &err), &err);
        if (i == 0)
            wait_running(&f);
    }
    tern_request r = plain(&f, 4, 3);
    assert_int_equal(tern_loop_submit(f.loop, &r, f.q, NULL, &id[7], &err), TERN_ECAPACITY);
    assert_non_null(strstr(err.msg, "6 requests are waiting"));
    assert_true(tern_loop_retry_after(f.loop) >= 1);
    for (int i = 0; i < 7; i++)
        assert_int_equal(tern_loop_position(f.loop, id[i]), place[i]);
    gate_open(&gate);
    lc_wait(f.q, rec, 7);
    /* The priority first; then in turns, key 1 after key 2, because it has had one. */
    static const int order[7] = {0, 5, 4, 1, 6, 2, 3};
    for (int i = 1; i < 7; i++)
        assert_true(rec[order[i - 1]]->turn < rec[order[i]]->turn);
    for (int i = 0; i < 7; i++)
        free(rec[i]);
    tear_down(&f);
}

static void test_one_asker_does_not_fill_the_queue(void **state)
{
    (void)state;
    struct fixture f;
    struct gate gate;
    tern_error err = {0};
    uint64_t id;
    struct lc_request *rec[3] = {lc_new(), lc_new(), lc_new()};
    set_up(&f, "llama-tied", 1, 64, &(tern_loop_params){.max_waiting = 8, .max_waiting_per_key = 1});
    tern_request r = plain(&f, 4, 1);
    r.fair_key = 7;
    gate_set(&gate, &r);
    submit(&f, &r, rec[0]);
    wait_running(&f);
    r.constraint.allow = NULL;
    submit(&f, &r, rec[1]);
    assert_int_equal(tern_loop_submit(f.loop, &r, f.q, NULL, &id, &err), TERN_ECAPACITY);
    assert_non_null(strstr(err.msg, "1 of your requests"));
    r.fair_key = 8;
    submit(&f, &r, rec[2]);
    gate_open(&gate);
    lc_wait(f.q, rec, 3);
    for (int i = 0; i < 3; i++)
        free(rec[i]);
    tear_down(&f);
}

/* What can never fit is refused at once; what fits only alone waits until it is. */
static void test_room(void **state)
{
    (void)state;
    struct fixture f;
    tern_error err = {0};
    uint64_t id;
    struct lc_request *rec[4];
    set_up(&f, "llama-tied", 4, 64, &(tern_loop_params){.kv_bytes = 150000});
    tern_request r = plain(&f, 100, 60);
    r.plan = 1;
    for (int i = 0; i < 4; i++) {
        rec[i] = lc_new();
        submit(&f, &r, rec[i]);
    }
    r.n_choices = 4;
    r.max_tokens = -1;
    assert_int_equal(tern_loop_submit(f.loop, &r, f.q, NULL, &id, &err), TERN_ELIMIT);
    assert_non_null(strstr(err.msg, "150000"));
    r = plain(&f, 100, 60);
    r.plan = 1;
    lc_wait(f.q, rec, 4);
    for (int i = 0; i < 4; i++) {
        check_request(&f, &r, rec[i]);
        free(rec[i]);
    }
    tear_down(&f);
}

/* Replies that grow beyond the room that there is: some give up their pages, all get the tokens that they get alone. */
static void test_preemption(void **state)
{
    static const char *const models[] = {"llama-tied", "gemma3-w8", "deepseek2-lite", "qwen35"};
    enum { N = 6 };
    uint64_t preempted = 0;
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct fixture f;
        struct lc_request *rec[N];
        tern_request r[N];
        tern_loop_stats stats;
        set_up(&f, models[m], 8, 48, NULL);
        r[0] = plain(&f, 70, 150);
        /* Room for less than three of them, by what the loop itself counts. */
        struct tern_request_run one = {.r = r[0]};
        f.loop->p.reply_tokens = 150;
        one.r.n_choices = 3;
        tern_room_of_new(f.loop, &one);
        tear_down(&f);
        set_up(&f, models[m], 8, 48, &(tern_loop_params){.kv_bytes = one.reserve, .reply_tokens = 1});
        for (int i = 0; i < N; i++) {
            r[i] = plain(&f, 30 + 7 * i, i % 2 ? 120 : 150);
            r[i].n_choices = i == 2 ? 2 : 1;
            r[i].sampler.temperature = i % 2 ? 0.8f : 0;
            r[i].sampler.seed = (uint64_t)i;
            r[i].ignore_eos = true;
            rec[i] = lc_new();
            submit(&f, &r[i], rec[i]);
        }
        lc_wait(f.q, rec, N);
        tern_loop_get_stats(f.loop, &stats);
        print_message("%s: %d times preempted\n", models[m], (int)stats.preempted);
        assert_int_equal(stats.kv_reserved, 0);
        preempted += stats.preempted;
        for (int i = 0; i < N; i++) {
            assert_int_equal(rec[i]->rc, 0);
            check_request(&f, &r[i], rec[i]);
            free(rec[i]);
        }
        tear_down(&f);
    }
    assert_true(preempted > 0);
}

/* What fits by no means alone ends where the room does. */
static void test_reply_without_end(void **state)
{
    (void)state;
    struct fixture f;
    int32_t want[LC_TOKENS];
    struct lc_request *rec = lc_new();
    set_up(&f, "llama-tied", 2, 64, &(tern_loop_params){.kv_bytes = 100000});
    tern_request r = plain(&f, 70, -1);
    r.ignore_eos = true;
    submit(&f, &r, rec);
    finish(&f, rec);
    assert_int_equal(rec->rc, 0);
    assert_int_equal(rec->c[0].end.finish, TERN_FINISH_CONTEXT);
    r.max_tokens = rec->c[0].n;
    print_message("%d tokens\n", rec->c[0].n);
    assert_true(rec->c[0].n > 0 && rec->c[0].n < tern_engine_ctx(f.e) - 70);
    assert_int_equal(lc_alone(f.alone, &r, 0, want), rec->c[0].n);
    assert_memory_equal(want, rec->c[0].ids, (size_t)rec->c[0].n * sizeof *want);
    free(rec);
    tear_down(&f);
}

/* A receiver that does not read stops its own requests, and theirs alone; reading lets them go on. */
static void test_unread(void **state)
{
    (void)state;
    struct fixture f;
    tern_error err = {0};
    tern_events *lazy;
    uint64_t id;
    struct lc_request *slow = lc_new(), *quick = lc_new();
    set_up(&f, "llama-tied", 3, 64, &(tern_loop_params){.unread_bytes = 4096});
    tern_request r = plain(&f, 20, 100);
    r.ignore_eos = true;
    tiny_ok(tern_events_new(&lazy, &err), &err);
    tiny_ok(tern_loop_submit(f.loop, &r, lazy, slow, &id, &err), &err);
    while (tern_events_bytes(lazy) <= 4096)
        ;
    submit(&f, &r, quick);
    finish(&f, quick);
    assert_true(tern_events_bytes(lazy) < 4096 + 8192); /* what one step adds */
    lc_wait(lazy, &slow, 1);
    check_request(&f, &r, slow);
    check_request(&f, &r, quick);
    tern_events_free(lazy);
    free(slow);
    free(quick);
    tear_down(&f);
}

/* ---- ends -------------------------------------------------------------------------------------------------------- */

static void test_bad_requests(void **state)
{
    (void)state;
    struct fixture f;
    tern_error err;
    uint64_t id;
    int32_t bad = 320;
    const char *empty = "";
    set_up(&f, "llama-tied", 2, 64, NULL);
#define REFUSED(code, change, words)                                                \
    do {                                                                            \
        tern_request r = plain(&f, 4, 1);                                           \
        change;                                                                     \
        assert_int_equal(tern_loop_submit(f.loop, &r, f.q, NULL, &id, &err), code); \
        if (!strstr(err.msg, words))                                                \
            fail_msg("%s", err.msg);                                                \
    } while (0)
    REFUSED(TERN_EINVAL, r.n_prompt = 0, "the prompt is empty");
    REFUSED(TERN_ELIMIT, r.n_prompt = 513, "513 tokens and the context holds 512");
    REFUSED(TERN_EINVAL, (r.prompt = &bad, r.n_prompt = 1), "token 0 of the prompt is 320");
    REFUSED(TERN_EINVAL, r.plan = 3, "plan = 3");
    REFUSED(TERN_EINVAL, r.n_choices = 3, "choices = 3");
    REFUSED(TERN_EINVAL, r.n_choices = -1, "choices = -1");
    REFUSED(TERN_EINVAL, r.logprobs = 21, "logprobs = 21");
    REFUSED(TERN_EINVAL, r.prompt_logprobs = -2, "prompt logprobs = -2");
    REFUSED(TERN_EINVAL, r.max_tokens = -2, "-2");
    REFUSED(TERN_EINVAL, r.min_tokens = -1, "-1");
    REFUSED(TERN_EINVAL, r.sampler.temperature = NAN, "temperature");
    REFUSED(TERN_EINVAL, (r.stop = &empty, r.n_stop = 1), "stop string 0");
    REFUSED(TERN_EINVAL, (r.stop_ids = &bad, r.n_stop_ids = 1), "stop token 320");
    REFUSED(TERN_EINVAL, r.n_stop = 65, "stop strings = 65");
    REFUSED(TERN_EINVAL, r.timeout_s = -1, "timeout");
    REFUSED(TERN_EINVAL, r.constraint.allow = gate_allow, "constraint");
#undef REFUSED
    tern_loop *second;
    tern_seq *s;
    assert_int_equal(tern_loop_open(&second, f.e, &(tern_loop_params){.gap = 1}, &err), TERN_EINVAL);
    assert_null(second);
    tiny_ok(tern_seq_new(&s, f.alone, &err), &err);
    assert_int_equal(tern_loop_open(&second, f.alone, NULL, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "sequences of its own"));
    tear_down(&f);
}

/* Cancelled in the queue, in the prompt, while it generates, and when it is over. */
static void test_cancel(void **state)
{
    (void)state;
    struct fixture f;
    struct gate gate;
    uint64_t id, other;
    tern_event e;
    tern_error err = {0};
    struct lc_request *rec = lc_new(), *waits = lc_new();
    set_up(&f, "llama-tied", 1, 64, NULL);
    tern_request r = plain(&f, 150, -1);
    gate_set(&gate, &r);
    tiny_ok(tern_loop_submit(f.loop, &r, f.q, rec, &id, &err), &err);
    wait_running(&f);
    r.constraint.allow = NULL;
    tiny_ok(tern_loop_submit(f.loop, &r, f.q, waits, &other, &err), &err);
    tern_loop_cancel(f.loop, other);
    tern_loop_cancel(f.loop, 12345);
    gate_let(&gate, 20);
    while (rec->c[0].n < 5 && tern_events_next(f.q, &e, 60000))
        lc_note(&e);
    tern_loop_cancel(f.loop, id);
    gate_open(&gate);
    lc_wait(f.q, (struct lc_request *[]){rec, waits}, 2);
    tern_loop_cancel(f.loop, id);
    assert_int_equal(rec->rc, TERN_ECANCELLED);
    assert_int_equal(rec->c[0].end.finish, TERN_FINISH_CANCELLED);
    assert_true(rec->c[0].n < 300);
    assert_int_equal(waits->rc, TERN_ECANCELLED);
    assert_int_equal(waits->starts, 0);
    assert_false(waits->c[0].over);
    free(rec);
    free(waits);
    tear_down(&f);
}

static void test_timeout(void **state)
{
    (void)state;
    struct fixture f;
    struct lc_request *rec = lc_new();
    set_up(&f, "llama-tied", 1, 16, NULL);
    tern_request r = plain(&f, 150, -1);
    r.timeout_s = 1e-6;
    submit(&f, &r, rec);
    finish(&f, rec);
    assert_int_equal(rec->rc, TERN_ELIMIT);
    assert_non_null(strstr(rec->message, "timeout"));
    free(rec);
    tear_down(&f);
}

/* Who wants no more events ends what he asked for; closing ends the rest, and each gets its last word. */
static void test_receivers_leave(void **state)
{
    (void)state;
    struct fixture f;
    tern_events *gone;
    tern_error err = {0};
    tern_loop_stats s;
    uint64_t id;
    tern_event e;
    set_up(&f, "llama-tied", 2, 64, NULL);
    tern_request r = plain(&f, 10, -1);
    tiny_ok(tern_events_new(&gone, &err), &err);
    tiny_ok(tern_loop_submit(f.loop, &r, gone, NULL, &id, &err), &err);
    assert_true(tern_events_next(gone, &e, 60000));
    tern_events_free(gone);
    do
        tern_loop_get_stats(f.loop, &s);
    while (s.running || s.waiting);
    assert_int_equal(s.cancelled, 1);

    struct lc_request *rec[3];
    for (int i = 0; i < 3; i++) {
        rec[i] = lc_new();
        submit(&f, &r, rec[i]);
    }
    tern_loop_close(&f.loop);
    lc_wait(f.q, rec, 3);
    for (int i = 0; i < 3; i++) {
        assert_true(rec[i]->rc == 0 || rec[i]->rc == TERN_ECANCELLED);
        free(rec[i]);
    }
    tear_down(&f);
}

static void test_drain(void **state)
{
    (void)state;
    struct fixture f;
    struct gate gate;
    tern_error err = {0};
    uint64_t id;
    struct lc_request *rec = lc_new();
    set_up(&f, "llama-tied", 1, 64, NULL);
    tern_request r = plain(&f, 10, 5);
    gate_set(&gate, &r);
    submit(&f, &r, rec);
    wait_running(&f);
    assert_false(tern_loop_drain(f.loop, 0.01));
    assert_int_equal(tern_loop_submit(f.loop, &r, f.q, NULL, &id, &err), TERN_ECAPACITY);
    assert_non_null(strstr(err.msg, "about to stop"));
    gate_open(&gate);
    assert_true(tern_loop_drain(f.loop, -1));
    finish(&f, rec);
    assert_int_equal(rec->rc, 0);
    free(rec);
    tear_down(&f);
}

static void test_descriptor(void **state)
{
    (void)state;
    struct fixture f;
    struct lc_request *rec = lc_new();
    tern_event e;
    set_up(&f, "llama-tied", 1, 64, NULL);
    struct pollfd p = {.fd = tern_events_fd(f.q), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 0), 0);
    tern_request r = plain(&f, 10, 5);
    submit(&f, &r, rec);
    while (!rec->ends) {
        assert_int_equal(poll(&p, 1, 60000), 1);
        while (tern_events_next(f.q, &e, 0))
            lc_note(&e);
    }
    assert_int_equal(poll(&p, 1, 0), 0);
    free(rec);
    tear_down(&f);
}

/* ---- constraints ------------------------------------------------------------------------------------------------- */

struct evens {
    int left, *forks, *frees, code;
};

static int evens_allow(void *state, uint32_t *mask, tern_error *err)
{
    const struct evens *s = state;
    if (!s->left && s->code)
        return tern_err_set(err, s->code, "the constraint gives up");
    if (s->left)
        memset(mask, 0x55, 40);
    return 0;
}

static int evens_accept(void *state, int32_t id, tern_error *err)
{
    (void)err;
    assert_int_equal(id % 2, 0);
    ((struct evens *)state)->left--;
    return 0;
}

static void *evens_fork(void *state)
{
    struct evens *s = malloc(sizeof *s);
    *s = *(struct evens *)state;
    ++*s->forks;
    return s;
}

static void evens_free(void *state)
{
    ++*((struct evens *)state)->frees;
    free(state);
}

static tern_constraint evens_new(int left, int code, int *forks, int *frees)
{
    struct evens *s = malloc(sizeof *s);
    *s = (struct evens){left, forks, frees, code};
    return (tern_constraint){s, evens_allow, evens_accept, evens_fork, evens_free};
}

/* Only what is allowed is picked.  Without a token that is, and when the constraint fails, that request fails and no
 * other. */
static void test_constraint(void **state)
{
    (void)state;
    struct fixture f;
    int forks = 0, frees = 0;
    struct lc_request *rec[4] = {lc_new(), lc_new(), lc_new(), lc_new()};
    set_up(&f, "llama-tied", 6, 64, NULL);
    tern_request r = plain(&f, 20, 30), free_one = r;
    r.sampler.temperature = 2;
    r.n_choices = 3;
    r.constraint = evens_new(100, 0, &forks, &frees);
    submit(&f, &r, rec[0]);
    r.n_choices = 1;
    r.constraint = evens_new(5, 0, &forks, &frees);
    submit(&f, &r, rec[1]);
    r.constraint = evens_new(7, TERN_EUNSUPPORTED, &forks, &frees);
    submit(&f, &r, rec[2]);
    submit(&f, &free_one, rec[3]);
    lc_wait(f.q, rec, 4);
    assert_int_equal(rec[0]->rc, 0);
    for (int k = 0; k < 3; k++)
        assert_int_equal(rec[0]->c[k].n, 30);
    assert_memory_not_equal(rec[0]->c[0].ids, rec[0]->c[1].ids, 30 * sizeof(int32_t));
    assert_int_equal(rec[1]->rc, TERN_EINVAL);
    assert_non_null(strstr(rec[1]->message, "no token"));
    assert_int_equal(rec[1]->c[0].n, 5);
    assert_int_equal(rec[1]->c[0].end.finish, TERN_FINISH_ERROR);
    assert_int_equal(rec[2]->rc, TERN_EUNSUPPORTED);
    assert_string_equal(rec[2]->message, "the constraint gives up");
    check_request(&f, &free_one, rec[3]);
    for (int i = 0; i < 4; i++)
        free(rec[i]);
    tear_down(&f);
    assert_int_equal(forks, 2);
    assert_int_equal(frees, 5);
}

/* ---- log probabilities ------------------------------------------------------------------------------------------- */

/* Not inlined: a cross compiler of version 12.2 fails on what it makes of it for AArch64. */
static __attribute__((noinline)) double log_softmax(const float *x, int n, int id)
{
    double max = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        max = fmax(max, (double)x[i]);
    for (int i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return (double)x[id] - max - log(sum);
}

static void test_logprobs(void **state)
{
    (void)state;
    struct fixture f;
    tern_error err = {0};
    tern_seq *s;
    set_up(&f, "llama-tied", 3, 128, NULL);
    int n_vocab = f.t.n_vocab, n = 150;
    float *logits = tiny_buffer(&f.t);
    tiny_ok(tern_seq_new(&s, f.alone, &err), &err);
    tiny_run(f.alone, s, f.t.ids, 0, n, 512, false, logits, 0, n_vocab);
    tern_seq_free(s);
    struct lc_request *rec = lc_new(), *beside = lc_new(), *none = lc_new();
    tern_request r = plain(&f, n, 4);
    r.prompt_logprobs = 3;
    r.logprobs = 5;
    submit(&f, &r, rec);
    tern_request other = plain(&f, 90, 20), score = plain(&f, 65, 0);
    submit(&f, &other, beside);
    score.prompt_logprobs = 0;
    submit(&f, &score, none);
    lc_wait(f.q, (struct lc_request *[]){rec, beside, none}, 3);
    assert_int_equal(rec->n_scores, n);
    assert_true(isnan(rec->score[0]));
    for (int i = 1; i < n; i++) {
        double want = log_softmax(logits + (size_t)(i - 1) * (size_t)n_vocab, n_vocab, f.t.ids[i]);
        assert_true(fabs(rec->score[i] - want) < 1e-9);
        if (i < 65)
            assert_memory_equal(&rec->score[i], &none->score[i], sizeof(double));
    }
    assert_int_equal(none->n_scores, 65);
    assert_int_equal(none->c[0].n, 0);
    assert_int_equal(none->rc, 0);
    double want = log_softmax(logits + (size_t)(n - 1) * (size_t)n_vocab, n_vocab, rec->c[0].ids[0]), sum = 0;
    assert_true(fabs(rec->c[0].logprob[0] - want) < 1e-9);
    for (int i = 0; i < 4; i++)
        sum += rec->c[0].logprob[i];
    assert_true(rec->c[0].end.logprob == sum);
    check_request(&f, &other, beside);
    free(rec);
    free(beside);
    free(none);
    free(logits);
    tear_down(&f);
}

/* The most likely come first, equal ones by their ids, and the picked one has the same double there. */
static void test_top_logprobs(void **state)
{
    (void)state;
    float x[100];
    tern_logprob top[8];
    tern_token_score score;
    for (int i = 0; i < 100; i++)
        x[i] = (float)(i * 37 % 50);
    tern_score_token(x, 100, 77, 8, top, &score);
    assert_int_equal(score.n_top, 8);
    for (int i = 1; i < 8; i++)
        assert_true(top[i].logprob < top[i - 1].logprob ||
                    (top[i].logprob == top[i - 1].logprob && top[i].id > top[i - 1].id));
    assert_true(x[top[0].id] == 49 && x[top[1].id] == 49 && top[1].id == top[0].id + 50);
    assert_true(fabs(score.logprob - log_softmax(x, 100, 77)) < 1e-12);
    tern_score_token(x, 100, top[3].id, 8, top, &score);
    assert_true(score.logprob == top[3].logprob);
    tern_score_token(x, 3, 1, 8, top, &score);
    assert_int_equal(score.n_top, 3);
}

/* ---- embeddings -------------------------------------------------------------------------------------------------- */

/* The same vector however the prompt was cut, beside whatever else. */
static void test_embeddings(void **state)
{
    (void)state;
    float want[2][512];
    for (int chunk = 7; chunk <= 256; chunk *= 6) {
        struct fixture f;
        struct lc_request *rec[3] = {lc_new(), lc_new(), lc_new()};
        tern_error err = {0};
        uint64_t id;
        set_up(&f, "llama-tied", 3, chunk, NULL);
        tern_request r = plain(&f, 130, 0), other = plain(&f, 50, 20);
        int n_embd = tern_model_get_info(f.t.model)->n_embd;
        r.logprobs = -1;
        submit(&f, &other, rec[2]);
        for (int k = 0; k < 2; k++) {
            r.embed = k ? TERN_EMBED_MEAN : TERN_EMBED_LAST;
            submit(&f, &r, rec[k]);
        }
        lc_wait(f.q, rec, 3);
        for (int k = 0; k < 2; k++) {
            assert_int_equal(rec[k]->n_vector, n_embd);
            if (chunk == 7)
                memcpy(want[k], rec[k]->vector, (size_t)n_embd * sizeof(float));
            assert_memory_equal(rec[k]->vector, want[k], (size_t)n_embd * sizeof(float));
        }
        assert_memory_not_equal(want[0], want[1], (size_t)n_embd * sizeof(float));
        check_request(&f, &other, rec[2]);
        r.max_tokens = 1;
        assert_int_equal(tern_loop_submit(f.loop, &r, f.q, NULL, &id, &err), TERN_EINVAL);
        assert_non_null(strstr(err.msg, "embedding"));
        for (int k = 0; k < 3; k++)
            free(rec[k]);
        tear_down(&f);
    }
}

/* ---- pace -------------------------------------------------------------------------------------------------------- */

/* A machine whose steps take fixed + per decode row + (a pass of prompt rows + per prompt row), with noise and hiccups.
 * Returns the mean of steps over that of decode rows alone, and *rows: prompt rows per step, *worst: the longest of all
 * steps but hiccups over the same. */
static double pace_on(double pass, double per_row, int n_decode, int n_prompts, double *rows, double *worst)
{
    struct tern_pace p = {.gap = 2};
    struct tern_rng g = {7};
    double idle = .004 + .0005 * n_decode, sum = 0, done = 0;
    enum { STEPS = 4000, WARM = 500 };
    *worst = 0;
    for (int i = 0; i < STEPS; i++) {
        int r = tern_pace_rows(&p, n_decode, n_prompts, 100000, 512 - n_decode);
        double t = (idle + (r ? pass + per_row * r : 0)) * (.97 + .06 * tern_rng_f64(&g));
        bool hiccup = i % 301 == 5;
        tern_pace_learn(&p, n_decode, r, hiccup ? 10 * t : t);
        if (i < WARM)
            continue;
        sum += t;
        done += r;
        *worst = fmax(*worst, t / idle);
    }
    *rows = done / (STEPS - WARM);
    return sum / (STEPS - WARM) / idle;
}

static void test_pace(void **state)
{
    (void)state;
    double rows, worst, mean;
    /* A pass is cheap: the factor holds, and no step is longer than what one may spend on prompt rows. */
    mean = pace_on(.001, .0005, 32, 1, &rows, &worst);
    assert_true(mean > 1.8 && mean < 2.1 && rows > 30 && worst < 8);
    /* A pass costs more than the share of a step: then on average, and most of the share goes into rows. */
    mean = pace_on(.02, .002, 1, 1, &rows, &worst);
    assert_true(mean > 1.8 && mean < 2.15 && rows > 1.5 && rows < 2.3 && worst < 30);
    /* More wait than stream: they have more of the time. */
    mean = pace_on(.02, .002, 6, 12, &rows, &worst);
    assert_true(mean > 3.6 && mean < 4.3 && rows > 7);
    /* But streams have a part in any case. */
    mean = pace_on(.02, .002, 1, 1000, &rows, &worst);
    assert_true(mean > 7 && mean < 8.5);
    /* Prompt rows are almost free: all that a step takes. */
    mean = pace_on(0, 1e-6, 8, 1, &rows, &worst);
    assert_true(mean < 1.2 && rows > 300);
    /* Nobody waits for tokens: all that a step takes, unless that is long. */
    struct tern_pace p = {.gap = 2};
    assert_int_equal(tern_pace_rows(&p, 0, 1, 9999, 512), 512);
    tern_pace_learn(&p, 0, 512, 1.024);
    assert_int_equal(tern_pace_rows(&p, 0, 1, 9999, 512), 100);
    for (int i = 0; i < 50; i++)
        tern_pace_learn(&p, 0, 100, 100);
    assert_int_equal(tern_pace_rows(&p, 0, 1, 9999, 512), 64);
    assert_int_equal(tern_pace_rows(&p, 0, 1, 9, 512), 9);
    for (int i = 0; i < 100; i++)
        tern_pace_learn(&p, 0, 64, .001);
    assert_int_equal(tern_pace_rows(&p, 0, 1, 9999, 512), 512);
}

/* Requests by a clock that is computed: the machine above with the times of SmolLM2 on two cores. */
enum { MOST = 64 };

struct crowd {
    int n, prompt[MOST], reply[MOST]; /* rows that are left */
    double first[MOST], last[MOST], now, sum_gap, worst_gap;
    int n_gaps;
};

static double crowd_step(int n_decode, int n_prompt)
{
    return (n_decode ? .005 + .0009 * n_decode : 0) + (n_prompt ? .015 + .0014 * n_prompt : 0);
}

/* All arrive at once and go in order, each with so many tokens of prompt and reply. */
static void run_crowd(struct crowd *c)
{
    struct tern_pace p = {.gap = 2};
    for (int left = c->n; left;) {
        int n_decode = 0, n_prompts = 0, wanted = 0, rows = 0, used = 0;
        for (int i = 0; i < c->n; i++) {
            n_decode += !c->prompt[i] && c->reply[i];
            n_prompts += c->prompt[i] > 0;
            wanted += c->prompt[i];
        }
        if (n_prompts)
            rows = tern_pace_rows(&p, n_decode, n_prompts, wanted, 512 - n_decode);
        assert_true(rows >= 0 && rows <= wanted && rows <= 512 - n_decode);
        double t = crowd_step(n_decode, rows);
        c->now += t;
        tern_pace_learn(&p, n_decode, rows, t);
        for (int i = 0; i < c->n; i++) {
            if (!c->prompt[i] && c->reply[i]) {
                double gap = c->now - c->last[i];
                c->sum_gap += gap;
                c->worst_gap = fmax(c->worst_gap, gap);
                c->n_gaps++;
                c->last[i] = c->now;
                left -= --c->reply[i] == 0;
            }
            int n = c->prompt[i] < rows - used ? c->prompt[i] : rows - used;
            used += n;
            c->prompt[i] -= n;
            if (n && !c->prompt[i])
                c->first[i] = c->last[i] = c->now;
        }
    }
}

static void test_pace_of_a_crowd(void **state)
{
    (void)state;
    /* 32 requests of 256 and 128 tokens: not much longer than their rows take at best, the first tokens come evenly,
     * and no stream waits for long. */
    struct crowd c = {.n = 32};
    for (int i = 0; i < c.n; i++) {
        c.prompt[i] = 256;
        c.reply[i] = 128;
    }
    run_crowd(&c);
    double at_best = 32 * 256 * .0014 + 128 * crowd_step(32, 0);
    assert_true(c.now < 1.3 * at_best);
    assert_true(c.first[15] < .45 * c.now && c.worst_gap < .3);
    /* A long prompt among eight streams doubles the time between their tokens, and comes through. */
    struct crowd l = {.n = 9};
    for (int i = 0; i < 8; i++)
        l.reply[i] = 800;
    l.prompt[8] = 4096;
    l.reply[8] = 1;
    run_crowd(&l);
    assert_true(l.first[8] > 0 && l.first[8] < 2.3 * 4096 * .0014 + .5);
    assert_true(l.sum_gap / l.n_gaps < 2.05 * crowd_step(8, 0) && l.worst_gap < .15);
}

/* ---- prefix cache ------------------------------------------------------------------------------------------------ */

struct fake_cache {
    tern_engine *e;
    int n; /* tokens that it says it knows */
    int lookups, offers, overs;
};

static int fake_lookup(void *self, tern_seq *s, const int32_t *tokens, int n, const float **logits)
{
    struct fake_cache *c = self;
    int known = c->n < n ? c->n : n;
    c->lookups++;
    tern_error err = {0};
    if (known)
        tiny_ok(tern_prefill(c->e, s, tokens, known, logits, NULL, NULL, &err), &err);
    return known;
}

static void fake_offer(void *self, tern_seq *s, const float *logits, bool over)
{
    struct fake_cache *c = self;
    (void)logits;
    assert_true(tern_seq_length(s) > 0);
    c->offers++;
    c->overs += over;
}

/* A prompt that is known in part or whole goes on as one that is not. */
static void test_prefix(void **state)
{
    (void)state;
    static const int known[] = {0, 1, 63, 64, 99, 100};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        struct fixture f;
        struct lc_request *rec = lc_new();
        set_up(&f, "llama-tied", 3, 64, NULL);
        struct fake_cache c = {.e = f.e, .n = known[i]};
        tern_loop_set_prefix(f.loop, &(struct tern_prefix){.self = &c, .lookup = fake_lookup, .offer = fake_offer});
        tern_request r = plain(&f, 100, 40);
        r.n_choices = 2;
        r.sampler.temperature = 1;
        submit(&f, &r, rec);
        finish(&f, rec);
        assert_int_equal(rec->end.n_cached, known[i]);
        if (known[i] < 100)
            assert_int_equal(rec->done, 100);
        for (int k = 0; k < 2; k++)
            check_choice(&f, &r, rec, k);
        free(rec);
        tear_down(&f);
        assert_int_equal(c.lookups, 1);
        assert_int_equal(c.overs, 2);
        assert_true(c.offers >= 5); /* the prompt, a page of each, the end of each */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_joins),
        cmocka_unit_test(test_many_who_ask),
        cmocka_unit_test(test_queue_is_bounded_and_fair),
        cmocka_unit_test(test_one_asker_does_not_fill_the_queue),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_reply_without_end),
        cmocka_unit_test(test_unread),
        cmocka_unit_test(test_bad_requests),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_receivers_leave),
        cmocka_unit_test(test_drain),
        cmocka_unit_test(test_descriptor),
        cmocka_unit_test(test_constraint),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_top_logprobs),
        cmocka_unit_test(test_embeddings),
        cmocka_unit_test(test_pace),
        cmocka_unit_test(test_pace_of_a_crowd),
        cmocka_unit_test(test_prefix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

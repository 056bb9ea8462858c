/* Threads: engines that share a model, cancelling from elsewhere, and what a process chooses once. */
#include <pthread.h>
#include <stdatomic.h>
#include "tiny.h"

enum { N_TOKENS = 60 };

struct job {
    const struct tiny *t;
    int from, n_threads;
    const char *kv;
    int32_t tokens[N_TOKENS];
    int n, rc;
    tern_error err;
};

static void *generate(void *arg)
{
    struct job *j = arg;
    tern_engine *e = NULL;
    tern_seq *s;
    tern_generate_result r;
    tern_generate_params p = {.max_tokens = N_TOKENS};
    tern_engine_params ep = {.n_threads = j->n_threads, .kv = j->kv};
    tern_sampler_defaults(&p.sampler);
    p.sampler.temperature = 1;
    j->rc = tern_engine_open(&e, j->t->model, &ep, &j->err);
    if (j->rc == 0)
        j->rc = tern_seq_new(&s, e, &j->err);
    if (j->rc == 0)
        j->rc = tern_generate(e, s, j->t->ids + j->from, 80, &p, &r, &j->err);
    if (j->rc == 0) {
        j->n = r.n_generated;
        memcpy(j->tokens, tern_seq_tokens(s) + 80, sizeof j->tokens);
    }
    tern_engine_close(&e);
    return NULL;
}

/* Engines on one model, at once, compute what each computes alone. */
static void test_engines_share_a_model(void **state)
{
    (void)state;
    enum { N = 3 };
    struct tiny t;
    pthread_t thread[N];
    static const char *const kv[N] = {"t4", "f16", "k=q8,v=l3"};
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    struct job alone[N], beside[N];
    for (int i = 0; i < N; i++) {
        alone[i] = beside[i] = (struct job){.t = &t, .from = 10 * i, .n_threads = 1 + i % 2, .kv = kv[i]};
        (void)generate(&alone[i]);
        tiny_ok(alone[i].rc, &alone[i].err);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, generate, &beside[i]), 0);
    for (int i = 0; i < N; i++) {
        (void)pthread_join(thread[i], NULL);
        tiny_ok(beside[i].rc, &beside[i].err);
        assert_int_equal(beside[i].n, N_TOKENS);
        assert_memory_equal(beside[i].tokens, alone[i].tokens, sizeof alone[i].tokens);
    }
    tiny_close(&t);
}

/* ---- cancelling -------------------------------------------------------------------------------------------------- */

struct cancel {
    tern_engine *e;
    atomic_int go, done;
};

static void *cancel_when_told(void *arg)
{
    struct cancel *c = arg;
    while (!atomic_load(&c->go))
        ;
    while (!atomic_load(&c->done)) /* one that comes before the call begins is forgotten */
        tern_engine_cancel(c->e);
    return NULL;
}

/* What was processed stays, and goes on as if nothing had happened. */
static void test_cancel_from_another_thread(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_seq *s, *whole;
    pthread_t thread;
    const float *logits;
    tern_generate_result r;
    tern_generate_params p = {.max_tokens = -1};
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_sampler_defaults(&p.sampler);
    tern_engine *e = tiny_engine(&t, "t4", false, 2, 2, 4);
    struct cancel c = {.e = e};
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    assert_int_equal(pthread_create(&thread, NULL, cancel_when_told, &c), 0);
    atomic_store(&c.go, 1);
    assert_int_equal(tern_generate(e, s, t.ids, t.n_ids, &p, &r, &err), TERN_ECANCELLED);
    assert_non_null(strstr(err.msg, "cancelled after"));
    atomic_store(&c.done, 1);
    (void)pthread_join(thread, NULL);
    int n = tern_seq_length(s);
    assert_true(n < tern_engine_ctx(e));
    /* The prompt to its end, if it was cut off there, and beside it one that was not. */
    float *want = malloc((size_t)t.n_vocab * sizeof *want);
    tiny_ok(tern_seq_new(&whole, e, &err), &err);
    tiny_ok(tern_seq_trim(s, n < t.n_ids ? n : t.n_ids - 1, &err), &err);
    n = tern_seq_length(s);
    tiny_ok(tern_prefill(e, whole, t.ids, t.n_ids, &logits, NULL, NULL, &err), &err);
    memcpy(want, logits, (size_t)t.n_vocab * sizeof *want);
    tiny_ok(tern_prefill(e, s, t.ids + n, t.n_ids - n, &logits, NULL, NULL, &err), &err);
    assert_memory_equal(logits, want, (size_t)t.n_vocab * sizeof *want);
    free(want);
    tern_engine_close(&e);
    tiny_close(&t);
}

/* ---- chosen once ------------------------------------------------------------------------------------------------- */

static atomic_int n_refused;

static void *look_and_choose(void *arg)
{
    char path[512];
    tern_error err = {0};
    (void)snprintf(path, sizeof path, "%s/tiny/llama-tied.gguf", TERN_TEST_DATA);
    for (int i = 0; i < 10; i++) {
        tern_model *m;
        tern_machine machine;
        int rc = tern_set_cpu_mask("all", &err);
        atomic_fetch_add(&n_refused, rc == TERN_EINVAL);
        tern_machine_describe(&machine);
        const char *const *pairs = tern_kv_schemes();
        for (int k = 0; pairs[k]; k++)
            if (!*pairs[k])
                *(int *)arg = -1;
        rc = tern_model_open(&m, path, &(tern_model_params){.n_threads = 1, .packed = "off"}, &err);
        *(int *)arg = rc < 0 ? rc : *(int *)arg;
        tern_model_close(&m);
    }
    return NULL;
}

static void test_choices_of_the_process(void **state)
{
    (void)state;
    enum { N = 3 };
    struct tiny t;
    tern_error err = {0};
    pthread_t thread[N];
    int rc[N] = {0};
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, look_and_choose, &rc[i]), 0);
    for (int i = 0; i < N; i++) {
        (void)pthread_join(thread[i], NULL);
        assert_int_equal(rc[i], 0);
    }
    /* Kernels do not change under a model that is open. */
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    assert_int_equal(tern_set_cpu_mask("c", &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "open"));
    tiny_close(&t);
    tiny_ok(tern_set_cpu_mask("all", &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engines_share_a_model),
        cmocka_unit_test(test_cancel_from_another_thread),
        cmocka_unit_test(test_choices_of_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

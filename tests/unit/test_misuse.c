/* The public header used wrongly: a status and a sentence, where a crash or a silent guess would be easy. */
#include <pthread.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>
#include "tern/convert.h"
#include "tern/loop.h"
#include "tern/tern.h"
#include "tiny.h"

/* Expects TERN_EINVAL and these words in *err. */
#define REFUSED(words, call)                    \
    do {                                        \
        assert_int_equal((call), TERN_EINVAL);  \
        if (!strstr(err.msg, words))            \
            fail_msg("%s: %s", #call, err.msg); \
    } while (0)

static void test_opening(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_model *m = NULL;
    tern_engine *e = NULL;
    const char *const plans[] = {"f16", NULL};
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tiny_ok(tern_engine_open(&e, t.model, NULL, &err), &err); /* all defaults, as of models */
    assert_int_equal(tern_engine_ctx(e), tern_model_get_info(t.model)->ctx);
    tern_engine_close(&e);
    REFUSED("plan 1 of 1 is missing", tern_engine_open(&e, t.model, &(tern_engine_params){.n_more_kv = 1}, &err));
    REFUSED("plan 2 of 2 is missing",
            tern_engine_open(&e, t.model, &(tern_engine_params){.n_more_kv = 2, .more_kv = plans}, &err));
    assert_null(e);
    REFUSED("threads = -1",
            tern_model_open(&m, TERN_TEST_DATA "/tiny/llama-tied.gguf", &(tern_model_params){.n_threads = -1}, &err));
    assert_int_equal(tern_model_open(&m, "", NULL, &err), TERN_ENOENT);
    assert_true(strncmp(err.msg, "\"\": ", 4) == 0);
    assert_null(m);
    tiny_close(&t);
}

static void test_steps(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_seq *s = NULL;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_engine *e = tiny_engine(&t, "t4", false, 1, 1, 64);
    const float *logits;
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    const tern_step_item it = {.seq = s, .n_tokens = 3};
    REFUSED("with 0 tokens", tern_step(e, &it, 1, &logits, &err));
    REFUSED("with 0 tokens", tern_prefill(e, s, NULL, 3, &logits, NULL, NULL, &err));
    REFUSED("-1 tokens", tern_prefill(e, s, t.ids, -1, &logits, NULL, NULL, &err));
    assert_int_equal(tern_seq_length(s), 0);
    tiny_ok(tern_prefill(e, s, t.ids, 3, &logits, NULL, NULL, &err), &err);
    REFUSED("is empty", tern_seq_save(s, "", &err));
    REFUSED("is empty", tern_seq_save(s, NULL, &err));
    REFUSED("is empty", tern_seq_save_check(NULL, &err));
    tern_engine_close(&e);
    tiny_close(&t);
}

static void test_turns(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_tokens ids = {0};
    char *text = NULL;
    const tern_chat_turn no_role = {NULL, "x"}, turns[2] = {{"system", "x"}, {"user", NULL}};
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    REFUSED("turn 0 has no role", tern_model_chat_tokens(t.model, &no_role, 1, 0, true, &ids, &err));
    REFUSED("turn 1 has no content", tern_model_chat_text(t.model, turns, 2, true, &text, &err));
    REFUSED("there are 2 turns, and no list", tern_model_chat_tokens(t.model, NULL, 2, 0, true, &ids, &err));
    REFUSED("there are 2 turns, and no list", tern_model_chat_text(t.model, NULL, 2, true, &text, &err));
    REFUSED("follows turn 2", tern_model_chat_tokens(t.model, turns, 1, 2, true, &ids, &err));
    tiny_close(&t);
}

static void test_samplers(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_sampler *s = NULL;
    tern_sampler_params p;
    tern_sampler_defaults(&p);
    p.repetition_penalty = 1.1f;
    REFUSED("a vocabulary of 0", tern_sampler_new(&s, 0, &p, &err));
    REFUSED("a vocabulary of -5", tern_sampler_new(&s, -5, &p, &err));
    assert_null(s);
}

static void test_generation(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_seq *s = NULL;
    const char *const none[] = {NULL};
    tern_generate_params p = {.max_tokens = 1};
    tern_sampler_defaults(&p.sampler);
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_engine *e = tiny_engine(&t, "t4", false, 1, 1, 64);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    REFUSED("the prompt is empty", tern_generate(e, s, NULL, 3, &p, NULL, &err));
    p.n_stop = 1;
    REFUSED("stop string 0 is missing", tern_generate(e, s, t.ids, 3, &p, NULL, &err));
    p.stop = none;
    REFUSED("stop string 0 is missing", tern_generate(e, s, t.ids, 3, &p, NULL, &err));
    p.n_stop = 0;
    p.n_stop_ids = 2;
    REFUSED("stop tokens: there are 2", tern_generate(e, s, t.ids, 3, &p, NULL, &err));
    p.n_stop_ids = 0;
    p.sampler.n_bias = 1;
    REFUSED("logit bias: there are 1", tern_generate(e, s, t.ids, 3, &p, NULL, &err));
    assert_int_equal(tern_seq_length(s), 0);
    tern_engine_close(&e);
    tiny_close(&t);
}

#define SUBMIT(words, set)                                                   \
    do {                                                                     \
        tern_request_defaults(&r);                                           \
        r.prompt = t.ids;                                                    \
        r.n_prompt = 3;                                                      \
        set;                                                                 \
        REFUSED(words, tern_loop_submit(loop, &r, events, NULL, &id, &err)); \
    } while (0)

static void test_loops(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_loop *loop = NULL, *second = NULL;
    tern_events *events = NULL;
    tern_request r;
    uint64_t id;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_engine *e = tiny_engine(&t, "t4", false, 1, 2, 64);
    tiny_ok(tern_events_new(&events, &err), &err);
    tiny_ok(tern_loop_open(&loop, e, NULL, &err), &err);
    for (int i = 0; i < 2; i++) { /* a refusal leaves the engine to the loop that has it */
        REFUSED("runs another loop", tern_loop_open(&second, e, NULL, &err));
        REFUSED("runs another loop", tern_loop_open(&second, e, &(tern_loop_params){.cache_dir = "/none"}, &err));
    }
    assert_null(second);
    SUBMIT("the prompt is empty", r.prompt = NULL);
    SUBMIT("one_call: without reply", r.one_call = true);
    SUBMIT("borders: there are 1", r.n_borders = 1);
    SUBMIT("stop strings: there are 1", r.n_stop = 1);
    SUBMIT("stop tokens: there are 2", r.n_stop_ids = 2);
    SUBMIT("logit bias: there are 1", r.sampler.n_bias = 1);
    SUBMIT("logit bias: there are 1", (r.sampler.n_bias = 1, r.sampler.bias_ids = t.ids));
    tern_loop_close(&loop);
    REFUSED("needs one in memory", tern_loop_open(&loop, e, &(tern_loop_params){.cache_dir = "/none"}, &err));
    tiny_ok(tern_loop_open(&loop, e, NULL, &err), &err); /* it is the caller's again */
    tern_loop_close(&loop);
    tern_events_free(events);
    tern_engine_close(&e);
    tiny_close(&t);
}

struct opener {
    pthread_barrier_t *start;
    tern_engine *engine;
    tern_loop *loop;
    int rc;
};

static void *open_loop(void *arg)
{
    struct opener *o = arg;
    (void)pthread_barrier_wait(o->start);
    o->rc = tern_loop_open(&o->loop, o->engine, NULL, NULL);
    return NULL;
}

static void test_two_at_once(void **state)
{
    (void)state;
    struct tiny t;
    pthread_barrier_t start;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_engine *e = tiny_engine(&t, "t4", false, 1, 2, 64);
    assert_int_equal(pthread_barrier_init(&start, NULL, 2), 0);
    for (int i = 0; i < 20; i++) {
        struct opener a = {&start, e, NULL, 0}, b = a;
        pthread_t other;
        assert_int_equal(pthread_create(&other, NULL, open_loop, &a), 0);
        (void)open_loop(&b);
        (void)pthread_join(other, NULL);
        assert_int_equal(a.rc + b.rc, TERN_EINVAL);
        tern_loop_close(a.loop ? &a.loop : &b.loop);
    }
    (void)pthread_barrier_destroy(&start);
    tern_engine_close(&e);
    tiny_close(&t);
}

static void test_converting(void **state)
{
    (void)state;
    tern_error err = {0};
    REFUSED("threads = -1", tern_convert(TERN_TEST_DATA "/tiny/llama-tied.gguf", "never.gguf",
                                         &(tern_convert_params){.n_threads = -1}, NULL, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opening),     cmocka_unit_test(test_steps),      cmocka_unit_test(test_turns),
        cmocka_unit_test(test_samplers),    cmocka_unit_test(test_generation), cmocka_unit_test(test_loops),
        cmocka_unit_test(test_two_at_once), cmocka_unit_test(test_converting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

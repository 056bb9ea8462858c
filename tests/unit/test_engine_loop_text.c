/* Loops of requests on a model with a tokenizer: text, stop strings, calls, reasoning. */
#include <unistd.h>
#include "loop_case.h"

#ifndef TERN_MAKE_TEXT_MODEL /* cross builds do not make it, and do not run this test */
#define TERN_MAKE_TEXT_MODEL "make_text_model"
#endif

enum { CALL = 300, REASONING = 301 };

static char path[] = "/tmp/tern-loop-text-XXXXXX";
static tern_model *model;
static tern_engine *engine, *alone;
static tern_loop *loop;
static tern_events *q;
static tern_tokens prompt;

static int set_up(void **state)
{
    (void)state;
    char command[1024];
    tern_error err = {0};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)snprintf(command, sizeof command, "%s --tools %s", TERN_MAKE_TEXT_MODEL, path);
    assert_int_equal(system(command), 0);
    tiny_ok(tern_model_open(&model, path, &(tern_model_params){.n_threads = 1, .packed = "off"}, &err), &err);
    tiny_ok(tern_engine_open(&engine, model, &(tern_engine_params){.n_threads = 2, .ctx = 512, .max_seqs = 6}, &err),
            &err);
    tiny_ok(tern_engine_open(&alone, model, &(tern_engine_params){.n_threads = 1, .ctx = 512}, &err), &err);
    tiny_ok(tern_events_new(&q, &err), &err);
    tiny_ok(tern_loop_open(&loop, engine, NULL, &err), &err);
    tiny_ok(
        tern_model_chat_json(model, "[{\"role\":\"user\",\"content\":\"Say something.\"}]", NULL, true, &prompt, &err),
        &err);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    tern_loop_close(&loop);
    tern_events_free(q);
    tern_engine_close(&engine);
    tern_engine_close(&alone);
    tern_model_close(&model);
    tern_tokens_clear(&prompt);
    (void)unlink(path);
    return 0;
}

static tern_request request(int max_tokens, uint64_t seed)
{
    tern_request r;
    tern_request_defaults(&r);
    r.prompt = prompt.p;
    r.n_prompt = (int)prompt.len;
    r.max_tokens = max_tokens;
    r.logprobs = 0;
    r.sampler.temperature = 1;
    r.sampler.seed = seed;
    return r;
}

static struct lc_request *run(const tern_request *r)
{
    tern_error err = {0};
    uint64_t id;
    struct lc_request *rec = lc_new();
    tiny_ok(tern_loop_submit(loop, r, q, rec, &id, &err), &err);
    lc_wait(q, &rec, 1);
    return rec;
}

struct text {
    char p[LC_TEXT];
    size_t n;
};

static int keep_text(void *user, const char *text, size_t n)
{
    struct text *t = user;
    lc_add(t->p, &t->n, text, n);
    return 0;
}

/* What tern_generate makes of choice k. */
static tern_generate_result generate(const tern_request *r, int k, struct text *out)
{
    tern_error err = {0};
    tern_seq *s;
    tern_generate_result result;
    tern_generate_params p = {.sampler = r->sampler,
                              .max_tokens = r->max_tokens,
                              .stop = r->stop,
                              .n_stop = r->n_stop,
                              .ignore_eog = r->ignore_eos,
                              .on_text = keep_text,
                              .user = out};
    p.sampler.seed += (uint64_t)k;
    *out = (struct text){.n = 0};
    tiny_ok(tern_seq_new(&s, alone, &err), &err);
    tiny_ok(tern_generate(alone, s, r->prompt, r->n_prompt, &p, &result, &err), &err);
    tern_seq_free(s);
    return result;
}

/* Text, finish reason and the token that ended it are those of tern_generate, with stop strings out of the middle. */
static void test_text_and_stop_strings(void **state)
{
    (void)state;
    static struct text whole, want;
    int stopped = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        char cut[3][4] = {"", "", ""};
        const char *stop[3] = {cut[0], cut[1], cut[2]};
        tern_request r = request(50, seed);
        r.n_choices = 1 + (int)(seed % 3);
        (void)generate(&r, 0, &whole);
        for (int i = 0; i < 3; i++) /* bytes of whole characters or not: strings that may occur */
            (void)snprintf(cut[i], sizeof cut[i], "%.*s", 1 + i, whole.n > 20 ? whole.p + 10 + 3 * i : "~~~");
        if (seed % 4) {
            r.stop = stop;
            r.n_stop = 1 + (int)(seed % 3);
        }
        struct lc_request *rec = run(&r);
        assert_int_equal(rec->rc, 0);
        for (int k = 0; k < r.n_choices; k++) {
            const struct lc_choice *c = &rec->c[k];
            tern_generate_result g = generate(&r, k, &want);
            assert_string_equal(c->text, want.p);
            assert_int_equal(c->end.finish, g.finish);
            assert_int_equal(c->end.last, g.last);
            assert_int_equal(c->end.n_generated, g.n_generated + (g.finish == TERN_FINISH_EOG));
            assert_true((c->end.stop >= 0) == (g.finish == TERN_FINISH_STOP));
            stopped += g.finish == TERN_FINISH_STOP;
        }
        free(rec);
    }
    assert_true(stopped > 20);
}

/* The string that comes first ends the text, the first in the list of those that begin there; before min_tokens none
 * does. */
static void test_which_stop_string(void **state)
{
    (void)state;
    static struct text whole;
    tern_request r = request(40, 5);
    (void)generate(&r, 0, &whole);
    assert_true(whole.n > 12);
    char early[3] = {whole.p[4], whole.p[5], 0}, late[3] = {whole.p[9], whole.p[10], 0};
    const char *stop[3] = {late, early, early};
    r.stop = stop;
    r.n_stop = 3;
    struct lc_request *rec = run(&r);
    assert_int_equal(rec->c[0].end.finish, TERN_FINISH_STOP);
    assert_int_equal(rec->c[0].end.stop, strstr(whole.p, late) < strstr(whole.p, early) ? 0 : 1);
    free(rec);
    r.min_tokens = 40;
    rec = run(&r);
    assert_int_equal(rec->c[0].end.finish, TERN_FINISH_LENGTH);
    assert_int_equal(rec->c[0].n, 40);
    free(rec);
}

/* An end token that the bias makes certain: it ends the reply and counts, comes too late for min_tokens, or is text. */
static void test_end_tokens(void **state)
{
    (void)state;
    int32_t eog = 0;
    float much = 100;
    while (!tern_model_is_eog(model, eog))
        eog++;
    tern_request r = request(10, 1);
    r.sampler.bias_ids = &eog;
    r.sampler.bias_values = &much;
    r.sampler.n_bias = 1;
    struct lc_request *rec = run(&r);
    assert_int_equal(rec->c[0].end.finish, TERN_FINISH_EOG);
    assert_int_equal(rec->c[0].end.last, eog);
    assert_int_equal(rec->c[0].end.n_generated, 1);
    assert_int_equal(rec->c[0].ids[0], eog);
    free(rec);
    r.min_tokens = 4;
    rec = run(&r);
    assert_int_equal(rec->c[0].end.finish, TERN_FINISH_EOG);
    assert_int_equal(rec->c[0].n, 5);
    assert_int_equal(rec->c[0].ids[4], eog);
    for (int i = 0; i < 4; i++)
        assert_int_not_equal(rec->c[0].ids[i], eog);
    free(rec);
    r.min_tokens = 0;
    r.ignore_eos = true;
    rec = run(&r);
    assert_int_equal(rec->c[0].end.finish, TERN_FINISH_LENGTH);
    assert_int_equal(rec->c[0].n, 10);
    free(rec);
    /* The same token as a stop token. */
    r.stop_ids = &eog;
    r.n_stop_ids = 1;
    rec = run(&r);
    assert_int_equal(rec->c[0].end.finish, TERN_FINISH_STOP);
    assert_int_equal(rec->c[0].end.stop, -1);
    assert_int_equal(rec->c[0].end.last, eog);
    assert_int_equal(rec->c[0].n_text, 0);
    free(rec);
}

static void test_calls_and_reasoning(void **state)
{
    (void)state;
    int32_t id = REASONING;
    float much = 100;
    tern_reply_params reply = {.calls = "hermes", .reasoning = "think"};
    tern_request r = request(1, 1);
    r.reply = &reply;
    r.sampler.bias_ids = &id;
    r.sampler.bias_values = &much;
    r.sampler.n_bias = 1;
    r.n_choices = 2;
    struct lc_request *rec = run(&r);
    assert_int_equal(rec->rc, 0);
    for (int k = 0; k < 2; k++) {
        assert_string_equal(rec->c[k].thought, "Well.");
        assert_int_equal(rec->c[k].n_text, 0);
    }
    free(rec);
    id = CALL;
    rec = run(&r);
    for (int k = 0; k < 2; k++)
        assert_string_equal(rec->c[k].calls, "add{\"a\": 1, \"b\": [2]};");
    free(rec);
    r.n_choices = 1;
    r.max_tokens = 6;
    r.one_call = true;
    for (int least = 0; least < 4; least += 3) { /* ends behind the first call that is complete with so many tokens */
        r.min_tokens = least;
        rec = run(&r);
        assert_int_equal(rec->c[0].end.finish, TERN_FINISH_CALLBACK);
        assert_int_equal(rec->c[0].end.n_generated, least ? least : 1);
        free(rec);
    }
    tern_error err = {0};
    uint64_t n;
    reply.calls = "smoke";
    assert_int_equal(tern_loop_submit(loop, &r, q, NULL, &n, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "smoke"));
}

static void test_token_bytes(void **state)
{
    (void)state;
    char buf[80];
    size_t n;
    tern_error err = {0};
    tiny_ok(tern_model_token_bytes(model, REASONING, buf, sizeof buf, &n, &err), &err);
    assert_int_equal(n, strlen("<think>Well.</think>"));
    assert_memory_equal(buf, "<think>Well.</think>", n);
    buf[0] = 'x';
    tiny_ok(tern_model_token_bytes(model, REASONING, buf, 3, &n, &err), &err);
    assert_int_equal(n, strlen("<think>Well.</think>"));
    assert_int_equal(buf[0], 'x');
    assert_int_equal(tern_model_token_bytes(model, 100000, buf, sizeof buf, &n, &err), TERN_EINVAL);
}

/* What looks at the end of the prompt looks at none. */
static void test_no_prompt(void **state)
{
    (void)state;
    tern_error err = {0};
    tern_seq *s = NULL;
    tern_reply *reply = NULL;
    tern_generate_params p = {.max_tokens = 1, .continues = true};
    tern_sampler_defaults(&p.sampler);
    tiny_ok(tern_seq_new(&s, alone, &err), &err);
    assert_int_equal(tern_generate(alone, s, NULL, 3, &p, NULL, &err), TERN_EINVAL);
    assert_string_equal(err.msg, "the prompt is empty");
    tiny_ok(tern_reply_new(&reply, model, &(tern_reply_params){.calls = "off"}, &err), &err);
    p.continues = false;
    p.reply = reply;
    assert_int_equal(tern_generate(alone, s, NULL, 3, &p, NULL, &err), TERN_EINVAL);
    assert_string_equal(err.msg, "the prompt is empty");
    tern_reply_free(reply);
    tern_seq_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_and_stop_strings),
        cmocka_unit_test(test_which_stop_string),
        cmocka_unit_test(test_end_tokens),
        cmocka_unit_test(test_calls_and_reasoning),
        cmocka_unit_test(test_token_bytes),
        cmocka_unit_test(test_no_prompt),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

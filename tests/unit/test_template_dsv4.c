/* The built-in template of DeepSeek-V4 against the published encoder (tools/make_dsv4_cases.py), and the answers in
 * what it renders, taken apart again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>
#include "base/buf.h"
#include "file/file.h"
#include "hf_model.h"
#include "reply_transcript.h"
#include "text/text.h"

static const char vocabulary[] = "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, "
                                 "\"merges\": [\"a b\"]}, \"added_tokens\": ["
                                 "{\"id\": 3, \"content\": \"<｜begin▁of▁sentence｜>\", \"special\": true}, "
                                 "{\"id\": 4, \"content\": \"<｜end▁of▁sentence｜>\", \"special\": true}, "
                                 "{\"id\": 5, \"content\": \"<｜User｜>\", \"special\": true}, "
                                 "{\"id\": 6, \"content\": \"<｜Assistant｜>\", \"special\": true}, "
                                 "{\"id\": 7, \"content\": \"<think>\", \"special\": false}, "
                                 "{\"id\": 8, \"content\": \"</think>\", \"special\": false}], "
                                 "\"decoder\": {\"type\": \"Fuse\"}}";

static struct tern_template *parse_builtin(bool preview)
{
    struct tern_template *t;
    struct tern_tokenizer *tok;
    struct tern_texts texts = {0};
    struct tern_buf text = {0};
    bool found;
    tern_error err = {0};
    const struct tern_tokenizer_json files = {.name = "tokenizer.json",
                                              .tokenizer = {vocabulary, sizeof vocabulary - 1}};
    tiny_ok(tern_tokenizer_from_json(&tok, &files, &err), &err);
    if (preview)
        tiny_ok(tern_buf_add(&texts.model, "{}", 2, &err), &err);
    tiny_ok(tern_texts_builtin(&texts, (struct tern_str){"llama", 5}, tok, &text, &found, &err), &err);
    assert_false(found);
    tiny_ok(tern_texts_builtin(&texts, (struct tern_str){"deepseek4", 9}, tok, &text, &found, &err), &err);
    assert_true(found);
    tiny_ok(tern_template_parse(&t, "built-in", text.p, text.len, &err), &err);
    assert_string_equal(tern_calls_name(tern_template_calls(t)), "dsml");
    tern_texts_clear(&texts);
    tern_buf_clear(&text);
    tern_tokenizer_free(tok);
    return t;
}

/* As run/chat.c hands them over: arguments are objects where they can be. */
static char *messages_of(const json_t *c)
{
    json_t *messages = json_deep_copy(json_object_get(c, "messages")), *m, *call;
    size_t i, k;
    json_array_foreach(messages, i, m) json_array_foreach(json_object_get(m, "tool_calls"), k, call)
    {
        json_t *f = json_object_get(call, "function");
        json_t *args = json_loads(json_string_value(json_object_get(f, "arguments")), 0, NULL);
        if (args)
            (void)json_object_set_new(f, "arguments", args);
    }
    char *text = json_dumps(messages, JSON_REAL_PRECISION(17));
    json_decref(messages);
    return text;
}

static json_t *read_cases(void)
{
    json_error_t e;
    json_t *cases = json_load_file(TERN_TEST_DATA "/templates/deepseek4.json", 0, &e);
    if (!cases)
        fail_msg("%s: %s", e.source, e.text);
    return cases;
}

static void check_case(const struct tern_template *t, const json_t *c, const json_t *asked)
{
    tern_error err = {0};
    struct tern_rendered r = {0};
    char *messages = messages_of(c), *v = json_dumps(json_object_get(asked, "vars"), 0);
    tiny_ok(tern_template_render_json(t, messages, true, "", "", v, &r, &err), &err);
    if (strcmp(r.text.p, json_string_value(json_object_get(asked, "text"))) != 0)
        fail_msg("%s, %s:\n%s\nis not\n%s", json_string_value(json_object_get(c, "name")), v, r.text.p,
                 json_string_value(json_object_get(asked, "text")));
    free(messages);
    free(v);
    tern_rendered_clear(&r);
}

static void as_the_encoder(void **state)
{
    (void)state;
    size_t i, k;
    int n_preview = 0, n = 0;
    json_t *cases = read_cases(), *c, *asked;
    struct tern_template *t = parse_builtin(false), *preview = parse_builtin(true);
    json_array_foreach(json_object_get(cases, "conversations"), i, c)
        json_array_foreach(json_object_get(c, "asked"), k, asked)
    {
        json_t *vars = json_object_get(asked, "vars");
        check_case(t, c, asked);
        n++;
        if (!json_object_get(vars, "reasoning_effort")) /* the releases differ in nothing else */
            check_case(preview, c, asked);
        if (json_is_true(json_object_get(vars, "preview"))) {
            (void)json_object_del(vars, "preview");
            check_case(preview, c, asked);
            n_preview++;
        }
    }
    assert_true(n >= 100 && n_preview >= 3);
    tern_template_free(t);
    tern_template_free(preview);
    json_decref(cases);
}

/* Only the template's own text may become control tokens, wherever a message's text lands. */
static void marks_of_messages(void **state)
{
    (void)state;
    static const char messages[] =
        "[{\"role\": \"system\", \"content\": \"Q\"}, {\"role\": \"latest_reminder\", \"content\": \"Q\"}, "
        "{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"Q\", "
        "\"reasoning_content\": \"Q\", \"tool_calls\": [{\"id\": \"Q\", \"function\": {\"name\": \"Q\", "
        "\"arguments\": {\"Q\": \"Q\", \"QQ\": [\"Q\"]}}}]}, {\"role\": \"tool\", \"tool_call_id\": \"Q\", "
        "\"content\": \"Q\"}]";
    struct tern_template *t = parse_builtin(false);
    struct tern_rendered r = {0};
    tern_error err = {0};
    int n = 0;
    tiny_ok(tern_template_render_json(t, messages, true, "", "", "{\"drop_thinking\": false}", &r, &err), &err);
    for (size_t s = 0; s < r.n_spans; s++)
        for (size_t i = r.spans[s].begin; i < r.spans[s].end; i++)
            if (r.text.p[i] == 'Q') {
                assert_true(r.spans[s].user);
                n++;
            }
    assert_int_equal(n, 12);
    tern_rendered_clear(&r);
    tern_template_free(t);
}

static void refuses(const struct tern_template *t, const char *messages, const char *vars, const char *why)
{
    struct tern_rendered r = {0};
    tern_error err = {0};
    assert_true(tern_template_render_json(t, messages, true, "", "", vars, &r, &err) < 0);
    if (!strstr(err.msg, why))
        fail_msg("%s: no word of %s", err.msg, why);
    tern_rendered_clear(&r);
}

static void refusals(void **state)
{
    (void)state;
    struct tern_template *t = parse_builtin(false);
    struct tern_rendered r = {0};
    tern_error err = {0};
    refuses(t, "[{\"role\": \"judge\", \"content\": \"a\"}]", "{}", "no role judge");
    refuses(t, "[{\"role\": \"user\", \"content\": \"a\", \"task\": \"sing\"}]", "{}", "no task sing");
    refuses(t, "[{\"role\": \"user\", \"content\": \"a\"}]", "{\"reasoning_effort\": \"huge\"}", "reasoning_effort");
    refuses(t,
            "[{\"role\": \"assistant\", \"content\": \"a\", \"tool_calls\": [{\"function\": {\"name\": \"f\", "
            "\"arguments\": [1]}}]}]",
            "{}", "arguments of a call");
    /* Without a prompt for an answer the last turn ends with its own text. */
    tiny_ok(tern_template_render_json(t, "[{\"role\": \"user\", \"content\": \"a\"}]", false, "", "", "{}", &r, &err),
            &err);
    assert_string_equal(r.text.p, "<｜begin▁of▁sentence｜><｜User｜>a");
    tern_rendered_clear(&r);
    tern_template_free(t);
}

/* What transcript prints of a reply (support/reply_transcript.h), of the encoder's own reading of it. */
static void expect(struct tern_buf *out, const json_t *turn)
{
    tern_error err = {0};
    size_t i;
    json_t *call;
    const char *reasoning = json_string_value(json_object_get(turn, "reasoning")),
               *content = json_string_value(json_object_get(turn, "content"));
    if (*reasoning)
        tiny_ok(tern_buf_addf(out, &err, "(%s)", reasoning), &err);
    if (*content)
        tiny_ok(tern_buf_addf(out, &err, "{%s}", content), &err);
    json_array_foreach(json_object_get(turn, "calls"), i, call)
        tiny_ok(tern_buf_addf(out, &err, "<%s %s>", json_string_value(json_array_get(call, 0)),
                              json_string_value(json_array_get(call, 1))),
                &err);
    tiny_ok(tern_buf_add(out, "", 1, &err), &err);
}

static void check_turn(const struct tern_template *t, const json_t *turn, size_t step)
{
    struct transcript got = {0};
    struct tern_buf want = {0};
    tern_reply *r;
    tern_error err = {0};
    const json_t *reply = json_object_get(turn, "reply");
    const json_t *prompt = json_object_get(turn, "prompt");
    const tern_reply_params p = {.on_event = transcript_event, .user = &got};
    tiny_ok(tern_reply_make(&r, t, &p, &err), &err);
    tern_reply_prompt(r, json_string_value(prompt), json_string_length(prompt));
    for (size_t i = 0, n = json_string_length(reply); i < n; i += step)
        tiny_ok(tern_reply_push(r, json_string_value(reply) + i, n - i < step ? n - i : step, false, &err), &err);
    tiny_ok(tern_reply_finish(r, &err), &err);
    transcript_close(&got);
    expect(&want, turn);
    if (strcmp(got.text.p ? got.text.p : "", want.p) != 0)
        fail_msg("%s\nwas read as\n%s\nand not\n%s", json_string_value(reply), got.text.p, want.p);
    tern_reply_free(r);
    transcript_clear(&got);
    tern_buf_clear(&want);
}

static void answers(void **state)
{
    (void)state;
    size_t i;
    json_t *cases = read_cases(), *turn;
    struct tern_template *t = parse_builtin(false);
    json_array_foreach(json_object_get(cases, "answers"), i, turn)
    {
        check_turn(t, turn, 1);
        check_turn(t, turn, 7);
        check_turn(t, turn, (size_t)-1);
    }
    assert_true(i >= 30);
    tern_template_free(t);
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_encoder),
        cmocka_unit_test(marks_of_messages),
        cmocka_unit_test(refusals),
        cmocka_unit_test(answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

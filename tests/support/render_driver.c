/* Renders chat templates for a test script: one JSON object a line in, one a line out.
 *
 * In:  {"template", "messages" (array), "vars" (object), "bos", "eos", "add_generation_prompt"}; all but the template
 *      may be left out.
 * Out: {"text", "spans": [[begin, end, user], ...]} or {"error", "code"}.
 *
 * With "reply", a text that the template's model wrote behind "prompt" ("tools" was given):
 * Out: {"format" (of calls, or null), "content", "reasoning", "calls": [[name, arguments], ...]}. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "text/text.h"

static json_t *render(json_t *in)
{
    struct tern_template *t = NULL;
    struct tern_rendered out = {0};
    tern_error err = {0};
    const char *text = json_string_value(json_object_get(in, "template"));
    const char *bos = json_string_value(json_object_get(in, "bos"));
    const char *eos = json_string_value(json_object_get(in, "eos"));
    json_t *prompt = json_object_get(in, "add_generation_prompt");
    json_t *messages = json_object_get(in, "messages"), *vars = json_object_get(in, "vars");
    char *messages_text = messages ? json_dumps(messages, JSON_REAL_PRECISION(17)) : NULL;
    char *vars_text = vars ? json_dumps(vars, JSON_REAL_PRECISION(17)) : NULL;
    json_t *reply = json_object();
    if (!text)
        text = "";
    int rc = tern_template_parse(&t, "driver", text, strlen(text), &err);
    if (rc == 0)
        rc = tern_template_render_json(t, messages_text ? messages_text : "[]", json_is_true(prompt), bos, eos,
                                       vars_text, &out, &err);
    if (rc < 0) {
        json_object_set_new(reply, "error", json_string_nocheck(err.msg));
        json_object_set_new(reply, "code", json_integer(rc));
    } else {
        json_t *spans = json_array();
        json_object_set_new(reply, "text", json_stringn_nocheck(out.text.p, out.text.len));
        for (size_t i = 0; i < out.n_spans; i++)
            json_array_append_new(spans, json_pack("[I, I, b]", (json_int_t)out.spans[i].begin,
                                                   (json_int_t)out.spans[i].end, out.spans[i].user));
        json_object_set_new(reply, "spans", spans);
    }
    tern_rendered_clear(&out);
    tern_template_free(t);
    free(messages_text);
    free(vars_text);
    return reply;
}

struct taken {
    struct tern_buf content, reasoning;
    json_t *calls;
};

static int take(void *user, const tern_reply_event *e)
{
    struct taken *t = user;
    if (e->kind == TERN_REPLY_CONTENT || e->kind == TERN_REPLY_REASONING)
        return tern_buf_add(e->kind == TERN_REPLY_CONTENT ? &t->content : &t->reasoning, e->text, e->n, NULL) < 0;
    if (e->kind == TERN_REPLY_CALL_ARGUMENTS)
        json_array_append_new(t->calls,
                              json_pack("[o, o]", json_string_nocheck(e->name), json_stringn_nocheck(e->text, e->n)));
    return 0;
}

static json_t *take_apart(json_t *in)
{
    struct tern_template *t = NULL;
    struct taken taken = {.calls = json_array()};
    tern_error err = {0};
    tern_reply *r = NULL;
    json_t *out = json_object(), *tools = json_object_get(in, "tools"), *reply = json_object_get(in, "reply");
    char *tools_text = tools ? json_dumps(tools, 0) : NULL;
    const char *text = json_string_value(json_object_get(in, "template"));
    const char *prompt = json_string_value(json_object_get(in, "prompt"));
    const tern_reply_params p = {.tools = tools_text, .on_event = take, .user = &taken};
    int rc = tern_template_parse(&t, "driver", text ? text : "", text ? strlen(text) : 0, &err);
    if (rc == 0)
        rc = tern_reply_make(&r, t, &p, &err);
    if (rc == 0) {
        tern_reply_prompt(r, prompt ? prompt : "", prompt ? strlen(prompt) : 0);
        rc = tern_reply_push(r, json_string_value(reply), json_string_length(reply), false, &err);
    }
    if (rc == 0)
        rc = tern_reply_finish(r, &err);
    const struct tern_calls_format *f = t ? tern_template_calls(t) : NULL;
    json_object_set_new(out, "format", f ? json_string(tern_calls_name(f)) : json_null());
    json_object_set_new(out, "content",
                        json_stringn_nocheck(taken.content.p ? taken.content.p : "", taken.content.len));
    json_object_set_new(out, "reasoning",
                        json_stringn_nocheck(taken.reasoning.p ? taken.reasoning.p : "", taken.reasoning.len));
    json_object_set_new(out, "calls", taken.calls);
    if (rc < 0)
        json_object_set_new(out, "error", json_string_nocheck(err.msg));
    tern_buf_clear(&taken.content);
    tern_buf_clear(&taken.reasoning);
    tern_reply_free(r);
    tern_template_free(t);
    free(tools_text);
    return out;
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        json_error_t e;
        json_t *in = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &e);
        if (!in) {
            (void)fprintf(stderr, "render_driver: %s\n", e.text);
            free(line);
            return 1;
        }
        json_t *reply = json_object_get(in, "reply") ? take_apart(in) : render(in);
        char *text = json_dumps(reply, JSON_COMPACT | JSON_ENSURE_ASCII);
        if (text)
            (void)puts(text);
        else
            (void)puts("{\"error\":\"the reply is not UTF-8\",\"code\":0}");
        (void)fflush(stdout);
        free(text);
        json_decref(reply);
        json_decref(in);
    }
    free(line);
    return 0;
}

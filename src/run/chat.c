/* Conversations with tools: messages as JSON through a model's template, and what the template says about replies. */
#include "run/run.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Templates want the arguments of a call as an object, or as its text.  Changes all that are of the other kind and can
 * be changed. */
static void turn_arguments(json_t *messages, bool to_text)
{
    json_t *message, *call;
    size_t i, k;
    json_array_foreach(messages, i, message) json_array_foreach(json_object_get(message, "tool_calls"), k, call)
    {
        json_t *f = json_object_get(call, "function"), *args = json_object_get(f, "arguments"), *other = NULL;
        if (to_text && json_is_object(args)) {
            char *text = json_dumps(args, JSON_REAL_PRECISION(17));
            other = text ? json_string(text) : NULL;
            free(text);
        } else if (!to_text && json_is_string(args)) {
            other = json_loadb(json_string_value(args), json_string_length(args), JSON_ALLOW_NUL, NULL);
        }
        if (other)
            (void)json_object_set_new(f, "arguments", other);
    }
}

/* The template for a conversation with these variables. */
static const struct tern_template *choose(const tern_model *m, const char *vars_json)
{
    if (!m->tool_tmpl || !vars_json)
        return m->tmpl;
    json_t *vars = json_loads(vars_json, 0, NULL);
    bool tools = json_array_size(json_object_get(vars, "tools")) > 0;
    json_decref(vars);
    return tools ? m->tool_tmpl : m->tmpl;
}

static int render(const tern_model *m, const json_t *messages, const char *vars_json, bool add_generation_prompt,
                  struct tern_rendered *out, tern_error *err)
{
    char *text = json_dumps(messages, JSON_REAL_PRECISION(17));
    if (!text)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate the messages");
    int rc = tern_template_render_json(choose(m, vars_json), text, add_generation_prompt,
                                       tern_model_special(m, tern_tokenizer_bos(m->tok)),
                                       tern_model_special(m, tern_tokenizer_eos(m->tok)), vars_json, out, err);
    free(text);
    return rc;
}

/* ---- a message that goes on -------------------------------------------------------------------------------------- */

static bool blank(char c)
{
    return c && strchr(" \t\n\r\v\f", c);
}

/* Takes the mark off the last message.  *out: its text, which the reply is to go on from; NULL: it begins anew.  An
 * unfinished message without text may as well not be there, and is not. */
static int unfinished(json_t *messages, const json_t **out, tern_error *err)
{
    const size_t n = json_array_size(messages);
    json_t *last = json_array_get(messages, n - 1);
    const json_t *text = json_object_get(last, "content");
    const char *role = json_string_value(json_object_get(last, "role"));
    const bool wanted = json_is_true(json_object_get(last, "prefix"));
    *out = NULL;
    if (json_is_object(last))
        (void)json_object_del(last, "prefix");
    if (!wanted || !role || strcmp(role, "assistant") != 0 || json_array_size(json_object_get(last, "tool_calls")) > 0)
        return 0;
    if (text && !json_is_null(text) && !json_is_string(text))
        return tern_err_set(err, TERN_EINVAL, "the last message's content is no string, so no reply can go on from it");
    for (size_t i = 0; i < json_string_length(text) && !*out; i++)
        *out = blank(json_string_value(text)[i]) ? NULL : text;
    if (!*out && json_string_length(json_object_get(last, "reasoning_content")) > 0)
        return tern_err_set(err, TERN_EINVAL,
                            "the last message has reasoning and no text, so no reply can go on from it");
    if (!*out)
        (void)json_array_remove(messages, n - 1);
    return 0;
}

/* The last stretch of messages' text that is not blank; n_spans: none. */
static size_t last_said(const struct tern_rendered *r)
{
    for (size_t i = r->n_spans; i > 0; i--)
        for (size_t at = r->spans[i - 1].begin; r->spans[i - 1].user && at < r->spans[i - 1].end; at++)
            if (!blank(r->text.p[at]))
                return i - 1;
    return r->n_spans;
}

/* Ends the rendered text behind the message's, which is what was said last.  Templates may take blanks off both its
 * ends; those behind it are put there again, for the reply comes behind them. */
static int end_behind(struct tern_rendered *r, const json_t *message, tern_error *err)
{
    const char *from = json_string_value(message);
    size_t all = json_string_length(message), span = last_said(r), end = span < r->n_spans ? r->spans[span].end : 0;
    while (blank(*from))
        from++, all--;
    size_t n = all;
    while (blank(from[n - 1]))
        n--;
    while (end && blank(r->text.p[end - 1]))
        end--;
    if (end < n || memcmp(r->text.p + end - n, from, n) != 0)
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "the model's chat template does not end with the last message's text, so no reply can go "
                            "on from it");
    r->n_spans = span + 1;
    r->text.len = end;
    const int rc = tern_buf_add(&r->text, from + n, all - n, err);
    r->spans[span].end = r->text.len;
    return rc;
}

/* ---- ids --------------------------------------------------------------------------------------------------------- */

int tern_model_chat_borders(const tern_model *m, const char *messages_json, const char *vars_json,
                            bool add_generation_prompt, tern_tokens *out, tern_tokens *borders, tern_error *err)
{
    int rc = 0;
    const size_t before = out->len, n_borders = borders ? borders->len : 0;
    struct tern_rendered r = {0};
    struct tern_ids ids = {0}, turns = {0};
    json_error_t where;
    tern_error first = {0};
    json_t *messages = json_loads(messages_json, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
    TERN_TRY(tern_model_need_template(m, err));
    if (!json_is_array(messages))
        TERN_FAIL(err, TERN_EINVAL, "the messages are no JSON array%s%s", messages ? "" : ": ",
                  messages ? "" : where.text);
    const json_t *text = NULL;
    if (add_generation_prompt)
        TERN_TRY(unfinished(messages, &text, err));
    turn_arguments(messages, false);
    rc = render(m, messages, vars_json, add_generation_prompt && !text, &r, &first);
    if (rc == TERN_EINVAL) {
        turn_arguments(messages, true);
        rc = render(m, messages, vars_json, add_generation_prompt && !text, &r, NULL);
    }
    if (rc < 0)
        TERN_FAIL(err, first.code, "%s", first.msg);
    if (text)
        TERN_TRY(end_behind(&r, text, err));
    TERN_TRY(tern_tokenize_turns(m->tok, &r, &ids, borders ? &turns : NULL, err));
    if (borders)
        TERN_TRY(tern_tokens_append(borders, turns.p, turns.len, err));
    TERN_TRY(tern_tokens_append(out, ids.p, ids.len, err));
    for (size_t i = n_borders; borders && i < borders->len; i++)
        borders->p[i] += (int32_t)before;
out:
    if (rc < 0 && borders)
        borders->len = n_borders;
    tern_rendered_clear(&r);
    tern_ids_clear(&ids);
    tern_ids_clear(&turns);
    json_decref(messages);
    return rc;
}

int tern_model_chat_json(const tern_model *m, const char *messages_json, const char *vars_json,
                         bool add_generation_prompt, tern_tokens *out, tern_error *err)
{
    return tern_model_chat_borders(m, messages_json, vars_json, add_generation_prompt, out, NULL, err);
}

#define SHRINKS 8 /* what normalizing may take off a text, and more */

size_t tern_model_least_tokens(const tern_model *m, size_t bytes)
{
    return m->tok ? bytes / (SHRINKS * (tern_tokenizer_longest(m->tok) + 1)) : 0;
}

bool tern_model_chat_uses(const tern_model *m, const char *variable)
{
    if (!m->tmpl || !m->tool_tmpl)
        return m->tmpl && tern_template_says(m->tmpl, variable);
    bool with_tools = tern_template_says(m->tool_tmpl, variable);
    return with_tools && (strcmp(variable, "tools") == 0 || tern_template_says(m->tmpl, variable));
}

bool tern_model_chat_quotes(const tern_model *m, const char *text)
{
    return m->tmpl && tern_template_quotes(m->tmpl, text) &&
           (!m->tool_tmpl || tern_template_quotes(m->tool_tmpl, text));
}

const char *tern_model_chat_calls(const tern_model *m)
{
    const struct tern_template *t = m->tool_tmpl ? m->tool_tmpl : m->tmpl;
    const struct tern_calls_format *f = t ? tern_template_calls(t) : NULL;
    return f ? tern_calls_name(f) : NULL;
}

int tern_reply_new(tern_reply **out, const tern_model *m, const tern_reply_params *p, tern_error *err)
{
    return tern_reply_make(out, p->tools && m->tool_tmpl ? m->tool_tmpl : m->tmpl, p, err);
}

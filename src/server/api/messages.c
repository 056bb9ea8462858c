/* A conversation as OpenAI's API has it: checked, evened out, and turned into ids by the model's template. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/ask.h"

#define MAX_TOOLS     1024
#define MAX_TOOL_NAME 128

static int bad(struct tern_fault *f, const char *code, const char *param, const char *sentence)
{
    return tern_fault_set(f, 400, code, param, "%s %s", param, sentence);
}

/* ---- content ----------------------------------------------------------------------------------------------------- */

/* A list of parts becomes one text, a line per part. */
static int join_parts(json_t *message, const json_t *parts, const char *param, struct tern_fault *f)
{
    struct tern_buf b = {0};
    size_t i;
    json_t *part;
    json_array_foreach(parts, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *text = json_object_get(part, "text");
        char at[112];
        (void)snprintf(at, sizeof at, "%s[%zu]", param, i);
        bool is_text =
            type && (strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 || strcmp(type, "output_text") == 0);
        if (type && !is_text) {
            tern_buf_clear(&b);
            return tern_fault_set(f, 400, "unsupported_value", at,
                                  "%s: parts of type \"%.40s\" cannot be read here, only \"text\"", at, type);
        }
        if (!type || !json_is_string(text)) {
            tern_buf_clear(&b);
            return bad(f, "invalid_type", at, "must be an object with \"type\": \"text\" and a string as text");
        }
        int rc = b.len ? tern_buf_addc(&b, '\n', NULL) : 0;
        if (rc < 0 || tern_buf_add(&b, json_string_value(text), json_string_length(text), NULL) < 0) {
            tern_buf_clear(&b);
            return tern_fault_set(f, 503, NULL, NULL, "out of memory");
        }
    }
    (void)json_object_set_new(message, "content", json_stringn(b.p ? b.p : "", b.len));
    tern_buf_clear(&b);
    return 0;
}

static int check_call(json_t *call, const char *at, struct tern_fault *f)
{
    json_t *fn = json_object_get(call, "function"), *id = json_object_get(call, "id");
    const json_t *args = json_object_get(fn, "arguments");
    const bool none = !args || json_is_null(args);
    if (!json_is_object(fn) || !json_is_string(json_object_get(fn, "name")))
        return bad(f, "invalid_value", at, "must be an object with a function that has a name");
    if (id && !json_is_string(id) && !json_is_null(id))
        return bad(f, "invalid_type", at, "has an id that is no string");
    if (!none && !json_is_string(args) && !json_is_object(args))
        return bad(f, "invalid_type", at, "has arguments that are neither a string nor an object");
    if (none)
        (void)json_object_set_new(fn, "arguments", json_string("{}"));
    return 0;
}

static int check_calls(json_t *message, const char *prefix, bool assistant, struct tern_fault *f)
{
    json_t *calls = json_object_get(message, "tool_calls"), *call;
    char at[112];
    size_t i;
    (void)snprintf(at, sizeof at, "%stool_calls", prefix);
    if (!calls || json_is_null(calls) || (json_is_array(calls) && json_array_size(calls) == 0)) {
        (void)json_object_del(message, "tool_calls"); /* templates take an empty list for calls */
        return 0;
    }
    if (!json_is_array(calls))
        return bad(f, "invalid_type", at, "must be a list");
    if (!assistant)
        return bad(f, "invalid_value", at, "belongs to messages of the assistant");
    json_array_foreach(calls, i, call)
    {
        (void)snprintf(at, sizeof at, "%stool_calls[%zu]", prefix, i);
        if (check_call(call, at, f) < 0)
            return -1;
    }
    return 0;
}

/* reminders: the template has a role for them, DeepSeek-V4's. */
static int check_message(json_t *m, size_t index, bool reminders, struct tern_fault *f)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "latest_reminder"};
    const size_t n_roles = reminders ? 6 : 5;
    static const struct tern_field table[] = {
        {"name", TERN_FIELD_STR, TERN_FIELD_CHECKED, 0, 0, NULL},
        {"tool_call_id", TERN_FIELD_STR, TERN_FIELD_CHECKED, 0, 0, NULL},
        {"reasoning_content", TERN_FIELD_STR, TERN_FIELD_CHECKED, 0, 0, NULL},
        {"prefix", TERN_FIELD_BOOL, TERN_FIELD_CHECKED, 0, 0, NULL},
        {"function_call", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "calls go into tool_calls"},
        {"audio", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "there is no sound here"},
        {0},
    };
    char prefix[40], param[64];
    size_t r = 0;
    (void)snprintf(prefix, sizeof prefix, "messages[%zu]", index);
    if (!json_is_object(m))
        return bad(f, "invalid_type", prefix, "must be an object");
    (void)snprintf(prefix, sizeof prefix, "messages[%zu].", index);
    const char *role = json_string_value(json_object_get(m, "role"));
    (void)snprintf(param, sizeof param, "%srole", prefix);
    while (role && r < n_roles && strcmp(role, roles[r]) != 0)
        r++;
    if (!role || r == n_roles)
        return bad(f, "invalid_value", param,
                   reminders ? "must be one of system, developer, user, assistant, tool, latest_reminder"
                             : "must be one of system, developer, user, assistant, tool");
    if (r == 1)
        (void)json_object_set_new(m, "role", json_string("system"));
    bool assistant = r == 3;
    if (tern_fields_read(table, m, prefix, NULL, f) < 0 || check_calls(m, prefix, assistant, f) < 0)
        return -1;
    json_t *content = json_object_get(m, "content");
    (void)snprintf(param, sizeof param, "%scontent", prefix);
    if (json_is_array(content))
        return join_parts(m, content, param, f);
    if (!content || json_is_null(content)) {
        if (!assistant)
            return bad(f, "invalid_type", param, "must be a string or a list of parts");
        if (!json_object_get(m, "tool_calls"))
            (void)json_object_set_new(m, "content", json_string(""));
        else if (!content)
            (void)json_object_set_new(m, "content", json_null());
        return 0;
    }
    return json_is_string(content) ? 0 : bad(f, "invalid_type", param, "must be a string or a list of parts");
}

int tern_messages_check(struct tern_job *j, struct tern_fault *f)
{
    size_t i;
    json_t *m;
    if (!json_is_array(j->ask->messages) || json_array_size(j->ask->messages) == 0)
        return bad(f, "invalid_value", "messages", "must be a list with at least one message");
    const bool reminders = tern_model_chat_quotes(j->served->model, "latest_reminder");
    json_array_foreach(j->ask->messages, i, m)
    {
        if (check_message(m, i, reminders, f) < 0)
            return -1;
    }
    return 0;
}

bool tern_ends_unfinished(const json_t *messages)
{
    const json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    return role && strcmp(role, "assistant") == 0 && json_array_size(json_object_get(last, "tool_calls")) == 0;
}

/* Does the reply go on from the last message?  The request says so, or the message does. */
static int check_unfinished(struct tern_ask *g, struct tern_fault *f)
{
    const json_t *opens = g->opens_reply;
    json_t *last = json_array_get(g->messages, json_array_size(g->messages) - 1);
    if (opens && !json_is_boolean(opens))
        return bad(f, "invalid_type", "add_generation_prompt", "must be true or false");
    g->continues |= json_is_true(json_object_get(last, "prefix"));
    if (opens && json_is_true(opens) == g->continues)
        return bad(f, "invalid_value", "add_generation_prompt", "must be the opposite of continue_final_message");
    if (!g->continues)
        return 0;
    if (strcmp(json_string_value(json_object_get(last, "role")), "assistant") != 0)
        return bad(f, "invalid_value", "messages", "must end with the assistant's, if a reply shall go on from it");
    if (json_array_size(json_object_get(last, "tool_calls")) > 0)
        return bad(f, "invalid_value", "messages", "end with calls, which no reply can go on from");
    if (g->rule != TERN_RULE_NONE || g->call_required)
        return bad(f, "invalid_value", "messages",
                   "end with the assistant's, and a reply that must follow a format, or call a tool, begins anew");
    (void)json_object_set_new(last, "prefix", json_true());
    g->reply.begun = json_string_value(json_object_get(last, "content"));
    return 0;
}

/* ---- tools ------------------------------------------------------------------------------------------------------- */

static bool good_name(const char *s)
{
    size_t n = strlen(s);
    for (const char *p = s; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("_-.:/", *p))
            return false;
    return n > 0 && n <= MAX_TOOL_NAME;
}

static int check_tool(const json_t *tool, size_t index, struct tern_fault *f)
{
    char at[40];
    const json_t *fn = json_object_get(tool, "function"), *p = json_object_get(fn, "parameters"),
                 *strict = json_object_get(fn, "strict");
    const char *type = json_string_value(json_object_get(tool, "type")),
               *name = json_string_value(json_object_get(fn, "name"));
    (void)snprintf(at, sizeof at, "tools[%zu]", index);
    if (!type || strcmp(type, "function") != 0 || !json_is_object(fn))
        return bad(f, "invalid_value", at,
                   "must have \"type\": \"function\" and a function; there are no other tools here");
    if (!name || !good_name(name))
        return bad(f, "invalid_value", at, "must have a name of 1 to 128 letters, digits and _-.:/");
    if (p && !json_is_object(p) && !json_is_null(p))
        return bad(f, "invalid_type", at, "has parameters that are no object");
    if (strict && !json_is_boolean(strict) && !json_is_null(strict))
        return bad(f, "invalid_type", at, "has a strict that is neither true nor false");
    return 0;
}

/* Are the tools offered to the model, and must one be called? */
static int read_choice(struct tern_ask *g, bool *offered, struct tern_fault *f)
{
    const json_t *choice = g->tool_choice, *fn = json_object_get(choice, "function");
    const char *word = json_string_value(choice), *type = json_string_value(json_object_get(choice, "type")),
               *name = json_string_value(json_object_get(fn ? fn : choice, "name"));
    *offered = true;
    if (!choice || (word && strcmp(word, "auto") == 0))
        return 0;
    if (word && strcmp(word, "none") == 0) {
        *offered = false;
        return 0;
    }
    g->call_required = true;
    if (word && strcmp(word, "required") == 0)
        return 0;
    g->call_function = name;
    if (!word && type && strcmp(type, "function") == 0 && name)
        return 0;
    return bad(f, "invalid_value", "tool_choice",
               "must be \"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": ..}}");
}

bool tern_calls_several(const struct tern_ask *g)
{
    return g->parallel_calls && !g->call_function;
}

int tern_tools_check(struct tern_job *j, struct tern_fault *f)
{
    struct tern_ask *g = j->ask;
    const tern_model *m = j->served->model;
    size_t i;
    json_t *tool;
    bool offered;
    if (read_choice(g, &offered, f) < 0)
        return -1;
    if (json_array_size(g->tools) > MAX_TOOLS)
        return bad(f, "invalid_value", "tools", "must not be more than 1024");
    json_array_foreach(g->tools, i, tool)
    {
        if (check_tool(tool, i, f) < 0)
            return -1;
        g->strict_tools |= json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
    }
    if (g->call_required && json_array_size(g->tools) == 0)
        return bad(f, "invalid_value", "tool_choice", "requires a call, and there are no tools");
    if (json_array_size(g->tools) == 0 || !offered) {
        g->tools = NULL;
        return 0;
    }
    if (!tern_model_chat_uses(m, "tools"))
        return tern_fault_set(f, 400, "unsupported_parameter", "tools", "the model's chat template knows no tools");
    if (!tern_model_chat_calls(m))
        return tern_fault_set(f, 400, "unsupported_parameter", "tools",
                              "the model's chat template describes calls in no format that is known");
    g->tools_json = json_dumps(g->tools, JSON_REAL_PRECISION(17));
    return g->tools_json ? 0 : tern_fault_set(f, 503, NULL, NULL, "out of memory");
}

/* ---- variables of the template ----------------------------------------------------------------------------------- */

static int add_kwargs(const struct tern_job *j, json_t *vars, struct tern_fault *f)
{
    const char *key;
    json_t *v;
    json_object_foreach(j->ask->template_vars, key, v)
    {
        if (strcmp(key, "messages") == 0 || strcmp(key, "tools") == 0 || strcmp(key, "add_generation_prompt") == 0)
            return tern_fault_set(f, 400, "invalid_value", "chat_template_kwargs",
                                  "chat_template_kwargs: %s has a place of its own in the request", key);
        bool used = tern_model_chat_uses(j->served->model, key);
        /* Switching off what is not there asks for nothing. */
        if (!used && !json_is_false(v))
            return tern_fault_set(f, 400, "unsupported_value", "chat_template_kwargs",
                                  "chat_template_kwargs: the model's chat template has no variable \"%.60s\"", key);
        if (used)
            (void)json_object_set(vars, key, v);
    }
    return 0;
}

/* A hint: templates without such a switch go on as they do. */
static int add_effort(const struct tern_job *j, json_t *vars, struct tern_fault *f)
{
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    const tern_model *m = j->served->model;
    const char *effort = j->ask->effort;
    size_t i = 0;
    if (!effort)
        return 0;
    while (i < 7 && strcmp(effort, words[i]) != 0)
        i++;
    if (i == 7)
        return bad(f, "invalid_value", j->ask->effort_param, "must be none, minimal, low, medium, high, xhigh or max");
    const char *most = tern_model_chat_quotes(m, "max") ? "max" : "high";
    if (tern_model_chat_uses(m, "reasoning_effort") && i > 0)
        (void)json_object_set_new(vars, "reasoning_effort", json_string(i == 1 ? "low" : i > 4 ? most : effort));
    else if (tern_model_chat_uses(m, "enable_thinking") && !json_object_get(vars, "enable_thinking") &&
             !j->ask->effort_alone)
        (void)json_object_set_new(vars, "enable_thinking", json_boolean(i > 1));
    return 0;
}

/* Strict templates want a system message first or not at all, while clients send them later, too: those become the
 * user's.  False: there are none. */
static bool soften(json_t *messages)
{
    bool any = false;
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m)
    {
        bool system = i > 0 && strcmp(json_string_value(json_object_get(m, "role")), "system") == 0;
        if (system)
            (void)json_object_set_new(m, "role", json_string("user"));
        any = any || system;
    }
    return any;
}

static int render(struct tern_job *j, const json_t *vars, tern_tokens *out, tern_tokens *borders, struct tern_fault *f)
{
    tern_error err = {0};
    char *messages = json_dumps(j->ask->messages, JSON_REAL_PRECISION(17)),
         *text = json_dumps(vars, JSON_REAL_PRECISION(17));
    int rc = TERN_ENOMEM;
    if (messages && text)
        rc = tern_model_chat_borders(j->served->model, messages, text, true, out, borders, &err);
    else
        (void)tern_err_set(&err, TERN_ENOMEM, "out of memory");
    free(messages);
    free(text);
    return rc < 0 ? tern_fault_from(f, &err, "messages") : 0;
}

int tern_messages_tokens(struct tern_job *j, tern_tokens *out, tern_tokens *borders, struct tern_fault *f)
{
    int rc = -1;
    struct tern_ask *g = j->ask;
    json_t *vars = json_object();
    if (!tern_model_get_info(j->served->model)->has_template) {
        rc = tern_fault_set(f, 400, "unsupported_value", "messages",
                            "the model has no chat template; use /v1/completions");
        goto out;
    }
    if (tern_messages_check(j, f) < 0 || tern_tools_check(j, f) < 0 || check_unfinished(g, f) < 0 ||
        add_kwargs(j, vars, f) < 0 || add_effort(j, vars, f) < 0)
        goto out;
    if (g->tools)
        (void)json_object_set(vars, "tools", g->tools);
    rc = render(j, vars, out, borders, f);
    if (rc < 0 && f->status == 400 && soften(g->messages))
        rc = render(j, vars, out, borders, f);
out:
    json_decref(vars);
    return rc;
}

/* Replies of a chat: what the model may call, how it is told, and where each part of a reply goes. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/chat.h"

#define MAX_TOOLS_FILE ((size_t)1 << 24)

/* ---- tools and switches ------------------------------------------------------------------------------------------ */

/* A definition {"type": "function", "function": {"name": ..}}, or the inner object alone, as the former. */
static int add_tool(json_t *tools, json_t *tool, const char *path, tern_error *err)
{
    bool whole = json_object_get(tool, "function") != NULL;
    const json_t *f = whole ? json_object_get(tool, "function") : tool, *type = json_object_get(tool, "type");
    const char *name = json_string_value(json_object_get(f, "name"));
    if (whole && (!json_is_string(type) || strcmp(json_string_value(type), "function") != 0))
        return tern_err_set(err, TERN_EUNSUPPORTED, "%s: tool %zu is of a type that is not \"function\"", path,
                            json_array_size(tools));
    if (!name || !*name)
        return tern_err_set(err, TERN_EFORMAT, "%s: tool %zu has no name", path, json_array_size(tools));
    int failed = whole ? json_array_append(tools, tool)
                       : json_array_append_new(tools, json_pack("{ss sO}", "type", "function", "function", tool));
    return failed ? tern_err_set(err, TERN_ENOMEM, "cannot allocate the tools") : 0;
}

static int read_tools(json_t **out, const char *path, tern_error *err)
{
    int rc = 0;
    struct tern_buf text = {0};
    json_error_t where;
    json_t *root = NULL, *tool;
    size_t i;
    *out = json_array();
    TERN_TRY(tern_setup_read(&text, path, MAX_TOOLS_FILE, err));
    root = json_loadb(text.p ? text.p : "", text.len, JSON_REJECT_DUPLICATES, &where);
    if (!root)
        TERN_FAIL(err, TERN_EFORMAT, "%s: line %d: %s", path, where.line, tern_shown(where.text));
    if (!json_is_array(root) || json_array_size(root) == 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: not a JSON array of tools", path);
    json_array_foreach(root, i, tool)
    {
        TERN_TRY(add_tool(*out, tool, path, err));
    }
out:
    tern_buf_clear(&text);
    json_decref(root);
    return rc;
}

static int check_tools(const struct tern_args *a, const tern_model *m, tern_error *err)
{
    const char *format = a->v[TERN_OPT_TOOL_FORMAT].s, *path = tern_model_get_info(m)->path;
    if (format && !a->v[TERN_OPT_TOOLS].n)
        return tern_cli_usage(err, "--tool-format belongs to --tools");
    if (a->v[TERN_OPT_TOOLS].n && !tern_model_chat_uses(m, "tools"))
        return tern_err_set(err, TERN_EUNSUPPORTED, "%s: the model's chat template knows no tools", path);
    if (a->v[TERN_OPT_TOOLS].n && !format && !tern_model_chat_calls(m))
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "%s: the chat template describes calls in no format that is known; --tool-format names one",
                            path);
    return 0;
}

/* The variable that --reasoning sets in this template, and its value. */
static int set_reasoning(json_t *vars, const struct tern_args *a, const tern_model *m, tern_error *err)
{
    const char *level = a->v[TERN_OPT_REASONING].s, *name;
    if (strcmp(level, "auto") == 0)
        return 0;
    bool on = strcmp(level, "on") == 0, effort = !on && strcmp(level, "off") != 0;
    if (effort)
        name = "reasoning_effort";
    else
        name = tern_model_chat_uses(m, "enable_thinking") ? "enable_thinking" : "thinking";
    if (!tern_model_chat_uses(m, name))
        return tern_err_set(err, TERN_EUNSUPPORTED, "%s: the chat template has no switch for --reasoning %s (%s)",
                            tern_model_get_info(m)->path, level, effort ? name : "enable_thinking or thinking");
    if (strcmp(level, "max") == 0 && !tern_model_chat_quotes(m, "max"))
        return tern_err_set(err, TERN_EUNSUPPORTED, "%s: the chat template has no --reasoning max; high is the most",
                            tern_model_get_info(m)->path);
    return json_object_set_new(vars, name, effort ? json_string(level) : json_boolean(on));
}

int tern_chat_vars_init(struct tern_chat_vars *v, const struct tern_args *a, const tern_model *m, tern_error *err)
{
    int rc = 0;
    json_t *vars = json_object(), *tools = NULL;
    TERN_TRY(check_tools(a, m, err));
    TERN_TRY(set_reasoning(vars, a, m, err));
    if (a->v[TERN_OPT_TOOLS].n) {
        TERN_TRY(read_tools(&tools, a->v[TERN_OPT_TOOLS].s, err));
        v->tools = json_dumps(tools, JSON_REAL_PRECISION(17));
        rc = json_object_set(vars, "tools", tools);
    }
    if (json_object_size(vars))
        v->vars = json_dumps(vars, JSON_REAL_PRECISION(17));
    if (rc < 0 || (json_object_size(vars) && !v->vars) || (tools && !v->tools))
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the template's variables");
out:
    json_decref(vars);
    json_decref(tools);
    return rc;
}

void tern_chat_vars_clear(struct tern_chat_vars *v)
{
    free(v->tools);
    free(v->vars);
}

/* ---- a reply as it comes ----------------------------------------------------------------------------------------- */

void tern_chat_reply_begin(struct tern_chat_reply *r)
{
    tern_buf_reset(&r->content);
    tern_buf_reset(&r->reasoning);
    json_decref(r->calls);
    r->calls = NULL;
    r->last = TERN_REPLY_CONTENT;
    r->line_open = false;
    r->write_rc = 0;
}

void tern_chat_reply_clear(struct tern_chat_reply *r)
{
    tern_buf_clear(&r->content);
    tern_buf_clear(&r->reasoning);
    tern_buf_clear(&r->args);
    json_decref(r->calls);
}

/* Reasoning is talk, beside the product; on a terminal it is dim. */
static void show_reasoning(const struct tern_chat_reply *r, const char *text, size_t n)
{
    if (r->hide_reasoning)
        return;
    bool dim = isatty(STDERR_FILENO);
    (void)fputs(dim ? "\033[2m" : "", stderr);
    (void)fwrite(text, 1, n, stderr);
    (void)fputs(dim ? "\033[0m" : "", stderr);
}

static int write_out(struct tern_chat_reply *r, const char *text, size_t n, tern_error *err)
{
    int rc = tern_out_write(text, n, err);
    r->line_open = n ? text[n - 1] != '\n' : r->line_open;
    return rc < 0 ? rc : tern_out_flush(err);
}

/* What another kind of event follows begins a line of its own. */
static int end_line(struct tern_chat_reply *r, tern_error *err)
{
    bool open = r->line_open;
    r->line_open = false;
    if (!open)
        return 0;
    if (r->last == TERN_REPLY_REASONING) {
        show_reasoning(r, "\n", 1);
        return 0;
    }
    return write_out(r, "\n", 1, err);
}

static int end_call(struct tern_chat_reply *r, const tern_reply_event *e, tern_error *err)
{
    int rc = 0;
    if (!r->calls)
        r->calls = json_array();
    json_t *call = json_pack("{so ss s{so so}}", "id", tern_json_text(e->id), "type", "function", "function", "name",
                             tern_json_text(e->name), "arguments", tern_json_text(r->args.p));
    if (!call || json_array_append_new(r->calls, call) < 0)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate a call");
    TERN_TRY(write_out(r, "call ", 5, err));
    TERN_TRY(write_out(r, e->name, strlen(e->name), err));
    TERN_TRY(write_out(r, " ", 1, err));
    for (size_t i = 0; i < r->args.len; i++) /* one line; outside strings a newline is a space */
        if (r->args.p[i] == '\n' || r->args.p[i] == '\r')
            r->args.p[i] = ' ';
    TERN_TRY(write_out(r, r->args.p, r->args.len, err));
    TERN_TRY(write_out(r, "\n", 1, err));
out:
    return rc;
}

static int take_event(struct tern_chat_reply *r, const tern_reply_event *e, tern_error *err)
{
    int rc = 0;
    if (e->kind != r->last)
        TERN_TRY(end_line(r, err));
    r->last = e->kind;
    switch (e->kind) {
    case TERN_REPLY_CONTENT:
        TERN_TRY(tern_buf_add(&r->content, e->text, e->n, err));
        return write_out(r, e->text, e->n, err);
    case TERN_REPLY_REASONING:
        TERN_TRY(tern_buf_add(&r->reasoning, e->text, e->n, err));
        show_reasoning(r, e->text, e->n);
        r->line_open = e->text[e->n - 1] != '\n';
        break;
    case TERN_REPLY_CALL_BEGIN:
        tern_buf_reset(&r->args);
        break;
    case TERN_REPLY_CALL_ARGUMENTS:
        return tern_buf_add(&r->args, e->text, e->n, err);
    case TERN_REPLY_CALL_END:
        return end_call(r, e, err);
    case TERN_REPLY_NOTICE:
        tern_note("%.*s", (int)e->n, e->text);
        break;
    }
out:
    return rc;
}

int tern_chat_reply_event(void *reply, const tern_reply_event *e)
{
    struct tern_chat_reply *r = reply;
    tern_progress_end(r->bar);
    r->write_rc = take_event(r, e, &r->write_err);
    if (r->loop && tern_chat_loop_look(r->loop, tern_seq_tokens(r->seq), tern_seq_length(r->seq)))
        return 1;
    return r->write_rc < 0 || tern_signals_interrupted();
}

int tern_chat_reply_end(struct tern_chat_reply *r, tern_error *err)
{
    bool nothing = !r->content.len && !r->calls;
    int rc = end_line(r, err);
    return rc == 0 && nothing ? write_out(r, "\n", 1, err) : rc;
}

int tern_chat_reply_more(const struct tern_chat_reply *r, json_t **out, tern_error *err)
{
    *out = NULL;
    if (!r->calls && !r->reasoning.len)
        return 0;
    *out = json_object();
    int failed = r->calls ? json_object_set(*out, "tool_calls", r->calls) : 0;
    if (r->reasoning.len)
        failed |= json_object_set_new(*out, "reasoning_content", tern_json_text(r->reasoning.p));
    return failed ? tern_err_set(err, TERN_ENOMEM, "cannot allocate a reply") : 0;
}

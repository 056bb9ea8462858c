/* POST /v1/messages and /v1/messages/count_tokens: the API of Anthropic, by way of OpenAI's conversations. */
#include <stdlib.h>
#include <string.h>

#include "server/api/ask.h"

#define AT TERN_ASK_AT

static const struct tern_field fields[] = {
    {"model", TERN_FIELD_STR, AT(model), 0, 512, NULL},
    {"messages", TERN_FIELD_ARR, AT(messages), 0, 0, NULL},
    {"max_tokens", TERN_FIELD_INT, AT(max_tokens), 1, INT32_MAX, NULL},
    {"system", TERN_FIELD_ANY, AT(system), 0, 0, NULL},
    {"stop_sequences", TERN_FIELD_ARR, AT(stop), 0, 0, NULL},
    {"stream", TERN_FIELD_BOOL, AT(stream), 0, 0, NULL},
    {"temperature", TERN_FIELD_NUM, AT(temperature), 0, 100, NULL},
    {"top_k", TERN_FIELD_INT, AT(top_k), 0, INT32_MAX, NULL},
    {"top_p", TERN_FIELD_NUM, AT(top_p), 0, 1, NULL},
    {"tools", TERN_FIELD_ARR, AT(tools), 0, 0, NULL},
    {"tool_choice", TERN_FIELD_OBJ, AT(tool_choice), 0, 0, NULL},
    {"thinking", TERN_FIELD_OBJ, AT(thinking), 0, 0, NULL},
    {"metadata", TERN_FIELD_OBJ, TERN_FIELD_CHECKED, 0, 0, NULL},
    {"output_format", TERN_FIELD_OBJ, AT(format), 0, 0, NULL},
    {"output_config", TERN_FIELD_OBJ, AT(structured), 0, 0, NULL},
    {"mcp_servers", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "there are no MCP servers here"},
    {"container", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "there are no containers here"},
    {0},
};

static int bad(struct tern_fault *f, const char *param, const char *sentence)
{
    return tern_fault_set(f, 400, "invalid_value", param, "%s %s", param, sentence);
}

/* ---- conversations ----------------------------------------------------------------------------------------------- */

static void add_text(struct tern_buf *b, const json_t *text)
{
    if (b->len)
        tern_json_add(b, "\n", 1);
    tern_json_add(b, json_string_value(text), json_string_length(text)); /* it may have NUL characters */
}

/* A text, or the texts of a list of text blocks; NULL: something else.  `volatile_head`: without the block that
 * changes with every request of one client and would keep prompts from sharing their beginning. */
static json_t *block_text(const json_t *content, bool volatile_head)
{
    struct tern_buf b = {0};
    size_t i;
    json_t *block, *out = NULL;
    if (json_is_string(content))
        return json_stringn(json_string_value(content), json_string_length(content));
    if (content && !json_is_null(content) && !json_is_array(content))
        return NULL;
    json_array_foreach(content, i, block)
    {
        const char *type = json_string_value(json_object_get(block, "type"));
        const json_t *text = json_object_get(block, "text");
        if (!type || strcmp(type, "text") != 0 || !json_is_string(text))
            goto out;
        if (volatile_head && strncmp(json_string_value(text), "x-anthropic-billing-header", 26) == 0)
            continue;
        add_text(&b, text);
    }
    out = json_stringn(b.p ? b.p : "", b.len);
out:
    tern_buf_clear(&b);
    return out;
}

struct turn { /* a message on its way into OpenAI's shape */
    json_t *out;
    struct tern_buf text, thought;
    json_t *calls;
    bool assistant;
};

static int tool_result(struct turn *t, const json_t *block, const char *at, struct tern_fault *f)
{
    json_t *id = json_object_get(block, "tool_use_id"), *text = block_text(json_object_get(block, "content"), false);
    if (!text || !json_is_string(id)) {
        json_decref(text);
        return bad(f, at, "must have a tool_use_id, and text as content");
    }
    (void)json_array_append_new(t->out, json_pack("{ss sO so}", "role", "tool", "tool_call_id", id, "content", text));
    return 0;
}

static int tool_use(struct turn *t, const json_t *block, const char *at, struct tern_fault *f)
{
    json_t *id = json_object_get(block, "id"), *name = json_object_get(block, "name");
    json_t *input = json_object_get(block, "input");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_object(input))
        return bad(f, at, "must have an id, a name and an object as input");
    char *arguments = json_dumps(input, JSON_COMPACT | JSON_REAL_PRECISION(17));
    if (!t->calls)
        t->calls = json_array();
    (void)json_array_append_new(t->calls, json_pack("{sO ss s{sO so}}", "id", id, "type", "function", "function",
                                                    "name", name, "arguments", tern_json_cstr(arguments)));
    free(arguments);
    return 0;
}

static int add_block(struct turn *t, const json_t *block, const char *at, struct tern_fault *f)
{
    const char *type = json_string_value(json_object_get(block, "type"));
    const json_t *text = json_object_get(block, "text"), *thought = json_object_get(block, "thinking");
    if (!type)
        return bad(f, at, "has no type");
    if (strcmp(type, "text") == 0) {
        if (!json_is_string(text))
            return bad(f, at, "must have a string as text");
        add_text(&t->text, text);
        return 0;
    }
    if (t->assistant && strcmp(type, "thinking") == 0 && json_is_string(thought)) {
        add_text(&t->thought, thought);
        return 0;
    }
    if (t->assistant && strcmp(type, "redacted_thinking") == 0)
        return 0;
    if (t->assistant && strcmp(type, "tool_use") == 0)
        return tool_use(t, block, at, f);
    if (!t->assistant && strcmp(type, "tool_result") == 0)
        return tool_result(t, block, at, f);
    return tern_fault_set(f, 400, "unsupported_value", at, "%s: blocks of type \"%.40s\" cannot be read here", at,
                          type);
}

static int add_message(json_t *out, const json_t *m, size_t index, struct tern_fault *f)
{
    struct turn t = {.out = out};
    char at[64];
    const char *role = json_string_value(json_object_get(m, "role"));
    const json_t *content = json_object_get(m, "content");
    json_t *block;
    size_t i;
    int rc = 0;
    (void)snprintf(at, sizeof at, "messages[%zu]", index);
    if (!role || (strcmp(role, "user") != 0 && strcmp(role, "assistant") != 0))
        return bad(f, at, "must have the role user or assistant");
    t.assistant = role[0] == 'a';
    if (json_is_string(content))
        add_text(&t.text, content);
    else if (!json_is_array(content))
        return bad(f, at, "must have a string or a list of blocks as content");
    json_array_foreach(content, i, block)
    {
        (void)snprintf(at, sizeof at, "messages[%zu].content[%zu]", index, i);
        rc = rc < 0 ? rc : add_block(&t, block, at, f);
    }
    bool results = !t.assistant && json_is_array(content) && !t.text.len && json_array_size(content) > 0;
    if (rc == 0 && !results) { /* results of tools are messages of their own, and may be all there is */
        json_t *to =
            json_pack("{ss so}", "role", role, "content", tern_json_chars(t.text.p ? t.text.p : "", t.text.len));
        if (t.calls)
            (void)json_object_set(to, "tool_calls", t.calls);
        if (t.thought.len)
            (void)json_object_set_new(to, "reasoning_content", tern_json_chars(t.thought.p, t.thought.len));
        (void)json_array_append_new(out, to);
    }
    json_decref(t.calls);
    tern_buf_clear(&t.text);
    tern_buf_clear(&t.thought);
    return rc;
}

static int convert_messages(struct tern_ask *g, struct tern_fault *f)
{
    json_t *out = tern_ask_own(g, json_array()), *m, *system = block_text(g->system, true);
    size_t i;
    if (!system)
        return bad(f, "system", "must be a string or a list of text blocks");
    if (json_string_length(system) > 0)
        (void)json_array_append_new(out, json_pack("{ss sO}", "role", "system", "content", system));
    json_decref(system);
    if (json_array_size(g->messages) == 0)
        return bad(f, "messages", "must be a list with at least one message");
    json_array_foreach(g->messages, i, m)
    {
        if (add_message(out, m, i, f) < 0)
            return -1;
    }
    g->messages = out;
    g->continues = tern_ends_unfinished(out);
    return 0;
}

static int convert_tools(struct tern_ask *g, struct tern_fault *f)
{
    json_t *out = tern_ask_own(g, json_array()), *tool;
    const char *choice = json_string_value(json_object_get(g->tool_choice, "type"));
    size_t i;
    json_array_foreach(g->tools, i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        char at[40];
        (void)snprintf(at, sizeof at, "tools[%zu]", i);
        if (type && strcmp(type, "custom") != 0)
            return tern_fault_set(f, 400, "unsupported_value", at, "%s: there is no tool of type \"%.40s\" here", at,
                                  type);
        if (!json_is_string(json_object_get(tool, "name")) || !json_is_object(json_object_get(tool, "input_schema")))
            return bad(f, at, "must have a name and an object as input_schema");
        json_t *fn = json_pack("{sO sO}", "name", json_object_get(tool, "name"), "parameters",
                               json_object_get(tool, "input_schema"));
        if (json_is_string(json_object_get(tool, "description")))
            (void)json_object_set(fn, "description", json_object_get(tool, "description"));
        if (json_is_true(json_object_get(tool, "strict")))
            (void)json_object_set_new(fn, "strict", json_true());
        (void)json_array_append_new(out, json_pack("{ss so}", "type", "function", "function", fn));
    }
    if (g->tool_choice && !choice)
        return bad(f, "tool_choice", "has no type");
    if (choice && strcmp(choice, "any") != 0 && strcmp(choice, "tool") != 0 && strcmp(choice, "auto") != 0 &&
        strcmp(choice, "none") != 0)
        return bad(f, "tool_choice", "must be of type auto, none, any or tool");
    g->parallel_calls = !json_is_true(json_object_get(g->tool_choice, "disable_parallel_tool_use"));
    g->tools = out;
    json_t *name = json_object_get(g->tool_choice, "name");
    if (choice && strcmp(choice, "tool") == 0 && !json_is_string(name))
        return bad(f, "tool_choice", "has no name");
    if (choice && strcmp(choice, "tool") == 0)
        g->tool_choice = tern_ask_own(g, json_pack("{ss s{sO}}", "type", "function", "function", "name", name));
    else
        g->tool_choice = choice ? tern_ask_own(g, json_string(strcmp(choice, "any") == 0 ? "required" : choice)) : NULL;
    return 0;
}

/* {"format": ..}: the newer place of output_format; {"effort": ..}: how much is thought, if it is. */
static int convert_output(struct tern_ask *g, struct tern_fault *f)
{
    json_t *format = json_object_get(g->structured, "format"), *effort = json_object_get(g->structured, "effort");
    g->structured = NULL;
    g->effort = json_string_value(effort);
    g->effort_param = "output_config.effort";
    g->effort_alone = true;
    if (effort && !json_is_null(effort) && !json_is_string(effort))
        return bad(f, "output_config.effort", "must be a string");
    g->format_param = "output_format";
    g->stop_param = "stop_sequences";
    if (!format || json_is_null(format))
        return 0;
    if (!json_is_object(format) || g->format)
        return bad(f, "output_config.format", "must be an object, and output_format absent");
    g->format = format;
    g->format_param = "output_config.format";
    return 0;
}

/* A switch where the template has one; how long the model thinks cannot be limited here. */
static int convert_thinking(struct tern_job *j, struct tern_fault *f)
{
    const char *type = json_string_value(json_object_get(j->ask->thinking, "type"));
    if (!j->ask->thinking)
        return 0;
    if (!type || (strcmp(type, "enabled") != 0 && strcmp(type, "disabled") != 0 && strcmp(type, "adaptive") != 0))
        return bad(f, "thinking", "must be of type enabled, disabled or adaptive");
    if (type[0] != 'a' && tern_model_chat_uses(j->served->model, "enable_thinking"))
        j->ask->template_vars =
            tern_ask_own(j->ask, json_pack("{sb}", "enable_thinking", strcmp(type, "enabled") == 0));
    return 0;
}

static int read_conversation(struct tern_job *j, struct tern_fault *f)
{
    if (tern_ask_read(j, fields, f) < 0 || convert_messages(j->ask, f) < 0 || convert_tools(j->ask, f) < 0 ||
        convert_output(j->ask, f) < 0 || convert_thinking(j, f) < 0)
        return -1;
    return 0;
}

static int prepare(struct tern_job *j, struct tern_fault *f)
{
    if (read_conversation(j, f) < 0)
        return -1;
    if (j->ask->max_tokens == TERN_ASK_UNSET)
        return tern_fault_set(f, 400, "missing_required_parameter", "max_tokens", "max_tokens is missing");
    j->items = json_array();
    tern_ask_name(j, "msg_");
    return tern_ask_request(j, f) < 0 ? -1 : tern_ask_conversation(j, f);
}

static int count_tokens(struct tern_job *j, struct tern_fault *f)
{
    if (read_conversation(j, f) < 0 || tern_job_lanes(j, 1, f) < 0 ||
        tern_messages_tokens(j, &j->lanes[0].ids, NULL, f) < 0)
        return -1;
    j->answer = json_pack("{sI}", "input_tokens", (json_int_t)j->lanes[0].ids.len);
    return 0;
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static const char *stop_reason(const struct tern_choice *c)
{
    switch (c->end.finish) {
    case TERN_FINISH_LENGTH:
        return "max_tokens";
    case TERN_FINISH_CONTEXT:
        return "model_context_window_exceeded";
    case TERN_FINISH_STOP:
        return c->end.stop >= 0 ? "stop_sequence" : "end_turn";
    default:
        return c->calls ? "tool_use" : "end_turn";
    }
}

static json_t *stop_sequence(const struct tern_job *j, const struct tern_choice *c)
{
    bool stopped = c->end.finish == TERN_FINISH_STOP && c->end.stop >= 0;
    return tern_json_cstr(stopped ? j->ask->stops[c->end.stop] : NULL);
}

/* input_tokens are those that were not in the cache. */
static json_t *usage(const struct tern_job *j, int output)
{
    const struct tern_lane *lane = &j->lanes[0];
    return json_pack("{si si si si}", "input_tokens", (int)lane->ids.len - lane->n_cached,
                     "cache_creation_input_tokens", 0, "cache_read_input_tokens", lane->n_cached, "output_tokens",
                     output);
}

static void end_whole(struct tern_job *j)
{
    const struct tern_choice *c = &j->choices[0];
    if (json_array_size(j->items) == 0)
        (void)json_array_append_new(j->items, json_pack("{ss ss}", "type", "text", "text", ""));
    tern_job_answer(j,
                    json_pack("{ss ss ss so sO ss so so}", "id", j->id, "type", "message", "role", "assistant", "model",
                              tern_json_cstr(j->served->name), "content", j->items, "stop_reason", stop_reason(c),
                              "stop_sequence", stop_sequence(j, c), "usage", usage(j, j->n_generated)));
}

/* An event of the stream; its data are taken. */
static void say(struct tern_job *j, const char *type, json_t *data)
{
    if (j->stream)
        tern_job_sse(j, type, data);
    else
        json_decref(data);
}

/* The open block of a whole answer, j->items' last, gets what it is made of. */
static void complete_block(struct tern_job *j, const struct tern_choice *c)
{
    json_t *block = json_array_get(j->items, (size_t)c->n_parts);
    const char *text = c->text.p ? c->text.p : "";
    if (c->part == TERN_EVENT_CALL_BEGIN)
        (void)json_object_set_new(block, "input", tern_json_arguments(text, c->text.len));
    else
        (void)json_object_set_new(block, c->part == TERN_EVENT_TEXT ? "text" : "thinking",
                                  tern_json_chars(text, c->text.len));
    if (c->part == TERN_EVENT_REASONING)
        (void)json_object_set_new(block, "signature", json_string("tern"));
}

/* c->part: the event kind of the open block, 0: none; c->text: what it has so far, in a whole answer. */
static void close_block(struct tern_job *j, struct tern_choice *c)
{
    if (!c->part)
        return;
    if (!j->stream)
        complete_block(j, c);
    if (c->part == TERN_EVENT_REASONING)
        say(j, "content_block_delta",
            json_pack("{ss si s{ss ss}}", "type", "content_block_delta", "index", c->n_parts, "delta", "type",
                      "signature_delta", "signature", "tern"));
    say(j, "content_block_stop", json_pack("{ss si}", "type", "content_block_stop", "index", c->n_parts));
    c->part = 0;
    c->n_parts++;
}

static void open_block(struct tern_job *j, struct tern_choice *c, int kind, json_t *block)
{
    close_block(j, c);
    c->part = kind;
    tern_buf_reset(&c->text);
    if (!j->stream)
        (void)json_array_append(j->items, block);
    say(j, "content_block_start",
        json_pack("{ss si so}", "type", "content_block_start", "index", c->n_parts, "content_block", block));
}

static void add_delta(struct tern_job *j, struct tern_choice *c, const char *type, const char *member,
                      const tern_event *e)
{
    if (!j->stream)
        tern_json_add(&c->text, e->text, e->n);
    else
        tern_job_sse(j, "content_block_delta",
                     json_pack("{ss si s{ss so}}", "type", "content_block_delta", "index", c->n_parts, "delta", "type",
                               type, member, tern_json_chars(e->text, e->n)));
}

static void open_stream(struct tern_job *j)
{
    tern_job_sse(j, "message_start",
                 json_pack("{ss s{ss ss ss so s[] sn sn so}}", "type", "message_start", "message", "id", j->id, "type",
                           "message", "role", "assistant", "model", tern_json_cstr(j->served->name), "content",
                           "stop_reason", "stop_sequence", "usage", usage(j, 0)));
}

static void piece(struct tern_job *j, struct tern_choice *c, const tern_event *e)
{
    switch (e->kind) {
    case TERN_EVENT_TEXT:
        if (c->part != TERN_EVENT_TEXT)
            open_block(j, c, TERN_EVENT_TEXT, json_pack("{ss ss}", "type", "text", "text", ""));
        add_delta(j, c, "text_delta", "text", e);
        break;
    case TERN_EVENT_REASONING:
        if (c->part != TERN_EVENT_REASONING)
            open_block(j, c, TERN_EVENT_REASONING,
                       json_pack("{ss ss ss}", "type", "thinking", "thinking", "", "signature", ""));
        add_delta(j, c, "thinking_delta", "thinking", e);
        break;
    case TERN_EVENT_CALL_BEGIN:
        open_block(j, c, TERN_EVENT_CALL_BEGIN,
                   json_pack("{ss so so s{}}", "type", "tool_use", "id", tern_json_cstr(e->call_id), "name",
                             tern_json_cstr(e->name), "input"));
        break;
    case TERN_EVENT_CALL_ARGUMENTS:
        add_delta(j, c, "input_json_delta", "partial_json", e);
        break;
    case TERN_EVENT_CALL_END:
        close_block(j, c);
        break;
    default:
        break;
    }
}

static void choice_end(struct tern_job *j, struct tern_choice *c)
{
    close_block(j, c);
    say(j, "message_delta",
        json_pack("{ss s{ss so} so}", "type", "message_delta", "delta", "stop_reason", stop_reason(c), "stop_sequence",
                  stop_sequence(j, c), "usage", usage(j, c->end.n_generated)));
}

static void end(struct tern_job *j)
{
    if (j->stream)
        tern_job_sse(j, "message_stop", json_pack("{ss}", "type", "message_stop"));
    else
        end_whole(j);
}

static void ping(struct tern_job *j)
{
    tern_job_sse(j, "ping", json_pack("{ss}", "type", "ping"));
}

static void failed(struct tern_job *j, const struct tern_fault *f)
{
    tern_job_sse(j, "error", tern_fault_json(f, TERN_SHAPE_ANTHROPIC));
}

const struct tern_api tern_api_messages = {
    .shape = TERN_SHAPE_ANTHROPIC,
    .stream_type = "text/event-stream; charset=utf-8",
    .prepare = prepare,
    .keeps_order = true,
    .open = open_stream,
    .piece = piece,
    .choice_end = choice_end,
    .end = end,
    .ping = ping,
    .failed = failed,
};
const struct tern_api tern_api_count = {.shape = TERN_SHAPE_ANTHROPIC, .prepare = count_tokens};

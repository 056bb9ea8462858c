/* POST /v1/responses: OpenAI's newer API, without state: the client sends the whole conversation each time. */
#include <stdlib.h>
#include <string.h>

#include "server/api/ask.h"

#define AT TERN_ASK_AT

static const char no_state[] = "nothing is kept between requests here; send the whole conversation as input";

static const char no_logprobs[] = "ask /v1/chat/completions for log probabilities";

static const struct tern_field fields[] = {
    {"model", TERN_FIELD_STR, AT(model), 0, 512, NULL},
    {"input", TERN_FIELD_ANY, AT(input), 0, 0, NULL},
    {"instructions", TERN_FIELD_STR, AT(system_text), 0, 0, NULL},
    {"stream", TERN_FIELD_BOOL, AT(stream), 0, 0, NULL},
    {"max_output_tokens", TERN_FIELD_INT, AT(max_tokens), 1, INT32_MAX, NULL},
    {"temperature", TERN_FIELD_NUM, AT(temperature), 0, 100, NULL},
    {"top_p", TERN_FIELD_NUM, AT(top_p), 0, 1, NULL},
    {"tools", TERN_FIELD_ARR, AT(tools), 0, 0, NULL},
    {"tool_choice", TERN_FIELD_ANY, AT(tool_choice), 0, 0, NULL},
    {"parallel_tool_calls", TERN_FIELD_BOOL, AT(parallel_calls), 0, 0, NULL},
    {"reasoning", TERN_FIELD_OBJ, AT(thinking), 0, 0, NULL},
    {"text", TERN_FIELD_OBJ, AT(prompt), 0, 0, NULL},
    {"metadata", TERN_FIELD_OBJ, TERN_FIELD_CHECKED, 0, 0, NULL},
    {"include", TERN_FIELD_ARR, AT(include), 0, 0, NULL},
    {"store", TERN_FIELD_BOOL, TERN_FIELD_CHECKED, 0, 0, NULL},
    {"truncation", TERN_FIELD_STR, AT(text), 0, 0, NULL},
    {"user", TERN_FIELD_STR, AT(user), 0, 0, NULL},
    {"service_tier", TERN_FIELD_STR, TERN_FIELD_CHECKED, 0, 0, NULL},
    {"prompt_cache_key", TERN_FIELD_STR, TERN_FIELD_CHECKED, 0, 0, NULL},
    {"previous_response_id", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, no_state},
    {"conversation", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, no_state},
    {"background", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, no_state},
    {"prompt", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "there are no stored prompts here"},
    {"top_logprobs", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 0, 0, no_logprobs},
    {0},
};

/* ---- input ------------------------------------------------------------------------------------------------------- */

static int bad(struct tern_fault *f, const char *param, const char *sentence)
{
    return tern_fault_set(f, 400, "invalid_value", param, "%s %s", param, sentence);
}

/* The message of the assistant that calls and reasoning belong to: the last one, or a new one. */
static json_t *assistant(json_t *out)
{
    json_t *last = json_array_get(out, json_array_size(out) - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (json_array_size(out) && role && strcmp(role, "assistant") == 0)
        return last;
    last = json_pack("{ss sn}", "role", "assistant", "content");
    (void)json_array_append_new(out, last);
    return last;
}

static int add_call(json_t *out, const json_t *item, const char *at, struct tern_fault *f)
{
    json_t *id = json_object_get(item, "call_id"), *name = json_object_get(item, "name"),
           *arguments = json_object_get(item, "arguments");
    if (!json_is_string(id) || !json_is_string(name) || !json_is_string(arguments))
        return bad(f, at, "must have a call_id, a name and a text as arguments");
    json_t *m = assistant(out), *calls = json_object_get(m, "tool_calls");
    if (!calls) {
        calls = json_array();
        (void)json_object_set_new(m, "tool_calls", calls);
    }
    (void)json_array_append_new(calls, json_pack("{sO ss s{sO sO}}", "id", id, "type", "function", "function", "name",
                                                 name, "arguments", arguments));
    return 0;
}

static int add_item(json_t *out, json_t *item, const char *at, struct tern_fault *f)
{
    const char *type = json_string_value(json_object_get(item, "type"));
    json_t *output = json_object_get(item, "output");
    if (!json_is_object(item))
        return bad(f, at, "must be an object");
    if (!type || strcmp(type, "message") == 0) {
        json_t *role = json_object_get(item, "role"), *content = json_object_get(item, "content");
        if (!json_is_string(role) || !content)
            return bad(f, at, "must have a role and content");
        (void)json_array_append_new(out, json_pack("{sO sO}", "role", role, "content", content));
        return 0;
    }
    if (strcmp(type, "function_call") == 0)
        return add_call(out, item, at, f);
    if (strcmp(type, "function_call_output") == 0) {
        if (!json_is_string(json_object_get(item, "call_id")) || !output)
            return bad(f, at, "must have a call_id and an output");
        (void)json_array_append_new(out, json_pack("{ss sO sO}", "role", "tool", "tool_call_id",
                                                   json_object_get(item, "call_id"), "content", output));
        return 0;
    }
    if (strcmp(type, "reasoning") == 0) /* what the model thought before; templates leave it out as well */
        return 0;
    return tern_fault_set(f, 400, "unsupported_value", at, "%s: items of type \"%.40s\" cannot be read here", at, type);
}

static int convert_input(struct tern_ask *g, struct tern_fault *f)
{
    json_t *out = tern_ask_own(g, json_array()), *item;
    size_t i;
    if (!g->input)
        return tern_fault_set(f, 400, "missing_required_parameter", "input", "input is missing");
    if (g->system_text)
        (void)json_array_append_new(out, json_pack("{ss ss}", "role", "system", "content", g->system_text));
    if (json_is_string(g->input))
        (void)json_array_append_new(out, json_pack("{ss sO}", "role", "user", "content", g->input));
    else if (!json_is_array(g->input) || json_array_size(g->input) == 0)
        return bad(f, "input", "must be a string or a list of items");
    json_array_foreach(g->input, i, item)
    {
        char at[32];
        (void)snprintf(at, sizeof at, "input[%zu]", i);
        if (add_item(out, item, at, f) < 0)
            return -1;
    }
    g->messages = out;
    return 0;
}

static int convert_tools(struct tern_ask *g, struct tern_fault *f)
{
    json_t *out = tern_ask_own(g, json_array()), *tool;
    size_t i;
    json_array_foreach(g->tools, i, tool)
    {
        const char *type = json_string_value(json_object_get(tool, "type"));
        char at[32];
        (void)snprintf(at, sizeof at, "tools[%zu]", i);
        if (!type || strcmp(type, "function") != 0)
            return tern_fault_set(f, 400, "unsupported_value", at, "%s: there is no tool of type \"%.40s\" here", at,
                                  type ? type : "");
        json_t *fn = json_copy(tool);
        (void)json_object_del(fn, "type");
        (void)json_array_append_new(out, json_pack("{ss so}", "type", "function", "function", fn));
    }
    g->tools = out;
    return 0;
}

static int read_rest(struct tern_ask *g, struct tern_fault *f)
{
    json_t *format = json_object_get(g->prompt, "format");
    g->format_param = "text.format";
    g->effort_param = "reasoning.effort";
    if (format && !json_is_object(format) && !json_is_null(format))
        return bad(f, "text.format", "must be an object");
    g->format = json_is_object(format) ? format : NULL;
    if (g->text && strcmp(g->text, "disabled") != 0)
        return bad(f, "truncation", "must be \"disabled\": a conversation that is too long is refused");
    size_t i;
    const json_t *more;
    json_array_foreach(g->include, i, more)
    {
        const char *name = json_string_value(more);
        if (!name)
            return bad(f, "include", "must be a list of strings");
        if (strcmp(name, "message.output_text.logprobs") == 0)
            return tern_fault_set(f, 400, "unsupported_value", "include", "include: %s: %s", name, no_logprobs);
    }
    json_t *effort = json_object_get(g->thinking, "effort");
    if (effort && !json_is_null(effort) && !json_is_string(effort))
        return bad(f, "reasoning.effort", "must be a string");
    g->effort = json_string_value(effort);
    return 0;
}

static int prepare(struct tern_job *j, struct tern_fault *f)
{
    if (tern_ask_read(j, fields, f) < 0)
        return -1;
    struct tern_ask *g = j->ask;
    if (read_rest(g, f) < 0)
        return -1;
    g->prompt = NULL;
    j->items = json_array();
    if (convert_input(g, f) < 0 || convert_tools(g, f) < 0)
        return -1;
    tern_ask_name(j, "resp_");
    return tern_ask_request(j, f) < 0 ? -1 : tern_ask_conversation(j, f);
}

/* ---- the answer -------------------------------------------------------------------------------------------------- */

static json_t *number_or_null(double v)
{
    return v == v ? json_real(v) : json_null();
}

static json_t *response(const struct tern_job *j, const char *status)
{
    const struct tern_ask *g = j->ask;
    json_t *metadata = json_object_get(j->root, "metadata");
    bool over = strcmp(status, "in_progress") != 0, cut = strcmp(status, "incomplete") == 0;
    json_t *usage =
        over ? json_pack("{si s{si} si s{si} si}", "input_tokens", j->n_prompt, "input_tokens_details", "cached_tokens",
                         j->n_cached, "output_tokens", j->n_generated, "output_tokens_details", "reasoning_tokens",
                         j->n_reasoning, "total_tokens", j->n_prompt + j->n_generated)
             : json_null();
    json_t *r = json_pack("{ss ss sI ss sn so so so so so sb sn so sb so}", "id", j->id, "object", "response",
                          "created_at", (json_int_t)j->created, "status", status, "error", "incomplete_details",
                          cut ? json_pack("{ss}", "reason", "max_output_tokens") : json_null(), "instructions",
                          tern_json_cstr(g->system_text), "max_output_tokens",
                          g->max_tokens > 0 ? json_integer(g->max_tokens) : json_null(), "model",
                          tern_json_cstr(j->served->name), "output", json_copy(j->items), "parallel_tool_calls",
                          g->parallel_calls, "previous_response_id", "temperature", number_or_null(g->temperature),
                          "store", 0, "top_p", number_or_null(g->top_p));
    json_t *more =
        json_pack("{so so ss so so so s{so sn} s{so}}", "tool_choice",
                  g->tool_choice ? json_incref(g->tool_choice) : json_string("auto"), "tools",
                  json_is_array(json_object_get(j->root, "tools")) ? json_incref(json_object_get(j->root, "tools"))
                                                                   : json_array(),
                  "truncation", "disabled", "usage", usage, "metadata",
                  json_is_object(metadata) ? json_incref(metadata) : json_object(), "user", tern_json_cstr(g->user),
                  "reasoning", "effort", tern_json_cstr(g->effort), "summary", "text", "format",
                  g->format ? json_incref(g->format) : json_pack("{ss}", "type", "text"));
    (void)json_object_update_new(r, more);
    return r;
}

/* An event of the stream; its data are taken. */
static void say(struct tern_job *j, const char *type, json_t *data)
{
    if (!j->stream) {
        json_decref(data);
        return;
    }
    (void)json_object_set_new(data, "type", json_string(type));
    (void)json_object_set_new(data, "sequence_number", json_integer((json_int_t)j->sequence++));
    tern_job_sse(j, type, data);
}

/* The open item's place and id. */
static json_t *at_item(const struct tern_job *j, const struct tern_choice *c)
{
    const json_t *item = json_array_get(j->items, (size_t)c->n_parts);
    return json_pack("{sO si}", "item_id", json_object_get(item, "id"), "output_index", c->n_parts);
}

static json_t *with(json_t *to, json_t *more)
{
    (void)json_object_update_new(to, more);
    return to;
}

static json_t *content_part(const struct tern_choice *c)
{
    bool text = c->part == TERN_EVENT_TEXT;
    const struct tern_buf *b = text ? &c->text : &c->reasoning;
    json_t *t = tern_json_chars(b->p, b->len);
    return text ? json_pack("{ss so s[] s[]}", "type", "output_text", "text", t, "annotations", "logprobs")
                : json_pack("{ss so}", "type", "reasoning_text", "text", t);
}

static void close_item(struct tern_job *j, struct tern_choice *c, const char *status)
{
    json_t *item = json_array_get(j->items, (size_t)c->n_parts);
    if (!c->part)
        return;
    if (c->part == TERN_EVENT_CALL_BEGIN) {
        json_t *arguments = tern_json_chars(c->arguments.p, c->arguments.len);
        (void)json_object_set(item, "arguments", arguments);
        say(j, "response.function_call_arguments.done",
            with(at_item(j, c), json_pack("{sO so}", "name", json_object_get(item, "name"), "arguments", arguments)));
    } else {
        bool text = c->part == TERN_EVENT_TEXT;
        json_t *part = content_part(c);
        say(j, text ? "response.output_text.done" : "response.reasoning_text.done",
            with(at_item(j, c),
                 json_pack("{si sO s[]}", "content_index", 0, "text", json_object_get(part, "text"), "logprobs")));
        say(j, "response.content_part.done",
            with(at_item(j, c), json_pack("{si sO}", "content_index", 0, "part", part)));
        (void)json_object_set_new(item, "content", json_pack("[o]", part));
    }
    (void)json_object_set_new(item, "status", json_string(status));
    say(j, "response.output_item.done", json_pack("{si so}", "output_index", c->n_parts, "item", json_deep_copy(item)));
    c->part = 0;
    c->n_parts++;
}

static void open_item(struct tern_job *j, struct tern_choice *c, const tern_event *e)
{
    char id[80];
    close_item(j, c, "completed");
    c->part = (int)e->kind;
    const char *prefix = c->part == TERN_EVENT_TEXT ? "msg" : c->part == TERN_EVENT_REASONING ? "rs" : "fc";
    (void)snprintf(id, sizeof id, "%s_%s_%d", prefix, j->id + 5, c->n_parts);
    json_t *item;
    if (c->part == TERN_EVENT_TEXT)
        item = json_pack("{ss ss ss ss s[]}", "id", id, "type", "message", "status", "in_progress", "role", "assistant",
                         "content");
    else if (c->part == TERN_EVENT_REASONING)
        item = json_pack("{ss ss ss s[] s[]}", "id", id, "type", "reasoning", "status", "in_progress", "summary",
                         "content");
    else
        item = json_pack("{ss ss ss so so ss}", "id", id, "type", "function_call", "status", "in_progress", "call_id",
                         tern_json_cstr(e->call_id), "name", tern_json_cstr(e->name), "arguments", "");
    (void)json_array_append_new(j->items, item);
    tern_buf_reset(&c->text);
    tern_buf_reset(&c->reasoning);
    tern_buf_reset(&c->arguments);
    say(j, "response.output_item.added",
        json_pack("{si so}", "output_index", c->n_parts, "item", json_deep_copy(item)));
    if (c->part != TERN_EVENT_CALL_BEGIN)
        say(j, "response.content_part.added",
            with(at_item(j, c), json_pack("{si so}", "content_index", 0, "part", content_part(c))));
}

static void piece(struct tern_job *j, struct tern_choice *c, const tern_event *e)
{
    switch (e->kind) {
    case TERN_EVENT_TEXT:
    case TERN_EVENT_REASONING:
        if (c->part != (int)e->kind)
            open_item(j, c, e);
        tern_json_add(e->kind == TERN_EVENT_TEXT ? &c->text : &c->reasoning, e->text, e->n);
        say(j, e->kind == TERN_EVENT_TEXT ? "response.output_text.delta" : "response.reasoning_text.delta",
            with(at_item(j, c),
                 json_pack("{si so s[]}", "content_index", 0, "delta", tern_json_chars(e->text, e->n), "logprobs")));
        break;
    case TERN_EVENT_CALL_BEGIN:
        open_item(j, c, e);
        break;
    case TERN_EVENT_CALL_ARGUMENTS:
        tern_json_add(&c->arguments, e->text, e->n);
        say(j, "response.function_call_arguments.delta",
            with(at_item(j, c), json_pack("{so}", "delta", tern_json_chars(e->text, e->n))));
        break;
    case TERN_EVENT_CALL_END:
        close_item(j, c, "completed");
        break;
    default:
        break;
    }
}

static void open_stream(struct tern_job *j)
{
    say(j, "response.created", json_pack("{so}", "response", response(j, "in_progress")));
    say(j, "response.in_progress", json_pack("{so}", "response", response(j, "in_progress")));
}

static bool was_cut(const struct tern_choice *c)
{
    return c->end.finish == TERN_FINISH_LENGTH || c->end.finish == TERN_FINISH_CONTEXT;
}

static void choice_end(struct tern_job *j, struct tern_choice *c)
{
    close_item(j, c, was_cut(c) ? "incomplete" : "completed");
}

static void end(struct tern_job *j)
{
    const bool cut = was_cut(&j->choices[0]);
    if (!j->stream)
        tern_job_answer(j, response(j, cut ? "incomplete" : "completed"));
    else
        say(j, cut ? "response.incomplete" : "response.completed",
            json_pack("{so}", "response", response(j, cut ? "incomplete" : "completed")));
}

static void ping(struct tern_job *j)
{
    tern_api_chat.ping(j);
}

static void failed(struct tern_job *j, const struct tern_fault *f)
{
    if (!j->opened) { /* there is no response yet */
        tern_job_sse(j, "error",
                     json_pack("{ss so so so}", "type", "error", "code", tern_json_cstr(f->code), "message",
                               tern_json_cstr(f->text), "param", tern_json_cstr(f->param[0] ? f->param : NULL)));
        return;
    }
    json_t *r = response(j, "failed");
    (void)json_object_set_new(r, "error",
                              json_pack("{ss so}", "code", "server_error", "message", tern_json_cstr(f->text)));
    say(j, "response.failed", json_pack("{so}", "response", r));
}

const struct tern_api tern_api_responses = {
    .shape = TERN_SHAPE_OPENAI,
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

/* POST /v1/chat/completions */
#include <math.h>
#include <string.h>

#include "server/api/ask.h"

static const struct tern_field fields[] = {
    TERN_ASK_COMMON_FIELDS,
    {"messages", TERN_FIELD_ARR, TERN_ASK_AT(messages), 0, 0, NULL},
    {"max_completion_tokens", TERN_FIELD_INT, TERN_ASK_AT(max_completion_tokens), -1, INT32_MAX, NULL},
    {"logprobs", TERN_FIELD_BOOL, TERN_ASK_AT(logprobs), 0, 0, NULL},
    {"top_logprobs", TERN_FIELD_INT, TERN_ASK_AT(top_logprobs), 0, TERN_MAX_LOGPROB, NULL},
    {"tools", TERN_FIELD_ARR, TERN_ASK_AT(tools), 0, 0, NULL},
    {"tool_choice", TERN_FIELD_ANY, TERN_ASK_AT(tool_choice), 0, 0, NULL},
    {"parallel_tool_calls", TERN_FIELD_BOOL, TERN_ASK_AT(parallel_calls), 0, 0, NULL},
    {"reasoning_effort", TERN_FIELD_STR, TERN_ASK_AT(effort), 0, 0, NULL},
    {"chat_template_kwargs", TERN_FIELD_OBJ, TERN_ASK_AT(template_vars), 0, 0, NULL},
    TERN_ASK_CONTINUES,
    {"reasoning_format", TERN_FIELD_STR, TERN_ASK_AT(text), 0, 0, NULL},
    {"include_reasoning", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 1, 1, "reasoning is always told, apart from the reply"},
    {"add_special_tokens", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 0, 0, "templates write control tokens themselves"},
    {"echo", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 0, 0, "messages are not said back"},
    {"best_of", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 0, 1, "ask for n replies, or ask /v1/completions"},
    {"documents", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "put them into messages, or into chat_template_kwargs"},
    {"functions", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "use tools"},
    {"function_call", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "use tool_choice"},
    {"audio", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "there is no sound here"},
    {"web_search_options", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "there is no search here"},
    {"chat_template", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "templates come from the model alone"},
    {0},
};

static int prepare(struct tern_job *j, struct tern_fault *f)
{
    if (tern_ask_read(j, fields, f) < 0 || tern_ask_others(j, f) < 0)
        return -1;
    struct tern_ask *g = j->ask;
    if (g->text && strcmp(g->text, "none") == 0)
        g->reply.reasoning = "off"; /* not told apart: it stays in the text */
    else if (g->text && strcmp(g->text, "auto") != 0 && strcmp(g->text, "deepseek") != 0)
        return tern_fault_set(f, 400, "unsupported_value", "reasoning_format",
                              "reasoning_format must be \"auto\", \"deepseek\" or \"none\"");
    if (!g->messages)
        return tern_fault_set(f, 400, "missing_required_parameter", "messages", "messages is missing");
    if (g->max_tokens == 0 || g->max_completion_tokens == 0) {
        const char *param = g->max_tokens == 0 ? "max_tokens" : "max_completion_tokens";
        return tern_fault_set(f, 400, "invalid_value", param, "%s must be at least 1", param);
    }
    if (g->top_logprobs > 0 && !g->logprobs)
        return tern_fault_set(f, 400, "invalid_value", "top_logprobs", "top_logprobs needs \"logprobs\": true");
    tern_ask_name(j, "chatcmpl-");
    return tern_ask_request(j, f) < 0 ? -1 : tern_ask_conversation(j, f);
}

const char *tern_finish_openai(const struct tern_choice *c)
{
    switch (c->end.finish) {
    case TERN_FINISH_LENGTH:
    case TERN_FINISH_CONTEXT:
        return "length";
    default:
        return c->calls ? "tool_calls" : "stop";
    }
}

json_t *tern_usage_openai(const struct tern_job *j)
{
    json_t *details = json_pack("{si}", "reasoning_tokens", j->n_reasoning);
    if (j->n_drafted) { /* guesses of the engine's own stand where others count those of the request */
        (void)json_object_set_new(details, "accepted_prediction_tokens", json_integer(j->n_accepted));
        (void)json_object_set_new(details, "rejected_prediction_tokens", json_integer(j->n_drafted - j->n_accepted));
    }
    return json_pack("{si si si s{si} so}", "prompt_tokens", j->n_prompt, "completion_tokens", j->n_generated,
                     "total_tokens", j->n_prompt + j->n_generated, "prompt_tokens_details", "cached_tokens",
                     j->n_cached, "completion_tokens_details", details);
}

/* ---- the whole answer -------------------------------------------------------------------------------------------- */

static json_t *whole_calls(const json_t *calls)
{
    json_t *out = json_array(), *call;
    size_t i;
    json_array_foreach(calls, i, call)
    {
        (void)json_array_append_new(out, json_pack("{sO ss s{sO sO}}", "id", json_object_get(call, "id"), "type",
                                                   "function", "function", "name", json_object_get(call, "name"),
                                                   "arguments", json_object_get(call, "arguments")));
    }
    return out;
}

static json_t *whole_choice(const struct tern_job *j, const struct tern_choice *c)
{
    json_t *m = json_pack("{ss so sn}", "role", "assistant", "content",
                          c->text.len || !c->calls ? tern_json_chars(c->text.p, c->text.len) : json_null(), "refusal");
    if (c->reasoning.len)
        (void)json_object_set_new(m, "reasoning_content", tern_json_chars(c->reasoning.p, c->reasoning.len));
    if (c->calls)
        (void)json_object_set_new(m, "tool_calls", whole_calls(c->calls));
    return json_pack("{si so ss so}", "index", c->index, "message", m, "finish_reason", tern_finish_openai(c),
                     "logprobs", j->ask->logprobs ? tern_scores_chat(j->served->model, c->scores) : json_null());
}

static void end_whole(struct tern_job *j)
{
    json_t *choices = json_array();
    for (int i = 0; i < j->n_choices; i++)
        (void)json_array_append_new(choices, whole_choice(j, &j->choices[i]));
    tern_job_answer(j, json_pack("{ss ss sI so ss so so}", "id", j->id, "object", "chat.completion", "created",
                                 (json_int_t)j->created, "model", tern_json_cstr(j->served->name), "system_fingerprint",
                                 tern_version(), "choices", choices, "usage", tern_usage_openai(j)));
}

/* ---- the stream -------------------------------------------------------------------------------------------------- */

json_t *tern_usage_so_far(const struct tern_job *j)
{
    int n = 0, prompt = 0;
    for (int i = 0; i < j->n_choices; i++)
        n += j->choices[i].n_parts;
    for (int i = 0; i < j->n_lanes; i++)
        prompt += (int)j->lanes[i].ids.len;
    return json_pack("{si si si}", "prompt_tokens", prompt, "completion_tokens", n, "total_tokens", prompt + n);
}

static void send_chunk(struct tern_job *j, json_t *choices, json_t *usage)
{
    json_t *chunk = json_pack("{ss ss sI so ss so}", "id", j->id, "object", "chat.completion.chunk", "created",
                              (json_int_t)j->created, "model", tern_json_cstr(j->served->name), "system_fingerprint",
                              tern_version(), "choices", choices);
    if (usage)
        (void)json_object_set_new(chunk, "usage", usage);
    tern_job_sse(j, NULL, chunk);
}

/* delta is taken */
static void send_delta(struct tern_job *j, struct tern_choice *c, json_t *delta, const char *finish)
{
    json_t *choice =
        json_pack("{si so so}", "index", c->index, "delta", delta, "finish_reason", tern_json_cstr(finish));
    if (j->ask->logprobs) {
        (void)json_object_set_new(choice, "logprobs",
                                  c->scores ? tern_scores_chat(j->served->model, c->scores) : json_null());
        json_decref(c->scores);
        c->scores = NULL;
    }
    json_t *usage = j->ask->continuous_usage ? tern_usage_so_far(j) : j->ask->include_usage ? json_null() : NULL;
    send_chunk(j, json_pack("[o]", choice), usage);
}

static void open_stream(struct tern_job *j)
{
    for (int i = 0; i < j->n_choices; i++)
        send_delta(j, &j->choices[i], json_pack("{ss ss}", "role", "assistant", "content", ""), NULL);
}

static void piece(struct tern_job *j, struct tern_choice *c, const tern_event *e)
{
    c->n_parts = e->n_generated; /* tokens so far */
    switch (e->kind) {
    case TERN_EVENT_TEXT:
        send_delta(j, c, json_pack("{so}", "content", tern_json_chars(e->text, e->n)), NULL);
        break;
    case TERN_EVENT_REASONING:
        send_delta(j, c, json_pack("{so}", "reasoning_content", tern_json_chars(e->text, e->n)), NULL);
        break;
    case TERN_EVENT_CALL_BEGIN:
        send_delta(j, c,
                   json_pack("{s[{si so ss s{so ss}}]}", "tool_calls", "index", e->call, "id",
                             tern_json_cstr(e->call_id), "type", "function", "function", "name",
                             tern_json_cstr(e->name), "arguments", ""),
                   NULL);
        break;
    case TERN_EVENT_CALL_ARGUMENTS:
        send_delta(j, c,
                   json_pack("{s[{si s{so}}]}", "tool_calls", "index", e->call, "function", "arguments",
                             tern_json_chars(e->text, e->n)),
                   NULL);
        break;
    default:
        break;
    }
}

static void choice_end(struct tern_job *j, struct tern_choice *c)
{
    c->n_parts = c->end.n_generated;
    send_delta(j, c, json_object(), tern_finish_openai(c));
}

static void end(struct tern_job *j)
{
    if (!j->stream) {
        end_whole(j);
        return;
    }
    if (j->ask->include_usage)
        send_chunk(j, json_array(), tern_usage_openai(j));
    tern_job_send(j, "data: [DONE]\n\n");
}

static void ping(struct tern_job *j)
{
    char text[80];
    const struct tern_lane *lane = &j->lanes[0];
    (void)snprintf(text, sizeof text, ": prefill %d/%zu\n\n", lane->done, lane->ids.len);
    tern_job_send(j, text);
}

static void failed(struct tern_job *j, const struct tern_fault *f)
{
    tern_job_sse(j, NULL, tern_fault_json(f, TERN_SHAPE_OPENAI));
}

const struct tern_api tern_api_chat = {
    .shape = TERN_SHAPE_OPENAI,
    .stream_type = "text/event-stream; charset=utf-8",
    .prepare = prepare,
    .open = open_stream,
    .piece = piece,
    .choice_end = choice_end,
    .end = end,
    .ping = ping,
    .failed = failed,
};

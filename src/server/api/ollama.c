/* Ollama's API: /api/chat, /api/generate, /api/show, /api/tags, /api/ps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <xxhash.h>

#include "server/api/ask.h"

#define AT TERN_ASK_AT

#define COMMON_FIELDS                                                                                        \
    {"model", TERN_FIELD_STR, AT(model), 0, 512, NULL}, {"stream", TERN_FIELD_BOOL, AT(stream), 0, 0, NULL}, \
        {"options", TERN_FIELD_OBJ, AT(template_vars), 0, 0, NULL},                                          \
        {"format", TERN_FIELD_ANY, AT(format), 0, 0, NULL},                                                  \
        {"keep_alive", TERN_FIELD_ANY, AT(keep_alive), 0, 0, NULL},                                          \
        {"logprobs", TERN_FIELD_BOOL, AT(logprobs), 0, 0, NULL},                                             \
        {"top_logprobs", TERN_FIELD_INT, AT(top_logprobs), 0, TERN_MAX_LOGPROB, NULL},                       \
    {                                                                                                        \
        "think", TERN_FIELD_ANY, AT(thinking), 0, 0, NULL                                                    \
    }

static const struct tern_field chat_fields[] = {
    COMMON_FIELDS,
    {"messages", TERN_FIELD_ARR, AT(messages), 0, 0, NULL},
    {"tools", TERN_FIELD_ARR, AT(tools), 0, 0, NULL},
    {0},
};

static const struct tern_field generate_fields[] = {
    COMMON_FIELDS,
    {"prompt", TERN_FIELD_ANY, AT(prompt), 0, 0, NULL},
    {"system", TERN_FIELD_STR, AT(system_text), 0, 0, NULL},
    {"raw", TERN_FIELD_BOOL, AT(flag), 0, 0, NULL},
    {"suffix", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "text cannot be filled in before a suffix here"},
    {"images", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "there are no eyes here"},
    {"template", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "templates come from the model alone"},
    {"context", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "send the conversation to /api/chat"},
    {0},
};

static const char no_sampler[] = "there is no such sampler here";

/* What concerns the machine is the server's own business (num_gpu, num_thread, ...) and left alone. */
static const struct tern_field option_fields[] = {
    {"temperature", TERN_FIELD_NUM, AT(temperature), 0, 100, NULL},
    {"top_k", TERN_FIELD_INT, AT(top_k), -1, INT32_MAX, NULL},
    {"top_p", TERN_FIELD_NUM, AT(top_p), 0, 1, NULL},
    {"min_p", TERN_FIELD_NUM, AT(min_p), 0, 1, NULL},
    {"xtc_probability", TERN_FIELD_NUM, AT(xtc_probability), 0, 1, NULL},
    {"xtc_threshold", TERN_FIELD_NUM, AT(xtc_threshold), 0, 1, NULL},
    {"seed", TERN_FIELD_INT, AT(seed), -0x1p63, 0x1p63, NULL},
    {"stop", TERN_FIELD_ANY, AT(stop), 0, 0, NULL},
    {"num_predict", TERN_FIELD_INT, AT(max_tokens), -2, INT32_MAX, NULL},
    {"num_ctx", TERN_FIELD_INT, AT(n), 1, INT32_MAX, NULL},
    {"repeat_penalty", TERN_FIELD_NUM, AT(repetition), 0.01, 100, NULL},
    {"repeat_last_n", TERN_FIELD_INT, AT(penalty_last), -1, INT32_MAX, NULL},
    {"presence_penalty", TERN_FIELD_NUM, AT(presence), -100, 100, NULL},
    {"frequency_penalty", TERN_FIELD_NUM, AT(frequency), -100, 100, NULL},
    {"mirostat", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 0, 0, no_sampler},
    {"typical_p", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 1, 1, no_sampler},
    {"tfs_z", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 1, 1, no_sampler},
    {0},
};

/* "5m", "1h30m", "300ms"; a number counts seconds. */
static bool read_duration(const char *text, double *out)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"h", 3600}, {"m", 60}, {"s", 1}};
    const bool minus = *text == '-';
    const char *p = text + minus;
    double sum = 0;
    do {
        if (*p < '0' || *p > '9')
            return false;
        char *end;
        const double v = strtod(p, &end);
        size_t u = 0;
        if (!isfinite(v))
            return false;
        while (u < 6 && strncmp(end, units[u].name, strlen(units[u].name)) != 0)
            u++;
        if (u == 6 && (*end || p != text + minus))
            return false;
        sum += u < 6 ? v * units[u].seconds : v;
        p = u < 6 ? end + strlen(units[u].name) : end;
    } while (*p);
    *out = minus ? -sum : sum;
    return true;
}

int tern_ollama_keep_alive(const json_t *v, double *out, struct tern_fault *f)
{
    if (!v)
        return 0;
    if (json_is_number(v))
        *out = json_number_value(v);
    else if (!json_is_string(v) || !read_duration(json_string_value(v), out))
        return tern_fault_set(f, 400, "invalid_value", "keep_alive",
                              "keep_alive must be seconds, or a time such as \"5m\"; 0 unloads the model, -1 keeps it");
    return 0;
}

static int read_options(struct tern_job *j, struct tern_fault *f)
{
    struct tern_ask *g = j->ask;
    int ctx = tern_engine_ctx(j->served->engine);
    json_t *options = g->template_vars;
    g->template_vars = NULL;
    g->stop_param = "options.stop";
    if (options && tern_fields_read(option_fields, options, "options.", g, f) < 0)
        return -1;
    if (g->n > ctx)
        return tern_fault_set(f, 400, "invalid_value", "num_ctx",
                              "options.num_ctx: the server was started with a context of %d tokens (--ctx)", ctx);
    if (g->max_tokens <= 0) /* "num_predict": below 1 there is no limit but the context */
        g->max_tokens = TERN_ASK_UNSET;
    g->n = TERN_ASK_UNSET;
    return 0;
}

static int read_think(struct tern_job *j, struct tern_fault *f)
{
    struct tern_ask *g = j->ask;
    g->effort_param = "think";
    if (!g->thinking)
        return 0;
    if (json_is_string(g->thinking))
        g->effort = json_string_value(g->thinking);
    else if (!json_is_boolean(g->thinking))
        return tern_fault_set(f, 400, "invalid_type", "think", "think must be true, false or an effort");
    else if (tern_model_chat_uses(j->served->model, "enable_thinking"))
        g->template_vars = tern_ask_own(g, json_pack("{sb}", "enable_thinking", json_is_true(g->thinking)));
    else if (json_is_true(g->thinking))
        return tern_fault_set(f, 400, "unsupported_parameter", "think",
                              "the model's chat template cannot switch thinking");
    return 0;
}

/* "json", or a schema. */
static int read_format(struct tern_ask *g, struct tern_fault *f)
{
    const char *word = json_string_value(g->format);
    g->format_param = "format";
    if (word && !*word)
        g->format = NULL;
    else if (word && strcmp(word, "json") == 0)
        g->format = tern_ask_own(g, json_pack("{ss}", "type", "json_object"));
    else if (json_is_object(g->format))
        g->format = tern_ask_own(g, json_pack("{ss sO}", "type", "json_schema", "schema", g->format));
    else if (g->format)
        return tern_fault_set(f, 400, "invalid_value", "format", "format must be \"json\" or a JSON schema");
    return 0;
}

static int read_request(struct tern_job *j, const struct tern_field *table, struct tern_fault *f)
{
    if (tern_ask_read(j, table, f) < 0 || tern_ollama_keep_alive(j->ask->keep_alive, &j->keep_s, f) < 0)
        return -1;
    if (!json_object_get(j->root, "stream") || json_is_null(json_object_get(j->root, "stream")))
        j->ask->stream = true; /* its default */
    if (j->ask->top_logprobs > 0 && !j->ask->logprobs)
        return tern_fault_set(f, 400, "invalid_value", "top_logprobs", "top_logprobs needs \"logprobs\": true");
    if (read_options(j, f) < 0 || read_think(j, f) < 0 || read_format(j->ask, f) < 0)
        return -1;
    return tern_ask_request(j, f);
}

static json_t *timestamp(void)
{
    char text[64] = "";
    struct timespec t = {0};
    struct tm tm;
    (void)clock_gettime(CLOCK_REALTIME, &t);
    if (gmtime_r(&t.tv_sec, &tm)) {
        size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &tm);
        (void)snprintf(text + n, sizeof text - n, ".%06ldZ", t.tv_nsec / 1000);
    }
    return json_string(text);
}

/* Ollama's messages differ in small things: images, thinking, and calls without ids. */
static int convert_messages(struct tern_ask *g, struct tern_fault *f)
{
    size_t i, k;
    json_t *m, *call;
    json_array_foreach(g->messages, i, m)
    {
        char at[48];
        (void)snprintf(at, sizeof at, "messages[%zu].images", i);
        if (json_array_size(json_object_get(m, "images")) > 0)
            return tern_fault_set(f, 400, "unsupported_value", at, "%s: there are no eyes here", at);
        json_t *thinking = json_object_get(m, "thinking");
        if (json_is_string(thinking) && !json_object_get(m, "reasoning_content"))
            (void)json_object_set(m, "reasoning_content", thinking);
        json_array_foreach(json_object_get(m, "tool_calls"), k, call)
        {
            if (json_is_object(call) && !json_object_get(call, "type"))
                (void)json_object_set_new(call, "type", json_string("function"));
        }
    }
    g->continues = tern_ends_unfinished(g->messages);
    return 0;
}

static int prepare_chat(struct tern_job *j, struct tern_fault *f)
{
    if (read_request(j, chat_fields, f) < 0)
        return -1;
    if (j->ask->messages && json_array_size(j->ask->messages) == 0) { /* "is the model there?" */
        j->answer = json_pack("{so so s{ss ss} sb ss}", "model", tern_json_cstr(j->served->name), "created_at",
                              timestamp(), "message", "role", "assistant", "content", "", "done", 1, "done_reason",
                              j->keep_s == 0 ? "unload" : "load");
        return 0;
    }
    return convert_messages(j->ask, f) < 0 ? -1 : tern_ask_conversation(j, f);
}

static int prepare_generate(struct tern_job *j, struct tern_fault *f)
{
    if (read_request(j, generate_fields, f) < 0)
        return -1;
    struct tern_ask *g = j->ask;
    if (!g->prompt || (json_is_string(g->prompt) && json_string_length(g->prompt) == 0)) {
        j->answer = json_pack("{so so ss sb ss}", "model", tern_json_cstr(j->served->name), "created_at", timestamp(),
                              "response", "", "done", 1, "done_reason", j->keep_s == 0 ? "unload" : "load");
        return 0;
    }
    if (!json_is_string(g->prompt))
        return tern_fault_set(f, 400, "invalid_type", "prompt", "prompt must be a string");
    const bool raw = g->flag || !tern_model_get_info(j->served->model)->has_template;
    if (raw && g->system_text && *g->system_text)
        return tern_fault_set(f, 400, "invalid_value", "system", "system: %s",
                              g->flag ? "a raw prompt has no place for it"
                                      : "the model has no chat template to put it into");
    if (raw)
        return tern_ask_prompts(j, g->prompt, "prompt", f);
    g->messages = tern_ask_own(g, json_array());
    if (g->system_text && *g->system_text)
        (void)json_array_append_new(g->messages, json_pack("{ss ss}", "role", "system", "content", g->system_text));
    (void)json_array_append_new(g->messages, json_pack("{ss sO}", "role", "user", "content", g->prompt));
    return tern_ask_conversation(j, f);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static bool is_chat(const struct tern_job *j)
{
    return j->api == &tern_api_ollama_chat;
}

/* content and the others are taken; NULL: absent. */
static json_t *line(const struct tern_job *j, json_t *content, json_t *thinking, json_t *calls)
{
    json_t *out = json_pack("{so so}", "model", tern_json_cstr(j->served->name), "created_at", timestamp());
    json_t *message = is_chat(j) ? json_pack("{ss}", "role", "assistant") : json_incref(out);
    (void)json_object_set_new(message, is_chat(j) ? "content" : "response", content);
    if (thinking)
        (void)json_object_set_new(message, "thinking", thinking);
    if (calls)
        (void)json_object_set_new(message, "tool_calls", calls);
    if (is_chat(j))
        (void)json_object_set(out, "message", message);
    json_decref(message);
    (void)json_object_set_new(out, "done", json_false());
    return out;
}

/* A line gets what is known of the tokens that came since the one before. */
static json_t *with_logprobs(const struct tern_job *j, struct tern_choice *c, json_t *out)
{
    if (!j->ask->logprobs || !c->scores)
        return out;
    json_t *scores = tern_scores_chat(j->served->model, c->scores);
    (void)json_object_set(out, "logprobs", json_object_get(scores, "content"));
    json_decref(scores);
    json_decref(c->scores);
    c->scores = NULL;
    return out;
}

static json_t *call_object(const json_t *name, const char *arguments, size_t n)
{
    return json_pack("{s{sO so}}", "function", "name", name, "arguments", tern_json_arguments(arguments, n));
}

static void close_line(const struct tern_job *j, json_t *out)
{
    const struct tern_choice *c = &j->choices[0];
    bool full = c->end.finish == TERN_FINISH_LENGTH || c->end.finish == TERN_FINISH_CONTEXT;
    json_t *more =
        json_pack("{sb ss sI sI si sI si sI}", "done", 1, "done_reason", full ? "length" : "stop", "total_duration",
                  (json_int_t)((tern_now() - j->began) * 1e9), "load_duration", (json_int_t)(j->waited_s * 1e9),
                  "prompt_eval_count", j->n_prompt, "prompt_eval_duration", (json_int_t)(j->prompt_s * 1e9),
                  "eval_count", j->n_generated, "eval_duration", (json_int_t)(j->decode_s * 1e9));
    (void)json_object_update(out, more);
    json_decref(more);
}

static void end_whole(struct tern_job *j)
{
    struct tern_choice *c = &j->choices[0];
    json_t *calls = c->calls ? json_array() : NULL, *call;
    size_t i;
    json_array_foreach(c->calls, i, call)
    {
        const json_t *arguments = json_object_get(call, "arguments");
        (void)json_array_append_new(calls, call_object(json_object_get(call, "name"), json_string_value(arguments),
                                                       json_string_length(arguments)));
    }
    json_t *out = line(j, tern_json_chars(c->text.p, c->text.len),
                       c->reasoning.len ? tern_json_chars(c->reasoning.p, c->reasoning.len) : NULL, calls);
    close_line(j, out);
    tern_job_answer(j, with_logprobs(j, c, out));
}

static void piece(struct tern_job *j, struct tern_choice *c, const tern_event *e)
{
    switch (e->kind) {
    case TERN_EVENT_TEXT:
        tern_job_line(j, with_logprobs(j, c, line(j, tern_json_chars(e->text, e->n), NULL, NULL)));
        break;
    case TERN_EVENT_REASONING:
        tern_job_line(j, with_logprobs(j, c, line(j, json_string(""), tern_json_chars(e->text, e->n), NULL)));
        break;
    case TERN_EVENT_CALL_BEGIN:
        json_decref(j->items);
        j->items = tern_json_cstr(e->name);
        tern_buf_reset(&c->arguments);
        break;
    case TERN_EVENT_CALL_ARGUMENTS:
        tern_json_add(&c->arguments, e->text, e->n);
        break;
    case TERN_EVENT_CALL_END:
        tern_job_line(j, line(j, json_string(""), NULL,
                              json_pack("[o]", call_object(j->items, c->arguments.p, c->arguments.len))));
        break;
    default:
        break;
    }
}

static void choice_end(struct tern_job *j, struct tern_choice *c)
{
    (void)j;
    (void)c; /* the last line has the figures of the whole request */
}

static void end(struct tern_job *j)
{
    if (!j->stream) {
        end_whole(j);
        return;
    }
    json_t *last = line(j, json_string(""), NULL, NULL);
    close_line(j, last);
    tern_job_line(j, with_logprobs(j, &j->choices[0], last));
}

static void failed(struct tern_job *j, const struct tern_fault *f)
{
    tern_job_line(j, tern_fault_json(f, TERN_SHAPE_OLLAMA));
}

const struct tern_api tern_api_ollama_chat = {
    .shape = TERN_SHAPE_OLLAMA,
    .stream_type = "application/x-ndjson",
    .prepare = prepare_chat,
    .piece = piece,
    .choice_end = choice_end,
    .end = end,
    .failed = failed,
};
const struct tern_api tern_api_ollama_generate = {
    .shape = TERN_SHAPE_OLLAMA,
    .stream_type = "application/x-ndjson",
    .prepare = prepare_generate,
    .piece = piece,
    .choice_end = choice_end,
    .end = end,
    .failed = failed,
};

/* ---- models ------------------------------------------------------------------------------------------------------ */

/* Of a model that was never open little is known. */
static json_t *details(const struct tern_served_about *a)
{
    char size[32] = "";
    if (a->known)
        (void)snprintf(size, sizeof size, a->n_params >= 1000000000 ? "%.1fB" : "%.1fM",
                       (double)a->n_params / (a->n_params >= 1000000000 ? 1e9 : 1e6));
    return json_pack("{ss ss so s[o] ss ss}", "parent_model", "", "format",
                     a->gguf || !a->known ? "gguf" : "safetensors", "family", tern_json_cstr(a->arch), "families",
                     tern_json_cstr(a->arch), "parameter_size", size, "quantization_level", "unknown");
}

static void write_time(char out[64], const char *format, time_t t)
{
    struct tm tm;
    if (!gmtime_r(&t, &tm) || strftime(out, 64, format, &tm) == 0)
        (void)snprintf(out, 64, "1970-01-01T00:00:00Z");
}

/* Clients expect a SHA-256, and cut it: 64 digits that stay the same as long as the file does. */
static void write_digest(char out[65], const char *path, const struct stat *st)
{
    const long long file[] = {(long long)st->st_size, (long long)st->st_mtime};
    for (unsigned i = 0; i < 4; i++) {
        const XXH64_hash_t seed = XXH3_64bits_withSeed(file, sizeof file, i);
        const unsigned long long part = XXH3_64bits_withSeed(path, strlen(path), seed);
        (void)snprintf(out + (size_t)16 * i, 17, "%016llx", part);
    }
}

static json_t *model_row(struct tern_served *m, const struct tern_served_counts *n, bool running)
{
    char modified[64] = "1970-01-01T00:00:00Z", expires[64] = "9999-12-31T00:00:00Z", digest[65];
    struct stat st = {0};
    if (stat(m->path, &st) == 0)
        write_time(modified, "%Y-%m-%dT%H:%M:%SZ", st.st_mtime);
    write_digest(digest, m->path, &st);
    json_t *o = json_pack("{so so ss sI ss so ss}", "name", tern_json_cstr(m->name), "model", tern_json_cstr(m->name),
                          "modified_at", modified, "size",
                          (json_int_t)(n->about.known ? n->about.file_bytes : (size_t)st.st_size), "digest", digest,
                          "details", details(&n->about), "state", tern_served_word(m));
    if (running && n->close_in_s < 1e9)
        write_time(expires, "%Y-%m-%dT%H:%M:%SZ", time(NULL) + (time_t)n->close_in_s);
    if (running)
        (void)json_object_update_new(
            o, json_pack("{si ss si}", "size_vram", 0, "expires_at", expires, "context_length", n->about.ctx));
    return o;
}

json_t *tern_ollama_models(struct tern_server *s, bool running)
{
    json_t *list = json_array();
    for (int i = 0; i < s->p.n_models; i++) {
        struct tern_served_counts n;
        tern_served_count(&s->models.all[i], &n);
        if (n.open || !running)
            (void)json_array_append_new(list, model_row(&s->models.all[i], &n, running));
    }
    return json_pack("{so}", "models", list);
}

static int prepare_show(struct tern_job *j, struct tern_fault *f)
{
    static const struct tern_field fields[] = {
        {"model", TERN_FIELD_STR, AT(model), 0, 512, NULL},
        {"name", TERN_FIELD_STR, AT(model), 0, 512, NULL},
        {"verbose", TERN_FIELD_BOOL, TERN_FIELD_CHECKED, 0, 0, NULL},
        {0},
    };
    if (tern_ask_read(j, fields, f) < 0)
        return -1;
    const tern_model *m = j->served->model;
    const tern_model_info *i = tern_model_get_info(m);
    struct tern_served_counts n;
    tern_served_count(j->served, &n);
    char key[96];
    json_t *capabilities = json_pack("[s s]", "completion", "embedding");
    if (tern_model_chat_uses(m, "tools") && tern_model_chat_calls(m))
        (void)json_array_append_new(capabilities, json_string("tools"));
    if (tern_model_chat_uses(m, "enable_thinking"))
        (void)json_array_append_new(capabilities, json_string("thinking"));
    json_t *info = json_pack("{so sI}", "general.architecture", tern_json_cstr(i->arch), "general.parameter_count",
                             (json_int_t)i->n_params);
    (void)snprintf(key, sizeof key, "%.60s.context_length", i->arch);
    (void)json_object_set_new(info, key, json_integer(tern_engine_ctx(j->served->engine)));
    (void)snprintf(key, sizeof key, "%.60s.embedding_length", i->arch);
    (void)json_object_set_new(info, key, json_integer(i->n_embd));
    j->answer = json_pack("{ss ss ss so so so}", "modelfile", "", "parameters", "", "template", "", "details",
                          details(&n.about), "model_info", info, "capabilities", capabilities);
    return 0;
}

const struct tern_api tern_api_ollama_show = {.shape = TERN_SHAPE_OLLAMA, .prepare = prepare_show};

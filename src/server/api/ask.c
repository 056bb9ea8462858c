#include "server/api/ask.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <sys/random.h>
#include "base/rng.h"

struct tern_ask *tern_ask_new(void)
{
    struct tern_ask *g = calloc(1, sizeof *g);
    if (!g)
        return NULL;
    g->max_tokens = g->max_completion_tokens = g->min_tokens = g->n = g->best_of = TERN_ASK_UNSET;
    g->top_logprobs = TERN_ASK_UNSET;
    g->penalty_last = TERN_ASK_NO_LAST;
    g->top_k = TERN_ASK_NO_TOP_K;
    g->seed = TERN_ASK_UNSET;
    g->temperature = g->top_p = g->min_p = g->xtc_probability = g->xtc_threshold = g->repetition = g->repeat =
        g->presence = g->frequency = NAN;
    g->parallel_calls = g->special = g->skips_control = true;
    g->format_param = "response_format";
    g->stop_param = "stop";
    g->effort_param = "reasoning_effort";
    return g;
}

void tern_ask_free(struct tern_ask *g)
{
    if (!g)
        return;
    free(g->ids);
    free(g->values);
    free(g->tools_json);
    free(g->rule_text);
    tern_grammar_free(g->compiled);
    json_decref(g->owned);
    free(g);
}

int tern_ask_read(struct tern_job *j, const struct tern_field *table, struct tern_fault *f)
{
    j->ask = tern_ask_new();
    if (!j->ask)
        return tern_fault_set(f, 503, NULL, NULL, "out of memory");
    return tern_fields_read(table, j->root, "", j->ask, f);
}

json_t *tern_ask_own(struct tern_ask *g, json_t *j)
{
    if (!g->owned)
        g->owned = json_array();
    return json_array_append_new(g->owned, j) == 0 ? j : NULL;
}

/* Ids of calls come from the seed, and are others behind another prompt: those of a conversation differ. */
static void make_reply(struct tern_ask *g, const tern_tokens *prompt)
{
    g->reply =
        (tern_reply_params){.calls = g->tools_json ? NULL : "off",
                            .tools = g->tools_json,
                            .reasoning = g->reply.reasoning,
                            .begun = g->reply.begun,
                            .seed = g->request.sampler.seed ^ XXH3_64bits(prompt->p, prompt->len * sizeof *prompt->p)};
    g->request.reply = &g->reply;
}

/* ---- parts of the request ---------------------------------------------------------------------------------------- */

static int read_stream_options(struct tern_job *j, struct tern_fault *f)
{
    static const struct tern_field table[] = {
        {"include_usage", TERN_FIELD_BOOL, TERN_ASK_AT(include_usage), 0, 0, NULL},
        {"continuous_usage_stats", TERN_FIELD_BOOL, TERN_ASK_AT(continuous_usage), 0, 0, NULL},
        {"include_obfuscation", TERN_FIELD_BOOL, TERN_FIELD_CHECKED, 0, 0, NULL},
        {0},
    };
    struct tern_ask *g = j->ask;
    if (g->stream_options && !g->stream)
        return tern_fault_set(f, 400, "invalid_value", "stream_options", "stream_options belongs to \"stream\": true");
    return g->stream_options ? tern_fields_read(table, g->stream_options, "stream_options.", g, f) : 0;
}

static int add_stop(struct tern_ask *g, const json_t *v, const char *param, struct tern_fault *f)
{
    const char *text = json_string_value(v);
    if (!text)
        return tern_fault_set(f, 400, "invalid_type", param, "%s must be a string or a list of strings", param);
    size_t n = json_string_length(v);
    if (n == 0) /* some clients say none so, and none is what can be meant */
        return 0;
    if (n > 4096 || strlen(text) != n)
        return tern_fault_set(f, 400, "invalid_value", param,
                              "%s must be a text of at most 4096 bytes without NUL characters", param);
    if (g->request.n_stop == TERN_MAX_STOPS)
        return tern_fault_set(f, 400, "invalid_value", g->stop_param, "%s has more than %d strings", g->stop_param,
                              TERN_MAX_STOPS);
    g->stops[g->request.n_stop++] = text;
    return 0;
}

static int read_stops(struct tern_ask *g, struct tern_fault *f)
{
    size_t i;
    json_t *v;
    if (!g->stop)
        return 0;
    if (!json_is_array(g->stop))
        return add_stop(g, g->stop, g->stop_param, f);
    json_array_foreach(g->stop, i, v)
    {
        char param[48];
        (void)snprintf(param, sizeof param, "%s[%zu]", g->stop_param, i);
        if (add_stop(g, v, param, f) < 0)
            return -1;
    }
    return 0;
}

/* "123" -> 123, an id of the vocabulary. */
static bool read_id(const char *text, int n_vocab, int32_t *id)
{
    long v = 0;
    for (const char *p = text; *p; p++) {
        if (*p < '0' || *p > '9' || v > INT32_MAX / 10)
            return false;
        v = v * 10 + (*p - '0');
    }
    *id = (int32_t)v;
    return *text && v < n_vocab;
}

/* The integers of a list, ids of the vocabulary, into out; their number. */
static int take_ids(const json_t *list, const char *param, int n_vocab, int32_t *out, struct tern_fault *f)
{
    size_t i;
    const json_t *v;
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id >= n_vocab)
            return tern_fault_set(f, 400, "invalid_value", param, "%s[%zu] is no token id from 0 to %d", param, i,
                                  n_vocab - 1);
        out[i] = (int32_t)id;
    }
    return (int)json_array_size(list);
}

static int read_bias(struct tern_ask *g, int n_vocab, struct tern_fault *f)
{
    const char *key;
    json_t *v;
    int n = 0;
    json_object_foreach(g->logit_bias, key, v)
    {
        double x = json_number_value(v);
        if (!read_id(key, n_vocab, &g->ids[n]))
            return tern_fault_set(f, 400, "invalid_value", "logit_bias",
                                  "logit_bias: \"%.40s\" is no token id from 0 to %d", key, n_vocab - 1);
        if (!json_is_number(v) || !(fabs(x) <= 1e6))
            return tern_fault_set(f, 400, "invalid_value", "logit_bias",
                                  "logit_bias: the value for %.40s is no number from -1e6 to 1e6", key);
        g->values[n++] = (float)x;
    }
    return n;
}

/* Would it end the reply? */
static bool ends(const struct tern_job *j, int32_t id)
{
    size_t i;
    const json_t *v;
    json_array_foreach(j->ask->stop_ids, i, v)
    {
        if (json_is_integer(v) && json_integer_value(v) == id)
            return true;
    }
    return !j->ask->ignore_eos && tern_model_is_eog(j->served->model, id);
}

/* What allowed_token_ids lacks gets the bias -INFINITY, behind the n biases that are there; the new number of them. */
static int read_allowed(struct tern_job *j, int n, int n_vocab, struct tern_fault *f)
{
    struct tern_ask *g = j->ask;
    int rc, n_ends = 0;
    if (!g->allowed_ids)
        return n;
    int32_t *ids = calloc(json_array_size(g->allowed_ids) + 1, sizeof *ids);
    bool *allowed = calloc((size_t)n_vocab, sizeof *allowed);
    if (!ids || !allowed) {
        free(ids);
        free(allowed);
        return tern_fault_set(f, 503, NULL, NULL, "out of memory");
    }
    rc = take_ids(g->allowed_ids, "allowed_token_ids", n_vocab, ids, f);
    for (int i = 0; i < rc; i++) {
        allowed[ids[i]] = true;
        n_ends += g->min_tokens > 0 && ends(j, ids[i]);
    }
    if (rc == 0 || (rc > 0 && n_ends == rc))
        rc = tern_fault_set(f, 400, "invalid_value", "allowed_token_ids",
                            "allowed_token_ids must have at least one id%s",
                            rc ? " that ends no reply, beside min_tokens" : "");
    const int n_said = n;
    for (int i = n = 0; rc > 0 && i < n_said; i++)
        if (allowed[g->ids[i]]) { /* others would be there twice */
            g->ids[n] = g->ids[i];
            g->values[n++] = g->values[i];
        }
    for (int32_t id = 0; rc > 0 && id < n_vocab; id++)
        if (!allowed[id]) {
            g->ids[n] = id;
            g->values[n++] = -INFINITY;
        }
    free(ids);
    free(allowed);
    return rc < 0 ? -1 : n;
}

static int read_ids(struct tern_job *j, struct tern_fault *f)
{
    struct tern_ask *g = j->ask;
    int n_vocab = tern_model_get_info(j->served->model)->n_vocab;
    /* languages without objects write an empty one as a list */
    if (g->logit_bias && !json_is_object(g->logit_bias) &&
        !(json_is_array(g->logit_bias) && json_array_size(g->logit_bias) == 0))
        return tern_fault_set(f, 400, "invalid_type", "logit_bias", "logit_bias must be an object");
    size_t most_bias = json_object_size(g->logit_bias), n_stop = json_array_size(g->stop_ids);
    if (most_bias > 10000 || n_stop > 1000)
        return tern_fault_set(f, 400, "invalid_value", most_bias > 10000 ? "logit_bias" : "stop_token_ids",
                              "logit_bias has room for 10000 ids, stop_token_ids for 1000");
    most_bias += g->allowed_ids ? (size_t)n_vocab : 0;
    if (most_bias + n_stop == 0)
        return 0;
    g->ids = calloc(most_bias + n_stop, sizeof *g->ids);
    g->values = calloc(most_bias + 1, sizeof *g->values);
    if (!g->ids || !g->values)
        return tern_fault_set(f, 503, NULL, NULL, "out of memory");
    int n_bias = read_bias(g, n_vocab, f);
    n_bias = n_bias < 0 ? n_bias : read_allowed(j, n_bias, n_vocab, f);
    if (n_bias < 0 || take_ids(g->stop_ids, "stop_token_ids", n_vocab, g->ids + n_bias, f) < 0)
        return -1;
    g->request.sampler.bias_ids = g->ids;
    g->request.sampler.bias_values = g->values;
    g->request.sampler.n_bias = n_bias;
    g->request.stop_ids = g->ids + n_bias;
    g->request.n_stop_ids = (int)n_stop;
    return 0;
}

/* Two names of one thing: the one that llama.cpp has, and vLLM's.  Where one is 1, nothing, the other counts. */
static int read_repetition(const struct tern_ask *g, tern_sampler_params *s, struct tern_fault *f)
{
    const bool one = !isnan(g->repeat) && g->repeat != 1, other = !isnan(g->repetition) && g->repetition != 1;
    if (one && other && g->repeat != g->repetition)
        return tern_fault_set(f, 400, "invalid_value", "repeat_penalty",
                              "repeat_penalty is another name of repetition_penalty, and both are given");
    if (!isnan(g->repeat) || !isnan(g->repetition))
        s->repetition_penalty = (float)(one ? g->repeat : other ? g->repetition : 1);
    if (g->penalty_last != TERN_ASK_NO_LAST)
        s->penalty_last = (int)g->penalty_last;
    if (g->penalty_last == 0) { /* nothing is looked back at; to the sampler 0 says something else */
        s->repetition_penalty = 1;
        if (!s->penalise_reply)
            s->presence_penalty = s->frequency_penalty = 0;
    }
    return 0;
}

/* What nobody said is what the model recommends, else temperature 1 as OpenAI's API has it. */
static int read_sampler(struct tern_job *j, struct tern_fault *f)
{
    const struct tern_ask *g = j->ask;
    tern_sampler_params *s = &j->ask->request.sampler;
    tern_sampler_defaults(s);
    s->temperature = 1;
    (void)tern_model_recommends(j->served->model, s);
    if (!isnan(g->temperature))
        s->temperature = (float)g->temperature;
    if (!isnan(g->top_p))
        s->top_p = (float)g->top_p;
    if (!isnan(g->min_p))
        s->min_p = (float)g->min_p;
    if (!isnan(g->xtc_probability))
        s->xtc_probability = (float)g->xtc_probability;
    if (!isnan(g->xtc_threshold))
        s->xtc_threshold = (float)g->xtc_threshold;
    if (g->top_k != TERN_ASK_NO_TOP_K)
        s->top_k = g->top_k > 0 ? (int)g->top_k : 0; /* -1 says "all" in vLLM's API, 0 here */
    s->presence_penalty = isnan(g->presence) ? 0 : (float)g->presence;
    s->frequency_penalty = isnan(g->frequency) ? 0 : (float)g->frequency;
    s->penalise_reply =
        j->api->shape == TERN_SHAPE_OPENAI; /* Ollama's are llama.cpp's, which look at the last tokens */
    if (read_repetition(g, s, f) < 0)
        return -1;
    if (g->seed != TERN_ASK_UNSET)
        s->seed = (uint64_t)g->seed;
    else if (getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed)
        return tern_fault_set(f, 500, NULL, NULL, "cannot draw a random seed: %s", strerror(errno));
    return 0;
}

static int read_choices(struct tern_job *j, struct tern_fault *f)
{
    struct tern_ask *g = j->ask;
    int64_t n = g->n > 0 ? g->n : 1, best = g->best_of > 0 ? g->best_of : n;
    const char *param = best > n ? "best_of" : "n";
    if (best > j->server->p.max_choices)
        return tern_fault_set(f, 400, "invalid_value", param, "%s must be at most %d here", param,
                              j->server->p.max_choices);
    if (best < n)
        return tern_fault_set(f, 400, "invalid_value", "best_of", "best_of must not be less than n");
    if (best > n && g->stream)
        return tern_fault_set(f, 400, "invalid_value", "best_of", "best_of greater than n cannot be streamed");
    g->n = n;
    g->best_of = best;
    g->request.n_choices = (int)best;
    return 0;
}

/* Who asks: a key, and behind it whom its owner calls a user. */
static uint64_t fair_key(const struct tern_job *j)
{
    uint64_t h = j->key;
    for (const char *p = j->ask->user; p && *p; p++)
        h = tern_hash64(h ^ (unsigned char)*p);
    return h;
}

int tern_ask_request(struct tern_job *j, struct tern_fault *f)
{
    struct tern_ask *g = j->ask;
    int64_t most = g->max_completion_tokens >= 0 ? g->max_completion_tokens : g->max_tokens;
    tern_request_defaults(&g->request);
    if (tern_rule_read(g, f) < 0 || read_stream_options(j, f) < 0 || read_stops(g, f) < 0 || read_sampler(j, f) < 0 ||
        read_ids(j, f) < 0 || read_choices(j, f) < 0)
        return -1;
    g->request.max_tokens = most >= 0 ? (int)most : -1;
    g->request.min_tokens = g->min_tokens > 0 ? (int)g->min_tokens : 0;
    if (most >= 0 && g->min_tokens > most)
        return tern_fault_set(f, 400, "invalid_value", "min_tokens", "min_tokens must not be more than max_tokens");
    g->request.ignore_eos = g->ignore_eos;
    g->request.keep_stop = g->keep_stop;
    g->request.show_control = !g->skips_control;
    g->request.stop = g->stops;
    g->request.logprobs = g->logprobs ? (int)(g->top_logprobs > 0 ? g->top_logprobs : 0) : -1;
    if (g->best_of > g->n && !g->logprobs)
        g->request.logprobs = 0; /* the best ones are those of the highest probability */
    g->request.prompt_logprobs = g->echo && g->logprobs ? g->request.logprobs : -1;
    g->request.fair_key = fair_key(j);
    g->request.timeout_s = j->server->p.timeout_s;
    j->stream = g->stream;
    return 0;
}

int tern_ask_check_bytes(const struct tern_job *j, size_t bytes, const char *param, struct tern_fault *f)
{
    const int ctx = tern_engine_ctx(j->served->engine);
    if (tern_model_least_tokens(j->served->model, bytes) <= (size_t)ctx)
        return 0;
    return tern_fault_set(
        f, 400, "context_length_exceeded", param,
        "the prompt is too long: %zu bytes, and this model's maximum context length is %d tokens here", bytes, ctx);
}

int tern_ask_check_prompt(struct tern_job *j, struct tern_lane *lane, const char *param, struct tern_fault *f)
{
    const bool several = strchr(param, '[') != NULL;
    int ctx = tern_engine_ctx(j->served->engine), room = j->ask->request.max_tokens == 0 ? 0 : 1;
    if (lane->ids.len == 0)
        return tern_fault_set(f, 400, "invalid_value", param, "%s is empty", several ? param : "the prompt");
    if (lane->ids.len + (size_t)room <= (size_t)ctx)
        return tern_rule_apply(j, lane, f);
    size_t n = lane->ids.len < INT32_MAX ? lane->ids.len : INT32_MAX;
    /* Clients that shorten their conversation look for these words (tests/clients). */
    (void)tern_fault_set(
        f, 400, "context_length_exceeded", param,
        "%s%sthe prompt is too long: %zu tokens, and this model's maximum context length is %d tokens here%s",
        several ? param : "", several ? ": " : "", n, ctx,
        n == (size_t)ctx ? ", and there is no room for an answer" : "");
    f->n_prompt = (int)n;
    f->n_ctx = ctx;
    return -1;
}

void tern_ask_name(struct tern_job *j, const char *prefix)
{
    char id[sizeof j->id];
    (void)snprintf(id, sizeof id, "%s%.30s", prefix, j->id);
    memcpy(j->id, id, sizeof id);
}

/* Of what templates write in any case: not what the assistant said, whose reasoning they drop. */
static size_t bytes_of(const json_t *messages)
{
    size_t i, bytes = 0;
    const json_t *m;
    json_array_foreach(messages, i, m)
    {
        const char *role = json_string_value(json_object_get(m, "role"));
        bytes += role && strcmp(role, "assistant") != 0 ? json_string_length(json_object_get(m, "content")) : 0;
    }
    return bytes;
}

int tern_ask_conversation(struct tern_job *j, struct tern_fault *f)
{
    if (tern_ask_check_bytes(j, bytes_of(j->ask->messages), "messages", f) < 0)
        return -1;
    if (tern_job_lanes(j, 1, f) < 0 || tern_messages_tokens(j, &j->lanes[0].ids, &j->lanes[0].borders, f) < 0)
        return -1;
    j->ask->request.continues = j->ask->continues;
    j->ask->request.one_call = j->ask->tools_json && !tern_calls_several(j->ask);
    make_reply(j->ask, &j->lanes[0].ids);
    return tern_ask_check_prompt(j, &j->lanes[0], "messages", f);
}

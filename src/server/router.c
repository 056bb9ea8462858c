/* Paths and what answers them. */
#include <string.h>
#include <strings.h>

#include "server/server_impl.h"

typedef void answer_fn(struct tern_server *s, struct tern_http_call *c);

struct route {
    const char *method, *path; /* a path that ends in '/' stands for all that begin with it */
    answer_fn *answer;         /* at once, or */
    const struct tern_api *api;
    enum tern_shape shape;
    bool open; /* needs no key */
};

void tern_reply_json(struct tern_http_call *c, int status, json_t *j)
{
    struct tern_buf b = {0};
    if (tern_json_write(&b, j))
        tern_http_reply(c, status, "application/json", b.p, b.len);
    else
        tern_http_reply(c, 503, "application/json", "{\"error\":{\"message\":\"out of memory\"}}", 37);
    tern_buf_clear(&b);
}

/* ---- answers that cost nothing ----------------------------------------------------------------------------------- */

bool tern_server_ready(const struct tern_server *s, const char **why)
{
    tern_loop_stats t;
    tern_loop_get_stats(s->loop, &t);
    *why = s->draining ? "the server is shutting down" : t.idle_s > 60 ? "the engine does not step" : NULL;
    return !*why;
}

static void answer_ready(struct tern_server *s, struct tern_http_call *c)
{
    const char *why;
    tern_loop_stats t;
    tern_loop_get_stats(s->loop, &t);
    bool ready = tern_server_ready(s, &why);
    tern_reply_json(c, ready ? 200 : 503,
                    json_pack("{ss ss* sI sf si si}", "status", ready ? "ok" : "error", "reason", why, "steps",
                              (json_int_t)t.steps, "engine_idle_s", t.idle_s, "running", t.running, "waiting",
                              t.waiting));
}

static json_t *model_object(const struct tern_server *s, const char *id)
{
    const tern_model_info *i = tern_model_get_info(s->model);
    return json_pack("{so ss sI ss si s{so sI sI}}", "id", tern_json_cstr(id), "object", "model", "created",
                     (json_int_t)s->started, "owned_by", "tern", "max_model_len", tern_engine_ctx(s->engine), "meta",
                     "arch", tern_json_cstr(i->arch), "n_params", (json_int_t)i->n_params, "size",
                     (json_int_t)i->file_bytes);
}

static void answer_models(struct tern_server *s, struct tern_http_call *c)
{
    json_t *list = json_array();
    (void)json_array_append_new(list, model_object(s, s->name));
    for (int i = 0; i < s->p.n_aliases; i++)
        if (strcmp(s->p.aliases[i], "*") != 0)
            (void)json_array_append_new(list, model_object(s, s->p.aliases[i]));
    tern_reply_json(c, 200, json_pack("{ss so}", "object", "list", "data", list));
}

bool tern_server_answers_to(const struct tern_server *s, const char *model)
{
    bool fits = strcmp(model, s->name) == 0 || strcmp(model, "default") == 0;
    const char *tag = strrchr(model, ':'); /* Ollama's clients say NAME:latest */
    fits = fits || (tag && strcmp(tag, ":latest") == 0 && strncmp(model, s->name, (size_t)(tag - model)) == 0 &&
                    s->name[tag - model] == 0);
    for (int i = 0; i < s->p.n_aliases; i++)
        fits = fits || strcmp(s->p.aliases[i], "*") == 0 || strcmp(s->p.aliases[i], model) == 0;
    return fits;
}

static void answer_model(struct tern_server *s, struct tern_http_call *c)
{
    const char *id = tern_http_call_head(c)->path + strlen("/v1/models/");
    struct tern_fault f;
    if (tern_server_answers_to(s, id)) {
        tern_reply_json(c, 200, model_object(s, id));
        return;
    }
    (void)tern_fault_set(&f, 404, "model_not_found", "model", "the model \"%.200s\" is not here; there is \"%s\"", id,
                         s->name);
    tern_fault_reply(c, &f, TERN_SHAPE_OPENAI);
}

static void answer_kv(struct tern_server *s, struct tern_http_call *c)
{
    tern_reply_json(c, 200, tern_kv_json(s));
}

static void answer_metrics(struct tern_server *s, struct tern_http_call *c)
{
    struct tern_buf b = {0};
    int rc = tern_metrics_text(s, &b);
    tern_http_reply(c, rc < 0 ? 503 : 200, "text/plain; version=0.0.4; charset=utf-8", b.p, rc < 0 ? 0 : b.len);
    tern_buf_clear(&b);
}

static void answer_tags(struct tern_server *s, struct tern_http_call *c)
{
    tern_reply_json(c, 200, tern_ollama_models(s, false));
}

static void answer_cache(struct tern_server *s, struct tern_http_call *c)
{
    tern_reply_json(c, 200, tern_cache_json(s));
}

static void answer_ps(struct tern_server *s, struct tern_http_call *c)
{
    tern_reply_json(c, 200, tern_ollama_models(s, true));
}

static void answer_version(struct tern_server *s, struct tern_http_call *c)
{
    (void)s;
    tern_reply_json(c, 200, json_pack("{ss}", "version", tern_version()));
}

static void answer_tokenizer(struct tern_server *s, struct tern_http_call *c)
{
    const tern_model_info *i = tern_model_get_info(s->model);
    const char *eos = NULL;
    for (int id = 0; id < i->n_vocab && !eos; id++)
        if (tern_model_is_eog(s->model, id))
            eos = tern_model_token(s->model, id);
    tern_reply_json(c, 200,
                    json_pack("{so so si}", "tokenizer_class", tern_json_cstr(i->tokenizer), "eos_token",
                              tern_json_cstr(eos), "vocab_size", i->n_vocab));
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

static const struct route routes[] = {
    {"GET", "/", tern_page_answer, NULL, TERN_SHAPE_OPENAI, true},
    {"GET", "/health", answer_ready, NULL, TERN_SHAPE_OPENAI, true},
    {"GET", "/ready", answer_ready, NULL, TERN_SHAPE_OPENAI, true},
    {"GET", "/v1/models", answer_models, NULL, TERN_SHAPE_OPENAI, false},
    {"GET", "/v1/models/", answer_model, NULL, TERN_SHAPE_OPENAI, false},
    {"POST", "/v1/chat/completions", NULL, &tern_api_chat, TERN_SHAPE_OPENAI, false},
    {"POST", "/v1/completions", NULL, &tern_api_completions, TERN_SHAPE_OPENAI, false},
    {"POST", "/v1/responses", NULL, &tern_api_responses, TERN_SHAPE_OPENAI, false},
    {"POST", "/v1/embeddings", NULL, &tern_api_embeddings, TERN_SHAPE_OPENAI, false},
    {"POST", "/v1/messages", NULL, &tern_api_messages, TERN_SHAPE_ANTHROPIC, false},
    {"POST", "/v1/messages/count_tokens", NULL, &tern_api_count, TERN_SHAPE_ANTHROPIC, false},
    {"POST", "/api/chat", NULL, &tern_api_ollama_chat, TERN_SHAPE_OLLAMA, false},
    {"POST", "/api/generate", NULL, &tern_api_ollama_generate, TERN_SHAPE_OLLAMA, false},
    {"POST", "/api/embed", NULL, &tern_api_ollama_embed, TERN_SHAPE_OLLAMA, false},
    {"POST", "/api/show", NULL, &tern_api_ollama_show, TERN_SHAPE_OLLAMA, false},
    {"GET", "/api/tags", answer_tags, NULL, TERN_SHAPE_OLLAMA, false},
    {"GET", "/api/ps", answer_ps, NULL, TERN_SHAPE_OLLAMA, false},
    {"GET", "/api/version", answer_version, NULL, TERN_SHAPE_OLLAMA, false},
    {"POST", "/tokenize", NULL, &tern_api_tokenize, TERN_SHAPE_OPENAI, false},
    {"POST", "/detokenize", NULL, &tern_api_detokenize, TERN_SHAPE_OPENAI, false},
    {"POST", "/apply-template", NULL, &tern_api_template, TERN_SHAPE_OPENAI, false},
    {"GET", "/tokenizer_info", answer_tokenizer, NULL, TERN_SHAPE_OPENAI, false},
    {"GET", "/v1/kv", answer_kv, NULL, TERN_SHAPE_OPENAI, false},
    {"GET", "/v1/cache", answer_cache, NULL, TERN_SHAPE_OPENAI, false},
    {"GET", "/metrics", answer_metrics, NULL, TERN_SHAPE_OPENAI, false},
};
#define N_ROUTES (sizeof routes / sizeof *routes)

static bool path_fits(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);
    return pattern[n - 1] == '/' && n > 1 ? strncmp(path, pattern, n) == 0 && path[n] : strcmp(path, pattern) == 0;
}

static enum tern_shape shape_of(const char *path)
{
    if (path && strncmp(path, "/v1/messages", 12) == 0)
        return TERN_SHAPE_ANTHROPIC;
    return path && strncmp(path, "/api/", 5) == 0 ? TERN_SHAPE_OLLAMA : TERN_SHAPE_OPENAI;
}

/* A body that is no JSON is found out when it is read; here are those that say so themselves. */
static bool body_is_readable(const struct tern_http_head *h, struct tern_fault *f)
{
    char type[64];
    const char *coding = tern_http_head_get(h, "content-encoding");
    tern_http_media_type(tern_http_head_get(h, "content-type"), type, sizeof type);
    if (coding && strcasecmp(coding, "identity") != 0)
        (void)tern_fault_set(f, 415, NULL, NULL, "bodies must not be compressed (Content-Encoding)");
    else if (strncmp(type, "multipart/", 10) == 0)
        (void)tern_fault_set(f, 415, NULL, NULL, "the body must be JSON, not %s", type);
    else
        return true;
    return false;
}

static const struct route *find(const struct tern_http_head *h, struct tern_fault *f, char allow[64])
{
    const char *method = strcmp(h->method, "HEAD") == 0 ? "GET" : h->method;
    size_t n = 0;
    for (const struct route *r = routes; r < routes + N_ROUTES; r++) {
        if (!path_fits(r->path, h->path))
            continue;
        if (strcmp(r->method, method) == 0)
            return r;
        n += (size_t)snprintf(allow + n, 64 - n, "%s%s", n ? ", " : "", r->method);
    }
    if (n)
        (void)tern_fault_set(f, 405, NULL, NULL, "%.40s is answered to %s, not to %.20s", h->path, allow, h->method);
    else
        (void)tern_fault_set(f, 404, NULL, NULL, "there is nothing at %.200s", h->path);
    return NULL;
}

void tern_route(void *server, struct tern_http_call *c)
{
    struct tern_server *s = server;
    const struct tern_http_head *h = tern_http_call_head(c);
    enum tern_shape shape = shape_of(h->path);
    struct tern_fault f = {0};
    char allow[64] = "";
    s->n_requests++;
    const struct route *r = find(h, &f, allow);
    if (!tern_auth_check(s, c, !r || !r->open, &f)) {
        tern_fault_reply(c, &f, shape);
        return;
    }
    if (!r) {
        if (allow[0])
            tern_http_header(c, "Allow", allow);
        tern_fault_reply(c, &f, shape);
        return;
    }
    if (!body_is_readable(h, &f)) {
        tern_fault_reply(c, &f, shape);
        return;
    }
    if (r->api)
        tern_job_start(s, r->api, c);
    else
        r->answer(s, c);
}

void tern_route_malformed(void *server, struct tern_http_call *c, int status, const char *sentence)
{
    struct tern_server *s = server;
    struct tern_fault f;
    s->n_requests++;
    (void)tern_fault_set(&f, status, NULL, NULL, "%s", sentence);
    tern_fault_reply(c, &f, shape_of(tern_http_call_head(c)->path));
}

/* Paths and what answers them. */
#include <string.h>
#include <strings.h>
#include <time.h>

#include "server/server_impl.h"

typedef void answer_fn(struct tern_server *s, struct tern_http_call *c);

struct route {
    const char *method, *path; /* a path that ends in '/' stands for all that begin with it */
    answer_fn *answer;         /* at once, or */
    const struct tern_api *api;
    enum tern_shape shape;
    bool open; /* needs no key */
};

static enum tern_shape shape_of(const char *path)
{
    if (path && strncmp(path, "/v1/messages", 12) == 0)
        return TERN_SHAPE_ANTHROPIC;
    return path && strncmp(path, "/api/", 5) == 0 ? TERN_SHAPE_OLLAMA : TERN_SHAPE_OPENAI;
}

/* Where there is no memory to say it with. */
static void reply_lacking(struct tern_http_call *c)
{
    static const char *const texts[] = {
        [TERN_SHAPE_OPENAI] = "{\"error\":{\"message\":\"out of memory\",\"type\":\"service_unavailable_error\","
                              "\"param\":null,\"code\":null}}",
        [TERN_SHAPE_ANTHROPIC] = "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","
                                 "\"message\":\"out of memory\"}}",
        [TERN_SHAPE_OLLAMA] = "{\"error\":\"out of memory\"}",
    };
    const char *text = texts[shape_of(tern_http_call_head(c)->path)];
    tern_http_reply(c, 503, "application/json", text, strlen(text));
}

void tern_reply_json(struct tern_http_call *c, int status, json_t *j)
{
    struct tern_buf b = {0};
    if (!tern_json_write(&b, j) || tern_json_lacked())
        reply_lacking(c);
    else
        tern_http_reply(c, status, "application/json", b.p, b.len);
    tern_buf_clear(&b);
}

/* ---- answers that cost nothing ----------------------------------------------------------------------------------- */

/* Does its thread come by? */
static bool steps(const struct tern_server *s, const tern_loop_stats *t)
{
    return t->idle_s <= s->p.stall_s;
}

static json_t *ready_row(struct tern_served *m, const tern_loop_stats *t)
{
    return json_pack("{so ss sI sf si si}", "model", tern_json_cstr(m->name), "state", tern_served_word(m), "steps",
                     (json_int_t)t->steps, "engine_idle_s", t->idle_s, "running", t->running, "waiting", t->waiting);
}

/* A thread of an engine comes by between two steps, and twice a second when it has nothing to do. */
static void answer_ready(struct tern_server *s, struct tern_http_call *c)
{
    char why[200] = "";
    double idle = 0;
    uint64_t n_steps = 0;
    int running = 0, waiting = 0;
    json_t *rows = json_array();
    for (int i = 0; i < s->p.n_models; i++) {
        tern_loop_stats t;
        tern_served_stats(&s->models.all[i], &t);
        if (!steps(s, &t))
            (void)snprintf(why, sizeof why, "the engine of %.120s does not step", s->models.all[i].name);
        idle = t.idle_s > idle ? t.idle_s : idle;
        n_steps += t.steps;
        running += t.running;
        waiting += t.waiting;
        (void)json_array_append_new(rows, ready_row(&s->models.all[i], &t));
    }
    if (s->draining)
        (void)snprintf(why, sizeof why, "the server is shutting down");
    tern_reply_json(c, why[0] ? 503 : 200,
                    json_pack("{ss so* sI sf si si so}", "status", why[0] ? "error" : "ok", "reason",
                              why[0] ? tern_json_cstr(why) : NULL, "steps", (json_int_t)n_steps, "engine_idle_s", idle,
                              "running", running, "waiting", waiting, "models", rows));
}

/* With the members that OpenAI's and Anthropic's clients look for. */
static json_t *model_object(struct tern_served *m, const char *id)
{
    struct tern_served_counts n;
    const time_t started = (time_t)m->server->started;
    struct tm tm;
    char created[32] = "";
    if (gmtime_r(&started, &tm))
        (void)strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &tm);
    tern_served_count(m, &n);
    const struct tern_served_about *a = &n.about;
    json_t *meta = a->known ? json_pack("{so sI sI}", "arch", tern_json_cstr(a->arch), "n_params",
                                        (json_int_t)a->n_params, "size", (json_int_t)a->file_bytes)
                            : json_null();
    return json_pack("{so ss ss so ss sI ss so so ss so}", "id", tern_json_cstr(id), "object", "model", "type", "model",
                     "display_name", tern_json_cstr(id), "created_at", created, "created",
                     (json_int_t)m->server->started, "owned_by", "tern", "root", tern_json_cstr(m->name),
                     "max_model_len", a->known ? json_integer(a->ctx) : json_null(), "state", tern_served_word(m),
                     "meta", meta);
}

static void answer_models(struct tern_server *s, struct tern_http_call *c)
{
    json_t *list = json_array();
    for (int i = 0; i < s->p.n_models; i++)
        (void)json_array_append_new(list, model_object(&s->models.all[i], s->models.all[i].name));
    for (int i = 0; i < s->p.n_aliases; i++)
        if (strcmp(s->p.aliases[i], "*") != 0)
            (void)json_array_append_new(list, model_object(&s->models.all[0], s->p.aliases[i]));
    const json_t *first = json_array_get(list, 0), *last = json_array_get(list, json_array_size(list) - 1);
    tern_reply_json(c, 200,
                    json_pack("{ss so sb sO sO}", "object", "list", "data", list, "has_more", 0, "first_id",
                              json_object_get(first, "id"), "last_id", json_object_get(last, "id")));
}

static void answer_model(struct tern_server *s, struct tern_http_call *c)
{
    const char *id = tern_http_call_head(c)->path + strlen("/v1/models/");
    struct tern_fault f;
    struct tern_served *m = tern_models_find(s, id, &f);
    if (m)
        tern_reply_json(c, 200, model_object(m, id));
    else
        tern_fault_reply(c, &f, TERN_SHAPE_OPENAI);
}

/* The model that the query names (?model=NAME), else the first; NULL: refused. */
static struct tern_served *asked_for(struct tern_server *s, struct tern_http_call *c)
{
    char name[512];
    struct tern_fault f;
    if (!tern_http_query(tern_http_call_head(c), "model", name, sizeof name))
        return &s->models.all[0];
    struct tern_served *m = tern_models_find(s, name, &f);
    if (!m)
        tern_fault_reply(c, &f, TERN_SHAPE_OPENAI);
    return m;
}

static void answer_kv(struct tern_server *s, struct tern_http_call *c)
{
    struct tern_served *m = asked_for(s, c);
    if (m)
        tern_reply_json(c, 200, tern_kv_json(m));
}

static void answer_metrics(struct tern_server *s, struct tern_http_call *c)
{
    struct tern_buf b = {0};
    if (tern_metrics_text(s, &b) < 0)
        reply_lacking(c);
    else
        tern_http_reply(c, 200, "text/plain; version=0.0.4; charset=utf-8", b.p, b.len);
    tern_buf_clear(&b);
}

static void answer_tags(struct tern_server *s, struct tern_http_call *c)
{
    tern_reply_json(c, 200, tern_ollama_models(s, false));
}

static void answer_cache(struct tern_server *s, struct tern_http_call *c)
{
    struct tern_served *m = asked_for(s, c);
    if (m)
        tern_reply_json(c, 200, tern_cache_json(m));
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
    struct tern_fault f;
    struct tern_served *m = asked_for(s, c);
    if (!m)
        return;
    if (!tern_served_look(m)) {
        (void)tern_fault_set(&f, 503, "model_not_loaded", "model",
                             "the model \"%.127s\" is not loaded; a request to it loads it", m->name);
        tern_fault_reply(c, &f, TERN_SHAPE_OPENAI);
        return;
    }
    const tern_model_info *i = tern_model_get_info(m->model);
    const char *eos = NULL;
    for (int id = 0; id < i->n_vocab && !eos; id++)
        if (tern_model_is_eog(m->model, id))
            eos = tern_model_token(m->model, id);
    tern_reply_json(c, 200,
                    json_pack("{so so so si}", "model", tern_json_cstr(m->name), "tokenizer_class",
                              tern_json_cstr(i->tokenizer), "eos_token", tern_json_cstr(eos), "vocab_size",
                              i->n_vocab));
    tern_served_leave(m);
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
    {"POST", "/api/embeddings", NULL, &tern_api_ollama_embeddings, TERN_SHAPE_OLLAMA, false},
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
    {"POST", "/v1/cache/export", NULL, &tern_api_cache_export, TERN_SHAPE_OPENAI, false},
    {"POST", "/v1/cache/import", NULL, &tern_api_cache_import, TERN_SHAPE_OPENAI, false},
    {"GET", "/metrics", answer_metrics, NULL, TERN_SHAPE_OPENAI, false},
};
#define N_ROUTES (sizeof routes / sizeof *routes)

static bool path_fits(const char *pattern, const char *path)
{
    size_t n = strlen(pattern);
    return pattern[n - 1] == '/' && n > 1 ? strncmp(path, pattern, n) == 0 && path[n] : strcmp(path, pattern) == 0;
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
    (void)tern_json_lacked();
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

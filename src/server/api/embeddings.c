/* POST /v1/embeddings: what the model made of a text, as a vector of length 1. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/ask.h"

#define AT TERN_ASK_AT

static const char length_one[] = "vectors have length 1 here";

static const struct tern_field fields[] = {
    {"model", TERN_FIELD_STR, AT(model), 0, 512, NULL},
    {"input", TERN_FIELD_ANY, AT(input), 0, 0, NULL},
    {"encoding_format", TERN_FIELD_STR, AT(text), 0, 0, NULL},
    {"pooling", TERN_FIELD_STR, AT(effort), 0, 0, NULL},
    {"dimensions", TERN_FIELD_INT, AT(n), 1, INT32_MAX, NULL},
    {"user", TERN_FIELD_STR, TERN_FIELD_CHECKED, 0, 0, NULL},
    /* of vLLM and llama-server */
    {"add_special_tokens", TERN_FIELD_BOOL, AT(special), 0, 0, NULL},
    {"truncate_prompt_tokens", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "a text that is too long is refused"},
    {"normalize", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 1, 1, length_one},
    {"embd_normalize", TERN_FIELD_OFF, TERN_FIELD_CHECKED, 2, 2, length_one},
    {0},
};

static int prepare(struct tern_job *j, struct tern_fault *f)
{
    if (tern_ask_read(j, fields, f) < 0)
        return -1;
    struct tern_ask *g = j->ask;
    int n_embd = tern_model_get_info(j->served->model)->n_embd;
    if (g->text && strcmp(g->text, "float") != 0 && strcmp(g->text, "base64") != 0)
        return tern_fault_set(f, 400, "invalid_value", "encoding_format", "encoding_format must be float or base64");
    if (g->effort && strcmp(g->effort, "last") != 0 && strcmp(g->effort, "mean") != 0)
        return tern_fault_set(f, 400, "invalid_value", "pooling", "pooling must be last or mean");
    if (g->n > 0 && g->n != n_embd)
        return tern_fault_set(f, 400, "invalid_value", "dimensions", "dimensions can only be %d, the model's own",
                              n_embd);
    g->n = TERN_ASK_UNSET;
    g->max_tokens = 0;
    if (tern_ask_request(j, f) < 0)
        return -1;
    g->request.embed = g->effort && g->effort[0] == 'm' ? TERN_EMBED_MEAN : TERN_EMBED_LAST;
    return tern_ask_prompts(j, g->input, "input", f);
}

/* To length 1, in place. */
static void normalize(float *v, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)v[i] * (double)v[i];
    double scale = sum > 0 ? 1 / sqrt(sum) : 0;
    for (int i = 0; i < n; i++)
        v[i] = (float)((double)v[i] * scale);
}

static json_t *as_list(const float *v, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        (void)json_array_append_new(list, json_real(isfinite(v[i]) ? (double)v[i] : 0.0));
    return list;
}

static json_t *as_base64(const float *v, int n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)v;
    size_t bytes = (size_t)n * sizeof *v;
    struct tern_buf b = {0};
    for (size_t i = 0; i < bytes; i += 3) {
        unsigned left = (unsigned)(bytes - i), x = (unsigned)p[i] << 16;
        x |= left > 1 ? (unsigned)p[i + 1] << 8 : 0;
        x |= left > 2 ? p[i + 2] : 0;
        const char four[4] = {digits[x >> 18], digits[(x >> 12) & 63], left > 1 ? digits[(x >> 6) & 63] : '=',
                              left > 2 ? digits[x & 63] : '='};
        tern_json_add(&b, four, 4);
    }
    json_t *out = json_stringn(b.p ? b.p : "", b.len);
    tern_buf_clear(&b);
    return out;
}

static void end(struct tern_job *j)
{
    json_t *data = json_array();
    bool base64 = j->ask->text && j->ask->text[0] == 'b';
    for (int i = 0; i < j->n_lanes; i++) {
        struct tern_lane *lane = &j->lanes[i];
        normalize(lane->vector, lane->n_vector);
        json_t *v = base64 ? as_base64(lane->vector, lane->n_vector) : as_list(lane->vector, lane->n_vector);
        (void)json_array_append_new(data, json_pack("{ss si so}", "object", "embedding", "index", i, "embedding", v));
    }
    tern_job_answer(j, json_pack("{ss so so ss s{si si}}", "object", "list", "data", data, "model",
                                 tern_json_cstr(j->served->name), "pooling",
                                 j->ask->request.embed == TERN_EMBED_MEAN ? "mean" : "last", "usage", "prompt_tokens",
                                 j->n_prompt, "total_tokens", j->n_prompt));
}

const struct tern_api tern_api_embeddings = {.shape = TERN_SHAPE_OPENAI, .prepare = prepare, .end = end};

/* ---- Ollama's ---------------------------------------------------------------------------------------------------- */

static const struct tern_field ollama_fields[] = {
    {"model", TERN_FIELD_STR, AT(model), 0, 512, NULL},
    {"input", TERN_FIELD_ANY, AT(input), 0, 0, NULL},
    {"truncate", TERN_FIELD_BOOL, AT(truncates), 0, 0, NULL},
    {"dimensions", TERN_FIELD_INT, AT(n), 1, INT32_MAX, NULL},
    {"options", TERN_FIELD_OBJ, TERN_FIELD_CHECKED, 0, 0, NULL},
    {"keep_alive", TERN_FIELD_ANY, AT(keep_alive), 0, 0, NULL},
    {0},
};

static bool is_nothing(const json_t *v)
{
    return !v || (json_is_string(v) && json_string_length(v) == 0) || (json_is_array(v) && json_array_size(v) == 0);
}

static int ollama_prepare(struct tern_job *j, struct tern_fault *f)
{
    if (tern_ask_read(j, ollama_fields, f) < 0 || tern_ollama_keep_alive(j->ask->keep_alive, &j->keep_s, f) < 0)
        return -1;
    if (j->ask->n > 0 && j->ask->n != tern_model_get_info(j->served->model)->n_embd)
        return tern_fault_set(f, 400, "invalid_value", "dimensions", "dimensions can only be the model's own");
    j->ask->n = TERN_ASK_UNSET;
    j->ask->max_tokens = 0;
    if (tern_ask_request(j, f) < 0)
        return -1;
    j->ask->request.embed = TERN_EMBED_LAST;
    if (is_nothing(j->ask->input)) { /* loads the model */
        j->answer = json_pack("{so s[]}", "model", tern_json_cstr(j->served->name), "embeddings");
        return 0;
    }
    const json_t *truncate = json_object_get(j->root, "truncate");
    j->ask->truncates |= !truncate || json_is_null(truncate); /* its default */
    return tern_ask_prompts(j, j->ask->input, "input", f);
}

static void ollama_end(struct tern_job *j)
{
    json_t *data = json_array();
    for (int i = 0; i < j->n_lanes; i++) {
        normalize(j->lanes[i].vector, j->lanes[i].n_vector);
        (void)json_array_append_new(data, as_list(j->lanes[i].vector, j->lanes[i].n_vector));
    }
    tern_job_answer(j, json_pack("{so so sI sI si}", "model", tern_json_cstr(j->served->name), "embeddings", data,
                                 "total_duration", (json_int_t)((tern_now() - j->began) * 1e9), "load_duration",
                                 (json_int_t)(j->waited_s * 1e9), "prompt_eval_count", j->n_prompt));
}

const struct tern_api tern_api_ollama_embed = {
    .shape = TERN_SHAPE_OLLAMA, .prepare = ollama_prepare, .end = ollama_end};

/* POST /api/embeddings, the older form: one text, one vector. */
static int older_prepare(struct tern_job *j, struct tern_fault *f)
{
    json_t *prompt = json_object_get(j->root, "prompt");
    if (prompt && !json_is_null(prompt) && !json_is_string(prompt))
        return tern_fault_set(f, 400, "invalid_type", "prompt", "prompt must be a string");
    (void)json_object_del(j->root, "input"); /* the newer form's */
    if (prompt)
        (void)json_object_set(j->root, "input", prompt);
    int rc = ollama_prepare(j, f);
    if (rc == 0 && j->answer) {
        json_decref(j->answer);
        j->answer = json_pack("{s[]}", "embedding");
    }
    return rc;
}

static void older_end(struct tern_job *j)
{
    struct tern_lane *lane = &j->lanes[0];
    normalize(lane->vector, lane->n_vector);
    tern_job_answer(j, json_pack("{so}", "embedding", as_list(lane->vector, lane->n_vector)));
}

const struct tern_api tern_api_ollama_embeddings = {
    .shape = TERN_SHAPE_OLLAMA, .prepare = older_prepare, .end = older_end};

/* POST /v1/completions: texts or ids to continue, or to score. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "server/api/ask.h"

#define MAX_PROMPTS 1024

static const struct tern_field fields[] = {
    TERN_ASK_COMMON_FIELDS,
    {"prompt", TERN_FIELD_ANY, TERN_ASK_AT(prompt), 0, 0, NULL},
    {"logprobs", TERN_FIELD_INT, TERN_ASK_AT(top_logprobs), 0, TERN_MAX_LOGPROB, NULL},
    {"echo", TERN_FIELD_BOOL, TERN_ASK_AT(echo), 0, 0, NULL},
    {"add_special_tokens", TERN_FIELD_BOOL, TERN_ASK_AT(special), 0, 0, NULL},
    {"best_of", TERN_FIELD_INT, TERN_ASK_AT(best_of), 1, 1024, NULL},
    {"suffix", TERN_FIELD_REFUSED, TERN_FIELD_CHECKED, 0, 0, "text cannot be filled in before a suffix here"},
    {0},
};

/* ---- prompts ----------------------------------------------------------------------------------------------------- */

static int add_ids(struct tern_job *j, const json_t *list, const char *param, tern_tokens *out, struct tern_fault *f)
{
    int n_vocab = tern_model_get_info(j->served->model)->n_vocab;
    size_t i;
    json_t *v;
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (!json_is_integer(v))
            return tern_fault_set(f, 400, "invalid_type", param, "%s[%zu] must be a token id like its neighbours",
                                  param, i);
        if (id < 0 || id >= n_vocab)
            return tern_fault_set(f, 400, "invalid_value", param, "%s[%zu] is no token id from 0 to %d", param, i,
                                  n_vocab - 1);
        if (tern_tokens_push(out, (int32_t)id, NULL) < 0)
            return tern_fault_set(f, 503, NULL, NULL, "out of memory");
    }
    return 0;
}

/* What is put around texts: nothing behind one that is to be continued. */
static unsigned around(const struct tern_ask *g)
{
    if (!g->special)
        return 0;
    return g->request.embed == TERN_EMBED_NONE ? TERN_TEXT_BOS | TERN_TEXT_OPEN : TERN_TEXT_BOS;
}

/* Of n bytes so many that there are more tokens than the context holds, and not many times more; whole characters. */
static size_t cut_text(const struct tern_job *j, const char *text, size_t n)
{
    const size_t most = (size_t)tern_engine_ctx(j->served->engine) + 64; /* a cut may make some tokens of one */
    while (tern_model_least_tokens(j->served->model, n / 2) > most)
        n /= 2;
    while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80)
        n--;
    return n;
}

/* A prompt that the context does not hold loses its end, but for what the tokenizer puts behind texts. */
static int cut_ids(const struct tern_job *j, bool text, tern_tokens *ids, struct tern_fault *f)
{
    const size_t ctx = (size_t)tern_engine_ctx(j->served->engine);
    tern_tokens whole = {0}, front = {0};
    tern_error err = {0};
    int rc = 0;
    if (ids->len <= ctx)
        return 0;
    if (text)
        rc = tern_model_tokenize(j->served->model, "", 0, TERN_TEXT_BOS, &whole, &err);
    if (text && rc == 0)
        rc = tern_model_tokenize(j->served->model, "", 0, TERN_TEXT_BOS | TERN_TEXT_OPEN, &front, &err);
    const size_t back = whole.len - front.len;
    if (rc == 0 && back < ctx) {
        memmove(ids->p + ctx - back, ids->p + ids->len - back, back * sizeof *ids->p);
        ids->len = ctx;
    }
    tern_tokens_clear(&whole);
    tern_tokens_clear(&front);
    return rc < 0 ? tern_fault_from(f, &err, NULL) : 0;
}

static int add_prompt(struct tern_job *j, const json_t *v, const char *param, tern_tokens *out, struct tern_fault *f)
{
    const struct tern_ask *g = j->ask;
    tern_error err;
    int rc;
    if (!json_is_array(v) && !json_is_string(v))
        return tern_fault_set(f, 400, "invalid_type", param, "%s must be a string or a list of token ids", param);
    if (json_is_array(v)) {
        rc = add_ids(j, v, param, out, f);
        return rc == 0 && g->truncates ? cut_ids(j, false, out, f) : rc;
    }
    const char *text = json_string_value(v);
    size_t n = json_string_length(v);
    if (g->truncates)
        n = cut_text(j, text, n);
    else if (tern_ask_check_bytes(j, n, param, f) < 0)
        return -1;
    if (tern_model_tokenize(j->served->model, text, n, TERN_TEXT_SPECIAL | around(g), out, &err) < 0)
        return tern_fault_from(f, &err, param);
    return g->truncates ? cut_ids(j, g->special, out, f) : 0;
}

int tern_ask_prompts(struct tern_job *j, const json_t *p, const char *param, struct tern_fault *f)
{
    bool several = json_is_array(p) && !json_is_integer(json_array_get(p, 0));
    size_t n = several ? json_array_size(p) : 1;
    j->ask->request.continues = true;
    if (!p)
        return tern_fault_set(f, 400, "missing_required_parameter", param, "%s is missing", param);
    if (n == 0 || n > MAX_PROMPTS)
        return tern_fault_set(f, 400, "invalid_value", param, "%s must have 1 to %d entries", param, MAX_PROMPTS);
    if (n > (size_t)j->server->p.loop.max_waiting) /* no later moment would do */
        return tern_fault_set(f, 400, "invalid_value", param,
                              "%s has %zu entries, and %d requests may wait at once (--queue)", param, n,
                              j->server->p.loop.max_waiting);
    if (tern_job_lanes(j, (int)n, f) < 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        char at[32];
        (void)snprintf(at, sizeof at, several ? "%s[%zu]" : "%s", param, i);
        if (add_prompt(j, several ? json_array_get(p, i) : p, at, &j->lanes[i].ids, f) < 0 ||
            tern_ask_check_prompt(j, &j->lanes[i], at, f) < 0)
            return -1;
    }
    return 0;
}

static int prepare(struct tern_job *j, struct tern_fault *f)
{
    if (json_is_false(json_object_get(j->root, "logprobs"))) /* none, as the chat API says it */
        (void)json_object_del(j->root, "logprobs");
    if (tern_ask_read(j, fields, f) < 0 || tern_ask_others(j, f) < 0)
        return -1;
    struct tern_ask *g = j->ask;
    g->logprobs = g->top_logprobs >= 0;
    if (g->max_tokens == TERN_ASK_UNSET && !json_is_number(json_object_get(j->root, "max_tokens")) &&
        !json_is_number(json_object_get(j->root, "n_predict")))
        g->max_tokens = 16; /* OpenAI's default */
    tern_ask_name(j, "cmpl-");
    return tern_ask_request(j, f) < 0 ? -1 : tern_ask_prompts(j, g->prompt, "prompt", f);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* How many ids of a prompt are what the tokenizer puts in front of every text: no part of what the client wrote. */
static size_t n_front(const tern_model *m, const tern_tokens *ids)
{
    tern_tokens front = {0};
    tern_error err = {0};
    size_t n = 0;
    if (tern_model_tokenize(m, "", 0, TERN_TEXT_BOS | TERN_TEXT_OPEN, &front, &err) == TERN_ENOMEM)
        tern_json_lack();
    while (n < front.len && n < ids->len && front.p[n] == ids->p[n])
        n++;
    n = n == front.len ? n : 0;
    tern_tokens_clear(&front);
    return n;
}

/* The prompt as text; its scores learn where in it their tokens lie. */
static void add_prompt_text(const struct tern_job *j, const struct tern_lane *lane, struct tern_buf *out)
{
    const tern_model *m = j->served->model;
    tern_stream *stream = NULL;
    const char *text;
    size_t n, offset = 0;
    tern_error err = {0};
    int rc = tern_stream_new(&stream, m, true, &err);
    const size_t front = rc == 0 ? n_front(m, &lane->ids) : 0;
    for (size_t i = 0; i < lane->ids.len; i++) {
        tern_scores_place(lane->scores, i, offset);
        if (rc < 0 || i < front)
            continue;
        rc = tern_stream_push(stream, lane->ids.p[i], &text, &n, &err);
        tern_json_add(out, text, rc == 0 ? n : 0);
        offset += tern_characters(text, rc == 0 ? n : 0);
    }
    if (rc == 0) {
        rc = tern_stream_finish(stream, &text, &n, &err);
        tern_json_add(out, text, n);
    }
    if (rc == TERN_ENOMEM)
        tern_json_lack();
    tern_stream_free(stream);
}

/* What begins a choice: the prompt, where it is wanted back. */
static void begin_choice(const struct tern_job *j, struct tern_choice *c, struct tern_buf *text, json_t *scores)
{
    if (c->begun)
        return;
    c->begun = true;
    if (!j->ask->echo)
        return;
    add_prompt_text(j, c->lane, text);
    c->part = (int)tern_characters(text->p, text->len);
    if (c->lane->scores)
        (void)json_array_extend(scores, c->lane->scores);
}

/* The scores of a choice move to the list, each with the place of its token in the text: c->part, characters so far.
 * The text itself may be behind, where it could become a stop string. */
static void take_scores(const struct tern_job *j, struct tern_choice *c, json_t *scores)
{
    tern_error err = {0};
    const tern_tokens *prompt = &c->lane->ids;
    int rc = 0;
    if (!c->spelled && c->scores) { /* it begins as the reply's own text does */
        rc = tern_stream_new(&c->spelled, j->served->model, !j->ask->skips_control, &err);
        rc = rc < 0 ? rc : tern_stream_behind(c->spelled, prompt->p[prompt->len - 1], &err);
    }
    size_t i;
    json_t *t;
    json_array_foreach(c->scores, i, t)
    {
        const char *text = "";
        size_t n = 0;
        tern_scores_place(c->scores, i, (size_t)c->part);
        if (c->spelled)
            rc = tern_stream_push(c->spelled, (int32_t)json_integer_value(json_object_get(t, "id")), &text, &n, &err);
        if (rc == 0)
            c->part += (int)tern_characters(text, n);
    }
    if (rc == TERN_ENOMEM)
        tern_json_lack();
    if (c->scores)
        (void)json_array_extend(scores, c->scores);
    json_decref(c->scores);
    c->scores = NULL;
}

static json_t *whole_choice(const struct tern_job *j, struct tern_choice *c, int index)
{
    struct tern_buf b = {0};
    json_t *scores = json_array();
    c->begun = false; /* which says so far that it was taken */
    begin_choice(j, c, &b, scores);
    tern_json_add(&b, c->text.p ? c->text.p : "", c->text.len);
    take_scores(j, c, scores);
    json_t *out = json_pack("{si so ss so}", "index", index, "text", tern_json_chars(b.p, b.len), "finish_reason",
                            tern_finish_openai(c), "logprobs",
                            j->ask->logprobs ? tern_scores_legacy(j->served->model, scores) : json_null());
    json_decref(scores);
    tern_buf_clear(&b);
    return out;
}

/* The best choice of a lane that was not taken yet, by the mean of its logprobs. */
static struct tern_choice *take_best(struct tern_job *j, int lane)
{
    struct tern_choice *all = &j->choices[lane * j->per_lane], *top = NULL;
    double most = 0;
    for (int i = 0; i < j->per_lane; i++) {
        const tern_event *e = &all[i].end;
        double mean = e->n_generated > 0 ? e->logprob / e->n_generated : -1e30;
        if (!all[i].begun && (!top || mean > most)) {
            top = &all[i];
            most = mean;
        }
    }
    TERN_ASSERT(top); /* who asks has counted */
    top->begun = true;
    return top;
}

static void end_whole(struct tern_job *j)
{
    json_t *choices = json_array();
    int n = (int)j->ask->n;
    for (int lane = 0; lane < j->n_lanes; lane++)
        for (int k = 0; k < n; k++) {
            struct tern_choice *c = n < j->per_lane ? take_best(j, lane) : &j->choices[lane * n + k];
            (void)json_array_append_new(choices, whole_choice(j, c, lane * n + k));
        }
    tern_job_answer(j, json_pack("{ss ss sI so ss so so}", "id", j->id, "object", "text_completion", "created",
                                 (json_int_t)j->created, "model", tern_json_cstr(j->served->name), "system_fingerprint",
                                 tern_version(), "choices", choices, "usage", tern_usage_openai(j)));
}

static void send_chunk(struct tern_job *j, json_t *choices, json_t *usage)
{
    json_t *chunk = json_pack("{ss ss sI so so}", "id", j->id, "object", "text_completion", "created",
                              (json_int_t)j->created, "model", tern_json_cstr(j->served->name), "choices", choices);
    if (usage)
        (void)json_object_set_new(chunk, "usage", usage);
    tern_job_sse(j, NULL, chunk);
}

static void send_text(struct tern_job *j, struct tern_choice *c, const char *text, size_t n, const char *finish)
{
    struct tern_buf b = {0};
    json_t *scores = json_array();
    begin_choice(j, c, &b, scores);
    tern_json_add(&b, text, n);
    take_scores(j, c, scores);
    json_t *choice = json_pack("{si so so}", "index", c->index, "text", tern_json_chars(b.p, b.len), "finish_reason",
                               tern_json_cstr(finish));
    (void)json_object_set_new(choice, "logprobs",
                              j->ask->logprobs && json_array_size(scores) ? tern_scores_legacy(j->served->model, scores)
                                                                          : json_null());
    json_decref(scores);
    tern_buf_clear(&b);
    json_t *usage = j->ask->continuous_usage ? tern_usage_so_far(j) : j->ask->include_usage ? json_null() : NULL;
    send_chunk(j, json_pack("[o]", choice), usage);
}

static void piece(struct tern_job *j, struct tern_choice *c, const tern_event *e)
{
    c->n_parts = e->n_generated; /* tokens so far */
    send_text(j, c, e->text, e->n, NULL);
}

static void choice_end(struct tern_job *j, struct tern_choice *c)
{
    c->n_parts = c->end.n_generated;
    send_text(j, c, "", 0, tern_finish_openai(c));
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
    tern_api_chat.ping(j);
}

static void failed(struct tern_job *j, const struct tern_fault *f)
{
    tern_job_sse(j, NULL, tern_fault_json(f, TERN_SHAPE_OPENAI));
}

const struct tern_api tern_api_completions = {
    .shape = TERN_SHAPE_OPENAI,
    .stream_type = "text/event-stream; charset=utf-8",
    .prepare = prepare,
    .piece = piece,
    .choice_end = choice_end,
    .end = end,
    .ping = ping,
    .failed = failed,
};

/* Jobs: from a call to its answer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/api/ask.h"

/* ---- life -------------------------------------------------------------------------------------------------------- */

static void choice_clear(struct tern_choice *c)
{
    tern_buf_clear(&c->text);
    tern_buf_clear(&c->reasoning);
    tern_buf_clear(&c->arguments);
    json_decref(c->calls);
    json_decref(c->scores);
    tern_stream_free(c->spelled);
}

void tern_job_free(struct tern_job *j)
{
    struct tern_server *s = j->server;
    if (s->p.log && j->path[0])
        tern_log_job(j);
    if (j->all_next)
        j->all_next->all_prev = j->all_prev;
    *(j->all_prev ? &j->all_prev->all_next : &s->jobs) = j->all_next;
    s->n_jobs--;
    for (int i = 0; i < j->n_choices; i++)
        choice_clear(&j->choices[i]);
    for (int i = 0; i < j->n_lanes; i++) {
        tern_tokens_clear(&j->lanes[i].ids);
        tern_tokens_clear(&j->lanes[i].borders);
        json_decref(j->lanes[i].scores);
        free(j->lanes[i].vector);
        if (j->lanes[i].constraint.free)
            j->lanes[i].constraint.free(j->lanes[i].constraint.state);
    }
    free(j->choices);
    free(j->lanes);
    tern_ask_free(j->ask);
    json_decref(j->root);
    json_decref(j->answer);
    json_decref(j->items);
    tern_buf_clear(&j->body);
    tern_buf_clear(&j->raw);
    if (j->held)
        tern_served_drop(j->served, j->keep_s); /* nothing of the job refers to its model any more */
    free(j);
}

static void cancel(struct tern_job *j)
{
    if (!j->submitted) /* a worker has it: tern_job_prepared will see that nobody waits, or that the server ends */
        return;
    for (int i = 0; i < j->n_lanes; i++)
        if (j->lanes[i].running)
            tern_loop_cancel(j->served->loop, j->lanes[i].id);
}

/* The client went away. */
static void gone(void *user)
{
    struct tern_job *j = user;
    j->call = NULL;
    j->status = 499;
    j->server->disconnects++;
    if (tern_served_forget(j)) {
        tern_job_free(j);
        return;
    }
    cancel(j); /* the job ends when the last of its lanes has */
}

static void refuse(struct tern_job *j, struct tern_fault *f)
{
    struct tern_http_call *call = j->call;
    const char *path = j->served ? j->served->path : "";
    size_t n = strlen(path);
    j->over = true;
    j->status = f->status;
    j->fault = *f;
    if (!call)
        return;
    /* Where the model lies is nobody's business out there. */
    if (n && strncmp(f->text, path, n) == 0 && strncmp(f->text + n, ": ", 2) == 0)
        memmove(f->text, f->text + n + 2, strlen(f->text + n + 2) + 1);
    if (tern_http_begun(call)) {
        (void)tern_json_lacked();
        j->api->failed(j, f);
        j->call = NULL;
        if (tern_json_lacked())
            tern_http_break(call);
        else
            tern_http_end(call);
        return;
    }
    j->call = NULL;
    tern_fault_reply(call, f, j->api->shape);
}

struct tern_job *tern_job_new(struct tern_server *s, const struct tern_api *api)
{
    struct tern_job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    *j = (struct tern_job){.server = s, .api = api, .created = (int64_t)time(NULL), .began = tern_now(), .keep_s = NAN};
    j->all_next = s->jobs;
    if (s->jobs)
        s->jobs->all_prev = j;
    s->jobs = j;
    s->n_jobs++;
    return j;
}

/* The model of a body that is a file, and so cannot name one; true also where it is none, which then says it itself. */
static bool find_model_of_file(struct tern_job *j, struct tern_http_call *c, struct tern_fault *f)
{
    char name[512];
    if (!j->api->magic)
        return true;
    const bool named = tern_http_query(tern_http_call_head(c), "model", name, sizeof name);
    if (j->body.len < 8 || memcmp(j->body.p, j->api->magic, 8) != 0)
        return !named || tern_fault_set(f, 400, "invalid_value", "model",
                                        "a JSON body names the model in its field \"model\", not the query") == 0;
    j->served = named ? tern_models_find(j->server, name, f) : &j->server->models.all[0];
    return j->served;
}

void tern_job_start(struct tern_server *s, const struct tern_api *api, struct tern_http_call *c)
{
    struct tern_fault f;
    struct tern_job *j = tern_job_new(s, api);
    if (!j) {
        (void)tern_fault_set(&f, 503, NULL, NULL, "out of memory");
        tern_fault_reply(c, &f, api->shape);
        return;
    }
    j->call = c;
    (void)snprintf(j->id, sizeof j->id, "%s", tern_http_call_id(c));
    (void)snprintf(j->path, sizeof j->path, "%s", tern_http_call_head(c)->path);
    j->status = 200;
    j->key = tern_auth_key(s, c);
    tern_http_take_body(c, &j->body);
    j->body_bytes = j->body.len;
    tern_http_watch(c, gone, j);
    if (!find_model_of_file(j, c, &f)) {
        refuse(j, &f);
        tern_job_free(j);
        return;
    }
    if (!tern_workers_put(s, j)) {
        (void)tern_fault_set(&f, 429, "overloaded", NULL, "too many requests are waiting to be read; try again later");
        f.retry_after = 1;
        refuse(j, &f);
        tern_job_free(j);
    }
}

int tern_job_read(struct tern_job *j, struct tern_fault *f)
{
    static const struct tern_field table[] = {{"model", TERN_FIELD_STR, 0, 0, 512, NULL}, {0}};
    static const struct tern_field ollamas[] = {
        {"name", TERN_FIELD_STR, 0, 0, 512, NULL}, {"model", TERN_FIELD_STR, 0, 0, 512, NULL}, {0}};
    char why[240];
    const char *name = NULL;
    j->root = tern_json_read(j->body.p, j->body.len, why, sizeof why);
    tern_buf_clear(&j->body);
    if (!j->root)
        return tern_fault_set(f, 400, "invalid_json", NULL, "%s", why);
    if (!json_is_object(j->root))
        return tern_fault_set(f, 400, "invalid_json", NULL, "the body must be a JSON object");
    if (tern_fields_read(j->api->shape == TERN_SHAPE_OLLAMA ? ollamas : table, j->root, "", &name, f) < 0)
        return -1;
    j->served = name ? tern_models_find(j->server, name, f) : &j->server->models.all[0];
    return j->served ? 0 : -1;
}

int tern_job_lanes(struct tern_job *j, int n, struct tern_fault *f)
{
    j->lanes = calloc((size_t)n, sizeof *j->lanes);
    if (!j->lanes)
        return tern_fault_set(f, 503, NULL, NULL, "out of memory");
    j->n_lanes = n;
    for (int i = 0; i < n; i++)
        j->lanes[i] = (struct tern_lane){.job = j, .index = i};
    return 0;
}

/* ---- submission -------------------------------------------------------------------------------------------------- */

static int make_choices(struct tern_job *j, struct tern_fault *f)
{
    j->per_lane = j->ask->request.n_choices;
    size_t n = (size_t)j->n_lanes * (size_t)j->per_lane;
    j->choices = calloc(n, sizeof *j->choices);
    if (!j->choices)
        return tern_fault_set(f, 503, NULL, NULL, "out of memory");
    j->n_choices = (int)n;
    for (int i = 0; i < j->n_choices; i++)
        j->choices[i] = (struct tern_choice){.index = i, .lane = &j->lanes[i / j->per_lane]};
    return 0;
}

static int submit(struct tern_job *j, struct tern_fault *f)
{
    struct tern_server *s = j->server;
    if (s->draining) {
        (void)tern_fault_set(f, 503, "shutting_down", NULL, "the server is shutting down");
        f->retry_after = 5;
        return -1;
    }
    if (make_choices(j, f) < 0)
        return -1;
    for (int i = 0; i < j->n_lanes; i++) {
        struct tern_lane *lane = &j->lanes[i];
        tern_request r = j->ask->request;
        tern_error err = {0};
        if (j->ask->seed == TERN_ASK_UNSET)
            r.sampler.seed += 0x9E3779B97F4A7C15u * (uint64_t)i; /* equal prompts of one request draw apart */
        r.prompt = lane->ids.p;
        r.n_prompt = (int)lane->ids.len;
        r.borders = lane->borders.p;
        r.n_borders = (int)lane->borders.len;
        r.constraint = lane->constraint;
        if (r.timeout_s > 0 && j->waited_s > 0)
            r.timeout_s = r.timeout_s > j->waited_s ? r.timeout_s - j->waited_s : 1e-3;
        int rc = tern_loop_submit(j->served->loop, &r, s->events, lane, &lane->id, &err);
        if (rc < 0) {
            (void)tern_fault_from(f, &err, NULL);
            if (rc == TERN_ECAPACITY)
                f->retry_after = tern_loop_retry_after(j->served->loop);
            return -1;
        }
        lane->constraint = (tern_constraint){0};
        lane->running = true;
        j->n_running++;
    }
    return 0;
}

void tern_job_prepared(struct tern_job *j)
{
    struct tern_http_call *call = j->call;
    struct tern_fault f = j->fault;
    if (!call) {
        tern_job_free(j);
        return;
    }
    (void)tern_json_lacked();
    if (f.status == 0 && j->wants) {
        j->tells = j->api->ping && json_is_true(json_object_get(j->root, "stream"));
        if (tern_served_wait(j, &f) == 0)
            return;
    }
    if (f.status == 0 && !j->answer && !j->raw.len && j->n_lanes == 0) /* an answer that there was no memory for */
        (void)tern_fault_set(&f, 503, NULL, NULL, "out of memory");
    if (f.status == 0 && j->answer) {
        json_t *answer = j->answer;
        j->answer = NULL;
        j->call = NULL;
        tern_reply_json(call, 200, answer);
        tern_job_free(j);
        return;
    }
    if (f.status == 0 && j->raw.len) {
        j->call = NULL;
        tern_http_reply(call, 200, "application/octet-stream", j->raw.p, j->raw.len);
        tern_job_free(j);
        return;
    }
    if (f.status == 0) {
        char id[TERN_PREFIX_ID];
        tern_prefix_id(&j->lanes[0].ids, id);
        tern_http_header(call, "x-prefix-id", id);
        j->submitted = true;
        j->said = tern_now();
        const bool can = !tern_json_lacked() && tern_json_begin(j->body_bytes); /* tools are read once more */
        const bool done = can && submit(j, &f) == 0, lacks = tern_json_lacked();
        tern_json_end();
        if (done && !lacks)
            return;
        if (lacks || !can)
            (void)tern_fault_set(&f, 503, NULL, NULL, "out of memory");
        cancel(j);
    }
    refuse(j, &f);
    if (j->n_running == 0)
        tern_job_free(j);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

static void begin_stream(struct tern_job *j)
{
    if (j->opened)
        return;
    j->opened = true;
    if (!tern_http_begun(j->call))
        tern_http_begin(j->call, 200, j->api->stream_type);
    j->said = tern_now();
    if (j->api->open)
        j->api->open(j);
}

static void keep(struct tern_choice *c, const tern_event *e)
{
    switch (e->kind) {
    case TERN_EVENT_TEXT:
        tern_json_add(&c->text, e->text, e->n);
        break;
    case TERN_EVENT_REASONING:
        tern_json_add(&c->reasoning, e->text, e->n);
        break;
    case TERN_EVENT_CALL_BEGIN:
        tern_buf_reset(&c->arguments);
        if (!c->calls)
            c->calls = json_array();
        (void)json_array_append_new(
            c->calls, json_pack("{so so}", "id", tern_json_cstr(e->call_id), "name", tern_json_cstr(e->name)));
        break;
    case TERN_EVENT_CALL_ARGUMENTS:
        tern_json_add(&c->arguments, e->text, e->n);
        break;
    case TERN_EVENT_CALL_END:
        (void)json_object_set_new(json_array_get(c->calls, json_array_size(c->calls) - 1), "arguments",
                                  tern_json_chars(c->arguments.p, c->arguments.len));
        break;
    default:
        break;
    }
}

/* A worker goes on with what the lanes have brought. */
static void go_on(struct tern_job *j)
{
    struct tern_fault f;
    j->api = j->api->then;
    if (tern_workers_put(j->server, j))
        return;
    (void)tern_fault_set(&f, 429, "overloaded", NULL, "too many requests are waiting; try again later");
    f.retry_after = 1;
    refuse(j, &f);
    tern_job_free(j);
}

/* What is known is not all there is: the answer is an error. */
static void refuse_lacking(struct tern_job *j)
{
    struct tern_fault f;
    (void)tern_fault_set(&f, 503, NULL, NULL, "out of memory");
    refuse(j, &f);
    cancel(j);
}

static void give_end(struct tern_job *j)
{
    struct tern_http_call *call = j->call;
    j->over = true;
    if (j->stream)
        begin_stream(j);
    j->api->end(j);
    if (j->stream && tern_json_lacked()) {
        refuse_lacking(j);
        return;
    }
    j->call = NULL;
    if (j->stream)
        tern_http_end(call);
}

static void lane_ended(struct tern_lane *lane, const tern_event *e)
{
    struct tern_job *j = lane->job;
    lane->running = false;
    j->n_running--;
    j->n_prompt += e->n_prompt;
    j->n_cached += e->n_cached;
    j->n_generated += e->n_generated;
    j->n_reasoning += e->n_reasoning;
    j->n_drafted += e->n_drafted;
    j->n_accepted += e->n_accepted;
    j->queue_s += e->queue_s;
    j->prompt_s += e->prompt_s;
    j->decode_s += e->decode_s;
    if (e->rc < 0 && j->call && !j->over) {
        struct tern_fault f;
        tern_error err = {.code = e->rc};
        (void)snprintf(err.msg, sizeof err.msg, "%s", e->message ? e->message : "the request ended early");
        (void)tern_fault_from(&f, &err, NULL);
        if (e->rc == TERN_ECANCELLED)
            f.status = 503;         /* not by the client, which is there */
        if (e->rc == TERN_ELIMIT) { /* --timeout */
            f.status = 504;
            f.code = "timeout";
        }
        refuse(j, &f);
        cancel(j);
    }
    if (j->n_running > 0)
        return;
    if (j->call && !j->over && j->api->then) {
        go_on(j);
        return;
    }
    if (j->call && !j->over)
        give_end(j);
    tern_job_free(j);
}

/* Calls beyond the first when the client wants one at a time. */
static bool surplus(const struct tern_job *j, const tern_event *e)
{
    bool call =
        e->kind == TERN_EVENT_CALL_BEGIN || e->kind == TERN_EVENT_CALL_ARGUMENTS || e->kind == TERN_EVENT_CALL_END;
    return call && e->call > 0 && !tern_calls_several(j->ask);
}

static void take_scores(struct tern_lane *lane, const tern_event *e)
{
    if (!lane->scores)
        lane->scores = json_array();
    for (int i = 0; i < e->n_tokens; i++)
        (void)json_array_append_new(lane->scores, tern_scores_entry(&e->tokens[i]));
}

static void take_vector(struct tern_lane *lane, const tern_event *e)
{
    lane->vector = calloc((size_t)e->n_vector, sizeof *lane->vector);
    if (!lane->vector) {
        tern_json_lack();
        return;
    }
    lane->n_vector = e->n_vector;
    memcpy(lane->vector, e->vector, (size_t)e->n_vector * sizeof *lane->vector);
}

static void choice_ended(struct tern_job *j, struct tern_choice *c, const tern_event *e)
{
    c->done = true;
    c->end = *e;
    bool broken = e->finish == TERN_FINISH_CANCELLED || e->finish == TERN_FINISH_TIMEOUT ||
                  e->finish == TERN_FINISH_ERROR; /* the end of the request says why */
    if (!j->call || j->over || broken)
        return;
    if (j->stream)
        begin_stream(j);
    if (j->stream || j->api->keeps_order)
        j->api->choice_end(j, c);
}

/* Any event but the last. */
static void take_event(struct tern_job *j, struct tern_lane *lane, const tern_event *e)
{
    struct tern_choice *c = &j->choices[lane->index * j->per_lane + e->choice];
    switch (e->kind) {
    case TERN_EVENT_START:
        lane->n_cached = e->n_cached;
        return;
    case TERN_EVENT_PROMPT:
        lane->done = e->done;
        return;
    case TERN_EVENT_SCORES:
        take_scores(lane, e);
        return;
    case TERN_EVENT_EMBEDDING:
        take_vector(lane, e);
        return;
    case TERN_EVENT_TOKEN:
        tern_choice_score(c, e);
        return;
    case TERN_EVENT_CHOICE:
        choice_ended(j, c, e);
        return;
    case TERN_EVENT_TEXT:
    case TERN_EVENT_REASONING:
    case TERN_EVENT_CALL_BEGIN:
    case TERN_EVENT_CALL_ARGUMENTS:
    case TERN_EVENT_CALL_END:
        break;
    default:
        return;
    }
    if (j->stream) {
        begin_stream(j);
        j->said = tern_now();
    }
    if (j->stream || j->api->keeps_order) {
        j->api->piece(j, c, e);
        if (e->kind == TERN_EVENT_CALL_END && !c->calls)
            c->calls = json_array(); /* finish reasons ask whether there were any */
    } else {
        keep(c, e);
    }
}

void tern_job_event(const tern_event *e)
{
    struct tern_lane *lane = e->user;
    struct tern_job *j = lane->job;
    (void)tern_json_lacked();
    if (e->kind == TERN_EVENT_END) {
        lane_ended(lane, e);
        return;
    }
    if (!j->call || j->over || surplus(j, e))
        return;
    take_event(j, lane, e);
    if (tern_json_lacked())
        refuse_lacking(j);
}

/* ---- pieces and answers ------------------------------------------------------------------------------------------ */

void tern_job_answer(struct tern_job *j, json_t *body)
{
    struct tern_http_call *call = j->call;
    struct tern_buf b = {0};
    if (!tern_json_write(&b, body) || tern_json_lacked()) {
        refuse_lacking(j);
    } else {
        j->call = NULL;
        tern_http_reply(call, 200, "application/json", b.p, b.len);
    }
    tern_buf_clear(&b);
}

/* From the first piece that lacks something on nothing is sent: who asked for the pieces ends the stream. */
static void send_whole(struct tern_job *j, struct tern_buf *b, bool ok)
{
    if (!ok || tern_json_lacked())
        tern_json_lack();
    else
        tern_http_send(j->call, b->p, b->len);
    tern_buf_clear(b);
}

void tern_job_send(struct tern_job *j, const char *text)
{
    struct tern_buf b = {0};
    send_whole(j, &b, tern_buf_add(&b, text, strlen(text), NULL) == 0);
}

void tern_job_sse(struct tern_job *j, const char *event, json_t *json)
{
    struct tern_buf b = {0};
    bool ok =
        (!event || tern_buf_addf(&b, NULL, "event: %s\n", event) == 0) && tern_buf_add(&b, "data: ", 6, NULL) == 0;
    ok = tern_json_write(&b, json) && ok && tern_buf_add(&b, "\n\n", 2, NULL) == 0;
    send_whole(j, &b, ok);
}

void tern_job_line(struct tern_job *j, json_t *json)
{
    struct tern_buf b = {0};
    bool ok = tern_json_write(&b, json) && tern_buf_addc(&b, '\n', NULL) == 0;
    send_whole(j, &b, ok);
}

/* A stream whose model is not open yet says so: nothing else of the request is known. */
static void ping_waiting(struct tern_job *j, double now)
{
    char how[32], text[64];
    if (!j->tells || now - j->said < j->server->p.ping_s)
        return;
    if (!tern_http_begun(j->call))
        tern_http_begin(j->call, 200, j->api->stream_type);
    j->said = now;
    tern_served_progress(j, how, sizeof how);
    (void)snprintf(text, sizeof text, ": loading %s\n\n", how);
    tern_job_send(j, text);
}

static void tick_waiting(struct tern_server *s, double now)
{
    for (struct tern_job *j = s->jobs, *next; j; j = next) {
        struct tern_fault f;
        next = j->all_next;
        if (!tern_served_waits(j) || !j->call)
            continue;
        if (s->p.timeout_s > 0 && now - j->began > s->p.timeout_s) {
            if (!tern_served_forget(j))
                continue;
            (void)tern_fault_set(&f, 504, "timeout", NULL, "the request took longer than its timeout");
            refuse(j, &f);
            tern_job_free(j);
        } else if (s->p.ping_s > 0) {
            ping_waiting(j, now);
        }
    }
}

void tern_job_tick(struct tern_server *s)
{
    double now = tern_now();
    tick_waiting(s, now);
    for (struct tern_job *j = s->jobs; j && s->p.ping_s > 0; j = j->all_next) {
        if (!j->submitted || !j->call || !j->stream || !j->api->ping || now - j->said < s->p.ping_s)
            continue;
        (void)tern_json_lacked();
        begin_stream(j);
        j->said = now;
        j->api->ping(j);
        if (tern_json_lacked())
            refuse_lacking(j);
    }
}

void tern_job_cancel_all(struct tern_server *s)
{
    for (struct tern_job *j = s->jobs; j; j = j->all_next)
        cancel(j);
}

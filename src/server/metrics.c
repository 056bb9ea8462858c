/* Figures: /metrics for Prometheus, /v1/kv and /v1/cache for people. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "server/server_impl.h"

struct row {
    const char *name, *type, *help;
};

static int head(struct tern_buf *b, const struct row *r)
{
    return tern_buf_addf(b, NULL, "# HELP tern_%s %s\n# TYPE tern_%s %s\n", r->name, r->help, r->name, r->type);
}

static int number(struct tern_buf *b, const char *name, const char *type, const char *help, double value)
{
    const struct row r = {name, type, help};
    int rc = head(b, &r);
    return rc < 0 ? rc : tern_buf_addf(b, NULL, "tern_%s %.17g\n", name, value);
}

/* What is known of the models, one behind the other. */
struct figures {
    struct tern_server *s;
    tern_loop_stats *t; /* [n_models] */
    char *label;        /* [n_models][LABEL]: model="NAME" */
};
#define LABEL 320

/* As a label's value has to be written. */
static void write_label(char *out, const char *name)
{
    size_t n = (size_t)snprintf(out, LABEL, "model=\"");
    for (; *name && n + 4 < LABEL; name++) {
        if (*name == '"' || *name == '\\')
            out[n++] = '\\';
        out[n++] = *name;
    }
    (void)snprintf(out + n, LABEL - n, "\"");
}

/* The same figure of all models. */
static int numbers(struct tern_buf *b, const struct figures *f, const struct row *r,
                   double (*get)(const tern_loop_stats *t, size_t at), size_t at)
{
    int rc = head(b, r);
    for (int i = 0; i < f->s->p.n_models && rc == 0; i++)
        rc = tern_buf_addf(b, NULL, "tern_%s{%s} %.17g\n", r->name, f->label + (size_t)i * LABEL, get(&f->t[i], at));
    return rc;
}

static int times(struct tern_buf *b, const struct figures *f, const char *name, const char *help, size_t at)
{
    int rc = 0;
    const struct row r = {name, "histogram", help};
    TERN_TRY(head(b, &r));
    for (int m = 0; m < f->s->p.n_models; m++) {
        const tern_times *t = (const void *)((const char *)&f->t[m] + at);
        const char *label = f->label + (size_t)m * LABEL;
        uint64_t sum = 0;
        for (int i = 0; i < TERN_TIMES_BUCKETS - 1; i++) {
            sum += t->bucket[i];
            TERN_TRY(tern_buf_addf(b, NULL, "tern_%s_bucket{%s,le=\"%.9g\"} %llu\n", name, label, tern_times_bounds[i],
                                   (unsigned long long)sum));
        }
        TERN_TRY(tern_buf_addf(b, NULL, "tern_%s_bucket{%s,le=\"+Inf\"} %llu\ntern_%s_sum{%s} %.9g\n", name, label,
                               (unsigned long long)t->count, name, label, t->sum));
        TERN_TRY(tern_buf_addf(b, NULL, "tern_%s_count{%s} %llu\n", name, label, (unsigned long long)t->count));
    }
out:
    return rc;
}

/* ---- figures by their place in the loop's ------------------------------------------------------------------------ */

static double get_u64(const tern_loop_stats *t, size_t at)
{
    return (double)*(const uint64_t *)(const void *)((const char *)t + at);
}

static double get_size(const tern_loop_stats *t, size_t at)
{
    return (double)*(const size_t *)(const void *)((const char *)t + at);
}

static double get_int(const tern_loop_stats *t, size_t at)
{
    return *(const int *)(const void *)((const char *)t + at);
}

static double get_bool(const tern_loop_stats *t, size_t at)
{
    return *(const bool *)(const void *)((const char *)t + at);
}

static double get_double(const tern_loop_stats *t, size_t at)
{
    return *(const double *)(const void *)((const char *)t + at);
}

struct stat_row {
    struct row row;
    double (*get)(const tern_loop_stats *t, size_t at);
    size_t at;
};
#define AT(member) offsetof(tern_loop_stats, member)

static const struct stat_row stat_rows[] = {
    {{"requests_running", "gauge", "Requests that the engine works on."}, get_int, AT(running)},
    {{"requests_waiting", "gauge", "Requests in the queue."}, get_int, AT(waiting)},
    {{"prompt_tokens_total", "counter", "Prompt tokens that were computed."}, get_u64, AT(prompt_tokens)},
    {{"cached_tokens_total", "counter", "Prompt tokens that were found in the prefix cache."},
     get_u64,
     AT(cached_tokens)},
    {{"cache_entries", "gauge", "Pages and ends of prompts in the prefix cache."}, get_size, AT(cache.entries)},
    {{"cache_bytes", "gauge", "What they take."}, get_size, AT(cache.bytes)},
    {{"cache_limit_bytes", "gauge", "What they may take."}, get_size, AT(cache.limit)},
    {{"cache_hits_total", "counter", "Prompts of which a beginning was found."}, get_u64, AT(cache.hits)},
    {{"cache_misses_total", "counter", "Prompts of which nothing was found."}, get_u64, AT(cache.misses)},
    {{"cache_evictions_total", "counter", "Entries given up for others."}, get_u64, AT(cache.evictions)},
    {{"cache_fetched_total", "counter", "Entries that came back from other tiers."}, get_u64, AT(cache.fetched)},
    {{"cache_late_total", "counter", "Prompts that other tiers were not asked for, as they hung."},
     get_u64,
     AT(cache.late)},
    {{"cache_unwritten", "gauge", "Entries that other tiers do not know yet."}, get_size, AT(cache.unwritten)},
    {{"generated_tokens_total", "counter", "Generated tokens."}, get_u64, AT(generated_tokens)},
    {{"draft_tokens_total", "counter", "Guesses that were verified."}, get_u64, AT(drafted_tokens)},
    {{"draft_accepted_tokens_total", "counter", "Guesses that were right."}, get_u64, AT(accepted_tokens)},
    {{"steps_total", "counter", "Steps of the engine."}, get_u64, AT(steps)},
    {{"engine_idle_seconds", "gauge", "Since the engine's thread was last seen."}, get_double, AT(idle_s)},
    {{"kv_bytes", "gauge", "KV cache in use."}, get_size, AT(memory.kv_bytes)},
    {{"kv_f16_bytes", "gauge", "What the same tokens would take in 16 bits."}, get_size, AT(memory.kv_f16_bytes)},
    {{"kv_reserved_bytes", "gauge", "What requests have room for."}, get_size, AT(kv_reserved)},
    {{"preemptions_total", "counter", "Times that a request gave up its pages for others."}, get_u64, AT(preempted)},
    {{"state_bytes", "gauge", "Recurrent states."}, get_size, AT(memory.state_bytes)},
};

/* The same of every tier, under its name. */
static const struct stat_row tier_rows[] = {
    {{"bytes", "gauge", "Files of all servers there."}, get_size, offsetof(tern_cache_tier, bytes)},
    {{"read_total", "counter", "Pages and ends of prompts that were read."}, get_u64, offsetof(tern_cache_tier, read)},
    {{"written_total", "counter", "Those that were written."}, get_u64, offsetof(tern_cache_tier, written)},
    {{"dropped_total", "counter", "Those that could not be."}, get_u64, offsetof(tern_cache_tier, dropped)},
    {{"damaged_total", "counter", "Those that were not what they should be."},
     get_u64,
     offsetof(tern_cache_tier, damaged)},
    {{"errors_total", "counter", "Failed operations."}, get_u64, offsetof(tern_cache_tier, errors)},
    {{"off", "gauge", "1: it is left alone for a while."}, get_bool, offsetof(tern_cache_tier, off)},
};

static int tier(struct tern_buf *b, const struct figures *f, const char *name, size_t at)
{
    bool open = false;
    int rc = 0;
    for (int i = 0; i < f->s->p.n_models; i++)
        open |= ((const tern_cache_tier *)(const void *)((const char *)&f->t[i] + at))->open;
    for (size_t i = 0; open && i < sizeof tier_rows / sizeof *tier_rows && rc == 0; i++) {
        char full[64];
        (void)snprintf(full, sizeof full, "cache_%s_%s", name, tier_rows[i].row.name);
        const struct row r = {full, tier_rows[i].row.type, tier_rows[i].row.help};
        rc = numbers(b, f, &r, tier_rows[i].get, at + tier_rows[i].at);
    }
    return rc;
}

/* Of a model with --experts-resident. */
static const struct stat_row expert_rows[] = {
    {{"experts_bytes", "gauge", "All experts of the model."}, get_size, AT(experts.bytes)},
    {{"experts_limit_bytes", "gauge", "Bytes of them that may be in memory."}, get_size, AT(experts.limit_bytes)},
    {{"experts_resident_bytes", "gauge", "Bytes of them that are."}, get_size, AT(experts.resident_bytes)},
    {{"experts_tokens_total", "counter", "Tokens that were computed with them."}, get_u64, AT(experts.rows)},
    {{"experts_used_total", "counter", "Experts that steps computed with."}, get_u64, AT(experts.used)},
    {{"experts_found_total", "counter", "Those of them that were in memory, or read ahead."},
     get_u64,
     AT(experts.found)},
    {{"experts_read_total", "counter", "Experts that were read from the file."}, get_u64, AT(experts.read)},
    {{"experts_read_ahead_total", "counter", "Those of them that were read before their layer's turn."},
     get_u64,
     AT(experts.read_ahead)},
    {{"experts_read_bytes_total", "counter", "Bytes that were read."}, get_u64, AT(experts.read_bytes)},
    {{"experts_wait_seconds_total", "counter", "Time that steps waited for them."}, get_double, AT(experts.wait_s)},
};

static int experts(struct tern_buf *b, const struct figures *f)
{
    bool any = false;
    int rc = 0;
    for (int i = 0; i < f->s->p.n_models; i++)
        any |= f->t[i].experts.limit_bytes > 0;
    for (size_t i = 0; any && i < sizeof expert_rows / sizeof *expert_rows && rc == 0; i++)
        rc = numbers(b, f, &expert_rows[i].row, expert_rows[i].get, expert_rows[i].at);
    return rc;
}

static int requests(struct tern_buf *b, const struct figures *f)
{
    static const struct {
        const char *how;
        size_t at;
    } rows[] = {{"finished", AT(finished)},
                {"cancelled", AT(cancelled)},
                {"timed_out", AT(timed_out)},
                {"failed", AT(failed)},
                {"refused", AT(refused)}};
    static const struct row r = {"requests_total", "counter", "Requests to the engine by their end."};
    int rc = head(b, &r);
    for (int m = 0; m < f->s->p.n_models; m++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows && rc == 0; i++)
            rc = tern_buf_addf(b, NULL, "tern_requests_total{%s,end=\"%s\"} %.0f\n", f->label + (size_t)m * LABEL,
                               rows[i].how, get_u64(&f->t[m], rows[i].at));
    return rc;
}

/* ---- of the models themselves ------------------------------------------------------------------------------------ */

static int models(struct tern_buf *b, const struct figures *f)
{
    static const struct row rows[] = {
        {"model_loaded", "gauge", "1: the model is in memory."},
        {"model_bytes", "gauge", "What it holds of --memory: weights, and the most that its KV cache may take."},
        {"model_loads_total", "counter", "Times that it was loaded."},
        {"model_unloads_total", "counter", "Times that it was unloaded."},
        {"model_load_failures_total", "counter", "Times that it could not be loaded."},
        {"model_requests_loading", "gauge", "Requests that wait for it to be loaded."},
    };
    int rc = 0;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        TERN_TRY(head(b, &rows[r]));
        for (int i = 0; i < f->s->p.n_models; i++) {
            struct tern_served_counts n;
            tern_served_count(&f->s->models.all[i], &n);
            const double values[] = {n.open,           (double)n.bytes,  (double)n.opened,
                                     (double)n.closed, (double)n.failed, n.waiting};
            TERN_TRY(
                tern_buf_addf(b, NULL, "tern_%s{%s} %.17g\n", rows[r].name, f->label + (size_t)i * LABEL, values[r]));
        }
    }
    TERN_TRY(number(b, "memory_held_bytes", "gauge", "What loaded models hold of --memory.",
                    (double)tern_models_bytes(f->s)));
    if (f->s->p.memory)
        TERN_TRY(number(b, "memory_limit_bytes", "gauge", "--memory.", (double)f->s->p.memory));
out:
    return rc;
}

static int write_all(struct tern_server *s, const struct figures *f, struct tern_buf *b)
{
    int rc = 0;
    TERN_TRY(requests(b, f));
    TERN_TRY(number(b, "http_requests_total", "counter", "HTTP requests.", (double)s->n_requests));
    TERN_TRY(number(b, "http_disconnects_total", "counter", "Clients that left before their answer.",
                    (double)s->disconnects));
    TERN_TRY(number(b, "http_connections", "gauge", "Open connections.", tern_http_connections(s->http)));
    TERN_TRY(models(b, f));
    for (size_t i = 0; i < sizeof stat_rows / sizeof *stat_rows; i++)
        TERN_TRY(numbers(b, f, &stat_rows[i].row, stat_rows[i].get, stat_rows[i].at));
    TERN_TRY(experts(b, f));
    TERN_TRY(tier(b, f, "disk", AT(cache.disk)));
    TERN_TRY(tier(b, f, "shared", AT(cache.shared)));
    TERN_TRY(number(b, "peak_memory_bytes", "gauge", "Largest resident set so far.", (double)tern_peak_memory()));
    TERN_TRY(times(b, f, "step_seconds", "A step of the engine.", AT(step)));
    TERN_TRY(times(b, f, "first_token_seconds", "From a request to its first token.", AT(first)));
    TERN_TRY(times(b, f, "token_gap_seconds", "Between two tokens of a reply.", AT(gap)));
    TERN_TRY(times(b, f, "queue_seconds", "In the queue.", AT(queue)));
out:
    return rc;
}

int tern_metrics_text(struct tern_server *s, struct tern_buf *b)
{
    const size_t n = (size_t)s->p.n_models;
    struct figures f = {.s = s, .t = calloc(n, sizeof *f.t), .label = calloc(n, LABEL)};
    int rc = f.t && f.label ? 0 : TERN_ENOMEM;
    for (size_t i = 0; rc == 0 && i < n; i++) {
        tern_served_stats(&s->models.all[i], &f.t[i]);
        write_label(f.label + i * LABEL, s->models.all[i].name);
    }
    if (rc == 0)
        rc = write_all(s, &f, b);
    free(f.t);
    free(f.label);
    return rc;
}

static json_t *plan_layers(const tern_kv_plan *p, double *bytes, double *f16)
{
    json_t *layers = json_array();
    for (int i = 0; i < tern_kv_plan_rows(p); i++) {
        tern_kv_row r;
        tern_kv_plan_row(p, i, &r);
        *bytes += r.bytes_per_token;
        *f16 += r.f16_bytes_per_token;
        (void)json_array_append_new(
            layers, json_pack("{si so so si si si si si sf sf sI so so}", "layer", r.layer, "k", tern_json_cstr(r.k),
                              "v", tern_json_cstr(r.v), "n_heads", r.n_heads, "dim_k", r.dim_k, "dim_v", r.dim_v,
                              "window", r.window, "first", r.first, "bytes_per_token", r.bytes_per_token,
                              "f16_bytes_per_token", r.f16_bytes_per_token, "state_bytes", (json_int_t)r.state_bytes,
                              "conditioning", tern_json_cstr(r.conditioning), "reason", tern_json_cstr(r.reason)));
    }
    return layers;
}

/* Of the card that the model is on, if it is. */
static void add_card(struct tern_served *m, const tern_loop_stats *t, json_t *o)
{
    tern_device_memory card;
    if (!tern_served_look(m))
        return;
    tern_model_device_memory(m->model, &card);
    if (card.limit_bytes)
        (void)json_object_set_new(o, "card",
                                  json_pack("{sI sI sI sI}", "limit_bytes", (json_int_t)card.limit_bytes, "used_bytes",
                                            (json_int_t)card.used_bytes, "weight_bytes", (json_int_t)card.weight_bytes,
                                            "scratch_bytes", (json_int_t)t->memory.scratch_bytes));
    tern_served_leave(m);
}

static void add_plan(struct tern_served *m, json_t *o)
{
    double bytes = 0, f16 = 0;
    if (!tern_served_look(m))
        return;
    json_t *layers = plan_layers(tern_engine_plan(m->engine), &bytes, &f16);
    const tern_model_info *i = tern_model_get_info(m->model);
    (void)json_object_update_new(
        o, json_pack("{so so so si sf sf}", "spec", tern_json_cstr(tern_kv_plan_text(tern_engine_plan(m->engine))),
                     "layers", layers, "device", tern_json_cstr(i->device), "ctx", tern_engine_ctx(m->engine),
                     "bytes_per_token", bytes, "f16_bytes_per_token", f16));
    if (i->device_notice)
        (void)json_object_set_new(o, "device_reason", tern_json_cstr(i->device_notice));
    tern_served_leave(m);
}

static json_t *experts_json(const tern_expert_stats *e)
{
    const double used = e->used ? (double)e->used : 1, rows = e->rows ? (double)e->rows : 1;
    return json_pack("{sI sI sI sI sf sf sf sf}", "bytes", (json_int_t)e->bytes, "limit_bytes",
                     (json_int_t)e->limit_bytes, "resident_bytes", (json_int_t)e->resident_bytes, "tokens",
                     (json_int_t)e->rows, "hit_share", (double)e->found / used, "reads_per_token",
                     (double)e->read / rows, "read_bytes_per_token", (double)e->read_bytes / rows, "wait_s", e->wait_s);
}

json_t *tern_kv_json(struct tern_served *m)
{
    const struct tern_server *s = m->server;
    tern_loop_stats t;
    tern_served_stats(m, &t);
    json_t *o = json_pack(
        "{so ss sI sI sI sI sI si si si sI sI sI sI sI sf}", "model", tern_json_cstr(m->name), "state",
        tern_served_word(m), "bytes", (json_int_t)t.memory.kv_bytes, "f16_bytes", (json_int_t)t.memory.kv_f16_bytes,
        "state_bytes", (json_int_t)t.memory.state_bytes, "reserved_bytes", (json_int_t)t.kv_reserved, "limit_bytes",
        (json_int_t)t.kv_most, "running", t.running, "waiting", t.waiting, "decoding", t.decoding, "prompt_tokens",
        (json_int_t)t.prompt_tokens, "cached_tokens", (json_int_t)t.cached_tokens, "generated_tokens",
        (json_int_t)t.generated_tokens, "draft_tokens", (json_int_t)t.drafted_tokens, "draft_accepted_tokens",
        (json_int_t)t.accepted_tokens, "uptime_s", difftime(time(NULL), (time_t)s->started));
    add_plan(m, o);
    add_card(m, &t, o);
    if (t.experts.limit_bytes)
        (void)json_object_set_new(o, "experts", experts_json(&t.experts));
    return o;
}

static json_t *tier_json(const tern_cache_tier *t)
{
    if (!t->open)
        return json_null();
    return json_pack("{sb sb sI sI sI sI sI sI sI sI sI sI sI}", "off", t->off, "read_only", t->read_only, "entries",
                     (json_int_t)t->entries, "bytes", (json_int_t)t->bytes, "limit_bytes", (json_int_t)t->limit, "read",
                     (json_int_t)t->read, "read_bytes", (json_int_t)t->read_bytes, "written", (json_int_t)t->written,
                     "written_bytes", (json_int_t)t->written_bytes, "dropped", (json_int_t)t->dropped, "damaged",
                     (json_int_t)t->damaged, "errors", (json_int_t)t->errors, "evictions", (json_int_t)t->evictions);
}

json_t *tern_cache_json(struct tern_served *m)
{
    tern_loop_stats t;
    tern_served_stats(m, &t);
    const tern_cache_stats *c = &t.cache;
    json_t *memory = json_pack("{sI sI sI sI}", "entries", (json_int_t)c->entries, "bytes", (json_int_t)c->bytes,
                               "limit_bytes", (json_int_t)c->limit, "evictions", (json_int_t)c->evictions);
    json_t *misses = json_pack("{sI sI sI}", "nothing_known", (json_int_t)(c->misses - c->misses_no_start),
                               "no_place_to_start", (json_int_t)c->misses_no_start, "tier_hung", (json_int_t)c->late);
    return json_pack("{so ss sI sI sI sI sI so so so so}", "model", tern_json_cstr(m->name), "state",
                     tern_served_word(m), "hits", (json_int_t)c->hits, "hit_tokens", (json_int_t)c->hit_tokens,
                     "misses", (json_int_t)c->misses, "fetched", (json_int_t)c->fetched, "unwritten",
                     (json_int_t)c->unwritten, "why_misses", misses, "memory",
                     c->limit ? memory : (json_decref(memory), json_null()), "disk", tier_json(&c->disk), "shared",
                     tier_json(&c->shared));
}

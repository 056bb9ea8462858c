/* Figures: /metrics for Prometheus, /v1/kv and /v1/cache for people. */
#include <stdio.h>
#include <string.h>

#include "server/server_impl.h"

static int number(struct tern_buf *b, const char *name, const char *type, const char *help, double value)
{
    return tern_buf_addf(b, NULL, "# HELP tern_%s %s\n# TYPE tern_%s %s\ntern_%s %.17g\n", name, help, name, type, name,
                         value);
}

static int times(struct tern_buf *b, const char *name, const char *help, const tern_times *t)
{
    int rc = 0;
    uint64_t sum = 0;
    TERN_TRY(tern_buf_addf(b, NULL, "# HELP tern_%s %s\n# TYPE tern_%s histogram\n", name, help, name));
    for (int i = 0; i < TERN_TIMES_BUCKETS - 1; i++) {
        sum += t->bucket[i];
        TERN_TRY(tern_buf_addf(b, NULL, "tern_%s_bucket{le=\"%.9g\"} %llu\n", name, tern_times_bounds[i],
                               (unsigned long long)sum));
    }
    TERN_TRY(tern_buf_addf(b, NULL, "tern_%s_bucket{le=\"+Inf\"} %llu\ntern_%s_sum %.9g\ntern_%s_count %llu\n", name,
                           (unsigned long long)t->count, name, t->sum, name, (unsigned long long)t->count));
out:
    return rc;
}

static int requests(struct tern_buf *b, const tern_loop_stats *t)
{
    const struct {
        const char *how;
        uint64_t n;
    } rows[] = {{"finished", t->finished},
                {"cancelled", t->cancelled},
                {"timed_out", t->timed_out},
                {"failed", t->failed},
                {"refused", t->refused}};
    int rc = tern_buf_addf(b, NULL,
                           "# HELP tern_requests_total Requests to the engine by their end.\n"
                           "# TYPE tern_requests_total counter\n");
    for (size_t i = 0; i < sizeof rows / sizeof *rows && rc == 0; i++)
        rc = tern_buf_addf(b, NULL, "tern_requests_total{end=\"%s\"} %llu\n", rows[i].how,
                           (unsigned long long)rows[i].n);
    return rc;
}

static int tier(struct tern_buf *b, const char *name, const tern_cache_tier *t)
{
    const struct {
        const char *what, *type, *help;
        double n;
    } rows[] = {{"bytes", "gauge", "Files of all servers there.", (double)t->bytes},
                {"read_total", "counter", "Pages and ends of prompts that were read.", (double)t->read},
                {"written_total", "counter", "Those that were written.", (double)t->written},
                {"dropped_total", "counter", "Those that could not be.", (double)t->dropped},
                {"damaged_total", "counter", "Those that were not what they should be.", (double)t->damaged},
                {"errors_total", "counter", "Failed operations.", (double)t->errors},
                {"off", "gauge", "1: it is left alone for a while.", t->off}};
    char full[64];
    int rc = 0;
    for (size_t i = 0; t->open && i < sizeof rows / sizeof *rows && rc == 0; i++) {
        (void)snprintf(full, sizeof full, "cache_%s_%s", name, rows[i].what);
        rc = number(b, full, rows[i].type, rows[i].help, rows[i].n);
    }
    return rc;
}

static int cache(struct tern_buf *b, const tern_cache_stats *c)
{
    int rc = 0;
    TERN_TRY(number(b, "cache_entries", "gauge", "Pages and ends of prompts in the prefix cache.", (double)c->entries));
    TERN_TRY(number(b, "cache_bytes", "gauge", "What they take.", (double)c->bytes));
    TERN_TRY(number(b, "cache_limit_bytes", "gauge", "What they may take.", (double)c->limit));
    TERN_TRY(number(b, "cache_hits_total", "counter", "Prompts of which a beginning was found.", (double)c->hits));
    TERN_TRY(number(b, "cache_misses_total", "counter", "Prompts of which nothing was found.", (double)c->misses));
    TERN_TRY(number(b, "cache_evictions_total", "counter", "Entries given up for others.", (double)c->evictions));
    TERN_TRY(
        number(b, "cache_fetched_total", "counter", "Entries that came back from other tiers.", (double)c->fetched));
    TERN_TRY(number(b, "cache_late_total", "counter", "Prompts that other tiers were not asked for, as they hung.",
                    (double)c->late));
    TERN_TRY(number(b, "cache_unwritten", "gauge", "Entries that other tiers do not know yet.", (double)c->unwritten));
    TERN_TRY(tier(b, "disk", &c->disk));
    TERN_TRY(tier(b, "shared", &c->shared));
out:
    return rc;
}

int tern_metrics_text(struct tern_server *s, struct tern_buf *b)
{
    int rc = 0;
    tern_loop_stats t;
    tern_loop_get_stats(s->loop, &t);
    TERN_TRY(requests(b, &t));
    TERN_TRY(number(b, "http_requests_total", "counter", "HTTP requests.", (double)s->n_requests));
    TERN_TRY(number(b, "http_disconnects_total", "counter", "Clients that left before their answer.",
                    (double)s->disconnects));
    TERN_TRY(number(b, "http_connections", "gauge", "Open connections.", tern_http_connections(s->http)));
    TERN_TRY(number(b, "requests_running", "gauge", "Requests that the engine works on.", t.running));
    TERN_TRY(number(b, "requests_waiting", "gauge", "Requests in the queue.", t.waiting));
    TERN_TRY(number(b, "prompt_tokens_total", "counter", "Prompt tokens that were computed.", (double)t.prompt_tokens));
    TERN_TRY(number(b, "cached_tokens_total", "counter", "Prompt tokens that were found in the prefix cache.",
                    (double)t.cached_tokens));
    TERN_TRY(cache(b, &t.cache));
    TERN_TRY(number(b, "generated_tokens_total", "counter", "Generated tokens.", (double)t.generated_tokens));
    TERN_TRY(number(b, "draft_tokens_total", "counter", "Guesses that were verified.", (double)t.drafted_tokens));
    TERN_TRY(
        number(b, "draft_accepted_tokens_total", "counter", "Guesses that were right.", (double)t.accepted_tokens));
    TERN_TRY(number(b, "steps_total", "counter", "Steps of the engine.", (double)t.steps));
    TERN_TRY(number(b, "engine_idle_seconds", "gauge", "Since the engine's thread was last seen.", t.idle_s));
    TERN_TRY(number(b, "kv_bytes", "gauge", "KV cache in use.", (double)t.memory.kv_bytes));
    TERN_TRY(number(b, "kv_f16_bytes", "gauge", "What the same tokens would take in 16 bits.",
                    (double)t.memory.kv_f16_bytes));
    TERN_TRY(number(b, "kv_reserved_bytes", "gauge", "What requests have room for.", (double)t.kv_reserved));
    TERN_TRY(number(b, "preemptions_total", "counter", "Times that a request gave up its pages for others.",
                    (double)t.preempted));
    TERN_TRY(number(b, "state_bytes", "gauge", "Recurrent states.", (double)t.memory.state_bytes));
    TERN_TRY(number(b, "peak_memory_bytes", "gauge", "Largest resident set so far.", (double)tern_peak_memory()));
    TERN_TRY(times(b, "step_seconds", "A step of the engine.", &t.step));
    TERN_TRY(times(b, "first_token_seconds", "From a request to its first token.", &t.first));
    TERN_TRY(times(b, "token_gap_seconds", "Between two tokens of a reply.", &t.gap));
    TERN_TRY(times(b, "queue_seconds", "In the queue.", &t.queue));
out:
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
            layers, json_pack("{si so so si si si si sf sf sI so so}", "layer", r.layer, "k", tern_json_cstr(r.k), "v",
                              tern_json_cstr(r.v), "n_heads", r.n_heads, "dim_k", r.dim_k, "dim_v", r.dim_v, "window",
                              r.window, "bytes_per_token", r.bytes_per_token, "f16_bytes_per_token",
                              r.f16_bytes_per_token, "state_bytes", (json_int_t)r.state_bytes, "conditioning",
                              tern_json_cstr(r.conditioning), "reason", tern_json_cstr(r.reason)));
    }
    return layers;
}

json_t *tern_kv_json(const struct tern_server *s)
{
    double bytes = 0, f16 = 0;
    tern_loop_stats t;
    tern_loop_get_stats(s->loop, &t);
    json_t *layers = plan_layers(tern_engine_plan(s->engine), &bytes, &f16);
    return json_pack("{so so si sf sf sI sI sI sI sI si si si sI sI sI sI sI sf so}", "spec",
                     tern_json_cstr(s->p.kv_spec), "device", tern_json_cstr(tern_model_get_info(s->model)->device),
                     "ctx", tern_engine_ctx(s->engine), "bytes_per_token", bytes, "f16_bytes_per_token", f16, "bytes",
                     (json_int_t)t.memory.kv_bytes, "f16_bytes", (json_int_t)t.memory.kv_f16_bytes, "state_bytes",
                     (json_int_t)t.memory.state_bytes, "reserved_bytes", (json_int_t)t.kv_reserved, "limit_bytes",
                     (json_int_t)t.kv_most, "running", t.running, "waiting", t.waiting, "decoding", t.decoding,
                     "prompt_tokens", (json_int_t)t.prompt_tokens, "cached_tokens", (json_int_t)t.cached_tokens,
                     "generated_tokens", (json_int_t)t.generated_tokens, "draft_tokens", (json_int_t)t.drafted_tokens,
                     "draft_accepted_tokens", (json_int_t)t.accepted_tokens, "uptime_s",
                     difftime(time(NULL), (time_t)s->started), "layers", layers);
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

json_t *tern_cache_json(const struct tern_server *s)
{
    tern_loop_stats t;
    tern_loop_get_stats(s->loop, &t);
    const tern_cache_stats *c = &t.cache;
    json_t *memory = json_pack("{sI sI sI sI}", "entries", (json_int_t)c->entries, "bytes", (json_int_t)c->bytes,
                               "limit_bytes", (json_int_t)c->limit, "evictions", (json_int_t)c->evictions);
    json_t *misses = json_pack("{sI sI sI}", "nothing_known", (json_int_t)(c->misses - c->misses_no_start),
                               "no_place_to_start", (json_int_t)c->misses_no_start, "tier_hung", (json_int_t)c->late);
    return json_pack("{sI sI sI sI sI so so so so}", "hits", (json_int_t)c->hits, "hit_tokens",
                     (json_int_t)c->hit_tokens, "misses", (json_int_t)c->misses, "fetched", (json_int_t)c->fetched,
                     "unwritten", (json_int_t)c->unwritten, "why_misses", misses, "memory",
                     c->limit ? memory : (json_decref(memory), json_null()), "disk", tier_json(&c->disk), "shared",
                     tier_json(&c->shared));
}

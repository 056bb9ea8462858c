/* What the program says about machine, model and KV plan, for people and as JSON. */
#include <string.h>

#include "cli/cli.h"

/* ---- KV plan ----------------------------------------------------------------------------------------------------- */

void tern_plan_bytes(const tern_kv_plan *p, double *bytes, double *f16_bytes)
{
    *bytes = *f16_bytes = 0;
    for (int i = 0; i < tern_kv_plan_rows(p); i++) {
        tern_kv_row r;
        tern_kv_plan_row(p, i, &r);
        *bytes += r.bytes_per_token;
        *f16_bytes += r.f16_bytes_per_token;
    }
}

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

static bool same_row(const tern_kv_row *a, const tern_kv_row *b)
{
    return same_text(a->k, b->k) && same_text(a->v, b->v) && same_text(a->reason, b->reason) &&
           same_text(a->conditioning, b->conditioning) && a->n_heads == b->n_heads && a->dim_k == b->dim_k &&
           a->dim_v == b->dim_v && a->state_bytes == b->state_bytes && a->window == b->window && a->first == b->first &&
           a->chunked == b->chunked;
}

/* First layer after `from` whose row differs from that of `from`. */
static int run_end(const tern_kv_plan *p, int from)
{
    tern_kv_row first, r;
    tern_kv_plan_row(p, from, &first);
    int i = from + 1;
    for (; i < tern_kv_plan_rows(p); i++) {
        tern_kv_plan_row(p, i, &r);
        if (!same_row(&first, &r))
            break;
    }
    return i;
}

static const char *layers_text(int from, int end)
{
    static char text[48];
    if (end - from == 1)
        (void)snprintf(text, sizeof text, "%d", from);
    else
        (void)snprintf(text, sizeof text, "%d-%d", from, end - 1);
    return text;
}

double tern_plan_states(const tern_kv_plan *p)
{
    double bytes = 0;
    for (int i = 0; i < tern_kv_plan_rows(p); i++) {
        tern_kv_row r;
        tern_kv_plan_row(p, i, &r);
        bytes += (double)r.state_bytes + (double)r.kept_bytes;
    }
    return bytes;
}

const char *tern_kv_use_text(const tern_engine *e, int plan)
{
    static char text[160];
    tern_memory m;
    size_t full, full_f16;
    tern_engine_memory(e, &m);
    tern_engine_full(e, plan, &full, &full_f16);
    int n = snprintf(text, sizeof text, "KV %s, %s in 16 bits", tern_size_text((double)m.kv_bytes),
                     tern_size_text((double)m.kv_f16_bytes));
    if (full)
        (void)snprintf(text + n, sizeof text - (size_t)n, " (%.3gx %s at %d tokens)",
                       full <= full_f16 ? (double)full_f16 / (double)full : (double)full / (double)full_f16,
                       full <= full_f16 ? "less" : "more", tern_engine_ctx(e));
    return text;
}

static bool same_exception(const tern_kv_row *a, const tern_kv_row *b)
{
    return a->reason && b->reason && same_text(a->reason, b->reason) && same_text(a->k, b->k) && same_text(a->v, b->v);
}

/* Is this the first layer with its exception? */
static bool first_of_kind(const tern_kv_plan *p, int layer, const tern_kv_row *row)
{
    for (int i = 0; i < layer; i++) {
        tern_kv_row r;
        tern_kv_plan_row(p, i, &r);
        if (same_exception(&r, row))
            return false;
    }
    return true;
}

/* " 0-4,6-10": all layers that have the exception of `row`. */
static void print_layers_like(const tern_kv_plan *p, const tern_kv_row *row)
{
    const char *before = " ";
    for (int i = 0; i < tern_kv_plan_rows(p);) {
        tern_kv_row r;
        int from = i;
        tern_kv_plan_row(p, i, &r);
        while (same_exception(&r, row) && ++i < tern_kv_plan_rows(p))
            tern_kv_plan_row(p, i, &r);
        if (i > from) {
            (void)fprintf(stderr, "%s%s", before, layers_text(from, i));
            before = ",";
        } else {
            i++;
        }
    }
}

void tern_plan_notes(const tern_kv_plan *p)
{
    const char *note;
    for (int i = 0; (note = tern_kv_plan_note(p, i)); i++)
        tern_note("--kv %s: %s", tern_shown(tern_kv_plan_text(p)), tern_shown(note));
}

void tern_plan_exceptions(const tern_kv_plan *p)
{
    tern_plan_notes(p);
    bool any = false;
    for (int i = 0; i < tern_kv_plan_rows(p); i++) {
        tern_kv_row r;
        tern_kv_plan_row(p, i, &r);
        if (!r.reason || !first_of_kind(p, i, &r))
            continue;
        if (any)
            (void)fputs("; layers", stderr);
        else
            (void)fprintf(stderr, "tern: KV plan differs from --kv %s: layers", tern_shown(tern_kv_plan_text(p)));
        print_layers_like(p, &r);
        (void)fprintf(stderr, " k=%s,v=%s (%s)", r.k, r.v, r.reason);
        any = true;
    }
    if (any)
        (void)fputc('\n', stderr);
}

int tern_plan_print(const tern_kv_plan *p, FILE *to, tern_error *err)
{
    double bytes, f16;
    tern_plan_bytes(p, &bytes, &f16);
    int rc = 0;
    struct tern_buf b = {0};
    for (int i = 0; i < tern_kv_plan_rows(p);) {
        tern_kv_row r;
        tern_kv_plan_row(p, i, &r);
        int end = run_end(p, i);
        if (r.state_bytes)
            TERN_TRY(tern_buf_addf(
                &b, err, "  layers %-7s a state of %zu bytes per sequence each, and up to %zu that are kept\n",
                layers_text(i, end), r.state_bytes, r.kept_bytes));
        else if (!r.n_heads)
            TERN_TRY(tern_buf_addf(&b, err, "  layers %-7s attend to what earlier layers keep\n", layers_text(i, end)));
        if (!r.n_heads) {
            i = end;
            continue;
        }
        TERN_TRY(tern_buf_addf(&b, err, "  layers %-7s k=%-4s v=%-4s %d heads x %d", layers_text(i, end), r.k, r.v,
                               r.n_heads, r.dim_k));
        if (r.dim_v != r.dim_k)
            TERN_TRY(tern_buf_addf(&b, err, "/%d", r.dim_v));
        if (r.window)
            TERN_TRY(tern_buf_addf(&b, err, ", %s %d", r.chunked ? "chunks of" : "window", r.window));
        if (r.first)
            TERN_TRY(tern_buf_addf(&b, err, " and the first %d", r.first));
        TERN_TRY(tern_buf_addf(&b, err, ", %.6g bytes per token each (16 bit: %.6g)", r.bytes_per_token,
                               r.f16_bytes_per_token));
        if (r.conditioning)
            TERN_TRY(tern_buf_addf(&b, err, "; keys %s", r.conditioning));
        if (r.reason)
            TERN_TRY(tern_buf_addf(&b, err, "; %s", r.reason));
        TERN_TRY(tern_buf_addc(&b, '\n', err));
        i = end;
    }
    TERN_TRY(tern_buf_addf(&b, err, "  all layers     %.6g bytes per token (16 bit: %.6g, %.2fx)\n", bytes, f16,
                           bytes > 0 ? f16 / bytes : 0.0));
    if (to == stdout)
        TERN_TRY(tern_out_write(b.p, b.len, err));
    else
        (void)fwrite(b.p, 1, b.len, to);
out:
    tern_buf_clear(&b);
    return rc;
}

static json_t *layers_json(const tern_kv_plan *p)
{
    json_t *layers = json_array();
    for (int i = 0; i < tern_kv_plan_rows(p); i++) {
        tern_kv_row r;
        tern_kv_plan_row(p, i, &r);
        json_array_append_new(
            layers, json_pack("{si so so si si si si si sb sf sf sI sI so so}", "layer", r.layer, "k",
                              tern_json_text(r.k), "v", tern_json_text(r.v), "n_heads", r.n_heads, "dim_k", r.dim_k,
                              "dim_v", r.dim_v, "window", r.window, "first", r.first, "chunked", r.chunked,
                              "bytes_per_token", r.bytes_per_token, "f16_bytes_per_token", r.f16_bytes_per_token,
                              "state_bytes", (json_int_t)r.state_bytes, "kept_bytes", (json_int_t)r.kept_bytes,
                              "conditioning", tern_json_text(r.conditioning), "reason", tern_json_text(r.reason)));
    }
    return layers;
}

json_t *tern_report_kv(const tern_kv_plan *p, bool at_end)
{
    double bytes, f16;
    tern_plan_bytes(p, &bytes, &f16);
    json_t *notes = json_array();
    const char *note;
    for (int i = 0; (note = tern_kv_plan_note(p, i)); i++)
        json_array_append_new(notes, tern_json_text(note));
    return json_pack("{so ss sf sf so}", "spec", tern_json_text(tern_kv_plan_text(p)), "when",
                     at_end ? "end" : "stream", "bytes_per_token", bytes, "f16_bytes_per_token", f16, "notes", notes);
}

json_t *tern_report_kv_layers(const tern_kv_plan *p)
{
    json_t *kv = tern_report_kv(p, false);
    (void)json_object_set_new(kv, "layers", layers_json(p));
    return kv;
}

/* ---- machine and model ------------------------------------------------------------------------------------------- */

static json_t *machine_json(int threads)
{
    tern_machine m;
    tern_machine_describe(&m);
    return json_pack("{so ss ss ss* si si sI}", "cpu", tern_json_text(m.cpu), "isa", m.used, "isa_detected", m.detected,
                     "isa_refused", m.refused, "cores", m.cores, "threads", threads, "memory_bytes",
                     (json_int_t)m.memory_bytes);
}

static json_t *model_json(const tern_model *m);

json_t *tern_report_json(const char *command, const tern_model *m, int threads)
{
    json_t *machine = machine_json(threads);
    if (!threads)
        (void)json_object_del(machine, "threads");
    json_t *out = json_pack("{ss ss so}", "command", command, "version", tern_version(), "machine", machine);
    if (m)
        (void)json_object_set_new(out, "model", model_json(m));
    return out;
}

int tern_report_print(json_t *report, json_t *own, tern_error *err)
{
    int rc = report && own ? json_object_update(report, own) : -1;
    json_decref(own);
    if (rc < 0) {
        json_decref(report);
        report = NULL; /* tern_json_print has the words */
    } else {
        (void)json_object_set_new(report, "peak_memory_bytes", json_integer((json_int_t)tern_peak_memory()));
    }
    return tern_json_print(report, err);
}

int tern_machine_csv(tern_error *err)
{
    tern_machine m;
    tern_machine_describe(&m);
    return tern_out_printf(err, ",%s,%s,%s\n", tern_version(), tern_csv_text(m.cpu), m.used);
}

const char *tern_sampling_text(const tern_sampler_params *p)
{
    static char text[256];
    int n = snprintf(text, sizeof text, "temperature %g", (double)p->temperature);
    if (p->temperature > 0 && p->top_k > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", top-k %d", p->top_k);
    if (p->temperature > 0 && p->top_p < 1)
        n += snprintf(text + n, sizeof text - (size_t)n, ", top-p %g", (double)p->top_p);
    if (p->temperature > 0 && p->min_p > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", min-p %g", (double)p->min_p);
    if (p->temperature > 0 && p->xtc_probability > 0)
        n += snprintf(text + n, sizeof text - (size_t)n, ", xtc %g from %g", (double)p->xtc_probability,
                      (double)p->xtc_threshold);
    if (p->repetition_penalty != 1)
        (void)snprintf(text + n, sizeof text - (size_t)n, ", repetition penalty %g", (double)p->repetition_penalty);
    return text;
}

/* 0.6 instead of 0.60000002384185791: the number that makes this float, as short as people write it. */
static double short_number(float x)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%.7g", (double)x);
    return strtod(text, NULL);
}

static json_t *recommendable_json(const tern_sampler_params *p)
{
    return json_pack("{sf si sf sf sf si}", "temperature", short_number(p->temperature), "top_k", p->top_k, "top_p",
                     short_number(p->top_p), "min_p", short_number(p->min_p), "repetition_penalty",
                     short_number(p->repetition_penalty), "penalty_last", p->penalty_last);
}

json_t *tern_sampling_json(const tern_sampler_params *p)
{
    char id[16];
    json_t *out = recommendable_json(p), *bias = json_object();
    for (int i = 0; i < p->n_bias; i++) {
        (void)snprintf(id, sizeof id, "%d", p->bias_ids[i]);
        (void)json_object_set_new(bias, id, json_real(short_number(p->bias_values[i])));
    }
    (void)json_object_set_new(out, "xtc_probability", json_real(short_number(p->xtc_probability)));
    (void)json_object_set_new(out, "xtc_threshold", json_real(short_number(p->xtc_threshold)));
    (void)json_object_set_new(out, "presence_penalty", json_real(short_number(p->presence_penalty)));
    (void)json_object_set_new(out, "frequency_penalty", json_real(short_number(p->frequency_penalty)));
    (void)json_object_set_new(out, "logit_bias", bias);
    (void)json_object_set_new(out, "seed", json_integer((json_int_t)p->seed));
    return out;
}

/* What the model recommends, or null. */
static json_t *recommended_json(const tern_model *m)
{
    tern_sampler_params p;
    tern_sampler_defaults(&p);
    return tern_model_recommends(m, &p) ? recommendable_json(&p) : json_null();
}

static json_t *model_json(const tern_model *m)
{
    const tern_model_info *i = tern_model_get_info(m);
    return json_pack(
        "{so ss so so so si si si si si si si si sb sI si sI sI sI so so}", "path", tern_json_text(i->path),
        "container", i->container, "arch", tern_json_text(i->arch), "name", tern_json_text(i->name), "tokenizer",
        tern_json_text(i->tokenizer), "n_layers", i->n_layers, "n_embd", i->n_embd, "n_heads", i->n_heads, "n_kv_heads",
        i->n_kv_heads, "head_dim", i->head_dim, "n_ff", i->n_ff, "n_vocab", i->n_vocab, "ctx", i->ctx, "has_template",
        i->has_template, "n_params", (json_int_t)i->n_params, "n_mtp_layers", i->n_mtp_layers, "n_mtp_params",
        (json_int_t)i->n_mtp_params, "file_bytes", (json_int_t)i->file_bytes, "weight_bytes",
        (json_int_t)i->weight_bytes, "packed", tern_json_text(i->packed), "recommended_sampling", recommended_json(m));
}

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

json_t *tern_experts_json(const tern_expert_stats *before, const tern_expert_stats *after)
{
    const double rows = (double)(after->rows - before->rows), read = (double)(after->read - before->read);
    const double bytes = (double)(after->read_bytes - before->read_bytes);
    return json_pack("{sI sI sI sI sf sf sf sf sf}", "limit_bytes", (json_int_t)after->limit_bytes, "bytes",
                     (json_int_t)after->bytes, "resident_bytes", (json_int_t)after->resident_bytes,
                     "most_resident_bytes", (json_int_t)after->most_resident_bytes, "hit_share",
                     share((double)(after->found - before->found), (double)(after->used - before->used)),
                     "reads_per_token", share(read, rows), "read_bytes_per_token", share(bytes, rows),
                     "read_ahead_share", share((double)(after->read_ahead - before->read_ahead), read), "wait_s",
                     after->wait_s - before->wait_s);
}

void tern_experts_note(const tern_model *m)
{
    tern_expert_stats s;
    char limit[32], most[32];
    tern_model_experts(m, &s);
    if (!s.limit_bytes)
        return;
    (void)snprintf(limit, sizeof limit, "%s", tern_size_text((double)s.limit_bytes));
    (void)snprintf(most, sizeof most, "%s", tern_size_text((double)s.most_resident_bytes));
    tern_note("experts: at most %s of %s in memory; %.1f %% of those used were there, %.2f and %.1f MB read per token "
              "(limit %s)",
              most, tern_size_text((double)s.bytes), 100 * share((double)s.found, (double)s.used),
              share((double)s.read, (double)s.rows), share((double)s.read_bytes, (double)s.rows) * 1e-6, limit);
}

void tern_packed_note(const tern_model *m)
{
    const tern_model_info *i = tern_model_get_info(m);
    if (i->notice)
        tern_note("%s", tern_shown(i->notice));
}

void tern_setup_print(const struct tern_setup *s)
{
    tern_machine m;
    tern_machine_describe(&m);
    const tern_model_info *i = tern_model_get_info(s->model);
    tern_note("version %s, %s, %s of %s, %d threads, %s of memory", tern_version(), tern_shown(m.cpu), m.used,
              m.detected, tern_engine_threads(s->engine), tern_size_text((double)m.memory_bytes));
    tern_note("%s: %s%s%s, %d layers, %.4g M parameters, %s %s, loaded in %.3f s", tern_shown(i->path),
              tern_shown(i->arch), i->name[0] ? " " : "", tern_shown(i->name), i->n_layers, (double)i->n_params * 1e-6,
              tern_size_text((double)i->weight_bytes), i->packed ? "mapped" : "in memory", s->load_s);
    tern_note("context %d tokens, steps of %d, KV plan:", tern_engine_ctx(s->engine), tern_engine_chunk(s->engine));
    (void)tern_plan_print(tern_engine_plan(s->engine), stderr, NULL);
    for (int p = 1; p < tern_engine_n_plans(s->engine); p++) {
        tern_note("KV plan %d:", p);
        (void)tern_plan_print(tern_engine_plan_at(s->engine, p), stderr, NULL);
    }
}

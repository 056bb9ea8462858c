/* tern eval kld: what KV plans do to the model's predictions. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "cli/cli.h"

#define BASE  "f16"
#define FLOOR "bf16"

/* Numbers of the engine's plans: the base, the floor, those that were asked for, and with --per-layer one per layer. */
enum { PLAN_BASE, PLAN_FLOOR, PLAN_FIRST };

struct text {
    struct tern_buf bytes;
    tern_tokens ids;
};

struct layer {
    int layer, plan;
    tern_kld_stats stats;
};

struct kld {
    const struct tern_args *a;
    struct tern_setup setup;
    struct tern_plan_list list;
    const char **specs; /* [n_plans] */
    char **layer_specs; /* [n_layers] owned; the end of specs */
    int n_plans, n_layers;
    struct text *texts;   /* [n_texts] */
    tern_kld_text *views; /* [n_texts] of the texts, for the library */
    int n_texts, ctx;
    tern_kld *result;
    double seconds;
};

/* ---- what to measure --------------------------------------------------------------------------------------------- */

static int read_texts(struct kld *c, tern_error *err)
{
    int rc = 0;
    const struct tern_arg *f = &c->a->v[TERN_OPT_KLD_FILE];
    TERN_TRY(tern_alloc(&c->texts, (size_t)f->n_items, sizeof *c->texts, err));
    TERN_TRY(tern_alloc(&c->views, (size_t)f->n_items, sizeof *c->views, err));
    c->n_texts = f->n_items;
    for (int i = 0; i < c->n_texts; i++) {
        struct text *t = &c->texts[i];
        TERN_TRY(tern_setup_read(&t->bytes, f->ss[i], TERN_CLI_MAX_TEXT, err));
    }
out:
    return rc;
}

/* BOS belongs in front of every chunk, so the chunks get it and the texts do not. */
static int tokenize_texts(struct kld *c, tern_error *err)
{
    int rc = 0;
    for (int i = 0; i < c->n_texts; i++) {
        struct text *t = &c->texts[i];
        TERN_TRY(tern_setup_tokenize(c->setup.model, &t->bytes, 0, c->a->v[TERN_OPT_KLD_FILE].ss[i], &t->ids, err));
        c->views[i] = (tern_kld_text){c->a->v[TERN_OPT_KLD_FILE].ss[i], t->ids.p, (int64_t)t->ids.len};
    }
out:
    return rc;
}

static int check_layers(const struct kld *c, tern_error *err)
{
    if (!c->a->v[TERN_OPT_KLD_LAYERS].n)
        return 0;
    if (!c->a->v[TERN_OPT_KLD_KV].n || c->list.n != 1 || strpbrk(c->list.spec[0], "=,"))
        return tern_cli_usage(err, "--per-layer wants one scheme: --kv SCHEME");
    return 0;
}

static int name_plans(struct kld *c, tern_error *err)
{
    int rc = 0, n = c->a->v[TERN_OPT_KLD_LAYERS].n ? tern_model_get_info(c->setup.model)->n_layers : 0;
    TERN_TRY(tern_alloc(&c->specs, (size_t)(PLAN_FIRST + c->list.n + n), sizeof *c->specs, err));
    TERN_TRY(tern_alloc(&c->layer_specs, (size_t)n, sizeof *c->layer_specs, err));
    c->specs[PLAN_BASE] = BASE;
    c->specs[PLAN_FLOOR] = FLOOR;
    c->n_plans = PLAN_FIRST;
    for (int i = 0; i < c->list.n; i++)
        c->specs[c->n_plans++] = c->list.spec[i];
    for (; c->n_layers < n; c->n_layers++) {
        char spec[256];
        (void)snprintf(spec, sizeof spec, BASE ",layers=%d:%s", c->n_layers, c->list.spec[0]);
        c->layer_specs[c->n_layers] = strdup(spec);
        if (!c->layer_specs[c->n_layers])
            TERN_FAIL(err, TERN_ENOMEM, "cannot allocate a plan");
        c->specs[c->n_plans++] = c->layer_specs[c->n_layers];
    }
out:
    return rc;
}

/* As many sequences as could go through a step together, but no more than half of the memory holds at 16 bits. */
static int count_seqs(const struct kld *c, int *out, tern_error *err)
{
    int chunks = (int)c->a->v[TERN_OPT_KLD_CHUNKS].i;
    tern_kv_plan *plan;
    tern_machine m;
    tern_device_memory card;
    size_t bytes, f16;
    int rc = tern_kv_plan_new(&plan, c->setup.model, BASE, false, err);
    if (rc < 0)
        return rc;
    tern_kv_plan_full(plan, c->ctx, &bytes, &f16);
    tern_kv_plan_free(plan);
    tern_machine_describe(&m);
    if (!chunks)
        chunks = c->n_texts > 4 ? c->n_texts : 4;
    double wanted = (double)chunks * c->n_plans,
           fit = m.memory_bytes ? (double)m.memory_bytes / 2 / (double)bytes : wanted;
    tern_model_device_memory(c->setup.model, &card);
    if (card.limit_bytes)
        fit = ((double)card.limit_bytes - (double)card.used_bytes) / 2 / (double)bytes;
    wanted = wanted < TERN_KLD_ROWS ? wanted : TERN_KLD_ROWS;
    wanted = wanted < fit ? wanted : fit;
    *out = wanted < 2 ? 2 : (int)wanted;
    return 0;
}

static int open_engine(struct kld *c, tern_error *err)
{
    int rc = 0, n_seqs;
    TERN_TRY(count_seqs(c, &n_seqs, err));
    tern_engine_params p = tern_setup_params(c->a, c->ctx, n_seqs);
    p.kv = c->specs[PLAN_BASE];
    p.more_kv = c->specs + 1;
    p.n_more_kv = c->n_plans - 1;
    TERN_TRY(tern_setup_open_engine(&c->setup.engine, &c->setup, c->a, &p, err));
    for (int i = 0; i < PLAN_FIRST + c->list.n; i++)
        tern_plan_exceptions(tern_engine_plan_at(c->setup.engine, i));
out:
    return rc;
}

/* Bits per value of closed pages, headers included, over all layers. */
static double plan_bits(const struct kld *c, int plan)
{
    double bytes, f16;
    tern_plan_bytes(tern_engine_plan_at(c->setup.engine, plan), &bytes, &f16);
    return 16 * bytes / f16;
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static int print_head(const struct kld *c, tern_error *err)
{
    int rc = 0;
    const tern_kld_info *i = tern_kld_get_info(c->result);
    TERN_TRY(tern_out_printf(err,
                             "KL(" BASE " || plan) in nats per token; chunks: %d of %d tokens, %d scored in each, %s",
                             i->n_chunks, i->ctx, i->n_scored,
                             c->a->v[TERN_OPT_EXACT].n         ? "exact"
                             : c->a->v[TERN_OPT_KLD_PREFILL].n ? "prompt rows"
                                                               : "decode rows"));
    if (tern_setup_at_end(c->a))
        TERN_TRY(tern_out_printf(err, ", prompts coded at their end"));
    if (i->chunks_at_once < i->n_chunks || i->plans_at_once < i->n_plans)
        TERN_TRY(tern_out_printf(err, "; at a time: chunks %d, plans %d", i->chunks_at_once, i->plans_at_once));
    TERN_TRY(tern_out_printf(err, "\nperplexity with " BASE ": %.4f\n", i->base_ppl));
out:
    return rc;
}

static int name_width(const struct kld *c)
{
    int width = 12;
    for (int i = 0; i < PLAN_FIRST + c->list.n; i++)
        width = (int)strlen(c->specs[i]) > width ? (int)strlen(c->specs[i]) : width;
    return width;
}

static int print_table(const struct kld *c, int text, tern_error *err)
{
    int rc = 0, width = name_width(c);
    tern_kld_stats s;
    TERN_TRY(tern_out_printf(err,
                             "%-*s   bits      mean   trimmed    median       p99       max  top-1 %%  PPL ratio   "
                             "tokens\n",
                             width, "plan"));
    for (int i = PLAN_FLOOR; i < PLAN_FIRST + c->list.n; i++) {
        const char *name = i == PLAN_FLOOR ? FLOOR " (floor)" : c->specs[i];
        TERN_TRY(tern_kld_get_stats(c->result, i, text, &s, err));
        TERN_TRY(tern_out_printf(err, "%-*s %6.3f %9.3g %9.3g %9.3g %9.3g %9.3g %8.2f %10.4f %8lld\n", width, name,
                                 plan_bits(c, i), s.mean, s.trimmed, s.median, s.p99, s.max, 100 * s.top1, s.ppl_ratio,
                                 (long long)s.n_tokens));
    }
out:
    return rc;
}

/* "0.627 [0.58-0.671]" in a ring of two buffers. */
static const char *ratio_text(const tern_kld_ratio *r)
{
    static char ring[2][64];
    static int next;
    char *out = ring[next++ & 1];
    if (isnan(r->value))
        (void)snprintf(out, sizeof ring[0], "-");
    else if (isnan(r->low))
        (void)snprintf(out, sizeof ring[0], "%.3g", r->value);
    else
        (void)snprintf(out, sizeof ring[0], "%.3g [%.3g-%.3g]", r->value, r->low, r->high);
    return out;
}

static int print_ratios(const struct kld *c, tern_error *err)
{
    int rc = 0, width = 2 * name_width(c) + 3, end = PLAN_FIRST + c->list.n;
    if (c->list.n < 2)
        return 0;
    TERN_TRY(tern_out_printf(err, "\n%-*s  %-28s  trimmed [95 %% interval]\n", width, "ratio", "mean [95 % interval]"));
    for (int i = PLAN_FIRST; i < end; i++)
        for (int j = i + 1; j < end; j++) {
            tern_kld_ratio mean, trimmed;
            TERN_TRY(tern_kld_compare(c->result, i, j, &mean, &trimmed, err));
            int used = (int)(strlen(c->specs[i]) + strlen(c->specs[j])) + 3;
            TERN_TRY(tern_out_printf(err, "%s : %s%*s  %-28s  %s\n", c->specs[i], c->specs[j], width - used, "",
                                     ratio_text(&mean), ratio_text(&trimmed)));
        }
out:
    return rc;
}

static int by_mean(const void *a, const void *b)
{
    const struct layer *x = a, *y = b;
    if (x->stats.mean != y->stats.mean)
        return x->stats.mean < y->stats.mean ? 1 : -1;
    return x->layer - y->layer;
}

/* The layers, those that cost most first, and the sum of their means. */
static int rank_layers(const struct kld *c, struct layer **out, double *sum, tern_error *err)
{
    int rc = 0;
    *sum = 0;
    TERN_TRY(tern_alloc(out, (size_t)c->n_layers, sizeof **out, err));
    for (int i = 0; i < c->n_layers; i++) {
        struct layer *l = &(*out)[i];
        *l = (struct layer){.layer = i, .plan = PLAN_FIRST + c->list.n + i};
        TERN_TRY(tern_kld_get_stats(c->result, l->plan, -1, &l->stats, err));
        *sum += l->stats.mean;
    }
    qsort(*out, (size_t)c->n_layers, sizeof **out, by_mean);
out:
    return rc;
}

static double share(const struct layer *l, double sum)
{
    return sum > 0 ? l->stats.mean / sum : 0;
}

static int print_layers(const struct kld *c, tern_error *err)
{
    int rc = 0;
    struct layer *l = NULL;
    double sum;
    if (!c->n_layers)
        return 0;
    TERN_TRY(rank_layers(c, &l, &sum, err));
    TERN_TRY(tern_out_printf(err,
                             "\n%s in one layer: the mean, and its share of the sum over the layers (%.3g)\n"
                             "layer      mean   trimmed       p99       max  share %%\n",
                             c->list.spec[0], sum));
    for (int i = 0; i < c->n_layers; i++)
        TERN_TRY(tern_out_printf(err, "%5d %9.3g %9.3g %9.3g %9.3g %8.2f\n", l[i].layer, l[i].stats.mean,
                                 l[i].stats.trimmed, l[i].stats.p99, l[i].stats.max, 100 * share(&l[i], sum)));
out:
    tern_free(l);
    return rc;
}

static int print_report(const struct kld *c, tern_error *err)
{
    int rc = 0;
    TERN_TRY(print_head(c, err));
    TERN_TRY(print_table(c, -1, err));
    for (int t = 0; c->n_texts > 1 && t < c->n_texts; t++) {
        TERN_TRY(tern_out_printf(err, "\n%s; chunks: %d\n", tern_shown(c->views[t].name),
                                 tern_kld_text_chunks(c->result, t)));
        TERN_TRY(print_table(c, t, err));
    }
    TERN_TRY(print_ratios(c, err));
    TERN_TRY(print_layers(c, err));
out:
    return rc;
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *stats_json(const tern_kld_stats *s)
{
    return json_pack("{sf sf sf sf sf sf sf sI}", "mean", s->mean, "trimmed", s->trimmed, "median", s->median, "p99",
                     s->p99, "max", s->max, "top1", s->top1, "ppl_ratio", s->ppl_ratio, "n_tokens",
                     (json_int_t)s->n_tokens);
}

static int plan_json(const struct kld *c, int plan, json_t *list, tern_error *err)
{
    int rc = 0;
    tern_kld_stats s;
    json_t *texts = json_array(), *row = NULL;
    for (int t = 0; t < c->n_texts; t++) {
        TERN_TRY(tern_kld_get_stats(c->result, plan, t, &s, err));
        json_array_append_new(texts, stats_json(&s));
    }
    TERN_TRY(tern_kld_get_stats(c->result, plan, -1, &s, err));
    row = stats_json(&s);
    json_object_set_new(row, "kv", tern_report_kv(tern_engine_plan_at(c->setup.engine, plan), tern_setup_at_end(c->a)));
    json_object_set_new(row, "floor", json_boolean(plan == PLAN_FLOOR));
    json_object_set_new(row, "bits_per_value", json_real(plan_bits(c, plan)));
    json_object_set(row, "texts", texts);
    json_array_append_new(list, row);
out:
    json_decref(texts);
    return rc;
}

static json_t *ratio_json(const tern_kld_ratio *r)
{
    /* json_real refuses NaN. */
    return json_pack("{so? so? so?}", "value", json_real(r->value), "low", json_real(r->low), "high",
                     json_real(r->high));
}

static int ratios_json(const struct kld *c, json_t *list, tern_error *err)
{
    int rc = 0, end = PLAN_FIRST + c->list.n;
    for (int i = PLAN_FIRST; i < end; i++)
        for (int j = i + 1; j < end; j++) {
            tern_kld_ratio mean, trimmed;
            TERN_TRY(tern_kld_compare(c->result, i, j, &mean, &trimmed, err));
            json_array_append_new(list, json_pack("{so so so so}", "a", tern_json_text(c->specs[i]), "b",
                                                  tern_json_text(c->specs[j]), "mean", ratio_json(&mean), "trimmed",
                                                  ratio_json(&trimmed)));
        }
out:
    return rc;
}

static int layers_json(const struct kld *c, json_t *list, tern_error *err)
{
    int rc = 0;
    struct layer *l = NULL;
    double sum;
    TERN_TRY(rank_layers(c, &l, &sum, err));
    for (int i = 0; i < c->n_layers; i++) {
        json_t *row = stats_json(&l[i].stats);
        json_object_set_new(row, "layer", json_integer(l[i].layer));
        json_object_set_new(row, "share", json_real(share(&l[i], sum)));
        json_array_append_new(list, row);
    }
out:
    tern_free(l);
    return rc;
}

static json_t *texts_json(const struct kld *c)
{
    json_t *list = json_array();
    for (int t = 0; t < c->n_texts; t++)
        json_array_append_new(list,
                              json_pack("{so sI si}", "file", tern_json_text(c->views[t].name), "n_tokens",
                                        (json_int_t)c->views[t].n, "n_chunks", tern_kld_text_chunks(c->result, t)));
    return list;
}

static int print_json(const struct kld *c, tern_error *err)
{
    int rc = 0;
    const tern_kld_info *i = tern_kld_get_info(c->result);
    json_t *plans = json_array(), *ratios = json_array(), *layers = json_array();
    for (int p = PLAN_FLOOR; p < PLAN_FIRST + c->list.n; p++)
        TERN_TRY(plan_json(c, p, plans, err));
    TERN_TRY(ratios_json(c, ratios, err));
    if (c->n_layers)
        TERN_TRY(layers_json(c, layers, err));
    json_t *base = json_pack("{s{ss} sf}", "kv", "spec", BASE, "ppl", i->base_ppl);
    json_t *out =
        json_pack("{so si si si ss sb si si so sO sO}", "base", base, "ctx", i->ctx, "n_chunks", i->n_chunks,
                  "n_scored", i->n_scored, "rows", c->a->v[TERN_OPT_KLD_PREFILL].n ? "prompt" : "decode", "exact",
                  c->a->v[TERN_OPT_EXACT].n > 0, "chunks_at_once", i->chunks_at_once, "plans_at_once", i->plans_at_once,
                  "texts", texts_json(c), "plans", plans, "ratios", ratios);
    if (c->n_layers)
        json_object_set(out, "layers", layers);
    json_object_set_new(out, "seconds", json_real(c->seconds));
    rc =
        tern_report_print(tern_report_json("eval kld", c->setup.model, tern_engine_threads(c->setup.engine)), out, err);
out:
    json_decref(plans);
    json_decref(ratios);
    json_decref(layers);
    return rc;
}

/* ---- the command ------------------------------------------------------------------------------------------------- */

static int measure(struct kld *c, tern_error *err)
{
    struct tern_progress bar = {.what = "divergence"};
    tern_kld_params p = {
        .texts = c->views,
        .n_texts = c->n_texts,
        .ctx = c->ctx,
        .n_chunks = (int)c->a->v[TERN_OPT_KLD_CHUNKS].i,
        .prefill = c->a->v[TERN_OPT_KLD_PREFILL].n > 0,
        .progress = tern_progress_show,
        .user = &bar,
    };
    double start = tern_now();
    int rc = tern_eval_kld(&c->result, c->setup.engine, &p, err);
    c->seconds = tern_now() - start;
    return tern_progress_result(&bar, rc);
}

static void clear(struct kld *c)
{
    tern_kld_free(c->result);
    tern_setup_clear(&c->setup);
    tern_plan_list_clear(&c->list);
    for (int i = 0; i < c->n_layers; i++)
        free(c->layer_specs[i]);
    for (int i = 0; i < c->n_texts; i++) {
        tern_buf_clear(&c->texts[i].bytes);
        tern_tokens_clear(&c->texts[i].ids);
    }
    tern_free(c->specs);
    tern_free(c->layer_specs);
    tern_free(c->texts);
    tern_free(c->views);
}

int tern_cmd_eval_kld(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct kld c = {.a = a};
    TERN_TRY(tern_setup_plans(&c.list, &a->v[TERN_OPT_KLD_KV], err));
    TERN_TRY(check_layers(&c, err));
    TERN_TRY(read_texts(&c, err));
    TERN_TRY(tern_setup_model(&c.setup, a, a->v[TERN_OPT_MODEL].s, err));
    c.ctx = tern_chunk_ctx(&c.setup, &a->v[TERN_OPT_KLD_CTX]);
    TERN_TRY(tokenize_texts(&c, err));
    TERN_TRY(name_plans(&c, err));
    TERN_TRY(open_engine(&c, err));
    tern_signals_watch(c.setup.engine);
    if (a->v[TERN_OPT_VERBOSE].n)
        tern_setup_print(&c.setup);
    TERN_TRY(measure(&c, err));
    rc = a->v[TERN_OPT_JSON].n ? print_json(&c, err) : print_report(&c, err);
out:
    tern_signals_watch(NULL);
    clear(&c);
    return rc;
}

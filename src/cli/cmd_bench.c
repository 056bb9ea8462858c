/* tern bench: prompt and decode speed at several depths, KV plans side by side.
 *
 * Every plan has an engine of its own; they share the model.  At each depth an engine keeps one base sequence, which
 * only ever grows; a repetition forks it, measures on the fork and frees it, so all repetitions see the same pages. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cli/cli.h"

struct plan {
    const char *spec;
    tern_engine *engine;
    tern_seq *base;
};

struct bench {
    const struct tern_args *a;
    struct tern_setup setup; /* the model; its engine stays NULL */
    struct tern_plan_list list;
    struct plan plans[TERN_CLI_MAX_PLANS];
    int n_plans, n_depths, reps;
    int depths[TERN_OPT_MAX_INTS];
    int pp[TERN_OPT_MAX_INTS]; /* prompt tokens at each depth: -p, or what the context leaves */
    int tg;
    int32_t *ids; /* [n_ids] random tokens */
    int n_ids;
    double *seconds; /* [n_depths][n_plans][2][reps]; 0 = pp, 1 = tg */
    struct tern_progress bar;
    int n_done, n_total; /* for the bar */
};

static double *cell(const struct bench *b, int depth, int plan, int test)
{
    return b->seconds + (((size_t)depth * (size_t)b->n_plans + (size_t)plan) * 2 + (size_t)test) * (size_t)b->reps;
}

/* ---- what to measure --------------------------------------------------------------------------------------------- */

static int read_plans(struct bench *b, tern_error *err)
{
    int rc = tern_setup_plans(&b->list, &b->a->v[TERN_OPT_BENCH_KV], err);
    b->n_plans = b->list.n;
    for (int i = 0; i < b->n_plans; i++)
        b->plans[i].spec = b->list.spec[i];
    return rc;
}

static int by_value(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

/* Depths in ascending order, each once.  Of the default list, those that the model's context has no room for drop out;
 * a depth that was asked for must fit. */
static int choose_depths(struct bench *b, tern_error *err)
{
    const struct tern_arg *v = &b->a->v[TERN_OPT_DEPTH];
    int ctx = tern_model_get_info(b->setup.model)->ctx, asked = (int)b->a->v[TERN_OPT_BENCH_PROMPT].i;
    int need = b->tg > 0 ? b->tg : 1;
    int sorted[TERN_OPT_MAX_INTS];
    for (int i = 0; i < v->n_items; i++)
        sorted[i] = (int)v->ints[i];
    qsort(sorted, (size_t)v->n_items, sizeof *sorted, by_value);
    for (int i = 0; i < v->n_items; i++) {
        int depth = sorted[i];
        if (i && depth == sorted[i - 1])
            continue;
        if (need > ctx || depth > ctx - need) {
            if (!v->n && i)
                continue;
            return tern_err_set(err, TERN_ELIMIT, "depth %d and %d more tokens do not fit the model's context of %d",
                                depth, need, ctx);
        }
        int room = ctx - depth;
        if (asked > room)
            tern_note("depth %d: the context of %d leaves room for a prompt of %d tokens", depth, ctx, room);
        b->pp[b->n_depths] = asked < room ? asked : room;
        b->depths[b->n_depths++] = depth;
    }
    return 0;
}

static int prepare_ids(struct bench *b, tern_error *err)
{
    int n_vocab = tern_model_get_info(b->setup.model)->n_vocab;
    int longest = b->tg;
    for (int d = 0; d < b->n_depths; d++)
        longest = b->pp[d] > longest ? b->pp[d] : longest;
    b->n_ids = b->depths[b->n_depths - 1] + longest;
    b->ids = calloc((size_t)b->n_ids + 1, sizeof *b->ids);
    b->seconds = calloc((size_t)b->n_depths * (size_t)b->n_plans * 2 * (size_t)b->reps, sizeof *b->seconds);
    if (!b->ids || !b->seconds)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate %d token ids", b->n_ids);
    struct tern_rng rng = {.state = 1};
    for (int i = 0; i < b->n_ids; i++)
        b->ids[i] = (int32_t)(tern_rng_u64(&rng) % (uint64_t)n_vocab);
    return 0;
}

static int open_plans(struct bench *b, tern_error *err)
{
    int rc = 0, ctx = tern_model_get_info(b->setup.model)->ctx;
    tern_engine_params p = tern_setup_params(b->a, b->n_ids < ctx ? b->n_ids : ctx, 2);
    for (int i = 0; i < b->n_plans; i++) {
        struct plan *pl = &b->plans[i];
        p.kv = pl->spec;
        TERN_TRY(tern_engine_open(&pl->engine, b->setup.model, &p, err));
        tern_plan_exceptions(tern_engine_plan(pl->engine), pl->spec);
        TERN_TRY(tern_seq_new(&pl->base, pl->engine, err));
    }
out:
    return rc;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static int on_step(void *user, int done, int total)
{
    struct bench *b = user;
    (void)done, (void)total;
    return tern_progress_show(&b->bar, b->n_done, b->n_total);
}

static int deepen(struct bench *b, struct plan *pl, int depth, tern_error *err)
{
    int have = tern_seq_length(pl->base);
    if (depth == have)
        return 0;
    return tern_prefill(pl->engine, pl->base, b->ids + have, depth - have, NULL, on_step, b, err);
}

static int time_prompt(struct bench *b, struct plan *pl, int depth, int n, double *seconds, tern_error *err)
{
    int rc = 0;
    tern_seq *s = NULL;
    const float *logits;
    TERN_TRY(tern_seq_fork(&s, pl->base, err));
    double start = tern_now();
    TERN_TRY(tern_prefill(pl->engine, s, b->ids + depth, n, &logits, NULL, NULL, err));
    *seconds = tern_now() - start;
out:
    tern_seq_free(s);
    return rc;
}

static int time_decode(struct bench *b, struct plan *pl, int depth, double *seconds, tern_error *err)
{
    int rc = 0;
    tern_seq *s = NULL;
    const float *logits;
    TERN_TRY(tern_seq_fork(&s, pl->base, err));
    double start = tern_now();
    for (int i = 0; i < b->tg; i++) {
        tern_step_item it = {
            .seq = s, .tokens = b->ids + depth + i, .n_tokens = 1, .decode = true, .logits = TERN_LOGITS_LAST};
        TERN_TRY(tern_step(pl->engine, &it, 1, &logits, err));
    }
    *seconds = tern_now() - start;
out:
    tern_seq_free(s);
    return rc;
}

/* One repetition of both tests of every plan; rep -1 warms up and is forgotten. */
static int repetition(struct bench *b, int d, int rep, tern_error *err)
{
    int rc = 0;
    for (int i = 0; i < b->n_plans; i++) {
        double pp = 0, tg = 0;
        if (b->pp[d])
            TERN_TRY(time_prompt(b, &b->plans[i], b->depths[d], b->pp[d], &pp, err));
        if (b->tg)
            TERN_TRY(time_decode(b, &b->plans[i], b->depths[d], &tg, err));
        if (rep >= 0) {
            cell(b, d, i, 0)[rep] = pp;
            cell(b, d, i, 1)[rep] = tg;
        }
        b->n_done++;
        if (tern_progress_show(&b->bar, b->n_done, b->n_total))
            TERN_FAIL(err, TERN_ECANCELLED, "interrupted");
    }
out:
    return rc;
}

static int measure(struct bench *b, tern_error *err)
{
    int rc = 0;
    b->bar.what = "bench";
    b->n_total = b->n_depths * b->n_plans * (b->reps + 1);
    for (int d = 0; d < b->n_depths; d++) {
        for (int i = 0; i < b->n_plans; i++)
            TERN_TRY(deepen(b, &b->plans[i], b->depths[d], err));
        for (int rep = -1; rep < b->reps; rep++)
            TERN_TRY(repetition(b, d, rep, err));
    }
out:
    tern_progress_end(&b->bar);
    return rc;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

struct figures {
    char test[24];
    double median, min, max; /* tokens per second */
};

static int by_double(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* false when the test was left out. */
static bool summarise(const struct bench *b, int d, int plan, int test, struct figures *f)
{
    int n = test ? b->tg : b->pp[d];
    if (n == 0)
        return false;
    double *s = cell(b, d, plan, test);
    qsort(s, (size_t)b->reps, sizeof *s, by_double);
    double middle = (s[(b->reps - 1) / 2] + s[b->reps / 2]) / 2;
    (void)snprintf(f->test, sizeof f->test, "%s%d", test ? "tg" : "pp", n);
    f->median = n / middle;
    f->min = n / s[b->reps - 1];
    f->max = n / s[0];
    return true;
}

static int print_rows(const struct bench *b, bool csv, tern_error *err)
{
    int rc = 0;
    struct figures f;
    TERN_TRY(tern_out_printf(err, csv ? "test,depth,kv,median,min,max,unit\n"
                                      : "test      depth  kv                  median       min       max  tok/s\n"));
    for (int test = 0; test < 2; test++)
        for (int d = 0; d < b->n_depths; d++)
            for (int i = 0; i < b->n_plans; i++) {
                if (!summarise(b, d, i, test, &f))
                    continue;
                TERN_TRY(tern_out_printf(
                    err, csv ? "%s,%d,\"%s\",%.2f,%.2f,%.2f,tok/s\n" : "%-8s %6d  %-16s %9.2f %9.2f %9.2f\n", f.test,
                    b->depths[d], b->plans[i].spec, f.median, f.min, f.max));
            }
out:
    return rc;
}

static json_t *results_json(const struct bench *b)
{
    struct figures f;
    json_t *list = json_array();
    for (int test = 0; test < 2; test++)
        for (int d = 0; d < b->n_depths; d++)
            for (int i = 0; i < b->n_plans; i++) {
                double bytes, f16;
                if (!summarise(b, d, i, test, &f))
                    continue;
                tern_plan_bytes(tern_engine_plan(b->plans[i].engine), &bytes, &f16);
                json_array_append_new(list, json_pack("{ss si so sf sf sf ss si sf}", "test", f.test, "depth",
                                                      b->depths[d], "kv", tern_json_text(b->plans[i].spec), "median",
                                                      f.median, "min", f.min, "max", f.max, "unit", "tok/s", "reps",
                                                      b->reps, "kv_bytes_per_token", bytes));
            }
    return list;
}

static int print_json(const struct bench *b, tern_error *err)
{
    const tern_model_info *m = tern_model_get_info(b->setup.model);
    json_t *machine = tern_machine_json();
    json_object_set_new(machine, "threads", json_integer(tern_engine_threads(b->plans[0].engine)));
    json_object_set_new(machine, "model",
                        json_pack("{so so so sI sI}", "path", tern_json_text(m->path), "name", tern_json_text(m->name),
                                  "arch", tern_json_text(m->arch), "file_bytes", (json_int_t)m->file_bytes, "n_params",
                                  (json_int_t)m->n_params));
    return tern_json_print(json_pack("{so so sI}", "machine", machine, "results", results_json(b), "peak_memory_bytes",
                                     (json_int_t)tern_peak_memory()),
                           err);
}

static void clear(struct bench *b)
{
    for (int i = 0; i < b->n_plans; i++)
        tern_engine_close(&b->plans[i].engine); /* frees its sequences */
    tern_plan_list_clear(&b->list);
    free(b->ids);
    free(b->seconds);
    tern_setup_clear(&b->setup);
}

int tern_cmd_bench(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    struct bench b = {.a = a, .reps = (int)a->v[TERN_OPT_REPS].i, .tg = (int)a->v[TERN_OPT_BENCH_TOKENS].i};
    bool json = a->v[TERN_OPT_JSON].n > 0, csv = a->v[TERN_OPT_CSV].n > 0;
    if (json && csv)
        TERN_TRY(tern_cli_usage(err, "--json and --csv exclude each other"));
    if (!b.tg && !a->v[TERN_OPT_BENCH_PROMPT].i)
        TERN_TRY(tern_cli_usage(err, "-p 0 and -n 0 leave nothing to measure"));
    TERN_TRY(read_plans(&b, err));
    TERN_TRY(tern_setup_model(&b.setup, a, a->v[TERN_OPT_MODEL].s, err));
    TERN_TRY(choose_depths(&b, err));
    TERN_TRY(prepare_ids(&b, err));
    TERN_TRY(open_plans(&b, err));
    if (a->v[TERN_OPT_VERBOSE].n)
        for (int i = 0; i < b.n_plans; i++)
            tern_setup_print(&(struct tern_setup){b.setup.model, b.plans[i].engine, b.setup.load_s});
    tern_signals_watch(b.plans[0].engine);
    rc = measure(&b, err);
    if (rc == TERN_ECANCELLED)
        rc = TERN_CLI_INTERRUPTED;
    if (rc == 0)
        rc = json ? print_json(&b, err) : print_rows(&b, csv, err);
out:
    tern_signals_watch(NULL);
    clear(&b);
    return rc;
}

/* tern bench: prompt and decode speed at several depths; numbers of threads, KV plans and batches side by side.
 *
 * Every number of threads has an engine of its own with all plans; they share the model.  At each depth an engine keeps
 * base sequences, which only ever grow: for every plan as many as the largest batch, each with pages of its own.  A
 * repetition forks them, measures on the forks and frees these, so all repetitions see the same pages. */
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cli/cli.h"
#include "tern/profile.h"

#define MAX_BATCH 256 /* as in options.def */

struct profiles {
    tern_profile **of; /* NULL: none are asked for */
    tern_profile_limits limits[TERN_OPT_MAX_INTS];
};

struct team {
    tern_engine *engine;
    tern_seq **bases; /* [n_plans][max_batch] */
};

struct bench {
    const struct tern_args *a;
    struct tern_setup setup; /* the model; its engine stays NULL */
    struct tern_plan_list list;
    struct team teams[TERN_OPT_MAX_INTS];
    int batches[TERN_OPT_MAX_INTS]; /* ascending */
    int depths[TERN_OPT_MAX_INTS];
    int pp[TERN_OPT_MAX_INTS]; /* prompt tokens at each depth: -p, or what the context leaves */
    int n_teams, n_batches, n_depths, n_tests, max_batch, reps, tg;
    int32_t *ids; /* [n_ids] random tokens */
    int n_ids;
    tern_reader *reader;
    double *seconds;            /* [n_depths][n_teams][n_plans][n_tests][reps]; test 0 = pp, 1 + i = tg of batch i */
    double *read;               /* [n_depths][n_teams][reps] bytes per second */
    double *x;                  /* [reps] */
    tern_expert_stats *experts; /* [lines][2] before and after the last repetition of a line */
    struct profiles profiles;   /* of --profile: [n_depths][n_teams][n_plans][n_tests] */
    struct tern_progress bar;
    int n_done, n_total; /* for the bar */
};

/* One line of the results. */
struct line {
    int depth, team, plan, test;
};

static size_t at_team(const struct bench *b, struct line l)
{
    return (size_t)l.depth * (size_t)b->n_teams + (size_t)l.team;
}

static size_t at_line(const struct bench *b, struct line l)
{
    return (at_team(b, l) * (size_t)b->list.n + (size_t)l.plan) * (size_t)b->n_tests + (size_t)l.test;
}

static double *cell(const struct bench *b, struct line l)
{
    return b->seconds + at_line(b, l) * (size_t)b->reps;
}

static double *read_cell(const struct bench *b, struct line l)
{
    return b->read + at_team(b, l) * (size_t)b->reps;
}

/* ---- what to measure --------------------------------------------------------------------------------------------- */

static int by_value(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return x < y ? -1 : x > y;
}

/* The values of an option in ascending order, each once. */
static int sorted(int *out, const struct tern_arg *v)
{
    int n = 0;
    for (int i = 0; i < v->n_items; i++)
        out[i] = (int)v->ints[i];
    qsort(out, (size_t)v->n_items, sizeof *out, by_value);
    for (int i = 0; i < v->n_items; i++)
        if (!n || out[i] != out[n - 1])
            out[n++] = out[i];
    return n;
}

/* Of the default list, depths that the model's context has no room for drop out; one that was asked for must fit. */
static int choose_depths(struct bench *b, tern_error *err)
{
    const struct tern_arg *v = &b->a->v[TERN_OPT_DEPTH];
    int ctx = tern_model_get_info(b->setup.model)->ctx, asked = (int)b->a->v[TERN_OPT_BENCH_PROMPT].i;
    int need = b->tg > 0 ? b->tg : 1;
    int all[TERN_OPT_MAX_INTS], n = sorted(all, v);
    for (int i = 0; i < n; i++) {
        int depth = all[i];
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

/* Tokens that the longest sequence comes to. */
static int longest(const struct bench *b)
{
    int more = b->tg;
    for (int d = 0; d < b->n_depths; d++)
        more = b->pp[d] > more ? b->pp[d] : more;
    return b->depths[b->n_depths - 1] + more;
}

/* Sequence i of a batch begins at token i, so that the rows of a step differ. */
static int prepare(struct bench *b, tern_error *err)
{
    int n_vocab = tern_model_get_info(b->setup.model)->n_vocab;
    size_t teams = (size_t)b->n_depths * (size_t)b->a->v[TERN_OPT_BENCH_THREADS].n_items, reps = (size_t)b->reps;
    b->n_tests = 1 + b->n_batches;
    b->n_ids = longest(b) + b->max_batch;
    b->ids = calloc((size_t)b->n_ids, sizeof *b->ids);
    b->seconds = calloc(teams * (size_t)b->list.n * (size_t)b->n_tests * reps, sizeof *b->seconds);
    b->read = calloc(teams * reps, sizeof *b->read);
    b->x = calloc(reps, sizeof *b->x);
    b->experts = calloc(teams * (size_t)b->list.n * (size_t)b->n_tests * 2, sizeof *b->experts);
    if (b->a->v[TERN_OPT_PROFILE].n)
        b->profiles.of = calloc(teams * (size_t)b->list.n * (size_t)b->n_tests, sizeof(tern_profile *));
    if (!b->ids || !b->seconds || !b->read || !b->x || !b->experts || (b->a->v[TERN_OPT_PROFILE].n && !b->profiles.of))
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate %d token ids", b->n_ids);
    struct tern_rng rng = {.state = 1};
    for (int i = 0; i < b->n_ids; i++)
        b->ids[i] = (int32_t)(tern_rng_u64(&rng) % (uint64_t)n_vocab);
    return 0;
}

static int open_team(struct bench *b, int n_threads, tern_error *err)
{
    int rc = 0, ctx = longest(b), most = tern_model_get_info(b->setup.model)->ctx, n_plans = b->list.n;
    struct team *t = &b->teams[b->n_teams];
    ctx = ctx > b->max_batch ? ctx : b->max_batch; /* a step has no more rows than the context */
    tern_engine_params p = tern_setup_params(b->a, ctx < most ? ctx : most, (n_plans + 1) * b->max_batch);
    p.n_threads = n_threads;
    p.kv = b->list.spec[0];
    p.more_kv = (const char *const *)&b->list.spec[1];
    p.n_more_kv = n_plans - 1;
    if (b->n_teams) /* which would go on where they are */
        TERN_TRY(tern_engine_open(&t->engine, b->setup.model, &p, err));
    else
        TERN_TRY(tern_setup_open_engine(&t->engine, &b->setup, b->a, &p, err));
    for (int i = 0; i < b->n_teams; i++)
        if (tern_engine_threads(b->teams[i].engine) == tern_engine_threads(t->engine)) {
            tern_engine_close(&t->engine); /* 0 was the same number */
            return 0;
        }
    b->n_teams++;
    if (b->max_batch > tern_engine_max_decode(t->engine))
        TERN_FAIL(err, TERN_ELIMIT, "%d sequences together: a step takes %d (--chunk and the context limit it)",
                  b->max_batch, tern_engine_max_decode(t->engine));
    t->bases = calloc((size_t)n_plans * (size_t)b->max_batch, sizeof(tern_seq *));
    if (!t->bases)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate %d sequences", n_plans * b->max_batch);
    for (int i = 0; i < n_plans * b->max_batch; i++)
        TERN_TRY(tern_seq_new_plan(&t->bases[i], t->engine, i / b->max_batch, err));
out:
    return rc;
}

/* The caches of all base sequences, when they are deepest, and the weights. */
static int check_memory(const struct bench *b, tern_error *err)
{
    tern_machine machine;
    tern_machine_describe(&machine);
    tern_expert_stats experts;
    tern_model_experts(b->setup.model, &experts);
    double all = (double)tern_model_get_info(b->setup.model)->weight_bytes;
    size_t bytes, f16;
    if (experts.limit_bytes && experts.limit_bytes < experts.bytes)
        all -= (double)(experts.bytes - experts.limit_bytes);
    for (int i = 0; i < b->list.n; i++) {
        tern_kv_plan_full(tern_engine_plan_at(b->teams[0].engine, i), b->depths[b->n_depths - 1], &bytes, &f16);
        all += (double)bytes * b->max_batch * b->n_teams;
    }
    if (machine.memory_bytes && all > (double)machine.memory_bytes)
        return tern_err_set(err, TERN_ELIMIT, "weights and caches take %.1f GiB and the machine has %.1f GiB",
                            all / 0x1p30, (double)machine.memory_bytes / 0x1p30);
    return 0;
}

/* Nobody named plans: 16 bits beside what the model's device has by itself. */
static int usual_plan(struct bench *b, tern_error *err)
{
    const char *usual = tern_model_get_info(b->setup.model)->kv_default;
    char **plan = &b->list.spec[1];
    if (b->a->v[TERN_OPT_BENCH_KV].n || strcmp(*plan, usual) == 0)
        return 0;
    free(*plan);
    *plan = strdup(usual);
    return *plan ? 0 : tern_err_set(err, TERN_ENOMEM, "cannot allocate the name of a plan");
}

static int open_teams(struct bench *b, tern_error *err)
{
    int rc = 0, threads[TERN_OPT_MAX_INTS], n = sorted(threads, &b->a->v[TERN_OPT_BENCH_THREADS]);
    for (int i = 0; i < n; i++)
        TERN_TRY(open_team(b, threads[i], err));
    for (int i = 0; i < b->list.n; i++)
        tern_plan_exceptions(tern_engine_plan_at(b->teams[0].engine, i));
    TERN_TRY(check_memory(b, err));
    for (int i = 0; i < b->n_teams && b->a->v[TERN_OPT_VERBOSE].n; i++)
        tern_setup_print(
            &(struct tern_setup){.model = b->setup.model, .engine = b->teams[i].engine, .load_s = b->setup.load_s});
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

static int deepen(struct bench *b, struct team *t, int depth, tern_error *err)
{
    int rc = 0;
    for (int i = 0; i < b->list.n * b->max_batch; i++) {
        int have = tern_seq_length(t->bases[i]);
        if (depth > have)
            TERN_TRY(tern_prefill(t->engine, t->bases[i], b->ids + i % b->max_batch + have, depth - have, NULL, on_step,
                                  b, err));
    }
out:
    return rc;
}

static int time_prompt(struct bench *b, struct line l, double *seconds, tern_error *err)
{
    int rc = 0;
    tern_seq *s = NULL;
    const float *logits;
    struct team *t = &b->teams[l.team];
    TERN_TRY(tern_seq_fork(&s, t->bases[l.plan * b->max_batch], err));
    double start = tern_now();
    TERN_TRY(tern_prefill(t->engine, s, b->ids + b->depths[l.depth], b->pp[l.depth], &logits, NULL, NULL, err));
    *seconds = tern_now() - start;
out:
    tern_seq_free(s);
    return rc;
}

static int time_decode(struct bench *b, struct line l, double *seconds, tern_error *err)
{
    int rc = 0, n = b->batches[l.test - 1];
    int32_t next[MAX_BATCH]; /* of random tokens: found, as a reply would, and not followed */
    struct team *t = &b->teams[l.team];
    tern_step_item items[MAX_BATCH] = {0};
    for (int i = 0; i < n; i++) {
        items[i] = (tern_step_item){.n_tokens = 1, .decode = true, .logits = TERN_LOGITS_LAST};
        TERN_TRY(tern_seq_fork(&items[i].seq, t->bases[l.plan * b->max_batch + i], err));
    }
    double start = tern_now();
    for (int step = 0; step < b->tg; step++) {
        for (int i = 0; i < n; i++)
            items[i].tokens = b->ids + i + b->depths[l.depth] + step;
        TERN_TRY(tern_step_greedy(t->engine, items, n, next, err));
        if (tern_signals_interrupted())
            TERN_FAIL(err, TERN_ECANCELLED, "interrupted");
    }
    *seconds = tern_now() - start;
out:
    for (int i = 0; i < n; i++)
        tern_seq_free(items[i].seq);
    return rc;
}

/* The same once more with every operation timed, which no other repetition is. */
static int profile_line(struct bench *b, struct line l, tern_error *err)
{
    double seconds;
    tern_profile **p = &b->profiles.of[at_line(b, l)];
    int rc = tern_profile_start(p, b->teams[l.team].engine, err);
    if (rc < 0)
        return rc;
    rc = (l.test ? time_decode : time_prompt)(b, l, &seconds, err);
    tern_profile_stop(*p);
    return rc;
}

static int profile_depth(struct bench *b, int depth, tern_error *err)
{
    int rc = 0;
    struct line l = {.depth = depth};
    for (l.team = 0; l.team < b->n_teams; l.team++)
        for (l.plan = 0; l.plan < b->list.n; l.plan++)
            for (l.test = 0; l.test < b->n_tests; l.test++)
                if (l.test ? b->tg : b->pp[depth])
                    TERN_TRY(profile_line(b, l, err));
out:
    return rc;
}

/* Everything once at a depth, and reading; rep -1 warms up and is forgotten. */
static int repetition(struct bench *b, int depth, int rep, tern_error *err)
{
    int rc = 0;
    struct line l = {.depth = depth};
    for (l.team = 0; l.team < b->n_teams; l.team++) {
        for (l.plan = 0; l.plan < b->list.n; l.plan++)
            for (l.test = 0; l.test < b->n_tests; l.test++) {
                double seconds = 0;
                tern_expert_stats *experts = &b->experts[at_line(b, l) * 2];
                tern_model_experts(b->setup.model, &experts[0]);
                if (l.test ? b->tg : b->pp[depth])
                    TERN_TRY((l.test ? time_decode : time_prompt)(b, l, &seconds, err));
                tern_model_experts(b->setup.model, &experts[1]);
                if (rep >= 0)
                    cell(b, l)[rep] = seconds;
                if (tern_progress_show(&b->bar, ++b->n_done, b->n_total))
                    TERN_FAIL(err, TERN_ECANCELLED, "interrupted");
            }
        double speed = tern_reader_pass(b->reader, b->teams[l.team].engine);
        if (rep >= 0)
            read_cell(b, l)[rep] = speed;
    }
out:
    return rc;
}

static int measure(struct bench *b, tern_error *err)
{
    int rc = 0;
    b->bar.what = "bench";
    b->n_total = b->n_depths * b->n_teams * b->list.n * b->n_tests * (b->reps + 1);
    for (int d = 0; d < b->n_depths; d++) {
        for (int i = 0; i < b->n_teams; i++)
            TERN_TRY(deepen(b, &b->teams[i], b->depths[d], err));
        for (int rep = -1; rep < b->reps; rep++)
            TERN_TRY(repetition(b, d, rep, err));
        if (b->profiles.of)
            TERN_TRY(profile_depth(b, d, err));
    }
    for (int i = 0; i < b->n_teams && b->profiles.of; i++)
        TERN_TRY(tern_profile_measure(&b->profiles.limits[i], b->reader, b->teams[i].engine, err));
out:
    tern_progress_end(&b->bar);
    return rc;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

struct figures {
    char test[24];
    const char *kv;
    int depth, threads, batch;
    tern_spread speed; /* tokens per second of all sequences together */
    bool has_read;
    tern_spread read; /* bytes per second of reading alone */
    /* Of decode lines alone: */
    bool decode, has_ratio;
    tern_spread ratio;                /* speed over that of one sequence alone, round by round */
    tern_step_bytes per_token;        /* mean over the steps */
    tern_spread share;                /* of reading alone, round by round */
    const tern_profile *profile;      /* NULL without --profile */
    const tern_expert_stats *experts; /* before and after the last repetition */
    const tern_profile_limits *limits;
};

static int summarise_decode(const struct bench *b, struct line l, struct figures *f, tern_error *err)
{
    int rc = 0, depth = b->depths[l.depth];
    const double *seconds = cell(b, l), *read = read_cell(b, l);
    double per_step = 0;
    for (int i = 0; i < b->tg; i++) {
        tern_step_bytes bytes;
        tern_eval_step_bytes(b->teams[l.team].engine, l.plan, depth + i + 1, f->batch, &bytes);
        f->per_token.weights += bytes.weights / f->batch / b->tg;
        f->per_token.kv += bytes.kv / f->batch / b->tg;
    }
    per_step = (f->per_token.weights + f->per_token.kv) * f->batch;
    for (int r = 0; f->has_read && r < b->reps; r++)
        b->x[r] = per_step * b->tg / seconds[r] / read[r];
    if (f->has_read)
        TERN_TRY(tern_spread_of(&f->share, b->x, b->reps, err));
    f->has_ratio = b->batches[0] == 1;
    if (!f->has_ratio)
        return 0;
    l.test = 1;
    for (int r = 0; r < b->reps; r++)
        b->x[r] = f->batch * cell(b, l)[r] / seconds[r];
    TERN_TRY(tern_spread_of(&f->ratio, b->x, b->reps, err));
out:
    return rc;
}

static int summarise(const struct bench *b, struct line l, struct figures *f, tern_error *err)
{
    int rc = 0, n = l.test ? b->tg : b->pp[l.depth];
    *f = (struct figures){.kv = b->list.spec[l.plan],
                          .depth = b->depths[l.depth],
                          .threads = tern_engine_threads(b->teams[l.team].engine),
                          .batch = l.test ? b->batches[l.test - 1] : 1,
                          .decode = l.test > 0};
    (void)snprintf(f->test, sizeof f->test, "%s%d", f->decode ? "tg" : "pp", n);
    for (int r = 0; r < b->reps; r++)
        b->x[r] = (double)n * f->batch / cell(b, l)[r];
    TERN_TRY(tern_spread_of(&f->speed, b->x, b->reps, err));
    TERN_TRY(tern_spread_of(&f->read, read_cell(b, l), b->reps, err));
    f->has_read = f->read.min > 0;
    f->experts = &b->experts[at_line(b, l) * 2];
    if (b->profiles.of) {
        f->profile = b->profiles.of[at_line(b, l)];
        f->limits = &b->profiles.limits[l.team];
    }
    if (f->decode)
        TERN_TRY(summarise_decode(b, l, f, err));
out:
    return rc;
}

/* ---- where the time goes ----------------------------------------------------------------------------------------- */

#define SHOWN .001 /* of the time of all steps; what is shorter is one line together */

static int print_rest(int64_t calls, double rest, double all, tern_error *err)
{
    if (!calls)
        return 0;
    return tern_out_printf(err, "%-12s %-34s %8lld %10.3f %6.1f%%\n", "others", "", (long long)calls, rest * 1e3,
                           100 * rest / all);
}

static int print_operations(const tern_profile *p, const tern_profile_limits *limits, tern_error *err)
{
    int rc = 0;
    int64_t steps, others = 0;
    double all, sum = 0, rest = 0;
    tern_profile_line l;
    tern_profile_total(p, &steps, &all);
    TERN_TRY(tern_out_printf(err, "%lld step%s, %.3f ms each\n", (long long)steps, steps == 1 ? "" : "s",
                             all * 1e3 / (double)steps));
    TERN_TRY(tern_out_printf(err, "%-12s %-34s %8s %10s %7s %8s %9s  %s\n", "operation", "on", "calls", "ms", "time",
                             "GB/s", "Gmac/s", "of its limit"));
    for (int i = 0; tern_profile_at(p, i, limits, &l); i++) {
        sum += l.seconds;
        if (l.seconds < SHOWN * all) {
            others += l.calls;
            rest += l.seconds;
            continue;
        }
        TERN_TRY(tern_out_printf(err, "%-12s %-34s %8lld %10.3f %6.1f%%", l.operation, l.what, (long long)l.calls,
                                 l.seconds * 1e3, 100 * l.seconds / all));
        if (l.limit_seconds > 0)
            TERN_TRY(tern_out_printf(err, " %8.1f %9.1f  %.0f%% of %s", l.bytes / l.seconds * 1e-9,
                                     l.products / l.seconds * 1e-9, 100 * l.limit_seconds / l.seconds,
                                     l.by_products ? "products" : "reading"));
        TERN_TRY(tern_out_printf(err, "\n"));
    }
    TERN_TRY(print_rest(others, rest, all, err));
    TERN_TRY(tern_out_printf(err, "%-12s %-34s %8s %10.3f %6.1f%%\n", "between them", "", "", (all - sum) * 1e3,
                             100 * (all - sum) / all));
    TERN_TRY(tern_out_printf(
        err, "limits: reading %.1f GB/s, products of decode rows %.1f and of prompt rows %.1f Gmac/s\n",
        limits->bytes_per_second * 1e-9, limits->decode_products * 1e-9, limits->prompt_products * 1e-9));
out:
    return rc;
}

static json_t *operations_json(const tern_profile *p, const tern_profile_limits *limits)
{
    int64_t steps;
    double all;
    tern_profile_line l;
    json_t *operations = json_array();
    tern_profile_total(p, &steps, &all);
    for (int i = 0; tern_profile_at(p, i, limits, &l); i++) {
        const bool limited = l.limit_seconds > 0;
        (void)json_array_append_new(
            operations, json_pack("{ss ss sI sf sf sf so so}", "operation", l.operation, "what", l.what, "calls",
                                  (json_int_t)l.calls, "seconds", l.seconds, "bytes", l.bytes, "products", l.products,
                                  "limit_seconds", limited ? json_real(l.limit_seconds) : json_null(), "limit",
                                  limited ? json_string(l.by_products ? "products" : "reading") : json_null()));
    }
    return json_pack("{sI sf sf sf sf so}", "steps", (json_int_t)steps, "seconds", all, "read_gb_per_s",
                     limits->bytes_per_second * 1e-9, "decode_products_per_s", limits->decode_products,
                     "prompt_products_per_s", limits->prompt_products, "operations", operations);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

typedef int print_fn(const struct bench *b, const struct figures *f, void *to, tern_error *err);

/* Calls print for every line: prompts first, then batches in ascending order. */
static int each_line(const struct bench *b, print_fn *print, void *to, tern_error *err)
{
    int rc = 0;
    struct line l;
    struct figures f;
    for (l.test = 0; l.test < b->n_tests; l.test++)
        for (l.depth = 0; l.depth < b->n_depths; l.depth++)
            for (l.team = 0; l.team < b->n_teams; l.team++)
                for (l.plan = 0; l.plan < b->list.n; l.plan++) {
                    if (!(l.test ? b->tg : b->pp[l.depth]))
                        continue;
                    TERN_TRY(summarise(b, l, &f, err));
                    TERN_TRY(print(b, &f, to, err));
                }
out:
    return rc;
}

static int print_row(const struct bench *b, const struct figures *f, void *to, tern_error *err)
{
    int rc = 0;
    char ratio[16] = "-", share[16] = "-";
    (void)b, (void)to;
    TERN_TRY(tern_out_printf(err, "%-8s %6d  %-16s %7d  %5d  %9.2f %9.2f %9.2f", f->test, f->depth, f->kv, f->threads,
                             f->batch, f->speed.median, f->speed.min, f->speed.max));
    if (!f->decode)
        return tern_out_printf(err, "\n");
    if (f->has_ratio)
        (void)snprintf(ratio, sizeof ratio, "%.2f", f->ratio.median);
    if (f->has_read)
        (void)snprintf(share, sizeof share, "%.0f%%", f->share.median * 100);
    TERN_TRY(tern_out_printf(err, "  %9.2f  %6s  %9.2f  %7s\n", f->speed.median / f->batch, ratio,
                             (f->per_token.weights + f->per_token.kv) * 1e-6, share));
out:
    return rc;
}

static int print_profile(const struct bench *b, const struct figures *f, void *to, tern_error *err)
{
    int rc = 0;
    (void)b, (void)to;
    TERN_TRY(tern_out_printf(err, "\n%s at depth %d, --kv %s, threads %d, batch %d: ", f->test, f->depth, f->kv,
                             f->threads, f->batch));
    TERN_TRY(print_operations(f->profile, f->limits, err));
out:
    return rc;
}

static int print_table(const struct bench *b, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_out_printf(err, "test      depth  kv                threads  batch      tok/s       min       max"
                                  "  per seq   x one   MB/token  of read\n"));
    TERN_TRY(each_line(b, print_row, NULL, err));
    tern_experts_note(b->setup.model);
    if (b->profiles.of)
        TERN_TRY(each_line(b, print_profile, NULL, err));
out:
    return rc;
}

static int print_csv_row(const struct bench *b, const struct figures *f, void *to, tern_error *err)
{
    int rc = 0;
    (void)to;
    TERN_TRY(tern_out_printf(err, "%s,%d,%s,%d,%d,%.3f,%.3f,%.3f,tok/s,", f->test, f->depth, tern_csv_text(f->kv),
                             f->threads, f->batch, f->speed.median, f->speed.min, f->speed.max));
    if (f->decode)
        TERN_TRY(tern_out_printf(err, "%.3f,", f->speed.median / f->batch));
    else
        TERN_TRY(tern_out_printf(err, ","));
    if (f->has_ratio)
        TERN_TRY(tern_out_printf(err, "%.3f,%.3f,%.3f,", f->ratio.median, f->ratio.min, f->ratio.max));
    else
        TERN_TRY(tern_out_printf(err, ",,,"));
    if (f->decode)
        TERN_TRY(tern_out_printf(err, "%.0f,%.0f,", f->per_token.weights, f->per_token.kv));
    else
        TERN_TRY(tern_out_printf(err, ",,"));
    if (f->decode && f->has_read)
        TERN_TRY(tern_out_printf(err, "%.4f,%.4f,%.4f,", f->share.median, f->share.min, f->share.max));
    else
        TERN_TRY(tern_out_printf(err, ",,,"));
    if (f->has_read)
        TERN_TRY(tern_out_printf(err, "%.3f", f->read.median * 1e-9));
    TERN_TRY(tern_out_printf(err, ",%d,%s", b->reps, tern_csv_text(tern_model_get_info(b->setup.model)->path)));
    TERN_TRY(tern_machine_csv(err));
out:
    return rc;
}

static int print_csv(const struct bench *b, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_out_printf(err,
                             "test,depth,kv,threads,batch,median,min,max,unit,per_sequence,x_one,x_one_min,x_one_max,"
                             "weight_bytes_per_token,kv_bytes_per_token,read_share,read_share_min,read_share_max,"
                             "read_gb_per_s,reps,model" TERN_CSV_MACHINE "\n"));
    TERN_TRY(each_line(b, print_csv_row, NULL, err));
out:
    return rc;
}

static int add_result(const struct bench *b, const struct figures *f, void *to, tern_error *err)
{
    json_t *o = json_pack("{ss si s{so} si si sf sf sf ss si so}", "test", f->test, "depth", f->depth, "kv", "spec",
                          tern_json_text(f->kv), "threads", f->threads, "batch", f->batch, "median", f->speed.median,
                          "min", f->speed.min, "max", f->speed.max, "unit", "tok/s", "reps", b->reps, "read_gb_per_s",
                          f->has_read ? tern_json_spread(&f->read, 1e9) : json_null());
    if (f->decode) {
        json_object_set_new(o, "per_sequence", json_real(f->speed.median / f->batch));
        json_object_set_new(o, "x_one", f->has_ratio ? tern_json_spread(&f->ratio, 1) : json_null());
        json_object_set_new(o, "weight_bytes_per_token", json_real(f->per_token.weights));
        json_object_set_new(o, "kv_bytes_per_token", json_real(f->per_token.kv));
        json_object_set_new(o, "read_share", f->has_read ? tern_json_spread(&f->share, 1) : json_null());
    }
    if (f->profile)
        json_object_set_new(o, "profile", operations_json(f->profile, f->limits));
    if (f->experts[1].limit_bytes)
        json_object_set_new(o, "experts", tern_experts_json(&f->experts[0], &f->experts[1]));
    return json_array_append_new(to, o) ? tern_err_set(err, TERN_ENOMEM, "cannot allocate a result") : 0;
}

static int print_json(const struct bench *b, tern_error *err)
{
    json_t *results = json_array();
    int rc = each_line(b, add_result, results, err);
    if (rc < 0) {
        json_decref(results);
        return rc;
    }
    return tern_report_print(tern_report_json("bench", b->setup.model, 0), json_pack("{so}", "results", results), err);
}

static void clear(struct bench *b)
{
    size_t lines = (size_t)b->n_depths * (size_t)b->n_teams * (size_t)b->list.n * (size_t)b->n_tests;
    for (size_t i = 0; b->profiles.of && i < lines; i++)
        tern_profile_free(b->profiles.of[i]);
    free(b->profiles.of);
    for (int i = 0; i < b->n_teams; i++) {
        tern_engine_close(&b->teams[i].engine); /* frees its sequences */
        free(b->teams[i].bases);
    }
    tern_plan_list_clear(&b->list);
    tern_reader_free(b->reader);
    free(b->ids);
    free(b->seconds);
    free(b->read);
    free(b->x);
    free(b->experts);
    tern_setup_clear(&b->setup);
}

int tern_cmd_bench(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    double read_bytes;
    enum tern_format format;
    struct bench b = {.a = a, .reps = (int)a->v[TERN_OPT_REPS].i, .tg = (int)a->v[TERN_OPT_BENCH_TOKENS].i};
    TERN_TRY(tern_setup_format(&format, a, err));
    if (a->v[TERN_OPT_PROFILE].n && format == TERN_FORMAT_CSV)
        TERN_TRY(tern_cli_usage(err, "--profile is a table or --json, there is no --csv of it"));
    if (!b.tg && !a->v[TERN_OPT_BENCH_PROMPT].i)
        TERN_TRY(tern_cli_usage(err, "-p 0 and -n 0 leave nothing to measure"));
    b.n_batches = sorted(b.batches, &a->v[TERN_OPT_BATCH]);
    b.max_batch = b.batches[b.n_batches - 1];
    TERN_TRY(tern_setup_size("--read", a->v[TERN_OPT_READ_SIZE].s, 1, 1e15, &read_bytes, err));
    TERN_TRY(tern_setup_plans(&b.list, &a->v[TERN_OPT_BENCH_KV], err));
    TERN_TRY(tern_setup_model(&b.setup, a, a->v[TERN_OPT_MODEL].s, err));
    TERN_TRY(usual_plan(&b, err));
    TERN_TRY(choose_depths(&b, err));
    TERN_TRY(prepare(&b, err));
    TERN_TRY(tern_reader_new(&b.reader, (size_t)read_bytes, err));
    TERN_TRY(open_teams(&b, err));
    tern_signals_hold();
    rc = measure(&b, err);
    if (rc == TERN_ECANCELLED)
        rc = TERN_CLI_INTERRUPTED;
    if (rc == 0)
        rc = (format == TERN_FORMAT_JSON ? print_json : format == TERN_FORMAT_CSV ? print_csv : print_table)(&b, err);
out:
    tern_signals_watch(NULL);
    clear(&b);
    return rc;
}

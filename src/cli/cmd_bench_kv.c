/* tern bench kv: decode attention alone, KV plans side by side. */
#include <string.h>

#include "cli/cli.h"

#define BASE      "f16"
#define MAX_PLANS (TERN_CLI_MAX_PLANS + 1) /* the base comes on top */

struct bench {
    const struct tern_args *a;
    struct tern_plan_list list;
    const char *plans[MAX_PLANS]; /* the base first */
    tern_kv_speed_params p;
    tern_kv_speed speed[MAX_PLANS];
    tern_read_speed read;
};

static const struct preset {
    const char *name;
    int head_dim, heads, kv_heads, ctx, layers;
} presets[] = {
    {"llama8b", 128, 32, 8, 32768, 4},
    {"smollm2", 64, 9, 3, 8192, 30},
};

static int read_plans(struct bench *b, tern_error *err)
{
    int rc = tern_setup_plans(&b->list, &b->a->v[TERN_OPT_SPEED_KV], err);
    b->plans[b->p.n_plans++] = BASE;
    for (int i = 0; i < b->list.n; i++)
        if (strcmp(b->list.spec[i], BASE) != 0)
            b->plans[b->p.n_plans++] = b->list.spec[i];
    b->p.plans = b->plans;
    return rc;
}

static int given(const struct bench *b, enum tern_option_id option, int otherwise)
{
    const struct tern_arg *v = &b->a->v[option];
    return v->n ? (int)v->i : otherwise;
}

static void choose_geometry(struct bench *b)
{
    const struct preset *t = presets;
    while (strcmp(t->name, b->a->v[TERN_OPT_PRESET].s) != 0)
        t++;
    b->p.head_dim = given(b, TERN_OPT_HEAD_DIM, t->head_dim);
    b->p.n_heads = given(b, TERN_OPT_HEADS, t->heads);
    b->p.n_kv_heads = given(b, TERN_OPT_KV_HEADS, t->kv_heads);
    b->p.ctx = given(b, TERN_OPT_SPEED_CTX, t->ctx);
    b->p.n_layers = given(b, TERN_OPT_LAYERS, t->layers);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

static int print_table(const struct bench *b, tern_error *err)
{
    int rc = 0;
    const tern_spread *r = &b->read.bytes_per_second;
    TERN_TRY(tern_out_printf(err,
                             "%d layers, %d heads of %d, %d KV heads, %d tokens, %d threads; reading alone %.2f GB/s "
                             "[%.2f-%.2f]\n",
                             b->p.n_layers, b->p.n_heads, b->p.head_dim, b->p.n_kv_heads, b->p.ctx, b->read.n_threads,
                             r->median * 1e-9, r->min * 1e-9, r->max * 1e-9));
    TERN_TRY(tern_out_printf(err, "kv                ms/step       min       max   x f16  bytes/el   ns/el    GB/s  of "
                                  "read  encode us/token\n"));
    for (int i = 0; i < b->p.n_plans; i++) {
        const tern_kv_speed *s = &b->speed[i];
        TERN_TRY(tern_out_printf(err, "%-16s %8.3f  %8.3f  %8.3f  %6.2f  %8.4f  %6.4f  %6.2f  %6.0f%%  %15.2f\n",
                                 b->plans[i], s->seconds.median * 1e3, s->seconds.min * 1e3, s->seconds.max * 1e3,
                                 s->speedup.median, s->bytes / s->elements, s->seconds.median * 1e9 / s->elements,
                                 s->bytes / s->seconds.median * 1e-9, s->read_share.median * 100,
                                 s->encode_seconds.median * 1e6));
    }
out:
    return rc;
}

static int print_csv(const struct bench *b, tern_error *err)
{
    int rc = 0;
    const tern_kv_speed_params *p = &b->p;
    TERN_TRY(tern_out_printf(err,
                             "kv,threads,head_dim,heads,kv_heads,ctx,layers,ms_per_step,ms_min,ms_max,x_f16,x_f16_min,"
                             "x_f16_max,bytes,elements,gb_per_s,read_share,read_share_min,read_share_max,"
                             "read_gb_per_s,encode_us_per_token,error,reps" TERN_CSV_MACHINE "\n"));
    for (int i = 0; i < p->n_plans; i++) {
        const tern_kv_speed *s = &b->speed[i];
        const tern_spread *ms = &s->seconds, *x = &s->speedup, *share = &s->read_share;
        TERN_TRY(tern_out_printf(err, "%s,%d,%d,%d,%d,%d,%d,%.4f,%.4f,%.4f,%.4f,%.4f,%.4f,", tern_csv_text(b->plans[i]),
                                 b->read.n_threads, p->head_dim, p->n_heads, p->n_kv_heads, p->ctx, p->n_layers,
                                 ms->median * 1e3, ms->min * 1e3, ms->max * 1e3, x->median, x->min, x->max));
        TERN_TRY(tern_out_printf(err, "%.0f,%.0f,%.3f,%.4f,%.4f,%.4f,%.3f,%.3f,%.6f,%d", s->bytes, s->elements,
                                 s->bytes / ms->median * 1e-9, share->median, share->min, share->max,
                                 b->read.bytes_per_second.median * 1e-9, s->encode_seconds.median * 1e6, s->error,
                                 p->reps));
        TERN_TRY(tern_machine_csv(err));
    }
out:
    return rc;
}

static json_t *results_json(const struct bench *b)
{
    json_t *list = json_array();
    for (int i = 0; i < b->p.n_plans; i++) {
        const tern_kv_speed *s = &b->speed[i];
        json_array_append_new(
            list, json_pack("{s{so} so so so so sf sf sf sf sf sf si}", "kv", "spec", tern_json_text(b->plans[i]),
                            "ms_per_step", tern_json_spread(&s->seconds, 1e-3), "x_f16",
                            tern_json_spread(&s->speedup, 1), "read_share", tern_json_spread(&s->read_share, 1),
                            "encode_us_per_token", tern_json_spread(&s->encode_seconds, 1e-6), "bytes", s->bytes,
                            "elements", s->elements, "bytes_per_element", s->bytes / s->elements, "ns_per_element",
                            s->seconds.median * 1e9 / s->elements, "gb_per_s", s->bytes / s->seconds.median * 1e-9,
                            "error", s->error, "reps", b->p.reps));
    }
    return list;
}

static int print_json(const struct bench *b, tern_error *err)
{
    const tern_kv_speed_params *p = &b->p;
    json_t *geometry = json_pack("{si si si si si}", "head_dim", p->head_dim, "n_heads", p->n_heads, "n_kv_heads",
                                 p->n_kv_heads, "ctx", p->ctx, "n_layers", p->n_layers);
    return tern_report_print(tern_report_json("bench kv", NULL, b->read.n_threads),
                             json_pack("{so so so}", "read_gb_per_s", tern_json_spread(&b->read.bytes_per_second, 1e9),
                                       "geometry", geometry, "results", results_json(b)),
                             err);
}

int tern_cmd_bench_kv(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    double read_bytes;
    enum tern_format format;
    struct tern_progress bar = {.what = "bench"};
    struct bench b = {.a = a,
                      .p = {.n_threads = (int)a->v[TERN_OPT_THREADS].i,
                            .reps = (int)a->v[TERN_OPT_SPEED_REPS].i,
                            .progress = tern_progress_show,
                            .user = &bar}};
    TERN_TRY(tern_setup_format(&format, a, err));
    TERN_TRY(tern_setup_size("--read", a->v[TERN_OPT_READ_SIZE].s, 1, 1e15, &read_bytes, err));
    b.p.read_bytes = (size_t)read_bytes;
    TERN_TRY(read_plans(&b, err));
    choose_geometry(&b);
    TERN_TRY(tern_set_cpu_mask(a->v[TERN_OPT_CPU_MASK].s, err));
    tern_signals_hold();
    rc = tern_eval_kv_speed(b.speed, &b.read, &b.p, err);
    tern_signals_watch(NULL);
    rc = tern_progress_result(&bar, tern_cli_as_usage(rc, err));
    if (rc == 0)
        rc = (format == TERN_FORMAT_JSON ? print_json : format == TERN_FORMAT_CSV ? print_csv : print_table)(&b, err);
out:
    tern_plan_list_clear(&b.list);
    return rc;
}

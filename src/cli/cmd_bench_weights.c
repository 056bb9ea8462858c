/* tern bench weights: products with packed weights alone, types and numbers of rows side by side. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

#define MAX_TYPES 64

struct bench {
    const struct tern_args *a;
    const char *types[MAX_TYPES];
    char *text; /* of --types, cut at its commas */
    int rows[TERN_OPT_MAX_INTS];
    tern_weight_speed_params p;
    tern_weight_speed *speed; /* [n_types][n_rows] */
    tern_read_speed read;
};

/* ---- what to measure --------------------------------------------------------------------------------------------- */

static int add_type(struct bench *b, const char *name, tern_error *err)
{
    if (!*name)
        return tern_cli_usage(err, "--types: empty type");
    if (b->p.n_types == MAX_TYPES)
        return tern_cli_usage(err, "--types: more than %d types", MAX_TYPES);
    b->types[b->p.n_types++] = name;
    return 0;
}

static int read_types(struct bench *b, tern_error *err)
{
    int rc = 0;
    const char *given = b->a->v[TERN_OPT_WEIGHT_TYPES].s, *name;
    b->p.types = b->types;
    for (int i = 0; !given && (name = tern_eval_weight_type(i)); i++)
        TERN_TRY(add_type(b, name, err));
    if (!given)
        return 0;
    b->text = strdup(given);
    if (!b->text)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the list of types");
    for (char *p = b->text, *comma; p; p = comma) {
        comma = strchr(p, ',');
        if (comma)
            *comma++ = 0;
        TERN_TRY(add_type(b, p, err));
    }
out:
    return rc;
}

static int read_options(struct bench *b, tern_error *err)
{
    int rc = 0;
    double bytes;
    const struct tern_arg *v = b->a->v;
    TERN_TRY(read_types(b, err));
    TERN_TRY(tern_setup_size("--size", v[TERN_OPT_WEIGHT_SIZE].s, 1, 1e15, &bytes, err));
    b->p.bytes = (size_t)bytes;
    TERN_TRY(tern_setup_size("--read", v[TERN_OPT_READ_SIZE].s, 1, 1e15, &bytes, err));
    b->p.read_bytes = (size_t)bytes;
    b->p.n_rows = v[TERN_OPT_WEIGHT_ROWS].n_items;
    b->p.rows = b->rows;
    for (int i = 0; i < b->p.n_rows; i++)
        b->rows[i] = (int)v[TERN_OPT_WEIGHT_ROWS].ints[i];
    b->p.n_out = (int)v[TERN_OPT_OUTPUTS].i;
    b->p.n_in = (int)v[TERN_OPT_INPUTS].i;
    b->p.prompt = v[TERN_OPT_PROMPT_ROWS].n > 0;
    size_t n = (size_t)b->p.n_types * (size_t)b->p.n_rows;
    b->speed = calloc(n + 1, sizeof *b->speed);
    if (!b->speed)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate %zu results", n);
out:
    return rc;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

struct figures {
    const tern_weight_speed *s;
    double bits;        /* per weight */
    tern_spread matrix; /* seconds of one product */
    double ns;          /* per weight and row */
    double bytes_per_second;
};

static struct figures figures_of(const struct bench *b, int i)
{
    const tern_weight_speed *s = &b->speed[i];
    double n = s->n_matrices, weights = n * b->p.n_out * b->p.n_in;
    return (struct figures){.s = s,
                            .bits = s->bytes * 8 / weights,
                            .matrix = {s->seconds.median / n, s->seconds.min / n, s->seconds.max / n},
                            .ns = s->seconds.median * 1e9 / weights / s->rows,
                            .bytes_per_second = s->bytes / s->seconds.median};
}

static const char *class_of(const struct bench *b)
{
    return b->p.prompt ? "prompt" : "decode";
}

static int print_table(const struct bench *b, tern_error *err)
{
    int rc = 0;
    const tern_spread *r = &b->read.bytes_per_second;
    TERN_TRY(tern_out_printf(err, "%d x %d, %d threads, %s rows; reading alone %.2f GB/s [%.2f-%.2f]\n", b->p.n_out,
                             b->p.n_in, b->read.n_threads, class_of(b), r->median * 1e-9, r->min * 1e-9,
                             r->max * 1e-9));
    TERN_TRY(tern_out_printf(err,
                             "type      rows  bits/weight  us/matrix       min       max  ns/weight    GB/s  of read"
                             "       min       max    error\n"));
    for (int i = 0; i < b->p.n_types * b->p.n_rows; i++) {
        struct figures f = figures_of(b, i);
        const tern_spread *share = &f.s->read_share;
        TERN_TRY(tern_out_printf(
            err, "%-8s %5d  %11.3f  %9.2f %9.2f %9.2f  %9.5f  %6.2f  %6.0f%%  %7.0f%%  %7.0f%%  %.5f\n", f.s->type,
            f.s->rows, f.bits, f.matrix.median * 1e6, f.matrix.min * 1e6, f.matrix.max * 1e6, f.ns,
            f.bytes_per_second * 1e-9, share->median * 100, share->min * 100, share->max * 100, f.s->error));
    }
out:
    return rc;
}

static int print_csv(const struct bench *b, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_out_printf(err, "type,rows,class,threads,outputs,inputs,bytes,bits_per_weight,us_per_matrix,us_min,"
                                  "us_max,ns_per_weight,gb_per_s,read_share,read_share_min,read_share_max,"
                                  "read_gb_per_s,error,reps" TERN_CSV_MACHINE "\n"));
    for (int i = 0; i < b->p.n_types * b->p.n_rows; i++) {
        struct figures f = figures_of(b, i);
        const tern_spread *share = &f.s->read_share;
        TERN_TRY(tern_out_printf(err, "%s,%d,%s,%d,%d,%d,%.0f,%.4f,%.3f,%.3f,%.3f,%.6f,%.3f,", f.s->type, f.s->rows,
                                 class_of(b), b->read.n_threads, b->p.n_out, b->p.n_in, f.s->bytes, f.bits,
                                 f.matrix.median * 1e6, f.matrix.min * 1e6, f.matrix.max * 1e6, f.ns,
                                 f.bytes_per_second * 1e-9));
        TERN_TRY(tern_out_printf(err, "%.4f,%.4f,%.4f,%.3f,%.6f,%d", share->median, share->min, share->max,
                                 b->read.bytes_per_second.median * 1e-9, f.s->error, b->p.reps));
        TERN_TRY(tern_machine_csv(err));
    }
out:
    return rc;
}

static json_t *results_json(const struct bench *b)
{
    json_t *list = json_array();
    for (int i = 0; i < b->p.n_types * b->p.n_rows; i++) {
        struct figures f = figures_of(b, i);
        json_array_append_new(
            list, json_pack("{ss si sf sf so sf sf so sf si}", "type", f.s->type, "rows", f.s->rows, "bytes",
                            f.s->bytes, "bits_per_weight", f.bits, "us_per_matrix", tern_json_spread(&f.matrix, 1e-6),
                            "ns_per_weight", f.ns, "gb_per_s", f.bytes_per_second * 1e-9, "read_share",
                            tern_json_spread(&f.s->read_share, 1), "error", f.s->error, "reps", b->p.reps));
    }
    return list;
}

static int print_json(const struct bench *b, tern_error *err)
{
    return tern_report_print(tern_report_json("bench weights", NULL, b->read.n_threads),
                             json_pack("{so si si ss so}", "read_gb_per_s",
                                       tern_json_spread(&b->read.bytes_per_second, 1e9), "outputs", b->p.n_out,
                                       "inputs", b->p.n_in, "class", class_of(b), "results", results_json(b)),
                             err);
}

int tern_cmd_bench_weights(const struct tern_args *a, tern_error *err)
{
    int rc = 0;
    enum tern_format format;
    struct tern_progress bar = {.what = "bench"};
    struct bench b = {.a = a,
                      .p = {.n_threads = (int)a->v[TERN_OPT_THREADS].i,
                            .reps = (int)a->v[TERN_OPT_SPEED_REPS].i,
                            .progress = tern_progress_show,
                            .user = &bar}};
    TERN_TRY(tern_setup_format(&format, a, err));
    TERN_TRY(read_options(&b, err));
    TERN_TRY(tern_set_cpu_mask(a->v[TERN_OPT_CPU_MASK].s, err));
    tern_signals_hold();
    rc = tern_eval_weight_speed(b.speed, &b.read, &b.p, err);
    tern_signals_watch(NULL);
    rc = tern_progress_result(&bar, tern_cli_as_usage(rc, err));
    if (rc == 0)
        rc = (format == TERN_FORMAT_JSON ? print_json : format == TERN_FORMAT_CSV ? print_csv : print_table)(&b, err);
out:
    free(b.text);
    free(b.speed);
    return rc;
}

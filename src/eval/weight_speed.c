/* Speed of products with packed weights alone.
 *
 * One matrix of random weights, whose rows repeat, is packed per type and copied to the addresses of all others: what a
 * kernel costs depends on where weights lie, not on their being all different.  All types stay in memory at once,
 * because the turns of a round must find nothing of themselves in a cache. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "base/clock.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "codec/codec.h"
#include "dev/dev.h"
#include "eval/speed.h"

#define PATTERNS  128 /* different rows of a type */
#define SAMPLES   8   /* outputs of a row that are computed again in double precision */
#define MAX_TYPES 64
#define MAX_SIZES 64 /* numbers of rows */
#define MAX_ROWS  8192
#define MAX_DIM   (1 << 20)

static const int type_ids[] = {
#define TYPE_ID(name, id, text, elems, bytes) id,
    TERN_TYPE_LIST(TYPE_ID)
#undef TYPE_ID
};
#define N_TYPE_IDS (sizeof type_ids / sizeof *type_ids)

struct weights {
    int type;
    struct tern_dev_weight *w; /* [n_matrices] */
    size_t stride;             /* bytes from one matrix to the next */
    int n_matrices;
    struct tern_dev_mem *memory;
    double *seconds; /* [n_rows][reps] */
};

struct speed {
    const tern_weight_speed_params *p;
    struct tern_pool *pool;
    struct tern_dev *dev;
    struct weights *weights; /* [n_types] */
    int max_rows;
    struct tern_dev_rows x, y; /* [max_rows] */
    tern_reader *reader;
    double *read; /* [reps] bytes per second */
    struct tern_turns turns;
};

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Bytes of any file type.  With these two bits every float among them, of whatever width and wherever it lies, is
 * finite and normal: their upper exponent bits are 01. */
static void make_bytes(uint8_t *p, size_t n, struct tern_rng *r)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)((tern_rng_u64(r) >> 56 & 0x9F) | 0x20);
}

/* The rows of a matrix in the file's form. */
static int same_source(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME],
                       tern_error *err)
{
    (void)i, (void)name, (void)err;
    *out = *(const struct tern_weight_source *)user;
    return 0;
}

static int fill(struct speed *s, struct weights *t, struct tern_rng *r, tern_error *err)
{
    int rc = 0;
    const struct tern_dev_ops *ops = s->dev->ops;
    const size_t row = (size_t)(s->p->n_in / tern_type_elems(t->type)) * (size_t)tern_type_bytes(t->type);
    const size_t rows = (size_t)s->p->n_out, few = rows < PATTERNS ? rows : PATTERNS;
    uint8_t *file = NULL;
    TERN_TRY(tern_alloc(&file, rows, row, err));
    make_bytes(file, few * row, r);
    for (size_t i = few; i < rows; i++)
        memcpy(file + i * row, file + i % few * row, row);
    const struct tern_weight_source src = {.type = t->type, .name = tern_type_name(t->type), .data = file};
    const struct tern_dev_source from = {same_source, &src};
    TERN_TRY(ops->reserve(s->dev, &t->memory, t->stride * (size_t)t->n_matrices, true, err));
    TERN_TRY(tern_alloc(&t->w, (size_t)t->n_matrices, sizeof *t->w, err));
    TERN_TRY(tern_alloc(&t->seconds, (size_t)s->p->n_rows * (size_t)s->p->reps, sizeof(double), err));
    for (int i = 0; i < t->n_matrices; i++) {
        const size_t at = (size_t)i * t->stride;
        TERN_TRY(ops->weight_plan(s->dev, &t->w[i], &src, s->p->n_out, s->p->n_in, 1, err));
        ops->weight_place(s->dev, &t->w[i], t->memory, at);
        if (i == 0)
            TERN_TRY(ops->weight_load(s->dev, &t->w[0], &from, err));
        else
            ops->copy(s->dev, t->memory, at, t->memory, 0, ops->weight_bytes(&t->w[0]));
    }
    ops->sync(s->dev);
out:
    tern_free(file);
    return rc;
}

/* ---- measuring --------------------------------------------------------------------------------------------------- */

static void multiply(struct speed *s, const struct weights *t, int matrix, int rows)
{
    const struct tern_matmul m = {.w = &t->w[matrix], .y = s->y};
    const struct tern_dev_step step = {.n_rows = rows};
    s->dev->ops->begin(s->dev, &step);
    s->dev->ops->matmul(s->dev, &m, 1, s->x, rows, s->p->prompt ? rows : 0);
    s->dev->ops->end(s->dev);
}

static double time_pass(struct speed *s, const struct weights *t, int rows)
{
    double start = tern_now();
    for (int i = 0; i < t->n_matrices; i++)
        multiply(s, t, i, rows);
    s->dev->ops->sync(s->dev);
    return tern_now() - start;
}

/* Round -1 warms up and is forgotten. */
static int run_round(struct speed *s, int round, tern_error *err)
{
    int rc = 0;
    const tern_weight_speed_params *p = s->p;
    for (int i = 0; i < p->n_types; i++)
        for (int j = 0; j < p->n_rows; j++) {
            double t = time_pass(s, &s->weights[i], p->rows[j]);
            if (round >= 0)
                s->weights[i].seconds[j * p->reps + round] = t;
            TERN_TRY(tern_turns_next(&s->turns, err));
        }
    double speed = tern_reader_speed(s->reader, s->pool);
    if (round >= 0)
        s->read[round] = speed;
out:
    return rc;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Of the last row's outputs, spread over the last matrix. */
static int output_error(struct speed *s, const struct weights *t, int rows, double *out, tern_error *err)
{
    int rc = 0, last = t->n_matrices - 1;
    const struct tern_dev_ops *ops = s->dev->ops;
    const size_t n_in = (size_t)s->p->n_in, n_out = (size_t)s->p->n_out;
    float *row = NULL, *x = NULL, *y = NULL;
    double e2 = 0, o2 = 0;
    TERN_TRY(tern_alloc(&row, n_in, sizeof *row, err));
    TERN_TRY(tern_alloc(&x, n_in, sizeof *x, err));
    TERN_TRY(tern_alloc(&y, n_out, sizeof *y, err));
    multiply(s, t, last, rows);
    tern_dev_rows_out(s->dev, x, s->x, rows - 1, 1);
    tern_dev_rows_out(s->dev, y, s->y, rows - 1, 1);
    for (int i = 0; i < SAMPLES; i++) {
        int n = (int)((int64_t)i * (s->p->n_out - 1) / (SAMPLES - 1));
        double want = 0;
        ops->weight_out(s->dev, row, &t->w[last], 0, n, 1);
        ops->sync(s->dev);
        for (size_t k = 0; k < n_in; k++)
            want += (double)row[k] * (double)x[k];
        double e = (double)y[n] - want;
        e2 += e * e;
        o2 += want * want;
    }
    *out = sqrt(e2 / o2);
out:
    tern_free(row);
    tern_free(x);
    tern_free(y);
    return rc;
}

static int report(struct speed *s, tern_weight_speed *out, tern_read_speed *read, tern_error *err)
{
    int rc = 0, reps = s->p->reps;
    double *x = NULL;
    TERN_TRY(tern_alloc(&x, (size_t)reps, sizeof *x, err));
    for (int i = 0; i < s->p->n_types; i++)
        for (int j = 0; j < s->p->n_rows; j++, out++) {
            const struct weights *t = &s->weights[i];
            const double *seconds = t->seconds + (size_t)j * (size_t)reps;
            *out = (tern_weight_speed){.type = tern_type_name(t->type),
                                       .rows = s->p->rows[j],
                                       .n_matrices = t->n_matrices,
                                       .bytes = (double)t->n_matrices * (double)s->dev->ops->weight_bytes(&t->w[0])};
            TERN_TRY(output_error(s, t, s->p->rows[j], &out->error, err));
            TERN_TRY(tern_spread_of(&out->seconds, seconds, reps, err));
            for (int k = 0; k < reps; k++)
                x[k] = out->bytes / seconds[k] / s->read[k];
            TERN_TRY(tern_spread_of(&out->read_share, x, reps, err));
        }
    read->n_threads = tern_pool_threads(s->pool);
    TERN_TRY(tern_spread_of(&read->bytes_per_second, s->read, reps, err));
out:
    tern_free(x);
    return rc;
}

/* ---- setting up -------------------------------------------------------------------------------------------------- */

static bool multiplied(int type)
{
    struct tern_packed w;
    const struct tern_weight_source src = {.type = type};
    return tern_weight_plan(&w, &src, TERN_PANEL, tern_type_elems(type), NULL) == 0;
}

const char *tern_eval_weight_type(int i)
{
    for (size_t t = 0; t < N_TYPE_IDS; t++)
        if (multiplied(type_ids[t]) && i-- == 0)
            return tern_type_name(type_ids[t]);
    return NULL;
}

static int find_type(const char *name, tern_error *err)
{
    for (size_t t = 0; t < N_TYPE_IDS; t++)
        if (multiplied(type_ids[t]) && strcasecmp(tern_type_name(type_ids[t]), name) == 0)
            return type_ids[t];
    return tern_err_set(err, TERN_EINVAL, "unknown weight type \"%.40s\"", name);
}

static int check(struct speed *s, tern_error *err)
{
    int rc = 0;
    const tern_weight_speed_params *p = s->p;
    TERN_TRY(tern_speed_range("types", p->n_types, 1, MAX_TYPES, err));
    TERN_TRY(tern_speed_range("numbers of rows", p->n_rows, 1, MAX_SIZES, err));
    TERN_TRY(tern_speed_range("outputs", p->n_out, TERN_PANEL, MAX_DIM, err));
    TERN_TRY(tern_speed_range("inputs", p->n_in, 1, MAX_DIM, err));
    TERN_TRY(tern_speed_range("threads", p->n_threads, 0, TERN_SPEED_MAX_THREADS, err));
    TERN_TRY(tern_speed_range("rounds", p->reps, 1, TERN_SPEED_MAX_REPS, err));
    for (int i = 0; i < p->n_rows; i++) {
        TERN_TRY(tern_speed_range("rows", p->rows[i], 1, MAX_ROWS, err));
        s->max_rows = p->rows[i] > s->max_rows ? p->rows[i] : s->max_rows;
    }
    if (p->n_out % TERN_PANEL)
        TERN_FAIL(err, TERN_EINVAL, "%d outputs are not a multiple of %d", p->n_out, TERN_PANEL);
out:
    return rc;
}

static int plan_types(struct speed *s, tern_error *err)
{
    int rc = 0;
    const tern_weight_speed_params *p = s->p;
    double bytes = (double)p->read_bytes;
    char what[64];
    TERN_TRY(tern_alloc(&s->weights, (size_t)p->n_types, sizeof *s->weights, err));
    for (int i = 0; i < p->n_types; i++) {
        struct weights *t = &s->weights[i];
        TERN_TRY(t->type = find_type(p->types[i], err));
        const struct tern_weight_source src = {.type = t->type};
        struct tern_dev_weight w;
        TERN_TRY(s->dev->ops->weight_plan(s->dev, &w, &src, p->n_out, p->n_in, 1, err));
        t->stride = tern_round_up(s->dev->ops->weight_bytes(&w), TERN_ALIGN);
        s->dev->ops->weight_drop(s->dev, &w);
        double n = ceil((double)p->bytes / (double)t->stride);
        t->n_matrices = n < 1 ? 1 : n < INT32_MAX ? (int)n : INT32_MAX;
        bytes += (double)t->n_matrices * (double)t->stride;
    }
    (void)snprintf(what, sizeof what, "the weights of %d types", p->n_types);
    TERN_TRY(tern_speed_fits(what, bytes, err));
out:
    return rc;
}

static int take_memory(struct speed *s, tern_error *err)
{
    int rc = 0;
    const tern_weight_speed_params *p = s->p;
    struct tern_rng r = {.state = 1};
    struct tern_dev_limits limits = {
        .max_rows = s->max_rows, .max_k = p->n_in, .exact = !p->prompt, .prompt8 = p->prompt && p->prompt8};
    float *x = NULL;
    TERN_TRY(s->dev->ops->prepare(s->dev, &limits, err));
    TERN_TRY(tern_dev_rows_new(s->dev, &s->x, s->max_rows, p->n_in, err));
    TERN_TRY(tern_dev_rows_new(s->dev, &s->y, s->max_rows, p->n_out, err));
    TERN_TRY(tern_alloc(&x, (size_t)s->max_rows, s->x.stride * sizeof *x, err));
    for (size_t i = 0; i < (size_t)s->max_rows * s->x.stride; i++)
        x[i] = tern_speed_gauss(&r);
    s->dev->ops->copy_in(s->dev, s->x.mem, 0, x, (size_t)s->max_rows * s->x.stride * sizeof *x);
    TERN_TRY(tern_alloc(&s->read, (size_t)p->reps, sizeof(double), err));
    TERN_TRY(tern_reader_new(&s->reader, p->read_bytes, err));
    for (int i = 0; i < p->n_types; i++) {
        TERN_TRY(fill(s, &s->weights[i], &r, err));
        TERN_TRY(tern_turns_next(&s->turns, err));
    }
out:
    tern_free(x);
    return rc;
}

static void clear(struct speed *s)
{
    for (int i = 0; s->weights && i < s->p->n_types; i++) {
        struct weights *t = &s->weights[i];
        for (int j = 0; t->w && j < t->n_matrices; j++)
            s->dev->ops->weight_drop(s->dev, &t->w[j]);
        s->dev->ops->release(s->dev, t->memory);
        tern_free(t->w);
        tern_free(t->seconds);
    }
    tern_free(s->weights);
    if (s->dev) {
        s->dev->ops->release(s->dev, s->x.mem);
        s->dev->ops->release(s->dev, s->y.mem);
    }
    tern_free(s->read);
    tern_reader_free(s->reader);
    tern_dev_close(s->dev);
    tern_pool_free(s->pool);
}

int tern_eval_weight_speed(tern_weight_speed *out, tern_read_speed *read, const tern_weight_speed_params *p,
                           tern_error *err)
{
    int rc = 0;
    struct speed s = {.p = p, .turns = {.progress = p->progress, .user = p->user}};
    TERN_TRY(check(&s, err));
    s.turns.total = p->n_types * (1 + p->n_rows * (p->reps + 1));
    TERN_TRY(tern_pool_new(&s.pool, p->n_threads ? p->n_threads : tern_cpu_cores(), 1, err));
    TERN_TRY(tern_dev_host()->open(&s.dev, tern_dev_host(), s.pool, err));
    TERN_TRY(plan_types(&s, err));
    TERN_TRY(take_memory(&s, err));
    for (int round = -1; round < p->reps; round++)
        TERN_TRY(run_round(&s, round, err));
    rc = report(&s, out, read, err);
out:
    clear(&s);
    return rc;
}

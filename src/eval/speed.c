#include "eval/speed.h"

#include <math.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "eval/stats.h"
#include "run/run.h"

/* ---- reading alone ----------------------------------------------------------------------------------------------- */

#define READ_BYTES   ((size_t)256 << 20) /* above what most caches hold */
#define READ_TASKS   4                   /* of each thread, so that one that wakes up late costs little */
#define READ_TRIES   3                   /* of each pattern, to choose one */
#define DEVICE_TIMES 4                   /* as much there: it reads faster, and beginning takes as long */
#define READ_UNIT    256                 /* tern_mem_read reads that many bytes at a time */

struct tern_reader {
    uint8_t *p;
    size_t bytes;
    uint8_t chosen[TERN_SPEED_MAX_THREADS + 1]; /* by threads: pattern + 1; 0: not tried */
};

int tern_reader_new(tern_reader **out, size_t bytes, tern_error *err)
{
    int rc = 0;
    tern_reader *r = NULL;
    *out = NULL;
    bytes = bytes ? bytes : READ_BYTES;
    if (bytes < (size_t)TERN_SPEED_MAX_THREADS * READ_TASKS * READ_UNIT)
        TERN_FAIL(err, TERN_EINVAL, "%zu bytes are too few to measure reading", bytes);
    TERN_TRY(tern_speed_fits("the bytes that reading is measured on", (double)bytes, err));
    TERN_TRY(tern_alloc(&r, 1, sizeof *r, err));
    TERN_TRY(tern_reserve(&r->p, bytes, err));
    r->bytes = bytes;
    memset(r->p, 1, bytes); /* untouched pages would all be the one page of zeros */
    *out = r;
    r = NULL;
out:
    tern_reader_free(r);
    return rc;
}

void tern_reader_free(tern_reader *r)
{
    if (!r)
        return;
    tern_release(r->p, r->bytes);
    tern_free(r);
}

struct read_work {
    const uint8_t *p;
    size_t part;
    int pattern;
};

static void read_task(void *ctx, int task, int worker)
{
    const struct read_work *w = ctx;
    (void)worker;
    (void)tern_mem_read(w->p + (size_t)task * w->part, w->part, w->pattern);
}

static double pass(const tern_reader *r, struct tern_pool *pool, int pattern)
{
    int tasks = tern_pool_threads(pool) * READ_TASKS;
    struct read_work w = {r->p, r->bytes / (size_t)tasks / READ_UNIT * READ_UNIT, pattern};
    double start = tern_now();
    tern_pool_run(pool, read_task, &w, tasks);
    return (double)w.part * tasks / (tern_now() - start);
}

/* By medians of passes in turn: the best single one would be luck. */
static int best_pattern(const tern_reader *r, struct tern_pool *pool)
{
    double speed[TERN_READ_PATTERNS][READ_TRIES], best = -1;
    int chosen = 0;
    for (int i = 0; i < READ_TRIES; i++)
        for (int p = 0; p < TERN_READ_PATTERNS; p++)
            speed[p][i] = pass(r, pool, p);
    for (int p = 0; p < TERN_READ_PATTERNS; p++) {
        tern_spread s;
        if (tern_spread_of(&s, speed[p], READ_TRIES, NULL) == 0 && s.median > best) {
            best = s.median;
            chosen = p;
        }
    }
    return chosen;
}

double tern_reader_speed(tern_reader *r, struct tern_pool *pool)
{
    const int threads = tern_pool_threads(pool);
    if (threads > TERN_SPEED_MAX_THREADS)
        return pass(r, pool, 0);
    if (!r->chosen[threads])
        r->chosen[threads] = (uint8_t)(best_pattern(r, pool) + 1);
    return pass(r, pool, r->chosen[threads] - 1);
}

/* A device with memory of its own reads there what it has taken for this; one of several kinds of memory, nothing. */
static double device_pass(const tern_reader *r, struct tern_dev *d)
{
    struct tern_dev_mem *m;
    if (!d->ops->read || d->ops->reserve(d, &m, DEVICE_TIMES * r->bytes, false, NULL) < 0)
        return 0;
    const double speed = d->ops->read(d, m);
    d->ops->release(d, m);
    return speed;
}

double tern_reader_pass(tern_reader *r, tern_engine *e)
{
    return e->dev->ops->limit ? device_pass(r, e->dev) : tern_reader_speed(r, e->pool);
}

/* ---- turns ------------------------------------------------------------------------------------------------------- */

int tern_turns_next(struct tern_turns *t, tern_error *err)
{
    t->done++;
    if (t->progress && t->progress(t->user, t->done, t->total))
        return tern_err_set(err, TERN_ECANCELLED, "cancelled after %d of %d steps", t->done, t->total);
    return 0;
}

float tern_speed_gauss(struct tern_rng *r)
{
    double u = 1.0 - tern_rng_f64(r), v = tern_rng_f64(r);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

int tern_spread_of(tern_spread *out, const double *x, int n, tern_error *err)
{
    struct tern_series s = {0};
    int rc = tern_series_init(&s, x, 1, (size_t)n, err);
    if (rc == 0)
        *out = (tern_spread){tern_series_quantile(&s, .5), tern_series_quantile(&s, 0), tern_series_quantile(&s, 1)};
    tern_series_clear(&s);
    return rc;
}

/* ---- what is asked for ------------------------------------------------------------------------------------------- */

int tern_speed_range(const char *what, int value, int min, int max, tern_error *err)
{
    if (value >= min && value <= max)
        return 0;
    return tern_err_set(err, TERN_EINVAL, "%s = %d is outside %d..%d", what, value, min, max);
}

int tern_speed_fits(const char *what, double bytes, tern_error *err)
{
    tern_machine machine;
    tern_machine_describe(&machine);
    if (!machine.memory_bytes || bytes <= (double)machine.memory_bytes)
        return 0;
    return tern_err_set(err, TERN_ELIMIT, "%s take %.1f GiB and the machine has %.1f GiB", what, bytes / 0x1p30,
                        (double)machine.memory_bytes / 0x1p30);
}

/* ---- bytes of a step --------------------------------------------------------------------------------------------- */

double tern_speed_layer_bytes(const struct tern_kv_layer *l, int ctx)
{
    int own = (ctx - 1) / TERN_PAGE, from = tern_kv_oldest(l->reach, ctx - 1) / TERN_PAGE;
    int pages = own - l->recent + 1 - from;
    pages = pages > 0 ? pages : 0;
    double raw = (l->k.raw32 ? 4.0 : 2.0) * l->k.dim + (l->v.raw32 ? 4.0 : 2.0) * l->v.dim;
    return l->n_heads * ((double)pages * (double)l->head_bytes + (ctx - (from + pages) * TERN_PAGE) * raw +
                         (pages && (!from || l->reach.first) ? (double)l->sink_bytes : 0));
}

void tern_eval_step_bytes(const tern_engine *e, int plan, int ctx, int rows, tern_step_bytes *out)
{
    const struct tern_kv_layout *l = e->plans[plan]->layout;
    *out = (tern_step_bytes){.weights = (double)tern_net_step_bytes(e->model->net, rows)};
    for (int i = 0; i < l->n_layers; i++)
        out->kv += rows * (l->group_of[i] < 0 ? (double)tern_kv_layer_state(l, i)
                                              : tern_speed_layer_bytes(&l->layers[i], ctx));
}

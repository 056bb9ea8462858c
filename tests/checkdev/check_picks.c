/* What picking tokens takes: rows of logits fetched and looked at by the host, or the best of them alone.  Checks that
 * both pick the same. */
#include <time.h>
#include "checkdev.h"
#include "run/sampler.h"

enum { VOCAB = 151936, REPS = 9 };

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *t)
{
    qsort(t, REPS, sizeof *t, by_size);
    return t[REPS / 2] * 1e6;
}

struct picks {
    struct tern_dev_rows x;
    struct tern_dev_vec out;
    float *logits, *best; /* the host's */
    int n_rows, n;        /* of the best */
};

static void fetch(struct tern_dev *d, const struct picks *p, bool all)
{
    const size_t answers = (size_t)p->n_rows * (size_t)p->n;
    const struct tern_best b = {p->x, p->n, p->out, {p->out.mem, answers}};
    const struct tern_dev_step step = {.n_rows = p->n_rows};
    d->ops->begin(d, &step);
    if (!all)
        d->ops->best(d, &b, p->n_rows);
    d->ops->end(d);
    if (all)
        tern_dev_rows_out(d, p->logits, p->x, 0, p->n_rows);
    else
        d->ops->copy_out(d, p->best, p->out.mem, 0, 2 * answers * sizeof *p->best);
    d->ops->sync(d);
}

static double fetching(struct tern_dev *d, const struct picks *p, bool all)
{
    double t[REPS];
    for (int r = -2; r < REPS; r++) {
        const double start = now();
        fetch(d, p, all);
        if (r >= 0)
            t[r] = now() - start;
    }
    return median(t);
}

/* Of one row, by one thread; ids[n_rows] of the last time. */
static double picking(const struct picks *p, bool all, int32_t *ids)
{
    const tern_sampler_params sp = {
        .temperature = p->n > 1 ? 0.6f : 0, .top_k = p->n, .top_p = 0.95f, .repetition_penalty = 1, .seed = 7};
    const size_t answers = (size_t)p->n_rows * (size_t)p->n;
    double t[REPS];
    tern_error err;
    for (int rep = 0; rep < REPS; rep++) {
        tern_sampler *s;
        if (tern_sampler_new(&s, VOCAB, &sp, &err) < 0)
            exit(1);
        const double start = now();
        for (size_t r = 0; r < (size_t)p->n_rows; r++) {
            const float *best = p->best + r * (size_t)p->n;
            ids[r] = all ? tern_sampler_pick(s, p->logits + r * VOCAB)
                         : tern_sampler_pick_best(s, best, (const int32_t *)(const void *)(best + answers), p->n);
        }
        t[rep] = (now() - start) / p->n_rows;
        tern_sampler_free(s);
    }
    return median(t);
}

static void one(struct checkdev *c, int n_rows, int n)
{
    struct tern_dev *d = c->d[OTHER];
    struct picks p = {.n_rows = n_rows, .n = n};
    tern_error err;
    char about[200];
    const size_t all = (size_t)n_rows * VOCAB, numbers = 2 * (size_t)n_rows * (size_t)n;
    int32_t *ids[2] = {checkdev_get((size_t)n_rows, sizeof **ids), checkdev_get((size_t)n_rows, sizeof **ids)};
    p.logits = checkdev_get(all, sizeof *p.logits);
    p.best = checkdev_get(numbers, sizeof *p.best);
    if (tern_dev_rows_new(d, &p.x, n_rows, VOCAB, &err) < 0 ||
        d->ops->reserve(d, &p.out.mem, numbers * sizeof(float), false, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    for (size_t i = 0; i < all; i++) /* a bell, as wide as those of models */
        p.logits[i] = 3 * (checkdev_noise(c) + checkdev_noise(c) + checkdev_noise(c) + checkdev_noise(c));
    d->ops->copy_in(d, p.x.mem, 0, p.logits, all * sizeof *p.logits);
    d->ops->sync(d);
    const double fetch_all = fetching(d, &p, true), pick_all = picking(&p, true, ids[0]);
    const double fetch_best = fetching(d, &p, false), pick_best = picking(&p, false, ids[1]);
    printf("picks %4d rows of %d: logits %9.1f us (%6.1f MB) and %6.2f us a row; the best %2d %8.1f us (%5.1f kB) and "
           "%5.2f us a row\n",
           n_rows, VOCAB, fetch_all, (double)all * 4e-6, pick_all, n, fetch_best, (double)numbers * 4e-3, pick_best);
    int differ = 0;
    for (int r = 0; r < n_rows; r++)
        differ += ids[0][r] != ids[1][r];
    (void)snprintf(about, sizeof about, "%d rows, the best %d", n_rows, n);
    checkdev_line(c, "picks", about, differ, 0);
    d->ops->release(d, p.x.mem);
    d->ops->release(d, p.out.mem);
    tern_free(p.logits);
    tern_free(p.best);
    tern_free(ids[0]);
    tern_free(ids[1]);
}

void check_picks(struct checkdev *c)
{
    static const int counts[] = {1, 16, 64, 256}, most[] = {1, 32, 64};
    const struct tern_dev_limits l = {.max_rows = 256, .max_narrow = 64, .max_k = 64, .max_best = VOCAB};
    if (!c->filter || !strstr(c->filter, "picks"))
        return;
    checkdev_prepare(c, &l);
    for (int r = 0; r < 4; r++)
        for (int n = 0; n < 3; n++)
            one(c, counts[r], most[n]);
}

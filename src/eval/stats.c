#include "eval/stats.h"

#include <math.h>
#include <stdlib.h>
#include "base/mem.h"
#include "base/rng.h"

#define RESAMPLES 2000
#define SEED      0x6B6C64u

static int largest_first(const void *a, const void *b)
{
    double x = ((const struct tern_ranked *)a)->x, y = ((const struct tern_ranked *)b)->x;
    return x > y ? -1 : x < y;
}

int tern_series_init(struct tern_series *s, const double *x, size_t n_runs, size_t run_length, tern_error *err)
{
    int rc = 0;
    size_t per_run = (run_length + TERN_BLOCK - 1) / TERN_BLOCK;
    *s = (struct tern_series){.n = n_runs * run_length, .n_blocks = n_runs * per_run};
    if (s->n_blocks > UINT32_MAX)
        TERN_FAIL(err, TERN_ELIMIT, "a series of %zu values is too long", s->n);
    TERN_TRY(tern_alloc(&s->ranked, s->n, sizeof *s->ranked, err));
    TERN_TRY(tern_alloc(&s->block_sum, s->n_blocks, sizeof *s->block_sum, err));
    TERN_TRY(tern_alloc(&s->block_n, s->n_blocks, sizeof *s->block_n, err));
    for (size_t i = 0; i < s->n; i++) {
        size_t block = i / run_length * per_run + i % run_length / TERN_BLOCK;
        s->ranked[i] = (struct tern_ranked){x[i], (uint32_t)block};
        s->block_sum[block] += x[i];
        s->block_n[block]++;
        s->sum += x[i];
    }
    qsort(s->ranked, s->n, sizeof *s->ranked, largest_first);
    return 0;
out:
    tern_series_clear(s);
    return rc;
}

void tern_series_clear(struct tern_series *s)
{
    tern_free(s->ranked);
    tern_free(s->block_sum);
    tern_free(s->block_n);
    *s = (struct tern_series){0};
}

double tern_series_mean(const struct tern_series *s)
{
    return s->sum / (double)s->n;
}

/* How many of n values the trimmed mean leaves out: at least one once there are two. */
static size_t n_trimmed(size_t n)
{
    return n > 1 ? n - n * 99 / 100 : 0;
}

double tern_series_trimmed(const struct tern_series *s)
{
    double sum = 0;
    size_t from = n_trimmed(s->n);
    for (size_t i = s->n; i > from; i--)
        sum += s->ranked[i - 1].x;
    return sum / (double)(s->n - from);
}

double tern_series_quantile(const struct tern_series *s, double q)
{
    double at = q * (double)(s->n - 1);
    size_t i = (size_t)at, last = s->n - 1;
    double low = s->ranked[last - i].x, high = s->ranked[i < last ? last - i - 1 : 0].x;
    return low + (high - low) * (at - (double)i);
}

/* ---- bootstrap --------------------------------------------------------------------------------------------------- */

/* Mean and trimmed mean of the series in which block i occurs times[i] times.  The values that the trimmed mean leaves
 * out stand in front of the ranking, so that no resample needs sorting. */
static void resampled(const struct tern_series *s, const uint32_t *times, double *mean, double *trimmed)
{
    double sum = 0, worst = 0;
    size_t n = 0;
    for (size_t b = 0; b < s->n_blocks; b++) {
        sum += times[b] * s->block_sum[b];
        n += (size_t)times[b] * s->block_n[b];
    }
    size_t drop = n_trimmed(n), left = drop;
    for (size_t i = 0; left; i++) {
        size_t k = times[s->ranked[i].block];
        k = k < left ? k : left;
        worst += (double)k * s->ranked[i].x;
        left -= k;
    }
    *mean = sum / (double)n;
    *trimmed = (sum - worst) / (double)(n - drop);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double quotient(double a, double b)
{
    return b > 0 ? a / b : (double)NAN;
}

/* The middle 95 % of the resampled ratios; none when a resample has no ratio. */
static void interval(tern_kld_ratio *r, double *ratios)
{
    r->low = r->high = (double)NAN;
    for (int i = 0; i < RESAMPLES; i++)
        if (isnan(ratios[i]))
            return;
    qsort(ratios, RESAMPLES, sizeof *ratios, ascending);
    r->low = ratios[RESAMPLES / 40];
    r->high = ratios[RESAMPLES - 1 - RESAMPLES / 40];
}

int tern_series_compare(const struct tern_series *a, const struct tern_series *b, tern_kld_ratio *mean,
                        tern_kld_ratio *trimmed, tern_error *err)
{
    int rc = 0;
    struct tern_rng rng = {.state = SEED};
    uint32_t *times = NULL;
    double *ratios = NULL;
    TERN_ASSERT(a->n == b->n && a->n_blocks == b->n_blocks);
    TERN_TRY(tern_alloc(&times, a->n_blocks, sizeof *times, err));
    TERN_TRY(tern_alloc(&ratios, (size_t)2 * RESAMPLES, sizeof *ratios, err));
    for (int r = 0; r < RESAMPLES; r++) {
        double ma, ta, mb, tb;
        for (size_t i = 0; i < a->n_blocks; i++)
            times[i] = 0;
        for (size_t i = 0; i < a->n_blocks; i++)
            times[tern_rng_u64(&rng) % a->n_blocks]++;
        resampled(a, times, &ma, &ta);
        resampled(b, times, &mb, &tb);
        ratios[r] = quotient(ma, mb);
        ratios[RESAMPLES + r] = quotient(ta, tb);
    }
    mean->value = quotient(tern_series_mean(a), tern_series_mean(b));
    trimmed->value = quotient(tern_series_trimmed(a), tern_series_trimmed(b));
    interval(mean, ratios);
    interval(trimmed, ratios + RESAMPLES);
out:
    tern_free(times);
    tern_free(ratios);
    return rc;
}

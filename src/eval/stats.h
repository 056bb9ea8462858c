/* eval/stats.h - figures of one series of measured values, and the ratio of two series that were measured together. */
#ifndef TERN_EVAL_STATS_H
#define TERN_EVAL_STATS_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "tern/eval.h"

/* Neighbouring values depend on each other, so a block of this many is drawn as one. */
#define TERN_BLOCK 64

/* n_runs stretches of run_length consecutive values; no block spans two stretches. */
struct tern_series {
    size_t n;
    double sum; /* in order */
    struct tern_ranked {
        double x;
        uint32_t block;
    } * ranked; /* [n], largest first */
    size_t n_blocks;
    double *block_sum; /* [n_blocks] */
    uint32_t *block_n;
};

/* n_runs and run_length >= 1; values are finite. */
int tern_series_init(struct tern_series *s, const double *x, size_t n_runs, size_t run_length, tern_error *err);
void tern_series_clear(struct tern_series *s);

double tern_series_mean(const struct tern_series *s);
double tern_series_trimmed(const struct tern_series *s); /* without the largest 1 % */
/* Linear between neighbouring values: q = 0 the smallest, 1 the largest. */
double tern_series_quantile(const struct tern_series *s, double q);

/* Both series of the same shape. */
int tern_series_compare(const struct tern_series *a, const struct tern_series *b, tern_kld_ratio *mean,
                        tern_kld_ratio *trimmed, tern_error *err);

#endif

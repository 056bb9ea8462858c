/* run/sampler.h - picking among fewer tokens than the vocabulary has. */
#ifndef TERN_RUN_SAMPLER_H
#define TERN_RUN_SAMPLER_H

#include "run/run.h"

struct tern_choice_limits {
    const uint32_t *mask; /* [n_vocab / 32, rounded up] bit i % 32 of word i / 32: id i may be picked; NULL: all may */
    const int32_t *never; /* n_never ids that may not, all of the vocabulary */
    int n_never;
};

/* tern_sampler_pick among those that limits (nullable) allow.  Where they allow none that has a finite logit the result
 * is one that they forbid, or whose logit is not finite: the caller looks. */
int32_t tern_sampler_pick_within(tern_sampler *s, const float *logits, const struct tern_choice_limits *limits);

/* How many of a row's largest logits are enough to pick from, with no limits; 0: all of them count. */
int tern_sampler_enough(const tern_sampler *s);
/* tern_sampler_pick, the same token and the same draws, out of those that struct tern_best finds, as many or more. */
int32_t tern_sampler_pick_best(tern_sampler *s, const float *best, const int32_t *ids, int n);

/* A list of a request that says how long it is and is not there: TERN_EINVAL. */
int tern_list_check(const char *name, const void *list, int n, tern_error *err);

#endif

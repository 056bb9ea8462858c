/* tern/profile.h - where the time of an engine's steps goes.
 *
 * Each operation of the device is timed one by one, with what it had to read and to multiply.  Results are what they
 * are without it. */
#ifndef TERN_PROFILE_H
#define TERN_PROFILE_H

#include "tern/eval.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_profile tern_profile;

/* Steps of e are timed from now on, until stop; the caller owns the engine's thread.  One at a time for an engine,
 * which must not be closed before.  TERN_EUNSUPPORTED on a device that queues its operations (CUDA). */
TERN_API int tern_profile_start(tern_profile **out, tern_engine *e, tern_error *err);
TERN_API void tern_profile_stop(tern_profile *p); /* again: nothing */
TERN_API void tern_profile_free(tern_profile *p); /* stops it; NULL is legal */

/* What the machine could do, by measurement: the larger of the two times that it would need is an operation's limit. */
typedef struct tern_profile_limits {
    double bytes_per_second;                 /* reading memory alone: the best of three passes */
    double decode_products, prompt_products; /* multiply-adds per second on weights of 4 bits that lie in a cache */
} tern_profile_limits;
/* With the threads of e; 0.2 s or so.  Products of prompts are those of e's class, of exact engines those of the
 * machine's own. */
TERN_API int tern_profile_measure(tern_profile_limits *out, tern_reader *r, tern_engine *e, tern_error *err);

typedef struct tern_profile_line {
    const char *operation, *what; /* of the device, and on which operands ("" where all are alike); the profile's */
    int64_t calls;
    double seconds;
    /* Weights and caches that it had to read, of experts the most that rows can choose; multiply-adds.  0: not counted,
     * because neither is what the operation spends its time with. */
    double bytes, products;
    double limit_seconds; /* 0: none */
    bool by_products;     /* products take longer than reading there */
} tern_profile_line;

/* Line i in descending order of time, after stop; false behind the last. */
TERN_API bool tern_profile_at(const tern_profile *p, int i, const tern_profile_limits *limits, tern_profile_line *out);
/* Steps, and their time on the device from the first operation to the last, which is more than the lines' sum by what
 * lies between operations. */
TERN_API void tern_profile_total(const tern_profile *p, int64_t *n_steps, double *seconds);

#ifdef __cplusplus
}
#endif
#endif

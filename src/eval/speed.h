/* eval/speed.h - what the measurements of speed share: reading memory for comparison, turns, spreads. */
#ifndef TERN_EVAL_SPEED_H
#define TERN_EVAL_SPEED_H

#include "base/err.h"
#include "base/pool.h"
#include "base/rng.h"
#include "codec/codec.h"
#include "tern/eval.h"

#define TERN_SPEED_MAX_REPS    100000
#define TERN_SPEED_MAX_THREADS 256

/* Bytes per second of one pass over the reader's memory by the threads of the pool, in the pattern that suits so many
 * threads best: the first call tries all. */
double tern_reader_speed(tern_reader *r, struct tern_pool *pool);

/* What is left to do, for the caller's progress. */
struct tern_turns {
    tern_progress_fn *progress;
    void *user;
    int done, total;
};
/* One more is done; TERN_ECANCELLED when the caller wants to stop. */
int tern_turns_next(struct tern_turns *t, tern_error *err);

/* Normally distributed, variance 1. */
float tern_speed_gauss(struct tern_rng *r);

/* TERN_EINVAL naming `what` unless min <= value <= max. */
int tern_speed_range(const char *what, int value, int min, int max, tern_error *err);

/* TERN_ELIMIT when `bytes` are more than the machine's memory: "WHAT take ... and the machine has ...". */
int tern_speed_fits(const char *what, double bytes, tern_error *err);

/* Bytes that a decode row reads in one layer when it is the last of ctx tokens: closed pages, raw tokens, raw first
 * tokens. */
double tern_speed_layer_bytes(const struct tern_kv_layer *l, int ctx);

#endif

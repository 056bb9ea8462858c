/* base/pool.h - a fork-join thread pool: workers spin briefly, then sleep on a futex.
 *
 * One thread owns the pool and calls tern_pool_run; it works too.  A run hands out task numbers 0..n_tasks-1 through
 * one atomic counter, so idle workers take what is left; which worker runs a task must never change its result. Workers
 * spin for about 100 us after a run (a decode step's kernels follow each other faster than a futex wakes) and then
 * sleep.
 *
 * Memory order: everything the owner wrote before tern_pool_run is visible to every task; everything the tasks wrote is
 * visible to the owner after it returns. */
#ifndef TERN_BASE_POOL_H
#define TERN_BASE_POOL_H

#include "base/err.h"

struct tern_pool;

/* ctx as given to run; task in [0, n_tasks); worker in [0, n_threads): index of the calling thread, for scratch. */
typedef void tern_pool_fn(void *ctx, int task, int worker);

/* n_threads >= 1 including the owner.  Workers are pinned to distinct cores of the affinity mask when it has that many
 * and `pin` is set; the owner keeps its own affinity.  *out NULL on failure. */
int tern_pool_new(struct tern_pool **out, int n_threads, int pin, tern_error *err);
void tern_pool_free(struct tern_pool *p); /* joins the workers; NULL is legal */
int tern_pool_threads(const struct tern_pool *p);

/* Runs fn(ctx, t, worker) for every t in [0, n_tasks) and returns when all are done.  n_tasks 0 is legal. */
void tern_pool_run(struct tern_pool *p, tern_pool_fn *fn, void *ctx, int n_tasks);

#endif

/* dev/made.h - devices made of others. */
#ifndef TERN_DEV_MADE_H
#define TERN_DEV_MADE_H

#include "base/err.h"

struct tern_dev_ops;

/* A device out of two, which must outlive it: `first`, in the host's memory, computes layers before `cut`, `second` the
 * others and what stands before and behind them; each keeps the weights and the caches of what it computes.  Not for
 * layers that read from one before the cut anything but the stream.  Freed when nothing of it is open. */
int tern_dev_split_new(const struct tern_dev_ops **out, const struct tern_dev_ops *first,
                       const struct tern_dev_ops *second, int cut, tern_error *err);
void tern_dev_split_free(const struct tern_dev_ops *ops); /* NULL is legal */

/* A device out of n (2..TERN_DEV_CARDS) of one kind, which must outlive it: each has some of the outputs of every
 * matrix, of every expert too, and some of the KV heads of every layer, or of the query heads of latents; states of
 * recurrent layers and layers of one KV head are alike on all.  Results are, bit for bit, those of one of them.  Freed
 * when nothing of it is open. */
int tern_dev_parallel_new(const struct tern_dev_ops **out, const struct tern_dev_ops *const *of, int n,
                          tern_error *err);
void tern_dev_parallel_free(const struct tern_dev_ops *ops); /* NULL is legal */

#endif

/* dev/parallel/each.h - short words for the files of operations, where `s` is the device and `i` one of those that it
 * is made of. */
#ifndef TERN_DEV_PARALLEL_EACH_H
#define TERN_DEV_PARALLEL_EACH_H

#include "dev/parallel/parallel.h"

#define EACH    for (int i = 0; i < s->n; i++)
#define D       s->d[i]
#define ROWS(r) tern_parallel_rows(r, i)
#define VEC(v)  tern_parallel_vec(s, v, i)

#endif

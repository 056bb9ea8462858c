/* dev/handle.h - what the host holds of a device: handles, into which operations alone look.
 *
 * The host knows where something lies (which memory, at which place, how wide) and never what it holds: that comes with
 * copy_out and counts after sync. */
#ifndef TERN_DEV_HANDLE_H
#define TERN_DEV_HANDLE_H

#include <stddef.h>
#include <stdint.h>
#include "base/block.h"

struct tern_dev;
struct tern_dev_mem; /* a piece of device memory */

/* A matrix of f32: row r is `width` floats from float at + r * stride on.  at and stride are multiples of 16, but for
 * columns of a wider matrix where an operation says so. */
struct tern_dev_rows {
    struct tern_dev_mem *mem;
    size_t at, stride;
    int width;
};

/* The columns [from, from + width). */
static inline struct tern_dev_rows tern_dev_columns(struct tern_dev_rows r, int from, int width)
{
    return (struct tern_dev_rows){r.mem, r.at + (size_t)from, r.stride, width};
}

/* Numbers one after the other, f32 unless int32 is said, from number `at` on.  mem NULL: there are none. */
struct tern_dev_vec {
    struct tern_dev_mem *mem;
    size_t at;
};

/* A stack of matrices [n, k] in the device's own form.  form NULL: there is no such weight. */
struct tern_dev_form;
struct tern_dev_weight {
    struct tern_dev_form *form;
    int n, k;
    int stack; /* matrices, one after the other; 1: no stack */
};

/* Memory of a device's own, of which all its tern_dev in this process take. */
struct tern_dev_held {
    size_t limit, used; /* bytes that they may take together; that they have taken */
    size_t piece;       /* lazy memory is taken in pieces of at most this size */
};

/* Blocks of one size in one memory, known by number: block i is the bytes from i * bytes on. */
struct tern_dev_blocks {
    struct tern_dev_mem *mem;
    size_t bytes; /* of one block, a multiple of 64 */
};

#endif

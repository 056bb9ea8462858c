/* base/npy.h - writes a float32 matrix as NumPy .npy (format 1.0), row by row, under a temporary name until finished.
 */
#ifndef TERN_BASE_NPY_H
#define TERN_BASE_NPY_H

#include <stddef.h>
#include "base/err.h"

struct tern_npy;

int tern_npy_create(struct tern_npy **out, const char *path, size_t n_rows, size_t n_cols, tern_error *err);
/* Appends whole rows. */
int tern_npy_write(struct tern_npy *f, const float *rows, size_t n_rows, tern_error *err);
/* Checks that all rows came, flushes and renames into place.  Frees f in any case. */
int tern_npy_finish(struct tern_npy *f, tern_error *err);
/* Drops an unfinished file; NULL is legal. */
void tern_npy_abort(struct tern_npy *f);

#endif

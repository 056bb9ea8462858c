#include "base/npy.h"

#include <stdio.h>
#include <string.h>
#include "base/mem.h"
#include "base/outfile.h"

static const struct tern_outfile_kind npy_kind = {"a NumPy array", "\x93NUMPY", 6, true, false};

struct tern_npy {
    struct tern_outfile file;
    size_t n_rows, n_cols, done;
    char path[4096];
};

int tern_npy_create(struct tern_npy **out, const char *path, size_t n_rows, size_t n_cols, tern_error *err)
{
    int rc = 0;
    struct tern_npy *f = NULL;
    char head[128];
    *out = NULL;
    TERN_TRY(tern_alloc(&f, 1, sizeof *f, err));
    f->n_rows = n_rows;
    f->n_cols = n_cols;
    if (snprintf(f->path, sizeof f->path, "%s", path) >= (int)sizeof f->path)
        TERN_FAIL(err, TERN_EINVAL, "path is longer than %zu bytes", sizeof f->path - 1);
    TERN_TRY(tern_outfile_open(&f->file, f->path, 0644, &npy_kind, err));
    /* Magic, version 1.0, header length, then a Python literal padded with spaces so that data begin at byte 128. */
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    int n = snprintf(head + 10, sizeof head - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }",
                     n_rows, n_cols);
    head[10 + n] = ' ';
    head[sizeof head - 1] = '\n';
    TERN_TRY(tern_outfile_write(&f->file, head, sizeof head, err));
    *out = f;
    f = NULL;
out:
    tern_npy_abort(f);
    return rc;
}

int tern_npy_write(struct tern_npy *f, const float *rows, size_t n_rows, tern_error *err)
{
    TERN_ASSERT(n_rows <= f->n_rows - f->done);
    int rc = tern_outfile_write(&f->file, rows, n_rows * f->n_cols * sizeof *rows, err);
    if (rc == 0)
        f->done += n_rows;
    return rc;
}

int tern_npy_finish(struct tern_npy *f, tern_error *err)
{
    TERN_ASSERT(f->done == f->n_rows);
    int rc = tern_outfile_commit(&f->file, err);
    tern_npy_abort(f);
    return rc;
}

void tern_npy_abort(struct tern_npy *f)
{
    if (!f)
        return;
    tern_outfile_abort(&f->file);
    tern_free(f);
}

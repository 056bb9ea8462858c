#include "base/npy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"

struct tern_npy {
    FILE *f;
    size_t n_rows, n_cols, done;
    char path[4096], tmp[4128];
};

static int io_error(const struct tern_npy *f, tern_error *err)
{
    return tern_err_set(err, TERN_EIO, "%s: cannot write: %s", f->path, strerror(errno ? errno : EIO));
}

int tern_npy_create(struct tern_npy **out, const char *path, size_t n_rows, size_t n_cols, tern_error *err)
{
    int rc = 0, fd;
    struct tern_npy *f = NULL;
    char head[128];
    *out = NULL;
    TERN_TRY(tern_alloc(&f, 1, sizeof *f, err));
    f->n_rows = n_rows;
    f->n_cols = n_cols;
    if (snprintf(f->path, sizeof f->path, "%s", path) >= (int)sizeof f->path)
        TERN_FAIL(err, TERN_EINVAL, "path is longer than %zu bytes", sizeof f->path - 1);
    (void)snprintf(f->tmp, sizeof f->tmp, "%s.tmp-%ld", path, (long)getpid());
    fd = open(f->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) {
        f->tmp[0] = 0;
        TERN_FAIL(err, TERN_EIO, "%s: cannot create: %s", path, strerror(errno));
    }
    f->f = fdopen(fd, "wb");
    if (!f->f) {
        (void)close(fd);
        TERN_FAIL(err, TERN_ENOMEM, "%s: cannot open a stream", path);
    }
    /* Magic, version 1.0, header length, then a Python literal padded with spaces so that data begin at byte 128. */
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00\x76\x00", 10);
    int n = snprintf(head + 10, sizeof head - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }",
                     n_rows, n_cols);
    head[10 + n] = ' ';
    head[sizeof head - 1] = '\n';
    errno = 0;
    if (fwrite(head, sizeof head, 1, f->f) != 1) {
        rc = io_error(f, err);
        goto out;
    }
    *out = f;
    f = NULL;
out:
    tern_npy_abort(f);
    return rc;
}

int tern_npy_write(struct tern_npy *f, const float *rows, size_t n_rows, tern_error *err)
{
    TERN_ASSERT(n_rows <= f->n_rows - f->done);
    errno = 0;
    if (n_rows && fwrite(rows, f->n_cols * sizeof *rows, n_rows, f->f) != n_rows)
        return io_error(f, err);
    f->done += n_rows;
    return 0;
}

int tern_npy_finish(struct tern_npy *f, tern_error *err)
{
    int rc = 0;
    TERN_ASSERT(f->done == f->n_rows);
    errno = 0;
    FILE *s = f->f;
    f->f = NULL;
    if (fclose(s) != 0 || rename(f->tmp, f->path) != 0)
        rc = io_error(f, err);
    else
        f->tmp[0] = 0;
    tern_npy_abort(f);
    return rc;
}

void tern_npy_abort(struct tern_npy *f)
{
    if (!f)
        return;
    if (f->f)
        (void)fclose(f->f);
    if (f->tmp[0])
        (void)unlink(f->tmp);
    tern_free(f);
}

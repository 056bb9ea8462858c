#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int tern_outfile_open(struct tern_outfile *f, const char *path, int mode, tern_error *err)
{
    *f = (struct tern_outfile){.fd = -1, .path = path};
    if (snprintf(f->tmp, sizeof f->tmp, "%s.tmp-%ld", path, (long)getpid()) >= (int)sizeof f->tmp) {
        f->tmp[0] = 0;
        return tern_err_set(err, TERN_EINVAL, "path is longer than %zu bytes", sizeof f->tmp - 32);
    }
    f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (f->fd >= 0)
        return 0;
    int e = errno;
    f->tmp[0] = 0;
    return tern_err_set(err, TERN_EIO, "%s: cannot create: %s", path, strerror(e));
}

int tern_outfile_write(struct tern_outfile *f, const void *data, size_t n, tern_error *err)
{
    const char *p = data;
    while (n) {
        ssize_t w = write(f->fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return tern_err_set(err, TERN_EIO, "%s: cannot write: %s", f->path, strerror(w < 0 ? errno : ENOSPC));
        p += w;
        n -= (size_t)w;
    }
    return 0;
}

int tern_outfile_commit(struct tern_outfile *f, tern_error *err)
{
    int rc = 0;
    /* Without the fsync a crash after the rename could leave an empty file under the good name. */
    if (fsync(f->fd) < 0 && errno != EINVAL && errno != EROFS)
        TERN_FAIL(err, TERN_EIO, "%s: cannot write: %s", f->path, strerror(errno));
    int fd = f->fd;
    f->fd = -1;
    if (close(fd) < 0)
        TERN_FAIL(err, TERN_EIO, "%s: cannot write: %s", f->path, strerror(errno));
    if (rename(f->tmp, f->path) < 0)
        TERN_FAIL(err, TERN_EIO, "%s: cannot rename into place: %s", f->path, strerror(errno));
    f->tmp[0] = 0;
out:
    tern_outfile_abort(f);
    return rc;
}

void tern_outfile_abort(struct tern_outfile *f)
{
    if (f->tmp[0]) {
        if (f->fd >= 0)
            (void)close(f->fd);
        (void)unlink(f->tmp);
    }
    f->tmp[0] = 0;
    f->fd = -1;
}

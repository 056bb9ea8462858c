#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static int set_tmp(struct tern_outfile *f, const char *path, int n, tern_error *err)
{
    if (n < (int)sizeof f->tmp)
        return 0;
    f->tmp[0] = 0;
    return tern_err_set(err, TERN_EINVAL, "%.150s...: path is longer than %zu bytes", path, sizeof f->tmp - 32);
}

static int fail_create(struct tern_outfile *f, int why, tern_error *err)
{
    if (f->fd >= 0)
        (void)close(f->fd);
    f->fd = -1;
    f->tmp[0] = 0; /* what lies there is not ours to remove */
    return tern_err_set(err, TERN_EIO, "%s: cannot create: %s", f->path, strerror(why));
}

int tern_outfile_open(struct tern_outfile *f, const char *path, int mode, tern_error *err)
{
    int rc = 0;
    *f = (struct tern_outfile){.fd = -1, .path = path};
    TERN_TRY(set_tmp(f, path, snprintf(f->tmp, sizeof f->tmp, "%s.tmp-%ld", path, (long)getpid()), err));
    f->fd = open(f->tmp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (f->fd < 0)
        rc = fail_create(f, errno, err);
out:
    return rc;
}

static int fail_busy(struct tern_outfile *f, tern_error *err)
{
    (void)fail_create(f, EBUSY, NULL);
    return tern_err_set(err, TERN_ECAPACITY, "%s: another process is writing it", f->path);
}

/* PATH.suffix under a lock, new or with what is there; f->path is set. */
static int open_locked(struct tern_outfile *f, const char *suffix, int mode, tern_error *err)
{
    int rc = 0;
    struct stat mine, named;
    TERN_TRY(set_tmp(f, f->path, snprintf(f->tmp, sizeof f->tmp, "%s.%s", f->path, suffix), err));
    f->fd = open(f->tmp, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
    if (f->fd < 0 || fstat(f->fd, &mine) < 0)
        return fail_create(f, errno, err);
    /* A link that somebody else put there would make us write into a file of its choice. */
    if (!S_ISREG(mine.st_mode) || mine.st_nlink > 1 || mine.st_uid != geteuid())
        return fail_create(f, EEXIST, err);
    if (flock(f->fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EWOULDBLOCK)
            return fail_busy(f, err);
        TERN_FAIL(err, TERN_EIO, "%s: cannot lock: %s", f->path, strerror(errno));
    }
    /* Whoever held the lock until now has renamed or removed the file since it was opened here. */
    if (lstat(f->tmp, &named) < 0 || named.st_ino != mine.st_ino || named.st_dev != mine.st_dev)
        return fail_busy(f, err);
out:
    return rc;
}

int tern_outfile_open_alone(struct tern_outfile *f, const char *path, int mode, tern_error *err)
{
    int rc = 0;
    *f = (struct tern_outfile){.fd = -1, .path = path, .hasty = true};
    TERN_TRY(open_locked(f, "tmp", mode, err));
    TERN_TRY(tern_outfile_resize(f, 0, err));
out:
    if (rc < 0)
        tern_outfile_abort(f);
    return rc;
}

int tern_outfile_open_part(struct tern_outfile *f, const char *path, int mode, tern_error *err)
{
    *f = (struct tern_outfile){.fd = -1, .path = path};
    int rc = open_locked(f, "part", mode, err);
    if (rc < 0)
        tern_outfile_keep(f);
    return rc;
}

int tern_outfile_resize(struct tern_outfile *f, uint64_t bytes, tern_error *err)
{
    if (ftruncate(f->fd, (off_t)bytes) < 0)
        return tern_err_set(err, TERN_EIO, "%s: cannot write: %s", f->path, strerror(errno));
    return 0;
}

uint64_t tern_outfile_size(const struct tern_outfile *f)
{
    struct stat st;
    return fstat(f->fd, &st) == 0 && st.st_size > 0 ? (uint64_t)st.st_size : 0;
}

int tern_outfile_write_at(struct tern_outfile *f, const void *data, size_t n, uint64_t at, tern_error *err)
{
    const char *p = data;
    while (n) {
        ssize_t w = pwrite(f->fd, p, n, (off_t)at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return tern_err_set(err, TERN_EIO, "%s: cannot write: %s", f->path, strerror(w < 0 ? errno : ENOSPC));
        p += w;
        at += (uint64_t)w;
        n -= (size_t)w;
    }
    return 0;
}

bool tern_outfile_read_at(const struct tern_outfile *f, void *data, size_t n, uint64_t at)
{
    char *p = data;
    while (n) {
        ssize_t r = pread(f->fd, p, n, (off_t)at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r <= 0)
            return false;
        p += r;
        at += (uint64_t)r;
        n -= (size_t)r;
    }
    return true;
}

void tern_outfile_keep(struct tern_outfile *f)
{
    if (f->fd >= 0)
        (void)close(f->fd);
    f->tmp[0] = 0;
    f->fd = -1;
}

int tern_outfile_reserve(struct tern_outfile *f, size_t bytes, tern_error *err)
{
    /* Not every file system can; then writing shows whether there is room. */
    if (fallocate(f->fd, 0, 0, (off_t)bytes) < 0 && (errno == ENOSPC || errno == EFBIG || errno == EDQUOT))
        return tern_err_set(err, TERN_EIO, "%s: no room for %zu bytes: %s", f->path, bytes, strerror(errno));
    return 0;
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
    if (!f->hasty && fsync(f->fd) < 0 && errno != EINVAL && errno != EROFS)
        TERN_FAIL(err, TERN_EIO, "%s: cannot write: %s", f->path, strerror(errno));
    /* Closing gives up the lock, if there is one: not before the name is given up too. */
    if (rename(f->tmp, f->path) < 0)
        TERN_FAIL(err, TERN_EIO, "%s: cannot rename into place: %s", f->path, strerror(errno));
    f->tmp[0] = 0;
    (void)close(f->fd);
    f->fd = -1;
out:
    tern_outfile_abort(f);
    return rc;
}

void tern_outfile_abort(struct tern_outfile *f)
{
    if (f->tmp[0]) {
        (void)unlink(f->tmp);
        if (f->fd >= 0)
            (void)close(f->fd);
    }
    f->tmp[0] = 0;
    f->fd = -1;
}

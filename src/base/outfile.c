/* Writing.  Where a file may go is said in target.c. */
#include "base/outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/target.h"

/* PATH.suffix, where the links of the name lead. */
static int set_tmp(struct tern_outfile *f, const char *suffix, tern_error *err)
{
    if (snprintf(f->tmp, sizeof f->tmp, "%s.%s", f->to, suffix) < (int)sizeof f->tmp)
        return 0;
    f->tmp[0] = 0;
    return tern_err_set(err, TERN_EINVAL, "%.150s...: path is longer than %zu bytes", f->to, sizeof f->tmp - 32);
}

static int fail_create(struct tern_outfile *f, int why, tern_error *err)
{
    if (f->fd >= 0)
        (void)close(f->fd);
    f->fd = -1;
    f->tmp[0] = 0; /* what lies there is not ours to remove */
    return tern_err_set(err, TERN_EIO, "%s: cannot create: %s", tern_path_show(f->path), strerror(why));
}

static int fail_busy(struct tern_outfile *f, tern_error *err)
{
    (void)fail_create(f, EBUSY, NULL);
    return tern_err_set(err, TERN_ECAPACITY, "%s: another process is writing it", tern_path_show(f->path));
}

/* f->to.suffix under a lock, new or with what is there.  must: not without one, which some file systems lack. */
static int open_locked(struct tern_outfile *f, const char *suffix, int mode, bool must, tern_error *err)
{
    int rc = 0;
    struct stat mine, named;
    TERN_TRY(set_tmp(f, suffix, err));
    f->fd = open(f->tmp, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
    if (f->fd < 0 || fstat(f->fd, &mine) < 0)
        return fail_create(f, errno, err);
    /* A link that somebody else put there would make us write into a file of its choice. */
    if (!S_ISREG(mine.st_mode) || mine.st_nlink > 1 || mine.st_uid != geteuid() || tern_target_guarded(&mine))
        return fail_create(f, EEXIST, err);
    if (flock(f->fd, LOCK_EX | LOCK_NB) < 0 && (must || errno == EWOULDBLOCK)) {
        if (errno == EWOULDBLOCK)
            return fail_busy(f, err);
        rc = tern_err_set(err, TERN_EIO, "%s: cannot lock: %s", tern_path_show(f->path), strerror(errno));
        if (mine.st_size == 0) /* made here, or by another that cannot lock it either */
            (void)unlink(f->tmp);
        (void)fail_create(f, EIO, NULL);
        return rc;
    }
    /* Whoever held the lock until now has renamed or removed the file since it was opened here. */
    if (lstat(f->tmp, &named) < 0 || named.st_ino != mine.st_ino || named.st_dev != mine.st_dev)
        return fail_busy(f, err);
out:
    return rc;
}

/* Empties a temporary file: one that tern left, not a user's that happens to have the name. */
static int empty_left_over(struct tern_outfile *f, tern_error *err)
{
    struct stat st;
    int rc;
    if (fstat(f->fd, &st) < 0)
        rc = tern_err_set(err, TERN_EIO, "%s: cannot be looked at: %s", tern_path_show(f->tmp), strerror(errno));
    else if (tern_target_left_over(f->fd, &st, f->kind))
        return tern_outfile_resize(f, 0, err);
    else
        rc = tern_err_set(err, TERN_EINVAL, "%s: is in the way; remove or rename it", tern_path_show(f->tmp));
    (void)fail_create(f, EEXIST, NULL);
    return rc;
}

static int open_through(struct tern_outfile *f, tern_error *err)
{
    /* O_NONBLOCK: a pipe that nobody reads must not hang the program. */
    f->fd = open(f->path, O_WRONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
    if (f->fd < 0 && errno == ENXIO)
        return tern_err_set(err, TERN_EIO, "%s: nobody reads from it", tern_path_show(f->path));
    if (f->fd < 0)
        return tern_err_set(err, TERN_EIO, "%s: cannot open: %s", tern_path_show(f->path), strerror(errno));
    (void)fcntl(f->fd, F_SETFL, fcntl(f->fd, F_GETFL) & ~O_NONBLOCK);
    return 0;
}

int tern_outfile_open(struct tern_outfile *f, const char *path, int mode, const struct tern_outfile_kind *kind,
                      tern_error *err)
{
    int rc = 0;
    bool through;
    char suffix[32];
    *f = (struct tern_outfile){.fd = -1, .path = path, .kind = kind};
    TERN_TRY(tern_target_find(f->to, path, kind, &through, err));
    if (through)
        return open_through(f, err);
    tern_target_sweep(f->to, kind);
    (void)snprintf(suffix, sizeof suffix, "tmp-%ld", (long)getpid());
    TERN_TRY(open_locked(f, suffix, mode, false, err));
    TERN_TRY(empty_left_over(f, err));
out:
    if (rc < 0)
        tern_outfile_abort(f);
    return rc;
}

/* For files that are written at more than one place, or that a later run is to find. */
static int find_regular(struct tern_outfile *f, tern_error *err)
{
    bool through;
    int rc = tern_target_find(f->to, f->path, f->kind, &through, err);
    if (rc == 0 && through)
        rc = tern_err_set(err, TERN_EINVAL, "%s: is no regular file and cannot keep %s", tern_path_show(f->path),
                          f->kind->what);
    return rc;
}

int tern_outfile_open_alone(struct tern_outfile *f, const char *path, int mode, const struct tern_outfile_kind *kind,
                            tern_error *err)
{
    int rc = 0;
    *f = (struct tern_outfile){.fd = -1, .path = path, .kind = kind, .hasty = true};
    TERN_TRY(find_regular(f, err));
    TERN_TRY(open_locked(f, "tmp", mode, true, err));
    TERN_TRY(empty_left_over(f, err));
out:
    if (rc < 0)
        tern_outfile_abort(f);
    return rc;
}

int tern_outfile_open_part(struct tern_outfile *f, const char *path, int mode, const struct tern_outfile_kind *kind,
                           tern_error *err)
{
    int rc = 0;
    *f = (struct tern_outfile){.fd = -1, .path = path, .kind = kind};
    TERN_TRY(find_regular(f, err));
    TERN_TRY(open_locked(f, "part", mode, true, err));
out:
    if (rc < 0)
        tern_outfile_keep(f);
    return rc;
}

int tern_outfile_resize(struct tern_outfile *f, uint64_t bytes, tern_error *err)
{
    if (ftruncate(f->fd, (off_t)bytes) < 0)
        return tern_err_set(err, TERN_EIO, "%s: cannot write: %s", tern_path_show(f->path), strerror(errno));
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
            return tern_err_set(err, TERN_EIO, "%s: cannot write: %s", tern_path_show(f->path),
                                strerror(w < 0 ? errno : ENOSPC));
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
        return tern_err_set(err, TERN_EIO, "%s: no room for %zu bytes: %s", tern_path_show(f->path), bytes,
                            strerror(errno));
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
            return tern_err_set(err, TERN_EIO, "%s: cannot write: %s", tern_path_show(f->path),
                                strerror(w < 0 ? errno : ENOSPC));
        p += w;
        n -= (size_t)w;
    }
    return 0;
}

int tern_outfile_commit(struct tern_outfile *f, tern_error *err)
{
    int rc = 0;
    bool through;
    if (!f->tmp[0]) { /* written through: only closing may still fail */
        int fd = f->fd;
        f->fd = -1;
        if (close(fd) < 0 && errno != EINTR)
            rc = tern_err_set(err, TERN_EIO, "%s: cannot write: %s", tern_path_show(f->path), strerror(errno));
        return rc;
    }
    /* What has come under the name in the meantime is somebody's, too. */
    TERN_TRY(tern_target_find(f->to, f->path, f->kind, &through, err));
    if (through)
        TERN_FAIL(err, TERN_EIO, "%s: is no regular file any more", tern_path_show(f->path));
    /* Without the fsync a crash after the rename could leave an empty file under the good name. */
    if (!f->hasty && fsync(f->fd) < 0 && errno != EINVAL && errno != EROFS)
        TERN_FAIL(err, TERN_EIO, "%s: cannot write: %s", tern_path_show(f->path), strerror(errno));
    /* Closing gives up the lock, if there is one: not before the name is given up too. */
    if (rename(f->tmp, f->to) < 0)
        TERN_FAIL(err, TERN_EIO, "%s: cannot rename into place: %s", tern_path_show(f->path), strerror(errno));
    f->tmp[0] = 0;
    (void)close(f->fd);
    f->fd = -1;
out:
    tern_outfile_abort(f);
    return rc;
}

void tern_outfile_abort(struct tern_outfile *f)
{
    if (f->tmp[0])
        (void)unlink(f->tmp);
    if (f->path && f->fd >= 0)
        (void)close(f->fd);
    f->tmp[0] = 0;
    f->fd = -1;
}

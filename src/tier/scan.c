/* All files of a directory, for who looks after it. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "tier/tier_impl.h"

struct scan {
    int dir;
    const char *path;
    enum tern_scan what;
    void (*say)(void *user, const char *line);
    void *user;
    struct tern_scanned *out;
};

/* Is the file all that its name says? */
static int check_file(int fd, size_t bytes, const struct tern_record_name *name, tern_error *err)
{
    int rc = 0;
    uint8_t *p = NULL;
    size_t n = 0;
    TERN_TRY(tern_alloc(&p, bytes, 1, err));
    while (n < bytes) {
        const ssize_t got = pread(fd, p + n, bytes - n, (off_t)n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            TERN_FAIL(err, TERN_EIO, "cannot be read: %s", strerror(errno));
        if (got == 0)
            break;
        n += (size_t)got;
    }
    TERN_TRY(tern_record_check(p, n, name, NULL, err));
out:
    tern_free(p);
    return rc;
}

static void verify(const struct scan *s, const char *file, size_t bytes, const struct tern_record_name *name)
{
    tern_error err = {0};
    char line[700];
    const int fd = openat(s->dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return; /* a server has removed it */
    const int rc = fd < 0 ? tern_err_set(&err, TERN_EIO, "cannot be opened: %s", strerror(errno))
                          : check_file(fd, bytes, name, &err);
    if (fd >= 0)
        (void)close(fd);
    if (rc == 0)
        return;
    s->out->damaged++;
    (void)snprintf(line, sizeof line, "%s/%s %s", s->path, file, err.msg);
    if (s->say)
        s->say(s->user, line);
}

static int look_at(const struct scan *s, const char *file, tern_error *err)
{
    struct stat st;
    struct tern_record_name name;
    static const char *const own[] = {".", "..", "lock", "new", "aside"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(file, own[i]) == 0)
            return 0;
    if (!tern_record_name_parse(&name, file) || fstatat(s->dir, file, &st, AT_SYMLINK_NOFOLLOW) < 0 ||
        !S_ISREG(st.st_mode)) {
        s->out->others++;
        return 0;
    }
    if (s->what == TERN_SCAN_CLEAR && unlinkat(s->dir, file, 0) < 0 && errno != ENOENT)
        return tern_err_set(err, TERN_EIO, "%s/%s: cannot remove: %s", s->path, file, strerror(errno));
    s->out->pages += name.kind == TERN_RECORD_PAGE;
    s->out->ends += name.kind != TERN_RECORD_PAGE;
    s->out->bytes += (size_t)st.st_size;
    if (s->what == TERN_SCAN_VERIFY)
        verify(s, file, (size_t)st.st_size, &name);
    return 0;
}

int tern_disk_scan(const char *dir, enum tern_scan what, void (*say)(void *user, const char *line), void *user,
                   struct tern_scanned *out, tern_error *err)
{
    int rc = 0;
    DIR *d = opendir(dir);
    *out = (struct tern_scanned){0};
    if (!d)
        return tern_err_set(err, TERN_EIO, "%s: cannot open the directory: %s", tern_path_show(dir), strerror(errno));
    const struct scan s = {dirfd(d), dir, what, say, user, out};
    for (struct dirent *e; rc == 0 && (e = readdir(d));)
        rc = look_at(&s, e->d_name, err);
    if (what == TERN_SCAN_CLEAR) { /* what its writers count together is counted anew */
        const int lock = openat(dirfd(d), "lock", O_WRONLY | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
        if (lock >= 0)
            (void)close(lock);
    }
    (void)closedir(d);
    return rc;
}

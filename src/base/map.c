#include "base/map.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/target.h"

static int check_stat(const struct stat *st, const char *path, const char *what, tern_error *err)
{
    if (S_ISDIR(st->st_mode))
        return tern_err_set(err, TERN_EINVAL, "%s: is a directory, not %s", tern_path_show(path), what);
    if (!S_ISREG(st->st_mode))
        return tern_err_set(err, TERN_EINVAL, "%s: is not a regular file and cannot be mapped", tern_path_show(path));
    if (st->st_size <= 0)
        return tern_err_set(err, TERN_EFORMAT, "%s: the file is empty", tern_path_show(path));
    if ((uint64_t)st->st_size > PTRDIFF_MAX)
        return tern_err_set(err, TERN_ELIMIT, "%s: %lld bytes do not fit in this machine's address space",
                            tern_path_show(path), (long long)st->st_size);
    return 0;
}

int tern_map_open(struct tern_map *m, const char *path, const char *what, tern_error *err)
{
    int rc = 0;
    struct stat st;
    *m = (struct tern_map){0};
    /* Without O_NONBLOCK a FIFO would be waited for until somebody writes to it. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        TERN_FAIL(err, errno == ENOENT ? TERN_ENOENT : TERN_EIO, "%s: cannot open the file: %s", tern_path_show(path),
                  strerror(errno));
    if (fstat(fd, &st) < 0)
        TERN_FAIL(err, TERN_EIO, "%s: cannot read the file's size: %s", tern_path_show(path), strerror(errno));
    TERN_TRY(check_stat(&st, path, what, err));
    TERN_TRY(tern_outfile_guard(st.st_dev, st.st_ino, err));
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        rc = tern_err_set(err, errno == ENOMEM ? TERN_ENOMEM : TERN_EIO, "%s: cannot map the file's %lld bytes: %s",
                          tern_path_show(path), (long long)st.st_size, strerror(errno));
        tern_outfile_unguard(st.st_dev, st.st_ino);
        goto out;
    }
    *m = (struct tern_map){.p = p,
                           .n = (size_t)st.st_size,
                           .device = st.st_dev,
                           .id = {.inode = st.st_ino,
                                  .bytes = (uint64_t)st.st_size,
                                  .modified_s = st.st_mtim.tv_sec,
                                  .modified_ns = st.st_mtim.tv_nsec,
                                  .changed_s = st.st_ctim.tv_sec,
                                  .changed_ns = st.st_ctim.tv_nsec}};
out:
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

void tern_map_close(struct tern_map *m)
{
    if (m->p) {
        (void)munmap((void *)(uintptr_t)m->p, m->n);
        tern_outfile_unguard(m->device, m->id.inode);
    }
    *m = (struct tern_map){0};
}

void tern_map_forget(const void *p, size_t n)
{
    tern_discard((void *)(uintptr_t)p, n);
}

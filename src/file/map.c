#include "file/file_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

char *tern_path_dup(const char *path)
{
    size_t n = strlen(path) + 1;
    char *copy;
    if (tern_alloc(&copy, n, 1, NULL) < 0)
        return NULL;
    memcpy(copy, path, n);
    return copy;
}

static int check_stat(const struct stat *st, const char *path, tern_error *err)
{
    if (S_ISDIR(st->st_mode))
        return tern_err_set(err, TERN_EINVAL, "%s: is a directory, not a model file", tern_path_show(path));
    if (!S_ISREG(st->st_mode))
        return tern_err_set(err, TERN_EINVAL, "%s: is not a regular file and cannot be mapped", tern_path_show(path));
    if (st->st_size <= 0)
        return tern_err_set(err, TERN_EFORMAT, "%s: the file is empty", tern_path_show(path));
    if ((uint64_t)st->st_size > PTRDIFF_MAX)
        return tern_err_set(err, TERN_ELIMIT, "%s: %lld bytes do not fit in this machine's address space",
                            tern_path_show(path), (long long)st->st_size);
    return 0;
}

int tern_part_map(struct tern_part *part, const char *path, tern_error *err)
{
    int rc = 0;
    int fd = -1;
    struct stat st;
    part->path = tern_path_dup(path);
    if (!part->path)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the path of a model file");
    /* Without O_NONBLOCK a FIFO would be waited for until somebody writes to it. */
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        TERN_FAIL(err, errno == ENOENT ? TERN_ENOENT : TERN_EIO, "%s: cannot open the file: %s", tern_path_show(path),
                  strerror(errno));
    if (fstat(fd, &st) < 0)
        TERN_FAIL(err, TERN_EIO, "%s: cannot read the file's size: %s", tern_path_show(path), strerror(errno));
    TERN_TRY(check_stat(&st, path, err));
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        TERN_FAIL(err, errno == ENOMEM ? TERN_ENOMEM : TERN_EIO, "%s: cannot map the file's %lld bytes: %s",
                  tern_path_show(path), (long long)st.st_size, strerror(errno));
    part->p = p;
    part->n = (size_t)st.st_size;
    part->mapped = true;
out:
    if (fd >= 0)
        (void)close(fd);
    return rc;
}

void tern_part_clear(struct tern_part *part)
{
    if (part->mapped)
        (void)munmap((void *)(uintptr_t)part->p, part->n);
    tern_free(part->path);
    *part = (struct tern_part){0};
}

void tern_file_forget(const struct tern_file *f, const struct tern_tensor *t)
{
    /* Memory that is borrowed or was computed cannot be read again: dropping its pages would destroy them. */
    const struct tern_part *part = tern_file_part_of(f, t);
    if (!part || !part->mapped)
        return;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t lo = tern_round_up((uintptr_t)t->data, page);
    uintptr_t hi = ((uintptr_t)t->data + t->n_bytes) / page * page;
    if (hi > lo)
        (void)madvise((void *)lo, hi - lo, MADV_DONTNEED);
}

#include "faults.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const char *const fault_names[N_FAULTS] = {"memory",    "map",       "thread",   "open", "stat",     "read", "short",
                                           "interrupt", "disk full", "allocate", "sync", "truncate", "lock", "rename"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int armed = -1, left;
static bool fired;

void fault_arm(enum fault kind, int n)
{
    pthread_mutex_lock(&lock);
    armed = (int)kind;
    left = n;
    fired = false;
    pthread_mutex_unlock(&lock);
}

bool fault_disarm(void)
{
    pthread_mutex_lock(&lock);
    armed = -1;
    bool f = fired;
    pthread_mutex_unlock(&lock);
    return f;
}

/* Is it this call's turn?  A full disk stays full. */
static bool turn(enum fault kind)
{
    pthread_mutex_lock(&lock);
    bool now = armed == (int)kind && (--left == 0 || (kind == FAULT_DISK_FULL && left < 0));
    fired |= now;
    pthread_mutex_unlock(&lock);
    return now;
}

static bool disk_was_full(void)
{
    pthread_mutex_lock(&lock);
    bool f = fired && left < 0;
    pthread_mutex_unlock(&lock);
    return f;
}

/* ---- what is alive ----------------------------------------------------------------------------------------------- */

enum { SLOTS = 1 << 18 };
static void *blocks[SLOTS]; /* open addressing; a freed slot keeps a mark, so that others are still found */
static size_t n_blocks, n_mappings;
#define FREED ((void *)(uintptr_t)1)

static size_t slot_of(const void *p)
{
    return ((uintptr_t)p >> 4) * 0x9E3779B97F4A7C15u >> 46;
}

static void *born(void *p)
{
    if (!p)
        return p;
    pthread_mutex_lock(&lock);
    size_t i = slot_of(p);
    while (blocks[i] && blocks[i] != FREED)
        i = (i + 1) % SLOTS;
    blocks[i] = p;
    if (++n_blocks > SLOTS / 2)
        abort();
    pthread_mutex_unlock(&lock);
    return p;
}

/* Blocks of other libraries are not known here. */
static void died(const void *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&lock);
    for (size_t i = slot_of(p); blocks[i]; i = (i + 1) % SLOTS)
        if (blocks[i] == p) {
            blocks[i] = blocks[(i + 1) % SLOTS] ? FREED : NULL;
            n_blocks--;
            break;
        }
    pthread_mutex_unlock(&lock);
}

struct fault_alive fault_alive(void)
{
    struct fault_alive a = {n_blocks, n_mappings, 0};
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        a.files++;
    if (d)
        closedir(d);
    return a;
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

#define WRAP(type, name, args) \
    type __real_##name args;   \
    type __wrap_##name args;   \
    type __wrap_##name args

#define FAIL(kind, why, result) \
    do {                        \
        if (turn(kind)) {       \
            errno = why;        \
            return result;      \
        }                       \
    } while (0)

WRAP(void *, malloc, (size_t n))
{
    FAIL(FAULT_MEMORY, ENOMEM, NULL);
    return born(__real_malloc(n));
}

WRAP(void *, calloc, (size_t n, size_t size))
{
    FAIL(FAULT_MEMORY, ENOMEM, NULL);
    return born(__real_calloc(n, size));
}

WRAP(void *, aligned_alloc, (size_t align, size_t n))
{
    FAIL(FAULT_MEMORY, ENOMEM, NULL);
    return born(__real_aligned_alloc(align, n));
}

WRAP(void, free, (void *p))
{
    died(p);
    __real_free(p);
}

WRAP(void *, realloc, (void *p, size_t n))
{
    FAIL(FAULT_MEMORY, ENOMEM, NULL);
    died(p);
    return born(__real_realloc(p, n));
}

WRAP(void *, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t at))
{
    FAIL(FAULT_MAP, ENOMEM, MAP_FAILED);
    void *q = __real_mmap(p, n, prot, flags, fd, at);
    if (q != MAP_FAILED) {
        pthread_mutex_lock(&lock);
        n_mappings++;
        pthread_mutex_unlock(&lock);
    }
    return q;
}

WRAP(int, munmap, (void *p, size_t n))
{
    pthread_mutex_lock(&lock);
    n_mappings--;
    pthread_mutex_unlock(&lock);
    return __real_munmap(p, n);
}

WRAP(int, pthread_create, (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *arg))
{
    if (turn(FAULT_THREAD))
        return EAGAIN;
    return __real_pthread_create(t, a, f, arg);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    FAIL(FAULT_OPEN, EMFILE, -1);
    return __real_open(path, flags, mode);
}

int __real_openat(int fd, const char *path, int flags, ...);
int __wrap_openat(int fd, const char *path, int flags, ...);
int __wrap_openat(int fd, const char *path, int flags, ...)
{
    va_list ap;
    va_start(ap, flags);
    int mode = flags & O_CREAT ? va_arg(ap, int) : 0;
    va_end(ap);
    FAIL(FAULT_OPEN, EMFILE, -1);
    return __real_openat(fd, path, flags, mode);
}

WRAP(FILE *, fopen, (const char *path, const char *mode))
{
    FAIL(FAULT_OPEN, EMFILE, NULL);
    return __real_fopen(path, mode);
}

WRAP(DIR *, opendir, (const char *path))
{
    FAIL(FAULT_OPEN, EMFILE, NULL);
    return __real_opendir(path);
}

WRAP(int, fstat, (int fd, struct stat *st))
{
    FAIL(FAULT_STAT, EIO, -1);
    return __real_fstat(fd, st);
}

WRAP(int, lstat, (const char *path, struct stat *st))
{
    FAIL(FAULT_STAT, EIO, -1);
    return __real_lstat(path, st);
}

WRAP(int, stat, (const char *path, struct stat *st))
{
    FAIL(FAULT_STAT, EIO, -1);
    return __real_stat(path, st);
}

WRAP(ssize_t, read, (int fd, void *p, size_t n))
{
    FAIL(FAULT_READ, EIO, -1);
    FAIL(FAULT_INTERRUPT, EINTR, -1);
    return __real_read(fd, p, n > 1 && turn(FAULT_SHORT) ? 1 : n);
}

WRAP(ssize_t, pread, (int fd, void *p, size_t n, off_t at))
{
    FAIL(FAULT_READ, EIO, -1);
    FAIL(FAULT_INTERRUPT, EINTR, -1);
    return __real_pread(fd, p, n > 1 && turn(FAULT_SHORT) ? 1 : n, at);
}

WRAP(ssize_t, write, (int fd, const void *p, size_t n))
{
    FAIL(FAULT_INTERRUPT, EINTR, -1);
    if (turn(FAULT_DISK_FULL)) {
        errno = ENOSPC;
        return disk_was_full() || n < 2 ? -1 : __real_write(fd, p, n / 2);
    }
    return __real_write(fd, p, n > 1 && turn(FAULT_SHORT) ? 1 : n);
}

WRAP(ssize_t, pwrite, (int fd, const void *p, size_t n, off_t at))
{
    FAIL(FAULT_INTERRUPT, EINTR, -1);
    if (turn(FAULT_DISK_FULL)) {
        errno = ENOSPC;
        return disk_was_full() || n < 2 ? -1 : __real_pwrite(fd, p, n / 2, at);
    }
    return __real_pwrite(fd, p, n > 1 && turn(FAULT_SHORT) ? 1 : n, at);
}

WRAP(int, fallocate, (int fd, int mode, off_t at, off_t n))
{
    FAIL(FAULT_ALLOCATE, ENOSPC, -1);
    return __real_fallocate(fd, mode, at, n);
}

WRAP(int, fsync, (int fd))
{
    FAIL(FAULT_SYNC, EIO, -1);
    return __real_fsync(fd);
}

WRAP(int, ftruncate, (int fd, off_t n))
{
    FAIL(FAULT_TRUNCATE, EIO, -1);
    return __real_ftruncate(fd, n);
}

WRAP(int, flock, (int fd, int how))
{
    FAIL(FAULT_LOCK, ENOLCK, -1);
    return __real_flock(fd, how);
}

WRAP(int, rename, (const char *from, const char *to))
{
    FAIL(FAULT_RENAME, EIO, -1);
    return __real_rename(from, to);
}

WRAP(int, renameat, (int from_dir, const char *from, int to_dir, const char *to))
{
    FAIL(FAULT_RENAME, EIO, -1);
    return __real_renameat(from_dir, from, to_dir, to);
}

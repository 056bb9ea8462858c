/* Loaded before the C library (LD_PRELOAD): a disk, a clock and a memory that misbehave when the file that BAD_WORLD
 * names says so, by its first byte:
 *
 *     F  what is written into regular files does not fit     W  writing them fails      R  reading them fails
 *     S  a megabyte of them takes a second                   T  the clock is ten years back
 *     M  memory runs out: see struct memory
 *
 * Files outside the folder BAD_DISK are left alone. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

/* What follows the first byte in that file, where it is so long. */
struct memory {
    char mode, blank[7];
    uint64_t calls;       /* for memory while the mode is M; counted here */
    uint64_t first, last; /* calls that fail, counted from 0 */
    uint64_t every;       /* of those only each so many-th; 0 and 1: all */
    uint64_t failed;      /* counted here */
};

static const volatile char *mode;
static struct memory *memory; /* NULL: the file is short */
static const char *folder;

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static int (*real_clock)(clockid_t, struct timespec *);
static time_t (*real_time)(time_t *);

static struct memory *open_memory(const char *path)
{
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    void *p = fd >= 0 ? mmap(NULL, sizeof *memory, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        (void)close(fd);
    return p == MAP_FAILED ? NULL : p;
}

__attribute__((constructor)) static void begin(void)
{
    static const char fine = '-';
    const char *path = getenv("BAD_WORLD");
    const int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    *(void **)&real_write = dlsym(RTLD_NEXT, "write");
    *(void **)&real_pread = dlsym(RTLD_NEXT, "pread");
    *(void **)&real_clock = dlsym(RTLD_NEXT, "clock_gettime");
    *(void **)&real_time = dlsym(RTLD_NEXT, "time");
    folder = getenv("BAD_DISK");
    mode = fd >= 0 ? mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0) : &fine;
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && (size_t)st.st_size >= sizeof *memory)
        memory = open_memory(path);
    if (fd >= 0)
        (void)close(fd);
}

static bool inside(int fd)
{
    char link[64], path[4096];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    return n > 0 && folder && strncmp(path, folder, strlen(folder)) == 0;
}

static void wait_for(size_t bytes)
{
    const struct timespec t = {.tv_sec = (time_t)(bytes >> 20), .tv_nsec = (long)((bytes & 0xFFFFF) * 950)};
    (void)nanosleep(&t, NULL);
}

static ssize_t fail(int no)
{
    errno = no;
    return -1;
}

ssize_t write(int fd, const void *p, size_t n)
{
    const char m = mode ? *mode : '-';
    if ((m == 'F' || m == 'W' || m == 'S') && inside(fd)) {
        if (m == 'F' && n > 1)
            return real_write(fd, p, n / 2) < 0 ? -1 : fail(ENOSPC);
        if (m != 'S')
            return fail(m == 'F' ? ENOSPC : EIO);
        wait_for(n);
    }
    return real_write(fd, p, n);
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    const char m = mode ? *mode : '-';
    if ((m == 'R' || m == 'S') && inside(fd)) {
        if (m == 'R')
            return fail(EIO);
        wait_for(n);
    }
    return real_pread(fd, p, n, at);
}

ssize_t pread64(int fd, void *p, size_t n, off64_t at)
{
    return pread(fd, p, n, at);
}

enum { TEN_YEARS = 10 * 365 * 86400 };

int clock_gettime(clockid_t which, struct timespec *t)
{
    const int rc = real_clock(which, t);
    if (rc == 0 && which == CLOCK_REALTIME && mode && *mode == 'T')
        t->tv_sec -= TEN_YEARS;
    return rc;
}

time_t time(time_t *out)
{
    const time_t t = real_time(NULL) - (mode && *mode == 'T' ? TEN_YEARS : 0);
    if (out)
        *out = t;
    return t;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* glibc's own; dlsym would ask for memory itself. */
extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

static bool none_left(void)
{
    struct memory *m = memory;
    if (!m || __atomic_load_n(&m->mode, __ATOMIC_ACQUIRE) != 'M')
        return false;
    const uint64_t i = __atomic_fetch_add(&m->calls, 1, __ATOMIC_RELAXED);
    if (i < m->first || i > m->last || (m->every > 1 && (i - m->first) % m->every))
        return false;
    (void)__atomic_fetch_add(&m->failed, 1, __ATOMIC_RELAXED);
    errno = ENOMEM;
    return true;
}

void *malloc(size_t n)
{
    return none_left() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return none_left() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return none_left() ? NULL : __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return none_left() ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = none_left() ? NULL : __libc_memalign(align, n);
    if (p)
        *out = p;
    return p ? 0 : ENOMEM;
}

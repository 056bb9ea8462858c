#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define HUGE_FROM ((size_t)8 << 20)
#define LAZY_FROM ((size_t)128 << 10)

/* Zeroes a new block.  The system hands out zeroed pages as they are touched, and what has been used before can be
 * given back: large buffers are seldom used to their end, so writing all of them costs more than it is worth. */
static void zero(char *p, size_t bytes)
{
    if (bytes >= LAZY_FROM) {
        size_t page = (size_t)sysconf(_SC_PAGESIZE);
        size_t before = (page - (uintptr_t)p % page) % page, whole = (bytes - before) / page * page;
        if (madvise(p + before, whole, MADV_DONTNEED) == 0) {
            memset(p, 0, before);
            memset(p + before + whole, 0, bytes - before - whole);
            return;
        }
    }
    memset(p, 0, bytes);
}

int tern_alloc(void *out, size_t n, size_t size, tern_error *err)
{
    void **slot = out;
    size_t bytes;
    *slot = NULL;
    if (!tern_mul(n, size, &bytes) || bytes > SIZE_MAX - TERN_ALIGN)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate %zu x %zu bytes", n, size);
    bytes = tern_round_up(bytes ? bytes : 1, TERN_ALIGN);
    void *p = aligned_alloc(TERN_ALIGN, bytes);
    if (!p)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate %zu bytes", bytes);
    zero(p, bytes);
    *slot = p;
    return 0;
}

int tern_grow(void *ptr_to_array, size_t *cap, size_t want, size_t size, tern_error *err)
{
    void **slot = ptr_to_array;
    if (want <= *cap)
        return 0;
    size_t n = *cap < 8 ? 8 : *cap;
    while (n < want)
        if (!tern_mul(n, 2, &n))
            return tern_err_set(err, TERN_ENOMEM, "cannot grow an array to %zu items", want);
    size_t bytes;
    if (!tern_mul(n, size, &bytes) || bytes > SIZE_MAX - TERN_ALIGN)
        return tern_err_set(err, TERN_ENOMEM, "cannot grow an array to %zu items", want);
    void *p = aligned_alloc(TERN_ALIGN, tern_round_up(bytes, TERN_ALIGN));
    if (!p)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate %zu bytes", bytes);
    if (*slot)
        memcpy(p, *slot, *cap * size);
    free(*slot);
    *slot = p;
    *cap = n;
    return 0;
}

void tern_free(void *p)
{
    free(p);
}

int tern_reserve(void *out, size_t bytes, tern_error *err)
{
    void **slot = out;
    *slot = NULL;
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return tern_err_set(err, TERN_ENOMEM, "cannot reserve %zu bytes of address space", bytes);
    /* Weights and KV pages are read end to end; with 4 KiB pages the address translations alone cost 10-25 % of the
     * bandwidth of attention.  Small ranges would only grow to the next 2 MiB. */
    if (bytes >= HUGE_FROM)
        (void)madvise(p, bytes, MADV_HUGEPAGE);
    *slot = p;
    return 0;
}

void tern_release(void *p, size_t bytes)
{
    if (p)
        (void)munmap(p, bytes ? bytes : 1);
}

void tern_discard(void *p, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t lo = tern_round_up((uintptr_t)p, page);
    uintptr_t hi = ((uintptr_t)p + bytes) / page * page;
    if (hi > lo)
        (void)madvise((void *)lo, hi - lo, MADV_DONTNEED);
}

/* 64 bytes of each of so many streams in turn, `ahead` bytes of them asked for; 0: left to the processor. */
static inline __attribute__((always_inline)) uint64_t read_streams(const char *p, size_t bytes, size_t streams,
                                                                   size_t ahead, bool first_cache)
{
    typedef uint64_t u2 __attribute__((vector_size(16)));
    const size_t part = bytes / streams;
    u2 x = {0, 0};
    for (size_t i = 0; i < part; i += 64) {
#pragma GCC unroll 4
        for (size_t s = 0; s < streams; s++) {
            const char *q = p + s * part + i;
            if (ahead && first_cache)
                __builtin_prefetch(q + ahead);
            else if (ahead)
                __builtin_prefetch(q + ahead, 0, 2);
#pragma GCC unroll 4
            for (size_t j = 0; j < 4; j++) {
                u2 v;
                memcpy(&v, q + 16 * j, sizeof v);
                x ^= v;
            }
        }
    }
    return x[0] ^ x[1];
}

uint64_t tern_mem_read(const void *p, size_t bytes, int pattern)
{
    bytes = bytes / 256 * 256;
    switch (pattern) {
    case 0:
        return read_streams(p, bytes, 4, 1024, true);
    case 1:
        return read_streams(p, bytes, 4, 2048, false);
    case 2:
        return read_streams(p, bytes, 1, 8192, false);
    default:
        return read_streams(p, bytes, 1, 0, false);
    }
}

static size_t status_kib(const char *field)
{
    FILE *f = fopen("/proc/self/status", "r");
    size_t kib = 0;
    char line[256];
    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0) {
            kib = (size_t)strtoull(line + strlen(field), NULL, 10);
            break;
        }
    (void)fclose(f);
    return kib;
}

size_t tern_rss_peak(void)
{
    return status_kib("VmHWM:") * 1024;
}

size_t tern_rss_now(void)
{
    return status_kib("VmRSS:") * 1024;
}

/* The number in a file, SIZE_MAX where there is none ("max"). */
static size_t number_in(const char *path)
{
    unsigned long long v;
    FILE *f = fopen(path, "re");
    if (!f)
        return SIZE_MAX;
    const int n = fscanf(f, "%llu", &v);
    (void)fclose(f);
    return n == 1 && v < SIZE_MAX ? (size_t)v : SIZE_MAX;
}

/* From the group up to the root of them: a limit holds for all below it. */
static size_t least_upwards(const char *root, const char *group, const char *file)
{
    char path[4096];
    size_t least = SIZE_MAX;
    for (int n = (int)strcspn(group, "\n"); n >= 0; n--) {
        if (n && group[n] != '/' && group[n] != '\n' && group[n])
            continue;
        const int len = snprintf(path, sizeof path, "%s%.*s/%s", root, n, group, file);
        const size_t v = len > 0 && (size_t)len < sizeof path ? number_in(path) : SIZE_MAX;
        least = v < least ? v : least;
    }
    return least;
}

size_t tern_cgroup_memory(const char *root, const char *self)
{
    char line[4096], memory[512];
    size_t least = SIZE_MAX;
    (void)snprintf(memory, sizeof memory, "%s/memory", root);
    FILE *f = fopen(self, "re");
    while (f && fgets(line, sizeof line, f)) { /* NUMBER:CONTROLLERS:/GROUP */
        const char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        size_t v = SIZE_MAX;
        if (group && group == controllers + 1)
            v = least_upwards(root, group + 1, "memory.max");
        else if (group && strncmp(controllers, ":memory:", 8) == 0)
            v = least_upwards(memory, group + 1, "memory.limit_in_bytes");
        least = v < least ? v : least;
    }
    if (f)
        (void)fclose(f);
    return least;
}

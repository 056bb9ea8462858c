/* base/mem.h - allocation with checked sizes.
 *
 * Sizes that come from a file go through tern_mul/tern_add.  Everything allocated here is released with tern_free.
 * Alignment is 64 bytes (one cache line, one AVX-512 vector) throughout, so kernels may use aligned loads. */
#ifndef TERN_BASE_MEM_H
#define TERN_BASE_MEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define TERN_ALIGN 64

/* n * size bytes, zeroed, 64-byte aligned, into *(void **)out.  On failure *out is NULL, TERN_ENOMEM. */
int tern_alloc(void *out, size_t n, size_t size, tern_error *err);

/* Grows a plain array: keeps the first `used` bytes, at least doubles, zeroes nothing.  *cap counts elements. */
int tern_grow(void *ptr_to_array, size_t *cap, size_t want, size_t size, tern_error *err);

void tern_free(void *p);

/* a*b and a+b; false when the result does not fit in size_t (then *out is untouched). */
static inline bool tern_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool tern_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline size_t tern_round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

/* Anonymous memory that costs nothing until touched: the KV pool reserves its whole budget here.  Page aligned. */
int tern_reserve(void *out, size_t bytes, tern_error *err);
void tern_release(void *p, size_t bytes);

/* Gives the pages of [p, p+bytes) back to the system; the range reads as zero afterwards. */
void tern_discard(void *p, size_t bytes);

/* Reads the first bytes / 256 * 256 bytes of p, and returns the xor of their words: the roof that kernels are measured
 * against.  Which of the patterns, one or four streams that are asked for in the first or the second cache, gets most
 * out of a memory system differs: try all. */
#define TERN_READ_PATTERNS 4
uint64_t tern_mem_read(const void *p, size_t bytes, int pattern);

/* The least limit of memory that the cgroups named in `self` (a text as in /proc/self/cgroup) and those above them have
 * under `root` (/sys/fs/cgroup): version 2, and the memory controller of version 1.  SIZE_MAX: there is none. */
size_t tern_cgroup_memory(const char *root, const char *self);

/* Peak and current resident set of this process in bytes (0 where the system does not tell). */
size_t tern_rss_peak(void);
size_t tern_rss_now(void);

#endif

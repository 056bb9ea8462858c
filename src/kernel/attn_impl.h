/* kernel/attn_impl.h - what the attention kernels of all vector levels share. */
#ifndef TERN_KERNEL_ATTN_IMPL_H
#define TERN_KERNEL_ATTN_IMPL_H

#include <stddef.h>

#define ATTN_INLINE static inline __attribute__((always_inline))
#define ATTN_AHEAD  8192 /* bytes between the line in use and the line asked for */

/* 16-bit operands come from DRAM in pieces that lie far apart: where to ask for memory while the line at byte `at` of
 * `bytes` is in use.  Behind the end that is what the caller reads next; not knowing it, ask for nothing new. */
ATTN_INLINE const char *attn_ahead(const void *p, size_t at, size_t bytes, const void *next)
{
    size_t to = at + ATTN_AHEAD;
    if (to < bytes)
        return (const char *)p + to;
    return next ? (const char *)next + (to - bytes) : (const char *)p + at;
}

#endif

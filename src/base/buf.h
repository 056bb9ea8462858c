/* base/buf.h - a growable byte string.
 *
 * Invariants: `p` is NULL only while nothing was ever added; otherwise p[len] == 0, so text buffers are C strings.
 * Zero-initialise ({0}) or tern_buf_init; tern_buf_clear frees and returns it to that state.  `max` (0 = none) is a
 * budget: an append beyond it fails with TERN_ELIMIT, which is how output made from untrusted input stays bounded. */
#ifndef TERN_BASE_BUF_H
#define TERN_BASE_BUF_H

#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

struct tern_buf {
    char *p;
    size_t len;
    size_t cap;
    size_t max;
};

int tern_buf_add(struct tern_buf *b, const void *data, size_t n, tern_error *err);
int tern_buf_addc(struct tern_buf *b, char c, tern_error *err);
int tern_buf_addf(struct tern_buf *b, tern_error *err, const char *fmt, ...) TERN_PRINTF(3, 4);
void tern_buf_reset(struct tern_buf *b); /* keeps the memory, forgets the bytes */
void tern_buf_clear(struct tern_buf *b); /* frees */

/* Whole file (or stdin for "-") into b.  At most max_bytes, else TERN_ELIMIT.  A pipe is waited for: what a user names
 * as a text may come out of one. */
int tern_buf_read_file(struct tern_buf *b, const char *path, size_t max_bytes, tern_error *err);

/* The same of what a program wrote as a file: a pipe or a device of that name is an error, and not waited for. */
int tern_buf_read_regular(struct tern_buf *b, const char *path, size_t max_bytes, tern_error *err);

#endif

/* base/utf8.h - well-formed UTF-8 (Unicode 15, table 3-7).  Pure functions; any thread. */
#ifndef TERN_BASE_UTF8_H
#define TERN_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length of the well-formed character at p (n > 0 bytes left), 0 when there is none; *cp is its code point. */
int tern_utf8_decode(const char *p, size_t n, uint32_t *cp);
/* Bytes that p[0..n), n >= 1, lacks to be one well-formed character; -1 when no character begins like this. */
int tern_utf8_missing(const char *p, int n);
/* Number of leading bytes of p[0..n) that are well-formed UTF-8. */
size_t tern_utf8_valid(const char *p, size_t n);

#endif

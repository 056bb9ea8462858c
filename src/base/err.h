/* base/err.h - the two macros that carry errors upwards, and the assertions.
 *
 * A function that can fail declares `int rc = 0;`, uses TERN_TRY / TERN_FAIL, and ends with one `out:` label that
 * releases what it holds (every release function accepts NULL) and returns rc.  That jump is the only hidden control
 * flow in the tree.  Bad input or environment -> error; our own bug -> TERN_ASSERT; no capacity -> refused at
 * admission, never in mid-step. */
#ifndef TERN_BASE_ERR_H
#define TERN_BASE_ERR_H

#include <stdarg.h>
#include "tern/error.h"

#define TERN_PRINTF(fmt_index, first) __attribute__((format(printf, fmt_index, first)))

/* Control characters become spaces: messages quote names out of files, requests and command lines. */
void tern_one_line(char *text);

/* Writes code and message into err (nullable), as one line, and returns code. */
int tern_err_set(tern_error *err, int code, const char *fmt, ...) TERN_PRINTF(3, 4);

/* Short text of a TERN_E* code; "ok" for 0 and "unknown error" otherwise. */
const char *tern_err_text(int code);

#define TERN_TRY(expr) \
    do {               \
        rc = (expr);   \
        if (rc < 0)    \
            goto out;  \
    } while (0)

#define TERN_FAIL(err, code, ...)                      \
    do {                                               \
        rc = tern_err_set((err), (code), __VA_ARGS__); \
        goto out;                                      \
    } while (0)

_Noreturn void tern_assert_failed(const char *expr, const char *file, int line);

/* Cheap invariant, checked in every build. */
#define TERN_ASSERT(expr) ((expr) ? (void)0 : tern_assert_failed(#expr, __FILE__, __LINE__))

/* Invariant on a hot path, checked in debug and sanitizer builds only. */
#ifdef TERN_DEBUG
#define TERN_DASSERT(expr) TERN_ASSERT(expr)
#else
#define TERN_DASSERT(expr) ((void)0)
#endif

/* The end of a long path, which tells files apart and leaves room for the message; an empty one in quotes. */
const char *tern_path_show(const char *path);

#endif

/* tern/error.h - how every tern function reports failure.
 *
 * A fallible function returns 0 or a negative TERN_E* code.  Where it also takes a `tern_error *`, that struct is
 * written on failure only, holds one complete sentence naming the thing that is wrong (file, field, byte offset,
 * option) and can be printed as is.  The pointer may be NULL.  Nothing in the library prints or exits. */
#ifndef TERN_ERROR_H
#define TERN_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, value, short text, HTTP status a server should answer with) */
#define TERN_ERROR_LIST(X)                         \
    X(TERN_ENOMEM, -1, "out of memory", 503)       \
    X(TERN_EINVAL, -2, "invalid argument", 400)    \
    X(TERN_EIO, -3, "input/output error", 500)     \
    X(TERN_EFORMAT, -4, "malformed file", 400)     \
    X(TERN_EUNSUPPORTED, -5, "not supported", 400) \
    X(TERN_ENOENT, -6, "no such thing", 404)       \
    X(TERN_ECAPACITY, -7, "no capacity", 429)      \
    X(TERN_EMISMATCH, -8, "does not match", 409)   \
    X(TERN_ELIMIT, -9, "limit exceeded", 400)      \
    X(TERN_ECANCELLED, -10, "cancelled", 499)

enum {
#define TERN_ERROR_ENUM(name, value, text, http) name = value,
    TERN_ERROR_LIST(TERN_ERROR_ENUM)
#undef TERN_ERROR_ENUM
};

typedef struct tern_error {
    int code;      /* one of TERN_E*, or 0 while nothing failed */
    char msg[400]; /* NUL-terminated sentence, one line without control characters */
} tern_error;

#ifdef __cplusplus
}
#endif
#endif

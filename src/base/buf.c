#include "base/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int reserve(struct tern_buf *b, size_t more, tern_error *err)
{
    size_t want;
    if (__builtin_add_overflow(b->len, more, &want) || want == SIZE_MAX)
        return tern_err_set(err, TERN_ENOMEM, "text buffer too large");
    if (b->max && want > b->max)
        return tern_err_set(err, TERN_ELIMIT, "output exceeds its limit of %zu bytes", b->max);
    if (want + 1 <= b->cap)
        return 0;
    size_t cap = b->cap ? b->cap : 64;
    while (cap < want + 1)
        cap = cap > SIZE_MAX / 2 ? SIZE_MAX : cap * 2;
    char *p = realloc(b->p, cap);
    if (!p)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate %zu bytes", cap);
    b->p = p;
    b->cap = cap;
    return 0;
}

int tern_buf_add(struct tern_buf *b, const void *data, size_t n, tern_error *err)
{
    int rc = reserve(b, n, err);
    if (rc < 0)
        return rc;
    if (n)
        memcpy(b->p + b->len, data, n);
    b->len += n;
    b->p[b->len] = 0;
    return 0;
}

int tern_buf_addc(struct tern_buf *b, char c, tern_error *err)
{
    return tern_buf_add(b, &c, 1, err);
}

int tern_buf_addf(struct tern_buf *b, tern_error *err, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    va_list ap2;
    va_copy(ap2, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    int rc = n < 0 ? tern_err_set(err, TERN_EINVAL, "cannot format text") : reserve(b, (size_t)n, err);
    if (rc == 0) {
        (void)vsnprintf(b->p + b->len, (size_t)n + 1, fmt, ap2);
        b->len += (size_t)n;
    }
    va_end(ap2);
    return rc;
}

void tern_buf_reset(struct tern_buf *b)
{
    b->len = 0;
    if (b->p)
        b->p[0] = 0;
}

void tern_buf_clear(struct tern_buf *b)
{
    free(b->p);
    *b = (struct tern_buf){.max = b->max};
}

static int read_stream(struct tern_buf *b, FILE *f, const char *path, size_t max_bytes, tern_error *err)
{
    int rc = 0;
    char chunk[65536];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0) {
        if (b->len + n > max_bytes)
            TERN_FAIL(err, TERN_ELIMIT, "%s: larger than the limit of %zu bytes", tern_path_show(path), max_bytes);
        TERN_TRY(tern_buf_add(b, chunk, n, err));
    }
    if (ferror(f))
        TERN_FAIL(err, TERN_EIO, "%s: %s", tern_path_show(path), strerror(errno));
    TERN_TRY(tern_buf_add(b, "", 0, err)); /* an empty file is still a C string */
out:
    return rc;
}

int tern_buf_read_file(struct tern_buf *b, const char *path, size_t max_bytes, tern_error *err)
{
    int rc = 0;
    struct stat st;
    FILE *f = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (f == stdin)
        path = "standard input";
    if (!f)
        return tern_err_set(err, TERN_EIO, "%s: %s", tern_path_show(path), strerror(errno));
    if (fstat(fileno(f), &st) == 0 && S_ISDIR(st.st_mode))
        TERN_FAIL(err, TERN_EIO, "%s: is a directory", tern_path_show(path));
    TERN_TRY(read_stream(b, f, path, max_bytes, err));
out:
    if (f != stdin)
        (void)fclose(f);
    return rc;
}

int tern_buf_read_regular(struct tern_buf *b, const char *path, size_t max_bytes, tern_error *err)
{
    int rc = 0;
    struct stat st;
    FILE *f = NULL;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return tern_err_set(err, TERN_EIO, "%s: %s", tern_path_show(path), strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        TERN_FAIL(err, TERN_EIO, "%s: is %s", tern_path_show(path),
                  S_ISDIR(st.st_mode) ? "a directory" : "not a regular file");
    f = fdopen(fd, "rb");
    if (!f)
        TERN_FAIL(err, TERN_EIO, "%s: %s", tern_path_show(path), strerror(errno));
    TERN_TRY(read_stream(b, f, path, max_bytes, err));
out:
    if (f)
        (void)fclose(f);
    else
        (void)close(fd);
    return rc;
}

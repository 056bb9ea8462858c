#include "file/file_impl.h"

#include <stdio.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF is read in place: little-endian machines only");

struct tern_shown_name tern_name_show(const char *name)
{
    struct tern_shown_name s;
    size_t n = 0;
    for (; name[n] && n < sizeof s.text - 4; n++) {
        unsigned char ch = (unsigned char)name[n];
        s.text[n] = ch < 0x20 || ch == 0x7F ? '?' : name[n];
    }
    (void)snprintf(s.text + n, sizeof s.text - n, "%s", name[n] ? "..." : "");
    return s;
}

int tern_cursor_fail(const struct tern_cursor *c, size_t at, int code, tern_error *err, const char *fmt, ...)
{
    char text[200];
    char subject[120] = "";
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (c->name) {
        (void)snprintf(subject, sizeof subject, "%s \"%s\": ", c->table, tern_name_show(c->name).text);
    } else if (c->table) {
        (void)snprintf(subject, sizeof subject, "%s %zu: ", c->table, c->index);
    }
    if (at == TERN_NO_OFFSET)
        return tern_err_set(err, code, "%s: %s%s", tern_path_show(c->part->path), subject, text);
    return tern_err_set(err, code, "%s: %s%s at byte %zu", tern_path_show(c->part->path), subject, text, at);
}

int tern_cursor_take(struct tern_cursor *c, size_t n, const uint8_t **p, const char *what, tern_error *err)
{
    if (n > tern_cursor_left(c))
        return tern_cursor_fail(c, c->pos, TERN_EFORMAT, err, "the file ends inside %s (%zu bytes wanted, %zu left)",
                                what, n, tern_cursor_left(c));
    *p = c->part->p + c->pos;
    c->pos += n;
    return 0;
}

int tern_cursor_u32(struct tern_cursor *c, uint32_t *v, const char *what, tern_error *err)
{
    const uint8_t *p = NULL;
    int rc = tern_cursor_take(c, 4, &p, what, err);
    if (rc == 0)
        memcpy(v, p, 4);
    return rc;
}

int tern_cursor_u64(struct tern_cursor *c, uint64_t *v, const char *what, tern_error *err)
{
    const uint8_t *p = NULL;
    int rc = tern_cursor_take(c, 8, &p, what, err);
    if (rc == 0)
        memcpy(v, p, 8);
    return rc;
}

int tern_cursor_str(struct tern_cursor *c, size_t max, struct tern_str *s, const char *what, tern_error *err)
{
    int rc = 0;
    size_t at = c->pos;
    uint64_t n = 0;
    const uint8_t *p = NULL;
    TERN_TRY(tern_cursor_u64(c, &n, what, err));
    if (n > tern_cursor_left(c))
        return tern_cursor_fail(c, at, TERN_EFORMAT, err, "%s claims %llu bytes, but only %zu are left", what,
                                (unsigned long long)n, tern_cursor_left(c));
    if (n > max)
        return tern_cursor_fail(c, at, TERN_ELIMIT, err, "%s has %llu bytes, more than the %zu allowed", what,
                                (unsigned long long)n, max);
    TERN_TRY(tern_cursor_take(c, (size_t)n, &p, what, err));
    s->p = (const char *)p;
    s->n = (size_t)n;
out:
    return rc;
}

int tern_cursor_name(struct tern_cursor *c, size_t max, const char **name, struct tern_file_arena *a, tern_error *err)
{
    int rc = 0;
    size_t at = c->pos;
    struct tern_str s;
    char *copy;
    TERN_TRY(tern_cursor_str(c, max, &s, "the name", err));
    if (s.n == 0)
        return tern_cursor_fail(c, at, TERN_EFORMAT, err, "the name is empty");
    if (memchr(s.p, 0, s.n))
        return tern_cursor_fail(c, at, TERN_EFORMAT, err, "the name contains a NUL byte");
    TERN_TRY(tern_file_arena_alloc(a, &copy, s.n + 1, 1, err));
    memcpy(copy, s.p, s.n);
    *name = copy;
out:
    return rc;
}

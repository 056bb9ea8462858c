#include "base/err.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tern_one_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7F)
            *text = ' ';
}

int tern_err_set(tern_error *err, int code, const char *fmt, ...)
{
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->code = code;
        (void)vsnprintf(err->msg, sizeof err->msg, fmt, ap);
        va_end(ap);
        tern_one_line(err->msg);
    }
    return code;
}

const char *tern_err_text(int code)
{
    switch (code) {
    case 0:
        return "ok";
#define TERN_ERROR_CASE(name, value, text, http) \
    case value:                                  \
        return text;
        TERN_ERROR_LIST(TERN_ERROR_CASE)
#undef TERN_ERROR_CASE
    default:
        return "unknown error";
    }
}

void tern_assert_failed(const char *expr, const char *file, int line)
{
    (void)fprintf(stderr, "tern: internal error: %s does not hold (%s:%d)\n", expr, file, line);
    abort();
}

const char *tern_path_show(const char *path)
{
    size_t n = strlen(path);
    if (n == 0)
        return "\"\"";
    return n > 150 ? path + (n - 150) : path;
}

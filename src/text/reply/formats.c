/* The formats of calls and reasoning, by name and by the text of a template. */
#include "text/reply/call.h"

#include <string.h>

static const struct tern_calls_format calls[] = {
#define TERN_CALLS(name, sign, open, close, frame, end, bare, quotes, parser) \
    {name, sign, open, close, {frame, end}, bare, quotes, parser},
#define TERN_REASONING(...)
#include "text/reply/calls.def"
};

static const struct tern_reasoning_format reasonings[] = {
#define TERN_CALLS(...)
#define TERN_REASONING(name, sign, open, close, skip) {name, sign, open, close, skip},
#include "text/reply/calls.def"
};

#define N_CALLS      (sizeof calls / sizeof *calls)
#define N_REASONINGS (sizeof reasonings / sizeof *reasonings)

const char *const *tern_reply_formats(void)
{
    static const char *const names[] = {
#define TERN_CALLS(name, ...) name,
#define TERN_REASONING(...)
#include "text/reply/calls.def"
        NULL};
    return names;
}

const struct tern_calls_format *tern_calls_named(const char *name)
{
    for (size_t i = 0; i < N_CALLS; i++)
        if (strcmp(calls[i].name, name) == 0)
            return &calls[i];
    return NULL;
}

const struct tern_reasoning_format *tern_reasoning_named(const char *name)
{
    for (size_t i = 0; i < N_REASONINGS; i++)
        if (strcmp(reasonings[i].name, name) == 0)
            return &reasonings[i];
    return NULL;
}

const char *tern_calls_name(const struct tern_calls_format *f)
{
    return f->name;
}

const char *tern_calls_open(const struct tern_calls_format *f)
{
    return f->open;
}

const char *tern_calls_close(const struct tern_calls_format *f)
{
    return f->close ? f->close : "";
}

const char *tern_reasoning_open(const struct tern_reasoning_format *f)
{
    return f->open;
}

const char *tern_reasoning_close(const struct tern_reasoning_format *f)
{
    return f->close;
}

bool tern_reasoning_begun(const struct tern_reasoning_format *f, const char *text, size_t n)
{
    size_t open = strlen(f->open);
    while (n && tern_call_blank(text[n - 1]))
        n--;
    return n >= open && memcmp(text + n - open, f->open, open) == 0;
}

bool tern_reasoning_open_in(const struct tern_reasoning_format *f, const char *text)
{
    const char *last = NULL;
    for (const char *p = text; (p = strstr(p, f->open)); p += strlen(f->open))
        last = p;
    return last && !strstr(last, f->close);
}

static bool has(const char *text, size_t n, const char *part)
{
    return n && memmem(text, n, part, strlen(part));
}

const struct tern_calls_format *tern_calls_of_text(const char *text, size_t n)
{
    for (size_t i = 0; i < N_CALLS; i++)
        if (has(text, n, calls[i].sign) &&
            (calls[i].bare || strstr(calls[i].open, calls[i].sign) || has(text, n, calls[i].open)))
            return &calls[i];
    return NULL;
}

const struct tern_reasoning_format *tern_reasoning_of_text(const char *text, size_t n)
{
    for (size_t i = 0; i < N_REASONINGS; i++)
        if (has(text, n, reasonings[i].sign))
            return &reasonings[i];
    return NULL;
}

#include "server/json.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#define BUDGET_BASE   ((size_t)1 << 20)
#define BUDGET_FACTOR 16 /* a list of ids takes 9 times its text, an image as text 3 times */

/* What this thread may still allocate while it reads a text. */
static _Thread_local size_t *budget;

static void *budgeted(size_t n)
{
    if (budget) {
        if (n > *budget) {
            *budget = 0; /* jansson does not always say that this was the reason */
            return NULL;
        }
        *budget -= n;
    }
    return malloc(n);
}

void tern_json_limit_memory(void)
{
    json_set_alloc_funcs(budgeted, free);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Nesting of a text, without recursion; what is inside of strings does not count. */
static int depth_of(const char *text, size_t n)
{
    int depth = 0, most = 0;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\')
                i++;
            else
                quoted = c != '"';
        } else if (c == '"') {
            quoted = true;
        } else if (c == '[' || c == '{') {
            most = ++depth > most ? depth : most;
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return most;
}

json_t *tern_json_read(const char *text, size_t n, char *why, size_t size)
{
    size_t left = BUDGET_BASE + BUDGET_FACTOR * n;
    json_error_t e;
    if (n == 0) {
        (void)snprintf(why, size, "the body is empty; it must be a JSON object");
        return NULL;
    }
    if (depth_of(text, n) > TERN_JSON_DEPTH) {
        (void)snprintf(why, size, "the JSON is nested deeper than %d levels", TERN_JSON_DEPTH);
        return NULL;
    }
    budget = &left;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    budget = NULL;
    if (!j && left == 0)
        (void)snprintf(why, size, "the JSON takes more memory than a request may");
    else if (!j) /* jansson quotes the text near the error: cut it short, and to one line */
        (void)snprintf(why, size, "malformed JSON in line %d, column %d: %.120s", e.line, e.column, e.text);
    for (char *p = why; !j && *p; p++)
        if ((unsigned char)*p < 0x20)
            *p = ' ';
    return j;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Length of the well-formed UTF-8 character at p (p < end), 0 when there is none. */
static size_t character(const unsigned char *p, const unsigned char *end)
{
    size_t n = p[0] < 0x80 ? 1 : p[0] >= 0xC2 && p[0] <= 0xDF ? 2 : (p[0] & 0xF0) == 0xE0 ? 3 : 4;
    if ((n == 4 && (p[0] < 0xF0 || p[0] > 0xF4)) || (size_t)(end - p) < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    bool overlong = (p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xF0 && p[1] < 0x90);
    bool outside = (p[0] == 0xED && p[1] > 0x9F) || (p[0] == 0xF4 && p[1] > 0x8F);
    return overlong || outside ? 0 : n;
}

json_t *tern_json_chars(const char *text, size_t n)
{
    json_t *plain = json_stringn(text ? text : "", text ? n : 0);
    if (plain)
        return plain;
    struct tern_buf b = {0};
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    while (p < end) {
        size_t k = character(p, end);
        (void)tern_buf_add(&b, k ? (const char *)p : "\xEF\xBF\xBD", k ? k : 3, NULL);
        p += k ? k : 1;
    }
    json_t *out = json_stringn(b.p ? b.p : "", b.len);
    tern_buf_clear(&b);
    return out;
}

json_t *tern_json_cstr(const char *text)
{
    return text ? tern_json_chars(text, strlen(text)) : json_null();
}

static int add_piece(const char *text, size_t n, void *out)
{
    return tern_buf_add(out, text, n, NULL);
}

bool tern_json_write(struct tern_buf *out, json_t *j)
{
    bool ok = j && json_dump_callback(j, add_piece, out, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17)) == 0;
    json_decref(j);
    return ok;
}

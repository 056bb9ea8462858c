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
static _Thread_local bool lacked;

/* jansson's lexer goes on when the text of a token could not grow, and then aborts, or reads and writes what is not its
 * own.  So that never fails.  These texts grow to 32, 64, 128 .. bytes: requests of such sizes, some of which are for
 * other things, are met beyond the budget, and where the system has nothing out of what was put aside before. All other
 * requests fail from the first one on that did, so that reading ends. */
#define SPARES 2 /* of each size; one may be taken by something else */
#define SIZES  48
static _Thread_local void *spares[SIZES][SPARES];

static bool may_be_token(size_t n)
{
    return n >= 32 && (n & (n - 1)) == 0;
}

static void *take_spare(size_t n)
{
    const int k = __builtin_ctzll(n);
    for (int i = 0; i < SPARES && k < SIZES; i++)
        if (spares[k][i]) {
            void *p = spares[k][i];
            spares[k][i] = NULL;
            return p;
        }
    return NULL;
}

void tern_json_end(void)
{
    for (int k = 0; k < SIZES; k++)
        for (int i = 0; i < SPARES; i++) {
            free(spares[k][i]);
            spares[k][i] = NULL;
        }
}

bool tern_json_begin(size_t n)
{
    bool ok = true;
    for (int k = 5; k < SIZES && (size_t)1 << (k - 1) <= 4 * n && ok; k++)
        for (int i = 0; i < SPARES && ok; i++)
            ok = spares[k][i] || (spares[k][i] = malloc((size_t)1 << k));
    lacked |= !ok;
    return ok;
}

void tern_json_lack(void)
{
    lacked = true;
}

bool tern_json_lacked(void)
{
    const bool was = lacked;
    lacked = false;
    return was;
}

static void *get(size_t n)
{
    if (budget) {
        if (n > *budget && !may_be_token(n)) {
            *budget = 0; /* jansson does not always say that this was the reason */
            return NULL;
        }
        *budget -= n < *budget ? n : *budget;
    }
    void *p = lacked && !may_be_token(n) ? NULL : malloc(n);
    lacked |= !p;
    return p || !may_be_token(n) ? p : take_spare(n);
}

void tern_json_limit_memory(void)
{
    json_set_alloc_funcs(get, free);
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

/* Which member has the number that ends in front of `end`?  *number: it; the name without its quotes; 0: it is none's.
 */
static int name_of_number(const char *text, size_t end, const char **name, const char **number)
{
    size_t at = end, close;
    while (at > 0 && strchr("+-.0123456789eE", text[at - 1]))
        at--;
    *number = text + at;
    while (at > 0 && strchr(" \t\r\n", text[at - 1]))
        at--;
    if (at == 0 || text[--at] != ':')
        return 0;
    while (at > 0 && text[at] != '"')
        at--;
    for (close = at; at > 0 && text[at - 1] != '"';)
        at--;
    *name = text + at;
    return (int)(close - at);
}

/* jansson quotes the text near the error: cut it short.  A number that no 64 bits hold is no error of the notation. */
static void say_malformed(const json_error_t *e, const char *text, size_t n, char *why, size_t size)
{
    const char *name, *number;
    size_t end = (size_t)e->position < n ? (size_t)e->position : n;
    if (json_error_code(e) != json_error_numeric_overflow) {
        (void)snprintf(why, size, "malformed JSON in line %d, column %d: %.120s", e->line, e->column, e->text);
        return;
    }
    const int length = name_of_number(text, end, &name, &number);
    const int digits = (int)(text + end - number);
    (void)snprintf(why, size, "%.*s in line %d has a number that 64 bits do not hold: %.*s",
                   length ? length < 60 ? length : 60 : 6, length ? name : "a list", e->line, digits < 40 ? digits : 40,
                   number);
}

json_t *tern_json_read(const char *text, size_t n, char *why, size_t size)
{
    size_t left = BUDGET_BASE + BUDGET_FACTOR * n;
    json_error_t e = {.text = ""};
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
    else if (!j)
        say_malformed(&e, text, n, why, size);
    return j;
}

json_t *tern_json_arguments(const char *text, size_t n)
{
    json_t *j = n && tern_json_begin(n) ? json_loadb(text, n, JSON_ALLOW_NUL, NULL) : NULL;
    tern_json_end();
    return j ? j : json_object();
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

void tern_json_add(struct tern_buf *b, const char *text, size_t n)
{
    lacked |= tern_buf_add(b, text, n, NULL) < 0;
}

json_t *tern_json_chars(const char *text, size_t n)
{
    json_t *plain = json_stringn(text ? text : "", text ? n : 0);
    if (plain || !text)
        return plain;
    struct tern_buf b = {0};
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    while (p < end) {
        size_t k = character(p, end);
        tern_json_add(&b, k ? (const char *)p : "\xEF\xBF\xBD", k ? k : 3);
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

struct writing {
    struct tern_buf *out;
    bool ok; /* jansson goes on after some pieces that were not taken, and forgets them */
};

static int add_piece(const char *text, size_t n, void *writing)
{
    struct writing *w = writing;
    w->ok = w->ok && tern_buf_add(w->out, text, n, NULL) == 0;
    return w->ok ? 0 : -1;
}

bool tern_json_write(struct tern_buf *out, json_t *j)
{
    struct writing w = {out, j != NULL};
    const size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17);
    bool ok = j && json_dump_callback(j, add_piece, &w, flags) == 0 && w.ok;
    json_decref(j);
    return ok;
}

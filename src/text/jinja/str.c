/* Strings with marks: building, joining, cutting, searching. */
#include "text/jinja/jinja.h"

#include <string.h>

size_t tern_jutf8_next(const char *p, size_t n, uint32_t *cp)
{
    const unsigned char *u = (const unsigned char *)p;
    if (u[0] < 0x80) {
        *cp = u[0];
        return 1;
    }
    size_t k = u[0] >= 0xC2 && u[0] < 0xE0 ? 2 : (u[0] & 0xF0) == 0xE0 ? 3 : u[0] >= 0xF0 && u[0] < 0xF5 ? 4 : 0;
    uint32_t v = k ? u[0] & (0xFFu >> (k + 1)) : 0;
    bool good = k && k <= n;
    for (size_t i = 1; good && i < k; i++) {
        good = (u[i] & 0xC0) == 0x80;
        v = v << 6 | (u[i] & 0x3Fu);
    }
    if (good && k == 3)
        good = v >= 0x800 && (v < 0xD800 || v > 0xDFFF);
    if (good && k == 4)
        good = v >= 0x10000 && v <= 0x10FFFF;
    *cp = good ? v : 0xDC00u + u[0];
    return good ? k : 1;
}

size_t tern_jutf8_prev(const char *p, size_t n)
{
    for (size_t k = 1; k <= 4 && k <= n; k++) {
        uint32_t cp;
        if (((unsigned char)p[n - k] & 0xC0) != 0x80)
            return tern_jutf8_next(p + n - k, k, &cp) == k ? k : 1;
    }
    return 1;
}

size_t tern_jutf8_put(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t k = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = k - 1; i > 0; i--, cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3F));
    out[0] = (char)(cp | (0xF00u >> k & 0xFFu));
    return k;
}

bool tern_jutf8_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || (cp >= 0x1C && cp <= 0x20) || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F ||
           cp == 0x3000;
}

bool tern_jutf8_linebreak(uint32_t cp)
{
    return (cp >= 10 && cp <= 13) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

static int new_str(struct jrun *r, struct jstr s, struct jval *out)
{
    struct jstr *p;
    JTRY(tern_jrun_alloc_raw(r, &p, sizeof *p));
    *p = s;
    *out = (struct jval){.t = JV_STR, .s = p};
    return 0;
}

int tern_jstr_new(struct jrun *r, const char *p, size_t n, bool user, struct jval *out)
{
    char *copy;
    JTRY(tern_jrun_charge(r, n / 64));
    JTRY(tern_jrun_alloc_raw(r, &copy, n));
    if (n)
        memcpy(copy, p, n);
    return new_str(r, (struct jstr){.p = copy, .len = n, .chars = SIZE_MAX, .user = user}, out);
}

int tern_jstr_lit(struct jrun *r, const char *static_text, struct jval *out)
{
    return new_str(r, (struct jstr){.p = static_text, .len = strlen(static_text), .chars = SIZE_MAX}, out);
}

int tern_jstr_sub(struct jrun *r, const struct jstr *s, size_t off, size_t n, struct jval *out)
{
    struct jstr sub = {.p = s->p + off, .m = s->m ? s->m + off : NULL, .len = n, .chars = SIZE_MAX, .user = s->user};
    if (s->chars == s->len)
        sub.chars = n; /* every byte is a character */
    return new_str(r, sub, out);
}

bool tern_jstr_eq(const struct jstr *a, const struct jstr *b)
{
    return a->len == b->len && (a->len == 0 || memcmp(a->p, b->p, a->len) == 0);
}

bool tern_jstr_is(const struct jstr *a, const char *text)
{
    return a->len == strlen(text) && memcmp(a->p, text, a->len) == 0;
}

/* The order of UTF-8 bytes is the order of code points. */
int tern_jstr_cmp(const struct jstr *a, const struct jstr *b)
{
    size_t n = a->len < b->len ? a->len : b->len;
    int c = n ? memcmp(a->p, b->p, n) : 0;
    return c ? c : (a->len > b->len) - (a->len < b->len);
}

bool tern_jstr_any_user(const struct jstr *s)
{
    return s->m ? memchr(s->m, 1, s->len) != NULL : s->user && s->len > 0;
}

size_t tern_jstr_find(const struct jstr *s, const struct jstr *what, size_t from)
{
    if (from > s->len || what->len > s->len - from)
        return SIZE_MAX;
    if (what->len == 0)
        return from;
    const char *hit = memmem(s->p + from, s->len - from, what->p, what->len);
    return hit ? (size_t)(hit - s->p) : SIZE_MAX;
}

int tern_jstr_chars(struct jrun *r, struct jstr *s, size_t *n)
{
    if (s->chars == SIZE_MAX) {
        size_t chars = 0;
        JTRY(tern_jrun_charge(r, s->len / 16));
        for (size_t i = 0; i < s->len; chars++) {
            uint32_t cp;
            i += tern_jutf8_next(s->p + i, s->len - i, &cp);
        }
        s->chars = chars;
    }
    *n = s->chars;
    return 0;
}

/* ---- concatenation ------------------------------------------------------------------------------------------- */

static bool same_mark(const struct jstr *a, const struct jstr *b)
{
    return !a->m && !b->m && (a->user == b->user || a->len == 0 || b->len == 0);
}

static int too_long(struct jrun *r)
{
    return tern_jrun_fail(r, TERN_ELIMIT, "a string grows beyond %zu bytes", JINJA_MAX_TEXT);
}

static void put_marks(uint8_t *to, const struct jstr *s)
{
    if (s->m)
        memcpy(to, s->m, s->len);
    else
        memset(to, s->user, s->len);
}

/* A buffer that holds a and has room for more. */
static int new_grow(struct jrun *r, const struct jstr *a, size_t want, bool mixed, struct jgrow **out)
{
    struct jgrow *g;
    size_t cap = a->grow ? want * 2 : want;
    JTRY(tern_jrun_charge(r, a->len / 64));
    JTRY(tern_jrun_alloc(r, &g, sizeof *g));
    JTRY(tern_jrun_alloc_raw(r, &g->p, cap));
    memcpy(g->p, a->p, a->len);
    if (mixed) {
        JTRY(tern_jrun_alloc_raw(r, &g->m, cap));
        put_marks(g->m, a);
    }
    g->used = a->len;
    g->cap = cap;
    *out = g;
    return 0;
}

int tern_jstr_concat(struct jrun *r, struct jstr *a, const struct jstr *b, struct jval *out)
{
    if (a->len == 0 || b->len == 0) {
        *out = (struct jval){.t = JV_STR, .s = a->len ? a : (struct jstr *)(uintptr_t)b};
        return 0;
    }
    size_t total = a->len + b->len;
    bool mixed = !same_mark(a, b);
    struct jgrow *g = a->grow;
    if (total > JINJA_MAX_TEXT)
        return too_long(r);
    JTRY(tern_jrun_charge(r, b->len / 64));
    if (!g || a->p + a->len != g->p + g->used || g->cap - g->used < b->len)
        JTRY(new_grow(r, a, total, mixed, &g));
    if (mixed && !g->m) { /* the buffer was uniform until now */
        JTRY(tern_jrun_charge(r, a->len / 64));
        JTRY(tern_jrun_alloc_raw(r, &g->m, g->cap));
        put_marks(g->m, a);
    }
    memcpy(g->p + g->used, b->p, b->len);
    if (g->m)
        put_marks(g->m + g->used, b);
    g->used = total;
    struct jstr s = {.p = g->p, .len = total, .chars = SIZE_MAX, .grow = g, .user = a->user};
    s.m = mixed ? g->m : NULL;
    if (a->chars != SIZE_MAX && b->chars != SIZE_MAX && a->chars == a->len && b->chars == b->len)
        s.chars = total;
    return new_str(r, s, out);
}

/* ---- building ------------------------------------------------------------------------------------------------ */

static int build_reserve(struct jrun *r, struct jbuild *b, size_t more)
{
    if (more > JINJA_MAX_TEXT - b->len)
        return too_long(r);
    size_t want = b->len + more;
    if (want <= b->cap)
        return 0;
    size_t cap = b->cap ? b->cap : 128;
    while (cap < want)
        cap *= 2;
    char *p = tern_jarena_regrow(&r->arena, b->p, b->cap, cap);
    uint8_t *m = p && b->m ? tern_jarena_regrow(&r->arena, b->m, b->cap, cap) : NULL;
    if (p)
        b->p = p; /* the old block may be gone */
    if (!p || (b->m && !m))
        return tern_jrun_no_room(r);
    b->m = m;
    b->cap = cap;
    return 0;
}

int tern_jbuild_add(struct jrun *r, struct jbuild *b, const char *p, const uint8_t *m, bool user, size_t n)
{
    if (n == 0)
        return 0;
    JTRY(tern_jrun_charge(r, n / 64));
    JTRY(build_reserve(r, b, n));
    if (b->len == 0 && !m && !b->m)
        b->user = user;
    if (!b->m && (m || user != b->user)) {
        JTRY(tern_jrun_alloc_raw(r, &b->m, b->cap));
        memset(b->m, b->user, b->len);
    }
    memcpy(b->p + b->len, p, n);
    if (b->m && m)
        memcpy(b->m + b->len, m, n);
    else if (b->m)
        memset(b->m + b->len, user, n);
    b->saw_user |= m ? memchr(m, 1, n) != NULL : user;
    b->len += n;
    return 0;
}

int tern_jbuild_str(struct jrun *r, struct jbuild *b, const struct jstr *s)
{
    return tern_jbuild_add(r, b, s->p, s->m, s->user, s->len);
}

int tern_jbuild_sub(struct jrun *r, struct jbuild *b, const struct jstr *s, size_t off, size_t n)
{
    return tern_jbuild_add(r, b, s->p + off, s->m ? s->m + off : NULL, s->user, n);
}

int tern_jbuild_text(struct jrun *r, struct jbuild *b, const char *text)
{
    return tern_jbuild_add(r, b, text, NULL, false, strlen(text));
}

int tern_jbuild_done(struct jrun *r, struct jbuild *b, struct jval *out)
{
    struct jstr s = {.p = b->len ? b->p : "", .m = b->m, .len = b->len, .chars = SIZE_MAX, .user = b->user};
    return new_str(r, s, out);
}

/* ---- cutting ------------------------------------------------------------------------------------------------- */

static int slice_backwards(struct jrun *r, const struct jstr *s, const size_t *at, int64_t start, int64_t step,
                           int64_t n, struct jval *out)
{
    struct jbuild b = {0};
    JTRY(tern_jrun_charge(r, (size_t)n / 2));
    for (int64_t i = 0; i < n; i++) {
        size_t c = (size_t)(start + i * step);
        JTRY(tern_jbuild_sub(r, &b, s, at[c], at[c + 1] - at[c]));
    }
    return tern_jbuild_done(r, &b, out);
}

/* n characters: start, start + step, ...; all inside the string. */
int tern_jstr_slice(struct jrun *r, struct jstr *s, int64_t start, int64_t step, int64_t n, struct jval *out)
{
    size_t chars;
    JTRY(tern_jstr_chars(r, s, &chars));
    if (n <= 0)
        return tern_jstr_lit(r, "", out);
    if (step == 1 && chars == s->len)
        return tern_jstr_sub(r, s, (size_t)start, (size_t)n, out);
    JTRY(tern_jrun_charge(r, s->len / 16));
    if (step == 1) {
        size_t begin = 0, end;
        uint32_t cp;
        for (int64_t i = 0; i < start; i++)
            begin += tern_jutf8_next(s->p + begin, s->len - begin, &cp);
        end = begin;
        for (int64_t i = 0; i < n; i++)
            end += tern_jutf8_next(s->p + end, s->len - end, &cp);
        return tern_jstr_sub(r, s, begin, end - begin, out);
    }
    size_t *at;
    JTRY(tern_jrun_alloc_raw(r, &at, (chars + 1) * sizeof *at));
    at[0] = 0;
    for (size_t i = 0; i < chars; i++) {
        uint32_t cp;
        at[i + 1] = at[i] + tern_jutf8_next(s->p + at[i], s->len - at[i], &cp);
    }
    return slice_backwards(r, s, at, start, step, n, out);
}

int tern_jstr_replace(struct jrun *r, const struct jstr *s, const struct jstr *from, const struct jstr *to, int64_t max,
                      struct jval *out)
{
    struct jbuild b = {0};
    size_t at = 0;
    JTRY(tern_jrun_charge(r, s->len / 16));
    if (from->len == 0) { /* between all characters, as Python does */
        for (; max != 0; max--) {
            uint32_t cp;
            JTRY(tern_jrun_charge(r, 1));
            JTRY(tern_jbuild_str(r, &b, to));
            if (at >= s->len)
                break;
            size_t k = tern_jutf8_next(s->p + at, s->len - at, &cp);
            JTRY(tern_jbuild_sub(r, &b, s, at, k));
            at += k;
        }
    }
    while (from->len && max != 0) {
        size_t hit = tern_jstr_find(s, from, at);
        if (hit == SIZE_MAX)
            break;
        JTRY(tern_jrun_charge(r, 1));
        JTRY(tern_jbuild_sub(r, &b, s, at, hit - at));
        JTRY(tern_jbuild_str(r, &b, to));
        at = hit + from->len;
        max--;
    }
    JTRY(tern_jbuild_sub(r, &b, s, at, s->len - at));
    return tern_jbuild_done(r, &b, out);
}

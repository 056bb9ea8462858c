/* Regular expressions in the syntax of ECMA-262: the part of it that is regular. */
#include "grammar/build.h"

#include <string.h>
#include "base/utf8.h"

struct regex {
    tern_grammar *g;
    const char *text;
    size_t n, at;
    bool quoted; /* what is matched stands in a JSON string, and is searched for */
    int depth;
};

static struct tern_gr_frag refuse(struct regex *r, int code, const char *what)
{
    (void)tern_gr_fail(r->g, code, "the pattern, at byte %zu: %s", r->at, what);
    return (struct tern_gr_frag){0};
}

static int peek(const struct regex *r)
{
    return r->at < r->n ? (unsigned char)r->text[r->at] : -1;
}

static bool next_is(const struct regex *r, const char *s)
{
    size_t n = strlen(s);
    return r->n - r->at >= n && memcmp(r->text + r->at, s, n) == 0;
}

/* ---- characters -------------------------------------------------------------------------------------------------- */

static uint32_t take_char(struct regex *r)
{
    uint32_t cp = 0;
    int n = r->at < r->n ? tern_utf8_decode(r->text + r->at, r->n - r->at, &cp) : 0;
    if (n == 0)
        (void)refuse(r, TERN_EINVAL, "it is not UTF-8");
    r->at += n ? (size_t)n : 1;
    return cp;
}

/* So many hex digits. */
static uint32_t take_hex(struct regex *r, int least, int most)
{
    uint32_t v = 0;
    int n = 0;
    for (; n < most; n++) {
        int c = peek(r);
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : -1;
        if (d < 0)
            break;
        v = v * 16 + (uint32_t)d;
        r->at++;
    }
    if (n < least || v > 0x10FFFF)
        (void)refuse(r, TERN_EINVAL, "an escape lacks hex digits, or is no character");
    return v;
}

/* \d, \w, \s and their opposites into c; false: the letter is none of them. */
static bool add_class(struct regex *r, int letter, struct tern_gr_chars *c)
{
    static const uint32_t digit[][2] = {{'0', '9'}}, word[][2] = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
                          space[][2] = {{9, 13},          {' ', ' '},       {0xA0, 0xA0},     {0x1680, 0x1680},
                                        {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
                                        {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
    int lower = letter | 0x20;
    const uint32_t(*v)[2] = lower == 'd' ? digit : lower == 'w' ? word : space;
    size_t n = lower == 'd' ? 1 : lower == 'w' ? 4 : 10;
    struct tern_gr_chars set = {0};
    if (lower != 'd' && lower != 'w' && lower != 's')
        return false;
    for (size_t i = 0; i < n; i++)
        tern_gr_chars_add(r->g, &set, v[i][0], v[i][1]);
    if (letter != lower)
        tern_gr_chars_not(r->g, &set);
    for (size_t i = 0; i < set.n; i++)
        tern_gr_chars_add(r->g, c, set.v[i].from, set.v[i].to);
    tern_gr_chars_clear(&set);
    return true;
}

/* Behind \u.  Two of four digits may be the halves of one character. */
static uint32_t take_unicode(struct regex *r)
{
    bool braces = peek(r) == '{';
    r->at += braces;
    uint32_t cp = take_hex(r, braces ? 1 : 4, braces ? 6 : 4);
    if (braces && peek(r) != '}')
        (void)refuse(r, TERN_EINVAL, "an escape lacks its brace");
    r->at += braces;
    size_t end = r->at;
    if (braces || cp < 0xD800 || cp > 0xDBFF || !next_is(r, "\\u") || tern_gr_failed(r->g))
        return cp;
    if (end + 2 < r->n && r->text[end + 2] == '{')
        return cp;
    r->at += 2;
    uint32_t low = take_hex(r, 4, 4);
    if (low >= 0xDC00 && low <= 0xDFFF)
        return 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
    r->at = end;
    return cp;
}

/* Behind a backslash: a class into c and true, or one character into *cp. */
static bool take_escape(struct regex *r, struct tern_gr_chars *c, uint32_t *cp)
{
    int e = peek(r);
    *cp = 0;
    if (e < 0) {
        (void)refuse(r, TERN_EINVAL, "it ends behind a backslash");
        return false;
    }
    if (add_class(r, e, c)) {
        r->at++;
        return true;
    }
    static const char letters[] = "tnrfv", meant[] = "\t\n\r\f\v";
    const char *l = strchr(letters, e);
    if (e >= '1' && e <= '9') {
        (void)refuse(r, TERN_EUNSUPPORTED, "references to groups are not supported");
    } else if (e == 'b' || e == 'B') {
        (void)refuse(r, TERN_EUNSUPPORTED, "borders of words are not supported");
    } else if (e == 'p' || e == 'P') {
        (void)refuse(r, TERN_EUNSUPPORTED, "properties of characters are not supported");
    } else if (l) {
        r->at++;
        *cp = (unsigned char)meant[l - letters];
    } else if (e == 'x') {
        r->at++;
        *cp = take_hex(r, 2, 2);
    } else if (e == 'u') {
        r->at++;
        *cp = take_unicode(r);
    } else if ((e >= '0' && e <= '9') || (e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z')) {
        (void)refuse(r, TERN_EUNSUPPORTED, "this escape is not supported");
    } else {
        *cp = take_char(r);
    }
    return false;
}

/* A character or class of characters within brackets; true: a class. */
static bool take_member(struct regex *r, struct tern_gr_chars *c, uint32_t *cp)
{
    if (next_is(r, "[:") || next_is(r, "[=") || next_is(r, "[."))
        (void)refuse(r, TERN_EUNSUPPORTED, "names of classes of characters are not supported");
    if (peek(r) != '\\') {
        *cp = take_char(r);
        return false;
    }
    r->at++;
    if (peek(r) == 'b') {
        r->at++;
        *cp = '\b';
        return false;
    }
    return take_escape(r, c, cp);
}

/* Behind the opening bracket. */
static void take_brackets(struct regex *r, struct tern_gr_chars *c)
{
    bool negated = peek(r) == '^';
    r->at += negated;
    if (peek(r) == ']')
        (void)refuse(r, TERN_EUNSUPPORTED, "an empty class of characters, or one with a bracket without a backslash");
    while (!tern_gr_failed(r->g) && peek(r) != ']') {
        uint32_t from = 0, to;
        if (peek(r) < 0) {
            (void)refuse(r, TERN_EINVAL, "a class of characters lacks its bracket");
            return;
        }
        if (take_member(r, c, &from))
            continue;
        to = from;
        if (peek(r) == '-' && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at++;
            if (take_member(r, c, &to))
                (void)refuse(r, TERN_EINVAL, "a range of characters ends with a class");
            if (to < from)
                (void)refuse(r, TERN_EINVAL, "a range of characters is upside down");
        }
        tern_gr_chars_add(r->g, c, from, to);
    }
    r->at++;
    if (negated)
        tern_gr_chars_not(r->g, c);
}

static struct tern_gr_frag emit(struct regex *r, struct tern_gr_chars *c)
{
    struct tern_gr_frag f = r->quoted ? tern_gr_char_quoted(r->g, c) : tern_gr_char(r->g, c);
    tern_gr_chars_clear(c);
    return f;
}

/* ---- structure --------------------------------------------------------------------------------------------------- */

static struct tern_gr_frag take_choice(struct regex *r);

/* Behind the opening bracket. */
static struct tern_gr_frag take_group(struct regex *r)
{
    if (next_is(r, "?=") || next_is(r, "?!") || next_is(r, "?<=") || next_is(r, "?<!"))
        return refuse(r, TERN_EUNSUPPORTED, "looking ahead or behind is not supported");
    if (next_is(r, "?:")) {
        r->at += 2;
    } else if (next_is(r, "?<") || next_is(r, "?P<")) {
        const char *end = memchr(r->text + r->at, '>', r->n - r->at);
        if (!end)
            return refuse(r, TERN_EINVAL, "the name of a group has no end");
        r->at = (size_t)(end - r->text) + 1;
    } else if (peek(r) == '?') {
        return refuse(r, TERN_EUNSUPPORTED, "this kind of group is not supported");
    }
    if (++r->depth > TERN_GR_MAX_DEPTH)
        return refuse(r, TERN_ELIMIT, "groups are nested deeper than 64 levels");
    struct tern_gr_frag f = take_choice(r);
    r->depth--;
    if (peek(r) != ')')
        return refuse(r, TERN_EINVAL, "a group lacks its bracket");
    r->at++;
    return f;
}

static struct tern_gr_frag take_atom(struct regex *r)
{
    struct tern_gr_chars c = {0};
    uint32_t cp = 0;
    int first = peek(r);
    switch (first) {
    case '(':
        r->at++;
        return take_group(r);
    case '[':
        r->at++;
        take_brackets(r, &c);
        return emit(r, &c);
    case '.':
        r->at++;
        tern_gr_chars_add(r->g, &c, '\n', '\n');
        tern_gr_chars_add(r->g, &c, '\r', '\r');
        tern_gr_chars_add(r->g, &c, 0x2028, 0x2029);
        tern_gr_chars_not(r->g, &c);
        return emit(r, &c);
    case '*':
    case '+':
    case '?':
    case '{':
        return refuse(r, TERN_EINVAL, "there is nothing to repeat");
    case '^':
    case '$':
        return refuse(r, TERN_EUNSUPPORTED, "^ and $ are supported only at the beginning and the end of a pattern");
    case '\\':
        r->at++;
        if (!take_escape(r, &c, &cp))
            tern_gr_chars_add(r->g, &c, cp, cp);
        return emit(r, &c);
    default:
        cp = take_char(r);
        tern_gr_chars_add(r->g, &c, cp, cp);
        return emit(r, &c);
    }
}

static uint32_t take_number(struct regex *r, bool *any)
{
    uint32_t v = 0;
    for (*any = false; peek(r) >= '0' && peek(r) <= '9'; r->at++, *any = true)
        v = v > TERN_GR_MAX_REPEAT ? v : v * 10 + (uint32_t)(peek(r) - '0');
    return v;
}

/* {n}, {n,}, {n,m} */
static void take_counts(struct regex *r, uint32_t *min, uint32_t *max)
{
    bool lower, upper = true;
    r->at++;
    *min = *max = take_number(r, &lower);
    if (peek(r) == ',') {
        r->at++;
        *max = take_number(r, &upper);
        *max = upper ? *max : TERN_GR_NO_END;
    }
    if (!lower || peek(r) != '}')
        (void)refuse(r, TERN_EINVAL,
                     "a brace that begins no count, which takes a backslash, or a count without an end");
    else if (*max < *min)
        (void)refuse(r, TERN_EINVAL, "a count is upside down");
    r->at++;
}

static struct tern_gr_frag take_repeated(struct regex *r)
{
    struct tern_gr_frag f = take_atom(r);
    uint32_t min = 1, max = 1;
    int c = tern_gr_failed(r->g) ? -1 : peek(r);
    if (c != '*' && c != '+' && c != '?' && c != '{')
        return f;
    if (c == '{') {
        take_counts(r, &min, &max);
    } else {
        min = c == '+';
        max = c == '?' ? 1 : TERN_GR_NO_END;
        r->at++;
    }
    if (peek(r) == '?') /* which text is found first makes no difference to whether there is one */
        r->at++;
    else if (peek(r) == '+')
        return refuse(r, TERN_EUNSUPPORTED, "possessive repetition is not supported");
    c = peek(r);
    if (c == '*' || c == '+' || c == '?' || c == '{')
        return refuse(r, TERN_EINVAL, "there is nothing to repeat");
    return tern_gr_times(r->g, f, min, max);
}

/* Anything, for a pattern that need not reach the ends of its text. */
static struct tern_gr_frag any_text(tern_grammar *g)
{
    (void)tern_gr_json_char(g);
    return tern_gr_repeat(g, g->string_char, 0, TERN_GR_NO_END);
}

static struct tern_gr_frag take_sequence(struct regex *r)
{
    bool top = r->depth == 0, begins = top && peek(r) == '^', ends = false;
    struct tern_gr_frag f = tern_gr_empty(r->g);
    r->at += begins;
    while (!tern_gr_failed(r->g) && !ends && peek(r) >= 0 && peek(r) != '|' && peek(r) != ')') {
        ends = top && peek(r) == '$';
        if (ends)
            r->at++;
        else
            f = tern_gr_then(r->g, f, take_repeated(r));
    }
    if (ends && peek(r) >= 0 && peek(r) != '|')
        return refuse(r, TERN_EUNSUPPORTED, "^ and $ are supported only at the beginning and the end of a pattern");
    if (top && r->quoted && !begins)
        f = tern_gr_then(r->g, any_text(r->g), f);
    if (top && r->quoted && !ends)
        f = tern_gr_then(r->g, f, any_text(r->g));
    return f;
}

static struct tern_gr_frag take_choice(struct regex *r)
{
    struct tern_gr_frag f = take_sequence(r);
    while (!tern_gr_failed(r->g) && peek(r) == '|') {
        r->at++;
        f = tern_gr_or(r->g, f, take_sequence(r));
    }
    return f;
}

struct tern_gr_frag tern_gr_regex(tern_grammar *g, const char *p, size_t n, bool quoted)
{
    struct regex r = {.g = g, .text = p, .n = n, .quoted = quoted};
    struct tern_gr_frag f = take_choice(&r);
    if (r.at < r.n)
        return refuse(&r, TERN_EINVAL, "there is a bracket without its opening one");
    return f;
}

/* Template text to tokens.
 *
 * The rules for whitespace are those of Jinja with trim_blocks and lstrip_blocks on, which is how Hugging Face renders:
 * one newline behind a block or comment tag goes away; blanks before such a tag go away when nothing but blanks stand
 * before it on its line; `-` eats all whitespace on its side; `+` switches the automatic rule off on its side; and one
 * newline at the end of the whole template goes away. */
#include "text/jinja/jinja.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

struct lexer {
    struct jparse *p;
    const char *s; /* newlines normalised */
    size_t n, at;
    int line;
    bool line_starting; /* the last tag ended with a newline */
    char *brackets;     /* closing brackets that are due */
    size_t n_brackets, cap_brackets;
};

static int add_token(struct lexer *x, struct jtok tok)
{
    struct jparse *p = x->p;
    int rc = 0;
    if (tok.line == 0)
        tok.line = x->line;
    TERN_TRY(tern_grow(&p->toks, &p->cap_toks, p->n_toks + 1, sizeof *p->toks, p->err));
    p->toks[p->n_toks++] = tok;
out:
    return rc;
}

/* Moves on to `to`, counting lines. */
static void advance(struct lexer *x, size_t to)
{
    for (; x->at < to; x->at++)
        x->line += x->s[x->at] == '\n';
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    while (at < x->n) {
        uint32_t cp;
        size_t k = tern_jutf8_next(x->s + at, x->n - at, &cp);
        if (!tern_jutf8_space(cp))
            break;
        at += k;
    }
    return at;
}

static bool starts(const struct lexer *x, size_t at, const char *text)
{
    size_t k = strlen(text);
    return x->n - at >= k && memcmp(x->s + at, text, k) == 0;
}

/* End of a closing tag `xx` (for example "%}") at `at`, whitespace rules applied; 0 when none stands there. */
static size_t closing(const struct lexer *x, size_t at, const char *xx)
{
    bool variable = xx[0] == '}';
    if (at < x->n && x->s[at] == '-' && starts(x, at + 1, xx))
        return skip_space(x, at + 3);
    if (!variable && at < x->n && x->s[at] == '+' && starts(x, at + 1, xx))
        return at + 3;
    if (!starts(x, at, xx))
        return 0;
    at += 2;
    return !variable && at < x->n && x->s[at] == '\n' ? at + 1 : at;
}

/* Length of `text` (which ends at a tag) once the tag's whitespace rule is applied. */
static size_t strip_before(const struct lexer *x, const char *text, size_t n, char sign, bool variable)
{
    if (sign == '-') {
        while (n > 0) {
            uint32_t cp;
            size_t k = tern_jutf8_prev(text, n);
            (void)tern_jutf8_next(text + n - k, k, &cp);
            if (!tern_jutf8_space(cp))
                break;
            n -= k;
        }
        return n;
    }
    if (sign == '+' || variable)
        return n;
    size_t line = n;
    while (line > 0 && text[line - 1] != '\n')
        line--;
    if (line == 0 && !x->line_starting)
        return n;
    for (size_t i = line; i < n;) {
        uint32_t cp;
        i += tern_jutf8_next(text + i, n - i, &cp);
        if (!tern_jutf8_space(cp))
            return n;
    }
    return line;
}

static int add_data(struct lexer *x, size_t begin, size_t n)
{
    return n ? add_token(x, (struct jtok){.type = JT_DATA, .p = x->s + begin, .n = n}) : 0;
}

/* `{% raw %}`: after the tag, or 0 when the block tag at `at` is another one. */
static size_t raw_tag(const struct lexer *x, size_t at)
{
    at += 2;
    if (at < x->n && (x->s[at] == '-' || x->s[at] == '+'))
        at++;
    at = skip_space(x, at);
    if (!starts(x, at, "raw"))
        return 0;
    at = skip_space(x, at + 3);
    if (starts(x, at, "-%}"))
        return skip_space(x, at + 3);
    return starts(x, at, "%}") ? at + 2 : 0;
}

static int lex_raw(struct lexer *x, size_t begin)
{
    x->line_starting = begin > 0 && x->s[begin - 1] == '\n';
    for (size_t at = begin; at < x->n; at++) {
        if (!starts(x, at, "{%"))
            continue;
        size_t name = at + 2;
        char sign = name < x->n && (x->s[name] == '-' || x->s[name] == '+') ? x->s[name] : 0;
        name = skip_space(x, name + (sign != 0));
        if (!starts(x, name, "endraw"))
            continue;
        size_t end = closing(x, skip_space(x, name + 6), "%}");
        if (!end)
            continue;
        JTRY(add_data(x, begin, strip_before(x, x->s + begin, at - begin, sign, false)));
        advance(x, end);
        x->line_starting = x->s[end - 1] == '\n';
        return 0;
    }
    return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "a raw block is never closed");
}

static int lex_comment(struct lexer *x, size_t begin)
{
    const char *end = begin < x->n ? memmem(x->s + begin, x->n - begin, "#}", 2) : NULL;
    if (!end)
        return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "a comment is never closed");
    size_t at = (size_t)(end - x->s);
    if (at > begin && (x->s[at - 1] == '-' || x->s[at - 1] == '+'))
        at--;
    size_t to = closing(x, at, "#}");
    advance(x, to);
    x->line_starting = x->s[to - 1] == '\n';
    return 0;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int unescape_hex(struct lexer *x, const char *p, size_t n, size_t digits, char **to)
{
    uint32_t cp = 0;
    if (n < digits)
        return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "a string has a truncated \\x, \\u or \\U escape");
    for (size_t i = 0; i < digits; i++) {
        int d = hex(p[i]);
        if (d < 0)
            return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "a string has a truncated \\x, \\u or \\U escape");
        cp = cp << 4 | (uint32_t)d;
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp < 0xE000))
        return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "a string has the escape U+%04X, which is no character",
                                (unsigned)cp);
    *to += tern_jutf8_put(cp, *to);
    return 0;
}

/* Python's string escapes.  The result is never longer than the source: \xNN (4 bytes) makes at most 2. */
static int unescape(struct lexer *x, const char *p, size_t n, char *to, size_t *len)
{
    static const char simple[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    char *start = to;
    for (size_t i = 0; i < n;) {
        if (p[i] != '\\' || i + 1 >= n) {
            *to++ = p[i++];
            continue;
        }
        char c = p[i + 1];
        i += 2;
        const char *hit = NULL;
        for (size_t k = 0; k + 1 < sizeof simple - 1; k += 2)
            if (simple[k] == c)
                hit = simple + k;
        if (hit) {
            *to++ = hit[1];
        } else if (c == '\n') {
            continue;
        } else if (c >= '0' && c <= '7') {
            uint32_t v = (uint32_t)(c - '0');
            for (int k = 0; k < 2 && i < n && p[i] >= '0' && p[i] <= '7'; k++)
                v = v * 8 + (uint32_t)(p[i++] - '0');
            to += tern_jutf8_put(v, to);
        } else if (c == 'x' || c == 'u' || c == 'U') {
            size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
            JTRY(unescape_hex(x, p + i, n - i, digits, &to));
            i += digits;
        } else if (c == 'N') {
            return tern_jparse_fail(x->p, TERN_EUNSUPPORTED, x->line, "the string escape \\N{...} is not supported");
        } else {
            *to++ = '\\';
            *to++ = c;
        }
    }
    *len = (size_t)(to - start);
    return 0;
}

static int lex_string(struct lexer *x)
{
    char quote = x->s[x->at];
    size_t end = x->at + 1;
    while (end < x->n && x->s[end] != quote)
        end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n)
        return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "a string is never closed");
    struct jtok tok = {.type = JT_STRING, .line = x->line};
    char *text;
    JTRY(tern_jparse_alloc(x->p, &text, end - x->at));
    JTRY(unescape(x, x->s + x->at + 1, end - x->at - 1, text, &tok.n));
    tok.p = text;
    advance(x, end + 1);
    return add_token(x, tok);
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* End of a run of digits with single underscores between them. */
static size_t digits_end(const struct lexer *x, size_t at)
{
    while (at < x->n && (digit(x->s[at]) || (x->s[at] == '_' && at + 1 < x->n && digit(x->s[at + 1]))))
        at++;
    return at;
}

static int lex_number(struct lexer *x)
{
    size_t begin = x->at, end = digits_end(x, begin);
    bool real = false;
    int base = 10;
    char c = end < x->n ? (char)(x->s[end] | 0x20) : 0;
    if (end == begin + 1 && x->s[begin] == '0' && (c == 'x' || c == 'o' || c == 'b')) {
        base = c == 'x' ? 16 : c == 'o' ? 8 : 2;
        end++;
        while (end < x->n && (hex(x->s[end]) >= 0 || x->s[end] == '_'))
            end++;
    } else if (begin == 0 || x->s[begin - 1] != '.') {
        if (end + 1 < x->n && x->s[end] == '.' && digit(x->s[end + 1])) {
            end = digits_end(x, end + 1);
            real = true;
        }
        if (end + 1 < x->n && (x->s[end] | 0x20) == 'e') {
            size_t exp = end + 1 + (x->s[end + 1] == '+' || x->s[end + 1] == '-');
            if (exp < x->n && digit(x->s[exp])) {
                end = digits_end(x, exp);
                real = true;
            }
        }
    }
    struct jtok tok = {.type = real ? JT_FLOAT : JT_INT, .p = x->s + begin, .n = end - begin};
    if (real) {
        if (!tern_jnum_parse_float(tok.p, tok.n, &tok.f))
            return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "malformed number '%.*s'",
                                    tok.n > 40 ? 40 : (int)tok.n, tok.p);
    } else {
        int ok = tern_jnum_parse_int(tok.p, tok.n, base == 10 ? 10 : 0, &tok.i);
        if (ok == 0 || (base == 10 && tok.p[0] == '0' && tok.i != 0))
            return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "malformed number '%.*s'",
                                    tok.n > 40 ? 40 : (int)tok.n, tok.p);
        if (ok < 0)
            return tern_jparse_fail(x->p, TERN_ELIMIT, x->line, "the number %.*s does not fit in 64 bits",
                                    tok.n > 40 ? 40 : (int)tok.n, tok.p);
    }
    x->at = end;
    return add_token(x, tok);
}

static bool name_char(const struct lexer *x, size_t at)
{
    char c = x->s[at];
    if (digit(c) || c == '_' || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
        return true;
    uint32_t cp = 0;
    if ((unsigned char)c < 0x80)
        return false;
    (void)tern_jutf8_next(x->s + at, x->n - at, &cp);
    return !tern_jutf8_space(cp);
}

static int bracket(struct lexer *x, char c)
{
    int rc = 0;
    char due = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;
    if (due) {
        TERN_TRY(tern_grow(&x->brackets, &x->cap_brackets, x->n_brackets + 1, 1, x->p->err));
        x->brackets[x->n_brackets++] = due;
    } else if (c == ')' || c == ']' || c == '}') {
        if (x->n_brackets == 0)
            return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "unexpected '%c'", c);
        if (x->brackets[--x->n_brackets] != c)
            return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "unexpected '%c', expected '%c'", c,
                                    x->brackets[x->n_brackets]);
    }
out:
    return rc;
}

static int lex_operator(struct lexer *x)
{
    static const char two[] = "//**==!=>=<=";
    char c = x->s[x->at], d = x->at + 1 < x->n ? x->s[x->at + 1] : 0;
    for (size_t i = 0; i < sizeof two - 1; i += 2)
        if (two[i] == c && two[i + 1] == d) {
            x->at += 2;
            return add_token(x, (struct jtok){.type = JT_OP, .op = JINJA_OP2(c, d)});
        }
    if (!c || !strchr("+-/*%~[](){}><=.:|,;", c))
        return tern_jparse_fail(x->p, TERN_EFORMAT, x->line,
                                c >= 0x20 && c < 0x7f ? "unexpected character '%c'" : "unexpected byte 0x%02x",
                                (unsigned char)c);
    JTRY(bracket(x, c));
    x->at++;
    return add_token(x, (struct jtok){.type = JT_OP, .op = c});
}

/* The inside of {{ }} or {% %}, up to and including the closing tag. */
static int lex_inside(struct lexer *x, bool variable)
{
    const char *close = variable ? "}}" : "%}";
    x->n_brackets = 0;
    while (x->at < x->n) {
        size_t end = x->n_brackets ? 0 : closing(x, x->at, close);
        if (end) {
            JTRY(add_token(x, (struct jtok){.type = variable ? JT_VAR_END : JT_BLOCK_END}));
            advance(x, end);
            x->line_starting = x->s[end - 1] == '\n';
            return 0;
        }
        size_t word = skip_space(x, x->at);
        if (word > x->at) {
            advance(x, word);
            continue;
        }
        char c = x->s[x->at];
        if (c == '"' || c == '\'') {
            JTRY(lex_string(x));
        } else if (digit(c)) {
            JTRY(lex_number(x));
        } else if (name_char(x, x->at)) {
            size_t begin = x->at;
            while (x->at < x->n && name_char(x, x->at))
                x->at++;
            JTRY(add_token(x, (struct jtok){.type = JT_NAME, .p = x->s + begin, .n = x->at - begin}));
        } else {
            JTRY(lex_operator(x));
        }
    }
    return tern_jparse_fail(x->p, TERN_EFORMAT, x->line, "the template ends inside a tag");
}

static int lex_all(struct lexer *x)
{
    while (x->at < x->n) {
        size_t begin = x->at, tag = begin;
        while (tag < x->n) {
            const char *brace = memchr(x->s + tag, '{', x->n - tag);
            tag = brace ? (size_t)(brace - x->s) : x->n;
            if (tag + 1 < x->n && (x->s[tag + 1] == '{' || x->s[tag + 1] == '%' || x->s[tag + 1] == '#'))
                break;
            tag += tag < x->n;
        }
        if (tag >= x->n) {
            JTRY(add_data(x, begin, x->n - begin));
            advance(x, x->n);
            break;
        }
        char kind = x->s[tag + 1];
        char sign = tag + 2 < x->n ? x->s[tag + 2] : 0;
        if (sign != '-' && sign != '+')
            sign = 0;
        JTRY(add_data(x, begin, strip_before(x, x->s + begin, tag - begin, sign, kind == '{')));
        advance(x, tag);
        size_t raw = kind == '%' ? raw_tag(x, tag) : 0;
        advance(x, raw ? raw : tag + 2 + (sign != 0));
        if (kind == '#') {
            JTRY(lex_comment(x, x->at));
        } else if (raw) {
            JTRY(lex_raw(x, raw));
        } else {
            JTRY(add_token(x, (struct jtok){.type = kind == '{' ? JT_VAR_BEGIN : JT_BLOCK_BEGIN}));
            JTRY(lex_inside(x, kind == '{'));
        }
    }
    return add_token(x, (struct jtok){.type = JT_EOF});
}

int tern_jlex_run(struct jparse *p, const char *text, size_t n)
{
    struct lexer x = {.p = p, .line = 1, .line_starting = true};
    char *s;
    JTRY(tern_jparse_alloc(p, &s, n + 1));
    for (size_t i = 0; i < n; i++) {
        bool cr = text[i] == '\r';
        if (cr && i + 1 < n && text[i + 1] == '\n')
            continue;
        s[x.n++] = cr ? '\n' : text[i];
    }
    if (x.n > 0 && s[x.n - 1] == '\n')
        x.n--;
    x.s = s;
    int rc = lex_all(&x);
    tern_free(x.brackets);
    return rc;
}

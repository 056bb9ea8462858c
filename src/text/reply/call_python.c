/* Calls that are written as Python: one, several on lines of their own, or a list of them.  Values are literals, of
 * Python or of JSON; they become JSON. */
#include "text/reply/call.h"

#include <string.h>
#include <utf8proc.h>

static void skip_blank(struct tern_str *s)
{
    *s = tern_call_trim(s->p, s->n);
}

bool tern_call_python_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' ||
           (unsigned char)c >= 0x80;
}

static struct tern_str take_name(struct tern_str *s)
{
    size_t n = 0;
    while (n < s->n && tern_call_python_name(s->p[n]))
        n++;
    struct tern_str name = {s->p, n};
    s->p += n;
    s->n -= n;
    return name;
}

static bool is_word(struct tern_str s, const char *word)
{
    return s.n == strlen(word) && memcmp(s.p, word, s.n) == 0;
}

const char *tern_call_python_word(struct tern_str s)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"},
                                           {"true", "true"}, {"false", "false"}, {"null", "null"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is_word(s, words[i][0]))
            return words[i][1];
    return NULL;
}

/* ---- texts ------------------------------------------------------------------------------------------------------ */

static int digit_of(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : 99;
}

/* Up to n digits, or exactly n. */
static bool take_code(struct tern_str *s, size_t n, int base, bool exactly, uint32_t *cp)
{
    size_t k = 0;
    for (*cp = 0; k < n && k < s->n && digit_of(s->p[k]) < base; k++)
        *cp = *cp * (uint32_t)base + (uint32_t)digit_of(s->p[k]);
    s->p += k;
    s->n -= k;
    return k > 0 && (!exactly || k == n);
}

/* \uD83D\uDE00 is one character in JSON, which models write where they mean Python. */
static bool join_halves(struct tern_str *s, uint32_t *cp)
{
    uint32_t low;
    if (*cp < 0xD800 || *cp > 0xDFFF)
        return *cp <= 0x10FFFF;
    if (*cp > 0xDBFF || s->n < 2 || memcmp(s->p, "\\u", 2) != 0)
        return false;
    s->p += 2;
    s->n -= 2;
    if (!take_code(s, 4, 16, true, &low) || low < 0xDC00 || low > 0xDFFF)
        return false;
    *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
    return true;
}

/* What a backslash, which is gone, begins. */
static int add_escape(struct tern_str *s, struct tern_buf *out, tern_error *err)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char c = *s->p;
    const char *at = c ? strchr(from, c) : NULL;
    uint32_t cp = 0;
    bool ok = true;
    if (c >= '0' && c <= '7') {
        ok = take_code(s, 3, 8, false, &cp);
    } else {
        s->p++;
        s->n--;
        if (c == '\n')
            return 0;
        if (at)
            return tern_buf_addc(out, to[at - from], err);
        if (c != 'x' && c != 'u' && c != 'U') { /* Python keeps the backslash */
            int rc = tern_buf_addc(out, '\\', err);
            return rc < 0 ? rc : tern_buf_addc(out, c, err);
        }
        ok = take_code(s, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16, true, &cp) && join_halves(s, &cp);
    }
    if (!ok)
        return tern_err_set(err, TERN_EFORMAT, "a text in a call has an escape that is none");
    utf8proc_uint8_t utf8[4];
    return tern_buf_add(out, utf8, (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, utf8), err);
}

/* The text behind its opening quotes. */
static int add_quoted(struct tern_str *s, char quote, size_t n_quotes, struct tern_buf *out, tern_error *err)
{
    const char quotes[3] = {quote, quote, quote};
    while (s->n) {
        int rc;
        char c = *s->p;
        if (s->n >= n_quotes && memcmp(s->p, quotes, n_quotes) == 0) {
            s->p += n_quotes;
            s->n -= n_quotes;
            return 0;
        }
        s->p++;
        s->n--;
        if (c == '\\' && s->n)
            rc = add_escape(s, out, err);
        else
            rc = tern_buf_addc(out, c, err);
        if (rc < 0)
            return rc;
    }
    return tern_err_set(err, TERN_EFORMAT, "a text in a call has no end");
}

/* One text, or several that stand next to each other. */
static int add_text(struct tern_str *s, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    struct tern_buf text = {0};
    while (s->n && (*s->p == '"' || *s->p == '\'')) {
        char quote = *s->p;
        bool triple = s->n >= 3 && s->p[1] == quote && s->p[2] == quote;
        size_t n = triple ? 3 : 1;
        s->p += n;
        s->n -= n;
        TERN_TRY(add_quoted(s, quote, n, &text, err));
        skip_blank(s);
    }
    TERN_TRY(tern_call_string(out, (struct tern_str){text.p ? text.p : "", text.len}, err));
out:
    tern_buf_clear(&text);
    return rc;
}

/* ---- other values ----------------------------------------------------------------------------------------------- */

/* A number in decimal, as JSON wants it. */
static int add_number(struct tern_str *s, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    struct tern_buf text = {0};
    bool sign = *s->p == '-' || *s->p == '+', exponent = false;
    size_t i = sign;
    TERN_TRY(tern_buf_add(&text, "-", *s->p == '-', err));
    if (i < s->n && s->p[i] == '.')
        TERN_TRY(tern_buf_addc(&text, '0', err));
    for (; i < s->n; i++) {
        char c = s->p[i], next = i + 1 < s->n ? s->p[i + 1] : 0;
        bool digit = next >= '0' && next <= '9';
        if (c == '_' && digit)
            continue;
        bool after = exponent && (c == '+' || c == '-') && (s->p[i - 1] == 'e' || s->p[i - 1] == 'E');
        if (!(c >= '0' && c <= '9') && c != '.' && c != 'e' && c != 'E' && !after)
            break;
        TERN_TRY(tern_buf_addc(&text, c, err));
        if (c == '.' && !digit)
            TERN_TRY(tern_buf_addc(&text, '0', err));
        exponent = exponent || c == 'e' || c == 'E';
    }
    struct tern_str number = {text.p, text.len};
    if (!text.len || (i < s->n && tern_call_python_name(s->p[i])) || !tern_call_is_json(number, false))
        TERN_FAIL(err, TERN_EFORMAT, "a value in a call is no literal");
    s->p += i;
    s->n -= i;
    TERN_TRY(tern_buf_add(out, number.p, number.n, err));
out:
    tern_buf_clear(&text);
    return rc;
}

static int add_value(struct tern_str *s, struct tern_buf *out, int depth, tern_error *err);

/* The members of a list, tuple or dictionary up to `close`. */
static int add_members(struct tern_str *s, struct tern_buf *out, char close, int depth, tern_error *err)
{
    int rc = 0;
    bool object = close == '}';
    TERN_TRY(tern_buf_addc(out, object ? '{' : '[', err));
    for (bool first = true;; first = false) {
        skip_blank(s);
        if (!first && s->n && *s->p == ',') {
            s->p++;
            s->n--;
            skip_blank(s);
        } else if (!first && s->n && *s->p != close) {
            TERN_FAIL(err, TERN_EFORMAT, "the arguments of a call lack a comma");
        }
        if (s->n && *s->p == close)
            break;
        if (!s->n)
            TERN_FAIL(err, TERN_EFORMAT, "the arguments of a call are cut short");
        TERN_TRY(tern_buf_add(out, ", ", first ? 0 : 2, err));
        if (object) {
            if (*s->p != '"' && *s->p != '\'')
                TERN_FAIL(err, TERN_EFORMAT, "a key in a call is no text");
            TERN_TRY(add_text(s, out, err));
            if (!s->n || *s->p != ':')
                TERN_FAIL(err, TERN_EFORMAT, "a key in a call has no value");
            s->p++;
            s->n--;
            TERN_TRY(tern_buf_add(out, ": ", 2, err));
        }
        TERN_TRY(add_value(s, out, depth + 1, err));
    }
    s->p++;
    s->n--;
    TERN_TRY(tern_buf_addc(out, object ? '}' : ']', err));
out:
    return rc;
}

static int add_value(struct tern_str *s, struct tern_buf *out, int depth, tern_error *err)
{
    if (depth > TERN_CALL_MAX_DEPTH)
        return tern_err_set(err, TERN_EFORMAT, "the arguments of a call are nested more than %d deep",
                            TERN_CALL_MAX_DEPTH);
    skip_blank(s);
    char c = s->n ? *s->p : 0;
    if (c == '"' || c == '\'')
        return add_text(s, out, err);
    if (c == '[' || c == '(' || c == '{') {
        s->p++;
        s->n--;
        return add_members(s, out, c == '[' ? ']' : c == '(' ? ')' : '}', depth, err);
    }
    if ((c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.')
        return add_number(s, out, err);
    const char *word = tern_call_python_word(take_name(s));
    if (!word)
        return tern_err_set(err, TERN_EFORMAT, "a value in a call is no literal");
    return tern_buf_add(out, word, strlen(word), err);
}

int tern_call_literal(struct tern_buf *out, struct tern_str s, tern_error *err)
{
    int rc = add_value(&s, out, 0, err);
    skip_blank(&s);
    return rc == 0 && s.n ? tern_err_set(err, TERN_EFORMAT, "there is text behind a value in a call") : rc;
}

/* ---- calls ------------------------------------------------------------------------------------------------------ */

/* The name of parameter i of a tool; NULL: it has fewer, or is not known. */
static const char *parameter(const json_t *tool, int i)
{
    json_t *properties = json_object_get(json_object_get(tool, "parameters"), "properties");
    void *it = json_object_iter(properties);
    while (it && i-- > 0)
        it = json_object_iter_next(properties, it);
    return it ? json_object_iter_key(it) : NULL;
}

/* `key=value` or `value`, the key of which is that of the parameter at that place. */
static int add_argument(struct tern_str *s, int i, bool *keyed, const json_t *tool, struct tern_buf *args,
                        tern_error *err)
{
    int rc = 0;
    struct tern_str rest = *s, key = take_name(&rest);
    skip_blank(&rest);
    if (key.n && rest.n > 1 && *rest.p == '=' && rest.p[1] != '=') {
        *keyed = true;
        *s = (struct tern_str){rest.p + 1, rest.n - 1};
    } else {
        const char *name = *keyed ? NULL : parameter(tool, i);
        if (!name)
            TERN_FAIL(err, TERN_EFORMAT, "an argument of a call has no name");
        key = (struct tern_str){name, strlen(name)};
    }
    TERN_TRY(tern_buf_add(args, args->len ? ", " : "{", args->len ? 2 : 1, err));
    TERN_TRY(tern_call_string(args, key, err));
    TERN_TRY(tern_buf_add(args, ": ", 2, err));
    TERN_TRY(add_value(s, args, 0, err));
    skip_blank(s);
out:
    return rc;
}

/* name(arguments) */
static int add_call(struct tern_call_list *l, struct tern_str *s, tern_error *err)
{
    int rc = 0;
    bool keyed = false;
    struct tern_call *c;
    struct tern_buf args = {0};
    struct tern_str name = take_name(s);
    skip_blank(s);
    if (!name.n || !s->n || *s->p != '(')
        TERN_FAIL(err, TERN_EFORMAT, "a call is no name with arguments in brackets");
    s->p++;
    s->n--;
    skip_blank(s);
    TERN_TRY(tern_call_add(l, &c, name, (struct tern_str){0}, err));
    const json_t *tool = tern_call_tool(l->tools, c->name.p);
    for (int i = 0; s->n && *s->p != ')'; i++) {
        TERN_TRY(add_argument(s, i, &keyed, tool, &args, err));
        if (s->n && *s->p == ',') {
            s->p++;
            s->n--;
            skip_blank(s);
        } else if (s->n && *s->p != ')') {
            TERN_FAIL(err, TERN_EFORMAT, "the arguments of a call lack a comma");
        }
    }
    if (!s->n)
        TERN_FAIL(err, TERN_EFORMAT, "the arguments of a call are cut short");
    s->p++;
    s->n--;
    TERN_TRY(tern_buf_add(&args, args.len ? "}" : "{}", args.len ? 1 : 2, err));
    TERN_TRY(tern_call_args(c, (struct tern_str){args.p, args.len}, err));
out:
    tern_buf_clear(&args);
    return rc;
}

/* print(call), as models write that were shown Python: the call counts. */
static bool take_print(const struct tern_call_list *l, struct tern_str *s)
{
    struct tern_str rest = *s;
    if (tern_call_tool(l->tools, "print") || !is_word(take_name(&rest), "print"))
        return false;
    skip_blank(&rest);
    if (!rest.n || *rest.p != '(')
        return false;
    *s = tern_call_trim(rest.p + 1, rest.n - 1);
    return true;
}

int tern_call_python(struct tern_call_list *l, const char *p, size_t n, tern_error *err)
{
    int rc = 0;
    struct tern_str s = tern_call_trim(p, n);
    bool list = s.n && *s.p == '[';
    if (list) {
        if (s.p[s.n - 1] != ']')
            TERN_FAIL(err, TERN_EFORMAT, "a list of calls has no end");
        s = tern_call_trim(s.p + 1, s.n - 1);
        s = tern_call_trim(s.p, s.n ? s.n - 1 : 0);
    }
    while (s.n || !l->n) {
        bool printed = take_print(l, &s);
        TERN_TRY(add_call(l, &s, err));
        skip_blank(&s);
        if (printed) {
            if (!s.n || *s.p != ')')
                TERN_FAIL(err, TERN_EFORMAT, "the arguments of print are not one call");
            s = tern_call_trim(s.p + 1, s.n - 1);
        }
        if (list && s.n && *s.p != ',')
            TERN_FAIL(err, TERN_EFORMAT, "a list of calls lacks a comma");
        if (s.n && (*s.p == ',' || *s.p == ';'))
            s = tern_call_trim(s.p + 1, s.n - 1);
    }
out:
    return rc;
}

/* Arithmetic and the text of numbers, by Python's rules.  Integers have 64 bits; what does not fit is an error where
 * Python would go on with longer ones. */
#include "text/jinja/jinja.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

bool tern_jval_integer(struct jval v, int64_t *i)
{
    *i = v.t == JV_BOOL ? v.b : v.i;
    return v.t == JV_BOOL || v.t == JV_INT;
}

bool tern_jval_number(struct jval v, double *f)
{
    int64_t i;
    if (tern_jval_integer(v, &i))
        *f = (double)i;
    else if (v.t == JV_FLOAT)
        *f = v.f;
    else
        return false;
    return true;
}

static int zero_division(struct jrun *r)
{
    return tern_jrun_fail(r, TERN_EINVAL, "division by zero");
}

static int overflow(struct jrun *r)
{
    return tern_jrun_fail(r, TERN_ELIMIT, "an integer does not fit in 64 bits");
}

static int power(struct jrun *r, int64_t a, int64_t b, int64_t *out)
{
    int64_t v = 1;
    while (b > 0) { /* by squaring; the square is not needed, and may overflow, after the last bit */
        if ((b & 1) && __builtin_mul_overflow(v, a, &v))
            return overflow(r);
        b >>= 1;
        if (b && __builtin_mul_overflow(a, a, &a))
            return overflow(r);
    }
    *out = v;
    return 0;
}

static int integers(struct jrun *r, enum jop op, int64_t a, int64_t b, struct jval *out)
{
    int64_t v = 0;
    bool bad = false;
    switch (op) {
    case JOP_ADD:
        bad = __builtin_add_overflow(a, b, &v);
        break;
    case JOP_SUB:
        bad = __builtin_sub_overflow(a, b, &v);
        break;
    case JOP_MUL:
        bad = __builtin_mul_overflow(a, b, &v);
        break;
    case JOP_POW:
        JTRY(power(r, a, b, &v));
        break;
    case JOP_FLOORDIV:
    case JOP_MOD:
        if (b == 0)
            return zero_division(r);
        if (b == -1) { /* INT64_MIN / -1 traps */
            bad = op == JOP_FLOORDIV && __builtin_sub_overflow((int64_t)0, a, &v);
            break;
        }
        v = a % b;
        bool lower = v != 0 && (v < 0) != (b < 0); /* C rounds towards zero, Python downwards */
        v = op == JOP_MOD ? v + (lower ? b : 0) : a / b - lower;
        break;
    case JOP_DIV:
        if (b == 0)
            return zero_division(r);
        *out = tern_jval_float((double)((long double)a / (long double)b));
        return 0;
    }
    if (bad)
        return overflow(r);
    *out = tern_jval_int(v);
    return 0;
}

static void float_divmod(double a, double b, double *div, double *mod)
{
    *mod = fmod(a, b);
    *div = (a - *mod) / b;
    if (*mod != 0) {
        if ((b < 0) != (*mod < 0)) {
            *mod += b;
            *div -= 1;
        }
    } else {
        *mod = copysign(0.0, b);
    }
    if (*div != 0) {
        double whole = floor(*div);
        *div = *div - whole > 0.5 ? whole + 1 : whole;
    } else {
        *div = copysign(0.0, a / b);
    }
}

static int floats(struct jrun *r, enum jop op, double a, double b, struct jval *out)
{
    double v = 0, other;
    if (b == 0 && (op == JOP_DIV || op == JOP_FLOORDIV || op == JOP_MOD))
        return zero_division(r);
    switch (op) {
    case JOP_ADD:
        v = a + b;
        break;
    case JOP_SUB:
        v = a - b;
        break;
    case JOP_MUL:
        v = a * b;
        break;
    case JOP_DIV:
        v = a / b;
        break;
    case JOP_FLOORDIV:
        float_divmod(a, b, &v, &other);
        break;
    case JOP_MOD:
        float_divmod(a, b, &other, &v);
        break;
    case JOP_POW:
        if (a == 0 && b < 0)
            return zero_division(r);
        if (a < 0 && floor(b) != b && isfinite(a) && isfinite(b))
            return tern_jrun_fail(r, TERN_EINVAL, "a power of a negative number is not real");
        v = pow(a, b);
        if (isinf(v) && isfinite(a) && isfinite(b))
            return tern_jrun_fail(r, TERN_EINVAL, "a power is out of the range of floating point numbers");
        break;
    }
    *out = tern_jval_float(v);
    return 0;
}

/* "ab" * 3 and [1, 2] * 3 */
static int repeat(struct jrun *r, struct jval v, int64_t times, struct jval *out)
{
    size_t n = times < 0 ? 0 : (size_t)times;
    if (v.t == JV_STR) {
        struct jbuild b = {0};
        if (v.s->len && n > JINJA_MAX_TEXT / v.s->len)
            return tern_jrun_fail(r, TERN_ELIMIT, "a string grows beyond %zu bytes", JINJA_MAX_TEXT);
        n = v.s->len ? n : 0;
        JTRY(tern_jrun_charge(r, n / 8));
        for (size_t i = 0; i < n; i++)
            JTRY(tern_jbuild_str(r, &b, v.s));
        return tern_jbuild_done(r, &b, out);
    }
    if (v.l->n && n > JINJA_MAX_MEMORY / sizeof(struct jval) / v.l->n)
        return tern_jrun_fail(r, TERN_ELIMIT, "a list grows beyond the memory limit");
    n = v.l->n ? n : 0;
    JTRY(tern_jrun_charge(r, n * v.l->n / 8));
    JTRY(tern_jval_list(r, v.l->kind, n * v.l->n, out));
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < v.l->n; k++)
            out->l->v[out->l->n++] = v.l->v[k];
    return 0;
}

static bool is_seq(struct jval v)
{
    return v.t == JV_STR || (v.t == JV_LIST && (v.l->kind == JL_LIST || v.l->kind == JL_TUPLE));
}

static int join_lists(struct jrun *r, const struct jlist *a, const struct jlist *b, struct jval *out)
{
    JTRY(tern_jrun_charge(r, (a->n + b->n) / 8));
    JTRY(tern_jval_list(r, a->kind, a->n + b->n, out));
    if (a->n)
        memcpy(out->l->v, a->v, a->n * sizeof *a->v);
    if (b->n)
        memcpy(out->l->v + a->n, b->v, b->n * sizeof *b->v);
    out->l->n = a->n + b->n;
    return 0;
}

int tern_jval_binary(struct jrun *r, enum jop op, struct jval a, struct jval b, struct jval *out)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};
    int64_t i, k;
    double f, g;
    bool ia = tern_jval_integer(a, &i), ib = tern_jval_integer(b, &k);
    if (op == JOP_MOD && a.t == JV_STR)
        return tern_jrun_fail(r, TERN_EUNSUPPORTED, "formatting a string with %% is not supported");
    if (a.t == JV_UNDEF || b.t == JV_UNDEF)
        return tern_jval_undefined(r, a.t == JV_UNDEF ? a : b);
    if (ia && ib && !(op == JOP_POW && k < 0))
        return integers(r, op, i, k, out);
    if (tern_jval_number(a, &f) && tern_jval_number(b, &g))
        return floats(r, op, f, g, out);
    if (op == JOP_ADD && a.t == JV_STR && b.t == JV_STR)
        return tern_jstr_concat(r, a.s, b.s, out);
    if (op == JOP_ADD && is_seq(a) && is_seq(b) && a.t == JV_LIST && b.t == JV_LIST && a.l->kind == b.l->kind)
        return join_lists(r, a.l, b.l, out);
    if (op == JOP_MUL && is_seq(a) && ib)
        return repeat(r, a, k, out);
    if (op == JOP_MUL && ia && is_seq(b))
        return repeat(r, b, i, out);
    return tern_jrun_fail(r, TERN_EINVAL, "unsupported operand types for %s: '%s' and '%s'", signs[op],
                          tern_jval_type(a), tern_jval_type(b));
}

int tern_jval_negate(struct jrun *r, struct jval v, bool minus, struct jval *out)
{
    int64_t i;
    if (tern_jval_integer(v, &i))
        return minus ? integers(r, JOP_SUB, 0, i, out) : integers(r, JOP_ADD, 0, i, out);
    if (v.t == JV_UNDEF)
        return tern_jval_undefined(r, v);
    if (v.t != JV_FLOAT)
        return tern_jrun_fail(r, TERN_EINVAL, "bad operand type for unary %c: '%s'", minus ? '-' : '+',
                              tern_jval_type(v));
    *out = tern_jval_float(minus ? -v.f : v.f);
    return 0;
}

/* Adds one to the last digit of "d.ddde+xx"; false when all digits are nines. */
static bool next_decimal(char *sci)
{
    char *p = strchr(sci, 'e') - 1;
    while (p > sci && (*p < '0' || *p > '8')) { /* nines and the decimal point, which the locale chooses */
        if (*p == '9')
            *p = '0';
        p--;
    }
    if (*p < '0' || *p > '8')
        return false;
    ++*p;
    return true;
}

/* The shortest digits that read back as f, as "d.ddde+xx".  A power of two has less room below it than above: there
 * the nearest decimal may read back as something else while the next one up reads back as f. */
static void shortest(double f, char sci[40])
{
    int exp;
    bool power = frexp(f, &exp) == 0.5;
    for (int prec = 0; prec < 17; prec++) {
        char up[40];
        (void)snprintf(sci, 40, "%.*e", prec, f);
        if (strtod(sci, NULL) == f)
            return;
        memcpy(up, sci, sizeof up);
        if (power && next_decimal(up) && strtod(up, NULL) == f) {
            memcpy(sci, up, sizeof up);
            return;
        }
    }
}

/* Laid out as Python does: with an exponent from 1e16 up and below 1e-4. */
size_t tern_jnum_repr(double f, char out[40])
{
    char sci[40], digits[24];
    int n = 0, exp;
    if (isnan(f) || isinf(f))
        return (size_t)snprintf(out, 40, "%s", isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
    shortest(fabs(f), sci);
    const char *e = strchr(sci, 'e');
    exp = (int)strtol(e + 1, NULL, 10);
    for (const char *p = sci; p < e; p++)
        if (*p >= '0' && *p <= '9')
            digits[n++] = *p;
    while (n > 1 && digits[n - 1] == '0')
        n--;
    char *to = out;
    if (signbit(f))
        *to++ = '-';
    if (exp < -4 || exp >= 16) {
        *to++ = digits[0];
        if (n > 1) {
            *to++ = '.';
            memcpy(to, digits + 1, (size_t)n - 1);
            to += n - 1;
        }
        return (size_t)(to - out) + (size_t)snprintf(to, 8, "e%c%02d", exp < 0 ? '-' : '+', abs(exp));
    }
    if (exp < 0) {
        *to++ = '0';
        *to++ = '.';
        for (int i = -1; i > exp; i--)
            *to++ = '0';
    }
    for (int i = 0; i < n || i <= exp; i++) {
        if (exp >= 0 && i == exp + 1)
            *to++ = '.';
        *to++ = i < n ? digits[i] : '0';
    }
    if (exp >= n - 1) {
        *to++ = '.';
        *to++ = '0';
    }
    *to = 0;
    return (size_t)(to - out);
}

static void strip_spaces(const char **p, size_t *n)
{
    uint32_t cp;
    while (*n) {
        size_t k = tern_jutf8_next(*p, *n, &cp);
        if (!tern_jutf8_space(cp))
            break;
        *p += k;
        *n -= k;
    }
    while (*n) {
        size_t k = tern_jutf8_prev(*p, *n);
        (void)tern_jutf8_next(*p + *n - k, k, &cp);
        if (!tern_jutf8_space(cp))
            break;
        *n -= k;
    }
}

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Copies digits with single underscores between them; returns how many bytes were read. */
static size_t copy_digits(const char *p, size_t n, char *to, size_t *len, size_t cap)
{
    size_t i = 0;
    while (i < n && (digit(p[i]) || (p[i] == '_' && i > 0 && p[i - 1] != '_' && i + 1 < n && digit(p[i + 1])))) {
        if (p[i] != '_' && *len < cap)
            to[(*len)++] = p[i];
        i++;
    }
    return i;
}

bool tern_jnum_parse_float(const char *p, size_t n, double *f)
{
    char text[800]; /* more digits than any double needs to be read exactly */
    size_t len = 0, whole, frac = 0;
    strip_spaces(&p, &n);
    bool minus = n && *p == '-';
    if (n && (*p == '-' || *p == '+')) {
        p++;
        n--;
    }
    if ((n == 3 && strncasecmp(p, "inf", 3) == 0) || (n == 8 && strncasecmp(p, "infinity", 8) == 0) ||
        (n == 3 && strncasecmp(p, "nan", 3) == 0)) {
        *f = (*p | 0x20) == 'n' ? (double)NAN : minus ? -(double)INFINITY : (double)INFINITY;
        return true;
    }
    whole = copy_digits(p, n, text, &len, sizeof text - 20);
    if (whole > sizeof text - 20)
        return false;
    p += whole;
    n -= whole;
    if (n && *p == '.') {
        text[len++] = *localeconv()->decimal_point; /* what strtod reads; the program may have set a locale */
        frac = copy_digits(p + 1, n - 1, text, &len, sizeof text - 20);
        p += 1 + frac;
        n -= 1 + frac;
    }
    if (whole + frac == 0)
        return false;
    if (n && (*p | 0x20) == 'e') {
        size_t sign = n > 1 && (p[1] == '-' || p[1] == '+'), k;
        text[len++] = 'e';
        if (sign)
            text[len++] = p[1];
        size_t before = len;
        k = copy_digits(p + 1 + sign, n - 1 - sign, text, &len, before + 8);
        if (k == 0)
            return false;
        p += 1 + sign + k;
        n -= 1 + sign + k;
    }
    text[len] = 0;
    *f = strtod(text, NULL);
    if (minus)
        *f = -*f;
    return n == 0;
}

int tern_jnum_parse_int(const char *p, size_t n, int base, int64_t *i)
{
    strip_spaces(&p, &n);
    bool minus = n && *p == '-', any = false, big = false;
    uint64_t v = 0;
    if (n && (*p == '-' || *p == '+')) {
        p++;
        n--;
    }
    char x = n > 1 && p[0] == '0' ? (char)(p[1] | 0x20) : 0;
    int prefix = x == 'x' ? 16 : x == 'o' ? 8 : x == 'b' ? 2 : 0;
    if (prefix && (base == prefix || base == 0)) {
        base = prefix;
        p += 2;
        n -= 2;
        if (n && *p == '_') {
            p++;
            n--;
        }
    } else if (base == 0) {
        base = 10;
    }
    for (size_t k = 0; k < n; k++) {
        char c = (char)(p[k] | 0x20);
        if (p[k] == '_' && any && p[k - 1] != '_' && k + 1 < n)
            continue;
        int d = digit(p[k]) ? p[k] - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 99;
        if (d >= base)
            return 0;
        any = true;
        big |= __builtin_mul_overflow(v, (uint64_t)base, &v) || __builtin_add_overflow(v, (uint64_t)d, &v);
    }
    if (!any)
        return 0;
    if (big || v > (uint64_t)INT64_MAX + minus)
        return -1;
    *i = minus ? (int64_t)(0 - v) : (int64_t)v;
    return 1;
}

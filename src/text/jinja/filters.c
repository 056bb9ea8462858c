/* Filters that work on one value: texts, numbers, JSON. */
#include "text/jinja/jinja.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int self_str(struct jrun *r, const struct jcall *c, struct jstr **out)
{
    struct jval s;
    JTRY(tern_jval_str(r, c->self, &s));
    *out = s.s;
    return 0;
}

static int change_case(struct jrun *r, const struct jcall *c, enum jcase how, struct jval *out)
{
    struct jstr *s;
    JTRY(self_str(r, c, &s));
    return tern_jstr_case(r, s, how, out);
}

static int f_upper(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return change_case(r, c, JCASE_UPPER, out);
}

static int f_lower(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return change_case(r, c, JCASE_LOWER, out);
}

static int f_title(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return change_case(r, c, JCASE_WORDS, out);
}

static int f_capitalize(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return change_case(r, c, JCASE_CAPITALIZE, out);
}

static int f_string(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return tern_jval_str(r, c->self, out);
}

static int f_trim(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jstr *s, *chars;
    JTRY(self_str(r, c, &s));
    JTRY(tern_jarg_str(r, c, 0, &chars));
    return tern_jmethod_strip(r, s, chars, JSTRIP_LEFT | JSTRIP_RIGHT, out);
}

static int f_replace(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jstr *s;
    struct jval from, to;
    int64_t max;
    JTRY(self_str(r, c, &s));
    JTRY(tern_jval_str(r, c->a[0], &from));
    JTRY(tern_jval_str(r, c->a[1], &to));
    JTRY(tern_jarg_int(r, c, 2, -1, &max));
    return tern_jstr_replace(r, s, from.s, to.s, max, out);
}

static int f_default(struct jrun *r, const struct jcall *c, struct jval *out)
{
    bool empty_too;
    JTRY(tern_jarg_bool(r, c, 1, false, &empty_too));
    if (c->self.t != JV_UNDEF && !(empty_too && !tern_jval_truth(c->self)))
        *out = c->self;
    else if (c->a[0].t != JV_ABSENT)
        *out = c->a[0];
    else
        return tern_jstr_lit(r, "", out);
    return 0;
}

/* The indentation, written once in front of a line. */
static int indentation(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jval one;
    int64_t width;
    if (c->a[0].t == JV_STR) {
        *out = c->a[0];
        return 0;
    }
    JTRY(tern_jarg_int(r, c, 0, 4, &width));
    JTRY(tern_jstr_lit(r, " ", &one));
    return tern_jval_binary(r, JOP_MUL, one, tern_jval_int(width), out);
}

static int f_indent(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jbuild b = {0};
    struct jval by;
    bool first, blank, line_one = true;
    if (c->self.t == JV_UNDEF)
        return tern_jval_undefined(r, c->self);
    if (c->self.t != JV_STR)
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'indent' needs a string, not '%s'", tern_jval_type(c->self));
    const struct jstr *s = c->self.s;
    JTRY(indentation(r, c, &by));
    JTRY(tern_jarg_bool(r, c, 1, false, &first));
    JTRY(tern_jarg_bool(r, c, 2, false, &blank));
    JTRY(tern_jrun_charge(r, s->len / 8));
    for (size_t i = 0, begin = 0; begin <= s->len; line_one = false) {
        uint32_t cp = 0;
        size_t end = s->len;
        while (i < s->len) { /* the end of this line, and behind it the start of the next */
            end = i;
            i += tern_jutf8_next(s->p + i, s->len - i, &cp);
            if (tern_jutf8_linebreak(cp))
                break;
            end = s->len;
        }
        bool at_end = end == s->len;
        if (!at_end && cp == '\r' && i < s->len && s->p[i] == '\n')
            i++;
        if (!line_one)
            JTRY(tern_jbuild_text(r, &b, "\n"));
        if (line_one ? first : (blank || end > begin))
            JTRY(tern_jbuild_str(r, &b, by.s));
        JTRY(tern_jbuild_sub(r, &b, s, begin, end - begin));
        if (at_end)
            break;
        begin = i;
    }
    return tern_jbuild_done(r, &b, out);
}

/* ---- numbers --------------------------------------------------------------------------------------------------- */

static int whole(struct jrun *r, double f, struct jval *out)
{
    if (!(f > -0x1p63 && f < 0x1p63))
        return tern_jrun_fail(r, TERN_ELIMIT, "the number %g does not fit in 64 bits", f);
    *out = tern_jval_int((int64_t)f);
    return 0;
}

static int f_int(struct jrun *r, const struct jcall *c, struct jval *out)
{
    int64_t base, i;
    double f;
    bool number;
    *out = c->a[0].t == JV_ABSENT ? tern_jval_int(0) : c->a[0];
    JTRY(tern_jarg_int(r, c, 1, 10, &base));
    if (c->self.t == JV_UNDEF)
        return tern_jval_undefined(r, c->self);
    if (tern_jval_integer(c->self, &i)) {
        *out = tern_jval_int(i);
        return 0;
    }
    if (c->self.t == JV_STR) {
        JTRY(tern_jrun_charge(r, c->self.s->len / 4));
        bool legal = base == 0 || (base >= 2 && base <= 36);
        int ok = legal ? tern_jnum_parse_int(c->self.s->p, c->self.s->len, (int)base, &i) : 0;
        if (ok < 0)
            return tern_jrun_fail(r, TERN_ELIMIT, "filter 'int': the number does not fit in 64 bits");
        if (ok > 0) {
            *out = tern_jval_int(i);
            return 0;
        }
        number = tern_jnum_parse_float(c->self.s->p, c->self.s->len, &f) && !isinf(f);
    } else {
        number = tern_jval_number(c->self, &f);
    }
    return number && !isnan(f) ? whole(r, f, out) : 0;
}

static int f_float(struct jrun *r, const struct jcall *c, struct jval *out)
{
    double f;
    *out = c->a[0].t == JV_ABSENT ? tern_jval_float(0) : c->a[0];
    if (c->self.t == JV_UNDEF)
        return tern_jval_undefined(r, c->self);
    if (c->self.t == JV_STR)
        JTRY(tern_jrun_charge(r, c->self.s->len / 4));
    bool number =
        c->self.t == JV_STR ? tern_jnum_parse_float(c->self.s->p, c->self.s->len, &f) : tern_jval_number(c->self, &f);
    if (number)
        *out = tern_jval_float(f);
    return 0;
}

static int f_abs(struct jrun *r, const struct jcall *c, struct jval *out)
{
    double f;
    if (c->self.t != JV_UNDEF && !tern_jval_number(c->self, &f))
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'abs' needs a number, not '%s'", tern_jval_type(c->self));
    if (c->self.t == JV_FLOAT) {
        *out = tern_jval_float(fabs(c->self.f));
        return 0;
    }
    return tern_jval_negate(r, c->self, c->self.t == JV_INT && c->self.i < 0, out);
}

static int round_int(struct jrun *r, int64_t v, int64_t places, struct jval *out)
{
    int64_t unit = 1, rest, half;
    for (int64_t i = places; i < 0; i++)
        if (__builtin_mul_overflow(unit, (int64_t)10, &unit)) {
            *out = tern_jval_int(0);
            return 0;
        }
    rest = v % unit;
    if (rest < 0)
        rest += unit;
    half = unit / 2;
    v -= rest; /* cannot overflow by more than a unit, which the check below catches */
    bool up = unit > 1 && (rest > half || (rest == half && (v / unit) % 2 != 0));
    if (up && __builtin_add_overflow(v, unit, &v))
        return tern_jrun_fail(r, TERN_ELIMIT, "filter 'round': the number does not fit in 64 bits");
    *out = tern_jval_int(v);
    return 0;
}

static int round_common(struct jrun *r, struct jval v, int64_t places, struct jval *out)
{
    int64_t i;
    char text[400];
    if (tern_jval_integer(v, &i)) {
        if (i < INT64_MIN / 2 || i > INT64_MAX / 2)
            places = 0; /* keeps round_int away from the edge */
        return round_int(r, i, places, out);
    }
    if (places > 40 || !isfinite(v.f)) {
        *out = v;
    } else if (places >= 0) { /* printf rounds the exact value half to even, as Python does */
        (void)snprintf(text, sizeof text, "%.*f", (int)places, v.f);
        *out = tern_jval_float(strtod(text, NULL));
    } else {
        double unit = places < -400 ? (double)INFINITY : pow(10, (double)-places);
        *out = tern_jval_float(isinf(unit) ? copysign(0.0, v.f) : rint(v.f / unit) * unit);
    }
    return 0;
}

static int f_round(struct jrun *r, const struct jcall *c, struct jval *out)
{
    int64_t places;
    double f;
    struct jstr *method;
    JTRY(tern_jarg_int(r, c, 0, 0, &places));
    JTRY(tern_jarg_str(r, c, 1, &method));
    bool common = !method || tern_jstr_is(method, "common"), ceiling = method && tern_jstr_is(method, "ceil");
    if (!common && !ceiling && !tern_jstr_is(method, "floor"))
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'round': the method must be common, ceil or floor");
    if (!tern_jval_number(c->self, &f))
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'round' needs a number, not '%s'", tern_jval_type(c->self));
    if (common)
        return round_common(r, c->self, places, out);
    double unit = pow(10, (double)places);
    f = ceiling ? ceil(f * unit) : floor(f * unit);
    if (!isfinite(f) || unit == 0)
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'round': the number is out of range");
    *out = tern_jval_float((f == 0 ? 0 : f) / unit); /* Python goes through an integer, which has no negative zero */
    return 0;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------ */

static int f_tojson(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jdump o = {.indent = c->a[1]};
    JTRY(tern_jarg_bool(r, c, 0, false, &o.ascii));
    JTRY(tern_jarg_bool(r, c, 3, false, &o.sort));
    if (o.indent.t == JV_ABSENT)
        o.indent = tern_jval_none();
    if (o.indent.t == JV_BOOL)
        o.indent = tern_jval_int(o.indent.b);
    if (o.indent.t != JV_NONE && o.indent.t != JV_INT && o.indent.t != JV_STR)
        return tern_jrun_fail(r, TERN_EINVAL, "tojson: indent must be an integer, not '%s'", tern_jval_type(o.indent));
    if (o.indent.t == JV_INT && o.indent.i > 64)
        return tern_jrun_fail(r, TERN_ELIMIT, "tojson: indent is more than 64");
    JTRY(tern_jstr_lit(r, o.indent.t == JV_NONE ? ", " : ",", &o.item_sep));
    JTRY(tern_jstr_lit(r, ": ", &o.key_sep));
    if (c->a[2].t != JV_ABSENT && c->a[2].t != JV_NONE) {
        struct jval pair;
        JTRY(tern_jval_collect(r, c->a[2], JL_LIST, &pair));
        if (pair.l->n != 2 || pair.l->v[0].t != JV_STR || pair.l->v[1].t != JV_STR)
            return tern_jrun_fail(r, TERN_EINVAL, "tojson: separators must be two strings");
        o.item_sep = pair.l->v[0];
        o.key_sep = pair.l->v[1];
    }
    return tern_jval_dump_json(r, c->self, &o, out);
}

static int f_from_json(struct jrun *r, const struct jcall *c, struct jval *out)
{
    if (c->self.t != JV_STR)
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'from_json' needs a string, not '%s'", tern_jval_type(c->self));
    if (c->self.s->len > JINJA_MAX_JSON)
        return tern_jrun_fail(r, TERN_ELIMIT, "filter 'from_json': the text has more than %zu bytes", JINJA_MAX_JSON);
    JTRY(tern_jrun_charge(r, 100 + c->self.s->len));
    return tern_jval_parse_json(r, "the text given to from_json", c->self.s->p, c->self.s->len,
                                tern_jstr_any_user(c->self.s), out);
}

const struct jbuiltin tern_jfilters_text[] = {
    {"trim", "chars", 0, f_trim},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, f_tojson},
    {"string", "", 0, f_string},
    {"safe", "", 0, f_string},
    {"upper", "", 0, f_upper},
    {"lower", "", 0, f_lower},
    {"title", "", 0, f_title},
    {"capitalize", "", 0, f_capitalize},
    {"replace", "old,new,count", 2, f_replace},
    {"default", "default_value,boolean", 0, f_default},
    {"d", "default_value,boolean", 0, f_default},
    {"indent", "width,first,blank", 0, f_indent},
    {"int", "default,base", 0, f_int},
    {"float", "default", 0, f_float},
    {"abs", "", 0, f_abs},
    {"round", "precision,method", 0, f_round},
    {"format", NULL, 0, tern_jfilter_format},
    {"from_json", "", 0, f_from_json},
    {0},
};

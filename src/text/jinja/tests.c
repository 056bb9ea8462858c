/* The tests behind `is`. */
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

static int yes(struct jval *out, bool b)
{
    *out = tern_jval_bool(b);
    return 0;
}

static int t_defined(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t != JV_UNDEF);
}

static int t_undefined(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t == JV_UNDEF);
}

static int t_none(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t == JV_NONE);
}

static int t_string(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t == JV_STR);
}

static int t_mapping(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t == JV_DICT);
}

/* Anything with a length and items, which in Python includes dicts and, oddly, Jinja's own undefined value. */
static int t_sequence(struct jrun *r, const struct jcall *c, struct jval *out)
{
    enum jtype t = c->self.t;
    (void)r;
    return yes(out, t == JV_STR || t == JV_DICT || t == JV_RANGE || t == JV_UNDEF ||
                        (t == JV_LIST && c->self.l->kind <= JL_TUPLE));
}

static int t_iterable(struct jrun *r, const struct jcall *c, struct jval *out)
{
    enum jtype t = c->self.t;
    (void)r;
    return yes(out, t == JV_STR || t == JV_DICT || t == JV_RANGE || t == JV_UNDEF || t == JV_LIST || t == JV_LOOP);
}

static int t_boolean(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t == JV_BOOL);
}

static int t_true(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t == JV_BOOL && c->self.b);
}

static int t_false(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t == JV_BOOL && !c->self.b);
}

static int t_integer(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t == JV_INT);
}

static int t_float(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t == JV_FLOAT);
}

static int t_number(struct jrun *r, const struct jcall *c, struct jval *out)
{
    (void)r;
    return yes(out, c->self.t == JV_INT || c->self.t == JV_FLOAT || c->self.t == JV_BOOL);
}

static int t_callable(struct jrun *r, const struct jcall *c, struct jval *out)
{
    enum jtype t = c->self.t;
    (void)r;
    return yes(out, t == JV_MACRO || t == JV_FUNC || t == JV_METHOD || t == JV_UNDEF || t == JV_LOOP);
}

static int remainder_is(struct jrun *r, struct jval v, struct jval by, double want, struct jval *out)
{
    struct jval rest;
    double f;
    JTRY(tern_jval_binary(r, JOP_MOD, v, by, &rest));
    return yes(out, tern_jval_number(rest, &f) && f == want);
}

static int t_odd(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return remainder_is(r, c->self, tern_jval_int(2), 1, out);
}

static int t_even(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return remainder_is(r, c->self, tern_jval_int(2), 0, out);
}

static int t_divisibleby(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return remainder_is(r, c->self, c->a[0], 0, out);
}

static int compare(struct jrun *r, const struct jcall *c, enum jcmp op, struct jval *out)
{
    bool b;
    JTRY(tern_jval_compare(r, op, c->self, c->a[0], &b));
    return yes(out, b);
}

static int t_eq(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return compare(r, c, JCMP_EQ, out);
}

static int t_ne(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return compare(r, c, JCMP_NE, out);
}

static int t_lt(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return compare(r, c, JCMP_LT, out);
}

static int t_le(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return compare(r, c, JCMP_LE, out);
}

static int t_gt(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return compare(r, c, JCMP_GT, out);
}

static int t_ge(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return compare(r, c, JCMP_GE, out);
}

static int t_in(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return compare(r, c, JCMP_IN, out);
}

/* Python's `is`: the same object.  Equal small integers and strings are often the same object there. */
static int t_sameas(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jval a = c->self, b = c->a[0];
    bool eq = false;
    if (a.t == b.t && a.t != JV_LIST && a.t != JV_DICT)
        JTRY(tern_jval_eq(r, a, b, &eq));
    return yes(out, eq || (a.t == b.t && (a.t == JV_LIST || a.t == JV_DICT) && a.d == b.d));
}

static int string_test(struct jrun *r, const struct jcall *c, const char *method, struct jval *out)
{
    struct jval s;
    struct jargs none = {0};
    bool refused;
    JTRY(tern_jval_str(r, c->self, &s));
    return tern_jrun_builtin(r, tern_jmethod_find(s, method, strlen(method), &refused), "test", s, &none, out);
}

static int t_lower(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return string_test(r, c, "islower", out);
}

static int t_upper(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return string_test(r, c, "isupper", out);
}

static int known(struct jrun *r, const struct jcall *c, bool filter, struct jval *out)
{
    if (c->self.t != JV_STR)
        return tern_jrun_fail(r, TERN_EINVAL, "test '%s' needs a name", c->name);
    const struct jstr *s = c->self.s;
    return yes(out, (filter ? tern_jfilter_find(s->p, s->len) : tern_jtest_find(s->p, s->len)) != NULL);
}

static int t_filter(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return known(r, c, true, out);
}

static int t_test(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return known(r, c, false, out);
}

static const struct jbuiltin tests[] = {
    {"defined", "", 0, t_defined},
    {"undefined", "", 0, t_undefined},
    {"none", "", 0, t_none},
    {"string", "", 0, t_string},
    {"mapping", "", 0, t_mapping},
    {"sequence", "", 0, t_sequence},
    {"iterable", "", 0, t_iterable},
    {"boolean", "", 0, t_boolean},
    {"true", "", 0, t_true},
    {"false", "", 0, t_false},
    {"integer", "", 0, t_integer},
    {"float", "", 0, t_float},
    {"number", "", 0, t_number},
    {"callable", "", 0, t_callable},
    {"odd", "", 0, t_odd},
    {"even", "", 0, t_even},
    {"divisibleby", "num", 1, t_divisibleby},
    {"sameas", "other", 1, t_sameas},
    {"lower", "", 0, t_lower},
    {"upper", "", 0, t_upper},
    {"filter", "", 0, t_filter},
    {"test", "", 0, t_test},
    {"in", "seq", 1, t_in},
    {"eq", "other", 1, t_eq},
    {"equalto", "other", 1, t_eq},
    {"==", "other", 1, t_eq},
    {"ne", "other", 1, t_ne},
    {"!=", "other", 1, t_ne},
    {"lt", "other", 1, t_lt},
    {"lessthan", "other", 1, t_lt},
    {"<", "other", 1, t_lt},
    {"le", "other", 1, t_le},
    {"<=", "other", 1, t_le},
    {"gt", "other", 1, t_gt},
    {"greaterthan", "other", 1, t_gt},
    {">", "other", 1, t_gt},
    {"ge", "other", 1, t_ge},
    {">=", "other", 1, t_ge},
    {0},
};

const struct jbuiltin *tern_jtest_find(const char *name, size_t n)
{
    return tern_jbuiltin_search(tests, name, n);
}

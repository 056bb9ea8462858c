/* Texts with places for values: the method format ("{} {0} {name}") and the filter ("%s %d").  Fields that say more
 * than which value they want are refused. */
#include "text/jinja/jinja.h"

#include <string.h>

static int unsupported(struct jrun *r, const struct jstr *s, size_t at, size_t n)
{
    n = n < 32 ? n : 32;
    return tern_jrun_fail(r, TERN_EUNSUPPORTED, "the field '%.*s' of a format is not supported", (int)n, s->p + at);
}

static int put(struct jrun *r, struct jbuild *b, struct jval v)
{
    struct jval text;
    JTRY(tern_jval_str(r, v, &text));
    return tern_jbuild_str(r, b, text.s);
}

static int positional(struct jrun *r, const struct jargs *args, int64_t i, struct jval *out)
{
    if (i >= args->n_pos)
        return tern_jrun_fail(r, TERN_EINVAL, "a format wants the argument %lld and there are %d", (long long)i,
                              args->n_pos);
    *out = args->pos[i];
    return 0;
}

/* ---- "{}".format() --------------------------------------------------------------------------------------------- */

/* The value of the field between braces at `at`.  `next` counts fields without a name, -1: fields have numbers. */
static int field(struct jrun *r, const struct jcall *c, size_t at, size_t n, int64_t *next, struct jval *out)
{
    const struct jstr *s = c->self.s;
    const char *name = s->p + at;
    int64_t number = 0;
    size_t digits = 0;
    if (n && strcspn(name, "!:.[{}") < n)
        return unsupported(r, s, at, n);
    while (digits < n && name[digits] >= '0' && name[digits] <= '9' && number < 1000)
        number = 10 * number + (name[digits++] - '0');
    for (int i = 0; digits < n && i < c->raw->n_kw; i++)
        if (c->raw->kw[i].name_len == n && memcmp(c->raw->kw[i].name, name, n) == 0) {
            *out = c->raw->kw[i].v;
            return 0;
        }
    if (digits < n)
        return tern_jrun_fail(r, TERN_EINVAL, "a format wants the argument '%.*s', which is not there",
                              (int)(n < 32 ? n : 32), name);
    if (n ? *next > 0 : *next < 0)
        return tern_jrun_fail(r, TERN_EINVAL, "a format has fields with and without numbers");
    if (n)
        *next = -1;
    return positional(r, c->raw, n ? number : (*next)++, out);
}

int tern_jmethod_format(struct jrun *r, const struct jcall *c, struct jval *out)
{
    const struct jstr *s = c->self.s;
    struct jbuild b = {0};
    int64_t next = 0;
    JTRY(tern_jrun_charge(r, s->len / 8));
    for (size_t at = 0; at < s->len;) {
        size_t n = 0;
        while (at + n < s->len && s->p[at + n] != '{' && s->p[at + n] != '}')
            n++;
        JTRY(tern_jbuild_sub(r, &b, s, at, n));
        at += n;
        if (at == s->len)
            break;
        if (at + 1 < s->len && s->p[at + 1] == s->p[at]) { /* a brace written twice is one */
            JTRY(tern_jbuild_sub(r, &b, s, at, 1));
            at += 2;
            continue;
        }
        const char *end = s->p[at] == '{' ? memchr(s->p + at, '}', s->len - at) : NULL;
        if (!end)
            return tern_jrun_fail(r, TERN_EINVAL, "a format has a single '%c'", s->p[at]);
        struct jval v = {0};
        n = (size_t)(end - s->p) - at - 1;
        JTRY(field(r, c, at + 1, n, &next, &v));
        JTRY(put(r, &b, v));
        at += n + 2;
    }
    return tern_jbuild_done(r, &b, out);
}

/* ---- "%s" | format ---------------------------------------------------------------------------------------------- */

int tern_jfilter_format(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jval text, v = {0};
    struct jbuild b = {0};
    int64_t used = 0;
    JTRY(tern_jval_str(r, c->self, &text));
    const struct jstr *s = text.s;
    JTRY(tern_jrun_charge(r, s->len / 8));
    if (c->raw->n_kw)
        return tern_jrun_fail(r, TERN_EUNSUPPORTED, "the filter 'format' with names is not supported");
    for (size_t at = 0; at < s->len;) {
        const char *sign = memchr(s->p + at, '%', s->len - at);
        size_t n = sign ? (size_t)(sign - s->p) - at : s->len - at;
        JTRY(tern_jbuild_sub(r, &b, s, at, n));
        at += n;
        if (!sign)
            break;
        char kind = at + 1 < s->len ? s->p[at + 1] : 0;
        if (kind == '%') {
            JTRY(tern_jbuild_sub(r, &b, s, at, 1));
        } else if (kind == 's' || kind == 'd') {
            JTRY(positional(r, c->raw, used++, &v));
            if (kind == 'd' && v.t != JV_INT && v.t != JV_BOOL)
                return tern_jrun_fail(r, TERN_EINVAL, "a format wants an integer");
            JTRY(put(r, &b, kind == 'd' && v.t == JV_BOOL ? tern_jval_int(v.b) : v));
        } else {
            return unsupported(r, s, at, s->len - at);
        }
        at += 2;
    }
    if (used < c->raw->n_pos)
        return tern_jrun_fail(r, TERN_EINVAL, "a format wants fewer arguments than there are");
    return tern_jbuild_done(r, &b, out);
}

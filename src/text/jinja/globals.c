/* Argument access, lookup of builtins by name, and the global functions. */
#include "text/jinja/jinja.h"

#include <string.h>
#include <time.h>

const struct jbuiltin *tern_jbuiltin_search(const struct jbuiltin *table, const char *name, size_t n)
{
    for (; table->name; table++)
        if (strlen(table->name) == n && memcmp(table->name, name, n) == 0)
            return table;
    return NULL;
}

const struct jbuiltin *tern_jfilter_find(const char *name, size_t n)
{
    const struct jbuiltin *fn = tern_jbuiltin_search(tern_jfilters_text, name, n);
    return fn ? fn : tern_jbuiltin_search(tern_jfilters_seq, name, n);
}

static int bad_argument(struct jrun *r, const struct jcall *c, int i, const char *wanted)
{
    return tern_jrun_fail(r, TERN_EINVAL, "%s '%s' needs %s as argument %d, not '%s'", c->what, c->name, wanted, i + 1,
                          tern_jval_type(c->a[i]));
}

int tern_jarg_int(struct jrun *r, const struct jcall *c, int i, int64_t def, int64_t *out)
{
    struct jval v = c->a[i];
    if (v.t == JV_ABSENT || v.t == JV_NONE)
        *out = def;
    else if (!tern_jval_integer(v, out))
        return bad_argument(r, c, i, "an integer");
    return 0;
}

int tern_jarg_bool(struct jrun *r, const struct jcall *c, int i, bool def, bool *out)
{
    (void)r;
    *out = c->a[i].t == JV_ABSENT ? def : tern_jval_truth(c->a[i]);
    return 0;
}

int tern_jarg_str(struct jrun *r, const struct jcall *c, int i, struct jstr **out)
{
    struct jval v = c->a[i];
    *out = NULL;
    if (v.t == JV_STR)
        *out = v.s;
    else if (v.t != JV_ABSENT && v.t != JV_NONE)
        return bad_argument(r, c, i, "a string");
    return 0;
}

/* ---- functions ------------------------------------------------------------------------------------------------- */

static int g_range(struct jrun *r, const struct jcall *c, struct jval *out)
{
    int64_t v[3] = {0, 0, 1};
    struct jrange *range;
    for (int i = 0; i < c->raw->n_pos && i < 3; i++)
        if (!tern_jval_integer(c->raw->pos[i], &v[i]))
            return tern_jrun_fail(r, TERN_EINVAL, "range needs integers, not '%s'", tern_jval_type(c->raw->pos[i]));
    if (c->raw->n_pos < 1 || c->raw->n_pos > 3 || c->raw->n_kw)
        return tern_jrun_fail(r, TERN_EINVAL, "range takes one to three arguments");
    if (c->raw->n_pos == 1) {
        v[1] = v[0];
        v[0] = 0;
    }
    if (v[2] == 0)
        return tern_jrun_fail(r, TERN_EINVAL, "the step of range is zero");
    uint64_t way = v[2] > 0 ? (v[1] > v[0] ? (uint64_t)v[1] - (uint64_t)v[0] : 0)
                            : (v[0] > v[1] ? (uint64_t)v[0] - (uint64_t)v[1] : 0);
    uint64_t step = v[2] > 0 ? (uint64_t)v[2] : 0 - (uint64_t)v[2];
    uint64_t n = way ? (way - 1) / step + 1 : 0;
    if (n > JINJA_MAX_RANGE)
        return tern_jrun_fail(r, TERN_ELIMIT, "a range has more than %d items", JINJA_MAX_RANGE);
    JTRY(tern_jrun_alloc(r, &range, sizeof *range));
    *range = (struct jrange){.start = v[0], .stop = v[1], .step = v[2], .n = (int64_t)n};
    *out = (struct jval){.t = JV_RANGE, .r = range};
    return 0;
}

static int g_raise(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jval s;
    (void)out;
    JTRY(tern_jval_str(r, c->a[0], &s));
    return tern_jrun_fail(r, TERN_EINVAL, "%.*s", s.s->len > 250 ? 250 : (int)s.s->len, s.s->p);
}

static int g_strftime(struct jrun *r, const struct jcall *c, struct jval *out)
{
    char format[128], text[512];
    struct jstr *f;
    time_t now = time(NULL);
    struct tm local;
    JTRY(tern_jarg_str(r, c, 0, &f));
    if (!f || f->len >= sizeof format || memchr(f->p, 0, f->len))
        return tern_jrun_fail(r, TERN_EINVAL, "strftime_now needs a format of less than %zu bytes", sizeof format);
    memcpy(format, f->p, f->len);
    format[f->len] = 0;
    if (!localtime_r(&now, &local))
        return tern_jrun_fail(r, TERN_EIO, "strftime_now: the system has no local time");
    size_t n = f->len ? strftime(text, sizeof text, format, &local) : 0;
    return tern_jstr_new(r, text, n, false, out);
}

static const struct jbuiltin globals[] = {
    {"range", NULL, 0, g_range},
    {"dict", NULL, 0, tern_jfunc_dict},
    {"namespace", NULL, 0, tern_jfunc_namespace},
    {"raise_exception", "message", 1, g_raise},
    {"strftime_now", "format", 1, g_strftime},
    {0},
};

const struct jbuiltin *tern_jglobal_find(const char *name, size_t n)
{
    return tern_jbuiltin_search(globals, name, n);
}

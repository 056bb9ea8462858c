/* Filters that work on sequences and dictionaries. */
#include "text/jinja/jinja.h"

#include <string.h>

static int f_length(struct jrun *r, const struct jcall *c, struct jval *out)
{
    int64_t n;
    JTRY(tern_jval_length(r, c->self, &n));
    *out = tern_jval_int(n);
    return 0;
}

static int f_list(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return tern_jval_collect(r, c->self, JL_LIST, out);
}

static int f_items(struct jrun *r, const struct jcall *c, struct jval *out)
{
    JTRY(tern_jval_list(r, JL_GENERATOR, 0, out));
    struct jlist *l = out->l;
    if (c->self.t == JV_UNDEF)
        return 0;
    if (c->self.t != JV_DICT)
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'items' needs a dict, not '%s'", tern_jval_type(c->self));
    JTRY(tern_jrun_charge(r, c->self.d->n));
    for (size_t i = 0; i < c->self.d->n; i++) {
        struct jval pair;
        JTRY(tern_jval_pair(r, c->self.d->e[i].key, c->self.d->e[i].val, &pair));
        JTRY(tern_jlist_add(r, l, pair));
    }
    return 0;
}

/* ---- attributes given as text: "name", "a.b.0" ------------------------------------------------------------------ */

static bool all_digits(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && p[i] >= '0' && p[i] <= '9')
        i++;
    return n > 0 && i == n;
}

/* `fallback` replaces an undefined value on the way, unless it is absent or none. */
static int get_path(struct jrun *r, struct jval item, struct jval path, struct jval fallback, struct jval *out)
{
    *out = item;
    if (path.t == JV_NONE || path.t == JV_ABSENT)
        return 0;
    if (path.t != JV_STR)
        return tern_jval_getitem(r, item, path, out);
    const struct jstr *s = path.s;
    for (size_t at = 0; at <= s->len;) {
        struct jval key, from = *out;
        const char *dot = at < s->len ? memchr(s->p + at, '.', s->len - at) : NULL;
        size_t n = dot ? (size_t)(dot - s->p) - at : s->len - at;
        JTRY(tern_jrun_charge(r, 1));
        JTRY(tern_jstr_sub(r, s, at, n, &key));
        if (all_digits(s->p + at, n)) {
            int64_t i;
            if (tern_jnum_parse_int(s->p + at, n, 10, &i) <= 0)
                return tern_jrun_fail(r, TERN_ELIMIT, "an attribute number does not fit in 64 bits");
            key = tern_jval_int(i);
        }
        JTRY(tern_jval_getitem(r, from, key, out));
        if (out->t == JV_UNDEF && fallback.t != JV_ABSENT && fallback.t != JV_NONE)
            *out = fallback;
        at += n + 1;
    }
    return 0;
}

static int fold_case(struct jrun *r, bool case_sensitive, struct jval *v)
{
    return v->t == JV_STR && !case_sensitive ? tern_jstr_case(r, v->s, JCASE_LOWER, v) : 0;
}

static int plain_key(struct jrun *r, struct jval item, struct jval path, bool case_sensitive, struct jval *out)
{
    JTRY(get_path(r, item, path, (struct jval){.t = JV_ABSENT}, out));
    return fold_case(r, case_sensitive, out);
}

/* sort(attribute="a,b"): a list of keys, compared as Python compares lists. */
static int sort_key(struct jrun *r, struct jval item, struct jval paths, bool case_sensitive, struct jval *out)
{
    struct jval key;
    JTRY(tern_jval_list(r, JL_LIST, 1, out));
    struct jlist *l = out->l;
    if (paths.t != JV_STR) {
        JTRY(plain_key(r, item, paths, case_sensitive, &key));
        return tern_jlist_add(r, l, key);
    }
    const struct jstr *s = paths.s;
    for (size_t at = 0; at <= s->len;) {
        struct jval path;
        const char *comma = at < s->len ? memchr(s->p + at, ',', s->len - at) : NULL;
        size_t n = comma ? (size_t)(comma - s->p) - at : s->len - at;
        JTRY(tern_jstr_sub(r, s, at, n, &path));
        JTRY(plain_key(r, item, path, case_sensitive, &key));
        JTRY(tern_jlist_add(r, l, key));
        at += n + 1;
    }
    return 0;
}

/* ---- order ----------------------------------------------------------------------------------------------------- */

static int sorted(struct jrun *r, const struct jlist *items, const struct jval *keys, bool reverse, struct jval *out)
{
    size_t *idx;
    JTRY(tern_jrun_alloc_raw(r, &idx, items->n * sizeof *idx));
    for (size_t i = 0; i < items->n; i++)
        idx[i] = i;
    JTRY(tern_jval_sort(r, keys, idx, items->n, reverse));
    JTRY(tern_jval_list(r, JL_LIST, items->n, out));
    for (size_t i = 0; i < items->n; i++)
        out->l->v[i] = items->v[idx[i]];
    out->l->n = items->n;
    return 0;
}

static int f_sort(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jval items, *keys;
    bool reverse, case_sensitive;
    JTRY(tern_jarg_bool(r, c, 0, false, &reverse));
    JTRY(tern_jarg_bool(r, c, 1, false, &case_sensitive));
    JTRY(tern_jval_collect(r, c->self, JL_LIST, &items));
    JTRY(tern_jrun_alloc_raw(r, &keys, items.l->n * sizeof *keys));
    for (size_t i = 0; i < items.l->n; i++)
        JTRY(sort_key(r, items.l->v[i], c->a[2], case_sensitive, &keys[i]));
    return sorted(r, items.l, keys, reverse, out);
}

static int f_dictsort(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jval pairs, *keys;
    struct jstr *by;
    bool case_sensitive, reverse;
    JTRY(tern_jarg_bool(r, c, 0, false, &case_sensitive));
    JTRY(tern_jarg_str(r, c, 1, &by));
    JTRY(tern_jarg_bool(r, c, 2, false, &reverse));
    if (by && !tern_jstr_is(by, "key") && !tern_jstr_is(by, "value"))
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'dictsort' sorts by 'key' or 'value' only");
    if (c->self.t == JV_UNDEF)
        return tern_jval_undefined(r, c->self);
    JTRY(f_items(r, c, &pairs));
    JTRY(tern_jrun_alloc_raw(r, &keys, pairs.l->n * sizeof *keys));
    for (size_t i = 0; i < pairs.l->n; i++) {
        keys[i] = pairs.l->v[i].l->v[by && tern_jstr_is(by, "value")];
        JTRY(fold_case(r, case_sensitive, &keys[i]));
    }
    return sorted(r, pairs.l, keys, reverse, out);
}

static int f_unique(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jiter it;
    struct jval seen, item, key;
    bool case_sensitive;
    int more;
    JTRY(tern_jarg_bool(r, c, 0, false, &case_sensitive));
    JTRY(tern_jiter_init(r, &it, c->self));
    JTRY(tern_jval_dict(r, &seen));
    JTRY(tern_jval_list(r, JL_GENERATOR, 0, out));
    while ((more = tern_jiter_next(r, &it, &item)) > 0) {
        struct jentry *e;
        JTRY(plain_key(r, item, c->a[1], case_sensitive, &key));
        JTRY(tern_jdict_find(r, seen.d, key, &e));
        if (e)
            continue;
        JTRY(tern_jdict_set(r, seen.d, key, tern_jval_none()));
        JTRY(tern_jlist_add(r, out->l, item));
    }
    return more;
}

static int extreme(struct jrun *r, const struct jcall *c, enum jcmp op, struct jval *out)
{
    struct jiter it;
    struct jval item, key, best = {.t = JV_ABSENT};
    bool case_sensitive, better = true;
    int more;
    JTRY(tern_jarg_bool(r, c, 0, false, &case_sensitive));
    JTRY(tern_jiter_init(r, &it, c->self));
    while ((more = tern_jiter_next(r, &it, &item)) > 0) {
        JTRY(plain_key(r, item, c->a[1], case_sensitive, &key));
        if (best.t != JV_ABSENT)
            JTRY(tern_jval_compare(r, op, key, best, &better));
        if (better) {
            best = key;
            *out = item;
        }
    }
    JTRY(more);
    return best.t == JV_ABSENT ? tern_jval_undef_says(r, "the sequence has no item to choose from", out) : 0;
}

static int f_min(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return extreme(r, c, JCMP_LT, out);
}

static int f_max(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return extreme(r, c, JCMP_GT, out);
}

static int f_reverse(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jval v = c->self;
    if (v.t == JV_STR) {
        size_t n;
        JTRY(tern_jstr_chars(r, v.s, &n));
        return tern_jstr_slice(r, v.s, (int64_t)n - 1, -1, (int64_t)n, out);
    }
    bool generator = v.t == JV_LIST && v.l->kind == JL_GENERATOR;
    JTRY(tern_jval_collect(r, v, generator ? JL_LIST : JL_GENERATOR, out));
    struct jlist *l = out->l;
    for (size_t i = 0; i < l->n / 2; i++) {
        struct jval x = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = x;
    }
    return 0;
}

static int f_first(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jiter it;
    JTRY(tern_jiter_init(r, &it, c->self));
    int more = tern_jiter_next(r, &it, out);
    JTRY(more);
    return more ? 0 : tern_jval_undef_says(r, "there is no first item, the sequence is empty", out);
}

static int f_last(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jval v = c->self, items;
    if (v.t == JV_LIST && v.l->kind == JL_GENERATOR)
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'last' cannot reverse a generator");
    if (v.t == JV_STR && v.s->len) {
        size_t k = tern_jutf8_prev(v.s->p, v.s->len);
        return tern_jstr_sub(r, v.s, v.s->len - k, k, out);
    }
    JTRY(tern_jval_collect(r, v, JL_LIST, &items));
    if (items.l->n == 0)
        return tern_jval_undef_says(r, "there is no last item, the sequence is empty", out);
    *out = items.l->v[items.l->n - 1];
    return 0;
}

/* ---- folding --------------------------------------------------------------------------------------------------- */

static int f_join(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jbuild b = {0};
    struct jiter it;
    struct jval item, text, sep;
    int more;
    JTRY(tern_jstr_lit(r, "", &sep));
    if (c->a[0].t != JV_ABSENT)
        JTRY(tern_jval_str(r, c->a[0], &sep));
    JTRY(tern_jiter_init(r, &it, c->self));
    for (size_t n = 0; (more = tern_jiter_next(r, &it, &item)) > 0; n++) {
        JTRY(get_path(r, item, c->a[1], (struct jval){.t = JV_ABSENT}, &item));
        JTRY(tern_jval_str(r, item, &text));
        if (n)
            JTRY(tern_jbuild_str(r, &b, sep.s));
        JTRY(tern_jbuild_str(r, &b, text.s));
    }
    JTRY(more);
    return tern_jbuild_done(r, &b, out);
}

static int f_sum(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jiter it;
    struct jval item, total = c->a[1].t == JV_ABSENT ? tern_jval_int(0) : c->a[1];
    int more;
    if (total.t == JV_STR)
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'sum' does not add strings: use join");
    JTRY(tern_jiter_init(r, &it, c->self));
    while ((more = tern_jiter_next(r, &it, &item)) > 0) {
        JTRY(get_path(r, item, c->a[0], (struct jval){.t = JV_ABSENT}, &item));
        JTRY(tern_jval_binary(r, JOP_ADD, total, item, &total));
    }
    *out = total;
    return more;
}

/* ---- map and select -------------------------------------------------------------------------------------------- */

/* The filter or test that argument `at` names, and the arguments that are left for it. */
static int named(struct jrun *r, const struct jcall *c, int at, bool filter, const struct jbuiltin **fn,
                 struct jargs *rest)
{
    struct jval name = c->raw->pos[at];
    if (name.t != JV_STR)
        return tern_jrun_fail(r, TERN_EINVAL, "filter '%s' needs the name of a %s", c->name,
                              filter ? "filter" : "test");
    *fn = filter ? tern_jfilter_find(name.s->p, name.s->len) : tern_jtest_find(name.s->p, name.s->len);
    if (!*fn)
        return tern_jrun_fail(r, TERN_EUNSUPPORTED, "unknown %s '%.*s' in '%s'", filter ? "filter" : "test",
                              name.s->len > 80 ? 80 : (int)name.s->len, name.s->p, c->name);
    *rest = *c->raw;
    rest->pos += at + 1;
    rest->n_pos -= at + 1;
    return 0;
}

static int map_keywords(struct jrun *r, const struct jargs *a, struct jval *path, struct jval *fallback)
{
    for (int i = 0; i < a->n_kw; i++) {
        if (a->kw[i].name_len == 9 && memcmp(a->kw[i].name, "attribute", 9) == 0)
            *path = a->kw[i].v;
        else if (a->kw[i].name_len == 7 && memcmp(a->kw[i].name, "default", 7) == 0)
            *fallback = a->kw[i].v;
        else
            return tern_jrun_fail(r, TERN_EINVAL, "filter 'map' has no parameter '%.*s'",
                                  a->kw[i].name_len > 40 ? 40 : (int)a->kw[i].name_len, a->kw[i].name);
    }
    if (path->t == JV_ABSENT)
        return tern_jrun_fail(r, TERN_EINVAL, "filter 'map' needs the name of a filter, or attribute=");
    return 0;
}

static int f_map(struct jrun *r, const struct jcall *c, struct jval *out)
{
    const struct jbuiltin *fn = NULL;
    struct jargs rest = {0};
    struct jiter it;
    struct jval item, path = {.t = JV_ABSENT}, fallback = {.t = JV_ABSENT};
    int more = 0;
    JTRY(tern_jval_list(r, JL_GENERATOR, 0, out));
    struct jlist *l = out->l;
    if (!tern_jval_truth(c->self))
        return 0;
    if (c->raw->n_pos)
        JTRY(named(r, c, 0, true, &fn, &rest));
    else
        JTRY(map_keywords(r, c->raw, &path, &fallback));
    JTRY(tern_jrun_enter(r)); /* map('map', ...) nests */
    JTRY(tern_jiter_init(r, &it, c->self));
    while ((more = tern_jiter_next(r, &it, &item)) > 0) {
        struct jval v;
        if (fn)
            JTRY(tern_jrun_builtin(r, fn, "filter", item, &rest, &v));
        else
            JTRY(get_path(r, item, path, fallback, &v));
        JTRY(tern_jlist_add(r, l, v));
    }
    tern_jrun_leave(r);
    return more;
}

static int choose(struct jrun *r, const struct jcall *c, bool by_attribute, bool keep, struct jval *out)
{
    const struct jbuiltin *fn = NULL;
    struct jargs rest = {0};
    struct jiter it;
    struct jval item;
    int more = 0, at = by_attribute;
    JTRY(tern_jval_list(r, JL_GENERATOR, 0, out));
    struct jlist *l = out->l;
    if (!tern_jval_truth(c->self))
        return 0;
    if (by_attribute && c->raw->n_pos == 0)
        return tern_jrun_fail(r, TERN_EINVAL, "filter '%s' needs the name of an attribute", c->name);
    if (c->raw->n_pos > at)
        JTRY(named(r, c, at, false, &fn, &rest));
    JTRY(tern_jiter_init(r, &it, c->self));
    while ((more = tern_jiter_next(r, &it, &item)) > 0) {
        struct jval v = item, hit;
        if (by_attribute)
            JTRY(get_path(r, item, c->raw->pos[0], (struct jval){.t = JV_ABSENT}, &v));
        hit = v;
        if (fn)
            JTRY(tern_jrun_builtin(r, fn, "test", v, &rest, &hit));
        if (tern_jval_truth(hit) == keep)
            JTRY(tern_jlist_add(r, l, item));
    }
    return more;
}

static int f_select(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return choose(r, c, false, true, out);
}

static int f_reject(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return choose(r, c, false, false, out);
}

static int f_selectattr(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return choose(r, c, true, true, out);
}

static int f_rejectattr(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return choose(r, c, true, false, out);
}

const struct jbuiltin tern_jfilters_seq[] = {
    {"length", "", 0, f_length},
    {"count", "", 0, f_length},
    {"list", "", 0, f_list},
    {"items", "", 0, f_items},
    {"join", "d,attribute", 0, f_join},
    {"first", "", 0, f_first},
    {"last", "", 0, f_last},
    {"map", NULL, 0, f_map},
    {"select", NULL, 0, f_select},
    {"reject", NULL, 0, f_reject},
    {"selectattr", NULL, 0, f_selectattr},
    {"rejectattr", NULL, 0, f_rejectattr},
    {"sort", "reverse,case_sensitive,attribute", 0, f_sort},
    {"dictsort", "case_sensitive,by,reverse", 0, f_dictsort},
    {"unique", "case_sensitive,attribute", 0, f_unique},
    {"min", "case_sensitive,attribute", 0, f_min},
    {"max", "case_sensitive,attribute", 0, f_max},
    {"sum", "attribute,start", 0, f_sum},
    {"reverse", "", 0, f_reverse},
    {0},
};

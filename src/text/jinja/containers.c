/* Methods of dictionaries, lists and tuples. */
#include "text/jinja/jinja.h"

#include <string.h>

static int d_get(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jentry *e;
    JTRY(tern_jdict_find(r, c->self.d, c->a[0], &e));
    *out = e ? e->val : c->a[1].t != JV_ABSENT ? c->a[1] : tern_jval_none();
    return 0;
}

static int view(struct jrun *r, const struct jdict *d, enum jkind kind, struct jval *out)
{
    JTRY(tern_jrun_charge(r, d->n));
    JTRY(tern_jval_list(r, kind, d->n, out));
    struct jlist *l = out->l;
    for (size_t i = 0; i < d->n; i++) {
        struct jval v = kind == JL_KEYS ? d->e[i].key : d->e[i].val;
        if (kind == JL_ITEMS)
            JTRY(tern_jval_pair(r, d->e[i].key, d->e[i].val, &v));
        JTRY(tern_jlist_add(r, l, v));
    }
    return 0;
}

static int d_items(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return view(r, c->self.d, JL_ITEMS, out);
}

static int d_keys(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return view(r, c->self.d, JL_KEYS, out);
}

static int d_values(struct jrun *r, const struct jcall *c, struct jval *out)
{
    return view(r, c->self.d, JL_VALUES, out);
}

static int d_pop(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jentry *e;
    JTRY(tern_jdict_find(r, c->self.d, c->a[0], &e));
    if (!e && c->a[1].t == JV_ABSENT)
        return tern_jrun_fail(r, TERN_EINVAL, "pop: the dict has no such key");
    *out = e ? e->val : c->a[1];
    return e ? tern_jdict_remove(r, c->self.d, e) : 0;
}

static int copy_entries(struct jrun *r, struct jdict *to, const struct jdict *from)
{
    size_t n = from->n; /* from and to may be the same dict */
    JTRY(tern_jrun_charge(r, n));
    for (size_t i = 0; i < n; i++)
        JTRY(tern_jdict_set(r, to, from->e[i].key, from->e[i].val));
    return 0;
}

static int add_keywords(struct jrun *r, struct jdict *d, const struct jargs *a)
{
    for (int i = 0; i < a->n_kw; i++) {
        struct jval key;
        JTRY(tern_jstr_new(r, a->kw[i].name, a->kw[i].name_len, false, &key));
        JTRY(tern_jdict_set(r, d, key, a->kw[i].v));
    }
    return 0;
}

static int fill(struct jrun *r, struct jdict *d, const struct jcall *c)
{
    if (c->raw->n_pos > 1)
        return tern_jrun_fail(r, TERN_EINVAL, "%s '%s' takes at most 1 positional argument", c->what, c->name);
    if (c->raw->n_pos && c->raw->pos[0].t == JV_UNDEF)
        return tern_jval_undefined(r, c->raw->pos[0]);
    if (c->raw->n_pos && c->raw->pos[0].t == JV_DICT) {
        JTRY(copy_entries(r, d, c->raw->pos[0].d));
    } else if (c->raw->n_pos) {
        struct jiter it;
        struct jval v, pair;
        int more;
        JTRY(tern_jiter_init(r, &it, c->raw->pos[0]));
        while ((more = tern_jiter_next(r, &it, &v)) > 0) {
            JTRY(tern_jval_collect(r, v, JL_LIST, &pair));
            if (pair.l->n != 2)
                return tern_jrun_fail(r, TERN_EINVAL, "%s '%s' needs a dict or pairs", c->what, c->name);
            JTRY(tern_jdict_set(r, d, pair.l->v[0], pair.l->v[1]));
        }
        JTRY(more);
    }
    return add_keywords(r, d, c->raw);
}

static int d_update(struct jrun *r, const struct jcall *c, struct jval *out)
{
    *out = tern_jval_none();
    return fill(r, c->self.d, c);
}

static int d_copy(struct jrun *r, const struct jcall *c, struct jval *out)
{
    JTRY(tern_jval_dict(r, out));
    return copy_entries(r, out->d, c->self.d);
}

int tern_jfunc_dict(struct jrun *r, const struct jcall *c, struct jval *out)
{
    JTRY(tern_jval_dict(r, out));
    return fill(r, out->d, c);
}

int tern_jfunc_namespace(struct jrun *r, const struct jcall *c, struct jval *out)
{
    JTRY(tern_jval_dict(r, out));
    out->t = JV_NS;
    return fill(r, out->d, c);
}

const struct jbuiltin tern_jmethods_dict[] = {
    {"get", "key,default", 1, d_get}, {"items", "", 0, d_items},
    {"keys", "", 0, d_keys},          {"values", "", 0, d_values},
    {"pop", "key,default", 1, d_pop}, {"update", NULL, 0, d_update},
    {"copy", "", 0, d_copy},          {0},
};

static int l_append(struct jrun *r, const struct jcall *c, struct jval *out)
{
    *out = tern_jval_none();
    return tern_jlist_add(r, c->self.l, c->a[0]);
}

static int l_extend(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jval more;
    JTRY(tern_jval_collect(r, c->a[0], JL_LIST, &more));
    for (size_t i = 0; i < more.l->n; i++)
        JTRY(tern_jlist_add(r, c->self.l, more.l->v[i]));
    *out = tern_jval_none();
    return 0;
}

static int l_insert(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jlist *l = c->self.l;
    int64_t at, n = (int64_t)l->n;
    JTRY(tern_jarg_int(r, c, 0, 0, &at));
    at = at < 0 ? (at + n < 0 ? 0 : at + n) : at > n ? n : at;
    JTRY(tern_jrun_charge(r, l->n / 8));
    JTRY(tern_jlist_add(r, l, c->a[1]));
    memmove(l->v + at + 1, l->v + at, (size_t)(n - at) * sizeof *l->v);
    l->v[at] = c->a[1];
    *out = tern_jval_none();
    return 0;
}

static int l_pop(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jlist *l = c->self.l;
    int64_t at;
    JTRY(tern_jarg_int(r, c, 0, -1, &at));
    at += at < 0 ? (int64_t)l->n : 0;
    if (at < 0 || at >= (int64_t)l->n)
        return tern_jrun_fail(r, TERN_EINVAL, "pop: the list has no such index");
    JTRY(tern_jrun_charge(r, l->n / 8));
    *out = l->v[at];
    l->n--;
    memmove(l->v + at, l->v + at + 1, (l->n - (size_t)at) * sizeof *l->v);
    return 0;
}

static int count_or_index(struct jrun *r, const struct jcall *c, int64_t *count, int64_t *index)
{
    struct jlist *l = c->self.l;
    *count = 0;
    *index = -1;
    for (size_t i = 0; i < l->n; i++) {
        bool eq;
        JTRY(tern_jrun_charge(r, 1));
        JTRY(tern_jval_eq(r, l->v[i], c->a[0], &eq));
        if (eq && *index < 0)
            *index = (int64_t)i;
        *count += eq;
    }
    return 0;
}

static int l_index(struct jrun *r, const struct jcall *c, struct jval *out)
{
    int64_t count, index;
    JTRY(count_or_index(r, c, &count, &index));
    if (index < 0)
        return tern_jrun_fail(r, TERN_EINVAL, "index: no such item");
    *out = tern_jval_int(index);
    return 0;
}

static int l_count(struct jrun *r, const struct jcall *c, struct jval *out)
{
    int64_t count, index;
    JTRY(count_or_index(r, c, &count, &index));
    *out = tern_jval_int(count);
    return 0;
}

const struct jbuiltin tern_jmethods_list[] = {
    {"append", "object", 1, l_append},
    {"extend", "iterable", 1, l_extend},
    {"insert", "index,object", 2, l_insert},
    {"pop", "index", 0, l_pop},
    {"index", "value", 1, l_index},
    {"count", "value", 1, l_count},
    {0},
};

const struct jbuiltin tern_jmethods_tuple[] = {
    {"index", "value", 1, l_index},
    {"count", "value", 1, l_count},
    {0},
};

/* Walking over values and reaching into them. */
#include "text/jinja/jinja.h"

#include <string.h>

int tern_jiter_init(struct jrun *r, struct jiter *it, struct jval v)
{
    *it = (struct jiter){.src = v};
    if (v.t == JV_STR || v.t == JV_LIST || v.t == JV_DICT || v.t == JV_RANGE || v.t == JV_UNDEF)
        return 0;
    return tern_jrun_fail(r, TERN_EINVAL, "an object of type '%s' cannot be iterated over", tern_jval_type(v));
}

/* Lists are read by position, so items appended during a loop are seen, as in Python. */
int tern_jiter_next(struct jrun *r, struct jiter *it, struct jval *out)
{
    struct jval v = it->src;
    JTRY(tern_jrun_charge(r, 1));
    switch (v.t) {
    case JV_STR:
        if (it->pos >= v.s->len)
            return 0;
        uint32_t cp;
        size_t k = tern_jutf8_next(v.s->p + it->pos, v.s->len - it->pos, &cp);
        JTRY(tern_jstr_sub(r, v.s, it->pos, k, out));
        it->pos += k;
        return 1;
    case JV_LIST:
        if (v.l->kind == JL_GENERATOR) {
            if (v.l->pos >= v.l->n)
                return 0;
            *out = v.l->v[v.l->pos++];
            return 1;
        }
        if (it->pos >= v.l->n)
            return 0;
        *out = v.l->v[it->pos++];
        return 1;
    case JV_DICT:
        if (it->pos >= v.d->n)
            return 0;
        *out = v.d->e[it->pos++].key;
        return 1;
    case JV_RANGE:
        if ((int64_t)it->pos >= v.r->n)
            return 0;
        *out = tern_jval_int(tern_jrange_at(v.r, (int64_t)it->pos++));
        return 1;
    default:
        return 0;
    }
}

int tern_jval_collect(struct jrun *r, struct jval v, enum jkind kind, struct jval *out)
{
    struct jiter it;
    struct jval item;
    int more;
    JTRY(tern_jiter_init(r, &it, v));
    JTRY(tern_jval_list(r, kind, 0, out));
    while ((more = tern_jiter_next(r, &it, &item)) > 0)
        JTRY(tern_jlist_add(r, out->l, item));
    return more;
}

/* The name that Jinja uses in "'...' has no attribute". */
static const char *owner_name(struct jval v)
{
    switch (v.t) {
    case JV_NONE:
        return "None";
    case JV_DICT:
        return "dict object";
    case JV_STR:
        return "str object";
    case JV_INT:
        return "int object";
    case JV_LIST:
        return v.l->kind == JL_LIST ? "list object" : v.l->kind == JL_TUPLE ? "tuple object" : tern_jval_type(v);
    default:
        return tern_jval_type(v);
    }
}

static int missing(struct jrun *r, struct jval v, const struct jstr *name, struct jval *out)
{
    return tern_jval_undef(r, owner_name(v), name->p, name->len, out);
}

static int dict_entry(struct jrun *r, const struct jdict *d, const struct jstr *name, struct jval *out)
{
    struct jentry *e;
    struct jstr key = *name;
    JTRY(tern_jdict_find(r, d, (struct jval){.t = JV_STR, .s = &key}, &e));
    if (e)
        *out = e->val;
    return 0;
}

/* Methods and the attributes of engine objects; JV_ABSENT when there is none of that name. */
static int attribute(struct jrun *r, struct jval v, const struct jstr *name, struct jval *out)
{
    bool refused = false;
    *out = (struct jval){.t = JV_ABSENT};
    if (v.t == JV_NS)
        return dict_entry(r, v.d, name, out);
    if (v.t == JV_LOOP)
        return tern_jrun_loop_attr(r, v.loop, name, out);
    if (v.t == JV_MACRO && tern_jstr_is(name, "name")) {
        *out = (struct jval){.t = JV_STR, .s = &r->t->syms[v.macro->node->sym]};
        return 0;
    }
    const struct jbuiltin *fn = tern_jmethod_find(v, name->p, name->len, &refused);
    if (refused)
        return tern_jrun_fail(r, TERN_EUNSUPPORTED, "the method '%.*s' of '%s' is not supported", (int)name->len,
                              name->p, tern_jval_type(v));
    if (fn) {
        struct jbound *b;
        JTRY(tern_jrun_alloc(r, &b, sizeof *b));
        *b = (struct jbound){.self = v, .fn = fn};
        *out = (struct jval){.t = JV_METHOD, .bound = b};
    }
    return 0;
}

/* v.name: an attribute first, then an item. */
int tern_jval_getattr(struct jrun *r, struct jval v, const struct jstr *name, struct jval *out)
{
    if (v.t == JV_UNDEF)
        return tern_jval_undefined(r, v);
    JTRY(attribute(r, v, name, out));
    if (out->t == JV_ABSENT && v.t == JV_DICT)
        JTRY(dict_entry(r, v.d, name, out));
    return out->t == JV_ABSENT ? missing(r, v, name, out) : 0;
}

static int item_by_number(struct jrun *r, struct jval v, int64_t i, struct jval *out)
{
    int64_t n;
    JTRY(tern_jval_length(r, v, &n));
    if (i < 0)
        i += n;
    if (i < 0 || i >= n)
        return 0;
    if (v.t == JV_STR)
        return tern_jstr_slice(r, v.s, i, 1, 1, out);
    *out = v.t == JV_LIST ? v.l->v[i] : tern_jval_int(tern_jrange_at(v.r, i));
    return 0;
}

static bool subscriptable(struct jval v)
{
    return v.t == JV_STR || v.t == JV_RANGE || (v.t == JV_LIST && v.l->kind <= JL_TUPLE);
}

/* v[key]: an item first, then an attribute when the key is a string. */
int tern_jval_getitem(struct jrun *r, struct jval v, struct jval key, struct jval *out)
{
    int64_t i;
    *out = (struct jval){.t = JV_ABSENT};
    if (v.t == JV_UNDEF)
        return tern_jval_undefined(r, v);
    if (v.t == JV_DICT) {
        struct jentry *e = NULL;
        if (key.t != JV_DICT && (key.t != JV_LIST || key.l->kind == JL_TUPLE))
            JTRY(tern_jdict_find(r, v.d, key, &e));
        if (e)
            *out = e->val;
    } else if (subscriptable(v) && tern_jval_integer(key, &i)) {
        JTRY(item_by_number(r, v, i, out));
    }
    if (out->t != JV_ABSENT)
        return 0;
    if (key.t == JV_STR) {
        JTRY(attribute(r, v, key.s, out));
        return out->t == JV_ABSENT ? missing(r, v, key.s, out) : 0;
    }
    if (key.t == JV_UNDEF) /* str() of it is what Jinja puts into the message */
        return tern_jval_undef(r, owner_name(v), "", 0, out);
    struct jval text;
    JTRY(tern_jval_str(r, key, &text));
    return missing(r, v, text.s, out);
}

static int slice_part(struct jrun *r, struct jval v, int64_t *i, bool *given)
{
    *given = v.t != JV_NONE && v.t != JV_ABSENT;
    if (*given && !tern_jval_integer(v, i))
        return tern_jrun_fail(r, TERN_EINVAL, "a slice needs integers or None, not '%s'", tern_jval_type(v));
    return 0;
}

static int64_t clamp(int64_t i, int64_t n, int64_t low, int64_t high)
{
    if (i < 0)
        i += n;
    return i < low ? low : i > high ? high : i;
}

int tern_jval_slice(struct jrun *r, struct jval v, struct jval start, struct jval stop, struct jval step,
                    struct jval *out)
{
    int64_t n, by = 1, from = 0, to = 0;
    bool has_from, has_to, has_by;
    if (v.t == JV_UNDEF)
        return tern_jval_undefined(r, v);
    if (!subscriptable(v))
        return tern_jrun_fail(r, TERN_EINVAL, "an object of type '%s' cannot be sliced", tern_jval_type(v));
    JTRY(slice_part(r, start, &from, &has_from));
    JTRY(slice_part(r, stop, &to, &has_to));
    JTRY(slice_part(r, step, &by, &has_by));
    if (by == 0)
        return tern_jrun_fail(r, TERN_EINVAL, "the step of a slice is zero");
    JTRY(tern_jval_length(r, v, &n));
    if (by > INT32_MAX || by < -INT32_MAX) /* lengths are far below: the first item alone is left either way */
        by = by < 0 ? -INT32_MAX : INT32_MAX;
    int64_t low = by < 0 ? -1 : 0, high = by < 0 ? n - 1 : n;
    from = has_from ? clamp(from, n, low, high) : by < 0 ? high : low;
    to = has_to ? clamp(to, n, low, high) : by < 0 ? low : high;
    int64_t count = by > 0 ? (to > from ? (to - from - 1) / by + 1 : 0) : (from > to ? (from - to - 1) / -by + 1 : 0);
    if (v.t == JV_STR)
        return tern_jstr_slice(r, v.s, from, by, count, out);
    if (v.t == JV_RANGE) {
        struct jrange *part;
        JTRY(tern_jrun_alloc(r, &part, sizeof *part));
        part->start = tern_jrange_at(v.r, from);
        part->stop = tern_jrange_at(v.r, to);
        part->step = (int64_t)((uint64_t)v.r->step * (uint64_t)by);
        part->n = count;
        *out = (struct jval){.t = JV_RANGE, .r = part};
        return 0;
    }
    JTRY(tern_jrun_charge(r, (size_t)count / 8));
    JTRY(tern_jval_list(r, v.l->kind, (size_t)count, out));
    for (int64_t i = 0; i < count; i++)
        out->l->v[i] = v.l->v[from + i * by];
    out->l->n = (size_t)count;
    return 0;
}

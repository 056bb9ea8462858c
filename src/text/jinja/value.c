/* Lists, dictionaries, and what Python calls truth, equality, order and membership. */
#include "text/jinja/jinja.h"

#include <math.h>
#include <string.h>

/* ---- undefined ------------------------------------------------------------------------------------------------- */

static int new_undef(struct jrun *r, struct jundef u, struct jval *out)
{
    struct jundef *p;
    JTRY(tern_jrun_alloc_raw(r, &p, sizeof *p));
    *p = u;
    *out = (struct jval){.t = JV_UNDEF, .u = p};
    return 0;
}

int tern_jval_undef(struct jrun *r, const char *owner, const char *name, size_t n, struct jval *out)
{
    return new_undef(r, (struct jundef){.owner = owner, .name = name, .name_len = n}, out);
}

int tern_jval_undef_says(struct jrun *r, const char *sentence, struct jval *out)
{
    return new_undef(r, (struct jundef){.name = sentence, .name_len = strlen(sentence), .sentence = true}, out);
}

int tern_jval_undefined(struct jrun *r, struct jval v)
{
    const struct jundef *u = v.u;
    int n = u->name_len > 80 ? 80 : (int)u->name_len;
    if (u->sentence)
        return tern_jrun_fail(r, TERN_EINVAL, "%s", u->name);
    if (u->owner)
        return tern_jrun_fail(r, TERN_EINVAL, "'%s' has no attribute '%.*s'", u->owner, n, u->name);
    return tern_jrun_fail(r, TERN_EINVAL, "'%.*s' is undefined", n, u->name);
}

const char *tern_jval_type(struct jval v)
{
    static const char *const kinds[] = {"list", "tuple", "generator", "dict_keys", "dict_values", "dict_items"};
    static const char *const types[] = {
        [JV_ABSENT] = "missing", [JV_UNDEF] = "Undefined", [JV_NONE] = "NoneType",
        [JV_BOOL] = "bool",      [JV_INT] = "int",         [JV_FLOAT] = "float",
        [JV_STR] = "str",        [JV_LIST] = "list",       [JV_DICT] = "dict",
        [JV_RANGE] = "range",    [JV_NS] = "Namespace",    [JV_LOOP] = "LoopContext",
        [JV_MACRO] = "Macro",    [JV_FUNC] = "function",   [JV_METHOD] = "builtin method",
    };
    return v.t == JV_LIST ? kinds[v.l->kind] : types[v.t];
}

/* ---- lists ----------------------------------------------------------------------------------------------------- */

int tern_jval_list(struct jrun *r, enum jkind kind, size_t cap, struct jval *out)
{
    struct jlist *l;
    JTRY(tern_jrun_alloc(r, &l, sizeof *l));
    l->kind = kind;
    l->cap = cap;
    if (cap)
        JTRY(tern_jrun_alloc_raw(r, &l->v, cap * sizeof *l->v));
    *out = (struct jval){.t = JV_LIST, .l = l};
    return 0;
}

int tern_jlist_add(struct jrun *r, struct jlist *l, struct jval v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct jval *grown;
        JTRY(tern_jrun_charge(r, l->n / 8));
        JTRY(tern_jrun_alloc_raw(r, &grown, cap * sizeof *grown));
        if (l->n)
            memcpy(grown, l->v, l->n * sizeof *grown);
        l->v = grown;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return 0;
}

int tern_jval_pair(struct jrun *r, struct jval a, struct jval b, struct jval *out)
{
    JTRY(tern_jval_list(r, JL_TUPLE, 2, out));
    out->l->v[0] = a;
    out->l->v[1] = b;
    out->l->n = 2;
    return 0;
}

/* ---- dictionaries ---------------------------------------------------------------------------------------------- */

enum { SMALL_DICT = 8 };

static uint64_t mix(uint64_t h, uint64_t x)
{
    h = (h ^ x) * 0x9E3779B97F4A7C15u;
    return h ^ (h >> 29);
}

static uint64_t hash_bytes(const char *p, size_t n)
{
    uint64_t h = n, word;
    for (; n >= 8; p += 8, n -= 8) {
        memcpy(&word, p, 8);
        h = mix(h, word);
    }
    word = 0;
    if (n)
        memcpy(&word, p, n);
    return mix(h, word);
}

static int hash_value(struct jrun *r, struct jval v, int depth, uint64_t *h)
{
    int64_t i;
    if (tern_jval_integer(v, &i)) {
        *h = mix(1, (uint64_t)i);
    } else if (v.t == JV_STR) {
        JTRY(tern_jrun_charge(r, v.s->len / 64));
        *h = hash_bytes(v.s->p, v.s->len);
    } else if (v.t == JV_FLOAT) { /* 1.0 and 1 are the same key */
        bool whole = v.f >= -0x1p63 && v.f < 0x1p63 && floor(v.f) == v.f;
        uint64_t bits;
        memcpy(&bits, &v.f, sizeof bits);
        *h = whole ? mix(1, (uint64_t)(int64_t)v.f) : mix(2, bits);
    } else if (v.t == JV_LIST && v.l->kind == JL_TUPLE) {
        if (depth > JINJA_MAX_VALUE_DEPTH)
            return tern_jrun_fail(r, TERN_ELIMIT, "a value is nested more than %d deep", JINJA_MAX_VALUE_DEPTH);
        JTRY(tern_jrun_charge(r, v.l->n));
        *h = 3;
        for (size_t k = 0; k < v.l->n; k++) {
            uint64_t item;
            JTRY(hash_value(r, v.l->v[k], depth + 1, &item));
            *h = mix(*h, item);
        }
    } else if (v.t == JV_LIST || v.t == JV_DICT) {
        return tern_jrun_fail(r, TERN_EINVAL, "unhashable type: '%s'", tern_jval_type(v));
    } else {
        *h = mix(4, v.t == JV_NONE || v.t == JV_UNDEF ? (uint64_t)v.t : (uint64_t)(uintptr_t)v.d);
    }
    return 0;
}

int tern_jval_dict(struct jrun *r, struct jval *out)
{
    struct jdict *d;
    JTRY(tern_jrun_alloc(r, &d, sizeof *d));
    *out = (struct jval){.t = JV_DICT, .d = d};
    return 0;
}

static void index_put(struct jdict *d, size_t entry)
{
    size_t at = d->e[entry].hash & (d->n_index - 1);
    while (d->index[at])
        at = (at + 1) & (d->n_index - 1);
    d->index[at] = (uint32_t)entry + 1;
}

static int rebuild_index(struct jrun *r, struct jdict *d)
{
    if (d->n <= SMALL_DICT) {
        d->index = NULL;
        return 0;
    }
    JTRY(tern_jrun_charge(r, d->n / 8));
    if (!d->index || d->n_index < d->cap * 2) {
        d->n_index = 32;
        while (d->n_index < d->cap * 2)
            d->n_index *= 2;
        JTRY(tern_jrun_alloc_raw(r, &d->index, d->n_index * sizeof *d->index));
    }
    memset(d->index, 0, d->n_index * sizeof *d->index);
    for (size_t i = 0; i < d->n; i++)
        index_put(d, i);
    return 0;
}

static int same_key(struct jrun *r, const struct jentry *e, uint64_t hash, struct jval key, bool *same)
{
    *same = false;
    return e->hash == hash ? tern_jval_eq(r, e->key, key, same) : 0;
}

static int find_hashed(struct jrun *r, const struct jdict *d, uint64_t hash, struct jval key, struct jentry **out)
{
    bool same;
    *out = NULL;
    for (size_t i = 0; !d->index && i < d->n; i++) {
        JTRY(same_key(r, &d->e[i], hash, key, &same));
        if (same) {
            *out = &d->e[i];
            return 0;
        }
    }
    if (!d->index)
        return 0;
    for (size_t at = hash & (d->n_index - 1); d->index[at]; at = (at + 1) & (d->n_index - 1)) {
        struct jentry *e = &d->e[d->index[at] - 1];
        JTRY(tern_jrun_charge(r, 1)); /* a template may choose keys that collide */
        JTRY(same_key(r, e, hash, key, &same));
        if (same) {
            *out = e;
            return 0;
        }
    }
    return 0;
}

int tern_jdict_find(struct jrun *r, const struct jdict *d, struct jval key, struct jentry **out)
{
    uint64_t hash;
    JTRY(hash_value(r, key, 0, &hash));
    return find_hashed(r, d, hash, key, out);
}

int tern_jdict_set(struct jrun *r, struct jdict *d, struct jval key, struct jval v)
{
    struct jentry *e;
    uint64_t hash;
    JTRY(hash_value(r, key, 0, &hash));
    JTRY(find_hashed(r, d, hash, key, &e));
    if (e) {
        e->val = v;
        return 0;
    }
    bool grown = d->n == d->cap;
    if (grown) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        struct jentry *entries;
        JTRY(tern_jrun_charge(r, d->n / 4));
        JTRY(tern_jrun_alloc_raw(r, &entries, cap * sizeof *entries));
        if (d->n)
            memcpy(entries, d->e, d->n * sizeof *entries);
        d->e = entries;
        d->cap = cap;
    }
    d->e[d->n++] = (struct jentry){.key = key, .val = v, .hash = hash};
    if (grown || !d->index)
        return rebuild_index(r, d);
    index_put(d, d->n - 1);
    return 0;
}

int tern_jdict_remove(struct jrun *r, struct jdict *d, struct jentry *e)
{
    size_t at = (size_t)(e - d->e);
    JTRY(tern_jrun_charge(r, d->n / 4));
    memmove(e, e + 1, (d->n - at - 1) * sizeof *e);
    d->n--;
    return rebuild_index(r, d);
}

/* ---- truth, length --------------------------------------------------------------------------------------------- */

bool tern_jval_truth(struct jval v)
{
    switch (v.t) {
    case JV_ABSENT:
    case JV_UNDEF:
    case JV_NONE:
        return false;
    case JV_BOOL:
        return v.b;
    case JV_INT:
        return v.i != 0;
    case JV_FLOAT:
        return v.f != 0;
    case JV_STR:
        return v.s->len != 0;
    case JV_LIST:
        return v.l->kind == JL_GENERATOR || v.l->n != 0;
    case JV_DICT:
        return v.d->n != 0;
    case JV_RANGE:
        return v.r->n != 0;
    default:
        return true;
    }
}

int tern_jval_length(struct jrun *r, struct jval v, int64_t *n)
{
    size_t chars = 0;
    if (v.t == JV_STR)
        JTRY(tern_jstr_chars(r, v.s, &chars));
    else if (v.t == JV_LIST && v.l->kind != JL_GENERATOR)
        chars = v.l->n;
    else if (v.t == JV_DICT)
        chars = v.d->n;
    else if (v.t == JV_RANGE)
        chars = (size_t)v.r->n;
    else if (v.t != JV_UNDEF)
        return tern_jrun_fail(r, TERN_EINVAL, "an object of type '%s' has no length", tern_jval_type(v));
    *n = (int64_t)chars;
    return 0;
}

/* ---- equality and order ---------------------------------------------------------------------------------------- */

/* Exact also for large integers against floats: long double has 64 bits of mantissa or more. */
static bool number_eq(struct jval a, struct jval b, bool *eq)
{
    int64_t i, k;
    bool ia = tern_jval_integer(a, &i), ib = tern_jval_integer(b, &k);
    if ((!ia && a.t != JV_FLOAT) || (!ib && b.t != JV_FLOAT))
        return false;
    *eq = ia && ib ? i == k : (ia ? (long double)i : (long double)a.f) == (ib ? (long double)k : (long double)b.f);
    return true;
}

static int eq_depth(struct jrun *r, struct jval a, struct jval b, int depth, bool *out);

static int lists_eq(struct jrun *r, const struct jlist *a, const struct jlist *b, int depth, bool *out)
{
    *out = a == b;
    if (a == b || a->kind != b->kind || a->n != b->n || (a->kind != JL_LIST && a->kind != JL_TUPLE))
        return 0;
    for (size_t i = 0; i < a->n; i++) {
        JTRY(eq_depth(r, a->v[i], b->v[i], depth + 1, out));
        if (!*out)
            return 0;
    }
    *out = true;
    return 0;
}

static int dicts_eq(struct jrun *r, const struct jdict *a, const struct jdict *b, int depth, bool *out)
{
    *out = a == b;
    if (a == b || a->n != b->n)
        return 0;
    for (size_t i = 0; i < a->n; i++) {
        struct jentry *e;
        JTRY(find_hashed(r, b, a->e[i].hash, a->e[i].key, &e));
        *out = false;
        if (!e)
            return 0;
        JTRY(eq_depth(r, a->e[i].val, e->val, depth + 1, out));
        if (!*out)
            return 0;
    }
    *out = true;
    return 0;
}

static int eq_depth(struct jrun *r, struct jval a, struct jval b, int depth, bool *out)
{
    if (number_eq(a, b, out))
        return 0;
    *out = false;
    if (a.t != b.t)
        return 0;
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return tern_jrun_fail(r, TERN_ELIMIT, "a value is nested more than %d deep", JINJA_MAX_VALUE_DEPTH);
    JTRY(tern_jrun_charge(r, 1));
    switch (a.t) {
    case JV_UNDEF:
    case JV_NONE:
        *out = true;
        return 0;
    case JV_STR:
        JTRY(tern_jrun_charge(r, a.s->len == b.s->len ? a.s->len / 64 : 0));
        *out = tern_jstr_eq(a.s, b.s);
        return 0;
    case JV_LIST:
        return lists_eq(r, a.l, b.l, depth, out);
    case JV_DICT:
        return dicts_eq(r, a.d, b.d, depth, out);
    case JV_RANGE:
        *out =
            a.r->n == b.r->n && (a.r->n == 0 || (a.r->start == b.r->start && (a.r->n == 1 || a.r->step == b.r->step)));
        return 0;
    default:
        *out = a.d == b.d; /* the same object */
        return 0;
    }
}

int tern_jval_eq(struct jrun *r, struct jval a, struct jval b, bool *out)
{
    return eq_depth(r, a, b, 0, out);
}

static bool ordered(enum jcmp op, int sign)
{
    return op == JCMP_LT ? sign < 0 : op == JCMP_LE ? sign <= 0 : op == JCMP_GT ? sign > 0 : sign >= 0;
}

static bool number_ordered(enum jcmp op, struct jval a, struct jval b, bool *out)
{
    int64_t i, k;
    bool ia = tern_jval_integer(a, &i), ib = tern_jval_integer(b, &k);
    if ((!ia && a.t != JV_FLOAT) || (!ib && b.t != JV_FLOAT))
        return false;
    if (ia && ib) {
        *out = ordered(op, (i > k) - (i < k));
        return true;
    }
    long double f = ia ? (long double)i : (long double)a.f, g = ib ? (long double)k : (long double)b.f;
    *out = f == f && g == g && ordered(op, (f > g) - (f < g)); /* nothing holds for NaN */
    return true;
}

static int compare_depth(struct jrun *r, enum jcmp op, struct jval a, struct jval b, int depth, bool *out)
{
    static const char *const signs[] = {"==", "!=", "<", "<=", ">", ">="};
    if (a.t == JV_UNDEF || b.t == JV_UNDEF)
        return tern_jval_undefined(r, a.t == JV_UNDEF ? a : b);
    if (number_ordered(op, a, b, out))
        return 0;
    JTRY(tern_jrun_charge(r, 1));
    if (a.t == JV_STR && b.t == JV_STR) {
        JTRY(tern_jrun_charge(r, (a.s->len < b.s->len ? a.s->len : b.s->len) / 64));
        *out = ordered(op, tern_jstr_cmp(a.s, b.s));
        return 0;
    }
    if (a.t != JV_LIST || b.t != JV_LIST || a.l->kind != b.l->kind || a.l->kind > JL_TUPLE)
        return tern_jrun_fail(r, TERN_EINVAL, "'%s' is not defined between '%s' and '%s'", signs[op], tern_jval_type(a),
                              tern_jval_type(b));
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return tern_jrun_fail(r, TERN_ELIMIT, "a value is nested more than %d deep", JINJA_MAX_VALUE_DEPTH);
    for (size_t i = 0; i < a.l->n && i < b.l->n; i++) {
        bool eq;
        JTRY(eq_depth(r, a.l->v[i], b.l->v[i], depth, &eq));
        if (!eq)
            return compare_depth(r, op, a.l->v[i], b.l->v[i], depth + 1, out);
    }
    *out = ordered(op, (a.l->n > b.l->n) - (a.l->n < b.l->n));
    return 0;
}

int tern_jval_compare(struct jrun *r, enum jcmp op, struct jval a, struct jval b, bool *out)
{
    if (op == JCMP_IN || op == JCMP_NOTIN) {
        JTRY(tern_jval_contains(r, b, a, out));
        *out ^= op == JCMP_NOTIN;
        return 0;
    }
    if (op == JCMP_EQ || op == JCMP_NE) {
        JTRY(eq_depth(r, a, b, 0, out));
        *out ^= op == JCMP_NE;
        return 0;
    }
    return compare_depth(r, op, a, b, 0, out);
}

int tern_jval_contains(struct jrun *r, struct jval container, struct jval item, bool *out)
{
    struct jiter it;
    struct jval v;
    int more;
    *out = false;
    if (container.t == JV_STR) {
        if (item.t != JV_STR)
            return tern_jrun_fail(r, TERN_EINVAL, "'in' a string needs a string on its left, not '%s'",
                                  tern_jval_type(item));
        JTRY(tern_jrun_charge(r, container.s->len / 16));
        *out = tern_jstr_find(container.s, item.s, 0) != SIZE_MAX;
        return 0;
    }
    if (container.t == JV_DICT) {
        struct jentry *e;
        JTRY(tern_jdict_find(r, container.d, item, &e));
        *out = e != NULL;
        return 0;
    }
    JTRY(tern_jiter_init(r, &it, container));
    while ((more = tern_jiter_next(r, &it, &v)) > 0) {
        JTRY(tern_jval_eq(r, v, item, out));
        if (*out)
            return 0;
    }
    return more;
}

/* Merge sort from the bottom up: stable, no recursion, and comparisons may fail. */
int tern_jval_sort(struct jrun *r, const struct jval *keys, size_t *idx, size_t n, bool reverse)
{
    size_t *from = idx, *to;
    JTRY(tern_jrun_alloc_raw(r, &to, n * sizeof *to));
    for (size_t width = 1; width < n; width *= 2) {
        JTRY(tern_jrun_charge(r, n));
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            size_t a = lo, b = mid, k = lo;
            while (a < mid && b < hi) { /* the right one goes first only when it must */
                bool right;
                JTRY(tern_jval_compare(r, JCMP_LT, keys[from[reverse ? a : b]], keys[from[reverse ? b : a]], &right));
                to[k++] = right ? from[b++] : from[a++];
            }
            while (a < mid)
                to[k++] = from[a++];
            while (b < hi)
                to[k++] = from[b++];
        }
        size_t *swap = from;
        from = to;
        to = swap;
    }
    if (from != idx)
        memcpy(idx, from, n * sizeof *idx);
    return 0;
}

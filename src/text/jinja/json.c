/* JSON in (through jansson) and out (the `tojson` of Hugging Face: Python's json.dumps with ensure_ascii off). */
#include "text/jinja/jinja.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int tern_jval_from_json(struct jrun *r, const struct json_t *j, bool user, int depth, struct jval *out)
{
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return tern_jrun_fail(r, TERN_ELIMIT, "a JSON value is nested more than %d deep", JINJA_MAX_VALUE_DEPTH);
    switch (json_typeof(j)) {
    case JSON_OBJECT: {
        json_t *obj = (json_t *)(uintptr_t)j; /* jansson's iterators want a mutable object, and only read */
        JTRY(tern_jval_dict(r, out));
        for (void *it = json_object_iter(obj); it; it = json_object_iter_next(obj, it)) {
            struct jval key, v;
            const char *name = json_object_iter_key(it);
            JTRY(tern_jstr_new(r, name, strlen(name), user, &key));
            JTRY(tern_jval_from_json(r, json_object_iter_value(it), user, depth + 1, &v));
            JTRY(tern_jdict_set(r, out->d, key, v));
        }
        return 0;
    }
    case JSON_ARRAY: {
        size_t n = json_array_size(j);
        JTRY(tern_jval_list(r, JL_LIST, n, out));
        for (size_t i = 0; i < n; i++) {
            struct jval v;
            JTRY(tern_jval_from_json(r, json_array_get(j, i), user, depth + 1, &v));
            JTRY(tern_jlist_add(r, out->l, v));
        }
        return 0;
    }
    case JSON_STRING:
        return tern_jstr_new(r, json_string_value(j), json_string_length(j), user, out);
    case JSON_INTEGER:
        *out = tern_jval_int(json_integer_value(j));
        return 0;
    case JSON_REAL:
        *out = tern_jval_float(json_real_value(j));
        return 0;
    case JSON_NULL:
        *out = tern_jval_none();
        return 0;
    default:
        *out = tern_jval_bool(json_is_true(j));
        return 0;
    }
}

int tern_jval_parse_json(struct jrun *r, const char *what, const char *text, size_t n, bool user, struct jval *out)
{
    json_error_t e;
    json_t *j = json_loadb(text, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &e);
    if (!j)
        return tern_jrun_fail(r, TERN_EINVAL, "%s is not valid JSON: %s (line %d, column %d)", what, e.text, e.line,
                              e.column);
    int rc = tern_jval_from_json(r, j, user, 0, out);
    json_decref(j);
    return rc;
}

/* ---- output ---------------------------------------------------------------------------------------------------- */

static int dump(struct jrun *r, struct jval v, const struct jdump *o, struct jbuild *b, int depth);

static int dump_str(struct jrun *r, const struct jstr *s, bool ascii, struct jbuild *b)
{
    static const char plain_escapes[] = "\"\"\\\\\nn\rr\tt\bb\ff";
    bool user = tern_jstr_any_user(s);
    size_t done = 0;
    JTRY(tern_jrun_charge(r, s->len / 16));
    JTRY(tern_jbuild_add(r, b, "\"", NULL, user, 1));
    for (size_t i = 0; i < s->len;) {
        char esc[16];
        uint32_t cp;
        size_t k = tern_jutf8_next(s->p + i, s->len - i, &cp);
        const char *simple = NULL;
        for (size_t e = 0; e + 1 < sizeof plain_escapes; e += 2)
            if ((uint32_t)plain_escapes[e] == cp)
                simple = plain_escapes + e + 1;
        if (!simple && cp >= 0x20 && (!ascii || cp < 0x7F)) {
            i += k;
            continue;
        }
        JTRY(tern_jbuild_add(r, b, s->p + done, NULL, user, i - done));
        if (simple)
            (void)snprintf(esc, sizeof esc, "\\%c", *simple);
        else if (cp < 0x10000)
            (void)snprintf(esc, sizeof esc, "\\u%04x", cp);
        else
            (void)snprintf(esc, sizeof esc, "\\u%04x\\u%04x", 0xD7C0 + (cp >> 10), 0xDC00 + (cp & 0x3FF));
        JTRY(tern_jbuild_add(r, b, esc, NULL, user, strlen(esc)));
        JTRY(tern_jrun_charge(r, 1));
        i += k;
        done = i;
    }
    JTRY(tern_jbuild_add(r, b, s->p + done, NULL, user, s->len - done));
    return tern_jbuild_add(r, b, "\"", NULL, user, 1);
}

static int newline(struct jrun *r, const struct jdump *o, struct jbuild *b, int depth)
{
    if (o->indent.t == JV_NONE)
        return 0;
    JTRY(tern_jbuild_text(r, b, "\n"));
    for (int i = 0; i < depth; i++) {
        if (o->indent.t == JV_STR)
            JTRY(tern_jbuild_str(r, b, o->indent.s));
        for (int64_t k = 0; o->indent.t == JV_INT && k < o->indent.i; k++)
            JTRY(tern_jbuild_text(r, b, " "));
    }
    return 0;
}

static int dump_key(struct jrun *r, struct jval key, const struct jdump *o, struct jbuild *b)
{
    struct jbuild text = {0};
    struct jval s = key;
    if (key.t != JV_STR) {
        if (key.t != JV_INT && key.t != JV_FLOAT && key.t != JV_BOOL && key.t != JV_NONE)
            return tern_jrun_fail(r, TERN_EINVAL, "tojson: a key must be a string or a number, not '%s'",
                                  tern_jval_type(key));
        JTRY(dump(r, key, o, &text, 0));
        JTRY(tern_jbuild_done(r, &text, &s));
    }
    return dump_str(r, s.s, o->ascii, b);
}

static int dump_dict(struct jrun *r, const struct jdict *d, const struct jdump *o, struct jbuild *b, int depth)
{
    size_t *order;
    struct jval *keys;
    JTRY(tern_jrun_alloc_raw(r, &order, d->n * sizeof *order));
    JTRY(tern_jrun_alloc_raw(r, &keys, d->n * sizeof *keys));
    for (size_t i = 0; i < d->n; i++) {
        order[i] = i;
        keys[i] = d->e[i].key;
    }
    if (o->sort)
        JTRY(tern_jval_sort(r, keys, order, d->n, false));
    JTRY(tern_jbuild_text(r, b, "{"));
    for (size_t i = 0; i < d->n; i++) {
        if (i)
            JTRY(tern_jbuild_str(r, b, o->item_sep.s));
        JTRY(newline(r, o, b, depth + 1));
        JTRY(dump_key(r, keys[order[i]], o, b));
        JTRY(tern_jbuild_str(r, b, o->key_sep.s));
        JTRY(dump(r, d->e[order[i]].val, o, b, depth + 1));
    }
    if (d->n)
        JTRY(newline(r, o, b, depth));
    return tern_jbuild_text(r, b, "}");
}

static int dump_list(struct jrun *r, const struct jlist *l, const struct jdump *o, struct jbuild *b, int depth)
{
    JTRY(tern_jbuild_text(r, b, "["));
    for (size_t i = 0; i < l->n; i++) {
        if (i)
            JTRY(tern_jbuild_str(r, b, o->item_sep.s));
        JTRY(newline(r, o, b, depth + 1));
        JTRY(dump(r, l->v[i], o, b, depth + 1));
    }
    if (l->n)
        JTRY(newline(r, o, b, depth));
    return tern_jbuild_text(r, b, "]");
}

static int dump(struct jrun *r, struct jval v, const struct jdump *o, struct jbuild *b, int depth)
{
    char text[40];
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return tern_jrun_fail(r, TERN_ELIMIT, "tojson: a value is nested more than %d deep", JINJA_MAX_VALUE_DEPTH);
    JTRY(tern_jrun_charge(r, 1));
    switch (v.t) {
    case JV_STR:
        return dump_str(r, v.s, o->ascii, b);
    case JV_DICT:
        return dump_dict(r, v.d, o, b, depth);
    case JV_LIST:
        if (v.l->kind <= JL_TUPLE)
            return dump_list(r, v.l, o, b, depth);
        break;
    case JV_NONE:
        return tern_jbuild_text(r, b, "null");
    case JV_BOOL:
        return tern_jbuild_text(r, b, v.b ? "true" : "false");
    case JV_INT:
        (void)snprintf(text, sizeof text, "%lld", (long long)v.i);
        return tern_jbuild_text(r, b, text);
    case JV_FLOAT:
        if (isnan(v.f) || isinf(v.f))
            return tern_jbuild_text(r, b, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
        (void)tern_jnum_repr(v.f, text);
        return tern_jbuild_text(r, b, text);
    default:
        break;
    }
    return tern_jrun_fail(r, TERN_EINVAL, "tojson: an object of type '%s' has no JSON form", tern_jval_type(v));
}

int tern_jval_dump_json(struct jrun *r, struct jval v, const struct jdump *opt, struct jval *out)
{
    struct jbuild b = {0};
    JTRY(dump(r, v, opt, &b, 0));
    if (b.saw_user) { /* see repr.c */
        b.m = NULL;
        b.user = true;
    }
    return tern_jbuild_done(r, &b, out);
}

/* str() and repr() of values, and writing them out.
 *
 * The text of a container counts as user text as a whole as soon as one string in it does: the punctuation around it
 * can hold no control token, and one stretch tokenizes as Hugging Face would have it. */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>
#include "base/mem.h"

static bool printable(uint32_t cp)
{
    if (cp < 0x7F)
        return cp >= 0x20;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
        return false;
    default:
        return true;
    }
}

static int repr_str(struct jrun *r, const struct jstr *s, struct jbuild *b)
{
    bool user = tern_jstr_any_user(s);
    JTRY(tern_jrun_charge(r, s->len / 16));
    char quote = memchr(s->p, '\'', s->len) && !memchr(s->p, '"', s->len) ? '"' : '\'';
    JTRY(tern_jbuild_add(r, b, &quote, NULL, user, 1));
    size_t plain = 0; /* start of the stretch that needs no escape */
    for (size_t i = 0; i < s->len;) {
        char esc[16];
        uint32_t cp;
        size_t k = tern_jutf8_next(s->p + i, s->len - i, &cp);
        const char *simple = cp == '\\' ? "\\\\" : cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : cp == '\t' ? "\\t" : NULL;
        if (!simple && cp != (uint32_t)quote && printable(cp)) {
            i += k;
            continue;
        }
        JTRY(tern_jbuild_add(r, b, s->p + plain, NULL, user, i - plain));
        if (simple)
            (void)snprintf(esc, sizeof esc, "%s", simple);
        else if (cp == (uint32_t)quote)
            (void)snprintf(esc, sizeof esc, "\\%c", quote);
        else
            (void)snprintf(esc, sizeof esc, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
        JTRY(tern_jbuild_add(r, b, esc, NULL, user, strlen(esc)));
        JTRY(tern_jrun_charge(r, 1));
        i += k;
        plain = i;
    }
    JTRY(tern_jbuild_add(r, b, s->p + plain, NULL, user, s->len - plain));
    return tern_jbuild_add(r, b, &quote, NULL, user, 1);
}

static int repr_list(struct jrun *r, const struct jlist *l, struct jbuild *b, int depth)
{
    static const char *const open[] = {"[", "(", "<generator object", "dict_keys([", "dict_values([", "dict_items(["};
    static const char *const close[] = {"]", ")", ">", "])", "])", "])"};
    JTRY(tern_jbuild_text(r, b, open[l->kind]));
    for (size_t i = 0; l->kind != JL_GENERATOR && i < l->n; i++) {
        JTRY(tern_jbuild_text(r, b, i ? ", " : ""));
        JTRY(tern_jval_repr(r, l->v[i], b, depth + 1));
    }
    if (l->kind == JL_TUPLE && l->n == 1)
        JTRY(tern_jbuild_text(r, b, ","));
    return tern_jbuild_text(r, b, close[l->kind]);
}

static int repr_dict(struct jrun *r, const struct jdict *d, struct jbuild *b, int depth)
{
    JTRY(tern_jbuild_text(r, b, "{"));
    for (size_t i = 0; i < d->n; i++) {
        JTRY(tern_jbuild_text(r, b, i ? ", " : ""));
        JTRY(tern_jval_repr(r, d->e[i].key, b, depth + 1));
        JTRY(tern_jbuild_text(r, b, ": "));
        JTRY(tern_jval_repr(r, d->e[i].val, b, depth + 1));
    }
    return tern_jbuild_text(r, b, "}");
}

int tern_jval_repr(struct jrun *r, struct jval v, struct jbuild *b, int depth)
{
    char text[96];
    size_t n = 0;
    if (depth > JINJA_MAX_VALUE_DEPTH)
        return tern_jrun_fail(r, TERN_ELIMIT, "a value is nested more than %d deep", JINJA_MAX_VALUE_DEPTH);
    JTRY(tern_jrun_charge(r, 1));
    switch (v.t) {
    case JV_STR:
        return repr_str(r, v.s, b);
    case JV_LIST:
        return repr_list(r, v.l, b, depth);
    case JV_DICT:
        return repr_dict(r, v.d, b, depth);
    case JV_NS:
        JTRY(tern_jbuild_text(r, b, "<Namespace "));
        JTRY(repr_dict(r, v.d, b, depth));
        return tern_jbuild_text(r, b, ">");
    case JV_LOOP:
        return tern_jrun_loop_str(r, v.loop, b);
    case JV_FLOAT:
        n = tern_jnum_repr(v.f, text);
        break;
    case JV_INT:
        n = (size_t)snprintf(text, sizeof text, "%lld", (long long)v.i);
        break;
    case JV_RANGE:
        n = (size_t)snprintf(text, sizeof text, "range(%lld, %lld", (long long)v.r->start, (long long)v.r->stop);
        if (v.r->step != 1)
            n += (size_t)snprintf(text + n, sizeof text - n, ", %lld", (long long)v.r->step);
        text[n++] = ')';
        break;
    case JV_MACRO:
        JTRY(tern_jbuild_text(r, b, "<Macro "));
        JTRY(repr_str(r, &r->t->syms[v.macro->node->sym], b));
        return tern_jbuild_text(r, b, ">");
    case JV_FUNC:
    case JV_METHOD:
        n = (size_t)snprintf(text, sizeof text, "<%s>", tern_jval_type(v));
        break;
    default:
        n = (size_t)snprintf(text, sizeof text, "%s",
                             v.t == JV_NONE   ? "None"
                             : v.t == JV_BOOL ? (v.b ? "True" : "False")
                                              : "Undefined");
        break;
    }
    return tern_jbuild_add(r, b, text, NULL, false, n);
}

int tern_jval_str(struct jrun *r, struct jval v, struct jval *out)
{
    struct jbuild b = {0};
    if (v.t == JV_STR) {
        *out = v;
        return 0;
    }
    if (v.t == JV_UNDEF)
        return tern_jstr_lit(r, "", out);
    JTRY(tern_jval_repr(r, v, &b, 0));
    if (b.saw_user) {
        b.m = NULL;
        b.user = true;
    }
    return tern_jbuild_done(r, &b, out);
}

int tern_jval_write(struct jrun *r, struct jval v)
{
    struct jval s;
    if (v.t == JV_UNDEF)
        return 0;
    JTRY(tern_jval_str(r, v, &s));
    return tern_jrun_write(r, s.s->p, s.s->m, s.s->user, s.s->len);
}

static int write_run(struct jrun *r, const char *p, size_t n, bool user)
{
    int rc = 0;
    struct tern_rendered *o = r->out;
    size_t begin = o->text.len;
    if (n > JINJA_MAX_TEXT - begin)
        return tern_jrun_fail(r, TERN_ELIMIT, "the output grows beyond %zu bytes", JINJA_MAX_TEXT);
    TERN_TRY(tern_buf_add(&o->text, p, n, r->err));
    if (o->n_spans && o->spans[o->n_spans - 1].user == user) {
        o->spans[o->n_spans - 1].end = o->text.len;
        return 0;
    }
    TERN_TRY(tern_grow(&o->spans, &o->cap_spans, o->n_spans + 1, sizeof *o->spans, r->err));
    o->spans[o->n_spans++] = (struct tern_span){.begin = begin, .end = o->text.len, .user = user};
out:
    return rc;
}

int tern_jrun_write(struct jrun *r, const char *p, const uint8_t *m, bool user, size_t n)
{
    if (r->capture)
        return tern_jbuild_add(r, r->capture, p, m, user, n);
    JTRY(tern_jrun_charge(r, n / 64));
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        while (m && end < n && m[end] == m[i])
            end++;
        if (!m)
            end = n;
        JTRY(write_run(r, p + i, end - i, m ? m[i] : user));
    }
    return 0;
}

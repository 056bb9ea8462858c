/* text/jinja/ops.h - what expressions do with values: strings, containers, numbers, JSON, filters, methods, tests. */
#ifndef TERN_TEXT_JINJA_OPS_H
#define TERN_TEXT_JINJA_OPS_H

#include "text/jinja/render.h"

/* ---- strings (str.c, case.c) ------------------------------------------------------------------------------------- */

int tern_jstr_new(struct jrun *r, const char *p, size_t n, bool user, struct jval *out); /* copies */
int tern_jstr_lit(struct jrun *r, const char *static_text, struct jval *out);
int tern_jstr_sub(struct jrun *r, const struct jstr *s, size_t off, size_t n, struct jval *out); /* shares bytes */
int tern_jstr_concat(struct jrun *r, struct jstr *a, const struct jstr *b, struct jval *out);
int tern_jstr_chars(struct jrun *r, struct jstr *s, size_t *n);
int tern_jstr_slice(struct jrun *r, struct jstr *s, int64_t start, int64_t step, int64_t n, struct jval *out);
bool tern_jstr_eq(const struct jstr *a, const struct jstr *b);
bool tern_jstr_is(const struct jstr *a, const char *text);
int tern_jstr_cmp(const struct jstr *a, const struct jstr *b);
bool tern_jstr_any_user(const struct jstr *s);
int tern_jstr_replace(struct jrun *r, const struct jstr *s, const struct jstr *from, const struct jstr *to, int64_t max,
                      struct jval *out);
/* First occurrence of `what` in s at or after byte `from`; SIZE_MAX when there is none. */
size_t tern_jstr_find(const struct jstr *s, const struct jstr *what, size_t from);
/* Bytes of the character at p (1 for a byte that starts none) and its code point (the byte + 0xDC00 for those). */
size_t tern_jutf8_next(const char *p, size_t n, uint32_t *cp);
size_t tern_jutf8_prev(const char *p, size_t n); /* length of the last character of p[0..n) */
size_t tern_jutf8_put(uint32_t cp, char out[4]);
bool tern_jutf8_space(uint32_t cp);     /* str.isspace */
bool tern_jutf8_linebreak(uint32_t cp); /* str.splitlines */
enum jcase { JCASE_LOWER, JCASE_UPPER, JCASE_TITLE, JCASE_CAPITALIZE, JCASE_WORDS };
int tern_jstr_case(struct jrun *r, const struct jstr *s, enum jcase how, struct jval *out);

int tern_jbuild_add(struct jrun *r, struct jbuild *b, const char *p, const uint8_t *m, bool user, size_t n);
int tern_jbuild_str(struct jrun *r, struct jbuild *b, const struct jstr *s);
int tern_jbuild_sub(struct jrun *r, struct jbuild *b, const struct jstr *s, size_t off, size_t n);
int tern_jbuild_text(struct jrun *r, struct jbuild *b, const char *text); /* template text */
int tern_jbuild_done(struct jrun *r, struct jbuild *b, struct jval *out);

/* ---- values (value.c, access.c, number.c, repr.c) ---------------------------------------------------------------- */

static inline struct jval tern_jval_none(void)
{
    return (struct jval){.t = JV_NONE};
}
static inline struct jval tern_jval_bool(bool b)
{
    return (struct jval){.t = JV_BOOL, .b = b};
}
static inline struct jval tern_jval_int(int64_t i)
{
    return (struct jval){.t = JV_INT, .i = i};
}
static inline struct jval tern_jval_float(double f)
{
    return (struct jval){.t = JV_FLOAT, .f = f};
}
int tern_jval_undef(struct jrun *r, const char *owner, const char *name, size_t n, struct jval *out);
int tern_jval_undef_says(struct jrun *r, const char *sentence, struct jval *out);
int tern_jval_list(struct jrun *r, enum jkind kind, size_t cap, struct jval *out);
int tern_jlist_add(struct jrun *r, struct jlist *l, struct jval v);
int tern_jval_pair(struct jrun *r, struct jval a, struct jval b, struct jval *out); /* a 2-tuple */
int tern_jval_dict(struct jrun *r, struct jval *out);
int tern_jdict_set(struct jrun *r, struct jdict *d, struct jval key, struct jval v);
int tern_jdict_find(struct jrun *r, const struct jdict *d, struct jval key, struct jentry **out); /* NULL: absent */
int tern_jdict_remove(struct jrun *r, struct jdict *d, struct jentry *e);

const char *tern_jval_type(struct jval v); /* "str", "NoneType" ...: Python's type names */
bool tern_jval_truth(struct jval v);
bool tern_jval_number(struct jval v, double *f);   /* int, float or bool */
bool tern_jval_integer(struct jval v, int64_t *i); /* int or bool */
int tern_jval_eq(struct jrun *r, struct jval a, struct jval b, bool *out);
int tern_jval_compare(struct jrun *r, enum jcmp op, struct jval a, struct jval b, bool *out);
int tern_jval_contains(struct jrun *r, struct jval container, struct jval item, bool *out);
int tern_jval_length(struct jrun *r, struct jval v, int64_t *n);
int tern_jval_undefined(struct jrun *r, struct jval v); /* fails with what the undefined value has to say */
/* Sorts the permutation idx[0..n) by keys, stable, Python's order of comparison. */
int tern_jval_sort(struct jrun *r, const struct jval *keys, size_t *idx, size_t n, bool reverse);

struct jiter {
    struct jval src;
    size_t pos;
};
int tern_jiter_init(struct jrun *r, struct jiter *it, struct jval v);
int tern_jiter_next(struct jrun *r, struct jiter *it, struct jval *out); /* 1 item, 0 end, negative error */
/* All items of an iterable as a fresh list of the given kind. */
int tern_jval_collect(struct jrun *r, struct jval v, enum jkind kind, struct jval *out);

int tern_jval_getattr(struct jrun *r, struct jval v, const struct jstr *name, struct jval *out);
int tern_jval_getitem(struct jrun *r, struct jval v, struct jval key, struct jval *out);
int tern_jval_slice(struct jrun *r, struct jval v, struct jval start, struct jval stop, struct jval step,
                    struct jval *out);

int tern_jval_binary(struct jrun *r, enum jop op, struct jval a, struct jval b, struct jval *out);
int tern_jval_negate(struct jrun *r, struct jval v, bool minus, struct jval *out);
size_t tern_jnum_repr(double f, char out[40]);                  /* Python's repr(float) */
bool tern_jnum_parse_float(const char *p, size_t n, double *f); /* Python's float(str) */
/* Python's int(str, base): 1 ok, 0 not a number, -1 does not fit. */
int tern_jnum_parse_int(const char *p, size_t n, int base, int64_t *i);

int tern_jval_str(struct jrun *r, struct jval v, struct jval *out); /* str(v), always JV_STR */
int tern_jval_repr(struct jrun *r, struct jval v, struct jbuild *b, int depth);
int tern_jval_write(struct jrun *r, struct jval v); /* str(v) to the output */
int tern_jrun_write(struct jrun *r, const char *p, const uint8_t *m, bool user, size_t n);

/* ---- JSON (json.c) ----------------------------------------------------------------------------------------------- */

struct json_t;
int tern_jval_from_json(struct jrun *r, const struct json_t *j, bool user, int depth, struct jval *out);
int tern_jval_parse_json(struct jrun *r, const char *what, const char *text, size_t n, bool user, struct jval *out);
struct jdump {
    bool ascii, sort;
    struct jval indent; /* none, int or str */
    struct jval item_sep, key_sep;
};
int tern_jval_dump_json(struct jrun *r, struct jval v, const struct jdump *opt, struct jval *out);

/* ---- builtins ---------------------------------------------------------------------------------------------------- */

const struct jbuiltin *tern_jfilter_find(const char *name, size_t n);
const struct jbuiltin *tern_jtest_find(const char *name, size_t n);
const struct jbuiltin *tern_jglobal_find(const char *name, size_t n);
/* NULL when the type has no such method; *refused is set when Python has it and this engine does not. */
const struct jbuiltin *tern_jmethod_find(struct jval self, const char *name, size_t n, bool *refused);
int tern_jfunc_dict(struct jrun *r, const struct jcall *c, struct jval *out);
int tern_jfunc_namespace(struct jrun *r, const struct jcall *c, struct jval *out);
const struct jbuiltin *tern_jbuiltin_search(const struct jbuiltin *table, const char *name, size_t n);
/* Argument access: default where absent, an error that names the parameter where the type is wrong. */
int tern_jarg_int(struct jrun *r, const struct jcall *c, int i, int64_t def, int64_t *out);
int tern_jarg_bool(struct jrun *r, const struct jcall *c, int i, bool def, bool *out);
int tern_jarg_str(struct jrun *r, const struct jcall *c, int i, struct jstr **out); /* NULL where absent or none */

extern const struct jbuiltin tern_jfilters_text[], tern_jfilters_seq[], tern_jmethods_dict[], tern_jmethods_list[],
    tern_jmethods_tuple[];
/* Characters whose upper or title case is several characters; sorted, case_tab.c. */
struct jcase_special {
    uint32_t cp;
    const char *upper, *title;
};
extern const struct jcase_special tern_jcase_special[];
extern const size_t tern_jcase_n_special;
int tern_jmethod_strip(struct jrun *r, const struct jstr *s, const struct jstr *chars, int sides, struct jval *out);
/* format.c */
int tern_jmethod_format(struct jrun *r, const struct jcall *c, struct jval *out);
int tern_jfilter_format(struct jrun *r, const struct jcall *c, struct jval *out);
enum { JSTRIP_LEFT = 1, JSTRIP_RIGHT = 2 };

#endif

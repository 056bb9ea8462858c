/* text/jinja_impl.h - the inside of the chat template engine; only jinja_*.c and template.c include it.
 *
 * Mental model: text -> tokens (jinja_lex.c) -> tree (jinja_parse.c, jinja_stmt.c) -> a walk over the tree that writes
 * text (jinja_eval.c for expressions, jinja_exec.c for statements) with Python's rules for values.
 *
 * Ownership: the tree lives in the template's arena and never changes after the parse, so any number of renders may
 * share it.  Everything a render makes lives in that render's own arena and dies with it; that is why functions here
 * own nothing and return early on failure (JTRY) where the rest of the tree would go to an `out:` label.
 *
 * Marks: each string knows which of its bytes came from a message.  A uniform string has `m` NULL and one flag `user`;
 * a mixed one has one mark byte per text byte.  Every operation that copies bytes copies their marks.
 *
 * Limits: templates arrive inside untrusted model files.  Each tree node evaluated costs one step and bulk work costs
 * one step per some bytes or items; steps, nesting, memory and output are all bounded (TERN_ELIMIT).  The deepest
 * nesting that these limits allow takes less than 1 MiB of C stack. */
#ifndef TERN_TEXT_JINJA_IMPL_H
#define TERN_TEXT_JINJA_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"
#include "text/text.h"

#define JINJA_MAX_SOURCE      ((size_t)1 << 20) /* bytes of template text */
#define JINJA_MAX_NEST        300       /* grammar rules inside each other in the parser; a bracket costs three */
#define JINJA_MAX_TREE        400       /* height of an expression tree: a + b + c + ... grows to the left */
#define JINJA_MAX_DEPTH       2000      /* nested evaluations at run time, macro calls included */
#define JINJA_MAX_VALUE_DEPTH 200       /* lists in lists when printed, compared or dumped */
#define JINJA_MAX_STEPS       10000000u /* see above; about a second */
#define JINJA_MAX_TEXT        ((size_t)64 << 20)  /* bytes of output, and of any one string */
#define JINJA_MAX_MEMORY      ((size_t)256 << 20) /* bytes of values alive in one render */
#define JINJA_MAX_RANGE       100000              /* items of one range(): the figure of Jinja's sandbox */
#define JINJA_MAX_NAMES       1024                /* different variable names in one template */
#define JINJA_MAX_JSON        ((size_t)1 << 20) /* bytes of text given to from_json: the parser needs 70 times as much */
#define JINJA_MAX_KWARGS      256               /* keyword arguments of one call */

#define JTRY(expr)          \
    do {                    \
        int jtry_ = (expr); \
        if (jtry_ < 0)      \
            return jtry_;   \
    } while (0)

/* ---- arena: bump allocation with a budget (jinja_arena.c) ------------------------------------------------------ */

struct jchunk;
struct jarena {
    struct jchunk *chunks; /* doubly linked, newest first */
    char *at, *end;        /* free part of the newest small chunk */
    size_t used, budget;
};
/* NULL when the budget or the system is exhausted.  16-byte aligned, not zeroed. */
void *tern_jarena_alloc(struct jarena *a, size_t n);
/* Moves a block that nothing else points to.  Large blocks move without a copy staying behind. */
void *tern_jarena_regrow(struct jarena *a, void *old, size_t old_n, size_t n);
void tern_jarena_clear(struct jarena *a);

/* ---- values ---------------------------------------------------------------------------------------------------- */

enum jtype {
    JV_ABSENT, /* no argument given, variable never set: never visible to a template */
    JV_UNDEF,
    JV_NONE,
    JV_BOOL,
    JV_INT,
    JV_FLOAT,
    JV_STR,
    JV_LIST, /* lists, tuples, generators and dict views: see enum jkind */
    JV_DICT,
    JV_RANGE,
    JV_NS,
    JV_LOOP,
    JV_MACRO,
    JV_FUNC,   /* a global function */
    JV_METHOD, /* a builtin method together with its receiver */
};

enum jkind { JL_LIST, JL_TUPLE, JL_GENERATOR, JL_KEYS, JL_VALUES, JL_ITEMS };

struct jval {
    enum jtype t;
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr *s;
        struct jlist *l;
        struct jdict *d; /* also JV_NS */
        struct jrange *r;
        struct jloop *loop;
        struct jmacro *macro;
        const struct jbuiltin *fn;
        struct jbound *bound;
        const struct jundef *u;
    };
};

/* Spare room behind a string's bytes.  Appending to the string that ends at `used` writes there, so that a template
 * which grows one string in a loop costs linear time; shorter strings sharing the front are not disturbed. */
struct jgrow {
    char *p;
    uint8_t *m; /* NULL until the buffer holds both kinds of bytes */
    size_t used, cap;
};

struct jstr {
    const char *p;    /* UTF-8; a byte that is not part of a valid character counts as one character */
    const uint8_t *m; /* marks, or NULL when all bytes are `user` */
    size_t len;
    size_t chars; /* code points; SIZE_MAX until counted (never for strings of the tree, which is shared) */
    struct jgrow *grow;
    bool user;
};

struct jlist {
    struct jval *v;
    size_t n, cap;
    size_t pos; /* generators: items already handed out */
    enum jkind kind;
};

struct jentry {
    struct jval key, val;
    uint64_t hash;
};
struct jdict {
    struct jentry *e; /* in insertion order */
    size_t n, cap;
    uint32_t *index; /* open addressing over e, entry number + 1; NULL while n is small */
    size_t n_index;
};

struct jrange {
    int64_t start, stop, step, n;
};
/* Every item fits in 64 bits, but the product on the way to it may not: unsigned arithmetic wraps back. */
static inline int64_t tern_jrange_at(const struct jrange *r, int64_t i)
{
    return (int64_t)((uint64_t)r->start + (uint64_t)i * (uint64_t)r->step);
}

struct jundef { /* what to say when the undefined value is used */
    const char *owner;
    const char *name; /* with owner NULL: a variable's name, or a whole sentence when `sentence` */
    size_t name_len;
    bool sentence;
};

struct jbound {
    struct jval self;
    const struct jbuiltin *fn;
};

/* ---- calls ----------------------------------------------------------------------------------------------------- */

struct jkwarg {
    const char *name;
    size_t name_len;
    struct jval v;
};
struct jargs {
    struct jval *pos;
    struct jkwarg *kw;
    int n_pos, n_kw;
};

#define JINJA_MAX_PARAMS 5
struct jcall {
    struct jval self;        /* the piped value, the tested value, the method's object */
    struct jval *a;          /* one per declared parameter, JV_ABSENT where not given */
    const struct jargs *raw; /* as written */
    const char *what;        /* "filter", "test", "method", "function": for messages */
    const char *name;
};
struct jrun;
typedef int jbuiltin_fn(struct jrun *r, const struct jcall *c, struct jval *out);

struct jbuiltin {
    const char *name;
    const char *params; /* "old,new,count"; NULL = takes what it gets in c->raw */
    int required;       /* the first so many must be given */
    jbuiltin_fn *fn;
};

/* ---- the tree -------------------------------------------------------------------------------------------------- */

enum jop { JOP_ADD, JOP_SUB, JOP_MUL, JOP_DIV, JOP_FLOORDIV, JOP_MOD, JOP_POW };
enum jcmp { JCMP_EQ, JCMP_NE, JCMP_LT, JCMP_LE, JCMP_GT, JCMP_GE, JCMP_IN, JCMP_NOTIN };

enum jnode_kind {
    JN_CONST, /* konst */
    JN_NAME,  /* sym */
    JN_LIST,  /* kids */
    JN_TUPLE,
    JN_DICT,    /* kids: key, value, key, value ... */
    JN_GETATTR, /* a . str */
    JN_GETITEM, /* a [ b ] */
    JN_SLICE,   /* kids[0..2], NULL where left out; only as b of JN_GETITEM */
    JN_CALL,    /* a ( args ) */
    JN_FILTER,  /* a | str ( args ); a NULL inside set and filter blocks */
    JN_TEST,    /* a is str ( args ) */
    JN_NOT,
    JN_NEG,
    JN_POS,
    JN_BIN, /* a op b */
    JN_AND,
    JN_OR,
    JN_COMPARE,     /* kids[0] ops[0] kids[1] ops[1] kids[2] ... */
    JN_CONCAT,      /* kids */
    JN_COND,        /* b if a else c (c may be NULL) */
    JN_NSREF,       /* assignment target sym . str */
    JN_DATA,        /* konst, written as it is */
    JN_PRINT,       /* a */
    JN_IF,          /* kids: test, body, test, body ...; c = else body or NULL */
    JN_FOR,         /* a target, b iterable, c condition or NULL, kids[0] body, kids[1] else body or NULL */
    JN_SET,         /* a target, b value */
    JN_SETBLOCK,    /* a target, b filter chain or NULL, c body */
    JN_FILTERBLOCK, /* b filter chain, c body */
    JN_MACRO,       /* sym, args->names = parameters, kids = defaults of the last ones, c body */
    JN_SCOPE,       /* kids: target, value pairs; c body */
    JN_BODY,        /* kids in order */
    JN_BREAK,
    JN_CONTINUE,
};

struct jnode_args {
    struct jnode **pos, **kw;
    struct jstr *kw_names;
    struct jnode *star, *star2; /* *list and **dict, or NULL */
    int n_pos, n_kw;
};

struct jnode {
    enum jnode_kind kind;
    int op;
    int line;
    int height;
    int sym;
    int n_kids;
    bool uses_varargs, uses_kwargs; /* JN_MACRO */
    struct jnode *a, *b, *c;
    struct jnode **kids;
    uint8_t *ops;
    struct jnode_args *args;
    int *params; /* JN_MACRO: symbols */
    int n_params;
    struct jval konst;         /* JN_CONST, JN_DATA; the name of an attribute, filter or test */
    const struct jbuiltin *fn; /* resolved filter or test; NULL when unknown */
};

struct tern_template {
    struct jarena arena;
    char *name;
    struct jnode *body;
    struct jstr *syms; /* every variable name in the text, so that scopes compare numbers */
    int n_syms;
    int sym_loop, sym_varargs, sym_kwargs; /* -1 when the text never says so */
    const struct tern_calls_format *calls; /* what the text says about replies; NULL: nothing */
    const struct tern_reasoning_format *reasoning;
};

/* ---- parsing --------------------------------------------------------------------------------------------------- */

enum jtok_type {
    JT_EOF,
    JT_DATA,
    JT_VAR_BEGIN,
    JT_VAR_END,
    JT_BLOCK_BEGIN,
    JT_BLOCK_END,
    JT_NAME,
    JT_STRING,
    JT_INT,
    JT_FLOAT,
    JT_OP,
};
/* Operators are one character, or for two-character ones this combination. */
#define JINJA_OP2(a, b) ((int)(a) | (int)(b) << 8)

struct jtok {
    enum jtok_type type;
    int op;
    int line;
    const char *p; /* text of a name, string (unescaped) or data */
    size_t n;
    int64_t i;
    double f;
};

struct jparse {
    struct tern_template *t;
    tern_error *err;
    struct jtok *toks;
    size_t n_toks, cap_toks;
    size_t at;
    size_t cap_syms;
    int nest;
    int loops; /* for-bodies around the current statement: break is legal inside */
    bool saw_varargs, saw_kwargs;
};

int tern_jparse_fail(struct jparse *p, int code, int line, const char *fmt, ...) TERN_PRINTF(4, 5);
int tern_jparse_alloc(struct jparse *p, void *out, size_t n); /* zeroed */
int tern_jparse_sym(struct jparse *p, const char *name, size_t n, int *sym);
int tern_jlex_run(struct jparse *p, const char *text, size_t n);

/* jinja_parse.c: expressions.  Each leaves the first token behind the construct current. */
int tern_jparse_node(struct jparse *p, enum jnode_kind kind, int line, struct jnode **out);
int tern_jparse_height(struct jparse *p, struct jnode *n); /* after the children are in place */
int tern_jparse_expr(struct jparse *p, struct jnode **out);
enum jtuple_mode { JTUPLE_EXPR, JTUPLE_NO_COND, JTUPLE_TARGET };
int tern_jparse_tuple(struct jparse *p, enum jtuple_mode mode, bool parens, struct jnode **out);
int tern_jparse_filters(struct jparse *p, struct jnode *first, bool inline_first, struct jnode **out);
bool tern_jparse_is_name(const struct jparse *p, size_t ahead, const char *name);
bool tern_jparse_is_op(const struct jparse *p, int op);
bool tern_jparse_skip_name(struct jparse *p, const char *name);
bool tern_jparse_skip_op(struct jparse *p, int op);
int tern_jparse_expect_op(struct jparse *p, int op);
int tern_jparse_expect(struct jparse *p, enum jtok_type type);
int tern_jparse_unexpected(struct jparse *p, const char *wanted);
struct jnode_list {
    struct jnode **v;
    size_t n, cap;
};
int tern_jparse_push(struct jparse *p, struct jnode_list *l, struct jnode *n);
/* jinja_stmt.c */
int tern_jparse_template(struct jparse *p);

/* ---- a render -------------------------------------------------------------------------------------------------- */

struct jvar {
    int sym;
    struct jval v;
};
struct jscope {
    struct jscope *up; /* NULL: the next stop is jrun.root */
    struct jvar *vars;
    int n, cap;
    bool captured; /* a macro points here: a loop must not reuse it for its next round */
};

struct jmacro {
    const struct jnode *node;
    struct jscope *scope; /* where it was defined: its free names are looked up there */
};

/* Text under construction. */
struct jbuild {
    char *p;
    uint8_t *m; /* NULL while uniform */
    size_t len, cap;
    bool user;     /* of all bytes while m is NULL */
    bool saw_user; /* some byte is marked */
};

enum jflow { JFLOW_NONE, JFLOW_BREAK, JFLOW_CONTINUE };

struct jrun {
    struct jarena arena;
    const struct tern_template *t;
    tern_error *err;
    struct tern_rendered *out;
    struct jbuild *capture; /* where text goes inside macros and block sets; NULL = out */
    struct jval *root;      /* one per symbol: globals, the caller's variables, top-level sets */
    struct jscope *scope;   /* NULL at top level */
    uint64_t steps;         /* left */
    int line;
    int depth;
    enum jflow flow;
};

int tern_jrun_fail(struct jrun *r, int code, const char *fmt, ...) TERN_PRINTF(3, 4);
int tern_jrun_alloc(struct jrun *r, void *out, size_t n); /* zeroed */
int tern_jrun_alloc_raw(struct jrun *r, void *out, size_t n);
int tern_jrun_no_steps(struct jrun *r);
static inline int tern_jrun_charge(struct jrun *r, size_t steps)
{
    if (r->steps < steps)
        return tern_jrun_no_steps(r);
    r->steps -= steps;
    return 0;
}
int tern_jrun_enter(struct jrun *r); /* one level of nesting; tern_jrun_leave undoes it */
static inline void tern_jrun_leave(struct jrun *r)
{
    r->depth--;
}

/* jinja_eval.c */
int tern_jrun_eval(struct jrun *r, const struct jnode *n, struct jval *out);
int tern_jrun_filter_chain(struct jrun *r, const struct jnode *n, struct jval in, struct jval *out);
int tern_jrun_builtin(struct jrun *r, const struct jbuiltin *fn, const char *what, struct jval self,
                      const struct jargs *args, struct jval *out);
int tern_jrun_call(struct jrun *r, struct jval callee, const struct jargs *args, struct jval *out);
/* jinja_exec.c */
int tern_jrun_exec(struct jrun *r, const struct jnode *n);
int tern_jrun_macro(struct jrun *r, const struct jmacro *m, const struct jargs *args, struct jval *out);
int tern_jrun_lookup(struct jrun *r, int sym, struct jval *out); /* JV_ABSENT: no such variable */
int tern_jrun_loop_attr(struct jrun *r, struct jloop *l, const struct jstr *name, struct jval *out);
int tern_jrun_loop_str(struct jrun *r, struct jloop *l, struct jbuild *b);

/* ---- strings (jinja_str.c, jinja_case.c) ----------------------------------------------------------------------- */

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

/* ---- values (jinja_value.c, jinja_access.c, jinja_number.c, jinja_repr.c) -------------------------------------- */

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

/* ---- JSON (jinja_json.c) --------------------------------------------------------------------------------------- */

struct json_t;
int tern_jval_from_json(struct jrun *r, const struct json_t *j, bool user, int depth, struct jval *out);
int tern_jval_parse_json(struct jrun *r, const char *what, const char *text, size_t n, bool user, struct jval *out);
struct jdump {
    bool ascii, sort;
    struct jval indent; /* none, int or str */
    struct jval item_sep, key_sep;
};
int tern_jval_dump_json(struct jrun *r, struct jval v, const struct jdump *opt, struct jval *out);

/* ---- builtins -------------------------------------------------------------------------------------------------- */

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
/* Characters whose upper or title case is several characters; sorted, jinja_case_tab.c. */
struct jcase_special {
    uint32_t cp;
    const char *upper, *title;
};
extern const struct jcase_special tern_jcase_special[];
extern const size_t tern_jcase_n_special;
int tern_jmethod_strip(struct jrun *r, const struct jstr *s, const struct jstr *chars, int sides, struct jval *out);
/* jinja_format.c */
int tern_jmethod_format(struct jrun *r, const struct jcall *c, struct jval *out);
int tern_jfilter_format(struct jrun *r, const struct jcall *c, struct jval *out);
enum { JSTRIP_LEFT = 1, JSTRIP_RIGHT = 2 };

#endif

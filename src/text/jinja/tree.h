/* text/jinja/tree.h - tokens, the tree, and the parser that makes one of the other. */
#ifndef TERN_TEXT_JINJA_TREE_H
#define TERN_TEXT_JINJA_TREE_H

#include "text/jinja/value.h"

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

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
    char *text;  /* as it came, NUL behind it */
    char *names; /* JSON of the variables that every rendering sees; NULL: none */
};

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

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

/* parse.c: expressions.  Each leaves the first token behind the construct current. */
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
/* stmt.c */
int tern_jparse_template(struct jparse *p);

#endif

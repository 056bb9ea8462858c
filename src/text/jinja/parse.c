/* Expressions.  Binary operators are parsed by climbing precedence levels in one function, so that the depth of C
 * recursion follows the nesting of the text and not the number of levels; `nest` bounds it. */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <string.h>

enum level { LV_OR = 1, LV_AND, LV_NOT, LV_COMPARE, LV_ADD, LV_CONCAT, LV_MUL, LV_POW };

static const struct jtok *current(const struct jparse *p)
{
    return &p->toks[p->at];
}

static const struct jtok *ahead(const struct jparse *p, size_t k)
{
    return &p->toks[p->at + k < p->n_toks ? p->at + k : p->n_toks - 1];
}

bool tern_jparse_is_name(const struct jparse *p, size_t k, const char *name)
{
    const struct jtok *t = ahead(p, k);
    return t->type == JT_NAME && t->n == strlen(name) && memcmp(t->p, name, t->n) == 0;
}

bool tern_jparse_is_op(const struct jparse *p, int op)
{
    return current(p)->type == JT_OP && current(p)->op == op;
}

bool tern_jparse_skip_name(struct jparse *p, const char *name)
{
    if (!tern_jparse_is_name(p, 0, name))
        return false;
    p->at++;
    return true;
}

bool tern_jparse_skip_op(struct jparse *p, int op)
{
    if (!tern_jparse_is_op(p, op))
        return false;
    p->at++;
    return true;
}

static void describe(const struct jtok *t, char *out, size_t n)
{
    static const char *const texts[] = {
        [JT_EOF] = "the end of the template",
        [JT_DATA] = "text",
        [JT_VAR_BEGIN] = "'{{'",
        [JT_VAR_END] = "'}}'",
        [JT_BLOCK_BEGIN] = "'{%'",
        [JT_BLOCK_END] = "'%}'",
        [JT_NAME] = "a name",
        [JT_STRING] = "a string",
        [JT_INT] = "a number",
        [JT_FLOAT] = "a number",
        [JT_OP] = "an operator",
    };
    if (t->type == JT_NAME || t->type == JT_INT || t->type == JT_FLOAT)
        (void)snprintf(out, n, "'%.*s'", t->n > 40 ? 40 : (int)t->n, t->p);
    else if (t->type == JT_OP && t->op > 0xFF)
        (void)snprintf(out, n, "'%c%c'", t->op & 0xFF, t->op >> 8);
    else if (t->type == JT_OP)
        (void)snprintf(out, n, "'%c'", t->op);
    else
        (void)snprintf(out, n, "%s", texts[t->type]);
}

int tern_jparse_unexpected(struct jparse *p, const char *wanted)
{
    char found[64];
    describe(current(p), found, sizeof found);
    return tern_jparse_fail(p, TERN_EFORMAT, current(p)->line, "expected %s, found %s", wanted, found);
}

int tern_jparse_expect_op(struct jparse *p, int op)
{
    char wanted[8];
    (void)snprintf(wanted, sizeof wanted, "'%c'", op & 0xFF);
    return tern_jparse_skip_op(p, op) ? 0 : tern_jparse_unexpected(p, wanted);
}

int tern_jparse_expect(struct jparse *p, enum jtok_type type)
{
    char wanted[64];
    if (current(p)->type == type) {
        p->at += type != JT_EOF;
        return 0;
    }
    describe(&(struct jtok){.type = type, .p = "name", .n = 4}, wanted, sizeof wanted);
    return tern_jparse_unexpected(p, wanted);
}

int tern_jparse_push(struct jparse *p, struct jnode_list *l, struct jnode *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        struct jnode **v;
        JTRY(tern_jparse_alloc(p, &v, cap * sizeof *v));
        if (l->n)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return 0;
}

int tern_jparse_node(struct jparse *p, enum jnode_kind kind, int line, struct jnode **out)
{
    JTRY(tern_jparse_alloc(p, out, sizeof **out));
    (*out)->kind = kind;
    (*out)->line = line;
    (*out)->height = 1;
    return 0;
}

static void taller(struct jnode *n, const struct jnode *child)
{
    if (child && child->height >= n->height)
        n->height = child->height + 1;
}

int tern_jparse_height(struct jparse *p, struct jnode *n)
{
    taller(n, n->a);
    taller(n, n->b);
    taller(n, n->c);
    for (int i = 0; i < n->n_kids; i++)
        taller(n, n->kids[i]);
    if (n->args) {
        for (int i = 0; i < n->args->n_pos; i++)
            taller(n, n->args->pos[i]);
        for (int i = 0; i < n->args->n_kw; i++)
            taller(n, n->args->kw[i]);
        taller(n, n->args->star);
        taller(n, n->args->star2);
    }
    if (n->height > JINJA_MAX_TREE)
        return tern_jparse_fail(p, TERN_ELIMIT, n->line, "an expression has more than %d levels", JINJA_MAX_TREE);
    return 0;
}

static void take(struct jnode *n, const struct jnode_list *l)
{
    n->kids = l->v;
    n->n_kids = (int)l->n;
}

static int set_text(struct jparse *p, struct jnode *n, const char *text, size_t len)
{
    struct jstr *s;
    JTRY(tern_jparse_alloc(p, &s, sizeof *s));
    *s = (struct jstr){.p = text, .len = len};
    for (size_t i = 0; i < len; s->chars++) {
        uint32_t cp;
        i += tern_jutf8_next(text + i, len - i, &cp);
    }
    n->konst = (struct jval){.t = JV_STR, .s = s};
    return 0;
}

static int parse_level(struct jparse *p, enum level min, struct jnode **out);

static int parse_name_or_constant(struct jparse *p, struct jnode **out)
{
    const struct jtok *t = current(p);
    bool yes = tern_jparse_is_name(p, 0, "true") || tern_jparse_is_name(p, 0, "True");
    bool no = tern_jparse_is_name(p, 0, "false") || tern_jparse_is_name(p, 0, "False");
    bool none = tern_jparse_is_name(p, 0, "none") || tern_jparse_is_name(p, 0, "None");
    p->at++;
    JTRY(tern_jparse_node(p, yes || no || none ? JN_CONST : JN_NAME, t->line, out));
    if ((*out)->kind == JN_CONST) {
        (*out)->konst = none ? tern_jval_none() : tern_jval_bool(yes);
        return 0;
    }
    p->saw_varargs |= t->n == 7 && memcmp(t->p, "varargs", 7) == 0;
    p->saw_kwargs |= t->n == 6 && memcmp(t->p, "kwargs", 6) == 0;
    return tern_jparse_sym(p, t->p, t->n, &(*out)->sym);
}

/* One or more string literals next to each other are one string. */
static int parse_strings(struct jparse *p, struct jnode **out)
{
    const struct jtok *first = current(p);
    size_t n = 0, k = 0;
    char *text;
    JTRY(tern_jparse_node(p, JN_CONST, first->line, out));
    for (; first[k].type == JT_STRING; k++)
        n += first[k].n;
    p->at += k;
    if (k == 1)
        return set_text(p, *out, first->p, first->n);
    JTRY(tern_jparse_alloc(p, &text, n));
    n = 0;
    for (size_t i = 0; i < k; i++) {
        if (first[i].n)
            memcpy(text + n, first[i].p, first[i].n);
        n += first[i].n;
    }
    return set_text(p, *out, text, n);
}

static int parse_list(struct jparse *p, struct jnode **out)
{
    struct jnode_list l = {0};
    JTRY(tern_jparse_node(p, JN_LIST, current(p)->line, out));
    p->at++;
    while (!tern_jparse_is_op(p, ']')) {
        struct jnode *item;
        if (l.n)
            JTRY(tern_jparse_expect_op(p, ','));
        if (tern_jparse_is_op(p, ']'))
            break;
        JTRY(tern_jparse_expr(p, &item));
        JTRY(tern_jparse_push(p, &l, item));
    }
    take(*out, &l);
    JTRY(tern_jparse_expect_op(p, ']'));
    return tern_jparse_height(p, *out);
}

static int parse_dict(struct jparse *p, struct jnode **out)
{
    struct jnode_list l = {0};
    JTRY(tern_jparse_node(p, JN_DICT, current(p)->line, out));
    p->at++;
    while (!tern_jparse_is_op(p, '}')) {
        struct jnode *key, *value;
        if (l.n)
            JTRY(tern_jparse_expect_op(p, ','));
        if (tern_jparse_is_op(p, '}'))
            break;
        JTRY(tern_jparse_expr(p, &key));
        JTRY(tern_jparse_expect_op(p, ':'));
        JTRY(tern_jparse_expr(p, &value));
        JTRY(tern_jparse_push(p, &l, key));
        JTRY(tern_jparse_push(p, &l, value));
    }
    take(*out, &l);
    JTRY(tern_jparse_expect_op(p, '}'));
    return tern_jparse_height(p, *out);
}

static int parse_primary(struct jparse *p, struct jnode **out)
{
    const struct jtok *t = current(p);
    switch (t->type) {
    case JT_NAME:
        return parse_name_or_constant(p, out);
    case JT_STRING:
        return parse_strings(p, out);
    case JT_INT:
    case JT_FLOAT:
        JTRY(tern_jparse_node(p, JN_CONST, t->line, out));
        (*out)->konst = t->type == JT_INT ? tern_jval_int(t->i) : tern_jval_float(t->f);
        p->at++;
        return 0;
    default:
        break;
    }
    if (tern_jparse_skip_op(p, '(')) {
        JTRY(tern_jparse_tuple(p, JTUPLE_EXPR, true, out));
        return tern_jparse_expect_op(p, ')');
    }
    if (tern_jparse_is_op(p, '['))
        return parse_list(p, out);
    if (tern_jparse_is_op(p, '{'))
        return parse_dict(p, out);
    return tern_jparse_unexpected(p, "an expression");
}

static bool tuple_end(const struct jparse *p, enum jtuple_mode mode)
{
    const struct jtok *t = current(p);
    return t->type == JT_VAR_END || t->type == JT_BLOCK_END || tern_jparse_is_op(p, ')') ||
           (mode == JTUPLE_TARGET && tern_jparse_is_name(p, 0, "in"));
}

int tern_jparse_tuple(struct jparse *p, enum jtuple_mode mode, bool parens, struct jnode **out)
{
    struct jnode_list l = {0};
    bool is_tuple = false;
    int line = current(p)->line;
    for (;;) {
        struct jnode *item;
        if (l.n)
            JTRY(tern_jparse_expect_op(p, ','));
        if (tuple_end(p, mode))
            break;
        if (mode == JTUPLE_TARGET)
            JTRY(parse_primary(p, &item));
        else if (mode == JTUPLE_NO_COND)
            JTRY(parse_level(p, LV_OR, &item));
        else
            JTRY(tern_jparse_expr(p, &item));
        JTRY(tern_jparse_push(p, &l, item));
        if (!tern_jparse_is_op(p, ','))
            break;
        is_tuple = true;
    }
    if (!is_tuple && l.n) {
        *out = l.v[0];
        return 0;
    }
    if (!is_tuple && !parens)
        return tern_jparse_unexpected(p, "an expression");
    JTRY(tern_jparse_node(p, JN_TUPLE, line, out));
    take(*out, &l);
    return tern_jparse_height(p, *out);
}

struct arg_lists {
    struct jnode_list pos, kw;
    struct jstr *names;
    size_t cap_names;
};

static int parse_kwarg(struct jparse *p, struct arg_lists *l)
{
    struct jnode *value;
    if (l->kw.n == l->cap_names) {
        size_t cap = l->cap_names ? l->cap_names * 2 : 4;
        struct jstr *names;
        JTRY(tern_jparse_alloc(p, &names, cap * sizeof *names));
        if (l->kw.n)
            memcpy(names, l->names, l->kw.n * sizeof *names);
        l->names = names;
        l->cap_names = cap;
    }
    const struct jtok *t = current(p);
    if (l->kw.n >= JINJA_MAX_KWARGS)
        return tern_jparse_fail(p, TERN_ELIMIT, t->line, "more than %d keyword arguments", JINJA_MAX_KWARGS);
    l->names[l->kw.n] = (struct jstr){.p = t->p, .len = t->n, .chars = t->n};
    for (size_t i = 0; i < l->kw.n; i++)
        if (tern_jstr_eq(&l->names[i], &l->names[l->kw.n]))
            return tern_jparse_fail(p, TERN_EFORMAT, t->line, "the keyword argument '%.*s' is given twice", (int)t->n,
                                    t->p);
    p->at += 2;
    JTRY(tern_jparse_expr(p, &value));
    return tern_jparse_push(p, &l->kw, value);
}

static int parse_args(struct jparse *p, struct jnode_args **out)
{
    struct jnode_args *a;
    struct arg_lists l = {0};
    int line = current(p)->line;
    bool comma = false, bad = false;
    JTRY(tern_jparse_alloc(p, &a, sizeof *a));
    JTRY(tern_jparse_expect_op(p, '('));
    while (!tern_jparse_is_op(p, ')')) {
        struct jnode *value;
        if (comma)
            JTRY(tern_jparse_expect_op(p, ','));
        if (tern_jparse_is_op(p, ')'))
            break;
        comma = true;
        const struct jtok *next = ahead(p, 1);
        if (tern_jparse_skip_op(p, '*')) {
            bad |= a->star || a->star2;
            JTRY(tern_jparse_expr(p, &a->star));
        } else if (tern_jparse_skip_op(p, JINJA_OP2('*', '*'))) {
            bad |= a->star2 != NULL;
            JTRY(tern_jparse_expr(p, &a->star2));
        } else if (current(p)->type == JT_NAME && next->type == JT_OP && next->op == '=') {
            bad |= a->star2 != NULL;
            JTRY(parse_kwarg(p, &l));
        } else {
            bad |= a->star || a->star2 || l.kw.n;
            JTRY(tern_jparse_expr(p, &value));
            JTRY(tern_jparse_push(p, &l.pos, value));
        }
        if (bad)
            return tern_jparse_fail(p, TERN_EFORMAT, line, "the arguments of a call are in an illegal order");
    }
    a->pos = l.pos.v;
    a->n_pos = (int)l.pos.n;
    a->kw = l.kw.v;
    a->n_kw = (int)l.kw.n;
    a->kw_names = l.names;
    *out = a;
    return tern_jparse_expect_op(p, ')');
}

static int parse_call(struct jparse *p, struct jnode **io)
{
    struct jnode *n;
    JTRY(tern_jparse_node(p, JN_CALL, current(p)->line, &n));
    n->a = *io;
    JTRY(parse_args(p, &n->args));
    *io = n;
    return tern_jparse_height(p, n);
}

/* The inside of [ ]: an expression or a slice. */
static int parse_subscript_arg(struct jparse *p, struct jnode **out)
{
    struct jnode *parts[3] = {0}, *n;
    int line = current(p)->line, k = 0;
    bool slice = false;
    for (;;) {
        if (!tern_jparse_is_op(p, ':') && !tern_jparse_is_op(p, ']') && !tern_jparse_is_op(p, ','))
            JTRY(tern_jparse_expr(p, &parts[k]));
        if (k == 2 || !tern_jparse_skip_op(p, ':'))
            break;
        slice = true;
        k++;
    }
    if (tern_jparse_is_op(p, ',') || (!slice && !parts[0]))
        return tern_jparse_fail(p, TERN_EUNSUPPORTED, line, "a subscript must be one expression or one slice");
    if (!slice) {
        *out = parts[0];
        return 0;
    }
    JTRY(tern_jparse_node(p, JN_SLICE, line, &n));
    JTRY(tern_jparse_alloc(p, &n->kids, 3 * sizeof *n->kids));
    memcpy(n->kids, parts, sizeof parts);
    n->n_kids = 3;
    *out = n;
    return tern_jparse_height(p, n);
}

static int parse_subscript(struct jparse *p, struct jnode **io)
{
    struct jnode *n;
    int line = current(p)->line;
    bool dot = tern_jparse_is_op(p, '.');
    p->at++;
    const struct jtok *t = current(p);
    JTRY(tern_jparse_node(p, dot && t->type == JT_NAME ? JN_GETATTR : JN_GETITEM, line, &n));
    n->a = *io;
    if (n->kind == JN_GETATTR) {
        JTRY(set_text(p, n, t->p, t->n));
        p->at++;
    } else if (dot) {
        if (t->type != JT_INT)
            return tern_jparse_unexpected(p, "a name or number after '.'");
        JTRY(parse_primary(p, &n->b));
    } else {
        JTRY(parse_subscript_arg(p, &n->b));
        JTRY(tern_jparse_expect_op(p, ']'));
    }
    *io = n;
    return tern_jparse_height(p, n);
}

static int parse_postfix(struct jparse *p, struct jnode **io)
{
    for (;;) {
        if (tern_jparse_is_op(p, '.') || tern_jparse_is_op(p, '['))
            JTRY(parse_subscript(p, io));
        else if (tern_jparse_is_op(p, '('))
            JTRY(parse_call(p, io));
        else
            return 0;
    }
}

int tern_jparse_filters(struct jparse *p, struct jnode *first, bool inline_first, struct jnode **out)
{
    *out = first;
    while (inline_first || tern_jparse_is_op(p, '|')) {
        struct jnode *n;
        p->at += !inline_first;
        inline_first = false;
        const struct jtok *t = current(p);
        JTRY(tern_jparse_expect(p, JT_NAME));
        JTRY(tern_jparse_node(p, JN_FILTER, t->line, &n));
        JTRY(set_text(p, n, t->p, t->n));
        n->fn = tern_jfilter_find(t->p, t->n);
        n->a = *out;
        if (tern_jparse_is_op(p, '('))
            JTRY(parse_args(p, &n->args));
        *out = n;
        JTRY(tern_jparse_height(p, n));
    }
    return 0;
}

static bool test_argument_follows(const struct jparse *p)
{
    const struct jtok *t = current(p);
    if (t->type == JT_NAME)
        return !tern_jparse_is_name(p, 0, "else") && !tern_jparse_is_name(p, 0, "or") &&
               !tern_jparse_is_name(p, 0, "and");
    return t->type == JT_STRING || t->type == JT_INT || t->type == JT_FLOAT || tern_jparse_is_op(p, '[') ||
           tern_jparse_is_op(p, '{');
}

static int parse_test(struct jparse *p, struct jnode **io)
{
    struct jnode *n;
    int line = current(p)->line;
    p->at++;
    bool negated = tern_jparse_skip_name(p, "not");
    const struct jtok *t = current(p);
    JTRY(tern_jparse_expect(p, JT_NAME));
    JTRY(tern_jparse_node(p, JN_TEST, line, &n));
    JTRY(set_text(p, n, t->p, t->n));
    n->fn = tern_jtest_find(t->p, t->n);
    n->a = *io;
    if (tern_jparse_is_op(p, '(')) {
        JTRY(parse_args(p, &n->args));
    } else if (test_argument_follows(p)) {
        struct jnode **arg;
        if (tern_jparse_is_name(p, 0, "is"))
            return tern_jparse_fail(p, TERN_EFORMAT, line, "tests cannot be chained with 'is'");
        JTRY(tern_jparse_alloc(p, &n->args, sizeof *n->args));
        JTRY(tern_jparse_alloc(p, &arg, sizeof *arg));
        JTRY(parse_primary(p, arg));
        JTRY(parse_postfix(p, arg));
        n->args->pos = arg;
        n->args->n_pos = 1;
    }
    JTRY(tern_jparse_height(p, n));
    *io = n;
    if (!negated)
        return 0;
    JTRY(tern_jparse_node(p, JN_NOT, line, io));
    (*io)->a = n;
    return tern_jparse_height(p, *io);
}

static int parse_unary(struct jparse *p, bool with_filters, struct jnode **out)
{
    int line = current(p)->line;
    bool minus = tern_jparse_is_op(p, '-');
    if (++p->nest > JINJA_MAX_NEST)
        return tern_jparse_fail(p, TERN_ELIMIT, line, "expressions are nested more than %d deep", JINJA_MAX_NEST / 3);
    if (minus || tern_jparse_is_op(p, '+')) {
        p->at++;
        JTRY(tern_jparse_node(p, minus ? JN_NEG : JN_POS, line, out));
        JTRY(parse_unary(p, false, &(*out)->a));
        JTRY(tern_jparse_height(p, *out));
    } else {
        JTRY(parse_primary(p, out));
    }
    JTRY(parse_postfix(p, out));
    while (with_filters) {
        if (tern_jparse_is_op(p, '|'))
            JTRY(tern_jparse_filters(p, *out, false, out));
        else if (tern_jparse_is_name(p, 0, "is"))
            JTRY(parse_test(p, out));
        else if (tern_jparse_is_op(p, '('))
            JTRY(parse_call(p, out));
        else
            break;
    }
    p->nest--;
    return 0;
}

struct binop {
    enum level level; /* 0: the current token is no binary operator */
    enum jnode_kind kind;
    int op;
    size_t tokens;
};

static struct binop binary_operator(const struct jparse *p)
{
    static const struct {
        int token;
        struct binop op;
    } ops[] = {
        {'+', {LV_ADD, JN_BIN, JOP_ADD, 1}},
        {'-', {LV_ADD, JN_BIN, JOP_SUB, 1}},
        {'~', {LV_CONCAT, JN_CONCAT, 0, 1}},
        {'*', {LV_MUL, JN_BIN, JOP_MUL, 1}},
        {'/', {LV_MUL, JN_BIN, JOP_DIV, 1}},
        {'%', {LV_MUL, JN_BIN, JOP_MOD, 1}},
        {JINJA_OP2('/', '/'), {LV_MUL, JN_BIN, JOP_FLOORDIV, 1}},
        {JINJA_OP2('*', '*'), {LV_POW, JN_BIN, JOP_POW, 1}},
        {JINJA_OP2('=', '='), {LV_COMPARE, JN_COMPARE, JCMP_EQ, 1}},
        {JINJA_OP2('!', '='), {LV_COMPARE, JN_COMPARE, JCMP_NE, 1}},
        {JINJA_OP2('<', '='), {LV_COMPARE, JN_COMPARE, JCMP_LE, 1}},
        {JINJA_OP2('>', '='), {LV_COMPARE, JN_COMPARE, JCMP_GE, 1}},
        {'<', {LV_COMPARE, JN_COMPARE, JCMP_LT, 1}},
        {'>', {LV_COMPARE, JN_COMPARE, JCMP_GT, 1}},
    };
    const struct jtok *t = current(p);
    if (t->type == JT_OP) {
        for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
            if (ops[i].token == t->op)
                return ops[i].op;
    } else if (t->type == JT_NAME) {
        if (tern_jparse_is_name(p, 0, "or"))
            return (struct binop){LV_OR, JN_OR, 0, 1};
        if (tern_jparse_is_name(p, 0, "and"))
            return (struct binop){LV_AND, JN_AND, 0, 1};
        if (tern_jparse_is_name(p, 0, "in"))
            return (struct binop){LV_COMPARE, JN_COMPARE, JCMP_IN, 1};
        if (tern_jparse_is_name(p, 0, "not") && tern_jparse_is_name(p, 1, "in"))
            return (struct binop){LV_COMPARE, JN_COMPARE, JCMP_NOTIN, 2};
    }
    return (struct binop){0};
}

/* A chain of comparisons or of `~`: one node with all operands. */
static int parse_chain(struct jparse *p, struct binop op, struct jnode **io)
{
    struct jnode_list l = {0};
    struct jnode *n;
    enum level level = op.level;
    size_t cap_ops = 0;
    JTRY(tern_jparse_node(p, op.kind, current(p)->line, &n));
    JTRY(tern_jparse_push(p, &l, *io));
    for (; op.level == level; op = binary_operator(p)) {
        struct jnode *right;
        p->at += op.tokens;
        if (l.n > cap_ops) {
            uint8_t *ops;
            JTRY(tern_jparse_alloc(p, &ops, l.n * 2));
            if (cap_ops)
                memcpy(ops, n->ops, cap_ops);
            n->ops = ops;
            cap_ops = l.n * 2;
        }
        n->ops[l.n - 1] = (uint8_t)op.op;
        JTRY(parse_level(p, level + 1, &right));
        JTRY(tern_jparse_push(p, &l, right));
    }
    take(n, &l);
    *io = n;
    return tern_jparse_height(p, n);
}

static int parse_level(struct jparse *p, enum level min, struct jnode **out)
{
    int line = current(p)->line;
    if (++p->nest > JINJA_MAX_NEST)
        return tern_jparse_fail(p, TERN_ELIMIT, line, "expressions are nested more than %d deep", JINJA_MAX_NEST / 3);
    if (min <= LV_NOT && tern_jparse_skip_name(p, "not")) {
        JTRY(tern_jparse_node(p, JN_NOT, line, out));
        JTRY(parse_level(p, LV_NOT, &(*out)->a));
        JTRY(tern_jparse_height(p, *out));
    } else {
        JTRY(parse_unary(p, true, out));
    }
    for (;;) {
        struct binop op = binary_operator(p);
        struct jnode *n;
        if (op.level == 0 || op.level < min)
            break;
        if (op.kind == JN_COMPARE || op.kind == JN_CONCAT) {
            JTRY(parse_chain(p, op, out));
            continue;
        }
        JTRY(tern_jparse_node(p, op.kind, current(p)->line, &n));
        p->at += op.tokens;
        n->op = op.op;
        n->a = *out;
        JTRY(parse_level(p, op.level + 1, &n->b));
        JTRY(tern_jparse_height(p, n));
        *out = n;
    }
    p->nest--;
    return 0;
}

int tern_jparse_expr(struct jparse *p, struct jnode **out)
{
    int line = current(p)->line;
    if (++p->nest > JINJA_MAX_NEST)
        return tern_jparse_fail(p, TERN_ELIMIT, line, "expressions are nested more than %d deep", JINJA_MAX_NEST / 3);
    JTRY(parse_level(p, LV_OR, out));
    while (tern_jparse_skip_name(p, "if")) {
        struct jnode *n;
        JTRY(tern_jparse_node(p, JN_COND, line, &n));
        n->b = *out;
        JTRY(parse_level(p, LV_OR, &n->a));
        if (tern_jparse_skip_name(p, "else"))
            JTRY(tern_jparse_expr(p, &n->c));
        JTRY(tern_jparse_height(p, n));
        *out = n;
        line = current(p)->line;
    }
    p->nest--;
    return 0;
}

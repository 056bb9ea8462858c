/* Statements: the text between tags, and the tags. */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <string.h>

static const struct jtok *current(const struct jparse *p)
{
    return &p->toks[p->at];
}

static int parse_body(struct jparse *p, const char *tag, const char *const *ends, struct jnode **out);

/* Names may be assigned to, and tuples of them. */
static int check_target(struct jparse *p, const struct jnode *n)
{
    if (n->kind == JN_NAME)
        return 0;
    if (n->kind != JN_TUPLE)
        return tern_jparse_fail(p, TERN_EFORMAT, n->line, "cannot assign to something that is not a name");
    for (int i = 0; i < n->n_kids; i++)
        JTRY(check_target(p, n->kids[i]));
    return 0;
}

static int parse_target(struct jparse *p, bool with_namespace, struct jnode **out)
{
    const struct jtok *t = current(p);
    const struct jtok *dot = t->type == JT_NAME ? t + 1 : t;
    if (with_namespace && dot->type == JT_OP && dot->op == '.') {
        const struct jtok *attr = t + 2;
        JTRY(tern_jparse_node(p, JN_NSREF, t->line, out));
        JTRY(tern_jparse_sym(p, t->p, t->n, &(*out)->sym));
        p->at += 2;
        JTRY(tern_jparse_expect(p, JT_NAME));
        struct jstr *s;
        JTRY(tern_jparse_alloc(p, &s, sizeof *s));
        *s = (struct jstr){.p = attr->p, .len = attr->n, .chars = attr->n};
        (*out)->konst = (struct jval){.t = JV_STR, .s = s};
        return 0;
    }
    JTRY(tern_jparse_tuple(p, JTUPLE_TARGET, false, out));
    return check_target(p, *out);
}

static int parse_name(struct jparse *p, int *sym)
{
    const struct jtok *t = current(p);
    JTRY(tern_jparse_expect(p, JT_NAME));
    return tern_jparse_sym(p, t->p, t->n, sym);
}

static int parse_set(struct jparse *p, struct jnode *n)
{
    static const char *const ends[] = {"endset", NULL};
    JTRY(parse_target(p, true, &n->a));
    if (tern_jparse_skip_op(p, '=')) {
        n->kind = JN_SET;
        return tern_jparse_tuple(p, JTUPLE_EXPR, false, &n->b);
    }
    n->kind = JN_SETBLOCK;
    JTRY(tern_jparse_filters(p, NULL, false, &n->b));
    JTRY(parse_body(p, "set", ends, &n->c));
    p->at++;
    return 0;
}

static int parse_for(struct jparse *p, struct jnode *n)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    n->kind = JN_FOR;
    JTRY(parse_target(p, false, &n->a));
    if (!tern_jparse_skip_name(p, "in"))
        return tern_jparse_unexpected(p, "'in'");
    JTRY(tern_jparse_tuple(p, JTUPLE_NO_COND, false, &n->b));
    if (tern_jparse_skip_name(p, "if"))
        JTRY(tern_jparse_expr(p, &n->c));
    if (tern_jparse_is_name(p, 0, "recursive"))
        return tern_jparse_fail(p, TERN_EUNSUPPORTED, n->line, "recursive for loops are not supported");
    JTRY(tern_jparse_alloc(p, &n->kids, 2 * sizeof *n->kids));
    n->n_kids = 2;
    p->loops++;
    JTRY(parse_body(p, "for", ends, &n->kids[0]));
    p->loops--;
    if (tern_jparse_skip_name(p, "else"))
        JTRY(parse_body(p, "for", (const char *const[]){"endfor", NULL}, &n->kids[1]));
    p->at++;
    return 0;
}

static int parse_if(struct jparse *p, struct jnode *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    struct jnode_list l = {0};
    n->kind = JN_IF;
    do {
        struct jnode *test, *body;
        JTRY(tern_jparse_tuple(p, JTUPLE_NO_COND, false, &test));
        JTRY(parse_body(p, "if", ends, &body));
        JTRY(tern_jparse_push(p, &l, test));
        JTRY(tern_jparse_push(p, &l, body));
    } while (tern_jparse_skip_name(p, "elif"));
    n->kids = l.v;
    n->n_kids = (int)l.n;
    if (tern_jparse_skip_name(p, "else"))
        JTRY(parse_body(p, "if", (const char *const[]){"endif", NULL}, &n->c));
    p->at++;
    return 0;
}

static int parse_params(struct jparse *p, struct jnode *n)
{
    struct jnode_list defaults = {0};
    int cap = 0;
    JTRY(tern_jparse_expect_op(p, '('));
    while (!tern_jparse_is_op(p, ')')) {
        if (n->n_params)
            JTRY(tern_jparse_expect_op(p, ','));
        if (n->n_params == cap) {
            int *params;
            cap = cap ? cap * 2 : 8;
            JTRY(tern_jparse_alloc(p, &params, (size_t)cap * sizeof *params));
            if (n->n_params)
                memcpy(params, n->params, (size_t)n->n_params * sizeof *params);
            n->params = params;
        }
        JTRY(parse_name(p, &n->params[n->n_params++]));
        for (int i = 0; i + 1 < n->n_params; i++)
            if (n->params[i] == n->params[n->n_params - 1])
                return tern_jparse_fail(p, TERN_EFORMAT, n->line, "a macro has the same parameter twice");
        if (tern_jparse_skip_op(p, '=')) {
            struct jnode *value;
            JTRY(tern_jparse_expr(p, &value));
            JTRY(tern_jparse_push(p, &defaults, value));
        } else if (defaults.n) {
            return tern_jparse_fail(p, TERN_EFORMAT, n->line,
                                    "a macro has a parameter without a default behind one with a default");
        }
    }
    n->kids = defaults.v;
    n->n_kids = (int)defaults.n;
    return tern_jparse_expect_op(p, ')');
}

static int parse_macro(struct jparse *p, struct jnode *n)
{
    static const char *const ends[] = {"endmacro", NULL};
    bool varargs = p->saw_varargs, kwargs = p->saw_kwargs;
    int loops = p->loops;
    n->kind = JN_MACRO;
    JTRY(parse_name(p, &n->sym));
    JTRY(parse_params(p, n));
    p->saw_varargs = p->saw_kwargs = false;
    p->loops = 0;
    JTRY(parse_body(p, "macro", ends, &n->c));
    n->uses_varargs = p->saw_varargs;
    n->uses_kwargs = p->saw_kwargs;
    p->saw_varargs = varargs;
    p->saw_kwargs = kwargs;
    p->loops = loops;
    p->at++;
    return 0;
}

static int parse_filter_block(struct jparse *p, struct jnode *n)
{
    static const char *const ends[] = {"endfilter", NULL};
    n->kind = JN_FILTERBLOCK;
    JTRY(tern_jparse_filters(p, NULL, true, &n->b));
    JTRY(parse_body(p, "filter", ends, &n->c));
    p->at++;
    return 0;
}

static int parse_with(struct jparse *p, struct jnode *n)
{
    static const char *const ends[] = {"endwith", NULL};
    struct jnode_list l = {0};
    n->kind = JN_SCOPE;
    while (current(p)->type != JT_BLOCK_END) {
        struct jnode *target, *value;
        if (l.n)
            JTRY(tern_jparse_expect_op(p, ','));
        int line = current(p)->line;
        JTRY(tern_jparse_node(p, JN_NAME, line, &target));
        JTRY(parse_name(p, &target->sym));
        JTRY(tern_jparse_expect_op(p, '='));
        JTRY(tern_jparse_expr(p, &value));
        JTRY(tern_jparse_push(p, &l, target));
        JTRY(tern_jparse_push(p, &l, value));
    }
    n->kids = l.v;
    n->n_kids = (int)l.n;
    JTRY(parse_body(p, "with", ends, &n->c));
    p->at++;
    return 0;
}

/* {% generation %} marks what a model is trained on; rendering passes its inside through. */
static int parse_generation(struct jparse *p, struct jnode *n)
{
    static const char *const ends[] = {"endgeneration", NULL};
    int loops = p->loops;
    n->kind = JN_SCOPE;
    p->loops = 0;
    JTRY(parse_body(p, "generation", ends, &n->c));
    p->loops = loops;
    p->at++;
    return 0;
}

static int parse_jump(struct jparse *p, struct jnode *n)
{
    const struct jtok *t = &p->toks[p->at - 1];
    n->kind = t->n == 5 ? JN_BREAK : JN_CONTINUE;
    if (p->loops == 0)
        return tern_jparse_fail(p, TERN_EFORMAT, n->line, "'%.*s' stands outside of a loop", (int)t->n, t->p);
    return 0;
}

static const struct {
    const char *name;
    int (*parse)(struct jparse *p, struct jnode *n);
} tags[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"generation", parse_generation},
    {"break", parse_jump},
    {"continue", parse_jump},
};

static int parse_statement(struct jparse *p, const char *inside, struct jnode **out)
{
    static const char *const unsupported[] = {"call",   "block", "extends", "include",
                                              "import", "from",  "print",   "autoescape"};
    const struct jtok *t = current(p);
    JTRY(tern_jparse_expect(p, JT_NAME));
    for (size_t i = 0; i < sizeof tags / sizeof tags[0]; i++) {
        if (t->n != strlen(tags[i].name) || memcmp(t->p, tags[i].name, t->n) != 0)
            continue;
        JTRY(tern_jparse_node(p, JN_BODY, t->line, out));
        JTRY(tags[i].parse(p, *out));
        return tern_jparse_expect(p, JT_BLOCK_END);
    }
    int n = t->n > 40 ? 40 : (int)t->n;
    for (size_t i = 0; i < sizeof unsupported / sizeof unsupported[0]; i++)
        if (t->n == strlen(unsupported[i]) && memcmp(t->p, unsupported[i], t->n) == 0)
            return tern_jparse_fail(p, TERN_EUNSUPPORTED, t->line, "the tag '%.*s' is not supported", n, t->p);
    if (inside)
        return tern_jparse_fail(p, TERN_EFORMAT, t->line, "unknown tag '%.*s' inside '%s'", n, t->p, inside);
    return tern_jparse_fail(p, TERN_EFORMAT, t->line, "unknown tag '%.*s'", n, t->p);
}

/* Text and tags up to one of the tags in `ends` (which becomes current) or, when NULL, the end of the template. */
static int parse_until(struct jparse *p, const char *inside, const char *const *ends, struct jnode **out)
{
    struct jnode_list l = {0};
    int line = current(p)->line;
    for (;;) {
        const struct jtok *t = current(p);
        struct jnode *n = NULL;
        if (t->type == JT_EOF) {
            if (ends)
                return tern_jparse_fail(p, TERN_EFORMAT, t->line, "the template ends inside '%s'", inside);
            break;
        }
        p->at++;
        if (t->type == JT_DATA) {
            struct jstr *s;
            JTRY(tern_jparse_node(p, JN_DATA, t->line, &n));
            JTRY(tern_jparse_alloc(p, &s, sizeof *s));
            *s = (struct jstr){.p = t->p, .len = t->n};
            n->konst = (struct jval){.t = JV_STR, .s = s};
        } else if (t->type == JT_VAR_BEGIN) {
            JTRY(tern_jparse_node(p, JN_PRINT, t->line, &n));
            JTRY(tern_jparse_tuple(p, JTUPLE_EXPR, false, &n->a));
            JTRY(tern_jparse_expect(p, JT_VAR_END));
        } else {
            bool done = false;
            for (const char *const *e = ends; e && *e; e++)
                done |= tern_jparse_is_name(p, 0, *e);
            if (done)
                break;
            JTRY(parse_statement(p, inside, &n));
        }
        JTRY(tern_jparse_push(p, &l, n));
    }
    JTRY(tern_jparse_node(p, JN_BODY, line, out));
    (*out)->kids = l.v;
    (*out)->n_kids = (int)l.n;
    return 0;
}

static int parse_body(struct jparse *p, const char *tag, const char *const *ends, struct jnode **out)
{
    (void)tern_jparse_skip_op(p, ':'); /* Jinja allows Python's colon behind a tag */
    JTRY(tern_jparse_expect(p, JT_BLOCK_END));
    p->nest += 3;
    if (p->nest > JINJA_MAX_NEST)
        return tern_jparse_fail(p, TERN_ELIMIT, current(p)->line, "tags are nested more than %d deep",
                                JINJA_MAX_NEST / 3);
    JTRY(parse_until(p, tag, ends, out));
    p->nest -= 3;
    return 0;
}

static int find_sym(const struct tern_template *t, const char *name)
{
    for (int i = 0; i < t->n_syms; i++)
        if (tern_jstr_is(&t->syms[i], name))
            return i;
    return -1;
}

int tern_jparse_template(struct jparse *p)
{
    JTRY(parse_until(p, NULL, NULL, &p->t->body));
    p->t->sym_loop = find_sym(p->t, "loop");
    p->t->sym_varargs = find_sym(p->t, "varargs");
    p->t->sym_kwargs = find_sym(p->t, "kwargs");
    return 0;
}

int tern_jparse_fail(struct jparse *p, int code, int line, const char *fmt, ...)
{
    char msg[300];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return tern_err_set(p->err, code, "%s: chat template, line %d: %s", p->t->name, line, msg);
}

int tern_jparse_alloc(struct jparse *p, void *out, size_t n)
{
    void *m = tern_jarena_alloc(&p->t->arena, n);
    *(void **)out = m;
    if (!m && p->t->arena.no_memory)
        return tern_err_set(p->err, TERN_ENOMEM, "%s: chat template: cannot allocate %zu bytes", p->t->name, n);
    if (!m)
        return tern_jparse_fail(p, TERN_ELIMIT, p->n_toks ? current(p)->line : 1,
                                "the template needs more than %zu bytes", p->t->arena.budget);
    memset(m, 0, n);
    return 0;
}

int tern_jparse_sym(struct jparse *p, const char *name, size_t n, int *sym)
{
    struct tern_template *t = p->t;
    const struct jstr s = {.p = name, .len = n, .chars = n};
    for (*sym = 0; *sym < t->n_syms; (*sym)++)
        if (tern_jstr_eq(&t->syms[*sym], &s))
            return 0;
    if ((size_t)t->n_syms == p->cap_syms) {
        size_t cap = p->cap_syms ? p->cap_syms * 2 : 32;
        struct jstr *syms;
        JTRY(tern_jparse_alloc(p, &syms, cap * sizeof *syms));
        if (t->n_syms)
            memcpy(syms, t->syms, (size_t)t->n_syms * sizeof *syms);
        t->syms = syms;
        p->cap_syms = cap;
    }
    if (t->n_syms >= JINJA_MAX_NAMES)
        return tern_jparse_fail(p, TERN_ELIMIT, current(p)->line, "more than %d different names", JINJA_MAX_NAMES);
    t->syms[t->n_syms++] = s;
    return 0;
}

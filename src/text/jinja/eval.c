/* Expressions to values. */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <string.h>

int tern_jrun_fail(struct jrun *r, int code, const char *fmt, ...)
{
    char msg[300];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    return tern_err_set(r->err, code, "%s: chat template, line %d: %s", r->t->name, r->line, msg);
}

int tern_jrun_no_room(struct jrun *r)
{
    if (r->arena.no_memory)
        return tern_jrun_fail(r, TERN_ENOMEM, "cannot allocate memory for the values");
    return tern_jrun_fail(r, TERN_ELIMIT, "the values need more than %zu bytes of memory", r->arena.budget);
}

int tern_jrun_alloc_raw(struct jrun *r, void *out, size_t n)
{
    void *p = tern_jarena_alloc(&r->arena, n);
    *(void **)out = p;
    return p ? 0 : tern_jrun_no_room(r);
}

int tern_jrun_alloc(struct jrun *r, void *out, size_t n)
{
    JTRY(tern_jrun_alloc_raw(r, out, n));
    memset(*(void **)out, 0, n);
    return 0;
}

int tern_jrun_no_steps(struct jrun *r)
{
    r->steps = 0;
    return tern_jrun_fail(r, TERN_ELIMIT, "the template takes more than %u steps", JINJA_MAX_STEPS);
}

int tern_jrun_enter(struct jrun *r)
{
    if (r->depth >= JINJA_MAX_DEPTH)
        return tern_jrun_fail(r, TERN_ELIMIT, "evaluation is nested more than %d deep (endless recursion of a macro?)",
                              JINJA_MAX_DEPTH);
    r->depth++;
    return 0;
}

/* ---- calls ----------------------------------------------------------------------------------------------------- */

static int extend_positional(struct jrun *r, struct jargs *a, const struct jnode *star)
{
    struct jval v, list;
    JTRY(tern_jrun_eval(r, star, &v));
    JTRY(tern_jval_collect(r, v, JL_LIST, &list));
    if (list.l->n > 100000)
        return tern_jrun_fail(r, TERN_ELIMIT, "a call has more than 100000 arguments");
    struct jval *pos;
    JTRY(tern_jrun_alloc_raw(r, &pos, ((size_t)a->n_pos + list.l->n) * sizeof *pos));
    if (a->n_pos)
        memcpy(pos, a->pos, (size_t)a->n_pos * sizeof *pos);
    if (list.l->n)
        memcpy(pos + a->n_pos, list.l->v, list.l->n * sizeof *pos);
    a->pos = pos;
    a->n_pos += (int)list.l->n;
    return 0;
}

static int extend_keywords(struct jrun *r, struct jargs *a, const struct jnode *star2)
{
    struct jval v;
    JTRY(tern_jrun_eval(r, star2, &v));
    if (v.t != JV_DICT || v.d->n > JINJA_MAX_KWARGS)
        return tern_jrun_fail(r, TERN_EINVAL, "the argument behind ** must be a dict of at most %d items",
                              JINJA_MAX_KWARGS);
    struct jkwarg *kw;
    JTRY(tern_jrun_alloc_raw(r, &kw, ((size_t)a->n_kw + v.d->n) * sizeof *kw));
    if (a->n_kw)
        memcpy(kw, a->kw, (size_t)a->n_kw * sizeof *kw);
    for (size_t i = 0; i < v.d->n; i++) {
        struct jval key = v.d->e[i].key;
        if (key.t != JV_STR)
            return tern_jrun_fail(r, TERN_EINVAL, "the keys behind ** must be strings");
        for (int k = 0; k < a->n_kw; k++)
            if (key.s->len == kw[k].name_len && memcmp(kw[k].name, key.s->p, key.s->len) == 0)
                return tern_jrun_fail(r, TERN_EINVAL, "the keyword argument '%.*s' is given twice", (int)key.s->len,
                                      key.s->p);
        kw[a->n_kw + (int)i] = (struct jkwarg){.name = key.s->p, .name_len = key.s->len, .v = v.d->e[i].val};
    }
    a->kw = kw;
    a->n_kw += (int)v.d->n;
    return 0;
}

static int eval_args(struct jrun *r, const struct jnode_args *n, struct jargs *a)
{
    *a = (struct jargs){0};
    if (!n)
        return 0;
    if (n->n_pos)
        JTRY(tern_jrun_alloc_raw(r, &a->pos, (size_t)n->n_pos * sizeof *a->pos));
    for (int i = 0; i < n->n_pos; i++)
        JTRY(tern_jrun_eval(r, n->pos[i], &a->pos[i]));
    a->n_pos = n->n_pos;
    if (n->n_kw)
        JTRY(tern_jrun_alloc_raw(r, &a->kw, (size_t)n->n_kw * sizeof *a->kw));
    for (int i = 0; i < n->n_kw; i++) {
        a->kw[i].name = n->kw_names[i].p;
        a->kw[i].name_len = n->kw_names[i].len;
        JTRY(tern_jrun_eval(r, n->kw[i], &a->kw[i].v));
    }
    a->n_kw = n->n_kw;
    if (n->star)
        JTRY(extend_positional(r, a, n->star));
    if (n->star2)
        JTRY(extend_keywords(r, a, n->star2));
    return 0;
}

/* Position of a parameter in "old,new,count"; -1 when there is none of that name. */
static int param_index(const char *params, const char *name, size_t n)
{
    for (int i = 0; *params; i++) {
        size_t k = strcspn(params, ",");
        if (k == n && memcmp(params, name, n) == 0)
            return i;
        params += k + (params[k] == ',');
    }
    return -1;
}

static int bind(struct jrun *r, const struct jbuiltin *fn, const char *what, const struct jargs *args, struct jval *a)
{
    int n = fn->params[0] != 0;
    for (const char *p = fn->params; *p; p++)
        n += *p == ',';
    if (args->n_pos > n)
        return tern_jrun_fail(r, TERN_EINVAL, "%s '%s' takes at most %d argument%s, not %d", what, fn->name, n,
                              n == 1 ? "" : "s", args->n_pos);
    for (int i = 0; i < JINJA_MAX_PARAMS; i++)
        a[i] = i < args->n_pos ? args->pos[i] : (struct jval){.t = JV_ABSENT};
    for (int i = 0; i < args->n_kw; i++) {
        int at = param_index(fn->params, args->kw[i].name, args->kw[i].name_len);
        int len = args->kw[i].name_len > 40 ? 40 : (int)args->kw[i].name_len;
        if (at < 0 || a[at].t != JV_ABSENT)
            return tern_jrun_fail(r, TERN_EINVAL, "%s '%s' %s '%.*s'", what, fn->name,
                                  at < 0 ? "has no parameter" : "got two values for", len, args->kw[i].name);
        a[at] = args->kw[i].v;
    }
    for (int i = 0; i < fn->required; i++)
        if (a[i].t == JV_ABSENT)
            return tern_jrun_fail(r, TERN_EINVAL, "%s '%s' needs at least %d argument%s", what, fn->name, fn->required,
                                  fn->required == 1 ? "" : "s");
    return 0;
}

int tern_jrun_builtin(struct jrun *r, const struct jbuiltin *fn, const char *what, struct jval self,
                      const struct jargs *args, struct jval *out)
{
    struct jval a[JINJA_MAX_PARAMS];
    struct jcall c = {.self = self, .a = a, .raw = args, .what = what, .name = fn->name};
    JTRY(tern_jrun_charge(r, 1));
    if (fn->params)
        JTRY(bind(r, fn, what, args, a));
    return fn->fn(r, &c, out);
}

int tern_jrun_call(struct jrun *r, struct jval callee, const struct jargs *args, struct jval *out)
{
    if (callee.t == JV_MACRO)
        return tern_jrun_macro(r, callee.macro, args, out);
    if (callee.t == JV_FUNC)
        return tern_jrun_builtin(r, callee.fn, "function", callee, args, out);
    if (callee.t == JV_METHOD)
        return tern_jrun_builtin(r, callee.bound->fn, "method", callee.bound->self, args, out);
    if (callee.t == JV_UNDEF)
        return tern_jval_undefined(r, callee);
    return tern_jrun_fail(r, TERN_EINVAL, "an object of type '%s' cannot be called", tern_jval_type(callee));
}

/* ---- operators ------------------------------------------------------------------------------------------------- */

static int eval_sequence(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    if (n->kind == JN_DICT) {
        JTRY(tern_jval_dict(r, out));
        for (int i = 0; i < n->n_kids; i += 2) {
            struct jval key;
            JTRY(tern_jrun_eval(r, n->kids[i], &key));
            JTRY(tern_jrun_eval(r, n->kids[i + 1], &v));
            JTRY(tern_jdict_set(r, out->d, key, v));
        }
        return 0;
    }
    JTRY(tern_jval_list(r, n->kind == JN_LIST ? JL_LIST : JL_TUPLE, (size_t)n->n_kids, out));
    struct jlist *l = out->l;
    for (int i = 0; i < n->n_kids; i++) {
        JTRY(tern_jrun_eval(r, n->kids[i], &v));
        JTRY(tern_jlist_add(r, l, v));
    }
    return 0;
}

static int eval_getitem(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval v, key, part[3] = {{.t = JV_ABSENT}, {.t = JV_ABSENT}, {.t = JV_ABSENT}};
    JTRY(tern_jrun_eval(r, n->a, &v));
    if (n->b->kind == JN_SLICE) {
        for (int i = 0; i < 3; i++)
            if (n->b->kids[i])
                JTRY(tern_jrun_eval(r, n->b->kids[i], &part[i]));
        r->line = n->line;
        return tern_jval_slice(r, v, part[0], part[1], part[2], out);
    }
    JTRY(tern_jrun_eval(r, n->b, &key));
    r->line = n->line;
    return tern_jval_getitem(r, v, key, out);
}

/* The deciding operand comes back as it is, as in Python. */
static int eval_logic(struct jrun *r, const struct jnode *n, struct jval *out)
{
    if (n->kind == JN_NOT) {
        struct jval v;
        JTRY(tern_jrun_eval(r, n->a, &v));
        *out = tern_jval_bool(!tern_jval_truth(v));
        return 0;
    }
    JTRY(tern_jrun_eval(r, n->a, out));
    if (tern_jval_truth(*out) == (n->kind == JN_AND))
        return tern_jrun_eval(r, n->b, out);
    return 0;
}

/* a < b < c means a < b and b < c. */
static int eval_compare(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval left, right;
    bool yes = true;
    JTRY(tern_jrun_eval(r, n->kids[0], &left));
    for (int i = 1; i < n->n_kids && yes; i++) {
        JTRY(tern_jrun_eval(r, n->kids[i], &right));
        r->line = n->line;
        JTRY(tern_jval_compare(r, (enum jcmp)n->ops[i - 1], left, right, &yes));
        left = right;
    }
    *out = tern_jval_bool(yes);
    return 0;
}

static int eval_concat(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval v, s;
    JTRY(tern_jrun_eval(r, n->kids[0], &v));
    JTRY(tern_jval_str(r, v, out));
    for (int i = 1; i < n->n_kids; i++) {
        JTRY(tern_jrun_eval(r, n->kids[i], &v));
        JTRY(tern_jval_str(r, v, &s));
        JTRY(tern_jstr_concat(r, out->s, s.s, out));
    }
    return 0;
}

static int eval_cond(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval test;
    JTRY(tern_jrun_eval(r, n->a, &test));
    if (tern_jval_truth(test))
        return tern_jrun_eval(r, n->b, out);
    if (n->c)
        return tern_jrun_eval(r, n->c, out);
    return tern_jval_undef_says(r, "the inline if-expression was false and has no else", out);
}

static int eval_call(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval callee;
    struct jargs args;
    JTRY(tern_jrun_eval(r, n->a, &callee));
    JTRY(eval_args(r, n->args, &args));
    r->line = n->line;
    return tern_jrun_call(r, callee, &args, out);
}

static int apply_filter(struct jrun *r, const struct jnode *n, struct jval in, struct jval *out)
{
    struct jargs args;
    JTRY(eval_args(r, n->args, &args));
    r->line = n->line;
    if (!n->fn)
        return tern_jrun_fail(r, TERN_EUNSUPPORTED, "unknown filter '%.*s'", (int)n->konst.s->len, n->konst.s->p);
    return tern_jrun_builtin(r, n->fn, "filter", in, &args, out);
}

/* The filters of a set or filter block: the innermost one has no operand of its own and takes `in`. */
int tern_jrun_filter_chain(struct jrun *r, const struct jnode *n, struct jval in, struct jval *out)
{
    if (n->a) {
        JTRY(tern_jrun_enter(r));
        JTRY(tern_jrun_filter_chain(r, n->a, in, &in));
        tern_jrun_leave(r);
    }
    return apply_filter(r, n, in, out);
}

static int eval_test(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    struct jargs args;
    JTRY(tern_jrun_eval(r, n->a, &v));
    JTRY(eval_args(r, n->args, &args));
    r->line = n->line;
    if (!n->fn)
        return tern_jrun_fail(r, TERN_EUNSUPPORTED, "unknown test '%.*s'", (int)n->konst.s->len, n->konst.s->p);
    return tern_jrun_builtin(r, n->fn, "test", v, &args, out);
}

static int eval_arithmetic(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval a, b;
    JTRY(tern_jrun_eval(r, n->a, &a));
    if (n->kind != JN_BIN) {
        r->line = n->line;
        return tern_jval_negate(r, a, n->kind == JN_NEG, out);
    }
    JTRY(tern_jrun_eval(r, n->b, &b));
    r->line = n->line;
    return tern_jval_binary(r, (enum jop)n->op, a, b, out);
}

static int eval_node(struct jrun *r, const struct jnode *n, struct jval *out)
{
    struct jval v;
    switch (n->kind) {
    case JN_CONST:
        *out = n->konst;
        return 0;
    case JN_NAME:
        JTRY(tern_jrun_lookup(r, n->sym, out));
        if (out->t == JV_ABSENT)
            return tern_jval_undef(r, NULL, r->t->syms[n->sym].p, r->t->syms[n->sym].len, out);
        return 0;
    case JN_LIST:
    case JN_TUPLE:
    case JN_DICT:
        return eval_sequence(r, n, out);
    case JN_GETATTR:
        JTRY(tern_jrun_eval(r, n->a, &v));
        r->line = n->line;
        return tern_jval_getattr(r, v, n->konst.s, out);
    case JN_GETITEM:
        return eval_getitem(r, n, out);
    case JN_CALL:
        return eval_call(r, n, out);
    case JN_FILTER:
        JTRY(tern_jrun_eval(r, n->a, &v));
        return apply_filter(r, n, v, out);
    case JN_TEST:
        return eval_test(r, n, out);
    case JN_NOT:
    case JN_AND:
    case JN_OR:
        return eval_logic(r, n, out);
    case JN_NEG:
    case JN_POS:
    case JN_BIN:
        return eval_arithmetic(r, n, out);
    case JN_COMPARE:
        return eval_compare(r, n, out);
    case JN_CONCAT:
        return eval_concat(r, n, out);
    case JN_COND:
        return eval_cond(r, n, out);
    default:
        TERN_ASSERT(false && "a statement where an expression belongs");
        return TERN_EINVAL;
    }
}

int tern_jrun_eval(struct jrun *r, const struct jnode *n, struct jval *out)
{
    JTRY(tern_jrun_charge(r, 1));
    JTRY(tern_jrun_enter(r));
    r->line = n->line;
    JTRY(eval_node(r, n, out));
    tern_jrun_leave(r);
    return 0;
}

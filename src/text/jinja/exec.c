/* Statements, scopes, loops and macros.
 *
 * Scopes follow Jinja: for-bodies, macros, set/filter/with blocks open one, `if` does not; an assignment goes to the
 * innermost scope and is gone with it; reading climbs up to the top level.  A macro's parent is the scope it was
 * defined in, not the one it is called from. */
#include "text/jinja/jinja.h"

#include <stdio.h>
#include <string.h>

struct jloop {
    struct jiter it;
    const struct jnode *node;
    struct jscope *filter_scope; /* where the condition of `for ... if` is evaluated; NULL without one */
    struct jval prev, cur, after;
    bool has_prev, has_after;
    int64_t index0;
    struct jlist *rest; /* items drawn ahead because the template asked for the length */
    size_t rest_at;
    int64_t length; /* -1 while unknown */
    struct jval changed;
};

/* ---- variables ------------------------------------------------------------------------------------------------- */

int tern_jrun_lookup(struct jrun *r, int sym, struct jval *out)
{
    size_t seen = 0;
    for (const struct jscope *s = r->scope; s; s = s->up) {
        for (int i = 0; i < s->n; i++)
            if (s->vars[i].sym == sym) {
                *out = s->vars[i].v;
                return tern_jrun_charge(r, (seen + (size_t)i) / 32);
            }
        seen += (size_t)s->n + 1;
    }
    *out = r->root[sym];
    return tern_jrun_charge(r, seen / 32);
}

static int assign(struct jrun *r, int sym, struct jval v)
{
    struct jscope *s = r->scope;
    if (!s) {
        r->root[sym] = v;
        return 0;
    }
    JTRY(tern_jrun_charge(r, (size_t)s->n / 32));
    for (int i = 0; i < s->n; i++)
        if (s->vars[i].sym == sym) {
            s->vars[i].v = v;
            return 0;
        }
    if (s->n == s->cap) {
        int cap = s->cap ? s->cap * 2 : 4;
        struct jvar *vars;
        JTRY(tern_jrun_alloc_raw(r, &vars, (size_t)cap * sizeof *vars));
        if (s->n)
            memcpy(vars, s->vars, (size_t)s->n * sizeof *vars);
        s->vars = vars;
        s->cap = cap;
    }
    s->vars[s->n++] = (struct jvar){.sym = sym, .v = v};
    return 0;
}

static int new_scope(struct jrun *r, struct jscope *up, struct jscope **out)
{
    JTRY(tern_jrun_alloc(r, out, sizeof **out));
    (*out)->up = up;
    return 0;
}

static int assign_target(struct jrun *r, const struct jnode *target, struct jval v)
{
    if (target->kind == JN_NAME)
        return assign(r, target->sym, v);
    if (target->kind == JN_NSREF) {
        struct jval ns;
        JTRY(tern_jrun_lookup(r, target->sym, &ns));
        if (ns.t != JV_NS)
            return tern_jrun_fail(r, TERN_EINVAL, "cannot assign an attribute of '%.*s': it is not a namespace",
                                  (int)r->t->syms[target->sym].len, r->t->syms[target->sym].p);
        return tern_jdict_set(r, ns.d, target->konst, v);
    }
    struct jval items;
    JTRY(tern_jval_collect(r, v, JL_LIST, &items));
    if (items.l->n != (size_t)target->n_kids)
        return tern_jrun_fail(r, TERN_EINVAL, "cannot unpack %zu values into %d names", items.l->n, target->n_kids);
    for (int i = 0; i < target->n_kids; i++)
        JTRY(assign_target(r, target->kids[i], items.l->v[i]));
    return 0;
}

/* ---- loops ----------------------------------------------------------------------------------------------------- */

/* A condition sees the item unpacked, and what passes it is the unpacked form, packed again as a tuple. */
static int repack(struct jrun *r, const struct jnode *target, struct jval *out)
{
    if (target->kind == JN_NAME)
        return tern_jrun_lookup(r, target->sym, out);
    JTRY(tern_jval_list(r, JL_TUPLE, (size_t)target->n_kids, out));
    struct jlist *l = out->l;
    for (int i = 0; i < target->n_kids; i++)
        JTRY(repack(r, target->kids[i], &l->v[l->n++]));
    return 0;
}

/* The next item that passes the condition: 1, or 0 at the end. */
static int draw(struct jrun *r, struct jloop *l, struct jval *out)
{
    int more;
    if (l->rest) {
        if (l->rest_at == l->rest->n)
            return 0;
        *out = l->rest->v[l->rest_at++];
        return 1;
    }
    while ((more = tern_jiter_next(r, &l->it, out)) > 0) {
        struct jval pass;
        if (!l->node->c)
            return 1;
        struct jscope *scope = r->scope;
        r->scope = l->filter_scope;
        r->scope->n = 0;
        JTRY(assign_target(r, l->node->a, *out));
        JTRY(tern_jrun_eval(r, l->node->c, &pass));
        if (tern_jval_truth(pass))
            JTRY(repack(r, l->node->a, out));
        r->scope = scope;
        if (tern_jval_truth(pass))
            return 1;
    }
    return more;
}

static int loop_peek(struct jrun *r, struct jloop *l, bool *any)
{
    if (!l->has_after) {
        int more = draw(r, l, &l->after);
        if (more < 0)
            return more;
        l->has_after = more > 0;
    }
    *any = l->has_after;
    return 0;
}

static int loop_length(struct jrun *r, struct jloop *l, int64_t *n)
{
    if (l->length < 0 && !l->node->c && !(l->it.src.t == JV_LIST && l->it.src.l->kind == JL_GENERATOR))
        JTRY(tern_jval_length(r, l->it.src, &l->length));
    if (l->length < 0) {
        struct jval rest, v;
        int more;
        JTRY(tern_jval_list(r, JL_LIST, 0, &rest));
        while ((more = draw(r, l, &v)) > 0)
            JTRY(tern_jlist_add(r, rest.l, v));
        if (more < 0)
            return more;
        l->rest = rest.l;
        l->rest_at = 0;
        l->length = l->index0 + 1 + l->has_after + (int64_t)rest.l->n;
    }
    *n = l->length;
    return 0;
}

/* loop.cycle(a, b, c) */
static int loop_cycle(struct jrun *r, const struct jcall *c, struct jval *out)
{
    if (c->raw->n_pos == 0 || c->raw->n_kw)
        return tern_jrun_fail(r, TERN_EINVAL, "loop.cycle needs values to choose from");
    *out = c->raw->pos[c->self.loop->index0 % c->raw->n_pos];
    return 0;
}

/* loop.changed(value, ...): whether they differ from those of the last call. */
static int loop_changed(struct jrun *r, const struct jcall *c, struct jval *out)
{
    struct jloop *l = c->self.loop;
    struct jval now;
    bool same = false;
    JTRY(tern_jval_list(r, JL_TUPLE, (size_t)c->raw->n_pos, &now));
    for (int i = 0; i < c->raw->n_pos; i++)
        now.l->v[i] = c->raw->pos[i];
    now.l->n = (size_t)c->raw->n_pos;
    if (l->changed.t == JV_LIST)
        JTRY(tern_jval_eq(r, l->changed, now, &same));
    l->changed = now;
    *out = tern_jval_bool(!same);
    return 0;
}

int tern_jrun_loop_attr(struct jrun *r, struct jloop *l, const struct jstr *name, struct jval *out)
{
    static const struct jbuiltin methods[] = {{"cycle", NULL, 0, loop_cycle}, {"changed", NULL, 0, loop_changed}};
    bool rev = tern_jstr_is(name, "revindex"), rev0 = tern_jstr_is(name, "revindex0");
    int64_t n;
    bool any;
    if (tern_jstr_is(name, "index0")) {
        *out = tern_jval_int(l->index0);
    } else if (tern_jstr_is(name, "index")) {
        *out = tern_jval_int(l->index0 + 1);
    } else if (tern_jstr_is(name, "first")) {
        *out = tern_jval_bool(l->index0 == 0);
    } else if (tern_jstr_is(name, "last")) {
        JTRY(loop_peek(r, l, &any));
        *out = tern_jval_bool(!any);
    } else if (tern_jstr_is(name, "length") || rev || rev0) {
        JTRY(loop_length(r, l, &n));
        *out = tern_jval_int(rev ? n - l->index0 : rev0 ? n - l->index0 - 1 : n);
    } else if (tern_jstr_is(name, "previtem")) {
        *out = l->prev;
        if (!l->has_prev)
            return tern_jval_undef_says(r, "there is no previous item", out);
    } else if (tern_jstr_is(name, "nextitem")) {
        JTRY(loop_peek(r, l, &any));
        *out = l->after;
        if (!any)
            return tern_jval_undef_says(r, "there is no next item", out);
    } else if (tern_jstr_is(name, "depth") || tern_jstr_is(name, "depth0")) {
        *out = tern_jval_int(tern_jstr_is(name, "depth")); /* only recursive loops go deeper */
    } else if (tern_jstr_is(name, "cycle") || tern_jstr_is(name, "changed")) {
        struct jbound *b;
        JTRY(tern_jrun_alloc(r, &b, sizeof *b));
        *b = (struct jbound){.self = {.t = JV_LOOP, .loop = l}, .fn = &methods[tern_jstr_is(name, "changed")]};
        *out = (struct jval){.t = JV_METHOD, .bound = b};
    }
    return 0;
}

int tern_jrun_loop_str(struct jrun *r, struct jloop *l, struct jbuild *b)
{
    char text[64];
    int64_t n;
    JTRY(loop_length(r, l, &n));
    (void)snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)l->index0 + 1, (long long)n);
    return tern_jbuild_text(r, b, text);
}

/* One round: a fresh scope with the item and `loop`. */
static int loop_round(struct jrun *r, struct jloop *l, struct jscope *outer)
{
    if (r->scope == outer || r->scope->captured)
        JTRY(new_scope(r, outer, &r->scope));
    r->scope->n = 0;
    if (r->t->sym_loop >= 0)
        JTRY(assign(r, r->t->sym_loop, (struct jval){.t = JV_LOOP, .loop = l}));
    JTRY(assign_target(r, l->node->a, l->cur));
    JTRY(tern_jrun_exec(r, l->node->kids[0]));
    return 0;
}

static int exec_for(struct jrun *r, const struct jnode *n)
{
    struct jscope *outer = r->scope;
    struct jloop *l;
    struct jval v, item;
    int more;
    bool completed = false; /* Jinja's else runs unless some round got to its end: a break does not prevent it */
    JTRY(tern_jrun_eval(r, n->b, &v));
    JTRY(tern_jrun_alloc(r, &l, sizeof *l));
    *l = (struct jloop){.node = n, .index0 = -1, .length = -1};
    if (n->c)
        JTRY(new_scope(r, outer, &l->filter_scope));
    r->line = n->line;
    JTRY(tern_jiter_init(r, &l->it, v));
    for (;;) {
        more = l->has_after ? 1 : draw(r, l, &item);
        if (more <= 0)
            break;
        l->prev = l->cur;
        l->has_prev = l->index0 >= 0;
        l->cur = l->has_after ? l->after : item;
        l->has_after = false;
        l->index0++;
        JTRY(loop_round(r, l, outer));
        enum jflow flow = r->flow;
        r->flow = JFLOW_NONE;
        completed |= flow == JFLOW_NONE;
        if (flow == JFLOW_BREAK)
            break;
    }
    r->scope = outer;
    JTRY(more);
    if (!completed && n->kids[1]) {
        JTRY(new_scope(r, outer, &r->scope));
        JTRY(tern_jrun_exec(r, n->kids[1]));
        r->scope = outer;
    }
    return 0;
}

/* ---- macros and blocks that capture their text ----------------------------------------------------------------- */

static int capture(struct jrun *r, const struct jnode *body, struct jval *out)
{
    struct jbuild b = {0}, *before = r->capture;
    r->capture = &b;
    int rc = tern_jrun_exec(r, body);
    r->capture = before; /* also on failure: b dies with this frame */
    JTRY(rc);
    return tern_jbuild_done(r, &b, out);
}

static int capture_in_scope(struct jrun *r, const struct jnode *body, struct jval *out)
{
    struct jscope *outer = r->scope;
    JTRY(new_scope(r, outer, &r->scope));
    JTRY(capture(r, body, out));
    r->scope = outer;
    return 0;
}

static int sym_name_is(const struct jrun *r, int sym, const struct jkwarg *kw)
{
    const struct jstr *s = &r->t->syms[sym];
    return s->len == kw->name_len && memcmp(s->p, kw->name, s->len) == 0;
}

static int bind_params(struct jrun *r, const struct jnode *n, const struct jargs *args, struct jval *extra_kw)
{
    JTRY(tern_jrun_charge(r, (size_t)args->n_kw * (size_t)n->n_params / 8));
    for (int k = 0; k < args->n_kw; k++) {
        bool known = false;
        for (int i = args->n_pos; i < n->n_params && !known; i++)
            known = sym_name_is(r, n->params[i], &args->kw[k]);
        if (known)
            continue;
        int len = args->kw[k].name_len > 40 ? 40 : (int)args->kw[k].name_len;
        if (!n->uses_kwargs)
            return tern_jrun_fail(r, TERN_EINVAL, "macro '%.*s' takes no keyword argument '%.*s'",
                                  (int)r->t->syms[n->sym].len, r->t->syms[n->sym].p, len, args->kw[k].name);
        struct jval key;
        JTRY(tern_jstr_new(r, args->kw[k].name, args->kw[k].name_len, false, &key));
        JTRY(tern_jdict_set(r, extra_kw->d, key, args->kw[k].v));
    }
    for (int i = 0; i < n->n_params; i++) {
        struct jval v = {.t = JV_ABSENT};
        int def = i - (n->n_params - n->n_kids);
        if (i < args->n_pos)
            v = args->pos[i];
        for (int k = 0; k < args->n_kw && v.t == JV_ABSENT; k++)
            if (sym_name_is(r, n->params[i], &args->kw[k]))
                v = args->kw[k].v;
        if (v.t == JV_ABSENT && def >= 0)
            JTRY(tern_jrun_eval(r, n->kids[def], &v));
        else if (v.t == JV_ABSENT)
            JTRY(tern_jval_undef_says(r, "a parameter of the macro was not provided", &v));
        JTRY(assign(r, n->params[i], v));
    }
    return 0;
}

static int macro_body(struct jrun *r, const struct jnode *n, const struct jargs *args, struct jval *out)
{
    struct jval more, extra_kw;
    if (args->n_pos > n->n_params && !n->uses_varargs)
        return tern_jrun_fail(r, TERN_EINVAL, "macro '%.*s' takes not more than %d argument(s)",
                              (int)r->t->syms[n->sym].len, r->t->syms[n->sym].p, n->n_params);
    JTRY(tern_jval_dict(r, &extra_kw));
    JTRY(bind_params(r, n, args, &extra_kw));
    if (n->uses_varargs) {
        JTRY(tern_jval_list(r, JL_TUPLE, 0, &more));
        for (int i = n->n_params; i < args->n_pos; i++)
            JTRY(tern_jlist_add(r, more.l, args->pos[i]));
        JTRY(assign(r, r->t->sym_varargs, more));
    }
    if (n->uses_kwargs)
        JTRY(assign(r, r->t->sym_kwargs, extra_kw));
    return capture(r, n->c, out);
}

int tern_jrun_macro(struct jrun *r, const struct jmacro *m, const struct jargs *args, struct jval *out)
{
    struct jscope *caller = r->scope;
    JTRY(tern_jrun_enter(r));
    JTRY(new_scope(r, m->scope, &r->scope));
    JTRY(macro_body(r, m->node, args, out));
    r->scope = caller;
    tern_jrun_leave(r);
    return 0;
}

static int define_macro(struct jrun *r, const struct jnode *n)
{
    struct jmacro *m;
    JTRY(tern_jrun_alloc(r, &m, sizeof *m));
    *m = (struct jmacro){.node = n, .scope = r->scope};
    for (struct jscope *s = r->scope; s && !s->captured; s = s->up)
        s->captured = true;
    return assign(r, n->sym, (struct jval){.t = JV_MACRO, .macro = m});
}

/* ---- the rest -------------------------------------------------------------------------------------------------- */

static int exec_if(struct jrun *r, const struct jnode *n)
{
    for (int i = 0; i < n->n_kids; i += 2) {
        struct jval test;
        JTRY(tern_jrun_eval(r, n->kids[i], &test));
        if (tern_jval_truth(test))
            return tern_jrun_exec(r, n->kids[i + 1]);
    }
    return n->c ? tern_jrun_exec(r, n->c) : 0;
}

static int exec_set_block(struct jrun *r, const struct jnode *n)
{
    struct jval v;
    JTRY(capture_in_scope(r, n->c, &v));
    if (r->flow != JFLOW_NONE) /* a break inside leaves before the assignment */
        return 0;
    if (n->b)
        JTRY(tern_jrun_filter_chain(r, n->b, v, &v));
    return assign_target(r, n->a, v);
}

static int exec_filter_block(struct jrun *r, const struct jnode *n)
{
    struct jval v;
    JTRY(capture_in_scope(r, n->c, &v));
    if (r->flow != JFLOW_NONE)
        return 0;
    JTRY(tern_jrun_filter_chain(r, n->b, v, &v));
    return tern_jval_write(r, v);
}

/* with: the values see the scope outside. */
static int exec_scope(struct jrun *r, const struct jnode *n)
{
    struct jscope *outer = r->scope, *inner;
    JTRY(new_scope(r, outer, &inner));
    for (int i = 0; i < n->n_kids; i += 2) {
        struct jval v;
        r->scope = outer;
        JTRY(tern_jrun_eval(r, n->kids[i + 1], &v));
        r->scope = inner;
        JTRY(assign(r, n->kids[i]->sym, v));
    }
    r->scope = inner;
    JTRY(tern_jrun_exec(r, n->c));
    r->scope = outer;
    return 0;
}

static int exec_node(struct jrun *r, const struct jnode *n)
{
    struct jval v;
    switch (n->kind) {
    case JN_DATA:
        return tern_jrun_write(r, n->konst.s->p, NULL, false, n->konst.s->len);
    case JN_PRINT:
        JTRY(tern_jrun_eval(r, n->a, &v));
        return tern_jval_write(r, v);
    case JN_IF:
        return exec_if(r, n);
    case JN_FOR:
        return exec_for(r, n);
    case JN_SET:
        JTRY(tern_jrun_eval(r, n->b, &v));
        return assign_target(r, n->a, v);
    case JN_SETBLOCK:
        return exec_set_block(r, n);
    case JN_FILTERBLOCK:
        return exec_filter_block(r, n);
    case JN_MACRO:
        return define_macro(r, n);
    case JN_SCOPE:
        return exec_scope(r, n);
    case JN_BODY:
        for (int i = 0; i < n->n_kids && r->flow == JFLOW_NONE; i++)
            JTRY(tern_jrun_exec(r, n->kids[i]));
        return 0;
    case JN_BREAK:
    case JN_CONTINUE:
        r->flow = n->kind == JN_BREAK ? JFLOW_BREAK : JFLOW_CONTINUE;
        return 0;
    default:
        TERN_ASSERT(false && "an expression where a statement belongs");
        return TERN_EINVAL;
    }
}

int tern_jrun_exec(struct jrun *r, const struct jnode *n)
{
    JTRY(tern_jrun_charge(r, 1));
    JTRY(tern_jrun_enter(r));
    r->line = n->line;
    JTRY(exec_node(r, n));
    tern_jrun_leave(r);
    return 0;
}

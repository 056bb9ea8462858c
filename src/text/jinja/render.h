/* text/jinja/render.h - one render: variables, scopes, macros, evaluation. */
#ifndef TERN_TEXT_JINJA_RENDER_H
#define TERN_TEXT_JINJA_RENDER_H

#include "text/jinja/tree.h"

/* ---- a render ---------------------------------------------------------------------------------------------------- */

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
int tern_jrun_no_room(struct jrun *r);                    /* what to say when the arena has given NULL */
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

/* eval.c */
int tern_jrun_eval(struct jrun *r, const struct jnode *n, struct jval *out);
int tern_jrun_filter_chain(struct jrun *r, const struct jnode *n, struct jval in, struct jval *out);
int tern_jrun_builtin(struct jrun *r, const struct jbuiltin *fn, const char *what, struct jval self,
                      const struct jargs *args, struct jval *out);
int tern_jrun_call(struct jrun *r, struct jval callee, const struct jargs *args, struct jval *out);
/* exec.c */
int tern_jrun_exec(struct jrun *r, const struct jnode *n);
int tern_jrun_macro(struct jrun *r, const struct jmacro *m, const struct jargs *args, struct jval *out);
int tern_jrun_lookup(struct jrun *r, int sym, struct jval *out); /* JV_ABSENT: no such variable */
int tern_jrun_loop_attr(struct jrun *r, struct jloop *l, const struct jstr *name, struct jval *out);
int tern_jrun_loop_str(struct jrun *r, struct jloop *l, struct jbuild *b);

#endif

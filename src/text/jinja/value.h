/* text/jinja/value.h - memory of a render, and the values that live in it. */
#ifndef TERN_TEXT_JINJA_VALUE_H
#define TERN_TEXT_JINJA_VALUE_H

#include "text/jinja/limits.h"

/* ---- arena: bump allocation with a budget (arena.c) -------------------------------------------------------------- */

struct jchunk;
struct jarena {
    struct jchunk *chunks; /* doubly linked, newest first */
    char *at, *end;        /* free part of the newest small chunk */
    size_t used, budget;
    bool no_memory; /* the system, not the budget, was exhausted */
};
/* NULL when the budget or the system is exhausted.  16-byte aligned, not zeroed. */
void *tern_jarena_alloc(struct jarena *a, size_t n);
/* Moves a block that nothing else points to.  Large blocks move without a copy staying behind. */
void *tern_jarena_regrow(struct jarena *a, void *old, size_t old_n, size_t n);
void tern_jarena_clear(struct jarena *a);

/* ---- values ------------------------------------------------------------------------------------------------------ */

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

/* ---- calls ------------------------------------------------------------------------------------------------------- */

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

#endif

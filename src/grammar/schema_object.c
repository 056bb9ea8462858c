/* Objects of a JSON schema: members in the order in which the schema names them, then others where it allows them. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/utf8.h"
#include "grammar/schema.h"

#define MAX_NAME 256 /* bytes, where names of further members must differ from it */

/* ---- names that are not among some ------------------------------------------------------------------------------- */

struct names {
    tern_grammar *g;
    struct tern_gr_word *v; /* sorted */
    uint32_t any;           /* rule: one character, without an escape */
};

static void add_reserved(tern_grammar *g, struct tern_gr_chars *c)
{
    tern_gr_chars_add(g, c, 0, 0x1F);
    tern_gr_chars_add(g, c, '"', '"');
    tern_gr_chars_add(g, c, '\\', '\\');
}

static struct tern_gr_frag one(tern_grammar *g, struct tern_gr_chars *c)
{
    struct tern_gr_frag f = tern_gr_char(g, c);
    tern_gr_chars_clear(c);
    return f;
}

/* Behind the first `at` bytes, which the names [from, to) have in common: what makes a name another one. */
static struct tern_gr_frag other_than(const struct names *n, size_t from, size_t to, size_t at)
{
    tern_grammar *g = n->g;
    bool is_one = from < to && n->v[from].n == at;
    struct tern_gr_frag all = is_one ? tern_gr_never(g) : tern_gr_empty(g);
    struct tern_gr_chars taken = {0};
    add_reserved(g, &taken);
    while (from < to && n->v[from].n == at)
        from++;
    while (from < to && !tern_gr_failed(g)) {
        uint32_t cp = 0;
        int k = tern_utf8_decode(n->v[from].p + at, n->v[from].n - at, &cp);
        size_t end = from + 1;
        while (end < to && n->v[end].n >= at + (size_t)k && memcmp(n->v[end].p + at, n->v[from].p + at, (size_t)k) == 0)
            end++;
        if (cp >= 0x20 && cp != '"' &&
            cp != '\\') { /* others stand in a text with an escape only, which no other name has */
            struct tern_gr_chars c = {0};
            tern_gr_chars_add(g, &c, cp, cp);
            tern_gr_chars_add(g, &taken, cp, cp);
            all = tern_gr_or(g, all, tern_gr_then(g, one(g, &c), other_than(n, from, end, at + (size_t)k)));
        }
        from = end;
    }
    tern_gr_chars_not(g, &taken);
    return tern_gr_or(g, all, tern_gr_then(g, one(g, &taken), tern_gr_repeat(g, n->any, 0, TERN_GR_NO_END)));
}

static int compare(const void *a, const void *b)
{
    const struct tern_gr_word *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* ---- members ----------------------------------------------------------------------------------------------------- */

struct member {
    const char *name;
    json_t *schema;
    bool required;
    uint32_t rule; /* "name": value */
};

struct object {
    struct schema *s;
    const struct tern_schema_style *style;
    struct member *v;
    size_t n, cap;
    uint32_t other; /* rule of a further member, UINT32_MAX: there is none */
};

static struct tern_gr_frag pair(tern_grammar *g, struct tern_gr_frag name, struct tern_gr_frag value)
{
    struct tern_gr_frag colon = tern_gr_then(g, tern_gr_text(g, ":"), tern_gr_json_blank(g));
    return tern_gr_then(g, name, tern_gr_then(g, colon, value));
}

static struct tern_gr_frag json_member(struct schema *s, const char *name, json_t *v)
{
    char path[80];
    json_t *quoted = json_string(name);
    (void)snprintf(path, sizeof path, "properties/%.60s", name);
    struct tern_gr_frag value = v ? tern_schema_below(s, v, path) : tern_gr_json_value(s->g);
    struct tern_gr_frag f = pair(s->g, tern_gr_json_exactly(s->g, quoted), value);
    json_decref(quoted);
    return f;
}

static struct tern_gr_frag json_other(struct schema *s, struct tern_gr_frag name, json_t *v)
{
    tern_grammar *g = s->g;
    name = tern_gr_then(g, tern_gr_text(g, "\""), tern_gr_then(g, name, tern_gr_text(g, "\"")));
    return pair(g, name, v ? tern_schema_below(s, v, "additionalProperties") : tern_gr_json_value(g));
}

static const struct tern_schema_style json_style = {true, json_member, json_other};

static void add_member(struct object *o, const char *name, json_t *schema, bool required)
{
    tern_grammar *g = o->s->g;
    if (g->rc == 0)
        g->rc = tern_grow(&o->v, &o->cap, o->n + 1, sizeof *o->v, &g->err);
    if (g->rc == 0)
        o->v[o->n++] = (struct member){name, schema, required, 0};
}

/* The names that a schema requires, as the keys of an object. */
static json_t *required_names(struct schema *s, const json_t *v)
{
    json_t *out = json_object(), *list = json_object_get(v, "required"), *x;
    size_t i;
    if (list && !json_is_array(list))
        (void)tern_schema_refuse(s, TERN_EINVAL, "required must be a list of names");
    json_array_foreach(list, i, x)
    {
        if (!json_is_string(x) || json_object_set_new(out, json_string_value(x), json_true()) < 0)
            (void)tern_schema_refuse(s, TERN_EINVAL, "required must be a list of names");
    }
    return out;
}

/* Those that the schema names, then those that it requires without naming them.  required: holds their names. */
static void list_members(struct object *o, const json_t *v, json_t *required, json_t *rest)
{
    struct schema *s = o->s;
    json_t *properties = json_object_get(v, "properties"), *x;
    const char *name;
    if (properties && !json_is_object(properties))
        (void)tern_schema_refuse(s, TERN_EINVAL, "properties must be an object");
    json_object_foreach(properties, name, x)
    {
        bool needed = json_object_get(required, name) != NULL;
        /* One that is not allowed is listed where further members must have other names. */
        if (needed || !json_is_false(x) || (rest && !json_is_false(rest)))
            add_member(o, name, x, needed);
    }
    json_object_foreach(required, name, x)
    {
        if (json_object_get(properties, name))
            continue;
        if (json_is_false(rest))
            (void)tern_schema_never(s, "\"%.60s\" is required and not allowed", name);
        add_member(o, name, rest, true);
    }
}

static void make_rules(struct object *o)
{
    for (size_t i = 0; i < o->n && !tern_gr_failed(o->s->g); i++)
        o->v[i].rule = tern_gr_rule(o->s->g, o->style->member(o->s, o->v[i].name, o->v[i].schema));
}

/* Names that are none of the n. */
static struct tern_gr_frag names_but(struct schema *s, const char *const *v, size_t n_names)
{
    tern_grammar *g = s->g;
    struct names n = {.g = g};
    struct tern_gr_chars c = {0};
    if (g->rc == 0)
        g->rc = tern_alloc(&n.v, n_names + 1, sizeof *n.v, &g->err);
    for (size_t i = 0; i < n_names && g->rc == 0; i++) {
        n.v[i] = (struct tern_gr_word){v[i], strlen(v[i])};
        if (n.v[i].n > MAX_NAME)
            (void)tern_schema_refuse(
                s, TERN_ELIMIT, "a name of more than %d bytes beside additionalProperties is not supported", MAX_NAME);
    }
    if (g->rc == 0 && n_names)
        qsort(n.v, n_names, sizeof *n.v, compare);
    add_reserved(g, &c);
    tern_gr_chars_not(g, &c);
    n.any = tern_gr_rule(g, one(g, &c));
    struct tern_gr_frag name =
        n.v && n_names && g->rc == 0 ? other_than(&n, 0, n_names, 0) : tern_gr_repeat(g, n.any, 0, TERN_GR_NO_END);
    tern_free(n.v);
    return name;
}

/* rest: the schema of members that are not named; NULL: any value. */
static void make_other(struct object *o, json_t *rest)
{
    tern_grammar *g = o->s->g;
    const char **v = NULL;
    if (g->rc == 0)
        g->rc = tern_alloc(&v, o->n + 1, sizeof *v, &g->err);
    for (size_t i = 0; i < o->n && g->rc == 0; i++)
        v[i] = o->v[i].name;
    struct tern_gr_frag name = g->rc == 0 ? names_but(o->s, v, o->n) : (struct tern_gr_frag){0};
    o->other = tern_gr_rule(g, o->style->other(o->s, name, rest));
    tern_free(v);
}

static struct tern_gr_frag comma(tern_grammar *g, bool wanted)
{
    return wanted ? tern_gr_then(g, tern_gr_text(g, ","), tern_gr_json_blank(g)) : tern_gr_empty(g);
}

/* What may stand between the braces, without blanks.  From the end on: ways[h] is what follows member i, where h tells
 * whether a member stands before it. */
static struct tern_gr_frag members(struct object *o)
{
    tern_grammar *g = o->s->g;
    uint32_t ways[2] = {0};
    for (int h = 0; h < 2; h++) {
        struct tern_gr_frag end = tern_gr_empty(g);
        if (o->other != UINT32_MAX) {
            struct tern_gr_frag more = tern_gr_then(g, comma(g, o->style->commas), tern_gr_call(g, o->other));
            struct tern_gr_frag first = tern_gr_then(g, comma(g, o->style->commas && h), tern_gr_call(g, o->other));
            end = tern_gr_maybe(g, tern_gr_then(g, first, tern_gr_times(g, more, 0, TERN_GR_NO_END)));
        }
        ways[h] = tern_gr_rule(g, end);
    }
    for (size_t i = o->n; i-- > 0 && !tern_gr_failed(g);) {
        uint32_t next[2];
        for (int h = 0; h < 2; h++) {
            struct tern_gr_frag f = tern_gr_then(g, comma(g, o->style->commas && h), tern_gr_call(g, o->v[i].rule));
            f = tern_gr_then(g, f, tern_gr_call(g, ways[1]));
            next[h] = tern_gr_rule(g, o->v[i].required ? f : tern_gr_or(g, f, tern_gr_call(g, ways[h])));
        }
        memcpy(ways, next, sizeof ways);
    }
    return tern_gr_call(g, ways[0]);
}

struct tern_gr_frag tern_schema_members(struct schema *s, const json_t *v, const struct tern_schema_style *style)
{
    json_t *rest = json_object_get(v, "additionalProperties");
    struct object o = {.s = s, .style = style, .other = UINT32_MAX};
    json_t *required = required_names(s, v);
    list_members(&o, v, required, rest);
    make_rules(&o);
    /* Without a word on further members any may come; a model that is not asked for them is not to invent some. */
    if (rest && !json_is_false(rest))
        make_other(&o, rest);
    struct tern_gr_frag all = members(&o);
    tern_free(o.v);
    json_decref(required);
    return all;
}

struct tern_gr_frag tern_schema_object(struct schema *s, const json_t *v)
{
    tern_grammar *g = s->g;
    if (!json_object_get(v, "additionalProperties") && !json_object_get(v, "properties") &&
        !json_object_get(v, "required"))
        return tern_gr_json_object(g);
    struct tern_gr_frag all = tern_schema_members(s, v, &json_style);
    all = tern_gr_then(g, tern_gr_json_blank(g), tern_gr_then(g, all, tern_gr_json_blank(g)));
    return tern_gr_then(g, tern_gr_text(g, "{"), tern_gr_then(g, all, tern_gr_text(g, "}")));
}

/* Calls of tools, as a model writes them. */
#include <string.h>
#include "grammar/build.h"

static const json_t *function_of(const json_t *tool)
{
    const json_t *f = json_object_get(tool, "function");
    return json_is_object(f) ? f : tool;
}

/* The arguments of a function: what its schema says, or any object.  dsml: a whole call with them. */
static struct tern_gr_frag arguments(tern_grammar *g, const json_t *fn, const char *name, bool by_schema, bool dsml)
{
    json_t *schema = json_object_get(fn, "parameters");
    const char *type = json_string_value(json_object_get(schema, "type"));
    bool object = (type && strcmp(type, "object") == 0) || (!type && json_object_get(schema, "properties"));
    if (!by_schema || !schema || json_is_null(schema) || (json_is_object(schema) && json_object_size(schema) == 0))
        return dsml ? tern_gr_dsml_call(g, name, NULL) : tern_gr_json_object(g);
    if (!object)
        (void)tern_gr_fail(g, TERN_EUNSUPPORTED, "tool \"%.60s\": its parameters are not of type object", name);
    if (tern_gr_failed(g))
        return (struct tern_gr_frag){0};
    struct tern_gr_frag f = dsml ? tern_gr_dsml_call(g, name, schema) : tern_gr_schema(g, schema);
    if (tern_gr_failed(g)) {
        char why[sizeof g->err.msg];
        memcpy(why, g->err.msg, sizeof why);
        (void)tern_err_set(&g->err, g->rc, "tool \"%.60s\": %.300s", name, why);
    }
    return f;
}

/* "key": */
static struct tern_gr_frag key(tern_grammar *g, const char *name)
{
    struct tern_gr_frag f = tern_gr_then(g, tern_gr_text(g, "\""), tern_gr_text(g, name));
    return tern_gr_then(g, f, tern_gr_then(g, tern_gr_text(g, "\":"), tern_gr_json_blank(g)));
}

static struct tern_gr_frag one_call(tern_grammar *g, const json_t *fn, const struct tern_gr_calls *c)
{
    const char *name = json_string_value(json_object_get(fn, "name"));
    bool strict = json_is_true(json_object_get(fn, "strict"));
    if (!name || strlen(name) > 256)
        (void)tern_gr_fail(g, TERN_EINVAL, "a tool has no name, or one of more than 256 bytes");
    if (tern_gr_failed(g))
        return (struct tern_gr_frag){0};
    struct tern_gr_frag args = arguments(g, fn, name, strict || c->required, c->dsml);
    if (c->dsml)
        return args;
    if (c->tag)
        return tern_gr_then(g, tern_gr_text(g, name), tern_gr_then(g, tern_gr_text(g, c->tag), args));
    struct tern_gr_frag f = tern_gr_then(g, tern_gr_text(g, "{"), tern_gr_json_blank(g));
    f = tern_gr_then(g, f, tern_gr_then(g, key(g, c->name_key), tern_gr_json_exactly(g, json_object_get(fn, "name"))));
    f = tern_gr_then(g, f, tern_gr_then(g, tern_gr_text(g, ","), tern_gr_json_blank(g)));
    f = tern_gr_then(g, f, tern_gr_then(g, key(g, c->args_key), args));
    return tern_gr_then(g, f, tern_gr_then(g, tern_gr_json_blank(g), tern_gr_text(g, "}")));
}

/* A call of any of the tools that may be called. */
static uint32_t any_call(tern_grammar *g, const json_t *tools, const struct tern_gr_calls *c)
{
    struct tern_gr_frag all = tern_gr_never(g);
    bool found = false;
    size_t i;
    json_t *tool;
    json_array_foreach(tools, i, tool)
    {
        const json_t *fn = function_of(tool);
        const char *name = json_string_value(json_object_get(fn, "name"));
        if (tern_gr_failed(g) || (c->function && (!name || strcmp(name, c->function) != 0)))
            continue;
        found = true;
        all = tern_gr_or(g, all, one_call(g, fn, c));
    }
    if (!found && c->function)
        (void)tern_gr_fail(g, TERN_EINVAL, "there is no tool \"%.60s\"", c->function);
    else if (!found)
        (void)tern_gr_fail(g, TERN_EINVAL, "there are no tools");
    return tern_gr_rule(g, all);
}

/* What stands between the marks, and the closing one. */
static struct tern_gr_frag inside(tern_grammar *g, uint32_t call, const struct tern_gr_calls *c)
{
    struct tern_gr_frag f = tern_gr_call(g, call);
    if (c->list) {
        struct tern_gr_frag more =
            tern_gr_then(g, tern_gr_text(g, ","), tern_gr_then(g, tern_gr_json_blank(g), tern_gr_call(g, call)));
        f = c->several ? tern_gr_then(g, f, tern_gr_times(g, more, 0, TERN_GR_NO_END)) : f;
        f = tern_gr_then(g, tern_gr_json_blank(g), tern_gr_then(g, f, tern_gr_json_blank(g)));
        f = tern_gr_then(g, tern_gr_text(g, "["), tern_gr_then(g, f, tern_gr_text(g, "]")));
    }
    if (!c->tag)
        f = tern_gr_then(g, tern_gr_json_blank(g), f);
    if (*c->close)
        f = tern_gr_then(g, f, tern_gr_then(g, tern_gr_json_blank(g), tern_gr_mark(g, c->close)));
    return f;
}

/* Calls, and nothing beside them. */
static struct tern_gr_frag calls_alone(tern_grammar *g, uint32_t call, const struct tern_gr_calls *c)
{
    if (c->dsml)
        return tern_gr_dsml_block(g, call, c->several);
    if (!*c->open)
        return tern_gr_call(g, call);
    struct tern_gr_frag f = tern_gr_then(g, tern_gr_mark(g, c->open), inside(g, call, c)), more;
    if (!c->several || c->list)
        return f;
    more = tern_gr_then(g, tern_gr_mark(g, c->open), inside(g, call, c));
    more = tern_gr_then(g, tern_gr_json_blank(g), more);
    return tern_gr_then(g, f, tern_gr_times(g, more, 0, TERN_GR_NO_END));
}

static struct tern_gr_frag by_schema(tern_grammar *g, const char *text)
{
    json_t *j = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!j)
        (void)tern_gr_fail(g, TERN_EINVAL, "the schema is no JSON");
    struct tern_gr_frag f = tern_gr_failed(g) ? (struct tern_gr_frag){0} : tern_gr_schema(g, j);
    json_decref(j);
    return f;
}

struct tern_gr_frag tern_gr_tools(tern_grammar *g, const json_t *tools, const struct tern_gr_calls *c)
{
    if (!json_is_array(tools))
        (void)tern_gr_fail(g, TERN_EINVAL, "the tools must be a list");
    g->dsml = c->dsml;
    uint32_t call = any_call(g, tools, c);
    if (!c->dsml && !*c->open && !c->required && !c->otherwise)
        (void)tern_gr_fail(g, TERN_EUNSUPPORTED,
                           "\"strict\" is supported in this model's format of calls only where a call is required");
    if (tern_gr_failed(g))
        return (struct tern_gr_frag){0};
    if (c->required)
        return calls_alone(g, call, c);
    if (c->otherwise)
        return tern_gr_or(g, calls_alone(g, call, c), by_schema(g, c->otherwise));
    if (c->dsml) /* behind calls a reply ends */
        return tern_gr_dsml_behind(g, call, c->several);
    /* Text, and calls in it: after each the same again, or the end. */
    uint32_t text = tern_gr_declare(g);
    struct tern_gr_frag f = tern_gr_then(g, tern_gr_until(g, c->open, true), inside(g, call, c));
    if (c->several && !c->list)
        f = tern_gr_then(g, f, tern_gr_call(g, text));
    tern_gr_define(g, text, f);
    return tern_gr_call(g, text);
}

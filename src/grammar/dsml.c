/* Calls of DeepSeek-V4, whose arguments stand between marks one by one:
 *
 *     <｜DSML｜tool_calls>
 *     <｜DSML｜invoke name="NAME">
 *     <｜DSML｜parameter name="KEY" string="true">a text as it is</｜DSML｜parameter>
 *     <｜DSML｜parameter name="KEY" string="false">JSON</｜DSML｜parameter>
 *     </｜DSML｜invoke>
 *     </｜DSML｜tool_calls>
 *
 * ｜DSML｜ is one control token, so all other signs are text.  A text is written as it is where its schema says no more
 * of it than values, a length or a format; a pattern, which may be found anywhere in a text, holds for JSON. */
#include <string.h>
#include "grammar/schema.h"

enum { MOST_REFERENCES = 8 };

static const char value_end[] = "</" TERN_GR_DSML;

/* The control token between two texts. */
static struct tern_gr_frag marked(tern_grammar *g, const char *before, const char *behind)
{
    struct tern_gr_frag f = tern_gr_then(g, tern_gr_text(g, before), tern_gr_mark(g, TERN_GR_DSML));
    return tern_gr_then(g, f, tern_gr_text(g, behind));
}

/* ---- texts as they are ------------------------------------------------------------------------------------------- */

/* Texts of a length, counted in characters; here the sign that marks begin with is none. */
static struct tern_gr_frag counted(struct schema *s, const json_t *v)
{
    tern_grammar *g = s->g;
    struct tern_gr_chars c = {0};
    const uint32_t min = tern_schema_count(s, v, "minLength", 0),
                   max = tern_schema_count(s, v, "maxLength", TERN_GR_NO_END);
    tern_gr_chars_add(g, &c, 0, 0);
    tern_gr_chars_add(g, &c, TERN_GR_DSML_SIGN, TERN_GR_DSML_SIGN);
    tern_gr_chars_not(g, &c);
    struct tern_gr_frag one = tern_gr_char(g, &c);
    tern_gr_chars_clear(&c);
    return max < min ? tern_gr_never(g) : tern_gr_times(g, one, min, max);
}

/* One of the values of a schema, all of which are texts. */
static struct tern_gr_frag listed(struct schema *s, const json_t *v)
{
    struct tern_gr_frag all = tern_gr_never(s->g);
    const json_t *one = json_object_get(v, "const"), *list = json_object_get(v, "enum");
    for (size_t i = 0; i < (one ? 1 : json_array_size(list)) && !tern_gr_failed(s->g); i++) {
        const json_t *x = one ? one : json_array_get(list, i);
        if (strstr(json_string_value(x), value_end))
            return tern_schema_refuse(s, TERN_EUNSUPPORTED, "a value that holds the mark %s cannot be written",
                                      value_end);
        all = tern_gr_or(s->g, all, tern_gr_bytes(s->g, json_string_value(x), json_string_length(x)));
    }
    return all;
}

/* All a text and its end. */
static struct tern_gr_frag any_text(tern_grammar *g)
{
    return tern_gr_then(g, tern_gr_chars_until(g, "</", TERN_GR_DSML), tern_gr_text(g, "parameter>\n"));
}

static struct tern_gr_frag text_value(struct schema *s, const json_t *v)
{
    const char *format = tern_schema_format(json_string_value(json_object_get(v, "format")));
    struct tern_gr_frag f;
    if (json_object_get(v, "const") || json_object_get(v, "enum"))
        f = listed(s, v);
    else if (format)
        f = tern_gr_regex(s->g, format, strlen(format), false);
    else if (json_object_get(v, "minLength") || json_object_get(v, "maxLength"))
        f = counted(s, v);
    else
        return any_text(s->g);
    return tern_gr_then(s->g, f, marked(s->g, "</", "parameter>\n"));
}

static bool is_text(const json_t *type)
{
    return json_is_string(type) && strcmp(json_string_value(type), "string") == 0;
}

/* Does v accept texts alone, and say no more than text_value knows? */
static bool says_text(const json_t *v)
{
    const json_t *type = json_object_get(v, "type"), *list = json_object_get(v, "enum"),
                 *one = json_object_get(v, "const"), *format = json_object_get(v, "format");
    const bool lengths = json_object_get(v, "minLength") || json_object_get(v, "maxLength");
    size_t known = (type != NULL) + (list != NULL) + (one != NULL) + (format != NULL), n = 0, i;
    const char *key;
    json_t *x;
    known += (json_object_get(v, "minLength") != NULL) + (json_object_get(v, "maxLength") != NULL);
    json_object_foreach((json_t *)(uintptr_t)v, key, x) n += !tern_schema_is_note(key);
    if (n != known || (list != NULL) + (one != NULL) + (format != NULL) + lengths > 1 || (type && !is_text(type)))
        return false;
    if (format && !tern_schema_format(json_string_value(format)))
        return false;
    json_array_foreach(list, i, x)
    {
        if (!json_is_string(x))
            return false;
    }
    return one ? json_is_string(one) : list ? json_array_size(list) > 0 : type != NULL;
}

/* ---- parameters -------------------------------------------------------------------------------------------------- */

/* string="false">JSON */
static struct tern_gr_frag json_value(struct schema *s, json_t *v)
{
    tern_grammar *g = s->g;
    struct tern_gr_frag f = v ? tern_schema_value(s, v) : tern_gr_json_value(g);
    return tern_gr_then(g, tern_gr_text(g, "false\">"), tern_gr_then(g, f, marked(g, "</", "parameter>\n")));
}

static size_t n_keywords(const json_t *v)
{
    size_t n = 0;
    const char *key;
    json_t *x;
    json_object_foreach((json_t *)(uintptr_t)v, key, x) n += !tern_schema_is_note(key);
    return n;
}

/* What stands behind string=" up to the end of the parameter. */
static struct tern_gr_frag value_of(struct schema *s, json_t *v, int followed)
{
    tern_grammar *g = s->g;
    const char *ref = json_string_value(json_object_get(v, "$ref"));
    const json_t *any = json_object_get(v, "anyOf"), *types = json_object_get(v, "type");
    struct tern_gr_frag all = tern_gr_never(g);
    size_t i;
    json_t *x;
    if (tern_gr_failed(g))
        return all;
    if (!v || json_is_true(v) || (json_is_object(v) && n_keywords(v) == 0))
        return tern_gr_or(g, tern_gr_then(g, tern_gr_text(g, "true\">"), any_text(g)), json_value(s, NULL));
    if (says_text(v))
        return tern_gr_then(g, tern_gr_text(g, "true\">"), text_value(s, v));
    if (ref && n_keywords(v) == 1 && followed < MOST_REFERENCES) {
        json_t *to = tern_schema_find(s, ref);
        return to ? value_of(s, to, followed + 1) : all;
    }
    if (json_array_size(any) > 0 && n_keywords(v) == 1 && followed < MOST_REFERENCES) {
        json_array_foreach(any, i, x) all = tern_gr_or(g, all, value_of(s, x, followed + 1));
        return all;
    }
    if (json_array_size(types) > 0 && n_keywords(v) == 1) {
        json_array_foreach(types, i, x)
        {
            json_t *one = json_pack("{sO}", "type", x);
            (void)json_array_append_new(s->made, one);
            all = tern_gr_or(g, all, value_of(s, one, followed));
        }
        return all;
    }
    return json_value(s, v);
}

static struct tern_gr_frag parameter(struct schema *s, struct tern_gr_frag name, json_t *v)
{
    tern_grammar *g = s->g;
    struct tern_gr_frag f = tern_gr_then(g, marked(g, "<", "parameter name=\""), name);
    return tern_gr_then(g, f, tern_gr_then(g, tern_gr_text(g, "\" string=\""), value_of(s, v, 0)));
}

static struct tern_gr_frag member(struct schema *s, const char *name, json_t *v)
{
    char path[sizeof s->path];
    if (strpbrk(name, "\"\n"))
        return tern_schema_refuse(s, TERN_EUNSUPPORTED, "the name of a parameter has a quote or a new line");
    memcpy(path, s->path, sizeof path);
    (void)snprintf(s->path, sizeof s->path, "properties/%.60s", name);
    struct tern_gr_frag f = parameter(s, tern_gr_text(s->g, name), v);
    memcpy(s->path, path, sizeof path);
    return f;
}

static const struct tern_schema_style style = {false, member, parameter};

static struct tern_gr_frag parameters_of(struct schema *s, json_t *v)
{
    static const char *const known[] = {"type",  "properties", "required", "additionalProperties",
                                        "$defs", "definitions"};
    const char *key;
    json_t *x;
    json_object_foreach(v, key, x)
    {
        bool is = tern_schema_is_note(key);
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is |= strcmp(key, known[i]) == 0;
        if (!is)
            return tern_schema_refuse(s, TERN_EUNSUPPORTED,
                                      "\"%.40s\" is not supported here, where each argument stands by itself", key);
    }
    return tern_schema_members(s, v, &style);
}

struct tern_gr_frag tern_gr_dsml_call(tern_grammar *g, const char *name, json_t *parameters)
{
    json_t *any = parameters ? NULL : json_pack("{sssb}", "type", "object", "additionalProperties", 1);
    if (strpbrk(name, "\"\n"))
        (void)tern_gr_fail(g, TERN_EUNSUPPORTED, "tool \"%.60s\": its name has a quote or a new line", name);
    struct tern_gr_frag all = tern_schema_read(g, any ? any : parameters, parameters_of);
    struct tern_gr_frag f = tern_gr_then(g, marked(g, "<", "invoke name=\""), tern_gr_text(g, name));
    json_decref(any);
    /* A call without arguments has an empty line in their place. */
    f = tern_gr_then(g, f, tern_gr_then(g, tern_gr_text(g, "\">\n"), tern_gr_maybe(g, tern_gr_text(g, "\n"))));
    return tern_gr_then(g, f, tern_gr_then(g, all, marked(g, "</", "invoke>\n")));
}

/* Behind "<" and the control token. */
static struct tern_gr_frag rest_of_block(tern_grammar *g, uint32_t call, bool several)
{
    struct tern_gr_frag f =
        tern_gr_then(g, tern_gr_text(g, "tool_calls>\n"), tern_gr_repeat(g, call, 1, several ? TERN_GR_NO_END : 1));
    return tern_gr_then(g, f, marked(g, "</", "tool_calls>"));
}

struct tern_gr_frag tern_gr_dsml_block(tern_grammar *g, uint32_t call, bool several)
{
    struct tern_gr_frag f = tern_gr_then(g, tern_gr_times(g, tern_gr_text(g, "\n"), 0, 2), marked(g, "<", ""));
    return tern_gr_then(g, f, rest_of_block(g, call, several));
}

struct tern_gr_frag tern_gr_dsml_behind(tern_grammar *g, uint32_t call, bool several)
{
    return tern_gr_then(g, tern_gr_until_led(g, "<", TERN_GR_DSML, true), rest_of_block(g, call, several));
}

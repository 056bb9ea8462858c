/* JSON schemas, draft 2020-12: the part of it that is a grammar. */
#include "grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"

#define MAX_STEPS 200000 /* schemas that are looked at, those that merging makes among them */
#define MAX_REFS  64     /* references that lead to references */

struct tern_gr_frag tern_schema_refuse(struct schema *s, int code, const char *fmt, ...)
{
    if (!tern_gr_failed(s->g)) {
        va_list args;
        char text[240];
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        (void)tern_gr_fail(s->g, code, "the schema, at %s: %s", *s->path ? s->path : "its root", text);
    }
    return (struct tern_gr_frag){0};
}

struct tern_gr_frag tern_schema_never(struct schema *s, const char *fmt, ...)
{
    if (!*s->g->why) {
        va_list args;
        char text[120];
        va_start(args, fmt);
        (void)vsnprintf(text, sizeof text, fmt, args);
        va_end(args);
        (void)snprintf(s->g->why, sizeof s->g->why, "at %s: %s", *s->path ? s->path : "its root", text);
    }
    return tern_gr_never(s->g);
}

/* ---- keywords ---------------------------------------------------------------------------------------------------- */

static const char *const notes[] = {"title", "description", "default",       "examples", "$schema",
                                    "$id",   "$comment",    "deprecated",    "readOnly", "writeOnly",
                                    "$defs", "definitions", "discriminator", "example"};
static const char *const known[] = {"type",
                                    "properties",
                                    "required",
                                    "additionalProperties",
                                    "items",
                                    "prefixItems",
                                    "minItems",
                                    "maxItems",
                                    "enum",
                                    "const",
                                    "anyOf",
                                    "oneOf",
                                    "allOf",
                                    "$ref",
                                    "pattern",
                                    "minLength",
                                    "maxLength",
                                    "format",
                                    "minimum",
                                    "maximum",
                                    "exclusiveMinimum",
                                    "exclusiveMaximum"};

static bool among(const char *const *list, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], word) == 0)
            return true;
    return false;
}

bool tern_schema_is_note(const char *keyword)
{
    return among(notes, sizeof notes / sizeof *notes, keyword);
}

void tern_schema_check_keywords(struct schema *s, const json_t *v)
{
    const char *key;
    json_t *x;
    json_object_foreach((json_t *)(uintptr_t)v, key, x)
    {
        if (!tern_schema_is_note(key) && !among(known, sizeof known / sizeof *known, key))
            (void)tern_schema_refuse(s, TERN_EUNSUPPORTED, "the keyword \"%.60s\" is not supported", key);
    }
}

/* How many keywords say something about values. */
static size_t n_rules(const json_t *v)
{
    const char *key;
    json_t *x;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)v, key, x) n += !tern_schema_is_note(key);
    return n;
}

uint32_t tern_schema_count(struct schema *s, const json_t *v, const char *keyword, uint32_t otherwise)
{
    const json_t *x = json_object_get(v, keyword);
    const double n = json_number_value(x);
    if (!x)
        return otherwise;
    if (!json_is_number(x) || n < 0 || n != floor(n)) {
        (void)tern_schema_refuse(s, TERN_EINVAL, "%s must be a whole number", keyword);
        return otherwise;
    }
    if (n > TERN_GR_MAX_REPEAT) {
        (void)tern_schema_refuse(s, TERN_ELIMIT, "%s is more than the limit of %d", keyword, TERN_GR_MAX_REPEAT);
        return otherwise;
    }
    return (uint32_t)n;
}

struct tern_gr_frag tern_schema_below(struct schema *s, json_t *v, const char *name)
{
    size_t n = strlen(s->path);
    (void)snprintf(s->path + n, sizeof s->path - n, "/%.60s", name);
    struct tern_gr_frag f = tern_schema_value(s, v);
    s->path[n] = 0;
    return f;
}

/* ---- references -------------------------------------------------------------------------------------------------- */

/* One step of a JSON pointer: text[0..n) with ~0, ~1 and %XX undone. */
static json_t *member(const json_t *v, const char *text, size_t n)
{
    char key[512];
    size_t k = 0;
    for (size_t i = 0; i < n && k + 1 < sizeof key; i++, k++) {
        unsigned x;
        if (text[i] == '~' && i + 1 < n) {
            key[k] = text[++i] == '1' ? '/' : '~';
        } else if (text[i] == '%' && i + 2 < n && sscanf(text + i + 1, "%2x", &x) == 1) {
            key[k] = (char)x;
            i += 2;
        } else {
            key[k] = text[i];
        }
    }
    key[k] = 0;
    if (json_is_array(v)) {
        char *end;
        unsigned long at = strtoul(key, &end, 10);
        return *key && !*end ? json_array_get(v, at) : NULL;
    }
    return json_object_get(v, key);
}

json_t *tern_schema_find(struct schema *s, const char *ref)
{
    json_t *v = s->root;
    if (*ref != '#' || (ref[1] && ref[1] != '/')) {
        (void)tern_schema_refuse(s, TERN_EUNSUPPORTED,
                                 "$ref to \"%.80s\" leads out of the schema: only #/.. is supported", ref);
        return NULL;
    }
    for (const char *p = ref + 1; v && *p == '/';) {
        size_t n = strcspn(p + 1, "/");
        v = member(v, p + 1, n);
        p += 1 + n;
    }
    if (!v)
        (void)tern_schema_refuse(s, TERN_EINVAL, "$ref to \"%.80s\" leads nowhere", ref);
    return v;
}

/* Does it come back to itself by references alone? */
static void check_loop(struct schema *s, const char *ref)
{
    const char *at = ref;
    for (int i = 0; at && !tern_gr_failed(s->g); i++) {
        if (i == MAX_REFS)
            (void)tern_schema_refuse(s, TERN_EINVAL,
                                     "$ref to \"%.80s\" leads from reference to reference without an end", ref);
        at = json_string_value(json_object_get(tern_schema_find(s, at), "$ref"));
    }
}

static struct tern_gr_frag reference(struct schema *s, const char *ref)
{
    json_t *known_rule = json_object_get(s->rules, ref);
    uint32_t rule = (uint32_t)json_integer_value(known_rule);
    if (!known_rule) {
        check_loop(s, ref);
        rule = tern_gr_declare(s->g);
        if (tern_gr_failed(s->g) || json_object_set_new(s->rules, ref, json_integer(rule)) < 0 ||
            json_array_append_new(s->waiting, json_string(ref)) < 0)
            return tern_schema_refuse(s, TERN_ENOMEM, "out of memory");
    }
    return tern_gr_call(s->g, rule);
}

/* ---- lists of values --------------------------------------------------------------------------------------------- */

static bool is_of(const json_t *v, const char *type)
{
    if (strcmp(type, "number") == 0)
        return json_is_number(v);
    if (strcmp(type, "integer") == 0)
        return json_is_integer(v) || (json_is_real(v) && json_real_value(v) == floor(json_real_value(v)));
    static const char *const names[] = {
        [JSON_OBJECT] = "object", [JSON_ARRAY] = "array",  [JSON_STRING] = "string", [JSON_INTEGER] = "",
        [JSON_REAL] = "",         [JSON_TRUE] = "boolean", [JSON_FALSE] = "boolean", [JSON_NULL] = "null"};
    return strcmp(names[json_typeof(v)], type) == 0;
}

static bool fits_type(const json_t *types, const json_t *v)
{
    size_t i;
    json_t *t;
    if (!types || json_is_string(types))
        return !types || is_of(v, json_string_value(types));
    json_array_foreach(types, i, t)
    {
        if (json_is_string(t) && is_of(v, json_string_value(t)))
            return true;
    }
    return false;
}

/* enum and const: what else is said must be what can be looked up. */
static struct tern_gr_frag values(struct schema *s, const json_t *v)
{
    const json_t *types = json_object_get(v, "type"), *one = json_object_get(v, "const");
    json_t *list = json_object_get(v, "enum"), *x;
    struct tern_buf texts = {0};
    struct tern_gr_word *words = NULL;
    struct tern_gr_frag f = {0};
    size_t n = 0, cap = 0, i;
    size_t *ends = NULL;
    if (n_rules(v) > (types != NULL) + (one != NULL) + (size_t)(list != NULL))
        return tern_schema_refuse(s, TERN_EUNSUPPORTED,
                                  "enum and const beside keywords other than type are not supported");
    if (list && !json_is_array(list))
        return tern_schema_refuse(s, TERN_EINVAL, "enum must be a list");
    if (one && !list) {
        list = json_pack("[O]", one);
        one = NULL;
    } else {
        (void)json_incref(list);
    }
    json_array_foreach(list, i, x)
    {
        if (!fits_type(types, x) || (one && !tern_schema_same(one, x)) || s->g->rc < 0)
            continue;
        if (strlen(json_is_string(x) ? json_string_value(x) : "") < json_string_length(x))
            (void)tern_schema_refuse(s, TERN_EUNSUPPORTED, "enum has a text with a NUL character");
        s->g->rc = s->g->rc < 0 ? s->g->rc : tern_gr_json_write(&texts, x, &s->g->err);
        s->g->rc = s->g->rc < 0 ? s->g->rc : tern_grow(&ends, &cap, n + 1, sizeof *ends, &s->g->err);
        if (s->g->rc == 0)
            ends[n++] = texts.len;
    }
    json_decref(list);
    cap = 0;
    s->g->rc = s->g->rc < 0 ? s->g->rc : tern_grow(&words, &cap, n + 1, sizeof *words, &s->g->err);
    for (i = 0; i < n && s->g->rc == 0; i++) {
        size_t from = i ? ends[i - 1] : 0;
        words[i] = (struct tern_gr_word){texts.p + from, ends[i] - from};
    }
    if (s->g->rc == 0)
        f = n ? tern_gr_words(s->g, words, n) : tern_gr_never(s->g);
    tern_free(words);
    tern_free(ends);
    tern_buf_clear(&texts);
    return f;
}

/* ---- alternatives ------------------------------------------------------------------------------------------------ */

/* What a schema is after references that stand alone. */
static const json_t *behind_refs(struct schema *s, const json_t *v)
{
    for (int i = 0; i < MAX_REFS && json_object_get(v, "$ref"); i++) {
        const char *ref = json_string_value(json_object_get(v, "$ref"));
        v = ref ? tern_schema_find(s, ref) : NULL;
    }
    return v;
}

static unsigned type_bits(const json_t *v)
{
    static const char *const names[] = {"object", "array", "string", "number", "boolean", "null"};
    const json_t *types = json_object_get(v, "type"), *list = json_object_get(v, "enum"), *x;
    unsigned bits = types ? 0 : 63;
    size_t i;
    for (unsigned k = 0; types && k < 6; k++)
        for (i = 0; i < (json_is_array(types) ? json_array_size(types) : 1); i++) {
            const char *t = json_string_value(json_is_array(types) ? json_array_get(types, i) : types);
            if (t && (strcmp(t, names[k]) == 0 || (k == 3 && strcmp(t, "integer") == 0)))
                bits |= 1u << k;
        }
    unsigned of_values = 0;
    for (i = 0; i < json_array_size(list) || (!list && json_object_get(v, "const") && i == 0); i++) {
        x = list ? json_array_get(list, i) : json_object_get(v, "const");
        for (unsigned k = 0; k < 6; k++)
            of_values |= is_of(x, names[k]) ? 1u << k : 0;
    }
    return of_values ? bits & of_values : bits;
}

static bool requires(const json_t *v, const char *name)
{
    size_t i;
    json_t *x;
    json_array_foreach(json_object_get(v, "required"), i, x)
    {
        if (json_is_string(x) && strcmp(json_string_value(x), name) == 0)
            return true;
    }
    return false;
}

/* Is there surely no value that both accept?  By type, by values, or by a member that both require, whose values
 * differ. */
static bool disjoint(struct schema *s, const json_t *a, const json_t *b)
{
    const char *key;
    json_t *x;
    a = behind_refs(s, a);
    b = behind_refs(s, b);
    if (!json_is_object(a) || !json_is_object(b))
        return json_is_false(a) || json_is_false(b);
    if (!(type_bits(a) & type_bits(b)) || tern_schema_other_values(a, b))
        return true;
    if (type_bits(a) != 1 || type_bits(b) != 1)
        return false;
    json_object_foreach(json_object_get(a, "properties"), key, x)
    {
        const json_t *y = json_object_get(json_object_get(b, "properties"), key);
        if (y && requires(a, key) && requires(b, key) && tern_schema_other_values(behind_refs(s, x), behind_refs(s, y)))
            return true;
    }
    return false;
}

static void refuse_one_of(struct schema *s, size_t a, size_t b)
{
    (void)tern_schema_refuse(s, TERN_EUNSUPPORTED,
                             "oneOf is supported where no value fits two of its schemas, which is not sure of"
                             " number %zu and number %zu; anyOf need not be so",
                             a < b ? a : b, a < b ? b : a);
}

/* The values that number i lists, into seen: value -> number. */
static void see_values(struct schema *s, json_t *seen, const json_t *v, size_t i)
{
    json_t *list = tern_schema_listed(v), *x;
    size_t k;
    json_array_foreach(list, k, x)
    {
        if (tern_gr_failed(s->g) || !fits_type(json_object_get(v, "type"), x))
            continue;
        char *key = tern_schema_key(x);
        const json_t *before = json_object_get(seen, key);
        if (before && (size_t)json_integer_value(before) != i)
            refuse_one_of(s, (size_t)json_integer_value(before), i);
        else if (json_object_set_new(seen, key, json_integer((json_int_t)i)) < 0)
            (void)tern_schema_refuse(s, TERN_ENOMEM, "out of memory");
        free(key);
    }
    json_decref(list);
}

/* Those that list values are looked up, for they may be many; only the others are held against each one. */
static void check_one_of(struct schema *s, const json_t *list)
{
    json_t *seen = json_object(), *x, *y;
    size_t i, k;
    json_array_foreach(list, i, x)
    {
        const json_t *v = tern_gr_late(s->g) ? NULL : behind_refs(s, x);
        if (tern_schema_has_values(v))
            see_values(s, seen, v, i);
    }
    json_decref(seen);
    json_array_foreach(list, i, x)
    {
        if (tern_gr_failed(s->g) || tern_schema_has_values(behind_refs(s, x)))
            continue;
        json_array_foreach(list, k, y)
        {
            if (k == i || (k > i && !tern_schema_has_values(behind_refs(s, y))))
                continue; /* its turn is later */
            if (tern_gr_late(s->g))
                return;
            if (!disjoint(s, x, y))
                refuse_one_of(s, i, k);
        }
    }
}

static struct tern_gr_frag alternatives(struct schema *s, json_t *v, const char *keyword)
{
    json_t *list = json_object_get(v, keyword), *x, *rest = json_copy(v);
    struct tern_gr_frag all = tern_gr_never(s->g);
    size_t i, n = json_array_size(list);
    (void)json_array_append_new(s->made, rest);
    (void)json_object_del(rest, keyword);
    if (!json_is_array(list) || n == 0)
        return tern_schema_refuse(s, TERN_EINVAL, "%s must be a list with at least one schema", keyword);
    if (keyword[0] == 'o')
        check_one_of(s, list);
    bool alone = n_rules(rest) == 0;
    json_array_foreach(list, i, x)
    {
        char name[32];
        (void)snprintf(name, sizeof name, "%s/%zu", keyword, i);
        json_t *both = alone ? x : tern_schema_merge(s, rest, x);
        if (tern_gr_failed(s->g))
            return all;
        all = tern_gr_or(s->g, all, tern_schema_below(s, both, name));
    }
    return all;
}

static struct tern_gr_frag all_of(struct schema *s, json_t *v)
{
    json_t *list = json_object_get(v, "allOf"), *x, *all = json_copy(v);
    size_t i;
    (void)json_array_append_new(s->made, all);
    (void)json_object_del(all, "allOf");
    if (!json_is_array(list) || json_array_size(list) == 0)
        return tern_schema_refuse(s, TERN_EINVAL, "allOf must be a list with at least one schema");
    json_array_foreach(list, i, x)
    {
        all = tern_gr_failed(s->g) ? NULL : tern_schema_merge(s, all, x);
    }
    return all ? tern_schema_value(s, all) : (struct tern_gr_frag){0};
}

/* ---- types ------------------------------------------------------------------------------------------------------- */

static struct tern_gr_frag of_type(struct schema *s, const json_t *v, const char *type)
{
    if (strcmp(type, "object") == 0)
        return tern_schema_object(s, v);
    if (strcmp(type, "array") == 0)
        return tern_schema_array(s, v);
    if (strcmp(type, "string") == 0)
        return tern_schema_string(s, v);
    if (strcmp(type, "number") == 0 || strcmp(type, "integer") == 0)
        return tern_schema_number(s, v, type[0] == 'i');
    if (strcmp(type, "boolean") == 0)
        return tern_gr_or(s->g, tern_gr_text(s->g, "true"), tern_gr_text(s->g, "false"));
    if (strcmp(type, "null") == 0)
        return tern_gr_text(s->g, "null");
    return tern_schema_refuse(s, TERN_EINVAL, "there is no type \"%.40s\"", type);
}

/* A schema that names no type accepts values of all types that its keywords do not concern; those of the type that they
 * do concern are the ones that are meant. */
static const char *meant_type(const json_t *v)
{
    static const char *const of[][2] = {
        {"properties", "object"}, {"required", "object"},         {"additionalProperties", "object"},
        {"items", "array"},       {"prefixItems", "array"},       {"minItems", "array"},
        {"maxItems", "array"},    {"pattern", "string"},          {"minLength", "string"},
        {"maxLength", "string"},  {"format", "string"},           {"minimum", "number"},
        {"maximum", "number"},    {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (json_object_get(v, of[i][0]))
            return of[i][1];
    return NULL;
}

static struct tern_gr_frag types(struct schema *s, const json_t *v)
{
    const json_t *type = json_object_get(v, "type");
    struct tern_gr_frag all = {0};
    size_t i;
    json_t *t;
    if (!type) {
        const char *meant = meant_type(v);
        return meant ? of_type(s, v, meant) : tern_gr_json_value(s->g);
    }
    if (json_is_string(type))
        return of_type(s, v, json_string_value(type));
    if (json_array_size(type) == 0)
        return tern_schema_refuse(s, TERN_EINVAL, "type must be a name, or a list of names");
    all = tern_gr_never(s->g);
    json_array_foreach(type, i, t)
    {
        if (!json_is_string(t))
            return tern_schema_refuse(s, TERN_EINVAL, "type must be a name, or a list of names");
        all = tern_gr_or(s->g, all, of_type(s, v, json_string_value(t)));
    }
    return all;
}

static struct tern_gr_frag object_schema(struct schema *s, json_t *v)
{
    const char *ref = json_string_value(json_object_get(v, "$ref"));
    tern_schema_check_keywords(s, v);
    if (tern_gr_failed(s->g))
        return (struct tern_gr_frag){0};
    if (json_object_get(v, "$ref") && !ref)
        return tern_schema_refuse(s, TERN_EINVAL, "$ref must be a text");
    if (ref && n_rules(v) == 1)
        return reference(s, ref);
    if (ref) {
        json_t *rest = json_copy(v), *to = tern_schema_find(s, ref);
        (void)json_array_append_new(s->made, rest);
        (void)json_object_del(rest, "$ref");
        json_t *both = to ? tern_schema_merge(s, rest, to) : NULL;
        return both ? tern_schema_value(s, both) : (struct tern_gr_frag){0};
    }
    if (json_object_get(v, "allOf"))
        return all_of(s, v);
    if (json_object_get(v, "anyOf"))
        return alternatives(s, v, "anyOf");
    if (json_object_get(v, "oneOf"))
        return alternatives(s, v, "oneOf");
    return tern_schema_has_values(v) ? values(s, v) : types(s, v);
}

struct tern_gr_frag tern_schema_value(struct schema *s, json_t *v)
{
    struct tern_gr_frag f;
    if (tern_gr_failed(s->g))
        return (struct tern_gr_frag){0};
    if (tern_gr_late(s->g))
        return (struct tern_gr_frag){0};
    if (++s->steps > MAX_STEPS)
        return tern_schema_refuse(s, TERN_ELIMIT, "it takes more than %d steps to read the schema", MAX_STEPS);
    if (++s->depth > TERN_GR_MAX_DEPTH)
        return tern_schema_refuse(s, TERN_ELIMIT, "schemas are nested deeper than %d levels", TERN_GR_MAX_DEPTH);
    if (json_is_boolean(v))
        f = json_is_true(v) ? tern_gr_json_value(s->g) : tern_gr_never(s->g);
    else if (json_is_object(v))
        f = object_schema(s, v);
    else
        f = tern_schema_refuse(s, TERN_EINVAL, "a schema is an object, true or false");
    s->depth--;
    return f;
}

struct tern_gr_frag tern_gr_schema(tern_grammar *g, json_t *root)
{
    return tern_schema_read(g, root, tern_schema_value);
}

struct tern_gr_frag tern_schema_read(tern_grammar *g, json_t *root,
                                     struct tern_gr_frag (*read)(struct schema *s, json_t *root))
{
    struct schema s = {.g = g, .root = root, .rules = json_object(), .made = json_array(), .waiting = json_array()};
    struct tern_gr_frag f = read(&s, root);
    for (size_t i = 0; i < json_array_size(s.waiting) && !tern_gr_failed(g); i++) {
        const char *ref = json_string_value(json_array_get(s.waiting, i));
        json_t *to = tern_schema_find(&s, ref);
        (void)snprintf(s.path, sizeof s.path, "%.120s", ref);
        if (to)
            tern_gr_define(g, (uint32_t)json_integer_value(json_object_get(s.rules, ref)), tern_schema_value(&s, to));
    }
    json_decref(s.rules);
    json_decref(s.made);
    json_decref(s.waiting);
    return f;
}

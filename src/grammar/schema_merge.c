/* Two schemas that a value must satisfy both, as one. */
#include <string.h>
#include "grammar/schema.h"

static json_t *fail(struct schema *s, const char *keyword)
{
    (void)tern_schema_refuse(s, TERN_EUNSUPPORTED,
                             "\"%.40s\" is said twice, by schemas that must both hold, in ways that cannot be joined",
                             keyword);
    return NULL;
}

/* Kept as long as s. */
static json_t *keep(struct schema *s, json_t *v)
{
    if (!v || json_array_append_new(s->made, v) < 0) {
        (void)tern_schema_refuse(s, TERN_ENOMEM, "out of memory");
        return NULL;
    }
    return v;
}

/* {"allOf": [a, b]}: joined when its turn comes. */
static json_t *both(json_t *a, json_t *b)
{
    return json_equal(a, b) ? json_incref(a) : json_pack("{s[OO]}", "allOf", a, b);
}

static bool has_word(const json_t *list, const char *word)
{
    size_t i;
    json_t *x;
    if (json_is_string(list))
        return strcmp(json_string_value(list), word) == 0;
    json_array_foreach(list, i, x)
    {
        if (json_is_string(x) && strcmp(json_string_value(x), word) == 0)
            return true;
    }
    return false;
}

static const char *const type_names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};

/* A joined list of types may be empty, one that was written must not be. */
static void check_types(struct schema *s, const json_t *types)
{
    size_t n = json_is_array(types) ? json_array_size(types) : 1;
    for (size_t i = 0; i < n || n == 0; i++) {
        const char *name = json_string_value(json_is_array(types) ? json_array_get(types, i) : types);
        bool is = false;
        for (size_t k = 0; name && k < 7; k++)
            is |= strcmp(name, type_names[k]) == 0;
        if (!name)
            (void)tern_schema_refuse(s, TERN_EINVAL, "type must be a name, or a list of names");
        else if (!is)
            (void)tern_schema_refuse(s, TERN_EINVAL, "there is no type \"%.40s\"", name);
        if (!is)
            return;
    }
}

static json_t *join_types(const json_t *a, const json_t *b)
{
    json_t *out = json_array();
    for (size_t i = 0; i < 7; i++) {
        bool number = has_word(a, "number") && has_word(b, "number"), integer = strcmp(type_names[i], "integer") == 0;
        bool in_a = has_word(a, type_names[i]) || (integer && has_word(a, "number"));
        bool in_b = has_word(b, type_names[i]) || (integer && has_word(b, "number"));
        if (in_a && in_b && !(integer && number))
            (void)json_array_append_new(out, json_string(type_names[i]));
    }
    return out;
}

/* Have they no type or no value in common?  Then the rest need not be joined, which may not be possible. */
static bool contradict(struct schema *s, const json_t *a, const json_t *b)
{
    const json_t *type_a = json_object_get(a, "type"), *type_b = json_object_get(b, "type");
    const json_t *one_a = json_object_get(a, "const"), *one_b = json_object_get(b, "const");
    bool types = false, values = one_a && one_b && !tern_schema_same(one_a, one_b);
    if (type_a && type_b) {
        json_t *joined = join_types(type_a, type_b);
        types = json_array_size(joined) == 0;
        json_decref(joined);
        check_types(s, type_a);
        check_types(s, type_b);
    }
    if (types || values) {
        tern_schema_check_keywords(s, a);
        tern_schema_check_keywords(s, b);
        (void)tern_schema_never(s, "schemas that must both hold have other %s", types ? "types" : "constants");
    }
    return types || values;
}

static json_t *join_lists(const json_t *a, const json_t *b)
{
    json_t *out = json_copy((json_t *)(uintptr_t)a);
    (void)json_array_extend(out, (json_t *)(uintptr_t)b);
    return out;
}

/* The members that one schema names and the other does not must fit what the other says of those it does not name. */
static void add_members(json_t *to, const json_t *from, const json_t *others, json_t *rest)
{
    const char *key;
    json_t *x;
    json_object_foreach((json_t *)(uintptr_t)from, key, x)
    {
        json_t *other = json_object_get(others, key);
        if (other && json_object_get(to, key))
            continue;
        if (other)
            (void)json_object_set_new(to, key, both(x, other));
        else if (!rest || json_is_true(rest))
            (void)json_object_set(to, key, x);
        else
            (void)json_object_set_new(to, key, json_is_false(rest) ? json_false() : both(x, rest));
    }
}

static void join_members(json_t *out, const json_t *a, const json_t *b)
{
    const json_t *in_a = json_object_get(a, "properties"), *in_b = json_object_get(b, "properties");
    json_t *rest_a = json_object_get(a, "additionalProperties"), *rest_b = json_object_get(b, "additionalProperties");
    if (in_a || in_b) {
        json_t *members = json_object();
        add_members(members, in_a, in_b, rest_b);
        add_members(members, in_b, in_a, rest_a);
        (void)json_object_set_new(out, "properties", members);
    }
    if (rest_a && rest_b)
        (void)json_object_set_new(out, "additionalProperties",
                                  json_is_false(rest_a) || json_is_false(rest_b) ? json_false() : both(rest_a, rest_b));
    else if (rest_b)
        (void)json_object_set(out, "additionalProperties", rest_b);
}

/* Where each may be missing: any value. */
static json_t *both_or_one(json_t *a, json_t *b)
{
    if (json_is_false(a) || json_is_false(b))
        return json_false();
    return a && b ? both(a, b) : json_incref(a ? a : b ? b : json_true());
}

/* What a list says of its element i, NULL: nothing. */
static json_t *element(const json_t *v, size_t i)
{
    const json_t *first = json_object_get(v, "prefixItems");
    return i < json_array_size(first) ? json_array_get(first, i) : json_object_get(v, "items");
}

/* `items` of one holds for elements that prefixItems of the other names. */
static void join_items(struct schema *s, json_t *out, const json_t *a, const json_t *b)
{
    const json_t *in_a = json_object_get(a, "prefixItems"), *in_b = json_object_get(b, "prefixItems");
    json_t *rest_a = json_object_get(a, "items"), *rest_b = json_object_get(b, "items");
    if ((in_a && !json_is_array(in_a)) || (in_b && !json_is_array(in_b)))
        (void)tern_schema_refuse(s, TERN_EINVAL, "prefixItems must be a list of schemas");
    if (json_is_array(rest_a) || json_is_array(rest_b))
        (void)tern_schema_refuse(s, TERN_EUNSUPPORTED, "items as a list is not supported, it is prefixItems today");
    if (in_a || in_b) {
        size_t n = json_array_size(in_a) > json_array_size(in_b) ? json_array_size(in_a) : json_array_size(in_b);
        json_t *first = json_array();
        for (size_t i = 0; i < n; i++)
            (void)json_array_append_new(first, both_or_one(element(a, i), element(b, i)));
        (void)json_object_set_new(out, "prefixItems", first);
    }
    if (rest_a || rest_b)
        (void)json_object_set_new(out, "items", both_or_one(rest_a, rest_b));
}

/* What becomes of a keyword that both have; NULL has failed. */
static json_t *join_keyword(struct schema *s, const char *key, json_t *a, json_t *b)
{
    static const char *const most[] = {"minLength", "minItems", "minimum", "exclusiveMinimum"}, *const least[] = {
                                                                                                    "maxLength",
                                                                                                    "maxItems",
                                                                                                    "maximum",
                                                                                                    "exclusiveMaximum"};
    if (json_equal(a, b))
        return json_incref(a);
    if (strcmp(key, "type") == 0)
        return join_types(a, b);
    if ((strcmp(key, "required") == 0 || strcmp(key, "allOf") == 0) && json_is_array(a) && json_is_array(b))
        return join_lists(a, b);
    if (strcmp(key, "const") == 0 && tern_schema_same(a, b))
        return json_incref(a);
    if (strcmp(key, "enum") == 0 && json_is_array(a) && json_is_array(b))
        return tern_schema_common_values(a, b);
    for (size_t i = 0; i < 4; i++) {
        bool more = strcmp(key, most[i]) == 0;
        if ((more || strcmp(key, least[i]) == 0) && json_is_number(a) && json_is_number(b))
            return json_incref((tern_schema_compare(a, b) > 0) == more ? a : b);
    }
    return fail(s, key);
}

/* v without a reference: what it leads to, and what stands beside it. */
static json_t *resolve(struct schema *s, json_t *v)
{
    for (int i = 0; json_object_get(v, "$ref") && !tern_gr_failed(s->g); i++) {
        const char *ref = json_string_value(json_object_get(v, "$ref"));
        if (i == TERN_GR_MAX_DEPTH || !ref) {
            (void)tern_schema_refuse(s, TERN_EINVAL, "$ref leads from reference to reference without an end");
            return NULL;
        }
        json_t *to = tern_schema_find(s, ref), *rest = keep(s, json_copy(v));
        if (!to || !rest)
            return NULL;
        (void)json_object_del(rest, "$ref");
        if (!json_is_object(to))
            return to;
        /* The first merge has no reference on one side, so this comes to an end. */
        v = json_object_get(to, "$ref") && json_object_size(rest) == 0 ? to : tern_schema_merge(s, rest, to);
    }
    return v;
}

/* Keywords that are joined with others. */
static bool joined_apart(const char *key)
{
    static const char *const keys[] = {"properties", "additionalProperties", "prefixItems", "items"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

json_t *tern_schema_merge(struct schema *s, json_t *a, json_t *b)
{
    const char *key;
    json_t *x, *joined;
    if (tern_gr_late(s->g))
        return NULL;
    if (++s->steps % 64 == 0)
        s->steps += 8; /* merging costs more than reading */
    if (++s->depth > TERN_GR_MAX_DEPTH) {
        (void)tern_schema_refuse(s, TERN_ELIMIT, "schemas are nested deeper than %d levels", TERN_GR_MAX_DEPTH);
        return NULL;
    }
    a = resolve(s, a);
    b = a && !tern_gr_failed(s->g) ? resolve(s, b) : NULL;
    s->depth--;
    if (!a || !b || tern_gr_failed(s->g))
        return NULL;
    if (json_is_boolean(a) || json_is_boolean(b))
        return json_is_false(a) || json_is_true(b) ? a : b;
    if (!json_is_object(a) || !json_is_object(b)) {
        (void)tern_schema_refuse(s, TERN_EINVAL, "a schema is an object, true or false");
        return NULL;
    }
    json_t *out = keep(s, contradict(s, a, b) ? json_false() : json_copy(a));
    if (!out || !json_is_object(out))
        return out;
    json_object_foreach(b, key, x)
    {
        json_t *mine = json_object_get(a, key);
        if (tern_schema_is_note(key) || joined_apart(key))
            continue;
        joined = mine ? join_keyword(s, key, mine, x) : json_incref(x);
        if (!joined)
            return NULL;
        (void)json_object_set_new(out, key, joined);
    }
    join_members(out, a, b);
    join_items(s, out, a, b);
    return tern_gr_failed(s->g) ? NULL : out;
}

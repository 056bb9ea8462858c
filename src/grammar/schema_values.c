/* Values that a JSON schema lists: which are equal. */
#include <math.h>
#include <stdlib.h>
#include "grammar/schema.h"

#define TWO_63 9223372036854775808.0

/* -1, 0, 1: a is less, equal, more.  No double stands for an integer that it is not. */
static int compare_to_real(json_int_t a, double b)
{
    if (b >= TWO_63 || b < -TWO_63)
        return b > 0 ? -1 : 1;
    json_int_t whole = (json_int_t)floor(b);
    return a != whole ? (a > whole) - (a < whole) : -(b > floor(b));
}

int tern_schema_compare(const json_t *a, const json_t *b)
{
    json_int_t i = json_integer_value(a), k = json_integer_value(b);
    double x = json_real_value(a), y = json_real_value(b);
    if (json_is_integer(a))
        return json_is_integer(b) ? (i > k) - (i < k) : compare_to_real(i, y);
    return json_is_integer(b) ? -compare_to_real(k, x) : (x > y) - (x < y);
}

/* jansson, which read both, has limited how deep they are. */
bool tern_schema_same(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *x;
    size_t i;
    if (json_is_number(a) && json_is_number(b))
        return tern_schema_compare(a, b) == 0;
    if (json_is_array(a) && json_is_array(b)) {
        if (json_array_size(a) != json_array_size(b))
            return false;
        json_array_foreach(a, i, x)
        {
            if (!tern_schema_same(x, json_array_get(b, i)))
                return false;
        }
        return true;
    }
    if (!json_is_object(a) || !json_is_object(b))
        return json_equal(a, b);
    if (json_object_size(a) != json_object_size(b))
        return false;
    json_object_foreach((json_t *)(uintptr_t)a, key, x)
    {
        const json_t *y = json_object_get(b, key);
        if (!y || !tern_schema_same(x, y))
            return false;
    }
    return true;
}

bool tern_schema_has_values(const json_t *v)
{
    return json_object_get(v, "enum") || json_object_get(v, "const");
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

#define FEW 64 /* pairs of values, which are compared sooner than looked up */

/* v with numbers that are equal written alike. */
static json_t *alike(const json_t *v)
{
    const char *key;
    json_t *x, *out;
    size_t i;
    if (json_is_real(v)) {
        double d = json_real_value(v);
        if (d == floor(d) && d >= -TWO_63 && d < TWO_63)
            return json_integer((json_int_t)d);
    }
    if (json_is_array(v)) {
        out = json_array();
        json_array_foreach(v, i, x)(void) json_array_append_new(out, alike(x));
        return out;
    }
    if (json_is_object(v)) {
        out = json_object();
        json_object_foreach((json_t *)(uintptr_t)v, key, x)(void) json_object_set_new(out, key, alike(x));
        return out;
    }
    return json_incref((json_t *)(uintptr_t)v);
}

char *tern_schema_key(const json_t *v)
{
    json_t *x = alike(v);
    char *text = json_dumps(x, JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY);
    json_decref(x);
    return text;
}

json_t *tern_schema_listed(const json_t *v)
{
    json_t *list = json_object_get(v, "enum"), *one = json_object_get(v, "const"), *x, *out;
    size_t i;
    if (list && !one)
        return json_incref(list);
    out = json_array();
    if (one && !list)
        (void)json_array_append(out, one);
    json_array_foreach(list, i, x)
    {
        if (one && tern_schema_same(one, x))
            (void)json_array_append(out, x);
    }
    return out;
}

static bool has(const json_t *list, const json_t *x)
{
    size_t i;
    json_t *y;
    json_array_foreach(list, i, y)
    {
        if (tern_schema_same(x, y))
            return true;
    }
    return false;
}

json_t *tern_schema_common_values(const json_t *a, const json_t *b)
{
    json_t *out = json_array(), *keys = NULL, *x;
    size_t i;
    bool few = json_array_size(a) * json_array_size(b) <= FEW;
    if (!few) {
        keys = json_object();
        json_array_foreach(b, i, x)
        {
            char *key = tern_schema_key(x);
            (void)json_object_set_new(keys, key, json_true());
            free(key);
        }
    }
    json_array_foreach(a, i, x)
    {
        char *key = few ? NULL : tern_schema_key(x);
        if (few ? has(b, x) : json_object_get(keys, key) != NULL)
            (void)json_array_append(out, x);
        free(key);
    }
    json_decref(keys);
    return out;
}

bool tern_schema_other_values(const json_t *a, const json_t *b)
{
    if (!tern_schema_has_values(a) || !tern_schema_has_values(b))
        return false;
    json_t *in_a = tern_schema_listed(a), *in_b = tern_schema_listed(b),
           *common = tern_schema_common_values(in_a, in_b);
    bool none = json_array_size(common) == 0;
    json_decref(in_a);
    json_decref(in_b);
    json_decref(common);
    return none;
}

/* Values that a JSON schema lists: which are equal. */
#include <math.h>
#include "grammar/schema.h"

/* -1, 0, 1: a is less, equal, more.  No double stands for an integer that it is not. */
static int compare_to_real(json_int_t a, double b)
{
    if (b >= 9223372036854775808.0 || b < -9223372036854775808.0)
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

static bool lists(const json_t *v, const json_t *x)
{
    size_t i;
    json_t *y;
    json_array_foreach(json_object_get(v, "enum"), i, y)
    {
        if (tern_schema_same(x, y))
            return true;
    }
    const json_t *one = json_object_get(v, "const");
    return one && tern_schema_same(one, x);
}

bool tern_schema_other_values(const json_t *a, const json_t *b)
{
    size_t i;
    json_t *x;
    const json_t *one = json_object_get(a, "const");
    if (!tern_schema_has_values(a) || !tern_schema_has_values(b) || (one && lists(b, one)))
        return false;
    json_array_foreach(json_object_get(a, "enum"), i, x)
    {
        if (lists(b, x))
            return false;
    }
    return true;
}

json_t *tern_schema_common_values(const json_t *a, const json_t *b)
{
    json_t *out = json_array(), *x, *y;
    size_t i, k;
    json_array_foreach(a, i, x) json_array_foreach(b, k, y)
    {
        if (tern_schema_same(x, y)) {
            (void)json_array_append(out, x);
            break;
        }
    }
    return out;
}

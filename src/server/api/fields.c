/* Members of a JSON object by a table: each has one type and one range, and a sentence when it has neither. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "server/server_impl.h"

static const char *type_name(const json_t *v)
{
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

static int bad_type(const char *want, const json_t *v, const char *param, struct tern_fault *f)
{
    return tern_fault_set(f, 400, "invalid_type", param, "%s must be %s, not %s", param, want, type_name(v));
}

static int read_int(const struct tern_field *t, const json_t *v, const char *param, int64_t *out, struct tern_fault *f)
{
    double x = json_number_value(v);
    if (json_is_real(v) && (x != floor(x) || fabs(x) >= 0x1p63))
        return tern_fault_set(f, 400, "invalid_type", param, "%s must be an integer of 64 bits, not %g", param, x);
    if (!json_is_number(v))
        return bad_type("an integer", v, param, f);
    int64_t i = json_is_integer(v) ? json_integer_value(v) : (int64_t)x;
    if ((double)i < t->min || (double)i > t->max)
        return tern_fault_set(f, 400, "invalid_value", param, "%s must be an integer from %.0f to %.0f, not %lld",
                              param, t->min, t->max, (long long)i);
    *out = i;
    return 0;
}

static int read_num(const struct tern_field *t, const json_t *v, const char *param, double *out, struct tern_fault *f)
{
    if (!json_is_number(v))
        return bad_type("a number", v, param, f);
    double x = json_number_value(v);
    if (!(x >= t->min && x <= t->max))
        return tern_fault_set(f, 400, "invalid_value", param, "%s must be a number from %g to %g, not %g", param,
                              t->min, t->max, x);
    *out = x;
    return 0;
}

static int read_str(const struct tern_field *t, json_t *v, const char *param, const char **out, struct tern_fault *f)
{
    if (!json_is_string(v))
        return bad_type("a string", v, param, f);
    size_t n = json_string_length(v);
    if (strlen(json_string_value(v)) != n)
        return tern_fault_set(f, 400, "invalid_value", param, "%s must not have NUL characters", param);
    if (t->max > 0 && (double)n > t->max)
        return tern_fault_set(f, 400, "invalid_value", param, "%s is longer than %.0f bytes", param, t->max);
    *out = json_string_value(v);
    return 0;
}

/* Values that ask for nothing. */
static bool is_empty(const json_t *v)
{
    return json_is_false(v) || (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0);
}

static bool is_off(const struct tern_field *t, const json_t *v)
{
    const double x = json_is_number(v) ? json_number_value(v) : json_is_boolean(v) ? json_is_true(v) : NAN;
    return x >= t->min && x <= t->max;
}

static int refuse(const struct tern_field *t, const char *param, struct tern_fault *f)
{
    return tern_fault_set(f, 400, "unsupported_parameter", param, "%s: %s", param, t->why);
}

static int read_field(const struct tern_field *t, json_t *v, const char *param, void *out, struct tern_fault *f)
{
    /* Only checked: into a place that nobody looks at. */
    union {
        bool b;
        int64_t i;
        double d;
        const char *s;
        json_t *j;
    } aside;
    void *to = t->offset == TERN_FIELD_CHECKED ? (void *)&aside : (char *)out + t->offset;
    switch (t->kind) {
    case TERN_FIELD_BOOL:
        if (!json_is_boolean(v))
            return bad_type("true or false", v, param, f);
        *(bool *)to = json_is_true(v);
        return 0;
    case TERN_FIELD_INT:
        return read_int(t, v, param, to, f);
    case TERN_FIELD_NUM:
        return read_num(t, v, param, to, f);
    case TERN_FIELD_STR:
        return read_str(t, v, param, to, f);
    case TERN_FIELD_OBJ:
        if (!json_is_object(v))
            return bad_type("an object", v, param, f);
        break;
    case TERN_FIELD_ARR:
        if (!json_is_array(v))
            return bad_type("a list", v, param, f);
        break;
    case TERN_FIELD_ANY:
        break;
    case TERN_FIELD_OFF:
        return is_off(t, v) ? 0 : refuse(t, param, f);
    case TERN_FIELD_REFUSED:
        return is_empty(v) ? 0 : refuse(t, param, f);
    }
    *(json_t **)to = v;
    return 0;
}

int tern_fields_read(const struct tern_field *table, json_t *object, const char *prefix, void *out,
                     struct tern_fault *f)
{
    for (const struct tern_field *t = table; t->name; t++) {
        json_t *v = json_object_get(object, t->name);
        char param[sizeof f->param];
        if (!v || json_is_null(v))
            continue;
        (void)snprintf(param, sizeof param, "%s%s", prefix, t->name);
        if (read_field(t, v, param, out, f) < 0)
            return -1;
    }
    return 0;
}

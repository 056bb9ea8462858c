/* JSON files as the metadata of a model.  jansson parses and checks (UTF-8, numbers, nesting, members named twice);
 * what it found is copied into the file's arena under flat names. */
#include "file/hf/hf.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

int tern_json_object(struct json_t **out, const struct tern_part *part, const uint8_t *p, size_t n, tern_error *err)
{
    struct tern_cursor c = {.part = part};
    size_t start = (size_t)(p - part->p);
    json_error_t e;
    *out = NULL;
    if (n > TERN_JSON_MAX)
        return tern_cursor_fail(&c, start, TERN_ELIMIT, err, "%zu bytes of JSON are more than the %zu allowed", n,
                                TERN_JSON_MAX);
    json_t *j = json_loadb((const char *)p, n, JSON_REJECT_DUPLICATES, &e);
    if (!j)
        return tern_cursor_fail(&c, start + (size_t)(e.position > 0 ? e.position : 0), TERN_EFORMAT, err,
                                "malformed JSON: %s", e.text);
    if (!json_is_object(j)) {
        json_decref(j);
        return tern_cursor_fail(&c, start, TERN_EFORMAT, err, "the JSON text is a list, not an object,");
    }
    *out = j;
    return 0;
}

/* ---- flattening -------------------------------------------------------------------------------------------------- */

struct flat {
    struct tern_part *part; /* whose metadata; while v is NULL the entries are only counted */
    struct tern_file_arena *arena;
    char key[512]; /* of the value in hand */
};

static int fail_at(const struct flat *x, int code, tern_error *err, const char *what)
{
    struct tern_cursor c = {.part = x->part, .table = "metadata key", .name = x->key};
    return tern_cursor_fail(&c, TERN_NO_OFFSET, code, err, "%s", what);
}

static int copy_string(const struct flat *x, struct tern_str *out, const json_t *j, tern_error *err)
{
    char *copy;
    size_t n = json_string_length(j);
    int rc = tern_file_arena_alloc(x->arena, &copy, n + 1, 1, err);
    if (rc < 0)
        return rc;
    memcpy(copy, json_string_value(j), n);
    *out = (struct tern_str){copy, n};
    return 0;
}

/* What all elements of a list are; false when they differ or are no scalars.  Integers among numbers are numbers. */
static bool common_type(const json_t *list, enum tern_meta_type *type)
{
    *type = TERN_META_INT;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *j = json_array_get(list, i);
        enum tern_meta_type t = json_is_integer(j)   ? TERN_META_INT
                                : json_is_real(j)    ? TERN_META_FLOAT
                                : json_is_boolean(j) ? TERN_META_BOOL
                                : json_is_string(j)  ? TERN_META_STRING
                                                     : TERN_META_ARRAY;
        if (t == TERN_META_ARRAY)
            return false;
        bool numbers = t <= TERN_META_FLOAT && *type <= TERN_META_FLOAT;
        if (i && t != *type && !numbers)
            return false;
        if (i == 0 || t > *type)
            *type = t;
    }
    return true;
}

static int fill_list(const struct flat *x, struct tern_meta *m, const json_t *list, tern_error *err)
{
    int rc = 0;
    size_t n = json_array_size(list);
    void *arr;
    m->type = TERN_META_ARRAY;
    m->n = n;
    TERN_TRY(tern_file_arena_alloc(x->arena, &arr, n, m->elem == TERN_META_STRING ? sizeof(struct tern_str) : 8, err));
    m->arr = arr;
    for (size_t i = 0; i < n; i++) {
        const json_t *j = json_array_get(list, i);
        if (m->elem == TERN_META_STRING)
            TERN_TRY(copy_string(x, (struct tern_str *)arr + i, j, err));
        else if (m->elem == TERN_META_FLOAT)
            ((double *)arr)[i] = json_number_value(j);
        else
            ((int64_t *)arr)[i] = m->elem == TERN_META_BOOL ? json_is_true(j) : json_integer_value(j);
    }
out:
    return rc;
}

/* A scalar or a list of one type becomes an entry. */
static int add_value(struct flat *x, const json_t *j, enum tern_meta_type elem, tern_error *err)
{
    int rc = 0;
    struct tern_meta_table *t = &x->part->meta;
    size_t n = strlen(x->key) + 1;
    char *key;
    if (!t->v) {
        t->n++;
        return 0;
    }
    TERN_TRY(tern_file_arena_alloc(x->arena, &key, n, 1, err));
    memcpy(key, x->key, n);
    struct tern_meta *m = &t->v[t->n];
    *m = (struct tern_meta){.key = key, .source = key, .elem = elem, .file_offset = TERN_NO_OFFSET};
    if (json_is_array(j)) {
        TERN_TRY(fill_list(x, m, j, err));
    } else if (json_is_string(j)) {
        m->type = TERN_META_STRING;
        TERN_TRY(copy_string(x, &m->s, j, err));
    } else if (json_is_boolean(j)) {
        m->type = TERN_META_BOOL;
        m->i = json_is_true(j);
    } else {
        m->type = json_is_integer(j) ? TERN_META_INT : TERN_META_FLOAT;
        m->i = json_integer_value(j);
        m->f = json_number_value(j);
    }
    if (!tern_file_index_add(&t->index, t->n, tern_meta_name, t->v))
        return fail_at(x, TERN_EFORMAT, err, "the file says this in two ways");
    t->n++;
out:
    return rc;
}

/* Recursion is as deep as TERN_JSON_MAX_DEPTH. */
static int flatten(struct flat *x, const json_t *j, int depth, tern_error *err);

static int flatten_member(struct flat *x, const char *name, const json_t *j, int depth, tern_error *err)
{
    size_t n = strlen(x->key);
    int w = snprintf(x->key + n, sizeof x->key - n, "%s%s", x->key[n - 1] == '.' ? "" : ".", name);
    if (w < 0 || (size_t)w >= sizeof x->key - n)
        return fail_at(x, TERN_ELIMIT, err, "the path to the value is too long");
    int rc = flatten(x, j, depth, err);
    x->key[n] = 0;
    return rc;
}

static int flatten(struct flat *x, const json_t *j, int depth, tern_error *err)
{
    int rc = 0;
    enum tern_meta_type elem = TERN_META_INT;
    if (depth > TERN_JSON_MAX_DEPTH)
        return fail_at(x, TERN_ELIMIT, err, "the value is nested too deeply");
    if (json_is_null(j))
        return 0;
    if (!json_is_object(j) && (!json_is_array(j) || common_type(j, &elem)))
        return add_value(x, j, elem, err);
    if (json_is_object(j)) {
        json_t *obj = (json_t *)(uintptr_t)j; /* jansson's iterators want a mutable object, and only read */
        for (void *it = json_object_iter(obj); it; it = json_object_iter_next(obj, it))
            TERN_TRY(flatten_member(x, json_object_iter_key(it), json_object_iter_value(it), depth + 1, err));
    }
    for (size_t i = 0; json_is_array(j) && i < json_array_size(j); i++) {
        char number[24];
        (void)snprintf(number, sizeof number, "%zu", i);
        TERN_TRY(flatten_member(x, number, json_array_get(j, i), depth + 1, err));
    }
out:
    return rc;
}

int tern_json_read_meta(struct tern_part *part, const char *prefix, size_t more, struct tern_file_arena *a,
                        tern_error *err)
{
    int rc = 0;
    struct json_t *root;
    struct flat x = {.part = part, .arena = a};
    struct tern_meta_table *t = &part->meta;
    TERN_TRY(tern_json_object(&root, part, part->p, part->n, err));
    (void)snprintf(x.key, sizeof x.key, "%s", prefix);
    TERN_TRY(flatten(&x, root, 0, err));
    size_t n = t->n + more; /* far below SIZE_MAX */
    *t = (struct tern_meta_table){.cap = n};
    TERN_TRY(tern_file_arena_alloc(a, &t->v, n, sizeof *t->v, err));
    TERN_TRY(tern_file_index_init(&t->index, n, a, err));
    TERN_TRY(flatten(&x, root, 0, err));
out:
    json_decref(root);
    return rc;
}

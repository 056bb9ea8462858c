/* One safetensors file: 8 bytes of header length, a JSON object of tensors, their data without gaps. */
#include "file/hf/hf.h"

#include <jansson.h>
#include <string.h>

#include "base/mem.h"

static const struct {
    const char *dtype;
    int type;
    size_t bytes;
} dtypes[] = {{"F32", TERN_F32, 4}, {"F16", TERN_F16, 2},         {"BF16", TERN_BF16, 2},       {"I32", TERN_I32, 4},
              {"U32", TERN_U32, 4}, {"U8", TERN_U8, 1},           {"F8_E4M3", TERN_F8_E4M3, 1}, {"I64", TERN_I64, 8},
              {"I8", TERN_I8, 1},   {"F8_E8M0", TERN_F8_E8M0, 1}, {"F8_E5M2", TERN_F8_E5M2, 1}, {"BOOL", TERN_BOOL, 1},
              {"F64", TERN_F64, 8}, {"I16", TERN_I16, 2},         {"U16", TERN_U16, 2},         {"U64", TERN_U64, 8}};

struct header {
    struct tern_cursor c; /* for messages: the tensor in hand */
    size_t data;          /* where the data begin in the part */
};

static int fail(const struct header *h, int code, tern_error *err, const char *what)
{
    return tern_cursor_fail(&h->c, TERN_NO_OFFSET, code, err, "%s", what);
}

/* The type, and n_bytes of one element. */
static int read_dtype(const struct header *h, struct tern_tensor *t, const json_t *j, tern_error *err)
{
    const char *name = json_string_value(j);
    if (!name)
        return fail(h, TERN_EFORMAT, err, "its dtype is missing or no string");
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(dtypes[i].dtype, name) == 0) {
            t->type = dtypes[i].type;
            t->n_bytes = dtypes[i].bytes;
            return 0;
        }
    return tern_cursor_fail(&h->c, TERN_NO_OFFSET, TERN_EUNSUPPORTED, err, "dtype \"%s\" is not supported",
                            tern_name_show(name).text);
}

#define MOST_DIMS 8 /* of towers that are not read */

/* The shape counts from the outside, dims from the inside; a scalar is a vector of one element, and what is further out
 * than dims go is all in the last of them. */
static int read_shape(const struct header *h, struct tern_tensor *t, const json_t *j, tern_error *err)
{
    size_t n = json_array_size(j), product = t->n_bytes;
    if (!json_is_array(j) || n > MOST_DIMS)
        return tern_cursor_fail(&h->c, TERN_NO_OFFSET, TERN_EFORMAT, err, "its shape is no list of at most %d numbers",
                                MOST_DIMS);
    t->n_dims = n > TERN_MAX_DIMS ? TERN_MAX_DIMS : n ? (int)n : 1;
    for (int i = 0; i < TERN_MAX_DIMS; i++)
        t->dims[i] = 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *d = json_array_get(j, i);
        json_int_t v = json_integer_value(d);
        if (!json_is_integer(d) || v <= 0)
            return tern_cursor_fail(&h->c, TERN_NO_OFFSET, TERN_EFORMAT, err,
                                    "number %zu of its shape is not a positive integer", i);
        if (!tern_mul(product, (size_t)v, &product) || product > PTRDIFF_MAX)
            return tern_cursor_fail(&h->c, TERN_NO_OFFSET, TERN_EFORMAT, err,
                                    "number %zu of its shape is %lld, which makes the tensor too large", i,
                                    (long long)v);
        t->dims[n - 1 - i < TERN_MAX_DIMS ? n - 1 - i : TERN_MAX_DIMS - 1] *= v;
    }
    t->n_bytes = product;
    return 0;
}

static int read_place(const struct header *h, struct tern_tensor *t, const json_t *j, tern_error *err)
{
    const struct tern_part *part = h->c.part;
    const json_t *lo = json_array_get(j, 0), *hi = json_array_get(j, 1);
    json_int_t begin = json_integer_value(lo), end = json_integer_value(hi);
    if (json_array_size(j) != 2 || !json_is_integer(lo) || !json_is_integer(hi) || begin < 0 || end < begin)
        return fail(h, TERN_EFORMAT, err, "its data_offsets are not two ascending numbers");
    if ((uint64_t)end > part->n - h->data)
        return tern_cursor_fail(&h->c, TERN_NO_OFFSET, TERN_EFORMAT, err,
                                "its data end at %lld, beyond the %zu bytes of data that the file has", (long long)end,
                                part->n - h->data);
    if ((uint64_t)(end - begin) != t->n_bytes)
        return tern_cursor_fail(&h->c, TERN_NO_OFFSET, TERN_EFORMAT, err,
                                "its data_offsets hold %lld bytes, its shape and dtype %zu", (long long)(end - begin),
                                t->n_bytes);
    t->file_offset = h->data + (size_t)begin;
    t->data = part->p + t->file_offset;
    return 0;
}

static int read_tensor(const struct header *h, struct tern_tensor *t, const json_t *j, struct tern_file_arena *a,
                       tern_error *err)
{
    int rc = 0;
    size_t n = strlen(h->c.name);
    char *name;
    if (n == 0 || n > TERN_GGUF_MAX_NAME)
        return tern_cursor_fail(&h->c, TERN_NO_OFFSET, TERN_ELIMIT, err, "the name has %zu bytes, not 1 to %d", n,
                                TERN_GGUF_MAX_NAME);
    if (!json_is_object(j) || json_object_size(j) != 3)
        return fail(h, TERN_EFORMAT, err, "it is not described by dtype, shape and data_offsets alone");
    TERN_TRY(tern_file_arena_alloc(a, &name, n + 1, 1, err));
    memcpy(name, h->c.name, n);
    t->name = t->source = name;
    TERN_TRY(read_dtype(h, t, json_object_get(j, "dtype"), err));
    TERN_TRY(read_shape(h, t, json_object_get(j, "shape"), err));
    TERN_TRY(read_place(h, t, json_object_get(j, "data_offsets"), err));
out:
    return rc;
}

/* The data of the tensors lie one behind the other from the first byte of the data to the last. */
static int check_cover(struct header *h, const struct tern_tensor *t, size_t n, tern_error *err)
{
    int rc = 0;
    const struct tern_tensor **order;
    size_t at = h->data;
    TERN_TRY(tern_tensors_sorted(&order, t, n, err));
    for (size_t i = 0; i < n && rc == 0; at += order[i++]->n_bytes) {
        h->c.name = order[i]->name;
        if (order[i]->file_offset != at)
            rc = tern_cursor_fail(&h->c, (size_t)order[i]->file_offset, TERN_EFORMAT, err, "its data %s begin",
                                  order[i]->file_offset < at ? "overlap another tensor's where they"
                                                             : "leave a hole before them and");
    }
    h->c.name = h->c.table = NULL;
    if (rc == 0 && at != h->c.part->n)
        rc = tern_cursor_fail(&h->c, at, TERN_EFORMAT, err, "%zu bytes belong to no tensor", h->c.part->n - at);
out:
    tern_free(order);
    return rc;
}

static int read_header(struct header *h, struct json_t **root, tern_error *err)
{
    int rc = 0;
    uint64_t n = 0;
    const uint8_t *p;
    TERN_TRY(tern_cursor_u64(&h->c, &n, "the length of the header", err));
    if (n > tern_cursor_left(&h->c))
        return tern_cursor_fail(&h->c, 0, TERN_EFORMAT, err,
                                "this is not a safetensors file: a header of %llu bytes, but only %zu are left",
                                (unsigned long long)n, tern_cursor_left(&h->c));
    TERN_TRY(tern_cursor_take(&h->c, (size_t)n, &p, "the header", err));
    TERN_TRY(tern_json_object(root, h->c.part, p, (size_t)n, err));
    h->data = h->c.pos;
out:
    return rc;
}

int tern_safetensors_read(const struct tern_part *part, struct tern_tensor_list *list, struct tern_file_arena *a,
                          tern_error *err)
{
    int rc = 0;
    struct json_t *root = NULL;
    struct header h = {.c = {.part = part}};
    size_t first = list->n;
    TERN_TRY(read_header(&h, &root, err));
    h.c.table = "tensor";
    TERN_TRY(tern_grow(&list->v, &list->cap, first + json_object_size(root), sizeof *list->v, err));
    for (void *it = json_object_iter(root); it; it = json_object_iter_next(root, it)) {
        h.c.name = json_object_iter_key(it);
        if (strcmp(h.c.name, "__metadata__") == 0)
            continue;
        list->v[list->n] = (struct tern_tensor){0};
        TERN_TRY(read_tensor(&h, &list->v[list->n], json_object_iter_value(it), a, err));
        list->n++;
    }
    TERN_TRY(check_cover(&h, list->v + first, list->n - first, err));
out:
    json_decref(root);
    return rc;
}

/* The tensor table of one GGUF part, checked entry by entry and then as a whole. */
#include "file/gguf/gguf.h"

#include <string.h>

#include "base/mem.h"

static int read_dims(struct tern_cursor *c, struct tern_tensor *t, size_t *n_elems, tern_error *err)
{
    int rc = 0;
    size_t at = c->pos;
    uint32_t n_dims;
    size_t product = 1;
    TERN_TRY(tern_cursor_u32(c, &n_dims, "the number of dimensions", err));
    if (n_dims < 1 || n_dims > TERN_MAX_DIMS)
        return tern_cursor_fail(c, at, TERN_EFORMAT, err, "the number of dimensions is %u, not 1 to %d", n_dims,
                                TERN_MAX_DIMS);
    t->n_dims = (int)n_dims;
    for (uint32_t i = 0; i < TERN_MAX_DIMS; i++)
        t->dims[i] = 1;
    for (uint32_t i = 0; i < n_dims; i++) {
        uint64_t d;
        at = c->pos;
        TERN_TRY(tern_cursor_u64(c, &d, "a dimension", err));
        if (d == 0)
            return tern_cursor_fail(c, at, TERN_EFORMAT, err, "dimension %u is 0", i);
        if (d > INT64_MAX || !tern_mul(product, (size_t)d, &product) || product > INT64_MAX)
            return tern_cursor_fail(c, at, TERN_EFORMAT, err, "dimension %u is %llu, which makes the tensor too large",
                                    i, (unsigned long long)d);
        t->dims[i] = (int64_t)d;
    }
    *n_elems = product;
out:
    return rc;
}

static int read_type(struct tern_cursor *c, struct tern_tensor *t, size_t n_elems, tern_error *err)
{
    size_t at = c->pos;
    uint32_t id;
    int rc = tern_cursor_u32(c, &id, "the type", err);
    if (rc < 0)
        return rc;
    if (id > INT32_MAX)
        return tern_cursor_fail(c, at, TERN_EUNSUPPORTED, err, "type %u is not supported", id);
    int64_t elems = tern_type_elems((int)id);
    if (elems == 0) {
        const char *name = tern_type_name((int)id);
        return tern_cursor_fail(c, at, TERN_EUNSUPPORTED, err, "%s%s is not supported",
                                strncmp(name, "type ", 5) == 0 ? "" : "type ", name);
    }
    if (t->dims[0] % elems)
        return tern_cursor_fail(c, at, TERN_EFORMAT, err,
                                "the row length %lld is not a multiple of the %lld of a %s block",
                                (long long)t->dims[0], (long long)elems, tern_type_name((int)id));
    if (!tern_mul(n_elems / (size_t)elems, (size_t)tern_type_bytes((int)id), &t->n_bytes))
        return tern_cursor_fail(c, at, TERN_EFORMAT, err, "%zu elements of %s are too large", n_elems,
                                tern_type_name((int)id));
    t->type = (int)id;
    return 0;
}

/* The offset is relative to the data section, whose place is known only behind the last entry: until then file_offset
 * holds the relative offset. */
static int read_info(struct tern_cursor *c, struct tern_tensor *t, struct tern_file_arena *a, tern_error *err)
{
    int rc = 0;
    size_t n_elems = 0;
    TERN_TRY(tern_cursor_name(c, TERN_GGUF_MAX_NAME, &t->name, a, err));
    c->name = t->source = t->name;
    TERN_TRY(read_dims(c, t, &n_elems, err));
    TERN_TRY(read_type(c, t, n_elems, err));
    size_t at = c->pos;
    TERN_TRY(tern_cursor_u64(c, &t->file_offset, "the data offset", err));
    if (t->file_offset % c->part->alignment)
        return tern_cursor_fail(c, at, TERN_EFORMAT, err, "the data offset %llu is not a multiple of the alignment %zu",
                                (unsigned long long)t->file_offset, c->part->alignment);
out:
    return rc;
}

static int place_data(struct tern_cursor *c, struct tern_tensor *t, size_t start, tern_error *err)
{
    const struct tern_part *part = c->part;
    size_t room = part->n > start ? part->n - start : 0;
    c->name = t->name;
    if (t->file_offset > room || t->n_bytes > room - (size_t)t->file_offset)
        return tern_cursor_fail(c, part->n, TERN_EFORMAT, err,
                                "%zu bytes of data at offset %llu of the data section lie beyond the end of the file",
                                t->n_bytes, (unsigned long long)t->file_offset);
    t->file_offset += start;
    t->data = part->p + t->file_offset;
    return 0;
}

static int check_overlap(struct tern_cursor *c, const struct tern_tensor *t, size_t n, tern_error *err)
{
    int rc = 0;
    const struct tern_tensor **order;
    TERN_TRY(tern_tensors_sorted(&order, t, n, err));
    for (size_t i = 1; i < n; i++) {
        const struct tern_tensor *lo = order[i - 1], *hi = order[i];
        if (hi->file_offset - lo->file_offset < lo->n_bytes) {
            c->name = hi->name;
            rc = tern_cursor_fail(c, (size_t)hi->file_offset, TERN_EFORMAT, err,
                                  "its data overlaps that of tensor \"%s\"", tern_name_show(lo->name).text);
            goto out;
        }
    }
out:
    tern_free(order);
    return rc;
}

int tern_gguf_read_tensors(const struct tern_part *part, struct tern_tensor *t, struct tern_file_arena *a,
                           tern_error *err)
{
    int rc = 0;
    struct tern_cursor c = {.part = part, .pos = part->infos_pos, .table = "tensor"};
    for (size_t i = 0; i < part->n_tensors; i++) {
        c.index = i;
        c.name = NULL;
        TERN_TRY(read_info(&c, &t[i], a, err));
    }
    size_t start = tern_round_up(c.pos, part->alignment); /* both are far below SIZE_MAX */
    for (size_t i = 0; i < part->n_tensors; i++)
        TERN_TRY(place_data(&c, &t[i], start, err));
    TERN_TRY(check_overlap(&c, t, part->n_tensors, err));
out:
    return rc;
}

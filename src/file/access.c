/* Reading an open file: sizes, tables by number, and typed metadata. */
#include "file/file_impl.h"

#include <math.h>

enum tern_file_kind tern_file_kind(const struct tern_file *f)
{
    return f->kind;
}

const char *tern_file_path(const struct tern_file *f)
{
    return f->path;
}

const struct tern_part *tern_file_part_of(const struct tern_file *f, const struct tern_tensor *t)
{
    uintptr_t at = (uintptr_t)t->data;
    for (size_t i = 0; i < f->n_parts; i++)
        if (at >= (uintptr_t)f->parts[i].p && at - (uintptr_t)f->parts[i].p < f->parts[i].n)
            return &f->parts[i];
    return NULL;
}

const char *tern_file_tensor_path(const struct tern_file *f, const struct tern_tensor *t)
{
    const struct tern_part *part = tern_file_part_of(f, t);
    return part ? part->path : f->path;
}

size_t tern_file_bytes(const struct tern_file *f)
{
    size_t n = 0;
    for (size_t i = 0; i < f->n_parts; i++)
        n += f->parts[i].n; /* all of them are mapped at once, so the sum fits */
    return n;
}

size_t tern_file_n_tensors(const struct tern_file *f)
{
    return f->n_tensors;
}

const struct tern_tensor *tern_file_tensor_at(const struct tern_file *f, size_t i)
{
    TERN_ASSERT(i < f->n_tensors);
    return &f->tensors[i];
}

size_t tern_file_n_meta(const struct tern_file *f)
{
    return f->parts[0].meta.n;
}

const struct tern_meta *tern_file_meta_at(const struct tern_file *f, size_t i)
{
    TERN_ASSERT(i < f->parts[0].meta.n);
    return &f->parts[0].meta.v[i];
}

const struct tern_meta *tern_file_meta(const struct tern_file *f, const char *key)
{
    return tern_meta_table_find(&f->parts[0].meta, key);
}

static const char *kind_name(enum tern_meta_type type)
{
    static const char *const names[] = {"an integer", "a number", "a bool", "a string", "an array"};
    return names[type];
}

static int fail_value(const struct tern_part *part, const struct tern_meta *m, const char *text, tern_error *err)
{
    struct tern_cursor c = {.part = part, .table = "metadata key", .name = m->source};
    return tern_cursor_fail(&c, (size_t)m->file_offset, TERN_EFORMAT, err, "%s", text);
}

static int fail_type(const struct tern_part *part, const struct tern_meta *m, enum tern_meta_type want, tern_error *err)
{
    struct tern_cursor c = {.part = part, .table = "metadata key", .name = m->source};
    return tern_cursor_fail(&c, (size_t)m->file_offset, TERN_EFORMAT, err, "%s where %s is wanted", kind_name(m->type),
                            kind_name(want));
}

static int fail_odd(const struct tern_part *part, const struct tern_meta *m, tern_error *err)
{
    struct tern_cursor c = {.part = part, .table = "metadata key", .name = m->source};
    return m->type == TERN_META_BOOL ? tern_cursor_fail(&c, (size_t)m->file_offset, TERN_EFORMAT, err,
                                                        "the bool value is %lld, neither 0 nor 1", (long long)m->i)
                                     : tern_cursor_fail(&c, (size_t)m->file_offset, TERN_ELIMIT, err,
                                                        "the value %llu is too large", (unsigned long long)m->i);
}

int tern_part_int(const struct tern_part *part, const char *key, const int64_t *def, int64_t min, int64_t max,
                  int64_t *out, tern_error *err)
{
    const struct tern_meta *m = tern_meta_table_find(&part->meta, key);
    if (!m) {
        if (!def)
            return tern_err_set(err, TERN_EFORMAT, "%s: the metadata key \"%s\" is missing", tern_path_show(part->path),
                                key);
        *out = *def;
        return 0;
    }
    if (m->type != TERN_META_INT)
        return fail_type(part, m, TERN_META_INT, err);
    if (m->odd)
        return fail_odd(part, m, err);
    if (m->i < min || m->i > max) {
        struct tern_cursor c = {.part = part, .table = "metadata key", .name = m->source};
        return tern_cursor_fail(&c, (size_t)m->file_offset, TERN_EFORMAT, err, "%lld is outside %lld to %lld",
                                (long long)m->i, (long long)min, (long long)max);
    }
    *out = m->i;
    return 0;
}

int tern_file_get_int(const struct tern_file *f, const char *key, int64_t def, int64_t min, int64_t max, int64_t *out,
                      tern_error *err)
{
    return tern_part_int(&f->parts[0], key, &def, min, max, out, err);
}

int tern_file_need_int(const struct tern_file *f, const char *key, int64_t min, int64_t max, int64_t *out,
                       tern_error *err)
{
    return tern_part_int(&f->parts[0], key, NULL, min, max, out, err);
}

int tern_file_get_float(const struct tern_file *f, const char *key, double def, double *out, tern_error *err)
{
    const struct tern_meta *m = tern_file_meta(f, key);
    if (!m) {
        *out = def;
        return 0;
    }
    if (m->type != TERN_META_FLOAT && m->type != TERN_META_INT)
        return fail_type(&f->parts[0], m, TERN_META_FLOAT, err);
    if (m->odd)
        return fail_odd(&f->parts[0], m, err);
    if (!isfinite(m->f))
        return fail_value(&f->parts[0], m, "the value is not a finite number", err);
    *out = m->f;
    return 0;
}

int tern_file_get_bool(const struct tern_file *f, const char *key, bool def, bool *out, tern_error *err)
{
    const struct tern_meta *m = tern_file_meta(f, key);
    if (!m) {
        *out = def;
        return 0;
    }
    if (m->type != TERN_META_BOOL)
        return fail_type(&f->parts[0], m, TERN_META_BOOL, err);
    if (m->odd)
        return fail_odd(&f->parts[0], m, err);
    *out = m->i != 0;
    return 0;
}

int tern_file_get_str(const struct tern_file *f, const char *key, struct tern_str *out, tern_error *err)
{
    const struct tern_meta *m = tern_file_meta(f, key);
    *out = (struct tern_str){0};
    if (!m)
        return 0;
    if (m->type != TERN_META_STRING)
        return fail_type(&f->parts[0], m, TERN_META_STRING, err);
    *out = m->s;
    return 0;
}

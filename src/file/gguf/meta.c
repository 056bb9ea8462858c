/* Header and metadata of one GGUF part: magic, version, two counts, then key, type and value of every entry. */
#include "file/gguf/gguf.h"

#include <string.h>

#include "base/mem.h"
#include "file/gguf/types.h"

static const struct {
    uint8_t bytes; /* of a scalar; of a string its length field, the least it can take */
    uint8_t kind;  /* enum tern_meta_type */
} values[GGUF_N_VALUES] = {
    [GGUF_U8] = {1, TERN_META_INT},       [GGUF_I8] = {1, TERN_META_INT},    [GGUF_U16] = {2, TERN_META_INT},
    [GGUF_I16] = {2, TERN_META_INT},      [GGUF_U32] = {4, TERN_META_INT},   [GGUF_I32] = {4, TERN_META_INT},
    [GGUF_F32] = {4, TERN_META_FLOAT},    [GGUF_BOOL] = {1, TERN_META_BOOL}, [GGUF_STRING] = {8, TERN_META_STRING},
    [GGUF_ARRAY] = {12, TERN_META_ARRAY}, [GGUF_U64] = {8, TERN_META_INT},   [GGUF_I64] = {8, TERN_META_INT},
    [GGUF_F64] = {8, TERN_META_FLOAT},
};

/* Shortest possible entries: counts are checked against these before anything is allocated. */
enum { MIN_META_BYTES = 8 + 1 + 4 + 1, MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8 };

const char *tern_meta_name(const void *table, size_t i)
{
    return ((const struct tern_meta *)table)[i].key;
}

const struct tern_meta *tern_meta_table_find(const struct tern_meta_table *t, const char *key)
{
    size_t i = tern_file_index_find(&t->index, key, tern_meta_name, t->v);
    return i == SIZE_MAX ? NULL : &t->v[i];
}

/* Sets *odd where the value is one that nobody can use; files are full of keys that nobody asks for. */
static int read_int(struct tern_cursor *c, uint32_t type, int64_t *out, bool *odd, tern_error *err)
{
    size_t n = values[type].bytes;
    const uint8_t *p = NULL;
    uint64_t v = 0;
    int rc = tern_cursor_take(c, n, &p, "a value", err);
    if (rc < 0)
        return rc;
    memcpy(&v, p, n);
    switch (type) {
    case GGUF_I8:
        *out = (int8_t)v;
        return 0;
    case GGUF_I16:
        *out = (int16_t)v;
        return 0;
    case GGUF_I32:
        *out = (int32_t)v;
        return 0;
    case GGUF_U64:
        *odd = *odd || v > INT64_MAX;
        break;
    case GGUF_BOOL:
        *odd = *odd || v > 1;
        break;
    default:
        break;
    }
    *out = (int64_t)v;
    return 0;
}

static int read_float(struct tern_cursor *c, uint32_t type, double *out, tern_error *err)
{
    size_t n = values[type].bytes;
    const uint8_t *p = NULL;
    float narrow;
    int rc = tern_cursor_take(c, n, &p, "a value", err);
    if (rc < 0)
        return rc;
    if (n == sizeof *out) {
        memcpy(out, p, sizeof *out);
    } else {
        memcpy(&narrow, p, sizeof narrow);
        *out = (double)narrow;
    }
    return 0;
}

static int read_type(struct tern_cursor *c, uint32_t *type, tern_error *err)
{
    size_t at = c->pos;
    int rc = tern_cursor_u32(c, type, "the type", err);
    if (rc == 0 && *type >= GGUF_N_VALUES)
        rc = tern_cursor_fail(c, at, TERN_EFORMAT, err, "there is no value type %u", *type);
    return rc;
}

static int read_array(struct tern_cursor *c, struct tern_meta *m, struct tern_file_arena *a, tern_error *err)
{
    int rc = 0;
    size_t at = c->pos;
    uint32_t type;
    uint64_t n = 0;
    TERN_TRY(read_type(c, &type, err));
    if (type == GGUF_ARRAY)
        return tern_cursor_fail(c, at, TERN_EUNSUPPORTED, err, "arrays of arrays are not supported");
    at = c->pos;
    TERN_TRY(tern_cursor_u64(c, &n, "the number of array elements", err));
    if (n > tern_cursor_left(c) / values[type].bytes)
        return tern_cursor_fail(c, at, TERN_EFORMAT, err, "the array claims %llu elements, but only %zu bytes are left",
                                (unsigned long long)n, tern_cursor_left(c));
    m->n = (size_t)n;
    m->stored = (uint8_t)(type + 1);
    m->elem = (enum tern_meta_type)values[type].kind;
    if (m->elem == TERN_META_STRING) {
        struct tern_str *s;
        TERN_TRY(tern_file_arena_alloc(a, &s, m->n, sizeof *s, err));
        m->arr = s;
        for (size_t i = 0; i < m->n; i++)
            TERN_TRY(tern_cursor_str(c, SIZE_MAX, &s[i], "a string of the array", err));
    } else if (m->elem == TERN_META_FLOAT) {
        double *f;
        TERN_TRY(tern_file_arena_alloc(a, &f, m->n, sizeof *f, err));
        m->arr = f;
        for (size_t i = 0; i < m->n; i++)
            TERN_TRY(read_float(c, type, &f[i], err));
    } else {
        int64_t *v;
        TERN_TRY(tern_file_arena_alloc(a, &v, m->n, sizeof *v, err));
        m->arr = v;
        for (size_t i = 0; i < m->n; i++)
            TERN_TRY(read_int(c, type, &v[i], &m->odd, err));
    }
out:
    return rc;
}

static int read_entry(struct tern_cursor *c, struct tern_meta *m, struct tern_file_arena *a, tern_error *err)
{
    int rc = 0;
    uint32_t type;
    TERN_TRY(tern_cursor_name(c, TERN_GGUF_MAX_KEY, &m->key, a, err));
    c->name = m->source = m->key;
    TERN_TRY(read_type(c, &type, err));
    m->type = (enum tern_meta_type)values[type].kind;
    m->file_offset = c->pos;
    m->stored = (uint8_t)(type + 1);
    switch (m->type) {
    case TERN_META_INT:
        TERN_TRY(read_int(c, type, &m->i, &m->odd, err));
        m->f = (double)m->i;
        break;
    case TERN_META_BOOL:
        TERN_TRY(read_int(c, type, &m->i, &m->odd, err));
        break;
    case TERN_META_FLOAT:
        TERN_TRY(read_float(c, type, &m->f, err));
        break;
    case TERN_META_STRING:
        TERN_TRY(tern_cursor_str(c, SIZE_MAX, &m->s, "the string", err));
        break;
    case TERN_META_ARRAY:
        TERN_TRY(read_array(c, m, a, err));
        break;
    }
out:
    return rc;
}

static int check_version(const struct tern_cursor *c, uint32_t version, tern_error *err)
{
    if (version == 2 || version == 3)
        return 0;
    if (version && (version & 0xFFFF) == 0)
        return tern_cursor_fail(c, 4, TERN_EUNSUPPORTED, err,
                                "the file is big-endian (its version reads as %u), which is not supported", version);
    return tern_cursor_fail(c, 4, TERN_EUNSUPPORTED, err, "GGUF version %u is not supported (2 and 3 are)", version);
}

/* One of the header's two counts, each entry of which takes at least min_bytes of what follows. */
static int read_count(struct tern_cursor *c, size_t min_bytes, size_t *count, const char *what, tern_error *err)
{
    size_t at = c->pos;
    uint64_t n = 0;
    int rc = tern_cursor_u64(c, &n, what, err);
    if (rc < 0)
        return rc;
    if (n > tern_cursor_left(c) / min_bytes)
        return tern_cursor_fail(c, at, TERN_EFORMAT, err, "%s is %llu, but only %zu bytes follow", what,
                                (unsigned long long)n, tern_cursor_left(c));
    *count = (size_t)n;
    return 0;
}

static int read_header(struct tern_cursor *c, size_t *n_tensors, size_t *n_meta, tern_error *err)
{
    int rc = 0;
    const uint8_t *magic;
    uint32_t version;
    TERN_TRY(tern_cursor_take(c, 4, &magic, "the magic number", err));
    if (memcmp(magic, "GGUF", 4) != 0)
        return tern_cursor_fail(c, 0, TERN_EFORMAT, err, "this is not a GGUF file: it starts with %02x %02x %02x %02x",
                                magic[0], magic[1], magic[2], magic[3]);
    TERN_TRY(tern_cursor_u32(c, &version, "the version", err));
    TERN_TRY(check_version(c, version, err));
    TERN_TRY(read_count(c, MIN_TENSOR_BYTES, n_tensors, "the number of tensors", err));
    TERN_TRY(read_count(c, MIN_META_BYTES, n_meta, "the number of metadata entries", err));
out:
    return rc;
}

static int read_alignment(struct tern_part *part, tern_error *err)
{
    static const int64_t usual = 32;
    int64_t v;
    int rc = tern_part_int(part, "general.alignment", &usual, 1, TERN_GGUF_MAX_ALIGNMENT, &v, err);
    if (rc < 0)
        return rc;
    if (v & (v - 1)) {
        struct tern_cursor c = {.part = part, .table = "metadata key", .name = "general.alignment"};
        return tern_cursor_fail(&c, (size_t)tern_meta_table_find(&part->meta, c.name)->file_offset, TERN_EFORMAT, err,
                                "%lld is not a power of two", (long long)v);
    }
    part->alignment = (size_t)v;
    return 0;
}

int tern_gguf_read_meta(struct tern_part *part, struct tern_file_arena *a, tern_error *err)
{
    int rc = 0;
    struct tern_cursor c = {.part = part};
    struct tern_meta_table *t = &part->meta;
    size_t n;
    TERN_TRY(read_header(&c, &part->n_tensors, &n, err));
    TERN_TRY(tern_file_arena_alloc(a, &t->v, n, sizeof *t->v, err));
    TERN_TRY(tern_file_index_init(&t->index, n, a, err));
    c.table = "metadata key";
    for (size_t i = 0; i < n; i++) {
        size_t at = c.pos;
        c.index = i;
        c.name = NULL;
        TERN_TRY(read_entry(&c, &t->v[i], a, err));
        if (!tern_file_index_add(&t->index, i, tern_meta_name, t->v))
            return tern_cursor_fail(&c, at, TERN_EFORMAT, err, "the key appears twice, the second time");
        t->n = i + 1;
    }
    part->infos_pos = c.pos;
    TERN_TRY(read_alignment(part, err));
out:
    return rc;
}

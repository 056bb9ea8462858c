/* Writes what meta.c and tensors.c read. */
#include "file/gguf_write.h"

#include <string.h>

#include "base/mem.h"
#include "file/file_impl.h"
#include "file/gguf/types.h"

enum { VERSION = 3, LONGEST_NAME = 63 }; /* llama.cpp keeps names in 64 bytes */

void tern_gguf_clear(struct tern_gguf *g)
{
    tern_buf_clear(&g->meta);
    tern_buf_clear(&g->infos);
    *g = (struct tern_gguf){0};
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

static int add_u32(struct tern_buf *b, uint32_t v, tern_error *err)
{
    return tern_buf_add(b, &v, sizeof v, err);
}

static int add_u64(struct tern_buf *b, uint64_t v, tern_error *err)
{
    return tern_buf_add(b, &v, sizeof v, err);
}

static int add_str(struct tern_buf *b, const char *p, size_t n, tern_error *err)
{
    int rc = add_u64(b, n, err);
    return rc < 0 || n == 0 ? rc : tern_buf_add(b, p, n, err);
}

static int add_int(struct tern_buf *b, enum gguf_value type, int64_t v, tern_error *err)
{
    static const uint8_t bytes[GGUF_N_VALUES] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4,
        [GGUF_I32] = 4, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_BOOL] = 1};
    TERN_ASSERT(bytes[type]);
    return tern_buf_add(b, &v, bytes[type], err); /* the lowest bytes come first */
}

static int add_float(struct tern_buf *b, enum gguf_value type, double v, tern_error *err)
{
    float narrow = (float)v;
    return type == GGUF_F64 ? tern_buf_add(b, &v, sizeof v, err) : tern_buf_add(b, &narrow, sizeof narrow, err);
}

static int begin(struct tern_gguf *g, const char *key, enum gguf_value type, tern_error *err)
{
    int rc = add_str(&g->meta, key, strlen(key), err);
    g->n_meta++;
    return rc < 0 ? rc : add_u32(&g->meta, type, err);
}

static int begin_array(struct tern_gguf *g, const char *key, enum gguf_value type, size_t n, tern_error *err)
{
    int rc = 0;
    TERN_TRY(begin(g, key, GGUF_ARRAY, err));
    TERN_TRY(add_u32(&g->meta, type, err));
    TERN_TRY(add_u64(&g->meta, n, err));
out:
    return rc;
}

int tern_gguf_put_u32(struct tern_gguf *g, const char *key, uint32_t v, tern_error *err)
{
    int rc = begin(g, key, GGUF_U32, err);
    return rc < 0 ? rc : add_u32(&g->meta, v, err);
}

int tern_gguf_put_i32(struct tern_gguf *g, const char *key, int32_t v, tern_error *err)
{
    int rc = begin(g, key, GGUF_I32, err);
    return rc < 0 ? rc : add_u32(&g->meta, (uint32_t)v, err);
}

int tern_gguf_put_f32(struct tern_gguf *g, const char *key, float v, tern_error *err)
{
    int rc = begin(g, key, GGUF_F32, err);
    return rc < 0 ? rc : tern_buf_add(&g->meta, &v, sizeof v, err);
}

int tern_gguf_put_bool(struct tern_gguf *g, const char *key, bool v, tern_error *err)
{
    int rc = begin(g, key, GGUF_BOOL, err);
    return rc < 0 ? rc : add_int(&g->meta, GGUF_BOOL, v, err);
}

int tern_gguf_put_str(struct tern_gguf *g, const char *key, const char *p, size_t n, tern_error *err)
{
    int rc = begin(g, key, GGUF_STRING, err);
    return rc < 0 ? rc : add_str(&g->meta, p, n, err);
}

int tern_gguf_put_i32s(struct tern_gguf *g, const char *key, const int32_t *v, size_t n, tern_error *err)
{
    int rc = begin_array(g, key, GGUF_I32, n, err);
    return rc < 0 || n == 0 ? rc : tern_buf_add(&g->meta, v, n * sizeof *v, err);
}

int tern_gguf_put_f32s(struct tern_gguf *g, const char *key, const float *v, size_t n, tern_error *err)
{
    int rc = begin_array(g, key, GGUF_F32, n, err);
    return rc < 0 || n == 0 ? rc : tern_buf_add(&g->meta, v, n * sizeof *v, err);
}

int tern_gguf_put_strs(struct tern_gguf *g, const char *key, const struct tern_str *v, size_t n, tern_error *err)
{
    int rc = begin_array(g, key, GGUF_STRING, n, err);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = add_str(&g->meta, v[i].p, v[i].n, err);
    return rc;
}

/* The type that an entry's value, or each element of it, gets. */
static enum gguf_value type_of(const struct tern_meta *m, bool f32)
{
    const bool array = m->type == TERN_META_ARRAY;
    if (m->stored)
        return (enum gguf_value)(m->stored - 1);
    switch (array ? m->elem : m->type) {
    case TERN_META_INT:
        if (f32)
            return GGUF_F32;
        for (size_t i = 0; array && i < m->n; i++)
            if (((const int64_t *)m->arr)[i] != (int32_t)((const int64_t *)m->arr)[i])
                return GGUF_I64;
        return array ? GGUF_I32 : m->i >= 0 && m->i <= UINT32_MAX ? GGUF_U32 : GGUF_I64;
    case TERN_META_BOOL:
        return GGUF_BOOL;
    case TERN_META_STRING:
        return GGUF_STRING;
    default:
        return GGUF_F32;
    }
}

static int put_array(struct tern_gguf *g, const struct tern_meta *m, enum gguf_value type, tern_error *err)
{
    if (m->elem == TERN_META_STRING)
        return tern_gguf_put_strs(g, m->key, m->arr, m->n, err);
    int rc = begin_array(g, m->key, type, m->n, err);
    for (size_t i = 0; i < m->n && rc == 0; i++)
        if (m->elem == TERN_META_FLOAT)
            rc = add_float(&g->meta, type, ((const double *)m->arr)[i], err);
        else if (type == GGUF_F32)
            rc = add_float(&g->meta, type, (double)((const int64_t *)m->arr)[i], err);
        else
            rc = add_int(&g->meta, type, ((const int64_t *)m->arr)[i], err);
    return rc;
}

int tern_gguf_put_meta(struct tern_gguf *g, const struct tern_meta *m, bool f32, tern_error *err)
{
    const enum gguf_value type = type_of(m, f32);
    if (m->type == TERN_META_ARRAY)
        return put_array(g, m, type, err);
    if (m->type == TERN_META_STRING)
        return tern_gguf_put_str(g, m->key, m->s.p, m->s.n, err);
    int rc = begin(g, m->key, type, err);
    if (rc < 0)
        return rc;
    if (m->type == TERN_META_FLOAT || type == GGUF_F32)
        return add_float(&g->meta, type, m->type == TERN_META_FLOAT ? m->f : (double)m->i, err);
    return add_int(&g->meta, type, m->i, err);
}

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

int tern_gguf_tensor(struct tern_gguf *g, const char *name, int type, int n_dims, const int64_t *dims, uint64_t *offset,
                     uint64_t *n_bytes, tern_error *err)
{
    int rc = 0;
    size_t n = strlen(name), bytes, padded;
    const int elems = tern_type_elems(type);
    TERN_ASSERT(elems > 0 && n_dims >= 1 && n_dims <= TERN_MAX_DIMS);
    if (n > LONGEST_NAME)
        TERN_FAIL(err, TERN_ELIMIT, "tensor \"%s\": the name has %zu bytes; readers of GGUF take %d",
                  tern_name_show(name).text, n, LONGEST_NAME);
    if (dims[0] % elems)
        TERN_FAIL(err, TERN_EINVAL, "tensor \"%s\": rows of %lld are not whole blocks of %s", tern_name_show(name).text,
                  (long long)dims[0], tern_type_name(type));
    bytes = (size_t)tern_type_bytes(type);
    bool fits = tern_mul(bytes, (size_t)(dims[0] / elems), &bytes);
    for (int i = 1; i < n_dims; i++)
        fits = fits && tern_mul(bytes, (size_t)dims[i], &bytes);
    if (!fits || !tern_add(bytes, TERN_GGUF_ALIGN + g->data_bytes, &padded))
        TERN_FAIL(err, TERN_ELIMIT, "tensor \"%s\" is too large", tern_name_show(name).text);
    *offset = g->data_bytes;
    *n_bytes = bytes;
    g->data_bytes += tern_round_up(bytes, TERN_GGUF_ALIGN);
    g->n_tensors++;
    TERN_TRY(add_str(&g->infos, name, n, err));
    TERN_TRY(add_u32(&g->infos, (uint32_t)n_dims, err));
    for (int i = 0; i < n_dims; i++)
        TERN_TRY(add_u64(&g->infos, (uint64_t)dims[i], err));
    TERN_TRY(add_u32(&g->infos, (uint32_t)type, err));
    TERN_TRY(add_u64(&g->infos, *offset, err));
out:
    return rc;
}

int tern_gguf_head(const struct tern_gguf *g, struct tern_buf *out, tern_error *err)
{
    int rc = 0;
    const size_t start = out->len;
    TERN_TRY(tern_buf_add(out, "GGUF", 4, err));
    TERN_TRY(add_u32(out, VERSION, err));
    TERN_TRY(add_u64(out, g->n_tensors, err));
    TERN_TRY(add_u64(out, g->n_meta, err));
    if (g->meta.len)
        TERN_TRY(tern_buf_add(out, g->meta.p, g->meta.len, err));
    if (g->infos.len)
        TERN_TRY(tern_buf_add(out, g->infos.p, g->infos.len, err));
    while ((out->len - start) % TERN_GGUF_ALIGN)
        TERN_TRY(tern_buf_addc(out, 0, err));
out:
    return rc;
}

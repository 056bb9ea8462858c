/* support/gguf_writer.h - makes small GGUF files in memory, for tests: sound ones and, field by field, broken ones.
 *
 * Mental model: three growing byte strings (metadata entries, tensor entries, tensor data) that gw_finish puts behind a
 * header.  Counts, version and magic are plain fields, so a test writes a lie by assigning it.  Header-only; running
 * out of memory ends the test program.
 *
 *     struct gguf_writer w;
 *     gw_init(&w);
 *     gw_str(&w, "general.architecture", "llama");
 *     gw_tensor(&w, "x", TERN_F32, 2, (uint64_t[]){8, 3}, floats, sizeof floats);
 *     size_t n;
 *     const uint8_t *bytes = gw_finish(&w, &n);   // valid until gw_clear or the next gw_finish
 *     gw_clear(&w); */
#ifndef TERN_TEST_GGUF_WRITER_H
#define TERN_TEST_GGUF_WRITER_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct gw_bytes {
    uint8_t *p;
    size_t n, cap;
};

struct gguf_writer {
    char magic[4];
    uint32_t version;
    uint64_t n_tensors, n_meta; /* counted by the functions below */
    size_t alignment;           /* of tensor data; set it by gw_alignment, which writes the key too */
    struct gw_bytes meta, infos, data, file;
};

enum gw_type {
    GW_U8,
    GW_I8,
    GW_U16,
    GW_I16,
    GW_U32,
    GW_I32,
    GW_F32,
    GW_BOOL,
    GW_STRING,
    GW_ARRAY,
    GW_U64,
    GW_I64,
    GW_F64
};

/* Bytes of one scalar; 0 for strings and arrays. */
static inline size_t gw_size(enum gw_type type)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[type];
}

static inline void gw_put(struct gw_bytes *b, const void *p, size_t n)
{
    if (n > b->cap - b->n) {
        b->cap = (b->n + n) * 2 + 64;
        b->p = (uint8_t *)realloc(b->p, b->cap);
        if (!b->p)
            abort();
    }
    if (n)
        memcpy(b->p + b->n, p, n);
    b->n += n;
}

static inline void gw_put_u32(struct gw_bytes *b, uint32_t v)
{
    gw_put(b, &v, sizeof v);
}

static inline void gw_put_u64(struct gw_bytes *b, uint64_t v)
{
    gw_put(b, &v, sizeof v);
}

static inline void gw_put_str(struct gw_bytes *b, const void *p, size_t n)
{
    gw_put_u64(b, n);
    gw_put(b, p, n);
}

static inline void gw_put_zeros(struct gw_bytes *b, size_t n)
{
    static const uint8_t zeros[256];
    for (; n > sizeof zeros; n -= sizeof zeros)
        gw_put(b, zeros, sizeof zeros);
    gw_put(b, zeros, n);
}

static inline void gw_init(struct gguf_writer *w)
{
    memset(w, 0, sizeof *w);
    memcpy(w->magic, "GGUF", 4);
    w->version = 3;
    w->alignment = 32;
}

static inline void gw_clear(struct gguf_writer *w)
{
    free(w->meta.p);
    free(w->infos.p);
    free(w->data.p);
    free(w->file.p);
    memset(w, 0, sizeof *w);
}

/* Key and type of an entry; the value is up to the caller (w->meta). */
static inline void gw_key(struct gguf_writer *w, const char *key, uint32_t type)
{
    gw_put_str(&w->meta, key, strlen(key));
    gw_put_u32(&w->meta, type);
    w->n_meta++;
}

/* `value` points to a scalar of exactly that type. */
static inline void gw_scalar(struct gguf_writer *w, const char *key, enum gw_type type, const void *value)
{
    gw_key(w, key, type);
    gw_put(&w->meta, value, gw_size(type));
}

static inline void gw_u32(struct gguf_writer *w, const char *key, uint32_t v)
{
    gw_scalar(w, key, GW_U32, &v);
}

static inline void gw_i32(struct gguf_writer *w, const char *key, int32_t v)
{
    gw_scalar(w, key, GW_I32, &v);
}

static inline void gw_u64(struct gguf_writer *w, const char *key, uint64_t v)
{
    gw_scalar(w, key, GW_U64, &v);
}

static inline void gw_f32(struct gguf_writer *w, const char *key, float v)
{
    gw_scalar(w, key, GW_F32, &v);
}

static inline void gw_bool(struct gguf_writer *w, const char *key, int v)
{
    uint8_t b = v != 0;
    gw_scalar(w, key, GW_BOOL, &b);
}

static inline void gw_str_n(struct gguf_writer *w, const char *key, const void *p, size_t n)
{
    gw_key(w, key, GW_STRING);
    gw_put_str(&w->meta, p, n);
}

static inline void gw_str(struct gguf_writer *w, const char *key, const char *s)
{
    gw_str_n(w, key, s, strlen(s));
}

/* n scalars of that type, as they lie in a C array of it (bool: bytes). */
static inline void gw_array(struct gguf_writer *w, const char *key, enum gw_type type, const void *values, size_t n)
{
    gw_key(w, key, GW_ARRAY);
    gw_put_u32(&w->meta, type);
    gw_put_u64(&w->meta, n);
    gw_put(&w->meta, values, n * gw_size(type));
}

static inline void gw_str_array(struct gguf_writer *w, const char *key, const char *const *strings, size_t n)
{
    gw_key(w, key, GW_ARRAY);
    gw_put_u32(&w->meta, GW_STRING);
    gw_put_u64(&w->meta, n);
    for (size_t i = 0; i < n; i++)
        gw_put_str(&w->meta, strings[i], strlen(strings[i]));
}

/* Before the first tensor. */
static inline void gw_alignment(struct gguf_writer *w, uint32_t alignment)
{
    gw_u32(w, "general.alignment", alignment);
    w->alignment = alignment;
}

/* A tensor entry alone, with any values. */
static inline void gw_tensor_info(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                                  const uint64_t *dims, uint64_t offset)
{
    gw_put_str(&w->infos, name, strlen(name));
    gw_put_u32(&w->infos, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        gw_put_u64(&w->infos, dims[i]);
    gw_put_u32(&w->infos, type);
    gw_put_u64(&w->infos, offset);
    w->n_tensors++;
}

/* A tensor with its bytes, placed at the next aligned offset.  data NULL: zeros. */
static inline void gw_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                             const uint64_t *dims, const void *data, size_t n_bytes)
{
    gw_put_zeros(&w->data, (w->alignment - w->data.n % w->alignment) % w->alignment);
    gw_tensor_info(w, name, type, n_dims, dims, w->data.n);
    if (data)
        gw_put(&w->data, data, n_bytes);
    else
        gw_put_zeros(&w->data, n_bytes);
}

static inline const uint8_t *gw_finish(struct gguf_writer *w, size_t *n_bytes)
{
    struct gw_bytes *f = &w->file;
    f->n = 0;
    gw_put(f, w->magic, 4);
    gw_put_u32(f, w->version);
    gw_put_u64(f, w->n_tensors);
    gw_put_u64(f, w->n_meta);
    gw_put(f, w->meta.p, w->meta.n);
    gw_put(f, w->infos.p, w->infos.n);
    if (w->data.n) {
        gw_put_zeros(f, (w->alignment - f->n % w->alignment) % w->alignment);
        gw_put(f, w->data.p, w->data.n);
    }
    *n_bytes = f->n;
    return f->p;
}

/* gw_finish into a file; 0, or -1 with errno. */
static inline int gw_save(struct gguf_writer *w, const char *path)
{
    size_t n;
    const uint8_t *p = gw_finish(w, &n);
    FILE *f = fopen(path, "wb");
    if (!f)
        return -1;
    size_t done = fwrite(p, 1, n, f);
    return fclose(f) == 0 && done == n ? 0 : -1;
}

#endif

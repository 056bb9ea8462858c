/* file/gguf_write.h - the head of a GGUF file: metadata and the table of tensors, put together in memory.
 *
 * Order of calls: tern_gguf_put_* and tern_gguf_tensor as they come, then tern_gguf_head once.  Tensors get their
 * places in the order in which they are named; the caller writes their bytes at tern_gguf_head's length plus the offset
 * of each.  What this writes tern_file_open reads back as it was given. */
#ifndef TERN_FILE_GGUF_WRITE_H
#define TERN_FILE_GGUF_WRITE_H

#include "file/file.h"

#define TERN_GGUF_ALIGN 32 /* of data, from the beginning of the file: what readers take without being told */

/* Zero-initialise. */
struct tern_gguf {
    struct tern_buf meta, infos;
    uint64_t n_meta, n_tensors;
    uint64_t data_bytes; /* of all tensors so far, each padded to TERN_GGUF_ALIGN */
};
void tern_gguf_clear(struct tern_gguf *g);

int tern_gguf_put_u32(struct tern_gguf *g, const char *key, uint32_t v, tern_error *err);
int tern_gguf_put_i32(struct tern_gguf *g, const char *key, int32_t v, tern_error *err);
int tern_gguf_put_f32(struct tern_gguf *g, const char *key, float v, tern_error *err);
int tern_gguf_put_bool(struct tern_gguf *g, const char *key, bool v, tern_error *err);
int tern_gguf_put_str(struct tern_gguf *g, const char *key, const char *p, size_t n, tern_error *err);
int tern_gguf_put_i32s(struct tern_gguf *g, const char *key, const int32_t *v, size_t n, tern_error *err);
int tern_gguf_put_f32s(struct tern_gguf *g, const char *key, const float *v, size_t n, tern_error *err);
int tern_gguf_put_strs(struct tern_gguf *g, const char *key, const struct tern_str *v, size_t n, tern_error *err);

/* An entry of another file.  What comes from GGUF keeps its type of value; integers from elsewhere become u32 where
 * they fit, else i64, and in arrays i32; numbers f32.  f32: an integer from elsewhere is a number to GGUF. */
int tern_gguf_put_meta(struct tern_gguf *g, const struct tern_meta *m, bool f32, tern_error *err);

/* Names a tensor of a type of file.h.  *offset: of its data, from the end of the head; *n_bytes: how many it has.
 * Fails when a row is not whole blocks, or the name is longer than other readers take. */
int tern_gguf_tensor(struct tern_gguf *g, const char *name, int type, int n_dims, const int64_t *dims, uint64_t *offset,
                     uint64_t *n_bytes, tern_error *err);

/* Appends the head, padded to TERN_GGUF_ALIGN, to out. */
int tern_gguf_head(const struct tern_gguf *g, struct tern_buf *out, tern_error *err);

#endif

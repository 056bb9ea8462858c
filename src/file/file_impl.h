/* file/file_impl.h - what the sources of this folder share; no other folder may include it.
 *
 * Mental model of opening: every part of the set is mapped (tern_part), its header and metadata are read with a cursor
 * that cannot leave the part, then the tensor tables of all parts are read into one array.  Everything decoded lives in
 * the file's arena and is freed at once; two hash indexes give the O(1) lookups and find duplicates on the way. */
#ifndef TERN_FILE_IMPL_H
#define TERN_FILE_IMPL_H

#include <string.h>
#include "base/map.h"
#include "file/file.h"

/* Limits that no sound file comes near; they keep hostile ones cheap. */
#define TERN_GGUF_MAX_KEY       65536
#define TERN_GGUF_MAX_NAME      256
#define TERN_GGUF_MAX_ALIGNMENT 65536
#define TERN_GGUF_MAX_PARTS     1024
#define TERN_GGUF_MAX_DECODED                                                               \
    ((size_t)1 << 30) /* bytes of arena: an array of u8 takes 8 times its bytes in the file \
                       */

/* Bump allocator: chunks in a list, nothing is freed before the end.  Memory is zeroed and 16-byte aligned. */
struct tern_file_arena {
    const char *path; /* of the file, for messages; borrowed */
    struct tern_file_chunk *head;
    size_t used, cap; /* of head's payload */
    size_t total;     /* payload handed out, limited to TERN_GGUF_MAX_DECODED */
};
int tern_file_arena_alloc(struct tern_file_arena *a, void *out, size_t n, size_t size, tern_error *err);
void tern_file_arena_clear(struct tern_file_arena *a);

/* Open-addressing hash of names: slots hold 1 + number of the entry, 0 is empty.  At most half full, so probes are
 * short; the seed is random, so a file cannot be made to collide. */
struct tern_file_index {
    uint32_t *slots;
    size_t mask;
    uint64_t seed;
};
typedef const char *tern_file_name_fn(const void *table, size_t i);
int tern_file_index_init(struct tern_file_index *x, size_t n, struct tern_file_arena *a, tern_error *err);
/* Number of the entry called `name`, or SIZE_MAX. */
size_t tern_file_index_find(const struct tern_file_index *x, const char *name, tern_file_name_fn *name_of,
                            const void *table);
/* Adds entry i under its name; false when the name is there already. */
bool tern_file_index_add(struct tern_file_index *x, size_t i, tern_file_name_fn *name_of, const void *table);

struct tern_meta_table {
    struct tern_meta *v;
    size_t n, cap; /* cap counts where entries are added after reading */
    struct tern_file_index index;
};

struct tern_part {
    char *path; /* owned */
    const uint8_t *p;
    size_t n;
    struct tern_map map; /* not mapped: the bytes are borrowed from the caller */
    /* Filled by tern_gguf_read_meta: */
    struct tern_meta_table meta;
    size_t n_tensors;
    size_t infos_pos; /* where the tensor table starts */
    size_t alignment;
};

struct tern_file {
    char *path; /* as given to open */
    char *dir;  /* of a Hugging Face model; NULL for GGUF */
    enum tern_file_kind kind;
    struct tern_part *parts; /* owned */
    size_t n_parts;
    struct tern_file_arena arena;
    struct tern_tensor *tensors;
    size_t n_tensors;
    struct tern_file_index tensor_index;
};

/* Maps one regular file; part->path is set even on failure. */
int tern_part_map(struct tern_part *part, const char *path, tern_error *err);
void tern_part_clear(struct tern_part *part);
char *tern_path_dup(const char *path);

/* A position in a part, and what is being read there, for messages. */
struct tern_cursor {
    const struct tern_part *part;
    size_t pos;
    const char *table; /* "metadata key", "tensor" or NULL */
    size_t index;      /* of the entry in that table */
    const char *name;  /* of the entry, once it is known */
};
/* A name from the file, printable and cut short, for messages. */
struct tern_shown_name {
    char text[84];
};
struct tern_shown_name tern_name_show(const char *name);
/* err = "PATH: tensor "x": <text> at byte AT", without a place for TERN_NO_OFFSET; returns code. */
#define TERN_NO_OFFSET SIZE_MAX
int tern_cursor_fail(const struct tern_cursor *c, size_t at, int code, tern_error *err, const char *fmt, ...)
    TERN_PRINTF(5, 6);
static inline size_t tern_cursor_left(const struct tern_cursor *c)
{
    return c->part->n - c->pos;
}
/* Each advances, or fails saying that the file ends inside `what`. */
int tern_cursor_take(struct tern_cursor *c, size_t n, const uint8_t **p, const char *what, tern_error *err);
int tern_cursor_u32(struct tern_cursor *c, uint32_t *v, const char *what, tern_error *err);
int tern_cursor_u64(struct tern_cursor *c, uint64_t *v, const char *what, tern_error *err);
/* A string as GGUF writes it, at most `max` bytes long; a view into the part. */
int tern_cursor_str(struct tern_cursor *c, size_t max, struct tern_str *s, const char *what, tern_error *err);
/* A string that serves as a name: 1..max bytes without NUL, copied into the arena with a NUL behind it. */
int tern_cursor_name(struct tern_cursor *c, size_t max, const char **name, struct tern_file_arena *a, tern_error *err);

/* The part that a tensor lies in. */
const struct tern_part *tern_file_part_of(const struct tern_file *f, const struct tern_tensor *t);
/* Makes the tensors findable by name; two of one name are refused. */
int tern_file_index_tensors(struct tern_file *f, tern_error *err);
/* The n tensors in the order of their data, to be freed. */
int tern_tensors_sorted(const struct tern_tensor ***order, const struct tern_tensor *t, size_t n, tern_error *err);

/* ---- GGUF ---- */

/* The first part is mapped: everything else. */
int tern_gguf_read(struct tern_file *f, tern_error *err);
/* ---- Hugging Face ---- */

/* Does a path name such a model: a directory, one of its safetensors files, the index of several?  TERN_EIO: nobody can
 * tell; a path that leads nowhere names none. */
int tern_hf_is(const char *path, bool *is, tern_error *err);
/* Part 0 becomes config.json, whose values are the metadata; the others are the files of tensors. */
int tern_hf_read(struct tern_file *f, tern_error *err);

/* ---- metadata ---- */

const char *tern_meta_name(const void *table, size_t i);
const struct tern_meta *tern_meta_table_find(const struct tern_meta_table *t, const char *key);
/* Typed reads on the metadata of one part; `def` NULL means the key is needed. */
int tern_part_int(const struct tern_part *part, const char *key, const int64_t *def, int64_t min, int64_t max,
                  int64_t *out, tern_error *err);

#endif

/* convert/convert_impl.h - what the sources of this folder share; no other folder may include it.
 *
 * Mental model.  A plan lists the tensors that the new file will have (struct piece): where the rows of each come from
 * and what type they get.  The plan is made, and everything that could be refused is refused, before a byte is written.
 * Then rows are turned one chunk at a time: a chunk is a fixed number of rows of one tensor, its bytes depend on the
 * source and the type alone, and it is written with its hash, so that what an interrupted run leaves can be told from
 * what it meant to write. */
#ifndef TERN_CONVERT_IMPL_H
#define TERN_CONVERT_IMPL_H

#include <string.h>

#include "base/map.h"
#include "base/mem.h"
#include "base/pool.h"
#include "file/file.h"
#include "file/gguf_write.h"
#include "tern/convert.h"

enum convert_type {
    CONVERT_KEEP,
    CONVERT_F32,
    CONVERT_F16,
    CONVERT_BF16,
    CONVERT_Q8_0,
    CONVERT_Q4_0,
    CONVERT_Q4_K,
    CONVERT_N_TYPES
};

/* Where rows (or columns) of the new file lie in the source (tern_convert_moved). */
struct order {
    enum { ORDER_KEPT, ORDER_PAIRS, ORDER_HEADS } kind;
    bool columns;
    int64_t size, skip;    /* PAIRS: rows of a head, and how many of its first stay; HEADS: the same, of all rows */
    int64_t heads, groups; /* HEADS: the heads of a group lie together in the source, and apart in the new file */
};

/* A tensor of the new file. */
struct piece {
    char name[64];
    int type;
    int n_dims;
    int64_t dims[TERN_MAX_DIMS];
    int64_t k;                 /* elements of a row: dims[0], or 1 of a vector whose elements change places */
    int64_t rows, matrix_rows; /* all, and of one matrix */
    /* Where row r lies: row  row0 + r % matrix_rows  of matrix  r / matrix_rows  of t, whose matrices have source_rows,
     * in the order that `order` says;
     * or of the tensor each[r / matrix_rows]. */
    const struct tern_tensor *t;
    const struct tern_tensor **each; /* [rows / matrix_rows], owned by the plan; NULL: t */
    int64_t row0, source_rows;
    struct order order;
    uint64_t offset, n_bytes; /* of the data, from the end of the head */
    int64_t chunk_rows;
    size_t n_chunks;
};

struct plan {
    const struct tern_file *f;
    enum convert_type type;
    bool requantize;
    char arch[64];
    bool permuted; /* a directory whose q and k GGUF has in another order */
    bool divided;  /* ... for which GGUF has a tensor of rotary divisors */
    bool grouped;  /* ... whose value heads GGUF has in another order */
    bool latent;   /* ... whose attention is latent */
    struct piece *v;
    size_t n, cap, n_chunks;
    struct tern_tensor divisors; /* rope_freqs.weight, computed */
    float *divisor_values;
    struct tern_gguf head;
    struct tern_buf head_bytes;
};

/* plan.c: which tensors, of which types.  *p zeroed; clear also after a failure. */
int tern_convert_plan_make(struct plan *p, const tern_convert_params *params, tern_error *err);
void tern_convert_plan_clear(struct plan *p);

/* "FILE: tensor "NAME": what" */
int tern_convert_fail(const struct plan *p, const struct tern_tensor *t, int code, tern_error *err, const char *what);

static inline bool starts_with(const char *s, const char *head)
{
    return strncmp(s, head, strlen(head)) == 0;
}

/* order.c: finds o->order. */
int tern_convert_order(const struct plan *p, struct piece *o, tern_error *err);
/* Where row (or column) i of the new file lies in the source. */
int64_t tern_convert_moved(const struct order *o, int64_t i);

/* meta.c: the metadata of the new file, into p->head. */
int tern_convert_metadata(struct plan *p, const tern_convert_params *params, tern_error *err);
/* Llama 3's scaling of rotary frequencies is a tensor in GGUF: adds it where the directory has it. */
int tern_convert_divisors(struct plan *p, tern_error *err);

/* differs.c: the sentence of the report, or "". */
void tern_convert_differs(const struct plan *p, char *out, size_t n);

/* sampling.c: what generation_config.json recommends; views of the text, which may be empty. */
int tern_convert_sampling(struct plan *p, const char *text, size_t n, tern_error *err);

/* rows.c: the bytes of one chunk. */
#define CHUNK_BYTES ((size_t)4 << 20) /* of input or output, unless one row has more */

/* Of a chunk in the new file. */
bool tern_convert_ids(const struct tern_tensor *t); /* a table of whole numbers */
size_t tern_convert_row_bytes(const struct piece *p);
/* Writes the rows [row, row + n) of piece p to out.  scratch: for each worker, room for a row of floats. */
int tern_convert_rows(const struct plan *plan, const struct piece *p, int64_t row, int64_t n, uint8_t *out,
                      float *scratch, size_t scratch_row, struct tern_pool *pool, tern_error *err);

/* write.c: everything into the file. */
int tern_convert_write(const struct plan *p, const char *path, const tern_convert_params *params,
                       tern_convert_report *report, tern_error *err);

#endif

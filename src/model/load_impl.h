/* model/load_impl.h - what load.c and packfile.c share: the weights as they will lie in memory. */
#ifndef TERN_MODEL_LOAD_IMPL_H
#define TERN_MODEL_LOAD_IMPL_H

#include "base/map.h"
#include "model/model.h"

/* A tensor on its way into memory. */
struct tern_weight_place {
    const struct tern_tensor *t;
    const struct tern_tensor *parts[TERN_TENSOR_PARTS]; /* others that belong to it; NULL: none */
    struct tern_weights *dst;                           /* dst->mat says what its panels are, where it is a matrix */
    struct tern_weight_source src;                      /* of the rows that dst gets, in the first matrix */
    int n;                                              /* and their number; of a vector or table, elements */
    bool vector;
    int columns;           /* of a table, which is turned; 1 of a vector */
    int ids, ids_row;      /* a vector of experts: how many there are, and how many of them stand together; 0: no */
    int stack, stack_rows; /* matrices of the tensor, and rows of one */
    int matrix;   /* of a stack whose matrices are tensors of their own: which one; its places follow one another */
    int matrices; /* of all of it */
    size_t offset, bytes; /* in the block of all weights */
    int layer;            /* -1: of none */
};

struct tern_weight_block {
    struct tern_dev *dev;
    const struct tern_file *f;
    const struct tern_weight_place *places;
    size_t n;
    size_t bytes;      /* of the whole block */
    uint64_t digest;   /* of the model (struct tern_net) */
    uint64_t *sources; /* [n] hash of each tensor's bytes in the model file, and of its parts */
    bool lean;         /* not all experts stay in memory (resident.h) */
};

/* load_vector.c: the p->n numbers of a place that is a vector, in the order of the layers' use; those that lie at `at`
 * of a file, which must all be finite.  path: for messages. */
int tern_vector_read(const struct tern_weight_place *p, float *dst, const char *path, tern_error *err);
int tern_vector_check(const struct tern_weight_place *p, const float *x, const char *path, uint64_t at,
                      tern_error *err);

/* load_device.c.  open: the device, or two, for memory (net->dev) and for packing on the pool, once the descriptor is
 * known (tern_net_load).  divide: m will hold the block.  room: TERN_ENOMEM where the device's own memory has none for
 * what comes there; net->cpu_bytes. */
int tern_load_open(struct tern_net *net, struct tern_dev **dev, const struct tern_file *f,
                   const struct tern_dev_ops *device, struct tern_pool *pool, int gpu_layers, tern_error *err);
int tern_load_divide(const struct tern_weight_block *b, struct tern_dev_mem *m, tern_error *err);
int tern_load_room(const struct tern_weight_block *b, struct tern_net *net, tern_error *err);

/* derive.c: of weights that are in memory; the digest of the file as it lies. */
int tern_load_ropes(struct tern_net *net, const struct tern_file *f, tern_error *err);
int tern_load_scales(struct tern_net *net, tern_error *err);
uint64_t tern_load_digest(const struct tern_file *f);

/* sources[from .. to), on all threads. */
void tern_weight_sources(const struct tern_weight_block *b, size_t from, size_t to, struct tern_pool *pool);

/* A file that holds such a block, ready to be mapped (docs/packed-format.md).
 *
 * open: maps PATH when it belongs to this file and this layout, and every byte of it is what was written; *data is the
 * block, and b->sources are what the file says of the model's.  On failure *replace says whether the file may be
 * written anew: it is one of ours, or there is none. */
int tern_packfile_open(struct tern_map *out, const uint8_t **data, const struct tern_weight_block *b, const char *path,
                       struct tern_pool *pool, bool *replace, tern_error *err);
/* May one be written there? */
int tern_packfile_check(const char *path, tern_error *err);
size_t tern_packfile_bytes(const struct tern_weight_block *b); /* of the whole file */
/* Writes the block that fills `memory`, and b->sources.  TERN_ECAPACITY while another process is writing the same file.
 * Or tensor by tensor: each `add` writes the next one, of which b->sources is known and which may leave memory then.
 * `end` frees p in any case, as `drop` does, which leaves no file; NULL is legal. */
int tern_packfile_write(const struct tern_weight_block *b, const struct tern_dev_mem *memory, const char *path,
                        tern_error *err);
struct tern_packfile;
int tern_packfile_begin(struct tern_packfile **out, const struct tern_weight_block *b,
                        const struct tern_dev_mem *memory, const char *path, tern_error *err);
int tern_packfile_add(struct tern_packfile *p, tern_error *err);
int tern_packfile_end(struct tern_packfile *p, tern_error *err);
void tern_packfile_drop(struct tern_packfile *p);

#endif

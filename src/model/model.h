/* model/model.h - a model is data: a descriptor that an architecture file fills, and tensors bound to slots.
 *
 *   desc.h          the descriptor
 *   arch/arch_x.c   reads the file's configuration into struct tern_desc and lists its tensors (name, slot, shape)
 *   load.c          looks the tensors up, checks shapes, packs them
 *   derive.c        what follows from them
 *   packfile.c      keeps what was packed in a file, for the next start to map
 *   resident.c      of such a file, which experts are in memory
 *   forward.c       one step through all layers; it knows numbers and slots, never a model's name
 *   block/          what layers are made of: attention, networks, recurrent states (block.h)
 *
 * The descriptor can say more than blocks run today; tern_desc_check refuses the rest with a sentence.  Immutable after
 * load; any thread may read. */
#ifndef TERN_MODEL_H
#define TERN_MODEL_H

#include <stdbool.h>
#include <stdint.h>
#include "base/err.h"
#include "base/map.h"
#include "base/pool.h"
#include "dev/dev.h"
#include "file/file.h"
#include "kv/kv.h"
#include "model/desc.h"

/* Matrices that lie one after the other in one tensor: one for each head, each expert, each group of heads. */
enum tern_stacked { TERN_ONE, TERN_PER_HEAD, TERN_PER_EXPERT, TERN_PER_GROUP };

/* A vector is f32, and so is a table; a matrix has the form of the device. */
struct tern_weights {
    struct tern_dev_vec vec;
    struct tern_dev_weight mat;
    enum tern_stacked stacked;
};

struct tern_resident;

struct tern_net {
    struct tern_desc desc;
    struct tern_weights globals[TERN_N_GLOBALS];
    struct tern_weights (*layers)[TERN_N_SLOTS]; /* [n_layers + n_mtp] */
    float *out_scales;                           /* likewise; what TERN_SLOT_OUT_SCALE holds; 1 */
    const struct tern_dev_ops *split;            /* that dev is of, where the CPU has some layers; else NULL */
    struct tern_dev *dev;                        /* of the device that the weights are on; for memory alone */
    struct tern_dev_mem *memory;                 /* all vectors and matrices */
    struct tern_map packed;                      /* the file that memory stands for, if it does */
    size_t memory_bytes, cpu_bytes;              /* of these, of layers before the device's cut */
    struct tern_resident *resident; /* which of its experts are in memory (resident.h); NULL: all weights are */
    char notice[512];               /* a sentence about that file for people, or "" */
    uint64_t stretch;               /* of tern_net_stretch: keys of another one do not fit; 0: none */
    uint64_t digest;                /* of the tensor table and sampled weight bytes */
    uint64_t whole;                 /* of these and all bytes of the tensors that are in use, in the file's form */
    int64_t n_params;
    int64_t n_mtp_params; /* of these, the MTP layer's */
};

/* A file that keeps packed weights between runs (docs/packed-format.md). */
struct tern_packed_file {
    const char *path;  /* NULL: none */
    bool write;        /* make it, or make it anew when it does not fit */
    size_t write_from; /* bytes of weights from which on a missing file is made */
    size_t experts;    /* bytes of experts in memory, the others stay in the file; 0: all weights are in memory */
    void (*before)(void *user, const char *path, size_t bytes); /* it is written; may be NULL */
    void *user;
};

/* What GGUF has otherwise than directories of the same architecture: rotated pairs of q and k as neighbours
 * (docs/decisions/013-one-vocabulary.md), a tensor of divisors for Llama 3's scaling of rotary frequencies, value heads
 * of delta layers in another order.  latent: neighbours only where the configuration has them otherwise, in heads of
 * latent attention. */
struct tern_arch_gguf {
    bool pairs, divisors, grouped, latent;
};
/* false: no directories of this architecture open. */
bool tern_arch_find_gguf(struct tern_arch_gguf *out, const char *arch);

/* Who is asked while weights are loaded (tern_model_params); NULL: nobody. */
struct tern_load_watch {
    int (*before_weights)(void *user, size_t bytes, tern_error *err);
    int (*on_progress)(void *user, int done, int total);
    void *user;
};

/* Reads configuration and tensors of an opened file onto a device.  gpu_layers: so many of the last layers alone, and
 * the CPU has the others; -1: all.  Packing runs on the pool.  kept and watch may be
 * NULL; nothing that is wrong with the file that is kept is an error. */
int tern_net_load(struct tern_net **out, const struct tern_file *f, const struct tern_dev_ops *device, int gpu_layers,
                  struct tern_pool *pool, const struct tern_packed_file *kept, const struct tern_load_watch *watch,
                  tern_error *err);
/* Before any engine opens: another scaling of the rotary embedding (tern_model_params), and the context that it gives.
 * NULL and 0: as the file says. */
int tern_net_stretch(struct tern_net *n, const char *scaling, double base, tern_error *err);
void tern_net_free(struct tern_net *n);

/* The first n numbers of a vector, to be freed with tern_free. */
int tern_net_vector(float **out, const struct tern_net *net, struct tern_dev_vec v, size_t n, tern_error *err);

/* Bytes that a tensor of an opened model takes in memory, but for keys and values of layers that attend to another's;
 * 0: it is unused. */
size_t tern_net_tensor_bytes(const struct tern_net *n, const struct tern_tensor *t);

/* Bytes of the matrices that a step of so many rows reads: all but an embedding of its own, of which it reads rows, and
 * but experts that none of the rows goes to (where they choose, the most that they can). */
size_t tern_net_step_bytes(const struct tern_net *n, int rows);

/* What tern_packed_file.experts costs, of all engines since the model was opened.  An expert counts once for each step
 * of its layer, for all rows that go to it. */
struct tern_resident_stats {
    size_t limit;          /* 0: all weights are in memory; so is all that follows */
    size_t bytes;          /* of all experts */
    size_t resident, most; /* of those in memory now; the most that there were */
    uint64_t rows;         /* of steps */
    uint64_t used, found;  /* experts that steps computed with; of these, in memory or already asked for */
    uint64_t read, ahead;  /* read from the file; of these, before their layer's turn */
    uint64_t read_bytes;
    double wait_s; /* that steps waited for them */
};
void tern_net_experts(const struct tern_net *n, struct tern_resident_stats *out);
/* May steps have so many rows? */
int tern_net_experts_check(const struct tern_net *n, int rows, tern_error *err);

/* ---- forward ----------------------------------------------------------------------------------------------------- */

/* In a batch wide rows come before narrow rows; rows of one sequence are consecutive. */
struct tern_forward_job {
    struct tern_kv_seq *seq;
    int plan; /* the cache that seq belongs to */
    int row0, n_rows, pos0;
    bool wide;
};

/* Sees all rows' query and key heads of a layer as attention will, before anything is appended: [rows][heads * dim].
 * May copy out, wait for it, and use the pool. */
typedef void tern_forward_tap(void *user, struct tern_dev *dev, int layer, struct tern_dev_rows q,
                              struct tern_dev_rows k);

struct tern_forward_batch {
    const struct tern_row *rows;
    int n_rows, n_wide; /* rows [0, n_wide) are wide */
    const struct tern_forward_job *jobs;
    int n_jobs;
    const int *logit_rows; /* rows that want logits, ascending */
    int n_logit_rows;
    const int *hidden_rows; /* rows whose hidden states are wanted, after the last norm, ascending */
    int n_hidden_rows;
    int best_from, n_best, best; /* of logit_rows [best_from, best_from + n_best): the so many best (tern_best) */
    tern_forward_tap *tap;
    void *tap_user;
};

/* What steps of one engine need besides its device, dev, which it prepares.  caches: [n_plans], borrowed; they differ
 * in layout alone.  exact: wide rows in f32 on every machine.  decode16, prompt8: activations of decode rows in
 * 16 bits, of prompt rows in 8, where the device has that. */
struct tern_forward;
int tern_forward_new(struct tern_forward **out, const struct tern_net *net, const struct tern_kv_cache *caches,
                     int n_plans, struct tern_dev *dev, int max_rows, int max_narrow, int max_jobs, bool exact,
                     bool decode16, bool prompt8, tern_error *err);
void tern_forward_free(struct tern_forward *f);
size_t tern_forward_scratch_bytes(const struct tern_forward *f);

/* Appends to one sequence the keys and values that another holds at the same positions, as attention reads them there
 * (recode in dev/dev.h), but for layers whose pages `to` does not want any more.  `to` is between tern_kv_begin and
 * tern_kv_commit. */
void tern_forward_copy(struct tern_forward *f, const struct tern_forward_job *to, const struct tern_forward_job *from);

/* Room for the logits, the hidden states and the best logits of so many rows.  Before anything of a step has begun. */
int tern_forward_want(struct tern_forward *f, int n_logits, int n_hidden, int n_best, tern_error *err);
/* Runs all layers.  The jobs' sequences are between tern_kv_begin and tern_kv_commit; what is given here stays as it is
 * until the device has been waited for.  Then tern_forward_fault tells what went wrong. */
void tern_forward_run(struct tern_forward *f, const struct tern_forward_batch *b);
/* Runs the MTP layer alone on one row of each job, which is behind the sequence's last token or the last guess: what it
 * caches lies behind the sequence, where the next step overwrites it.  from: the row of the last guess that each goes
 * on from; NULL: from the sequence's last token.  Logits, and rows for their best, are those of all rows, hidden
 * states none.  The caches must keep what the layer asks for (tern_desc_kv).  Fails as tern_forward_run does. */
void tern_forward_guess(struct tern_forward *f, const struct tern_forward_batch *b, const int *from);
/* After sync: what went wrong with the last of these, whose results then count for nothing, on the device
 * (tern_dev_fault) or with experts that are read from a file; 0 where nothing did. */
int tern_forward_fault(struct tern_forward *f, tern_error *err);
/* host[n][n_vocab] = logits of logit_rows[row0 ..] of the last run, once the device has been waited for; [n][n_embd] of
 * hidden_rows. */
void tern_forward_logits(struct tern_forward *f, float *host, int row0, int n);
void tern_forward_hidden(struct tern_forward *f, float *host, int row0, int n);
/* values[n_best][best], then ids, of all rows that asked for their best. */
void tern_forward_best(struct tern_forward *f, const struct tern_forward_batch *b, void *host);

#endif

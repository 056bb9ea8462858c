/* dev/cuda/cuda.h - what the files of the CUDA device share.
 *
 *   driver.c      the driver, found when it is needed
 *   card.c        cards, their kernels; which of them serves
 *   device.c      opening, the queue, faults, the table of operations
 *   memory.c      memory of a card, mapped as it is used; copies
 *   step.c        the tables of a step (tables.h)
 *   weights.c     weights: the panels of kernel/pack.h, as they are
 *   rows.c        operations on one row at a time         (rows.cu)
 *   experts.c     routing, experts                        (experts.cu)
 *   products/, attn/, few/, together/   rooms: products of rows with weights; append, attention, recode; operations of
 *                 few models; several cards of one model
 *
 * Kernels are queued on the device's stream in the order of the calls.  While a step is in hand they are written down
 * first, and go out together (tern_cuda_flush): at its end, or before a copy. */
#ifndef TERN_DEV_CUDA_H
#define TERN_DEV_CUDA_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "dev/cuda/ops.h"
#include "dev/cuda/products/products.h"
#include "dev/cuda/tables.h"
#include "dev/dev.h"
#include "kernel/pack.h"

enum tern_cuda_kernel {
#define TERN_CUDA_KERNEL(file, name) TERN_CUDA_K_##name,
#include "dev/cuda/kernels.def"
#undef TERN_CUDA_KERNEL
    TERN_CUDA_KERNELS
};

/* A card and what the process has on it: opened once, until the process ends. */
struct tern_cuda_card {
    int number;
    char name[96];
    tern_cu_device device;
    tern_cu_context context;
    int major, minor, processors;
    size_t memory;              /* bytes in all */
    int shared_most;            /* bytes of shared memory that a block may take */
    size_t granularity;         /* of mappings */
    size_t free;                /* of `memory`, when the card was opened, less a margin: the limit that nobody set */
    _Atomic int computing;      /* devices that have kernels on it */
    _Atomic size_t limit, used; /* bytes that this process may take of the card, and has taken */
    tern_cu_function kernel[TERN_CUDA_KERNELS];
    _Atomic unsigned shared_asked[TERN_CUDA_KERNELS];
};

/* Bytes of the card that are about to be taken: false where the limit does not allow it.  Any thread. */
bool tern_cuda_card_take(struct tern_cuda_card *c, size_t bytes);
void tern_cuda_card_give(struct tern_cuda_card *c, size_t bytes);
/* Card `number`, opened; TERN_EUNSUPPORTED where it cannot serve, TERN_ENOENT where there is none.  Any thread. */
int tern_cuda_card(struct tern_cuda_card **out, int number, tern_error *err);
const char *tern_cuda_kernel_name(enum tern_cuda_kernel k);

struct tern_dev_mem {
    tern_cu_address p;
    size_t bytes;
    struct tern_cuda_card *card;
    /* Mapped as it is used: chunk i is there where there[i] is not 0.  chunk 0: all of it is there. */
    size_t chunk, n_chunks;
    unsigned long long *there;
    pthread_mutex_t lock;
};

struct tern_dev_form {
    struct tern_packed m; /* the first matrix of the stack; no data */
    struct tern_panel_layout at;
    struct tern_dev_mem *mem;
    tern_cu_address p; /* its panels; 0 before weight_place */
};

/* A kernel that waits to be queued. */
struct tern_cuda_call {
    enum tern_cuda_kernel kernel;
    unsigned grid[3], block, shared;
    size_t args, bytes; /* where its arguments lie in the list's bytes */
};

struct tern_cuda_list {
    struct tern_cuda_call *calls;
    uint8_t *args;
    size_t n, cap, used, args_cap, from; /* from: calls before it have gone out */
};

/* Pinned bytes of the host, copied to the card at the beginning of a step. */
struct tern_cuda_upload {
    uint8_t *host[2];
    tern_cu_event copied[2];
    int turn;
    tern_cu_address p;
    size_t bytes, used; /* room, taken */
};

/* What copy_out brings in small pieces: to pinned bytes, which sync hands on. */
#define TERN_CUDA_COPIES 64
struct tern_cuda_bounce {
    uint8_t *host, *lands; /* NULL before the first; where rows land, pinned, or NULL */
    size_t used, lands_bytes;
    struct {
        void *to;
        size_t at, bytes;
    } copy[TERN_CUDA_COPIES];
    int n;
};

#define TERN_CUDA_TAKEN 32 /* pieces of scratch of a device */
struct tern_cuda_attn;     /* of attn/ops.c: what it needs besides */

struct tern_cuda {
    struct tern_dev dev;
    struct tern_cuda_card *card;
    struct tern_pool *pool; /* borrowed; NULL: for memory and copies alone */
    tern_cu_stream stream;
    tern_error fault;   /* the first thing that went wrong; nothing is queued after it */
    bool lost;          /* and nothing ever will */
    bool in_step, sent; /* sent: its first calls */
    struct tern_cuda_list list;
    struct tern_cuda_graphs *graphs;
    struct tern_cuda_upload upload;
    struct tern_cuda_bounce bounce;
    struct tern_cuda_tables tables;   /* of the step in hand */
    const struct tern_cuda_job *jobs; /* those of tables, on the host */
    tern_cu_address state_off;        /* of tables besides: uint64_t [layers][caches], bytes into a block of states */
    struct tern_dev_step step;        /* as begin was told */
    struct tern_dev_limits limits;    /* but for what it points to */
    struct tern_cuda_attn *attn;
    /* Scratch: decode rows as int8, prompt rows as halves with a scale each, a product's weights or closed pages. */
    tern_cu_address q8, half, half_scale, dense, halved; /* halved: the rows that half holds for the next one, or 0 */
    size_t dense_bytes, dense_room, q8_row_bytes; /* dense_bytes: for weights; there is more where pages need it */
    int q8_rows, max_k, decode_rows;              /* decode_rows: of the step in hand */
    struct {
        tern_cu_address x; /* the rows that q8 holds, until they are written again; 0: none */
        int n, k;
    } quantized;
    struct {                   /* of together/ */
        int n, which, cleared; /* cards; gathers of the step in hand; 1: stages were, and cards have not met since */
        uint64_t number;       /* of the step's first */
        size_t behind;         /* calls of the list up to the last gather */
        tern_cu_address at, flags, stage; /* of the number; what others say; where rows pass through */
    } together;
    tern_cu_address pairs, best, met, words; /* of experts.c, of rows.c, of products/chain.c */
    struct {
        tern_cu_address p;
        size_t bytes;
    } taken[TERN_CUDA_TAKEN]; /* by tern_cuda_take; p 0: free */
    size_t bytes;             /* of the card's memory, all of the above */
};

extern const struct tern_dev_ops tern_dev_cuda;

static inline struct tern_cuda *tern_cuda_of(struct tern_dev *d)
{
    return (struct tern_cuda *)d;
}

/* ---- addresses of handles ---- */

static inline tern_cu_address tern_cuda_rows_at(struct tern_dev_rows r)
{
    return r.mem->p + r.at * sizeof(float);
}

static inline tern_cu_address tern_cuda_vec_at(struct tern_dev_vec v)
{
    return v.mem ? v.mem->p + v.at * sizeof(float) : 0;
}

/* ---- the queue (device.c) ---- */

/* Queues kernel k; args (bytes of its struct) are copied.  An empty grid is nothing.  shared: dynamic bytes.  A step
 * whose kernels, grids and arguments are those of an earlier one goes out as one graph (graph.c): so let arguments hold
 * what changes rarely, and positions and lengths come from the tables. */
void tern_cuda_launch(struct tern_cuda *d, enum tern_cuda_kernel k, unsigned x, unsigned y, unsigned z,
                      unsigned threads, unsigned shared, const void *args, size_t bytes);
/* Sends out what is written down; _first: once a step, its first layers, so that the card has work meanwhile. */
void tern_cuda_flush(struct tern_cuda *d);
void tern_cuda_flush_first(struct tern_cuda *d);
void tern_cuda_flush_before(struct tern_cuda *d, size_t call); /* what stands before it; flush is next */
/* The last call that is written down, if it is of this kernel: its arguments, until the next launch; else NULL.  And
 * takes it back, for one that does its work as well. */
void *tern_cuda_last_call(const struct tern_cuda *d, enum tern_cuda_kernel k);
void tern_cuda_drop_last(struct tern_cuda *d);
/* Remembers what went wrong first; rc 0 is nothing.  True where nothing did. */
bool tern_cuda_ok(struct tern_cuda *d, tern_cu_result rc, const char *doing);
/* As one graph, where the list in hand has been seen before: true, and it is queued.  launch: queues it plainly. */
bool tern_cuda_graph_run(struct tern_cuda *d, void (*launch)(struct tern_cuda *d));
void tern_cuda_graph_close(struct tern_cuda *d);
/* Memory of the card for scratch, all 0, counted in d->bytes; freed by close of who took it. */
int tern_cuda_take(struct tern_cuda *d, tern_cu_address *out, size_t bytes, tern_error *err);
void tern_cuda_give(struct tern_cuda *d, tern_cu_address p);
/* This thread works on the card from here on. */
void tern_cuda_enter(const struct tern_cuda *d);

/* ---- memory (memory.c) ---- */

/* The table's limit, held and claim. */
int tern_cuda_limit(struct tern_dev *d, size_t bytes, tern_error *err);
void tern_cuda_held(const struct tern_dev *d, struct tern_dev_held *out);
int tern_cuda_claim(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes, tern_error *err);
/* TERN_ENOMEM with what the card has left. */
int tern_cuda_full(const struct tern_cuda *d, size_t bytes, tern_error *err);
int tern_cuda_reserve(struct tern_dev *d, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err);
void tern_cuda_release(struct tern_dev *d, struct tern_dev_mem *m);
int tern_cuda_adopt(struct tern_dev *d, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err);
void tern_cuda_copy_in(struct tern_dev *d, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes);
void tern_cuda_copy_out(struct tern_dev *d, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes);
void tern_cuda_lands(struct tern_dev *d, void *host, size_t bytes);
void tern_cuda_copy(struct tern_dev *d, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                    size_t from_at, size_t bytes);
void tern_cuda_zero(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);
double tern_cuda_read(struct tern_dev *d, const struct tern_dev_mem *m);
void tern_cuda_discard(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes);
/* After the stream has been waited for: what copy_out brought goes to where it was asked for. */
void tern_cuda_hand_on(struct tern_cuda *d);
/* These bytes can be written from here on: whatever of them is not there yet is mapped, all 0. */
int tern_cuda_map(struct tern_cuda *d, struct tern_dev_mem *m, size_t at, size_t bytes, tern_error *err);

/* ---- a step (step.c) ---- */

int tern_cuda_step_open(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err);
void tern_cuda_step_close(struct tern_cuda *d);
void tern_cuda_begin(struct tern_dev *d, const struct tern_dev_step *s);
void tern_cuda_end(struct tern_dev *d);
/* Bytes for the card, in a step: copied now, there (at the address answered) before any kernel of the step runs. */
tern_cu_address tern_cuda_send(struct tern_cuda *d, const void *host, size_t bytes);

/* ---- attention's own (attn/ops.c): called by prepare, close, begin (after the tables are there), end ---- */

size_t tern_cuda_attn_upload(const struct tern_dev_limits *l); /* most bytes that it sends in a step */
int tern_cuda_attn_open(struct tern_cuda *d, const struct tern_dev_limits *l, tern_error *err);
void tern_cuda_attn_close(struct tern_cuda *d);
void tern_cuda_attn_begin(struct tern_cuda *d);
void tern_cuda_attn_end(struct tern_cuda *d);

/* ---- the other operations (dev.h) ---- */

/* These rows are written now: what q8 holds of them counts no more. */
void tern_cuda_wrote(struct tern_cuda *d, struct tern_dev_rows r);
/* The same, and where they go as int8 besides, d->q8_row_bytes apart, where decode rows may want them; 0: nowhere. */
tern_cu_address tern_cuda_as_q8(struct tern_cuda *d, struct tern_dev_rows y, int n_rows);

int tern_cuda_products_open(struct tern_cuda *d, tern_error *err); /* scratch, by d->limits; given back by close */
void tern_cuda_chain_calls(struct tern_cuda *d); /* products/chain.h in the place of calls that are written down */
int tern_cuda_experts_open(struct tern_cuda *d, tern_error *err);

#endif

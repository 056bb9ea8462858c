/* kv/pool.h - equally large ref-counted blocks of memory, within a budget that several pools share.
 *
 * A pool reserves address space for all the blocks that it may ever have and touches it block by block, so the resident
 * set grows with what is in use; blocks that nobody refers to any more go back to the system.  What counts against the
 * budget is blocks in use.
 *
 * Thread: references to a block may be added and given back from any thread that holds one.  Everything else is the
 * thread's that owns the device.  Others include kv.h. */
#ifndef TERN_KV_POOL_H
#define TERN_KV_POOL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "dev/dev.h"

/* Bytes that all pools of an engine may have in use together. */
struct tern_kv_budget {
    size_t limit; /* SIZE_MAX: no limit but the pools' own */
    _Atomic size_t used;
};

/* false, and nothing is taken, when that is more than is left.  From any thread. */
bool tern_kv_budget_take(struct tern_kv_budget *b, size_t bytes);
void tern_kv_budget_give(struct tern_kv_budget *b, size_t bytes);

struct tern_kv_pool {
    struct tern_dev *dev; /* borrowed */
    struct tern_dev_blocks mem;
    size_t takes; /* bytes of the budget that a block takes: its own, or of several devices (dev/step.h) */
    size_t cut;   /* bytes of a block that belong to layers before the device's cut */
    uint32_t n_blocks;
    struct tern_kv_budget *budget; /* borrowed */
    _Atomic uint32_t *refs;        /* [n_blocks] */
    _Atomic uint32_t n_used;
    pthread_mutex_t lock; /* of the rest */
    uint32_t n_fresh;     /* blocks from here on were never touched */
    uint32_t *free_list;  /* stack of released blocks; the newest n_dirty may be resident */
    uint32_t n_free, n_dirty;
};

/* The device and the budget must outlive the pool.  in: what its blocks are (dev.h), but for their size, which is
 * block_bytes rounded up. */
int tern_kv_pool_init(struct tern_kv_pool *p, struct tern_dev *dev, size_t block_bytes,
                      const struct tern_dev_division *in, size_t n_blocks, struct tern_kv_budget *budget,
                      tern_error *err);
void tern_kv_pool_clear(struct tern_kv_pool *p); /* a pool that is all 0 is legal */
/* It goes elsewhere and leaves all 0; nobody else may know it. */
void tern_kv_pool_move(struct tern_kv_pool *to, struct tern_kv_pool *from);

/* refs 1, bytes unspecified but finite numbers wherever such lay there before; TERN_NO_BLOCK when the pool, the
 * budget or the device's memory is exhausted. */
uint32_t tern_kv_pool_get(struct tern_kv_pool *p);
void tern_kv_pool_ref(struct tern_kv_pool *p, uint32_t block);   /* any thread */
void tern_kv_pool_unref(struct tern_kv_pool *p, uint32_t block); /* any thread; TERN_NO_BLOCK is legal */
/* Gives memory of released blocks back to the system once there is enough of it to be worth a call. */
void tern_kv_pool_settle(struct tern_kv_pool *p);

/* What blocks in use take of the budget. */
static inline size_t tern_kv_pool_bytes(const struct tern_kv_pool *p)
{
    return (size_t)atomic_load_explicit(&p->n_used, memory_order_relaxed) * p->takes;
}

/* What may be done with a block's bytes, besides steps.  Counts are of bytes inside the block.  read waits for the
 * device; what write is given has been read when it returns. */
void tern_kv_block_zero(const struct tern_kv_pool *p, uint32_t block, size_t n);
void tern_kv_block_copy(const struct tern_kv_pool *p, uint32_t to, const struct tern_kv_pool *from_p, uint32_t from,
                        size_t n);
void tern_kv_block_read(const struct tern_kv_pool *p, uint32_t block, size_t at, void *to, size_t n);
void tern_kv_block_write(const struct tern_kv_pool *p, uint32_t block, size_t at, const void *from, size_t n);

#endif

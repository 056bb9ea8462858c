#include "kv/pool.h"

#include <string.h>
#include "base/mem.h"

/* Kernels may read 64 bytes past a head's data; the last block needs that much behind it. */
#define POOL_SLACK 4096

/* Released memory that stays resident, so that pages which come and go are not faulted in again each time: so many
 * bytes, and this part of what is in use. */
#define RESIDENT_BYTES ((size_t)1 << 20)
#define RESIDENT_PART  8

bool tern_kv_budget_take(struct tern_kv_budget *b, size_t bytes)
{
    size_t used = atomic_load_explicit(&b->used, memory_order_relaxed);
    do {
        if (bytes > b->limit || used > b->limit - bytes)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&b->used, &used, used + bytes, memory_order_relaxed,
                                                    memory_order_relaxed));
    return true;
}

void tern_kv_budget_give(struct tern_kv_budget *b, size_t bytes)
{
    size_t before = atomic_fetch_sub_explicit(&b->used, bytes, memory_order_relaxed);
    TERN_ASSERT(before >= bytes);
}

int tern_kv_pool_init(struct tern_kv_pool *p, struct tern_dev *dev, size_t block_bytes,
                      const struct tern_dev_division *in, size_t n_blocks, struct tern_kv_budget *budget,
                      tern_error *err)
{
    int rc = 0;
    size_t bytes;
    struct tern_dev_division by = *in;
    memset(p, 0, sizeof *p);
    p->mem.bytes = by.block = by.takes = tern_round_up(block_bytes, TERN_ALIGN);
    p->dev = dev;
    p->cut = by.to;
    p->budget = budget;
    if (n_blocks >= TERN_NO_BLOCK || !tern_mul(p->mem.bytes, n_blocks, &bytes) || !tern_add(bytes, POOL_SLACK, &bytes))
        TERN_FAIL(err, TERN_ENOMEM, "KV pool of %zu blocks of %zu bytes is too large", n_blocks, block_bytes);
    TERN_TRY(tern_alloc(&p->refs, n_blocks, sizeof *p->refs, err));
    TERN_TRY(tern_alloc(&p->free_list, n_blocks, sizeof *p->free_list, err));
    TERN_TRY(dev->ops->reserve(dev, &p->mem.mem, bytes, true, err));
    if (dev->ops->divide && (rc = dev->ops->divide(dev, p->mem.mem, &by, err)) < 0) {
        dev->ops->release(dev, p->mem.mem);
        p->mem.mem = NULL;
        goto out;
    }
    p->takes = by.takes;
    p->n_blocks = (uint32_t)n_blocks;
    (void)pthread_mutex_init(&p->lock, NULL);
    return 0;
out:
    tern_kv_pool_clear(p);
    return rc;
}

void tern_kv_pool_clear(struct tern_kv_pool *p)
{
    if (p->mem.mem) {
        tern_kv_budget_give(p->budget, tern_kv_pool_bytes(p));
        p->dev->ops->release(p->dev, p->mem.mem);
        (void)pthread_mutex_destroy(&p->lock);
    }
    tern_free((void *)p->refs);
    tern_free(p->free_list);
    memset(p, 0, sizeof *p);
}

void tern_kv_pool_move(struct tern_kv_pool *to, struct tern_kv_pool *from)
{
    *to = *from;
    if (from->mem.mem) {
        (void)pthread_mutex_destroy(&from->lock);
        (void)pthread_mutex_init(&to->lock, NULL);
    }
    memset(from, 0, sizeof *from);
}

uint32_t tern_kv_pool_get(struct tern_kv_pool *p)
{
    uint32_t i = TERN_NO_BLOCK;
    if (!tern_kv_budget_take(p->budget, p->takes))
        return TERN_NO_BLOCK;
    (void)pthread_mutex_lock(&p->lock);
    if (p->n_free) {
        i = p->free_list[--p->n_free];
        p->n_dirty -= p->n_dirty > 0;
    } else if (p->n_fresh < p->n_blocks) {
        i = p->n_fresh++;
    }
    if (i != TERN_NO_BLOCK) {
        TERN_ASSERT(atomic_load_explicit(&p->refs[i], memory_order_relaxed) == 0);
        atomic_store_explicit(&p->refs[i], 1, memory_order_relaxed);
        atomic_fetch_add_explicit(&p->n_used, 1, memory_order_relaxed);
    }
    (void)pthread_mutex_unlock(&p->lock);
    if (i == TERN_NO_BLOCK)
        tern_kv_budget_give(p->budget, p->takes);
    else if (p->dev->ops->claim && p->dev->ops->claim(p->dev, p->mem.mem, i * p->mem.bytes, p->mem.bytes, NULL) < 0) {
        tern_kv_pool_unref(p, i);
        i = TERN_NO_BLOCK;
    }
    return i;
}

void tern_kv_pool_ref(struct tern_kv_pool *p, uint32_t block)
{
    TERN_ASSERT(block < p->n_blocks);
    uint32_t before = atomic_fetch_add_explicit(&p->refs[block], 1, memory_order_relaxed);
    TERN_ASSERT(before > 0 && before < UINT32_MAX);
}

void tern_kv_pool_unref(struct tern_kv_pool *p, uint32_t block)
{
    if (block == TERN_NO_BLOCK)
        return;
    TERN_ASSERT(block < p->n_blocks);
    /* The last one that lets go must see what all others did with the block before somebody else gets it. */
    uint32_t before = atomic_fetch_sub_explicit(&p->refs[block], 1, memory_order_acq_rel);
    TERN_ASSERT(before > 0);
    if (before > 1)
        return;
    (void)pthread_mutex_lock(&p->lock);
    p->free_list[p->n_free++] = block;
    p->n_dirty++;
    atomic_fetch_sub_explicit(&p->n_used, 1, memory_order_relaxed);
    (void)pthread_mutex_unlock(&p->lock);
    tern_kv_budget_give(p->budget, p->takes);
}

void tern_kv_pool_settle(struct tern_kv_pool *p)
{
    if (!p->mem.mem)
        return;
    (void)pthread_mutex_lock(&p->lock);
    if ((size_t)p->n_dirty * p->takes > RESIDENT_BYTES + tern_kv_pool_bytes(p) / RESIDENT_PART) {
        /* Runs of blocks, for one block need not cover a page of the system. */
        for (uint32_t i = 0, end; i < p->n_fresh; i = end + 1) {
            for (end = i; end < p->n_fresh && atomic_load_explicit(&p->refs[end], memory_order_acquire) == 0; end++)
                ;
            if (end > i)
                p->dev->ops->discard(p->dev, p->mem.mem, i * p->mem.bytes, (size_t)(end - i) * p->mem.bytes);
        }
        p->n_dirty = 0;
    }
    (void)pthread_mutex_unlock(&p->lock);
}

/* Where byte `at` of a block lies in the pool's memory. */
static size_t place(const struct tern_kv_pool *p, uint32_t block, size_t at, size_t n)
{
    TERN_ASSERT(block < p->n_blocks && at <= p->mem.bytes && n <= p->mem.bytes - at);
    return block * p->mem.bytes + at;
}

void tern_kv_block_zero(const struct tern_kv_pool *p, uint32_t block, size_t n)
{
    p->dev->ops->zero(p->dev, p->mem.mem, place(p, block, 0, n), n);
}

void tern_kv_block_copy(const struct tern_kv_pool *p, uint32_t to, const struct tern_kv_pool *from_p, uint32_t from,
                        size_t n)
{
    p->dev->ops->copy(p->dev, p->mem.mem, place(p, to, 0, n), from_p->mem.mem, place(from_p, from, 0, n), n);
}

void tern_kv_block_read(const struct tern_kv_pool *p, uint32_t block, size_t at, void *to, size_t n)
{
    p->dev->ops->copy_out(p->dev, to, p->mem.mem, place(p, block, at, n), n);
    p->dev->ops->sync(p->dev);
}

void tern_kv_block_write(const struct tern_kv_pool *p, uint32_t block, size_t at, const void *from, size_t n)
{
    p->dev->ops->copy_in(p->dev, p->mem.mem, place(p, block, at, n), from, n);
}

/* What blocks of a cache hold, for tests: through the device, as everybody sees it. */
#ifndef TERN_TEST_BLOCKS_H
#define TERN_TEST_BLOCKS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include "kv/kv.h"

/* A copy of a block, to be freed; NULL for TERN_NO_BLOCK. */
static inline uint8_t *block_copy(const struct tern_kv_pool *p, uint32_t block)
{
    if (block == TERN_NO_BLOCK)
        return NULL;
    uint8_t *copy = malloc(p->mem.bytes);
    assert_non_null(copy);
    tern_kv_block_read(p, block, 0, copy, p->mem.bytes);
    return copy;
}

/* The same until four more have been looked at. */
static inline const uint8_t *block_look(const struct tern_kv_pool *p, uint32_t block)
{
    static uint8_t *ring[4];
    static unsigned next;
    uint8_t **at = &ring[next++ % 4];
    free(*at);
    *at = block_copy(p, block);
    return *at;
}

static inline void block_fill(const struct tern_kv_pool *p, uint32_t block, int value, size_t n)
{
    uint8_t *bytes = malloc(n);
    assert_non_null(bytes);
    memset(bytes, value, n);
    tern_kv_block_write(p, block, 0, bytes, n);
    p->dev->ops->sync(p->dev);
    free(bytes);
}

#endif

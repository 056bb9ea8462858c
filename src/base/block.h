/* base/block.h - equally large blocks of memory, known by number.
 *
 * Tables of the KV cache hold numbers, so that they mean the same wherever the memory lies.  Whoever reads or writes a
 * block on this CPU asks tern_block_at for its address, and nobody computes one in another way. */
#ifndef TERN_BASE_BLOCK_H
#define TERN_BASE_BLOCK_H

#include <stddef.h>
#include <stdint.h>

#define TERN_NO_BLOCK UINT32_MAX /* a number that no block has */

struct tern_blocks {
    uint8_t *base;
    size_t bytes; /* of one block, a multiple of 64 */
};

static inline uint8_t *tern_block_at(struct tern_blocks b, uint32_t number)
{
    return b.base + (size_t)number * b.bytes;
}

#endif

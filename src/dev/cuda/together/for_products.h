/* dev/cuda/together/for_products.h - arguments of the kernel by which cards bring each other prompt rows for a product:
 * as halves, not as floats.  Read by C and by CUDA. */
#ifndef TERN_DEV_CUDA_TOGETHER_FOR_PRODUCTS_H
#define TERN_DEV_CUDA_TOGETHER_FOR_PRODUCTS_H

#include "dev/cuda/together/together.h"

/* half[i]: of each card, rows as struct tern_cuda_half (products/products.h) has them, pitch numbers apart; scale: of
 * this card's.  A row's scale depends on its largest number, so each card sends that of its columns first, as a word
 * through the stage: word (row, sender) is number row * TERN_CUDA_TOGETHER + sender there, twice.  Who has had all
 * words of a row knows that nobody reads halves any more, and writes its columns to all cards.  Blocks wait for each
 * other by row, so all of a grid run at once; flags say in the end that all is there. */
struct tern_cuda_for_products {
    struct tern_cuda_together g; /* x, up and op: as they are; q8: not */
    uint64_t half[TERN_CUDA_TOGETHER];
    uint64_t scale, pitch;
};

#endif

/* dev/cuda/together/together.h - arguments of the kernel by which cards that compute one model together gather rows.
 * Read by C and by CUDA. */
#ifndef TERN_DEV_CUDA_TOGETHER_H
#define TERN_DEV_CUDA_TOGETHER_H

#include <stdint.h>

/* y = act(a) * b, beside what else is done element by element (rows.h). */
enum tern_cuda_gate { TERN_CUDA_SILU = 16, TERN_CUDA_GELU, TERN_CUDA_SIGMOID };

#define TERN_CUDA_TOGETHER        8       /* cards */
#define TERN_CUDA_TOGETHER_BLOCKS 128     /* most of a gather: all of them run at once */
#define TERN_CUDA_TOGETHER_STAGE  1048576 /* floats of each of the two stages */

/* Columns [bound[i], bound[i + 1]) of the rows are card i's.  It sends them to the others, and waits for theirs.
 *
 * Block b of a card sends some of its pieces, then says so at flags[b] of each other card; what it waits for is the
 * same block of these.  A flag is the number of the last gather: number << 12 | which of the step, and never less.
 * stage: rows pass through a place of their own, where nothing that is read in between lies; 0: straight to the rows,
 * which all cards must be done with. */
struct tern_cuda_together {
    uint64_t x[TERN_CUDA_TOGETHER];     /* the rows, of each card */
    uint64_t flags[TERN_CUDA_TOGETHER]; /* of each card: uint64_t [cards][blocks] */
    uint64_t stage[TERN_CUDA_TOGETHER]; /* of each card, rows `pitch` floats apart; or 0 */
    uint64_t number;                    /* of the step, in this card's memory */
    uint64_t q8, row_bytes;             /* rows as int8 besides (rows.h), whole; 0: not */
    uint64_t stride, pitch;
    uint64_t up, up_stride; /* first the card's columns become act(x) * up (rows.h: op); 0: they are as they shall be */
    int32_t bound[TERN_CUDA_TOGETHER + 1];
    int32_t n_cards, self, n_rows, which, lanes, op, unused;
};

#endif

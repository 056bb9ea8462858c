/* dev/cuda/together/together.h - arguments of the kernel by which cards that compute one model together gather rows.
 * Read by C and by CUDA. */
#ifndef TERN_DEV_CUDA_TOGETHER_H
#define TERN_DEV_CUDA_TOGETHER_H

#include <stdint.h>

/* y = act(a) * b, beside what else is done element by element (rows.h). */
enum tern_cuda_gate { TERN_CUDA_SILU = 16, TERN_CUDA_GELU, TERN_CUDA_SIGMOID };

#define TERN_CUDA_TOGETHER        8       /* cards */
#define TERN_CUDA_TOGETHER_BLOCKS 128     /* most of a gather: all of them run at once */
#define TERN_CUDA_TOGETHER_FLAGS  256     /* of each card: most blocks of for_products, two to a processor */
#define TERN_CUDA_TOGETHER_STAGE  1048576 /* numbers of each of the two stages, a word of eight bytes each */
#define TERN_CUDA_TURN            800     /* kernels of a list that goes out at once */
#define TERN_CUDA_TOGETHER_CHAIN  4       /* places for rows of chains (products/chain.h), behind the stages */
#define TERN_CUDA_TOGETHER_ROW    32768   /* words of each of them */

/* Columns [bound[i], bound[i + 1]) of the rows are card i's.  It sends them to the others, and waits for theirs.  Every
 * gather has a number: what lies at `number`, how many came before the step, and `which`; so arguments, and with them
 * graphs, stay the same.
 *
 * Few rows pass through a stage of the card that they go to, as words of which the upper half is the gather's number
 * and the lower half a float.  Eight bytes are written and read in one piece, so who waits for a number has the float
 * with it: no fence, no flag.  No word of another gather has that number: a stage is all 0 at first, numbers grow,
 * their lower half is never 0, and before it wraps the host clears the stages (together.c).
 *
 * There are two stages by turns, so no word is overwritten that somebody still waits for.  A card sends its words of
 * gather n when its kernel of gather n - 1 is over; then it has had a word of n - 1 from each other card, whose kernel
 * of n - 2 is over as well, with all that it read in the stage of n.  Where a card has no columns, and so no words,
 * that is not said; flags say it (`meets`).  Between stages by turns there may be gathers of the other kind, which
 * meet: whoever comes out of these finds nobody who reads a stage.
 *
 * What one row goes through behind attention has places of its own for such words (products/chain.h).
 *
 * Many rows go straight to their place, which all cards must be done with.  Block b of a card sends some of its pieces,
 * then says so at flags[b] of each other card; what it waits for is the same block of these.  A flag is the number of
 * the last gather, and never less. */
struct tern_cuda_together {
    uint64_t x[TERN_CUDA_TOGETHER];     /* the rows, of each card */
    uint64_t flags[TERN_CUDA_TOGETHER]; /* of each card: uint64_t [cards][flags] */
    uint64_t stage[TERN_CUDA_TOGETHER]; /* both, of each card, rows `pitch` words apart; 0: straight */
    uint64_t number;                    /* of the step's first gather, in this card's memory */
    uint64_t q8, row_bytes;             /* rows as int8 besides (rows.h), whole; 0: not */
    uint64_t stride, pitch;
    uint64_t up, up_stride; /* first the card's columns become act(x) * up (rows.h: op); 0: they are as they shall be */
    int32_t bound[TERN_CUDA_TOGETHER + 1];
    int32_t n_cards, self, n_rows, which, lanes, op, meets;
    int32_t chains, unused; /* chains: all cards can have chains, which was found out for all at once */
};

#endif

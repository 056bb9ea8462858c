/* dev/cuda/products/chain.h - what one decode row goes through behind its attention, as one kernel (chain.cu).  Read by
 * C and by CUDA. */
#ifndef TERN_DEV_CUDA_CHAIN_H
#define TERN_DEV_CUDA_CHAIN_H

#include "dev/cuda/products/products.h"
#include "dev/cuda/together/together.h"

/* Warps that multiply, in two groups of eight, and four more: one lane asks for weights, one warp puts outputs
 * together. A stage is what a group takes at a time of a panel: eight units of 256 inputs, one a warp. */
#define TERN_CUDA_CHAIN_WARPS       16
#define TERN_CUDA_CHAIN_THREADS     ((TERN_CUDA_CHAIN_WARPS + 4) * 32)
#define TERN_CUDA_CHAIN_UNITS       8
#define TERN_CUDA_CHAIN_STAGES      24   /* most */
#define TERN_CUDA_CHAIN_BESIDE      6144 /* bytes of shared memory for parts of sums, barriers and arguments */
#define TERN_CUDA_CHAIN_NORM        4096 /* most columns of the residual */
#define TERN_CUDA_CHAIN_NEXT        3    /* most products behind the last norm */
#define TERN_CUDA_CHAIN_NEXT_PANELS 1024 /* and panels of them: an output matrix is faster by its own kernel */

/* Stages under way at once: while a block multiplies, while it does gate and up and has fewer panels than others, and
 * while it waits for the others.  The more there are, the longer is the queue in which everybody's loads wait. */
#define TERN_CUDA_CHAIN_PACE      8
#define TERN_CUDA_CHAIN_PACE_FEW  4
#define TERN_CUDA_CHAIN_PACE_MEET 2

/* x += plus; then what the norm of x is multiplied with. */
struct tern_cuda_chain_norm {
    uint64_t plus, w;
    float eps;
    int32_t unused;
};

/* Rows that are multiplied next, on their way from the blocks that make their columns to all blocks, of this card and
 * of others with which it computes together: then each card has some outputs of every matrix.  They go as words, as in
 * together.h, but through places of their own, so that chains and gathers apart have nothing to do with each other: a
 * place holds a row, and a row's number says which of the four is its own.  Word i of what is added to the residual,
 * and of `in`, is column i; of h, word i of its row as int8 (products.h).
 *
 * One card: a row's number comes from `met`, its place is used again by the next chain, another kernel.
 *
 * Several: no word is overwritten that somebody still waits for.  Rows g of a chain: a block of threads sends words of
 * g when it has received all of g - 1, of each other card.  There a block sent them when its card had met behind g - 2,
 * to which each block comes when it has received all of g - 3 (blocks without outputs come as well).  So of another
 * card some may still read g - 1 and g - 2, of this one g - 1, and nobody what lay in the place of g, g - 4.  (Blocks
 * do not meet behind `in`, but the words of `in` itself say that the kernel runs, and so that all before it are over;
 * what is sent next goes to other places.)  The first rows of a chain are sent when the kernels before are over here.
 * If they had gathers behind the last chain, or a chain has been between, the other card's chain is over, for its later
 * kernel has sent something or said so by flags; else its blocks may read the last two rows of that chain, which are
 * the two numbers before. Gathers apart find their stage free as they do without chains: who is behind a chain has had
 * words of the other card's chain, whose kernels before it are over, and `meets` is for cards that have no columns,
 * which have no chain. Where numbers wrap, places are cleared with the stages, and cards meet before anybody sends. */
struct tern_cuda_chain_cards {
    uint64_t number;                     /* several cards: as struct tern_cuda_together has it */
    uint64_t places[TERN_CUDA_TOGETHER]; /* of each card */
    uint64_t in;                    /* the first product's row in f32, of which each card has columns; 0: q8 has it */
    int32_t n, self, which, unused; /* which: of the first norm's row; those of h and the second come next, that of `in`
                                     * before */
    int32_t in_bound[TERN_CUDA_TOGETHER + 1], bound[TERN_CUDA_TOGETHER + 1], h_bound[TERN_CUDA_TOGETHER + 1], unused2;
};

/* One row: y0 = m[0] * q8; x += y0; h = act(m[1] * norm(x)) * (m[2] * norm(x)); y3 = m[3] * h; x += y3; n = norm(x);
 * m[4 ..] * n.  All matrices are of one kind, and sums have eight parts.  q8: of the first product's row before, of n
 * behind.  All that kernels apart would write is written, but for gate's output, in whose place h is, and up's, which
 * nobody reads; with cards, of h this card's columns alone, for the others come as int8. */
struct tern_cuda_chain {
    struct tern_cuda_product m[4 + TERN_CUDA_CHAIN_NEXT];
    struct tern_cuda_chain_norm norm[2];
    uint64_t q8, x, n, h;
    uint64_t met;    /* uint64_t: how often a block of threads has come to a meeting of all */
    uint64_t halves; /* uint64_t [blocks][16]: what two blocks that share 32 columns of h tell each other */
    int32_t n_m, op, panels,
        stages;                /* panels of the last products, of which there may be none; stages in shared memory */
    int32_t row_bytes, unused; /* of a row in shared memory */
    struct tern_cuda_chain_cards cards;
};

#endif

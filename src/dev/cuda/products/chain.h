/* dev/cuda/products/chain.h - what one decode row goes through behind its attention, as one kernel (chain.cu).  Read by
 * C and by CUDA. */
#ifndef TERN_DEV_CUDA_CHAIN_H
#define TERN_DEV_CUDA_CHAIN_H

#include "dev/cuda/products/products.h"

/* Warps that multiply, in two groups of eight, and four more: one lane asks for weights, one warp puts outputs
 * together. A stage is what a group takes at a time of a panel: eight units of 256 inputs, one a warp. */
#define TERN_CUDA_CHAIN_WARPS   16
#define TERN_CUDA_CHAIN_THREADS ((TERN_CUDA_CHAIN_WARPS + 4) * 32)
#define TERN_CUDA_CHAIN_UNITS   8
#define TERN_CUDA_CHAIN_STAGES  24   /* most */
#define TERN_CUDA_CHAIN_BESIDE  6144 /* bytes of shared memory for parts of sums, barriers and arguments */
#define TERN_CUDA_CHAIN_NORM    4096 /* most columns of the residual */
#define TERN_CUDA_CHAIN_NEXT    3    /* most products behind the last norm */

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

/* One row: y0 = m[0] * q8; x += y0; h = act(m[1] * norm(x)) * (m[2] * norm(x)); y3 = m[3] * h; x += y3; n = norm(x);
 * m[4 ..] * n.  All matrices are of one kind, and sums have eight parts.  q8: of the first product's row before, of n
 * behind.  All that kernels apart would write is written, but for gate's output, in whose place h is. */
struct tern_cuda_chain {
    struct tern_cuda_product m[4 + TERN_CUDA_CHAIN_NEXT];
    struct tern_cuda_chain_norm norm[2];
    uint64_t q8, x, n, h;
    uint64_t met;                    /* uint64_t: how often a block of threads has come to a meeting of all */
    int32_t n_m, op, panels, stages; /* panels of the last products; stages in shared memory */
    int32_t row_bytes, unused;       /* of a row in shared memory */
};

#endif

/* dev/cuda/few/hyper.h - arguments of the kernels of hyper.cu.  Strides in floats.  Read by C and by CUDA. */
#ifndef TERN_DEV_CUDA_FEW_HYPER_H
#define TERN_DEV_CUDA_FEW_HYPER_H

#include <stdint.h>

/* gate at most limit, up in [-limit, limit]; block (row, TERN_CUDA_CLAMP columns). */
struct tern_cuda_clamp_args {
    uint64_t gate, gate_stride, up, up_stride;
    int32_t n;
    float limit;
};
#define TERN_CUDA_CLAMP 1024

/* A warp for each head of each row, in 4 * dim bytes of shared memory. */
struct tern_cuda_grid_args {
    uint64_t x, stride;
    int32_t n_heads, dim, n_rows, fp4;
};
#define TERN_CUDA_GRID_WARPS 4 /* of a block */

/* struct tern_hyper.  x: what the streams' sum becomes, or what is added to them.  hyper_read: a block for each row;
 * hyper_write: block (row, TERN_CUDA_HYPER_COLUMNS dims). */
struct tern_cuda_hyper_args {
    uint64_t m, m_stride, streams, stream_stride, x, x_stride, base, scale;
    int32_t n, dim, iterations;
    float eps, norm_eps;
    int32_t unused;
};
#define TERN_CUDA_HYPER_THREADS 1024
#define TERN_CUDA_HYPER_COLUMNS 256

#endif

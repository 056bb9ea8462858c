/* dev/cuda/few/delta.h - arguments of the kernels of delta.cu.  Strides in floats.  Read by C and by CUDA. */
#ifndef TERN_DEV_CUDA_FEW_DELTA_H
#define TERN_DEV_CUDA_FEW_DELTA_H

#include "dev/cuda/tables.h"

struct tern_cuda_delta_args {
    struct tern_cuda_tables t;
    uint64_t x, stride, decay, beta, gate_stride, out, out_stride;
    uint64_t conv, a, dt;
    uint64_t state_off; /* of the layer in a block of states, one for each cache: uint64_t [n_caches] */
    int32_t n_k, n_v, dk, dv, width, grouped, channels, unused;
};

#endif

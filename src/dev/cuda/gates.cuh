/* dev/cuda/gates.cuh - activations of gates.  Roundings are written out: kernels that do the same must answer the same. */
#ifndef TERN_DEV_CUDA_GATES_CUH
#define TERN_DEV_CUDA_GATES_CUH

#include "dev/cuda/kernel.cuh"
#include "dev/cuda/together/together.h"

__device__ static inline float sigmoid_of(float x)
{
    return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-x)));
}

/* act(x) * y; op: TERN_CUDA_SILU, TERN_CUDA_GELU or TERN_CUDA_SIGMOID. */
__device__ static inline float gate_of(int op, float x, float y)
{
    if (op == TERN_CUDA_SILU)
        return x == -INFINITY ? __fmul_rn(-0.0f, y) : __fmul_rn(__fdiv_rn(x, __fadd_rn(1.0f, expf(-x))), y);
    if (op == TERN_CUDA_SIGMOID)
        return __fmul_rn(sigmoid_of(x), y);
    const float cube = __fmul_rn(__fmul_rn(__fmul_rn(0.044715f, x), x), x);
    const float turn = tanhf(__fmul_rn(0.7978845608028654f, __fadd_rn(x, cube)));
    return __fmul_rn(__fmul_rn(__fmul_rn(0.5f, x), __fadd_rn(1.0f, turn)), y);
}

__device__ static inline float4 gate_four(int op, float4 x, float4 y)
{
    return make_float4(gate_of(op, x.x, y.x), gate_of(op, x.y, y.y), gate_of(op, x.z, y.z), gate_of(op, x.w, y.w));
}

#endif

/* Attention of decode rows on codes, keys and values of one kind (codes_block.cuh). */
#include "dev/cuda/attn/codes/codes_block.cuh"

#define FEW(d, name, c)                                                               \
    TERN_CUDA_KERNEL_BEGIN(codes_few_##d##_##name, tern_cuda_attn_args, THREADS, 3)   \
    {                                                                                 \
        attend_codes<d, c, 1, false>(a);                                              \
    }
#define OWN(d, name, c)                                                                            \
    TERN_CUDA_KERNEL_BEGIN(codes_own_##d##_##name, tern_cuda_codes_own_args, THREADS + HELPERS, 2) \
    {                                                                                              \
        attend_codes<d, c, 1, true>(a);                                                            \
    }
#define KERNELS(d)               \
    KERNEL(d, 2, CODES_2, 4)     \
    KERNEL(d, 3, CODES_3, 4)     \
    KERNEL(d, 4, CODES_4, 4)     \
    KERNEL(d, t4, CODES_T4, 3)   \
    KERNEL(d, 8, CODES_8, 2)     \
    KERNEL(d, t3, CODES_T3, 3)   \
    KERNEL(d, t2, CODES_T2, 3)   \
    FEW(d, 2, CODES_2)           \
    FEW(d, 3, CODES_3)           \
    FEW(d, 4, CODES_4)           \
    OWN(d, 2, CODES_2)           \
    OWN(d, 3, CODES_3)           \
    OWN(d, 4, CODES_4)           \
    OWN(d, t4, CODES_T4)         \
    OWN(d, 8, CODES_8)           \
    OWN(d, t3, CODES_T3)         \
    OWN(d, t2, CODES_T2)
KERNELS(64)
KERNELS(128)
#undef KERNELS
KERNEL(256, 2, CODES_2, 2)
KERNEL(256, 3, CODES_3, 2)
KERNEL(256, 4, CODES_4, 2)
KERNEL(256, t4, CODES_T4, 2)
KERNEL(256, 8, CODES_8, 1)
KERNEL(256, t3, CODES_T3, 2)
KERNEL(256, t2, CODES_T2, 2)

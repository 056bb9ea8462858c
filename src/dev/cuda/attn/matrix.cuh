/* dev/cuda/attn/matrix.cuh - matrices of a warp on tensor cores: halves, where they lie in shared memory, four of 8 by 8 out
 * of it, turned or not, and the product m16n8k16. */
#ifndef TERN_DEV_CUDA_ATTN_MATRIX_CUH
#define TERN_DEV_CUDA_ATTN_MATRIX_CUH

#include <cuda_fp16.h>
#include <stdint.h>

__device__ static inline uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Rows of 128 bytes, of which eight make a pattern of 1024: 16-byte pieces change places by row. */
__device__ static inline uint32_t piece_at(int row, int piece)
{
    return (uint32_t)(row * 128 + ((piece ^ (row & 7)) << 4));
}

/* Where a lane reads of 16 such rows: of their columns 16 n to 16 n + 15. */
__device__ static inline uint32_t lane_at(int n)
{
    const int lane = threadIdx.x % 32;
    return piece_at(lane % 16, 2 * n + lane / 16);
}

/* And where it reads of 16 rows that a product has as columns, for what load4_turned brings to be in the order of operands. */
__device__ static inline int turned_row()
{
    return threadIdx.x % 8 + threadIdx.x % 32 / 16 * 8;
}

__device__ static inline int turned_piece()
{
    return threadIdx.x / 8 % 2;
}

/* As halves, whose largest magnitude is 65,504. */
__device__ static inline __half as_half(float x)
{
    return __float2half_rn(fmaxf(fminf(x, 65504.0f), -65504.0f));
}

__device__ static inline uint32_t two_halves(float x, float y)
{
    return (uint32_t)__half_as_ushort(as_half(x)) | (uint32_t)__half_as_ushort(as_half(y)) << 16;
}

/* Of numbers that are known to be small. */
__device__ static inline uint32_t small_halves(float x, float y)
{
    const __half2 h = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint32_t *>(&h);
}

/* 2^x. */
__device__ static inline float power(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline void load4(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ static inline void load4(uint32_t r[4], const __half *p)
{
    load4(r, shared_at(p));
}

__device__ static inline void load4_turned(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ static inline void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif

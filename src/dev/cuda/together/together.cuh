/* dev/cuda/together/together.cuh - how a card tells another that rows have come, and reads what has. */
#ifndef TERN_DEV_CUDA_TOGETHER_CUH
#define TERN_DEV_CUDA_TOGETHER_CUH

#include "dev/cuda/kernel.cuh"
#include "dev/cuda/together/together.h"

/* Nobody waits for ever: a card that is lost would take the others along. */
#define PATIENCE 20000000000ull /* ns */

__device__ static inline uint64_t seen(const uint64_t *flag)
{
#ifdef __CUDA_ARCH__
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(flag) : "memory");
    return v;
#else
    return *flag;
#endif
}

__device__ static inline void say(uint64_t *flag, uint64_t v)
{
#ifdef __CUDA_ARCH__
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(v) : "memory");
#else
    *flag = v;
#endif
}

/* What this thread has written is there for everybody. */
__device__ static inline void sent()
{
#ifdef __CUDA_ARCH__
    __threadfence_system();
#endif
}

__device__ static inline void wait_for(const uint64_t *flag, uint64_t number)
{
#ifdef __CUDA_ARCH__
    uint64_t start, now;
    if (seen(flag) >= number)
        return;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    while (seen(flag) < number) {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        if (now - start > PATIENCE)
            __trap();
    }
#endif
}

/* Four numbers that another card may have written. */
__device__ static inline float4 load_sent(const float *p)
{
#ifdef __CUDA_ARCH__
    return __ldcg(reinterpret_cast<const float4 *>(p));
#else
    return *reinterpret_cast<const float4 *>(p);
#endif
}

__device__ static inline float *stage_at(const tern_cuda_together &a, int card, int row, int col)
{
    return cuda_at<float>(a.stage[card]) + (uint64_t)row * a.pitch + col;
}

/* All threads of the block have sent: says so, and waits for the same block of the others. */
__device__ static inline void meet(const tern_cuda_together &a)
{
    const uint64_t number = *cuda_at<const uint64_t>(a.number) << 12 | (uint64_t)a.which;
    const int other = threadIdx.x;
    sent();
    __syncthreads();
    if (other < a.n_cards && other != a.self) {
        const uint64_t *mine = cuda_at<const uint64_t>(a.flags[a.self]) + other * TERN_CUDA_TOGETHER_BLOCKS;
        say(cuda_at<uint64_t>(a.flags[other]) + a.self * TERN_CUDA_TOGETHER_BLOCKS + blockIdx.x, number);
        wait_for(mine + blockIdx.x, number);
    }
    __syncthreads();
}

#endif

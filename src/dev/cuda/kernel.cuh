/* dev/cuda/kernel.cuh - what all kernels begin with.
 *
 * A kernel takes one struct by value: TERN_CUDA_KERNEL_BEGIN(name, struct args) { ... a.member ... }.  Its launch may
 * overlap with the end of the kernel before it: nothing that another kernel wrote may be read before cuda_wait(), and
 * every thread of every kernel calls it.  What an earlier kernel of the step wrote is read by plain loads, never by
 * __ldg, whose cache may be older than the wait. */
#ifndef TERN_DEV_CUDA_KERNEL_CUH
#define TERN_DEV_CUDA_KERNEL_CUH

#include <stdint.h>

#define TERN_CUDA_KERNEL_BEGIN(name, args, threads, blocks) \
    extern "C" __global__ void __launch_bounds__(threads, blocks) tern_cuda_k_##name(const __grid_constant__ args a)

/* Lets the next kernel start, to do what it can before it waits. */
__device__ static inline void cuda_start_next()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits for the kernel before this one, whose memory is seen from here on; lets the next one start to do so. */
__device__ static inline void cuda_wait()
{
    cuda_start_next();
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* For what a step reads once, weights and closed pages: it leaves the card's cache first.  What every layer reads (tables,
 * activations, the kernels themselves) stays, and is not waited for behind the weights' reading. */
__device__ static inline uint64_t cuda_once()
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* 16 bytes on their way to shared memory. */
__device__ static inline void cuda_copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Or zeros. */
__device__ static inline void cuda_copy_16_or_0(uint32_t to, const void *from, bool real)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(real ? 16u : 0u) : "memory");
}

__device__ static inline void cuda_copy_16(uint32_t to, const void *from, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "l"(policy) : "memory");
}

/* 8 bytes. */
__device__ static inline void cuda_copy_8(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

/* The sum of x of the warp's lanes up to this one. */
__device__ static inline int cuda_sum_up_to(int x)
{
    const int lane = threadIdx.x % 32;
    for (int width = 1; width < 32; width *= 2) {
        const int other = __shfl_sync(~0u, x, lane - width);
        x += lane >= width ? other : 0;
    }
    return x;
}

template <class T> __device__ static inline T *cuda_at(uint64_t address)
{
    return reinterpret_cast<T *>(address);
}

#endif

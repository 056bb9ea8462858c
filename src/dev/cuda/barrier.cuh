/* dev/cuda/barrier.cuh - barriers in shared memory (compute capability 9.0), on which threads wait for each other and for
 * copies.  A barrier is 8 bytes, `at` its address there; a phase of it is over when all have arrived that it was opened for, and
 * all bytes that were expected. */
#ifndef TERN_DEV_CUDA_BARRIER_CUH
#define TERN_DEV_CUDA_BARRIER_CUH

#include <stdint.h>

/* By one thread; then all threads meet, behind barriers_opened() of those that opened. */
__device__ static inline void barrier_open(uint32_t at, uint32_t threads)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(threads) : "memory");
}

__device__ static inline void barriers_opened()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ static inline void barrier_arrive(uint32_t at)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}

/* Arrives, and so many bytes are to be copied in this phase. */
__device__ static inline void barrier_expect(uint32_t at, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes) : "memory");
}

/* Until a phase is over; phase: 0 of the first, then 1, and so on in turn. */
__device__ static inline void barrier_wait(uint32_t at, uint32_t phase)
{
    uint32_t there;
    do
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                     : "=r"(there)
                     : "r"(at), "r"(phase)
                     : "memory");
    while (!there);
}

/* Bytes on their way to shared memory, which the barrier waits for. */
__device__ static inline void barrier_copy(uint32_t at, uint32_t to, const uint8_t *from, uint32_t bytes, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(at), "l"(policy)
                 : "memory");
}

#endif

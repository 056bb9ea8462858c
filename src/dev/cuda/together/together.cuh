/* dev/cuda/together/together.cuh - how a card tells another that rows have come, and reads what has. */
#ifndef TERN_DEV_CUDA_TOGETHER_CUH
#define TERN_DEV_CUDA_TOGETHER_CUH

#include "dev/cuda/kernel.cuh"
#include "dev/cuda/together/together.h"

/* Nobody waits for ever: a card that is lost would take the others along. */
#define PATIENCE 20000000000ull /* ns */

__device__ static inline uint64_t clock_now()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

/* Called again and again by who waits, since the first time in `start`, which begins as 0. */
__device__ static inline void be_patient(uint64_t &start)
{
    const uint64_t now = clock_now();
    start = start ? start : now;
    if (now - start > PATIENCE)
        __trap();
}

/* The number of a gather.  The step's part of it lies there before any of its kernels begins, so it may be asked for
 * before cuda_wait(). */
__device__ static inline uint64_t number_at(uint64_t number, int which)
{
    uint64_t first;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(first) : "l"(cuda_at<const uint64_t>(number)));
    return first + (uint64_t)which;
}

__device__ static inline uint64_t number_of(const tern_cuda_together &a)
{
    return number_at(a.number, a.which);
}

/* ---- through the stages ------------------------------------------------------------------------------------------ */

/* Place of four columns of a row, in words: of 128 columns first the first two of each four, then the others, 64 words
 * further, so that what a warp writes at a time lies together. */
__device__ static inline uint32_t place_of_four(uint32_t col)
{
    return col / 128 * 128 + col % 128 / 4 * 2;
}

__device__ static inline uint64_t *stage_at(const tern_cuda_together &a, uint64_t number, int card, int row, int col)
{
    return cuda_at<uint64_t>(a.stage[card]) + number % 2 * TERN_CUDA_TOGETHER_STAGE + (uint64_t)row * a.pitch +
           place_of_four(col);
}

__device__ static inline uint64_t word_of(uint64_t number, float x)
{
    return number << 32 | __float_as_uint(x);
}

__device__ static inline void put_words(uint64_t *to, uint64_t x, uint64_t y)
{
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(to), "l"(x), "l"(y) : "memory");
}

/* No other memory depends on what is read here, so loads around it may move. */
__device__ static inline void look(const uint64_t *from, uint64_t &x, uint64_t &y)
{
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];" : "=l"(x), "=l"(y) : "l"(from));
}

/* Four columns as they are on their way. */
struct four_words {
    uint64_t x, y, z, w;

    __device__ void look_at(const uint64_t *from)
    {
        look(from, x, y);
        look(from + 64, z, w);
    }
    __device__ bool are(uint64_t number) const
    {
        const uint32_t want = (uint32_t)number;
        return (uint32_t)(x >> 32) == want && (uint32_t)(y >> 32) == want && (uint32_t)(z >> 32) == want &&
               (uint32_t)(w >> 32) == want;
    }
    __device__ float4 floats() const
    {
        return make_float4(__uint_as_float((uint32_t)x), __uint_as_float((uint32_t)y), __uint_as_float((uint32_t)z),
                           __uint_as_float((uint32_t)w));
    }
};

/* Four columns, to the stages of all other cards. */
__device__ static inline void send_four(const tern_cuda_together &a, uint64_t number, int row, int col, float4 v)
{
    for (int i = 0; i < a.n_cards; i++) {
        if (i == a.self)
            continue;
        uint64_t *to = stage_at(a, number, i, row, col);
        put_words(to, word_of(number, v.x), word_of(number, v.y));
        put_words(to + 64, word_of(number, v.z), word_of(number, v.w));
    }
}

/* Four columns, from this card's stage, as soon as they are there. */
__device__ static inline float4 receive_four(const tern_cuda_together &a, uint64_t number, int row, int col)
{
    const uint64_t *from = stage_at(a, number, a.self, row, col);
    four_words words;
    uint64_t start = 0;
    for (words.look_at(from); !words.are(number); words.look_at(from))
        be_patient(start);
    return words.floats();
}

/* ---- by flags ---------------------------------------------------------------------------------------------------- */

__device__ static inline uint64_t seen(const uint64_t *flag)
{
    uint64_t v;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(flag) : "memory");
    return v;
}

__device__ static inline void say(uint64_t *flag, uint64_t v)
{
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(v) : "memory");
}

__device__ static inline void wait_for(const uint64_t *flag, uint64_t number)
{
    uint64_t start = 0;
    while (seen(flag) < number)
        be_patient(start);
}

/* All threads of the block have sent: says so, and waits for the same block of the others. */
__device__ static inline void meet(const tern_cuda_together &a, uint64_t number)
{
    const int other = threadIdx.x;
    __threadfence_system();
    __syncthreads();
    if (other < a.n_cards && other != a.self) {
        const uint64_t *mine = cuda_at<const uint64_t>(a.flags[a.self]) + other * TERN_CUDA_TOGETHER_FLAGS;
        say(cuda_at<uint64_t>(a.flags[other]) + a.self * TERN_CUDA_TOGETHER_FLAGS + blockIdx.x, number);
        wait_for(mine + blockIdx.x, number);
    }
    __syncthreads();
}

#endif

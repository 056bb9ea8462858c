/* Rows of which each card has some columns become whole on all of them. */
#include "dev/cuda/together.h"
#include "dev/cuda/quantize.cuh"

#define THREADS 256
#define PIECE   (4 * THREADS) /* numbers of a row that a block moves at a time */

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

/* Pieces of a card's columns, row by row. */
__device__ static inline int pieces_of(const tern_cuda_gather &a, int card)
{
    return (a.bound[card + 1] - a.bound[card] + PIECE - 1) / PIECE;
}

/* What a thread has of piece `piece`: row and column; false: nothing. */
__device__ static inline bool place_of(const tern_cuda_gather &a, int card, int piece, int &row, int &col)
{
    const int each = pieces_of(a, card);
    row = piece / each;
    col = a.bound[card] + piece % each * PIECE + (int)threadIdx.x * 4;
    return col < a.bound[card + 1];
}

__device__ static inline float *stage_at(const tern_cuda_gather &a, int card, int row, int col)
{
    return cuda_at<float>(a.stage[card]) + (uint64_t)row * a.pitch + col;
}

__device__ static inline void keep_q8(const tern_cuda_gather &a, int row, int col, float4 v, bool real)
{
    if (a.q8)
        quantize_four(cuda_at<uint8_t>(a.q8), a.row_bytes, a.lanes, row, a.bound[a.n_cards], col / 32, col / 4 % 8, v,
                      real);
}

__device__ static inline void send(const tern_cuda_gather &a)
{
    const int n = pieces_of(a, a.self) * a.n_rows;
    for (int piece = blockIdx.x; piece < n; piece += gridDim.x) {
        int row, col;
        float4 v = make_float4(0, 0, 0, 0);
        const bool real = place_of(a, a.self, piece, row, col);
        const uint64_t at = row * a.stride + col;
        if (real)
            v = *reinterpret_cast<const float4 *>(cuda_at<const float>(a.x[a.self]) + at);
        for (int i = 0; real && i < a.n_cards; i++)
            if (i != a.self)
                *reinterpret_cast<float4 *>(a.stage[i] ? stage_at(a, i, row, col) : cuda_at<float>(a.x[i]) + at) = v;
        keep_q8(a, row, col, v, real);
    }
}

__device__ static inline void receive(const tern_cuda_gather &a, int card)
{
    const int n = pieces_of(a, card) * a.n_rows;
    for (int piece = blockIdx.x; piece < n; piece += gridDim.x) {
        int row, col;
        float4 v = make_float4(0, 0, 0, 0);
        const bool real = place_of(a, card, piece, row, col);
        if (real) {
            v = load_sent(stage_at(a, a.self, row, col));
            *reinterpret_cast<float4 *>(cuda_at<float>(a.x[a.self]) + row * a.stride + col) = v;
        }
        keep_q8(a, row, col, v, real);
    }
}

TERN_CUDA_KERNEL_BEGIN(together, tern_cuda_gather, THREADS, 1)
{
    cuda_wait();
    const uint64_t number = *cuda_at<const uint64_t>(a.number) << 12 | (uint64_t)a.which;
    send(a);
    sent();
    __syncthreads();
    const int other = threadIdx.x;
    if (other < a.n_cards && other != a.self) {
        const uint64_t *mine = cuda_at<const uint64_t>(a.flags[a.self]) + other * TERN_CUDA_TOGETHER_BLOCKS;
        say(cuda_at<uint64_t>(a.flags[other]) + a.self * TERN_CUDA_TOGETHER_BLOCKS + blockIdx.x, number);
        wait_for(mine + blockIdx.x, number);
    }
    __syncthreads();
    for (int i = 0; a.stage[a.self] && i < a.n_cards; i++)
        if (i != a.self)
            receive(a, i);
}

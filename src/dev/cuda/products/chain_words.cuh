/* dev/cuda/products/chain_words.cuh - what blocks of a chain send each other, of one card and of several (chain.h: why nothing
 * is overwritten that somebody waits for). */
#ifndef TERN_DEV_CUDA_CHAIN_WORDS_CUH
#define TERN_DEV_CUDA_CHAIN_WORDS_CUH

#include "dev/cuda/products/chain.h"
#include "dev/cuda/together/together.cuh"

/* What another block of this card wrote in this kernel. */
__device__ static inline float4 load_shared_four(uint64_t from, int i)
{
    float4 v;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(cuda_at<const float>(from) + i)
                 : "memory");
    return v;
}

/* The place of row `number` on a card. */
__device__ static inline uint64_t *place_of_row(const tern_cuda_chain_cards &c, uint32_t number, int card)
{
    return cuda_at<uint64_t>(c.places[card]) + number % TERN_CUDA_TOGETHER_CHAIN * TERN_CUDA_TOGETHER_ROW;
}

__device__ static inline uint32_t place_of_word(uint32_t i)
{
    return place_of_four(i) + i % 4 / 2 * 64 + i % 2;
}

__device__ static inline void put_word(uint64_t *to, uint32_t number, uint32_t x)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"((uint64_t)number << 32 | x) : "memory");
}

/* Word i of a row, to all cards, this one as well.  CARDS: there are several. */
template <bool CARDS> __device__ static inline void send_word(const tern_cuda_chain_cards &c, uint32_t number, int i, uint32_t x)
{
    const uint32_t at = place_of_word(i);
#pragma unroll 1
    for (int card = 0; card < (CARDS ? c.n : 1); card++)
        put_word(place_of_row(c, number, card) + at, number, x);
}

__device__ static inline uint64_t look_at_word(const uint64_t *from)
{
    uint64_t x;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(x) : "l"(from));
    return x;
}

/* The columns that are this card's. */
struct own_columns {
    int from, to;

    __device__ own_columns(const tern_cuda_chain_cards &c, const int *bound) : from(bound[c.self]), to(bound[c.self + 1])
    {
    }
    __device__ bool have(int col) const
    {
        return col >= from && col < to;
    }
};

/* Four numbers of a row: this card's, as they lie in memory, or four words of another's.  Both are asked for in the same
 * way, for what depends on which it is would wait for the first of several loads before the next one begins. */
struct four_of_row {
    four_words words;

    __device__ void look(bool own, const void *memory, const uint64_t *place)
    {
        const uint64_t *from = own ? static_cast<const uint64_t *>(memory) : place;
        ::look(from, words.x, words.y);
        words.z = words.w = 0;
        if (!own)
            ::look(from + 64, words.z, words.w);
    }
    __device__ bool there(bool own, uint32_t number) const
    {
        return own || words.are(number);
    }
    __device__ float4 get(bool own) const
    {
        return own ? make_float4(__uint_as_float((uint32_t)words.x), __uint_as_float((uint32_t)(words.x >> 32)),
                                 __uint_as_float((uint32_t)words.y), __uint_as_float((uint32_t)(words.y >> 32)))
                   : words.floats();
    }
};

/* ---- rows as words ---- */

/* Of a row of n words, four at i + j * step, j < N. */
template <int N> struct row_words {
    const uint64_t *place;
    uint32_t number;
    four_words four[N];

    __device__ row_words(const tern_cuda_chain_cards &c, uint32_t of_row) : place(place_of_row(c, of_row, c.self)), number(of_row)
    {
    }
    __device__ void wait(int i, int step, int n)
    {
        for (uint64_t start = 0;; be_patient(start)) {
            bool there = true;
#pragma unroll
            for (int j = 0; j < N; j++)
                four[j].look_at(place + place_of_four(min(i + j * step, n - 4)));
#pragma unroll
            for (int j = 0; j < N; j++)
                there = there && four[j].are(number);
            if (there)
                return;
        }
    }
};

/* ---- the row before the first product ---- */

/* Of a row at x, of n columns, four at i + j * step, j < N. */
template <int N> struct fours {
    const own_columns own;
    const uint64_t *place;
    uint32_t number;
    uint64_t x;
    four_of_row four[N];

    __device__ fours(const tern_cuda_chain_cards &c, const int *bound, uint32_t number_, uint64_t x_)
        : own(c, bound), place(place_of_row(c, number_, c.self)), number(number_), x(x_)
    {
    }
    /* Are all there? */
    __device__ bool look(int i, int step, int n)
    {
        bool there = true;
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int col = i + j * step < n ? i + j * step : own.from;
            four[j].look(own.have(col), cuda_at<const float>(x) + col, place + place_of_four(col));
        }
#pragma unroll
        for (int j = 0; j < N; j++)
            there = there && four[j].there(i + j * step >= n || own.have(i + j * step), number);
        return there;
    }
    __device__ void wait(int i, int step, int n)
    {
        uint64_t start = 0;
#pragma unroll 1
        while (!look(i, step, n))
            be_patient(start);
    }
    /* Those of j, from column i on.  keeps: what came goes to memory. */
    __device__ float4 get(int j, int i, bool keeps) const
    {
        const float4 v = four[j].get(own.have(i));
        if (keeps && !own.have(i))
            *reinterpret_cast<float4 *>(cuda_at<float>(x) + i) = v;
        return v;
    }
};

/* This card's columns, one for each of so many threads of all blocks: `thread` counts over all. */
__device__ static inline void send_columns(const tern_cuda_chain_cards &c, const int *bound, uint32_t number, uint64_t x, int thread,
                                           int threads)
{
    for (int col = bound[c.self] + thread; col < bound[c.self + 1]; col += threads)
        send_word<true>(c, number, col, __float_as_uint(cuda_at<const float>(x)[col]));
}

/* ---- a row of int8 ---- */

/* A block of 32 columns, of a warp: q, each lane's, of which words have four; its scale, and scale * sum.  half: 0 or 1, the
 * columns and the scale, or the sum, that are the caller's; -1: all. */
template <bool CARDS>
__device__ static inline void send_block(const tern_cuda_chain_cards &c, uint32_t number, int k, int block, int half, int q, float scale,
                                         float sum)
{
    const int lane = threadIdx.x % 32, quad = lane / 4;
    uint32_t x = (uint32_t)(q & 255) << 8 * (lane % 4);
    x |= __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    x |= __shfl_xor_sync(0xFFFFFFFFu, x, 2);
    int word = block * 8 + quad % 4 * 2 + quad / 4;
    if (lane % 16 == 1) {
        word = (lane == 1 ? k : k + k / 8) / 4 + block;
        x = __float_as_uint(lane == 1 ? scale : sum);
    }
    if ((lane % 4 == 0 || lane % 16 == 1) && (half < 0 || lane / 16 == half))
        send_word<CARDS>(c, number, word, x);
}

/* The row, by all of so many threads, each eight words at a time. */
__device__ static inline void receive_row(const tern_cuda_chain_cards &c, uint32_t number, uint8_t *row, int k, int threads)
{
#pragma unroll 1
    for (int first = threadIdx.x * 4; first < k / 16 * 5; first += 2 * threads * 4) {
        row_words<2> came(c, number);
        came.wait(first, threads * 4, k / 16 * 5);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int i = first + j * threads * 4;
            if (i < k / 16 * 5)
                *reinterpret_cast<float4 *>(row + i * 4) = came.four[j].floats();
        }
    }
}

#endif

/* dev/cuda/products/chain_cards.cuh - what cards that compute together send each other in a chain (chain.h: why nothing is
 * overwritten that somebody waits for). */
#ifndef TERN_DEV_CUDA_CHAIN_CARDS_CUH
#define TERN_DEV_CUDA_CHAIN_CARDS_CUH

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
    return cuda_at<uint64_t>(c.stage[card]) + 2 * TERN_CUDA_TOGETHER_STAGE +
           number % TERN_CUDA_TOGETHER_CHAIN * TERN_CUDA_TOGETHER_ROW;
}

__device__ static inline uint32_t place_of_word(uint32_t i)
{
    return place_of_four(i) + i % 4 / 2 * 64 + i % 2;
}

/* Word i of a row, to all other cards. */
__device__ static inline void send_word(const tern_cuda_chain_cards &c, uint32_t number, int i, uint32_t x)
{
#pragma unroll 1
    for (int card = 0; card < c.n; card++)
        if (card != c.self)
            asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(place_of_row(c, number, card) + place_of_word(i)),
                         "l"((uint64_t)number << 32 | x)
                         : "memory");
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

/* ---- rows of floats ---- */

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
        send_word(c, number, col, __float_as_uint(cuda_at<const float>(x)[col]));
}

/* ---- a row of int8 ---- */

/* A block of 32 columns, of a warp: q, each lane's, of which words have four; its scale, and scale * sum. */
__device__ static inline void send_block(const tern_cuda_chain_cards &c, uint32_t number, int k, int block, int q, float scale, float sum)
{
    const int lane = threadIdx.x % 32, quad = lane / 4;
    uint32_t x = (uint32_t)(q & 255) << 8 * (lane % 4);
    x |= __shfl_xor_sync(0xFFFFFFFFu, x, 1);
    x |= __shfl_xor_sync(0xFFFFFFFFu, x, 2);
    int word = block * 8 + quad % 4 * 2 + quad / 4;
    if (lane == 1 || lane == 2) {
        word = (lane == 1 ? k : k + k / 8) / 4 + block;
        x = __float_as_uint(lane == 1 ? scale : sum);
    }
    if (lane % 4 == 0 || lane < 3)
        send_word(c, number, word, x);
}

/* Two pieces of a row of k columns for each of so many threads.  Piece i: four words of codes, and one of scales and sums,
 * of which a row has as many. */
struct two_pieces {
    const own_columns own;
    const uint64_t *place;
    uint32_t number;
    int k;
    four_of_row codes[2];
    uint64_t scale[2]; /* of this card two, of which i says which */

    __device__ two_pieces(const tern_cuda_chain_cards &c, uint32_t number_, int k_)
        : own(c, c.h_bound), place(place_of_row(c, number_, c.self)), number(number_), k(k_)
    {
    }
    __device__ bool own_codes(int i) const
    {
        return own.have(i * 16);
    }
    __device__ bool own_scale(int i) const
    {
        return own.have((i < k / 32 ? i : i - k / 32) * 32);
    }
    /* Are both there?  Behind the row's last piece that one again. */
    __device__ bool look(uint64_t q8, int first, int threads)
    {
        bool there = true;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int i = min(first + j * threads, k / 16 - 1);
            codes[j].look(own_codes(i), cuda_at<const uint8_t>(q8) + i * 16, place + place_of_four(i * 4));
            scale[j] = look_at_word(own_scale(i) ? cuda_at<const uint64_t>(q8 + k) + i / 2 : place + place_of_word(k / 4 + i));
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int i = min(first + j * threads, k / 16 - 1);
            there = there && codes[j].there(own_codes(i), number) && (own_scale(i) || (uint32_t)(scale[j] >> 32) == number);
        }
        return there;
    }
    __device__ void put(uint8_t *row, int j, int i) const
    {
        reinterpret_cast<float4 *>(row)[i] = codes[j].get(own_codes(i));
        reinterpret_cast<uint32_t *>(row + k)[i] = (uint32_t)(own_scale(i) && i % 2 ? scale[j] >> 32 : scale[j]);
    }
};

/* The row, by all of so many threads. */
__device__ static inline void receive_row(const tern_cuda_chain_cards &c, uint32_t number, uint8_t *row, uint64_t q8, int k, int threads)
{
#pragma unroll 1
    for (int first = threadIdx.x; first < k / 16; first += 2 * threads) {
        two_pieces p(c, number, k);
        uint64_t start = 0;
#pragma unroll 1
        while (!p.look(q8, first, threads))
            be_patient(start);
        p.put(row, 0, first);
        if (first + threads < k / 16)
            p.put(row, 1, first + threads);
    }
}

#endif

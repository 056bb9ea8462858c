/* Rows of which each card has some columns become whole on all of them. */
#include "dev/cuda/together/together.cuh"
#include "dev/cuda/together/for_products.h"
#include "dev/cuda/four.cuh"
#include "dev/cuda/gates.cuh"
#include "dev/cuda/half.cuh"
#include "dev/cuda/quantize.cuh"

#define THREADS 256
#define PIECE   (4 * THREADS) /* numbers of a row that a block moves at a time */

/* Pieces of a card's columns, row by row. */
__device__ static inline int pieces_of(const tern_cuda_together &a, int card)
{
    return (a.bound[card + 1] - a.bound[card] + PIECE - 1) / PIECE;
}

/* What a thread has of piece `piece`: row and column; false: nothing. */
__device__ static inline bool place_of(const tern_cuda_together &a, int card, int piece, int &row, int &col)
{
    const int each = pieces_of(a, card);
    row = piece / each;
    col = a.bound[card] + piece % each * PIECE + (int)threadIdx.x * 4;
    return col < a.bound[card + 1];
}

__device__ static inline float4 *four_at(uint64_t x, uint64_t at)
{
    return reinterpret_cast<float4 *>(cuda_at<float>(x) + at);
}

__device__ static inline void keep_q8(const tern_cuda_together &a, int row, int col, float4 v, bool real)
{
    if (a.q8)
        quantize_four(cuda_at<uint8_t>(a.q8), a.row_bytes, a.lanes, row, a.bound[a.n_cards], col / 32, col / 4 % 8, v,
                      real);
}

__device__ static inline void send(const tern_cuda_together &a, uint64_t number)
{
    const int n = pieces_of(a, a.self) * a.n_rows;
    for (int piece = blockIdx.x; piece < n; piece += gridDim.x) {
        int row, col;
        float4 v = make_float4(0, 0, 0, 0);
        const bool real = place_of(a, a.self, piece, row, col);
        if (real) {
            float4 *own = four_at(a.x[a.self], row * a.stride + col);
            v = *own;
            if (a.up) {
                v = gate_four(a.op, v, *four_at(a.up, row * a.up_stride + (col - a.bound[a.self])));
                *own = v;
            }
            send_four(a, number, row, col, v);
        }
        keep_q8(a, row, col, v, real);
    }
}

__device__ static inline void receive(const tern_cuda_together &a, uint64_t number, int card)
{
    const int n = pieces_of(a, card) * a.n_rows;
    for (int piece = blockIdx.x; piece < n; piece += gridDim.x) {
        int row, col;
        float4 v = make_float4(0, 0, 0, 0);
        const bool real = place_of(a, card, piece, row, col);
        if (real) {
            v = receive_four(a, number, row, col);
            *four_at(a.x[a.self], row * a.stride + col) = v;
        }
        keep_q8(a, row, col, v, real);
    }
}

/* Never with a gate: a gather of nothing stands between (together.c). */
__device__ static inline void send_straight(const tern_cuda_together &a)
{
    const int n = pieces_of(a, a.self) * a.n_rows;
    for (int piece = blockIdx.x; piece < n; piece += gridDim.x) {
        int row, col;
        if (!place_of(a, a.self, piece, row, col))
            continue;
        const uint64_t at = row * a.stride + col;
        const float4 v = *four_at(a.x[a.self], at);
        for (int i = 0; i < a.n_cards; i++)
            if (i != a.self)
                *four_at(a.x[i], at) = v;
    }
}

TERN_CUDA_KERNEL_BEGIN(together, tern_cuda_together, THREADS, 1)
{
    const uint64_t number = number_of(a);
    cuda_wait();
    if (a.stage[a.self])
        send(a, number);
    else
        send_straight(a);
    if (a.meets)
        meet(a, number);
    for (int i = 0; a.stage[a.self] && i < a.n_cards; i++)
        if (i != a.self)
            receive(a, number, i);
}

/* ---- for products ------------------------------------------------------------------------------------------------ */

#define FOR_THREADS 512
#define FOR_KEPT    4 /* of a thread, four numbers each: 8,192 columns of a card are read once */

__device__ static inline uint64_t *top_word(const tern_cuda_together &g, uint64_t number, int card, int row, int sender)
{
    return cuda_at<uint64_t>(g.stage[card]) + number % 2 * TERN_CUDA_TOGETHER_STAGE +
           (uint64_t)(row * TERN_CUDA_TOGETHER + sender) * 2;
}

/* The largest number of a row, of which this card's columns have `own`: one thread for each card sends and waits. */
__device__ static inline float row_top(const tern_cuda_together &g, uint64_t number, int row, float own)
{
    __shared__ float tops[TERN_CUDA_TOGETHER];
    const int other = threadIdx.x;
    if (other < g.n_cards && other != g.self) {
        const uint64_t mine = word_of(number, own), *from = top_word(g, number, g.self, row, other);
        uint64_t x, y, start = 0;
        put_words(top_word(g, number, other, row, g.self), mine, mine);
        for (look(from, x, y); (uint32_t)(x >> 32) != (uint32_t)number; look(from, x, y))
            be_patient(start);
        tops[other] = __uint_as_float((uint32_t)x);
    }
    __syncthreads();
    for (int i = 0; i < g.n_cards; i++)
        own = i == g.self ? own : fmaxf(own, tops[i]);
    return own;
}

TERN_CUDA_KERNEL_BEGIN(for_products, tern_cuda_for_products, FOR_THREADS, 2)
{
    const tern_cuda_together &g = a.g;
    const uint64_t number = number_of(g);
    const int from = g.bound[g.self], n = g.bound[g.self + 1] - from,
              end = g.self == g.n_cards - 1 ? (int)a.pitch - from : n; /* what is behind a row is 0 */
    cuda_wait();
    for (int row = blockIdx.x; row < g.n_rows; row += gridDim.x) {
        const float *x = cuda_at<const float>(g.x[g.self]) + row * g.stride + from,
                    *up = cuda_at<const float>(g.up) + row * g.up_stride;
        float4 kept[FOR_KEPT];
        float top = 0;
        const auto value = [&](int i) {
            float4 v = i < n ? load_four(x, i, n) : make_float4(0, 0, 0, 0);
            return g.up && i < n ? gate_four(g.op, v, load_four(up, i, n)) : v;
        };
#pragma unroll
        for (int j = 0; j < FOR_KEPT; j++) {
            kept[j] = value(((int)threadIdx.x + j * FOR_THREADS) * 4);
            top = most_of(top, kept[j]);
        }
        for (int i = ((int)threadIdx.x + FOR_KEPT * FOR_THREADS) * 4; i < n; i += FOR_THREADS * 4)
            top = most_of(top, value(i));
        const int e = half_exponent(row_top(g, number, row, block_most<FOR_THREADS>(top)));
        const float by = exp2f((float)-e);
        if (threadIdx.x == 0)
            cuda_at<float>(a.scale)[row] = exp2f((float)e);
        const uint64_t at = row * a.pitch + (uint64_t)from;
        for (int i = 0; i < g.n_cards; i++) {
#pragma unroll
            for (int j = 0; j < FOR_KEPT; j++) {
                const int col = ((int)threadIdx.x + j * FOR_THREADS) * 4;
                if (col < end)
                    store_halves(cuda_at<__half>(a.half[i]) + at + col, kept[j], by);
            }
            for (int col = ((int)threadIdx.x + FOR_KEPT * FOR_THREADS) * 4; col < end; col += FOR_THREADS * 4)
                store_halves(cuda_at<__half>(a.half[i]) + at + col, value(col), by);
        }
        __syncthreads(); /* all have read what is shared */
    }
    meet(g, number);
}

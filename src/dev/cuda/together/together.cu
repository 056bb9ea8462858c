/* Rows of which each card has some columns become whole on all of them. */
#include "dev/cuda/together/together.cuh"
#include "dev/cuda/gates.cuh"
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

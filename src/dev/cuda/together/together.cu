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

__device__ static inline void keep_q8(const tern_cuda_together &a, int row, int col, float4 v, bool real)
{
    if (a.q8)
        quantize_four(cuda_at<uint8_t>(a.q8), a.row_bytes, a.lanes, row, a.bound[a.n_cards], col / 32, col / 4 % 8, v,
                      real);
}

__device__ static inline void send(const tern_cuda_together &a)
{
    const int n = pieces_of(a, a.self) * a.n_rows;
    for (int piece = blockIdx.x; piece < n; piece += gridDim.x) {
        int row, col;
        float4 v = make_float4(0, 0, 0, 0);
        const bool real = place_of(a, a.self, piece, row, col);
        const uint64_t at = row * a.stride + col;
        float4 *own = reinterpret_cast<float4 *>(cuda_at<float>(a.x[a.self]) + at);
        if (real)
            v = *own;
        if (real && a.up) {
            const float *up = cuda_at<const float>(a.up) + row * a.up_stride + (col - a.bound[a.self]);
            v = gate_four(a.op, v, *reinterpret_cast<const float4 *>(up));
            *own = v;
        }
        for (int i = 0; real && i < a.n_cards; i++)
            if (i != a.self)
                *reinterpret_cast<float4 *>(a.stage[i] ? stage_at(a, i, row, col) : cuda_at<float>(a.x[i]) + at) = v;
        keep_q8(a, row, col, v, real);
    }
}

__device__ static inline void receive(const tern_cuda_together &a, int card)
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

TERN_CUDA_KERNEL_BEGIN(together, tern_cuda_together, THREADS, 1)
{
    cuda_wait();
    send(a);
    meet(a);
    for (int i = 0; a.stage[a.self] && i < a.n_cards; i++)
        if (i != a.self)
            receive(a, i);
}

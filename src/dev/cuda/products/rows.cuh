/* dev/cuda/products/rows.cuh - several decode rows by a warp, as products.cu has one. */
#ifndef TERN_DEV_CUDA_PRODUCTS_ROWS_CUH
#define TERN_DEV_CUDA_PRODUCTS_ROWS_CUH

#include "dev/cuda/experts.h"
#include "dev/cuda/products/unit.cuh"

#define WARPS 8

/* 8 * G rows: the columns.  TILES: pairs of rows and one expert, G = 1 (experts.h). */
template <int C, int S, int G, bool TILES> __device__ static inline void narrow_rows(const tern_cuda_narrow &a)
{
    constexpr int BUFFERS = G < 2 ? 2 : 1; /* of a panel's parts: with one, threads meet once more and rows stay in the cache */
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float part[BUFFERS][WARPS][4 * G * 32]; /* of each warp: group, number of the lane's four, lane */
    const int row0 = blockIdx.x * 8 * G, k = a.m[0].w.k;
    int n_rows = a.n_rows;
    uint64_t matrix = (uint64_t)blockIdx.z * a.matrix_bytes;
    const int32_t *pair = nullptr; /* of the tile's rows */
    if (TILES) {
        cuda_wait();
        const tern_cuda_tile tile = cuda_at<const tern_cuda_tile>(a.tiles)[blockIdx.x];
        if (!tile.n)
            return;
        n_rows = row0 + tile.n;
        matrix = tile.expert * a.matrix_bytes;
        pair = cuda_at<const int32_t>(a.pairs) + tile.first;
    }
    feed<C, S> f(a, shared, matrix);
    const int lane = f.lane, warp = f.warp, warps = f.warps, blocks = f.blocks, units = f.units, g = lane / 4,
              t = lane % 4;
    f.fill(!TILES); /* weights are there before the step is */
    if (!TILES)
        cuda_wait();
    /* Eights of rows lie as they are read.  Where there is no further eight, the last one comes again. */
    const uint8_t *x = cuda_at<const uint8_t>(a.q8) + ((uint64_t)blockIdx.z * a.head_rows + row0) * a.row_bytes;
    const int more = (n_rows - 1 - row0) / 8;
    int turn = 0;
    for (int panel = blockIdx.y; panel < a.n_panels; panel += gridDim.y, turn++) {
        const tern_cuda_product &product = a.m[product_of(a, panel)];
        const tern_cuda_matrix &m = product.w;
        const int zero = kind_zero(S) ? m.zero : 0;
        float acc[G][4][4] = {};
        for (int u = warp; u < units; u += warps) {
            const uint8_t *from = f.take();
            const uint8_t *q[G];
            const float *scales[G];
#pragma unroll
            for (int c = 0; c < G; c++) { /* what lies behind the last block are other numbers of the scratch */
                const uint8_t *eight = x + (uint64_t)min(c, more) * (8 * a.row_bytes);
                q[c] = eight + u * 2048 + lane * 8;
                scales[c] = reinterpret_cast<const float *>(eight + 8 * k) + u * 64;
            }
            const int left = kind_whole(S) ? 8 : blocks - u * 8;
#pragma unroll
            for (int j = 0; j < 8; j++) {
                piece<C> code;
                two_scales sc;
                load_piece<C>(code, from + j * codes_unit(C), t, g);
                scales_of<S>(sc, m, unit_of<C, S>::scales(from), j, g);
#pragma unroll
                for (int c = 0; c < G; c++) {
                    const uint2 two = *reinterpret_cast<const uint2 *>(q[c] + j * 256);
                    float2 s = make_float2(0, 0), n = s;
                    if (j < left)
                        s = *reinterpret_cast<const float2 *>(scales[c] + j * 8 + 2 * t);
                    if (kind_minimum(S) && !minima_by_unit<S>() && j < left)
                        n = *reinterpret_cast<const float2 *>(scales[c] + blocks * 8 + j * 8 + 2 * t);
                    dots<S> d;
                    start_dots<S>(d, zero, two.x, two.y);
                    add_dots<C, S>(d, code, t, m.table, two.x, two.y);
#pragma unroll
                    for (int i = 0; i < 2; i++)
#pragma unroll
                        for (int r = 0; r < 2; r++)
                            acc[c][j / 2][2 * r + i] =
                                add_part<S>(acc[c][j / 2][2 * r + i], d, sc, r, i, i ? s.y : s.x, i ? n.y : n.x);
                }
            }
            if (minima_by_unit<S>()) {
                unit_minima minima;
                make_minima<S>(minima, unit_of<C, S>::scales(from), t, g);
#pragma unroll
                for (int c = 0; c < G; c++) {
                    const float *sums = scales[c] + blocks * 8 + t * 8 + g;
                    float v[4];
                    multiply_minima(v, minima, t < left ? sums[0] : 0, t + 4 < left ? sums[32] : 0);
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        acc[c][0][i] = __fmaf_rn(minima.by[i / 2], v[i], acc[c][0][i]);
                }
            }
            __syncwarp();
            f.ask();
        }
        float(*parts)[4 * G * 32] = part[turn % BUFFERS];
        if (BUFFERS == 1)
            __syncthreads();
#pragma unroll
        for (int c = 0; c < G; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                parts[warp][(c * 4 + i) * 32 + lane] =
                    sum_chains(acc[c][0][i], acc[c][1][i], acc[c][2][i], acc[c][3][i]);
        __syncthreads(); /* with two buffers one is enough: the next panel's parts but one wait at the next one's */
        for (int i = threadIdx.x; i < 4 * G * 32; i += blockDim.x) {
            const int number = i / 32 % 4, row = row0 + i / 128 * 8 + 2 * t + number % 2;
            const int col = (panel - product.panel0) * 16 + 2 * g + number / 2;
            if (row < n_rows && col < m.n)
                put_output(a, product, sum_parts(&parts[0][i], warps, 4 * G * 32), TILES ? pair[row - row0] : row, col);
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

#endif

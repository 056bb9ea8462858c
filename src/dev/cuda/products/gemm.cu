/* Products of prompt rows: weights are written out once per product (dense.cu), in 16-bit floats for the tensor cores or
 * in 32 bits for f32, and multiplied from there.
 *
 * An output is one chain over its inputs, 16 at a time on the tensor cores, whatever rows and columns share its tile:
 * a prompt may be cut anywhere. */
#include <cuda_fp16.h>
#include "dev/cuda/half.cuh"

/* ---- rows in 16-bit floats --------------------------------------------------------------------------------------- */

TERN_CUDA_KERNEL_BEGIN(half, tern_cuda_half, 256, 1)
{
    cuda_wait();
    const int row = blockIdx.x;
    const uint64_t from = a.rows ? cuda_at<const int32_t>(a.rows)[row] / a.per_row : row;
    const float *x = cuda_at<const float>(a.x) + from * a.stride;
    float top = 0;
    for (int i = threadIdx.x; i < a.k; i += 256)
        top = fmaxf(top, fabsf(x[i]));
    const int e = half_exponent(block_most<256>(top));
    const float by = exp2f((float)-e);
    if (threadIdx.x == 0)
        cuda_at<float>(a.scale)[row] = exp2f((float)e);
    __half2 *to = reinterpret_cast<__half2 *>(cuda_at<__half>(a.to) + row * a.pitch);
    for (int i = threadIdx.x * 2; i < (int)a.pitch; i += 512) {
        const float lo = i < a.k ? x[i] * by : 0, hi = i + 1 < a.k ? x[i + 1] * by : 0;
        to[i / 2] = __floats2half2_rn(lo, hi);
    }
}

/* ---- tensor cores ------------------------------------------------------------------------------------------------ */

#define BM     128
#define BN     128
#define BK     64
#define STAGES 3
#define TILE   (BM * BK * 2) /* bytes of either side's part of a stage */
#define RASTER 16            /* tiles of rows that share a tile of columns while it is in the cache */

__device__ static inline uint32_t shared_at(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ static inline void load_matrices(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

__device__ static inline void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A tile's row is 128 bytes; its 16-byte pieces change places by row, so that columns of pieces meet no bank twice. */
__device__ static inline uint32_t piece_at(int row, int piece)
{
    return (uint32_t)(row * 128 + ((piece ^ (row & 7)) << 4));
}

TERN_CUDA_KERNEL_BEGIN(gemm, tern_cuda_gemm, 256, 2)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, wm = warp / 4 * 64, wn = warp % 4 * 32;
    cuda_wait();
    int first = 0, n_rows = a.n_rows;
    if (a.groups) {
        const int2 g = cuda_at<const int2>(a.groups)[blockIdx.z];
        first = g.x;
        n_rows = g.y;
    }
    const int tiles_n = (a.n + BN - 1) / BN, tiles_m = (a.n_rows + BM - 1) / BM;
    const int group = blockIdx.x / (RASTER * tiles_n), in = blockIdx.x % (RASTER * tiles_n);
    const int tall = min(RASTER, tiles_m - group * RASTER);
    const int m0 = (group * RASTER + in % tall) * BM, n0 = in / tall * BN;
    if (m0 >= n_rows)
        return;
    const __half *x = cuda_at<const __half>(a.x) + (uint64_t)first * a.x_pitch;
    const __half *w = cuda_at<const __half>(a.w) + blockIdx.z * a.w_group;
    const int piece = threadIdx.x % 8, line = threadIdx.x / 8; /* and lines 32, 64, 96 on */
    const __half *from_x[4], *from_w[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        from_x[i] = x + (uint64_t)min(m0 + line + 32 * i, n_rows - 1) * a.x_pitch + piece * 8;
        from_w[i] = w + (uint64_t)min(n0 + line + 32 * i, a.n - 1) * a.w_pitch + piece * 8;
    }
    const int steps = a.k / BK;
    const uint32_t base = shared_at(shared);
    auto load = [&](int step) {
        const uint32_t at = base + (step % STAGES) * 2 * TILE;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            cuda_copy_16(at + piece_at(line + 32 * i, piece), from_x[i] + step * BK);
            cuda_copy_16(at + TILE + piece_at(line + 32 * i, piece), from_w[i] + step * BK);
        }
    };
    float acc[4][4][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps)
            load(s);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (int s = 0; s < steps; s++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        if (s + STAGES - 1 < steps)
            load(s + STAGES - 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const uint32_t at = base + (s % STAGES) * 2 * TILE;
#pragma unroll
        for (int kk = 0; kk < BK / 16; kk++) {
            uint32_t fa[4][4], fb[2][4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                load_matrices(fa[i], at + piece_at(wm + i * 16 + lane % 16, kk * 2 + lane / 16));
#pragma unroll
            for (int j = 0; j < 2; j++)
                load_matrices(fb[j], at + TILE + piece_at(wn + j * 16 + lane % 8 + lane / 16 * 8, kk * 2 + lane / 8 % 2));
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    multiply(acc[i][j], fa[i], fb[j / 2][j % 2 * 2], fb[j / 2][j % 2 * 2 + 1]);
        }
    }
    const tern_cuda_gemm_out out = out_of(a, n0);
    const float *scale = cuda_at<const float>(a.scale) + first, *bias = cuda_at<const float>(out.bias);
    float *y = cuda_at<float>(out.y) + (uint64_t)first * out.y_stride;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = m0 + wm + i * 16 + lane / 4 + h * 8;
            if (row >= n_rows)
                continue;
            const float by = scale[row];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int col = n0 - out.first + wn + j * 8 + lane % 4 * 2;
                float lo = acc[i][j][2 * h] * by, hi = acc[i][j][2 * h + 1] * by;
                float *to = y + (uint64_t)row * out.y_stride + col;
                if (col < out.n)
                    to[0] = bias ? lo + bias[col] : lo;
                if (col + 1 < out.n)
                    to[1] = bias ? hi + bias[col + 1] : hi;
            }
        }
}

/* ---- f32 --------------------------------------------------------------------------------------------------------- */

#define EM 64
#define EK 16

TERN_CUDA_KERNEL_BEGIN(exact, tern_cuda_exact, 256, 1)
{
    __shared__ __align__(16) float xs[EK][EM], ws[EK][EM];
    cuda_wait();
    int first = 0, n_rows = a.n_rows;
    if (a.groups) {
        const int2 g = cuda_at<const int2>(a.groups)[blockIdx.z];
        first = g.x;
        n_rows = g.y;
    }
    const int m0 = blockIdx.x * EM, n0 = blockIdx.y * EM, tm = threadIdx.x / 16 * 4, tn = threadIdx.x % 16 * 4;
    if (m0 >= n_rows)
        return;
    const float *x = cuda_at<const float>(a.x) + (uint64_t)first * a.x_stride + blockIdx.z * a.x_head;
    const float *w = cuda_at<const float>(a.w) + blockIdx.z * a.w_group;
    float acc[4][4] = {};
    const int line = threadIdx.x / 4, four = threadIdx.x % 4 * 4;
    for (int k0 = 0; k0 < a.k; k0 += EK) {
        const float *xr = x + (uint64_t)min(m0 + line, n_rows - 1) * a.x_stride + k0 + four;
        const float *wr = w + (uint64_t)min(n0 + line, a.n - 1) * a.w_pitch + k0 + four;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const bool real = k0 + four + i < a.k;
            xs[four + i][line] = real ? xr[i] : 0;
            ws[four + i][line] = real ? wr[i] : 0;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < EK; k++) {
            const float4 xv = *reinterpret_cast<const float4 *>(&xs[k][tm]), wv = *reinterpret_cast<const float4 *>(&ws[k][tn]);
            const float xa[4] = {xv.x, xv.y, xv.z, xv.w}, wa[4] = {wv.x, wv.y, wv.z, wv.w};
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    acc[i][j] = __fmaf_rn(wa[j], xa[i], acc[i][j]);
        }
        __syncthreads();
    }
    const float *bias = cuda_at<const float>(a.bias);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            const int row = m0 + tm + i, col = n0 + tn + j;
            if (row < n_rows && col < a.n)
                cuda_at<float>(a.y)[(uint64_t)(first + row) * a.y_stride + blockIdx.z * a.y_head + col] =
                    bias ? acc[i][j] + bias[col] : acc[i][j];
        }
}

/* Products of prompt rows on tensor cores of compute capability 9.0, whose matrices come out of shared memory: two
 * groups of four warps have 64 rows and 256 columns each, while copies of later steps are under way.
 *
 * As in gemm.cu an output is one chain over its inputs, 16 at a time, whatever rows and columns share its tile. */
#include <cuda_fp16.h>
#include "dev/cuda/four.cuh"
#include "dev/cuda/half.cuh"
#include "dev/cuda/kernel.cuh"
#include "dev/cuda/products/products.h"

#define BM     128
#define BN     256
#define BK     64
#define STAGES 4
#define SIDE_X (BM * BK * 2) /* bytes of a stage */
#define STAGE  (SIDE_X + BN * BK * 2)
#define RASTER 16 /* tiles of rows that share a tile of columns while it is in the cache */
#define PITCH  (BN + 8) /* of sums in shared memory */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || defined TERN_TEST_EMULATE_H

/* Rows of 128 bytes, of which eight make a pattern of 1024: 16-byte pieces change places by row. */
__device__ static inline uint32_t piece_at(int row, int piece)
{
    return (uint32_t)(row * 128 + ((piece ^ (row & 7)) << 4));
}

/* What the tensor cores are told of such a matrix: its place, the bytes from one pattern to the next, the pattern. */
__device__ static inline uint64_t matrix_at(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3FFF) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* c += 64 rows of x, 16 inputs, by 256 columns of w; all warps of a group. */
__device__ static inline void multiply(float c[128], uint64_t x, uint64_t w)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, 1, 1, 1, 0, 0;"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]),
                   "+f"(c[23]), "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
                   "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]),
                   "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]),
                   "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]), "+f"(c[49]), "+f"(c[50]),
                   "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]),
                   "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63]), "+f"(c[64]),
                   "+f"(c[65]), "+f"(c[66]), "+f"(c[67]), "+f"(c[68]), "+f"(c[69]), "+f"(c[70]), "+f"(c[71]),
                   "+f"(c[72]), "+f"(c[73]), "+f"(c[74]), "+f"(c[75]), "+f"(c[76]), "+f"(c[77]), "+f"(c[78]),
                   "+f"(c[79]), "+f"(c[80]), "+f"(c[81]), "+f"(c[82]), "+f"(c[83]), "+f"(c[84]), "+f"(c[85]),
                   "+f"(c[86]), "+f"(c[87]), "+f"(c[88]), "+f"(c[89]), "+f"(c[90]), "+f"(c[91]), "+f"(c[92]),
                   "+f"(c[93]), "+f"(c[94]), "+f"(c[95]), "+f"(c[96]), "+f"(c[97]), "+f"(c[98]), "+f"(c[99]),
                   "+f"(c[100]), "+f"(c[101]), "+f"(c[102]), "+f"(c[103]), "+f"(c[104]), "+f"(c[105]), "+f"(c[106]),
                   "+f"(c[107]), "+f"(c[108]), "+f"(c[109]), "+f"(c[110]), "+f"(c[111]), "+f"(c[112]), "+f"(c[113]),
                   "+f"(c[114]), "+f"(c[115]), "+f"(c[116]), "+f"(c[117]), "+f"(c[118]), "+f"(c[119]), "+f"(c[120]),
                   "+f"(c[121]), "+f"(c[122]), "+f"(c[123]), "+f"(c[124]), "+f"(c[125]), "+f"(c[126]), "+f"(c[127])
                 : "l"(x), "l"(w));
}

/* What is multiplied: rows [row0, row0 + n_rows) of x by the columns of w. */
struct sides {
    const __half *x, *w;
    int row0, n_rows;
};

/* Which of these rows, and columns, a block has. */
struct tile_of {
    int m0, n0;

    __device__ tile_of(int m, int n) : m0(m), n0(n)
    {
    }

    __device__ explicit tile_of(const tern_cuda_gemm &a)
    {
        const int tiles_n = (a.n + BN - 1) / BN, tiles_m = (a.n_rows + BM - 1) / BM;
        const int band = blockIdx.x / (RASTER * tiles_n), in = blockIdx.x % (RASTER * tiles_n);
        const int tall = min(RASTER, tiles_m - band * RASTER);
        m0 = (band * RASTER + in % tall) * BM;
        n0 = in / tall * BN;
    }
};

__device__ static inline void sum_tile(const tern_cuda_gemm &a, const sides &of, const tile_of &tile, uint32_t base, float acc[128])
{
    const int group = threadIdx.x / 128;
    const int piece = threadIdx.x % 8, line = threadIdx.x / 8; /* and every 32nd line behind it */
    const __half *x = of.x, *w = of.w;
    const int steps = a.k / BK;
    uint32_t from_x[BM / 32], from_w[BN / 32]; /* in numbers: below 2^32 of them */
#pragma unroll
    for (int i = 0; i < BM / 32; i++)
        from_x[i] = (uint32_t)(of.row0 + min(tile.m0 + line + 32 * i, of.n_rows - 1)) * (uint32_t)a.x_pitch + (uint32_t)piece * 8;
#pragma unroll
    for (int i = 0; i < BN / 32; i++)
        from_w[i] = (uint32_t)min(tile.n0 + line + 32 * i, a.n - 1) * (uint32_t)a.w_pitch + (uint32_t)piece * 8;
    auto load = [&](int step) {
        if (step < steps) {
            const uint32_t at = base + (uint32_t)(step % STAGES) * STAGE;
#pragma unroll
            for (int i = 0; i < BM / 32; i++)
                cuda_copy_16(at + piece_at(line + 32 * i, piece), x + from_x[i] + step * BK);
#pragma unroll
            for (int i = 0; i < BN / 32; i++)
                cuda_copy_16(at + SIDE_X + piece_at(line + 32 * i, piece), w + from_w[i] + step * BK);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    };
#pragma unroll
    for (int i = 0; i < 128; i++)
        acc[i] = 0;
#pragma unroll
    for (int s = 0; s < STAGES - 2; s++)
        load(s);
    for (int s = 0; s < steps; s++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 3) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* for readers that are not threads */
        __syncthreads(); /* besides: both groups are done with step s - 2, whose place is filled again */
        const uint32_t at = base + (uint32_t)(s % STAGES) * STAGE;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int kk = 0; kk < BK / 16; kk++)
            multiply(acc, matrix_at(at + (uint32_t)group * 64 * 128) + 2 * kk, matrix_at(at + SIDE_X) + 2 * kk);
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        load(s + STAGES - 2);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* Sums as outputs, out of registers. */
__device__ static inline void write_tile(const tern_cuda_gemm &a, const sides &of, const tile_of &tile, const float acc[128])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n0 = tile.n0;
    const tern_cuda_gemm_out out = out_of(a, n0);
    const float *scale = cuda_at<const float>(a.scale), *bias = cuda_at<const float>(out.bias);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int in = tile.m0 + warp * 16 + lane / 4 + h * 8, row = of.row0 + in;
        if (in >= of.n_rows)
            continue;
        const float by = scale[row];
        float *y = cuda_at<float>(out.y) + (uint64_t)row * out.y_stride;
#pragma unroll
        for (int j = 0; j < BN / 8; j++) {
            const int col = n0 - out.first + j * 8 + lane % 4 * 2;
            float lo = __fmul_rn(acc[4 * j + 2 * h], by), hi = __fmul_rn(acc[4 * j + 2 * h + 1], by);
            if (bias && col < out.n)
                lo = __fadd_rn(lo, bias[col]);
            if (bias && col + 1 < out.n)
                hi = __fadd_rn(hi, bias[col + 1]);
            if (col + 1 < out.n && (reinterpret_cast<uintptr_t>(y + col) & 7) == 0) {
                *reinterpret_cast<float2 *>(y + col) = make_float2(lo, hi);
                continue;
            }
            if (col < out.n)
                y[col] = lo;
            if (col + 1 < out.n)
                y[col + 1] = hi;
        }
    }
}

/* The sums of a warp's 16 rows in shared memory, where a lane finds four columns of a row side by side. */
__device__ static inline float *put_sums(float *room, const float acc[128])
{
    const int lane = threadIdx.x % 32;
    float *own = room + (int)threadIdx.x / 32 * 16 * PITCH;
    __syncthreads(); /* nobody reads weights or rows there any more */
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int j = 0; j < BN / 8; j++)
            *reinterpret_cast<float2 *>(own + (lane / 4 + h * 8) * PITCH + j * 8 + lane % 4 * 2) =
                make_float2(acc[4 * j + 2 * h], acc[4 * j + 2 * h + 1]);
    __syncwarp();
    return own;
}

/* Four sums of a row as outputs. */
__device__ static inline float4 four_outputs(const tern_cuda_gemm_out &out, const float *sums, int col, float by)
{
    float4 v = *reinterpret_cast<const float4 *>(sums);
    v = make_float4(__fmul_rn(v.x, by), __fmul_rn(v.y, by), __fmul_rn(v.z, by), __fmul_rn(v.w, by));
    if (out.bias) {
        const float *b = cuda_at<const float>(out.bias) + col;
        v.x = col < out.n ? __fadd_rn(v.x, b[0]) : 0;
        v.y = col + 1 < out.n ? __fadd_rn(v.y, b[1]) : 0;
        v.z = col + 2 < out.n ? __fadd_rn(v.z, b[2]) : 0;
        v.w = col + 3 < out.n ? __fadd_rn(v.w, b[3]) : 0;
    }
    return v;
}

/* To this card's rows and to those of others, while other tiles are multiplied yet. */
__device__ static inline void write_sent(const tern_cuda_gemm &a, int m0, int n0, float *room, const float acc[128])
{
    const int lane = threadIdx.x % 32, row0 = m0 + (int)threadIdx.x / 32 * 16;
    const float *scale = cuda_at<const float>(a.scale), *own = put_sums(room, acc) + lane * 4;
#pragma unroll 4
    for (int r = 0; r < 16; r++) {
        const int row = row0 + r;
        if (row >= a.n_rows)
            continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int col = n0 + half * BN / 2 + lane * 4;
            const float4 v = four_outputs(a.out[0], own + r * PITCH + half * BN / 2, col, scale[row]);
            if (col < a.n)
                for (int i = 0; i < a.n_to; i++)
                    store_four(cuda_at<float>(a.to[i]) + (uint64_t)row * a.out[0].y_stride, col, a.n, v);
        }
    }
    __threadfence_system(); /* before the next kernel says so */
}

/* The first of the stages, which begin at a multiple of 1024. */
__device__ static inline uint32_t stages_at(uint32_t shared)
{
    return (shared + 1023) & ~1023u;
}

/* SENT: to the rows of several cards (together/together.c). */
template <bool SENT> __device__ static void gemm_tile(const tern_cuda_gemm &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared), base = stages_at(at);
    float acc[128], *room = reinterpret_cast<float *>(shared + (base - at));
    cuda_wait();
    const sides of = {cuda_at<const __half>(a.x), cuda_at<const __half>(a.w), 0, a.n_rows};
    const tile_of tile(a);
    sum_tile(a, of, tile, base, acc);
    if (SENT)
        write_sent(a, tile.m0, tile.n0, room, acc);
    else
        write_tile(a, of, tile, acc);
}

/* first[g]: tiles before group g's, by one warp; first[n]: all tiles. */
__device__ static inline void count_tiles(const int2 *groups, int *first, int n, int tiles_n)
{
    const int lane = threadIdx.x % 32;
    for (int g = lane, before = 0; __any_sync(~0u, g < n); g += 32) {
        const int here = g < n ? (groups[g].y + BM - 1) / BM * tiles_n : 0, sum = cuda_sum_up_to(here);
        if (g < n)
            first[g + 1] = before + sum;
        before += __shfl_sync(~0u, sum, 31);
    }
    if (lane == 0)
        first[0] = 0;
}

/* How many rows a group has is known here alone: as many blocks as the card has processors take tiles by turns. */
__device__ static void gemm_groups(const tern_cuda_gemm &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ int first[TERN_CUDA_GEMM_GROUPS + 1];
    const uint32_t base = stages_at((uint32_t)__cvta_generic_to_shared(shared));
    const int2 *groups = cuda_at<const int2>(a.groups);
    const int tiles_n = (a.n + BN - 1) / BN;
    cuda_wait();
    if (threadIdx.x < 32)
        count_tiles(groups, first, a.n_groups, tiles_n);
    __syncthreads();
    int g = 0;
    for (int t = blockIdx.x; t < first[a.n_groups]; t += gridDim.x) {
        float acc[128];
        while (t >= first[g + 1])
            g++;
        const int2 rows = groups[g];
        const int tall = (rows.y + BM - 1) / BM, in = t - first[g];
        const sides of = {cuda_at<const __half>(a.x), cuda_at<const __half>(a.w) + g * a.w_group, rows.x, rows.y};
        const tile_of tile(in % tall * BM, in / tall * BN);
        sum_tile(a, of, tile, base, acc);
        write_tile(a, of, tile, acc);
        __syncthreads(); /* all have read the stages */
    }
}

#else

template <bool SENT> __device__ static void gemm_tile(const tern_cuda_gemm &)
{
    __trap(); /* the host starts it on cards of 9.0 alone */
}

__device__ static void gemm_groups(const tern_cuda_gemm &)
{
    __trap();
}

#endif

TERN_CUDA_KERNEL_BEGIN(gemm_90, tern_cuda_gemm, 256, 1)
{
    gemm_tile<false>(a);
}

TERN_CUDA_KERNEL_BEGIN(gemm_90_sent, tern_cuda_gemm, 256, 1)
{
    gemm_tile<true>(a);
}

TERN_CUDA_KERNEL_BEGIN(gemm_90_groups, tern_cuda_gemm, 256, 1)
{
    gemm_groups(a);
}

/* Products of rows with eight-bit floats (E4M3): f32 activations, f16 tensor cores, f32 sums.
 *
 * A weight is a 16-bit float, exactly.  An activation becomes two: its first 11 bits, and the next 11 of what they leave,
 * both times a power of two that brings the largest of 32 inputs to 2^13.  So products are those of 22 bits, and what is
 * left out is 2^-22 of a number: f32 sums round as much.
 *
 * Units, parts and chains are those of products.cu: a panel's sum is that of up to eight parts, a warp has a part, and of
 * a unit chain t has blocks t and t + 4.  Which lane adds what depends on the matrix' shape alone, and a column of the
 * tensor cores is not touched by the others: a row's outputs have the same bits whatever rows come with it. */
#include "dev/cuda/products/unit.cuh"

#define WARPS 8
#define CODES TERN_CODES_E4M3
#define KIND  TERN_SCALES_G32

/* Eight rows as `split` leaves them: bytes of a unit, and where in it the powers of two stand that bring back. */
#define UNIT      (8 * TERN_CUDA_SPLIT_BYTES(256))
#define UNIT_BACK 8192

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Cards before 8.9 have no instruction for it.  There a weight's bits are put where a 16-bit float has them, which is the
 * weight times 2^-8, and scales make it good. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
#define BY_BITS 1
#else
#define BY_BITS 0
#endif

/* Four weights of a row as 16-bit floats. */
__device__ static inline void four_weights(uint32_t &lo, uint32_t &hi, uint32_t codes)
{
#if BY_BITS
    const uint32_t a = __byte_perm(codes, 0, 0x1404), b = __byte_perm(codes, 0, 0x3424);
    lo = (a & 0x80008000u) | (a >> 1 & 0x3F803F80u);
    hi = (b & 0x80008000u) | (b >> 1 & 0x3F803F80u);
#else
    uint16_t a, b;
    asm("mov.b32 {%0, %1}, %2;" : "=h"(a), "=h"(b) : "r"(codes));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(lo) : "h"(a));
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(hi) : "h"(b));
#endif
}

/* Rows 2g and 2g + 1 of a panel, quads t and t + 4 of a block: for two products of 16 inputs. */
struct weights_of_block {
    uint32_t a[2][4];

    __device__ weights_of_block(const uint8_t *block, int t, int g)
    {
        piece<CODES> p;
        load_piece<CODES>(p, block, t, g);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            four_weights(a[i][0], a[i][2], p.v[i].x);
            four_weights(a[i][1], a[i][3], p.v[i].y);
        }
    }
};

/* Tensor cores: 16 rows by 8 columns, of 16 inputs.  A lane's are rows 2g and 2g + 1, columns 2t and 2t + 1. */
__device__ static inline void multiply(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Scales of rows 2g and 2g + 1, blocks t and t + 4 of a unit. */
struct unit_scales {
    float s[2][2];

    __device__ unit_scales(const tern_cuda_matrix &w, const uint8_t *from, int t, int g)
    {
        const scales_at at = unit_of<CODES, KIND>::scales(from);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 two = two_numbers(w.d_type, at.d, (2 * (t + 4 * h) >> w.shift) * 16 + 2 * g);
            const float unit = BY_BITS ? __fmul_rn(w.unit, 256.0f) : w.unit;
            s[h][0] = __fmul_rn(two.x, unit);
            s[h][1] = __fmul_rn(two.y, unit);
        }
    }
};

/* ---- activations ------------------------------------------------------------------------------------------------- */

/* Of 32 inputs whose largest magnitude is top: the power of two that they are multiplied by, and its inverse. */
struct power_of_two {
    float by, back;

    __device__ explicit power_of_two(float top)
    {
        const int field = min(267 - (int)(__float_as_uint(top) >> 23), 253);
        by = __uint_as_float((uint32_t)field << 23);
        back = __uint_as_float((uint32_t)(254 - field) << 23);
    }
};

/* An activation's first 11 bits times `first`, and all of it times `all`: with (by, 0) the former, with (-by, by) what they
 * leave. */
__device__ static inline float piece_of(float x, float first, float all)
{
    return __fmaf_rn(__uint_as_float(__float_as_uint(x) & 0xFFFFE000u), first, __fmul_rn(x, all));
}

__device__ static inline uint2 pieces_of(float4 v, float first, float all)
{
    const __half2 lo = __floats2half2_rn(piece_of(v.x, first, all), piece_of(v.y, first, all)),
                  hi = __floats2half2_rn(piece_of(v.z, first, all), piece_of(v.w, first, all));
    uint2 out;
    out.x = *reinterpret_cast<const uint32_t *>(&lo);
    out.y = *reinterpret_cast<const uint32_t *>(&hi);
    return out;
}

__device__ static inline float top_of(float4 v)
{
    return fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w)));
}

/* Several rows (products.h: struct tern_cuda_quantize): eight threads side by side have the quads of 32 inputs.  Units are
 * whole: behind the last block there are zeros. */
TERN_CUDA_KERNEL_BEGIN(split, tern_cuda_quantize, 256, 1)
{
    const int at = (blockIdx.y * 256 + threadIdx.x) * 4, row = blockIdx.x, b = at / 32, q = at / 4 % 8;
    cuda_wait();
    const float *x = cuda_at<const float>(a.x) + (uint64_t)(row / a.n_heads) * a.stride + (row % a.n_heads) * a.head;
    float4 v = make_float4(0, 0, 0, 0);
    if (at < a.k)
        v = *reinterpret_cast<const float4 *>(x + at);
    float top = top_of(v);
    for (int step = 1; step < 8; step *= 2)
        top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, step));
    if (b >= (a.k + 255) / 256 * 8)
        return;
    const power_of_two power(top);
    const int to = row / a.n_heads * a.row_step + row % a.n_heads * a.head_step, lane = to % 8;
    uint8_t *unit = cuda_at<uint8_t>(a.to) + (uint64_t)(to - lane) * a.row_bytes + b / 8 * UNIT,
            *own = unit + b % 8 * 1024 + (lane * 4 + q % 4) * 16 + q / 4 * 8;
    *reinterpret_cast<uint2 *>(own) = pieces_of(v, power.by, 0);
    *reinterpret_cast<uint2 *>(own + 512) = pieces_of(v, -power.by, power.by);
    if (q == 0)
        reinterpret_cast<float *>(unit + UNIT_BACK)[b % 8 * 8 + lane] = power.back;
}

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* The columns are the first and second pieces of four blocks, each zero in all columns but its own.  What a lane takes of
 * the row is quads t and t + 4 of block g / 2 of the first and of the second half of a unit. */
struct row_of_unit {
    float4 v[2][2];

    __device__ void ask(const float *x, int u, int blocks, int t, int g)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int b = u * 8 + 4 * h + g / 2;
#pragma unroll
            for (int i = 0; i < 2; i++)
                v[h][i] = b < blocks ? *reinterpret_cast<const float4 *>(x + b * 32 + (t + 4 * i) * 4)
                                     : make_float4(0, 0, 0, 0);
        }
    }
    /* As the tensor cores take them, and what products of block t + 4h are to be multiplied by. */
    __device__ void make(uint2 to[2][2], float back[2], int t, int g) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float top = fmaxf(top_of(v[h][0]), top_of(v[h][1]));
            top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 1));
            top = fmaxf(top, __shfl_xor_sync(0xFFFFFFFFu, top, 2));
            const power_of_two power(top);
            const float first = g % 2 ? -power.by : power.by, all = g % 2 ? power.by : 0;
            to[h][0] = pieces_of(v[h][0], first, all);
            to[h][1] = pieces_of(v[h][1], first, all);
            back[h] = __shfl_sync(0xFFFFFFFFu, power.back, 8 * t);
        }
    }
};

/* A unit of a panel times the row: added to rows 2g and 2g + 1, chain t. */
__device__ static inline void add_unit(float acc[2], const uint8_t *from, const uint2 x[2][2], const float back[2],
                                       const unit_scales &scales, int t, int g)
{
    float c[2][4] = {};
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const weights_of_block w(from + (4 * h + j) * codes_unit(CODES), t, g);
            const bool own = g / 2 == j;
#pragma unroll
            for (int i = 0; i < 2; i++)
                multiply(c[h], w.a[i], own ? x[h][i].x : 0, own ? x[h][i].y : 0);
        }
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int r = 0; r < 2; r++)
            acc[r] = __fmaf_rn(__fadd_rn(c[h][2 * r], c[h][2 * r + 1]), __fmul_rn(scales.s[h][r], back[h]), acc[r]);
}

__device__ static inline void one_row(const tern_cuda_narrow &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float part[2][WARPS][16];
    const int row0 = blockIdx.x;
    feed<CODES, KIND> f(a, shared, matrix_of_row(a, row0));
    const int lane = f.lane, warp = f.warp, warps = f.warps, blocks = f.blocks, units = f.units, g = lane / 4,
              t = lane % 4;
    f.fill(!a.ids);
    if (!a.ids)
        cuda_wait();
    const float *x = cuda_at<const float>(a.x) + (uint64_t)(row0 / a.per_row) * a.x_stride + blockIdx.z * a.x_head;
    row_of_unit row;
    row.ask(x, warp, blocks, t, g);
    int turn = 0;
    for (int panel = blockIdx.y; panel < a.n_panels; panel += gridDim.y, turn++) {
        const tern_cuda_product &product = a.m[product_of(a, panel)];
        float acc[2] = {};
        for (int u = warp; u < units; u += warps) {
            uint2 own[2][2];
            float back[2];
            row.make(own, back, t, g);
            row.ask(x, u + warps < units ? u + warps : warp, blocks, t, g);
            const uint8_t *from = f.take();
            const unit_scales scales(product.w, from, t, g);
            add_unit(acc, from, own, back, scales, t, g);
            __syncwarp();
            f.ask();
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float v = acc[r];
            v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, 1));
            v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, 2));
            if (t == 0)
                part[turn % 2][warp][2 * g + r] = v;
        }
        __syncthreads(); /* one is enough: the warps' parts of the panel after the next wait at the next one's */
        const int col = (panel - product.panel0) * 16 + lane;
        if (warp == turn % warps && lane < 16 && col < product.w.n)
            put_output(a, product, sum_parts(&part[turn % 2][0][lane], warps, 16), row0, col);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

TERN_CUDA_KERNEL_BEGIN(floats_E4M3_1, tern_cuda_narrow, 32 * WARPS, TERN_CUDA_RING_BLOCKS(CODES, KIND))
{
    one_row(a);
}

/* ---- eights of rows ---------------------------------------------------------------------------------------------- */

/* Of G eights, the last one over and over where there are no more: the four chains of a lane's outputs. */
template <int G> struct eights_sums {
    float chain[G][4][4] = {};

    /* x: the unit of the first eight.  own[c]: where the lane reads in eight c; back[c]: what that brings back. */
    __device__ void add_unit(const uint8_t *from, const unit_scales &scales, const uint8_t *x, const uint32_t own[G],
                             const uint32_t back[G], int lane)
    {
        const int g = lane / 4, t = lane % 4;
#pragma unroll(G == 1 ? 8 : 4) /* with two eights there are no registers for more */
        for (int j = 0; j < 8; j++) {
            const weights_of_block w(from + j * codes_unit(CODES), t, g);
            float s[2];
#pragma unroll
            for (int r = 0; r < 2; r++)
                s[r] = __shfl_sync(0xFFFFFFFFu, j < 4 ? scales.s[0][r] : scales.s[1][r], lane - t + j % 4);
#pragma unroll
            for (int c = 0; c < G; c++) {
                const uint4 first = *reinterpret_cast<const uint4 *>(x + own[c] + j * 1024),
                            second = *reinterpret_cast<const uint4 *>(x + own[c] + j * 1024 + 512);
                const float2 f = *reinterpret_cast<const float2 *>(x + back[c] + j * 32);
                float d[4] = {}, e[4] = {};
                multiply(d, w.a[0], first.x, first.y);
                multiply(e, w.a[0], second.x, second.y);
                multiply(d, w.a[1], first.z, first.w);
                multiply(e, w.a[1], second.z, second.w);
                float *to = chain[c][j % 4];
#pragma unroll
                for (int i = 0; i < 4; i++) /* row i / 2 of the panel's two, column i % 2 */
                    to[i] = __fmaf_rn(__fadd_rn(d[i], e[i]), __fmul_rn(s[i / 2], i % 2 ? f.y : f.x), to[i]);
            }
        }
    }
    __device__ void put(float *to, int lane) const
    {
#pragma unroll
        for (int c = 0; c < G; c++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                to[(c * 4 + i) * 32 + lane] = sum_chains(chain[c][0][i], chain[c][1][i], chain[c][2][i], chain[c][3][i]);
    }
};

template <int G> __device__ static inline void eights(const tern_cuda_narrow &a)
{
    constexpr int BUFFERS = G < 2 ? 2 : 1; /* of a panel's parts: with one, threads meet once more */
    __shared__ float part[BUFFERS][WARPS][4 * G * 32]; /* of each warp: eight, number of the lane's four, lane */
    extern __shared__ __align__(128) uint8_t shared[];
    const int row0 = blockIdx.x * 8 * G;
    feed<CODES, KIND> f(a, shared, (uint64_t)blockIdx.z * a.matrix_bytes);
    const int lane = f.lane, warp = f.warp, warps = f.warps, g = lane / 4, t = lane % 4;
    f.fill(true); /* weights are there before the step is */
    cuda_wait();
    const uint8_t *x = cuda_at<const uint8_t>(a.q8) + ((uint64_t)blockIdx.z * a.head_rows + row0) * a.row_bytes;
    uint32_t own[G], back[G]; /* behind the last row it comes again, and nothing more is read */
#pragma unroll
    for (int c = 0; c < G; c++) {
        const uint32_t last = (uint32_t)min(a.n_rows - 1 - row0, 8 * G - 1), r = min((uint32_t)(8 * c + g), last),
                       eight = r / 8 * 8 * (uint32_t)a.row_bytes;
        own[c] = eight + r % 8 * 64 + t * 16;
        back[c] = eight + UNIT_BACK + t * 8;
    }
    int turn = 0;
    for (int panel = blockIdx.y; panel < a.n_panels; panel += gridDim.y, turn++) {
        const tern_cuda_product &product = a.m[product_of(a, panel)];
        eights_sums<G> sums;
        for (int u = warp; u < f.units; u += warps) {
            const uint8_t *from = f.take();
            const unit_scales scales(product.w, from, t, g);
            sums.add_unit(from, scales, x + u * UNIT, own, back, lane);
            __syncwarp();
            f.ask();
        }
        float(*parts)[4 * G * 32] = part[turn % BUFFERS];
        if (BUFFERS == 1)
            __syncthreads();
        sums.put(parts[warp], lane);
        __syncthreads(); /* with two buffers one is enough: see above */
        for (int i = threadIdx.x; i < 4 * G * 32; i += blockDim.x) {
            const int number = i / 32 % 4, row = row0 + i / 128 * 8 + 2 * t + number % 2;
            const int col = (panel - product.panel0) * 16 + 2 * g + number / 2;
            if (row < a.n_rows && col < product.w.n)
                put_output(a, product, sum_parts(&parts[0][i], warps, 4 * G * 32), row, col);
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

TERN_CUDA_KERNEL_BEGIN(floats_E4M3_8, tern_cuda_narrow, 32 * WARPS, 2)
{
    eights<1>(a);
}

TERN_CUDA_KERNEL_BEGIN(floats_E4M3_16, tern_cuda_narrow, 32 * WARPS, 2)
{
    eights<2>(a);
}

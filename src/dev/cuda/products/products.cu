/* Products of decode rows with weights: int8 activations, exact integer dots with the codes on tensor cores, f32 sums.
 *
 * A panel (16 outputs) is read in units of 256 inputs, and its sum is that of up to eight parts: part p has the units
 * p, p + parts ..  A warp has a part, for one row, or for 8 or 16 rows.  Which lane adds what, and in what order all is
 * added up, depends on the matrix' shape alone: a row's outputs have the same bits whatever rows come with it. */
#include "dev/cuda/quantize.cuh"
#include "dev/cuda/products/rows.cuh"

#define FLOAT_PARTS TERN_CUDA_FLOAT_PARTS

TERN_CUDA_KERNEL_BEGIN(quantize, tern_cuda_quantize, 256, 1)
{
    const int at = (blockIdx.y * 256 + threadIdx.x) * 4, row = blockIdx.x;
    const bool real = at < a.k;
    cuda_wait();
    const float *x = cuda_at<const float>(a.x) + (uint64_t)(row / a.n_heads) * a.stride + (row % a.n_heads) * a.head;
    float4 v = make_float4(0, 0, 0, 0);
    if (real)
        v = *reinterpret_cast<const float4 *>(x + at);
    quantize_four(cuda_at<uint8_t>(a.to), a.row_bytes, a.lanes,
                  (row / a.n_heads) * a.row_step + row % a.n_heads * a.head_step, a.k, at / 32, at / 4 % 8, v, real);
}

/* part[part][row][column]: added up in order and written. */
template <int R>
__device__ static inline void finish(const tern_cuda_narrow &a, const tern_cuda_product &m, float (*part)[R][16],
                                     int panel, int row0)
{
    __syncthreads();
    for (int t = threadIdx.x; t < R * 16; t += blockDim.x) {
        const int r = t / 16, c = t % 16, col = panel * 16 + c;
        float sum = part[0][r][c];
        for (int p = 1; p < a.parts; p++)
            sum += part[p][r][c];
        if (row0 + r >= a.n_rows || col >= m.w.n)
            continue;
        if (m.bias)
            sum += cuda_at<const float>(m.bias)[col];
        cuda_at<float>(m.y)[(uint64_t)(row0 + r) * m.y_stride + blockIdx.z * a.y_head + col] = sum;
    }
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* A warp's part of a panel: the units of its turn.  An output is four chains: chain t has blocks 2t and 2t + 1 of each
 * unit, chain 0 then the unit's minima.  Chains are put together in pairs, then pairs of pairs.
 *
 * One row: the columns are the blocks of a unit, each zero in all columns but its own, so that eight products leave the
 * dots of eight blocks and every lane has work with the scales.  Of the minima column 0 is the row. */
template <int C, int S> __device__ static inline void narrow_1(const tern_cuda_narrow &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float part[2][WARPS][16];
    const int row0 = blockIdx.x, k = a.m[0].w.k;
    feed<C, S> f(a, shared, matrix_of_row(a, row0));
    const int lane = f.lane, warp = f.warp, warps = f.warps, blocks = f.blocks, units = f.units, g = lane / 4,
              t = lane % 4;
    f.fill(!a.ids);
    if (!a.ids)
        cuda_wait();
    const uint8_t *x =
        cuda_at<const uint8_t>(a.q8) + ((uint64_t)(row0 / a.per_row) * a.n_heads + blockIdx.z) * a.row_bytes;
    const float *scales = reinterpret_cast<const float *>(x + k);
    uint32_t x0 = 0, x1 = 0;
    float sx[2], sum[2] = {}; /* of blocks 2t and 2t + 1; sums of minima_by_unit: of t and t + 4 */
    auto ask_row = [&](int u) {
        const uint2 two = reinterpret_cast<const uint2 *>(x)[min(u * 8 + g, blocks - 1) * 4 + t];
        x0 = two.x;
        x1 = two.y;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int b = u * 8 + 2 * t + i, of = minima_by_unit<S>() ? u * 8 + t + 4 * i : b;
            sx[i] = b < blocks ? scales[b] : 0;
            if (kind_minimum(S))
                sum[i] = of < blocks && (g == 0 || !minima_by_unit<S>()) ? scales[blocks + of] : 0;
        }
    };
    ask_row(warp);
    int turn = 0;
    for (int panel = blockIdx.y; panel < a.n_panels; panel += gridDim.y, turn++) {
        const tern_cuda_product &product = a.m[product_of(a, panel)];
        const tern_cuda_matrix &m = product.w;
        const int zero = kind_zero(S) ? m.zero : 0;
        float acc[2] = {};
        for (int u = warp; u < units; u += warps) {
            uint32_t b[2] = {x0, x1};
            if (quads_together<C, S>())
                put_together(b, x0, x1);
            const float s[2] = {sx[0], sx[1]}, n[2] = {sum[0], sum[1]};
            piece<C> code[8];
            raw_scales<S> raw;
            two_scales sc[2];
            unit_minima minima;
            const uint8_t *from = f.take();
#pragma unroll
            for (int j = 0; j < 8; j++)
                load_piece<C>(code[j], from + j * codes_unit(C), t, g);
            if (by_group<S>()) {
#pragma unroll
                for (int i = 0; i < 2; i++)
                    scales_of<S>(sc[i], m, unit_of<C, S>::scales(from), 2 * t + i, g);
            } else {
                load_scales<S>(raw, unit_of<C, S>::scales(from), 2 * t, g);
            }
            if (minima_by_unit<S>())
                make_minima<S>(minima, unit_of<C, S>::scales(from), t, g);
            ask_row(u + warps < units ? u + warps : warp);
            __syncwarp();
            f.ask();
            dots<S> d;
            start_dots<S>(d, zero, b[0], b[1]);
#pragma unroll
            for (int j = 0; j < 8; j++)
                add_dots<C, S, quads_together<C, S>()>(d, code[j], t, m.table, g == j ? b[0] : 0, g == j ? b[1] : 0);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (!by_group<S>())
                    make_scales<S>(sc[i], raw, m, i);
#pragma unroll
                for (int r = 0; r < 2; r++)
                    acc[r] = add_part<S>(acc[r], d, sc[i], r, i, s[i], n[i]);
            }
            if (minima_by_unit<S>()) {
                float c[4];
                multiply_minima(c, minima, n[0], n[1]);
#pragma unroll
                for (int r = 0; r < 2; r++)
                    acc[r] = t ? acc[r] : __fmaf_rn(minima.by[r], c[2 * r], acc[r]);
            }
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
        if (warp == turn % warps && lane < 16 && col < m.n)
            put_output(a, product, sum_parts(&part[turn % 2][0][lane], warps, 16), row0, col);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

#define FIT(c, s) TERN_CUDA_RING_BLOCKS(TERN_CODES_##c, TERN_SCALES_##s)

#define NARROW(c, s)                                                               \
    TERN_CUDA_KERNEL_BEGIN(narrow_##c##_##s##_1, tern_cuda_narrow, 32 * WARPS,     \
                           FIT(c, s))                                              \
    {                                                                              \
        narrow_1<TERN_CODES_##c, TERN_SCALES_##s>(a);                              \
    }                                                                              \
    TERN_CUDA_KERNEL_BEGIN(narrow_##c##_##s##_8, tern_cuda_narrow, 32 * WARPS, 2)  \
    {                                                                              \
        narrow_rows<TERN_CODES_##c, TERN_SCALES_##s, 1, false>(a);                        \
    }                                                                              \
    TERN_CUDA_KERNEL_BEGIN(narrow_##c##_##s##_16, tern_cuda_narrow, 32 * WARPS, 2) \
    {                                                                              \
        narrow_rows<TERN_CODES_##c, TERN_SCALES_##s, 2, false>(a);                        \
    }
TERN_NARROW_KINDS(NARROW)
#undef NARROW
#undef FIT

/* ---- float codes: f32 activations -------------------------------------------------------------------------------- */

/* Lane l of a warp takes W neighbouring outputs of input l / (16 / W) of a group of inputs.  R rows; of many a warp has several
 * parts of the sum, one after the other. */
template <int C, int R> __device__ static inline void floats(const tern_cuda_narrow &a)
{
    constexpr int W = C == TERN_CODES_F32 ? 4 : 8, LANES = 16 / W, INPUTS = 32 / LANES;
    __shared__ float part[FLOAT_PARTS][R][16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int g = lane % LANES, sub = lane / LANES, row0 = blockIdx.x * R;
    const tern_cuda_product &m = a.m[product_of(a, blockIdx.y)];
    const int panel = blockIdx.y - m.panel0, k = m.w.k;
    uint64_t matrix = blockIdx.z;
    cuda_wait();
    if (a.ids)
        matrix = cuda_at<const int32_t>(a.ids)[row0];
    const uint8_t *p = cuda_at<const uint8_t>(m.w.p) + matrix * a.matrix_bytes + panel * m.w.panel_bytes;
    const int first = row0 / a.per_row;
    const float *x = cuda_at<const float>(a.x) + first * a.x_stride + blockIdx.z * a.x_head;
    uint32_t row_at[R];
#pragma unroll
    for (int r = 0; r < R; r++)
        row_at[r] = (uint32_t)(min(row0 + r, a.n_rows - 1) / a.per_row - first) * (uint32_t)a.x_stride;
    for (int of = warp; of < a.parts; of += warps) {
        float acc[R][W] = {};
#pragma unroll(R == 4 ? 2 : 4)
        for (int i = of * INPUTS + sub; i < k; i += a.parts * INPUTS) {
            const uint4 v = __ldg(reinterpret_cast<const uint4 *>(p + (uint64_t)i * (C == TERN_CODES_F32 ? 64 : 32)) + g);
            float w[W];
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const uint32_t two = word(v, q);
                if (C == TERN_CODES_F32) {
                    w[q] = __uint_as_float(two);
                } else if (C == TERN_CODES_F16) {
                    w[2 * q % W] = half_bits(two & 0xFFFF);
                    w[(2 * q + 1) % W] = half_bits(two >> 16);
                } else {
                    w[2 * q % W] = __uint_as_float(two << 16);
                    w[(2 * q + 1) % W] = __uint_as_float(two & 0xFFFF0000u);
                }
            }
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float xi = x[row_at[r] + i];
#pragma unroll
                for (int q = 0; q < W; q++)
                    acc[r][q] = __fmaf_rn(w[q], xi, acc[r][q]);
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int q = 0; q < W; q++) {
                float v = acc[r][q];
                for (int step = LANES; step < 32; step *= 2)
                    v += __shfl_xor_sync(0xFFFFFFFFu, v, step);
                if (lane < LANES)
                    part[of][r][g * W + q] = v;
            }
    }
    finish<R>(a, m, part, panel, row0);
}

#define FLOATS(c, r, warps)                                                   \
    TERN_CUDA_KERNEL_BEGIN(floats_##c##_##r, tern_cuda_narrow, 32 * warps, 1) \
    {                                                                         \
        floats<TERN_CODES_##c, r>(a);                                         \
    }
#define ALL_FLOATS(c, many)            \
    FLOATS(c, 1, FLOAT_PARTS)          \
    FLOATS(c, 4, FLOAT_PARTS)          \
    FLOATS(c, many, FLOAT_PARTS / 2)
ALL_FLOATS(F32, 16)
ALL_FLOATS(F16, 8)
ALL_FLOATS(BF16, 8)
#undef ALL_FLOATS
#undef FLOATS

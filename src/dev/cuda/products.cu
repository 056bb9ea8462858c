/* Products of decode rows with weights: int8 activations, exact integer dots with the codes, f32 sums.
 *
 * A block of threads takes a panel (16 outputs) and R rows; its warps share out the inputs, 256 at a time, each lane
 * with 4 outputs and 8 inputs of every block of 32.  Which lane adds what, and in what order lanes and warps are added
 * up, depends on the number of inputs alone: a row's outputs have the same bits whatever rows come with it. */
#include "dev/cuda/panel.cuh"
#include "dev/cuda/quantize.cuh"

#define WARPS 8

TERN_CUDA_KERNEL_BEGIN(quantize, tern_cuda_quantize, 256, 1)
{
    const int at = (blockIdx.y * 256 + threadIdx.x) * 4, row = blockIdx.x;
    const bool real = at < a.k;
    cuda_wait();
    const float *x = cuda_at<const float>(a.x) + (uint64_t)(row / a.n_heads) * a.stride + (row % a.n_heads) * a.head;
    float4 v = make_float4(0, 0, 0, 0);
    if (real)
        v = *reinterpret_cast<const float4 *>(x + at);
    quantize_four(cuda_at<uint8_t>(a.to) + (uint64_t)row * a.row_bytes, a.k, at / 32, at / 4 % 8, v, real);
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

template <int C> __host__ __device__ constexpr int pieces()
{
    return C == TERN_CODES_U4 || C == TERN_CODES_T4                                                  ? 1
           : C == TERN_CODES_U5 || C == TERN_CODES_S8 || C == TERN_CODES_U2                          ? 2
                                                                                                     : 3;
}

/* What lane (j, g) reads of a block: quads j and j + 4 of rows 4g .. 4g+3. */
template <int C> struct piece {
    uint4 v[pieces<C>()];
};

template <int C> __device__ static inline void load_piece(piece<C> &p, const uint8_t *block, int j, int g)
{
    const uint4 *at = reinterpret_cast<const uint4 *>(block) + g;
    if (C == TERN_CODES_U2 || C == TERN_CODES_U3 || C == TERN_CODES_T3) {
#pragma unroll
        for (int i = 0; i < pieces<C>(); i++)
            p.v[i] = __ldg(at + 4 * i);
        return;
    }
    p.v[0] = __ldg(at + 4 * j);
    if (C == TERN_CODES_S8)
        p.v[1] = __ldg(at + 4 * (j + 4));
    if (C == TERN_CODES_U5 || C == TERN_CODES_U6)
        p.v[1] = __ldg(at + 16);
    if (C == TERN_CODES_U6)
        p.v[2] = __ldg(at + 20);
}

__device__ static inline uint32_t word(const uint4 &v, int r)
{
    return r == 0 ? v.x : r == 1 ? v.y : r == 2 ? v.z : v.w;
}

/* Codes of row r of the lane's four: quad j in low, quad j + 4 in high. */
template <int C>
__device__ static inline void expand(const piece<C> &p, int j, int r, const int8_t *table, uint32_t &low, uint32_t &high)
{
    constexpr bool small = C == TERN_CODES_U2 || C == TERN_CODES_U3 || C == TERN_CODES_T3;
    const uint32_t w = word(p.v[0], r);
    if (C == TERN_CODES_S8) {
        low = w;
        high = word(p.v[1], r);
    } else if (small) {
        low = w >> (2 * j) & 0x03030303u;
        high = word(p.v[1], r) >> (2 * j) & 0x03030303u;
        if (C != TERN_CODES_U2) {
            const uint32_t h = word(p.v[pieces<C>() - 1], r) >> j;
            low |= (h & 0x01010101u) << 2;
            high |= (h >> 4 & 0x01010101u) << 2;
        }
    } else {
        low = w & 0x0F0F0F0Fu;
        high = w >> 4 & 0x0F0F0F0Fu;
        if (C == TERN_CODES_U5) {
            const uint32_t h = word(p.v[pieces<C>() - 1], r) >> j;
            low |= (h & 0x01010101u) << 4;
            high |= (h >> 4 & 0x01010101u) << 4;
        } else if (C == TERN_CODES_U6) {
            low |= (word(p.v[pieces<C>() > 1 ? 1 : 0], r) >> (2 * j) & 0x03030303u) << 4;
            high |= (word(p.v[pieces<C>() - 1], r) >> (2 * j) & 0x03030303u) << 4;
        }
    }
    if (C == TERN_CODES_T3 || C == TERN_CODES_T4) {
        low = from_table(table, low);
        high = from_table(table, high);
    }
}

/* ---- scales ------------------------------------------------------------------------------------------------------ */

/* Of the lane's four rows: scale of each half block; of row j alone the minimum, or of all where halves have one. */
struct four_scales {
    float s[2][4], m[2][4], own;
};

/* What has to be read for them, as it lies: asked for long before it is used. */
template <int S> struct raw_scales {
    uint32_t v[6];
};

template <int S>
__device__ static inline void load_scales(raw_scales<S> &o, const tern_cuda_matrix &w, const uint8_t *panel, int b, int j,
                                          int g)
{
    const int at = b * 16 + g * 4, super = b / 8 * 16 + g * 4;
    if (S == TERN_SCALES_F16 || S == TERN_SCALES_F16M) {
        const uint2 d = __ldg(reinterpret_cast<const uint2 *>(panel + w.d + 2 * at));
        o.v[0] = d.x;
        o.v[1] = d.y;
        if (S == TERN_SCALES_F16M)
            o.v[2] = __ldg(reinterpret_cast<const uint16_t *>(panel + w.m) + at + j);
    } else if (S == TERN_SCALES_K32 || S == TERN_SCALES_K16) {
        const uint2 d = __ldg(reinterpret_cast<const uint2 *>(panel + w.d + 2 * super));
        o.v[0] = d.x;
        o.v[1] = d.y;
        if (S == TERN_SCALES_K32) {
            o.v[2] = __ldg(reinterpret_cast<const uint32_t *>(panel + w.a + at));
            o.v[3] = __ldg(reinterpret_cast<const uint16_t *>(panel + w.m) + super + j);
            o.v[4] = __ldg(panel + w.b + at + j);
        } else {
            o.v[2] = __ldg(reinterpret_cast<const uint32_t *>(panel + w.a + 2 * b * 16 + g * 4));
            o.v[3] = __ldg(reinterpret_cast<const uint32_t *>(panel + w.a + (2 * b + 1) * 16 + g * 4));
        }
    }
}

__device__ static inline void four_halves(uint32_t x, uint32_t y, float out[4])
{
    out[0] = half_bits(x & 0xFFFF);
    out[1] = half_bits(x >> 16);
    out[2] = half_bits(y & 0xFFFF);
    out[3] = half_bits(y >> 16);
}

template <int S>
__device__ static inline void make_scales(four_scales &o, const raw_scales<S> &v, const tern_cuda_matrix &w,
                                          const uint8_t *panel, int b, int j, int g)
{
    if (S == TERN_SCALES_F16 || S == TERN_SCALES_F16M) {
        four_halves(v.v[0], v.v[1], o.s[0]);
        if (S == TERN_SCALES_F16M)
            o.own = half_bits(v.v[2]);
    } else if (S == TERN_SCALES_K32) {
        four_halves(v.v[0], v.v[1], o.s[0]);
#pragma unroll
        for (int r = 0; r < 4; r++)
            o.s[0][r] *= (float)(v.v[2] >> (8 * r) & 255);
        o.own = -(half_bits(v.v[3]) * (float)v.v[4]);
    } else if (S == TERN_SCALES_K16) {
        float d[4];
        four_halves(v.v[0], v.v[1], d);
#pragma unroll
        for (int r = 0; r < 4; r++) {
            o.s[0][r] = d[r] * w.unit * (float)(int8_t)(v.v[2] >> (8 * r));
            o.s[1][r] = d[r] * w.unit * (float)(int8_t)(v.v[3] >> (8 * r));
        }
    } else { /* rarer kinds read when they need */
#pragma unroll
        for (int r = 0; r < 4; r++) {
            group_scale(S, w, panel, 2 * b, g * 4 + r, o.s[0][r], o.m[0][r]);
            if (kind_halves(S))
                group_scale(S, w, panel, 2 * b + 1, g * 4 + r, o.s[1][r], o.m[1][r]);
            if (r == j)
                o.own = o.m[0][r];
        }
    }
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* Adds the block's part of four outputs of one row. */
template <int C, int S>
__device__ static inline void add_block(float acc[4], float &own, const uint32_t low[4], const uint32_t high[4],
                                        const four_scales &sc, int zero, const uint8_t *x, int k, int b, int j,
                                        bool counts)
{
    const int xa = reinterpret_cast<const int *>(x)[b * 8 + j],
              xb = reinterpret_cast<const int *>(x)[b * 8 + j + 4];
    float2 sx = reinterpret_cast<const float2 *>(x + k)[b];
    if (!counts)
        sx = make_float2(0, 0);
    int za = 0, zb = 0;
    if (kind_zero(S) && zero) {
        za = -zero * __dp4a(0x01010101, xa, 0);
        zb = -zero * __dp4a(0x01010101, xb, 0);
    }
    if (kind_halves(S)) {
        float ia = 0, ib = 0;
        if (kind_minimum(S)) {
            ia = (float)__dp4a(0x01010101, xa, 0);
            ib = (float)__dp4a(0x01010101, xb, 0);
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const float da = (float)__dp4a((int)low[r], xa, za), db = (float)__dp4a((int)high[r], xb, zb);
            float t = __fmaf_rn(db, sc.s[1][r], __fmul_rn(da, sc.s[0][r]));
            if (kind_minimum(S))
                t = __fmaf_rn(ib, sc.m[1][r], __fmaf_rn(ia, sc.m[0][r], t));
            acc[r] = __fmaf_rn(t, sx.x, acc[r]);
        }
        return;
    }
#pragma unroll
    for (int r = 0; r < 4; r++) {
        const float dot = (float)__dp4a((int)low[r], xa, __dp4a((int)high[r], xb, za + zb));
        acc[r] = __fmaf_rn(dot, __fmul_rn(sc.s[0][r], sx.x), acc[r]);
    }
    if (kind_minimum(S))
        own = __fmaf_rn(sc.own, sx.y, own);
}

/* Which product a panel of the launch belongs to. */
__device__ static inline int product_of(const tern_cuda_narrow &a, int panel)
{
    int i = 0;
    while (i + 1 < a.n_m && panel >= a.m[i + 1].panel0)
        i++;
    return i;
}

/* part[warp][row][column], all warps' sums: added up in order and written. */
template <int R>
__device__ static inline void finish(const tern_cuda_narrow &a, const tern_cuda_product &m, float (*part)[R][16], int panel,
                                     int row0)
{
    const int warps = blockDim.x / 32;
    __syncthreads();
    for (int t = threadIdx.x; t < R * 16; t += blockDim.x) {
        const int r = t / 16, c = t % 16, col = panel * 16 + c;
        float sum = part[0][r][c];
        for (int w = 1; w < warps; w++)
            sum += part[w][r][c];
        if (row0 + r >= a.n_rows || col >= m.w.n)
            continue;
        if (m.bias)
            sum += cuda_at<const float>(m.bias)[col];
        cuda_at<float>(m.y)[(uint64_t)(row0 + r) * m.y_stride + blockIdx.z * a.y_head + col] = sum;
    }
}

template <int C, int S, int R> __device__ static inline void narrow(const tern_cuda_narrow &a)
{
    __shared__ float part[WARPS][R][16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int j = lane / 4 % 4, g = lane % 4, second = lane / 16, row0 = blockIdx.x * R;
    const tern_cuda_product &m = a.m[product_of(a, blockIdx.y)];
    const int panel = blockIdx.y - m.panel0, k = m.w.k, blocks = k / 32, units = (blocks + 7) / 8;
    const int zero = kind_zero(S) ? m.w.zero : 0;
    const uint8_t *p = cuda_at<const uint8_t>(m.w.p) + panel * m.w.panel_bytes;
    piece<C> code[4];
    raw_scales<S> raw[4];
    /* Block t of the warp's unit u; behind the last block the last one, which then counts for nothing. */
    auto ask = [&](int t, int u) {
        const int b = min(u * 8 + 2 * t + second, blocks - 1);
        load_piece<C>(code[t], p + b * codes_unit(C), j, g);
        load_scales<S>(raw[t], m.w, p, b, j, g);
    };
    if (a.ids) {
        cuda_wait();
        p += (uint64_t)cuda_at<const int32_t>(a.ids)[row0] * a.matrix_bytes;
    } else {
        p += blockIdx.z * a.matrix_bytes;
    }
#pragma unroll
    for (int t = 0; t < 4; t++)
        ask(t, warp);
    if (!a.ids) /* weights are there before the step is */
        cuda_wait();
    const uint8_t *x[R];
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int row = min(row0 + r, a.n_rows - 1);
        x[r] = cuda_at<const uint8_t>(a.q8) + ((uint64_t)(row / a.per_row) * a.n_heads + blockIdx.z) * a.row_bytes;
    }
    float acc[R][4] = {}, own[R] = {};
    for (int u = warp; u < units; u += warps) {
#pragma unroll
        for (int t = 0; t < 4; t++) {
            const int all = u * 8 + 2 * t + second, b = min(all, blocks - 1);
            uint32_t low[4], high[4];
            four_scales sc;
            make_scales<S>(sc, raw[t], m.w, p, b, j, g);
#pragma unroll
            for (int r = 0; r < 4; r++)
                expand<C>(code[t], j, r, m.w.table, low[r], high[r]);
            ask(t, u + warps);
#pragma unroll
            for (int r = 0; r < R; r++)
                add_block<C, S>(acc[r], own[r], low, high, sc, zero, x[r], k, b, j, all < blocks);
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
            float v = acc[r][q] + (q == j ? own[r] : 0.0f);
            for (int step = 4; step < 32; step *= 2)
                v += __shfl_xor_sync(0xFFFFFFFFu, v, step);
            if (lane < 4)
                part[warp][r][g * 4 + q] = v;
        }
    finish<R>(a, m, part, panel, row0);
}

/* Blocks that share a processor: what their registers allow. */
#define FIT(c) (TERN_CODES_##c == TERN_CODES_U6 || TERN_CODES_##c == TERN_CODES_S8 ? 2 : 3)

#define NARROW(c, s)                                                                   \
    TERN_CUDA_KERNEL_BEGIN(narrow_##c##_##s##_1, tern_cuda_narrow, 32 * WARPS, FIT(c))     \
    {                                                                                  \
        narrow<TERN_CODES_##c, TERN_SCALES_##s, 1>(a);                                 \
    }                                                                                  \
    TERN_CUDA_KERNEL_BEGIN(narrow_##c##_##s##_4, tern_cuda_narrow, 32 * WARPS, 2)      \
    {                                                                                  \
        narrow<TERN_CODES_##c, TERN_SCALES_##s, 4>(a);                                 \
    }
TERN_NARROW_KINDS(NARROW)
#undef NARROW

/* ---- float codes: f32 activations -------------------------------------------------------------------------------- */

/* Lane l of a warp takes W neighbouring outputs of input l / (16 / W) of a group of inputs. */
template <int C, int R> __device__ static inline void floats(const tern_cuda_narrow &a)
{
    constexpr int W = C == TERN_CODES_F32 ? 4 : 8, LANES = 16 / W, INPUTS = 32 / LANES;
    __shared__ float part[WARPS][R][16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int g = lane % LANES, sub = lane / LANES, row0 = blockIdx.x * R;
    const tern_cuda_product &m = a.m[product_of(a, blockIdx.y)];
    const int panel = blockIdx.y - m.panel0, k = m.w.k;
    uint64_t matrix = blockIdx.z;
    cuda_wait();
    if (a.ids)
        matrix = cuda_at<const int32_t>(a.ids)[row0];
    const uint8_t *p = cuda_at<const uint8_t>(m.w.p) + matrix * a.matrix_bytes + panel * m.w.panel_bytes;
    const float *x[R];
#pragma unroll
    for (int r = 0; r < R; r++)
        x[r] = cuda_at<const float>(a.x) + (uint64_t)(min(row0 + r, a.n_rows - 1) / a.per_row) * a.x_stride +
               blockIdx.z * a.x_head;
    float acc[R][W] = {};
#pragma unroll 4
    for (int i = warp * INPUTS + sub; i < k; i += warps * INPUTS) {
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
            const float xi = x[r][i];
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
                part[warp][r][g * W + q] = v;
        }
    finish<R>(a, m, part, panel, row0);
}

/* Eight-bit floats: as signed bytes lie, with a scale for groups of inputs. */
template <int R> __device__ static inline void eights(const tern_cuda_narrow &a)
{
    __shared__ float part[WARPS][R][16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const int g = lane % 4, quad = lane / 4, row0 = blockIdx.x * R;
    const tern_cuda_product &m = a.m[product_of(a, blockIdx.y)];
    const int panel = blockIdx.y - m.panel0, k = m.w.k;
    uint64_t matrix = blockIdx.z;
    cuda_wait();
    if (a.ids)
        matrix = cuda_at<const int32_t>(a.ids)[row0];
    const uint8_t *p = cuda_at<const uint8_t>(m.w.p) + matrix * a.matrix_bytes + panel * m.w.panel_bytes;
    const float *x[R];
#pragma unroll
    for (int r = 0; r < R; r++)
        x[r] = cuda_at<const float>(a.x) + (uint64_t)(min(row0 + r, a.n_rows - 1) / a.per_row) * a.x_stride +
               blockIdx.z * a.x_head;
    float acc[R][4] = {};
#pragma unroll 2
    for (int b = warp; b < k / 32; b += warps) {
        const uint4 v = __ldg(reinterpret_cast<const uint4 *>(p + (uint64_t)b * 512) + lane);
        float s[4], none;
#pragma unroll
        for (int q = 0; q < 4; q++)
            group_scale(TERN_SCALES_G32, m.w, p, 2 * b, g * 4 + q, s[q], none);
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float4 xv = *reinterpret_cast<const float4 *>(x[r] + b * 32 + quad * 4);
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const uint32_t c = word(v, q);
                float dot = __fmul_rn(e4m3_bits(c & 255), xv.x);
                dot = __fmaf_rn(e4m3_bits(c >> 8 & 255), xv.y, dot);
                dot = __fmaf_rn(e4m3_bits(c >> 16 & 255), xv.z, dot);
                dot = __fmaf_rn(e4m3_bits(c >> 24), xv.w, dot);
                acc[r][q] = __fmaf_rn(dot, s[q], acc[r][q]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int q = 0; q < 4; q++) {
            float v = acc[r][q];
            for (int step = 4; step < 32; step *= 2)
                v += __shfl_xor_sync(0xFFFFFFFFu, v, step);
            if (lane < 4)
                part[warp][r][g * 4 + q] = v;
        }
    finish<R>(a, m, part, panel, row0);
}

#define FLOATS(c, r)                                                             \
    TERN_CUDA_KERNEL_BEGIN(floats_##c##_##r, tern_cuda_narrow, 32 * WARPS, 2)    \
    {                                                                            \
        floats<TERN_CODES_##c, r>(a);                                            \
    }
FLOATS(F32, 1)
FLOATS(F32, 4)
FLOATS(F16, 1)
FLOATS(F16, 4)
FLOATS(BF16, 1)
FLOATS(BF16, 4)
#undef FLOATS

TERN_CUDA_KERNEL_BEGIN(floats_E4M3_1, tern_cuda_narrow, 32 * WARPS, 2)
{
    eights<1>(a);
}

TERN_CUDA_KERNEL_BEGIN(floats_E4M3_4, tern_cuda_narrow, 32 * WARPS, 2)
{
    eights<4>(a);
}

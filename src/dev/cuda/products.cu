/* Products of decode rows with weights: int8 activations, exact integer dots with the codes on tensor cores, f32 sums.
 *
 * A block of threads takes a panel (16 outputs) and R rows; its warps share out the inputs, 256 at a time.  Which lane adds what, and in what order lanes and warps are added
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

/* What lane (g, t) reads of a block: quads t and t + 4 of rows 2g and 2g + 1. */
template <int C> struct piece {
    uint2 v[pieces<C>()];
};

template <int C> __device__ static inline void load_piece(piece<C> &p, const uint8_t *block, int t, int g)
{
    const uint2 *at = reinterpret_cast<const uint2 *>(block) + g;
    if (C == TERN_CODES_U2 || C == TERN_CODES_U3 || C == TERN_CODES_T3) {
#pragma unroll
        for (int i = 0; i < pieces<C>(); i++)
            p.v[i] = __ldg(at + 8 * i);
        return;
    }
    p.v[0] = __ldg(at + 8 * t);
    if (C == TERN_CODES_S8)
        p.v[1] = __ldg(at + 8 * (t + 4));
    if (C == TERN_CODES_U5 || C == TERN_CODES_U6)
        p.v[1] = __ldg(at + 32);
    if (C == TERN_CODES_U6)
        p.v[2] = __ldg(at + 40);
}

__device__ static inline uint32_t word(const uint2 &v, int r)
{
    return r ? v.y : v.x;
}

__device__ static inline uint32_t word(const uint4 &v, int r)
{
    return r == 0 ? v.x : r == 1 ? v.y : r == 2 ? v.z : v.w;
}

/* Codes of row r of the lane's two: quad j in low, quad j + 4 in high. */
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

/* Of rows 2g and 2g + 1 and one block: scale and added minimum, of each half block where halves have their own. */
struct two_scales {
    float s[2][2], m[2][2]; /* [row][half] */
};

/* What has to be read for the scales of two neighbouring blocks, as it lies: asked for long before it is used. */
template <int S> struct raw_scales {
    uint32_t d[2], m[2], a[4];
};

__device__ static inline uint32_t two_halves(const uint8_t *p, int at)
{
    return __ldg(reinterpret_cast<const uint32_t *>(p + 2 * at));
}

__device__ static inline uint32_t two_bytes(const uint8_t *p, int at)
{
    return __ldg(reinterpret_cast<const uint16_t *>(p + at));
}

/* b: the first block, even; the one behind it counts for nothing where there is none. */
template <int S>
__device__ static inline void load_scales(raw_scales<S> &o, const tern_cuda_matrix &w, const uint8_t *panel, int b, int g,
                                          int blocks)
{
    const int c = min(b + 1, blocks - 1), row = 2 * g, super = b / 8 * 16 + row;
    if (S == TERN_SCALES_F16 || S == TERN_SCALES_F16M) {
        o.d[0] = two_halves(panel + w.d, b * 16 + row);
        o.d[1] = two_halves(panel + w.d, c * 16 + row);
        if (S == TERN_SCALES_F16M) {
            o.m[0] = two_halves(panel + w.m, b * 16 + row);
            o.m[1] = two_halves(panel + w.m, c * 16 + row);
        }
    } else if (S == TERN_SCALES_K32 || S == TERN_SCALES_K32S) {
        o.d[0] = two_halves(panel + w.d, super);
        o.a[0] = two_bytes(panel + w.a, b * 16 + row);
        o.a[1] = two_bytes(panel + w.a, c * 16 + row);
        if (S == TERN_SCALES_K32) {
            o.m[0] = two_halves(panel + w.m, super);
            o.a[2] = two_bytes(panel + w.b, b * 16 + row);
            o.a[3] = two_bytes(panel + w.b, c * 16 + row);
        }
    } else if (S == TERN_SCALES_K16 || S == TERN_SCALES_K16M) {
        o.d[0] = two_halves(panel + w.d, super);
        if (S == TERN_SCALES_K16M)
            o.m[0] = two_halves(panel + w.m, super);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            o.a[h] = two_bytes(panel + w.a, (2 * b + h) * 16 + row);
            o.a[2 + h] = two_bytes(panel + w.a, (2 * c + h) * 16 + row);
        }
    }
}

__device__ static inline float half_of(uint32_t two, int r)
{
    return half_bits(two >> 16 * r & 0xFFFF);
}

/* Of block b + i. */
template <int S>
__device__ static inline void make_scales(two_scales &o, const raw_scales<S> &v, const tern_cuda_matrix &w,
                                          const uint8_t *panel, int b, int i, int g, int blocks)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        if (S == TERN_SCALES_F16 || S == TERN_SCALES_F16M) {
            o.s[r][0] = half_of(v.d[i], r);
            if (S == TERN_SCALES_F16M)
                o.m[r][0] = half_of(v.m[i], r);
        } else if (S == TERN_SCALES_K32) {
            o.s[r][0] = half_of(v.d[0], r) * (float)(v.a[i] >> 8 * r & 255);
            o.m[r][0] = -(half_of(v.m[0], r) * (float)(v.a[2 + i] >> 8 * r & 255));
        } else if (S == TERN_SCALES_K32S) {
            o.s[r][0] = half_of(v.d[0], r) * w.unit * (float)(int8_t)(v.a[i] >> 8 * r);
        } else if (S == TERN_SCALES_K16 || S == TERN_SCALES_K16M) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t a = v.a[2 * i + h] >> 8 * r & 255;
                if (S == TERN_SCALES_K16) {
                    o.s[r][h] = half_of(v.d[0], r) * w.unit * (float)(int8_t)a;
                } else {
                    o.s[r][h] = half_of(v.d[0], r) * (float)(a & 15);
                    o.m[r][h] = -(half_of(v.m[0], r) * (float)(a >> 4));
                }
            }
        } else { /* rarer kinds read when they need */
            const int at = min(b + i, blocks - 1);
            group_scale(S, w, panel, 2 * at, 2 * g + r, o.s[r][0], o.m[r][0]);
            if (kind_halves(S))
                group_scale(S, w, panel, 2 * at + 1, 2 * g + r, o.s[r][1], o.m[r][1]);
        }
    }
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* Integer tensor cores: 16 rows by 8 columns; all inputs of a block, or half of them. */
__device__ static inline void multiply_block(int c[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                             uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ static inline void multiply_half(int c[4], uint32_t a0, uint32_t a1, uint32_t b)
{
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a0), "r"(a1), "r"(b));
}

/* The dots of two rows and two columns: of a block, or of its halves; and the columns' sums, where minima want them. */
template <int S> struct dots {
    int c[kind_halves(S) ? 2 : 1][4], sum[kind_halves(S) && kind_minimum(S) ? 2 : 1][4];
};

/* What does not come of codes: zero points, sums of the columns. */
template <int S> __device__ static inline void start_dots(dots<S> &d, int zero, uint32_t b0, uint32_t b1)
{
#pragma unroll
    for (int h = 0; h < (kind_halves(S) ? 2 : 1); h++)
        d.c[h][0] = d.c[h][1] = d.c[h][2] = d.c[h][3] = 0;
    for (int left = kind_zero(S) ? -zero : 0; left;) { /* 128 takes two */
        const int part = min(left, 127);
        const uint32_t z = (uint32_t)(part & 255) * 0x01010101u;
        left -= part;
        if (kind_halves(S)) {
            multiply_half(d.c[0], z, z, b0);
            multiply_half(d.c[kind_halves(S)], z, z, b1);
        } else {
            multiply_block(d.c[0], z, z, z, z, b0, b1);
        }
    }
    if (kind_halves(S) && kind_minimum(S)) {
        const uint32_t one = 0x01010101u;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            int *sum = d.sum[kind_halves(S) && kind_minimum(S) ? h : 0];
            sum[0] = sum[1] = sum[2] = sum[3] = 0;
            multiply_half(sum, one, one, h ? b1 : b0);
        }
    }
}

template <int C, int S>
__device__ static inline void add_dots(dots<S> &d, const piece<C> &p, int t, const int8_t *table, uint32_t b0, uint32_t b1)
{
    uint32_t low[2], high[2];
#pragma unroll
    for (int r = 0; r < 2; r++)
        expand<C>(p, t, r, table, low[r], high[r]);
    if (kind_halves(S)) {
        multiply_half(d.c[0], low[0], low[1], b0);
        multiply_half(d.c[kind_halves(S)], high[0], high[1], b1);
    } else {
        multiply_block(d.c[0], low[0], low[1], high[0], high[1], b0, b1);
    }
}

/* acc + the part of row r and column i of a block whose activations have the scale sx.x and the scaled sum sx.y. */
template <int S>
__device__ static inline float add_part(float acc, const dots<S> &d, const two_scales &sc, int r, int i, float2 sx)
{
    const float a = (float)d.c[0][2 * r + i];
    if (kind_halves(S)) {
        float part = __fmaf_rn((float)d.c[kind_halves(S)][2 * r + i], sc.s[r][1], __fmul_rn(a, sc.s[r][0]));
        if (kind_minimum(S))
            part = __fmaf_rn((float)d.sum[kind_halves(S) && kind_minimum(S)][2 * r + i], sc.m[r][1],
                             __fmaf_rn((float)d.sum[0][2 * r + i], sc.m[r][0], part));
        return __fmaf_rn(part, sx.x, acc);
    }
    acc = __fmaf_rn(a, __fmul_rn(sc.s[r][0], sx.x), acc);
    return kind_minimum(S) ? __fmaf_rn(sc.m[r][0], sx.y, acc) : acc;
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

/* A warp's part of a panel: the units (8 blocks) of its turn.  An output is eight chains, of the blocks whose number is
 * j modulo 8, and chains are put together in one order: in pairs, then pairs of pairs.
 *
 * One row: the columns are the blocks of a unit, each zero in all columns but its own, so that eight products leave the
 * dots of eight blocks and every lane has work with the scales. */
template <int C, int S>
__device__ static inline void narrow_1(const tern_cuda_narrow &a, const tern_cuda_matrix &m, const uint8_t *p,
                                       float (*part)[1][16], int row0)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4, t = lane % 4;
    const int k = m.k, blocks = k / 32, units = (blocks + 7) / 8, zero = kind_zero(S) ? m.zero : 0;
    piece<C> code[8];
    raw_scales<S> raw;
    auto ask = [&](int j, int u) {
        load_piece<C>(code[j], p + (uint64_t)min(u * 8 + j, blocks - 1) * codes_unit(C), t, g);
    };
    auto ask_scales = [&](int u) { load_scales<S>(raw, m, p, min(u * 8 + 2 * t, (blocks - 1) & ~1), g, blocks); };
    if (warp < units) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            ask(j, warp);
        ask_scales(warp);
    }
    if (!a.ids) /* weights are there before the step is */
        cuda_wait();
    const uint8_t *x = cuda_at<const uint8_t>(a.q8) + ((uint64_t)(row0 / a.per_row) * a.n_heads + blockIdx.z) * a.row_bytes;
    uint32_t x0 = 0, x1 = 0;
    float2 sx[2];
    auto ask_row = [&](int u) {
        const int *at = reinterpret_cast<const int *>(x) + min(u * 8 + g, blocks - 1) * 8 + t;
        x0 = at[0];
        x1 = at[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int b = u * 8 + 2 * t + i;
            sx[i] = reinterpret_cast<const float2 *>(x + k)[min(b, blocks - 1)];
            if (b >= blocks)
                sx[i] = make_float2(0, 0);
        }
    };
    float acc[2][2] = {};
    if (warp < units)
        ask_row(warp);
    for (int u = warp; u < units; u += warps) {
        const int next = min(u + warps, units - 1);
        const uint32_t b0 = x0, b1 = x1;
        const float2 s0 = sx[0], s1 = sx[1];
        const raw_scales<S> now = raw;
        dots<S> d;
        start_dots<S>(d, zero, b0, b1);
        ask_row(next);
        ask_scales(next);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            add_dots<C, S>(d, code[j], t, m.table, g == j ? b0 : 0, g == j ? b1 : 0);
            ask(j, next);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            two_scales sc;
            make_scales<S>(sc, now, m, p, min(u * 8 + 2 * t, (blocks - 1) & ~1), i, g, blocks);
#pragma unroll
            for (int r = 0; r < 2; r++)
                acc[r][i] = add_part<S>(acc[r][i], d, sc, r, i, i ? s1 : s0);
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float v = __fadd_rn(acc[r][0], acc[r][1]);
        v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, 1));
        v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, 2));
        if (t == 0)
            part[warp][0][2 * g + r] = v;
    }
}

/* Eight rows: the columns. */
template <int C, int S>
__device__ static inline void narrow_8(const tern_cuda_narrow &a, const tern_cuda_matrix &m, const uint8_t *p,
                                       float (*part)[8][16], int row0)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4, t = lane % 4;
    const int k = m.k, blocks = k / 32, units = (blocks + 7) / 8, zero = kind_zero(S) ? m.zero : 0;
    piece<C> code[8];
    raw_scales<S> raw[4];
    auto ask = [&](int j, int u) {
        load_piece<C>(code[j], p + (uint64_t)min(u * 8 + j, blocks - 1) * codes_unit(C), t, g);
    };
    auto ask_scales = [&](int i, int u) { load_scales<S>(raw[i], m, p, min(u * 8 + 2 * i, (blocks - 1) & ~1), g, blocks); };
    if (warp < units) {
#pragma unroll
        for (int j = 0; j < 8; j++)
            ask(j, warp);
#pragma unroll
        for (int i = 0; i < 4; i++)
            ask_scales(i, warp);
    }
    cuda_wait();
    auto row_at = [&](int r) {
        return cuda_at<const uint8_t>(a.q8) +
               ((uint64_t)(min(row0 + r, a.n_rows - 1) / a.per_row) * a.n_heads + blockIdx.z) * a.row_bytes;
    };
    const int *x = reinterpret_cast<const int *>(row_at(g)) + t;
    const float2 *scale[2] = {reinterpret_cast<const float2 *>(row_at(2 * t) + k),
                              reinterpret_cast<const float2 *>(row_at(2 * t + 1) + k)};
    float acc[8][4] = {};
    for (int u = warp; u < units; u += warps) {
        const int next = min(u + warps, units - 1);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int all = u * 8 + j, b = min(all, blocks - 1);
            const uint32_t b0 = x[b * 8], b1 = x[b * 8 + 4];
            dots<S> d;
            start_dots<S>(d, zero, b0, b1);
            add_dots<C, S>(d, code[j], t, m.table, b0, b1);
            ask(j, next);
            two_scales sc;
            make_scales<S>(sc, raw[j / 2], m, p, min(u * 8 + j / 2 * 2, (blocks - 1) & ~1), j % 2, g, blocks);
            if (j % 2)
                ask_scales(j / 2, next);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float2 sx = scale[i][b];
                if (all >= blocks)
                    sx = make_float2(0, 0);
#pragma unroll
                for (int r = 0; r < 2; r++)
                    acc[j][2 * r + i] = add_part<S>(acc[j][2 * r + i], d, sc, r, i, sx);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 2; r++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int q = 2 * r + i;
            float v[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                v[j] = __fadd_rn(acc[2 * j][q], acc[2 * j + 1][q]);
            part[warp][2 * t + i][2 * g + r] = __fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3]));
        }
}

template <int C, int S, int R> __device__ static inline void narrow(const tern_cuda_narrow &a)
{
    __shared__ float part[WARPS][R][16];
    const int row0 = blockIdx.x * R;
    const tern_cuda_product &m = a.m[product_of(a, blockIdx.y)];
    const int panel = blockIdx.y - m.panel0;
    const uint8_t *p = cuda_at<const uint8_t>(m.w.p) + panel * m.w.panel_bytes;
    if (a.ids) {
        cuda_wait();
        p += (uint64_t)cuda_at<const int32_t>(a.ids)[row0] * a.matrix_bytes;
    } else {
        p += blockIdx.z * a.matrix_bytes;
    }
    if constexpr (R == 1)
        narrow_1<C, S>(a, m.w, p, part, row0);
    else
        narrow_8<C, S>(a, m.w, p, part, row0);
    finish<R>(a, m, part, panel, row0);
}

/* Blocks that share a processor: what their registers allow. */
#define FIT(c) (TERN_CODES_##c == TERN_CODES_U6 || TERN_CODES_##c == TERN_CODES_S8 ? 2 : 3)

#define NARROW(c, s)                                                                   \
    TERN_CUDA_KERNEL_BEGIN(narrow_##c##_##s##_1, tern_cuda_narrow, 32 * WARPS, FIT(c)) \
    {                                                                                  \
        narrow<TERN_CODES_##c, TERN_SCALES_##s, 1>(a);                                 \
    }                                                                                  \
    TERN_CUDA_KERNEL_BEGIN(narrow_##c##_##s##_8, tern_cuda_narrow, 32 * WARPS, 2)      \
    {                                                                                  \
        narrow<TERN_CODES_##c, TERN_SCALES_##s, 8>(a);                                 \
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

/* Products of decode rows with weights: int8 activations, exact integer dots with the codes on tensor cores, f32 sums.
 *
 * A panel (16 outputs) is read in units of 256 inputs, and its sum is that of up to eight parts: part p has the units
 * p, p + parts ..  One row: a warp for each part.  More rows: a warp takes some parts of a panel for 8 or 16 rows.
 * Which lane adds what, and in what order all is added up, depends on the matrix' shape alone: a row's outputs have the
 * same bits whatever rows come with it. */
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
    quantize_four(cuda_at<uint8_t>(a.to), a.row_bytes, a.lanes,
                  (row / a.n_heads) * a.row_step + row % a.n_heads * a.head_step, a.k, at / 32, at / 4 % 8, v, real);
}

/* ---- codes ------------------------------------------------------------------------------------------------------- */

template <int C> __host__ __device__ constexpr int pieces()
{
    return C == TERN_CODES_U4 || C == TERN_CODES_T4                         ? 1
           : C == TERN_CODES_U5 || C == TERN_CODES_S8 || C == TERN_CODES_U2 ? 2
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
            p.v[i] = at[8 * i];
        return;
    }
    p.v[0] = at[8 * t];
    if (C == TERN_CODES_S8)
        p.v[1] = at[8 * (t + 4)];
    if (C == TERN_CODES_U5 || C == TERN_CODES_U6)
        p.v[1] = at[32];
    if (C == TERN_CODES_U6)
        p.v[2] = at[40];
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
__device__ static inline void expand(const piece<C> &p, int j, int r, const int8_t *table, uint32_t &low,
                                     uint32_t &high)
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

/* What has to be read for the scales of two neighbouring blocks, as it lies. */
template <int S> struct raw_scales {
    uint32_t d[2], m[2], a[4];
};

/* Where the scales of a unit (8 blocks, 256 inputs) lie: in a panel, or where a copy of them does. */
struct scales_at {
    const uint8_t *d, *m, *a, *b;
};

__device__ static inline uint32_t two_halves(const uint8_t *p, int at)
{
    return *reinterpret_cast<const uint32_t *>(p + 2 * at);
}

__device__ static inline uint32_t two_bytes(const uint8_t *p, int at)
{
    return *reinterpret_cast<const uint16_t *>(p + at);
}

/* b: the first block of the unit's, even.  G kinds read when they need. */
template <int S> __device__ static inline void load_scales(raw_scales<S> &o, const scales_at &at, int b, int g)
{
    const int row = 2 * g;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (S == TERN_SCALES_F16 || S == TERN_SCALES_F16M)
            o.d[i] = two_halves(at.d, (b + i) * 16 + row);
        if (S == TERN_SCALES_F16M)
            o.m[i] = two_halves(at.m, (b + i) * 16 + row);
        if (S == TERN_SCALES_K32 || S == TERN_SCALES_K32S)
            o.a[i] = two_bytes(at.a, (b + i) * 16 + row);
        if (S == TERN_SCALES_K32)
            o.a[2 + i] = two_bytes(at.b, (b + i) * 16 + row);
        if (S == TERN_SCALES_K16 || S == TERN_SCALES_K16M) {
            o.a[2 * i] = two_bytes(at.a, 2 * (b + i) * 16 + row);
            o.a[2 * i + 1] = two_bytes(at.a, (2 * (b + i) + 1) * 16 + row);
        }
    }
    if (S == TERN_SCALES_K32 || S == TERN_SCALES_K32S || S == TERN_SCALES_K16 || S == TERN_SCALES_K16M)
        o.d[0] = two_halves(at.d, row);
    if (S == TERN_SCALES_K32 || S == TERN_SCALES_K16M)
        o.m[0] = two_halves(at.m, row);
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
            o.s[r][0] = __fmul_rn(half_of(v.d[0], r), (float)(v.a[i] >> 8 * r & 255));
            o.m[r][0] = -__fmul_rn(half_of(v.m[0], r), (float)(v.a[2 + i] >> 8 * r & 255));
        } else if (S == TERN_SCALES_K32S) {
            o.s[r][0] = __fmul_rn(__fmul_rn(half_of(v.d[0], r), w.unit), (float)(int8_t)(v.a[i] >> 8 * r));
        } else if (S == TERN_SCALES_K16 || S == TERN_SCALES_K16M) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t a = v.a[2 * i + h] >> 8 * r & 255;
                if (S == TERN_SCALES_K16) {
                    o.s[r][h] = __fmul_rn(__fmul_rn(half_of(v.d[0], r), w.unit), (float)(int8_t)a);
                } else {
                    o.s[r][h] = __fmul_rn(half_of(v.d[0], r), (float)(a & 15));
                    o.m[r][h] = -__fmul_rn(half_of(v.m[0], r), (float)(a >> 4));
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
__device__ static inline void add_dots(dots<S> &d, const piece<C> &p, int t, const int8_t *table, uint32_t b0,
                                       uint32_t b1)
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
__device__ static inline void finish(const tern_cuda_narrow &a, const tern_cuda_product &m, float (*part)[R][16],
                                     int panel, int row0)
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

/* ---- weights on their way -------------------------------------------------------------------------------------- */

/* A warp has a ring of units (8 blocks with their scales) in shared memory, which it alone fills and reads.  Copies are
 * under way before the kernel before this one has ended, and from the end of one panel to the next. */
template <int C, int S> struct unit_of {
    static constexpr int codes = 8 * (int)codes_unit(C);
    static constexpr bool k32 = S == TERN_SCALES_K32 || S == TERN_SCALES_K32S,
                          k16 = S == TERN_SCALES_K16 || S == TERN_SCALES_K16M;
    static constexpr int d = S == TERN_SCALES_F16 || S == TERN_SCALES_F16M ? 256 : k32 || k16 ? 32 : 0;
    static constexpr int m = S == TERN_SCALES_F16M ? 256 : S == TERN_SCALES_K32 || S == TERN_SCALES_K16M ? 32 : 0;
    static constexpr int a = k32 ? 128 : k16 ? 256 : 0, b = S == TERN_SCALES_K32 ? 128 : 0;
    static constexpr int bytes = codes + d + m + a + b;
    static constexpr int depth = TERN_CUDA_RING_DEPTH(bytes);
};

__device__ static inline void copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

/* Unit u of panel p.  What lies behind the panel's last block is some other of its bytes, and counts for nothing. */
template <int C, int S>
__device__ static inline void fetch_unit(uint32_t to, const tern_cuda_matrix &w, const uint8_t *p, int u, int blocks,
                                         int lane)
{
    using unit = unit_of<C, S>;
    static_assert(unit::codes % 512 == 0 && unit::bytes - unit::codes <= 512, "");
    const int last = blocks * (unit::codes / 8) - 16;
#pragma unroll
    for (int i = 0; i < unit::codes; i += 512)
        copy_16(to + i + lane * 16, p + min(u * unit::codes + i + lane * 16, last));
    int at = lane * 16;
    if (at < unit::bytes - unit::codes) {
        const uint32_t put = to + unit::codes + at;
        uint32_t region = w.d;
        int size = unit::d;
        if (unit::m && at >= unit::d) {
            at -= unit::d;
            region = w.m;
            size = unit::m;
        }
        if (unit::a && at >= size) {
            at -= size;
            region = w.a;
            size = unit::a;
        }
        if (unit::b && at >= size) {
            at -= size;
            region = w.b;
            size = unit::b;
        }
        copy_16(put, p + region + min(u * size + at, blocks * size / 8 - 16));
    }
}

/* In pairs, then pairs of pairs. */
__device__ static inline float sum_parts(const float (*part)[16], int parts, int col)
{
    if (parts == 8)
        return __fadd_rn(__fadd_rn(__fadd_rn(part[0][col], part[1][col]), __fadd_rn(part[2][col], part[3][col])),
                         __fadd_rn(__fadd_rn(part[4][col], part[5][col]), __fadd_rn(part[6][col], part[7][col])));
    if (parts == 4)
        return __fadd_rn(__fadd_rn(part[0][col], part[1][col]), __fadd_rn(part[2][col], part[3][col]));
    return parts == 2 ? __fadd_rn(part[0][col], part[1][col]) : part[0][col];
}

/* A warp's part of a panel: the units of its turn.  An output is eight chains, of the blocks whose number is j modulo
 * 8, and chains are put together in one order: in pairs, then pairs of pairs.
 *
 * One row: the columns are the blocks of a unit, each zero in all columns but its own, so that eight products leave the
 * dots of eight blocks and every lane has work with the scales. */
template <int C, int S> __device__ static inline void narrow_1(const tern_cuda_narrow &a)
{
    using unit = unit_of<C, S>;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ float part[2][WARPS][16];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4, t = lane % 4;
    const int row0 = blockIdx.x, k = a.m[0].w.k, blocks = k / 32, units = (blocks + 7) / 8;
    const uint8_t *ring = shared + warp * (unit::depth * unit::bytes);
    const uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring);
    uint64_t matrix = (uint64_t)blockIdx.z * a.matrix_bytes;
    if (a.ids) { /* else weights are there before the step is */
        cuda_wait();
        matrix = (uint64_t)cuda_at<const int32_t>(a.ids)[row0] * a.matrix_bytes;
    }
    auto panel_at = [&](const tern_cuda_product &m, int panel) {
        return cuda_at<const uint8_t>(m.w.p) + matrix + (uint64_t)(panel - m.panel0) * m.w.panel_bytes;
    };
    int ahead = blockIdx.y, ahead_u = warp, ahead_m = product_of(a, ahead),
        stage = 0; /* what is asked for next, and where */
    const uint8_t *ahead_p = panel_at(a.m[ahead_m], ahead);
    auto ask = [&]() {
        if (ahead < a.n_panels) {
            fetch_unit<C, S>(ring_at + stage * unit::bytes, a.m[ahead_m].w, ahead_p, ahead_u, blocks, lane);
            ahead_u += warps;
            if (ahead_u >= units) {
                ahead_u = warp;
                ahead += gridDim.y;
                if (ahead < a.n_panels) {
                    ahead_m = product_of(a, ahead);
                    ahead_p = panel_at(a.m[ahead_m], ahead);
                }
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        stage = stage + 1 < unit::depth ? stage + 1 : 0;
    };
#pragma unroll 1
    for (int i = 0; i < unit::depth; i++)
        ask();
    if (!a.ids)
        cuda_wait();
    const uint8_t *x =
        cuda_at<const uint8_t>(a.q8) + ((uint64_t)(row0 / a.per_row) * a.n_heads + blockIdx.z) * a.row_bytes;
    uint32_t x0 = 0, x1 = 0;
    float2 sx[2];
    auto ask_row = [&](int u) {
        const uint2 two = reinterpret_cast<const uint2 *>(x)[min(u * 8 + g, blocks - 1) * 4 + t];
        x0 = two.x;
        x1 = two.y;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int b = u * 8 + 2 * t + i;
            sx[i] = reinterpret_cast<const float2 *>(x + k)[min(b, blocks - 1)];
            if (b >= blocks)
                sx[i] = make_float2(0, 0);
        }
    };
    ask_row(warp);
    int turn = 0;
    for (int panel = blockIdx.y; panel < a.n_panels; panel += gridDim.y, turn++) {
        const tern_cuda_product &product = a.m[product_of(a, panel)];
        const tern_cuda_matrix &m = product.w;
        const int zero = kind_zero(S) ? m.zero : 0;
        float acc[2][2] = {};
        for (int u = warp; u < units; u += warps) {
            const uint32_t b0 = x0, b1 = x1;
            const float2 s0 = sx[0], s1 = sx[1];
            piece<C> code[8];
            raw_scales<S> raw;
            asm volatile("cp.async.wait_group %0;" ::"n"(unit::depth - 1) : "memory");
            __syncwarp();
            const uint8_t *from = ring + stage * unit::bytes, *scales = from + unit::codes;
#pragma unroll
            for (int j = 0; j < 8; j++)
                load_piece<C>(code[j], from + j * codes_unit(C), t, g);
            load_scales<S>(raw,
                           {scales, scales + unit::d, scales + unit::d + unit::m, scales + unit::d + unit::m + unit::a},
                           2 * t, g);
            ask_row(u + warps < units ? u + warps : warp);
            __syncwarp();
            ask();
            dots<S> d;
            start_dots<S>(d, zero, b0, b1);
#pragma unroll
            for (int j = 0; j < 8; j++)
                add_dots<C, S>(d, code[j], t, m.table, g == j ? b0 : 0, g == j ? b1 : 0);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                two_scales sc;
                make_scales<S>(sc, raw, m, panel_at(product, panel), u * 8 + 2 * t, i, g, blocks);
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
                part[turn % 2][warp][2 * g + r] = v;
        }
        __syncthreads(); /* one is enough: the warps' parts of the panel after the next wait at the next one's */
        const int col = (panel - product.panel0) * 16 + lane;
        if (warp != turn % warps || lane >= 16 || col >= m.n)
            continue;
        float sum = sum_parts(part[turn % 2], warps, lane);
        if (product.bias)
            sum = __fadd_rn(sum, cuda_at<const float>(product.bias)[col]);
        cuda_at<float>(product.y)[(uint64_t)row0 * product.y_stride + blockIdx.z * a.y_head + col] = sum;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* 8 * G rows: the columns.  A warp takes `parts / split` parts of one panel, one after the other. */
template <int C, int S, int G> __device__ static inline void narrow_rows(const tern_cuda_narrow &a)
{
    using unit = unit_of<C, S>;
    constexpr int STAGE = unit::bytes, DEPTH = TERN_CUDA_ROWS_DEPTH(unit::bytes);
    extern __shared__ __align__(128) uint8_t shared[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, g = lane / 4, t = lane % 4;
    const int row0 = blockIdx.x * 8 * G, k = a.m[0].w.k, blocks = k / 32, units = (blocks + 7) / 8;
    const int panel =
        min((int)blockIdx.y * (warps / a.split) + warp / a.split, a.n_panels - 1); /* the last one twice: harmless */
    const int own = a.parts / a.split, part0 = warp % a.split * own;
    const tern_cuda_product &product = a.m[product_of(a, panel)];
    const tern_cuda_matrix &m = product.w;
    const uint8_t *p =
        cuda_at<const uint8_t>(m.p) + blockIdx.z * a.matrix_bytes + (uint64_t)(panel - product.panel0) * m.panel_bytes;
    const int zero = kind_zero(S) ? m.zero : 0;
    const uint8_t *ring = shared + warp * (DEPTH * STAGE);
    const uint32_t ring_at = (uint32_t)__cvta_generic_to_shared(ring);
    float *levels = reinterpret_cast<float *>(shared + warps * (DEPTH * STAGE)) + warp * (3 * 4 * G * 32) + lane;
    int ahead = 0, ahead_u = part0, stage = 0;
    auto next = [&](int &part, int &u) {
        u += a.parts;
        if (u >= units)
            u = part0 + ++part;
    };
    for (int i = 0; i < DEPTH; i++) { /* weights are there before the step is */
        if (ahead < own)
            fetch_unit<C, S>(ring_at + i * STAGE, m, p, ahead_u, blocks, lane);
        asm volatile("cp.async.commit_group;" ::: "memory");
        next(ahead, ahead_u);
    }
    cuda_wait();
    /* Eights of rows lie as they are read, and in the cache next to the processor after the first panel. */
    const uint8_t *x =
        cuda_at<const uint8_t>(a.q8) + ((uint64_t)blockIdx.z * a.head_rows + row0) * a.row_bytes + (g * 4 + t) * 8;
    const uint8_t *x_scale = x + 8 * k - (g * 4 + t) * 8 + t * 16;
    for (int done = 0; done < own; done++) {
        float acc[G][8][4] = {};
        for (int u = part0 + done; u < units; u += a.parts) {
            asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory");
            __syncwarp();
            const uint8_t *from = ring + stage * STAGE, *scales = from + unit::codes;
            const scales_at at = {scales, scales + unit::d, scales + unit::d + unit::m,
                                  scales + unit::d + unit::m + unit::a};
#pragma unroll
            for (int j = 0; j < 8; j++) {
                piece<C> code;
                raw_scales<S> raw;
                two_scales sc;
                load_piece<C>(code, from + j * codes_unit(C), t, g);
                load_scales<S>(raw, at, j / 2 * 2, g);
                make_scales<S>(sc, raw, m, p, u * 8 + j / 2 * 2, j % 2, g, blocks);
                const int block = min(u * 8 + j, blocks - 1);
                const bool real = u * 8 + j < blocks;
#pragma unroll
                for (int c = 0; c < G; c++) {
                    const uint2 two = *reinterpret_cast<const uint2 *>(x + c * (8 * a.row_bytes) + block * 256);
                    const float4 sx = *reinterpret_cast<const float4 *>(x_scale + c * (8 * a.row_bytes) + block * 64);
                    dots<S> d;
                    start_dots<S>(d, zero, two.x, two.y);
                    add_dots<C, S>(d, code, t, m.table, two.x, two.y);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float2 s = !real ? make_float2(0, 0)
                                         : i   ? make_float2(sx.z, sx.w)
                                               : make_float2(sx.x, sx.y);
#pragma unroll
                        for (int r = 0; r < 2; r++)
                            acc[c][j][2 * r + i] = add_part<S>(acc[c][j][2 * r + i], d, sc, r, i, s);
                    }
                }
            }
            __syncwarp();
            if (ahead < own)
                fetch_unit<C, S>(ring_at + stage * STAGE, m, p, ahead_u, blocks, lane);
            asm volatile("cp.async.commit_group;" ::: "memory");
            next(ahead, ahead_u);
            stage = stage + 1 < DEPTH ? stage + 1 : 0;
        }
        int level =
            0; /* parts in pairs, then pairs of pairs: the sums that wait for their other half lie in shared memory */
        for (; done >> level & 1; level++)
            ;
#pragma unroll
        for (int c = 0; c < G; c++)
#pragma unroll
            for (int q = 0; q < 4; q++) {
                float v[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    v[j] = __fadd_rn(acc[c][2 * j][q], acc[c][2 * j + 1][q]);
                float sum = __fadd_rn(__fadd_rn(v[0], v[1]), __fadd_rn(v[2], v[3]));
                for (int l = 0; l < level; l++)
                    sum = __fadd_rn(levels[(l * 4 * G + c * 4 + q) * 32], sum);
                levels[((level < 3 ? level : 0) * 4 * G + c * 4 + q) * 32] = sum;
            }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    /* What a warp has lies at the level of its number of parts (3: at 0); a panel's warps follow each other. */
    if (warp % a.split || (int)blockIdx.y * (warps / a.split) + warp / a.split >= a.n_panels)
        return;
    const int level = own == 8 ? 0 : own == 4 ? 2 : own == 2 ? 1 : 0, apart = 3 * 4 * G * 32;
    for (int c = 0; c < G; c++)
        for (int q = 0; q < 4; q++) {
            const float *v = levels + (level * 4 * G + c * 4 + q) * 32;
            const int row = row0 + c * 8 + 2 * t + q % 2, in = 2 * g + q / 2, col = (panel - product.panel0) * 16 + in;
            float sum = v[0];
            if (a.split == 2)
                sum = __fadd_rn(v[0], v[apart]);
            else if (a.split >= 4) {
                sum = __fadd_rn(__fadd_rn(v[0], v[apart]), __fadd_rn(v[2 * apart], v[3 * apart]));
                if (a.split == 8)
                    sum = __fadd_rn(
                        sum, __fadd_rn(__fadd_rn(v[4 * apart], v[5 * apart]), __fadd_rn(v[6 * apart], v[7 * apart])));
            }
            if (row >= a.n_rows || col >= m.n)
                continue;
            if (product.bias)
                sum = __fadd_rn(sum, cuda_at<const float>(product.bias)[col]);
            cuda_at<float>(product.y)[(uint64_t)row * product.y_stride + blockIdx.z * a.y_head + col] = sum;
        }
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
        narrow_rows<TERN_CODES_##c, TERN_SCALES_##s, 1>(a);                        \
    }                                                                              \
    TERN_CUDA_KERNEL_BEGIN(narrow_##c##_##s##_16, tern_cuda_narrow, 32 * WARPS, 2) \
    {                                                                              \
        narrow_rows<TERN_CODES_##c, TERN_SCALES_##s, 2>(a);                        \
    }
TERN_NARROW_KINDS(NARROW)
#undef NARROW
#undef FIT

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

#define FLOATS(c, r)                                                          \
    TERN_CUDA_KERNEL_BEGIN(floats_##c##_##r, tern_cuda_narrow, 32 * WARPS, 2) \
    {                                                                         \
        floats<TERN_CODES_##c, r>(a);                                         \
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

/* dev/cuda/attn/raw.cuh - decode rows on what is raw: first tokens and open tiles, as one more partial result.
 *
 * A tile is small and lies in the cache, so its time is that of waiting, and of instructions that a processor has to fetch:
 * they are few.  16-bit tiles are multiplied by tensor cores, whose queries and weights are two 16-bit floats each, the
 * second what the first leaves, so they are f32's but for a 2^-22nd; tiles of f32 in f32.  All is inlined into kernels:
 * there the arguments of a kernel are constants, behind a pointer they are loads, one after the other. */
#ifndef TERN_DEV_CUDA_ATTN_RAW_CUH
#define TERN_DEV_CUDA_ATTN_RAW_CUH

#include "dev/cuda/attn/block.cuh"
#include "dev/cuda/attn/matrix.cuh"

/* Where a block's raw pieces lie, to be found before a kernel waits, for the step's tables are older than the kernel before:
 * the tile of the rows' own page, which all have, and the first tokens where they are seen besides. */
struct raw_places {
    const uint8_t *own, *sink;
};

__device__ static inline const uint8_t *raw_sink_of(const block_rows &b)
{
    const tern_cuda_layer &l = b.a->l;
    const bool seen = l.first && b.own >= l.recent && oldest_seen(l, b.pos0) < l.first;
    return seen ? sink_of(b.a->t, l, b.cache, b.sink, b.kv_head) : nullptr;
}

__device__ static inline raw_places raw_places_of(const block_rows &b)
{
    return {work_tile(b.a->t, b.a->l, b.a->stage, b.job_i, b.own, b.kv_head), raw_sink_of(b)};
}

/* Threads of a block that compute meet; it may have others. */
template <int THREADS> __device__ static inline void computing_meet()
{
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

/* ---- tiles of 16-bit floats -------------------------------------------------------------------------------------- */

#define RAW_WARPS 4 /* that compute; a unit of theirs is sixteen tokens */

/* Shared memory: queries by column, upper parts of q row i in column 2 i, lower ones in 2 i + 1; what warps put down. */
template <int D, int ROWS> struct raw_room {
    static constexpr int COLUMN = D + 16, STEP = D + 8; /* lanes meet no bank twice */
    static constexpr int QUERIES = 4 * ROWS * COLUMN + 4 * ROWS; /* bytes of the first two */
    __half *q;                                          /* [2 ROWS][COLUMN] */
    float *unscale;                                     /* [ROWS] */
    float *o;                                           /* [warp][ROWS][STEP] */
    float *m, *l;                                       /* [warp][ROWS] */

    __device__ raw_room(uint8_t *shared)
    {
        q = reinterpret_cast<__half *>(shared);
        unscale = reinterpret_cast<float *>(q + 2 * ROWS * COLUMN);
        o = unscale + ROWS;
        m = o + RAW_WARPS * ROWS * STEP;
        l = m + RAW_WARPS * ROWS;
        static_assert(2 * 2 * ROWS * COLUMN + 4 * (ROWS + RAW_WARPS * ROWS * (STEP + 2)) <= TERN_CUDA_RAW_BYTES(D, 128, ROWS), "");
    }
};

__device__ static inline uint32_t two_halves(__half x, __half y)
{
    return (uint32_t)__half_as_ushort(x) | (uint32_t)__half_as_ushort(y) << 16;
}

/* Queries into their columns, each times a power of two that leaves its largest below 1,024.  heads: as in attend_raw. */
template <int D, int THREADS, int ROWS>
__device__ static inline void put_raw_queries(const block_rows &b, const raw_room<D, ROWS> &r, const float *heads,
                                              bool real)
{
    constexpr int N = D / 32;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = threadIdx.x / 32 % (THREADS / 32); i < ROWS; i += THREADS / 32) {
        float x[N], most = 0;
        __half upper[N], lower[N];
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            float2 two = make_float2(0, 0);
            if (real && i < b.n_q)
                two = *reinterpret_cast<const float2 *>((heads ? heads + i * D : query_of(b, i, D)) + lane * N + j);
            x[j] = two.x * b.a->q_scale;
            x[j + 1] = two.y * b.a->q_scale;
            most = fmaxf(most, fmaxf(fabsf(x[j]), fabsf(x[j + 1])));
        }
        const uint32_t top = __reduce_max_sync(~0u, __float_as_uint(most)) >> 23, exponent = top < 10 ? 10 : top;
        const float by = __uint_as_float((263 - exponent) << 23);
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float y = __fmul_rn(x[j], by);
            upper[j] = __float2half_rn(y);
            lower[j] = __float2half_rn(__fsub_rn(y, __half2float(upper[j])));
        }
#pragma unroll
        for (int j = 0; j < N; j += 2) {
            uint32_t *to = reinterpret_cast<uint32_t *>(r.q + 2 * i * r.COLUMN + lane * N + j);
            if (!real)
                continue;
            to[0] = two_halves(upper[j], upper[j + 1]);
            to[r.COLUMN / 2] = two_halves(lower[j], lower[j + 1]);
        }
        if (real && lane == 0)
            r.unscale[i] = __uint_as_float((exponent - 9) << 23);
    }
}

/* A piece of what is raw: keys [D][n], values [n][D], of which tokens [0, hi) are there. */
struct raw_piece {
    const uint8_t *k, *v;
    int n, hi, page;
};

/* Sixteen tokens as they come from memory, a part of a head of D dims: of dims 16 s + 4 t + i the lane's two tokens, 2 g and
 * 2 g + 1; of tokens 4 t + i the lane's two dims of each 16, 2 g and 2 g + 1. */
template <int D> struct raw_words {
    static constexpr int PARTS = D > 128 ? D / 128 : 1, DIMS = D / PARTS; /* of more there are no registers */
    uint32_t k[DIMS / 16][4], v[DIMS / 16][4];

    __device__ void load_keys(const raw_piece &p, int part, int token, int t)
    {
        const bool there = token < p.hi;
        const uint8_t *at = p.k + 2 * ((part * DIMS + 4 * t) * p.n + token);
        if (p.n == 64) {
#pragma unroll
            for (int s = 0; s < DIMS / 16; s++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    k[s][i] = there ? *reinterpret_cast<const uint32_t *>(at + (16 * s + i) * 128) : 0;
        } else { /* first tokens, of any number: pairs lie anywhere */
            const bool both = token + 1 < p.hi;
#pragma unroll
            for (int s = 0; s < DIMS / 16; s++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint16_t *two = reinterpret_cast<const uint16_t *>(at + (16 * s + i) * 2 * p.n);
                    k[s][i] = (there ? two[0] : 0u) | (both ? (uint32_t)two[1] : 0u) << 16;
                }
        }
    }
    __device__ void load_values(const raw_piece &p, int part, int first, int g, int t)
    {
        const uint8_t *at = p.v + 2 * ((first + 4 * t) * D + part * DIMS + 2 * g);
#pragma unroll
        for (int j = 0; j < DIMS / 16; j++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[j][i] = first + 4 * t + i < p.hi ? *reinterpret_cast<const uint32_t *>(at + 2 * (i * D + 16 * j)) : 0;
    }
};

/* Four words, two numbers of two lines each, as an operand of m16n8k16: the lines' first numbers are rows 0 to 7, the second ones
 * rows 8 to 15. */
__device__ static inline void raw_operand(uint32_t a[4], const uint32_t w[4])
{
    a[0] = __byte_perm(w[0], w[1], 0x5410);
    a[1] = __byte_perm(w[0], w[1], 0x7632);
    a[2] = __byte_perm(w[2], w[3], 0x5410);
    a[3] = __byte_perm(w[2], w[3], 0x7632);
}

/* What a warp has: of q row 4 i + t. */
template <int D, int NT> struct raw_sums {
    float o[NT][D / 16][4]; /* dims 16 j + 2 g and + 1, by upper and by lower parts of weights */
    float m[NT], l[NT];     /* l: of the lane's tokens */
};

/* Weights of the lane's two tokens, of q row 4 i + t, from their products; returns by how much what was summed shrinks. */
template <int D, int ROWS, int NT>
__device__ static inline float raw_weights(const block_rows &b, const raw_room<D, ROWS> &r, raw_sums<D, NT> &st, int i, float p[2],
                                           const raw_piece &piece, int token)
{
    const int row = 4 * i + threadIdx.x % 4;
    float most = st.m[i], sum = 0;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const float s = __fmul_rn(p[j], r.unscale[row]);
        p[j] = row < b.n_q && token + j < piece.hi ? seen_score(b, s, row, token + j, piece.page, 0, piece.hi) : -INFINITY;
        most = fmaxf(most, p[j]);
    }
#pragma unroll
    for (int width = 4; width < 32; width *= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, width));
    const float from = most == -INFINITY ? 0 : most, shrink = exp2f(__fsub_rn(st.m[i], from));
#pragma unroll
    for (int j = 0; j < 2; j++) {
        p[j] = exp2f(__fsub_rn(p[j], from));
        sum = __fadd_rn(sum, p[j]);
    }
    st.l[i] = __fmaf_rn(st.l[i], shrink, sum);
    st.m[i] = most;
    return shrink;
}

/* Tokens [first, first + 16) of a piece. */
template <int D, int ROWS, int NT>
__device__ static __forceinline__ void raw_unit(const block_rows &b, const raw_room<D, ROWS> &r, raw_sums<D, NT> &st,
                                                const raw_piece &piece, int first)
{
    constexpr int PARTS = raw_words<D>::PARTS, STEPS = raw_words<D>::DIMS / 16;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    raw_words<D> w;
    float c[NT][2][4] = {};
    uint32_t a[4], columns[NT][2];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        w.load_keys(piece, part, first + 2 * g, t);
        if (PARTS == 1)
            w.load_values(piece, 0, first, g, t);
#pragma unroll
        for (int s = 0; s < STEPS; s++) {
            raw_operand(a, w.k[s]);
#pragma unroll
            for (int i = 0; i < NT; i++) {
                const __half *q = r.q + (8 * i + g) * r.COLUMN + 16 * (part * STEPS + s) + 4 * t;
                const uint2 two = *reinterpret_cast<const uint2 *>(q);
                multiply(c[i][s % 2], a, two.x, two.y);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float p[2];
#pragma unroll
        for (int j = 0; j < 2; j++)
            p[j] = __fadd_rn(__fadd_rn(c[i][0][2 * j], c[i][1][2 * j]), __fadd_rn(c[i][0][2 * j + 1], c[i][1][2 * j + 1]));
        const float shrink = raw_weights<D, ROWS, NT>(b, r, st, i, p, piece, first + 2 * g);
        const __half x = __float2half_rn(p[0]), y = __float2half_rn(p[1]);
        const uint32_t upper = two_halves(x, y), lower = two_halves(__float2half_rn(__fsub_rn(p[0], __half2float(x))),
                                                                    __float2half_rn(__fsub_rn(p[1], __half2float(y))));
#pragma unroll
        for (int h = 0; h < 2; h++) { /* tokens 4 t + 2 h and + 1 of column g: of q row g / 2 */
            const int from = (2 * t + h) * 4 + g / 2;
            const uint32_t u = __shfl_sync(~0u, upper, from), v = __shfl_sync(~0u, lower, from);
            columns[i][h] = g % 2 ? v : u;
        }
#pragma unroll
        for (int j = 0; j < D / 16; j++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                st.o[i][j][k] = __fmul_rn(st.o[i][j][k], shrink);
    }
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        if (PARTS > 1)
            w.load_values(piece, part, first, g, t);
#pragma unroll
        for (int j = 0; j < STEPS; j++) {
            raw_operand(a, w.v[j]);
#pragma unroll
            for (int i = 0; i < NT; i++)
                multiply(st.o[i][part * STEPS + j], a, columns[i][0], columns[i][1]);
        }
    }
}

/* What the warp has, into its place. */
template <int D, int ROWS, int NT>
__device__ static inline void put_raw(const raw_room<D, ROWS> &r, const raw_sums<D, NT> &st, int warp, bool real)
{
    const int lane = threadIdx.x % 32, g = lane / 4;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const int row = warp * ROWS + 4 * i + lane % 4;
        float all = st.l[i];
#pragma unroll
        for (int width = 4; width < 32; width *= 2)
            all = __fadd_rn(all, __shfl_xor_sync(~0u, all, width));
        if (!real)
            continue;
        if (g == 0) {
            r.m[row] = st.m[i];
            r.l[row] = all;
        }
#pragma unroll
        for (int j = 0; j < D / 16; j++)
            *reinterpret_cast<float2 *>(r.o + row * r.STEP + 16 * j + 2 * g) =
                make_float2(__fadd_rn(st.o[i][j][0], st.o[i][j][1]), __fadd_rn(st.o[i][j][2], st.o[i][j][3]));
    }
}

/* What all warps have, in order. */
template <int D, int THREADS, int ROWS>
__device__ static inline void finish_raw(const block_rows &b, const raw_room<D, ROWS> &r)
{
    for (int e = threadIdx.x; e < b.n_q * (D / 2); e += THREADS) { /* two dims each */
        const int i = e / (D / 2), d = e % (D / 2) * 2;
        float most = -INFINITY, x = 0, y = 0, all = 0;
#pragma unroll
        for (int w = 0; w < RAW_WARPS; w++)
            most = fmaxf(most, r.m[w * ROWS + i]);
#pragma unroll
        for (int w = 0; w < RAW_WARPS; w++) {
            const int row = w * ROWS + i;
            const float by = r.m[row] == -INFINITY ? 0 : exp2f(__fsub_rn(r.m[row], most));
            const float2 two = *reinterpret_cast<const float2 *>(r.o + row * r.STEP + d);
            x = __fmaf_rn(by, two.x, x);
            y = __fmaf_rn(by, two.y, y);
            all = __fmaf_rn(by, r.l[row], all);
        }
        float *to = part_at(b, i, TERN_CUDA_RANGES);
        *reinterpret_cast<float2 *>(to + d) = make_float2(x, y);
        if (d == 0)
            *reinterpret_cast<float2 *>(to + D) = make_float2(most, all);
    }
}

/* First tokens, then pages from the oldest raw one on, unit by unit, each warp every fourth. */
template <int D, int THREADS, int ROWS>
__device__ static __forceinline__ void attend_raw_halves(const block_rows &b, const raw_places &at, uint8_t *shared,
                                                         const float *heads, bool real)
{
    constexpr int NT = ROWS / 4;
    const tern_cuda_layer &l = b.a->l;
    const raw_room<D, ROWS> r(shared);
    const int warp = threadIdx.x / 32, sinks = at.sink ? (l.first + 15) / 16 : 0, own = row_pos(b, b.n_q - 1) % 64 + 1;
    const int units = sinks + 4 * (b.own - b.raw0) + (own + 15) / 16;
    put_raw_queries<D, THREADS, ROWS>(b, r, heads, real);
    if (real)
        computing_meet<THREADS>();
    if (warp < RAW_WARPS || !real) {
        raw_sums<D, NT> st = {};
#pragma unroll
        for (int i = 0; i < NT; i++)
            st.m[i] = -INFINITY;
#pragma unroll 1
        for (int u = real ? warp : sinks; u < (real ? units : sinks + 1); u += RAW_WARPS) {
            const int in = u - sinks, page = b.raw0 + in / 4;
            const uint8_t *k = at.own;
            if (in < 0)
                k = at.sink;
            else if (real && page < b.own)
                k = work_tile(b.a->t, l, b.a->stage, b.job_i, page, b.kv_head);
            raw_piece piece = {k, k + l.tile_v_off, 64, page < b.own ? 64 : own, page};
            if (in < 0)
                piece = {k, k + l.sink_v_off, l.first, l.first, 0};
            if (!real)
                piece.hi = 0;
            raw_unit<D, ROWS, NT>(b, r, st, piece, in < 0 ? 16 * u : 16 * (in % 4));
        }
        put_raw<D, ROWS, NT>(r, st, warp, real);
    }
    if (!real)
        return;
    computing_meet<THREADS>();
    finish_raw<D, THREADS, ROWS>(b, r);
    computing_meet<THREADS>(); /* what comes next may write here */
}

/* ---- tiles of which one side at least is f32 --------------------------------------------------------------------- */

struct float_room {        /* of ROWS q rows, 4 or 8 */
    float *q;              /* [D][ROWS] scaled */
    float *part;           /* [part][ROWS][64 tokens or D dims]: parts of sums, 2 * THREADS * ROWS */
    float *p;              /* [64][ROWS] scores, then weights */
    float *m, *l, *shrink; /* [ROWS] */
};

/* Two neighbours of a side, which is f32 or not. */
__device__ static inline float2 raw_pair(const uint8_t *side, bool raw32, int at, bool both)
{
    const float *x = reinterpret_cast<const float *>(side) + at;
    const __half *h = reinterpret_cast<const __half *>(side) + at;
    return make_float2(raw32 ? x[0] : __half2float(h[0]), !both ? 0 : raw32 ? x[1] : __half2float(h[1]));
}

/* Pairs at at, at + step .. of a side, of which `real` are there; second numbers are or are not. */
template <int N>
__device__ static inline void raw_load(float2 v[N], const uint8_t *side, bool raw32, int at, int step, int real, bool both)
{
#pragma unroll
    for (int j = 0; j < N; j++)
        v[j] = j < real ? raw_pair(side, raw32, at + j * step, both) : make_float2(0, 0);
}

/* sum[h][i] += number h of each pair * y[i] of its line. */
template <int N, int ROWS> __device__ static inline void raw_add(float sum[2][ROWS], const float2 v[N], const float *y, int y_step)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float2 x = v[j];
#pragma unroll
        for (int i = 0; i < ROWS; i += 4) {
            const float4 w = *reinterpret_cast<const float4 *>(y + j * y_step + i);
            const float four[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
            for (int k = 0; k < 4; k++) {
                sum[0][i + k] = __fmaf_rn(four[k], x.x, sum[0][i + k]);
                sum[1][i + k] = __fmaf_rn(four[k], x.y, sum[1][i + k]);
            }
        }
    }
}

/* A thread's sums at `at` and beside it, into the lines of its part, `width` each. */
template <int ROWS>
__device__ static inline void raw_put(const float_room &r, const float sum[2][ROWS], int part, int width, int at)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        *reinterpret_cast<float2 *>(r.part + (part * ROWS + i) * width + at) = make_float2(sum[0][i], sum[1][i]);
}

/* Parts added up in order. */
template <int PARTS, int ROWS> __device__ static inline float raw_sum(const float_room &r, int i, int width, int at)
{
    float sum = r.part[i * width + at];
#pragma unroll
    for (int p = 1; p < PARTS; p++)
        sum = __fadd_rn(sum, r.part[(p * ROWS + i) * width + at]);
    return sum;
}

/* Weights in place of scores; a warp for each row. */
template <int THREADS, int ROWS> __device__ static inline void raw_soften(const float_room &r)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = threadIdx.x / 32; i < ROWS; i += THREADS / 32) {
        const float x = r.p[lane * ROWS + i], y = r.p[(lane + 32) * ROWS + i], old = r.m[i];
        float m = fmaxf(x, y), shrink = 1, px = 0, py = 0;
#pragma unroll
        for (int width = 16; width; width /= 2)
            m = fmaxf(m, __shfl_xor_sync(~0u, m, width));
        m = fmaxf(m, old);
        if (m != -INFINITY) {
            shrink = exp2f(__fsub_rn(old, m));
            px = exp2f(__fsub_rn(x, m));
            py = exp2f(__fsub_rn(y, m));
        }
        float sum = __fadd_rn(px, py);
#pragma unroll
        for (int width = 16; width; width /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, width));
        r.p[lane * ROWS + i] = px;
        r.p[(lane + 32) * ROWS + i] = py;
        __syncwarp();
        if (lane == 0) {
            r.m[i] = m;
            r.l[i] = __fmaf_rn(r.l[i], shrink, sum);
            r.shrink[i] = shrink;
        }
    }
    computing_meet<THREADS>();
}

/* Tokens [0, hi) of a piece: keys [D][n], values [n][D].  A thread has two neighbouring tokens and a part of the dims of
 * keys, then two neighbouring dims and every SPLIT-th token of values. */
template <int D, int THREADS, int ROWS>
__device__ static __forceinline__ void float_piece(const block_rows &b, const float_room &r, float o[2][ROWS], const uint8_t *k,
                                                 const uint8_t *v, int n, int hi, int page)
{
    constexpr int PARTS = THREADS / 32, DIMS = D / PARTS, SPLIT = THREADS / (D / 2), TOKENS = 64 / SPLIT;
    const tern_cuda_layer &l = b.a->l;
    const int t = threadIdx.x % 32 * 2, part = threadIdx.x / 32;
    const int d = threadIdx.x % (D / 2) * 2, split = threadIdx.x / (D / 2), real = (hi - split + SPLIT - 1) / SPLIT;
    float2 x[DIMS], y[TOKENS];
    float s[2][ROWS] = {};
    raw_load<DIMS>(x, k, l.k.raw32, part * DIMS * n + t, n, t < hi ? DIMS : 0, t + 1 < hi);
    computing_meet<THREADS>(); /* queries are there, and nobody reads what the piece before left */
    raw_add<DIMS, ROWS>(s, x, r.q + part * DIMS * ROWS, ROWS);
    raw_put<ROWS>(r, s, part, 64, t);
    computing_meet<THREADS>();
#pragma unroll
    for (int e = threadIdx.x; e < 64 * ROWS; e += THREADS) {
        const int token = e % 64, i = e / 64;
        const float sum = raw_sum<PARTS, ROWS>(r, i, 64, token);
        r.p[token * ROWS + i] = i < b.n_q && token < hi ? seen_score(b, sum, i, token, page, 0, hi) : -INFINITY;
    }
    computing_meet<THREADS>();
    raw_soften<THREADS, ROWS>(r);
    raw_load<TOKENS>(y, v, l.v.raw32, split * D + d, SPLIT * D, real, true);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        o[0][i] = __fmul_rn(o[0][i], r.shrink[i]);
        o[1][i] = __fmul_rn(o[1][i], r.shrink[i]);
    }
    raw_add<TOKENS, ROWS>(o, y, r.p + split * ROWS, SPLIT * ROWS);
}

template <int D, int THREADS, int ROWS>
__device__ static __forceinline__ void attend_raw_floats(const block_rows &b, const raw_places &at, uint8_t *shared,
                                                         const float *heads)
{
    constexpr int SPLIT = THREADS / (D / 2);
    const tern_cuda_layer &l = b.a->l;
    float_room r;
    r.q = reinterpret_cast<float *>(shared);
    r.part = r.q + ROWS * D;
    r.p = r.part + 2 * ROWS * THREADS;
    r.m = r.p + ROWS * 64;
    r.l = r.m + ROWS;
    r.shrink = r.l + ROWS;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * D; i += THREADS)
        r.q[i % D * ROWS + i / D] = i / D < b.n_q ? (heads ? heads[i] : query_of(b, i / D, D)[i % D]) * b.a->q_scale : 0;
    if (threadIdx.x < ROWS) {
        r.m[threadIdx.x] = -INFINITY;
        r.l[threadIdx.x] = 0;
    }
    float o[2][ROWS] = {};
#pragma unroll 1
    for (int page = b.raw0 - (at.sink != nullptr); page <= b.own; page++) {
        const bool sink = page < b.raw0;
        const uint8_t *k = sink              ? at.sink
                           : page == b.own ? at.own
                                           : work_tile(b.a->t, l, b.a->stage, b.job_i, page, b.kv_head);
        const uint8_t *v = k + (sink ? l.sink_v_off : l.tile_v_off);
        const int hi = sink ? l.first : page == b.own ? row_pos(b, b.n_q - 1) % 64 + 1 : 64, n = sink ? l.first : 64;
        float_piece<D, THREADS, ROWS>(b, r, o, k, v, n, hi, sink ? 0 : page);
        computing_meet<THREADS>();
    }
    raw_put<ROWS>(r, o, threadIdx.x / (D / 2), D, threadIdx.x % (D / 2) * 2);
    computing_meet<THREADS>();
    for (int e = threadIdx.x; e < b.n_q * D; e += THREADS) {
        const int i = e / D, d = e % D;
        float *to = part_at(b, i, TERN_CUDA_RANGES);
        to[d] = raw_sum<SPLIT, ROWS>(r, i, D, d);
        if (d == 0) {
            to[D] = r.m[i];
            to[D + 1] = r.l[i];
        }
    }
    computing_meet<THREADS>(); /* what comes next may write here */
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* All THREADS that compute call; shared: TERN_CUDA_RAW_BYTES(D, THREADS, ROWS), 16-byte aligned.  heads: where the block has its
 * queries, [q row][D], or nullptr: where the kernel before has left them.  real: false for a warp beside them that rehearses: it
 * reads no cache and writes nothing, but its instructions are there then; shared: raw_room::QUERIES bytes that nobody writes. */
template <int D, int THREADS, int ROWS>
__device__ static __forceinline__ void attend_raw(const block_rows &b, const raw_places &at, uint8_t *shared, const float *heads,
                                                  bool real)
{
    if (!b.a->l.k.raw32 && !b.a->l.v.raw32)
        attend_raw_halves<D, THREADS, ROWS>(b, at, shared, heads, real);
    else if (real)
        attend_raw_floats<D, THREADS, ROWS>(b, at, shared, heads);
}

/* The same where it would take registers of what is beside it: with the kernel's arguments behind a pointer. */
template <int D, int THREADS, int ROWS>
__device__ static __noinline__ void attend_raw_apart(const block_rows &b, uint8_t *shared)
{
    attend_raw<D, THREADS, ROWS>(b, raw_places_of(b), shared, nullptr, true);
}

#endif

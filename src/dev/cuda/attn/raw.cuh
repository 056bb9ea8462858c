/* dev/cuda/attn/raw.cuh - decode rows on what is raw: first tokens and open tiles, in f32, as one more partial result.
 *
 * A tile is small and lies in the cache, so its time is that of waiting: a thread asks for all its keys, and for all its
 * values where they are 16-bit floats, before it uses any.  All is inlined into kernels: there the arguments of a kernel
 * are constants, behind a pointer they are loads, one after the other. */
#ifndef TERN_DEV_CUDA_ATTN_RAW_CUH
#define TERN_DEV_CUDA_ATTN_RAW_CUH

#include "dev/cuda/attn/block.cuh"

struct raw_room {          /* of ROWS q rows, 4 or 8 */
    float *q;              /* [D][ROWS] scaled */
    float *part;           /* [part][ROWS][64 tokens or D dims]: parts of sums, 2 * THREADS * ROWS */
    float *p;              /* [64][ROWS] scores, then weights */
    float *m, *l, *shrink; /* [ROWS] */
};

/* Two neighbours of a side: both sides' numbers are halves, or those of one at least are floats. */
template <bool HALVES> struct raw_pair;
template <> struct raw_pair<true> {
    __half2 v;
    __device__ void zero()
    {
        v = __half2half2(__ushort_as_half(0));
    }
    __device__ void load(const uint8_t *side, bool, int at)
    {
        v = *reinterpret_cast<const __half2 *>(side + 2 * at);
    }
    __device__ void load_any(const uint8_t *side, bool, int at, bool both)
    {
        const __half *x = reinterpret_cast<const __half *>(side) + at;
        v = __halves2half2(x[0], both ? x[1] : __ushort_as_half(0));
    }
    __device__ float2 numbers() const
    {
        return __half22float2(v);
    }
};
template <> struct raw_pair<false> {
    float2 v;
    __device__ void zero()
    {
        v = make_float2(0, 0);
    }
    __device__ void load(const uint8_t *side, bool raw32, int at)
    {
        v = raw32 ? *reinterpret_cast<const float2 *>(side + 4 * at)
                  : __half22float2(*reinterpret_cast<const __half2 *>(side + 2 * at));
    }
    __device__ void load_any(const uint8_t *side, bool raw32, int at, bool both)
    {
        const float *x = reinterpret_cast<const float *>(side) + at;
        const __half *h = reinterpret_cast<const __half *>(side) + at;
        v.x = raw32 ? x[0] : __half2float(h[0]);
        v.y = !both ? 0 : raw32 ? x[1] : __half2float(h[1]);
    }
    __device__ float2 numbers() const
    {
        return v;
    }
};

/* Pairs at at, at + step .. of a side, of which `real` are there. */
template <int N, bool HALVES>
__device__ static inline void raw_load(raw_pair<HALVES> v[N], const uint8_t *side, bool raw32, int at, int step, int real)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        v[j].zero();
        if (j < real)
            v[j].load(side, raw32, at + j * step);
    }
}

/* The same where a pair lies anywhere, and its second number is there or not. */
template <int N, bool HALVES>
__device__ static inline void raw_load_any(raw_pair<HALVES> v[N], const uint8_t *side, bool raw32, int at, int step, int real,
                                           bool both)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        v[j].zero();
        if (j < real)
            v[j].load_any(side, raw32, at + j * step, both);
    }
}

/* sum[h][i] += number h of each pair * y[i] of its line. */
template <int N, int ROWS, bool HALVES>
__device__ static inline void raw_add(float sum[2][ROWS], const raw_pair<HALVES> v[N], const float *y, int y_step)
{
#pragma unroll
    for (int j = 0; j < N; j++) {
        const float2 x = v[j].numbers();
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
__device__ static inline void raw_put(const raw_room &r, const float sum[2][ROWS], int part, int width, int at)
{
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        *reinterpret_cast<float2 *>(r.part + (part * ROWS + i) * width + at) = make_float2(sum[0][i], sum[1][i]);
}

/* Parts added up in order. */
template <int PARTS, int ROWS> __device__ static inline float raw_sum(const raw_room &r, int i, int width, int at)
{
    float sum = r.part[i * width + at];
#pragma unroll
    for (int p = 1; p < PARTS; p++)
        sum = __fadd_rn(sum, r.part[(p * ROWS + i) * width + at]);
    return sum;
}

/* Weights in place of scores; a warp for each row. */
template <int THREADS, int ROWS> __device__ static inline void raw_soften(const raw_room &r)
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
    __syncthreads();
}

/* Tokens [0, hi) of a piece: keys [D][n], values [n][D].  A thread has two neighbouring tokens and a part of the dims of
 * keys, then two neighbouring dims and every SPLIT-th token of values. */
template <int D, int THREADS, int ROWS, bool HALVES>
__device__ static __forceinline__ void raw_piece(const block_rows &b, const raw_room &r, float o[2][ROWS], const uint8_t *k,
                                                 const uint8_t *v, int n, int hi, int page)
{
    constexpr int PARTS = THREADS / 32, DIMS = D / PARTS, SPLIT = THREADS / (D / 2), TOKENS = 64 / SPLIT;
    const tern_cuda_layer &l = b.a->l;
    const int t = threadIdx.x % 32 * 2, part = threadIdx.x / 32;
    const int d = threadIdx.x % (D / 2) * 2, split = threadIdx.x / (D / 2), real = (hi - split + SPLIT - 1) / SPLIT;
    raw_pair<HALVES> x[DIMS], y[TOKENS];
    float s[2][ROWS] = {};
    if (n == 64)
        raw_load<DIMS, HALVES>(x, k, l.k.raw32, part * DIMS * 64 + t, 64, t < hi ? DIMS : 0);
    else
        raw_load_any<DIMS, HALVES>(x, k, l.k.raw32, part * DIMS * n + t, n, t < hi ? DIMS : 0, t + 1 < hi);
    if (HALVES)
        raw_load<TOKENS, HALVES>(y, v, false, split * D + d, SPLIT * D, real);
    __syncthreads(); /* queries are there, and nobody reads what the piece before left */
    raw_add<DIMS, ROWS, HALVES>(s, x, r.q + part * DIMS * ROWS, ROWS);
    raw_put<ROWS>(r, s, part, 64, t);
    __syncthreads();
#pragma unroll
    for (int e = threadIdx.x; e < 64 * ROWS; e += THREADS) {
        const int token = e % 64, i = e / 64;
        const float sum = raw_sum<PARTS, ROWS>(r, i, 64, token);
        r.p[token * ROWS + i] = i < b.n_q && token < hi ? seen_score(b, sum, i, token, page, 0, hi) : -INFINITY;
    }
    __syncthreads();
    raw_soften<THREADS, ROWS>(r);
    if (!HALVES)
        raw_load<TOKENS, HALVES>(y, v, l.v.raw32, split * D + d, SPLIT * D, real);
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        o[0][i] = __fmul_rn(o[0][i], r.shrink[i]);
        o[1][i] = __fmul_rn(o[1][i], r.shrink[i]);
    }
    raw_add<TOKENS, ROWS, HALVES>(o, y, r.p + split * ROWS, SPLIT * ROWS);
}

/* Where a block's raw pieces lie, to be found before a kernel waits: the step's tables are older than the kernel before.
 * Only the tile of the rows' own page, which all have. */
__device__ static inline const uint8_t *raw_own(const block_rows &b)
{
    return work_tile(b.a->t, b.a->l, b.a->stage, b.job_i, b.own, b.kv_head);
}

/* All threads of the block call; own: raw_own; shared: TERN_CUDA_RAW_BYTES(D, THREADS, ROWS), 16-byte aligned. */
template <int D, int THREADS, int ROWS>
__device__ static __forceinline__ void attend_raw(const block_rows &b, const uint8_t *own, uint8_t *shared)
{
    constexpr int SPLIT = THREADS / (D / 2);
    const tern_cuda_layer &l = b.a->l;
    raw_room r;
    r.q = reinterpret_cast<float *>(shared);
    r.part = r.q + ROWS * D;
    r.p = r.part + 2 * ROWS * THREADS;
    r.m = r.p + ROWS * 64;
    r.l = r.m + ROWS;
    r.shrink = r.l + ROWS;
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * D; i += THREADS)
        r.q[i % D * ROWS + i / D] = i / D < b.n_q ? query_of(b, i / D, D)[i % D] * b.a->q_scale : 0;
    if (threadIdx.x < ROWS) {
        r.m[threadIdx.x] = -INFINITY;
        r.l[threadIdx.x] = 0;
    }
    float o[2][ROWS] = {};
    const bool sinks = l.first && b.own >= l.recent && oldest_seen(l, b.pos0) < l.first;
#pragma unroll 1
    for (int page = b.raw0 - sinks; page <= b.own; page++) {
        const bool sink = page < b.raw0;
        const uint8_t *k = sink              ? sink_at(b.a->t, l, *b.job, b.kv_head)
                           : page == b.own ? own
                                           : work_tile(b.a->t, l, b.a->stage, b.job_i, page, b.kv_head);
        const uint8_t *v = k + (sink ? l.sink_v_off : l.tile_v_off);
        const int hi = sink ? l.first : page == b.own ? row_pos(b, b.n_q - 1) % 64 + 1 : 64, n = sink ? l.first : 64;
        if (l.k.raw32 || l.v.raw32)
            raw_piece<D, THREADS, ROWS, false>(b, r, o, k, v, n, hi, sink ? 0 : page);
        else
            raw_piece<D, THREADS, ROWS, true>(b, r, o, k, v, n, hi, sink ? 0 : page);
        __syncthreads();
    }
    raw_put<ROWS>(r, o, threadIdx.x / (D / 2), D, threadIdx.x % (D / 2) * 2);
    __syncthreads();
    for (int e = threadIdx.x; e < b.n_q * D; e += THREADS) {
        const int i = e / D, d = e % D;
        float *to = part_at(b, i, TERN_CUDA_RANGES);
        to[d] = raw_sum<SPLIT, ROWS>(r, i, D, d);
        if (d == 0) {
            to[D] = r.m[i];
            to[D + 1] = r.l[i];
        }
    }
    __syncthreads(); /* what comes next may write here */
}

/* The same where it would take registers of what is beside it: with the kernel's arguments behind a pointer. */
template <int D, int THREADS, int ROWS>
__device__ static __noinline__ void attend_raw_apart(const block_rows &b, uint8_t *shared)
{
    attend_raw<D, THREADS, ROWS>(b, raw_own(b), shared);
}

#endif

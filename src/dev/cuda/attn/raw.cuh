/* dev/cuda/attn/raw.cuh - decode rows on what is raw: first tokens and open tiles, in f32, as one more partial result.
 *
 * A tile is small and lies in the cache, so its time is that of waiting: loads are asked for 32 at a time. */
#ifndef TERN_DEV_CUDA_ATTN_RAW_CUH
#define TERN_DEV_CUDA_ATTN_RAW_CUH

#include "dev/cuda/attn/block.cuh"

#define RAW_AT_ONCE 32

struct raw_room {          /* of ROWS q rows, 4 or 8 */
    float *q;              /* [D][ROWS] scaled */
    float *part;           /* [ROWS][THREADS]: parts of sums */
    float *p;              /* [64][ROWS] scores, then weights */
    float *m, *l, *shrink; /* [ROWS] */
};

__device__ static inline float raw_number(float x)
{
    return x;
}

__device__ static inline float raw_number(__half x)
{
    return __half2float(x);
}

__device__ static inline float raw_zero(const float *)
{
    return 0;
}

__device__ static inline __half raw_zero(const __half *)
{
    return __ushort_as_half(0);
}

/* sum[i] += x * y[i] */
template <int ROWS> __device__ static inline void raw_add(float sum[ROWS], float x, const float *y)
{
#pragma unroll
    for (int i = 0; i < ROWS; i += 4) {
        const float4 v = *reinterpret_cast<const float4 *>(y + i);
        sum[i] = __fmaf_rn(v.x, x, sum[i]);
        sum[i + 1] = __fmaf_rn(v.y, x, sum[i + 1]);
        sum[i + 2] = __fmaf_rn(v.z, x, sum[i + 2]);
        sum[i + 3] = __fmaf_rn(v.w, x, sum[i + 3]);
    }
}

/* Numbers x[0], x[step] .. of which `real` are there, each times the ROWS numbers of its line of y. */
template <int N, int ROWS, class T>
__device__ static inline void raw_sums(float sum[ROWS], const T *x, int step, const float *y, int y_step, int real)
{
    constexpr int AT_ONCE = N < RAW_AT_ONCE ? N : RAW_AT_ONCE;
#pragma unroll 1
    for (int n = 0; n < N && n < real; n += AT_ONCE) {
        T v[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            v[j] = n + j < real ? x[(n + j) * step] : raw_zero(x);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++)
            raw_add<ROWS>(sum, raw_number(v[j]), y + (n + j) * y_step);
    }
}

/* Scores of the tokens [0, hi) of a piece whose columns are n apart, into r.p. */
template <int D, int THREADS, int ROWS>
__device__ static inline void raw_scores(const block_rows &b, const raw_room &r, const uint8_t *k, int n, int hi,
                                         int page)
{
    constexpr int PARTS = THREADS / 64, OF = D / PARTS;
    const int t = threadIdx.x % 64, part = threadIdx.x / 64, at = part * OF * n + t;
    float s[ROWS] = {};
    if (t < hi && b.a->l.k.raw32)
        raw_sums<OF, ROWS>(s, reinterpret_cast<const float *>(k) + at, n, r.q + part * OF * ROWS, ROWS, OF);
    else if (t < hi)
        raw_sums<OF, ROWS>(s, reinterpret_cast<const __half *>(k) + at, n, r.q + part * OF * ROWS, ROWS, OF);
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        r.part[i * THREADS + threadIdx.x] = s[i];
    __syncthreads();
    for (int i = part; i < ROWS; i += PARTS) {
        float sum = r.part[i * THREADS + t];
        for (int j = 1; j < PARTS; j++)
            sum = __fadd_rn(sum, r.part[i * THREADS + j * 64 + t]);
        r.p[t * ROWS + i] = i < b.n_q && t < hi ? seen_score(b, sum, i, t, page, 0, hi) : -INFINITY;
    }
    __syncthreads();
}

/* Weights in place of scores; a warp for each row. */
template <int THREADS, int ROWS> __device__ static inline void raw_soften(const raw_room &r)
{
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < ROWS; i += THREADS / 32) {
        const float x = r.p[lane * ROWS + i], y = r.p[(lane + 32) * ROWS + i], old = r.m[i];
        float m = fmaxf(x, y), shrink = 1, px = 0, py = 0;
        for (int width = 16; width; width /= 2)
            m = fmaxf(m, __shfl_xor_sync(~0u, m, width));
        m = fmaxf(m, old);
        if (m != -INFINITY) {
            shrink = exp2f(__fsub_rn(old, m));
            px = exp2f(__fsub_rn(x, m));
            py = exp2f(__fsub_rn(y, m));
        }
        float sum = __fadd_rn(px, py);
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

/* All threads of the block call; shared: (ROWS * (D + THREADS + 64) + 3 * ROWS) floats, 16-byte aligned. */
template <int D, int THREADS, int ROWS>
__device__ __noinline__ static void attend_raw(const block_rows &b, uint8_t *shared)
{
    constexpr int PARTS = THREADS / D;
    const tern_cuda_layer &l = b.a->l;
    raw_room r;
    r.q = reinterpret_cast<float *>(shared);
    r.part = r.q + ROWS * D;
    r.p = r.part + ROWS * THREADS;
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
    __syncthreads();
    const int d = threadIdx.x % D, part = threadIdx.x / D;
    float o[ROWS] = {};
    const bool sinks = l.first && b.own >= l.recent && oldest_seen(l, b.pos0) < l.first;
#pragma unroll 1
    for (int page = b.raw0 - sinks; page <= b.own; page++) {
        const bool sink = page < b.raw0;
        const uint8_t *k =
            sink ? sink_at(b.a->t, l, *b.job, b.kv_head) : work_tile(b.a->t, l, b.a->stage, b.job_i, page, b.kv_head);
        const uint8_t *v = k + (sink ? l.sink_v_off : l.tile_v_off);
        const int hi = sink ? l.first : page == b.own ? row_pos(b, b.n_q - 1) % 64 + 1 : 64;
        const int real = (hi - part + PARTS - 1) / PARTS, at = part * D + d;
        raw_scores<D, THREADS, ROWS>(b, r, k, sink ? l.first : 64, hi, sink ? 0 : page);
        raw_soften<THREADS, ROWS>(r);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            o[i] = __fmul_rn(o[i], r.shrink[i]);
        if (l.v.raw32)
            raw_sums<64 / PARTS, ROWS>(o, reinterpret_cast<const float *>(v) + at, PARTS * D, r.p + part * ROWS,
                                       PARTS * ROWS, real);
        else
            raw_sums<64 / PARTS, ROWS>(o, reinterpret_cast<const __half *>(v) + at, PARTS * D, r.p + part * ROWS,
                                       PARTS * ROWS, real);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++)
        r.part[i * THREADS + threadIdx.x] = o[i];
    __syncthreads();
    if (part)
        return;
    for (int i = 0; i < b.n_q; i++) {
        float sum = r.part[i * THREADS + d], *to = part_at(b, i, TERN_CUDA_RANGES);
        for (int j = 1; j < PARTS; j++)
            sum = __fadd_rn(sum, r.part[i * THREADS + j * D + d]);
        to[d] = sum;
        if (d == 0) {
            to[D] = r.m[i];
            to[D + 1] = r.l[i];
        }
    }
}

#endif

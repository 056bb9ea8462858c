/* dev/cuda/attn/raw.cuh - decode rows on what is raw: first tokens and open tiles, in f32, as one more partial result. */
#ifndef TERN_DEV_CUDA_ATTN_RAW_CUH
#define TERN_DEV_CUDA_ATTN_RAW_CUH

#include "dev/cuda/attn/block.cuh"

#define RAW_ROWS TERN_CUDA_Q
/* Bytes of shared memory that attend_raw takes. */
#define RAW_SHARED(d, threads) ((RAW_ROWS * (d) + RAW_ROWS * (threads) + RAW_ROWS * 64 + 4 * RAW_ROWS) * 4)

struct raw_room {
    float *q;                  /* [8][D] scaled */
    float *part;               /* [8][THREADS]: parts of sums */
    float *p;                  /* [8][64] scores, then weights */
    float *m, *l, *shrink;     /* [8] */
};

/* Scores of the tokens [0, hi) of a piece whose columns are n apart, into r.p. */
template <int D, int THREADS>
__device__ static void raw_scores(const block_rows &b, const raw_room &r, const uint8_t *k, int n, int hi, int page, int lo)
{
    constexpr int PARTS = THREADS / 64, OF = D / PARTS;
    const int t = threadIdx.x % 64, part = threadIdx.x / 64;
    float s[RAW_ROWS] = {};
    if (t < hi) {
#pragma unroll 8
        for (int d = part * OF; d < (part + 1) * OF; d++) {
            const float x = raw_value(b.a->l.k, k, n, t, d);
#pragma unroll
            for (int i = 0; i < RAW_ROWS; i++)
                s[i] = fmaf(r.q[i * D + d], x, s[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < RAW_ROWS; i++)
        r.part[i * THREADS + threadIdx.x] = s[i];
    __syncthreads();
    for (int i = part; i < RAW_ROWS; i += PARTS) {
        float sum = r.part[i * THREADS + t];
        for (int j = 1; j < PARTS; j++)
            sum += r.part[i * THREADS + j * 64 + t];
        r.p[i * 64 + t] = i < b.n_q && t < hi ? seen_score(b, sum, i, t, page, lo, hi) : -INFINITY;
    }
    __syncthreads();
}

/* Weights in place of scores; a warp for each row. */
template <int THREADS> __device__ static void raw_soften(const raw_room &r)
{
    const int lane = threadIdx.x % 32;
    for (int i = threadIdx.x / 32; i < RAW_ROWS; i += THREADS / 32) {
        const float x = r.p[i * 64 + lane], y = r.p[i * 64 + 32 + lane], old = r.m[i];
        float m = fmaxf(x, y), shrink = 1, px = 0, py = 0;
        for (int width = 16; width; width /= 2)
            m = fmaxf(m, __shfl_xor_sync(~0u, m, width));
        m = fmaxf(m, old);
        if (m != -INFINITY) {
            shrink = exp2f(old - m);
            px = exp2f(x - m);
            py = exp2f(y - m);
        }
        float sum = px + py;
        for (int width = 16; width; width /= 2)
            sum += __shfl_xor_sync(~0u, sum, width);
        r.p[i * 64 + lane] = px;
        r.p[i * 64 + 32 + lane] = py;
        __syncwarp();
        if (lane == 0) {
            r.m[i] = m;
            r.l[i] = r.l[i] * shrink + sum;
            r.shrink[i] = shrink;
        }
    }
    __syncthreads();
}

/* All threads of the block call; shared: RAW_SHARED bytes. */
template <int D, int THREADS> __device__ __noinline__ static void attend_raw(const block_rows &b, uint8_t *shared)
{
    constexpr int PARTS = THREADS / D;
    const tern_cuda_layer &l = b.a->l;
    raw_room r;
    r.q = reinterpret_cast<float *>(shared);
    r.part = r.q + RAW_ROWS * D;
    r.p = r.part + RAW_ROWS * THREADS;
    r.m = r.p + RAW_ROWS * 64;
    r.l = r.m + RAW_ROWS;
    r.shrink = r.l + RAW_ROWS;
    for (int i = threadIdx.x; i < RAW_ROWS * D; i += THREADS)
        r.q[i] = i / D < b.n_q ? query_of(b, i / D, D)[i % D] * b.a->q_scale : 0;
    if (threadIdx.x < RAW_ROWS) {
        r.m[threadIdx.x] = -INFINITY;
        r.l[threadIdx.x] = 0;
    }
    __syncthreads();
    const int d = threadIdx.x % D, part = threadIdx.x / D;
    float o[RAW_ROWS] = {};
    const bool sinks = l.first && b.own >= l.recent && oldest_seen(l, b.pos0) < l.first;
#pragma unroll 1
    for (int page = b.raw0 - sinks; page <= b.own; page++) {
        const bool sink = page < b.raw0;
        const uint8_t *k = sink ? sink_at(b.a->t, l, *b.job, b.kv_head)
                                : work_tile(b.a->t, l, b.a->stage, b.job_i, page, b.kv_head);
        const uint8_t *v = k + (sink ? l.sink_v_off : l.tile_v_off);
        const int hi = sink ? l.first : page == b.own ? row_pos(b, b.n_q - 1) % 64 + 1 : 64;
        raw_scores<D, THREADS>(b, r, k, sink ? l.first : 64, hi, sink ? 0 : page, 0);
        raw_soften<THREADS>(r);
#pragma unroll
        for (int i = 0; i < RAW_ROWS; i++)
            o[i] *= r.shrink[i];
#pragma unroll 4
        for (int t = part; t < hi; t += PARTS) {
            const float x = raw_value(l.v, v, 64, t, d);
#pragma unroll
            for (int i = 0; i < RAW_ROWS; i++)
                o[i] = fmaf(r.p[i * 64 + t], x, o[i]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < RAW_ROWS; i++)
        r.part[i * THREADS + threadIdx.x] = o[i];
    __syncthreads();
    if (part)
        return;
    for (int i = 0; i < b.n_q; i++) {
        float sum = r.part[i * THREADS + d], *to = part_at(b, i, TERN_CUDA_RANGES);
        for (int j = 1; j < PARTS; j++)
            sum += r.part[i * THREADS + j * D + d];
        to[d] = sum;
        if (d == 0) {
            to[D] = r.m[i];
            to[D + 1] = r.l[i];
        }
    }
}

#endif

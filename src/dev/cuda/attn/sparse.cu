/* Attention of many heads to one set of rows: compressed ones, then those of a window (dev/cpu/sparse.c).
 *
 * What a query sees is gathered first, in ascending order and as f32 of the model's own domain, and then all its heads
 * meet it, 32 rows at a time.  The order of sums hangs on what the query sees alone, not on how heads are dealt out. */
#include "dev/cuda/attn/spans.cuh"

#define THREADS 256
#define WARPS   (THREADS / 32)
#define ROWS    TERN_CUDA_SPARSE_ROWS
#define DIMS    TERN_CUDA_SPARSE_DIM
#define LOG2E   1.4426950408889634

/* How many rows the query of a row of the batch sees: *all compressed ones, then those of its window from *oldest on. */
__device__ static inline int rows_seen(const tern_cuda_sparse_args &a, int row, int *all, int *oldest)
{
    const int pos = cuda_at<const tern_cuda_row>(a.t.rows)[row].pos;
    *all = a.counts ? cuda_at<const int32_t>(a.counts)[row] : a.rate ? (pos + 1) / a.rate : 0;
    *oldest = oldest_seen(a.own, pos);
    return *all + pos + 1 - *oldest;
}

/* ---- gathered ---------------------------------------------------------------------------------------------------- */

__device__ static inline void take_raw(const tern_cuda_side &s, float *x, const uint8_t *data, int n, int at, int lane)
{
    for (int d = lane; d < s.dim; d += 32)
        x[d] = raw_value(s, data, n, at, d);
}

/* x[0, l.v.dim + l.k.dim) = row `row`, which is in a tile from page `open` on.  By one warp, x in shared memory. */
__device__ static void fetch(const tern_cuda_tables &t, const tern_cuda_layer &l, const tern_cuda_stage &stage, int job,
                             int row, int open, bool counted, float *x, int lane)
{
    const tern_cuda_job &j = cuda_at<const tern_cuda_job>(t.jobs)[job];
    const int page = row / 64, at = row % 64;
    const uint8_t *position;
    if (page > open - l.recent) {
        const uint8_t *tile = work_tile(t, l, stage, job, page, 0);
        take_raw(l.v, x, tile + l.tile_v_off, 64, at, lane);
        position = tile;
    } else if (row < l.first) {
        take_raw(l.v, x, sink_at(t, l, j, 0) + l.sink_v_off, l.first, at, lane);
        return;
    } else {
        const uint8_t *p = page_at(t, l, j, page, 0), *data = p + l.v_off;
        const uint16_t *head = reinterpret_cast<const uint16_t *>(p + l.v_head_off);
        if (l.v.form < TERN_CUDA_CODES)
            take_raw(l.v, x, data, 64, at, lane);
        for (int d = lane; l.v.form >= TERN_CUDA_CODES && d < l.v.dim; d += 32)
            x[d] = page_value(l.v, data, head, at, d);
        __syncwarp();
        if (l.v.rotated)
            rotate_row(l.v, x, true, lane);
        position = p + l.k_off;
    }
    for (int d = lane; counted && d < l.k.dim; d += 32) /* the dims that a row keeps apart */
        x[l.v.dim + d] = from_f16(reinterpret_cast<const uint16_t *>(position)[d * 64 + at]);
}

/* Block (row, 32 of what it sees). */
TERN_CUDA_KERNEL_BEGIN(sparse_rows, tern_cuda_sparse_args, THREADS, 1)
{
    __shared__ float room[WARPS][DIMS];
    const int row = a.row0 + blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    cuda_wait();
    int all, oldest;
    const int n = rows_seen(a, row, &all, &oldest), first = blockIdx.y * ROWS;
    if (first >= n)
        return;
    const int job = job_of(a.t, a.jobs, row);
    if (cuda_at<const tern_cuda_job>(a.jobs)[job].cache != a.cache)
        return;
    const int pos = cuda_at<const tern_cuda_row>(a.t.rows)[row].pos;
    const int32_t *ids = a.ids ? cuda_at<const int32_t>(a.ids) + (uint64_t)row * a.top : nullptr;
    tern_cuda_tables tokens = a.t;
    tokens.jobs = a.jobs;
    float *x = room[warp];
    for (int i = first + warp; i < n && i < first + ROWS; i += WARPS) {
        if (i < all)
            fetch(a.t, a.span, a.span_stage, job, ids ? ids[i] : i, (pos + 1) / a.rate / 64, true, x, lane);
        else
            fetch(tokens, a.own, a.own_stage, job, oldest + i - all, pos / 64, false, x, lane);
        __syncwarp();
        float *to = cuda_at<float>(a.rows) + ((uint64_t)blockIdx.x * a.most + i) * a.dim;
        for (int d = lane; d < a.dim; d += 32)
            to[d] = x[d];
        __syncwarp();
    }
}

/* ---- attended ---------------------------------------------------------------------------------------------------- */

/* Sums over a warp's lanes, in every lane. */
__device__ static inline float over_lanes(float x)
{
    for (int step = 16; step; step /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

__device__ static inline float largest(float x)
{
    for (int step = 16; step; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
    return x;
}

__device__ static inline float dot_four(float4 x, float4 y, float sum)
{
    return __fmaf_rn(x.w, y.w, __fmaf_rn(x.z, y.z, __fmaf_rn(x.y, y.y, __fmaf_rn(x.x, y.x, sum))));
}

/* What a block shares: rows [ROWS][dim], queries [H][dim], weights [ROWS][H], then of each head what sums shrink by. */
struct sparse_room {
    float *rows, *q, *p, *shrink;
};

/* p[t][h] = scores of all rows, a warp for EACH of them.  Those behind the last one are what was there before. */
#define EACH (ROWS / WARPS)

template <int H> __device__ static inline void score_rows(const sparse_room &w, int dim, int warp, int lane)
{
    const float *rows = w.rows + warp * EACH * dim;
    float sum[EACH][H];
#pragma unroll
    for (int t = 0; t < EACH; t++)
#pragma unroll
        for (int h = 0; h < H; h++)
            sum[t][h] = 0;
    for (int d = lane * 4; d < dim; d += 128) {
        float4 v[EACH];
#pragma unroll
        for (int t = 0; t < EACH; t++)
            v[t] = *reinterpret_cast<const float4 *>(rows + t * dim + d);
#pragma unroll
        for (int h = 0; h < H; h++) {
            const float4 q = *reinterpret_cast<const float4 *>(w.q + h * dim + d);
#pragma unroll
            for (int t = 0; t < EACH; t++)
                sum[t][h] = dot_four(v[t], q, sum[t][h]);
        }
    }
#pragma unroll
    for (int t = 0; t < EACH; t++)
#pragma unroll
        for (int h = 0; h < H; h++) {
            const float s = over_lanes(sum[t][h]);
            if (lane == 0)
                w.p[(warp * EACH + t) * H + h] = s;
        }
}

/* The running softmax of the head that a warp keeps. */
struct softmax {
    float max, total;
};

template <int H> __device__ static inline void weigh_rows(const sparse_room &w, softmax &m, int n, int head, int lane)
{
    const float s = lane < n ? w.p[lane * H + head] : -INFINITY, top = fmaxf(m.max, largest(s));
    const float p = lane < n ? exp2f(__fsub_rn(s, top)) : 0, shrink = exp2f(__fsub_rn(m.max, top));
    m.total = __fmaf_rn(m.total, shrink, over_lanes(p));
    m.max = top;
    w.p[lane * H + head] = p;
    if (lane == 0)
        w.shrink[head] = shrink;
}

#define OWN (DIMS / THREADS) /* dims of a thread, THREADS apart */

template <int H> __device__ static inline void add_rows(const sparse_room &w, float out[OWN][H], int dim, int n)
{
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int d = i * THREADS + threadIdx.x;
        if (d >= dim)
            return;
#pragma unroll
        for (int h = 0; h < H; h++)
            out[i][h] = __fmul_rn(out[i][h], w.shrink[h]);
        for (int t = 0; t < n; t++) {
            const float v = w.rows[t * dim + d];
#pragma unroll
            for (int h = 0; h < H; h++)
                out[i][h] = __fmaf_rn(w.p[t * H + h], v, out[i][h]);
        }
    }
}

/* The n numbers of some rows. */
__device__ static inline void load_rows(float *to, const float *from, int n)
{
    for (int i = threadIdx.x * 4; i < n; i += THREADS * 4)
        *reinterpret_cast<float4 *>(to + i) = *reinterpret_cast<const float4 *>(from + i);
}

/* A block for each row and H of its heads. */
template <int H> __device__ static inline void sparse(const tern_cuda_sparse_args &a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    float *room = reinterpret_cast<float *>(shared);
    const sparse_room w = {room, room + ROWS * a.dim, room + (ROWS + H) * a.dim, room + (ROWS + H) * a.dim + ROWS * H};
    const int row = a.row0 + blockIdx.x, head0 = blockIdx.y * H, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int heads = a.n_heads - head0 < H ? a.n_heads - head0 : H;
    cuda_wait();
    int all, oldest;
    const int n = rows_seen(a, row, &all, &oldest), job = job_of(a.t, a.jobs, row);
    if (cuda_at<const tern_cuda_job>(a.jobs)[job].cache != a.cache)
        return;
    const float *q = cuda_at<const float>(a.q) + row * a.q_stride + (uint64_t)head0 * a.dim;
    const float *seen = cuda_at<const float>(a.rows) + (uint64_t)blockIdx.x * a.most * a.dim;
    for (int i = threadIdx.x; i < H * a.dim; i += THREADS)
        w.q[i] = i < heads * a.dim ? __fmul_rn(q[i], a.scale) : 0;
    softmax m = {warp < heads ? (float)(LOG2E * (double)cuda_at<const float>(a.sinks)[head0 + warp]) : 0, 1};
    float out[OWN][H];
#pragma unroll
    for (int i = 0; i < OWN * H; i++)
        out[i / H][i % H] = 0;
    for (int first = 0; first < n; first += ROWS) {
        const int some = n - first < ROWS ? n - first : ROWS;
        __syncthreads();
        load_rows(w.rows, seen + (uint64_t)first * a.dim, some * a.dim);
        __syncthreads();
        score_rows<H>(w, a.dim, warp, lane);
        __syncthreads();
        if (warp < H)
            weigh_rows<H>(w, m, some, warp, lane);
        __syncthreads();
        add_rows<H>(w, out, a.dim, some);
    }
    __syncthreads();
    if (warp < H && lane == 0)
        w.shrink[warp] = __fdiv_rn(1.0f, m.total);
    __syncthreads();
    float *to = cuda_at<float>(a.out) + row * a.out_stride + (uint64_t)head0 * a.dim;
#pragma unroll
    for (int i = 0; i < OWN; i++)
#pragma unroll
        for (int h = 0; h < H; h++)
            if (h < heads && i * THREADS + (int)threadIdx.x < a.dim)
                to[h * a.dim + i * THREADS + threadIdx.x] = __fadd_rn(__fmul_rn(out[i][h], w.shrink[h]), 0.0f);
}

TERN_CUDA_KERNEL_BEGIN(sparse_2, tern_cuda_sparse_args, THREADS, 1)
{
    sparse<2>(a);
}

TERN_CUDA_KERNEL_BEGIN(sparse_8, tern_cuda_sparse_args, THREADS, 1)
{
    sparse<8>(a);
}

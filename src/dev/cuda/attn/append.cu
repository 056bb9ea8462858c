/* New rows into the raw tiles of their pages; raw pages that are full close by a copy, coded ones in encode/encode.cu.
 *
 * One block of threads per page that a job touches, and KV head.  In steps of decode rows it does first what is done to
 * the heads of these rows. */
#include "dev/cuda/attn/cache.cuh"
#include "dev/cuda/attn/columns.cuh"
#include "dev/cuda/attn/heads.cuh"

#define THREADS 256

__device__ static void copy_bytes(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    for (uint64_t i = 4 * threadIdx.x; i < bytes; i += 4 * THREADS)
        *reinterpret_cast<uint32_t *>(to + i) = *reinterpret_cast<const uint32_t *>(from + i);
}

/* Tokens [from, to) of the page: rows from `row` on, of which the head begins at x; four dims at a time.  Neighbours in
 * a warp have what lies side by side in the tile: tokens of keys, dims of values. */
__device__ static void put_tokens(const tern_cuda_side &s, uint8_t *tile, const float *x, uint64_t stride, int from,
                                  int to)
{
    const int n = to - from, fours = s.dim / 4;
    for (int i = threadIdx.x; i < n * fours; i += THREADS) {
        const int t = s.key ? i % n : i / fours, d = (s.key ? i / n : i % fours) * 4;
        const int at = s.key ? d * 64 + from + t : (from + t) * s.dim + d, step = s.key ? 64 : 1;
        const float4 four = *reinterpret_cast<const float4 *>(x + t * stride + d);
        const float y[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (s.raw32)
                reinterpret_cast<float *>(tile)[at + j * step] = y[j];
            else
                reinterpret_cast<uint16_t *>(tile)[at + j * step] = to_f16(y[j]);
        }
    }
}

/* As kv_raw.c: eight significant bits, to even; what would become infinite becomes the largest number. */
__device__ static uint16_t round_to_8_bits(uint16_t h)
{
    const uint32_t sign = h & 0x8000u;
    uint32_t x = h & 0x7FFFu;
    if (x >= 0x7C00u)
        return h;
    x = (x + 3 + (x >> 3 & 1)) & ~7u;
    return (uint16_t)(sign | (x < 0x7C00u ? x : 0x7BF8u));
}

__device__ static void close_raw(const tern_cuda_side &s, uint8_t *page, const uint8_t *tile)
{
    if (s.form == TERN_CUDA_F16 || s.form == TERN_CUDA_F32)
        copy_bytes(page, tile, (uint64_t)s.dim * 64 * (s.form == TERN_CUDA_F32 ? 4 : 2));
    for (int i = threadIdx.x; s.form == TERN_CUDA_BF16 && i < s.dim * 64; i += THREADS)
        reinterpret_cast<uint16_t *>(page)[i] = round_to_8_bits(reinterpret_cast<const uint16_t *>(tile)[i]);
}

/* The first tokens, raw: keys [dim][first], values [first][dim]. */
__device__ static void put_sink(const tern_cuda_layer &l, uint8_t *sink, const uint8_t *tile)
{
    for (int i = threadIdx.x; i < l.first * l.k.dim; i += THREADS) {
        const int at = i / l.first * 64 + i % l.first;
        if (l.k.raw32)
            reinterpret_cast<uint32_t *>(sink)[i] = reinterpret_cast<const uint32_t *>(tile)[at];
        else
            reinterpret_cast<uint16_t *>(sink)[i] = reinterpret_cast<const uint16_t *>(tile)[at];
    }
    copy_bytes(sink + l.sink_v_off, tile + l.tile_v_off, (uint64_t)l.first * l.v.dim * (l.v.raw32 ? 4 : 2));
}

/* What append does for a unit and a KV head whose tile is `tile`. */
__device__ static inline void append_rows(const tern_cuda_append_args &a, const tern_cuda_unit &u, uint8_t *tile, int head)
{
    const tern_cuda_layer &l = a.l;
    const tern_cuda_job &j = cuda_at<const tern_cuda_job>(a.t.jobs)[u.job];
    const int from = u.pos0, to = u.pos0 + u.n_rows;
    const bool full = to % 64 == 0, staged = u.stage >= 0;
    if (staged && from % 64) {
        copy_bytes(tile, own_tile(a.t, l, j, u.page, head), l.tile_bytes);
    } else if (staged && !full) { /* columns behind the last token must be finite */
        for (uint64_t i = 4 * threadIdx.x; i < l.tile_bytes; i += 4 * THREADS)
            *reinterpret_cast<uint32_t *>(tile + i) = 0;
    }
    __syncthreads();
    const uint64_t row = u.row0;
    put_tokens(l.k, tile, cuda_at<const float>(a.k) + row * a.k_stride + head * l.k.dim, a.k_stride, from % 64,
               from % 64 + to - from);
    put_tokens(l.v, tile + l.tile_v_off, cuda_at<const float>(a.v) + row * a.v_stride + head * l.v.dim, a.v_stride,
               from % 64, from % 64 + to - from);
    if (!full)
        return;
    __syncthreads();
    uint8_t *p = page_at(a.t, l, j, u.page, head);
    close_raw(l.k, p + l.k_off, tile);
    close_raw(l.v, p + l.v_off, tile + l.tile_v_off);
    if (u.page == 0 && l.first)
        put_sink(l, sink_at(a.t, l, j, head), tile);
}

TERN_CUDA_KERNEL_BEGIN(append, tern_cuda_append_args, THREADS, 1)
{
    const tern_cuda_unit u = cuda_at<const tern_cuda_unit>(a.units)[blockIdx.x];
    uint8_t *tile = unit_tile(a.tiles, a.l, a.stage, u, blockIdx.y);
    cuda_wait(); /* the step's tables were there before its first kernel */
    append_rows(a, u, tile, blockIdx.y);
}

/* A head of the queries, which the warp has just finished, as columns. */
template <int D>
__device__ static inline void columns_of_head(const tern_cuda_append_heads_args &a, const float sign[D / 32], int row, int head,
                                              int lane)
{
    const tern_cuda_heads_set &q = a.heads.set[a.q];
    const tern_cuda_layer &l = a.append.l;
    const tern_cuda_cond *cond =
        l.k.cond ? cuda_at<const tern_cuda_cond>(l.k.cond) + head / (q.n_heads / l.n_heads) : nullptr;
    put_columns<D>(cuda_at<query_columns<D>>(a.columns)[row * q.n_heads + head],
                   cuda_at<const float>(q.x) + row * q.stride + head * D, a.q_scale, l.k, cond, sign, lane);
}

/* Head `other` of those that are neither keys nor values, in rows [row0, row0 + n). */
template <int D>
__device__ static inline void other_head(const tern_cuda_append_heads_args &a, int row0, int n, int other, int lane)
{
    int s = 0;
    float sign[D / 32];
    for (; s < a.heads.n_sets; s++) {
        if (s == a.k || s == a.v)
            continue;
        if (other < a.heads.set[s].n_heads)
            break;
        other -= a.heads.set[s].n_heads;
    }
    const bool too = a.columns && s == a.q;
    if (too)
        load_signs<D / 32>(sign, a.append.l.k, lane); /* constants, there before the step */
    cuda_wait();
    for (int i = 0; s < a.heads.n_sets && i < n; i++) {
        one_head(a.heads, a.heads.set[s], row0 + i, other, lane);
        __syncwarp();
        if (too)
            columns_of_head<D>(a, sign, row0 + i, other, lane);
    }
}

TERN_CUDA_KERNEL_BEGIN(append_heads, tern_cuda_append_heads_args, THREADS, 1)
{
    cuda_start_next();
    const tern_cuda_append_args &to = a.append;
    const tern_cuda_unit u = cuda_at<const tern_cuda_unit>(to.units)[blockIdx.x];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y, kv = to.l.n_heads;
    const int row0 = u.row0, n = u.n_rows;
    if (head >= kv) {
        const int other = (head - kv) * (THREADS / 32) + warp;
        if (to.l.k.dim == 64)
            other_head<64>(a, row0, n, other, lane);
        else if (to.l.k.dim == 256)
            other_head<256>(a, row0, n, other, lane);
        else
            other_head<128>(a, row0, n, other, lane);
        return;
    }
    cuda_wait();
    for (int i = warp; i < 2 * n; i += THREADS / 32) {
        const int s = i < n ? a.k : a.v;
        if (s >= 0)
            one_head(a.heads, a.heads.set[s], row0 + i % n, head, lane);
    }
    __syncthreads();
    append_rows(to, u, unit_tile(to.tiles, to.l, to.stage, u, head), head);
}

/* The newest staging tiles, as many as a sequence keeps, become its own. */
TERN_CUDA_KERNEL_BEGIN(keep, tern_cuda_append_args, THREADS, 1)
{
    cuda_wait();
    const tern_cuda_unit unit = cuda_at<const tern_cuda_unit>(a.units)[blockIdx.x];
    const tern_cuda_job &j = cuda_at<const tern_cuda_job>(a.t.jobs)[unit.job];
    if (unit.page < (j.pos0 + j.n_rows + 63) / 64 - a.l.ring)
        return;
    copy_bytes(own_tile(a.t, a.l, j, unit.page, blockIdx.y),
               unit_tile(a.tiles, a.l, a.stage, unit, blockIdx.y), a.l.tile_bytes);
}

/* Rows of a raw cache, page by page: the inverse of put_tokens.  Those of pages that a window has dropped are 0. */
__device__ static void take_tokens(const tern_cuda_side &s, const uint8_t *raw, float *x, uint64_t stride, int from,
                                   int to)
{
    const int n = to - from;
    for (int i = threadIdx.x; i < n * s.dim; i += THREADS) {
        const int t = s.key ? i % n : i / s.dim, d = s.key ? i / n : i % s.dim;
        x[t * stride + d] = raw ? raw_value(s, raw, 64, from + t, d) : 0.0f;
    }
}

TERN_CUDA_KERNEL_BEGIN(raw_rows, tern_cuda_append_args, THREADS, 1)
{
    cuda_wait();
    const tern_cuda_recode &r = *cuda_at<const tern_cuda_recode>(a.from);
    const tern_cuda_layer &l = a.l;
    const int page = r.job.pos0 / 64 + blockIdx.x, head = blockIdx.y, end = r.job.pos0 + r.job.n_rows;
    const int from = page * 64 > r.job.pos0 ? page * 64 : r.job.pos0;
    const int to = (page + 1) * 64 < end ? (page + 1) * 64 : end;
    const uint8_t *k = cuda_at<uint8_t>(r.tiles.p + r.job.tile * r.tiles.bytes + l.tile_layer_off +
                                        head * l.tile_bytes),
                  *v = k + l.tile_v_off;
    if (page < r.table.first) {
        k = v = nullptr;
    } else if (page < r.table.first + r.table.n) {
        const uint32_t number = cuda_at<const uint32_t>(r.numbers)[page - r.table.first];
        const uint8_t *p = cuda_at<uint8_t>(r.pages.p + number * r.pages.bytes + l.layer_off + head * l.head_bytes);
        k = p + l.k_off;
        v = p + l.v_off;
    }
    const uint64_t row = r.job.row0 + from - r.job.pos0;
    take_tokens(l.k, k, cuda_at<float>(a.k) + row * a.k_stride + head * l.k.dim, a.k_stride, from % 64,
                from % 64 + to - from);
    take_tokens(l.v, v, cuda_at<float>(a.v) + row * a.v_stride + head * l.v.dim, a.v_stride, from % 64,
                from % 64 + to - from);
}

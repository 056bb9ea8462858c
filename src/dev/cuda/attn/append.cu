/* New rows into the raw tiles of their pages; raw pages that are full close by a copy, coded ones in encode.cu.
 *
 * One block of threads per page that a job touches, and KV head. */
#include "dev/cuda/attn/cache.cuh"

#define THREADS 256

__device__ static void copy_bytes(uint8_t *to, const uint8_t *from, uint64_t bytes)
{
    for (uint64_t i = 4 * threadIdx.x; i < bytes; i += 4 * THREADS)
        *reinterpret_cast<uint32_t *>(to + i) = *reinterpret_cast<const uint32_t *>(from + i);
}

/* Tokens [from, to) of the page: rows from `row` on, of which the head begins at x. */
__device__ static void put_tokens(const tern_cuda_side &s, uint8_t *tile, const float *x, uint64_t stride, int from,
                                  int to)
{
    const int n = to - from;
    for (int i = threadIdx.x; i < n * s.dim; i += THREADS) {
        const int t = s.key ? i % n : i / s.dim, d = s.key ? i / n : i % s.dim;
        const int at = s.key ? d * 64 + from + t : (from + t) * s.dim + d;
        const float y = x[t * stride + d];
        if (s.raw32)
            reinterpret_cast<float *>(tile)[at] = y;
        else
            reinterpret_cast<uint16_t *>(tile)[at] = to_f16(y);
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

TERN_CUDA_KERNEL_BEGIN(append, tern_cuda_append_args, THREADS, 1)
{
    const tern_cuda_layer &l = a.l;
    const tern_cuda_unit unit = cuda_at<const tern_cuda_unit>(a.units)[blockIdx.x];
    const tern_cuda_job &j = cuda_at<const tern_cuda_job>(a.t.jobs)[unit.job];
    const int head = blockIdx.y, page = unit.page, end = j.pos0 + j.n_rows;
    const int from = page * 64 > j.pos0 ? page * 64 : j.pos0, to = (page + 1) * 64 < end ? (page + 1) * 64 : end;
    const bool staged = cuda_at<const int32_t>(a.stage.stage_of)[unit.job] >= 0, full = to % 64 == 0;
    uint8_t *tile = work_tile(a.t, l, a.stage, unit.job, page, head);
    cuda_wait(); /* the step's tables were there before its first kernel */
    if (staged && from % 64) {
        copy_bytes(tile, own_tile(a.t, l, j, page, head), l.tile_bytes);
    } else if (staged && !full) { /* columns behind the last token must be finite */
        for (uint64_t i = 4 * threadIdx.x; i < l.tile_bytes; i += 4 * THREADS)
            *reinterpret_cast<uint32_t *>(tile + i) = 0;
    }
    __syncthreads();
    const uint64_t row = j.row0 + from - j.pos0;
    put_tokens(l.k, tile, cuda_at<const float>(a.k) + row * a.k_stride + head * l.k.dim, a.k_stride, from % 64,
               from % 64 + to - from);
    put_tokens(l.v, tile + l.tile_v_off, cuda_at<const float>(a.v) + row * a.v_stride + head * l.v.dim, a.v_stride,
               from % 64, from % 64 + to - from);
    if (!full)
        return;
    __syncthreads();
    uint8_t *p = page_at(a.t, l, j, page, head);
    close_raw(l.k, p + l.k_off, tile);
    close_raw(l.v, p + l.v_off, tile + l.tile_v_off);
    if (page == 0 && l.first)
        put_sink(l, sink_at(a.t, l, j, head), tile);
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
               work_tile(a.t, a.l, a.stage, unit.job, unit.page, blockIdx.y), a.l.tile_bytes);
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

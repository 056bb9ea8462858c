/* dev/cuda/prompts/wide.cuh - attention of prompt rows on pages of halves: what the kernel of cards of 9.0 (wide_90.cu), that of
 * all others (wide.cu), and in part that of all other heads (wide_any.cu) have in common.
 *
 * Pages are halves as f16 keeps them, in the cache or where prompts/expand.cu put them, and then what is still raw, which
 * lies the same way.  A warp has 16 q rows, of which a lane's are two.  A q row goes through the same steps whatever else
 * is in its block: pages that it does not see leave it as it is. */
#ifndef TERN_DEV_CUDA_PROMPTS_WIDE_CUH
#define TERN_DEV_CUDA_PROMPTS_WIDE_CUH

#include <cuda_fp16.h>
#include "dev/cuda/attn/block.cuh"
#include "dev/cuda/attn/matrix.cuh"

/* ---- pages ---- */

/* A piece of eight numbers, the i-th from `from` on, to a place in shared memory, at and p alike; `real`: or zeros. */
__device__ static inline void bring_piece(uint32_t at, uint8_t *p, const uint8_t *from, int i, bool raw32, bool real)
{
    if (!raw32) {
        cuda_copy_16_or_0(at, from + 16 * i, real);
        return;
    }
    const float4 *four = reinterpret_cast<const float4 *>(from) + 2 * i;
    const float4 x = four[0], y = four[1];
    *reinterpret_cast<uint4 *>(p) =
        real ? make_uint4(two_halves(x.x, x.y), two_halves(x.z, x.w), two_halves(y.x, y.y), two_halves(y.z, y.w))
             : make_uint4(0, 0, 0, 0);
}

/* Where closed pages of a block's KV head lie. */
struct wide_pages {
    const uint32_t *numbers; /* of the cache's pages, by page; NULL: expanded ones */
    uint64_t base, bytes;    /* page of number i from base + i * bytes on */
    int first;               /* expanded: the page of number 0 */
};

/* Of so many bytes each, where attn/ops.c has had them expanded. */
__device__ static inline wide_pages expanded_pages(const block_rows &b, uint64_t bytes)
{
    const tern_cuda_attn_args &a = *b.a;
    const tern_cuda_job *jobs = cuda_at<const tern_cuda_job>(a.t.jobs);
    uint64_t before = 0;
    int first;
    for (int i = a.job0; i < b.job_i; i++)
        if (jobs[i].wide && jobs[i].cache == b.job->cache)
            before += tern_cuda_closed_pages(&a.l, jobs[i].pos0, jobs[i].n_rows, &first);
    tern_cuda_closed_pages(&a.l, b.job->pos0, b.job->n_rows, &first);
    return {nullptr, a.expanded + (before * a.kv_n + b.kv_head - a.kv0) * bytes, bytes * a.kv_n, first};
}

template <int D> __device__ static inline wide_pages find_pages(const block_rows &b)
{
    const tern_cuda_attn_args &a = *b.a;
    if (a.expanded)
        return expanded_pages(b, 2 * 64 * 2 * D);
    const tern_cuda_table &table = table_of(a.t, *b.job, a.l.group);
    const tern_cuda_cache &c = cuda_at<const tern_cuda_cache>(a.t.caches)[b.job->cache];
    const tern_cuda_blocks &pool = cuda_at<const tern_cuda_blocks>(a.t.pools)[c.pages + a.l.group];
    return {cuda_at<const uint32_t>(a.t.numbers) + table.blocks - table.first,
            pool.p + a.l.layer_off + b.kv_head * a.l.head_bytes, pool.bytes, 0};
}

/* A page's sides, keys [dim][64] and values [64][dim], of which the first n tokens count: what lies behind them may be
 * anything. */
struct wide_page {
    const uint8_t *k, *v;
    bool k32, v32; /* f32, else halves */
    int n;
};

/* One that is still raw. */
__device__ static inline wide_page raw_page(const block_rows &b, int page)
{
    const tern_cuda_layer &l = b.a->l;
    const uint8_t *p = work_tile(b.a->t, l, b.a->stage, b.job_i, page, b.kv_head);
    return {p, p + l.tile_v_off, l.k.raw32 != 0, l.v.raw32 != 0,
            page == b.own ? row_pos(b, b.n_q - 1) % 64 + 1 : 64};
}

/* Page `page`; number: of a closed page. */
template <int D> __device__ static inline wide_page page_of(const block_rows &b, const wide_pages &from, int page, uint64_t number)
{
    const tern_cuda_layer &l = b.a->l;
    if (page >= b.raw0)
        return raw_page(b, page);
    const uint8_t *p = cuda_at<const uint8_t>(from.base + number * from.bytes);
    return {p + (from.numbers ? l.k_off : 0), p + (from.numbers ? l.v_off : 2 * 64 * D), false, false, 64};
}

/* Parts of pages as all threads read them, out of a ring of so many places.  FEED::ask puts the next one on its way, `at` is where
 * the ring begins. */
template <class FEED, int STAGES, uint32_t BYTES> struct ring_reader {
    FEED f;
    int slot;

    __device__ explicit ring_reader(const FEED &feed) : f(feed), slot(0)
    {
        for (int i = 0; i < STAGES - 1; i++)
            f.ask();
    }
    /* The next part; the one before it has been read by all. */
    __device__ uint32_t take()
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        f.ask();
        const uint32_t at = f.at + slot * BYTES;
        slot = slot + 1 < STAGES ? slot + 1 : 0;
        return at;
    }
};

/* ---- rows ---- */

/* Rows g and g + 8 of a warp. */
template <int D> struct wide_rows {
    float m[2], l[2], s[32], o[D / 2];
    uint32_t q[D / 16][4], p[4][4];
    int row[2], pos[2];
};

template <int D> __device__ static inline void load_rows(wide_rows<D> &w, const block_rows &b, int first)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        w.m[r] = -INFINITY;
        w.l[r] = 0;
        w.row[r] = first + lane / 4 + 8 * r;
        w.pos[r] = row_pos(b, w.row[r]);
        const bool real = w.row[r] < b.n_q; /* others are 0, and do no harm */
        const float *q = real ? query_of(b, w.row[r], D) + lane % 4 * 2 : nullptr;
        const float scale = b.a->q_scale;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 x = real ? *reinterpret_cast<const float2 *>(q + 16 * k + 8 * h) : float2{0, 0};
                w.q[k][2 * h + r] = two_halves(x.x * scale, x.y * scale);
            }
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        w.o[i] = 0;
}

/* cap * tanh(s / cap); by: 2 log2(e) / cap */
__device__ static inline float capped(float s, float cap, float by)
{
    return cap * (1.0f - __fdividef(2.0f, 1.0f + power(s * by)));
}

/* The cap, and what rows do not see of a page. */
template <int D> __device__ static inline void hide(wide_rows<D> &w, const block_rows &b, int page)
{
    const tern_cuda_layer &l = b.a->l;
    if (b.a->cap > 0) {
        const float by = 2.885390082f / b.a->cap;
#pragma unroll
        for (int i = 0; i < 32; i++)
            w.s[i] = capped(w.s[i], b.a->cap, by);
    }
    if (page != b.own && oldest_seen(l, row_pos(b, b.n_q - 1)) <= page * 64)
        return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int from = oldest_seen(l, w.pos[r]) - page * 64, to = page == b.own ? w.pos[r] % 64 + 1 : 64;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int t = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2, at = i / 2 * 4 + 2 * r + i % 2;
            w.s[at] = t >= from && t < to ? w.s[at] : -INFINITY;
        }
    }
}

/* Weights in place of scores; by what the sums of both rows shrink. */
template <int D> __device__ static inline float2 soften(wide_rows<D> &w)
{
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = w.m[r], sum = 0;
#pragma unroll
        for (int i = 0; i < 16; i++)
            most = fmaxf(most, w.s[i / 2 * 4 + 2 * r + i % 2]);
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float from = most == -INFINITY ? 0 : most;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float &s = w.s[i / 2 * 4 + 2 * r + i % 2];
            s = power(s - from);
            sum += s;
        }
        shrink[r] = power(w.m[r] - from);
        w.l[r] = w.l[r] * shrink[r] + sum; /* this lane's part */
        w.m[r] = most;
    }
    return {shrink[0], shrink[1]};
}

template <int D> __device__ static inline void pack(wide_rows<D> &w)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            w.p[k][i] = small_halves(w.s[8 * k + 2 * i], w.s[8 * k + 2 * i + 1]);
}

template <int D> __device__ static inline void shrink_sums(wide_rows<D> &w, float2 by)
{
    if (!__any_sync(~0u, by.x != 1.0f || by.y != 1.0f))
        return;
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        w.o[i] *= i / 2 % 2 ? by.y : by.x;
}

/* Outputs. */
template <int D> __device__ static inline void put_rows(const wide_rows<D> &w, const block_rows &b)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = w.l[h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (w.row[h] >= b.n_q)
            continue;
        const float by = 1.0f / sum;
        float *out = cuda_at<float>(b.a->out) + (uint64_t)(b.row0 + w.row[h] / b.heads) * b.a->out_stride +
                     (uint64_t)(b.head0 + w.row[h] % b.heads) * D + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<float2 *>(out + 8 * n) =
                float2{w.o[4 * n + 2 * h] * by + 0.0f, w.o[4 * n + 2 * h + 1] * by + 0.0f};
    }
}

#endif

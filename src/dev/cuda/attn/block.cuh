/* dev/cuda/attn/block.cuh - which q rows (heads of rows) of a unit and KV head a block of threads has, what they see, and
 * where decode rows leave their partial results. */
#ifndef TERN_DEV_CUDA_ATTN_BLOCK_CUH
#define TERN_DEV_CUDA_ATTN_BLOCK_CUH

#include "dev/cuda/attn/cache.cuh"

struct block_rows {
    const tern_cuda_attn_args *a;
    const tern_cuda_job *job;
    int job_i, kv_head, head0, heads, n, n_q; /* n: rows */
    int row0, pos0; /* of the first row: in the batch, in the sequence */
    unsigned inverse; /* of heads, times 2^16 */
    int own, page0, raw0;
    int cache, table0, closed; /* of the unit; table0: of its tables */
    uint32_t sink;
    const tern_cuda_cond *cond;
};

/* The heads of a block's rows. */
__device__ static inline void find_heads(block_rows &b, int split)
{
    const tern_cuda_attn_args &a = *b.a;
    b.kv_head = split;
    b.head0 = 0;
    if (a.n_split > 1) {
        b.kv_head = split / a.n_split;
        b.head0 = split % a.n_split * a.heads;
    }
    b.heads = a.heads;
    b.inverse = a.inverse;
    if (a.group - b.head0 < a.heads) {
        b.heads = a.group - b.head0;
        b.inverse = 65535u / (unsigned)b.heads + 1;
    }
    b.head0 += b.kv_head * a.group;
    b.n_q = b.n * b.heads;
    b.cond = a.l.k.cond ? cuda_at<const tern_cuda_cond>(a.l.k.cond) + b.kv_head : nullptr;
}

/* The rows of block `index` of a unit; false: none. */
__device__ static inline bool find_rows(block_rows &b, const tern_cuda_attn_args &a, int unit, int index, int split)
{
    const tern_cuda_unit u = cuda_at<const tern_cuda_unit>(a.units)[unit];
    const int before = index * a.rows, left = u.n_rows - before, n = left < a.rows ? left : a.rows, pos0 = u.pos0 + before;
    if (n <= 0)
        return false;
    b.a = &a;
    b.job = cuda_at<const tern_cuda_job>(a.t.jobs) + u.job;
    b.job_i = u.job;
    b.n = n;
    b.pos0 = pos0;
    b.row0 = u.row0 + before;
    b.own = u.page;
    b.cache = u.cache;
    b.table0 = u.tables;
    b.closed = u.closed;
    b.sink = u.sink;
    b.page0 = oldest_seen(a.l, pos0) / 64;
    b.raw0 = b.own - a.l.recent + 1 > b.page0 ? b.own - a.l.recent + 1 : b.page0;
    find_heads(b, split);
    return true;
}

/* The rows of block `at` of all units' blocks, of which each mostly has one.  attn/halves.cu is slower with it
 * (docs/decisions/072), and divides. */
__device__ static inline bool find_rows(block_rows &b, const tern_cuda_attn_args &a, int at, int split)
{
    int unit = at, index = 0;
    if (a.n_blocks > 1) {
        unit = at / a.n_blocks;
        index = at % a.n_blocks;
    }
    return find_rows(b, a, unit, index, split);
}

/* Row and head of q row i, which is below 2^10. */
__device__ static inline int row_of(const block_rows &b, int i)
{
    return (int)((unsigned)i * b.inverse >> 16);
}

__device__ static inline int head_of(const block_rows &b, int i)
{
    return b.head0 + i - row_of(b, i) * b.heads;
}

__device__ static inline int row_pos(const block_rows &b, int i)
{
    return b.pos0 + row_of(b, i);
}

__device__ static inline const float *query_of(const block_rows &b, int i, int width)
{
    return cuda_at<const float>(b.a->q) + (uint64_t)(b.row0 + row_of(b, i)) * b.a->q_stride + (uint64_t)head_of(b, i) * width;
}

/* log2 of the pages of a range, which are a power of two. */
__device__ static inline int range_shift(int pages)
{
    return 31 - __clz(pages);
}

/* The pages [begin, end) of the block's range `z`, counted from the first range that its rows see; the number of the
 * range. */
__device__ static inline int find_range(const block_rows &b, int z, int &begin, int &end)
{
    const int pages = tern_cuda_range_pages(&b.a->l, b.pos0), range = (b.page0 >> range_shift(pages)) + z;
    begin = range * pages > b.page0 ? range * pages : b.page0;
    end = (range + 1) * pages < b.raw0 ? (range + 1) * pages : b.raw0;
    return range;
}

/* Place `place` of the partial results of q row i: sums of v.dim values, the softmax's reference, its sum. */
__device__ static inline float *part_at(const block_rows &b, int i, int place)
{
    const uint64_t row = b.row0 - b.a->row0 + row_of(b, i), slot = row * b.a->n_heads + head_of(b, i);
    return cuda_at<float>(b.a->part) + (slot * TERN_CUDA_PARTS + place) * (b.a->l.v.dim + 2);
}

/* What a pair of the conditioning adds to query q's scores of one page: factors of its two turns. */
__device__ static inline float2 pair_factors(const block_rows &b, const float *q, int pair, int page)
{
    const auto &m = b.cond->pairs[pair];
    const double *at = cuda_at<const double>(b.a->l.k.angles) + 2 * ((int64_t)m.freq * b.a->l.k.max_pages + page);
    const float co = (float)at[0], si = (float)at[1], x = q[m.a] * b.a->q_scale, y = q[m.b] * b.a->q_scale;
    const float along = __fmaf_rn(x, m.re, __fmul_rn(y, m.im)), across = __fmaf_rn(y, m.re, __fmul_rn(x, -m.im));
    return make_float2(__fmaf_rn(along, co, __fmul_rn(across, si)), __fmaf_rn(across, co, __fmul_rn(along, -si)));
}

/* One score after the product: the cap, and what may be seen of a page whose tokens [lo, hi) count. */
__device__ static inline float seen_score(const block_rows &b, float s, int i, int t, int page, int lo, int hi)
{
    if (b.a->cap > 0)
        s = b.a->cap * tanhf(s / b.a->cap);
    const int pos = row_pos(b, i), oldest = oldest_seen(b.a->l, pos) - page * 64;
    const int end = page == b.own && pos % 64 + 1 < hi ? pos % 64 + 1 : hi;
    return t >= lo && t >= oldest && t < end ? s : -INFINITY;
}

#endif

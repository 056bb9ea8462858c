/* dev/cuda/attn/items.cuh - closed pages of decode rows: which of them a block of threads takes, and a warp's way through them.
 *
 * An item is what one block of threads does at a time for a pair (unit, block of its rows) and one of its splits: what is
 * raw, or a range of pages.  Which pages a range has, and which warp takes each, depends on the row's position alone; the
 * items of all pairs are dealt out in equal pieces to as many blocks as the card holds, so a batch decides who computes
 * and never what.
 *
 * A warp goes through the items of a pair ahead of what it computes. */
#ifndef TERN_DEV_CUDA_ATTN_ITEMS_CUH
#define TERN_DEV_CUDA_ATTN_ITEMS_CUH

#include "dev/cuda/attn/block.cuh"

/* ---- items ---- */

/* Ranges of a block's rows: n of them, `pages` each, from number `first` on. */
struct row_ranges {
    int pages, first, n;
};

__device__ static inline row_ranges ranges_of(const block_rows &b)
{
    const int pages = tern_cuda_range_pages(&b.a->l, b.pos0), shift = range_shift(pages), first = b.page0 >> shift;
    return {pages, first, b.page0 < b.raw0 ? (b.raw0 - 1 >> shift) - first + 1 : 0};
}

/* The pages [begin, end) of one of them. */
__device__ static inline void pages_of(const block_rows &b, const row_ranges &r, int z, int &begin, int &end)
{
    const int from = (r.first + z) * r.pages;
    begin = from > b.page0 ? from : b.page0;
    end = from + r.pages < b.raw0 ? from + r.pages : b.raw0;
}

__device__ static inline int items_of(const tern_cuda_attn_args &a, int pair)
{
    block_rows b;
    if (pair >= a.n_units * a.n_blocks || !find_rows(b, a, pair / a.n_blocks, pair % a.n_blocks, 0))
        return 0;
    return a.l.n_heads * a.n_split * (ranges_of(b).n + 1);
}

/* The items of a block of threads: `left` of them, from item `at` of a pair on. */
struct deal {
    int pair, at, left;
};

__device__ static inline deal deal_out(const tern_cuda_attn_args &a)
{
    const int pairs = a.n_units * a.n_blocks, lane = threadIdx.x % 32;
    int all = 0, before = 0;
    for (int p = 0; p < pairs; p += 32)
        all += items_of(a, p + lane);
    for (int width = 16; width; width /= 2)
        all += __shfl_xor_sync(~0u, all, width);
    const int from = (int)((int64_t)all * blockIdx.x / gridDim.x), to = (int)((int64_t)all * (blockIdx.x + 1) / gridDim.x);
    for (int p = 0; from < to; p += 32) {
        const int own = items_of(a, p + lane), sum = cuda_sum_up_to(own);
        const int first = (int)__reduce_min_sync(~0u, before + sum > from ? (unsigned)lane : 32u);
        if (first < 32)
            return {p + first, from - before - __shfl_sync(~0u, sum - own, first), to - from};
        before += __shfl_sync(~0u, sum, 31);
    }
    return {0, 0, 0};
}

/* ---- pages of a warp, item after item ---- */

struct walk {
    const block_rows *b;
    const uint32_t *numbers; /* by page */
    const uint8_t *pages;    /* of KV head 0 */
    uint64_t bytes;          /* of a page of all heads */
    row_ranges ranges;
    int warp, warps, left; /* items behind the next one */
    int page, end, k;      /* page < 0: there is none left */
    int next_z, next_split, next_page, next_end;
    uint32_t mine, next_mine; /* numbers of the lane's pages: the lane-th from the first on */
    const uint8_t *base, *from; /* pages of the item's KV head; the page in hand */
};

__device__ static inline uint32_t walk_numbers(const walk &w, int page, int end)
{
    const int at = page + (int)(threadIdx.x % 32) * w.warps;
    return at < end ? w.numbers[at] : 0;
}

__device__ static inline int first_page(int begin, int warp, int warps)
{
    return begin + ((warp - begin) & (warps - 1));
}

/* The next item that has a page for the warp; next_page < 0: none has. */
__device__ static inline void walk_look(walk &w)
{
    int begin;
    for (; w.left; w.left--) {
        w.next_z = w.next_z == w.ranges.n ? 0 : w.next_z + 1;
        w.next_split += w.next_z == 0;
        if (w.next_z == 0)
            continue;
        pages_of(*w.b, w.ranges, w.next_z - 1, begin, w.next_end);
        w.next_page = first_page(begin, w.warp, w.warps);
        if (w.next_page < w.next_end) {
            w.next_mine = walk_numbers(w, w.next_page, w.next_end);
            w.left--;
            return;
        }
    }
    w.next_page = -1;
}

__device__ static inline void walk_take(walk &w)
{
    w.page = w.next_page;
    w.end = w.next_end;
    w.mine = w.next_mine;
    w.k = 0;
    if (w.page >= 0) {
        const int splits = w.b->a->n_split;
        w.base = w.pages + (splits == 1 ? w.next_split : w.next_split / splits) * w.b->a->l.head_bytes;
        w.from = w.base + __shfl_sync(~0u, w.mine, 0) * w.bytes;
        walk_look(w);
    }
}

/* From item (split, z) on, `items` of them. */
__device__ static inline void walk_begin(walk &w, const block_rows &b, const row_ranges &ranges, int warp, int warps,
                                         int split, int z, int items)
{
    const tern_cuda_attn_args &a = *b.a;
    const tern_cuda_table &table = table_of(a.t, *b.job, a.l.group);
    const tern_cuda_cache &cache = cuda_at<const tern_cuda_cache>(a.t.caches)[b.job->cache];
    const tern_cuda_blocks &pool = cuda_at<const tern_cuda_blocks>(a.t.pools)[cache.pages + a.l.group];
    w.b = &b;
    w.numbers = cuda_at<const uint32_t>(a.t.numbers) + table.blocks - table.first;
    w.pages = cuda_at<const uint8_t>(pool.p + a.l.layer_off);
    w.bytes = pool.bytes;
    w.ranges = ranges;
    w.warp = warp;
    w.warps = warps;
    w.left = items;
    w.next_split = z == 0 ? split - 1 : split;
    w.next_z = z == 0 ? ranges.n : z - 1;
    w.next_end = 0;
    w.next_mine = 0;
    walk_look(w);
    walk_take(w);
}

__device__ static inline bool walk_done(const walk &w)
{
    return w.page < 0;
}

__device__ static inline void walk_on(walk &w)
{
    w.page += w.warps;
    if (w.page >= w.end) {
        walk_take(w);
        return;
    }
    if (++w.k == 32) {
        w.mine = walk_numbers(w, w.page, w.end);
        w.k = 0;
    }
    w.from = w.base + __shfl_sync(~0u, w.mine, w.k) * w.bytes;
}

#endif

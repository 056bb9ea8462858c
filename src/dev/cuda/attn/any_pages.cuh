/* dev/cuda/attn/any_pages.cuh - how pages come to attn/any.cu: as they lie, decoded, or what is still raw.
 *
 * All three have two functions that all threads call: keys(page) returns where the numbers of a page's keys lie (of latents its
 * values, and then keys) once nobody reads what the page before left, values(page, that) where those of its values do, once
 * all have read the keys and written weights. */
#ifndef TERN_DEV_CUDA_ATTN_ANY_PAGES_CUH
#define TERN_DEV_CUDA_ATTN_ANY_PAGES_CUH

#include "dev/cuda/attn/any.cuh"

/* Where the closed pages [from, end) of a block's KV head lie; a lane has the numbers of every 32nd page. */
struct page_places {
    const uint32_t *numbers; /* by page */
    const uint8_t *base;
    uint64_t bytes;
    int from, end;
    uint32_t mine;

    __device__ page_places(const block_rows &b, int begin, int last) : from(begin), end(last), mine(0)
    {
        const tern_cuda_attn_args &a = *b.a;
        const tern_cuda_table &table = table_of(a.t, *b.job, a.l.group);
        const tern_cuda_cache &cache = cuda_at<const tern_cuda_cache>(a.t.caches)[b.cache];
        const tern_cuda_blocks &pool = cuda_at<const tern_cuda_blocks>(a.t.pools)[cache.pages + a.l.group];
        numbers = cuda_at<const uint32_t>(a.t.numbers) + table.blocks - table.first;
        base = cuda_at<const uint8_t>(pool.p + a.l.layer_off + b.kv_head * a.l.head_bytes);
        bytes = pool.bytes;
    }
    /* Pages are asked for in order. */
    __device__ const uint8_t *at(int page)
    {
        const int k = (page - from) % 32, own = page + threadIdx.x % 32;
        if (k == 0)
            mine = own < end ? numbers[own] : 0;
        return base + __shfl_sync(~0u, mine, k) * bytes;
    }
};

/* ---- pages of halves ---- */

/* A side's halves on their way to `to`: keys [dim][64], by dim; values [64][dim], by token. */
template <class K> __device__ static inline void bring_keys(uint32_t to, const uint8_t *from, int dim)
{
    to += piece_at(threadIdx.x / 8, threadIdx.x % 8);
    from += 16 * threadIdx.x;
#pragma unroll 2
    for (int i = threadIdx.x; i < 8 * dim; i += K::THREADS, to += 16 * K::THREADS, from += 16 * K::THREADS)
        cuda_copy_16(to, from);
}

/* Of what values' pieces a thread has the first one, and how much further the next one lies. */
struct value_pieces {
    int row, piece, to, right, down;

    __device__ value_pieces(int dim, int threads)
        : row(dim / 8), piece(threadIdx.x % row), to(16 * (threadIdx.x + threadIdx.x / row)), right(threads % row),
          down(16 * (threads + threads / row))
    {
    }
};

/* The first `tokens` of 64, and zeros. */
template <class K> __device__ static inline void bring_values(uint32_t to, const uint8_t *from, const value_pieces &v, int tokens)
{
    int piece = v.piece;
    to += v.to;
    from += 16 * threadIdx.x;
#pragma unroll 2
    for (int i = threadIdx.x; i < 64 * v.row; i += K::THREADS, from += 16 * K::THREADS) {
        cuda_copy_16_or_0(to, from, i < tokens * v.row);
        piece += v.right;
        to += v.down;
        if (piece >= v.row) { /* a row further, and so the 16 bytes between */
            piece -= v.row;
            to += 16;
        }
    }
}

/* In a.stages places: the next side, of latents the next page, is asked for when nobody reads the place that it takes. */
template <class K> struct halves_pages {
    const block_rows &b;
    const uint32_t at, place;
    const value_pieces pieces;
    page_places from;
    int page, slot; /* of what is asked for next; the place that is read next */
    bool second;    /* are its values what is asked for? */

    __device__ halves_pages(const block_rows &rows, const any_room<K> &r, int begin, int end)
        : b(rows), at(shared_at(r.places)), place(TERN_CUDA_ANY_PLACE(&rows.a->l)), pieces(rows.a->l.v.dim, K::THREADS),
          from(rows, begin, end), page(begin), slot(0), second(false)
    {
        for (int i = 0; i < b.a->stages - 1; i++)
            ask(i);
    }
    __device__ void ask(int to_slot)
    {
        const tern_cuda_layer &l = b.a->l;
        uint32_t to = at + to_slot * place;
        if (page < from.end) {
            const uint8_t *p = from.at(page);
            if (l.latent || second) {
                bring_values<K>(to, p + l.v_off, pieces, 64);
                to += TERN_CUDA_ANY_SIDE(l.v.dim);
            }
            if (l.latent || !second)
                bring_keys<K>(to, p + l.k_off, l.k.dim);
            page += l.latent || second;
            second = !l.latent && !second;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    __device__ uint32_t take()
    {
        const int stages = b.a->stages;
        if (stages == 1) {
            __syncthreads();
            ask(0);
        }
        if (stages < 3)
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        else if (stages == 3)
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        else
            asm volatile("cp.async.wait_group 2;" ::: "memory");
        __syncthreads();
        if (stages > 1)
            ask(slot ? slot - 1 : stages - 1);
        const uint32_t here = at + slot * place;
        slot = slot + 1 < stages ? slot + 1 : 0;
        return here;
    }
    __device__ uint32_t keys(int)
    {
        return take();
    }
    __device__ uint32_t values(int, uint32_t keys_at)
    {
        if (!b.a->l.latent)
            return take();
        __syncthreads();
        return keys_at;
    }
};

/* ---- pages of codes ---- */

/* Where dim d of token t goes, by token or by dim; row: bytes of a token. */
template <bool BY_TOKEN> __device__ static inline uint32_t place_of(int row, int t, int d)
{
    return BY_TOKEN ? t * row + 2 * d : piece_at(d, t / 8) + t % 8 * 2;
}

/* `PIECES` pieces of a token or dim of a side; those of a dim change places by its number. */
template <bool KEY, int PIECES> __device__ static inline void put_pieces(uint8_t *to, int row, int t, int d, const uint32_t *x)
{
    const uint32_t at = place_of<KEY>(row, t, d);
#pragma unroll
    for (int j = 0; j < PIECES; j++)
        *reinterpret_cast<uint4 *>(to + (KEY ? at + 16 * j : at ^ 16 * j)) =
            make_uint4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
}

/* Sets of codes of a side, its first `dims` dims, without scales: keys by token, values by dim. */
template <class K, bool KEY, int BITS, bool TRELLIS>
__device__ static inline void decode_sets(uint8_t *to, const tables &all, const uint8_t *data, const uint16_t *head, int dims, int dim)
{
    const codes_of codes = {dim, BITS, TRELLIS};
    const tables tab = all;
    const int row = TERN_CUDA_ANY_TOKEN(dim), sets = KEY ? dims / 32 * 32 : dims;
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * sets; i += K::THREADS) {
        uint32_t x[16];
        const int t = KEY ? i % 64 : i < sets ? 0 : 32, d = KEY ? i / 64 * 32 : i < sets ? i : i - sets;
        if (KEY)
            key_set(x, codes, tab, data, head, t, d);
        else
            value_set(x, codes, tab, data, head, t, d);
        put_pieces<KEY, 4>(to, row, t, d, x);
    }
    for (int i = threadIdx.x; KEY && dims > sets && i < 32; i += K::THREADS) { /* 16 dims of two tokens each */
        uint32_t x[16];
        int item;
        const int t = i / 16 * 32 + i % 16;
        decode_scalar(x, tab, set_of(data, t, sets, dim, BITS, true, &item), 16, BITS);
        put_pieces<true, 2>(to, row, t, sets, x);
        put_pieces<true, 2>(to, row, t + 16, sets, x + 8);
    }
}

/* Dims from the first on whose codes are decoded in sets: what stands before a trellis code is in another one then, and sets of
 * keys are not cut by the end of a head. */
template <bool KEY> __device__ static inline int dims_in_sets(const tern_cuda_side &s)
{
    const int rest = s.dim % 128;
    if (s.form != TERN_CUDA_CODES)
        return 0;
    return !s.trellis || (rest >= 64 && (!KEY || rest % 32 == 0)) ? s.dim : s.dim - rest;
}

/* Dims from `first` on, one number at a time, in turn as they lie. */
template <class K, bool KEY, int FORM>
__device__ static inline void decode_each(uint8_t *to, const tern_cuda_side &s, const uint8_t *data, const uint16_t *head, int first)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = TERN_CUDA_ANY_TOKEN(s.dim), dims = s.dim - first;
    for (int line = warp; line < (KEY ? dims : 64); line += K::WARPS)
#pragma unroll 2
        for (int i = lane; i < (KEY ? 64 : dims); i += 32) {
            const int t = KEY ? i : line, d = first + (KEY ? line : i);
            const float x = FORM == TERN_CUDA_CODES ? (float)entry_at(s, data, head, t, d) : form_value(FORM, s, data, head, t, d);
            *reinterpret_cast<__half *>(to + place_of<KEY>(row, t, d)) = as_half(x);
        }
}

/* A side of a closed page. */
template <class K, bool KEY>
__device__ static inline void decode_side(uint8_t *to, const tern_cuda_side &s, const tables &tab, const uint8_t *data,
                                          const uint16_t *head)
{
    const int dims = dims_in_sets<KEY>(s);
    switch (dims ? s.bits + 16 * (s.trellis != 0) : 0) {
#define SETS(kind, bits, trellis)                                             \
    case kind:                                                                \
        decode_sets<K, KEY, bits, trellis>(to, tab, data, head, dims, s.dim); \
        break;
        SETS(2, 2, false)
        SETS(3, 3, false)
        SETS(4, 4, false)
        SETS(8, 8, false)
        SETS(18, 2, true)
        SETS(19, 3, true)
        SETS(20, 4, true)
    }
    if (dims == s.dim)
        return;
    switch (s.form) {
#define EACH(form)                                            \
    case form:                                                \
        decode_each<K, KEY, form>(to, s, data, head, dims); \
        break;
        EACH(TERN_CUDA_F32)
        EACH(TERN_CUDA_CODES)
        EACH(TERN_CUDA_AFFINE)
        EACH(TERN_CUDA_LEVELS)
        EACH(TERN_CUDA_FLOATS)
    default: /* 16-bit floats */
        decode_each<K, KEY, TERN_CUDA_F16>(to, s, data, head, dims);
    }
}

/* Keys that are halves, as they lie: by dim. */
template <class K> __device__ static inline void copy_keys(uint8_t *to, const uint8_t *from, int dim)
{
    to += piece_at(threadIdx.x / 8, threadIdx.x % 8);
    for (int i = threadIdx.x; i < 8 * dim; i += K::THREADS, to += 16 * K::THREADS)
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from + 16 * i);
}

/* What tokens' numbers are multiplied by, of 128 dims; a warp calls. */
__device__ static inline float2 two_scales(const tern_cuda_side &s, const uint16_t *head, int lane)
{
    if (s.form != TERN_CUDA_CODES)
        return make_float2(1, 1);
    return make_float2(__fmul_rn(header_scale(head[lane]), s.unit), __fmul_rn(header_scale(head[lane + 32]), s.unit));
}

/* Closed pages, of which a.stages are there or on their way. */
template <class K> struct code_pages {
    const block_rows &b;
    const any_room<K> &r;
    page_places from;

    __device__ code_pages(const block_rows &rows, const any_room<K> &room, int begin, int end)
        : b(rows), r(room), from(rows, begin, end)
    {
        if (b.a->stages == 2)
            ask(begin);
        if (threadIdx.x < 2)
            load_tables(r.tab[threadIdx.x], threadIdx.x ? b.a->l.v : b.a->l.k);
    }
    __device__ const uint8_t *staged(int page) const
    {
        return r.staged + (b.a->stages == 2 ? page % 2 : 0) * b.a->l.head_bytes;
    }
    __device__ void ask(int page)
    {
        const tern_cuda_layer &l = b.a->l;
        if (page < from.end) {
            const uint32_t to = shared_at(staged(page));
            const uint8_t *p = from.at(page);
            for (uint32_t i = 16 * threadIdx.x; i < l.head_bytes; i += 16 * K::THREADS)
                cuda_copy_16(to + i, p + i);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    __device__ void put_scales(const uint16_t *k_head, const uint16_t *v_head)
    {
        const tern_cuda_layer &l = b.a->l;
        const int lane = threadIdx.x % 32;
        for (int i = threadIdx.x / 32; i < r.k_blocks + r.v_blocks; i += K::WARPS) {
            const int j = i - r.k_blocks;
            float2 x = j < 0 ? two_scales(l.k, k_head + 64 * i, lane) : two_scales(l.v, v_head + 64 * j, lane);
            if (j >= 0) {
                const float top = __uint_as_float(__reduce_max_sync(~0u, __float_as_uint(fmaxf(x.x, x.y))));
                const float by = top > 0 ? 1.0f / top : 0;
                x = make_float2(__fmul_rn(x.x, by), __fmul_rn(x.y, by));
                if (lane == 0)
                    r.top[j] = top;
            }
            r.k_scale[64 * i + lane] = x.x; /* those of values follow */
            r.k_scale[64 * i + lane + 32] = x.y;
        }
    }
    __device__ uint32_t keys(int page)
    {
        const tern_cuda_layer &l = b.a->l;
        const uint8_t *p = staged(page);
        const uint16_t *k_head = reinterpret_cast<const uint16_t *>(p + l.k_head_off),
                       *v_head = reinterpret_cast<const uint16_t *>(p + l.v_head_off);
        if (b.a->stages == 2) {
            ask(page + 1);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            __syncthreads();
            ask(page);
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncthreads();
        put_scales(k_head, v_head);
        if (l.latent)
            decode_side<K, false>(r.places, l.v, r.tab[1], p + l.v_off, v_head);
        uint8_t *to = r.places + (l.latent ? TERN_CUDA_ANY_SIDE(l.v.dim) : 0);
        if (K::HALF_KEYS)
            copy_keys<K>(to, p + l.k_off, l.k.dim);
        else
            decode_side<K, true>(to, l.k, r.tab[0], p + l.k_off, k_head);
        __syncthreads();
        return shared_at(r.places);
    }
    __device__ uint32_t values(int page, uint32_t keys_at)
    {
        const tern_cuda_layer &l = b.a->l;
        const uint8_t *p = staged(page);
        if (!l.latent)
            decode_side<K, false>(r.places, l.v, r.tab[1], p + l.v_off, reinterpret_cast<const uint16_t *>(p + l.v_head_off));
        __syncthreads();
        return keys_at;
    }
};

/* ---- what is raw ---- */

/* n tokens, of which `hi` are there: keys [dim][n], by dim, and values [n][dim], by token; in the first place. */
template <class K> struct raw_numbers {
    const block_rows &b;
    const any_room<K> &r;
    const uint8_t *k, *v;
    int n, hi;

    /* A tile of 16-bit floats as it lies; what keys have behind its tokens is hidden. */
    __device__ void bring(uint32_t to, const tern_cuda_side &s, bool key)
    {
        if (key)
            bring_keys<K>(to, k, s.dim);
        else
            bring_values<K>(to, v, value_pieces(s.dim, K::THREADS), hi);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __device__ void fill(uint8_t *to, const tern_cuda_side &s, bool key)
    {
        if (n == 64 && !s.raw32) {
            bring(shared_at(to), s, key);
            return;
        }
        const int row = TERN_CUDA_ANY_TOKEN(s.dim), width = key ? hi : s.dim;
#pragma unroll 4
        for (int i = threadIdx.x; i < hi * s.dim; i += K::THREADS) {
            const int line = i / width, t = key ? i % width : line, d = key ? line : i % width;
            const uint32_t at = key ? place_of<false>(0, t, d) : place_of<true>(row, t, d);
            *reinterpret_cast<__half *>(to + at) = as_half(raw_value(s, key ? k : v, n, t, d));
        }
        for (int at = hi * row + 16 * threadIdx.x; !key && at < 64 * row; at += 16 * K::THREADS)
            *reinterpret_cast<uint4 *>(to + at) = make_uint4(0, 0, 0, 0);
    }
    __device__ uint32_t keys(int)
    {
        const tern_cuda_layer &l = b.a->l;
        __syncthreads();
        if (l.latent)
            fill(r.places, l.v, false);
        fill(r.places + (l.latent ? TERN_CUDA_ANY_SIDE(l.v.dim) : 0), l.k, true);
        __syncthreads();
        return shared_at(r.places);
    }
    __device__ uint32_t values(int, uint32_t keys_at)
    {
        if (!b.a->l.latent)
            fill(r.places, b.a->l.v, false);
        __syncthreads();
        return keys_at;
    }
};

#endif

/* Attention of decode rows on closed pages and on what is raw, for heads of any size, latents, and keys and values of any
 * schemes: tensor cores, f16 operands, sums in f32.
 *
 * A block of threads has up to 8 or 16 q rows of one KV head.  It takes a range of their pages, or what is raw, page by page, and
 * leaves a partial result.  A page's numbers come to shared memory as halves, keys and values one after the other, of
 * latents both at once, for they are keys as well.
 *
 * Pages of 16-bit floats are copied as they lie.  Of others a page comes as it is while the one before is worked on, and is
 * decoded: entries of codes, which f16 holds exactly.  A token's scale multiplies its scores, and its weight for the values.
 *
 * A q row goes through the same steps whatever else is in its block: pages that it does not see leave it as it is. */
#include "dev/cuda/attn/any_pages.cuh"

/* Queries, scaled: as halves, or as floats in the first place, [row][dims].  Columns of rows that are not there may be anything. */
template <class K> __device__ static inline void bring_queries(const block_rows &b, const any_room<K> &r, bool halves)
{
    const int dims = r.q_row - 8, fours = dims / 4;
    const float by = b.a->q_scale;
#pragma unroll 4
    for (int i = threadIdx.x; i < b.n_q * fours; i += K::THREADS) {
        const int row = i / fours, d = i % fours * 4;
        const float4 x = *reinterpret_cast<const float4 *>(query_of(b, row, dims) + d);
        const float4 y = make_float4(__fmul_rn(x.x, by), __fmul_rn(x.y, by), __fmul_rn(x.z, by), __fmul_rn(x.w, by));
        if (halves)
            *reinterpret_cast<uint2 *>(r.q + row * r.q_row + d) = make_uint2(two_halves(y.x, y.y), two_halves(y.z, y.w));
        else
            reinterpret_cast<float4 *>(r.places)[i] = y;
    }
}

/* And then as codes want them: conditioned and rotated, by a warp each. */
template <class K> __device__ static void turn_queries(const block_rows &b, const any_room<K> &r, any_rows<K> &st)
{
    const tern_cuda_layer &l = b.a->l;
    const int lane = threadIdx.x % 32, before = l.latent ? l.v.dim : 0, dims = before + l.k.dim;
    __syncthreads();
#pragma unroll 1
    for (int n = 0; n < K::OWN; n++) {
        const int row = threadIdx.x / 32 + K::WARPS * n;
        float *x = reinterpret_cast<float *>(r.places) + row * dims, shift = 0;
        if (row >= b.n_q)
            break;
        for (int d = lane; b.cond && d < dims; d += 32) {
            shift = __fmaf_rn(x[d], cuda_at<const float>(b.cond->mean)[d], shift);
            x[d] = __fmul_rn(x[d], cuda_at<const float>(b.cond->unscale)[d]);
        }
        for (int width = 16; width; width /= 2)
            shift = __fadd_rn(shift, __shfl_xor_sync(~0u, shift, width));
#pragma unroll
        for (int i = 0; i < K::OWN; i++) /* registers have no index */
            st.shift[i] = i == n ? shift : st.shift[i];
        __syncwarp();
        if (l.k.rotated)
            rotate_row(l.k, x + before, false, lane);
        if (l.latent && l.v.rotated)
            rotate_row(l.v, x, false, lane);
        for (int d = lane; d < dims; d += 32)
            r.q[row * r.q_row + d] = as_half(x[d]);
    }
}

template <class K> __device__ static inline void start_rows(const block_rows &b, any_rows<K> &st)
{
    st.seen = oldest_seen(b.a->l, row_pos(b, b.n_q - 1));
#pragma unroll
    for (int n = 0; n < K::OWN; n++) {
        st.m[n] = -INFINITY;
        st.l[n] = st.shift[n] = 0;
    }
#pragma unroll
    for (int i = 0; i < K::BLOCKS * K::TILES * K::NT * 4; i++)
        st.o[i / 4 / K::NT / K::TILES][i / 4 / K::NT % K::TILES][i / 4 % K::NT][i % 4] = 0;
}

/* A page, of which tokens [lo, hi) count. */
template <class K, bool CODED, class PAGES>
__device__ static inline void take_page(const block_rows &b, const any_room<K> &r, any_rows<K> &st, PAGES &pages, int page, int lo,
                                        int hi)
{
    const uint32_t keys = pages.keys(page);
    score_page<K, CODED>(b, r, keys);
    __syncthreads();
    soften<K, CODED>(b, r, st, page, lo, hi);
    add_values<K, CODED>(b, r, st, pages.values(page, keys));
}

template <class K, bool CODED, class PAGES>
__device__ static inline void take_range(const block_rows &b, const any_room<K> &r, any_rows<K> &st, int begin, int end)
{
    PAGES pages(b, r, begin, end);
    bring_queries<K>(b, r, !CODED); /* all meet at the first page */
    if (CODED)
        turn_queries<K>(b, r, st);
#pragma unroll 1
    for (int page = begin; page < end; page++)
        take_page<K, CODED>(b, r, st, pages, page, page ? 0 : b.a->l.first, 64);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* First tokens, where they are seen and not in a tile, then tiles. */
template <class K> __device__ static inline void take_raw(const block_rows &b, const any_room<K> &r, any_rows<K> &st)
{
    const tern_cuda_layer &l = b.a->l;
    const bool sink = l.first && b.own >= l.recent && oldest_seen(l, b.pos0) < l.first;
    bring_queries<K>(b, r, true);
#pragma unroll 1
    for (int i = b.raw0 - sink; i <= b.own; i++) {
        const bool first = i < b.raw0;
        const int hi = first ? l.first : i == b.own ? row_pos(b, b.n_q - 1) % 64 + 1 : 64;
        const uint8_t *k = first ? sink_of(b.a->t, l, b.cache, b.sink, b.kv_head)
                                 : work_tile(b.a->t, l, b.a->stage, b.job_i, i, b.kv_head);
        raw_numbers<K> pages = {b, r, k, k + (first ? l.sink_v_off : l.tile_v_off), first ? l.first : 64, hi};
        take_page<K, false>(b, r, st, pages, first ? 0 : i, 0, hi);
    }
}

/* Partial results into their place. */
template <class K> __device__ static inline void put_rows(const block_rows &b, const any_rows<K> &st, int place)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, dim = b.a->l.v.dim;
#pragma unroll
    for (int n = 0; n < K::OWN; n++) {
        const int row = warp + K::WARPS * n;
        float sum = st.l[n];
        for (int width = 16; width; width /= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, width));
        if (lane == 0 && row < b.n_q)
            *reinterpret_cast<float2 *>(part_at(b, row, place) + dim) = make_float2(st.m[n], sum);
    }
#pragma unroll
    for (int i = 0; i < 2 * K::NT; i++) {
        const int row = i / 2 * 8 + 2 * t + i % 2;
        if (row >= b.n_q)
            continue;
        float *to = part_at(b, row, place) + g;
#pragma unroll
        for (int j = 0; j < K::BLOCKS * K::TILES; j++) {
            const int d = j / K::TILES * 128 + 16 * (warp + K::WARPS * (j % K::TILES));
            if (d < dim) {
                to[d] = st.o[j / K::TILES][j % K::TILES][i / 2][i % 2];
                to[d + 8] = st.o[j / K::TILES][j % K::TILES][i / 2][i % 2 + 2];
            }
        }
    }
}

template <class K, bool CODED, class PAGES> __device__ static inline void attend(const tern_cuda_attn_args &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    block_rows b;
    any_rows<K> st;
    int begin, end, place = TERN_CUDA_RANGES;
    cuda_wait();
    if (!find_rows(b, a, blockIdx.x, blockIdx.y))
        return;
    const any_room<K> r(shared, a, CODED);
    start_rows<K>(b, st);
    if (blockIdx.z == 0) {
        take_raw<K>(b, r, st);
    } else {
        place = find_range(b, blockIdx.z - 1, begin, end) % TERN_CUDA_RANGES;
        if (begin >= end)
            return;
        take_range<K, CODED, PAGES>(b, r, st, begin, end);
    }
    put_rows<K>(b, st, place);
}

/* Of a kind: blocks of 128 values, of 8 q rows, warps; and blocks of threads of a processor. */
#define KERNEL(v, n, warps, blocks)                                                         \
    TERN_CUDA_KERNEL_BEGIN(any_halves_##v##_##n, tern_cuda_attn_args, 32 * warps, blocks) \
    {                                                                                       \
        using kind = any_kind<warps, n, v>;                                                 \
        attend<kind, false, halves_pages<kind>>(a);                                         \
    }                                                                                       \
    TERN_CUDA_KERNEL_BEGIN(any_codes_##v##_##n, tern_cuda_attn_args, 32 * warps, blocks)  \
    {                                                                                       \
        using kind = any_kind<warps, n, v>;                                                 \
        attend<kind, true, code_pages<kind>>(a);                                            \
    }
/* Heads of up to 128 dims. */
#define HALF_KEYS(n, blocks)                                                    \
    TERN_CUDA_KERNEL_BEGIN(any_half_keys_##n, tern_cuda_attn_args, 128, blocks) \
    {                                                                           \
        using kind = any_kind<4, n, 1, true>;                                   \
        attend<kind, true, code_pages<kind>>(a);                                \
    }
KERNEL(1, 1, 4, 6)
KERNEL(1, 2, 4, 5)
KERNEL(2, 1, 8, 3)
KERNEL(2, 2, 8, 2)
KERNEL(4, 1, 8, 2)
KERNEL(4, 2, 8, 2)
HALF_KEYS(1, 6)
HALF_KEYS(2, 5)

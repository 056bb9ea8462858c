/* Attention for every scheme, head size and layer, in f32: prompt rows of the exact class, and whatever has no kernel
 * of its own.
 *
 * A block of threads takes up to 8 q rows (heads of rows of one page and KV head), one per warp.  A page's bytes come to shared
 * memory, where there is room, before they are looked at one by one, the next page's meanwhile.  Pages are taken in halves of 32
 * tokens, a lane each: keys in f32 in shared memory, one chain of fma over ascending dims per score, the softmax
 * of the half, then the values.  A q row goes through the same steps whatever else is in its block.
 *
 * Prompt rows are done in one go.  Decode rows leave a partial result for each range of pages (o, m, l), which `finish`
 * merges in ascending order. */
#include "dev/cuda/attn/block.cuh"
#include "dev/cuda/attn/decode.cuh"

#define THREADS 256
#define ROWS    TERN_CUDA_Q
#define HALF    32

struct rows : block_rows {
    int warp, lane;
    float *x, *raw; /* [a.q_rows][dq] queries as the codes want them, and as they are; scale folded in */
    float *k, *v;   /* [32][dim + 1] */
    float *p;       /* [8][32] weights */
    float *shrink;  /* [8] */
    float shift;    /* q.mean of the warp's row */
    uint8_t *staged; /* pages: a.stages of them, 0, 1 or 2 */
};

/* The running softmax of q row `warp`, and of all rows the dims of this thread. */
struct state {
    float m, l, o[ROWS][2];
};

__device__ static int query_dim(const tern_cuda_layer &l)
{
    return l.k.dim + (l.latent ? l.v.dim : 0);
}

__device__ static void share(rows &r, float *shared)
{
    r.warp = threadIdx.x / 32;
    r.lane = threadIdx.x % 32;
    const tern_cuda_layer &l = r.a->l;
    const int dq = query_dim(l);
    r.staged = reinterpret_cast<uint8_t *>(shared);
    r.p = shared + r.a->stages * (int)l.head_bytes / 4;
    r.shrink = r.p + ROWS * HALF;
    r.x = r.shrink + 32;
    r.raw = r.x + r.a->q_rows * dq;
    r.k = r.raw + r.a->q_rows * dq;
    r.v = l.latent ? r.k + HALF * (l.k.dim + 1) : r.k;
}

/* Queries of the warp's row, once; the conditioning's scale and the rotation for the codes. */
__device__ static void load_queries(rows &r)
{
    const tern_cuda_layer &l = r.a->l;
    const int dq = query_dim(l), i = r.warp, before = l.latent ? l.v.dim : 0;
    float *raw = r.raw + i * dq, *x = r.x + i * dq;
    r.shift = 0;
    if (i < r.n_q) {
        const float *q = query_of(r, i, dq);
        for (int d = r.lane; d < dq; d += 32) {
            raw[d] = q[d] * r.a->q_scale;
            x[d] = raw[d];
            if (r.cond) {
                r.shift += raw[d] * cuda_at<const float>(r.cond->mean)[d];
                x[d] *= cuda_at<const float>(r.cond->unscale)[d];
            }
        }
        for (int width = 16; width; width /= 2)
            r.shift += __shfl_xor_sync(~0u, r.shift, width);
        __syncwarp();
        if (l.k.rotated)
            rotate_row(l.k, x + before, false, r.lane);
        if (l.latent && l.v.rotated)
            rotate_row(l.v, x, false, r.lane);
    }
    __syncthreads();
}

/* Keys that conditioning keeps out of the codes: what tern_kv_cond_pairs adds. */
__device__ static float complete(const rows &r, float s, int page, int t)
{
    const tern_cuda_cond &c = *r.cond;
    const float *turns = cuda_at<const float>(c.turns), *q = r.raw + r.warp * r.a->l.k.dim;
    for (int i = 0; i < c.n_pairs; i++) {
        const auto &m = c.pairs[i];
        const double *at =
            cuda_at<const double>(r.a->l.k.angles) + 2 * ((int64_t)m.freq * r.a->l.k.max_pages + page);
        const float co = (float)at[0], si = (float)at[1];
        const float along = q[m.a] * m.re + q[m.b] * m.im, across = q[m.b] * m.re - q[m.a] * m.im;
        s = fmaf(along * co + across * si, turns[2 * i * 64 + t], s);
        s = fmaf(across * co - along * si, turns[(2 * i + 1) * 64 + t], s);
    }
    return r.a->cap > 0 ? s + r.shift : s;
}

__device__ static float dot(const float *q, const float *k, int n)
{
    float s = 0;
    for (int d = 0; d < n; d++)
        s = fmaf(q[d], k[d], s);
    return s;
}

/* Numbers of half a page, 32 tokens, [token][dim + 1] in f32. */

/* One by one: fill(token, dim).  Keys lie by dim, values by token. */
template <bool KEY, class FILL> __device__ static void fill_each(float *to, const tern_cuda_side &s, int t0, FILL fill)
{
    const int dim = s.dim;
#pragma unroll 1
    for (int i = threadIdx.x; i < HALF * dim; i += THREADS) {
        const int t = KEY ? i % HALF : i / dim, d = KEY ? i / HALF : i % dim;
        to[t * (dim + 1) + d] = fill(t0 + t, d);
    }
}

/* Codes of a closed page, 32 at a time: page_value's numbers. */
template <bool KEY>
__device__ static void fill_codes(float *to, const tern_cuda_side &s, const uint8_t *data, const uint16_t *head, int t0)
{
    tables tab;
    load_tables(tab, s);
#pragma unroll 1
    for (int i = threadIdx.x; i < (KEY ? HALF * (s.dim / 32) : s.dim); i += THREADS) {
        uint32_t x[16];
        const int t = KEY ? i % HALF : 0, d = KEY ? i / HALF * 32 : i, step = KEY ? 1 : s.dim + 1;
        const uint16_t *own = head + d / 128 * 64 + t0 + t;
        float *at = to + t * (s.dim + 1) + d;
        if (KEY)
            key_set(x, codes_in(s), tab, data, head, t0 + t, d);
        else
            value_set(x, codes_in(s), tab, data, head, t0, d);
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const float2 e = __half22float2(*reinterpret_cast<const __half2 *>(&x[j]));
            at[2 * j * step] = __fmul_rn(__fmul_rn(header_scale(own[KEY ? 0 : 2 * j]), s.unit), e.x);
            at[(2 * j + 1) * step] = __fmul_rn(__fmul_rn(header_scale(own[KEY ? 0 : 2 * j + 1]), s.unit), e.y);
        }
    }
}

/* 32 tokens of a side of a closed page. */
template <bool KEY>
__device__ static void fill_page(float *to, const tern_cuda_side &s, const uint8_t *data, const uint16_t *head, int t0)
{
    if (s.form == TERN_CUDA_CODES && s.dim % 32 == 0)
        fill_codes<KEY>(to, s, data, head, t0);
    else
        fill_each<KEY>(to, s, t0, [&](int t, int d) { return page_value(s, data, head, t, d); });
}

/* Of a raw piece of n tokens, of which hi count. */
template <bool KEY> __device__ static void fill_raw(float *to, const tern_cuda_side &s, const uint8_t *data, int n, int hi, int t0)
{
    fill_each<KEY>(to, s, t0, [&](int t, int d) { return t < hi ? raw_value(s, data, n, t, d) : 0.0f; });
}

/* 32 tokens from t0 on of a page whose tokens [lo, hi) count.  fill_k, fill_v(where to, from token): the numbers. */
template <class K, class V>
__device__ static void take_half(const rows &r, state &st, int page, int t0, int lo, int hi, bool coded, K fill_k,
                                 V fill_v)
{
    const tern_cuda_layer &l = r.a->l;
    const int dk = l.k.dim, dv = l.v.dim, dq = query_dim(l), t = t0 + r.lane;
    fill_k(r.k, t0);
    if (l.latent)
        fill_v(r.v, t0);
    __syncthreads();
    float p = 0, shrink = 1;
    if (r.warp < r.n_q) {
        const int pos = row_pos(r, r.warp), oldest = oldest_seen(l, pos) - page * 64;
        const int end = page == r.own && pos % 64 + 1 < hi ? pos % 64 + 1 : hi;
        const float *q = (coded ? r.x : r.raw) + r.warp * dq;
        float s = l.latent ? dot(q, r.v + r.lane * (dv + 1), dv) : 0;
        s += dot(q + dq - dk, r.k + r.lane * (dk + 1), dk);
        if (coded && r.cond)
            s = complete(r, s, page, t);
        if (r.a->cap > 0) /* both in log2 units */
            s = r.a->cap * tanhf(s / r.a->cap);
        const bool seen = t >= lo && t >= oldest && t < end;
        float m = seen ? s : -INFINITY;
        for (int width = 16; width; width /= 2)
            m = fmaxf(m, __shfl_xor_sync(~0u, m, width));
        m = fmaxf(m, st.m);
        if (m != -INFINITY) {
            shrink = exp2f(st.m - m);
            p = seen ? exp2f(s - m) : 0;
            float sum = p;
            for (int width = 16; width; width /= 2)
                sum += __shfl_xor_sync(~0u, sum, width);
            st.l = st.l * shrink + sum;
            st.m = m;
        }
    }
    r.p[r.warp * HALF + r.lane] = p;
    if (r.lane == 0)
        r.shrink[r.warp] = shrink;
    __syncthreads();
    if (!l.latent)
        fill_v(r.v, t0);
    __syncthreads();
    for (int j = 0; j < 2; j++) {
        const int d = threadIdx.x + j * THREADS;
        if (d >= dv)
            break;
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            st.o[i][j] *= r.shrink[i];
        for (int k = 0; k < HALF; k++) {
            const float v = r.v[k * (dv + 1) + d];
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                st.o[i][j] = fmaf(r.p[i * HALF + k], v, st.o[i][j]);
        }
    }
    __syncthreads();
}

__device__ static void start_rows(state &st)
{
    st.m = -INFINITY;
    st.l = 0;
    for (int i = 0; i < ROWS; i++)
        st.o[i][0] = st.o[i][1] = 0;
}

/* A page's bytes on their way to its place in shared memory, if there are places. */
__device__ static void fetch(const rows &r, int page)
{
    const tern_cuda_layer &l = r.a->l;
    if (!r.a->stages)
        return;
    const uint8_t *from = page_at(r.a->t, l, *r.job, page, r.kv_head);
    const uint32_t to =
        (uint32_t)__cvta_generic_to_shared(r.staged) + page % r.a->stages * (uint32_t)l.head_bytes + 16 * threadIdx.x;
    for (uint32_t i = 16 * threadIdx.x, n = 0; i < l.head_bytes; i += 16 * THREADS, n += 16 * THREADS)
        cuda_copy_16(to + n, from + i);
}

/* Where the page lies that was fetched before the one that was fetched last, or last where there is one place. */
__device__ static const uint8_t *staged_page(const rows &r, int page)
{
    const tern_cuda_layer &l = r.a->l;
    if (!r.a->stages)
        return page_at(r.a->t, l, *r.job, page, r.kv_head);
    if (r.a->stages == 2)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    return r.staged + page % r.a->stages * l.head_bytes;
}

__device__ static void take_pages(const rows &r, state &st, int begin, int end)
{
    const tern_cuda_layer &l = r.a->l;
    const int ahead = r.a->stages == 2;
    if (ahead && begin < end)
        fetch(r, begin);
    asm volatile("cp.async.commit_group;" ::: "memory");
    for (int page = begin; page < end; page++) {
        if (page + ahead < end)
            fetch(r, page + ahead);
        asm volatile("cp.async.commit_group;" ::: "memory");
        const uint8_t *p = staged_page(r, page), *k = p + l.k_off, *v = p + l.v_off;
        const uint16_t *k_head = reinterpret_cast<const uint16_t *>(p + l.k_head_off);
        const uint16_t *v_head = reinterpret_cast<const uint16_t *>(p + l.v_head_off);
#pragma unroll 1
        for (int t0 = 0; t0 < 64; t0 += HALF)
            take_half(
                r, st, page, t0, page ? 0 : l.first, 64, true,
                [&](float *to, int from) { fill_page<true>(to, l.k, k, k_head, from); },
                [&](float *to, int from) { fill_page<false>(to, l.v, v, v_head, from); });
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

/* n tokens of a raw piece: a tile (64), or the first tokens. */
__device__ static void take_raw(const rows &r, state &st, int page, const uint8_t *k, const uint8_t *v, int n, int hi)
{
    const tern_cuda_layer &l = r.a->l;
#pragma unroll 1
    for (int t0 = 0; t0 < hi; t0 += HALF)
        take_half(
            r, st, page, t0, 0, hi, false,
            [&](float *to, int from) { fill_raw<true>(to, l.k, k, n, hi, from); },
            [&](float *to, int from) { fill_raw<false>(to, l.v, v, n, hi, from); });
}

/* After the last closed page: back to the model's domain, first tokens, raw tiles, the division. */
__device__ static void finish_rows(const rows &r, state &st)
{
    const tern_cuda_layer &l = r.a->l;
    const int dv = l.v.dim;
    if (r.cond && r.a->cap <= 0 && r.page0 < r.raw0)
        st.m += r.shift;
    if (l.v.rotated) {
        for (int j = 0; j < 2; j++)
            for (int i = 0, d = threadIdx.x + j * THREADS; i < ROWS && d < dv; i++)
                r.v[i * dv + d] = st.o[i][j];
        __syncthreads();
        rotate_row(l.v, r.v + r.warp * dv, true, r.lane);
        __syncthreads();
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (threadIdx.x + j * THREADS < dv)
                    st.o[i][j] = r.v[i * dv + threadIdx.x + j * THREADS];
        __syncthreads();
    }
    if (l.first && r.own >= l.recent && oldest_seen(l, r.pos0) < l.first) {
        const uint8_t *sink = sink_at(r.a->t, l, *r.job, r.kv_head);
        take_raw(r, st, 0, sink, sink + l.sink_v_off, l.first, l.first);
    }
    for (int page = r.raw0; page <= r.own; page++) {
        const uint8_t *tile = work_tile(r.a->t, l, r.a->stage, r.job_i, page, r.kv_head);
        const int last = row_pos(r, r.n_q - 1) % 64 + 1;
        take_raw(r, st, page, tile, tile + l.tile_v_off, 64, page == r.own ? last : 64);
    }
    if (r.lane == 0)
        r.shrink[r.warp] = 1.0f / st.l;
    __syncthreads();
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int d = threadIdx.x + j * THREADS;
            if (i < r.n_q && d < dv)
                cuda_at<float>(r.a->out)[(uint64_t)(r.row0 + i / r.heads) * r.a->out_stride +
                                         (uint64_t)(r.head0 + i % r.heads) * dv + d] = st.o[i][j] * r.shrink[i] + 0.0f;
        }
}

/* Partial result of q row i in range `range`. */
__device__ static float *part_of(const rows &r, int i, int range)
{
    return part_at(r, i, range % TERN_CUDA_RANGES);
}

TERN_CUDA_KERNEL_BEGIN(attn_wide, tern_cuda_attn_args, THREADS, 2)
{
    extern __shared__ float shared[];
    rows r;
    state st;
    cuda_wait();
    if (!find_rows(r, a, blockIdx.x, blockIdx.y))
        return;
    share(r, shared);
    load_queries(r);
    start_rows(st);
    take_pages(r, st, r.page0, r.raw0);
    finish_rows(r, st);
}

TERN_CUDA_KERNEL_BEGIN(attn_range, tern_cuda_attn_args, THREADS, 2)
{
    extern __shared__ float shared[];
    rows r;
    state st;
    cuda_wait();
    if (!find_rows(r, a, blockIdx.x, blockIdx.y))
        return;
    int begin, end;
    const int range = find_range(r, blockIdx.z, begin, end);
    if (begin >= end)
        return;
    share(r, shared);
    load_queries(r);
    start_rows(st);
    take_pages(r, st, begin, end);
    const int dv = a.l.v.dim;
    for (int j = 0; j < 2; j++)
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (i < r.n_q && threadIdx.x + j * THREADS < dv)
                part_of(r, i, range)[threadIdx.x + j * THREADS] = st.o[i][j];
    if (r.lane == 0 && r.warp < r.n_q) {
        part_of(r, r.warp, range)[dv] = st.m;
        part_of(r, r.warp, range)[dv + 1] = st.l;
    }
}

/* The ranges of one row are one more softmax, in ascending order. */
TERN_CUDA_KERNEL_BEGIN(attn_finish, tern_cuda_attn_args, THREADS, 1)
{
    extern __shared__ float shared[];
    rows r;
    state st;
    cuda_wait();
    if (!find_rows(r, a, blockIdx.x, blockIdx.y))
        return;
    share(r, shared);
    load_queries(r);
    start_rows(st);
    const int pages = tern_cuda_range_pages(&a.l, r.pos0), dv = a.l.v.dim;
    if (r.warp < r.n_q && r.page0 < r.raw0) {
        const int pos = row_pos(r, r.warp), page0 = oldest_seen(a.l, pos) / 64;
        const int first = page0 / pages, n = page0 < r.raw0 ? (r.raw0 - 1) / pages - first + 1 : 0;
        for (int i = 0; i < n; i++)
            st.m = fmaxf(st.m, part_of(r, r.warp, first + i)[dv]);
        for (int i = 0; i < n && st.m != -INFINITY; i++) {
            const float *part = part_of(r, r.warp, first + i);
            const float w = exp2f(part[dv] - st.m);
            st.l = fmaf(w, part[dv + 1], st.l);
            for (int d = r.lane; d < dv; d += 32)
                r.v[r.warp * dv + d] = fmaf(w, part[d], i ? r.v[r.warp * dv + d] : 0.0f);
        }
        for (int d = r.lane; d < dv && (!n || st.m == -INFINITY); d += 32)
            r.v[r.warp * dv + d] = 0;
    }
    __syncthreads();
    if (r.page0 < r.raw0)
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (i < r.n_q && threadIdx.x + j * THREADS < dv)
                    st.o[i][j] = r.v[i * dv + threadIdx.x + j * THREADS];
    __syncthreads();
    finish_rows(r, st);
}

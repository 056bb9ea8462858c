/* Attention of decode rows on pages that have no kernel of their own, as where keys and values differ in scheme: tensor cores, f16
 * operands, sums in f32.
 *
 * A page is decoded once for all q rows of a block of threads, into shared memory, while the next one is on its way.
 * Keys stay entries of their code, which f16 holds exactly; a token's scale multiplies its scores.  Values are rounded
 * to f16.
 *
 * A block has up to 8 q rows: four warps are on 16 tokens each for the scores, and all eight on an eighth of the dims each
 * for the values; a range of pages leaves a partial result as in plain.cu.
 *
 * A q row goes through the same steps whatever else is in its block: pages that it does not see leave it as it is. */
#include "dev/cuda/attn/decode.cuh"
#include "dev/cuda/attn/matrix.cuh"
#include "dev/cuda/attn/raw.cuh"

#define THREADS 256
#define WARPS   8

template <int D> struct room {
    static constexpr int ROW = D + 8, COL = 64 + 8; /* halves of a row of D, of 64 */
    static constexpr int SIDE = 64 * ROW > D * COL ? 64 * ROW : D * COL;
};

struct block : block_rows {
    __half *q, *k, *v;
    float *f;     /* [2][64] scales of keys */
    float *shift; /* [16] q.mean */
    float *pq;    /* [16][16] what pairs add, by row */
    uint64_t pool, pool_bytes;
    const uint32_t *numbers; /* of pages, by page index */
    uint8_t *fetched;        /* [2][head_bytes] pages as they come from memory */
    tables tk, tv;
};

/* The softmax of row g of a warp, and its sums. */
template <int TILES> struct state {
    float m, l, o[TILES][4];
};

__device__ static bool find_block(block &b, const tern_cuda_attn_args &a, int unit, int index, int split)
{
    if (!find_rows(b, a, unit, index, split))
        return false;
    const tern_cuda_table &table = table_of(a.t, *b.job, a.l.group);
    const tern_cuda_cache &c = cuda_at<const tern_cuda_cache>(a.t.caches)[b.job->cache];
    const tern_cuda_blocks &pool = cuda_at<const tern_cuda_blocks>(a.t.pools)[c.pages + a.l.group];
    b.pool = pool.p + a.l.layer_off + b.kv_head * a.l.head_bytes;
    b.pool_bytes = pool.bytes;
    b.numbers = cuda_at<const uint32_t>(a.t.numbers) + table.blocks - table.first;
    return true;
}

template <int D> __device__ static void share(block &b, uint8_t *shared)
{
    b.f = reinterpret_cast<float *>(shared);
    b.shift = b.f + 128;
    b.pq = b.shift + 16;
    b.q = reinterpret_cast<__half *>(b.pq + 16 * 16);
    b.k = b.q + TERN_CUDA_NARROW_ROWS(D) * room<D>::ROW;
    b.v = b.k + room<D>::SIDE;
    b.fetched = reinterpret_cast<uint8_t *>(b.v + room<D>::SIDE);
    load_tables(b.tk, b.a->l.k);
    load_tables(b.tv, b.a->l.v);
}

__device__ static __half clamped(float x)
{
    return __float2half_rn(x < 65504.0f ? x > -65504.0f ? x : -65504.0f : 65504.0f);
}

__device__ static uint32_t two(float x, float y)
{
    const __half2 h = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint32_t *>(&h);
}

/* B operands of two tiles of 8: rows of p are the n side (16 of them from n on), 16 of the k side from k on. */
__device__ static void load_b(uint32_t r[4], const __half *p, int stride, int n, int k, int lane)
{
    load4(r, p + (n + lane % 8 + lane / 16 * 8) * stride + k + lane / 8 % 2 * 8);
}

/* Rows are the k side. */
__device__ static void load_b_turned(uint32_t r[4], const __half *p, int stride, int n, int k, int lane)
{
    load4_turned(r, shared_at(p + (k + lane % 8 + lane / 8 % 2 * 8) * stride + n + lane / 16 * 8));
}

/* ---- queries ---- */

/* Queries as the codes want them; rows that are not there are 0.  Uses the keys' room. */
template <int D> __device__ static void load_queries(const block &b)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const tern_cuda_side &s = b.a->l.k;
    float *x = reinterpret_cast<float *>(b.k) + warp * D;
    for (int i = warp; i < 16; i += WARPS) {
        float shift = 0;
        for (int d = lane; d < D; d += 32) {
            float y = 0;
            if (i < b.n_q)
                y = query_of(b, i, D)[d] * b.a->q_scale;
            if (b.cond) {
                shift += y * cuda_at<const float>(b.cond->mean)[d];
                y *= cuda_at<const float>(b.cond->unscale)[d];
            }
            x[d] = y;
        }
        __syncwarp();
        if (s.rotated)
            rotate_row(s, x, false, lane);
        for (int d = lane; d < D; d += 32)
            b.q[i * room<D>::ROW + d] = clamped(x[d]);
        for (int width = 16; width; width /= 2)
            shift += __shfl_xor_sync(~0u, shift, width);
        if (lane == 0)
            b.shift[i] = shift;
        __syncwarp();
    }
    __syncthreads();
}

/* What pairs of the conditioning add to scores on a page: factors of their turns. */
__device__ static void load_pairs(const block &b, int page)
{
    const tern_cuda_cond &c = *b.cond;
    for (int i = threadIdx.x; i < b.n_q * c.n_pairs; i += THREADS) {
        const int row = i / c.n_pairs, j = i % c.n_pairs;
        const float2 f = pair_factors(b, query_of(b, row, b.a->l.k.dim), j, page);
        b.pq[row * 16 + 2 * j] = f.x;
        b.pq[row * 16 + 2 * j + 1] = f.y;
    }
}

/* ---- pages ---- */

/* Page `number` on its way to shared memory; `slot`: which of the two. */
__device__ static void fetch(const block &b, uint32_t number, int slot)
{
    const uint64_t from = b.pool + number * b.pool_bytes;
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(b.fetched + slot * b.a->l.head_bytes);
    for (uint32_t i = 16 * threadIdx.x; i < b.a->l.head_bytes; i += 16 * THREADS)
        cuda_copy_16(to + i, cuda_at<const void>(from + i));
}

/* Calls take(page, bytes) for the pages [begin, end), the next one on its way meanwhile. */
template <class TAKE> __device__ static void each_page(const block &b, int begin, int end, TAKE take)
{
    uint32_t next = begin + 1 < end ? b.numbers[begin + 1] : 0;
    if (begin < end)
        fetch(b, b.numbers[begin], begin & 1);
    asm volatile("cp.async.commit_group;" ::: "memory");
#pragma unroll 1
    for (int page = begin; page < end; page++) {
        if (page + 1 < end)
            fetch(b, next, (page + 1) & 1);
        asm volatile("cp.async.commit_group;" ::: "memory");
        next = page + 2 < end ? b.numbers[page + 2] : 0;
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        take(page, b.fetched + (page & 1) * b.a->l.head_bytes);
        __syncthreads();
    }
}

/* Shared forms of a side: rows that are contracted over lie together in one row (keys [token][dim], values [dim][token])
 * unless `turned` (keys [dim][token], values [token][dim]). */
template <int D> __device__ static void decode_page(const block &b, const uint8_t *p)
{
    const tern_cuda_layer &l = b.a->l;
    const uint16_t *kh = reinterpret_cast<const uint16_t *>(p + l.k_head_off);
    const uint16_t *vh = reinterpret_cast<const uint16_t *>(p + l.v_head_off);
    for (int i = threadIdx.x; i < 128; i += THREADS)
        b.f[i] = l.k.form == TERN_CUDA_CODES ? (i / 64 * 128 < D ? header_scale(kh[i]) * l.k.unit : 0) : 1.0f;
#pragma unroll 1
    for (int i = threadIdx.x; i < 64 * (D / 32); i += THREADS) {
        const int t = i % 64, d = i / 64 * 32;
        uint32_t x[16];
        if (l.k.form != TERN_CUDA_CODES) {
#pragma unroll 1
            for (int j = 0; j < 32; j++)
                b.k[t * room<D>::ROW + d + j] = clamped(page_value(l.k, p + l.k_off, kh, t, d + j));
            continue;
        }
        key_set(x, l.k, b.tk, p + l.k_off, kh, t, d);
#pragma unroll
        for (int j = 0; j < 4; j++)
            *reinterpret_cast<uint4 *>(b.k + t * room<D>::ROW + d + 8 * j) =
                make_uint4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * D; i += THREADS) {
        const int d = i % D, t = i / D * 32;
        uint32_t x[16];
        if (l.v.form != TERN_CUDA_CODES) {
#pragma unroll 1
            for (int j = 0; j < 32; j++)
                b.v[d * room<D>::COL + t + j] = clamped(page_value(l.v, p + l.v_off, vh, t + j, d));
            continue;
        }
        value_set(x, l.v, b.tv, p + l.v_off, vh, t, d);
#pragma unroll
        for (int j = 0; j < 16; j++) {
            const uint32_t h = *reinterpret_cast<const uint32_t *>(vh + d / 128 * 64 + t + 2 * j);
            const float2 e = __half22float2(*reinterpret_cast<const __half2 *>(&x[j]));
            const __half2 r = __halves2half2(clamped(e.x * (header_scale((uint16_t)h) * l.v.unit)),
                                             clamped(e.y * (header_scale((uint16_t)(h >> 16)) * l.v.unit)));
            x[j] = *reinterpret_cast<const uint32_t *>(&r);
        }
#pragma unroll
        for (int j = 0; j < 4; j++)
            *reinterpret_cast<uint4 *>(b.v + d * room<D>::COL + t + 8 * j) =
                make_uint4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
    }
}

/* A page of raw sides, keys [dim][64], values [64][dim], turned. */
template <int D> __device__ static void copy_raw(const block &b, const uint8_t *k, const uint8_t *v)
{
    const tern_cuda_layer &l = b.a->l;
    for (int i = threadIdx.x; i < 128; i += THREADS)
        b.f[i] = 1;
    for (int i = threadIdx.x; i < D * 64; i += THREADS) {
        const int kt = i % 64, kd = i / 64, vt = i / D, vd = i % D;
        b.k[kd * room<D>::COL + kt] = clamped(raw_value(l.k, k, 64, kt, kd));
        b.v[vt * room<D>::ROW + vd] = clamped(raw_value(l.v, v, 64, vt, vd));
    }
}

/* ---- scores ---- */

/* A pair of n-tiles' scores: tokens from n on, the rows of `q`. */
template <int D>
__device__ static void score_tiles(const block &b, float s[2][4], const __half *q, int n, bool turned, int lane)
{
    constexpr int BLOCKS = (D + 127) / 128;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        float c[2][4] = {};
#pragma unroll
        for (int k = i * 128; k < (i + 1) * 128 && k < D; k += 16) {
            uint32_t x[4], y[4];
            load4(x, q + lane % 16 * room<D>::ROW + k + lane / 16 * 8);
            if (turned)
                load_b_turned(y, b.k, room<D>::COL, n, k, lane);
            else
                load_b(y, b.k, room<D>::ROW, n, k, lane);
            multiply(c[0], x, y[0], y[1]);
            multiply(c[1], x, y[2], y[3]);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float f = b.f[i * 64 + n + j / 4 * 8 + lane % 4 * 2 + j % 2];
            s[j / 4][j % 4] = i ? fmaf(c[j / 4][j % 4], f, s[j / 4][j % 4]) : c[j / 4][j % 4] * f;
        }
    }
}

/* One score after the product: what codes do not hold, the cap, what may be seen. */
__device__ static __noinline__ float finish_score(const block &b, float s, int row, int t, int page, int lo)
{
    if (row >= b.n_q)
        return -INFINITY;
    if (b.cond) {
        const float *turns = cuda_at<const float>(b.cond->turns);
        for (int i = 0; i < 2 * b.cond->n_pairs; i++)
            s = fmaf(b.pq[row * 16 + i], turns[i * 64 + t], s);
        if (b.a->cap > 0)
            s += b.shift[row];
    }
    return seen_score(b, s, row, t, page, lo, 64);
}

/* Is there anything to finish? */
__device__ static bool is_plain(const block &b, int page, int lo)
{
    const int last = b.pos0 + (b.n_q - 1) / b.heads;
    return !(b.cond && b.cond->n_pairs) && b.a->cap <= 0 && lo == 0 && page != b.own && oldest_seen(b.a->l, last) <= page * 64;
}

__device__ static float power(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Weights of a row's scores in place; the factor by which its sums shrink. */
__device__ static float soften(float (&s)[16], float *m, float *l)
{
    float most = s[0];
#pragma unroll
    for (int i = 1; i < 16; i++)
        most = fmaxf(most, s[i]);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    most = fmaxf(most, *m);
    float sum = 0;
    const float from = most == -INFINITY ? 0 : most;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        s[i] = power(s[i] - from);
        sum += s[i];
    }
    const float shrink = *m == most ? 1.0f : power(*m - from);
    *l = *l * shrink + sum; /* this lane's part */
    *m = most;
    return shrink;
}

/* ---- decode rows ---- */

/* 8 q rows on a page: every warp has all weights, and sums an eighth of the dims. */
template <int D, int TILES>
__device__ static void take_narrow(const block &b, state<TILES> &st, int page, int lo, bool turned)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = lane / 4;
    const bool plain = is_plain(b, page, lo);
    constexpr int S = 64 + 8;
    float *scores = reinterpret_cast<float *>(b.q + 16 * room<D>::ROW); /* behind the queries */
    if (warp < 4) {
        float c[2][4];
        score_tiles<D>(b, c, b.q, warp * 16, turned, lane);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int t = warp * 16 + j * 8 + lane % 4 * 2 + i;
                scores[row * S + t] = plain ? c[j][i] : finish_score(b, c[j][i], row, t, page, lo);
            }
    }
    __syncthreads();
    float s[16];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float2 x = *reinterpret_cast<const float2 *>(scores + row * S + 8 * i + lane % 4 * 2);
        s[2 * i] = x.x;
        s[2 * i + 1] = x.y;
    }
    const float shrink = soften(s, &st.m, &st.l);
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        st.o[i][0] *= shrink;
        st.o[i][1] *= shrink;
    }
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t p[4] = {two(s[4 * k], s[4 * k + 1]), 0, two(s[4 * k + 2], s[4 * k + 3]), 0};
#pragma unroll
        for (int i = 0; i < (TILES + 1) / 2; i++) {
            const int n = (warp * TILES + 2 * i) * 8 < D - 16 ? (warp * TILES + 2 * i) * 8 : D - 16;
            uint32_t y[4];
            if (turned)
                load_b_turned(y, b.v, room<D>::ROW, n, 16 * k, lane);
            else
                load_b(y, b.v, room<D>::COL, n, 16 * k, lane);
            const int skip = (warp * TILES + 2 * i) * 8 - n; /* 8 where one tile is left at the end */
            multiply(st.o[2 * i], p, skip ? y[2] : y[0], skip ? y[3] : y[1]);
            if (2 * i + 1 < TILES)
                multiply(st.o[2 * i + 1], p, y[2], y[3]);
        }
    }
}

template <int D> __device__ static void attend_range(const tern_cuda_attn_args &a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    constexpr int TILES = D / 64; /* of 8 dims, of a warp */
    const tern_cuda_layer &l = a.l;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    block b;
    state<TILES> st;
    cuda_wait();
    if (!find_block(b, a, blockIdx.x / a.n_blocks, blockIdx.x % a.n_blocks, blockIdx.y))
        return;
    if (blockIdx.z == 0) { /* first: it takes longer than many a range */
        attend_raw_apart<D, THREADS, TERN_CUDA_Q>(b, shared);
        return;
    }
    int begin, end;
    const int range = find_range(b, blockIdx.z - 1, begin, end);
    if (begin >= end)
        return;
    share<D>(b, shared);
    st.m = -INFINITY;
    st.l = 0;
#pragma unroll
    for (int i = 0; i < TILES; i++)
        st.o[i][0] = st.o[i][1] = st.o[i][2] = st.o[i][3] = 0;
    const bool raw = l.k.form < TERN_CUDA_CODES && l.v.form < TERN_CUDA_CODES;
    load_queries<D>(b);
    each_page(b, begin, end, [&](int page, const uint8_t *p) {
        if (raw)
            copy_raw<D>(b, p + l.k_off, p + l.v_off);
        else
            decode_page<D>(b, p);
        if (b.cond && b.cond->n_pairs)
            load_pairs(b, page);
        __syncthreads();
        take_narrow<D, TILES>(b, st, page, page ? 0 : l.first, raw);
    });
    float sum = st.l;
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int i = lane / 4;
    if (i >= b.n_q)
        return;
    float *part = part_at(b, i, range % TERN_CUDA_RANGES);
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int j = 0; j < 2; j++)
            part[(warp * TILES + n) * 8 + lane % 4 * 2 + j] = st.o[n][j];
    if (warp == 0 && lane % 4 == 0) {
        part[D] = st.m;
        part[D + 1] = sum;
    }
}

TERN_CUDA_KERNEL_BEGIN(attn_range_64, tern_cuda_attn_args, THREADS, 3)
{
    attend_range<64>(a);
}

TERN_CUDA_KERNEL_BEGIN(attn_range_128, tern_cuda_attn_args, THREADS, 3)
{
    attend_range<128>(a);
}

/* Closed pages of prompt rows as halves of the model's numbers: what a cache of f16 would hold, as it would lie there.
 *
 * Many rows read a page, so it is decoded and turned back once, for all of them; attention (prompts/wide.cuh) then knows
 * one kind of pages.  First tokens, which are kept raw, stand in their page. */
#include "dev/cuda/attn/decode.cuh"
#include "dev/cuda/prompts/expand.cuh"

#define THREADS 256
#define MOST    8 /* pages of one block of threads, one after the other */

/* One side as it comes and another one as it goes, in turn. */
template <int D> union expand_side {
    __half keys_in[64 * (D + 8)], values_out[64 * (D + 8)]; /* [token][dim] */
    __half keys_out[D * (64 + 8)], values_in[D * (64 + 8)]; /* [dim][token] */
};

template <int D> struct expand_room {
    expand_side<D> one, other;
    float key[D], add[D], value[D]; /* what a dim is multiplied by behind the sums, and what keys get besides */
    const uint8_t *from[MOST];
    const tern_cuda_job *job[MOST];
    int page[MOST];
};

template <int D> struct expand_page {
    static constexpr int ROW = D + 8, COL = 64 + 8;
    const tern_cuda_layer *l;
    const tern_cuda_job *job;
    const expand_room<D> *r;
    const uint8_t *from;
    int page, head;
};

/* Page `slot` of the pass becomes the block's i-th. */
template <int D> __device__ static void find_page(expand_room<D> &r, const tern_cuda_attn_args &a, int slot, int i)
{
    const expand_slot s = find_slot(a, slot);
    r.job[i] = s.job;
    r.page[i] = s.page;
    r.from[i] = page_at(a.t, a.l, *s.job, s.page, a.kv0 + blockIdx.y);
}

template <int D> __device__ static void load_factors(expand_room<D> &r, const tern_cuda_layer &l, int head)
{
    const int d = threadIdx.x;
    if (d >= l.k.dim)
        return;
    r.key[d] = l.k.rotated ? cuda_at<const float>(l.k.sign)[d] : 1.0f;
    r.value[d] = l.v.rotated ? cuda_at<const float>(l.v.sign)[d] : 1.0f;
    r.add[d] = 0;
    if (l.k.cond) {
        const tern_cuda_cond &c = cuda_at<const tern_cuda_cond>(l.k.cond)[head];
        r.key[d] = __fmul_rn(r.key[d], cuda_at<const float>(c.unscale)[d]);
        r.add[d] = cuda_at<const float>(c.mean)[d];
    }
}

/* A page's bytes on their way to shared memory. */
__device__ static void fetch(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
    for (uint32_t i = 16 * threadIdx.x; i < bytes; i += 16 * THREADS)
        cuda_copy_16((uint32_t)__cvta_generic_to_shared(to + i), from + i);
}

/* A side in the codec's domain, codes without their scales: keys [token][dim], values [dim][token]. */
template <int D>
__device__ static void read_side(__half *to, const tern_cuda_side &s, const uint8_t *data, const uint16_t *head)
{
    constexpr int ROW = expand_page<D>::ROW, COL = expand_page<D>::COL;
    if (s.form != TERN_CUDA_CODES) {
        for (int i = threadIdx.x; i < 64 * D; i += THREADS) {
            const int t = s.key ? i % 64 : i / D, d = s.key ? i / 64 : i % D;
            to[s.key ? t * ROW + d : d * COL + t] = as_half(page_value(s, data, head, t, d));
        }
        return;
    }
    tables tab;
    load_tables(tab, s);
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * D; i += THREADS) {
        uint32_t x[16];
        const int t = s.key ? i % 64 : i / D * 32, d = s.key ? i / 64 * 32 : i % D;
        if (s.key)
            key_set(x, codes_in(s), tab, data, head, t, d);
        else
            value_set(x, codes_in(s), tab, data, head, t, d);
#pragma unroll
        for (int j = 0; j < 4; j++)
            *reinterpret_cast<uint4 *>(to + (s.key ? t * ROW + d : d * COL + t) + 8 * j) =
                make_uint4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
    }
}

/* ---- rotation: 16 dims at a time on tensor cores, exact for codes, then sums across these ---- */

/* Row r, column c of Hadamard's matrix of 16, or of the one that changes nothing. */
__device__ static inline uint32_t matrix_bits(bool rotated, int r, int c)
{
    const int x = r & c, odd = (x ^ x >> 1 ^ x >> 2 ^ x >> 3) & 1;
    return rotated ? (odd ? 0xBC00u : 0x3C00u) : r == c ? 0x3C00u : 0u;
}

__device__ static inline uint32_t matrix_two(bool rotated, int r, int c)
{
    return matrix_bits(rotated, r, c) | matrix_bits(rotated, r, c + 1) << 16;
}

/* c[block][..]: sums over blocks of 16 dims, those that are FROM, 2 FROM .. below TO apart. */
template <int FROM, int TO, int BLOCKS> __device__ static inline void sums(float (&c)[BLOCKS][4])
{
#pragma unroll
    for (int stride = FROM; stride < TO; stride *= 2)
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
            if (!(i & stride))
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float a = c[i][j], b = c[i + stride][j];
                    c[i][j] = __fadd_rn(a, b);
                    c[i + stride][j] = __fsub_rn(a, b);
                }
}

/* A token's, of each 128 dims. */
__device__ static inline float scale_of(const tern_cuda_side &s, const uint16_t *head, int t)
{
    const float scale = s.form == TERN_CUDA_CODES ? __fmul_rn(header_scale(head[t]), s.unit) : 1.0f;
    return s.rotated ? __fmul_rn(scale, s.norm) : scale;
}

/* Products with Hadamard's matrix of 16 become what was rotated: sums within 128 dims, their scales, sums across. A lane's
 * four have the tokens t[0], t[0], t[1], t[1] if `rows`, else t[0], t[1], t[0], t[1]. */
template <int BLOCKS>
__device__ static inline void turn(float (&c)[BLOCKS][4], const tern_cuda_side &s, const uint16_t *head, int t0, int t1, bool rows)
{
    constexpr int EACH = BLOCKS < 8 ? BLOCKS : 8;
    if (s.rotated)
        sums<1, EACH>(c);
#pragma unroll
    for (int i = 0; i < BLOCKS; i += EACH) {
        const float scale[2] = {scale_of(s, head + i / 8 * 64, t0), scale_of(s, head + i / 8 * 64, t1)};
#pragma unroll
        for (int j = 0; j < 4 * EACH; j++)
            c[i + j / 4][j % 4] = __fmul_rn(c[i + j / 4][j % 4], scale[rows ? j % 4 / 2 : j % 2]);
    }
    if (s.rotated)
        sums<EACH, BLOCKS>(c);
}

/* 16 tokens' keys, from t0 on: out[block][half][tile of 8 tokens] has the tokens 2q and 2q + 1 of dim 16 block + g + 8
 * half, in the model's domain. */
template <int D>
__device__ static void turn_keys(uint32_t (&out)[D / 16][2][2], const expand_page<D> &p, const __half *in, int t0)
{
    constexpr int BLOCKS = D / 16;
    const tern_cuda_side &s = p.l->k;
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const uint16_t *head = reinterpret_cast<const uint16_t *>(p.from + p.l->k_head_off);
    const uint32_t h[4] = {matrix_two(s.rotated, g, 2 * q), matrix_two(s.rotated, g + 8, 2 * q),
                           matrix_two(s.rotated, g, 2 * q + 8), matrix_two(s.rotated, g + 8, 2 * q + 8)};
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float c[BLOCKS][4] = {};
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            uint32_t y[4];
            load4(y, in + (t0 + lane % 8 + lane / 16 * 8) * expand_page<D>::ROW + 16 * i + lane / 8 % 2 * 8);
            multiply(c[i], h, y[2 * j], y[2 * j + 1]);
        }
        turn<BLOCKS>(c, s, head, t0 + 8 * j + 2 * q, t0 + 8 * j + 2 * q + 1, false);
#pragma unroll
        for (int i = 0; i < 2 * BLOCKS; i++) { /* dim 8 i + g */
            const float *x = &c[i / 2][i % 2 * 2], by = p.r->key[8 * i + g], add = p.r->add[8 * i + g];
            out[i / 2][i % 2][j] = two_halves(__fmaf_rn(x[0], by, add), __fmaf_rn(x[1], by, add));
        }
    }
}

/* 16 tokens' values: out[block][tile of 8 dims][half] has dims 2q and 2q + 1 of the tile, of token t0 + g + 8 half. */
template <int D>
__device__ static void turn_values(uint32_t (&out)[D / 16][2][2], const expand_page<D> &p, const __half *in, int t0)
{
    constexpr int BLOCKS = D / 16;
    const tern_cuda_side &s = p.l->v;
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const uint16_t *head = reinterpret_cast<const uint16_t *>(p.from + p.l->v_head_off);
    uint32_t h[2][2]; /* Hadamard's matrix is its own other side */
#pragma unroll
    for (int i = 0; i < 4; i++)
        h[i / 2][i % 2] = matrix_two(s.rotated, i / 2 * 8 + g, i % 2 * 8 + 2 * q);
#pragma unroll
    for (int j = 0; j < 2; j++) {
        float c[BLOCKS][4] = {};
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) {
            uint32_t y[4];
            load4_turned(y, shared_at(in + (16 * i + lane % 8 + lane / 16 * 8) * expand_page<D>::COL + t0 + lane / 8 % 2 * 8));
            multiply(c[i], y, h[j][0], h[j][1]);
        }
        turn<BLOCKS>(c, s, head, t0 + g, t0 + g + 8, true);
#pragma unroll
        for (int i = 0; i < BLOCKS; i++) { /* dims 16 i + 8 j + 2q .. */
            const float2 by = *reinterpret_cast<const float2 *>(p.r->value + 16 * i + 8 * j + 2 * q);
#pragma unroll
            for (int n = 0; n < 2; n++)
                out[i][j][n] = two_halves(__fmul_rn(c[i][2 * n], by.x), __fmul_rn(c[i][2 * n + 1], by.y));
        }
    }
}

/* ---- what codes do not hold ---- */

/* What pairs of the conditioning add to a token's key. */
template <int D> __device__ static void add_pairs(__half *keys, const expand_page<D> &p, const tern_cuda_cond &cond)
{
    const int t = threadIdx.x;
    for (int i = 0; t < 64 && i < cond.n_pairs; i++) {
        const float2 add = pair_of_key(*p.l, cond, i, p.page, t);
        __half *a = keys + cond.pairs[i].a * expand_page<D>::COL + t, *b = keys + cond.pairs[i].b * expand_page<D>::COL + t;
        *a = as_half(__fadd_rn(__half2float(*a), add.x));
        *b = as_half(__fadd_rn(__half2float(*b), add.y));
    }
}

/* First tokens as they came. */
template <int D>
__device__ static void put_first(__half *keys, __half *values, const expand_page<D> &p, const uint8_t *sink)
{
    const int n = p.l->first;
    for (int i = threadIdx.x; i < n * D; i += THREADS) {
        const int t = i / D, d = i % D;
        keys[d * expand_page<D>::COL + t] = as_half(raw_value(p.l->k, sink, n, t, d));
        values[t * expand_page<D>::ROW + d] = as_half(raw_value(p.l->v, sink + p.l->sink_v_off, n, t, d));
    }
}

/* A page whose bytes are at p.from, to its place. */
template <int D> __device__ static void expand_one(expand_room<D> &r, const expand_page<D> &p, uint4 *to, const uint8_t *sink, int pairs)
{
    constexpr int ROW = expand_page<D>::ROW, COL = expand_page<D>::COL;
    const tern_cuda_layer &l = *p.l;
    uint32_t x[D / 16][2][2];
    read_side<D>(r.one.keys_in, l.k, p.from + l.k_off, reinterpret_cast<const uint16_t *>(p.from + l.k_head_off));
    read_side<D>(r.other.values_in, l.v, p.from + l.v_off, reinterpret_cast<const uint16_t *>(p.from + l.v_head_off));
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t0 = warp % 4 * 16;
    if (warp < 4)
        turn_keys<D>(x, p, r.one.keys_in, t0);
    else
        turn_values<D>(x, p, r.other.values_in, t0);
    __syncthreads();
    __half *keys = r.other.keys_out + lane / 4 * COL + t0 + lane % 4 * 2;
    __half *values = r.one.values_out + (t0 + lane / 4) * ROW + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < D / 4; i++)
        *reinterpret_cast<uint32_t *>(warp < 4 ? keys + i / 2 * 8 * COL + i % 2 * 8 : values + i / 2 * 8 + i % 2 * 8 * ROW) =
            x[i / 4][i / 2 % 2][i % 2];
    __syncthreads();
    if (pairs) {
        add_pairs<D>(r.other.keys_out, p, cuda_at<const tern_cuda_cond>(l.k.cond)[p.head]);
        __syncthreads();
    }
    if (sink) {
        put_first<D>(r.other.keys_out, r.one.values_out, p, sink);
        __syncthreads();
    }
#pragma unroll
    for (int i = threadIdx.x; i < D * 8; i += THREADS) {
        to[i] = *reinterpret_cast<const uint4 *>(r.other.keys_out + i / 8 * COL + i % 8 * 8);
        to[D * 8 + i] = *reinterpret_cast<const uint4 *>(r.one.values_out + i / (D / 8) * ROW + i % (D / 8) * 8);
    }
}

/* Pages go through shared memory while the one before is worked on, where they are codes and the card has room. */
template <int D> __device__ static void expand(const tern_cuda_attn_args &a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    expand_room<D> &r = *reinterpret_cast<expand_room<D> *>(shared);
    static_assert(sizeof r == TERN_CUDA_EXPAND_ROOM(D), "what the host asks for");
    uint8_t *staged = shared + sizeof r;
    const tern_cuda_layer &l = a.l;
    const int slot0 = blockIdx.x * a.per_block, left = a.pages - slot0, n = left < a.per_block ? left : a.per_block;
    const bool stages = a.staged;
    if ((int)threadIdx.x < n)
        find_page(r, a, slot0 + threadIdx.x, threadIdx.x);
    __syncthreads();
    cuda_wait(); /* up to here tables alone, which no kernel writes */
    if (stages)
        fetch(staged, r.from[0], l.head_bytes);
    asm volatile("cp.async.commit_group;" ::: "memory");
    expand_page<D> p;
    p.l = &l;
    p.r = &r;
    p.head = a.kv0 + blockIdx.y;
    load_factors(r, l, p.head);
    const int pairs = l.k.cond ? cuda_at<const tern_cuda_cond>(l.k.cond)[p.head].n_pairs : 0;
#pragma unroll 1
    for (int i = 0; i < n; i++) {
        if (stages && i + 1 < n)
            fetch(staged + (i + 1) % 2 * l.head_bytes, r.from[i + 1], l.head_bytes);
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        p.job = r.job[i];
        p.page = r.page[i];
        p.from = stages ? staged + i % 2 * l.head_bytes : r.from[i];
        const uint8_t *sink = p.page == 0 && l.first ? sink_at(a.t, l, *p.job, p.head) : nullptr;
        expand_one<D>(r, p, cuda_at<uint4>(a.expanded + ((uint64_t)(slot0 + i) * a.kv_n + blockIdx.y) * (256 * D)), sink,
                      pairs);
        __syncthreads();
    }
}

#define KERNEL(D, blocks)                                                      \
    TERN_CUDA_KERNEL_BEGIN(expand_##D, tern_cuda_attn_args, THREADS, blocks) \
    {                                                                          \
        expand<D>(a);                                                          \
    }
KERNEL(64, 3)
KERNEL(128, 3)
KERNEL(256, 1)

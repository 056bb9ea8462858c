/* Closed pages of prompt rows as halves of the model's numbers: what a cache of f16 would hold, as it would lie there.
 *
 * Many rows read a page, so it is decoded and turned back once, for all of them; attention (attn/wide_90.cu) then knows
 * one kind of pages.  First tokens, which are kept raw, stand in their page. */
#include "dev/cuda/attn/decode.cuh"
#include "dev/cuda/attn/matrix.cuh"

#define THREADS 256

/* One side as it comes and another one as it goes, in turn. */
union expand_side {
    __half keys_in[64 * (128 + 8)], values_out[64 * (128 + 8)]; /* [token][dim] */
    __half keys_out[128 * (64 + 8)], values_in[128 * (64 + 8)]; /* [dim][token] */
};

template <int D> struct expand_page {
    static constexpr int ROW = D + 8, COL = 64 + 8;
    const tern_cuda_layer *l;
    const tern_cuda_job *job;
    const uint8_t *from;
    int page, head;
};

__device__ static inline uint32_t two(float x, float y)
{
    const __half2 h = __floats2half2_rn(fmaxf(fminf(x, 65504.0f), -65504.0f), fmaxf(fminf(y, 65504.0f), -65504.0f));
    return *reinterpret_cast<const uint32_t *>(&h);
}

__device__ static inline __half clamped(float x)
{
    return __float2half_rn(fmaxf(fminf(x, 65504.0f), -65504.0f));
}

/* Page `slot` of the pass. */
template <int D> __device__ static void find_page(expand_page<D> &p, const tern_cuda_attn_args &a, int slot)
{
    int n, first;
    const tern_cuda_job *j = cuda_at<const tern_cuda_job>(a.t.jobs) + a.job0;
    const int cache = j->cache;
    for (;; j++) {
        n = j->wide && j->cache == cache ? tern_cuda_closed_pages(&a.l, j->pos0, j->n_rows, &first) : 0;
        if (slot < n)
            break;
        slot -= n;
    }
    p.l = &a.l;
    p.job = j;
    p.page = first + slot;
    p.head = a.kv0 + blockIdx.y;
    p.from = page_at(a.t, a.l, *j, p.page, p.head);
}

/* A side in the codec's domain, codes without their scales: keys [token][dim], values [dim][token]. */
template <int D>
__device__ static void read_side(__half *to, const tern_cuda_side &s, const uint8_t *data, const uint16_t *head)
{
    constexpr int ROW = expand_page<D>::ROW, COL = expand_page<D>::COL;
    if (s.form != TERN_CUDA_CODES) {
        for (int i = threadIdx.x; i < 64 * D; i += THREADS) {
            const int t = s.key ? i % 64 : i / D, d = s.key ? i / 64 : i % D;
            to[s.key ? t * ROW + d : d * COL + t] = clamped(page_value(s, data, head, t, d));
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
            key_set(x, s, tab, data, head, t, d);
        else
            value_set(x, s, tab, data, head, t, d);
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

/* c[block][..]: sums over blocks of 16 dims. */
template <int BLOCKS> __device__ static inline void sums(float (&c)[BLOCKS][2][4])
{
#pragma unroll
    for (int stride = 1; stride < BLOCKS; stride *= 2)
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
            if (!(i & stride))
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    const float a = c[i][j / 4][j % 4], b = c[i + stride][j / 4][j % 4];
                    c[i][j / 4][j % 4] = __fadd_rn(a, b);
                    c[i + stride][j / 4][j % 4] = __fsub_rn(a, b);
                }
}

__device__ static inline float scale_of(const tern_cuda_side &s, const uint16_t *head, int t)
{
    const float scale = s.form == TERN_CUDA_CODES ? __fmul_rn(header_scale(head[t]), s.unit) : 1.0f;
    return s.rotated ? __fmul_rn(scale, s.norm) : scale;
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
    float c[BLOCKS][2][4] = {}, scale[2][2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        scale[i / 2][i % 2] = scale_of(s, head, t0 + i / 2 * 8 + 2 * q + i % 2);
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        uint32_t y[4];
        load4(y, in + (t0 + lane % 8 + lane / 16 * 8) * expand_page<D>::ROW + 16 * i + lane / 8 % 2 * 8);
        multiply(c[i][0], h, y[0], y[1]);
        multiply(c[i][1], h, y[2], y[3]);
    }
    if (s.rotated)
        sums<BLOCKS>(c);
    const float *sign = cuda_at<const float>(s.sign) + g, *unscale = nullptr, *mean = nullptr;
    if (s.cond) {
        const tern_cuda_cond &cond = cuda_at<const tern_cuda_cond>(s.cond)[p.head];
        unscale = cuda_at<const float>(cond.unscale) + g;
        mean = cuda_at<const float>(cond.mean) + g;
    }
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) { /* dim 8 i + g */
        const float by = s.rotated ? sign[8 * i] : 1.0f;
        const float factor = unscale ? __fmul_rn(by, unscale[8 * i]) : by, add = mean ? mean[8 * i] : 0.0f;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float *x = &c[i / 2][j][i % 2 * 2];
            out[i / 2][i % 2][j] = two(__fmaf_rn(__fmul_rn(x[0], scale[j][0]), factor, add),
                                       __fmaf_rn(__fmul_rn(x[1], scale[j][1]), factor, add));
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
    float c[BLOCKS][2][4] = {};
    const float scale[2] = {scale_of(s, head, t0 + g), scale_of(s, head, t0 + g + 8)};
#pragma unroll
    for (int i = 0; i < BLOCKS; i++) {
        uint32_t y[4];
        load4_turned(y, in + (16 * i + lane % 8 + lane / 16 * 8) * expand_page<D>::COL + t0 + lane / 8 % 2 * 8);
        multiply(c[i][0], y, h[0][0], h[0][1]);
        multiply(c[i][1], y, h[1][0], h[1][1]);
    }
    if (s.rotated)
        sums<BLOCKS>(c);
    const float *sign = cuda_at<const float>(s.sign) + 2 * q;
#pragma unroll
    for (int i = 0; i < 2 * BLOCKS; i++) { /* dims 8 i + 2q .. */
        const float2 by = s.rotated ? *reinterpret_cast<const float2 *>(sign + 8 * i) : make_float2(1, 1);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float *x = &c[i / 2][i % 2][2 * j];
            out[i / 2][i % 2][j] = two(__fmul_rn(__fmul_rn(x[0], scale[j]), by.x), __fmul_rn(__fmul_rn(x[1], scale[j]), by.y));
        }
    }
}

/* ---- what codes do not hold ---- */

/* What pairs of the conditioning add to a token's key. */
template <int D> __device__ static void add_pairs(__half *keys, const expand_page<D> &p, const tern_cuda_cond &cond)
{
    const int t = threadIdx.x;
    const float *turns = cuda_at<const float>(cond.turns);
    const double *angles = cuda_at<const double>(p.l->k.angles);
    for (int i = 0; t < 64 && i < cond.n_pairs; i++) {
        const auto &m = cond.pairs[i];
        const double *at = angles + 2 * ((int64_t)m.freq * p.l->k.max_pages + p.page);
        const float co = (float)at[0], si = (float)at[1], x = turns[2 * i * 64 + t], y = turns[(2 * i + 1) * 64 + t];
        const float c = __fsub_rn(__fmul_rn(x, co), __fmul_rn(y, si)), s = __fadd_rn(__fmul_rn(x, si), __fmul_rn(y, co));
        __half *a = keys + m.a * expand_page<D>::COL + t, *b = keys + m.b * expand_page<D>::COL + t;
        *a = clamped(__fadd_rn(__half2float(*a), __fsub_rn(__fmul_rn(m.re, c), __fmul_rn(m.im, s))));
        *b = clamped(__fadd_rn(__half2float(*b), __fadd_rn(__fmul_rn(m.im, c), __fmul_rn(m.re, s))));
    }
}

/* First tokens as they came. */
template <int D>
__device__ static void put_first(__half *keys, __half *values, const expand_page<D> &p, const uint8_t *sink)
{
    const int n = p.l->first;
    for (int i = threadIdx.x; i < n * D; i += THREADS) {
        const int t = i / D, d = i % D;
        keys[d * expand_page<D>::COL + t] = clamped(raw_value(p.l->k, sink, n, t, d));
        values[t * expand_page<D>::ROW + d] = clamped(raw_value(p.l->v, sink + p.l->sink_v_off, n, t, d));
    }
}

template <int D> __device__ static void expand(const tern_cuda_attn_args &a)
{
    __shared__ __align__(16) expand_side one, other;
    constexpr int ROW = expand_page<D>::ROW, COL = expand_page<D>::COL;
    const tern_cuda_layer &l = a.l;
    expand_page<D> p;
    uint32_t x[D / 16][2][2];
    find_page<D>(p, a, blockIdx.x); /* tables alone, which no kernel writes */
    cuda_wait();
    read_side<D>(one.keys_in, l.k, p.from + l.k_off, reinterpret_cast<const uint16_t *>(p.from + l.k_head_off));
    read_side<D>(other.values_in, l.v, p.from + l.v_off, reinterpret_cast<const uint16_t *>(p.from + l.v_head_off));
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t0 = warp % 4 * 16;
    if (warp < 4)
        turn_keys<D>(x, p, one.keys_in, t0);
    else
        turn_values<D>(x, p, other.values_in, t0);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < D / 4; i++) {
        const uint32_t y = x[i / 4][i / 2 % 2][i % 2];
        if (warp < 4)
            *reinterpret_cast<uint32_t *>(other.keys_out + (i / 2 * 8 + lane / 4) * COL + t0 + i % 2 * 8 + lane % 4 * 2) = y;
        else
            *reinterpret_cast<uint32_t *>(one.values_out + (t0 + lane / 4 + i % 2 * 8) * ROW + i / 2 * 8 + lane % 4 * 2) = y;
    }
    __syncthreads();
    if (l.k.cond && cuda_at<const tern_cuda_cond>(l.k.cond)[p.head].n_pairs) {
        add_pairs<D>(other.keys_out, p, cuda_at<const tern_cuda_cond>(l.k.cond)[p.head]);
        __syncthreads();
    }
    if (p.page == 0 && l.first) {
        put_first<D>(other.keys_out, one.values_out, p, sink_at(a.t, l, *p.job, p.head));
        __syncthreads();
    }
    uint4 *to = cuda_at<uint4>(a.expanded + ((uint64_t)blockIdx.x * a.kv_n + blockIdx.y) * (256 * D));
#pragma unroll
    for (int i = threadIdx.x; i < D * 8; i += THREADS) {
        to[i] = *reinterpret_cast<const uint4 *>(other.keys_out + i / 8 * COL + i % 8 * 8);
        to[D * 8 + i] = *reinterpret_cast<const uint4 *>(one.values_out + i / (D / 8) * ROW + i % (D / 8) * 8);
    }
}

TERN_CUDA_KERNEL_BEGIN(expand_64, tern_cuda_attn_args, THREADS, 2)
{
    expand<64>(a);
}

TERN_CUDA_KERNEL_BEGIN(expand_128, tern_cuda_attn_args, THREADS, 2)
{
    expand<128>(a);
}

/* Closed pages of prompt rows as halves of the model's numbers: what a cache of f16 would hold, as it would lie there.
 *
 * Many rows read a page, so it is decoded and turned back once, for all of them; attention (attn/wide_90.cu) then knows
 * one kind of pages.  First tokens, which are kept raw, stand in their page. */
#include "dev/cuda/attn/decode.cuh"

#define THREADS 256

template <int D> struct expand_room {
    __half in[64][D + 8];  /* [token][dim] in the codec's domain; codes without their scales */
    __half keys[D][64 + 8]; /* pieces of 8 tokens lie d / 32 places further on, so that lanes meet no bank twice */
};

struct expand_page {
    const tern_cuda_layer *l;
    const tern_cuda_job *job;
    const uint8_t *from, *sink;
    uint8_t *to;
    const tern_cuda_cond *cond;
    int page;
};

__device__ static __half clamped(float x)
{
    return __float2half_rn(x < 65504.0f ? x > -65504.0f ? x : -65504.0f : 65504.0f);
}

/* Page `slot` of the pass, head blockIdx.y of its own. */
template <int D> __device__ static void find_page(expand_page &p, const tern_cuda_attn_args &a)
{
    int slot = blockIdx.x, n, first;
    const tern_cuda_job *j = cuda_at<const tern_cuda_job>(a.t.jobs) + a.job0;
    const int cache = j->cache, head = a.kv0 + blockIdx.y;
    for (;; j++) {
        n = j->wide && j->cache == cache ? tern_cuda_closed_pages(&a.l, j->pos0, j->n_rows, &first) : 0;
        if (slot < n)
            break;
        slot -= n;
    }
    p.l = &a.l;
    p.job = j;
    p.page = first + slot;
    p.from = page_at(a.t, a.l, *j, p.page, head);
    p.sink = p.page == 0 && a.l.first ? sink_at(a.t, a.l, *j, head) : nullptr;
    p.to = cuda_at<uint8_t>(a.expanded + ((uint64_t)blockIdx.x * a.kv_n + blockIdx.y) * (256 * D));
    p.cond = a.l.k.cond ? cuda_at<const tern_cuda_cond>(a.l.k.cond) + head : nullptr;
}

/* One side into `in`. */
template <int D>
__device__ static void read_side(expand_room<D> &r, const tern_cuda_side &s, const uint8_t *data, const uint16_t *head)
{
    if (s.form != TERN_CUDA_CODES) {
        for (int i = threadIdx.x; i < 64 * D; i += THREADS) {
            const int t = s.key ? i % 64 : i / D, d = s.key ? i / 64 : i % D;
            r.in[t][d] = clamped(page_value(s, data, head, t, d));
        }
        return;
    }
    tables tab;
    load_tables(tab, s);
#pragma unroll 1
    for (int i = threadIdx.x; i < 2 * D; i += THREADS) {
        uint32_t x[16];
        if (s.key) {
            const int t = i % 64, d = i / 64 * 32;
            key_set(x, s, tab, data, head, t, d);
#pragma unroll
            for (int j = 0; j < 4; j++)
                *reinterpret_cast<uint4 *>(&r.in[t][d + 8 * j]) =
                    make_uint4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
        } else {
            const int d = i % D, t = i / D * 32;
            value_set(x, s, tab, data, head, t, d);
#pragma unroll
            for (int j = 0; j < 16; j++) {
                const __half2 h = *reinterpret_cast<const __half2 *>(&x[j]);
                r.in[t + 2 * j][d] = __low2half(h);
                r.in[t + 2 * j + 1][d] = __high2half(h);
            }
        }
    }
}

/* Of dims, D / 32 neighbouring lanes have 32 each: Walsh and Hadamard's sums, without a factor. */
template <int D> __device__ static void sums(float x[32], int part)
{
#pragma unroll
    for (int stride = 1; stride < 32; stride *= 2)
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (!(i & stride)) {
                const float a = x[i], b = x[i + stride];
                x[i] = __fadd_rn(a, b);
                x[i + stride] = __fsub_rn(a, b);
            }
#pragma unroll
    for (int width = 1; width < D / 32; width *= 2)
#pragma unroll
        for (int i = 0; i < 32; i++) {
            const float other = __shfl_xor_sync(~0u, x[i], width);
            x[i] = part & width ? __fsub_rn(other, x[i]) : __fadd_rn(x[i], other);
        }
}

/* 32 dims from d on of token t, in the model's domain. */
template <int D>
__device__ static void turn_back(float x[32], const expand_room<D> &r, const expand_page &p, const tern_cuda_side &s,
                                 const uint16_t *head, int t, int d)
{
    const float *sign = cuda_at<const float>(s.sign);
    const float scale = s.form == TERN_CUDA_CODES ? __fmul_rn(header_scale(head[t]), s.unit) : 1.0f;
    const float factor = s.rotated ? __fmul_rn(scale, s.norm) : scale;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint4 in = *reinterpret_cast<const uint4 *>(&r.in[t][d + 8 * j]);
        const uint32_t w[4] = {in.x, in.y, in.z, in.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 y = __half22float2(*reinterpret_cast<const __half2 *>(&w[i]));
            x[8 * j + 2 * i] = y.x;
            x[8 * j + 2 * i + 1] = y.y;
        }
    }
    if (s.rotated)
        sums<D>(x, d / 32);
#pragma unroll
    for (int i = 0; i < 32; i++)
        x[i] = __fmul_rn(x[i], s.rotated ? __fmul_rn(factor, sign[d + i]) : factor);
    if (s.key && p.cond) {
        const float *unscale = cuda_at<const float>(p.cond->unscale), *mean = cuda_at<const float>(p.cond->mean);
#pragma unroll
        for (int i = 0; i < 32; i++)
            x[i] = __fmaf_rn(x[i], unscale[d + i], mean[d + i]);
    }
    if (p.sink && t < p.l->first) {
        const uint8_t *raw = s.key ? p.sink : p.sink + p.l->sink_v_off;
#pragma unroll
        for (int i = 0; i < 32; i++)
            x[i] = raw_value(s, raw, p.l->first, t, d + i);
    }
}

template <int D> __device__ static __half *key_at(expand_room<D> &r, int d, int t)
{
    return &r.keys[d][(t / 8 + d / 32) % 8 * 8 + t % 8];
}

/* What pairs of the conditioning add to a token's key. */
template <int D> __device__ static void add_pairs(expand_room<D> &r, const expand_page &p)
{
    const int t = threadIdx.x;
    const float *turns = cuda_at<const float>(p.cond->turns);
    const double *angles = cuda_at<const double>(p.l->k.angles);
    if (t >= 64 || (p.sink && t < p.l->first))
        return;
    for (int i = 0; i < p.cond->n_pairs; i++) {
        const auto &m = p.cond->pairs[i];
        const double *at = angles + 2 * ((int64_t)m.freq * p.l->k.max_pages + p.page);
        const float co = (float)at[0], si = (float)at[1], x = turns[2 * i * 64 + t], y = turns[(2 * i + 1) * 64 + t];
        const float c = __fsub_rn(__fmul_rn(x, co), __fmul_rn(y, si)), s = __fadd_rn(__fmul_rn(x, si), __fmul_rn(y, co));
        __half *ka = key_at<D>(r, m.a, t), *kb = key_at<D>(r, m.b, t);
        *ka = clamped(__fadd_rn(__half2float(*ka), __fsub_rn(__fmul_rn(m.re, c), __fmul_rn(m.im, s))));
        *kb = clamped(__fadd_rn(__half2float(*kb), __fadd_rn(__fmul_rn(m.im, c), __fmul_rn(m.re, s))));
    }
}

template <int D> __device__ static void write_keys(expand_room<D> &r, const expand_page &p)
{
    for (int i = threadIdx.x; i < D * 8; i += THREADS)
        reinterpret_cast<uint4 *>(p.to)[i] = *reinterpret_cast<const uint4 *>(key_at<D>(r, i / 8, i % 8 * 8));
}

template <int D> __device__ static void expand(const tern_cuda_attn_args &a)
{
    __shared__ __align__(16) expand_room<D> r;
    constexpr int PARTS = D / 32;
    const tern_cuda_layer &l = a.l;
    expand_page p;
    float x[32];
    cuda_wait();
    find_page<D>(p, a);
    const uint16_t *kh = reinterpret_cast<const uint16_t *>(p.from + l.k_head_off);
    const uint16_t *vh = reinterpret_cast<const uint16_t *>(p.from + l.v_head_off);
    const int t = threadIdx.x / PARTS % 64, d = threadIdx.x % PARTS * 32;
    const bool works = threadIdx.x < 64 * PARTS;
    read_side<D>(r, l.k, p.from + l.k_off, kh);
    __syncthreads();
    if (works) {
        turn_back<D>(x, r, p, l.k, kh, t, d);
#pragma unroll
        for (int i = 0; i < 32; i++)
            *key_at<D>(r, d + i, t) = clamped(x[i]);
    }
    __syncthreads();
    if (p.cond && p.cond->n_pairs) {
        add_pairs<D>(r, p);
        __syncthreads();
    }
    write_keys<D>(r, p);
    read_side<D>(r, l.v, p.from + l.v_off, vh);
    __syncthreads();
    if (!works)
        return;
    turn_back<D>(x, r, p, l.v, vh, t, d);
    uint4 *to = reinterpret_cast<uint4 *>(p.to + 128 * D + (t * D + d) * 2);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        uint32_t w[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const __half2 h = __halves2half2(clamped(x[8 * j + 2 * i]), clamped(x[8 * j + 2 * i + 1]));
            w[i] = *reinterpret_cast<const uint32_t *>(&h);
        }
        to[j] = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

TERN_CUDA_KERNEL_BEGIN(expand_64, tern_cuda_attn_args, THREADS, 3)
{
    expand<64>(a);
}

TERN_CUDA_KERNEL_BEGIN(expand_128, tern_cuda_attn_args, THREADS, 3)
{
    expand<128>(a);
}

/* dev/cuda/encode/encode.cuh - what encoders of full pages share: their vectors, scales, and the order of a page.
 *
 * One block of threads per page, KV head, side and half of 32 tokens; a half's words hold no code of the other.  Bits are
 * those of kernel/ref/kvq_encode.c and codec/kv_group.c. */
#ifndef TERN_DEV_CUDA_ENCODE_CUH
#define TERN_DEV_CUDA_ENCODE_CUH

#include "dev/cuda/attn/cache.cuh"

#define THREADS ((int)blockDim.x)
#define WARPS   (THREADS / 32)
#define HALF    32
#define TINY    0x1.0p-100f

/* What a block of threads shares; vectors are x + t * (dim + 1). */
struct work {
    float *x;
    float (*turn)[2][HALF]; /* [8] cos and sin of pairs */
    uint8_t *codes;         /* [32][codes_pitch(dim)] */
};

/* Such that the same dim of 16 tokens lies in as many banks. */
__device__ static inline int codes_pitch(int dim)
{
    return dim + 4;
}

/* Of `shared`, and what is behind it. */
__device__ static inline work work_in(uint8_t *shared, int dim, uint8_t **behind)
{
    work w;
    w.x = reinterpret_cast<float *>(shared);
    w.turn = reinterpret_cast<float(*)[2][HALF]>(w.x + HALF * (dim + 1));
    w.codes = reinterpret_cast<uint8_t *>(w.turn + TERN_CUDA_PAIRS);
    *behind = w.codes + HALF * codes_pitch(dim);
    return w;
}

/* ---- vectors ---- */

/* DIM: s.dim, where it is one of 64 and 128; else 0. */
template <int DIM>
__device__ static void load_vectors(const tern_cuda_side &s, const work &w, const uint8_t *tile, int t0)
{
    const int dim = DIM ? DIM : s.dim;
    for (int i = threadIdx.x; i < HALF * dim; i += THREADS) {
        const int t = s.key ? i % HALF : i / dim, d = s.key ? i / HALF : i % dim;
        w.x[t * (dim + 1) + d] = raw_value(s, tile, 64, t0 + t, d);
    }
}

/* rotate_row of all vectors; in registers where a lane has a part of each. */
template <int DIM> __device__ static void rotate_vectors(const tern_cuda_side &s, const work &w)
{
    const int lane = threadIdx.x % 32;
    if constexpr (DIM == 0) {
        for (int t = threadIdx.x / 32; t < HALF; t += WARPS)
            rotate_row(s, w.x + t * (s.dim + 1), false, lane);
    } else {
        constexpr int N = DIM / 32;
        float sign[N], y[N];
        load_signs<N>(sign, s, lane);
        for (int t = threadIdx.x / 32; t < HALF; t += WARPS) {
            float *x = w.x + t * (DIM + 1) + lane * N;
#pragma unroll
            for (int j = 0; j < N; j++)
                y[j] = __fmul_rn(x[j], sign[j]);
            mix_lanes<N>(y, lane);
#pragma unroll
            for (int j = 0; j < N; j++)
                x[j] = __fmul_rn(y[j], s.norm);
        }
    }
}

/* As kv_cond.c: the angle of the page is known, those of its tokens follow one by one, in f64. */
__device__ static void turn_pairs(const tern_cuda_side &s, const tern_cuda_cond &c, const work &w, int page, int t0)
{
    const int i = threadIdx.x;
    if (i >= c.n_pairs)
        return;
    const double *step = cuda_at<const double>(s.steps) + 2 * c.pairs[i].freq;
    const double *at = cuda_at<const double>(s.angles) + 2 * ((int64_t)c.pairs[i].freq * s.max_pages + page);
    double co = at[0], si = at[1];
    for (int j = 0; j < t0 + HALF; j++) {
        if (j >= t0) {
            w.turn[i][0][j - t0] = (float)co;
            w.turn[i][1][j - t0] = (float)si;
        }
        const double next = __dsub_rn(__dmul_rn(co, step[0]), __dmul_rn(si, step[1]));
        si = __dadd_rn(__dmul_rn(si, step[0]), __dmul_rn(co, step[1]));
        co = next;
    }
}

__device__ static void condition(const tern_cuda_side &s, const tern_cuda_cond &c, const work &w)
{
    const int t = threadIdx.x;
    for (int i = 0; t < HALF && i < c.n_pairs; i++) {
        const auto &p = c.pairs[i];
        float *x = w.x + t * (s.dim + 1);
        const float co = w.turn[i][0][t], si = w.turn[i][1][t];
        x[p.a] = __fsub_rn(x[p.a], __fsub_rn(__fmul_rn(p.re, co), __fmul_rn(p.im, si)));
        x[p.b] = __fsub_rn(x[p.b], __fadd_rn(__fmul_rn(p.re, si), __fmul_rn(p.im, co)));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < HALF * s.dim; i += THREADS) {
        float *x = w.x + i / s.dim * (s.dim + 1) + i % s.dim;
        const int d = i % s.dim;
        *x = __fmul_rn(__fsub_rn(*x, cuda_at<const float>(c.mean)[d]), cuda_at<const float>(c.scale)[d]);
    }
    __syncthreads();
}

/* ---- scales ---- */

__device__ static uint16_t head_near(float f)
{
    const uint32_t u = ((uint32_t)to_f16(f) + 4) >> 3 << 4;
    return (uint16_t)(u < 0xF7F0u ? u : 0xF7F0u);
}

__device__ static uint16_t head_up(float f)
{
    uint32_t u;
    if (f >= 65280.0f)
        return 0xF7F0;
    if (f >= 0x1.0p-14f) {
        u = ((__float_as_uint(f) + 0xFFFFu) >> 16) - (112u << 7);
    } else {
        const float g = __fmul_rn(f, 0x1.0p21f);
        u = (uint32_t)g;
        u += (float)u < g;
    }
    return (uint16_t)(u << 4);
}

/* The order of vec.h: 16 running sums, one in each of 16 lanes, then halves onto each other. */
__device__ static float add_lanes(float x)
{
    for (int width = 8; width; width /= 2)
        x = __fadd_rn(x, __shfl_down_sync(~0u, x, width, 16));
    return __shfl_sync(~0u, x, 0, 16);
}

__device__ static float energy(const float *y, int n, int lane)
{
    float sum = 0;
    for (int i = lane; i < n; i += 16)
        sum = __fmaf_rn(y[i], y[i], sum);
    return add_lanes(sum);
}

__device__ static bool is_empty(float ss)
{
    return !(ss >= TINY && ss < INFINITY);
}

/* ---- page order ---- */

/* Word `word` of a half: 16 lanes of word w of a set. */
__device__ static uint32_t pack_word(const tern_cuda_side &s, const uint8_t *codes, int word)
{
    const int bits = s.bits, dim = s.dim, pitch = codes_pitch(dim), line = word / 16, lane = word % 16, sets = dim / 32;
    const uint8_t *first;
    int step, second, w; /* from item to item; from item 0 to item 16 */
    if (!s.key) {
        first = codes + line / bits * 16 + lane;
        step = pitch;
        second = 16 * pitch;
        w = line % bits;
    } else if (line < sets * 2 * bits) {
        first = codes + (line / bits % 2 * 16 + lane) * pitch + line / (2 * bits) * 32;
        step = 1;
        second = 16;
        w = line % bits;
    } else {
        first = codes + lane * pitch + sets * 32;
        step = 1;
        second = 16 * pitch;
        w = line - sets * 2 * bits;
    }
    const int per = bits == 8 ? 4 : bits == 2 ? 16 : 8, width = bits == 3 ? 4 : bits;
    uint32_t out = 0;
    for (int k = 0; k < per; k++) {
        const int i = w * per + k;
        out |= (uint32_t)first[i / 16 * second + i % 16 * step] << width * k;
    }
    for (int k = 0; bits == 3 && k < 8; k++)
        out |= (uint32_t)(first[second + (8 + k) * step] >> w & 1) << (4 * k + 3);
    return out;
}

/* Bytes of a plane of group codes: `per` rows of `bits` bits, from bit `from` of a code on. */
__device__ static void pack_plane(const tern_cuda_side &s, uint8_t *data, const uint8_t *codes, int t0, int per,
                                  int bits, int from)
{
    const int lanes = s.key ? HALF : s.dim, rows = s.key ? s.dim : HALF, stride = s.key ? 64 : s.dim;
    for (int i = threadIdx.x; i < rows / per * lanes; i += THREADS) {
        const int lane = i % lanes, row = i / lanes * per;
        int out = 0;
        for (int k = 0; k < per; k++) {
            const int t = s.key ? lane : row + k, d = s.key ? row + k : lane;
            out |= (codes[t * codes_pitch(s.dim) + d] >> from & ((1 << bits) - 1)) << k * bits;
        }
        data[(s.key ? row / per : (t0 + row) / per) * stride + (s.key ? t0 : 0) + lane] = (uint8_t)out;
    }
}

__device__ static void pack(const tern_cuda_side &s, uint8_t *data, const uint8_t *codes, int t0)
{
    if (s.form == TERN_CUDA_CODES) {
        uint32_t *to = reinterpret_cast<uint32_t *>(data) + t0 / HALF * s.dim * s.bits;
        for (int i = threadIdx.x; i < s.dim * s.bits; i += THREADS)
            to[i] = pack_word(s, codes, i);
    } else if (s.bits == 3) {
        pack_plane(s, data, codes, t0, 4, 2, 0);
        pack_plane(s, data + s.dim * 16, codes, t0, 8, 1, 2);
    } else {
        pack_plane(s, data, codes, t0, 8 / s.bits, s.bits, 0);
    }
}

/* Which half of which page a block of threads has. */
struct half_page {
    const tern_cuda_side *side;
    const uint8_t *tile;
    uint8_t *data;
    uint16_t *head;
    int head_i, page, t0;
};

__device__ static inline half_page half_of_page(const tern_cuda_append_args &a)
{
    const tern_cuda_layer &l = a.l;
    const tern_cuda_unit unit = cuda_at<const tern_cuda_unit>(a.units)[blockIdx.x];
    const tern_cuda_job &j = cuda_at<const tern_cuda_job>(a.t.jobs)[unit.job];
    const int head = blockIdx.y;
    const bool key = blockIdx.z < 2;
    uint8_t *p = page_at(a.t, l, j, unit.page, head);
    const uint8_t *tile = unit_tile(a.tiles, l, a.stage, unit, head);
    return {key ? &l.k : &l.v,
            key ? tile : tile + l.tile_v_off,
            p + (key ? l.k_off : l.v_off),
            reinterpret_cast<uint16_t *>(p + (key ? l.k_head_off : l.v_head_off)),
            head,
            unit.page,
            (int)(blockIdx.z % 2) * HALF};
}

template <int DIM> __device__ static void make_vectors_of(const half_page &h, const work &w)
{
    const tern_cuda_side &s = *h.side;
    load_vectors<DIM>(s, w, h.tile, h.t0);
    const tern_cuda_cond *c = s.cond ? cuda_at<const tern_cuda_cond>(s.cond) + h.head_i : nullptr;
    if (c)
        turn_pairs(s, *c, w, h.page, h.t0);
    __syncthreads();
    if (c)
        condition(s, *c, w);
    if (s.rotated)
        rotate_vectors<DIM>(s, w);
    __syncthreads();
}

/* The vectors as they are encoded. */
__device__ static void make_vectors(const half_page &h, const work &w)
{
    if (h.side->dim == 128)
        make_vectors_of<128>(h, w);
    else if (h.side->dim == 64)
        make_vectors_of<64>(h, w);
    else
        make_vectors_of<0>(h, w);
}

#endif

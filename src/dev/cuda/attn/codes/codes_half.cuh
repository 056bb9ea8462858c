/* dev/cuda/attn/codes/codes_half.cuh - half a page of codes, and what a warp makes of it: scores, weights, sums of values.
 *
 * Products are exact integers: queries are 16-bit integers in two columns of 8 bits each, weights times the scales of values too.
 * Sums of floats are written with their rounding, for the compiler would contract them in one kernel and not in another. */
#ifndef TERN_DEV_CUDA_ATTN_CODES_HALF_CUH
#define TERN_DEV_CUDA_ATTN_CODES_HALF_CUH

#include "dev/cuda/attn/block.cuh"
#include "dev/cuda/attn/codes/codes.cuh"

#define WARPS (TERN_CUDA_CODES_THREADS / 32)
#define FULL    65000.0f /* most that a weight becomes */
#define ROOM    13.0f    /* log2 of what the largest weight becomes when the reference is set: rises are rare */
#define UNSET   -1e30f   /* a reference before the first token */

__device__ static inline float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline float log2_of(float x)
{
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The same number, which no compiler may have before it is asked for: what comes of it is not made for all pages. */
__device__ static inline int opaque(int x)
{
    int y;
    asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Keys: bytes are signed, or entries with an offset. */
template <int C> __device__ static inline void multiply_keys(int c[4], const octet &x, const octet &y, uint32_t b0, uint32_t b1)
{
    if (code_trellis(C))
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(x.lo), "r"(y.lo), "r"(x.hi), "r"(y.hi), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(x.lo), "r"(y.lo), "r"(x.hi), "r"(y.hi), "r"(b0), "r"(b1));
}

template <int C> __device__ static inline void multiply_values(int c[4], const octet &x, const octet &y, uint32_t b0, uint32_t b1)
{
    if (code_trellis(C))
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(x.lo), "r"(y.lo), "r"(x.hi), "r"(y.hi), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
            : "r"(x.lo), "r"(y.lo), "r"(x.hi), "r"(y.hi), "r"(b0), "r"(b1));
}

/* Four headers in two words: their scales.  Low bits are start states, or 0. */
template <int C> __device__ static inline void four_headers(float f[4], uint2 h)
{
    const uint32_t real = code_trellis(C) ? 0x7FF87FF8u : ~0u, a = h.x >> 1 & real, b = h.y >> 1 & real;
    const float2 x = __half22float2(*reinterpret_cast<const __half2 *>(&a)),
                 y = __half22float2(*reinterpret_cast<const __half2 *>(&b));
    f[0] = x.x;
    f[1] = x.y;
    f[2] = y.x;
    f[3] = y.y;
}

/* What cold functions read: in shared memory, so that the block's own copy can lie in registers. */
struct cold_rows {
    block_rows b;
    const float *heads; /* queries, where the block has finished them; else nullptr */
    float shift[8];
    float pairs[WARPS][8 * 16]; /* [row][16] what pairs add on the page in hand */
};

/* Tables of values, where keys have others. */
template <bool APART> struct value_tables {
    code_tables tab;
};
template <> struct value_tables<false> {};

template <int D, int C, int NT> struct worker {
    static constexpr int S = D / 32, ROWS = 4 * NT, BLOCKS = code_blocks<D>::N;
    const cold_rows *cold;
    code_tables tab; /* of keys */
    value_tables<keys_of(C) != values_of(C)> more;
    code_places places;
    spare_bits spare;
    uint32_t q[NT][S][2]; /* columns of the queries */
    float scale[NT], ref[NT], sum[NT]; /* of q row 4 i + t */
    int start[NT][BLOCKS];             /* what offsets of keys have added to a product */
    int sinks, oldest[NT];             /* first tokens, which are not coded; the oldest one that the row sees */
    uint32_t all[NT][BLOCKS];          /* sum of the weights */
    int o[NT][D / 16][4];
    int g, t;

    __device__ const code_tables &of_values() const
    {
        if constexpr (keys_of(C) != values_of(C))
            return more.tab;
        else
            return tab;
    }
};

/* Products of the queries with block k of a half's keys: c[i][r / 2][r % 2 * 2 ..], two columns of token 4g + r. */
template <int D, int C, int NT>
__device__ static inline void multiply_half(int c[NT][2][4], const worker<D, C, NT> &w, uint32_t at, int k, uint2 heads)
{
    constexpr int E = code_blocks<D>::DIMS, K = keys_of(C);
    const uint32_t start[4] = {heads.x & 15, heads.x >> 16 & 15, heads.y & 15, heads.y >> 16 & 15};
    key_words<E, K> kw;
    load_keys<E, K>(kw, at, w.places, w.t, start);
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            c[i][j][0] = c[i][j][2] = 0;
            c[i][j][1] = c[i][j][3] = w.start[i][k];
        }
#pragma unroll
    for (int s = 0; s < E / 32; s++) {
        octet x[4];
        key_octets<E, K>(x, w.tab, kw, at, w.places, s, w.t, start);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            const uint32_t *q = w.q[i][k * (E / 32) + s];
            multiply_keys<K>(c[i][0], x[0], x[1], q[0], q[1]);
            multiply_keys<K>(c[i][1], x[2], x[3], q[0], q[1]);
        }
    }
}

/* Scores of four tokens that are more than a product; first: the first one's place in the page.  Apart, as is `raised`, for
 * the loop through pages shall be short. */
__device__ static __noinline__ float4 finish_scores(float4 scores, const cold_rows *cold, int row, int page, int first)
{
    const block_rows &b = cold->b;
    float y[4] = {scores.x, scores.y, scores.z, scores.w};
    if (row >= b.n_q)
        return make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
    const int n_pairs = b.cond ? b.cond->n_pairs : 0;
    const float *pq = cold->pairs[threadIdx.x / 32] + row * 16;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        for (int j = 0; j < 2 * n_pairs; j++)
            y[r] = __fmaf_rn(pq[j], cuda_at<const float>(b.cond->turns)[j * 64 + first + r], y[r]);
        if (b.cond && b.a->cap > 0)
            y[r] = __fadd_rn(y[r], cold->shift[row]);
        y[r] = seen_score(b, y[r], row, first + r, page, page ? 0 : b.a->l.first, 64);
    }
    return make_float4(y[0], y[1], y[2], y[3]);
}

/* The reference of a row where a weight would be too large, NaN where none is; y: scores, f: scales, above 0.  Any number will
 * do for a reference, so logarithms may be coarse. */
__device__ static __noinline__ float raised(float4 y, float4 f, float top)
{
    float z = fmaxf(fmaxf(__fadd_rn(y.x, log2_of(f.x)), __fadd_rn(y.y, log2_of(f.y))),
                    fmaxf(__fadd_rn(y.z, log2_of(f.z)), __fadd_rn(y.w, log2_of(f.w))));
    for (int width = 4; width < 32; width *= 2) {
        top = fmaxf(top, __shfl_xor_sync(~0u, top, width));
        z = fmaxf(z, __shfl_xor_sync(~0u, z, width));
    }
    return top > FULL ? __fsub_rn(z, ROOM) : NAN;
}

/* References of rows rise where a weight would be too large; others stay as they are, to the bit.  They rise by a whole
 * number, so that what is summed moves down by as many bits. */
template <int D, int C, int NT> __device__ static inline void raise(worker<D, C, NT> &w, int i, float ref)
{
    const float old = w.ref[i];
    if (ref != ref)
        return;
    if (old == UNSET) {
        w.ref[i] = ref;
        return;
    }
    const float up = ceilf(fminf(fmaxf(__fsub_rn(ref, old), 0.0f), 1e9f));
    w.ref[i] = __fadd_rn(old, up);
    w.sum[i] = __fmul_rn(w.sum[i], exp2_of(-up));
#pragma unroll 1
    for (int left = (int)fminf(up, 69.0f); left > 0; left -= 23) { /* shifts of a word at a time */
        const int by = left < 23 ? left : 23, half = 1 << by >> 1;
#pragma unroll
        for (int k = 0; k < code_blocks<D>::N; k++)
            w.all[i][k] = (w.all[i][k] + half) >> by;
#pragma unroll
        for (int n = 0; n < D / 16; n++)
#pragma unroll
            for (int j = 0; j < 4; j += 2) {
                const int64_t x = (int64_t)w.o[i][n][j] * 256 + (w.o[i][n][j + 1] + half);
                w.o[i][n][j] = (int)(x >> (by + 8));
                w.o[i][n][j + 1] = (int)(x >> by) & 255;
            }
    }
}

/* Weights of lanes' tokens, n: 16 bits in each, become columns: two words of the lane's column, for its tokens of values. */
template <int C> __device__ static inline void make_columns(uint32_t p[2], const uint32_t n[4], int g, int t)
{
    const uint32_t x = byte_perm(n[0], n[1], 0x5140), z = byte_perm(n[2], n[3], 0x5140);
    const uint32_t lower = byte_perm(x, z, 0x5410), upper = byte_perm(x, z, 0x7632);
    const int from = g >> 1; /* the row whose weights column g has; upper bytes in even columns */
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int lane = (code_bits(C) == 2 ? 4 * (t >> 1) + 2 * h : 2 * t + h) * 4 + from;
        const uint32_t u = __shfl_sync(~0u, upper, lane), l = __shfl_sync(~0u, lower, lane);
        p[h] = g & 1 ? l : u;
        if (code_bits(C) == 2) { /* of sixteen tokens every second */
            const uint32_t u1 = __shfl_sync(~0u, upper, lane + 4), l1 = __shfl_sync(~0u, lower, lane + 4);
            p[h] = byte_perm(p[h], g & 1 ? l1 : u1, t & 1 ? 0x7531 : 0x6420);
        }
    }
}

/* How scores of a page differ from products: not at all, in what is seen of it, or in all that finish_scores does. */
enum page_scores { PLAIN, SOME, COLD };

/* Products of a half: scores of q row i's four tokens, and the scales of values, of each block. */
template <int D, int C, int NT>
__device__ static inline void score_half(float y[NT][4], float vf[code_blocks<D>::N][4], const worker<D, C, NT> &w, uint32_t at)
{
    using stage = code_stage<code_blocks<D>::DIMS, C>;
#pragma unroll
    for (int k = 0; k < code_blocks<D>::N; k++, at += stage::BYTES) {
        int c[NT][2][4];
        float kf[4];
        const uint2 kh = load_pair(at + 8 * w.g), vh = load_pair(at + 64 + 8 * w.g);
        multiply_half<D, C, NT>(c, w, at, k, kh);
        four_headers<keys_of(C)>(kf, kh);
        four_headers<values_of(C)>(vf[k], vh);
#pragma unroll
        for (int i = 0; i < NT; i++)
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const float x = (float)(c[i][r / 2][r % 2 * 2] * 256 + c[i][r / 2][r % 2 * 2 + 1]), by = __fmul_rn(kf[r], w.scale[i]);
                y[i][r] = k ? __fmaf_rn(x, by, y[i][r]) : __fmul_rn(x, by);
            }
    }
}

/* Weights of a half's tokens times the scales of values, in columns. */
template <int D, int C, int NT>
__device__ static inline void weigh_half(uint32_t p[code_blocks<D>::N][NT][2], worker<D, C, NT> &w, uint32_t at, int page, int first,
                                         page_scores how)
{
    constexpr int BLOCKS = code_blocks<D>::N;
    float y[NT][4], vf[BLOCKS][4], above[4];
    score_half<D, C, NT>(y, vf, w, at);
#pragma unroll
    for (int r = 0; r < 4; r++)
        above[r] = __fadd_rn(BLOCKS > 1 ? fmaxf(vf[0][r], vf[BLOCKS - 1][r]) : vf[0][r], 0x1p-21f);
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float e[4], top = 0;
        if (how == SOME) {
            const int lo = max(page ? 0 : w.sinks, opaque(w.oldest[i]) - 64 * page) - first - 4 * w.g;
#pragma unroll
            for (int r = 0; r < 4; r++)
                y[i][r] = r < lo ? -INFINITY : y[i][r];
        } else if (how == COLD) {
            const float4 s = finish_scores(make_float4(y[i][0], y[i][1], y[i][2], y[i][3]), w.cold, 4 * i + w.t, page,
                                           first + 4 * w.g);
            y[i][0] = s.x;
            y[i][1] = s.y;
            y[i][2] = s.z;
            y[i][3] = s.w;
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            e[r] = exp2_of(__fsub_rn(y[i][r], w.ref[i]));
            top = fmaxf(top, __fmul_rn(e[r], above[r]));
        }
        if (__any_sync(~0u, top > FULL)) {
            raise(w, i, raised(make_float4(y[i][0], y[i][1], y[i][2], y[i][3]), make_float4(above[0], above[1], above[2], above[3]), top));
#pragma unroll
            for (int r = 0; r < 4; r++)
                e[r] = exp2_of(__fsub_rn(y[i][r], w.ref[i]));
        }
        w.sum[i] = __fadd_rn(w.sum[i], __fadd_rn(__fadd_rn(e[0], e[1]), __fadd_rn(e[2], e[3])));
#pragma unroll
        for (int k = 0; k < BLOCKS; k++) {
            uint32_t n[4];
#pragma unroll
            for (int r = 0; r < 4; r++)
                n[r] = __float_as_uint(__fmaf_rn(e[r], vf[k][r], 8388608.0f)); /* the integer in its low bits */
            if (code_trellis(values_of(C)))
                w.all[i][k] += (n[0] + n[1]) + (n[2] + n[3]) - 4 * 0x4B000000u;
            make_columns<values_of(C)>(p[k][i], n, w.g, w.t);
        }
    }
}

template <int D, int C, int NT>
__device__ static inline void add_values(worker<D, C, NT> &w, int n, const octet &x, const octet &y, const uint32_t p[NT][2])
{
#pragma unroll
    for (int i = 0; i < NT; i++)
        multiply_values<values_of(C)>(w.o[i][n], x, y, p[i][0], p[i][1]);
}

/* A block of a half's values, from sum `first` on. */
template <int D, int C, int NT>
__device__ static inline void add_block(worker<D, C, NT> &w, int first, uint32_t at, const uint32_t p[NT][2])
{
    constexpr int E = code_blocks<D>::DIMS, V = values_of(C);
    if constexpr (V == CODES_T3 || V == CODES_T2) {
        value_chain<E> chain;
        load_chain<E, V>(chain, at, w.places, w.spare, w.g, w.t);
#pragma unroll
        for (int j = 0; j < E / 64; j++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                add_values<D, C, NT>(w, first + 4 * j + n, chain_octet<E, V>(w.of_values(), chain, 2 * j, n),
                                     chain_octet<E, V>(w.of_values(), chain, 2 * j + 1, n), p);
    } else {
#pragma unroll
        for (int j = 0; j < E / 64; j++) {
            value_words<V> a, b;
            load_values<E, V>(a, at, w.places, 2 * j, w.g, w.t);
            load_values<E, V>(b, at, w.places, 2 * j + 1, w.g, w.t);
#pragma unroll
            for (int n = 0; n < 4; n++)
                add_values<D, C, NT>(w, first + 4 * j + n, value_octet<V>(w.of_values(), a, w.spare, n, w.t),
                                     value_octet<V>(w.of_values(), b, w.spare, n, w.t), p);
        }
    }
}

/* Half a page, which lies at `at`. */
template <int D, int C, int NT>
__device__ static inline void take_half(worker<D, C, NT> &w, uint32_t at, int page, int first, page_scores how)
{
    using blocks = code_blocks<D>;
    uint32_t p[blocks::N][NT][2];
    weigh_half<D, C, NT>(p, w, at, page, first, how);
#pragma unroll
    for (int k = 0; k < blocks::N; k++)
        add_block<D, C, NT>(w, k * (blocks::DIMS / 16), at + k * code_stage<blocks::DIMS, C>::BYTES, p[k]);
}

#endif

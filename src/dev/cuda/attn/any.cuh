/* dev/cuda/attn/any.cuh - what a block of threads of attn/any.cu has in shared memory, and the products and the softmax of a page.
 *
 * Tokens, then dims, are the 16 rows of a product, and q rows its 8 columns, NT times.  Sums of floats are written with their
 * rounding: a q row's bits do not depend on NT. */
#ifndef TERN_DEV_CUDA_ATTN_ANY_CUH
#define TERN_DEV_CUDA_ATTN_ANY_CUH

#include "dev/cuda/attn/block.cuh"
#include "dev/cuda/attn/decode.cuh"
#include "dev/cuda/attn/matrix.cuh"

#define S_ROW 68 /* scores of 64 tokens, and weights of them: lanes meet no bank twice */
#define P_ROW 72

/* A kernel: warps of a block, eight q rows T times, blocks of 128 values; H: keys are halves beside values of codes.  A warp has
 * 16 tokens and, of eight warps, half of the dims for the scores; then the softmax of OWN q rows, warp + WARPS n; then TILES
 * times 16 of each 128 dims. */
template <int W, int T, int V, bool H = false> struct any_kind {
    static constexpr bool HALF_KEYS = H;
    static constexpr int WARPS = W, THREADS = 32 * W, NT = T, ROWS = 8 * T, OWN = ROWS / W, BLOCKS = V, TILES = 8 / W;
    static constexpr int LINE = TERN_CUDA_ANY_LINE(W); /* bytes: both halves of the scores, then a block's weights each */
    static_assert((W == 8 ? 2 : 1) * S_ROW * 4 <= LINE && V * P_ROW * 2 <= LINE, "");
};

/* Numbers of a page lie in a place, of latents values and then keys, else one side after the other.  By dim, they are rows of
 * 64 tokens, whose pieces change places (piece_at); by token, rows of all dims and 16 bytes more. */
template <class K> struct any_room {
    uint8_t *places, *staged; /* of halves a.stages places; or one, and a.stages pages of codes */
    uint8_t *lines;           /* [ROWS][LINE]: a q row's scores, [half of the dims][S_ROW]; then weights, [block of values][P_ROW] */
    float *shrink;            /* [ROWS] */
    float *k_scale, *v_scale; /* of a page's codes: [block of 128 dims][64], of values in parts of their largest */
    float *top;               /* the largest of each block of values */
    tables *tab;              /* of keys, of values */
    __half *q;                /* [ROWS][q_row] */
    int q_row, k_blocks, v_blocks;

    __device__ any_room(uint8_t *shared, const tern_cuda_attn_args &a, bool coded)
        : places(shared), q_row(a.l.k.dim + (a.l.latent ? a.l.v.dim : 0) + 8), k_blocks((a.l.k.dim + 127) / 128),
          v_blocks((a.l.v.dim + 127) / 128)
    {
        staged = places + (coded ? 1 : a.stages) * TERN_CUDA_ANY_PLACE(&a.l);
        lines = staged + (coded ? a.stages * a.l.head_bytes : 0);
        shrink = reinterpret_cast<float *>(lines + K::ROWS * K::LINE);
        k_scale = shrink + K::ROWS;
        v_scale = k_scale + k_blocks * 64;
        top = v_scale + v_blocks * 64;
        tab = reinterpret_cast<tables *>(top + 4);
        q = reinterpret_cast<__half *>(tab + 2);
        static_assert(sizeof *tab == TERN_CUDA_ANY_TABLES, "the host makes room");
    }
};

/* The softmax of the warp's rows, l of the lane's tokens; what the mean of conditioned keys adds to scores.  Sums of dims 128 j +
 * 16 (warp + WARPS i) + g and those eight further, of q rows 8 n + 2 t and + 1. */
template <class K> struct any_rows {
    float m[K::OWN], l[K::OWN], shift[K::OWN], o[K::BLOCKS][K::TILES][K::NT][4];
    int seen; /* the oldest position that all rows see */
};

/* ---- operands ---- */

/* Where a lane reads the first 16 numbers of 16 rows of a product out of a side's numbers at `at`: rows are tokens, or dims, from
 * `first` on. */
template <bool BY_DIM> __device__ static inline uint32_t tokens_at(uint32_t at, int row, int first)
{
    const int lane = threadIdx.x % 32;
    if (BY_DIM)
        return at + piece_at(turned_row(), first / 8 + turned_piece());
    return at + (first + lane % 16) * row + lane / 16 * 16;
}

template <bool BY_DIM> __device__ static inline uint32_t dims_at(uint32_t at, int row, int first)
{
    const int lane = threadIdx.x % 32;
    if (BY_DIM)
        return at + first * 128 + piece_at(lane % 16, lane / 16);
    return at + turned_row() * row + (first / 8 + turned_piece()) * 16;
}

template <bool TURNED> __device__ static inline void load_rows(uint32_t a[4], uint32_t at)
{
    if (TURNED)
        load4_turned(a, at);
    else
        load4(a, at);
}

/* 16 numbers of each q row, from `from` on in the first; rows lie `row` apart. */
template <int NT> __device__ static inline void load_columns(uint32_t b[NT][2], const __half *from, int row)
{
    const int lane = threadIdx.x % 32;
    if constexpr (NT == 2) {
        uint32_t r[4];
        load4(r, from + (lane / 16 * 8 + lane % 8) * row + lane / 8 % 2 * 8);
        b[0][0] = r[0];
        b[0][1] = r[1];
        b[1][0] = r[2];
        b[1][1] = r[3];
    } else {
        const __half *at = from + lane / 4 * row + lane % 4 * 2;
        b[0][0] = *reinterpret_cast<const uint32_t *>(at);
        b[0][1] = *reinterpret_cast<const uint32_t *>(at + 8);
    }
}

/* ---- scores ---- */

/* s += the warp's share of up to 128 dims; at: tokens_at; q: of the first.  s[n][i]: token 16 (warp % 4) + g + 8 (i / 2), q row 8 n +
 * 2 t + i % 2. */
template <class K, bool BY_DIM>
__device__ static inline void add_scores(float s[K::NT][4], uint32_t at, const __half *q, int q_row, int dims)
{
    const int steps = dims / 16, each = (steps + 1) / 2;
    const bool second = K::WARPS == 8 && threadIdx.x >= 128;
    const int begin = second ? each : 0, end = K::WARPS == 8 && !second ? each : steps;
#pragma unroll 4
    for (int k = begin; k < end; k++) {
        uint32_t a[4], b[K::NT][2];
        load_rows<BY_DIM>(a, at + k * (BY_DIM ? 2048 : 32));
        load_columns<K::NT>(b, q + 16 * k, q_row);
#pragma unroll
        for (int n = 0; n < K::NT; n++)
            multiply(s[n], a, b[n][0], b[n][1]);
    }
}

/* A side of a page, of `dim` dims in blocks of 128; q: of the first; scale: of tokens of codes, times: each block's, or nullptr. */
template <class K, bool CODED, bool BY_DIM>
__device__ static inline void score_side(float s[K::NT][4], uint32_t at, const __half *q, int q_row, int dim, const float *scale,
                                         const float *times)
{
    const int first = threadIdx.x / 32 % 4 * 16;
    at = tokens_at<BY_DIM>(at, TERN_CUDA_ANY_TOKEN(dim), first);
    if constexpr (!CODED) {
        add_scores<K, BY_DIM>(s, at, q, q_row, dim);
    } else {
#pragma unroll 1
        for (int d = 0; d < dim; d += 128) {
            const int token = first + threadIdx.x % 32 / 4;
            float c[K::NT][4] = {};
            const float all = times ? times[d / 128] : 1;
            const float by[2] = {__fmul_rn(scale[d / 2 + token], all), __fmul_rn(scale[d / 2 + token + 8], all)};
            add_scores<K, BY_DIM>(c, at + d * (BY_DIM ? 128 : 2), q + d, q_row, min(dim - d, 128));
#pragma unroll
            for (int i = 0; i < 4 * K::NT; i++)
                s[i / 4][i % 4] = __fmaf_rn(c[i / 4][i % 4], by[i / 2 % 2], s[i / 4][i % 4]);
        }
    }
}

/* Of the page at `at`; CODED: whose numbers lie as those of codes do, keys by token (halves by dim) and values by dim. */
template <class K, bool CODED> __device__ static inline void score_page(const block_rows &b, const any_room<K> &r, uint32_t at)
{
    const tern_cuda_layer &l = b.a->l;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float s[K::NT][4] = {};
    if (l.latent)
        score_side<K, CODED, CODED>(s, at, r.q, r.q_row, l.v.dim, r.v_scale, r.top);
    score_side<K, CODED, !CODED || K::HALF_KEYS>(s, at + (l.latent ? TERN_CUDA_ANY_SIDE(l.v.dim) : 0),
                                                 r.q + (l.latent ? l.v.dim : 0), r.q_row, l.k.dim, r.k_scale, nullptr);
    float *to = reinterpret_cast<float *>(r.lines + 2 * t * K::LINE) + warp / 4 * S_ROW + warp % 4 * 16 + g;
#pragma unroll
    for (int n = 0; n < K::NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[(8 * n + i % 2) * (K::LINE / 4) + i / 2 * 8] = s[n][i];
}

/* ---- weights ---- */

/* What pairs of conditioned keys add to the scores of a lane's tokens, lane and lane + 32. */
__device__ static inline float2 add_pairs(float2 x, const block_rows &b, int row, int page)
{
    const tern_cuda_cond &c = *b.cond;
    const float *turns = cuda_at<const float>(c.turns);
    const int lane = threadIdx.x % 32;
    float2 own = make_float2(0, 0);
    if (lane < c.n_pairs)
        own = pair_factors(b, query_of(b, row, b.a->l.k.dim), lane, page);
    for (int i = 0; i < c.n_pairs; i++) {
        const float along = __shfl_sync(~0u, own.x, i), across = __shfl_sync(~0u, own.y, i), *turn = turns + 128 * i + lane;
        x.x = __fmaf_rn(across, turn[64], __fmaf_rn(along, turn[0], x.x));
        x.y = __fmaf_rn(across, turn[96], __fmaf_rn(along, turn[32], x.y));
    }
    return x;
}

/* Scores of tokens [lo, hi) of a page become weights, of codes for each block of values times the tokens' scales; by what sums
 * will shrink. */
template <class K, bool CODED>
__device__ static inline void soften(const block_rows &b, const any_room<K> &r, any_rows<K> &st, int page, int lo, int hi)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool whole = lo == 0 && hi == 64 && page != b.own && st.seen <= page * 64 && b.a->cap <= 0;
#pragma unroll
    for (int n = 0; n < K::OWN; n++) {
        const int row = warp + K::WARPS * n;
        const float *s = reinterpret_cast<const float *>(r.lines + row * K::LINE) + lane;
        if (row >= b.n_q)
            break;
        float2 x = make_float2(s[0], s[32]);
        if (K::WARPS == 8)
            x = make_float2(__fadd_rn(x.x, s[S_ROW]), __fadd_rn(x.y, s[S_ROW + 32]));
        if (CODED && b.cond) {
            x = add_pairs(x, b, row, page);
            if (b.a->cap > 0)
                x = make_float2(__fadd_rn(x.x, st.shift[n]), __fadd_rn(x.y, st.shift[n]));
        }
        __syncwarp(); /* weights take the scores' place */
        if (!whole) {
            x.x = seen_score(b, x.x, row, lane, page, lo, hi);
            x.y = seen_score(b, x.y, row, lane + 32, page, lo, hi);
        }
        float most = fmaxf(x.x, x.y);
#pragma unroll
        for (int width = 16; width; width /= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, width));
        most = fmaxf(most, st.m[n]);
        const float from = most == -INFINITY ? 0 : most, shrink = st.m[n] == most ? 1.0f : power(__fsub_rn(st.m[n], from));
        x.x = power(__fsub_rn(x.x, from));
        x.y = power(__fsub_rn(x.y, from));
        st.l[n] = __fmaf_rn(st.l[n], shrink, __fadd_rn(x.x, x.y));
        st.m[n] = most;
        if (lane == 0)
            r.shrink[row] = shrink;
#pragma unroll
        for (int j = 0; j < (CODED ? K::BLOCKS : 1); j++) {
            __half *to = reinterpret_cast<__half *>(r.lines + row * K::LINE) + j * P_ROW + lane;
            if (j && j >= r.v_blocks)
                break;
            to[0] = __float2half_rn(CODED ? __fmul_rn(x.x, r.v_scale[64 * j + lane]) : x.x);
            to[32] = __float2half_rn(CODED ? __fmul_rn(x.y, r.v_scale[64 * j + lane + 32]) : x.y);
        }
    }
}

/* ---- sums ---- */

/* Values, which lie from `at` on. */
template <class K, bool CODED>
__device__ static inline void add_values(const block_rows &b, const any_room<K> &r, any_rows<K> &st, uint32_t at)
{
    const int warp = threadIdx.x / 32, t = threadIdx.x % 4, dim = b.a->l.v.dim;
#pragma unroll
    for (int n = 0; n < K::NT; n++) {
        const float2 shrink = *reinterpret_cast<const float2 *>(r.shrink + 8 * n + 2 * t);
#pragma unroll
        for (int i = 0; i < K::BLOCKS * K::TILES * 4; i++) {
            float &o = st.o[i / 4 / K::TILES][i / 4 % K::TILES][n][i % 4];
            o = __fmul_rn(o, i % 2 ? shrink.y : shrink.x);
        }
    }
    const int row = TERN_CUDA_ANY_TOKEN(dim);
    const __half *weights = reinterpret_cast<const __half *>(r.lines);
    at = dims_at<CODED>(at, row, 16 * warp);
#pragma unroll
    for (int j = 0; j < K::BLOCKS; j++) {
        float c[K::TILES][K::NT][4] = {};
        if (128 * j + 16 * warp >= dim)
            break;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            uint32_t p[K::NT][2];
            load_columns<K::NT>(p, weights + (CODED ? j * P_ROW : 0) + 16 * k, K::LINE / 2);
#pragma unroll
            for (int i = 0; i < K::TILES; i++) {
                const int on = 128 * j + 16 * K::WARPS * i; /* dims further */
                uint32_t x[4];
                if (i && on + 16 * warp >= dim)
                    break;
                load_rows<!CODED>(x, CODED ? (at ^ 32 * k) + on * 128 : at + k * 16 * row + on * 2);
#pragma unroll
                for (int n = 0; n < K::NT; n++)
                    multiply(CODED ? c[i][n] : st.o[j][i][n], x, p[n][0], p[n][1]);
            }
        }
#pragma unroll
        for (int i = 0; CODED && i < K::TILES * K::NT * 4; i++) {
            float &o = st.o[j][i / 4 / K::NT][i / 4 % K::NT][i % 4];
            o = __fmaf_rn(c[i / 4 / K::NT][i / 4 % K::NT][i % 4], r.top[j], o);
        }
    }
}

#endif

/* Attention of decode rows on closed pages of codes: integer tensor cores on the codes as they lie.
 *
 * A block of threads takes some of a row's ranges of pages that follow each other, or what is raw, or both.  A warp takes
 * whole pages, those whose number is its own modulo WARPS, half a page at a time: one half of shared memory for the first
 * halves and one for the second, and where one has been read the next page's is on its way, through all ranges of the
 * block.  In each range it has its own softmax; warps are put together in order.  Queries become 16-bit integers, in two
 * columns of 8 bits each; weights times the scales of values too.  Products are exact integers, so what rounds is the
 * query, once, and a weight, to a 2^-16th of the largest.
 *
 * A q row goes through the same steps whatever else is in its block: columns do not meet.  Sums of floats are written
 * with their rounding, for the compiler would contract them in one of these kernels and not in another.
 *
 * In steps of few rows the kernel before has left heads as products (codes_own): the block does to them what is done to heads,
 * and what append would have done. */
#include "dev/cuda/attn/codes.cuh"
#include "dev/cuda/attn/columns.cuh"
#include "dev/cuda/attn/heads.cuh"
#include "dev/cuda/attn/raw.cuh"
#include "dev/cuda/attn/items.cuh"

#define THREADS TERN_CUDA_CODES_THREADS
#define WARPS   (THREADS / 32)
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

template <int D, int C, int NT> struct worker {
    static constexpr int S = D / 32, ROWS = 4 * NT;
    const cold_rows *cold;
    code_tables tab; /* of keys and values */
    code_places places;
    spare_bits spare;
    uint32_t q[NT][S][2]; /* columns of the queries */
    float scale[NT], ref[NT], sum[NT]; /* of q row 4 i + t */
    int start[NT];                     /* what offsets of keys have added to a product */
    int sinks, oldest[NT];             /* first tokens, which are not coded; the oldest one that the row sees */
    uint32_t all[NT];                  /* sum of the weights */
    int o[NT][D / 16][4];
    int g, t;
};

/* Products of the queries with a half's keys: c[i][r / 2][r % 2 * 2 ..], two columns of token 4g + r. */
template <int D, int C, int NT>
__device__ static inline void multiply_half(int c[NT][2][4], const worker<D, C, NT> &w, uint32_t at, uint2 heads)
{
    const uint32_t start[4] = {heads.x & 15, heads.x >> 16 & 15, heads.y & 15, heads.y >> 16 & 15};
    key_words<D, C> kw;
    load_keys<D, C>(kw, at, w.places, w.t, start);
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            c[i][j][0] = c[i][j][2] = 0;
            c[i][j][1] = c[i][j][3] = w.start[i];
        }
#pragma unroll
    for (int s = 0; s < D / 32; s++) {
        octet x[4];
        key_octets<D, C>(x, w.tab, kw, at, w.places, s, w.t, start);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            multiply_keys<C>(c[i][0], x[0], x[1], w.q[i][s][0], w.q[i][s][1]);
            multiply_keys<C>(c[i][1], x[2], x[3], w.q[i][s][0], w.q[i][s][1]);
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
        w.all[i] = (w.all[i] + half) >> by;
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

/* Weights of a half's tokens times the scales of values, in columns. */
template <int D, int C, int NT>
__device__ static inline void weigh_half(uint32_t p[NT][2], worker<D, C, NT> &w, uint32_t at, int page, int first, page_scores how)
{
    int c[NT][2][4];
    float kf[4], vf[4], above[4];
    const uint2 kh = load_pair(at + 8 * w.g), vh = load_pair(at + 64 + 8 * w.g);
    multiply_half<D, C, NT>(c, w, at, kh);
    four_headers<C>(kf, kh);
    four_headers<C>(vf, vh);
#pragma unroll
    for (int r = 0; r < 4; r++)
        above[r] = __fadd_rn(vf[r], 0x1p-21f);
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float y[4], e[4], top = 0;
#pragma unroll
        for (int r = 0; r < 4; r++)
            y[r] = __fmul_rn((float)(c[i][r / 2][r % 2 * 2] * 256 + c[i][r / 2][r % 2 * 2 + 1]),
                             __fmul_rn(kf[r], w.scale[i]));
        if (how == SOME) {
            const int lo = max(page ? 0 : w.sinks, opaque(w.oldest[i]) - 64 * page) - first - 4 * w.g;
#pragma unroll
            for (int r = 0; r < 4; r++)
                y[r] = r < lo ? -INFINITY : y[r];
        } else if (how == COLD) {
            const float4 s = finish_scores(make_float4(y[0], y[1], y[2], y[3]), w.cold, 4 * i + w.t, page, first + 4 * w.g);
            y[0] = s.x;
            y[1] = s.y;
            y[2] = s.z;
            y[3] = s.w;
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            e[r] = exp2_of(__fsub_rn(y[r], w.ref[i]));
            top = fmaxf(top, __fmul_rn(e[r], above[r]));
        }
        if (__any_sync(~0u, top > FULL)) {
            raise(w, i, raised(make_float4(y[0], y[1], y[2], y[3]), make_float4(above[0], above[1], above[2], above[3]), top));
#pragma unroll
            for (int r = 0; r < 4; r++)
                e[r] = exp2_of(__fsub_rn(y[r], w.ref[i]));
        }
        w.sum[i] = __fadd_rn(w.sum[i], __fadd_rn(__fadd_rn(e[0], e[1]), __fadd_rn(e[2], e[3])));
        uint32_t n[4];
#pragma unroll
        for (int r = 0; r < 4; r++)
            n[r] = __float_as_uint(__fmaf_rn(e[r], vf[r], 8388608.0f)); /* the integer in its low bits */
        if (code_trellis(C))
            w.all[i] += (n[0] + n[1]) + (n[2] + n[3]) - 4 * 0x4B000000u;
        make_columns<C>(p[i], n, w.g, w.t);
    }
}

template <int D, int C, int NT>
__device__ static inline void add_values(worker<D, C, NT> &w, int n, const octet &x, const octet &y, const uint32_t p[NT][2])
{
#pragma unroll
    for (int i = 0; i < NT; i++)
        multiply_values<C>(w.o[i][n], x, y, p[i][0], p[i][1]);
}

/* Half a page, which lies at `at`. */
template <int D, int C, int NT>
__device__ static inline void take_half(worker<D, C, NT> &w, uint32_t at, int page, int first, page_scores how)
{
    uint32_t p[NT][2];
    weigh_half<D, C, NT>(p, w, at, page, first, how);
    if constexpr (C == CODES_T3 || C == CODES_T2) {
        value_chain<D> chain;
        load_chain<D, C>(chain, at, w.places, w.spare, w.g, w.t);
#pragma unroll
        for (int j = 0; j < D / 64; j++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                add_values<D, C, NT>(w, 4 * j + n, chain_octet<D, C>(w.tab, chain, 2 * j, n),
                                     chain_octet<D, C>(w.tab, chain, 2 * j + 1, n), p);
    } else {
#pragma unroll
        for (int j = 0; j < D / 64; j++) {
            value_words<C> a, b;
            load_values<D, C>(a, at, w.places, 2 * j, w.g, w.t);
            load_values<D, C>(b, at, w.places, 2 * j + 1, w.g, w.t);
#pragma unroll
            for (int n = 0; n < 4; n++)
                add_values<D, C, NT>(w, 4 * j + n, value_octet<C>(w.tab, a, w.spare, n, w.t),
                                     value_octet<C>(w.tab, b, w.spare, n, w.t), p);
        }
    }
}

/* Queries of the block: where the kernel before has left them, or made here, in `own`.  All threads call, and meet. */
template <int D, int ROWS> struct block_queries {
    const block_rows &b;
    const query_columns<D> *own;

    /* there: in `made` and `shift` they are already. */
    __device__ block_queries(const block_rows &rows, query_columns<D> *made, float *shift, bool there) : b(rows), own(made)
    {
        if (there)
            return;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        float sign[D / 32];
        if (b.a->columns) {
            if (threadIdx.x < ROWS)
                shift[threadIdx.x] = row(threadIdx.x).shift;
            return;
        }
        load_signs<D / 32>(sign, b.a->l.k, lane);
        for (int i = warp; i < ROWS; i += WARPS) {
            put_columns<D>(made[i], i < b.n_q ? query_of(b, i, D) : nullptr, b.a->q_scale, b.a->l.k, b.cond, sign, lane);
            if (lane == 0)
                shift[i] = made[i].shift;
        }
    }
    /* Of q row i; rows that are not there are like the last one. */
    __device__ const query_columns<D> &row(int i) const
    {
        if (!b.a->columns)
            return own[i];
        const int at = min(i, b.n_q - 1);
        return cuda_at<const query_columns<D>>(b.a->columns)[(b.row0 + row_of(b, at)) * b.a->n_heads + head_of(b, at)];
    }
};

/* The warp's result of a range into its place of the room: [warp][row] D + 8 sums, so that lanes meet no bank twice, then
 * references and sums of weights. */
template <int D, int C, int NT> __device__ static inline void put_down(const worker<D, C, NT> &w, float *room, bool real)
{
    constexpr int ROWS = 4 * NT, STEP = D + 8;
    float *ref = room + WARPS * ROWS * STEP, *sum = ref + WARPS * ROWS;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const int row = threadIdx.x / 32 * ROWS + 4 * i + w.t;
        float all = w.sum[i], offset = code_trellis(C) ? (float)w.all[i] : 0.0f;
        for (int width = 4; width < 32; width *= 2) {
            all = __fadd_rn(all, __shfl_xor_sync(~0u, all, width));
            if (code_trellis(C))
                offset = __fadd_rn(offset, __shfl_xor_sync(~0u, offset, width));
        }
        offset = code_trellis(C) ? __fmul_rn(offset, -(float)w.tab.offset) : 0.0f;
        if (real && w.g == 0) {
            ref[row] = w.ref[i];
            sum[row] = all;
        }
#pragma unroll
        for (int n = 0; n < D / 16; n += 4)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float x[4];
#pragma unroll
                for (int j = 0; j < 4; j++)
                    x[j] = __fadd_rn(__fmaf_rn((float)w.o[i][n + j][2 * h], 256.0f, (float)w.o[i][n + j][2 * h + 1]), offset);
                float *to = room + row * STEP + (n / 2 + h) * 32 + 4 * w.g;
                if (real)
                    *reinterpret_cast<float4 *>(to) = make_float4(x[0], x[1], x[2], x[3]);
            }
    }
}

/* What warps have put down, put together in order, into the range's place. */
template <int D, int ROWS> __device__ static inline void put_together(const block_rows &b, const float *room, int range)
{
    constexpr int STEP = D + 8;
    const float *ref = room + WARPS * ROWS * STEP, *sum = ref + WARPS * ROWS, unit = b.a->l.v.unit;
    for (int e = threadIdx.x; e < b.n_q * (D / 4); e += THREADS) { /* four dims each */
        const int row = e / (D / 4), d = e % (D / 4) * 4;
        float most = ref[row], x[4] = {}, all = 0;
#pragma unroll
        for (int i = 1; i < WARPS; i++)
            most = fmaxf(most, ref[i * ROWS + row]);
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float by = exp2_of(__fsub_rn(ref[i * ROWS + row], most));
            const float4 v = *reinterpret_cast<const float4 *>(room + (i * ROWS + row) * STEP + d);
            x[0] = __fmaf_rn(by, v.x, x[0]);
            x[1] = __fmaf_rn(by, v.y, x[1]);
            x[2] = __fmaf_rn(by, v.z, x[2]);
            x[3] = __fmaf_rn(by, v.w, x[3]);
            all = __fmaf_rn(by, sum[i * ROWS + row], all);
        }
        float *part = part_at(b, row, range % TERN_CUDA_RANGES);
#pragma unroll
        for (int j = 0; j < 4; j += 2) /* parts are D + 2 apart */
            *reinterpret_cast<float2 *>(part + d + j) = make_float2(__fmul_rn(x[j], unit), __fmul_rn(x[j + 1], unit));
        if (d == 0) {
            part[D] = most;
            part[D + 1] = all;
        }
    }
}

/* A warp's pages on their way: those from `first` on whose number is the warp's. */
struct code_pages {
    code_source from;
    const uint32_t *numbers; /* by page */
    uint32_t at, mine;       /* the warp's two halves; the block of the lane-th page from `first` on */
    int first, end;
    uint64_t once;
};

/* Blocks of the warp's next 32 pages: waiting for each when its turn comes would cost more. */
__device__ static inline void look_up(code_pages &p, int first, int lane)
{
    p.first = first;
    p.mine = first + lane * WARPS < p.end ? p.numbers[first + lane * WARPS] : 0;
}

/* One half of a page, or nothing behind the last. */
template <int D, int C> __device__ static inline void fetch_half(const code_pages &p, int page, int half, int lane)
{
    const uint32_t number = __shfl_sync(~0u, p.mine, (uint32_t)(page - p.first) / WARPS % 32);
    if (page < p.end)
        fetch_codes<D, C>(p.at + half * code_stage<D, C>::BYTES, p.from, number, half, lane, p.once);
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Where the warp's pages lie. */
__device__ static inline void find_pages(code_pages &p, const block_rows &b, int page, int end, int lane)
{
    const tern_cuda_attn_args &a = *b.a;
    const tern_cuda_table &table = cuda_at<const tern_cuda_table>(a.t.tables)[b.table0 + a.l.group];
    const tern_cuda_cache &cache = cuda_at<const tern_cuda_cache>(a.t.caches)[b.cache];
    const tern_cuda_blocks &pool = cuda_at<const tern_cuda_blocks>(a.t.pools)[cache.pages + a.l.group];
    p.numbers = cuda_at<const uint32_t>(a.t.numbers) + table.blocks - table.first;
    p.from = source_of(pool, a.l, b.kv_head, lane);
    p.end = end;
    p.once = cuda_once();
    look_up(p, page, lane);
}

/* Both halves of the first page. */
template <int D, int C> __device__ static inline void fetch_first(const code_pages &p, int page, int lane)
{
    fetch_half<D, C>(p, page, 0, lane);
    fetch_half<D, C>(p, page, 1, lane);
}

/* What pairs add on a page, for all rows of the block. */
__device__ static __noinline__ void load_pairs(cold_rows *cold, int page)
{
    const block_rows &b = cold->b;
    const int n = b.cond ? b.cond->n_pairs : 0, dim = b.a->l.k.dim;
    for (int i = threadIdx.x % 32; i < b.n_q * n; i += 32) {
        const float *q = cold->heads ? cold->heads + i / n * dim : query_of(b, i / n, dim);
        const float2 f = pair_factors(b, q, i % n, page);
        float *to = cold->pairs[threadIdx.x / 32] + i / n * 16 + 2 * (i % n);
        to[0] = f.x;
        to[1] = f.y;
    }
}

/* The warp's pages of a range, which ends before page `to`.  Pages before `whole` have tokens that count for some rows only
 * (SOME; from there on PLAIN).  Not real: one half, which stays as it is. */
template <int D, int C, int NT>
__device__ static inline void take_range(worker<D, C, NT> &w, code_pages &p, cold_rows *cold, int &page, int to, int whole,
                                         page_scores &how, bool real)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        w.ref[i] = UNSET;
        w.sum[i] = 0;
        w.all[i] = 0;
#pragma unroll
        for (int n = 0; n < D / 16; n++)
            w.o[i][n][0] = w.o[i][n][1] = w.o[i][n][2] = w.o[i][n][3] = 0;
    }
#pragma unroll 1
    for (; page < to; page += WARPS) {
        if (real && page + WARPS == p.first + 32 * WARPS)
            look_up(p, page + WARPS, lane);
        if (how == SOME && page >= whole)
            how = PLAIN;
        if (how == COLD)
            load_pairs(cold, page);
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            asm volatile("cp.async.wait_group 1;" ::: "memory");
            __syncwarp();
            take_half<D, C, NT>(w, p.at + half * code_stage<D, C>::BYTES, page, 32 * half, how);
            __syncwarp();
            if (!real)
                return;
            fetch_half<D, C>(p, page + WARPS, half, lane);
        }
    }
}

/* Tables and places. */
template <int D, int C, int NT> __device__ static inline void open_worker(worker<D, C, NT> &w, const tern_cuda_attn_args &a)
{
    w.g = threadIdx.x % 32 / 4;
    w.t = threadIdx.x % 4;
    load_code_tables<C>(w.tab, a.l.k);
    w.tab.one = a.one;
    w.sinks = a.l.first;
    w.spare = spare_of(w.t);
    w.places = places_of<D, C>(w.g, w.t);
#pragma unroll
    for (int i = 0; i < NT; i++) {
        w.scale[i] = 0;
        w.start[i] = w.oldest[i] = 0;
#pragma unroll
        for (int s = 0; s < D / 32; s++)
            w.q[i][s][0] = w.q[i][s][1] = 0;
    }
}

/* Queries as the lane multiplies them. */
template <int D, int C, int NT>
__device__ static inline void open_queries(worker<D, C, NT> &w, const tern_cuda_attn_args &a, const block_queries<D, 4 * NT> &q)
{
#pragma unroll
    for (int i = 0; i < NT; i++) {
        const query_columns<D> &own = q.row(4 * i + w.t);
        const int8_t *column = q.row(4 * i + w.g / 2).c[w.g % 2];
        w.oldest[i] = oldest_seen(a.l, row_pos(q.b, 4 * i + w.t));
        w.scale[i] = own.scale;
        w.start[i] = -w.tab.offset * own.total;
#pragma unroll
        for (int s = 0; s < D / 32; s++) {
            const uint2 x = *reinterpret_cast<const uint2 *>(column + octet_at<D, C>(w.t, s));
            w.q[i][s][0] = x.x;
            w.q[i][s][1] = x.y;
        }
    }
}

/* What a block of threads does: ranges [first, end) of its rows, and what is raw. */
struct code_items {
    int first, end;
    bool raw;
};

/* The ranges of a row are cut evenly; what is raw has a block of its own where ranges have, or goes with the first. */
__device__ static inline code_items items_of_block(const tern_cuda_attn_args &a, int ranges, int z)
{
    if (tern_cuda_codes_apart(a.eighths)) { /* a range each: without divisions, which are long */
        if (z == 0 || z > ranges)
            return {0, 0, z == 0};
        return {z - 1, z, false};
    }
    const int blocks = tern_cuda_codes_blocks(ranges, a.eighths);
    if (z >= blocks)
        return {};
    return {ranges * z / blocks, ranges * (z + 1) / blocks, z == 0};
}

/* ---- heads that are not finished --------------------------------------------------------------------------------- */

/* A block of its own has two more warps: one rehearses what the others will do with pages, for instructions that a processor has to
 * fetch are half of the time of few pages; one has keys and values. */
#define HELPERS    TERN_CUDA_CODES_HELPERS
#define REHEARSES  WARPS
#define HAS_VALUES (WARPS + 1)

__device__ static inline const tern_cuda_attn_args &attn_of(const tern_cuda_attn_args &a)
{
    return a;
}

__device__ static inline const tern_cuda_attn_args &attn_of(const tern_cuda_codes_own_args &a)
{
    return a.attn;
}

/* A row of a head into token `token` of its tile, by a warp. */
template <int D> __device__ static inline void put_token(const tern_cuda_side &s, uint8_t *tile, const float *x, int token, int lane)
{
#pragma unroll
    for (int d = lane; d < D; d += 32) {
        const int at = s.key ? d * 64 + token : token * D + d;
        if (s.raw32)
            reinterpret_cast<float *>(tile)[at] = x[d];
        else
            reinterpret_cast<uint16_t *>(tile)[at] = to_f16(x[d]);
    }
}

/* What append does for the block's rows, by one warp. */
template <int D>
__device__ static inline void put_own_rows(const tern_cuda_codes_own_args &f, const block_rows &b, uint8_t *tile, float *k, float *v)
{
    const tern_cuda_layer &l = f.attn.l;
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = 0; i < b.n; i++) {
        const int row = b.row0 + i, token = (b.pos0 + i) % 64;
        const float *values = cuda_at<const float>(f.v) + row * f.v_stride + b.kv_head * D;
        const own_head key(f.heads.set[f.set_k], row, b.kv_head, lane);
        if (f.set_v >= 0) {
            const own_head value(f.heads.set[f.set_v], row, b.kv_head, lane);
            value.finish(f.heads, f.heads.set[f.set_v], row, v, lane);
            values = v;
        }
        key.finish(f.heads, f.heads.set[f.set_k], row, k, lane);
        __syncwarp();
        put_token<D>(l.k, tile, k, token, lane);
        put_token<D>(l.v, tile + l.tile_v_off, values, token, lane);
        __syncwarp();
    }
}

/* The warp's query, and its first page on its way. */
template <int D, int C>
__device__ static inline void finish_query(const tern_cuda_codes_own_args &f, const block_rows &b, const code_items &items, int page, int end,
                                           float *query, query_columns<D> &columns, float &shift, code_pages &pages, raw_places &raw)
{
    const tern_cuda_attn_args &a = f.attn;
    const bool coded = items.first < items.end;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float sign[D / 32];
    const tern_cuda_heads_set &set = f.heads.set[f.set_q];
    const int q = min(warp, b.n_q - 1), row = b.row0 + row_of(b, q);
    const own_head head(set, row, head_of(b, q), lane);
    load_signs<D / 32>(sign, a.l.k, lane);
    if (coded)
        find_pages(pages, b, page, end, lane);
    if (items.raw)
        raw.sink = raw_sink_of(b);
    head.finish(f.heads, set, row, query, lane);
    __syncwarp();
    if (coded)
        fetch_first<D, C>(pages, page, lane);
    if (coded)
        put_columns<D>(columns, warp < b.n_q ? query : nullptr, a.q_scale, a.l.k, b.cond, sign, lane);
    if (coded && b.cond && lane == 0) {
        shift = columns.shift;
        if (items.first == 0 && warp < b.n_q)
            cuda_at<query_columns<D>>(f.columns)[row * a.n_heads + head_of(b, q)].shift = shift;
    }
    if (items.raw)
        asm volatile("bar.sync 2, %0;" ::"n"(THREADS + 32) : "memory");
}

/* ---- a block ----------------------------------------------------------------------------------------------------- */

/* The block's ranges: each warp's pages of one, then what warps have together. */
template <int D, int C, int NT>
__device__ static inline void take_ranges(worker<D, C, NT> &w, code_pages &pages, const block_rows &b, const row_ranges &ranges,
                                          const code_items &items, int page, float *room, cold_rows *cold, bool real)
{
    constexpr int ROWS = 4 * NT, PLACE = TERN_CUDA_CODES_ROOM(D, ROWS) / 4;
    const tern_cuda_attn_args &a = *b.a;
    const int seen = (oldest_seen(a.l, row_pos(b, b.n_q - 1)) + 63) / 64, whole = a.l.first && !seen ? 1 : seen;
    page_scores how = !real ? PLAIN : (b.cond && b.cond->n_pairs) || a.cap > 0 ? COLD : SOME;
#pragma unroll 1
    for (int z = items.first; z < (real ? items.end : items.first + 1); z++) {
        int unused, to;
        pages_of(b, ranges, z, unused, to);
        take_range<D, C, NT>(w, pages, cold, page, real ? to : 1, whole, how, real);
        float *place = room + (z & 1) * PLACE; /* the other is still read by warps behind */
        put_down<D, C, NT>(w, place, real);
        if (!real)
            continue;
        computing_meet<THREADS>();
        put_together<D, ROWS>(b, place, ranges.first + z);
    }
}

/* HEADS: they are not finished, and no page was closed in this step. */
template <int D, int C, int NT, bool HEADS, class ARGS> __device__ static void attend_codes(const ARGS &args)
{
    constexpr int ROWS = 4 * NT, RING = 2 * WARPS * code_stage<D, C>::BYTES;
    constexpr int QUERIES = raw_room<D, ROWS>::QUERIES, STAGE = code_stage<D, C>::BYTES, UNREAD = QUERIES > STAGE ? QUERIES : STAGE;
    static_assert(TERN_CUDA_RAW_BYTES(D, THREADS, ROWS) <= 2 * TERN_CUDA_CODES_ROOM(D, ROWS), "");
    const tern_cuda_attn_args &a = attn_of(args);
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(16) query_columns<D> columns[ROWS];
    __shared__ cold_rows cold;
    __shared__ __align__(16) float heads[HEADS ? ROWS + 2 : 1][D];     /* queries, a key, a value */
    __shared__ __align__(16) uint8_t unread[HEADS ? UNREAD : 16]; /* what is rehearsed with */
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool real = !HEADS || warp < WARPS;
    float *room = reinterpret_cast<float *>(shared + RING);
    cuda_start_next();
    block_rows b;
    row_ranges ranges;
    code_items items = {};
    if (find_rows(b, a, blockIdx.x, blockIdx.y)) {
        ranges = ranges_of(b);
        items = items_of_block(a, ranges.n, blockIdx.z);
    }
    const bool coded = items.first < items.end;
    if (!coded && !items.raw) {
        cuda_wait();
        return;
    }
    int page = 0, begin = 0, end = 0, unused;
    if (coded) {
        pages_of(b, ranges, items.first, begin, unused);
        pages_of(b, ranges, items.end - 1, unused, end);
    }
    worker<D, C, NT> w;
    w.cold = &cold;
    open_worker<D, C, NT>(w, a);
    code_pages pages = {};
    pages.at = (uint32_t)__cvta_generic_to_shared(real ? shared + warp * 2 * code_stage<D, C>::BYTES : unread);
    raw_places raw = {};
    if constexpr (HEADS) {
        const tern_cuda_unit &unit = cuda_at<const tern_cuda_unit>(a.units)[blockIdx.x]; /* of one block */
        if (items.raw)
            raw.own = unit_tile(args.tiles, a.l, a.stage, unit, b.kv_head);
        if (warp != REHEARSES)
            cuda_wait();
        if (warp == HAS_VALUES) {
            if (items.raw) {
                put_own_rows<D>(args, b, const_cast<uint8_t *>(raw.own), heads[ROWS], heads[ROWS + 1]);
                asm volatile("bar.arrive 2, %0;" ::"n"(THREADS + 32) : "memory");
            }
            return;
        }
        if (real) {
            page = first_page(begin, warp, WARPS);
            finish_query<D, C>(args, b, items, page, end, heads[warp], columns[warp], cold.shift[warp], pages, raw);
        }
    } else {
        const bool early = end <= b.closed; /* pages that were closed before the step are there */
        if (items.raw)
            raw = raw_places_of(b);
        page = first_page(begin, warp, WARPS);
        if (!early)
            cuda_wait();
        find_pages(pages, b, page, end, lane);
        fetch_first<D, C>(pages, page, lane);
        if (early)
            cuda_wait();
    }
    if (items.raw)
        attend_raw<D, THREADS, ROWS>(b, raw, real ? reinterpret_cast<uint8_t *>(room) : unread, HEADS ? heads[0] : nullptr, real);
    if (!coded) {
        if (!real)
            cuda_wait();
        return;
    }
    if (real) {
        if (threadIdx.x == 0) {
            cold.b = b;
            cold.heads = HEADS ? heads[0] : nullptr;
        }
        const block_queries<D, ROWS> queries(b, columns, cold.shift, HEADS);
        computing_meet<THREADS>();
        open_queries<D, C, NT>(w, a, queries);
    }
    take_ranges<D, C, NT>(w, pages, b, ranges, items, page, room, &cold, real);
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    if (!real)
        cuda_wait();
}

/* blocks: of a processor.  A block that waits more than it computes is faster with more registers than four leave it. */
#define KERNEL(d, name, c, blocks)                                                          \
    TERN_CUDA_KERNEL_BEGIN(codes_##d##_##name##_1, tern_cuda_attn_args, THREADS, blocks)    \
    {                                                                                       \
        attend_codes<d, c, 1, false>(a);                                                    \
    }                                                                                       \
    TERN_CUDA_KERNEL_BEGIN(codes_##d##_##name##_2, tern_cuda_attn_args, THREADS, 2)         \
    {                                                                                       \
        attend_codes<d, c, 2, false>(a);                                                    \
    }
#define FEW(d, name, c)                                                               \
    TERN_CUDA_KERNEL_BEGIN(codes_few_##d##_##name, tern_cuda_attn_args, THREADS, 3)   \
    {                                                                                 \
        attend_codes<d, c, 1, false>(a);                                              \
    }
#define OWN(d, name, c)                                                                            \
    TERN_CUDA_KERNEL_BEGIN(codes_own_##d##_##name, tern_cuda_codes_own_args, THREADS + HELPERS, 2) \
    {                                                                                              \
        attend_codes<d, c, 1, true>(a);                                                            \
    }
#define KERNELS(d)               \
    KERNEL(d, 2, CODES_2, 4)     \
    KERNEL(d, 3, CODES_3, 4)     \
    KERNEL(d, 4, CODES_4, 4)     \
    KERNEL(d, t4, CODES_T4, 3)   \
    KERNEL(d, 8, CODES_8, 2)     \
    KERNEL(d, t3, CODES_T3, 3)   \
    KERNEL(d, t2, CODES_T2, 3)   \
    FEW(d, 2, CODES_2)           \
    FEW(d, 3, CODES_3)           \
    FEW(d, 4, CODES_4)           \
    OWN(d, 2, CODES_2)           \
    OWN(d, 3, CODES_3)           \
    OWN(d, 4, CODES_4)           \
    OWN(d, t4, CODES_T4)         \
    OWN(d, 8, CODES_8)           \
    OWN(d, t3, CODES_T3)         \
    OWN(d, t2, CODES_T2)
KERNELS(64)
KERNELS(128)

/* Attention of decode rows on closed pages of codes: integer tensor cores on the codes as they lie.
 *
 * A warp takes whole pages, those of a range whose number is its own modulo WARPS, through a ring of two in shared
 * memory, and keeps its own softmax; warps are put together in order.  Queries become 16-bit integers, in two columns of
 * 8 bits each; weights times the scales of values too.  Products are exact integers, so what rounds is the query, once,
 * and a weight, to a 2^-16th of the largest.
 *
 * A q row goes through the same steps whatever else is in its block: columns do not meet.  Sums of floats are written
 * with their rounding, for the compiler would contract them in one of these kernels and not in another. */
#include "dev/cuda/attn/codes.cuh"
#include "dev/cuda/attn/raw.cuh"

#define WARPS   4
#define THREADS (32 * WARPS)
#define FULL    65000.0f /* most that a weight becomes */
#define ROOM    13.0f    /* log2 of what the largest weight becomes when the reference is set: rises are rare */

__device__ static inline float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
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

/* Four headers in two words: their scales. */
__device__ static inline void four_headers(float f[4], uint2 h)
{
    const uint32_t a = h.x >> 1 & 0x7FF87FF8u, b = h.y >> 1 & 0x7FF87FF8u;
    const float2 x = __half22float2(*reinterpret_cast<const __half2 *>(&a)),
                 y = __half22float2(*reinterpret_cast<const __half2 *>(&b));
    f[0] = x.x;
    f[1] = x.y;
    f[2] = y.x;
    f[3] = y.y;
}

template <int D, int C, int NT> struct worker {
    static constexpr int S = D / 32, ROWS = 4 * NT;
    const block_rows *b;
    const float *pq; /* [ROWS][16] what pairs add on the page in hand */
    const float *shift;
    code_tables tab; /* of keys and values */
    spare_bits spare;
    uint32_t q[NT][S][2]; /* columns of the queries */
    float scale[NT], ref[NT], sum[NT]; /* of q row 4 i + t */
    int start[NT];                     /* what offsets of keys have added to a product */
    uint32_t all[NT];                  /* sum of the weights */
    bool fresh;                        /* nothing has been summed yet */
    int o[NT][D / 16][4];
    int g, t;
};

/* A row's reference rises, where a weight would be too large; others stay as they are, to the bit. */
template <int D, int C, int NT>
__device__ static __noinline__ float raise(float y0, float y1, float y2, float y3, const float f[4], float top)
{
    for (int width = 4; width < 32; width *= 2)
        top = fmaxf(top, __shfl_xor_sync(~0u, top, width));
    const float y[4] = {y0, y1, y2, y3};
    float z = -INFINITY;
#pragma unroll
    for (int r = 0; r < 4; r++)
        z = fmaxf(z, __fadd_rn(y[r], log2f(fmaxf(f[r], 0x1p-21f))));
    for (int width = 4; width < 32; width *= 2)
        z = fmaxf(z, __shfl_xor_sync(~0u, z, width));
    return top > FULL ? __fsub_rn(z, ROOM) : NAN;
}

template <int D, int C, int NT>
__device__ static inline void add_values(worker<D, C, NT> &w, int n, const octet &x, const octet &y, const uint32_t p[NT][2])
{
#pragma unroll
    for (int i = 0; i < NT; i++)
        multiply_values<C>(w.o[i][n], x, y, p[i][0], p[i][1]);
}

template <int D, int C, int NT> __device__ static inline void take_tile(worker<D, C, NT> &w, uint32_t at, int page, int half, bool plain, int lo)
{
    using layout = code_page<D, C>;
    constexpr int S = D / 32;
    const int g = w.g, t = w.t;
    const uint32_t keys = at + 256, values = keys + layout::KEYS;
    uint2 kh, vh;
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(kh.x), "=r"(kh.y) : "r"(at + (half * 32 + 4 * g) * 2) : "memory");
    asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];" : "=r"(vh.x), "=r"(vh.y) : "r"(at + 128 + (half * 32 + 4 * g) * 2) : "memory");
    int c[NT][2][4];
#pragma unroll
    for (int i = 0; i < NT; i++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            c[i][j][0] = c[i][j][2] = 0;
            c[i][j][1] = c[i][j][3] = w.start[i];
        }
    const uint32_t start[4] = {kh.x & 15, kh.x >> 16 & 15, kh.y & 15, kh.y >> 16 & 15};
    key_words<D, C> kw;
    load_keys<D, C>(kw, keys, half, g, t, start);
#pragma unroll
    for (int s = 0; s < S; s++) {
        octet x[4];
        key_octets<D, C>(x, w.tab, kw, keys, half, s, g, t, start);
#pragma unroll
        for (int i = 0; i < NT; i++) {
            multiply_keys<C>(c[i][0], x[0], x[1], w.q[i][s][0], w.q[i][s][1]);
            multiply_keys<C>(c[i][1], x[2], x[3], w.q[i][s][0], w.q[i][s][1]);
        }
    }
    float kf[4], vf[4];
    four_headers(kf, kh);
    four_headers(vf, vh);
    uint32_t p[NT][2];
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float y[4];
#pragma unroll
        for (int r = 0; r < 4; r++)
            y[r] = __fmul_rn((float)(c[i][r / 2][r % 2 * 2] * 256 + c[i][r / 2][r % 2 * 2 + 1]),
                             __fmul_rn(kf[r], w.scale[i]));
        if (!plain) {
            const int row = 4 * i + t;
            const block_rows &b = *w.b;
#pragma unroll 1
            for (int r = 0; r < 4; r++) {
                const int token = half * 32 + 4 * g + r;
                float s = r == 0 ? y[0] : r == 1 ? y[1] : r == 2 ? y[2] : y[3];
                if (row >= b.n_q) {
                    s = -INFINITY;
                } else {
                    if (b.cond) {
                        const float *turns = cuda_at<const float>(b.cond->turns);
                        for (int j = 0; j < 2 * b.cond->n_pairs; j++)
                            s = fmaf(w.pq[row * 16 + j], turns[j * 64 + token], s);
                        if (b.a->cap > 0)
                            s = __fadd_rn(s, w.shift[row]);
                    }
                    s = seen_score(b, s, row, token, page, lo, 64);
                }
                y[0] = r == 0 ? s : y[0];
                y[1] = r == 1 ? s : y[1];
                y[2] = r == 2 ? s : y[2];
                y[3] = r == 3 ? s : y[3];
            }
        }
        float e[4], top = 0;
#pragma unroll
        for (int r = 0; r < 4; r++) {
            e[r] = exp2_of(__fsub_rn(y[r], w.ref[i]));
            top = fmaxf(top, e[r] * fmaxf(vf[r], 0x1p-21f));
        }
        if (__any_sync(~0u, top > FULL)) {
            const float ref = raise<D, C, NT>(y[0], y[1], y[2], y[3], vf, top);
            if (w.fresh) {
                w.ref[i] = ref == ref ? ref : w.ref[i];
            } else if (ref == ref) {
                const float by = exp2_of(__fsub_rn(w.ref[i], ref));
                w.ref[i] = ref;
                w.sum[i] = __fmul_rn(w.sum[i], by);
                w.all[i] = (uint32_t)__fmul_rn((float)w.all[i], by);
#pragma unroll
                for (int n = 0; n < D / 16; n++)
#pragma unroll
                    for (int j = 0; j < 4; j += 2) {
                        const float x = __fmul_rn(__fmaf_rn((float)w.o[i][n][j], 256.0f, (float)w.o[i][n][j + 1]), by);
                        const int hi = __float2int_rn(__fmul_rn(x, 1.0f / 256));
                        w.o[i][n][j] = hi;
                        w.o[i][n][j + 1] = __float2int_rn(__fmaf_rn((float)hi, -256.0f, x));
                    }
            }
#pragma unroll
            for (int r = 0; r < 4; r++)
                e[r] = exp2_of(__fsub_rn(y[r], w.ref[i]));
        }
        w.sum[i] = __fadd_rn(w.sum[i], __fadd_rn(__fadd_rn(e[0], e[1]), __fadd_rn(e[2], e[3])));
        uint32_t n[4];
#pragma unroll
        for (int r = 0; r < 4; r++)
            n[r] = __float_as_uint(fmaf(e[r], vf[r], 8388608.0f)); /* the integer in its low bits */
        if (code_trellis(C))
            w.all[i] += (n[0] + n[1]) + (n[2] + n[3]) - 4 * 0x4B000000u;
        const uint32_t x = byte_perm(n[0], n[1], 0x5140), z = byte_perm(n[2], n[3], 0x5140);
        uint32_t lower = byte_perm(x, z, 0x5410), upper = byte_perm(x, z, 0x7632);
        const int from = g >> 1; /* the row whose weights column g has; upper bytes in even columns */
        if (code_bits(C) == 2) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int lane = (4 * (t >> 1) + 2 * h) * 4 + from;
                const uint32_t u0 = __shfl_sync(~0u, upper, lane), l0 = __shfl_sync(~0u, lower, lane);
                const uint32_t u1 = __shfl_sync(~0u, upper, lane + 4), l1 = __shfl_sync(~0u, lower, lane + 4);
                p[i][h] = byte_perm(g & 1 ? l0 : u0, g & 1 ? l1 : u1, t & 1 ? 0x7531 : 0x6420);
            }
        } else {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t u = __shfl_sync(~0u, upper, (2 * t + h) * 4 + from);
                const uint32_t l = __shfl_sync(~0u, lower, (2 * t + h) * 4 + from);
                p[i][h] = g & 1 ? l : u;
            }
        }
    }
    if constexpr (C == CODES_T3 || C == CODES_T2) {
        value_chain<D> chain;
        load_chain<D, C>(chain, values, at + 128 + half * 64, w.spare, half, g, t);
#pragma unroll
        for (int j = 0; j < S / 2; j++)
#pragma unroll
            for (int n = 0; n < 4; n++)
                add_values<D, C, NT>(w, 4 * j + n, chain_octet<D, C>(w.tab, chain, 2 * j, n),
                                     chain_octet<D, C>(w.tab, chain, 2 * j + 1, n), p);
        return;
    }
#pragma unroll
    for (int j = 0; j < S / 2; j++) {
        value_words<C> a, b;
        load_values<D, C>(a, values, at + 128 + half * 64, half, 2 * j, g, t);
        load_values<D, C>(b, values, at + 128 + half * 64, half, 2 * j + 1, g, t);
#pragma unroll
        for (int n = 0; n < 4; n++)
            add_values<D, C, NT>(w, 4 * j + n, value_octet<C>(w.tab, a, w.spare, n, t),
                                 value_octet<C>(w.tab, b, w.spare, n, t), p);
    }
}

/* Queries of the block: rotated, in 16-bit integers, column 2 i the upper bytes of q row i.  Room: [2 ROWS][D + 16]. */
template <int D, int ROWS>
__device__ static void load_columns(const block_rows &b, const float sign[D / 32], int8_t *columns, float *scale, int *total,
                                    float *shift)
{
    constexpr int N = D / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const tern_cuda_side &s = b.a->l.k;
    for (int i = warp; i < ROWS; i += WARPS) {
        float x[N] = {}, mean = 0;
        if (i < b.n_q && N == 4) {
            const float4 v = reinterpret_cast<const float4 *>(query_of(b, i, D))[lane];
            x[0] = v.x;
            x[1] = v.y;
            x[N - 2] = v.z;
            x[N - 1] = v.w;
        } else if (i < b.n_q) {
            const float2 v = reinterpret_cast<const float2 *>(query_of(b, i, D))[lane];
            x[0] = v.x;
            x[1] = v.y;
        }
#pragma unroll
        for (int j = 0; j < N; j++)
            x[j] *= b.a->q_scale;
        if (b.cond) {
#pragma unroll
            for (int j = 0; j < N; j++) {
                mean = __fmaf_rn(x[j], cuda_at<const float>(b.cond->mean)[lane * N + j], mean);
                x[j] *= cuda_at<const float>(b.cond->unscale)[lane * N + j];
            }
            for (int width = 16; width; width /= 2)
                mean += __shfl_xor_sync(~0u, mean, width);
        }
        if (s.rotated) {
#pragma unroll
            for (int j = 0; j < N; j++)
                x[j] *= sign[j];
            mix_lanes<N>(x, lane);
#pragma unroll
            for (int j = 0; j < N; j++)
                x[j] *= s.norm;
        }
        float most = 0;
#pragma unroll
        for (int j = 0; j < N; j++)
            most = fmaxf(most, fabsf(x[j]));
        for (int width = 16; width; width /= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, width));
        most = fmaxf(most, 1e-30f);
        const float by = 32512.0f / most;
        int all = 0;
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int n = __float2int_rn(x[j] * by), upper = (n + 128) >> 8;
            columns[2 * i * (D + 16) + lane * N + j] = (int8_t)upper;
            columns[(2 * i + 1) * (D + 16) + lane * N + j] = (int8_t)(n - upper * 256);
            all += n;
        }
        for (int width = 16; width; width /= 2)
            all += __shfl_xor_sync(~0u, all, width);
        if (lane == 0) {
            scale[i] = most / 32512.0f * s.unit;
            total[i] = all;
            shift[i] = mean;
        }
    }
}

/* Warps' results put together in order, into the range's place. */
template <int D, int C, int NT>
__device__ static void put_together(worker<D, C, NT> &w, float *room, int range)
{
    constexpr int ROWS = 4 * NT;
    const int warp = threadIdx.x / 32, g = w.g, t = w.t;
    const block_rows &b = *w.b;
    float *ref = room + WARPS * ROWS * D, *sum = ref + WARPS * ROWS;
#pragma unroll
    for (int i = 0; i < NT; i++) {
        float all = w.sum[i], offset = code_trellis(C) ? (float)w.all[i] : 0.0f;
        for (int width = 4; width < 32; width *= 2) {
            all = __fadd_rn(all, __shfl_xor_sync(~0u, all, width));
            offset = __fadd_rn(offset, __shfl_xor_sync(~0u, offset, width));
        }
        offset = __fmul_rn(offset, -(float)w.tab.offset);
        const int row = 4 * i + t;
        float *to = room + (warp * ROWS + row) * D;
        if (g == 0) {
            ref[warp * ROWS + row] = w.ref[i];
            sum[warp * ROWS + row] = all;
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
                to[(2 * (n / 4) + h) * 32 + 4 * g + n % 4] =
                    __fadd_rn(__fmaf_rn((float)w.o[i][n][2 * h], 256.0f, (float)w.o[i][n][2 * h + 1]), offset);
    }
    __syncthreads();
    const float unit = b.a->l.v.unit;
    for (int e = threadIdx.x; e < b.n_q * (D / 2); e += THREADS) { /* two dims each */
        const int row = e / (D / 2), d = e % (D / 2) * 2;
        float most = ref[row], x = 0, y = 0, all = 0;
#pragma unroll
        for (int i = 1; i < WARPS; i++)
            most = fmaxf(most, ref[i * ROWS + row]);
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float by = exp2_of(__fsub_rn(ref[i * ROWS + row], most));
            const float2 v = *reinterpret_cast<const float2 *>(room + (i * ROWS + row) * D + d);
            x = __fmaf_rn(by, v.x, x);
            y = __fmaf_rn(by, v.y, y);
            all = __fmaf_rn(by, sum[i * ROWS + row], all);
        }
        float *part = part_at(b, row, range % TERN_CUDA_RANGES);
        *reinterpret_cast<float2 *>(part + d) = make_float2(__fmul_rn(x, unit), __fmul_rn(y, unit));
        if (d == 0) {
            part[D] = most;
            part[D + 1] = all;
        }
    }
}

template <int D, int C, int NT> __device__ static void attend_codes(const tern_cuda_attn_args &a)
{
    using layout = code_page<D, C>;
    constexpr int ROWS = 4 * NT, S = D / 32;
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(16) int8_t columns[2 * ROWS * (D + 16)];
    __shared__ float scale[ROWS], shift[ROWS], pq[WARPS][ROWS * 16];
    __shared__ int total[ROWS];
    const tern_cuda_layer &l = a.l;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    block_rows b;
    int begin = 0, end = 0, range = 0;
    const bool raw = blockIdx.z == 0; /* first: it takes longer than many a range */
    bool real = find_rows(b, a, blockIdx.x / a.n_blocks, blockIdx.x % a.n_blocks, blockIdx.y);
    if (real && !raw) {
        range = find_range(b, blockIdx.z - 1, begin, end);
        real = begin < end;
    }
    if (!real || raw) {
        const uint8_t *own = real ? raw_own(b) : nullptr;
        cuda_wait();
        if (real)
            attend_raw<D, THREADS, ROWS>(b, own, shared);
        return;
    }
    const tern_cuda_table &table = table_of(a.t, *b.job, l.group);
    const tern_cuda_cache &cache = cuda_at<const tern_cuda_cache>(a.t.caches)[b.job->cache];
    const tern_cuda_blocks &pool = cuda_at<const tern_cuda_blocks>(a.t.pools)[cache.pages + l.group];
    const uint32_t *numbers = cuda_at<const uint32_t>(a.t.numbers) + table.blocks - table.first;
    const uint8_t *pages = cuda_at<const uint8_t>(pool.p + l.layer_off + b.kv_head * l.head_bytes);
    const uint32_t ring = (uint32_t)__cvta_generic_to_shared(shared) + warp * 2 * layout::BYTES;
    const int first = begin + ((warp - begin) & (WARPS - 1));
    const uint64_t once = cuda_once();
    uint32_t next = 0;
    const bool early = end <= b.job->pos0 / 64; /* pages that were closed before the step are there */
    if (!early)
        cuda_wait();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (first + i * WARPS < end)
            fetch_codes<D, C>(ring + i * layout::BYTES, pages + numbers[first + i * WARPS] * pool.bytes, l, lane, once);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    if (first + 2 * WARPS < end)
        next = numbers[first + 2 * WARPS];
    float sign[S];
    load_signs<S>(sign, l.k, lane);
    if (early)
        cuda_wait();
    load_columns<D, ROWS>(b, sign, columns, scale, total, shift);
    worker<D, C, NT> w;
    w.b = &b;
    w.pq = pq[warp];
    w.shift = shift;
    w.g = lane / 4;
    w.t = lane % 4;
    load_code_tables<C>(w.tab, l.k);
    w.tab.one = a.one;
    w.spare = spare_of(w.t);
    w.fresh = true;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < NT; i++) {
        w.scale[i] = scale[4 * i + w.t];
        w.start[i] = -w.tab.offset * total[4 * i + w.t];
        w.ref[i] = -1e30f;
        w.sum[i] = 0;
        w.all[i] = 0;
#pragma unroll
        for (int n = 0; n < D / 16; n++)
            w.o[i][n][0] = w.o[i][n][1] = w.o[i][n][2] = w.o[i][n][3] = 0;
        const int8_t *column = columns + (8 * i + w.g) * (D + 16);
#pragma unroll
        for (int s = 0; s < S; s++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint32_t x = 0;
#pragma unroll
                for (int j = 0; j < 4; j++)
                    x |= (uint32_t)(uint8_t)column[octet_dim<D, C>(w.t, s, 4 * h + j)] << 8 * j;
                w.q[i][s][h] = x;
            }
    }
    const bool special = (b.cond && b.cond->n_pairs) || a.cap > 0;
    const int seen = oldest_seen(l, row_pos(b, b.n_q - 1));
    int slot = 0;
#pragma unroll 1
    for (int page = first; page < end; page += WARPS) {
        const uint32_t at = ring + slot * layout::BYTES;
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        if (b.cond && b.cond->n_pairs)
            for (int i = lane; i < b.n_q * b.cond->n_pairs; i += 32) {
                const int row = i / b.cond->n_pairs, j = i % b.cond->n_pairs;
                const float2 f = pair_factors(b, row, j, page);
                pq[warp][row * 16 + 2 * j] = f.x;
                pq[warp][row * 16 + 2 * j + 1] = f.y;
            }
        __syncwarp();
        const int lo = page ? 0 : l.first;
        const bool plain = !special && lo == 0 && seen <= page * 64;
#pragma unroll 1
        for (int half = 0; half < 2; half++) {
            take_tile<D, C, NT>(w, at, page, half, plain, lo);
            w.fresh = false;
        }
        __syncwarp();
        if (page + 2 * WARPS < end)
            fetch_codes<D, C>(at, pages + next * pool.bytes, l, lane, once);
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (page + 3 * WARPS < end)
            next = numbers[page + 3 * WARPS];
        slot ^= 1;
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    put_together<D, C, NT>(w, reinterpret_cast<float *>(shared), range);
}

#define KERNEL(d, name, c, blocks)                                                          \
    TERN_CUDA_KERNEL_BEGIN(codes_##d##_##name##_1, tern_cuda_attn_args, THREADS, blocks)    \
    {                                                                                       \
        attend_codes<d, c, 1>(a);                                                           \
    }                                                                                       \
    TERN_CUDA_KERNEL_BEGIN(codes_##d##_##name##_2, tern_cuda_attn_args, THREADS, 2)         \
    {                                                                                       \
        attend_codes<d, c, 2>(a);                                                           \
    }
#define KERNELS(d)               \
    KERNEL(d, 2, CODES_2, 4)     \
    KERNEL(d, 3, CODES_3, 4)     \
    KERNEL(d, 4, CODES_4, 3)     \
    KERNEL(d, t4, CODES_T4, 3)   \
    KERNEL(d, 8, CODES_8, 2)     \
    KERNEL(d, t3, CODES_T3, 3)   \
    KERNEL(d, t2, CODES_T2, 3)
KERNELS(64)
KERNELS(128)

/* Attention of decode rows on closed pages of 16-bit floats: tensor cores, and pages as they lie.
 *
 * A warp takes whole pages, those of a range whose number is its own modulo the number of warps, W, keys and values in parts
 * of 8 KB, and keeps its own softmax; warps are put together in order.  A part has rows of the side's inner index, dims of keys and
 * tokens of values, which is what products contract over: matrices of 8 by 8 are turned on their way to registers.  Tokens,
 * then dims, are a product's 16 rows, and q rows its 8 columns, so nothing is multiplied in vain.  Pieces of 16 bytes lie in a row at their place exclusive-or the row's number, so that eight rows of a matrix meet no bank twice.
 *
 * Sums of floats are written with their rounding. */
#include "dev/cuda/attn/decode.cuh"
#include "dev/cuda/attn/matrix.cuh"
#include "dev/cuda/attn/raw.cuh"
#include "dev/cuda/attn/items.cuh"

#define PART TERN_CUDA_HALVES_PART

template <int D> struct side {
    static constexpr int PARTS = 128 * D / PART, TOKENS = 64 / PARTS; /* tokens: of a part of values */
};

/* A warp's stages in shared memory, of a part each, which it fills ahead, through the items of a pair. */
struct ring {
    uint32_t at;
    int stages, slot;
    uint64_t policy;
};

__device__ static inline uint32_t ring_at(const ring &r, int slot)
{
    return r.at + slot * PART;
}

/* Of q rows 2 t and 2 t + 1: o: dims 16 n + g in o[n][0] and [1], those eight further in [2] and [3]. */
template <int D> struct softmax {
    float m[2], l[2], o[D / 16][4]; /* l: of the lane's tokens */
};

/* Row g's query: dims 16 s + 2 t and + 1 in q[s][0], those eight further in q[s][1]. */
template <int D> __device__ static void load_query(uint32_t q[D / 16][2], const block_rows &b, int g, int t)
{
#pragma unroll
    for (int s = 0; s < D / 16; s++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float2 x = make_float2(0, 0);
            if (g < b.n_q)
                x = *reinterpret_cast<const float2 *>(query_of(b, g, D) + 16 * s + 8 * j + 2 * t);
            q[s][j] = two_halves(__fmul_rn(x.x, b.a->q_scale), __fmul_rn(x.y, b.a->q_scale));
        }
}

/* Sixteen rows of a part, which a product has as columns, and sixteen columns, from 16 n on (n below 4). */
__device__ static inline uint32_t place_of(int n, int row_bytes)
{
    const int row = turned_row();
    return (uint32_t)(row * row_bytes + ((2 * n + turned_piece()) ^ row % 8) * 16);
}

/* Columns, which are the product's rows, times what is contracted with the rows. */
__device__ static inline void multiply_turned(float c[4], uint32_t at, uint32_t b0, uint32_t b1)
{
    uint32_t a[4];
    load4_turned(a, at);
    multiply(c, a, b0, b1);
}

/* s[n][i] += part p of keys: q row 2 t + i % 2, token 16 n + g + 8 (i / 2). */
template <int D> __device__ static inline void score(float s[4][4], const uint32_t q[D / 16][2], uint32_t keys, int p)
{
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const uint32_t at = keys + place_of(n, 128);
#pragma unroll
        for (int k = 0; k < PART / 128 / 16; k++) {
            const int step = p * (PART / 128 / 16) + k;
            multiply_turned(s[n], at + k * 16 * 128, q[step][0], q[step][1]);
        }
    }
}

/* What may not be seen, and the cap. */
__device__ static __noinline__ void finish(float s[4][4], const block_rows &b, int page, int lo, int g, int t)
{
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = 2 * t + i % 2;
            s[n][i] = row < b.n_q ? seen_score(b, s[n][i], row, 16 * n + g + i / 2 * 8, page, lo, 64) : -INFINITY;
        }
}

/* Eight tokens of eight q rows, turned: the lane's two q rows of token g become q row g of its two tokens. */
__device__ static inline uint32_t turn_tile(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

/* Scores become weights, p[j] of tokens 8 j + 2 t and + 1, of q row g. */
template <int D> __device__ static void soften(softmax<D> &st, uint32_t p[8], float s[4][4])
{
    float shrink[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most = st.m[i], sum = 0;
#pragma unroll
        for (int n = 0; n < 4; n++)
            most = fmaxf(most, fmaxf(s[n][i], s[n][i + 2]));
#pragma unroll
        for (int width = 4; width < 32; width *= 2)
            most = fmaxf(most, __shfl_xor_sync(~0u, most, width));
        const float from = most == -INFINITY ? 0 : most;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            s[n][i] = power(__fsub_rn(s[n][i], from));
            s[n][i + 2] = power(__fsub_rn(s[n][i + 2], from));
            sum = __fadd_rn(sum, __fadd_rn(s[n][i], s[n][i + 2]));
        }
        shrink[i] = st.m[i] == most ? 1.0f : power(__fsub_rn(st.m[i], from));
        st.l[i] = __fmaf_rn(st.l[i], shrink[i], sum);
        st.m[i] = most;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        p[j] = turn_tile(small_halves(s[j / 2][j % 2 * 2], s[j / 2][j % 2 * 2 + 1]));
    if (__any_sync(~0u, shrink[0] != 1.0f || shrink[1] != 1.0f))
#pragma unroll
        for (int n = 0; n < D / 16; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                st.o[n][i] = __fmul_rn(st.o[n][i], shrink[i % 2]);
}

/* o += part i of values, weighed. */
template <int D> __device__ static inline void add_values(softmax<D> &st, const uint32_t p[8], uint32_t values, int i)
{
#pragma unroll
    for (int k = 0; k < side<D>::TOKENS / 16; k++) {
        const int j = i * (side<D>::TOKENS / 8) + 2 * k;
#pragma unroll
        for (int n = 0; n < D / 16; n++) /* pieces 8 and on lie 128 bytes further */
            multiply_turned(st.o[n], values + k * 16 * 2 * D + place_of(n % 4, 2 * D) + n / 4 * 128, p[j], p[j + 1]);
    }
}

/* A part's rows of so many pieces, each piece at its place exclusive-or the row's number. */
template <int PIECES> __device__ static inline void fetch_rows(const ring &r, uint32_t to, const uint8_t *from)
{
    constexpr int ONCE = 32 / PIECES; /* rows at a time */
    const int lane = threadIdx.x % 32, row = lane / PIECES;
    to += row * PIECES * 16 + (lane % PIECES ^ row) * 16;
#pragma unroll
    for (int i = 0; i < PART / 512; i++)
        cuda_copy_16((to ^ (i * ONCE % 8 * 16)) + i * 512, from + i * 512, r.policy);
}

/* The next part of the walk's page on its way into `slot`, keys and then values, or nothing. */
template <int D> __device__ static inline void fetch_next(const ring &r, int slot, walk &w, int &what)
{
    if (!walk_done(w)) {
        const tern_cuda_layer &l = w.b->a->l;
        const bool values = what >= side<D>::PARTS;
        const int lane = threadIdx.x % 32;
        const uint8_t *from = w.from + (values ? l.v_off + (what - side<D>::PARTS) * PART : l.k_off + what * PART) + lane * 16;
        if (values)
            fetch_rows<D / 8>(r, ring_at(r, slot), from);
        else
            fetch_rows<8>(r, ring_at(r, slot), from);
        what = what + 1 == 2 * side<D>::PARTS ? 0 : what + 1;
        if (what == 0)
            walk_on(w);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Floats of a place where warps put down what they have of q rows, which lie `rows` apart: sums, so that lanes meet no bank twice,
 * references, sums of weights.  There are two of four rows, by turns, or one of eight. */
#define STEP(d)           ((d) + 4)
#define PLACE(w, d, rows) ((w) * (rows) * (STEP(d) + 2))

/* Warps' results put together in order, into the range's place. */
template <int D, int W, int ROWS>
__device__ static inline void put_together(const block_rows &b, const softmax<D> &st, float *room, int rows, int range)
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float *m = room + W * rows * STEP(D), *l = m + W * rows;
    if (rows == ROWS && ROWS > 4)
        __syncthreads(); /* the only place: nobody reads it any more */
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int row = warp * rows + 2 * t + i;
        float sum = st.l[i];
#pragma unroll
        for (int width = 4; width < 32; width *= 2)
            sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, width));
        if (2 * t + i >= rows)
            continue;
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            room[row * STEP(D) + 16 * n + g] = st.o[n][i];
            room[row * STEP(D) + 16 * n + 8 + g] = st.o[n][i + 2];
        }
        if (g == 0) {
            m[row] = st.m[i];
            l[row] = sum;
        }
    }
    __syncthreads();
    for (int e = threadIdx.x; e < b.n_q * (D / 2); e += 32 * W) { /* two dims each */
        const int row = e / (D / 2), d = e % (D / 2) * 2;
        float most = m[row], x = 0, y = 0, all = 0;
#pragma unroll
        for (int i = 1; i < W; i++)
            most = fmaxf(most, m[i * rows + row]);
        const float from = most == -INFINITY ? 0 : most;
#pragma unroll
        for (int i = 0; i < W; i++) {
            const float by = power(__fsub_rn(m[i * rows + row], from));
            const float2 v = *reinterpret_cast<const float2 *>(room + (i * rows + row) * STEP(D) + d);
            x = __fmaf_rn(by, v.x, x);
            y = __fmaf_rn(by, v.y, y);
            all = __fmaf_rn(by, l[i * rows + row], all);
        }
        float *part = part_at(b, row, range % TERN_CUDA_RANGES);
        *reinterpret_cast<float2 *>(part + d) = make_float2(x, y);
        if (d == 0) {
            part[D] = most;
            part[D + 1] = all;
        }
    }
}

/* The oldest stage is there; it has been read, and what comes next takes its place. */
__device__ static inline uint32_t next_part(const ring &r)
{
    if (r.stages == 2)
        asm volatile("cp.async.wait_group 1;" ::: "memory");
    else if (r.stages == 3)
        asm volatile("cp.async.wait_group 2;" ::: "memory");
    else
        asm volatile("cp.async.wait_group 3;" ::: "memory");
    __syncwarp();
    return ring_at(r, r.slot);
}

template <int D> __device__ static inline void part_read(ring &r, walk &w, int &what)
{
    __syncwarp();
    fetch_next<D>(r, r.slot, w, what);
    r.slot = r.slot + 1 == r.stages ? 0 : r.slot + 1;
}

/* One range of the block's rows: the warp's pages. */
template <int D, int W>
__device__ static inline void take_range(const block_rows &b, softmax<D> &st, const uint32_t q[D / 16][2], ring &r, walk &w,
                                         int &what, int begin, int end)
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int seen = oldest_seen(b.a->l, row_pos(b, b.n_q - 1));
    st.m[0] = st.m[1] = -INFINITY;
    st.l[0] = st.l[1] = 0;
#pragma unroll
    for (int n = 0; n < D / 16; n++)
        st.o[n][0] = st.o[n][1] = st.o[n][2] = st.o[n][3] = 0;
#pragma unroll 1
    for (int page = first_page(begin, warp, W); page < end; page += W) {
        const int lo = page ? 0 : b.a->l.first;
        float s[4][4] = {};
        uint32_t weights[8];
#pragma unroll
        for (int p = 0; p < side<D>::PARTS; p++) {
            score<D>(s, q, next_part(r), p);
            part_read<D>(r, w, what);
        }
        if (b.a->cap > 0 || lo || seen > page * 64) {
            float x[4][4]; /* what a function gets has an address, and so no registers */
#pragma unroll
            for (int n = 0; n < 16; n++)
                x[n / 4][n % 4] = s[n / 4][n % 4];
            finish(x, b, page, lo, g, t);
#pragma unroll
            for (int n = 0; n < 16; n++)
                s[n / 4][n % 4] = x[n / 4][n % 4];
        }
        soften<D>(st, weights, s);
#pragma unroll
        for (int p = 0; p < side<D>::PARTS; p++) {
            add_values<D>(st, weights, next_part(r), p);
            part_read<D>(r, w, what);
        }
    }
}

template <int D, int W, int ROWS> __device__ static void attend_halves(const tern_cuda_attn_args &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    constexpr int ROOM = TERN_CUDA_HALVES_ROOM(D, W, ROWS), PLACES = ROWS > 4 ? 1 : 2;
    static_assert(PLACES * PLACE(W, D, ROWS) * 4 <= ROOM && TERN_CUDA_RAW_BYTES(D, 32 * W, ROWS) <= ROOM, "");
    const int warp = threadIdx.x / 32;
    cuda_start_next();
    ring r = {(uint32_t)__cvta_generic_to_shared(shared + ROOM) + warp * a.stages * PART, a.stages, 0, cuda_once()};
    deal mine = deal_out(a); /* tables are older than the kernel before */
    bool waits = true;
    for (; mine.left > 0; mine.pair++, mine.at = 0) {
        block_rows b;
        if (!find_rows(b, a, mine.pair / a.n_blocks, mine.pair % a.n_blocks, 0))
            continue;
        const row_ranges ranges = ranges_of(b);
        const int all = a.l.n_heads * a.n_split * (ranges.n + 1) - mine.at, items = mine.left < all ? mine.left : all;
        int split = mine.at / (ranges.n + 1), z = mine.at % (ranges.n + 1), had = -1, what = 0;
        walk w;
        softmax<D> st;
        uint32_t q[D / 16][2];
        if (waits && b.raw0 > b.closed) { /* pages that were closed before the step are there */
            cuda_wait();
            waits = false;
        }
        walk_begin(w, b, ranges, warp, W, split, z, items);
        for (int i = 0, slot = r.slot; i < r.stages; i++, slot = slot + 1 == r.stages ? 0 : slot + 1)
            fetch_next<D>(r, slot, w, what);
        if (waits)
            cuda_wait();
        waits = false;
#pragma unroll 1
        for (int i = 0; i < items; i++) {
            int begin, end;
            if (split != had) {
                had = split;
                find_heads(b, split);
                load_query<D>(q, b, threadIdx.x % 32 / 4, threadIdx.x % 4);
            }
            if (z == 0) {
                __syncthreads(); /* the places are its room, too */
                attend_raw_apart<D, 32 * W, ROWS>(b, shared);
            } else {
                const int rows = b.n_q > 4 ? TERN_CUDA_Q : 4;
                float *room = reinterpret_cast<float *>(shared) + (rows == 4 && i % 2 ? PLACE(W, D, 4) : 0);
                pages_of(b, ranges, z - 1, begin, end);
                take_range<D, W>(b, st, q, r, w, what, begin, end);
                put_together<D, W, ROWS>(b, st, room, rows, ranges.first + z - 1);
            }
            z = z == ranges.n ? 0 : z + 1;
            split += z == 0;
        }
        __syncthreads(); /* before other rows' turn to put down */
        mine.left -= items;
    }
    if (waits)
        cuda_wait();
}

#define KERNEL(d, warps, rows)                                                        \
    TERN_CUDA_KERNEL_BEGIN(halves_##d##_##warps, tern_cuda_attn_args, 32 * warps, 1) \
    {                                                                                \
        attend_halves<d, warps, rows>(a);                                            \
    }
KERNEL(64, 8, 8)
KERNEL(128, 8, 8)
KERNEL(256, 8, 8)
KERNEL(64, 4, 8)
KERNEL(128, 4, 8)
KERNEL(256, 4, 4)

/* Attention of decode rows on closed pages of 16-bit floats: tensor cores, and pages as they lie.
 *
 * A warp takes whole pages, those of a range whose number is its own modulo WARPS, keys and values as a stage each, and
 * keeps its own softmax; warps are put together in order.  Rows of a product are q rows, eight of them real; what a lane
 * contracts over is a quarter of the dims, and of the tokens, so that it reads 16 bytes at a time; a quarter begins 32
 * bytes behind the end of the last, so that lanes meet no bank twice.  Keys lie by dim and values by token, so pairs are
 * made by a permutation of bytes.
 *
 * Sums of floats are written with their rounding. */
#include "dev/cuda/attn/decode.cuh"
#include "dev/cuda/attn/raw.cuh"
#include "dev/cuda/attn/ring.cuh"

#define WARPS   4
#define THREADS (32 * WARPS)
#define ROWS    TERN_CUDA_Q

template <int D> struct side {
    static constexpr int QUARTER = 32 * D, STEP = QUARTER + 32, BYTES = 4 * STEP;
};

template <int D> struct softmax {
    float m, l, o[D / 8][4]; /* of row g; o: dims 64 h + 8 (2t + i) + j in o[8 h + j][i] */
};

__device__ static inline float power(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ static inline void multiply(float c[4], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(0u), "r"(a2), "r"(0u), "r"(b0), "r"(b1));
}

__device__ static inline uint4 piece(uint32_t at)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
}

__device__ static inline uint32_t word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ static inline uint32_t two(float x, float y)
{
    const __half2 h = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint32_t *>(&h);
}

__device__ static inline float clamped(float x)
{
    return x < 65504.0f ? x > -65504.0f ? x : -65504.0f : 65504.0f;
}

/* Row g's query: dims (D/4) t + 4 s .. + 3 for step s. */
template <int D> __device__ static void load_query(uint32_t q[D / 16][2], const block_rows &b, int g, int t)
{
#pragma unroll
    for (int s = 0; s < D / 16; s++) {
        float x[4] = {0, 0, 0, 0};
        if (g < b.n_q)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = clamped(__fmul_rn(query_of(b, g, D)[D / 4 * t + 4 * s + j], b.a->q_scale));
        q[s][0] = two(x[0], x[1]);
        q[s][1] = two(x[2], x[3]);
    }
}

/* Eight columns' words of two lines, as pairs: out[2 i], out[2 i + 1] from word i. */
__device__ static inline void pairs(uint32_t out[8], const uint4 &x, const uint4 &y)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out[2 * i] = __byte_perm(word(x, i), word(y, i), 0x5410);
        out[2 * i + 1] = __byte_perm(word(x, i), word(y, i), 0x7632);
    }
}

/* s[j][i]: row g, token 16 t + 8 i + j. */
template <int D> __device__ static void score(float s[8][4], const uint32_t q[D / 16][2], uint32_t keys, int g, int t)
{
    const uint32_t at = keys + t * side<D>::STEP + g * 16;
#pragma unroll
    for (int j = 0; j < 8; j++)
        s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t b0[8], b1[8];
        pairs(b0, piece(at + (4 * k) * 128), piece(at + (4 * k + 1) * 128));
        pairs(b1, piece(at + (4 * k + 2) * 128), piece(at + (4 * k + 3) * 128));
#pragma unroll
        for (int j = 0; j < 8; j++)
            multiply(s[j], q[k][0], q[k][1], b0[j], b1[j]);
    }
}

/* What may not be seen, and the cap. */
__device__ static __noinline__ void finish(float s[8][4], const block_rows &b, int page, int lo, int g, int t)
{
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            s[j][i] = g < b.n_q ? seen_score(b, s[j][i], g, 16 * t + 8 * i + j, page, lo, 64) : -INFINITY;
}

/* Weights in place of scores. */
template <int D> __device__ static void soften(softmax<D> &st, float s[8][4])
{
    float most = fmaxf(s[0][0], s[0][1]), sum = 0;
#pragma unroll
    for (int j = 1; j < 8; j++)
        most = fmaxf(most, fmaxf(s[j][0], s[j][1]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(fmaxf(most, __shfl_xor_sync(~0u, most, 2)), st.m);
    const float from = most == -INFINITY ? 0 : most;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        s[j][0] = power(__fsub_rn(s[j][0], from));
        s[j][1] = power(__fsub_rn(s[j][1], from));
        sum = __fadd_rn(sum, __fadd_rn(s[j][0], s[j][1]));
    }
    const float shrink = st.m == most ? 1.0f : power(__fsub_rn(st.m, from));
    st.l = __fmaf_rn(st.l, shrink, sum);
    st.m = most;
    if (__any_sync(~0u, shrink != 1.0f))
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            st.o[n][0] = __fmul_rn(st.o[n][0], shrink);
            st.o[n][1] = __fmul_rn(st.o[n][1], shrink);
        }
}

template <int D> __device__ static void add_values(softmax<D> &st, const float s[8][4], uint32_t values, int g, int t)
{
    const uint32_t at = values + t * side<D>::STEP + g * 16;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t a0 = two(s[2 * k][0], s[2 * k][1]), a2 = two(s[2 * k + 1][0], s[2 * k + 1][1]);
#pragma unroll
        for (int h = 0; h < D / 64; h++) {
            uint32_t b0[8], b1[8];
            pairs(b0, piece(at + (2 * k) * 2 * D + h * 128), piece(at + (2 * k + 8) * 2 * D + h * 128));
            pairs(b1, piece(at + (2 * k + 1) * 2 * D + h * 128), piece(at + (2 * k + 9) * 2 * D + h * 128));
#pragma unroll
            for (int j = 0; j < 8; j++)
                multiply(st.o[8 * h + j], a0, a2, b0[j], b1[j]);
        }
    }
}

/* The next side of the walk's page on its way into `slot`, keys and then values, or nothing. */
template <int D> __device__ static inline void fetch_next(const ring &r, int slot, walk &w, int &what)
{
    if (!walk_done(w)) {
        const tern_cuda_layer &l = w.b->a->l;
        const uint8_t *from = w.from + (what ? l.v_off : l.k_off);
        const uint32_t to = ring_at(r, slot);
        if (ring_asks()) {
            ring_expect(r, slot, 4 * side<D>::QUARTER);
#pragma unroll
            for (int i = 0; i < 4; i++)
                ring_copy(r, slot, to + i * side<D>::STEP, from + i * side<D>::QUARTER, side<D>::QUARTER);
        }
        __syncwarp();
        what ^= 1;
        if (what == 0)
            walk_on(w);
    }
    ring_commit();
}

/* Warps' results put together in order, into the range's place. */
template <int D> __device__ static void put_together(const block_rows &b, const softmax<D> &st, float *room, int range)
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float *m = room + WARPS * ROWS * D, *l = m + WARPS * ROWS, sum = st.l;
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    __syncthreads(); /* nobody reads the room any more */
#pragma unroll
    for (int n = 0; n < D / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            room[(warp * ROWS + g) * D + n / 8 * 64 + 8 * (2 * t + i) + n % 8] = st.o[n][i];
    if (t == 0) {
        m[warp * ROWS + g] = st.m;
        l[warp * ROWS + g] = sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < b.n_q * (D / 2); e += THREADS) { /* two dims each */
        const int row = e / (D / 2), d = e % (D / 2) * 2;
        float most = m[row], x = 0, y = 0, all = 0;
#pragma unroll
        for (int i = 1; i < WARPS; i++)
            most = fmaxf(most, m[i * ROWS + row]);
        const float from = most == -INFINITY ? 0 : most;
#pragma unroll
        for (int i = 0; i < WARPS; i++) {
            const float by = power(__fsub_rn(m[i * ROWS + row], from));
            const float2 v = *reinterpret_cast<const float2 *>(room + (i * ROWS + row) * D + d);
            x = __fmaf_rn(by, v.x, x);
            y = __fmaf_rn(by, v.y, y);
            all = __fmaf_rn(by, l[i * ROWS + row], all);
        }
        float *part = part_at(b, row, range % TERN_CUDA_RANGES);
        *reinterpret_cast<float2 *>(part + d) = make_float2(x, y);
        if (d == 0) {
            part[D] = most;
            part[D + 1] = all;
        }
    }
}

/* One range of the block's rows: the warp's pages. */
template <int D>
__device__ static inline void take_range(const block_rows &b, softmax<D> &st, const uint32_t q[D / 16][2], ring &r, walk &w,
                                         int &what, int begin, int end)
{
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const int seen = oldest_seen(b.a->l, row_pos(b, b.n_q - 1));
    st.m = -INFINITY;
    st.l = 0;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
        st.o[n][0] = st.o[n][1] = st.o[n][2] = st.o[n][3] = 0;
#pragma unroll 1
    for (int page = first_page(begin, warp, WARPS); page < end; page += WARPS) {
        const int lo = page ? 0 : b.a->l.first;
        float s[8][4];
        ring_wait(r);
        score<D>(s, q, ring_at(r, r.slot), g, t);
        ring_read();
        fetch_next<D>(r, r.slot, w, what);
        ring_on(r);
        if (b.a->cap > 0 || lo || seen > page * 64) {
            float x[8][4]; /* what a function gets has an address, and so no registers */
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[j][0] = s[j][0], x[j][1] = s[j][1];
            finish(x, b, page, lo, g, t);
#pragma unroll
            for (int j = 0; j < 8; j++)
                s[j][0] = x[j][0], s[j][1] = x[j][1];
        }
        soften<D>(st, s);
        ring_wait(r);
        add_values<D>(st, s, ring_at(r, r.slot), g, t);
        ring_read();
        fetch_next<D>(r, r.slot, w, what);
        ring_on(r);
    }
}

template <int D> __device__ static void attend_halves(const tern_cuda_attn_args &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    __shared__ __align__(8) uint64_t barriers[WARPS * 8];
    constexpr int ROOM = TERN_CUDA_HALVES_ROOM(D);
    static_assert(WARPS == 4 && ROWS == 8, "");
    const int warp = threadIdx.x / 32;
    ring r;
    cuda_start_next();
    ring_open(r, (uint32_t)__cvta_generic_to_shared(shared + ROOM) + warp * a.stages * side<D>::BYTES,
              (uint32_t)__cvta_generic_to_shared(barriers + warp * 8), side<D>::BYTES, a.stages);
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
        walk_begin(w, b, ranges, warp, WARPS, split, z, items);
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
                __syncthreads();
                attend_raw_apart<D, THREADS, ROWS>(b, shared);
            } else {
                pages_of(b, ranges, z - 1, begin, end);
                take_range<D>(b, st, q, r, w, what, begin, end);
                put_together<D>(b, st, reinterpret_cast<float *>(shared), ranges.first + z - 1);
            }
            z = z == ranges.n ? 0 : z + 1;
            split += z == 0;
        }
        mine.left -= items;
    }
    if (waits)
        cuda_wait();
}

TERN_CUDA_KERNEL_BEGIN(halves_64, tern_cuda_attn_args, THREADS, 1)
{
    attend_halves<64>(a);
}

TERN_CUDA_KERNEL_BEGIN(halves_128, tern_cuda_attn_args, THREADS, 1)
{
    attend_halves<128>(a);
}

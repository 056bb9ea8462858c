/* Products of 9 to 16 decode rows: the numbers of products.cu, to the bit, in fewer instructions.
 *
 * A warp multiplies two panels by 16 rows, so that rows are read, and dots begun, once for both.  It has a part of the sum
 * and two of its four chains: half of each unit, blocks 0 to 3 or 4 to 7.  So eight parts are 16 warps, all of a
 * processor, and what they multiply is one pair of panels after another.
 *
 * Rows lie in shared memory as lanes read them, 16 rows side by side: all of them from the beginning (resident), or, where
 * they are too long for that, each half unit with its weights.
 *
 * Parts are put together by four of the warps, each time others.  The rest go on, and wait only before they leave parts of
 * the next pair, until those have read. */
#include "dev/cuda/products/unit.cuh"

#define PANELS 2
#define LEFT   TERN_CUDA_PAIRS_LEFT
#define ROWS   TERN_CUDA_PAIRS_ROWS
#define SUMS   TERN_CUDA_PAIRS_SUMS
#define CODES  2048 /* where scales begin behind rows' codes */
#define DEPTH  TERN_CUDA_PAIRS_DEPTH

/* Half a unit of two panels, as it lies in shared memory: codes of both, then scales of both, region by region.  The
 * second half needs no minima that are multiplied by the unit.  Inputs are whole units. */
template <int C, int S, int HALF> struct half_unit {
    using unit = unit_of<C, S>;
    static constexpr bool super = unit::k32 || unit::k16, by_unit = minima_by_unit<S>();
    static constexpr int codes = unit::codes / 2, d = super ? unit::d : unit::d / 2, a = unit::a / 2,
                         m = HALF && by_unit ? 0 : unit::m, b = HALF && by_unit ? 0 : unit::b, scales = d + a + m + b,
                         bytes = PANELS * (codes + scales);
    static constexpr bool sums = by_unit && !HALF; /* of rows */
    static constexpr int rows = ROWS + (sums ? SUMS : 0);

    __device__ static scales_at of(const uint8_t *slot, int panel)
    {
        const uint8_t *s = slot + PANELS * codes + panel * scales;
        return {s, s + d + a, s + d, s + d + a + m};
    }
};

/* What the warps of a block share, and what of it is the warp's.  The first of them have the first halves of units. */
struct pairs_room {
    uint8_t *left, *rows, *ring; /* sums that were left; resident rows; the warp's ring */
    int lane, warp, parts, part, units;
};

/* The launch's panels that a block has, two at a time where two belong to one product. */
struct pairs_of {
    const tern_cuda_narrow &a;
    int panel, end, nth, behind; /* product; the first panel that is another's */

    __device__ explicit pairs_of(const tern_cuda_narrow &of)
        : a(of), panel((int)((int64_t)blockIdx.y * of.n_panels / gridDim.y)),
          end((int)((int64_t)(blockIdx.y + 1) * of.n_panels / gridDim.y)), nth(-1), behind(0)
    {
        find();
    }
    __device__ void find()
    {
        while (panel >= behind && nth + 1 < a.n_m) {
            nth++;
            behind = nth + 1 < a.n_m ? a.m[nth + 1].panel0 : a.n_panels;
        }
    }
    __device__ const tern_cuda_product &product() const
    {
        return a.m[nth];
    }
    __device__ int width() const
    {
        return min(PANELS, min(end, behind) - panel);
    }
    __device__ void next()
    {
        panel += width();
        if (panel >= behind)
            find();
    }
    __device__ bool over() const
    {
        return panel >= end;
    }
};

/* ---- weights and rows on their way ------------------------------------------------------------------------------- */

/* What a warp asks for, from pair to pair: a ring of half units, which it alone fills and reads. */
template <int C, int S, bool RESIDENT, int HALF> struct half_feed {
    using half = half_unit<C, S, HALF>;
    static constexpr int PIECES = (PANELS * half::scales + 511) / 512,
                         slot_bytes = half::bytes + (RESIDENT ? 0 : half::rows);
    const tern_cuda_narrow &a;
    pairs_of at;
    const uint8_t *codes, *scales[PIECES], *rows, *row_scales; /* the lane's, of unit 0 */
    uint64_t once;
    /* Where the lane copies to.  Not "slot times bytes": ptxas 13.0 makes illegal instructions of copies whose address is
     * the lane's and a number that all lanes share. */
    uint32_t to;
    int step[PIECES], from[PIECES]; /* pieces of scales: from one unit to the next; in a panel, negative: none */
    int u, slot, width, apart, more, next_eight, lane, part, units; /* more: pairs of the same product */

    __device__ half_feed(const tern_cuda_narrow &args, const pairs_room &r)
        : a(args), at(args), once(cuda_once()), to(lane_address(r.ring)), u(r.part), slot(0),
          lane(r.lane), part(r.part), units(r.units)
    {
        const uint64_t row0 = (uint64_t)blockIdx.z * a.head_rows + blockIdx.x * 16;
        const uint8_t *x = cuda_at<const uint8_t>(a.q8) + row0 * a.row_bytes;
        /* where there is no further eight, the same one again */
        next_eight = a.n_rows - (int)blockIdx.x * 16 > 8 ? 8 * (int)a.row_bytes : 0;
        rows = x + HALF * 1024 + lane * 8;
        row_scales = x + (lane < 16 ? 0 : next_eight) + 8 * a.m[0].w.k + lane % 16 * 8;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            find_piece(i, (lane + 32 * i) * 16);
        begin_pair();
    }
    __device__ void region(int i, int at, int begin, uint32_t region, int bytes, int first, int of_unit)
    {
        if (at >= begin && at < begin + bytes) {
            from[i] = (int)region + first + at - begin;
            step[i] = of_unit;
        }
    }
    /* Scales' piece at `at` of both panels'. */
    __device__ void find_piece(int i, int at)
    {
        using unit = unit_of<C, S>;
        const tern_cuda_matrix &w = a.m[0].w;
        from[i] = -1;
        step[i] = 0;
        if (at >= half::scales)
            at -= half::scales;
        region(i, at, 0, w.d, half::d, half::d < unit::d ? HALF * half::d : 0, unit::d);
        region(i, at, half::d, w.a, half::a, HALF * half::a, unit::a);
        region(i, at, half::d + half::a, w.m, half::m, 0, unit::m);
        region(i, at, half::d + half::a + half::m, w.b, half::b, 0, unit::b);
    }
    __device__ void begin_pair()
    {
        if (at.over())
            return;
        const tern_cuda_product &m = at.product();
        const uint8_t *p = panel_at(m, (uint64_t)blockIdx.z * a.matrix_bytes, at.panel);
        width = at.width();
        more = (min(at.end, at.behind) - at.panel) / PANELS - 1;
        apart = width > 1 ? (int)m.w.panel_bytes : 0;
        codes = p + HALF * half::codes + lane * 16;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            scales[i] = p + from[i] + ((lane + 32 * i) * 16 >= half::scales ? apart : 0);
    }
    __device__ void next_pair()
    {
        u = part;
        if (more > 0) {
            more--;
            at.panel += PANELS;
            codes += PANELS * (int64_t)apart;
#pragma unroll
            for (int i = 0; i < PIECES; i++)
                scales[i] += PANELS * (int64_t)apart;
            return;
        }
        at.next();
        begin_pair();
    }
    __device__ static uint32_t lane_address(const uint8_t *shared)
    {
        return (uint32_t)__cvta_generic_to_shared(shared) + threadIdx.x % 32 * 16;
    }
    /* Rows of half a unit, and of the unit sums, if minima want them.  What a lane reads of both eights lies together. */
    __device__ void ask_rows(uint32_t to, uint32_t sums, int u) const
    {
        const uint8_t *x = rows + (uint32_t)u * 2048u, *y = x + next_eight, *s = row_scales + (uint32_t)u * 256u;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            cuda_copy_8(to + j * 512, x + j * 256);
            cuda_copy_8(to + j * 512 + 8, y + j * 256);
        }
        cuda_copy_8(to + CODES - lane / 16 * 248, s + HALF * 128);
        if (half::sums)
            cuda_copy_16(sums, s + a.m[0].w.k + lane % 16 * 8);
    }
    __device__ void ask_weights() const
    {
        const uint8_t *c = codes + (uint32_t)u * (uint32_t)(2 * half::codes);
#pragma unroll
        for (int i = 0; i < PANELS; i++)
#pragma unroll
            for (int n = 0; n < half::codes; n += 512)
                if ((i == 0 || width > 1) && (n + 512 <= half::codes || lane * 16 + n < half::codes))
                    cuda_copy_16(to + i * half::codes + n, c + i * (int64_t)apart + n, once);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            if ((lane + 32 * i) * 16 < PANELS * half::scales)
                cuda_copy_16(to + PANELS * half::codes + 512 * i, scales[i] + (uint32_t)u * (uint32_t)step[i],
                             once);
    }
    /* The next half unit is asked for: into the slot that was taken, once all lanes have read it. */
    __device__ void ask(bool with_rows)
    {
        if (!at.over()) {
            ask_weights();
            if (with_rows)
                ask_rows(to + half::bytes, to + half::bytes + ROWS, u);
            u += a.parts;
            if (u >= units)
                next_pair();
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        to += slot + 1 < DEPTH ? slot_bytes : -(DEPTH - 1) * slot_bytes;
        slot = slot + 1 < DEPTH ? slot + 1 : 0;
    }
    /* The ring for the first time: weights before the kernel before has ended, one after another (products.cu), then rows. */
    __device__ void fill(const pairs_room &r)
    {
#pragma unroll 1
        for (int i = 0; i < DEPTH; i++) {
            ask(false);
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        cuda_wait();
        const int own = (int)threadIdx.x / 32 - HALF * a.parts; /* as `to`: each lane's number */
        int of = part;
        if (RESIDENT) {
            uint32_t at = lane_address(r.rows) + (2 * own + HALF) * ROWS,
                     sums = lane_address(r.rows) + units * 2 * ROWS + own * SUMS;
#pragma unroll 1
            for (; of < units; of += a.parts, at += a.parts * 2 * ROWS, sums += a.parts * SUMS)
                ask_rows(at, sums, of);
        } else {
#pragma unroll 1
            for (uint32_t i = 0, at = to + half::bytes; i < DEPTH; i++, at += slot_bytes) {
                ask_rows(at, at + ROWS, of);
                of = of + a.parts < units ? of + a.parts : part;
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        if (RESIDENT)
            __syncthreads();
    }
    /* Where the oldest half unit that was asked for lies. */
    __device__ const uint8_t *take(const pairs_room &r) const
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(DEPTH - 1) : "memory");
        __syncwarp();
        return r.ring + slot * slot_bytes;
    }
};

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* P panels by 16 rows: two chains of each output. */
template <int C, int S, int HALF, int P> struct half_sums {
    using half = half_unit<C, S, HALF>;
    float chain[P][2][2][4]; /* panel, eight, chain, number of the lane's four */
    int lane, g, t;

    __device__ explicit half_sums(int of_lane) : lane(of_lane), g(of_lane / 4), t(of_lane % 4)
    {
#pragma unroll
        for (int i = 0; i < P * 16; i++)
            chain[i / 16][i / 8 % 2][i / 4 % 2][i % 4] = 0;
    }
    /* What is multiplied in block j of the half, as it lies. */
    struct block {
        uint4 q; /* of rows: an eight each */
        float4 s;
        piece<C> raw[P];
    };
    __device__ void load(block &o, const uint8_t *slot, const uint8_t *x, int j) const
    {
        o.q = *reinterpret_cast<const uint4 *>(x + j * 512 + lane * 16);
        o.s = *reinterpret_cast<const float4 *>(x + CODES + j * 64 + t * 16);
#pragma unroll
        for (int i = 0; i < P; i++)
            load_piece<C>(o.raw[i], slot + i * half::codes + j * codes_unit(C), t, g);
    }
    __device__ void add_block(const block &o, const tern_cuda_matrix &m, const uint8_t *slot, int j)
    {
        const int zero = kind_zero(S) ? m.zero : 0;
        dots<S> start[2];
        start_dots<S>(start[0], zero, o.q.x, o.q.y);
        start_dots<S>(start[1], zero, o.q.z, o.q.w);
#pragma unroll
        for (int i = 0; i < P; i++) {
            block_codes code;
            two_scales sc;
            scales_of<S>(sc, m, half::of(slot, i), j, g);
            expand_block<C>(code, o.raw[i], t, m.table);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float s0 = e ? o.s.z : o.s.x, s1 = e ? o.s.w : o.s.y;
                float *to = chain[i][e][j / 2];
                dots<S> d;
                dots_from<S>(d, start[e], code, e ? o.q.z : o.q.x, e ? o.q.w : o.q.y);
#pragma unroll
                for (int v = 0; v < 4; v++) /* row v / 2 of the panel's two, column v % 2 */
                    to[v] = add_part<S>(to[v], d, sc, v / 2, v % 2, v % 2 ? s1 : s0, 0);
            }
        }
    }
    __device__ void add_minima(const uint8_t *slot, const uint8_t *sums)
    {
        const float *at = reinterpret_cast<const float *>(sums) + t * 8 + g;
#pragma unroll
        for (int i = 0; i < P; i++) {
            unit_minima minima;
            make_minima<S>(minima, half::of(slot, i), t, g);
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float v[4];
                multiply_minima(v, minima, at[e * 64], at[e * 64 + 32]);
#pragma unroll
                for (int r = 0; r < 4; r++)
                    chain[i][e][0][r] = __fmaf_rn(minima.by[r / 2], v[r], chain[i][e][0][r]);
            }
        }
    }
    /* For those that put parts together: panel and eight, lane. */
    __device__ void leave(uint8_t *own) const
    {
#pragma unroll
        for (int i = 0; i < P * 2; i++) {
            const float(*c)[4] = chain[i / 2][i % 2];
            reinterpret_cast<float4 *>(own)[i * 32 + lane] =
                make_float4(__fadd_rn(c[0][0], c[1][0]), __fadd_rn(c[0][1], c[1][1]), __fadd_rn(c[0][2], c[1][2]),
                            __fadd_rn(c[0][3], c[1][3]));
        }
    }
};

/* Barriers of a block: sums were left; they were read by all of those who read them; there is room for the next ones.  Of
 * the last one there are two, in turn: who read goes on without it, and may be at the next one first. */
enum { FULL = 1, READ, FREE, FREE_AFTER };

__device__ static inline void meet(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Goes on at once. */
__device__ static inline void arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Both halves' chains, then up to eight parts in order. */
__device__ static inline float4 sum_left(const float4 *at, int parts)
{
    const int apart = LEFT / 16;
    const float4 *other = at + parts * apart;
    float4 sum = add_four(at[0], other[0]);
#pragma unroll
    for (int i = 1; i < 8; i++)
        if (i < parts)
            sum = add_four(sum, add_four(at[i * apart], other[i * apart]));
    return sum;
}

/* Outputs of `width` panels out of what the warps left, a lane's four at a time. */
__device__ static inline void put_pair(const tern_cuda_narrow &a, const pairs_of &at, const pairs_room &r, int first,
                                       int threads)
{
    const tern_cuda_product &m = at.product();
#pragma unroll 1
    for (int n = first; n < at.width() * 64; n += threads) {
        const float4 sum = sum_left(reinterpret_cast<const float4 *>(r.left) + n, r.parts);
        const int row = blockIdx.x * 16 + n / 32 % 2 * 8 + r.lane % 4 * 2,
                  col = (at.panel - m.panel0 + n / 64) * 16 + r.lane / 4 * 2;
        float *y = cuda_at<float>(m.y) + (uint64_t)row * m.y_stride + blockIdx.z * a.y_head + col;
        const float *bias = cuda_at<const float>(m.bias) + col;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float v0 = c ? sum.z : sum.x, v1 = c ? sum.w : sum.y;
            if (col + c >= m.w.n)
                continue;
            if (m.bias) {
                v0 = __fadd_rn(v0, bias[c]);
                v1 = __fadd_rn(v1, bias[c]);
            }
            if (row < a.n_rows)
                y[c] = v0;
            if (row + 1 < a.n_rows)
                y[m.y_stride + c] = v1;
        }
    }
}

/* Some warps of the second half, which has no minima, put a pair together; the others go on.  They wait for those only
 * where they are to leave sums again. */
template <int HALF> struct readers {
    const pairs_room &r;
    int warps, first; /* of this pair */
    int room;         /* the barrier before sums are left */
    bool before;      /* was this warp one of the last pair's? */

    __device__ explicit readers(const pairs_room &of)
        : r(of), warps(min(4, of.parts)), first(of.parts), room(FREE), before(true)
    {
    }
    __device__ void before_leaving() const
    {
        if (!before)
            meet(room, r.parts * 64);
    }
    __device__ void left(const tern_cuda_narrow &a, const pairs_of &at)
    {
        const int own = r.warp - first;
        before = HALF && own >= 0 && own < warps;
        room = FREE + FREE_AFTER - room;
        if (before) {
            meet(FULL, r.parts * 64);
            put_pair(a, at, r, own * 32 + r.lane, warps * 32);
            if (at.panel + at.width() < at.end) {
                meet(READ, warps * 32);
                arrive(room, r.parts * 64);
            }
        } else {
            arrive(FULL, r.parts * 64);
        }
        first = first + warps < 2 * r.parts ? first + warps : r.parts;
    }
};

/* P panels: the warp's part and half of them. */
template <int C, int S, bool RESIDENT, int HALF, int P>
__device__ static inline void multiply_pair(const tern_cuda_matrix &m, half_feed<C, S, RESIDENT, HALF> &f,
                                            const pairs_room &r, const readers<HALF> &before)
{
    using half = half_unit<C, S, HALF>;
    half_sums<C, S, HALF, P> sum(r.lane);
#pragma unroll 1
    for (int u = r.part; u < r.units; u += r.parts) {
        const uint8_t *slot = f.take(r), *x = RESIDENT ? r.rows + (2 * u + HALF) * ROWS : slot + half::bytes,
                      *sums = RESIDENT ? r.rows + r.units * 2 * ROWS + u * SUMS : x + ROWS;
        typename half_sums<C, S, HALF, P>::block now, next;
        sum.load(next, slot, x, 0);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            now = next;
            if (j < 3)
                sum.load(next, slot, x, j + 1);
            sum.add_block(now, m, slot, j);
            if (half::sums && j == 1)
                sum.add_minima(slot, sums);
        }
        __syncwarp();
        f.ask(!RESIDENT);
    }
    before.before_leaving();
    sum.leave(r.left + r.warp * LEFT);
}

template <int C, int S, bool RESIDENT, int HALF>
__device__ static inline void pairs_half(const tern_cuda_narrow &a, const pairs_room &r)
{
    half_feed<C, S, RESIDENT, HALF> f(a, r);
    readers<HALF> reading(r);
    f.fill(r);
#pragma unroll 1
    for (pairs_of at(a); !at.over(); at.next()) {
        const tern_cuda_matrix &m = at.product().w;
        if (at.width() > 1)
            multiply_pair<C, S, RESIDENT, HALF, 2>(m, f, r, reading);
        else
            multiply_pair<C, S, RESIDENT, HALF, 1>(m, f, r, reading);
        reading.left(a, at);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

template <int C, int S, bool RESIDENT> __device__ static inline void pairs(const tern_cuda_narrow &a)
{
    constexpr int first = half_feed<C, S, RESIDENT, 0>::slot_bytes * DEPTH,
                  second = half_feed<C, S, RESIDENT, 1>::slot_bytes * DEPTH;
    extern __shared__ __align__(128) uint8_t shared[];
    pairs_room r;
    r.lane = threadIdx.x % 32;
    r.warp = __shfl_sync(0xFFFFFFFFu, (int)threadIdx.x / 32, 0); /* the compiler sees that a warp has one */
    r.parts = a.parts;
    r.units = a.m[0].w.k / 256;
    r.left = shared;
    r.rows = shared + 2 * r.parts * LEFT;
    r.ring = r.rows + (RESIDENT ? r.units * (2 * ROWS + SUMS) : 0);
    if (r.warp < r.parts) {
        r.part = r.warp;
        r.ring += r.part * first;
        pairs_half<C, S, RESIDENT, 0>(a, r);
    } else {
        r.part = r.warp - r.parts;
        r.ring += r.parts * first + r.part * second;
        pairs_half<C, S, RESIDENT, 1>(a, r);
    }
}

#define PAIRS(c, s)                                                                               \
    TERN_CUDA_KERNEL_BEGIN(pairs_##c##_##s, tern_cuda_narrow, 32 * TERN_CUDA_PAIRS_WARPS, 1)    \
    {                                                                                             \
        pairs<TERN_CODES_##c, TERN_SCALES_##s, true>(a);                                          \
    }                                                                                             \
    TERN_CUDA_KERNEL_BEGIN(pairs_##c##_##s##_long, tern_cuda_narrow, 32 * TERN_CUDA_PAIRS_WARPS, 1) \
    {                                                                                             \
        pairs<TERN_CODES_##c, TERN_SCALES_##s, false>(a);                                         \
    }
TERN_CUDA_PAIRS_KINDS(PAIRS)
#undef PAIRS

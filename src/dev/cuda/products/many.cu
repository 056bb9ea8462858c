/* Products of many decode rows: the numbers of products.cu, to the bit, where rows are so many that reading weights is
 * no longer what takes longest.
 *
 * A warp multiplies two panels by 32 rows.  The eight warps of a block of threads are pairs of panels, groups of 32 rows
 * and shares of the sum; how many of each, the launch says.  All go through the inputs together, a unit of 256 for each
 * share at a time, whose weights and rows lie in shared memory: so the block reads its rows once for all its panels,
 * where each panel's warps would read all of them (64 rows of 4,096 inputs are 330 KB, more than lies next to a
 * processor).
 *
 * A sum is that of up to eight parts in order.  They wait in shared memory: the sum of those before, where a warp
 * has all parts, and each where warps have shares of them. */
#include "dev/cuda/products/unit.cuh"

#define WARPS   TERN_CUDA_MANY_WARPS
#define PANELS  TERN_CUDA_MANY_PANELS
#define EIGHTS  (TERN_CUDA_MANY_ROWS / 8)
#define EIGHT   TERN_CUDA_MANY_EIGHT
#define SCALES  2048 /* where an eight's scales begin, and its scaled sums */
#define SUMS    2304
#define NEVER   (1 << 24) /* behind any unit */
#define LEFT    (PANELS * EIGHTS * 4 * 32) /* floats that a warp leaves of a part */
#define THREADS (32 * WARPS)

/* What the block of threads has, and what of it the warp.  Numbers of warps, panels and parts are powers of two. */
struct place {
    int pairs, groups, shares, pair, group, share;
    int panel0, eight0;       /* the block's first */
    int units, rounds, each;  /* units of a panel; most of a part; parts of a share */
    int lane, warp;

    __device__ explicit place(const tern_cuda_narrow &a)
        : groups(a.groups), shares(a.shares), lane(threadIdx.x % 32), warp(threadIdx.x / 32)
    {
        const int of_groups = log2_of(groups), of_shares = log2_of(shares);
        pairs = WARPS >> (of_groups + of_shares);
        share = warp & (shares - 1);
        group = warp >> of_shares & (groups - 1);
        pair = warp >> (of_shares + of_groups);
        panel0 = blockIdx.y * pairs * PANELS;
        eight0 = blockIdx.x * groups * EIGHTS;
        units = (a.m[0].w.k + 255) / 256;
        rounds = (units + a.parts - 1) >> log2_of(a.parts);
        each = a.parts >> of_shares;
    }
    __device__ static int log2_of(int n)
    {
        return 31 - __clz(n);
    }
};

/* What is read in a step: of each share its panels' units, then its eights of rows.  A warp copies two of each, or fewer:
 * number warp, and eight on. */
template <int C, int S> struct stages {
    using unit = unit_of<C, S>;
    const place &p;
    unit_copy<C, S> copies;
    const uint8_t *shared, *panel[2], *eight[2];
    uint32_t at;
    int panels, eights, bytes, behind; /* of a share: panels, eights; of a stage; where its rows are */
    int of_panel[2], of_eight[2];      /* first unit, or one that is never there */
    int scales;                        /* where the lane's of an eight begin, or sums */

    __device__ stages(const tern_cuda_narrow &a, const place &of, const uint8_t *memory)
        : p(of), copies(a.m[0].w, of.lane), shared(memory), at((uint32_t)__cvta_generic_to_shared(memory)),
          panels(of.pairs * PANELS), eights(of.groups * EIGHTS)
    {
        const int k = a.m[0].w.k, last = (a.n_rows - 1) / 8, lane16 = of.lane * 16;
        behind = of.shares * panels * unit::bytes;
        bytes = behind + of.shares * eights * EIGHT;
        scales = 8 * k + (of.lane < 16 ? 0 : k - 256); /* half of the lanes have scales, half of them sums */
        const uint8_t *rows = cuda_at<const uint8_t>(a.q8) + (uint64_t)blockIdx.z * a.head_rows * a.row_bytes + lane16;
#pragma unroll
        for (int i = 0; i < 2; i++) { /* behind the last panel it comes again, and the last eight */
            const int nth = of.warp + i * WARPS;
            const int w_share = nth >> place::log2_of(panels), x_share = nth >> place::log2_of(eights);
            const int n = min(of.panel0 + (nth & (panels - 1)), a.n_panels - 1);
            panel[i] = panel_at(a.m[product_of(a, n)], (uint64_t)blockIdx.z * a.matrix_bytes, n);
            of_panel[i] = w_share < of.shares ? w_share * of.each : NEVER;
            eight[i] = rows + (uint64_t)min(of.eight0 + (nth & (eights - 1)), last) * (8 * a.row_bytes);
            of_eight[i] = x_share < of.shares ? x_share * of.each : NEVER;
        }
    }
    __device__ const uint8_t *weights_of(int stage) const
    {
        return shared + stage * bytes + (p.share * panels + p.pair * PANELS) * unit::bytes;
    }
    __device__ const uint8_t *rows_of(int stage) const
    {
        return shared + stage * bytes + behind + (p.share * eights + p.group * EIGHTS) * EIGHT;
    }
    /* u: the unit of share 0. */
    __device__ void ask_weights(int u, int stage) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (of_panel[i] + u < p.units)
                copies.copy(at + stage * bytes + (p.warp + i * WARPS) * unit::bytes, panel[i], of_panel[i] + u);
    }
    /* Behind an eight's last block lie other numbers of the scratch. */
    __device__ void ask_rows(int u, int stage) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int own = of_eight[i] + u;
            const uint32_t to = at + stage * bytes + behind + (p.warp + i * WARPS) * EIGHT + p.lane * 16;
            if (own >= p.units)
                continue;
#pragma unroll
            for (int n = 0; n < SCALES; n += 512)
                cuda_copy_16(to + n, eight[i] + own * 2048 + n);
            if (p.lane < 16 || kind_minimum(S))
                cuda_copy_16(to + SCALES, eight[i] + own * 256 + scales);
        }
    }
};

/* Two panels by 32 rows: the four chains of each output (products.cu). */
template <int C, int S> struct warp_sums {
    using unit = unit_of<C, S>;
    float chain[PANELS][EIGHTS][4][4];
    const tern_cuda_product *m[PANELS];
    int lane, g, t, blocks;

    __device__ warp_sums(const tern_cuda_narrow &a, const place &p)
        : lane(p.lane), g(p.lane / 4), t(p.lane % 4), blocks(a.m[0].w.k / 32)
    {
#pragma unroll
        for (int i = 0; i < PANELS; i++) {
            const int n = min(p.panel0 + p.pair * PANELS + i, a.n_panels - 1);
            m[i] = &a.m[product_of(a, n)];
        }
    }
    __device__ void begin_part()
    {
#pragma unroll
        for (int i = 0; i < PANELS * EIGHTS * 16; i++)
            chain[i / (EIGHTS * 16)][i / 16 % EIGHTS][i / 4 % 4][i % 4] = 0;
    }
    /* Block j of unit u by all rows. */
    __device__ void add_block(const uint8_t *w, const uint8_t *x, int u, int j)
    {
        const int zero = kind_zero(S) ? m[0]->w.zero : 0;
        const bool there = kind_whole(S) || u * 8 + j < blocks;
        block_codes code[PANELS];
        two_scales sc[PANELS];
#pragma unroll
        for (int i = 0; i < PANELS; i++) {
            piece<C> raw;
            load_piece<C>(raw, w + i * unit::bytes + j * codes_unit(C), t, g);
            expand_block<C>(code[i], raw, t, m[i]->w.table);
            scales_of<S>(sc[i], m[i]->w, unit::scales(w + i * unit::bytes), j, g);
        }
#pragma unroll
        for (int c = 0; c < EIGHTS; c++) {
            const uint8_t *eight = x + c * EIGHT;
            const uint2 two = *reinterpret_cast<const uint2 *>(eight + j * 256 + lane * 8);
            float2 s = make_float2(0, 0), n = s;
            if (there)
                s = *reinterpret_cast<const float2 *>(eight + SCALES + j * 32 + t * 8);
            if (there && kind_minimum(S) && !minima_by_unit<S>())
                n = *reinterpret_cast<const float2 *>(eight + SUMS + j * 32 + t * 8);
            dots<S> start, d;
            start_dots<S>(start, zero, two.x, two.y);
#pragma unroll
            for (int i = 0; i < PANELS; i++) {
                dots_from<S>(d, start, code[i], two.x, two.y);
                float *to = chain[i][c][j / 2];
#pragma unroll
                for (int v = 0; v < 4; v++) /* row v / 2 of the panel's two, column v % 2 */
                    to[v] = add_part<S>(to[v], d, sc[i], v / 2, v % 2, v % 2 ? s.y : s.x, v % 2 ? n.y : n.x);
            }
        }
    }
    __device__ void add_minima(const uint8_t *w, const uint8_t *x, int u)
    {
        unit_minima minima[PANELS];
        const int left = kind_whole(S) ? 8 : blocks - u * 8;
#pragma unroll
        for (int i = 0; i < PANELS; i++)
            make_minima<S>(minima[i], unit::scales(w + i * unit::bytes), t, g);
#pragma unroll
        for (int c = 0; c < EIGHTS; c++) {
            const float *sums = reinterpret_cast<const float *>(x + c * EIGHT + SUMS) + t * 8 + g;
            const float sum0 = t < left ? sums[0] : 0, sum1 = t + 4 < left ? sums[32] : 0;
#pragma unroll
            for (int i = 0; i < PANELS; i++) {
                float v[4];
                multiply_minima(v, minima[i], sum0, sum1);
#pragma unroll
                for (int r = 0; r < 4; r++)
                    chain[i][c][0][r] = __fmaf_rn(minima[i].by[r / 2], v[r], chain[i][c][0][r]);
            }
        }
    }
    __device__ void add_unit(const uint8_t *w, const uint8_t *x, int u)
    {
#pragma unroll
        for (int j = 0; j < 8; j++)
            add_block(w, x, u, j);
        if (minima_by_unit<S>())
            add_minima(w, x, u);
    }
    __device__ float part(int i, int c, int v) const
    {
        return sum_chains(chain[i][c][0][v], chain[i][c][1][v], chain[i][c][2][v], chain[i][c][3][v]);
    }
    /* A part is done: into shared memory, alone or added to what is there.  Panel, eight, lane, number of the lane's four. */
    __device__ void end_part(float *to, bool alone) const
    {
#pragma unroll
        for (int i = 0; i < PANELS; i++)
#pragma unroll
            for (int c = 0; c < EIGHTS; c++) {
                float4 *at = reinterpret_cast<float4 *>(to) + (i * EIGHTS + c) * 32 + lane;
                const float4 sum = make_float4(part(i, c, 0), part(i, c, 1), part(i, c, 2), part(i, c, 3));
                *at = alone ? sum : add_four(*at, sum);
            }
    }
};

/* All outputs of the block of threads, out of what its warps left of each of `parts`.  A thread has a lane's four, of all
 * warps: as many threads as a warp leaves fours. */
__device__ static inline void put_outputs(const tern_cuda_narrow &a, const place &p, const float *left, int parts)
{
    static_assert(THREADS == PANELS * EIGHTS * 32, "");
    const int nth = threadIdx.x / 32, g = p.lane / 4, t = p.lane % 4;
    const float4 *own = reinterpret_cast<const float4 *>(left) + threadIdx.x;
    const int apart = p.pairs * p.groups * (LEFT / 4);
    for (int pair = 0; pair < p.pairs; pair++) {
        const int panel = p.panel0 + pair * PANELS + nth / EIGHTS;
        if (panel >= a.n_panels)
            return;
        const tern_cuda_product &m = a.m[product_of(a, panel)];
        const int col = (panel - m.panel0) * 16 + 2 * g;
        for (int group = 0; group < p.groups; group++, own += LEFT / 4) {
            const int row = (p.eight0 + group * EIGHTS + nth % EIGHTS) * 8 + 2 * t;
            float4 sum = own[0];
#pragma unroll
            for (int i = 1; i < 8; i++)
                if (i < parts)
                    sum = add_four(sum, own[i * apart]);
            if (row < a.n_rows && col < m.w.n)
                put_output(a, m, sum.x, row, col);
            if (row + 1 < a.n_rows && col < m.w.n)
                put_output(a, m, sum.y, row + 1, col);
            if (row < a.n_rows && col + 1 < m.w.n)
                put_output(a, m, sum.z, row, col + 1);
            if (row + 1 < a.n_rows && col + 1 < m.w.n)
                put_output(a, m, sum.w, row + 1, col + 1);
        }
    }
}

template <int C, int S> __device__ static inline void many(const tern_cuda_narrow &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const place p(a);
    const stages<C, S> from(a, p, shared);
    warp_sums<C, S> sum(a, p);
    const bool alone = p.shares == 1;
    float *left = reinterpret_cast<float *>(shared + 2 * from.bytes), *own_sums = left + (p.pair * p.groups + p.group) * LEFT;
    const int apart = p.pairs * p.groups * LEFT;
    int stage = 0, part = 0, u = 0;   /* u: of share 0 */
    from.ask_weights(0, 0);           /* weights are there before the step is */
    cuda_wait();
    from.ask_rows(0, 0);
    asm volatile("cp.async.commit_group;" ::: "memory");
    sum.begin_part();
#pragma unroll 1
    while (part < p.each) {
        const int own = u + p.share * p.each, was = part;
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads(); /* the stage is there, and all have left the other one */
        u += a.parts;
        if (u >= p.rounds * a.parts)
            u = ++part;
        if (part < p.each) {
            from.ask_weights(u, stage ^ 1);
            from.ask_rows(u, stage ^ 1);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (own < p.units)
            sum.add_unit(from.weights_of(stage), from.rows_of(stage), own);
        stage ^= 1;
        if (part != was) {
            sum.end_part(own_sums + (alone ? 0 : p.share * p.each + was) * apart, !alone || was == 0);
            sum.begin_part();
        }
    }
    __syncthreads();
    put_outputs(a, p, left, alone ? 1 : a.parts);
}

#define MANY(c, s)                                                                \
    TERN_CUDA_KERNEL_BEGIN(many_##c##_##s, tern_cuda_narrow, THREADS, 1)          \
    {                                                                             \
        many<TERN_CODES_##c, TERN_SCALES_##s>(a);                                 \
    }
TERN_NARROW_KINDS(MANY)
#undef MANY

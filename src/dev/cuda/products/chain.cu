/* What one decode row goes through behind its attention, as one kernel: the product that ends attention, norm, gate and
 * up, down, norm, and the next layer's first products.
 *
 * Weights do not depend on what is computed, so they never stop to come: a ring of stages is filled in the order in which
 * they will be read, across all products, while blocks of threads meet.  There is one block on each processor, and all
 * meet three times: a product's outputs belong to all, and each block makes the norm for itself.
 *
 * Every number is made as the kernels apart make it (products.cu, rows.cu), in the same order, and rounded where they do:
 * what a step answers does not depend on whether it had this kernel.
 *
 * Outputs go as words that say which row they are of (chain.h), so threads behind a meeting look whether they are there, and
 * a meeting need not wait until they are.  CARDS: each of several cards has some outputs of every product, and sends them to
 * the others as well. */
#include "dev/cuda/barrier.cuh"
#include "dev/cuda/gates.cuh"
#include "dev/cuda/norm.cuh"
#include "dev/cuda/products/chain_words.cuh"
#include "dev/cuda/products/unit.cuh"
#include "dev/cuda/quantize.cuh"

#define THREADS (TERN_CUDA_CHAIN_WARPS * 32) /* that multiply */
#define UNITS   TERN_CUDA_CHAIN_UNITS
enum { OUT, HALVES, PAIRS, DOWN, NEXT, PHASES }; /* HALVES and PAIRS: gate and up */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || defined TERN_TEST_EMULATE_H

/* ---- threads and blocks ---- */

/* Those that multiply meet. */
__device__ static inline void multipliers_meet()
{
    asm volatile("bar.sync 1, %0;" ::"n"(THREADS) : "memory");
}

/* Without its sign, as bits. */
__device__ static inline uint32_t absolute(float x)
{
    return __float_as_uint(x) & 0x7FFFFFFFu;
}

/* ---- what is where ---- */

/* Shared memory, and which of the panels are this block's. */
template <int C, int S> struct room {
    using unit = unit_of<C, S>;
    static constexpr uint32_t stage_bytes = UNITS * unit::bytes;
    static_assert(4096 + 64 + 16 * TERN_CUDA_CHAIN_STAGES + 56 + sizeof(tern_cuda_chain) <= TERN_CUDA_CHAIN_BESIDE,
                  "parts, sums, barriers and arguments");
    uint8_t *stages, *row;
    float *kept;                                /* of the residual, each thread's own */
    float (*part)[2][2][TERN_CUDA_CHAIN_UNITS][16]; /* [buffer][group][of two][part][column] */
    float *sums;
    uint32_t pace; /* int: stages under way at once */
    uint32_t number; /* uint32_t: of the row that the first product makes */
    uint32_t full, empty, parted, freed, met, told; /* barriers; of each stage; of each buffer of parts; of a meeting; of
                                                     * the number */
    int n_stages;

    __device__ room(const tern_cuda_chain &a, uint8_t *shared) : n_stages(a.stages)
    {
        part = reinterpret_cast<float(*)[2][2][TERN_CUDA_CHAIN_UNITS][16]>(shared);
        sums = reinterpret_cast<float *>(shared + 4096);
        full = (uint32_t)__cvta_generic_to_shared(shared + 4096 + 64);
        empty = full + 8 * TERN_CUDA_CHAIN_STAGES;
        parted = empty + 8 * TERN_CUDA_CHAIN_STAGES;
        freed = parted + 16;
        met = freed + 16;
        told = met + 8;
        pace = told + 8;
        number = pace + 4;
        row = shared + TERN_CUDA_CHAIN_BESIDE;
        kept = reinterpret_cast<float *>(row + a.row_bytes);
        stages = row + a.row_bytes + a.m[1].w.k * 4;
    }
    /* A hint, from one thread to another: strong accesses, which order nothing. */
    __device__ void set_pace(int n) const
    {
        asm volatile("st.relaxed.cta.shared::cta.u32 [%0], %1;" ::"r"(pace), "r"(n) : "memory");
    }
    __device__ int see_pace() const
    {
        uint32_t n;
        asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];" : "=r"(n) : "r"(pace) : "memory");
        return (int)n;
    }
    /* By one thread: all others would ask for the same word of memory. */
    __device__ void tell_number(uint32_t n) const
    {
        asm volatile("st.relaxed.cta.shared::cta.u32 [%0], %1;" ::"r"(number), "r"(n) : "memory");
        barrier_arrive(told);
    }
    __device__ uint32_t get_number() const
    {
        uint32_t n;
        barrier_wait(told, 0);
        asm volatile("ld.relaxed.cta.shared::cta.u32 %0, [%1];" : "=r"(n) : "r"(number) : "memory");
        return n;
    }
    __device__ void open() const
    {
        const int t = threadIdx.x;
        if (t < n_stages) {
            barrier_open(full + 8 * t, 1);
            barrier_open(empty + 8 * t, UNITS);
        }
        if (t < 2) {
            barrier_open(parted + 8 * t, TERN_CUDA_CHAIN_WARPS);
            barrier_open(freed + 8 * t, 1);
        }
        if (t == 0) {
            barrier_open(met, 1);
            barrier_open(told, 1);
            set_pace(TERN_CUDA_CHAIN_PACE);
        }
        barriers_opened();
    }
};

/* A product, or two of the same row, of which each block takes items in turn: two panels, one for each group of warps, or,
 * of gate and up, a panel of both for each group.
 *
 * Gate and up come in pairs of panels, for 32 of their outputs are a block of int8.  Pairs that would be left over when all
 * blocks have as many are taken first, by two blocks each (HALVES): one panel of gate and one of up. */
struct phase {
    int k, units, rounds, items; /* rounds of stages of a panel; items: panels, or pairs of panels of gate and up */
    int left;                    /* of HALVES and PAIRS: pairs that are halved; the first of them */
    int first;
    bool both, few;              /* few: others have more to do */

    __device__ phase(const tern_cuda_chain &a, int i)
    {
        const tern_cuda_matrix &w = a.m[i == OUT ? 0 : i == HALVES || i == PAIRS ? 1 : i == DOWN ? 3 : 4].w;
        const int block = (int)blockIdx.x, blocks = (int)gridDim.x;
        k = w.k;
        units = k / 256;
        rounds = (units + UNITS - 1) / UNITS;
        both = i == PAIRS;
        few = false;
        left = first = 0;
        int all = i == NEXT ? a.panels : w.n / 16;
        if (i == HALVES || i == PAIRS) {
            all = w.n / 32;
            left = all % blocks * 2 <= blocks ? all % blocks : 0;
            first = all - left;
            all = first;
        }
        items = i == HALVES ? (block < 2 * left ? 2 : 0) : (all - block + blocks - 1) / blocks;
        if (i == PAIRS)
            few = left ? block >= 2 * left : items * blocks < all;
    }
    /* Turns of all warps: one at least where a meeting waits for what they come to. */
    __device__ int turns(int i) const
    {
        return i == HALVES ? items : max(items, 1);
    }
    /* Groups that item i has work for. */
    __device__ int width(int i) const
    {
        return both ? (items ? 2 : 0) : min(2, items - i);
    }
    __device__ int step() const
    {
        return both ? 1 : 2;
    }
    __device__ int panel(int i, int g) const
    {
        if (left && !both)
            return 2 * first + blockIdx.x;
        return both ? (blockIdx.x + i * gridDim.x) * 2 + g : blockIdx.x + (i + g) * gridDim.x;
    }
    /* A group's turn: stages that it takes at once, two of them or the last one. */
    __device__ int turn() const
    {
        return both ? 1 : 2;
    }
    __device__ int at_once(int r) const
    {
        return both || r + 1 < rounds ? 2 : 1;
    }
};

__device__ static inline const tern_cuda_product &product_of_phase(const tern_cuda_chain &a, int i, int panel, int g)
{
    if (i < NEXT)
        return a.m[i == OUT ? 0 : i == HALVES ? 1 + g : 3];
    int m = 4;
    while (m + 1 < a.n_m && panel >= a.m[m + 1].panel0)
        m++;
    return a.m[m];
}

/* A place in the ring. */
struct place {
    int slot;
    uint32_t phase;

    __device__ void on(int n, int stages)
    {
        slot += n;
        if (slot >= stages) {
            slot -= stages;
            phase ^= 1;
        }
    }
};

/* ---- weights: one lane asks ---- */

template <int C, int S> struct asker {
    const room<C, S> &r;
    place at;   /* of the next stage */
    place wait; /* of the oldest one that may be under way */
    int asked, there;
    uint64_t once;

    __device__ void region(uint32_t &to, const uint8_t *panel, uint32_t from, int unit_bytes, int first, int n) const
    {
        if (!unit_bytes)
            return;
        barrier_copy(r.full + 8 * at.slot, to, panel + from + first * unit_bytes, n * unit_bytes, once);
        to += UNITS * unit_bytes;
    }
    /* Stage `round` of a panel. */
    __device__ void ask(const tern_cuda_product &m, int panel, int round, int units)
    {
        using unit = unit_of<C, S>;
        const uint8_t *p = panel_at(m, 0, panel);
        const int first = round * UNITS, n = min(UNITS, units - first);
        uint32_t to = (uint32_t)__cvta_generic_to_shared(r.stages + at.slot * r.stage_bytes);
        if (asked >= r.n_stages)
            barrier_wait(r.empty + 8 * at.slot, at.phase ^ 1);
        while (asked - there >= r.see_pace()) {
            barrier_wait(r.full + 8 * wait.slot, wait.phase);
            wait.on(1, r.n_stages);
            there++;
        }
        barrier_expect(r.full + 8 * at.slot, n * unit::bytes);
        region(to, p, 0, unit::codes, first, n);
        region(to, p, m.w.d, unit::d, first, n);
        region(to, p, m.w.m, unit::m, first, n);
        region(to, p, m.w.a, unit::a, first, n);
        region(to, p, m.w.b, unit::b, first, n);
        at.on(1, r.n_stages);
        asked++;
    }
};

template <int C, int S> __device__ static inline void ask_all(const tern_cuda_chain &a, const room<C, S> &r)
{
    asker<C, S> q = {r, {0, 0}, {0, 0}, 0, 0, cuda_once()};
#pragma unroll 1
    for (int i = 0; i < PHASES; i++) {
        const phase p(a, i);
#pragma unroll 1
        for (int item = 0; item < p.items; item += p.step())
#pragma unroll 1
            for (int round = 0; round < p.rounds; round += p.turn())
#pragma unroll 1
                for (int n = 0; n < p.width(item) * p.at_once(round); n++) {
                    const int g = n / p.at_once(round), of = n % p.at_once(round), panel = p.panel(item, g);
                    const tern_cuda_product &m = p.both ? a.m[1 + of] : product_of_phase(a, i, panel, g);
                    q.ask(m, panel, p.both ? round : round + of, p.units);
                }
    }
}

/* ---- outputs: one warp puts parts together ---- */

/* Where an output of a product goes, looked up before it is there. */
struct output {
    float *y;
    float bias;
    int col;
    bool real, biased;

    __device__ output(const tern_cuda_chain &a, const phase &p, int i, int item, int panel, int g, int c)
    {
        const tern_cuda_product &m = product_of_phase(a, i, panel, g);
        col = (panel - m.panel0) * 16 + c;
        real = !p.both && g < p.width(item) && col < m.w.n;
        biased = m.bias != 0;
        y = cuda_at<float>(m.y) + col;
        bias = real && biased ? cuda_at<const float>(m.bias)[col] : 0;
    }
    /* sent: in row `number`, which all blocks read. */
    template <bool CARDS> __device__ void put(const tern_cuda_chain &a, float v, bool sent, uint32_t number) const
    {
        if (!real)
            return;
        v = biased ? __fadd_rn(v, bias) : v;
        if (sent)
            send_word<CARDS>(a.cards, number, (CARDS ? a.cards.bound[a.cards.self] : 0) + col, __float_as_uint(v));
        *y = v;
    }
};

/* Column col of gate times up. */
__device__ static inline float put_gated(const tern_cuda_chain &a, float gate, float up, int col)
{
    if (a.m[1].bias)
        gate = __fadd_rn(gate, cuda_at<const float>(a.m[1].bias)[col]);
    if (a.m[2].bias)
        up = __fadd_rn(up, cuda_at<const float>(a.m[2].bias)[col]);
    const float v = gate_of(a.op, gate, up);
    cuda_at<float>(a.h)[col] = v; /* nobody reads up, and queries may lie in its place (model/forward_new.c) */
    return v;
}

/* Columns [32 b, 32 b + 32) of this card's, one a lane, as int8; half: which half of the words is the caller's, or -1: all. */
template <bool CARDS>
__device__ static inline void put_block(const tern_cuda_chain &a, float v, int b, int half, uint32_t number)
{
    /* the largest as bits: what is no number is larger than all that are */
    const float top = __uint_as_float(__reduce_max_sync(0xFFFFFFFFu, absolute(v)));
    float inv = __fdiv_rn(127.0f, top);
    inv = isinf(inv) ? 0 : inv;
    const int q = __float2int_rn(__fmul_rn(v, inv)), sum = __reduce_add_sync(0xFFFFFFFFu, q);
    const float scale = __fdiv_rn(top, 127.0f) + (top - top); /* not finite where top is not */
    b += (CARDS ? a.cards.h_bound[a.cards.self] : 0) / 32;
    send_block<CARDS>(a.cards, number, a.m[3].w.k, b, half, q, scale, __fmul_rn(scale, (float)sum));
}

/* Half a pair's 16 columns, each of two lanes, from the block to the one that has the other half. */
__device__ static inline void put_half(const tern_cuda_chain &a, float v, uint32_t number)
{
    if (threadIdx.x % 32 < 16)
        put_word(cuda_at<uint64_t>(a.halves) + blockIdx.x * 16 + threadIdx.x % 32, number, __float_as_uint(v));
}

/* Both halves, in order. */
__device__ static inline float both_halves(const tern_cuda_chain &a, float v, uint32_t number)
{
    const int lane = threadIdx.x % 32, other = (int)blockIdx.x ^ 1;
    const uint64_t *from = cuda_at<const uint64_t>(a.halves) + other * 16 + lane % 16;
    uint64_t x = 0, start = 0;
    if (lane / 16 == other % 2)
        for (x = look_at_word(from); (uint32_t)(x >> 32) != number; x = look_at_word(from))
            be_patient(start);
    __syncwarp();
    return lane / 16 == other % 2 ? __uint_as_float((uint32_t)x) : v;
}

/* All blocks have written what they had to, or will have in a moment: what is read behind a meeting are words, which say
 * themselves that they are there, so on one card nothing has to be ordered.  Cards need it (chain.h): what this one has read,
 * others may overwrite. */
template <bool CARDS> __device__ static inline void meet_all(const tern_cuda_chain &a, uint32_t met)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
        uint64_t come, all, start = 0;
        uint32_t looked = 0;
        const uint64_t *from = cuda_at<const uint64_t>(a.met);
        if (CARDS)
            asm volatile("atom.add.acq_rel.gpu.global.u64 %0, [%1], 1;" : "=l"(come) : "l"(cuda_at<uint64_t>(a.met)) : "memory");
        else
            asm volatile("atom.add.relaxed.gpu.global.u64 %0, [%1], 1;" : "=l"(come) : "l"(cuda_at<uint64_t>(a.met)) : "memory");
        all = (come / gridDim.x + 1) * gridDim.x;
        for (come++; come < all;) {
            if (CARDS)
                asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(come) : "l"(from) : "memory");
            else
                asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(come) : "l"(from) : "memory");
            if (++looked % 1024 == 0)
                be_patient(start);
        }
        barrier_arrive(met);
    }
}

/* number: of the row that the first product makes; those of gate times up and of down follow. */
template <int C, int S, bool CARDS>
__device__ static inline void put_all(const tern_cuda_chain &a, const room<C, S> &r, uint32_t number)
{
    const int lane = threadIdx.x % 32, g = lane / 16, c = lane % 16;
    int n = 0; /* items so far */
    float half = 0;
#pragma unroll 1
    for (int i = 0; i < PHASES; i++) {
        const phase p(a, i);
        const bool halved = p.both && (int)blockIdx.x < 2 * p.left;
#pragma unroll 1
        for (int item = 0; item < p.turns(i); item += p.step(), n++) {
            const int panel = p.panel(item, g);
            const output to(a, p, i, item, panel, g, c);
            if (halved && item + 1 >= p.items) /* the neighbour's half has been there for long by now */
                put_block<CARDS>(a, both_halves(a, half, number), p.first + blockIdx.x / 2, blockIdx.x % 2, number);
            barrier_wait(r.parted + 8 * (n & 1), n / 2 & 1);
            const float one = sum_parts(&r.part[n & 1][g][0][0][c], UNITS, 16);
            if (i == HALVES) {
                const float other = __shfl_xor_sync(0xFFFFFFFFu, one, 16);
                half = put_gated(a, g ? other : one, g ? one : other, panel * 16 + c);
                put_half(a, half, number);
            } else if (p.both && p.items) {
                const float v = put_gated(a, one, sum_parts(&r.part[n & 1][g][1][0][c], UNITS, 16), panel * 16 + c);
                put_block<CARDS>(a, v, panel / 2, -1, number);
            } else {
                to.put<CARDS>(a, one, i != NEXT, number);
            }
            __syncwarp();
            if (lane == 0)
                barrier_arrive(r.freed + 8 * (n & 1));
        }
        if (i == HALVES || i == NEXT)
            continue;
        number++;
        if (lane == 0)
            r.set_pace(TERN_CUDA_CHAIN_PACE_MEET);
        meet_all<CARDS>(a, r.met);
    }
}

/* ---- products ---- */

/* Of the row, what a lane multiplies a unit with. */
struct row_part {
    uint32_t x0, x1;
    float s[2], sum[2];
};

template <int S> __device__ static inline void load_row_part(row_part &r, const uint8_t *row, int k, int u, int g, int t)
{
    const uint2 two = reinterpret_cast<const uint2 *>(row)[(u * 8 + g) * 4 + t];
    const float *scales = reinterpret_cast<const float *>(row + k);
    r.x0 = two.x;
    r.x1 = two.y;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int b = u * 8 + 2 * t + i, of = minima_by_unit<S>() ? u * 8 + t + 4 * i : b;
        r.s[i] = scales[b];
        r.sum[i] = kind_minimum(S) && (g == 0 || !minima_by_unit<S>()) ? scales[k / 32 + of] : 0;
    }
}

/* Codes of four bits as they lie: of two blocks the low halves of the bytes in one product, the high halves, times 16, in
 * another, whose sum is a multiple of 16. */
__device__ static inline void multiply_nibbles(int d[4], uint32_t mask, const uint2 &a, const uint2 &b, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a.x & mask), "r"(a.y & mask), "r"(b.x & mask), "r"(b.y & mask), "r"(b0), "r"(b1));
}

/* Two units at once, for what one waits for the other has time. */
template <int C, int S> struct two_units {
    using unit = unit_of<C, S>;
    static_assert(C == TERN_CODES_U4 && !kind_halves(S) && !kind_zero(S), "codes are multiplied as they lie");
    dots<S> d[2];

    /* mask[j]: all bits where the lane's column is block j. */
    __device__ void multiply(const uint8_t *const stage[2], const row_part &r0, const row_part &r1, const uint32_t mask[8], int part, int g, int t)
    {
        const row_part *const r[2] = {&r0, &r1};
        piece<C> code[2][8];
        int high[2][4] = {};
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int j = 0; j < 8; j++)
                load_piece<C>(code[i][j], stage[i] + part * unit::codes + j * codes_unit(C), t, g);
            start_dots<S>(d[i], 0, r[i]->x0, r[i]->x1);
        }
#pragma unroll
        for (int j = 0; j < 8; j += 2)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t x0 = r[i]->x0 & mask[j], y0 = r[i]->x0 & mask[j + 1], x1 = r[i]->x1 & mask[j],
                               y1 = r[i]->x1 & mask[j + 1];
                multiply_nibbles(d[i].c[0], 0x0F0F0F0Fu, code[i][j].v[0], code[i][j + 1].v[0], x0, y0);
                multiply_nibbles(high[i], 0xF0F0F0F0u, code[i][j].v[0], code[i][j + 1].v[0], x1, y1);
            }
#pragma unroll
        for (int i = 0; i < 2; i++)
#pragma unroll
            for (int q = 0; q < 4; q++)
                d[i].c[0][q] += high[i][q] >> 4;
    }
    /* acc + unit i's. */
    __device__ void add(float acc[2], int i, const uint8_t *stage, const row_part &r, const tern_cuda_matrix &m, int part, int g,
                        int t) const
    {
        const uint8_t *s = stage + UNITS * unit::codes;
        const scales_at at = {s + part * unit::d, s + UNITS * unit::d + part * unit::m,
                              s + UNITS * (unit::d + unit::m) + part * unit::a,
                              s + UNITS * (unit::d + unit::m + unit::a) + part * unit::b};
        raw_scales<S> raw;
        load_scales<S>(raw, at, 2 * t, g);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            two_scales sc;
            make_scales<S>(sc, raw, m, j);
#pragma unroll
            for (int q = 0; q < 2; q++)
                acc[q] = add_part<S>(acc[q], d[i], sc, q, j, r.s[j], r.sum[j]);
        }
        if (minima_by_unit<S>()) {
            unit_minima minima;
            float c[4];
            make_minima<S>(minima, at, t, g);
            multiply_minima(c, minima, r.sum[0], r.sum[1]);
#pragma unroll
            for (int q = 0; q < 2; q++)
                acc[q] = t ? acc[q] : __fmaf_rn(minima.by[q], c[2 * q], acc[q]);
        }
    }
};

/* The products of a phase, as one warp has them.  BOTH: gate and up, whose units have the same part of the row. */
template <int C, int S, bool BOTH>
__device__ static inline void multiply_phase(const tern_cuda_chain &a, const room<C, S> &r, const phase &p, int turns, place &at, int &n)
{
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, group = threadIdx.x / 256, warp = threadIdx.x / 32 % 8;
    const tern_cuda_matrix &m = a.m[0].w; /* all are of one kind */
    uint32_t mask[8];
#pragma unroll
    for (int j = 0; j < 8; j++)
        mask[j] = g == j ? 0xFFFFFFFFu : 0;
#pragma unroll 1
    for (int item = 0; item < turns; item += p.step(), n++) {
        const int width = p.width(item);
        float acc[2] = {}, other[2] = {};
#pragma unroll 1
        for (int round = 0; round < p.rounds; round += BOTH ? 1 : 2) {
            const int once = BOTH || round + 1 < p.rounds ? 2 : 1;
            if (group < width) {
                place mine[2] = {at, at};
                const uint8_t *stage[2];
                row_part x[2];
                two_units<C, S> two;
                const int u = round * UNITS + warp;
                mine[0].on(group * once, r.n_stages);
                mine[1].on(group * once + once - 1, r.n_stages);
                load_row_part<S>(x[0], r.row, p.k, min(u, p.units - 1), g, t);
                if (!BOTH)
                    load_row_part<S>(x[1], r.row, p.k, min(u + UNITS, p.units - 1), g, t);
#pragma unroll
                for (int i = 0; i < 2; i++)
                    stage[i] = r.stages + mine[i].slot * r.stage_bytes;
                barrier_wait(r.full + 8 * mine[0].slot, mine[0].phase);
                barrier_wait(r.full + 8 * mine[1].slot, mine[1].phase);
                two.multiply(stage, x[0], x[!BOTH], mask, warp, g, t);
                if (u < p.units)
                    two.add(acc, 0, stage[0], x[0], m, warp, g, t);
                if (BOTH ? u < p.units : once == 2 && u + UNITS < p.units)
                    two.add(BOTH ? other : acc, 1, stage[1], x[!BOTH], m, warp, g, t);
                __syncwarp();
                if (lane < once)
                    barrier_arrive(r.empty + 8 * (lane ? mine[1].slot : mine[0].slot));
            }
            at.on(width * once, r.n_stages);
        }
        if (n > 1)
            barrier_wait(r.freed + 8 * (n & 1), (n / 2 - 1) & 1);
#pragma unroll
        for (int q = 0; q < 2; q++) {
            float v = acc[q], w = other[q];
            v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, 1));
            v = __fadd_rn(v, __shfl_xor_sync(0xFFFFFFFFu, v, 2));
            if (BOTH) {
                w = __fadd_rn(w, __shfl_xor_sync(0xFFFFFFFFu, w, 1));
                w = __fadd_rn(w, __shfl_xor_sync(0xFFFFFFFFu, w, 2));
            }
            if (t == 0) {
                r.part[n & 1][group][0][warp][2 * g + q] = v;
                if (BOTH)
                    r.part[n & 1][group][1][warp][2 * g + q] = w;
            }
        }
        __syncwarp();
        if (lane == 0)
            barrier_arrive(r.parted + 8 * (n & 1));
    }
}

/* ---- rows ---- */

/* A row of int8 with its scales. */
__device__ static inline void copy_row(uint8_t *row, uint64_t q8, int k)
{
    for (int i = threadIdx.x * 4; i < k / 4 + k / 16; i += THREADS * 4)
        *reinterpret_cast<float4 *>(row + i * 4) = load_shared_four(q8, i);
}

/* x * by, of at most 127, rounded to an integer: its lowest byte. */
__device__ static inline uint32_t rounded(float x, float by)
{
    return __float_as_uint(__fadd_rn(__fmul_rn(x, by), START));
}

/* Block b of 32 numbers, of which each of eight lanes side by side has four, from 4 i on: as int8 into the row. */
__device__ static inline void quantize_row(uint8_t *row, int n, int b, int i, float4 v)
{
    /* the largest as bits: what is no number is larger than all that are */
    uint32_t most = max(max(absolute(v.x), absolute(v.y)), max(absolute(v.z), absolute(v.w)));
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        most = max(most, __shfl_xor_sync(0xFFFFFFFFu, most, step));
    const float top = __uint_as_float(most);
    float inv = __fdiv_rn(127.0f, top);
    inv = isinf(inv) ? 0 : inv;
    const uint32_t low = __byte_perm(rounded(v.x, inv), rounded(v.y, inv), 0x0040),
                   high = __byte_perm(rounded(v.z, inv), rounded(v.w, inv), 0x0040), four = __byte_perm(low, high, 0x5410);
    int sum = __dp4a((int)four, 0x01010101, 0);
#pragma unroll
    for (int step = 1; step < 8; step *= 2)
        sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    reinterpret_cast<uint32_t *>(row)[b * 8 + i % 4 * 2 + i / 4] = four;
    if (i == 0) {
        const float scale = __fdiv_rn(top, 127.0f) + (top - top); /* not finite where top is not */
        float *scales = reinterpret_cast<float *>(row + n);
        scales[b] = scale;
        scales[n / 32 + b] = __fmul_rn(scale, (float)sum);
    }
}

/* The residual with what the product before adds to it, and its norm as int8: rows.cu's norm.  FIRST: the residual comes from
 * memory, else from what was kept; the second time block 0 writes all. */
template <int C, int S, bool CARDS, bool FIRST>
__device__ static inline void norm_row(const tern_cuda_chain &a, const room<C, S> &r)
{
    constexpr int EACH = TERN_CUDA_CHAIN_NORM / (4 * THREADS), STEP = THREADS * 4;
    const tern_cuda_chain_norm &norm = a.norm[FIRST ? 0 : 1];
    const int n = a.m[1].w.k, t = threadIdx.x * 4;
    float4 w[EACH], v[EACH];
    float squares = 0;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = min(t + j * STEP, n - 4);
        w[j] = *reinterpret_cast<const float4 *>(cuda_at<const float>(norm.w) + i);
        v[j] = FIRST ? load_shared_four(a.x, i) : *reinterpret_cast<const float4 *>(r.kept + i);
    }
    const uint32_t number = r.get_number() + (FIRST ? 0 : 2);
    barrier_wait(r.met, 0); /* the first meeting, or the third */
    row_words<EACH> came(a.cards, number);
    came.wait(t, STEP, n);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = t + j * STEP;
        if (i >= n)
            continue;
        const float4 plus = came.four[j].floats();
        if (CARDS && blockIdx.x == 0) /* what came from others, too */
            *reinterpret_cast<float4 *>(cuda_at<float>(norm.plus) + i) = plus;
        v[j] = make_float4(v[j].x + plus.x, v[j].y + plus.y, v[j].z + plus.z, v[j].w + plus.w);
        squares = norm_squares(squares, v[j]);
        if (FIRST)
            *reinterpret_cast<float4 *>(r.kept + i) = v[j];
        else if (blockIdx.x == 0)
            *reinterpret_cast<float4 *>(cuda_at<float>(a.x) + i) = v[j];
    }
#pragma unroll
    for (int step = 16; step; step /= 2)
        squares = __fadd_rn(squares, __shfl_xor_sync(0xFFFFFFFFu, squares, step));
    if (threadIdx.x % 32 == 0)
        r.sums[threadIdx.x / 32] = squares;
    multipliers_meet();
    squares = r.sums[threadIdx.x % 16];
#pragma unroll
    for (int step = 8; step; step /= 2)
        squares = __fadd_rn(squares, __shfl_xor_sync(0xFFFFFFFFu, squares, step));
    const float by = norm_factor(squares, n, norm.eps);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int i = t + j * THREADS * 4;
        if (i >= n)
            continue; /* whole warps: widths are multiples of 256 */
        v[j] = norm_times(v[j], by, w[j]);
        quantize_row(r.row, n, i / 32, i / 4 % 8, v[j]);
        if (!FIRST && blockIdx.x == 0)
            *reinterpret_cast<float4 *>(cuda_at<float>(a.n) + i) = v[j];
    }
    multipliers_meet();
    if (!FIRST && blockIdx.x == 0)
        for (int i = threadIdx.x; i < n / 4 + n / 16; i += THREADS)
            cuda_at<uint32_t>(a.q8)[i] = reinterpret_cast<const uint32_t *>(r.row)[i];
}

/* The first product's row, of which each card has some columns. */
template <int C, int S> __device__ static inline void in_row(const tern_cuda_chain &a, const room<C, S> &r, uint32_t number)
{
    const int k = a.m[0].w.k;
    send_columns(a.cards, a.cards.in_bound, number, a.cards.in, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
#pragma unroll 1
    for (int first = threadIdx.x * 4; first < k; first += 2 * THREADS * 4) {
        fours<2> came(a.cards, a.cards.in_bound, number, a.cards.in);
        came.wait(first, THREADS * 4, k);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int i = first + j * THREADS * 4;
            if (i < k) /* whole warps: widths are multiples of 256 */
                quantize_row(r.row, k, i / 32, i / 4 % 8, came.get(j, i, blockIdx.x == 0));
        }
    }
}

template <int C, int S, bool CARDS>
__device__ static inline void row_of_phase(const tern_cuda_chain &a, const room<C, S> &r, int i, int k)
{
    if (i == HALVES) {
        norm_row<C, S, CARDS, true>(a, r);
    } else if (i == NEXT) {
        norm_row<C, S, CARDS, false>(a, r);
    } else if (i != PAIRS) {
        if (i == DOWN) {
            barrier_wait(r.met, 1);
            receive_row(a.cards, r.get_number() + 1, r.row, k, THREADS);
        } else if (CARDS && a.cards.in) {
            in_row(a, r, r.get_number() - 1);
        } else {
            copy_row(r.row, a.q8, k);
        }
        multipliers_meet();
    }
}

/* One card: the number of the chain's first row, of how often blocks have met.  Others may have come to the first meetings of
 * this chain by now, but this block has not, so the number of all before is below the next multiple. */
__device__ static inline uint32_t number_alone(const tern_cuda_chain &a)
{
    cuda_wait();
    return (uint32_t)(look_at_word(cuda_at<const uint64_t>(a.met)) / (3 * gridDim.x)) * TERN_CUDA_TOGETHER_CHAIN + 1;
}

template <int C, int S, bool CARDS> __device__ static inline void chain(const tern_cuda_chain &a_)
{
    extern __shared__ __align__(128) uint8_t shared[];
    uint32_t *words = reinterpret_cast<uint32_t *>(shared + TERN_CUDA_CHAIN_BESIDE - sizeof a_);
    for (int i = threadIdx.x; i < (int)(sizeof a_ / 4); i += TERN_CUDA_CHAIN_THREADS)
        words[i] = reinterpret_cast<const uint32_t *>(&a_)[i];
    const tern_cuda_chain &a = *reinterpret_cast<const tern_cuda_chain *>(words);
    const room<C, S> r(a_, shared);
    r.open();
    __syncthreads();
    if (threadIdx.x >= THREADS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 64;");
        if (threadIdx.x == THREADS + 64)
            r.tell_number(CARDS ? (uint32_t)number_at(a.cards.number, a.cards.which) : number_alone(a));
        if (threadIdx.x == THREADS)
            ask_all<C, S>(a, r);
        cuda_wait();
        if (threadIdx.x / 32 == TERN_CUDA_CHAIN_WARPS + 1)
            put_all<C, S, CARDS>(a, r, r.get_number());
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
    cuda_wait();
    place at = {0, 0};
    int n = 0;
#pragma unroll 1
    for (int i = 0; i < PHASES; i++) {
        const phase p(a, i);
        row_of_phase<C, S, CARDS>(a, r, i, p.k);
        if (threadIdx.x == 0)
            r.set_pace(p.few ? TERN_CUDA_CHAIN_PACE_FEW : TERN_CUDA_CHAIN_PACE);
        if (p.both)
            multiply_phase<C, S, true>(a, r, p, p.turns(i), at, n);
        else
            multiply_phase<C, S, false>(a, r, p, p.turns(i), at, n);
    }
}

#define CHAIN_BODY(c, s, cards) chain<TERN_CODES_##c, TERN_SCALES_##s, cards>(a)
#else
#define CHAIN_BODY(c, s, cards) __trap() /* the host starts it on cards of 9.0 alone */
#endif

#define CHAIN(name, c, s, cards)                                               \
    TERN_CUDA_KERNEL_BEGIN(name, tern_cuda_chain, TERN_CUDA_CHAIN_THREADS, 1) \
    {                                                                         \
        CHAIN_BODY(c, s, cards);                                              \
    }
CHAIN(chain_U4_K32, U4, K32, false)
CHAIN(chain_cards_U4_K32, U4, K32, true)
#undef CHAIN

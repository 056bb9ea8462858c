/* Attention of prompt rows on tensor cores of compute capability 9.0: f16 operands, sums in f32.
 *
 * A block of threads has up to 128 q rows, 64 for each of two groups of four warps that multiply; a third group brings
 * pages, one after the other, into a ring.  Pages are halves as f16 keeps them, in the cache or where attn/expand.cu put
 * them, and then what is still raw, which lies the same way.  While a group multiplies its weights with the values of a
 * page, the scores of the next one become weights.
 *
 * A q row goes through the same steps whatever else is in its block: pages that it does not see leave it as it is. */
#include <cuda_fp16.h>
#include "dev/cuda/attn/block.cuh"
#include "dev/cuda/barrier.cuh"

#define THREADS 384
#define GROUP   128 /* threads that multiply together, or bring pages */
#define STAGES  6
#define BEHIND  2 /* pages that may be on their way while another one is asked for */

#if defined __CUDA_ARCH_FEAT_SM90_ALL || defined TERN_TEST_EMULATE_H

/* ---- products ---- */

/* Keeps the compiler from moving what it does with x to before a wait that x is ready behind. */
template <int N> __device__ static inline void hold(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("// hold" : "+f"(x[i])::"memory");
}

/* Rows of 128 bytes, of which eight make a pattern of 1024: 16-byte pieces change places by row. */
__device__ static inline uint32_t piece_at(int row, int piece)
{
    return (uint32_t)(row * 128 + ((piece ^ (row & 7)) << 4));
}

/* What the tensor cores are told of a matrix whose rows are contracted over: 64 columns a row, 1024 bytes from eight rows
 * to the next, 8 KB (64 rows: the tokens of a page) from these columns to the next 64. */
__device__ static inline uint64_t matrix_at(uint32_t at)
{
    return (uint64_t)(at >> 4 & 0x3FFF) | (uint64_t)(8192 >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* c (+)= 64 rows of a, 16 columns of them, by 64 columns of b; a warp has 16 rows, as those of mma.m16n8k16. */
__device__ static inline void multiply_new(float (&c)[32], const uint32_t a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 0, 1, 1, 1;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]),
        "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]),
        "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]),
        "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ static inline void multiply(float (&c)[32], const uint32_t a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]),
        "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]),
        "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]),
        "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* By 128 columns. */
__device__ static inline void multiply(float (&c)[64], const uint32_t a[4], uint64_t b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]),
        "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]),
        "+f"(c[17]), "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]), "+f"(c[24]),
        "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]), "+f"(c[32]),
        "+f"(c[33]), "+f"(c[34]), "+f"(c[35]), "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]),
        "+f"(c[41]), "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]), "+f"(c[48]),
        "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]), "+f"(c[56]),
        "+f"(c[57]), "+f"(c[58]), "+f"(c[59]), "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ static inline void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ static inline void products_end()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* ---- bringing pages ---- */

template <int D> struct wide_ring {
    static constexpr uint32_t SIDE = 128 * D, STAGE = 2 * SIDE;
    uint32_t at, full, empty; /* in shared memory; a barrier of 8 bytes for each stage */
    uint8_t *p;               /* where `at` is */
};

__device__ static inline uint32_t half_bits(float x)
{
    return __half_as_ushort(__float2half_rn(x < 65504.0f ? x > -65504.0f ? x : -65504.0f : 65504.0f));
}

__device__ static inline uint32_t two_halves(float x, float y)
{
    return half_bits(x) | half_bits(y) << 16;
}

/* Piece i (of eight numbers) of a side to a place in the ring; `real`: or zeros. */
template <int D>
__device__ static inline void bring_piece(const wide_ring<D> &r, uint32_t to, const uint8_t *side, int i, bool raw32, bool real)
{
    if (!raw32) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(r.at + to), "l"(side + 16 * i), "r"(real ? 16u : 0u)
                     : "memory");
        return;
    }
    const float4 *from = reinterpret_cast<const float4 *>(side) + 2 * i;
    const float4 x = from[0], y = from[1];
    *reinterpret_cast<uint4 *>(r.p + to) =
        real ? make_uint4(two_halves(x.x, x.y), two_halves(x.z, x.w), two_halves(y.x, y.y), two_halves(y.z, y.w))
             : make_uint4(0, 0, 0, 0);
}

/* Keys [dim][64], values [64][dim], of which the first `n` tokens count: what lies behind them may be anything. */
template <int D>
__device__ static inline void bring(const wide_ring<D> &r, uint32_t stage, const uint8_t *k, const uint8_t *v, bool k32,
                                    bool v32, int n)
{
    constexpr int PER_ROW = D / 8;
    const int i = threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < D * 8; j += GROUP)
        bring_piece<D>(r, stage + piece_at((i + j) / 8, (i + j) % 8), k, i + j, k32, true);
#pragma unroll
    for (int j = 0; j < 64 * PER_ROW; j += GROUP) {
        const int t = (i + j) / PER_ROW, piece = (i + j) % PER_ROW;
        bring_piece<D>(r, stage + wide_ring<D>::SIDE + piece / 8 * 8192 + piece_at(t, piece % 8), v, i + j, v32, t < n);
    }
}

/* Where closed pages of a block's KV head lie. */
struct wide_pages {
    const uint32_t *numbers; /* of the cache's pages, by page; NULL: expanded ones */
    uint64_t base, bytes;    /* page of number i from base + i * bytes on */
    int first;               /* expanded: the page of number 0 */
};

template <int D> __device__ static inline wide_pages find_pages(const block_rows &b)
{
    const tern_cuda_attn_args &a = *b.a;
    if (!a.expanded) {
        const tern_cuda_table &table = table_of(a.t, *b.job, a.l.group);
        const tern_cuda_cache &c = cuda_at<const tern_cuda_cache>(a.t.caches)[b.job->cache];
        const tern_cuda_blocks &pool = cuda_at<const tern_cuda_blocks>(a.t.pools)[c.pages + a.l.group];
        return {cuda_at<const uint32_t>(a.t.numbers) + table.blocks - table.first,
                pool.p + a.l.layer_off + b.kv_head * a.l.head_bytes, pool.bytes, 0};
    }
    const tern_cuda_job *jobs = cuda_at<const tern_cuda_job>(a.t.jobs);
    uint64_t before = 0;
    int first;
    for (int i = a.job0; i < b.job_i; i++)
        if (jobs[i].wide && jobs[i].cache == b.job->cache)
            before += tern_cuda_closed_pages(&a.l, jobs[i].pos0, jobs[i].n_rows, &first);
    tern_cuda_closed_pages(&a.l, b.job->pos0, b.job->n_rows, &first);
    const uint64_t bytes = wide_ring<D>::STAGE;
    return {nullptr, a.expanded + (before * a.kv_n + b.kv_head - a.kv0) * bytes, bytes * a.kv_n, first};
}

/* All pages from page0 to the rows' own, through the ring. */
template <int D> __device__ static void bring_all(const block_rows &b, const wide_ring<D> &r, const wide_pages &from)
{
    const tern_cuda_layer &l = b.a->l;
    const uint64_t k_off = from.numbers ? l.k_off : 0, v_off = from.numbers ? l.v_off : wide_ring<D>::SIDE;
    uint64_t next = from.numbers && b.page0 < b.raw0 ? from.numbers[b.page0] : 0;
    int n = 0;
    for (int page = b.page0; page <= b.own; page++, n++) {
        const uint32_t slot = n % STAGES;
        if (n >= STAGES)
            barrier_wait(r.empty + 8 * slot, (n / STAGES - 1) & 1);
        if (page < b.raw0) {
            const uint64_t number = from.numbers ? next : (uint64_t)(page - from.first);
            next = from.numbers && page + 1 < b.raw0 ? from.numbers[page + 1] : 0;
            const uint8_t *p = cuda_at<const uint8_t>(from.base + number * from.bytes);
            bring<D>(r, slot * wide_ring<D>::STAGE, p + k_off, p + v_off, false, false, 64);
        } else {
            const uint8_t *p = work_tile(b.a->t, l, b.a->stage, b.job_i, page, b.kv_head);
            bring<D>(r, slot * wide_ring<D>::STAGE, p, p + l.tile_v_off, l.k.raw32, l.v.raw32,
                     page == b.own ? row_pos(b, b.n_q - 1) % 64 + 1 : 64);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (n < BEHIND)
            continue;
        asm volatile("cp.async.wait_group %0;" ::"n"(BEHIND) : "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); /* for readers that are not threads */
        barrier_arrive(r.full + 8 * ((n - BEHIND) % STAGES));
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    for (int i = n < BEHIND ? 0 : n - BEHIND; i < n; i++)
        barrier_arrive(r.full + 8 * (i % STAGES));
}

/* ---- rows ---- */

/* Rows g and g + 8 of a warp. */
template <int D> struct wide_rows {
    float m[2], l[2], s[32], o[D / 2];
    uint32_t q[D / 16][4], p[4][4];
    int row[2], pos[2];
};

template <int D> __device__ static inline void load_rows(wide_rows<D> &w, const block_rows &b, int first)
{
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        w.m[r] = -INFINITY;
        w.l[r] = 0;
        w.row[r] = first + lane / 4 + 8 * r;
        w.pos[r] = row_pos(b, w.row[r]);
        const bool real = w.row[r] < b.n_q; /* others are 0, and do no harm */
        const float *q = real ? query_of(b, w.row[r], D) + lane % 4 * 2 : nullptr;
        const float scale = b.a->q_scale;
#pragma unroll
        for (int k = 0; k < D / 16; k++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float2 x = real ? *reinterpret_cast<const float2 *>(q + 16 * k + 8 * h) : float2{0, 0};
                w.q[k][2 * h + r] = two_halves(x.x * scale, x.y * scale);
            }
    }
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        w.o[i] = 0;
}

__device__ static inline float power(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* cap * tanh(s / cap) */
__device__ static inline float capped(float s, float cap)
{
    return cap * (1.0f - __fdividef(2.0f, 1.0f + power(s / cap * 2.885390082f)));
}

/* The cap, and what rows do not see of a page. */
template <int D> __device__ static inline void hide(wide_rows<D> &w, const block_rows &b, int page)
{
    const tern_cuda_layer &l = b.a->l;
    if (b.a->cap > 0)
#pragma unroll
        for (int i = 0; i < 32; i++)
            w.s[i] = capped(w.s[i], b.a->cap);
    if (page != b.own && oldest_seen(l, row_pos(b, b.n_q - 1)) <= page * 64)
        return;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int from = oldest_seen(l, w.pos[r]) - page * 64, to = page == b.own ? w.pos[r] % 64 + 1 : 64;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int t = i / 2 * 8 + threadIdx.x % 4 * 2 + i % 2, at = i / 2 * 4 + 2 * r + i % 2;
            w.s[at] = t >= from && t < to ? w.s[at] : -INFINITY;
        }
    }
}

/* Weights in place of scores; by what the sums of both rows shrink. */
template <int D> __device__ static inline float2 soften(wide_rows<D> &w)
{
    float shrink[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float most = w.m[r], sum = 0;
#pragma unroll
        for (int i = 0; i < 16; i++)
            most = fmaxf(most, w.s[i / 2 * 4 + 2 * r + i % 2]);
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float from = most == -INFINITY ? 0 : most;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float &s = w.s[i / 2 * 4 + 2 * r + i % 2];
            s = power(s - from);
            sum += s;
        }
        shrink[r] = power(w.m[r] - from);
        w.l[r] = w.l[r] * shrink[r] + sum; /* this lane's part */
        w.m[r] = most;
    }
    return {shrink[0], shrink[1]};
}

template <int D> __device__ static inline void pack(wide_rows<D> &w)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const __half2 h = __floats2half2_rn(w.s[8 * k + 2 * i], w.s[8 * k + 2 * i + 1]);
            w.p[k][i] = *reinterpret_cast<const uint32_t *>(&h);
        }
}

template <int D> __device__ static inline void ask_scores(wide_rows<D> &w, uint32_t keys)
{
    products_begin();
    multiply_new(w.s, w.q[0], matrix_at(keys));
#pragma unroll
    for (int k = 1; k < D / 16; k++)
        multiply(w.s, w.q[k], matrix_at(keys + 2048 * k));
    products_end();
}

template <int D> __device__ static inline void ask_sums(wide_rows<D> &w, uint32_t values)
{
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; k++)
        multiply(w.o, w.p[k], matrix_at(values + 2048 * k));
    products_end();
}

template <int D> __device__ static inline void shrink_sums(wide_rows<D> &w, float2 by)
{
    if (!__any_sync(~0u, by.x != 1.0f || by.y != 1.0f))
        return;
#pragma unroll
    for (int i = 0; i < D / 2; i++)
        w.o[i] *= i / 2 % 2 ? by.y : by.x;
}

template <int D> __device__ static void take_all(const block_rows &b, const wide_ring<D> &r, int group)
{
    constexpr uint32_t STAGE = wide_ring<D>::STAGE, SIDE = wide_ring<D>::SIDE;
    const int pages = b.own - b.page0 + 1;
    wide_rows<D> w;
    load_rows<D>(w, b, group * 64 + threadIdx.x / 32 % 4 * 16);
    barrier_wait(r.full, 0);
    ask_scores<D>(w, r.at);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    hold(w.s);
    hide<D>(w, b, b.page0);
    soften<D>(w);
    pack<D>(w);
#pragma unroll 1
    for (int n = 0; n + 1 < pages; n++) {
        const uint32_t slot = n % STAGES, next = (n + 1) % STAGES;
        barrier_wait(r.full + 8 * next, (n + 1) / STAGES & 1);
        ask_scores<D>(w, r.at + next * STAGE);
        ask_sums<D>(w, r.at + slot * STAGE + SIDE);
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        hold(w.s);
        hide<D>(w, b, b.page0 + n + 1);
        const float2 by = soften<D>(w);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        hold(w.o);
        if (threadIdx.x % 32 == 0)
            barrier_arrive(r.empty + 8 * slot);
        shrink_sums<D>(w, by);
        pack<D>(w);
    }
    ask_sums<D>(w, r.at + (pages - 1) % STAGES * STAGE + SIDE);
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    hold(w.o);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = w.l[h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (w.row[h] >= b.n_q)
            continue;
        const float by = 1.0f / sum;
        float *out = cuda_at<float>(b.a->out) + (uint64_t)(b.row0 + w.row[h] / b.heads) * b.a->out_stride +
                     (uint64_t)(b.head0 + w.row[h] % b.heads) * D + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            *reinterpret_cast<float2 *>(out + 8 * n) =
                float2{w.o[4 * n + 2 * h] * by + 0.0f, w.o[4 * n + 2 * h + 1] * by + 0.0f};
    }
}

template <int D> __device__ static void attend(const tern_cuda_attn_args &a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    const int units = gridDim.x - 1 - blockIdx.x; /* those that see most come first */
    block_rows b;
    wide_ring<D> r;
    if (!find_rows(b, a, units, a.kv0 * a.n_split + blockIdx.y)) {
        cuda_wait();
        return;
    }
    const wide_pages from = find_pages<D>(b); /* up to here tables alone, which no kernel writes */
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    r.at = (at + 1023) & ~1023u;
    r.p = shared + (r.at - at);
    r.full = r.at + STAGES * wide_ring<D>::STAGE;
    r.empty = r.full + 8 * STAGES;
    const int groups = b.n_q > 64 ? 2 : 1;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_open(r.full + 8 * i, GROUP);
            barrier_open(r.empty + 8 * i, 4 * groups);
        }
        barriers_opened();
    }
    __syncthreads();
    cuda_wait();
    const int group = threadIdx.x / GROUP - 1;
    if (group < 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 56;" ::: "memory");
        bring_all<D>(b, r, from);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 224;" ::: "memory");
        if (group < groups)
            take_all<D>(b, r, group);
    }
}

#else

template <int D> __device__ static void attend(const tern_cuda_attn_args &)
{
    __trap(); /* the host starts it on cards of 9.0 alone */
}

#endif

TERN_CUDA_KERNEL_BEGIN(wide_90_64, tern_cuda_attn_args, THREADS, 1)
{
    attend<64>(a);
}

TERN_CUDA_KERNEL_BEGIN(wide_90_128, tern_cuda_attn_args, THREADS, 1)
{
    attend<128>(a);
}

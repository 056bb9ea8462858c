/* Attention of prompt rows on tensor cores of compute capability 9.0: f16 operands, sums in f32.
 *
 * A block of threads has up to 128 q rows, 64 for each of two groups of four warps that multiply; a third group brings
 * pages, one after the other, into a ring.  While a group multiplies its weights with the values of a page, the scores of
 * the next one become weights. */
#include "dev/cuda/prompts/wide.cuh"
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

/* Keys [dim][64], values [64][dim], of which the first `n` tokens count: what lies behind them may be anything. */
template <int D>
__device__ static inline void bring(const wide_ring<D> &r, uint32_t stage, const uint8_t *k, const uint8_t *v, bool k32,
                                    bool v32, int n)
{
    constexpr int PER_ROW = D / 8;
    const int i = threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < D * 8; j += GROUP)
        {
        const uint32_t to = stage + piece_at((i + j) / 8, (i + j) % 8);
        bring_piece(r.at + to, r.p + to, k, i + j, k32, true);
    }
#pragma unroll
    for (int j = 0; j < 64 * PER_ROW; j += GROUP) {
        const int t = (i + j) / PER_ROW, piece = (i + j) % PER_ROW;
        const uint32_t to = stage + wide_ring<D>::SIDE + piece / 8 * 8192 + piece_at(t, piece % 8);
        bring_piece(r.at + to, r.p + to, v, i + j, v32, t < n);
    }
}

/* All pages from page0 to the rows' own, through the ring. */
template <int D> __device__ static void bring_all(const block_rows &b, const wide_ring<D> &r, const wide_pages &from)
{
    uint64_t next = from.numbers && b.page0 < b.raw0 ? from.numbers[b.page0] : 0;
    int n = 0;
    for (int page = b.page0; page <= b.own; page++, n++) {
        const uint32_t slot = n % STAGES;
        if (n >= STAGES)
            barrier_wait(r.empty + 8 * slot, (n / STAGES - 1) & 1);
        if (page < b.raw0) {
            const uint64_t number = from.numbers ? next : (uint64_t)(page - from.first);
            next = from.numbers && page + 1 < b.raw0 ? from.numbers[page + 1] : 0;
            const wide_page p = page_of<D>(b, from, page, number);
            bring<D>(r, slot * wide_ring<D>::STAGE, p.k, p.v, false, false, 64);
        } else {
            const wide_page p = page_of<D>(b, from, page, 0);
            bring<D>(r, slot * wide_ring<D>::STAGE, p.k, p.v, p.k32, p.v32, p.n);
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
    put_rows<D>(w, b);
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

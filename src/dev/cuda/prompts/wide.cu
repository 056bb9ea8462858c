/* Attention of prompt rows on tensor cores that take their operands out of registers (mma.sync): f16 operands, sums in f32.
 *
 * A block of threads has up to 64 q rows, 16 for each warp; there are two blocks on a processor, so that one multiplies while the
 * other makes weights.  Pages go through a ring of parts of 8 or 16 KB, keys and values of up to 128 dims; all threads ask for a
 * part as soon as all have read what was in its place, and meet once for each. */
#include "dev/cuda/prompts/wide.cuh"

#define THREADS (2 * TERN_CUDA_WIDE_ROWS) /* 16 q rows a warp */
#define STAGES  TERN_CUDA_WIDE_STAGES

/* Parts of a page: keys of dims, then values of dims. */
template <int D> struct parts {
    static constexpr int DIMS = D < 128 ? D : 128, EACH = D / DIMS, ALL = 2 * EACH;
    static constexpr uint32_t BYTES = 2 * 64 * DIMS;
};

/* ---- bringing pages ---- */

/* What is asked for, a part at a time.  A thread's pieces of a part lie equally far apart, where they come from and where they go
 * to, and rows of all of them are alike in their last three bits. */
template <int D> struct feed {
    using part = parts<D>;
    static constexpr int PIECES = part::DIMS / 8; /* of a token's values in a part */
    static constexpr int KEYS = part::DIMS * 8 / THREADS, VALUES = 64 * PIECES / THREADS, TOKENS = THREADS / PIECES;
    const block_rows &b;
    const wide_pages from;
    uint8_t *p;                      /* the ring */
    uint32_t at;                     /* the same */
    uint32_t key, value, from_value; /* the thread's first piece: in a part, and of values where it comes from */
    wide_page side;
    uint64_t next;      /* number of the next page of the cache, if there is one */
    int page, of, slot; /* of the next part: its page, which of the page's it is, its place */

    __device__ feed(const block_rows &rows, uint8_t *shared)
        : b(rows), from(find_pages<D>(rows)), p(shared), at(shared_at(shared)), page(rows.page0), of(0), slot(0)
    {
        const int i = threadIdx.x, t = i / PIECES, piece = i % PIECES;
        key = piece_at(i / 8, i % 8);
        value = piece / 8 * 8192 + piece_at(t, piece % 8);
        from_value = (t * (D / 8) + piece) * 16;
        next = from.numbers && b.page0 < b.raw0 ? from.numbers[b.page0] : 0;
    }
    __device__ void find()
    {
        side = page_of<D>(b, from, page, from.numbers ? next : (uint64_t)(page - from.first));
        if (from.numbers && page + 1 < b.raw0)
            next = from.numbers[page + 1];
    }
    /* Of a closed page. */
    __device__ void bring(uint32_t to) const
    {
        if (of < part::EACH) {
            const uint8_t *k = side.k + of * part::BYTES + threadIdx.x * 16;
#pragma unroll
            for (int j = 0; j < KEYS; j++)
                cuda_copy_16(at + to + key + j * THREADS * 16, k + j * THREADS * 16);
        } else {
            const uint8_t *v = side.v + (of - part::EACH) * part::DIMS * 2 + from_value;
#pragma unroll
            for (int j = 0; j < VALUES; j++)
                cuda_copy_16(at + to + value + j * TOKENS * 128, v + j * TOKENS * 2 * D);
        }
    }
    /* Of a tile. */
    __device__ void bring_raw(uint32_t to) const
    {
        if (of < part::EACH) {
#pragma unroll 1
            for (int j = 0; j < KEYS; j++) {
                const uint32_t place = to + key + j * THREADS * 16;
                bring_piece(at + place, p + place, side.k, of * (part::BYTES / 16) + threadIdx.x + j * THREADS, side.k32, true);
            }
        } else {
#pragma unroll 1
            for (int j = 0; j < VALUES; j++) {
                const uint32_t place = to + value + j * TOKENS * 128;
                bring_piece(at + place, p + place, side.v, from_value / 16 + j * TOKENS * (D / 8) + (of - part::EACH) * PIECES,
                            side.v32, (int)threadIdx.x / PIECES + j * TOKENS < side.n);
            }
        }
    }
    __device__ void ask()
    {
        if (page <= b.own) {
            if (of == 0)
                find();
            if (page < b.raw0)
                bring(slot * part::BYTES);
            else
                bring_raw(slot * part::BYTES);
            slot = slot + 1 < STAGES ? slot + 1 : 0;
            page += of + 1 == part::ALL;
            of = of + 1 < part::ALL ? of + 1 : 0;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
};

/* ---- products ---- */

/* Scores: of part i of the keys. */
template <int D> __device__ static inline void add_scores(wide_rows<D> &w, uint32_t keys, int i)
{
    if (i == 0)
#pragma unroll
        for (int j = 0; j < 32; j++)
            w.s[j] = 0;
#pragma unroll
    for (int k = 0; k < parts<D>::DIMS / 16; k++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t y[4];
            load4_turned(y, keys + lane_at(n) + k * 2048);
            multiply(w.s + 8 * n, w.q[i * (parts<D>::DIMS / 16) + k], y[0], y[1]);
            multiply(w.s + 8 * n + 4, w.q[i * (parts<D>::DIMS / 16) + k], y[2], y[3]);
        }
}

/* Sums: of part i of the values. */
template <int D> __device__ static inline void add_sums(wide_rows<D> &w, uint32_t values, int i)
{
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int n = 0; n < parts<D>::DIMS / 16; n++) {
            uint32_t y[4];
            float *to = w.o + i * (parts<D>::DIMS / 2) + 8 * n;
            load4_turned(y, values + n / 4 * 8192 + lane_at(n % 4) + k * 2048);
            multiply(to, w.p[k], y[0], y[1]);
            multiply(to + 4, w.p[k], y[2], y[3]);
        }
}

template <int D> __device__ static void attend(const tern_cuda_attn_args &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const int units = gridDim.x - 1 - blockIdx.x; /* those that see most come first */
    block_rows b;
    if (!find_rows(b, a, units, a.kv0 * a.n_split + blockIdx.y)) {
        cuda_wait();
        return;
    }
    cuda_wait();
    ring_reader<feed<D>, STAGES, parts<D>::BYTES> parts_of(feed<D>(b, shared));
    wide_rows<D> w;
    const int first = threadIdx.x / 32 * 16;
    const bool works = first < b.n_q;
    load_rows<D>(w, b, first);
#pragma unroll 1
    for (int page = b.page0; page <= b.own; page++) {
#pragma unroll
        for (int i = 0; i < parts<D>::EACH; i++) {
            const uint32_t keys = parts_of.take();
            if (works)
                add_scores<D>(w, keys, i);
        }
        if (works) {
            hide<D>(w, b, page);
            shrink_sums<D>(w, soften<D>(w));
            pack<D>(w);
        }
#pragma unroll
        for (int i = 0; i < parts<D>::EACH; i++) {
            const uint32_t values = parts_of.take();
            if (works)
                add_sums<D>(w, values, i);
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    if (works)
        put_rows<D>(w, b);
}

#define KERNEL(D)                                                         \
    TERN_CUDA_KERNEL_BEGIN(wide_##D, tern_cuda_attn_args, THREADS, 2) \
    {                                                                     \
        attend<D>(a);                                                     \
    }
KERNEL(64)
KERNEL(128)
KERNEL(256)

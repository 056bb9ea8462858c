/* Attention of prompt rows on tensor cores for heads of any size, and for latents: f16 operands, sums in f32.
 *
 * A block of threads has up to 32 q rows: two groups of 16, each of four warps.  A warp has all dims of 16 tokens for the scores,
 * and a fourth of the dims of all tokens for the values; weights go through shared memory.  Pages come as prompts/expand_any.cu
 * leaves them, in parts of 128 dims, through a ring; all threads ask for a part as soon as all have read what was in its place.
 *
 * A q row goes through the same steps whatever else is in its block: pages that it does not see leave it as it is. */
#include "dev/cuda/prompts/wide.cuh"

#define THREADS 256
#define ROWS    TERN_CUDA_ANY_ROWS
#define STAGES  TERN_CUDA_ANY_STAGES
#define PART    16384 /* bytes: 128 dims of 64 tokens */
#define P_ROW   (64 + 8)

struct any_room {
    uint8_t *ring;
    uint32_t at;
    __half *q, *p;      /* [ROWS][keys + 8], [ROWS][P_ROW] */
    float *most, *sums; /* [4][ROWS] of a warp's tokens */
    int keys, q_row;

    __device__ any_room(uint8_t *shared, const tern_cuda_layer &l)
        : ring(shared), at(shared_at(shared)), keys(TERN_CUDA_ANY_KEYS(&l)), q_row(keys + 8)
    {
        q = reinterpret_cast<__half *>(shared + STAGES * PART);
        p = q + ROWS * q_row;
        most = reinterpret_cast<float *>(p + ROWS * P_ROW);
        sums = most + 4 * ROWS;
    }
};

/* ---- bringing pages ---- */

struct any_feed {
    const block_rows &b;
    const any_room &r;
    const uint32_t at;
    const wide_pages from;
    int page, of, key_parts, all, slot; /* of the next part: its page, which of all parts of the page it is, its place */

    __device__ any_feed(const block_rows &rows, const any_room &room, int value_parts)
        : b(rows), r(room), at(room.at), from(expanded_pages(rows, TERN_CUDA_ANY_BYTES(&rows.a->l))), page(rows.page0), of(0),
          key_parts((room.keys + 127) / 128), all(key_parts + value_parts), slot(0)
    {
    }
    __device__ void bring(uint32_t to) const
    {
        const uint8_t *p = cuda_at<const uint8_t>(from.base + (uint64_t)(page - from.first) * from.bytes);
        const int i = threadIdx.x;
        if (of < key_parts) {
            const int left = r.keys - of * 128, pieces = min(left, 128) * 8;
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (i + j * THREADS < pieces)
                    cuda_copy_16(at + to + piece_at(i / 8, i % 8) + j * THREADS * 16, p + of * PART + (i + j * THREADS) * 16);
            return;
        }
        const int t = i / 16, piece = i % 16, row = TERN_CUDA_ANY_VALUES(&b.a->l) * 2;
        const uint8_t *v = p + r.keys * 128 + t * row + (of - key_parts) * 256 + piece * 16;
#pragma unroll
        for (int j = 0; j < 4; j++)
            cuda_copy_16(at + to + piece / 8 * 8192 + piece_at(t, piece % 8) + j * 16 * 128, v + j * 16 * row);
    }
    /* A tile's number, key or value d of token t; 0 where there is none. */
    __device__ float raw_number(const wide_page &p, bool key, int d, int t) const
    {
        const tern_cuda_layer &l = b.a->l;
        const int before = l.latent ? l.v.dim : 0;
        if (t >= p.n)
            return 0;
        if (key && d >= before)
            return d - before < l.k.dim ? raw_value(l.k, p.k, 64, t, d - before) : 0;
        return d < l.v.dim ? raw_value(l.v, p.v, 64, t, d) : 0;
    }
    __device__ void bring_raw(uint32_t to) const
    {
        const wide_page p = raw_page(b, page);
        const bool key = of < key_parts;
        const int first = (key ? of : of - key_parts) * 128;
#pragma unroll 1
        for (int i = threadIdx.x; i < 128 * 32; i += THREADS) { /* two tokens of a dim, or two dims of a token */
            const int line = key ? i / 32 : i / 64, two = (key ? i % 32 : i % 64) * 2;
            const float x = key ? raw_number(p, true, first + line, two) : raw_number(p, false, first + two, line),
                        y = key ? raw_number(p, true, first + line, two + 1) : raw_number(p, false, first + two + 1, line);
            const uint32_t place = to + two / 64 * 8192 + piece_at(line, two % 64 / 8) + two % 8 * 2;
            *reinterpret_cast<uint32_t *>(r.ring + place) = two_halves(x, y);
        }
    }
    __device__ void ask()
    {
        if (page <= b.own) {
            if (page < b.raw0)
                bring(slot * PART);
            else
                bring_raw(slot * PART);
            slot = slot + 1 < STAGES ? slot + 1 : 0;
            page += of + 1 == all;
            of = of + 1 < all ? of + 1 : 0;
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
};

/* ---- rows ---- */

/* Rows g and g + 8 of the warp's 16. */
template <int PARTS> struct any_rows {
    float m[2], l[2], s[2][4], o[PARTS][4][4]; /* l: of the lane's tokens; s: tokens 16 c + 8 j + 2 t and + 1 */
    int row[2], pos[2], group, column;
};

__device__ static inline void put_queries(const block_rows &b, const any_room &r)
{
    const tern_cuda_layer &l = b.a->l;
    const int dim = l.k.dim + (l.latent ? l.v.dim : 0);
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < ROWS; i += THREADS / 32)
        for (int d = threadIdx.x % 32; d < r.keys; d += 32) {
            const float x = i < b.n_q && d < dim ? query_of(b, i, dim)[d] * b.a->q_scale : 0;
            r.q[i * r.q_row + d] = as_half(x);
        }
}

template <int PARTS> __device__ static inline void add_scores(any_rows<PARTS> &w, const any_room &r, uint32_t keys, int part)
{
    const int lane = threadIdx.x % 32, steps = min(r.keys - part * 128, 128) / 16;
    const __half *q = r.q + (16 * w.group + lane % 16) * r.q_row + part * 128 + lane / 16 * 8;
#pragma unroll 4
    for (int k = 0; k < steps; k++) {
        uint32_t x[4], y[4];
        load4(x, q + 16 * k);
        load4_turned(y, keys + lane_at(w.column) + k * 2048);
        multiply(w.s[0], x, y[0], y[1]);
        multiply(w.s[1], x, y[2], y[3]);
    }
}

/* The cap, and what rows do not see of a page. */
template <int PARTS> __device__ static inline void hide(any_rows<PARTS> &w, const block_rows &b, int page)
{
    const float cap = b.a->cap, by = 2.885390082f / cap;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int r = i / 2 % 2, t = 16 * w.column + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
        const int from = oldest_seen(b.a->l, w.pos[r]) - page * 64, to = page == b.own ? w.pos[r] % 64 + 1 : 64;
        float &s = w.s[i / 4][i % 4];
        if (cap > 0)
            s = capped(s, cap, by);
        s = t >= from && t < to ? s : -INFINITY;
    }
}

/* Weights, of which all warps of a group have some, into shared memory; sums shrink. */
template <int PARTS> __device__ static inline void soften(any_rows<PARTS> &w, const any_room &r, bool works)
{
    const int t = threadIdx.x % 4, own = 16 * w.group + threadIdx.x % 32 / 4;
    float by[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = fmaxf(fmaxf(w.s[0][2 * h], w.s[0][2 * h + 1]), fmaxf(w.s[1][2 * h], w.s[1][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        if (t == 0)
            r.most[w.column * ROWS + own + 8 * h] = most;
    }
    __syncthreads();
    if (!works)
        return;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float most = w.m[h], sum = 0;
#pragma unroll
        for (int c = 0; c < 4; c++)
            most = fmaxf(most, r.most[c * ROWS + own + 8 * h]);
        const float from = most == -INFINITY ? 0 : most;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float x = power(w.s[j][2 * h] - from), y = power(w.s[j][2 * h + 1] - from);
            sum += x + y;
            *reinterpret_cast<uint32_t *>(r.p + (own + 8 * h) * P_ROW + 16 * w.column + 8 * j + 2 * t) = two_halves(x, y);
        }
        by[h] = power(w.m[h] - from);
        w.l[h] = w.l[h] * by[h] + sum;
        w.m[h] = most;
    }
    if (__any_sync(~0u, by[0] != 1.0f || by[1] != 1.0f))
#pragma unroll
        for (int i = 0; i < PARTS * 16; i++)
            w.o[i / 16][i / 4 % 4][i % 4] *= by[i / 2 % 2];
}

/* Sums of dims 128 part + 32 column and on. */
template <int PARTS> __device__ static inline void add_sums(any_rows<PARTS> &w, const any_room &r, uint32_t values, int part)
{
    const int lane = threadIdx.x % 32, c = w.column;
    const __half *p = r.p + (16 * w.group + lane % 16) * P_ROW + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t x[4];
        load4(x, p + 16 * k);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            uint32_t y[4];
            load4_turned(y, values + c / 2 * 8192 + lane_at(c % 2 * 2 + n) + k * 2048);
            multiply(w.o[part][2 * n], x, y[0], y[1]);
            multiply(w.o[part][2 * n + 1], x, y[2], y[3]);
        }
    }
}

template <int PARTS> __device__ static inline void put_rows(const any_rows<PARTS> &w, const block_rows &b, const any_room &r)
{
    const int t = threadIdx.x % 4, dim = b.a->l.v.dim;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float sum = w.l[h];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (t == 0)
            r.sums[w.column * ROWS + w.row[h]] = sum;
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int i = w.row[h];
        if (i >= b.n_q)
            continue;
        const float by = 1.0f / ((r.sums[i] + r.sums[ROWS + i]) + (r.sums[2 * ROWS + i] + r.sums[3 * ROWS + i]));
        float *out = cuda_at<float>(b.a->out) + (uint64_t)(b.row0 + i / b.heads) * b.a->out_stride +
                     (uint64_t)(b.head0 + i % b.heads) * dim;
#pragma unroll
        for (int n = 0; n < PARTS * 4; n++) {
            const int d = n / 4 * 128 + 32 * w.column + n % 4 * 8 + 2 * t;
            const float *o = w.o[n / 4][n % 4] + 2 * h;
            if (d < dim)
                *reinterpret_cast<float2 *>(out + d) = make_float2(o[0] * by + 0.0f, o[1] * by + 0.0f);
        }
    }
}

template <int PARTS> __device__ static void attend(const tern_cuda_attn_args &a)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const int units = gridDim.x - 1 - blockIdx.x; /* those that see most come first */
    const any_room r(shared, a.l);
    block_rows b;
    cuda_wait();
    if (!find_rows(b, a, units, a.kv0 * a.n_split + blockIdx.y))
        return;
    ring_reader<any_feed, STAGES, PART> parts(any_feed(b, r, PARTS));
    any_rows<PARTS> w = {};
    w.group = threadIdx.x / 128;
    w.column = threadIdx.x / 32 % 4;
    const bool works = 16 * w.group < b.n_q;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        w.m[h] = -INFINITY;
        w.row[h] = 16 * w.group + threadIdx.x % 32 / 4 + 8 * h;
        w.pos[h] = row_pos(b, w.row[h]);
    }
    put_queries(b, r); /* all meet at the first part */
#pragma unroll 1
    for (int page = b.page0; page <= b.own; page++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            w.s[i / 4][i % 4] = 0;
#pragma unroll 1
        for (int i = 0; i < parts.f.key_parts; i++) {
            const uint32_t keys = parts.take();
            if (works)
                add_scores(w, r, keys, i);
        }
        hide(w, b, page);
        soften(w, r, works);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const uint32_t values = parts.take();
            if (works)
                add_sums(w, r, values, i);
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    put_rows(w, b, r);
}

#define KERNEL(parts)                                                            \
    TERN_CUDA_KERNEL_BEGIN(wide_any_##parts, tern_cuda_attn_args, THREADS, 1) \
    {                                                                            \
        attend<parts>(a);                                                        \
    }
KERNEL(1)
KERNEL(2)
KERNEL(3)
KERNEL(4)

/* Operations on one row at a time.  What is summed is summed in an order that the row's length alone decides. */
#include "dev/cuda/attn/heads.cuh"
#include "dev/cuda/four.cuh"
#include "dev/cuda/gates.cuh"
#include "dev/cuda/half.cuh"
#include "dev/cuda/norm.cuh"
#include "dev/cuda/products/panel.cuh"
#include "dev/cuda/quantize.cuh"
#include "dev/cuda/rows.h"
#include "dev/cuda/together/together.cuh"

/* ---- embedding --------------------------------------------------------------------------------------------------- */

TERN_CUDA_KERNEL_BEGIN(embed, tern_cuda_embed_args, 256, 1)
{
    const int quad = blockIdx.x * 256 + threadIdx.x, i0 = quad * 4;
    cuda_wait();
    if (i0 >= a.w.k)
        return;
    const uint32_t token = (uint32_t)cuda_at<const tern_cuda_row>(a.rows)[blockIdx.y].token, row = token % 16;
    const uint8_t *panel = cuda_at<const uint8_t>(a.w.p) + token / 16 * a.w.panel_bytes;
    float *x = cuda_at<float>(a.x) + blockIdx.y * a.stride;
    if (codes_float(a.w.codes)) {
        for (int i = i0; i < i0 + 4 && i < a.w.k; i++)
            x[i] = float_weight(a.w.codes, panel, i, row) * a.scale;
        return;
    }
    float s, m;
    const uint32_t c =
        quad_codes(a.w.codes, a.w.table, panel + (uint64_t)(i0 / 32) * codes_unit(a.w.codes), quad % 8, row);
    group_scale(a.w.scales, a.w, panel, i0 / 16, row, s, m);
    for (int i = 0; i < 4; i++)
        x[i0 + i] = weight_of(a.w.codes, a.w.scales, a.w.zero, c >> (8 * i) & 255, s, m) * a.scale;
}

/* ---- norm -------------------------------------------------------------------------------------------------------- */

#define NORM_THREADS 512
#define NORM_KEPT    4 /* of a thread, four numbers each: rows of up to 8192 are read once */

__device__ static inline float block_sum(float v)
{
    return of_block<NORM_THREADS>(v, [](float a, float b) { return __fadd_rn(a, b); });
}

/* v * by * f, as int8 too. */
template <bool FEW>
__device__ static inline float4 norm_output(const tern_cuda_norm_args &a, int row, int i, float4 v, float by, float4 f)
{
    v = norm_times(v, by, f);
    if (i < a.n)
        store_four(cuda_at<float>(a.y) + row * a.y_stride, i, a.n, v);
    if (FEW && a.q8) /* all threads, for whole blocks are quantised together */
        quantize_four(cuda_at<uint8_t>(a.q8), a.row_bytes, a.lanes, row, a.n, i / 32, i / 4 % 8, v, i < a.n);
    return v;
}

/* A row in 16 bits, by all threads: each has kept its first fours, KEPT of them, 0 behind n; rest(i) tells the others. */
template <int KEPT, class ARGS, class REST>
__device__ static inline void halve_row(const ARGS &to, int row, int n, const float4 kept[KEPT], const REST &rest)
{
    const int first = threadIdx.x * 4, pitch = (int)to.pitch;
    __half *out = cuda_at<__half>(to.half) + row * to.pitch;
    float top = 0;
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        top = most_of(top, kept[j]);
    for (int i = first + KEPT * NORM_THREADS * 4; i < n; i += NORM_THREADS * 4)
        top = most_of(top, rest(i));
    const int e = half_exponent(block_most<NORM_THREADS>(top));
    const float by = exp2f((float)-e);
    if (threadIdx.x == 0)
        cuda_at<float>(to.scale)[row] = exp2f((float)e);
#pragma unroll
    for (int j = 0; j < KEPT; j++)
        if (first + j * NORM_THREADS * 4 < pitch)
            store_halves(out + first + j * NORM_THREADS * 4, kept[j], by);
    for (int i = first + KEPT * NORM_THREADS * 4; i < pitch; i += NORM_THREADS * 4)
        store_halves(out + i, rest(i), by);
}

__device__ static inline float4 norm_input(const tern_cuda_norm_args &a, int row, int i)
{
    return load_four(cuda_at<const float>(a.x) + row * a.x_stride, i, a.n);
}

/* What is added, of which other cards may have these columns. */
template <bool FEW> __device__ static inline float4 plus_at(const tern_cuda_norm_args &a, uint64_t number, int row, int i)
{
    float *plus = cuda_at<float>(a.plus) + row * a.plus_stride;
    const tern_cuda_together &g = a.gather;
    if (!FEW || !g.n_cards || (i >= g.bound[g.self] && i < g.bound[g.self + 1]))
        return load_four(plus, i, a.n);
    const float4 p = receive_four(g, number, row, i);
    store_four(plus, i, a.n, p);
    return p;
}

__device__ static inline float4 factors_at(uint64_t w, int i, int n)
{
    return w && i < n ? load_four(cuda_at<const float>(w), i, n) : make_float4(1, 1, 1, 1);
}

/* What is added is normed itself: by what.  It is in its place then, and a thread reads again what it read here. */
template <bool FEW> __device__ static inline float plus_factor(const tern_cuda_norm_args &a, uint64_t number, int row)
{
    float squares = 0;
    for (int i = threadIdx.x * 4; i < a.n; i += NORM_THREADS * 4)
        squares = norm_squares(squares, plus_at<FEW>(a, number, row, i));
    const float by = norm_factor(block_sum(squares), a.n, a.eps);
    __syncthreads(); /* before threads' sums take the same place again */
    return by;
}

/* v and what is added to it; by: as above. */
template <bool FEW>
__device__ static inline float4 norm_plus(const tern_cuda_norm_args &a, uint64_t number, int row, int i, float4 v, float by)
{
    if (!a.plus)
        return v;
    float4 p;
    if (a.plus_normed) {
        float *plus = cuda_at<float>(a.plus) + row * a.plus_stride;
        p = norm_times(load_four(plus, i, a.n), by, factors_at(a.plus_w, i, a.n));
        store_four(plus, i, a.n, p);
    } else {
        p = plus_at<FEW>(a, number, row, i);
    }
    v = make_float4(v.x + p.x, v.y + p.y, v.z + p.z, v.w + p.w);
    store_four(cuda_at<float>(a.sum) + row * a.sum_stride, i, a.n, v);
    return v;
}

/* What is added comes from several cards, which have some columns each. */
__device__ static inline void send_row(const tern_cuda_together &g, uint64_t number, int row)
{
    const float *own = cuda_at<const float>(g.x[g.self]) + row * g.stride;
    for (int i = g.bound[g.self] + (int)threadIdx.x * 4; i < g.bound[g.self + 1]; i += NORM_THREADS * 4)
        send_four(g, number, row, i, *reinterpret_cast<const float4 *>(own + i));
    if (g.meets)
        meet(g, number);
}

/* FEW: rows of decoding, one to a processor, so what can be loaded ahead is.  Else a processor has several at a time, for
 * which a thread keeps half as much; nothing is gathered, and no int8 made.  The numbers are the same. */
template <bool FEW> __device__ static inline void norm_row(const tern_cuda_norm_args &a)
{
    constexpr int KEPT = FEW ? NORM_KEPT : NORM_KEPT / 2;
    const int row = blockIdx.x, t = threadIdx.x * 4;
    float4 kept[KEPT], by_dim[KEPT];
    float squares = 0;
#pragma unroll
    for (int j = 0; FEW && j < KEPT; j++) /* weights are there before the step is */
        by_dim[j] = factors_at(a.w, t + j * NORM_THREADS * 4, a.n);
    const uint64_t number = FEW && a.gather.n_cards ? number_of(a.gather) : 0;
    cuda_wait();
    if (FEW && a.gather.n_cards)
        send_row(a.gather, number, row);
#pragma unroll
    for (int j = 0; j < KEPT; j++) { /* before it waits for others */
        const int i = t + j * NORM_THREADS * 4;
        kept[j] = i < a.n ? norm_input(a, row, i) : make_float4(0, 0, 0, 0);
    }
    const float plus_by = a.plus_normed ? plus_factor<FEW>(a, number, row) : 1;
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const int i = t + j * NORM_THREADS * 4;
        if (i < a.n)
            kept[j] = norm_plus<FEW>(a, number, row, i, kept[j], plus_by);
        squares = norm_squares(squares, kept[j]);
    }
    for (int i = t + KEPT * NORM_THREADS * 4; i < a.n; i += NORM_THREADS * 4)
        squares = norm_squares(squares, norm_plus<FEW>(a, number, row, i, norm_input(a, row, i), plus_by));
    const float by = norm_factor(block_sum(squares), a.n, a.eps);
    const float *again =
        a.plus ? cuda_at<const float>(a.sum) + row * a.sum_stride : cuda_at<const float>(a.x) + row * a.x_stride;
#pragma unroll
    for (int j = 0; j < KEPT; j++) {
        const int i = t + j * NORM_THREADS * 4;
        if (j * NORM_THREADS * 4 < a.n)
            kept[j] = norm_output<FEW>(a, row, i, kept[j], by, FEW ? by_dim[j] : factors_at(a.w, i, a.n));
    }
    for (int j = KEPT; j * NORM_THREADS * 4 < a.n; j++) {
        const int i = t + j * NORM_THREADS * 4;
        norm_output<FEW>(a, row, i, i < a.n ? load_four(again, i, a.n) : make_float4(0, 0, 0, 0), by, factors_at(a.w, i, a.n));
    }
    if (a.half) { /* a thread reads again what it wrote */
        const float *y = cuda_at<const float>(a.y) + row * a.y_stride;
        halve_row<KEPT>(a, row, a.n, kept, [&](int i) { return load_four(y, i, a.n); });
    }
}

TERN_CUDA_KERNEL_BEGIN(norm, tern_cuda_norm_args, NORM_THREADS, 1)
{
    norm_row<true>(a);
}

TERN_CUDA_KERNEL_BEGIN(norm_many, tern_cuda_norm_args, NORM_THREADS, 3)
{
    norm_row<false>(a);
}

/* ---- elementwise ------------------------------------------------------------------------------------------------- */

__device__ static inline float one(const tern_cuda_elementwise &a, float x, float y)
{
    switch (a.op) {
    case TERN_CUDA_ADD:
        return x + y;
    case TERN_CUDA_SCALE:
        return x * a.factor;
    case TERN_CUDA_SOFTCAP:
        return a.factor * tanhf(x / a.factor);
    case TERN_CUDA_GATE: /* y is the factor already */
        return x * y;
    default:
        return gate_of(a.op, x, y);
    }
}

TERN_CUDA_KERNEL_BEGIN(elementwise, tern_cuda_elementwise, 256, 1)
{
    const int i = (blockIdx.y * 256 + threadIdx.x) * 4, row = blockIdx.x;
    cuda_wait();
    float4 v = make_float4(0, 0, 0, 0), b = v;
    if (i < a.n) {
        v = load_four(cuda_at<const float>(a.a) + row * a.a_stride, i, a.n);
        if (a.op == TERN_CUDA_GATE)
            b.x = b.y = b.z = b.w = sigmoid_of(cuda_at<const float>(a.b)[row * a.b_stride]);
        else if (a.b)
            b = load_four(cuda_at<const float>(a.b) + row * a.b_stride, i, a.n);
        v = make_float4(one(a, v.x, b.x), one(a, v.y, b.y), one(a, v.z, b.z), one(a, v.w, b.w));
        store_four(cuda_at<float>(a.y) + row * a.y_stride, i, a.n, v);
    }
    if (a.q8)
        quantize_four(cuda_at<uint8_t>(a.q8), a.row_bytes, a.lanes, row, a.n, i / 32, i / 4 % 8, v, i < a.n);
}

#define GLU_KEPT 8 /* of a thread, four numbers each: rows of up to 16,384 are computed once */

/* Block (row). */
TERN_CUDA_KERNEL_BEGIN(glu_half, tern_cuda_glu_half, NORM_THREADS, 2)
{
    const int row = blockIdx.x;
    const float *gate = cuda_at<const float>(a.gate) + row * a.gate_stride, *up = cuda_at<const float>(a.up) + row * a.up_stride;
    float4 kept[GLU_KEPT];
    cuda_wait();
    const auto output = [&](int i) {
        return i < a.n ? gate_four(a.op, load_four(gate, i, a.n), load_four(up, i, a.n)) : make_float4(0, 0, 0, 0);
    };
#pragma unroll
    for (int j = 0; j < GLU_KEPT; j++)
        kept[j] = output((threadIdx.x + j * NORM_THREADS) * 4);
    halve_row<GLU_KEPT>(a, row, a.n, kept, output);
}

/* ---- positions --------------------------------------------------------------------------------------------------- */

TERN_CUDA_KERNEL_BEGIN(rope_table, tern_cuda_rope, 256, 1)
{
    const int at = blockIdx.x * 256 + threadIdx.x, row = at / a.half, i = at % a.half;
    cuda_wait();
    if (row >= a.n_rows)
        return;
    const float pos = (float)cuda_at<const tern_cuda_row>(a.rows)[row].pos;
    const float angle = __fmul_rn(pos, cuda_at<const float>(a.freq)[i]); /* rounded to f32 first */
    double s, c;
    sincos((double)angle, &s, &c);
    cuda_at<float>(a.cos)[at] = (float)c * a.magnitude;
    cuda_at<float>(a.sin)[at] = (float)s * a.magnitude;
}

/* A warp for each head. */
TERN_CUDA_KERNEL_BEGIN(heads, tern_cuda_heads_args, 256, 5)
{
    int head = blockIdx.y * 8 + threadIdx.x / 32, s = 0;
    cuda_wait();
    while (s < a.n_sets && head >= a.set[s].n_heads)
        head -= a.set[s++].n_heads;
    if (s < a.n_sets)
        one_head(a, a.set[s], blockIdx.x, head, threadIdx.x % 32);
}

/* ---- rows elsewhere ---------------------------------------------------------------------------------------------- */

TERN_CUDA_KERNEL_BEGIN(copy_heads, tern_cuda_copy_args, 256, 1)
{
    const int at = blockIdx.y * 256 + threadIdx.x, row = blockIdx.x;
    cuda_wait();
    if (at >= a.n_heads * a.n)
        return;
    const int from = a.rows ? cuda_at<const int32_t>(a.rows)[row] : row, h = at / a.n, i = at % a.n;
    cuda_at<float>(a.to)[row * a.to_stride + h * a.to_head + i] =
        cuda_at<const float>(a.from)[(uint64_t)from * a.from_stride + h * a.from_head + i];
}

/* ---- the best of rows -------------------------------------------------------------------------------------------- */

#define BEST_THREADS 128
#define BEST_EACH    64 /* most keys of a thread */

/* The order as one number: the larger value, then the lower column.  0: it is no number, or behind the row's end. */
__device__ static inline uint64_t best_key(float x, int column, int width)
{
    if (column >= width || isnan(x))
        return 0;
    const uint32_t u = __float_as_uint(x == 0 ? 0.0f : x), ordered = u >> 31 ? ~u : u | 0x80000000u;
    return (uint64_t)ordered << 32 | ~(uint32_t)column;
}

/* put(place, key) of the n largest among the keys of all threads, which differ; 0 behind the last.  key(i): of this
 * thread, i < each; most: its largest.
 *
 * No key below the n-th largest of the threads' largest ones is among the n largest.  So no more than n threads have
 * any that is: their keys from there on go into one list, where each has as its place how many are larger. */
template <class KEY, class PUT>
__device__ static inline void best_of(uint64_t most, const KEY &key, int each, int n, const PUT &put)
{
    __shared__ uint64_t largest[BEST_THREADS], list[TERN_CUDA_BEST * BEST_EACH], bound;
    __shared__ int32_t count[TERN_CUDA_BEST];
    const int t = threadIdx.x;
    int place = 0, from = 0, total = 0;
    largest[t] = most;
    if (n == 1) { /* what a greedy reply asks for */
        __syncthreads();
        for (int j = t + 32; t < 32 && j < BEST_THREADS; j += 32)
            most = max(most, largest[j]);
        for (int step = 16; step; step /= 2)
            most = max(most, __shfl_xor_sync(~0u, most, step));
        if (t == 0)
            put(0, most);
        return;
    }
    if (t < n)
        count[t] = 0;
    if (t == 0)
        bound = 1;
    __syncthreads();
    for (int j = 0; j < BEST_THREADS; j++)
        place += largest[j] > most;
    const bool in = most && place < n;
    if (in && place == n - 1)
        bound = most;
    __syncthreads();
    if (in) {
#pragma unroll 8 /* loads that do not wait for each other */
        for (int i = 0; i < each; i++)
            from += key(i) >= bound;
    }
    if (in)
        count[place] = from;
    __syncthreads();
    from = 0;
    for (int j = 0; j < n; j++) {
        from += j < place ? count[j] : 0;
        total += count[j];
    }
    for (int i = 0; in && i < each; i++) {
        const uint64_t k = key(i);
        if (k >= bound)
            list[from++] = k;
    }
    __syncthreads();
    for (int i = t; i < total; i += BEST_THREADS) {
        const uint64_t k = list[i];
        place = 0;
        for (int j = 0; j < total; j++)
            place += list[j] > k;
        if (place < n)
            put(place, k);
    }
    for (int i = total + t; i < n; i += BEST_THREADS)
        put(i, (uint64_t)0);
}

/* Block (part, row). */
TERN_CUDA_KERNEL_BEGIN(best_parts, tern_cuda_best_args, BEST_THREADS, 1)
{
    const int first = blockIdx.x * TERN_CUDA_BEST_PART + threadIdx.x * 4;
    const float *x = cuda_at<const float>(a.x) + blockIdx.y * a.stride;
    uint64_t *out = cuda_at<uint64_t>(a.parts) + ((uint64_t)blockIdx.y * a.n_parts + blockIdx.x) * a.n, most = 0;
    cuda_wait();
#pragma unroll 8
    for (int i = 0; i < BEST_EACH; i += 4) {
        const int at = first + i * BEST_THREADS;
        const float4 v = load_four(x, at, a.width);
        const uint64_t p = max(best_key(v.x, at, a.width), best_key(v.y, at + 1, a.width));
        const uint64_t q = max(best_key(v.z, at + 2, a.width), best_key(v.w, at + 3, a.width));
        most = max(most, max(p, q));
    }
    const auto key = [&](int i) {
        const int at = first + i / 4 * 4 * BEST_THREADS + i % 4;
        return at < a.width ? best_key(x[at], at, a.width) : (uint64_t)0;
    };
    best_of(most, key, BEST_EACH, a.n, [&](int place, uint64_t k) { out[place] = k; });
}

/* Block (row): of its parts. */
TERN_CUDA_KERNEL_BEGIN(best, tern_cuda_best_args, BEST_THREADS, 1)
{
    const uint64_t row = blockIdx.x;
    const int keys = a.n_parts * a.n, each = (keys + BEST_THREADS - 1) / BEST_THREADS;
    const uint64_t *parts = cuda_at<const uint64_t>(a.parts) + row * keys;
    const float *x = cuda_at<const float>(a.x) + row * a.stride;
    float *values = cuda_at<float>(a.values) + row * a.n;
    int32_t *ids = cuda_at<int32_t>(a.ids) + row * a.n;
    uint64_t most = 0;
    cuda_wait();
    const auto key = [&](int i) {
        const int at = i * BEST_THREADS + threadIdx.x;
        return at < keys ? parts[at] : (uint64_t)0;
    };
    for (int i = 0; i < each; i++)
        most = max(most, key(i));
    best_of(most, key, each, a.n, [&](int place, uint64_t k) {
        const uint32_t column = ~(uint32_t)k;
        values[place] = k ? x[column] : 0;
        ids[place] = k ? (int32_t)column : -1;
    });
}

/* Memory is read, as fast as may be: eight loads of each thread are under way.  What is not used would not be loaded. */
TERN_CUDA_KERNEL_BEGIN(read, tern_cuda_read_args, 256, 4)
{
    constexpr int EACH = 8;
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x, first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const uint4 *from = cuda_at<const uint4>(a.from);
    uint32_t all = 0;
    cuda_wait();
    for (uint64_t t = 0; t < a.times; t++)
        for (uint64_t i = first; i < a.n; i += EACH * step) {
            uint4 v[EACH];
#pragma unroll
            for (int j = 0; j < EACH; j++)
                v[j] = from[min(i + j * step, a.n - 1)];
#pragma unroll
            for (int j = 0; j < EACH; j++)
                all += ((v[j].x ^ v[j].y) + (v[j].z ^ v[j].w)) * (uint32_t)(t + 1);
        }
    if (all == 0xC0FFEE11u)
        *cuda_at<uint32_t>(a.behind) = all;
}

/* Compressed rows: made of what their tokens bring, and chosen by their keys.
 *
 * Both compute what dev/cpu/compress.c and choose.c compute, in the same order: a grid that rows are rounded to, and a
 * choice among them, turn a last bit into something that is seen. */
#include "dev/cuda/attn/spans.cuh"
#include "dev/cuda/grid.cuh"

/* ---- made -------------------------------------------------------------------------------------------------------- */

#define MADE_THREADS 128

__device__ static inline int ring_of(const tern_cuda_compress_args &a)
{
    return a.overlap ? 2 * a.rate : a.rate;
}

__device__ static inline float *state_in(const tern_cuda_compress_args &a, const tern_cuda_job &j, uint32_t block)
{
    const tern_cuda_blocks b = cuda_at<const tern_cuda_cache>(a.t.caches)[j.cache].states;
    return cuda_at<float>(b.p + block * b.bytes + cuda_at<const uint64_t>(a.state_off)[j.cache]) + a.state_at;
}

/* What token pos of a job brings to channel c: of the step, or kept. */
struct token {
    float x, gate;
};

__device__ static inline token token_of(const tern_cuda_compress_args &a, const tern_cuda_job &j, const float *state,
                                        int pos, int c)
{
    if (pos < j.pos0) {
        const float *x = state + (uint64_t)(pos % ring_of(a)) * a.channels + c;
        return {x[0], x[(uint64_t)ring_of(a) * a.channels]};
    }
    const uint64_t row = j.row0 + pos - j.pos0;
    return {cuda_at<const float>(a.x)[row * a.x_stride + c],
            __fadd_rn(cuda_at<const float>(a.gate)[row * a.gate_stride + c],
                      cuda_at<const float>(a.ape)[(uint64_t)(pos % a.rate) * a.channels + c])};
}

/* Dim d of row `row` of a job: the softmax over its tokens' gates weighs what they bring. */
__device__ static float pool(const tern_cuda_compress_args &a, const tern_cuda_job &j, const float *state, int row,
                             int d)
{
    const int from = (a.overlap && row ? row - 1 : row) * a.rate, own = row * a.rate, end = own + a.rate;
    float max = -INFINITY;
    for (int pos = from; pos < end; pos++) {
        const float gate = token_of(a, j, state, pos, a.overlap && pos >= own ? a.dim + d : d).gate;
        max = gate > max ? gate : max;
    }
    double sum = 0, total = 0;
    for (int pos = from; pos < end; pos++) {
        const token t = token_of(a, j, state, pos, a.overlap && pos >= own ? a.dim + d : d);
        const double p = exp((double)t.gate - (double)max);
        total = __dadd_rn(total, p);
        sum = __dadd_rn(sum, __dmul_rn(p, (double)t.x));
    }
    return (float)(sum / total);
}

/* As kernel/vec.h: squares in 16 lanes, which are added in pairs. */
__device__ static void normalise(const tern_cuda_compress_args &a, float *x, int lane)
{
    float sum = 0;
    for (int i = lane % 16; i < a.dim; i += 16)
        sum = __fmaf_rn(x[i], x[i], sum);
    for (int half = 8; half; half /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, half));
    const float r = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)a.dim), a.eps)));
    __syncwarp();
    for (int i = lane; i < a.dim; i += 32)
        x[i] = __fmul_rn(__fmul_rn(x[i], r), cuda_at<const float>(a.norm)[i]);
    __syncwarp();
}

/* The rotation of the last dims, neighbours paired, for a position. */
__device__ static void turn(const tern_cuda_compress_args &a, float *x, int pos, int lane)
{
    x += a.dim - a.n_rot;
    for (int i = lane; i < a.n_rot / 2; i += 32) {
        const double angle = (double)__fmul_rn((float)pos, cuda_at<const float>(a.freq)[i]);
        const float s = (float)sin(angle), c = (float)cos(angle), u = x[2 * i], v = x[2 * i + 1];
        x[2 * i] = __fmaf_rn(u, c, -__fmul_rn(v, s));
        x[2 * i + 1] = __fmaf_rn(v, c, __fmul_rn(u, s));
    }
    __syncwarp();
}

/* A block for each row that the step completes. */
TERN_CUDA_KERNEL_BEGIN(compress_rows, tern_cuda_compress_args, MADE_THREADS, 1)
{
    __shared__ float x[TERN_CUDA_SPARSE_DIM];
    const tern_cuda_job *counted = cuda_at<const tern_cuda_job>(a.t.jobs);
    int job = 0, lane = threadIdx.x % 32;
    while ((int)blockIdx.x >= counted[job].row0 + counted[job].n_rows)
        job++;
    const tern_cuda_job &j = cuda_at<const tern_cuda_job>(a.jobs)[job];
    const int row = counted[job].pos0 + blockIdx.x - counted[job].row0;
    cuda_wait();
    for (int d = threadIdx.x; d < a.dim; d += MADE_THREADS)
        x[d] = pool(a, j, state_in(a, j, j.state), row, d);
    __syncthreads();
    if (threadIdx.x < 32) {
        normalise(a, x, lane);
        turn(a, x, row * a.rate, lane);
        if (a.grid == 1)
            grid_fp8(x, a.dim - a.n_rot, lane);
        else if (a.grid == 2)
            grid_fp4(x, a.dim, lane);
    }
    __syncthreads();
    for (int d = threadIdx.x; d < a.dim; d += MADE_THREADS)
        cuda_at<float>(a.out)[(uint64_t)blockIdx.x * a.dim + d] = x[d];
}

/* Channel c of the state after n of a job's rows: slots whose newest token is among these.  Others hold what `from` holds,
 * which may be `to`. */
__device__ static void put_state(const tern_cuda_compress_args &a, const tern_cuda_job &j, float *to, const float *from,
                                 int n, int c)
{
    const int ring = ring_of(a), end = j.pos0 + n;
    const uint64_t gates = (uint64_t)ring * a.channels;
    for (int i = 0; to != from && i < 2 * ring; i++)
        to[(uint64_t)i * a.channels + c] = from[(uint64_t)i * a.channels + c];
    for (int pos = end - ring > j.pos0 ? end - ring : j.pos0; pos < end; pos++) {
        const token t = token_of(a, j, from, pos, c);
        float *x = to + (uint64_t)(pos % ring) * a.channels + c;
        x[0] = t.x;
        x[gates] = t.gate;
    }
}

/* Block (128 channels, job). */
TERN_CUDA_KERNEL_BEGIN(compress_state, tern_cuda_compress_args, MADE_THREADS, 1)
{
    const tern_cuda_job &j = cuda_at<const tern_cuda_job>(a.jobs)[blockIdx.y];
    const tern_cuda_mark *marks = cuda_at<const tern_cuda_mark>(a.t.marks) + j.marks;
    const int c = blockIdx.x * MADE_THREADS + threadIdx.x;
    cuda_wait();
    if (c >= a.channels)
        return;
    float *state = state_in(a, j, j.state);
    for (int m = 0; m < j.n_marks; m++)
        put_state(a, j, state_in(a, j, marks[m].block), state, marks[m].at, c);
    put_state(a, j, state, state, j.n_rows, c);
}

/* ---- chosen ------------------------------------------------------------------------------------------------------ */

#define SCORE_THREADS 256
#define HEADS         TERN_CUDA_CHOOSE_HEADS /* that a thread scores side by side */

/* keys [dim][64] in f32: of a page, or of the tile of one that was open. */
__device__ static void load_keys(const tern_cuda_choose_args &a, float *keys, int job, int page, bool open)
{
    const tern_cuda_job &j = cuda_at<const tern_cuda_job>(a.t.jobs)[job];
    const uint8_t *p = open ? work_tile(a.t, a.l, a.stage, job, page, 0) : page_at(a.t, a.l, j, page, 0);
    const uint16_t *head = reinterpret_cast<const uint16_t *>(p + a.l.k_head_off);
    const bool raw = open || a.l.k.form < TERN_CUDA_CODES;
    if (!open)
        p += a.l.k_off;
    for (int i = threadIdx.x; i < a.dim * 64; i += SCORE_THREADS)
        keys[i] = raw ? raw_value(a.l.k, p, 64, i % 64, i / 64) : page_value(a.l.k, p, head, i % 64, i / 64);
}

/* s[i * 64] = q[i][dim] . key, each one chain over ascending dims; the key's numbers lie 64 apart. */
__device__ static inline void score_heads(float *s, const float *q, const float *key, int dim)
{
    float sum[HEADS];
#pragma unroll
    for (int i = 0; i < HEADS; i++)
        sum[i] = 0;
    for (int d = 0; d < dim; d += 4) {
        const float k0 = key[d * 64], k1 = key[(d + 1) * 64], k2 = key[(d + 2) * 64], k3 = key[(d + 3) * 64];
#pragma unroll
        for (int i = 0; i < HEADS; i++) {
            const float4 x = *reinterpret_cast<const float4 *>(q + i * dim + d);
            sum[i] = __fmaf_rn(x.w, k3, __fmaf_rn(x.z, k2, __fmaf_rn(x.y, k1, __fmaf_rn(x.x, k0, sum[i]))));
        }
    }
#pragma unroll
    for (int i = 0; i < HEADS; i++)
        s[i * 64] = sum[i];
}

/* Block (row, page of keys).  Shared, heads rounded up to eights: keys [dim][64], queries [heads][dim], scores [heads][64]. */
TERN_CUDA_KERNEL_BEGIN(choose_scores, tern_cuda_choose_args, SCORE_THREADS, 1)
{
    extern __shared__ __align__(16) uint8_t shared[];
    const int heads = (a.n_heads + HEADS - 1) / HEADS * HEADS;
    float *keys = reinterpret_cast<float *>(shared), *q = keys + a.dim * 64, *s = q + heads * a.dim;
    const int row = a.row0 + blockIdx.x, page = blockIdx.y, t = threadIdx.x % 64;
    const int n = (cuda_at<const tern_cuda_row>(a.t.rows)[row].pos + 1) / a.rate;
    cuda_wait();
    if (n <= a.top || page * 64 >= n)
        return;
    const int job = job_of(a.t, a.jobs, row);
    if (cuda_at<const tern_cuda_job>(a.jobs)[job].cache != a.cache)
        return;
    load_keys(a, keys, job, page, page == n / 64);
    for (int i = threadIdx.x; i < heads * a.dim; i += SCORE_THREADS)
        q[i] = i < a.n_heads * a.dim ? cuda_at<const float>(a.q)[row * a.q_stride + i] : 0;
    __syncthreads();
    for (int h = threadIdx.x / 64 * HEADS; h < heads; h += SCORE_THREADS / 64 * HEADS)
        score_heads(s + h * 64 + t, q + h * a.dim, keys + t, a.dim);
    __syncthreads();
    if (threadIdx.x >= 64)
        return;
    float sum = 0;
    for (int h = 0; h < a.n_heads; h++) {
        const float x = s[h * 64 + t];
        sum = __fadd_rn(sum, __fmul_rn(cuda_at<const float>(a.w)[row * a.w_stride + h], x > 0 ? x : 0));
    }
    if (page * 64 + t < n)
        cuda_at<float>(a.scores)[(uint64_t)blockIdx.x * a.most + page * 64 + t] = sum;
}

/* Larger is better; of zeros none has a sign. */
__device__ static inline uint32_t rank_of(float score)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

#define BEST_THREADS 1024

/* Sums of x over the threads before this one. */
__device__ static int sum_before(int x, int *warps)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = x;
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_sync(~0u, sum, lane >= step ? lane - step : lane);
        sum += lane >= step ? other : 0;
    }
    __syncthreads();
    if (lane == 31)
        warps[warp] = sum;
    __syncthreads();
    for (int i = 0; i < warp; i++)
        sum += warps[i];
    return sum - x;
}

/* The rank of the top-th best of n, byte by byte from the highest; *more: how many are better. */
__device__ static uint32_t last_rank(const float *score, int n, int top, int *more)
{
    __shared__ int count[256];
    __shared__ uint32_t prefix;
    __shared__ int before;
    if (threadIdx.x == 0) {
        prefix = 0;
        before = 0;
    }
    for (int shift = 24; shift >= 0; shift -= 8) {
        if (threadIdx.x < 256)
            count[threadIdx.x] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += BEST_THREADS) {
            const uint32_t rank = rank_of(score[i]);
            if (shift == 24 || rank >> (shift + 8) == prefix >> (shift + 8))
                atomicAdd(&count[rank >> shift & 255], 1);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            int digit = 255;
            while (before + count[digit] < top)
                before += count[digit--];
            prefix |= (uint32_t)digit << shift;
        }
        __syncthreads();
    }
    *more = before;
    return prefix;
}

/* A block for each row: its rows seen, all of them or the best by their scores, in ascending order.  Of those that are
 * as good as the last one the lower come in. */
TERN_CUDA_KERNEL_BEGIN(choose_best, tern_cuda_choose_args, BEST_THREADS, 1)
{
    __shared__ int warps[BEST_THREADS / 32];
    const int row = a.row0 + blockIdx.x, n = (cuda_at<const tern_cuda_row>(a.t.rows)[row].pos + 1) / a.rate;
    int32_t *ids = cuda_at<int32_t>(a.ids) + (uint64_t)row * a.top;
    cuda_wait();
    if (threadIdx.x == 0)
        cuda_at<int32_t>(a.counts)[row] = n < a.top ? n : a.top;
    if (n <= a.top) {
        for (int i = threadIdx.x; i < n; i += BEST_THREADS)
            ids[i] = i;
        return;
    }
    const float *score = cuda_at<const float>(a.scores) + (uint64_t)blockIdx.x * a.most;
    int more;
    const uint32_t last = last_rank(score, n, a.top, &more);
    const int each = (n + BEST_THREADS - 1) / BEST_THREADS, from = threadIdx.x * each,
              to = from + each < n ? from + each : n, equals = a.top - more;
    int better = 0, equal = 0;
    for (int i = from; i < to; i++) {
        const uint32_t rank = rank_of(score[i]);
        better += rank > last;
        equal += rank == last;
    }
    better = sum_before(better, warps);
    equal = sum_before(equal, warps);
    for (int i = from; i < to; i++) {
        const uint32_t rank = rank_of(score[i]);
        if (rank > last || (rank == last && equal < equals))
            ids[better + (equal < equals ? equal : equals)] = i;
        better += rank > last;
        equal += rank == last;
    }
}

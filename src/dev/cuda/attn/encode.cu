/* Pages that are full: their raw tiles become codes, bit for bit those of kernel/ref/kvq_encode.c and codec/kv_group.c.
 *
 * One block of threads per page, KV head, side and half of 32 tokens; a half's words hold no code of the other. */
#include "dev/cuda/attn/cache.cuh"

#define MOST    512 /* threads of a block; fewer where shared memory is short */
#define THREADS ((int)blockDim.x)
#define WARPS   (THREADS / 32)
#define HALF    32
#define TINY    0x1.0p-100f
#define CAP     12000

/* What a block of threads shares; vectors are x + t * (dim + 1). */
struct work {
    float *x;
    uint8_t *codes;            /* [32][dim] */
    uint8_t (*order)[128];     /* [2] chains of whole blocks, and of the last */
    float (*turn)[2][HALF];    /* [8] cos and sin of pairs */
    struct chain *chain;       /* trellis: one for each warp, or half a warp */
};

struct chain {
    int32_t in[64];
    int16_t x[128];
    uint8_t symbol[2][128]; /* of the path in hand, of the best one */
    uint8_t oldest[128 * 32]; /* of two states */
};
struct chain16 { /* of 16 states */
    int32_t in[16];
    int16_t x[128];
    uint8_t symbol[2][128];
    uint8_t oldest[128 * 16];
};

static_assert(sizeof(chain) <= TERN_CUDA_CHAIN && 2 * sizeof(chain16) <= TERN_CUDA_CHAIN, "room of a warp");

/* ---- vectors ---- */

__device__ static void load_vectors(const tern_cuda_side &s, const work &w, const uint8_t *tile, int t0)
{
    for (int i = threadIdx.x; i < HALF * s.dim; i += THREADS) {
        const int t = s.key ? i % HALF : i / s.dim, d = s.key ? i / HALF : i % s.dim;
        w.x[t * (s.dim + 1) + d] = raw_value(s, tile, 64, t0 + t, d);
    }
}

/* As kv_cond.c: the angle of the page is known, those of its tokens follow one by one, in f64. */
__device__ static void turn_pairs(const tern_cuda_side &s, const tern_cuda_cond &c, const work &w, int page, int t0)
{
    const int i = threadIdx.x;
    if (i >= c.n_pairs)
        return;
    const double *step = cuda_at<const double>(s.steps) + 2 * c.pairs[i].freq;
    const double *at = cuda_at<const double>(s.angles) + 2 * ((int64_t)c.pairs[i].freq * s.max_pages + page);
    double co = at[0], si = at[1];
    for (int j = 0; j < t0 + HALF; j++) {
        if (j >= t0) {
            w.turn[i][0][j - t0] = (float)co;
            w.turn[i][1][j - t0] = (float)si;
        }
        const double next = __dsub_rn(__dmul_rn(co, step[0]), __dmul_rn(si, step[1]));
        si = __dadd_rn(__dmul_rn(si, step[0]), __dmul_rn(co, step[1]));
        co = next;
    }
}

__device__ static void condition(const tern_cuda_side &s, const tern_cuda_cond &c, const work &w)
{
    const int t = threadIdx.x;
    for (int i = 0; t < HALF && i < c.n_pairs; i++) {
        const auto &p = c.pairs[i];
        float *x = w.x + t * (s.dim + 1);
        const float co = w.turn[i][0][t], si = w.turn[i][1][t];
        x[p.a] = __fsub_rn(x[p.a], __fsub_rn(__fmul_rn(p.re, co), __fmul_rn(p.im, si)));
        x[p.b] = __fsub_rn(x[p.b], __fadd_rn(__fmul_rn(p.re, si), __fmul_rn(p.im, co)));
    }
    __syncthreads();
    for (int i = threadIdx.x; i < HALF * s.dim; i += THREADS) {
        float *x = w.x + i / s.dim * (s.dim + 1) + i % s.dim;
        const int d = i % s.dim;
        *x = __fmul_rn(__fsub_rn(*x, cuda_at<const float>(c.mean)[d]), cuda_at<const float>(c.scale)[d]);
    }
    __syncthreads();
}

/* ---- scales ---- */

__device__ static uint16_t head_near(float f)
{
    const uint32_t u = ((uint32_t)to_f16(f) + 4) >> 3 << 4;
    return (uint16_t)(u < 0xF7F0u ? u : 0xF7F0u);
}

__device__ static uint16_t head_up(float f)
{
    uint32_t u;
    if (f >= 65280.0f)
        return 0xF7F0;
    if (f >= 0x1.0p-14f) {
        u = ((__float_as_uint(f) + 0xFFFFu) >> 16) - (112u << 7);
    } else {
        const float g = __fmul_rn(f, 0x1.0p21f);
        u = (uint32_t)g;
        u += (float)u < g;
    }
    return (uint16_t)(u << 4);
}

/* The order of vec.h: 16 running sums, one in each of 16 lanes, then halves onto each other. */
__device__ static float add_lanes(float x)
{
    for (int width = 8; width; width /= 2)
        x = __fadd_rn(x, __shfl_down_sync(~0u, x, width, 16));
    return __shfl_sync(~0u, x, 0, 16);
}

__device__ static float energy(const float *y, int n, int lane)
{
    float sum = 0;
    for (int i = lane; i < n; i += 16)
        sum = __fmaf_rn(y[i], y[i], sum);
    return add_lanes(sum);
}

__device__ static bool is_empty(float ss)
{
    return !(ss >= TINY && ss < INFINITY);
}

/* ---- scalar codes: 16 lanes per vector ---- */

__device__ static uint16_t encode8(uint8_t *codes, const float *y, int n, int lane)
{
    uint32_t top = 0;
    for (int i = lane; i < n; i += 16)
        top = max(top, __float_as_uint(y[i]) & 0x7FFFFFFFu);
    for (int width = 8; width; width /= 2)
        top = max(top, __shfl_xor_sync(~0u, top, width, 16));
    const bool none = !top || top >= 0x7F800000u;
    const uint16_t head = none ? 0 : head_up(__uint_as_float(top));
    const float inv = __fdiv_rn(127.0f, header_scale(head));
    for (int i = lane; i < n; i += 16) {
        float z = __fmul_rn(y[i], inv);
        z = z < 127.0f ? z : 127.0f;
        z = z > -127.0f ? z : -127.0f;
        codes[i] = none ? 0 : (uint8_t)(int8_t)__float2int_rn(z);
    }
    return head;
}

__device__ static uint16_t encode_scalar(const tern_cuda_side &s, uint8_t *codes, const float *y, int n, int lane)
{
    const float ss = energy(y, n, lane), inv = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(ss, (float)n)));
    const bool none = is_empty(ss);
    float along = 0;
    int ee = 0;
    for (int i = lane; i < n; i += 16) {
        const float z = __fmul_rn(y[i], inv);
        int c = 0;
        for (int k = 0; k < (1 << s.bits) - 1; k++)
            c += z > s.mid[k];
        codes[i] = none ? (uint8_t)(1 << (s.bits - 1)) : (uint8_t)c;
        ee += s.entry[c] * s.entry[c];
        along = __fmaf_rn(y[i], (float)s.entry[c], along);
    }
    const float ye = add_lanes(along);
    for (int width = 8; width; width /= 2)
        ee += __shfl_xor_sync(~0u, ee, width, 16);
    const float f = s.key ? __fsqrt_rn(__fdiv_rn(ss, (float)ee)) : __fdiv_rn(ye, (float)ee);
    return none ? 0 : head_near(__fdiv_rn(f, s.unit));
}

/* ---- group schemes: one thread per group ---- */

__device__ static uint16_t group_f16(float x)
{
    return to_f16(x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x);
}

__device__ static void affine_group(uint8_t *code, uint16_t *scale, uint16_t *bias, const float *y, int n,
                                    float n_bins)
{
    float lo = y[0], hi = y[0];
    for (int i = 1; i < n; i++) {
        lo = fminf(lo, y[i]);
        hi = fmaxf(hi, y[i]);
    }
    const bool up = fabsf(lo) > fabsf(hi);
    float edge = up ? lo : hi, step = fmaxf(__fdiv_rn(__fsub_rn(hi, lo), n_bins), 1e-7f);
    const float zero = rintf(__fdiv_rn(edge, up ? step : -step));
    step = zero != 0 ? __fdiv_rn(edge, zero) : up ? step : -step;
    edge = zero != 0 ? edge : 0;
    *scale = group_f16(step);
    *bias = group_f16(edge);
    for (int i = 0; i < n; i++)
        code[i] = (uint8_t)fminf(fmaxf(rintf(__fdiv_rn(__fsub_rn(y[i], edge), step)), 0.0f), n_bins);
}

__device__ static void level_group(const tern_cuda_side &s, uint8_t *code, uint16_t *scale, const float *y, int n,
                                   float ss)
{
    const int n_levels = 1 << s.bits;
    float most = 0, ee = 0;
    for (int i = 0; i < n; i++)
        most = fmaxf(most, fabsf(y[i]));
    for (int i = 0; i < n; i++) {
        const float z = __fmul_rn(__fdiv_rn(y[i], most), s.level[n_levels - 1]);
        int above = 0;
        for (int k = 0; k + 1 < n_levels; k++)
            above += z > s.mid[k];
        code[i] = (uint8_t)above;
        ee = __fadd_rn(ee, __fmul_rn(s.level[above], s.level[above]));
    }
    *scale = group_f16(__fsqrt_rn(__fdiv_rn(ss, ee)));
}

/* The header's byte: of the smallest power of two s with most <= top * s. */
__device__ static int power_byte(float most, float top)
{
    int byte = (int)(__float_as_uint(__fdiv_rn(most, top)) >> 23 & 255);
    if (byte < 254 && most > __fmul_rn(top, power_of(byte)))
        byte++;
    return byte;
}

/* The nearest code, to even, of a magnitude not above the largest one. */
__device__ static int float_code(float x, int mantissa, int low)
{
    int exponent = (int)(__float_as_uint(x) >> 23) - 127;
    exponent = exponent < low ? low : exponent;
    int q = (int)rintf(__fmul_rn(x, __uint_as_float((uint32_t)(mantissa - exponent + 127) << 23)));
    if (q >> (mantissa + 1)) {
        q >>= 1;
        exponent++;
    }
    return q >> mantissa ? (exponent - low + 1) << mantissa | (q - (1 << mantissa)) : q;
}

__device__ static void encode_floats(const tern_cuda_side &s, const work &w, uint16_t *head, int t0)
{
    const int size = floats_group(s.bits), n_groups = (s.dim + size - 1) / size, sign = 1 << (s.bits - 1);
    const float top = s.bits == 8 ? 448.0f : 6.0f;
    for (int i = threadIdx.x; i < HALF * n_groups; i += THREADS) {
        const int t = i % HALF, g = i / HALF, d = g * size, n = s.dim - d < size ? s.dim - d : size;
        const float *y = w.x + t * (s.dim + 1) + d;
        uint8_t *codes = w.codes + t * s.dim + d, *scale = reinterpret_cast<uint8_t *>(head) + g * 64 + t0 + t;
        float sum = 0, most = 0;
        for (int k = 0; k < n; k++) {
            sum = __fadd_rn(sum, fabsf(y[k]));
            most = fmaxf(most, fabsf(y[k]));
        }
        const bool some = sum > 0 && sum < INFINITY; /* no NaN */
        *scale = some ? (uint8_t)power_byte(most, top) : 0;
        const double inverse = 1 / (double)power_of(*scale); /* of the smallest ones no float is */
        for (int k = 0; k < n; k++) {
            const float x = (float)((double)fabsf(y[k]) * inverse);
            codes[k] = some ? (uint8_t)(float_code(x < top ? x : top, s.bits == 8 ? 3 : 1, s.bits == 8 ? -6 : 0) |
                                        (y[k] < 0 ? sign : 0))
                            : 0;
        }
    }
}

__device__ static void encode_groups(const tern_cuda_side &s, const work &w, uint16_t *head, int t0)
{
    const int size = s.form == TERN_CUDA_AFFINE ? 64 : 16, n_groups = (s.dim + size - 1) / size;
    for (int i = threadIdx.x; i < HALF * n_groups; i += THREADS) {
        const int t = i % HALF, g = i / HALF, d = g * size, n = s.dim - d < size ? s.dim - d : size;
        const float *y = w.x + t * (s.dim + 1) + d;
        uint8_t *codes = w.codes + t * s.dim + d;
        uint16_t *scale = head + g * 64 + t0 + t, *bias = scale + n_groups * 64;
        float ss = 0;
        for (int k = 0; k < n; k++)
            ss = __fadd_rn(ss, __fmul_rn(y[k], y[k]));
        *scale = 0;
        if (s.form == TERN_CUDA_AFFINE)
            *bias = 0;
        for (int k = 0; k < n; k++)
            codes[k] = 0;
        if (is_empty(ss)) /* NaN too */
            continue;
        if (s.form == TERN_CUDA_LEVELS)
            level_group(s, codes, scale, y, n, ss);
        else
            affine_group(codes, scale, bias, y, n, (float)((1 << s.bits) - 1));
    }
}

/* ---- trellis codes: a state per lane, or two ----
 *
 * As kernel/kvq.h says it.  A step adds to a state's metric what depends on the symbol that it is about to lose, so that
 * the edges into the next state differ by a constant alone; sums are kept sixteenfold with the edge below, so that one
 * minimum finds both and the smaller edge wins a tie. */

__device__ static int half_cost(int X, int w)
{
    return -(((X - 64 * w) * w + 64) >> 7);
}

template <int BITS> struct trellis {
    static constexpr int STATES = BITS == 4 ? 16 : 64, EDGES = 1 << BITS, LANES = BITS == 4 ? 16 : 32;
    static constexpr int OWN = STATES / LANES, FIRST = BITS == 4 ? 16 : BITS == 3 ? 2 : 1;

    __device__ static int new_part(const tern_cuda_side &s, int state)
    {
        return BITS == 4   ? s.entry[state]
               : BITS == 3 ? s.entry[state >> 3] + s.b[state & 7]
                           : s.entry[(state & 12) | state >> 4];
    }
    __device__ static int old_part(const tern_cuda_side &s, int state, int e)
    {
        return BITS == 4 ? s.b[e] : BITS == 3 ? s.c[e] : s.b[4 * e + (state & 3)];
    }
};

template <class T> __device__ static T least_of(T x, int lanes)
{
    if (lanes == 32)
        return __reduce_min_sync(~0u, x);
    for (int width = 8; width; width /= 2)
        x = min(x, __shfl_xor_sync(~0u, x, width, 16));
    return x;
}

/* The best path for the X of the chain: c->symbol[0], and in the first lane the start bits and the two sums. */
template <int BITS, class CHAIN>
__device__ static int best_path(const tern_cuda_side &s, CHAIN *c, const float *y, const uint8_t *order, int n,
                                int lane, float *out_ye, int *out_ee)
{
    using T = trellis<BITS>;
    int metric[T::OWN], u[T::OWN], old[T::OWN], cost[T::OWN][T::EDGES];
    for (int k = 0; k < T::OWN; k++) {
        const int state = lane + k * T::LANES;
        metric[k] = 0;
        u[k] = T::new_part(s, state);
        /* as the state before: the symbol that it loses is its lowest, the next one's low symbols stand above */
        old[k] = T::old_part(s, state >> BITS, state & (T::EDGES - 1));
        for (int e = 0; e < T::EDGES; e++)
            cost[k][e] = 16 * u[k] * T::old_part(s, state, e);
    }
    for (int i = 0; i < n; i++) {
        const int X = c->x[i];
        for (int k = 0; k < T::OWN; k++) {
            const int state = lane + k * T::LANES, e = state & (T::EDGES - 1);
            const int in = metric[k] + half_cost(X, old[k]);
            c->in[state] = i || e < T::FIRST ? 16 * in + e : 0x3FFFFFFF;
        }
        __syncwarp();
        int next[T::OWN], least = INT32_MAX, oldest = 0;
        for (int k = 0; k < T::OWN; k++) {
            const int state = lane + k * T::LANES;
            const int4 *in = reinterpret_cast<const int4 *>(c->in + (state << BITS & (T::STATES - 1)));
            int best = INT32_MAX;
            for (int e = 0; e < T::EDGES; e += 4) {
                const int4 x = in[e / 4];
                best = min(min(best, x.x + cost[k][e]), x.y + cost[k][e + 1]);
                best = min(min(best, x.z + cost[k][e + 2]), x.w + cost[k][e + 3]);
            }
            oldest |= (best & 15) << 4 * k;
            next[k] = (best >> 4) + half_cost(X, u[k]);
            least = min(least, next[k]);
        }
        c->oldest[i * T::LANES + lane] = (uint8_t)oldest;
        least = least_of(least, T::LANES); /* and everybody has read `in` */
        __syncwarp();
        for (int k = 0; k < T::OWN; k++)
            metric[k] = min(next[k] - least, CAP);
    }
    int key = metric[0] * 64 + lane; /* the lower state in a tie */
    for (int k = 1; k < T::OWN; k++)
        key = min(key, metric[k] * 64 + lane + k * T::LANES);
    int state = least_of(key, T::LANES) & 63;
    float ye = 0;
    int ee = 0;
    if (lane == 0)
        for (int i = n - 1; i >= 0; i--) {
            const int e = c->oldest[i * T::LANES + state % T::LANES] >> state / T::LANES * 4 & 15;
            const int entry = T::new_part(s, state) + T::old_part(s, state, e);
            c->symbol[0][i] = (uint8_t)(state >> (BITS * (4 - BITS)));
            ye = __fmaf_rn(y[order[i]], (float)entry, ye);
            ee += entry * entry;
            state = (state << BITS & (T::STATES - 1)) | e;
        }
    *out_ye = ye;
    *out_ee = ee;
    __syncwarp();
    return BITS == 4 ? state : BITS == 3 ? state >> 3 | (state & 1) << 3 : state >> 4 | (state & 12);
}

/* A vector's block by 16 or 32 lanes, all lanes of the warp with us. */
template <int BITS, class CHAIN>
__device__ static uint16_t encode_trellis(const tern_cuda_side &s, CHAIN *c, uint8_t *codes, const float *y,
                                          const uint8_t *order, int n, int lane)
{
    constexpr int LANES = trellis<BITS>::LANES;
    const float ss = energy(y, n, lane % 16), inv = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(ss, (float)n)));
    float most = -INFINITY, factor = 1.0f;
    int head = 0;
    for (int k = 0; k < s.n_prescale; k++) {
        const float scale = __fmul_rn(__fmul_rn(inv, factor), __fdiv_rn(128.0f, s.unit));
        for (int i = lane; i < n; i += LANES) {
            const float x = __fmul_rn(y[order[i]], scale);
            c->x[i] = (int16_t)__float2int_rn(x < 16256.0f ? x > -16256.0f ? x : -16256.0f : 16256.0f);
        }
        __syncwarp();
        float ye;
        int ee, better = 0;
        const int start = best_path<BITS>(s, c, y, order, n, lane, &ye, &ee);
        if (lane == 0) {
            const bool norm = s.key || !(ye > 0.0f);
            const float f = norm ? __fsqrt_rn(__fdiv_rn(ss, (float)ee)) : __fdiv_rn(ye, (float)ee);
            const uint16_t h = head_near(__fdiv_rn(f, s.unit));
            const float fu = __fmul_rn(header_scale(h), s.unit);
            const float gain = __fmul_rn(fu, __fsub_rn(__fmul_rn(2.0f, ye), __fmul_rn(fu, (float)ee)));
            better = gain > most;
            most = better ? gain : most;
            head = better ? h | start : head;
            factor = __fmul_rn(ye, inv) > __fmul_rn((float)ee, __fmul_rn(1.01f, s.unit)) ? 0.92f : 1.1f;
        }
        factor = __shfl_sync(~0u, factor, 0, LANES);
        better = __shfl_sync(~0u, better, 0, LANES);
        for (int i = lane; better && i < n; i += LANES)
            c->symbol[1][i] = c->symbol[0][i];
        __syncwarp();
    }
    const bool none = is_empty(ss);
    for (int i = lane; i < n; i += LANES)
        codes[order[i]] = none ? (uint8_t)(1 << (BITS - 1)) : c->symbol[1][i];
    __syncwarp();
    head = __shfl_sync(~0u, head, 0, LANES); /* the warp's other half, too */
    return none ? 0 : (uint16_t)head;
}

/* The dims of a block of n dims in the order of the chain, as kvq_chain. */
__device__ static void make_order(uint8_t *order, int n, int bits, bool key)
{
    for (int i = threadIdx.x; i < n; i += THREADS) {
        if (!key) {
            const int groups = n / 16;
            order[i] = (uint8_t)(16 * (groups - 1 - i % groups) + i / groups);
            continue;
        }
        const int per = bits == 2 ? 4 : 2, words = n / (4 * per), byte = i / (words * per);
        const int word = words - 1 - i % (words * per) / per, j = i % per;
        order[i] = (uint8_t)((4 * word + byte) * per + (bits == 2 ? 3 - j : j));
    }
}

__device__ static void encode_chains(const tern_cuda_side &s, const work &w, uint16_t *head, int t0)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_blocks = (s.dim + 127) / 128;
    const int at_once = s.bits == 4 ? 2 : 1; /* vectors of a warp */
    for (int i = warp * at_once; i < HALF * n_blocks; i += WARPS * at_once) {
        const int half = s.bits == 4 ? lane / 16 : 0, b = i / HALF, t = i % HALF + half, d0 = b * 128;
        const int n = block_dims(s.dim, d0);
        const float *y = w.x + t * (s.dim + 1) + d0;
        uint8_t *codes = w.codes + t * s.dim + d0;
        const uint8_t *order = w.order[n < 128];
        uint16_t h;
        if (s.bits == 4)
            h = encode_trellis<4>(s, reinterpret_cast<chain16 *>(w.chain) + 2 * warp + half, codes, y, order, n,
                                  lane % 16);
        else if (s.bits == 3)
            h = encode_trellis<3>(s, w.chain + warp, codes, y, order, n, lane);
        else
            h = encode_trellis<2>(s, w.chain + warp, codes, y, order, n, lane);
        if (lane % (s.bits == 4 ? 16 : 32) == 0)
            head[b * 64 + t0 + t] = h;
    }
}

__device__ static void encode_scalars(const tern_cuda_side &s, const work &w, uint16_t *head, int t0)
{
    const int lane = threadIdx.x % 16, n_blocks = (s.dim + 127) / 128;
    for (int i = threadIdx.x / 16; i < HALF * n_blocks; i += THREADS / 16) {
        const int b = i / HALF, t = i % HALF, d0 = b * 128, n = block_dims(s.dim, d0);
        const float *y = w.x + t * (s.dim + 1) + d0;
        uint8_t *codes = w.codes + t * s.dim + d0;
        const uint16_t h = s.bits == 8 ? encode8(codes, y, n, lane) : encode_scalar(s, codes, y, n, lane);
        if (lane == 0)
            head[b * 64 + t0 + t] = h;
    }
}

/* ---- page order ---- */

/* Word `word` of a half: 16 lanes of word w of a set. */
__device__ static uint32_t pack_word(const tern_cuda_side &s, const uint8_t *codes, int word)
{
    const int bits = s.bits, dim = s.dim, line = word / 16, lane = word % 16, sets = dim / 32;
    const uint8_t *first;
    int step, second, w; /* from item to item; from item 0 to item 16 */
    if (!s.key) {
        first = codes + line / bits * 16 + lane;
        step = dim;
        second = 16 * dim;
        w = line % bits;
    } else if (line < sets * 2 * bits) {
        first = codes + (line / bits % 2 * 16 + lane) * dim + line / (2 * bits) * 32;
        step = 1;
        second = 16;
        w = line % bits;
    } else {
        first = codes + lane * dim + sets * 32;
        step = 1;
        second = 16 * dim;
        w = line - sets * 2 * bits;
    }
    const int per = bits == 8 ? 4 : bits == 2 ? 16 : 8, width = bits == 3 ? 4 : bits;
    uint32_t out = 0;
    for (int k = 0; k < per; k++) {
        const int i = w * per + k;
        out |= (uint32_t)first[i / 16 * second + i % 16 * step] << width * k;
    }
    for (int k = 0; bits == 3 && k < 8; k++)
        out |= (uint32_t)(first[second + (8 + k) * step] >> w & 1) << (4 * k + 3);
    return out;
}

/* Bytes of a plane of group codes: `per` rows of `bits` bits, from bit `from` of a code on. */
__device__ static void pack_plane(const tern_cuda_side &s, uint8_t *data, const uint8_t *codes, int t0, int per,
                                  int bits, int from)
{
    const int lanes = s.key ? HALF : s.dim, rows = s.key ? s.dim : HALF, stride = s.key ? 64 : s.dim;
    for (int i = threadIdx.x; i < rows / per * lanes; i += THREADS) {
        const int lane = i % lanes, row = i / lanes * per;
        int out = 0;
        for (int k = 0; k < per; k++) {
            const int t = s.key ? lane : row + k, d = s.key ? row + k : lane;
            out |= (codes[t * s.dim + d] >> from & ((1 << bits) - 1)) << k * bits;
        }
        data[(s.key ? row / per : (t0 + row) / per) * stride + (s.key ? t0 : 0) + lane] = (uint8_t)out;
    }
}

__device__ static void pack(const tern_cuda_side &s, uint8_t *data, const uint8_t *codes, int t0)
{
    if (s.form == TERN_CUDA_CODES) {
        uint32_t *to = reinterpret_cast<uint32_t *>(data) + t0 / HALF * s.dim * s.bits;
        for (int i = threadIdx.x; i < s.dim * s.bits; i += THREADS)
            to[i] = pack_word(s, codes, i);
    } else if (s.bits == 3) {
        pack_plane(s, data, codes, t0, 4, 2, 0);
        pack_plane(s, data + s.dim * 16, codes, t0, 8, 1, 2);
    } else {
        pack_plane(s, data, codes, t0, 8 / s.bits, s.bits, 0);
    }
}

__device__ static void encode_half(const tern_cuda_side &s, const work &w, uint8_t *data, uint16_t *head,
                                   const uint8_t *tile, int head_i, int page, int t0)
{
    load_vectors(s, w, tile, t0);
    if (s.trellis) {
        make_order(w.order[0], 128, s.bits, s.key);
        make_order(w.order[1], s.dim % 128, s.bits, s.key);
    }
    const tern_cuda_cond *c = s.cond ? cuda_at<const tern_cuda_cond>(s.cond) + head_i : nullptr;
    if (c)
        turn_pairs(s, *c, w, page, t0);
    __syncthreads();
    if (c)
        condition(s, *c, w);
    for (int t = threadIdx.x / 32; s.rotated && t < HALF; t += WARPS)
        rotate_row(s, w.x + t * (s.dim + 1), false, threadIdx.x % 32);
    __syncthreads();
    if (s.form == TERN_CUDA_FLOATS)
        encode_floats(s, w, head, t0);
    else if (s.form != TERN_CUDA_CODES)
        encode_groups(s, w, head, t0);
    else if (s.trellis)
        encode_chains(s, w, head, t0);
    else
        encode_scalars(s, w, head, t0);
    __syncthreads();
    pack(s, data, w.codes, t0);
}

/* Shared: x [32][dim + 1], codes [32][dim], orders, turns, chains. */
TERN_CUDA_KERNEL_BEGIN(encode, tern_cuda_append_args, MOST, 1)
{
    extern __shared__ __align__(16) uint8_t shared[];
    cuda_wait();
    const tern_cuda_layer &l = a.l;
    const tern_cuda_unit unit = cuda_at<const tern_cuda_unit>(a.units)[blockIdx.x];
    const tern_cuda_job &j = cuda_at<const tern_cuda_job>(a.t.jobs)[unit.job];
    const int head = blockIdx.y, t0 = blockIdx.z % 2 * HALF;
    const bool key = blockIdx.z < 2;
    const tern_cuda_side &s = key ? l.k : l.v;
    if (s.form < TERN_CUDA_CODES || !s.dim)
        return;
    work w;
    w.x = reinterpret_cast<float *>(shared);
    w.order = reinterpret_cast<uint8_t(*)[128]>(shared + HALF * (s.dim + 1) * 4);
    w.turn = reinterpret_cast<float(*)[2][HALF]>(w.order + 2);
    w.codes = reinterpret_cast<uint8_t *>(w.turn + TERN_CUDA_PAIRS);
    w.chain = reinterpret_cast<chain *>(w.codes + HALF * s.dim);
    uint8_t *p = page_at(a.t, l, j, unit.page, head);
    const uint8_t *tile = work_tile(a.t, l, a.stage, unit.job, unit.page, head);
    encode_half(s, w, p + (key ? l.k_off : l.v_off),
                reinterpret_cast<uint16_t *>(p + (key ? l.k_head_off : l.v_head_off)),
                key ? tile : tile + l.tile_v_off, head, unit.page, t0);
}

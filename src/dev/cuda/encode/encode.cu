/* Pages that are full: their raw tiles become codes of groups, or of chains by a search of the best path. */
#include "dev/cuda/encode/encode.cuh"

#define MOST 512 /* threads of a block; fewer where shared memory is short */
#define CAP  12000

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

/* What blocks of threads that search share. */
struct search {
    uint8_t (*order)[128]; /* [2] chains of whole blocks, and of the last */
    struct chain *chain;   /* one for each warp, or half a warp */
};

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
        uint8_t *codes = w.codes + t * codes_pitch(s.dim) + d, *scale = reinterpret_cast<uint8_t *>(head) + g * 64 + t0 + t;
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
        uint8_t *codes = w.codes + t * codes_pitch(s.dim) + d;
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

__device__ static void encode_chains(const tern_cuda_side &s, const work &w, const search &f, uint16_t *head, int t0)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_blocks = (s.dim + 127) / 128;
    const int at_once = s.bits == 4 ? 2 : 1; /* vectors of a warp */
    for (int i = warp * at_once; i < HALF * n_blocks; i += WARPS * at_once) {
        const int half = s.bits == 4 ? lane / 16 : 0, b = i / HALF, t = i % HALF + half, d0 = b * 128;
        const int n = block_dims(s.dim, d0);
        const float *y = w.x + t * (s.dim + 1) + d0;
        uint8_t *codes = w.codes + t * codes_pitch(s.dim) + d0;
        const uint8_t *order = f.order[n < 128];
        uint16_t h;
        if (s.bits == 4)
            h = encode_trellis<4>(s, reinterpret_cast<chain16 *>(f.chain) + 2 * warp + half, codes, y, order, n,
                                  lane % 16);
        else if (s.bits == 3)
            h = encode_trellis<3>(s, f.chain + warp, codes, y, order, n, lane);
        else
            h = encode_trellis<2>(s, f.chain + warp, codes, y, order, n, lane);
        if (lane % (s.bits == 4 ? 16 : 32) == 0)
            head[b * 64 + t0 + t] = h;
    }
}

/* Shared: what work_in has; of trellis codes orders and chains. */
TERN_CUDA_KERNEL_BEGIN(encode, tern_cuda_append_args, MOST, 1)
{
    extern __shared__ __align__(16) uint8_t shared[];
    cuda_wait();
    const half_page h = half_of_page(a);
    const tern_cuda_side &s = *h.side;
    if (s.form < TERN_CUDA_CODES || !s.dim || TERN_CUDA_SCALAR(s))
        return;
    uint8_t *end;
    const work w = work_in(shared, s.dim, &end);
    const search f = {reinterpret_cast<uint8_t(*)[128]>(end), reinterpret_cast<chain *>(end + 256)};
    if (s.trellis) {
        make_order(f.order[0], 128, s.bits, s.key);
        make_order(f.order[1], s.dim % 128, s.bits, s.key);
    }
    make_vectors(h, w);
    if (s.form == TERN_CUDA_FLOATS)
        encode_floats(s, w, h.head, h.t0);
    else if (s.form != TERN_CUDA_CODES)
        encode_groups(s, w, h.head, h.t0);
    else
        encode_chains(s, w, f, h.head, h.t0);
    __syncthreads();
    pack(s, h.data, w.codes, h.t0);
}

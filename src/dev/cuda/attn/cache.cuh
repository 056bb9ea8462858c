/* dev/cuda/attn/cache.cuh - what kernels of the cache share: addresses, the numbers of a page, rotation.
 *
 * Order of floating point: what encoding computes must be the plain C reference bit for bit, so products and sums are
 * written as intrinsics that the compiler does not contract. */
#ifndef TERN_DEV_CUDA_ATTN_CACHE_CUH
#define TERN_DEV_CUDA_ATTN_CACHE_CUH

#include <cuda_fp16.h>
#include "dev/cuda/attn/args.h"
#include "dev/cuda/kernel.cuh"

/* ---- numbers ---- */

/* As tern_f32_to_f16: NaN keeps its upper bits. */
__device__ static inline uint16_t to_f16(float x)
{
    const uint32_t u = __float_as_uint(x), mag = u & 0x7FFFFFFFu;
    if (mag > 0x7F800000u)
        return (uint16_t)((u >> 16 & 0x8000u) | 0x7E00u | (mag >> 13 & 0x3FFu));
    return __half_as_ushort(__float2half_rn(x));
}

__device__ static inline float from_f16(uint16_t h)
{
    const uint32_t mag = h & 0x7FFFu;
    if (mag > 0x7C00u)
        return __uint_as_float((uint32_t)(h & 0x8000u) << 16 | 0x7FC00000u | (mag & 0x3FFu) << 13);
    return __half2float(__ushort_as_half(h));
}

__device__ static inline float header_scale(uint16_t head)
{
    return __half2float(__ushort_as_half((uint16_t)(head >> 4 << 3)));
}

/* ---- places ---- */

__device__ static inline int oldest_seen(const tern_cuda_layer &l, int pos)
{
    const int oldest = l.chunked ? pos / l.window * l.window : pos - l.window + 1;
    return l.window && oldest > 0 ? oldest : 0;
}

__device__ static inline const tern_cuda_table &table_of(const tern_cuda_tables &t, const tern_cuda_job &j, int group)
{
    return cuda_at<const tern_cuda_table>(t.tables)[j.tables + group];
}

/* One KV head of a closed page. */
__device__ static inline uint8_t *page_at(const tern_cuda_tables &t, const tern_cuda_layer &l, const tern_cuda_job &j,
                                          int page, int head)
{
    const tern_cuda_table &table = table_of(t, j, l.group);
    const tern_cuda_cache &c = cuda_at<const tern_cuda_cache>(t.caches)[j.cache];
    const tern_cuda_blocks &pool = cuda_at<const tern_cuda_blocks>(t.pools)[c.pages + l.group];
    const uint32_t number = cuda_at<const uint32_t>(t.numbers)[table.blocks + page - table.first];
    return cuda_at<uint8_t>(pool.p + number * pool.bytes + l.layer_off + head * l.head_bytes);
}

/* One KV head of the tile where a sequence keeps a page; tiles: of its cache. */
__device__ static inline uint8_t *kept_tile(const tern_cuda_blocks &tiles, const tern_cuda_layer &l, uint32_t tile, int page,
                                            int head)
{
    return cuda_at<uint8_t>(tiles.p + tile * tiles.bytes + l.tile_layer_off +
                            ((uint64_t)(page % l.ring) * l.n_heads + head) * l.tile_bytes);
}

__device__ static inline uint8_t *own_tile(const tern_cuda_tables &t, const tern_cuda_layer &l,
                                           const tern_cuda_job &j, int page, int head)
{
    return kept_tile(cuda_at<const tern_cuda_cache>(t.caches)[j.cache].tiles, l, j.tile, page, head);
}

/* And of the tile that the step works in: its own, or one of the staging tiles from the job's first page on. */
__device__ static inline uint8_t *work_tile(const tern_cuda_tables &t, const tern_cuda_layer &l,
                                            const tern_cuda_stage &s, int job, int page, int head)
{
    const tern_cuda_job &j = cuda_at<const tern_cuda_job>(t.jobs)[job];
    const int stage = cuda_at<const int32_t>(s.stage_of)[job], first = j.pos0 / TERN_CUDA_PAGE;
    if (stage < 0 || page < first)
        return own_tile(t, l, j, page, head);
    return cuda_at<uint8_t>(s.p + (uint64_t)(stage + page - first) * s.tile_bytes + head * l.tile_bytes);
}

/* The same for a unit, which says where that is. */
__device__ static inline uint8_t *unit_tile(const tern_cuda_blocks &tiles, const tern_cuda_layer &l, const tern_cuda_stage &s,
                                            const tern_cuda_unit &u, int head)
{
    if (u.stage >= 0)
        return cuda_at<uint8_t>(s.p + (uint64_t)u.stage * s.tile_bytes + head * l.tile_bytes);
    return kept_tile(tiles, l, u.tile, u.page, head);
}

__device__ static inline uint8_t *sink_of(const tern_cuda_tables &t, const tern_cuda_layer &l, int cache, uint32_t sink, int head)
{
    const tern_cuda_cache &c = cuda_at<const tern_cuda_cache>(t.caches)[cache];
    return cuda_at<uint8_t>(c.sinks.p + sink * c.sinks.bytes + l.sink_layer_off + head * l.sink_bytes);
}

__device__ static inline uint8_t *sink_at(const tern_cuda_tables &t, const tern_cuda_layer &l, const tern_cuda_job &j,
                                          int head)
{
    return sink_of(t, l, j.cache, j.sink, head);
}

/* ---- codes in a page (docs/kv-page.md) ---- */

__device__ static inline int block_dims(int dim, int d0)
{
    return dim - d0 < 128 ? dim - d0 : 128;
}

/* Item i of the set of `bits` words whose lane begins at w; words lie 16 apart. */
__device__ static inline int code_in_set(const uint32_t *w, int i, int bits)
{
    switch (bits) {
    case 8:
        return w[16 * (i / 4)] >> 8 * (i % 4) & 255;
    case 4:
        return w[16 * (i / 8)] >> 4 * (i % 8) & 15;
    case 3:
        if (i < 24)
            return w[16 * (i / 8)] >> 4 * (i % 8) & 7;
        i = 4 * (i - 24) + 3;
        return (w[0] >> i & 1) | (w[16] >> i & 1) << 1 | (w[32] >> i & 1) << 2;
    default:
        return w[16 * (i / 16)] >> 2 * (i % 16) & 3;
    }
}

/* Word 0 of the lane that holds token t, dim d, and which of its items that is. */
__device__ static inline const uint32_t *set_of(const uint8_t *data, int t, int d, int dim, int bits, bool key,
                                                int *item)
{
    const uint32_t *w = reinterpret_cast<const uint32_t *>(data);
    if (!key) {
        *item = t % 32;
        return w + ((t / 32 * (dim / 16) + d / 16) * bits * 16 + d % 16);
    }
    const int d0 = d / 32 * 32;
    const bool shared = d0 + 32 > dim;
    const int group = shared ? 0 : t / 16 % 2;
    *item = shared ? d - d0 + t % 32 / 16 * 16 : d - d0;
    return w + (((t / 32 * dim + d0) / 16 + group) * bits * 16 + t % 16);
}

__device__ static inline int code_at(const uint8_t *data, int t, int d, int dim, int bits, bool key)
{
    int item;
    const uint32_t *w = set_of(data, t, d, dim, bits, key, &item);
    return code_in_set(w, item, bits);
}

/* The dim (inside a block of n) whose symbol stands before that of dim d in its chain; -1: d is the first. */
__device__ static inline int before_in_chain(int d, int n, int bits, bool key)
{
    if (!key) {
        const int groups = n / 16, g = d / 16, lane = d % 16;
        return g + 1 < groups ? d + 16 : lane ? lane - 1 : -1;
    }
    const int per = bits == 2 ? 4 : 2, words = n / (4 * per);
    const int word = d / (4 * per), byte = d / per % 4, j = bits == 2 ? 3 - d % per : d % per;
    if (j)
        return bits == 2 ? d + 1 : d - 1;
    const int last = bits == 2 ? 0 : per - 1; /* of a byte, as an offset */
    if (word + 1 < words)
        return (4 * (word + 1) + byte) * per + last;
    return byte ? (byte - 1) * per + last : -1;
}

__device__ static inline int start_symbol(int start, int j, int bits)
{
    const int width = bits == 2 ? 2 : bits;
    return j == 0 ? start & ((1 << width) - 1) : j == 1 ? start >> width : 0;
}

/* The entry of token t, dim d. */
__device__ static inline int entry_at(const tern_cuda_side &s, const uint8_t *data, const uint16_t *head, int t, int d)
{
    const int code = code_at(data, t, d, s.dim, s.bits, s.key);
    if (s.bits == 8)
        return (int8_t)code;
    if (!s.trellis)
        return s.entry[code];
    const int d0 = d / 128 * 128, n = block_dims(s.dim, d0), memory = 5 - s.bits;
    const int start = head[d / 128 * 64 + t] & 15;
    int prev[3] = {0, 0, 0}, at = d - d0;
    for (int i = 0, past = 0; i < memory; i++) {
        at = at < 0 ? -1 : before_in_chain(at, n, s.bits, s.key);
        prev[i] = at < 0 ? start_symbol(start, past++, s.bits) : code_at(data, t, d0 + at, s.dim, s.bits, s.key);
    }
    return s.bits == 4   ? s.entry[code] + s.b[prev[0]]
           : s.bits == 3 ? s.entry[code] + s.b[prev[0]] + s.c[prev[1]]
                         : s.entry[4 * prev[0] + code] + s.b[4 * prev[2] + prev[1]];
}

/* Group schemes: rows are dims of keys or tokens of values, lanes the others. */
__device__ static inline int group_code(const tern_cuda_side &s, const uint8_t *data, int t, int d)
{
    const int row = s.key ? d : t, lane = s.key ? t : d, lanes = s.key ? 64 : s.dim;
    if (s.bits == 3) {
        const int low = data[row / 4 * lanes + lane] >> 2 * (row % 4) & 3;
        return low | (data[s.dim * 16 + row / 8 * lanes + lane] >> row % 8 & 1) << 2;
    }
    const int per = s.bits == 8 ? 0 : s.bits == 4 ? 1 : 2; /* log2 of codes in a byte */
    return data[(row >> per) * lanes + lane] >> s.bits * (row & ((1 << per) - 1)) & ((1 << s.bits) - 1);
}

/* Small floats (codec/kv_group.c): the scale of a header's byte, and what a code stands for. */
__device__ static inline float power_of(int byte)
{
    return byte ? __uint_as_float((uint32_t)byte << 23) : 0x1p-127f;
}

__device__ static inline float small_float(int code, int bits)
{
    const int mantissa = bits == 8 ? 3 : 1, low = bits == 8 ? -6 : 0, size = code & ((1 << (bits - 1)) - 1);
    const int e = size >> mantissa, m = size & ((1 << mantissa) - 1);
    const float y = __fmul_rn((float)(e ? m + (1 << mantissa) : m), power_of(127 + low - mantissa + (e ? e - 1 : 0)));
    return code >> (bits - 1) & 1 ? -y : y;
}

__device__ static inline int floats_group(int bits)
{
    return bits == 8 ? 64 : 32;
}

/* Token t, dim d of a closed page in the codec's domain; form: the side's, a constant where a kernel knows it. */
__device__ static inline float form_value(int form, const tern_cuda_side &s, const uint8_t *data, const uint16_t *head, int t,
                                          int d)
{
    const int at = s.key ? d * 64 + t : t * s.dim + d;
    switch (form) {
    case TERN_CUDA_F32:
        return reinterpret_cast<const float *>(data)[at];
    case TERN_CUDA_CODES:
        return __fmul_rn(__fmul_rn(header_scale(head[d / 128 * 64 + t]), s.unit), (float)entry_at(s, data, head, t, d));
    case TERN_CUDA_AFFINE: {
        const int g = d / 64 * 64 + t, n = (s.dim + 63) / 64 * 64;
        return __fadd_rn(__fmul_rn((float)group_code(s, data, t, d), from_f16(head[g])), from_f16(head[n + g]));
    }
    case TERN_CUDA_FLOATS:
        return __fmul_rn(small_float(group_code(s, data, t, d), s.bits),
                         power_of(reinterpret_cast<const uint8_t *>(head)[d / floats_group(s.bits) * 64 + t]));
    case TERN_CUDA_LEVELS:
        return __fmul_rn(s.level[group_code(s, data, t, d)], from_f16(head[d / 16 * 64 + t]));
    default:
        return from_f16(reinterpret_cast<const uint16_t *>(data)[at]);
    }
}

__device__ static inline float page_value(const tern_cuda_side &s, const uint8_t *data, const uint16_t *head, int t, int d)
{
    return form_value(s.form, s, data, head, t, d);
}

/* Element (token t of n, dim d) of a raw side: keys [dim][n], values [n][dim]. */
__device__ static inline float raw_value(const tern_cuda_side &s, const uint8_t *data, int n, int t, int d)
{
    const int at = s.key ? d * n + t : t * s.dim + d;
    return s.raw32 ? reinterpret_cast<const float *>(data)[at] : from_f16(reinterpret_cast<const uint16_t *>(data)[at]);
}

/* ---- rotation by one warp ---- */

/* Sums and differences of 32 * N numbers, of which lane l has those from l * N on; N is 2, 4 or 8. */
template <int N> __device__ static inline void mix_lanes(float x[N], int lane)
{
#pragma unroll
    for (int stride = 1; stride < N; stride *= 2)
#pragma unroll
        for (int j = 0; j < N; j++)
            if (!(j & stride)) {
                const float u = x[j], v = x[j + stride];
                x[j] = __fadd_rn(u, v);
                x[j + stride] = __fsub_rn(u, v);
            }
#pragma unroll
    for (int width = 1; width < 32; width *= 2)
#pragma unroll
        for (int j = 0; j < N; j++) {
            const float other = __shfl_xor_sync(~0u, x[j], width);
            x[j] = lane & width ? __fsub_rn(other, x[j]) : __fadd_rn(x[j], other);
        }
}

/* Signs of the lane's numbers; 1 where nothing is rotated. */
template <int N> __device__ static inline void load_signs(float sign[N], const tern_cuda_side &s, int lane)
{
#pragma unroll
    for (int j = 0; j < N; j++)
        sign[j] = s.rotated ? cuda_at<const float>(s.sign)[lane * N + j] : 1;
}

/* rotate_row, inverse, of a head of 64, 128 or 256 dims. */
template <int N> __device__ static inline void turn_back(float x[N], float norm, const float sign[N], int lane)
{
    mix_lanes<N>(x, lane);
#pragma unroll
    for (int j = 0; j < N; j++)
        x[j] = __fmul_rn(__fmul_rn(x[j], norm), sign[j]);
}

/* Of any head, x in shared memory. */

__device__ static inline void mix_parts(const tern_cuda_side &s, float *x, bool inverse, int lane)
{
    const float *w = cuda_at<const float>(s.across);
    for (int c = lane; c < s.run; c += 32) {
        float in[7], out[7];
        for (int r = 0; r < s.parts; r++)
            in[r] = x[r * s.run + c];
        for (int f = 0; f < s.parts; f++) {
            const float *row = inverse ? w + f : w + f * s.parts;
            const int step = inverse ? s.parts : 1;
            out[f] = __fmul_rn(in[0], row[0]);
            for (int r = 1; r < s.parts; r++)
                out[f] = __fmaf_rn(in[r], row[r * step], out[f]);
        }
        for (int f = 0; f < s.parts; f++)
            x[f * s.run + c] = out[f];
    }
    __syncwarp();
}

__device__ static inline void rotate_row(const tern_cuda_side &s, float *x, bool inverse, int lane)
{
    const float *sign = cuda_at<const float>(s.sign);
    if (inverse && s.parts > 1)
        mix_parts(s, x, true, lane);
    if (!inverse) {
        for (int i = lane; i < s.dim; i += 32)
            x[i] = __fmul_rn(x[i], sign[i]);
        __syncwarp();
    }
    for (int stride = 1; stride < s.run; stride *= 2) {
        for (int i = lane; i < s.dim / 2; i += 32) {
            const int j = 2 * i - (i & (stride - 1)); /* i / stride * 2 * stride + i % stride */
            const float a = x[j], b = x[j + stride];
            x[j] = __fadd_rn(a, b);
            x[j + stride] = __fsub_rn(a, b);
        }
        __syncwarp();
    }
    for (int i = lane; i < s.dim; i += 32) {
        const float y = __fmul_rn(x[i], s.norm);
        x[i] = inverse ? __fmul_rn(y, sign[i]) : y;
    }
    __syncwarp();
    if (!inverse && s.parts > 1)
        mix_parts(s, x, false, lane);
}

#endif

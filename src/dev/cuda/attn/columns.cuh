/* dev/cuda/attn/columns.cuh - queries as attention on codes multiplies them: two columns of 8-bit integers each.
 *
 * Kernels that make them must leave the same bits, so nothing here can be contracted: products stand apart from sums. */
#ifndef TERN_DEV_CUDA_ATTN_COLUMNS_CUH
#define TERN_DEV_CUDA_ATTN_COLUMNS_CUH

#include "dev/cuda/attn/cache.cuh"

/* A query head, scaled, conditioned and rotated: integers of 16 bits, the largest 32,512 or -32,512. */
template <int D> struct query_columns {
    int8_t c[2][D + 16]; /* upper and lower bytes; where dim d stands: column_place */
    float scale;         /* of the integers, and of entries of keys */
    int total[2];        /* their sum, of each 128 dims */
    float shift;         /* what the mean of conditioned keys adds to every score */
};
static_assert(sizeof(query_columns<64>) == TERN_CUDA_COLUMNS_BYTES(64) &&
                  sizeof(query_columns<128>) == TERN_CUDA_COLUMNS_BYTES(128) &&
                  sizeof(query_columns<256>) == TERN_CUDA_COLUMNS_BYTES(256),
              "the host makes room");

/* Codes of two bits have even and odd dims of 16 apart. */
__device__ static inline int column_place(int bits, int d)
{
    return bits == 2 ? d / 16 * 16 + 8 * (d & 1) + d % 16 / 2 : d;
}

/* A lane's D / 32 neighbours of a row, times `by`; zeros where there is no row. */
template <int D> __device__ static inline void load_query(float x[D / 32], const float *from, float by, int lane)
{
    constexpr int N = D / 32;
    constexpr int AT_ONCE = N < 4 ? N : 4;
#pragma unroll
    for (int j = 0; j < N; j += AT_ONCE) {
        float4 v = make_float4(0, 0, 0, 0);
        if (from && AT_ONCE == 4) {
            v = reinterpret_cast<const float4 *>(from)[lane * (N / AT_ONCE) + j / AT_ONCE];
        } else if (from) {
            const float2 two = reinterpret_cast<const float2 *>(from)[lane];
            v.x = two.x;
            v.y = two.y;
        }
        const float four[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            x[j + i] = four[i] * by;
    }
}

/* What the mean of conditioned keys, which pages do not have, adds to every score; x: as load_query leaves it. */
template <int D> __device__ static inline float mean_score(const float x[D / 32], const tern_cuda_cond *cond, int lane)
{
    constexpr int N = D / 32;
    float sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++)
        sum = __fmaf_rn(x[j], cuda_at<const float>(cond->mean)[lane * N + j], sum);
    for (int width = 16; width; width /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, width));
    return sum;
}

/* A warp calls; from: D floats, 16-byte aligned, or nullptr.  sign: load_signs of the keys. */
template <int D>
__device__ static inline void put_columns(query_columns<D> &to, const float *from, float q_scale, const tern_cuda_side &s,
                                          const tern_cuda_cond *cond, const float sign[D / 32], int lane)
{
    constexpr int N = D / 32;
    float x[N], mean = 0, most = 0;
    load_query<D>(x, from, q_scale, lane);
    if (cond) {
        mean = mean_score<D>(x, cond, lane);
#pragma unroll
        for (int j = 0; j < N; j++)
            x[j] *= cuda_at<const float>(cond->unscale)[lane * N + j];
    }
    if (s.rotated) {
#pragma unroll
        for (int j = 0; j < N; j++)
            x[j] *= sign[j];
        mix_lanes<N>(x, lane);
#pragma unroll
        for (int j = 0; j < N; j++)
            x[j] *= s.norm;
    }
#pragma unroll
    for (int j = 0; j < N; j++)
        most = fmaxf(most, fabsf(x[j]));
    for (int width = 16; width; width /= 2)
        most = fmaxf(most, __shfl_xor_sync(~0u, most, width));
    most = fmaxf(most, 1e-30f);
    const float by = 32512.0f / most;
    int all = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int n = __float2int_rn(x[j] * by), upper = (n + 128) >> 8, at = column_place(s.bits, lane * N + j);
        to.c[0][at] = (int8_t)upper;
        to.c[1][at] = (int8_t)(n - upper * 256);
        all += n;
    }
    for (int width = D > 128 ? 8 : 16; width; width /= 2)
        all += __shfl_xor_sync(~0u, all, width);
    if (lane == 0) {
        to.scale = most / 32512.0f * s.unit;
        to.shift = mean;
    }
    if (lane % 16 == 0)
        to.total[lane / 16] = all;
}

#endif

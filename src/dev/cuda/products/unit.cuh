/* dev/cuda/products/unit.cuh - what products of decode rows have in common: units of weights, whose output a panel is, sums of
 * parts. */
#ifndef TERN_DEV_CUDA_UNIT_CUH
#define TERN_DEV_CUDA_UNIT_CUH

#include "dev/cuda/products/panel.cuh"

/* Which product a panel of the launch belongs to. */
__device__ static inline int product_of(const tern_cuda_narrow &a, int panel)
{
    int i = 0;
    while (i + 1 < a.n_m && panel >= a.m[i + 1].panel0)
        i++;
    return i;
}

__device__ static inline const uint8_t *panel_at(const tern_cuda_product &m, uint64_t matrix, int panel)
{
    return cuda_at<const uint8_t>(m.w.p) + matrix + (uint64_t)(panel - m.panel0) * m.w.panel_bytes;
}

/* A unit of a panel, 256 inputs, as it lies in shared memory: codes, then its scales region by region. */
template <int C, int S> struct unit_of {
    static constexpr int codes = 8 * (int)codes_unit(C);
    static constexpr bool k32 = S == TERN_SCALES_K32 || S == TERN_SCALES_K32S,
                          k16 = S == TERN_SCALES_K16 || S == TERN_SCALES_K16M;
    static constexpr int d = S == TERN_SCALES_F16 || S == TERN_SCALES_F16M ? 256 : k32 || k16 ? 32 : 0;
    static constexpr int m = S == TERN_SCALES_F16M ? 256 : S == TERN_SCALES_K32 || S == TERN_SCALES_K16M ? 32 : 0;
    static constexpr int a = k32 ? 128 : k16 ? 256 : 0, b = S == TERN_SCALES_K32 ? 128 : 0;
    static constexpr int bytes = codes + d + m + a + b;

    __device__ static scales_at scales(const uint8_t *of_unit)
    {
        const uint8_t *s = of_unit + codes;
        return {s, s + d, s + d + m, s + d + m + a};
    }
};

/* How the lanes of a warp copy units of one kind of panels: 16 bytes of codes each, over and over, and a piece of scales. */
template <int C, int S> struct unit_copy {
    using unit = unit_of<C, S>;
    uint64_t once;
    int lane, blocks;
    int region, size, at; /* scales: the region that this lane copies of, its bytes of a unit, which of them */

    __device__ unit_copy(const tern_cuda_matrix &w, int of_lane)
        : once(cuda_once()), lane(of_lane), blocks(w.k / 32), region((int)w.d), size(unit::d), at(of_lane * 16)
    {
        static_assert(unit::codes % 512 == 0 && unit::bytes - unit::codes <= 512, "");
        if (unit::m && at >= size) {
            at -= size;
            region = (int)w.m;
            size = unit::m;
        }
        if (unit::a && at >= size) {
            at -= size;
            region = (int)w.a;
            size = unit::a;
        }
        if (unit::b && at >= size) {
            at -= size;
            region = (int)w.b;
            size = unit::b;
        }
    }
    /* Unit u of the panel.  What lies behind the panel's last block is some other of its bytes, and counts for nothing. */
    __device__ void copy(uint32_t to, const uint8_t *panel, int u) const
    {
        const int last = blocks * (unit::codes / 8) - 16, from = u * unit::codes + lane * 16;
        to += lane * 16;
#pragma unroll
        for (int i = 0; i < unit::codes; i += 512)
            cuda_copy_16(to + i, panel + (kind_whole(S) ? from + i : min(from + i, last)), once);
        if (lane * 16 < unit::bytes - unit::codes)
            cuda_copy_16(to + unit::codes,
                         panel + region + (kind_whole(S) ? u * size + at : min(u * size + at, blocks * size / 8 - 16)),
                         once);
    }
};

/* Up to eight parts of an output in order, `apart` floats from one to the next. */
__device__ static inline float sum_parts(const float *v, int parts, int apart)
{
    float sum = v[0];
#pragma unroll
    for (int i = 1; i < 8; i++)
        if (i < parts)
            sum = __fadd_rn(sum, v[i * apart]);
    return sum;
}

/* An output's four chains. */
__device__ static inline float sum_chains(float c0, float c1, float c2, float c3)
{
    return __fadd_rn(__fadd_rn(c0, c1), __fadd_rn(c2, c3));
}

__device__ static inline void put_output(const tern_cuda_narrow &a, const tern_cuda_product &m, float sum, int row,
                                         int col)
{
    if (m.bias)
        sum = __fadd_rn(sum, cuda_at<const float>(m.bias)[col]);
    cuda_at<float>(m.y)[(uint64_t)row * m.y_stride + blockIdx.z * a.y_head + col] = sum;
}

#endif

/* dev/cuda/products/unit.cuh - what products of decode rows have in common: units of weights and how they come, whose output a
 * panel is, sums of parts. */
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
    /* of the G kinds room for the widest numbers of the smallest groups that there are */
    static constexpr int d = S == TERN_SCALES_F16 || S == TERN_SCALES_F16M         ? 256
                             : k32 || k16                                          ? 32
                             : S == TERN_SCALES_G32M || C == TERN_CODES_E4M3       ? 512
                                                                                   : 256;
    static constexpr int m = S == TERN_SCALES_F16M                                 ? 256
                             : S == TERN_SCALES_K32 || S == TERN_SCALES_K16M       ? 32
                             : S == TERN_SCALES_G32M                               ? 512
                             : S == TERN_SCALES_G16                                ? 64
                                                                                   : 0;
    static constexpr int a = k32 ? 128 : k16 ? 256 : 0, b = S == TERN_SCALES_K32 ? 128 : 0;
    static constexpr int bytes = codes + d + m + a + b;

    __device__ static scales_at scales(const uint8_t *of_unit)
    {
        const uint8_t *s = of_unit + codes;
        return {s, s + d, s + d + m, s + d + m + a};
    }
};

__device__ static inline int number_bytes(int type)
{
    return type == TERN_NUMBER_F32 ? 4 : type == TERN_NUMBER_F16 || type == TERN_NUMBER_BF16 ? 2 : 1;
}

/* A region of the G kinds: a group's 16 numbers of n bytes are n pieces of 16 bytes. */
struct group_region {
    int region, each, step, last; /* pieces of a unit; from one unit to the next; the region's last */

    __device__ group_region(const tern_cuda_matrix &w, uint32_t at, int type)
        : region((int)at), each((16 >> w.shift) * number_bytes(type)), step(each),
          last((((w.k >> 4) + (1 << w.shift) - 1) >> w.shift) * number_bytes(type) - 1)
    {
    }
    __device__ void copy(uint32_t to, const uint8_t *panel, int u, int lane, uint64_t once) const
    {
        if (lane < each)
            cuda_copy_16(to, panel + region + min(u * step + lane, last) * 16, once);
    }
};

/* How the lanes of a warp copy units of one kind of panels: 16 bytes of codes each, over and over, and a piece of scales. */
template <int C, int S> struct unit_copy {
    using unit = unit_of<C, S>;
    uint64_t once;
    int lane, blocks;
    int region, size, at; /* scales: the region that this lane copies of, its bytes of a unit, which of them */
    group_region d, m;    /* of the G kinds, whose numbers are of this type or that */

    __device__ unit_copy(const tern_cuda_matrix &w, int of_lane)
        : once(cuda_once()), lane(of_lane), blocks(w.k / 32), region((int)w.d), size(unit::d), at(of_lane * 16),
          d(w, w.d, w.d_type), m(w, w.m, w.m_type)
    {
        static_assert(unit::codes % 512 == 0 && (by_group<S>() || unit::bytes - unit::codes <= 512), "");
        if (S == TERN_SCALES_G16) { /* one factor a row, the same for all units */
            m.each = 4;
            m.step = 0;
            m.last = 3;
        }
        if (by_group<S>())
            return;
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
        if (by_group<S>() && u * 8 + 8 <= blocks) {
            const uint8_t *all = panel + from;
#pragma unroll
            for (int i = 0; i < unit::codes; i += 512)
                cuda_copy_16(to + i, all + i, once);
        } else {
#pragma unroll
            for (int i = 0; i < unit::codes; i += 512)
                cuda_copy_16(to + i, panel + (kind_whole(S) ? from + i : min(from + i, last)), once);
        }
        if (by_group<S>()) {
            d.copy(to + unit::codes, panel, u, lane, once);
            if (unit::m)
                m.copy(to + unit::codes + unit::d, panel, u, lane, once);
            return;
        }
        if (lane * 16 < unit::bytes - unit::codes)
            cuda_copy_16(to + unit::codes,
                         panel + region + (kind_whole(S) ? u * size + at : min(u * size + at, blocks * size / 8 - 16)),
                         once);
    }
};

/* Bytes from the first matrix to that of row `row`: of the block's head, or of an expert, whose number a kernel before has
 * written; then that kernel is waited for, and else nothing, for weights are there before the step is. */
__device__ static inline uint64_t matrix_of_row(const tern_cuda_narrow &a, int row)
{
    uint64_t bytes = (uint64_t)blockIdx.z * a.matrix_bytes;
    if (a.ids) {
        cuda_wait();
        bytes = (uint64_t)cuda_at<const int32_t>(a.ids)[row] * a.matrix_bytes;
    }
    return bytes;
}

/* ---- weights on their way -------------------------------------------------------------------------------------- */

/* What a warp asks for, from panel to panel: the units of its part of the sum, blockDim.x / 32 apart.  It has a ring of
 * units in shared memory, which it alone fills and reads.  Copies are under way before the kernel before this one has
 * ended, and from the end of one panel to the next. */
template <int C, int S> struct feed {
    using unit = unit_of<C, S>;
    static constexpr int depth = TERN_CUDA_RING_DEPTH(unit::bytes);
    const tern_cuda_narrow &a;
    unit_copy<C, S> copies; /* all products' panels are alike */
    const uint8_t *p, *ring;
    uint64_t matrix;
    uint32_t ring_at;
    int panel, u, stage, lane, warp, warps, blocks, units;

    __device__ feed(const tern_cuda_narrow &args, const uint8_t *shared, uint64_t of_matrix)
        : a(args), copies(args.m[0].w, threadIdx.x % 32), matrix(of_matrix), panel(blockIdx.y), stage(0),
          lane(threadIdx.x % 32), warp(threadIdx.x / 32), warps(blockDim.x / 32)
    {
        blocks = a.m[0].w.k / 32;
        units = (blocks + 7) / 8;
        u = warp;
        ring = shared + warp * (depth * unit::bytes);
        ring_at = (uint32_t)__cvta_generic_to_shared(ring);
        p = panel_at(a.m[product_of(a, panel)], matrix, panel);
    }
    /* The next unit is asked for: into the stage that take() answered, once all lanes have read it. */
    __device__ void ask()
    {
        if (panel < a.n_panels) {
            copies.copy(ring_at + stage * unit::bytes, p, u);
            u += warps;
            if (u >= units) {
                u = warp;
                panel += gridDim.y;
                if (panel < a.n_panels)
                    p = panel_at(a.m[product_of(a, panel)], matrix, panel);
            }
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        stage = stage + 1 < depth ? stage + 1 : 0;
    }
    /* The ring for the first time.  early: the kernel before still works, so each unit is asked for when the one before it
     * is there.  All at once they fill the queues of the card's cache, and what that kernel reads and writes waits. */
    __device__ void fill(bool early)
    {
#pragma unroll 1
        for (int i = 0; i < depth; i++) {
            ask();
            if (early)
                asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
    }
    /* The oldest unit that was asked for. */
    __device__ const uint8_t *take() const
    {
        asm volatile("cp.async.wait_group %0;" ::"n"(depth - 1) : "memory");
        __syncwarp();
        return ring + stage * unit::bytes;
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

__device__ static inline float4 add_four(float4 x, float4 y)
{
    return make_float4(__fadd_rn(x.x, y.x), __fadd_rn(x.y, y.y), __fadd_rn(x.z, y.z), __fadd_rn(x.w, y.w));
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

/* Sides of full pages whose codes are scalar: 16 lanes per vector. */
#include "dev/cuda/encode/encode.cuh"

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

template <int BITS>
__device__ static uint16_t encode_scalar(const tern_cuda_side &s, uint8_t *codes, const float *y, int n, int lane)
{
    const int own = s.entry[lane]; /* what a code stands for is asked of the lane that has it */
    const float ss = energy(y, n, lane), inv = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(ss, (float)n)));
    const bool none = is_empty(ss);
    float along = 0;
    int ee = 0;
    for (int i = lane; i < n; i += 16) {
        const float z = __fmul_rn(y[i], inv);
        int c = 0;
#pragma unroll
        for (int k = 0; k < (1 << BITS) - 1; k++)
            c += z > s.mid[k];
        codes[i] = none ? (uint8_t)(1 << (BITS - 1)) : (uint8_t)c;
        const int entry = __shfl_sync(~0u, own, c, 16);
        ee += entry * entry;
        along = __fmaf_rn(y[i], (float)entry, along);
    }
    const float ye = add_lanes(along);
    for (int width = 8; width; width /= 2)
        ee += __shfl_xor_sync(~0u, ee, width, 16);
    const float f = s.key ? __fsqrt_rn(__fdiv_rn(ss, (float)ee)) : __fdiv_rn(ye, (float)ee);
    return none ? 0 : head_near(__fdiv_rn(f, s.unit));
}

__device__ static void encode_scalars(const tern_cuda_side &s, const work &w, uint16_t *head, int t0)
{
    const int lane = threadIdx.x % 16, n_blocks = (s.dim + 127) / 128;
    for (int i = threadIdx.x / 16; i < HALF * n_blocks; i += THREADS / 16) {
        const int b = i / HALF, t = i % HALF, d0 = b * 128, n = block_dims(s.dim, d0);
        const float *y = w.x + t * (s.dim + 1) + d0;
        uint8_t *codes = w.codes + t * codes_pitch(s.dim) + d0;
        const uint16_t h = s.bits == 8   ? encode8(codes, y, n, lane)
                           : s.bits == 4 ? encode_scalar<4>(s, codes, y, n, lane)
                           : s.bits == 3 ? encode_scalar<3>(s, codes, y, n, lane)
                                         : encode_scalar<2>(s, codes, y, n, lane);
        if (lane == 0)
            head[b * 64 + t0 + t] = h;
    }
}

TERN_CUDA_KERNEL_BEGIN(encode_scalar, tern_cuda_append_args, 512, 3)
{
    extern __shared__ __align__(16) uint8_t shared[];
    cuda_wait();
    const half_page h = half_of_page(a);
    const tern_cuda_side &s = *h.side;
    if (!s.dim || !TERN_CUDA_SCALAR(s))
        return;
    uint8_t *end;
    const work w = work_in(shared, s.dim, &end);
    make_vectors(h, w);
    encode_scalars(s, w, h.head, h.t0);
    __syncthreads();
    pack(s, h.data, w.codes, h.t0);
}

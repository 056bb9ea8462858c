/* Closed pages of prompt rows as halves of the model's numbers, for heads that prompts/expand.cu does not take: a token at a time.
 *
 * Keys [TERN_CUDA_ANY_KEYS][64], of latents the latent and then what is rotated, then values [64][TERN_CUDA_ANY_VALUES]; what lies
 * behind the dims is 0.  First tokens, which are kept raw, stand in their page. */
#include "dev/cuda/prompts/expand.cuh"

#define THREADS 256

struct any_page {
    const tern_cuda_layer *l;
    const uint8_t *from, *sink; /* sink: of page 0, where first tokens are kept */
    const tern_cuda_cond *cond;
    int page;
};

/* Token t of a side, by one warp. */
__device__ static void read_token(float *x, const tern_cuda_side &s, const uint8_t *data, const uint8_t *head, int t, int lane)
{
    for (int d = lane; d < s.dim; d += 32)
        x[d] = page_value(s, data, reinterpret_cast<const uint16_t *>(head), t, d);
    __syncwarp();
    if (s.rotated)
        rotate_row(s, x, true, lane);
}

__device__ static void read_keys(float *k, const any_page &p, int t, int lane)
{
    const tern_cuda_layer &l = *p.l;
    read_token(k, l.k, p.from + l.k_off, p.from + l.k_head_off, t, lane);
    if (!p.cond)
        return;
    for (int d = lane; d < l.k.dim; d += 32)
        k[d] = __fmaf_rn(k[d], cuda_at<const float>(p.cond->unscale)[d], cuda_at<const float>(p.cond->mean)[d]);
    __syncwarp();
    for (int i = 0; lane == 0 && i < p.cond->n_pairs; i++) { /* one after the other, for they may share a dim */
        const float2 add = pair_of_key(l, *p.cond, i, p.page, t);
        k[p.cond->pairs[i].a] = __fadd_rn(k[p.cond->pairs[i].a], add.x);
        k[p.cond->pairs[i].b] = __fadd_rn(k[p.cond->pairs[i].b], add.y);
    }
    __syncwarp();
}

/* Token t to its place. */
__device__ static void put_token(__half *keys, const tern_cuda_layer &l, const float *k, const float *v, int t, int lane)
{
    const int before = l.latent ? l.v.dim : 0, n_keys = TERN_CUDA_ANY_KEYS(&l), n_values = TERN_CUDA_ANY_VALUES(&l);
    __half *values = keys + n_keys * 64 + t * n_values;
    for (int d = lane; d < n_keys; d += 32)
        keys[d * 64 + t] = as_half(d < before ? v[d] : d - before < l.k.dim ? k[d - before] : 0);
    for (int d = lane; d < n_values; d += 32)
        values[d] = as_half(d < l.v.dim ? v[d] : 0);
    __syncwarp();
}

TERN_CUDA_KERNEL_BEGIN(expand_any, tern_cuda_attn_args, THREADS, 2)
{
    extern __shared__ float shared[]; /* a key and a value of each warp */
    const tern_cuda_layer &l = a.l;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = a.kv0 + blockIdx.y;
    const expand_slot slot = find_slot(a, blockIdx.x);
    float *k = shared + warp * (l.k.dim + l.v.dim), *v = k + l.k.dim;
    any_page p = {&l, page_at(a.t, l, *slot.job, slot.page, head), nullptr, nullptr, slot.page};
    cuda_wait(); /* up to here tables alone, which no kernel writes */
    if (slot.page == 0 && l.first)
        p.sink = sink_at(a.t, l, *slot.job, head);
    if (l.k.cond)
        p.cond = cuda_at<const tern_cuda_cond>(l.k.cond) + head;
    __half *to = cuda_at<__half>(a.expanded + ((uint64_t)blockIdx.x * a.kv_n + blockIdx.y) * TERN_CUDA_ANY_BYTES(&l));
    for (int t = warp; t < 64; t += THREADS / 32) {
        if (p.sink && t < l.first) {
            for (int d = lane; d < l.k.dim; d += 32)
                k[d] = raw_value(l.k, p.sink, l.first, t, d);
            for (int d = lane; d < l.v.dim; d += 32)
                v[d] = raw_value(l.v, p.sink + l.sink_v_off, l.first, t, d);
            __syncwarp();
        } else {
            read_keys(k, p, t, lane);
            read_token(v, l.v, p.from + l.v_off, p.from + l.v_head_off, t, lane);
        }
        put_token(to, l, k, v, t, lane);
    }
}

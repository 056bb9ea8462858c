/* dev/cuda/prompts/expand.cuh - which pages a pass of prompt rows has expanded, and what their codes do not hold. */
#ifndef TERN_DEV_CUDA_PROMPTS_EXPAND_CUH
#define TERN_DEV_CUDA_PROMPTS_EXPAND_CUH

#include <cuda_fp16.h>
#include "dev/cuda/attn/cache.cuh"
#include "dev/cuda/attn/matrix.cuh"

struct expand_slot {
    const tern_cuda_job *job;
    int page;
};

/* Page `slot` of those that the jobs of the pass see, one job after the other. */
__device__ static inline expand_slot find_slot(const tern_cuda_attn_args &a, int slot)
{
    int n, first;
    const tern_cuda_job *j = cuda_at<const tern_cuda_job>(a.t.jobs) + a.job0;
    const int cache = j->cache;
    for (;; j++) {
        n = j->wide && j->cache == cache ? tern_cuda_closed_pages(&a.l, j->pos0, j->n_rows, &first) : 0;
        if (slot < n)
            return {j, first + slot};
        slot -= n;
    }
}

/* What pair i of the conditioning adds to a token's key on a page: to its dims a and b. */
__device__ static inline float2 pair_of_key(const tern_cuda_layer &l, const tern_cuda_cond &cond, int i, int page, int t)
{
    const auto &m = cond.pairs[i];
    const float *turns = cuda_at<const float>(cond.turns);
    const double *at = cuda_at<const double>(l.k.angles) + 2 * ((int64_t)m.freq * l.k.max_pages + page);
    const float co = (float)at[0], si = (float)at[1], x = turns[2 * i * 64 + t], y = turns[(2 * i + 1) * 64 + t];
    const float c = __fsub_rn(__fmul_rn(x, co), __fmul_rn(y, si)), s = __fadd_rn(__fmul_rn(x, si), __fmul_rn(y, co));
    return make_float2(__fsub_rn(__fmul_rn(m.re, c), __fmul_rn(m.im, s)), __fadd_rn(__fmul_rn(m.im, c), __fmul_rn(m.re, s)));
}

#endif

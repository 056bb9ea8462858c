/* dev/cuda/prompts/expand.cuh - which pages a pass of prompt rows has expanded. */
#ifndef TERN_DEV_CUDA_PROMPTS_EXPAND_CUH
#define TERN_DEV_CUDA_PROMPTS_EXPAND_CUH

#include <cuda_fp16.h>
#include "dev/cuda/attn/cache.cuh"

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

__device__ static inline __half clamped(float x)
{
    return __float2half_rn(fmaxf(fminf(x, 65504.0f), -65504.0f));
}

#endif

/* dev/cuda/attn/spans.cuh - what kernels on compressed rows share. */
#ifndef TERN_DEV_CUDA_ATTN_SPANS_CUH
#define TERN_DEV_CUDA_ATTN_SPANS_CUH

#include "dev/cuda/attn/cache.cuh"
#include "dev/cuda/attn/spans.h"

/* The job of a row of the batch, whose number all threads of the block learn. */
__device__ static inline int job_of(const tern_cuda_tables &t, uint64_t jobs, int row)
{
    __shared__ int found;
    const tern_cuda_job *j = cuda_at<const tern_cuda_job>(jobs);
    for (int i = threadIdx.x; i < t.n_jobs; i += blockDim.x)
        if (row >= j[i].row0 && row < j[i].row0 + j[i].n_rows)
            found = i;
    __syncthreads();
    return found;
}

#endif

/* dev/cuda/experts.h - arguments of the kernels of experts.cu.  Strides in floats.  Read by C and by CUDA. */
#ifndef TERN_DEV_CUDA_EXPERTS_H
#define TERN_DEV_CUDA_EXPERTS_H

#include <stdint.h>

/* What an expert's logit becomes. */
enum tern_cuda_score { TERN_CUDA_SCORE_SOFTMAX, TERN_CUDA_SCORE_SIGMOID, TERN_CUDA_SCORE_SQRT_SOFTPLUS };

/* struct tern_route; a block for each row.  table 0: none. */
struct tern_cuda_route_args {
    uint64_t logits, stride, bias, factors, table, rows, ids, weights;
    int32_t n_experts, n_active, n_groups, n_groups_used, group_best, score, normalise;
    float scale;
};

/* Pairs (row, expert) in order of experts, and of an expert in their own: pair i, which is element i of ids, goes to
 * place at[i], where row_of is i.  groups[e]: first place and number of an expert's pairs.  One block. */
#define TERN_CUDA_SORT 512 /* threads */
struct tern_cuda_sort {
    uint64_t ids, row_of, at, groups;
    int32_t n_pairs, n_experts;
};

/* to[place] = x[row] (* weight) of the pair row_of[place]; row_of 0: pairs in order. */
struct tern_cuda_gather {
    uint64_t to, to_stride, x, x_stride, row_of, weights;
    int32_t n, n_active;
};

/* y[row] = sum of (weight *) answers[at[i]] over the row's pairs i, in their order. */
struct tern_cuda_sum {
    uint64_t y, y_stride, answers, stride, at, weights;
    int32_t n, n_active;
};

#endif

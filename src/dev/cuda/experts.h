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

/* Pairs of one expert, up to eight: those of n places from `first` on.  n 0: there is no such tile. */
#define TERN_CUDA_TILE 8
struct tern_cuda_tile {
    int32_t expert, first, n, unused;
};

/* Pairs (row, expert) in order of experts, and of an expert in their own: pair i, which is element i of ids, goes to
 * place at[i], where row_of is i.  groups[e]: first place and number of an expert's pairs.  tiles 0: none; else n_tiles
 * of them, and slots[place], eight times the tile of a place and its place there.  One block. */
#define TERN_CUDA_SORT 512 /* threads */
struct tern_cuda_sort {
    uint64_t ids, row_of, at, groups, tiles, slots;
    int32_t n_pairs, n_experts, n_tiles, unused;
};

/* Of the pair at each place its row of x, which is pair / per_row, as int8 (quantize.cuh), eight rows side by side, in
 * row slots[place]. */
struct tern_cuda_quantize_pairs {
    uint64_t to, row_bytes, x, stride, row_of, slots;
    int32_t k, per_row;
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

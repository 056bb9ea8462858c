/* Attention of decode rows on codes, values of fewer bits than keys (codes_block.cuh). */
#include "dev/cuda/attn/codes/codes_block.cuh"

#define MIXED(d)                                    \
    KERNEL(d, k8v4, code_pair(CODES_8, CODES_4), 2) \
    KERNEL(d, k8v3, code_pair(CODES_8, CODES_3), 2) \
    KERNEL(d, k8v2, code_pair(CODES_8, CODES_2), 2) \
    KERNEL(d, k4v3, code_pair(CODES_4, CODES_3), 4) \
    KERNEL(d, k4v2, code_pair(CODES_4, CODES_2), 4)
MIXED(64)
MIXED(128)

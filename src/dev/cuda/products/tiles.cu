/* Products of decode rows with their experts, up to eight pairs of one expert together: its weights are read once for them.  The
 * numbers are those of each pair by itself (products.cu). */
#include "dev/cuda/products/rows.cuh"

#define TILES(c, s)                                                               \
    TERN_CUDA_KERNEL_BEGIN(tiles_##c##_##s, tern_cuda_narrow, 32 * WARPS, 2)      \
    {                                                                             \
        narrow_rows<TERN_CODES_##c, TERN_SCALES_##s, 1, true>(a);                 \
    }
TERN_NARROW_KINDS(TILES)
#undef TILES

/* The wide class for up to 4 rows of floats, without scratch: see kernel/gemm_few_impl.h. */
#include "kernel/avx2/gemm_block.h"
#include "kernel/avx2/gemm.h"

ALWAYS __m256 bf16x8(const uint16_t *p)
{
    __m128i h = _mm_load_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* Of each 32-bit lane byte i as sign and upper bits of a float's fraction and exponent.  An arithmetic shift leaves
 * copies of the sign where the mask has nothing. */
ALWAYS void e4m3_quad(__m256 out[4], const uint8_t *p)
{
    const __m256i keep = _mm256_set1_epi32((int)0x87F00000u), c = load_i256(p);
    __m256i odd = _mm256_srai_epi16(c, 4), even = _mm256_srai_epi16(_mm256_slli_epi32(c, 8), 4);
    out[0] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(even, 16), keep));
    out[1] = _mm256_castsi256_ps(_mm256_and_si256(_mm256_slli_epi32(odd, 16), keep));
    out[2] = _mm256_castsi256_ps(_mm256_and_si256(even, keep));
    out[3] = _mm256_castsi256_ps(_mm256_and_si256(odd, keep));
}

ALWAYS bool huge8(__m256 scale)
{
    __m256 size = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), scale);
    return _mm256_movemask_ps(_mm256_cmp_ps(size, _mm256_set1_ps(0x1p7f), _CMP_GE_OQ)) != 0;
}

#define FEW_LANES     8
#define FEW_MAX_ROWS  TERN_FEW_ROWS
#define FEW_SHAPES(X) X(1, 1) X(1, 2) X(2, 1) X(3, 1) X(4, 1)
#define few_load      _mm256_load_ps
#define few_store     _mm256_store_ps
#define few_each      _mm256_set1_ps
#define few_fma       _mm256_fmadd_ps
#define few_bf16      bf16x8
#define few_quad      e4m3_quad
#define few_huge      huge8
#include "kernel/gemm_few_impl.h"

void tern_gemm_few_avx2(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows,
                        const struct tern_packed *w, int panel0, int panel1)
{
    few_product(y, y_stride, x, x_stride, n_rows, w, panel0, panel1);
}

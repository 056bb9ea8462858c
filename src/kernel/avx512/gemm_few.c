/* The wide class for up to 8 rows of floats, without scratch: see kernel/gemm_few_impl.h. */
#include "kernel/avx512/gemm_block.h"
#include "kernel/avx512/gemm.h"

ALWAYS __m512 bf16x16(const uint16_t *p)
{
    __m256i h = _mm256_load_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Of each 32-bit lane byte i as sign and upper bits of a float's fraction and exponent.  An arithmetic shift leaves
 * copies of the sign where the mask has nothing. */
ALWAYS void e4m3_quad(__m512 out[4], const uint8_t *p)
{
    const __m512i keep = _mm512_set1_epi32((int)0x87F00000u), c = load_i512(p);
    __m512i odd = _mm512_srai_epi16(c, 4), even = _mm512_srai_epi16(_mm512_slli_epi32(c, 8), 4);
    out[0] = _mm512_castsi512_ps(_mm512_and_si512(_mm512_slli_epi32(even, 16), keep));
    out[1] = _mm512_castsi512_ps(_mm512_and_si512(_mm512_slli_epi32(odd, 16), keep));
    out[2] = _mm512_castsi512_ps(_mm512_and_si512(even, keep));
    out[3] = _mm512_castsi512_ps(_mm512_and_si512(odd, keep));
}

ALWAYS bool huge16(__m512 scale)
{
    return _mm512_cmp_ps_mask(_mm512_abs_ps(scale), _mm512_set1_ps(0x1p7f), _CMP_GE_OQ) != 0;
}

#define FEW_LANES     16
#define FEW_MAX_ROWS  TERN_FEW_ROWS
#define ONE_PANEL(X)  X(1, 1) X(2, 1) X(3, 1) X(4, 1) X(5, 1) X(6, 1) X(7, 1) X(8, 1)
#define TWO_PANELS(X) X(1, 2) X(2, 2) X(3, 2) X(4, 2) X(5, 2) X(6, 2) X(7, 2) X(8, 2)
#define FEW_SHAPES(X) ONE_PANEL(X) TWO_PANELS(X) X(1, 4) X(2, 4) X(3, 4)
#define few_load      _mm512_load_ps
#define few_store     _mm512_store_ps
#define few_each      _mm512_set1_ps
#define few_fma       _mm512_fmadd_ps
#define few_bf16      bf16x16
#define few_quad      e4m3_quad
#define few_huge      huge16
#include "kernel/gemm_few_impl.h"

void tern_gemm_few_avx512(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows,
                          const struct tern_packed *w, int panel0, int panel1)
{
    few_product(y, y_stride, x, x_stride, n_rows, w, panel0, panel1);
}

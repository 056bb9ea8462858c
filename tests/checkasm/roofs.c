/* The limits that benches are held against: arithmetic on registers only, and a read that does nothing else.  Each
 * variant is compiled for its own level with a target attribute and called only when the level is in use. */
#include "checkasm.h"

#include "base/cpu.h"
#include "base/mem.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define FMA_STEPS 20000
#define CHAINS    12

static volatile float sink;

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static double fma_avx2(void)
{
    __m256 acc[CHAINS], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);
    for (int c = 0; c < CHAINS; c++)
        acc[c] = _mm256_set1_ps((float)c);
    for (int i = 0; i < FMA_STEPS; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            acc[c] = _mm256_fmadd_ps(acc[c], a, b);
    }
    for (int c = 1; c < CHAINS; c++)
        acc[0] = _mm256_add_ps(acc[0], acc[c]);
    sink = _mm256_cvtss_f32(acc[0]);
    return 2.0 * 8 * CHAINS * FMA_STEPS;
}

__attribute__((target("avx512f"))) static double fma_avx512(void)
{
    __m512 acc[CHAINS], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);
    for (int c = 0; c < CHAINS; c++)
        acc[c] = _mm512_set1_ps((float)c);
    for (int i = 0; i < FMA_STEPS; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            acc[c] = _mm512_fmadd_ps(acc[c], a, b);
    }
    for (int c = 1; c < CHAINS; c++)
        acc[0] = _mm512_add_ps(acc[0], acc[c]);
    sink = _mm512_cvtss_f32(acc[0]);
    return 2.0 * 16 * CHAINS * FMA_STEPS;
}

#endif

typedef float v4 __attribute__((vector_size(16)));

static double multiply_add(void)
{
    v4 acc[CHAINS], a = {0.999f, 0.999f, 0.999f, 0.999f}, b = {1e-3f, 1e-3f, 1e-3f, 1e-3f};
    for (int c = 0; c < CHAINS; c++)
        acc[c] = a * (float)c;
    for (int i = 0; i < FMA_STEPS; i++) {
#pragma GCC unroll 12
        for (int c = 0; c < CHAINS; c++)
            acc[c] = acc[c] * a + b;
    }
    for (int c = 1; c < CHAINS; c++)
        acc[0] += acc[c];
    sink = acc[0][0];
    return 2.0 * 4 * CHAINS * FMA_STEPS;
}

double check_roof_fma(void *unused)
{
    (void)unused;
#if defined(__x86_64__)
    if (tern_k.mask & TERN_CPU_AVX512)
        return fma_avx512();
    if (tern_k.mask & TERN_CPU_AVX2)
        return fma_avx2();
#endif
    return multiply_add();
}

double check_roof_read(void *check_read)
{
    const struct check_read *r = check_read;
    sink = (float)tern_mem_read(r->p, r->bytes);
    return (double)(r->bytes / 256 * 256);
}

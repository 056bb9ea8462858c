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

/* Four independent sums of tiles that were never loaded: zeros cost what numbers cost. */
__attribute__((target("amx-tile,amx-bf16"))) static double tiles_amx(void)
{
    struct {
        uint8_t palette, reserved[15];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } c = {.palette = 1};
    for (int i = 0; i < 6; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
    for (int i = 0; i < FMA_STEPS; i++)
        __asm__ volatile("tdpbf16ps %%tmm4, %%tmm5, %%tmm0\n\ttdpbf16ps %%tmm4, %%tmm5, %%tmm1\n\t"
                         "tdpbf16ps %%tmm4, %%tmm5, %%tmm2\n\ttdpbf16ps %%tmm4, %%tmm5, %%tmm3" ::);
    __asm__ volatile("tilerelease" ::);
    return 2.0 * 16 * 16 * 32 * 4 * FMA_STEPS;
}
#endif

double check_roof_prompt(void *unused)
{
#if defined(__x86_64__)
    if (tern_k.mask & TERN_CPU_AMX)
        return tiles_amx();
#endif
    return check_roof_fma(unused);
}

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
    sink = (float)tern_mem_read(r->p, r->bytes, 2);
    return (double)(r->bytes / 256 * 256);
}

/* kernel/amx/tile.h - everything in amx/gemm.c that needs the machine: tile instructions, rounding to bf16 and the
 * weights, which it has from kernel/avx512bf16.  The tests put tests/support/tiles_emulated.h in its place, which does
 * the same in plain C.
 *
 * Eight tiles of 16 rows x 64 bytes.  As operands of a product: 16 rows x 32 inputs of activations, 16 pairs of inputs
 * x 16 outputs x 2 of weights, 16 rows x 16 outputs of f32 sums.  Tile numbers are literals.  Inline assembly, because
 * gcc 12 believes that _tile_loadconfig reads 8 of the 64 bytes and drops the stores of the others. */
#ifndef TERN_AMX_TILE_H
#define TERN_AMX_TILE_H

#include <immintrin.h>
#include "kernel/avx512/simd.h"
#include "kernel/avx512bf16/bf16.h"
#include "kernel/avx512bf16/round.h"

/* The memory operand of ldtilecfg. */
struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "as the instruction reads it");

/* The tiles belong to the thread; a configured thread costs the system a larger register set at every switch, so every
 * call that uses them ends with tile_end. */
static inline void tile_begin(void)
{
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.row_bytes[i] = 64;
        c.rows[i] = TERN_TILE_ROWS;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(c));
}

static inline void tile_end(void)
{
    __asm__ volatile("tilerelease" ::);
}

/* Rows of a tile lie `stride` bytes apart in memory. */
#define TILE_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((size_t)(stride)) : "memory")
/* The same for what is read once: caches keep it no longer than they must. */
#define TILE_STREAM(t, p, stride) \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t : : "r"(p), "r"((size_t)(stride)) : "memory")
#define TILE_STORE(t, p, stride) \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(p), "r"((size_t)(stride)) : "memory")
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : :)
/* sum += x * w */
#define TILE_PRODUCT(sum, x, w) __asm__ volatile("tdpbf16ps %%tmm" #w ", %%tmm" #x ", %%tmm" #sum : :)

/* What makes tiles of the weights of w. */
static inline tern_bf16_expand *tile_expander(const struct tern_packed *w)
{
    return tern_bf16_expander(w);
}

#define tile_softmax tern_bf16_softmax

/* 16 outputs of act(gate) * up, as vec.c of kernel/avx512 computes them, rounded to bf16. */
static inline void tile_gate(uint16_t *out, const float *gate, const float *up, bool gelu)
{
    const __m512 g = _mm512_load_ps(gate), u = _mm512_load_ps(up);
    const __m512 v = gelu ? gelu_product(g, u) : silu_product(g, u);
    _mm256_store_si256((__m256i *)(void *)out, (__m256i)_mm512_cvtneps_pbh(v));
}

#endif

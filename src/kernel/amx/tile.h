/* kernel/amx/tile.h - everything in amx/gemm.c that needs the machine: tile instructions, rounding to bf16, and the
 * weights.  The tests put tests/support/tiles_emulated.h in its place, which does the same in plain C.
 *
 * Eight tiles of 16 rows x 64 bytes.  As operands of a product: 16 rows x 32 inputs of activations, 16 pairs of inputs
 * x 16 outputs x 2 of weights, 16 rows x 16 outputs of f32 sums.  Tile numbers are literals.  Inline assembly, because
 * gcc 12 believes that _tile_loadconfig reads 8 of the 64 bytes and drops the stores of the others. */
#ifndef TERN_AMX_TILE_H
#define TERN_AMX_TILE_H

#include <immintrin.h>
#include "kernel/amx/amx.h"

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

/* One row of a tile of activations: x[0..n), n in 1..32, rounded to bf16; zeros behind. */
static inline void tile_round(uint16_t *out, const float *x, int n)
{
    const __mmask16 low = (__mmask16)(n >= 16 ? 0xFFFFu : (1u << n) - 1u);
    const __mmask16 high = (__mmask16)(n >= 16 ? (1u << (n - 16)) - 1u : 0u);
    __m512 a = _mm512_maskz_loadu_ps(low, x), b = _mm512_maskz_loadu_ps(high, x + 16);
    _mm512_store_si512(out, (__m512i)_mm512_cvtne2ps_pbh(b, a));
}

/* One row of a tile of weights: two inputs of 16 outputs. */
static inline void tile_store_pair(uint16_t *out, __m512 even, __m512 odd)
{
    const __m512i interleave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                                6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
    _mm512_store_si512(out, _mm512_permutexvar_epi16(interleave, both));
}

/* The same from n (1..16) floats each; NULL: zeros. */
static inline void tile_pair(uint16_t *out, const float *even, const float *odd, int n)
{
    const __mmask16 lanes = (__mmask16)(0xFFFFu >> (16 - n));
    __m512 a = even ? _mm512_maskz_loadu_ps(lanes, even) : _mm512_setzero_ps();
    __m512 b = odd ? _mm512_maskz_loadu_ps(lanes, odd) : _mm512_setzero_ps();
    tile_store_pair(out, a, b);
}

/* What makes tiles of the weights of w. */
static inline tern_amx_expand *tile_expander(const struct tern_packed *w)
{
    return tern_amx_expander(w);
}

#define tile_softmax tern_amx_softmax

#endif

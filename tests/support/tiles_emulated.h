/* tests/support/tiles_emulated.h - the bf16 kernels of src/kernel/amx/gemm.c on tiles in plain C, on any machine.
 *
 * Stands in for kernel/amx/tile.h, so that everything but the instructions themselves - stages, bands, edges, the order
 * of sums - is the code that machines with tiles run.  Tile products follow Intel's manual (Volume 2, TDPBF16PS):
 * separate sums of even and odd inputs, f32 fused, nearest even, subnormal numbers read and written as zeros.  Uses
 * outside tile_begin and tile_end end the process.  Include once per program; tern_bf16_init_emulated fills the table.
 */
#ifndef TILES_EMULATED_H
#define TILES_EMULATED_H

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/fp16.h"
#include "kernel/kernel.h"
#include "kernel/panel.h"

#define TERN_AMX_TILE_H /* not the real one */
#include "kernel/avx512bf16/bf16.h"
#define TILE_ROUNDING

void tern_bf16_init_emulated(struct tern_bf16_kernels *k);
void tern_prompt_init_emulated(struct tern_prompt_kernels *k);

static _Thread_local uint8_t emulated_tiles[8][TERN_TILE_ROWS][64];
static _Thread_local bool emulated_ready;

static inline void emulated_check(void)
{
    if (!emulated_ready)
        abort();
}

static inline void tile_begin(void)
{
    if (emulated_ready)
        abort();
    emulated_ready = true;
    memset(emulated_tiles, 0, sizeof emulated_tiles);
}

static inline void tile_end(void)
{
    emulated_check();
    emulated_ready = false;
}

static inline void emulated_load(int t, const void *p, size_t stride)
{
    emulated_check();
    for (int r = 0; r < TERN_TILE_ROWS; r++)
        memcpy(emulated_tiles[t][r], (const char *)p + (size_t)r * stride, 64);
}

static inline void emulated_store(int t, void *p, size_t stride)
{
    emulated_check();
    for (int r = 0; r < TERN_TILE_ROWS; r++)
        memcpy((char *)p + (size_t)r * stride, emulated_tiles[t][r], 64);
}

static inline float emulated_flush(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

/* A tile of bf16 as [16][32] floats. */
static inline void emulated_inputs(float out[TERN_TILE], int t)
{
    uint16_t u[TERN_TILE];
    memcpy(u, emulated_tiles[t], sizeof u);
    for (int i = 0; i < TERN_TILE; i++)
        out[i] = emulated_flush(tern_bf16_to_f32(u[i]));
}

static inline void emulated_product(int sum, int x, int w)
{
    emulated_check();
    float a[TERN_TILE], b[TERN_TILE];
    emulated_inputs(a, x);
    emulated_inputs(b, w);
    for (int r = 0; r < TERN_TILE_ROWS; r++)
        for (int n = 0; n < TERN_PANEL; n++) {
            float half[2] = {0, 0}, acc;
            for (int i = 0; i < TERN_TILE_DEPTH; i++) {
                float w_i = b[i / 2 * 32 + 2 * n + i % 2];
                half[i % 2] = emulated_flush(fmaf(a[r * TERN_TILE_DEPTH + i], w_i, half[i % 2]));
            }
            memcpy(&acc, emulated_tiles[sum][r] + 4 * n, 4);
            acc = emulated_flush(emulated_flush(acc) + emulated_flush(half[0] + half[1]));
            memcpy(emulated_tiles[sum][r] + 4 * n, &acc, 4);
        }
}

#define TILE_LOAD(t, p, stride)   emulated_load(t, p, stride)
#define TILE_STREAM(t, p, stride) emulated_load(t, p, stride)
#define TILE_STORE(t, p, stride)  emulated_store(t, p, stride)
#define TILE_ZERO(t)              (emulated_check(), (void)memset(emulated_tiles[t], 0, sizeof emulated_tiles[t]))
#define TILE_PRODUCT(sum, x, w)   emulated_product(sum, x, w)

static inline void tile_round(uint16_t *out, const float *x, int n)
{
    for (int i = 0; i < TERN_TILE_DEPTH; i++)
        out[i] = i < n ? tern_f32_to_bf16(emulated_flush(x[i])) : 0;
}

static inline void tile_pair(uint16_t *out, const float *even, const float *odd, int n)
{
    for (int j = 0; j < TERN_PANEL; j++) {
        out[2 * j] = even && j < n ? tern_f32_to_bf16(emulated_flush(even[j])) : 0;
        out[2 * j + 1] = odd && j < n ? tern_f32_to_bf16(emulated_flush(odd[j])) : 0;
    }
}

/* Exact weights come from the plain C kernel. */
static void emulated_expand(uint16_t *tile, const struct tern_packed *w, const struct tern_panel_layout *l, int panel,
                            int step)
{
    struct tern_gemm_kernels ref;
    float *row = malloc((size_t)w->k * sizeof *row);
    (void)l;
    tern_gemm_init_ref(&ref);
    for (int j = 0; j < TERN_PANEL; j++) {
        ref.row(row, w, panel * TERN_PANEL + j);
        for (int i = 0; i < TERN_TILE_DEPTH; i++) {
            int k = step * TERN_TILE_DEPTH + i;
            tile[i / 2 * 32 + 2 * j + i % 2] = k < w->k ? tern_f32_to_bf16(emulated_flush(row[k])) : 0;
        }
    }
    free(row);
}

static inline tern_bf16_expand *tile_expander(const struct tern_packed *w)
{
    (void)w;
    return emulated_expand;
}

static float softmax_row(uint16_t *p, const float *s, size_t stride, int n_pages, int t0, int t1, float *m, float *l)
{
    const float before = *m;
    float sum = 0;
    for (int t = t0; t < t1; t++)
        *m = fmaxf(*m, s[(size_t)(t / TERN_PAGE) * stride + (size_t)(t % TERN_PAGE)]);
    const bool empty = t0 == t1 || *m == -INFINITY;
    for (int t = 0; t < n_pages * TERN_PAGE; t++) {
        uint16_t *at = p + tern_bf16_band(t - t % TERN_TILE_DEPTH) + t % TERN_TILE_DEPTH;
        float x = s[(size_t)(t / TERN_PAGE) * stride + (size_t)(t % TERN_PAGE)];
        *at = empty || t < t0 || t >= t1 ? 0 : tern_f32_to_bf16(emulated_flush(exp2f(x - *m)));
        sum += tern_bf16_to_f32(*at);
    }
    if (empty)
        return 1;
    const float shrink = exp2f(before - *m);
    *l = *l * shrink + sum;
    return shrink;
}

static void tile_softmax(uint16_t *p, const float *s, size_t stride, int n_pages, int n_rows, const int *t0,
                         const int *t1, float *m, float *l, float *shrink)
{
    for (int r = 0; r < n_rows; r++)
        shrink[r] =
            softmax_row(p + r * TERN_TILE_DEPTH, s + r * TERN_PAGE, stride, n_pages, t0[r], t1[r], &m[r], &l[r]);
}

/* Whatever level is in use, for the kernel has to do as that does. */
static void tile_gate(uint16_t *out, const float *gate, const float *up, bool gelu)
{
    float row[TERN_PANEL] __attribute__((aligned(64)));
    (gelu ? tern_k.vec.gelu_mul : tern_k.vec.silu_mul)(row, gate, up, TERN_PANEL);
    for (int i = 0; i < TERN_PANEL; i++)
        out[i] = tern_f32_to_bf16(emulated_flush(row[i]));
}

#define tern_bf16_init_amx   tern_bf16_init_emulated
#define tern_prompt_init_amx tern_prompt_init_emulated
#include "../../src/kernel/amx/gemm.c"
#undef tern_bf16_init_amx
#undef tern_prompt_init_amx

#endif

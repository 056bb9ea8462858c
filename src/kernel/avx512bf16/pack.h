/* kernel/avx512bf16/pack.h - pack and pack_right of struct tern_bf16_kernels, over tile_round and tile_pair of round.h
 * or of whoever stands in for it. */
#ifndef TERN_AVX512BF16_PACK_H
#define TERN_AVX512BF16_PACK_H

#include <string.h>
#include "kernel/prompt.h"

#ifdef TILE_ROUNDING

static void pack(uint16_t *out, const float *x, size_t x_stride, int n_rows, int k)
{
    for (int i = 0; i < k; i += TERN_TILE_DEPTH, out += 2 * TERN_TILE) {
        int n = k - i < TERN_TILE_DEPTH ? k - i : TERN_TILE_DEPTH;
        int tiles = n_rows > TERN_TILE_ROWS ? 2 : 1;
        for (int r = 0; r < tiles * TERN_TILE_ROWS; r++) {
            uint16_t *row = out + r * TERN_TILE_DEPTH;
            if (r < n_rows)
                tile_round(row, x + (size_t)r * x_stride + i, n);
            else
                memset(row, 0, TERN_TILE_DEPTH * sizeof *row);
        }
    }
}

static void pack_right(uint16_t *out, size_t pairs, const float *m, int k, int n)
{
    for (int pair = 0; pair < n; pair += 2 * TERN_PANEL, out += pairs)
        for (int k0 = 0; k0 < k; k0 += TERN_TILE_DEPTH)
            for (int c = pair; c < n && c < pair + 2 * TERN_PANEL; c += TERN_PANEL) {
                uint16_t *tile = out + tern_bf16_band(k0) + (c - pair) / TERN_PANEL * TERN_TILE;
                for (int i = k0; i < k0 + TERN_TILE_DEPTH; i += 2, tile += 2 * TERN_PANEL) {
                    const float *even = i < k ? m + (size_t)i * (size_t)n + c : NULL;
                    tile_pair(tile, even, i + 1 < k ? even + n : NULL, n - c < TERN_PANEL ? n - c : TERN_PANEL);
                }
            }
}

#endif
#endif

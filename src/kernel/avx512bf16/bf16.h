/* kernel/avx512bf16/bf16.h - what the bf16 class needs with and without tiles: weights and the softmax.  For this
 * folder and kernel/amx. */
#ifndef TERN_AVX512BF16_BF16_H
#define TERN_AVX512BF16_BF16_H

#include "kernel/prompt.h"
#include "kernel/panel.h"

/* Inputs [32*step, 32*step + 32) of a panel as a tile [16 pairs of inputs][16 rows of w][2], rounded to bf16; inputs
 * that w does not have are zeros.  l: of w. */
typedef void tern_bf16_expand(uint16_t *tile, const struct tern_packed *w, const struct tern_panel_layout *l, int panel,
                              int step);

tern_bf16_expand *tern_bf16_expander(const struct tern_packed *w);

/* softmax of struct tern_bf16_kernels. */
void tern_bf16_softmax(uint16_t *p, const float *s, size_t stride, int n_pages, int n_rows, const int *t0,
                       const int *t1, float *m, float *l, float *shrink);

#endif

/* kernel/amx/amx.h - what the sources of this folder share: weights as tiles, the softmax. */
#ifndef TERN_AMX_AMX_H
#define TERN_AMX_AMX_H

#include "kernel/gemm.h"
#include "kernel/panel.h"

/* Inputs [32*step, 32*step + 32) of a panel as a tile [16 pairs of inputs][16 rows of w][2], rounded to bf16; inputs
 * that w does not have are zeros.  l: of w. */
typedef void tern_amx_expand(uint16_t *tile, const struct tern_packed *w, const struct tern_panel_layout *l, int panel,
                             int step);

tern_amx_expand *tern_amx_expander(const struct tern_packed *w);

/* softmax of struct tern_bf16_kernels. */
float tern_amx_softmax(uint16_t *p, const float *s, size_t stride, int n_pages, int t0, int t1, float *m, float *l);

#endif

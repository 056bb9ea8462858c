/* kernel/neon/gemm.h - private to this folder: the entries that live in files of their own. */
#ifndef TERN_NEON_GEMM_H
#define TERN_NEON_GEMM_H

#include "kernel/gemm.h"
#include "kernel/panel.h"

void tern_gemm_wide_neon(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows,
                         const struct tern_packed *w, int panel0, int panel1, float *scratch);
void tern_gemm_narrow_neon(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                           const struct tern_packed *w, int panel0, int panel1);
void tern_gemm_narrow16_neon(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                             const struct tern_packed *w, int panel0, int panel1);

/* Inputs [k0, k0 + n) of a panel as f32, out[n][16]; k0 and n multiples of 32 unless the codes are float. */
void tern_gemm_expand_neon(float *out, const struct tern_packed *w, const struct tern_panel_layout *l, int panel,
                           int k0, int n);

#endif

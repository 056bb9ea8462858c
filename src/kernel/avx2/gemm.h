/* kernel/avx2/gemm.h - private to this folder and avxvnni/: the entries that live in files of their own. */
#ifndef TERN_AVX2_GEMM_H
#define TERN_AVX2_GEMM_H

#include "kernel/gemm.h"
#include "kernel/panel.h"

void tern_gemm_quantize_avx2(int8_t *q, float *scale, int32_t *sum16, const float *x, int k);
void tern_gemm_wide_avx2(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows,
                         const struct tern_packed *w, int panel0, int panel1, float *scratch);
void tern_gemm_narrow_avx2(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                           const struct tern_packed *w, int panel0, int panel1);
void tern_gemm_narrow16_avx2(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                             const struct tern_packed *w, int panel0, int panel1);
void tern_gemm_narrow_avxvnni(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                              const struct tern_packed *w, int panel0, int panel1);
void tern_gemm_narrow16_avxvnni(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows,
                                const struct tern_packed *w, int panel0, int panel1);

/* `wide` for 1 to TERN_FEW_ROWS rows and weights without an integer form, which are decoded in registers. */
#define TERN_FEW_ROWS 4
void tern_gemm_few_avx2(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows,
                        const struct tern_packed *w, int panel0, int panel1);

/* Inputs [k0, k0 + n) of a panel as f32, out[n][16]; k0 and n multiples of 32 unless the codes are float. */
void tern_gemm_expand_avx2(float *out, const struct tern_packed *w, const struct tern_panel_layout *l, int panel,
                           int k0, int n);

#endif

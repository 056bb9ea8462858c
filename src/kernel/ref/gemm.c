/* The contracts of kernel/gemm.h spelled out one element at a time: slow on purpose, so that it can be read. */
#include <math.h>
#include "kernel/gemm.h"
#include "kernel/panel.h"

static void quantize(int8_t *q, float *scale, int32_t *sum16, const float *x, int k)
{
    for (int b = 0; b < k / TERN_BLOCK; b++, x += TERN_BLOCK, q += TERN_BLOCK) {
        uint32_t top = 0; /* bits of max |x|; NaN orders above infinity, so it is not lost */
        for (int i = 0; i < TERN_BLOCK; i++) {
            uint32_t mag = tern_f32_bits(x[i]) & 0x7FFFFFFFu;
            top = mag > top ? mag : top;
        }
        float amax = tern_bits_f32(top), inv = 127.0f / amax;
        if (isinf(inv))
            inv = 0;
        scale[b] = amax / 127.0f;
        sum16[2 * b] = sum16[2 * b + 1] = 0;
        for (int i = 0; i < TERN_BLOCK; i++) {
            float v = x[i] * inv;
            q[i] = isnan(v) ? 0 : (int8_t)rintf(v);
            sum16[2 * b + i / 16] += q[i];
        }
    }
}

static void quantize16(int8_t *high, int8_t *low, float *scale, int32_t *sum16, const float *x, int k)
{
    for (int b = 0; b < k / TERN_BLOCK; b++) {
        uint32_t top = 0;
        for (int i = b * TERN_BLOCK; i < (b + 1) * TERN_BLOCK; i++) {
            uint32_t mag = tern_f32_bits(x[i]) & 0x7FFFFFFFu;
            top = mag > top ? mag : top;
        }
        float amax = tern_bits_f32(top), inv = 32512.0f / amax;
        if (isinf(inv))
            inv = 0;
        scale[b] = amax / 32512.0f;
        sum16[2 * b] = sum16[2 * b + 1] = 0;
        for (int i = b * TERN_BLOCK; i < (b + 1) * TERN_BLOCK; i++) {
            float f = x[i] * inv;
            int v = isnan(f) ? 0 : (int)rintf(f), h = (v + 32768 + 128) / 256 - 128, l = v - 256 * h;
            high[i] = (int8_t)h;
            low[i] = (int8_t)(l < -127 ? -127 : l);
            sum16[i / 16] += 256 * high[i] + low[i];
        }
    }
}

/* Weight of input i, row j of a panel. */
static float weight_at(const struct tern_packed *w, const struct tern_panel_view *v, int i, int j)
{
    if (tern_codes_float(w->codes))
        return tern_float_code(w->codes, v->codes, (size_t)i, j);
    float scale, minimum;
    float code = tern_panel_code(w->codes, v, (size_t)i, j);
    tern_group_scale(w->scales, v, i / 16, j, &scale, &minimum);
    if (tern_scales_zero(w->scales))
        code -= (float)w->zero;
    return tern_scales_minus(w->scales) || tern_scales_plus(w->scales) ? fmaf(scale, code, minimum) : scale * code;
}

static void row(float *out, const struct tern_packed *w, int row)
{
    struct tern_panel_layout l = tern_panel_layout(w);
    struct tern_panel_view v = tern_panel_view(w, &l, row / TERN_PANEL);
    for (int i = 0; i < w->k; i++)
        out[i] = weight_at(w, &v, i, row % TERN_PANEL);
}

static void wide(float *y, size_t y_stride, const float *x, size_t x_stride, int n_rows, const struct tern_packed *w,
                 int panel0, int panel1, float *scratch)
{
    (void)scratch;
    struct tern_panel_layout l = tern_panel_layout(w);
    for (int n = panel0 * TERN_PANEL; n < panel1 * TERN_PANEL && n < w->n; n++) {
        struct tern_panel_view v = tern_panel_view(w, &l, n / TERN_PANEL);
        for (int r = 0; r < n_rows; r++)
            y[(size_t)r * y_stride + (size_t)n] = 0;
        for (int i = 0; i < w->k; i++) {
            float weight = weight_at(w, &v, i, n % TERN_PANEL);
            for (int r = 0; r < n_rows; r++) {
                float *acc = &y[(size_t)r * y_stride + (size_t)n];
                *acc = fmaf(weight, x[(size_t)r * x_stride + (size_t)i], *acc);
            }
        }
    }
}

/* One output of the narrow class.  low: NULL, or the second column of a row of 16 bits. */
static float narrow_at(const struct tern_packed *w, const struct tern_panel_view *v, int j, const struct tern_q8_row *x,
                       const int8_t *low)
{
    size_t unit = tern_codes_unit(w->codes);
    int group = tern_scales_halves(w->scales) ? 16 : TERN_BLOCK, zero = tern_scales_zero(w->scales) ? w->zero : 0;
    float acc = 0;
    for (int i0 = 0; i0 < w->k; i0 += group) {
        const uint8_t *block = v->codes + (size_t)(i0 / TERN_BLOCK) * unit;
        int32_t dot = 0, isum = 0;
        for (int i = i0; i < i0 + group; i++)
            dot += tern_block_code(w->codes, v->table, block, i % TERN_BLOCK, j) *
                   (low ? 256 * x->q[i] + low[i] : x->q[i]);
        for (int h = i0 / 16; h < (i0 + group) / 16; h++)
            isum += x->sum16[h];
        float sw, mw, sx = x->scale[i0 / TERN_BLOCK];
        tern_group_scale(w->scales, v, i0 / 16, j, &sw, &mw);
        acc = fmaf((float)(dot - zero * isum), sw * sx, acc);
        if (tern_scales_minus(w->scales) || tern_scales_plus(w->scales))
            acc = fmaf(mw, sx * (float)isum, acc);
    }
    return acc;
}

static void narrow(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows, const struct tern_packed *w,
                   int panel0, int panel1)
{
    struct tern_panel_layout l = tern_panel_layout(w);
    for (int n = panel0 * TERN_PANEL; n < panel1 * TERN_PANEL && n < w->n; n++) {
        struct tern_panel_view v = tern_panel_view(w, &l, n / TERN_PANEL);
        for (int r = 0; r < n_rows; r++)
            y[(size_t)r * y_stride + (size_t)n] = narrow_at(w, &v, n % TERN_PANEL, &x[r], NULL);
    }
}

static void narrow16(float *y, size_t y_stride, const struct tern_q8_row *x, int n_rows, const struct tern_packed *w,
                     int panel0, int panel1)
{
    struct tern_panel_layout l = tern_panel_layout(w);
    for (int n = panel0 * TERN_PANEL; n < panel1 * TERN_PANEL && n < w->n; n++) {
        struct tern_panel_view v = tern_panel_view(w, &l, n / TERN_PANEL);
        for (int r = 0; r < n_rows; r++)
            y[(size_t)r * y_stride + (size_t)n] = narrow_at(w, &v, n % TERN_PANEL, &x[2 * r], x[2 * r + 1].q);
    }
}

void tern_gemm_init_ref(struct tern_gemm_kernels *k)
{
    k->quantize = quantize;
    k->wide = wide;
    k->quantize16 = quantize16;
    k->narrow = narrow;
    k->narrow16 = narrow16;
    k->row = row;
}

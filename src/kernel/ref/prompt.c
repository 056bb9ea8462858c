/* The int16 class of kernel/prompt.h spelled out one output at a time. */
#include <math.h>
#include <string.h>
#include "kernel/panel.h"
#include "kernel/prompt.h"

/* Where code i of row r of a band lies, and the sum of the half that it is in. */
static size_t code_at(int r, int i)
{
    static const int place[4] = {0, 2, 1, 3};
    size_t step = 2 * TERN_BAND + (size_t)(i / TERN_TILE_DEPTH) * TERN_I16_STEP;
    return step + (size_t)r * TERN_TILE_DEPTH + (size_t)(i % TERN_TILE_DEPTH / 4 * 4 + place[i % 4]);
}

static size_t sum_at(int r, int half)
{
    size_t step = 2 * TERN_BAND + (size_t)(half / 2) * TERN_I16_STEP;
    return step + TERN_BAND * TERN_TILE_DEPTH + 2 * (size_t)(half % 2 * TERN_BAND + r);
}

static void pack_row(uint16_t *out, const float *x, int r, int k)
{
    uint32_t top = 0; /* bits of max |x|; NaN orders above infinity, so it is not lost */
    for (int i = 0; i < k; i++) {
        uint32_t mag = tern_f32_bits(x[i]) & 0x7FFFFFFFu;
        top = mag > top ? mag : top;
    }
    const float amax = tern_bits_f32(top), scale = top < 0x7F800000u ? amax / 32767.0f : NAN;
    float inv = 32767.0f / amax;
    if (!isfinite(inv) || top >= 0x7F800000u)
        inv = 0;
    memcpy(out + 2 * r, &scale, sizeof scale);
    for (int half = 0; 16 * half < k || half % 2; half++) {
        float sum = 0;
        for (int i = 16 * half; i < 16 * half + 16; i++) {
            const float v = i < k && inv != 0 ? rintf(x[i] * inv) : 0;
            const int16_t q = (int16_t)v;
            memcpy(out + code_at(r, i), &q, sizeof q);
            sum += v; /* exact: below 2^20 */
        }
        memcpy(out + sum_at(r, half), &sum, sizeof sum);
    }
}

static void pack(uint16_t *out, const float *x, size_t x_stride, int n_rows, int k)
{
    for (int r = 0; r < n_rows; r++)
        pack_row(out, x + (size_t)r * x_stride, r, k);
}

static float output(const struct tern_packed *w, const struct tern_panel_view *v, int j, const uint16_t *band, int r)
{
    const size_t unit = tern_codes_unit(w->codes);
    const bool minimum = tern_scales_minus(w->scales) || tern_scales_plus(w->scales);
    const int group = tern_scales_halves(w->scales) ? 16 : TERN_BLOCK, zero = tern_scales_zero(w->scales) ? w->zero : 0;
    float acc = 0, scale;
    for (int i0 = 0; i0 < w->k; i0 += group) {
        const uint8_t *block = v->codes + (size_t)(i0 / TERN_BLOCK) * unit;
        int32_t dot = 0;
        float isum = 0, sw, mw;
        for (int i = i0; i < i0 + group; i++) {
            int16_t q;
            memcpy(&q, band + code_at(r, i), sizeof q);
            dot += (tern_block_code(w->codes, v->table, block, i % TERN_BLOCK, j) - zero) * q;
        }
        for (int h = i0 / 16; h < (i0 + group) / 16; h++) {
            float half;
            memcpy(&half, band + sum_at(r, h), sizeof half);
            isum += half;
        }
        tern_group_scale(w->scales, v, i0 / 16, j, &sw, &mw);
        acc = fmaf((float)dot, sw, acc);
        if (minimum)
            acc = fmaf(mw, isum, acc);
    }
    memcpy(&scale, band + 2 * r, sizeof scale);
    return acc * scale;
}

static void product(float *y, size_t y_stride, const uint16_t *x, int n_rows, const struct tern_packed *w, int panel0,
                    int panel1, void *scratch)
{
    const struct tern_panel_layout l = tern_panel_layout(w);
    const size_t band = tern_i16_band(w->k);
    (void)scratch;
    for (int n = panel0 * TERN_PANEL; n < panel1 * TERN_PANEL && n < w->n; n++) {
        const struct tern_panel_view v = tern_panel_view(w, &l, n / TERN_PANEL);
        for (int r = 0; r < n_rows; r++)
            y[(size_t)r * y_stride + (size_t)n] =
                output(w, &v, n % TERN_PANEL, x + (size_t)(r / TERN_BAND) * band, r % TERN_BAND);
    }
}

static size_t band(int k)
{
    return tern_i16_band(k);
}

void tern_prompt_init_ref(struct tern_prompt_kernels *k)
{
    *k = (struct tern_prompt_kernels){pack, product, band, false, 1, NULL};
}

/* The int8 class of prompt.h over the narrow kernels of whatever level is in use: rows lie in a band as decode rows do
 * in their buffer. */
#include "kernel/kernel.h"

static size_t band(int k)
{
    return TERN_BAND * tern_q8_bytes((size_t)k) / sizeof(uint16_t);
}

static void pack(uint16_t *out, const float *x, size_t x_stride, int n_rows, int k)
{
    char *p = (char *)out;
    for (int r = 0; r < n_rows; r++, p += tern_q8_bytes((size_t)k)) {
        const struct tern_q8_row row = tern_q8_at(p, (size_t)k);
        char *scale = p + ((const char *)row.scale - p), *sum16 = p + ((const char *)row.sum16 - p);
        tern_k.gemm.quantize((int8_t *)p, (float *)(void *)scale, (int32_t *)(void *)sum16, x + (size_t)r * x_stride,
                             k);
    }
}

static void product(float *y, size_t y_stride, const uint16_t *x, int n_rows, const struct tern_packed *w, int panel0,
                    int panel1, void *scratch)
{
    const size_t bytes = tern_q8_bytes((size_t)w->k);
    (void)scratch;
    for (int r0 = 0; r0 < n_rows; r0 += TERN_BAND) {
        struct tern_q8_row rows[TERN_BAND];
        const int n = n_rows - r0 < TERN_BAND ? n_rows - r0 : TERN_BAND;
        for (int r = 0; r < n; r++)
            rows[r] = tern_q8_at((const char *)x + (size_t)(r0 + r) * bytes, (size_t)w->k);
        tern_k.gemm.narrow(y + (size_t)r0 * y_stride, y_stride, rows, n, w, panel0, panel1);
    }
}

void tern_prompt8_init(struct tern_prompt_kernels *k)
{
    *k = (struct tern_prompt_kernels){pack, product, band, false, 1, NULL};
}

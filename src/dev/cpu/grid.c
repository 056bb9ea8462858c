/* Grids of few bits that models round their own keys to (dev/args.h). */
#include "dev/cpu/cpu.h"

#include <string.h>
#include "base/fp16.h"
#include "base/err.h"

/* The smallest power of two s with largest <= top * s.  Both are floats, so their quotient in double is 1 or less
 * exactly where it is. */
static float grid_scale(float largest, float top)
{
    const double quotient = (double)largest / (double)top;
    const float s = tern_bits_f32(tern_f32_bits((float)quotient) & 0x7F800000u);
    return (double)s < quotient ? 2 * s : s;
}

/* Nearest, to even, of floats with `bits` bits of mantissa whose exponents end at `low`: adding and taking away a
 * number so large that what lies below the step is rounded off. */
static float to_grid(float x, int bits, int low, float top)
{
    if (!(x <= top && x >= -top)) /* NaN stays */
        return x > top ? top : x < -top ? -top : x;
    int exponent = (int)(tern_f32_bits(x) >> 23 & 255) - 127;
    exponent = exponent < low ? low : exponent;
    const float magic = tern_bits_f32((uint32_t)(exponent - bits + 23 + 127) << 23) * 1.5f;
    return x + magic - magic;
}

static void round_groups(float *x, int n, int group, int bits, int low, float top, float least)
{
    for (int at = 0; at < n; at += group) {
        const int end = at + group < n ? at + group : n;
        float largest = least;
        for (int i = at; i < end; i++) {
            const float size = x[i] < 0 ? -x[i] : x[i];
            largest = size > largest ? size : largest;
        }
        const float s = grid_scale(largest, top), inverse = 1 / s;
        for (int i = at; i < end; i++)
            x[i] = to_grid(x[i] * inverse, bits, low, top) * s;
    }
}

void tern_cpu_to_grid(float *x, int n, enum tern_grid grid)
{
    float copy[TERN_KVQ_MAX_DIM] __attribute__((aligned(64))), ones[TERN_KVQ_MAX_DIM] __attribute__((aligned(64)));
    if (grid == TERN_GRID_FP8)
        round_groups(x, n, 64, 3, -6, 448, 1e-4f);
    if (grid != TERN_GRID_FP4)
        return;
    TERN_ASSERT(n <= TERN_KVQ_MAX_DIM);
    for (int i = 0; i < n; i++)
        ones[i] = 1;
    memcpy(copy, x, (size_t)n * sizeof *x);
    tern_k.kvq.rotate(copy, ones, n, 0);
    round_groups(copy, n, 32, 1, 0, 6, 6 * 0x1p-126f);
    memcpy(x, copy, (size_t)n * sizeof *x);
}

struct grid_args {
    float *x;
    size_t stride;
    int n_heads, dim;
    enum tern_grid grid;
};

static void grid_row(const void *args, int r)
{
    const struct grid_args *a = args;
    for (int h = 0; h < a->n_heads; h++)
        tern_cpu_to_grid(a->x + (size_t)r * a->stride + (size_t)h * (size_t)a->dim, a->dim, a->grid);
}

void tern_cpu_grid(struct tern_dev *dev, struct tern_dev_rows x, enum tern_grid grid, int n_heads, int n_rows)
{
    const struct grid_args a = {tern_cpu_f32(x), x.stride, n_heads, x.width / n_heads, grid};
    tern_cpu_each_row(tern_cpu_of(dev), grid_row, &a, n_rows, 8 * x.width);
}

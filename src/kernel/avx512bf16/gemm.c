/* Small products in bf16 without tiles, for attention: `vdpbf16ps` adds two products to each of 16 sums.
 *
 * A register tile is 8 rows by two panels of 16 columns: per pair of inputs two loads and eight broadcasts for 16
 * products, which is what two load ports give.  An output is one chain over pairs of inputs, ascending. */
#include "kernel/avx512bf16/bf16.h"
#include "kernel/avx512bf16/round.h"

#include "kernel/avx512bf16/pack.h"
#include "kernel/attn.h"

#define ALWAYS static inline __attribute__((always_inline))

#define TILE  8 /* rows of a register tile: a whole number of them in a band */
#define WIDTH 2 /* panels of one */
_Static_assert(TERN_BAND % TILE == 0 && TERN_TILE_ROWS % TILE == 0, "register tiles do not cross bands");

/* Where the operands of a register tile lie: rows TERN_TILE_DEPTH values apart, steps 2 * TERN_TILE. */
struct operands {
    const uint16_t *x, *m; /* first step of row 0, of panel 0 */
    const float *shrink;   /* of each row, for the chains so far in y; NULL: chains start here */
    int steps;
};

ALWAYS __m512bh two_inputs(const uint16_t *p)
{
    int32_t both;
    memcpy(&both, p, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
}

/* y[TILE][panels*16] (+)= x . m; panels is constant. */
ALWAYS void tile(const struct operands *o, float *y, size_t y_stride, int panels)
{
    __m512 acc[TILE][WIDTH];
    const uint16_t *x = o->x, *m = o->m;
#pragma GCC unroll 8
    for (int r = 0; r < TILE; r++) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++)
            acc[r][p] = !o->shrink ? _mm512_setzero_ps()
                                   : _mm512_mul_ps(_mm512_loadu_ps(y + (size_t)r * y_stride + 16 * p),
                                                   _mm512_set1_ps(o->shrink[r]));
    }
    for (int s = 0; s < o->steps; s++, x += 2 * TERN_TILE, m += 2 * TERN_TILE) {
#pragma GCC unroll 2
        for (int i = 0; i < TERN_TILE_DEPTH; i += 2) {
            __m512bh v[WIDTH];
#pragma GCC unroll 2
            for (int p = 0; p < panels; p++)
                v[p] = (__m512bh)_mm512_load_si512(m + i * TERN_PANEL + p * TERN_TILE);
#pragma GCC unroll 8
            for (int r = 0; r < TILE; r++) {
                const __m512bh b = two_inputs(x + r * TERN_TILE_DEPTH + i);
#pragma GCC unroll 2
                for (int p = 0; p < panels; p++)
                    acc[r][p] = _mm512_dpbf16_ps(acc[r][p], v[p], b);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < TILE; r++) {
#pragma GCC unroll 2
        for (int p = 0; p < panels; p++)
            _mm512_storeu_ps(y + (size_t)r * y_stride + 16 * p, acc[r][p]);
    }
}

static void tile_1(const struct operands *o, float *y, size_t y_stride)
{
    tile(o, y, y_stride, 1);
}

static void tile_2(const struct operands *o, float *y, size_t y_stride)
{
    tile(o, y, y_stride, 2);
}

/* A register tile of which only `rows` rows and `cols` columns exist in y.  Rows behind the last are zeros in a band as
 * far as its tiles of 16 go, and nobody looks at what comes of them. */
static void tile_at(struct operands o, float *y, size_t y_stride, int rows, int cols)
{
    const int panels = cols > TERN_PANEL ? 2 : 1;
    void (*fn)(const struct operands *, float *, size_t) = panels == 2 ? tile_2 : tile_1;
    if (rows >= TILE && cols >= panels * TERN_PANEL) {
        fn(&o, y, y_stride);
        return;
    }
    float edge[TILE * WIDTH * TERN_PANEL] = {0}, shrink[TILE] = {0};
    const size_t stride = WIDTH * TERN_PANEL;
    const size_t bytes = (size_t)(cols < panels * TERN_PANEL ? cols : panels * TERN_PANEL) * sizeof *y;
    rows = rows < TILE ? rows : TILE;
    for (int r = 0; r < rows && o.shrink; r++) {
        memcpy(edge + (size_t)r * stride, y + (size_t)r * y_stride, bytes);
        shrink[r] = o.shrink[r];
    }
    if (o.shrink)
        o.shrink = shrink;
    fn(&o, edge, stride);
    for (int r = 0; r < rows; r++)
        memcpy(y + (size_t)r * y_stride, edge + (size_t)r * stride, bytes);
}

static void multiply(float *y, size_t y_stride, const float *shrink, const uint16_t *x, int n_rows, const uint16_t *m,
                     int k, int n)
{
    const size_t band = tern_bf16_band(k);
    struct operands o = {.steps = (k + TERN_TILE_DEPTH - 1) / TERN_TILE_DEPTH};
    for (int c = 0; c < n; c += 2 * TERN_PANEL, m += band) {
        o.m = m;
        for (int r = 0; r < n_rows; r += TILE) {
            o.x = x + (size_t)(r / TERN_BAND) * band + (size_t)(r % TERN_BAND) * TERN_TILE_DEPTH;
            o.shrink = shrink ? shrink + r : NULL;
            tile_at(o, y + (size_t)r * y_stride + c, y_stride, n_rows - r, n - c);
        }
    }
}

static void score(float *s, size_t stride, const uint16_t *x, int n_rows, const uint16_t *keys, int k, int n_pages)
{
    for (int j = 0; j < n_pages; j++)
        multiply(s + (size_t)j * stride, TERN_PAGE, NULL, x, n_rows, keys + (size_t)j * tern_bf16_right(k, TERN_PAGE),
                 k, TERN_PAGE);
}

static void nothing(void)
{
}

void tern_bf16_init_avx512bf16(struct tern_bf16_kernels *k)
{
    *k = (struct tern_bf16_kernels){pack, pack_right, multiply, nothing, nothing, score, tern_bf16_softmax};
}

/* The bf16 class without tiles: `vdpbf16ps` adds two products to each of 16 sums.
 *
 * Weights become tiles for RANGE_STEPS * 32 inputs of up to PANELS panels.  A register tile is 8 rows by three panels:
 * 24 sums, and per pair of inputs three loads and eight broadcasts for 24 products.  Three panels of a range are 24 KB
 * and stay in L1 while rows stream past; ROWS rows of a range stay in L2 beside the panels.  Between ranges the sums
 * rest in y, which does not round, so no cut shows in the result: an output is one chain over pairs of inputs,
 * ascending.
 *
 * Counts for 32 inputs of a register tile: 384 products, one per cycle; 48 loads and 128 broadcasts on two load ports.
 * Sums: 48 moves per 3072 products.  Weights: about 100 instructions per tile of 512, against 16 products per row. */
#include "kernel/avx512bf16/bf16.h"
#include "kernel/avx512bf16/round.h"

#include "kernel/avx512bf16/pack.h"

#define ALWAYS static inline __attribute__((always_inline))

#define TILE        8 /* rows of a register tile: a whole number of them in a band */
#define WIDTH       3 /* panels of one */
#define RANGE_STEPS 8 /* tiles of inputs between two rests in y */
#define PANELS      48
#define ROWS        128
_Static_assert(TERN_BAND % TILE == 0 && TERN_TILE_ROWS % TILE == 0, "register tiles do not cross bands");
_Static_assert(PANELS *RANGE_STEPS *TERN_TILE * sizeof(uint16_t) <= TERN_BF16_SCRATCH, "scratch is large enough");

/* Where the operands of a register tile lie. */
struct operands {
    const uint16_t *x;  /* row 0, first step; rows TERN_TILE_DEPTH values apart, steps 2 * TERN_TILE */
    const uint16_t *w;  /* first step of panel 0 */
    size_t panel, step; /* values from one panel, one step to the next */
    int steps;
    bool first; /* chains start here */
};

ALWAYS __m512bh two_inputs(const uint16_t *p)
{
    int32_t both;
    memcpy(&both, p, sizeof both);
    return (__m512bh)_mm512_set1_epi32(both);
}

/* y[TILE][panels*16] (+)= x . w; panels is constant. */
ALWAYS void tile(const struct operands *o, float *y, size_t y_stride, int panels)
{
    __m512 acc[TILE][WIDTH];
    const uint16_t *x = o->x, *w = o->w;
#pragma GCC unroll 8
    for (int r = 0; r < TILE; r++) {
#pragma GCC unroll 3
        for (int p = 0; p < panels; p++)
            acc[r][p] = o->first ? _mm512_setzero_ps() : _mm512_loadu_ps(y + (size_t)r * y_stride + 16 * p);
    }
    for (int s = 0; s < o->steps; s++, x += 2 * TERN_TILE, w += o->step) {
        const uint16_t *pair = w;
#pragma GCC unroll 1
        for (int i = 0; i < TERN_TILE_DEPTH; i += 2, pair += 2 * TERN_PANEL) {
            __m512bh v[WIDTH];
#pragma GCC unroll 3
            for (int p = 0; p < panels; p++)
                v[p] = (__m512bh)_mm512_load_si512(pair + (size_t)p * o->panel);
#pragma GCC unroll 8
            for (int r = 0; r < TILE; r++) {
                __m512bh b = two_inputs(x + r * TERN_TILE_DEPTH + i);
#pragma GCC unroll 3
                for (int p = 0; p < panels; p++)
                    acc[r][p] = _mm512_dpbf16_ps(acc[r][p], v[p], b);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < TILE; r++) {
#pragma GCC unroll 3
        for (int p = 0; p < panels; p++)
            _mm512_storeu_ps(y + (size_t)r * y_stride + 16 * p, acc[r][p]);
    }
}

typedef void tile_fn(const struct operands *o, float *y, size_t y_stride);

#define X(n)                                                                  \
    static void tile_##n(const struct operands *o, float *y, size_t y_stride) \
    {                                                                         \
        tile(o, y, y_stride, n);                                              \
    }
X(1)
X(2)
X(3)
#undef X

/* A register tile of which only `rows` rows and `cols` columns exist in y.  Rows behind the last are zeros in a band as
 * far as its tiles of 16 go, and nobody looks at what comes of them. */
static void tile_at(const struct operands *o, float *y, size_t y_stride, int rows, int panels, int cols)
{
    static tile_fn *const tiles[WIDTH] = {tile_1, tile_2, tile_3};
    tile_fn *fn = tiles[panels - 1];
    if (rows >= TILE && cols >= panels * TERN_PANEL) {
        fn(o, y, y_stride);
        return;
    }
    float edge[TILE * WIDTH * TERN_PANEL] = {0};
    const size_t stride = WIDTH * TERN_PANEL;
    const size_t bytes = (size_t)(cols < panels * TERN_PANEL ? cols : panels * TERN_PANEL) * sizeof *y;
    rows = rows < TILE ? rows : TILE;
    for (int r = 0; r < rows && !o->first; r++)
        memcpy(edge + (size_t)r * stride, y + (size_t)r * y_stride, bytes);
    fn(o, edge, stride);
    for (int r = 0; r < rows; r++)
        memcpy(y + (size_t)r * y_stride, edge + (size_t)r * stride, bytes);
}

/* ---- small products ---- */

static void multiply(float *y, size_t y_stride, const float *shrink, const uint16_t *x, int n_rows, const uint16_t *m,
                     int k, int n)
{
    const size_t band = tern_bf16_band(k);
    struct operands o = {.panel = TERN_TILE,
                         .step = 2 * TERN_TILE,
                         .steps = (k + TERN_TILE_DEPTH - 1) / TERN_TILE_DEPTH,
                         .first = !shrink};
    for (int r = 0; r < n_rows && shrink; r++)
        for (int j = 0; j < n && shrink[r] != 1.0f; j++)
            y[(size_t)r * y_stride + (size_t)j] *= shrink[r];
    for (int c = 0; c < n; c += 2 * TERN_PANEL, m += band) {
        const int panels = n - c > TERN_PANEL ? 2 : 1;
        o.w = m;
        for (int r = 0; r < n_rows; r += TILE) {
            o.x = x + (size_t)(r / TERN_BAND) * band + (size_t)(r % TERN_BAND) * TERN_TILE_DEPTH;
            tile_at(&o, y + (size_t)r * y_stride + c, y_stride, n_rows - r, panels, n - c);
        }
    }
}

static void nothing(void)
{
}

void tern_bf16_init_avx512bf16(struct tern_bf16_kernels *k)
{
    *k = (struct tern_bf16_kernels){pack, pack_right, multiply, nothing, nothing, tern_bf16_softmax};
}

/* kernel/prompt_impl.h - prompt rows in integers (prompt.h) around their register tiles: the part that is the same for
 * all instruction sets.
 *
 * Codes of RANGE_STEPS * 32 inputs of up to PANELS panels are expanded, beside their scales in f32.  For the class
 * int16 they become 16-bit pairs, less their zero points: of a quad of four inputs a mask leaves the pair (0, 2) and a
 * shift the pair (1, 3), which is why rows are packed in that order.  For int8 (PROMPT_INT8) a quad of bytes stays one
 * vector.  At the end of a group of inputs the sums of a register tile become floats, are scaled, and join the chains,
 * which wait in L1.
 *
 * Before it is included these are defined:
 *
 *     PROMPT_INT8     for that class: `quantize` of gemm.h
 *     TILE, WIDTH     the most rows of a register tile, and its panels
 *     PAD, RAISED     for int8: what rows of a register tile are a multiple of; what `expand` adds to signed codes
 *     RANGE_STEPS     blocks of 32 inputs between two rests in y: that many of WIDTH panels stay in L1
 *     PANELS, ROWS    panels that are expanded together; rows that meet all of them before the next rows do
 *
 * and after it the functions that are declared here without a body. */
#ifndef TERN_KERNEL_PROMPT_IMPL_H
#define TERN_KERNEL_PROMPT_IMPL_H

#include "kernel/panel.h"
#include "kernel/prompt.h"

#ifdef RANGE_STEPS

#include <string.h>

#define PROMPT_INLINE static inline __attribute__((always_inline))

PROMPT_INLINE float float_at(const uint16_t *p)
{
    float f;
    memcpy(&f, p, sizeof f);
    return f;
}

#ifdef PROMPT_INT8
#include "kernel/prompt8_impl.h"
#else
/* A panel's weights of a step in scratch. */
struct block {
    int16_t pairs[TERN_TILE_DEPTH / 2][TERN_PANEL][2];
    float scale[2][TERN_PANEL], minimum[2][TERN_PANEL]; /* of each half */
};

/* Where the operands of a register tile lie. */
struct operands {
    const uint16_t *x; /* row 0, first step */
    const uint16_t *sums;
    const struct block *w; /* first step of panel 0; panels are `steps` blocks apart */
    int steps, zero;
};

static size_t band(int k)
{
    return tern_i16_band(k);
}

/* Where the operands of row r of the band at `at` lie. */
PROMPT_INLINE void row_operands(struct operands *o, const uint16_t *at, int first_step, int r)
{
    const uint16_t *step = at + 2 * TERN_BAND + (size_t)first_step * TERN_I16_STEP;
    o->x = step + r % TERN_BAND * TERN_TILE_DEPTH;
    o->sums = step + TERN_BAND * TERN_TILE_DEPTH + 2 * (r % TERN_BAND);
}

static int zero_of(const struct tern_packed *w)
{
    return tern_scales_zero(w->scales) ? w->zero : 0;
}

/* What an output of the row is multiplied by at the end. */
PROMPT_INLINE const float *row_scale(const uint16_t *at, int r)
{
    return (const float *)(const void *)at + r % TERN_BAND;
}
#endif
_Static_assert(PANELS *RANGE_STEPS * sizeof(struct block) <= TERN_PROMPT_SCRATCH, "scratch is large enough");

/* chain[rows][WIDTH][16] += x . w */
typedef void tile_fn(const struct operands *o, float *chain);

/* Rows of the register tile that begins at row r, of which `left` are left: at most those that are left in the band. */
PROMPT_INLINE int tile_rows(int r, int left);

static tile_fn *tile_for(int rows, int panels, const struct tern_packed *w);

/* One step of a panel; codes and scales are constant. */
PROMPT_INLINE void expand(enum tern_codes codes, enum tern_scales scales, struct block *out,
                          const struct tern_panel_view *v, int zero, int step);

/* The first `cols` of 16 floats: from y, zeros behind them; to y, times `scale` where it is given. */
PROMPT_INLINE void chain_from(float *chain, const float *y, int cols);
PROMPT_INLINE void chain_to(float *y, const float *chain, int cols, const float *scale);

/* One range of inputs of one call. */
struct range {
    const struct block *w; /* as in operands */
    int steps, zero;
    float *y; /* first row, first column of the panels */
    size_t y_stride;
    const uint16_t *x; /* first band */
    size_t band;
    int first_step;
    bool last;
    const struct tern_packed *m;
    size_t blocks; /* of 32 inputs of m */
    struct tern_ahead ahead;
};

/* ---- weights ---- */

/* The range of one panel.  What comes behind is asked for: few rows take no time in which memory could catch up. */
typedef void expand_fn(struct block *out, const struct tern_panel_view *v, const struct range *g);

#define X(c, s)                                                                                             \
    static void expand_##c##_##s(struct block *out, const struct tern_panel_view *v, const struct range *g) \
    {                                                                                                       \
        for (int i = 0, at = g->first_step; i < g->steps; i++, at++) {                                      \
            tern_prefetch_block(TERN_CODES_##c, TERN_SCALES_##s, v, (size_t)at, &g->ahead, g->blocks,       \
                                g->m->panel_bytes);                                                         \
            expand(TERN_CODES_##c, TERN_SCALES_##s, out + i, v, g->zero, at);                               \
        }                                                                                                   \
    }
TERN_NARROW_KINDS(X)
#undef X

static expand_fn *expander(const struct tern_packed *w)
{
#define X(c, s)                                                     \
    if (w->codes == TERN_CODES_##c && w->scales == TERN_SCALES_##s) \
        return expand_##c##_##s;
    TERN_NARROW_KINDS(X)
#undef X
    return NULL;
}

/* ---- products ---- */

/* Rows [r, r + rows), of which the first `given` exist, times `panels` panels from number p0 on, of which `cols`
 * columns exist. */
static void one_tile(const struct range *g, int r, int rows, int given, int p0, int panels, int cols)
{
    float chain[TILE * WIDTH * TERN_PANEL] __attribute__((aligned(64)));
    const uint16_t *at = g->x + (size_t)(r / TERN_BAND) * g->band;
    float *y = g->y + (size_t)r * g->y_stride + p0 * TERN_PANEL;
    /* Written field by field: a struct that is copied is read in one piece, which waits for results on their way out.
     */
    struct operands o = {.w = g->w + (size_t)p0 * (size_t)g->steps, .steps = g->steps, .zero = g->zero};
    row_operands(&o, at, g->first_step, r);
    if (!g->first_step || given < rows)
        memset(chain, 0, sizeof chain);
    for (int i = 0; i < given && g->first_step; i++)
        for (int p = 0; p < panels; p++)
            chain_from(chain + (i * WIDTH + p) * TERN_PANEL, y + (size_t)i * g->y_stride + p * TERN_PANEL,
                       cols - p * TERN_PANEL);
    for (int i = 0; i < given; i++)
        for (int p = 0; p < panels; p++)
            __builtin_prefetch(y + (size_t)i * g->y_stride + p * TERN_PANEL, 1, 3);
    tile_for(rows, panels, g->m)(&o, chain);
    for (int i = 0; i < given; i++)
        for (int p = 0; p < panels; p++)
            chain_to(y + (size_t)i * g->y_stride + p * TERN_PANEL, chain + (i * WIDTH + p) * TERN_PANEL,
                     cols - p * TERN_PANEL, g->last ? row_scale(at, r + i) : NULL);
}

static void product(float *y, size_t y_stride, const uint16_t *x, int n_rows, const struct tern_packed *w, int panel0,
                    int panel1, void *scratch)
{
    const struct tern_panel_layout l = tern_panel_layout(w);
    expand_fn *const fill = expander(w);
    const int steps = w->k / TERN_BLOCK, ranges = (steps + RANGE_STEPS - 1) / RANGE_STEPS;
    const int most = n_rows > ROWS ? PANELS : WIDTH; /* with few rows nothing is used again, and L1 holds WIDTH */
    const int longest = (steps + ranges - 1) / ranges;
    struct block *weights = scratch;
    struct range g = {.w = weights,
                      .zero = zero_of(w),
                      .y_stride = y_stride,
                      .x = x,
                      .band = band(w->k),
                      .m = w,
                      .blocks = (size_t)steps,
                      .ahead = tern_ahead_of(w)};
    for (int p0 = panel0; p0 < panel1; p0 += most) {
        const int panels = panel1 - p0 < most ? panel1 - p0 : most;
        g.y = y + (size_t)p0 * TERN_PANEL;
        for (int s = 0; s < steps; s += g.steps) {
            g.steps = steps - s < longest ? steps - s : longest;
            g.first_step = s;
            g.last = s + g.steps == steps;
            for (int p = 0; p < panels; p++) {
                const struct tern_panel_view v = tern_panel_view(w, &l, p0 + p);
                fill(weights + p * g.steps, &v, &g);
            }
            for (int r0 = 0; r0 < n_rows; r0 += ROWS)
                for (int p = 0; p < panels; p += WIDTH)
                    for (int r = r0, rows; r < n_rows && r < r0 + ROWS; r += rows) {
                        const int left = n_rows - r;
                        rows = tile_rows(r, left);
                        one_tile(&g, r, rows, left < rows ? left : rows, p, panels - p < WIDTH ? panels - p : WIDTH,
                                 w->n - (p0 + p) * TERN_PANEL);
                    }
        }
    }
}

#endif
#endif

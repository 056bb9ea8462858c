/* The int8 class of prompt.h on VNNI: `vpdpbusd` adds four products of unsigned and signed bytes to each of 16
 * integers.
 *
 * As in prompt.c, but a quad of four inputs stays one vector: codes become unsigned bytes (signed ones plus 128, which
 * moves the zero point) for RANGE_STEPS * 32 inputs of up to PANELS panels, beside their scales in f32, and rows stream
 * past three panels in L1.  A register tile is 8 rows by three panels.  Sums begin with -zero * isum, as in
 * gemm_narrow.c, so that a row's bits are those of that kernel.
 *
 * Counts for 32 inputs of a register tile: 192 products, one per cycle; 24 products of scales and 24 multiply-adds (48
 * with a minimum) on the same ports, 24 conversions, loads and stores of chains beside them. */
#include "kernel/prompt.h"
#include "kernel/avx512/gemm.h"
#include "kernel/avx512/gemm_block.h"

#include <string.h>

#define TILE        8  /* rows of a register tile: a whole number of them in a band */
#define WIDTH       3  /* panels of one */
#define RANGE_STEPS 12 /* blocks of 32 inputs between two rests in y */
#define PANELS      24
#define ROWS        128
#define PIECE       512 /* inputs that are quantised at once */
_Static_assert(TERN_BAND % TILE == 0, "register tiles do not cross bands");

/* A panel's weights of a range in scratch. */
struct block {
    uint8_t quads[TERN_BLOCK / 4][TERN_VEC];
    float scale[2][TERN_PANEL], minimum[2][TERN_PANEL]; /* of each half; minimum: to be added */
};
_Static_assert(PANELS *RANGE_STEPS * sizeof(struct block) <= TERN_PROMPT_SCRATCH, "scratch is large enough");

/* 32 inputs of a band.  isum, product: of both halves and of all 32. */
struct step {
    int8_t q[TERN_BAND][TERN_BLOCK];
    float scale[TERN_BAND];
    int32_t isum[3][TERN_BAND];
    float product[3][TERN_BAND]; /* scale * isum */
};

static size_t band(int k)
{
    return (size_t)k / TERN_BLOCK * sizeof(struct step) / sizeof(uint16_t);
}

/* ---- activations ---- */

static void pack_block(struct step *s, int r, const int8_t *q, float scale, const int32_t sum16[2])
{
    /* Rows that are not finite have sums that wrap; their scale is not finite either. */
    const int32_t isum[3] = {sum16[0], sum16[1], (int32_t)((uint32_t)sum16[0] + (uint32_t)sum16[1])};
    memcpy(s->q[r], q, TERN_BLOCK);
    s->scale[r] = scale;
    for (int g = 0; g < 3; g++) {
        s->isum[g][r] = isum[g];
        s->product[g][r] = scale * (float)isum[g];
    }
}

static void pack(uint16_t *out, const float *x, size_t x_stride, int n_rows, int k)
{
    struct step *steps = (struct step *)(void *)out;
    int8_t q[PIECE] __attribute__((aligned(64)));
    float scale[PIECE / TERN_BLOCK] __attribute__((aligned(64)));
    int32_t sum16[PIECE / 16] __attribute__((aligned(64)));
    for (int r = 0; r < n_rows; r++)
        for (int at = 0; at < k; at += PIECE) {
            const int n = k - at < PIECE ? k - at : PIECE;
            tern_gemm_quantize_avx512(q, scale, sum16, x + (size_t)r * x_stride + at, n);
            for (int b = 0; b < n / TERN_BLOCK; b++)
                pack_block(steps + at / TERN_BLOCK + b, r, q + b * TERN_BLOCK, scale[b], sum16 + 2 * b);
        }
    memset(q, 0, TERN_BLOCK);
    memset(sum16, 0, 2 * sizeof *sum16);
    for (int r = n_rows; r % TILE; r++) /* register tiles read them, and nobody looks at what comes of it */
        for (int b = 0; b < k / TERN_BLOCK; b++)
            pack_block(steps + b, r, q, 0, sum16);
}

/* ---- weights ---- */

ALWAYS void expand(enum tern_codes codes, enum tern_scales scales, struct block *out, const struct tern_panel_view *v,
                   int step)
{
    const uint8_t *block = v->codes + (size_t)step * tern_codes_unit(codes);
    const __m512i table = code_table(codes, v), top = _mm512_set1_epi8((char)0x80);
#pragma GCC unroll 8
    for (int q = 0; q < 8; q++) {
        const __m512i c = quad_codes(codes, table, block, q);
        _mm512_store_si512(out->quads[q], tern_codes_signed(codes) ? _mm512_xor_si512(c, top) : c);
    }
    const struct super super = super_scale(scales, v, (size_t)step / (TERN_SUPER / TERN_BLOCK), 0);
    for (int half = 0; half < (tern_scales_halves(scales) ? 2 : 1); half++) {
        __m512 scale, minimum;
        group_scale(scales, v, &super, 2 * (size_t)step + (size_t)half, 0, &scale, &minimum);
        if (tern_scales_minus(scales))
            minimum = _mm512_xor_ps(minimum, _mm512_set1_ps(-0.0f));
        _mm512_store_ps(out->scale[half], scale);
        if (tern_scales_minimum(scales))
            _mm512_store_ps(out->minimum[half], minimum);
    }
}

typedef void expand_fn(struct block *out, const struct tern_panel_view *v, int first, int steps);

#define X(c, s)                                                                                        \
    static void expand_##c##_##s(struct block *out, const struct tern_panel_view *v, int first, int n) \
    {                                                                                                  \
        for (int i = 0; i < n; i++)                                                                    \
            expand(TERN_CODES_##c, TERN_SCALES_##s, out + i, v, first + i);                            \
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

/* Where the operands of a register tile lie. */
struct operands {
    const struct step *x;  /* first step of the band */
    int row;               /* first row in it, a multiple of TILE */
    const struct block *w; /* first step of panel 0; panels are `steps` blocks apart */
    int steps, zero;
};

ALWAYS __m512i four_codes(const int8_t *p)
{
    int32_t four;
    memcpy(&four, p, sizeof four);
    return _mm512_set1_epi32(four);
}

/* The chains of one row: += its sums of a group. */
ALWAYS void add_group(const struct block *const w[WIDTH], float *chain, const struct step *x, int row, int g, int sum,
                      int panels, bool minimum, const __m512i dot[WIDTH])
{
    const __m512 sx = _mm512_set1_ps(x->scale[row]), isum = _mm512_set1_ps(minimum ? x->product[sum][row] : 0);
#pragma GCC unroll 3
    for (int p = 0; p < panels; p++) {
        float *at = chain + p * TERN_PANEL;
        const __m512 scale = _mm512_mul_ps(_mm512_load_ps(w[p]->scale[g]), sx);
        __m512 acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[p]), scale, _mm512_load_ps(at));
        if (minimum)
            acc = _mm512_fmadd_ps(_mm512_load_ps(w[p]->minimum[g]), isum, acc);
        _mm512_store_ps(at, acc);
    }
}

/* sum += w * x, four bytes at a time.  As an instruction for the reason that prompt.c has. */
ALWAYS __m512i add_quads(__m512i sum, __m512i w, __m512i x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(w), "v"(x));
    return sum;
}

/* Sums have names of their own, for an array of them would lie in memory. */
#define EACH_ROW(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7)
#define ROW_BEGIN(r)                               \
    __m512i d##r##0 = _mm512_set1_epi32(begin[r]); \
    __m512i d##r##1 = d##r##0, d##r##2 = d##r##0;
#define ROW_ADD(r)                              \
    b = four_codes(q + r * TERN_BLOCK + 4 * i); \
    d##r##0 = add_quads(d##r##0, v0, b);        \
    if (panels > 1)                             \
        d##r##1 = add_quads(d##r##1, v1, b);    \
    if (panels > 2)                             \
        d##r##2 = add_quads(d##r##2, v2, b);
#define ROW_END(r)                                                                                              \
    {                                                                                                           \
        const __m512i dot[WIDTH] = {d##r##0, d##r##1, d##r##2};                                                 \
        add_group(w, chain + r * WIDTH * TERN_PANEL, x, row + r, g, groups == 1 ? 2 : g, panels, minimum, dot); \
    }
_Static_assert(TILE == 8 && WIDTH == 3, "as the names say");

/* chain[TILE][WIDTH][16] += x . w for one group of the inputs of a block; panels, groups and minimum are constant. */
ALWAYS void group_tile(const struct block *const w[WIDTH], const struct step *x, int row, int zero, float *chain, int g,
                       int panels, int groups, bool minimum)
{
    int32_t begin[TILE] __attribute__((aligned(32)));
    const __m256i isum = _mm256_load_si256((const __m256i *)(const void *)(x->isum[groups == 1 ? 2 : g] + row));
    _mm256_store_si256((__m256i *)(void *)begin, _mm256_mullo_epi32(isum, _mm256_set1_epi32(-zero)));
    __asm__ volatile("" ::: "memory"); /* or the compiler permutes them out of a register, on ports of products */
    const int first = g * TERN_BLOCK / 8, end = first + TERN_BLOCK / 4 / groups;
    const int8_t *q = x->q[row];
    EACH_ROW(ROW_BEGIN)
    for (int i = first; i < end; i++) {
        const __m512i v0 = load_i512(w[0]->quads[i]);
        const __m512i v1 = panels > 1 ? load_i512(w[1]->quads[i]) : v0;
        const __m512i v2 = panels > 2 ? load_i512(w[2]->quads[i]) : v0;
        __m512i b;
        EACH_ROW(ROW_ADD)
    }
    EACH_ROW(ROW_END)
    __asm__ volatile("" ::: "memory"); /* or chains are kept in registers as well, which there are none for */
}

typedef void tile_fn(const struct operands *o, float *chain);

#define X(panels, groups, minimum)                                                                         \
    static void tile_##panels##_##groups##_##minimum(const struct operands *o, float *chain)               \
    {                                                                                                      \
        for (int s = 0; s < o->steps; s++) {                                                               \
            const struct block *const w[WIDTH] = {o->w + s, o->w + s + o->steps, o->w + s + 2 * o->steps}; \
            for (int g = 0; g < groups; g++)                                                               \
                group_tile(w, o->x + s, o->row, o->zero, chain, g, panels, groups, minimum);               \
        }                                                                                                  \
    }
#define PANEL_FNS(panels) X(panels, 1, 0) X(panels, 1, 1) X(panels, 2, 0) X(panels, 2, 1)
PANEL_FNS(1)
PANEL_FNS(2)
PANEL_FNS(3)
#undef X

static tile_fn *tile_for(int panels, enum tern_scales scales)
{
#define X(panels, groups, minimum) tile_##panels##_##groups##_##minimum,
    static tile_fn *const fns[] = {PANEL_FNS(1) PANEL_FNS(2) PANEL_FNS(3)};
#undef X
    return fns[(panels - 1) * 4 + (tern_scales_halves(scales) ? 2 : 0) + (tern_scales_minimum(scales) ? 1 : 0)];
}

/* One range of inputs of one call. */
struct range {
    struct operands o; /* x: first band */
    float *y;          /* first row, first column of the panels */
    size_t y_stride;
    int all_steps;
    bool first;
    enum tern_scales scales;
};

/* The columns of panel p of a register tile that exist. */
ALWAYS __mmask16 lanes_of(int cols, int p)
{
    const int left = cols - p * TERN_PANEL;
    return (__mmask16)(left >= TERN_PANEL ? 0xFFFFu : left > 0 ? (1u << left) - 1u : 0u);
}

/* Rows [r, r + rows) times `panels` panels from number p0 on, of which `cols` columns exist. */
static void one_tile(const struct range *g, int r, int rows, int p0, int panels, int cols)
{
    float chain[TILE * WIDTH * TERN_PANEL] __attribute__((aligned(64)));
    float *y = g->y + (size_t)r * g->y_stride + p0 * TERN_PANEL;
    struct operands o = g->o;
    rows = rows < TILE ? rows : TILE;
    o.x += (size_t)(r / TERN_BAND) * (size_t)g->all_steps;
    o.row = r % TERN_BAND;
    o.w += (size_t)p0 * (size_t)o.steps;
    if (g->first || rows < TILE)
        memset(chain, 0, sizeof chain);
    for (int i = 0; i < rows && !g->first; i++)
        for (int p = 0; p < panels; p++)
            _mm512_store_ps(chain + (i * WIDTH + p) * TERN_PANEL,
                            _mm512_maskz_loadu_ps(lanes_of(cols, p), y + (size_t)i * g->y_stride + p * TERN_PANEL));
    tile_for(panels, g->scales)(&o, chain);
    for (int i = 0; i < rows; i++)
        for (int p = 0; p < panels; p++)
            _mm512_mask_storeu_ps(y + (size_t)i * g->y_stride + p * TERN_PANEL, lanes_of(cols, p),
                                  _mm512_load_ps(chain + (i * WIDTH + p) * TERN_PANEL));
}

static void product(float *y, size_t y_stride, const uint16_t *x, int n_rows, const struct tern_packed *w, int panel0,
                    int panel1, void *scratch)
{
    const struct tern_panel_layout l = tern_panel_layout(w);
    expand_fn *const fill = expander(w);
    const int steps = w->k / TERN_BLOCK, ranges = (steps + RANGE_STEPS - 1) / RANGE_STEPS;
    const int most = n_rows > ROWS ? PANELS : WIDTH; /* with few rows nothing is used again, and L1 holds three */
    const int longest = (steps + ranges - 1) / ranges;
    struct block *weights = scratch;
    struct range g = {.y_stride = y_stride, .all_steps = steps, .scales = w->scales};
    g.o.w = weights;
    g.o.zero = (tern_scales_zero(w->scales) ? w->zero : 0) + (tern_codes_signed(w->codes) ? 128 : 0);
    for (int p0 = panel0; p0 < panel1; p0 += most) {
        const int panels = panel1 - p0 < most ? panel1 - p0 : most;
        g.y = y + (size_t)p0 * TERN_PANEL;
        for (int s = 0; s < steps; s += g.o.steps) {
            g.o.steps = steps - s < longest ? steps - s : longest;
            g.o.x = (const struct step *)(const void *)x + s;
            g.first = s == 0;
            for (int p = 0; p < panels; p++) {
                const struct tern_panel_view v = tern_panel_view(w, &l, p0 + p);
                fill(weights + p * g.o.steps, &v, s, g.o.steps);
            }
            for (int r0 = 0; r0 < n_rows; r0 += ROWS)
                for (int p = 0; p < panels; p += WIDTH)
                    for (int r = r0; r < n_rows && r < r0 + ROWS; r += TILE)
                        one_tile(&g, r, n_rows - r, p, panels - p < WIDTH ? panels - p : WIDTH,
                                 w->n - (p0 + p) * TERN_PANEL);
        }
    }
}

void tern_prompt8_init_avx512(struct tern_prompt_kernels *k)
{
    *k = (struct tern_prompt_kernels){pack, product, band, false, WIDTH};
}

/* The bf16 class on AMX tiles.
 *
 * The work is a sequence of stages: up to PANELS panels by up to STEPS tiles of inputs.  In a stage two panels after
 * the other are dequantised into tiles and then multiplied with all bands of 32 rows.  A unit is one band times two
 * panels: four tiles of sums, and per 32 inputs four loads for four products.  Between stages the sums rest in scratch
 * memory as f32, the tiles of a unit one after another (rows of y are often a power of two apart, which caches take
 * badly).  Neither loading nor storing them rounds, so no cut shows in the result.
 *
 * Of a network's gate and up (`gated`) a unit has one panel each, and while the next one is multiplied, its results are
 * gated, rounded and written as the last product reads them: instead of 256 bytes of results, 64, and nothing of it is
 * read again as floats.
 *
 * Counts for 32 inputs of a unit, in cycles of the tile unit: 4 products = 64; 4 loads of 1 KB = 32 where they come
 * from L1, which the products hide.  The weights of two panels (40 KB) are written to L1 and stay there for all bands;
 * a stage's activations (2 KB per band and step, 640 KB for 512 rows: L2) stream past them, by loads that leave L1
 * alone.  Dequantisation is some 24 vector instructions per four inputs of a panel (half of them rounding and pairing)
 * on two ports, 110 cycles per tile of 512 weights beside 512 for its products with 512 rows; it stands by itself, for
 * between tile products it takes as long (decision 068).  What the next two panels are read from is asked
 * into L2 while these are multiplied.  Sums: 4 loads and 4 stores of 1 KB = 100 cycles per unit of 1280; 576 and 640
 * inputs need none. */
#include "kernel/amx/tile.h"
#include "kernel/avx512bf16/pack.h"
#include "kernel/attn.h"

#include <limits.h>
#include <string.h>

#define PAIR   (2 * TERN_TILE) /* values of two tiles side by side: two panels, or the rows of a band */
#define STEPS  20
#define PANELS 16
#define PASS   512 /* rows that share a pass over the weights: their activations and sums stay in L2 */

#define TILE_SUMS (TERN_TILE_ROWS * TERN_PANEL)

/* Scratch: weights of two panels of a stage, then the sums of PASS rows and one group of panels. */
#define TILE_BYTES (STEPS * PAIR * sizeof(uint16_t))
#define SUM_BYTES  (PASS * PANELS * TERN_PANEL * sizeof(float))
_Static_assert(TILE_BYTES + SUM_BYTES <= TERN_PROMPT_SCRATCH, "scratch is large enough");

struct matrix {
    const struct tern_packed *w;
    struct tern_panel_layout l;
    tern_bf16_expand *expand;
    size_t step_bytes; /* of packed codes */
};

/* One call of `product`, or of `gated`: there panels take turns, one of gate and one of up, so that a unit's four tiles
 * are both, for the same 16 outputs. */
struct call {
    float *y;
    size_t y_stride;
    uint16_t *out; /* of gated; NULL: results go to y */
    bool gelu;
    const uint16_t *x;
    int n_rows;
    struct matrix of[2];
    int matrices;
    float *sums;           /* [band][pair of panels][4 tiles], of the stages so far */
    int n_panels, n_steps; /* ends of the ranges */
    int max_steps;         /* of a stage */
};

struct stage {
    int panel, step; /* first */
    int panels, steps;
};

/* ---- weights ---- */

/* Two panels of a stage, or one: the stage's from `panel` on. */
struct pair {
    int panel, panels;
    int step, steps;
};

static const struct matrix *matrix_at(const struct call *c, int panel)
{
    return &c->of[panel % c->matrices];
}

/* Tiles [step][2] of a pair. */
static void expand_pair(const struct call *c, const struct pair *p, uint16_t *out)
{
    for (int i = 0; i < p->panels; i++) {
        const struct matrix *m = matrix_at(c, p->panel + i);
        for (int s = 0; s < p->steps; s++)
            m->expand(out + (size_t)(2 * s + i) * TERN_TILE, m->w, &m->l, (p->panel + i) / c->matrices, p->step + s);
    }
}

/* What is to be asked into L2. */
struct wish {
    const char *at, *end;
};

static void ask_for(struct wish *w, int lines)
{
    for (; lines > 0 && w->at < w->end; lines--, w->at += 64)
        __builtin_prefetch(w->at, 0, 2);
}

/* Asks for the scales of panel i of a pair, and says where its codes are. */
static struct wish codes_of(const struct call *c, const struct pair *p, int i)
{
    const struct matrix *m = matrix_at(c, p->panel + i);
    const char *panel = (const char *)m->w->data + (size_t)((p->panel + i) / c->matrices) * m->w->panel_bytes;
    const size_t regions[] = {m->l.d, m->l.m, m->l.a, m->l.b, 0};
    for (int r = 0; r < 4 && regions[r]; r++) {
        const size_t bytes = (regions[r + 1] ? regions[r + 1] : m->l.bytes) - regions[r];
        struct wish scales = {panel + regions[r] + bytes * (size_t)p->step / (size_t)c->n_steps,
                              panel + regions[r] + bytes * (size_t)(p->step + p->steps) / (size_t)c->n_steps};
        ask_for(&scales, INT_MAX);
    }
    panel += (size_t)p->step * m->step_bytes;
    return (struct wish){panel, panel + (size_t)p->steps * m->step_bytes};
}

/* ---- what becomes of gate and up ---- */

/* Rows [at, end) of a unit of gate (left) and up, as its tiles were stored, on their way into 16 columns of a band. */
struct gating {
    const float *sums;
    uint16_t *out; /* of the band's row 0 */
    int at, end;
    bool gelu;
};

static inline __attribute__((always_inline)) void gate_some(struct gating *g, int n)
{
    for (; n > 0 && g->at < g->end; n--, g->at++) {
        const float *gate = g->sums + g->at / TERN_TILE_ROWS * 2 * TILE_SUMS + g->at % TERN_TILE_ROWS * TERN_PANEL;
        tile_gate(g->out + g->at * TERN_TILE_DEPTH, gate, gate + TILE_SUMS, g->gelu);
    }
}

/* ---- one unit ---- */

struct operands {
    const uint16_t *x, *w; /* [steps][2] tiles each */
    int steps;
    struct wish codes[2]; /* of the next pair, `lines` cache lines per step */
    int lines;
    /* Where a whole unit's results will go, rows y_bytes apart, so many of them asked for per step; NULL: elsewhere. */
    const char *y;
    size_t y_bytes;
    int rows;
    const char *sums;      /* of the next unit, as many times 128 bytes asked for per step; NULL: none */
    struct gating *gating; /* of the unit before, so many rows per step; NULL: none */
};

/* Four tiles of sums in memory, distances in floats: rows of a tile, tile to its right, tile below. */
struct sums {
    float *p; /* NULL: zeros */
    size_t stride, right, below;
};

static struct sums sums_in_rows(float *y, size_t y_stride)
{
    return (struct sums){y, y_stride, TERN_PANEL, TERN_TILE_ROWS * y_stride};
}

/* One after another: SUMS floats. */
static struct sums sums_in_tiles(float *p)
{
    return (struct sums){p, TERN_PANEL, TILE_SUMS, 2 * TILE_SUMS};
}

#define OPERAND(stays, t, p)       \
    do {                           \
        if (stays)                 \
            TILE_LOAD(t, p, 64);   \
        else                       \
            TILE_STREAM(t, p, 64); \
    } while (0)

/* to[rows*16][panels*16] = from + x . w; rows and panels (1 or 2) are constant, and whether w stays in L1 for the units
 * that follow, or else x. */
static inline __attribute__((always_inline)) void unit(struct operands *o, const struct sums *from,
                                                       const struct sums *to, int rows, int panels, bool w_stays)
{
    const size_t in = from->stride * sizeof *from->p, out = to->stride * sizeof *to->p;
    const uint16_t *x = o->x, *w = o->w;
    const char *y = o->y, *y_end = y ? y + TERN_BAND * o->y_bytes : y;
    const char *sums = o->sums, *sums_end = sums ? sums + 4 * TILE_SUMS * sizeof(float) : sums;
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
    if (from->p) {
        TILE_LOAD(0, from->p, in);
        if (panels == 2)
            TILE_LOAD(1, from->p + from->right, in);
        if (rows == 2)
            TILE_LOAD(2, from->p + from->below, in);
        if (rows == 2 && panels == 2)
            TILE_LOAD(3, from->p + from->below + from->right, in);
    }
    for (int s = o->steps; s > 0; s--, x += PAIR, w += PAIR) {
        OPERAND(w_stays, 6, w);
        if (panels == 2)
            OPERAND(w_stays, 7, w + TERN_TILE);
        OPERAND(!w_stays, 4, x);
        if (rows == 2)
            OPERAND(!w_stays, 5, x + TERN_TILE);
        TILE_PRODUCT(0, 4, 6);
        if (panels == 2)
            TILE_PRODUCT(1, 4, 7);
        if (rows == 2)
            TILE_PRODUCT(2, 5, 6);
        if (rows == 2 && panels == 2)
            TILE_PRODUCT(3, 5, 7);
        ask_for(&o->codes[0], o->lines);
        ask_for(&o->codes[1], o->lines);
        for (int i = 0; i < o->rows && y < y_end; i++, y += o->y_bytes) {
            __builtin_prefetch(y, 1, 3);
            __builtin_prefetch(y + 64, 1, 3);
        }
        for (int i = 0; i < o->rows && sums < sums_end; i++, sums += 128) {
            __builtin_prefetch(sums, 1, 3);
            __builtin_prefetch(sums + 64, 1, 3);
        }
        if (o->gating)
            gate_some(o->gating, o->rows);
    }
    TILE_STORE(0, to->p, out);
    if (panels == 2)
        TILE_STORE(1, to->p + to->right, out);
    if (rows == 2)
        TILE_STORE(2, to->p + to->below, out);
    if (rows == 2 && panels == 2)
        TILE_STORE(3, to->p + to->below + to->right, out);
}

typedef void unit_fn(struct operands *o, const struct sums *from, const struct sums *to);

#define X(rows, panels)                                                                                     \
    static void unit_##rows##_##panels(struct operands *o, const struct sums *from, const struct sums *to)  \
    {                                                                                                       \
        unit(o, from, to, rows, panels, true);                                                              \
    }                                                                                                       \
    static void small_##rows##_##panels(struct operands *o, const struct sums *from, const struct sums *to) \
    {                                                                                                       \
        unit(o, from, to, rows, panels, false);                                                             \
    }
X(1, 1)
X(1, 2)
X(2, 1)
X(2, 2)
#undef X

/* The unit for so many rows and columns that exist. */
static unit_fn *unit_for(int rows, int cols)
{
    static unit_fn *const units[2][2] = {{unit_1_1, unit_1_2}, {unit_2_1, unit_2_2}};
    return units[rows > TERN_TILE_ROWS][cols > TERN_PANEL];
}

/* The same for small products. */
static unit_fn *small_for(int rows, int cols)
{
    static unit_fn *const units[2][2] = {{small_1_1, small_1_2}, {small_2_1, small_2_2}};
    return units[rows > TERN_TILE_ROWS][cols > TERN_PANEL];
}

/* Copies the rows and columns that exist between y and tiles one after another. */
static void copy_edge(float *y, size_t y_stride, float *tiles, int rows, int cols, bool to_y)
{
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c += TERN_PANEL) {
            size_t bytes = (size_t)(cols - c < TERN_PANEL ? cols - c : TERN_PANEL) * sizeof *y;
            float *a = y + (size_t)r * y_stride + c;
            float *b = tiles + (r / TERN_TILE_ROWS * 2 + c / TERN_PANEL) * TILE_SUMS + r % TERN_TILE_ROWS * TERN_PANEL;
            memcpy(to_y ? a : b, to_y ? b : a, bytes);
        }
}

/* A unit whose results go to y; from: tiles, zeros, or y itself.  Where tiles reach beyond the last row or column, y is
 * replaced by memory of our own. */
static void unit_to_rows(unit_fn *fn, struct operands *o, const struct sums *from, float *y, size_t y_stride, int rows,
                         int cols)
{
    if (rows % TERN_TILE_ROWS == 0 && cols % TERN_PANEL == 0) {
        struct sums to = sums_in_rows(y, y_stride);
        fn(o, from, &to);
        return;
    }
    float edge[4 * TILE_SUMS] __attribute__((aligned(64))) = {0};
    struct sums to = sums_in_tiles(edge);
    if (from->p && from->p == y) {
        copy_edge(y, y_stride, edge, rows, cols, false);
        from = &to;
    }
    fn(o, from, &to);
    copy_edge(y, y_stride, edge, rows, cols, true);
}

/* ---- stages ---- */

/* The last stage of a unit of `gated`, in which what the unit before left is gated: all of it before the last step, so
 * that the sums of both are at one place, which stays in L1. */
static void unit_gated(const struct call *c, struct operands *o, const struct sums *from, int band, int pair, int rows,
                       float own[4 * TILE_SUMS])
{
    const struct sums to = sums_in_tiles(own);
    uint16_t *out = c->out + (size_t)band * tern_bf16_band(c->of[0].w->n) + (size_t)(pair / 2) * PAIR;
    o->y = pair % 2 == 0 ? (const char *)out : NULL;
    unit_for(rows, 2 * TERN_PANEL)(o, from, &to);
    *o->gating = (struct gating){.sums = own,
                                 .out = out + pair % 2 * TERN_PANEL,
                                 .end = rows > TERN_TILE_ROWS ? TERN_BAND : TERN_TILE_ROWS,
                                 .gelu = c->gelu};
}

/* All rows times a pair of stage s whose weights lie in o->w. */
static void multiply_pair(const struct call *c, const struct stage *s, const struct pair *p, struct operands *o,
                          float gated[4 * TILE_SUMS])
{
    const size_t band_values = tern_bf16_band(c->of[0].w->k), unit_sums = PANELS / 2 * 4 * TILE_SUMS;
    const int bands = (c->n_rows + TERN_BAND - 1) / TERN_BAND;
    const int n0 = p->panel * TERN_PANEL, left = c->of[0].w->n * c->matrices - n0;
    const int cols = left < p->panels * TERN_PANEL ? left : p->panels * TERN_PANEL;
    const bool first = p->step == 0, last = p->step + p->steps == c->n_steps;
    float *sums = c->sums + (size_t)(p->panel - s->panel) / 2 * 4 * TILE_SUMS;
    for (int b = 0; b < bands; b++, sums += unit_sums) {
        const int r0 = b * TERN_BAND, rows = c->n_rows - r0 < TERN_BAND ? c->n_rows - r0 : TERN_BAND;
        const struct sums from = sums_in_tiles(first ? NULL : sums), to = sums_in_tiles(sums);
        float *y = c->out ? NULL : c->y + (size_t)r0 * c->y_stride + n0;
        o->x = c->x + (size_t)b * band_values + (size_t)p->step * PAIR;
        o->y = last && rows == TERN_BAND && cols == 2 * TERN_PANEL ? (const char *)y : NULL;
        o->sums = (!first || !last) && b + 1 < bands ? (const char *)(sums + unit_sums) : NULL;
        if (last && c->out)
            unit_gated(c, o, &from, b, p->panel / 2, rows, gated);
        else if (last)
            unit_to_rows(unit_for(rows, cols), o, &from, y, c->y_stride, rows, cols);
        else
            unit_for(rows, cols)(o, &from, &to);
    }
}

static struct pair pair_at(const struct stage *s, int at)
{
    const int left = s->panels - at;
    return (struct pair){s->panel + at, left < 2 ? left : 2, s->step, s->steps};
}

/* All rows times a stage; `next` is the one after it, without panels behind the last. */
static void multiply_stage(const struct call *c, const struct stage *s, const struct stage *next, uint16_t *tiles)
{
    const int bands = (c->n_rows + TERN_BAND - 1) / TERN_BAND;
    float gated[4 * TILE_SUMS] __attribute__((aligned(64)));
    struct gating gating = {0};
    struct operands o = {.w = tiles, .steps = s->steps, .rows = (TERN_BAND + s->steps - 1) / s->steps};
    o.y_bytes = c->out ? TERN_TILE_DEPTH * sizeof *c->out : c->y_stride * sizeof *c->y;
    o.gating = s->step + s->steps == c->n_steps && c->out ? &gating : NULL;
    o.lines = ((int)c->of[0].step_bytes / 64 + bands - 1) / bands;
    for (int at = 0; at < s->panels; at += 2) {
        const struct pair p = pair_at(s, at), then = at + 2 < s->panels ? pair_at(s, at + 2) : pair_at(next, 0);
        expand_pair(c, &p, tiles);
        for (int i = 0; i < 2; i++)
            o.codes[i] = i < then.panels ? codes_of(c, &then, i) : (struct wish){0};
        multiply_pair(c, s, &p, &o, gated);
    }
    gate_some(&gating, INT_MAX);
}

/* The stage at s->panel, s->step as large as it may be; false behind the last. */
static bool size_stage(const struct call *c, struct stage *s)
{
    s->panels = c->n_panels - s->panel < PANELS ? c->n_panels - s->panel : PANELS;
    s->steps = c->n_steps - s->step < c->max_steps ? c->n_steps - s->step : c->max_steps;
    return s->panels > 0;
}

static bool next_stage(const struct call *c, struct stage *s)
{
    s->step += s->steps;
    if (s->step == c->n_steps) {
        s->step = 0;
        s->panel += s->panels;
    }
    return size_stage(c, s);
}

/* All stages for the rows of c. */
static void all_stages(const struct call *c, int panel0, uint16_t *tiles)
{
    struct stage s = {.panel = panel0}, next;
    for (bool more = size_stage(c, &s); more; s = next) {
        next = s;
        more = next_stage(c, &next);
        multiply_stage(c, &s, &next, tiles);
    }
}

static struct matrix matrix_of(const struct tern_packed *w)
{
    return (struct matrix){w, tern_panel_layout(w), tile_expander(w),
                           tern_codes_unit(w->codes) * (tern_codes_float(w->codes) ? TERN_TILE_DEPTH : 1)};
}

/* n_rows rows of x in passes; c: all that is not of one pass, its y and out those of the first row. */
static void all_passes(struct call *c, const uint16_t *x, int n_rows, int panel0, void *scratch)
{
    /* Equal passes, equal stages. */
    const int passes = (n_rows + PASS - 1) / PASS, bands = (n_rows + TERN_BAND - 1) / TERN_BAND;
    const int rows = (bands + passes - 1) / passes * TERN_BAND, k = c->of[0].w->k;
    c->n_steps = (k + TERN_TILE_DEPTH - 1) / TERN_TILE_DEPTH;
    const int stages = (c->n_steps + STEPS - 1) / STEPS;
    c->sums = (float *)scratch + TILE_BYTES / sizeof(float);
    c->max_steps = (c->n_steps + stages - 1) / stages;
    tile_begin();
    for (int r = 0; r < n_rows; r += rows) {
        c->x = x + (size_t)(r / TERN_BAND) * tern_bf16_band(k);
        c->n_rows = n_rows - r < rows ? n_rows - r : rows;
        all_stages(c, panel0, scratch);
        if (c->out)
            c->out += (size_t)(rows / TERN_BAND) * tern_bf16_band(c->of[0].w->n);
        else
            c->y += (size_t)rows * c->y_stride;
    }
    tile_end();
}

static void product(float *y, size_t y_stride, const uint16_t *x, int n_rows, const struct tern_packed *w, int panel0,
                    int panel1, void *scratch)
{
    struct call c = {.y = y, .y_stride = y_stride, .of = {matrix_of(w)}, .matrices = 1, .n_panels = panel1};
    all_passes(&c, x, n_rows, panel0, scratch);
}

static void gated(uint16_t *out, const uint16_t *x, int n_rows, const struct tern_packed *gate,
                  const struct tern_packed *up, bool gelu, int panel0, int panel1, void *scratch)
{
    struct call c = {
        .out = out, .gelu = gelu, .of = {matrix_of(gate), matrix_of(up)}, .matrices = 2, .n_panels = 2 * panel1};
    all_passes(&c, x, n_rows, 2 * panel0, scratch);
}

/* ---- small products ---- */

static void shrink_row(float *restrict y, float by, int n)
{
    for (int j = 0; j < n; j++)
        y[j] *= by;
}

static void multiply(float *y, size_t y_stride, const float *shrink, const uint16_t *x, int n_rows, const uint16_t *m,
                     int k, int n)
{
    const size_t band = tern_bf16_band(k);
    struct operands o = {.steps = (k + TERN_TILE_DEPTH - 1) / TERN_TILE_DEPTH};
    for (int r = 0; r < n_rows && shrink; r++)
        if (shrink[r] != 1.0f)
            shrink_row(y + (size_t)r * y_stride, shrink[r], n);
    for (int r = 0; r < n_rows; r += TERN_BAND, x += band) {
        int rows = n_rows - r < TERN_BAND ? n_rows - r : TERN_BAND;
        o.x = x;
        o.w = m;
        for (int c = 0; c < n; c += 2 * TERN_PANEL, o.w += band) {
            float *at = y + (size_t)r * y_stride + c;
            struct sums from = shrink ? sums_in_rows(at, y_stride) : sums_in_tiles(NULL);
            const int cols = n - c < 2 * TERN_PANEL ? n - c : 2 * TERN_PANEL;
            unit_to_rows(small_for(rows, cols), &o, &from, at, y_stride, rows, cols);
        }
    }
}

/* Both steps of a whole band stay in four tiles for all pages: two loads for four products. */
static void score_64(float *s, size_t stride, const uint16_t *x, const uint16_t *keys, int n_pages)
{
    const size_t out = TERN_PAGE * sizeof *s;
    TILE_LOAD(4, x, 64);
    TILE_LOAD(5, x + TERN_TILE, 64);
    TILE_LOAD(6, x + PAIR, 64);
    TILE_LOAD(7, x + PAIR + TERN_TILE, 64);
    for (int j = 0; j < n_pages; j++, s += stride)
        for (int c = 0; c < TERN_PAGE; c += TERN_PANEL) {
            /* Panels of a pair take turns within a step of 32 inputs; of pairs there are two steps each. */
            const uint16_t *key = keys + (size_t)(j * TERN_PAGE + c) / (2 * TERN_PANEL) * 2 * PAIR +
                                  (size_t)(c / TERN_PANEL % 2) * TERN_TILE;
            TILE_ZERO(0);
            TILE_ZERO(1);
            TILE_STREAM(2, key, 64);
            TILE_STREAM(3, key + PAIR, 64);
            TILE_PRODUCT(0, 4, 2);
            TILE_PRODUCT(1, 5, 2);
            TILE_PRODUCT(0, 6, 3);
            TILE_PRODUCT(1, 7, 3);
            TILE_STORE(0, s + c, out);
            TILE_STORE(1, s + c + TERN_TILE_ROWS * TERN_PAGE, out);
        }
}

static void score(float *s, size_t stride, const uint16_t *x, int n_rows, const uint16_t *keys, int k, int n_pages)
{
    if (n_rows == TERN_BAND && k == 2 * TERN_TILE_DEPTH) {
        score_64(s, stride, x, keys, n_pages);
        return;
    }
    for (int j = 0; j < n_pages; j++)
        multiply(s + (size_t)j * stride, TERN_PAGE, NULL, x, n_rows, keys + (size_t)j * tern_bf16_right(k, TERN_PAGE),
                 k, TERN_PAGE);
}

static void begin(void)
{
    tile_begin();
}

static void end(void)
{
    tile_end();
}

void tern_bf16_init_amx(struct tern_bf16_kernels *k)
{
    *k = (struct tern_bf16_kernels){pack, pack_right, multiply, begin, end, score, tile_softmax};
}

static size_t band(int k)
{
    return tern_bf16_band(k);
}

void tern_prompt_init_amx(struct tern_prompt_kernels *k)
{
    *k = (struct tern_prompt_kernels){pack, product, band, true, 2, gated};
}

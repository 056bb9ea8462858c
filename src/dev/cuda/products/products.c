/* Products of rows with weights: decode rows by int8 (products.cu), prompt rows by tensor cores or in f32 (gemm.cu). */
#include "dev/cuda/products/products.h"
#include <limits.h>
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/cuda.h"
#include "dev/cuda/experts.h"

#define DENSE_BYTES    ((size_t)128 << 20) /* of weights written out at a time */
#define TILE           128
#define TILE_SHARED    (3 * 2 * TILE * 64 * 2)
#define FEW_UNITS      32  /* of 256 inputs */
#define FLOAT_MANY     128 /* rows by floats that are many */
#define TILE_90        256 /* of columns, on cards of compute capability 9.0 */
#define TILE_90_SHARED (4 * (TILE + TILE_90) * 64 * 2 + 1024)

size_t tern_cuda_q8_bytes(int k)
{
    return tern_round_up((size_t)k, 64) + tern_round_up((size_t)k / 32 * 8, 64);
}

/* Weights written out at a time: any expert has room, whole. */
static size_t dense_bytes(const struct tern_dev_limits *l)
{
    const size_t element = l->exact ? sizeof(float) : sizeof(uint16_t);
    const size_t up = (size_t)l->max_expert_ff * tern_cuda_pitch(l->max_expert_embd) * element,
                 down = (size_t)l->max_expert_embd * tern_cuda_pitch(l->max_expert_ff) * element;
    const size_t expert = l->max_experts ? (up > down ? up : down) : 0;
    return expert > DENSE_BYTES ? expert : DENSE_BYTES;
}

_Static_assert(TERN_CUDA_TILE == TERN_CUDA_LANES, "tiles of pairs are made int8 as several rows are");

int tern_cuda_products_open(struct tern_cuda *d, tern_error *err)
{
    int rc = 0;
    const struct tern_dev_limits *l = &d->limits;
    const size_t rows = (size_t)l->max_rows, narrow = tern_round_up((size_t)l->max_narrow, 2 * TERN_CUDA_LANES);
    size_t q8, k = (size_t)(l->max_k > l->max_stack_k ? l->max_k : l->max_stack_k);
    d->max_k = l->max_k;
    d->q8_rows = l->max_narrow;
    d->q8_row_bytes = tern_cuda_q8_bytes(l->max_k);
    q8 = narrow * d->q8_row_bytes;
    if (l->max_stack) {
        const size_t stack = narrow * (size_t)l->max_stack * tern_cuda_q8_bytes(l->max_stack_k);
        q8 = q8 > stack ? q8 : stack;
    }
    if (l->max_experts) {
        /* Of each pair what comes between, or its input, where that is weighed. */
        const int most = l->max_expert_ff > l->max_expert_embd ? l->max_expert_ff : l->max_expert_embd;
        const size_t rows_of_tiles = narrow * (size_t)l->max_active + TERN_CUDA_TILE * (size_t)l->max_experts;
        const size_t pairs = rows_of_tiles * tern_cuda_q8_bytes(most);
        q8 = q8 > pairs ? q8 : pairs;
        k = k > (size_t)l->max_expert_embd ? k : (size_t)l->max_expert_embd;
        k = k > (size_t)l->max_expert_ff ? k : (size_t)l->max_expert_ff;
    }
    size_t half_rows = rows * (size_t)(l->max_active > 1 ? l->max_active : 1);
    TERN_TRY(tern_cuda_take(d, &d->q8, q8 + TERN_CUDA_Q8_BEHIND, err));
    TERN_TRY(tern_cuda_take(d, &d->half, l->exact ? 0 : half_rows * tern_cuda_pitch((int)k) * 2, err));
    TERN_TRY(tern_cuda_take(d, &d->half_scale, l->exact ? 0 : half_rows * sizeof(float), err));
    TERN_TRY(tern_cuda_chain_open(d, err));
    d->dense_bytes = d->dense_room = dense_bytes(l);
out:
    return rc;
}

/* The kernel that writes weights out in 16 bits, and how many inputs a block of it has. */
static enum tern_cuda_kernel dense_of(const struct tern_cuda_matrix *w, size_t *inputs)
{
    *inputs = 2048;
#define KIND(c, s)                                                  \
    if (w->codes == TERN_CODES_##c && w->scales == TERN_SCALES_##s) \
        return TERN_CUDA_K_dense_##c##_##s;
    TERN_QUANT_KINDS(KIND)
#undef KIND
    *inputs = 256;
    return w->codes == TERN_CODES_F32   ? TERN_CUDA_K_dense_F32
           : w->codes == TERN_CODES_F16 ? TERN_CUDA_K_dense_F16
                                        : TERN_CUDA_K_dense_BF16;
}

void tern_cuda_dense(struct tern_cuda *d, const struct tern_dev_weight *w, int matrix, int n_matrices, int row, int n,
                     tern_cu_address to, size_t pitch, bool f32)
{
    struct tern_cuda_dense_args a = {.w = tern_cuda_matrix_of(w, matrix),
                                     .to = to,
                                     .pitch = pitch,
                                     .matrix_bytes = tern_weight_bytes(&w->form->m),
                                     .to_matrix = (size_t)n * pitch,
                                     .row0 = row,
                                     .n_rows = n};
    const int first = row / TERN_PANEL, last = (row + n - 1) / TERN_PANEL;
    size_t inputs = 512;
    const enum tern_cuda_kernel k = f32 ? TERN_CUDA_K_dense : dense_of(&a.w, &inputs);
    if (n > 0)
        tern_cuda_launch(d, k, (unsigned)((pitch + inputs - 1) / inputs), (unsigned)(last - first + 1),
                         (unsigned)n_matrices, 256, 0, &a, sizeof a);
}

/* ---- decode rows ------------------------------------------------------------------------------------------------- */

/* Several heads of several rows: those of one head lie together, 16 at a time. */
static int head_rows_of(int n_rows)
{
    return (int)tern_round_up((size_t)n_rows, 2 * TERN_CUDA_LANES);
}

static void rows_as(struct tern_cuda *d, enum tern_cuda_kernel kernel, tern_cu_address to, size_t row_bytes,
                    tern_cu_address x, size_t stride, int n_rows, int k, int n_heads, size_t head, int lanes)
{
    const struct tern_cuda_quantize a = {.to = to,
                                         .x = x,
                                         .row_bytes = row_bytes,
                                         .stride = stride,
                                         .head = head,
                                         .k = k,
                                         .n_heads = n_heads,
                                         .row_step = lanes == 1 ? n_heads : 1,
                                         .head_step = lanes == 1 ? 1 : head_rows_of(n_rows),
                                         .lanes = lanes};
    tern_cuda_launch(d, kernel, (unsigned)(n_rows * n_heads), (unsigned)((k + 1023) / 1024), 1, 256, 0, &a, sizeof a);
}

void tern_cuda_quantize_rows(struct tern_cuda *d, tern_cu_address to, size_t row_bytes, tern_cu_address x,
                             size_t stride, int n_rows, int k, int n_heads, size_t head, int lanes)
{
    rows_as(d, TERN_CUDA_K_quantize, to, row_bytes, x, stride, n_rows, k, n_heads, head, lanes);
}

/* The kernel of one row; the next ones are those of several. */
static enum tern_cuda_kernel kernel_of(const struct tern_cuda_matrix *w)
{
#define KIND(c, s)                                                  \
    if (w->codes == TERN_CODES_##c && w->scales == TERN_SCALES_##s) \
        return TERN_CUDA_K_narrow_##c##_##s##_1;
    TERN_NARROW_KINDS(KIND)
#undef KIND
    return w->codes == TERN_CODES_F32    ? TERN_CUDA_K_floats_F32_1
           : w->codes == TERN_CODES_F16  ? TERN_CUDA_K_floats_F16_1
           : w->codes == TERN_CODES_BF16 ? TERN_CUDA_K_floats_BF16_1
                                         : TERN_CUDA_K_floats_E4M3_1;
}

static enum tern_cuda_kernel many_of(const struct tern_cuda_matrix *w)
{
#define KIND(c, s)                                                  \
    if (w->codes == TERN_CODES_##c && w->scales == TERN_SCALES_##s) \
        return TERN_CUDA_K_many_##c##_##s;
    TERN_NARROW_KINDS(KIND)
#undef KIND
    TERN_ASSERT(!"a kind of codes");
    return TERN_CUDA_KERNELS;
}

/* Bytes of 256 inputs of a panel, with their scales where they lie in regions by block. */
static unsigned unit_bytes(const struct tern_cuda_matrix *w)
{
    static const unsigned scales[] = {[TERN_SCALES_F16] = 256,  [TERN_SCALES_F16M] = 512, [TERN_SCALES_K32] = 320,
                                      [TERN_SCALES_K16M] = 320, [TERN_SCALES_K32S] = 160, [TERN_SCALES_K16] = 288,
                                      [TERN_SCALES_G16] = 320,  [TERN_SCALES_G32] = 256,  [TERN_SCALES_G32M] = 1024};
    if (w->codes == TERN_CODES_E4M3)
        return 8 * 512 + 512;
    return 8 * (unsigned)tern_codes_unit((enum tern_codes)w->codes) + scales[w->scales];
}

/* What a block of threads of many.cu has: groups of rows, shares of the sum, and pairs of panels for the rest of its
 * warps. */
struct many {
    int groups, shares;
    unsigned x, y, shared;
    long cost;
};

static struct many many_with(const struct tern_cuda *d, const struct tern_cuda_narrow *a, int n_z, int groups,
                             int shares)
{
    const int pairs = TERN_CUDA_MANY_WARPS / (groups * shares), rows = groups * TERN_CUDA_MANY_ROWS,
              panels = pairs * TERN_CUDA_MANY_PANELS, units = (a->m[0].w.k + 255) / 256,
              steps = a->parts / shares * ((units + a->parts - 1) / a->parts);
    const size_t stage = (size_t)shares *
                         ((size_t)panels * unit_bytes(&a->m[0].w) + (size_t)(rows / 8) * TERN_CUDA_MANY_EIGHT),
                 sums = (size_t)(shares == 1 ? 1 : a->parts) * (size_t)(panels * rows) * TERN_PANEL * sizeof(float);
    struct many m = {.groups = groups,
                     .shares = shares,
                     .x = (unsigned)((a->n_rows + rows - 1) / rows),
                     .y = (unsigned)((a->n_panels + panels - 1) / panels),
                     .shared = (unsigned)(2 * stage + sums)};
    /* Steps of the blocks that a processor has, one after another; what a block begins and ends with is as long as one.
     * Where half of the card has no block, products of 16 rows are faster. */
    const long blocks = (long)m.x * m.y * n_z, turns = (blocks + d->card->processors - 1) / d->card->processors;
    if (a->parts % shares || m.shared > (unsigned)d->card->shared_most || blocks * 2 <= d->card->processors)
        m.cost = LONG_MAX;
    else
        m.cost = turns * (steps + 1);
    return m;
}

/* False where rows are too few for that kernel, or panels, or shared memory is too small. */
static bool many_codes(struct tern_cuda *d, struct tern_cuda_narrow *a, int n_z)
{
    static const int ways[][2] = {{2, 1}, {1, 1}, {1, 4}};
    struct many best = {.cost = LONG_MAX};
    for (int i = 0; i < 3 && a->n_rows > 2 * TERN_CUDA_LANES; i++) {
        const struct many m = many_with(d, a, n_z, ways[i][0], ways[i][1]);
        if (m.cost < best.cost)
            best = m;
    }
    if (best.cost == LONG_MAX)
        return false;
    a->groups = best.groups;
    a->shares = best.shares;
    tern_cuda_launch(d, many_of(&a->m[0].w), best.x, best.y, (unsigned)n_z, TERN_CUDA_MANY_WARPS * 32, best.shared, a,
                     sizeof *a);
    return true;
}

/* 9 to 16 rows: the kernel whose rows are resident, the next one is that of long rows; bytes of two panels' first and
 * second half of a unit together, without the minima that only the first one needs; what rows bring of a unit; 0: no
 * such kernel.  least: units of panels that a processor has to have: with fewer, loading rows takes longer than is won.
 */
struct pairs {
    enum tern_cuda_kernel kernel;
    unsigned weights, rows;
    int least;
};

static struct pairs pairs_of(const struct tern_cuda_matrix *w)
{
    static const unsigned scales[] = {
        [TERN_SCALES_F16] = 256, [TERN_SCALES_F16M] = 512, [TERN_SCALES_K32] = 352, [TERN_SCALES_K16] = 320};
    struct pairs p = {.kernel = TERN_CUDA_KERNELS};
#define KIND(c, s)                                                  \
    if (w->codes == TERN_CODES_##c && w->scales == TERN_SCALES_##s) \
        p.kernel = TERN_CUDA_K_pairs_##c##_##s;
    TERN_CUDA_PAIRS_KINDS(KIND)
#undef KIND
    if (p.kernel == TERN_CUDA_KERNELS || w->k % 256)
        return (struct pairs){.weights = 0};
    const bool minima = w->scales == TERN_SCALES_K32 || w->scales == TERN_SCALES_F16M;
    p.weights = 2 * (8 * (unsigned)tern_codes_unit((enum tern_codes)w->codes) + scales[w->scales]);
    p.rows = 2 * TERN_CUDA_PAIRS_ROWS + (minima ? TERN_CUDA_PAIRS_SUMS : 0);
    p.least = minima ? 150 : 100;
    return p;
}

/* 16 rows at a time, a block on each processor.  False where shared memory is too small, or work too little. */
static bool pair_codes(struct tern_cuda *d, struct tern_cuda_narrow *a, int n_z)
{
    const struct pairs p = pairs_of(&a->m[0].w);
    const unsigned parts = (unsigned)a->parts, most = (unsigned)d->card->shared_most,
                   units = (unsigned)a->m[0].w.k / 256,
                   own = parts * (2 * TERN_CUDA_PAIRS_LEFT + TERN_CUDA_PAIRS_DEPTH * p.weights),
                   resident = own + units * (2 * TERN_CUDA_PAIRS_ROWS + TERN_CUDA_PAIRS_SUMS),
                   streamed = own + parts * TERN_CUDA_PAIRS_DEPTH * p.rows;
    const int x = (a->n_rows + 15) / 16, slots = d->card->processors / (x * n_z),
              y = a->n_panels < slots ? a->n_panels : slots;
    const int64_t each = (int64_t)a->n_panels * units * x * n_z / d->card->processors;
    /* Or long panels, one to a processor at most: by one row's way it would have half as many warps. */
    const bool few = a->n_panels * x * n_z <= d->card->processors && units >= FEW_UNITS;
    if (!p.weights || a->n_rows <= TERN_CUDA_LANES || (each < p.least && !few) || (resident > most && streamed > most))
        return false;
    tern_cuda_launch(d, (enum tern_cuda_kernel)((int)p.kernel + (resident > most)), (unsigned)x, (unsigned)(y ? y : 1),
                     (unsigned)n_z, parts * 64, resident > most ? streamed : resident, a, sizeof *a);
    return true;
}

/* The parts of a panel's sum, and all products' panels one after the other. */
static void lay_out(struct tern_cuda_narrow *a)
{
    const struct tern_cuda_matrix *w = &a->m[0].w;
    const bool floats = tern_codes_float((enum tern_codes)w->codes);
    const int units = floats ? w->k / TERN_CUDA_FLOAT_UNIT : (w->k + 255) / 256;
    a->n_panels = 0;
    a->parts = floats ? TERN_CUDA_FLOAT_PARTS : 8; /* by the length alone: it settles the order of sums */
    while (a->parts > units && a->parts > 1)
        a->parts /= 2;
    for (int i = 0; i < a->n_m; i++) {
        a->m[i].panel0 = a->n_panels;
        a->n_panels += (a->m[i].w.n + TERN_PANEL - 1) / TERN_PANEL;
    }
}

/* Blocks of one to so many rows that a processor has room for, of `most` with eight warps each; of short panels they
 * have fewer.  beside: static shared memory of theirs, and 1 KiB that is the card's. */
static int blocks_of(const struct tern_cuda *d, const struct tern_cuda_narrow *a, unsigned shared, int most, int beside)
{
    const int fit = (d->card->shared_most + 1024) / ((int)shared + beside), warps = most * 8 / a->parts;
    return fit < 1 ? 1 : fit < warps ? fit : warps;
}

static unsigned ring_bytes(const struct tern_cuda_narrow *a)
{
    const unsigned bytes = unit_bytes(&a->m[0].w);
    return (unsigned)a->parts * TERN_CUDA_RING_DEPTH(bytes) * bytes;
}

/* A warp for each part of a panel; as many blocks of them as the card holds at once go from panel to panel. */
static void narrow_codes(struct tern_cuda *d, struct tern_cuda_narrow *a, int n_z, bool one)
{
    if (!one && a->m[0].w.codes != TERN_CODES_E4M3 && (many_codes(d, a, n_z) || pair_codes(d, a, n_z)))
        return;
    const struct tern_cuda_matrix *w = &a->m[0].w;
    const unsigned shared = ring_bytes(a);
    const int groups = one ? 0 : a->n_rows > TERN_CUDA_LANES ? 2 : 1;
    const int x = one ? a->n_rows : (a->n_rows + 8 * groups - 1) / (8 * groups);
    const int each = blocks_of(d, a, shared, one ? TERN_CUDA_RING_BLOCKS(w->codes, w->scales) : 2, one ? 2048 : 9216),
              slots = each * d->card->processors / (x * n_z);
    const int y = a->n_panels < slots ? a->n_panels : slots;
    tern_cuda_launch(d, (enum tern_cuda_kernel)((int)kernel_of(w) + groups), (unsigned)x, (unsigned)(y ? y : 1),
                     (unsigned)n_z, (unsigned)a->parts * 32, shared, a, sizeof *a);
}

/* Several rows by eight-bit floats: as many at a time as scratch of a product holds split up. */
static void narrow_eights(struct tern_cuda *d, const struct tern_cuda_narrow *all, int n_z)
{
    const size_t bytes = TERN_CUDA_SPLIT_BYTES((size_t)all->m[0].w.k), held = d->dense_bytes / (bytes * (size_t)n_z);
    const int most = held > INT_MAX / 2 ? INT_MAX / 2 : (int)held / (2 * TERN_CUDA_LANES) * (2 * TERN_CUDA_LANES);
    TERN_ASSERT(most > 0);
    for (int row = 0; row < all->n_rows; row += most) {
        struct tern_cuda_narrow a = *all;
        a.n_rows = all->n_rows - row < most ? all->n_rows - row : most;
        a.head_rows = head_rows_of(a.n_rows);
        a.q8 = d->dense;
        a.row_bytes = bytes;
        a.x += (size_t)row * a.x_stride * sizeof(float);
        for (int i = 0; i < a.n_m; i++)
            a.m[i].y += (size_t)row * a.m[i].y_stride * sizeof(float);
        rows_as(d, TERN_CUDA_K_split, a.q8, bytes, a.x, a.x_stride, a.n_rows, a.m[0].w.k, n_z, a.x_head,
                TERN_CUDA_LANES);
        narrow_codes(d, &a, n_z, false);
    }
}

static void narrow_floats(struct tern_cuda *d, const struct tern_cuda_narrow *a, int n_z, bool one)
{
    const bool many = !one && a->n_rows >= FLOAT_MANY;
    const int rows = one                                 ? 1
                     : !many                             ? 4
                     : a->m[0].w.codes == TERN_CODES_F32 ? 16
                                                         : 8,
              warps = many && a->parts > TERN_CUDA_FLOAT_PARTS / 2 ? TERN_CUDA_FLOAT_PARTS / 2 : a->parts;
    tern_cuda_launch(d, (enum tern_cuda_kernel)((int)kernel_of(&a->m[0].w) + !one + many),
                     (unsigned)((a->n_rows + rows - 1) / rows), (unsigned)a->n_panels, (unsigned)n_z,
                     (unsigned)warps * 32, 0, a, sizeof *a);
}

static enum tern_cuda_kernel tiles_of(int codes, int scales)
{
#define KIND(c, s)                                            \
    if (codes == TERN_CODES_##c && scales == TERN_SCALES_##s) \
        return TERN_CUDA_K_tiles_##c##_##s;
    TERN_NARROW_KINDS(KIND)
#undef KIND
    return TERN_CUDA_KERNELS;
}

bool tern_cuda_has_tiles(const struct tern_packed *m)
{
    return tiles_of(m->codes, m->scales) != TERN_CUDA_KERNELS;
}

void tern_cuda_tiles(struct tern_cuda *d, struct tern_cuda_narrow *a, int tiles, int expected)
{
    const struct tern_cuda_matrix *w = &a->m[0].w;
    lay_out(a);
    a->per_row = a->n_heads = 1;
    const unsigned shared = ring_bytes(a);
    const int slots = blocks_of(d, a, shared, 2, 9216) * d->card->processors, each = (slots + expected - 1) / expected,
              y = a->n_panels < each ? a->n_panels : each;
    tern_cuda_launch(d, tiles_of((int)w->codes, (int)w->scales), (unsigned)tiles, (unsigned)y, 1,
                     (unsigned)a->parts * 32, shared, a, sizeof *a);
}

void tern_cuda_narrow(struct tern_cuda *d, struct tern_cuda_narrow *a, int n_z)
{
    const struct tern_cuda_matrix *w = &a->m[0].w;
    const bool floats = tern_codes_float((enum tern_codes)w->codes), one = a->n_rows == 1 || a->ids;
    lay_out(a);
    if (!a->per_row)
        a->per_row = 1;
    if (!a->n_heads)
        a->n_heads = 1;
    a->head_rows = head_rows_of(a->n_rows);
    if (floats)
        narrow_floats(d, a, n_z, one);
    else if (w->codes == TERN_CODES_E4M3 && !one)
        narrow_eights(d, a, n_z);
    else
        narrow_codes(d, a, n_z, one);
}

bool tern_cuda_alike(const struct tern_packed *a, const struct tern_packed *b)
{
    return a->codes == b->codes && a->scales == b->scales && a->k == b->k && a->group == b->group &&
           (!a->group || (a->d_type == b->d_type && a->m_type == b->m_type));
}

static struct tern_cuda_product product_of(const struct tern_matmul *m, int row0)
{
    return (struct tern_cuda_product){.w = tern_cuda_matrix_of(m->w, 0),
                                      .y = tern_cuda_rows_at(m->y) + (size_t)row0 * m->y.stride * sizeof(float),
                                      .y_stride = m->y.stride,
                                      .bias = tern_cuda_vec_at(m->bias)};
}

static void decode_rows(struct tern_cuda *d, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                        int n_wide)
{
    const tern_cu_address at = tern_cuda_rows_at(x);
    const size_t from = (size_t)n_wide * x.stride * sizeof(float);
    bool done[TERN_CUDA_PRODUCTS] = {false}, integer = false;
    for (int i = 0; i < n_m; i++)
        integer |= tern_codes_integer(m[i].w->form->m.codes);
    if (integer && (d->quantized.x != at || d->quantized.k != m[0].w->k || n_wide || d->quantized.n < n_rows ||
                    tern_cuda_lanes(d->quantized.n) != tern_cuda_lanes(n_rows))) {
        d->quantized.x = 0;
        tern_cuda_quantize_rows(d, d->q8, d->q8_row_bytes, at + from, x.stride, n_rows - n_wide, m[0].w->k, 1, 0,
                                tern_cuda_lanes(n_rows - n_wide));
    }
    for (int i = 0; i < n_m; i++) {
        struct tern_cuda_narrow a = {.q8 = d->q8, .row_bytes = d->q8_row_bytes, .x = at + from, .x_stride = x.stride};
        const struct tern_packed *kind = &m[i].w->form->m;
        a.n_rows = n_rows - n_wide;
        for (int j = i; j < n_m; j++)
            if (!done[j] && tern_cuda_alike(&m[j].w->form->m, kind)) {
                a.m[a.n_m++] = product_of(&m[j], n_wide);
                done[j] = true;
            }
        if (a.n_m)
            tern_cuda_narrow(d, &a, 1);
    }
}

/* ---- prompt rows ------------------------------------------------------------------------------------------------- */

static int tile_of(const struct tern_cuda *d)
{
    return d->card->major == 9 ? TILE_90 : TILE; /* kernels of 9.0 run on no newer card */
}

/* Columns [col, col + n) of a product, which begin at column `first` of the call's. */
static struct tern_cuda_gemm_out out_of(const struct tern_matmul *m, int col, int n, int first)
{
    return (struct tern_cuda_gemm_out){.y = tern_cuda_rows_at(m->y) + (size_t)col * sizeof(float),
                                       .y_stride = m->y.stride,
                                       .bias =
                                           m->bias.mem ? tern_cuda_vec_at(m->bias) + (size_t)col * sizeof(float) : 0,
                                       .first = first,
                                       .n = n};
}

void tern_cuda_gemm(struct tern_cuda *d, struct tern_cuda_gemm *a, int n_rows, size_t pitch)
{
    const int tile = tile_of(d);
    a->x = d->half;
    a->x_pitch = a->w_pitch = pitch;
    a->scale = d->half_scale;
    a->w = d->dense;
    a->n_rows = n_rows;
    a->n = a->out[a->n_out - 1].first + a->out[a->n_out - 1].n;
    a->k = (int)pitch;
    TERN_ASSERT(a->n_groups <= TERN_CUDA_GEMM_GROUPS);
    const unsigned tiles = (unsigned)((n_rows + TILE - 1) / TILE * ((a->n + tile - 1) / tile));
    if (tile == TILE)
        tern_cuda_launch(d, TERN_CUDA_K_gemm, tiles, 1, (unsigned)(a->n_groups ? a->n_groups : 1), 256, TILE_SHARED, a,
                         sizeof *a);
    else
        tern_cuda_launch(d, a->n_groups ? TERN_CUDA_K_gemm_90_groups : TERN_CUDA_K_gemm_90,
                         a->n_groups ? (unsigned)d->card->processors : tiles, 1, 1, 256, TILE_90_SHARED, a, sizeof *a);
}

/* One product in 16 bits, `most` columns at a time. */
static void gemm_in_parts(struct tern_cuda *d, const struct tern_matmul *m, int n_rows, int most)
{
    const size_t pitch = tern_cuda_pitch(m->w->k);
    for (int col = 0, cols; col < m->w->n; col += cols) {
        cols = m->w->n - col < most ? m->w->n - col : most;
        struct tern_cuda_gemm a = {.out = {out_of(m, col, cols, 0)}, .n_out = 1};
        tern_cuda_dense(d, m->w, 0, 1, col, cols, d->dense, pitch, false);
        tern_cuda_gemm(d, &a, n_rows, pitch);
    }
}

/* Products in 16 bits: m[0] with those behind it that find room together.  How many that was. */
static int gemms(struct tern_cuda *d, const struct tern_matmul *m, int n_m, int n_rows)
{
    const size_t pitch = tern_cuda_pitch(m[0].w->k);
    const int most = (int)(d->dense_bytes / (pitch * 2)) / TILE_90 * TILE_90;
    struct tern_cuda_gemm a = {.n_out = 0};
    int first = 0;
    TERN_ASSERT(most > 0);
    if (m[0].w->n > most) {
        gemm_in_parts(d, m, n_rows, most);
        return 1;
    }
    while (a.n_out < n_m && a.n_out < TERN_CUDA_GEMM_OUTS && !m[a.n_out].f32 && m[a.n_out].w->n <= most - first) {
        const struct tern_matmul *next = &m[a.n_out];
        tern_cuda_dense(d, next->w, 0, 1, 0, next->w->n, d->dense + (size_t)first * pitch * 2, pitch, false);
        a.out[a.n_out++] = out_of(next, 0, next->w->n, first);
        first += (int)tern_round_up((size_t)next->w->n, TILE_90);
    }
    tern_cuda_gemm(d, &a, n_rows, pitch);
    return a.n_out;
}

static void one_exact(struct tern_cuda *d, const struct tern_matmul *m, struct tern_dev_rows x, int n_rows, int col,
                      int n)
{
    const struct tern_cuda_exact a = {.x = tern_cuda_rows_at(x),
                                      .x_stride = x.stride,
                                      .w = d->dense,
                                      .w_pitch = tern_cuda_pitch(m->w->k),
                                      .y = tern_cuda_rows_at(m->y) + (size_t)col * sizeof(float),
                                      .y_stride = m->y.stride,
                                      .bias = m->bias.mem ? tern_cuda_vec_at(m->bias) + (size_t)col * sizeof(float) : 0,
                                      .n_rows = n_rows,
                                      .n = n,
                                      .k = m->w->k};
    tern_cuda_launch(d, TERN_CUDA_K_exact, (unsigned)((n_rows + 63) / 64), (unsigned)((n + 63) / 64), 1, 256, 0, &a,
                     sizeof a);
}

/* Prompt rows of a product in f32 whose weights are floats: decode rows' kernel, for it multiplies in f32 as well.  The
 * tiles of `exact` are one chain of sums from end to end, which takes long where rows are few. */
static bool floats_as_decoded(struct tern_cuda *d, const struct tern_matmul *m, struct tern_dev_rows x, int n_wide)
{
    if (d->limits.exact || tern_codes_integer(m->w->form->m.codes))
        return false;
    struct tern_cuda_narrow a = {
        .x = tern_cuda_rows_at(x), .x_stride = x.stride, .n_m = 1, .n_rows = n_wide, .m = {product_of(m, 0)}};
    tern_cuda_narrow(d, &a, 1);
    return true;
}

/* A product in f32. */
static void exact_columns(struct tern_cuda *d, const struct tern_matmul *m, struct tern_dev_rows x, int n_wide)
{
    const size_t pitch = tern_cuda_pitch(m->w->k);
    const int most = (int)(d->dense_bytes / (pitch * sizeof(float))) / TILE * TILE;
    if (floats_as_decoded(d, m, x, n_wide))
        return;
    TERN_ASSERT(most > 0);
    for (int col = 0, cols; col < m->w->n; col += cols) {
        cols = m->w->n - col < most ? m->w->n - col : most;
        tern_cuda_dense(d, m->w, 0, 1, col, cols, d->dense, pitch, true);
        one_exact(d, m, x, n_wide, col, cols);
    }
}

static void halve_rows(struct tern_cuda *d, struct tern_dev_rows x, int n_rows, int k)
{
    const struct tern_cuda_half a = {.to = d->half,
                                     .pitch = tern_cuda_pitch(k),
                                     .scale = d->half_scale,
                                     .x = tern_cuda_rows_at(x),
                                     .stride = x.stride,
                                     .k = k,
                                     .per_row = 1};
    tern_cuda_launch(d, TERN_CUDA_K_half, (unsigned)n_rows, 1, 1, 256, 0, &a, sizeof a);
}

static void prompt_rows(struct tern_cuda *d, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                        int n_wide)
{
    int n_f32 = 0;
    for (int i = 0; i < n_m; i++)
        n_f32 += d->limits.exact || m[i].f32;
    const bool packed =
        d->halved == tern_cuda_rows_at(x) ||
        (n_f32 < n_m && n_rows == n_wide && tern_cuda_halves_before(d, x, n_rows, m[0].w->k, n_f32 > 0));
    d->halved = 0;
    if (!packed && n_f32 < n_m)
        halve_rows(d, x, n_wide, m[0].w->k);
    for (int i = 0; i < n_m;) {
        if (d->limits.exact || m[i].f32)
            exact_columns(d, &m[i++], x, n_wide);
        else
            i += gemms(d, m + i, n_m - i, n_wide);
    }
}

void tern_cuda_matmul(struct tern_dev *dev, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                      int n_wide)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    TERN_ASSERT(n_m >= 1 && n_m <= TERN_CUDA_PRODUCTS && n_rows <= d->limits.max_rows);
    if (n_wide)
        prompt_rows(d, m, n_m, x, n_rows, n_wide);
    if (n_wide < n_rows)
        decode_rows(d, m, n_m, x, n_rows, n_wide);
    for (int i = 0; i < n_m; i++)
        tern_cuda_wrote(d, m[i].y);
}

/* ---- every head by a matrix of its own --------------------------------------------------------------------------- */

static void stack_prompt(struct tern_cuda *d, const struct tern_stack *s, int n_wide)
{
    const size_t pitch = tern_cuda_pitch(s->w->k), matrix = (size_t)s->w->n * pitch;
    const int most = (int)(d->dense_bytes / (matrix * sizeof(float)));
    TERN_ASSERT(most > 0);
    for (int h = 0, n; h < s->w->stack; h += n) {
        n = s->w->stack - h < most ? s->w->stack - h : most;
        tern_cuda_dense(d, s->w, h, n, 0, s->w->n, d->dense, pitch, true);
        const struct tern_cuda_exact a = {.x = tern_cuda_rows_at(s->x) + (size_t)h * s->x_head * sizeof(float),
                                          .x_stride = s->x.stride,
                                          .w = d->dense,
                                          .w_pitch = pitch,
                                          .y = tern_cuda_rows_at(s->y) + (size_t)h * s->y_head * sizeof(float),
                                          .y_stride = s->y.stride,
                                          .n_rows = n_wide,
                                          .n = s->w->n,
                                          .k = s->w->k,
                                          .w_group = matrix,
                                          .x_head = s->x_head,
                                          .y_head = s->y_head};
        tern_cuda_launch(d, TERN_CUDA_K_exact, (unsigned)((n_wide + 63) / 64), (unsigned)((s->w->n + 63) / 64),
                         (unsigned)n, 256, 0, &a, sizeof a);
    }
}

void tern_cuda_stack(struct tern_dev *dev, const struct tern_stack *s, int n_rows, int n_wide)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const int heads = s->w->stack, n = n_rows - n_wide;
    TERN_ASSERT(n <= d->limits.max_narrow && heads <= d->limits.max_stack && s->w->k <= d->limits.max_stack_k);
    if (n_wide)
        stack_prompt(d, s, n_wide);
    if (n) {
        struct tern_cuda_narrow a = {.q8 = d->q8,
                                     .row_bytes = tern_cuda_q8_bytes(s->w->k),
                                     .x = tern_cuda_rows_at(s->x) + (size_t)n_wide * s->x.stride * sizeof(float),
                                     .x_stride = s->x.stride,
                                     .n_m = 1,
                                     .n_rows = n,
                                     .n_heads = heads,
                                     .matrix_bytes = tern_weight_bytes(&s->w->form->m),
                                     .y_head = s->y_head,
                                     .x_head = s->x_head};
        a.m[0] = (struct tern_cuda_product){.w = tern_cuda_matrix_of(s->w, 0),
                                            .y = tern_cuda_rows_at(s->y) + (size_t)n_wide * s->y.stride * sizeof(float),
                                            .y_stride = s->y.stride};
        d->quantized.x = 0;
        if (tern_codes_integer(s->w->form->m.codes))
            tern_cuda_quantize_rows(d, d->q8, a.row_bytes, a.x, s->x.stride, n, s->w->k, heads, s->x_head,
                                    tern_cuda_lanes(n));
        tern_cuda_narrow(d, &a, heads);
    }
    tern_cuda_wrote(d, s->y);
}

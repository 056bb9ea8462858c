/* Mixture of experts.  Decode rows: every pair of a row and an expert by itself, the expert's number read on the card;
 * or in tiles of an expert, where pairs meet.  Prompt rows: pairs in order of experts, so that an expert's weights are
 * written out and read once. */
#include "dev/cuda/experts.h"
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/cuda.h"
#include "dev/cuda/few/hyper.h"
#include "dev/cuda/products/products.h"
#include "dev/cuda/rows.h"

/* In d->pairs: what experts read, later what they answer; what is in between; the order of pairs. */
struct places {
    tern_cu_address x, gate, up, row_of, at, groups, tiles, slots;
    size_t s_embd, s_ff, bytes; /* strides in floats */
};

static size_t after(size_t *end, size_t bytes)
{
    const size_t at = *end;
    *end = tern_round_up(at + bytes, 256);
    return at;
}

/* No more than so many experts have a pair, and each has less than a tile besides full ones. */
static int most_tiles(int n_pairs, int n_experts)
{
    const int most = n_pairs / TERN_CUDA_TILE + n_experts;
    return most < n_pairs ? most : n_pairs;
}

static struct places places_of(const struct tern_cuda *d)
{
    const struct tern_dev_limits *l = &d->limits;
    const size_t pairs = (size_t)l->max_rows * (size_t)l->max_active;
    struct places p = {.s_embd = tern_round_up((size_t)l->max_expert_embd, 64),
                       .s_ff = tern_round_up((size_t)l->max_expert_ff, 64)};
    p.x = d->pairs + after(&p.bytes, pairs * p.s_embd * sizeof(float));
    p.gate = d->pairs + after(&p.bytes, pairs * p.s_ff * sizeof(float));
    p.up = d->pairs + after(&p.bytes, pairs * p.s_ff * sizeof(float));
    p.row_of = d->pairs + after(&p.bytes, pairs * sizeof(int32_t));
    p.at = d->pairs + after(&p.bytes, pairs * sizeof(int32_t));
    p.groups = d->pairs + after(&p.bytes, (size_t)l->max_experts * 2 * sizeof(int32_t));
    p.tiles =
        d->pairs + after(&p.bytes, (size_t)most_tiles((int)pairs, l->max_experts) * sizeof(struct tern_cuda_tile));
    p.slots = d->pairs + after(&p.bytes, pairs * sizeof(int32_t));
    return p;
}

int tern_cuda_experts_open(struct tern_cuda *d, tern_error *err)
{
    return d->limits.max_experts ? tern_cuda_take(d, &d->pairs, places_of(d).bytes, err) : 0;
}

void tern_cuda_route(struct tern_dev *dev, const struct tern_route *r, struct tern_dev_rows logits,
                     struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_cuda_route_args a = {.logits = tern_cuda_rows_at(logits),
                                           .stride = logits.stride,
                                           .bias = tern_cuda_vec_at(r->bias),
                                           .factors = tern_cuda_vec_at(r->factors),
                                           .table = tern_cuda_vec_at(r->table),
                                           .rows = d->tables.rows,
                                           .ids = tern_cuda_vec_at(ids),
                                           .weights = tern_cuda_vec_at(weights),
                                           .n_experts = r->n_experts,
                                           .n_active = r->n_active,
                                           .n_groups = r->n_groups,
                                           .n_groups_used = r->n_groups_used,
                                           .group_best = r->group_best,
                                           .score = r->sigmoid         ? TERN_CUDA_SCORE_SIGMOID
                                                    : r->sqrt_softplus ? TERN_CUDA_SCORE_SQRT_SOFTPLUS
                                                                       : TERN_CUDA_SCORE_SOFTMAX,
                                           .normalise = r->normalise,
                                           .scale = r->scale};
    TERN_ASSERT(r->n_experts <= TERN_MAX_EXPERTS && r->n_active * r->n_groups <= r->n_experts * r->n_groups_used);
    tern_cuda_launch(d, TERN_CUDA_K_route, (unsigned)n_rows, 1, 1, 128, 0, &a, sizeof a);
}

/* ---- the answers ------------------------------------------------------------------------------------------------- */

struct work {
    struct tern_cuda *d;
    const struct tern_experts *e;
    struct places p;
    tern_cu_address ids, weights, x, y, between; /* of these rows; between: [pairs][...] what is between the halves */
    size_t x_stride, y_stride, b_stride;
    int n_rows, n_pairs;
    bool tiles; /* decode rows: pairs of an expert are multiplied together */
};

static void clamp(const struct work *w)
{
    const int n = w->e->gate->n;
    const struct tern_cuda_clamp_args a = {.gate = w->between,
                                           .gate_stride = w->b_stride,
                                           .up = w->p.up,
                                           .up_stride = w->p.s_ff,
                                           .n = n,
                                           .limit = w->e->clamp};
    tern_cuda_launch(w->d, TERN_CUDA_K_clamp, (unsigned)w->n_pairs,
                     (unsigned)((n + TERN_CUDA_CLAMP - 1) / TERN_CUDA_CLAMP), 1, 256, 0, &a, sizeof a);
}

static void activate(const struct work *w, tern_cu_address q8, size_t row_bytes)
{
    const int n = w->e->gate->n;
    const struct tern_cuda_elementwise a = {.y = w->between,
                                            .y_stride = w->b_stride,
                                            .a = w->between,
                                            .a_stride = w->b_stride,
                                            .b = w->p.up,
                                            .b_stride = w->p.s_ff,
                                            .q8 = q8,
                                            .row_bytes = row_bytes,
                                            .n = n,
                                            .lanes = 1,
                                            .op = w->e->gelu ? TERN_CUDA_GELU : TERN_CUDA_SILU};
    if (w->e->clamp > 0)
        clamp(w);
    tern_cuda_launch(w->d, TERN_CUDA_K_elementwise, (unsigned)w->n_pairs, (unsigned)((n + 1023) / 1024), 1, 256, 0, &a,
                     sizeof a);
}

static void gather(const struct work *w, bool sorted)
{
    const int n = w->e->gate->k;
    const struct tern_cuda_gather a = {.to = w->p.x,
                                       .to_stride = w->p.s_embd,
                                       .x = w->x,
                                       .x_stride = w->x_stride,
                                       .row_of = sorted ? w->p.row_of : 0,
                                       .weights = w->e->weigh_input ? w->weights : 0,
                                       .n = n,
                                       .n_active = w->e->n_active};
    tern_cuda_launch(w->d, TERN_CUDA_K_gather, (unsigned)w->n_pairs, (unsigned)((n + 255) / 256), 1, 256, 0, &a,
                     sizeof a);
}

static void sum(const struct work *w, bool sorted)
{
    const int n = w->e->down->n;
    const struct tern_cuda_sum a = {.y = w->y,
                                    .y_stride = w->y_stride,
                                    .answers = w->p.x,
                                    .stride = w->p.s_embd,
                                    .at = sorted ? w->p.at : 0,
                                    .weights = w->e->weigh_input ? 0 : w->weights,
                                    .n = n,
                                    .n_active = w->e->n_active};
    tern_cuda_launch(w->d, TERN_CUDA_K_pairs_sum, (unsigned)w->n_rows, (unsigned)((n + 255) / 256), 1, 256, 0, &a,
                     sizeof a);
}

static bool integer(const struct tern_dev_weight *w)
{
    return tern_codes_integer(w->form->m.codes);
}

/* The product of all pairs with their experts' matrices; and with those of `up`, NULL: none, into its place.  In tiles
 * it is that of what quantize_tiles left. */
static void narrow(const struct work *w, const struct tern_dev_weight *m, tern_cu_address y, size_t y_stride,
                   const struct tern_dev_weight *up, tern_cu_address x, size_t x_stride, int per_row)
{
    struct tern_cuda_narrow a = {.q8 = w->d->q8,
                                 .row_bytes = tern_cuda_q8_bytes(m->k),
                                 .x = x,
                                 .x_stride = x_stride,
                                 .n_m = up ? 2 : 1,
                                 .n_rows = w->n_pairs,
                                 .matrix_bytes = tern_weight_bytes(&m->form->m),
                                 .ids = w->ids,
                                 .per_row = per_row};
    a.m[0] = (struct tern_cuda_product){.w = tern_cuda_matrix_of(m, 0), .y = y, .y_stride = y_stride};
    if (up)
        a.m[1] = (struct tern_cuda_product){.w = tern_cuda_matrix_of(up, 0), .y = w->p.up, .y_stride = w->p.s_ff};
    if (!w->tiles) {
        tern_cuda_narrow(w->d, &a, 1);
        return;
    }
    const double pairs = w->n_pairs, stack = m->stack;
    a.tiles = w->p.tiles;
    a.pairs = w->p.row_of;
    /* Of experts chosen by chance so many have a pair, and half a tile besides full ones. */
    tern_cuda_tiles(w->d, &a, most_tiles(w->n_pairs, m->stack),
                    1 + (int)(stack * (1 - exp(-pairs / stack)) + pairs / (2 * TERN_CUDA_TILE)));
}

/* Decode rows whose pairs meet: then an expert's weights are read once for several of them. */
static bool in_tiles(const struct tern_experts *e, int n_rows)
{
    const struct tern_dev_weight *all[] = {e->gate, e->up, e->down};
    for (int i = 0; i < 3; i++)
        if (!tern_cuda_has_tiles(&all[i]->form->m))
            return false;
    return n_rows > 1 && 4 * n_rows * e->n_active >= 3 * e->gate->stack;
}

/* Pairs' rows of x as int8, in tiles; row of a pair: pair / per_row. */
static void quantize_tiles(const struct work *w, tern_cu_address x, size_t stride, int k, int per_row)
{
    const struct tern_cuda_quantize_pairs a = {.to = w->d->q8,
                                               .row_bytes = tern_cuda_q8_bytes(k),
                                               .x = x,
                                               .stride = stride,
                                               .row_of = w->p.row_of,
                                               .slots = w->p.slots,
                                               .k = k,
                                               .per_row = per_row};
    tern_cuda_launch(w->d, TERN_CUDA_K_quantize_pairs, (unsigned)w->n_pairs, (unsigned)((k + 1023) / 1024), 1, 256, 0,
                     &a, sizeof a);
}

/* q8: where int8 of what comes between goes; 0: nowhere. */
static void decode_up(const struct work *w, tern_cu_address q8, size_t row_bytes)
{
    const struct tern_experts *e = w->e;
    const struct places *p = &w->p;
    const int k = e->gate->k;
    tern_cu_address x = w->x;
    size_t stride = w->x_stride;
    int per_row = e->n_active, n_in = w->n_rows;
    if (e->weigh_input) {
        gather(w, false);
        x = p->x;
        stride = p->s_embd;
        per_row = 1;
        n_in = w->n_pairs;
    }
    if (w->tiles)
        quantize_tiles(w, x, stride, k, per_row);
    else if (integer(e->gate) || integer(e->up))
        tern_cuda_quantize_rows(w->d, w->d->q8, tern_cuda_q8_bytes(k), x, stride, n_in, k, 1, 0, 1);
    const bool together = e->gate->n == e->up->n && tern_cuda_alike(&e->gate->form->m, &e->up->form->m);
    narrow(w, e->gate, w->between, w->b_stride, together ? e->up : NULL, x, stride, per_row);
    if (!together)
        narrow(w, e->up, p->up, p->s_ff, NULL, x, stride, per_row);
    activate(w, q8, row_bytes);
}

/* The scratch for int8 holds what came between, where it is wanted. */
static void decode_down(const struct work *w)
{
    if (w->tiles)
        quantize_tiles(w, w->between, w->b_stride, w->e->down->k, 1);
    narrow(w, w->e->down, w->p.x, w->p.s_embd, NULL, w->between, w->b_stride, 1);
    sum(w, false);
}

/* Pairs as 16-bit floats: rows of `x`, or those of row_of. */
static void halves(const struct work *w, tern_cu_address x, size_t stride, int k, bool by_row_of)
{
    const struct tern_cuda_half a = {.to = w->d->half,
                                     .pitch = tern_cuda_pitch(k),
                                     .scale = w->d->half_scale,
                                     .x = x,
                                     .stride = stride,
                                     .rows = by_row_of ? w->p.row_of : 0,
                                     .k = k,
                                     .per_row = by_row_of ? w->e->n_active : 1};
    tern_cuda_launch(w->d, TERN_CUDA_K_half, (unsigned)w->n_pairs, 1, 1, 256, 0, &a, sizeof a);
}

/* y[pair] = x[pair] . matrix of its expert, as many experts at a time as can be written out. */
static void wide(const struct work *w, const struct tern_dev_weight *m, tern_cu_address y, size_t y_stride,
                 tern_cu_address x, size_t x_stride)
{
    struct tern_cuda *d = w->d;
    const bool f32 = d->limits.exact;
    const size_t pitch = tern_cuda_pitch(m->k), matrix = (size_t)m->n * pitch;
    const int most = (int)(d->dense_bytes / (matrix * (f32 ? 4 : 2)));
    TERN_ASSERT(most > 0);
    const int times = (m->stack + most - 1) / most, each = (m->stack + times - 1) / times;
    for (int e = 0, n; e < m->stack; e += n) {
        n = m->stack - e < each ? m->stack - e : each;
        const tern_cu_address groups = w->p.groups + (size_t)e * 2 * sizeof(int32_t);
        tern_cuda_dense(d, m, e, n, 0, m->n, d->dense, pitch, f32);
        if (f32) {
            const struct tern_cuda_exact a = {.x = x,
                                              .x_stride = x_stride,
                                              .w = d->dense,
                                              .w_pitch = pitch,
                                              .y = y,
                                              .y_stride = y_stride,
                                              .n_rows = w->n_rows,
                                              .n = m->n,
                                              .k = m->k,
                                              .groups = groups,
                                              .w_group = matrix};
            tern_cuda_launch(d, TERN_CUDA_K_exact, (unsigned)((w->n_rows + 63) / 64), (unsigned)((m->n + 63) / 64),
                             (unsigned)n, 256, 0, &a, sizeof a);
            continue;
        }
        struct tern_cuda_gemm a = {.out = {{.y = y, .y_stride = y_stride, .n = m->n}},
                                   .n_out = 1,
                                   .n_groups = n,
                                   .groups = groups,
                                   .w_group = matrix};
        tern_cuda_gemm(d, &a, w->n_rows, pitch);
    }
}

static void sort(const struct work *w, int n_experts)
{
    const struct tern_cuda_sort s = {.ids = w->ids,
                                     .row_of = w->p.row_of,
                                     .at = w->p.at,
                                     .groups = w->p.groups,
                                     .tiles = w->tiles ? w->p.tiles : 0,
                                     .slots = w->p.slots,
                                     .n_pairs = w->n_pairs,
                                     .n_experts = n_experts,
                                     .n_tiles = most_tiles(w->n_pairs, n_experts)};
    tern_cuda_launch(w->d, TERN_CUDA_K_sort_pairs, 1, 1, 1, TERN_CUDA_SORT, 0, &s, sizeof s);
}

/* Pairs are sorted. */
static void prompt_up(const struct work *w)
{
    const struct tern_experts *e = w->e;
    const struct places *p = &w->p;
    const bool f32 = w->d->limits.exact;
    if (f32 || e->weigh_input)
        gather(w, true);
    if (!f32 && e->weigh_input)
        halves(w, p->x, p->s_embd, e->gate->k, false);
    else if (!f32)
        halves(w, w->x, w->x_stride, e->gate->k, true);
    wide(w, e->gate, w->between, w->b_stride, p->x, p->s_embd);
    wide(w, e->up, p->up, p->s_ff, p->x, p->s_embd);
    activate(w, 0, 0);
}

static void prompt_down(const struct work *w)
{
    if (!w->d->limits.exact)
        halves(w, w->between, w->b_stride, w->e->down->k, false);
    wide(w, w->e->down, w->p.x, w->p.s_embd, w->between, w->b_stride);
    sum(w, true);
}

/* ---- all of it, or half ------------------------------------------------------------------------------------------ */

/* Prompt rows, or decode rows, of a call's. */
static struct work work_of(struct tern_cuda *d, const struct tern_experts *e, struct tern_dev_vec ids,
                           struct tern_dev_vec weights, int row0, int n)
{
    const size_t first = (size_t)row0 * (size_t)e->n_active * sizeof(float);
    return (struct work){.d = d,
                         .e = e,
                         .p = places_of(d),
                         .ids = tern_cuda_vec_at(ids) + first,
                         .weights = tern_cuda_vec_at(weights) + first,
                         .n_rows = n,
                         .n_pairs = n * e->n_active};
}

static tern_cu_address row_at(struct tern_dev_rows r, int row)
{
    return tern_cuda_rows_at(r) + (size_t)row * r.stride * sizeof(float);
}

/* What one call asks for, of which halves that it leaves out have no rows. */
struct call {
    const struct tern_experts *e;
    struct tern_dev_rows y, x, between; /* mem NULL: none; of between, scratch */
    struct tern_dev_vec ids, weights;
};

static void run_part(struct tern_cuda *d, const struct call *c, int row0, int n, bool narrow_part)
{
    struct work w = work_of(d, c->e, c->ids, c->weights, row0, n);
    const bool up = c->x.mem, down = c->y.mem;
    if (!n)
        return;
    w.between = c->between.mem ? row_at(c->between, row0 * c->e->n_active) : w.p.gate;
    w.b_stride = c->between.mem ? c->between.stride : w.p.s_ff;
    w.x = up ? row_at(c->x, row0) : 0;
    w.x_stride = c->x.stride;
    w.y = down ? row_at(c->y, row0) : 0;
    w.y_stride = c->y.stride;
    if (!narrow_part) {
        sort(&w, (up ? c->e->gate : c->e->down)->stack);
        if (up)
            prompt_up(&w);
        if (down)
            prompt_down(&w);
        return;
    }
    const size_t row_bytes = down ? tern_cuda_q8_bytes(c->e->down->k) : 0;
    d->quantized.x = 0;
    w.tiles = in_tiles(c->e, n);
    if (w.tiles)
        sort(&w, c->e->gate->stack);
    const bool q8 = down && integer(c->e->down) && !w.tiles;
    if (up)
        decode_up(&w, q8 ? d->q8 : 0, row_bytes);
    if (q8 && !up)
        tern_cuda_quantize_rows(d, d->q8, row_bytes, w.between, w.b_stride, w.n_pairs, c->e->down->k, 1, 0, 1);
    if (down)
        decode_down(&w);
}

static void run_call(struct tern_cuda *d, const struct call *c, int n_rows, int n_wide)
{
    TERN_ASSERT(n_rows <= d->limits.max_rows && n_rows - n_wide <= d->limits.max_narrow);
    run_part(d, c, 0, n_wide, false);
    run_part(d, c, n_wide, n_rows - n_wide, true);
}

void tern_cuda_experts(struct tern_dev *dev, const struct tern_experts *e, struct tern_dev_rows y,
                       struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows,
                       int n_wide)
{
    const struct call c = {.e = e, .y = y, .x = x, .ids = ids, .weights = weights};
    run_call(tern_cuda_of(dev), &c, n_rows, n_wide);
    tern_cuda_wrote(tern_cuda_of(dev), y);
}

void tern_cuda_experts_up(struct tern_dev *dev, const struct tern_experts *e, struct tern_dev_rows between,
                          struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows,
                          int n_wide)
{
    const struct call c = {.e = e, .x = x, .between = between, .ids = ids, .weights = weights};
    run_call(tern_cuda_of(dev), &c, n_rows, n_wide);
    tern_cuda_wrote(tern_cuda_of(dev), between);
}

void tern_cuda_experts_down(struct tern_dev *dev, const struct tern_experts *e, struct tern_dev_rows y,
                            struct tern_dev_rows between, struct tern_dev_vec ids, struct tern_dev_vec weights,
                            int n_rows, int n_wide)
{
    const struct call c = {.e = e, .y = y, .between = between, .ids = ids, .weights = weights};
    run_call(tern_cuda_of(dev), &c, n_rows, n_wide);
    tern_cuda_wrote(tern_cuda_of(dev), y);
}

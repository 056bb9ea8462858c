/* Operations on one row at a time, and what they save the next one: sums that a norm follows are made by the norm, sets
 * of heads go together, and rows that a product of decode rows will read come as int8 too. */
#include "dev/cuda/rows.h"
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/cuda.h"

#define THREADS 256

static unsigned blocks(size_t n, size_t of)
{
    return (unsigned)((n + of - 1) / of);
}

void *tern_cuda_last_call(const struct tern_cuda *d, enum tern_cuda_kernel k)
{
    const struct tern_cuda_list *l = &d->list;
    return l->n && l->calls[l->n - 1].kernel == k ? l->args + l->calls[l->n - 1].args : NULL;
}

void tern_cuda_drop_last(struct tern_cuda *d)
{
    d->list.used = d->list.calls[--d->list.n].args;
}

void tern_cuda_wrote(struct tern_cuda *d, struct tern_dev_rows r)
{
    if (d->quantized.x == tern_cuda_rows_at(r))
        d->quantized.x = 0;
}

tern_cu_address tern_cuda_as_q8(struct tern_cuda *d, struct tern_dev_rows y, int n_rows)
{
    tern_cuda_wrote(d, y);
    if (!d->in_step || d->decode_rows < n_rows || y.width % TERN_BLOCK || y.width > d->max_k || n_rows > d->q8_rows)
        return 0;
    d->quantized.x = tern_cuda_rows_at(y);
    d->quantized.n = n_rows;
    d->quantized.k = y.width;
    return d->q8;
}

void tern_cuda_embed(struct tern_dev *dev, struct tern_dev_rows x, const struct tern_dev_weight *table, int n_rows,
                     float scale)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_cuda_embed_args a = {
        tern_cuda_matrix_of(table, 0), tern_cuda_rows_at(x), x.stride, d->tables.rows, scale, 0};
    tern_cuda_wrote(d, x);
    tern_cuda_launch(d, TERN_CUDA_K_embed, blocks((size_t)table->k, 4 * THREADS), (unsigned)n_rows, 1, THREADS, 0, &a,
                     sizeof a);
}

void tern_cuda_gate_inside(struct tern_cuda *d, struct tern_cuda_together *a)
{
    const struct tern_cuda_elementwise *e = tern_cuda_last_call(d, TERN_CUDA_K_elementwise);
    const int first = a->bound[a->self];
    if (!e || e->op < TERN_CUDA_SILU || e->y != a->x[a->self] + (size_t)first * sizeof(float) || e->a != e->y ||
        e->y_stride != a->stride || e->a_stride != a->stride || e->n != a->bound[a->self + 1] - first || e->n % 4 ||
        d->list.calls[d->list.n - 1].grid[0] != (unsigned)a->n_rows)
        return;
    a->up = e->b;
    a->up_stride = e->b_stride;
    a->op = e->op;
    tern_cuda_drop_last(d);
}

/* What is added has just been asked for from other cards: the norm, a block of threads for each row, asks itself. */
static void gather_inside(struct tern_cuda *d, struct tern_cuda_norm_args *a, int n_rows)
{
    const struct tern_cuda_together *g = tern_cuda_last_call(d, TERN_CUDA_K_together);
    if (!g || g->x[g->self] != a->plus || g->stride != a->plus_stride || !g->stage[g->self] || g->up ||
        g->n_rows != n_rows || n_rows > TERN_CUDA_TOGETHER_BLOCKS || g->bound[g->n_cards] != a->n || a->n % 4)
        return;
    a->gather = *g;
    tern_cuda_drop_last(d);
    if (d->quantized.x == a->plus) /* nobody makes int8 of it now */
        d->quantized.x = 0;
}

/* What is added has just been normed, in its place: the same kernel does it. */
static void norm_inside(struct tern_cuda *d, struct tern_cuda_norm_args *a, int n_rows)
{
    const struct tern_cuda_norm_args *many = tern_cuda_last_call(d, TERN_CUDA_K_norm_many),
                                     *before = many ? many : tern_cuda_last_call(d, TERN_CUDA_K_norm);
    if (!before || before->y != a->plus || before->x != a->plus || before->y_stride != a->plus_stride ||
        before->x_stride != a->plus_stride || before->n != a->n || before->eps != a->eps || before->plus ||
        before->half || d->list.calls[d->list.n - 1].grid[0] != (unsigned)n_rows)
        return;
    a->plus_normed = 1;
    a->plus_w = before->w;
    tern_cuda_drop_last(d);
    if (d->quantized.x == a->plus) /* nobody makes int8 of it now */
        d->quantized.x = 0;
}

void tern_cuda_norm(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows x, struct tern_dev_vec w,
                    float eps, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    struct tern_cuda_norm_args a = {.y = tern_cuda_rows_at(y),
                                    .y_stride = y.stride,
                                    .x = tern_cuda_rows_at(x),
                                    .x_stride = x.stride,
                                    .w = tern_cuda_vec_at(w),
                                    .row_bytes = d->q8_row_bytes,
                                    .n = y.width,
                                    .eps = eps,
                                    .lanes = tern_cuda_lanes(n_rows)};
    const struct tern_cuda_elementwise *e = tern_cuda_last_call(d, TERN_CUDA_K_elementwise);
    if (e && e->op == TERN_CUDA_ADD && e->y == a.x && e->n == y.width && a.y != a.x && !e->q8 &&
        d->list.calls[d->list.n - 1].grid[0] == (unsigned)n_rows) {
        a.sum = e->y;
        a.sum_stride = e->y_stride;
        a.x = e->a;
        a.x_stride = e->a_stride;
        a.plus = e->b;
        a.plus_stride = e->b_stride;
        if (a.y != a.plus) {
            tern_cuda_drop_last(d);
            norm_inside(d, &a, n_rows);
            gather_inside(d, &a, n_rows);
        } else {
            a.plus = a.sum = 0;
            a.x = tern_cuda_rows_at(x);
            a.x_stride = x.stride;
        }
    }
    a.q8 = tern_cuda_as_q8(d, y, n_rows);
    const bool many = n_rows > d->card->processors && !a.gather.n_cards && !a.q8;
    tern_cuda_launch(d, many ? TERN_CUDA_K_norm_many : TERN_CUDA_K_norm, (unsigned)n_rows, 1, 1, 512, 0, &a, sizeof a);
}

static void elementwise(struct tern_cuda *d, struct tern_cuda_elementwise a, int n_rows)
{
    a.row_bytes = d->q8_row_bytes;
    a.lanes = tern_cuda_lanes(n_rows);
    tern_cuda_launch(d, TERN_CUDA_K_elementwise, (unsigned)n_rows, blocks((size_t)a.n, 4 * THREADS), 1, THREADS, 0, &a,
                     sizeof a);
}

void tern_cuda_add(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows a, struct tern_dev_rows b,
                   int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    tern_cuda_wrote(d, y);
    elementwise(d,
                (struct tern_cuda_elementwise){.y = tern_cuda_rows_at(y),
                                               .y_stride = y.stride,
                                               .a = tern_cuda_rows_at(a),
                                               .a_stride = a.stride,
                                               .b = tern_cuda_rows_at(b),
                                               .b_stride = b.stride,
                                               .n = y.width,
                                               .op = TERN_CUDA_ADD},
                n_rows);
}

static void in_place(struct tern_cuda *d, struct tern_dev_rows x, int n_rows, int op, float factor)
{
    const tern_cu_address at = tern_cuda_rows_at(x);
    tern_cuda_wrote(d, x);
    elementwise(
        d,
        (struct tern_cuda_elementwise){
            .y = at, .y_stride = x.stride, .a = at, .a_stride = x.stride, .n = x.width, .op = op, .factor = factor},
        n_rows);
}

void tern_cuda_scale(struct tern_dev *dev, struct tern_dev_rows x, int n_rows, float factor)
{
    in_place(tern_cuda_of(dev), x, n_rows, TERN_CUDA_SCALE, factor);
}

void tern_cuda_softcap(struct tern_dev *dev, struct tern_dev_rows x, int n_rows, float cap)
{
    in_place(tern_cuda_of(dev), x, n_rows, TERN_CUDA_SOFTCAP, cap);
}

void tern_cuda_gate(struct tern_dev *dev, struct tern_dev_rows x, struct tern_dev_rows g, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const tern_cu_address at = tern_cuda_rows_at(x);
    tern_cuda_wrote(d, x);
    elementwise(d,
                (struct tern_cuda_elementwise){.y = at,
                                               .y_stride = x.stride,
                                               .a = at,
                                               .a_stride = x.stride,
                                               .b = tern_cuda_rows_at(g),
                                               .b_stride = g.stride,
                                               .n = x.width,
                                               .op = TERN_CUDA_GATE},
                n_rows);
}

void tern_cuda_glu(struct tern_dev *dev, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows,
                   enum tern_gate act)
{
    static const int ops[] = {
        [TERN_GATE_SILU] = TERN_CUDA_SILU, [TERN_GATE_GELU] = TERN_CUDA_GELU, [TERN_GATE_SIGMOID] = TERN_CUDA_SIGMOID};
    struct tern_cuda *d = tern_cuda_of(dev);
    const tern_cu_address at = tern_cuda_rows_at(gate);
    elementwise(d,
                (struct tern_cuda_elementwise){.y = at,
                                               .y_stride = gate.stride,
                                               .a = at,
                                               .a_stride = gate.stride,
                                               .b = tern_cuda_rows_at(up),
                                               .b_stride = up.stride,
                                               .q8 = tern_cuda_as_q8(d, gate, n_rows),
                                               .n = gate.width,
                                               .op = ops[act]},
                n_rows);
}

bool tern_cuda_halves_before(struct tern_cuda *d, struct tern_dev_rows x, int n_rows, int k, bool f32_too)
{
    const tern_cu_address at = tern_cuda_rows_at(x);
    struct tern_cuda_norm_args *many = tern_cuda_last_call(d, TERN_CUDA_K_norm_many),
                               *norm = many ? many : tern_cuda_last_call(d, TERN_CUDA_K_norm);
    const struct tern_cuda_elementwise *e = tern_cuda_last_call(d, TERN_CUDA_K_elementwise);
    if ((!norm && !e) || d->list.calls[d->list.n - 1].grid[0] != (unsigned)n_rows)
        return false;
    if (norm && norm->y == at && norm->n == k && !norm->half) {
        norm->half = d->half;
        norm->pitch = tern_cuda_pitch(k);
        norm->scale = d->half_scale;
        return true;
    }
    if (!e || e->op < TERN_CUDA_SILU || e->y != at || e->a != at || e->n != k || f32_too)
        return false;
    const struct tern_cuda_glu_half g = {.half = d->half,
                                         .pitch = tern_cuda_pitch(k),
                                         .scale = d->half_scale,
                                         .gate = at,
                                         .gate_stride = e->a_stride,
                                         .up = e->b,
                                         .up_stride = e->b_stride,
                                         .n = k,
                                         .op = e->op};
    tern_cuda_drop_last(d);
    if (d->quantized.x == at) /* nobody makes int8 of it now */
        d->quantized.x = 0;
    tern_cuda_launch(d, TERN_CUDA_K_glu_half, (unsigned)n_rows, 1, 1, 512, 0, &g, sizeof g);
    return true;
}

void tern_cuda_rope_table(struct tern_dev *dev, struct tern_dev_vec cos, struct tern_dev_vec sin,
                          struct tern_dev_vec freq, int n_rot, float magnitude, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_cuda_rope a = {.cos = tern_cuda_vec_at(cos),
                                     .sin = tern_cuda_vec_at(sin),
                                     .freq = tern_cuda_vec_at(freq),
                                     .rows = d->tables.rows,
                                     .half = n_rot / 2,
                                     .magnitude = magnitude,
                                     .n_rows = n_rows};
    tern_cuda_launch(d, TERN_CUDA_K_rope_table, blocks((size_t)n_rows * (size_t)(n_rot / 2), THREADS), 1, 1, THREADS, 0,
                     &a, sizeof a);
}

void tern_cuda_heads(struct tern_dev *dev, const struct tern_heads *h, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    struct tern_cuda_heads_args a = {.rows = d->tables.rows, .n_rows = n_rows};
    const struct tern_cuda_heads_args *last = tern_cuda_last_call(d, TERN_CUDA_K_heads);
    const tern_cu_address x = tern_cuda_rows_at(h->x);
    bool joins = last && last->n_rows == n_rows && last->n_sets < TERN_CUDA_HEADS;
    for (int i = 0; joins && i < last->n_sets; i++) /* other heads, and not those of the last call again */
        joins = last->set[i].x != x && last->set[i].stride != 0 &&
                (last->set[i].x + (size_t)n_rows * last->set[i].stride * sizeof(float) <= x ||
                 x + (size_t)n_rows * h->x.stride * sizeof(float) <= last->set[i].x);
    if (joins) {
        memcpy(&a, last, sizeof a);
        tern_cuda_drop_last(d);
    }
    tern_cuda_wrote(d, h->x);
    const int i = a.n_sets++;
    a.set[i].x = x;
    a.set[i].stride = h->x.stride;
    a.set[i].norm_w = tern_cuda_vec_at(h->norm_w);
    a.set[i].cos = tern_cuda_vec_at(h->cos);
    a.set[i].sin = tern_cuda_vec_at(h->sin);
    a.set[i].n_heads = h->n_heads;
    a.set[i].dim = h->dim;
    a.set[i].norm = h->norm;
    a.set[i].norm_after = h->norm_after;
    a.set[i].n_rot = h->n_rot;
    a.set[i].interleaved = h->interleaved;
    a.set[i].inverse = h->inverse;
    a.set[i].temper_span = h->temper_span;
    a.set[i].temper_from = h->temper_from;
    a.set[i].eps = h->eps;
    a.set[i].temper = h->temper;
    int heads = 0;
    for (int j = 0; j < a.n_sets; j++)
        heads += a.set[j].n_heads;
    tern_cuda_launch(d, TERN_CUDA_K_heads, (unsigned)n_rows, blocks((size_t)heads, 8), 1, THREADS, 0, &a, sizeof a);
}

void tern_cuda_copy_heads(struct tern_dev *dev, struct tern_dev_rows to, size_t to_head, struct tern_dev_rows from,
                          size_t from_head, int n_heads, int n, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_cuda_copy_args a = {.to = tern_cuda_rows_at(to),
                                          .to_stride = to.stride,
                                          .to_head = to_head,
                                          .from = tern_cuda_rows_at(from),
                                          .from_stride = from.stride,
                                          .from_head = from_head,
                                          .n_heads = n_heads,
                                          .n = n};
    tern_cuda_wrote(d, to);
    tern_cuda_launch(d, TERN_CUDA_K_copy_heads, (unsigned)n_rows, blocks((size_t)n_heads * (size_t)n, THREADS), 1,
                     THREADS, 0, &a, sizeof a);
}

void tern_cuda_pick(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows x, const int *rows, int n)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    struct tern_cuda_copy_args a = {.to = tern_cuda_rows_at(y),
                                    .to_stride = y.stride,
                                    .from = tern_cuda_rows_at(x),
                                    .from_stride = x.stride,
                                    .n_heads = 1,
                                    .n = x.width};
    a.rows = tern_cuda_send(d, rows, (size_t)n * sizeof *rows);
    tern_cuda_wrote(d, y);
    tern_cuda_launch(d, TERN_CUDA_K_copy_heads, (unsigned)n, blocks((size_t)x.width, THREADS), 1, THREADS, 0, &a,
                     sizeof a);
}

/* ---- the best of rows -------------------------------------------------------------------------------------------- */

#define BEST_THREADS 128
#define BEST_ROWS    256 /* of whose parts the keys have room at once */

_Static_assert(TERN_CUDA_BEST == TERN_BEST, "kernels know the most that is asked for");

static int best_parts(int width)
{
    return (width + TERN_CUDA_BEST_PART - 1) / TERN_CUDA_BEST_PART;
}

static int best_rows(const struct tern_cuda *d)
{
    return d->limits.max_rows < BEST_ROWS ? d->limits.max_rows : BEST_ROWS;
}

int tern_cuda_best_open(struct tern_cuda *d, tern_error *err)
{
    const size_t keys = (size_t)best_rows(d) * (size_t)best_parts(d->limits.max_best) * TERN_BEST;
    return tern_cuda_take(d, &d->best, keys * sizeof(uint64_t), err);
}

void tern_cuda_best(struct tern_dev *dev, const struct tern_best *b, int n_rows)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    struct tern_cuda_best_args a = {.x = tern_cuda_rows_at(b->x),
                                    .stride = b->x.stride,
                                    .parts = d->best,
                                    .values = tern_cuda_vec_at(b->values),
                                    .ids = tern_cuda_vec_at(b->ids),
                                    .width = b->x.width,
                                    .n_parts = best_parts(b->x.width),
                                    .n = b->n};
    TERN_ASSERT(b->n > 0 && b->n <= TERN_BEST && b->x.width <= d->limits.max_best && b->x.width <= TERN_BEST_WIDTH);
    for (int n; n_rows > 0; n_rows -= n) {
        n = n_rows < best_rows(d) ? n_rows : best_rows(d);
        tern_cuda_launch(d, TERN_CUDA_K_best_parts, (unsigned)a.n_parts, (unsigned)n, 1, BEST_THREADS, 0, &a, sizeof a);
        tern_cuda_launch(d, TERN_CUDA_K_best, (unsigned)n, 1, 1, BEST_THREADS, 0, &a, sizeof a);
        a.x += (size_t)n * b->x.stride * sizeof(float);
        a.values += (size_t)n * (size_t)b->n * sizeof(float);
        a.ids += (size_t)n * (size_t)b->n * sizeof(int32_t);
    }
}

/* Attention to a window of tokens and to compressed rows of all before, of which few may be chosen.
 *
 *   r = norm(h Wa);  q = heads(r Wb);  v = norm(h Wkv)          one vector is a token's key and value
 *   rows of complete windows out of h Wr, h Wg, and keys by which they are chosen out of h Wi, h Wj
 *   a = attention(q; v, rows), turned back;  t = (a Oa, a matrix for each group of heads) Ob
 */
#include "model/block/block.h"

static int channels(const struct tern_layer_desc *l, int dim)
{
    return l->sparse.overlap ? 2 * dim : dim;
}

static bool chooses(const struct tern_layer_desc *l)
{
    return l->sparse.rate && l->sparse.overlap;
}

static struct tern_compress rows_of(const struct tern_layer_desc *l)
{
    return (struct tern_compress){.rate = l->sparse.rate, .overlap = l->sparse.overlap, .dim = l->at.dim_v};
}

static struct tern_compress index_of(const struct tern_layer_desc *l)
{
    const struct tern_compress rows = rows_of(l);
    return (struct tern_compress){.rate = l->sparse.rate,
                                  .overlap = l->sparse.overlap,
                                  .dim = l->sparse.index_dim,
                                  .state_at = tern_compress_floats(&rows)};
}

static void need(struct tern_needs *n, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    const int heads = l->at.n_heads * l->at.dim_v, out = l->sparse.groups * l->sparse.o_rank;
    TERN_WIDEN(n->q, heads);
    TERN_WIDEN(n->a, heads);
    TERN_WIDEN(n->v, l->at.dim_v);
    TERN_WIDEN(n->k, l->sparse.q_rank);
    TERN_WIDEN(n->mix, out);
    TERN_WIDEN(n->dev.max_k, d->n_embd);
    TERN_WIDEN(n->dev.max_k, l->sparse.q_rank);
    TERN_WIDEN(n->dev.max_k, out);
    TERN_WIDEN(n->dev.max_stack, l->sparse.groups);
    TERN_WIDEN(n->dev.max_stack_k, heads / l->sparse.groups);
    TERN_WIDEN(n->dev.max_compressed, l->at.dim_v);
    TERN_WIDEN(n->dev.max_sparse_heads, l->at.n_heads);
    if (l->sparse.rate) {
        TERN_WIDEN(n->rows, channels(l, l->at.dim_v));
        TERN_WIDEN(n->rows_gate, channels(l, l->at.dim_v));
    }
    if (!chooses(l))
        return;
    TERN_WIDEN(n->v, l->sparse.index_dim); /* as they are copied from one cache to another */
    TERN_WIDEN(n->index, channels(l, l->sparse.index_dim));
    TERN_WIDEN(n->index_gate, channels(l, l->sparse.index_dim));
    TERN_WIDEN(n->index_q, l->sparse.index_heads * l->sparse.index_dim);
    TERN_WIDEN(n->index_w, l->sparse.index_heads);
    TERN_WIDEN(n->chosen, l->sparse.index_top);
    TERN_WIDEN(n->dev.max_compressed, l->sparse.index_dim);
    TERN_WIDEN(n->dev.max_chosen, l->sparse.index_top);
    TERN_WIDEN(n->dev.max_choose_heads, l->sparse.index_heads);
}

static void caches(struct tern_kv_decl *decl, const struct tern_desc *d, const struct tern_layer_desc *l, int ctx)
{
    tern_attend_caches(decl, d, &l->at, ctx);
    decl->latent = true;
    if (!l->sparse.rate)
        return;
    const struct tern_compress rows = rows_of(l), index = index_of(l);
    decl->more[decl->n_more++] = (struct tern_kv_more){TERN_KV_ROWS, l->sparse.rate, 1, l->at.dim_v, l->sparse.grid};
    decl->state_bytes = tern_compress_floats(&rows) * sizeof(float);
    if (!chooses(l))
        return;
    decl->more[decl->n_more++] =
        (struct tern_kv_more){TERN_KV_INDEX, l->sparse.rate, 1, l->sparse.index_dim, l->sparse.grid};
    decl->state_bytes += tern_compress_floats(&index) * sizeof(float);
}

static const char *cannot(const struct tern_desc *d, const struct tern_layer_desc *l)
{
    const bool uneven = l->sparse.groups < 1 || l->at.n_heads % l->sparse.groups;
    const int power = l->sparse.index_dim & (l->sparse.index_dim - 1);
    return uneven ? "groups of heads that are not alike"
           : chooses(l) && (power || l->sparse.index_dim < 16 || l->sparse.index_dim > TERN_KVQ_MAX_DIM)
               ? "an index whose size is no power of two from 16 to 512"
           : l->sparse.rate > 128 ? "compressed rows of more than 128 tokens"
                                  : tern_attend_cannot(d, &l->at);
}

static bool runs_on(const struct tern_dev_ops *ops, const struct tern_layer_desc *l)
{
    (void)l;
    return ops->grid && ops->compress && ops->choose && ops->sparse;
}

/* The last dims of heads of `dim`. */
static void rotate(struct tern_forward *f, int n_rows, const struct tern_layer_desc *l, struct tern_dev_rows x,
                   int n_heads, int dim, bool back)
{
    const struct tern_rope *rope = &f->net->desc.ropes[l->at.rope];
    const int rest = dim - rope->n_rot;
    const struct tern_heads h = {.x = tern_dev_columns(x, rest, n_heads * dim - rest),
                                 .n_heads = n_heads,
                                 .dim = dim,
                                 .cos = f->cos[l->at.rope],
                                 .sin = f->sin[l->at.rope],
                                 .n_rot = rope->n_rot,
                                 .interleaved = rope->interleaved,
                                 .inverse = back};
    f->dev->ops->heads(f->dev, &h, n_rows);
}

/* All that comes out of h: k = r before its norm, v, and what goes into compressed rows and their keys, which is in f32
 * for both roles, because it stays in states. */
static void project(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_matmul first[2] = {{.w = &w[TERN_SLOT_Q_A].mat, .y = f->k},
                                         {.w = &w[TERN_SLOT_KV_A].mat, .y = f->v}};
    const struct tern_matmul rows[5] = {{.w = &w[TERN_SLOT_ROWS_KV].mat, .y = f->rows, .f32 = true},
                                        {.w = &w[TERN_SLOT_ROWS_GATE].mat, .y = f->rows_gate, .f32 = true},
                                        {.w = &w[TERN_SLOT_INDEX_KV].mat, .y = f->index, .f32 = true},
                                        {.w = &w[TERN_SLOT_INDEX_GATE].mat, .y = f->index_gate, .f32 = true},
                                        {.w = &w[TERN_SLOT_INDEX_WEIGHTS].mat, .y = f->index_w, .f32 = true}};
    f->dev->ops->matmul(f->dev, first, 2, f->h, b->n_rows, b->n_wide);
    if (l->sparse.rate)
        f->dev->ops->matmul(f->dev, rows, chooses(l) ? 5 : 2, f->h, b->n_rows, b->n_rows);
}

/* v = what is cached. */
static void prepare_row(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_dev_rows v = tern_dev_columns(f->v, 0, l->at.dim_v);
    ops->norm(f->dev, v, v, f->net->layers[layer][TERN_SLOT_KV_A_NORM].vec, d->eps, b->n_rows);
    rotate(f, b->n_rows, l, v, 1, l->at.dim_v, false);
    if (l->sparse.grid)
        ops->grid(f->dev, tern_dev_columns(v, 0, l->at.dim_v - d->ropes[l->at.rope].n_rot), TERN_GRID_FP8, 1,
                  b->n_rows);
}

/* q = heads, v = what is cached. */
static void prepare(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_dev_rows r = tern_dev_columns(f->k, 0, l->sparse.q_rank);
    const struct tern_matmul heads[2] = {{.w = &w[TERN_SLOT_Q].mat, .y = f->q},
                                         {.w = &w[TERN_SLOT_INDEX_Q].mat, .y = f->index_q}};
    const struct tern_heads norm = {
        .x = f->q, .n_heads = l->at.n_heads, .dim = l->at.dim_v, .norm = true, .eps = d->eps};
    ops->norm(f->dev, r, r, w[TERN_SLOT_Q_A_NORM].vec, d->eps, b->n_rows);
    ops->matmul(f->dev, heads, chooses(l) ? 2 : 1, r, b->n_rows, b->n_wide);
    ops->heads(f->dev, &norm, b->n_rows);
    rotate(f, b->n_rows, l, f->q, l->at.n_heads, l->at.dim_v, false);
    prepare_row(f, b, layer);
}

static void compress(struct tern_forward *f, int layer, struct tern_compress c, enum tern_kv_role role)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const bool index = role == TERN_KV_INDEX;
    c.layer = layer;
    c.span = tern_cached_span(f, layer, role);
    c.ape = w[index ? TERN_SLOT_INDEX_APE : TERN_SLOT_ROWS_APE].vec;
    c.norm = w[index ? TERN_SLOT_INDEX_NORM : TERN_SLOT_ROWS_NORM].vec;
    c.eps = d->eps;
    c.freq = f->freq[l->at.rope];
    c.n_rot = d->ropes[l->at.rope].n_rot;
    c.grid = !l->sparse.grid ? TERN_GRID_NONE : index ? TERN_GRID_FP4 : TERN_GRID_FP8;
    f->dev->ops->compress(f->dev, &c, index ? f->index : f->rows, index ? f->index_gate : f->rows_gate);
}

static struct tern_choose choose(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_choose c = {.span = tern_cached_span(f, layer, TERN_KV_INDEX),
                                  .rate = l->sparse.rate,
                                  .n_heads = l->sparse.index_heads,
                                  .dim = l->sparse.index_dim,
                                  .top = l->sparse.index_top,
                                  .ids = f->chosen,
                                  .counts = f->n_chosen};
    const struct tern_dev_rows q = tern_dev_columns(f->index_q, 0, l->sparse.index_heads * l->sparse.index_dim);
    rotate(f, b->n_rows, l, q, l->sparse.index_heads, l->sparse.index_dim, false);
    if (l->sparse.grid)
        f->dev->ops->grid(f->dev, q, TERN_GRID_FP4, l->sparse.index_heads, b->n_rows);
    f->dev->ops->choose(f->dev, &c, q, f->index_w, b->n_rows);
    return c;
}

static void attend(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    struct tern_choose chosen = {0};
    struct tern_sparse s = {.layer = layer,
                            .span = tern_cached_span(f, layer, TERN_KV_ROWS),
                            .rate = l->sparse.rate,
                            .n_heads = l->at.n_heads,
                            .dim = l->at.dim_v,
                            .scale = l->at.scale,
                            .sinks = f->net->layers[layer][TERN_SLOT_SINKS].vec};
    f->dev->ops->append(f->dev, layer, f->k, f->v);
    if (l->sparse.rate)
        compress(f, layer, rows_of(l), TERN_KV_ROWS);
    if (chooses(l)) {
        compress(f, layer, index_of(l), TERN_KV_INDEX);
        chosen = choose(f, b, layer);
        s.chosen = &chosen;
    }
    f->dev->ops->sparse(f->dev, &s, f->q, f->a, b->n_rows);
}

static void feed(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_matmul m = {.w = &w[TERN_SLOT_KV_A].mat, .y = f->v};
    TERN_ASSERT(!l->sparse.rate);
    f->dev->ops->matmul(f->dev, &m, 1, f->h, b->n_rows, b->n_wide);
    prepare_row(f, b, layer);
    f->dev->ops->append(f->dev, layer, f->k, f->v);
}

static void run(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_dev_rows *x)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_stack groups = {.w = &w[TERN_SLOT_O_A].mat,
                                      .y = f->mix,
                                      .x = f->a,
                                      .y_head = (size_t)l->sparse.o_rank,
                                      .x_head = (size_t)(l->at.n_heads / l->sparse.groups * l->at.dim_v)};
    const struct tern_matmul o = {.w = &w[TERN_SLOT_O].mat, .y = f->t};
    (void)x;
    project(f, b, layer);
    prepare(f, b, layer);
    attend(f, b, layer);
    rotate(f, b->n_rows, l, f->a, l->at.n_heads, l->at.dim_v, true);
    f->dev->ops->stack(f->dev, &groups, b->n_rows, b->n_wide);
    f->dev->ops->matmul(f->dev, &o, 1, f->mix, b->n_rows, b->n_wide);
}

const struct tern_block tern_block_sparse = {.name = "attention to compressed rows",
                                             .need = need,
                                             .caches = caches,
                                             .cannot = cannot,
                                             .runs_on = runs_on,
                                             .run = run,
                                             .feed = feed};

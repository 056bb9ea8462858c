/* Latent attention: keys and values are one latent c and a rotated part r, h W = [c | r].  A query head's part for c is
 * multiplied by the head's K_B, so that it meets c as it is cached; what attention makes of c, by its V_B. */
#include "model/block/block.h"

static void need(struct tern_needs *n, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    TERN_WIDEN(n->q, l->at.n_heads * (l->at.dim_v + l->at.dim_k));
    TERN_WIDEN(n->q, l->at.n_heads * l->latent.dim_head_v);
    TERN_WIDEN(n->q, l->latent.q_rank);
    TERN_WIDEN(n->k, l->at.dim_v + l->at.dim_k);
    TERN_WIDEN(n->v, l->at.dim_v);
    TERN_WIDEN(n->a, l->at.n_heads * (l->latent.dim_nope + l->at.dim_k));
    TERN_WIDEN(n->a, l->at.n_heads * l->at.dim_v);
    TERN_WIDEN(n->dev.max_k, d->n_embd);
    TERN_WIDEN(n->dev.max_k, l->latent.q_rank);
    TERN_WIDEN(n->dev.max_k, l->at.n_heads * l->latent.dim_head_v);
    TERN_WIDEN(n->dev.max_stack, l->at.n_heads);
    TERN_WIDEN(n->dev.max_stack_k, l->latent.dim_nope);
    TERN_WIDEN(n->dev.max_stack_k, l->at.dim_v);
}

static void caches(struct tern_kv_decl *decl, const struct tern_desc *d, const struct tern_layer_desc *l, int ctx)
{
    tern_attend_caches(decl, d, &l->at, ctx);
    decl->latent = true;
}

static const char *cannot(const struct tern_desc *d, const struct tern_layer_desc *l)
{
    return tern_attend_cannot(d, &l->at);
}

static void rotate(struct tern_forward *f, int n_rows, const struct tern_layer_desc *l, struct tern_dev_rows x,
                   int n_heads, int dim)
{
    const struct tern_rope *rope = &f->net->desc.ropes[l->at.rope];
    const struct tern_heads h = {.x = x,
                                 .n_heads = n_heads,
                                 .dim = dim,
                                 .cos = f->cos[l->at.rope],
                                 .sin = f->sin[l->at.rope],
                                 .n_rot = rope->n_rot,
                                 .interleaved = rope->interleaved};
    f->dev->ops->heads(f->dev, &h, n_rows);
}

/* a = queries [heads][nope, rotated], k = [latent | rotated] of the normed rows h. */
static void project(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_matmul q_b = {.w = &w[TERN_SLOT_Q].mat, .y = f->a};
    const struct tern_matmul first[2] = {
        {.w = &w[TERN_SLOT_KV_A].mat, .y = f->k},
        l->latent.q_rank ? (struct tern_matmul){.w = &w[TERN_SLOT_Q_A].mat, .y = f->q} : q_b,
    };
    ops->matmul(f->dev, first, 2, f->h, b->n_rows, b->n_wide);
    if (!l->latent.q_rank)
        return;
    ops->norm(f->dev, tern_dev_columns(f->q, 0, l->latent.q_rank), f->q, w[TERN_SLOT_Q_A_NORM].vec, f->net->desc.eps,
              b->n_rows);
    ops->matmul(f->dev, &q_b, 1, f->q, b->n_rows, b->n_wide);
}

/* q = [heads][latent, rotated] of the queries in a. */
static void absorb(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const size_t from = (size_t)(l->latent.dim_nope + l->at.dim_k), to = (size_t)(l->at.dim_v + l->at.dim_k);
    const struct tern_stack s = {
        .w = &f->net->layers[layer][TERN_SLOT_K_B].mat, .y = f->q, .x = f->a, .y_head = to, .x_head = from};
    f->dev->ops->stack(f->dev, &s, b->n_rows, b->n_wide);
    f->dev->ops->copy_heads(f->dev, tern_dev_columns(f->q, l->at.dim_v, l->at.dim_k), to,
                            tern_dev_columns(f->a, l->latent.dim_nope, l->at.dim_k), from, l->at.n_heads, l->at.dim_k,
                            b->n_rows);
}

static void run(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_dev_rows *x)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_dev_rows rotated = tern_dev_columns(f->k, l->at.dim_v, l->at.dim_k);
    const struct tern_stack values = {.w = &w[TERN_SLOT_V_B].mat,
                                      .y = f->q,
                                      .x = f->a,
                                      .y_head = (size_t)l->latent.dim_head_v,
                                      .x_head = (size_t)l->at.dim_v};
    const struct tern_matmul o = {.w = &w[TERN_SLOT_O].mat, .y = f->t};
    (void)x;
    project(f, b, layer);
    ops->norm(f->dev, tern_dev_columns(f->v, 0, l->at.dim_v), f->k, w[TERN_SLOT_KV_A_NORM].vec, d->eps, b->n_rows);
    rotate(f, b->n_rows, l, rotated, 1, l->at.dim_k);
    rotate(f, b->n_rows, l,
           tern_dev_columns(f->a, l->latent.dim_nope, l->at.n_heads * (l->latent.dim_nope + l->at.dim_k)),
           l->at.n_heads, l->latent.dim_nope + l->at.dim_k);
    absorb(f, b, layer);
    tern_cached_attend(f, layer, rotated);
    ops->stack(f->dev, &values, b->n_rows, b->n_wide);
    ops->matmul(f->dev, &o, 1, f->q, b->n_rows, b->n_wide);
}

const struct tern_block tern_block_latent = {
    .name = "latent attention", .need = need, .caches = caches, .cannot = cannot, .run = run};

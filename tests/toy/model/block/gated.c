/* Attention whose output is gated by a product of its own: t = (sigmoid(h Wg) * attention(h Wq, h Wk, h Wv)) Wo. */
#include "model/block/block.h"

static void need(struct tern_needs *n, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    tern_block_attention.need(n, d, l);
    TERN_WIDEN(n->gate, l->at.n_heads * l->at.dim_v);
}

static void caches(struct tern_kv_decl *decl, const struct tern_desc *d, const struct tern_layer_desc *l, int ctx)
{
    tern_attend_caches(decl, d, &l->at, ctx);
}

static const char *cannot(const struct tern_desc *d, const struct tern_layer_desc *l)
{
    return l->at.kv_of >= 0 ? "another layer's keys and values" : tern_attend_cannot(d, &l->at);
}

static void rotate(struct tern_forward *f, int n_rows, const struct tern_layer_desc *l, struct tern_dev_rows x,
                   int n_heads)
{
    const struct tern_rope *rope = &f->net->desc.ropes[l->at.rope];
    const struct tern_heads h = {.x = x,
                                 .n_heads = n_heads,
                                 .dim = l->at.dim_k,
                                 .cos = f->cos[l->at.rope],
                                 .sin = f->sin[l->at.rope],
                                 .n_rot = rope->n_rot,
                                 .interleaved = rope->interleaved};
    f->dev->ops->heads(f->dev, &h, n_rows);
}

static void run(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_dev_rows *x)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_matmul in[4] = {
        {.w = &w[TERN_SLOT_Q].mat, .y = f->q},
        {.w = &w[TERN_SLOT_K].mat, .y = f->k},
        {.w = &w[TERN_SLOT_V].mat, .y = f->v},
        {.w = &w[TERN_SLOT_GATED_GATE].mat, .y = f->gate},
    };
    const struct tern_matmul o = {.w = &w[TERN_SLOT_O].mat, .y = f->t};
    (void)x;
    ops->matmul(f->dev, in, 4, f->h, b->n_rows, b->n_wide);
    rotate(f, b->n_rows, l, f->q, l->at.n_heads);
    rotate(f, b->n_rows, l, f->k, l->at.n_kv_heads);
    tern_cached_attend(f, layer, f->k);
    ops->glu(f->dev, tern_dev_columns(f->gate, 0, l->at.n_heads * l->at.dim_v), f->a, b->n_rows, TERN_GATE_SIGMOID);
    ops->matmul(f->dev, &o, 1, f->gate, b->n_rows, b->n_wide);
}

const struct tern_block tern_block_gated = {
    .name = "gated attention", .need = need, .caches = caches, .cannot = cannot, .run = run};

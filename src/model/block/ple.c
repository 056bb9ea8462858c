/* Per-layer embeddings: a second, narrow embedding of each token for every layer, which the end of the layer lets into
 * the stream: t = (act(x Wg) * ple) Wo, normed. */
#include <math.h>
#include "model/block/block.h"

static void need(struct tern_needs *n, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    TERN_WIDEN(n->ple, l->n_ple * d->n_layers);
    TERN_WIDEN(n->ple_gate, l->n_ple * d->n_layers);
    TERN_WIDEN(n->dev.max_k, l->n_ple);
}

/* ple = (norm(x Wp / sqrt(n)) + embed(tokens)) / sqrt(2), norm by layer. */
void tern_ple_begin(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_weights *w = f->net->globals;
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_dev_rows x = f->residual->read(f, b, 0, TERN_HALF_PLE);
    const int ple = d->layers[0].n_ple;
    const struct tern_matmul in = {&w[TERN_PLE_IN].mat, {0}, f->ple, false};
    const struct tern_heads norm = {
        .x = f->ple, .n_heads = d->n_layers, .dim = ple, .norm = true, .norm_w = w[TERN_PLE_NORM].vec, .eps = d->eps};
    ops->matmul(f->dev, &in, 1, x, b->n_rows, b->n_wide);
    ops->scale(f->dev, f->ple, b->n_rows, 1 / sqrtf((float)d->n_embd));
    ops->heads(f->dev, &norm, b->n_rows);
    ops->embed(f->dev, f->ple_gate, &w[TERN_PLE_EMBED].mat, b->n_rows, sqrtf((float)ple));
    ops->add(f->dev, f->ple, f->ple, f->ple_gate, b->n_rows);
    ops->scale(f->dev, f->ple, b->n_rows, 1 / sqrtf(2));
}

static void run(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_dev_rows *x)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_matmul gate = {&w[TERN_SLOT_PLE_GATE].mat, {0}, f->ple_gate, false};
    const struct tern_matmul out = {&w[TERN_SLOT_PLE_OUT].mat, {0}, f->t, false};
    ops->matmul(f->dev, &gate, 1, *x, b->n_rows, b->n_wide);
    ops->glu(f->dev, tern_dev_columns(f->ple_gate, 0, l->n_ple), tern_dev_columns(f->ple, layer * l->n_ple, l->n_ple),
             b->n_rows, tern_layer_gate(l));
    ops->matmul(f->dev, &out, 1, f->ple_gate, b->n_rows, b->n_wide);
}

const struct tern_block tern_block_ple = {.name = "per-layer embedding", .need = need, .run = run};

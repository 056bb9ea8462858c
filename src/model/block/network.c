/* The feed-forward half of a layer: one network.  With experts: experts.c. */
#include "model/block/block.h"

enum tern_gate tern_layer_gate(const struct tern_layer_desc *l)
{
    return l->act == TERN_ACT_GELU_TANH ? TERN_GATE_GELU : TERN_GATE_SILU;
}

static void need(struct tern_needs *n, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    TERN_WIDEN(n->ff_gate, l->n_ff);
    TERN_WIDEN(n->ff_up, l->n_ff);
    TERN_WIDEN(n->dev.max_k, d->n_embd);
    TERN_WIDEN(n->dev.max_k, l->n_ff);
}

void tern_network_run(struct tern_forward *f, const struct tern_forward_batch *b, const struct tern_layer_desc *l,
                      const struct tern_network *n, const struct tern_dev_rows *y, const struct tern_dev_rows *h)
{
    const struct tern_dev_ops *ops = f->dev->ops;
    if (ops->network && !(n->clamp > 0)) {
        const struct tern_dev_network all = {&n->gate->mat,      &n->up->mat, &n->down->mat,
                                             tern_layer_gate(l), f->ff_gate,  f->ff_up};
        ops->network(f->dev, &all, *y, *h, b->n_rows, b->n_wide);
        return;
    }
    const struct tern_matmul gu[2] = {
        {.w = &n->gate->mat, .y = f->ff_gate},
        {.w = &n->up->mat, .y = f->ff_up},
    };
    const struct tern_matmul d = {.w = &n->down->mat, .y = *y};
    ops->matmul(f->dev, gu, 2, *h, b->n_rows, b->n_wide);
    if (n->clamp > 0)
        ops->clamp(f->dev, tern_dev_columns(f->ff_gate, 0, n->gate->mat.n), f->ff_up, b->n_rows, n->clamp);
    ops->glu(f->dev, tern_dev_columns(f->ff_gate, 0, n->gate->mat.n), f->ff_up, b->n_rows, tern_layer_gate(l));
    ops->matmul(f->dev, &d, 1, f->ff_gate, b->n_rows, b->n_wide);
}

static void run(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_dev_rows *x)
{
    const struct tern_weights *w = f->net->layers[layer];
    (void)x;
    const struct tern_network n = {&w[TERN_SLOT_GATE], &w[TERN_SLOT_UP], &w[TERN_SLOT_DOWN], 0};
    tern_network_run(f, b, &f->net->desc.layers[layer], &n, &f->t, &f->h);
}

const struct tern_block tern_block_network = {.name = "network", .need = need, .run = run};

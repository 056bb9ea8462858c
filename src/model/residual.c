/* The residual stream: how blocks read it and how their answers come back into it. */
#include <string.h>
#include "model/block/block.h"

static void need(struct tern_needs *n, const struct tern_desc *d)
{
    TERN_WIDEN(n->x, d->n_embd);
}

static void embed(struct tern_forward *f, const struct tern_forward_batch *b)
{
    f->dev->ops->embed(f->dev, f->x.p, f->x.stride, &f->net->globals[TERN_EMBED].mat, b->rows, b->n_rows,
                       f->net->desc.embed_scale);
}

static const struct tern_rows *stream(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    (void)b, (void)layer;
    return &f->x;
}

static void add(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    (void)layer;
    f->dev->ops->add(f->dev, f->x.p, f->x.p, f->t.p, f->x.stride, f->net->desc.n_embd, b->n_rows);
}

static void scale(struct tern_forward *f, const struct tern_forward_batch *b, float factor)
{
    f->dev->ops->scale(f->dev, f->x.p, f->x.stride, f->net->desc.n_embd, b->n_rows, factor);
}

static void collapse(struct tern_forward *f, const struct tern_forward_batch *b)
{
    for (int i = 0; i < b->n_logit_rows; i++)
        memcpy(f->t.p + (size_t)i * f->t.stride, f->x.p + (size_t)b->logit_rows[i] * f->x.stride,
               (size_t)f->net->desc.n_embd * sizeof(float));
}

const struct tern_residual tern_residual_plain = {
    .name = "plain", .need = need, .embed = embed, .read = stream, .add = add, .scale = scale, .collapse = collapse};

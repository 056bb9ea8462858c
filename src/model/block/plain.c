/* The residual stream: how blocks read it and how their answers come back into it. */
#include "model/block/block.h"

static void need(struct tern_needs *n, const struct tern_desc *d)
{
    TERN_WIDEN(n->x, d->n_embd);
}

static void embed(struct tern_forward *f, const struct tern_forward_batch *b)
{
    f->dev->ops->embed(f->dev, f->x, &f->net->globals[TERN_EMBED].mat, b->n_rows, f->net->desc.embed_scale);
}

static struct tern_dev_rows stream(struct tern_forward *f, const struct tern_forward_batch *b, int layer,
                                   enum tern_half half)
{
    (void)b, (void)layer, (void)half;
    return f->x;
}

static void add(struct tern_forward *f, const struct tern_forward_batch *b, int layer, enum tern_half half)
{
    (void)layer, (void)half;
    f->dev->ops->add(f->dev, f->x, f->x, f->t, b->n_rows);
}

static void scale(struct tern_forward *f, const struct tern_forward_batch *b, float factor)
{
    f->dev->ops->scale(f->dev, f->x, b->n_rows, factor);
}

static void collapse(struct tern_forward *f, const struct tern_forward_batch *b)
{
    f->dev->ops->pick(f->dev, f->t, f->x, b->logit_rows, b->n_logit_rows);
}

const struct tern_residual tern_residual_plain = {
    .name = "plain", .need = need, .embed = embed, .read = stream, .add = add, .scale = scale, .collapse = collapse};

/* Two streams a and b, side by side in f->x, and behind them what blocks read: a + b.  An answer t changes both:
 * b = norm(b) + t, a = a + t; the norm is the half's. */
#include "model/block/block.h"

enum { A, B, SUM, PARTS };

static void need(struct tern_needs *n, const struct tern_desc *d)
{
    TERN_WIDEN(n->x, PARTS * d->n_embd);
}

static struct tern_dev_rows part(const struct tern_forward *f, int which)
{
    return tern_dev_columns(f->x, which * f->net->desc.n_embd, f->net->desc.n_embd);
}

static void embed(struct tern_forward *f, const struct tern_forward_batch *b)
{
    for (int which = A; which <= B; which++)
        f->dev->ops->embed(f->dev, part(f, which), &f->net->globals[TERN_EMBED].mat, b->n_rows, 1);
}

static struct tern_dev_rows stream(struct tern_forward *f, const struct tern_forward_batch *b, int layer,
                                   enum tern_half half)
{
    (void)layer, (void)half;
    f->dev->ops->add(f->dev, part(f, SUM), part(f, A), part(f, B), b->n_rows);
    return part(f, SUM);
}

static void add(struct tern_forward *f, const struct tern_forward_batch *b, int layer, enum tern_half half)
{
    const int norm = half == TERN_HALF_MIXER ? TERN_SLOT_TWIN_NORM : TERN_SLOT_TWIN_FFN_NORM;
    const struct tern_dev_rows one = part(f, A), other = part(f, B);
    tern_norm_rows(f, &other, &other, f->net->layers[layer][norm].vec, b->n_rows);
    f->dev->ops->add(f->dev, other, other, f->t, b->n_rows);
    f->dev->ops->add(f->dev, one, one, f->t, b->n_rows);
}

static void scale(struct tern_forward *f, const struct tern_forward_batch *b, float factor)
{
    f->dev->ops->scale(f->dev, f->x, b->n_rows, factor);
}

static struct tern_dev_rows collapse(struct tern_forward *f, const struct tern_forward_batch *b)
{
    f->dev->ops->pick(f->dev, f->t, stream(f, b, 0, TERN_HALF_MIXER), b->logit_rows, b->n_logit_rows);
    return f->t;
}

const struct tern_residual tern_residual_twin = {
    .name = "twin", .need = need, .embed = embed, .read = stream, .add = add, .scale = scale, .collapse = collapse};

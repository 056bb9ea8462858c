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

static struct tern_dev_rows collapse(struct tern_forward *f, const struct tern_forward_batch *b)
{
    int same = 0;
    while (same < b->n_logit_rows && b->logit_rows[same] == same)
        same++;
    if (same == b->n_logit_rows)
        return f->x;
    f->dev->ops->pick(f->dev, f->t, f->x, b->logit_rows, b->n_logit_rows);
    return f->t;
}

static int hidden_width(const struct tern_desc *d)
{
    return d->n_embd;
}

/* As the output matrix reads them. */
static void hidden(struct tern_forward *f, const struct tern_forward_batch *b, const struct tern_dev_rows *to)
{
    tern_norm_rows(f, to, &f->x, f->net->globals[TERN_OUT_NORM].vec, b->n_rows);
}

static void join(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_weights *w = f->net->layers[f->net->desc.n_layers];
    const struct tern_dev_rows right = tern_dev_columns(f->joined, f->net->desc.n_embd, f->net->desc.n_embd);
    const struct tern_matmul in = {.w = &w[TERN_SLOT_MTP_IN].mat, .y = f->x};
    tern_norm_rows(f, &right, &f->hidden_before, w[TERN_SLOT_MTP_HIDDEN_NORM].vec, b->n_rows);
    f->dev->ops->matmul(f->dev, &in, 1, f->joined, b->n_rows, b->n_wide);
}

static void answer(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_dev_vec own = f->net->layers[f->net->desc.n_layers][TERN_SLOT_MTP_NORM].vec;
    tern_norm_rows(f, &f->hidden_now, &f->x, own.mem ? own : f->net->globals[TERN_OUT_NORM].vec, b->n_rows);
    f->dev->ops->copy_heads(f->dev, f->h, 0, f->hidden_now, 0, 1, f->net->desc.n_embd, b->n_rows);
}

const struct tern_residual tern_residual_plain = {.name = "plain",
                                                  .need = need,
                                                  .embed = embed,
                                                  .read = stream,
                                                  .add = add,
                                                  .scale = scale,
                                                  .collapse = collapse,
                                                  .hidden_width = hidden_width,
                                                  .hidden = hidden,
                                                  .join = join,
                                                  .answer = answer};

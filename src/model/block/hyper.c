/* Several streams instead of one (hyper-connections): a block reads a weighed sum of them, and its answer goes into
 * all, which are mixed by a doubly stochastic matrix.  The weights are functions of the streams themselves. */
#include "model/block/block.h"

static int numbers_of(const struct tern_desc *d)
{
    return d->hyper.n * (d->hyper.n + 2);
}

static void need(struct tern_needs *n, const struct tern_desc *d)
{
    const int wide = d->hyper.n * d->n_embd;
    TERN_WIDEN(n->x, wide);
    TERN_WIDEN(n->mixed, wide);
    TERN_WIDEN(n->read, d->n_embd);
    TERN_WIDEN(n->weights, numbers_of(d));
    TERN_WIDEN(n->dev.max_k, wide);
}

static bool runs_on(const struct tern_dev_ops *ops)
{
    return ops->hyper_read && ops->hyper_write;
}

static void embed(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const int n = f->net->desc.n_embd;
    f->dev->ops->embed(f->dev, f->x, &f->net->globals[TERN_EMBED].mat, b->n_rows, f->net->desc.embed_scale);
    for (int j = 1; j < f->net->desc.hyper.n; j++)
        f->dev->ops->copy_heads(f->dev, tern_dev_columns(f->x, j * n, n), 0, f->x, 0, 1, n, b->n_rows);
}

/* By the tensors of one half of a layer, or of the end. */
static struct tern_hyper hyper_of(const struct tern_forward *f, const struct tern_weights *base,
                                  const struct tern_weights *scale, int iterations)
{
    const struct tern_desc *d = &f->net->desc;
    return (struct tern_hyper){.n = d->hyper.n,
                               .dim = d->n_embd,
                               .base = base->vec,
                               .scale = scale->vec,
                               .iterations = iterations,
                               .eps = d->hyper.eps,
                               .norm_eps = d->eps};
}

static struct tern_hyper half_of(const struct tern_forward *f, int layer, enum tern_half half)
{
    const struct tern_weights *w = f->net->layers[layer];
    const bool mixer = half == TERN_HALF_MIXER;
    return hyper_of(f, &w[mixer ? TERN_SLOT_MIX_ATTN_BASE : TERN_SLOT_MIX_FFN_BASE],
                    &w[mixer ? TERN_SLOT_MIX_ATTN_SCALE : TERN_SLOT_MIX_FFN_SCALE], f->net->desc.hyper.iterations);
}

/* The weights decide how the whole stream goes on: in f32 for both roles. */
static void mix(struct tern_forward *f, const struct tern_weights *w, const struct tern_hyper *h,
                const struct tern_dev_rows *streams, const struct tern_dev_rows *to, int n_rows)
{
    const struct tern_matmul m = {.w = &w->mat, .y = f->weights, .f32 = true};
    f->dev->ops->matmul(f->dev, &m, 1, *streams, n_rows, n_rows);
    f->dev->ops->hyper_read(f->dev, h, f->weights, *streams, *to, n_rows);
}

static struct tern_dev_rows read_streams(struct tern_forward *f, const struct tern_forward_batch *b, int layer,
                                         enum tern_half half)
{
    const struct tern_hyper h = half_of(f, layer, half);
    const enum tern_slot slot = half == TERN_HALF_MIXER ? TERN_SLOT_MIX_ATTN : TERN_SLOT_MIX_FFN;
    mix(f, &f->net->layers[layer][slot], &h, &f->x, &f->read, b->n_rows);
    return f->read;
}

static void add(struct tern_forward *f, const struct tern_forward_batch *b, int layer, enum tern_half half)
{
    const struct tern_hyper h = half_of(f, layer, half);
    f->dev->ops->hyper_write(f->dev, &h, f->x, f->weights, f->t, b->n_rows);
}

static void scale(struct tern_forward *f, const struct tern_forward_batch *b, float factor)
{
    f->dev->ops->scale(f->dev, f->x, b->n_rows, factor);
}

static struct tern_dev_rows collapse(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_weights *g = f->net->globals;
    const struct tern_hyper h = hyper_of(f, &g[TERN_MIX_OUT_BASE], &g[TERN_MIX_OUT_SCALE], 0);
    f->dev->ops->pick(f->dev, f->mixed, f->x, b->logit_rows, b->n_logit_rows);
    mix(f, &g[TERN_MIX_OUT], &h, &f->mixed, &f->t, b->n_logit_rows);
    return f->t;
}

static int hidden_width(const struct tern_desc *d)
{
    return d->hyper.n * d->n_embd;
}

/* All streams, as they are. */
static void hidden(struct tern_forward *f, const struct tern_forward_batch *b, const struct tern_dev_rows *to)
{
    f->dev->ops->copy_heads(f->dev, *to, 0, f->x, 0, 1, hidden_width(&f->net->desc), b->n_rows);
}

/* The embedding and each stream have products of their own, which are added up. */
static void join(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_weights *w = f->net->layers[f->net->desc.n_layers];
    const struct tern_dev_ops *ops = f->dev->ops;
    const int n = f->net->desc.n_embd;
    const struct tern_matmul token = {.w = &w[TERN_SLOT_MTP_TOKEN_IN].mat, .y = f->read};
    ops->matmul(f->dev, &token, 1, tern_dev_columns(f->joined, 0, n), b->n_rows, b->n_wide);
    for (int j = 0; j < f->net->desc.hyper.n; j++) {
        const struct tern_dev_rows x = tern_dev_columns(f->x, j * n, n),
                                   before = tern_dev_columns(f->hidden_before, j * n, n);
        const struct tern_matmul stream = {.w = &w[TERN_SLOT_MTP_HIDDEN_IN].mat, .y = x};
        tern_norm_rows(f, &f->h, &before, w[TERN_SLOT_MTP_HIDDEN_NORM].vec, b->n_rows);
        ops->matmul(f->dev, &stream, 1, f->h, b->n_rows, b->n_wide);
        ops->add(f->dev, x, x, f->read, b->n_rows);
    }
}

static void answer(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_weights *w = f->net->layers[f->net->desc.n_layers];
    const struct tern_hyper h = hyper_of(f, &w[TERN_SLOT_MTP_MIX_BASE], &w[TERN_SLOT_MTP_MIX_SCALE], 0);
    hidden(f, b, &f->hidden_now);
    mix(f, &w[TERN_SLOT_MTP_MIX], &h, &f->x, &f->t, b->n_rows);
    tern_norm_rows(f, &f->h, &f->t, w[TERN_SLOT_MTP_NORM].vec, b->n_rows);
}

const struct tern_residual tern_residual_hyper = {.name = "residual streams that mix",
                                                  .need = need,
                                                  .runs_on = runs_on,
                                                  .embed = embed,
                                                  .read = read_streams,
                                                  .add = add,
                                                  .scale = scale,
                                                  .collapse = collapse,
                                                  .hidden_width = hidden_width,
                                                  .hidden = hidden,
                                                  .join = join,
                                                  .answer = answer};

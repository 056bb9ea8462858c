/* One step through the model, over a ragged batch, for every descriptor.
 *
 *   stream = embed(tokens)
 *   per layer, per half of it:  stream += post(block(norm(stream)))      (block/block.h)
 *   logits = norm(stream[rows that want them]) head
 *
 * Shapes are [rows][features], row-major, every row 64-byte aligned.  The `+=` is the residual's (block/plain.c). */
#include "base/mem.h"
#include "model/block/block.h"
#include "model/resident.h"

void tern_norm_rows(struct tern_forward *f, const struct tern_dev_rows *y, const struct tern_dev_rows *x,
                    struct tern_dev_vec w, int n_rows)
{
    f->dev->ops->norm(f->dev, *y, *x, w, f->net->desc.eps, n_rows);
}

static void run_half(struct tern_forward *f, const struct tern_forward_batch *b, int layer, enum tern_half half,
                     const struct tern_block *block)
{
    /* Slots of the norms before and after the block; -1: per-layer embeddings read the stream as it is. */
    static const int norms[] = {TERN_SLOT_ATTN_NORM, TERN_SLOT_FFN_NORM, -1};
    static const int posts[] = {TERN_SLOT_ATTN_POST_NORM, TERN_SLOT_FFN_POST_NORM, TERN_SLOT_PLE_POST_NORM};
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_rows x = f->residual->read(f, b, layer, half);
    if (norms[half] >= 0)
        tern_norm_rows(f, &f->h, &x, w[norms[half]].vec, b->n_rows);
    block->run(f, b, layer, &x);
    if (w[posts[half]].vec.mem)
        tern_norm_rows(f, &f->t, &f->t, w[posts[half]].vec, b->n_rows);
    f->residual->add(f, b, layer, half);
}

/* What follows is of this layer (dev.h). */
static void go_to(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    if (f->dev->ops->layer)
        f->dev->ops->layer(f->dev, layer, f->x, b->n_rows);
}

static void run_layer(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    go_to(f, b, layer);
    run_half(f, b, layer, TERN_HALF_MIXER, tern_mixers[l->mixer]);
    run_half(f, b, layer, TERN_HALF_FFN, tern_ffns[l->ffn]);
    if (l->n_ple)
        run_half(f, b, layer, TERN_HALF_PLE, &tern_block_ple);
    if (f->net->layers[layer][TERN_SLOT_OUT_SCALE].vec.mem)
        f->residual->scale(f, b, f->net->out_scales[layer]);
}

static void turn_angles(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_desc *d = &f->net->desc;
    for (int r = 0; r < d->n_ropes; r++)
        f->dev->ops->rope_table(f->dev, f->cos[r], f->sin[r], f->freq[r], d->ropes[r].n_rot, d->ropes[r].magnitude,
                                b->n_rows);
}

/* Only the rows that want logits go through the output matrix. */
static void head(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_weights *w = f->net->globals;
    const struct tern_matmul out = {&w[TERN_HEAD].mat, {0}, f->out, false};
    int n_wide = 0;
    for (int i = 0; i < b->n_logit_rows; i++)
        n_wide += b->logit_rows[i] < b->n_wide;
    const struct tern_dev_rows x = f->residual->collapse(f, b);
    tern_norm_rows(f, &f->h, &x, w[TERN_OUT_NORM].vec, b->n_logit_rows);
    f->dev->ops->matmul(f->dev, &out, 1, f->h, b->n_logit_rows, n_wide);
    if (d->logit_cap > 0)
        f->dev->ops->softcap(f->dev, f->out, b->n_logit_rows, d->logit_cap);
}

/* The best of the logits that head has made. */
static void best(struct tern_forward *f, const struct tern_forward_batch *b)
{
    struct tern_best best = {.x = f->out, .n = b->best, .values = f->best, .ids = f->best};
    TERN_ASSERT(b->n_best <= f->max_best && b->best_from + b->n_best <= f->max_out);
    best.x.at += (size_t)b->best_from * f->out.stride;
    best.ids.at += (size_t)b->n_best * (size_t)b->best;
    f->dev->ops->best(f->dev, &best, b->n_best);
}

/* The rows that the output matrix reads, of whom asks for them. */
static void hidden(struct tern_forward *f, const struct tern_forward_batch *b)
{
    struct tern_forward_batch rows = *b;
    rows.logit_rows = b->hidden_rows;
    rows.n_logit_rows = b->n_hidden_rows;
    const struct tern_dev_rows x = f->residual->collapse(f, &rows);
    tern_norm_rows(f, &f->hidden, &x, f->net->globals[TERN_OUT_NORM].vec, b->n_hidden_rows);
}

void tern_forward_run(struct tern_forward *f, const struct tern_forward_batch *b)
{
    TERN_ASSERT(b->n_rows > 0 && b->n_rows <= f->max_rows && b->n_jobs <= f->max_jobs);
    f->fault = (tern_error){0};
    if (f->net->resident)
        tern_resident_begin(f->net->resident, b->rows, b->n_rows);
    tern_cached_begin(f, b);
    f->residual->embed(f, b);
    if (f->ple.mem)
        tern_ple_begin(f, b);
    turn_angles(f, b);
    for (int i = 0; i < f->net->desc.n_layers && !f->fault.code; i++)
        run_layer(f, b, i);
    go_to(f, b, -1);
    if (b->n_hidden_rows)
        hidden(f, b);
    if (b->n_logit_rows)
        head(f, b);
    if (b->n_best)
        best(f, b);
    if (f->mtp)
        tern_mtp_feed(f, b);
    f->dev->ops->end(f->dev);
}

void tern_forward_guess(struct tern_forward *f, const struct tern_forward_batch *b, const int *from)
{
    TERN_ASSERT(f->mtp && b->n_rows > 0 && b->n_rows <= f->max_rows && b->n_jobs == b->n_rows);
    f->fault = (tern_error){0};
    tern_cached_begin(f, b);
    tern_mtp_before(f, b, from);
    turn_angles(f, b);
    run_layer(f, b, f->net->desc.n_layers);
    tern_mtp_head(f, b);
    if (b->n_best)
        best(f, b);
    f->dev->ops->end(f->dev);
}

int tern_forward_fault(struct tern_forward *f, tern_error *err)
{
    const int rc = tern_dev_fault(f->dev, false, err);
    if (rc < 0 || !f->fault.code)
        return rc;
    if (err)
        *err = f->fault;
    return f->fault.code;
}

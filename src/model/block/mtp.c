/* The layer for multi-token prediction (DeepSeek-V3 report, 2412.19437, equations 21 to 23): from what the output
 * matrix reads at token i - 1 and the embedding of token i it makes a row, and from that row what token i + 1 is likely
 * to be.
 *
 *   row = [norm(embedding of i), norm(hidden of i - 1)] Win;  hidden' = norm(layer(row));  logits = hidden' head
 *
 * Where there are several streams, these are the hidden vectors (block/hyper.c).
 *
 * A row has the position of its token, so the layer's keys and values lie beside those of all other layers, and the
 * last token's hidden vector is a state.  That the published pairs are counted from token i - 1 is the same: positions
 * are turned by alone, and so only their differences matter.  The first token has nothing before it; its hidden vector
 * is 0.
 *
 * Steps only feed the layer: they compute what it caches.  Guesses run it alone (tern_forward_guess), on a further row
 * of each sequence, and further ones go on from hidden'. */
#include "model/block/block.h"

static int width_of(const struct tern_desc *d)
{
    return tern_residuals[d->residual]->hidden_width(d);
}

void tern_mtp_caches(struct tern_kv_decl *decl, const struct tern_desc *d)
{
    decl->guesses = true;
    decl->state_bytes = (size_t)width_of(d) * sizeof(float);
}

void tern_mtp_need(struct tern_needs *n, const struct tern_desc *d)
{
    TERN_WIDEN(n->hidden_before, width_of(d));
    TERN_WIDEN(n->hidden_now, width_of(d));
    TERN_WIDEN(n->joined, 2 * d->n_embd);
    TERN_WIDEN(n->dev.max_k, 2 * d->n_embd);
}

static const struct tern_weights *weights_of(const struct tern_forward *f)
{
    return f->net->layers[f->net->desc.n_layers];
}

/* ---- hidden vectors ---------------------------------------------------------------------------------------------- */

/* A job's state: the hidden vector of the last token of its sequence. */
static struct tern_dev_mem *state_of(const struct tern_forward *f, const struct tern_dev_job *j, uint32_t block,
                                     size_t *at)
{
    const struct tern_dev_cache *c = &f->cached.caches[j->cache];
    *at = block * c->states.bytes + c->state_off[f->net->desc.n_layers];
    return c->states.mem;
}

static size_t row_at(struct tern_dev_rows r, int row)
{
    return (r.at + (size_t)row * r.stride) * sizeof(float);
}

/* hidden_before = what tokens before the rows of a step have in hidden_now, and the states those of the last ones. */
static void shift(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_dev_ops *ops = f->dev->ops;
    const size_t bytes = (size_t)width_of(&f->net->desc) * sizeof(float);
    size_t at;
    for (int i = 0; i < b->n_jobs; i++) {
        const struct tern_dev_job *j = &f->cached.jobs[i];
        struct tern_dev_mem *state = state_of(f, j, j->state, &at);
        ops->copy(f->dev, f->hidden_before.mem, row_at(f->hidden_before, j->row0), state, at, bytes);
        if (j->n_rows > 1) /* one stride serves both */
            ops->copy(f->dev, f->hidden_before.mem, row_at(f->hidden_before, j->row0 + 1), f->hidden_now.mem,
                      row_at(f->hidden_now, j->row0), (size_t)(j->n_rows - 1) * f->hidden_now.stride * sizeof(float));
        ops->copy(f->dev, state, at, f->hidden_now.mem, row_at(f->hidden_now, j->row0 + j->n_rows - 1), bytes);
        for (int m = 0; m < j->n_marks; m++) {
            (void)state_of(f, j, j->marks[m].block, &at);
            ops->copy(f->dev, state, at, f->hidden_now.mem, row_at(f->hidden_now, j->row0 + j->marks[m].at - 1), bytes);
        }
    }
}

/* ---- the layer --------------------------------------------------------------------------------------------------- */

/* The rows that the layer reads become the stream. */
static void join(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_weights *w = weights_of(f);
    const struct tern_dev_weight *embed =
        w[TERN_SLOT_MTP_EMBED].mat.form ? &w[TERN_SLOT_MTP_EMBED].mat : &f->net->globals[TERN_EMBED].mat;
    const struct tern_dev_rows left = tern_dev_columns(f->joined, 0, f->net->desc.n_embd);
    f->dev->ops->embed(f->dev, f->t, embed, b->n_rows, f->net->desc.embed_scale);
    tern_norm_rows(f, &left, &f->t, w[TERN_SLOT_MTP_TOKEN_NORM].vec, b->n_rows);
    f->residual->join(f, b);
}

void tern_mtp_feed(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_desc *d = &f->net->desc;
    const int layer = d->n_layers;
    f->residual->hidden(f, b, &f->hidden_now);
    shift(f, b);
    join(f, b);
    const struct tern_dev_rows x = f->residual->read(f, b, layer, TERN_HALF_MIXER);
    tern_norm_rows(f, &f->h, &x, f->net->layers[layer][TERN_SLOT_ATTN_NORM].vec, b->n_rows);
    tern_mixers[d->layers[layer].mixer]->feed(f, b, layer);
}

void tern_mtp_before(struct tern_forward *f, const struct tern_forward_batch *b, const int *from)
{
    const size_t bytes = (size_t)width_of(&f->net->desc) * sizeof(float);
    size_t at;
    if (from)
        f->dev->ops->pick(f->dev, f->hidden_before, f->hidden_now, from, b->n_rows);
    for (int i = 0; i < b->n_jobs && !from; i++) {
        const struct tern_dev_job *j = &f->cached.jobs[i];
        struct tern_dev_mem *state = state_of(f, j, j->state, &at);
        f->dev->ops->copy(f->dev, f->hidden_before.mem, row_at(f->hidden_before, j->row0), state, at, bytes);
    }
    join(f, b);
}

void tern_mtp_head(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_weights *w = weights_of(f);
    const struct tern_dev_weight *head =
        w[TERN_SLOT_MTP_HEAD].mat.form ? &w[TERN_SLOT_MTP_HEAD].mat : &f->net->globals[TERN_HEAD].mat;
    const struct tern_matmul out = {.w = head, .y = f->out};
    f->residual->answer(f, b);
    f->dev->ops->matmul(f->dev, &out, 1, f->h, b->n_rows, b->n_wide);
    if (d->logit_cap > 0)
        f->dev->ops->softcap(f->dev, f->out, b->n_rows, d->logit_cap);
}

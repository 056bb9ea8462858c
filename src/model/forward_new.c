/* What a step works in: rows as wide as the widest block wants them, the device, the tables of angles. */
#include "base/mem.h"
#include "model/block/block.h"

int tern_forward_take(struct tern_forward *f, void *out, size_t n, size_t size, tern_error *err)
{
    f->bytes += n * size;
    return tern_alloc(out, n, size, err);
}

/* The largest needs of all layers, so that one set of rows serves them all. */
static void ask_blocks(struct tern_needs *n, const struct tern_forward *f)
{
    const struct tern_desc *d = &f->net->desc;
    n->h = n->t = n->dev.max_k = d->n_embd;
    f->residual->need(n, d);
    for (int i = 0; i < f->caches[0].layout->n_layers; i++) {
        tern_mixers[d->layers[i].mixer]->need(n, d, &d->layers[i]);
        tern_ffns[d->layers[i].ffn]->need(n, d, &d->layers[i]);
        tern_block_ple.need(n, d, &d->layers[i]);
    }
    if (f->mtp)
        tern_mtp_need(n, d);
    n->gate = n->gate ? n->a : 0; /* one stride serves both */
}

int tern_forward_vec(struct tern_forward *f, struct tern_dev_vec *out, size_t n, tern_error *err)
{
    f->bytes += n * sizeof(float);
    return f->dev->ops->reserve(f->dev, &out->mem, n * sizeof(float), false, err);
}

static int take_rows(struct tern_forward *f, struct tern_dev_rows *r, int width, tern_error *err)
{
    int rc = width ? tern_dev_rows_new(f->dev, r, f->max_rows, width, err) : 0;
    f->bytes += (size_t)f->max_rows * r->stride * sizeof(float);
    return rc;
}

/* What attention reads and answers is over when a layer's network begins, so it may lie where that has its second rows,
 * all queries, then all keys and so on.  Not on devices made of others, which keep account of who has which columns of
 * rows that are written next.  False: there is no room. */
static bool lay_over(struct tern_forward *f, const struct tern_needs *n)
{
    struct tern_dev_rows *const rows[] = {&f->q, &f->k, &f->v, &f->a};
    const int widths[] = {n->q, n->k, n->v, n->a};
    size_t numbers = 0;
    for (int i = 0; i < 4; i++)
        numbers += tern_round_up((size_t)widths[i], 16);
    if (f->dev->ops->together || f->dev->ops->cut || numbers > (size_t)n->ff_up)
        return false;
    numbers = 0;
    for (int i = 0; i < 4; i++) {
        *rows[i] = (struct tern_dev_rows){
            .mem = widths[i] ? f->ff_up.mem : NULL,
            .at = numbers,
            .stride = tern_round_up((size_t)widths[i], 16),
            .width = widths[i],
        };
        numbers += (size_t)f->max_rows * rows[i]->stride;
    }
    return true;
}

/* Frequencies of this context, and room for the angles that they make. */
static int take_angles(struct tern_forward *f, int r, tern_error *err)
{
    int rc = 0;
    const struct tern_rope *rope = &f->net->desc.ropes[r];
    const size_t half = (size_t)rope->n_rot / 2;
    TERN_TRY(tern_forward_vec(f, &f->freq[r], half, err));
    TERN_TRY(tern_forward_vec(f, &f->cos[r], (size_t)f->max_rows * half, err));
    TERN_TRY(tern_forward_vec(f, &f->sin[r], (size_t)f->max_rows * half, err));
    f->dev->ops->copy_in(f->dev, f->freq[r].mem, 0, tern_rope_freq(rope, f->caches[0].max_tokens),
                         half * sizeof(float));
out:
    return rc;
}

static int take_all(struct tern_forward *f, const struct tern_needs *n, tern_error *err)
{
    int rc = 0;
    const size_t rows = (size_t)f->max_rows;
    TERN_TRY(take_rows(f, &f->ff_up, n->ff_up, err));
    f->laid_over = lay_over(f, n);
#define TAKE(name)    \
    if (!f->name.mem) \
        TERN_TRY(take_rows(f, &f->name, n->name, err));
    TERN_ROWS_LIST(TAKE)
#undef TAKE
    if (n->active) {
        TERN_TRY(tern_forward_vec(f, &f->expert_ids, rows * (size_t)n->active, err));
        TERN_TRY(tern_forward_vec(f, &f->expert_weights, rows * (size_t)n->active, err));
        if (f->net->resident)
            TERN_TRY(tern_forward_take(f, &f->wanted, rows * (size_t)n->active, sizeof *f->wanted, err));
    }
    if (n->chosen) {
        TERN_TRY(tern_forward_vec(f, &f->chosen, rows * (size_t)n->chosen, err));
        TERN_TRY(tern_forward_vec(f, &f->n_chosen, rows, err));
    }
    for (int r = 0; r < f->net->desc.n_ropes; r++)
        TERN_TRY(take_angles(f, r, err));
out:
    return rc;
}

int tern_forward_new(struct tern_forward **out, const struct tern_net *net, const struct tern_kv_cache *caches,
                     int n_plans, struct tern_dev *dev, int max_rows, int max_narrow, int max_jobs, bool exact,
                     bool decode16, bool prompt8, tern_error *err)
{
    int rc = 0;
    struct tern_forward *f = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&f, 1, sizeof *f, err));
    f->net = net;
    f->caches = caches;
    f->n_plans = n_plans;
    f->dev = dev;
    f->max_rows = max_rows;
    f->max_jobs = max_jobs;
    f->residual = tern_residuals[net->desc.residual];
    f->mtp = caches[0].layout->n_layers > net->desc.n_layers;
    struct tern_needs needs = {
        .dev = {
            .max_rows = max_rows, .max_narrow = max_narrow, .exact = exact, .decode16 = decode16, .prompt8 = prompt8}};
    if (dev->ops->best && net->desc.n_vocab <= TERN_BEST_WIDTH)
        needs.dev.max_best = net->desc.n_vocab;
    ask_blocks(&needs, f);
    TERN_TRY(tern_cached_open(f, &needs.dev, err));
    TERN_TRY(take_all(f, &needs, err));
    *out = f;
    f = NULL;
out:
    tern_forward_free(f);
    return rc;
}

void tern_forward_free(struct tern_forward *f)
{
    if (!f)
        return;
    const struct tern_dev_ops *ops = f->dev->ops;
    if (f->laid_over)
        f->q.mem = f->k.mem = f->v.mem = f->a.mem = NULL;
#define RELEASE(name) ops->release(f->dev, f->name.mem);
    TERN_ROWS_LIST(RELEASE)
    RELEASE(out)
    RELEASE(hidden)
    RELEASE(best)
    RELEASE(expert_ids)
    RELEASE(expert_weights)
    RELEASE(chosen)
    RELEASE(n_chosen)
#undef RELEASE
    for (int r = 0; r < TERN_MAX_ROPES; r++) {
        ops->release(f->dev, f->freq[r].mem);
        ops->release(f->dev, f->cos[r].mem);
        ops->release(f->dev, f->sin[r].mem);
    }
    tern_cached_close(&f->cached);
    tern_free(f->wanted);
    tern_free(f);
}

size_t tern_forward_scratch_bytes(const struct tern_forward *f)
{
    return f->bytes;
}

/* At least n rows of this width, whose contents may be lost. */
static int widen(struct tern_forward *f, struct tern_dev_rows *r, int *room, int n, int width, tern_error *err)
{
    if (n <= *room)
        return 0;
    f->dev->ops->release(f->dev, r->mem);
    f->bytes -= (size_t)*room * r->stride * sizeof(float);
    *room = 0;
    int rc = tern_dev_rows_new(f->dev, r, n, width, err);
    if (rc < 0)
        return rc;
    *room = n;
    f->bytes += (size_t)n * r->stride * sizeof(float);
    return 0;
}

static int widen_best(struct tern_forward *f, int n, tern_error *err)
{
    const size_t row = 2 * TERN_BEST * sizeof(float);
    if (n <= f->max_best)
        return 0;
    f->dev->ops->release(f->dev, f->best.mem);
    f->best.mem = NULL;
    f->bytes -= (size_t)f->max_best * row;
    f->max_best = 0;
    int rc = f->dev->ops->reserve(f->dev, &f->best.mem, (size_t)n * row, false, err);
    if (rc < 0)
        return rc;
    f->max_best = n;
    f->bytes += (size_t)n * row;
    return 0;
}

int tern_forward_want(struct tern_forward *f, int n_logits, int n_hidden, int n_best, tern_error *err)
{
    int rc = 0;
    TERN_TRY(widen(f, &f->out, &f->max_out, n_logits, f->net->desc.n_vocab, err));
    TERN_TRY(widen(f, &f->hidden, &f->max_hidden, n_hidden, f->net->desc.n_embd, err));
    TERN_TRY(widen_best(f, n_best, err));
out:
    return rc;
}

void tern_forward_logits(struct tern_forward *f, float *host, int row0, int n)
{
    tern_dev_rows_out(f->dev, host, f->out, row0, n);
}

void tern_forward_best(struct tern_forward *f, const struct tern_forward_batch *b, void *host)
{
    const size_t numbers = 2 * (size_t)b->n_best * (size_t)b->best;
    f->dev->ops->copy_out(f->dev, host, f->best.mem, f->best.at * sizeof(float), numbers * sizeof(float));
}

void tern_forward_hidden(struct tern_forward *f, float *host, int row0, int n)
{
    tern_dev_rows_out(f->dev, host, f->hidden, row0, n);
}

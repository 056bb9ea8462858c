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
    for (int i = 0; i < d->n_layers; i++) {
        tern_mixers[d->layers[i].mixer]->need(n, d, &d->layers[i]);
        tern_block_ffn.need(n, d, &d->layers[i]);
        tern_block_ple.need(n, d, &d->layers[i]);
    }
    n->gate = n->gate ? n->a : 0; /* one stride serves both */
}

static int take_rows(struct tern_forward *f, struct tern_rows *r, int width, tern_error *err)
{
    r->stride = tern_round_up((size_t)width, 16);
    return width ? tern_forward_take(f, &r->p, (size_t)f->max_rows, r->stride * sizeof(float), err) : 0;
}

static int take_all(struct tern_forward *f, const struct tern_needs *n, tern_error *err)
{
    int rc = 0;
    const size_t rows = (size_t)f->max_rows;
#define TAKE(name) TERN_TRY(take_rows(f, &f->name, n->name, err));
    TERN_ROWS_LIST(TAKE)
#undef TAKE
    if (n->active) {
        TERN_TRY(tern_forward_take(f, &f->expert_ids, rows, (size_t)n->active * sizeof *f->expert_ids, err));
        TERN_TRY(tern_forward_take(f, &f->expert_weights, rows, (size_t)n->active * sizeof(float), err));
    }
    if (n->states)
        TERN_TRY(tern_forward_take(f, &f->delta, (size_t)f->max_jobs, sizeof *f->delta, err));
    for (int r = 0; r < f->net->desc.n_ropes; r++) {
        size_t half = (size_t)f->net->desc.ropes[r].n_rot / 2;
        TERN_TRY(tern_forward_take(f, &f->cos[r], rows, half * sizeof(float), err));
        TERN_TRY(tern_forward_take(f, &f->sin[r], rows, half * sizeof(float), err));
    }
out:
    return rc;
}

int tern_forward_new(struct tern_forward **out, const struct tern_net *net, const struct tern_kv_cache *caches,
                     int n_plans, struct tern_dev *dev, int max_rows, int max_narrow, int max_jobs, bool exact,
                     tern_error *err)
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
    f->residual = &tern_residual_plain;
    struct tern_needs needs = {.dev = {.max_rows = max_rows, .max_narrow = max_narrow, .exact = exact}};
    ask_blocks(&needs, f);
    TERN_TRY(tern_cached_prepare(f, &needs.dev, err));
    TERN_TRY(take_all(f, &needs, err));
    TERN_TRY(tern_cached_open(f, err));
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
#define FREE(name) tern_free(f->name.p);
    TERN_ROWS_LIST(FREE)
#undef FREE
    tern_free(f->expert_ids);
    tern_free(f->expert_weights);
    tern_free(f->delta);
    for (int r = 0; r < TERN_MAX_ROPES; r++) {
        tern_free(f->cos[r]);
        tern_free(f->sin[r]);
    }
    tern_cached_close(&f->cached);
    tern_free(f);
}

size_t tern_forward_scratch_bytes(const struct tern_forward *f)
{
    return f->bytes;
}

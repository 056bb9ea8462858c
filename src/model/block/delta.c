/* A layer with a recurrent state: m, z, b, g = h W; o = rule(conv(m), b, g) on the sequence's state;
 * t = (silu(z) * norm(o)) Wo. */
#include "model/block/block.h"

static struct tern_delta delta_of(const struct tern_layer_desc *l)
{
    return (struct tern_delta){.n_k = l->delta.k_heads,
                               .n_v = l->delta.v_heads,
                               .dk = l->delta.dim_k,
                               .dv = l->delta.dim_v,
                               .width = l->delta.conv_width,
                               .grouped = l->delta.grouped};
}

static void need(struct tern_needs *n, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    const int out = l->delta.v_heads * l->delta.dim_v;
    TERN_WIDEN(n->mix, 2 * l->delta.k_heads * l->delta.dim_k + out);
    TERN_WIDEN(n->a, out);
    TERN_WIDEN(n->gate, out);
    TERN_WIDEN(n->decay, l->delta.v_heads);
    TERN_WIDEN(n->beta, l->delta.v_heads);
    TERN_WIDEN(n->dev.max_k, d->n_embd);
    TERN_WIDEN(n->dev.max_k, out);
    n->states = true;
}

static void caches(struct tern_kv_decl *decl, const struct tern_desc *d, const struct tern_layer_desc *l, int ctx)
{
    (void)d, (void)ctx;
    const struct tern_delta delta = delta_of(l);
    decl->state_bytes = tern_delta_state_floats(&delta) * sizeof(float);
}

static const char *cannot(const struct tern_desc *d, const struct tern_layer_desc *l)
{
    (void)d;
    return l->delta.dim_k % 16 || l->delta.dim_v % 16 ? "a state of a size that is no multiple of 16"
           : l->delta.conv_width < 2 || l->delta.conv_width > TERN_DELTA_WIDTH ? "a convolution of this width"
                                                                               : NULL;
}

static void jobs(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    for (int i = 0; i < b->n_jobs; i++) {
        const struct tern_forward_job *j = &b->jobs[i];
        const struct tern_kv_cache *c = &f->caches[j->plan];
        const size_t off = c->layout->state_off[layer];
        f->delta[i] =
            (struct tern_delta_job){.row0 = j->row0,
                                    .n_rows = j->n_rows,
                                    .state = (float *)(void *)(tern_kv_block(&c->states, j->seq->state) + off)};
        if (j->mark) {
            f->delta[i].mark = (float *)(void *)(tern_kv_block(&c->states, j->mark->state) + off);
            f->delta[i].mark_at = j->mark->at - j->pos0;
        }
    }
}

/* The two products that gates come from are in f32 everywhere: their rounding would stay in the state. */
static void run(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_rows *x)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    struct tern_delta delta = delta_of(l);
    delta.conv = w[TERN_SLOT_DELTA_CONV].vec;
    delta.a = w[TERN_SLOT_DELTA_A].vec;
    delta.dt = w[TERN_SLOT_DELTA_DT].vec;
    const struct tern_matmul in[4] = {
        {&w[TERN_SLOT_DELTA_IN].mat, NULL, f->mix.p, f->mix.stride, false},
        {&w[TERN_SLOT_DELTA_Z].mat, NULL, f->gate.p, f->gate.stride, false},
        {&w[TERN_SLOT_DELTA_ALPHA].mat, NULL, f->decay.p, f->decay.stride, true},
        {&w[TERN_SLOT_DELTA_BETA].mat, NULL, f->beta.p, f->beta.stride, true},
    };
    const struct tern_delta_io io = {f->mix.p,        f->mix.stride, f->decay.p, f->beta.p,
                                     f->decay.stride, f->a.p,        f->a.stride};
    const struct tern_heads norm = {.x = f->a.p,
                                    .stride = f->a.stride,
                                    .n_heads = l->delta.v_heads,
                                    .dim = l->delta.dim_v,
                                    .norm = true,
                                    .norm_w = w[TERN_SLOT_DELTA_NORM].vec,
                                    .eps = f->net->desc.eps};
    const struct tern_matmul o = {&w[TERN_SLOT_O].mat, NULL, f->t.p, f->t.stride, false};
    (void)x;
    ops->matmul(f->dev, in, 4, f->h.p, f->h.stride, b->n_rows, b->n_wide);
    jobs(f, b, layer);
    ops->delta(f->dev, &delta, f->delta, b->n_jobs, &io, b->n_rows);
    ops->heads(f->dev, &norm, b->n_rows);
    ops->glu(f->dev, f->gate.p, f->a.p, f->a.stride, l->delta.v_heads * l->delta.dim_v, b->n_rows, TERN_GATE_SILU);
    ops->matmul(f->dev, &o, 1, f->gate.p, f->gate.stride, b->n_rows, b->n_wide);
}

const struct tern_block tern_block_delta = {
    .name = "gated delta rule", .need = need, .caches = caches, .cannot = cannot, .run = run};

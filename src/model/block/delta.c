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

/* The two products that gates come from are in f32 everywhere: their rounding would stay in the state. */
static void run(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_dev_rows *x)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    struct tern_delta delta = delta_of(l);
    delta.conv = w[TERN_SLOT_DELTA_CONV].vec;
    delta.a = w[TERN_SLOT_DELTA_A].vec;
    delta.dt = w[TERN_SLOT_DELTA_DT].vec;
    const struct tern_matmul in[4] = {
        {&w[TERN_SLOT_DELTA_IN].mat, {0}, f->mix, false},
        {&w[TERN_SLOT_DELTA_Z].mat, {0}, f->gate, false},
        {&w[TERN_SLOT_DELTA_ALPHA].mat, {0}, f->decay, true},
        {&w[TERN_SLOT_DELTA_BETA].mat, {0}, f->beta, true},
    };
    const struct tern_delta_io io = {f->mix, f->decay, f->beta, f->a};
    const struct tern_heads norm = {.x = f->a,
                                    .n_heads = l->delta.v_heads,
                                    .dim = l->delta.dim_v,
                                    .norm = true,
                                    .norm_w = w[TERN_SLOT_DELTA_NORM].vec,
                                    .eps = f->net->desc.eps};
    const struct tern_matmul o = {&w[TERN_SLOT_O].mat, {0}, f->t, false};
    (void)x;
    ops->matmul(f->dev, in, 4, f->h, b->n_rows, b->n_wide);
    ops->delta(f->dev, layer, &delta, &io, b->n_rows);
    ops->heads(f->dev, &norm, b->n_rows);
    ops->glu(f->dev, tern_dev_columns(f->gate, 0, l->delta.v_heads * l->delta.dim_v), f->a, b->n_rows, TERN_GATE_SILU);
    ops->matmul(f->dev, &o, 1, f->gate, b->n_rows, b->n_wide);
}

const struct tern_block tern_block_delta = {
    .name = "gated delta rule", .need = need, .caches = caches, .cannot = cannot, .run = run};

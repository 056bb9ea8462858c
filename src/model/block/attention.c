/* Attention: q,k,v = h W; heads(q), heads(k); append(k,v); a = attention(q); t = a Wo.  Where the output is gated, the
 * product for q yields both: t = (sigmoid(gate) * a) Wo. */
#include "model/block/block.h"

static void need(struct tern_needs *n, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    TERN_WIDEN(n->q, l->at.n_heads * l->at.dim_k);
    TERN_WIDEN(n->k, l->at.n_kv_heads * l->at.dim_k);
    TERN_WIDEN(n->v, l->at.n_kv_heads * l->at.dim_v);
    TERN_WIDEN(n->a, l->at.n_heads * l->at.dim_v);
    TERN_WIDEN(n->dev.max_k, d->n_embd);
    TERN_WIDEN(n->dev.max_k, l->at.n_heads * l->at.dim_v);
    if (!l->attention.out_gate)
        return;
    TERN_WIDEN(n->mix, 2 * l->at.n_heads * l->at.dim_k);
    TERN_WIDEN(n->gate, l->at.n_heads * l->at.dim_v);
}

static void caches(struct tern_kv_decl *decl, const struct tern_desc *d, const struct tern_layer_desc *l, int ctx)
{
    tern_attend_caches(decl, d, &l->at, ctx);
}

static const char *cannot(const struct tern_desc *d, const struct tern_layer_desc *l)
{
    return l->attention.out_gate && l->at.dim_k != l->at.dim_v ? "a gate of another size than its heads"
                                                               : tern_attend_cannot(d, &l->at);
}

static void prepare_heads(struct tern_forward *f, const struct tern_forward_batch *b, int layer,
                          const struct tern_dev_rows *x, int n_heads, struct tern_dev_vec norm_w)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    struct tern_heads h = {.x = *x, .n_heads = n_heads, .dim = l->at.dim_k};
    h.norm = norm_w.mem || l->attention.qk_norm_plain;
    h.norm_after = l->attention.qk_norm_after_rope;
    h.norm_w = norm_w;
    h.eps = d->eps;
    if (l->at.rope >= 0) {
        h.cos = f->cos[l->at.rope];
        h.sin = f->sin[l->at.rope];
        h.n_rot = d->ropes[l->at.rope].n_rot;
        h.interleaved = d->ropes[l->at.rope].interleaved;
    }
    if (x == &f->q) {
        h.temper = l->attention.q_temper;
        h.temper_span = l->attention.q_temper_span;
        h.temper_from = l->attention.q_temper_from;
    }
    if (h.norm || h.cos.mem || h.temper != 0.0f)
        f->dev->ops->heads(f->dev, &h, b->n_rows);
}

static void norm_values(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    struct tern_heads h = {
        .x = f->v, .n_heads = l->at.n_kv_heads, .dim = l->at.dim_v, .norm = true, .eps = f->net->desc.eps};
    f->dev->ops->heads(f->dev, &h, b->n_rows);
}

/* q = queries, gate = gates of the normed rows h, which the product yields head by head. */
static void split_gates(struct tern_forward *f, int n_rows, const struct tern_layer_desc *l)
{
    const int dim = l->at.dim_k;
    const struct tern_dev_rows gates = tern_dev_columns(f->mix, dim, dim);
    f->dev->ops->copy_heads(f->dev, f->q, (size_t)dim, f->mix, 2 * (size_t)dim, l->at.n_heads, dim, n_rows);
    f->dev->ops->copy_heads(f->dev, f->gate, (size_t)dim, gates, 2 * (size_t)dim, l->at.n_heads, dim, n_rows);
}

static void project(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_rows *q = l->attention.out_gate ? &f->mix : &f->q;
    const struct tern_matmul qkv[3] = {
        {&w[TERN_SLOT_Q].mat, w[TERN_SLOT_Q_BIAS].vec, *q, false},
        {&w[TERN_SLOT_K].mat, w[TERN_SLOT_K_BIAS].vec, f->k, false},
        {&w[TERN_SLOT_V].mat, w[TERN_SLOT_V_BIAS].vec, f->v, false},
    };
    f->dev->ops->matmul(f->dev, qkv, l->at.kv_of >= 0 ? 1 : l->attention.v_is_k ? 2 : 3, f->h, b->n_rows, b->n_wide);
    if (l->attention.out_gate)
        split_gates(f, b->n_rows, l);
}

static void feed(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_matmul kv[2] = {
        {&w[TERN_SLOT_K].mat, w[TERN_SLOT_K_BIAS].vec, f->k, false},
        {&w[TERN_SLOT_V].mat, w[TERN_SLOT_V_BIAS].vec, f->v, false},
    };
    f->dev->ops->matmul(f->dev, kv, 2, f->h, b->n_rows, b->n_wide);
    prepare_heads(f, b, layer, &f->k, f->net->desc.layers[layer].at.n_kv_heads, w[TERN_SLOT_K_NORM].vec);
    f->dev->ops->append(f->dev, layer, f->k, f->v);
}

static void run(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_dev_rows *x)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_dev_rows *a = l->attention.out_gate ? &f->gate : &f->a;
    const struct tern_matmul o = {&w[TERN_SLOT_O].mat, w[TERN_SLOT_O_BIAS].vec, f->t, false};
    (void)x;
    project(f, b, layer);
    prepare_heads(f, b, layer, &f->q, l->at.n_heads, w[TERN_SLOT_Q_NORM].vec);
    if (l->attention.v_is_k) /* before norm and rotation */
        ops->copy_heads(f->dev, f->v, 0, f->k, 0, 1, l->at.n_kv_heads * l->at.dim_v, b->n_rows);
    if (l->at.kv_of < 0)
        prepare_heads(f, b, layer, &f->k, l->at.n_kv_heads, w[TERN_SLOT_K_NORM].vec);
    if (l->at.kv_of < 0 && l->attention.v_norm_plain)
        norm_values(f, b, layer);
    if (b->tap)
        b->tap(b->tap_user, f->dev, layer, f->q, f->k);
    tern_cached_attend(f, layer, f->k);
    if (l->attention.out_gate)
        ops->glu(f->dev, tern_dev_columns(f->gate, 0, l->at.n_heads * l->at.dim_v), f->a, b->n_rows, TERN_GATE_SIGMOID);
    ops->matmul(f->dev, &o, 1, *a, b->n_rows, b->n_wide);
}

const struct tern_block tern_block_attention = {
    .name = "attention", .need = need, .caches = caches, .cannot = cannot, .run = run, .feed = feed};

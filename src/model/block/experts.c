/* Experts that a router chooses for each row: in the place of the dense network, with or without a network that every
 * row goes through besides, or beside the dense network. */
#include <math.h>
#include "model/block/block.h"
#include "model/resident.h"

static void need(struct tern_needs *n, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    TERN_WIDEN(n->ff_gate, l->experts.n_ff_shared);
    TERN_WIDEN(n->ff_up, l->experts.n_ff_shared);
    TERN_WIDEN(n->logits, l->experts.n);
    TERN_WIDEN(n->shared, d->n_embd);
    TERN_WIDEN(n->active, l->experts.n_active);
    TERN_WIDEN(n->dev.max_k, l->experts.n_ff_shared);
    TERN_WIDEN(n->dev.max_experts, l->experts.n);
    TERN_WIDEN(n->dev.max_active, l->experts.n_active);
    TERN_WIDEN(n->dev.max_expert_ff, l->experts.n_ff);
    TERN_WIDEN(n->dev.max_expert_embd, d->n_embd);
}

static void need_beside(struct tern_needs *n, const struct tern_desc *d, const struct tern_layer_desc *l)
{
    need(n, d, l);
    tern_block_network.need(n, d, l);
    TERN_WIDEN(n->in, d->n_embd);
}

/* One column or one per expert, in f32 everywhere: which experts a row gets should not hang on rounding. */
static void logits(struct tern_forward *f, const struct tern_forward_batch *b, const struct tern_weights *w,
                   const struct tern_dev_rows *h)
{
    const struct tern_matmul m = {.w = &w->mat, .y = f->logits, .f32 = true};
    f->dev->ops->matmul(f->dev, &m, 1, *h, b->n_rows, b->n_wide);
}

/* The experts that the logits choose; those that are not in memory are asked for. */
static void choose(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    const int n = b->n_rows * l->experts.n_active;
    const struct tern_route route = {.n_experts = l->experts.n,
                                     .n_active = l->experts.n_active,
                                     .sigmoid = l->experts.router == TERN_ROUTE_SIGMOID,
                                     .sqrt_softplus = l->experts.router == TERN_ROUTE_SQRT_SOFTPLUS,
                                     .bias = w[TERN_SLOT_ROUTER_BIAS].vec,
                                     .table = w[TERN_SLOT_ROUTER_TABLE].vec,
                                     .n_groups = l->experts.n_groups,
                                     .n_groups_used = l->experts.n_groups_used,
                                     .group_best = l->experts.router == TERN_ROUTE_SIGMOID ? 2 : 1,
                                     .normalise = l->experts.norm,
                                     .scale = l->experts.scale,
                                     .factors = w[TERN_SLOT_ROUTER_FACTORS].vec};
    ops->route(f->dev, &route, f->logits, f->expert_ids, f->expert_weights, b->n_rows);
    if (!f->net->resident)
        return;
    ops->copy_out(f->dev, f->wanted, f->expert_ids.mem, f->expert_ids.at * sizeof *f->wanted,
                  (size_t)n * sizeof *f->wanted);
    ops->sync(f->dev);
    (void)tern_resident_want(f->net->resident, layer, f->wanted, n, &f->fault);
}

/* y = what they answer.  After choose, with whatever the device can do meanwhile in between. */
static void answer(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_dev_rows *y,
                   const struct tern_dev_rows *h)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const int n = b->n_rows * l->experts.n_active;
    struct tern_resident *r = f->net->resident;
    const struct tern_experts e = {.n_active = l->experts.n_active,
                                   .gate = &w[TERN_SLOT_EXPERT_GATE].mat,
                                   .up = &w[TERN_SLOT_EXPERT_UP].mat,
                                   .down = &w[TERN_SLOT_EXPERT_DOWN].mat,
                                   .gelu = l->act == TERN_ACT_GELU_TANH,
                                   .weigh_input = l->experts.weigh_input,
                                   .clamp = l->experts.clamp};
    if (f->fault.code) /* nothing is held */
        return;
    if (!r || tern_resident_wait(r, layer, f->wanted, n, &f->fault) == 0)
        f->dev->ops->experts(f->dev, &e, *y, *h, f->expert_ids, f->expert_weights, b->n_rows, b->n_wide);
    if (r)
        tern_resident_done(r, layer, f->wanted, n);
}

/* shared = network that every row goes through, times a gate where the layer has one. */
static void run_shared(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_network n = {&w[TERN_SLOT_SHARED_GATE], &w[TERN_SLOT_SHARED_UP], &w[TERN_SLOT_SHARED_DOWN],
                                   l->experts.clamp_shared};
    tern_network_run(f, b, l, &n, &f->shared, &f->h);
    if (w[TERN_SLOT_SHARED_ROUTER].mat.form) {
        logits(f, b, &w[TERN_SLOT_SHARED_ROUTER], &f->h);
        ops->gate(f->dev, f->shared, f->logits, b->n_rows);
    }
}

static void run(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const struct tern_dev_rows *x)
{
    const bool shared = f->net->desc.layers[layer].experts.n_ff_shared;
    (void)x;
    logits(f, b, &f->net->layers[layer][TERN_SLOT_ROUTER], &f->h);
    choose(f, b, layer);
    if (shared) /* while experts are read */
        run_shared(f, b, layer);
    answer(f, b, layer, &f->t, &f->h);
    if (shared)
        f->dev->ops->add(f->dev, f->t, f->t, f->shared, b->n_rows);
}

/* t = post(network(h)) + post(experts(norm(x))); the router reads a norm of x of its own, divided by the root of its
 * length. */
static void run_beside(struct tern_forward *f, const struct tern_forward_batch *b, int layer,
                       const struct tern_dev_rows *x)
{
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    tern_block_network.run(f, b, layer, x);
    tern_norm_rows(f, &f->t, &f->t, w[TERN_SLOT_DENSE_POST_NORM].vec, b->n_rows);
    tern_norm_rows(f, &f->in, x, w[TERN_SLOT_ROUTER_NORM].vec, b->n_rows);
    ops->scale(f->dev, f->in, b->n_rows, 1 / sqrtf((float)f->net->desc.n_embd));
    logits(f, b, &w[TERN_SLOT_ROUTER], &f->in);
    choose(f, b, layer);
    tern_norm_rows(f, &f->in, x, w[TERN_SLOT_EXPERT_NORM].vec, b->n_rows);
    answer(f, b, layer, &f->shared, &f->in);
    tern_norm_rows(f, &f->shared, &f->shared, w[TERN_SLOT_EXPERT_POST_NORM].vec, b->n_rows);
    ops->add(f->dev, f->t, f->t, f->shared, b->n_rows);
}

static bool runs_on(const struct tern_dev_ops *ops, const struct tern_layer_desc *l)
{
    const bool clamps = l->experts.clamp > 0 || l->experts.clamp_shared > 0;
    const bool usual = !clamps && !l->experts.listed && l->experts.router != TERN_ROUTE_SQRT_SOFTPLUS;
    return usual || ops->clamp; /* a device that has the operation does the rest of these, too */
}

const struct tern_block tern_block_experts = {.name = "experts", .need = need, .runs_on = runs_on, .run = run};
const struct tern_block tern_block_beside = {
    .name = "experts beside a network", .need = need_beside, .run = run_beside};

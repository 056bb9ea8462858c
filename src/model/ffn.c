#include "model/ffn.h"

#include <math.h>
#include "base/mem.h"

#define WIDEN(var, value) (var = (value) > var ? (value) : var)

static int take(void *out, size_t rows, size_t n, size_t *bytes, tern_error *err)
{
    *bytes += rows * n * sizeof(float);
    return tern_alloc(out, rows, n * sizeof(float), err);
}

int tern_ffn_open(struct tern_ffn *f, const struct tern_desc *d, int max_rows, size_t *bytes, tern_error *err)
{
    int rc = 0, ff = 0, experts = 0, active = 0;
    bool beside = false;
    size_t rows = (size_t)max_rows;
    f->n_embd = d->n_embd;
    f->eps = d->eps;
    for (int i = 0; i < d->n_layers; i++) {
        WIDEN(ff, d->layers[i].n_ff);
        WIDEN(ff, d->layers[i].n_ff_shared);
        WIDEN(experts, d->layers[i].n_experts);
        WIDEN(active, d->layers[i].n_active);
        beside |= d->layers[i].n_ff && d->layers[i].n_experts;
    }
    f->s_ff = tern_round_up((size_t)ff, 16);
    f->s_embd = tern_round_up((size_t)d->n_embd, 16);
    f->s_route = tern_round_up((size_t)experts, 16);
    TERN_TRY(take(&f->gate, rows, f->s_ff, bytes, err));
    TERN_TRY(take(&f->up, rows, f->s_ff, bytes, err));
    if (experts) {
        TERN_TRY(take(&f->logits, rows, f->s_route, bytes, err));
        TERN_TRY(take(&f->weights, rows, (size_t)active, bytes, err));
        TERN_TRY(take(&f->ids, rows, (size_t)active, bytes, err));
        TERN_TRY(take(&f->shared, rows, f->s_embd, bytes, err));
    }
    if (beside)
        TERN_TRY(take(&f->in, rows, f->s_embd, bytes, err));
out:
    return rc;
}

void tern_ffn_close(struct tern_ffn *f)
{
    void *all[] = {f->gate, f->up, f->logits, f->weights, f->ids, f->shared, f->in};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
}

void tern_ffn_limits(const struct tern_desc *d, struct tern_dev_limits *limits)
{
    for (int i = 0; i < d->n_layers; i++) {
        const struct tern_layer_desc *l = &d->layers[i];
        WIDEN(limits->max_k, l->n_ff);
        WIDEN(limits->max_k, l->n_ff_shared);
        WIDEN(limits->max_experts, l->n_experts);
        WIDEN(limits->max_active, l->n_active);
        WIDEN(limits->max_expert_ff, l->n_ff_expert);
    }
    limits->max_expert_embd = d->n_embd;
}

/* y = (act(h Wg) * (h Wu)) Wd */
static void network(const struct tern_ffn *f, struct tern_dev *dev, const struct tern_layer_desc *l,
                    const struct tern_packed *gate, const struct tern_packed *up, const struct tern_packed *down,
                    float *y, const float *h, int n_rows, int n_wide)
{
    const struct tern_matmul gu[2] = {
        {.w = gate, .y = f->gate, .y_stride = f->s_ff},
        {.w = up, .y = f->up, .y_stride = f->s_ff},
    };
    dev->ops->matmul(dev, gu, 2, h, f->s_embd, n_rows, n_wide);
    dev->ops->glu(dev, f->gate, f->up, f->s_ff, gate->n, n_rows, tern_layer_gate(l));
    const struct tern_matmul d = {.w = down, .y = y, .y_stride = f->s_embd};
    dev->ops->matmul(dev, &d, 1, f->gate, f->s_ff, n_rows, n_wide);
}

/* The router's product is in f32 everywhere: which experts a row gets should not hang on rounding. */
static void router(const struct tern_ffn *f, struct tern_dev *dev, const struct tern_weights *w, const float *h,
                   int n_rows, int n_wide)
{
    const struct tern_matmul m = {.w = &w[TERN_SLOT_ROUTER].mat, .y = f->logits, .y_stride = f->s_route, .f32 = true};
    dev->ops->matmul(dev, &m, 1, h, f->s_embd, n_rows, n_wide);
}

/* y = what the experts answer that the logits choose. */
static void experts(const struct tern_ffn *f, struct tern_dev *dev, const struct tern_layer_desc *l,
                    const struct tern_weights *w, float *y, const float *h, int n_rows, int n_wide)
{
    const struct tern_route route = {.n_experts = l->n_experts,
                                     .n_active = l->n_active,
                                     .sigmoid = l->router == TERN_ROUTE_SIGMOID,
                                     .bias = w[TERN_SLOT_ROUTER_BIAS].vec,
                                     .n_groups = l->n_groups,
                                     .n_groups_used = l->n_groups_used,
                                     .group_best = l->router == TERN_ROUTE_SIGMOID ? 2 : 1,
                                     .normalise = l->route_norm,
                                     .scale = l->route_scale,
                                     .factors = w[TERN_SLOT_ROUTER_FACTORS].vec};
    const struct tern_experts e = {.n_experts = l->n_experts,
                                   .n_active = l->n_active,
                                   .gate = &w[TERN_SLOT_EXPERT_GATE].mat,
                                   .up = &w[TERN_SLOT_EXPERT_UP].mat,
                                   .down = &w[TERN_SLOT_EXPERT_DOWN].mat,
                                   .gelu = l->act == TERN_ACT_GELU_TANH,
                                   .weigh_input = l->route_input};
    dev->ops->route(dev, &route, f->logits, f->s_route, f->ids, f->weights, n_rows);
    dev->ops->experts(dev, &e, y, f->s_embd, h, f->s_embd, f->ids, f->weights, n_rows, n_wide);
}

/* y += network that every row goes through, times a gate where the layer has one. */
static void add_shared(const struct tern_ffn *f, struct tern_dev *dev, const struct tern_layer_desc *l,
                       const struct tern_weights *w, float *y, const float *h, int n_rows, int n_wide)
{
    const struct tern_packed *gate = &w[TERN_SLOT_SHARED_ROUTER].mat;
    int n = w[TERN_SLOT_SHARED_DOWN].mat.n;
    network(f, dev, l, &w[TERN_SLOT_SHARED_GATE].mat, &w[TERN_SLOT_SHARED_UP].mat, &w[TERN_SLOT_SHARED_DOWN].mat,
            f->shared, h, n_rows, n_wide);
    if (gate->data) {
        const struct tern_matmul m = {.w = gate, .y = f->logits, .y_stride = f->s_route, .f32 = true};
        dev->ops->matmul(dev, &m, 1, h, f->s_embd, n_rows, n_wide);
        dev->ops->gate(dev, f->shared, f->s_embd, n, f->logits, f->s_route, n_rows);
    }
    dev->ops->add(dev, y, y, f->shared, f->s_embd, n, n_rows);
}

static void norm(const struct tern_ffn *f, struct tern_dev *dev, float *y, const float *x, const struct tern_weights *w,
                 int n_rows)
{
    dev->ops->norm(dev, y, f->s_embd, x, f->s_embd, w->vec, f->n_embd, f->eps, n_rows);
}

/* y = post(y) + post(experts(norm(x))); the router reads a norm of x of its own, divided by the root of its length. */
static void add_beside(const struct tern_ffn *f, struct tern_dev *dev, const struct tern_layer_desc *l,
                       const struct tern_weights *w, float *y, const float *x, int n_rows, int n_wide)
{
    norm(f, dev, y, y, &w[TERN_SLOT_DENSE_POST_NORM], n_rows);
    norm(f, dev, f->in, x, &w[TERN_SLOT_ROUTER_NORM], n_rows);
    dev->ops->scale(dev, f->in, f->s_embd, f->n_embd, n_rows, 1 / sqrtf((float)f->n_embd));
    router(f, dev, w, f->in, n_rows, n_wide);
    norm(f, dev, f->in, x, &w[TERN_SLOT_EXPERT_NORM], n_rows);
    experts(f, dev, l, w, f->shared, f->in, n_rows, n_wide);
    norm(f, dev, f->shared, f->shared, &w[TERN_SLOT_EXPERT_POST_NORM], n_rows);
    dev->ops->add(dev, y, y, f->shared, f->s_embd, f->n_embd, n_rows);
}

void tern_ffn_run(const struct tern_ffn *f, struct tern_dev *dev, const struct tern_layer_desc *l,
                  const struct tern_weights *w, float *y, const float *h, const float *x, int n_rows, int n_wide)
{
    if (l->n_ff)
        network(f, dev, l, &w[TERN_SLOT_GATE].mat, &w[TERN_SLOT_UP].mat, &w[TERN_SLOT_DOWN].mat, y, h, n_rows, n_wide);
    if (l->router == TERN_ROUTE_NONE)
        return;
    if (l->n_ff) {
        add_beside(f, dev, l, w, y, x, n_rows, n_wide);
        return;
    }
    router(f, dev, w, h, n_rows, n_wide);
    experts(f, dev, l, w, y, h, n_rows, n_wide);
    if (l->n_ff_shared)
        add_shared(f, dev, l, w, y, h, n_rows, n_wide);
}

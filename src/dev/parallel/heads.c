/* Attention, and what else works head by head: each device has some of the heads.  Where keys and values have one head
 * for all queries (latents, and layers with compressed rows) every device has those whole, and some of the queries'. */
#include "dev/parallel/each.h"

/* Heads that a share's columns are, in whole ones; x may begin within the first one. */
static const struct tern_parallel_share *shared_heads(struct tern_parallel *s, struct tern_dev_rows x, int n_rows,
                                                      int n_heads, size_t dim)
{
    for (int j = 0; j < s->n_shares; j++) {
        const struct tern_parallel_share *p = &s->share[j];
        bool ok = p->x.mem == x.mem && p->x.stride == x.stride && p->n_rows == n_rows && x.at >= p->x.at &&
                  x.at - p->x.at < dim && (size_t)p->bound[s->n] == (size_t)n_heads * dim;
        for (int i = 0; ok && i <= s->n; i++)
            ok = (size_t)p->bound[i] % dim == 0;
        if (ok)
            return p;
    }
    return NULL;
}

static void op_heads(struct tern_dev *dev, const struct tern_heads *h, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_parallel_share *p = shared_heads(s, h->x, n_rows, h->n_heads, (size_t)h->dim);
    const int skipped = p ? (int)(h->x.at - p->x.at) : 0;
    if (!p)
        tern_parallel_gather(s, h->x, n_rows);
    EACH
    {
        struct tern_heads own = *h;
        const int from = p ? p->bound[i] : 0, to = p ? p->bound[i + 1] : h->n_heads * h->dim;
        own.x = p ? tern_parallel_columns(h->x, from, to - skipped, i) : ROWS(h->x);
        own.n_heads = (to - from) / h->dim;
        own.norm_w = VEC(h->norm_w);
        own.cos = VEC(h->cos);
        own.sin = VEC(h->sin);
        if (from < to)
            D->ops->heads(D, &own, n_rows);
    }
}

static void op_grid(struct tern_dev *dev, struct tern_dev_rows x, enum tern_grid grid, int n_heads, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const int dim = x.width / n_heads;
    const struct tern_parallel_share *p = shared_heads(s, x, n_rows, n_heads, (size_t)dim);
    if (!p)
        tern_parallel_gather(s, x, n_rows);
    EACH
    {
        const int from = p ? p->bound[i] : 0, to = p ? p->bound[i + 1] : x.width;
        if (from < to)
            D->ops->grid(D, tern_parallel_columns(x, from, to, i), grid, (to - from) / dim, n_rows);
    }
}

static void op_copy_heads(struct tern_dev *dev, struct tern_dev_rows to, size_t to_head, struct tern_dev_rows from,
                          size_t from_head, int n_heads, int n, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_parallel_share *t = shared_heads(s, to, n_rows, n_heads, to_head),
                                     *f = shared_heads(s, from, n_rows, n_heads, from_head);
    bool own = t && f;
    for (int i = 0; own && i <= s->n; i++)
        own = (size_t)t->bound[i] / to_head == (size_t)f->bound[i] / from_head;
    if (!own) {
        tern_parallel_gather(s, from, n_rows);
        tern_parallel_gather(s, to, n_rows);
    }
    EACH
    {
        const int first = own ? t->bound[i] / (int)to_head : 0, end = own ? t->bound[i + 1] / (int)to_head : n_heads;
        struct tern_dev_rows a = ROWS(to), b = ROWS(from);
        a.at += (size_t)first * to_head;
        b.at += (size_t)first * from_head;
        if (first < end)
            D->ops->copy_heads(D, a, to_head, b, from_head, end - first, n, n_rows);
    }
}

/* What y has between the heads' outputs, in heads that are not a device's own, is gone. */
static void own_stack(struct tern_parallel *s, const struct tern_stack *k, int n_rows, int n_wide)
{
    const struct tern_dev_form *f = k->w->form;
    struct tern_dev_rows y = k->y;
    int reads[TERN_PARALLEL_MOST + 1] = {0}, gives[TERN_PARALLEL_MOST + 1] = {0};
    for (int i = 0; i <= s->n; i++) {
        reads[i] = f->bound[i] * (int)k->x_head;
        gives[i] = f->bound[i] * (int)k->y_head;
    }
    (void)tern_parallel_want_share(s, k->x, n_rows, reads);
    y.width = gives[s->n];
    if (k->y_head > (size_t)k->w->n)
        tern_parallel_gather(s, y, n_rows);
    else
        tern_parallel_wrote(s, y, n_rows);
    EACH
    {
        const struct tern_stack own = {&f->own[i], tern_parallel_columns(y, gives[i], gives[i + 1], i),
                                       tern_parallel_columns(k->x, reads[i], reads[i + 1], i), k->y_head, k->x_head};
        D->ops->stack(D, &own, n_rows, n_wide);
    }
    tern_parallel_wrote_share(s, y, n_rows, gives);
}

static void op_stack(struct tern_dev *dev, const struct tern_stack *k, int n_rows, int n_wide)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    if (tern_parallel_divided(k->w->form)) {
        own_stack(s, k, n_rows, n_wide);
        return;
    }
    tern_parallel_gather(s, k->x, n_rows);
    tern_parallel_gather(s, k->y, n_rows);
    EACH
    {
        const struct tern_stack own = {tern_parallel_whole(k->w, i), ROWS(k->y), ROWS(k->x), k->y_head, k->x_head};
        D->ops->stack(D, &own, n_rows, n_wide);
    }
}

/* Heads [from, to) of n are a device's; all, where they are not divided. */
struct parts {
    int n, from[TERN_PARALLEL_MOST], to[TERN_PARALLEL_MOST];
};

/* Heads are `width` columns each: where each device's end. */
static void bounds_of(int bound[TERN_PARALLEL_MOST + 1], const struct tern_parallel *s, const struct parts *h,
                      int width)
{
    bound[0] = 0;
    EACH bound[i + 1] = h->to[i] * width;
}

/* Each device has its heads' columns of x, at least. */
static void want_heads(struct tern_parallel *s, const struct parts *h, struct tern_dev_rows x, int n_rows, int width)
{
    int bound[TERN_PARALLEL_MOST + 1];
    bounds_of(bound, s, h, width);
    if (h->to[0] < h->n)
        (void)tern_parallel_want_share(s, x, n_rows, bound);
    else
        tern_parallel_gather(s, x, n_rows);
}

/* Each device has written its heads' columns of x. */
static void wrote_heads(struct tern_parallel *s, const struct parts *h, struct tern_dev_rows x, int n_rows, int width)
{
    int bound[TERN_PARALLEL_MOST + 1];
    bounds_of(bound, s, h, width);
    x.width = bound[s->n];
    if (h->to[0] < h->n)
        tern_parallel_wrote_share(s, x, n_rows, bound);
}

static void op_append(struct tern_dev *dev, int layer, struct tern_dev_rows k, struct tern_dev_rows v)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_kv_layer *l = &s->layers[layer];
    struct parts h = {.n = l->n_heads};
    EACH tern_parallel_heads(l, i, s->n, &h.from[i], &h.to[i]);
    if (l->k.dim)
        want_heads(s, &h, k, s->n_rows, l->k.dim);
    want_heads(s, &h, v, s->n_rows, l->v.dim);
    EACH D->ops->append(D, layer,
                        l->k.dim ? tern_parallel_columns(k, h.from[i] * l->k.dim, h.to[i] * l->k.dim, i) : ROWS(k),
                        tern_parallel_columns(v, h.from[i] * l->v.dim, h.to[i] * l->v.dim, i));
}

static void op_attention(struct tern_dev *dev, const struct tern_attn_shape *shape, struct tern_dev_rows q,
                         struct tern_dev_rows out)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_kv_layer *l = &s->layers[shape->layer];
    const int n = s->n_rows, q_dim = l->latent ? l->v.dim + l->k.dim : l->k.dim;
    struct parts h = {.n = shape->n_heads};
    EACH tern_parallel_queries(l, h.n, i, s->n, &h.from[i], &h.to[i]);
    want_heads(s, &h, q, n, q_dim);
    tern_parallel_wrote(s, out, n);
    EACH
    {
        struct tern_attn_shape own = *shape;
        own.n_heads = h.to[i] - h.from[i];
        D->ops->attention(D, &own, tern_parallel_columns(q, h.from[i] * q_dim, h.to[i] * q_dim, i),
                          tern_parallel_columns(out, h.from[i] * l->v.dim, h.to[i] * l->v.dim, i));
    }
    wrote_heads(s, &h, out, n, l->v.dim);
}

static struct tern_choose own_choice(struct tern_parallel *s, const struct tern_choose *c, int i)
{
    struct tern_choose own = *c;
    own.ids = VEC(c->ids);
    own.counts = VEC(c->counts);
    return own;
}

/* Every device chooses, by whole rows: for what is chosen is what all their heads see. */
static void op_choose(struct tern_dev *dev, const struct tern_choose *c, struct tern_dev_rows q, struct tern_dev_rows w,
                      int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, q, n_rows);
    tern_parallel_gather(s, w, n_rows);
    EACH
    {
        const struct tern_choose own = own_choice(s, c, i);
        D->ops->choose(D, &own, ROWS(q), ROWS(w), n_rows);
    }
}

static void op_sparse(struct tern_dev *dev, const struct tern_sparse *a, struct tern_dev_rows q,
                      struct tern_dev_rows out, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    struct parts h = {.n = a->n_heads};
    EACH tern_parallel_heads_of(h.n, i, s->n, &h.from[i], &h.to[i]);
    want_heads(s, &h, q, n_rows, a->dim);
    tern_parallel_wrote(s, out, n_rows);
    EACH
    {
        struct tern_sparse own = *a;
        struct tern_choose chosen;
        own.n_heads = h.to[i] - h.from[i];
        own.sinks = VEC(a->sinks);
        own.sinks.at += (size_t)h.from[i];
        if (a->chosen) {
            chosen = own_choice(s, a->chosen, i);
            own.chosen = &chosen;
        }
        D->ops->sparse(D, &own, tern_parallel_columns(q, h.from[i] * a->dim, h.to[i] * a->dim, i),
                       tern_parallel_columns(out, h.from[i] * a->dim, h.to[i] * a->dim, i), n_rows);
    }
    wrote_heads(s, &h, out, n_rows, a->dim);
}

void tern_parallel_head_operations(struct tern_dev_ops *ops, const struct tern_dev_ops *of)
{
    ops->heads = op_heads;
    ops->grid = of->grid ? op_grid : NULL;
    ops->copy_heads = op_copy_heads;
    ops->stack = of->stack ? op_stack : NULL;
    ops->append = op_append;
    ops->attention = op_attention;
    ops->choose = of->choose ? op_choose : NULL;
    ops->sparse = of->sparse ? op_sparse : NULL;
}

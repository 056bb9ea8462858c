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

/* Each device has its heads' columns of x, of a layer's KV heads, each of `width`. */
static void want_heads(struct tern_parallel *s, const struct tern_kv_layer *l, struct tern_dev_rows x, int n_rows,
                       int width)
{
    int bound[TERN_PARALLEL_MOST + 1] = {0}, end[TERN_PARALLEL_MOST] = {0}, from;
    EACH
    {
        tern_parallel_heads(l, i, s->n, &from, &end[i]);
        bound[i + 1] = end[i] * width;
    }
    if (end[0] < l->n_heads)
        (void)tern_parallel_want_share(s, x, n_rows, bound);
    else
        tern_parallel_gather(s, x, n_rows);
}

static void op_append(struct tern_dev *dev, int layer, struct tern_dev_rows k, struct tern_dev_rows v)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_kv_layer *l = &s->layers[layer];
    const int n = s->n_rows;
    if (l->k.dim)
        want_heads(s, l, k, n, l->k.dim);
    want_heads(s, l, v, n, l->v.dim);
    EACH
    {
        int from, to;
        tern_parallel_heads(l, i, s->n, &from, &to);
        D->ops->append(D, layer, l->k.dim ? tern_parallel_columns(k, from * l->k.dim, to * l->k.dim, i) : ROWS(k),
                       tern_parallel_columns(v, from * l->v.dim, to * l->v.dim, i));
    }
}

static void op_attention(struct tern_dev *dev, const struct tern_attn_shape *shape, struct tern_dev_rows q,
                         struct tern_dev_rows out)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_kv_layer *l = &s->layers[shape->layer];
    const int n = s->n_rows, q_dim = l->latent ? l->v.dim + l->k.dim : l->k.dim;
    int first[TERN_PARALLEL_MOST] = {0}, end[TERN_PARALLEL_MOST] = {0};
    int reads[TERN_PARALLEL_MOST + 1] = {0}, gives[TERN_PARALLEL_MOST + 1] = {0};
    EACH
    {
        tern_parallel_queries(l, shape->n_heads, i, s->n, &first[i], &end[i]);
        reads[i + 1] = end[i] * q_dim;
        gives[i + 1] = end[i] * l->v.dim;
    }
    const bool divided = end[0] < shape->n_heads;
    if (divided)
        (void)tern_parallel_want_share(s, q, n, reads);
    else
        tern_parallel_gather(s, q, n);
    tern_parallel_wrote(s, out, n);
    EACH
    {
        struct tern_attn_shape own = *shape;
        own.n_heads = end[i] - first[i];
        D->ops->attention(D, &own, tern_parallel_columns(q, first[i] * q_dim, end[i] * q_dim, i),
                          tern_parallel_columns(out, first[i] * l->v.dim, end[i] * l->v.dim, i));
    }
    out.width = gives[s->n];
    if (divided)
        tern_parallel_wrote_share(s, out, n, gives);
}

static void op_sparse(struct tern_dev *dev, const struct tern_sparse *a, struct tern_dev_rows q,
                      struct tern_dev_rows out, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    int first[TERN_PARALLEL_MOST] = {0}, end[TERN_PARALLEL_MOST] = {0}, bound[TERN_PARALLEL_MOST + 1] = {0};
    EACH
    {
        tern_parallel_heads_of(a->n_heads, i, s->n, &first[i], &end[i]);
        bound[i + 1] = end[i] * a->dim;
    }
    const bool divided = end[0] < a->n_heads;
    if (divided)
        (void)tern_parallel_want_share(s, q, n_rows, bound);
    else
        tern_parallel_gather(s, q, n_rows);
    tern_parallel_wrote(s, out, n_rows);
    EACH
    {
        struct tern_sparse own = *a;
        struct tern_choose chosen;
        own.n_heads = end[i] - first[i];
        own.sinks = VEC(a->sinks);
        own.sinks.at += (size_t)first[i];
        if (a->chosen) {
            chosen = *a->chosen;
            chosen.ids = VEC(chosen.ids);
            chosen.counts = VEC(chosen.counts);
            own.chosen = &chosen;
        }
        D->ops->sparse(D, &own, tern_parallel_columns(q, first[i] * a->dim, end[i] * a->dim, i),
                       tern_parallel_columns(out, first[i] * a->dim, end[i] * a->dim, i), n_rows);
    }
    out.width = bound[s->n];
    if (divided)
        tern_parallel_wrote_share(s, out, n_rows, bound);
}

void tern_parallel_head_operations(struct tern_dev_ops *ops, const struct tern_dev_ops *of)
{
    ops->heads = op_heads;
    ops->grid = of->grid ? op_grid : NULL;
    ops->copy_heads = op_copy_heads;
    ops->stack = of->stack ? op_stack : NULL;
    ops->append = op_append;
    ops->attention = op_attention;
    ops->sparse = of->sparse ? op_sparse : NULL;
}

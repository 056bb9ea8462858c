/* Operations.  Products, heads, attention and what is done element by element work on each device's own columns; the
 * others are computed by every device on whole rows. */
#include "base/mem.h"
#include "dev/parallel/parallel.h"

#define EACH    for (int i = 0; i < s->n; i++)
#define D       s->d[i]
#define ROWS(r) tern_parallel_rows(r, i)
#define VEC(v)  tern_parallel_vec(s, v, i)

/* ---- whole rows on every device ---------------------------------------------------------------------------------- */

static const struct tern_dev_weight *whole(const struct tern_dev_weight *w, int device)
{
    if (!w || !w->form)
        return w;
    TERN_ASSERT(!w->form->divided);
    return &w->form->all[device];
}

static void op_embed(struct tern_dev *dev, struct tern_dev_rows x, const struct tern_dev_weight *table, int n_rows,
                     float scale)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_wrote(s, x, n_rows);
    EACH D->ops->embed(D, ROWS(x), whole(table, i), n_rows, scale);
}

static void op_norm(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows x, struct tern_dev_vec w,
                    float eps, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, x, n_rows);
    tern_parallel_wrote(s, y, n_rows);
    EACH D->ops->norm(D, ROWS(y), ROWS(x), VEC(w), eps, n_rows);
}

static void op_add(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows a, struct tern_dev_rows b,
                   int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, a, n_rows);
    tern_parallel_gather(s, b, n_rows);
    tern_parallel_wrote(s, y, n_rows);
    EACH D->ops->add(D, ROWS(y), ROWS(a), ROWS(b), n_rows);
}

static void op_rope_table(struct tern_dev *dev, struct tern_dev_vec cos, struct tern_dev_vec sin,
                          struct tern_dev_vec freq, int n_rot, float magnitude, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    EACH D->ops->rope_table(D, VEC(cos), VEC(sin), VEC(freq), n_rot, magnitude, n_rows);
}

static void op_copy_heads(struct tern_dev *dev, struct tern_dev_rows to, size_t to_head, struct tern_dev_rows from,
                          size_t from_head, int n_heads, int n, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, from, n_rows);
    tern_parallel_gather(s, to, n_rows);
    EACH D->ops->copy_heads(D, ROWS(to), to_head, ROWS(from), from_head, n_heads, n, n_rows);
}

static void op_gate(struct tern_dev *dev, struct tern_dev_rows x, struct tern_dev_rows g, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, x, n_rows);
    tern_parallel_gather(s, g, n_rows);
    EACH D->ops->gate(D, ROWS(x), ROWS(g), n_rows);
}

static void op_stack(struct tern_dev *dev, const struct tern_stack *k, int n_rows, int n_wide)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, k->x, n_rows);
    tern_parallel_gather(s, k->y, n_rows);
    EACH
    {
        const struct tern_stack own = {whole(k->w, i), ROWS(k->y), ROWS(k->x), k->y_head, k->x_head};
        D->ops->stack(D, &own, n_rows, n_wide);
    }
}

static void op_delta(struct tern_dev *dev, int layer, const struct tern_delta *l, const struct tern_delta_io *io,
                     int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, io->x, n_rows);
    tern_parallel_gather(s, io->decay, n_rows);
    tern_parallel_gather(s, io->beta, n_rows);
    tern_parallel_wrote(s, io->out, n_rows);
    EACH
    {
        struct tern_delta own = *l;
        const struct tern_delta_io rows = {ROWS(io->x), ROWS(io->decay), ROWS(io->beta), ROWS(io->out)};
        own.conv = VEC(l->conv);
        own.a = VEC(l->a);
        own.dt = VEC(l->dt);
        D->ops->delta(D, layer, &own, &rows, n_rows);
    }
}

static void op_route(struct tern_dev *dev, const struct tern_route *r, struct tern_dev_rows logits,
                     struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, logits, n_rows);
    EACH
    {
        struct tern_route own = *r;
        own.bias = VEC(r->bias);
        own.factors = VEC(r->factors);
        own.table = VEC(r->table);
        D->ops->route(D, &own, ROWS(logits), VEC(ids), VEC(weights), n_rows);
    }
}

static void op_experts(struct tern_dev *dev, const struct tern_experts *e, struct tern_dev_rows y,
                       struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows,
                       int n_wide)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, x, n_rows);
    tern_parallel_wrote(s, y, n_rows);
    EACH
    {
        struct tern_experts own = *e;
        own.gate = whole(e->gate, i);
        own.up = whole(e->up, i);
        own.down = whole(e->down, i);
        D->ops->experts(D, &own, ROWS(y), ROWS(x), VEC(ids), VEC(weights), n_rows, n_wide);
    }
}

static void op_best(struct tern_dev *dev, const struct tern_best *b, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, b->x, n_rows);
    EACH
    {
        const struct tern_best own = {ROWS(b->x), b->n, VEC(b->values), VEC(b->ids)};
        D->ops->best(D, &own, n_rows);
    }
}

/* rows may name any row of x. */
static void op_pick(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows x, const int *rows, int n)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    int most = 0;
    for (int r = 0; r < n; r++)
        most = rows[r] >= most ? rows[r] + 1 : most;
    tern_parallel_gather(s, x, most);
    tern_parallel_wrote(s, y, n);
    EACH D->ops->pick(D, ROWS(y), ROWS(x), rows, n);
}

static void op_recode(struct tern_dev *dev, int layer, const struct tern_dev_job *from, struct tern_dev_rows k,
                      struct tern_dev_rows v)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const int rows = s->n_rows; /* k and v are room, of which nothing is read before it is written */
    tern_parallel_wrote(s, k, rows);
    tern_parallel_wrote(s, v, rows);
    EACH D->ops->recode(D, layer, from, ROWS(k), ROWS(v));
}

/* ---- own columns ------------------------------------------------------------------------------------------------- */

static bool same_bounds(const int *a, const int *b, int n)
{
    for (int i = 0; i <= n; i++)
        if (a[i] != b[i])
            return false;
    return true;
}

/* The share that these rows are, or begin: of rows with room for more columns the first ones. */
static const struct tern_parallel_share *share_at(const struct tern_parallel *s, struct tern_dev_rows x, int n_rows)
{
    for (int i = 0; i < s->n_shares; i++) {
        const struct tern_parallel_share *p = &s->share[i];
        if (p->x.mem == x.mem && p->x.at == x.at && p->x.stride == x.stride && p->n_rows == n_rows)
            return p;
    }
    return NULL;
}

/* Device i's columns of rows that are worked on element by element; all of them where they are no share. */
static struct tern_dev_rows elements(struct tern_parallel *s, struct tern_dev_rows x, int n_rows, int i)
{
    const struct tern_parallel_share *p = share_at(s, x, n_rows);
    if (p && p->bound[s->n] == x.width)
        return tern_parallel_columns(x, p->bound[i], p->bound[i + 1], i);
    tern_parallel_gather(s, x, n_rows);
    return ROWS(x);
}

static void op_scale(struct tern_dev *dev, struct tern_dev_rows x, int n_rows, float factor)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    EACH
    {
        const struct tern_dev_rows own = elements(s, x, n_rows, i);
        if (own.width)
            D->ops->scale(D, own, n_rows, factor);
    }
}

static void op_softcap(struct tern_dev *dev, struct tern_dev_rows x, int n_rows, float cap)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    EACH
    {
        const struct tern_dev_rows own = elements(s, x, n_rows, i);
        if (own.width)
            D->ops->softcap(D, own, n_rows, cap);
    }
}

static void op_glu(struct tern_dev *dev, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows,
                   enum tern_gate act)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_parallel_share *g = share_at(s, gate, n_rows), *u = share_at(s, up, n_rows);
    if (!g || !u || g->bound[s->n] != gate.width || !same_bounds(g->bound, u->bound, s->n)) {
        tern_parallel_gather(s, gate, n_rows);
        tern_parallel_gather(s, up, n_rows);
        EACH D->ops->glu(D, ROWS(gate), ROWS(up), n_rows, act);
        return;
    }
    EACH if (g->bound[i] < g->bound[i + 1])
        D->ops->glu(D, tern_parallel_columns(gate, g->bound[i], g->bound[i + 1], i),
                    tern_parallel_columns(up, g->bound[i], g->bound[i + 1], i), n_rows, act);
}

#define MOST 8 /* products of one call */

static void op_matmul(struct tern_dev *dev, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                      int n_wide)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    TERN_ASSERT(n_m <= MOST);
    tern_parallel_gather(s, x, n_rows);
    for (int j = 0; j < n_m; j++)
        tern_parallel_wrote(s, m[j].y, n_rows);
    EACH
    {
        struct tern_matmul own[MOST];
        int n = 0;
        for (int j = 0; j < n_m; j++) {
            const struct tern_dev_form *f = m[j].w->form;
            const int from = f->bound[i], to = f->bound[i + 1];
            struct tern_dev_vec bias = VEC(m[j].bias);
            if (from == to)
                continue;
            bias.at += bias.mem ? (size_t)from : 0;
            own[n++] = (struct tern_matmul){&f->own[i], bias, tern_parallel_columns(m[j].y, from, to, i), m[j].f32};
        }
        if (n)
            D->ops->matmul(D, own, n, ROWS(x), n_rows, n_wide);
    }
    for (int j = 0; j < n_m; j++) {
        struct tern_dev_rows y = m[j].y;
        y.width = m[j].w->n;
        tern_parallel_wrote_share(s, y, n_rows, m[j].w->form->bound);
    }
}

/* ---- heads ------------------------------------------------------------------------------------------------------- */

/* Heads that a share's columns are, in whole ones. */
static const struct tern_parallel_share *shared_heads(struct tern_parallel *s, struct tern_dev_rows x, int n_rows,
                                                      int n_heads, int dim)
{
    const struct tern_parallel_share *p = share_at(s, x, n_rows);
    bool ok = p && p->bound[s->n] == n_heads * dim;
    for (int i = 0; ok && i <= s->n; i++)
        ok = p->bound[i] % dim == 0;
    return ok ? p : NULL;
}

static void op_heads(struct tern_dev *dev, const struct tern_heads *h, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_parallel_share *p = shared_heads(s, h->x, n_rows, h->n_heads, h->dim);
    if (!p)
        tern_parallel_gather(s, h->x, n_rows);
    EACH
    {
        struct tern_heads own = *h;
        const int from = p ? p->bound[i] : 0, to = p ? p->bound[i + 1] : h->n_heads * h->dim;
        own.x = p ? tern_parallel_columns(h->x, from, to, i) : ROWS(h->x);
        own.n_heads = (to - from) / h->dim;
        own.norm_w = VEC(h->norm_w);
        own.cos = VEC(h->cos);
        own.sin = VEC(h->sin);
        if (from < to)
            D->ops->heads(D, &own, n_rows);
    }
}

/* Is x a share by a layer's KV heads, each of `width` columns?  Else every device has it whole afterwards. */
static void want_heads(struct tern_parallel *s, const struct tern_kv_layer *l, struct tern_dev_rows x, int n_rows,
                       int width)
{
    const struct tern_parallel_share *p = share_at(s, x, n_rows);
    for (int i = 0; p && i < s->n; i++) {
        int from, to;
        tern_parallel_heads(l, i, s->n, &from, &to);
        if (p->bound[i] != from * width || p->bound[i + 1] != to * width)
            p = NULL;
    }
    if (!p)
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
    const int group = shape->n_heads / l->n_heads, n = s->n_rows;
    const int q_dim = l->latent ? l->v.dim + l->k.dim : l->k.dim;
    int bound[TERN_PARALLEL_MOST + 1] = {0}, from, to;
    tern_parallel_heads(l, 0, s->n, &from, &to);
    const bool divided = to < l->n_heads;
    want_heads(s, l, q, n, group * q_dim);
    tern_parallel_wrote(s, out, n);
    EACH
    {
        struct tern_attn_shape own = *shape;
        tern_parallel_heads(l, i, s->n, &from, &to);
        own.n_heads = (to - from) * group;
        bound[i + 1] = to * group * l->v.dim;
        D->ops->attention(D, &own, tern_parallel_columns(q, from * group * q_dim, to * group * q_dim, i),
                          tern_parallel_columns(out, from * group * l->v.dim, to * group * l->v.dim, i));
    }
    out.width = bound[s->n];
    if (divided)
        tern_parallel_wrote_share(s, out, n, bound);
}

/* ---- the table --------------------------------------------------------------------------------------------------- */

void tern_parallel_operations(struct tern_dev_ops *ops, const struct tern_dev_ops *of)
{
    ops->embed = op_embed;
    ops->norm = op_norm;
    ops->add = op_add;
    ops->scale = op_scale;
    ops->matmul = op_matmul;
    ops->rope_table = op_rope_table;
    ops->heads = op_heads;
    ops->copy_heads = op_copy_heads;
    ops->append = op_append;
    ops->attention = op_attention;
    ops->recode = op_recode;
    ops->glu = op_glu;
    ops->softcap = op_softcap;
    ops->gate = op_gate;
    ops->stack = of->stack ? op_stack : NULL;
    ops->route = of->route ? op_route : NULL;
    ops->experts = of->experts ? op_experts : NULL;
    ops->delta = of->delta ? op_delta : NULL;
    ops->pick = op_pick;
    ops->best = of->best ? op_best : NULL;
}

/* Operations of a step: each on the side where the layer in hand is, with that side's handles. */
#include "base/mem.h"
#include "dev/split/split.h"

#define SIDE(dev)                                    \
    const struct tern_split *s = tern_split_of(dev); \
    struct tern_dev *d = s->d[s->now]
#define ROWS(r) tern_split_rows(s, r)
#define VEC(v)  tern_split_vec(s, v)

static void op_embed(struct tern_dev *dev, struct tern_dev_rows x, const struct tern_dev_weight *table, int n_rows,
                     float scale)
{
    SIDE(dev);
    d->ops->embed(d, ROWS(x), tern_split_weight(s, table), n_rows, scale);
}

static void op_norm(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows x, struct tern_dev_vec w,
                    float eps, int n_rows)
{
    SIDE(dev);
    d->ops->norm(d, ROWS(y), ROWS(x), VEC(w), eps, n_rows);
}

static void op_add(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows a, struct tern_dev_rows b,
                   int n_rows)
{
    SIDE(dev);
    d->ops->add(d, ROWS(y), ROWS(a), ROWS(b), n_rows);
}

static void op_scale(struct tern_dev *dev, struct tern_dev_rows x, int n_rows, float factor)
{
    SIDE(dev);
    d->ops->scale(d, ROWS(x), n_rows, factor);
}

#define MOST 8 /* products of one call */

static void op_matmul(struct tern_dev *dev, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                      int n_wide)
{
    SIDE(dev);
    struct tern_matmul own[MOST];
    TERN_ASSERT(n_m <= MOST);
    for (int i = 0; i < n_m; i++)
        own[i] = (struct tern_matmul){tern_split_weight(s, m[i].w), VEC(m[i].bias), ROWS(m[i].y), m[i].f32};
    d->ops->matmul(d, own, n_m, ROWS(x), n_rows, n_wide);
}

/* Angles are every layer's. */
static void op_rope_table(struct tern_dev *dev, struct tern_dev_vec cos, struct tern_dev_vec sin,
                          struct tern_dev_vec freq, int n_rot, float magnitude, int n_rows)
{
    struct tern_split *s = tern_split_of(dev);
    const int now = s->now;
    for (s->now = 0; s->now < TERN_SPLIT_SIDES; s->now++)
        s->d[s->now]->ops->rope_table(s->d[s->now], VEC(cos), VEC(sin), VEC(freq), n_rot, magnitude, n_rows);
    s->now = now;
}

static void op_heads(struct tern_dev *dev, const struct tern_heads *h, int n_rows)
{
    SIDE(dev);
    struct tern_heads own = *h;
    own.x = ROWS(h->x);
    own.norm_w = VEC(h->norm_w);
    own.cos = VEC(h->cos);
    own.sin = VEC(h->sin);
    d->ops->heads(d, &own, n_rows);
}

static void op_copy_heads(struct tern_dev *dev, struct tern_dev_rows to, size_t to_head, struct tern_dev_rows from,
                          size_t from_head, int n_heads, int n, int n_rows)
{
    SIDE(dev);
    d->ops->copy_heads(d, ROWS(to), to_head, ROWS(from), from_head, n_heads, n, n_rows);
}

static void op_append(struct tern_dev *dev, int layer, struct tern_dev_rows k, struct tern_dev_rows v)
{
    SIDE(dev);
    d->ops->append(d, layer, ROWS(k), ROWS(v));
}

static void op_attention(struct tern_dev *dev, const struct tern_attn_shape *shape, struct tern_dev_rows q,
                         struct tern_dev_rows out)
{
    SIDE(dev);
    TERN_ASSERT((shape->layer < s->cut) == (s->now == 0));
    d->ops->attention(d, shape, ROWS(q), ROWS(out));
}

static void op_glu(struct tern_dev *dev, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows,
                   enum tern_gate act)
{
    SIDE(dev);
    d->ops->glu(d, ROWS(gate), ROWS(up), n_rows, act);
}

static void op_softcap(struct tern_dev *dev, struct tern_dev_rows x, int n_rows, float cap)
{
    SIDE(dev);
    d->ops->softcap(d, ROWS(x), n_rows, cap);
}

static void op_gate(struct tern_dev *dev, struct tern_dev_rows x, struct tern_dev_rows g, int n_rows)
{
    SIDE(dev);
    d->ops->gate(d, ROWS(x), ROWS(g), n_rows);
}

static void op_stack(struct tern_dev *dev, const struct tern_stack *k, int n_rows, int n_wide)
{
    SIDE(dev);
    const struct tern_stack own = {tern_split_weight(s, k->w), ROWS(k->y), ROWS(k->x), k->y_head, k->x_head};
    d->ops->stack(d, &own, n_rows, n_wide);
}

static void op_route(struct tern_dev *dev, const struct tern_route *r, struct tern_dev_rows logits,
                     struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows)
{
    SIDE(dev);
    struct tern_route own = *r;
    own.bias = VEC(r->bias);
    own.factors = VEC(r->factors);
    own.table = VEC(r->table);
    d->ops->route(d, &own, ROWS(logits), VEC(ids), VEC(weights), n_rows);
}

static void op_experts(struct tern_dev *dev, const struct tern_experts *e, struct tern_dev_rows y,
                       struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows,
                       int n_wide)
{
    SIDE(dev);
    struct tern_experts own = *e;
    own.gate = tern_split_weight(s, e->gate);
    own.up = tern_split_weight(s, e->up);
    own.down = tern_split_weight(s, e->down);
    d->ops->experts(d, &own, ROWS(y), ROWS(x), VEC(ids), VEC(weights), n_rows, n_wide);
}

static void op_delta(struct tern_dev *dev, int layer, const struct tern_delta *l, const struct tern_delta_io *io,
                     int n_rows)
{
    SIDE(dev);
    struct tern_delta own = *l;
    const struct tern_delta_io rows = {ROWS(io->x), ROWS(io->decay), ROWS(io->beta), ROWS(io->out)};
    own.conv = VEC(l->conv);
    own.a = VEC(l->a);
    own.dt = VEC(l->dt);
    d->ops->delta(d, layer, &own, &rows, n_rows);
}

static void op_clamp(struct tern_dev *dev, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, float limit)
{
    SIDE(dev);
    d->ops->clamp(d, ROWS(gate), ROWS(up), n_rows, limit);
}

static void op_grid(struct tern_dev *dev, struct tern_dev_rows x, enum tern_grid grid, int n_heads, int n_rows)
{
    SIDE(dev);
    d->ops->grid(d, ROWS(x), grid, n_heads, n_rows);
}

static void op_compress(struct tern_dev *dev, const struct tern_compress *c, struct tern_dev_rows x,
                        struct tern_dev_rows gate)
{
    SIDE(dev);
    struct tern_compress own = *c;
    TERN_ASSERT((c->layer < s->cut) == (s->now == 0));
    own.ape = VEC(c->ape);
    own.norm = VEC(c->norm);
    own.freq = VEC(c->freq);
    d->ops->compress(d, &own, ROWS(x), ROWS(gate));
}

static struct tern_choose choice(const struct tern_split *s, const struct tern_choose *c)
{
    struct tern_choose own = *c;
    own.ids = VEC(c->ids);
    own.counts = VEC(c->counts);
    return own;
}

static void op_choose(struct tern_dev *dev, const struct tern_choose *c, struct tern_dev_rows q, struct tern_dev_rows w,
                      int n_rows)
{
    SIDE(dev);
    const struct tern_choose own = choice(s, c);
    d->ops->choose(d, &own, ROWS(q), ROWS(w), n_rows);
}

static void op_sparse(struct tern_dev *dev, const struct tern_sparse *a, struct tern_dev_rows q,
                      struct tern_dev_rows out, int n_rows)
{
    SIDE(dev);
    struct tern_sparse own = *a;
    struct tern_choose chosen;
    TERN_ASSERT((a->layer < s->cut) == (s->now == 0));
    own.sinks = VEC(a->sinks);
    if (a->chosen) {
        chosen = choice(s, a->chosen);
        own.chosen = &chosen;
    }
    d->ops->sparse(d, &own, ROWS(q), ROWS(out), n_rows);
}

static struct tern_hyper streams_of(const struct tern_split *s, const struct tern_hyper *h)
{
    struct tern_hyper own = *h;
    own.base = VEC(h->base);
    own.scale = VEC(h->scale);
    return own;
}

static void op_hyper_read(struct tern_dev *dev, const struct tern_hyper *h, struct tern_dev_rows m,
                          struct tern_dev_rows streams, struct tern_dev_rows x, int n_rows)
{
    SIDE(dev);
    const struct tern_hyper own = streams_of(s, h);
    d->ops->hyper_read(d, &own, ROWS(m), ROWS(streams), ROWS(x), n_rows);
}

static void op_hyper_write(struct tern_dev *dev, const struct tern_hyper *h, struct tern_dev_rows streams,
                           struct tern_dev_rows m, struct tern_dev_rows t, int n_rows)
{
    SIDE(dev);
    const struct tern_hyper own = streams_of(s, h);
    d->ops->hyper_write(d, &own, ROWS(streams), ROWS(m), ROWS(t), n_rows);
}

static void op_pick(struct tern_dev *dev, struct tern_dev_rows y, struct tern_dev_rows x, const int *rows, int n)
{
    SIDE(dev);
    d->ops->pick(d, ROWS(y), ROWS(x), rows, n);
}

static void op_best(struct tern_dev *dev, const struct tern_best *b, int n_rows)
{
    SIDE(dev);
    const struct tern_best own = {ROWS(b->x), b->n, VEC(b->values), VEC(b->ids)};
    d->ops->best(d, &own, n_rows);
}

#define BOTH(op) (first->op && second->op ? op_##op : NULL)

void tern_split_operations(struct tern_dev_ops *ops, const struct tern_dev_ops *first,
                           const struct tern_dev_ops *second)
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
    ops->recode = tern_split_recode;
    ops->glu = op_glu;
    ops->softcap = op_softcap;
    ops->gate = op_gate;
    ops->stack = op_stack;
    ops->route = op_route;
    ops->experts = op_experts;
    ops->delta = op_delta;
    ops->pick = op_pick;
    ops->clamp = BOTH(clamp);
    ops->grid = BOTH(grid);
    ops->compress = BOTH(compress);
    ops->choose = BOTH(choose);
    ops->sparse = BOTH(sparse);
    ops->hyper_read = BOTH(hyper_read);
    ops->hyper_write = BOTH(hyper_write);
    ops->best = BOTH(best);
}

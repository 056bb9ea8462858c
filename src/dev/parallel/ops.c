/* Operations that every device computes on whole rows; and products and what is done element by element, on each
 * device's own columns. */
#include "dev/parallel/each.h"

/* ---- whole rows on every device ---------------------------------------------------------------------------------- */

static void op_embed(struct tern_dev *dev, struct tern_dev_rows x, const struct tern_dev_weight *table, int n_rows,
                     float scale)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_wrote(s, x, n_rows);
    EACH D->ops->embed(D, ROWS(x), tern_parallel_whole(table, i), n_rows, scale);
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

static void op_gate(struct tern_dev *dev, struct tern_dev_rows x, struct tern_dev_rows g, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, x, n_rows);
    tern_parallel_gather(s, g, n_rows);
    EACH D->ops->gate(D, ROWS(x), ROWS(g), n_rows);
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

static void op_compress(struct tern_dev *dev, const struct tern_compress *c, struct tern_dev_rows x,
                        struct tern_dev_rows gate)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, x, s->n_rows);
    tern_parallel_gather(s, gate, s->n_rows);
    EACH
    {
        struct tern_compress own = *c;
        own.ape = VEC(c->ape);
        own.norm = VEC(c->norm);
        own.freq = VEC(c->freq);
        D->ops->compress(D, &own, ROWS(x), ROWS(gate));
    }
}

static struct tern_hyper own_hyper(struct tern_parallel *s, const struct tern_hyper *h, int i)
{
    struct tern_hyper own = *h;
    own.base = VEC(h->base);
    own.scale = VEC(h->scale);
    return own;
}

static void op_hyper_read(struct tern_dev *dev, const struct tern_hyper *h, struct tern_dev_rows m,
                          struct tern_dev_rows streams, struct tern_dev_rows x, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, m, n_rows);
    tern_parallel_gather(s, streams, n_rows);
    tern_parallel_wrote(s, x, n_rows);
    EACH
    {
        const struct tern_hyper own = own_hyper(s, h, i);
        D->ops->hyper_read(D, &own, ROWS(m), ROWS(streams), ROWS(x), n_rows);
    }
}

static void op_hyper_write(struct tern_dev *dev, const struct tern_hyper *h, struct tern_dev_rows streams,
                           struct tern_dev_rows m, struct tern_dev_rows t, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_gather(s, streams, n_rows);
    tern_parallel_gather(s, m, n_rows);
    tern_parallel_gather(s, t, n_rows);
    EACH
    {
        const struct tern_hyper own = own_hyper(s, h, i);
        D->ops->hyper_write(D, &own, ROWS(streams), ROWS(m), ROWS(t), n_rows);
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

/* Device i's columns of rows that are worked on element by element; all of them where they are no share. */
static struct tern_dev_rows elements(struct tern_parallel *s, struct tern_dev_rows x, int n_rows, int i)
{
    const struct tern_parallel_share *p = tern_parallel_share_at(s, x, n_rows);
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

/* Are both shares alike, of all their columns?  Else every device has them whole afterwards. */
static const int *same_shares(struct tern_parallel *s, struct tern_dev_rows a, struct tern_dev_rows b, int n_rows)
{
    const struct tern_parallel_share *p = tern_parallel_share_at(s, a, n_rows);
    if (p && p->bound[s->n] == a.width && tern_parallel_want_share(s, b, n_rows, p->bound))
        return p->bound;
    tern_parallel_gather(s, a, n_rows);
    tern_parallel_gather(s, b, n_rows);
    return NULL;
}

static void op_glu(struct tern_dev *dev, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows,
                   enum tern_gate act)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const int *bound = same_shares(s, gate, up, n_rows);
    EACH
    {
        const int from = bound ? bound[i] : 0, to = bound ? bound[i + 1] : gate.width;
        if (from < to)
            D->ops->glu(D, tern_parallel_columns(gate, from, to, i), tern_parallel_columns(up, from, to, i), n_rows,
                        act);
    }
}

static void op_clamp(struct tern_dev *dev, struct tern_dev_rows gate, struct tern_dev_rows up, int n_rows, float limit)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const int *bound = same_shares(s, gate, up, n_rows);
    EACH
    {
        const int from = bound ? bound[i] : 0, to = bound ? bound[i + 1] : gate.width;
        if (from < to)
            D->ops->clamp(D, tern_parallel_columns(gate, from, to, i), tern_parallel_columns(up, from, to, i), n_rows,
                          limit);
    }
}

#define MOST 8 /* products of one call */

/* And has every device some of their outputs? */
static bool all_in_16_bits(const struct tern_parallel *s, const struct tern_matmul *m, int n_m)
{
    bool all = true;
    for (int j = 0; j < n_m; j++)
        all = all && !m[j].f32;
    for (int i = 0; i < s->n && all; i++) {
        all = false;
        for (int j = 0; j < n_m; j++)
            all =
                all || m[j].w->form->by == TERN_PARALLEL_COPIED || m[j].w->form->bound[i] < m[j].w->form->bound[i + 1];
    }
    return all;
}

static void op_matmul(struct tern_dev *dev, const struct tern_matmul *m, int n_m, struct tern_dev_rows x, int n_rows,
                      int n_wide)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    TERN_ASSERT(n_m <= MOST);
    if (n_rows == n_wide && all_in_16_bits(s, m, n_m))
        tern_parallel_gather_for_product(s, x, n_rows);
    else
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
            if (f->by == TERN_PARALLEL_COPIED) {
                own[n++] = (struct tern_matmul){&f->all[i], bias, ROWS(m[j].y), m[j].f32};
                continue;
            }
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
        if (m[j].w->form->by != TERN_PARALLEL_COPIED)
            tern_parallel_wrote_share(s, y, n_rows, m[j].w->form->bound);
    }
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
    ops->recode = op_recode;
    ops->glu = op_glu;
    ops->softcap = op_softcap;
    ops->gate = op_gate;
    ops->route = of->route ? op_route : NULL;
    ops->delta = of->delta ? op_delta : NULL;
    ops->pick = op_pick;
    ops->best = of->best ? op_best : NULL;
    ops->clamp = of->clamp ? op_clamp : NULL;
    ops->compress = of->compress ? op_compress : NULL;
    ops->hyper_read = of->hyper_read ? op_hyper_read : NULL;
    ops->hyper_write = of->hyper_write ? op_hyper_write : NULL;
}

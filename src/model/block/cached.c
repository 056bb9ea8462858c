/* How the rows of a step get at the cache: what the device is told of caches, sequences and their pages. */
#include "base/mem.h"
#include "model/block/block.h"

/* The layer whose keys and values this one attends to. */
static int kv_layer(const struct tern_forward *f, int layer)
{
    int of = f->net->desc.layers[layer].at.kv_of;
    return of < 0 ? layer : of;
}

static void describe_caches(struct tern_forward *f)
{
    for (int p = 0; p < f->n_plans; p++)
        tern_kv_dev_cache(&f->cached.caches[p], f->cached.pages + (size_t)p * TERN_KV_MAX_GROUPS, &f->caches[p]);
}

void tern_attend_caches(struct tern_kv_decl *decl, const struct tern_desc *d, const struct tern_attend_desc *at,
                        int ctx)
{
    decl->n_heads = at->kv_of < 0 ? at->n_kv_heads : 0;
    decl->dim_k = at->dim_k;
    decl->dim_v = at->dim_v;
    decl->reach = tern_attend_reach(at);
    if (at->rope >= 0) {
        decl->n_rot = d->ropes[at->rope].n_rot;
        decl->interleaved = d->ropes[at->rope].interleaved;
        decl->freq = tern_rope_freq(&d->ropes[at->rope], ctx);
    }
}

const char *tern_attend_cannot(const struct tern_desc *d, const struct tern_attend_desc *at)
{
    return at->dim_k > TERN_KVQ_MAX_DIM || at->dim_v > TERN_KVQ_MAX_DIM ? "heads of more than 512"
           : at->rope >= d->n_ropes                                     ? "a missing position embedding"
                                                                        : NULL;
}

int tern_cached_open(struct tern_forward *f, struct tern_dev_limits *lim, tern_error *err)
{
    int rc = 0;
    const struct tern_desc *d = &f->net->desc;
    struct tern_cached *c = &f->cached;
    const size_t plans = (size_t)f->n_plans, jobs = (size_t)f->max_jobs, groups = TERN_KV_MAX_GROUPS;
    TERN_TRY(tern_forward_take(f, &c->caches, plans, sizeof *c->caches, err));
    TERN_TRY(tern_forward_take(f, &c->pages, plans * groups, sizeof *c->pages, err));
    const int n_layers = f->caches[0].layout->n_layers;
    TERN_TRY(tern_forward_take(f, &c->shapes, (size_t)n_layers, sizeof *c->shapes, err));
    TERN_TRY(tern_forward_take(f, &c->jobs, jobs, sizeof *c->jobs, err));
    TERN_TRY(tern_forward_take(f, &c->tables, jobs * groups, sizeof *c->tables, err));
    describe_caches(f);
    for (int i = 0; i < n_layers; i++) {
        const struct tern_layer_desc *l = &d->layers[i];
        c->shapes[i] = (struct tern_attn_shape){.layer = kv_layer(f, i),
                                                .n_heads = l->mixer == TERN_MIX_SPARSE ? 0 : l->at.n_heads,
                                                .scale = l->at.scale,
                                                .softcap = l->at.score_cap};
    }
    lim->caches = c->caches;
    lim->n_caches = f->n_plans;
    lim->shapes = c->shapes;
    lim->max_jobs = f->max_jobs;
    lim->max_pages = f->caches[0].max_tokens / TERN_PAGE + 2;
    TERN_TRY(f->dev->ops->prepare(f->dev, lim, err));
    f->bytes += f->dev->ops->scratch_bytes(f->dev);
out:
    return rc;
}

void tern_cached_close(struct tern_cached *c)
{
    void *all[] = {c->caches, c->pages, c->shapes, c->jobs, c->tables};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
}

int tern_cached_span(const struct tern_forward *f, int layer, enum tern_kv_role role)
{
    return tern_kv_span_of(f->caches[0].layout, layer, role);
}

static struct tern_dev_job job_of(const struct tern_forward_job *j, struct tern_dev_table *tables)
{
    struct tern_dev_job job = tern_kv_dev_job(j->seq, j->plan, tables);
    job.row0 = j->row0;
    job.n_rows = j->n_rows;
    job.pos0 = j->pos0;
    job.wide = j->wide;
    return job;
}

void tern_cached_begin(struct tern_forward *f, const struct tern_forward_batch *b)
{
    struct tern_cached *c = &f->cached;
    describe_caches(f);
    for (int i = 0; i < b->n_jobs; i++)
        c->jobs[i] = job_of(&b->jobs[i], c->tables + (size_t)i * TERN_KV_MAX_GROUPS);
    const struct tern_dev_step s = {.rows = b->rows,
                                    .n_rows = b->n_rows,
                                    .caches = c->caches,
                                    .n_caches = f->n_plans,
                                    .jobs = c->jobs,
                                    .n_jobs = b->n_jobs};
    f->dev->ops->begin(f->dev, &s);
}

void tern_cached_attend(struct tern_forward *f, int layer, struct tern_dev_rows k)
{
    if (kv_layer(f, layer) == layer)
        f->dev->ops->append(f->dev, layer, k, f->v);
    f->dev->ops->attention(f->dev, &f->cached.shapes[layer], f->q, f->a);
}

void tern_forward_copy(struct tern_forward *f, const struct tern_forward_job *to, const struct tern_forward_job *from)
{
    struct tern_cached *c = &f->cached;
    const struct tern_forward_batch write = {.n_rows = to->n_rows, .jobs = to, .n_jobs = 1};
    TERN_ASSERT(to->n_rows <= f->max_rows && to->pos0 == from->pos0 && to->n_rows == from->n_rows);
    tern_cached_begin(f, &write);
    c->from = job_of(from, c->from_tables);
    for (int i = 0; i < f->caches[to->plan].layout->n_spans; i++) {
        const int g = f->caches[to->plan].layout->group_of[i], page = to->pos0 / TERN_PAGE;
        if (f->dev->ops->layer)
            f->dev->ops->layer(f->dev, f->caches[to->plan].layout->span_layer[i], f->x, 0);
        if (g >= 0 &&
            (to->seq->table[g].first <= page || (page == 0 && f->caches[to->plan].layout->groups[g].reach.first)))
            f->dev->ops->recode(f->dev, i, &c->from, f->k, f->v);
    }
    f->dev->ops->end(f->dev);
    f->dev->ops->sync(f->dev);
}

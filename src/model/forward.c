/* The interpreter: one transformer step over a ragged batch, for every descriptor.
 *
 *   x = embed(tokens)
 *   per layer:  h = norm(x); q,k,v = h W; heads(q), heads(k); append(k,v); a = attention(q); x += post(a Wo)
 *               x += post(ffn(norm(x)))                              (ffn.h)
 *               where there are per-layer embeddings: x += post((act(x Wp) * ple) Wo)
 * A latent layer's keys and values are one latent c and a rotated part r: h W = [c | r]; a query head's part for c is
 * multiplied by the head's K_B, so that it meets c as it is cached; what attention makes of c, by its V_B.
 * Where attention's output is gated, the product for q yields both: x += (sigmoid(gate) * a) Wo.
 * A delta layer: m, z, b, g = h W; o = rule(conv(m), b, g) on the sequence's state; x += (silu(z) * norm(o)) Wo
 *   logits = norm(x[rows that want them]) head
 *
 * Shapes are [rows][features], row-major, every row 64-byte aligned. */
#include "model/model.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "model/ffn.h"

struct tern_forward {
    const struct tern_net *net;
    const struct tern_kv_cache *caches; /* [n_plans] */
    int n_plans;
    struct tern_dev *dev;
    int max_rows, max_jobs;
    size_t s_embd, s_q, s_k, s_v, s_o, s_ple; /* row strides in floats */
    float *x, *h, *t;                         /* residual, normed, projected: [max_rows][s_embd] */
    float *q, *k, *v, *a;                     /* attention */
    size_t s_mix, s_gates;                    /* of the next, 0 where no layer needs them */
    float *mix, *gate;                        /* queries with gates, or a delta layer's channels; gates, as wide as a */
    float *decay, *beta;                      /* of delta layers, [max_rows][s_gates] */
    struct tern_delta_job *delta;             /* [max_jobs] */
    struct tern_ffn ffn;
    float *ple, *ple_gate; /* per-layer embeddings of all layers; of one, gated */
    float *cos[TERN_MAX_ROPES], *sin[TERN_MAX_ROPES];
    uint8_t *stage; /* raw tiles of jobs that span pages */
    size_t stage_tiles, stage_tile_bytes;
    int *stage_set; /* [n_layers] set of staging tiles: layers that others attend to have their own, the rest share 0 */
    struct tern_attn_job *at; /* [max_jobs] of the layer in hand, those of one plan together */
    struct tern_append_job *app;
    int *job_of;   /* [max_jobs] which job of the batch each of them is */
    int *plan_end; /* [n_plans] where the jobs of a plan end */
    int *stage_of; /* [max_jobs] first staging tile, or -1 */
    size_t bytes;
};

static int take(struct tern_forward *f, void *out, size_t n, size_t size, tern_error *err)
{
    f->bytes += n * size;
    return tern_alloc(out, n, size, err);
}

/* Largest widths over all layers, so that one set of buffers serves them all. */
static void widths(struct tern_forward *f, int *max_k)
{
    const struct tern_desc *d = &f->net->desc;
    int q = 0, k = 0, v = 0, o = 0, rank = 0, mix = 0, gates = 0;
#define WIDEN(var, value) (var = (value) > var ? (value) : var)
    for (int i = 0; i < d->n_layers; i++) {
        const struct tern_layer_desc *l = &d->layers[i];
        WIDEN(q, l->n_heads * l->dim_k);
        WIDEN(k, l->n_kv_heads * l->dim_k);
        WIDEN(v, l->n_kv_heads * l->dim_v);
        WIDEN(o, l->n_heads * l->dim_v);
        WIDEN(o, l->delta_v_heads * l->delta_dim_v);
        WIDEN(mix, l->out_gate ? 2 * l->n_heads * l->dim_k : 0);
        WIDEN(mix, 2 * l->delta_k_heads * l->delta_dim_k + l->delta_v_heads * l->delta_dim_v);
        WIDEN(gates, l->delta_v_heads);
        if (l->mixer != TERN_MIX_LATENT)
            continue;
        WIDEN(q, l->n_heads * (l->dim_v + l->dim_k));
        WIDEN(q, l->n_heads * l->dim_head_v);
        WIDEN(q, l->q_rank);
        WIDEN(k, l->dim_v + l->dim_k);
        WIDEN(o, l->n_heads * (l->dim_nope + l->dim_k));
        WIDEN(rank, l->q_rank);
        WIDEN(rank, l->n_heads * l->dim_head_v);
    }
    const int ple = d->layers[0].n_ple;
    *max_k = d->n_embd;
    WIDEN(*max_k, ple);
    WIDEN(*max_k, o);
    WIDEN(*max_k, rank);
#undef WIDEN
    f->s_embd = tern_round_up((size_t)d->n_embd, 16);
    f->s_q = tern_round_up((size_t)q, 16);
    f->s_k = tern_round_up((size_t)k, 16);
    f->s_v = tern_round_up((size_t)v, 16);
    f->s_o = tern_round_up((size_t)o, 16);
    f->s_mix = tern_round_up((size_t)mix, 16);
    f->s_gates = tern_round_up((size_t)gates, 16);
    f->s_ple = tern_round_up((size_t)ple * (size_t)d->n_layers, 16);
}

/* The layer whose keys and values this one attends to. */
static int kv_layer(const struct tern_forward *f, int layer)
{
    int of = f->net->desc.layers[layer].kv_of;
    return of < 0 ? layer : of;
}

static struct tern_attn_shape shape_of(const struct tern_forward *f, int plan, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    return (struct tern_attn_shape){.kv = &f->caches[plan].layout->layers[kv_layer(f, layer)],
                                    .n_heads = l->n_heads,
                                    .scale = l->scale,
                                    .softcap = l->score_cap};
}

static void stack_limits(const struct tern_desc *d, struct tern_dev_limits *lim)
{
    for (int i = 0; i < d->n_layers; i++) {
        const struct tern_layer_desc *l = &d->layers[i];
        int k = l->dim_nope > l->dim_v ? l->dim_nope : l->dim_v;
        if (l->mixer != TERN_MIX_LATENT)
            continue;
        lim->max_stack = l->n_heads > lim->max_stack ? l->n_heads : lim->max_stack;
        lim->max_stack_k = k > lim->max_stack_k ? k : lim->max_stack_k;
    }
}

static int prepare_device(struct tern_forward *f, int max_narrow, int max_k, bool exact, tern_error *err)
{
    struct tern_dev_limits lim = {.max_rows = f->max_rows, .max_narrow = max_narrow, .max_k = max_k, .exact = exact};
    struct tern_attn_shape *shapes;
    int rc = tern_alloc(&shapes, (size_t)f->n_plans * (size_t)f->net->desc.n_layers, sizeof *shapes, err);
    if (rc < 0)
        return rc;
    lim.shapes = shapes;
    lim.max_pages = f->caches[0].max_tokens / TERN_PAGE + 2;
    for (int p = 0; p < f->n_plans; p++)
        for (int i = 0; i < f->net->desc.n_layers; i++)
            if (f->net->desc.layers[i].n_heads)
                shapes[lim.n_shapes++] = shape_of(f, p, i);
    tern_ffn_limits(&f->net->desc, &lim);
    stack_limits(&f->net->desc, &lim);
    rc = f->dev->ops->prepare(f->dev, &lim, err);
    f->bytes += f->dev->ops->scratch_bytes(f->dev);
    tern_free(shapes);
    return rc;
}

static int take_jobs(struct tern_forward *f, tern_error *err)
{
    int rc = 0, sets = 1;
    size_t jobs = (size_t)f->max_jobs, rows = (size_t)f->max_rows;
    TERN_TRY(take(f, &f->at, jobs, sizeof *f->at, err));
    TERN_TRY(take(f, &f->app, jobs, sizeof *f->app, err));
    TERN_TRY(take(f, &f->job_of, jobs, sizeof *f->job_of, err));
    TERN_TRY(take(f, &f->plan_end, (size_t)f->n_plans, sizeof *f->plan_end, err));
    TERN_TRY(take(f, &f->stage_of, jobs, sizeof *f->stage_of, err));
    for (int p = 0; p < f->n_plans; p++)
        if (f->stage_tile_bytes < f->caches[p].layout->stage_tile_bytes)
            f->stage_tile_bytes = f->caches[p].layout->stage_tile_bytes;
    /* A job of n rows touches at most n/64 + 1 pages beyond its first. */
    f->stage_tiles = rows / TERN_PAGE + 2 * (jobs < rows ? jobs : rows);
    TERN_TRY(take(f, &f->stage_set, (size_t)f->net->desc.n_layers, sizeof *f->stage_set, err));
    for (int i = 0; i < f->net->desc.n_layers; i++)
        if (kv_layer(f, i) != i && !f->stage_set[kv_layer(f, i)])
            f->stage_set[kv_layer(f, i)] = sets++;
    TERN_TRY(take(f, &f->stage, f->stage_tiles * (size_t)sets, f->stage_tile_bytes, err));
out:
    return rc;
}

int tern_forward_new(struct tern_forward **out, const struct tern_net *net, const struct tern_kv_cache *caches,
                     int n_plans, struct tern_dev *dev, int max_rows, int max_narrow, int max_jobs, bool exact,
                     tern_error *err)
{
    int rc = 0, max_k;
    size_t rows = (size_t)max_rows;
    struct tern_forward *f = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&f, 1, sizeof *f, err));
    f->net = net;
    f->caches = caches;
    f->n_plans = n_plans;
    f->dev = dev;
    f->max_rows = max_rows;
    f->max_jobs = max_jobs;
    widths(f, &max_k);
    TERN_TRY(prepare_device(f, max_narrow, max_k, exact, err));
    TERN_TRY(take(f, &f->x, rows, f->s_embd * sizeof(float), err));
    TERN_TRY(take(f, &f->h, rows, f->s_embd * sizeof(float), err));
    TERN_TRY(take(f, &f->t, rows, f->s_embd * sizeof(float), err));
    TERN_TRY(take(f, &f->q, rows, f->s_q * sizeof(float), err));
    TERN_TRY(take(f, &f->k, rows, f->s_k * sizeof(float), err));
    TERN_TRY(take(f, &f->v, rows, f->s_v * sizeof(float), err));
    TERN_TRY(take(f, &f->a, rows, f->s_o * sizeof(float), err));
    if (f->s_mix) {
        TERN_TRY(take(f, &f->mix, rows, f->s_mix * sizeof(float), err));
        TERN_TRY(take(f, &f->gate, rows, f->s_o * sizeof(float), err));
    }
    if (f->s_gates) {
        TERN_TRY(take(f, &f->decay, rows, f->s_gates * sizeof(float), err));
        TERN_TRY(take(f, &f->beta, rows, f->s_gates * sizeof(float), err));
        TERN_TRY(take(f, &f->delta, (size_t)max_jobs, sizeof *f->delta, err));
    }
    TERN_TRY(tern_ffn_open(&f->ffn, &net->desc, max_rows, &f->bytes, err));
    if (f->s_ple) {
        TERN_TRY(take(f, &f->ple, rows, f->s_ple * sizeof(float), err));
        TERN_TRY(take(f, &f->ple_gate, rows, f->s_ple * sizeof(float), err));
    }
    for (int r = 0; r < net->desc.n_ropes; r++) {
        size_t half = (size_t)net->desc.ropes[r].n_rot / 2;
        TERN_TRY(take(f, &f->cos[r], rows, half * sizeof(float), err));
        TERN_TRY(take(f, &f->sin[r], rows, half * sizeof(float), err));
    }
    TERN_TRY(take_jobs(f, err));
    *out = f;
    f = NULL;
out:
    tern_forward_free(f);
    return rc;
}

void tern_forward_free(struct tern_forward *f)
{
    if (!f)
        return;
    void *all[] = {f->x,     f->h,         f->t,   f->q,    f->k,      f->v,        f->a,
                   f->ple,   f->ple_gate,  f->at,  f->app,  f->job_of, f->plan_end, f->stage_of,
                   f->stage, f->stage_set, f->mix, f->gate, f->decay,  f->beta,     f->delta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
    for (int r = 0; r < TERN_MAX_ROPES; r++) {
        tern_free(f->cos[r]);
        tern_free(f->sin[r]);
    }
    tern_ffn_close(&f->ffn);
    tern_free(f);
}

size_t tern_forward_scratch_bytes(const struct tern_forward *f)
{
    return f->bytes;
}

/* Plans differ in how pages look, so each plan's jobs append and attend by themselves. */
static void sort_jobs(struct tern_forward *f, const struct tern_forward_batch *b)
{
    int n = 0;
    for (int p = 0; p < f->n_plans; p++) {
        for (int i = 0; i < b->n_jobs; i++)
            if (b->jobs[i].plan == p)
                f->job_of[n++] = i;
        f->plan_end[p] = n;
    }
    TERN_ASSERT(n == b->n_jobs);
}

/* Jobs whose rows span pages get staging tiles; the others work in the sequence's own tile. */
static void plan_stage(struct tern_forward *f, const struct tern_forward_batch *b)
{
    int used = 0;
    for (int i = 0; i < b->n_jobs; i++) {
        const struct tern_forward_job *j = &b->jobs[f->job_of[i]];
        int pages = (j->pos0 + j->n_rows - 1) / TERN_PAGE - j->pos0 / TERN_PAGE + 1;
        f->stage_of[i] = pages > 1 ? used : -1;
        used += pages > 1 ? pages : 0;
    }
    TERN_ASSERT((size_t)used <= f->stage_tiles);
}

static void layer_jobs(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    layer = kv_layer(f, layer);
    uint8_t *stage = f->stage + (size_t)f->stage_set[layer] * f->stage_tiles * f->stage_tile_bytes;
    for (int i = 0; i < b->n_jobs; i++) {
        const struct tern_forward_job *j = &b->jobs[f->job_of[i]];
        const struct tern_kv_cache *c = &f->caches[j->plan];
        const struct tern_kv_layout *lay = c->layout;
        const struct tern_kv_table *t = &j->seq->table[lay->group_of[layer]];
        bool staged = f->stage_of[i] >= 0;
        const struct tern_kv_layer *l = &lay->layers[layer];
        size_t slot = (size_t)(j->pos0 / TERN_PAGE % l->ring) * (size_t)l->n_heads * l->tile_bytes;
        uint8_t *tiles = tern_kv_block(&c->tiles, j->seq->tile), *sink = tern_kv_block(&c->sinks, j->seq->sink);
        uint8_t *base = staged ? stage + (size_t)f->stage_of[i] * f->stage_tile_bytes : tiles;
        f->at[i] = (struct tern_attn_job){
            .row0 = j->row0,
            .n_rows = j->n_rows,
            .pos0 = j->pos0,
            .wide = j->wide,
            .pages = t->pages,
            .page_mem = c->pool[lay->group_of[layer]].mem,
            .first_page = t->first,
            .n_pages = t->n,
            .sink = sink,
            .tile_base = base,
            .tile_stride = f->stage_tile_bytes,
            .tile_first = j->pos0 / TERN_PAGE,
            .tile_layer_off = staged ? 0 : l->tile_layer_off + slot,
            .ring = tiles + l->tile_layer_off,
        };
        f->app[i] = (struct tern_append_job){
            .at = &f->at[i], .tile_base = base, .seq_tile = tiles, .sink = sink, .staged = staged};
    }
}

static void prepare_heads(struct tern_forward *f, const struct tern_forward_batch *b, int layer, float *x,
                          size_t stride, int n_heads, const float *norm_w)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    struct tern_heads h = {.x = x, .stride = stride, .n_heads = n_heads, .dim = l->dim_k};
    h.norm = norm_w || l->qk_norm_plain;
    h.norm_after = l->qk_norm_after_rope;
    h.norm_w = norm_w;
    h.eps = d->eps;
    if (l->rope >= 0) {
        h.cos = f->cos[l->rope];
        h.sin = f->sin[l->rope];
        h.n_rot = d->ropes[l->rope].n_rot;
        h.interleaved = d->ropes[l->rope].interleaved;
    }
    if (x == f->q) {
        h.temper = l->q_temper;
        h.temper_span = l->q_temper_span;
        h.temper_from = l->q_temper_from;
        h.rows = b->rows;
    }
    if (h.norm || h.cos || h.temper != 0.0f)
        f->dev->ops->heads(f->dev, &h, b->n_rows);
}

static void norm_values(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    struct tern_heads h = {
        .x = f->v, .stride = f->s_v, .n_heads = l->n_kv_heads, .dim = l->dim_v, .norm = true, .eps = f->net->desc.eps};
    f->dev->ops->heads(f->dev, &h, b->n_rows);
}

/* x += post_norm(t): the end of both halves of a block. */
static void add_residual(struct tern_forward *f, int n_rows, const float *post_norm)
{
    const struct tern_desc *d = &f->net->desc;
    if (post_norm)
        f->dev->ops->norm(f->dev, f->t, f->s_embd, f->t, f->s_embd, post_norm, d->n_embd, d->eps, n_rows);
    f->dev->ops->add(f->dev, f->x, f->x, f->t, f->s_embd, d->n_embd, n_rows);
}

/* Layers that others attend to keep their staging tiles until the last layer has been. */
static void keep(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    layer_jobs(f, b, layer);
    for (int p = 0, i = 0; p < f->n_plans; i = f->plan_end[p++]) {
        struct tern_attn_shape shape = shape_of(f, p, layer);
        f->dev->ops->keep(f->dev, shape.kv, f->app + i, f->plan_end[p] - i);
    }
}

/* New keys k, with the stride of f->k, and values into the cache, then attention: a = attention(q). */
static void attend(struct tern_forward *f, const struct tern_forward_batch *b, int layer, const float *k)
{
    const struct tern_dev_ops *ops = f->dev->ops;
    layer_jobs(f, b, layer);
    for (int p = 0, i = 0; p < f->n_plans; i = f->plan_end[p++]) {
        struct tern_attn_shape shape = shape_of(f, p, layer);
        int n = f->plan_end[p] - i;
        if (!n)
            continue;
        if (kv_layer(f, layer) == layer)
            ops->append(f->dev, shape.kv, f->app + i, n, k, f->s_k, f->v, f->s_v);
        ops->attention(f->dev, &shape, f->at + i, n, f->q, f->s_q, f->a, f->s_o);
        if (kv_layer(f, layer) == layer && !f->stage_set[layer])
            ops->keep(f->dev, shape.kv, f->app + i, n);
    }
}

/* q = queries, gate = gates of the normed rows h, which the product yields head by head. */
static void split_gates(struct tern_forward *f, int n_rows, const struct tern_layer_desc *l)
{
    const size_t dim = (size_t)l->dim_k;
    for (int r = 0; r < n_rows; r++)
        for (size_t h = 0; h < (size_t)l->n_heads; h++) {
            const float *both = f->mix + (size_t)r * f->s_mix + 2 * h * dim;
            memcpy(f->q + (size_t)r * f->s_q + h * dim, both, dim * sizeof(float));
            memcpy(f->gate + (size_t)r * f->s_o + h * dim, both + dim, dim * sizeof(float));
        }
}

static void attention_half(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    ops->norm(f->dev, f->h, f->s_embd, f->x, f->s_embd, w[TERN_SLOT_ATTN_NORM].vec, d->n_embd, d->eps, b->n_rows);
    const struct tern_matmul qkv[3] = {
        {&w[TERN_SLOT_Q].mat, w[TERN_SLOT_Q_BIAS].vec, l->out_gate ? f->mix : f->q, l->out_gate ? f->s_mix : f->s_q,
         false},
        {&w[TERN_SLOT_K].mat, w[TERN_SLOT_K_BIAS].vec, f->k, f->s_k, false},
        {&w[TERN_SLOT_V].mat, w[TERN_SLOT_V_BIAS].vec, f->v, f->s_v, false},
    };
    ops->matmul(f->dev, qkv, l->kv_of >= 0 ? 1 : l->v_is_k ? 2 : 3, f->h, f->s_embd, b->n_rows, b->n_wide);
    if (l->out_gate)
        split_gates(f, b->n_rows, l);
    prepare_heads(f, b, layer, f->q, f->s_q, l->n_heads, w[TERN_SLOT_Q_NORM].vec);
    for (int r = 0; r < b->n_rows && l->v_is_k; r++) /* before norm and rotation */
        memcpy(f->v + (size_t)r * f->s_v, f->k + (size_t)r * f->s_k,
               (size_t)l->n_kv_heads * (size_t)l->dim_v * sizeof(float));
    if (l->kv_of < 0)
        prepare_heads(f, b, layer, f->k, f->s_k, l->n_kv_heads, w[TERN_SLOT_K_NORM].vec);
    if (l->kv_of < 0 && l->v_norm_plain)
        norm_values(f, b, layer);
    if (b->tap)
        b->tap(b->tap_user, layer, f->q, f->s_q, f->k, f->s_k);
    attend(f, b, layer, f->k);
    if (l->out_gate)
        ops->glu(f->dev, f->gate, f->a, f->s_o, l->n_heads * l->dim_v, b->n_rows, TERN_GATE_SIGMOID);
    const struct tern_matmul o = {&w[TERN_SLOT_O].mat, w[TERN_SLOT_O_BIAS].vec, f->t, f->s_embd, false};
    ops->matmul(f->dev, &o, 1, l->out_gate ? f->gate : f->a, f->s_o, b->n_rows, b->n_wide);
    add_residual(f, b->n_rows, w[TERN_SLOT_ATTN_POST_NORM].vec);
}

static void rotate(struct tern_forward *f, int n_rows, const struct tern_layer_desc *l, float *x, size_t stride,
                   int n_heads, int dim)
{
    const struct tern_rope *rope = &f->net->desc.ropes[l->rope];
    const struct tern_heads h = {.x = x,
                                 .stride = stride,
                                 .n_heads = n_heads,
                                 .dim = dim,
                                 .cos = f->cos[l->rope],
                                 .sin = f->sin[l->rope],
                                 .n_rot = rope->n_rot,
                                 .interleaved = rope->interleaved};
    f->dev->ops->heads(f->dev, &h, n_rows);
}

/* a = queries [heads][nope, rotated], k = [latent | rotated] of the normed rows h. */
static void project_latent(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_matmul q_b = {.w = &w[TERN_SLOT_Q].mat, .y = f->a, .y_stride = f->s_o};
    const struct tern_matmul first[2] = {
        {.w = &w[TERN_SLOT_KV_A].mat, .bias = NULL, .y = f->k, .y_stride = f->s_k},
        l->q_rank ? (struct tern_matmul){.w = &w[TERN_SLOT_Q_A].mat, .y = f->q, .y_stride = f->s_q} : q_b,
    };
    ops->matmul(f->dev, first, 2, f->h, f->s_embd, b->n_rows, b->n_wide);
    if (!l->q_rank)
        return;
    ops->norm(f->dev, f->q, f->s_q, f->q, f->s_q, w[TERN_SLOT_Q_A_NORM].vec, l->q_rank, f->net->desc.eps, b->n_rows);
    ops->matmul(f->dev, &q_b, 1, f->q, f->s_q, b->n_rows, b->n_wide);
}

/* q = [heads][latent, rotated] of the queries in a. */
static void absorb(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_layer_desc *l = &f->net->desc.layers[layer];
    const size_t from = (size_t)(l->dim_nope + l->dim_k), to = (size_t)(l->dim_v + l->dim_k);
    const struct tern_stack s = {.w = &f->net->layers[layer][TERN_SLOT_K_B].mat,
                                 .n_heads = l->n_heads,
                                 .y = f->q,
                                 .y_stride = f->s_q,
                                 .y_head = to,
                                 .x = f->a,
                                 .x_stride = f->s_o,
                                 .x_head = from};
    f->dev->ops->stack(f->dev, &s, b->n_rows, b->n_wide);
    for (int r = 0; r < b->n_rows; r++)
        for (int h = 0; h < l->n_heads; h++)
            memcpy(f->q + (size_t)r * f->s_q + (size_t)h * to + l->dim_v,
                   f->a + (size_t)r * f->s_o + (size_t)h * from + l->dim_nope, (size_t)l->dim_k * sizeof(float));
}

static void latent_half(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    float *rotated = f->k + l->dim_v;
    ops->norm(f->dev, f->h, f->s_embd, f->x, f->s_embd, w[TERN_SLOT_ATTN_NORM].vec, d->n_embd, d->eps, b->n_rows);
    project_latent(f, b, layer);
    ops->norm(f->dev, f->v, f->s_v, f->k, f->s_k, w[TERN_SLOT_KV_A_NORM].vec, l->dim_v, d->eps, b->n_rows);
    rotate(f, b->n_rows, l, rotated, f->s_k, 1, l->dim_k);
    rotate(f, b->n_rows, l, f->a + l->dim_nope, f->s_o, l->n_heads, l->dim_nope + l->dim_k);
    absorb(f, b, layer);
    attend(f, b, layer, rotated);
    const struct tern_stack s = {.w = &w[TERN_SLOT_V_B].mat,
                                 .n_heads = l->n_heads,
                                 .y = f->q,
                                 .y_stride = f->s_q,
                                 .y_head = (size_t)l->dim_head_v,
                                 .x = f->a,
                                 .x_stride = f->s_o,
                                 .x_head = (size_t)l->dim_v};
    ops->stack(f->dev, &s, b->n_rows, b->n_wide);
    const struct tern_matmul o = {.w = &w[TERN_SLOT_O].mat, .y = f->t, .y_stride = f->s_embd};
    ops->matmul(f->dev, &o, 1, f->q, f->s_q, b->n_rows, b->n_wide);
    add_residual(f, b->n_rows, NULL);
}

static void delta_jobs(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    for (int i = 0; i < b->n_jobs; i++) {
        const struct tern_forward_job *j = &b->jobs[i];
        const struct tern_kv_cache *c = &f->caches[j->plan];
        const size_t off = c->layout->state_off[layer];
        f->delta[i] =
            (struct tern_delta_job){.row0 = j->row0,
                                    .n_rows = j->n_rows,
                                    .state = (float *)(void *)(tern_kv_block(&c->states, j->seq->state) + off)};
        if (j->mark) {
            f->delta[i].mark = (float *)(void *)(tern_kv_block(&c->states, j->mark->block) + off);
            f->delta[i].mark_at = j->mark->at - j->pos0;
        }
    }
}

/* The two products that gates come from are in f32 everywhere: their rounding would stay in the state. */
static void delta_half(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    struct tern_delta delta = tern_layer_delta(l);
    delta.conv = w[TERN_SLOT_DELTA_CONV].vec;
    delta.a = w[TERN_SLOT_DELTA_A].vec;
    delta.dt = w[TERN_SLOT_DELTA_DT].vec;
    const struct tern_matmul in[4] = {
        {&w[TERN_SLOT_DELTA_IN].mat, NULL, f->mix, f->s_mix, false},
        {&w[TERN_SLOT_DELTA_Z].mat, NULL, f->gate, f->s_o, false},
        {&w[TERN_SLOT_DELTA_ALPHA].mat, NULL, f->decay, f->s_gates, true},
        {&w[TERN_SLOT_DELTA_BETA].mat, NULL, f->beta, f->s_gates, true},
    };
    const struct tern_delta_io io = {f->mix, f->s_mix, f->decay, f->beta, f->s_gates, f->a, f->s_o};
    const struct tern_heads norm = {.x = f->a,
                                    .stride = f->s_o,
                                    .n_heads = l->delta_v_heads,
                                    .dim = l->delta_dim_v,
                                    .norm = true,
                                    .norm_w = w[TERN_SLOT_DELTA_NORM].vec,
                                    .eps = d->eps};
    ops->norm(f->dev, f->h, f->s_embd, f->x, f->s_embd, w[TERN_SLOT_ATTN_NORM].vec, d->n_embd, d->eps, b->n_rows);
    ops->matmul(f->dev, in, 4, f->h, f->s_embd, b->n_rows, b->n_wide);
    delta_jobs(f, b, layer);
    ops->delta(f->dev, &delta, f->delta, b->n_jobs, &io, b->n_rows);
    ops->heads(f->dev, &norm, b->n_rows);
    ops->glu(f->dev, f->gate, f->a, f->s_o, l->delta_v_heads * l->delta_dim_v, b->n_rows, TERN_GATE_SILU);
    const struct tern_matmul o = {&w[TERN_SLOT_O].mat, NULL, f->t, f->s_embd, false};
    ops->matmul(f->dev, &o, 1, f->gate, f->s_o, b->n_rows, b->n_wide);
    add_residual(f, b->n_rows, NULL);
}

static void ffn_half(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_weights *w = f->net->layers[layer];
    f->dev->ops->norm(f->dev, f->h, f->s_embd, f->x, f->s_embd, w[TERN_SLOT_FFN_NORM].vec, d->n_embd, d->eps,
                      b->n_rows);
    tern_ffn_run(&f->ffn, f->dev, &d->layers[layer], w, f->t, f->h, f->x, b->n_rows, b->n_wide);
    add_residual(f, b->n_rows, w[TERN_SLOT_FFN_POST_NORM].vec);
}

/* Per-layer embeddings of all layers: ple = (norm(x Wp / sqrt(n)) + embed(tokens)) / sqrt(2), norm by layer. */
static void embed_layers(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_weights *w = f->net->globals;
    const struct tern_dev_ops *ops = f->dev->ops;
    const int ple = d->layers[0].n_ple, n = ple * d->n_layers;
    const struct tern_matmul in = {&w[TERN_PLE_IN].mat, NULL, f->ple, f->s_ple, false};
    const struct tern_heads norm = {.x = f->ple,
                                    .stride = f->s_ple,
                                    .n_heads = d->n_layers,
                                    .dim = ple,
                                    .norm = true,
                                    .norm_w = w[TERN_PLE_NORM].vec,
                                    .eps = d->eps};
    ops->matmul(f->dev, &in, 1, f->x, f->s_embd, b->n_rows, b->n_wide);
    ops->scale(f->dev, f->ple, f->s_ple, n, b->n_rows, 1 / sqrtf((float)d->n_embd));
    ops->heads(f->dev, &norm, b->n_rows);
    ops->embed(f->dev, f->ple_gate, f->s_ple, &w[TERN_PLE_EMBED].mat, b->rows, b->n_rows, sqrtf((float)ple));
    ops->add(f->dev, f->ple, f->ple, f->ple_gate, f->s_ple, n, b->n_rows);
    ops->scale(f->dev, f->ple, f->s_ple, n, b->n_rows, 1 / sqrtf(2));
}

/* The end of a block: x += post((act(x Wg) * ple) Wo), then x *= the layer's own factor. */
static void finish_layer(struct tern_forward *f, const struct tern_forward_batch *b, int layer)
{
    const struct tern_desc *d = &f->net->desc;
    const struct tern_layer_desc *l = &d->layers[layer];
    const struct tern_weights *w = f->net->layers[layer];
    const struct tern_dev_ops *ops = f->dev->ops;
    if (l->n_ple) {
        const struct tern_matmul gate = {&w[TERN_SLOT_PLE_GATE].mat, NULL, f->ple_gate, f->s_ple, false};
        const struct tern_matmul out = {&w[TERN_SLOT_PLE_OUT].mat, NULL, f->t, f->s_embd, false};
        ops->matmul(f->dev, &gate, 1, f->x, f->s_embd, b->n_rows, b->n_wide);
        ops->glu(f->dev, f->ple_gate, f->ple + (size_t)layer * (size_t)l->n_ple, f->s_ple, l->n_ple, b->n_rows,
                 tern_layer_gate(l));
        ops->matmul(f->dev, &out, 1, f->ple_gate, f->s_ple, b->n_rows, b->n_wide);
        add_residual(f, b->n_rows, w[TERN_SLOT_PLE_POST_NORM].vec);
    }
    if (w[TERN_SLOT_OUT_SCALE].vec)
        ops->scale(f->dev, f->x, f->s_embd, d->n_embd, b->n_rows, w[TERN_SLOT_OUT_SCALE].vec[0]);
}

/* Only the rows that want logits go through the output matrix. */
static void head(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_desc *d = &f->net->desc;
    int n_wide = 0;
    for (int i = 0; i < b->n_logit_rows; i++) {
        int r = b->logit_rows[i];
        n_wide += r < b->n_wide;
        memcpy(f->t + (size_t)i * f->s_embd, f->x + (size_t)r * f->s_embd, (size_t)d->n_embd * sizeof(float));
    }
    f->dev->ops->norm(f->dev, f->h, f->s_embd, f->t, f->s_embd, f->net->globals[TERN_OUT_NORM].vec, d->n_embd, d->eps,
                      b->n_logit_rows);
    const struct tern_matmul out = {&f->net->globals[TERN_HEAD].mat, NULL, b->logits, b->logit_stride, false};
    f->dev->ops->matmul(f->dev, &out, 1, f->h, f->s_embd, b->n_logit_rows, n_wide);
    if (d->logit_cap > 0)
        f->dev->ops->softcap(f->dev, b->logits, b->logit_stride, d->n_vocab, b->n_logit_rows, d->logit_cap);
}

void tern_forward_run(struct tern_forward *f, const struct tern_forward_batch *b)
{
    const struct tern_desc *d = &f->net->desc;
    TERN_ASSERT(b->n_rows > 0 && b->n_rows <= f->max_rows && b->n_jobs <= f->max_jobs);
    sort_jobs(f, b);
    plan_stage(f, b);
    f->dev->ops->embed(f->dev, f->x, f->s_embd, &f->net->globals[TERN_EMBED].mat, b->rows, b->n_rows, d->embed_scale);
    if (f->ple)
        embed_layers(f, b);
    for (int r = 0; r < d->n_ropes; r++)
        f->dev->ops->rope_table(f->dev, f->cos[r], f->sin[r], tern_rope_freq(&d->ropes[r], f->caches[0].max_tokens),
                                d->ropes[r].n_rot, d->ropes[r].magnitude, b->rows, b->n_rows);
    for (int i = 0; i < d->n_layers; i++) {
        if (d->layers[i].mixer == TERN_MIX_LATENT)
            latent_half(f, b, i);
        else if (d->layers[i].mixer == TERN_MIX_DELTA)
            delta_half(f, b, i);
        else
            attention_half(f, b, i);
        ffn_half(f, b, i);
        finish_layer(f, b, i);
    }
    for (int i = 0; i < d->n_layers; i++)
        if (f->stage_set[i])
            keep(f, b, i);
    if (b->n_logit_rows)
        head(f, b);
}

void tern_forward_copy(struct tern_forward *f, const struct tern_forward_job *to, const struct tern_forward_job *from)
{
    const struct tern_dev_ops *ops = f->dev->ops;
    const struct tern_forward_batch write = {.jobs = to, .n_jobs = 1}, read = {.jobs = from, .n_jobs = 1};
    TERN_ASSERT(to->n_rows <= f->max_rows && to->pos0 == from->pos0 && to->n_rows == from->n_rows);
    sort_jobs(f, &write);
    plan_stage(f, &write);
    for (int i = 0; i < f->net->desc.n_layers; i++) {
        const struct tern_kv_layout *raw = f->caches[from->plan].layout, *coded = f->caches[to->plan].layout;
        if (raw->group_of[i] < 0)
            continue;
        layer_jobs(f, &read, i);
        ops->raw_rows(f->dev, &raw->layers[i], f->at, f->k, f->s_k, f->v, f->s_v);
        layer_jobs(f, &write, i);
        ops->append(f->dev, &coded->layers[i], f->app, 1, f->k, f->s_k, f->v, f->s_v);
        ops->keep(f->dev, &coded->layers[i], f->app, 1);
    }
}

/* Mixture of experts: which experts a row goes to, and their answers.
 *
 * Pairs of a row and an expert are sorted by expert, so that an expert's weights are read once for all its rows.  The
 * order of pairs and the cut into tasks depend on the batch; a pair's answer does not, and a row adds up its answers in
 * ascending order of experts. */
#include "dev/cpu/cpu.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "kernel/pack.h"

/* ---- the choice ------------------------------------------------------------------------------------------------- */

struct route_args {
    const struct tern_route *r;
    const float *bias, *factors, *table;
    const struct tern_row *rows;
    const float *logits;
    size_t stride;
    int32_t *ids;
    float *weights;
};

/* Marks the n best of score[0..count) among those not marked yet; of equal ones the first. */
static void mark_best(bool *marked, const double *score, int count, int n)
{
    for (int i = 0; i < n; i++) {
        int best = -1;
        for (int e = 0; e < count; e++)
            if (!marked[e] && (best < 0 || score[e] > score[best]))
                best = e;
        marked[best] = true;
    }
}

/* In double, so that neither the order of a sum nor an exponential decides between experts. */
static void scores(const struct tern_route *r, const float *logits, double *score)
{
    double max = logits[0], sum = 0;
    if (r->sigmoid) {
        for (int e = 0; e < r->n_experts; e++)
            score[e] = 1 / (1 + exp(-(double)logits[e]));
        return;
    }
    if (r->sqrt_softplus) {
        for (int e = 0; e < r->n_experts; e++)
            score[e] = sqrt(logits[e] > 0 ? (double)logits[e] + log1p(exp(-(double)logits[e]))
                                          : log1p(exp((double)logits[e])));
        return;
    }
    for (int e = 1; e < r->n_experts; e++)
        max = logits[e] > max ? logits[e] : max;
    for (int e = 0; e < r->n_experts; e++) {
        score[e] = exp(logits[e] - max);
        sum += score[e];
    }
    for (int e = 0; e < r->n_experts; e++)
        score[e] /= sum;
}

/* Experts of groups that do not compete are marked, and so out of the choice. */
static void mark_lost_groups(const struct tern_route *r, const double *choice, bool *marked)
{
    bool used[TERN_MAX_EXPERTS] = {false};
    double sum[TERN_MAX_EXPERTS];
    int size = r->n_experts / r->n_groups;
    for (int g = 0; g < r->n_groups; g++) {
        bool best[TERN_MAX_EXPERTS] = {false};
        mark_best(best, choice + g * size, size, r->group_best);
        sum[g] = 0;
        for (int e = 0; e < size; e++)
            sum[g] += best[e] ? choice[g * size + e] : 0;
    }
    mark_best(used, sum, r->n_groups, r->n_groups_used);
    for (int g = 0; g < r->n_groups; g++)
        for (int e = 0; e < size; e++)
            marked[g * size + e] = !used[g];
}

/* Those that a table of f32 names. */
static void mark_listed(bool *marked, const float *listed, int n)
{
    for (int i = 0; i < n; i++)
        marked[(int)listed[i]] = true;
}

static void route_row(const void *args, int row)
{
    const struct route_args *a = args;
    const struct tern_route *r = a->r;
    double score[TERN_MAX_EXPERTS], choice[TERN_MAX_EXPERTS] = {0}, sum = 0;
    bool lost[TERN_MAX_EXPERTS] = {false}, marked[TERN_MAX_EXPERTS];
    int32_t *ids = a->ids + (size_t)row * (size_t)r->n_active;
    float *weights = a->weights + (size_t)row * (size_t)r->n_active;
    scores(r, a->logits + (size_t)row * a->stride, score);
    for (int e = 0; e < r->n_experts; e++)
        choice[e] = a->bias ? score[e] + (double)a->bias[e] : score[e];
    if (r->n_groups > 1)
        mark_lost_groups(r, choice, lost);
    memcpy(marked, lost, sizeof marked);
    if (a->table)
        mark_listed(marked, a->table + (size_t)a->rows[row].token * (size_t)r->n_active, r->n_active);
    else
        mark_best(marked, choice, r->n_experts, r->n_active);
    for (int e = 0, n = 0; e < r->n_experts; e++)
        if (marked[e] && !lost[e]) {
            ids[n++] = e;
            sum += score[e];
        }
    double factor = r->normalise ? (double)r->scale / (sum + 1e-20) : (double)r->scale;
    for (int i = 0; i < r->n_active; i++)
        weights[i] = (float)(score[ids[i]] * factor * (a->factors ? (double)a->factors[ids[i]] : 1));
}

void tern_cpu_route(struct tern_dev *dev, const struct tern_route *r, struct tern_dev_rows logits,
                    struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct route_args a = {r,
                           tern_cpu_vec(r->bias),
                           tern_cpu_vec(r->factors),
                           tern_cpu_vec(r->table),
                           d->step.s.rows,
                           tern_cpu_f32(logits),
                           logits.stride,
                           (int32_t *)(void *)tern_cpu_vec(ids),
                           tern_cpu_vec(weights)};
    TERN_ASSERT(r->n_experts <= TERN_MAX_EXPERTS && r->n_active * r->n_groups <= r->n_experts * r->n_groups_used);
    tern_cpu_each_row(d, route_row, &a, n_rows, r->n_experts * (r->n_active + 8));
}

/* ---- the answers ------------------------------------------------------------------------------------------------ */

/* The pairs of one expert: prompt rows' [0], decode rows' [1]. */
struct tern_expert_group {
    int expert;
    int pair[2], n[2];
    int band; /* of its first packed prompt rows */
};

struct expert_work {
    struct tern_cpu *d;
    const struct tern_experts *e;
    const struct tern_packed *gate, *up, *down; /* those of the half in hand */
    int n_experts;
    float *y, *between; /* between: [pairs][...] what is between the halves */
    const float *x, *weights;
    size_t y_stride, x_stride, b_stride;
    size_t s_embd, s_ff; /* strides of the scratch */
    int n_pairs, n_wide; /* pairs; those of prompt rows */
    int n_groups;
    int panels, cut;     /* panels of the matrices in hand; of one task */
    const float *packed; /* input of the pack tasks: [pairs][packed_stride], packed_k of each */
    size_t packed_stride;
    int packed_k;
};

int tern_cpu_experts_open(struct tern_cpu *d, tern_error *err)
{
    int rc = 0;
    const struct tern_dev_limits *l = &d->limits;
    struct tern_expert_scratch *s = &d->experts;
    size_t active = (size_t)l->max_active, pairs = (size_t)l->max_rows * active, n = (size_t)l->max_experts;
    size_t embd = tern_round_up((size_t)l->max_expert_embd, 64), ff = tern_round_up((size_t)l->max_expert_ff, 64);
    size_t k = embd > ff ? embd : ff;
    TERN_TRY(tern_alloc(&s->x, pairs, embd * sizeof(float), err));
    TERN_TRY(tern_alloc(&s->gate, pairs, ff * sizeof(float), err));
    TERN_TRY(tern_alloc(&s->up, pairs, ff * sizeof(float), err));
    TERN_TRY(tern_cpu_q8_new(d, &s->q8, (size_t)l->max_narrow * active, k, err));
    if (d->prompt) { /* every expert may leave a band that is not full */
        size_t bands = pairs / TERN_BAND + n, band_bytes = d->prompt->band((int)k) * sizeof *s->packed;
        TERN_TRY(tern_alloc(&s->packed, bands, band_bytes, err));
        d->bytes += bands * band_bytes;
    }
    TERN_TRY(tern_alloc(&s->row_of, pairs, sizeof *s->row_of, err));
    TERN_TRY(tern_alloc(&s->at, pairs, sizeof *s->at, err));
    TERN_TRY(tern_alloc(&s->count, 2 * n, sizeof *s->count, err));
    TERN_TRY(tern_alloc(&s->groups, n, sizeof *s->groups, err));
    d->bytes += pairs * ((embd + 2 * ff) * sizeof(float) + sizeof *s->row_of + sizeof *s->at) +
                n * (2 * sizeof *s->count + sizeof *s->groups);
out:
    return rc;
}

void tern_cpu_experts_close(struct tern_cpu *d)
{
    struct tern_expert_scratch *s = &d->experts;
    tern_free(s->x);
    tern_free(s->gate);
    tern_free(s->up);
    tern_cpu_q8_free(&s->q8);
    tern_free(s->packed);
    tern_free(s->row_of);
    tern_free(s->at);
    tern_free(s->count);
    tern_free(s->groups);
}

/* Counts pairs, gives every expert its place, and puts every pair there. */
static void sort_pairs(struct expert_work *w, const int32_t *ids)
{
    struct tern_expert_scratch *s = &w->d->experts;
    int n = w->n_experts, next[2] = {0, w->n_wide}, band = 0;
    memset(s->count, 0, 2 * (size_t)n * sizeof *s->count);
    for (int i = 0; i < w->n_pairs; i++)
        s->count[(i >= w->n_wide) * n + ids[i]]++;
    for (int e = 0; e < n; e++) {
        struct tern_expert_group g = {.expert = e, .band = band};
        for (int c = 0; c < 2; c++) {
            g.pair[c] = next[c];
            g.n[c] = s->count[c * n + e];
            s->count[c * n + e] = next[c]; /* from here on: where the next pair goes */
            next[c] += g.n[c];
        }
        band += (g.n[0] + TERN_BAND - 1) / TERN_BAND;
        if (g.n[0] + g.n[1])
            s->groups[w->n_groups++] = g;
    }
    for (int i = 0; i < w->n_pairs; i++) {
        s->at[i] = s->count[(i >= w->n_wide) * n + ids[i]]++;
        s->row_of[s->at[i]] = i;
    }
}

static void gather_pair(const void *args, int pair)
{
    const struct expert_work *w = args;
    const struct tern_expert_scratch *s = &w->d->experts;
    int k = w->gate->k, i = s->row_of[pair];
    const float *from = w->x + (size_t)(i / w->e->n_active) * w->x_stride;
    float *to = s->x + (size_t)pair * w->s_embd;
    if (w->e->weigh_input)
        tern_k.vec.scale(to, from, w->weights[i], k);
    else
        memcpy(to, from, (size_t)k * sizeof *to);
    if (pair >= w->n_wide && (tern_codes_integer(w->gate->codes) || tern_codes_integer(w->up->codes)))
        tern_cpu_quantize(w->d, &s->q8, pair - w->n_wide, to, k);
}

static void quantize_pair(const void *args, int narrow)
{
    const struct expert_work *w = args;
    tern_cpu_quantize(w->d, &w->d->experts.q8, narrow, w->between + (size_t)(w->n_wide + narrow) * w->b_stride,
                      w->down->k);
}

/* The prompt rows' pairs of one expert into their bands. */
static void pack_task(void *ctx, int task, int worker)
{
    const struct expert_work *w = ctx;
    const struct tern_expert_group *g = &w->d->experts.groups[task];
    const struct tern_prompt_kernels *kernels = w->d->prompt;
    (void)worker;
    for (int r = 0; r < g->n[0]; r += TERN_BAND)
        kernels->pack(w->d->experts.packed + (size_t)(g->band + r / TERN_BAND) * kernels->band(w->packed_k),
                      w->packed + (size_t)(g->pair[0] + r) * w->packed_stride, w->packed_stride,
                      g->n[0] - r < TERN_BAND ? g->n[0] - r : TERN_BAND, w->packed_k);
}

static void pack(struct expert_work *w, const float *x, size_t stride, int k)
{
    if (!w->d->prompt || !w->n_wide)
        return;
    w->packed = x;
    w->packed_stride = stride;
    w->packed_k = k;
    tern_pool_run(w->d->pool, pack_task, w, w->n_groups);
}

/* y[pair] = x[pair] . matrix of the expert, for all its pairs. */
static void group_product(const struct expert_work *w, const struct tern_expert_group *g,
                          const struct tern_packed *stack, float *y, size_t y_stride, const float *x, size_t x_stride,
                          int panel0, int panel1, int worker)
{
    const struct tern_expert_scratch *s = &w->d->experts;
    const struct tern_packed m = tern_weight_at(stack, g->expert);
    const size_t wide = (size_t)g->pair[0], narrow = (size_t)g->pair[1];
    if (g->n[0]) {
        const uint16_t *bands = s->packed ? s->packed + (size_t)g->band * w->d->prompt->band(m.k) : NULL;
        struct tern_cpu_rows r = {x + wide * x_stride, x_stride, bands, NULL, g->n[0], g->n[0]};
        tern_cpu_product(w->d, y + wide * y_stride, y_stride, &r, &m, panel0, panel1, worker);
    }
    if (g->n[1]) {
        const struct tern_q8_row *q8 = tern_cpu_q8_row(w->d, &s->q8, narrow - (size_t)w->n_wide);
        struct tern_cpu_rows r = {x + narrow * x_stride, x_stride, NULL, q8, g->n[1], 0};
        tern_cpu_product(w->d, y + narrow * y_stride, y_stride, &r, &m, panel0, panel1, worker);
    }
}

/* Panels of a task of one expert. */
static const struct tern_expert_group *find_task(const struct expert_work *w, int task, int *panel0, int *panel1)
{
    int per_group = (w->panels + w->cut - 1) / w->cut;
    *panel0 = task % per_group * w->cut;
    *panel1 = *panel0 + w->cut < w->panels ? *panel0 + w->cut : w->panels;
    return &w->d->experts.groups[task / per_group];
}

static void run_tasks(struct expert_work *w, const struct tern_packed *m, tern_pool_fn *fn)
{
    w->panels = tern_panels(m);
    w->cut = tern_cpu_panels_per_task(w->d, m, w->n_wide / w->n_groups, w->panels * w->n_groups);
    tern_pool_run(w->d->pool, fn, w, w->n_groups * ((w->panels + w->cut - 1) / w->cut));
}

/* gate = act(x Wg) * (x Wu) in the columns of some panels. */
static void glu_task(void *ctx, int task, int worker)
{
    const struct expert_work *w = ctx;
    const struct tern_expert_scratch *s = &w->d->experts;
    int p0, p1;
    const struct tern_expert_group *g = find_task(w, task, &p0, &p1);
    group_product(w, g, w->gate, w->between, w->b_stride, s->x, w->s_embd, p0, p1, worker);
    group_product(w, g, w->up, s->up, w->s_ff, s->x, w->s_embd, p0, p1, worker);
    int col0 = p0 * TERN_PANEL, col1 = p1 * TERN_PANEL < w->gate->n ? p1 * TERN_PANEL : w->gate->n;
    for (int c = 0; c < 2; c++)
        for (int pair = g->pair[c]; pair < g->pair[c] + g->n[c]; pair++) {
            float *gate = w->between + (size_t)pair * w->b_stride + col0;
            float *up = s->up + (size_t)pair * w->s_ff + col0;
            if (w->e->clamp > 0)
                tern_cpu_clamp_row(gate, up, col1 - col0, w->e->clamp);
            (w->e->gelu ? tern_k.vec.gelu_mul : tern_k.vec.silu_mul)(gate, gate, up, col1 - col0);
        }
}

static void down_task(void *ctx, int task, int worker)
{
    const struct expert_work *w = ctx;
    const struct tern_expert_scratch *s = &w->d->experts;
    int p0, p1;
    const struct tern_expert_group *g = find_task(w, task, &p0, &p1);
    group_product(w, g, w->down, s->x, w->s_embd, w->between, w->b_stride, p0, p1, worker);
}

/* A row's answers, weighed unless that is done, added up in ascending order of its experts. */
static void sum_row(const void *args, int row)
{
    const struct expert_work *w = args;
    const struct tern_expert_scratch *s = &w->d->experts;
    int n = w->down->n;
    float *y = w->y + (size_t)row * w->y_stride;
    for (int j = 0; j < w->e->n_active; j++) {
        size_t i = (size_t)row * (size_t)w->e->n_active + (size_t)j;
        float *answer = s->x + (size_t)s->at[i] * w->s_embd;
        if (!w->e->weigh_input)
            tern_k.vec.scale(answer, answer, w->weights[i], n);
        if (j)
            tern_k.vec.add(y, y, answer, n);
        else
            memcpy(y, answer, (size_t)n * sizeof *y);
    }
}

/* Of rows that have chosen: pairs in order. */
static struct expert_work work_of(struct tern_cpu *d, const struct tern_experts *e, struct tern_dev_vec ids,
                                  struct tern_dev_vec weights, int n_experts, int n_rows, int n_wide)
{
    struct expert_work w = {.d = d,
                            .e = e,
                            .n_experts = n_experts,
                            .weights = tern_cpu_vec(weights),
                            .s_embd = tern_round_up((size_t)d->limits.max_expert_embd, 64),
                            .s_ff = tern_round_up((size_t)d->limits.max_expert_ff, 64),
                            .n_pairs = n_rows * e->n_active,
                            .n_wide = n_wide * e->n_active};
    TERN_ASSERT(n_rows <= d->limits.max_rows && n_rows - n_wide <= d->limits.max_narrow);
    sort_pairs(&w, (const int32_t *)(const void *)tern_cpu_vec(ids));
    return w;
}

static void run_up(struct expert_work *w, struct tern_dev_rows x)
{
    w->gate = &w->e->gate->form->m;
    w->up = &w->e->up->form->m;
    w->x = tern_cpu_f32(x);
    w->x_stride = x.stride;
    tern_cpu_each_row(w->d, gather_pair, w, w->n_pairs, w->gate->k);
    pack(w, w->d->experts.x, w->s_embd, w->gate->k);
    run_tasks(w, w->gate, glu_task);
}

static void run_down(struct expert_work *w, struct tern_dev_rows y, int n_rows)
{
    w->down = &w->e->down->form->m;
    w->y = tern_cpu_f32(y);
    w->y_stride = y.stride;
    if (tern_codes_integer(w->down->codes))
        tern_cpu_each_row(w->d, quantize_pair, w, w->n_pairs - w->n_wide, w->down->k);
    pack(w, w->between, w->b_stride, w->down->k);
    run_tasks(w, w->down, down_task);
    tern_cpu_each_row(w->d, sum_row, w, n_rows, w->e->n_active * w->down->n);
}

void tern_cpu_experts(struct tern_dev *dev, const struct tern_experts *e, struct tern_dev_rows y,
                      struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows,
                      int n_wide)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    struct expert_work w = work_of(d, e, ids, weights, e->gate->stack, n_rows, n_wide);
    w.between = d->experts.gate;
    w.b_stride = w.s_ff;
    run_up(&w, x);
    run_down(&w, y, n_rows);
}

void tern_cpu_experts_up(struct tern_dev *dev, const struct tern_experts *e, struct tern_dev_rows between,
                         struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows,
                         int n_wide)
{
    struct expert_work w = work_of(tern_cpu_of(dev), e, ids, weights, e->gate->stack, n_rows, n_wide);
    w.between = tern_cpu_f32(between);
    w.b_stride = between.stride;
    run_up(&w, x);
}

void tern_cpu_experts_down(struct tern_dev *dev, const struct tern_experts *e, struct tern_dev_rows y,
                           struct tern_dev_rows between, struct tern_dev_vec ids, struct tern_dev_vec weights,
                           int n_rows, int n_wide)
{
    struct expert_work w = work_of(tern_cpu_of(dev), e, ids, weights, e->down->stack, n_rows, n_wide);
    w.between = tern_cpu_f32(between);
    w.b_stride = between.stride;
    run_down(&w, y, n_rows);
}

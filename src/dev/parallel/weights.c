/* Weights: of every layer's matrices each device has some of the outputs, of a stack of experts those of each of them,
 * and of a stack of heads some of the matrices.  What is no layer's (the embedding, which is often the output matrix,
 * too) every device has whole, and multiplies by its own outputs all the same. */
#include <string.h>
#include "base/mem.h"
#include "dev/parallel/parallel.h"

void tern_parallel_layer(struct tern_dev *dev, int layer, struct tern_dev_rows x, int n_rows)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    (void)x;
    (void)n_rows;
    s->layer = layer;
    s->experts = TERN_PARALLEL_UNDECIDED;
}

void tern_parallel_use(struct tern_dev *dev, enum tern_dev_use use)
{
    tern_parallel_of(dev)->use = use;
}

const struct tern_dev_weight *tern_parallel_whole(const struct tern_dev_weight *w, int device)
{
    if (!w || !w->form)
        return w;
    TERN_ASSERT(!tern_parallel_divided(w->form));
    return &w->form->all[device];
}

/* Panels are whole, and the source can be read from each device's first row on. */
static bool divides(const struct tern_dev_form *f, const struct tern_weight_source *from, int64_t k)
{
    struct tern_weight_source rows;
    for (int i = 1; i < f->n; i++)
        if (f->bound[i] < f->bound[f->n] && tern_weight_rows(&rows, from, f->bound[i], k, NULL) < 0)
            return false;
    return true;
}

/* Outputs that no division parts: whole panels; two at a time where that leaves none over, for 32 columns that become
 * int8 together are one device's then; and rows that share a scale. */
static int unit_of(const struct tern_weight_source *from, int64_t n)
{
    const int pair = 2 * TERN_PANEL, rows = from->form == TERN_FORM_FP8 ? from->group_rows : 0;
    if (rows > pair && rows % pair == 0 && n % rows == 0)
        return rows;
    return n % pair ? TERN_PANEL : pair;
}

/* Stacks of one layer's experts are divided all of them or none, and gate and up, which are as long, alike. */
static int divide_experts(struct tern_parallel *s, struct tern_dev_form *f, const struct tern_weight_source *from,
                          int64_t k, tern_error *err)
{
    const bool first = s->experts == TERN_PARALLEL_UNDECIDED;
    if (first)
        memcpy(s->expert_bound, f->bound, sizeof s->expert_bound);
    else if (f->bound[f->n] == s->expert_bound[f->n])
        memcpy(f->bound, s->expert_bound, sizeof f->bound);
    const bool can = s->layer >= 0 && divides(f, from, k);
    if (first)
        s->experts = can ? TERN_PARALLEL_APART : TERN_PARALLEL_TOGETHER;
    f->by = s->experts == TERN_PARALLEL_APART ? TERN_PARALLEL_OUTPUTS : TERN_PARALLEL_COPIED;
    if (f->by == TERN_PARALLEL_OUTPUTS && !can)
        return tern_err_set(err, TERN_EUNSUPPORTED,
                            "it cannot be divided among devices, as the experts before it are (--gpus)");
    return 0;
}

static int divide(struct tern_parallel *s, struct tern_dev_form *f, const struct tern_weight_source *from, int64_t n,
                  int64_t k, int stack, tern_error *err)
{
    const int unit = unit_of(from, n), units = (int)((n + unit - 1) / unit);
    for (int i = 0; i <= s->n; i++) {
        const int64_t at = (int64_t)tern_parallel_from(units, i, s->n) * unit;
        f->bound[i] = (int)(at < n ? at : n);
    }
    if (s->use == TERN_DEV_EXPERTS)
        return divide_experts(s, f, from, k, err);
    if (s->use == TERN_DEV_HEADS && s->layer >= 0 && stack >= s->n) {
        f->by = TERN_PARALLEL_MATRICES;
        for (int i = 0; i <= s->n; i++)
            f->bound[i] = tern_parallel_from(stack, i, s->n);
    } else if (stack > 1 || s->use == TERN_DEV_WHOLE) {
        f->by = TERN_PARALLEL_COPIED;
    } else {
        f->by = s->layer >= 0 && divides(f, from, k) ? TERN_PARALLEL_OUTPUTS : TERN_PARALLEL_SHARED;
    }
    return 0;
}

static int plan_all(struct tern_parallel *s, struct tern_dev_form *f, const struct tern_weight_source *from, int64_t n,
                    int64_t k, int stack, tern_error *err)
{
    int rc = 0;
    f->n = s->n;
    f->ops = s->d[0]->ops;
    TERN_TRY(divide(s, f, from, n, k, stack, err));
    for (int i = 0; i < (tern_parallel_divided(f) ? 1 : s->n); i++)
        TERN_TRY(f->ops->weight_plan(s->d[i], &f->all[i], from, n, k, stack, err));
    for (int i = 0; f->by != TERN_PARALLEL_COPIED && i < s->n; i++) {
        const int own = f->bound[i + 1] - f->bound[i];
        if (own && f->by == TERN_PARALLEL_MATRICES)
            TERN_TRY(f->ops->weight_plan(s->d[i], &f->own[i], from, n, k, own, err));
        else if (own)
            TERN_TRY(f->ops->weight_plan(s->d[i], &f->own[i], from, own, k, stack, err));
    }
    /* What stands before it, the parts of each matrix and what follows them. */
    f->runs = 2 + (size_t)stack * (size_t)(s->n + 1);
    s->planned += f->runs;
out:
    return rc;
}

int tern_parallel_weight_plan(struct tern_dev *dev, struct tern_dev_weight *w, const struct tern_weight_source *from,
                              int64_t n, int64_t k, int stack, tern_error *err)
{
    *w = (struct tern_dev_weight){0};
    int rc = tern_alloc(&w->form, 1, sizeof *w->form, err);
    if (rc == 0)
        rc = plan_all(tern_parallel_of(dev), w->form, from, n, k, stack, err);
    if (rc < 0) {
        tern_parallel_weight_drop(dev, w);
        return rc;
    }
    w->n = w->form->all[0].n;
    w->k = w->form->all[0].k;
    w->stack = stack;
    return 0;
}

size_t tern_parallel_weight_bytes(const struct tern_dev_weight *w)
{
    return w->form->ops->weight_bytes(&w->form->all[0]);
}

void tern_parallel_weight_about(const struct tern_dev_weight *w, struct tern_dev_about *out)
{
    w->form->ops->weight_about(&w->form->all[0], out);
}

static size_t panel_bytes(const struct tern_dev_weight *w)
{
    struct tern_dev_about about;
    tern_parallel_weight_about(w, &about);
    return about.unit_bytes;
}

/* The runs of a weight that is placed, for which divide has made room.  A device's matrices stand as close as they
 * would in a stack of its own, for what follows a matrix everybody has. */
static void add_runs(struct tern_parallel *s, const struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at)
{
    int rc = 0;
    const struct tern_dev_form *f = w->form;
    const size_t bytes = tern_parallel_weight_bytes(w), unit = panel_bytes(w), matrix = bytes / (size_t)w->stack;
    struct tern_parallel_runs *r = &m->runs;
    TERN_ASSERT(at >= r->end);
    rc = tern_parallel_run(r, s->n, at - r->end, -1, NULL);
    for (int i = 0; i < s->n; i++)
        r->own_end[i] = tern_round_up(r->own_end[i], TERN_ALIGN);
    for (int i = 0; rc == 0 && f->by == TERN_PARALLEL_MATRICES && i < s->n; i++)
        rc = tern_parallel_run(r, s->n, (size_t)(f->bound[i + 1] - f->bound[i]) * matrix, i, NULL);
    for (int e = 0; f->by == TERN_PARALLEL_OUTPUTS && e < w->stack; e++) {
        for (int i = 0; rc == 0 && i < s->n; i++) {
            const size_t panels = (size_t)((f->bound[i + 1] + TERN_PANEL - 1) / TERN_PANEL - f->bound[i] / TERN_PANEL);
            rc = tern_parallel_run(r, s->n, panels * unit, i, NULL);
        }
        TERN_ASSERT(rc == 0 && r->end <= at + (size_t)(e + 1) * matrix);
        rc = tern_parallel_run(r, s->n, at + (size_t)(e + 1) * matrix - r->end, -1, NULL);
    }
    TERN_ASSERT(rc == 0 && r->end <= at + bytes);
    rc = tern_parallel_run(r, s->n, at + bytes - r->end, -1, NULL);
    TERN_ASSERT(rc == 0);
}

void tern_parallel_weight_place(struct tern_dev *dev, struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    struct tern_dev_form *f = w->form;
    int whose;
    size_t own[TERN_PARALLEL_MOST];
    TERN_ASSERT(m->kind == TERN_PARALLEL_WEIGHTS);
    add_runs(s, w, m, at);
    (void)tern_parallel_find(m, s->n, at, 1, &whose, own);
    for (int i = 0; i < s->n; i++) {
        const bool divided = tern_parallel_divided(f);
        if (f->all[i].form && !divided)
            f->ops->weight_place(s->d[i], &f->all[i], m->m[i], own[i]);
        const size_t skip = divided ? 0 : (size_t)(f->bound[i] / TERN_PANEL) * panel_bytes(w);
        if (f->own[i].form)
            f->ops->weight_place(s->d[i], &f->own[i], m->m[i], own[i] + skip);
    }
    tern_parallel_bring(s, m, at + tern_parallel_weight_bytes(w));
}

/* A device's part of a source that another knows whole: rows from row0 on of matrices from matrix0 on. */
struct part_of {
    const struct tern_dev_source *from;
    int64_t row0, k;
    int matrix0;
};

static int part_matrix(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME],
                       tern_error *err)
{
    const struct part_of *p = user;
    struct tern_weight_source whole;
    int rc = p->from->matrix(p->from->user, p->matrix0 + i, &whole, name, err);
    return rc < 0 ? rc : tern_weight_rows(out, &whole, p->row0, p->k, err);
}

int tern_parallel_weight_load(struct tern_dev *dev, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                              tern_error *err)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_dev_form *f = w->form;
    int rc = 0;
    for (int i = 0; rc == 0 && i < s->n; i++) {
        struct part_of p = {.from = from, .k = w->k};
        const struct tern_dev_source part = {part_matrix, &p};
        if (f->by == TERN_PARALLEL_MATRICES)
            p.matrix0 = f->bound[i];
        else
            p.row0 = f->bound[i];
        if (!tern_parallel_divided(f))
            rc = f->ops->weight_load(s->d[i], &f->all[i], from, err);
        else if (f->own[i].form)
            rc = f->ops->weight_load(s->d[i], &f->own[i], &part, err);
    }
    return rc;
}

void tern_parallel_weight_drop(struct tern_dev *dev, struct tern_dev_weight *w)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    for (int i = 0; w->form && i < s->n; i++) {
        if (w->form->all[i].form)
            w->form->ops->weight_drop(s->d[i], &w->form->all[i]);
        if (w->form->own[i].form)
            w->form->ops->weight_drop(s->d[i], &w->form->own[i]);
    }
    /* Planned in vain, as parts of a stack are; later drops may come by another device of the model. */
    if (w->form && w->form->runs <= s->planned)
        s->planned -= w->form->runs;
    tern_free(w->form);
    *w = (struct tern_dev_weight){0};
}

void tern_parallel_weight_out(struct tern_dev *dev, float *host, const struct tern_dev_weight *w, int matrix, int row,
                              int n)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_dev_form *f = w->form;
    tern_parallel_start(s);
    if (!tern_parallel_divided(f)) {
        f->ops->weight_out(s->d[0], host, &f->all[0], matrix, row, n);
        return;
    }
    for (int i = 0; i < s->n; i++) {
        const bool here = matrix >= f->bound[i] && matrix < f->bound[i + 1];
        const int from = row > f->bound[i] ? row : f->bound[i];
        const int to = row + n < f->bound[i + 1] ? row + n : f->bound[i + 1];
        if (f->by == TERN_PARALLEL_MATRICES && here)
            f->ops->weight_out(s->d[i], host, &f->own[i], matrix - f->bound[i], row, n);
        else if (f->by == TERN_PARALLEL_OUTPUTS && from < to)
            f->ops->weight_out(s->d[i], host + (size_t)(from - row) * (size_t)w->k, &f->own[i], matrix,
                               from - f->bound[i], to - from);
    }
}

/* Weights: of every layer's matrices each device has some of the outputs.  What is no layer's (the embedding, which is
 * often the output matrix, too) every device has whole, and multiplies by its own outputs all the same. */
#include "base/mem.h"
#include "dev/parallel/parallel.h"

void tern_parallel_layer(struct tern_dev *dev, int layer, struct tern_dev_rows x, int n_rows)
{
    (void)x;
    (void)n_rows;
    tern_parallel_of(dev)->layer = layer;
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

static int plan_all(struct tern_parallel *s, struct tern_dev_form *f, const struct tern_weight_source *from, int64_t n,
                    int64_t k, int stack, tern_error *err)
{
    int rc = 0;
    /* Whole panels; two at a time where that leaves none over, for 32 columns that become int8 together are one
     * device's then. */
    const int unit = n % (2 * TERN_PANEL) ? TERN_PANEL : 2 * TERN_PANEL, units = (int)((n + unit - 1) / unit);
    f->n = s->n;
    f->ops = s->d[0]->ops;
    for (int i = 0; i <= s->n; i++) {
        const int64_t at = (int64_t)tern_parallel_from(units, i, s->n) * unit;
        f->bound[i] = (int)(at < n ? at : n);
    }
    f->divided = s->layer >= 0 && stack == 1 && divides(f, from, k);
    for (int i = 0; i < (f->divided ? 1 : s->n); i++)
        TERN_TRY(f->ops->weight_plan(s->d[i], &f->all[i], from, n, k, stack, err));
    for (int i = 0; stack == 1 && i < s->n; i++)
        if (f->bound[i] < f->bound[i + 1])
            TERN_TRY(f->ops->weight_plan(s->d[i], &f->own[i], from, f->bound[i + 1] - f->bound[i], k, 1, err));
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
    tern_parallel_of(dev)->planned++;
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

/* The runs of a matrix that is placed, for which divide has made room. */
static void add_runs(struct tern_parallel *s, const struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at)
{
    int rc = 0;
    const struct tern_dev_form *f = w->form;
    const size_t bytes = tern_parallel_weight_bytes(w), unit = panel_bytes(w);
    struct tern_parallel_runs *r = &m->runs;
    TERN_ASSERT(at >= r->end);
    rc = tern_parallel_run(r, s->n, at - r->end, -1, NULL);
    for (int i = 0; i < s->n; i++)
        r->own_end[i] = tern_round_up(r->own_end[i], TERN_ALIGN);
    for (int i = 0; rc == 0 && f->divided && i < s->n; i++) {
        const size_t panels = (size_t)((f->bound[i + 1] + TERN_PANEL - 1) / TERN_PANEL - f->bound[i] / TERN_PANEL);
        rc = tern_parallel_run(r, s->n, panels * unit, i, NULL);
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
        if (f->all[i].form && !f->divided)
            f->ops->weight_place(s->d[i], &f->all[i], m->m[i], own[i]);
        const size_t skip = f->divided ? 0 : (size_t)(f->bound[i] / TERN_PANEL) * panel_bytes(w);
        if (f->own[i].form)
            f->ops->weight_place(s->d[i], &f->own[i], m->m[i], own[i] + skip);
    }
    tern_parallel_bring(s, m, at + tern_parallel_weight_bytes(w));
}

/* Rows of a source that another knows whole. */
struct rows_of {
    const struct tern_dev_source *from;
    int64_t row0, k;
};

static int rows_matrix(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME],
                       tern_error *err)
{
    const struct rows_of *r = user;
    struct tern_weight_source whole;
    int rc = r->from->matrix(r->from->user, i, &whole, name, err);
    return rc < 0 ? rc : tern_weight_rows(out, &whole, r->row0, r->k, err);
}

int tern_parallel_weight_load(struct tern_dev *dev, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                              tern_error *err)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_dev_form *f = w->form;
    int rc = 0;
    for (int i = 0; rc == 0 && i < s->n; i++) {
        const struct rows_of rows = {from, f->bound[i], w->k};
        const struct tern_dev_source part = {rows_matrix, &rows};
        if (!f->divided)
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
    tern_free(w->form);
    *w = (struct tern_dev_weight){0};
}

void tern_parallel_weight_out(struct tern_dev *dev, float *host, const struct tern_dev_weight *w, int matrix, int row,
                              int n)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const struct tern_dev_form *f = w->form;
    tern_parallel_start(s);
    if (!f->divided) {
        f->ops->weight_out(s->d[0], host, &f->all[0], matrix, row, n);
        return;
    }
    for (int i = 0; i < s->n; i++) {
        const int from = row > f->bound[i] ? row : f->bound[i];
        const int to = row + n < f->bound[i + 1] ? row + n : f->bound[i + 1];
        if (from < to)
            f->ops->weight_out(s->d[i], host + (size_t)(from - row) * (size_t)w->k, &f->own[i], 0, from - f->bound[i],
                               to - from);
    }
}

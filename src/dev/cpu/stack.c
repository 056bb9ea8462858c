/* Products of every head with a matrix of its own. */
#include "dev/cpu/cpu.h"
#include "kernel/pack.h"

struct stack_work {
    struct tern_cpu *d;
    const struct tern_stack *s;
    const struct tern_packed *m;
    const float *x;
    int n_rows, n_wide;
    int panels, cut; /* of one matrix; of one task */
};

/* Decode row i % n_narrow of head i / n_narrow: a head's rows lie together. */
static void quantize_row(const void *args, int i)
{
    const struct stack_work *w = args;
    int n_narrow = w->n_rows - w->n_wide;
    const float *x = w->x + (size_t)(w->n_wide + i % n_narrow) * w->s->x.stride;
    tern_cpu_quantize(w->d, &w->d->stack, i, x + (size_t)(i / n_narrow) * w->s->x_head, w->m->k);
}

static void stack_task(void *ctx, int task, int worker)
{
    const struct stack_work *w = ctx;
    const struct tern_stack *s = w->s;
    int per_head = (w->panels + w->cut - 1) / w->cut, head = task / per_head;
    int p0 = task % per_head * w->cut, p1 = p0 + w->cut < w->panels ? p0 + w->cut : w->panels;
    const struct tern_packed m = tern_weight_at(w->m, head);
    const struct tern_cpu_rows rows = {
        .x = w->x + (size_t)head * s->x_head,
        .stride = s->x.stride,
        .q8 = tern_cpu_q8_row(w->d, &w->d->stack, (size_t)head * (size_t)(w->n_rows - w->n_wide)),
        .n = w->n_rows,
        .n_wide = w->n_wide};
    tern_cpu_product(w->d, tern_cpu_f32(s->y) + (size_t)head * s->y_head, s->y.stride, &rows, &m, p0, p1, worker);
}

void tern_cpu_stack(struct tern_dev *dev, const struct tern_stack *s, int n_rows, int n_wide)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    const struct tern_packed *m = &s->w->form->m;
    const int n_heads = s->w->stack;
    struct stack_work w = {d, s, m, tern_cpu_f32(s->x), n_rows, n_wide, tern_panels(m), 0};
    TERN_ASSERT(n_rows - n_wide <= d->limits.max_narrow && n_heads <= d->limits.max_stack);
    TERN_ASSERT(m->k <= d->limits.max_stack_k);
    if (tern_codes_integer(m->codes))
        tern_cpu_each_row(d, quantize_row, &w, (n_rows - n_wide) * n_heads, m->k);
    w.cut = tern_cpu_panels_per_task(d, m, n_wide, w.panels * n_heads);
    tern_pool_run(d->pool, stack_task, &w, n_heads * ((w.panels + w.cut - 1) / w.cut));
}

/* Experts: of each of them a device has some of the columns between its products, and some of what it answers.  So all
 * devices do as much, whoever is chosen; in between, the columns of all pairs of rows and experts are gathered. */
#include "base/mem.h"
#include "dev/parallel/each.h"

int tern_parallel_experts_open(struct tern_parallel *s, const struct tern_dev_limits *l, tern_error *err)
{
    const size_t width = tern_round_up((size_t)l->max_expert_ff, 64);
    const size_t pairs = (size_t)l->max_rows * (size_t)l->max_active;
    if (!l->max_experts)
        return 0;
    s->between = (struct tern_dev_rows){.stride = width, .width = (int)width};
    return tern_parallel_reserve(&s->dev, &s->between.mem, pairs * width * sizeof(float), false, err);
}

void tern_parallel_experts_close(struct tern_parallel *s)
{
    tern_parallel_release(&s->dev, s->between.mem);
    s->between.mem = NULL;
}

/* Each device computes all of it. */
static void by_all(struct tern_parallel *s, const struct tern_experts *e, struct tern_dev_rows y,
                   struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows, int n_wide)
{
    EACH
    {
        struct tern_experts own = *e;
        own.gate = tern_parallel_whole(e->gate, i);
        own.up = tern_parallel_whole(e->up, i);
        own.down = tern_parallel_whole(e->down, i);
        D->ops->experts(D, &own, ROWS(y), ROWS(x), VEC(ids), VEC(weights), n_rows, n_wide);
    }
}

static void op_experts(struct tern_dev *dev, const struct tern_experts *e, struct tern_dev_rows y,
                       struct tern_dev_rows x, struct tern_dev_vec ids, struct tern_dev_vec weights, int n_rows,
                       int n_wide)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const int *columns = e->gate->form->bound, *answers = e->down->form->bound, pairs = n_rows * e->n_active;
    struct tern_dev_rows between = s->between;
    tern_parallel_gather(s, x, n_rows);
    tern_parallel_wrote(s, y, n_rows);
    if (!tern_parallel_divided(e->gate->form)) {
        by_all(s, e, y, x, ids, weights, n_rows, n_wide);
        return;
    }
    between.width = e->gate->n;
    EACH
    {
        struct tern_experts own = *e;
        own.gate = &e->gate->form->own[i];
        own.up = &e->up->form->own[i];
        if (columns[i] < columns[i + 1])
            D->ops->experts_up(D, &own, tern_parallel_columns(between, columns[i], columns[i + 1], i), ROWS(x),
                               VEC(ids), VEC(weights), n_rows, n_wide);
    }
    tern_parallel_wrote_share(s, between, pairs, columns);
    tern_parallel_gather(s, between, pairs);
    EACH
    {
        struct tern_experts own = *e;
        own.down = &e->down->form->own[i];
        if (answers[i] < answers[i + 1])
            D->ops->experts_down(D, &own, tern_parallel_columns(y, answers[i], answers[i + 1], i), ROWS(between),
                                 VEC(ids), VEC(weights), n_rows, n_wide);
    }
    y.width = e->down->n;
    tern_parallel_wrote_share(s, y, n_rows, answers);
}

void tern_parallel_expert_operations(struct tern_dev_ops *ops, const struct tern_dev_ops *of)
{
    ops->experts = of->experts_up ? op_experts : NULL;
}

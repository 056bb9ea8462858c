/* A feed-forward network as a whole: rows of gate and up, the widest of a layer, need not be rows for prompt rows. */
#include "dev/cpu/cpu.h"
#include "kernel/pack.h"

struct gated_work {
    struct tern_cpu *d;
    const struct tern_dev_network *n;
    int n_narrow, n_wide;
    struct tern_cpu_cut cut; /* of the panels of gate, and so of up */
};

/* From row r on. */
static struct tern_dev_rows rows_from(struct tern_dev_rows x, int r)
{
    x.at += (size_t)r * x.stride;
    return x;
}

/* Some panels of gate and up: prompt rows to where down reads them, decode rows to rows. */
static void gated_task(void *ctx, int task, int worker)
{
    const struct gated_work *w = ctx;
    struct tern_cpu *d = w->d;
    const struct tern_packed *gate = &w->n->gate->form->m, *up = &w->n->up->form->m;
    const int p0 = tern_cpu_cut_at(&w->cut, task), p1 = tern_cpu_cut_at(&w->cut, task + 1);
    d->prompt->gated(d->gated, d->packed_x, w->n_wide, gate, up, w->n->act == TERN_GATE_GELU, p0, p1,
                     d->prompt_scratch + (size_t)worker * TERN_PROMPT_SCRATCH);
    if (!w->n_narrow)
        return;
    const struct tern_dev_rows to_gate = rows_from(w->n->of_gate, w->n_wide), to_up = rows_from(w->n->of_up, w->n_wide);
    const struct tern_cpu_rows narrow = {.q8 = d->q8.rows, .n = w->n_narrow};
    tern_cpu_product(d, tern_cpu_f32(to_gate), to_gate.stride, &narrow, gate, p0, p1, worker);
    tern_cpu_product(d, tern_cpu_f32(to_up), to_up.stride, &narrow, up, p0, p1, worker);
}

/* Weights whose prompt rows go through `gated`.  Of floats decode rows are another product. */
static bool gates(const struct tern_cpu *d, const struct tern_dev_network *n)
{
    return d->prompt && d->prompt->gated && n->gate->n % TERN_TILE_DEPTH == 0 &&
           tern_codes_integer(n->gate->form->m.codes) && tern_codes_integer(n->up->form->m.codes) &&
           tern_codes_integer(n->down->form->m.codes);
}

void tern_cpu_network(struct tern_dev *dev, const struct tern_dev_network *n, struct tern_dev_rows y,
                      struct tern_dev_rows x, int n_rows, int n_wide)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    const struct tern_dev_rows gate = tern_dev_columns(n->of_gate, 0, n->gate->n);
    const struct tern_matmul down = {.w = n->down, .y = y};
    if (!n_wide || !gates(d, n)) {
        const struct tern_matmul both[2] = {{.w = n->gate, .y = n->of_gate}, {.w = n->up, .y = n->of_up}};
        tern_cpu_matmul(dev, both, 2, x, n_rows, n_wide);
        tern_cpu_glu(dev, gate, n->of_up, n_rows, n->act);
        tern_cpu_matmul(dev, &down, 1, gate, n_rows, n_wide);
        return;
    }
    const int panels = tern_panels(&n->gate->form->m);
    /* A tile of down's inputs is two panels. */
    const int pairs = tern_cpu_panels_per_task(d, &n->gate->form->m, n_wide, 2 * panels) / 4;
    struct gated_work w = {d, n, n_rows - n_wide, n_wide, tern_cpu_cut_into(d, panels, 2, pairs ? 2 * pairs : 2)};
    tern_cpu_pack_rows(d, tern_cpu_f32(x), x.stride, n_wide, n->gate->k);
    if (w.n_narrow)
        tern_cpu_quantize_rows(d, tern_cpu_f32(rows_from(x, n_wide)), x.stride, w.n_narrow, n->gate->k);
    tern_pool_run(d->pool, gated_task, &w, w.cut.tasks);
    if (w.n_narrow) {
        tern_cpu_glu(dev, rows_from(gate, n_wide), rows_from(n->of_up, n_wide), w.n_narrow, n->act);
        tern_cpu_quantize_rows(d, tern_cpu_f32(rows_from(gate, n_wide)), gate.stride, w.n_narrow, n->down->k);
    }
    const struct tern_cpu_rows rows = {tern_cpu_f32(gate), gate.stride, d->gated, d->q8.rows, n_rows, n_wide};
    tern_cpu_multiply(d, &down, 1, &rows);
}

/* Hidden states beside logits: for embeddings, and for whatever guesses on from them. */
#include "base/mem.h"
#include "run/run.h"

int tern_hidden_reserve(tern_engine *e, const tern_step_item *items, int n_items, int *n_rows, tern_error *err)
{
    e->hidden_view = NULL;
    *n_rows = 0;
    for (int i = 0; i < n_items; i++)
        *n_rows += tern_item_hidden(&items[i]);
    return tern_floats_widen(&e->hidden, &e->hidden_cap, (size_t)*n_rows * (size_t)e->model->net->desc.n_embd, err);
}

void tern_hidden_fetch(tern_engine *e, const struct tern_forward_batch *b, const tern_step_item *items, int n_items)
{
    const size_t n_embd = (size_t)e->model->net->desc.n_embd;
    float *to = e->hidden;
    int at[2] = {0, 0}; /* next row of wide and of narrow items */
    if (!b->n_hidden_rows)
        return;
    e->hidden_view = to;
    for (int i = 0; i < b->n_hidden_rows; i++)
        at[1] += b->hidden_rows[i] < b->n_wide;
    for (int i = 0; i < n_items; i++) {
        const int n = tern_item_hidden(&items[i]);
        int *from = &at[!(e->exact || !items[i].decode)];
        tern_forward_hidden(e->forward, to, *from, n);
        *from += n;
        to += (size_t)n * n_embd;
    }
}

const float *tern_engine_hidden(const tern_engine *e)
{
    return e->hidden_view;
}

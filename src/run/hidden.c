/* Hidden states beside logits: for embeddings, and for whatever guesses on from them. */
#include <string.h>
#include "base/mem.h"
#include "run/run.h"

int tern_hidden_reserve(tern_engine *e, const tern_step_item *items, int n_items, tern_error *err)
{
    size_t rows = 0;
    e->hidden_view = NULL;
    for (int i = 0; i < n_items; i++)
        rows += (size_t)tern_item_hidden(&items[i]);
    size_t want = 2 * rows * tern_round_up((size_t)e->model->net->desc.n_embd, 16);
    if (want <= e->hidden_cap)
        return 0;
    tern_free(e->hidden);
    e->hidden_cap = 0;
    int rc = tern_alloc(&e->hidden, want, sizeof(float), err);
    if (rc == 0)
        e->hidden_cap = want;
    return rc;
}

void tern_hidden_arrange(tern_engine *e, const struct tern_forward_batch *b, const tern_step_item *items, int n_items)
{
    size_t n_embd = (size_t)e->model->net->desc.n_embd;
    int at[2] = {0, 0}; /* next row of wide and of narrow items */
    if (!b->n_hidden_rows)
        return;
    float *to = e->hidden + (size_t)b->n_hidden_rows * b->hidden_stride;
    e->hidden_view = to;
    for (int i = 0; i < b->n_hidden_rows; i++)
        at[1] += b->hidden_rows[i] < b->n_wide;
    for (int i = 0; i < n_items; i++) {
        int *from = &at[!(e->exact || !items[i].decode)];
        for (int r = tern_item_hidden(&items[i]); r > 0; r--, to += n_embd)
            memcpy(to, e->hidden + (size_t)(*from)++ * b->hidden_stride, n_embd * sizeof(float));
    }
}

const float *tern_engine_hidden(const tern_engine *e)
{
    return e->hidden_view;
}

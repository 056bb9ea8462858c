/* Weights on a card: the panels of kernel/pack.h as the CPU has them, so that one file of packed weights serves both.
 */
#include <pthread.h>
#include <string.h>
#include "base/mem.h"
#include "dev/cuda/cuda.h"
#include "dev/cuda/products/products.h"

#define PANELS_PER_TASK 16
#define STAGE_BYTES     ((size_t)64 << 20) /* packed on the host at a time */

int tern_cuda_weight_plan(struct tern_dev *d, struct tern_dev_weight *w, const struct tern_weight_source *s, int64_t n,
                          int64_t k, int stack, tern_error *err)
{
    struct tern_packed m;
    (void)d;
    *w = (struct tern_dev_weight){0};
    int rc = tern_dev_panels_plan(&m, s, n, k, stack, err);
    if (rc < 0)
        return rc;
    if ((rc = tern_alloc(&w->form, 1, sizeof *w->form, err)) < 0)
        return rc;
    w->form->m = m;
    w->form->at = tern_panel_layout(&m);
    w->n = m.n;
    w->k = m.k;
    w->stack = stack;
    return 0;
}

void tern_cuda_weight_drop(struct tern_dev *d, struct tern_dev_weight *w)
{
    (void)d;
    tern_free(w->form);
    *w = (struct tern_dev_weight){0};
}

size_t tern_cuda_weight_bytes(const struct tern_dev_weight *w)
{
    return tern_weight_bytes(&w->form->m) * (size_t)w->stack;
}

void tern_cuda_weight_about(const struct tern_dev_weight *w, struct tern_dev_about *out)
{
    tern_dev_panels_about(&w->form->m, out);
}

void tern_cuda_weight_place(struct tern_dev *d, struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at)
{
    (void)d;
    TERN_ASSERT(at <= m->bytes && tern_cuda_weight_bytes(w) <= m->bytes - at);
    w->form->mem = m;
    w->form->p = m->p + at;
}

struct tern_cuda_matrix tern_cuda_matrix_of(const struct tern_dev_weight *w, int i)
{
    const struct tern_packed *m = &w->form->m;
    const struct tern_panel_layout *at = &w->form->at;
    struct tern_cuda_matrix out = {.p = w->form->p + (size_t)i * tern_weight_bytes(m),
                                   .panel_bytes = m->panel_bytes,
                                   .d = (uint32_t)at->d,
                                   .m = (uint32_t)at->m,
                                   .a = (uint32_t)at->a,
                                   .b = (uint32_t)at->b,
                                   .codes = m->codes,
                                   .scales = m->scales,
                                   .d_type = m->d_type,
                                   .m_type = m->m_type,
                                   .zero = m->zero,
                                   .shift = m->group == 128 ? 3 : m->group / 32,
                                   .unit = m->unit,
                                   .n = m->n,
                                   .k = m->k};
    memcpy(out.table, m->table, sizeof out.table);
    return out;
}

/* ---- packing ----------------------------------------------------------------------------------------------------- */

struct pack_work {
    const struct tern_dev_weight *w;
    const struct tern_dev_source *from;
    uint8_t *stage; /* holds the panels from first on, of all matrices one after the other */
    size_t first, n;
    size_t panels; /* of one matrix */
    pthread_mutex_t lock;
    tern_error err; /* of the lowest failing task */
    int failed;
};

/* The bytes of panel `panel`, counted through all matrices, in the stack. */
static size_t panel_at(const struct pack_work *w, size_t panel)
{
    const struct tern_packed *m = &w->w->form->m;
    return panel / w->panels * tern_weight_bytes(m) + panel % w->panels * m->panel_bytes;
}

static void pack_task(void *ctx, int task, int worker)
{
    struct pack_work *w = ctx;
    tern_error err = {0};
    int rc = 0;
    size_t from = w->first + (size_t)task * PANELS_PER_TASK, to = from + PANELS_PER_TASK;
    (void)worker;
    to = to < w->first + w->n ? to : w->first + w->n;
    while (from < to) {
        struct tern_weight_source src;
        char name[TERN_DEV_NAME];
        const size_t i = from / w->panels, end = (i + 1) * w->panels < to ? (i + 1) * w->panels : to;
        TERN_TRY(w->from->matrix(w->from->user, (int)i, &src, name, &err));
        /* As if the stage held the whole matrix. */
        TERN_TRY(tern_weight_pack(&w->w->form->m, w->stage + panel_at(w, i * w->panels) - panel_at(w, w->first), &src,
                                  (int)(from % w->panels), (int)(from % w->panels + end - from), &err));
        from = end;
    }
out:
    if (rc == 0)
        return;
    (void)pthread_mutex_lock(&w->lock);
    if (w->failed < 0 || task < w->failed) {
        w->failed = task;
        w->err = err;
    }
    (void)pthread_mutex_unlock(&w->lock);
}

int tern_cuda_weight_load(struct tern_dev *dev, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                          tern_error *err)
{
    int rc = 0;
    struct tern_cuda *d = tern_cuda_of(dev);
    const struct tern_packed *m = &w->form->m;
    struct pack_work work = {.w = w, .from = from, .panels = (size_t)tern_panels(m), .failed = -1};
    const size_t all = work.panels * (size_t)w->stack, at = w->form->p - w->form->mem->p;
    const size_t most = STAGE_BYTES / m->panel_bytes + 1, most_bytes = most * (m->panel_bytes + 4096) + 4096;
    (void)pthread_mutex_init(&work.lock, NULL);
    TERN_TRY(tern_alloc(&work.stage, 1, most_bytes, err));
    TERN_TRY(tern_cuda_map(d, w->form->mem, at, tern_cuda_weight_bytes(w), err));
    for (; work.first < all; work.first += work.n) {
        work.n = all - work.first < most ? all - work.first : most;
        size_t bytes = panel_at(&work, work.first + work.n - 1) + m->panel_bytes - panel_at(&work, work.first);
        TERN_ASSERT(bytes <= most_bytes);
        tern_pool_run(d->pool, pack_task, &work, (int)((work.n + PANELS_PER_TASK - 1) / PANELS_PER_TASK));
        if (work.failed >= 0) {
            if (err)
                *err = work.err;
            rc = work.err.code;
            goto out;
        }
        tern_cuda_copy_in(dev, w->form->mem, at + panel_at(&work, work.first), work.stage, bytes);
        dev->ops->sync(dev);
        TERN_TRY(tern_dev_fault(dev, false, err));
    }
out:
    (void)pthread_mutex_destroy(&work.lock);
    tern_free(work.stage);
    return rc;
}

void tern_cuda_weight_out(struct tern_dev *dev, float *host, const struct tern_dev_weight *w, int matrix, int row,
                          int n)
{
    struct tern_cuda *d = tern_cuda_of(dev);
    tern_error err = {0};
    tern_cu_address to;
    const size_t bytes = (size_t)n * (size_t)w->k * sizeof *host;
    TERN_ASSERT(matrix < w->stack && row + n <= w->n);
    tern_cuda_enter(d);
    tern_cuda_flush(d);
    if (!bytes || !tern_cuda_ok(d, 0, NULL))
        return;
    if (tern_cuda_take(d, &to, bytes, &err) < 0) {
        d->fault = err;
        return;
    }
    tern_cuda_dense(d, w, matrix, 1, row, n, to, (size_t)w->k, true);
    tern_cuda_flush(d);
    if (tern_cuda_ok(d, 0, NULL))
        (void)tern_cuda_ok(d, tern_cu.cuMemcpyDtoHAsync_v2(host, to, bytes, d->stream), "copying from the card");
    (void)tern_cu.cuStreamSynchronize(d->stream);
    tern_cuda_give(d, to);
}

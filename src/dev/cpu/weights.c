/* Weights as panels of kernel/gemm.h, packed on all threads. */
#include <pthread.h>
#include <string.h>
#include "base/mem.h"
#include "dev/cpu/cpu.h"
#include "kernel/pack.h"

#define PANELS_PER_TASK 16

int tern_cpu_weight_plan(struct tern_dev *d, struct tern_dev_weight *w, const struct tern_weight_source *s, int64_t n,
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
    w->n = m.n;
    w->k = m.k;
    w->stack = stack;
    return 0;
}

void tern_cpu_weight_drop(struct tern_dev *d, struct tern_dev_weight *w)
{
    (void)d;
    tern_free(w->form);
    *w = (struct tern_dev_weight){0};
}

size_t tern_cpu_weight_bytes(const struct tern_dev_weight *w)
{
    return tern_weight_bytes(&w->form->m) * (size_t)w->stack;
}

void tern_cpu_weight_about(const struct tern_dev_weight *w, struct tern_dev_about *out)
{
    tern_dev_panels_about(&w->form->m, out);
}

void tern_cpu_weight_place(struct tern_dev *d, struct tern_dev_weight *w, struct tern_dev_mem *m, size_t at)
{
    (void)d;
    TERN_ASSERT(at <= m->bytes && tern_cpu_weight_bytes(w) <= m->bytes - at);
    w->form->m.data = m->p + at;
}

void tern_cpu_weight_out(struct tern_dev *d, float *host, const struct tern_dev_weight *w, int matrix, int row, int n)
{
    const struct tern_packed m = tern_weight_at(&w->form->m, matrix);
    (void)d;
    TERN_ASSERT(matrix < w->stack && row + n <= w->n);
    for (int i = 0; i < n; i++)
        tern_k.gemm.row(host + (size_t)i * (size_t)m.k, &m, row + i);
}

/* ---- packing ---------------------------------------------------------------------------------------------------- */

struct pack_work {
    const struct tern_dev_weight *w;
    const struct tern_dev_source *from;
    int panels, tasks; /* of one matrix */
    pthread_mutex_t lock;
    tern_error err; /* of the lowest failing task, so that the message does not depend on timing */
    int failed;     /* that task, or -1 */
};

static void pack_task(void *ctx, int task, int worker)
{
    struct pack_work *w = ctx;
    const struct tern_packed *m = &w->w->form->m;
    tern_error err = {0};
    struct tern_weight_source src;
    char name[TERN_DEV_NAME];
    int rc = 0, i = task / w->tasks, p0 = task % w->tasks * PANELS_PER_TASK;
    int p1 = p0 + PANELS_PER_TASK < w->panels ? p0 + PANELS_PER_TASK : w->panels;
    uint8_t *to = (uint8_t *)(uintptr_t)m->data + (size_t)i * tern_weight_bytes(m);
    (void)worker;
    TERN_TRY(w->from->matrix(w->from->user, i, &src, name, &err));
    TERN_TRY(tern_weight_pack(m, to, &src, p0, p1, &err));
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

int tern_cpu_weight_load(struct tern_dev *dev, const struct tern_dev_weight *w, const struct tern_dev_source *from,
                         tern_error *err)
{
    struct pack_work work = {.w = w, .from = from, .panels = tern_panels(&w->form->m), .failed = -1};
    work.tasks = (work.panels + PANELS_PER_TASK - 1) / PANELS_PER_TASK;
    (void)pthread_mutex_init(&work.lock, NULL);
    tern_pool_run(tern_cpu_of(dev)->pool, pack_task, &work, work.tasks * w->stack);
    (void)pthread_mutex_destroy(&work.lock);
    if (work.failed < 0)
        return 0;
    if (err)
        *err = work.err;
    return work.err.code;
}

/* Several devices that compute one model together: opening, and what concerns all of them as a whole. */
#include "dev/parallel/parallel.h"
#include "base/mem.h"

void tern_parallel_start(const struct tern_parallel *s)
{
    int n = 0;
    while (n < s->n && s->d[n])
        n++;
    if (n && s->d[0]->ops->start)
        s->d[0]->ops->start(s->d, n);
}

static void op_close(struct tern_dev *dev)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_start(s);
    tern_parallel_experts_close(s);
    for (int i = 0; i < s->n; i++)
        tern_dev_close(s->d[i]);
    tern_parallel_close_caches(s);
    tern_free(s);
}

static int op_open(struct tern_dev **out, const struct tern_dev_ops *self, struct tern_pool *pool, tern_error *err)
{
    int rc = 0;
    const struct tern_parallel_ops *o = (const struct tern_parallel_ops *)self;
    struct tern_parallel *s = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&s, 1, sizeof *s, err));
    s->dev.ops = self;
    s->n = o->n;
    s->layer = -1;
    for (int i = 0; i < s->n; i++)
        TERN_TRY(o->of[i]->open(&s->d[i], o->of[i], pool, err));
    *out = &s->dev;
    s = NULL;
out:
    if (s)
        op_close(&s->dev);
    return rc;
}

static size_t op_scratch_bytes(const struct tern_dev *dev)
{
    const struct tern_parallel *s = (const struct tern_parallel *)dev;
    size_t bytes = s->crossing_floats * sizeof *s->crossing;
    bytes += s->between.mem ? s->between.mem->bytes * (size_t)s->n : 0;
    for (int i = 0; i < s->n; i++)
        bytes += s->d[i]->ops->scratch_bytes(s->d[i]);
    return bytes;
}

static void op_sync(struct tern_dev *dev)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    tern_parallel_start(s);
    for (int i = 0; i < s->n; i++)
        s->d[i]->ops->sync(s->d[i]);
}

/* The first of them with which something went wrong is told of. */
static int op_fault(struct tern_dev *dev, bool keep, tern_error *err)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    int first = 0;
    for (int i = 0; i < s->n; i++) {
        const int rc = tern_dev_fault(s->d[i], keep, first < 0 ? NULL : err);
        first = first < 0 ? first : rc;
    }
    return first;
}

/* Of each. */
static int op_limit(struct tern_dev *dev, size_t bytes, tern_error *err)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    int rc = 0;
    for (int i = 0; rc == 0 && i < s->n; i++)
        rc = s->d[i]->ops->limit(s->d[i], bytes, err);
    return rc;
}

/* Rows that all have are copied from the first. */
static void op_lands(struct tern_dev *dev, void *host, size_t bytes)
{
    struct tern_dev *d = tern_parallel_of(dev)->d[0];
    d->ops->lands(d, host, bytes);
}

/* Of all together, as far as what they have is alike: the one with least left says how much that is. */
static void op_held(const struct tern_dev *dev, struct tern_dev_held *out)
{
    const struct tern_parallel *s = (const struct tern_parallel *)dev;
    const size_t n = (size_t)s->n;
    size_t least = SIZE_MAX;
    *out = (struct tern_dev_held){0};
    for (int i = 0; i < s->n; i++) {
        struct tern_dev_held h;
        s->d[i]->ops->held(s->d[i], &h);
        const size_t left = h.limit > h.used ? h.limit - h.used : 0;
        least = left < least ? left : least;
        out->used += h.used;
        out->piece += h.piece;
    }
    out->limit = out->used + least * n;
}

int tern_dev_parallel_new(const struct tern_dev_ops **out, const struct tern_dev_ops *const *of, int n, tern_error *err)
{
    struct tern_parallel_ops *o;
    *out = NULL;
    TERN_ASSERT(n >= 2 && n <= TERN_PARALLEL_MOST);
    int rc = tern_alloc(&o, 1, sizeof *o, err);
    if (rc < 0)
        return rc;
    o->n = n;
    for (int i = 0; i < n; i++)
        o->of[i] = of[i];
    o->ops = (struct tern_dev_ops){.name = of[0]->name,
                                   .together = n,
                                   .decodes = of[0]->decodes,
                                   .firsts = of[0]->firsts,
                                   .decode16 = of[0]->decode16,
                                   .prompt8 = of[0]->prompt8,
                                   .apart = of[0]->apart,
                                   .probe = of[0]->probe,
                                   .chunk = of[0]->chunk,
                                   .kv = of[0]->kv,
                                   .open = op_open,
                                   .close = op_close,
                                   .prepare = tern_parallel_prepare,
                                   .scratch_bytes = op_scratch_bytes,
                                   .sync = op_sync,
                                   .fault = op_fault,
                                   .limit = of[0]->limit ? op_limit : NULL,
                                   .held = of[0]->held ? op_held : NULL,
                                   .reserve = tern_parallel_reserve,
                                   .release = tern_parallel_release,
                                   .adopt = tern_parallel_adopt,
                                   .divide = tern_parallel_divide,
                                   .claim = tern_parallel_claim,
                                   .copy_in = tern_parallel_copy_in,
                                   .copy_out = tern_parallel_copy_out,
                                   .lands = of[0]->lands ? op_lands : NULL,
                                   .copy = tern_parallel_copy,
                                   .zero = tern_parallel_zero,
                                   .read = tern_parallel_read,
                                   .discard = tern_parallel_discard,
                                   .weight_plan = tern_parallel_weight_plan,
                                   .weight_bytes = tern_parallel_weight_bytes,
                                   .weight_about = tern_parallel_weight_about,
                                   .weight_place = tern_parallel_weight_place,
                                   .weight_load = tern_parallel_weight_load,
                                   .weight_drop = tern_parallel_weight_drop,
                                   .weight_out = tern_parallel_weight_out,
                                   .layer = tern_parallel_layer,
                                   .use = tern_parallel_use,
                                   .begin = tern_parallel_begin,
                                   .end = tern_parallel_end};
    tern_parallel_operations(&o->ops, of[0]);
    tern_parallel_head_operations(&o->ops, of[0]);
    tern_parallel_expert_operations(&o->ops, of[0]);
    *out = &o->ops;
    return 0;
}

void tern_dev_parallel_free(const struct tern_dev_ops *ops)
{
    tern_free((void *)(uintptr_t)ops);
}

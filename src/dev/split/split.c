/* A device made of two: opening, and what concerns both sides as a whole. */
#include "dev/split/split.h"
#include "base/mem.h"

static void op_close(struct tern_dev *dev)
{
    struct tern_split *s = tern_split_of(dev);
    for (int i = 0; i < TERN_SPLIT_SIDES; i++)
        tern_dev_close(s->d[i]);
    tern_split_close_step(s);
    tern_free(s);
}

static int op_open(struct tern_dev **out, const struct tern_dev_ops *self, struct tern_pool *pool, tern_error *err)
{
    int rc = 0;
    const struct tern_split_ops *o = (const struct tern_split_ops *)self;
    struct tern_split *s = NULL;
    *out = NULL;
    TERN_TRY(tern_alloc(&s, 1, sizeof *s, err));
    s->dev.ops = self;
    s->cut = self->cut;
    s->now = 1;
    for (int i = 0; i < TERN_SPLIT_SIDES; i++)
        TERN_TRY(o->side[i]->open(&s->d[i], o->side[i], pool, err));
    *out = &s->dev;
    s = NULL;
out:
    if (s)
        op_close(&s->dev);
    return rc;
}

static size_t op_scratch_bytes(const struct tern_dev *dev)
{
    const struct tern_split *s = (const struct tern_split *)dev;
    size_t bytes = s->crossing_floats * sizeof *s->crossing;
    for (int i = 0; i < TERN_SPLIT_SIDES; i++)
        bytes += s->d[i]->ops->scratch_bytes(s->d[i]);
    return bytes;
}

static void op_sync(struct tern_dev *dev)
{
    struct tern_split *s = tern_split_of(dev);
    for (int i = 0; i < TERN_SPLIT_SIDES; i++)
        s->d[i]->ops->sync(s->d[i]);
}

static int op_fault(struct tern_dev *dev, bool keep, tern_error *err)
{
    struct tern_split *s = tern_split_of(dev);
    int first = tern_dev_fault(s->d[0], keep, err), second = tern_dev_fault(s->d[1], keep, first < 0 ? NULL : err);
    return first < 0 ? first : second;
}

static int op_limit(struct tern_dev *dev, size_t bytes, tern_error *err)
{
    struct tern_dev *d = tern_split_of(dev)->d[1];
    return d->ops->limit(d, bytes, err);
}

static void op_lands(struct tern_dev *dev, void *host, size_t bytes)
{
    struct tern_dev *d = tern_split_of(dev)->d[1];
    d->ops->lands(d, host, bytes);
}

static void op_held(const struct tern_dev *dev, struct tern_dev_held *out)
{
    const struct tern_dev *d = ((const struct tern_split *)dev)->d[1];
    d->ops->held(d, out);
}

int tern_dev_split_new(const struct tern_dev_ops **out, const struct tern_dev_ops *first,
                       const struct tern_dev_ops *second, int cut, tern_error *err)
{
    struct tern_split_ops *o;
    *out = NULL;
    int rc = tern_alloc(&o, 1, sizeof *o, err);
    if (rc < 0)
        return rc;
    TERN_ASSERT(cut > 0);
    *o = (struct tern_split_ops){.ops = {.name = second->name,
                                         .cut = cut,
                                         .decodes = first->decodes && second->decodes,
                                         .firsts = first->firsts && second->firsts,
                                         .decode16 = first->decode16 && second->decode16,
                                         .prompt8 = first->prompt8 && second->prompt8,
                                         .apart = second->apart,
                                         .probe = second->probe,
                                         .chunk = second->chunk,
                                         .kv = second->kv,
                                         .open = op_open,
                                         .close = op_close,
                                         .prepare = tern_split_prepare,
                                         .scratch_bytes = op_scratch_bytes,
                                         .sync = op_sync,
                                         .fault = op_fault,
                                         .limit = second->limit ? op_limit : NULL,
                                         .held = second->held ? op_held : NULL,
                                         .reserve = tern_split_reserve,
                                         .release = tern_split_release,
                                         .adopt = tern_split_adopt,
                                         .divide = tern_split_divide,
                                         .claim = tern_split_claim,
                                         .copy_in = tern_split_copy_in,
                                         .copy_out = tern_split_copy_out,
                                         .lands = second->lands ? op_lands : NULL,
                                         .copy = tern_split_copy,
                                         .zero = tern_split_zero,
                                         .discard = tern_split_discard,
                                         .weight_plan = tern_split_weight_plan,
                                         .weight_bytes = tern_split_weight_bytes,
                                         .weight_about = tern_split_weight_about,
                                         .weight_place = tern_split_weight_place,
                                         .weight_load = tern_split_weight_load,
                                         .weight_drop = tern_split_weight_drop,
                                         .weight_out = tern_split_weight_out,
                                         .layer = tern_split_layer,
                                         .begin = tern_split_begin,
                                         .end = tern_split_end},
                                 .side = {first, second}};
    tern_split_operations(&o->ops, first, second);
    *out = &o->ops;
    return 0;
}

void tern_dev_split_free(const struct tern_dev_ops *ops)
{
    tern_free((void *)(uintptr_t)ops);
}

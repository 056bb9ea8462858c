/* The largest numbers of rows: what the host picks from, where rows themselves would take long to come to it. */
#include <math.h>
#include "base/mem.h"
#include "dev/cpu/cpu.h"

struct best_args {
    const float *x;
    size_t stride;
    int width, n;
    float *values;
    int32_t *ids;
};

/* A list of the n best so far, in order; of equal ones the first that came is the lower. */
static void best_row(const void *args, int row)
{
    const struct best_args *a = args;
    const float *x = a->x + (size_t)row * a->stride;
    float *values = a->values + (size_t)row * (size_t)a->n;
    int32_t *ids = a->ids + (size_t)row * (size_t)a->n;
    int have = 0;
    for (int32_t i = 0; i < a->width; i++) {
        if (isnan(x[i]) || (have == a->n && !(x[i] > values[have - 1])))
            continue;
        int at = have < a->n ? have++ : have - 1;
        for (; at > 0 && x[i] > values[at - 1]; at--) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
        }
        values[at] = x[i];
        ids[at] = i;
    }
    for (; have < a->n; have++) {
        values[have] = 0;
        ids[have] = -1;
    }
}

void tern_cpu_best(struct tern_dev *dev, const struct tern_best *b, int n_rows)
{
    const struct best_args a = {.x = tern_cpu_f32(b->x),
                                .stride = b->x.stride,
                                .width = b->x.width,
                                .n = b->n,
                                .values = tern_cpu_vec(b->values),
                                .ids = (int32_t *)(void *)tern_cpu_vec(b->ids)};
    TERN_ASSERT(b->n > 0 && b->n <= TERN_BEST);
    tern_cpu_each_row(tern_cpu_of(dev), best_row, &a, n_rows, b->x.width);
}

/* Tensors that become vectors of f32: norms, biases, tables, and which experts a token has. */
#include "model/load_impl.h"

#include <math.h>
#include <string.h>
#include "base/mem.h"

/* Whole numbers of either size, which tell experts: each row of them different ones. */
static int read_ids(const struct tern_weight_place *p, float *dst, tern_error *err)
{
    const bool wide = p->t->type == TERN_I64;
    if (!wide && p->t->type != TERN_I32)
        return tern_err_set(err, TERN_EFORMAT, "its elements are %s, not whole numbers", tern_type_name(p->t->type));
    for (int i = 0; i < p->n; i++) {
        int64_t id = 0;
        int32_t id32;
        memcpy(wide ? (void *)&id : (void *)&id32, (const char *)p->src.data + (size_t)i * (wide ? 8 : 4),
               wide ? 8 : 4);
        id = wide ? id : id32;
        if (id < 0 || id >= p->ids)
            return tern_err_set(err, TERN_EFORMAT, "element %d is expert %lld, and there are %d", i, (long long)id,
                                p->ids);
        for (int j = i / p->ids_row * p->ids_row; j < i; j++)
            if ((int64_t)dst[j] == id)
                return tern_err_set(err, TERN_EFORMAT, "token %d has expert %lld twice", i / p->ids_row, (long long)id);
        dst[i] = (float)id;
    }
    return 0;
}

int tern_vector_read(const struct tern_weight_place *p, float *dst, const char *path, tern_error *err)
{
    int rc = 0;
    tern_error e = {0};
    const int columns = p->columns, rows = p->n / columns;
    float *as_read = dst;
    if (columns > 1)
        TERN_TRY(tern_alloc(&as_read, (size_t)p->n, sizeof *as_read, err));
    if (p->ids)
        rc = read_ids(p, as_read, &e);
    else
        rc = tern_dequantize(as_read, p->t->type, p->src.data, (size_t)p->n, &e);
    if (rc < 0)
        TERN_FAIL(err, rc, "%s: tensor \"%s\": %s", path, p->t->source, e.msg);
    for (int i = 0; columns > 1 && i < p->n; i++)
        dst[(size_t)(i % columns) * (size_t)rows + (size_t)(i / columns)] = as_read[i];
    for (int i = 0; i < p->n; i++)
        dst[i] = p->t->minus_exp ? -expf(dst[i]) : dst[i] + p->t->add;
out:
    if (as_read != dst)
        tern_free(as_read);
    return rc;
}

int tern_vector_check(const struct tern_weight_place *p, const float *x, const char *path, uint64_t at, tern_error *err)
{
    for (size_t i = 0; i < (size_t)p->n; i++)
        if (!isfinite(x[i]))
            return tern_err_set(err, TERN_EFORMAT, "%s: tensor \"%s\" at byte %llu: element %zu is not a finite number",
                                path, p->t->source, (unsigned long long)at, i);
    return 0;
}

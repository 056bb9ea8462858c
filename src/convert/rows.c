/* Rows of the source into rows of the new file. */
#include "convert/convert_impl.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/fp16.h"
#include "codec/codec.h"

enum { ROWS_PER_TASK = 8 };

struct chunk {
    const struct plan *plan;
    const struct piece *o;
    int64_t row, n;
    uint8_t *out;
    float *scratch;
    size_t scratch_row;
    pthread_mutex_t lock;
    tern_error err; /* of the lowest failing row, so that the message does not depend on timing */
    int64_t failed; /* that row, or -1 */
};

/* Where row r of a piece lies: tensor, matrix and row in it. */
static const struct tern_tensor *place(const struct piece *o, int64_t r, int64_t *matrix, int64_t *row)
{
    const int64_t i = r % o->matrix_rows;
    *matrix = r / o->matrix_rows;
    *row = o->row0 + (o->order.columns ? i : tern_convert_moved(&o->order, i));
    if (!o->each)
        return o->t;
    const struct tern_tensor *t = o->each[*matrix];
    *matrix = 0;
    return t;
}

/* Of a row, or from a matrix of a stack to the next. */
static size_t row_step(const struct piece *o, const struct tern_tensor *t)
{
    return (size_t)(o->k / tern_type_elems(t->type)) * (size_t)tern_type_bytes(t->type);
}

static size_t matrix_step(const struct piece *o, const struct tern_tensor *t)
{
    return t->stride ? t->stride : (size_t)o->source_rows * row_step(o, t);
}

static int read_row(const struct piece *o, int64_t r, float *x, tern_error *err)
{
    int64_t matrix, row;
    const struct tern_tensor *t = place(o, r, &matrix, &row);
    const int64_t k = o->k;
    const size_t size = (size_t)tern_type_bytes(t->type);
    const uint8_t *p = (const uint8_t *)t->data + (size_t)matrix * matrix_step(o, t);
    int rc = 0;
    if (t->turned) { /* an unquantised matrix whose rows are columns */
        p += (size_t)row * size;
        for (int64_t i = 0; i < k; i++)
            TERN_TRY(tern_dequantize(&x[i], t->type, p + (size_t)(i * o->source_rows) * size, 1, err));
    } else if (o->order.columns) { /* of an unquantised one */
        p += (size_t)row * row_step(o, t);
        for (int64_t i = 0; i < k; i += o->order.size)
            TERN_TRY(tern_dequantize(&x[i], t->type, p + (size_t)tern_convert_moved(&o->order, i) * size,
                                     (size_t)o->order.size, err));
    } else {
        TERN_TRY(tern_dequantize(x, t->type, p + (size_t)row * row_step(o, t), (size_t)k, err));
    }
    for (int64_t i = 0; t->add != 0 && i < k; i++)
        x[i] += t->add;
    for (int64_t i = 0; t->minus_exp && i < k; i++)
        x[i] = -expf(x[i]);
out:
    return rc;
}

/* Blocks that stay as they are. */
static bool copy_row(const struct piece *o, int64_t r, uint8_t *out)
{
    int64_t matrix, row;
    const struct tern_tensor *t = place(o, r, &matrix, &row);
    if (t->type != o->type || tern_type_elems(t->type) == 1)
        return false; /* floats are looked at */
    const size_t n = tern_convert_row_bytes(o);
    memcpy(out, (const uint8_t *)t->data + (size_t)matrix * matrix_step(o, t) + (size_t)row * n, n);
    return true;
}

/* Whole numbers of 64 bits or 32 become 32. */
static int make_ids(const struct piece *o, int64_t r, uint8_t *out, tern_error *err)
{
    int64_t matrix, row;
    const struct tern_tensor *t = place(o, r, &matrix, &row);
    const size_t size = (size_t)tern_type_bytes(t->type);
    const uint8_t *p = (const uint8_t *)t->data + (size_t)row * row_step(o, t);
    for (size_t i = 0; i < (size_t)o->k; i++) {
        int64_t wide = 0;
        int32_t id = 0;
        memcpy(size == 8 ? (void *)&wide : (void *)&id, p + i * size, size);
        if (size == 8 && (wide < INT32_MIN || wide > INT32_MAX))
            return tern_err_set(err, TERN_EFORMAT, "tensor \"%.100s\": row %lld: %lld does not fit 32 bits", t->source,
                                (long long)row, (long long)wide);
        id = size == 8 ? (int32_t)wide : id;
        memcpy(out + i * sizeof id, &id, sizeof id);
    }
    return 0;
}

static int make_row(const struct piece *o, int64_t r, uint8_t *out, float *x, tern_error *err)
{
    int rc = 0;
    tern_error e = {0};
    if (tern_convert_ids(o->t))
        return make_ids(o, r, out, err);
    if (copy_row(o, r, out))
        return 0;
    rc = read_row(o, r, x, &e);
    if (rc == 0)
        rc = tern_quantize(out, o->type, x, (size_t)o->k, &e);
    if (rc < 0) {
        int64_t matrix, row;
        const struct tern_tensor *t = place(o, r, &matrix, &row);
        return tern_err_set(err, rc, "tensor \"%.100s\": row %lld%s: %s", t->source, (long long)row,
                            !o->each && o->dims[2] > 1 ? " of an expert" : "", e.msg);
    }
    return 0;
}

static void chunk_task(void *ctx, int task, int worker)
{
    struct chunk *c = ctx;
    float *x = c->scratch + (size_t)worker * c->scratch_row;
    const size_t step = tern_convert_row_bytes(c->o);
    for (int64_t i = (int64_t)task * ROWS_PER_TASK; i < ((int64_t)task + 1) * ROWS_PER_TASK && i < c->n; i++) {
        tern_error err = {0};
        if (make_row(c->o, c->row + i, c->out + (size_t)i * step, x, &err) == 0)
            continue;
        (void)pthread_mutex_lock(&c->lock);
        if (c->failed < 0 || c->row + i < c->failed) {
            c->failed = c->row + i;
            c->err = err;
        }
        (void)pthread_mutex_unlock(&c->lock);
        return;
    }
}

/* The pages that the chunk was read from. */
static void forget(const struct chunk *c)
{
    const struct piece *o = c->o;
    const struct tern_tensor *t = o->t;
    if (t->turned || o->each || o->order.kind == ORDER_HEADS) {
        for (int64_t m = c->row / o->matrix_rows; o->each && m <= (c->row + c->n - 1) / o->matrix_rows; m++)
            tern_file_forget(c->plan->f, o->each[m]);
        if (!o->each)
            tern_file_forget(c->plan->f, t);
        return;
    }
    int64_t m, row;
    const int64_t more = o->order.kind == ORDER_PAIRS ? o->order.size : 0; /* the rest of a head */
    struct tern_tensor part = *t;
    (void)place(o, c->row - (more ? c->row % more : 0), &m, &row);
    const size_t begin = (size_t)m * matrix_step(o, t) + (size_t)row * row_step(o, t);
    (void)place(o, c->row + c->n - 1, &m, &row);
    const size_t end = (size_t)m * matrix_step(o, t) + (size_t)(row + more + 1) * row_step(o, t);
    part.data = (const uint8_t *)t->data + begin;
    part.n_bytes = (end < t->n_bytes ? end : t->n_bytes) - begin;
    tern_file_forget(c->plan->f, &part);
}

int tern_convert_rows(const struct plan *plan, const struct piece *o, int64_t row, int64_t n, uint8_t *out,
                      float *scratch, size_t scratch_row, struct tern_pool *pool, tern_error *err)
{
    struct chunk c = {.plan = plan,
                      .o = o,
                      .row = row,
                      .n = n,
                      .out = out,
                      .scratch = scratch,
                      .scratch_row = scratch_row,
                      .failed = -1};
    (void)pthread_mutex_init(&c.lock, NULL);
    tern_pool_run(pool, chunk_task, &c, (int)((n + ROWS_PER_TASK - 1) / ROWS_PER_TASK));
    (void)pthread_mutex_destroy(&c.lock);
    forget(&c);
    if (c.failed < 0)
        return 0;
    return tern_err_set(err, c.err.code, "%s: %s", tern_path_show(tern_file_path(plan->f)), c.err.msg);
}

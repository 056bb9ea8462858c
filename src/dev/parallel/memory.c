/* Memory of which each device has all, or a part. */
#include <pthread.h>
#include <string.h>
#include "base/mem.h"
#include "dev/parallel/parallel.h"

/* Rounding of weights to multiples of TERN_ALIGN on each device, and what kernels read behind the last. */
#define SLACK ((size_t)1 << 20)

/* ---- where bytes lie --------------------------------------------------------------------------------------------- */

int tern_parallel_run(struct tern_parallel_runs *r, int n, size_t bytes, int device, tern_error *err)
{
    if (!bytes)
        return 0;
    int rc = tern_grow(&r->p, &r->cap, r->n + 1, sizeof *r->p, err);
    if (rc < 0)
        return rc;
    struct tern_parallel_run *p = &r->p[r->n++];
    *p = (struct tern_parallel_run){.at = r->end, .bytes = bytes, .device = device};
    r->end += bytes;
    for (int i = 0; i < n; i++) {
        p->own[i] = r->own_end[i];
        r->own_end[i] += device < 0 || device == i ? bytes : 0;
    }
    return 0;
}

size_t tern_parallel_find(const struct tern_dev_mem *m, int n, size_t at, size_t bytes, int *device,
                          size_t own[TERN_PARALLEL_MOST])
{
    const struct tern_parallel_runs *r = &m->runs;
    const bool blocks = m->kind == TERN_PARALLEL_BLOCKS;
    TERN_ASSERT(!blocks || m->block);
    const size_t block = blocks ? m->block : m->bytes, x = blocks ? at % block : at;
    size_t low = 0, high = r->n;
    while (low < high) { /* the first run that ends behind x */
        const size_t mid = (low + high) / 2;
        if (r->p[mid].at + r->p[mid].bytes <= x)
            low = mid + 1;
        else
            high = mid;
    }
    const bool in = low < r->n;
    const size_t end = in ? r->p[low].at + r->p[low].bytes : block, from = in ? r->p[low].at : r->end;
    *device = in ? r->p[low].device : -1;
    for (int i = 0; i < n; i++) {
        const bool has = !in || r->p[low].device < 0 || r->p[low].device == i;
        own[i] =
            (blocks ? at / block * m->part[i] : 0) + (in ? r->p[low].own[i] : r->own_end[i]) + (has ? x - from : 0);
    }
    return bytes < end - x ? bytes : end - x;
}

struct tern_dev_rows tern_parallel_rows(struct tern_dev_rows r, int device)
{
    TERN_ASSERT(!r.mem || r.mem->kind == TERN_PARALLEL_ALIKE);
    if (r.mem)
        r.mem = r.mem->m[device];
    return r;
}

struct tern_dev_vec tern_parallel_vec(struct tern_parallel *s, struct tern_dev_vec v, int device)
{
    int whose = -1;
    size_t own[TERN_PARALLEL_MOST] = {0};
    struct tern_dev_mem *m = v.mem;
    if (!m)
        return v;
    if (m->kind == TERN_PARALLEL_ALIKE)
        return (struct tern_dev_vec){m->m[device], v.at};
    tern_parallel_bring(s, m, m->bytes);
    (void)tern_parallel_find(m, s->n, v.at * sizeof(float), sizeof(float), &whose, own);
    TERN_ASSERT(whose < 0);
    return (struct tern_dev_vec){m->m[device], own[device] / sizeof(float)};
}

/* ---- taking and giving back -------------------------------------------------------------------------------------- */

static int reserve_all(struct tern_parallel *s, struct tern_dev_mem *m, size_t bytes, bool lazy, tern_error *err)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < s->n; i++)
        rc = s->d[i]->ops->reserve(s->d[i], &m->m[i], bytes, lazy, err);
    return rc;
}

int tern_parallel_reserve(struct tern_dev *dev, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err)
{
    struct tern_dev_mem *m;
    *out = NULL;
    int rc = tern_alloc(&m, 1, sizeof *m, err);
    if (rc < 0)
        return rc;
    m->bytes = bytes;
    m->kind = lazy ? TERN_PARALLEL_WAITS : TERN_PARALLEL_ALIKE;
    tern_parallel_start(tern_parallel_of(dev));
    if (!lazy && (rc = reserve_all(tern_parallel_of(dev), m, bytes, false, err)) < 0)
        tern_parallel_release(dev, m);
    else
        *out = m;
    return rc;
}

void tern_parallel_release(struct tern_dev *dev, struct tern_dev_mem *m)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    if (!m)
        return;
    tern_parallel_start(s);
    for (int i = s->n_shares - 1; i >= 0; i--)
        if (s->share[i].x.mem == m)
            s->share[i] = s->share[--s->n_shares];
    for (int i = 0; i < s->n; i++)
        s->d[i]->ops->release(s->d[i], m->m[i]);
    tern_free(m->runs.p);
    tern_free(m);
}

int tern_parallel_adopt(struct tern_dev *dev, struct tern_dev_mem **out, const void *host, size_t bytes,
                        tern_error *err)
{
    (void)dev;
    int rc = tern_alloc(out, 1, sizeof **out, err);
    if (rc == 0) {
        (*out)->bytes = bytes;
        (*out)->kind = TERN_PARALLEL_WAITS;
        (*out)->host = host;
    }
    return rc;
}

/* Weights are divided as they are placed, so each device gets addresses for all of them, of which it uses what it
 * needs. */
int tern_parallel_divide(struct tern_dev *dev, struct tern_dev_mem *m, struct tern_dev_division *by, tern_error *err)
{
    int rc = 0;
    struct tern_parallel *s = tern_parallel_of(dev);
    TERN_ASSERT(m->kind == TERN_PARALLEL_WAITS && by->block > 0);
    if (!by->cache) {
        TERN_ASSERT(by->block == m->bytes);
        m->kind = TERN_PARALLEL_WEIGHTS;
        /* So placing cannot fail. */
        TERN_TRY(tern_grow(&m->runs.p, &m->runs.cap, s->planned + 1, sizeof *m->runs.p, err));
        return reserve_all(s, m, m->bytes + SLACK, true, err);
    }
    const size_t blocks = m->bytes / by->block, slack = m->bytes % by->block;
    m->kind = TERN_PARALLEL_BLOCKS;
    m->block = by->block;
    TERN_TRY(tern_parallel_block_runs(&m->runs, s->n, by, err));
    for (int i = 0; i < s->n; i++) {
        m->part[i] = tern_round_up(m->runs.own_end[i] + (m->block - m->runs.end), TERN_ALIGN);
        by->takes = by->takes < m->part[i] * (size_t)s->n ? m->part[i] * (size_t)s->n : by->takes;
        TERN_TRY(s->d[i]->ops->reserve(s->d[i], &m->m[i], m->part[i] * blocks + slack, true, err));
    }
out:
    return rc;
}

/* Of all memory: it is taken a few times while a model is loaded. */
static pthread_mutex_t bring_lock = PTHREAD_MUTEX_INITIALIZER;

/* Several engines may be the first that need it. */
void tern_parallel_bring(struct tern_parallel *s, struct tern_dev_mem *m, size_t end)
{
    const uint8_t *host = m->host;
    if (!host || end <= atomic_load_explicit(&m->brought, memory_order_acquire))
        return;
    (void)pthread_mutex_lock(&bring_lock);
    const size_t from = atomic_load_explicit(&m->brought, memory_order_relaxed);
    if (end > from) {
        tern_parallel_copy_in(&s->dev, m, from, host + from, end - from);
        for (int i = 0; i < s->n; i++)
            s->d[i]->ops->sync(s->d[i]);
        atomic_store_explicit(&m->brought, end, memory_order_release);
    }
    (void)pthread_mutex_unlock(&bring_lock);
}

/* What a device has of bytes [at, at + bytes) is one piece of its memory. */
static void piece_of(const struct tern_dev_mem *m, int n, int i, size_t at, size_t bytes, size_t *from, size_t *size)
{
    int whose;
    size_t own[TERN_PARALLEL_MOST] = {0}, last[TERN_PARALLEL_MOST] = {0};
    const size_t end = at + bytes;
    (void)tern_parallel_find(m, n, at, 1, &whose, own);
    *from = own[i];
    /* Where the last byte lies, or would. */
    (void)tern_parallel_find(m, n, end - 1, 1, &whose, last);
    *size = last[i] + (whose < 0 || whose == i) - own[i];
}

int tern_parallel_claim(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes, tern_error *err)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    for (int i = 0; bytes && i < s->n; i++) {
        size_t from = at, size = bytes;
        if (m->kind != TERN_PARALLEL_ALIKE)
            piece_of(m, s->n, i, at, bytes, &from, &size);
        int rc = size && s->d[i]->ops->claim ? s->d[i]->ops->claim(s->d[i], m->m[i], from, size, err) : 0;
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

/* Activations whose columns are shared are made whole before anybody looks at their bytes. */
static void whole(struct tern_parallel *s, const struct tern_dev_mem *m, size_t at, size_t bytes)
{
    TERN_ASSERT(m->kind != TERN_PARALLEL_WAITS);
    if (m->kind == TERN_PARALLEL_ALIKE)
        tern_parallel_gather_floats(s, m, at / sizeof(float), (bytes + sizeof(float) - 1) / sizeof(float));
    tern_parallel_start(s);
}

/* From `at` on, at most `bytes`: how many are one device's (-1: everybody's), and where. */
static size_t next_of(const struct tern_parallel *s, const struct tern_dev_mem *m, size_t at, size_t bytes, int *device,
                      size_t own[TERN_PARALLEL_MOST])
{
    if (m->kind != TERN_PARALLEL_ALIKE)
        return tern_parallel_find(m, s->n, at, bytes, device, own);
    *device = -1;
    for (int i = 0; i < s->n; i++)
        own[i] = at;
    return bytes;
}

void tern_parallel_copy_in(struct tern_dev *dev, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    const uint8_t *from = host;
    whole(s, to, at, bytes);
    for (size_t n; bytes; bytes -= n, at += n, from += n) {
        int whose;
        size_t own[TERN_PARALLEL_MOST] = {0};
        n = next_of(s, to, at, bytes, &whose, own);
        for (int i = 0; i < s->n; i++)
            if (whose < 0 || whose == i)
                s->d[i]->ops->copy_in(s->d[i], to->m[i], own[i], from, n);
    }
}

void tern_parallel_copy_out(struct tern_dev *dev, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    uint8_t *to = host;
    tern_parallel_bring(s, (struct tern_dev_mem *)(uintptr_t)from,
                        from->kind == TERN_PARALLEL_WEIGHTS ? from->bytes : 0);
    whole(s, from, at, bytes);
    for (size_t n; bytes; bytes -= n, at += n, to += n) {
        int whose;
        size_t own[TERN_PARALLEL_MOST] = {0};
        n = next_of(s, from, at, bytes, &whose, own);
        whose = whose < 0 ? 0 : whose;
        s->d[whose]->ops->copy_out(s->d[whose], to, from->m[whose], own[whose], n);
    }
}

/* Both are divided in the same way, or one of them lies where all have it. */
void tern_parallel_copy(struct tern_dev *dev, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                        size_t from_at, size_t bytes)
{
    struct tern_parallel *s = tern_parallel_of(dev);
    whole(s, from, from_at, bytes);
    whole(s, to, to_at, bytes);
    const bool apart = to->kind != from->kind;
    for (int i = 0; bytes && i < s->n; i++) {
        size_t at = from_at, size = bytes, there = to_at, there_size = bytes;
        if (from->kind != TERN_PARALLEL_ALIKE)
            piece_of(from, s->n, i, from_at, bytes, &at, &size);
        if (to->kind != TERN_PARALLEL_ALIKE)
            piece_of(to, s->n, i, to_at, bytes, &there, &there_size);
        TERN_ASSERT(size == there_size && (!apart || size == bytes));
        if (size)
            s->d[i]->ops->copy(s->d[i], to->m[i], there, from->m[i], at, size);
    }
}

/* What each device has of these bytes goes through one of its operations. */
static void each_piece(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes,
                       void (*op)(struct tern_dev *d, struct tern_dev_mem *m, size_t at, size_t bytes))
{
    struct tern_parallel *s = tern_parallel_of(dev);
    whole(s, m, at, bytes);
    for (int i = 0; bytes && i < s->n; i++) {
        size_t from = at, size = bytes;
        if (m->kind != TERN_PARALLEL_ALIKE)
            piece_of(m, s->n, i, at, bytes, &from, &size);
        if (size)
            op(s->d[i], m->m[i], from, size);
    }
}

void tern_parallel_zero(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    each_piece(dev, m, at, bytes, tern_parallel_of(dev)->d[0]->ops->zero);
}

/* Each has memory of its own, so together they read as much as all of them alone. */
double tern_parallel_read(struct tern_dev *dev, const struct tern_dev_mem *m)
{
    const struct tern_parallel *s = tern_parallel_of(dev);
    double all = 0;
    for (int i = 0; i < s->n; i++) {
        const double one = s->d[i]->ops->read ? s->d[i]->ops->read(s->d[i], m->m[i]) : 0;
        if (one <= 0)
            return 0;
        all += one;
    }
    return all;
}

void tern_parallel_discard(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    each_piece(dev, m, at, bytes, tern_parallel_of(dev)->d[0]->ops->discard);
}

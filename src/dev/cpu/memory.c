/* Memory of the CPU device: the host's own. */
#include <string.h>
#include "base/mem.h"
#include "dev/cpu/cpu.h"

static int new_mem(struct tern_dev_mem **out, size_t bytes, tern_error *err)
{
    int rc = tern_alloc(out, 1, sizeof **out, err);
    if (rc == 0)
        (*out)->bytes = bytes;
    return rc;
}

int tern_cpu_reserve(struct tern_dev *dev, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err)
{
    (void)dev;
    int rc = new_mem(out, bytes, err);
    if (rc < 0)
        return rc;
    (*out)->from = lazy ? CPU_RESERVED : CPU_ALLOCATED;
    rc = lazy ? tern_reserve(&(*out)->p, bytes, err) : tern_alloc(&(*out)->p, bytes, 1, err);
    if (rc < 0) {
        tern_free(*out);
        *out = NULL;
    }
    return rc;
}

int tern_cpu_adopt(struct tern_dev *dev, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err)
{
    (void)dev;
    int rc = new_mem(out, bytes, err);
    if (rc < 0)
        return rc;
    (*out)->from = CPU_ADOPTED;
    (*out)->p = (uint8_t *)(uintptr_t)host;
    return 0;
}

void tern_cpu_release(struct tern_dev *dev, struct tern_dev_mem *m)
{
    (void)dev;
    if (!m)
        return;
    if (m->from == CPU_RESERVED)
        tern_release(m->p, m->bytes);
    else if (m->from == CPU_ALLOCATED)
        tern_free(m->p);
    tern_free(m);
}

static void check_range(const struct tern_dev_mem *m, size_t at, size_t bytes)
{
    TERN_ASSERT(at <= m->bytes && bytes <= m->bytes - at);
}

#define CHUNK ((size_t)256 << 10)

struct copy_work {
    uint8_t *to;
    const uint8_t *from;
    size_t bytes;
};

static void copy_task(void *ctx, int task, int worker)
{
    const struct copy_work *w = ctx;
    const size_t at = (size_t)task * CHUNK, left = w->bytes - at;
    (void)worker;
    memcpy(w->to + at, w->from + at, left < CHUNK ? left : CHUNK);
}

/* Large copies on all threads, whose memory new pages then are. */
static void copy_bytes(struct tern_dev *dev, uint8_t *to, const uint8_t *from, size_t bytes)
{
    struct tern_cpu *d = tern_cpu_of(dev);
    const bool apart = (uintptr_t)to + bytes <= (uintptr_t)from || (uintptr_t)from + bytes <= (uintptr_t)to;
    struct copy_work w = {to, from, bytes};
    if (d->pool && apart && bytes >= 8 * CHUNK)
        tern_pool_run(d->pool, copy_task, &w, (int)((bytes + CHUNK - 1) / CHUNK));
    else if (bytes)
        memmove(to, from, bytes);
}

void tern_cpu_copy_in(struct tern_dev *dev, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes)
{
    check_range(to, at, bytes);
    copy_bytes(dev, to->p + at, host, bytes);
}

void tern_cpu_copy_out(struct tern_dev *dev, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes)
{
    check_range(from, at, bytes);
    copy_bytes(dev, host, from->p + at, bytes);
}

void tern_cpu_copy(struct tern_dev *dev, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                   size_t from_at, size_t bytes)
{
    check_range(to, to_at, bytes);
    check_range(from, from_at, bytes);
    copy_bytes(dev, to->p + to_at, from->p + from_at, bytes);
}

void tern_cpu_zero(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    (void)dev;
    check_range(m, at, bytes);
    memset(m->p + at, 0, bytes);
}

void tern_cpu_discard(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    (void)dev;
    check_range(m, at, bytes);
    if (m->from == CPU_RESERVED)
        tern_discard(m->p + at, bytes);
}

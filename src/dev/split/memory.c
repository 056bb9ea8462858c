/* Memory of which each side has a part. */
#include <string.h>
#include "base/mem.h"
#include "dev/split/split.h"

/* ---- where bytes lie --------------------------------------------------------------------------------------------- */

size_t tern_split_part(const struct tern_dev_mem *m, int side)
{
    const size_t first = m->to - m->from;
    return tern_round_up(side == 0 ? first : m->block - first, TERN_ALIGN);
}

size_t tern_split_at(const struct tern_dev_mem *m, int side, size_t x)
{
    if (!m->block)
        return x;
    const size_t r = x % m->block, in = r < m->from ? 0 : (r < m->to ? r : m->to) - m->from;
    return x / m->block * tern_split_part(m, side) + (side == 0 ? in : r - in);
}

/* From `at` on, at most `bytes`: how many one side has, and which. */
static size_t run_of(const struct tern_dev_mem *m, size_t at, size_t bytes, int *side)
{
    const size_t r = at % m->block, end = r < m->from ? m->from : r < m->to ? m->to : m->block;
    *side = r >= m->from && r < m->to ? 0 : 1;
    return bytes < end - r ? bytes : end - r;
}

struct tern_dev_rows tern_split_rows(const struct tern_split *s, struct tern_dev_rows r)
{
    if (r.mem)
        r.mem = r.mem->m[s->now];
    return r;
}

struct tern_dev_vec tern_split_vec(const struct tern_split *s, struct tern_dev_vec v)
{
    const struct tern_dev_mem *m = v.mem;
    if (!m)
        return v;
    int side = s->now;
    if (m->block)
        (void)run_of(m, v.at * sizeof(float), sizeof(float), &side);
    TERN_ASSERT(side == s->now && !m->waits);
    return (struct tern_dev_vec){m->m[side], tern_split_at(m, side, v.at * sizeof(float)) / sizeof(float)};
}

/* ---- taking and giving back -------------------------------------------------------------------------------------- */

static int new_mem(struct tern_dev_mem **out, size_t bytes, tern_error *err)
{
    int rc = tern_alloc(out, 1, sizeof **out, err);
    if (rc == 0)
        (*out)->bytes = bytes;
    return rc;
}

int tern_split_reserve(struct tern_dev *dev, struct tern_dev_mem **out, size_t bytes, bool lazy, tern_error *err)
{
    int rc = 0;
    struct tern_split *s = tern_split_of(dev);
    struct tern_dev_mem *m;
    *out = NULL;
    TERN_TRY(new_mem(&m, bytes, err));
    m->waits = lazy;
    for (int i = 0; rc == 0 && !lazy && i < TERN_SPLIT_SIDES; i++)
        rc = s->d[i]->ops->reserve(s->d[i], &m->m[i], bytes, false, err);
    if (rc < 0)
        tern_split_release(dev, m);
    else
        *out = m;
out:
    return rc;
}

void tern_split_release(struct tern_dev *dev, struct tern_dev_mem *m)
{
    struct tern_split *s = tern_split_of(dev);
    for (int i = 0; m && i < TERN_SPLIT_SIDES; i++)
        s->d[i]->ops->release(s->d[i], m->m[i]);
    tern_free(m);
}

int tern_split_adopt(struct tern_dev *dev, struct tern_dev_mem **out, const void *host, size_t bytes, tern_error *err)
{
    (void)dev;
    int rc = new_mem(out, bytes, err);
    if (rc == 0) {
        (*out)->waits = true;
        (*out)->host = host;
    }
    return rc;
}

/* The side's part of what is adopted, which is one block. */
static int adopt_part(struct tern_split *s, struct tern_dev_mem *m, int side, tern_error *err)
{
    struct tern_dev *d = s->d[side];
    const uint8_t *host = m->host;
    if (side == 0)
        return d->ops->adopt(d, &m->m[0], host + m->from, m->to - m->from, err);
    int rc = d->ops->reserve(d, &m->m[1], tern_split_part(m, 1), false, err);
    if (rc < 0)
        return rc;
    d->ops->copy_in(d, m->m[1], 0, host, m->from);
    d->ops->copy_in(d, m->m[1], m->from, host + m->to, m->block - m->to);
    return 0;
}

int tern_split_divide(struct tern_dev *dev, struct tern_dev_mem *m, struct tern_dev_division *by, tern_error *err)
{
    int rc = 0;
    struct tern_split *s = tern_split_of(dev);
    TERN_ASSERT(m->waits && by->block > 0 && by->from <= by->to && by->to <= by->block);
    TERN_ASSERT(!m->host || by->block == m->bytes);
    m->block = by->block;
    m->from = by->from;
    m->to = by->to;
    const size_t slack = m->bytes % m->block, blocks = m->bytes / m->block;
    for (int i = 0; i < TERN_SPLIT_SIDES; i++) {
        const size_t part = tern_split_part(m, i);
        if (!part)
            continue;
        if (m->host)
            TERN_TRY(adopt_part(s, m, i, err));
        else
            TERN_TRY(s->d[i]->ops->reserve(s->d[i], &m->m[i], part * blocks + slack, true, err));
    }
    m->waits = false;
out:
    return rc;
}

int tern_split_claim(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes, tern_error *err)
{
    int rc = 0;
    struct tern_split *s = tern_split_of(dev);
    for (int i = 0; i < TERN_SPLIT_SIDES; i++) {
        const size_t from = tern_split_at(m, i, at), end = tern_split_at(m, i, at + bytes);
        if (m->m[i] && s->d[i]->ops->claim)
            TERN_TRY(s->d[i]->ops->claim(s->d[i], m->m[i], from, end - from, err));
    }
out:
    return rc;
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

void tern_split_copy_in(struct tern_dev *dev, struct tern_dev_mem *to, size_t at, const void *host, size_t bytes)
{
    struct tern_split *s = tern_split_of(dev);
    const uint8_t *from = host;
    TERN_ASSERT(!to->waits);
    for (int i = 0; !to->block && i < TERN_SPLIT_SIDES; i++)
        s->d[i]->ops->copy_in(s->d[i], to->m[i], at, host, bytes);
    for (size_t n; to->block && bytes; bytes -= n, at += n, from += n) {
        int i;
        n = run_of(to, at, bytes, &i);
        s->d[i]->ops->copy_in(s->d[i], to->m[i], tern_split_at(to, i, at), from, n);
    }
}

void tern_split_copy_out(struct tern_dev *dev, void *host, const struct tern_dev_mem *from, size_t at, size_t bytes)
{
    struct tern_split *s = tern_split_of(dev);
    uint8_t *to = host;
    TERN_ASSERT(!from->waits);
    if (!from->block)
        s->d[s->now]->ops->copy_out(s->d[s->now], host, from->m[s->now], at, bytes);
    for (size_t n; from->block && bytes; bytes -= n, at += n, to += n) {
        int i;
        n = run_of(from, at, bytes, &i);
        s->d[i]->ops->copy_out(s->d[i], to, from->m[i], tern_split_at(from, i, at), n);
    }
}

/* Between activations and a layer's state: on the side that has that. */
static void copy_state(struct tern_split *s, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                       size_t from_at, size_t bytes)
{
    int i;
    const size_t n = to->block ? run_of(to, to_at, bytes, &i) : run_of(from, from_at, bytes, &i);
    TERN_ASSERT(n == bytes && i == s->now);
    s->d[i]->ops->copy(s->d[i], to->m[i], tern_split_at(to, i, to_at), from->m[i], tern_split_at(from, i, from_at), n);
}

/* Both are divided in the same way, or not at all, and no copy goes from one block into the next: what a side has of
 * the bytes is one piece. */
void tern_split_copy(struct tern_dev *dev, struct tern_dev_mem *to, size_t to_at, const struct tern_dev_mem *from,
                     size_t from_at, size_t bytes)
{
    struct tern_split *s = tern_split_of(dev);
    if (!to->block != !from->block) {
        copy_state(s, to, to_at, from, from_at, bytes);
        return;
    }
    TERN_ASSERT(to->block == from->block && to->from == from->from && to->to == from->to);
    for (int i = 0; i < TERN_SPLIT_SIDES; i++) {
        const size_t at = tern_split_at(from, i, from_at), n = tern_split_at(from, i, from_at + bytes) - at;
        if (from->m[i] && n)
            s->d[i]->ops->copy(s->d[i], to->m[i], tern_split_at(to, i, to_at), from->m[i], at, n);
    }
}

void tern_split_zero(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    struct tern_split *s = tern_split_of(dev);
    for (int i = 0; i < TERN_SPLIT_SIDES; i++) {
        const size_t from = tern_split_at(m, i, at), end = tern_split_at(m, i, at + bytes);
        if (m->m[i] && end > from)
            s->d[i]->ops->zero(s->d[i], m->m[i], from, end - from);
    }
}

void tern_split_discard(struct tern_dev *dev, struct tern_dev_mem *m, size_t at, size_t bytes)
{
    struct tern_split *s = tern_split_of(dev);
    for (int i = 0; i < TERN_SPLIT_SIDES; i++) {
        const size_t from = tern_split_at(m, i, at), end = tern_split_at(m, i, at + bytes);
        if (m->m[i] && end > from)
            s->d[i]->ops->discard(s->d[i], m->m[i], from, end - from);
    }
}

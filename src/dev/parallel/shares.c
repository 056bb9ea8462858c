/* Activations of which each device has some columns: what is known of them, and their gathering. */
#include <string.h>
#include "base/mem.h"
#include "dev/parallel/parallel.h"

static bool same_place(struct tern_dev_rows a, struct tern_dev_rows b)
{
    return a.mem == b.mem && a.at == b.at && a.stride == b.stride;
}

static size_t floats_of(struct tern_dev_rows x, int n_rows)
{
    return n_rows ? (size_t)(n_rows - 1) * x.stride + (size_t)x.width : 0;
}

static bool overlaps(const struct tern_parallel_share *p, const struct tern_dev_mem *m, size_t at, size_t floats)
{
    return p->x.mem == m && p->x.at < at + floats && at < p->x.at + floats_of(p->x, p->n_rows);
}

/* By way of the host, row by row: for devices that do not reach each other. */
static void by_host(struct tern_parallel *s, const struct tern_parallel_share *p)
{
    const size_t width = (size_t)p->x.width;
    int rows = (int)(s->crossing_floats / width);
    TERN_ASSERT(rows > 0);
    for (int row = 0, n; row < p->n_rows; row += n) {
        n = p->n_rows - row < rows ? p->n_rows - row : rows;
        for (int i = 0; i < s->n; i++)
            for (int r = 0; p->bound[i] < p->bound[i + 1] && r < n; r++)
                s->d[i]->ops->copy_out(s->d[i], s->crossing + (size_t)r * width + p->bound[i], p->x.mem->m[i],
                                       (p->x.at + (size_t)(row + r) * p->x.stride + (size_t)p->bound[i]) *
                                           sizeof(float),
                                       (size_t)(p->bound[i + 1] - p->bound[i]) * sizeof(float));
        for (int i = 0; i < s->n; i++)
            s->d[i]->ops->sync(s->d[i]);
        for (int i = 0; i < s->n; i++) {
            for (int r = 0; r < n; r++)
                s->d[i]->ops->copy_in(s->d[i], p->x.mem->m[i],
                                      (p->x.at + (size_t)(row + r) * p->x.stride) * sizeof(float),
                                      s->crossing + (size_t)r * width, width * sizeof(float));
            s->d[i]->ops->sync(s->d[i]); /* copies may still read what they were given */
        }
    }
}

const struct tern_parallel_share *tern_parallel_share_at(const struct tern_parallel *s, struct tern_dev_rows x,
                                                         int n_rows)
{
    for (int i = 0; i < s->n_shares; i++)
        if (same_place(s->share[i].x, x) && s->share[i].n_rows == n_rows)
            return &s->share[i];
    return NULL;
}

bool tern_parallel_want_share(struct tern_parallel *s, struct tern_dev_rows x, int n_rows, const int *bound)
{
    const struct tern_parallel_share *p = tern_parallel_share_at(s, x, n_rows);
    if (p && memcmp(p->bound, bound, (size_t)(s->n + 1) * sizeof *bound) == 0)
        return true;
    tern_parallel_gather(s, x, n_rows);
    return false;
}

/* product: of tern_parallel_gather_for_product.  It stays a share where the product alone has it whole. */
static void gather(struct tern_parallel *s, int which, bool product)
{
    const struct tern_parallel_share p = s->share[which];
    struct tern_dev_rows x[TERN_PARALLEL_MOST];
    bool whole = true;
    for (int i = 0; i < s->n; i++)
        x[i] = tern_parallel_rows(p.x, i);
    if (s->joined)
        whole = s->d[0]->ops->gather(s->d, s->n, x, p.bound, p.n_rows, product);
    else
        by_host(s, &p);
    if (whole)
        s->share[which] = s->share[--s->n_shares];
}

void tern_parallel_gather_for_product(struct tern_parallel *s, struct tern_dev_rows x, int n_rows)
{
    const struct tern_parallel_share *p = tern_parallel_share_at(s, x, n_rows);
    if (p && p->bound[s->n] == x.width)
        gather(s, (int)(p - s->share), true);
    else
        tern_parallel_gather(s, x, n_rows);
}

void tern_parallel_gather_floats(struct tern_parallel *s, const struct tern_dev_mem *m, size_t at, size_t floats)
{
    for (int i = s->n_shares - 1; i >= 0; i--)
        if (overlaps(&s->share[i], m, at, floats))
            gather(s, i, false);
}

void tern_parallel_gather(struct tern_parallel *s, struct tern_dev_rows x, int n_rows)
{
    if (s->n_shares)
        tern_parallel_gather_floats(s, x.mem, x.at, floats_of(x, n_rows));
}

/* A share of which all is written anew is forgotten, and one of an earlier step that rows of this one replace, even
 * where they are fewer: nobody reads on behind them.  Of others the rest is made whole first. */
void tern_parallel_wrote(struct tern_parallel *s, struct tern_dev_rows x, int n_rows)
{
    for (int i = s->n_shares - 1; i >= 0; i--) {
        const struct tern_parallel_share *p = &s->share[i];
        if (!overlaps(p, x.mem, x.at, floats_of(x, n_rows)))
            continue;
        if (same_place(p->x, x) && p->x.width <= x.width && (p->n_rows <= n_rows || p->step != s->step))
            s->share[i] = s->share[--s->n_shares];
        else
            gather(s, i, false);
    }
}

void tern_parallel_wrote_share(struct tern_parallel *s, struct tern_dev_rows x, int n_rows, const int *bound)
{
    TERN_ASSERT(s->n_shares < TERN_PARALLEL_SHARES);
    struct tern_parallel_share *p = &s->share[s->n_shares++];
    p->x = x;
    p->n_rows = n_rows;
    p->step = s->step;
    memcpy(p->bound, bound, (size_t)(s->n + 1) * sizeof *bound);
}

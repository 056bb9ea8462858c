/* Operations of DeepSeek-V4 on one row at a time, and what it asks of others: routes by a table and by the root of
 * softplus, heads turned back. */
#include "checkdev.h"

enum { MOST_ROWS = 9, TOKENS = 50 };

static struct tern_row rows[MOST_ROWS];

#define EACH(c, i, n) CHECKDEV_EACH(c, i, rows, n)

/* What is hard to round and to compare. */
static float hard_number(struct checkdev *c, int kind)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e-40f, -1e-40f, 3e38f};
    const float x = checkdev_noise(c), some = checkdev_noise(c);
    switch (kind) {
    case 0:
        return 20 * x;
    case 1: /* of all sizes */
        return ldexpf(x, (int)(130 * some));
    case 2: /* halfway between numbers of a grid, many of them */
        return floorf(64 * x) / 4;
    case 3:
        return some > 0.96f ? odd[(int)(4 * x + 4)] : x;
    case 4: /* below the least scale */
        return ldexpf(x, -140);
    default:
        return some > 0 ? 0.0f : -0.0f;
    }
}

static struct both hard_numbers(struct checkdev *c, size_t n, int kind)
{
    float *x = checkdev_get(n + 1, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = hard_number(c, kind);
    const struct both b = checkdev_bytes(c, x, n * sizeof *x);
    tern_free(x);
    return b;
}

/* Equal to the last bit, but that there are NaNs of several kinds. */
static void compare_bits(struct checkdev *c, const char *name, const char *about, const struct both *b)
{
    float *x[DEVICES];
    size_t differ = 0;
    for (int i = 0; i < DEVICES; i++) {
        x[i] = checkdev_get(b->n + 1, sizeof **x);
        checkdev_out(c, b, i, x[i], b->n * sizeof **x);
    }
    for (size_t i = 0; i < b->n; i++) {
        const float p = x[OTHER][i], q = x[CPU][i];
        differ += memcmp(&p, &q, sizeof p) != 0 && !(isnan(p) && isnan(q));
    }
    checkdev_line(c, name, about, (double)differ, 0);
    for (int i = 0; i < DEVICES; i++)
        tern_free(x[i]);
}

static void clamps(struct checkdev *c)
{
    static const int widths[] = {1, 31, 96, 1023, 1025, 2050};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int k = 0; k < 2; k++) {
            const int n = widths[w], n_rows = k ? 1 + (int)w : 1;
            const size_t stride = stride_of(n), up_stride = stride + 48;
            struct both gate = hard_numbers(c, stride * (size_t)n_rows, k ? 3 : 0),
                        up = hard_numbers(c, up_stride * (size_t)n_rows, k ? 3 : 0);
            char about[200];
            EACH(c, i, n_rows)
            {
                c->d[i]->ops->clamp(c->d[i], rows_of(&gate, i, stride, n), rows_of(&up, i, up_stride, n), n_rows,
                                    k ? 0.5f : 7);
            }
            (void)snprintf(about, sizeof about, "%d of %d%s", n_rows, n, k ? ", some no numbers" : "");
            compare_bits(c, "clamp gate", about, &gate);
            compare_bits(c, "clamp up", about, &up);
            checkdev_free(c, &gate);
            checkdev_free(c, &up);
        }
}

static void one_grid(struct checkdev *c, enum tern_grid grid, int n_heads, int dim, int n_rows)
{
    for (int kind = 0; kind < 6; kind++) {
        const int n = n_heads * dim;
        const size_t stride = stride_of(n) + 16;
        struct both x = hard_numbers(c, stride * (size_t)n_rows, kind);
        char about[200];
        EACH(c, i, n_rows)
        {
            c->d[i]->ops->grid(c->d[i], rows_of(&x, i, stride, n), grid, n_heads, n_rows);
        }
        (void)snprintf(about, sizeof about, "%s, %d rows, %d of %d, numbers of kind %d",
                       grid == TERN_GRID_FP8 ? "fp8" : "fp4", n_rows, n_heads, dim, kind);
        compare_bits(c, "grid", about, &x);
        checkdev_free(c, &x);
    }
}

static void grids(struct checkdev *c)
{
    static const int bytes[] = {1, 31, 64, 100, 448, 512, 2000}, halves[] = {16, 32, 64, 128, 256, 512};
    for (int i = 0; i < 7; i++)
        one_grid(c, TERN_GRID_FP8, 1 + i % 3, bytes[i], i % 2 ? 1 : 2 + i);
    for (int i = 0; i < 6; i++)
        one_grid(c, TERN_GRID_FP4, i % 2 ? 1 : 3, halves[i], i % 4 ? 1 : 5);
    one_grid(c, TERN_GRID_NONE, 2, 48, 3);
}

static void one_hyper(struct checkdev *c, int n, int dim, int iterations, int n_rows)
{
    const int n_m = iterations ? n * (n + 2) : n;
    const size_t m_stride = stride_of(n_m), s_stride = stride_of(n * dim) + 16, stride = stride_of(dim);
    struct both m = checkdev_random(c, m_stride * (size_t)n_rows), s = checkdev_random(c, s_stride * (size_t)n_rows),
                x = checkdev_random(c, stride * (size_t)n_rows), t = checkdev_random(c, stride * (size_t)n_rows),
                base = checkdev_random(c, (size_t)n_m), scale = checkdev_random(c, 3);
    char about[200];
    EACH(c, i, n_rows)
    {
        struct tern_dev *d = c->d[i];
        const struct tern_hyper h = {n, dim, vec_of(&base, i), vec_of(&scale, i), iterations, 1e-6f, 1e-5f};
        const struct tern_dev_rows ms = rows_of(&m, i, m_stride, n_m), ss = rows_of(&s, i, s_stride, n * dim);
        d->ops->scale(d, ms, n_rows, 5);
        d->ops->hyper_read(d, &h, ms, ss, rows_of(&x, i, stride, dim), n_rows);
        if (iterations)
            d->ops->hyper_write(d, &h, ss, ms, rows_of(&t, i, stride, dim), n_rows);
    }
    (void)snprintf(about, sizeof about, "%d rows, %d streams of %d, %d iterations", n_rows, n, dim, iterations);
    checkdev_compare(c, "hyper_read", "weights", &m, m_stride, (int)m_stride, n_rows, 1e-6);
    checkdev_compare(c, "hyper_read", about, &x, stride, (int)stride, n_rows, 1e-6);
    checkdev_compare(c, "hyper_write", about, &s, s_stride, (int)s_stride, n_rows, iterations ? 1e-6 : 0);
    struct both *all[] = {&m, &s, &x, &t, &base, &scale};
    for (int i = 0; i < 6; i++)
        checkdev_free(c, all[i]);
}

static void hypers(struct checkdev *c)
{
    static const int streams[] = {1, 2, 3, 4, 6, 8}, dims[] = {1, 37, 100, 257, 1030, 2050}, times[] = {0, 20, 1};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 3; k++) {
            one_hyper(c, streams[i], dims[(i + k) % 6], times[k], 1);
            one_hyper(c, streams[i], dims[(i + k + 3) % 6], times[k], 5 + k);
        }
}

/* ---- routes ------------------------------------------------------------------------------------------------------ */

/* n_active experts of each token, each another, in no order. */
static struct both make_table(struct checkdev *c, int n_experts, int n_active)
{
    float *all = checkdev_get((size_t)n_experts, sizeof *all),
          *table = checkdev_get((size_t)TOKENS * (size_t)n_active, sizeof *table);
    for (int e = 0; e < n_experts; e++)
        all[e] = (float)e;
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < n_active; i++) {
            const int from = i + (int)((checkdev_noise(c) + 1) / 2 * (float)(n_experts - i));
            const float taken = all[from];
            all[from] = all[i];
            table[t * n_active + i] = all[i] = taken;
        }
    const struct both b = checkdev_bytes(c, table, (size_t)TOKENS * (size_t)n_active * sizeof *table);
    tern_free(table);
    tern_free(all);
    return b;
}

static void one_route(struct checkdev *c, int n_experts, int n_active, int n_rows, int kind)
{
    static const char *const names[] = {"softmax", "sigmoid", "root of softplus"};
    const size_t stride = stride_of(n_experts), pairs = (size_t)n_rows * (size_t)n_active;
    const bool listed = kind >= 3;
    struct both logits = checkdev_random(c, stride * (size_t)n_rows), bias = checkdev_random(c, (size_t)n_experts),
                table = make_table(c, n_experts, n_active), ids = checkdev_bytes(c, NULL, pairs * sizeof(float)),
                weights = checkdev_bytes(c, NULL, pairs * sizeof(float));
    char about[200];
    for (int r = 0; r < n_rows; r++)
        rows[r].token = (int32_t)((checkdev_noise(c) + 1) / 2 * TOKENS);
    EACH(c, i, n_rows)
    {
        struct tern_dev *d = c->d[i];
        const struct tern_dev_rows x = rows_of(&logits, i, stride, n_experts);
        const struct tern_route r = {.n_experts = n_experts,
                                     .n_active = n_active,
                                     .sigmoid = kind % 3 == 1,
                                     .sqrt_softplus = kind % 3 == 2,
                                     .bias = n_rows % 2 ? vec_of(&bias, i) : (struct tern_dev_vec){0},
                                     .table = listed ? vec_of(&table, i) : (struct tern_dev_vec){0},
                                     .n_groups = 1,
                                     .n_groups_used = 1,
                                     .group_best = 1,
                                     .normalise = n_active > 1,
                                     .scale = 1.5f};
        d->ops->scale(d, x, n_rows, n_rows % 2 ? 8 : 90);
        d->ops->route(d, &r, x, vec_of(&ids, i), vec_of(&weights, i), n_rows);
    }
    (void)snprintf(about, sizeof about, "%d rows, %d of %d, %s%s", n_rows, n_active, n_experts, names[kind % 3],
                   listed ? ", by a table" : "");
    compare_bits(c, "route", about, &ids);
    checkdev_compare(c, "route", "weights", &weights, (size_t)n_active, n_active, n_rows, 1e-6);
    struct both *all[] = {&logits, &bias, &table, &ids, &weights};
    for (int i = 0; i < 5; i++)
        checkdev_free(c, all[i]);
}

static void routes(struct checkdev *c)
{
    static const int experts[] = {5, 64, 256, 384}, active[] = {3, 6, 8, 1};
    for (int i = 0; i < 4; i++)
        for (int kind = 0; kind < 6; kind++) {
            one_route(c, experts[i], active[i], 1, kind);
            one_route(c, experts[i], active[i], 4 + i, kind);
        }
}

/* ---- heads turned back ------------------------------------------------------------------------------------------- */

/* x is turned back, y turned and turned back: what it was. */
static void one_turn(struct checkdev *c, int n_heads, int dim, int n_rot, int n_rows, int k)
{
    const int half = n_rot / 2, n = n_heads * dim;
    const size_t stride = stride_of(n), all = stride * (size_t)n_rows;
    struct both x = checkdev_random(c, all), y = checkdev_random(c, all), freq = checkdev_random(c, (size_t)half),
                cs = checkdev_bytes(c, NULL, (size_t)n_rows * (size_t)half * 4),
                sn = checkdev_bytes(c, NULL, (size_t)n_rows * (size_t)half * 4);
    float *was = checkdev_get(all, sizeof *was), *is = checkdev_get(all, sizeof *is);
    double square = 0, apart = 0;
    char about[200];
    checkdev_out(c, &y, OTHER, was, all * sizeof *was);
    for (int r = 0; r < n_rows; r++)
        rows[r].pos = (int32_t)(checkdev_noise(c) * 70000 + 70000);
    EACH(c, i, n_rows)
    {
        struct tern_dev *d = c->d[i];
        struct tern_heads h = {.x = rows_of(&x, i, stride, n),
                               .n_heads = n_heads,
                               .dim = dim,
                               .norm = k % 3 > 0,
                               .norm_after = k % 3 == 2,
                               .eps = 1e-5f,
                               .cos = vec_of(&cs, i),
                               .sin = vec_of(&sn, i),
                               .n_rot = n_rot,
                               .interleaved = k % 2,
                               .inverse = true};
        d->ops->rope_table(d, vec_of(&cs, i), vec_of(&sn, i), vec_of(&freq, i), n_rot, 1, n_rows);
        d->ops->heads(d, &h, n_rows);
        h.x = rows_of(&y, i, stride, n);
        h.norm = h.inverse = false;
        d->ops->heads(d, &h, n_rows); /* together with those above */
        h.inverse = true;
        d->ops->heads(d, &h, n_rows);
    }
    (void)snprintf(about, sizeof about, "turned back, %d rows, %d of %d, rotated %d", n_rows, n_heads, dim, n_rot);
    checkdev_compare(c, "heads", about, &x, stride, n, n_rows, 1e-6);
    checkdev_out(c, &y, OTHER, is, all * sizeof *is);
    for (size_t i = 0; i < all; i++) {
        square += (double)was[i] * (double)was[i];
        apart += ((double)is[i] - (double)was[i]) * ((double)is[i] - (double)was[i]);
    }
    checkdev_line(c, "heads", "turned and turned back", sqrt(apart / square), 1e-6);
    tern_free(was);
    tern_free(is);
    struct both *numbers[] = {&x, &y, &freq, &cs, &sn};
    for (int i = 0; i < 5; i++)
        checkdev_free(c, numbers[i]);
}

static void turns(struct checkdev *c)
{
    static const int dims[] = {16, 64, 96, 128, 512, 576};
    for (int k = 0; k < 6; k++) {
        one_turn(c, 1 + 3 * k % 10, dims[k], k % 2 ? dims[k] / 2 : dims[k], 1, k);
        one_turn(c, 1 + k % 3, dims[k], k % 2 ? dims[k] / 4 : 8, 2 + k, k + 1);
    }
}

void check_hyper(struct checkdev *c)
{
    const struct tern_dev_limits l = {.max_rows = MOST_ROWS, .max_narrow = MOST_ROWS, .max_k = 64};
    if (!checkdev_wants(c, "hyper"))
        return;
    checkdev_prepare(c, &l);
    clamps(c);
    grids(c);
    hypers(c);
    routes(c);
    turns(c);
}

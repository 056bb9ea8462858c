/* Operations on one row at a time. */
#include "checkdev.h"

enum { MOST_ROWS = 40 };

static struct tern_row rows[MOST_ROWS];

#define EACH(c, i, n) CHECKDEV_EACH(c, i, rows, n)

static void norms(struct checkdev *c)
{
    static const int widths[] = {1, 4, 31, 64, 100, 2048, 4096, 5123, 8192, 8196, 20000};
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int plus = 0; plus < 4; plus++) {
            const int n = widths[w], n_rows = 1 + (int)w % 5;
            const size_t stride = stride_of(n), all = stride * (size_t)n_rows;
            struct both x = checkdev_random(c, all), t = checkdev_random(c, all), y = checkdev_random(c, all),
                        f = checkdev_random(c, stride), g = checkdev_random(c, stride);
            char about[200];
            EACH(c, i, n_rows)
            {
                const struct tern_dev_ops *ops = c->d[i]->ops;
                if (plus == 3)
                    ops->norm(c->d[i], rows_of(&t, i, stride, n), rows_of(&t, i, stride, n),
                              w % 2 ? vec_of(&g, i) : (struct tern_dev_vec){0}, 1e-6f, n_rows);
                if (plus)
                    ops->add(c->d[i], rows_of(&x, i, stride, n), rows_of(&x, i, stride, n), rows_of(&t, i, stride, n),
                             n_rows);
                ops->norm(c->d[i], rows_of(plus == 2 ? &x : &y, i, stride, n), rows_of(&x, i, stride, n),
                          w % 3 ? vec_of(&f, i) : (struct tern_dev_vec){0}, 1e-6f, n_rows);
            }
            (void)snprintf(about, sizeof about, "%d of %d%s%s", n_rows, n, plus ? ", of a sum" : "",
                           plus == 2   ? ", in place"
                           : plus == 3 ? " with normed rows"
                                       : "");
            checkdev_compare(c, "norm", about, plus == 2 ? &x : &y, stride, n, n_rows, 2e-6);
            if (plus == 1)
                checkdev_compare(c, "norm", "the sum", &x, stride, n, n_rows, 0);
            if (plus == 3) {
                checkdev_compare(c, "norm", "the sum", &x, stride, n, n_rows, 2e-6);
                checkdev_compare(c, "norm", "what was added", &t, stride, n, n_rows, 2e-6);
            }
            checkdev_free(c, &x);
            checkdev_free(c, &t);
            checkdev_free(c, &y);
            checkdev_free(c, &f);
            checkdev_free(c, &g);
        }
}

static void elementwise(struct checkdev *c)
{
    static const char *const names[] = {"scale", "softcap", "gate", "glu silu", "glu gelu", "glu sigmoid", "add"};
    static const int widths[] = {1, 31, 96, 1024, 1027, 14336};
    for (int op = 0; op < 7; op++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
            const int n = widths[w], n_rows = 1 + (int)w * 3;
            const size_t stride = stride_of(n), all = stride * (size_t)n_rows;
            struct both x = checkdev_random(c, all), y = checkdev_random(c, all);
            char about[200];
            EACH(c, i, n_rows)
            {
                struct tern_dev *d = c->d[i];
                const struct tern_dev_rows xs = rows_of(&x, i, stride, n), ys = rows_of(&y, i, stride, n);
                d->ops->scale(d, xs, n_rows, 5);
                if (op == 0)
                    d->ops->scale(d, xs, n_rows, 0.37f);
                else if (op == 1)
                    d->ops->softcap(d, xs, n_rows, 3);
                else if (op == 2)
                    d->ops->gate(d, xs, ys, n_rows);
                else if (op < 6)
                    d->ops->glu(d, xs, ys, n_rows,
                                op == 3   ? TERN_GATE_SILU
                                : op == 4 ? TERN_GATE_GELU
                                          : TERN_GATE_SIGMOID);
                else
                    d->ops->add(d, xs, ys, xs, n_rows);
            }
            (void)snprintf(about, sizeof about, "%d of %d", n_rows, n);
            checkdev_compare(c, names[op], about, &x, stride, n, n_rows, 1e-6);
            checkdev_free(c, &x);
            checkdev_free(c, &y);
        }
}

static void heads(struct checkdev *c)
{
    for (int k = 0; k < 40; k++) {
        static const int dims[] = {16, 64, 80, 96, 128, 256, 512};
        const int dim = dims[k % 7], n_heads = 1 + k % 9, n_rows = 1 + k % MOST_ROWS, n_kv = 1 + k % 3;
        const int n_rot = k % 4 == 3 ? 0 : k % 4 == 2 ? dim / 2 : dim, half = n_rot / 2;
        const size_t stride = stride_of(n_heads * dim), kv_stride = stride_of(n_kv * dim);
        struct both x = checkdev_random(c, stride * (size_t)n_rows),
                    kv = checkdev_random(c, kv_stride * (size_t)n_rows), w = checkdev_random(c, (size_t)dim),
                    freq = checkdev_random(c, (size_t)half + 1),
                    cs = checkdev_bytes(c, NULL, (size_t)n_rows * (size_t)half * 4 + 64),
                    sn = checkdev_bytes(c, NULL, (size_t)n_rows * (size_t)half * 4 + 64);
        char about[200];
        for (int r = 0; r < n_rows; r++)
            rows[r].pos = (int32_t)(checkdev_noise(c) * 70000 + 70000);
        EACH(c, i, n_rows)
        {
            struct tern_dev *d = c->d[i];
            struct tern_heads h = {.x = rows_of(&x, i, stride, n_heads * dim),
                                   .n_heads = n_heads,
                                   .dim = dim,
                                   .norm = k % 3 > 0,
                                   .norm_after = k % 3 == 2,
                                   .eps = 1e-5f,
                                   .n_rot = n_rot,
                                   .interleaved = k % 5 == 1,
                                   .temper = k % 6 == 5 ? 0.1f : 0,
                                   .temper_span = 8192,
                                   .temper_from = 1};
            if (k % 2)
                h.norm_w = vec_of(&w, i);
            if (n_rot) {
                d->ops->rope_table(d, vec_of(&cs, i), vec_of(&sn, i), vec_of(&freq, i), n_rot, 1.1f, n_rows);
                h.cos = vec_of(&cs, i);
                h.sin = vec_of(&sn, i);
            }
            d->ops->heads(d, &h, n_rows);
            h.x = rows_of(&kv, i, kv_stride, n_kv * dim);
            h.n_heads = n_kv;
            h.temper = 0;
            d->ops->heads(d, &h, n_rows);
            if (k == 7) /* the same heads again are turned again */
                d->ops->heads(d, &h, n_rows);
        }
        (void)snprintf(about, sizeof about, "%d rows, %d of %d, rotated %d", n_rows, n_heads, dim, n_rot);
        if (half)
            checkdev_compare(c, "rope_table", about, &cs, (size_t)half, half, n_rows, 1e-7);
        checkdev_compare(c, "heads", about, &x, stride, n_heads * dim, n_rows, 1e-6);
        checkdev_compare(c, "heads", "keys", &kv, kv_stride, n_kv * dim, n_rows, 1e-6);
        struct both *all[] = {&x, &kv, &w, &freq, &cs, &sn};
        for (int i = 0; i < 6; i++)
            checkdev_free(c, all[i]);
    }
}

static void copies(struct checkdev *c)
{
    enum { HEADS = 5, DIM = 48, N = 40, ROWS = 33 };
    struct both x = checkdev_random(c, HEADS * DIM * ROWS), y = checkdev_random(c, 256 * ROWS),
                z = checkdev_random(c, 256 * ROWS);
    static const int list[] = {32, 0, 7, 7, 31};
    EACH(c, i, ROWS)
    {
        struct tern_dev *d = c->d[i];
        d->ops->copy_heads(d, rows_of(&y, i, 256, 256), 50, rows_of(&x, i, HEADS * DIM, HEADS * DIM), DIM, HEADS, N,
                           ROWS);
        d->ops->pick(d, rows_of(&z, i, 256, 240), rows_of(&y, i, 256, 240), list, 5);
        d->ops->pick(d, rows_of(&x, i, HEADS * DIM, 240), rows_of(&y, i, 256, 240), list + 1, 1);
    }
    checkdev_compare(c, "copy_heads", "", &y, 256, 256, ROWS, 0);
    checkdev_compare(c, "pick", "5 of 33", &z, 256, 256, ROWS, 0);
    checkdev_compare(c, "pick", "1 of 33", &x, HEADS * DIM, HEADS * DIM, ROWS, 0);
    checkdev_free(c, &x);
    checkdev_free(c, &y);
    checkdev_free(c, &z);
}

/* Reading memory says how fast that was, and leaves it as it is. */
static void reads(struct checkdev *c)
{
    static const size_t sizes[] = {4, 1000, 3 * 4096 + 12, 300000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct both x = checkdev_random(c, sizes[i]);
        const struct tern_dev_ops *ops = c->d[OTHER]->ops;
        const double speed = ops->read ? ops->read(c->d[OTHER], x.m[OTHER]) : 1;
        char about[40];
        (void)snprintf(about, sizeof about, "%zu floats", sizes[i]);
        checkdev_line(c, "read", about, speed > 0 ? 0 : 1, 0);
        checkdev_compare(c, "read", about, &x, sizes[i], (int)sizes[i], 1, 0);
        checkdev_free(c, &x);
    }
}

/* ---- the best of rows: equal to the last bit --------------------------------------------------------------------- */

enum { BEST_ROWS = 300, BEST_WIDTH = 262144 };

/* Rows of numbers that are hard to put in order: few values, so that many are equal; zeros of both signs; infinities;
 * what is no number; and rows of nothing else. */
static float best_number(struct checkdev *c, int kind)
{
    static const float odd[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 1e-40f, -1e-40f, 3e38f};
    const float x = checkdev_noise(c), some = checkdev_noise(c);
    switch (kind) {
    case 0:
        return 20 * x;
    case 1:
        return floorf(3 * x);
    case 2:
        return some > 0.5f ? odd[(int)(4 * x + 4)] : x;
    case 3:
        return some > 0.999f ? x : NAN;
    default:
        return -INFINITY;
    }
}

static void best_case(struct checkdev *c, int width, int n_rows, int n)
{
    const size_t stride = stride_of(width), all = stride * (size_t)n_rows, answers = (size_t)n_rows * (size_t)n;
    float *x = checkdev_get(all, sizeof *x);
    uint32_t *got[DEVICES];
    char about[200];
    size_t differ = 0;
    for (size_t i = 0; i < all; i++)
        x[i] = i % stride < (size_t)width ? best_number(c, (int)(i / stride + (size_t)n) % 5) : INFINITY;
    struct both in = checkdev_bytes(c, x, all * sizeof *x), out = checkdev_random(c, 2 * answers + 1);
    EACH(c, i, 1)
    {
        const struct tern_best b = {rows_of(&in, i, stride, width), n, {out.m[i], 1}, {out.m[i], 1 + answers}};
        c->d[i]->ops->best(c->d[i], &b, n_rows);
    }
    for (int i = 0; i < DEVICES; i++) {
        got[i] = checkdev_get(2 * answers + 1, sizeof **got);
        checkdev_out(c, &out, i, got[i], (2 * answers + 1) * sizeof **got);
    }
    for (size_t i = 0; i < 2 * answers + 1; i++)
        differ += got[OTHER][i] != got[CPU][i];
    (void)snprintf(about, sizeof about, "%d of %d, %d rows", n, width, n_rows);
    checkdev_line(c, "best", about, (double)differ, 0);
    for (int i = 0; i < DEVICES; i++)
        tern_free(got[i]);
    tern_free(x);
    checkdev_free(c, &in);
    checkdev_free(c, &out);
}

void check_best(struct checkdev *c)
{
    const struct tern_dev_limits l = {.max_rows = BEST_ROWS, .max_narrow = 16, .max_k = 64, .max_best = BEST_WIDTH};
    static const int widths[] = {1, 31, 32, 33, 1000, 8192, 8193, 151936, BEST_WIDTH}, counts[] = {1, 2, 17};
    static const int most[] = {1, 8, 20, 64};
    if (!checkdev_wants(c, "best"))
        return;
    checkdev_prepare(c, &l);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int r = 0; r < 3; r++)
            for (int n = 0; n < 4; n++)
                best_case(c, widths[w], counts[r], most[n]);
    best_case(c, 500, BEST_ROWS, 64);
    best_case(c, 9000, BEST_ROWS, 7);
}

void check_rows(struct checkdev *c)
{
    const struct tern_dev_limits l = {.max_rows = MOST_ROWS, .max_narrow = MOST_ROWS, .max_k = 64};
    if (!checkdev_wants(c, "rows"))
        return;
    checkdev_prepare(c, &l);
    norms(c);
    elementwise(c);
    heads(c);
    copies(c);
    reads(c);
}

/* What one row goes through behind its attention, which a device may do as one piece: product, sum and norm, gate and
 * up, product, sum and norm, products; against the CPU, and against the same device when nothing can be put together,
 * bit for bit. */
#include "checkdev.h"

enum { OUT, GATE, UP, DOWN, Q, K, V, WEIGHTS };

struct chain {
    struct tern_weight_source s[WEIGHTS];
    struct tern_dev_weight w[WEIGHTS][DEVICES];
    struct tern_dev_mem *m[WEIGHTS][DEVICES];
    uint8_t *bytes[WEIGHTS];
    struct both y[WEIGHTS], bias[WEIGHTS], in, x, normed, factors[2];
    int n[WEIGHTS], k[WEIGHTS];
    bool with_bias;
    enum tern_gate act;
};

static void make_weight(struct checkdev *c, struct chain *h, int i, int type)
{
    tern_error err = {0};
    int rc = 0;
    h->bytes[i] = checkdev_source(c, &h->s[i], type, h->n[i], h->k[i]);
    for (int d = 0; d < DEVICES && rc == 0; d++) {
        const struct tern_dev_ops *ops = c->d[d]->ops;
        const struct tern_dev_source from = {checkdev_source_of, &h->s[i]};
        rc = ops->weight_plan(c->d[d], &h->w[i][d], &h->s[i], h->n[i], h->k[i], 1, &err);
        if (rc == 0)
            rc = ops->reserve(c->d[d], &h->m[i][d], ops->weight_bytes(&h->w[i][d]) + 256, false, &err);
        if (rc == 0) {
            ops->weight_place(c->d[d], &h->w[i][d], h->m[i][d], 256);
            rc = ops->weight_load(c->d[d], &h->w[i][d], &from, &err);
        }
    }
    if (rc < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
}

static struct tern_matmul matmul_of(const struct chain *h, int i, int d)
{
    struct tern_matmul m = {.w = &h->w[i][d], .y = rows_of(&h->y[i], d, stride_of(h->n[i]), h->n[i])};
    if (h->with_bias)
        m.bias = vec_of(&h->bias[i], d);
    return m;
}

static void step_begin(struct tern_dev *d)
{
    const struct tern_dev_step s = {.n_rows = 1};
    d->ops->begin(d, &s);
}

static void next(struct tern_dev *d, bool apart)
{
    if (apart) {
        d->ops->end(d);
        step_begin(d);
    }
}

/* x += plus; its norm. */
static void add_norm(const struct chain *h, struct tern_dev *d, int i, const struct both *plus, int which, float eps,
                     bool apart)
{
    const int n = h->n[OUT];
    const struct tern_dev_rows x = rows_of(&h->x, i, stride_of(n), n);
    d->ops->add(d, x, x, rows_of(plus, i, stride_of(n), n), 1);
    next(d, apart);
    d->ops->norm(d, rows_of(&h->normed, i, stride_of(n), n), x, vec_of(&h->factors[which], i), eps, 1);
    next(d, apart);
}

/* apart: each operation in a step of its own. */
static void run(struct checkdev *c, const struct chain *h, int i, bool apart)
{
    struct tern_dev *d = c->d[i];
    const int n = h->n[OUT];
    const struct tern_dev_rows in = rows_of(&h->in, i, stride_of(h->k[OUT]), h->k[OUT]),
                               normed = rows_of(&h->normed, i, stride_of(n), n);
    const struct tern_matmul out = matmul_of(h, OUT, i), both[] = {matmul_of(h, GATE, i), matmul_of(h, UP, i)},
                             down = matmul_of(h, DOWN, i),
                             last[] = {matmul_of(h, Q, i), matmul_of(h, K, i), matmul_of(h, V, i)};
    step_begin(d);
    d->ops->matmul(d, &out, 1, in, 1, 0);
    next(d, apart);
    add_norm(h, d, i, &h->y[OUT], 0, 1e-5f, apart);
    d->ops->matmul(d, both, 2, normed, 1, 0);
    next(d, apart);
    d->ops->glu(d, both[0].y, both[1].y, 1, h->act);
    next(d, apart);
    d->ops->matmul(d, &down, 1, both[0].y, 1, 0);
    next(d, apart);
    add_norm(h, d, i, &h->y[DOWN], 1, 1e-6f, apart);
    d->ops->matmul(d, last, 3, normed, 1, 0);
    d->ops->end(d);
}

/* The row x of before, on all devices. */
static void again(struct checkdev *c, struct chain *h, const float *x, size_t bytes)
{
    for (int i = 0; i < DEVICES; i++) {
        c->d[i]->ops->copy_in(c->d[i], h->x.m[i], 0, x, bytes);
        c->d[i]->ops->sync(c->d[i]);
    }
}

static void compare(struct checkdev *c, struct chain *h, const char *about)
{
    const int n = h->n[OUT];
    const struct {
        const char *name;
        const struct both *b;
        int n;
    } all[] = {
        {"x", &h->x, n},          {"norm", &h->normed, n},  {"out", &h->y[OUT], n},   {"gate", &h->y[GATE], h->n[GATE]},
        {"down", &h->y[DOWN], n}, {"q", &h->y[Q], h->n[Q]}, {"k", &h->y[K], h->n[K]}, {"v", &h->y[V], h->n[V]}};
    enum { ALL = sizeof all / sizeof *all };
    float *x = checkdev_get((size_t)n, sizeof *x);
    uint32_t *one[ALL], *other = checkdev_get((size_t)h->n[GATE], sizeof *other); /* bits of floats */
    char line[200];
    checkdev_out(c, &h->x, OTHER, x, (size_t)n * sizeof *x);
    for (int i = 0; i < DEVICES; i++)
        run(c, h, i, false);
    for (int i = 0; i < ALL; i++) {
        (void)snprintf(line, sizeof line, "%s: %s", about, all[i].name);
        checkdev_compare(c, "chain", line, all[i].b, stride_of(all[i].n), all[i].n, 1,
                         2e-2); /* of int8 rows, four deep */
        one[i] = checkdev_get((size_t)all[i].n, sizeof **one);
        checkdev_out(c, all[i].b, OTHER, one[i], (size_t)all[i].n * sizeof **one);
    }
    again(c, h, x, (size_t)n * sizeof *x);
    run(c, h, OTHER, true);
    for (int i = 0; i < ALL; i++) {
        int differ = 0;
        checkdev_out(c, all[i].b, OTHER, other, (size_t)all[i].n * sizeof *other);
        for (int j = 0; j < all[i].n; j++)
            differ += one[i][j] != other[j];
        (void)snprintf(line, sizeof line, "%s: numbers that differ apart", all[i].name);
        checkdev_line(c, "chain", line, differ, 0);
        tern_free(one[i]);
    }
    tern_free(other);
    tern_free(x);
}

static void one_chain(struct checkdev *c, const int type[WEIGHTS], const char *about, const int n[WEIGHTS],
                      const int k[WEIGHTS], bool with_bias, enum tern_gate act)
{
    struct chain *h = checkdev_get(1, sizeof *h);
    h->with_bias = with_bias;
    h->act = act;
    for (int i = 0; i < WEIGHTS; i++) {
        h->n[i] = n[i];
        h->k[i] = k[i];
        make_weight(c, h, i, type[i]);
        h->y[i] = checkdev_random(c, stride_of(n[i]));
        h->bias[i] = checkdev_random(c, stride_of(n[i]));
    }
    h->in = checkdev_random(c, stride_of(k[OUT]));
    h->x = checkdev_random(c, stride_of(n[OUT]));
    h->normed = checkdev_random(c, stride_of(n[OUT]));
    for (int i = 0; i < 2; i++)
        h->factors[i] = checkdev_random(c, stride_of(n[OUT]));
    compare(c, h, about);
    for (int i = 0; i < WEIGHTS; i++) {
        for (int d = 0; d < DEVICES; d++) {
            c->d[d]->ops->weight_drop(c->d[d], &h->w[i][d]);
            c->d[d]->ops->release(c->d[d], h->m[i][d]);
        }
        checkdev_free(c, &h->y[i]);
        checkdev_free(c, &h->bias[i]);
        tern_free(h->bytes[i]);
    }
    struct both *all[] = {&h->in, &h->x, &h->normed, &h->factors[0], &h->factors[1]};
    for (int i = 0; i < 5; i++)
        checkdev_free(c, all[i]);
    tern_free(h);
}

void check_chain(struct checkdev *c)
{
    static const struct {
        int n, in, ff, q, k, v;
    } shapes[] = {
        {2304, 2048, 2560, 2080, 272, 40}, {2048, 2560, 4352, 16, 16, 9}, {4096, 4096, 14336, 4096, 1024, 1024}};
    const bool races =
        getenv("CHECKDEV_RACES") != NULL; /* one chain, for tools that slow kernels down a thousandfold */
    const bool quick = races || getenv("CHECKDEV_QUICK") != NULL;
    const struct tern_dev_limits l = {.max_rows = 8, .max_narrow = 8, .max_k = 14336};
    if (!checkdev_wants(c, "chain"))
        return;
    static const struct {
        int down, v;
        const char *name;
    } types[] = {{TERN_Q4_K, TERN_Q4_K, "Q4_K"},
                 {TERN_Q6_K, TERN_Q4_K, "down Q6_K"}, /* which no chain has */
                 {TERN_Q4_K, TERN_Q6_K, "v Q6_K"}};
    checkdev_prepare(c, &l);
    for (int s = races; s < (quick ? 2 : 3); s++)
        for (int t = 0; t < (races ? 1 : 3); t++) {
            const int n = shapes[s].n, ff = shapes[s].ff;
            const int outs[WEIGHTS] = {n, ff, ff, n, shapes[s].q, shapes[s].k, shapes[s].v},
                      ins[WEIGHTS] = {shapes[s].in, n, n, ff, n, n, n};
            char about[64];
            (void)snprintf(about, sizeof about, "%s, %d columns, %d between", types[t].name, n, ff);
            const int of[WEIGHTS] = {TERN_Q4_K, TERN_Q4_K, TERN_Q4_K, types[t].down, TERN_Q4_K, TERN_Q4_K, types[t].v};
            one_chain(c, of, about, outs, ins, s == 1, s == 1 ? TERN_GATE_GELU : TERN_GATE_SILU);
        }
}

/* Layers as a decode row goes through them, but for attention, by one card and then by as many as there are together:
 * of everything that they write the bits must be the same, in steps one after another, with gathers that stand apart
 * between, and while numbers of gathers wrap.  Tells how long a layer takes, too. */
#include <dlfcn.h>
#include <time.h>
#include "checkdev.h"

enum { OUT, GATE, UP, DOWN, IN, K, V, SMALL, WEIGHTS };
enum { STEPS = 4, LAYERS = 3, KEPT = 8, CARDS = 8, PROMPT = 521 };
enum { BEFORE_WRAP = 400 }; /* gathers of a card before numbers wrap for the first time (dev/cuda/together) */

/* What each card is given: chains in a step; in all steps gathers by themselves, one in every second, and one of
 * nothing where numbers wrap. */
enum { CHAINS = LAYERS, APART = STEPS / 2 + 1 };

/* rows: of prompts, so many that they do not pass through a stage, which holds 1,048,576 numbers; 0: one of decoding.
 */
struct shape {
    int n, in, ff, k, v, rows;
    const char *name;
};

struct layers {
    struct tern_dev *d;
    struct tern_weight_source s[WEIGHTS];
    struct tern_dev_weight w[WEIGHTS];
    struct tern_dev_mem *m;
    uint8_t *bytes[WEIGHTS];
    struct tern_dev_rows y[WEIGHTS], x, normed, factors[2], bias;
    int n[WEIGHTS], k[WEIGHTS];
    enum tern_gate act;
    int steps, n_layers, n_rows, n_wide;
    int chains, gathers, sent; /* that were launched */
};

#define CHAIN  "tern_cuda_k_chain_cards_U4_K32"
#define GATHER "tern_cuda_k_together"
#define SENT   "tern_cuda_k_gemm_90_sent" /* products of prompt rows that go to all cards as they are made */

static void must(int rc, const tern_error *err)
{
    if (rc < 0) {
        (void)fprintf(stderr, "%s\n", err->msg);
        exit(1);
    }
}

static void load_weights(struct layers *h)
{
    const struct tern_dev_ops *ops = h->d->ops;
    size_t at[WEIGHTS], bytes = 256;
    tern_error err = {0};
    if (ops->layer)
        ops->layer(h->d, 0, h->x, 1);
    for (int i = 0; i < WEIGHTS; i++) {
        must(ops->weight_plan(h->d, &h->w[i], &h->s[i], h->n[i], h->k[i], 1, &err), &err);
        at[i] = bytes;
        bytes += tern_round_up(ops->weight_bytes(&h->w[i]), 256);
    }
    struct tern_dev_division by = {.block = bytes};
    must(ops->reserve(h->d, &h->m, bytes, ops->divide != NULL, &err), &err);
    if (ops->divide)
        must(ops->divide(h->d, h->m, &by, &err), &err);
    for (int i = 0; i < WEIGHTS; i++) {
        const struct tern_dev_source from = {checkdev_source_of, &h->s[i]};
        ops->weight_place(h->d, &h->w[i], h->m, at[i]);
        must(ops->weight_load(h->d, &h->w[i], &from, &err), &err);
    }
}

static void fill(struct checkdev *c, struct layers *h, struct tern_dev_rows r)
{
    const size_t n = r.stride * (size_t)h->n_rows;
    float *x = checkdev_get(n, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = checkdev_noise(c);
    h->d->ops->copy_in(h->d, r.mem, 0, x, n * sizeof *x);
    h->d->ops->sync(h->d);
    tern_free(x);
}

static void make_layers(struct checkdev *c, struct layers *h, const struct shape *s)
{
    tern_error err = {0};
    const int n[WEIGHTS] = {s->n, s->ff, s->ff, s->n, s->in, s->k, s->v, 64},
              k[WEIGHTS] = {s->in, s->n, s->n, s->ff, s->n, s->n, s->n, s->n};
    struct tern_dev_rows *rows[] = {&h->x, &h->normed, &h->factors[0], &h->factors[1], &h->bias};
    h->d = c->d[OTHER];
    for (int i = 0; i < WEIGHTS; i++) {
        h->n[i] = n[i];
        h->k[i] = k[i];
        h->bytes[i] = checkdev_source(c, &h->s[i], s->rows ? TERN_Q4_0 : TERN_Q4_K, n[i], k[i]);
        must(tern_dev_rows_new(h->d, &h->y[i], h->n_rows + 1, n[i], &err), &err);
        fill(c, h, h->y[i]);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        must(tern_dev_rows_new(h->d, rows[i], h->n_rows + 1, s->n, &err), &err);
        fill(c, h, *rows[i]);
    }
    load_weights(h);
}

static void free_layers(struct layers *h)
{
    struct tern_dev_rows *rows[] = {&h->x, &h->normed, &h->factors[0], &h->factors[1], &h->bias};
    for (int i = 0; i < WEIGHTS; i++) {
        h->d->ops->weight_drop(h->d, &h->w[i]);
        h->d->ops->release(h->d, h->y[i].mem);
        tern_free(h->bytes[i]);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        h->d->ops->release(h->d, rows[i]->mem);
    h->d->ops->release(h->d, h->m);
}

static struct tern_matmul product(const struct layers *h, int i)
{
    return (struct tern_matmul){.w = &h->w[i], .y = h->y[i]};
}

static void add_norm(const struct layers *h, int plus, int which)
{
    h->d->ops->add(h->d, h->x, h->x, h->y[plus], h->n_rows);
    h->d->ops->norm(h->d, h->normed, h->x, (struct tern_dev_vec){h->factors[which].mem, 0}, 1e-5f, h->n_rows);
}

/* What begins a step: rows that the first layer's product reads. */
static void begin(const struct layers *h)
{
    const struct tern_dev_step s = {.n_rows = h->n_rows};
    const struct tern_matmul first = product(h, IN);
    h->d->ops->begin(h->d, &s);
    h->d->ops->norm(h->d, h->normed, h->x, (struct tern_dev_vec){h->factors[0].mem, 0}, 1e-5f, h->n_rows);
    h->d->ops->matmul(h->d, &first, 1, h->normed, h->n_rows, h->n_wide);
}

/* A layer, whose last products begin the next one.  k is made whole by the way where `apart` is said. */
static void layer(const struct layers *h, bool apart)
{
    const struct tern_dev_ops *ops = h->d->ops;
    const struct tern_matmul out = product(h, OUT), both[] = {product(h, GATE), product(h, UP)},
                             down = product(h, DOWN), last[] = {product(h, IN), product(h, K), product(h, V)};
    struct tern_matmul biased = out;
    biased.bias = (struct tern_dev_vec){h->bias.mem, 0};
    ops->matmul(h->d, apart ? &biased : &out, 1, h->y[IN], h->n_rows, h->n_wide);
    add_norm(h, OUT, 0);
    ops->matmul(h->d, both, 2, h->normed, h->n_rows, h->n_wide);
    ops->glu(h->d, h->y[GATE], h->y[UP], h->n_rows, h->act);
    ops->matmul(h->d, &down, 1, h->y[GATE], h->n_rows, h->n_wide);
    add_norm(h, DOWN, 1);
    ops->matmul(h->d, last, 3, h->normed, h->n_rows, h->n_wide);
    if (apart)
        ops->norm(h->d, h->y[K], h->y[K], (struct tern_dev_vec){h->factors[0].mem, 0}, 1e-5f, h->n_rows);
}

/* Gathers that stand apart, n of them, in steps of their own. */
static void gathers(const struct layers *h, int n)
{
    const struct tern_matmul small = product(h, SMALL);
    while (n > 0) {
        const struct tern_dev_step s = {.n_rows = 1};
        h->d->ops->begin(h->d, &s);
        for (int i = 0; i < 50 && n > 0; i++, n--) {
            h->d->ops->matmul(h->d, &small, 1, h->normed, 1, 0);
            h->d->ops->norm(h->d, h->y[SMALL], h->y[SMALL], (struct tern_dev_vec){h->factors[0].mem, 0}, 1e-5f, 1);
        }
        h->d->ops->end(h->d);
    }
}

/* More kernels between two gathers than a card's queue takes. */
static void long_list(const struct layers *h)
{
    const struct tern_dev_step s = {.n_rows = 1};
    const struct tern_matmul small = product(h, SMALL);
    const struct tern_dev_vec factors = {h->factors[0].mem, 0};
    h->d->ops->begin(h->d, &s);
    for (int i = 0; i < 2; i++) {
        h->d->ops->matmul(h->d, &small, 1, h->normed, 1, 0);
        h->d->ops->norm(h->d, h->y[SMALL], h->y[SMALL], factors, 1e-5f, 1);
        for (int j = 0; j < 1500; j++)
            h->d->ops->scale(h->d, h->y[SMALL], 1, j % 2 ? .5f : 2.0f);
    }
    h->d->ops->end(h->d);
}

/* What a step has written: bits of floats. */
struct kept {
    uint32_t *x[KEPT];
    int n[KEPT];
};

static void keep(const struct layers *h, struct kept *k)
{
    const struct tern_dev_rows all[KEPT] = {h->x,     h->normed, h->y[OUT], h->y[DOWN],
                                            h->y[IN], h->y[K],   h->y[V],   h->y[SMALL]};
    tern_error err = {0};
    for (int i = 0; i < KEPT; i++) {
        k->n[i] = (int)all[i].stride * (h->n_rows - 1) + all[i].width;
        k->x[i] = checkdev_get((size_t)k->n[i], sizeof *k->x[i]);
        h->d->ops->copy_out(h->d, k->x[i], all[i].mem, 0, (size_t)k->n[i] * sizeof *k->x[i]);
        h->d->ops->sync(h->d);
    }
    must(tern_dev_fault(h->d, false, &err), &err);
}

/* How often an emulated driver has been given a kernel; -1: it is another driver. */
static int launched(const char *kernel)
{
    const char *driver = getenv("TERN_CUDA_DRIVER");
    void *lib = driver ? dlopen(driver, RTLD_NOW | RTLD_NOLOAD) : NULL;
    int (*of)(const char *name) = NULL;
    if (lib)
        *(void **)&of = dlsym(lib, "fake_launched");
    return of ? of(kernel) : -1;
}

/* Layers of STEPS steps, each kept. */
static void run(struct layers *h, struct kept k[STEPS])
{
    for (int i = 0; i < h->steps; i++) {
        const int chains = launched(CHAIN), gathers_before = launched(GATHER), sent = launched(SENT);
        begin(h);
        for (int j = 0; j < h->n_layers; j++)
            layer(h, i % 2 == 1 && j == 1);
        h->d->ops->end(h->d);
        h->chains += launched(CHAIN) - chains;
        h->gathers += launched(GATHER) - gathers_before;
        h->sent += launched(SENT) - sent;
        if (i == 0)
            long_list(h);
        keep(h, &k[i]);
        if (i == 0 && h->steps > 1)
            gathers(h, BEFORE_WRAP - 30); /* what is missing is made by the steps: some of them before, some behind */
    }
}

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Microseconds of a layer in a step of 32 of them: the least of some. */
static double layer_us(const struct layers *h)
{
    double least = INFINITY;
    for (int i = 0; i < 20; i++) {
        const double t0 = now();
        begin(h);
        for (int j = 0; j < 32; j++)
            layer(h, false);
        h->d->ops->end(h->d);
        h->d->ops->sync(h->d);
        least = fmin(least, now() - t0);
    }
    return least / 32 * 1e6;
}

static void compare(struct checkdev *c, const char *about, const struct kept one[STEPS], const struct kept many[STEPS])
{
    static const char *const names[KEPT] = {"x", "norm", "out", "down", "in", "k", "v", "small"};
    char line[200];
    for (int i = 0; i < KEPT; i++) {
        int differ = 0, odd = 0;
        for (int s = 0; s < STEPS; s++)
            for (int j = 0; one[s].x[i] && j < one[s].n[i]; j++) {
                differ += one[s].x[i][j] != many[s].x[i][j];
                odd += (one[s].x[i][j] >> 23 & 255) == 255;
            }
        (void)snprintf(line, sizeof line, "%s: %s, numbers that differ", about, names[i]);
        checkdev_line(c, "cards", line, odd ? INFINITY : differ, 0);
    }
}

static void one_shape(struct checkdev *c, const struct tern_dev_ops *one, const struct tern_dev_ops *all, int n,
                      const struct shape *s, bool timed)
{
    const int most = s->ff > s->in ? s->ff : s->in;
    const struct tern_dev_limits l = {
        .max_rows = s->rows ? s->rows : 8, .max_narrow = 8, .max_k = most > s->n ? most : s->n};
    const struct tern_rng rng = c->rng;
    const int steps = s->rows || getenv("CHECKDEV_RACES") ? 1 : STEPS;
    struct kept kept[2][STEPS] = {0};
    double us[2] = {0};
    char about[100], line[200];
    int missing = 0, too_many = 0, sent = 0;
    for (int i = 0; i < 2; i++) {
        struct layers h = {.steps = steps,
                           .n_layers = s->rows ? 1 : LAYERS,
                           .n_rows = s->rows ? s->rows : 1,
                           .n_wide = s->rows,
                           .act = s->v % 2 ? TERN_GATE_GELU : TERN_GATE_SILU};
        c->rng = rng;
        tern_dev_add_first(i ? all : one);
        checkdev_prepare(c, &l);
        make_layers(c, &h, s);
        run(&h, kept[i]);
        us[i] = timed ? layer_us(&h) : 0;
        missing = n * steps * CHAINS - h.chains;
        too_many = h.gathers - (steps == STEPS ? n * APART : 0);
        sent = h.sent;
        free_layers(&h);
    }
    (void)snprintf(about, sizeof about, "%d cards, %s", n, s->name);
    compare(c, about, kept[0], kept[1]);
    if (s->rows && launched(SENT) >= 0) {
        (void)snprintf(line, sizeof line, "%s: products that were not sent as they were made", about);
        checkdev_line(c, "cards", line, abs(2 * n - sent), 0);
    } else if (launched(CHAIN) >= 0) {
        (void)snprintf(line, sizeof line, "%s: chains that are missing", about);
        checkdev_line(c, "cards", line, abs(missing), 0);
        (void)snprintf(line, sizeof line, "%s: gathers that are not part of one", about);
        checkdev_line(c, "cards", line, abs(too_many), 0);
    }
    if (timed)
        printf("cards %d, %s: a layer takes one card %.1f us, all %.1f us\n", n, s->name, us[0], us[1]);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < STEPS; j++)
            for (int k = 0; k < KEPT; k++)
                tern_free(kept[i][j].x[k]);
}

/* Cards 0 to n - 1 as one device; NULL: there are not so many. */
static const struct tern_dev_ops *together(const struct tern_dev_ops *one, int n)
{
    char about[TERN_DEV_NAME];
    const struct tern_dev_ops *of[CARDS], *all;
    tern_error err = {0};
    for (int i = 0; i < n; i++) {
        of[i] = one->card ? one->card(i) : NULL;
        if (!of[i] || of[i]->probe(about, NULL) < 0)
            return NULL;
    }
    must(tern_dev_parallel_new(&all, of, n, &err), &err);
    return all;
}

void check_cards(struct checkdev *c)
{
    /* Shares of three cards are uneven; of the last products some cards have none. */
    static const struct shape shapes[] = {{2304, 2048, 2560, 272, 40, 0, "2304 columns, 2560 between"},
                                          {2048, 2560, 4352, 16, 9, 0, "2048 columns, 4352 between"},
                                          {4096, 4096, 14336, 1024, 1024, 0, "4096 columns, 14336 between"},
                                          {2080, 96, 288, 32, 33, PROMPT, "prompts of 2080 columns, 288 between"}};
    /* races: a step of two cards, for tools that slow kernels down a thousandfold */
    const bool races = getenv("CHECKDEV_RACES") != NULL, quick = races || getenv("CHECKDEV_QUICK") != NULL;
    const struct tern_dev_ops *one = c->d[OTHER]->ops;
    if (!checkdev_wants(c, "cards"))
        return;
    for (int n = 2; n <= (races ? 2 : CARDS); n++) {
        const struct tern_dev_ops *all = together(one, n);
        for (int s = 0; all && s < 4; s++)
            if (!quick || s == (n > 2) || (s == 3 && !races)) /* of two cards the first, of more the second */
                one_shape(c, one, all, n, &shapes[s], s == 2);
    }
    tern_dev_add_first(one);
}

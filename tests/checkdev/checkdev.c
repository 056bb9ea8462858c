/* checkdev [DEVICE [NAME]]: see checkdev.h.  DEVICE: cuda; NAME: rows, products, experts, delta, hyper, spans, best,
 * chain, cards; speed, which checks nothing and tells how fast products are, speed8 those of small floats; picks, which
 * tells what picking tokens takes.  Exit 77 where the device is not there, 1 where a case fails.  TERN_CHECKDEV_SEED:
 * other numbers. */
#include "checkdev.h"

#include <limits.h>
#include "file/file.h"

void *checkdev_get(size_t n, size_t size)
{
    void *p;
    tern_error err;
    if (tern_alloc(&p, n, size, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
    return p;
}

float checkdev_noise(struct checkdev *c)
{
    return (float)(2 * tern_rng_f64(&c->rng) - 1);
}

uint8_t *checkdev_source(struct checkdev *c, struct tern_weight_source *out, int type, int n, int k)
{
    const size_t bytes = (size_t)n * ((size_t)k / (size_t)tern_type_elems(type)) * (size_t)tern_type_bytes(type);
    uint8_t *p = checkdev_get(bytes, 1);
    for (size_t b = 0; b < bytes; b++)
        p[b] = (uint8_t)((tern_rng_u64(&c->rng) >> 56 & 0x9F) | 0x20);
    *out = (struct tern_weight_source){.form = TERN_FORM_PLAIN, .type = type, .name = "w", .data = p};
    return p;
}

int checkdev_source_of(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME],
                       tern_error *err)
{
    (void)err;
    (void)i;
    *out = *(const struct tern_weight_source *)user;
    (void)snprintf(name, TERN_DEV_NAME, "%s", out->name);
    return 0;
}

struct both checkdev_bytes(struct checkdev *c, const void *host, size_t bytes)
{
    struct both b = {.n = bytes / sizeof(float)};
    tern_error err;
    for (int i = 0; i < DEVICES; i++) {
        if (c->d[i]->ops->reserve(c->d[i], &b.m[i], bytes + 64, false, &err) < 0) {
            (void)fprintf(stderr, "%s\n", err.msg);
            exit(1);
        }
        if (host)
            c->d[i]->ops->copy_in(c->d[i], b.m[i], 0, host, bytes);
    }
    return b;
}

struct both checkdev_random(struct checkdev *c, size_t n)
{
    float *x = checkdev_get(n + 1, sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = checkdev_noise(c);
    const struct both b = checkdev_bytes(c, x, n * sizeof *x);
    tern_free(x);
    return b;
}

void checkdev_free(struct checkdev *c, struct both *b)
{
    for (int i = 0; i < DEVICES; i++)
        c->d[i]->ops->release(c->d[i], b->m[i]);
}

void checkdev_out(struct checkdev *c, const struct both *b, int which, void *to, size_t bytes)
{
    tern_error err;
    c->d[which]->ops->copy_out(c->d[which], to, b->m[which], 0, bytes);
    c->d[which]->ops->sync(c->d[which]);
    if (tern_dev_fault(c->d[which], false, &err) < 0) {
        (void)fprintf(stderr, "%s\n", err.msg);
        exit(1);
    }
}

bool checkdev_wants(const struct checkdev *c, const char *name)
{
    return !c->filter || strstr(name, c->filter);
}

void checkdev_begin(struct checkdev *c, int i, const struct tern_row *rows, int n)
{
    const struct tern_dev_step s = {.rows = rows, .n_rows = n};
    c->d[i]->ops->begin(c->d[i], &s);
}

void checkdev_line(struct checkdev *c, const char *name, const char *about, double error, double most)
{
    const bool ok = error <= most;
    c->cases++;
    c->failures += !ok;
    printf("%-4s %-14s %-62s %9.2e  (%.0e)\n", ok ? "ok" : "FAIL", name, about, error, most);
    (void)fflush(stdout);
}

void checkdev_compare(struct checkdev *c, const char *name, const char *about, const struct both *b, size_t stride,
                      int width, int n_rows, double most)
{
    const size_t n = stride * (size_t)n_rows;
    float *x[DEVICES];
    double square = 0, apart = 0;
    for (int i = 0; i < DEVICES; i++) {
        x[i] = checkdev_get(n + 1, sizeof **x);
        checkdev_out(c, b, i, x[i], n * sizeof **x);
    }
    for (int r = 0; r < n_rows; r++)
        for (int i = 0; i < width; i++) {
            const double a = x[OTHER][(size_t)r * stride + (size_t)i], e = x[CPU][(size_t)r * stride + (size_t)i];
            square += e * e;
            apart += (a - e) * (a - e);
        }
    const double error = apart == 0 ? 0 : sqrt(apart / (square + 1e-60));
    checkdev_line(c, name, about, isnan(error) ? INFINITY : error, most);
    for (int i = 0; i < DEVICES; i++)
        tern_free(x[i]);
}

static void close_both(struct checkdev *c)
{
    for (int i = 0; i < DEVICES; i++) {
        tern_dev_close(c->d[i]);
        c->d[i] = NULL;
    }
}

static const char *device = "cuda";

static void open_both(struct checkdev *c)
{
    const char *const names[DEVICES] = {device, "cpu"};
    tern_error err;
    for (int i = 0; i < DEVICES; i++)
        if (tern_dev_open(&c->d[i], names[i], c->pool, &err) < 0) {
            printf("skipped: %s\n", err.msg);
            exit(77);
        }
}

void checkdev_prepare(struct checkdev *c, const struct tern_dev_limits *l)
{
    tern_error err;
    close_both(c);
    open_both(c);
    for (int i = 0; i < DEVICES; i++) {
        struct tern_dev_limits limits = *l;
        limits.exact |= i == CPU; /* in f32: what others are measured by */
        if (c->d[i]->ops->prepare(c->d[i], &limits, &err) < 0) {
            (void)fprintf(stderr, "%s\n", err.msg);
            exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    struct checkdev c = {.filter = argc > 2 ? argv[2] : NULL};
    const char *seed = getenv("TERN_CHECKDEV_SEED");
    tern_error err;
    c.rng.state = seed ? strtoull(seed, NULL, 10) : 1;
    device = argc > 1 ? argv[1] : device;
    if (tern_pool_new(&c.pool, 4, 0, &err) < 0)
        return 1;
    tern_kernels_init(UINT_MAX);
    open_both(&c);
    const struct tern_dev_ops *ops = c.d[OTHER]->ops;
    char about[TERN_DEV_NAME] = "";
    if (ops->probe)
        (void)ops->probe(about, NULL);
    printf("%s: %s\n", ops->name, about);
    check_rows(&c);
    check_products(&c);
    check_chain(&c);
    check_cards(&c);
    check_experts(&c);
    check_delta(&c);
    check_hyper(&c);
    check_spans(&c);
    check_best(&c);
    check_speed(&c);
    check_picks(&c);
    close_both(&c);
    tern_pool_free(c.pool);
    printf("%d cases, %d failed\n", c.cases, c.failures);
    return c.failures ? 1 : 0;
}

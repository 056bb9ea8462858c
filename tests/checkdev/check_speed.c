/* How fast products are: matrices of an 8B model, more of them than any cache holds, in steps as models queue them.
 * Weights are random bytes, so that cards draw what they draw; what comes out is not looked at. */
#include <time.h>
#include "checkdev.h"
#include "file/file.h"

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fill(struct tern_dev *d, struct tern_dev_mem *m, size_t bytes, const uint8_t *noise, size_t n)
{
    for (size_t at = 0; at < bytes; at += n)
        d->ops->copy_in(d, m, at, noise, bytes - at < n ? bytes - at : n);
    d->ops->sync(d);
}

enum { REPS = 9 };

/* The part i of a step. */
typedef void part_fn(struct tern_dev *d, const void *of, int i);

/* Seconds of one of n parts in steps of n_rows rows, REPS times, ascending. */
static void time_steps(double t[REPS], struct tern_dev *d, int n_rows, part_fn *part, const void *of, int n)
{
    tern_error err;
    for (int r = -3; r < REPS; r++) {
        const struct tern_dev_step step = {.n_rows = n_rows};
        d->ops->sync(d);
        const double t0 = now();
        d->ops->begin(d, &step);
        for (int i = 0; i < n; i++)
            part(d, of, i);
        d->ops->end(d);
        d->ops->sync(d);
        if (r >= 0)
            t[r] = (now() - t0) / n;
    }
    if (tern_dev_fault(d, false, &err) < 0)
        printf("%s\n", err.msg);
    qsort(t, REPS, sizeof *t, by_size);
}

struct kind {
    const char *name;
    struct tern_weight_source s;
};

enum { Q4_K, FP8 = 5, KINDS = 8 };
static const struct kind kinds[KINDS] = {
    {"Q4_K", {.type = TERN_Q4_K}},
    {"Q6_K", {.type = TERN_Q6_K}},
    {"Q8_0", {.type = TERN_Q8_0}},
    {"Q4_0", {.type = TERN_Q4_0}},
    {"F16", {.type = TERN_F16}},
    {"FP8", {.form = TERN_FORM_FP8, .scale_type = TERN_F8_E8M0, .group = 128, .group_rows = 128}},
    {"MXFP4", {.type = TERN_MXFP4}},
    {"NVFP4", {.type = TERN_NVFP4}}};

/* One product of x by another matrix each. */
struct products {
    const struct tern_dev_weight *w;
    struct tern_dev_rows x, y;
    int n_rows, n_wide;
};

static void product_part(struct tern_dev *d, const void *of, int i)
{
    const struct products *p = of;
    const struct tern_matmul mm = {.w = &p->w[i], .y = p->y};
    d->ops->matmul(d, &mm, 1, p->x, p->n_rows, p->n_wide);
}

static void one(struct checkdev *c, const struct kind *kind, int n, int k, int n_rows, int n_wide, const uint8_t *noise,
                size_t n_noise)
{
    struct tern_dev *d = c->d[OTHER];
    const struct tern_dev_ops *ops = d->ops;
    const struct tern_weight_source s = kind->s;
    struct tern_dev_weight w[64];
    tern_error err;
    int count = n_wide ? 4 : 64;
    if (ops->weight_plan(d, &w[0], &s, n, k, 1, &err) < 0) {
        printf("%s\n", err.msg);
        return;
    }
    const size_t bytes = ops->weight_bytes(&w[0]);
    while (!n_wide && count > 4 && bytes * (size_t)count > (size_t)1200 << 20)
        count--;
    struct tern_dev_mem *m = NULL;
    struct tern_dev_rows x, y;
    if (ops->reserve(d, &m, bytes * (size_t)count, false, &err) < 0 || tern_dev_rows_new(d, &x, n_rows, k, &err) < 0 ||
        tern_dev_rows_new(d, &y, n_rows, n, &err) < 0) {
        printf("%s\n", err.msg);
        return;
    }
    fill(d, m, bytes * (size_t)count, noise, n_noise);
    fill(d, x.mem, (size_t)n_rows * x.stride * 4, noise, n_noise);
    for (int i = 0; i < count; i++) {
        if (i && ops->weight_plan(d, &w[i], &s, n, k, 1, &err) < 0)
            return;
        ops->weight_place(d, &w[i], m, bytes * (size_t)i);
    }
    const struct products of = {w, x, y, n_rows, n_wide};
    double t[REPS];
    time_steps(t, d, n_rows, product_part, &of, count);
    const double us = t[REPS / 2] * 1e6;
    printf("speed %-6s [%6d, %6d] %5d rows%s  %9.2f us (%.2f .. %.2f)  %7.1f GB/s  %7.1f TFLOP/s\n", kind->name, n, k,
           n_rows, n_wide ? " of prompts" : "           ", us, t[0] * 1e6, t[REPS - 1] * 1e6, (double)bytes / us / 1e3,
           2e-6 * n * k * n_rows / us);
    (void)fflush(stdout);
    for (int i = 0; i < count; i++)
        ops->weight_drop(d, &w[i]);
    ops->release(d, m);
    ops->release(d, x.mem);
    ops->release(d, y.mem);
}

struct layers {
    const struct tern_experts *e;
    struct tern_dev_rows y, x;
    struct tern_dev_mem *ids; /* of all layers */
    struct tern_dev_vec weights;
    int n_rows;
};

static void layer_part(struct tern_dev *d, const void *of, int i)
{
    const struct layers *l = of;
    const struct tern_dev_vec ids = {l->ids, (size_t)i * (size_t)l->n_rows * (size_t)l->e->n_active};
    d->ops->experts(d, l->e, l->y, l->x, ids, l->weights, l->n_rows, 0);
}

/* Layers of experts, each row's another, of the shape that DeepSeek-V4-Flash has: all products of a step with them. */
static void experts(struct checkdev *c, const struct kind *kind, int n_rows, const uint8_t *noise, size_t n_noise)
{
    enum { EMBD = 4096, FF = 2048, ALL = 32, ACTIVE = 6, LAYERS = 8 };
    struct tern_dev *d = c->d[OTHER];
    const struct tern_dev_ops *ops = d->ops;
    const size_t n_ids = (size_t)LAYERS * (size_t)n_rows * ACTIVE;
    struct tern_dev_weight w[3];
    struct tern_dev_mem *m[3] = {NULL};
    int32_t *order = checkdev_get(n_ids, sizeof *order);
    size_t bytes = 0;
    tern_error err;
    for (size_t i = 0; i < n_ids; i++)
        order[i] = (int32_t)(i * 7 % ALL);
    struct both x = checkdev_random(c, (size_t)EMBD * (size_t)n_rows),
                y = checkdev_random(c, (size_t)EMBD * (size_t)n_rows),
                ids = checkdev_bytes(c, order, n_ids * sizeof *order), weights = checkdev_random(c, n_ids);
    for (int i = 0; i < 3; i++) {
        if (ops->weight_plan(d, &w[i], &kind->s, i < 2 ? FF : EMBD, i < 2 ? EMBD : FF, ALL, &err) < 0 ||
            ops->reserve(d, &m[i], ops->weight_bytes(&w[i]), false, &err) < 0) {
            printf("%s\n", err.msg);
            return;
        }
        fill(d, m[i], ops->weight_bytes(&w[i]), noise, n_noise);
        ops->weight_place(d, &w[i], m[i], 0);
        bytes += ops->weight_bytes(&w[i]) / ALL * ACTIVE * (size_t)n_rows;
    }
    const struct tern_experts e = {.n_active = ACTIVE, .gate = &w[0], .up = &w[1], .down = &w[2]};
    const struct layers of = {&e,           rows_of(&y, OTHER, EMBD, EMBD), rows_of(&x, OTHER, EMBD, EMBD),
                              ids.m[OTHER], vec_of(&weights, OTHER),        n_rows};
    double t[REPS];
    time_steps(t, d, n_rows, layer_part, &of, LAYERS);
    printf("speed %-6s %d of %d experts [%d, %d], %d rows  %9.2f us (%.2f .. %.2f)  %7.1f GB/s\n", kind->name, ACTIVE,
           ALL, FF, EMBD, n_rows, t[REPS / 2] * 1e6, t[0] * 1e6, t[REPS - 1] * 1e6, (double)bytes / t[REPS / 2] / 1e9);
    (void)fflush(stdout);
    for (int i = 0; i < 3; i++) {
        ops->weight_drop(d, &w[i]);
        ops->release(d, m[i]);
    }
    struct both *all[] = {&x, &y, &ids, &weights};
    for (int i = 0; i < 4; i++)
        checkdev_free(c, all[i]);
    tern_free(order);
}

/* The kinds of DeepSeek-V4's weights, and their like.  Limits are others afterwards. */
static void small_floats(struct checkdev *c, const uint8_t *noise, size_t n_noise)
{
    static const int shapes[][2] = {{28672, 4096}, {1024, 4096}, {32768, 1024}, {4096, 8192}, {4096, 4096}};
    const struct tern_dev_limits l = {.max_rows = 16,
                                      .max_narrow = 16,
                                      .max_k = 4096,
                                      .max_experts = 32,
                                      .max_active = 6,
                                      .max_expert_embd = 4096,
                                      .max_expert_ff = 2048};
    for (int s = 1; s < 4; s++)
        one(c, &kinds[FP8], shapes[s][0], shapes[s][1], 1, 0, noise, n_noise);
    for (int rows = 1; rows <= 16; rows *= 2)
        for (int kind = FP8; kind < KINDS; kind++)
            for (int s = 0; s < 5; s += 4)
                one(c, &kinds[kind], shapes[s][0], shapes[s][1], rows, 0, noise, n_noise);
    checkdev_prepare(c, &l);
    for (int kind = FP8; kind < KINDS; kind++) {
        experts(c, &kinds[kind], 1, noise, n_noise);
        experts(c, &kinds[kind], 4, noise, n_noise);
    }
}

void check_speed(struct checkdev *c)
{
    static const int shapes[][2] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}, {128256, 4096}};
    const size_t n_noise = (size_t)32 << 20;
    const struct tern_dev_limits l = {.max_rows = 8192, .max_narrow = 256, .max_k = 14336};
    if (!c->filter || !strstr(c->filter, "speed"))
        return;
    checkdev_prepare(c, &l);
    uint8_t *noise = checkdev_get(n_noise, 1);
    for (size_t i = 0; i < n_noise; i++) /* finite, whatever is read there */
        noise[i] = (uint8_t)((tern_rng_u64(&c->rng) >> 56 & 0x9F) | 0x20);
    if (strstr(c->filter, "speed8")) {
        small_floats(c, noise, n_noise);
        tern_free(noise);
        return;
    }
    for (int i = 0; i < KINDS; i++)
        for (int s = 0; s < 5; s++)
            if (i < 1 || s == 2 || s == 1)
                one(c, &kinds[i], shapes[s][0], shapes[s][1], 1, 0, noise, n_noise);
    for (int rows = 2; rows <= 256; rows *= 2)
        for (int s = 0; s < 4; s++)
            if (s == 2 || rows >= 16)
                one(c, &kinds[Q4_K], shapes[s][0], shapes[s][1], rows, 0, noise, n_noise);
    for (int s = 0; s < 4; s++) {
        one(c, &kinds[Q4_K], shapes[s][0], shapes[s][1], 8192, 8192, noise, n_noise);
        one(c, &kinds[Q4_K], shapes[s][0], shapes[s][1], 512, 512, noise, n_noise);
    }
    tern_free(noise);
}

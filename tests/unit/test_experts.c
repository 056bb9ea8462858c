/* Routers against choices written down by hand, experts against sums in double; and a row's answer is the same in every
 * batch, on any number of threads, with tiles too. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "dev/dev.h"
#include "kernel/kernel.h"
#include "tern/tern.h"
#include "tiles_emulated.h"

enum { N = 5, ACTIVE = 2, ROWS = 70, WIDE = 61, MAX_NARROW = ROWS };

static float noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(*state >> 32) / 2147483648.0f;
}

static struct tern_dev *open_dev(struct tern_pool **pool, int threads, int embd, int ff, bool bf16)
{
    struct tern_dev *d;
    tern_error err = {0};
    struct tern_dev_limits lim = {.max_rows = ROWS,
                                  .max_narrow = MAX_NARROW,
                                  .max_k = embd > ff ? embd : ff,
                                  .exact = !bf16,
                                  .max_experts = N,
                                  .max_active = ACTIVE,
                                  .max_expert_embd = embd,
                                  .max_expert_ff = ff};
    assert_int_equal(tern_pool_new(pool, threads, 0, &err), 0);
    assert_int_equal(tern_dev_open(&d, NULL, *pool, &err), 0);
    if (d->ops->prepare(d, &lim, &err) < 0)
        fail_msg("%s", err.msg);
    return d;
}

static void close_dev(struct tern_dev *d, struct tern_pool *pool)
{
    tern_dev_close(d);
    tern_pool_free(pool);
}

static void *get(size_t n, size_t size)
{
    void *p;
    tern_error err = {0};
    assert_int_equal(tern_alloc(&p, n, size, &err), 0);
    return p;
}

/* Device memory with these bytes; NULL: zeros. */
static struct tern_dev_mem *put(struct tern_dev *d, const void *host, size_t bytes)
{
    struct tern_dev_mem *m;
    tern_error err = {0};
    assert_int_equal(d->ops->reserve(d, &m, bytes, false, &err), 0);
    if (host)
        d->ops->copy_in(d, m, 0, host, bytes);
    return m;
}

static void begin_step(struct tern_dev *d, int n_rows)
{
    const struct tern_dev_step step = {.n_rows = n_rows};
    d->ops->begin(d, &step);
}

/* ---- routers ---- */

struct choice {
    struct tern_route r;
    const float *bias, *factors; /* [n_experts] or NULL */
    float logits[8];
    int32_t ids[3];
    double weights[3];
};

static const float bias[8] = {0, 0, 0, 0.9f, 0, 0, 0, 0};

static const float bias_of_roots[8] = {0, 1.2f, 0, -0.9f, 2, 0, 0, 0};

static const float factors[4] = {9, 0.5f, 9, 3};

static const struct choice choices[] = {
    /* softmax: e^0 e^1 e^2 e^3 = 1 2.718 7.389 20.086, sum 31.193 */
    {{4, 2, false, {0}, 1, 1, 1, false, 1, {0}, {0}, false}, NULL, NULL, {0, 3, 1, 2}, {1, 3}, {0.643914, 0.236883}},
    {{4, 2, false, {0}, 1, 1, 1, true, 1, {0}, {0}, false}, NULL, NULL, {0, 3, 1, 2}, {1, 3}, {0.731059, 0.268941}},
    {{4, 2, false, {0}, 1, 1, 1, true, 2.5f, {0}, {0}, false}, NULL, NULL, {0, 3, 1, 2}, {1, 3}, {1.827647, 0.672353}},
    /* of equal ones the lower, and ids ascend whatever the scores */
    {{5, 3, false, {0}, 1, 1, 1, true, 3, {0}, {0}, false}, NULL, NULL, {1, 1, 1, 1, 1}, {0, 1, 2}, {1, 1, 1}},
    {{5, 2, true, {0}, 1, 1, 1, false, 1, {0}, {0}, false}, NULL, NULL, {-1, 0, 2, 0, 3}, {2, 4}, {0.880797, 0.952574}},
    /* a bias chooses but does not weigh */
    {{5, 2, true, {0}, 1, 1, 1, true, 1, {0}, {0}, false}, bias, NULL, {-1, 0, 2, -1, 3}, {3, 4}, {0.220170, 0.779830}},
    /* groups of two: (0.5 + 0.73), (0.88 + 0.02), (0.62 + 0.62), (0.5 + 0.5): the first and third compete */
    {{8, 2, true, {0}, 4, 2, 2, false, 1, {0}, {0}, false},
     NULL,
     NULL,
     {0, 1, 2, -4, 0.5f, 0.5f, 0, 0},
     {1, 4},
     {0.731059, 0.622459}},
    /* ranked by their best alone the second wins, and with one group both experts are its own */
    {{8, 2, false, {0}, 4, 1, 1, true, 1, {0}, {0}, false},
     NULL,
     NULL,
     {0, 1, 2, -4, 0.5f, 0.5f, 0, 0},
     {2, 3},
     {0.997527, 0.002473}},
    /* no logit is a number: still experts that exist */
    {{4, 2, false, {0}, 1, 1, 1, true, 1, {0}, {0}, false}, NULL, NULL, {NAN, NAN, NAN, NAN}, {0, 1}, {NAN, NAN}},
    /* roots of softplus: 1.4583991 .5596979 .9869534 1.7460204 .1347217 .8325546 1.3043823 .7589067 */
    {{8, 3, false, {0}, 1, 1, 1, true, 1.5f, {0}, {0}, true},
     bias_of_roots,
     NULL,
     {2, -1, 0.5f, 3, -4, 0, 1.5f, -0.25f},
     {0, 1, 4},
     {1.0161556, 0.3899756, 0.0938688}},
    /* experts' own factors weigh, after everything else, but do not choose */
    {{4, 2, false, {0}, 1, 1, 1, true, 2.5f, {0}, {0}, false},
     NULL,
     factors,
     {0, 3, 1, 2},
     {1, 3},
     {0.913824, 2.017059}},
};

static void test_routes(void **state)
{
    struct tern_pool *pool;
    struct tern_dev *d = open_dev(&pool, 1, 32, 32, false);
    (void)state;
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const struct choice *c = &choices[i];
        int32_t ids[3];
        float weights[3];
        if (c->r.sqrt_softplus && !d->ops->clamp) /* dev.h: who has that operation knows these scores */
            continue;
        const size_t n = (size_t)c->r.n_experts * sizeof(float), n_active = (size_t)c->r.n_active;
        struct tern_route route = c->r;
        struct tern_dev_mem *all[] = {put(d, c->logits, sizeof c->logits), put(d, NULL, sizeof ids),
                                      put(d, NULL, sizeof weights), c->bias ? put(d, c->bias, n) : NULL,
                                      c->factors ? put(d, c->factors, n) : NULL};
        const struct tern_dev_rows logits = {all[0], 0, 16, c->r.n_experts};
        route.bias.mem = all[3];
        route.factors.mem = all[4];
        begin_step(d, 1);
        d->ops->route(d, &route, logits, (struct tern_dev_vec){all[1], 0}, (struct tern_dev_vec){all[2], 0}, 1);
        d->ops->end(d);
        d->ops->copy_out(d, ids, all[1], 0, n_active * sizeof *ids);
        d->ops->copy_out(d, weights, all[2], 0, n_active * sizeof *weights);
        d->ops->sync(d);
        for (size_t m = 0; m < sizeof all / sizeof *all; m++)
            d->ops->release(d, all[m]);
        for (int j = 0; j < c->r.n_active; j++) {
            if (ids[j] != c->ids[j])
                fail_msg("case %zu: choice %d is %d, expected %d", i, j, ids[j], c->ids[j]);
            if (isnan(c->weights[j]) ? !isnan(weights[j]) : !(fabs(weights[j] - c->weights[j]) < 2e-6))
                fail_msg("case %zu: weight %d is %g, expected %g", i, j, weights[j], c->weights[j]);
        }
    }
    close_dev(d, pool);
}

/* ---- experts ---- */

struct layer {
    int embd, ff;
    int type;
    bool gelu, weigh_input;
    void *file[3]; /* gate, up, down as in a file: [N] */
    float *w[3];   /* what they mean: [N][out][in] */
    float *x, *weights;
    int32_t *ids;
};

static size_t file_bytes(const struct layer *l)
{
    const size_t elems = (size_t)l->embd * (size_t)l->ff;
    return l->type == TERN_F32 ? elems * 4 : elems / 32 * 34;
}

static void make_stack(struct layer *l, int which, uint64_t *seed)
{
    tern_error err = {0};
    size_t elems = (size_t)l->embd * (size_t)l->ff;
    l->w[which] = get(N * elems, sizeof(float));
    l->file[which] = get(N, file_bytes(l));
    for (size_t e = 0; e < N; e++) {
        uint8_t *src = (uint8_t *)l->file[which] + e * file_bytes(l);
        for (size_t i = 0; i < elems; i++) {
            float value = noise(seed);
            if (l->type == TERN_F32)
                memcpy(src + 4 * i, &value, 4);
            else
                src[i / 32 * 34 + 2 + i % 32] = (uint8_t)(int8_t)(value * 100);
        }
        for (size_t b = 0; l->type != TERN_F32 && b < elems / 32; b++)
            memcpy(src + b * 34, &(uint16_t){(uint16_t)(0x2000 + b % 700)}, 2); /* about 2^-7 */
        assert_int_equal(tern_dequantize(l->w[which] + e * elems, l->type, src, elems, &err), 0);
    }
}

/* ---- on a device ---- */

struct loaded {
    struct tern_dev_weight w[3];
    struct tern_dev_mem *memory[3], *x, *ids, *weights, *y;
};

struct stack_file {
    const struct layer *l;
    int which;
};

static int matrix(const void *user, int i, struct tern_weight_source *out, char name[TERN_DEV_NAME], tern_error *err)
{
    const struct stack_file *f = user;
    (void)name, (void)err;
    *out = (struct tern_weight_source){
        .type = f->l->type, .data = (const uint8_t *)f->l->file[f->which] + (size_t)i * file_bytes(f->l), .name = "w"};
    return 0;
}

static void load_stack(struct loaded *to, struct tern_dev *d, const struct layer *l, int which)
{
    tern_error err = {0};
    const struct stack_file file = {l, which};
    const struct tern_dev_source from = {matrix, &file};
    const struct tern_weight_source form = {.type = l->type, .name = "w"};
    const int n = which == 2 ? l->embd : l->ff, k = which == 2 ? l->ff : l->embd;
    assert_int_equal(d->ops->weight_plan(d, &to->w[which], &form, n, k, N, &err), 0);
    to->memory[which] = put(d, NULL, d->ops->weight_bytes(&to->w[which]));
    d->ops->weight_place(d, &to->w[which], to->memory[which], 0);
    assert_int_equal(d->ops->weight_load(d, &to->w[which], &from, &err), 0);
}

static void make_layer(struct layer *l, int embd, int ff, int type, bool gelu, bool weigh_input)
{
    uint64_t seed = 7;
    *l = (struct layer){.embd = embd, .ff = ff, .type = type, .gelu = gelu, .weigh_input = weigh_input};
    for (int i = 0; i < 3; i++)
        make_stack(l, i, &seed);
    l->x = get(ROWS, (size_t)tern_round_up((size_t)embd, 16) * sizeof *l->x);
    l->weights = get(ROWS * ACTIVE, sizeof *l->weights);
    l->ids = get(ROWS * ACTIVE, sizeof *l->ids);
    for (int i = 0; i < ROWS * (int)tern_round_up((size_t)embd, 16); i++)
        l->x[i] = noise(&seed);
    for (int r = 0; r < ROWS; r++) { /* expert 3 has no rows, expert 0 has most of them */
        l->ids[2 * r] = r % 7 ? 0 : 1;
        l->ids[2 * r + 1] = r % 3 ? 2 : 4;
        l->weights[2 * r] = 0.5f + 0.5f * noise(&seed);
        l->weights[2 * r + 1] = 0.5f + 0.5f * noise(&seed);
    }
}

static void free_layer(struct layer *l)
{
    for (int i = 0; i < 3; i++) {
        tern_free(l->w[i]);
        tern_free(l->file[i]);
    }
    tern_free(l->x);
    tern_free(l->weights);
    tern_free(l->ids);
}

static size_t stride_of(const struct layer *l)
{
    return tern_round_up((size_t)l->embd, 16);
}

static double dot(const float *w, const double *x, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)w[i] * x[i];
    return sum;
}

/* One row by the definition. */
static void oracle(const struct layer *l, int row, double *y)
{
    double x[256], h[256];
    memset(y, 0, (size_t)l->embd * sizeof *y);
    for (int j = 0; j < ACTIVE; j++) {
        size_t e = (size_t)l->ids[row * ACTIVE + j], elems = (size_t)l->embd * (size_t)l->ff;
        double weight = l->weights[row * ACTIVE + j];
        for (int i = 0; i < l->embd; i++)
            x[i] = (double)l->x[(size_t)row * stride_of(l) + (size_t)i] * (l->weigh_input ? weight : 1);
        for (int i = 0; i < l->ff; i++) {
            double g = dot(l->w[0] + e * elems + (size_t)i * (size_t)l->embd, x, l->embd);
            double u = dot(l->w[1] + e * elems + (size_t)i * (size_t)l->embd, x, l->embd);
            h[i] = u * (l->gelu ? 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)))
                                : g / (1 + exp(-g)));
        }
        for (int i = 0; i < l->embd; i++)
            y[i] += (l->weigh_input ? 1 : weight) * dot(l->w[2] + e * elems + (size_t)i * (size_t)l->ff, h, l->ff);
    }
}

/* Root mean square of the difference over that of the oracle, rows [row0, row1). */
static double error_of(const struct layer *l, const float *y, int row0, int row1)
{
    double want[256], diff = 0, size = 0;
    for (int r = row0; r < row1; r++) {
        oracle(l, r, want);
        for (int i = 0; i < l->embd; i++) {
            double d = (double)y[(size_t)r * stride_of(l) + (size_t)i] - want[i];
            diff += d * d;
            size += want[i] * want[i];
        }
    }
    return sqrt(diff / size);
}

static void load(struct loaded *to, struct tern_dev *d, const struct layer *l)
{
    for (int i = 0; i < 3; i++)
        load_stack(to, d, l, i);
    to->x = put(d, l->x, ROWS * stride_of(l) * sizeof *l->x);
    to->ids = put(d, l->ids, (size_t)ROWS * ACTIVE * sizeof *l->ids);
    to->weights = put(d, l->weights, (size_t)ROWS * ACTIVE * sizeof *l->weights);
    to->y = put(d, NULL, ROWS * stride_of(l) * sizeof(float));
}

static void unload(struct loaded *from, struct tern_dev *d)
{
    struct tern_dev_mem *all[] = {from->memory[0], from->memory[1], from->memory[2], from->x,
                                  from->ids,       from->weights,   from->y};
    for (int i = 0; i < 3; i++)
        d->ops->weight_drop(d, &from->w[i]);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        d->ops->release(d, all[i]);
}

/* y = the answers of rows [row, row + n). */
static void answer(float *y, const struct layer *l, struct tern_dev *d, const struct loaded *on, int row, int n,
                   int n_wide)
{
    const size_t stride = stride_of(l), at = (size_t)row * ACTIVE;
    const struct tern_experts e = {ACTIVE, &on->w[0], &on->w[1], &on->w[2], l->gelu, l->weigh_input, 0};
    begin_step(d, n);
    d->ops->experts(d, &e, (struct tern_dev_rows){on->y, 0, stride, l->embd},
                    (struct tern_dev_rows){on->x, (size_t)row * stride, stride, l->embd},
                    (struct tern_dev_vec){on->ids, at}, (struct tern_dev_vec){on->weights, at}, n, n_wide);
    d->ops->end(d);
    d->ops->copy_out(d, y, on->y, 0, (size_t)n * stride * sizeof *y);
    d->ops->sync(d);
}

/* All rows; each of them by itself equals its row of the whole. */
static float *run(const struct layer *l, struct tern_dev *d, bool alone)
{
    struct loaded on = {0};
    float *y = get(ROWS, stride_of(l) * sizeof *y), *one = get(1, stride_of(l) * sizeof *one);
    load(&on, d, l);
    answer(y, l, d, &on, 0, ROWS, WIDE);
    for (int r = 0; alone && r < ROWS; r++) {
        answer(one, l, d, &on, r, 1, r < WIDE);
        if (memcmp(one, y + (size_t)r * stride_of(l), (size_t)l->embd * sizeof *y) != 0)
            fail_msg("row %d alone differs from the batch", r);
    }
    unload(&on, d);
    tern_free(one);
    return y;
}

static const struct {
    int embd, ff, type;
    bool gelu, weigh_input;
    double wide, narrow; /* bounds of the error */
} layers[] = {
    {64, 96, TERN_Q8_0, false, false, 1e-6, 2e-2},
    {96, 32, TERN_Q8_0, true, true, 1e-6, 2e-2},
    {40, 24, TERN_F32, false, false, 1e-6, 1e-6}, /* matrices that do not fill their panels */
};
#define N_LAYERS (sizeof layers / sizeof *layers)

static void test_answers(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_LAYERS; i++) {
        struct layer l;
        make_layer(&l, layers[i].embd, layers[i].ff, layers[i].type, layers[i].gelu, layers[i].weigh_input);
        float *first = NULL;
        for (int threads = 1; threads <= 3; threads++) {
            struct tern_pool *pool;
            struct tern_dev *d = open_dev(&pool, threads, l.embd, l.ff, false);
            float *y = run(&l, d, !first);
            if (!first) {
                first = y;
                double wide = error_of(&l, y, 0, WIDE), narrow = error_of(&l, y, WIDE, ROWS);
                print_message("layer %zu: error of prompt rows %.2e, of decode rows %.2e\n", i, wide, narrow);
                assert_true(wide <= layers[i].wide && narrow <= layers[i].narrow);
            } else {
                for (int r = 0; r < ROWS; r++)
                    assert_memory_equal(y + (size_t)r * stride_of(&l), first + (size_t)r * stride_of(&l),
                                        (size_t)l.embd * sizeof *y);
                tern_free(y);
            }
            close_dev(d, pool);
        }
        tern_free(first);
        free_layer(&l);
    }
}

static void test_tiles(void **state)
{
    struct tern_pool *pool;
    struct layer l;
    (void)state;
    make_layer(&l, layers[0].embd, layers[0].ff, layers[0].type, false, false);
    tern_bf16_init_emulated(&tern_k.bf16);
    struct tern_dev *d = open_dev(&pool, 2, l.embd, l.ff, true);
    float *y = run(&l, d, true);
    assert_true(error_of(&l, y, 0, WIDE) <= 1e-2 && error_of(&l, y, WIDE, ROWS) <= layers[0].narrow);
    tern_free(y);
    close_dev(d, pool);
    free_layer(&l);
}

int main(void)
{
    tern_machine m;
    tern_machine_describe(&m); /* kernels are chosen here, once */
    memset(&tern_k.bf16, 0, sizeof tern_k.bf16);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_routes),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_tiles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

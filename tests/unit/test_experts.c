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

/* ---- routers ---- */

struct choice {
    struct tern_route r;
    float logits[8];
    int32_t ids[3];
    double weights[3];
};

static const float bias[8] = {0, 0, 0, 0.9f, 0, 0, 0, 0};

static const float factors[4] = {9, 0.5f, 9, 3};

static const struct choice choices[] = {
    /* softmax: e^0 e^1 e^2 e^3 = 1 2.718 7.389 20.086, sum 31.193 */
    {{4, 2, false, NULL, 1, 1, 1, false, 1, NULL}, {0, 3, 1, 2}, {1, 3}, {0.643914, 0.236883}},
    {{4, 2, false, NULL, 1, 1, 1, true, 1, NULL}, {0, 3, 1, 2}, {1, 3}, {0.731059, 0.268941}},
    {{4, 2, false, NULL, 1, 1, 1, true, 2.5f, NULL}, {0, 3, 1, 2}, {1, 3}, {1.827647, 0.672353}},
    /* of equal ones the lower, and ids ascend whatever the scores */
    {{5, 3, false, NULL, 1, 1, 1, true, 3, NULL}, {1, 1, 1, 1, 1}, {0, 1, 2}, {1, 1, 1}},
    {{5, 2, true, NULL, 1, 1, 1, false, 1, NULL}, {-1, 0, 2, 0, 3}, {2, 4}, {0.880797, 0.952574}},
    /* a bias chooses but does not weigh */
    {{5, 2, true, bias, 1, 1, 1, true, 1, NULL}, {-1, 0, 2, -1, 3}, {3, 4}, {0.220170, 0.779830}},
    /* groups of two: (0.5 + 0.73), (0.88 + 0.02), (0.62 + 0.62), (0.5 + 0.5): the first and third compete */
    {{8, 2, true, NULL, 4, 2, 2, false, 1, NULL}, {0, 1, 2, -4, 0.5f, 0.5f, 0, 0}, {1, 4}, {0.731059, 0.622459}},
    /* ranked by their best alone the second wins, and with one group both experts are its own */
    {{8, 2, false, NULL, 4, 1, 1, true, 1, NULL}, {0, 1, 2, -4, 0.5f, 0.5f, 0, 0}, {2, 3}, {0.997527, 0.002473}},
    /* no logit is a number: still experts that exist */
    {{4, 2, false, NULL, 1, 1, 1, true, 1, NULL}, {NAN, NAN, NAN, NAN}, {0, 1}, {NAN, NAN}},
    /* experts' own factors weigh, after everything else, but do not choose */
    {{4, 2, false, NULL, 1, 1, 1, true, 2.5f, factors}, {0, 3, 1, 2}, {1, 3}, {0.913824, 2.017059}},
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
        d->ops->route(d, &c->r, c->logits, 16, ids, weights, 1);
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
    struct tern_experts e;
    struct tern_packed gate, up, down;
    float *w[3]; /* the weights that the packed ones come back as: [N][out][in] */
    float *x, *weights;
    int32_t *ids;
};

static void *get(size_t n, size_t size)
{
    void *p;
    tern_error err = {0};
    assert_int_equal(tern_alloc(&p, n, size, &err), 0);
    return p;
}

static float *make_stack(struct tern_packed *m, int n, int k, int type, uint64_t *seed)
{
    tern_error err = {0};
    size_t elems = (size_t)n * (size_t)k, file = type == TERN_F32 ? elems * 4 : elems / 32 * 34;
    float *w = get(N * elems, sizeof *w);
    uint8_t *src = get(file, 1), *dst;
    const struct tern_weight_source source = {.type = type, .data = src, .name = "w"};
    assert_int_equal(tern_weight_plan(m, &source, n, k, &err), 0);
    dst = get(N, tern_weight_bytes(m));
    m->data = dst;
    for (int e = 0; e < N; e++) {
        for (size_t i = 0; i < elems; i++) {
            float value = noise(seed);
            if (type == TERN_F32)
                memcpy(src + 4 * i, &value, 4);
            else
                src[i / 32 * 34 + 2 + i % 32] = (uint8_t)(int8_t)(value * 100);
        }
        for (size_t b = 0; type != TERN_F32 && b < elems / 32; b++)
            memcpy(src + b * 34, &(uint16_t){(uint16_t)(0x2000 + b % 700)}, 2); /* about 2^-7 */
        assert_int_equal(tern_weight_pack(m, dst + (size_t)e * tern_weight_bytes(m), &source, 0,
                                          (n + TERN_PANEL - 1) / TERN_PANEL, &err),
                         0);
        assert_int_equal(tern_dequantize(w + (size_t)e * elems, type, src, elems, &err), 0);
    }
    tern_free(src);
    return w;
}

static void make_layer(struct layer *l, int embd, int ff, int type, bool gelu, bool weigh_input)
{
    uint64_t seed = 7;
    *l = (struct layer){.embd = embd, .ff = ff};
    l->e = (struct tern_experts){N, ACTIVE, &l->gate, &l->up, &l->down, gelu, weigh_input};
    l->w[0] = make_stack(&l->gate, ff, embd, type, &seed);
    l->w[1] = make_stack(&l->up, ff, embd, type, &seed);
    l->w[2] = make_stack(&l->down, embd, ff, type, &seed);
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
    tern_free((void *)(uintptr_t)l->gate.data);
    tern_free((void *)(uintptr_t)l->up.data);
    tern_free((void *)(uintptr_t)l->down.data);
    for (int i = 0; i < 3; i++)
        tern_free(l->w[i]);
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
            x[i] = (double)l->x[(size_t)row * stride_of(l) + (size_t)i] * (l->e.weigh_input ? weight : 1);
        for (int i = 0; i < l->ff; i++) {
            double g = dot(l->w[0] + e * elems + (size_t)i * (size_t)l->embd, x, l->embd);
            double u = dot(l->w[1] + e * elems + (size_t)i * (size_t)l->embd, x, l->embd);
            h[i] = u * (l->e.gelu ? 0.5 * g * (1 + tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)))
                                  : g / (1 + exp(-g)));
        }
        for (int i = 0; i < l->embd; i++)
            y[i] += (l->e.weigh_input ? 1 : weight) * dot(l->w[2] + e * elems + (size_t)i * (size_t)l->ff, h, l->ff);
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

static float *run(struct layer *l, struct tern_dev *d, int n_wide)
{
    float *y = get(ROWS, stride_of(l) * sizeof *y);
    d->ops->experts(d, &l->e, y, stride_of(l), l->x, stride_of(l), l->ids, l->weights, ROWS, n_wide);
    return y;
}

/* Every row by itself equals its row of the whole. */
static void assert_rows_alone(struct layer *l, struct tern_dev *d, const float *whole)
{
    float *y = get(1, stride_of(l) * sizeof *y);
    for (int r = 0; r < ROWS; r++) {
        size_t at = (size_t)r * stride_of(l);
        d->ops->experts(d, &l->e, y, stride_of(l), l->x + at, stride_of(l), l->ids + r * ACTIVE,
                        l->weights + r * ACTIVE, 1, r < WIDE);
        if (memcmp(y, whole + at, (size_t)l->embd * sizeof *y) != 0)
            fail_msg("row %d alone differs from the batch", r);
    }
    tern_free(y);
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
            float *y = run(&l, d, WIDE);
            if (!first) {
                first = y;
                double wide = error_of(&l, y, 0, WIDE), narrow = error_of(&l, y, WIDE, ROWS);
                print_message("layer %zu: error of prompt rows %.2e, of decode rows %.2e\n", i, wide, narrow);
                assert_true(wide <= layers[i].wide && narrow <= layers[i].narrow);
                assert_rows_alone(&l, d, y);
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
    float *y = run(&l, d, WIDE);
    assert_true(error_of(&l, y, 0, WIDE) <= 1e-2 && error_of(&l, y, WIDE, ROWS) <= layers[0].narrow);
    assert_rows_alone(&l, d, y);
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

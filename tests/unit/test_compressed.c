/* Operations of layers that cache compressed rows, and of residual streams that mix: closed-form values computed apart,
 * and the choice among rows against sorting, with ties everywhere and more chosen rows than a piece has. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "base/rng.h"
#include "blocks.h"
#include "dev/dev.h"
#include "kv/kv.h"

enum { DIM = 16, RATE = 4, STEP = 1000, CTX = 12000, CHANNELS = 2 * DIM, HEADS = 3, TOP = 1500 };

static struct tern_pool *pool;
static struct tern_dev *d;
static struct tern_kv_layout *layout;
static struct tern_kv_cache cache;
static struct tern_kv_seq *seq;
static struct tern_dev_cache dev_cache;
static struct tern_dev_blocks pages[TERN_KV_MAX_GROUPS];
static const struct tern_compress shape = {.rate = RATE, .overlap = true, .dim = DIM};

static void ok(int rc, const tern_error *err)
{
    if (rc < 0)
        fail_msg("%d: %s", rc, err->msg);
}

static struct tern_dev_mem *room(size_t bytes, const void *host)
{
    struct tern_dev_mem *m;
    tern_error err = {0};
    ok(d->ops->reserve(d, &m, bytes, false, &err), &err);
    if (host)
        d->ops->copy_in(d, m, 0, host, bytes);
    return m;
}

static struct tern_dev_rows rows_of(struct tern_dev_mem *m, int width)
{
    return (struct tern_dev_rows){m, 0, (size_t)width, width};
}

/* A device alone. */
static void open_dev(int threads)
{
    tern_error err = {0};
    tern_kernels_init(~0u);
    ok(tern_pool_new(&pool, threads, 0, &err), &err);
    ok(tern_dev_open(&d, NULL, pool, &err), &err);
}

static void prepare(const struct tern_dev_limits *lim)
{
    tern_error err = {0};
    ok(d->ops->prepare(d, lim, &err), &err);
}

static const struct tern_dev_limits alone = {.max_rows = 1, .max_k = 64, .exact = true};

/* And a cache of one layer with a window, rows of four tokens and keys. */
static void open_all(int threads)
{
    const struct tern_kv_decl decl = {.n_heads = 1,
                                      .dim_v = DIM,
                                      .latent = true,
                                      .reach = {24, false},
                                      .state_bytes = 2 * tern_compress_floats(&shape) * sizeof(float),
                                      .more = {{TERN_KV_ROWS, RATE, 1, DIM}, {TERN_KV_INDEX, RATE, 1, DIM}},
                                      .n_more = 2};
    static const struct tern_attn_shape none;
    tern_error err = {0};
    open_dev(threads);
    ok(tern_kv_layout_new(&layout, &decl, 1, "f32", false, &err), &err);
    ok(tern_kv_cache_init(&cache, layout, &(struct tern_kv_room){1, CTX, STEP, NULL, NULL}, &err), &err);
    ok(tern_kv_seq_new(&cache, &seq, &err), &err);
    tern_kv_dev_cache(&dev_cache, pages, &cache);
    const struct tern_dev_limits lim = {.max_rows = STEP,
                                        .max_narrow = STEP,
                                        .max_k = DIM,
                                        .exact = true,
                                        .caches = &dev_cache,
                                        .n_caches = 1,
                                        .shapes = &none,
                                        .max_jobs = 1,
                                        .max_pages = CTX / TERN_PAGE + 2,
                                        .max_compressed = DIM,
                                        .max_sparse_heads = HEADS,
                                        .max_chosen = TOP,
                                        .max_choose_heads = HEADS};
    prepare(&lim);
}

static void close_all(void)
{
    if (layout) {
        tern_kv_seq_free(&cache, seq);
        tern_kv_cache_clear(&cache);
        tern_kv_layout_free(layout);
        layout = NULL;
    }
    tern_dev_close(d);
    tern_pool_free(pool);
}

static struct tern_dev_table tables[TERN_KV_MAX_GROUPS];
static struct tern_dev_job job;
static struct tern_row tokens[STEP];

static void begin(int n)
{
    tern_error err = {0};
    ok(tern_kv_begin(&cache, seq, n, &err), &err);
    tern_kv_dev_cache(&dev_cache, pages, &cache);
    job = tern_kv_dev_job(seq, 0, tables);
    job.n_rows = n;
    job.wide = true;
    for (int i = 0; i < n; i++)
        tokens[i] = (struct tern_row){0, job.pos0 + i};
    const struct tern_dev_step s = {tokens, n, &dev_cache, 1, &job, 1};
    d->ops->begin(d, &s);
}

static void end(int n)
{
    d->ops->end(d);
    d->ops->sync(d);
    tern_kv_commit(&cache, seq, n);
}

/* ---- grids ------------------------------------------------------------------------------------------------------- */

static void test_grids(void **state)
{
    static const float fp8[] = {0, 2.5f, 2.75f, 0.4375f, -2.25f, -3}, fp4[] = {0, 3, 3, 0.5f, -2, -3, -0.75f, 2};
    float v[64], w[32];
    double sum = 0;
    (void)state;
    open_dev(1);
    prepare(&alone);
    for (int i = 0; i < 64; i++)
        v[i] = (float)(3 * sin(i));
    /* The transform is its own inverse: of a vector's transform comes the vector, on the grid. */
    for (int i = 0; i < 32; i++) {
        double at = 0;
        for (int j = 0; j < 32; j++)
            at += (__builtin_popcount((unsigned)(i & j)) % 2 ? -1 : 1) * 3 * sin(j) / sqrt(32);
        w[i] = (float)at;
    }
    struct tern_dev_mem *a = room(sizeof v, v), *b = room(sizeof w, w);
    const struct tern_dev_step s = {.n_rows = 1};
    d->ops->begin(d, &s);
    d->ops->grid(d, rows_of(a, 64), TERN_GRID_FP8, 1, 1);
    d->ops->grid(d, rows_of(b, 32), TERN_GRID_FP4, 1, 1);
    d->ops->end(d);
    d->ops->copy_out(d, v, a, 0, sizeof v);
    d->ops->copy_out(d, w, b, 0, sizeof w);
    d->ops->sync(d);
    for (size_t i = 0; i < sizeof fp8 / sizeof *fp8; i++)
        assert_true(v[i] == fp8[i]);
    for (int i = 0; i < 64; i++)
        sum += (double)v[i];
    assert_true(sum == 0.15234375);
    sum = 0;
    for (size_t i = 0; i < sizeof fp4 / sizeof *fp4; i++)
        assert_true(w[i] == fp4[i]);
    for (int i = 0; i < 32; i++)
        sum += (double)w[i];
    assert_true(sum == 1.25);
    d->ops->release(d, a);
    d->ops->release(d, b);
    close_all();
}

/* ---- streams ----------------------------------------------------------------------------------------------------- */

/* 20 iterations: with 3 of them one number is off by .087. */
static void test_streams(void **state)
{
    static const double want[24] = {0.6273207, 0.6244977, 0.5072368, 0.3828671, 0.6474912, 0.9165820,
                                    1.2710102, 1.3661506, 0.4333512, 0.1911329, 0.1606812, 0.2148330,
                                    0.0100364, 0.4688462, 0.5125208, 0.0085944, 0.0002667, 0.0044996,
                                    0.2415439, 0.7536933, 0.5563447, 0.3355202, 0.0852530, 0.0228784};
    enum { N = 4, W = 32 };
    const float scale[3] = {0.5f, 0.7f, 3};
    float m[W] = {0}, base[24], streams[N * W], t[W], x[W], before[N * W];
    (void)state;
    open_dev(1);
    prepare(&alone);
    for (int i = 0; i < 24; i++) {
        m[i] = (float)sin(i + 1);
        base[i] = (float)(0.1 * cos(i));
    }
    for (int i = 0; i < N * W; i++) /* of mean square 1 */
        before[i] = streams[i] = i / W % 2 ? (i % 3 ? 1.0f : -1.0f) : (i % 5 ? 1.0f : -1.0f);
    for (int i = 0; i < W; i++)
        t[i] = (float)(i % 7);
    struct tern_dev_mem *all[] = {room(sizeof m, m),         room(sizeof base, base),
                                  room(sizeof scale, scale), room(sizeof streams, streams),
                                  room(sizeof t, t),         room(sizeof x, NULL)};
    const struct tern_hyper h = {
        .n = N, .dim = W, .base = {all[1], 0}, .scale = {all[2], 0}, .iterations = 20, .eps = 1e-6f, .norm_eps = 1e-6f};
    const struct tern_dev_step s = {.n_rows = 1};
    d->ops->begin(d, &s);
    d->ops->hyper_read(d, &h, rows_of(all[0], W), rows_of(all[3], N * W), rows_of(all[5], W), 1);
    d->ops->hyper_write(d, &h, rows_of(all[3], N * W), rows_of(all[0], W), rows_of(all[4], W), 1);
    d->ops->end(d);
    d->ops->copy_out(d, m, all[0], 0, sizeof m);
    d->ops->copy_out(d, streams, all[3], 0, sizeof streams);
    d->ops->copy_out(d, x, all[5], 0, sizeof x);
    d->ops->sync(d);
    for (int i = 0; i < 24; i++)
        assert_true(fabs((double)m[i] - want[i]) < 2e-6);
    for (int i = 0; i < W; i++) {
        double read = 0;
        for (int j = 0; j < N; j++)
            read += want[j] * (double)before[j * W + i];
        assert_true(fabs((double)x[i] - read) < 1e-5);
        for (int k = 0; k < N; k++) { /* the matrix is turned over */
            double write = want[N + k] * (double)t[i];
            for (int j = 0; j < N; j++)
                write += want[2 * N + j * N + k] * (double)before[j * W + i];
            assert_true(fabs((double)streams[k * W + i] - write) < 1e-5);
        }
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        d->ops->release(d, all[i]);
    close_all();
}

/* ---- compressed rows --------------------------------------------------------------------------------------------- */

struct given {
    struct tern_dev_mem *x, *gate, *v, *ape, *norm;
};

/* What a call of compress reads: rows of [CHANNELS], filled by `fill`. */
static struct given give(int n, int pos0, void (*fill)(int pos, float *x, float *gate), const float *ape,
                         const float *norm)
{
    static float x[STEP * CHANNELS], gate[STEP * CHANNELS], v[STEP * DIM];
    for (int i = 0; i < n; i++)
        fill(pos0 + i, x + (size_t)i * CHANNELS, gate + (size_t)i * CHANNELS);
    const size_t bytes = (size_t)n * CHANNELS * sizeof(float);
    return (struct given){room(bytes, x), room(bytes, gate), room((size_t)n * DIM * sizeof(float), v),
                          room(RATE * CHANNELS * sizeof(float), ape), room(DIM * sizeof(float), norm)};
}

static void take_back(struct given *g)
{
    struct tern_dev_mem *all[] = {g->x, g->gate, g->v, g->ape, g->norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        d->ops->release(d, all[i]);
}

static void compress(const struct given *g, enum tern_kv_role role, float eps)
{
    struct tern_compress c = shape;
    c.span = tern_kv_span_of(layout, 0, role);
    c.ape = (struct tern_dev_vec){g->ape, 0};
    c.norm = (struct tern_dev_vec){g->norm, 0};
    c.freq = (struct tern_dev_vec){g->norm, 0};
    c.eps = eps;
    c.state_at = role == TERN_KV_ROWS ? 0 : tern_compress_floats(&shape);
    d->ops->compress(d, &c, rows_of(g->x, CHANNELS), rows_of(g->gate, CHANNELS));
}

/* Row `row` of a span, f32, wherever it lies. */
static void look(enum tern_kv_role role, int row, float *out)
{
    const int span = tern_kv_span_of(layout, 0, role), g = layout->group_of[span];
    const struct tern_kv_layer *y = &layout->layers[span];
    const bool key = role == TERN_KV_INDEX;
    const int page = row / TERN_PAGE, at = row % TERN_PAGE, closed = seq->n_tokens / RATE / TERN_PAGE;
    for (int i = 0; i < DIM; i++) {
        const size_t element = key ? (size_t)i * TERN_PAGE + (size_t)at : (size_t)at * DIM + (size_t)i;
        if (page < closed)
            tern_kv_block_read(&cache.pool[g], seq->table[g].pages[page],
                               y->layer_off + (key ? y->k_off : y->v_off) + element * sizeof(float), &out[i],
                               sizeof(float));
        else
            tern_kv_block_read(&cache.tiles, seq->tile,
                               y->tile_layer_off + (size_t)(page % y->ring) * y->tile_bytes +
                                   (key ? 0 : y->tile_v_off) + element * sizeof(float),
                               &out[i], sizeof(float));
    }
}

/* Channels 0 and 1 of the first set and 0 and 1 of the second are the four of the closed form. */
static int channel_of(int i)
{
    return i % DIM < 2 ? i / DIM * 2 + i % DIM : -1;
}

static void fill_waves(int pos, float *x, float *gate)
{
    for (int i = 0; i < CHANNELS; i++) {
        const int c = channel_of(i);
        x[i] = c < 0 ? 0 : (float)sin(0.3 * pos + c);
        gate[i] = c < 0 ? 0 : (float)cos(0.2 * pos + 0.5 * c);
    }
}

static void check_waves(int step)
{
    static const double want[3][2] = {{0.6275428, -0.2546611}, {0.2825334, 0.6502483}, {0.6265060, 0.2722691}};
    float ape[RATE * CHANNELS] = {0}, norm[DIM], row[DIM];
    open_all(1);
    for (int r = 0; r < RATE; r++)
        for (int i = 0; i < CHANNELS; i++)
            ape[r * CHANNELS + i] = channel_of(i) < 0 ? 0 : (float)(0.1 * (r - channel_of(i)));
    for (int i = 0; i < DIM; i++)
        norm[i] = 1e6f; /* takes back what an eps of 1e12 divides by */
    for (int pos = 0; pos < 12; pos += step) {
        const int n = 12 - pos < step ? 12 - pos : step;
        struct given g = give(n, pos, fill_waves, ape, norm);
        begin(n);
        d->ops->append(d, 0, rows_of(g.v, DIM), rows_of(g.v, DIM));
        compress(&g, TERN_KV_ROWS, 1e12f);
        compress(&g, TERN_KV_INDEX, 1e12f);
        end(n);
        take_back(&g);
    }
    for (int j = 0; j < 3; j++) {
        look(TERN_KV_ROWS, j, row);
        for (int c = 0; c < 2; c++)
            if (!(fabs((double)row[c] - want[j][c]) < 2e-6))
                fail_msg("steps of %d: row %d has %.7f, not %.7f", step, j, (double)row[c], want[j][c]);
    }
    close_all();
}

/* The window before is part of a row whatever step it came in. */
static void test_overlap(void **state)
{
    (void)state;
    for (int step = 1; step <= 12; step++)
        check_waves(step);
}

/* ---- choice ------------------------------------------------------------------------------------------------------ */

static struct tern_rng rng;

/* Keys of +-1 that one token alone decides: scores are whole numbers, and mostly ties. */
static void fill_signs(int pos, float *x, float *gate)
{
    for (int i = 0; i < CHANNELS; i++) {
        x[i] = tern_rng_u64(&rng) & 1 ? 1.0f : -1.0f;
        gate[i] = i >= DIM && pos % RATE == 1 ? 0.0f : -1e6f;
    }
}

static float keys[CTX / RATE][DIM]; /* of the index, as they are cached */

struct scored {
    float score;
    int row;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    return x->score > y->score ? -1 : x->score < y->score ? 1 : x->row - y->row;
}

static int by_row(const void *a, const void *b)
{
    return ((const struct scored *)a)->row - ((const struct scored *)b)->row;
}

/* The choice of a step's row against sorting all scores. */
static void check_choice(const float *q, const float *w, int pos, int top, const int32_t *ids, int count)
{
    static struct scored all[CTX / RATE];
    const int n = (pos + 1) / RATE;
    for (int j = 0; j < n; j++) {
        const float *key = keys[j];
        float score = 0;
        for (int h = 0; h < HEADS; h++) {
            float dot = 0;
            for (int i = 0; i < DIM; i++)
                dot += q[h * DIM + i] * key[i];
            score += w[h] * (dot > 0 ? dot : 0);
        }
        all[j] = (struct scored){score, j};
    }
    qsort(all, (size_t)n, sizeof *all, by_score);
    const int want = n < top ? n : top;
    assert_int_equal(count, want);
    qsort(all, (size_t)want, sizeof *all, by_row);
    for (int i = 0; i < want; i++)
        if (ids[i] != all[i].row)
            fail_msg("at %d, %d of %d rows: number %d is %d, not %d", pos, top, n, i, ids[i], all[i].row);
}

static void test_choice(void **state)
{
    static const int tops[] = {1, 7, 512, 1024, TOP};
    static float q[STEP * HEADS * DIM], w[STEP * 16];
    static int32_t ids[STEP * TOP], counts[STEP];
    float ape[RATE * CHANNELS] = {0}, norm[DIM];
    (void)state;
    rng = (struct tern_rng){5};
    open_all(2);
    for (int i = 0; i < DIM; i++)
        norm[i] = 1;
    while (seq->n_tokens + STEP <= CTX) {
        const int pos0 = seq->n_tokens, n = pos0 % 3 ? STEP - 1 : STEP; /* borders of steps anywhere in a window */
        struct given g = give(n, pos0, fill_signs, ape, norm);
        for (int i = 0; i < n * HEADS * DIM; i++)
            q[i] = (float)((int)(tern_rng_u64(&rng) % 5) - 2);
        for (int i = 0; i < n * 16; i++)
            w[i] = (float)((int)(tern_rng_u64(&rng) % 4) - 1);
        struct tern_dev_mem *all[] = {room((size_t)n * HEADS * DIM * sizeof(float), q),
                                      room((size_t)n * 16 * sizeof(float), w), room(sizeof ids, NULL),
                                      room(sizeof counts, NULL)};
        const int top = tops[pos0 / STEP % 5];
        const struct tern_choose c = {.span = tern_kv_span_of(layout, 0, TERN_KV_INDEX),
                                      .rate = RATE,
                                      .n_heads = HEADS,
                                      .dim = DIM,
                                      .top = top,
                                      .ids = {all[2], 0},
                                      .counts = {all[3], 0}};
        begin(n);
        d->ops->append(d, 0, rows_of(g.v, DIM), rows_of(g.v, DIM));
        compress(&g, TERN_KV_ROWS, 0);
        compress(&g, TERN_KV_INDEX, 0);
        d->ops->choose(d, &c, rows_of(all[0], HEADS * DIM), (struct tern_dev_rows){all[1], 0, 16, HEADS}, n);
        d->ops->copy_out(d, ids, all[2], 0, sizeof ids);
        d->ops->copy_out(d, counts, all[3], 0, sizeof counts);
        end(n);
        for (int j = pos0 / RATE; j < (pos0 + n) / RATE; j++)
            look(TERN_KV_INDEX, j, keys[j]);
        for (int r = 0; r < n; r += r < 8 ? 1 : 331)
            check_choice(q + (size_t)r * HEADS * DIM, w + (size_t)r * 16, pos0 + r, top, ids + (size_t)r * (size_t)top,
                         counts[r]);
        for (size_t i = 0; i < sizeof all / sizeof *all; i++)
            d->ops->release(d, all[i]);
        take_back(&g);
    }
    assert_true(seq->n_tokens / RATE > TOP);
    close_all();
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* One more score than there are rows, which weighs nothing. */
static void test_sink(void **state)
{
    static const float q[HEADS * DIM] = {1, -0.5f, 0.25f, 2};
    static const float v[3 * DIM] = {0.5f, 1, 0, 0.25f, [DIM] = -1, 0.5f, 2, 0.5f, [2 * DIM] = 0, 0, 1, 1};
    static const double want[4] = {-0.0717274, 0.2702691, 0.7808265, 0.5794732};
    const float sinks[HEADS] = {0.3f, 0, 0};
    float q3[3 * HEADS * DIM] = {0}, out[3 * HEADS * DIM];
    (void)state;
    open_all(2);
    memcpy(q3 + 2 * HEADS * DIM, q, sizeof q);
    struct tern_dev_mem *all[] = {room(sizeof q3, q3), room(sizeof v, v), room(sizeof sinks, sinks),
                                  room(sizeof out, NULL)};
    const struct tern_sparse s = {
        .layer = 0, .span = -1, .n_heads = HEADS, .dim = DIM, .scale = 0.5f, .sinks = {all[2], 0}};
    begin(3);
    d->ops->append(d, 0, rows_of(all[1], DIM), rows_of(all[1], DIM));
    d->ops->sparse(d, &s, rows_of(all[0], HEADS * DIM), rows_of(all[3], HEADS * DIM), 3);
    d->ops->copy_out(d, out, all[3], 0, sizeof out);
    end(3);
    for (int i = 0; i < 4; i++)
        assert_true(fabs((double)out[2 * HEADS * DIM + i] - want[i]) < 2e-6);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        d->ops->release(d, all[i]);
    close_all();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grids),  cmocka_unit_test(test_streams), cmocka_unit_test(test_overlap),
        cmocka_unit_test(test_choice), cmocka_unit_test(test_sink),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

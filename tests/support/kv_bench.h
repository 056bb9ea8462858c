/* tests/support/kv_bench.h - one side of a page with everything that its scheme needs, for the tests of KV schemes. */
#ifndef TERN_TEST_KV_BENCH_H
#define TERN_TEST_KV_BENCH_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/cpu.h"
#include "base/mem.h"
#include "base/rng.h"
#include "codec/codec.h"

#define MAX_DIM TERN_KVQ_MAX_DIM

static struct tern_rng rng;

static inline double gauss(void)
{
    double u = 1.0 - tern_rng_f64(&rng), v = tern_rng_f64(&rng);
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v);
}

static inline const struct tern_kv_codec *find(const char *name)
{
    const struct tern_kv_codec *c = tern_kv_codec_find(name, strlen(name));
    assert_non_null(c);
    return c;
}

/* A side with everything that its functions need, and 64 tokens to put into it. */
struct bench {
    struct tern_kv_side side;
    float *sign, *x, *tile; /* x: [64][dim] vectors; tile: the same, in the side's layout, f32 or f16 */
    uint8_t *data;
    uint16_t *head;
    float *decoded;
    void *scratch;
};

static inline void *buffer(size_t n)
{
    void *p;
    assert_int_equal(tern_alloc(&p, n, 1, NULL), 0);
    return p;
}

static inline void bench_open(struct bench *b, const char *scheme, int dim, bool key, bool raw32)
{
    const struct tern_kv_codec *c = find(scheme);
    size_t n = (size_t)dim * 64;
    *b = (struct bench){.side = {.codec = c, .dim = dim, .key = key, .raw32 = raw32}};
    b->sign = buffer((size_t)dim * 4);
    b->x = buffer(n * 4);
    b->tile = buffer(n * 4);
    b->data = buffer(c->data_bytes(dim));
    b->head = buffer(c->head_bytes(dim) + 64);
    b->decoded = buffer(n * 4);
    b->scratch = buffer(TERN_KV_SCRATCH);
    tern_kv_signs(b->sign, dim, 5, key);
    if (c->rotated)
        b->side.sign = b->sign;
}

static inline void bench_close(struct bench *b)
{
    void *all[] = {b->sign, b->x, b->tile, b->data, b->head, b->decoded, b->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
}

/* x through the tile into the page and back.  Where the tile is f16, x becomes what the tile holds. */
static inline void bench_code(struct bench *b)
{
    int dim = b->side.dim;
    for (int t = 0; t < 64; t++) {
        for (int d = 0; d < dim; d++) {
            int at = b->side.key ? d * 64 + t : t * dim + d;
            if (b->side.raw32) {
                b->tile[at] = b->x[t * dim + d];
            } else {
                uint16_t h = tern_f32_to_f16(b->x[t * dim + d]);
                ((uint16_t *)b->tile)[at] = h;
                b->x[t * dim + d] = tern_f16_to_f32(h);
            }
        }
    }
    b->side.codec->encode(&b->side, b->data, b->head, b->tile, 0, b->scratch);
    b->side.codec->decode(&b->side, b->decoded, b->data, b->head);
}

static inline float decoded_at(const struct bench *b, int t, int d)
{
    return b->decoded[b->side.key ? d * 64 + t : t * b->side.dim + d];
}

/* The tables of t4, t3 and t2. */
static const struct tern_kvq_table trellis[] = {
    {.bits = 4,
     .trellis = true,
     .n_prescale = 2,
     .unit = 0.0272788f,
     .entry = {23, -23, 8, -69, 11, -6, 29, 47, 17, -44, -21, 37, -12, 1, -32, 71},
     .b = {24, -55, -42, 16, 54, 42, -32, 16, -7, -25, 32, -20, -13, 8, 0, 1}},
    {.bits = 3,
     .trellis = true,
     .n_prescale = 1,
     .unit = 0.0307758f,
     .entry = {15, 42, -21, 8, 1, -40, -9, 24},
     .b = {-33, 21, 0, -17, 11, 10, -9, 16},
     .c = {-25, 13, -15, 41, -39, 7, 23, -4}},
    {.bits = 2,
     .trellis = true,
     .n_prescale = 1,
     .unit = 0.0227080f,
     .entry = {8, 35, -42, -11, 24, -33, 56, -2, 12, -60, 47, -20, -50, 42, -12, 13},
     .b = {64, -14, 25, -20, -36, -48, 28, 12, 14, 10, -35, 48, -12, 30, -9, -58}},
};

/* Mean relative squared error of normal vectors that go through pages.  `also`, if given, sees every vector in the
 * codec's domain and returns an error to compare with; the mean goes to *other. */
static inline double scheme_error(const char *name, int dim, bool key, int n_tiles,
                                  double (*also)(const float *y, int dim, const void *ctx), const void *ctx,
                                  double *other)
{
    struct bench b;
    bench_open(&b, name, dim, key, true);
    double got = 0, sum = 0;
    for (int i = 0; i < n_tiles; i++) {
        for (int j = 0; j < 64 * dim; j++)
            b.x[j] = (float)gauss();
        bench_code(&b);
        for (int t = 0; t < 64; t++) {
            float *y = b.x + t * dim;
            tern_k.kvq.rotate(y, b.sign, dim, 0);
            double ss = 0, err = 0;
            for (int d = 0; d < dim; d++) {
                double e = (double)y[d] - (double)decoded_at(&b, t, d);
                ss += (double)y[d] * (double)y[d];
                err += e * e;
            }
            got += err / ss;
            sum += also ? also(y, dim, ctx) / ss : 0;
        }
    }
    bench_close(&b);
    if (also)
        *other = sum / (64.0 * n_tiles);
    return got / (64.0 * n_tiles);
}

#endif

/* Schemes of small floats (fp8; fp4 of keys): what lies on their grid is kept bit for bit, anything else goes to the
 * nearest code. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/fp16.h"
#include "base/rng.h"
#include "codec/codec.h"
#include "dev/cpu/cpu.h"

enum { MOST = TERN_KVQ_MAX_DIM };

static struct tern_rng rng;

static const struct scheme {
    const char *name;
    int group, mantissa, low;
    float top;
    enum tern_grid grid;
} schemes[] = {{"fp8", 64, 3, -6, 448, TERN_GRID_FP8}, {"fp4", 32, 1, 0, 6, TERN_GRID_FP4}};

static const struct tern_kv_codec *codec_of(const struct scheme *s)
{
    return s->mantissa == 1 ? tern_kv_codec_fp4() : tern_kv_codec_find(s->name, strlen(s->name));
}

static float normal(void)
{
    double sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (double)(tern_rng_u64(&rng) >> 11) * 0x1p-53;
    return (float)(sum - 6);
}

/* Encodes x[64][dim] as keys or values out of a tile of either width, and decodes it into `out`, [64][dim]; single rows
 * are what the page is. */
static void there_and_back(const struct scheme *s, bool key, bool raw32, int dim, const float *x, float *out)
{
    static uint8_t data[MOST * TERN_PAGE + 64] __attribute__((aligned(64))),
        scratch[TERN_KV_SCRATCH] __attribute__((aligned(64)));
    static uint16_t head[MOST * TERN_PAGE / 32] __attribute__((aligned(64)));
    static float tile[MOST * TERN_PAGE] __attribute__((aligned(64)));
    static float page[MOST * TERN_PAGE] __attribute__((aligned(64))), row[MOST];
    const struct tern_kv_side side = {.codec = codec_of(s), .dim = dim, .key = key, .raw32 = raw32};
    uint16_t *tile16 = (uint16_t *)(void *)tile;
    for (int t = 0; t < TERN_PAGE; t++)
        for (int i = 0; i < dim; i++) {
            const int at = key ? i * TERN_PAGE + t : t * dim + i;
            if (raw32)
                tile[at] = x[t * dim + i];
            else
                tile16[at] = tern_f32_to_f16(x[t * dim + i]);
        }
    assert_true(side.codec->data_bytes(dim) <= sizeof data && side.codec->head_bytes(dim) <= sizeof head);
    memset(data, 0xA5, sizeof data);
    side.codec->encode(&side, data, head, tile, 0, scratch);
    for (size_t i = side.codec->data_bytes(dim); i < sizeof data; i++)
        assert_int_equal(data[i], 0xA5);
    side.codec->decode(&side, page, data, head);
    for (int t = 0; t < TERN_PAGE; t++)
        for (int i = 0; i < dim; i++)
            out[t * dim + i] = page[key ? i * TERN_PAGE + t : t * dim + i];
    for (int t = 0; t < TERN_PAGE && !key && side.codec->decode_row; t++) {
        side.codec->decode_row(&side, row, data, head, t);
        assert_memory_equal(row, out + t * dim, (size_t)dim * sizeof *row);
    }
}

/* Rows of every size that the model itself rounds: bits stay. */
static void test_grid_is_kept(void **state)
{
    static const int dims[] = {16, 32, 64, 80, 128, 448, 512};
    static float x[MOST * TERN_PAGE] __attribute__((aligned(64))), out[MOST * TERN_PAGE];
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (size_t j = 0; j < sizeof dims / sizeof *dims; j++)
            for (int round = 0; round < 8; round++) {
                const struct scheme *s = &schemes[k];
                const int dim = dims[j];
                if (s->grid == TERN_GRID_FP4 && dim & (dim - 1)) /* its transform is of a power of two */
                    continue;
                for (int t = 0; t < TERN_PAGE; t++) {
                    const float size = ldexpf(1, (int)(tern_rng_u64(&rng) % 12) - 6);
                    for (int i = 0; i < dim; i++)
                        x[t * dim + i] = tern_rng_u64(&rng) % 9 ? normal() * size : normal() * size * 30;
                    tern_cpu_to_grid(x + t * dim, dim, s->grid);
                }
                there_and_back(s, round % 2, round % 4 < 2, dim, x, out);
                for (int i = 0; i < dim * TERN_PAGE; i++)
                    if (x[i] != out[i])
                        fail_msg("%s, %d dims: %a became %a", s->name, dim, (double)x[i], (double)out[i]);
            }
}

/* The magnitudes of all codes, ascending. */
static int values_of(const struct scheme *s, float *v)
{
    int n = 0;
    for (int e = 0; n == 0 || v[n - 1] < s->top; e++)
        for (int m = 0; m < 1 << s->mantissa && (n == 0 || v[n - 1] < s->top); m++)
            v[n++] =
                e ? ldexpf(1 + ldexpf((float)m, -s->mantissa), s->low + e - 1) : ldexpf((float)m, s->low - s->mantissa);
    return n;
}

/* x of a group whose scale is `scale`, by looking at all codes; of two as near the even one. */
static float nearest(const float *v, int n, float x, float scale)
{
    const double y = fabs((double)x) / (double)scale;
    int best = 0;
    for (int i = 1; i < n; i++) {
        const double a = fabs((double)v[i] - y), b = fabs((double)v[best] - y);
        best = a < b || (a == b && i % 2 == 0) ? i : best;
    }
    return (x < 0 ? -v[best] : v[best]) * scale;
}

/* Anything: to the nearest code of the smallest scale that clips nothing. */
static void test_nearest(void **state)
{
    static float x[MOST * TERN_PAGE] __attribute__((aligned(64))), out[MOST * TERN_PAGE];
    float v[128];
    (void)state;
    for (size_t k = 0; k < 2; k++) {
        const struct scheme *s = &schemes[k];
        const int dim = 192, n = values_of(s, v);
        assert_true(v[n - 1] == s->top && n == (s->mantissa == 3 ? 127 : 8));
        for (int round = 0; round < 12; round++) {
            for (int t = 0; t < TERN_PAGE; t++) {
                const float size = ldexpf(1, (int)(tern_rng_u64(&rng) % 200) - 120);
                for (int i = 0; i < dim; i++)
                    x[t * dim + i] =
                        (round % 3 ? normal()
                                   : v[tern_rng_u64(&rng) % (uint64_t)n] + v[tern_rng_u64(&rng) % (uint64_t)n]) *
                        size;
            }
            there_and_back(s, round % 2, true, dim, x, out);
            for (int g = 0; g < TERN_PAGE * dim / s->group; g++) {
                const float *in = x + g * s->group;
                float most = 0, scale = 0x1p-127f;
                for (int i = 0; i < s->group; i++)
                    most = fmaxf(most, fabsf(in[i]));
                while ((double)most > (double)s->top * (double)scale)
                    scale *= 2;
                for (int i = 0; i < s->group; i++)
                    if (out[g * s->group + i] != nearest(v, n, in[i], scale))
                        fail_msg("%s: %a became %a, not %a (scale %a)", s->name, (double)in[i],
                                 (double)out[g * s->group + i], (double)nearest(v, n, in[i], scale), (double)scale);
            }
        }
    }
}

/* No scale holds these: a group of zeros, beside others that are what they were. */
static void test_odd_groups(void **state)
{
    static float x[128 * TERN_PAGE] __attribute__((aligned(64))), out[128 * TERN_PAGE];
    (void)state;
    for (size_t k = 0; k < 2; k++)
        for (int key = 0; key < 2; key++) {
            const struct scheme *s = &schemes[k];
            for (int i = 0; i < 128 * TERN_PAGE; i++)
                x[i] = i / s->group % 2 ? 3 : 0;
            x[0] = NAN;
            x[2 * s->group] = INFINITY;
            x[4 * s->group + 1] = -INFINITY;
            there_and_back(s, key, true, 128, x, out);
            for (int i = 0; i < 128 * TERN_PAGE; i++)
                assert_true(out[i] == (i / s->group % 2 ? 3.0f : 0.0f));
        }
}

static int init(void **state)
{
    (void)state;
    tern_kernels_init(~0u);
    rng = (struct tern_rng){11};
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grid_is_kept), cmocka_unit_test(test_nearest),
                                       cmocka_unit_test(test_odd_groups)};
    return cmocka_run_group_tests(tests, init, NULL);
}

/* Quantising: what is written must come back through the reader of each type, within bounds that follow from the
 * formats, never worse than the plain rule, and degenerate blocks must do no harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/fp16.h"
#include "codec/codec.h"

enum { N = 256 * 24 };

static const int types[] = {TERN_F32, TERN_F16, TERN_BF16, TERN_Q8_0, TERN_Q4_0, TERN_Q5_0, TERN_Q4_K, TERN_Q6_K};

static float x[N], y[N];
static uint8_t bytes[N * 4];

static double uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

/* Roughly normal, with a heavy tail; every block of 256 at another scale and some of them off centre. */
static void fill(uint64_t seed)
{
    for (int i = 0; i < N; i++) {
        double v = 0;
        for (int k = 0; k < 6; k++)
            v += uniform(&seed) - 0.5;
        if (uniform(&seed) < 0.01)
            v *= 5;
        x[i] = (float)((v + (i / 256 % 3 == 1 ? 0.4 : 0)) * pow(2, i / 256 % 7 - 5));
    }
}

static void round_trip(int type, size_t n)
{
    tern_error err = {0};
    assert_int_equal(tern_quantize(bytes, type, x, n, &err), 0);
    assert_int_equal(tern_dequantize(y, type, bytes, n, &err), 0);
}

/* Root of the mean square error over that of the values. */
static double relative_error(size_t n)
{
    double e = 0, s = 0;
    for (size_t i = 0; i < n; i++) {
        e += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
        s += (double)x[i] * (double)x[i];
    }
    return sqrt(e / s);
}

/* The plain rules: one rounding with the scale that the extreme values ask for. */
static double plain_error(int type)
{
    const int half = type == TERN_Q4_0 ? 8 : type == TERN_Q5_0 ? 16 : 32, n = type == TERN_Q6_K ? 16 : 32;
    double e = 0, s = 0;
    for (int b = 0; b < N / n; b++) {
        const float *v = x + b * n;
        double most = 0, lo = 0, hi = 0;
        for (int i = 0; i < n; i++) {
            most = fabs(v[i]) > fabs(most) ? v[i] : most;
            lo = fmin(lo, v[i]);
            hi = fmax(hi, v[i]);
        }
        for (int i = 0; i < n; i++) {
            double d = type == TERN_Q4_K ? (hi - lo) / 15 : most / -half, min = type == TERN_Q4_K ? -lo : 0;
            double q = d != 0 ? rint((v[i] + min) / d) : 0, top = type == TERN_Q4_K ? 15 : half - 1;
            double back = d * fmin(fmax(q, type == TERN_Q4_K ? 0 : -half), top) - min;
            e += (v[i] - back) * (v[i] - back);
            s += (double)v[i] * v[i];
        }
    }
    return sqrt(e / s);
}

static void test_errors_bounded(void **state)
{
    /* F16 and BF16 have 11 and 8 bits; the others were measured, plus a tenth. */
    static const double most[] = {0, 0x1p-11, 0x1p-8, 7.4e-3, 0.124, 0.0615, 0.087, 0.0235};
    (void)state;
    fill(1);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        round_trip(types[t], N);
        double e = relative_error(N);
        print_message("%-5s relative error %.5f\n", tern_type_name(types[t]), e);
        assert_true(e <= most[t]);
    }
}

static void test_better_than_plain(void **state)
{
    static const int searched[] = {TERN_Q4_0, TERN_Q5_0, TERN_Q4_K, TERN_Q6_K};
    static const double most[] = {0.975, 0.98, 0.94, 0.975};
    (void)state;
    for (uint64_t seed = 2; seed < 5; seed++) {
        fill(seed);
        for (size_t t = 0; t < sizeof searched / sizeof *searched; t++) {
            round_trip(searched[t], N);
            double e = relative_error(N), plain = plain_error(searched[t]);
            print_message("%-5s %.5f, plain %.5f: %.3f\n", tern_type_name(searched[t]), e, plain, e / plain);
            /* The plain rule's scales are not even rounded here. */
            assert_true(e < plain * most[t]);
        }
    }
}

/* Every element alone: no further off than a whole step of its block. */
static void test_every_element(void **state)
{
    static const double steps[] = {0, 0x1p-11, 0x1p-8, 1.01 / 254, 1.0 / 7.1, 1.0 / 15.1, 1.0 / 13, 1.0 / 30};
    (void)state;
    fill(7);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        round_trip(types[t], N);
        for (int i = 0; i < N; i++) {
            double range = fabs(x[i]);
            for (int k = 0; t > 2 && k < 256; k++) /* the groups of K types share their scales */
                range =
                    fmax(range, 2 * fabs(x[(types[t] == TERN_Q4_K || types[t] == TERN_Q6_K ? i / 256 * 256 + k
                                                                                           : i / 32 * 32 + k % 32)]));
            assert_true(fabs((double)x[i] - (double)y[i]) <= steps[t] * range + 0x1p-25);
        }
    }
}

static void test_blocks_alone(void **state)
{
    static uint8_t whole[N * 4];
    (void)state;
    fill(11);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const size_t elems = (size_t)tern_type_elems(types[t]), size = (size_t)tern_type_bytes(types[t]);
        assert_int_equal(tern_quantize(whole, types[t], x, N, NULL), 0);
        for (size_t e = 0; e < N; e += elems) {
            uint8_t one[256];
            assert_int_equal(tern_quantize(one, types[t], x + e, elems, NULL), 0);
            assert_memory_equal(one, whole + e / elems * size, size);
        }
        assert_int_equal(tern_quantize(whole, types[t], x, 0, NULL), 0);
    }
}

static void test_degenerate(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        const bool wide = types[t] == TERN_F32 || types[t] == TERN_BF16;
        memset(x, 0, sizeof x);
        round_trip(types[t], 256);
        for (int i = 0; i < 256; i++)
            assert_true(y[i] == 0);
        for (int i = 0; i < 256; i++) /* below everything that a scale of 16 bits can say */
            x[i] = i % 2 ? 1e-40f : -3e-45f;
        round_trip(types[t], 256);
        for (int i = 0; i < 256; i++)
            assert_true(fabsf(y[i] - x[i]) <= 1e-7f);
        memset(x, 0, sizeof x);
        x[37] = -60000; /* one huge value */
        round_trip(types[t], 256);
        for (int i = 0; i < 256; i++)
            assert_true(fabsf(y[i] - x[i]) <= (i == 37 ? 300 : 0));
        for (int i = 0; i < 256; i++)
            x[i] = -0.75f; /* all equal */
        round_trip(types[t], 256);
        for (int i = 0; i < 256; i++)
            assert_true(fabsf(y[i] - x[i]) <= 0.75f * 0.005f);
        for (int i = 0; i < 256; i++)
            x[i] = 3e38f;
        assert_int_equal(tern_quantize(bytes, types[t], x, 256, NULL), wide ? 0 : TERN_EUNSUPPORTED);
    }
}

static void test_refused(void **state)
{
    tern_error err = {0};
    (void)state;
    fill(13);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        float kept = x[77];
        x[77] = NAN;
        assert_int_equal(tern_quantize(bytes, types[t], x, 256, &err), TERN_EFORMAT);
        assert_string_equal(err.msg, "element 77 is not a number");
        x[77] = -INFINITY;
        assert_int_equal(tern_quantize(bytes, types[t], x, 256, &err), TERN_EFORMAT);
        assert_string_equal(err.msg, "element 77 is infinite");
        x[77] = kept;
        if (tern_type_elems(types[t]) > 1)
            assert_int_equal(tern_quantize(bytes, types[t], x, 16, &err), TERN_EINVAL);
    }
    assert_int_equal(tern_quantize(bytes, TERN_Q3_K, x, 256, &err), TERN_EUNSUPPORTED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_errors_bounded), cmocka_unit_test(test_better_than_plain),
        cmocka_unit_test(test_every_element),  cmocka_unit_test(test_blocks_alone),
        cmocka_unit_test(test_degenerate),     cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

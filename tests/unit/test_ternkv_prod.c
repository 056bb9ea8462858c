/* TurboQuant_prod in libternkv: its inner products have no bias and the variance that the paper bounds, and that
 * variance against the codes of the cache at equal bits. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "base/mem.h"
#include "base/rng.h"
#include "tern/kvq.h"

static struct tern_rng rng;

static float gauss(void)
{
    double u = 1.0 - tern_rng_f64(&rng), v = tern_rng_f64(&rng);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static void *buffer(size_t bytes)
{
    void *p;
    assert_int_equal(tern_alloc(&p, bytes, 1, NULL), 0);
    return p;
}

static double dot(const float *a, const float *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static ternkv_prod *open_prod(int dim, int bits, int layer)
{
    tern_error err = {0};
    ternkv_prod *p;
    if (ternkv_prod_open(&p, dim, bits, layer, &err) < 0)
        fail_msg("%s", err.msg);
    return p;
}

/* Relative squared error of Lloyd-Max codes at 0, 1, 2 .. bits: what is left for the residual. */
static const double scalar_error[] = {1, 0.36338023, 0.11748185, 0.03454776, 0.00950101};

/* One vector and one query under many signs and projections: normal ones; a spike, which no rotation of signs and adds
 * makes normal; a query that is the vector itself, whose inner product plain codes shrink most.  The variance of the
 * projection given the residual's norm is bounded for all, and that norm is the paper's where rotated vectors are
 * normal. */
static void test_unbiased(void **state)
{
    (void)state;
#ifdef TERN_TEST_FEW /* the figures themselves are for the build without sanitizers */
    enum { DIM = 64, DRAWS = 1000, CASES = 3 };
#else
    enum { DIM = 64, DRAWS = 3000, CASES = 3 };
#endif
    float x[CASES][DIM], q[CASES][DIM];
    uint8_t *code = buffer(DIM + 8);
    rng.state = 1;
    for (int d = 0; d < DIM; d++) {
        x[0][d] = gauss();
        q[0][d] = gauss() + x[0][d];
        x[1][d] = d == 5 ? 9.0f : 0.1f * gauss();
        q[1][d] = 0.3f + 0.1f * gauss();
        x[2][d] = q[2][d] = 3 + gauss();
    }
    for (int bits = 1; bits <= 5; bits++) {
        double sum[CASES] = {0}, squares[CASES] = {0}, residual[CASES] = {0};
        for (int layer = 0; layer < DRAWS; layer++) {
            ternkv_prod *p = open_prod(DIM, bits, layer);
            for (int c = 0; c < CASES; c++) {
                float s;
                assert_int_equal(ternkv_prod_encode(p, code, x[c], 1, NULL), 0);
                assert_int_equal(ternkv_prod_score(p, &s, q[c], 1, code, 1, NULL), 0);
                double e = (double)s - dot(q[c], x[c], DIM);
                float norm;
                memcpy(&norm, code + 4, sizeof norm);
                sum[c] += e;
                squares[c] += e * e;
                residual[c] += (double)norm * (double)norm / DRAWS;
            }
            ternkv_prod_close(&p);
        }
        for (int c = 0; c < CASES; c++) {
            double mean = sum[c] / DRAWS, var = squares[c] / DRAWS;
            double bound = M_PI / (2 * DIM) * dot(q[c], q[c], DIM) * residual[c];
            double paper = dot(x[c], x[c], DIM) * scalar_error[bits - 1];
            print_message("%d bits, case %d: bias %+.2f standard errors, variance %.3f of its bound, residual %.3f\n",
                          bits, c, mean / sqrt(var / DRAWS), var / bound, residual[c] / paper);
            assert_true(fabs(mean) < 4 * sqrt(var / DRAWS));
            assert_true(var < bound * (1 + 4 * sqrt(2.0 / DRAWS)));
            assert_true(c == 1 || residual[c] < 1.01 * paper);
        }
    }
    tern_free(code);
}

/* Mean squared error of scores of plain codes, times dim / (|q|^2 |x|^2). */
static double plain_error(const char *scheme, const float *q, const float *x, int dim, int n)
{
    ternkv_side *side;
    ternkv_params params = {.scheme = scheme, .dim = dim, .key = true};
    assert_int_equal(ternkv_open(&side, &params, NULL), 0);
    const ternkv_info *info = ternkv_get_info(side);
    void *page = buffer(info->page_bytes), *scratch = buffer(info->scratch_bytes);
    ternkv_query *query = buffer(ternkv_query_bytes(side, 1));
    float *s = buffer(64 * sizeof *s);
    double sum = 0;
    for (int t = 0; t < n; t += 64) {
        assert_int_equal(ternkv_encode(side, page, x + t * dim, 64, scratch, NULL), 0);
        for (int i = 0; i < 64; i++) {
            const float *qi = q + (t + i) * dim, *xi = x + (t + i) * dim;
            assert_int_equal(ternkv_prep(side, query, qi, 1, NULL), 0);
            assert_int_equal(ternkv_score(side, s, query, page, NULL), 0);
            double e = (double)s[i] - dot(qi, xi, dim);
            sum += e * e * dim / (dot(qi, qi, dim) * dot(xi, xi, dim));
        }
    }
    ternkv_close(&side);
    void *all[] = {page, scratch, query, s};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        tern_free(all[i]);
    return sum / n;
}

static double prod_error(int bits, const float *q, const float *x, int dim, int n)
{
    ternkv_prod *p = open_prod(dim, bits, 0);
    void *code = buffer(ternkv_prod_bytes(p));
    double sum = 0;
    for (int t = 0; t < n; t++) {
        float s;
        assert_int_equal(ternkv_prod_encode(p, code, x + t * dim, 1, NULL), 0);
        assert_int_equal(ternkv_prod_score(p, &s, q + t * dim, 1, code, 1, NULL), 0);
        double e = (double)s - dot(q + t * dim, x + t * dim, dim);
        sum += e * e * dim / (dot(q + t * dim, q + t * dim, dim) * dot(x + t * dim, x + t * dim, dim));
    }
    tern_free(code);
    ternkv_prod_close(&p);
    return sum / n;
}

/* docs/kv-cache.md has this table. */
static void test_against_plain_codes(void **state)
{
    (void)state;
#ifdef TERN_TEST_FEW
    enum { DIM = 128, N = 64 * 40 };
#else
    enum { DIM = 128, N = 64 * 80 };
#endif
    float *q = buffer(N * DIM * sizeof *q), *x = buffer(N * DIM * sizeof *x);
    rng.state = 2;
    for (int j = 0; j < N * DIM; j++) {
        q[j] = gauss();
        x[j] = gauss();
    }
    print_message("squared error of scores, times dim / (|q|^2 |x|^2)\n");
    for (int bits = 2; bits <= 4; bits++) {
        const char l[] = {'l', (char)('0' + bits), 0}, t[] = {'t', (char)('0' + bits), 0};
        double prod = prod_error(bits, q, x, DIM, N), plain = plain_error(l, q, x, DIM, N);
        double trellis = plain_error(t, q, x, DIM, N);
        print_message("%d bits: prod %.4f, %s %.4f (1 : %.2f), %s %.4f (1 : %.2f)\n", bits, prod, l, plain,
                      prod / plain, t, trellis, prod / trellis);
        assert_true(prod > 4 * plain && prod < 7 * plain);
        assert_true(plain > trellis);
        assert_true(fabs(prod / (M_PI / 2 * scalar_error[bits - 1]) - 1) < 0.06);
    }
    tern_free(q);
    tern_free(x);
}

/* A vector's code and score are its own, whatever stands beside it; the bytes are those that were promised. */
static void test_vectors_are_their_own(void **state)
{
    (void)state;
    enum { N = 7, N_Q = 3 };
    static const int dims[] = {32, 80, 96, 512};
    rng.state = 3;
    for (int i = 0; i < 4; i++)
        for (int bits = 1; bits <= 5; bits += 2) {
            int dim = dims[i];
            ternkv_prod *p = open_prod(dim, bits, 4), *again = open_prod(dim, bits, 4),
                        *other = open_prod(dim, bits, 5);
            size_t bytes = ternkv_prod_bytes(p);
            assert_int_equal(bytes, (dim * bits / 8 + 3) / 4 * 4 + 8);
            float *x = buffer(N * (size_t)dim * 4), *q = buffer(N_Q * (size_t)dim * 4), s[N_Q * N], one;
            uint8_t *codes = buffer(N * bytes + 1), *single = buffer(bytes + 1);
            for (int j = 0; j < N * dim; j++)
                x[j] = gauss();
            for (int j = 0; j < N_Q * dim; j++)
                q[j] = gauss();
            memset(x, 0, (size_t)dim * 4);
            x[2 * dim + 3] = NAN;
            x[3 * dim + 3] = INFINITY;
            codes[N * bytes] = single[bytes] = 0x5A;
            assert_int_equal(ternkv_prod_encode(p, codes, x, N, NULL), 0);
            assert_int_equal(codes[N * bytes], 0x5A);
            assert_int_equal(ternkv_prod_score(p, s, q, N_Q, codes, N, NULL), 0);
            for (int j = 0; j < N; j++) {
                assert_int_equal(ternkv_prod_encode(again, single, x + j * dim, 1, NULL), 0);
                assert_int_equal(single[bytes], 0x5A);
                assert_memory_equal(single, codes + (size_t)j * bytes, bytes);
                for (int r = 0; r < N_Q; r++) {
                    assert_int_equal(ternkv_prod_score(again, &one, q + r * dim, 1, single, 1, NULL), 0);
                    assert_true(one == s[r * N + j] && isfinite(one));
                    assert_true((one == 0) == (j == 0 || j == 2 || j == 3));
                }
            }
            assert_int_equal(ternkv_prod_encode(other, single, x + dim, 1, NULL), 0);
            assert_memory_not_equal(single, codes + bytes, bytes);
            ternkv_prod_close(&p);
            assert_null(p);
            ternkv_prod_close(&again);
            ternkv_prod_close(&other);
            ternkv_prod_close(&other); /* of nothing */
            ternkv_prod_close(NULL);
            tern_free(x);
            tern_free(q);
            tern_free(codes);
            tern_free(single);
        }
}

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        int dim, bits, layer;
        const char *names;
    } cases[] = {{64, 0, 0, "not 0"}, {64, 6, 0, "not 6"},  {64, 3, -1, "layer -1"},  {0, 3, 0, "0 dims"},
                 {40, 3, 0, "40"},    {1024, 3, 0, "1024"}, {352, 3, 0, "odd factor"}};
    tern_error err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ternkv_prod *p = (ternkv_prod *)&err;
        assert_int_equal(ternkv_prod_open(&p, cases[i].dim, cases[i].bits, cases[i].layer, &err), TERN_EINVAL);
        assert_null(p);
        if (!strstr(err.msg, cases[i].names))
            fail_msg("\"%s\" does not say \"%s\"", err.msg, cases[i].names);
    }
    ternkv_prod *p = open_prod(32, 2, 0);
    float x[32] = {1}, s = 7;
    _Alignas(8) uint8_t codes[32] = {0};
    assert_int_equal(ternkv_prod_encode(p, codes + 1, x, 1, &err), TERN_EINVAL);
    assert_int_equal(ternkv_prod_encode(p, codes, x, -1, &err), TERN_EINVAL);
    assert_int_equal(ternkv_prod_score(p, &s, x, -1, codes, 1, &err), TERN_EINVAL);
    assert_int_equal(ternkv_prod_score(p, &s, x, 1, codes, -1, &err), TERN_EINVAL);
    assert_int_equal(ternkv_prod_score(p, &s, x, 1, codes + 2, 1, &err), TERN_EINVAL);
    assert_true(s == 7 && !codes[0] && !codes[4]);
    assert_int_equal(ternkv_prod_encode(p, codes, x, 0, &err), 0);
    ternkv_prod_close(&p);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unbiased),
        cmocka_unit_test(test_against_plain_codes),
        cmocka_unit_test(test_vectors_are_their_own),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* affine8, affine4, g16, g16_3, g16_2: bytes as docs/kv-page.md describes them, the rules of the engines that they come
 * from, and attention that is the same bit for bit on codes and on decoded pages. */
#include "kv_bench.h"

static const char *const names[] = {"affine8", "affine4", "g16", "g16_3", "g16_2"};
#define N_NAMES (int)(sizeof names / sizeof *names)

/* Lloyd-Max levels above zero, for 4, 3 and 2 bits. */
static const double normal4[8] = {0.12839503, 0.38804830, 0.65675912, 0.94234046,
                                  1.25623120, 1.61804639, 2.06901723, 2.73258957};
static const double normal3[4] = {0.24509418, 0.75600528, 1.34390928, 2.15194570};
static const double normal2[2] = {0.45278003, 1.51041761};
static const double *const normals[5] = {[4] = normal4, [3] = normal3, [2] = normal2};

/* Level of a code of so many bits. */
static double level_of(int code, int bits)
{
    const int half = 1 << (bits - 1);
    return code < half ? -normals[bits][half - 1 - code] : normals[bits][code - half];
}

static int group_of(const struct bench *b)
{
    return b->side.codec->rotated ? 16 : 64;
}

/* The element of token t and dim d, taken from the bytes by the book. */
static int code_at(const struct bench *b, int t, int d)
{
    int row = b->side.key ? d : t, lane = b->side.key ? t : d, lanes = b->side.key ? 64 : b->side.dim;
    if (b->side.codec->bits == 8)
        return b->data[row * lanes + lane];
    if (b->side.codec->bits == 4)
        return b->data[row / 2 * lanes + lane] >> (row % 2 * 4) & 15;
    int low = b->data[row / 4 * lanes + lane] >> (row % 4 * 2) & 3;
    const uint8_t *high = b->data + b->side.dim * 64 / 4;
    return b->side.codec->bits == 2 ? low : low | (high[row / 8 * lanes + lane] >> row % 8 & 1) << 2;
}

static float scale_at(const struct bench *b, int t, int d)
{
    return tern_f16_to_f32(b->head[d / group_of(b) * 64 + t]);
}

static float bias_at(const struct bench *b, int t, int d)
{
    int n_groups = (b->side.dim + 63) / 64;
    return tern_f16_to_f32(b->head[(n_groups + d / 64) * 64 + t]);
}

static void fill(struct bench *b, double size)
{
    for (int j = 0; j < 64 * b->side.dim; j++)
        b->x[j] = (float)(gauss() * size);
}

static void test_bytes(void **state)
{
    (void)state;
    static const int dims[] = {32, 64, 80, 128, 48, 256, 512};
    rng.state = 1;
    for (int c = 0; c < 4 * 7 * N_NAMES; c++) {
        struct bench b;
        int dim = dims[c / 4 % 7];
        bench_open(&b, names[c / 28], dim, c & 1, c / 2 & 1);
        fill(&b, 3);
        bench_code(&b);
        for (int t = 0; t < 64; t++)
            for (int d = 0; d < dim; d++) {
                int code = code_at(&b, t, d);
                float want = b.side.codec->rotated ? scale_at(&b, t, d) * (float)level_of(code, b.side.codec->bits)
                                                   : scale_at(&b, t, d) * (float)code + bias_at(&b, t, d);
                assert_true(decoded_at(&b, t, d) == want);
            }
        bench_close(&b);
    }
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int dim;
        double bits; /* per value; 0: refused */
    } cases[] = {{"affine8", 128, 8.5},
                 {"affine8", 64, 8.5},
                 {"affine8", 32, 9},
                 {"affine8", 96, 8 + 64 / 96.0},
                 {"affine4", 128, 4.5},
                 {"affine4", 512, 4.5},
                 {"affine4", 80, 4 + 2 * 32 / 80.0},
                 {"affine4", 72, 0},
                 {"affine4", 544, 0},
                 {"affine4", 352, 4 + 6 * 32 / 352.0},
                 {"g16", 128, 5},
                 {"g16", 96, 5},
                 {"g16", 32, 5},
                 {"g16_3", 128, 4},
                 {"g16_3", 80, 4},
                 {"g16_2", 128, 3},
                 {"g16_2", 48, 3},
                 {"g16", 352, 0},
                 {"g16", 48, 5},
                 {"g16", 40, 0},
                 {"affine8", 0, 0},
                 {"affine8", -64, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *why = NULL;
        const struct tern_kv_codec *c = find(cases[i].name);
        assert_int_equal(c->accepts(cases[i].dim, &why), cases[i].bits > 0);
        assert_int_equal(why != NULL, !(cases[i].bits > 0));
        if (why)
            continue;
        size_t head = c->head_bytes(cases[i].dim), data = c->data_bytes(cases[i].dim);
        assert_int_equal(head % 64, 0);
        assert_int_equal(data % 64, 0);
        assert_true(fabs((double)(head + data) - cases[i].bits * 8 * cases[i].dim) < 1e-6);
        assert_true(c->unconditioned && !c->raw);
    }
}

/* mx.quantize in double: the farther end is the bias, zero is a code.  Which one is a matter of rounding when the range
 * is symmetric to f32's precision: false then. */
static bool mlx(const float *y, int n, int bins, double *scale, double *bias)
{
    double lo = INFINITY, hi = -INFINITY;
    for (int i = 0; i < n; i++) {
        lo = fmin(lo, (double)y[i]);
        hi = fmax(hi, (double)y[i]);
    }
    *bias = fabs(lo) > fabs(hi) ? lo : hi;
    *scale = (hi - lo) / bins * (fabs(lo) > fabs(hi) ? 1 : -1);
    double zero = *bias / *scale;
    *scale = *bias / nearbyint(zero);
    return fabs(fabs(zero - nearbyint(zero)) - 0.5) > 1e-4;
}

static void test_affine_rule(void **state)
{
    (void)state;
    rng.state = 2;
    int odd = 0, n = 0, groups = 0;
    for (int c = 0; c < 16; c++) {
        struct bench b;
        int dim = c & 4 ? 96 : 128, bins = c & 8 ? 255 : 15;
        bench_open(&b, c & 8 ? "affine8" : "affine4", dim, c & 1, c & 2);
        fill(&b, c & 2 ? 40 : 1);
        for (int j = 0; j < 64 * dim; j++)
            b.x[j] += j / dim % 3 == 2 ? 5.0f : 0.0f; /* some with a mean */
        bench_code(&b);
        for (int t = 0; t < 64; t++)
            for (int d0 = 0; d0 < dim; d0 += 64) {
                int in = dim - d0 < 64 ? dim - d0 : 64;
                double scale, bias;
                if (!mlx(b.x + t * dim + d0, in, bins, &scale, &bias))
                    continue;
                groups++;
                assert_true(fabs((double)scale_at(&b, t, d0) - scale) <= fabs(scale) * 0x1p-10);
                assert_true(fabs((double)bias_at(&b, t, d0) - bias) <= fabs(bias) * 0x1p-10);
                for (int d = d0; d < d0 + in; d++, n++) {
                    double at = fmin(fmax(((double)b.x[t * dim + d] - bias) / scale, 0), bins);
                    assert_true(fabs(code_at(&b, t, d) - at) <= 0.5 + 1e-3);
                    odd += fabs(code_at(&b, t, d) - at) > 0.5;
                }
            }
        bench_close(&b);
    }
    assert_true(groups > 16 * 64 * 2 * 99 / 100);
    assert_true(odd < n / 1000); /* f32 decides a tie otherwise */
}

/* Ranges with a step of 1: every value is a code, in both directions. */
static void test_affine_exact(void **state)
{
    (void)state;
    struct bench b;
    bench_open(&b, "affine4", 64, true, false);
    for (int t = 0; t < 64; t++)
        for (int d = 0; d < 64; d++)
            b.x[t * 64 + d] = (float)(t & 1 ? d % 16 - 8 : 8 - d % 16);
    bench_code(&b);
    for (int t = 0; t < 64; t++) {
        assert_true(scale_at(&b, t, 0) == (t & 1 ? 1.0f : -1.0f));
        assert_true(bias_at(&b, t, 0) == (t & 1 ? -8.0f : 8.0f));
        for (int d = 0; d < 64; d++) {
            assert_int_equal(code_at(&b, t, d), d % 16);
            assert_true(decoded_at(&b, t, d) == b.x[t * 64 + d]);
        }
    }
    bench_close(&b);
}

/* Groups keep their norm, and the largest magnitude gets the outermost level. */
static void test_g16_rule(void **state)
{
    (void)state;
    rng.state = 3;
    for (int c = 0; c < 24; c++) {
        struct bench b;
        int dim = c & 4 ? 192 : 64;
        const int bits = 4 - c / 8, half = 1 << (bits - 1);
        bench_open(&b, bits == 4 ? "g16" : bits == 3 ? "g16_3" : "g16_2", dim, c & 1, c & 2);
        fill(&b, 2);
        bench_code(&b);
        for (int t = 0; t < 64; t++) {
            float *y = b.x + t * dim;
            tern_k.kvq.rotate(y, b.sign, dim, 0);
            for (int d0 = 0; d0 < dim; d0 += 16) {
                double ss = 0, got = 0;
                int top = d0;
                for (int d = d0; d < d0 + 16; d++) {
                    top = fabsf(y[d]) > fabsf(y[top]) ? d : top;
                    ss += (double)y[d] * (double)y[d];
                    got += (double)decoded_at(&b, t, d) * (double)decoded_at(&b, t, d);
                }
                assert_true(fabs(sqrt(got / ss) - 1) < 0x1p-10);
                assert_int_equal(code_at(&b, t, top), y[top] > 0 ? 2 * half - 1 : 0);
                for (int d = d0; d < d0 + 16; d++) {
                    double z = fabs((double)y[d]) / fabs((double)y[top]) * normals[bits][half - 1];
                    double best = INFINITY;
                    int code = code_at(&b, t, d);
                    for (int k = 0; k < half; k++)
                        best = fmin(best, fabs(z - normals[bits][k]));
                    assert_true(fabs(z - fabs(level_of(code, bits))) <= best + 1e-5);
                    assert_true((code >= half) == (y[d] > 0));
                }
            }
        }
        bench_close(&b);
    }
}

/* Relative squared error on normal data; the figures of docs/kv-page.md. */
static void test_error(void **state)
{
    (void)state;
    static const double known[] = {2.95e-5, 0.0082, 0.00523, 0.0235, 0.1288};
#ifdef TERN_TEST_FEW /* the figure itself is for the build without sanitizers */
    const int rounds = 4;
    const double near = 0.1;
#else
    const int rounds = 40;
    const double near = 0.02;
#endif
    rng.state = 4;
    for (int c = 0; c < 2 * N_NAMES; c++) {
        struct bench b;
        double err = 0, all = 0;
        bench_open(&b, names[c / 2], 128, c & 1, true);
        for (int round = 0; round < rounds; round++) {
            fill(&b, 1);
            bench_code(&b);
            for (int t = 0; t < 64; t++) {
                float *y = b.x + t * 128;
                if (b.side.sign)
                    tern_k.kvq.rotate(y, b.sign, 128, 0);
                for (int d = 0; d < 128; d++) {
                    double e = (double)y[d] - (double)decoded_at(&b, t, d);
                    err += e * e;
                    all += (double)y[d] * (double)y[d];
                }
            }
        }
        print_message("%-7s %s %.3e\n", names[c / 2], c & 1 ? "keys  " : "values", err / all);
        assert_true(fabs(err / all / known[c / 2] - 1) < near);
        bench_close(&b);
    }
}

/* Rows on codes are rows on the decoded page, to the bit, any number of them, on every level. */
static void test_attention(void **state)
{
    (void)state;
    enum { ROWS = 37 };
    static const int dims[] = {32, 80, 128, 512};
    const unsigned masks[] = {tern_cpu_detect(), 0};
    rng.state = 5;
    for (int c = 0; c < 4 * N_NAMES; c++)
        for (int level = 0; level < 2; level++) {
            struct bench k, v;
            int dim = dims[c % 4];
            size_t n = (size_t)(ROWS * dim);
            tern_kernels_init(masks[level]);
            bench_open(&k, names[c / 4], dim, true, c & 1);
            bench_open(&v, names[c / 4], dim, false, c & 1);
            fill(&k, 2);
            fill(&v, 2);
            bench_code(&k);
            bench_code(&v);
            float *q = buffer(n * 4), *x = buffer(n * 4), *s = buffer(ROWS * 64 * 4),
                  *want = buffer((n + ROWS * 64) * 4);
            float *o = buffer(n * 4), shrink[ROWS];
            for (size_t j = 0; j < n; j++)
                q[j] = o[j] = want[j] = (float)gauss();
            for (int i = 0; i < ROWS; i++)
                shrink[i] = (float)(i % 3) / 2;
            struct tern_kv_query query = {.x = x};
            v.side.codec->accum(&v.side, o, k.x, v.data, v.head, shrink, 2, NULL); /* any numbers serve as weights */
            tern_k.attn.accum_f32(want, k.x, v.decoded, shrink, dim, 64, 2);
            assert_memory_equal(o, want, n * 4);
            k.side.codec->prep(&k.side, &query, q, ROWS, true);
            for (int i = 0; i < ROWS && k.side.sign; i++)
                tern_k.kvq.rotate(q + i * dim, k.sign, dim, 0);
            assert_memory_equal(x, q, n * 4);
            for (int rows = 1; rows <= ROWS; rows += 6) {
                k.side.codec->score(&k.side, s, &query, k.data, k.head, rows, NULL);
                tern_k.attn.score_f32(want, x, k.decoded, dim, rows);
                assert_memory_equal(s, want, (size_t)rows * 64 * 4);
            }
            for (int i = 0; i < ROWS * 64; i++)
                s[i] = (float)tern_rng_f64(&rng);
            memcpy(want, o, n * 4);
            v.side.codec->accum(&v.side, o, s, v.data, v.head, NULL, ROWS, NULL);
            tern_k.attn.accum_f32(want, s, v.decoded, NULL, dim, 64, ROWS);
            assert_memory_equal(o, want, n * 4);
            v.side.codec->finish(&v.side, o, ROWS);
            for (int i = 0; i < ROWS && v.side.sign; i++)
                tern_k.kvq.rotate(want + i * dim, v.sign, dim, 1);
            assert_memory_equal(o, want, n * 4);
            void *all[] = {q, x, s, want, o};
            for (size_t i = 0; i < sizeof all / sizeof *all; i++)
                tern_free(all[i]);
            bench_close(&k);
            bench_close(&v);
        }
    tern_kernels_init(masks[0]);
}

/* Every level writes the same page; what cannot be coded becomes finite, and zeros where a group is all zero or holds
 * an infinity or NaN. */
static void test_levels(void **state)
{
    (void)state;
    rng.state = 6;
    for (int c = 0; c < 4 * N_NAMES; c++) {
        struct bench b;
        const int dim = 128;
        bench_open(&b, names[c / 4], dim, c & 1, c & 2);
        for (int t = 0; t < 64; t++)
            for (int d = 0; d < dim; d++)
                b.x[t * dim + d] = (float)(t % 8 == 0   ? 0
                                           : t % 8 == 1 ? 65504 * (d & 1 ? 1 : -1)
                                           : t % 8 == 2 ? 1e-7 * gauss()
                                           : t % 8 == 3 ? -3.5
                                           : t % 8 == 4 ? (d == t) * 1e30
                                                        : gauss());
        b.x[5 * dim + 7] = NAN;
        b.x[6 * dim + 7] = -INFINITY;
        tern_kernels_init(0);
        bench_code(&b);
        size_t n_data = b.side.codec->data_bytes(dim), n_head = b.side.codec->head_bytes(dim);
        uint8_t *data = buffer(n_data), *head = buffer(n_head);
        memcpy(data, b.data, n_data);
        memcpy(head, b.head, n_head);
        tern_kernels_init(tern_cpu_detect());
        bench_code(&b);
        assert_memory_equal(data, b.data, n_data);
        assert_memory_equal(head, b.head, n_head);
        for (int t = 0; t < 64; t++)
            for (int d = 0; d < dim; d++) {
                float x = decoded_at(&b, t, d);
                assert_true(isfinite(x));
                if (t % 8 == 0 || ((t == 5 || t == 6) && (d < 16 || b.side.sign)))
                    assert_true(x == 0);
                if (t % 8 == 3 && !b.side.sign)
                    assert_true(x == -3.5f);
            }
        tern_free(data);
        tern_free(head);
        bench_close(&b);
    }
}

int main(void)
{
    tern_kernels_init(tern_cpu_detect());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes),        cmocka_unit_test(test_sizes),    cmocka_unit_test(test_affine_rule),
        cmocka_unit_test(test_affine_exact), cmocka_unit_test(test_g16_rule), cmocka_unit_test(test_error),
        cmocka_unit_test(test_attention),    cmocka_unit_test(test_levels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The measurement of products alone: that every type's products are what its weights say, what it says about bytes, and
 * what it refuses; and the bytes that a decode step is said to read.  Nothing here depends on how fast anything is. */
#include "speed_test.h"

#include <stdio.h>
#include <string.h>

#define N_ROWS    3
#define MAX_TYPES 64

static const int sizes[N_ROWS] = {1, 5, 2};
static const char *types[MAX_TYPES];

static tern_weight_speed_params small(void)
{
    int n = 0;
    while (n < MAX_TYPES && (types[n] = tern_eval_weight_type(n)))
        n++;
    return (tern_weight_speed_params){.types = types,
                                      .n_types = n,
                                      .rows = sizes,
                                      .n_rows = N_ROWS,
                                      .n_out = 176,
                                      .n_in = 512,
                                      .bytes = 100000,
                                      .n_threads = 3,
                                      .reps = 3,
                                      .read_bytes = 1 << 20};
}

static void measure(const tern_weight_speed_params *p, tern_weight_speed *out)
{
    tern_read_speed read;
    tern_error err = {0};
    if (tern_eval_weight_speed(out, &read, p, &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(read.n_threads, p->n_threads);
    is_spread(read.bytes_per_second);
}

/* Decode rows are rounded to 8 bits; a product with other weights, or other rows, would be off by about 1. */
static void test_products(void **state)
{
    (void)state;
    tern_weight_speed out[MAX_TYPES * N_ROWS];
    tern_weight_speed_params p = small();
    assert_true(p.n_types >= 11);
    for (int prompt = 0; prompt < 2; prompt++) {
        p.prompt = prompt;
        measure(&p, out);
        for (int i = 0; i < p.n_types * N_ROWS; i++) {
            const tern_weight_speed *s = &out[i];
            assert_string_equal(s->type, types[i / N_ROWS]);
            assert_int_equal(s->rows, sizes[i % N_ROWS]);
            if (!(s->error < .05))
                fail_msg("%s, %d rows: the products are off by %g", s->type, s->rows, s->error);
            assert_true(s->bytes >= 100000 && s->bytes / s->n_matrices * (s->n_matrices - 1) < 100000);
            is_spread(s->seconds);
            is_spread(s->read_share);
        }
    }
}

static void test_bytes(void **state)
{
    (void)state;
    tern_weight_speed out[2 * N_ROWS];
    tern_weight_speed_params p = small();
    static const char *const two[] = {"f32", "Q5_1"};
    p.types = two;
    p.n_types = 2;
    measure(&p, out);
    /* The 64 bytes behind each matrix are kernels' to read. */
    assert_true(out[0].n_matrices == 1 && out[0].bytes == 176 * 512 * 4 + 64);
    assert_true(out[N_ROWS].n_matrices == 2 && out[N_ROWS].bytes == 2 * (176 * 512 * .75 + 64));
    assert_true(out[0].error < 1e-6 && out[N_ROWS].error > 1e-4);
}

static void test_progress(void **state)
{
    (void)state;
    tern_weight_speed out[MAX_TYPES * N_ROWS];
    tern_read_speed read;
    tern_error err = {0};
    int calls = 0, left = -1;
    tern_weight_speed_params p = small();
    p.progress = stop_at_third;
    p.user = &calls;
    assert_int_equal(tern_eval_weight_speed(out, &read, &p, &err), TERN_ECANCELLED);
    assert_int_equal(calls, 3);
    p.progress = count_left;
    p.user = &left;
    assert_int_equal(tern_eval_weight_speed(out, &read, &p, &err), 0);
    assert_int_equal(left, 0);
}

static void refused(const tern_weight_speed_params *p, int code, const char *text)
{
    tern_weight_speed out[MAX_TYPES * N_ROWS];
    tern_read_speed read;
    tern_error err = {0};
    int rc = tern_eval_weight_speed(out, &read, p, &err);
    if (rc != code || !strstr(err.msg, text))
        fail_msg("\"%s\" wanted: status %d, %s", text, rc, err.msg);
}

static void test_refused(void **state)
{
    (void)state;
    static const char *const unknown[] = {"Q4_0", "Q9"};
    static const int no_rows[] = {0};
#define REFUSED(code, text, ...)              \
    do {                                      \
        tern_weight_speed_params p = small(); \
        __VA_ARGS__;                          \
        refused(&p, code, text);              \
    } while (0)
    REFUSED(TERN_EINVAL, "types = 0", p.n_types = 0);
    REFUSED(TERN_EINVAL, "numbers of rows = 65", p.n_rows = 65);
    REFUSED(TERN_EINVAL, "rows = 0", p.rows = no_rows, p.n_rows = 1);
    REFUSED(TERN_EINVAL, "outputs = 0", p.n_out = 0);
    REFUSED(TERN_EINVAL, "40 outputs are not a multiple of 16", p.n_out = 40);
    REFUSED(TERN_EINVAL, "inputs = 0", p.n_in = 0);
    REFUSED(TERN_EINVAL, "threads = 1000", p.n_threads = 1000);
    REFUSED(TERN_EINVAL, "rounds = 0", p.reps = 0);
    REFUSED(TERN_EINVAL, "100 bytes are too few", p.read_bytes = 100);
    REFUSED(TERN_EINVAL, "unknown weight type \"Q9\"", p.types = unknown, p.n_types = 2);
    REFUSED(TERN_EUNSUPPORTED, "not whole blocks of 256", p.n_in = 96);
    REFUSED(TERN_ELIMIT, "the machine has", p.bytes = (size_t)1 << 50);
#undef REFUSED
}

static tern_engine *open_tiny(tern_model **m, const char *file, const char *kv)
{
    tern_error err = {0};
    tern_engine *e = NULL;
    char path[512];
    tern_engine_params p = {.n_threads = 1, .kv = kv};
    (void)snprintf(path, sizeof path, "%s/tiny/%s", TERN_TEST_DATA, file);
    if (tern_model_open(m, path, &(tern_model_params){.n_threads = 1}, &err) < 0 ||
        tern_engine_open(&e, *m, &p, &err) < 0)
        fail_msg("%s", err.msg);
    return e;
}

static double kv_bytes(const tern_engine *e, int ctx)
{
    tern_step_bytes one, three;
    tern_eval_step_bytes(e, 0, ctx, 1, &one);
    tern_eval_step_bytes(e, 0, ctx, 3, &three);
    assert_true(three.kv == 3 * one.kv);
    return one.kv;
}

static double weight_bytes(const tern_engine *e, int rows)
{
    tern_step_bytes b;
    tern_eval_step_bytes(e, 0, 1, rows, &b);
    return b.weights;
}

static void test_step_bytes(void **state)
{
    (void)state;
    tern_model *m;
    /* Two layers, one KV head of 64; the embedding is the output matrix.  64 bytes behind each of 15 matrices. */
    tern_engine *e = open_tiny(&m, "llama-tied.gguf", "l4");
    assert_true(kv_bytes(e, 1) == 2 * 256 && kv_bytes(e, 64) == 2 * 64 * 256);
    assert_true(kv_bytes(e, 70) == 2 * (64 * (2 * 32 + 4) + 6 * 256 + 4 * 256));
    const int n = 320 * 96 + 2 * (2 * 96 * 192 + 2 * 96 * 64 + 3 * 96 * 128);
    assert_true(weight_bytes(e, 1) == 4.0 * n + 15 * 64 && weight_bytes(e, 9) == weight_bytes(e, 1));
    tern_engine_close(&e);
    tern_model_close(&m);
    /* Seven layers, one KV head of 64; the sixth sees everything, the others 70 tokens, in two or three pages. */
    e = open_tiny(&m, "gemma3-w70.gguf", "f16");
    assert_true(kv_bytes(e, 70) == 7 * 70 * 256);
    assert_true(kv_bytes(e, 200) == (200 + 6 * (200 - 128)) * 256);
    assert_true(kv_bytes(e, 190) == (190 + 6 * (190 - 64)) * 256);
    tern_engine_close(&e);
    tern_model_close(&m);
}

/* Six experts, of which each row chooses three: two rows may need them all. */
static void test_expert_bytes(void **state)
{
    (void)state;
    tern_model *m;
    tern_engine *e = open_tiny(&m, "mixtral-q5_0.gguf", "f16");
    double experts = 0, all = weight_bytes(e, 2);
    for (size_t i = 0; i < tern_model_n_tensors(m); i++) {
        tern_tensor_info t;
        tern_model_tensor(m, i, &t);
        experts += strstr(t.name, "_exps.") ? (double)t.memory_bytes : 0;
    }
    assert_true(experts > 0 && all - weight_bytes(e, 1) == experts / 2);
    assert_true(weight_bytes(e, 100) == all && all < (double)tern_model_get_info(m)->weight_bytes);
    tern_engine_close(&e);
    tern_model_close(&m);
}

/* Latent attention has matrices for each head, and a step reads all of them. */
static void test_latent_bytes(void **state)
{
    (void)state;
    tern_model *m;
    tern_engine *e = open_tiny(&m, "deepseek2-q4_0.gguf", "f16");
    double all = 0;
    int stacks = 0;
    for (size_t i = 0; i < tern_model_n_tensors(m); i++) {
        tern_tensor_info t;
        tern_model_tensor(m, i, &t);
        stacks += strstr(t.name, "_b.weight") && t.dims[2] > 1;
        if (t.n_dims > 1) /* the embedding is the output matrix */
            all += (double)t.memory_bytes;
    }
    assert_true(stacks > 0 && weight_bytes(e, 100) == all);
    tern_engine_close(&e);
    tern_model_close(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),     cmocka_unit_test(test_bytes),      cmocka_unit_test(test_progress),
        cmocka_unit_test(test_refused),      cmocka_unit_test(test_step_bytes), cmocka_unit_test(test_expert_bytes),
        cmocka_unit_test(test_latent_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Key conditioning from calibration to the sidecar and into plans, on the tiny models; damaged sidecars. */
#include "tiny.h"

#include <math.h>
#include <unistd.h>
#include "base/cpu.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kernel/kernel.h"
#include "kv/kv.h"

static const char *path_of(int which)
{
    static char path[2][64];
    (void)snprintf(path[which], sizeof path[which], "/tmp/tern-cond-%ld-%d", (long)getpid(), which);
    return path[which];
}

static size_t read_file(const char *path, uint8_t *to, size_t cap)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    size_t n = fread(to, 1, cap, f);
    (void)fclose(f);
    assert_true(n < cap);
    return n;
}

static void write_file(const char *path, const uint8_t *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    (void)fclose(f);
}

/* The prompt twice over: long enough to measure. */
static int calibrate(struct tiny *t, int threads, int which, tern_error *err)
{
    memcpy(t->ids + t->n_ids, t->ids, 200 * sizeof *t->ids);
    return tern_model_calibrate(t->model, t->ids, 400, threads, path_of(which), NULL, NULL, err);
}

static uint8_t bytes[2][1 << 20];

/* The same ids give the same bytes on one thread and on three. */
static void calibration_is_deterministic(void **state)
{
    (void)state;
    tern_error err = {0};
    struct tiny t;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tiny_ok(calibrate(&t, 1, 0, &err), &err);
    tiny_ok(calibrate(&t, 3, 1, &err), &err);
    size_t n = read_file(path_of(0), bytes[0], sizeof bytes[0]);
    assert_int_equal(read_file(path_of(1), bytes[1], sizeof bytes[1]), n);
    assert_memory_equal(bytes[0], bytes[1], n);
    assert_int_equal(tern_model_calibrate(t.model, t.ids, 255, 1, path_of(0), NULL, NULL, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "256"));
    (void)unlink(path_of(0));
    (void)unlink(path_of(1));
    tiny_close(&t);
}

/* With time enough all tokens are used; with too little nothing is written, and the time is said. */
static void calibration_in_time(void **state)
{
    (void)state;
    tern_error err = {0};
    struct tiny t;
    int used = 0;
    double expected = 0;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tiny_ok(calibrate(&t, 1, 0, &err), &err);
    tiny_ok(tern_model_calibrate_within(t.model, t.ids, 400, 1, path_of(1), 1e4, NULL, NULL, &used, &expected, &err),
            &err);
    assert_int_equal(used, 400);
    assert_true(expected > 0 && expected < 1e4);
    size_t n = read_file(path_of(0), bytes[0], sizeof bytes[0]);
    assert_int_equal(read_file(path_of(1), bytes[1], sizeof bytes[1]), n);
    assert_memory_equal(bytes[0], bytes[1], n);
    (void)unlink(path_of(1));
    assert_int_equal(
        tern_model_calibrate_within(t.model, t.ids, 400, 1, path_of(1), 1e-9, NULL, NULL, &used, &expected, &err),
        TERN_ELIMIT);
    assert_true(expected > 1e-9);
    assert_int_not_equal(access(path_of(1), F_OK), 0);
    (void)unlink(path_of(0));
    tiny_close(&t);
}

static int stop_at_once(void *user, int done, int total)
{
    assert_true(done <= total);
    ++*(int *)user;
    return 1;
}

static void cancelled_calibration_leaves_nothing(void **state)
{
    (void)state;
    tern_error err = {0};
    struct tiny t;
    int calls = 0;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    assert_int_equal(tern_model_calibrate(t.model, t.ids, 400, 1, path_of(0), stop_at_once, &calls, &err),
                     TERN_ECANCELLED);
    assert_int_equal(calls, 1);
    assert_int_not_equal(access(path_of(0), F_OK), 0);
    tiny_close(&t);
}

static const char *plan_text(const char *scheme)
{
    static char text[128];
    (void)snprintf(text, sizeof text, "%s,cond=%s", scheme, path_of(0));
    return text;
}

static const char *conditioning_of(tern_model *m, const char *spec)
{
    tern_error err = {0};
    tern_kv_plan *p;
    tern_kv_row row;
    tiny_ok(tern_kv_plan_new(&p, m, spec, false, &err), &err);
    tern_kv_plan_row(p, tern_kv_plan_rows(p) - 1, &row);
    const char *c = row.conditioning; /* literals */
    tern_kv_plan_free(p);
    return c;
}

static void plans_find_their_source(void **state)
{
    (void)state;
    tern_error err = {0};
    struct tiny llama, gemma;
    tern_kv_plan *p;
    tiny_open(&llama, "llama-tied", "llama-tied", "llama-tied");
    tiny_open(&gemma, "gemma3-w8", "gemma3-w8", "gemma3-w8");
    assert_null(conditioning_of(llama.model, "l4"));
    assert_null(conditioning_of(gemma.model, "f16"));
    assert_null(conditioning_of(gemma.model, "affine4"));
    assert_null(conditioning_of(gemma.model, "k=g16,v=l4"));
    assert_null(conditioning_of(gemma.model, "l4,cond=off"));
    assert_string_equal(conditioning_of(gemma.model, "l4"), "scaled by norm weights");
    assert_string_equal(conditioning_of(gemma.model, "l4,cond=norms"), "scaled by norm weights");
    assert_int_equal(tern_kv_plan_new(&p, llama.model, "l4,cond=norms", false, &err), TERN_EUNSUPPORTED);
    assert_int_equal(tern_kv_plan_new(&p, llama.model, "l4,cond=", false, &err), TERN_EINVAL);
    assert_int_equal(tern_kv_plan_new(&p, llama.model, "l4,cond=/nowhere/at/all", false, &err), TERN_EIO);
    assert_non_null(strstr(err.msg, "/nowhere/at/all"));
    assert_non_null(strstr(err.msg, "cond=off"));
    tiny_ok(calibrate(&llama, 2, 0, &err), &err);
    assert_string_equal(conditioning_of(llama.model, plan_text("l4")), "calibrated");
    /* A plan without coded keys has no use for the file, so it does not even look. */
    assert_null(conditioning_of(llama.model, "k=f16,v=l4,cond=/nowhere/at/all"));
    assert_int_equal(tern_kv_plan_new(&p, gemma.model, plan_text("l4"), false, &err), TERN_EMISMATCH);
    assert_non_null(strstr(err.msg, "another model"));
    (void)unlink(path_of(0));
    tiny_close(&llama);
    tiny_close(&gemma);
}

/* Cut anywhere, any bit flipped, bytes added: refused, and the sentence names the file. */
static void damaged_sidecars(void **state)
{
    (void)state;
    tern_error err = {0};
    struct tiny t;
    tern_kv_plan *p;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tiny_ok(calibrate(&t, 2, 0, &err), &err);
    size_t n = read_file(path_of(0), bytes[0], sizeof bytes[0] - 1);
    const char *spec = plan_text("l4");
    for (size_t cut = 0; cut <= n + 1; cut += cut < 64 || cut + 9 > n ? 1 : 97) {
        if (cut == n)
            continue;
        write_file(path_of(0), bytes[0], cut);
        assert_true(tern_kv_plan_new(&p, t.model, spec, false, &err) < 0);
        assert_non_null(strstr(err.msg, path_of(0)));
    }
    for (size_t at = 0; at < n; at += at < 64 ? 1 : 131) {
        bytes[0][at] ^= 1 << at % 8;
        write_file(path_of(0), bytes[0], n);
        /* The number of tokens is only for people. */
        if (at < 28 || at >= 32)
            assert_true(tern_kv_plan_new(&p, t.model, spec, false, &err) < 0);
        bytes[0][at] ^= 1 << at % 8;
    }
    write_file(path_of(0), bytes[0], n);
    tiny_ok(tern_kv_plan_new(&p, t.model, spec, false, &err), &err);
    tern_kv_plan_free(p);
    (void)unlink(path_of(0));
    tiny_close(&t);
}

/* What calibration measures comes back: planted means, unequal channels, a rotating pair. */
static void round_trip(void **state)
{
    (void)state;
    static const float freq[4] = {1, 0.5f, 0.25f, 0.125f};
    static const struct tern_kv_decl decl[3] = {
        {.n_heads = 2, .dim_k = 8, .dim_v = 4, .n_rot = 8, .freq = freq},
        {.n_heads = 0},
        {.n_heads = 1, .dim_k = 16, .dim_v = 4, .n_rot = 8, .interleaved = true, .freq = freq},
    };
    tern_error err = {0};
    struct tern_kv_cond_set *a, *b;
    tiny_ok(tern_kv_cond_new(&a, decl, 3, &err), &err);
    for (int i = 0; i < 3; i++)
        for (int h = 0; h < decl[i].n_heads; h++) {
            float *v = tern_kv_cond_vectors(a, i, h);
            for (int d = 0; d < 2 * decl[i].dim_k; d++)
                v[d] = (float)(i + 1) + 0.125f * (float)d + (float)h;
        }
    a->layers[2][0].pairs[0] = tern_kv_cond_pair(&decl[2], 3, 2.5f, -1);
    a->layers[2][0].n_pairs = 1;
    tern_kv_cond_seal(a, decl);
    tiny_ok(tern_kv_cond_save(a, decl, 42, path_of(0), &err), &err);
    assert_int_equal(tern_kv_cond_load(&b, decl, 3, 43, path_of(0), &err), TERN_EMISMATCH);
    assert_int_equal(tern_kv_cond_load(&b, decl, 2, 42, path_of(0), &err), TERN_EMISMATCH);
    tiny_ok(tern_kv_cond_load(&b, decl, 3, 42, path_of(0), &err), &err);
    assert_memory_equal(a->memory, b->memory, a->n_floats * sizeof *a->memory);
    assert_null(b->layers[1]);
    const struct tern_kv_pair *p = &b->layers[2][0].pairs[0];
    assert_int_equal(b->layers[2][0].n_pairs, 1);
    assert_true(p->a == 6 && p->b == 7 && p->freq == freq[3] && p->re == 2.5f && p->im == -1);
    assert_true(tern_kv_cond_pair(&decl[0], 3, 0, 0).a == 3 && tern_kv_cond_pair(&decl[0], 3, 0, 0).b == 7);
    tern_kv_cond_free(a);
    tern_kv_cond_free(b);
    (void)unlink(path_of(0));
}

/* Conditioning is part of what a session was built with. */
static void sessions_remember(void **state)
{
    (void)state;
    tern_error err = {0};
    struct tiny t;
    tern_seq *s, *loaded;
    tiny_open(&t, "gemma3-w8", "gemma3-w8", "gemma3-w8");
    tern_engine *with = tiny_engine(&t, "l4", false, 1, 1, 512),
                *off = tiny_engine(&t, "l4,cond=off", false, 1, 1, 512);
    tiny_ok(tern_seq_new(&s, with, &err), &err);
    tiny_ok(tern_prefill(with, s, t.ids, 130, NULL, NULL, NULL, &err), &err);
    tiny_ok(tern_seq_save(s, path_of(0), &err), &err);
    assert_int_equal(tern_seq_load(&loaded, off, path_of(0), &err), TERN_EMISMATCH);
    tern_seq_free(s);
    tiny_ok(tern_seq_load(&loaded, with, path_of(0), &err), &err);
    tern_engine_close(&with);
    tern_engine_close(&off);
    (void)unlink(path_of(0));
    tiny_close(&t);
}

/* q.mean of many queries at once is the chain of one, whatever stands beside it. */
static void test_shifts(void **state)
{
    (void)state;
    static const int dims[] = {16, 64, 80, 112, 512}, counts[] = {1, 3, 8, 63, 64, 65, 130};
    static float q[130 * 512], mean[512], out[130];
    struct tern_rng rng = {.state = 5};
    struct tern_kv_cond c = {.mean = mean};
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = (float)(tern_rng_u64(&rng) % 2001) / 1000 - 1;
    for (size_t i = 0; i < sizeof mean / sizeof *mean; i++)
        mean[i] = (float)(tern_rng_u64(&rng) % 2001) / 100 - 10;
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (size_t n = 0; n < sizeof counts / sizeof *counts; n++) {
            tern_kv_cond_shifts(&c, out, q, counts[n], dims[d]);
            for (int i = 0; i < counts[n]; i++) {
                float sum = 0;
                for (int j = 0; j < dims[d]; j++)
                    sum = fmaf(q[i * dims[d] + j], mean[j], sum);
                assert_memory_equal(&out[i], &sum, sizeof sum);
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shifts),
        cmocka_unit_test(calibration_is_deterministic),
        cmocka_unit_test(calibration_in_time),
        cmocka_unit_test(cancelled_calibration_leaves_nothing),
        cmocka_unit_test(plans_find_their_source),
        cmocka_unit_test(damaged_sidecars),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(sessions_remember),
    };
    tern_kernels_init(tern_cpu_detect());
    return cmocka_run_group_tests(tests, NULL, NULL);
}

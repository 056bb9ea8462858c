/* The measurement of attention alone: what it says about bytes and elements, that all plans attend to the same vectors,
 * and what it refuses.  Nothing here depends on how fast anything is. */
#include "speed_test.h"

#include <string.h>
#include "base/mem.h"
#include "base/rng.h"

#define N_PLANS 8

static const char *const plans[N_PLANS] = {
    "f16", "f32", "q8", "l4", "t3", "k=l4,v=l2,first=0", "q8,recent=192", "f16,layers=1-1:l3",
};

static tern_kv_speed_params small(int ctx)
{
    return (tern_kv_speed_params){.plans = plans,
                                  .n_plans = N_PLANS,
                                  .head_dim = 64,
                                  .n_heads = 6,
                                  .n_kv_heads = 2,
                                  .n_layers = 2,
                                  .ctx = ctx,
                                  .n_threads = 3,
                                  .reps = 3,
                                  .read_bytes = 1 << 20};
}

/* A plan whose pages, tiles or first tokens were not where attention looks for them would be off by about 1. */
static void test_same_vectors(void **state)
{
    (void)state;
    static const int lengths[] = {1, 63, 64, 65, 128, 129, 700, 1088};
    static const double most[N_PLANS] = {0, 1e-3, .02, .2, .3, .5, .02, .3};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        tern_kv_speed out[N_PLANS];
        tern_read_speed read;
        tern_error err = {0};
        tern_kv_speed_params p = small(lengths[i]);
        if (tern_eval_kv_speed(out, &read, &p, &err) < 0)
            fail_msg("%d tokens: %s", lengths[i], err.msg);
        assert_int_equal(read.n_threads, 3);
        is_spread(read.bytes_per_second);
        for (int j = 0; j < N_PLANS; j++) {
            if (!(out[j].error <= most[j]))
                fail_msg("%s, %d tokens: the output is off by %g", plans[j], lengths[i], out[j].error);
            /* Where no page is coded, nothing but the tiles is read. */
            if (lengths[i] <= 64 && j != 1)
                assert_true(out[j].error == 0);
            is_spread(out[j].seconds);
            is_spread(out[j].speedup);
            is_spread(out[j].read_share);
            is_spread(out[j].encode_seconds);
            assert_true(out[j].elements == 2.0 * 2 * 2 * 64 * lengths[i]);
        }
        assert_true(out[0].speedup.min == 1 && out[0].speedup.max == 1);
        assert_true(lengths[i] <= 64 || out[3].error > .01); /* the codes were read indeed */
        assert_true(lengths[i] <= 192 || out[6].error > 1e-4);
    }
}

static void test_bytes(void **state)
{
    (void)state;
    tern_kv_speed out[N_PLANS];
    tern_read_speed read;
    tern_error err = {0};
    tern_kv_speed_params p = small(330); /* five closed pages and 10 tokens */
    assert_int_equal(tern_eval_kv_speed(out, &read, &p, &err), 0);
    /* Per token and KV head: 128 numbers; per page and side: 128 bytes of headers. */
    double raw = 4 * 256, first = 4 * raw;
    assert_true(out[0].bytes == 330 * raw);
    assert_true(out[1].bytes == 330 * 2 * raw);
    assert_true(out[2].bytes == 4 * 320 * (128 + 4) + 10 * raw + first);
    assert_true(out[3].bytes == 4 * 320 * (64 + 4) + 10 * raw + first);
    assert_true(out[4].bytes == 4 * 320 * (48 + 4) + 10 * raw + first);
    assert_true(out[5].bytes == 4 * 320 * (32 + 16 + 4) + 10 * raw);
    assert_true(out[6].bytes == 4 * 192 * (128 + 4) + 138 * raw + first);
    assert_true(out[7].bytes == 2 * 320 * (48 + 4) + 2 * 330 * 256 + 10 * raw / 2 + first / 2);
}

/* Every whole 256 bytes are read, once, in all patterns. */
static void test_read(void **state)
{
    (void)state;
    static uint64_t words[1024];
    struct tern_rng r = {5};
    for (size_t i = 0; i < 1024; i++)
        words[i] = tern_rng_u64(&r);
    for (size_t bytes = 0; bytes <= sizeof words; bytes += 96) {
        uint64_t want = 0;
        for (size_t i = 0; i < bytes / 256 * 32; i++)
            want ^= words[i];
        for (int pattern = 0; pattern < TERN_READ_PATTERNS; pattern++)
            assert_true(tern_mem_read(words, bytes, pattern) == want);
    }
}

static void test_progress(void **state)
{
    (void)state;
    tern_kv_speed out[N_PLANS];
    tern_read_speed read;
    tern_error err = {0};
    int calls = 0, left = -1;
    tern_kv_speed_params p = small(100);
    p.progress = stop_at_third;
    p.user = &calls;
    assert_int_equal(tern_eval_kv_speed(out, &read, &p, &err), TERN_ECANCELLED);
    assert_int_equal(calls, 3);
    p.progress = count_left;
    p.user = &left;
    assert_int_equal(tern_eval_kv_speed(out, &read, &p, &err), 0);
    assert_int_equal(left, 0);
}

static void refused(tern_kv_speed_params p, int code, const char *text)
{
    tern_kv_speed out[N_PLANS];
    tern_read_speed read;
    tern_error err = {0};
    int rc = tern_eval_kv_speed(out, &read, &p, &err);
    if (rc != code || !strstr(err.msg, text))
        fail_msg("\"%s\" wanted: status %d, %s", text, rc, err.msg);
}

static void test_refused(void **state)
{
    (void)state;
#define REFUSED(code, text, ...)             \
    do {                                     \
        tern_kv_speed_params p = small(100); \
        __VA_ARGS__;                         \
        refused(p, code, text);              \
    } while (0)
    REFUSED(TERN_EINVAL, "plans = 0", p.n_plans = 0);
    REFUSED(TERN_EINVAL, "head size = 0", p.head_dim = 0);
    REFUSED(TERN_EINVAL, "head size = 544", p.head_dim = 544);
    REFUSED(TERN_EINVAL, "heads = -1", p.n_heads = -1);
    REFUSED(TERN_EINVAL, "KV heads = 0", p.n_kv_heads = 0);
    REFUSED(TERN_EINVAL, "6 heads are not a multiple of 4 KV heads", p.n_kv_heads = 4);
    REFUSED(TERN_EINVAL, "layers = 0", p.n_layers = 0);
    REFUSED(TERN_EINVAL, "tokens = 0", p.ctx = 0);
    REFUSED(TERN_EINVAL, "threads = 1000", p.n_threads = 1000);
    REFUSED(TERN_EINVAL, "rounds = 0", p.reps = 0);
    REFUSED(TERN_EINVAL, "100 bytes are too few", p.read_bytes = 100);
    REFUSED(TERN_EINVAL, "layer 1 does not exist", p.n_layers = 1);
    REFUSED(TERN_EUNSUPPORTED, "--kv q8 cannot have heads of 40", p.head_dim = 40);
    REFUSED(TERN_ELIMIT, "the machine has", p.ctx = 1 << 28, p.n_layers = 1000);
#undef REFUSED
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_vectors), cmocka_unit_test(test_bytes),   cmocka_unit_test(test_read),
        cmocka_unit_test(test_progress),     cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Every device of the registry: its name, and that its memory holds what was copied into it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "dev/dev.h"
#include "tern/tern.h"

/* Devices of this build need not be there on this machine. */
static bool is_there(const struct tern_dev_ops *ops)
{
    char about[TERN_DEV_NAME];
    return !ops->probe || ops->probe(about, NULL) == 0;
}

static const struct tern_dev_ops *first_there(void)
{
    int i = 0;
    while (!is_there(tern_dev_at(i)))
        i++;
    return tern_dev_at(i);
}

static void test_names(void **state)
{
    const struct tern_dev_ops *ops;
    tern_error err;
    (void)state;
    assert_non_null(tern_dev_at(0));
    for (int i = 0; tern_dev_at(i); i++) {
        if (!is_there(tern_dev_at(i))) {
            assert_int_not_equal(tern_dev_find(&ops, tern_dev_at(i)->name, &err), 0);
            assert_null(ops);
            continue;
        }
        assert_int_equal(tern_dev_find(&ops, tern_dev_at(i)->name, &err), 0);
        assert_ptr_equal(ops, tern_dev_at(i));
    }
    assert_null(tern_dev_at(-1));
    const char *const first[] = {NULL, "auto"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tern_dev_find(&ops, first[i], &err), 0);
        assert_ptr_equal(ops, first_there());
    }
    const char *const bad[] = {"", "abacus", "cp", "cpu ", "CPU"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tern_dev_find(&ops, bad[i], &err), TERN_EINVAL);
        assert_null(ops);
        assert_non_null(strstr(err.msg, bad[i]));
        assert_non_null(strstr(err.msg, "auto"));
        assert_non_null(strstr(err.msg, "cpu"));
    }
}

enum { BYTES = 300 * 1024 + 7 };

static void check_memory(const struct tern_dev_ops *ops, bool lazy)
{
    struct tern_dev *d;
    struct tern_dev_mem *a, *b;
    tern_error err;
    uint8_t *host = malloc(BYTES), *back = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        host[i] = (uint8_t)(i * 7 + i / 251);
    assert_int_equal(ops->open(&d, ops, NULL, &err), 0);
    assert_int_equal(ops->reserve(d, &a, BYTES, lazy, &err), 0);
    assert_int_equal(ops->adopt(d, &b, host, BYTES, &err), 0);
    ops->copy_out(d, back, a, 0, BYTES);
    ops->sync(d);
    for (size_t i = 0; i < BYTES; i++)
        assert_int_equal(back[i], 0);
    ops->copy(d, a, 1000, b, 3, BYTES - 1000);
    ops->copy(d, a, 1, a, 1000, BYTES - 1000); /* overlaps */
    uint8_t few[3] = {1, 2, 3};
    ops->copy_in(d, a, BYTES - 3, few, 3);
    memset(few, 9, sizeof few); /* was read */
    ops->copy_in(d, a, BYTES, NULL, 0);
    ops->zero(d, a, 500, 64);
    ops->copy_out(d, back, a, 0, BYTES);
    ops->sync(d);
    assert_int_equal(back[0], 0);
    assert_memory_equal(back + 1, host + 3, 499);
    assert_memory_equal(back + 564, host + 566, BYTES - 2000);
    for (size_t i = 500; i < 564; i++)
        assert_int_equal(back[i], 0);
    assert_memory_equal(back + BYTES - 3, ((uint8_t[]){1, 2, 3}), 3);
    ops->discard(d, a, 0, BYTES);
    ops->copy_in(d, a, 100000, host, 5);
    ops->copy_out(d, back, a, 100000, 5);
    ops->sync(d);
    assert_memory_equal(back, host, 5);
    ops->release(d, a);
    ops->release(d, b);
    ops->release(d, NULL);
    tern_dev_close(d);
    tern_dev_close(NULL);
    free(host);
    free(back);
}

static void test_memory(void **state)
{
    (void)state;
    for (int i = 0; tern_dev_at(i); i++)
        for (int lazy = 0; lazy < 2 && is_there(tern_dev_at(i)); lazy++)
            check_memory(tern_dev_at(i), lazy);
}

/* A model opens on the device that is asked for, or not at all. */
static void test_model_device(void **state)
{
    (void)state;
    tern_model *m;
    tern_error err = {0};
    tern_model_params p = {.n_threads = 1, .packed = "off", .device = "abacus"};
    assert_int_equal(tern_model_open(&m, "no/such/model.gguf", &p, &err), TERN_EINVAL);
    assert_null(m);
    assert_non_null(strstr(err.msg, "abacus"));
    assert_non_null(strstr(err.msg, "cpu"));
    const char *const good[] = {"cpu", "auto", NULL};
    for (int i = 0; i < 3; i++) {
        p.device = good[i];
        assert_true(tern_model_open(&m, "no/such/model.gguf", &p, &err) < 0);
        assert_non_null(strstr(err.msg, "no/such/model.gguf"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_model_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* How products are cut into tasks: every panel once, whole units, even shares, as many tasks for every thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "dev/cpu/cpu.h"

static void check_cut(const struct tern_cpu *d, int panels, int unit, int about)
{
    const struct tern_cpu_cut c = tern_cpu_cut_into(d, panels, unit, about);
    const int threads = tern_pool_threads(d->pool), units = (panels + unit - 1) / unit;
    int least = units, most = 0;
    assert_int_equal(tern_cpu_cut_at(&c, 0), 0);
    assert_int_equal(tern_cpu_cut_at(&c, c.tasks), panels);
    for (int i = 0; i < c.tasks; i++) {
        const int begin = tern_cpu_cut_at(&c, i), end = tern_cpu_cut_at(&c, i + 1), n = (end - begin + unit - 1) / unit;
        assert_true(begin < end && begin % unit == 0);
        assert_true(end % unit == 0 || end == panels);
        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    assert_true(most - least <= 1);
    assert_int_equal(tern_cpu_cut_at(&c, 1), most * unit < panels ? most * unit : panels);
    assert_true(c.tasks <= threads || c.tasks % threads == 0 || c.tasks == units);
    assert_true(c.tasks >= (panels + about - 1) / about || c.tasks == units);
}

static void test_cuts(void **state)
{
    (void)state;
    static const int threads[] = {1, 2, 3, 5, 16};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        struct tern_cpu d = {0};
        assert_int_equal(tern_pool_new(&d.pool, threads[t], 0, NULL), 0);
        for (int panels = 1; panels <= 130; panels++)
            for (int unit = 1; unit <= 4; unit++)
                for (int about = 1; about <= 17; about++)
                    check_cut(&d, panels, unit, about);
        check_cut(&d, 16384, 3, 15);
        tern_pool_free(d.pool);
    }
}

/* 20 units of three panels on two threads, and the last panel of 40: no thread has a seventh task to itself. */
static void test_two_threads(void **state)
{
    (void)state;
    struct tern_cpu d = {0};
    assert_int_equal(tern_pool_new(&d.pool, 2, 0, NULL), 0);
    assert_int_equal(tern_cpu_cut_into(&d, 60, 3, 9).tasks, 8);
    assert_int_equal(tern_cpu_cut_into(&d, 40, 3, 6).tasks, 8);
    assert_int_equal(tern_cpu_cut_into(&d, 36, 3, 6).tasks, 6);
    tern_pool_free(d.pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cuts), cmocka_unit_test(test_two_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

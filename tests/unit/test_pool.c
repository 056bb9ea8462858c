/* The thread pool: every task runs exactly once, whatever the counts; memory is visible both ways; sleeping and
 * spinning workers both take part; pinning is undone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/pool.h"

#define MAX_TASKS 4096

/* Fields without atomics on purpose: under ThreadSanitizer any missing ordering of the pool shows up here. */
struct job {
    int in[MAX_TASKS];
    int out[MAX_TASKS];
    int runs[MAX_TASKS];
    int n_threads;
    int bad_worker;
};

static struct job job;

static void square(void *ctx, int task, int worker)
{
    struct job *j = ctx;
    j->out[task] = j->in[task] * j->in[task] + 1;
    j->runs[task]++;
    if (worker < 0 || worker >= j->n_threads)
        j->bad_worker = 1;
}

static void run_and_check(struct tern_pool *p, int n_tasks, int seed)
{
    for (int i = 0; i < n_tasks + 2 && i < MAX_TASKS; i++) {
        job.in[i] = seed % 1000 + i;
        job.out[i] = job.runs[i] = 0;
    }
    job.n_threads = tern_pool_threads(p);
    tern_pool_run(p, square, &job, n_tasks);
    assert_false(job.bad_worker);
    for (int i = 0; i < n_tasks; i++) {
        assert_int_equal(job.runs[i], 1);
        assert_int_equal(job.out[i], job.in[i] * job.in[i] + 1);
    }
    for (int i = n_tasks; i < n_tasks + 2 && i < MAX_TASKS; i++)
        assert_int_equal(job.runs[i], 0);
}

static void counts(void **state)
{
    (void)state;
    for (int n = 1; n <= 8; n++)
        for (int pin = 0; pin <= 1; pin++) {
            struct tern_pool *p;
            assert_int_equal(tern_pool_new(&p, n, pin, NULL), 0);
            assert_int_equal(tern_pool_threads(p), n);
            const int tasks[] = {0, 1, n - 1, n, n + 1, 2 * n + 1, 1000, MAX_TASKS};
            for (int round = 0; round < 3; round++)
                for (size_t i = 0; i < sizeof tasks / sizeof *tasks; i++)
                    run_and_check(p, tasks[i], (int)i + round);
            tern_pool_free(p);
        }
}

static void stress(void **state)
{
    (void)state;
    struct tern_pool *p;
    assert_int_equal(tern_pool_new(&p, 2, 1, NULL), 0);
    for (int i = 0; i < 100000; i++)
        run_and_check(p, i % 7, i);
    tern_pool_free(p);
}

/* More threads than cores: no thread may spin on the core that another one needs. */
static void stress_oversubscribed(void **state)
{
    (void)state;
    struct tern_pool *p;
    assert_int_equal(tern_pool_new(&p, 8, 1, NULL), 0);
    for (int i = 0; i < 3000; i++)
        run_and_check(p, i % 19, i);
    tern_pool_free(p);
}

/* Gaps around and beyond the spin budget, so that runs meet workers that spin, that fall asleep and that sleep. */
static void gaps(void **state)
{
    (void)state;
    struct tern_pool *p;
    assert_int_equal(tern_pool_new(&p, 3, 0, NULL), 0);
    for (int i = 0; i < 300; i++) {
        struct timespec t = {0, (i % 12) * 20000L};
        nanosleep(&t, NULL);
        run_and_check(p, 3 + i % 3, i);
    }
    tern_pool_free(p);
}

static void create_and_free(void **state)
{
    (void)state;
    for (int i = 0; i < 300; i++) {
        struct tern_pool *p;
        assert_int_equal(tern_pool_new(&p, 1 + i % 5, i & 1, NULL), 0);
        if (i % 3)
            run_and_check(p, i % 9, i);
        tern_pool_free(p);
    }
    tern_pool_free(NULL);
}

static void bad_counts(void **state)
{
    (void)state;
    const int bad[] = {0, -1, 1025, INT32_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        tern_error err = {0};
        struct tern_pool *p = (struct tern_pool *)&err;
        assert_int_equal(tern_pool_new(&p, bad[i], 0, &err), TERN_EINVAL);
        assert_null(p);
        assert_int_equal(err.code, TERN_EINVAL);
        assert_non_null(strstr(err.msg, "threads"));
    }
}

struct meet {
    atomic_int arrived;
    int n;
};

/* Each task waits for all others, which ends only when n threads really work at the same time. */
static void wait_for_all(void *ctx, int task, int worker)
{
    struct meet *m = ctx;
    (void)task;
    (void)worker;
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < m->n)
        sched_yield();
}

static void all_take_part(void **state)
{
    (void)state;
    for (int n = 2; n <= 6; n++) {
        struct tern_pool *p;
        assert_int_equal(tern_pool_new(&p, n, 0, NULL), 0);
        for (int round = 0; round < 20; round++) {
            struct meet m = {.n = n};
            tern_pool_run(p, wait_for_all, &m, n);
            assert_int_equal(atomic_load(&m.arrived), n);
            if (round % 2)
                usleep(300);
        }
        tern_pool_free(p);
    }
}

/* Where the two tasks of a run ran; they meet, so they ran on two threads. */
struct cores {
    cpu_set_t at[2];
    int worker[2];
    atomic_int arrived;
};

static void note_core(void *ctx, int task, int worker)
{
    struct cores *c = ctx;
    c->worker[task] = worker;
    pthread_getaffinity_np(pthread_self(), sizeof c->at[task], &c->at[task]);
    atomic_fetch_add(&c->arrived, 1);
    while (atomic_load(&c->arrived) < 2)
        sched_yield();
}

/* The worker has one core; the owner, who is the caller, keeps what it had. */
static void check_pinned(struct tern_pool *p, const cpu_set_t *owner)
{
    struct cores c = {0};
    tern_pool_run(p, note_core, &c, 2);
    assert_int_equal(c.worker[0] + c.worker[1], 1);
    for (int task = 0; task < 2; task++)
        if (c.worker[task])
            assert_int_equal(CPU_COUNT(&c.at[task]), 1);
        else
            assert_true(CPU_EQUAL(owner, &c.at[task]));
}

static void pinning(void **state)
{
    (void)state;
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    if (CPU_COUNT(&before) < 2)
        skip();
    struct tern_pool *p, *second;
    assert_int_equal(tern_pool_new(&p, 2, 1, NULL), 0);
    check_pinned(p, &before);
    assert_int_equal(tern_pool_new(&second, 2, 1, NULL), 0); /* sees all cores beside the first pool */
    check_pinned(second, &before);
    tern_pool_free(second);
    tern_pool_free(p);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    /* More threads than processors: nobody is pinned. */
    struct cores wide = {0};
    assert_int_equal(tern_pool_new(&p, CPU_COUNT(&before) + 1, 1, NULL), 0);
    tern_pool_run(p, note_core, &wide, 2);
    assert_true(CPU_EQUAL(&before, &wide.at[0]));
    assert_true(CPU_EQUAL(&before, &wide.at[1]));
    tern_pool_free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts),        cmocka_unit_test(stress),     cmocka_unit_test(stress_oversubscribed),
        cmocka_unit_test(gaps),          cmocka_unit_test(bad_counts), cmocka_unit_test(create_and_free),
        cmocka_unit_test(all_take_part), cmocka_unit_test(pinning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

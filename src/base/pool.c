#include "base/pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "base/mem.h"

#define MAX_THREADS 1024
#define SPIN_NS     100000 /* longest gap between two kernels of a decode step that is worth burning a core for */
#define SPIN_CHECK  64     /* pauses between two looks at the clock */

struct worker {
    struct tern_pool *pool;
    pthread_t thread;
    int index;
};

/* One run in three words:
 *   open   tasks not handed out yet.  Claiming is one fetch_sub; whoever gets a positive value r owns task n_tasks - r.
 *          It may go below zero by one per thread, and the next run simply overwrites it.
 *   left   tasks not finished.  It counts tasks and not workers, so a worker that has not woken up (its core may belong
 *          to a neighbour just now) is never waited for.
 *   epoch  counts runs: the word that sleeping workers wait on.
 *
 * fn, ctx and n_tasks are plain fields.  They are read only by a thread that has claimed a task; the run cannot end
 * before that task does, so the owner cannot be writing them.  The claim is an acquire that reads from the release
 * sequence headed by the owner's store to `open`, which makes the fields visible.  A late claim that was prepared in
 * one run and lands in the next is a valid claim in the next, because nothing was read before it. */
struct tern_pool {
    _Alignas(64) atomic_int open;
    _Alignas(64) atomic_uint left;
    _Alignas(64) atomic_uint epoch;
    atomic_int sleepers;      /* workers in or near futex_wait */
    atomic_int owner_waiting; /* the owner is in or near futex_wait on `left` */
    atomic_int stop;

    _Alignas(64) tern_pool_fn *fn;
    void *ctx;
    int n_tasks;
    bool running;

    int n_threads, n_started;
    long spin_ns;
    bool pinned;
    struct worker *workers;
};

static void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield" ::: "memory");
#endif
}

static long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}

static void futex_wait(atomic_uint *word, unsigned expected)
{
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word, int n)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

/* Takes tasks until none is open. */
static void work(struct tern_pool *p, int index)
{
    unsigned done = 0;
    while (atomic_load_explicit(&p->open, memory_order_relaxed) > 0) {
        int r = atomic_fetch_sub_explicit(&p->open, 1, memory_order_acquire);
        if (r <= 0)
            break;
        p->fn(p->ctx, p->n_tasks - r, index);
        done++;
    }
    if (!done)
        return;
    /* Sequentially consistent on both sides (see wait_done): either the owner sees 0 or we see that it waits. */
    if (atomic_fetch_sub_explicit(&p->left, done, memory_order_seq_cst) == done &&
        atomic_load_explicit(&p->owner_waiting, memory_order_seq_cst))
        futex_wake(&p->left, 1);
}

/* Waits for work or a new epoch by spinning; false when the budget is used up. */
static bool spin_for_work(struct tern_pool *p, unsigned epoch)
{
    long end = 0;
    for (unsigned i = 0;; i++) {
        if (atomic_load_explicit(&p->open, memory_order_relaxed) > 0 ||
            atomic_load_explicit(&p->epoch, memory_order_relaxed) != epoch)
            return true;
        if (i % SPIN_CHECK == 0) {
            long t = now_ns();
            if (!end)
                end = t + p->spin_ns;
            if (t >= end)
                return false;
        }
        cpu_relax();
    }
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct tern_pool *p = w->pool;
    for (;;) {
        /* The epoch is read before the search for work (and for `stop`), so whatever arrives later changes it. */
        unsigned epoch = atomic_load_explicit(&p->epoch, memory_order_seq_cst);
        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            return NULL;
        work(p, w->index);
        if (spin_for_work(p, epoch))
            continue;
        /* The owner bumps `epoch` and then reads `sleepers`; we write `sleepers` and then compare `epoch` (the kernel
         * does).  In the total order of these four, one of us sees the other. */
        atomic_fetch_add_explicit(&p->sleepers, 1, memory_order_seq_cst);
        if (atomic_load_explicit(&p->epoch, memory_order_seq_cst) == epoch)
            futex_wait(&p->epoch, epoch);
        atomic_fetch_sub_explicit(&p->sleepers, 1, memory_order_relaxed);
    }
}

static void wait_done(struct tern_pool *p)
{
    long end = 0;
    for (unsigned i = 0; atomic_load_explicit(&p->left, memory_order_acquire); i++) {
        if (i % SPIN_CHECK == 0) {
            long t = now_ns();
            if (!end)
                end = t + p->spin_ns;
            if (t >= end)
                break;
        }
        cpu_relax();
    }
    /* The budget is gone while a worker still holds a task: perhaps it needs the very core this thread sits on. */
    unsigned left = atomic_load_explicit(&p->left, memory_order_acquire);
    if (!left)
        return;
    atomic_store_explicit(&p->owner_waiting, 1, memory_order_seq_cst);
    while ((left = atomic_load_explicit(&p->left, memory_order_seq_cst)) != 0)
        futex_wait(&p->left, left);
    atomic_store_explicit(&p->owner_waiting, 0, memory_order_relaxed);
}

void tern_pool_run(struct tern_pool *p, tern_pool_fn *fn, void *ctx, int n_tasks)
{
    TERN_ASSERT(n_tasks >= 0 && !p->running);
    if (n_tasks == 0)
        return;
    p->running = true;
    if (n_tasks == 1 || p->n_threads == 1) {
        for (int i = 0; i < n_tasks; i++)
            fn(ctx, i, 0);
        p->running = false;
        return;
    }
    p->fn = fn;
    p->ctx = ctx;
    p->n_tasks = n_tasks;
    atomic_store_explicit(&p->left, (unsigned)n_tasks, memory_order_relaxed);
    atomic_store_explicit(&p->open, n_tasks, memory_order_release);
    atomic_fetch_add_explicit(&p->epoch, 1, memory_order_seq_cst);
    int sleepers = atomic_load_explicit(&p->sleepers, memory_order_seq_cst);
    if (sleepers > 0)
        futex_wake(&p->epoch, n_tasks - 1 < sleepers ? n_tasks - 1 : sleepers);
    work(p, 0);
    wait_done(p);
    p->running = false;
}

/* ---- pinning ------------------------------------------------------------------------------------------------ */

/* Workers are pinned to all chosen cores but the first, which is left to the owner.  The owner itself is the caller's
 * thread and stays as it is: pinning it would hide the other cores from a second pool opened by the same thread. */

/* Key of the physical core behind a logical processor; its own number where the system does not say. */
static long core_key(int cpu)
{
    static const char *const names[2] = {"physical_package_id", "core_id"};
    long v[2];
    for (int i = 0; i < 2; i++) {
        char path[96];
        (void)snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", cpu, names[i]);
        FILE *f = fopen(path, "re");
        bool ok = f && fscanf(f, "%ld", &v[i]) == 1 && v[i] >= 0;
        if (f)
            (void)fclose(f);
        if (!ok)
            return -1 - cpu;
    }
    return v[0] << 32 | v[1];
}

/* The first n processors of the mask to pin to: one of each physical core first, hyper-threads after them.  Returns
 * how many there are. */
static int choose_cpus(int *cpus, int n, const cpu_set_t *mask)
{
    long keys[CPU_SETSIZE];
    bool taken[CPU_SETSIZE] = {false};
    int n_found = 0;
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, mask))
            keys[c] = core_key(c);
    for (int pass = 0; pass < 2; pass++)
        for (int c = 0; c < CPU_SETSIZE && n_found < n; c++) {
            if (!CPU_ISSET(c, mask) || taken[c])
                continue;
            bool shared = false;
            for (int i = 0; i < n_found && pass == 0; i++)
                shared |= keys[cpus[i]] == keys[c];
            if (shared)
                continue;
            taken[c] = true;
            cpus[n_found++] = c;
        }
    return n_found;
}

static int start_workers(struct tern_pool *p, const int *cpus, tern_error *err)
{
    int rc = 0;
    pthread_attr_t attr;
    sigset_t all, old;
    if (pthread_attr_init(&attr))
        return tern_err_set(err, TERN_ENOMEM, "cannot prepare %d threads", p->n_threads);
    /* Signals belong to the program's own threads. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (int i = 1; i < p->n_threads; i++) {
        struct worker *w = &p->workers[i];
        *w = (struct worker){.pool = p, .index = i};
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpus[i], &one);
        if (p->pinned)
            pthread_attr_setaffinity_np(&attr, sizeof one, &one);
        int e = pthread_create(&w->thread, &attr, worker_main, w);
        if (e)
            TERN_FAIL(err, TERN_ENOMEM, "cannot start thread %d of %d: %s", i + 1, p->n_threads, strerror(e));
        p->n_started++;
    }
out:
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

int tern_pool_new(struct tern_pool **out, int n_threads, int pin, tern_error *err)
{
    int rc = 0;
    struct tern_pool *p = NULL;
    int cpus[MAX_THREADS] = {0};
    *out = NULL;
    if (n_threads < 1 || n_threads > MAX_THREADS)
        TERN_FAIL(err, TERN_EINVAL, "number of threads is %d, but must be 1 to %d", n_threads, MAX_THREADS);
    TERN_TRY(tern_alloc(&p, 1, sizeof *p, err));
    TERN_TRY(tern_alloc(&p->workers, (size_t)n_threads, sizeof *p->workers, err));
    p->n_threads = n_threads;
    int n_cpus = 0;
    cpu_set_t mask;
    if (sched_getaffinity(0, sizeof mask, &mask) == 0)
        n_cpus = choose_cpus(cpus, n_threads, &mask);
    p->pinned = pin && n_cpus >= n_threads;
    /* With more threads than processors a spinning thread sits on the core that the thread it waits for needs. */
    p->spin_ns = n_cpus == 0 || n_cpus >= n_threads ? SPIN_NS : 0;
    TERN_TRY(start_workers(p, cpus, err));
    *out = p;
    return 0;
out:
    tern_pool_free(p);
    return rc;
}

void tern_pool_free(struct tern_pool *p)
{
    if (!p)
        return;
    atomic_store_explicit(&p->stop, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&p->epoch, 1, memory_order_seq_cst);
    futex_wake(&p->epoch, MAX_THREADS);
    for (int i = 1; i <= p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    tern_free(p->workers);
    tern_free(p);
}

int tern_pool_threads(const struct tern_pool *p)
{
    return p->n_threads;
}

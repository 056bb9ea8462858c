/* The device `cuda` on machines where something is missing, by drivers that are not real (fake_driver.c):
 *   test_driver CASE
 * Each case is a process of its own, for a process looks for the driver once. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "dev/dev.h"

#define CHECK(cond)                                                               \
    do {                                                                          \
        if (!(cond)) {                                                            \
            (void)fprintf(stderr, "line %d: %s: %s\n", __LINE__, #cond, err.msg); \
            exit(1);                                                              \
        }                                                                         \
    } while (0)

static tern_error err;
static struct tern_dev *d;

static void refused(const char *name, int code, const char *words)
{
    const struct tern_dev_ops *ops;
    CHECK(tern_dev_find(&ops, name, &err) == code);
    CHECK(!ops && strstr(err.msg, words) && !strchr(err.msg, '\n'));
    CHECK(tern_dev_open(&d, name, NULL, &err) == code && !d);
    /* "auto" is the CPU, and says why where there is a card */
    struct tern_dev_choice any;
    tern_dev_auto(&any);
    CHECK(strcmp(any.first->name, "cpu") == 0 && !any.then && any.why.code == (code == TERN_ENOENT ? 0 : code));
    CHECK(!any.why.code || strstr(any.why.msg, words));
    CHECK(tern_dev_find(&ops, "auto", &err) == 0 && ops == any.first);
}

/* Memory that is there holds what was copied; what is lazy is taken when it is written. */
static void memory(void)
{
    struct tern_dev_mem *lazy, *whole, *other;
    char text[] = "0123456789", back[sizeof text];
    CHECK(tern_dev_open(&d, "cuda", NULL, &err) == 0);
    CHECK(d->ops->reserve(d, &lazy, (size_t)1 << 40, true, &err) == 0);
    CHECK(d->ops->reserve(d, &whole, 1000, false, &err) == 0);
    CHECK(d->ops->adopt(d, &other, text, sizeof text, &err) == 0);
    d->ops->copy_in(d, lazy, ((size_t)1 << 40) - 11, text, 11);
    d->ops->copy(d, whole, 5, lazy, ((size_t)1 << 40) - 11, 11);
    memset(back, 'x', sizeof back);
    d->ops->copy_out(d, back, lazy, 12345678, 4); /* never written */
    d->ops->sync(d);
    CHECK(memcmp(back, "\0\0\0\0x", 5) == 0);
    d->ops->copy_out(d, back, whole, 5, 11);
    d->ops->sync(d);
    CHECK(memcmp(back, text, 11) == 0);
    d->ops->discard(d, lazy, 0, (size_t)1 << 40);
    d->ops->copy_out(d, back, lazy, ((size_t)1 << 40) - 11,
                     4); /* within the chunk at the edge, or given back: either */
    d->ops->sync(d);
    CHECK(tern_dev_fault(d, false, &err) == 0);
    d->ops->release(d, lazy);
    d->ops->release(d, whole);
    d->ops->release(d, other);
    tern_dev_close(d);
}

/* More small copies than are held back at a time, and one that is too large to be. */
static void copies(void)
{
    enum { N = 200, LARGE = 6 << 20 };
    struct tern_dev_mem *m;
    struct tern_pool *pool;
    static int32_t from[LARGE / 4], back[LARGE / 4];
    CHECK(tern_pool_new(&pool, 1, 0, &err) == 0);
    CHECK(tern_dev_open(&d, "cuda", pool, &err) == 0);
    for (int i = 0; i < LARGE / 4; i++)
        from[i] = i * 7 + 1;
    CHECK(d->ops->reserve(d, &m, sizeof from, false, &err) == 0);
    d->ops->copy_in(d, m, 0, from, sizeof from);
    for (int round = 0; round < 3; round++) {
        memset(back, 0, sizeof back);
        for (int i = 0; i < N; i++)
            d->ops->copy_out(d, back + 1000 * i, m, 4000 * (size_t)i, 4 * (size_t)(i + 1));
        d->ops->copy_out(d, back + 500000, m, 2000000, 3 << 20);
        d->ops->copy_out(d, back + 1300000, m, 5200000, 900000);
        d->ops->sync(d);
        for (int i = 0; i < N; i++)
            CHECK(memcmp(back + 1000 * i, from + 1000 * i, 4 * (size_t)(i + 1)) == 0 && back[1000 * i + i + 1] == 0);
        CHECK(memcmp(back + 500000, from + 500000, 3 << 20) == 0 &&
              memcmp(back + 1300000, from + 1300000, 900000) == 0);
    }
    for (int round = 0; round < 3; round++) { /* where copies land; then nowhere */
        memset(back, 0, sizeof back);
        d->ops->lands(d, round == 2 ? NULL : back + 1000 * round, round == 2 ? 0 : 1 << 20);
        d->ops->copy_out(d, back, m, 0, 1 << 20);
        d->ops->copy_out(d, back + (1 << 18), m, 1 << 20, 1 << 20);
        d->ops->sync(d);
        CHECK(memcmp(back, from, 2 << 20) == 0 && back[1 << 19] == 0);
    }
    d->ops->copy_out(d, back, m, 0, 64); /* nobody waits for it */
    CHECK(tern_dev_fault(d, false, &err) == 0);
    d->ops->release(d, m);
    tern_dev_close(d);
    tern_pool_free(pool);
}

/* A full card is one error, after which it goes on. */
static void full(void)
{
    struct tern_dev_mem *m, *lazy;
    char byte = 1;
    CHECK(tern_dev_open(&d, "cuda", NULL, &err) == 0);
    CHECK(d->ops->reserve(d, &m, (size_t)1 << 30, false, &err) == TERN_ENOMEM && !m);
    CHECK(strstr(err.msg, "1025 MiB are needed") && strstr(err.msg, "Fake card"));
    CHECK(d->ops->reserve(d, &lazy, (size_t)1 << 30, true, &err) == 0);
    for (size_t at = 0; at < (size_t)128 << 20; at += (size_t)16 << 20)
        d->ops->copy_in(d, lazy, at, &byte, 1);
    d->ops->sync(d);
    CHECK(tern_dev_fault(d, false, &err) == TERN_ENOMEM && !strchr(err.msg, '\n'));
    CHECK(tern_dev_fault(d, false, &err) == 0);
    d->ops->discard(d, lazy, 0, (size_t)1 << 30);
    d->ops->copy_in(d, lazy, (size_t)500 << 20, &byte, 1);
    d->ops->sync(d);
    CHECK(tern_dev_fault(d, false, &err) == 0);
    const struct tern_dev_limits l = {.max_rows = 1 << 16, .max_narrow = 1 << 16, .max_k = 1 << 16};
    CHECK(d->ops->prepare(d, &l, &err) == TERN_ENOMEM);
    d->ops->release(d, lazy);
    tern_dev_close(d);
}

/* A lost card stays lost, and nothing hangs. */
static void lost(void)
{
    const struct tern_dev_limits l = {.max_rows = 4, .max_narrow = 4, .max_k = 64};
    const struct tern_dev_step s = {.n_rows = 1};
    struct tern_dev_rows x;
    CHECK(tern_dev_open(&d, "cuda:1", NULL, &err) == 0);
    CHECK(d->ops->prepare(d, &l, &err) == 0);
    CHECK(tern_dev_rows_new(d, &x, 1, 64, &err) == 0);
    for (int i = 0; i < 3; i++) {
        d->ops->begin(d, &s);
        d->ops->scale(d, x, 1, 2);
        d->ops->end(d);
        d->ops->sync(d);
        CHECK(tern_dev_fault(d, false, &err) == TERN_EIO);
        CHECK(strstr(err.msg, "lost") && strstr(err.msg, "Fake card"));
    }
    struct tern_dev_mem *m;
    CHECK(d->ops->reserve(d, &m, 64, false, &err) == TERN_EIO && !m);
    d->ops->release(d, x.mem);
    tern_dev_close(d);
}

/* Stacks are what the largest kernel needs, 600 bytes, and not less than others in this process have. */
static void stacks(size_t bytes)
{
    size_t (*stack)(void) = NULL;
    CHECK(tern_dev_open(&d, "cuda", NULL, &err) == 0);
    void *lib = dlopen(getenv("TERN_CUDA_DRIVER"), RTLD_NOW | RTLD_NOLOAD);
    CHECK(lib);
    *(void **)&stack = dlsym(lib, "fake_stack");
    CHECK(stack && stack() == bytes);
    tern_dev_close(d);
}

int main(int argc, char **argv)
{
    const char *which = argc > 1 ? argv[1] : "";
    if (strcmp(which, "nothing") == 0)
        refused("cuda", TERN_ENOENT, "no NVIDIA driver");
    else if (strcmp(which, "none") == 0 || strcmp(which, "hidden") == 0)
        refused("cuda", TERN_ENOENT, "no card");
    else if (strcmp(which, "ancient") == 0)
        refused("cuda", TERN_EUNSUPPORTED, "of CUDA 11.4, and 12.0 is needed");
    else if (strcmp(which, "locked") == 0)
        refused("cuda", TERN_EIO, "opening the card failed");
    else if (strcmp(which, "old") == 0)
        refused("cuda", TERN_EUNSUPPORTED, "compute capability 7.5");
    else if (strcmp(which, "number") == 0) {
        const struct tern_dev_ops *ops;
        CHECK(tern_dev_find(&ops, "cuda:7", &err) == TERN_EINVAL && strstr(err.msg, "this machine has 2"));
        CHECK(tern_dev_find(&ops, "cuda:", &err) == TERN_EINVAL && tern_dev_find(&ops, "cuda:1x", &err) == TERN_EINVAL);
        CHECK(tern_dev_find(&ops, "cuda:9", &err) == TERN_EINVAL && tern_dev_find(&ops, "auto", &err) == 0);
        CHECK(strcmp(ops->name, "cuda") == 0 && strcmp(tern_dev_host()->name, "cpu") == 0);
    } else if (strcmp(which, "memory") == 0)
        memory();
    else if (strcmp(which, "copies") == 0)
        copies();
    else if (strcmp(which, "small") == 0)
        full();
    else if (strcmp(which, "lost") == 0)
        lost();
    else if (strcmp(which, "stacks") == 0 || strcmp(which, "tight") == 0)
        stacks(640);
    else if (strcmp(which, "shared") == 0)
        stacks(1024);
    else
        return 2;
    return 0;
}

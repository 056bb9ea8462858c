/* Pools of blocks: budgets that run out, memory that goes back to the system, references from another thread. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>
#include "blocks.h"
#include "dev/cpu/cpu.h"
#include "base/mem.h"
#include "base/rng.h"
#include "kv/kv.h"

#define OK(call)                      \
    do {                              \
        tern_error err_ = {0};        \
        tern_error *err = &err_;      \
        if ((call) < 0)               \
            fail_msg("%s", err_.msg); \
    } while (0)

static const struct tern_kv_decl decl[3] = {
    {.n_heads = 3, .dim_k = 64, .dim_v = 64},
    {.n_heads = 2, .dim_k = 128, .dim_v = 64, .reach = {100, false}},
    {.state_bytes = 640},
};

static void open_cache(struct tern_kv_layout **l, struct tern_kv_cache *c, struct tern_kv_budget *b, int seqs)
{
    tern_kernels_init(~0u);
    OK(tern_kv_layout_new(l, decl, 3, "l4", false, err));
    OK(tern_kv_cache_init(c, *l, &(struct tern_kv_room){seqs, 4096, 4096, b, NULL}, err));
}

static size_t used(const struct tern_kv_cache *c)
{
    return tern_kv_used_bytes(c) + tern_kv_state_bytes(c);
}

static void step(struct tern_kv_cache *c, struct tern_kv_seq *s, int n)
{
    OK(tern_kv_begin(c, s, n, err));
    (void)tern_kv_mark(c, s, n, true);
    tern_kv_commit(c, s, n);
}

/* ---- budgets ----------------------------------------------------------------------------------------------------- */

/* Every budget from nothing to plenty: whatever runs out is refused before anything has changed, and what was given
 * back can be had again. */
static void test_every_budget(void **state)
{
    struct tern_kv_layout *l;
    struct tern_kv_cache c;
    struct tern_kv_budget b = {.limit = SIZE_MAX};
    size_t most;
    (void)state;
    open_cache(&l, &c, &b, 2);
    struct tern_kv_seq *s, *t;
    OK(tern_kv_seq_new(&c, &s, err));
    step(&c, s, 200);
    OK(tern_kv_seq_fork(&c, &t, s, err));
    step(&c, t, 64);
    most = used(&c);
    assert_int_equal(atomic_load(&b.used), most);
    tern_kv_seq_free(&c, s);
    tern_kv_seq_free(&c, t);
    assert_int_equal(atomic_load(&b.used), 0);
    tern_kv_cache_clear(&c);
    int refused[3] = {0};
    for (size_t limit = 0; limit < most + 4096; limit += 1088) {
        tern_error why = {0};
        b.limit = limit;
        OK(tern_kv_cache_init(&c, l, &(struct tern_kv_room){2, 4096, 4096, &b, NULL}, err));
        int rc = tern_kv_seq_new(&c, &s, &why), n = 0;
        for (int i = 0; rc == 0 && i < 4; i++) {
            const size_t before = used(&c);
            rc = tern_kv_begin(&c, s, 50, &why);
            if (rc == 0) {
                (void)tern_kv_mark(&c, s, 50, true);
                tern_kv_commit(&c, s, 50);
                n += 50;
            } else {
                assert_int_equal(used(&c), before);
                refused[1]++;
            }
            assert_int_equal(s->n_tokens, n);
        }
        if (rc == 0 && (rc = tern_kv_seq_fork(&c, &t, s, &why)) == 0)
            tern_kv_seq_free(&c, t);
        else
            refused[n ? 2 : 0]++;
        if (rc < 0) {
            char limit_text[32];
            (void)snprintf(limit_text, sizeof limit_text, "of %zu bytes", limit);
            assert_int_equal(rc, TERN_ECAPACITY);
            assert_non_null(strstr(why.msg, limit_text));
        }
        assert_true(atomic_load(&b.used) <= limit);
        tern_kv_seq_free(&c, s);
        assert_int_equal(atomic_load(&b.used), 0);
        tern_kv_cache_clear(&c);
    }
    assert_true(refused[0] && refused[1] && refused[2]); /* each kind occurred */
    tern_kv_layout_free(l);
}

/* Two caches of one budget, and somebody who refers to pages when the sequence is gone. */
static void test_shared_budget(void **state)
{
    struct tern_kv_layout *l;
    struct tern_kv_cache a, c;
    struct tern_kv_budget b = {.limit = 1 << 20};
    struct tern_kv_seq *s, *t;
    tern_error why = {0};
    uint32_t held[16];
    int n_held;
    (void)state;
    open_cache(&l, &a, &b, 1);
    OK(tern_kv_cache_init(&c, l, &(struct tern_kv_room){1, 4096, 4096, &b, NULL}, err));
    OK(tern_kv_seq_new(&a, &s, err));
    OK(tern_kv_seq_new(&c, &t, err));
    while (s->n_tokens < 4096 - 64 && tern_kv_begin(&a, s, 64, &why) == 0)
        tern_kv_commit(&a, s, 64);
    assert_true(s->n_tokens > 256 && s->n_tokens < 4096 - 64);
    assert_int_equal(tern_kv_begin(&c, t, 64, &why), TERN_ECAPACITY);
    assert_non_null(strstr(why.msg, "1048576"));
    for (n_held = 0; n_held < 16; n_held++)
        tern_kv_pool_ref(&a.pool[0], held[n_held] = s->table[0].pages[n_held]);
    tern_kv_seq_free(&a, s);
    assert_int_equal(tern_kv_used_bytes(&a), 16 * a.pool[0].mem.bytes);
    OK(tern_kv_begin(&c, t, 64, err));
    tern_kv_commit(&c, t, 64);
    while (n_held)
        tern_kv_pool_unref(&a.pool[0], held[--n_held]);
    assert_int_equal(used(&a), 0);
    tern_kv_seq_free(&c, t);
    tern_kv_cache_clear(&a);
    tern_kv_cache_clear(&c);
    tern_kv_layout_free(l);
}

/* ---- memory goes back -------------------------------------------------------------------------------------------- */

static size_t resident(const struct tern_kv_pool *p)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = (size_t)p->n_blocks * p->mem.bytes;
    size_t n = 0, pages = (bytes + page - 1) / page;
    unsigned char *in = malloc(pages);
    p->dev->ops->sync(p->dev);
    assert_int_equal(mincore(p->mem.mem->p, bytes, in), 0); /* memory of this machine, on every device of the tests */
    for (size_t i = 0; i < pages; i++)
        n += in[i] & 1;
    free(in);
    return n * page;
}

static void test_memory_goes_back(void **state)
{
    enum { BLOCKS = 4000, BYTES = 9920 }; /* blocks that share pages of the system */
    struct tern_kv_budget b = {.limit = SIZE_MAX};
    struct tern_kv_pool p;
    static uint32_t blocks[BLOCKS];
    const size_t all = (size_t)BLOCKS * BYTES;
    struct tern_dev *dev;
    (void)state;
    OK(tern_dev_open(&dev, NULL, NULL, err));
    OK(tern_kv_pool_init(&p, dev, BYTES, &(struct tern_dev_division){0}, BLOCKS, &b, err));
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            blocks[i] = tern_kv_pool_get(&p);
            assert_true(blocks[i] != TERN_NO_BLOCK);
            block_fill(&p, blocks[i], i % 250 + 1, BYTES);
        }
        assert_int_equal(tern_kv_pool_get(&p), TERN_NO_BLOCK);
        assert_true(resident(&p) > all - 4096);
        for (int i = 0; i < BLOCKS; i++)
            if (i % 100 != 7) {
                tern_kv_pool_unref(&p, blocks[i]);
                tern_kv_pool_settle(&p);
            }
        /* A hundredth is in use, pages of the system at the edges go with it, and a MiB may stay for the next. */
        assert_true(resident(&p) < all / 100 + BLOCKS / 100 * 8192 + (5u << 20) / 4);
        for (int i = 7; i < BLOCKS; i += 100) { /* what is in use has been left alone */
            uint8_t got[BYTES];
            tern_kv_block_read(&p, blocks[i], 0, got, BYTES);
            for (int j = 0; j < BYTES; j++)
                assert_int_equal(got[j], i % 250 + 1);
            tern_kv_pool_unref(&p, blocks[i]);
        }
        assert_int_equal(tern_kv_pool_bytes(&p), 0);
    }
    tern_kv_pool_clear(&p);
    tern_dev_close(dev);
}

/* The pages of a long sequence are resident as long as it is there. */
static void test_cache_gives_back(void **state)
{
    static const struct tern_kv_decl big = {.n_heads = 8, .dim_k = 128, .dim_v = 128};
    struct tern_kv_layout *l;
    struct tern_kv_cache c;
    struct tern_kv_seq *s;
    (void)state;
    tern_kernels_init(~0u);
    OK(tern_kv_layout_new(&l, &big, 1, "f16", false, err));
    OK(tern_kv_cache_init(&c, l, &(struct tern_kv_room){1, 16384, 16384, NULL, NULL}, err));
    OK(tern_kv_seq_new(&c, &s, err));
    OK(tern_kv_begin(&c, s, 16384, err));
    tern_kv_commit(&c, s, 16384);
    for (int i = 0; i < s->table[0].n; i++)
        block_fill(&c.pool[0], s->table[0].pages[i], 1, c.pool[0].mem.bytes);
    c.dev->ops->sync(c.dev);
    assert_true(resident(&c.pool[0]) > (size_t)60 << 20);
    int kept;
    OK(tern_kv_trim(&c, s, 8192, &kept, err));
    c.dev->ops->sync(c.dev);
    assert_true(resident(&c.pool[0]) < (size_t)40 << 20);
    tern_kv_seq_free(&c, s);
    c.dev->ops->sync(c.dev);
    assert_true(resident(&c.pool[0]) < (size_t)4 << 20);
    tern_kv_cache_clear(&c);
    tern_kv_layout_free(l);
}

/* ---- another thread ---------------------------------------------------------------------------------------------- */

/* A ring of pinned pages between the engine's thread and a writer's. */
struct pins {
    struct tern_kv_pool *pool;
    pthread_mutex_t lock;
    pthread_cond_t some, room;
    uint32_t block[64];
    uint8_t value[64];
    int from, n;
    bool done;
    long seen, wrong;
};

static void *write_pages(void *arg)
{
    struct pins *q = arg;
    uint8_t *copy = malloc(q->pool->mem.bytes);
    struct tern_dev *dev; /* of this thread's own */
    OK(tern_dev_open(&dev, NULL, NULL, err));
    for (;;) {
        (void)pthread_mutex_lock(&q->lock);
        while (!q->n && !q->done)
            (void)pthread_cond_wait(&q->some, &q->lock);
        if (!q->n) {
            (void)pthread_mutex_unlock(&q->lock);
            break;
        }
        const uint32_t block = q->block[q->from % 64];
        const uint8_t value = q->value[q->from++ % 64];
        q->n--;
        (void)pthread_mutex_unlock(&q->lock);
        (void)pthread_cond_signal(&q->room);
        tern_kv_pool_ref(q->pool, block); /* once more, and back */
        dev->ops->copy_out(dev, copy, q->pool->mem.mem, block * q->pool->mem.bytes, q->pool->mem.bytes);
        dev->ops->sync(dev);
        tern_kv_pool_unref(q->pool, block);
        for (size_t i = 0; i < q->pool->mem.bytes; i++)
            q->wrong += copy[i] != value;
        tern_kv_pool_unref(q->pool, block);
        q->seen++;
    }
    free(copy);
    tern_dev_close(dev);
    return NULL;
}

static void test_writer_thread(void **state)
{
    struct tern_kv_layout *l;
    struct tern_kv_cache c;
    struct tern_kv_budget b = {.limit = 4 << 20};
    struct tern_kv_seq *s;
    struct pins q = {0};
    struct tern_rng rng = {3};
    pthread_t thread;
    int kept;
    (void)state;
    open_cache(&l, &c, &b, 2);
    q.pool = &c.pool[0];
    (void)pthread_mutex_init(&q.lock, NULL);
    (void)pthread_cond_init(&q.some, NULL);
    (void)pthread_cond_init(&q.room, NULL);
    assert_int_equal(pthread_create(&thread, NULL, write_pages, &q), 0);
    OK(tern_kv_seq_new(&c, &s, err));
    for (int i = 0; i < 3000; i++) {
        if (s->n_tokens > 3000)
            OK(tern_kv_trim(&c, s, (int)(tern_rng_u64(&rng) % 3) * 64, &kept, err));
        OK(tern_kv_begin(&c, s, 64, err));
        const struct tern_kv_table *t = &s->table[0];
        const uint32_t page = t->pages[t->n - 1];
        block_fill(q.pool, page, i % 251, q.pool->mem.bytes);
        c.dev->ops->sync(c.dev);
        tern_kv_commit(&c, s, 64);
        (void)pthread_mutex_lock(&q.lock);
        while (q.n == 64)
            (void)pthread_cond_wait(&q.room, &q.lock);
        tern_kv_pool_ref(q.pool, page);
        q.block[(q.from + q.n) % 64] = page;
        q.value[(q.from + q.n++) % 64] = (uint8_t)(i % 251);
        (void)pthread_mutex_unlock(&q.lock);
        (void)pthread_cond_signal(&q.some);
    }
    tern_kv_seq_free(&c, s);
    (void)pthread_mutex_lock(&q.lock);
    q.done = true;
    (void)pthread_mutex_unlock(&q.lock);
    (void)pthread_cond_signal(&q.some);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(q.wrong, 0);
    assert_true(q.seen == 3000);
    assert_int_equal(atomic_load(&b.used), 0);
    tern_kv_cache_clear(&c);
    tern_kv_layout_free(l);
    (void)pthread_mutex_destroy(&q.lock);
    (void)pthread_cond_destroy(&q.some);
    (void)pthread_cond_destroy(&q.room);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_budget),     cmocka_unit_test(test_shared_budget),
        cmocka_unit_test(test_memory_goes_back), cmocka_unit_test(test_cache_gives_back),
        cmocka_unit_test(test_writer_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

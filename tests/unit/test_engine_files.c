/* Cache files out of a loop's cache and into another one's: the same bytes however they came to be, and nothing is kept
 * of what is not whole. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>
#include "loop_case.h"
#include "run/loop.h"
#include "run/prefix/cachefile.h"
#include "tern/cache.h"

enum { CTX = 1000, TEXT = 900, REPLY = 8, N = 700, WHOLE = N / 64 * 64 };

static const char *const models[] = {"gemma3-w70", "qwen35", "deepseek4", "llama-tied", "deepseek2-lite"};
enum { N_MODELS = 5 };

struct fixture {
    struct tiny t;
    tern_engine *e, *other;
    tern_loop *loop;
    tern_events *q;
    int32_t ids[TEXT];
};

static tern_engine *open_engine(struct tiny *t, int chunk)
{
    tern_engine *e;
    tern_error err = {0};
    const tern_engine_params p = {.n_threads = 2, .max_seqs = 3, .chunk = chunk, .ctx = CTX, .kv = "t4"};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

static void open_loop(struct fixture *f, size_t cache_bytes)
{
    tern_error err = {0};
    f->e = open_engine(&f->t, 150);
    tiny_ok(tern_loop_open(&f->loop, f->e, &(tern_loop_params){.cache_bytes = cache_bytes}, &err), &err);
}

static void close_loop(struct fixture *f)
{
    tern_loop_close(&f->loop);
    lc_close_engine(&f->e);
}

static void set_up(struct fixture *f, const char *model)
{
    tern_error err = {0};
    print_message("%s\n", model);
    tiny_open(&f->t, model, model, model);
    f->t.model->net->desc.ctx = CTX;
    lc_random_ids(f->ids, TEXT, 5, f->t.n_vocab);
    f->other = open_engine(&f->t, 96);
    tiny_ok(tern_events_new(&f->q, &err), &err);
    open_loop(f, (size_t)1 << 30);
}

static void tear_down(struct fixture *f)
{
    close_loop(f);
    tern_engine_close(&f->other);
    tern_events_free(f->q);
    tiny_close(&f->t);
}

static struct lc_request *ask(struct fixture *f, int n, int max_tokens)
{
    tern_request r = lc_greedy(f->ids, n, max_tokens);
    r.logprobs = max_tokens ? 0 : -1;
    return lc_ask(f->loop, f->q, &r);
}

static void *built(struct fixture *f, size_t *n)
{
    char path[] = "/tmp/tern-files-XXXXXX";
    tern_error err = {0};
    struct tern_buf b = {0};
    int kept;
    (void)close(mkstemp(path));
    (void)unlink(path);
    tiny_ok(tern_cache_build(f->other, f->ids, N, path, NULL, NULL, &kept, &err), &err);
    assert_int_equal(kept, WHOLE);
    tiny_ok(tern_buf_read_file(&b, path, (size_t)1 << 30, &err), &err);
    (void)unlink(path);
    *n = b.len;
    return b.p;
}

static void test_out_and_in(void **state)
{
    (void)state;
    for (int m = 0; m < N_MODELS; m++) {
        struct fixture f;
        tern_error err = {0};
        void *file, *bytes;
        size_t n_file, n;
        int n_tokens;
        set_up(&f, models[m]);
        assert_int_equal(tern_loop_cache_export(f.loop, f.ids, N, SIZE_MAX, &bytes, &n, &n_tokens, &err), TERN_ENOENT);
        free(ask(&f, 300, 4)); /* a part is found, and the rest computed */
        free(ask(&f, WHOLE, 0));
        tiny_ok(tern_loop_cache_export(f.loop, f.ids, N, SIZE_MAX, &bytes, &n, &n_tokens, &err), &err);
        assert_int_equal(n_tokens, WHOLE);
        file = built(&f, &n_file);
        assert_int_equal(n, n_file);
        assert_memory_equal(bytes, file, n);
        free(file);
        assert_int_equal(tern_loop_cache_export(f.loop, f.ids, N, n - 1, &file, &n_file, &n_tokens, &err), TERN_ELIMIT);
        close_loop(&f);

        open_loop(&f, (size_t)1 << 30);
        struct lc_request *cold = ask(&f, TEXT, REPLY);
        assert_int_equal(cold->end.n_cached, 0);
        close_loop(&f);
        open_loop(&f, (size_t)1 << 30);
        for (int i = 0; i < 2; i++) {
            tiny_ok(tern_loop_cache_import(f.loop, bytes, n, &n_tokens, &err), &err);
            assert_int_equal(n_tokens, WHOLE);
        }
        struct lc_request *hit = ask(&f, TEXT, REPLY);
        assert_int_equal(hit->end.n_cached, WHOLE);
        assert_memory_equal(hit->c[0].ids, cold->c[0].ids, REPLY * sizeof(int32_t));
        assert_memory_equal(hit->c[0].logprob, cold->c[0].logprob, REPLY * sizeof(double));
        free(cold);
        free(hit);
        free(bytes);
        tear_down(&f);
    }
}

static void refuse(struct fixture *f, const uint8_t *bytes, size_t n, const char *what)
{
    tern_error err = {0};
    tern_loop_stats s;
    int n_tokens = -1;
    if (tern_loop_cache_import(f->loop, bytes, n, &n_tokens, &err) == 0 || n_tokens != 0)
        fail_msg("%s: %d tokens were taken", what, n_tokens);
    tern_loop_get_stats(f->loop, &s);
    assert_int_equal(s.cache.entries, 0);
    assert_true(err.msg[0] != 0);
}

/* The head says what it says with a checksum that fits. */
static void seal_head(uint8_t *file)
{
    struct tern_cachefile_head h;
    memcpy(&h, file, sizeof h);
    h.hash = XXH3_64bits(&h, offsetof(struct tern_cachefile_head, hash));
    memcpy(file, &h, sizeof h);
}

static void test_damage(void **state)
{
    (void)state;
    for (int m = 0; m < 2; m++) {
        struct fixture f;
        size_t n;
        set_up(&f, models[m]);
        uint8_t *good = built(&f, &n), *bad = malloc(n + 64);
        for (int i = 0; i < 200; i++) {
            const size_t at = i < 64 ? (size_t)i * 4 : (size_t)i * (n / 200);
            memcpy(bad, good, n);
            bad[at] ^= (uint8_t)(1 << i % 8);
            refuse(&f, bad, n, "a flipped bit");
        }
        for (size_t cut = 0; cut < n; cut += n / 50)
            refuse(&f, good, cut, "cut off");
        memcpy(bad, good, n);
        memset(bad + n, 0, 64);
        refuse(&f, bad, n + 64, "more behind it");
        memcpy(bad + 1, good, n);
        refuse(&f, bad + 1, n, "not aligned");
        struct tern_cachefile_head *h = (struct tern_cachefile_head *)(void *)bad;
        const struct {
            size_t at;
            uint64_t value;
            int bytes;
        } lies[] = {{16, 0, 4},          {16, 63, 4},         {16, 1u << 31, 4}, {16, 0xffffffc0u, 4}, {20, 0, 4},
                    {20, 0xffffffff, 4}, {24, UINT64_MAX, 8}, {8, 2, 4},         {12, 0x04030201, 4},  {40, 7, 8},
                    {48, 7, 8},          {56, 99, 8},         {240, 1, 8}};
        for (size_t i = 0; i < sizeof lies / sizeof *lies; i++) {
            memcpy(bad, good, n);
            memcpy(bad + lies[i].at, &lies[i].value, (size_t)lies[i].bytes);
            seal_head(bad);
            refuse(&f, bad, n, "a head that lies");
        }
        /* Tokens outside the vocabulary, with checksums and keys that fit. */
        memcpy(bad, good, n);
        int32_t *tokens = (int32_t *)(void *)(bad + sizeof *h);
        tokens[5] = f.t.n_vocab;
        h->tokens_hash = XXH3_64bits(tokens, h->n_tokens * sizeof *tokens);
        seal_head(bad);
        refuse(&f, bad, n, "tokens of another vocabulary");
        free(good);
        free(bad);
        tear_down(&f);
    }
}

/* Too large for the cache: nothing of it, by name; and a loop without a cache. */
static void test_no_room(void **state)
{
    (void)state;
    struct fixture f;
    tern_error err = {0};
    size_t n;
    int n_tokens;
    void *bytes;
    set_up(&f, "llama-tied");
    uint8_t *good = built(&f, &n);
    close_loop(&f);
    open_loop(&f, n / 2);
    assert_int_equal(tern_loop_cache_import(f.loop, good, n, &n_tokens, &err), TERN_ELIMIT);
    close_loop(&f);
    open_loop(&f, 0);
    assert_int_equal(tern_loop_cache_import(f.loop, good, n, &n_tokens, &err), TERN_EUNSUPPORTED);
    assert_int_equal(tern_loop_cache_export(f.loop, f.ids, N, SIZE_MAX, &bytes, &n, &n_tokens, &err),
                     TERN_EUNSUPPORTED);
    free(good);
    tear_down(&f);
}

/* A device that says it is lost to who has to be sure of what it brought; steps are not told. */
static int lost(struct tern_dev *d, bool keep, tern_error *err)
{
    (void)d;
    return keep ? tern_err_set(err, TERN_EIO, "the device is lost") : 0;
}

/* A loop on f->e with a folder: how much of the prompt it knew. */
static int asked_in_folder(struct fixture *f, const char *folder, int exported)
{
    tern_error err = {0};
    void *bytes = NULL;
    size_t n;
    int n_tokens;
    tiny_ok(
        tern_loop_open(&f->loop, f->e, &(tern_loop_params){.cache_bytes = (size_t)1 << 30, .cache_dir = folder}, &err),
        &err);
    struct lc_request *r = ask(f, WHOLE + 1, 1);
    const int known = r->end.n_cached;
    free(r);
    assert_int_equal(tern_loop_cache_export(f->loop, f->ids, N, SIZE_MAX, &bytes, &n, &n_tokens, &err), exported);
    free(bytes);
    tern_loop_close(&f->loop);
    return known;
}

/* Of what a lost device brought, which are zeros, nothing is kept: no session, no page in a folder, no cache file. */
static void test_lost_device(void **state)
{
    (void)state;
    struct fixture f;
    tern_error err = {0};
    char folder[] = "/tmp/tern-lost-XXXXXX", file[64], line[96];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(file, sizeof file, "%s/session", folder);
    set_up(&f, "llama-tied");
    close_loop(&f);
    f.e = open_engine(&f.t, 150);
    const struct tern_dev_ops *whole = f.e->dev->ops;
    struct tern_dev_ops broken = *whole;
    broken.fault = lost;

    f.e->dev->ops = &broken;
    assert_int_equal(asked_in_folder(&f, folder, TERN_EIO), 0);
    tern_seq *s;
    tiny_ok(tern_seq_new(&s, f.e, &err), &err);
    const tern_step_item it = {.seq = s, .tokens = f.ids, .n_tokens = 70, .logits = TERN_LOGITS_LAST};
    const float *logits;
    tiny_ok(tern_step(f.e, &it, 1, &logits, &err), &err);
    assert_int_equal(tern_seq_save(s, file, &err), TERN_EIO);
    assert_int_not_equal(access(file, F_OK), 0);

    f.e->dev->ops = whole;
    tiny_ok(tern_seq_save(s, file, &err), &err);
    tern_seq_free(s);
    assert_int_equal(asked_in_folder(&f, folder, 0), 0);
    assert_int_equal(asked_in_folder(&f, folder, 0), WHOLE + 1);
    (void)snprintf(line, sizeof line, "rm -rf %s", folder);
    assert_int_equal(system(line), 0);
    lc_close_engine(&f.e);
    open_loop(&f, 0);
    tear_down(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_out_and_in),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_lost_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Recurrent states of sequences: which ones are kept, what forks share, going back to them, and what they cost. */
#include "blocks.h"
#include "tiny_promises.h"

#include "kv/kv.h"
#include "run/run.h"

enum { PAGE = 64, STATE = 320, CTX = 8192, STEP = 1024 };

/* ---- bookkeeping, without a model -------------------------------------------------------------------------------- */

struct bench {
    struct tern_kv_layout *layout;
    struct tern_kv_cache cache;
};

static void bench_open(struct bench *b, const char *spec)
{
    tern_error err = {0};
    struct tern_kv_decl decl[3] = {
        {.state_bytes = STATE - 128}, {.n_heads = 2, .dim_k = 64, .dim_v = 64}, {.state_bytes = 100}};
    tern_kernels_init(~0u);
    tiny_ok(tern_kv_layout_new(&b->layout, decl, 3, spec, false, &err), &err);
    tiny_ok(tern_kv_cache_init(&b->cache, b->layout, &(struct tern_kv_room){3, CTX, STEP, NULL, NULL}, &err), &err);
}

static void bench_close(struct bench *b)
{
    tern_kv_cache_clear(&b->cache);
    tern_kv_layout_free(b->layout);
}

static const uint8_t *at_block(const struct bench *b, uint32_t block)
{
    return block_look(&b->cache.states, block);
}

/* A step of n tokens: the state says how many tokens it has seen. */
static void step(struct bench *b, struct tern_kv_seq *s, int n, bool prompt)
{
    tern_error err = {0};
    tiny_ok(tern_kv_begin(&b->cache, s, n, &err), &err);
    const struct tern_kv_checkpoint *k = tern_kv_mark(&b->cache, s, n, prompt);
    if (k) {
        assert_true(k->at > s->n_tokens && k->at <= s->n_tokens + n && k->at % PAGE == 0);
        block_fill(&b->cache.states, k->state, k->at / PAGE, STATE);
    }
    tern_kv_commit(&b->cache, s, n);
    block_fill(&b->cache.states, s->state, s->n_tokens % 251, STATE);
}

static void expect_kept(const struct bench *b, const struct tern_kv_seq *s, const int *at, int n)
{
    assert_int_equal(s->n_kept, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(s->kept[i]->at, at[i]);
        assert_int_equal(at_block(b, s->kept[i]->state)[STATE - 1], at[i] / PAGE);
    }
}

#define KEPT(s, ...) expect_kept(&b, s, (const int[]){__VA_ARGS__}, (int)(sizeof(int[]){__VA_ARGS__} / sizeof(int)))

/* States lie whole on each of several devices. */
static size_t devices_of(const tern_engine *e)
{
    return e->caches[0].states.takes / e->caches[0].states.mem.bytes;
}

static void test_layout(void **state)
{
    struct bench b;
    (void)state;
    bench_open(&b, "t4");
    assert_int_equal(b.layout->state_bytes, STATE);
    assert_int_equal(tern_kv_layer_state(b.layout, 0), 192);
    assert_int_equal(tern_kv_layer_state(b.layout, 1), 0);
    assert_int_equal(tern_kv_layer_state(b.layout, 2), 128);
    assert_int_equal(b.layout->n_groups, 1);
    bench_close(&b);
}

static void test_marks(void **state)
{
    tern_error err = {0};
    struct bench b;
    struct tern_kv_seq *s;
    (void)state;
    bench_open(&b, "t4");
    tiny_ok(tern_kv_seq_new(&b.cache, &s, &err), &err);
    for (int i = 0; i < STATE; i++)
        assert_int_equal(at_block(&b, s->state)[i], 0);
    step(&b, s, 63, true);
    assert_int_equal(s->n_kept, 0);
    step(&b, s, 1, true);
    KEPT(s, 64);
    step(&b, s, 1, true); /* crosses no boundary */
    KEPT(s, 64);
    step(&b, s, 200, true);
    KEPT(s, 64, 256);
    for (int i = 0; i < 600; i++) /* 265 .. 865: one of them at 512 */
        step(&b, s, 1, false);
    KEPT(s, 64, 256, 512);
    step(&b, s, 300, false); /* ends behind other boundaries */
    KEPT(s, 64, 256, 512, 1024);
    tern_kv_seq_free(&b.cache, s);
    /* An aborted step keeps nothing. */
    tiny_ok(tern_kv_seq_new(&b.cache, &s, &err), &err);
    step(&b, s, 130, true);
    tiny_ok(tern_kv_begin(&b.cache, s, 100, &err), &err);
    assert_non_null(tern_kv_mark(&b.cache, s, 100, true));
    tern_kv_abort(&b.cache, s);
    KEPT(s, 128);
    assert_int_equal(tern_kv_state_bytes(&b.cache), 2 * b.cache.states.takes);
    tern_kv_seq_free(&b.cache, s);
    assert_int_equal(tern_kv_state_bytes(&b.cache), 0);
    bench_close(&b);
}

/* The newest stays; the others come to lie ever farther apart. */
static void test_thinning(void **state)
{
    tern_error err = {0};
    struct bench b;
    struct tern_kv_seq *s;
    (void)state;
    bench_open(&b, "t4");
    tiny_ok(tern_kv_seq_new(&b.cache, &s, &err), &err);
    for (int n = PAGE; n <= 64 * PAGE; n += PAGE) {
        int gap, worst = 0, before = 0;
        step(&b, s, PAGE, true);
        assert_true(s->n_kept <= TERN_KV_KEPT_STATES);
        assert_int_equal(s->kept[s->n_kept - 1]->at, n);
        for (int i = 0; i < s->n_kept; i++) {
            gap = s->kept[i]->at - before;
            before = s->kept[i]->at;
            assert_int_equal(at_block(&b, s->kept[i]->state)[0], before / PAGE);
            worst = gap > worst ? gap : worst;
        }
        assert_true(worst <= n / 2 + PAGE); /* going back costs at most about half of the sequence */
    }
    tern_kv_seq_free(&b.cache, s);
    bench_close(&b);
}

static void test_trim(void **state)
{
    tern_error err = {0};
    struct bench b;
    struct tern_kv_seq *s, *fork;
    int kept;
    (void)state;
    bench_open(&b, "t4");
    tiny_ok(tern_kv_seq_new(&b.cache, &s, &err), &err);
    step(&b, s, 100, true);
    step(&b, s, 100, true);
    step(&b, s, 100, true);
    KEPT(s, 64, 192, 256);
    tiny_ok(tern_kv_seq_fork(&b.cache, &fork, s, &err), &err);
    assert_int_equal(tern_kv_state_bytes(&b.cache), (3 + 2) * b.cache.states.takes);
    assert_true(fork->kept[0] == s->kept[0] && fork->state != s->state);
    assert_int_equal(at_block(&b, fork->state)[STATE - 1], 300 % 251);
    /* Nothing to do; inside the open tile; into a closed page; before all that is kept. */
    static const struct {
        int to, kept, n_kept, value;
    } cuts[] = {{300, 300, 3, 300 % 251}, {270, 256, 3, 4}, {256, 256, 3, 4}, {255, 192, 2, 3},
                {130, 64, 1, 1},          {64, 64, 1, 1},   {63, 0, 0, 0},    {0, 0, 0, 0}};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        tiny_ok(tern_kv_trim(&b.cache, s, cuts[i].to, &kept, &err), &err);
        assert_int_equal(kept, cuts[i].kept);
        assert_int_equal(s->n_tokens, kept);
        assert_int_equal(s->n_kept, cuts[i].n_kept);
        for (int j = 0; j < STATE; j++)
            assert_int_equal(at_block(&b, s->state)[j], cuts[i].value);
        if (cuts[i].to > kept)
            step(&b, s, cuts[i].to - kept, false);
    }
    KEPT(fork, 64, 192, 256); /* the fork has lost nothing */
    tern_kv_seq_free(&b.cache, s);
    assert_int_equal(tern_kv_state_bytes(&b.cache), 4 * b.cache.states.takes);
    tern_kv_seq_free(&b.cache, fork);
    assert_int_equal(tern_kv_state_bytes(&b.cache), 0);
    bench_close(&b);
}

/* Where raw tiles have moved on, all is computed again, whatever states there are. */
static void test_trim_recent(void **state)
{
    tern_error err = {0};
    struct bench b;
    struct tern_kv_seq *s;
    int kept;
    (void)state;
    bench_open(&b, "t4,recent=128");
    tiny_ok(tern_kv_seq_new(&b.cache, &s, &err), &err);
    for (int i = 0; i < 4; i++)
        step(&b, s, 100, true);
    KEPT(s, 64, 192, 256, 384);
    tiny_ok(tern_kv_trim(&b.cache, s, 200, &kept, &err), &err);
    assert_int_equal(kept, 0);
    assert_int_equal(s->n_kept, 0);
    assert_int_equal(at_block(&b, s->state)[0], 0);
    /* So decoding keeps a state of every page: taking back what was just said must not cost all of it. */
    step(&b, s, 100, true);
    for (int n = 100; n < 700; n++)
        step(&b, s, 1, false);
    tiny_ok(tern_kv_trim(&b.cache, s, 699, &kept, &err), &err);
    assert_int_equal(kept, 640);
    tern_kv_seq_free(&b.cache, s);
    bench_close(&b);
}

static void test_saved(void **state)
{
    static const int lengths[] = {0, 1, PAGE - 1, PAGE, PAGE + 1, 300};
    tern_error err = {0};
    struct bench b;
    char path[] = "/tmp/tern-test-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0 && close(fd) == 0);
    bench_open(&b, "t4");
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        struct tern_kv_seq *s, *r;
        int32_t tokens[300] = {0}, *read;
        uint8_t roles[300] = {0}, *read_roles;
        struct tern_kv_snapshot_info info = {5, tokens, roles};
        tiny_ok(tern_kv_seq_new(&b.cache, &s, &err), &err);
        if (lengths[i])
            step(&b, s, lengths[i], true);
        tiny_ok(tern_kv_save(&b.cache, s, &info, path, &err), &err);
        tiny_ok(tern_kv_load(&b.cache, &r, 5, 1, path, &read, &read_roles, &err), &err);
        assert_memory_equal(at_block(&b, r->state), at_block(&b, s->state), STATE);
        assert_int_equal(r->n_kept, lengths[i] >= PAGE);
        if (r->n_kept)
            KEPT(r, lengths[i] / PAGE * PAGE);
        tern_kv_seq_free(&b.cache, r);
        tern_kv_seq_free(&b.cache, s);
        free(read);
        free(read_roles);
        assert_int_equal(tern_kv_state_bytes(&b.cache), 0);
    }
    bench_close(&b);
    (void)unlink(path);
}

/* Every byte of a file turned over, and every shorter file. */
static void test_damage(void **state)
{
    static uint8_t bytes[1 << 20];
    tern_error err = {0};
    struct bench b;
    struct tern_kv_seq *s, *r;
    int32_t tokens[65] = {0}, *read;
    uint8_t roles[65] = {0}, *read_roles;
    struct tern_kv_snapshot_info info = {5, tokens, roles};
    char path[] = "/tmp/tern-test-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    bench_open(&b, "l2,first=0");
    tiny_ok(tern_kv_seq_new(&b.cache, &s, &err), &err);
    step(&b, s, 65, true);
    tiny_ok(tern_kv_save(&b.cache, s, &info, path, &err), &err);
    (void)close(fd);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    long n = (long)fread(bytes, 1, sizeof bytes, f);
    assert_true(n > 2 * STATE && n < (long)sizeof bytes);
    (void)setvbuf(f, NULL, _IONBF, 0);
    for (long at = 0; at < n; at += at < 400 || at > n - 3 * STATE ? 1 : 97) {
        uint8_t turned = bytes[at] ^ 0x10;
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        assert_int_equal(fwrite(&turned, 1, 1, f), 1);
        if (tern_kv_load(&b.cache, &r, 5, 1, path, &read, &read_roles, &err) == 0)
            fail_msg("byte %ld was not missed", at);
        assert_int_equal(fseek(f, at, SEEK_SET), 0);
        assert_int_equal(fwrite(bytes + at, 1, 1, f), 1);
    }
    for (long end = n - 1; end > n - 3 * STATE; end--) {
        assert_int_equal(ftruncate(fileno(f), end), 0);
        assert_true(tern_kv_load(&b.cache, &r, 5, 1, path, &read, &read_roles, &err) < 0);
    }
    (void)fclose(f);
    assert_int_equal(tern_kv_state_bytes(&b.cache), 2 * b.cache.states.takes); /* those of s */
    tern_kv_seq_free(&b.cache, s);
    bench_close(&b);
    (void)unlink(path);
}

/* ---- with a model ------------------------------------------------------------------------------------------------ */

/* A long sequence of prompt steps and decoded tokens, cut at every kind of place: equal to the cold run, and, because a
 * step that goes on from a kept state leaves the same, cut again. */
static void test_cuts_equal_cold(void **state)
{
    static const int cuts[] = {138, 129, 128, 127, 100, 65, 64, 63, 1, 0};
    static const char *const names[] = {"qwen35", "qwen35moe"};
    (void)state;
    for (int m = 0; m < 2; m++) {
        struct tiny t;
        tern_error err = {0};
        tiny_open(&t, names[m], names[m], names[m]);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        tern_engine *e = tiny_engine(&t, m ? "l4" : "k=t4,v=l3,recent=128", false, 2, 2, 128);
        for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
            int cut = cuts[c], prompt = cut < 120 ? cut : 120;
            tern_seq *cold = tiny_grow(&t, e, prompt, t.n_ids, want), *s;
            tiny_ok(tern_seq_new(&s, e, &err), &err);
            tiny_run(e, s, t.ids, 0, prompt, 33, false, got, 0, t.n_vocab);
            tiny_run(e, s, t.ids, prompt, t.n_ids, 1, true, got, 0, t.n_vocab);
            tiny_ok(tern_seq_trim(s, cut, &err), &err);
            tiny_continues(&t, e, s, cut, want, "once");
            tiny_ok(tern_seq_trim(s, cut, &err), &err);
            tiny_continues(&t, e, s, cut, want, "twice");
            tern_seq_free(cold);
            tern_seq_free(s);
        }
        tern_memory mem;
        tern_engine_memory(e, &mem);
        assert_true(mem.kv_bytes == 0 && mem.state_bytes == 0);
        tern_engine_close(&e);
        free(want);
        free(got);
        tiny_close(&t);
    }
}

/* Boundaries so close behind the beginning of a step that the convolution's inputs before them are the state's. */
static void test_early_boundaries(void **state)
{
    struct tiny t;
    tern_error err = {0};
    tern_seq *s;
    (void)state;
    tiny_open(&t, "qwen35", "qwen35", "qwen35");
    float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
    tern_engine *e = tiny_engine(&t, "t4", false, 2, 1, 128);
    tern_seq_free(tiny_grow(&t, e, 120, t.n_ids, want));
    for (int first = PAGE - 4; first < PAGE; first++) {
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_run(e, s, t.ids, 0, first, first, false, got, 0, t.n_vocab);
        tiny_run(e, s, t.ids, first, 120, 120 - first, false, got, 0, t.n_vocab);
        tiny_ok(tern_seq_trim(s, PAGE, &err), &err);
        tiny_run(e, s, t.ids, PAGE, 120, 120 - PAGE, false, got, 0, t.n_vocab);
        tiny_run(e, s, t.ids, 120, t.n_ids, 1, true, got, 0, t.n_vocab);
        assert_memory_equal(got, want, (size_t)t.n_ids * (size_t)t.n_vocab * sizeof *want);
        tern_seq_free(s);
    }
    tern_engine_close(&e);
    free(want);
    free(got);
    tiny_close(&t);
}

/* A prompt that is coded at its end leaves the states of the raw one. */
static void test_coded_at_end(void **state)
{
    struct tiny t;
    tern_error err = {0};
    const float *logits;
    tern_seq *s;
    tern_memory mem;
    (void)state;
    tiny_open(&t, "qwen35", "qwen35", "qwen35");
    float *raw = tiny_run_all(&t, "f16", false, 1, 512, false), *a = tiny_buffer(&t), *b = tiny_buffer(&t);
    for (int round = 0; round < 2; round++) {
        tern_engine *e;
        tern_engine_params p = {.n_threads = 2, .chunk = round ? 50 : 512, .kv = "t4", .code_at_end = true};
        tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_ok(tern_prefill(e, s, t.ids, 100, &logits, NULL, NULL, &err), &err);
        assert_memory_equal(logits, raw + 99 * (size_t)t.n_vocab, (size_t)t.n_vocab * sizeof *raw);
        tern_engine_memory(e, &mem);
        assert_int_equal(mem.state_bytes, 2 * 2 * 15360 * devices_of(e)); /* two layers' and that kept at 64 */
        tiny_run(e, s, t.ids, 100, t.n_ids, 1, true, round ? b : a, 0, t.n_vocab);
        tern_engine_close(&e);
    }
    assert_memory_equal(a + 100 * (size_t)t.n_vocab, b + 100 * (size_t)t.n_vocab,
                        (size_t)(t.n_ids - 100) * (size_t)t.n_vocab * sizeof *a);
    free(raw);
    free(a);
    free(b);
    tiny_close(&t);
}

/* What the plan says is what sequences take, of each device, however long they are. */
static void test_memory_is_the_plan(void **state)
{
    struct tiny t;
    tern_error err = {0};
    tern_seq *s, *fork;
    tern_memory mem;
    size_t planned = 0, most = 0;
    (void)state;
    tiny_open(&t, "qwen35moe", "qwen35moe", "qwen35moe");
    tern_engine *e = tiny_engine(&t, "t4", false, 2, 2, 64);
    const size_t devices = devices_of(e);
    for (int i = 0; i < tern_kv_plan_rows(tern_engine_plan(e)); i++) {
        tern_kv_row r;
        tern_kv_plan_row(tern_engine_plan(e), i, &r);
        planned += r.state_bytes;
        most += r.kept_bytes;
        assert_int_equal(r.state_bytes > 0, r.n_heads == 0);
    }
    /* 3 layers, of which each has two rows of 2*2*16 + 4*32 channels and 4 heads of 16 x 32. */
    assert_int_equal(planned, 3 * 4 * (2 * 192 + 4 * 16 * 32));
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tern_engine_memory(e, &mem);
    assert_int_equal(mem.state_bytes, devices * planned);
    for (int i = 0; i < 6; i++) {
        tiny_ok(tern_prefill(e, s, t.ids, PAGE, NULL, NULL, NULL, &err), &err);
        tern_engine_memory(e, &mem);
        if (mem.state_bytes != devices * planned * (size_t)(i < 4 ? i + 2 : 5))
            fail_msg("step %d: %zu bytes, planned %zu", i, mem.state_bytes, planned);
    }
    assert_int_equal(mem.state_bytes, devices * (planned + most));
    tiny_ok(tern_seq_fork(&fork, s, &err), &err);
    tern_engine_memory(e, &mem);
    assert_int_equal(mem.state_bytes, devices * (2 * planned + most));
    tern_engine_close(&e);
    tiny_close(&t);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_thinning),
        cmocka_unit_test(test_trim),
        cmocka_unit_test(test_trim_recent),
        cmocka_unit_test(test_saved),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_cuts_equal_cold),
        cmocka_unit_test(test_early_boundaries),
        cmocka_unit_test(test_coded_at_end),
        cmocka_unit_test(test_memory_is_the_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

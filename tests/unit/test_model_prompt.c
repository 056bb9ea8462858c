/* Prompts that are coded at their end: attended to in 16 bits, then pages, tiles and first tokens as the plan wants
 * them, whatever the chunk, the threads and the moment of a cancel. */
#include "blocks.h"
#include "tiny.h"
#include <unistd.h>
#include "base/mem.h"
#include "run/run.h"

static const char *const models[] = {"llama-tied", "gemma3-w70", "qwen2"};

static void open_model(struct tiny *t, const char *name)
{
    const char *ids = strncmp(name, "gemma3", 6) == 0 ? "gemma3-w70"
                      : strcmp(name, "qwen2") == 0    ? "qwen2"
                                                      : "llama-tied";
    tiny_open(t, name, ids, name);
}

static tern_engine *open_engine(struct tiny *t, const char *kv, bool at_end, bool exact, int threads, int chunk)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {
        .n_threads = threads, .max_seqs = 2, .chunk = chunk, .kv = kv, .exact = exact, .code_at_end = at_end};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

/* A sequence of the first n tokens as a prompt, then `more` decode rows; all their logits, [1 + more][n_vocab]. */
static tern_seq *run(struct tiny *t, tern_engine *e, int n, int more, float *out)
{
    tern_error err = {0};
    const float *logits;
    tern_seq *s;
    size_t row = (size_t)t->n_vocab * sizeof(float);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_ok(tern_prefill(e, s, t->ids, n, &logits, NULL, NULL, &err), &err);
    memcpy(out, logits, row);
    for (int i = 0; i < more; i++) {
        tern_step_item it = {s, t->ids + n + i, 1, true, TERN_LOGITS_LAST};
        tiny_ok(tern_step(e, &it, 1, &logits, &err), &err);
        memcpy(out + (size_t)(i + 1) * (size_t)t->n_vocab, logits, row);
    }
    assert_int_equal(tern_seq_length(s), n + more);
    assert_memory_equal(tern_seq_tokens(s), t->ids, (size_t)(n + more) * sizeof *t->ids);
    return s;
}

static const struct tern_kv_cache *cache_of(const tern_seq *s)
{
    return &s->engine->caches[s->plan];
}

/* One KV head of a raw page: its tile, if the page is closed and still there. */
static const uint8_t *raw_page(const tern_seq *s, int layer, int head, int page)
{
    const struct tern_kv_layout *l = s->engine->plans[s->plan]->layout;
    const struct tern_kv_layer *y = &l->layers[layer];
    const struct tern_kv_table *t = &s->kv->table[l->group_of[layer]];
    if (page < t->first)
        return NULL;
    assert_true(page < t->first + t->n);
    const uint8_t *p = block_look(&cache_of(s)->pool[l->group_of[layer]], t->pages[page - t->first]);
    return p + y->layer_off + (size_t)head * y->head_bytes;
}

/* The pages of `coded` are codes of what `raw` holds, and so are its first tokens and its newest raw tiles. */
static void check_pages(const tern_seq *coded, const tern_seq *raw)
{
    const struct tern_kv_layout *l = coded->engine->plans[coded->plan]->layout;
    const struct tern_kv_layout *rl = raw->engine->plans[raw->plan]->layout;
    int closed = coded->kv->n_tokens / TERN_PAGE, checked = 0;
    uint8_t *raw_tiles = block_copy(&cache_of(raw)->tiles, raw->kv->tile);
    uint8_t *tiles = block_copy(&cache_of(coded)->tiles, coded->kv->tile);
    uint8_t *sinks = block_copy(&cache_of(coded)->sinks, coded->kv->sink);
    uint8_t *scratch, *want;
    assert_int_equal(tern_alloc(&scratch, TERN_KV_SCRATCH, 1, NULL), 0);
    for (int i = 0; i < l->n_layers; i++) {
        const struct tern_kv_layer *y = &l->layers[i], *ry = &rl->layers[i];
        assert_int_equal(tern_alloc(&want, y->head_bytes + y->sink_bytes + 64, 1, NULL), 0);
        for (int h = 0; h < y->n_heads; h++)
            for (int page = coded->kv->table[l->group_of[i]].first; page <= closed; page++) {
                const uint8_t *tile = raw_tiles + ry->tile_layer_off + (size_t)h * ry->tile_bytes;
                const uint8_t *k = tile, *v = tile + ry->tile_v_off;
                if (page < closed) {
                    k = raw_page(raw, i, h, page) + ry->k_off;
                    v = raw_page(raw, i, h, page) + ry->v_off;
                    struct tern_kv_side ks = tern_kv_side_of(&y->k, h);
                    ks.codec->encode(&ks, want + y->k_off, (uint16_t *)(void *)(want + y->k_head_off), k,
                                     page * TERN_PAGE, scratch);
                    y->v.codec->encode(&y->v, want + y->v_off, (uint16_t *)(void *)(want + y->v_head_off), v,
                                       page * TERN_PAGE, scratch);
                    assert_memory_equal(raw_page(coded, i, h, page), want, y->head_bytes);
                    checked++;
                }
                if (page > closed - y->ring) {
                    const uint8_t *own =
                        tiles + y->tile_layer_off + (size_t)(page % y->ring * y->n_heads + h) * y->tile_bytes;
                    for (size_t d = 0; d < (size_t)y->k.dim;
                         d++) /* columns behind the last token are anything finite */
                        assert_memory_equal(own + d * 128, k + d * 128,
                                            page < closed ? 128 : (size_t)(coded->kv->n_tokens % TERN_PAGE) * 2);
                    assert_memory_equal(own + y->tile_v_off, v,
                                        (size_t)y->v.dim * 2 *
                                            (size_t)(page < closed ? TERN_PAGE : coded->kv->n_tokens % TERN_PAGE));
                }
                if (page == 0 && closed && y->first) {
                    const uint8_t *sink = sinks + y->sink_layer_off + (size_t)h * y->sink_bytes;
                    for (size_t d = 0; d < (size_t)y->k.dim; d++)
                        assert_memory_equal(sink + d * (size_t)y->first * 2, k + d * 128, (size_t)y->first * 2);
                    assert_memory_equal(sink + y->sink_v_off, v, (size_t)(y->first * y->v.dim) * 2);
                }
            }
        tern_free(want);
    }
    assert_true(checked > 0);
    free(raw_tiles);
    free(tiles);
    free(sinks);
    tern_free(scratch);
}

/* The prompt's own logits are those of the 16-bit cache, and the codes come from what that cache holds. */
static void test_is_the_16_bit_prompt(void **state)
{
    (void)state;
    static const char *const plans[] = {"t4",   "k=l3,v=q8,first=0", "l4,recent=128", "affine4,layers=0-6:g16",
                                        "bf16", "k=f16,v=l2"};
    static const int lengths[] = {64, 130, 63 + 128};
    for (size_t m = 0; m < 3; m++) {
        struct tiny t;
        open_model(&t, models[m]);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        for (size_t i = 0; i < sizeof plans / sizeof *plans; i++) {
            int n = lengths[(i + m) % 3] < t.n_ids ? lengths[(i + m) % 3] : t.n_ids;
            char kv[64];
            (void)snprintf(kv, sizeof kv, "%s", plans[i]);
            if (m != 1 && strstr(kv, ",layers"))
                *strstr(kv, ",layers") = 0; /* fewer layers, none with a window */
            tern_engine *raw = open_engine(&t, "f16", false, i & 1, 2, 128);
            tern_engine *end = open_engine(&t, kv, true, i & 1, 2, 128);
            tern_seq *r = run(&t, raw, n, 0, want), *s = run(&t, end, n, 0, got);
            assert_memory_equal(got, want, (size_t)t.n_vocab * sizeof(float));
            check_pages(s, r);
            tern_seq_free(r);
            tern_seq_free(s);
            tern_memory mem;
            tern_engine_memory(end, &mem);
            assert_int_equal(mem.kv_bytes, 0);
            tern_engine_close(&raw);
            tern_engine_close(&end);
        }
        free(want);
        free(got);
        tiny_close(&t);
    }
}

/* A window that has left pages behind by the time the prompt is coded. */
static void test_dropped_pages(void **state)
{
    (void)state;
    static const int chunks[] = {32, 100, 512};
    struct tiny t;
    tiny_open(&t, "gemma3-w8", "gemma3-w8", "gemma3-w8");
    for (int i = t.n_ids; i < 512; i++)
        t.ids[i] = t.ids[i - t.n_ids];
    float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
    tern_engine *raw = open_engine(&t, "f16", false, false, 2, 512);
    tern_seq *r = run(&t, raw, 460, 0, want);
    for (int c = 0; c < 3; c++) {
        tern_engine *e = open_engine(&t, "k=t3,v=g16,layers=0-5:l4/affine8,recent=128", true, false, 2, chunks[c]);
        tern_seq *s = run(&t, e, 460, 0, got);
        bool dropped = false;
        for (int g = 0; g < e->plans[0]->layout->n_groups; g++)
            dropped |= s->kv->table[g].first > 0;
        assert_true(dropped);
        assert_memory_equal(got, want, (size_t)t.n_vocab * sizeof(float));
        check_pages(s, r);
        tern_engine_close(&e);
    }
    tern_engine_close(&raw);
    free(want);
    free(got);
    tiny_close(&t);
}

/* Where nothing is coded, "end" changes nothing; where something is, it does. */
static void test_against_stream(void **state)
{
    (void)state;
    static const char *const plans[] = {"f16", "f32", "l2"};
    struct tiny t;
    open_model(&t, "llama-tied");
    float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
    const int n = 140, more = 20;
    for (int i = 0; i < 3; i++) {
        tern_engine *stream = open_engine(&t, plans[i], false, false, 1, 64);
        tern_engine *end = open_engine(&t, plans[i], true, false, 1, 64);
        (void)run(&t, stream, n, more, want);
        (void)run(&t, end, n, more, got);
        bool same = memcmp(want, got, (size_t)((more + 1) * t.n_vocab) * sizeof(float)) == 0;
        assert_int_equal(same, i < 2);
        tern_engine_close(&stream);
        tern_engine_close(&end);
    }
    free(want);
    free(got);
    tiny_close(&t);
}

/* Neither chunks nor threads nor what else the engine holds change a bit, and sequences go on as others do. */
static void test_invariance(void **state)
{
    (void)state;
    static const char *const plans[] = {"t4,recent=128", "l3,layers=0-6:l4"};
    for (size_t m = 0; m < 2; m++) {
        struct tiny t;
        tern_error err = {0};
        open_model(&t, models[m]);
        const int n = 150, more = 30, vocab = t.n_vocab;
        const char *kv = m ? plans[1] : plans[0];
        size_t bytes = (size_t)((more + 1) * vocab) * sizeof(float);
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
        tern_engine *e = open_engine(&t, kv, true, false, 1, 512);
        tern_seq_free(run(&t, e, n, more, want));
        tern_engine_close(&e);
        for (int c = 0; c < 3; c++) {
            char path[] = "/tmp/tern-test-XXXXXX";
            int fd = mkstemp(path);
            assert_true(fd >= 0);
            (void)close(fd);
            e = open_engine(&t, kv, true, false, 1 + c, 16 << 2 * c);
            tern_seq *first = run(&t, e, 70, 3, got), *s = run(&t, e, n, more, got), *loaded;
            assert_memory_equal(got, want, bytes);
            tern_seq_free(first);
            tern_seq_free(s);
            s = run(&t, e, n, 0, got);
            tiny_ok(tern_seq_save(s, path, &err), &err);
            tern_seq_free(s);
            tern_engine_close(&e);
            e = open_engine(&t, kv, false, false, 2, 128); /* pages are pages: a session does not know when */
            tiny_ok(tern_seq_load(&loaded, e, path, &err), &err);
            tiny_run(e, loaded, t.ids, n, n + more, 1, true, got, n - 1, vocab);
            assert_memory_equal(got + vocab, want + vocab, bytes - (size_t)vocab * sizeof(float));
            tern_engine_close(&e);
            (void)unlink(path);
        }
        free(want);
        free(got);
        tiny_close(&t);
    }
}

static int stop_at(void *user, int done, int total)
{
    (void)total;
    return done >= *(int *)user;
}

/* A prompt that is stopped half way leaves what it got to, coded, and the sequence goes on. */
static void test_cancelled(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_seq *s;
    int at = 96;
    open_model(&t, "llama-tied");
    float *want = tiny_buffer(&t), *got = tiny_buffer(&t);
    tern_engine *e = open_engine(&t, "l4", true, false, 2, 32);
    tern_seq_free(run(&t, e, at, 10, want));
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    assert_int_equal(tern_prefill(e, s, t.ids, 150, NULL, stop_at, &at, &err), TERN_ECANCELLED);
    assert_int_equal(tern_seq_length(s), at);
    tiny_run(e, s, t.ids, at, at + 10, 1, true, got, at - 1, t.n_vocab);
    assert_memory_equal(got + t.n_vocab, want + t.n_vocab, (size_t)(10 * t.n_vocab) * sizeof(float));
    tern_seq_free(s);
    tern_memory mem;
    tern_engine_memory(e, &mem);
    assert_int_equal(mem.kv_bytes, 0);
    tern_engine_close(&e);
    free(want);
    free(got);
    tiny_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_engine *e;
    open_model(&t, "llama-tied");
    static const char *const more[] = {"l4", "k=f32,v=l4"};
    tern_engine_params p = {.kv = "f32", .more_kv = more, .n_more_kv = 2, .n_threads = 1, .code_at_end = true};
    assert_int_equal(tern_engine_open(&e, t.model, &p, &err), TERN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "--kv k=f32,v=l4: f32"));
    p.n_more_kv = 1;
    tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
    size_t need = 2 * (e->caches[1].layout->groups[0].page_bytes + e->caches[2].layout->groups[0].page_bytes);
    assert_int_equal(tern_prompt_fits(e, 1, 191, need, &err), 0);
    assert_int_equal(tern_prompt_fits(e, 1, 192, need, &err), TERN_ELIMIT);
    assert_non_null(strstr(err.msg, "a prompt of 192 tokens"));
    tern_engine_close(&e);
    tiny_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is_the_16_bit_prompt),
        cmocka_unit_test(test_dropped_pages),
        cmocka_unit_test(test_against_stream),
        cmocka_unit_test(test_invariance),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

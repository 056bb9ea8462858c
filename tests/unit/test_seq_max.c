/* Plans with max=N: layers that would see everything keep the first tokens and the newest ones.  What attention sees is
 * tested in test_attention; here, that models wire it so, that what is outside is gone, and every promise bit for bit.
 */
#include "loop_case.h"
#include "patched_model.h"
#include "run/loop.h"
#include "tiny_promises.h"

static const struct subject {
    const char *name, *ids, *logits, *plans[4];
} subjects[] = {
    {"llama-tied",
     "llama-tied",
     "llama-tied",
     {"t4,max=64", "f16,max=80,first=9", "l4,max=130,first=0", "t4,max=192,recent=128"}},
    {"gemma3-w70", "gemma3-w70", "gemma3-w70", {"t4,max=100,first=3", "t4,max=64,layers=0-6:l4"}},
    {"llama4", "llama4", "llama4", {"k=q8,v=t4,max=90", "f32,max=64"}},
    {"deepseek2-q4_0", "deepseek2", "deepseek2-q4_0", {"t4,max=64,first=7", "f16,max=65,first=5"}},
    {"qwen35", "qwen35", "qwen35", {"t4,max=70", "f16,max=64,first=1"}},
    {"qwen2", "qwen2", "qwen2", {"t4,max=128", "affine4,max=97,first=33"}},
};
#define N_SUBJECTS (sizeof subjects / sizeof *subjects)

static void test_promises(void **state)
{
    static const int cases[][2] = {{2, 64}, {3, 7}, {2, 1}, {1, 65}};
    static const int cuts[] = {62, 63, 64, 65, 66, 100, 127, 128, 129};
    (void)state;
    for (size_t m = 0; m < N_SUBJECTS; m++) {
        struct tiny t;
        tiny_open(&t, subjects[m].name, subjects[m].ids, subjects[m].logits);
        for (size_t i = 0; i < 4 && subjects[m].plans[i]; i++) {
            const char *kv = subjects[m].plans[i];
#ifdef TERN_TEST_FEW /* a third of the cuts, other ones with each plan: sanitizers see the same code at each */
            tiny_splits_and_threads(&t, kv, cases + i % 2 * 2, 2, subjects[m].name);
            const size_t from = (3 * i + m) % 9, by = 9;
#else
            tiny_splits_and_threads(&t, kv, cases, 4, subjects[m].name);
            const size_t from = i % 3, by = 3;
#endif
            tiny_batch_equals_single(&t, kv, subjects[m].name);
            for (size_t c = from; c < sizeof cuts / sizeof *cuts; c += by)
                tiny_fork_trim_save(&t, kv, cuts[c]);
        }
        tiny_close(&t);
    }
}

/* Room for all: the bits of the plan without it.  Less: the same up to there, and something else behind. */
static void test_begins_at_its_size(void **state)
{
    static const char *const plans[][2] = {{"t4", "t4,max=%d"}, {"f16,first=0", "f16,first=0,max=%d"}};
    static const int sizes[] = {512, 100, 64};
    (void)state;
    for (size_t m = 0; m < N_SUBJECTS; m++) {
        struct tiny t;
        tiny_open(&t, subjects[m].name, subjects[m].ids, subjects[m].logits);
        for (int p = 0; p < 2; p++)
            for (int i = 0; i < 3; i++) {
                char kv[64];
                (void)snprintf(kv, sizeof kv, plans[p][1], sizes[i]);
                for (int decode = 0; decode < 2; decode++) {
                    float *want = tiny_run_all(&t, plans[p][0], false, 2, decode ? 1 : 512, decode),
                          *got = tiny_run_all(&t, kv, false, 2, decode ? 1 : 512, decode);
                    const size_t row = (size_t)t.n_vocab, same = (size_t)(sizes[i] < t.n_ids ? sizes[i] : t.n_ids);
                    assert_memory_equal(got, want, same * row * sizeof *got);
                    if (same < (size_t)t.n_ids &&
                        !memcmp(got + same * row, want + same * row, ((size_t)t.n_ids - same) * row * sizeof *got))
                        fail_msg("%s, %s: nothing was forgotten", subjects[m].name, kv);
                    free(want);
                    free(got);
                }
            }
        tiny_close(&t);
    }
}

/* ---- far behind the size ----------------------------------------------------------------------------------------- */

enum { CTX = 3000, SIZE = 90, KEEP = 5, FAR = 700 };

/* Logits after ids[0, n), a prompt in steps of 100 and the last ten decoded. */
static void last_logits(struct tiny *t, const char *kv, const int32_t *ids, int n, float *out)
{
    tern_error err = {0};
    tern_engine *e = tiny_engine(t, kv, false, 2, 1, 100);
    tern_seq *s;
    float *all = calloc((size_t)n * (size_t)t->n_vocab, sizeof *all);
    assert_non_null(all);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, ids, 0, n - 10, 100, false, all, 0, t->n_vocab);
    tiny_run(e, s, ids, n - 10, n, 1, true, all, 0, t->n_vocab);
    memcpy(out, all + (size_t)(n - 1) * (size_t)t->n_vocab, (size_t)t->n_vocab * sizeof *out);
    free(all);
    tern_engine_close(&e);
}

/* A layer's row is made of the newest SIZE - KEEP rows before it and the first KEEP, so what stands farther back than
 * all layers together reach cannot matter, and what is kept does. */
static void test_what_is_outside_is_gone(void **state)
{
    static const char *const plans[] = {"t4,max=90,first=5", "f16,max=90,first=5"};
    struct tiny t;
    struct tern_rng r = {3};
    int32_t ids[FAR];
    (void)state;
    patched_open(&t, "llama-tied", CTX, 0);
    const int n_layers = tern_model_get_info(t.model)->n_layers, reach = n_layers * (SIZE - KEEP);
    assert_true(KEEP + 64 + reach < FAR);
    float *want = malloc((size_t)t.n_vocab * sizeof *want), *got = malloc((size_t)t.n_vocab * sizeof *got);
    assert_true(want && got);
    for (int i = 0; i < FAR; i++)
        ids[i] = (int32_t)(tern_rng_u64(&r) % (uint64_t)t.n_vocab);
    for (int p = 0; p < 2; p++) {
        const struct {
            int at;
            bool matters;
        } changes[] = {{0, true},
                       {KEEP - 1, true},
                       {KEEP, false},
                       {KEEP + 1, false},
                       {63, false},
                       {64, false},
                       {FAR - reach - 2, false},
                       {FAR - SIZE / 2, true},
                       {FAR - SIZE + KEEP + 1, true}};
        last_logits(&t, plans[p], ids, FAR, want);
        for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
            const int32_t before = ids[changes[i].at];
            ids[changes[i].at] = (before + 1) % t.n_vocab;
            last_logits(&t, plans[p], ids, FAR, got);
            ids[changes[i].at] = before;
            if ((memcmp(got, want, (size_t)t.n_vocab * sizeof *got) != 0) != changes[i].matters)
                fail_msg("%s: token %d %s", plans[p], changes[i].at,
                         changes[i].matters ? "is forgotten" : "still matters");
        }
    }
    free(want);
    free(got);
    tern_model_close(&t.model);
}

/* Bytes in use stay within the size, slack of a step and a few pages, to the end of the context; a cut within what is
 * kept goes, one beyond it is refused and changes nothing. */
static void test_memory_is_bounded(void **state)
{
    struct tiny t;
    tern_error err = {0};
    tern_memory at[CTX / 64 + 1];
    struct tern_rng r = {4};
    int32_t ids[CTX];
    tern_seq *s;
    (void)state;
    patched_open(&t, "llama-tied", CTX, 0);
    for (int i = 0; i < CTX; i++)
        ids[i] = (int32_t)(tern_rng_u64(&r) % (uint64_t)t.n_vocab);
    tern_engine *e = tiny_engine(&t, "t4,max=256", false, 2, 1, 64);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    for (int n = 0; n + 64 <= CTX; n += 64) {
        const tern_step_item prompt = {s, ids + n, 64, false, TERN_LOGITS_NONE};
        const float *logits;
        tiny_ok(tern_step(e, &prompt, 1, &logits, &err), &err);
        tern_engine_memory(e, &at[n / 64]);
    }
    const size_t page = at[1].kv_bytes - at[0].kv_bytes;
    for (int i = 8; i < CTX / 64; i++)
        assert_int_equal(at[i].kv_bytes, at[8].kv_bytes);
    assert_true(at[8].kv_bytes <= at[0].kv_bytes + 256 / 64 * page + 2 * page);
    const int n = tern_seq_length(s);
    assert_int_equal(tern_seq_trim(s, n - 500, &err), TERN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "window"));
    assert_int_equal(tern_seq_length(s), n);
    tiny_ok(tern_seq_trim(s, n - 40, &err), &err);
    const tern_step_item rest = {s, ids + n - 40, CTX - (n - 40), true, TERN_LOGITS_NONE},
                         more = {s, ids, 1, true, TERN_LOGITS_NONE};
    const float *logits;
    tern_step_item part = rest;
    for (int done = 0; done < rest.n_tokens; done += part.n_tokens) {
        part.tokens = rest.tokens + done;
        part.n_tokens = rest.n_tokens - done < 64 ? rest.n_tokens - done : 64;
        tiny_ok(tern_step(e, &part, 1, &logits, &err), &err);
    }
    assert_int_equal(tern_seq_length(s), CTX);
    assert_int_equal(tern_step(e, &more, 1, &logits, &err), TERN_ECAPACITY);
    tern_engine_close(&e);
    tern_model_close(&t.model);
}

/* ---- another plan ------------------------------------------------------------------------------------------------ */

/* Plans that keep the same tokens: page 0 is gone, the first tokens go over.  f16 in f32 is the same numbers. */
static void test_recode(void **state)
{
    (void)state;
    for (size_t m = 0; m < N_SUBJECTS; m++) {
        struct tiny t;
        tiny_open(&t, subjects[m].name, subjects[m].ids, subjects[m].logits);
        t.model->net->desc.ctx = 300;    /* more than it says; no RoPE scaling depends on it */
        for (; t.n_ids < 280; t.n_ids++) /* so many that page 0 is gone */
            t.ids[t.n_ids] = t.ids[t.n_ids - 100];
        const int n = t.n_ids - 3;
        float *want = tiny_buffer(&t), *got = tiny_buffer(&t), *pieces = tiny_buffer(&t);
        for (int coded = 0; coded < 2; coded++)
            for (int piece = 0; piece < 2; piece++) {
                tern_error err = {0};
                const char *const more[] = {coded ? "t4,max=64,first=5" : "f32,max=64,first=5", "f32,max=64,first=6",
                                            "f32"};
                tern_engine *e;
                tern_engine_params p = {.n_threads = 2,
                                        .max_seqs = 2,
                                        .chunk = piece ? 7 : 512,
                                        .kv = "f16,max=64,first=5",
                                        .more_kv = more,
                                        .n_more_kv = 3,
                                        .exact = true};
                tern_seq *a, *b;
                tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
                tiny_ok(tern_seq_new(&a, e, &err), &err);
                tiny_run(e, a, t.ids, 0, n, piece ? 7 : 512, false, want, 0, t.n_vocab);
                tiny_ok(tern_seq_fork(&b, a, &err), &err);
                for (int other = 2; other < 4; other++) {
                    assert_int_equal(tern_seq_recode(b, other, NULL, &err), TERN_EUNSUPPORTED);
                    assert_non_null(strstr(err.msg, "max="));
                    assert_int_equal(tern_seq_recode_at(b, n + 1, other, &err), TERN_EUNSUPPORTED);
                }
                tiny_ok(tern_seq_recode(b, 1, NULL, &err), &err);
                tiny_run(e, a, t.ids, n, t.n_ids, 1, true, want, 0, t.n_vocab);
                tiny_run(e, b, t.ids, n, t.n_ids, 1, true, piece ? pieces : got, 0, t.n_vocab);
                double worst = 0, size = 0;
                for (size_t i = (size_t)n * (size_t)t.n_vocab; i < (size_t)t.n_ids * (size_t)t.n_vocab; i++) {
                    worst = fmax(worst, fabs((double)(piece ? pieces : got)[i] - (double)want[i]));
                    size = fmax(size, fabs((double)want[i]));
                }
                if (!(worst <= (coded ? 0.5 : 1e-3) * fmax(size, 1)))
                    fail_msg("%s: logits of up to %g differ by %g", subjects[m].name, size, worst);
                if (piece)
                    assert_memory_equal(got + (size_t)n * (size_t)t.n_vocab, pieces + (size_t)n * (size_t)t.n_vocab,
                                        (size_t)(t.n_ids - n) * (size_t)t.n_vocab * sizeof *got);
                tern_engine_close(&e);
            }
        free(want);
        free(got);
        free(pieces);
        tiny_close(&t);
    }
}

/* ---- the prefix cache -------------------------------------------------------------------------------------------- */

/* Prompts that begin alike, far behind the size: what is found is what would have been computed. */
static void test_prefix_cache(void **state)
{
    static const char *const models[] = {"llama-tied", "gemma3-w70", "deepseek2-lite", "qwen35"};
    enum { LONG = 720 };
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct tiny t;
        tern_error err = {0};
        tern_engine *e, *alone;
        tern_loop *loop;
        tern_events *q;
        int32_t ids[LONG], want[LC_TOKENS];
        struct tern_rng r = {m};
        int found = 0;
        tiny_open(&t, models[m], models[m], models[m]);
        t.model->net->desc.ctx = LONG + 80; /* more than it says; no RoPE scaling depends on it */
        for (int i = 0; i < LONG; i++)
            ids[i] = (int32_t)(tern_rng_u64(&r) % (uint64_t)t.n_vocab);
        e = tiny_engine(&t, "t4,max=100,first=5", false, 2, 3, 96);
        alone = tiny_engine(&t, "t4,max=100,first=5", false, 1, 1, 512);
        tiny_ok(tern_events_new(&q, &err), &err);
        tiny_ok(tern_loop_open(&loop, e, &(tern_loop_params){.cache_bytes = 64 << 20}, &err), &err);
        static const int lengths[] = {300, 300, 301, 500, 450, 300, 130, 70, LONG, 500, LONG};
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            tern_request ask;
            uint64_t id;
            struct lc_request *got = lc_new();
            tern_request_defaults(&ask);
            ask.prompt = ids;
            ask.n_prompt = lengths[i];
            ask.max_tokens = 12;
            ask.logprobs = 0; /* tokens, and nothing besides */
            ask.ignore_eos = true;
            const int n = lc_alone(alone, &ask, 0, want);
            tiny_ok(tern_loop_submit(loop, &ask, q, got, &id, &err), &err);
            lc_wait(q, &got, 1);
            if (got->rc || got->c[0].n != n || memcmp(got->c[0].ids, want, (size_t)n * sizeof *want) != 0)
                fail_msg("%s, prompt of %d tokens, %d of them found: %d tokens instead of %d differ from cold %s",
                         models[m], lengths[i], got->end.n_cached, got->c[0].n, n, got->message);
            found += got->end.n_cached;
            free(got);
        }
        assert_true(found > 2 * LONG);
        tern_memory mem;
        tern_loop_close(&loop);
        tern_events_free(q);
        tern_engine_memory(e, &mem);
        assert_true(mem.kv_bytes == 0 && mem.state_bytes == 0);
        tern_engine_close(&e);
        tern_engine_close(&alone);
        tiny_close(&t);
    }
}

/* ---- what cannot be had ------------------------------------------------------------------------------------------ */

static void refused(struct tiny *t, const char *kv, bool strict, bool at_end, int want, const char *words)
{
    tern_error err = {0};
    tern_engine *e;
    tern_engine_params p = {.kv = kv, .kv_strict = strict, .code_at_end = at_end, .max_seqs = 1};
    assert_int_equal(tern_engine_open(&e, t->model, &p, &err), want);
    if (!strstr(err.msg, words))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, words);
}

static void test_refused(void **state)
{
    static const char *const bad[][2] = {{"t4,max=0", "from 64"},           {"t4,max=63", "from 64"},
                                         {"t4,max=16777217", "from 64"},    {"t4,max=", "from 64"},
                                         {"t4,max=70x", "from 64"},         {"t4,max=999999999999", "from 64"},
                                         {"t4,max=64,first=64", "no room"}, {"t4,max=100,recent=128", "no room"}};
    struct tiny t;
    tern_error err = {0};
    tern_kv_plan *p;
    tern_kv_row row;
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(tern_kv_check(bad[i][0], &err), TERN_EINVAL);
        assert_non_null(strstr(err.msg, bad[i][1]));
    }
    tiny_open(&t, "deepseek4", "deepseek4", "deepseek4");
    refused(&t, "t4,max=100", false, false, TERN_EUNSUPPORTED, "rows of several tokens");
    tiny_close(&t);
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    refused(&t, "t4,max=100", false, true, TERN_EUNSUPPORTED, "coded at its end");
    tiny_ok(tern_kv_plan_new(&p, t.model, "f16,max=100,first=9", true, &err), &err);
    tern_kv_plan_row(p, 0, &row);
    assert_true(row.window == 91 && row.first == 9 && !row.reason);
    tern_kv_plan_free(p);
    tiny_close(&t);
    tiny_open(&t, "phi3-window", "phi3-window", "phi3-window"); /* every layer has a window */
    refused(&t, "t4,max=100", true, false, TERN_EUNSUPPORTED, "window of its own");
    tiny_ok(tern_kv_plan_new(&p, t.model, "t4,max=100", false, &err), &err);
    assert_non_null(strstr(tern_kv_plan_note(p, 0), "max=100 changes nothing"));
    tern_kv_plan_free(p);
    tiny_close(&t);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_promises),
        cmocka_unit_test(test_begins_at_its_size),
        cmocka_unit_test(test_what_is_outside_is_gone),
        cmocka_unit_test(test_memory_is_bounded),
        cmocka_unit_test(test_recode),
        cmocka_unit_test(test_prefix_cache),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

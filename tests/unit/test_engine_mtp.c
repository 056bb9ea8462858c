/* Layers for multi-token prediction: what they say is what the published equations say, whichever way a sequence came
 * about, and replies with their guesses are those without, bit for bit. */
#include <dirent.h>
#include "loop_case.h"
#include "mtp_models.h"
#include "base/err.h"
#include "run/draft/draft.h"
#include "run/loop.h"
#include "served.h"
#include "tern/convert.h"

enum { PROMPT = 57, REPLY = 150 };

static const struct {
    const char *name;
    bool good; /* the layer says what the text says; else it is random */
} models[] = {{"qwen35", false}, {"qwen35", true}, {"deepseek4", false}, {"qwen35moe", false}, {"qwen35moe", true}};

static const char *const plans[] = {"f16", "t4", "k=q8,v=l3,recent=128", "l2,first=0"};

static void open_model(struct tiny *t, int m)
{
    char path[] = "/tmp/tern-mtp-XXXXXX";
    mm_gguf(path, models[m].name, models[m].good);
    mm_open(t, path, models[m].name);
    assert_int_equal(tern_model_get_info(t->model)->n_mtp_layers, 1);
    (void)unlink(path);
}

static tern_engine *open_engine(const struct tiny *t, const char *kv, const char *draft, int most, int threads,
                                bool exact)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {
        .n_threads = threads, .kv = kv, .max_seqs = 4, .chunk = 96, .draft = draft, .draft_most = most, .exact = exact};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

static tern_seq *read_ids(tern_engine *e, const int32_t *ids, int n)
{
    tern_seq *s;
    tern_error err = {0};
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    if (n)
        tiny_ok(tern_prefill(e, s, ids, n, NULL, NULL, NULL, &err), &err);
    return s;
}

/* The two likeliest, alone, are those of the whole row. */
static void best_of_guess(tern_engine *e, const struct tern_guess *g, int n_vocab)
{
    tern_error err = {0};
    struct tern_seen seen;
    float x[2];
    int32_t ids[2];
    const bool asks = e->asks_best;
    e->asks_best = true;
    tiny_ok(tern_guess_step(e, g, 1, true, 2, &seen, &err), &err);
    e->asks_best = asks;
    memcpy(x, seen.x, sizeof x);
    memcpy(ids, seen.ids, sizeof ids);
    tiny_ok(tern_guess_step(e, g, 1, true, 0, &seen, &err), &err);
    assert_true(!seen.ids && ids[0] != ids[1] && seen.x[ids[0]] == x[0] && seen.x[ids[1]] == x[1]);
    for (int i = 0; i < n_vocab; i++)
        assert_true(i == ids[0] || i == ids[1] ? x[0] >= x[1] : seen.x[i] <= x[1]);
}

/* What the layer says behind s of ids[0], and going on from that of ids[1]: 2 * n_vocab numbers, to be freed. */
static float *ask(const struct tiny *t, tern_engine *e, tern_seq *s, const int32_t *ids, int n)
{
    tern_error err = {0};
    struct tern_seen l;
    const size_t row = (size_t)t->n_vocab * sizeof *l.x;
    const int length = tern_seq_length(s);
    float *out = calloc((size_t)n, row);
    assert_non_null(out);
    tiny_ok(tern_guess_begin(s, n, &err), &err);
    for (int i = 0; i < n; i++) {
        const struct tern_guess g = {s, ids[i], i, 0};
        if (i == 0)
            best_of_guess(e, &g, t->n_vocab);
        tiny_ok(tern_guess_step(e, &g, 1, i == 0, 0, &l, &err), &err);
        memcpy(out + (size_t)(i * t->n_vocab), l.x, row);
    }
    tern_guess_end(s);
    assert_int_equal(tern_seq_length(s), length);
    return out;
}

static void close_to(const float *got, const float *want, int n, float limit, const char *what, int at)
{
    for (int i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= limit))
            fail_msg("%s behind token %d: logit %d is %g, not %g", what, at, i, (double)got[i], (double)want[i]);
}

/* Behind every fifth token, against the referee's numbers. */
static void check_parity(const struct tiny *t, const char *ref)
{
    struct tiny first = {0}, second = {0};
    char name[64];
    /* Behind 100 tokens of that one transformers, in 32 bits too, is 2.6e-5 from the equations before the layer. */
    const float limit = strcmp(ref, "qwen35moe") == 0 ? 2e-4f : 1e-4f;
    (void)snprintf(name, sizeof name, "../mtp/%s", ref);
    tiny_read_ref(&first, name);
    (void)snprintf(name, sizeof name, "../mtp/%s-2", ref);
    tiny_read_ref(&second, name);
    assert_int_equal(first.n_ref, (t->n_ids + 3) / 5);
    assert_int_equal(second.n_ref, first.n_ref);
    tern_engine *e = open_engine(t, "f32", "mtp", 4, 2, true);
    for (int r = 0; r < first.n_ref; r++) {
        tern_seq *s = read_ids(e, t->ids, 5 * r);
        float *l = ask(t, e, s, t->ids + 5 * r, 2);
        close_to(l, first.ref + (size_t)(r * t->n_vocab), t->n_vocab, limit, "a guess", 5 * r);
        close_to(l + t->n_vocab, second.ref + (size_t)(r * t->n_vocab), t->n_vocab, limit, "the second guess", 5 * r);
        free(l);
        tern_seq_free(s);
    }
    tern_engine_close(&e);
    free(first.ref);
    free(second.ref);
}

static void test_parity(void **state)
{
    (void)state;
    for (int m = 0; m < (int)(sizeof models / sizeof *models); m++) {
        struct tiny t;
        if (!served_or_said(models[m].name))
            continue;
        if (models[m].good)
            continue;
        open_model(&t, m);
        check_parity(&t, models[m].name);
        tiny_close(&t);
    }
}

/* A directory with the makers' names, and what convert makes of it: the layer comes along. */
static void test_directory(void **state)
{
    (void)state;
    static const char *const types[] = {"keep", "f32", "q8_0"};
    char from[] = "/tmp/tern-mtp-XXXXXX", to[] = "/tmp/tern-mtp-XXXXXX", again[] = "/tmp/tern-mtp-XXXXXX";
    struct tiny t;
    tern_error err = {0};
    const int fd[2] = {mkstemp(to), mkstemp(again)};
    assert_true(fd[0] >= 0 && close(fd[0]) == 0 && fd[1] >= 0 && close(fd[1]) == 0);
    mm_directory(from, "qwen3_5", false);
    mm_open(&t, from, "../hf/qwen3_5");
    assert_int_equal(tern_model_get_info(t.model)->n_layers, 3);
    check_parity(&t, "qwen3_5");
    tiny_close(&t);
    for (int i = 0; i < 3; i++) {
        tern_convert_params p = {.type = types[i], .n_threads = 2};
        assert_true(unlink(to) == 0 && unlink(again) == 0);
        tiny_ok(tern_convert(from, to, &p, NULL, &err), &err);
        tiny_ok(tern_convert(to, again, &(tern_convert_params){.n_threads = 1}, NULL, &err), &err);
        mm_open(&t, i ? to : again, "../hf/qwen3_5");
        assert_int_equal(tern_model_get_info(t.model)->n_mtp_layers, 1);
        if (i < 2)
            check_parity(&t, "qwen3_5");
        tiny_close(&t);
    }
    assert_true(unlink(to) == 0 && unlink(again) == 0);
    mm_remove_directory(from);
}

/* The same numbers behind s as behind `like`, and the same text. */
static void same(const struct tiny *t, tern_engine *e, tern_seq *s, const float *like, const int32_t *ids, int n,
                 const char *what)
{
    float *l = ask(t, e, s, ids, n);
    if (memcmp(l, like, (size_t)(n * t->n_vocab) * sizeof *l) != 0)
        fail_msg("%s: another guess", what);
    free(l);
}

/* Whole, split, forked, trimmed, saved and restored, beside others: what the layer keeps is in step with the text. */
static void check_step(const struct tiny *t, const char *kv, int n, bool exact)
{
    enum { ASK = 4 };
    tern_error err = {0};
    char path[] = "/tmp/tern-mtp-XXXXXX";
    tern_engine *e = open_engine(t, kv, "mtp", 4, 2, exact), *one = open_engine(t, kv, "mtp", 4, 1, exact);
    tern_seq *s = read_ids(e, t->ids, n), *other;
    const int32_t *ids = t->ids + n;
    float *want = ask(t, e, s, ids, ASK);
    same(t, e, s, want, ids, ASK, "asked again");
    tiny_ok(tern_seq_fork(&other, s, &err), &err);
    same(t, e, other, want, ids, ASK, "forked");
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0);
    tiny_ok(tern_seq_save(other, path, &err), &err);
    tern_seq_free(other);
    tiny_ok(tern_seq_load(&other, one, path, &err), &err);
    same(t, one, other, want, ids, ASK, "restored");
    tern_seq_free(other);
    tiny_ok(tern_seq_new(&other, one, &err), &err);
    for (int i = 0, k; i < n; i += k) {
        k = 1 + i * 7 % 31 < n - i ? 1 + i * 7 % 31 : n - i;
        tiny_ok(tern_step(one, &(tern_step_item){.seq = other, .tokens = t->ids + i, .n_tokens = k}, 1, NULL, &err),
                &err);
    }
    same(t, one, other, want, ids, ASK, "read in pieces");
    /* Wrong tokens, taken back at once, and later. */
    for (int back = 1; back <= 3; back++) {
        const int32_t wrong[] = {1, 2, 3};
        tern_step_item it = {.seq = other, .tokens = wrong, .n_tokens = back, .decode = true};
        tiny_ok(tern_step(one, &it, 1, NULL, &err), &err);
        tiny_ok(tern_seq_trim(other, n, &err), &err);
        same(t, one, other, want, ids, ASK, "trimmed");
    }
    for (int i = 0; i < 70; i++)
        tiny_ok(tern_step(one, &(tern_step_item){.seq = other, .tokens = t->ids + i, .n_tokens = 1, .decode = true}, 1,
                          NULL, &err),
                &err);
    tiny_ok(tern_seq_trim(other, n, &err), &err);
    same(t, one, other, want, ids, ASK, "trimmed far");
    /* Guesses of a batch. */
    tern_seq *more[3] = {s};
    struct tern_seen l;
    for (int i = 1; i < 3; i++)
        more[i] = read_ids(e, t->ids + i, n / (i + 1));
    for (int i = 0; i < 3; i++)
        tiny_ok(tern_guess_begin(more[i], ASK, &err), &err);
    for (int k = 0; k < ASK; k++) { /* the first one leaves, and s moves up */
        struct tern_guess g[3];
        int g_n = 0;
        for (int i = 2; i >= 0; i--)
            if (i < 2 || k < 2) {
                g[g_n] = (struct tern_guess){more[i], i ? t->ids[i + k] : ids[k], k, k == 2 ? g_n + 1 : g_n};
                g_n++;
            }
        tiny_ok(tern_guess_step(e, g, g_n, k == 0, 0, &l, &err), &err);
        const float *row = l.x + (size_t)(g_n - 1) * (size_t)t->n_vocab;
        assert_memory_equal(row, want + (size_t)(k * t->n_vocab), (size_t)t->n_vocab * sizeof *row);
    }
    for (int i = 0; i < 3; i++)
        tern_guess_end(more[i]);
    same(t, e, s, want, ids, ASK, "after a batch");
    free(want);
    (void)unlink(path);
    tern_engine_close(&e);
    tern_engine_close(&one);
}

static void test_in_step(void **state)
{
    (void)state;
    static const int lengths[] = {5, 61, 63, 64, 66, 120};
    for (int m = 0; m < (int)(sizeof models / sizeof *models); m++) {
        struct tiny t;
        if (!served_or_said(models[m].name))
            continue;
        if (models[m].good)
            continue;
        open_model(&t, m);
        for (int k = 0; k < 4; k++)
            for (int i = 0; i < 6; i++)
                if ((i + k) % 2 == 0)
                    check_step(&t, plans[k], lengths[i], k == 0 && i == 2);
        tiny_close(&t);
    }
}

struct sampling {
    float temperature, penalty;
    uint64_t seed;
};

static tern_seq *reply(const struct tiny *t, tern_engine *e, struct sampling s, tern_generate_result *r)
{
    tern_seq *q;
    tern_error err = {0};
    tern_generate_params p = {.max_tokens = REPLY, .ignore_eog = true};
    tern_sampler_defaults(&p.sampler);
    p.sampler.temperature = s.temperature;
    p.sampler.repetition_penalty = s.penalty;
    p.sampler.seed = s.seed;
    tiny_ok(tern_seq_new(&q, e, &err), &err);
    tiny_ok(tern_generate(e, q, t->ids, PROMPT, &p, r, &err), &err);
    assert_int_equal(tern_seq_length(q), PROMPT + REPLY);
    return q;
}

static void same_next(const struct tiny *t, tern_engine *a, tern_seq *x, tern_engine *b, tern_seq *y)
{
    tern_error err = {0};
    const float *l, *m;
    int32_t id = 5;
    tern_step_item i = {x, &id, 1, true, TERN_LOGITS_LAST}, j = {y, &id, 1, true, TERN_LOGITS_LAST};
    tiny_ok(tern_step(a, &i, 1, &l, &err), &err);
    tiny_ok(tern_step(b, &j, 1, &m, &err), &err);
    assert_memory_equal(l, m, (size_t)t->n_vocab * sizeof *l);
}

static double check_reply(const struct tiny *t, const char *kv, const char *draft, int most, struct sampling s,
                          int threads, bool exact)
{
    tern_generate_result r, without;
    tern_error err = {0};
    tern_engine *plain = open_engine(t, kv, NULL, 0, 1, exact), *e = open_engine(t, kv, draft, most, threads, exact);
    tern_seq *want = reply(t, plain, s, &without), *got = reply(t, e, s, &r);
    if (memcmp(tern_seq_tokens(got), tern_seq_tokens(want), (PROMPT + REPLY) * sizeof(int32_t)) != 0)
        fail_msg("--kv %s, --draft %s, %d guesses, temperature %g: another reply", kv, draft, most,
                 (double)s.temperature);
    assert_true(r.n_accepted <= r.n_drafted && (r.n_drafted > 0 || strcmp(draft, "mtp") != 0));
    for (int back = 0; back < 70; back += 33) {
        tiny_ok(tern_seq_trim(want, PROMPT + REPLY - back, &err), &err);
        tiny_ok(tern_seq_trim(got, PROMPT + REPLY - back, &err), &err);
        same_next(t, plain, want, e, got);
    }
    tern_seq_free(got);
    tern_memory mem;
    tern_engine_memory(e, &mem);
    assert_true(mem.kv_bytes == 0 && mem.state_bytes == 0);
    tern_engine_close(&e);
    tern_engine_close(&plain);
    return r.n_drafted ? (double)r.n_accepted / r.n_drafted : 0;
}

/* DeepSeek-V4's directory, under the names of its makers and under those of transformers, and what convert makes of it:
 * mtp.0 says what the equations say, and texts are those without it. */
static void test_directory4(void **state)
{
    (void)state;
    if (!served_or_said("deepseek_v4"))
        skip();
    for (int published = 0; published < 2; published++) {
        char from[] = "/tmp/tern-mtp-XXXXXX", to[] = "/tmp/tern-mtp-XXXXXX";
        struct tiny t;
        tern_error err = {0};
        const int fd = mkstemp(to);
        assert_true(fd >= 0 && close(fd) == 0 && unlink(to) == 0);
        mm_directory(from, "deepseek_v4", published);
        tiny_ok(tern_convert(from, to, &(tern_convert_params){.type = published ? "keep" : "f32", .n_threads = 2}, NULL,
                             &err),
                &err);
        for (int i = 0; i < 2; i++) {
            mm_open(&t, i ? to : from, "../hf/deepseek_v4");
            assert_int_equal(tern_model_get_info(t.model)->n_layers, 2);
            assert_int_equal(tern_model_get_info(t.model)->n_mtp_layers, 1);
            check_parity(&t, "deepseek_v4");
            (void)check_reply(&t, "f16", "mtp", 3, (struct sampling){0, 1, 0}, 2, false);
            (void)check_reply(&t, "t4", "mtp", 1, (struct sampling){.8f, 1, 7}, 1, false);
            (void)check_reply(&t, "t4", "auto", 0, (struct sampling){0, 1, 0}, 2, false);
            tiny_close(&t);
        }
        assert_int_equal(unlink(to), 0);
        mm_remove_directory(from);
    }
}

static void test_replies(void **state)
{
    (void)state;
    struct tern_rng rng = {11};
    for (int m = 0; m < (int)(sizeof models / sizeof *models); m++) {
        struct tiny t;
        double greedy = 0;
        if (!served_or_said(models[m].name))
            continue;
        open_model(&t, m);
        for (int n = 0; n < 8; n++) {
            static const int most[] = {1, 3, 4, 16};
            const struct sampling s = {n % 2 ? .9f : 0, n % 3 ? 1 : 1.2f, tern_rng_u64(&rng)};
            const double share = check_reply(&t, plans[n / 2], "mtp", most[(n + n / 4) % 4], s, 1 + n % 3, false);
            if (n % 2 == 0 && n % 3) {
                greedy = share;
                print_message("%s%s --kv %s: %.3f of greedy guesses were right\n", models[m].name,
                              models[m].good ? ", good" : "", plans[n / 2], share);
                assert_true(models[m].good ? share > .9 : share < .3);
            }
        }
        assert_true(greedy > 0 || !models[m].good);
        (void)check_reply(&t, "f32", "mtp", 4, (struct sampling){0, 1, 0}, 2, true);
        (void)check_reply(&t, "t4", "auto", 0, (struct sampling){0, 1, 0}, 2, false);
        (void)check_reply(&t, "t4", "auto", 0, (struct sampling){.8f, 1, 5}, 2, false);
        tiny_close(&t);
    }
}

/* Requests that come and go, with what they have in common kept, against each by itself without guesses. */
static void test_loops(void **state)
{
    (void)state;
    enum { N = 16 };
    for (int m = 0; m < (int)(sizeof models / sizeof *models); m++)
        for (int pass = served_or_said(models[m].name) ? 0 : 3; pass < 3; pass++) {
            static struct lc_request *got[N];
            struct tiny t;
            tern_error err = {0};
            tern_loop *loop;
            tern_events *q;
            tern_loop_stats stats;
            open_model(&t, m);
            tern_engine *plain = open_engine(&t, "t4", NULL, 0, 1, false),
                        *e = open_engine(&t, "t4", pass == 2 ? "auto" : "mtp", 1 + 3 * pass, 2, false);
            tiny_ok(tern_events_new(&q, &err), &err);
            tiny_ok(tern_loop_open(&loop, e, &(tern_loop_params){.cache_bytes = pass ? 1 << 22 : 0}, &err), &err);
            tern_request r[N];
            for (int i = 0; i < N; i++) {
                uint64_t id;
                tern_request_defaults(&r[i]);
                r[i].prompt = t.ids;
                r[i].n_prompt = 20 + i * 37 % 110;
                r[i].max_tokens = 1 + i * 13 % 70;
                r[i].sampler.temperature = i % 2 ? .8f : 0;
                r[i].sampler.seed = (uint64_t)i;
                r[i].ignore_eos = true;
                r[i].logprobs = 0; /* then tokens are told */
                got[i] = lc_new();
                tiny_ok(tern_loop_submit(loop, &r[i], q, got[i], &id, &err), &err);
            }
            lc_wait(q, got, N);
            tern_loop_get_stats(loop, &stats);
            assert_true(pass == 2 || stats.drafted_tokens > 0);
            assert_true(!models[m].good || pass == 2 || stats.accepted_tokens > 50);
            for (int i = 0; i < N; i++) {
                tern_generate_result result;
                tern_generate_params p = {.max_tokens = r[i].max_tokens, .ignore_eog = true, .sampler = r[i].sampler};
                tern_seq *s = read_ids(plain, NULL, 0);
                tiny_ok(tern_generate(plain, s, r[i].prompt, r[i].n_prompt, &p, &result, &err), &err);
                assert_int_equal(got[i]->rc, 0);
                assert_int_equal(got[i]->c[0].n, r[i].max_tokens);
                assert_memory_equal(got[i]->c[0].ids, tern_seq_tokens(s) + r[i].n_prompt,
                                    (size_t)r[i].max_tokens * sizeof(int32_t));
                tern_seq_free(s);
                free(got[i]);
            }
            tern_loop_close(&loop);
            tern_events_free(q);
            tern_engine_close(&e);
            tern_engine_close(&plain);
            tiny_close(&t);
        }
}

/* One request on a loop of its own engine, and what the prefix cache knew of it. */
static struct lc_request *ask_once(tern_loop *loop, tern_events *q, const tern_request *r)
{
    tern_error err = {0};
    uint64_t id;
    struct lc_request *rec = lc_new();
    tiny_ok(tern_loop_submit(loop, r, q, rec, &id, &err), &err);
    lc_wait(q, &rec, 1);
    assert_int_equal(rec->rc, 0);
    return rec;
}

static void check_same(const struct lc_request *got, const struct lc_request *want, const char *what)
{
    const struct lc_choice *a = &got->c[0], *b = &want->c[0];
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++)
        if (a->ids[i] != b->ids[i] || memcmp(&a->logprob[i], &b->logprob[i], sizeof a->logprob[i]) != 0)
            fail_msg("%s: token %d of the reply is %d at %.17g, not %d at %.17g", what, i, a->ids[i], a->logprob[i],
                     b->ids[i], b->logprob[i]);
}

struct served_mtp {
    struct tiny t;
    tern_engine *e;
    tern_loop *loop;
    tern_events *q;
};

static void serve(struct served_mtp *s, const char *draft, const char *folder)
{
    tern_error err = {0};
    s->e = open_engine(&s->t, "t4", draft, 3, 2, false);
    tiny_ok(tern_events_new(&s->q, &err), &err);
    tiny_ok(tern_loop_open(&s->loop, s->e,
                           &(tern_loop_params){.cache_bytes = folder ? (size_t)64 << 20 : 0,
                                               .cache_dir = folder,
                                               .cache_dir_bytes = (size_t)64 << 20},
                           &err),
            &err);
}

static void stop(struct served_mtp *s)
{
    tern_loop_close(&s->loop);
    tern_events_free(s->q);
    tern_engine_close(&s->e);
}

/* What was found in the prefix cache, and what came back from disk after a restart, goes on as what was read anew: the
 * same tokens, the same probabilities, the same number of guesses and of right ones. */
static void check_tiers(int m, const char *folder)
{
    static const int lengths[] = {64, 100, 129, 190};
    struct served_mtp plain, cold, kept;
    int32_t ids[256];
    struct tern_rng g = {3};
    open_model(&plain.t, m);
    cold.t = kept.t = plain.t;
    for (int i = 0; i < 256; i++)
        ids[i] = (int32_t)(tern_rng_u64(&g) % (uint64_t)plain.t.n_vocab);
    serve(&plain, NULL, NULL);
    serve(&cold, "mtp", NULL);
    serve(&kept, "mtp", folder);
    int accepted = 0, found = 0;
    for (int i = 0; i < 8; i++) {
        tern_request r;
        tern_request_defaults(&r);
        r.prompt = ids + i / 4;
        r.n_prompt = lengths[i % 4];
        r.max_tokens = 50;
        r.sampler.temperature = i % 2 ? .8f : 0;
        r.sampler.seed = (uint64_t)i;
        r.ignore_eos = true;
        r.logprobs = 0;
        struct lc_request *want = ask_once(plain.loop, plain.q, &r), *first = ask_once(cold.loop, cold.q, &r);
        check_same(first, want, "with guesses");
        assert_true(first->c[0].end.n_drafted > 0 && want->c[0].end.n_drafted == 0);
        accepted += first->c[0].end.n_accepted;
        for (int pass = 0; pass < 3; pass++) {
            if (pass == 2) {
                stop(&kept);
                serve(&kept, "mtp", folder);
            }
            struct lc_request *got = ask_once(kept.loop, kept.q, &r);
            check_same(got, want, pass == 0 ? "kept" : pass == 1 ? "found" : "from disk");
            assert_true(pass == 0 || got->end.n_cached > 0);
            assert_int_equal(got->c[0].end.n_drafted, first->c[0].end.n_drafted);
            assert_int_equal(got->c[0].end.n_accepted, first->c[0].end.n_accepted);
            found += got->end.n_cached;
            free(got);
        }
        free(want);
        free(first);
    }
    print_message("%s%s: %d tokens found, %d guesses right\n", models[m].name, models[m].good ? ", good" : "", found,
                  accepted);
    assert_true(!models[m].good || accepted > 100);
    stop(&plain);
    stop(&cold);
    stop(&kept);
    tiny_close(&plain.t);
}

static void remove_tree(const char *path)
{
    DIR *d = opendir(path);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) {
        char name[600];
        (void)snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && unlink(name) != 0)
            remove_tree(name);
    }
    (void)closedir(d);
    assert_int_equal(rmdir(path), 0);
}

static void test_tiers(void **state)
{
    (void)state;
    for (int m = 0; m < (int)(sizeof models / sizeof *models); m++) {
        char folder[] = "/tmp/tern-mtp-XXXXXX";
        if (!served_or_said(models[m].name))
            continue;
        assert_non_null(mkdtemp(folder));
        check_tiers(m, folder);
        remove_tree(folder);
    }
}

/* A --kv text means the same layers with the layer and without: schemes, edges, signs. */
static void test_plans(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_engine *e;
    open_model(&t, 0);
    assert_int_equal(tern_model_get_info(t.model)->n_layers, 3);
    assert_int_equal(tern_model_get_info(t.model)->n_mtp_layers, 1);
    assert_true(tern_model_get_info(t.model)->n_mtp_params > 0);
    assert_int_equal(
        tern_engine_open(&e, t.model, &(tern_engine_params){.kv = "t4,layers=3-3:q8", .draft = "mtp"}, &err),
        TERN_EINVAL);
    assert_non_null(strstr(err.msg, "the model has 3"));
    (void)check_reply(&t, "t4,edge=1:q8", "mtp", 4, (struct sampling){0, 1, 0}, 2, false);
    (void)check_reply(&t, "f16,layers=1-1:l3", "mtp", 4, (struct sampling){.7f, 1, 3}, 2, false);
    tiny_close(&t);
}

static void test_refusals(void **state)
{
    (void)state;
    static const char *const without[] = {"qwen35", "qwen35moe"}; /* of the latter a part is there */
    for (int i = 0; i < 2; i++) {
        struct tiny t;
        tern_engine *e;
        tern_error err = {0};
        tiny_open(&t, without[i], without[i], without[i]);
        assert_int_equal(tern_engine_open(&e, t.model, &(tern_engine_params){.draft = "mtp"}, &err), TERN_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, "multi-token prediction"));
        tiny_ok(tern_engine_open(&e, t.model, &(tern_engine_params){.draft = "auto"}, &err), &err);
        tern_engine_close(&e);
        assert_int_equal(tern_model_get_info(t.model)->n_mtp_layers, 0);
        tiny_close(&t);
    }
}

/* A sequence that was saved with what the layer keeps goes on in no engine without it, nor the other way round. */
static void test_saved(void **state)
{
    (void)state;
    struct tiny t;
    open_model(&t, 0);
    for (int with = 0; with < 2; with++) {
        char path[] = "/tmp/tern-mtp-XXXXXX";
        tern_error err = {0};
        tern_engine *from = open_engine(&t, "t4", with ? "mtp" : NULL, with ? 4 : 0, 1, false),
                    *to = open_engine(&t, "t4", with ? NULL : "mtp", with ? 0 : 4, 1, false);
        tern_seq *s = read_ids(from, t.ids, PROMPT), *none;
        int fd = mkstemp(path);
        assert_true(fd >= 0 && close(fd) == 0);
        tiny_ok(tern_seq_save(s, path, &err), &err);
        assert_int_equal(tern_seq_load(&none, to, path, &err), TERN_EMISMATCH);
        assert_null(none);
        assert_non_null(strstr(err.msg, with ? ", or with the layer for multi-token prediction"
                                             : ", or without the layer for multi-token prediction"));
        tern_seq_free(s);
        tern_engine_close(&from);
        tern_engine_close(&to);
        (void)unlink(path);
    }
    tiny_close(&t);
}

static int fails(struct tern_dev *d, bool keep, tern_error *err)
{
    (void)d;
    return keep ? 0 : tern_err_set(err, TERN_EIO, "a reader has failed");
}

/* A guess that failed has written its row all the same: it took the place of a raw row, as one that did not fail. */
static void test_failed(void **state)
{
    (void)state;
    enum { N = 2 * TERN_PAGE };
    struct tiny t;
    tern_error err = {0};
    struct tern_seen l;
    int moved = 0;
    open_model(&t, 0);
    tern_engine *e = open_engine(&t, "t4", "mtp", 4, 1, false);
    tern_seq *s[3]; /* behind which nothing was guessed; a guess; a guess that failed */
    const struct tern_dev_ops *whole = e->dev->ops;
    struct tern_dev_ops broken = *whole;
    broken.fault = fails;
    for (int i = 0; i < 3; i++) {
        s[i] = read_ids(e, t.ids, N);
        if (!i)
            continue;
        const struct tern_guess g = {s[i], t.ids[N], 0, 0};
        tiny_ok(tern_guess_begin(s[i], 2, &err), &err);
        e->dev->ops = i == 2 ? &broken : whole;
        assert_int_equal(tern_guess_step(e, &g, 1, true, 0, &l, &err), i == 2 ? TERN_EIO : 0);
        e->dev->ops = whole;
        tern_guess_end(s[i]);
    }
    for (int g = 0; g < TERN_KV_MAX_GROUPS; g++) {
        assert_int_equal(s[2]->kv->raw_from[g], s[1]->kv->raw_from[g]);
        moved += s[1]->kv->raw_from[g] != s[0]->kv->raw_from[g];
    }
    assert_true(moved > 0);
    for (int i = 0; i < 3; i++)
        tern_seq_free(s[i]);
    tern_engine_close(&e);
    tiny_close(&t);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parity),  cmocka_unit_test(test_directory), cmocka_unit_test(test_directory4),
        cmocka_unit_test(test_in_step), cmocka_unit_test(test_replies),   cmocka_unit_test(test_loops),
        cmocka_unit_test(test_tiers),   cmocka_unit_test(test_plans),     cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_saved),   cmocka_unit_test(test_failed),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Drafts: whatever is guessed, right, wrong or both, replies are those that come without, bit for bit, and so is what a
 * sequence answers afterwards. */
#include <unistd.h>
#include "loop_case.h"
#include "base/err.h"
#include "run/draft/draft.h"
#include "run/loop.h"
#include "served.h"

#ifndef TERN_MAKE_TEXT_MODEL /* cross builds do not make it, and do not run this test */
#define TERN_MAKE_TEXT_MODEL "make_text_model"
#endif

/* ---- who knows the replies --------------------------------------------------------------------------------------- */

enum mode { WRONG, RIGHT, MIXED, NOISE, N_MODES };
enum { MOST_REPLIES = 256 };

static struct oracle {
    enum mode mode;
    struct tern_rng rng;
    int32_t *ids[MOST_REPLIES]; /* prompts with their replies */
    int n[MOST_REPLIES], n_replies, n_vocab;
} oracle;

static void oracle_forget(void)
{
    while (oracle.n_replies)
        free(oracle.ids[--oracle.n_replies]);
}

static void oracle_learn(const int32_t *prompt, int n_prompt, const int32_t *reply, int n)
{
    assert_true(oracle.n_replies < MOST_REPLIES);
    int32_t *p = malloc((size_t)(n_prompt + n) * sizeof *p);
    assert_non_null(p);
    memcpy(p, prompt, (size_t)n_prompt * sizeof *p);
    memcpy(p + n_prompt, reply, (size_t)n * sizeof *p);
    oracle.ids[oracle.n_replies] = p;
    oracle.n[oracle.n_replies++] = n_prompt + n;
}

static int oracle_guess(void *user, const int32_t *tokens, int n, int32_t *out, int most)
{
    struct oracle *o = user;
    int r = 0;
    while (r < o->n_replies && (o->n[r] <= n || memcmp(o->ids[r], tokens, (size_t)n * sizeof *tokens) != 0))
        r++;
    if (o->mode == MIXED)
        most = (int)(tern_rng_u64(&o->rng) % (uint64_t)(most + 1));
    for (int i = 0; i < most; i++) {
        const bool known = r < o->n_replies && n + i < o->n[r];
        out[i] = known ? o->ids[r][n + i] : (int32_t)(tern_rng_u64(&o->rng) % (uint64_t)o->n_vocab);
        const bool spoil = o->mode == WRONG || (o->mode == MIXED && tern_rng_u64(&o->rng) % 8 == 0);
        if (spoil || o->mode == NOISE)
            out[i] = (out[i] + 1 + (int32_t)(o->mode == NOISE ? tern_rng_u64(&o->rng) % 7 : 0)) % o->n_vocab;
    }
    return most;
}

/* ---- lookups ----------------------------------------------------------------------------------------------------- */

/* The same by looking everywhere. */
static int look_everywhere(const int32_t *ids, int n, int32_t *out, int most, int *match)
{
    int from = 0;
    *match = 0;
    for (int i = n - 2; i >= 1; i--) {
        int m = 0;
        while (m < TERN_LOOKUP_LONG && i - m >= 0 && ids[i - m] == ids[n - 1 - m])
            m++;
        if (m > *match) {
            *match = m;
            from = i + 1;
        }
    }
    if (*match < 2)
        return 0;
    for (int i = 0; i < most; i++)
        out[i] = from + i < n ? ids[from + i] : out[from + i - n];
    return most;
}

static void test_lookup(void **state)
{
    (void)state;
    static int32_t ids[3000], got[64], want[64];
    struct tern_rng rng = {1};
    tern_error err = {0};
    for (int kinds = 20; kinds <= 3000; kinds *= 5) {
        struct tern_lookup l = {0};
        int64_t found = 0, longest = 0;
        for (int n = 0, left = 0, place = 0; n < 3000; n++) {
            if (left-- <= 0) { /* runs of quotes and of new tokens */
                left = 1 + (int)(tern_rng_u64(&rng) % 12);
                place = n > 50 && left % 2 ? (int)(tern_rng_u64(&rng) % (uint64_t)(n - 20)) : -1;
            }
            ids[n] = place >= 0 ? ids[place++] : (int32_t)(tern_rng_u64(&rng) % (uint64_t)kinds);
            int m, k, at = n;
            tiny_ok(tern_lookup_add(&l, ids + n, 1, &err), &err);
            const int g = tern_lookup_guess(&l, got, 64, &m);
            (void)look_everywhere(ids, n + 1, want, 64, &k);
            found += g ? m : 0;
            longest += k >= 2 ? k : 0;
            assert_true(g == 64 || (g == 0 && m < 2));
            assert_true(m <= k); /* not all places of frequent tokens are looked at */
            while (g && at > 0 && memcmp(&ids[at - m], &ids[n + 1 - m], (size_t)m * sizeof *ids) != 0)
                at--;
            assert_true(!g || at >= m); /* such a place there is */
            if (m == k && g)
                assert_memory_equal(got, want, sizeof got);
        }
        assert_true(longest > 1000 && found >= longest * 9 / 10);
        tern_lookup_clear(&l);
    }
    struct tern_lookup one = {0};
    int m;
    tiny_ok(tern_lookup_add(&one, ids, 0, &err), &err);
    assert_int_equal(tern_lookup_guess(&one, got, 5, &m), 0);
    tiny_ok(tern_lookup_add(&one, ids, 1, &err), &err);
    assert_int_equal(tern_lookup_guess(&one, got, 5, &m), 0);
    int32_t same[] = {ids[0], ids[0]};
    tiny_ok(tern_lookup_add(&one, same, 2, &err), &err); /* it goes on with itself */
    assert_int_equal(tern_lookup_guess(&one, got, 5, &m), 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(got[i], ids[0]);
    tern_lookup_clear(&one);
}

static void test_price(void **state)
{
    (void)state;
    struct tern_price p = {0};
    for (int r = 1; r < 300; r++)
        assert_true(tern_price_of(&p, r + 1) >= tern_price_of(&p, r));
    for (int i = 0; i < 200; i++) { /* .01 s and .001 s per further row; now and then the machine is busy */
        const int rows = 1 + i % 16;
        tern_price_learn(&p, rows, (.01 + .001 * (rows - 1)) * (i % 50 == 49 ? 40 : 1));
    }
    assert_true(fabs(p.row_s - .01) < .004);
    for (int r = 2; r <= 16; r++)
        assert_true(fabs(tern_price_of(&p, r) - (1 + .1 * (r - 1))) < .4 + .1 * r);
    for (int r = 1; r < 300; r++)
        assert_true(tern_price_of(&p, r + 1) >= tern_price_of(&p, r));
}

/* The first step of a class encodes a page: that says nothing yet.  When the next one is as dear, rows are. */
static void test_price_doubts(void **state)
{
    (void)state;
    struct tern_price p = {0};
    tern_price_learn(&p, 1, .01);
    tern_price_learn(&p, 3, .027);
    assert_true(tern_price_of(&p, 3) < 1.5);
    tern_price_learn(&p, 1, .026);
    assert_true(fabs(p.row_s - .01) < 1e-9);
    tern_price_learn(&p, 3, .011);
    tern_price_learn(&p, 3, .027);
    assert_true(tern_price_of(&p, 3) < 1.5);
    for (int i = 0; i < 20; i++)
        tern_price_learn(&p, 3, .027);
    assert_true(fabs(tern_price_of(&p, 3) - 2.7) < .1);
}

/* ---- replies ----------------------------------------------------------------------------------------------------- */

enum { PROMPT = 57, REPLY = 150 };

static const char *const more[] = {"f16", "k=q8,v=l3"}; /* plans 1 and 2 */

static const struct {
    const char *name, *kv[3];
} models[] = {
    {"llama-tied", {"f16", "t4", "k=q8,v=l3,recent=128"}},
    {"gemma3-w70", {"t4", "t4,layers=0-6:l4,recent=128", "q8"}},
    {"deepseek2-lite", {"l3", "f16", "t4"}},
    {"qwen35", {"t4", "l3,recent=128", "f16"}},
    {"deepseek4", {"t4", "f16", "l3"}},
    {"llama4-128", {"t4", "q8", "l2"}},
};

struct sampling {
    float temperature, penalty;
    uint64_t seed;
};

static tern_model *small; /* NULL: guesses are not a model's */

static tern_engine *open_engine(struct tiny *t, const char *kv, int threads, const char *draft, int most, bool exact)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {
        .n_threads = threads, .kv = kv, .max_seqs = 2, .chunk = 96, .draft = draft, .draft_most = most, .exact = exact};
    if (draft && small) {
        p.draft = NULL;
        p.draft_model = small;
    }
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    if (draft && small)
        tern_drafter_set_source(e->drafter, NULL, NULL);
    return e;
}

static tern_seq *reply(struct tiny *t, tern_engine *e, struct sampling s, tern_generate_result *r)
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
    assert_int_equal(r->n_generated, REPLY);
    assert_int_equal(tern_seq_length(q), PROMPT + REPLY);
    return q;
}

static void same_answer(struct tiny *t, tern_engine *a, tern_seq *x, tern_engine *b, tern_seq *y)
{
    tern_error err = {0};
    const float *l, *m;
    int32_t id = 5;
    tern_step_item i = {x, &id, 1, true, TERN_LOGITS_LAST}, j = {y, &id, 1, true, TERN_LOGITS_LAST};
    tiny_ok(tern_step(a, &i, 1, &l, &err), &err);
    tiny_ok(tern_step(b, &j, 1, &m, &err), &err);
    assert_memory_equal(l, m, (size_t)t->n_vocab * sizeof *l);
}

/* After a drafted reply: its next logits, those of a fork, of a restored session, and of a trimmed one. */
static void same_afterwards(struct tiny *t, tern_engine *plain, tern_seq *want, tern_engine *e, tern_seq *got)
{
    tern_error err = {0};
    char path[] = "/tmp/tern-drafts-XXXXXX";
    tern_seq *fork, *from;
    int fd = mkstemp(path);
    assert_true(fd >= 0 && close(fd) == 0);
    tiny_ok(tern_seq_fork(&fork, got, &err), &err);
    tiny_ok(tern_seq_fork(&from, want, &err), &err);
    same_answer(t, plain, from, e, fork);
    tern_seq_free(fork);
    tiny_ok(tern_seq_save(got, path, &err), &err);
    tiny_ok(tern_seq_load(&fork, e, path, &err), &err);
    tiny_ok(tern_seq_trim(from, tern_seq_length(want), &err), &err);
    same_answer(t, plain, from, e, fork);
    tern_seq_free(fork);
    tern_seq_free(from);
    for (int back = 0; back < 70; back += 33) {
        tiny_ok(tern_seq_trim(want, PROMPT + REPLY - back, &err), &err);
        tiny_ok(tern_seq_trim(got, PROMPT + REPLY - back, &err), &err);
        same_answer(t, plain, want, e, got);
    }
    (void)unlink(path);
}

/* One way to guess, against the reply without. */
static void check_reply(struct tiny *t, const char *kv, struct sampling s, int most, int mode, int threads, bool exact)
{
    tern_generate_result r, plain_r;
    tern_engine *plain = open_engine(t, kv, 1, NULL, 0, exact);
    tern_seq *want = reply(t, plain, s, &plain_r);
    oracle_forget();
    oracle_learn(t->ids, PROMPT, tern_seq_tokens(want) + PROMPT, REPLY);
    oracle.n_vocab = t->n_vocab;
    tern_engine *e = open_engine(t, kv, threads, mode == N_MODES + 1 ? "auto" : "ngram", most, exact);
    if (mode < N_MODES)
        tern_drafter_set_source(e->drafter, oracle_guess, &oracle);
    oracle.mode = (enum mode)mode;
    tern_seq *got = reply(t, e, s, &r);
    if (small)
        assert_true(r.n_drafted > 0);
    if (memcmp(tern_seq_tokens(got), tern_seq_tokens(want), (PROMPT + REPLY) * sizeof(int32_t)) != 0)
        fail_msg("%s, %d guesses, mode %d, temperature %g: another reply", kv, most, mode, (double)s.temperature);
    assert_true(r.n_accepted <= r.n_drafted && plain_r.n_drafted == 0);
    if (small == t->model && s.temperature == 0)
        assert_true(r.n_accepted > r.n_drafted / 2);
    if (mode == WRONG)
        assert_true(r.n_accepted == 0 && r.n_drafted > 0);
    if (mode == RIGHT)
        assert_true(r.n_accepted == r.n_drafted && r.n_accepted >= (REPLY - 1) * most / (most + 1) - most);
    same_afterwards(t, plain, want, e, got);
    tern_seq_free(got);
    tern_memory mem;
    tern_engine_memory(e, &mem);
    assert_true(mem.kv_bytes == 0 && mem.state_bytes == 0);
    tern_engine_close(&e);
    tern_engine_close(&plain);
}

static void test_replies(void **state)
{
    (void)state;
    static const int lengths[] = {1, 2, 7, 15, 63, 64};
    struct tern_rng rng = {7};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        struct tiny t;
        if (!served_or_said(models[m].name))
            continue;
        tiny_open(&t, models[m].name, models[m].name, models[m].name);
        int n = 0;
        for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
            for (int mode = 0; mode < N_MODES + 2; mode++, n++) {
                if (n % 3 != (int)m % 3 && !getenv("TERN_TEST_LONG")) /* a third of the ways, another one per model */
                    continue;
                const bool recurrent = strcmp(models[m].name, "qwen35") == 0;
                const int most = recurrent && lengths[k] > 16 ? 16 : lengths[k];
                struct sampling s = {n % 2 ? 0 : .9f, n % 5 ? 1 : 1.2f, tern_rng_u64(&rng)};
                check_reply(&t, models[m].kv[n / 3 % 3], s, most, mode, 1 + n / 2 % 3, false);
            }
        check_reply(&t, "f32", (struct sampling){0, 1, 0}, 7, MIXED, 2, true);
        print_message("%s: %d ways\n", models[m].name, n + 1);
        tiny_close(&t);
    }
}

/* A model guesses: another one with as large a vocabulary, or the same. */
static void test_models(void **state)
{
    (void)state;
    static const struct {
        const char *name, *small;
    } pairs[] = {{"llama-tied", "llama-tied"},
                 {"gemma3-w70", "llama-tied"},
                 {"deepseek2-lite", "qwen35"},
                 {"qwen35", "qwen35"},
                 {"qwen35", "deepseek2-lite"}};
    struct tern_rng rng = {9};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        struct tiny t, u;
        tiny_open(&t, pairs[i].name, pairs[i].name, pairs[i].name);
        tiny_open(&u, pairs[i].small, pairs[i].small, pairs[i].small);
        small = u.model;
        for (int most = 1; most <= 16; most += 5)
            for (int k = 0; k < 2; k++)
                check_reply(&t, "t4", (struct sampling){k ? .9f : 0, k ? 1.2f : 1, tern_rng_u64(&rng)}, most, N_MODES,
                            1 + most % 3, false);
        small = NULL;
        tiny_close(&t);
        tiny_close(&u);
    }
}

/* Ends of all kinds in the middle of a draft. */
static int stop_after(void *user, const char *text, size_t n)
{
    int *left = user;
    (void)text, (void)n;
    return --*left < 0;
}

static void test_ends(void **state)
{
    (void)state;
    struct tiny t;
    tern_error err = {0};
    tern_seq *s;
    tern_generate_result r;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_engine *plain = open_engine(&t, "t4", 1, NULL, 0, false);
    s = reply(&t, plain, (struct sampling){0, 1, 0}, &r);
    oracle_forget();
    oracle_learn(t.ids, PROMPT, tern_seq_tokens(s) + PROMPT, REPLY);
    int32_t want[PROMPT + REPLY];
    memcpy(want, tern_seq_tokens(s), sizeof want);
    tern_engine_close(&plain);
    oracle.mode = RIGHT;
    oracle.n_vocab = t.n_vocab;
    for (int max = 0; max <= 20; max++) { /* by length, and by a token that stops */
        tern_engine *e = open_engine(&t, "t4", 2, "ngram", 7, false);
        tern_drafter_set_source(e->drafter, oracle_guess, &oracle);
        tern_generate_params p = {.max_tokens = max, .ignore_eog = true};
        tern_sampler_defaults(&p.sampler);
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_ok(tern_generate(e, s, t.ids, PROMPT, &p, &r, &err), &err);
        assert_int_equal(tern_seq_length(s), PROMPT + max);
        assert_memory_equal(tern_seq_tokens(s), want, (size_t)(PROMPT + max) * sizeof *want);
        assert_int_equal(r.finish, TERN_FINISH_LENGTH);
        tern_seq_free(s);
        int at = max;
        for (int i = 0; i < max; i++)
            at = want[PROMPT + i] == want[PROMPT + max] && i < at ? i : at;
        p.max_tokens = 60;
        p.stop_ids = want + PROMPT + max;
        p.n_stop_ids = 1;
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_ok(tern_generate(e, s, t.ids, PROMPT, &p, &r, &err), &err);
        assert_int_equal(r.finish, TERN_FINISH_STOP);
        assert_int_equal(r.n_generated, at);
        assert_int_equal(tern_seq_length(s), PROMPT + at);
        tern_engine_close(&e);
    }
    for (int ctx = PROMPT; ctx < PROMPT + 20; ctx++) { /* a full context */
        tern_engine *e;
        tern_engine_params ep = {.n_threads = 2, .ctx = ctx, .draft = "ngram", .draft_most = 15};
        tiny_ok(tern_engine_open(&e, t.model, &ep, &err), &err);
        tern_drafter_set_source(e->drafter, oracle_guess, &oracle);
        tern_generate_params p = {.max_tokens = -1, .ignore_eog = true};
        tern_sampler_defaults(&p.sampler);
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_ok(tern_generate(e, s, t.ids, PROMPT, &p, &r, &err), &err);
        assert_int_equal(r.finish, TERN_FINISH_CONTEXT);
        assert_int_equal(tern_seq_length(s), ctx);
        assert_memory_equal(tern_seq_tokens(s), want, (size_t)ctx * sizeof *want);
        tern_engine_close(&e);
    }
    oracle_forget();
    tiny_close(&t);
}

/* A sequence that changes its plan at a length changes it there, with drafts or without. */
static void test_recoded(void **state)
{
    (void)state;
    needs_decodes();
    static const char *const names[] = {"llama-tied", "qwen35"};
    for (int m = 0; m < 2; m++)
        for (int at = PROMPT + 1; at < PROMPT + REPLY; at += 23) {
            struct tiny t;
            tern_error err = {0};
            tern_seq *s[2];
            tern_engine *e[2];
            tern_generate_result r;
            tiny_open(&t, names[m], names[m], names[m]);
            for (int i = 0; i < 2; i++) {
                tern_engine_params ep = {.n_threads = 2, .kv = "l2", .more_kv = more, .n_more_kv = 1, .max_seqs = 2};
                tern_generate_params p = {.max_tokens = REPLY, .ignore_eog = true};
                ep.draft = i ? "ngram" : NULL;
                ep.draft_most = 7;
                tern_sampler_defaults(&p.sampler);
                p.sampler.temperature = .8f;
                tiny_ok(tern_engine_open(&e[i], t.model, &ep, &err), &err);
                if (i)
                    tern_drafter_set_source(e[i]->drafter, oracle_guess, &oracle);
                tiny_ok(tern_seq_new_plan(&s[i], e[i], 1, &err), &err);
                tiny_ok(tern_seq_recode_at(s[i], at, 0, &err), &err);
                tiny_ok(tern_generate(e[i], s[i], t.ids, PROMPT, &p, &r, &err), &err);
                oracle_forget();
                oracle_learn(t.ids, PROMPT, tern_seq_tokens(s[0]) + PROMPT, REPLY);
                oracle.mode = MIXED;
                oracle.n_vocab = t.n_vocab;
            }
            assert_true(r.n_accepted > 30);
            assert_memory_equal(tern_seq_tokens(s[0]), tern_seq_tokens(s[1]), (PROMPT + REPLY) * sizeof(int32_t));
            same_answer(&t, e[0], s[0], e[1], s[1]);
            tern_engine_close(&e[0]);
            tern_engine_close(&e[1]);
            tiny_close(&t);
        }
    oracle_forget();
}

/* KV memory for the text alone: guesses that find no room are left out. */
static void test_little_memory(void **state)
{
    (void)state;
    static const char *const names[] = {"llama-tied", "qwen35"};
    for (int m = 0; m < 2; m++) {
        struct tiny t;
        tern_error err = {0};
        tern_generate_result r;
        tern_seq *s;
        tiny_open(&t, names[m], names[m], names[m]);
        tern_engine *plain = open_engine(&t, "t4", 1, NULL, 0, false), *e;
        tern_seq *want = reply(&t, plain, (struct sampling){0, 1, 0}, &r);
        oracle_forget();
        oracle_learn(t.ids, PROMPT, tern_seq_tokens(want) + PROMPT, REPLY);
        oracle.n_vocab = t.n_vocab;
        oracle.mode = MIXED;
        tern_memory mem;
        int ok = 0, tries = 0;
        tern_engine_params ep = {
            .n_threads = 2, .kv = "t4", .draft = "ngram", .draft_most = 9, .kv_bytes = (size_t)1 << 30};
        tiny_ok(tern_engine_open(&e, t.model, &ep, &err), &err);
        tern_drafter_set_source(e->drafter, oracle_guess, &oracle);
        s = reply(&t, e, (struct sampling){0, 1, 0}, &r);
        tern_engine_memory(e, &mem);
        tern_engine_close(&e);
        const size_t enough = mem.kv_bytes + mem.state_bytes;
        for (size_t bytes = enough / 2; bytes < enough * 2; bytes += enough / 16, tries++) {
            tern_generate_params p = {.max_tokens = REPLY, .ignore_eog = true};
            tern_sampler_defaults(&p.sampler);
            ep.kv_bytes = bytes;
            if (tern_engine_open(&e, t.model, &ep, &err) < 0)
                continue;
            tern_drafter_set_source(e->drafter, oracle_guess, &oracle);
            int rc = tern_seq_new(&s, e, &err);
            rc = rc < 0 ? rc : tern_generate(e, s, t.ids, PROMPT, &p, &r, &err);
            assert_true(rc == 0 || rc == TERN_ECAPACITY);
            if (rc == 0) {
                assert_memory_equal(tern_seq_tokens(s), tern_seq_tokens(want), (PROMPT + REPLY) * sizeof(int32_t));
                ok++;
            }
            tern_engine_close(&e);
        }
        print_message("%s: %d of %d sizes suffice\n", names[m], ok, tries);
        assert_true(ok > 0 && ok < tries);
        tern_engine_close(&plain);
        oracle_forget();
        tiny_close(&t);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct tiny t;
    tern_engine *e;
    tern_error err = {0};
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    assert_int_equal(tern_engine_open(&e, t.model, &(tern_engine_params){.draft = "ngrams"}, &err), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "ngrams"));
    for (int most = -1; most <= 65; most += 66) {
        tern_engine_params p = {.draft = "auto", .draft_most = most};
        assert_int_equal(tern_engine_open(&e, t.model, &p, &err), TERN_EINVAL);
        assert_non_null(strstr(err.msg, "outside 1..64"));
    }
    tiny_ok(tern_engine_open(&e, t.model, &(tern_engine_params){.draft = "off", .draft_most = 3}, &err), &err);
    assert_null(e->drafter);
    tern_engine_close(&e);
    assert_int_equal(tern_engine_open(&e, t.model, &(tern_engine_params){.draft = "mtp"}, &err), TERN_EUNSUPPORTED);
    assert_non_null(strstr(err.msg, "multi-token"));
    struct tiny u;
    tiny_open(&u, "qwen35", "qwen35", "qwen35");
    assert_int_equal(tern_engine_open(&e, t.model, &(tern_engine_params){.draft_model = u.model}, &err),
                     TERN_EMISMATCH);
    assert_non_null(strstr(err.msg, "vocabular"));
    tern_engine_params both = {.draft = "auto", .draft_model = t.model};
    assert_int_equal(tern_engine_open(&e, t.model, &both, &err), TERN_EINVAL);
    tiny_close(&u);
    tiny_close(&t);
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

struct heard {
    char text[LC_TEXT];
    size_t n;
    int left;
    const tern_seq *seq;
    int length[LC_TOKENS], n_calls; /* of the sequence, as each piece of text came */
};

static int hear(void *user, const char *text, size_t n)
{
    struct heard *h = user;
    lc_add(h->text, &h->n, text, n);
    if (h->n_calls < LC_TOKENS)
        h->length[h->n_calls++] = tern_seq_length(h->seq);
    return stop_after(&h->left, text, n);
}

/* Stop strings, receivers that have enough, and what they see of the sequence meanwhile. */
static void test_text(void **state)
{
    (void)state;
    static struct heard want, got;
    char path[] = "/tmp/tern-drafts-XXXXXX", command[1024];
    tern_error err = {0};
    tern_model *m;
    tern_engine *plain, *e;
    tern_tokens ids = {0};
    int fd = mkstemp(path), stopped = 0, refused = 0;
    assert_true(fd >= 0 && close(fd) == 0);
    (void)snprintf(command, sizeof command, "%s --tools %s", TERN_MAKE_TEXT_MODEL, path);
    assert_int_equal(system(command), 0);
    tiny_ok(tern_model_open(&m, path, &(tern_model_params){.n_threads = 1, .packed = "off"}, &err), &err);
    tern_engine_params ep = {.n_threads = 2, .ctx = 512};
    tiny_ok(tern_engine_open(&plain, m, &ep, &err), &err);
    ep.draft = "ngram";
    ep.draft_most = 7;
    tiny_ok(tern_engine_open(&e, m, &ep, &err), &err);
    tern_drafter_set_source(e->drafter, oracle_guess, &oracle);
    oracle.n_vocab = tern_model_get_info(m)->n_vocab;
    tiny_ok(tern_model_tokenize(m, "Say something, and say it well.", 31, 0, &ids, &err), &err);
    for (int round = 0; round < 120; round++) {
        char cut[8] = "";
        const char *stop[] = {cut};
        tern_generate_result r, q;
        tern_seq *s;
        tern_generate_params p = {.max_tokens = 60, .on_text = hear, .ignore_eog = round % 2};
        tern_sampler_defaults(&p.sampler);
        p.sampler.temperature = 1;
        p.sampler.seed = (uint64_t)round;
        for (int pass = 0; pass < 2; pass++) { /* the second one with a stop string out of the first, or a short ear */
            want = (struct heard){.left = pass && round % 3 == 0 ? 5 + round % 11 : 1 << 20};
            tiny_ok(tern_seq_new(&s, plain, &err), &err);
            want.seq = s;
            p.user = &want;
            tiny_ok(tern_generate(plain, s, ids.p, (int)ids.len, &p, &r, &err), &err);
            if (pass == 0) {
                oracle_forget();
                oracle_learn(ids.p, (int)ids.len, tern_seq_tokens(s) + ids.len, r.n_generated);
            }
            const int length = tern_seq_length(s);
            tern_seq_free(s);
            oracle.mode = round % 4 == 0 ? MIXED : RIGHT;
            got = (struct heard){.left = pass && round % 3 == 0 ? 5 + round % 11 : 1 << 20};
            tiny_ok(tern_seq_new(&s, e, &err), &err);
            got.seq = s;
            p.user = &got;
            tiny_ok(tern_generate(e, s, ids.p, (int)ids.len, &p, &q, &err), &err);
            assert_string_equal(got.text, want.text);
            assert_true(q.finish == r.finish && q.last == r.last && q.n_generated == r.n_generated);
            assert_int_equal(tern_seq_length(s), length);
            assert_int_equal(got.n_calls, want.n_calls);
            assert_memory_equal(got.length, want.length, (size_t)want.n_calls * sizeof *want.length);
            tern_seq_free(s);
            stopped += q.finish == TERN_FINISH_STOP;
            refused += q.finish == TERN_FINISH_CALLBACK;
            (void)snprintf(cut, sizeof cut, "%.3s", want.n > 30 ? want.text + 20 + round % 8 : "~~");
            p.stop = stop;
            p.n_stop = round % 3 ? 1 : 0;
        }
    }
    assert_true(stopped > 10 && refused > 10);
    oracle_forget();
    tern_engine_close(&e);
    tern_engine_close(&plain);
    tern_tokens_clear(&ids);
    tern_model_close(&m);
    (void)unlink(path);
}

/* ---- loops ------------------------------------------------------------------------------------------------------- */

enum { N_REQUESTS = 24 };

static void draw(struct tiny *t, struct tern_rng *g, tern_request *r)
{
    static const int lengths[] = {1, 2, 60, 63, 64, 65, 100};
    tern_request_defaults(r);
    r->n_prompt = lengths[tern_rng_u64(g) % 7];
    r->prompt = t->ids + tern_rng_u64(g) % (uint64_t)(t->n_ids - r->n_prompt + 1);
    r->max_tokens = 1 + (int)(tern_rng_u64(g) % 80);
    r->plan = (int)(tern_rng_u64(g) % 3);
    r->n_choices = tern_rng_u64(g) % 3 ? 1 : 1 + (int)(tern_rng_u64(g) % 3);
    r->logprobs = 0;
    r->sampler.temperature = tern_rng_u64(g) % 2 ? .8f : 0;
    r->sampler.repetition_penalty = tern_rng_u64(g) % 3 ? 1 : 1.2f;
    r->sampler.seed = tern_rng_u64(g) % 1000;
    r->ignore_eos = true;
}

/* A constraint: even tokens alone. */
static int evens(void *state, uint32_t *mask, tern_error *err)
{
    (void)err;
    for (int i = 0; i < *(int *)state; i += 2)
        mask[i / 32] |= 1u << i % 32;
    return 0;
}

static int any(void *state, int32_t id, tern_error *err)
{
    (void)state, (void)err;
    assert_int_equal(id % 2, 0);
    return 0;
}

static void *same(void *state)
{
    return state;
}

static void leave(void *state)
{
    (void)state;
}

/* All requests of a test at once. */
static void run_loop(struct tiny *t, const tern_request *r, struct lc_request **rec, const char *draft, int most,
                     bool source, int seqs, size_t cache, bool exact)
{
    tern_error err = {0};
    tern_engine *e;
    tern_loop *loop;
    tern_events *q;
    tern_loop_stats stats;
    tern_engine_params p = {.n_threads = draft ? 2 : 1,
                            .max_seqs = seqs,
                            .chunk = 64,
                            .kv = "t4",
                            .more_kv = more,
                            .n_more_kv = 2,
                            .exact = exact,
                            .draft = small ? NULL : draft,
                            .draft_model = draft ? small : NULL,
                            .draft_most = most};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    if (draft && small)
        tern_drafter_set_source(e->drafter, NULL, NULL);
    if (draft && source)
        tern_drafter_set_source(e->drafter, oracle_guess, &oracle);
    tiny_ok(tern_events_new(&q, &err), &err);
    tiny_ok(tern_loop_open(&loop, e, &(tern_loop_params){.cache_bytes = cache}, &err), &err);
    for (int i = 0; i < N_REQUESTS; i++) {
        uint64_t id;
        tiny_ok(tern_loop_submit(loop, &r[i], q, rec[i], &id, &err), &err);
    }
    lc_wait(q, rec, N_REQUESTS);
    tern_loop_get_stats(loop, &stats);
    uint64_t drafted = 0, accepted = 0;
    for (int i = 0; i < N_REQUESTS; i++) {
        drafted += (uint64_t)rec[i]->end.n_drafted;
        accepted += (uint64_t)rec[i]->end.n_accepted;
    }
    assert_true(stats.drafted_tokens == drafted && stats.accepted_tokens == accepted);
    assert_true(draft && source ? accepted > 60 && drafted > accepted : accepted <= drafted);
    tern_loop_close(&loop);
    tern_events_free(q);
    tern_engine_close(&e);
}

static void check_loop(const char *model, const char *draft, int most, bool source, int seqs, size_t cache, bool exact)
{
    struct tiny t;
    struct tern_rng rng = {(uint64_t)most + (uint64_t)seqs};
    static tern_request r[N_REQUESTS];
    static struct lc_request *want[N_REQUESTS], *got[N_REQUESTS];
    tiny_open(&t, model, model, model);
    int n_vocab = t.n_vocab;
    for (int i = 0; i < N_REQUESTS; i++) {
        draw(&t, &rng, &r[i]);
        r[i].n_choices = r[i].n_choices < seqs ? r[i].n_choices : 1;
        if (i % 5 == 0)
            r[i].constraint = (tern_constraint){&n_vocab, evens, any, same, leave};
        want[i] = lc_new();
        got[i] = lc_new();
    }
    run_loop(&t, r, want, NULL, 0, false, 4, 0, exact);
    oracle_forget();
    for (int i = 0; i < N_REQUESTS; i += 1 + (i % 7 == 0)) /* of some nobody knows anything */
        for (int k = 0; k < r[i].n_choices; k++)
            oracle_learn(r[i].prompt, r[i].n_prompt, want[i]->c[k].ids, want[i]->c[k].n);
    oracle.mode = MIXED;
    oracle.n_vocab = t.n_vocab;
    run_loop(&t, r, got, draft, most, source, seqs, cache, exact);
    for (int i = 0; i < N_REQUESTS; i++) {
        assert_true(got[i]->rc == 0 && want[i]->rc == 0);
        for (int k = 0; k < r[i].n_choices; k++) {
            const struct lc_choice *a = &want[i]->c[k], *b = &got[i]->c[k];
            assert_int_equal(a->n, b->n);
            assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
            assert_memory_equal(a->logprob, b->logprob, (size_t)a->n * sizeof *a->logprob);
            assert_int_equal(a->end.n_generated, b->end.n_generated);
            assert_int_equal(a->end.finish, b->end.finish);
        }
        free(want[i]);
        free(got[i]);
    }
    oracle_forget();
    tiny_close(&t);
}

#ifdef TERN_TEST_FEW /* sanitizers see the same threads meet in the others, which are other numbers of the same */
#define LOOPS_OF_ALL false
#else
#define LOOPS_OF_ALL true
#endif

static void test_loops(void **state)
{
    (void)state;
    const int small_models = LOOPS_OF_ALL ? 2 : 1;
    check_loop("llama-tied", "ngram", 7, true, 4, 0, false);
    check_loop("gemma3-w70", "ngram", 15, true, 3, 1 << 22, false);
    check_loop("qwen35", "ngram", 16, true, 2, 1 << 22, true);
    check_loop("llama-tied", "auto", 0, false, 4, 0, false);
    if (LOOPS_OF_ALL) {
        check_loop("llama-tied", "ngram", 64, true, 1, 0, false);
        check_loop("qwen35", "ngram", 5, true, 4, 1 << 22, false);
        check_loop("llama-tied", "ngram", 9, true, 3, 1 << 22, true);
        check_loop("qwen35", "ngram", 0, false, 4, 0, false);
    }
    struct tiny u;
    for (int i = 0; i < small_models; i++) {
        const char *name = i ? "qwen35" : "deepseek2-lite";
        tiny_open(&u, name, name, name);
        small = u.model;
        check_loop("deepseek2-lite", "", 5, false, 4, 1 << 22, false);
        check_loop("qwen35", "", 3, false, 3, 0, false);
        small = NULL;
        tiny_close(&u);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lookup),  cmocka_unit_test(test_price),         cmocka_unit_test(test_price_doubts),
        cmocka_unit_test(test_replies), cmocka_unit_test(test_ends),          cmocka_unit_test(test_text),
        cmocka_unit_test(test_loops),   cmocka_unit_test(test_little_memory), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_models),  cmocka_unit_test(test_recoded),
    };
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

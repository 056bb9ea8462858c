/* Replies that are picked from the best of each row say what they say when whole rows of logits are fetched, token for
 * token: on every device, beside others, with drafts, whatever the request asks for. */
#include "loop_case.h"
#include "base/err.h"
#include "run/draft/draft.h"
#include "run/loop.h"

/* ---- steps ------------------------------------------------------------------------------------------------------- */

struct entry {
    float x;
    int32_t id;
};

static int by_value(const void *a, const void *b)
{
    const struct entry *p = a, *q = b;
    return p->x != q->x ? (p->x < q->x ? 1 : -1) : p->id - q->id;
}

static void check_best(const float *logits, int n_vocab, struct tern_seen seen, int least)
{
    struct entry *e = malloc((size_t)n_vocab * sizeof *e);
    assert_non_null(e);
    assert_non_null(seen.ids);
    assert_true(seen.n >= least && seen.n <= TERN_BEST);
    for (int i = 0; i < n_vocab; i++)
        e[i] = (struct entry){logits[i], i};
    qsort(e, (size_t)n_vocab, sizeof *e, by_value);
    for (int i = 0; i < seen.n; i++) {
        assert_int_equal(seen.ids[i], e[i].id);
        assert_memory_equal(&seen.x[i], &e[i].x, sizeof e[i].x);
    }
    free(e);
}

enum { SEQS = 6 };

/* The same six items for two engines: prompts and decode rows, some of which want logits. */
static void fill_items(struct tiny *t, tern_seq **s, tern_step_item *items)
{
    const tern_step_item all[SEQS] = {
        {s[0], t->ids + 9, 1, true, TERN_LOGITS_ALL},  {s[1], t->ids, 20, false, TERN_LOGITS_LAST},
        {s[2], t->ids + 9, 3, true, TERN_LOGITS_ALL},  {s[3], t->ids + 9, 1, true, TERN_LOGITS_ALL},
        {s[4], t->ids + 9, 2, true, TERN_LOGITS_NONE}, {s[5], t->ids + 7, 5, true, TERN_LOGITS_LAST}};
    memcpy(items, all, sizeof all);
}

static tern_engine *open_with(struct tiny *t, bool exact, bool best, tern_seq **s)
{
    tern_error err = {0};
    tern_engine *e = tiny_engine(t, "t4", exact, 2, SEQS, 64);
    e->asks_best = best;
    for (int i = 0; i < SEQS; i++) {
        tiny_ok(tern_seq_new(&s[i], e, &err), &err);
        tern_step_item it = {s[i], t->ids + i, 4 + i, false, TERN_LOGITS_NONE};
        tiny_ok(tern_step(e, &it, 1, NULL, &err), &err);
    }
    return e;
}

static void check_steps(const char *model, bool exact)
{
    static const int wants[][SEQS] = {{1, 0, 1, 1, 1, 1},  {20, 0, 1, 0, 0, 64}, {0, 0, 0, 5, 0, 0},
                                      {0, 0, 33, 0, 2, 0}, {0, 0, 0, 0, 64, 0},  {0, 0, 0, 0, 0, 0}};
    struct tiny t;
    tern_error err = {0};
    tern_seq *a[SEQS], *b[SEQS];
    tern_step_item x[SEQS], y[SEQS];
    struct tern_seen seen[SEQS];
    const float *logits;
    tiny_open(&t, model, model, model);
    tern_engine *plain = open_with(&t, exact, false, a), *e = open_with(&t, exact, true, b);
    for (size_t w = 0; w < sizeof wants / sizeof *wants; w++) {
        fill_items(&t, a, x);
        fill_items(&t, b, y);
        tiny_ok(tern_step(plain, x, SEQS, &logits, &err), &err);
        tiny_ok(tern_step_seen(e, y, SEQS, wants[w], seen, &err), &err);
        for (int i = 0; i < SEQS; i++)
            for (int r = 0; r < tern_item_logits(&y[i]); r++, logits += t.n_vocab) {
                struct tern_seen row = seen[i];
                for (int k = 0; k < r; k++)
                    row = tern_seen_next(row);
                if (wants[w][i])
                    check_best(logits, t.n_vocab, row, wants[w][i]);
                else
                    assert_memory_equal(row.x, logits, (size_t)t.n_vocab * sizeof *logits);
                assert_true(wants[w][i] || !row.ids);
            }
        assert_null(seen[4].x);
    }
    const float *after, *before; /* the public step is what it was */
    tern_step_item one = {a[0], t.ids, 1, true, TERN_LOGITS_LAST}, two = {b[0], t.ids, 1, true, TERN_LOGITS_LAST};
    tiny_ok(tern_step(plain, &one, 1, &before, &err), &err);
    tiny_ok(tern_step(e, &two, 1, &after, &err), &err);
    assert_memory_equal(before, after, (size_t)t.n_vocab * sizeof *after);
    tern_engine_close(&plain);
    tern_engine_close(&e);
    tiny_close(&t);
}

/* The most likely tokens are those of whole rows, on devices that find them and on those that do not. */
static void check_greedy(const char *model, bool exact, bool best)
{
    struct tiny t;
    tern_error err = {0};
    tern_seq *a[SEQS], *b[SEQS];
    tern_step_item x[SEQS], y[SEQS];
    const float *logits;
    int32_t ids[SEQS];
    tiny_open(&t, model, model, model);
    tern_engine *plain = open_with(&t, exact, false, a), *e = open_with(&t, exact, best, b);
    fill_items(&t, b, y);
    assert_int_equal(tern_step_greedy(e, y, SEQS, ids, &err), TERN_EINVAL); /* item 2 asks for three rows */
    assert_int_equal(tern_seq_length(b[0]), tern_seq_length(a[0]));
    for (int round = 0; round < 3; round++) {
        fill_items(&t, a, x);
        fill_items(&t, b, y);
        x[2].logits = y[2].logits = TERN_LOGITS_LAST;
        tiny_ok(tern_step(plain, x, SEQS, &logits, &err), &err);
        tiny_ok(tern_step_greedy(e, y, SEQS, ids, &err), &err);
        for (int i = 0; i < SEQS; i++) {
            if (i == 4) { /* asks for none */
                assert_int_equal(ids[i], -1);
                continue;
            }
            int32_t most = 0;
            for (int v = 1; v < t.n_vocab; v++)
                most = logits[v] > logits[most] ? v : most;
            assert_int_equal(ids[i], most);
            logits += t.n_vocab;
        }
    }
    tern_engine_close(&plain);
    tern_engine_close(&e);
    tiny_close(&t);
}

static void test_greedy(void **state)
{
    (void)state;
    check_greedy("llama-tied", false, false);
    check_greedy("llama-tied", false, true);
    check_greedy("gemma2", true, true);
}

static void test_steps(void **state)
{
    (void)state;
    check_steps("llama-tied", false);
    check_steps("llama-tied", true);
    check_steps("gemma2", false); /* with a cap of its logits */
}

/* Who is near keeps whole rows. */
static void test_who_asks(void **state)
{
    (void)state;
    struct tiny t;
    tiny_open(&t, "llama-tied", "llama-tied", "llama-tied");
    tern_engine *e = tiny_engine(&t, "t4", false, 1, 1, 64);
    assert_int_equal(e->asks_best, tern_dev_at(0)->apart);
    tern_engine_close(&e);
    tiny_close(&t);
}

/* ---- samplers of all kinds --------------------------------------------------------------------------------------- */

static tern_sampler_params any_sampler(struct tern_rng *g)
{
    tern_sampler_params p;
    tern_sampler_defaults(&p);
    p.temperature = (float[]){0, .3f, 1, 2}[tern_rng_u64(g) % 4];
    p.top_k = (int[]){0, 1, 2, 20, 40, TERN_BEST, TERN_BEST + 1}[tern_rng_u64(g) % 7];
    p.top_k = tern_rng_u64(g) % 2 ? p.top_k : 1 + (int)(tern_rng_u64(g) % TERN_BEST);
    p.top_p = (float[]){1, .95f, .5f}[tern_rng_u64(g) % 3];
    p.min_p = (float[]){0, 0, .1f}[tern_rng_u64(g) % 3];
    p.xtc_probability = tern_rng_u64(g) % 4 ? 0 : .5f;
    p.repetition_penalty = tern_rng_u64(g) % 5 ? 1 : 1.2f;
    p.seed = tern_rng_u64(g);
    return p;
}

/* ---- one reply --------------------------------------------------------------------------------------------------- */

enum { PROMPT = 40, REPLY = 70 };

static void reply(struct tiny *t, tern_engine *e, const tern_sampler_params *sp, int32_t *out)
{
    tern_seq *s;
    tern_error err = {0};
    tern_generate_result r;
    const tern_generate_params p = {.sampler = *sp, .max_tokens = REPLY, .ignore_eog = true};
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_ok(tern_generate(e, s, t->ids, PROMPT, &p, &r, &err), &err);
    assert_int_equal(r.n_generated, REPLY);
    memcpy(out, tern_seq_tokens(s) + PROMPT, REPLY * sizeof *out);
    tern_seq_free(s);
}

static void check_replies(const char *model, const char *draft, bool exact)
{
    struct tiny t;
    tern_error err = {0};
    struct tern_rng g = {3};
    int32_t want[REPLY], got[REPLY];
    tern_engine *e[2];
    tiny_open(&t, model, model, model);
    for (int i = 0; i < 2; i++) {
        const tern_engine_params p = {.n_threads = 2, .max_seqs = 2, .chunk = 96, .exact = exact, .kv = "t4"};
        tern_engine_params own = p;
        own.draft = i ? draft : NULL;
        tiny_ok(tern_engine_open(&e[i], t.model, &own, &err), &err);
        e[i]->asks_best = i;
    }
    for (int round = 0; round < 20; round++) {
        const tern_sampler_params sp = any_sampler(&g);
        reply(&t, e[0], &sp, want);
        reply(&t, e[1], &sp, got);
        assert_memory_equal(want, got, sizeof want);
    }
    assert_int_equal(e[0]->best_cap, 0);
    assert_true(e[1]->best_cap > 0);
    tern_engine_close(&e[0]);
    tern_engine_close(&e[1]);
    tiny_close(&t);
}

static void test_replies(void **state)
{
    (void)state;
    check_replies("llama-tied", NULL, false);
    check_replies("llama-tied", "ngram", false);
    check_replies("llama-tied", "ngram", true);
    check_replies("gemma3-w8", "ngram", false);
    check_replies("qwen35", "ngram", false); /* with recurrent states */
}

/* ---- many -------------------------------------------------------------------------------------------------------- */

enum { REQUESTS = 24 };

/* What sequences hold when their replies are over, in any order. */
struct heard {
    uint64_t tokens;
    int n_over, n_prompts;
};

static uint64_t digest(const void *p, size_t n)
{
    const uint8_t *x = p;
    uint64_t h = 1469598103934665603u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ x[i]) * 1099511628211u;
    return h;
}

static void hear(void *self, tern_seq *s, const float *logits, bool over)
{
    struct heard *h = self;
    if (over) {
        h->tokens += digest(tern_seq_tokens(s), (size_t)tern_seq_length(s) * sizeof(int32_t));
        h->n_over++;
    }
    h->n_prompts += logits && !memchr(s->roles, 1, (size_t)tern_seq_length(s));
}

/* Requests of all kinds, among them what looks at whole rows: log probabilities, biases, least lengths. */
static void draw(struct tiny *t, struct tern_rng *g, tern_request *r, int i)
{
    static const int32_t bias[] = {3, 5};
    static const float by[] = {2, -2};
    tern_request_defaults(r);
    r->prompt = t->ids + i;
    r->n_prompt = 5 + (int)(tern_rng_u64(g) % 60);
    r->max_tokens = 20 + (int)(tern_rng_u64(g) % 120);
    r->n_choices = i % 6 == 5 ? 3 : 1;
    r->sampler = any_sampler(g);
    r->ignore_eos = i % 3 != 0;
    r->min_tokens = i % 4 == 0 ? 10 : 0;
    r->logprobs = i % 7 == 0 ? 2 : -1;
    if (i % 8 == 1) {
        r->sampler.bias_ids = bias;
        r->sampler.bias_values = by;
        r->sampler.n_bias = 2;
    }
}

static struct heard run_loop(struct tiny *t, const tern_request *r, bool best, const char *draft, bool hears)
{
    tern_error err = {0};
    tern_engine *e;
    tern_loop *loop;
    tern_events *q;
    struct lc_request *rec[REQUESTS];
    struct heard h = {0};
    const tern_engine_params p = {.n_threads = 2, .max_seqs = 7, .chunk = 64, .kv = "t4", .draft = draft};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    e->asks_best = best;
    tiny_ok(tern_events_new(&q, &err), &err);
    tiny_ok(tern_loop_open(&loop, e, NULL, &err), &err);
    if (hears)
        tern_loop_set_prefix(loop, &(struct tern_prefix){.self = &h, .offer = hear});
    for (int i = 0; i < REQUESTS; i++)
        rec[i] = lc_submit(loop, q, &r[i], NULL);
    lc_wait(q, rec, REQUESTS);
    for (int i = 0; i < REQUESTS; i++) {
        assert_int_equal(rec[i]->rc, 0);
        if (!hears)
            h.n_over += rec[i]->end.n_generated;
        free(rec[i]);
    }
    assert_int_equal(e->best_cap > 0, best);
    tern_loop_close(&loop);
    tern_events_free(q);
    lc_close_engine(&e);
    return h;
}

static void check_loop(const char *model, const char *draft)
{
    struct tiny t;
    tern_request r[REQUESTS];
    struct tern_rng g = {11};
    tiny_open(&t, model, model, model);
    for (int i = 0; i < REQUESTS; i++)
        draw(&t, &g, &r[i], i);
    const struct heard want = run_loop(&t, r, false, NULL, true), got = run_loop(&t, r, true, draft, true);
    assert_int_equal(want.n_over, got.n_over);
    assert_true(want.n_over >= REQUESTS && want.tokens == got.tokens);
    assert_int_equal(got.n_prompts, REQUESTS); /* a prompt's last row comes whole: a cache keeps it */
    const struct heard a = run_loop(&t, r, false, NULL, false), b = run_loop(&t, r, true, draft, false);
    assert_int_equal(a.n_over, b.n_over);
    tiny_close(&t);
}

static void test_loops(void **state)
{
    (void)state;
    check_loop("llama-tied", NULL);
    check_loop("llama-tied", "ngram");
    check_loop("gemma3-w8", NULL);
    check_loop("qwen35", "ngram");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steps),   cmocka_unit_test(test_greedy), cmocka_unit_test(test_who_asks),
        cmocka_unit_test(test_replies), cmocka_unit_test(test_loops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

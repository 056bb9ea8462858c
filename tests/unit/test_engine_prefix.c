/* The prefix cache of a loop: what it finds changes nothing but the time. */
#include "loop_case.h"
#include "served.h"
#include "run/loop.h"

enum { LONG = 1100, CTX = 1300, REPLY = 20, CHUNK = 96 };
static int chunk = CHUNK;

static const char *const models[] = {"llama-tied", "gemma3-w70", "deepseek2-lite", "qwen35", "deepseek4"};
static const char *const more[] = {"f16", "l3"}; /* plans 1 and 2; plan 0 is t4 */

struct fixture {
    struct tiny t;
    tern_engine *e, *cold_e;
    tern_loop *loop, *cold; /* with a cache, without */
    tern_events *q;
    int32_t ids[LONG];
};

static tern_engine *open_engine(struct tiny *t, bool exact, int seqs, size_t kv_bytes)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {.n_threads = 2,
                            .max_seqs = seqs,
                            .chunk = chunk,
                            .ctx = CTX,
                            .kv = "t4",
                            .more_kv = more,
                            .n_more_kv = 2,
                            .exact = exact,
                            .kv_bytes = kv_bytes};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

static void set_up(struct fixture *f, const char *model, bool exact, size_t kv_bytes, size_t cache_bytes)
{
    tern_error err = {0};
    tiny_open(&f->t, model, model, model);
    f->t.model->net->desc.ctx = CTX; /* more than it says; no RoPE scaling depends on it */
    lc_random_ids(f->ids, LONG, 7, f->t.n_vocab);
    f->e = open_engine(&f->t, exact, 5, kv_bytes);
    f->cold_e = open_engine(&f->t, exact, 1, 0);
    tiny_ok(tern_events_new(&f->q, &err), &err);
    tiny_ok(tern_loop_open(&f->loop, f->e, &(tern_loop_params){.cache_bytes = cache_bytes}, &err), &err);
    tiny_ok(tern_loop_open(&f->cold, f->cold_e, NULL, &err), &err);
}

/* Everything is given back. */
static void tear_down(struct fixture *f)
{
    tern_loop_close(&f->loop);
    tern_loop_close(&f->cold);
    tern_events_free(f->q);
    lc_close_engine(&f->e);
    tern_engine_close(&f->cold_e);
    tiny_close(&f->t);
}

static tern_cache_stats stats_of(const struct fixture *f)
{
    tern_loop_stats s;
    tern_loop_get_stats(f->loop, &s);
    return s.cache;
}

static tern_request request(const int32_t *ids, int n, int plan)
{
    tern_request r = lc_greedy(ids, n, REPLY);
    r.plan = plan;
    return r;
}

/* The same tokens with the same probabilities, to the last bit. */
static void same(const struct lc_request *got, const struct lc_request *want, const char *what)
{
    const struct lc_choice *a = &got->c[0], *b = &want->c[0];
    if (got->rc || a->n != b->n || memcmp(a->ids, b->ids, (size_t)a->n * sizeof *a->ids) != 0 ||
        memcmp(a->logprob, b->logprob, (size_t)a->n * sizeof *a->logprob) != 0)
        fail_msg("%s, prompt of %d tokens, %d of them found: differs from cold", what, got->end.n_prompt,
                 got->end.n_cached);
}

/* Asks, and compares with cold.  Returns the tokens that were found. */
static int check(struct fixture *f, const tern_request *r, const char *what)
{
    struct lc_request *cold = lc_ask(f->cold, f->q, r), *got = lc_ask(f->loop, f->q, r);
    int found = got->end.n_cached;
    assert_int_equal(cold->end.n_cached, 0);
    same(got, cold, what);
    free(cold);
    free(got);
    return found;
}

/* ---- lengths ----------------------------------------------------------------------------------------------------- */

/* The prompt, its reply and five tokens more. */
static int next_turn(struct fixture *f, const tern_request *r, int32_t *out)
{
    struct lc_request *cold = lc_ask(f->cold, f->q, r);
    int n = r->n_prompt;
    memcpy(out, r->prompt, (size_t)n * sizeof *out);
    for (int i = 0; i < cold->c[0].n; i++)
        out[n++] = cold->c[0].ids[i];
    for (int i = 0; i < 5; i++)
        out[n++] = f->ids[i + 3];
    free(cold);
    return n;
}

static void batched(struct fixture *f, const tern_request *r, int n)
{
    struct lc_request *cold[4], *got[4];
    for (int i = 0; i < n; i++)
        cold[i] = lc_ask(f->cold, f->q, &r[i]);
    for (int i = 0; i < n; i++)
        got[i] = lc_submit(f->loop, f->q, &r[i], NULL);
    lc_wait(f->q, got, n);
    for (int i = 0; i < n; i++) {
        same(got[i], cold[i], "batched");
        free(got[i]);
        free(cold[i]);
    }
}

static void test_lengths(void **state)
{
    static const int lengths[] = {1, 63, 64, 65, 128, LONG};
    (void)state;
    const bool every = getenv("TERN_TEST_LONG") != NULL;
    for (size_t m = 0; m < sizeof models / sizeof *models && served(models[m]); m++)
        for (int plan = 0; plan < 3; plan++) {
            struct fixture f;
            int32_t turn[CTX], other[70];
            if (!every && m > 0 && plan != (int)m % 3) /* every plan with one kind of model */
                continue;
            print_message("%s, plan %d\n", models[m], plan);
            set_up(&f, models[m], false, 0, (size_t)1 << 30);
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
#ifdef TERN_TEST_FEW /* every length with one plan: others are the same code with other codes */
                if (plan > 0 && i % 2)
                    continue;
#endif
                int n = lengths[i];
                tern_request r = request(f.ids, n, plan);
                assert_true(check(&f, &r, "first") < n);
                assert_int_equal(check(&f, &r, "again"), n);
                tern_request next = request(turn, next_turn(&f, &r, turn), plan);
                for (int k = 0; k < 70; k++)
                    other[k] = f.ids[(k * 3 + n) % LONG];
                tern_request all[4] = {r, request(other, 70, plan), r, next};
                batched(&f, all, 4);
                all[3].n_prompt -= 3; /* ends inside what is known, but not where anything was kept */
                assert_true(check(&f, &all[3], "next turn") >= n);
                r.n_prompt = n > 40 ? n - 30 : n; /* a beginning of what is known */
                (void)check(&f, &r, "beginning");
                r.max_tokens = 1;
                assert_int_equal(check(&f, &r, "one token"), r.n_prompt);
            }
            tern_cache_stats s = stats_of(&f);
            assert_true(s.hits > s.misses && s.entries > 0 && s.bytes > 0 && s.evictions == 0);
            tear_down(&f);
        }
}

static void test_empty_prompt_is_refused(void **state)
{
    struct fixture f;
    tern_error err = {0};
    uint64_t id;
    (void)state;
    set_up(&f, "llama-tied", false, 0, 100000);
    tern_request r = request(f.ids, 0, 0);
    assert_int_equal(tern_loop_submit(f.loop, &r, f.q, NULL, &id, &err), TERN_EINVAL);
    tear_down(&f);
}

/* ---- roles and logits -------------------------------------------------------------------------------------------- */

/* Where all rows have one arithmetic, replies are found, too; elsewhere the prompt alone. */
static void test_replies(void **state)
{
    (void)state;
    for (int exact = 0; exact < 2; exact++) {
        struct fixture f;
        int32_t turn[CTX];
        set_up(&f, "llama-tied", exact, 0, (size_t)1 << 30);
        tern_request r = request(f.ids, 120, 1);
        assert_int_equal(check(&f, &r, "first"), 0);
        tern_request next = request(turn, next_turn(&f, &r, turn), 1);
        int found = check(&f, &next, "next turn");
        if (exact)
            assert_in_range(found, 120 + REPLY - 1, 120 + REPLY);
        else
            assert_int_equal(found, 120);
        tear_down(&f);
    }
}

/* Prompts of which nobody wants a token have no logits: those of others in the step must not be kept for them. */
static void test_warming(void **state)
{
    (void)state;
    struct fixture f;
    set_up(&f, "llama-tied", false, 0, (size_t)1 << 30);
    tern_request stream = request(f.ids + 500, 3, 0), r = request(f.ids, 70, 0);
    stream.max_tokens = 200;
    r.max_tokens = 0;
    struct lc_request *rec[2] = {lc_submit(f.loop, f.q, &stream, NULL), NULL};
    tern_event e;
    while (rec[0]->c[0].n < 5 && tern_events_next(f.q, &e, 10000))
        lc_note(&e);
    rec[1] = lc_submit(f.loop, f.q, &r, NULL);
    lc_wait(f.q, rec, 2);
    r.max_tokens = REPLY;
    assert_int_equal(check(&f, &r, "warmed"), 64);
    assert_int_equal(check(&f, &r, "again"), 70);
    r.max_tokens = 0;
    assert_int_equal(check(&f, &r, "prompt alone"), 70);
    free(rec[0]);
    free(rec[1]);
    tear_down(&f);
}

/* ---- cancels, little room ---------------------------------------------------------------------------------------- */

/* A request that was cancelled in the middle of its prompt, which `r` asks for.  A cancel may come too late where other
 * programs have the cores: then another prompt is asked for. */
static struct lc_request *cancelled(struct fixture *f, tern_request *r)
{
    for (int i = 0; i < 50; i++) {
        uint64_t id;
        tern_event e;
        f->ids[0] = (int32_t)(i % f->t.n_vocab);
        *r = request(f->ids, LONG, 0);
        struct lc_request *rec = lc_submit(f->loop, f->q, r, &id);
        while (rec->done < 200 && tern_events_next(f->q, &e, 10000))
            lc_note(&e);
        tern_loop_cancel(f->loop, id);
        lc_wait(f->q, &rec, 1);
        if (rec->rc == TERN_ECANCELLED && rec->done < LONG)
            return rec;
        free(rec);
    }
    fail_msg("every cancel came too late");
    return NULL;
}

static void test_cancelled_prefill(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models && served(models[m]); m++) {
        struct fixture f;
        tern_request r;
        set_up(&f, models[m], false, 0, (size_t)1 << 30);
        struct lc_request *rec = cancelled(&f, &r);
        assert_true(check(&f, &r, "after a cancel") >= rec->done / 64 * 64);
        free(rec);
        tear_down(&f);
    }
}

/* Steps that end at borders of pages: so does what was computed when the cancel came. */
static void test_cancelled_at_a_border(void **state)
{
    (void)state;
    chunk = 64;
    for (size_t m = 0; m < sizeof models / sizeof *models && served(models[m]); m++) {
        struct fixture f;
        tern_request r;
        set_up(&f, models[m], false, 0, (size_t)1 << 30);
        struct lc_request *rec = cancelled(&f, &r);
        assert_int_equal(rec->done % 64, 0);
        assert_int_equal(check(&f, &r, "after a cancel at a border"), rec->done);
        free(rec);
        tear_down(&f);
    }
    chunk = CHUNK;
}

/* Room for a few pages: others are given up, and answers stay. */
static void test_evictions(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof models / sizeof *models && served(models[m]); m++) {
        struct fixture f;
        tern_cache_stats s;
        set_up(&f, models[m], false, 0, (size_t)1 << 30);
        tern_request r = request(f.ids, 200, 0);
        (void)check(&f, &r, "to measure");
        s = stats_of(&f);
        tear_down(&f);
        const size_t limit = s.bytes * 2;
        set_up(&f, models[m], false, 0, limit);
        tern_request kept = request(f.ids + 900, 130, 0);
        for (int i = 0; i < 6; i++) {
            r.prompt = f.ids + i * 100;
            (void)check(&f, &r, "little room");
            assert_int_equal(check(&f, &r, "just asked"), 200);
            (void)check(&f, &kept, "asked again and again");
            s = stats_of(&f);
            assert_true(s.bytes <= limit && s.limit == limit);
        }
        assert_true(s.evictions > 0);
        assert_int_equal(check(&f, &kept, "used often"), 130);
        tear_down(&f);
        set_up(&f, models[m], false, 0, 100); /* for nothing */
        assert_int_equal(check(&f, &r, "no room"), 0);
        assert_int_equal(check(&f, &r, "no room"), 0);
        assert_int_equal(stats_of(&f).entries, 0);
        tear_down(&f);
    }
}

/* ---- at random --------------------------------------------------------------------------------------------------- */

enum { N_OPS = 120, N_AT_ONCE = 4, MOST_BORDERS = 3 };

/* Beginnings of three texts, some of which turn into another one on the way. */
static void draw(struct fixture *f, struct tern_rng *g, int32_t *ids, int32_t *borders, tern_request *r)
{
    static const int edges[] = {1, 63, 64, 65, 127, 128, 129, 192};
    int n = tern_rng_u64(g) % 2 ? edges[tern_rng_u64(g) % 8] : 1 + (int)(tern_rng_u64(g) % 330);
    int text = (int)(tern_rng_u64(g) % 3) * 330, at = tern_rng_u64(g) % 2 ? n : (int)(tern_rng_u64(g) % (uint64_t)n);
    for (int i = 0; i < n; i++)
        ids[i] = f->ids[i < at ? text + i : (text + 330 + i) % LONG];
    *r = request(ids, n, (int)(tern_rng_u64(g) % 3));
    r->max_tokens = tern_rng_u64(g) % 6 ? (int)(tern_rng_u64(g) % 80) : 0;
    r->n_choices = 1 + (tern_rng_u64(g) % 4 == 0);
    r->sampler.temperature = tern_rng_u64(g) % 2 ? 0.8f : 0;
    r->sampler.seed = tern_rng_u64(g) % 100;
    for (int i = 0, next = 0; i < MOST_BORDERS; i++) {
        next += 1 + (int)(tern_rng_u64(g) % 300);
        if (next <= n)
            borders[r->n_borders++] = next;
    }
    r->borders = borders;
}

static void check_alone(tern_engine *alone, const tern_request *r, const struct lc_request *rec)
{
    for (int k = 0; k < r->n_choices; k++) {
        int32_t want[LC_TOKENS];
        const struct lc_choice *c = &rec->c[k];
        int n = lc_alone(alone, r, k, want);
        if (c->n > n || (rec->rc == 0 && c->n != n) || memcmp(c->ids, want, (size_t)c->n * sizeof *want) != 0)
            fail_msg("prompt of %d tokens, %d found, plan %d, choice %d: other tokens than alone", r->n_prompt,
                     rec->end.n_cached, r->plan, k);
    }
}

static void run_random(const char *model, uint64_t seed, size_t kv_bytes, size_t cache_bytes)
{
    struct fixture f;
    struct tern_rng g = {seed};
    static int32_t ids[N_AT_ONCE][400], borders[N_AT_ONCE][MOST_BORDERS];
    tern_request r[N_AT_ONCE];
    struct lc_request *rec[N_AT_ONCE];
    uint64_t id[N_AT_ONCE];
    print_message("%s, seed %d, KV %zu, cache %zu\n", model, (int)seed, kv_bytes, cache_bytes);
    set_up(&f, model, false, kv_bytes, cache_bytes);
    tern_loop_close(&f.cold);
    for (int op = 0; op < N_OPS; op += N_AT_ONCE) {
        for (int i = 0; i < N_AT_ONCE; i++) {
            draw(&f, &g, ids[i], borders[i], &r[i]);
            rec[i] = lc_submit(f.loop, f.q, &r[i], &id[i]);
            tern_event e;
            for (int k = (int)(tern_rng_u64(&g) % 20); k > 0 && tern_events_next(f.q, &e, 5); k--)
                lc_note(&e);
            if (tern_rng_u64(&g) % 5 == 0)
                tern_loop_cancel(f.loop, id[tern_rng_u64(&g) % (uint64_t)(i + 1)]);
        }
        lc_wait(f.q, rec, N_AT_ONCE);
        for (int i = 0; i < N_AT_ONCE; i++) {
            assert_true(rec[i]->rc == 0 || rec[i]->rc == TERN_ECANCELLED);
            check_alone(f.cold_e, &r[i], rec[i]);
            free(rec[i]);
        }
        tern_cache_stats s = stats_of(&f);
        assert_true(s.bytes <= cache_bytes);
    }
    tern_cache_stats s = stats_of(&f);
    print_message("   %d found, %d not, %d given up\n", (int)s.hits, (int)s.misses, (int)s.evictions);
    assert_true(s.hits > 0);
    tear_down(&f);
}

static void test_random(void **state)
{
    (void)state;
    static const size_t limits[3][2] = {
        {0, (size_t)1 << 30}, {0, 3000000}, {2000000, (size_t)1 << 30}}; /* the engine's limit makes it give way */
    const bool all = getenv("TERN_TEST_LONG") != NULL;
    for (size_t m = 0; m < sizeof models / sizeof *models && served(models[m]); m++)
        for (size_t i = 0; i < 3; i++)
            if (all || i == m % 3) /* each limit with one kind of model at least */
                run_random(models[m], 10 * (i + 1) + m, limits[i][0], limits[i][1]);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths),           cmocka_unit_test(test_empty_prompt_is_refused),
        cmocka_unit_test(test_replies),           cmocka_unit_test(test_warming),
        cmocka_unit_test(test_cancelled_prefill), cmocka_unit_test(test_cancelled_at_a_border),
        cmocka_unit_test(test_evictions),         cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

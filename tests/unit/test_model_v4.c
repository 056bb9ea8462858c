/* DeepSeek-V4 behind 4,000 tokens, where everything that goes round has gone round: windows and what is raw of them,
 * the compressors' states, the raw tiles of compressed rows, the states that are kept for going back, the pieces in
 * which keys are searched.  One sequence is grown whole; what is cut, forked, saved, guessed or batched must have its
 * bits.
 *
 *     test_model_v4 [TEST] */
#include "patched_model.h"

#include "base/rng.h"
#include "run/run.h"

enum { CTX = 4352, STEM = 4001, PROMPT = 4110, LENGTH = 4190, SHIFT = 41, OTHER = 640, N_IDS = LENGTH, DRAFTS = 5 };

static const struct entry {
    const char *file;
    int window;        /* over several pages, of no round number */
    const char *kv[3]; /* the first, or with TERN_TEST_LONG all */
} entries[] = {
    {"deepseek4", 100, {"t4", "f16", "q8,layers=0-3:l3"}},
    {"deepseek4-grid", 150, {"t4,recent=128", "f16", "q8,layers=0-3:l3"}},
};

static int32_t ids[N_IDS];

static void open_entry(struct tiny *t, const struct entry *e)
{
    struct tern_rng rng = {7};
    patched_open(t, e->file, CTX, e->window);
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(tern_rng_u64(&rng) % (uint64_t)t->n_vocab);
}

static tern_engine *open_engine(const struct tiny *t, const char *kv, int threads, int seqs, int drafts)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {.n_threads = threads, .max_seqs = seqs, .chunk = 512, .kv = kv, .drafts = drafts};
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

static float *buffer(const struct tiny *t)
{
    float *p = calloc((size_t)LENGTH * (size_t)t->n_vocab, sizeof *p);
    assert_non_null(p);
    return p;
}

static void equal(const struct tiny *t, const float *a, const float *b, int from, int to, const char *what)
{
    for (int r = from; r < to; r++)
        if (memcmp(a + (size_t)r * (size_t)t->n_vocab, b + (size_t)r * (size_t)t->n_vocab,
                   (size_t)t->n_vocab * sizeof *a) != 0)
            fail_msg("%s: logits of position %d differ", what, r);
}

/* ids[from, to), of which those up to PROMPT are a prompt's, in steps of `step`, and the others decoded one by one. */
static void grow(const struct tiny *t, tern_engine *e, tern_seq *s, int from, int to, int step, float *out)
{
    const int prompt = to < PROMPT ? to : PROMPT;
    assert_int_equal(tern_seq_length(s), from);
    if (from < prompt)
        tiny_run(e, s, ids, from, prompt, step, false, out, 0, t->n_vocab);
    tiny_run(e, s, ids, from > prompt ? from : prompt, to, 1, true, out, 0, t->n_vocab);
}

static tern_seq *grown(const struct tiny *t, tern_engine *e, int n, int step, float *out)
{
    tern_error err = {0};
    tern_seq *s;
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    grow(t, e, s, 0, n, step, out);
    return s;
}

/* The rest of s equals the cold run's; s is freed. */
static void same_rest(const struct tiny *t, tern_engine *e, tern_seq *s, int step, const float *want, const char *what)
{
    float *got = buffer(t);
    const int from = tern_seq_length(s);
    grow(t, e, s, from, LENGTH, step, got);
    equal(t, want, got, from, LENGTH, what);
    tern_seq_free(s);
    free(got);
}

/* Forks of a stem go on in steps of any size, one token at a time too. */
static void check_steps(const struct tiny *t, tern_engine *e, tern_seq *stem, const float *want)
{
    static const int steps[] = {1, 63};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        tern_error err = {0};
        tern_seq *s;
        char what[40];
        tiny_ok(tern_seq_fork(&s, stem, &err), &err);
        (void)snprintf(what, sizeof what, "steps of %d", steps[i]);
        same_rest(t, e, s, steps[i], want, what);
    }
}

/* Saved where nothing is complete, and one token before and behind the edge of a row of either rate. */
static void check_files(const struct tiny *t, tern_engine *e, tern_seq *stem, const float *want)
{
    static const int at[] = {STEM, 4031, 4097, LENGTH - 5};
    tern_error err = {0};
    tern_seq *s;
    float *junk = buffer(t);
    tiny_ok(tern_seq_fork(&s, stem, &err), &err);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        tern_seq *back;
        grow(t, e, s, tern_seq_length(s), at[i], 7, junk);
        tiny_ok(tern_seq_save(s, in_dir("saved"), &err), &err);
        tiny_ok(tern_seq_load(&back, e, in_dir("saved"), &err), &err);
        same_rest(t, e, back, 32, want, "restored");
    }
    tern_seq_free(s);
    free(junk);
}

/* Back to where a window, a row and a page have just ended, or not. */
static void check_trims(const struct tiny *t, tern_engine *e, tern_seq *stem, const float *want)
{
    static const int at[] = {LENGTH - 4, PROMPT, 4097, 4033};
    tern_error err = {0};
    tern_seq *s;
    float *junk = buffer(t);
    tiny_ok(tern_seq_fork(&s, stem, &err), &err);
    grow(t, e, s, STEM, LENGTH, 100, junk);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        tern_seq *back;
        tiny_ok(tern_seq_trim(s, at[i], &err), &err);
        tiny_ok(tern_seq_fork(&back, s, &err), &err);
        same_rest(t, e, back, 50, want, "trimmed");
    }
    tern_seq_free(s);
    free(junk);
}

/* Steps of one token that counts and others that are guessed, of which some are wrong and taken back, by an engine that
 * takes over the stem. */
static void check_guesses(const struct tiny *t, const char *kv, tern_seq *stem, const float *want)
{
    tern_error err = {0};
    struct tern_rng rng = {3};
    tern_engine *e = open_engine(t, kv, 2, 1, DRAFTS);
    float *got = buffer(t);
    tern_seq *s;
    tiny_ok(tern_seq_save(stem, in_dir("saved"), &err), &err);
    tiny_ok(tern_seq_load(&s, e, in_dir("saved"), &err), &err);
    grow(t, e, s, STEM, PROMPT, 64, got);
    for (int n = PROMPT; n < LENGTH;) {
        int32_t rows[1 + DRAFTS];
        const int left = LENGTH - n, k = 1 + (int)(tern_rng_u64(&rng) % DRAFTS), all = k + 1 < left ? k + 1 : left;
        const int good = 1 + (int)(tern_rng_u64(&rng) % (uint64_t)all);
        const float *logits;
        for (int i = 0; i < all; i++)
            rows[i] = i < good ? ids[n + i] : (ids[n + i] + 1) % t->n_vocab;
        const tern_step_item it = {s, rows, all, true, TERN_LOGITS_ALL};
        tiny_ok(tern_step(e, &it, 1, &logits, &err), &err);
        memcpy(got + (size_t)n * (size_t)t->n_vocab, logits, (size_t)good * (size_t)t->n_vocab * sizeof *logits);
        const uint64_t steps = e->n_steps;
        tiny_ok(tern_seq_trim(s, n + good, &err), &err);
        assert_true(e->n_steps == steps); /* nothing was computed again */
        n += good;
    }
    equal(t, want, got, STEM, LENGTH, "with guesses");
    tern_engine_close(&e);
    free(got);
}

/* A sequence whose rows and windows end elsewhere begins and ends while the stem's fork goes on. */
static void check_batch(const struct tiny *t, tern_engine *e, tern_seq *stem, const float *want)
{
    tern_error err = {0};
    tern_seq *s[2];
    float *alone = buffer(t), *got[2] = {buffer(t), buffer(t)};
    int at[2] = {STEM, 0}, end[2] = {LENGTH, OTHER};
    const int32_t *of[2] = {ids, ids + SHIFT};
    tiny_ok(tern_seq_new(&s[1], e, &err), &err);
    tiny_run(e, s[1], of[1], 0, OTHER - 60, 200, false, alone, 0, t->n_vocab);
    tiny_run(e, s[1], of[1], OTHER - 60, OTHER, 1, true, alone, 0, t->n_vocab);
    tern_seq_free(s[1]);
    tiny_ok(tern_seq_fork(&s[0], stem, &err), &err);
    tiny_ok(tern_seq_new(&s[1], e, &err), &err);
    while (at[0] < end[0] || at[1] < end[1]) {
        tern_step_item items[2];
        const float *logits;
        int n = 0, who[2];
        for (int i = 0; i < 2; i++) {
            const int prompt = i ? OTHER - 60 : PROMPT, left = prompt - at[i], most = i ? 9 : 2;
            if (at[i] == end[i])
                continue;
            items[n] = (tern_step_item){s[i], of[i] + at[i],
                                        left <= 0     ? 1
                                        : left < most ? left
                                                      : most,
                                        left <= 0, TERN_LOGITS_ALL};
            who[n++] = i;
        }
        tiny_ok(tern_step(e, items, n, &logits, &err), &err);
        for (int k = 0; k < n; k++) {
            const size_t size = (size_t)items[k].n_tokens * (size_t)t->n_vocab;
            memcpy(got[who[k]] + (size_t)at[who[k]] * (size_t)t->n_vocab, logits, size * sizeof *logits);
            logits += size;
            at[who[k]] += items[k].n_tokens;
        }
    }
    equal(t, want, got[0], STEM, LENGTH, "the long one of a batch");
    equal(t, alone, got[1], 0, OTHER, "the short one of a batch");
    tern_seq_free(s[0]);
    tern_seq_free(s[1]);
    free(alone);
    free(got[0]);
    free(got[1]);
}

static void check_plan(const struct tiny *t, const char *kv)
{
    float *want = buffer(t), *got = buffer(t);
    tern_engine *e = open_engine(t, kv, 1, 1, 0);
    tern_seq_free(grown(t, e, LENGTH, 512, want));
    tern_engine_close(&e);
    e = open_engine(t, kv, 3, 3, 0);
    tern_seq *stem = grown(t, e, STEM, 509, got);
    equal(t, want, got, 0, STEM, "steps of 509 on three threads");
    check_steps(t, e, stem, want);
    check_files(t, e, stem, want);
    check_trims(t, e, stem, want);
    check_batch(t, e, stem, want);
    check_guesses(t, kv, stem, want);
    tern_seq_free(stem);
    tern_memory mem;
    tern_engine_memory(e, &mem);
    assert_true(mem.kv_bytes == 0 && mem.state_bytes == 0);
    tern_engine_close(&e);
    free(want);
    free(got);
}

static void check_entry(const struct entry *e)
{
    struct tiny t;
    open_entry(&t, e);
    for (size_t k = 0; k < (getenv("TERN_TEST_LONG") ? sizeof e->kv / sizeof *e->kv : 1); k++)
        check_plan(&t, e->kv[k]);
    tiny_close(&t);
}

static void test_wraps(void **state)
{
    (void)state;
    check_entry(&entries[0]);
}

static void test_wraps_on_grids(void **state)
{
    (void)state;
    check_entry(&entries[1]);
}

/* ---- schemes ----------------------------------------------------------------------------------------------------- */

enum { SHORT = 1500, SCORED = 700 };

/* Logits of the last SCORED of SHORT prompt tokens. */
static float *scored(const struct tiny *t, const char *kv, bool exact)
{
    tern_error err = {0};
    tern_engine *e;
    tern_seq *s;
    tern_engine_params p = {.n_threads = 2, .max_seqs = 1, .chunk = 512, .kv = kv, .exact = exact};
    float *all = buffer(t), *out = calloc((size_t)SCORED * (size_t)t->n_vocab, sizeof *out);
    assert_non_null(out);
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, ids, 0, SHORT, 500, false, all, 0, t->n_vocab);
    memcpy(out, all + (size_t)(SHORT - SCORED) * (size_t)t->n_vocab, (size_t)SCORED * (size_t)t->n_vocab * sizeof *out);
    tern_engine_close(&e);
    free(all);
    return out;
}

/* Where most rows are in closed pages, codes cost what their bits say, and nothing like a rotation that stays. */
static void test_schemes(void **state)
{
    static const struct {
        const char *kv;
        double most; /* mean KLD from the cache in 32 bits */
    } plans[] = {{"f16", 5e-4},
                 {"fp8", 5e-4},
                 {"t4", 1e-3},
                 /* with TERN_TEST_LONG */
                 {"q8", 5e-4},
                 {"l4", 1e-3},
                 {"l4,position=f16", 1e-3},
                 {"t4,position=f16", 1e-3}};
    const size_t n = getenv("TERN_TEST_LONG") ? sizeof plans / sizeof *plans : 3;
    bool near = true;
    (void)state;
    for (size_t m = 0; m < sizeof entries / sizeof *entries; m++) {
        struct tiny t;
        open_entry(&t, &entries[m]);
        float *want = scored(&t, "f32", true);
        for (size_t k = 0; k < n; k++) {
            float *got = scored(&t, plans[k].kv, true);
            const double kld = tiny_kld(want, got, SCORED, t.n_vocab);
            print_message("%-16s %-18s KLD %.2e\n", entries[m].file, plans[k].kv, kld);
            near &= kld <= plans[k].most;
            free(got);
        }
        free(want);
        tiny_close(&t);
    }
    assert_true(near);
}

/* Rows and keys that the model has rounded itself are kept exactly in their own grids: the bits of the 16-bit cache. */
static void test_own_grids(void **state)
{
    struct tiny t;
    (void)state;
    open_entry(&t, &entries[1]);
    for (int exact = 0; exact < 2; exact++) {
        float *want = scored(&t, "f16", exact), *got = scored(&t, "fp8", exact);
        assert_memory_equal(want, got, (size_t)SCORED * (size_t)t.n_vocab * sizeof *want);
        free(want);
        free(got);
    }
    tiny_close(&t);
}

/* ---- the reference ----------------------------------------------------------------------------------------------- */

/* tools/v4_long.py: the last rows, computed from the model's equations without any cache. */
static void test_reference(void **state)
{
    enum { ROWS = 24 };
    struct tiny t, ref;
    tern_error err = {0};
    tern_engine *e;
    tern_seq *s;
    double worst = 0;
    (void)state;
    tiny_read_rows(&ref, "deepseek4-behind-4000.npy");
    open_entry(&t, &entries[0]);
    assert_true(ref.n_ref == ROWS && ref.n_vocab == t.n_vocab);
    tern_engine_params p = {.n_threads = 2, .max_seqs = 1, .chunk = 512, .kv = "f32", .exact = true};
    tiny_ok(tern_engine_open(&e, t.model, &p, &err), &err);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    float *got = buffer(&t);
    tiny_run(e, s, ids, 0, LENGTH, 500, false, got, 0, t.n_vocab);
    const float *last = got + (size_t)(LENGTH - ROWS) * (size_t)t.n_vocab;
    for (int i = 0; i < ROWS * t.n_vocab; i++)
        worst = fmax(worst, fabs((double)last[i] - (double)ref.ref[i]));
    print_message("exact max |difference| %.2e\n", worst);
    assert_true(worst <= 1e-4);
    tern_engine_close(&e);
    tiny_close(&t);
    free(ref.ref);
    free(got);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wraps), cmocka_unit_test(test_wraps_on_grids),
                                       cmocka_unit_test(test_schemes), cmocka_unit_test(test_own_grids),
                                       cmocka_unit_test(test_reference)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

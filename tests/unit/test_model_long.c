/* Sequences of more than 1,024 tokens, where attention is cut into ranges of 16 pages that are merged: the promises of
 * tern.h bit for bit, and decode rows near the exact ones.
 *
 *     test_model_long [MODEL]       one of the models below, or all */
#include "patched_model.h"

enum { CTX = 1536, PROMPT = 1060, LENGTH = 1180, SHIFT = 37, N_IDS = LENGTH + SHIFT };

static const struct entry {
    const char *name, *file;
    int window; /* another one than the file's */
    const char *kv[3];
} entries[] = {
    {"dense", "llama-tied", 0, {"f16", "t4", "l3"}},
    {"recent", "llama-keys", 0, {"t4,recent=128", "k=q8,v=l3,first=0", "affine4"}},
    {"window", "gemma3-w70", 0, {"f16", "t4,layers=0-6:t4", "l3"}},
    {"wide-window", "mistral", 1090, {"f16", "t4", "l3,recent=128"}}, /* its ranges begin anywhere */
    {"latent", "deepseek2-lite", 0, {"f16", "t4", "l3"}},
    {"recurrent", "qwen35", 0, {"f16", "t4", "l3"}},
};

static const struct entry *only;
static int32_t ids[N_IDS];

static void open_entry(struct tiny *t, const struct entry *e)
{
    uint32_t x = 88172645u;
    patched_open(t, e->file, CTX, e->window);
    for (int i = 0; i < N_IDS; i++) {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        ids[i] = (int32_t)(x % (uint32_t)t->n_vocab);
    }
}

static float *buffer(const struct tiny *t)
{
    float *p = calloc((size_t)LENGTH * (size_t)t->n_vocab, sizeof *p);
    assert_non_null(p);
    return p;
}

static void equal(const struct tiny *t, const float *a, const float *b, int from, const char *kv, const char *what)
{
    for (int r = from; r < LENGTH; r++)
        if (memcmp(a + (size_t)r * (size_t)t->n_vocab, b + (size_t)r * (size_t)t->n_vocab,
                   (size_t)t->n_vocab * sizeof *a) != 0)
            fail_msg("%s, %s: logits of position %d differ", kv, what, r);
}

/* ids[shift ..]: prompt rows in steps of `step`, then decode rows, `rows` in a step. */
static float *run(struct tiny *t, const char *kv, bool exact, int threads, int step, int rows, int shift)
{
    tern_error err = {0};
    tern_engine *e = tiny_engine(t, kv, exact, threads, 1, 512);
    tern_seq *s;
    float *out = buffer(t);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, ids + shift, 0, PROMPT, step, false, out, 0, t->n_vocab);
    tiny_run(e, s, ids + shift, PROMPT, LENGTH, rows, true, out, 0, t->n_vocab);
    tern_engine_close(&e);
    return out;
}

static void check_splits(struct tiny *t, const char *kv, const float *whole)
{
    static const int cases[][3] = {/* threads, rows of a prompt step, of a decode step */
                                   {2, 65, 3},
                                   {3, 512, 16},
                                   {3, 101, 1}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char what[80];
        float *part = run(t, kv, false, cases[c][0], cases[c][1], cases[c][2], 0);
        (void)snprintf(what, sizeof what, "%d threads, steps of %d and %d", cases[c][0], cases[c][1], cases[c][2]);
        equal(t, whole, part, 0, kv, what);
        free(part);
    }
}

/* Two sequences of different tokens: the second begins while the first one is long, so that steps hold decode rows
 * behind 17 pages beside prompt rows of any depth. */
static void check_batch(struct tiny *t, const char *kv, const float *first)
{
    tern_error err = {0};
    float *second = run(t, kv, false, 1, 512, 1, SHIFT), *got[2] = {buffer(t), buffer(t)};
    tern_engine *e = tiny_engine(t, kv, false, 2, 2, 256);
    tern_seq *s[2];
    int at[2] = {0, 0};
    for (int i = 0; i < 2; i++)
        tiny_ok(tern_seq_new(&s[i], e, &err), &err);
    tiny_run(e, s[0], ids, 0, PROMPT - 20, 200, false, got[0], 0, t->n_vocab);
    for (at[0] = PROMPT - 20; at[0] < LENGTH || at[1] < LENGTH;) {
        tern_step_item items[2];
        const float *logits;
        int n = 0, who[2];
        for (int i = 0; i < 2; i++) {
            int left = PROMPT - at[i], rows = left <= 0 ? 1 : left < 20 - i * 7 ? left : 20 - i * 7;
            if (at[i] == LENGTH)
                continue;
            items[n] = (tern_step_item){s[i], ids + i * SHIFT + at[i], rows, left <= 0, TERN_LOGITS_ALL};
            who[n++] = i;
        }
        tiny_ok(tern_step(e, items, n, &logits, &err), &err);
        for (int k = 0; k < n; k++) {
            size_t size = (size_t)items[k].n_tokens * (size_t)t->n_vocab;
            memcpy(got[who[k]] + (size_t)at[who[k]] * (size_t)t->n_vocab, logits, size * sizeof *logits);
            logits += size;
            at[who[k]] += items[k].n_tokens;
        }
    }
    tern_engine_close(&e);
    equal(t, first, got[0], 0, kv, "first of a batch");
    equal(t, second, got[1], 0, kv, "second of a batch");
    free(second);
    free(got[0]);
    free(got[1]);
}

/* The rest of a sequence that holds ids[0 .. from) and must answer as the cold one. */
static void check_rest(struct tiny *t, tern_engine *e, tern_seq *s, int from, const float *want, const char *kv,
                       const char *what)
{
    float *got = buffer(t);
    assert_int_equal(tern_seq_length(s), from);
    if (from < PROMPT)
        tiny_run(e, s, ids, from, PROMPT, 512, false, got, 0, t->n_vocab);
    tiny_run(e, s, ids, from < PROMPT ? PROMPT : from, LENGTH, 1, true, got, 0, t->n_vocab);
    equal(t, want, got, from, kv, what);
    free(got);
}

static void check_life(struct tiny *t, const char *kv, const float *want)
{
    static const int cuts[] = {PROMPT + 60, PROMPT, 1025, 1024, 1023}; /* each after the one before it */
    tern_error err = {0};
    tern_engine *e = tiny_engine(t, kv, false, 2, 2, 256);
    tern_seq *s, *other;
    float *junk = buffer(t);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, ids, 0, PROMPT, 256, false, junk, 0, t->n_vocab);
    tiny_run(e, s, ids, PROMPT, PROMPT + 70, 1, true, junk, 0, t->n_vocab);
    tiny_ok(tern_seq_save(s, in_dir("saved"), &err), &err);
    tiny_ok(tern_seq_fork(&other, s, &err), &err);
    check_rest(t, e, other, PROMPT + 70, want, kv, "forked");
    tern_seq_free(other);
    tiny_ok(tern_seq_load(&other, e, in_dir("saved"), &err), &err);
    check_rest(t, e, other, PROMPT + 70, want, kv, "restored");
    tern_seq_free(other);
    for (size_t c = 0; c < sizeof cuts / sizeof *cuts; c++) {
        if (tern_seq_trim(s, cuts[c], &err) < 0) { /* only where a window has moved on */
            assert_int_equal(err.code, TERN_EUNSUPPORTED);
            break;
        }
        tiny_ok(tern_seq_fork(&other, s, &err), &err);
        check_rest(t, e, other, cuts[c], want, kv, "trimmed");
        tern_seq_free(other);
    }
    tern_engine_close(&e);
    free(junk);
}

static void test_promises(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        struct tiny t;
        if (only && only != &entries[i])
            continue;
        open_entry(&t, &entries[i]);
        for (int k = 0; k < 3; k++) {
            const char *kv = entries[i].kv[k];
            float *whole = run(&t, kv, false, 1, 512, 1, 0);
            check_splits(&t, kv, whole);
            check_batch(&t, kv, whole);
            check_life(&t, kv, whole);
            free(whole);
            print_message("%s, %s\n", entries[i].name, kv);
        }
        tiny_close(&t);
    }
}

/* Merging loses nothing: behind 17 pages decode rows of the 16-bit cache are as near to the exact ones as at the
 * beginning, and an exact sequence is the same in any steps. */
static void test_near_exact(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        struct tiny t;
        if (only && only != &entries[i])
            continue;
        open_entry(&t, &entries[i]);
        float *exact = run(&t, "f32", true, 1, 512, 1, 0), *parts = run(&t, "f32", true, 3, 77, 5, 0),
              *fast = run(&t, "f16", false, 2, 512, 1, 0);
        equal(&t, exact, parts, 0, "f32", "exact, steps of 77 and 5");
        size_t at = (size_t)PROMPT * (size_t)t.n_vocab;
        double kld = tiny_kld(exact + at, fast + at, LENGTH - PROMPT, t.n_vocab);
        print_message("%-12s KLD of decode rows %.2e\n", entries[i].name, kld);
        assert_true(kld < 2e-3);
        free(exact);
        free(parts);
        free(fast);
        tiny_close(&t);
    }
}

int main(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < sizeof entries / sizeof *entries; i++)
        if (strcmp(argv[1], entries[i].name) == 0)
            only = &entries[i];
    if (argc > 1 && !only)
        return 2;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_promises), cmocka_unit_test(test_near_exact)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}

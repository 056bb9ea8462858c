/* What every model promises bit for bit, checked on a tiny model. */
#ifndef TERN_TEST_TINY_PROMISES_H
#define TERN_TEST_TINY_PROMISES_H

#include <unistd.h>
#include "tiny.h"

/* Logits of all positions with the given engine settings, in a new buffer. */
static inline float *tiny_run_all(struct tiny *t, const char *kv, bool exact, int threads, int step, bool decode)
{
    tern_error err = {0};
    tern_engine *e = tiny_engine(t, kv, exact, threads, 1, 512);
    tern_seq *s;
    float *out = tiny_buffer(t);
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, t->ids, 0, t->n_ids, step, decode, out, 0, t->n_vocab);
    tern_engine_close(&e);
    return out;
}

static inline void tiny_equal_bits(const struct tiny *t, const float *a, const float *b, const char *what)
{
    for (int r = 0; r < t->n_ids; r++)
        if (memcmp(a + (size_t)r * (size_t)t->n_vocab, b + (size_t)r * (size_t)t->n_vocab,
                   (size_t)t->n_vocab * sizeof *a) != 0)
            fail_msg("%s: logits of position %d differ", what, r);
}

/* --exact is the reference's answer, and in steps of any size the same bits. */
static inline void tiny_exact_parity(struct tiny *t, double limit, const char *name)
{
    static const int steps[] = {64, 7, 1};
    float *whole = tiny_run_all(t, NULL, true, 2, 512, false);
    double d = tiny_max_diff(t, whole);
    print_message("%-36s exact max |difference| %.2e\n", name, d);
    if (!(d <= limit))
        fail_msg("%s: exact logits differ by %g from the reference", name, d);
    for (size_t k = 0; k < sizeof steps / sizeof *steps; k++) {
        float *part = tiny_run_all(t, NULL, true, 2, steps[k], steps[k] == 1);
        tiny_equal_bits(t, whole, part, name);
        free(part);
    }
    free(whole);
}

/* KLD from the reference of logits of all positions. */
static inline double tiny_kld_of(const struct tiny *t, const float *all)
{
    return tiny_kld(t->ref, all + (size_t)(t->n_ids - t->n_ref) * (size_t)t->n_vocab, t->n_ref, t->n_vocab);
}

/* The same of a run: of prompt rows, or of decode rows one by one. */
static inline double tiny_run_kld(struct tiny *t, const char *kv, bool exact, bool decode)
{
    float *all = tiny_run_all(t, kv, exact, 2, decode ? 1 : 512, decode);
    double kld = tiny_kld_of(t, all);
    free(all);
    return kld;
}

/* Prompt rows: any split, any thread count, as `cases` say {threads, step}.  Decode rows: one at a time or several. */
static inline void tiny_splits_and_threads(struct tiny *t, const char *kv, const int (*cases)[2], size_t n_cases,
                                           const char *name)
{
    float *whole = tiny_run_all(t, kv, false, 1, 512, false);
    for (size_t c = 0; c < n_cases; c++) {
        char what[128];
        float *part = tiny_run_all(t, kv, false, cases[c][0], cases[c][1], false);
        (void)snprintf(what, sizeof what, "%s, %s, %d threads, steps of %d", name, kv, cases[c][0], cases[c][1]);
        tiny_equal_bits(t, whole, part, what);
        free(part);
    }
    float *one = tiny_run_all(t, kv, false, 1, 1, true), *five = tiny_run_all(t, kv, false, 3, 5, true);
    tiny_equal_bits(t, one, five, kv);
    free(one);
    free(five);
    free(whole);
}

/* What a sequence answers from position `from` on must equal `want`. */
static inline void tiny_continues(struct tiny *t, tern_engine *e, tern_seq *s, int from, const float *want,
                                  const char *what)
{
    float *got = tiny_buffer(t);
    assert_int_equal(tern_seq_length(s), from);
    tiny_run(e, s, t->ids, from, t->n_ids, 1, true, got, 0, t->n_vocab);
    for (int r = from; r < t->n_ids; r++)
        if (memcmp(got + (size_t)r * (size_t)t->n_vocab, want + (size_t)r * (size_t)t->n_vocab,
                   (size_t)t->n_vocab * sizeof *got) != 0)
            fail_msg("%s: position %d differs from the cold run", what, r);
    free(got);
}

/* A sequence of `n` tokens: `prompt` of them prompt tokens, the rest decoded. */
static inline tern_seq *tiny_grow(struct tiny *t, tern_engine *e, int prompt, int n, float *out)
{
    tern_error err = {0};
    tern_seq *s;
    tiny_ok(tern_seq_new(&s, e, &err), &err);
    tiny_run(e, s, t->ids, 0, prompt, 512, false, out, 0, t->n_vocab);
    tiny_run(e, s, t->ids, prompt, n, 1, true, out, 0, t->n_vocab);
    return s;
}

static inline void tiny_fork_trim_save(struct tiny *t, const char *kv, int cut)
{
    tern_error err = {0};
    char path[] = "/tmp/tern-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    float *want = tiny_buffer(t), *junk = tiny_buffer(t);
    tern_engine *e = tiny_engine(t, kv, false, 2, 4, 128);
    int prompt = cut < 70 ? cut : 70;
    tern_seq *cold = tiny_grow(t, e, prompt, t->n_ids, want), *base = tiny_grow(t, e, prompt, cut, junk), *fork,
             *loaded;
    tern_seq_free(cold);
    /* fork: both continue, in either order */
    tiny_ok(tern_seq_fork(&fork, base, &err), &err);
    tiny_ok(tern_seq_save(base, path, &err), &err);
    tiny_continues(t, e, fork, cut, want, "fork");
    /* trim the fork back: inside the tile, or into closed pages */
    int rc = tern_seq_trim(fork, cut, &err);
    if (rc == 0)
        tiny_continues(t, e, fork, cut, want, "trim");
    else
        assert_int_equal(rc, TERN_EUNSUPPORTED); /* only a window that has moved on may refuse */
    tern_seq_free(fork);
    tiny_continues(t, e, base, cut, want, "original after fork");
    tern_seq_free(base);
    tiny_ok(tern_seq_load(&loaded, e, path, &err), &err);
    assert_memory_equal(tern_seq_tokens(loaded), t->ids, (size_t)cut * sizeof *t->ids);
    tiny_continues(t, e, loaded, cut, want, "restored");
    tern_seq_free(loaded);
    tern_memory mem;
    tern_engine_memory(e, &mem);
    assert_int_equal(mem.kv_bytes, 0); /* nothing leaked a page */
    tern_engine_close(&e);
    (void)unlink(path);
    free(want);
    free(junk);
}

/* Three sequences in one engine: one prefilling, two decoding from different depths, in shuffled order, against each
 * one alone in its own engine. */
static inline void tiny_batch_equals_single(struct tiny *t, const char *kv, const char *name)
{
    tern_error err = {0};
    static const int prompt[3] = {61, 3, 40};
    float *alone[3];
    for (int i = 0; i < 3; i++) {
        tern_engine *e = tiny_engine(t, kv, false, 1, 1, 512);
        tern_seq *s;
        alone[i] = tiny_buffer(t);
        tiny_ok(tern_seq_new(&s, e, &err), &err);
        tiny_run(e, s, t->ids + i, 0, prompt[i], 512, false, alone[i], 0, t->n_vocab);
        tiny_run(e, s, t->ids + i, prompt[i], 75, 1, true, alone[i], 0, t->n_vocab);
        tern_engine_close(&e);
    }
    tern_engine *e = tiny_engine(t, kv, false, 2, 3, 128);
    tern_seq *s[3];
    for (int i = 0; i < 3; i++)
        tiny_ok(tern_seq_new(&s[i], e, &err), &err);
    int at[3] = {0, 0, 0};
    for (int step = 0; at[0] < 75 || at[1] < 75 || at[2] < 75; step++) {
        tern_step_item items[3];
        int n = 0, who[3];
        for (int k = 0; k < 3; k++) {
            int i = (k + step) % 3;
            if (at[i] >= 75 || (step + i) % 4 == 3)
                continue; /* sit this step out: batches of every composition */
            bool decode = at[i] >= prompt[i];
            int left = prompt[i] - at[i], c = decode ? 1 : left < 5 + i ? left : 5 + i;
            items[n] = (tern_step_item){s[i], t->ids + i + at[i], c, decode, TERN_LOGITS_ALL};
            who[n++] = i;
        }
        if (!n)
            continue;
        const float *logits;
        tiny_ok(tern_step(e, items, n, &logits, &err), &err);
        for (int j = 0; j < n; j++)
            for (int r = 0; r < items[j].n_tokens; r++, logits += t->n_vocab)
                if (memcmp(logits, alone[who[j]] + (size_t)at[who[j]]++ * (size_t)t->n_vocab,
                           (size_t)t->n_vocab * sizeof(float)) != 0)
                    fail_msg("%s: sequence %d differs at position %d", name, who[j], at[who[j]] - 1);
    }
    tern_engine_close(&e);
    for (int i = 0; i < 3; i++)
        free(alone[i]);
}

#endif

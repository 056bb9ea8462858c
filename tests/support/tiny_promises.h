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

#endif

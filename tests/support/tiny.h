/* tests/support/tiny.h - the committed tiny models: their ids, the reference logits, and running them. */
#ifndef TERN_TEST_TINY_H
#define TERN_TEST_TINY_H

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "tern/tern.h"

/* A tiny model opened together with its prompt. */
struct tiny {
    tern_model *model;
    int32_t ids[512];
    int n_ids;
    int n_vocab;
    int ctx;                  /* of engines; 0: the model's own */
    int decode_bits;          /* of engines that are not exact */
    const char *prompt_class; /* as well */
    float *ref;               /* [n_ref][n_vocab], logits of the last n_ref positions */
    int n_ref;
};

static inline void tiny_ok(int rc, const tern_error *err)
{
    if (rc < 0)
        fail_msg("%d: %s", rc, err->msg);
}

static inline void tiny_read_ids(struct tiny *t, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tiny/%s.ids.txt", TERN_TEST_DATA, name);
    FILE *f = fopen(path, "r");
    if (!f)
        fail_msg("cannot open %s", path);
    t->n_ids = 0;
    int v;
    while (t->n_ids < 512 && fscanf(f, " %d ,", &v) == 1)
        t->ids[t->n_ids++] = v;
    (void)fclose(f);
    assert_true(t->n_ids > 64);
}

/* Rows of logits: t->ref, t->n_ref and t->n_vocab. */
static inline void tiny_read_rows(struct tiny *t, const char *file)
{
    char path[512], head[128];
    int rows, cols;
    (void)snprintf(path, sizeof path, "%s/tiny/%s", TERN_TEST_DATA, file);
    FILE *f = fopen(path, "rb");
    if (!f)
        fail_msg("cannot open %s", path);
    assert_int_equal(fread(head, 1, sizeof head, f), sizeof head);
    head[sizeof head - 1] = 0;
    const char *shape = strstr(head + 10, "'shape': (");
    assert_non_null(shape);
    assert_int_equal(sscanf(shape, "'shape': (%d, %d)", &rows, &cols), 2);
    t->n_ref = rows;
    t->n_vocab = cols;
    t->ref = malloc((size_t)rows * (size_t)cols * sizeof(float));
    assert_non_null(t->ref);
    assert_int_equal(fread(t->ref, sizeof(float), (size_t)rows * (size_t)cols, f), (size_t)rows * (size_t)cols);
    (void)fclose(f);
}

static inline void tiny_read_ref(struct tiny *t, const char *name)
{
    char file[160];
    (void)snprintf(file, sizeof file, "%s.logits.npy", name);
    tiny_read_rows(t, file);
}

/* name: of the GGUF; ids: base name of the ids file; logits: of the .npy. */
static inline void tiny_open(struct tiny *t, const char *name, const char *ids, const char *logits)
{
    char path[512];
    tern_error err = {0};
    memset(t, 0, sizeof *t);
    (void)snprintf(path, sizeof path, "%s/tiny/%s.gguf", TERN_TEST_DATA, name);
    tiny_ok(tern_model_open(&t->model, path, &(tern_model_params){.n_threads = 2}, &err), &err);
    tiny_read_ids(t, ids);
    tiny_read_ref(t, logits);
    assert_int_equal(t->n_vocab, tern_model_get_info(t->model)->n_vocab);
}

static inline void tiny_close(struct tiny *t)
{
    tern_model_close(&t->model);
    free(t->ref);
}

static inline tern_engine *tiny_engine(struct tiny *t, const char *kv, bool exact, int threads, int seqs, int chunk)
{
    tern_engine *e;
    tern_error err = {0};
    tern_engine_params p = {
        .n_threads = threads, .ctx = t->ctx, .max_seqs = seqs, .chunk = chunk, .kv = kv, .exact = exact};
    p.decode_bits = exact ? 0 : t->decode_bits;
    p.prompt_class = exact ? NULL : t->prompt_class;
    tiny_ok(tern_engine_open(&e, t->model, &p, &err), &err);
    return e;
}

/* Appends ids[from, to) in steps of `step` tokens and stores every position's logits at out[pos - base]. */
static inline void tiny_run(tern_engine *e, tern_seq *s, const int32_t *ids, int from, int to, int step, bool decode,
                            float *out, int base, int n_vocab)
{
    tern_error err = {0};
    while (from < to) {
        int n = to - from < step ? to - from : step;
        const float *logits;
        tern_step_item it = {s, ids + from, n, decode, TERN_LOGITS_ALL};
        tiny_ok(tern_step(e, &it, 1, &logits, &err), &err);
        memcpy(out + (size_t)(from - base) * (size_t)n_vocab, logits, (size_t)n * (size_t)n_vocab * sizeof(float));
        from += n;
    }
}

static inline float *tiny_buffer(const struct tiny *t)
{
    float *p = calloc((size_t)t->n_ids * (size_t)t->n_vocab, sizeof *p);
    assert_non_null(p);
    return p;
}

static inline double tiny_max_diff(const struct tiny *t, const float *all)
{
    const float *last = all + (size_t)(t->n_ids - t->n_ref) * (size_t)t->n_vocab;
    double worst = 0;
    for (size_t i = 0; i < (size_t)t->n_ref * (size_t)t->n_vocab; i++) {
        double d = fabs((double)last[i] - (double)t->ref[i]);
        worst = d > worst || isnan(d) ? d : worst;
    }
    return worst;
}

/* Mean over rows of KL(softmax(a) || softmax(b)). */
static inline double tiny_kld(const float *a, const float *b, int rows, int n)
{
    double total = 0;
    for (int r = 0; r < rows; r++, a += n, b += n) {
        double ma = a[0], mb = b[0], sa = 0, sb = 0, kl = 0;
        for (int i = 1; i < n; i++) {
            ma = fmax(ma, (double)a[i]);
            mb = fmax(mb, (double)b[i]);
        }
        for (int i = 0; i < n; i++) {
            sa += exp((double)a[i] - ma);
            sb += exp((double)b[i] - mb);
        }
        for (int i = 0; i < n; i++) {
            double la = (double)a[i] - ma - log(sa), lb = (double)b[i] - mb - log(sb);
            kl += exp(la) * (la - lb);
        }
        total += kl;
    }
    return total / rows;
}

#endif

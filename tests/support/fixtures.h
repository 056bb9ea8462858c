/* tests/support/fixtures.h - the committed models, found by walking tests/data: a new one is in every test that walks.
 */
#ifndef TERN_TEST_FIXTURES_H
#define TERN_TEST_FIXTURES_H

#include <dirent.h>
#include "file/file.h"
#include "model/model.h"
#include "tiny.h"

#define FIXTURES_MAX 96

struct fixtures {
    char names[FIXTURES_MAX][48]; /* sorted */
    int n;
};

static inline int fixtures_order(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* All of tests/data/DIR whose names end so, without that end. */
static inline void fixtures_find(struct fixtures *out, const char *dir, const char *end)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", TERN_TEST_DATA, dir);
    DIR *d = opendir(path);
    assert_non_null(d);
    out->n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name), m = strlen(end);
        if (n <= m || strcmp(e->d_name + n - m, end) != 0)
            continue;
        assert_true(out->n < FIXTURES_MAX && n - m < sizeof out->names[0]);
        (void)snprintf(out->names[out->n++], sizeof out->names[0], "%.*s", (int)(n - m), e->d_name);
    }
    (void)closedir(d);
    assert_true(out->n > 0);
    qsort(out->names, (size_t)out->n, sizeof out->names[0], fixtures_order);
}

static inline bool fixtures_have(const struct fixtures *f, const char *name)
{
    return bsearch(name, f->names, (size_t)f->n, sizeof f->names[0], fixtures_order) != NULL;
}

/* What a file says of itself. */
struct fixture {
    char arch[48], model_type[48]; /* model_type: of directories, else "" */
    bool quantised;                /* a directory with weights of several tensors */
    bool reordered;                /* a directory whose rows or columns GGUF has in another order */
};

static inline void fixture_text(char *out, size_t n, const struct tern_file *f, const char *key)
{
    const struct tern_meta *m = tern_file_meta(f, key);
    if (m && m->type == TERN_META_STRING)
        (void)snprintf(out, n, "%.*s", (int)m->s.n, m->s.p);
}

static inline struct fixture fixture_read(const char *path)
{
    struct fixture x = {0};
    struct tern_file *f;
    struct tern_arch_gguf gguf;
    tern_error err = {0};
    bool neighbours;
    tiny_ok(tern_file_open(&f, path, &err), &err);
    fixture_text(x.arch, sizeof x.arch, f, "general.architecture");
    if (tern_file_kind(f) == TERN_FILE_HF) {
        fixture_text(x.model_type, sizeof x.model_type, f, "config.model_type");
        fixture_text(x.model_type, sizeof x.model_type, f, "config.text_config.model_type");
        assert_true(tern_arch_find_gguf(&gguf, x.arch));
        tiny_ok(tern_file_get_bool(f, "deepseek2.rope.interleaved", true, &neighbours, &err), &err);
        x.reordered = gguf.pairs || gguf.grouped || !neighbours;
    }
    for (size_t i = 0; i < tern_file_n_tensors(f); i++)
        x.quantised |= tern_file_tensor_at(f, i)->quant != NULL;
    tern_file_close(&f);
    return x;
}

#endif

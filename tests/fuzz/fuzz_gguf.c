/* Any bytes as a model file: opening may fail, but what an open file hands out must be readable to its last byte. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "recommended.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void touch(const void *p, size_t n)
{
    const uint8_t *b = p;
    if (n)
        sink += (uint64_t)b[0] + b[n - 1];
}

static void read_typed(const struct tern_file *f, const char *key)
{
    tern_error err;
    int64_t i;
    double d;
    bool b;
    struct tern_str s;
    (void)tern_file_get_int(f, key, 1, 0, 1000, &i, &err);
    (void)tern_file_get_float(f, key, 1, &d, &err);
    (void)tern_file_get_bool(f, key, true, &b, &err);
    if (tern_file_get_str(f, key, &s, &err) == 0)
        touch(s.p, s.n);
}

static void walk_meta(const struct tern_file *f, const struct tern_meta *m)
{
    if (tern_file_meta(f, m->key) != m || m->file_offset > tern_file_bytes(f))
        abort();
    read_typed(f, m->key);
    if (m->type == TERN_META_STRING)
        touch(m->s.p, m->s.n);
    if (m->type != TERN_META_ARRAY)
        return;
    if (m->elem == TERN_META_STRING)
        for (size_t i = 0; i < m->n; i++)
            touch(((const struct tern_str *)m->arr)[i].p, ((const struct tern_str *)m->arr)[i].n);
    else
        touch(m->arr, m->n * 8);
}

static void walk_tensor(const struct tern_file *f, const struct tern_tensor *t)
{
    if (tern_file_tensor(f, t->name) != t || t->n_bytes == 0)
        abort();
    if (strcmp(tern_file_tensor_path(f, t), "fuzz") != 0)
        abort();
    size_t elems = 1;
    for (int d = 0; d < TERN_MAX_DIMS; d++)
        elems *= (size_t)t->dims[d];
    if (elems / (size_t)tern_type_elems(t->type) * (size_t)tern_type_bytes(t->type) != t->n_bytes)
        abort();
    touch(t->data, t->n_bytes);
    tern_file_forget(f, t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tern_file *f;
    tern_error err = {0};
    int rc = tern_file_open_memory(&f, data, size, "fuzz", &err);
    if (rc < 0) {
        /* A failure must explain itself and leave nothing behind. */
        if (f || err.code != rc || strncmp(err.msg, "fuzz: ", 6) != 0)
            abort();
        return 0;
    }
    for (size_t i = 0; i < tern_file_n_meta(f); i++)
        walk_meta(f, tern_file_meta_at(f, i));
    for (size_t i = 0; i < tern_file_n_tensors(f); i++)
        walk_tensor(f, tern_file_tensor_at(f, i));
    read_typed(f, "no such key");
    check_recommended(f, NULL, 0);
    tern_file_close(&f);
    return 0;
}

/* Any bytes as config.json and, behind a NUL, as a safetensors file: reading may fail, but what comes out must be
 * readable to its last byte, and an error must say where it is. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "file/hf/hf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile uint64_t sink;

static void touch(const void *p, size_t n)
{
    const uint8_t *b = p;
    if (n)
        sink += (uint64_t)b[0] + b[n - 1];
}

static size_t element_bytes(int type)
{
    if (type == TERN_U32 || type == TERN_I32)
        return 4;
    return type == TERN_U8 || type == TERN_F8_E4M3 ? 1 : (size_t)tern_type_bytes(type);
}

static void walk(const struct tern_meta_table *t, const struct tern_tensor_list *list)
{
    for (size_t i = 0; i < t->n; i++) {
        const struct tern_meta *m = &t->v[i];
        if (tern_meta_table_find(t, m->key) != m || !m->source)
            abort();
        if (m->type == TERN_META_STRING)
            touch(m->s.p, m->s.n);
        for (size_t k = 0; m->type == TERN_META_ARRAY && m->elem == TERN_META_STRING && k < m->n; k++)
            touch(((const struct tern_str *)m->arr)[k].p, ((const struct tern_str *)m->arr)[k].n);
        if (m->type == TERN_META_ARRAY && m->elem != TERN_META_STRING)
            touch(m->arr, m->n * 8);
    }
    for (size_t i = 0; i < list->n; i++) {
        const struct tern_tensor *x = &list->v[i];
        size_t elems = 1;
        for (int d = 0; d < TERN_MAX_DIMS; d++)
            elems *= (size_t)x->dims[d];
        if (x->stride) {
            size_t matrix = elems / (size_t)x->dims[2] * element_bytes(x->type);
            if (x->stride < matrix || ((size_t)x->dims[2] - 1) * x->stride + matrix != x->n_bytes)
                abort();
        } else if (x->quant ? elems * (size_t)x->quant->bits / 8 != x->n_bytes
                            : elems * element_bytes(x->type) != x->n_bytes)
            abort();
        if (strlen(x->name) == 0)
            abort();
        touch(x->data, x->n_bytes);
        const struct tern_tensor *parts[TERN_TENSOR_PARTS];
        for (int m = tern_tensor_parts(x, parts), k = 0; k < m; k++)
            touch(parts[k]->data, parts[k]->n_bytes);
    }
}

static int read_all(struct tern_file *f, struct tern_tensor_list *list, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_json_read_meta(&f->parts[0], "config.", TERN_HF_ENTRIES, &f->arena, err));
    TERN_TRY(tern_safetensors_read(&f->parts[1], list, &f->arena, err));
    TERN_TRY(tern_hf_translate(f, list, err));
out:
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char path[] = "fuzz";
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    struct tern_part parts[2] = {{.path = path, .p = data, .n = n},
                                 {.path = path, .p = nul ? nul + 1 : data + n, .n = nul ? size - n - 1 : 0}};
    struct tern_file f = {.path = path, .dir = path, .kind = TERN_FILE_HF, .parts = parts, .n_parts = 2};
    struct tern_tensor_list list = {0};
    tern_error err = {0};
    f.arena.path = path;
    int rc = read_all(&f, &list, &err);
    if (rc == 0)
        walk(&parts[0].meta, &list);
    else if (err.code != rc || strncmp(err.msg, "fuzz: ", 6) != 0)
        abort();
    tern_free(list.v);
    tern_file_arena_clear(&f.arena);
    return 0;
}

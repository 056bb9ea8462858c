#include "file/file_impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include <xxhash.h>

#include "base/mem.h"

/* The payload follows at the next multiple of TERN_ALIGN. */
struct tern_file_chunk {
    struct tern_file_chunk *next;
};

enum { FIRST_CHUNK = 4096, LARGEST_CHUNK = 1 << 20 };

static int add_chunk(struct tern_file_arena *a, size_t need, tern_error *err)
{
    size_t cap = a->head ? a->cap * 2 : FIRST_CHUNK;
    if (cap > LARGEST_CHUNK)
        cap = LARGEST_CHUNK;
    if (cap < need)
        cap = need;
    struct tern_file_chunk *c;
    int rc = tern_alloc(&c, cap + TERN_ALIGN, 1, err);
    if (rc < 0)
        return rc;
    c->next = a->head;
    a->head = c;
    a->used = 0;
    a->cap = cap;
    return 0;
}

int tern_file_arena_alloc(struct tern_file_arena *a, void *out, size_t n, size_t size, tern_error *err)
{
    void **slot = out;
    size_t bytes;
    *slot = NULL;
    if (!tern_mul(n, size, &bytes) || bytes > TERN_GGUF_MAX_DECODED - a->total)
        return tern_err_set(err, TERN_ELIMIT, "%s: the file's tables would take more than %zu bytes of memory",
                            tern_path_show(a->path), TERN_GGUF_MAX_DECODED);
    bytes = tern_round_up(bytes ? bytes : 1, 16);
    if (!a->head || bytes > a->cap - a->used) {
        int rc = add_chunk(a, bytes, err);
        if (rc < 0)
            return rc;
    }
    *slot = (char *)a->head + TERN_ALIGN + a->used;
    a->used += bytes;
    /* Rounding may pass the limit by 15 bytes; the subtraction above must not wrap. */
    a->total = bytes > TERN_GGUF_MAX_DECODED - a->total ? TERN_GGUF_MAX_DECODED : a->total + bytes;
    return 0;
}

void tern_file_arena_clear(struct tern_file_arena *a)
{
    while (a->head) {
        struct tern_file_chunk *c = a->head;
        a->head = c->next;
        tern_free(c);
    }
    *a = (struct tern_file_arena){0};
}

int tern_file_index_init(struct tern_file_index *x, size_t n, struct tern_file_arena *a, tern_error *err)
{
    if (n >= UINT32_MAX / 4)
        return tern_err_set(err, TERN_ELIMIT, "a table of %zu names is too long", n);
    size_t cap = 4;
    while (cap < 2 * n)
        cap *= 2;
    /* Without a random seed the lookups still work, only a hostile file could slow them down. */
    if (getrandom(&x->seed, sizeof x->seed, GRND_NONBLOCK) != (ssize_t)sizeof x->seed)
        x->seed = (uint64_t)(uintptr_t)x;
    x->mask = cap - 1;
    return tern_file_arena_alloc(a, &x->slots, cap, sizeof *x->slots, err);
}

/* The slot that holds `name`, or the empty one where it belongs. */
static size_t probe(const struct tern_file_index *x, const char *name, tern_file_name_fn *name_of, const void *table)
{
    size_t at = (size_t)XXH3_64bits_withSeed(name, strlen(name), x->seed) & x->mask;
    while (x->slots[at] && strcmp(name_of(table, x->slots[at] - 1), name) != 0)
        at = (at + 1) & x->mask;
    return at;
}

size_t tern_file_index_find(const struct tern_file_index *x, const char *name, tern_file_name_fn *name_of,
                            const void *table)
{
    if (!x->slots)
        return SIZE_MAX;
    uint32_t entry = x->slots[probe(x, name, name_of, table)];
    return entry ? entry - 1 : SIZE_MAX;
}

bool tern_file_index_add(struct tern_file_index *x, size_t i, tern_file_name_fn *name_of, const void *table)
{
    size_t at = probe(x, name_of(table, i), name_of, table);
    if (x->slots[at])
        return false;
    x->slots[at] = (uint32_t)(i + 1);
    return true;
}

static int by_offset(const void *a, const void *b)
{
    const struct tern_tensor *const *x = a, *const *y = b;
    return ((*x)->file_offset > (*y)->file_offset) - ((*x)->file_offset < (*y)->file_offset);
}

int tern_tensors_sorted(const struct tern_tensor ***order, const struct tern_tensor *t, size_t n, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_alloc(order, n, sizeof **order, err));
    for (size_t i = 0; i < n; i++)
        (*order)[i] = &t[i];
    qsort(*order, n, sizeof **order, by_offset);
out:
    return rc;
}

#include "file/file_impl.h"

#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "base/mem.h"

/* A change that follows another within the clock's step leaves the file's times as they were. */
#define SETTLED_S 2

char *tern_path_dup(const char *path)
{
    size_t n = strlen(path) + 1;
    char *copy;
    if (tern_alloc(&copy, n, 1, NULL) < 0)
        return NULL;
    memcpy(copy, path, n);
    return copy;
}

int tern_part_map(struct tern_part *part, const char *path, tern_error *err)
{
    part->path = tern_path_dup(path);
    if (!part->path)
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate the path of a model file");
    int rc = tern_map_open(&part->map, path, "a model file", err);
    part->p = part->map.p;
    part->n = part->map.n;
    return rc;
}

void tern_part_clear(struct tern_part *part)
{
    tern_map_close(&part->map);
    tern_free(part->path);
    *part = (struct tern_part){0};
}

void tern_file_forget(const struct tern_file *f, const struct tern_tensor *t)
{
    /* Borrowed memory is the caller's: dropping its pages could destroy them. */
    if (f->parts[0].map.p)
        tern_map_forget(t->data, t->n_bytes);
}

uint64_t tern_file_stamp(const struct tern_file *f, uint64_t seed)
{
    int64_t now = (int64_t)time(NULL);
    for (size_t i = 0; i < f->n_parts; i++) {
        const struct tern_map *m = &f->parts[i].map;
        if (!m->p || m->id.changed_s > now - SETTLED_S || m->id.modified_s > now - SETTLED_S)
            return 0;
        seed = XXH3_64bits_withSeed(&m->id, sizeof m->id, seed);
    }
    return seed;
}

/* The parts of a GGUF model: one file, or a split set. */
#include "file/gguf/gguf.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"

/* "-00001-of-00003.gguf" */
enum { SUFFIX_LEN = 20 };

static int read_all_tensors(struct tern_file *f, tern_error *err)
{
    int rc = 0;
    size_t n = 0;
    for (size_t i = 0; i < f->n_parts; i++)
        n += f->parts[i].n_tensors; /* each is below the size of a mapped file */
    TERN_TRY(tern_file_arena_alloc(&f->arena, &f->tensors, n, sizeof *f->tensors, err));
    for (size_t i = 0; i < f->n_parts; i++) {
        TERN_TRY(tern_gguf_read_tensors(&f->parts[i], f->tensors + f->n_tensors, &f->arena, err));
        f->n_tensors += f->parts[i].n_tensors;
    }
    TERN_TRY(tern_file_index_tensors(f, err));
out:
    return rc;
}

/* Says whether part number `no` of `count` is called as the set's naming rule wants. */
static bool suffix_fits(const char *path, int64_t no, int64_t count)
{
    char want[SUFFIX_LEN + 1];
    size_t n = strlen(path);
    (void)snprintf(want, sizeof want, "-%05u-of-%05u.gguf", (unsigned)(no + 1) % 100000, (unsigned)count % 100000);
    return n > SUFFIX_LEN && strcmp(path + n - SUFFIX_LEN, want) == 0;
}

/* Opens part number `no` beside the one that the caller named. */
static int open_sibling(struct tern_file *f, int64_t no, int64_t count, tern_error *err)
{
    int rc = 0;
    size_t n = strlen(f->path);
    char *path = NULL;
    TERN_TRY(tern_alloc(&path, n + 1, 1, err));
    (void)snprintf(path, n + 1, "%.*s-%05u-of-%05u.gguf", (int)(n - SUFFIX_LEN), f->path, (unsigned)(no + 1) % 100000,
                   (unsigned)count % 100000);
    struct tern_part *part = &f->parts[no];
    rc = tern_part_map(part, path, err);
    if (rc == TERN_ENOENT)
        TERN_FAIL(err, TERN_ENOENT, "%s: part %lld of %lld of the split set is missing", tern_path_show(path),
                  (long long)(no + 1), (long long)count);
    if (rc == 0)
        rc = tern_gguf_read_meta(part, &f->arena, err);
out:
    tern_free(path);
    return rc;
}

/* A metadata value of the set that must have one certain value in this part. */
static int expect_int(const struct tern_part *part, const char *key, int64_t want, tern_error *err)
{
    int64_t v;
    int rc = tern_part_int(part, key, NULL, 0, INT64_MAX, &v, err);
    if (rc == 0 && v != want) {
        struct tern_cursor c = {.part = part, .table = "metadata key", .name = key};
        rc = tern_cursor_fail(&c, (size_t)tern_meta_table_find(&part->meta, key)->file_offset, TERN_EMISMATCH, err,
                              "%lld does not fit the rest of the split set, which wants %lld,", (long long)v,
                              (long long)want);
    }
    return rc;
}

/* f->parts[0] is the part that the caller named, with its metadata; brings in the others, in order. */
static int open_set(struct tern_file *f, int64_t count, tern_error *err)
{
    int rc = 0;
    int64_t no, n_tensors;
    size_t found = 0;
    struct tern_part *named = &f->parts[0];
    TERN_TRY(tern_part_int(named, "split.no", NULL, 0, count - 1, &no, err));
    TERN_TRY(tern_part_int(named, "split.tensors.count", NULL, 0, INT64_MAX, &n_tensors, err));
    if (!named->map.p)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: part %lld of a split set of %lld cannot be opened from memory",
                  tern_path_show(f->path), (long long)(no + 1), (long long)count);
    if (!suffix_fits(f->path, no, count))
        TERN_FAIL(err, TERN_EINVAL,
                  "%s: this is part %lld of a split set of %lld and must be named "
                  "NAME-%05lld-of-%05lld.gguf, or the other parts cannot be found",
                  tern_path_show(f->path), (long long)(no + 1), (long long)count, (long long)(no + 1),
                  (long long)count);
    struct tern_part *parts;
    TERN_TRY(tern_alloc(&parts, (size_t)count, sizeof *parts, err));
    parts[no] = *named;
    tern_free(f->parts);
    f->parts = parts;
    f->n_parts = (size_t)count;
    for (int64_t i = 0; i < count; i++) {
        if (i != no)
            TERN_TRY(open_sibling(f, i, count, err));
        TERN_TRY(expect_int(&parts[i], "split.no", i, err));
        TERN_TRY(expect_int(&parts[i], "split.count", count, err));
        TERN_TRY(expect_int(&parts[i], "split.tensors.count", n_tensors, err));
        found += parts[i].n_tensors;
    }
    if (found != (uint64_t)n_tensors)
        TERN_FAIL(err, TERN_EMISMATCH, "%s: the parts of the split set hold %zu tensors, split.tensors.count says %lld",
                  tern_path_show(f->path), found, (long long)n_tensors);
out:
    return rc;
}

/* The first part is mapped; reads everything else. */
int tern_gguf_read(struct tern_file *f, tern_error *err)
{
    static const int64_t alone = 1;
    int rc = 0;
    int64_t count;
    TERN_TRY(tern_gguf_read_meta(&f->parts[0], &f->arena, err));
    TERN_TRY(tern_part_int(&f->parts[0], "split.count", &alone, 0, TERN_GGUF_MAX_PARTS, &count, err));
    if (count > 1)
        TERN_TRY(open_set(f, count, err));
    TERN_TRY(read_all_tensors(f, err));
out:
    return rc;
}

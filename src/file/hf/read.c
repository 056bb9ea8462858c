/* A model as Hugging Face publishes it: a directory with config.json and safetensors files, several of them listed by
 * model.safetensors.index.json. */
#include "file/hf/hf.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"

#define ONE   "model.safetensors"
#define INDEX "model.safetensors.index.json"

static int is_directory(const char *path, bool *is, tern_error *err)
{
    struct stat st;
    *is = false;
    if (stat(path, &st) == 0)
        *is = S_ISDIR(st.st_mode);
    else if (errno == EIO) /* what else is wrong will be told by who opens it */
        return tern_err_set(err, TERN_EIO, "%s: cannot be looked at: %s", tern_path_show(path), strerror(errno));
    return 0;
}

int tern_hf_is(const char *path, bool *is, tern_error *err)
{
    int rc = is_directory(path, is, err);
    *is = *is || ends_with(path, ".safetensors") || ends_with(path, ".safetensors.index.json");
    return rc;
}

/* DIR/name, to be freed. */
static int join(char **out, const struct tern_file *f, const char *name, tern_error *err)
{
    size_t n = strlen(f->dir) + strlen(name) + 2;
    int rc = tern_alloc(out, n, 1, err);
    if (rc == 0)
        (void)snprintf(*out, n, "%s/%s", f->dir, name);
    return rc;
}

static int map_beside(const struct tern_file *f, struct tern_part *part, const char *name, tern_error *err)
{
    int rc = 0;
    char *path = NULL;
    TERN_TRY(join(&path, f, name, err));
    TERN_TRY(tern_part_map(part, path, err));
out:
    tern_free(path);
    return rc;
}

/* f->dir, and which file of it holds the tensors or lists those that do. */
static int find_files(struct tern_file *f, const char **main_file, tern_error *err)
{
    int rc = 0;
    char *path = NULL;
    const char *slash = strrchr(f->path, '/');
    bool whole;
    TERN_TRY(is_directory(f->path, &whole, err));
    f->dir = tern_path_dup(whole || !slash ? f->path : slash == f->path ? "/" : f->path);
    if (!f->dir)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the path of a model directory");
    if (!whole) {
        *main_file = slash ? slash + 1 : f->path;
        if (!slash)
            memcpy(f->dir, ".", 2); /* a file name has at least that much room */
        else if (slash != f->path)
            f->dir[slash - f->path] = 0;
        return 0;
    }
    for (size_t n = strlen(f->dir); n > 1 && f->dir[n - 1] == '/';)
        f->dir[--n] = 0;
    TERN_TRY(join(&path, f, INDEX, err));
    *main_file = access(path, F_OK) == 0 ? INDEX : ONE;
    tern_free(path);
    path = NULL;
    TERN_TRY(join(&path, f, *main_file, err));
    if (access(path, F_OK) < 0)
        TERN_FAIL(err, TERN_ENOENT, "%s: the directory has neither " ONE " nor " INDEX, tern_path_show(f->dir));
out:
    tern_free(path);
    return rc;
}

/* ---- the index --------------------------------------------------------------------------------------------------- */

struct index {
    struct tern_part part; /* the mapped file; nothing of it when there is no index */
    struct json_t *root, *map;
    const char **files; /* names, sorted, each once */
    size_t n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int fail_index(const struct index *x, const char *tensor, int code, tern_error *err, const char *what,
                      const char *file)
{
    struct tern_cursor c = {.part = &x->part, .table = "tensor", .name = tensor};
    return tern_cursor_fail(&c, TERN_NO_OFFSET, code, err, "%s%s", what, file ? tern_name_show(file).text : "");
}

/* Files lie beside the index: a name with a path in it would lead elsewhere. */
static int check_names(const struct index *x, tern_error *err)
{
    for (void *it = json_object_iter(x->map); it; it = json_object_iter_next(x->map, it)) {
        const char *file = json_string_value(json_object_iter_value(it));
        if (!file || strchr(file, '/') || !ends_with(file, ".safetensors"))
            return fail_index(x, json_object_iter_key(it), TERN_EFORMAT, err,
                              file ? "it is said to lie in a file that is no safetensors file of this directory: "
                                   : "the name of its file is no string",
                              file);
    }
    return 0;
}

static int read_index(struct index *x, const struct tern_file *f, const char *name, tern_error *err)
{
    int rc = 0;
    TERN_TRY(map_beside(f, &x->part, name, err));
    TERN_TRY(tern_json_object(&x->root, &x->part, x->part.p, x->part.n, err));
    x->map = json_object_get(x->root, "weight_map");
    if (!json_is_object(x->map) || json_object_size(x->map) == 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: weight_map is missing or empty", tern_path_show(x->part.path));
    TERN_TRY(check_names(x, err));
    TERN_TRY(tern_alloc(&x->files, json_object_size(x->map), sizeof *x->files, err));
    for (void *it = json_object_iter(x->map); it; it = json_object_iter_next(x->map, it))
        x->files[x->n++] = json_string_value(json_object_iter_value(it));
    qsort(x->files, x->n, sizeof *x->files, by_name);
    size_t unique = 1;
    for (size_t i = 1; i < x->n; i++)
        if (strcmp(x->files[i], x->files[unique - 1]) != 0)
            x->files[unique++] = x->files[i];
    x->n = unique;
    if (x->n > TERN_GGUF_MAX_PARTS)
        TERN_FAIL(err, TERN_ELIMIT, "%s: the index names %zu files, more than the %d allowed",
                  tern_path_show(x->part.path), x->n, TERN_GGUF_MAX_PARTS);
out:
    return rc;
}

/* Tensors [first, n) come from `file`: the index must say so of each. */
static int check_against_index(const struct index *x, const struct tern_tensor_list *list, size_t first,
                               const char *file, tern_error *err)
{
    for (size_t i = first; x->map && i < list->n; i++) {
        const char *want = json_string_value(json_object_get(x->map, list->v[i].name));
        if (!want || strcmp(want, file) != 0)
            return fail_index(x, list->v[i].name, TERN_EMISMATCH, err,
                              want ? "it is listed for another file than the one that holds it, "
                                   : "it is not listed, but lies in ",
                              file);
    }
    return 0;
}

/* All tensors found are listed, each once; are all listed ones found? */
static int check_listed(const struct index *x, const struct tern_tensor_list *list, tern_error *err)
{
    if (!x->map || json_object_size(x->map) == list->n)
        return 0;
    for (void *it = json_object_iter(x->map); it; it = json_object_iter_next(x->map, it)) {
        size_t i = 0;
        while (i < list->n && strcmp(list->v[i].name, json_object_iter_key(it)) != 0)
            i++;
        if (i == list->n)
            return fail_index(x, json_object_iter_key(it), TERN_EMISMATCH, err, "it is not in its file, ",
                              json_string_value(json_object_iter_value(it)));
    }
    return 0;
}

static void clear_index(struct index *x)
{
    json_decref(x->root);
    tern_free(x->files);
    tern_part_clear(&x->part);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static int read_shards(struct tern_file *f, const struct index *x, tern_error *err)
{
    int rc = 0;
    struct tern_tensor_list list = {0};
    for (size_t i = 0; i < x->n; i++) {
        size_t first = list.n;
        rc = map_beside(f, &f->parts[i + 1], x->files[i], err);
        if (rc == TERN_ENOENT && x->map)
            TERN_FAIL(err, rc, "%s: the file \"%s\" that it names is missing", tern_path_show(x->part.path),
                      tern_name_show(x->files[i]).text);
        TERN_TRY(rc);
        TERN_TRY(tern_safetensors_read(&f->parts[i + 1], &list, &f->arena, err));
        TERN_TRY(check_against_index(x, &list, first, x->files[i], err));
    }
    TERN_TRY(check_listed(x, &list, err));
    TERN_TRY(tern_hf_translate(f, &list, err));
    TERN_TRY(tern_file_arena_alloc(&f->arena, &f->tensors, list.n, sizeof *f->tensors, err));
    if (list.n)
        memcpy(f->tensors, list.v, list.n * sizeof *list.v);
    f->n_tensors = list.n;
    TERN_TRY(tern_file_index_tensors(f, err));
out:
    tern_free(list.v);
    return rc;
}

int tern_hf_read(struct tern_file *f, tern_error *err)
{
    int rc = 0;
    struct index x = {0};
    const char *main_file = NULL;
    struct tern_part *parts;
    f->kind = TERN_FILE_HF;
    TERN_TRY(find_files(f, &main_file, err));
    TERN_TRY(map_beside(f, &f->parts[0], "config.json", err));
    TERN_TRY(tern_json_read_meta(&f->parts[0], "config.", TERN_HF_ENTRIES, &f->arena, err));
    if (ends_with(main_file, ".index.json")) {
        TERN_TRY(read_index(&x, f, main_file, err));
    } else {
        TERN_TRY(tern_alloc(&x.files, 1, sizeof *x.files, err));
        x.files[x.n++] = main_file;
    }
    TERN_TRY(tern_alloc(&parts, x.n + 1, sizeof *parts, err));
    parts[0] = f->parts[0];
    tern_free(f->parts);
    f->parts = parts;
    f->n_parts = x.n + 1;
    TERN_TRY(read_shards(f, &x, err));
out:
    clear_index(&x);
    return rc;
}

int tern_file_beside(const struct tern_file *f, const char *name, size_t max, struct tern_buf *out, bool *found,
                     tern_error *err)
{
    int rc = 0;
    char *path = NULL;
    struct stat st;
    *found = false;
    if (!f->dir)
        return 0;
    TERN_TRY(join(&path, f, name, err));
    if (stat(path, &st) < 0 || S_ISCHR(st.st_mode))
        goto out;
    TERN_TRY(tern_buf_read_regular(out, path, max, err));
    *found = true;
out:
    tern_free(path);
    return rc;
}

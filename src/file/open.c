/* Opening and closing, whatever the container: a GGUF file or set, bytes in memory, a Hugging Face directory. */
#include "file/file_impl.h"

#include "base/mem.h"

static const char *tensor_name(const void *table, size_t i)
{
    return ((const struct tern_tensor *)table)[i].name;
}

const struct tern_tensor *tern_file_tensor(const struct tern_file *f, const char *name)
{
    size_t i = tern_file_index_find(&f->tensor_index, name, tensor_name, f->tensors);
    return i == SIZE_MAX ? NULL : &f->tensors[i];
}

int tern_file_index_tensors(struct tern_file *f, tern_error *err)
{
    int rc = 0;
    TERN_TRY(tern_file_index_init(&f->tensor_index, f->n_tensors, &f->arena, err));
    for (size_t i = 0; i < f->n_tensors; i++)
        if (!tern_file_index_add(&f->tensor_index, i, tensor_name, f->tensors)) {
            const struct tern_tensor *t = &f->tensors[i];
            struct tern_cursor c = {.part = tern_file_part_of(f, t), .table = "tensor", .name = t->source};
            return tern_cursor_fail(&c, (size_t)t->file_offset, TERN_EFORMAT, err,
                                    "two tensors have this name, the second one with data");
        }
out:
    return rc;
}

static int new_file(struct tern_file **out, const char *path, tern_error *err)
{
    int rc = 0;
    struct tern_file *f;
    TERN_TRY(tern_alloc(&f, 1, sizeof *f, err));
    *out = f;
    TERN_TRY(tern_alloc(&f->parts, 1, sizeof *f->parts, err));
    f->n_parts = 1;
    f->path = tern_path_dup(path);
    if (!f->path)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the path of a model file");
    f->arena.path = f->path;
out:
    return rc;
}

int tern_file_open(struct tern_file **out, const char *path, tern_error *err)
{
    int rc = 0;
    bool directory;
    *out = NULL;
    TERN_TRY(new_file(out, path, err));
    TERN_TRY(tern_hf_is(path, &directory, err));
    if (directory) {
        TERN_TRY(tern_hf_read(*out, err));
    } else {
        TERN_TRY(tern_part_map(&(*out)->parts[0], path, err));
        TERN_TRY(tern_gguf_read(*out, err));
    }
    return 0;
out:
    tern_file_close(out);
    return rc;
}

int tern_file_open_memory(struct tern_file **out, const void *bytes, size_t n_bytes, const char *name, tern_error *err)
{
    int rc = 0;
    *out = NULL;
    if (n_bytes == 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: the file is empty", tern_path_show(name));
    TERN_TRY(new_file(out, name, err));
    struct tern_part *part = &(*out)->parts[0];
    part->p = bytes;
    part->n = n_bytes;
    part->path = tern_path_dup(name);
    if (!part->path)
        TERN_FAIL(err, TERN_ENOMEM, "cannot allocate the name of a model file");
    TERN_TRY(tern_gguf_read(*out, err));
    return 0;
out:
    tern_file_close(out);
    return rc;
}

void tern_file_close(struct tern_file **f)
{
    if (!f || !*f)
        return;
    for (size_t i = 0; i < (*f)->n_parts; i++)
        tern_part_clear(&(*f)->parts[i]);
    tern_free((*f)->parts);
    tern_file_arena_clear(&(*f)->arena);
    tern_free((*f)->dir);
    tern_free((*f)->path);
    tern_free(*f);
    *f = NULL;
}

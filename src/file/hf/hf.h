/* file/hf/hf.h - what the readers of Hugging Face directories share. */
#ifndef TERN_FILE_HF_HF_H
#define TERN_FILE_HF_HF_H

#include "file/file_impl.h"

#define TERN_JSON_MAX       ((size_t)32 << 20)
#define TERN_JSON_MAX_DEPTH 32

static inline bool starts_with(const char *s, const char *head)
{
    return strncmp(s, head, strlen(head)) == 0;
}

static inline bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

struct tern_tensor_list {
    struct tern_tensor *v;
    size_t n, cap;
};
/* The tensors of one mapped safetensors file. */
int tern_safetensors_read(const struct tern_part *part, struct tern_tensor_list *list, struct tern_file_arena *a,
                          tern_error *err);

/* Puts the tensors of every quantised weight that is not `unused` together: the one of its codes gets `quant`, the name
 * MODULE.weight and the shape of the weights, the others leave the list. */
int tern_hf_join(struct tern_file *f, struct tern_tensor_list *list, tern_error *err);
/* The error of a tensor whose type is of use in such a weight alone. */
int tern_hf_fail_raw(const struct tern_file *f, const struct tern_tensor *t, tern_error *err);

/* Gives the configuration and the tensors GGUF's names; needs TERN_HF_ENTRIES free entries in the metadata. */
int tern_hf_translate(struct tern_file *f, struct tern_tensor_list *list, tern_error *err);
#define TERN_HF_ENTRIES 64

struct json_t;
/* The JSON object that a mapped text of at most TERN_JSON_MAX bytes is; `p` lies in the part. */
int tern_json_object(struct json_t **out, const struct tern_part *part, const uint8_t *p, size_t n, tern_error *err);
/* The values of a mapped JSON file as part->meta, with room for `more` entries: "config.rope_scaling.factor" for
 * members of members, lists of equal things as arrays, other lists as members 0, 1 ...; nulls are left out. */
int tern_json_read_meta(struct tern_part *part, const char *prefix, size_t more, struct tern_file_arena *a,
                        tern_error *err);

#endif

/* model/names.h - what the two containers call things; no other folder may include it.
 *
 * Architectures speak GGUF: keys "<arch>.<name>", tensors "blk.%d.<name>".  A Hugging Face directory calls the same
 * things otherwise, and each checkpoint puts the text model at a place of its own ("model.", "language_model.model."
 * ...).  Everything that differs is found here; who reads a value or a tensor does not ask which container it is. */
#ifndef TERN_MODEL_NAMES_H
#define TERN_MODEL_NAMES_H

#include "model/model.h"

/* What stands before all keys of the text model's configuration in a Hugging Face directory. */
const char *tern_config_root(const struct tern_file *f);

struct tern_names {
    const struct tern_file *f;
    const char *body;  /* what stands before "layers.0. ..." and before "embed_tokens.weight" */
    const char *outer; /* what stands before "lm_head.weight" */
};
struct tern_names tern_names_of(const struct tern_file *f);

struct tern_tensor_name {
    char text[192];
    float add; /* the model computes with the file's elements plus this */
};
/* The name of a rule's tensor; layer -1: of a global rule.  False where this container has no such tensor. */
bool tern_names_tensor(const struct tern_names *n, const struct tern_tensor_rule *r, int layer,
                       struct tern_tensor_name *out);

/* Is this tensor of a file no part of the text model: an image tower, a value that can be computed? */
bool tern_names_foreign(const struct tern_names *n, const char *tensor);

/* What says which architecture it is; the text is never NULL on success. */
int tern_names_arch(const struct tern_file *f, struct tern_str *out, tern_error *err);
bool tern_names_is_arch(const struct tern_file *f, const struct tern_arch *a, struct tern_str name);

#endif

/* file/gguf/gguf.h - what the readers of GGUF share. */
#ifndef TERN_FILE_GGUF_GGUF_H
#define TERN_FILE_GGUF_GGUF_H

#include "file/file_impl.h"

/* Header and metadata of one part. */
int tern_gguf_read_meta(struct tern_part *part, struct tern_file_arena *a, tern_error *err);
/* part->n_tensors entries into t[], with data pointers; checks each alone and all of the part against each other. */
int tern_gguf_read_tensors(const struct tern_part *part, struct tern_tensor *t, struct tern_file_arena *a,
                           tern_error *err);

#endif

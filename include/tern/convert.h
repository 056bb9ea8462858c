/* tern/convert.h - GGUF files out of other model files. */
#ifndef TERN_CONVERT_H
#define TERN_CONVERT_H

#include "tern/tern.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tern_convert_params {
    const char *type;           /* "keep" (NULL), "f32", "f16", "bf16", "q8_0", "q4_0", "q4_k" */
    int n_threads;              /* 0: one per physical core; the file does not depend on it */
    bool requantize;            /* weights that are quantised already may be given another type */
    bool no_tokenizer;          /* write none, where GGUF cannot express the directory's */
    tern_progress_fn *progress; /* of chunks; nonzero stops with TERN_ECANCELLED.  NULL: none */
    void *user;
} tern_convert_params;

typedef struct tern_convert_report {
    size_t n_tensors;
    uint64_t bytes;     /* of the new file */
    int chunks;         /* in which the weights were written ... */
    int chunks_kept;    /* ... and how many of them an earlier, interrupted run had written */
    char tokenizer[64]; /* "BPE, pre-tokenizer qwen2", "none" */
    char differs[512];  /* a sentence where llama.cpp would compute something else with the new file; "" */
} tern_convert_report;

/* Writes the model `from` (a GGUF file, any part of a split one, or a directory of safetensors) as the GGUF file `to`.
 * The bytes go to TO.part, which is renamed when it is complete and on the disk.  After an interruption TO.part stays,
 * and the same call goes on where it stopped; what is there is checked first.  report may be NULL. */
TERN_API int tern_convert(const char *from, const char *to, const tern_convert_params *params,
                          tern_convert_report *report, tern_error *err);

#ifdef __cplusplus
}
#endif

#endif

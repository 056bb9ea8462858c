/* file/hf_words.h - the dictionary of hf_words.c; tables end with an entry of nothing. */
#ifndef TERN_FILE_HF_WORDS_H
#define TERN_FILE_HF_WORDS_H

#include <stdbool.h>

/* A key of GGUF without its architecture, and where configurations have it: the first that is there. */
struct tern_hf_key {
    const char *gguf, *hf[4];
};

struct tern_hf_word {
    const char *hf, *gguf; /* #: a number */
};

/* What a class has where its configuration is silent: the arguments' defaults in transformers. */
struct tern_hf_number {
    const char *gguf; /* or the name of a setting that GGUF has in another form */
    double value;
};

struct tern_hf_family {
    const char *model_type, *arch;
    const char *act;                    /* of the feed-forward network; no other is computed */
    const struct tern_hf_word *modules; /* called otherwise than the plain ones, or NULL */
    const struct tern_hf_number *silent;
    bool norms_from_1; /* norms hold w where the model multiplies by 1+w */
    bool windows;      /* layers with and without a sliding window may stand in any order */
    bool experts;
};

extern const struct tern_hf_key tern_hf_keys[];
extern const struct tern_hf_word tern_hf_modules[];     /* of all families */
extern const struct tern_hf_word tern_hf_whole_names[]; /* what has no ".weight" at its end */
extern const struct tern_hf_family tern_hf_families[];

#endif

/* file/hf_family.h - what an architecture says of the Hugging Face checkpoints that are its own: their model_type and
 * the words that are theirs alone.  hf/keys.c has the words of all. */
#ifndef TERN_FILE_HF_FAMILY_H
#define TERN_FILE_HF_FAMILY_H

#include <stdbool.h>
#include "base/err.h"

struct tern_hf_word {
    const char *hf, *gguf; /* #: a number */
};

/* What a class has where its configuration is silent: the arguments' defaults in transformers. */
struct tern_hf_number {
    const char *gguf; /* or the name of a setting that GGUF has in another form */
    double value;
};

struct tern_hf_words;

/* A layer for multi-token prediction behind the others.  What stands in it is called as in other layers. */
struct tern_hf_mtp {
    const char *layers;               /* the setting that counts such layers: one is read */
    const char *layer;                /* before the names of what other layers have, too */
    const char *needs;                /* a tensor without which there is none */
    const struct tern_hf_word *whole; /* what it has besides, by whole names */
};

/* Tables end with an entry of nothing. */
struct tern_hf_family {
    const char *model_type;
    const char *act;                    /* of the feed-forward network; no other is computed */
    const struct tern_hf_word *modules; /* called otherwise than the plain ones, or NULL */
    const struct tern_hf_number *silent;
    const char *const *elsewhere; /* keys that `more` says instead of the general table; ends with NULL */
    int (*more)(const struct tern_hf_words *w, tern_error *err); /* what it says in a way of its own, or NULL */
    const struct tern_hf_mtp *mtp;                               /* NULL: tensors of such layers are left out */
    bool norms_from_1;                                           /* norms hold w where the model multiplies by 1+w */
    bool windows; /* layers with and without a sliding window may stand in any order */
    bool experts;
    bool experts_as_weighed;   /* weights of experts are divided by their sum only where the configuration says so */
    bool score_cap, logit_cap; /* soft caps that it knows */
    bool mscale;               /* YaRN may have mscale and mscale_all_dim */
};

extern const struct tern_hf_number tern_hf_eps5[], tern_hf_eps6[]; /* the norm's epsilon alone: 1e-5, 1e-6 */

/* Family i of all that are known, and its architecture; NULL past the last.  Architectures list their own, so this is
 * defined where they are (model/arch). */
const struct tern_hf_family *tern_hf_family_at(int i, const char **arch);

/* What some say in a way of their own (hf/special.c). */
int tern_hf_smollm3(const struct tern_hf_words *w, tern_error *err);
int tern_hf_llama4(const struct tern_hf_words *w, tern_error *err);
int tern_hf_gemma4(const struct tern_hf_words *w, tern_error *err);
int tern_hf_latent(const struct tern_hf_words *w, tern_error *err);
int tern_hf_deepseek4(const struct tern_hf_words *w, tern_error *err);
int tern_hf_qwen35(const struct tern_hf_words *w, tern_error *err);

#endif

/* file/hf/words.h - the dictionary of words.c; tables end with an entry of nothing. */
#ifndef TERN_FILE_HF_WORDS_H
#define TERN_FILE_HF_WORDS_H

#include <math.h>
#include <stdio.h>

#include "file/hf/hf.h"
#include "file/hf_family.h"

/* A key of GGUF without its architecture, and where configurations have it: the first that is there. */
struct tern_hf_key {
    const char *gguf, *hf[4];
};

extern const struct tern_hf_key tern_hf_keys[];
extern const struct tern_hf_word tern_hf_modules[];     /* of all families */
extern const struct tern_hf_word tern_hf_whole_names[]; /* what has no ".weight" at its end */

/* ---- configurations ---- */

struct tern_hf_words {
    const struct tern_file *file;
    struct tern_part *part; /* config.json */
    struct tern_file_arena *arena;
    const char *root; /* models that see images keep the text model's configuration apart */
    const struct tern_hf_family *family;
    const char *arch;
    bool mtp;    /* the layer for multi-token prediction is there, and read */
    bool turned; /* mlx-lm wrote it: convolutions are [channels][width][1], and norms hold 1+w */
};

/* What the configuration says under a name of its own; NULL: nothing. */
static inline const struct tern_meta *said(const struct tern_hf_words *w, const char *name)
{
    char key[160];
    (void)snprintf(key, sizeof key, "%s%s", w->root, name);
    return tern_meta_table_find(&w->part->meta, key);
}

static inline double number_of(const struct tern_meta *m)
{
    return m && (m->type == TERN_META_INT || m->type == TERN_META_FLOAT) ? m->f : 0;
}

static inline bool is_text(const struct tern_str *s, const char *text)
{
    return s->n == strlen(text) && memcmp(s->p, text, s->n) == 0;
}

static inline struct tern_meta text_meta(const char *text)
{
    return (struct tern_meta){.type = TERN_META_STRING, .s = {text, strlen(text)}, .file_offset = TERN_NO_OFFSET};
}

static inline struct tern_meta number_meta(double v)
{
    bool whole = v == floor(v) && fabs(v) < 1e15;
    return (struct tern_meta){.type = whole ? TERN_META_INT : TERN_META_FLOAT,
                              .i = whole ? (int64_t)v : 0,
                              .f = v,
                              .file_offset = TERN_NO_OFFSET};
}

/* The class's default, or NULL. */
static inline const struct tern_hf_number *silent(const struct tern_hf_words *w, const char *name)
{
    for (const struct tern_hf_number *d = w->family->silent; d->gguf; d++)
        if (strcmp(d->gguf, name) == 0)
            return d;
    return NULL;
}

/* err = "DIR/config.json: metadata key "x": WHAT" */
int tern_hf_fail(const struct tern_hf_words *w, const struct tern_meta *m, int code, tern_error *err, const char *what);
/* ... the value "s" is not supported */
int tern_hf_fail_text(const struct tern_hf_words *w, const struct tern_meta *m, const struct tern_str *s,
                      tern_error *err);
/* Adds an entry under the architecture's key, or under `name` itself when that has an architecture. */
int tern_hf_put(const struct tern_hf_words *w, const char *name, struct tern_meta m, tern_error *err);
/* Which layers have a sliding window, of all that say so: *windows of n booleans, or NULL without a list. */
int tern_hf_layer_types(const struct tern_hf_words *w, const struct tern_meta *types, int64_t **windows,
                        size_t *n_windows, tern_error *err);

/* What stands beside rope_type. */
const struct tern_meta *tern_hf_said_of_rope(const struct tern_hf_words *w, const char *name);

/* Do those layers of gemma4 have values that the configuration gives them?  To the loader a missing tensor says that
 * keys serve. */
int tern_hf_check_values(const struct tern_hf_words *w, const struct tern_tensor_list *list, tern_error *err);
/* A tensor by the name that it has by now, or NULL. */
const struct tern_tensor *tern_hf_find(const struct tern_tensor_list *list, const char *name);
/* Dims of the parts of a head in kv_b_proj; -1: not those of any model. */
int tern_hf_latent_heads(const struct tern_hf_words *w, int64_t *nope, int64_t *value);
/* Pairs of a head whose frequencies lie as if all were rotated, of which the first are; 0: nothing of the kind is said.
 */
int64_t tern_hf_proportional(const struct tern_hf_words *w, int64_t *rotated);

#endif

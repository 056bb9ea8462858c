/* text/tok/json.h - what the files that read a tokenizer.json share; included by json*.c and names.c only. */
#ifndef TERN_TEXT_TOK_JSON_H
#define TERN_TEXT_TOK_JSON_H

#include <jansson.h>

#include "text/tok/tok.h"

enum { TERN_TOK_MAX_REPLACEMENTS = 4 };

/* How a piece becomes the bytes that it stands for. */
struct tern_tok_decoder {
    bool alphabet, byte_fallback, fused;
    struct {
        const char *from, *to;
        size_t n_from, n_to;
    } replace[TERN_TOK_MAX_REPLACEMENTS];
    int n_replace;
};

struct tern_tok_json {
    const char *name;
    struct tern_tokenizer *t;
    const json_t *root, *config, *generation, *model; /* absent: NULL */
    bool byte_level;                                  /* the pre-tokenizer has a ByteLevel */
    struct tern_tok_decoder decoder;
};

/* json_object_get for an object, a null or NULL; the value null counts as absent. */
const json_t *tern_tok_json_get(const json_t *object, const char *key);
/* The value of a flag, or `def`. */
bool tern_tok_json_flag(const json_t *object, const char *key, bool def);
/* "type" of an object, "" when there is none. */
const char *tern_tok_json_type(const json_t *object);

/* From the file's objects (json_steps.c). */
int tern_tok_json_normalizer(struct tern_tok_json *j, const json_t *object, tern_error *err);
int tern_tok_json_pre_tokenizer(struct tern_tok_json *j, const json_t *object, tern_error *err);
/* Reads only; the ids of post-processors are taken once there is a vocabulary. */
int tern_tok_json_decoder(struct tern_tok_json *j, const json_t *object, tern_error *err);
int tern_tok_json_post_processor(struct tern_tok_json *j, const json_t *object, tern_error *err);

/* t->names out of a tokenizer_config.json, NULL if there is none (names.c). */
int tern_tok_names_from_config(struct tern_tokenizer *t, const json_t *config, tern_error *err);

#endif

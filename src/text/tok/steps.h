/* text/tok/steps.h - what happens to text in front of the model: normalizers and pre-tokenizers (pretok.c, pieces.c,
 * normalize.c, charsmap.c). */
#ifndef TERN_TEXT_TOK_STEPS_H
#define TERN_TEXT_TOK_STEPS_H

#include "text/tok/regex.h"

/* What becomes of the matches of a pattern, as Hugging Face names it. */
enum tern_tok_behavior {
    TERN_TOK_REMOVED,
    TERN_TOK_ISOLATED,
    TERN_TOK_MERGED_WITH_PREVIOUS,
    TERN_TOK_MERGED_WITH_NEXT,
    TERN_TOK_CONTIGUOUS, /* a run of matches is one */
};

enum tern_tok_step_kind {
    /* normalizers: one text becomes another */
    TERN_TOK_NFC,
    TERN_TOK_NFD,
    TERN_TOK_NFKC,
    TERN_TOK_NFKD,
    TERN_TOK_LOWERCASE,
    TERN_TOK_STRIP_ACCENTS,
    TERN_TOK_STRIP,    /* white space, `left` and `right` */
    TERN_TOK_PREPEND,  /* `text`, unless there is nothing to put it before */
    TERN_TOK_REPLACE,  /* what `re` matches by `text` */
    TERN_TOK_CHARSMAP, /* by the table `map` */
    /* pre-tokenizers: a piece becomes pieces */
    TERN_TOK_SPLIT,        /* at `re` */
    TERN_TOK_MARK,         /* spaces by `text`, which may also be put in front */
    TERN_TOK_PREFIX_SPACE, /* a space in front, unless there is one */
    TERN_TOK_ALPHABET,     /* bytes by the byte alphabet: only where further steps look at it */
};

enum tern_tok_prefix { TERN_TOK_PREFIX_NEVER, TERN_TOK_PREFIX_FIRST, TERN_TOK_PREFIX_ALWAYS };

struct tern_tok_step {
    enum tern_tok_step_kind kind;
    struct tern_tok_regex *re;
    struct tern_tok_charsmap *map;
    enum tern_tok_behavior behavior;
    bool invert; /* what `re` does not match are the matches */
    bool left, right;
    enum tern_tok_prefix prefix;
    struct tern_buf text;
};

enum { TERN_TOK_MAX_STEPS = 24 };

struct tern_tok_steps {
    struct tern_tok_step step[TERN_TOK_MAX_STEPS];
    int n;
};

/* A table of replacements in base64 (charsmap.c). */
struct tern_tok_charsmap;
int tern_tok_charsmap_new(struct tern_tok_charsmap **out, const char *base64, size_t n, tern_error *err);
void tern_tok_charsmap_free(struct tern_tok_charsmap *m);
int tern_tok_charsmap_apply(const struct tern_tok_charsmap *m, const char *p, size_t n, struct tern_buf *out,
                            tern_error *err);

/* Appends well-formed text after all steps to out.  behind_broken: nothing is put in front. */
int tern_tok_normalize(const struct tern_tok_steps *steps, struct tern_tok_regex_run *run, bool behind_broken,
                       const char *p, size_t n, struct tern_buf *out, tern_error *err);

/* Adds a step of that kind, otherwise zero; TERN_ELIMIT when there are too many. */
int tern_tok_steps_add(struct tern_tok_steps *s, enum tern_tok_step_kind kind, struct tern_tok_step **out,
                       tern_error *err);
int tern_tok_steps_split(struct tern_tok_steps *s, const char *pattern, enum tern_tok_behavior behavior, bool invert,
                         tern_error *err);
void tern_tok_steps_clear(struct tern_tok_steps *s);

/* The pre-tokenizers that GGUF files name (pretok.def). */
enum {
    TERN_PRETOK_IGNORE_MERGES = 1,
    TERN_PRETOK_NFC = 2,
    TERN_PRETOK_BOS = 4,
};

enum { TERN_PRETOK_MAX_PATTERNS = 6 };

struct tern_pretok_info {
    const char *names; /* separated by spaces */
    unsigned flags;
    const char *patterns[TERN_PRETOK_MAX_PATTERNS + 1];
};

extern const char tern_pretok_gpt2[]; /* also what the pre-tokenizer "ByteLevel" of a tokenizer.json cuts with */

const struct tern_pretok_info *tern_pretok_find(const char *name, size_t n); /* NULL when unknown */
const struct tern_pretok_info *tern_pretok_at(size_t i);                     /* NULL behind the last one */
/* Its cuts: every pattern isolates its matches in what the ones before it left. */
int tern_pretok_steps(const struct tern_pretok_info *info, struct tern_tok_steps *s, tern_error *err);

#endif

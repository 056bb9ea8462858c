/* text/tok/regex.h - regular expressions of tokenizers, with limits (regex.c). */
#ifndef TERN_TEXT_TOK_REGEX_H
#define TERN_TEXT_TOK_REGEX_H

#include "text/text.h"

struct tern_tok_regex;

/* Compiles a pattern in Oniguruma's notation, or a text to be found as it is. */
int tern_tok_regex_new(struct tern_tok_regex **out, const char *pattern, size_t n, tern_error *err);
int tern_tok_regex_literal(struct tern_tok_regex **out, const char *text, size_t n, tern_error *err);
void tern_tok_regex_free(struct tern_tok_regex *re);

/* The mutable part of matching: one per call, for all patterns. */
struct tern_tok_regex_run {
    void *match;
    void *limits;
    size_t window; /* bytes that a search may look at for nothing */
    size_t left;   /* bytes that searches may look at beyond that, all together */
};
/* n: bytes of the text that the call is about. */
int tern_tok_regex_begin(struct tern_tok_regex_run *run, size_t n, tern_error *err);
void tern_tok_regex_end(struct tern_tok_regex_run *run);

struct tern_tok_range {
    size_t begin, end;
};
/* 1 and the first match at or behind `from` in text[0..n) of valid UTF-8; 0 and n, n when there is none. */
int tern_tok_regex_find(const struct tern_tok_regex *re, struct tern_tok_regex_run *run, const char *text, size_t n,
                        size_t from, struct tern_tok_range *found, tern_error *err);

/* All matches, one per call, as Oniguruma's iterator gives them: a match of nothing is none right behind another match,
 * and the search goes on behind the character that it stands in front of. */
struct tern_tok_walk {
    size_t from, end; /* where to search; where the last match ended */
    bool any;
};
int tern_tok_regex_walk(const struct tern_tok_regex *re, struct tern_tok_regex_run *run, const char *text, size_t n,
                        struct tern_tok_walk *walk, struct tern_tok_range *found, tern_error *err);

#endif

/* text/tok/encode.h - one call of the encoder (encode.c, pieces.c, merge.c, unigram.c). */
#ifndef TERN_TEXT_TOK_ENCODE_H
#define TERN_TEXT_TOK_ENCODE_H

#include "text/tok/tok.h"

struct tern_tok_sym {
    int32_t prev, next; /* -1: none */
    int32_t id;         /* -1: text without a token */
    int32_t pair_id;    /* token made with the right neighbour ... */
    uint32_t pair_rank; /* ... and its rank, or TERN_TOK_NO_RANK */
    uint32_t begin;     /* of its text in the word */
};

/* Unigram: the last piece of the best way to a position. */
struct tern_tok_best {
    double score;
    uint32_t begin; /* of that piece */
    uint32_t next;  /* on the best way to the end of the word: where the piece that begins here ends */
    int32_t id;     /* -1: no way so far; TERN_TOK_NO_TOKEN: an unknown character */
};

enum { TERN_TOK_NO_TOKEN = -3 }; /* a symbol that is known to have no token */

/* A word seen earlier in the same call: where its text is and where its ids went. */
struct tern_tok_memo {
    uint32_t hash;
    uint32_t text;
    uint32_t ids;
    uint8_t n_text; /* 0: free */
    uint8_t n_ids;
    uint8_t source;
};

enum {
    TERN_TOK_SOURCE_TEXT, /* the caller's text */
    TERN_TOK_SOURCE_COPY, /* tern_tok_work.copy */
};

enum { TERN_TOK_MEMO_SIZE = 4096 }; /* a power of two */

struct tern_tok_work {
    const struct tern_tokenizer *t;
    struct tern_ids *ids;
    const char *text;
    struct tern_buf copy; /* fragments that had to be rewritten; only ever appended to, so offsets stay valid */
    struct tern_tok_sym *sym;
    size_t cap_sym;
    uint64_t *heap;
    size_t cap_heap;
    struct tern_tok_memo *memo; /* NULL where it does not pay: short texts; unknown tokens that depend on context */
    struct tern_tok_regex_run run;
    struct tern_ids *lengths;   /* instead of ids: how many bytes each word has */
    bool after_unknown;         /* the id added last stands for unknown text */
    bool owes_unknown;          /* characters without a token: theirs comes before the next plain token of the word */
    bool after_added;           /* at the start or behind an added token: where a prefix space belongs */
    bool at_start;              /* nothing of the text lies in front of what is at hand */
    bool behind_broken;         /* behind a byte that is not UTF-8: nothing is put in front of such a piece */
    struct tern_tok_best *best; /* Unigram: the best way to each position of a word */
    size_t cap_best;
};

static inline const char *tern_tok_source(const struct tern_tok_work *w, int source)
{
    return source == TERN_TOK_SOURCE_TEXT ? w->text : w->copy.p;
}

/* Sends [begin, end) of the caller's text or of w->copy through the pre-tokenizer's steps k and up, then each word to
 * tern_tok_word. */
int tern_tok_pieces(struct tern_tok_work *w, int k, int source, size_t begin, size_t end, tern_error *err);

/* Appends the ids of one word: n > 0 bytes at offset `at` of the caller's text or of w->copy. */
int tern_tok_word(struct tern_tok_work *w, int source, size_t at, size_t n, tern_error *err);
/* The same for Unigram (unigram.c). */
int tern_tok_unigram(struct tern_tok_work *w, const char *word, size_t n, tern_error *err);
/* Appends what text without a token becomes: bytes, else the unknown token. */
int tern_tok_emit_unknown(struct tern_tok_work *w, const char *p, size_t n, tern_error *err);
/* The token of a character or a word, when text may become it; else -1. */
int32_t tern_tok_plain(const struct tern_tokenizer *t, const char *p, size_t n);

/* Appends the ids of text; spans cover it without gaps.  No BOS or EOS.  borders (nullable): how many ids there are
 * behind each control token, as far as the first one behind the last user span. */
int tern_tok_encode(const struct tern_tokenizer *t, const char *text, size_t n, const struct tern_span *spans,
                    size_t n_spans, struct tern_ids *ids, struct tern_ids *borders, tern_error *err);
/* Puts BOS, or whatever the rules ask for, in front of what was added since ids->len was `first`, unless the first of
 * it is there already. */
int tern_tok_add_bos(const struct tern_tokenizer *t, struct tern_ids *ids, size_t first, tern_error *err);

/* The bytes that one token stands for when decoding; n 0 for control tokens unless `special`. */
const char *tern_tok_view(const struct tern_tokenizer *t, int32_t id, bool special, size_t *n);

static inline bool tern_tok_is_control_type(uint8_t type)
{
    return type == TERN_TOK_CONTROL || type == TERN_TOK_UNKNOWN;
}

#endif

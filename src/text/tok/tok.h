/* text/tok/tok.h - the inside of a tokenizer; for this folder alone.
 *
 * Mental model.  Encoding is three nested cuts:
 *   1. added tokens (control, user-defined) are found in the raw text by a trie, leftmost first, longest first; what
 *      lies between is normalized, and added tokens that want normalized text are found in that
 *   2. the rest is cut into words: by the pre-tokenizer's steps, or before spaces (score BPE; only where no piece of
 * the vocabulary could cross the cut)
 *   3. inside one word neighbours are merged, lowest rank first, leftmost first among equals; Unigram instead takes the
 *      pieces with the greatest sum of scores
 * The kinds of BPE differ in the first symbols (bytes or characters) and in how a pair is looked up: by the pair of ids
 * in the merge list, or (score BPE) by the joined text in the vocabulary, where the rank is the position in descending
 * order of score.
 *
 * The vocabulary holds two strings per id: `piece`, the file's own spelling, and `bytes`, what the token stands for
 * (byte alphabet undone, U+2581 as a space, <0xXX> as a byte).  Byte-level and score BPE work on `bytes` throughout, so
 * text need not be escaped; for score BPE a literal U+2581 in the text is turned into a space first, because the
 * vocabulary cannot tell them apart.  Character BPE and Unigram work on `piece`: their normalizer escapes the text.
 *
 * Rules where files leave room:
 *   - a byte that byte-level BPE has no token for yields the unknown token when that is of type "unknown", else nothing
 *   - a merge that would make a control token is dropped, so that plain text never becomes one
 *   - tokens of type "unused" are never produced
 *
 * Everything in struct tern_tokenizer is read-only after load.  struct tern_tok_work is the scratch of one call. */
#ifndef TERN_TEXT_TOK_TOK_H
#define TERN_TEXT_TOK_TOK_H

#include "base/mem.h"
#include "base/utf8.h"
#include "text/text.h"
#include "text/tok/steps.h"

enum {
    TERN_TOK_MAX_VOCAB = 1 << 24,
    TERN_TOK_MAX_PIECE = 4096,   /* bytes of one token; the longest seen in real files is 1024 */
    TERN_TOK_MAX_ADDED = 512,    /* bytes of one added token: bounds the work per byte of text in the trie */
    TERN_TOK_MAX_TEXT = 1 << 30, /* bytes of one text: symbol positions are 32 bits */
};

#define TERN_TOK_NO_RANK UINT32_MAX

/* tokenizer.ggml.token_type */
enum tern_tok_type {
    TERN_TOK_NORMAL = 1,
    TERN_TOK_UNKNOWN = 2,
    TERN_TOK_CONTROL = 3,
    TERN_TOK_USER = 4,
    TERN_TOK_UNUSED = 5,
    TERN_TOK_BYTE = 6,
};

/* One string per id, each followed by a NUL: string i is data[off[i] .. off[i + 1] - 1). */
struct tern_tok_strings {
    char *data;
    uint32_t *off;
};

static inline const char *tern_tok_string(const struct tern_tok_strings *s, int32_t id, size_t *n)
{
    *n = s->off[id + 1] - s->off[id] - 1;
    return s->data + s->off[id];
}

/* Open addressing, string -> id.  A slot is 0 or (upper half of the hash) << 32 | id + 1. */
struct tern_tok_map {
    uint64_t *slot;
    size_t mask;
};

struct tern_tok_merge_rule {
    int32_t left, right; /* left < 0: free slot */
    uint32_t rank;
    int32_t id;
};

/* Trie over the bytes of added tokens; children are linked through `sibling`, 0 ends a list (node 0 is not used). */
struct tern_tok_node {
    int32_t child, sibling;
    int32_t id; /* token that ends here, or -1 */
    uint8_t byte;
};

struct tern_tok_trie {
    int32_t first[256]; /* node of a token's first byte, or 0 */
    struct tern_tok_node *node;
    size_t n, cap;
};

enum tern_tok_algo {
    TERN_TOK_BYTE_BPE,  /* merges of bytes, by the merge list */
    TERN_TOK_CHAR_BPE,  /* merges of characters, by the merge list */
    TERN_TOK_SCORE_BPE, /* merges of characters, by the score of what they make */
    TERN_TOK_UNIGRAM,   /* the pieces with the greatest sum of scores */
};

enum { TERN_TOK_MAX_AROUND = 8 }; /* tokens that are put in front of a text, or behind it */

/* How an added token is found, beyond its text. */
enum {
    TERN_TOK_WORD = 1,   /* only between characters that are not part of a word */
    TERN_TOK_LSTRIP = 2, /* with the white space before it */
    TERN_TOK_RSTRIP = 4, /* with the white space behind it */
    TERN_TOK_ALONE = 8,  /* in this way alone: it is no piece of the model's vocabulary */
};

struct tern_tokenizer {
    char kind[64];
    enum tern_tok_algo algo;
    bool add_space_prefix; /* score BPE */
    bool drop_space;       /* decoding drops one space in front of the text */
    bool ignore_merges;    /* a word that is a token is taken whole */
    bool nfc;              /* the only normalizer is NFC */
    bool mapped;           /* words come in the byte alphabet (TERN_TOK_ALPHABET) */
    bool byte_fallback;    /* unknown characters become byte tokens, where there are all of them */
    bool fuse_unknown;     /* a run of unknown text is one unknown token */
    int n_vocab;
    int32_t bos, eos, unknown;
    int32_t front[TERN_TOK_MAX_AROUND], back[TERN_TOK_MAX_AROUND]; /* what TERN_TOK_BOS_EOS adds */
    int n_front, n_back;
    char *names;   /* tern_tokenizer_names */
    uint8_t *type; /* [n_vocab] enum tern_tok_type */
    bool *eog;     /* [n_vocab] */
    uint8_t *find; /* [n_vocab] TERN_TOK_WORD ...; NULL: all 0 */
    struct tern_tok_strings piece, bytes;
    struct tern_tok_map by_piece;      /* every token */
    struct tern_tok_map by_bytes;      /* normal tokens; empty where the algorithm does not ask */
    int32_t byte_id[256];              /* token of a single byte, or -1 */
    bool all_bytes;                    /* byte_id has no -1 */
    struct tern_tok_trie added;        /* looked for in the raw text */
    struct tern_tok_trie added_normal; /* looked for in normalized text */
    struct tern_tok_steps norm, pre;
    char alphabet[256][4]; /* where mapped */
    /* byte-level and character BPE */
    struct tern_tok_merge_rule *rules;
    size_t rule_mask;
    /* score BPE */
    uint32_t *rank;      /* [n_vocab] */
    size_t max_bytes;    /* longest normal token */
    bool cut_after[256]; /* a space may be cut off what ends in this byte: no token has it followed by a space */
    /* Unigram */
    double *score; /* [n_vocab] */
    double unknown_score;
    struct tern_tok_trie pieces;
};

/* ---- what the loaders share (build.c) ---------------------------------------------------------------------------- */

/* Found by its text before anything is cut or merged. */
bool tern_tok_is_added(uint8_t type);

/* The character that the byte alphabet of GPT-2 writes for each byte: itself where that is printable, else U+0100 and
 * up in order of the bytes.  of[cp] is the byte, or -1. */
enum { TERN_TOK_ALPHABET_END = 0x100 + 68 };
void tern_tok_byte_alphabet(int16_t of[TERN_TOK_ALPHABET_END], char text[256][4]);
/* Writes the bytes behind a piece in the byte alphabet; returns their number, or n with the piece itself when it is
 * not written in that alphabet. */
size_t tern_tok_undo_alphabet(const int16_t of[TERN_TOK_ALPHABET_END], const char *p, size_t n, char *out);
/* Writes the piece with U+2581 as a space. */
size_t tern_tok_undo_marks(const char *p, size_t n, char *out);
/* "<0x0A>" -> 10, anything else -> -1. */
int tern_tok_byte_of_piece(const char *p, size_t n);

/* May plain text become the token?  User-defined ones are pieces too (runs of spaces), but those of TERN_TOK_ALONE. */
bool tern_tok_is_piece(const struct tern_tokenizer *t, int32_t id);
/* Fills byte_id from the tokens of that type that stand for one byte. */
void tern_tok_find_bytes(struct tern_tokenizer *t, enum tern_tok_type type);
/* Fills by_bytes and max_bytes. */
int tern_tok_index_bytes(struct tern_tokenizer *t, tern_error *err);
/* Control tokens whose text ends a turn in some family of models end a generation. */
void tern_tok_find_ends(struct tern_tokenizer *t);
/* Bytes without a token become the unknown token, where that is of type "unknown". */
void tern_tok_unknown_bytes(struct tern_tokenizer *t);
/* Adds a merge, given as two pieces or as a text with a space between them; a merge that would take or make a control
 * token is left out.  False when it is not two tokens that make a third. */
bool tern_tok_add_merge(struct tern_tokenizer *t, const char *left, size_t n_left, const char *right, size_t n_right,
                        uint32_t rank);
bool tern_tok_add_merge_text(struct tern_tokenizer *t, const char *p, size_t n, uint32_t rank);

/* The scores with which score BPE does what t, character BPE, does with its merges.  *same false: there are none.
 * scores: [n_vocab] (scores.c). */
int tern_tok_scores(const struct tern_tokenizer *t, float *scores, bool *same, tern_error *err);

/* t->names out of a GGUF file, and into one (names.c). */
int tern_tok_names_from_file(struct tern_tokenizer *t, const struct tern_file *f, tern_error *err);
int tern_tok_names_to_gguf(struct tern_gguf *g, const struct tern_tokenizer *t, tern_error *err);

/* ---- vocabulary (vocab.c) ---------------------------------------------------------------------------------------- */

/* Room for n strings that together have n_bytes bytes. */
int tern_tok_strings_init(struct tern_tok_strings *s, size_t n, size_t n_bytes, tern_error *err);
void tern_tok_strings_set(struct tern_tok_strings *s, int32_t id, const char *p, size_t n); /* in ascending order */
void tern_tok_strings_clear(struct tern_tok_strings *s);

int tern_tok_map_init(struct tern_tok_map *m, size_t n_max, tern_error *err);
/* Keeps the first id of equal strings. */
void tern_tok_map_add(struct tern_tok_map *m, const struct tern_tok_strings *s, int32_t id);
int32_t tern_tok_map_get(const struct tern_tok_map *m, const struct tern_tok_strings *s, const char *p, size_t n);
void tern_tok_map_clear(struct tern_tok_map *m);

int tern_tok_rules_init(struct tern_tokenizer *t, size_t n_max, tern_error *err);
/* Keeps the first of equal pairs. */
void tern_tok_rules_add(struct tern_tokenizer *t, const struct tern_tok_merge_rule *rule);

static inline size_t tern_tok_rule_slot(const struct tern_tokenizer *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key *= 0x9E3779B97F4A7C15u;
    return (size_t)(key >> 32) & t->rule_mask;
}

/* ---- added tokens (added.c) -------------------------------------------------------------------------------------- */

int tern_tok_trie_add(struct tern_tok_trie *trie, const char *p, size_t n, int32_t id, tern_error *err);
void tern_tok_trie_clear(struct tern_tok_trie *trie);

struct tern_tok_match {
    size_t begin, end;
    int32_t id; /* -1: none; begin = end = n */
};

/* Walks a text that consists of spans.  A control token is found only where all of it lies in template text. */
struct tern_tok_scan {
    const struct tern_tokenizer *t;
    const struct tern_tok_trie *trie;
    const char *text;
    size_t n;
    const struct tern_span *spans;
    size_t n_spans;
    size_t span;  /* index of the span at the position last looked at */
    size_t limit; /* control tokens may reach up to here; at most `begin` of a user span */
    size_t next;  /* where the next token is looked for */
};

/* The next token; `from` is where the last one ended.  White space that one took with it on its right may itself be a
 * token, which then begins before `from`: so Hugging Face has it. */
struct tern_tok_match tern_tok_scan_next(struct tern_tok_scan *s, size_t from);

/* ---- UTF-8 and normalization (utf8.c, nfc.c) --------------------------------------------------------------------- */

/* True when text (well-formed) certainly is in NFC; false says nothing. */
bool tern_nfc_quick(const char *p, size_t n);
/* Appends the NFC of well-formed text to out.  Time is linear. */
int tern_nfc(const char *p, size_t n, struct tern_buf *out, tern_error *err);
/* The same for any form: of TERN_TOK_NFC, NFD, NFKC, NFKD. */
int tern_normal_form(enum tern_tok_step_kind form, const char *p, size_t n, struct tern_buf *out, tern_error *err);
/* Unicode's White_Space; the \w of the regular expressions. */
bool tern_tok_is_space(uint32_t cp);
bool tern_tok_is_word(uint32_t cp);

#endif

/* text/tok_impl.h - the inside of a tokenizer; included by tok_*.c, pretok.c, tokenizer.c and detok.c only.
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
#ifndef TERN_TEXT_TOK_IMPL_H
#define TERN_TEXT_TOK_IMPL_H

#include "base/mem.h"
#include "text/text.h"

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

/* ---- regular expressions (tok_regex.c) ---------------------------------------------------------------------- */

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

/* ---- steps in front of the model (pretok.c, tok_pieces.c, tok_normalize.c) ----------------------------------- */

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

/* A table of replacements in base64 (tok_charsmap.c). */
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

/* ---- what the loaders share (tok_build.c) -------------------------------------------------------------------- */

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
 * scores: [n_vocab] (tok_scores.c). */
int tern_tok_scores(const struct tern_tokenizer *t, float *scores, bool *same, tern_error *err);

/* ---- vocabulary (tok_vocab.c) ------------------------------------------------------------------------------- */

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

/* ---- added tokens (tok_added.c) ----------------------------------------------------------------------------- */

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
};

struct tern_tok_match tern_tok_scan_next(struct tern_tok_scan *s, size_t from);

/* ---- UTF-8 and normalization (tok_utf8.c, tok_nfc.c) -------------------------------------------------------- */

/* Length of the well-formed character at p (n > 0 bytes left), 0 when there is none; *cp is its code point. */
int tern_utf8_decode(const char *p, size_t n, uint32_t *cp);
/* Bytes that p[0..n), n >= 1, lacks to be one well-formed character; -1 when no character begins like this. */
int tern_utf8_missing(const char *p, int n);
/* Number of leading bytes of p[0..n) that are well-formed UTF-8. */
size_t tern_utf8_valid(const char *p, size_t n);

/* True when text (well-formed) certainly is in NFC; false says nothing. */
bool tern_nfc_quick(const char *p, size_t n);
/* Appends the NFC of well-formed text to out.  Time is linear. */
int tern_nfc(const char *p, size_t n, struct tern_buf *out, tern_error *err);
/* The same for any form: of TERN_TOK_NFC, NFD, NFKC, NFKD. */
int tern_normal_form(enum tern_tok_step_kind form, const char *p, size_t n, struct tern_buf *out, tern_error *err);
/* Unicode's White_Space; the \w of the regular expressions. */
bool tern_tok_is_space(uint32_t cp);
bool tern_tok_is_word(uint32_t cp);

/* ---- encoding (tok_merge.c, tok_encode.c) ------------------------------------------------------------------- */

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
    bool after_added;           /* at the start or behind an added token: where a prefix space belongs */
    bool at_start;              /* nothing was encoded so far */
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
/* The same for Unigram (tok_unigram.c). */
int tern_tok_unigram(struct tern_tok_work *w, const char *word, size_t n, tern_error *err);
/* Appends what text without a token becomes: bytes, else the unknown token. */
int tern_tok_emit_unknown(struct tern_tok_work *w, const char *p, size_t n, tern_error *err);
/* The token of a character or a word, when text may become it; else -1. */
int32_t tern_tok_plain(const struct tern_tokenizer *t, const char *p, size_t n);

/* Appends the ids of text; spans cover it without gaps.  No BOS or EOS. */
int tern_tok_encode(const struct tern_tokenizer *t, const char *text, size_t n, const struct tern_span *spans,
                    size_t n_spans, struct tern_ids *ids, tern_error *err);
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

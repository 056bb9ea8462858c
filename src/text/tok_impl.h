/* text/tok_impl.h - the inside of a tokenizer; included by tok_*.c, pretok.c and detok.c only.
 *
 * Mental model.  Encoding is three nested cuts:
 *   1. added tokens (control, user-defined) are found in the raw text by a trie, leftmost first, longest first
 *   2. what lies between is cut into words: by the pre-tokenizer's regex (byte-level BPE), or before spaces
 *      (score BPE; only where no piece of the vocabulary could cross the cut)
 *   3. inside one word neighbours are merged, lowest rank first, leftmost first among equals
 * Both algorithms share step 3.  They differ in the first symbols (bytes or characters) and in how a pair is looked up:
 * byte-level BPE by the pair of ids in the merge list, score BPE by the joined text in the vocabulary, where the rank
 * is the position in descending order of score.
 *
 * The vocabulary holds two strings per id: `piece`, the file's own spelling, and `bytes`, what the token stands for
 * (byte alphabet undone, U+2581 as a space, <0xXX> as a byte).  Score BPE works on `bytes` throughout, so text need not
 * be escaped; a literal U+2581 in the text is turned into a space first, because the vocabulary cannot tell them apart.
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

struct tern_pretok;

struct tern_tokenizer {
    char kind[64];
    bool spm; /* score BPE; otherwise byte-level BPE */
    bool add_bos, add_eos, add_space_prefix;
    bool ignore_merges; /* a word that is a token is taken whole */
    bool nfc;
    int n_vocab;
    int32_t bos, eos, unknown;
    uint8_t *type; /* [n_vocab] enum tern_tok_type */
    bool *eog;     /* [n_vocab] */
    struct tern_tok_strings piece, bytes;
    struct tern_tok_map by_piece; /* every token */
    struct tern_tok_map by_bytes; /* normal tokens; empty where the algorithm does not ask */
    int32_t byte_id[256];         /* token of a single byte, or -1 */
    bool all_bytes;               /* byte_id has no -1 */
    struct tern_tok_trie added;
    /* byte-level BPE */
    struct tern_pretok *pretok;
    struct tern_tok_merge_rule *rules;
    size_t rule_mask;
    /* score BPE */
    uint32_t *rank;      /* [n_vocab] */
    size_t max_bytes;    /* longest normal token */
    bool cut_after[256]; /* a space may be cut off what ends in this byte: no token has it followed by a space */
};

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
    const char *text;
    size_t n;
    const struct tern_span *spans;
    size_t n_spans;
    size_t span;  /* index of the span at the position last looked at */
    size_t limit; /* control tokens may reach up to here; at most `begin` of a user span */
};

struct tern_tok_match tern_tok_scan_next(struct tern_tok_scan *s, size_t from);

/* ---- pre-tokenizer (pretok.c) ------------------------------------------------------------------------------- */

struct tern_pretok_info {
    const char *name;
    const char *pattern;
    bool ignore_merges, nfc, add_bos;
};

const struct tern_pretok_info *tern_pretok_find(const char *name, size_t n); /* NULL when unknown */
int tern_pretok_new(struct tern_pretok **out, const struct tern_pretok_info *info, tern_error *err);
void tern_pretok_free(struct tern_pretok *p);

/* The mutable part of matching: one per call. */
struct tern_pretok_run {
    void *match;
    void *limits;
};
int tern_pretok_begin(const struct tern_pretok *p, struct tern_pretok_run *run, tern_error *err);
void tern_pretok_end(struct tern_pretok_run *run);
/* End of the word that begins at `from`, in text[0..n) of valid UTF-8; from < result <= n. */
int tern_pretok_next(const struct tern_pretok *p, struct tern_pretok_run *run, const char *text, size_t n, size_t from,
                     size_t *end, tern_error *err);

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

/* ---- encoding (tok_merge.c, tok_encode.c) ------------------------------------------------------------------- */

struct tern_tok_sym {
    int32_t prev, next; /* -1: none */
    int32_t id;         /* -1: text without a token */
    int32_t pair_id;    /* token made with the right neighbour ... */
    uint32_t pair_rank; /* ... and its rank, or TERN_TOK_NO_RANK */
    uint32_t begin;     /* of its text in the word */
};

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
    struct tern_pretok_run run;
    bool after_unknown; /* the id added last stands for unknown text */
    bool after_added;   /* at the start or behind an added token: where a prefix space belongs */
};

/* Appends the ids of one word: n > 0 bytes at offset `at` of the caller's text or of w->copy. */
int tern_tok_word(struct tern_tok_work *w, int source, size_t at, size_t n, tern_error *err);

/* Appends the ids of text; spans cover it without gaps.  No BOS or EOS. */
int tern_tok_encode(const struct tern_tokenizer *t, const char *text, size_t n, const struct tern_span *spans,
                    size_t n_spans, struct tern_ids *ids, tern_error *err);
/* Puts BOS in front of what was added since ids->len was `first`, unless it is there already or no rule asks. */
int tern_tok_add_bos(const struct tern_tokenizer *t, struct tern_ids *ids, size_t first, tern_error *err);

/* The bytes that one token stands for when decoding; n 0 for control tokens unless `special`. */
const char *tern_tok_view(const struct tern_tokenizer *t, int32_t id, bool special, size_t *n);

static inline bool tern_tok_is_control_type(uint8_t type)
{
    return type == TERN_TOK_CONTROL || type == TERN_TOK_UNKNOWN;
}

#endif

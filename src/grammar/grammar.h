/* grammar/grammar.h - texts that a grammar allows: compiled once, followed token by token.
 *
 *     JSON schema ─┐                   nodes over bytes,           states as they are met,
 *     regex ───────┼─ build.h ──> rules that call rules ── follow.c ──> a mask of the vocabulary for each
 *     GBNF ────────┘   check.c: nothing that cannot end, no left recursion
 *
 * Knows bytes and token ids, neither models nor templates: what a reply has around its text is handed in as marks.
 * A grammar (tern_grammar) is immutable but for the states that it has met, which a lock guards; any thread. */
#ifndef TERN_GRAMMAR_GRAMMAR_H
#define TERN_GRAMMAR_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"
#include "tern/grammar.h"

/* ---- what stands around the text --------------------------------------------------------------------------------- */

/* Marks of a reply's reasoning; open NULL: it has none.  A mark is text or one control token that is spelled alike. */
struct tern_gr_frame {
    const char *open, *close;
    bool begun; /* the prompt ends inside the reasoning */
};

/* How a model writes calls of tools: open { name_key: NAME, args_key: {..} } close, all of them in a list where
 * list is set. */
struct tern_gr_calls {
    const char *open, *close; /* marks; open "": calls begin a reply, and there is one of them */
    bool list;
    const char *name_key, *args_key;
    const char *tag;       /* not NULL: `open` is followed by NAME and this text, and the arguments stand alone */
    const char *function;  /* the one that must be called; NULL: any */
    bool required;         /* else text may stand in place of calls and before them */
    const char *otherwise; /* not NULL, and not required: a schema of what stands in place of calls */
    bool several;          /* more than one call may follow */
    bool dsml;             /* as DeepSeek-V4 writes them (dsml.c): open, close and what is said of JSON do not count */
};

enum tern_gr_kind { TERN_GR_JSON, TERN_GR_SCHEMA, TERN_GR_REGEX, TERN_GR_GBNF, TERN_GR_CHOICE, TERN_GR_CALLS };

/* text: a schema, a pattern, a grammar, a JSON array of strings, one of tool definitions.  calls: of TERN_GR_CALLS. */
int tern_gr_compile(tern_grammar **out, enum tern_gr_kind kind, const char *text, size_t n,
                    const struct tern_gr_frame *frame, const struct tern_gr_calls *calls, tern_error *err);
tern_grammar *tern_gr_ref(const tern_grammar *g);

/* ---- vocabularies ------------------------------------------------------------------------------------------------ */

/* The bytes of all tokens as a tree, for masks.  Immutable. */
struct tern_gr_vocab;

struct tern_gr_token {
    const char *p; /* its bytes within a text; n 0: none */
    size_t n;
    const char *control; /* the spelling of a control token, else NULL */
    bool ends;           /* ends a reply */
    bool drops_space;    /* at the beginning of a text its first byte is not shown */
};
typedef int tern_gr_token_fn(void *user, int32_t id, struct tern_gr_token *out,
                             tern_error *err); /* views until the next */
int tern_gr_vocab_new(struct tern_gr_vocab **out, int n_vocab, tern_gr_token_fn *token, void *user, tern_error *err);
void tern_gr_vocab_free(struct tern_gr_vocab *v);

/* ---- following a text -------------------------------------------------------------------------------------------- */

/* Where a text stands in a grammar. */
struct tern_gr_matcher;
/* v NULL: bytes alone can be followed. v must outlive the matcher; the grammar is kept. */
int tern_gr_matcher_new(struct tern_gr_matcher **out, const tern_grammar *g, const struct tern_gr_vocab *v,
                        tern_error *err);
int tern_gr_matcher_copy(struct tern_gr_matcher **out, const struct tern_gr_matcher *m, tern_error *err);
void tern_gr_matcher_free(struct tern_gr_matcher *m);

/* Goes on by bytes; *alive: they are allowed.  A matcher that is not alive stays so. */
int tern_gr_push(struct tern_gr_matcher *m, const char *p, size_t n, bool *alive, tern_error *err);
bool tern_gr_complete(const struct tern_gr_matcher *m); /* may the text end here? */
/* Sets the bits of the tokens that may come next in mask, which arrives as 0. */
int tern_gr_mask(struct tern_gr_matcher *m, uint32_t *mask, tern_error *err);
/* Goes on by a token; TERN_EINVAL when the grammar forbids it. */
int tern_gr_take(struct tern_gr_matcher *m, int32_t id, tern_error *err);

#endif

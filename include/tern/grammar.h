/* tern/grammar.h - texts that follow a rule: JSON schemas, regular expressions, grammars, calls of tools.
 *
 *     tern_grammar_new_schema(&g, text, n, &reply)   compiles, once; takes milliseconds, and never more than seconds
 *     tern_constraint_new(&c, model, g)              for one request (tern/loop.h) or one generation (tern/tern.h)
 *
 * A text that is generated under a grammar is one that the grammar allows, whatever the model says, unless it is cut:
 * by max_tokens, a full context, a stop string or a cancel.  The reply can end only where the text is complete.
 * Fails closed: what a notation has and these compilers have not is refused by name, never ignored; what is too large
 * is refused by number.  docs/structured-output.md lists both.
 *
 * Threads: a grammar may be used by any number of threads.  A constraint belongs to whom it is handed. */
#ifndef TERN_GRAMMAR_H
#define TERN_GRAMMAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "tern/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#ifndef TERN_API
#define TERN_API __attribute__((visibility("default")))
#endif

struct tern_model;
typedef struct tern_grammar tern_grammar;

/* Restricts each next token.  Its functions are called by the thread that generates or a worker of its engine, one at a
 * time per state.  Fails closed: a negative result, or a mask without a possible token, ends the request with that
 * error.  All of n_vocab ids count, those that end a reply among them: allow them where the text may end. */
typedef struct tern_constraint {
    void *state;
    int (*allow)(void *state, uint32_t *mask,
                 tern_error *err);                           /* mask arrives as 0; sets bit id % 32 of word id / 32 */
    int (*accept)(void *state, int32_t id, tern_error *err); /* the token that was picked */
    void *(*fork)(void *state);                              /* a copy for another choice; NULL result: out of memory */
    void (*free)(void *state);
} tern_constraint;

/* Where the text stands in a reply of `model`: behind its reasoning, which is left free where the model's template has
 * one.  The last tokens of the prompt tell whether it is open already. */
typedef struct tern_grammar_reply {
    const struct tern_model *model;
    const int32_t *prompt;
    int n_prompt;
} tern_grammar_reply;

/* Each compiles text[0..n), of which nothing is referred to afterwards; a model remembers the last ones of its replies.
 * reply NULL: the text is all of the output. TERN_EINVAL, TERN_EUNSUPPORTED or TERN_ELIMIT with one sentence that names
 * what is wrong, not supported, too large.
 */

/* Any JSON object. */
TERN_API int tern_grammar_new_json(tern_grammar **out, const tern_grammar_reply *reply, tern_error *err);
/* JSON that a JSON schema (draft 2020-12) accepts. */
TERN_API int tern_grammar_new_schema(tern_grammar **out, const char *text, size_t n, const tern_grammar_reply *reply,
                                     tern_error *err);
/* Text that a regular expression (ECMA-262) matches as a whole. */
TERN_API int tern_grammar_new_regex(tern_grammar **out, const char *text, size_t n, const tern_grammar_reply *reply,
                                    tern_error *err);
/* Text of rule "root" of a grammar in GBNF. */
TERN_API int tern_grammar_new_gbnf(tern_grammar **out, const char *text, size_t n, const tern_grammar_reply *reply,
                                   tern_error *err);
/* One of the texts of a JSON array of strings. */
TERN_API int tern_grammar_new_choice(tern_grammar **out, const char *text, size_t n, const tern_grammar_reply *reply,
                                     tern_error *err);

typedef struct tern_grammar_calls {
    const char *function; /* the one to call; NULL: any of the tools */
    bool required;        /* the reply is a call; else text may come before calls and in place of them */
    bool several;         /* further calls may follow, where the format has that */
} tern_grammar_calls;
/* Calls of the tools in a JSON array as OpenAI's API has it, in the format of the model's template (tern/reply.h), with
 * arguments that each tool's schema accepts: any object where a tool has none.  TERN_EUNSUPPORTED names formats that
 * cannot be constrained. */
TERN_API int tern_grammar_new_calls(tern_grammar **out, const char *tools, size_t n, const tern_grammar_calls *p,
                                    const tern_grammar_reply *reply, tern_error *err);

TERN_API void tern_grammar_free(tern_grammar *g); /* constraints that were made of it keep what they need */

typedef enum tern_grammar_fit {
    TERN_GRAMMAR_NOT,   /* no text begins like this */
    TERN_GRAMMAR_BEGIN, /* some texts do, and it is none itself */
    TERN_GRAMMAR_WHOLE  /* it is one */
} tern_grammar_fit;
/* What the grammar says about a text. */
TERN_API int tern_grammar_check(const tern_grammar *g, const char *text, size_t n, tern_grammar_fit *fit,
                                tern_error *err);

/* For one reply of the model; free it by out->free(out->state) where no loop has taken it over.  The first constraint
 * of a model takes some tenths of a second. */
TERN_API int tern_constraint_new(tern_constraint *out, const struct tern_model *m, const tern_grammar *g,
                                 tern_error *err);

#ifdef __cplusplus
}
#endif
#endif

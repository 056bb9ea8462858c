/* grammar/build.h - a grammar being put together: what all notations are compiled into, and what puts it together.
 *
 * A rule is a graph of nodes that ends in RETURN; nodes eat one byte, or call other rules.  Pieces of it (struct
 * tern_gr_frag) have one way in and one way out, which is open until something follows.
 *
 * Errors stick: once something has failed, all functions do nothing and their results mean nothing; tern_gr_rc tells.
 * So pieces can be nested as expressions.  A piece is used once. */
#ifndef TERN_GRAMMAR_BUILD_H
#define TERN_GRAMMAR_BUILD_H

#include <jansson.h>
#include <pthread.h>
#include <stdatomic.h>
#include "base/buf.h"
#include "grammar/grammar.h"

#define TERN_GR_MAX_NODES  ((uint32_t)1 << 18)
#define TERN_GR_MAX_RULES  ((uint32_t)1 << 16)
#define TERN_GR_MAX_REPEAT 1000000
#define TERN_GR_MAX_DEPTH  64 /* brackets in brackets, schemas in schemas */
#define TERN_GR_MAX_TEXT   ((size_t)1 << 20)
#define TERN_GR_SECONDS    5.0
#define TERN_GR_NO_END     UINT32_MAX /* of a repetition */

enum tern_gr_op {
    TERN_GR_ONE,    /* a byte of set x, then a */
    TERN_GR_MARK,   /* the control token of mark x, then a */
    TERN_GR_FORK,   /* a or b */
    TERN_GR_CALL,   /* rule x, then a */
    TERN_GR_REPEAT, /* rule x as often as counts[b] says, then a */
    TERN_GR_JUMP,   /* a; check.c removes them */
    TERN_GR_RETURN
};

struct tern_gr_node {
    uint32_t op, x, a, b;
};

struct tern_gr_set {
    uint64_t w[4]; /* of bytes */
};

struct tern_gr_counts {
    uint32_t min, max;
};

enum { TERN_GR_ENDS = 1, TERN_GR_EMPTY = 2 }; /* a text leads from this node to its RETURN; the empty text does */

struct tern_gr_follow; /* follow.c */

struct tern_gr_whole { /* integers from lo to hi */
    int64_t lo, hi;
    uint32_t rule;
};

struct tern_grammar {
    atomic_int refs;
    struct tern_gr_node *nodes;
    uint8_t *flags; /* [n_nodes] */
    struct tern_gr_set *sets;
    struct tern_gr_counts *counts;
    uint32_t *rules; /* first nodes; of one that is only declared UINT32_MAX */
    char (*marks)[64];
    uint32_t n_nodes, n_sets, n_counts, n_rules, n_marks;
    size_t cap_nodes, cap_sets, cap_counts, cap_rules, cap_marks;
    uint32_t start;        /* rule */
    uint8_t class_of[256]; /* bytes that no set tells apart */
    uint8_t byte_of[256];  /* one of each class */
    int n_classes;
    int rc; /* while it is put together */
    tern_error err;
    char why[288]; /* what no text satisfies, for the message if there is no other way */
    double until;
    json_t *names;                                      /* of rules, where the notation has names: name -> [rule, ..] */
    uint32_t any_value, any_object, string_char, blank; /* rules that front ends share, UINT32_MAX: not made */
    struct tern_gr_whole *wholes;                       /* others that they share, until it is put together */
    size_t n_wholes, cap_wholes;
    pthread_mutex_t lock;       /* of the next */
    bool dsml;                  /* of calls that DeepSeek-V4 writes */
    struct tern_gr_follow *met; /* with the vocabulary that was used last; NULL: none */
};

struct tern_gr_frag {
    uint32_t first, last;
};

/* The first sentence counts.  Returns its code. */
int tern_gr_fail(tern_grammar *g, int code, const char *fmt, ...) TERN_PRINTF(3, 4);
static inline bool tern_gr_failed(const tern_grammar *g)
{
    return g->rc < 0;
}

/* Fails once the seconds are over, for what adds no nodes for long.  Has it failed? */
bool tern_gr_late(tern_grammar *g);

/* ---- pieces ------------------------------------------------------------------------------------------------------ */

struct tern_gr_frag tern_gr_empty(tern_grammar *g);
struct tern_gr_frag tern_gr_never(tern_grammar *g); /* no text at all */
struct tern_gr_frag tern_gr_set(tern_grammar *g, const struct tern_gr_set *s);
struct tern_gr_frag tern_gr_span(tern_grammar *g, int from, int to); /* one byte of from..to */
struct tern_gr_frag tern_gr_bytes(tern_grammar *g, const char *p, size_t n);
struct tern_gr_frag tern_gr_text(tern_grammar *g, const char *s);
/* A mark: its text, or the control token that is spelled like it. */
struct tern_gr_frag tern_gr_mark(tern_grammar *g, const char *text);
/* All up to the first mark, and the mark.  ends: or all of a text without one, behind which is no way but RETURN. */
struct tern_gr_frag tern_gr_until(tern_grammar *g, const char *mark, bool ends);
/* The same where the mark counts behind the text `lead` alone, which none of the mark's bytes begins. */
struct tern_gr_frag tern_gr_until_led(tern_grammar *g, const char *lead, const char *mark, bool ends);
/* A text of whole characters but NUL up to `lead` and the mark, and both.  Of these signs none is the first again. */
struct tern_gr_frag tern_gr_chars_until(tern_grammar *g, const char *lead, const char *mark);
/* One of these texts. */
struct tern_gr_word {
    const char *p;
    size_t n;
};
struct tern_gr_frag tern_gr_words(tern_grammar *g, const struct tern_gr_word *words, size_t n);
struct tern_gr_frag tern_gr_then(tern_grammar *g, struct tern_gr_frag a, struct tern_gr_frag b);
struct tern_gr_frag tern_gr_or(tern_grammar *g, struct tern_gr_frag a, struct tern_gr_frag b);
struct tern_gr_frag tern_gr_maybe(tern_grammar *g, struct tern_gr_frag a);
struct tern_gr_frag tern_gr_call(tern_grammar *g, uint32_t rule);
struct tern_gr_frag tern_gr_repeat(tern_grammar *g, uint32_t rule, uint32_t min, uint32_t max);
struct tern_gr_frag tern_gr_times(tern_grammar *g, struct tern_gr_frag a, uint32_t min, uint32_t max);

/* A rule that may be called before it is defined. */
uint32_t tern_gr_declare(tern_grammar *g);
void tern_gr_define(tern_grammar *g, uint32_t rule, struct tern_gr_frag f);
uint32_t tern_gr_rule(tern_grammar *g, struct tern_gr_frag f);

/* ---- characters -------------------------------------------------------------------------------------------------- */

/* Ranges of code points, in any order. */
struct tern_gr_chars {
    struct tern_gr_range {
        uint32_t from, to;
    } * v;
    size_t n, cap;
};
void tern_gr_chars_add(tern_grammar *g, struct tern_gr_chars *c, uint32_t from, uint32_t to);
/* Sorts, joins; then all code points that are not in it. */
void tern_gr_chars_not(tern_grammar *g, struct tern_gr_chars *c);
void tern_gr_chars_clear(struct tern_gr_chars *c);
/* One character of c in UTF-8; surrogates are none. */
struct tern_gr_frag tern_gr_char(tern_grammar *g, struct tern_gr_chars *c);
/* The same inside of a JSON string: with an escape where JSON wants one. */
struct tern_gr_frag tern_gr_char_quoted(tern_grammar *g, struct tern_gr_chars *c);

/* ---- JSON (json.c) ----------------------------------------------------------------------------------------------- */

struct tern_gr_frag tern_gr_json_value(tern_grammar *g);  /* any */
struct tern_gr_frag tern_gr_json_object(tern_grammar *g); /* any */
struct tern_gr_frag tern_gr_json_string(tern_grammar *g); /* any, with its quotes */
struct tern_gr_frag tern_gr_json_number(tern_grammar *g);
struct tern_gr_frag tern_gr_json_char(tern_grammar *g);  /* one character of a string */
struct tern_gr_frag tern_gr_json_blank(tern_grammar *g); /* nothing, a space, or a new line with its indent */
struct tern_gr_frag tern_gr_json_exactly(tern_grammar *g, const json_t *v);
/* Appends the text of v to b, numbers as short as they can be. */
int tern_gr_json_write(struct tern_buf *b, const json_t *v, tern_error *err);
/* Decimal integers from lo to hi, both included. */
struct tern_gr_frag tern_gr_integers(tern_grammar *g, int64_t lo, int64_t hi);

/* ---- notations --------------------------------------------------------------------------------------------------- */

/* quoted: as the contents of a JSON string, where the pattern need match a part only, as JSON schema has it. */
struct tern_gr_frag tern_gr_regex(tern_grammar *g, const char *p, size_t n, bool quoted);
struct tern_gr_frag tern_gr_gbnf(tern_grammar *g, const char *p, size_t n);
struct tern_gr_frag tern_gr_schema(tern_grammar *g, json_t *root);
struct tern_gr_frag tern_gr_tools(tern_grammar *g, const json_t *tools, const struct tern_gr_calls *c);
/* Calls of DeepSeek-V4 (dsml.c).  One call with its arguments, which `parameters` accepts (NULL: any); call, a rule
 * that is one, once or `several` times within the marks of all; the same behind the opening one, "<" MARK. */
struct tern_gr_frag tern_gr_dsml_call(tern_grammar *g, const char *name, json_t *parameters);
struct tern_gr_frag tern_gr_dsml_block(tern_grammar *g, uint32_t call, bool several);
struct tern_gr_frag tern_gr_dsml_behind(tern_grammar *g, uint32_t call, bool several);
#define TERN_GR_DSML      "｜DSML｜"
#define TERN_GR_DSML_SIGN 0xFF5C /* ｜ */

/* ---- the end ----------------------------------------------------------------------------------------------------- */

/* Start rule in place: makes what follow.c needs; refuses what has no text, or calls itself without eating a byte. */
void tern_gr_check(tern_grammar *g);
void tern_gr_follow_free(struct tern_gr_follow *f);

#endif

/* cli/chat.h - the parts of `tern chat`: where lines come from, the session that they become, and the replies.
 *
 * A session is two views of one conversation: `turns`, the text, and `seq`, the tokens with their KV.  While `exact`
 * holds, seq is precisely the rendering of the turns up to the end of the last reply, made of the tokens that the model
 * chose; the next message appends only what follows.  Where that does not hold (a stop string cut the reply, a template
 * rewrites earlier turns, it holds calls or reasoning) the whole conversation is rendered again and only the common
 * prefix is kept. */
#ifndef TERN_CLI_CHAT_H
#define TERN_CLI_CHAT_H

#include <wchar.h>
#include "cli/cli.h"

/* ---- chat_input.c ------------------------------------------------------------------------------------------------ */

struct tern_input;

int tern_input_new(struct tern_input **out, tern_error *err); /* line editing when stdin is a terminal */
void tern_input_free(struct tern_input *in);
bool tern_input_interactive(const struct tern_input *in);

enum tern_input_result { TERN_INPUT_END, TERN_INPUT_MESSAGE, TERN_INPUT_INTERRUPTED };
/* One message into *out (whose former contents are dropped): a line, lines joined by trailing backslashes, or a block
 * between lines of three double quotes.  Negative on error. */
int tern_input_message(struct tern_input *in, struct tern_buf *out, tern_error *err);

/* ---- chat_keys.c ------------------------------------------------------------------------------------------------- */

/* Keys of a terminal, one by one.  What is pasted between the terminal's marks is one piece of text: lines of it do not
 * end the line that is edited, which shows "[pasted 3 lines #1]" in its place. */
struct tern_keys {
    int terminal;          /* where it can be written to */
    bool marks;            /* it knows how to mark pastes */
    unsigned char held[8]; /* read, and not yet handed out */
    int n_held, next_held;
    int columns, rows; /* of the window, as last seen */
    bool looked;
    char mark[64]; /* being handed out in place of a paste */
    size_t n_mark;
    bool in_mark, failed; /* failed: out of memory, or too much was pasted */
    struct tern_buf paste;
    struct tern_buf *pastes; /* [n_pastes] of this line */
    size_t n_pastes, cap_pastes;
};
enum { TERN_KEYS_RESIZED = -2 };           /* the window has another size */
void tern_keys_begin(struct tern_keys *k); /* of a line: the terminal shall mark what is pasted */
void tern_keys_end(const struct tern_keys *k);
/* 1 and *key; 0 at the end of input or after Ctrl-C; -1 on error; TERN_KEYS_RESIZED. */
int tern_keys_next(struct tern_keys *k, wchar_t *key);
bool tern_keys_pasted(const struct tern_keys *k);
/* The line with the pastes of tern_keys_begin .. _end in their places. */
int tern_keys_expand(const struct tern_keys *k, const char *line, size_t n, struct tern_buf *out, tern_error *err);
void tern_keys_clear(struct tern_keys *k);

/* ---- chat_session.c ---------------------------------------------------------------------------------------------- */

struct tern_session {
    tern_model *model;
    tern_engine *engine;
    tern_seq *seq;
    struct tern_start start; /* of new sequences */
    tern_chat_turn *turns;   /* owned, and their texts too */
    size_t n_turns, cap_turns;
    int *lengths; /* per turn: of the sequence when it was added, where that goes on to spell the turns; else -1 */
    size_t cap_lengths;
    json_t *more;     /* per turn null, or an object of what else its message has: tool_calls, reasoning_content ... */
    const char *vars; /* variables for the template, a JSON object; borrowed, or NULL */
    bool exact;
    uint64_t seed; /* of the next reply; moves with every reply and is part of a saved session */
};

/* `system` and `vars` may be NULL. */
int tern_session_init(struct tern_session *s, const struct tern_setup *setup, const char *system, const char *vars,
                      uint64_t seed, tern_error *err);
void tern_session_clear(struct tern_session *s);
/* Forgets everything but the system turn. */
int tern_session_reset(struct tern_session *s, tern_error *err);

/* Takes the reference to `more`, which may be NULL. */
int tern_session_add(struct tern_session *s, const char *role, const char *content, json_t *more, tern_error *err);
/* The reply that was just generated, of n tokens: as _add, and whether the sequence spells it is found out. */
int tern_session_add_reply(struct tern_session *s, const char *content, json_t *more, int n, tern_error *err);
/* The first call of the last reply that has no result yet; NULL: there is none.  View. */
const json_t *tern_session_open_call(const struct tern_session *s);
void tern_session_drop(struct tern_session *s); /* the last turn */

/* The tokens that turn the sequence into the conversation so far plus the head of a reply; may shorten the sequence. */
int tern_session_pending(struct tern_session *s, tern_tokens *out, tern_error *err);

/* FILE and FILE.turns.json.  A load that fails leaves the session as it was. */
int tern_session_save(const struct tern_session *s, const char *path, tern_error *err);
int tern_session_load(struct tern_session *s, const char *path, tern_error *err);

/* Text of the tokens [from, to) of the sequence, control tokens left out. */
int tern_session_text(const struct tern_session *s, int from, int to, struct tern_buf *out, tern_error *err);

/* The last reply goes, and what followed it; false: there is none.  The turns then end with what it answered. */
bool tern_session_unreply(struct tern_session *s);
/* The last message of the user goes with all that followed it; its text into *message (NULL: not wanted). */
bool tern_session_undo(struct tern_session *s, struct tern_buf *message);
/* Forgets the oldest exchanges (a message of the user with all that follows it until the next one) until the
 * conversation has at most `room` tokens, but for the system turn, the first and the last exchange; then the first,
 * too.  *n: how many went.  TERN_ELIMIT, nothing forgotten: even the last one alone has more than `most`. */
int tern_session_shorten(struct tern_session *s, int room, int most, int *n, tern_error *err);
/* As pending, for a reply that has begun: those tokens come behind its head. */
int tern_session_resume(struct tern_session *s, const int32_t *tail, int n_tail, tern_tokens *out, tern_error *err);

/* ---- chat_loop.c ------------------------------------------------------------------------------------------------- */

#define TERN_LOOP_PERIODS 256

/* Does a reply repeat itself?  At least 95 % of its last 160 tokens, and of its last five periods, are what stands one
 * period before them; periods of up to 256 tokens. */
struct tern_chat_loop {
    int from, seen;                  /* first token of the reply; tokens looked at */
    int same[TERN_LOOP_PERIODS + 1]; /* per period: of its span, those that repeat */
    int period, end;                 /* what was found, and behind which token; 0: nothing */
};
void tern_chat_loop_begin(struct tern_chat_loop *l, int from);
bool tern_chat_loop_look(struct tern_chat_loop *l, const int32_t *ids, int n);
/* Where the first round ends: the tokens from there on say nothing new. */
int tern_chat_loop_once(const struct tern_chat_loop *l);

/* ---- chat_reply.c ------------------------------------------------------------------------------------------------ */

/* What --tools and --reasoning come to on a model. */
struct tern_chat_vars {
    char *tools, *vars; /* JSON texts, owned; NULL: none */
};
int tern_chat_vars_init(struct tern_chat_vars *v, const struct tern_args *a, const tern_model *m, tern_error *err);
void tern_chat_vars_clear(struct tern_chat_vars *v);

/* One reply while it is written: content and calls on standard output, reasoning on standard error. */
struct tern_chat_reply {
    struct tern_buf content, reasoning, args;
    json_t *calls; /* as messages have them */
    bool hide_reasoning;
    struct tern_chat_loop *loop; /* NULL: replies may repeat themselves */
    const tern_seq *seq;         /* where loop looks */
    struct tern_progress *bar;   /* ends with the first event */
    tern_reply_kind last;        /* what was shown last, and how that ended */
    bool line_open;
    int write_rc; /* why the reply was stopped */
    tern_error write_err;
};
void tern_chat_reply_begin(struct tern_chat_reply *r);
int tern_chat_reply_event(void *reply, const tern_reply_event *e); /* a tern_reply_fn */
/* Ends the last line. */
int tern_chat_reply_end(struct tern_chat_reply *r, tern_error *err);
/* What a message has beside role and content; *out NULL: nothing. */
int tern_chat_reply_more(const struct tern_chat_reply *r, json_t **out, tern_error *err);
void tern_chat_reply_clear(struct tern_chat_reply *r);

#endif

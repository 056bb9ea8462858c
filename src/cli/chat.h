/* cli/chat.h - the parts of `tern chat`: where lines come from, the session that they become, and the replies.
 *
 * A session is two views of one conversation: `turns`, the text, and `seq`, the tokens with their KV.  While `exact`
 * holds, seq is precisely the rendering of the turns up to the end of the last reply, made of the tokens that the model
 * chose; the next message appends only what follows.  Where that does not hold (a stop string cut the reply, a template
 * rewrites earlier turns, it holds calls or reasoning) the whole conversation is rendered again and only the common
 * prefix is kept. */
#ifndef TERN_CLI_CHAT_H
#define TERN_CLI_CHAT_H

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

/* ---- chat_session.c ---------------------------------------------------------------------------------------------- */

struct tern_session {
    tern_model *model;
    tern_engine *engine;
    tern_seq *seq;
    tern_chat_turn *turns; /* owned, and their texts too */
    size_t n_turns, cap_turns;
    json_t *more;     /* per turn null, or an object of what else its message has: tool_calls, reasoning_content ... */
    const char *vars; /* variables for the template, a JSON object; borrowed, or NULL */
    bool exact;
    uint64_t seed; /* of the next reply; moves with every reply and is part of a saved session */
};

/* `system` and `vars` may be NULL. */
int tern_session_init(struct tern_session *s, tern_model *m, tern_engine *e, const char *system, const char *vars,
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
    struct tern_progress *bar; /* ends with the first event */
    tern_reply_kind last;      /* what was shown last, and how that ended */
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

/* cli/chat.h - the parts of `tern chat`: where lines come from, and the session that they become.
 *
 * A session is two views of one conversation: `turns`, the text, and `seq`, the tokens with their KV.  While `exact`
 * holds, seq is precisely the rendering of the turns up to the end of the last reply, made of the tokens that the model
 * chose; the next message appends only what follows.  Where that does not hold (a stop string cut the reply, a template
 * rewrites earlier turns) the whole conversation is rendered again and only the common prefix is kept. */
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
    bool exact;
    uint64_t seed; /* of the next reply; moves with every reply and is part of a saved session */
};

/* `system` may be NULL. */
int tern_session_init(struct tern_session *s, tern_model *m, tern_engine *e, const char *system, uint64_t seed,
                      tern_error *err);
void tern_session_clear(struct tern_session *s);
/* Forgets everything but the system turn. */
int tern_session_reset(struct tern_session *s, tern_error *err);

int tern_session_add(struct tern_session *s, const char *role, const char *content, tern_error *err);
void tern_session_drop(struct tern_session *s); /* the last turn */

/* The tokens that turn the sequence into the conversation so far plus the head of a reply; may shorten the sequence. */
int tern_session_pending(struct tern_session *s, tern_tokens *out, tern_error *err);

/* FILE and FILE.turns.json.  A load that fails leaves the session as it was. */
int tern_session_save(const struct tern_session *s, const char *path, tern_error *err);
int tern_session_load(struct tern_session *s, const char *path, tern_error *err);

#endif

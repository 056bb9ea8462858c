/* tern/reply.h - a reply taken apart while it streams: what is said, what was thought, which tools are called.
 *
 * Model families write calls and reasoning as marked text.  A tern_reply reads that text in pieces of any size, one
 * byte at a time or all at once with the same result, and hands out events in the order of the text.  A call is
 * announced when it is complete and its arguments are a JSON object, never before: what only looks like a call comes
 * out as content, unchanged, with a notice where it had the marks of one.  No reply is an error.
 *
 * What is not handed out: the marks themselves, newlines next to the marks of reasoning, blank text between calls and
 * behind the last one, and control tokens that are no marks.
 *
 * One thread at a time; independent of engines.  tern_reply_new is in tern/tern.h. */
#ifndef TERN_REPLY_H
#define TERN_REPLY_H

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

typedef struct tern_reply tern_reply;

typedef enum tern_reply_kind {
    TERN_REPLY_CONTENT,        /* text, n: part of the answer */
    TERN_REPLY_REASONING,      /* text, n: part of what comes before it */
    TERN_REPLY_CALL_BEGIN,     /* index, name, id */
    TERN_REPLY_CALL_ARGUMENTS, /* index; text, n: a piece of the arguments, together a JSON object */
    TERN_REPLY_CALL_END,       /* index */
    TERN_REPLY_NOTICE          /* text, n: a sentence about a malformed call, whose text follows as content */
} tern_reply_kind;

typedef struct tern_reply_event { /* views, until the receiver returns */
    tern_reply_kind kind;
    const char *text; /* content and reasoning end at whole characters, where the reply is UTF-8 */
    size_t n;
    int index;        /* of the call in this reply, from 0 */
    const char *name; /* of the function */
    const char *id;   /* from the model where its format has one, else made from seed and index: 9 letters and digits */
} tern_reply_event;

/* Nonzero: no more events are wanted. */
typedef int tern_reply_fn(void *user, const tern_reply_event *event);

typedef struct tern_reply_params {
    const char *calls;     /* a format by name (tern_reply_formats), "off", or NULL: that of the model's template */
    const char *reasoning; /* "think", "bracket", "channel", "off", or NULL: that of the model's template */
    const char *tools;     /* JSON array of tool definitions, as OpenAI's API has it, or NULL; formats that write values
                              without quotes take the types of parameters from it.  Calls are looked for without
                              it, too: say "off" above where there can be none */
    const char *begun;     /* what the reply goes on from, or NULL: reasoning that it opens may still be open */
    uint64_t seed;         /* of ids */
    tern_reply_fn *on_event;
    void *user;
} tern_reply_params;

/* Names of the formats of calls, NULL-terminated. */
TERN_API const char *const *tern_reply_formats(void);

/* The end of the prompt: a template may have opened the reasoning there.  Before the first piece. */
TERN_API void tern_reply_prompt(tern_reply *r, const char *text, size_t n);

/* The next piece.  `control`: it is the text of one whole control token.  Returns 1 once on_event has asked for no
 * more, TERN_ENOMEM when memory runs out. */
TERN_API int tern_reply_push(tern_reply *r, const char *text, size_t n, bool control, tern_error *err);
/* The end of the reply: hands out what was held back. */
TERN_API int tern_reply_finish(tern_reply *r, tern_error *err);
TERN_API void tern_reply_free(tern_reply *r);

#ifdef __cplusplus
}
#endif
#endif

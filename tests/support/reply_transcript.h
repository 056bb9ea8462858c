/* support/reply_transcript.h - the events of a reply as one text: what pieces it came in leaves no trace.
 *
 *     {content}  (reasoning)  <name arguments>  !notice! */
#ifndef TERN_REPLY_TRANSCRIPT_H
#define TERN_REPLY_TRANSCRIPT_H

#include <stdlib.h>
#include <string.h>
#include "text/text.h"

struct transcript {
    struct tern_buf text;
    char ids[16][16]; /* of the first calls */
    int n_calls;
    tern_reply_kind last;
    bool open; /* a stretch of content or reasoning goes on */
};

static inline void transcript_add(struct transcript *t, const char *text, size_t n)
{
    if (tern_buf_add(&t->text, text, n, NULL) < 0)
        abort();
}

static inline void transcript_close(struct transcript *t)
{
    if (t->open)
        transcript_add(t, t->last == TERN_REPLY_CONTENT ? "}" : ")", 1);
    t->open = false;
}

static inline void transcript_call(struct transcript *t, const tern_reply_event *e)
{
    bool in_call = t->last == TERN_REPLY_CALL_BEGIN || t->last == TERN_REPLY_CALL_ARGUMENTS;
    if ((e->kind == TERN_REPLY_CALL_BEGIN) == in_call || !e->name || !e->id)
        abort(); /* begin, arguments, end, and nothing between them */
    if (e->kind == TERN_REPLY_CALL_BEGIN) {
        if (e->index != t->n_calls)
            abort();
        if (t->n_calls < 16)
            (void)snprintf(t->ids[t->n_calls], sizeof t->ids[0], "%s", e->id);
        t->n_calls++;
        transcript_add(t, "<", 1);
        transcript_add(t, e->name, strlen(e->name));
        transcript_add(t, " ", 1);
    } else if (e->kind == TERN_REPLY_CALL_ARGUMENTS) {
        transcript_add(t, e->text, e->n);
    } else {
        transcript_add(t, ">", 1);
    }
}

static inline int transcript_event(void *user, const tern_reply_event *e)
{
    struct transcript *t = user;
    if (t->open && e->kind != t->last)
        transcript_close(t);
    switch (e->kind) {
    case TERN_REPLY_CONTENT:
    case TERN_REPLY_REASONING:
        if (!t->open)
            transcript_add(t, e->kind == TERN_REPLY_CONTENT ? "{" : "(", 1);
        t->open = true;
        transcript_add(t, e->text, e->n);
        break;
    case TERN_REPLY_NOTICE:
        transcript_add(t, "!", 1);
        transcript_add(t, e->text, e->n);
        transcript_add(t, "!", 1);
        break;
    default:
        transcript_call(t, e);
    }
    t->last = e->kind;
    return 0;
}

static inline void transcript_clear(struct transcript *t)
{
    tern_buf_clear(&t->text);
    *t = (struct transcript){0};
}

#endif

/* tests/checkdev/emulate/streams.h - queues of emulated cards that reach each other: each has a thread of its own,
 * which does what is queued in order. */
#ifndef TERN_TEST_STREAMS_H
#define TERN_TEST_STREAMS_H

#include <stddef.h>

struct stream;

/* NULL: there is none to be had. */
struct stream *stream_new(void);
void stream_free(struct stream *s);
/* The kernel of that name; args are copied. */
void stream_launch(struct stream *s, const char *name, const void *args, const unsigned grid[3], unsigned threads);
/* from NULL: n bytes `byte`. */
void stream_copy(struct stream *s, void *to, const void *from, int byte, size_t n);
/* `from` may be written as soon as this returns. */
void stream_copy_now(struct stream *s, void *to, const void *from, size_t n);
/* How much has been queued; and waits until so much is done. */
unsigned long stream_queued(const struct stream *s);
void stream_wait(struct stream *s, unsigned long until);
void stream_wait_all(void);

#endif

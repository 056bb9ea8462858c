/* server/json.h - JSON that strangers send, and JSON that is sent back.
 *
 * What is read has limits: nesting, and memory.  jansson builds objects of up to seventy times the bytes of a text, so
 * a text gets a budget for them.
 *
 * Where memory runs out while JSON is made, parts of it are missing.  Nobody asks at each part: the thread remembers
 * it, and who hands the whole on asks once (tern_json_lacked). */
#ifndef TERN_SERVER_JSON_H
#define TERN_SERVER_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"

#define TERN_JSON_DEPTH 128

/* Around all that reads texts of n bytes in all as JSON, here or in the library, in this thread: without it jansson may
 * end the process where memory runs out.  False: there is no memory for it. */
bool tern_json_begin(size_t n);
void tern_json_end(void);

/* Was there no memory for a part of what this thread has made since it was last asked?  Forgets it. */
bool tern_json_lacked(void);
/* For parts that are made without the functions below. */
void tern_json_lack(void);
/* Appends to a text that will be a part. */
void tern_json_add(struct tern_buf *b, const char *text, size_t n);

/* Once per process, before any JSON is made. */
void tern_json_limit_memory(void);
/* Any thread.  NULL: why[0..size) says what is wrong with the text. */
json_t *tern_json_read(const char *text, size_t n, char *why, size_t size);
/* What a model has written as arguments of a call; an empty object where that is no JSON.  Between no other begin and
 * end. */
json_t *tern_json_arguments(const char *text, size_t n);
/* A string of any bytes; what is no UTF-8 becomes U+FFFD. */
json_t *tern_json_chars(const char *text, size_t n);
json_t *tern_json_cstr(const char *text); /* null for NULL */
/* Appends the text of j without blanks, and drops j.  False: out of memory. */
bool tern_json_write(struct tern_buf *out, json_t *j);

#endif

/* server/json.h - JSON that strangers send, and JSON that is sent back.
 *
 * What is read has limits: nesting, and memory.  jansson builds objects of up to seventy times the bytes of a text, so
 * a text gets a budget for them. */
#ifndef TERN_SERVER_JSON_H
#define TERN_SERVER_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"

#define TERN_JSON_DEPTH 128

/* Once per process, before any JSON is made. */
void tern_json_limit_memory(void);
/* Any thread.  NULL: why[0..size) says what is wrong with the text. */
json_t *tern_json_read(const char *text, size_t n, char *why, size_t size);
/* A string of any bytes; what is no UTF-8 becomes U+FFFD. */
json_t *tern_json_chars(const char *text, size_t n);
json_t *tern_json_cstr(const char *text); /* null for NULL */
/* Appends the text of j without blanks, and drops j.  False: out of memory. */
bool tern_json_write(struct tern_buf *out, json_t *j);

#endif

/* server/http/parse.h - heads and bodies of HTTP/1.x requests, read strictly.
 *
 * What two readers could understand in two ways is refused, because a proxy in front of the server may be the other
 * reader: two lengths, a length beside chunks, bare line feeds, blanks before a colon, folded lines, control
 * characters. Nothing here knows sockets.  One thread at a time per object. */
#ifndef TERN_SERVER_HTTP_PARSE_H
#define TERN_SERVER_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/err.h"

#define TERN_HTTP_MAX_HEAD    ((size_t)32 << 10) /* bytes of request line and header lines */
#define TERN_HTTP_MAX_HEADERS 100

struct tern_http_field {
    const char *name; /* lower case */
    const char *value;
};

struct tern_http_head {
    char *text;         /* owned copy of the head, cut into the texts below */
    const char *method; /* "GET" */
    char *path;         /* decoded, begins with '/' */
    const char *query;  /* after '?', as it was sent; "" when there is none */
    int minor;          /* HTTP/1.minor: 0 or 1 */
    bool keep_alive, chunked, expect_continue;
    int64_t length; /* of the body; -1: none was given */
    struct tern_http_field fields[TERN_HTTP_MAX_HEADERS];
    int n_fields;
};

/* Reads a head that ends with its empty line; text[0..n) is copied.  On failure *status is the answer's (400, 405, 414,
 * 417, 431, 501, 505) and err the sentence. */
int tern_http_head_parse(struct tern_http_head *h, const char *text, size_t n, int *status, tern_error *err);
void tern_http_head_clear(struct tern_http_head *h);
/* The value of a header, NULL when it is absent.  name: lower case. */
const char *tern_http_head_get(const struct tern_http_head *h, const char *name);

/* The value of NAME=VALUE in the query, decoded, into out; false: there is none, or it is malformed or too long. */
bool tern_http_query(const struct tern_http_head *h, const char *name, char *out, size_t size);

/* Where the head ends (behind its empty line) in text[0..n); 0 when that has not come yet. */
size_t tern_http_head_end(const char *text, size_t n);

/* A body in chunks, taken apart as it comes. */
struct tern_http_chunks {
    int state;     /* private */
    uint64_t left; /* bytes of the chunk in hand */
    size_t line;   /* bytes of the line in hand */
    size_t trailer;
    bool done;
};
/* Takes bytes of text[0..n), appends what belongs to the body to `body` (whose max is the limit) and returns how many
 * were taken, fewer than n only when the body is complete.  Negative on failure, with *status 400 or 413. */
int64_t tern_http_chunks_take(struct tern_http_chunks *c, const char *text, size_t n, struct tern_buf *body,
                              int *status, tern_error *err);

/* "application/json" out of "Application/JSON; charset=utf-8", into out (cut when longer). */
void tern_http_media_type(const char *value, char *out, size_t size);

#endif

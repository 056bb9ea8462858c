#include "server/http/parse.h"

#include <ctype.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static int refuse(int *status, int code, tern_error *err, const char *sentence)
{
    *status = code;
    return tern_err_set(err, code == 413 || code == 431 ? TERN_ELIMIT : TERN_EINVAL, "%s", sentence);
}

size_t tern_http_head_end(const char *text, size_t n)
{
    const char *p = memmem(text, n, "\r\n\r\n", 4);
    return p ? (size_t)(p - text) + 4 : 0;
}

static bool token_char(unsigned char c)
{
    return isalnum(c) || (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* %41 -> A, in place. */
static bool decode_path(char *path)
{
    char *to = path;
    for (const char *p = path; *p; p++) {
        if (*p == '%') {
            int hi = hex(p[1]), lo = hi >= 0 ? hex(p[2]) : -1;
            if (lo < 0 || hi * 16 + lo == 0)
                return false;
            *to++ = (char)(hi * 16 + lo);
            p += 2;
        } else {
            *to++ = *p;
        }
    }
    *to = 0;
    return true;
}

bool tern_http_query(const struct tern_http_head *h, const char *name, char *out, size_t size)
{
    const size_t n = strlen(name);
    for (const char *p = h->query; p && *p; p += *p == '&') {
        const size_t len = strcspn(p, "&#");
        if (len > n && strncmp(p, name, n) == 0 && p[n] == '=' && len - n <= size) {
            (void)snprintf(out, size, "%.*s", (int)(len - n - 1), p + n + 1);
            for (char *plus = out; (plus = strchr(plus, '+'));)
                *plus = ' ';
            return decode_path(out);
        }
        p += len;
        if (*p == '#')
            break;
    }
    return false;
}

/* "GET /path?query HTTP/1.1" */
static int parse_line(struct tern_http_head *h, char *line, int *status, tern_error *err)
{
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;
    if (!target || !version || target == line || strchr(version + 1, ' '))
        return refuse(status, 400, err, "the request line is malformed");
    *target++ = 0;
    *version++ = 0;
    for (const char *p = line; *p; p++)
        if (!token_char((unsigned char)*p))
            return refuse(status, 400, err, "the method is malformed");
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return strncmp(version, "HTTP/", 5) == 0
                   ? refuse(status, 505, err, "only HTTP/1.0 and HTTP/1.1 are spoken here")
                   : refuse(status, 400, err, "the request line is malformed");
    h->method = line;
    h->minor = version[7] - '0';
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        target = strchr(strchr(target, ':') + 3, '/');
        if (!target)
            return refuse(status, 400, err, "the request names no path");
    }
    if (*target != '/')
        return refuse(status, 400, err, "the path does not begin with a slash");
    char *query = strpbrk(target, "?#");
    h->query = query && *query == '?' ? query + 1 : "";
    if (query)
        *query = 0;
    h->path = target;
    return decode_path(target) ? 0 : refuse(status, 400, err, "the path has a malformed percent sign");
}

static int parse_field(struct tern_http_head *h, char *line, int *status, tern_error *err)
{
    if (h->n_fields == TERN_HTTP_MAX_HEADERS)
        return refuse(status, 431, err, "the request has too many headers");
    char *colon = strchr(line, ':');
    if (!colon || colon == line)
        return refuse(status, 400, err, "a header has no name");
    for (char *p = line; p < colon; p++) {
        if (!token_char((unsigned char)*p))
            return refuse(status, 400, err, "a header's name is malformed");
        *p = (char)tolower((unsigned char)*p);
    }
    *colon = 0;
    char *value = colon + 1 + strspn(colon + 1, " \t"), *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = 0;
    h->fields[h->n_fields++] = (struct tern_http_field){line, value};
    return 0;
}

static bool parse_length(const char *text, int64_t *out)
{
    int64_t v = 0;
    if (!*text || strlen(text) > 15)
        return false;
    for (; *text; text++) {
        if (!isdigit((unsigned char)*text))
            return false;
        v = v * 10 + (*text - '0');
    }
    *out = v;
    return true;
}

/* Is `word` among the comma-separated words of a header's value? */
static bool has_word(const char *value, const char *word)
{
    size_t n = strlen(word);
    while (value && *value) {
        value += strspn(value, " \t,");
        size_t m = strcspn(value, " \t,");
        if (m == n && strncasecmp(value, word, n) == 0)
            return true;
        value += m;
    }
    return false;
}

static int count(const struct tern_http_head *h, const char *name)
{
    int n = 0;
    for (int i = 0; i < h->n_fields; i++)
        n += strcmp(h->fields[i].name, name) == 0;
    return n;
}

/* What the headers say about the connection and the body. */
static int read_framing(struct tern_http_head *h, int *status, tern_error *err)
{
    const char *connection = tern_http_head_get(h, "connection"), *coding = tern_http_head_get(h, "transfer-encoding"),
               *length = tern_http_head_get(h, "content-length"), *expect = tern_http_head_get(h, "expect");
    h->keep_alive = h->minor == 1 ? !has_word(connection, "close") : has_word(connection, "keep-alive");
    if (count(h, "host") > 1 || (h->minor == 1 && count(h, "host") == 0))
        return refuse(status, 400, err, "the request must have one Host header");
    if (count(h, "content-length") > 1 || count(h, "transfer-encoding") > 1 || (length && coding))
        return refuse(status, 400, err, "the request gives the length of its body twice");
    if (coding && (strcasecmp(coding, "chunked") != 0 || h->minor == 0))
        return refuse(status, 501, err, "the transfer encoding must be chunked");
    if (length && !parse_length(length, &h->length))
        return refuse(status, 400, err, "Content-Length is no number");
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return refuse(status, 417, err, "only 100-continue can be expected");
    h->chunked = coding != NULL;
    h->expect_continue = expect && h->minor == 1;
    return 0;
}

int tern_http_head_parse(struct tern_http_head *h, const char *text, size_t n, int *status, tern_error *err)
{
    int rc = 0;
    *h = (struct tern_http_head){.length = -1};
    *status = 400;
    if (n < 4 || n > TERN_HTTP_MAX_HEAD)
        return refuse(status, 431, err, "the head of the request is too long");
    h->text = malloc(n + 1);
    if (!h->text) {
        *status = 503;
        return tern_err_set(err, TERN_ENOMEM, "cannot allocate the head of a request");
    }
    memcpy(h->text, text, n);
    h->text[n - 2] = 0; /* the last line keeps its end, the empty line goes */
    for (size_t i = 0; i < n - 2; i++) {
        unsigned char c = (unsigned char)text[i];
        bool line_end = (c == '\r' && text[i + 1] == '\n') || (c == '\n' && i && text[i - 1] == '\r');
        if ((c < 0x20 && c != '\t' && !line_end) || c == 0x7F) {
            rc = refuse(status, 400, err, "the head of the request has a control character");
            goto out;
        }
    }
    bool first = true;
    for (char *line = h->text, *end; *line; line = end + 2) {
        end = strstr(line, "\r\n");
        *end = 0;
        TERN_TRY(first ? parse_line(h, line, status, err) : parse_field(h, line, status, err));
        first = false;
    }
    if (first) {
        rc = refuse(status, 400, err, "the request is empty");
        goto out;
    }
    TERN_TRY(read_framing(h, status, err));
out:
    if (rc < 0)
        tern_http_head_clear(h);
    return rc;
}

void tern_http_head_clear(struct tern_http_head *h)
{
    free(h->text);
    *h = (struct tern_http_head){.length = -1};
}

const char *tern_http_head_get(const struct tern_http_head *h, const char *name)
{
    for (int i = 0; i < h->n_fields; i++)
        if (strcmp(h->fields[i].name, name) == 0)
            return h->fields[i].value;
    return NULL;
}

void tern_http_media_type(const char *value, char *out, size_t size)
{
    size_t n = 0;
    for (; value && *value && *value != ';' && n + 1 < size; value++)
        if (*value != ' ' && *value != '\t')
            out[n++] = (char)tolower((unsigned char)*value);
    out[n] = 0;
}

/* ---- chunks ------------------------------------------------------------------------------------------------------ */

enum { SIZE, EXTENSION, SIZE_LF, DATA, DATA_CR, DATA_LF, TRAILER, TRAILER_LINE, TRAILER_LF, LAST_LF };

#define MAX_SIZE_LINE 256
#define MAX_TRAILER   4096

/* One byte outside of a chunk's data. */
static int chunk_byte(struct tern_http_chunks *c, char b, int *status, tern_error *err)
{
    switch (c->state) {
    case SIZE:
        if (hex(b) >= 0 && c->line < 8) {
            c->left = c->left * 16 + (uint64_t)hex(b);
            c->line++;
            return 0;
        }
        if (c->line && (b == ';' || b == '\r')) {
            c->state = b == ';' ? EXTENSION : SIZE_LF;
            return 0;
        }
        break;
    case EXTENSION:
        if (b == '\r')
            c->state = SIZE_LF;
        else if ((unsigned char)b < 0x20 || ++c->line > MAX_SIZE_LINE)
            break;
        return 0;
    case SIZE_LF:
        c->state = c->left ? DATA : TRAILER;
        c->line = 0;
        if (b == '\n')
            return 0;
        break;
    case DATA_CR:
        c->state = DATA_LF;
        if (b == '\r')
            return 0;
        break;
    case DATA_LF:
        c->state = SIZE;
        if (b == '\n')
            return 0;
        break;
    case TRAILER:
    case TRAILER_LINE:
        if (++c->trailer > MAX_TRAILER || ((unsigned char)b < 0x20 && b != '\r' && b != '\t'))
            break;
        if (b == '\r')
            c->state = c->state == TRAILER ? LAST_LF : TRAILER_LF;
        else
            c->state = TRAILER_LINE;
        return 0;
    case TRAILER_LF:
        c->state = TRAILER;
        if (b == '\n')
            return 0;
        break;
    case LAST_LF:
        c->done = true;
        if (b == '\n')
            return 0;
        break;
    default:
        break;
    }
    return refuse(status, 400, err, "the chunks of the body are malformed");
}

int64_t tern_http_chunks_take(struct tern_http_chunks *c, const char *text, size_t n, struct tern_buf *body,
                              int *status, tern_error *err)
{
    size_t i = 0;
    while (i < n && !c->done) {
        if (c->state != DATA) {
            int rc = chunk_byte(c, text[i++], status, err);
            if (rc < 0)
                return rc;
            continue;
        }
        size_t take = c->left < n - i ? (size_t)c->left : n - i;
        int rc = tern_buf_add(body, text + i, take, err);
        if (rc < 0) {
            *status = rc == TERN_ELIMIT ? 413 : 503;
            return rc;
        }
        i += take;
        c->left -= take;
        if (c->left == 0)
            c->state = DATA_CR;
    }
    return (int64_t)i;
}

/* Heads, chunked bodies and JSON of strangers: what is understood, and with which status the rest is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "server/http/parse.h"
#include "server/json.h"

#define LINE "POST /v1/x HTTP/1.1\r\nHost: a\r\n"

static int status_of(const char *text, size_t n)
{
    struct tern_http_head h;
    int status = 0;
    tern_error err = {0};
    int rc = tern_http_head_parse(&h, text, n, &status, &err);
    if (rc == 0)
        status = 0;
    else
        assert_true(err.msg[0] && !strchr(err.msg, '\n'));
    tern_http_head_clear(&h);
    return status;
}

static void test_refused_heads(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int status;
    } rows[] = {
        {LINE "\r\n", 0},
        {"GET http://other.host:80/v1/models?x=1 HTTP/1.1\r\nHost: a\r\n\r\n", 0},
        {"GET /v1/x HTTP/1.0\r\n\r\n", 0},
        {LINE "Content-Length: 5\r\n\r\n", 0},
        {LINE "Transfer-Encoding: Chunked\r\n\r\n", 0},
        {LINE "Content-Length: -5\r\n\r\n", 400},
        {LINE "Content-Length: +5\r\n\r\n", 400},
        {LINE "Content-Length: 5, 5\r\n\r\n", 400},
        {LINE "Content-Length: five\r\n\r\n", 400},
        {LINE "Content-Length:\r\n\r\n", 400},
        {LINE "Content-Length: 99999999999999999999\r\n\r\n", 400},
        {LINE "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400},
        {LINE "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
        {LINE "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {LINE "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {LINE "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
        {LINE "Transfer-Encoding: identity\r\n\r\n", 501},
        {LINE "Expect: a miracle\r\n\r\n", 417},
        {LINE "Host: b\r\n\r\n", 400},
        {"GET / HTTP/1.1\r\n\r\n", 400},
        {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
        {"GET / FTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /\r\nHost: a\r\n\r\n", 400},
        {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"G(T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET x HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET http://host HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%4 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
        {LINE "Host : a\r\n\r\n", 400},
        {LINE " folded\r\n\r\n", 400},
        {LINE "no colon\r\n\r\n", 400},
        {LINE ": no name\r\n\r\n", 400},
        {LINE "a: \001\r\n\r\n", 400},
        {LINE "a: b\nc: d\r\n\r\n", 400},
        {LINE "a: b\rc: d\r\n\r\n", 400},
        {"\r\n\r\n", 400},
        {"\x16\x03\x01\x02\r\n\r\n", 400},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int status = status_of(rows[i].text, strlen(rows[i].text));
        if (status != rows[i].status)
            fail_msg("row %zu: status %d instead of %d: %s", i, status, rows[i].status, rows[i].text);
    }
    assert_int_equal(status_of("GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", 30), 400);
}

static void test_large_heads(void **state)
{
    (void)state;
    size_t n = 0;
    char *text = malloc(2 * TERN_HTTP_MAX_HEAD);
    assert_non_null(text);
    n = (size_t)sprintf(text, LINE);
    for (int i = 0; i < TERN_HTTP_MAX_HEADERS; i++)
        n += (size_t)sprintf(text + n, "h%d: v\r\n", i);
    n += (size_t)sprintf(text + n, "\r\n");
    assert_int_equal(status_of(text, n), 431);
    n = (size_t)sprintf(text, LINE "a: ");
    memset(text + n, 'x', TERN_HTTP_MAX_HEAD);
    memcpy(text + n + TERN_HTTP_MAX_HEAD, "\r\n\r\n", 4);
    assert_int_equal(status_of(text, n + TERN_HTTP_MAX_HEAD + 4), 431);
    free(text);
}

static void test_head(void **state)
{
    (void)state;
    static const char text[] =
        "POST /a%2fb/%C3%A4?q=%41&r#f HTTP/1.1\r\nHOST:  here\t\r\nConnection: Keep-Alive, close\r\n"
        "Expect: 100-Continue\r\ncontent-length: 012\r\nX-Empty:\r\n\r\nrest";
    struct tern_http_head h;
    int status;
    size_t n = tern_http_head_end(text, sizeof text - 1);
    assert_int_equal(n, sizeof text - 5);
    assert_int_equal(tern_http_head_end(text, n - 1), 0);
    assert_int_equal(tern_http_head_parse(&h, text, n, &status, NULL), 0);
    assert_string_equal(h.method, "POST");
    assert_string_equal(h.path, "/a/b/\xC3\xA4");
    assert_string_equal(h.query, "q=%41&r#f");
    assert_string_equal(tern_http_head_get(&h, "host"), "here");
    assert_string_equal(tern_http_head_get(&h, "x-empty"), "");
    assert_null(tern_http_head_get(&h, "x"));
    assert_int_equal(h.length, 12);
    assert_true(!h.keep_alive && h.expect_continue && !h.chunked && h.minor == 1);
    tern_http_head_clear(&h);
    char type[20];
    tern_http_media_type("Application/JSON ; charset=x", type, sizeof type);
    assert_string_equal(type, "application/json");
    tern_http_media_type(NULL, type, sizeof type);
    assert_string_equal(type, "");
}

/* Fed in pieces of `piece` bytes: the status (0 = complete), the body in *body, and the bytes that were taken. */
static int chunks(const char *text, size_t n, size_t piece, struct tern_buf *body, size_t *taken)
{
    struct tern_http_chunks c = {0};
    *taken = 0;
    for (size_t at = 0; at < n && !c.done; at += piece) {
        int status = 0;
        size_t k = piece < n - at ? piece : n - at;
        int64_t rc = tern_http_chunks_take(&c, text + at, k, body, &status, NULL);
        if (rc < 0)
            return status;
        assert_true((size_t)rc == k || c.done);
        *taken += (size_t)rc;
    }
    return c.done ? 0 : -1;
}

static void test_query(void **state)
{
    (void)state;
    static const struct {
        const char *query, *value; /* NULL: there is none */
    } rows[] = {
        {"model=a", "a"},
        {"x=1&model=a%2Fb&model=c", "a/b"},
        {"model=a+b", "a b"},
        {"model=", ""},
        {"model=a#model=b", "a"},
        {"models=a", NULL},
        {"amodel=a", NULL},
        {"model", NULL},
        {"", NULL},
        {"model=%", NULL},
        {"model=%00", NULL},
        {"#model=a", NULL},
        {"&&model=a&", "a"},
        {"model=1234567", "1234567"},
        {"model=12345678", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct tern_http_head h = {.query = rows[i].query};
        char out[8];
        bool found = tern_http_query(&h, "model", out, sizeof out);
        assert_int_equal(found, rows[i].value != NULL);
        if (found)
            assert_string_equal(out, rows[i].value);
    }
}

static void test_chunks(void **state)
{
    (void)state;
    static const struct {
        const char *text, *body;
        int status;
    } rows[] = {
        {"0\r\n\r\n", "", 0},
        {"5\r\nhello\r\n0\r\n\r\nGET /", "hello", 0},
        {"5;a=b\r\nhello\r\nA\r\n0123456789\r\n000\r\nTrailer: x\r\nMore: y\r\n\r\n", "hello0123456789", 0},
        {"5\r\nhello", "hello", -1},
        {"5\nhello\r\n", "", 400},
        {"5\r\nhelloX\r\n", "", 400},
        {"-5\r\nhello\r\n", "", 400},
        {"0x5\r\nhello\r\n", "", 400},
        {"\r\n", "", 400},
        {"fffffffff\r\n", "", 400},
        {"5 \r\nhello\r\n", "", 400},
        {"0\r\nA: \001\r\n\r\n", "", 400},
        {"0\r\nA: b\rc\r\n\r\n", "", 400},
        {"ff\r\n", "", -1},
        {"21\r\n123456789012345678901234567890123\r\n0\r\n\r\n", "", 413},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (size_t piece = 1; piece <= 64; piece = piece * 3 + 1) {
            struct tern_buf body = {.max = 32};
            size_t taken, n = strlen(rows[i].text);
            int status = chunks(rows[i].text, n, piece, &body, &taken);
            if (status != rows[i].status)
                fail_msg("row %zu in pieces of %zu: status %d instead of %d", i, piece, status, rows[i].status);
            if (status == 0)
                assert_string_equal(body.p ? body.p : "", rows[i].body);
            if (i == 1)
                assert_int_equal(taken, n - 5);
            tern_buf_clear(&body);
        }
    char trailer[6000];
    int n = sprintf(trailer, "0\r\nA: ");
    memset(trailer + n, 'x', 5000);
    struct tern_buf body = {0};
    size_t taken;
    assert_int_equal(chunks(trailer, 5000, 5000, &body, &taken), 400);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *json(const char *text, char why[200])
{
    why[0] = 0;
    return tern_json_read(text, strlen(text), why, 200);
}

static void test_json(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "",
        " ",
        "{",
        "{\"a\":1}x",
        "\xEF\xBB\xBF{}",
        "{\"a\":NaN}",
        "{\"a\":1e400}",
        "{\"a\":01}",
        "{'a':1}",
        "{\"a\":1,\"a\":2}",
        "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\xFF\"}",
        "{\"a\":\"\n\"}",
        "{\"a\":Infinity}",
        "{\"a\":99999999999999999999}",
        "{\"a\":9223372036854775808}",
        "[1,]",
        "nul",
    };
    char why[200];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        json_t *j = json(refused[i], why);
        if (j)
            fail_msg("accepted: %s", refused[i]);
        assert_true(why[0] && !strchr(why, '\n'));
    }
    json_t *j = json("{\"a\":\"\\u0000\",\"b\":-0,\"c\":9223372036854775807,\"d\":[]}", why);
    assert_non_null(j);
    assert_int_equal(json_string_length(json_object_get(j, "a")), 1);
    json_decref(j);
}

static void test_json_depth(void **state)
{
    (void)state;
    char text[2 * TERN_JSON_DEPTH + 3], why[200];
    for (int depth = TERN_JSON_DEPTH; depth <= TERN_JSON_DEPTH + 1; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = 0;
        json_t *j = json(text, why);
        assert_int_equal(j != NULL, depth == TERN_JSON_DEPTH);
        json_decref(j);
    }
    json_t *j = json("[\"[[[\\\"[[[\"]", why); /* brackets of a text are none */
    assert_non_null(j);
    json_decref(j);
    size_t n = 100000;
    char *deep = malloc(n);
    assert_non_null(deep);
    memset(deep, '[', n);
    assert_null(tern_json_read(deep, n, why, sizeof why));
    assert_non_null(strstr(why, "128"));
    free(deep);
}

static void test_json_memory(void **state)
{
    (void)state;
    size_t n = (size_t)1 << 22;
    char *bomb = malloc(n), why[200];
    assert_non_null(bomb);
    size_t used = 1;
    bomb[0] = '[';
    for (; used + 5 <= n; used += 3)
        memcpy(bomb + used, "{},", 3);
    memcpy(bomb + used, "0]", 2);
    assert_null(tern_json_read(bomb, used + 2, why, sizeof why));
    if (!strstr(why, "memory"))
        fail_msg("%s", why);
    for (size_t i = 0; i + 5 <= n; i += 5)
        memcpy(bomb + i, "1234,", 5);
    bomb[0] = '[';
    memcpy(bomb + n - 5, "1234]", 5);
    json_t *ids = tern_json_read(bomb, n, why, sizeof why); /* a list of ids is a legal request */
    if (!ids)
        fail_msg("%s", why);
    json_decref(ids);
    free(bomb);
}

static void test_json_chars(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } rows[] = {
        {"", ""},
        {"a\xC3\xA4\xF0\x9F\x98\x80", "a\xC3\xA4\xF0\x9F\x98\x80"},
        {"a\xFF"
         "b",
         "a\xEF\xBF\xBD"
         "b"},
        {"\xC3", "\xEF\xBF\xBD"},
        {"\xED\xA0\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
        {"\xF0\x9F\x98", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        json_t *j = tern_json_cstr(rows[i].in);
        assert_string_equal(json_string_value(j), rows[i].out);
        json_decref(j);
    }
    json_t *nul = tern_json_chars("a\0b", 3);
    assert_int_equal(json_string_length(nul), 3);
    json_decref(nul);
    struct tern_buf b = {0};
    assert_true(tern_json_write(&b, json_pack("{sf sn}", "x", 0.5, "y")));
    assert_string_equal(b.p, "{\"x\":0.5,\"y\":null}");
    tern_buf_clear(&b);
}

/* The budget ends in the middle of a number or a string, wherever in it: refused, and jansson does not end the process.
 * n lists, then blanks, then a token. */
static bool fits(size_t n, size_t blanks, const char *token)
{
    char why[200];
    struct tern_buf b = {0};
    assert_int_equal(tern_buf_addc(&b, '[', NULL), 0);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(tern_buf_add(&b, "[],", 3, NULL), 0);
    for (size_t i = 0; i < blanks; i++)
        assert_int_equal(tern_buf_addc(&b, ' ', NULL), 0);
    assert_int_equal(tern_buf_addf(&b, NULL, "%s,1]", token), 0);
    json_t *j = tern_json_read(b.p, b.len, why, sizeof why);
    assert_true(j || strstr(why, "more memory"));
    const bool ok = j != NULL;
    json_decref(j);
    tern_buf_clear(&b);
    return ok;
}

static void test_json_budget_in_token(void **state)
{
    (void)state;
    static const char *const tokens[] = {"123456789012345", "\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
                                         "1234567890123456789012345678901.5"};
    for (size_t i = 0; i < 3; i++)
        for (size_t blanks = 0; blanks < 6; blanks++) {
            size_t low = 1000, high = 100000;
            while (high - low > 1) {
                const size_t n = (low + high) / 2;
                *(fits(n, blanks, "1") ? &low : &high) = n;
            }
            for (size_t n = low - 2; n < low + 16; n++)
                (void)fits(n, blanks, tokens[i]);
        }
}

int main(void)
{
    tern_json_limit_memory();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_heads), cmocka_unit_test(test_large_heads),
        cmocka_unit_test(test_head),          cmocka_unit_test(test_query),
        cmocka_unit_test(test_chunks),        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_depth),    cmocka_unit_test(test_json_memory),
        cmocka_unit_test(test_json_chars),    cmocka_unit_test(test_json_budget_in_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

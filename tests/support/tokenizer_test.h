/* support/tokenizer_test.h - what the tests of the tokenizer share: loading a fixture or a vocabulary made on the spot,
 * encoding, and decoding in both ways.  Header-only; any failure fails the running cmocka test. */
#ifndef TERN_TEST_TOKENIZER_TEST_H
#define TERN_TEST_TOKENIZER_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "gguf_writer.h"
#include "text/tok/tok.h"

static inline struct tern_tokenizer *load_path(const char *path)
{
    tern_error err = {0};
    struct tern_file *f = NULL;
    struct tern_tokenizer *t = NULL;
    if (tern_file_open(&f, path, &err) < 0 || tern_tokenizer_from_file(&t, f, &err) < 0)
        fail_msg("%s", err.msg);
    tern_file_close(&f);
    assert_non_null(t);
    return t;
}

static inline struct tern_tokenizer *load_fixture(const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tokenizer/%s.gguf", TERN_TEST_DATA, name);
    return load_path(path);
}

/* What loading the writer's file gives; the writer is cleared. */
static inline int load_writer(struct gguf_writer *w, struct tern_tokenizer **t, tern_error *err)
{
    char path[] = "/tmp/tern-test-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    (void)close(fd);
    assert_int_equal(gw_save(w, path), 0);
    gw_clear(w);
    struct tern_file *f = NULL;
    *t = NULL;
    int rc = tern_file_open(&f, path, err);
    (void)unlink(path);
    if (rc == 0)
        rc = tern_tokenizer_from_file(t, f, err);
    tern_file_close(&f);
    return rc;
}

static inline struct tern_tokenizer *load_good(struct gguf_writer *w)
{
    tern_error err = {0};
    struct tern_tokenizer *t;
    if (load_writer(w, &t, &err) < 0)
        fail_msg("%s", err.msg);
    return t;
}

static inline void encode_n(const struct tern_tokenizer *t, const char *text, size_t n, unsigned flags,
                            struct tern_ids *ids)
{
    tern_error err = {0};
    ids->len = 0;
    if (tern_tokenize(t, text, n, flags, ids, &err) < 0)
        fail_msg("%s", err.msg);
}

static inline void check_ids(const struct tern_ids *got, const int32_t *want, size_t n, const char *what)
{
    bool equal = got->len == n;
    for (size_t i = 0; equal && i < n; i++)
        equal = got->p[i] == want[i];
    if (equal)
        return;
    print_message("%s\n  got ", what);
    for (size_t i = 0; i < got->len; i++)
        print_message(" %d", got->p[i]);
    print_message("\n  want");
    for (size_t i = 0; i < n; i++)
        print_message(" %d", want[i]);
    fail_msg("ids differ");
}

#define CHECK(t, text, flags, ...)                                     \
    do {                                                               \
        struct tern_ids ids_ = {0};                                    \
        const int32_t want_[] = {__VA_ARGS__};                         \
        encode_n((t), (text), sizeof(text) - 1, (flags), &ids_);       \
        check_ids(&ids_, want_, sizeof want_ / sizeof want_[0], text); \
        tern_ids_clear(&ids_);                                         \
    } while (0)

static inline void decode(const struct tern_tokenizer *t, const struct tern_ids *ids, struct tern_buf *out)
{
    tern_buf_reset(out);
    assert_int_equal(tern_detokenize(t, ids->p, ids->len, true, out, NULL), 0);
}

/* Every piece must be whole characters. */
static inline void decode_stream(const struct tern_tokenizer *t, const struct tern_ids *ids, struct tern_buf *out)
{
    struct tern_detok d;
    tern_detok_init(&d, t, true);
    tern_buf_reset(out);
    for (size_t i = 0; i <= ids->len; i++) {
        size_t before = out->len;
        if (i < ids->len)
            assert_int_equal(tern_detok_push(&d, ids->p[i], out, NULL), 0);
        else
            assert_int_equal(tern_detok_finish(&d, out, NULL), 0);
        if (out->len > before)
            assert_int_equal(tern_utf8_valid(out->p + before, out->len - before), out->len - before);
    }
}

/* Undoes the \xNN and \\ of recorded texts. */
static inline size_t unescape(const char *s, char *out)
{
    size_t n = 0;
    while (*s) {
        if (s[0] == '\\' && s[1] == 'x') {
            unsigned byte;
            assert_int_equal(sscanf(s + 2, "%2x", &byte), 1);
            out[n++] = (char)byte;
            s += 4;
        } else {
            s += *s == '\\';
            out[n++] = *s++;
        }
    }
    return n;
}

static inline void assert_text(const struct tern_buf *got, const char *want, size_t n)
{
    assert_int_equal(got->len, n);
    if (n)
        assert_memory_equal(got->p, want, n);
}

/* A line of json-*.txt: modes, ids, what they decode to unless it is the text, text. */
static inline void check_json_line(const struct tern_tokenizer *t, char *line)
{
    char text[4096], decoded[4096];
    struct tern_ids want = {0}, got = {0};
    struct tern_buf back = {0}, stream = {0};
    char *modes = strsep(&line, "|");
    char *list = strsep(&line, "|");
    char *other = strsep(&line, "|");
    size_t n = unescape(line, text);
    size_t n_decoded = strcmp(other, "-") == 0 ? 0 : unescape(*other ? other : line, decoded);
    for (char *p = list, *end; *p; p = end + (*end == ' '))
        assert_int_equal(tern_ids_add(&want, (int32_t)strtol(p, &end, 10), NULL), 0);
    for (; *modes; modes++) {
        encode_n(t, text, n, *modes == '1' ? TERN_TOK_SPECIAL | TERN_TOK_BOS_EOS : 0, &got);
        check_ids(&got, want.p, want.len, line);
        decode(t, &got, &back);
        decode_stream(t, &got, &stream);
        assert_text(&stream, back.p, back.len);
        tern_buf_reset(&back);
        assert_int_equal(tern_detokenize(t, got.p, got.len, false, &back, NULL), 0);
        if (back.len != n_decoded || memcmp(back.p ? back.p : "", decoded, n_decoded) != 0)
            fail_msg("'%s' decodes to '%s', not to '%.*s'", line, back.p, (int)n_decoded, decoded);
    }
    tern_ids_clear(&want);
    tern_ids_clear(&got);
    tern_buf_clear(&back);
    tern_buf_clear(&stream);
}

/* All lines of such a file, which are changed. */
static inline void check_json_lines(const struct tern_tokenizer *t, char *lines)
{
    int n = 0;
    for (char *rest = lines, *line; (line = strsep(&rest, "\n")) && rest;)
        if (*line != '#') {
            check_json_line(t, line);
            n++;
        }
    assert_true(n > 70);
}

#endif

/* Any bytes as a tokenizer.json, alone or followed by a NUL and a tokenizer_config.json.  Properties:
 *   - it ends in a tokenizer or in a sentence
 *   - with that tokenizer a text that is hard on regexes and normalizers becomes ids of the vocabulary, or is refused
 *   - plain text has no control token; a stream of the ids is well-formed UTF-8 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tok/tok.h"

#define CHECK(x) ((x) ? (void)0 : (void)(fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void use(const struct tern_tokenizer *t, const char *text, size_t n, unsigned flags)
{
    tern_error err = {0};
    struct tern_ids ids = {0};
    struct tern_buf out = {0}, stream = {0};
    struct tern_detok d;
    int rc = tern_tokenize(t, text, n, flags, &ids, &err);
    CHECK(rc == 0 || err.msg[0]); /* a pattern may need more steps than it gets */
    tern_detok_init(&d, t, true);
    for (size_t i = 0; i < ids.len; i++) {
        CHECK(ids.p[i] >= 0 && ids.p[i] < tern_tokenizer_n_vocab(t));
        CHECK(flags || ids.p[i] == t->unknown || !tern_tokenizer_is_control(t, ids.p[i]));
        CHECK(tern_detok_push(&d, ids.p[i], &stream, NULL) == 0);
    }
    CHECK(tern_detok_finish(&d, &stream, NULL) == 0);
    CHECK(tern_utf8_valid(stream.p, stream.len) == stream.len);
    CHECK(tern_detokenize(t, ids.p, ids.len, true, &out, NULL) == 0);
    tern_buf_clear(&out);
    tern_buf_clear(&stream);
    tern_ids_clear(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "ab  aab\n\n <s>a\xE2\x96\x81 1234,\xC3\x89\xE2\x84\xAB e\xCC\x81\xEF\xBC\x91\xFF"
                               "b<|x|> \xE6\xBC\xA2\xF0\x9F\x98\x80 aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa  \t";
    tern_error err = {0};
    struct tern_tokenizer *t = NULL;
    const uint8_t *gap = size > 0 ? memchr(data, 0, size) : NULL;
    size_t n = gap ? (size_t)(gap - data) : size;
    struct tern_tokenizer_json files = {.name = "tokenizer.json", .tokenizer = {(const char *)data, n}};
    if (gap)
        files.config = (struct tern_str){(const char *)gap + 1, size - n - 1};
    int rc = tern_tokenizer_from_json(&t, &files, &err);
    CHECK(rc == 0 ? t != NULL : t == NULL && err.msg[0]);
    if (!t)
        return 0;
    use(t, text, sizeof text - 1, 0);
    use(t, text, sizeof text - 1, TERN_TOK_SPECIAL | TERN_TOK_BOS_EOS);
    use(t, "", 0, TERN_TOK_BOS_EOS);
    tern_tokenizer_free(t);
    return 0;
}

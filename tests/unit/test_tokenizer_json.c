/* Tokenizers from tokenizer.json: small vocabularies set up as those of known families, with the ids and texts that
 * Hugging Face `tokenizers` gives (tests/data/tokenizer/json-*, made by tools/make_tokenizer_fixtures.py); what stands
 * beside the file; and every refusal. */
#include "tokenizer_test.h"

static struct tern_str str(const char *p)
{
    return (struct tern_str){.p = p, .n = p ? strlen(p) : 0};
}

static int load_json(const char *tokenizer, const char *config, const char *generation, struct tern_tokenizer **t,
                     tern_error *err)
{
    struct tern_tokenizer_json files = {.name = "dir/tokenizer.json",
                                        .tokenizer = str(tokenizer),
                                        .config = str(config),
                                        .generation = str(generation)};
    return tern_tokenizer_from_json(t, &files, err);
}

static struct tern_tokenizer *good(const char *tokenizer, const char *config, const char *generation)
{
    tern_error err = {0};
    struct tern_tokenizer *t;
    if (load_json(tokenizer, config, generation, &t, &err) < 0)
        fail_msg("%s", err.msg);
    return t;
}

/* ---- recorded ids ------------------------------------------------------------------------------------------- */

static void check_case(const struct tern_tokenizer *t, char *line)
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

static void check_fixture(void **state)
{
    char path[512];
    struct tern_buf cases = {0}, root = {0};
    (void)snprintf(path, sizeof path, "%s/tokenizer/json-%s.json", TERN_TEST_DATA, (const char *)*state);
    assert_int_equal(tern_buf_read_file(&root, path, 1 << 20, NULL), 0);
    struct tern_tokenizer *t = good(root.p, NULL, NULL);
    (void)snprintf(path, sizeof path, "%s/tokenizer/json-%s.txt", TERN_TEST_DATA, (const char *)*state);
    assert_int_equal(tern_buf_read_file(&cases, path, 1 << 20, NULL), 0);
    int n = 0;
    for (char *rest = cases.p, *line; (line = strsep(&rest, "\n")) && rest;)
        if (*line != '#') {
            check_case(t, line);
            n++;
        }
    assert_true(n > 70);
    tern_buf_clear(&cases);
    tern_buf_clear(&root);
    tern_tokenizer_free(t);
}

#define FIXTURE(name)                                                          \
    {                                                                          \
        "recorded_" name, check_fixture, NULL, NULL, (void *)(uintptr_t)(name) \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE("llama3"),    FIXTURE("qwen3"),  FIXTURE("tekken"),   FIXTURE("phi4"),   FIXTURE("glm4"),
        FIXTURE("deepseek3"), FIXTURE("smollm"), FIXTURE("gpt2"),     FIXTURE("llama4"), FIXTURE("falcon"),
        FIXTURE("gemma"),     FIXTURE("phi3"),   FIXTURE("mistral3"), FIXTURE("odd"),    FIXTURE("unigram"),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

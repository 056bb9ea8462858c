/* Tokenizers from tokenizer.json: small vocabularies set up as those of known families, with the ids and texts that
 * Hugging Face `tokenizers` gives (tests/data/tokenizer/json-*, made by tools/make_tokenizer_fixtures.py); what stands
 * beside the file; and every refusal. */
#include "base/rng.h"
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

static void check_fixture(void **state)
{
    char path[512];
    struct tern_buf cases = {0}, root = {0};
    (void)snprintf(path, sizeof path, "%s/tokenizer/json-%s.json", TERN_TEST_DATA, (const char *)*state);
    assert_int_equal(tern_buf_read_file(&root, path, 1 << 20, NULL), 0);
    struct tern_tokenizer *t = good(root.p, NULL, NULL);
    (void)snprintf(path, sizeof path, "%s/tokenizer/json-%s.txt", TERN_TEST_DATA, (const char *)*state);
    assert_int_equal(tern_buf_read_file(&cases, path, 1 << 20, NULL), 0);
    check_json_lines(t, cases.p);
    tern_buf_clear(&cases);
    tern_buf_clear(&root);
    tern_tokenizer_free(t);
}

/* ---- what stands beside the file ------------------------------------------------------------------------------ */

/* Characters: 0 <unk>  1 <s>  2 </s>  3 a  4 b  5 ab; 8 <|x|>, not marked as special; 6 and 7 are free. */
#define PARTS(pre, decoder, model)                                                                                    \
    "{\"added_tokens\":[{\"id\":0,\"content\":\"<unk>\",\"special\":true},{\"id\":1,\"content\":\"<s>\",\"special\":" \
    "true},{\"id\":2,\"content\":\"</"                                                                                \
    "s>\",\"special\":true},{\"id\":8,\"content\":\"<|xyzw|>\"}],\"pre_tokenizer\":" pre ",\"decoder\":" decoder      \
    ",\"model\":" model "}"
#define VOCAB "{\"<unk>\":0,\"<s>\":1,\"</s>\":2,\"a\":3,\"b\":4,\"ab\":5}"
#define MODEL "{\"type\":\"BPE\",\"unk_token\":\"<unk>\",\"vocab\":" VOCAB ",\"merges\":[[\"a\",\"b\"]]}"
#define FUSE  "{\"type\":\"Fuse\"}"
#define TINY  PARTS("null", FUSE, MODEL)

static void beginnings_and_ends(void **state)
{
    (void)state;
    struct tern_tokenizer *t = good(TINY, NULL, NULL);
    assert_string_equal(tern_tokenizer_kind(t), "BPE of characters");
    assert_int_equal(tern_tokenizer_n_vocab(t), 9);
    assert_int_equal(tern_tokenizer_bos(t), -1);
    assert_int_equal(tern_tokenizer_eos(t), -1);
    assert_true(tern_tokenizer_is_eog(t, 2)); /* </s> is a control token */
    assert_int_equal(tern_tokenizer_find(t, "", 0), -1);
    CHECK(t, "ab??a", TERN_TOK_BOS_EOS, 5, 0, 0, 3);
    CHECK(t, "a<|xyzw|>", TERN_TOK_SPECIAL, 3, 8);
    assert_true(tern_tokenizer_is_control(t, 8)); /* its form says so */
    CHECK(t, "a<s>", 0, 3, 0, 0, 0);
    tern_tokenizer_free(t);

    t = good(
        TINY,
        "{\"bos_token\":\"<s>\",\"eos_token\":{\"content\":\"</s>\"},\"add_bos_token\":true,\"add_eos_token\":true}",
        "{\"bos_token_id\":3,\"eos_token_id\":[2,4]}");
    assert_int_equal(tern_tokenizer_bos(t), 1);
    assert_int_equal(tern_tokenizer_eos(t), 2);
    assert_true(tern_tokenizer_is_eog(t, 4));
    assert_false(tern_tokenizer_is_eog(t, 3));
    CHECK(t, "a", TERN_TOK_BOS_EOS, 1, 3, 2);
    CHECK(t, "<s>a", TERN_TOK_BOS_EOS | TERN_TOK_SPECIAL, 1, 3, 2); /* never a second BOS */
    tern_tokenizer_free(t);

    t = good(TINY, "{\"added_tokens_decoder\":{\"7\":{\"content\":\"<y>\"},\"1\":{\"content\":\"<s>\"}}}",
             "{\"eos_token_id\":7}");
    assert_int_equal(tern_tokenizer_eos(t), 7);
    CHECK(t, "<y>", 0, 7);
    tern_tokenizer_free(t);
}

/* What templates see of special tokens. */
static void names_of_special_tokens(void **state)
{
    (void)state;
    struct tern_tokenizer *t =
        good(TINY,
             "{\"unk_token\":\"<unk>\",\"pad_token\":{\"content\":\"</s>\",\"lstrip\":false},\"sep_token\":null,"
             "\"cls_token\":3,\"additional_special_tokens\":[\"<|xyzw|>\",{\"content\":\"<s>\"}]}",
             NULL);
    assert_string_equal(tern_tokenizer_names(t), "{\"unk_token\":\"<unk>\",\"pad_token\":\"</s>\","
                                                 "\"additional_special_tokens\":[\"<|xyzw|>\",\"<s>\"]}");
    tern_tokenizer_free(t);
    t = good(TINY, "{\"additional_special_tokens\":[]}", NULL);
    assert_null(tern_tokenizer_names(t));
    tern_tokenizer_free(t);
}

/* ---- regular expressions ---------------------------------------------------------------------------------------- */

/* The matches of a pattern, each in brackets; searches begin with windows of that size. */
static void add_matches(const char *pattern, const char *text, size_t n, size_t window, struct tern_buf *got)
{
    tern_error err = {0};
    struct tern_tok_regex *re;
    struct tern_tok_regex_run run = {0};
    struct tern_tok_walk walk = {0};
    struct tern_tok_range m;
    size_t done = 0;
    if (tern_tok_regex_new(&re, pattern, strlen(pattern), &err) < 0)
        fail_msg("%s", err.msg);
    assert_int_equal(tern_tok_regex_begin(&run, n, NULL), 0);
    run.window = window;
    for (int rc; (rc = tern_tok_regex_walk(re, &run, text, n, &walk, &m, &err)) != 0; done = m.end) {
        if (rc < 0)
            fail_msg("%s: %s", pattern, err.msg);
        assert_int_equal(tern_buf_add(got, text + done, m.begin - done, NULL), 0);
        assert_int_equal(tern_buf_addf(got, NULL, "[%.*s]", (int)(m.end - m.begin), text + m.begin), 0);
    }
    assert_int_equal(tern_buf_add(got, text + done, n - done, NULL), 0);
    tern_tok_regex_end(&run);
    tern_tok_regex_free(re);
}

static void check_matches(const char *pattern, const char *text, const char *want)
{
    for (size_t window = 1; window < 70; window = window * 3 + 1) {
        struct tern_buf got = {0};
        add_matches(pattern, text, strlen(text), window, &got);
        assert_string_equal(got.p, want);
        tern_buf_clear(&got);
    }
}

/* Whatever a search sees first, it finds the same. */
static void windows(void **state)
{
    static const char *const names[] = {"gpt-2",       "llama-bpe",    "qwen2",    "qwen35", "gpt-4o",  "tekken",
                                        "deepseek-v3", "deepseek-llm", "tiny_aya", "falcon", "default", "jais-2"};
    static const char *const parts[] = {"a",  "B",    "\xC3\xA9", "e\xCC\x81",    " ",     "  ",
                                        "\n", "\r\n", "7",        "12",           "'s",    "'",
                                        ".",  "...",  "\t\t",     "\xE6\xBC\xA2", "don't", "/"};
    struct tern_rng r = {11};
    (void)state;
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const struct tern_pretok_info *info = tern_pretok_find(names[k], strlen(names[k]));
        assert_non_null(info);
        for (int round = 0; round < 40; round++) {
            struct tern_buf text = {0};
            for (int i = (int)(tern_rng_u64(&r) % 30); i >= 0; i--) {
                const char *part = parts[tern_rng_u64(&r) % (sizeof parts / sizeof *parts)];
                for (int times = tern_rng_u64(&r) % 5 ? 1 : 20; times > 0; times--)
                    assert_int_equal(tern_buf_add(&text, part, strlen(part), NULL), 0);
            }
            for (const char *const *p = info->patterns; *p; p++) {
                struct tern_buf whole = {0}, got = {0};
                add_matches(*p, text.p, text.len, SIZE_MAX, &whole);
                add_matches(*p, text.p, text.len, 1 + tern_rng_u64(&r) % 40, &got);
                assert_string_equal(got.p, whole.p);
                tern_buf_clear(&whole);
                tern_buf_clear(&got);
            }
            tern_buf_clear(&text);
        }
    }
}

/* A pattern that looks at all of the text for each of its bytes is stopped; one that goes through it once is not. */
static void endless_looks(void **state)
{
    enum { N = 400000 };
    static const char *const patterns[] = {"a(?=[^x]*b)|a", "a[^x]*b|a"};
    char *text = malloc(N);
    (void)state;
    assert_non_null(text);
    memset(text, 'a', N);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        tern_error err = {0};
        struct tern_ids ids = {0};
        char json[1200];
        (void)snprintf(
            json, sizeof json,
            PARTS("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Isolated\"}", FUSE, MODEL),
            patterns[i]);
        struct tern_tokenizer *t = good(json, NULL, NULL);
        assert_int_equal(tern_tokenize(t, text, N, 0, &ids, &err), TERN_ELIMIT);
        assert_true(err.msg[0] && ids.len == 0);
        tern_tokenizer_free(t);
        tern_ids_clear(&ids);
    }
    struct tern_buf got = {0};
    add_matches("a+|b", text, N, 512, &got);
    assert_int_equal(got.len, N + 2);
    tern_buf_clear(&got);
    free(text);
}

static void notation(void **state)
{
    (void)state;
    check_matches("\\s+", "a \xE1\xA0\x8E\xC2\x85z", "a[ ]\xE1\xA0\x8E[\xC2\x85]z"); /* U+180E is no space */
    check_matches("[\\s\\S]", "\xE1\xA0\x8E", "[\xE1\xA0\x8E]");
    check_matches("\\w+", "e\xCC\x81_1\xC2\xB2", "[e\xCC\x81_1\xC2\xB2]"); /* marks and squares are part of words */
    check_matches("\\b", "ab c", "[]ab[] []c[]");
    check_matches("x{1,2}+", "xxxxx", "[xxxxx]");
    check_matches("x{,2}y", "xxxy", "x[xxy]");
    check_matches("\\s+$", "a \nb ", "a[ ]\nb[ ]");
    check_matches("a\\vb|\\u0063|[[:digit:]]", "a\vbc7", "[a\vb][c][7]");
    check_matches("(?=(\\d{3})+(?!\\d))", "1234567", "1[]234[]567");
    check_matches("x*", "axxb", "[]a[xx]b[]");
    check_matches("(?i:'s)", "'S '\xC5\xBF", "['S] ['\xC5\xBF]");
}

/* ---- as Hugging Face has it ------------------------------------------------------------------------------------- */

#define WORDS(more, flags)                                                                                            \
    "{\"type\":\"BPE\",\"unk_token\":\"<unk>\"," flags "\"vocab\":{\"<unk>\":0,\"<s>\":1,\"</s>\":2,\"a\":3,\"b\":4," \
    "\"ab\":5" more "},\"merges\":[[\"a\",\"b\"]]}"

/* The \w of "Whitespace" is Unicode's: joiners and letters in squares are part of words, raised digits are not. */
static void words_of_whitespace(void **state)
{
    (void)state;
    struct tern_tokenizer *t =
        good(PARTS("{\"type\":\"Whitespace\"}", FUSE,
                   WORDS(",\"a\xE2\x80\x8D\":9,\"a\xF0\x9F\x85\xB0\":10,\"a\xC2\xB2\":11,\"\xC2\xB2\":12",
                         "\"ignore_merges\":true,")),
             NULL, NULL);
    CHECK(t, "a\xE2\x80\x8D ab", 0, 9, 5);
    CHECK(t, "a\xF0\x9F\x85\xB0 ab", 0, 10, 5);
    CHECK(t, "a\xC2\xB2 ab", 0, 3, 12, 5);
    tern_tokenizer_free(t);
}

/* Behind another step "first" means the piece in front of which there is nothing, and it alone. */
static void first_piece(void **state)
{
    (void)state;
#define FIRST        "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"first\",\"split\":false}"
#define BEHIND(what) "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":" what "}," FIRST "]}"
#define MARKED       WORDS(",\"_\":6", "")
    struct tern_tokenizer *t = good(PARTS(BEHIND("\"WhitespaceSplit\""), FUSE, MARKED), NULL, NULL);
    CHECK(t, "ab b", 0, 6, 5, 4);
    CHECK(t, " ab", 0, 5);
    CHECK(t, "<s>ab", TERN_TOK_SPECIAL, 1, 5);
    tern_tokenizer_free(t);
    t = good(PARTS(BEHIND("\"CharDelimiterSplit\",\"delimiter\":\"a\""), FUSE, MARKED), NULL, NULL);
    CHECK(t, "bab", 0, 6, 4, 4);
    CHECK(t, "ab", 0, 4);
    tern_tokenizer_free(t);
}

/* A word, what merges take and a character are looked up in the model's vocabulary; an added token is found in front of
 * all that, or not at all. */
static void added_tokens_are_no_pieces(void **state)
{
    (void)state;
#define ADDED(model)                                                                                               \
    "{\"added_tokens\":[{\"id\":9,\"content\":\"ba\",\"single_word\":true},{\"id\":10,\"content\":\"c\",\"single_" \
    "word\":"                                                                                                      \
    "true},{\"id\":5,\"content\":\"ab\",\"single_word\":true}],\"pre_tokenizer\":"                                 \
    "{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Removed\"},\"decoder\":" FUSE               \
    ",\"model\":" model "}"
#define WHOLE WORDS(",\"cd\":6,\"-\":7", "\"ignore_merges\":true,")
    struct tern_tokenizer *t = good(ADDED(WHOLE), NULL, NULL);
    CHECK(t, "ba a", 0, 9, 0, 3); /* found as an added token */
    CHECK(t, "ba\xC3\xA9-c", 0, 4, 3, 0, 10);
    CHECK(t, "_-ba", 0, 0, 9);
    CHECK(t, "_ba-a", 0, 0, 4, 3, 3); /* part of a word */
    CHECK(t, "bac", 0, 4, 3, 0);
    CHECK(t, "aab", 0, 3, 5); /* one that the vocabulary has too */
    tern_tokenizer_free(t);
    t = good(PARTS("{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"Isolated\"}", FUSE, WHOLE),
             "{\"added_tokens_decoder\":{\"6\":{\"content\":\"cd\",\"single_word\":true},\"9\":{\"content\":\"ba\","
             "\"single_word\":true,\"special\":false}}}",
             NULL);
    CHECK(t, "_-cd", 0, 0, 7, 6);
    CHECK(t, "ba\xE2\x80\x8D", 0, 4, 3, 0); /* a joiner is part of a word */
    tern_tokenizer_free(t);
}

/* White space that an added token takes with it may be a token too. */
static void white_space_behind_tokens(void **state)
{
    (void)state;
    struct tern_tokenizer *t =
        good(PARTS("null", FUSE, MODEL),
             "{\"added_tokens_decoder\":{\"6\":{\"content\":\"<y>\",\"rstrip\":true,\"normalized\":false},"
             "\"7\":{\"content\":\"\\n\\n\",\"normalized\":false}}}",
             NULL);
    CHECK(t, "<y>  ab", 0, 6, 5);
    CHECK(t, "<y>\n\n", 0, 6, 7);
    CHECK(t, "<y>\n\n\n\nab", 0, 6, 7, 7, 5);
    CHECK(t, "<y>\nab", 0, 6, 5);
    tern_tokenizer_free(t);
    t = good(PARTS("null", FUSE, MODEL),
             "{\"added_tokens_decoder\":{\"6\":{\"content\":\"<y>\",\"rstrip\":true,\"normalized\":false},"
             "\"7\":{\"content\":\"\\n\\n\",\"lstrip\":true,\"normalized\":false}}}",
             NULL);
    CHECK(t, "<y>\n\n\n\nab", 0, 6, 5);
    CHECK(t, "a \n\nab", 0, 3, 7, 5);
    tern_tokenizer_free(t);
}

/* Of byte-level BPE a run of bytes without tokens is one unknown token, where the model fuses; without an unknown token
 * what has none is left out and its neighbours meet; and bytes stand in for characters whatever the decoder does. */
static void unknown_text(void **state)
{
    (void)state;
#define LEVEL(flags) \
    PARTS("{\"type\":\"ByteLevel\",\"add_prefix_space\":false}", "{\"type\":\"ByteLevel\"}", WORDS("", flags))
    struct tern_tokenizer *t = good(LEVEL("\"fuse_unk\":true,"), NULL, NULL);
    CHECK(t, "accb", 0, 3, 0, 4);
    tern_tokenizer_free(t);
    t = good(LEVEL(""), NULL, NULL);
    CHECK(t, "accb", 0, 3, 0, 0, 4);
    tern_tokenizer_free(t);
    t = good(PARTS("null", FUSE, "{\"type\":\"BPE\",\"vocab\":" VOCAB ",\"merges\":[[\"a\",\"b\"]]}"), NULL, NULL);
    CHECK(t, "acb", 0, 5);
    tern_tokenizer_free(t);
    t = good(PARTS("null", FUSE, WORDS(",\"<0xC3>\":6,\"<0xA9>\":7", "\"byte_fallback\":true,")), NULL, NULL);
    CHECK(t,
          "a\xC3\xA9"
          "cb",
          0, 3, 6, 7, 0, 4);
    tern_tokenizer_free(t);
}

#define E "\xC3\xA9" /* a character without a token, whose bytes have some */

/* The unknown token of characters comes behind the bytes of those that follow, and before the next plain token or at
 * the end of the word; what Hugging Face's tokenizers 0.23.3 gives. */
static void unknown_beside_bytes(void **state)
{
    (void)state;
    struct tern_tokenizer *t =
        good(PARTS("null", FUSE, WORDS(",\"<0xC3>\":6,\"<0xA9>\":7", "\"byte_fallback\":true,")), NULL, NULL);
    CHECK(t, "c" E, 0, 6, 7, 0);
    CHECK(t, E "c", 0, 6, 7, 0);
    CHECK(t, "c" E "a", 0, 6, 7, 0, 3);
    CHECK(t, "cd" E "a", 0, 0, 6, 7, 0, 3);
    CHECK(t, "c" E "d" E "ab", 0, 6, 7, 0, 6, 7, 0, 5);
    CHECK(t, "cd" E "bd" E E, 0, 0, 6, 7, 0, 4, 6, 7, 6, 7, 0);
    tern_tokenizer_free(t);
    t = good(PARTS("null", FUSE, WORDS(",\"<0xC3>\":6,\"<0xA9>\":7", "\"byte_fallback\":true,\"fuse_unk\":true,")),
             NULL, NULL);
    CHECK(t, "c" E "d" E "ab", 0, 6, 7, 6, 7, 0, 5);
    CHECK(t, "cd" E "bd" E E, 0, 6, 7, 0, 4, 6, 7, 6, 7, 0);
    CHECK(t, "cd" E "a", 0, 6, 7, 0, 3);
    tern_tokenizer_free(t);
}
#undef E

/* ---- refusals --------------------------------------------------------------------------------------------------- */

static void refused_with(const char *tokenizer, const char *config, const char *generation, int code, const char *words)
{
    tern_error err = {0};
    struct tern_tokenizer *t;
    int rc = load_json(tokenizer, config, generation, &t, &err);
    if (rc != code || !strstr(err.msg, words) || !strstr(err.msg, "dir/tokenizer.json"))
        fail_msg("code %d, message '%s', expected '%s'", rc, err.msg, words);
    assert_null(t);
}

static void unsupported_parts(void **state)
{
    (void)state;
    static const struct {
        const char *pre, *decoder, *words;
    } cases[] = {
        {"null", "null", "no decoder"},
        {"null", "{\"type\":\"WordPiece\"}", "decoder 'WordPiece'"},
        {"null", "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}", "decoder 'Strip'"},
        {"{\"type\":\"FixedLength\"}", FUSE, "pre-tokenizer 'FixedLength' is not supported"},
        {"{\"type\":\"Sequence\"}", FUSE, "has no list"},
        {"{\"type\":\"Split\"}", FUSE, "has no pattern"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Other\"}", FUSE, "behavior"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a[b]]\"},\"behavior\":\"Removed\"}", FUSE,
         "'[a[b]]' has a set of sets"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{2,3}+\"},\"behavior\":\"Removed\"}", FUSE,
         "a repeated repeat at byte 1"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a)\\\\1\"},\"behavior\":\"Removed\"}", FUSE,
         "an escape at byte 3"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<n>a)\"},\"behavior\":\"Removed\"}", FUSE,
         "a group at byte 0"},
        {"{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(\"},\"behavior\":\"Removed\"}", FUSE,
         "pattern 'a(' is refused"},
        {"{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"last\"}", FUSE, "prepend_scheme"},
        {"{\"type\":\"ByteLevel\"}", FUSE, "without a ByteLevel decoder"},
        {"{\"type\":\"ByteLevel\"}",
         "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteLevel\"},{\"type\":\"Replace\",\"pattern\":{\"String\":"
         "\"a\"},\"content\":\"b\"}]}",
         "a ByteLevel decoder beside one that replaces"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048];
        (void)snprintf(text, sizeof text, PARTS("%s", "%s", MODEL), cases[i].pre, cases[i].decoder);
        refused_with(text, NULL, NULL, TERN_EUNSUPPORTED, cases[i].words);
    }
    refused_with("{\"model\":{\"type\":\"WordPiece\"}}", NULL, NULL, TERN_EUNSUPPORTED, "the model is 'WordPiece'");
    refused_with("{\"normalizer\":{\"type\":\"Precompiled\"},\"model\":{\"type\":\"BPE\"}}", NULL, NULL,
                 TERN_EUNSUPPORTED, "normalizer 'Precompiled' has no table");
    static const struct {
        const char *table, *words;
    } tables[] = {
        {"", "0 bytes"},
        {"A", "no base64"},
        {"A*==", "no base64 at byte 1"},
        {"====", "no base64 at byte 0"},
        {"BAAAAA==", "a trie of 4 bytes"},
        {"AwAAAAAAAAAA", "a trie of 3 bytes"},
        {"/P///wAAAAAA", "a trie of 4294967292 bytes"},
        {"BAAAAAAAAABh", "the last text of the table has no end"},
        {"BAAAAAAAAAD/AA==", "not UTF-8 at byte 0"},
    };
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        char text[300];
        (void)snprintf(text, sizeof text,
                       "{\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"%s\"},"
                       "\"model\":{\"type\":\"BPE\"}}",
                       tables[i].table);
        refused_with(text, NULL, NULL, TERN_EFORMAT, tables[i].words);
    }
}

static void broken_files(void **state)
{
    (void)state;
    refused_with("{", NULL, NULL, TERN_EFORMAT, "tokenizer.json is not a JSON object");
    refused_with("[]", NULL, NULL, TERN_EFORMAT, "something else");
    refused_with(TINY, "7", NULL, TERN_EFORMAT, "tokenizer_config.json is not");
    refused_with(TINY, NULL, "{\"eos_token_id\":9}", TERN_EFORMAT, "eos_token_id names the token 9");
    refused_with(TINY, "{\"model_max_length\":1000000000000000019884624838656,\"bos_token\":\"<z>\"}", NULL,
                 TERN_EFORMAT,
                 "bos_token of tokenizer_config.json is '<z>'"); /* no limit, of 100 bits, is none of our numbers */
    refused_with(TINY, "{\"bos_token\":\"<z>\"}", NULL, TERN_EFORMAT, "bos_token of tokenizer_config.json is '<z>'");
    refused_with(TINY, "{\"add_eos_token\":true}", NULL, TERN_EFORMAT, "add_eos_token");
    refused_with(TINY, "{\"added_tokens_decoder\":{\"3\":{\"content\":\"c\"}}}", NULL, TERN_EFORMAT,
                 "both 'a' and 'c'");
    refused_with(TINY, "{\"added_tokens_decoder\":{\"x\":{\"content\":\"c\"}}}", NULL, TERN_EFORMAT, "out of range");
    refused_with(NULL, NULL, NULL, TERN_EINVAL, "no tokenizer.json");

    static const struct {
        const char *model, *words;
    } cases[] = {
        {"{\"type\":\"BPE\",\"merges\":[]}", "has no vocab"},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}", "a has the id -1"},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":\"1\"},\"merges\":[]}", "a has the id -1"},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":9000000},\"merges\":[]}", "out of range"},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":3,\"b\":3},\"merges\":[]}", "both 'a' and 'b'"},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":3}}", "merges of the model"},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":3},\"merges\":[\"aa\"]}", "merges[0]"},
        {"{\"type\":\"BPE\",\"vocab\":{\"a\":3},\"merges\":[[\"a\",\"a\"]]}", "merges[0]"},
        {"{\"type\":\"Unigram\",\"vocab\":[[\"a\"]]}", "vocab[0]"},
        {"{\"type\":\"Unigram\",\"unk_id\":10,\"vocab\":[[\"<unk>\",0]]}", "unk_id"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[2048];
        (void)snprintf(text, sizeof text, PARTS("null", FUSE, "%s"), cases[i].model);
        refused_with(text, NULL, NULL, TERN_EFORMAT, cases[i].words);
    }
}

#define FIXTURE(name)                                                          \
    {                                                                          \
        "recorded_" name, check_fixture, NULL, NULL, (void *)(uintptr_t)(name) \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        FIXTURE("llama3"),
        FIXTURE("qwen3"),
        FIXTURE("tekken"),
        FIXTURE("phi4"),
        FIXTURE("glm4"),
        FIXTURE("deepseek3"),
        FIXTURE("smollm"),
        FIXTURE("gpt2"),
        FIXTURE("llama4"),
        FIXTURE("falcon"),
        FIXTURE("gemma"),
        FIXTURE("phi3"),
        FIXTURE("mistral3"),
        FIXTURE("odd"),
        FIXTURE("unigram"),
        FIXTURE("t5"),
        cmocka_unit_test(beginnings_and_ends),
        cmocka_unit_test(names_of_special_tokens),
        cmocka_unit_test(notation),
        cmocka_unit_test(words_of_whitespace),
        cmocka_unit_test(windows),
        cmocka_unit_test(endless_looks),
        cmocka_unit_test(first_piece),
        cmocka_unit_test(added_tokens_are_no_pieces),
        cmocka_unit_test(white_space_behind_tokens),
        cmocka_unit_test(unknown_text),
        cmocka_unit_test(unknown_beside_bytes),
        cmocka_unit_test(unsupported_parts),
        cmocka_unit_test(broken_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

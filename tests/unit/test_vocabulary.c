/* Vocabularies made by hand, sound and broken: the rules for merges, unknown bytes, BOS and EOS, and every refusal. */
#include "tokenizer_test.h"

#define KEY "tokenizer.ggml."

/* ---- hand-made vocabularies --------------------------------------------------------------------------------- */

/* Byte-level BPE: 0 <s>  1 </s>  2 a  3 b  4 c  5 ab  6 bc  7 abc (no merge makes it)  8 <x> user-defined  9 unused. */
static const char *const tiny_tokens[] = {"<s>", "</s>", "a", "b", "c", "ab", "bc", "abc", "<x>", "cc"};
static const int32_t tiny_types[] = {3, 3, 1, 1, 1, 1, 1, 1, 4, 5};
static const char *const tiny_merges[] = {"b c", "a b"};
enum { TINY = 10 };

static void tiny_bpe(struct gguf_writer *w, const char *pre)
{
    gw_init(w);
    gw_str(w, KEY "model", "gpt2");
    if (pre)
        gw_str(w, KEY "pre", pre);
    gw_str_array(w, KEY "tokens", tiny_tokens, TINY);
    gw_array(w, KEY "token_type", GW_I32, tiny_types, TINY);
    gw_str_array(w, KEY "merges", tiny_merges, 2);
    gw_u32(w, KEY "bos_token_id", 0);
    gw_u32(w, KEY "eos_token_id", 1);
}

static void merges_by_rank_and_whole_words(void **state)
{
    (void)state;
    struct gguf_writer w;
    tiny_bpe(&w, "dbrx");
    struct tern_tokenizer *t = load_good(&w);
    CHECK(t, "abc", 0, 2, 6);
    CHECK(t, "abab", 0, 5, 5);
    CHECK(t, "cc", 0, 4, 4);
    assert_string_equal(tern_tokenizer_kind(t), "BPE, pre-tokenizer dbrx");
    CHECK(t, "abc", TERN_TOK_BOS_EOS, 2, 6); /* no BOS unless the file asks */
    tern_tokenizer_free(t);

    tiny_bpe(&w, "llama-v3");
    t = load_good(&w);
    CHECK(t, "abc", 0, 7);
    CHECK(t, "abcb", 0, 2, 6, 3);
    CHECK(t, "abc", TERN_TOK_BOS_EOS, 0, 7);
    tern_tokenizer_free(t);
}

static void bytes_without_a_token(void **state)
{
    (void)state;
    struct gguf_writer w;
    tiny_bpe(&w, "gpt-2");
    struct tern_tokenizer *t = load_good(&w);
    CHECK(t, "a?b\xFF", 0, 2, 3);
    assert_false(t->all_bytes);
    tern_tokenizer_free(t);

    static const int32_t types[] = {2, 3, 1, 1, 1, 1, 1, 1, 4, 5};
    gw_init(&w);
    gw_str(&w, KEY "model", "gpt2");
    gw_str(&w, KEY "pre", "gpt-2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_array(&w, KEY "token_type", GW_I32, types, TINY);
    gw_str_array(&w, KEY "merges", tiny_merges, 2);
    gw_u32(&w, KEY "unknown_token_id", 0);
    t = load_good(&w);
    CHECK(t, "a?b\xFF", 0, 2, 0, 3, 0);
    assert_int_equal(tern_tokenizer_bos(t), -1);
    tern_tokenizer_free(t);
}

static void bos_and_eos_rules(void **state)
{
    (void)state;
    struct gguf_writer w;
    tiny_bpe(&w, "gpt-2");
    gw_bool(&w, KEY "add_bos_token", true);
    gw_bool(&w, KEY "add_eos_token", true);
    struct tern_tokenizer *t = load_good(&w);
    CHECK(t, "", TERN_TOK_BOS_EOS, 0, 1);
    CHECK(t, "a", TERN_TOK_BOS_EOS, 0, 2, 1);
    CHECK(t, "<s>a", TERN_TOK_BOS_EOS | TERN_TOK_SPECIAL, 0, 2, 1);
    CHECK(t, "a", TERN_TOK_BOS_EOS | TERN_TOK_OPEN, 0, 2); /* what is to be continued has no end */
    CHECK(t, "<s>a", TERN_TOK_BOS_EOS, 0, 2, 1); /* plain text: < s > have no tokens here, and no control token */
    CHECK(t, "a", TERN_TOK_SPECIAL, 2);

    struct tern_ids ids = {0}; /* BOS belongs in front of what this call adds */
    assert_int_equal(tern_ids_add(&ids, 7, NULL), 0);
    assert_int_equal(tern_tokenize(t, "a", 1, TERN_TOK_BOS_EOS, &ids, NULL), 0);
    check_ids(&ids, (const int32_t[]){7, 0, 2, 1}, 4, "appended");
    tern_ids_clear(&ids);
    tern_tokenizer_free(t);
}

static void questions_about_tokens(void **state)
{
    (void)state;
    static const char *const tokens[] = {"a", "b", "<|im_end|>", "</s>", "<|eot_id|>", "c", "d"};
    static const int32_t types[] = {1, 1, 3, 4, 1, 1, 3};
    struct gguf_writer w;
    gw_init(&w);
    gw_str(&w, KEY "model", "gpt2");
    gw_str(&w, KEY "pre", "qwen2");
    gw_str_array(&w, KEY "tokens", tokens, 7);
    gw_array(&w, KEY "token_type", GW_I32, types, 7);
    gw_str_array(&w, KEY "merges", NULL, 0);
    gw_u32(&w, KEY "eos_token_id", 0);
    gw_u32(&w, KEY "eot_token_id", 5);
    gw_u32(&w, KEY "eom_token_id", 6);
    struct tern_tokenizer *t = load_good(&w);
    static const bool eog[] = {true, false, true, false, false, true, true};
    for (int i = 0; i < 7; i++) {
        assert_int_equal(tern_tokenizer_is_eog(t, i), eog[i]);
        assert_int_equal(tern_tokenizer_is_control(t, i), types[i] == 3);
        assert_string_equal(tern_tokenizer_piece(t, i), tokens[i]);
        assert_int_equal(tern_tokenizer_find(t, tokens[i], strlen(tokens[i])), i);
    }
    assert_int_equal(tern_tokenizer_n_vocab(t), 7);
    assert_int_equal(tern_tokenizer_eos(t), 0);
    assert_null(tern_tokenizer_piece(t, 7));
    assert_null(tern_tokenizer_piece(t, -1));
    assert_false(tern_tokenizer_is_eog(t, 7));
    assert_false(tern_tokenizer_is_control(t, -1));
    assert_int_equal(tern_tokenizer_find(t, "zz", 2), -1);
    assert_int_equal(tern_tokenizer_find(t, "", 0), -1);
    tern_tokenizer_free(t);
}

/* A merge that spells out a control token is dropped, so "<s>" in plain text stays text. */
static void no_merge_makes_a_control_token(void **state)
{
    (void)state;
    static const char *const tokens[] = {"<", "s", ">", "<s", "<s>"};
    static const int32_t types[] = {1, 1, 1, 1, 3};
    static const char *const merges[] = {"< s", "<s >"};
    struct gguf_writer w;
    gw_init(&w);
    gw_str(&w, KEY "model", "gpt2");
    gw_str(&w, KEY "pre", "smollm");
    gw_str_array(&w, KEY "tokens", tokens, 5);
    gw_array(&w, KEY "token_type", GW_I32, types, 5);
    gw_str_array(&w, KEY "merges", merges, 2);
    struct tern_tokenizer *t = load_good(&w);
    CHECK(t, "<s", 0, 0, 1); /* cut into words between < and s */
    CHECK(t, "<s>", 0, 0, 1, 2);
    CHECK(t, "<s>", TERN_TOK_SPECIAL, 4);
    tern_tokenizer_free(t);
}

/* Score BPE: 0 <unk> 1 a 2 b 3 ab 4 "_" 5 "_a" 6 "b_a" 7 aa; no byte tokens. */
static void tiny_spm(struct gguf_writer *w)
{
    static const char *const tokens[] = {
        "<unk>", "a", "b", "ab", "\xE2\x96\x81", "\xE2\x96\x81\x61", "b\xE2\x96\x81\x61", "aa"};
    static const int32_t types[] = {2, 1, 1, 1, 1, 1, 1, 1};
    static const float scores[] = {0, -9, -9, -3, -9, -1, -2, -3};
    gw_init(w);
    gw_str(w, KEY "model", "llama");
    gw_str_array(w, KEY "tokens", tokens, 8);
    gw_array(w, KEY "token_type", GW_I32, types, 8);
    gw_array(w, KEY "scores", GW_F32, scores, 8);
    gw_u32(w, KEY "unknown_token_id", 0);
}

static void merges_by_score(void **state)
{
    (void)state;
    struct gguf_writer w;
    tiny_spm(&w);
    gw_bool(&w, KEY "add_space_prefix", false);
    struct tern_tokenizer *t = load_good(&w);
    assert_string_equal(tern_tokenizer_kind(t), "SentencePiece BPE");
    CHECK(t, "ab", 0, 3);
    CHECK(t, "aab", 0, 7, 2);  /* aa and ab have one score: leftmost */
    CHECK(t, "b a", 0, 6);     /* a piece crosses the space */
    CHECK(t, "ab a", 0, 1, 6); /* _a, then b_a, which leaves nothing to ab */
    CHECK(t, "a a", 0, 1, 5);
    CHECK(t, "?!a\xFF?", 0, 0, 1, 0); /* a run of unknown text is one token */
    CHECK(t, "? ?", 0, 0, 4, 0);
    CHECK(t, "b\xE2\x96\x81\x61", 0, 6);
    tern_tokenizer_free(t);

    tiny_spm(&w);
    t = load_good(&w);
    CHECK(t, "a", 0, 5);
    CHECK(t, "", 0, /* nothing */);
    tern_tokenizer_free(t);
}

static void no_vocabulary(void **state)
{
    (void)state;
    struct gguf_writer w;
    gw_init(&w);
    gw_str(&w, KEY "model", "none");
    assert_null(load_good(&w));
    gw_init(&w);
    gw_str(&w, "general.architecture", "llama");
    assert_null(load_good(&w));
}

/* ---- broken vocabularies ------------------------------------------------------------------------------------ */

static void refused(struct gguf_writer *w, int code, const char *words)
{
    tern_error err = {0};
    struct tern_tokenizer *t;
    int rc = load_writer(w, &t, &err);
    if (rc != code || !strstr(err.msg, words) || !strstr(err.msg, "/tmp/tern-test-"))
        fail_msg("code %d, message '%s', expected '%s'", rc, err.msg, words);
    assert_null(t);
}

static void broken_names(void **state)
{
    (void)state;
    struct gguf_writer w;
    gw_init(&w);
    gw_str(&w, KEY "model", "bert");
    refused(&w, TERN_EUNSUPPORTED, "model is 'bert'");
    gw_init(&w);
    gw_u32(&w, KEY "model", 3);
    refused(&w, TERN_EFORMAT, KEY "model");
    gw_init(&w);
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    refused(&w, TERN_EFORMAT, "no " KEY "model");
    tiny_bpe(&w, "kimi-k2");
    refused(&w, TERN_EUNSUPPORTED, "'kimi-k2'");
    tiny_bpe(&w, "qwen");
    refused(&w, TERN_EUNSUPPORTED, "'qwen'");
    tiny_bpe(&w, NULL);
    refused(&w, TERN_EUNSUPPORTED, "no " KEY "pre");
    gw_init(&w);
    gw_str(&w, KEY "model", "llama");
    refused(&w, TERN_EFORMAT, "no " KEY "tokens");
}

static void start(struct gguf_writer *w, const char *model)
{
    gw_init(w);
    gw_str(w, KEY "model", model);
    gw_str(w, KEY "pre", "gpt-2");
}

static void broken_arrays(void **state)
{
    (void)state;
    struct gguf_writer w;
    static const int32_t bad_types[] = {3, 3, 1, 1, 1, 7, 1, 1, 4, 5};
    static const int32_t byte_type[] = {3, 3, 1, 1, 1, 6, 1, 1, 4, 5};
    start(&w, "gpt2");
    gw_array(&w, KEY "tokens", GW_I32, tiny_types, TINY);
    refused(&w, TERN_EFORMAT, KEY "tokens");
    start(&w, "gpt2");
    gw_str(&w, KEY "tokens", "a");
    refused(&w, TERN_EFORMAT, "not an array of strings");
    start(&w, "gpt2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, 0);
    refused(&w, TERN_EFORMAT, "0 entries");
    start(&w, "gpt2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_array(&w, KEY "token_type", GW_I32, tiny_types, TINY - 1);
    refused(&w, TERN_EFORMAT, "token_type has 9 entries but there are 10");
    start(&w, "gpt2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_array(&w, KEY "token_type", GW_I32, bad_types, TINY);
    refused(&w, TERN_EFORMAT, "token_type[5] is 7");
    start(&w, "gpt2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_array(&w, KEY "token_type", GW_I32, byte_type, TINY);
    refused(&w, TERN_EFORMAT, "tokens[5] is of type byte");
    start(&w, "gpt2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    refused(&w, TERN_EFORMAT, "no " KEY "merges");
    start(&w, "llama");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    refused(&w, TERN_EFORMAT, "no " KEY "scores");
    start(&w, "llama");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_array(&w, KEY "scores", GW_F32, (const float[TINY]){0}, TINY + 1 - 2);
    refused(&w, TERN_EFORMAT, "scores has 9 entries");
    start(&w, "llama");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_array(&w, KEY "scores", GW_F32, (const float[TINY]){0}, TINY);
    refused(&w, TERN_EFORMAT, "neither all 256 byte tokens");
    start(&w, "llama");
    gw_str_array(&w, KEY "tokens", tiny_tokens, 2);
    gw_array(&w, KEY "scores", GW_F32, (const float[]){0, __builtin_nanf("")}, 2);
    refused(&w, TERN_EFORMAT, "scores[1] is not a number");
}

/* A token whose type is 0, which says nothing, is one like others. */
static void undefined_types(void **state)
{
    (void)state;
    static const int32_t types[] = {3, 3, 0, 0, 0, 0, 0, 0, 4, 5};
    struct gguf_writer w;
    start(&w, "gpt2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_array(&w, KEY "token_type", GW_I32, types, TINY);
    gw_str_array(&w, KEY "merges", tiny_merges, 2);
    struct tern_tokenizer *t = load_good(&w);
    CHECK(t, "abab", 0, 5, 5);
    tern_tokenizer_free(t);
}

static void broken_merges(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "a", " ", "a ", " a", "ab", "a z", "z a", "b a", "a b c"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *merges[] = {"b c", bad[i]};
        struct gguf_writer w;
        start(&w, "gpt2");
        gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
        gw_str_array(&w, KEY "merges", merges, 2);
        refused(&w, TERN_EFORMAT, "merges[1]");
    }
}

static void broken_lengths(void **state)
{
    (void)state;
    static char text[TERN_TOK_MAX_PIECE + 2];
    const char *tokens[] = {"a", text};
    for (size_t n = TERN_TOK_MAX_PIECE - 1; n <= TERN_TOK_MAX_PIECE + 1; n++) {
        struct gguf_writer w;
        struct tern_tokenizer *t;
        memset(text, 'x', n);
        text[n] = 0;
        start(&w, "gpt2");
        gw_str_array(&w, KEY "tokens", tokens, 2);
        gw_str_array(&w, KEY "merges", NULL, 0);
        if (n <= TERN_TOK_MAX_PIECE) {
            t = load_good(&w);
            assert_int_equal(tern_tokenizer_find(t, text, n), 1);
            tern_tokenizer_free(t);
        } else {
            refused(&w, TERN_EFORMAT, "tokens[1] has 4097 bytes");
        }
    }
    for (size_t n = TERN_TOK_MAX_ADDED; n <= TERN_TOK_MAX_ADDED + 1; n++) {
        struct gguf_writer w;
        memset(text, 'x', n);
        text[n] = 0;
        start(&w, "gpt2");
        gw_str_array(&w, KEY "tokens", tokens, 2);
        gw_array(&w, KEY "token_type", GW_I32, (const int32_t[]){1, 4}, 2);
        gw_str_array(&w, KEY "merges", NULL, 0);
        if (n > TERN_TOK_MAX_ADDED) {
            refused(&w, TERN_EFORMAT, "at most 512");
            continue;
        }
        struct tern_tokenizer *t = load_good(&w);
        struct tern_ids ids = {0};
        encode_n(t, text, n, 0, &ids);
        check_ids(&ids, (const int32_t[]){1}, 1, "longest added token");
        tern_ids_clear(&ids);
        tern_tokenizer_free(t);
    }
}

static void broken_ids_and_flags(void **state)
{
    (void)state;
    static const char *const keys[] = {KEY "unknown_token_id", KEY "eot_token_id", KEY "eom_token_id"};
    struct gguf_writer w;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        tiny_bpe(&w, "gpt-2");
        gw_str(&w, keys[i], "0");
        refused(&w, TERN_EFORMAT, keys[i]);
        tiny_bpe(&w, "gpt-2");
        gw_u32(&w, keys[i], TINY - 1);
        tern_tokenizer_free(load_good(&w));
    }
    /* An id that is none of the vocabulary's names no token; whoever needs that token says so. */
    static const char *const all[] = {KEY "bos_token_id",     KEY "eos_token_id", KEY "eot_token_id",
                                      KEY "unknown_token_id", KEY "eom_token_id", KEY "seperator_token_id"};
    start(&w, "gpt2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_str_array(&w, KEY "merges", tiny_merges, 2);
    gw_u32(&w, all[0], TINY);
    gw_i32(&w, all[1], -1);
    for (size_t i = 2; i < sizeof all / sizeof all[0]; i++)
        gw_u64(&w, all[i], i % 2 ? UINT64_MAX : UINT32_MAX);
    struct tern_tokenizer *t = load_good(&w);
    assert_int_equal(tern_tokenizer_bos(t), -1);
    assert_int_equal(tern_tokenizer_eos(t), -1);
    assert_null(tern_tokenizer_names(t));
    tern_tokenizer_free(t);
    tiny_bpe(&w, "gpt-2");
    gw_u32(&w, KEY "padding_token_id", 1);
    gw_u32(&w, KEY "unknown_token_id", 2);
    t = load_good(&w);
    assert_string_equal(tern_tokenizer_names(t), "{\"unk_token\":\"a\",\"pad_token\":\"</s>\"}");
    tern_tokenizer_free(t);
    start(&w, "gpt2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_str_array(&w, KEY "merges", tiny_merges, 2);
    gw_u32(&w, KEY "bos_token_id", TINY);
    gw_bool(&w, KEY "add_bos_token", true);
    refused(&w, TERN_EFORMAT, "add_bos_token is true");
    /* Nothing is padded here, and files of models without such a token say -1, as they can. */
    tiny_bpe(&w, "gpt-2");
    gw_u32(&w, KEY "padding_token_id", UINT32_MAX);
    tern_tokenizer_free(load_good(&w));
    start(&w, "gpt2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_str_array(&w, KEY "merges", tiny_merges, 2);
    gw_bool(&w, KEY "add_bos_token", true);
    refused(&w, TERN_EFORMAT, "add_bos_token is true");
    start(&w, "gpt2");
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    gw_str_array(&w, KEY "merges", tiny_merges, 2);
    gw_bool(&w, KEY "add_eos_token", true);
    refused(&w, TERN_EFORMAT, "add_eos_token is true");
    tiny_bpe(&w, "gpt-2");
    gw_bool(&w, KEY "add_space_prefix", true);
    refused(&w, TERN_EUNSUPPORTED, "add_space_prefix");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_by_rank_and_whole_words),
        cmocka_unit_test(bytes_without_a_token),
        cmocka_unit_test(bos_and_eos_rules),
        cmocka_unit_test(questions_about_tokens),
        cmocka_unit_test(no_merge_makes_a_control_token),
        cmocka_unit_test(merges_by_score),
        cmocka_unit_test(no_vocabulary),
        cmocka_unit_test(broken_names),
        cmocka_unit_test(broken_arrays),
        cmocka_unit_test(undefined_types),
        cmocka_unit_test(broken_merges),
        cmocka_unit_test(broken_lengths),
        cmocka_unit_test(broken_ids_and_flags),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

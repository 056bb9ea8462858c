/* Encoding and decoding against small trained vocabularies with recorded ids (tests/data/tokenizer, made by
 * tools/compare_tokenizers.py from other implementations); long and hostile input; streams; rendered prompts. */
#include "base/rng.h"
#include "tokenizer_test.h"

/* ---- recorded ids ------------------------------------------------------------------------------------------- */

static void check_case(const struct tern_tokenizer *t, char *line, bool byte_level, bool prefix)
{
    char text[4096];
    struct tern_ids want = {0}, got = {0};
    struct tern_buf back = {0}, stream = {0}, expect = {0};
    char *modes = strsep(&line, "|");
    char *list = strsep(&line, "|");
    size_t n = unescape(line, text);
    for (char *p = list, *end; *p; p = end + (*end == ' '))
        assert_int_equal(tern_ids_add(&want, (int32_t)strtol(p, &end, 10), NULL), 0);
    for (; *modes; modes++) {
        encode_n(t, text, n, *modes == '1' ? TERN_TOK_SPECIAL : 0, &got);
        check_ids(&got, want.p, want.len, line);
        decode(t, &got, &back);
        decode_stream(t, &got, &stream);
        assert_text(&stream, back.p, back.len);
        if (t->nfc) {
            assert_int_equal(tern_nfc(text, n, &expect, NULL), 0);
        } else if (byte_level) {
            assert_int_equal(tern_buf_add(&expect, text, n, NULL), 0);
        } else {
            for (size_t i = 0; i < n; i++) {
                bool mark = n - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
                assert_int_equal(tern_buf_addc(&expect, mark ? ' ' : text[i], NULL), 0);
                i += mark ? 2 : 0;
            }
        }
        if (!prefix) /* with a prefix space, what follows an added token gains one for good */
            assert_text(&back, expect.p, expect.len);
        tern_buf_reset(&expect);
    }
    tern_ids_clear(&want);
    tern_ids_clear(&got);
    tern_buf_clear(&back);
    tern_buf_clear(&stream);
    tern_buf_clear(&expect);
}

static void check_fixture(const char *name)
{
    char path[512];
    struct tern_buf cases = {0};
    struct tern_tokenizer *t = load_fixture(name);
    (void)snprintf(path, sizeof path, "%s/tokenizer/%s.txt", TERN_TEST_DATA, name);
    assert_int_equal(tern_buf_read_file(&cases, path, 1 << 20, NULL), 0);
    int n = 0;
    for (char *rest = cases.p, *line; (line = strsep(&rest, "\n")) && rest;)
        if (*line != '#') {
            check_case(t, line, t->algo == TERN_TOK_BYTE_BPE, t->add_space_prefix);
            n++;
        }
    assert_true(n > 100);
    tern_buf_clear(&cases);
    tern_tokenizer_free(t);
}

static void recorded_smollm(void **state)
{
    (void)state;
    check_fixture("bpe-smollm");
}

static void recorded_gpt2(void **state)
{
    (void)state;
    check_fixture("bpe-gpt-2");
}

static void recorded_llama(void **state)
{
    (void)state;
    check_fixture("bpe-llama-bpe");
}

static void recorded_qwen2(void **state)
{
    (void)state;
    check_fixture("bpe-qwen2");
}

static void recorded_spm(void **state)
{
    (void)state;
    check_fixture("spm");
}

static void recorded_spm_prefix(void **state)
{
    (void)state;
    check_fixture("spm-prefix");
}

/* ---- long and hostile input --------------------------------------------------------------------------------- */

static const char *const fixtures[] = {"bpe-smollm", "bpe-gpt-2", "bpe-llama-bpe", "bpe-qwen2", "spm", "spm-prefix"};
enum { N_FIXTURES = 6 };

static void one_megabyte_of_one_thing(void **state)
{
    (void)state;
    /* The first four for every fixture, the rest for one of each kind. */
    static const char *const units[] = {"a",   " ", "\n", "\xF0\x9F\x98\x80", "=", "<b", "<|end|>", "\xE4\xB8\x80",
                                        "\xFF"};
    enum { SIZE = 1 << 20 };
    char *text = malloc(SIZE);
    struct tern_ids ids = {0};
    struct tern_buf back = {0};
    assert_non_null(text);
    for (int k = 0; k < N_FIXTURES; k++) {
        struct tern_tokenizer *t = load_fixture(fixtures[k]);
        bool all = k == 0 || k == N_FIXTURES - 2;
        for (size_t u = 0; u < (all ? sizeof units / sizeof units[0] : 4); u++) {
            size_t unit = strlen(units[u]);
            for (size_t i = 0; i < SIZE; i++)
                text[i] = units[u][i % unit];
            encode_n(t, text, SIZE, 0, &ids);
            decode(t, &ids, &back);
            if (!(t->add_space_prefix && strchr("\n<", units[u][0]))) /* those are added tokens */
                assert_text(&back, text, SIZE);
        }
        tern_tokenizer_free(t);
    }
    tern_buf_clear(&back);
    tern_ids_clear(&ids);
    free(text);
}

/* Random bytes, mostly not UTF-8, survive; so does every length around the border between the two merge loops. */
static void any_bytes_survive(void **state)
{
    (void)state;
    struct tern_rng r = {42};
    struct tern_ids ids = {0};
    struct tern_buf back = {0};
    char text[300];
    for (int k = 0; k < N_FIXTURES - 1; k++) {
        struct tern_tokenizer *t = load_fixture(fixtures[k]);
        for (int round = 0; round < 400; round++) {
            size_t n = tern_rng_u64(&r) % sizeof text;
            bool letters = round % 2;
            for (size_t i = 0; i < n; i++)
                text[i] = letters ? "abe= \xFF\xC3\xA9"[tern_rng_u64(&r) % 8] : (char)tern_rng_u64(&r);
            if (t->nfc) /* normalization is allowed to change what is UTF-8 */
                for (size_t i = 0; i < n; i++)
                    text[i] = (char)((uint8_t)text[i] >= 0xC0 && (uint8_t)text[i] < 0xF8 ? 0xFF : text[i]);
            encode_n(t, text, n, 0, &ids);
            decode(t, &ids, &back);
            assert_text(&back, text, n);
        }
        tern_tokenizer_free(t);
    }
    tern_buf_clear(&back);
    tern_ids_clear(&ids);
}

/* The list with a heap and the small arrays must agree: a word of n symbols is encoded by one, n + 40 by the other, and
 * with a piece boundary in between (a digit stands alone) the first ids are the same. */
static void merge_loops_agree(void **state)
{
    (void)state;
    struct tern_rng r = {7};
    struct tern_tokenizer *t = load_fixture("spm");
    struct tern_ids whole = {0}, part = {0};
    char text[128];
    for (int round = 0; round < 500; round++) {
        size_t n = 1 + tern_rng_u64(&r) % 24;
        for (size_t i = 0; i < n; i++)
            text[i] = "aeinrst=-"[tern_rng_u64(&r) % 9];
        memset(text + n, '\x01', 40); /* no piece of the vocabulary: bytes */
        encode_n(t, text, n, 0, &part);
        encode_n(t, text, n + 40, 0, &whole);
        assert_int_equal(whole.len, part.len + 40);
        check_ids(&part, whole.p, part.len, "long word");
    }
    tern_ids_clear(&whole);
    tern_ids_clear(&part);
    tern_tokenizer_free(t);
}

/* Words that were seen before are taken from a memo in long texts; normalized text has its own. */
static void repeated_text_repeats_ids(void **state)
{
    (void)state;
    enum { TIMES = 200 };
    static const char unit[] =
        " the lamp isn't \xC3\xA9t\xC3\xA9 e\xCC\x81te\xCC\x81, \xE6\x98\xA8\xE5\xA4\xA9 we'll 17 x";
    struct tern_buf text = {0};
    struct tern_ids one = {0}, all = {0};
    for (int i = 0; i < TIMES; i++)
        assert_int_equal(tern_buf_add(&text, unit, sizeof unit - 1, NULL), 0);
    for (int k = 0; k < N_FIXTURES - 1; k++) {
        struct tern_tokenizer *t = load_fixture(fixtures[k]);
        encode_n(t, unit, sizeof unit - 1, 0, &one);
        encode_n(t, text.p, text.len, 0, &all);
        assert_int_equal(all.len, TIMES * one.len);
        for (size_t i = 0; i < all.len; i++)
            assert_int_equal(all.p[i], one.p[i % one.len]);
        tern_tokenizer_free(t);
    }
    tern_buf_clear(&text);
    tern_ids_clear(&one);
    tern_ids_clear(&all);
}

static void too_long_is_refused(void **state)
{
    (void)state;
    tern_error err = {0};
    struct tern_ids ids = {0};
    struct tern_tokenizer *t = load_fixture("spm");
    assert_int_equal(tern_tokenize(t, "", (size_t)TERN_TOK_MAX_TEXT + 1, 0, &ids, &err), TERN_ELIMIT);
    assert_non_null(strstr(err.msg, "1073741825"));
    assert_int_equal(ids.len, 0);
    tern_tokenizer_free(t);
}

/* ---- streaming ---------------------------------------------------------------------------------------------- */

/* Pushes bytes one by one (through byte tokens) and compares with what Python's errors="replace" gives. */
static void check_stream(const struct tern_tokenizer *t, const char *bytes, size_t n, const char *want)
{
    struct tern_ids ids = {0};
    struct tern_buf out = {0};
    for (size_t i = 0; i < n; i++) {
        char piece[8];
        (void)snprintf(piece, sizeof piece, "<0x%02X>", (unsigned char)bytes[i]);
        int32_t id = tern_tokenizer_find(t, piece, 6);
        assert_true(id >= 0);
        assert_int_equal(tern_ids_add(&ids, id, NULL), 0);
    }
    decode_stream(t, &ids, &out);
    assert_text(&out, want, strlen(want));
    tern_buf_clear(&out);
    tern_ids_clear(&ids);
}

#define R                   "\xEF\xBF\xBD"
#define STREAM(bytes, want) check_stream(t, bytes, sizeof(bytes) - 1, want)

static void malformed_bytes_become_replacements(void **state)
{
    (void)state;
    struct tern_tokenizer *t = load_fixture("spm");
    STREAM("", "");
    STREAM("a", "a");
    STREAM("\xC3\xA9", "\xC3\xA9");
    STREAM("\xE2\x82\xAC\xF0\x9F\x98\x80", "\xE2\x82\xAC\xF0\x9F\x98\x80");
    STREAM("\x80", R);
    STREAM("\xC3", R);
    STREAM("\xC3z", R "z");
    STREAM("\xC0\x80", R R);
    STREAM("\xE2\x82", R);
    STREAM("\xE2\x82z", R "z");
    STREAM("\xE2\x82\xC3\xA9", R "\xC3\xA9");
    STREAM("\xE0\x80\x80", R R R);
    STREAM("\xED\xA0\x80", R R R);
    STREAM("\xED\x9F\xBF", "\xED\x9F\xBF");
    STREAM("\xF0\x9F\x98", R);
    STREAM("\xF0\x9F\x98\xF0\x9F\x98\x80", R "\xF0\x9F\x98\x80");
    STREAM("\xF0\x80\x80\x80", R R R R);
    STREAM("\xF4\x8F\xBF\xBF", "\xF4\x8F\xBF\xBF");
    STREAM("\xF4\x90\x80\x80", R R R R);
    STREAM("\xF5\xFF", R R);
    STREAM("\xE2\xE2\x82\xAC\xE2", R "\xE2\x82\xAC" R);
    tern_tokenizer_free(t);
}

static void control_tokens_are_silent_unless_asked(void **state)
{
    (void)state;
    struct tern_tokenizer *t = load_fixture("bpe-gpt-2");
    struct tern_ids ids = {0};
    struct tern_buf out = {0};
    encode_n(t, "<|start|>hi<|end|>", 18, TERN_TOK_SPECIAL, &ids);
    assert_int_equal(ids.p[0], tern_tokenizer_find(t, "<|start|>", 9));
    assert_int_equal(tern_detokenize(t, ids.p, ids.len, false, &out, NULL), 0);
    assert_text(&out, "hi", 2);
    decode(t, &ids, &out);
    assert_text(&out, "<|start|>hi<|end|>", 18);
    tern_buf_reset(&out);
    assert_int_equal(tern_token_bytes(t, ids.p[0], false, &out, NULL), 0);
    assert_int_equal(out.len, 0);
    assert_int_equal(tern_token_bytes(t, ids.p[0], true, &out, NULL), 0);
    assert_text(&out, "<|start|>", 9);

    tern_error err = {0};
    struct tern_detok d;
    tern_detok_init(&d, t, false);
    int32_t outside = tern_tokenizer_n_vocab(t);
    assert_int_equal(tern_token_bytes(t, outside, true, &out, &err), TERN_EINVAL);
    assert_int_equal(tern_token_bytes(t, -1, true, &out, NULL), TERN_EINVAL);
    assert_int_equal(tern_detokenize(t, &outside, 1, true, &out, NULL), TERN_EINVAL);
    assert_int_equal(tern_detok_push(&d, outside, &out, NULL), TERN_EINVAL);
    assert_non_null(strstr(err.msg, "420"));
    tern_buf_clear(&out);
    tern_ids_clear(&ids);
    tern_tokenizer_free(t);
}

static void prefix_space_comes_and_goes(void **state)
{
    (void)state;
    struct tern_tokenizer *t = load_fixture("spm-prefix");
    static const char *const texts[] = {"", "a", " ", "  a", "the lamp", "\xC3\xA9"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct tern_ids ids = {0};
        struct tern_buf out = {0};
        encode_n(t, texts[i], strlen(texts[i]), TERN_TOK_BOS_EOS, &ids);
        assert_int_equal(ids.p[0], tern_tokenizer_bos(t));
        assert_int_equal(tern_detokenize(t, ids.p, ids.len, false, &out, NULL), 0);
        assert_text(&out, texts[i], strlen(texts[i]));
        tern_ids_clear(&ids);
        tern_buf_clear(&out);
    }
    /* Behind an added token there is a prefix again. */
    int32_t a = tern_tokenizer_find(t, "\xE2\x96\x81\x61", 4);
    assert_true(a >= 0);
    CHECK(t, "a<b>a", 0, a, tern_tokenizer_find(t, "<b>", 3), a);
    tern_tokenizer_free(t);
}

/* ---- rendered prompts --------------------------------------------------------------------------------------- */

struct part {
    const char *text;
    bool user;
};

static void encode_turns(const struct tern_tokenizer *t, const struct part *parts, size_t n, struct tern_ids *ids,
                         struct tern_ids *borders)
{
    struct tern_rendered r = {0};
    struct tern_span spans[16];
    tern_error err = {0};
    assert_true(n <= sizeof spans / sizeof *spans);
    for (size_t i = 0; i < n; i++) {
        spans[i].begin = r.text.len;
        assert_int_equal(tern_buf_add(&r.text, parts[i].text, strlen(parts[i].text), NULL), 0);
        spans[i].end = r.text.len;
        spans[i].user = parts[i].user;
    }
    r.spans = spans;
    r.n_spans = n;
    ids->len = 0;
    if (tern_tokenize_turns(t, &r, ids, borders, &err) < 0)
        fail_msg("%s", err.msg);
    tern_buf_clear(&r.text);
}

static void encode_parts(const struct tern_tokenizer *t, const struct part *parts, size_t n, struct tern_ids *ids)
{
    encode_turns(t, parts, n, ids, NULL);
}

#define PARTS(t, ids, ...)                              \
    encode_parts(t, (const struct part[]){__VA_ARGS__}, \
                 sizeof((const struct part[]){__VA_ARGS__}) / sizeof(struct part), ids)

static void user_text_cannot_become_control(void **state)
{
    (void)state;
    struct tern_tokenizer *t = load_fixture("bpe-qwen2");
    struct tern_ids ids = {0}, plain = {0};
    int32_t bos = tern_tokenizer_bos(t), end = tern_tokenizer_eos(t), user = tern_tokenizer_find(t, "\n\n", 2);

    PARTS(t, &ids, {"<|start|>", false}, {"<|end|>", true}, {"<|end|>", false});
    encode_n(t, "<|end|>", 7, 0, &plain);
    assert_int_equal(ids.len, plain.len + 2);
    assert_int_equal(ids.p[0], bos); /* <|start|> is the BOS of this file: not added twice */
    assert_int_equal(ids.p[ids.len - 1], end);
    for (size_t i = 0; i < plain.len; i++)
        assert_int_equal(ids.p[i + 1], plain.p[i]);

    /* Half a control token on each side of a border is none; two template spans side by side are one text. */
    PARTS(t, &ids, {"<|en", false}, {"d|>", true});
    for (size_t i = 0; i < ids.len; i++)
        assert_true(ids.p[i] != end);
    PARTS(t, &ids, {"<|en", true}, {"d|>", false});
    for (size_t i = 0; i < ids.len; i++)
        assert_true(ids.p[i] != end);
    PARTS(t, &ids, {"<|en", false}, {"", true}, {"d|>", false});
    check_ids(&ids, (const int32_t[]){bos, end}, 2, "an empty message hides no token of the template");
    PARTS(t, &ids, {"<|en", false}, {"d|>", false});
    check_ids(&ids, (const int32_t[]){bos, end}, 2, "split template text");
    PARTS(t, &ids, {"<|end|>", false}, {"x", true}); /* the longer <|end|>x would need the user's x */
    assert_int_equal(ids.p[1], end);

    /* Ordinary text and user-defined tokens do not see borders. */
    PARTS(t, &ids, {"\n", false}, {"\n", true});
    check_ids(&ids, (const int32_t[]){bos, user}, 2, "newlines on both sides");
    PARTS(t, &ids, {"hou", false}, {"se the", true}, {" cat", false});
    encode_n(t, "house the cat", 13, TERN_TOK_BOS_EOS, &plain);
    check_ids(&ids, plain.p, plain.len, "one text in three spans");

    struct tern_rendered none = {0};
    ids.len = 0;
    assert_int_equal(tern_tokenize_rendered(t, &none, &ids, NULL), 0);
    check_ids(&ids, &bos, 1, "nothing rendered");
    tern_ids_clear(&ids);
    tern_ids_clear(&plain);
    tern_tokenizer_free(t);
}

/* Behind control tokens, as far as the first one behind the last message; what lies before them is the same whatever
 * follows. */
static void borders_lie_behind_control_tokens(void **state)
{
    (void)state;
    static const struct part turns[] = {{"<|start|>", false}, {"be brief", true},   {"<|end|>\n", false},
                                        {"house", true},      {"<|end|>", false},   {"\nthe ", false},
                                        {"<|end|>", true},    {"<|end|>\n", false}, {"<|start|>", false}};
    struct tern_tokenizer *t = load_fixture("bpe-qwen2");
    struct tern_ids ids = {0}, borders = {0}, head = {0};
    const int32_t end = tern_tokenizer_eos(t);
    for (size_t n = 1; n <= sizeof turns / sizeof *turns; n++) {
        static const size_t want[] = {1, 1, 2, 2, 3, 3, 3, 4, 4};
        borders.len = 0;
        encode_turns(t, turns, n, &ids, &borders);
        assert_int_equal(borders.len, want[n - 1]);
        for (size_t i = 0; i < borders.len; i++) {
            const size_t at = (size_t)borders.p[i];
            assert_true(at <= ids.len && ids.p[at - 1] == (i ? end : tern_tokenizer_bos(t)));
            encode_turns(t, turns, i == 0 ? 1 : i == 1 ? 3 : i == 2 ? 5 : 8, &head, NULL);
            assert_true(head.len >= at);
            assert_memory_equal(head.p, ids.p, at * sizeof *ids.p);
        }
    }
    /* A BOS that is put in front moves them; what is there stays. */
    borders.len = 0;
    assert_int_equal(tern_ids_add(&borders, 77, NULL), 0);
    encode_turns(t, turns + 1, 2, &ids, &borders);
    assert_int_equal(borders.len, 2);
    assert_int_equal(borders.p[0], 77);
    assert_int_equal(ids.p[0], tern_tokenizer_bos(t));
    assert_int_equal(ids.p[borders.p[1] - 1], end);
    tern_ids_clear(&ids);
    tern_ids_clear(&borders);
    tern_ids_clear(&head);
    tern_tokenizer_free(t);
}

static void spans_must_cover_the_text(void **state)
{
    (void)state;
    struct tern_tokenizer *t = load_fixture("spm");
    struct tern_ids ids = {0};
    struct tern_rendered r = {0};
    struct tern_span bad[][2] = {{{0, 2, true}, {3, 4, true}},
                                 {{0, 2, true}, {2, 3, true}},
                                 {{1, 2, true}, {2, 4, true}},
                                 {{0, 3, true}, {3, 2, true}},
                                 {{0, 2, true}, {2, 5, true}}};
    assert_int_equal(tern_buf_add(&r.text, "text", 4, NULL), 0);
    r.n_spans = 2;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        r.spans = bad[i];
        assert_int_equal(tern_tokenize_rendered(t, &r, &ids, NULL), TERN_EINVAL);
        assert_int_equal(ids.len, 0);
    }
    tern_buf_clear(&r.text);
    tern_tokenizer_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_smollm),
        cmocka_unit_test(recorded_gpt2),
        cmocka_unit_test(recorded_llama),
        cmocka_unit_test(recorded_qwen2),
        cmocka_unit_test(recorded_spm),
        cmocka_unit_test(recorded_spm_prefix),
        cmocka_unit_test(one_megabyte_of_one_thing),
        cmocka_unit_test(any_bytes_survive),
        cmocka_unit_test(merge_loops_agree),
        cmocka_unit_test(repeated_text_repeats_ids),
        cmocka_unit_test(too_long_is_refused),
        cmocka_unit_test(malformed_bytes_become_replacements),
        cmocka_unit_test(control_tokens_are_silent_unless_asked),
        cmocka_unit_test(prefix_space_comes_and_goes),
        cmocka_unit_test(user_text_cannot_become_control),
        cmocka_unit_test(borders_lie_behind_control_tokens),
        cmocka_unit_test(spans_must_cover_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The parts below the tokenizer: UTF-8, normalization, and the words of each pre-tokenizer. */
#include <utf8proc.h>

#include "base/rng.h"
#include "tokenizer_test.h"

/* ---- parts -------------------------------------------------------------------------------------------------- */

/* Against utf8proc's own normalization, on short strings of the characters that interact. */
static void nfc_equals_the_library(void **state)
{
    (void)state;
    static const uint32_t pool[] = {'a',    'e',    ' ',    0xE9,   0x301,   0x302, 0x323,  0x327,  0x345,   0x1100,
                                    0x1161, 0x11A8, 0xAC00, 0xAC01, 0x9C7,   0x9BE, 0x212B, 0xF900, 0x1E132, 0x3B1,
                                    0x1F70, 0x4E00, 0x300,  0xFB1D, 0x1D15E, 0x334, 0x3099, 0x304B, 0x0F71,  0x0F72};
    struct tern_rng r = {3};
    struct tern_buf text = {0}, got = {0};
    int quick = 0;
    for (int round = 0; round < 20000; round++) {
        tern_buf_reset(&text);
        tern_buf_reset(&got);
        size_t n = tern_rng_u64(&r) % 9;
        for (size_t i = 0; i < n; i++) {
            utf8proc_uint8_t utf8[4];
            uint32_t cp = pool[tern_rng_u64(&r) % (sizeof pool / sizeof pool[0])];
            if (round % 4 == 0) /* and any other */
                cp = (uint32_t)(tern_rng_u64(&r) % 0x2FA20);
            if (cp >= 0xD800 && cp < 0xE000)
                cp = 'x';
            utf8proc_ssize_t k = utf8proc_encode_char((utf8proc_int32_t)cp, utf8);
            assert_int_equal(tern_buf_add(&text, utf8, (size_t)k, NULL), 0);
        }
        assert_int_equal(tern_buf_add(&text, "", 0, NULL), 0);
        utf8proc_uint8_t *want = NULL;
        utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)text.p, (utf8proc_ssize_t)text.len, &want,
                                            UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        assert_true(len >= 0);
        assert_int_equal(tern_nfc(text.p, text.len, &got, NULL), 0);
        assert_text(&got, (const char *)want, (size_t)len);
        if (tern_nfc_quick(text.p, text.len)) {
            quick++;
            assert_text(&text, (const char *)want, (size_t)len);
        }
        free(want);
    }
    assert_true(quick > 100);
    tern_buf_clear(&text);
    tern_buf_clear(&got);
}

/* Marks in the wrong order: the library's own sort would take minutes for this. */
static void nfc_of_many_marks(void **state)
{
    (void)state;
    enum { PAIRS = 200000 };
    struct tern_buf text = {0}, got = {0};
    assert_int_equal(tern_buf_add(&text, "q", 1, NULL), 0);
    for (int i = 0; i < PAIRS; i++)
        assert_int_equal(tern_buf_add(&text, "\xCC\x81\xCC\xA3", 4, NULL), 0); /* U+0301 above, U+0323 below */
    assert_int_equal(tern_nfc(text.p, text.len, &got, NULL), 0);
    assert_int_equal(got.len, text.len);
    assert_memory_equal(got.p, "q\xCC\xA3\xCC\xA3", 5);
    assert_memory_equal(got.p + got.len - 4, "\xCC\x81\xCC\x81", 4);
    tern_buf_clear(&text);
    tern_buf_clear(&got);
}

static void names_of_pre_tokenizers(void **state)
{
    (void)state;
    static const char *const known[] = {"smollm", "gpt-2",     "llama-bpe", "llama3",          "llama-v3",
                                        "dbrx",   "smaug-bpe", "qwen2",     "deepseek-r1-qwen"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_non_null(tern_pretok_find(known[i], strlen(known[i])));
    assert_null(tern_pretok_find("smol", 4));
    assert_null(tern_pretok_find("smollm2", 7));
    assert_null(tern_pretok_find("", 0));
}

/* The words themselves, where they differ between patterns: a vocabulary of just the words in `want`, taken whole. */
static void check_words(const char *pre, const char *text, const char *want)
{
    struct tern_tokenizer *t;
    struct tern_ids ids = {0};
    struct tern_buf got = {0};
    char words[256];
    int32_t n = 0;
    const struct tern_pretok_info *info = tern_pretok_find(pre, strlen(pre));
    assert_non_null(info);
    assert_int_equal(tern_alloc(&t, 1, sizeof *t, NULL), 0);
    t->ignore_merges = true;
    t->unknown = -1;
    memset(t->byte_id, 0xFF, sizeof t->byte_id);
    assert_int_equal(tern_pretok_steps(info, &t->pre, NULL), 0);
    assert_int_equal(tern_tok_strings_init(&t->bytes, 32, sizeof words, NULL), 0);
    assert_int_equal(tern_tok_map_init(&t->by_bytes, 32, NULL), 0);
    (void)snprintf(words, sizeof words, "%s", want);
    for (char *rest = words, *word; (word = strsep(&rest, "|")); n++) {
        tern_tok_strings_set(&t->bytes, n, word, strlen(word));
        tern_tok_map_add(&t->by_bytes, &t->bytes, n);
    }
    encode_n(t, text, strlen(text), 0, &ids);
    for (size_t i = 0; i < ids.len; i++) {
        size_t len;
        const char *p = tern_tok_string(&t->bytes, ids.p[i], &len);
        assert_int_equal(tern_buf_add(&got, "|", i > 0, NULL), 0);
        assert_int_equal(tern_buf_add(&got, p, len, NULL), 0);
    }
    assert_string_equal(got.p, want);
    tern_buf_clear(&got);
    tern_ids_clear(&ids);
    tern_tokenizer_free(t);
}

static void words_of_pre_tokenizers(void **state)
{
    (void)state;
    check_words("gpt-2", "I'm  12 345!\n", "I|'m| | 12| 345|!|\n");
    check_words("smollm", "I'm  12 345!\n", "I|'m|  |1|2| |3|4|5|!|\n");
    check_words("llama-bpe", "I'M  12 34567!\n", "I|'M| | |12| |345|67|!\n");
    check_words("qwen2", "I'M  12 345!\n", "I|'M| | |1|2| |3|4|5|!\n");
    check_words("qwen2", "a\xCC\x81x", "a|\xCC\x81x");
    check_words("qwen35", "a\xCC\x81x", "a\xCC\x81x");
    check_words("gpt-4o", "theCat'S 1234 a/b\n", "the|Cat'S| |123|4| a|/b|\n");
    check_words("tekken", "theCat's 12!/\n", "the|Cat|'s| |1|2|!/\n");
    check_words("deepseek-v3", "ab1234\xE6\xBC\xA2 c.d $x\n\n", "ab|123|4|\xE6\xBC\xA2| c|.d| $|x|\n\n");
    check_words("joyai-llm", "  \n  \n  ab1234\xE3\x81\x82\xE6\xBC\xA2 c.d $x\n\n",
                "  \n  \n| | ab|123|4|\xE3\x81\x82\xE6\xBC\xA2| c|.d| $|x|\n\n"); /* DeepSeek-V4's name for it */
    check_words("deepseek-llm", "ab 12\n\nc  ", "ab| |1|2|\n|\n|c|  ");
    check_words("falcon", "a1234!!b", "a|123|4|!!|b");
    check_words("bloom", "a b,c (d", "a| b|,|c| (|d");
    check_words("tiny_aya", "a12345", "a|12|345");
    check_words("gpt-2", "x\xE1\xA0\x8Ey \xC2\x85z", "x|\xE1\xA0\x8E|y| |\xC2\x85|z");
}

/* tern_utf8_missing against its definition, for all two-byte beginnings: some continuation must be well-formed. */
static void beginnings_of_characters(void **state)
{
    (void)state;
    for (int a = 0; a < 256; a++)
        for (int b = 0; b < 256; b++) {
            char p[4] = {(char)a, (char)b, (char)0x80, (char)0x80};
            uint32_t cp;
            int len = tern_utf8_decode(p, 4, &cp);
            assert_int_equal(tern_utf8_missing(p, 2), len >= 2 ? len - 2 : -1);
        }
    uint32_t n = 0;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char p[4];
        uint32_t cp = 0;
        if (c >= 0xD800 && c < 0xE000)
            continue;
        int len = (int)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)p);
        n += tern_utf8_decode(p, (size_t)len, &cp) == len && cp == c &&
             tern_utf8_valid(p, (size_t)len) == (size_t)len &&
             (len == 1 || tern_utf8_decode(p, (size_t)len - 1, &cp) == 0);
    }
    assert_int_equal(n, 0x110000 - 0x800);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nfc_equals_the_library),   cmocka_unit_test(nfc_of_many_marks),
        cmocka_unit_test(names_of_pre_tokenizers),  cmocka_unit_test(words_of_pre_tokenizers),
        cmocka_unit_test(beginnings_of_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

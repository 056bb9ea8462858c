/* The tokenizer against small vocabularies: trained ones with recorded ids (tests/data/tokenizer, made by
 * tools/compare_tokenizers.py from other implementations) and hand-made ones, sound and broken. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include <utf8proc.h>

#include "base/rng.h"
#include "gguf_writer.h"
#include "text/tok_impl.h"

#define KEY "tokenizer.ggml."

/* ---- helpers ------------------------------------------------------------------------------------------------ */

static struct tern_tokenizer *load_path(const char *path)
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

static struct tern_tokenizer *load_fixture(const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tokenizer/%s.gguf", TERN_TEST_DATA, name);
    return load_path(path);
}

/* What loading the writer's file gives; the writer is cleared. */
static int load_writer(struct gguf_writer *w, struct tern_tokenizer **t, tern_error *err)
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

static struct tern_tokenizer *load_good(struct gguf_writer *w)
{
    tern_error err = {0};
    struct tern_tokenizer *t;
    if (load_writer(w, &t, &err) < 0)
        fail_msg("%s", err.msg);
    return t;
}

static void encode_n(const struct tern_tokenizer *t, const char *text, size_t n, unsigned flags, struct tern_ids *ids)
{
    tern_error err = {0};
    ids->len = 0;
    if (tern_tokenize(t, text, n, flags, ids, &err) < 0)
        fail_msg("%s", err.msg);
}

static void check_ids(const struct tern_ids *got, const int32_t *want, size_t n, const char *what)
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

#define CHECK(t, text, flags, ...)                                                       \
    do {                                                                                 \
        struct tern_ids ids_ = {0};                                                      \
        const int32_t want_[] = {__VA_ARGS__};                                           \
        encode_n((t), (text), sizeof(text) - 1, (flags), &ids_);                         \
        check_ids(&ids_, want_, sizeof want_ / sizeof want_[0], text);                   \
        tern_ids_clear(&ids_);                                                           \
    } while (0)

static void decode(const struct tern_tokenizer *t, const struct tern_ids *ids, struct tern_buf *out)
{
    tern_buf_reset(out);
    assert_int_equal(tern_detokenize(t, ids->p, ids->len, true, out, NULL), 0);
}

/* Every piece must be whole characters. */
static void decode_stream(const struct tern_tokenizer *t, const struct tern_ids *ids, struct tern_buf *out)
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

static void assert_text(const struct tern_buf *got, const char *want, size_t n)
{
    assert_int_equal(got->len, n);
    if (n)
        assert_memory_equal(got->p, want, n);
}

/* ---- recorded ids ------------------------------------------------------------------------------------------- */

static size_t unescape(const char *s, char *out)
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
            check_case(t, line, !t->spm, t->add_space_prefix);
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
    static const char *const units[] = {"a", " ", "\n", "\xF0\x9F\x98\x80", "=", "<b", "<|end|>", "\xE4\xB8\x80", "\xFF"};
    enum { SIZE = 1 << 20 };
    char *text = malloc(SIZE);
    struct tern_ids ids = {0};
    struct tern_buf back = {0};
    assert_non_null(text);
    for (int k = 0; k < N_FIXTURES; k++) {
        struct tern_tokenizer *t = load_fixture(fixtures[k]);
        for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
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

#define R "\xEF\xBF\xBD"
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
        n += tern_utf8_decode(p, (size_t)len, &cp) == len && cp == c && tern_utf8_valid(p, (size_t)len) == (size_t)len &&
             (len == 1 || tern_utf8_decode(p, (size_t)len - 1, &cp) == 0);
    }
    assert_int_equal(n, 0x110000 - 0x800);
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
        ids.p[0] = ids.p[ids.len - 1]; /* not at the start: the space belongs to the text */
        tern_ids_clear(&ids);
        tern_buf_clear(&out);
    }
    /* Behind an added token there is a prefix again. */
    CHECK(t, "the<b>the", 0, tern_tokenizer_find(t, "\xE2\x96\x81the", 6), tern_tokenizer_find(t, "<b>", 3),
          tern_tokenizer_find(t, "\xE2\x96\x81the", 6));
    tern_tokenizer_free(t);
}

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
    static const char *const tokens[] = {"<unk>", "a", "b", "ab", "\xE2\x96\x81", "\xE2\x96\x81" "a",
                                         "b\xE2\x96\x81" "a", "aa"};
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
    CHECK(t, "aab", 0, 7, 2);     /* aa and ab have one score: leftmost */
    CHECK(t, "b a", 0, 6);        /* a piece crosses the space */
    CHECK(t, "ab a", 0, 3, 5);    /* _a first, then ab before b_a could be had */
    CHECK(t, "a a", 0, 1, 5);
    CHECK(t, "?!a\xFF?", 0, 0, 1, 0); /* a run of unknown text is one token */
    CHECK(t, "? ?", 0, 0, 4, 0);
    CHECK(t, "b\xE2\x96\x81" "a", 0, 6);
    tern_tokenizer_free(t);

    tiny_spm(&w);
    t = load_good(&w);
    CHECK(t, "a", 0, 5);
    CHECK(t, "", 0 , /* nothing */);
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
    gw_str(&w, KEY "model", "gemma4");
    refused(&w, TERN_EUNSUPPORTED, "model is 'gemma4'");
    gw_init(&w);
    gw_u32(&w, KEY "model", 3);
    refused(&w, TERN_EFORMAT, KEY "model");
    gw_init(&w);
    gw_str_array(&w, KEY "tokens", tiny_tokens, TINY);
    refused(&w, TERN_EFORMAT, "no " KEY "model");
    tiny_bpe(&w, "tekken");
    refused(&w, TERN_EUNSUPPORTED, "'tekken'");
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
    static const char *const keys[] = {KEY "unknown_token_id", KEY "eot_token_id", KEY "eom_token_id",
                                       KEY "padding_token_id"};
    struct gguf_writer w;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        tiny_bpe(&w, "gpt-2");
        gw_u32(&w, keys[i], TINY);
        refused(&w, TERN_EFORMAT, keys[i]);
        tiny_bpe(&w, "gpt-2");
        gw_i32(&w, keys[i], -1);
        refused(&w, TERN_EFORMAT, keys[i]);
        tiny_bpe(&w, "gpt-2");
        gw_str(&w, keys[i], "0");
        refused(&w, TERN_EFORMAT, keys[i]);
        tiny_bpe(&w, "gpt-2");
        gw_u32(&w, keys[i], TINY - 1);
        tern_tokenizer_free(load_good(&w));
    }
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

/* ---- rendered prompts --------------------------------------------------------------------------------------- */

struct part {
    const char *text;
    bool user;
};

static void encode_parts(const struct tern_tokenizer *t, const struct part *parts, size_t n, struct tern_ids *ids)
{
    struct tern_rendered r = {0};
    struct tern_span spans[8];
    tern_error err = {0};
    for (size_t i = 0; i < n; i++) {
        spans[i].begin = r.text.len;
        assert_int_equal(tern_buf_add(&r.text, parts[i].text, strlen(parts[i].text), NULL), 0);
        spans[i].end = r.text.len;
        spans[i].user = parts[i].user;
    }
    r.spans = spans;
    r.n_spans = n;
    ids->len = 0;
    if (tern_tokenize_rendered(t, &r, ids, &err) < 0)
        fail_msg("%s", err.msg);
    tern_buf_clear(&r.text);
}

#define PARTS(t, ids, ...) \
    encode_parts(t, (const struct part[]){__VA_ARGS__}, sizeof((const struct part[]){__VA_ARGS__}) / sizeof(struct part), ids)

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

/* ---- parts -------------------------------------------------------------------------------------------------- */

/* Against utf8proc's own normalization, on short strings of the characters that interact. */
static void nfc_equals_the_library(void **state)
{
    (void)state;
    static const uint32_t pool[] = {'a',    'e',    ' ',    0xE9,   0x301,  0x302,  0x323,  0x327,  0x345,   0x1100,
                                    0x1161, 0x11A8, 0xAC00, 0xAC01, 0x9C7,  0x9BE,  0x212B, 0xF900, 0x1E132, 0x3B1,
                                    0x1F70, 0x4E00, 0x300,  0xFB1D, 0x1D15E, 0x334, 0x3099, 0x304B, 0x0F71, 0x0F72};
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
    static const char *const known[] = {"smollm", "gpt-2", "llama-bpe", "llama3",           "llama-v3",
                                        "dbrx",   "smaug-bpe", "qwen2", "deepseek-r1-qwen"};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        assert_string_equal(tern_pretok_find(known[i], strlen(known[i]))->name, known[i]);
    assert_null(tern_pretok_find("smol", 4));
    assert_null(tern_pretok_find("smollm2", 7));
    assert_null(tern_pretok_find("", 0));
}

/* The words themselves, where they differ between patterns. */
static void check_words(const char *pre, const char *text, const char *want)
{
    struct tern_pretok *p;
    struct tern_pretok_run run = {0};
    struct tern_buf got = {0};
    size_t n = strlen(text);
    assert_int_equal(tern_pretok_new(&p, tern_pretok_find(pre, strlen(pre)), NULL), 0);
    assert_int_equal(tern_pretok_begin(p, &run, NULL), 0);
    for (size_t i = 0, end; i < n; i = end) {
        assert_int_equal(tern_pretok_next(p, &run, text, n, i, &end, NULL), 0);
        assert_true(end > i && end <= n);
        if (i > 0)
            assert_int_equal(tern_buf_addc(&got, '|', NULL), 0);
        assert_int_equal(tern_buf_add(&got, text + i, end - i, NULL), 0);
    }
    assert_string_equal(got.p, want);
    tern_pretok_end(&run);
    tern_pretok_free(p);
    tern_buf_clear(&got);
}

static void words_of_pre_tokenizers(void **state)
{
    (void)state;
    check_words("gpt-2", "I'm  12 345!\n", "I|'m| | 12| 345|!|\n");
    check_words("smollm", "I'm  12 345!\n", "I|'m|  |1|2| |3|4|5|!|\n");
    check_words("llama-bpe", "I'M  12 34567!\n", "I|'M| | |12| |345|67|!\n");
    check_words("qwen2", "I'M  12 345!\n", "I|'M| | |1|2| |3|4|5|!\n");
    check_words("gpt-2", "x\xE1\xA0\x8Ey \xC2\x85z", "x|\xE1\xA0\x8E|y| |\xC2\x85|z");
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
        cmocka_unit_test(too_long_is_refused),
        cmocka_unit_test(malformed_bytes_become_replacements),
        cmocka_unit_test(beginnings_of_characters),
        cmocka_unit_test(control_tokens_are_silent_unless_asked),
        cmocka_unit_test(prefix_space_comes_and_goes),
        cmocka_unit_test(merges_by_rank_and_whole_words),
        cmocka_unit_test(bytes_without_a_token),
        cmocka_unit_test(bos_and_eos_rules),
        cmocka_unit_test(questions_about_tokens),
        cmocka_unit_test(no_merge_makes_a_control_token),
        cmocka_unit_test(merges_by_score),
        cmocka_unit_test(no_vocabulary),
        cmocka_unit_test(broken_names),
        cmocka_unit_test(broken_arrays),
        cmocka_unit_test(broken_merges),
        cmocka_unit_test(broken_lengths),
        cmocka_unit_test(broken_ids_and_flags),
        cmocka_unit_test(user_text_cannot_become_control),
        cmocka_unit_test(spans_must_cover_the_text),
        cmocka_unit_test(nfc_equals_the_library),
        cmocka_unit_test(nfc_of_many_marks),
        cmocka_unit_test(names_of_pre_tokenizers),
        cmocka_unit_test(words_of_pre_tokenizers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

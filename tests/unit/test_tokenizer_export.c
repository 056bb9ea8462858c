/* A tokenizer.json written as GGUF: what is read back gives the ids that Hugging Face `tokenizers` recorded for the
 * original; what GGUF has no words for is refused with the reason. */
#include "tokenizer_test.h"

#include <jansson.h>

#include "file/gguf_write.h"

static struct tern_str str(const char *p)
{
    return (struct tern_str){.p = p, .n = p ? strlen(p) : 0};
}

static int n_rows = 1000;

static int export_json(const char *tokenizer, const char *config, const char *generation, struct tern_buf *head,
                       tern_error *err)
{
    const struct tern_tokenizer_json files = {.name = "dir/tokenizer.json",
                                              .tokenizer = str(tokenizer),
                                              .config = str(config),
                                              .generation = str(generation)};
    struct tern_gguf g = {0};
    int rc = tern_tokenizer_to_gguf(&g, &files, n_rows, err);
    if (rc == 0)
        assert_int_equal(tern_gguf_head(&g, head, err), 0);
    else
        assert_int_equal(g.n_meta, 0);
    tern_gguf_clear(&g);
    return rc;
}

static struct tern_file *open_head(const struct tern_buf *head)
{
    tern_error err = {0};
    struct tern_file *f;
    if (tern_file_open_memory(&f, head->p, head->len, "exported", &err) < 0)
        fail_msg("%s", err.msg);
    return f;
}

static void read_data(struct tern_buf *out, const char *family, const char *ending)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/tokenizer/json-%s.%s", TERN_TEST_DATA, family, ending);
    assert_int_equal(tern_buf_read_file(out, path, 1 << 20, NULL), 0);
}

static void check_pre(const struct tern_file *f, const char *want)
{
    struct tern_str pre;
    assert_int_equal(tern_file_get_str(f, "tokenizer.ggml.pre", &pre, NULL), 0);
    assert_non_null(pre.p);
    if (pre.n != strlen(want) || memcmp(pre.p, want, pre.n) != 0)
        fail_msg("pre is %.*s, not %s", (int)pre.n, pre.p, want);
}

static void test_recorded_ids(void **state)
{
    static const struct {
        const char *family, *pre;
    } cases[] = {{"llama3", "llama-bpe"}, {"qwen3", "qwen2"},           {"smollm", "smollm"},
                 {"llama4", "gpt-4o"},    {"deepseek3", "deepseek-v3"}, {"tekken", "tekken"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tern_error err = {0};
        struct tern_buf json = {0}, lines = {0}, head = {0};
        struct tern_tokenizer *t = NULL;
        read_data(&json, cases[i].family, "json");
        if (export_json(json.p, NULL, NULL, &head, &err) < 0)
            fail_msg("%s: %s", cases[i].family, err.msg);
        struct tern_file *f = open_head(&head);
        check_pre(f, cases[i].pre);
        assert_int_equal(tern_tokenizer_from_file(&t, f, &err), 0);
        read_data(&lines, cases[i].family, "txt");
        check_json_lines(t, lines.p);
        tern_tokenizer_free(t);
        tern_file_close(&f);
        tern_buf_clear(&json);
        tern_buf_clear(&lines);
        tern_buf_clear(&head);
    }
}

/* ---- vocabularies of SentencePiece ------------------------------------------------------------------------------ */

struct pair {
    double score;
    int32_t id;
    size_t left; /* bytes of the first half */
};

/* The scores of these files come in pairs, which those of real ones do not: the lower id is the better one. */
static int by_score(const void *a, const void *b)
{
    const struct pair *x = a, *y = b;
    if (x->score != y->score)
        return x->score < y->score ? 1 : -1;
    return x->id != y->id ? x->id - y->id : (x->left > y->left) - (x->left < y->left);
}

/* All pairs of normal tokens that make one, best first: how a tokenizer.json is made of such a vocabulary. */
static json_t *merges_of(const struct tern_tokenizer *t, const double *scores, size_t drop)
{
    json_t *list = json_array();
    struct pair *pairs = calloc((size_t)t->n_vocab * 16, sizeof *pairs);
    size_t n = 0;
    assert_non_null(pairs);
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const char *p = tern_tokenizer_piece(t, id);
        for (size_t k = 1; t->type[id] == TERN_TOK_NORMAL && p[k]; k++) {
            const int32_t a = tern_tokenizer_find(t, p, k), b = tern_tokenizer_find(t, p + k, strlen(p + k));
            if (a >= 0 && b >= 0 && t->type[a] == TERN_TOK_NORMAL && t->type[b] == TERN_TOK_NORMAL)
                pairs[n++] = (struct pair){scores[id], id, k};
        }
    }
    assert_true(n > 100 && n < (size_t)t->n_vocab * 16);
    qsort(pairs, n, sizeof *pairs, by_score);
    for (size_t i = 0; i < n; i++)
        if (i != drop) {
            const char *p = tern_tokenizer_piece(t, pairs[i].id);
            json_array_append_new(list, json_pack("[s#s]", p, (int)pairs[i].left, p + pairs[i].left));
        }
    free(pairs);
    return list;
}

/* A GGUF vocabulary with scores as the tokenizer.json that it would have come from, less one merge. */
static char *json_of(const char *name, const struct tern_tokenizer *t, size_t drop)
{
    char path[512];
    struct tern_file *f;
    (void)snprintf(path, sizeof path, "%s/tokenizer/%s.gguf", TERN_TEST_DATA, name);
    assert_int_equal(tern_file_open(&f, path, NULL), 0);
    json_t *vocab = json_object(), *added = json_array(), *steps = json_array();
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const char *p = tern_tokenizer_piece(t, id);
        json_object_set_new(vocab, p, json_integer(id));
        if (tern_tok_is_added(t->type[id]) || t->type[id] == TERN_TOK_UNKNOWN)
            json_array_append_new(added, json_pack("{sisssbsb}", "id", (int)id, "content", p, "special",
                                                   t->type[id] != TERN_TOK_USER, "normalized", 0));
    }
    if (t->add_space_prefix)
        json_array_append_new(steps, json_pack("{ssss}", "type", "Prepend", "prepend", "\xE2\x96\x81"));
    json_array_append_new(
        steps, json_pack("{sss{ss}ss}", "type", "Replace", "pattern", "String", " ", "content", "\xE2\x96\x81"));
    json_t *decoders = json_pack("[{sss{ss}ss}{ss}{ss}]", "type", "Replace", "pattern", "String", "\xE2\x96\x81",
                                 "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (t->add_space_prefix)
        json_array_append_new(decoders,
                              json_pack("{sssssisi}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
    json_t *root = json_pack("{s{sssososssbsb}s{ssso}s{ssso}so}", "model", "type", "BPE", "vocab", vocab, "merges",
                             merges_of(t, tern_file_meta(f, "tokenizer.ggml.scores")->arr, drop), "unk_token",
                             tern_tokenizer_piece(t, t->unknown), "byte_fallback", 1, "fuse_unk", 1, "normalizer",
                             "type", "Sequence", "normalizers", steps, "decoder", "type", "Sequence", "decoders",
                             decoders, "added_tokens", added);
    assert_non_null(root);
    char *text = json_dumps(root, 0);
    json_decref(root);
    tern_file_close(&f);
    return text;
}

static void same_ids(const struct tern_tokenizer *a, const struct tern_tokenizer *b, const char *name)
{
    char path[512], text[4096];
    int n = 0;
    struct tern_buf lines = {0};
    struct tern_ids x = {0}, y = {0};
    (void)snprintf(path, sizeof path, "%s/tokenizer/%s.txt", TERN_TEST_DATA, name);
    assert_int_equal(tern_buf_read_file(&lines, path, 1 << 20, NULL), 0);
    for (char *rest = lines.p, *line; (line = strsep(&rest, "\n")) && rest;) {
        if (*line == '#')
            continue;
        const size_t len = unescape(strchr(strchr(line, '|') + 1, '|') + 1, text);
        for (int special = 0; special < 2; special++, n++) {
            encode_n(a, text, len, special ? TERN_TOK_SPECIAL : 0, &x);
            encode_n(b, text, len, special ? TERN_TOK_SPECIAL : 0, &y);
            check_ids(&y, x.p, x.len, line);
        }
    }
    assert_true(n > 140);
    tern_ids_clear(&x);
    tern_ids_clear(&y);
    tern_buf_clear(&lines);
}

static void test_scores(void **state)
{
    static const char *const names[] = {"spm", "spm-prefix"};
    (void)state;
    for (int i = 0; i < 2; i++) {
        tern_error err = {0};
        struct tern_buf head = {0};
        struct tern_tokenizer *t = load_fixture(names[i]), *original = NULL, *back = NULL;
        char *json = json_of(names[i], t, SIZE_MAX);
        const struct tern_tokenizer_json files = {.name = names[i], .tokenizer = str(json)};
        assert_int_equal(tern_tokenizer_from_json(&original, &files, &err), 0);
        assert_int_equal(original->algo, TERN_TOK_CHAR_BPE);
        if (export_json(json, NULL, NULL, &head, &err) < 0)
            fail_msg("%s: %s", names[i], err.msg);
        struct tern_file *f = open_head(&head);
        assert_int_equal(tern_tokenizer_from_file(&back, f, &err), 0);
        assert_int_equal(back->algo, TERN_TOK_SCORE_BPE);
        same_ids(original, back, names[i]);
        free(json);
        json = json_of(names[i], t, 40); /* a list that leaves out a pair is not one of scores */
        struct tern_buf none = {0};
        assert_int_equal(export_json(json, NULL, NULL, &none, &err), TERN_EUNSUPPORTED);
        assert_non_null(strstr(err.msg, "merges as scores"));
        free(json);
        tern_tokenizer_free(t);
        tern_tokenizer_free(original);
        tern_tokenizer_free(back);
        tern_file_close(&f);
        tern_buf_clear(&head);
    }
}

static void refused(const char *json, const char *config, const char *generation, const char *reason)
{
    tern_error err = {0};
    struct tern_buf head = {0};
    assert_int_equal(export_json(json, config, generation, &head, &err), TERN_EUNSUPPORTED);
    if (!strstr(err.msg, reason))
        fail_msg("\"%s\" does not say \"%s\"", err.msg, reason);
    tern_buf_clear(&head);
}

static void test_refused_families(void **state)
{
    static const struct {
        const char *family, *reason;
    } cases[] = {{"unigram", "Unigram"},         {"phi3", "added token"},       {"mistral3", "normalizer"},
                 {"odd", "found between words"}, {"gemma", "merges as scores"}, {"gpt2", "pre-tokenizer"},
                 {"falcon", "byte alphabet"},    {"phi4", "added token"},       {"glm4", "BOS and EOS"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tern_buf json = {0};
        read_data(&json, cases[i].family, "json");
        refused(json.p, NULL, NULL, cases[i].reason);
        tern_buf_clear(&json);
    }
}

/* A vocabulary of four letters, with `more` members and these added tokens. */
#define SMALL(pre, more, added)                                                                                       \
    "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"\\u0120\": 3}, \"merges\": "        \
    "[[\"a\", "                                                                                                       \
    "\"b\"]]}, \"pre_tokenizer\": " pre ", \"decoder\": {\"type\": \"ByteLevel\"}" more ", \"added_tokens\": [" added \
    "]}"
#define BYTES(prefix)   "{\"type\": \"ByteLevel\", \"add_prefix_space\": " prefix ", \"use_regex\": true}"
#define TOKEN(id, text) "{\"id\": " #id ", \"content\": \"" text "\", \"special\": true}"

static void test_refused_parts(void **state)
{
    (void)state;
    refused(SMALL(BYTES("true"), "", TOKEN(4, "<s>")), NULL, NULL, "pre-tokenizer");
    refused(SMALL(BYTES("false"), ", \"normalizer\": {\"type\": \"Lowercase\"}", TOKEN(4, "<s>")), NULL, NULL,
            "normalizer");
    refused(SMALL(BYTES("false"), "", "{\"id\": 4, \"content\": \"<w>\", \"special\": true, \"single_word\": true}"),
            NULL, NULL, "'<w>' is found between words");
    refused(SMALL(BYTES("false"), "", "{\"id\": 4, \"content\": \"<r>\", \"special\": true, \"rstrip\": true}"), NULL,
            NULL, "'<r>' takes the white space beside it");
    refused(SMALL(BYTES("false"), "", TOKEN(4, "<s>") ", " TOKEN(5, "<t>") ", " TOKEN(6, "<u>") ", " TOKEN(7, "<v>")),
            NULL, "{\"eos_token_id\": [4, 5, 6, 7]}", "three tokens end a text");
}

static void test_ids_and_gaps(void **state)
{
    tern_error err = {0};
    struct tern_buf head = {0};
    struct tern_tokenizer *t = NULL;
    (void)state;
    n_rows = 9;
    assert_int_equal(export_json(SMALL(BYTES("false"), "", TOKEN(9, "<s>")), NULL, NULL, &head, &err), TERN_EMISMATCH);
    assert_non_null(strstr(err.msg, "10 entries, the embedding has 9 rows"));
    n_rows = 12;
    assert_int_equal(export_json(SMALL(BYTES("false"), "", TOKEN(9, "<s>") ", " TOKEN(6, "<e>") ", " TOKEN(7, "<f>")),
                                 "{\"bos_token\": \"<s>\", \"add_bos_token\": true}", "{\"eos_token_id\": [6, 7]}",
                                 &head, &err),
                     0);
    struct tern_file *f = open_head(&head);
    assert_int_equal(tern_tokenizer_from_file(&t, f, &err), 0);
    assert_int_equal(tern_tokenizer_n_vocab(t), 12);
    assert_string_equal(tern_tokenizer_piece(t, 11), "[PAD11]"); /* rows of the embedding that no token has */
    assert_int_equal(tern_tokenizer_bos(t), 9);
    assert_int_equal(tern_tokenizer_eos(t), 6);
    assert_true(tern_tokenizer_is_eog(t, 7) && !tern_tokenizer_is_eog(t, 9));
    assert_string_equal(tern_tokenizer_piece(t, 4), "[PAD4]"); /* nothing has this id */
    assert_string_equal(tern_tokenizer_piece(t, 8), "[PAD8]");
    CHECK(t, "ab<e>[PAD4]b", TERN_TOK_SPECIAL | TERN_TOK_BOS_EOS, 9, 2, 6, 1);
    tern_tokenizer_free(t);
    tern_file_close(&f);
    tern_buf_clear(&head);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recorded_ids),     cmocka_unit_test(test_scores),
        cmocka_unit_test(test_refused_families), cmocka_unit_test(test_refused_parts),
        cmocka_unit_test(test_ids_and_gaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

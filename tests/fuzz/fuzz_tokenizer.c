/* Any text through both kinds of tokenizer, with flags from the first byte.  Properties:
 *   - byte-level BPE with all bytes: decode(encode(text)) == text, for any bytes at all
 *   - score BPE with byte tokens: the same, with U+2581 read as a space
 *   - a stream of the ids equals the one-shot decode where that is UTF-8
 *   - every id is in the vocabulary; plain text has no control token
 *   - NFC (of what is UTF-8) is the library's, and normalizing twice changes nothing
 *   - cutting the text into template and user spans finds control tokens in template spans only
 * The vocabularies are made at the first call, in memory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utf8proc.h>

#include "support/gguf_writer.h"
#include "text/tok/tok.h"

#define KEY      "tokenizer.ggml."
#define CHECK(x) ((x) ? (void)0 : (void)(fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), abort()))

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_KINDS = 4, MAX_TOKENS = 600 };

static struct tern_tokenizer *tokenizers[N_KINDS];

struct vocabulary {
    const char *tokens[MAX_TOKENS];
    int32_t types[MAX_TOKENS];
    float scores[MAX_TOKENS];
    char text[MAX_TOKENS][16];
    size_t n;
};

static void add(struct vocabulary *v, const char *text, int32_t type, float score)
{
    CHECK(v->n < MAX_TOKENS && strlen(text) < sizeof v->text[0]);
    strcpy(v->text[v->n], text);
    v->tokens[v->n] = v->text[v->n];
    v->types[v->n] = type;
    v->scores[v->n++] = score;
}

static struct tern_tokenizer *load(struct gguf_writer *w)
{
    size_t n;
    tern_error err = {0};
    struct tern_file *f = NULL;
    struct tern_tokenizer *t = NULL;
    char path[64];
    const uint8_t *p = gw_finish(w, &n);
    int fd = memfd_create("vocabulary", 0);
    CHECK(fd >= 0 && write(fd, p, n) == (ssize_t)n);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (tern_file_open(&f, path, &err) < 0 || tern_tokenizer_from_file(&t, f, &err) < 0) {
        fprintf(stderr, "%s\n", err.msg);
        abort();
    }
    tern_file_close(&f);
    (void)close(fd);
    gw_clear(w);
    return t;
}

static void add_specials(struct vocabulary *v)
{
    static const char *const control[] = {"<s>", "</s>", "<|x|>", "<|x|>>"};
    static const char *const user[] = {"<b>", "\n\n", "\n\n\n", "a<"};
    for (size_t i = 0; i < 4; i++)
        add(v, control[i], TERN_TOK_CONTROL, -1000);
    for (size_t i = 0; i < 4; i++)
        add(v, user[i], TERN_TOK_USER, -1000);
}

static struct tern_tokenizer *make_bpe(const char *pre)
{
    static const char *const merges[] = {"a a",
                                         "aa aa",
                                         "b c",
                                         "a b",
                                         "\xC4\xA0 a",
                                         "\xC4\x8A \xC4\x8A",
                                         "\xC4\xA0 \xC4\xA0",
                                         "\xC3\x83 \xC2\xA9",
                                         "\xC3\xB0 \xC5\x81",
                                         "1 2"};
    static struct vocabulary v;
    struct gguf_writer w;
    int next = 0x100;
    v.n = 0;
    add_specials(&v);
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
        utf8proc_uint8_t utf8[8] = {0};
        (void)utf8proc_encode_char(printable ? b : next++, utf8);
        add(&v, (const char *)utf8, TERN_TOK_NORMAL, 0);
    }
    for (size_t i = 0; i < sizeof merges / sizeof merges[0]; i++) {
        char joined[16];
        const char *gap = strchr(merges[i], ' ');
        (void)snprintf(joined, sizeof joined, "%.*s%s", (int)(gap - merges[i]), merges[i], gap + 1);
        add(&v, joined, TERN_TOK_NORMAL, 0);
    }
    gw_init(&w);
    gw_str(&w, KEY "model", "gpt2");
    gw_str(&w, KEY "pre", pre);
    gw_str_array(&w, KEY "tokens", v.tokens, v.n);
    gw_array(&w, KEY "token_type", GW_I32, v.types, v.n);
    gw_str_array(&w, KEY "merges", merges, sizeof merges / sizeof merges[0]);
    gw_u32(&w, KEY "bos_token_id", 0);
    gw_u32(&w, KEY "eos_token_id", 1);
    gw_bool(&w, KEY "add_bos_token", 1);
    return load(&w);
}

static struct tern_tokenizer *make_spm(void)
{
    static const char *const pieces[] = {"a",
                                         "b",
                                         "c",
                                         "\xE2\x96\x81",
                                         "aa",
                                         "ab",
                                         "bc",
                                         "aaaa",
                                         "\xE2\x96\x81\x61",
                                         "b\xE2\x96\x81\x63",
                                         "\xC3\xA9",
                                         "\xE4\xB8\x80",
                                         "\xE4\xB8\x80\xE4\xB8\x80"};
    static struct vocabulary v;
    struct gguf_writer w;
    v.n = 0;
    add(&v, "<unk>", TERN_TOK_UNKNOWN, 0);
    add_specials(&v);
    add(&v, "   ", TERN_TOK_USER, 0);
    for (int b = 0; b < 256; b++) {
        char text[8];
        (void)snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        add(&v, text, TERN_TOK_BYTE, 0);
    }
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
        add(&v, pieces[i], TERN_TOK_NORMAL, -(float)(i / 2));
    gw_init(&w);
    gw_str(&w, KEY "model", "llama");
    gw_str_array(&w, KEY "tokens", v.tokens, v.n);
    gw_array(&w, KEY "token_type", GW_I32, v.types, v.n);
    gw_array(&w, KEY "scores", GW_F32, v.scores, v.n);
    gw_u32(&w, KEY "bos_token_id", 1);
    gw_u32(&w, KEY "unknown_token_id", 0);
    gw_bool(&w, KEY "add_space_prefix", 0);
    return load(&w);
}

static void check_decode(const struct tern_tokenizer *t, const struct tern_ids *ids, const char *text, size_t n)
{
    struct tern_buf out = {0}, stream = {0};
    struct tern_detok d;
    CHECK(tern_detokenize(t, ids->p, ids->len, true, &out, NULL) == 0);
    tern_detok_init(&d, t, true);
    for (size_t i = 0; i < ids->len; i++)
        CHECK(tern_detok_push(&d, ids->p[i], &stream, NULL) == 0);
    CHECK(tern_detok_finish(&d, &stream, NULL) == 0);
    CHECK(tern_utf8_valid(stream.p, stream.len) == stream.len);
    if (tern_utf8_valid(out.p, out.len) == out.len)
        CHECK(stream.len == out.len && (out.len == 0 || memcmp(stream.p, out.p, out.len) == 0));
    if (t->algo == TERN_TOK_SCORE_BPE) {
        size_t k = 0;
        for (size_t i = 0; i < n; k++) {
            bool mark = n - i >= 3 && memcmp(text + i, "\xE2\x96\x81", 3) == 0;
            CHECK(k < out.len && out.p[k] == (mark ? ' ' : text[i]));
            i += mark ? 3 : 1;
        }
        CHECK(k == out.len);
    } else if (!t->nfc) {
        CHECK(out.len == n && (n == 0 || memcmp(out.p, text, n) == 0));
    }
    tern_buf_clear(&out);
    tern_buf_clear(&stream);
}

static void check_nfc(const char *text, size_t n)
{
    struct tern_buf once = {0}, twice = {0};
    utf8proc_uint8_t *want = NULL;
    if (n == 0 || n > 4096 || tern_utf8_valid(text, n) != n)
        return;
    utf8proc_ssize_t len =
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &want, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    CHECK(len > 0 && tern_nfc(text, n, &once, NULL) == 0);
    CHECK(once.len == (size_t)len && memcmp(once.p, want, once.len) == 0);
    CHECK(tern_nfc(once.p, once.len, &twice, NULL) == 0);
    CHECK(once.len == twice.len && memcmp(once.p, twice.p, once.len) == 0);
    if (tern_nfc_quick(text, n))
        CHECK(once.len == n && memcmp(once.p, text, n) == 0);
    tern_buf_clear(&once);
    tern_buf_clear(&twice);
    free(want);
}

/* Three spans, cut where the flags say; template text in the middle. */
static void check_spans(const struct tern_tokenizer *t, const char *text, size_t n, uint8_t flags)
{
    size_t a = n * (flags & 15) / 32, b = n / 2 + n * (flags >> 4) / 32;
    struct tern_span spans[3] = {{0, a, true}, {a, b, false}, {b, n, true}};
    struct tern_rendered r = {.spans = spans, .n_spans = 3};
    struct tern_ids ids = {0}, middle = {0};
    size_t in_all = 0, in_middle = 0;
    CHECK(tern_buf_add(&r.text, text, n, NULL) == 0);
    CHECK(tern_tokenize_rendered(t, &r, &ids, NULL) == 0);
    CHECK(tern_tokenize(t, text + a, b - a, TERN_TOK_SPECIAL, &middle, NULL) == 0);
    for (size_t i = t->n_front && (ids.len > 0); i < ids.len; i++)
        in_all += tern_tokenizer_is_control(t, ids.p[i]);
    for (size_t i = 0; i < middle.len; i++)
        in_middle += tern_tokenizer_is_control(t, middle.p[i]);
    /* A user-defined token across the first border may hide one control token, or uncover one by hiding another. */
    CHECK(in_all <= in_middle + 1);
    tern_buf_clear(&r.text);
    tern_ids_clear(&ids);
    tern_ids_clear(&middle);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (!tokenizers[0]) {
        tokenizers[0] = make_bpe("smollm");
        tokenizers[1] = make_bpe("llama-bpe");
        tokenizers[2] = make_bpe("qwen2");
        tokenizers[3] = make_spm();
    }
    if (size == 0)
        return 0;
    const struct tern_tokenizer *t = tokenizers[data[0] & 3];
    unsigned flags = data[0] >> 2 & TERN_TOK_SPECIAL;
    const char *text = (const char *)data + 1;
    size_t n = size - 1;
    struct tern_ids ids = {0};
    CHECK(tern_tokenize(t, text, n, flags, &ids, NULL) == 0);
    for (size_t i = 0; i < ids.len; i++) {
        CHECK(ids.p[i] >= 0 && ids.p[i] < tern_tokenizer_n_vocab(t));
        CHECK((flags & TERN_TOK_SPECIAL) || !tern_tokenizer_is_control(t, ids.p[i]));
    }
    check_decode(t, &ids, text, n);
    check_nfc(text, n);
    check_spans(t, text, n, data[0]);
    tern_ids_clear(&ids);
    return 0;
}

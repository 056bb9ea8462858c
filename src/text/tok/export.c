/* A tokenizer.json in the words of GGUF: tokenizer.ggml.*.
 *
 * GGUF names a pre-tokenizer where a tokenizer.json describes one, so the name has to be found: it is the first whose
 * words on a text made for this are those of the description.  What was written is read back and must agree with the
 * original in everything that is looked at here; otherwise the tokenizer is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "file/gguf_write.h"
#include "text/tok/encode.h"

#define KEY "tokenizer.ggml."

/* Everything that pre-tokenizers treat apart: letters of either case with endings, digits in runs of many lengths,
 * signs between and behind, white space of all kinds and lengths, marks, scripts with and without cases. */
static const char probe[] =
    "Hello world, it's I'LL we've HE'D don't DON'T 'S 'll'd'RE a'b can'tx \xC5\xBF'\xC5\xBF\n"
    "1 12 123 1234 12345 1234567890 3.14159 1,000,000 x1y22z333 007abc 5th \xD9\xA1\xD9\xA2\xD9\xA3\xD9\xA4 "
    "\xC2\xBD\xC2\xB2\xE2\x85\xA7 v2.0-rc1 0x1F 50% $9.99 1e-5\n\n"
    "  two   three    four\ttab\t\ttabs \r\n\r\n \n  \n   x\n\n\n\ny  \n\t z \xC2\xA0nbsp\xE3\x80\x80wide \xE2\x80\xA8"
    "line\n"
    "camelCase PascalCase HTTPServer iPhone XMLHttpRequest snake_case SCREAMING_SNAKE kebab-case a/b//c\n"
    "!? ... --- ===> a+b=c; {[(<x>)]} \"quoted\" 'single' `tick` #tag @name ~/path\\back|pipe^caret*star &amp; "
    "!word .word (word) -word _word /word\n"
    "\xC3\xA9t\xC3\xA9 e\xCC\x81t\xCC\xA7 na\xC3\xAFve Stra\xC3\x9F"
    "e \xC4\xB0stanbul \xC7\x85\xCA\xB0 "
    "\xD0\x9F\xD1\x80\xD0\xB8\xD0\xB2\xD0\xB5\xD1\x82 \xD0\xBC\xD0\xB8\xD1\x80 \xCE\x93\xCE\xB5\xCE\xB9\xCE\xAC\n"
    "\xE4\xBD\xA0\xE5\xA5\xBD\xEF\xBC\x8C\xE4\xB8\x96\xE7\x95\x8C\xE3\x80\x82 \xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE3"
    "\x81\xA8\xE3\x82\xAB\xE3\x82\xBF\xE3\x82\xAB\xE3\x83\x8A abc\xE6\xBC\xA2\xE5\xAD\x97"
    "123 "
    "\xED\x95\x9C\xEA\xB5\xAD\xEC\x96\xB4 \xE0\xB8\xAA\xE0\xB8\xA7\xE0\xB8\xB1\xE0\xB8\xAA \xE0\xA4\xA8\xE0\xA4\xAE"
    "\xE0\xA4\xB8\xE0\xA5\x8D\xE0\xA4\xA4\xE0\xA5\x87 \xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D "
    "\xD8\xB3\xD9\x84\xD8\xA7\xD9\x85\n"
    "\xE2\x80\x9Cx\xE2\x80\x9D \xE2\x80\xA6 \xE2\x80\x94 \xE2\x82\xAC"
    "5 \xC2\xB5m \xC2\xAB\xC2\xBB \xE2\x84\xA2 "
    "\xF0\x9F\x98\x80\xF0\x9F\x91\x8D\xF0\x9F\x8F\xBD\xE2\x80\x8D! \xF0\x9F\x87\xA9\xF0\x9F\x87\xAA \xE2\x88\x91x\xE2"
    "\x89\xA5y\n"
    "if (x == 1) {\n    return y+=2;  // done\n}\n\t\tfor i in range(10):\n\n        pass   ";

/* The lengths of the words that a text is cut into. */
static int words_of(struct tern_ids *out, const struct tern_tok_steps *pre, const char *text, size_t n, tern_error *err)
{
    int rc = 0;
    const struct tern_tokenizer t = {.algo = TERN_TOK_BYTE_BPE, .pre = *pre}; /* borrowed */
    struct tern_tok_work w = {.t = &t, .text = text, .lengths = out};
    TERN_TRY(tern_tok_regex_begin(&w.run, n, err));
    TERN_TRY(tern_tok_pieces(&w, 0, TERN_TOK_SOURCE_TEXT, 0, n, err));
out:
    tern_tok_regex_end(&w.run);
    tern_buf_clear(&w.copy);
    return rc;
}

static bool same_words(const struct tern_ids *a, const struct tern_ids *b)
{
    return a->len == b->len && memcmp(a->p, b->p, a->len * sizeof *a->p) == 0;
}

/* The first name of the first pre-tokenizer that cuts alike; *n 0: there is none. */
static int find_pre(const struct tern_tokenizer *t, const char **name, size_t *n, tern_error *err)
{
    int rc = 0;
    struct tern_ids want = {0}, have = {0};
    struct tern_tok_steps steps = {0};
    *n = 0;
    TERN_TRY(words_of(&want, &t->pre, probe, sizeof probe - 1, err));
    for (size_t i = 0; *n == 0; i++) {
        const struct tern_pretok_info *info = tern_pretok_at(i);
        if (!info)
            break;
        if (!(info->flags & TERN_PRETOK_NFC) != !t->nfc ||
            !(info->flags & TERN_PRETOK_IGNORE_MERGES) != !t->ignore_merges)
            continue;
        TERN_TRY(tern_pretok_steps(info, &steps, err));
        have.len = 0;
        TERN_TRY(words_of(&have, &steps, probe, sizeof probe - 1, err));
        tern_tok_steps_clear(&steps);
        if (same_words(&want, &have)) {
            *name = info->names;
            *n = strcspn(info->names, " ");
        }
    }
out:
    tern_tok_steps_clear(&steps);
    tern_ids_clear(&want);
    tern_ids_clear(&have);
    return rc;
}

/* ---- what GGUF has no words for ---------------------------------------------------------------------------------- */

static int refuse(const char *name, tern_error *err, const char *what)
{
    return tern_err_set(err, TERN_EUNSUPPORTED, "%s: GGUF cannot express %s", name, what);
}

static int check(const struct tern_tokenizer *t, const char *name, tern_error *err)
{
    char text[160];
    if (t->algo == TERN_TOK_UNIGRAM)
        return refuse(name, err, "Unigram");
    if (t->algo == TERN_TOK_BYTE_BPE && t->norm.n > (t->nfc ? 1 : 0))
        return refuse(name, err, "its normalizer");
    if (t->mapped)
        return refuse(name, err, "a pre-tokenizer that cuts in the byte alphabet");
    if (t->n_front > 1 || t->n_back > 1 || (t->n_front && t->front[0] != t->bos) || (t->n_back && t->back[0] != t->eos))
        return refuse(name, err, "other tokens around a text than BOS and EOS");
    for (int32_t i = 0; t->find && i < t->n_vocab; i++)
        if (t->find[i] & ~TERN_TOK_ALONE) {
            (void)snprintf(text, sizeof text, "that the added token '%.64s' %s", tern_tokenizer_piece(t, i),
                           t->find[i] & TERN_TOK_WORD ? "is found between words only"
                                                      : "takes the white space beside it with it");
            return refuse(name, err, text);
        }
    return 0;
}

/* ---- BPE of characters: spaces are written as U+2581, perhaps with one more in front, and nothing is cut ------- */

/* Is that what the steps do? *prefix: with one more in front. */
static int check_steps(const struct tern_tokenizer *t, const char *name, bool *prefix, tern_error *err)
{
    static const char mark[] = "\xE2\x96\x81";
    int rc = 0;
    struct tern_buf have = {0}, want = {0};
    struct tern_ids words = {0};
    struct tern_tok_regex_run run = {0};
    TERN_TRY(tern_tok_regex_begin(&run, sizeof probe - 1, err));
    TERN_TRY(tern_tok_normalize(&t->norm, &run, false, probe, sizeof probe - 1, &have, err));
    *prefix = have.len > 3 && memcmp(have.p, mark, 3) == 0;
    if (*prefix)
        TERN_TRY(tern_buf_add(&want, mark, 3, err));
    for (size_t i = 0; i < sizeof probe - 1; i++)
        TERN_TRY(probe[i] == ' ' ? tern_buf_add(&want, mark, 3, err) : tern_buf_addc(&want, probe[i], err));
    bool same = have.len == want.len && memcmp(have.p, want.p, want.len) == 0;
    if (!same) {
        rc = refuse(name, err, "its normalizer");
        goto out;
    }
    for (int i = 0; i < t->pre.n; i++)
        same = same && t->pre.step[i].kind == TERN_TOK_SPLIT;
    if (same)
        TERN_TRY(words_of(&words, &t->pre, have.p, have.len, err));
    if (!same || words.len != 1)
        rc = refuse(name, err, "its pre-tokenizer");
out:
    tern_tok_regex_end(&run);
    tern_buf_clear(&have);
    tern_buf_clear(&want);
    tern_ids_clear(&words);
    return rc;
}

static int put_scores(struct tern_gguf *g, const struct tern_tokenizer *t, const char *name, int n_rows,
                      tern_error *err)
{
    int rc = 0;
    bool prefix = false, same;
    float *scores = NULL;
    TERN_TRY(check_steps(t, name, &prefix, err));
    TERN_TRY(tern_alloc(&scores, (size_t)n_rows, sizeof *scores, err));
    TERN_TRY(tern_tok_scores(t, scores, &same, err));
    if (!same) {
        rc = refuse(name, err, "its merges as scores");
        goto out;
    }
    TERN_TRY(tern_gguf_put_str(g, KEY "model", "llama", 5, err));
    TERN_TRY(tern_gguf_put_f32s(g, KEY "scores", scores, (size_t)n_rows, err));
    TERN_TRY(tern_gguf_put_bool(g, KEY "add_space_prefix", prefix, err));
out:
    tern_free(scores);
    return rc;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

/* User-defined tokens of vocabularies with marks for spaces stand there with spaces: they are found in the text as it
 * is.  *text: what they are then, to be freed. */
static int undo_marks(const struct tern_tokenizer *t, struct tern_str *tokens, int n, char **text, tern_error *err)
{
    size_t all = 0, used = 0;
    if (t->algo != TERN_TOK_CHAR_BPE)
        return 0;
    for (int i = 0; i < n; i++)
        all += t->type[i] == TERN_TOK_USER ? tokens[i].n : 0;
    int rc = tern_alloc(text, all + 1, 1, err);
    for (int i = 0; rc == 0 && i < n; i++)
        if (t->type[i] == TERN_TOK_USER) {
            const size_t len = tern_tok_undo_marks(tokens[i].p, tokens[i].n, *text + used);
            tokens[i] = (struct tern_str){*text + used, len};
            used += len;
        }
    return rc;
}

static int put_tokens(struct tern_gguf *g, const struct tern_tokenizer *t, int n_rows, tern_error *err)
{
    int rc = 0;
    const size_t n = (size_t)n_rows;
    char *undone = NULL;
    struct tern_str *tokens = NULL;
    struct tern_buf names = {0};
    int32_t *types = NULL;
    TERN_TRY(tern_alloc(&tokens, n, sizeof *tokens, err));
    TERN_TRY(tern_alloc(&types, n, sizeof *types, err));
    for (int32_t i = 0; i < n_rows; i++) {
        types[i] = i < t->n_vocab ? t->type[i] : TERN_TOK_UNUSED;
        if (i < t->n_vocab)
            tokens[i].p = tern_tok_string(&t->piece, i, &tokens[i].n);
    }
    TERN_TRY(undo_marks(t, tokens, n_rows < t->n_vocab ? n_rows : t->n_vocab, &undone, err));
    for (int32_t i = 0; i < n_rows; i++)
        if (tokens[i].n == 0) /* ids without a token: readers want names that differ */
            TERN_TRY(tern_buf_addf(&names, err, "[PAD%d]", (int)i));
    const char *next = names.p;
    for (size_t i = 0; i < n; i++)
        if (tokens[i].n == 0 && next) {
            tokens[i].p = next;
            tokens[i].n = (size_t)(strchr(next, ']') + 1 - next);
            next += tokens[i].n;
        }
    TERN_TRY(tern_gguf_put_strs(g, KEY "tokens", tokens, n, err));
    TERN_TRY(tern_gguf_put_i32s(g, KEY "token_type", types, n, err));
out:
    tern_buf_clear(&names);
    tern_free(undone);
    tern_free(tokens);
    tern_free(types);
    return rc;
}

static int by_rank(const void *a, const void *b)
{
    const struct tern_tok_merge_rule *x = a, *y = b;
    return (x->rank > y->rank) - (x->rank < y->rank);
}

static int put_merges(struct tern_gguf *g, const struct tern_tokenizer *t, tern_error *err)
{
    int rc = 0;
    const size_t slots = t->rules ? t->rule_mask + 1 : 0;
    size_t n = 0;
    struct tern_tok_merge_rule *rules = NULL;
    struct tern_str *lines = NULL;
    struct tern_buf text = {0};
    TERN_TRY(tern_alloc(&rules, slots, sizeof *rules, err));
    TERN_TRY(tern_alloc(&lines, slots, sizeof *lines, err));
    for (size_t i = 0; i < slots; i++)
        if (t->rules[i].left >= 0)
            rules[n++] = t->rules[i];
    if (n)
        qsort(rules, n, sizeof *rules, by_rank);
    for (size_t i = 0; i < n; i++) {
        const size_t at = text.len;
        TERN_TRY(tern_buf_addf(&text, err, "%s %s", tern_tokenizer_piece(t, rules[i].left),
                               tern_tokenizer_piece(t, rules[i].right)));
        lines[i].n = text.len - at;
    }
    for (size_t i = 0, at = 0; i < n; at += lines[i++].n)
        lines[i].p = text.p + at;
    TERN_TRY(tern_gguf_put_strs(g, KEY "merges", lines, n, err));
out:
    tern_buf_clear(&text);
    tern_free(rules);
    tern_free(lines);
    return rc;
}

/* Ends of a generation that the reader will not find by itself: GGUF has two more words for them than EOS. */
static int put_ends(struct tern_gguf *g, const struct tern_tokenizer *t, const struct tern_tokenizer *found,
                    const char *name, tern_error *err)
{
    static const char *const keys[] = {KEY "eot_token_id", KEY "eom_token_id"};
    int rc = 0;
    size_t used = 0;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (t->eog[i] == found->eog[i])
            continue;
        if (used == sizeof keys / sizeof *keys)
            return refuse(name, err, "that more than three tokens end a text");
        TERN_TRY(tern_gguf_put_u32(g, keys[used++], (uint32_t)i, err));
    }
out:
    return rc;
}

static int put_id(struct tern_gguf *g, const char *key, int32_t id, tern_error *err)
{
    return id < 0 ? 0 : tern_gguf_put_u32(g, key, (uint32_t)id, err);
}

static int put_words(struct tern_gguf *g, const struct tern_tokenizer *t, const char *name, tern_error *err)
{
    int rc = 0;
    const char *pre = "";
    size_t n;
    TERN_TRY(find_pre(t, &pre, &n, err));
    if (n == 0)
        return refuse(name, err, "its pre-tokenizer");
    TERN_TRY(tern_gguf_put_str(g, KEY "model", "gpt2", 4, err));
    TERN_TRY(tern_gguf_put_str(g, KEY "pre", pre, n, err));
    TERN_TRY(put_merges(g, t, err));
out:
    return rc;
}

static int put_all(struct tern_gguf *g, const struct tern_tokenizer *t, const char *name, int n_rows, tern_error *err)
{
    int rc = 0;
    TERN_TRY(t->algo == TERN_TOK_BYTE_BPE ? put_words(g, t, name, err) : put_scores(g, t, name, n_rows, err));
    TERN_TRY(put_tokens(g, t, n_rows, err));
    TERN_TRY(put_id(g, KEY "bos_token_id", t->bos, err));
    TERN_TRY(put_id(g, KEY "eos_token_id", t->eos, err));
    TERN_TRY(put_id(g, KEY "unknown_token_id", t->unknown, err));
    TERN_TRY(tern_tok_names_to_gguf(g, t, err));
    TERN_TRY(tern_gguf_put_bool(g, KEY "add_bos_token", t->n_front > 0, err));
    TERN_TRY(tern_gguf_put_bool(g, KEY "add_eos_token", t->n_back > 0, err));
out:
    return rc;
}

/* ---- read back --------------------------------------------------------------------------------------------------- */

static int reopen(struct tern_tokenizer **out, const struct tern_gguf *g, tern_error *err)
{
    int rc = 0;
    struct tern_buf head = {0};
    struct tern_file *f = NULL;
    TERN_TRY(tern_gguf_head(g, &head, err));
    TERN_TRY(tern_file_open_memory(&f, head.p, head.len, "its tokenizer in GGUF", err));
    TERN_TRY(tern_tokenizer_from_file(out, f, err));
out:
    tern_file_close(&f);
    tern_buf_clear(&head);
    return rc;
}

static int compare(const struct tern_tokenizer *t, const struct tern_tokenizer *back, const char *name, tern_error *err)
{
    int rc = 0;
    struct tern_ids a = {0}, b = {0};
    TERN_TRY(tern_tokenize(t, probe, sizeof probe - 1, TERN_TOK_BOS_EOS, &a, err));
    TERN_TRY(tern_tokenize(back, probe, sizeof probe - 1, TERN_TOK_BOS_EOS, &b, err));
    if (!same_words(&a, &b) || t->drop_space != back->drop_space)
        rc = refuse(name, err, "how it encodes text");
    for (int32_t i = 0; i < t->n_vocab && rc == 0; i++) {
        size_t n, m;
        const char *p = tern_tok_view(t, i, false, &n), *q = tern_tok_view(back, i, false, &m);
        const bool named = tern_tokenizer_piece(t, i)[0] != 0;
        if (t->eog[i] != back->eog[i] || (named && (t->type[i] != back->type[i] || n != m || memcmp(p, q, n) != 0)))
            rc = refuse(name, err, "what one of its tokens stands for");
    }
out:
    tern_ids_clear(&a);
    tern_ids_clear(&b);
    return rc;
}

int tern_tokenizer_to_gguf(struct tern_gguf *g, const struct tern_tokenizer_json *files, int n_rows, tern_error *err)
{
    int rc = 0;
    struct tern_gguf alone = {0}; /* the tokenizer and nothing else */
    struct tern_tokenizer *t = NULL, *back = NULL;
    TERN_TRY(tern_tokenizer_from_json(&t, files, err));
    TERN_TRY(check(t, files->name, err));
    if (t->n_vocab > n_rows)
        TERN_FAIL(err, TERN_EMISMATCH, "%s: the tokenizer has %d entries, the embedding has %d rows", files->name,
                  t->n_vocab, n_rows);
    TERN_TRY(put_all(&alone, t, files->name, n_rows, err));
    TERN_TRY(reopen(&back, &alone, err));
    TERN_TRY(put_ends(&alone, t, back, files->name, err));
    tern_tokenizer_free(back);
    back = NULL;
    TERN_TRY(reopen(&back, &alone, err));
    TERN_TRY(compare(t, back, files->name, err));
    TERN_TRY(tern_buf_add(&g->meta, alone.meta.p, alone.meta.len, err));
    g->n_meta += alone.n_meta;
out:
    tern_tokenizer_free(t);
    tern_tokenizer_free(back);
    tern_gguf_clear(&alone);
    return rc;
}

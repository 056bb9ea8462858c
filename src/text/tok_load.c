/* Builds a tokenizer from GGUF metadata.  Nothing in the file is believed: types, counts, ids and lengths are checked
 * here, so that encoding and decoding need no checks of the vocabulary. */
#include "text/tok_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY "tokenizer.ggml."

struct load {
    const struct tern_file *f;
    struct tern_tokenizer *t;
    const struct tern_meta *tokens, *types, *scores, *merges; /* absent: NULL */
    const struct tern_pretok_info *pre;
};

/* The array under a key, or NULL when there is none. */
static int get_array(const struct tern_file *f, const char *key, enum tern_meta_type elem, const struct tern_meta **out,
                     tern_error *err)
{
    static const char *const names[] = {"integers", "floats", "booleans", "strings", "arrays"};
    const struct tern_meta *m = tern_file_meta(f, key);
    *out = m;
    if (m && (m->type != TERN_META_ARRAY || m->elem != elem))
        return tern_err_set(err, TERN_EFORMAT, "%s: %s at byte %llu is not an array of %s", tern_file_path(f), key,
                            (unsigned long long)m->file_offset, names[elem]);
    return 0;
}

static int check_length(const struct load *l, const struct tern_meta *m, tern_error *err)
{
    if (!m || m->n == l->tokens->n)
        return 0;
    return tern_err_set(err, TERN_EFORMAT, "%s: %s has %zu entries but there are %zu tokens", tern_file_path(l->f),
                        m->key, m->n, l->tokens->n);
}

/* Found in the raw text, before anything is cut or merged. */
static bool is_added(uint8_t type)
{
    return type == TERN_TOK_USER || tern_tok_is_control_type(type);
}

/* ---- tokens ------------------------------------------------------------------------------------------------- */

static int read_arrays(struct load *l, tern_error *err)
{
    int rc = 0;
    const char *path = tern_file_path(l->f);
    TERN_TRY(get_array(l->f, KEY "tokens", TERN_META_STRING, &l->tokens, err));
    TERN_TRY(get_array(l->f, KEY "token_type", TERN_META_INT, &l->types, err));
    TERN_TRY(get_array(l->f, KEY "scores", TERN_META_FLOAT, &l->scores, err));
    TERN_TRY(get_array(l->f, KEY "merges", TERN_META_STRING, &l->merges, err));
    if (!l->tokens)
        TERN_FAIL(err, TERN_EFORMAT, "%s: has no " KEY "tokens", path);
    if (l->tokens->n == 0 || l->tokens->n > TERN_TOK_MAX_VOCAB)
        TERN_FAIL(err, TERN_EFORMAT, "%s: " KEY "tokens has %zu entries; 1 to %d are possible", path, l->tokens->n,
                  TERN_TOK_MAX_VOCAB);
    TERN_TRY(check_length(l, l->types, err));
    TERN_TRY(check_length(l, l->scores, err));
    l->t->n_vocab = (int)l->tokens->n;
out:
    return rc;
}

static int read_types(struct load *l, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = l->t;
    size_t n = (size_t)t->n_vocab;
    TERN_TRY(tern_alloc(&t->type, n, sizeof *t->type, err));
    TERN_TRY(tern_alloc(&t->eog, n, sizeof *t->eog, err));
    memset(t->type, TERN_TOK_NORMAL, n);
    for (size_t i = 0; l->types && i < n; i++) {
        int64_t type = ((const int64_t *)l->types->arr)[i];
        if (type < TERN_TOK_NORMAL || type > TERN_TOK_BYTE)
            TERN_FAIL(err, TERN_EFORMAT, "%s: " KEY "token_type[%zu] is %lld; 1 to 6 are known", tern_file_path(l->f),
                      i, (long long)type);
        t->type[i] = (uint8_t)type;
    }
out:
    return rc;
}

/* The character that the byte alphabet of GPT-2 writes for each byte: itself where that is printable, else U+0100 and
 * up in order of the bytes.  of[cp] is the byte, or -1. */
enum { ALPHABET_END = 0x100 + 68 };

static void byte_alphabet(int16_t of[ALPHABET_END])
{
    int next = 0x100;
    for (int i = 0; i < ALPHABET_END; i++)
        of[i] = -1;
    for (int b = 0; b < 256; b++) {
        bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
        of[printable ? b : next++] = (int16_t)b;
    }
}

/* Writes the bytes behind a piece in the byte alphabet; returns their number, or n with the piece itself when it is
 * not written in that alphabet. */
static size_t undo_alphabet(const int16_t of[ALPHABET_END], const char *p, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        int len = tern_utf8_decode(p + i, n - i, &cp);
        if (len == 0 || cp >= ALPHABET_END || of[cp] < 0) {
            memcpy(out, p, n);
            return n;
        }
        out[k++] = (char)of[cp];
        i += (size_t)len;
    }
    return k;
}

/* Writes the piece with U+2581 as a space. */
static size_t undo_marks(const char *p, size_t n, char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n; k++) {
        bool mark = n - i >= 3 && memcmp(p + i, "\xE2\x96\x81", 3) == 0;
        out[k] = mark ? ' ' : p[i];
        i += mark ? 3 : 1;
    }
    return k;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* "<0x0A>" -> 10, anything else -> -1. */
static int byte_of_piece(const char *p, size_t n)
{
    if (n != 6 || memcmp(p, "<0x", 3) != 0 || p[5] != '>' || hex_digit(p[3]) < 0 || hex_digit(p[4]) < 0)
        return -1;
    return hex_digit(p[3]) * 16 + hex_digit(p[4]);
}

/* What token i stands for.  out has room for n bytes (at least 1). */
static int token_bytes(const struct load *l, size_t i, const int16_t *of, const struct tern_str *s, char *out,
                       size_t *n, tern_error *err)
{
    switch ((enum tern_tok_type)l->t->type[i]) {
    case TERN_TOK_BYTE: {
        int byte = byte_of_piece(s->p, s->n);
        if (byte < 0)
            return tern_err_set(err, TERN_EFORMAT, "%s: " KEY "tokens[%zu] is of type byte but not of the form <0x0A>",
                                tern_file_path(l->f), i);
        out[0] = (char)byte;
        *n = 1;
        return 0;
    }
    case TERN_TOK_NORMAL:
        *n = l->t->spm ? undo_marks(s->p, s->n, out) : undo_alphabet(of, s->p, s->n, out);
        return 0;
    case TERN_TOK_USER:
    case TERN_TOK_UNUSED:
        if (l->t->spm) {
            *n = undo_marks(s->p, s->n, out);
            return 0;
        }
        break;
    case TERN_TOK_CONTROL:
    case TERN_TOK_UNKNOWN:
        break;
    }
    if (s->n)
        memcpy(out, s->p, s->n);
    *n = s->n;
    return 0;
}

static int read_tokens(struct load *l, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = l->t;
    const struct tern_str *s = l->tokens->arr;
    size_t n = (size_t)t->n_vocab, total = 0;
    int16_t of[ALPHABET_END];
    char bytes[TERN_TOK_MAX_PIECE];
    byte_alphabet(of);
    for (size_t i = 0; i < n; i++) {
        size_t max = is_added(t->type[i]) ? TERN_TOK_MAX_ADDED : TERN_TOK_MAX_PIECE;
        if (s[i].n > max)
            TERN_FAIL(err, TERN_EFORMAT, "%s: " KEY "tokens[%zu] has %zu bytes; at most %zu are possible",
                      tern_file_path(l->f), i, s[i].n, max);
        total += s[i].n + 1; /* a <0x0A> is shorter as a byte, nothing is longer */
    }
    TERN_TRY(tern_tok_strings_init(&t->piece, n, total, err));
    TERN_TRY(tern_tok_strings_init(&t->bytes, n, total, err));
    TERN_TRY(tern_tok_map_init(&t->by_piece, n, err));
    for (size_t i = 0; i < n; i++) {
        size_t n_bytes = 0;
        TERN_TRY(token_bytes(l, i, of, &s[i], bytes, &n_bytes, err));
        tern_tok_strings_set(&t->piece, (int32_t)i, s[i].p, s[i].n);
        tern_tok_strings_set(&t->bytes, (int32_t)i, bytes, n_bytes);
        tern_tok_map_add(&t->by_piece, &t->piece, (int32_t)i);
    }
out:
    return rc;
}

/* ---- what the kinds share ----------------------------------------------------------------------------------- */

static int read_added(struct load *l, tern_error *err)
{
    struct tern_tokenizer *t = l->t;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (!is_added(t->type[i]))
            continue;
        size_t n;
        const char *p = tern_tok_string(&t->piece, i, &n);
        char text[TERN_TOK_MAX_ADDED];
        if (t->spm) {
            n = undo_marks(p, n, text);
            p = text;
        }
        int rc = tern_tok_trie_add(&t->added, p, n, i, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int get_id(const struct load *l, const char *key, int32_t *id, tern_error *err)
{
    int64_t v;
    int rc = tern_file_get_int(l->f, key, -1, 0, l->t->n_vocab - 1, &v, err);
    *id = rc < 0 ? -1 : (int32_t)v;
    return rc;
}

static int read_special(struct load *l, tern_error *err)
{
    /* Texts that end a turn in some family of models; they count only where the vocabulary says "control", because
     * "</s>" is an HTML tag to others. */
    static const char *const ends[] = {
        "<|im_end|>",       "<|eot_id|>",    "<|eom_id|>", "<|end_of_text|>", "<turn|>",      "</s>",
        "<|tool_response>", "<|endoftext|>", "<|user|>",   "<|observation|>", "<end_of_turn>"};
    int rc = 0;
    struct tern_tokenizer *t = l->t;
    int32_t id, pad;
    TERN_TRY(get_id(l, KEY "bos_token_id", &t->bos, err));
    TERN_TRY(get_id(l, KEY "eos_token_id", &t->eos, err));
    TERN_TRY(get_id(l, KEY "unknown_token_id", &t->unknown, err));
    TERN_TRY(get_id(l, KEY "padding_token_id", &pad, err)); /* not used, but a wrong one shows a broken file */
    if (t->eos >= 0)
        t->eog[t->eos] = true;
    TERN_TRY(get_id(l, KEY "eot_token_id", &id, err));
    if (id >= 0)
        t->eog[id] = true;
    TERN_TRY(get_id(l, KEY "eom_token_id", &id, err));
    if (id >= 0)
        t->eog[id] = true;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        id = tern_tokenizer_find(t, ends[i], strlen(ends[i]));
        if (id >= 0 && t->type[id] == TERN_TOK_CONTROL)
            t->eog[id] = true;
    }
out:
    return rc;
}

/* A flag that asks for a token which the file does not name is a contradiction, unless the flag is only our default. */
static int read_flag(const struct load *l, const char *key, bool def, int32_t id, bool *out, tern_error *err)
{
    int rc = tern_file_get_bool(l->f, key, def, out, err);
    if (rc < 0)
        return rc;
    if (*out && id < 0) {
        if (tern_file_meta(l->f, key))
            return tern_err_set(err, TERN_EFORMAT, "%s: %s is true but the file names no such token",
                                tern_file_path(l->f), key);
        *out = false;
    }
    return 0;
}

static int read_flags(struct load *l, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = l->t;
    TERN_TRY(read_flag(l, KEY "add_bos_token", t->spm || l->pre->add_bos, t->bos, &t->add_bos, err));
    TERN_TRY(read_flag(l, KEY "add_eos_token", false, t->eos, &t->add_eos, err));
    TERN_TRY(tern_file_get_bool(l->f, KEY "add_space_prefix", t->spm, &t->add_space_prefix, err));
    if (!t->spm && t->add_space_prefix)
        TERN_FAIL(err, TERN_EUNSUPPORTED,
                  "%s: " KEY "add_space_prefix is true; byte-level BPE with a prefix space is not supported",
                  tern_file_path(l->f));
out:
    return rc;
}

static void find_bytes(struct tern_tokenizer *t, enum tern_tok_type type)
{
    for (int b = 0; b < 256; b++)
        t->byte_id[b] = -1;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        size_t n;
        const char *p = tern_tok_string(&t->bytes, i, &n);
        if (t->type[i] == type && n == 1 && t->byte_id[(uint8_t)*p] < 0)
            t->byte_id[(uint8_t)*p] = i;
    }
    t->all_bytes = true;
    for (int b = 0; b < 256; b++)
        t->all_bytes = t->all_bytes && t->byte_id[b] >= 0;
}

static int index_bytes(struct tern_tokenizer *t, tern_error *err)
{
    int rc = tern_tok_map_init(&t->by_bytes, (size_t)t->n_vocab, err);
    if (rc < 0)
        return rc;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        size_t n;
        (void)tern_tok_string(&t->bytes, i, &n);
        if (t->type[i] != TERN_TOK_NORMAL || n == 0)
            continue;
        tern_tok_map_add(&t->by_bytes, &t->bytes, i);
        if (n > t->max_bytes)
            t->max_bytes = n;
    }
    return 0;
}

/* ---- byte-level BPE ----------------------------------------------------------------------------------------- */

static int read_pre(struct load *l, tern_error *err)
{
    int rc = 0;
    struct tern_str name;
    struct tern_tokenizer *t = l->t;
    const char *path = tern_file_path(l->f);
    TERN_TRY(tern_file_get_str(l->f, KEY "pre", &name, err));
    if (!name.p)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: has no " KEY "pre, so its pre-tokenizer is not known", path);
    l->pre = tern_pretok_find(name.p, name.n);
    if (!l->pre)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: " KEY "pre names the pre-tokenizer '%.*s', which is not supported", path,
                  (int)(name.n < 64 ? name.n : 64), name.p);
    TERN_TRY(tern_pretok_new(&t->pretok, l->pre, err));
    t->ignore_merges = l->pre->ignore_merges;
    t->nfc = l->pre->nfc;
    (void)snprintf(t->kind, sizeof t->kind, "BPE, pre-tokenizer %s", l->pre->name);
out:
    return rc;
}

static int read_merge(const struct load *l, size_t i, tern_error *err)
{
    struct tern_tokenizer *t = l->t;
    const struct tern_str *s = &((const struct tern_str *)l->merges->arr)[i];
    char joined[2 * TERN_TOK_MAX_PIECE];
    /* A piece may itself begin with a space only where it is that space, so the gap is the first one behind it. */
    const char *gap = s->n > 2 ? memchr(s->p + 1, ' ', s->n - 2) : NULL;
    if (!gap || s->n > sizeof joined)
        return tern_err_set(err, TERN_EFORMAT, "%s: " KEY "merges[%zu] is not two tokens with a space between",
                            tern_file_path(l->f), i);
    size_t n_left = (size_t)(gap - s->p), n_right = s->n - n_left - 1;
    memcpy(joined, s->p, n_left);
    memcpy(joined + n_left, gap + 1, n_right);
    struct tern_tok_merge_rule rule = {.left = tern_tokenizer_find(t, s->p, n_left),
                                       .right = tern_tokenizer_find(t, gap + 1, n_right),
                                       .rank = (uint32_t)i,
                                       .id = tern_tokenizer_find(t, joined, n_left + n_right)};
    if (rule.left < 0 || rule.right < 0 || rule.id < 0)
        return tern_err_set(err, TERN_EFORMAT,
                            "%s: " KEY "merges[%zu] names or makes a token that is not in " KEY "tokens",
                            tern_file_path(l->f), i);
    if (t->type[rule.left] == TERN_TOK_NORMAL && t->type[rule.right] == TERN_TOK_NORMAL &&
        t->type[rule.id] == TERN_TOK_NORMAL)
        tern_tok_rules_add(t, &rule);
    return 0;
}

static int load_bpe(struct load *l, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = l->t;
    if (!l->merges)
        TERN_FAIL(err, TERN_EFORMAT, "%s: has no " KEY "merges", tern_file_path(l->f));
    if (l->merges->n > TERN_TOK_MAX_VOCAB)
        TERN_FAIL(err, TERN_EFORMAT, "%s: " KEY "merges has %zu entries; at most %d are possible", tern_file_path(l->f),
                  l->merges->n, TERN_TOK_MAX_VOCAB);
    TERN_TRY(tern_tok_rules_init(t, l->merges->n, err));
    for (size_t i = 0; i < l->merges->n; i++)
        TERN_TRY(read_merge(l, i, err));
    if (t->ignore_merges)
        TERN_TRY(index_bytes(t, err));
    find_bytes(t, TERN_TOK_NORMAL);
    for (int b = 0; b < 256; b++)
        if (t->byte_id[b] < 0 && t->unknown >= 0 && t->type[t->unknown] == TERN_TOK_UNKNOWN)
            t->byte_id[b] = t->unknown;
out:
    return rc;
}

/* ---- score BPE ---------------------------------------------------------------------------------------------- */

struct scored {
    double score;
    int32_t id;
};

static int by_falling_score(const void *a, const void *b)
{
    double x = ((const struct scored *)a)->score, y = ((const struct scored *)b)->score;
    return x > y ? -1 : x < y ? 1 : 0;
}

/* Equal scores get equal ranks: between them the leftmost pair wins. */
static int rank_scores(struct load *l, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = l->t;
    struct scored *order = NULL;
    size_t n = (size_t)t->n_vocab;
    TERN_TRY(tern_alloc(&t->rank, n, sizeof *t->rank, err));
    TERN_TRY(tern_alloc(&order, n, sizeof *order, err));
    for (size_t i = 0; i < n; i++) {
        double score = ((const double *)l->scores->arr)[i];
        if (isnan(score))
            TERN_FAIL(err, TERN_EFORMAT, "%s: " KEY "scores[%zu] is not a number", tern_file_path(l->f), i);
        order[i] = (struct scored){.score = score, .id = (int32_t)i};
    }
    qsort(order, n, sizeof *order, by_falling_score);
    for (size_t i = 0; i < n; i++) {
        bool tie = i > 0 && by_falling_score(&order[i - 1], &order[i]) == 0;
        t->rank[order[i].id] = tie ? t->rank[order[i - 1].id] : (uint32_t)i;
    }
out:
    tern_free(order);
    return rc;
}

static void find_cuts(struct tern_tokenizer *t)
{
    for (int b = 0; b < 256; b++)
        t->cut_after[b] = b != ' ';
    for (int32_t id = 0; id < t->n_vocab; id++) {
        size_t n;
        const char *p = tern_tok_string(&t->bytes, id, &n);
        for (size_t i = 1; t->type[id] == TERN_TOK_NORMAL && i < n; i++)
            if (p[i] == ' ')
                t->cut_after[(uint8_t)p[i - 1]] = false;
    }
}

static int load_spm(struct load *l, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = l->t;
    if (!l->scores)
        TERN_FAIL(err, TERN_EFORMAT, "%s: has no " KEY "scores", tern_file_path(l->f));
    TERN_TRY(rank_scores(l, err));
    TERN_TRY(index_bytes(t, err));
    find_cuts(t);
    find_bytes(t, TERN_TOK_BYTE);
    if (!t->all_bytes && t->unknown < 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: the vocabulary has neither all 256 byte tokens nor a " KEY "unknown_token_id",
                  tern_file_path(l->f));
    (void)snprintf(t->kind, sizeof t->kind, "SentencePiece BPE%s", t->all_bytes ? ", byte fallback" : "");
out:
    return rc;
}

/* ---- entry -------------------------------------------------------------------------------------------------- */

enum { KIND_NONE, KIND_BPE, KIND_SPM };

static int read_kind(const struct tern_file *f, int *kind, tern_error *err)
{
    struct tern_str model;
    int rc = tern_file_get_str(f, KEY "model", &model, err);
    if (rc < 0)
        return rc;
    if (!model.p && tern_file_meta(f, KEY "tokens"))
        return tern_err_set(err, TERN_EFORMAT, "%s: has " KEY "tokens but no " KEY "model", tern_file_path(f));
    if (!model.p || (model.n == 4 && memcmp(model.p, "none", 4) == 0))
        *kind = KIND_NONE;
    else if (model.n == 4 && memcmp(model.p, "gpt2", 4) == 0)
        *kind = KIND_BPE;
    else if (model.n == 5 && memcmp(model.p, "llama", 5) == 0)
        *kind = KIND_SPM;
    else
        return tern_err_set(err, TERN_EUNSUPPORTED, "%s: " KEY "model is '%.*s'; gpt2, llama and none are supported",
                            tern_file_path(f), (int)(model.n < 64 ? model.n : 64), model.p);
    return 0;
}

int tern_tokenizer_from_file(struct tern_tokenizer **out, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    int kind = KIND_NONE;
    struct load l = {.f = f};
    *out = NULL;
    TERN_TRY(read_kind(f, &kind, err));
    if (kind == KIND_NONE)
        return 0;
    TERN_TRY(tern_alloc(&l.t, 1, sizeof *l.t, err));
    l.t->spm = kind == KIND_SPM;
    TERN_TRY(read_arrays(&l, err));
    if (!l.t->spm)
        TERN_TRY(read_pre(&l, err));
    TERN_TRY(read_types(&l, err));
    TERN_TRY(read_tokens(&l, err));
    TERN_TRY(read_added(&l, err));
    TERN_TRY(read_special(&l, err));
    TERN_TRY(read_flags(&l, err));
    TERN_TRY(l.t->spm ? load_spm(&l, err) : load_bpe(&l, err));
    *out = l.t;
    return 0;
out:
    tern_tokenizer_free(l.t);
    return rc;
}

void tern_tokenizer_free(struct tern_tokenizer *t)
{
    if (!t)
        return;
    tern_free(t->type);
    tern_free(t->eog);
    tern_tok_strings_clear(&t->piece);
    tern_tok_strings_clear(&t->bytes);
    tern_tok_map_clear(&t->by_piece);
    tern_tok_map_clear(&t->by_bytes);
    tern_tok_trie_clear(&t->added);
    tern_pretok_free(t->pretok);
    tern_free(t->rules);
    tern_free(t->rank);
    tern_free(t);
}

/* ---- questions ---------------------------------------------------------------------------------------------- */

static bool in_vocab(const struct tern_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab;
}

int tern_tokenizer_n_vocab(const struct tern_tokenizer *t)
{
    return t->n_vocab;
}

const char *tern_tokenizer_kind(const struct tern_tokenizer *t)
{
    return t->kind;
}

int32_t tern_tokenizer_bos(const struct tern_tokenizer *t)
{
    return t->bos;
}

int32_t tern_tokenizer_eos(const struct tern_tokenizer *t)
{
    return t->eos;
}

bool tern_tokenizer_is_eog(const struct tern_tokenizer *t, int32_t id)
{
    return in_vocab(t, id) && t->eog[id];
}

bool tern_tokenizer_is_control(const struct tern_tokenizer *t, int32_t id)
{
    return in_vocab(t, id) && tern_tok_is_control_type(t->type[id]);
}

int32_t tern_tokenizer_find(const struct tern_tokenizer *t, const char *text, size_t n)
{
    return tern_tok_map_get(&t->by_piece, &t->piece, text, n);
}

const char *tern_tokenizer_piece(const struct tern_tokenizer *t, int32_t id)
{
    size_t n;
    return in_vocab(t, id) ? tern_tok_string(&t->piece, id, &n) : NULL;
}

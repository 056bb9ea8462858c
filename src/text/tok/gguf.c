/* Builds a tokenizer from GGUF metadata.  Nothing in the file is believed: types, counts, ids and lengths are checked
 * here, so that encoding and decoding need no checks of the vocabulary. */
#include "text/tok/tok.h"

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
        if (type < 0 || type > TERN_TOK_BYTE)
            TERN_FAIL(err, TERN_EFORMAT, "%s: " KEY "token_type[%zu] is %lld; 0 to 6 are known", tern_file_path(l->f),
                      i, (long long)type);
        if (type != 0) /* which says nothing about the token */
            t->type[i] = (uint8_t)type;
    }
out:
    return rc;
}

/* What token i stands for.  out has room for n bytes (at least 1). */
static int token_bytes(const struct load *l, size_t i, const int16_t *of, const struct tern_str *s, char *out,
                       size_t *n, tern_error *err)
{
    bool bytes = l->t->algo == TERN_TOK_BYTE_BPE;
    switch ((enum tern_tok_type)l->t->type[i]) {
    case TERN_TOK_BYTE: {
        int byte = tern_tok_byte_of_piece(s->p, s->n);
        if (byte < 0)
            return tern_err_set(err, TERN_EFORMAT, "%s: " KEY "tokens[%zu] is of type byte but not of the form <0x0A>",
                                tern_file_path(l->f), i);
        out[0] = (char)byte;
        *n = 1;
        return 0;
    }
    case TERN_TOK_NORMAL:
        *n = bytes ? tern_tok_undo_alphabet(of, s->p, s->n, out) : tern_tok_undo_marks(s->p, s->n, out);
        return 0;
    case TERN_TOK_USER:
    case TERN_TOK_UNUSED:
        if (!bytes) {
            *n = tern_tok_undo_marks(s->p, s->n, out);
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
    int16_t of[TERN_TOK_ALPHABET_END];
    char bytes[TERN_TOK_MAX_PIECE];
    tern_tok_byte_alphabet(of, t->alphabet);
    for (size_t i = 0; i < n; i++) {
        size_t max = tern_tok_is_added(t->type[i]) ? TERN_TOK_MAX_ADDED : TERN_TOK_MAX_PIECE;
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
        if (!tern_tok_is_added(t->type[i]))
            continue;
        size_t n;
        const char *p = tern_tok_string(&t->piece, i, &n);
        char text[TERN_TOK_MAX_ADDED];
        if (t->algo == TERN_TOK_SCORE_BPE) {
            n = tern_tok_undo_marks(p, n, text);
            p = text;
        }
        int rc = tern_tok_trie_add(&t->added, p, n, i, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* An id that is none of the vocabulary's names no token: some writers say 4294967295, or keep the id of a larger
 * vocabulary.  Who needs the token misses it there. */
static int get_id(const struct load *l, const char *key, int32_t *id, tern_error *err)
{
    const struct tern_meta *m = tern_file_meta(l->f, key);
    int64_t v = -1;
    *id = -1;
    if (m && m->type == TERN_META_INT && (m->odd || m->i < 0 || m->i >= l->t->n_vocab))
        return 0;
    int rc = tern_file_get_int(l->f, key, -1, 0, l->t->n_vocab - 1, &v, err);
    if (rc == 0)
        *id = (int32_t)v;
    return rc;
}

static int read_special(struct load *l, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = l->t;
    int32_t id;
    TERN_TRY(get_id(l, KEY "bos_token_id", &t->bos, err));
    TERN_TRY(get_id(l, KEY "eos_token_id", &t->eos, err));
    TERN_TRY(get_id(l, KEY "unknown_token_id", &t->unknown, err));
    if (t->eos >= 0)
        t->eog[t->eos] = true;
    TERN_TRY(get_id(l, KEY "eot_token_id", &id, err));
    if (id >= 0)
        t->eog[id] = true;
    TERN_TRY(get_id(l, KEY "eom_token_id", &id, err));
    if (id >= 0)
        t->eog[id] = true;
    tern_tok_find_ends(t);
    TERN_TRY(tern_tok_names_from_file(t, l->f, err));
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
    bool front, back, scores = t->algo == TERN_TOK_SCORE_BPE;
    bool def = t->algo != TERN_TOK_BYTE_BPE || (l->pre->flags & TERN_PRETOK_BOS);
    TERN_TRY(read_flag(l, KEY "add_bos_token", def, t->bos, &front, err));
    TERN_TRY(read_flag(l, KEY "add_eos_token", false, t->eos, &back, err));
    if (front)
        t->front[t->n_front++] = t->bos;
    if (back)
        t->back[t->n_back++] = t->eos;
    TERN_TRY(tern_file_get_bool(l->f, KEY "add_space_prefix", scores, &t->add_space_prefix, err));
    if (!scores && t->add_space_prefix)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: " KEY "add_space_prefix is true; only score BPE has a prefix space here",
                  tern_file_path(l->f));
    t->drop_space = t->add_space_prefix;
out:
    return rc;
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
    TERN_TRY(tern_pretok_steps(l->pre, &t->pre, err));
    t->ignore_merges = l->pre->flags & TERN_PRETOK_IGNORE_MERGES;
    if (l->pre->flags & TERN_PRETOK_NFC) {
        struct tern_tok_step *step;
        TERN_TRY(tern_tok_steps_add(&t->norm, TERN_TOK_NFC, &step, err));
        t->nfc = true;
    }
    (void)snprintf(t->kind, sizeof t->kind, "BPE, pre-tokenizer %.*s", (int)name.n, name.p);
out:
    return rc;
}

static int read_merge(const struct load *l, size_t i, tern_error *err)
{
    const struct tern_str *s = &((const struct tern_str *)l->merges->arr)[i];
    if (tern_tok_add_merge_text(l->t, s->p, s->n, (uint32_t)i))
        return 0;
    return tern_err_set(err, TERN_EFORMAT,
                        "%s: " KEY "merges[%zu] is not two tokens of " KEY
                        "tokens that make a third, with a space between",
                        tern_file_path(l->f), i);
}

static int read_merges(struct load *l, tern_error *err)
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
out:
    return rc;
}

static int load_bpe(struct load *l, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = l->t;
    TERN_TRY(read_merges(l, err));
    if (t->ignore_merges)
        TERN_TRY(tern_tok_index_bytes(t, err));
    tern_tok_find_bytes(t, TERN_TOK_NORMAL);
    tern_tok_unknown_bytes(t);
out:
    return rc;
}

/* ---- character BPE (gemma4) ---------------------------------------------------------------------------------- */

/* Spaces are written as U+2581; only newlines separate words.  What the vocabulary lacks becomes bytes. */
static int load_chars(struct load *l, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = l->t;
    struct tern_tok_step *step;
    TERN_TRY(tern_tok_steps_add(&t->norm, TERN_TOK_REPLACE, &step, err));
    TERN_TRY(tern_tok_regex_literal(&step->re, " ", 1, err));
    TERN_TRY(tern_buf_add(&step->text, "\xE2\x96\x81", 3, err));
    TERN_TRY(tern_tok_steps_split(&t->pre, "[^\\n]+|\\n+", TERN_TOK_ISOLATED, false, err));
    TERN_TRY(read_merges(l, err));
    t->byte_fallback = true;
    t->fuse_unknown = true;
    tern_tok_find_bytes(t, TERN_TOK_BYTE);
    (void)snprintf(t->kind, sizeof t->kind, "BPE of characters%s", t->all_bytes ? ", byte fallback" : "");
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
    TERN_TRY(tern_tok_index_bytes(t, err));
    t->fuse_unknown = true;
    find_cuts(t);
    tern_tok_find_bytes(t, TERN_TOK_BYTE);
    if (!t->all_bytes && t->unknown < 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: the vocabulary has neither all 256 byte tokens nor a " KEY "unknown_token_id",
                  tern_file_path(l->f));
    (void)snprintf(t->kind, sizeof t->kind, "SentencePiece BPE%s", t->all_bytes ? ", byte fallback" : "");
out:
    return rc;
}

/* ---- entry -------------------------------------------------------------------------------------------------- */

/* *none: no vocabulary. */
static int read_algo(const struct tern_file *f, bool *none, enum tern_tok_algo *algo, tern_error *err)
{
    static const struct {
        const char *name;
        enum tern_tok_algo algo;
    } known[] = {{"gpt2", TERN_TOK_BYTE_BPE}, {"llama", TERN_TOK_SCORE_BPE}, {"gemma4", TERN_TOK_CHAR_BPE}};
    struct tern_str model;
    int rc = tern_file_get_str(f, KEY "model", &model, err);
    if (rc < 0)
        return rc;
    if (!model.p && tern_file_meta(f, KEY "tokens"))
        return tern_err_set(err, TERN_EFORMAT, "%s: has " KEY "tokens but no " KEY "model", tern_file_path(f));
    *none = !model.p || (model.n == 4 && memcmp(model.p, "none", 4) == 0);
    for (size_t i = 0; i < sizeof known / sizeof known[0] && !*none; i++)
        if (model.n == strlen(known[i].name) && memcmp(model.p, known[i].name, model.n) == 0) {
            *algo = known[i].algo;
            return 0;
        }
    if (*none)
        return 0;
    return tern_err_set(err, TERN_EUNSUPPORTED,
                        "%s: " KEY "model is '%.*s'; gpt2, llama, gemma4 and none are supported", tern_file_path(f),
                        (int)(model.n < 64 ? model.n : 64), model.p);
}

int tern_tokenizer_from_file(struct tern_tokenizer **out, const struct tern_file *f, tern_error *err)
{
    int rc = 0;
    bool none = false;
    enum tern_tok_algo algo = TERN_TOK_BYTE_BPE;
    struct load l = {.f = f};
    *out = NULL;
    TERN_TRY(read_algo(f, &none, &algo, err));
    if (none)
        return 0;
    TERN_TRY(tern_alloc(&l.t, 1, sizeof *l.t, err));
    l.t->algo = algo;
    TERN_TRY(read_arrays(&l, err));
    if (algo == TERN_TOK_BYTE_BPE)
        TERN_TRY(read_pre(&l, err));
    TERN_TRY(read_types(&l, err));
    TERN_TRY(read_tokens(&l, err));
    TERN_TRY(read_added(&l, err));
    TERN_TRY(read_special(&l, err));
    TERN_TRY(read_flags(&l, err));
    TERN_TRY(algo == TERN_TOK_BYTE_BPE   ? load_bpe(&l, err)
             : algo == TERN_TOK_CHAR_BPE ? load_chars(&l, err)
                                         : load_spm(&l, err));
    *out = l.t;
    return 0;
out:
    tern_tokenizer_free(l.t);
    return rc;
}

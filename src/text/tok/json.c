/* Builds a tokenizer from the files that Hugging Face's `tokenizers` writes.  As with GGUF, nothing in them is
 * believed: types, counts, ids and lengths are checked here, so that encoding and decoding need no checks of the
 * vocabulary. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/tok/json.h"

enum { MAX_FILE = 1 << 28 }; /* bytes of a tokenizer.json; the largest seen have 35 million */

/* One id, before there are tables. */
struct entry {
    const char *p; /* NULL: no token has this id */
    size_t n;
    uint8_t type, find;
    bool piece, added, normalized; /* of the model's vocabulary; an added token; found in normalized text */
};

struct vocabulary {
    struct entry *e;
    size_t n;
    size_t n_named;
};

static int parse(const struct tern_tok_json *j, const char *file, const struct tern_str *s, const json_t **out,
                 tern_error *err)
{
    json_error_t e;
    *out = NULL;
    if (!s->p)
        return 0;
    if (s->n > MAX_FILE)
        return tern_err_set(err, TERN_ELIMIT, "%s: %s has %zu bytes; at most %d are possible", j->name, file, s->n,
                            MAX_FILE);
    /* tokenizer_config.json says "no limit" as an integer of 100 bits, and no number of it is read. */
    const size_t config = strcmp(file, "tokenizer_config.json") == 0 ? JSON_DECODE_INT_AS_REAL : 0;
    json_t *root = json_loadb(s->p, s->n, JSON_ALLOW_NUL | config, &e);
    if (!root || !json_is_object(root)) {
        json_decref(root);
        return tern_err_set(err, TERN_EFORMAT, "%s: %s is not a JSON object: %s (line %d, column %d)", j->name, file,
                            root ? "it is something else" : e.text, root ? 1 : e.line, root ? 1 : e.column);
    }
    *out = root;
    return 0;
}

/* ---- ids ---------------------------------------------------------------------------------------------------- */

/* The largest id of a file's lists decides about the size of all tables, so it is bounded by what the file holds. */
static int check_id(const struct tern_tok_json *j, const struct vocabulary *v, const char *what, json_int_t id,
                    tern_error *err)
{
    json_int_t max = (json_int_t)(4 * v->n_named + 65536);
    max = max < TERN_TOK_MAX_VOCAB ? max : TERN_TOK_MAX_VOCAB;
    if (id >= 0 && id < max)
        return 0;
    return tern_err_set(err, TERN_EFORMAT, "%s: %.64s has the id %lld, which is out of range", j->name, what,
                        (long long)id);
}

/* The entry of an id; the table grows. */
static int reach(const struct tern_tok_json *j, struct vocabulary *v, size_t *cap, const char *what, json_int_t id,
                 struct entry **out, tern_error *err)
{
    int rc = 0;
    TERN_TRY(check_id(j, v, what, id, err));
    if ((size_t)id >= v->n) {
        TERN_TRY(tern_grow(&v->e, cap, (size_t)id + 1, sizeof *v->e, err));
        for (size_t i = v->n; i <= (size_t)id; i++)
            v->e[i] = (struct entry){.type = TERN_TOK_UNUSED};
        v->n = (size_t)id + 1;
    }
    *out = &v->e[id];
out:
    return rc;
}

static int name_id(const struct tern_tok_json *j, struct entry *e, json_int_t id, const char *p, size_t n,
                   tern_error *err)
{
    if (e->p && (e->n != n || memcmp(e->p, p, n) != 0))
        return tern_err_set(err, TERN_EFORMAT, "%s: the id %lld is both '%.64s' and '%.64s'", j->name, (long long)id,
                            e->p, p);
    e->p = p;
    e->n = n;
    return 0;
}

static int read_bpe_vocab(const struct tern_tok_json *j, const json_t *vocab, struct vocabulary *v, size_t *cap,
                          tern_error *err)
{
    int rc = 0;
    json_t *object = (json_t *)(uintptr_t)vocab; /* jansson's iterators want a mutable object, and only read */
    for (void *it = json_object_iter(object); it; it = json_object_iter_next(object, it)) {
        struct entry *e = NULL;
        const char *p = json_object_iter_key(it);
        const json_t *id = json_object_iter_value(it);
        TERN_TRY(reach(j, v, cap, p, json_is_integer(id) ? json_integer_value(id) : -1, &e, err));
        TERN_TRY(name_id(j, e, json_integer_value(id), p, json_object_iter_key_len(it), err));
        e->type = TERN_TOK_NORMAL;
        e->piece = true;
    }
out:
    return rc;
}

static int read_unigram_vocab(const struct tern_tok_json *j, const json_t *vocab, struct vocabulary *v, size_t *cap,
                              tern_error *err)
{
    int rc = 0;
    for (size_t i = 0; i < json_array_size(vocab); i++) {
        struct entry *e = NULL;
        const json_t *p = json_array_get(json_array_get(vocab, i), 0);
        if (!json_is_string(p) || !json_is_number(json_array_get(json_array_get(vocab, i), 1)))
            TERN_FAIL(err, TERN_EFORMAT, "%s: vocab[%zu] of the model is not a text and a number", j->name, i);
        TERN_TRY(reach(j, v, cap, json_string_value(p), (json_int_t)i, &e, err));
        TERN_TRY(name_id(j, e, (json_int_t)i, json_string_value(p), json_string_length(p), err));
        e->type = TERN_TOK_NORMAL;
        e->piece = true;
    }
out:
    return rc;
}

/* Some files leave out that a token is special; its form says it. */
static bool looks_special(const char *p, size_t n)
{
    static const char begin[] = "<\xEF\xBD\x9C", end[] = "\xEF\xBD\x9C>"; /* full-width bars */
    return (n > 4 && memcmp(p, "<|", 2) == 0 && memcmp(p + n - 2, "|>", 2) == 0) ||
           (n > 8 && memcmp(p, begin, 4) == 0 && memcmp(p + n - 4, end, 4) == 0);
}

static int read_added(const struct tern_tok_json *j, const json_t *token, json_int_t id, struct vocabulary *v,
                      size_t *cap, tern_error *err)
{
    int rc = 0;
    struct entry *e = NULL;
    const json_t *content = tern_tok_json_get(token, "content");
    const char *p = json_string_value(content);
    size_t n = json_string_length(content);
    if (!p || n == 0 || n > TERN_TOK_MAX_ADDED)
        TERN_FAIL(err, TERN_EFORMAT, "%s: the added token %lld has no content of 1 to %d bytes", j->name, (long long)id,
                  TERN_TOK_MAX_ADDED);
    TERN_TRY(reach(j, v, cap, p, id, &e, err));
    if (e->added)
        return 0; /* tokenizer_config.json repeats it */
    TERN_TRY(name_id(j, e, id, p, n, err));
    e->type = tern_tok_json_flag(token, "special", false) || looks_special(p, n) ? TERN_TOK_CONTROL : TERN_TOK_USER;
    e->find = (tern_tok_json_flag(token, "single_word", false) ? TERN_TOK_WORD : 0) |
              (tern_tok_json_flag(token, "lstrip", false) ? TERN_TOK_LSTRIP : 0) |
              (tern_tok_json_flag(token, "rstrip", false) ? TERN_TOK_RSTRIP : 0);
    e->added = true;
    e->normalized = e->type == TERN_TOK_USER && tern_tok_json_flag(token, "normalized", true);
out:
    return rc;
}

static int read_all_added(const struct tern_tok_json *j, struct vocabulary *v, size_t *cap, tern_error *err)
{
    int rc = 0;
    const json_t *list = tern_tok_json_get(j->root, "added_tokens");
    json_t *more = (json_t *)(uintptr_t)tern_tok_json_get(j->config, "added_tokens_decoder");
    if (list && !json_is_array(list))
        TERN_FAIL(err, TERN_EFORMAT, "%s: added_tokens is not a list", j->name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = tern_tok_json_get(json_array_get(list, i), "id");
        TERN_TRY(
            read_added(j, json_array_get(list, i), json_is_integer(id) ? json_integer_value(id) : -1, v, cap, err));
    }
    for (void *it = json_object_iter(more); it; it = json_object_iter_next(more, it)) {
        char *end;
        const char *key = json_object_iter_key(it);
        long id = strtol(key, &end, 10);
        TERN_TRY(read_added(j, json_object_iter_value(it), *key && !*end ? id : -1, v, cap, err));
    }
out:
    return rc;
}

/* ---- tables ------------------------------------------------------------------------------------------------- */

/* out has room for n bytes. */
static size_t replace_all(const char *p, size_t n, const char *from, size_t n_from, const char *to, size_t n_to,
                          char *out)
{
    size_t k = 0;
    for (size_t i = 0; i < n;) {
        bool found = n - i >= n_from && memcmp(p + i, from, n_from) == 0;
        if (found)
            memcpy(out + k, to, n_to);
        else
            out[k] = p[i];
        k += found ? n_to : 1;
        i += found ? n_from : 1;
    }
    return k;
}

/* What a token stands for; out has room for TERN_TOK_MAX_PIECE bytes. */
static size_t decode_piece(const struct tern_tok_json *j, const int16_t *of, const struct entry *e, char *out)
{
    const struct tern_tok_decoder *d = &j->decoder;
    char other[TERN_TOK_MAX_PIECE];
    size_t n = e->n;
    int byte = d->byte_fallback && !e->added ? tern_tok_byte_of_piece(e->p, n) : -1;
    if (byte >= 0) {
        out[0] = (char)byte;
        return 1;
    }
    if (d->alphabet && !e->added)
        return tern_tok_undo_alphabet(of, e->p, n, out);
    if (n > 0)
        memcpy(out, e->p, n);
    for (int i = 0; i < d->n_replace && e->type != TERN_TOK_CONTROL; i++) {
        n = replace_all(out, n, d->replace[i].from, d->replace[i].n_from, d->replace[i].to, d->replace[i].n_to, other);
        memcpy(out, other, n);
    }
    return n;
}

static int fill_tables(struct tern_tok_json *j, const struct vocabulary *v, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = j->t;
    size_t total = 0;
    int16_t of[TERN_TOK_ALPHABET_END];
    char bytes[TERN_TOK_MAX_PIECE];
    tern_tok_byte_alphabet(of, t->alphabet);
    for (size_t i = 0; i < v->n; i++) {
        if (v->e[i].n > TERN_TOK_MAX_PIECE)
            TERN_FAIL(err, TERN_EFORMAT, "%s: token %zu has %zu bytes; at most %d are possible", j->name, i, v->e[i].n,
                      TERN_TOK_MAX_PIECE);
        total += v->e[i].n + 1;
    }
    t->n_vocab = (int)v->n;
    TERN_TRY(tern_alloc(&t->type, v->n, sizeof *t->type, err));
    TERN_TRY(tern_alloc(&t->eog, v->n, sizeof *t->eog, err));
    TERN_TRY(tern_alloc(&t->find, v->n, sizeof *t->find, err));
    TERN_TRY(tern_tok_strings_init(&t->piece, v->n, total, err));
    TERN_TRY(tern_tok_strings_init(&t->bytes, v->n, total, err));
    TERN_TRY(tern_tok_map_init(&t->by_piece, v->n, err));
    for (size_t i = 0; i < v->n; i++) {
        const struct entry *e = &v->e[i];
        t->type[i] = t->byte_fallback && e->type == TERN_TOK_NORMAL && tern_tok_byte_of_piece(e->p, e->n) >= 0
                         ? TERN_TOK_BYTE
                         : e->type;
        t->find[i] = e->find | (e->piece ? 0 : TERN_TOK_ALONE);
        tern_tok_strings_set(&t->piece, (int32_t)i, e->p, e->n);
        tern_tok_strings_set(&t->bytes, (int32_t)i, bytes, decode_piece(j, of, e, bytes));
        if (e->n > 0)
            tern_tok_map_add(&t->by_piece, &t->piece, (int32_t)i);
    }
out:
    return rc;
}

static int fill_tries(struct tern_tok_json *j, const struct vocabulary *v, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = j->t;
    struct tern_tok_regex_run run = {0};
    struct tern_buf text = {0};
    TERN_TRY(tern_tok_regex_begin(&run, 0, err));
    for (size_t i = 0; i < v->n; i++) {
        const struct entry *e = &v->e[i];
        if (!e->added)
            continue;
        if (!e->normalized) {
            TERN_TRY(tern_tok_trie_add(&t->added, e->p, e->n, (int32_t)i, err));
            continue;
        }
        tern_buf_reset(&text);
        if (t->norm.n == 0 || tern_utf8_valid(e->p, e->n) != e->n)
            TERN_TRY(tern_buf_add(&text, e->p, e->n, err));
        else
            TERN_TRY(tern_tok_normalize(&t->norm, &run, false, e->p, e->n, &text, err));
        if (text.len > TERN_TOK_MAX_PIECE)
            TERN_FAIL(err, TERN_ELIMIT, "%s: the added token %zu has %zu bytes when normalized", j->name, i, text.len);
        TERN_TRY(tern_tok_trie_add(&t->added_normal, text.p ? text.p : "", text.len, (int32_t)i, err));
    }
out:
    tern_tok_regex_end(&run);
    tern_buf_clear(&text);
    return rc;
}

/* ---- models ------------------------------------------------------------------------------------------------- */

static int read_merges(const struct tern_tok_json *j, const json_t *merges, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = j->t;
    size_t n = json_array_size(merges);
    if (!json_is_array(merges) || n > TERN_TOK_MAX_VOCAB)
        TERN_FAIL(err, TERN_EFORMAT, "%s: merges of the model is not a list of at most %d", j->name,
                  TERN_TOK_MAX_VOCAB);
    TERN_TRY(tern_tok_rules_init(t, n, err));
    for (size_t i = 0; i < n; i++) {
        const json_t *m = json_array_get(merges, i), *a = json_array_get(m, 0), *b = json_array_get(m, 1);
        bool pair = json_array_size(m) == 2 && json_is_string(a) && json_is_string(b), good;
        if (pair)
            good = tern_tok_add_merge(t, json_string_value(a), json_string_length(a), json_string_value(b),
                                      json_string_length(b), (uint32_t)i);
        else
            good = json_is_string(m) &&
                   tern_tok_add_merge_text(t, json_string_value(m), json_string_length(m), (uint32_t)i);
        if (!good)
            TERN_FAIL(err, TERN_EFORMAT, "%s: merges[%zu] is not two tokens that make a third", j->name, i);
    }
out:
    return rc;
}

static bool has_text(const json_t *object, const char *key)
{
    return json_string_length(tern_tok_json_get(object, key)) > 0;
}

/* Pieces of byte-level BPE that are added tokens too: those that the byte alphabet writes as they are. */
static void index_added(struct tern_tokenizer *t)
{
    for (int32_t i = 0; i < t->n_vocab; i++) {
        size_t n, k = 0;
        const char *p = tern_tok_string(&t->piece, i, &n);
        while (k < n && p[k] > ' ' && p[k] <= '~')
            k++;
        if (t->type[i] != TERN_TOK_USER || !tern_tok_is_piece(t, i) || k < n)
            continue;
        tern_tok_map_add(&t->by_bytes, &t->bytes, i);
        if (n == 1)
            t->byte_id[(uint8_t)*p] = i;
    }
}

static int read_bpe(struct tern_tok_json *j, const json_t *model, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = j->t;
    const json_t *unknown = tern_tok_json_get(model, "unk_token");
    if (has_text(model, "continuing_subword_prefix") || has_text(model, "end_of_word_suffix"))
        TERN_FAIL(err, TERN_EUNSUPPORTED,
                  "%s: the model has a continuing_subword_prefix or an end_of_word_suffix, which is not supported",
                  j->name);
    if (json_number_value(tern_tok_json_get(model, "dropout")) > 0)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: the model has a dropout, which is not supported", j->name);
    t->ignore_merges = tern_tok_json_flag(model, "ignore_merges", false);
    t->fuse_unknown = tern_tok_json_flag(model, "fuse_unk", false);
    if (json_is_string(unknown))
        t->unknown = tern_tokenizer_find(t, json_string_value(unknown), json_string_length(unknown));
    TERN_TRY(read_merges(j, tern_tok_json_get(model, "merges"), err));
    if (t->algo == TERN_TOK_CHAR_BPE) {
        tern_tok_find_bytes(t, TERN_TOK_BYTE);
        (void)snprintf(t->kind, sizeof t->kind, "BPE of characters%s", t->byte_fallback ? ", byte fallback" : "");
        return 0;
    }
    TERN_TRY(tern_tok_index_bytes(t, err));
    tern_tok_find_bytes(t, TERN_TOK_NORMAL);
    index_added(t);
    for (int b = 0; b < 256 && !t->fuse_unknown; b++) /* else the encoder knows it by the lack of a token */
        if (t->byte_id[b] < 0)
            t->byte_id[b] = t->unknown;
    (void)snprintf(t->kind, sizeof t->kind, "byte-level BPE");
out:
    return rc;
}

static int read_unigram(struct tern_tok_json *j, const json_t *model, tern_error *err)
{
    enum { UNKNOWN_PENALTY = 10 };
    int rc = 0;
    struct tern_tokenizer *t = j->t;
    double least = INFINITY;
    const json_t *vocab = tern_tok_json_get(model, "vocab"), *unknown = tern_tok_json_get(model, "unk_id");
    t->fuse_unknown = true;
    if (json_is_integer(unknown)) {
        json_int_t id = json_integer_value(unknown);
        if (id < 0 || id >= t->n_vocab)
            TERN_FAIL(err, TERN_EFORMAT, "%s: unk_id of the model is %lld of %d tokens", j->name, (long long)id,
                      t->n_vocab);
        t->unknown = (int32_t)id;
        if (t->type[id] == TERN_TOK_NORMAL)
            t->type[id] = TERN_TOK_UNKNOWN;
    }
    TERN_TRY(tern_alloc(&t->score, (size_t)t->n_vocab, sizeof *t->score, err));
    for (size_t i = 0; i < json_array_size(vocab); i++) {
        size_t n;
        const char *p = tern_tok_string(&t->piece, (int32_t)i, &n);
        t->score[i] = json_number_value(json_array_get(json_array_get(vocab, i), 1));
        if (!isfinite(t->score[i]))
            TERN_FAIL(err, TERN_EFORMAT, "%s: the score of token %zu is not finite", j->name, i);
        least = t->score[i] < least ? t->score[i] : least;
        if (t->type[i] == TERN_TOK_NORMAL || t->type[i] == TERN_TOK_USER)
            TERN_TRY(tern_tok_trie_add(&t->pieces, p, n, (int32_t)i, err));
    }
    t->unknown_score = least - UNKNOWN_PENALTY;
    tern_tok_find_bytes(t, TERN_TOK_BYTE);
    (void)snprintf(t->kind, sizeof t->kind, "Unigram%s", t->byte_fallback ? ", byte fallback" : "");
out:
    return rc;
}

/* ---- BOS, EOS and what ends a generation --------------------------------------------------------------------- */

/* "bos_token": a text, or an object with the text as "content". */
static int get_token(const struct tern_tok_json *j, const char *key, int32_t *id, tern_error *err)
{
    const json_t *v = tern_tok_json_get(j->config, key);
    *id = -1;
    if (json_is_object(v))
        v = tern_tok_json_get(v, "content");
    if (!json_is_string(v))
        return 0;
    *id = tern_tokenizer_find(j->t, json_string_value(v), json_string_length(v));
    if (*id >= 0)
        return 0;
    return tern_err_set(err, TERN_EFORMAT, "%s: %s of tokenizer_config.json is '%.64s', which is no token", j->name,
                        key, json_string_value(v));
}

/* "eos_token_id": an id or a list of ids.  *first keeps what it has, else gets the first; all become eog when asked. */
static int get_ids(const struct tern_tok_json *j, const json_t *from, const char *key, bool eog, int32_t *first,
                   tern_error *err)
{
    const json_t *v = tern_tok_json_get(from, key);
    size_t n = json_is_array(v) ? json_array_size(v) : v ? 1 : 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, i) : v;
        json_int_t id = json_is_integer(one) ? json_integer_value(one) : -1;
        if (id < 0 || id >= j->t->n_vocab)
            return tern_err_set(err, TERN_EFORMAT, "%s: %s names the token %lld of a vocabulary of %d", j->name, key,
                                (long long)id, j->t->n_vocab);
        if (*first < 0)
            *first = (int32_t)id;
        if (eog)
            j->t->eog[id] = true;
    }
    return 0;
}

/* add_bos_token and add_eos_token of tokenizer_config.json overrule the post-processor. */
static int overrule(const struct tern_tok_json *j, const char *key, int32_t id, int32_t *list, int *n, tern_error *err)
{
    const json_t *v = tern_tok_json_get(j->config, key);
    if (!json_is_boolean(v))
        return 0;
    if (json_is_true(v) && id < 0)
        return tern_err_set(err, TERN_EFORMAT, "%s: %s of tokenizer_config.json is true but there is no such token",
                            j->name, key);
    if (json_is_true(v) && *n == 0)
        list[(*n)++] = id;
    if (json_is_false(v) && *n == 1 && list[0] == id)
        *n = 0;
    return 0;
}

static int read_special(struct tern_tok_json *j, tern_error *err)
{
    int rc = 0;
    struct tern_tokenizer *t = j->t;
    TERN_TRY(get_token(j, "bos_token", &t->bos, err));
    TERN_TRY(get_token(j, "eos_token", &t->eos, err));
    TERN_TRY(get_ids(j, j->generation, "bos_token_id", false, &t->bos, err));
    TERN_TRY(get_ids(j, j->model, "bos_token_id", false, &t->bos, err));
    TERN_TRY(get_ids(j, j->generation, "eos_token_id", true, &t->eos, err));
    TERN_TRY(get_ids(j, j->model, "eos_token_id", true, &t->eos, err));
    TERN_TRY(tern_tok_json_post_processor(j, tern_tok_json_get(j->root, "post_processor"), err));
    if (t->bos < 0 && t->n_front > 0)
        t->bos = t->front[0];
    TERN_TRY(overrule(j, "add_bos_token", t->bos, t->front, &t->n_front, err));
    TERN_TRY(overrule(j, "add_eos_token", t->eos, t->back, &t->n_back, err));
    if (t->eos >= 0)
        t->eog[t->eos] = true;
    tern_tok_find_ends(t);
    TERN_TRY(tern_tok_names_from_config(t, j->config, err));
out:
    return rc;
}

/* ---- entry -------------------------------------------------------------------------------------------------- */

static int read_vocabulary(struct tern_tok_json *j, const json_t *model, struct vocabulary *v, tern_error *err)
{
    int rc = 0;
    size_t cap = 0;
    const json_t *vocab = tern_tok_json_get(model, "vocab");
    bool unigram = j->t->algo == TERN_TOK_UNIGRAM;
    if (unigram ? !json_is_array(vocab) : !json_is_object(vocab))
        TERN_FAIL(err, TERN_EFORMAT, "%s: the model has no vocab", j->name);
    v->n_named = (unigram ? json_array_size(vocab) : json_object_size(vocab)) +
                 json_array_size(tern_tok_json_get(j->root, "added_tokens"));
    TERN_TRY(unigram ? read_unigram_vocab(j, vocab, v, &cap, err) : read_bpe_vocab(j, vocab, v, &cap, err));
    TERN_TRY(read_all_added(j, v, &cap, err));
    if (v->n == 0)
        TERN_FAIL(err, TERN_EFORMAT, "%s: the vocabulary is empty", j->name);
    TERN_TRY(fill_tables(j, v, err));
    TERN_TRY(fill_tries(j, v, err));
out:
    return rc;
}

static int read_all(struct tern_tok_json *j, tern_error *err)
{
    int rc = 0;
    struct vocabulary v = {0};
    const json_t *model = tern_tok_json_get(j->root, "model");
    const char *type = tern_tok_json_type(model);
    bool unigram = strcmp(type, "Unigram") == 0;
    bool bpe = strcmp(type, "BPE") == 0 || (*type == 0 && tern_tok_json_get(model, "merges"));
    if (!unigram && !bpe)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: the model is '%.64s'; BPE and Unigram are supported", j->name, type);
    j->t->bos = j->t->eos = j->t->unknown = -1;
    j->t->byte_fallback = tern_tok_json_flag(model, "byte_fallback", false);
    TERN_TRY(tern_tok_json_normalizer(j, tern_tok_json_get(j->root, "normalizer"), err));
    TERN_TRY(tern_tok_json_pre_tokenizer(j, tern_tok_json_get(j->root, "pre_tokenizer"), err));
    TERN_TRY(tern_tok_json_decoder(j, tern_tok_json_get(j->root, "decoder"), err));
    j->t->algo = unigram ? TERN_TOK_UNIGRAM : j->byte_level ? TERN_TOK_BYTE_BPE : TERN_TOK_CHAR_BPE;
    if (j->byte_level && (unigram || !j->decoder.alphabet))
        TERN_FAIL(err, TERN_EUNSUPPORTED,
                  "%s: ByteLevel with Unigram, or without a ByteLevel decoder, is not supported", j->name);
    if (j->decoder.alphabet && j->decoder.n_replace > 0)
        TERN_FAIL(err, TERN_EUNSUPPORTED, "%s: a ByteLevel decoder beside one that replaces is not supported", j->name);
    TERN_TRY(read_vocabulary(j, model, &v, err));
    TERN_TRY(unigram ? read_unigram(j, model, err) : read_bpe(j, model, err));
    TERN_TRY(read_special(j, err));
out:
    tern_free(v.e);
    return rc;
}

int tern_tokenizer_from_json(struct tern_tokenizer **out, const struct tern_tokenizer_json *files, tern_error *err)
{
    int rc = 0;
    struct tern_tok_json j = {.name = files->name};
    *out = NULL;
    TERN_TRY(parse(&j, "tokenizer.json", &files->tokenizer, &j.root, err));
    TERN_TRY(parse(&j, "tokenizer_config.json", &files->config, &j.config, err));
    TERN_TRY(parse(&j, "generation_config.json", &files->generation, &j.generation, err));
    TERN_TRY(parse(&j, "config.json", &files->model, &j.model, err));
    if (!j.root)
        TERN_FAIL(err, TERN_EINVAL, "%s: there is no tokenizer.json", j.name);
    TERN_TRY(tern_alloc(&j.t, 1, sizeof *j.t, err));
    TERN_TRY(read_all(&j, err));
    *out = j.t;
out:
    if (rc < 0)
        tern_tokenizer_free(j.t);
    json_decref((json_t *)(uintptr_t)j.root);
    json_decref((json_t *)(uintptr_t)j.config);
    json_decref((json_t *)(uintptr_t)j.generation);
    json_decref((json_t *)(uintptr_t)j.model);
    return rc;
}

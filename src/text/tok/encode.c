/* From text to ids: added tokens, fragments between them, words inside a fragment (tok.h has the picture). */
#include "text/tok/encode.h"

#include <string.h>

enum { MEMO_PAYS = 256 }; /* bytes of text from which on clearing the memo costs less than it saves */

static bool has_mark(const char *p, size_t n)
{
    return memmem(p, n, "\xE2\x96\x81", 3) != NULL;
}

/* ---- normalizer and pre-tokenizer --------------------------------------------------------------------------- */

/* Added tokens that are looked for in normalized text; a control token is never among them. */
static int encode_normal(struct tern_tok_work *w, int source, size_t begin, size_t end, tern_error *err)
{
    int rc = 0;
    if (w->t->added_normal.n == 0)
        return tern_tok_pieces(w, 0, source, begin, end, err);
    struct tern_tok_scan scan = {.t = w->t, .trie = &w->t->added_normal, .n = end - begin};
    size_t i = 0;
    struct tern_tok_match m;
    do {
        scan.text = tern_tok_source(w, source) + begin; /* it may have moved */
        m = tern_tok_scan_next(&scan, i);
        if (m.begin > i)
            TERN_TRY(tern_tok_pieces(w, 0, source, begin + i, begin + m.begin, err));
        if (m.id >= 0)
            TERN_TRY(tern_ids_add(w->ids, m.id, err));
        w->at_start = false;
        i = m.end;
    } while (m.id >= 0);
out:
    return rc;
}

/* Well-formed UTF-8 without added tokens. */
static int encode_text(struct tern_tok_work *w, size_t begin, size_t n, tern_error *err)
{
    const struct tern_tokenizer *t = w->t;
    if (n == 0)
        return 0;
    if (t->norm.n == 0 || (t->nfc && tern_nfc_quick(w->text + begin, n)))
        return encode_normal(w, TERN_TOK_SOURCE_TEXT, begin, begin + n, err);
    size_t at = w->copy.len;
    int rc = tern_tok_normalize(&t->norm, &w->run, w->behind_broken, w->text + begin, n, &w->copy, err);
    return rc < 0 ? rc : encode_normal(w, TERN_TOK_SOURCE_COPY, at, w->copy.len, err);
}

/* A byte that is not UTF-8 is a word of its own, so neither normalizer nor regex ever sees it. */
static int encode_steps(struct tern_tok_work *w, size_t begin, size_t end, tern_error *err)
{
    int rc = 0;
    w->behind_broken = false;
    while (begin < end) {
        size_t n = tern_utf8_valid(w->text + begin, end - begin);
        TERN_TRY(encode_text(w, begin, n, err));
        begin += n;
        if (begin < end)
            TERN_TRY(tern_tok_word(w, TERN_TOK_SOURCE_TEXT, begin++, 1, err));
        w->behind_broken = true;
        w->at_start = false;
    }
out:
    return rc;
}

/* ---- score BPE ---------------------------------------------------------------------------------------------- */

/* Appends the fragment to w->copy with the prefix space and with U+2581 as what it means, a space. */
static int copy_spm(struct tern_tok_work *w, const char *p, size_t n, bool prefix, tern_error *err)
{
    int rc = 0;
    if (prefix)
        TERN_TRY(tern_buf_addc(&w->copy, ' ', err));
    while (n > 0) {
        const char *mark = memmem(p, n, "\xE2\x96\x81", 3);
        size_t plain = mark ? (size_t)(mark - p) : n;
        TERN_TRY(tern_buf_add(&w->copy, p, plain, err));
        p += plain;
        n -= plain;
        if (mark) {
            TERN_TRY(tern_buf_addc(&w->copy, ' ', err));
            p += 3;
            n -= 3;
        }
    }
out:
    return rc;
}

static int encode_spm(struct tern_tok_work *w, size_t begin, size_t end, tern_error *err)
{
    int rc = 0;
    int source = TERN_TOK_SOURCE_TEXT;
    bool prefix = w->t->add_space_prefix && w->after_added;
    if (prefix || has_mark(w->text + begin, end - begin)) {
        size_t at = w->copy.len;
        TERN_TRY(copy_spm(w, w->text + begin, end - begin, prefix, err));
        source = TERN_TOK_SOURCE_COPY;
        begin = at;
        end = w->copy.len;
    }
    const char *text = tern_tok_source(w, source);
    for (size_t i = begin; i < end;) {
        size_t k = i + 1;
        while (k < end && !(text[k] == ' ' && w->t->cut_after[(uint8_t)text[k - 1]]))
            k++;
        TERN_TRY(tern_tok_word(w, source, i, k - i, err));
        i = k;
    }
out:
    return rc;
}

/* ---- both --------------------------------------------------------------------------------------------------- */

static int encode_fragment(struct tern_tok_work *w, size_t begin, size_t end, tern_error *err)
{
    if (begin == end)
        return 0;
    int rc = w->t->algo == TERN_TOK_SCORE_BPE ? encode_spm(w, begin, end, err) : encode_steps(w, begin, end, err);
    w->after_added = false;
    return rc;
}

static size_t end_of_user_text(const struct tern_span *spans, size_t n)
{
    while (n && !spans[n - 1].user)
        n--;
    return n ? spans[n - 1].end : 0;
}

int tern_tok_encode(const struct tern_tokenizer *t, const char *text, size_t n, const struct tern_span *spans,
                    size_t n_spans, struct tern_ids *ids, struct tern_ids *borders, tern_error *err)
{
    int rc = 0;
    size_t first = ids->len;
    const size_t user_end = end_of_user_text(spans, n_spans);
    bool beyond = false; /* a border lies there already */
    struct tern_tok_work w = {
        .t = t, .ids = ids, .text = text, .copy.max = UINT32_MAX, .after_added = true, .at_start = true};
    struct tern_tok_scan scan = {.t = t, .trie = &t->added, .text = text, .n = n, .spans = spans, .n_spans = n_spans};
    if (n > TERN_TOK_MAX_TEXT)
        TERN_FAIL(err, TERN_ELIMIT, "a text of %zu bytes is longer than the tokenizer's limit of %d", n,
                  TERN_TOK_MAX_TEXT);
    if (t->algo != TERN_TOK_SCORE_BPE)
        TERN_TRY(tern_tok_regex_begin(&w.run, n, err));
    if (n >= MEMO_PAYS && (t->all_bytes || t->algo != TERN_TOK_SCORE_BPE))
        TERN_TRY(tern_alloc(&w.memo, TERN_TOK_MEMO_SIZE, sizeof *w.memo, err));
    struct tern_tok_match m = {.id = 0};
    for (size_t i = 0; m.id >= 0; i = m.end) {
        m = tern_tok_scan_next(&scan, i);
        if (m.begin > i)
            TERN_TRY(encode_fragment(&w, i, m.begin, err));
        if (m.id >= 0) {
            TERN_TRY(tern_ids_add(ids, m.id, err));
            w.after_added = true;
            w.at_start = false;
            w.after_unknown = false;
            if (borders && !beyond && tern_tokenizer_is_control(t, m.id)) {
                TERN_TRY(tern_ids_add(borders, (int32_t)ids->len, err));
                beyond = m.begin >= user_end;
            }
        }
    }
out:
    if (rc < 0)
        ids->len = first;
    tern_tok_regex_end(&w.run);
    tern_buf_clear(&w.copy);
    tern_free(w.sym);
    tern_free(w.heap);
    tern_free(w.best);
    tern_free(w.memo);
    return rc;
}

int tern_tok_add_bos(const struct tern_tokenizer *t, struct tern_ids *ids, size_t first, tern_error *err)
{
    size_t n = (size_t)t->n_front, len = ids->len - first;
    if (n == 0 || (len > 0 && ids->p[first] == t->front[0]))
        return 0;
    int rc = tern_grow(&ids->p, &ids->cap, ids->len + n, sizeof *ids->p, err);
    if (rc < 0)
        return rc;
    memmove(ids->p + first + n, ids->p + first, len * sizeof *ids->p);
    memcpy(ids->p + first, t->front, n * sizeof *ids->p);
    ids->len += n;
    return 0;
}

int tern_tokenize(const struct tern_tokenizer *t, const char *text, size_t n, unsigned flags, struct tern_ids *ids,
                  tern_error *err)
{
    int rc = 0;
    size_t first = ids->len;
    struct tern_span whole = {.begin = 0, .end = n, .user = !(flags & TERN_TOK_SPECIAL)};
    TERN_TRY(tern_tok_encode(t, text, n, &whole, 1, ids, NULL, err));
    if (flags & TERN_TOK_BOS_EOS) {
        TERN_TRY(tern_tok_add_bos(t, ids, first, err));
        for (int i = 0; i < t->n_back && !(flags & TERN_TOK_OPEN); i++)
            TERN_TRY(tern_ids_add(ids, t->back[i], err));
    }
out:
    if (rc < 0)
        ids->len = first;
    return rc;
}
